// SPDX-License-Identifier: MIT OR Apache-2.0

//! RDMA devices as the kernel's RDMA core shows them, in sysfs and by netlink.
//!
//! All of this works without the module `rust_ulp`, and for every RDMA device of the host.

use crate::{ethtool, netlink};
use anyhow::{Context, Result};
use rust_ulp::Gid;
use schemars::JsonSchema;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// `enum ib_port_state`.
const PORT_STATES: &[&str] = &[
    "nop",
    "down",
    "init",
    "armed",
    "active",
    "active_defer",
    UNKNOWN,
];
/// `enum ib_port_phys_state`.
const PHYS_STATES: &[&str] = &[
    UNKNOWN,
    "sleep",
    "polling",
    "disabled",
    "port_configuration_training",
    "link_up",
    "link_error_recovery",
    "phy_test",
];
/// `enum rdma_link_layer`.
const LINK_LAYERS: &[&str] = &["infiniband", "ethernet", UNKNOWN];
/// `enum ib_gid_type`.
const GID_TYPES: &[&str] = &["ib", "roce_v1", "roce_v2"];
const UNKNOWN: &str = "unknown";

/// Returns the word for a number of the kernel's.
pub fn word(words: &[&'static str], number: u64) -> &'static str {
    let word = usize::try_from(number).ok().and_then(|n| words.get(n));
    word.copied().unwrap_or(UNKNOWN)
}

/// An RDMA device.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct RdmaDevice {
    pub name: String,
    /// The number of the device in the RDMA core.
    pub index: u32,
    /// "ib", "roce", "iw", "opa" or "usnic".
    pub protocol: Option<String>,
    pub node_type: Option<String>,
    pub node_guid: Option<String>,
    pub sys_image_guid: Option<String>,
    pub node_desc: Option<String>,
    pub firmware: Option<String>,
    pub hca_type: Option<String>,
    pub board_id: Option<String>,
    pub hw_rev: Option<String>,
    /// The PCI vendor, such as "0x15b3".
    pub vendor_id: Option<String>,
    /// The PCI device, such as "0x101b".
    pub vendor_part_id: Option<String>,
    /// The driver of the PCI device.
    pub driver: Option<String>,
    pub ports: Vec<Port>,
}

/// A port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Port {
    /// The number of the port, from 1.
    pub port: u32,
    #[schemars(extend("enum" = PORT_STATES))]
    pub state: &'static str,
    #[schemars(extend("enum" = PHYS_STATES))]
    pub phys_state: &'static str,
    #[schemars(extend("enum" = LINK_LAYERS))]
    pub link_layer: &'static str,
    /// The data rate of all lanes, in Gbit/s.
    pub rate_gbps: Option<f64>,
    /// The number of lanes.
    pub width: Option<u32>,
    /// The name of the speed of a lane, such as "EDR".
    pub speed: Option<String>,
    pub lid: Option<u32>,
    pub lmc: Option<u32>,
    pub sm_lid: Option<u32>,
    pub sm_sl: Option<u32>,
    /// The capability mask of the port, in hexadecimal digits.
    pub cap_mask: Option<String>,
    pub gid_tbl_len: usize,
    pub pkey_tbl_len: usize,
    /// The network interface, if it is in this network namespace.
    pub netdev: Option<String>,
}

impl Port {
    /// Returns whether the port carries traffic.
    pub fn is_active(&self) -> bool {
        self.state.starts_with("active")
    }

    pub fn is_infiniband(&self) -> bool {
        self.link_layer == "infiniband"
    }
}

/// An entry of the GID table of a port.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct GidEntry {
    pub index: u32,
    pub gid: String,
    /// The IPv4 address that an IPv4-mapped GID stands for.
    pub ipv4: Option<String>,
    #[schemars(extend("enum" = GID_TYPES))]
    pub r#type: &'static str,
    /// The network interface, if it is in this network namespace.
    pub netdev: Option<String>,
    pub link_local: bool,
}

