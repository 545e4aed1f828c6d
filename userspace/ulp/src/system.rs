// SPDX-License-Identifier: MIT OR Apache-2.0

//! Facts that the kernel tells in `/sys` and `/proc`, apart from RDMA devices.
//!
//! The crate `procfs` lists processes and their files, but it does not read their fdinfo.

use std::collections::BTreeMap;
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

/// Returns the priorities with ECN of a RoCE adapter, as notification point and as reaction point, if
/// its driver shows them.
pub fn ecn(interface: &str) -> Option<(String, String)> {
    let of = |side: &str| {
        let path = format!("/sys/class/net/{interface}/ecn/{side}/enable");
        let entries = fs::read_dir(path).ok()?.flatten();
        let on = |entry: &fs::DirEntry| {
            fs::read_to_string(entry.path()).is_ok_and(|on| on.trim() == "1")
        };
        let names = entries
            .filter(on)
            .filter_map(|entry| entry.file_name().into_string().ok());
        let names: Vec<_> = names.collect();
        Some(match names.is_empty() {
            true => "-".to_owned(),
            false => names.join(","),
        })
    };
    Some((of("roce_np")?, of("roce_rp")?))
}

/// Returns the type of service that the connection manager uses for a port, if it was set.
pub fn default_tos(device: &str, port: u32) -> Option<u8> {
    let path = format!("/sys/kernel/config/rdma_cm/{device}/ports/{port}/default_roce_tos");
    read(&path)?.parse().ok()
}

/// Returns the name of a process.
pub fn program(pid: u32) -> Option<String> {
    read(&format!("/proc/{pid}/comm"))
}

/// Returns the command line of a process, the arguments separated by blanks.
pub fn command(pid: u32) -> Option<String> {
    let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let text = String::from_utf8_lossy(&words).replace('\0', " ");
    Some(text.trim_end().to_owned())
}

/// The counters of a queue, or of several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// The requests that were posted.
    pub posted: u64,
    /// The bytes of posted send requests, or the bytes that completed receives got.
    pub bytes: u64,
    /// The number of completions with each status.
    pub completed: BTreeMap<u16, u64>,
}

/// A queue pair of an open file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileQp {
    pub number: u32,
    /// The requests in flight.
    pub sends: u32,
    pub receives: u32,
    pub send: QueueCounters,
    pub recv: QueueCounters,
    /// How many send requests took less than so many nanoseconds, and at least half of that.
    pub latency: BTreeMap<u64, u64>,
}

/// An open file of `/dev/rust_ulp`, as its fdinfo shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UlpFile {
    /// The serial number of the file.
    pub id: u32,
    /// The device; [`None`] for a file that is not attached or whose device is gone.
    pub device: Option<String>,
    /// The queue entries in use.
    pub entries: u64,
    /// The number of objects of each kind, such as "buffer".
    pub objects: BTreeMap<String, u32>,
    /// The bytes of all buffers.
    pub buffer_bytes: u64,
    pub queue_pairs: Vec<FileQp>,
    /// The sums of all queues, destroyed ones included.
    pub send: QueueCounters,
    pub recv: QueueCounters,
    /// The processes that have the file open and that this user may inspect.
    pub pids: Vec<u32>,
}

/// The kinds of objects that fdinfo lists.
const KINDS: &[&str] = &[
    "pd",
    "cq",
    "qp",
    "srq",
    "buffer",
    "grant",
    "ah",
    "listener",
    "connection",
];

/// Parses the value of "NAME NUMBER NAME NUMBER" for a name.
fn after<T: std::str::FromStr>(words: &[&str], name: &str) -> Option<T> {
    let mut words = words.iter().skip_while(|word| **word != name).skip(1);
    words.next().and_then(|word| word.parse().ok())
}

/// Parses pairs such as "5:2".
fn pairs<K: std::str::FromStr + Ord>(words: &[&str], name: &str) -> BTreeMap<K, u64> {
    let words = words.iter().skip_while(|word| **word != name).skip(1);
    let pair = |word: &&str| {
        let (key, count) = word.split_once(':')?;
        Some((key.parse().ok()?, count.parse().ok()?))
    };
    words.map_while(pair).collect()
}

fn queue(words: &[&str]) -> QueueCounters {
    QueueCounters {
        posted: after(words, "posted").unwrap_or(0),
        bytes: after(words, "bytes").unwrap_or(0),
        completed: pairs(words, "status"),
    }
}

