// SPDX-License-Identifier: MIT OR Apache-2.0

//! Facts that the kernel tells in `/sys` and `/proc`, apart from RDMA devices.
//!
//! The crate `procfs` lists processes and their files, but it does not read their fdinfo.

use std::collections::HashMap;
use std::fs;

fn read(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// Returns whether a module is loaded, or built into the kernel with parameters.
pub fn has_module(name: &str) -> bool {
    fs::exists(format!("/sys/module/{name}")).unwrap_or(false)
}

/// A network interface of this namespace.
pub struct Interface {
    pub name: String,
    pub mtu: u32,
    /// Whether the administrator enabled it.
    pub is_up: bool,
    /// Whether it has a link; [`None`] while it is disabled.
    pub carrier: Option<bool>,
}

impl Interface {
    /// Returns the interface with a name.
    pub fn named(name: &str) -> Option<Self> {
        let get = |what: &str| read(&format!("/sys/class/net/{name}/{what}"));
        let flags = get("flags")?;
        let flags = u32::from_str_radix(flags.trim_start_matches("0x"), 16).ok()?;
        Some(Self {
            name: name.to_owned(),
            mtu: get("mtu")?.parse().ok()?,
            is_up: flags & libc::IFF_UP as u32 != 0,
            carrier: get("carrier").map(|carrier| carrier == "1"),
        })
    }
}

/// Lists the names of the network interfaces of this namespace.
pub fn interfaces() -> impl Iterator<Item = String> {
    let entries = fs::read_dir("/sys/class/net")
        .into_iter()
        .flatten()
        .flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

/// Returns the ECN settings of a RoCE adapter, if its driver shows them.
pub fn ecn(interface: &str) -> Option<String> {
    let of = |side: &str| {
        let path = format!("/sys/class/net/{interface}/ecn/{side}/enable");
        let entries = fs::read_dir(path).ok()?.flatten();
        let on = |entry: &fs::DirEntry| {
            fs::read_to_string(entry.path()).is_ok_and(|on| on.trim() == "1")
        };
        let names = entries
            .filter(on)
            .filter_map(|entry| entry.file_name().into_string().ok());
        Some(names.collect::<Vec<_>>().join(","))
    };
    let (np, rp) = (of("roce_np")?, of("roce_rp")?);
    Some(format!(
        "notification point: priorities {np:?}; reaction point: priorities {rp:?}"
    ))
}

/// Returns the type of service that the connection manager uses for a port, if it was set.
pub fn default_tos(device: &str, port: u32) -> Option<u8> {
    let path = format!("/sys/kernel/config/rdma_cm/{device}/ports/{port}/default_roce_tos");
    read(&path)?.parse().ok()
}

/// A queue pair of a process that has `/dev/rust_ulp` open.
pub struct Owned {
    pub pid: u32,
    pub program: String,
    pub sends: u32,
    pub receives: u32,
}

/// Returns the name of a process.
pub fn program(pid: u32) -> Option<String> {
    read(&format!("/proc/{pid}/comm"))
}

/// Returns the queue pairs of all processes that this user may inspect, by device and number.
pub fn owners() -> HashMap<(String, u32), Owned> {
    let mut owners = HashMap::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = process
            .file_name()
            .to_str()
            .and_then(|pid| pid.parse().ok())
        else {
            continue;
        };
        let base = format!("/proc/{pid}");
        let Ok(files) = fs::read_dir(format!("{base}/fd")) else {
            continue;
        };
        for file in files.flatten() {
            let target = fs::read_link(file.path()).unwrap_or_default();
            if target.file_name() != Some("rust_ulp".as_ref()) {
                continue;
            }
            let number = file.file_name();
            let info = read(&format!("{base}/fdinfo/{}", number.to_string_lossy()));
            let program = program(pid).unwrap_or_default();
            for (device, qpn, sends, receives) in queue_pairs(&info.unwrap_or_default()) {
                let program = program.clone();
                owners.insert(
                    (device, qpn),
                    Owned {
                        pid,
                        program,
                        sends,
                        receives,
                    },
                );
            }
        }
    }
    owners
}

/// Parses the fdinfo of a file: device, number, and outstanding sends and receives of its queue
/// pairs.
fn queue_pairs(info: &str) -> Vec<(String, u32, u32, u32)> {
    let mut device = String::new();
    let mut found = Vec::new();
    for line in info.lines() {
        let Some((key, value)) = line.split_once(':') else {
            continue;
        };
        let words: Vec<&str> = value.split_whitespace().collect();
        match key {
            "rust_ulp-device" => device = words.join(" "),
            "rust_ulp-qp" => {
                let behind = |word: &str| {
                    let mut words = words.iter().skip_while(|of| **of != word).skip(1);
                    words.next().and_then(|n| n.parse().ok())
                };
                if let (Some(qpn), Some(sends), Some(recvs)) =
                    (behind("qpn"), behind("sends"), behind("recvs"))
                {
                    found.push((device.clone(), qpn, sends, recvs));
                }
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_pairs_of_an_open_file() {
        let info = "pos:\t0\nflags:\t02100002\nrust_ulp-file:\t3\nrust_ulp-device:\trxe1\n\
                    rust_ulp-pd:\t0x1\nrust_ulp-qp:\t0x3 qpn 17 Rc Rts sends 2 recvs 5\n\
                    rust_ulp-qp:\t0x4 qpn 18 Ud Reset sends 0 recvs 0\nrust_ulp-qp:\tnonsense\n";
        let rxe1 = || "rxe1".to_owned();
        assert_eq!(queue_pairs(info), [(rxe1(), 17, 2, 5), (rxe1(), 18, 0, 0)]);
        assert_eq!(queue_pairs("rust_ulp-device:\tnone\n"), []);
    }
}
