// SPDX-License-Identifier: MIT OR Apache-2.0

//! This host, from the module upwards. What stands on something that is broken is not looked at.

use super::{Diagnose, Findings};
use crate::show::{interface, trouble};
use crate::{netlink, system};
use anyhow::Result;
use nix::errno::Errno;
use nix::sys::resource::{getrlimit, Resource, RLIM_INFINITY};
use nix::unistd::{geteuid, Group, Uid, User};
use rust_ulp::{
    Access, Device, DeviceEntry, Error, GidEntry, GidType, LinkLayer, PortState, Rc, Recv, Write,
};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::time::Duration;

const NODE: &str = "/dev/rust_ulp";

/// Looks at everything, and returns the device if peers can be reached by it.
pub fn look(args: &Diagnose, found: &mut Findings) -> Result<Option<Device>> {
    if !module(found)? {
        return Ok(None);
    }
    let Some(entries) = node(found)? else {
        return Ok(None);
    };
    let Some(entry) = device(args, &entries, found)? else {
        return Ok(None);
    };
    let device = match Device::open(&entry.name) {
        Ok(device) => device,
        Err(error) => {
            found.fail("device", error.to_string(), "rdma dev show")?;
            return Ok(None);
        }
    };
    // Both are looked at: a port that is down often has no addresses, either.
    let is_up = port(&device, found)?;
    let has_gid = gid(args, &device, found)?;
    let works =
        memory(args, &device, found)? && has_gid && is_up && write_to_itself(args, &device, found)?;
    counters(&entry, found)?;
    flow_control(&device, found)?;
    Ok((is_up && has_gid && works).then_some(device))
}

fn module(found: &mut Findings) -> Result<bool> {
    if system::has_module("rust_ulp") {
        found.ok("module", "rust_ulp is loaded")?;
        return Ok(true);
    }
    found.fail(
        "module",
        "the module rust_ulp is not loaded",
        "modprobe rust_ulp (where it is installed), or insmod build/$(uname -r)/rust_ulp.ko",
    )?;
    Ok(false)
}

fn name_of(uid: u32) -> String {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    user.map_or_else(|| uid.to_string(), |user| user.name)
}

/// The node: there, a device, and this user may open it.
fn node(found: &mut Findings) -> Result<Option<Vec<DeviceEntry>>> {
    let Ok(about) = std::fs::metadata(NODE) else {
        found.fail(
            "node",
            format!("the module is loaded, but there is no {NODE}"),
            "udevadm trigger /sys/devices/virtual/*/rust_ulp; in a container: hand it in (--device /dev/rust_ulp)",
        )?;
        return Ok(None);
    };
    if !about.file_type().is_char_device() {
        let cure = format!("rm {NODE}, then reload the module");
        found.fail("node", format!("{NODE} is no character device"), cure)?;
        return Ok(None);
    }
    let group = Group::from_gid(nix::unistd::Gid::from_raw(about.gid()))
        .ok()
        .flatten();
    let group = group.map_or_else(|| about.gid().to_string(), |group| group.name);
    let mode = about.mode() & 0o7777;
    let who = format!(
        "{NODE} has mode {mode:04o}, owner {}, group {group}",
        name_of(about.uid())
    );
    match Device::list() {
        Ok(entries) => {
            if mode & 0o006 != 0 {
                found.could(
                    "node",
                    format!("{who}: anybody may use it"),
                    format!("chmod 0660 {NODE}"),
                )?;
            } else {
                found.ok("node", who)?;
            }
            Ok(Some(entries))
        }
        Err(Error::Open { cause, .. }) if cause.kind() == std::io::ErrorKind::PermissionDenied => {
            let me = name_of(geteuid().as_raw());
            found.fail(
                "node",
                format!("{who}: {me} may not open it"),
                format!("as root: chgrp rdma {NODE} && chmod 0660 {NODE} && usermod -aG rdma {me}, then log in anew"),
            )?;
            Ok(None)
        }
        Err(error) => {
            found.fail("node", error.to_string(), "dmesg | tail")?;
            Ok(None)
        }
    }
}