impl UlpFile {
    /// Parses the fdinfo of a file. Returns [`None`] for a file of something else.
    fn parse(info: &str) -> Option<Self> {
        let mut file = Self::default();
        let mut is_ours = false;
        for line in info.lines() {
            let Some((key, value)) = line
                .strip_prefix("rust_ulp-")
                .and_then(|l| l.split_once(':'))
            else {
                continue;
            };
            let words: Vec<&str> = value.split_whitespace().collect();
            let last = file.queue_pairs.last_mut();
            match (key, last) {
                ("file", _) => {
                    is_ours = true;
                    file.id = value.trim().parse().ok()?;
                }
                ("device", _) => {
                    let name = value.trim();
                    file.device = (!matches!(name, "none" | "gone")).then(|| name.to_owned());
                }
                ("entries", _) => file.entries = words.first()?.parse().ok()?,
                ("send", _) => file.send = queue(&words),
                ("recv", _) => file.recv = queue(&words),
                ("qp-send", Some(qp)) => qp.send = queue(&words),
                ("qp-recv", Some(qp)) => qp.recv = queue(&words),
                ("qp-latency", Some(qp)) => qp.latency = pairs(&words, "below_ns"),
                _ => {}
            }
            if !KINDS.contains(&key) {
                continue;
            }
            *file.objects.entry(key.to_owned()).or_default() += 1;
            match key {
                "buffer" => file.buffer_bytes += after::<u64>(&words, "bytes").unwrap_or(0),
                "qp" => file.queue_pairs.push(FileQp {
                    number: after(&words, "qpn").unwrap_or(0),
                    sends: after(&words, "sends").unwrap_or(0),
                    receives: after(&words, "recvs").unwrap_or(0),
                    ..FileQp::default()
                }),
                _ => {}
            }
        }
        is_ours.then_some(file)
    }
}

/// Returns the open files of all processes that this user may inspect, in the order of their
/// numbers.
pub fn files() -> Vec<UlpFile> {
    let mut files: BTreeMap<u32, UlpFile> = BTreeMap::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = process
            .file_name()
            .to_str()
            .and_then(|pid| pid.parse().ok())
        else {
            continue;
        };
        let base = format!("/proc/{pid}");
        for descriptor in fs::read_dir(format!("{base}/fd"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let target = fs::read_link(descriptor.path()).unwrap_or_default();
            if target.file_name() != Some("rust_ulp".as_ref()) {
                continue;
            }
            let number = descriptor.file_name();
            let info = read(&format!("{base}/fdinfo/{}", number.to_string_lossy()));
            let Some(file) = info.and_then(|info| UlpFile::parse(&info)) else {
                continue;
            };
            let file = files.entry(file.id).or_insert(file);
            if !file.pids.contains(&pid) {
                file.pids.push(pid);
            }
        }
    }
    files.into_values().collect()
}

/// Returns the file that a queue pair belongs to, and what its fdinfo shows of it.
pub fn owner<'a>(
    files: &'a [UlpFile],
    device: &str,
    number: u32,
) -> Option<(&'a UlpFile, &'a FileQp)> {
    let here = files
        .iter()
        .filter(|file| file.device.as_deref() == Some(device));
    here.flat_map(|file| file.queue_pairs.iter().map(move |qp| (file, qp)))
        .find(|(_, qp)| qp.number == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_its_queue_pairs_and_counters() {
        let info = "pos:\t0\nflags:\t02100002\nrust_ulp-file:\t3\nrust_ulp-device:\trxe1\n\
                    rust_ulp-entries:\t512 of 262144\nrust_ulp-pd:\t0x1\n\
                    rust_ulp-qp:\t0x3 qpn 17 Rc Rts sends 2 recvs 5\n\
                    rust_ulp-qp-send:\t0x3 posted 9 bytes 72 status 0:6 12:1\n\
                    rust_ulp-qp-recv:\t0x3 posted 5 bytes 0 status\n\
                    rust_ulp-qp-latency:\t0x3 below_ns 2048:4 18446744073709551615:2\n\
                    rust_ulp-qp:\t0x4 qpn 18 Ud Reset sends 0 recvs 0\n\
                    rust_ulp-buffer:\t0x5 bytes 4096 chunk 4096 node 0 keys 1 charged 1\n\
                    rust_ulp-qp-send:\tnonsense\nrust_ulp-send:\tposted 10 bytes 80 status 0:7 12:1\n\
                    rust_ulp-recv:\tposted 5 bytes 0 status\n";
        let file = UlpFile::parse(info).unwrap();
        assert_eq!(
            (
                file.id,
                file.device.as_deref(),
                file.entries,
                file.buffer_bytes
            ),
            (3, Some("rxe1"), 512, 4096)
        );
        let objects = [("buffer", 1), ("pd", 1), ("qp", 2)];
        assert_eq!(
            file.objects,
            objects.map(|(kind, n)| (kind.to_owned(), n)).into()
        );
        let [first, second] = &file.queue_pairs[..] else {
            panic!("{file:?}");
        };
        assert_eq!((first.number, first.sends, first.receives), (17, 2, 5));
        assert_eq!((first.send.posted, first.send.bytes), (9, 72));
        assert_eq!(first.send.completed, [(0, 6), (12, 1)].into());
        assert_eq!(first.recv.completed, [].into());
        assert_eq!(first.latency, [(2048, 4), (u64::MAX, 2)].into());
        assert_eq!((second.number, second.send.posted), (18, 0));
        assert_eq!((file.send.posted, file.recv.posted), (10, 5));
        let gone = UlpFile::parse("rust_ulp-file:\t4\nrust_ulp-device:\tgone\n").unwrap();
        assert_eq!(gone.device, None);
        assert_eq!(UlpFile::parse("pos:\t0\n"), None);
    }
}