impl GidEntry {
    /// Returns the kind of the address, for messages.
    pub fn address_kind(&self) -> &'static str {
        match (self.link_local, &self.ipv4) {
            (true, _) => "link-local",
            (false, Some(_)) => "an IPv4 address",
            (false, None) => "an IPv6 address",
        }
    }

    /// Returns the type as the specification writes it.
    pub fn type_name(&self) -> &'static str {
        match self.r#type {
            "roce_v1" => "RoCE v1",
            "roce_v2" => "RoCE v2",
            _ => "IB",
        }
    }
}

/// A directory that is laid out like `/sys`.
#[derive(Clone, Debug)]
pub struct Sysfs(PathBuf);

impl Default for Sysfs {
    fn default() -> Self {
        Self("/sys".into())
    }
}

/// Parses a number in decimal or, after "0x", in hexadecimal digits.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Parses the rate of a port, such as "100 Gb/sec (4X EDR)": Gbit/s, lanes, speed of a lane.
fn rate(text: &str) -> (Option<f64>, Option<u32>, Option<String>) {
    let gbps = text.split(' ').next().and_then(|rate| rate.parse().ok());
    let lanes = text.split_once('(').map_or("", |(_, lanes)| lanes);
    let mut lanes = lanes.trim_end_matches(')').split(' ');
    let width = lanes
        .next()
        .and_then(|n| n.trim_end_matches('X').parse().ok());
    (gbps, width, lanes.next().map(str::to_owned))
}

impl Sysfs {
    fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = fs::read_to_string(self.0.join(path)).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    fn list(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.0.join(path)).into_iter().flatten();
        let name = |entry: fs::DirEntry| entry.file_name().into_string().ok();
        let mut names: Vec<_> = entries.flatten().filter_map(name).collect();
        names.sort();
        names
    }

    /// Returns the ports of a device, without their network interfaces.
    fn ports(&self, device: &str) -> Vec<Port> {
        let base = format!("class/infiniband/{device}/ports");
        let numbers = self.list(&base).into_iter();
        let mut ports: Vec<_> = numbers.filter_map(|port| port.parse().ok()).collect();
        ports.sort_unstable();
        let port = |port: u32| {
            let base = format!("{base}/{port}");
            let read = |what: &str| self.read(format!("{base}/{what}"));
            let get = |what: &str| read(what).and_then(|text| number(&text));
            // The kernel writes the number and the word: "4: ACTIVE".
            let state = |what: &str| {
                let text = read(what)?;
                number(text.split(':').next().unwrap_or_default())
            };
            let (rate_gbps, width, speed) = rate(&read("rate").unwrap_or_default());
            Port {
                port,
                state: state("state").map_or(UNKNOWN, |n| word(PORT_STATES, n)),
                phys_state: state("phys_state").map_or(UNKNOWN, |n| word(PHYS_STATES, n)),
                link_layer: match read("link_layer").as_deref() {
                    Some("InfiniBand") => "infiniband",
                    Some("Ethernet") => "ethernet",
                    _ => UNKNOWN,
                },
                rate_gbps,
                width,
                speed,
                lid: get("lid").map(|n| n as u32),
                lmc: get("lid_mask_count").map(|n| n as u32),
                sm_lid: get("sm_lid").map(|n| n as u32),
                sm_sl: get("sm_sl").map(|n| n as u32),
                cap_mask: read("cap_mask"),
                gid_tbl_len: self.list(format!("{base}/gids")).len(),
                pkey_tbl_len: self.list(format!("{base}/pkeys")).len(),
                netdev: None,
            }
        };
        ports.into_iter().map(port).collect()
    }

    fn device(&self, entry: netlink::DeviceEntry) -> RdmaDevice {
        let base = format!("class/infiniband/{}", entry.name);
        let read = |what: &str| self.read(format!("{base}/{what}"));
        let driver = fs::read_link(self.0.join(&base).join("device/driver")).ok();
        RdmaDevice {
            index: entry.index,
            protocol: entry.protocol,
            // "1: CA"
            node_type: read("node_type")
                .and_then(|text| Some(text.split_once(": ")?.1.to_lowercase())),
            node_guid: read("node_guid"),
            sys_image_guid: read("sys_image_guid"),
            node_desc: read("node_desc"),
            firmware: read("fw_ver"),
            hca_type: read("hca_type"),
            board_id: read("board_id"),
            hw_rev: read("hw_rev"),
            vendor_id: read("device/vendor"),
            vendor_part_id: read("device/device"),
            driver: driver.and_then(|path| Some(path.file_name()?.to_str()?.to_owned())),
            ports: self.ports(&entry.name),
            name: entry.name,
        }
    }

    /// Returns the used entries of the GID table of a port, whose interface is `netdev`.
    pub fn gids(&self, device: &str, port: &Port) -> Vec<GidEntry> {
        let base = format!("class/infiniband/{device}/ports/{}", port.port);
        let numbers = self.list(format!("{base}/gids")).into_iter();
        let mut indices: Vec<u32> = numbers.filter_map(|index| index.parse().ok()).collect();
        indices.sort_unstable();
        let entry = |index: u32| {
            let gid: Gid = self.read(format!("{base}/gids/{index}"))?.parse().ok()?;
            if gid.0 == [0; 16] {
                return None;
            }
            let r#type = match self
                .read(format!("{base}/gid_attrs/types/{index}"))
                .as_deref()
            {
                Some("RoCE v2") => "roce_v2",
                _ if port.is_infiniband() => "ib",
                _ => "roce_v1",
            };
            // The interfaces of a GID are the port's interface and its VLANs; sysfs names them in
            // all network namespaces.
            let netdev = self
                .read(format!("{base}/gid_attrs/ndevs/{index}"))
                .filter(|name| {
                    port.netdev.is_some() && self.0.join("class/net").join(name).exists()
                });
            Some(GidEntry {
                index,
                ipv4: gid.ipv4().map(|addr| addr.to_string()),
                gid: gid.to_string(),
                r#type,
                netdev,
                link_local: gid.0[0] == 0xfe && gid.0[1] & 0xc0 == 0x80,
            })
        };
        indices.into_iter().filter_map(entry).collect()
    }

    /// Returns the port counters of the specification, which drivers of InfiniBand adapters have.
    pub fn port_counters(&self, device: &str, port: u32) -> Vec<(String, u64)> {
        let base = format!("class/infiniband/{device}/ports/{port}/counters");
        let counter = |name: String| {
            let value = number(&self.read(format!("{base}/{name}"))?)?;
            Some((name, value))
        };
        let names = self.list(&base).into_iter();
        names.filter_map(counter).collect()
    }
}