/// The device that programs take.
fn device(
    args: &Diagnose,
    entries: &[DeviceEntry],
    found: &mut Findings,
) -> Result<Option<DeviceEntry>> {
    let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
    if entries.is_empty() {
        let interface = system::interfaces()
            .filter(|name| name != "lo")
            .find(|name| system::Interface::named(name).is_some_and(|interface| interface.is_up));
        let interface = interface.unwrap_or_else(|| "NETDEV".to_owned());
        let what = match system::has_module("rdma_rxe") {
            true => "there is no RDMA device that this process may use",
            false => "there is no RDMA device that this process may use, and rdma_rxe (Soft-RoCE) is not loaded",
        };
        let cure = format!("modprobe rdma_rxe && rdma link add rxe0 type rxe netdev {interface}");
        found.fail("device", what, cure)?;
        return Ok(None);
    }
    let entry = match &args.device {
        Some(name) => entries.iter().find(|entry| entry.name == *name),
        None => entries.iter().find(|entry| entry.is_default),
    };
    let Some(entry) = entry else {
        let wanted = args.device.as_deref().unwrap_or("to take by default");
        found.fail(
            "device",
            format!(
                "there is no RDMA device {wanted}; there is {}",
                names.join(", ")
            ),
            format!("ulp diagnose -d {}", names.first().unwrap_or(&"NAME")),
        )?;
        return Ok(None);
    };
    if !entry.local_net {
        found.fail(
            "device",
            format!("the interface of {} is not in this network namespace", entry.name),
            "ip netns exec NAMESPACE ulp diagnose, or rdma link add rxe0 type rxe netdev NETDEV in this one",
        )?;
        return Ok(None);
    }
    found.ok(
        "device",
        format!(
            "{} of {}, GUID {}",
            entry.name,
            names.join(", "),
            entry.node_guid
        ),
    )?;
    Ok(Some(entry.clone()))
}

/// The port that is taken without being told.
fn number(device: &Device) -> u32 {
    device.default_gid().map_or(1, |chosen| chosen.port)
}

fn port(device: &Device, found: &mut Findings) -> Result<bool> {
    let port = device.port(number(device))?;
    let netdev = interface(&port);
    let name = netdev.as_ref().map_or("NETDEV", |netdev| &netdev.name);
    if !matches!(port.state, PortState::Active | PortState::ActiveDefer) {
        let what = format!("port {} is {:?}", port.port, port.state);
        match &netdev {
            Some(netdev) if !netdev.is_up => found.fail(
                "port",
                format!("{what}: its interface {name} is down"),
                format!("ip link set {name} up"),
            )?,
            Some(netdev) if netdev.carrier == Some(false) => found.fail(
                "port",
                format!("{what}: its interface {name} is up, but has no carrier: the other end of the line is down"),
                format!("connect the cable, or at the other end: ip link set NETDEV up; then see ip link show {name}"),
            )?,
            _ => found.fail("port", what, "rdma link show; ip link")?,
        }
        return Ok(false);
    }
    found.ok(
        "port",
        format!(
            "port {} is {:?}, its interface is {name}",
            port.port, port.state
        ),
    )?;
    let mtu = port.active_mtu;
    if let (Some(netdev), LinkLayer::Ethernet) = (&netdev, port.link_layer) {
        let what = format!(
            "packets carry {mtu} bytes, {name} has an MTU of {}",
            netdev.mtu
        );
        if mtu < port.max_mtu.min(4096) {
            found.could(
                "mtu",
                format!("{what}: {} are possible", port.max_mtu.min(4096)),
                format!(
                    "ip link set {name} mtu 4200, here, at the peer and in all switches between"
                ),
            )?;
        } else {
            found.ok("mtu", what)?;
        }
    }
    Ok(true)
}

fn in_words(entry: &GidEntry) -> String {
    let kind = match entry.is_link_local {
        true => "link-local",
        false if entry.is_ipv4 => "an IPv4 address",
        false => "an IPv6 address",
    };
    format!(
        "GID index {}, {} ({}, {kind})",
        entry.index, entry.gid, entry.gid_type
    )
}

fn gid(args: &Diagnose, device: &Device, found: &mut Findings) -> Result<bool> {
    let number = number(device);
    let gids = device.gids(number)?;
    let netdev = interface(&device.port(number)?);
    let name = netdev.map_or_else(|| "NETDEV".to_owned(), |netdev| netdev.name);
    let give = format!("ip addr add ADDRESS/24 dev {name}");
    let usable = |entry: &&GidEntry| {
        entry.gid_type == GidType::Ib
            || (entry.interface.is_some()
                && !entry.is_link_local
                && entry.gid_type == GidType::RoceV2)
    };
    let best = gids
        .iter()
        .filter(usable)
        .max_by_key(|entry| (entry.is_preferred, entry.is_ipv4));
    let Some(best) = best else {
        let there: Vec<String> = gids.iter().map(in_words).collect();
        let there = if there.is_empty() {
            "its table is empty".to_owned()
        } else {
            there.join("; ")
        };
        found.fail(
            "gid",
            format!("{name} has no address by which peers could reach it: {there}"),
            give,
        )?;
        return Ok(false);
    };
    let Some(index) = args.gid_index else {
        found.ok("gid", device.to_string())?;
        return Ok(true);
    };
    let cure = format!(
        "use index {}: {}; `ulp gids` lists them",
        best.index,
        in_words(best)
    );
    match gids.iter().find(|entry| entry.index == u32::from(index)) {
        None => found.fail("gid", format!("GID index {index} of port {number} is empty"), cure)?,
        Some(entry) if entry.interface.is_none() && entry.gid_type != GidType::Ib => found.fail(
            "gid",
            format!("{} is of an interface in another network namespace", in_words(entry)),
            cure,
        )?,
        Some(entry) if entry.is_link_local => found.fail(
            "gid",
            format!("{} is good for one link only: peers behind a router, and those with IPv4 addresses, cannot answer", in_words(entry)),
            cure,
        )?,
        Some(entry) if entry.gid_type == GidType::RoceV1 => found.fail(
            "gid",
            format!("{} is of RoCE v1, which peers of RoCE v2 do not understand, and no router passes on", in_words(entry)),
            cure,
        )?,
        Some(entry) => {
            found.ok("gid", in_words(entry))?;
            return Ok(true);
        }
    }
    Ok(false)
}

/// Memory can be registered, as much as is wanted.
fn memory(args: &Diagnose, device: &Device, found: &mut Findings) -> Result<bool> {
    let bytes = args.memory << 10;
    let (soft, hard) = getrlimit(Resource::RLIMIT_MEMLOCK)?;
    let limit = match soft {
        RLIM_INFINITY => "no limit".to_owned(),
        soft => format!("a limit of {} KiB (hard: {} KiB)", soft >> 10, hard >> 10),
    };
    let tried = device.alloc_pd().and_then(|pd| {
        let buffer = pd.alloc_buffer(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        buffer.grant_all(.., Access::REMOTE_WRITE, Default::default())
    });
    match tried {
        Ok(keys) => {
            let what = format!("{} KiB registered under {} keys; locked memory has {limit}", args.memory, keys.len());
            found.ok("memlock", what)?;
            return Ok(true);
        }
        Err(Error::Sys { errno, .. }) if errno == Errno::ENOMEM as i32 && soft < bytes => found.fail(
            "memlock",
            format!("{} KiB cannot be registered: locked memory has {limit}", args.memory),
            "ulimit -l unlimited, and for good: echo '* - memlock unlimited' > /etc/security/limits.d/rdma.conf \
             (a service: LimitMEMLOCK=infinity)",
        )?,
        Err(error) => found.fail(
            "memlock",
            format!("{} KiB cannot be registered: {error}", args.memory),
            "ulimit -l; cat /proc/meminfo; ulp devices -v",
        )?,
    }
    Ok(false)
}

/// One queue pair writes to another of the same device: everything but the network works.
fn write_to_itself(args: &Diagnose, device: &Device, found: &mut Findings) -> Result<bool> {
    let written = || -> rust_ulp::Result<bool> {
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(8)?);
        let buffer = pd.alloc_buffer(4096)?;
        let grant = buffer.grant(.., Access::REMOTE_WRITE)?;
        let make = || {
            let builder = pd.create_qp::<Rc>(&cq);
            match args.gid_index {
                Some(index) => builder.gid(number(device), index).build(),
                None => builder.build(),
            }
        };
        let (to, from) = (make()?, make()?);
        to.post_recv(Recv::empty())?;
        let (here, there) = (from.endpoint(), to.endpoint());
        let (_to, from) = (to.connect(here)?, from.connect(there)?);
        from.post(Write::inline_bytes(b"to itself", grant.remote()).imm(9))?;
        for _ in 0..2 {
            cq.wait(Duration::from_secs(30))?.check()?;
        }
        Ok(buffer.to_vec(..9)? == b"to itself")
    };
    match written() {
        Ok(true) => {
            found.ok(
                "data path",
                "a queue pair wrote to another one of this device",
            )?;
            Ok(true)
        }
        Ok(false) => {
            found.fail(
                "data path",
                "a write to itself completed, but did not arrive",
                "dmesg | tail",
            )?;
            Ok(false)
        }
        Err(error) => {
            found.fail(
                "data path",
                format!("a write to itself failed: {error}"),
                "dmesg | tail; ulp events",
            )?;
            Ok(false)
        }
    }
}