/// Lists the RDMA devices of this network namespace, or only the one with a name.
pub fn devices(name: Option<&str>) -> Result<Vec<RdmaDevice>> {
    let sysfs = Sysfs::default();
    let mut devices = Vec::new();
    for entry in netlink::devices().context("listing the RDMA devices by netlink")? {
        if name.is_some_and(|name| entry.name != name) {
            continue;
        }
        let mut device = sysfs.device(entry);
        for port in &mut device.ports {
            port.netdev = netlink::port_interface(device.index, port.port).unwrap_or_default();
        }
        devices.push(device);
    }
    if let (Some(name), true) = (name, devices.is_empty()) {
        anyhow::bail!("there is no RDMA device {name}; `ulp devices` lists them");
    }
    Ok(devices)
}

impl RdmaDevice {
    /// Returns whether the device is iWARP, which the module refuses.
    pub fn is_iwarp(&self) -> bool {
        self.protocol.as_deref() == Some("iw")
    }

    /// Returns whether programs of this network namespace can use a port of the device.
    pub fn is_here(&self) -> bool {
        let is_here = |port: &Port| port.netdev.is_some() || port.is_infiniband();
        self.ports.iter().any(is_here)
    }

    /// Returns the used entries of the GID table of a port.
    pub fn gids(&self, port: &Port) -> Vec<GidEntry> {
        Sysfs::default().gids(&self.name, port)
    }
}

/// Returns the driver's statistics of a network interface, as `ethtool -S` prints them, that count
/// drops, pause frames, PFC and ECN.
pub fn ethtool_counters(netdev: &str) -> Vec<(String, u64)> {
    let mut all = ethtool::statistics(netdev).unwrap_or_default();
    all.retain(|(name, _)| is_congestion(name));
    all
}

/// Returns whether a statistic of a network interface tells of drops, pause frames, PFC or ECN.
fn is_congestion(name: &str) -> bool {
    const WORDS: &[&str] = &[
        "drop",
        "discard",
        "pause",
        "pfc",
        "ecn",
        "cnp",
        "out_of_buffer",
        "missed",
        "no_buf",
        "fifo",
    ];
    let name = name.to_lowercase();
    WORDS.iter().any(|word| name.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sysfs with an adapter that has an InfiniBand port and a RoCE port.
    fn sysfs(name: &str) -> Sysfs {
        let root = std::env::temp_dir().join(format!("ulp-sysfs-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let device = "class/infiniband/mlx5_0";
        let eth = "fe80:0000:0000:0000:0202:c9ff:fe00:0001";
        let v4 = "0000:0000:0000:0000:0000:ffff:0a09:0001";
        for (path, text) in [
            ("node_type", "1: CA"),
            ("node_guid", "0002:c903:0000:0001"),
            ("fw_ver", "20.31.1014"),
            ("hca_type", "MT4123"),
            ("board_id", "MT_0000000223"),
            ("device/vendor", "0x15b3"),
            ("device/device", "0x101b"),
            ("ports/1/state", "4: ACTIVE"),
            ("ports/1/phys_state", "5: LinkUp"),
            ("ports/1/link_layer", "InfiniBand"),
            ("ports/1/rate", "100 Gb/sec (4X EDR)"),
            ("ports/1/lid", "0x1d"),
            ("ports/1/lid_mask_count", "0"),
            ("ports/1/sm_lid", "0x1"),
            ("ports/1/sm_sl", "0"),
            ("ports/1/cap_mask", "0x2259e848"),
            ("ports/1/gids/0", "fe80:0000:0000:0000:0002:c903:0000:0001"),
            ("ports/1/gid_attrs/types/0", "IB/RoCE v1"),
            ("ports/1/pkeys/0", "0xffff"),
            ("ports/1/counters/symbol_error", "3"),
            ("ports/1/counters/port_rcv_data", "18446744073709551615"),
            ("ports/1/counters/port_xmit_discards", "nonsense"),
            ("ports/2/state", "1: DOWN"),
            ("ports/2/phys_state", "3: Disabled"),
            ("ports/2/link_layer", "Ethernet"),
            ("ports/2/rate", "2.5 Gb/sec (1X)"),
            ("ports/2/lid", "0x0"),
            ("ports/2/gids/0", eth),
            ("ports/2/gids/1", v4),
            ("ports/2/gids/2", "0000:0000:0000:0000:0000:0000:0000:0000"),
            ("ports/2/gids/10", v4),
            ("ports/2/gid_attrs/types/0", "IB/RoCE v1"),
            ("ports/2/gid_attrs/types/1", "RoCE v2"),
            ("ports/2/gid_attrs/types/10", "RoCE v2"),
            ("ports/2/gid_attrs/ndevs/1", "eth7"),
            ("ports/2/gid_attrs/ndevs/10", "elsewhere"),
        ] {
            let path = root.join(device).join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
        fs::create_dir_all(root.join("class/net/eth7")).unwrap();
        Sysfs(root)
    }

    fn adapter(sysfs: &Sysfs) -> RdmaDevice {
        sysfs.device(netlink::DeviceEntry {
            index: 7,
            name: "mlx5_0".to_owned(),
            protocol: Some("ib".to_owned()),
        })
    }

    #[test]
    fn a_device_has_what_ibv_devinfo_and_ibstat_show() {
        let sysfs = sysfs("device");
        let device = adapter(&sysfs);
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(device.node_type, text("ca"));
        assert_eq!(device.node_guid, text("0002:c903:0000:0001"));
        assert_eq!(device.firmware, text("20.31.1014"));
        assert_eq!(
            (device.hca_type, device.board_id),
            (text("MT4123"), text("MT_0000000223"))
        );
        assert_eq!(
            (device.vendor_id, device.vendor_part_id),
            (text("0x15b3"), text("0x101b"))
        );
        assert_eq!((device.driver, device.hw_rev), (None, None));
        let [ib, eth] = &device.ports[..] else {
            panic!("{:?}", device.ports);
        };
        assert_eq!((ib.port, ib.state, ib.phys_state), (1, "active", "link_up"));
        assert_eq!(
            (ib.link_layer, ib.is_infiniband(), ib.is_active()),
            ("infiniband", true, true)
        );
        assert_eq!(
            (ib.rate_gbps, ib.width, ib.speed.as_deref()),
            (Some(100.0), Some(4), Some("EDR"))
        );
        assert_eq!(
            (ib.lid, ib.lmc, ib.sm_lid, ib.sm_sl),
            (Some(29), Some(0), Some(1), Some(0))
        );
        assert_eq!((ib.gid_tbl_len, ib.pkey_tbl_len), (1, 1));
        assert_eq!((&ib.cap_mask, &eth.cap_mask), (&text("0x2259e848"), &None));
        assert_eq!(
            (eth.port, eth.state, eth.phys_state),
            (2, "down", "disabled")
        );
        assert_eq!(
            (eth.link_layer, eth.is_active(), eth.sm_lid),
            ("ethernet", false, None)
        );
        assert_eq!(
            (eth.rate_gbps, eth.width, &eth.speed),
            (Some(2.5), Some(1), &None)
        );
        fs::remove_dir_all(sysfs.0).unwrap();
    }

    #[test]
    fn gids_are_sorted_and_only_those_in_use() {
        let sysfs = sysfs("gids");
        let mut device = adapter(&sysfs);
        let gids = sysfs.gids("mlx5_0", &device.ports[0]);
        assert_eq!(
            (gids.len(), gids[0].r#type, gids[0].link_local),
            (1, "ib", true)
        );
        device.ports[1].netdev = Some("eth7".to_owned());
        let gids = sysfs.gids("mlx5_0", &device.ports[1]);
        let indices: Vec<_> = gids.iter().map(|gid| gid.index).collect();
        assert_eq!(indices, [0, 1, 10]);
        assert_eq!(
            (gids[0].r#type, gids[0].address_kind()),
            ("roce_v1", "link-local")
        );
        assert_eq!(
            (gids[1].type_name(), gids[1].ipv4.as_deref()),
            ("RoCE v2", Some("10.9.0.1"))
        );
        assert_eq!(
            (gids[1].netdev.as_deref(), &gids[2].netdev),
            (Some("eth7"), &None)
        );
        // The port's interface is in another network namespace, and so are those of its GIDs.
        device.ports[1].netdev = None;
        let gids = sysfs.gids("mlx5_0", &device.ports[1]);
        assert!(gids.iter().all(|gid| gid.netdev.is_none()));
        fs::remove_dir_all(sysfs.0).unwrap();
    }

    #[test]
    fn port_counters_are_numbers() {
        let sysfs = sysfs("counters");
        let named = |name: &str, value| (name.to_owned(), value);
        let want = [named("port_rcv_data", u64::MAX), named("symbol_error", 3)];
        assert_eq!(sysfs.port_counters("mlx5_0", 1), want);
        assert_eq!(sysfs.port_counters("mlx5_0", 2), []);
        assert_eq!(sysfs.port_counters("none", 1), []);
        fs::remove_dir_all(sysfs.0).unwrap();
    }

    #[test]
    fn statistics_of_congestion_are_kept() {
        for name in [
            "rx_discards_phy",
            "rx_prio3_pause",
            "tx_queue_dropped",
            "rx_ecn_mark",
            "tx_pfc_frames",
            "np_cnp_sent",
        ] {
            assert!(is_congestion(name), "{name}");
        }
        assert!(!is_congestion("rx_packets") && !is_congestion("tx_bytes"));
    }
}