fn counters(entry: &DeviceEntry, found: &mut Findings) -> Result<()> {
    let mut all = Vec::new();
    for port in 1..=entry.ports {
        match netlink::counters(entry.index, port) {
            Ok(counters) => all.extend(counters),
            Err(_) => return found.note("counters", "not offered by this device"),
        }
    }
    let bad = all.iter().filter(|(_, value)| *value != 0);
    let bad: Vec<String> = bad
        .filter_map(|(name, value)| Some(format!("{name} {value} ({})", trouble(name)?)))
        .collect();
    if bad.is_empty() {
        return found.ok(
            "counters",
            "none tells of trouble since the device was made",
        );
    }
    found.could(
        "counters",
        bad.join("; "),
        "ulp counters --watch 1 --nonzero, to see whether they still rise",
    )
}

/// What keeps packets from being dropped: what can be read of it.
fn flow_control(device: &Device, found: &mut Findings) -> Result<()> {
    const NOT_OFFERED: &str = "not offered by this device";
    let number = number(device);
    let port = device.port(number)?;
    if port.link_layer == LinkLayer::InfiniBand {
        return found.ok(
            "flow control",
            "InfiniBand has credits: packets are not dropped",
        );
    }
    let Some(netdev) = interface(&port) else {
        return Ok(());
    };
    let name = &netdev.name;
    match netlink::pause(name) {
        Ok((rx, tx)) => {
            let on = |on| if on { "on" } else { "off" };
            found.note(
                "pause",
                format!("{name}: receiving {}, sending {}", on(rx), on(tx)),
            )?;
        }
        Err(Errno::EOPNOTSUPP) => found.note("pause", format!("{name}: {NOT_OFFERED}"))?,
        Err(errno) => found.note("pause", format!("{name}: cannot be read: {errno}"))?,
    }
    match netlink::priority_flow_control(name) {
        Ok(0) => found.could(
            "pfc",
            format!("{name}: off for all priorities: packets are dropped under congestion"),
            format!("dcb pfc set dev {name} prio-pfc 3:on, here and in the switches, and DSCP 26 for the traffic"),
        )?,
        Ok(mask) => {
            let priorities: Vec<String> = (0..8).filter(|n| (mask >> n) & 1 != 0).map(|n| n.to_string()).collect();
            found.ok("pfc", format!("{name}: on for priorities {}", priorities.join(", ")))?;
        }
        Err(Errno::EOPNOTSUPP) => found.note("pfc", format!("{name}: {NOT_OFFERED}"))?,
        Err(errno) => found.note("pfc", format!("{name}: cannot be read: {errno}"))?,
    }
    let ecn = system::ecn(name).unwrap_or_else(|| NOT_OFFERED.to_owned());
    found.note("ecn", format!("{name}: {ecn}"))?;
    let dscp = match system::default_tos(device.name(), number) {
        Some(tos) => format!("{} of connections by the connection manager", tos >> 2),
        None => "0, unless the program says QpBuilder::traffic_class()".to_owned(),
    };
    found.note("dscp", format!("{name}: {dscp}"))
}
