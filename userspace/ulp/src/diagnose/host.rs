// SPDX-License-Identifier: MIT OR Apache-2.0

//! Checks of this host, from the module upwards. Each check needs the objects of those before it.
//!
//! Without the module, or without access to it, the checks that need only sysfs and netlink remain.

use super::{Diagnose, Findings};
use crate::args::default_port;
use crate::lang::Lang;
use crate::rdma::{self, GidEntry, Port, RdmaDevice};
use crate::show::trouble;
use crate::{netlink, system};
use anyhow::Result;
use nix::errno::Errno;
use nix::sys::resource::{getrlimit, Resource, RLIM_INFINITY};
use nix::unistd::{geteuid, Group, Uid, User};
use rust_ulp::device::DeviceEntry;
use rust_ulp::error::ErrorKind;
use rust_ulp::qp::Rc;
use rust_ulp::wr::{Recv, Write};
use rust_ulp::{Access, Device, Error};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::time::Duration;

const NODE: &str = "/dev/rust_ulp";
pub const IWARP: &str =
    "is an iWARP device, which the module refuses: no iWARP adapter was tried, and \
                     siw lets a peer read memory that it may only write (docs/providers.md)";
pub const NO_SERVICE: &str =
    "is refused by the module: its driver has no fast registration, or no reliable \
                          queue pairs for the kernel (docs/providers.md)";

/// Returns why the module refuses `device`, if it does. `entries` are the devices that it lists.
pub fn refusal(device: &RdmaDevice, entries: Option<&[DeviceEntry]>) -> Option<&'static str> {
    if device.is_iwarp() {
        return Some(IWARP);
    }
    entries.filter(|entries| entries.iter().all(|entry| entry.name != device.name))?;
    let refused = matches!(Device::open(&device.name), Err(Error::Unsupported { .. }));
    refused.then_some(NO_SERVICE)
}

/// Runs all checks of this host, and returns the device if peers can be reached through it.
pub fn check(args: &Diagnose, found: &mut Findings) -> Result<Option<Device>> {
    let entries = match module(found)? {
        true => node(found)?,
        false => None,
    };
    let Some(device) = device(args, entries.as_deref(), found)? else {
        return Ok(None);
    };
    let opened = match entries.map(|_| Device::open(&device.name)) {
        Some(Err(error)) => {
            found.fail("device", error.to_string(), "rdma dev show")?;
            return Ok(None);
        }
        opened => opened.and_then(Result::ok),
    };
    let number = opened.as_ref().map_or(1, default_port);
    let Some(port) = device.ports.iter().find(|port| port.port == number) else {
        found.fail(
            "port",
            say!(found, "{0} has no port {1}", device.name, number),
            "rdma link show",
        )?;
        return Ok(None);
    };
    // Both are checked: a port that is down often has no addresses, either.
    let is_up = check_port(port, opened.as_ref(), found)?;
    let has_gid = gid(args, &device, port, opened.as_ref(), found)?;
    let works = match &opened {
        Some(opened) => {
            memory(args, opened, found)?
                && has_gid
                && is_up
                && write_to_itself(args, opened, found)?
        }
        None => false,
    };
    counters(&device, found)?;
    flow_control(&device, port, found)?;
    Ok(opened.filter(|_| is_up && has_gid && works))
}

/// Checks that the module is loaded.
fn module(found: &mut Findings) -> Result<bool> {
    if system::has_module("rust_ulp") {
        found.ok("module", say!(found, "rust_ulp is loaded"))?;
        return Ok(true);
    }
    found.fail(
        "module",
        say!(found, "the module rust_ulp is not loaded"),
        say!(
            found,
            "modprobe rust_ulp (where it is installed), or insmod build/$(uname -r)/rust_ulp.ko"
        ),
    )?;
    Ok(false)
}

fn name_of(uid: u32) -> String {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    user.map_or_else(|| uid.to_string(), |user| user.name)
}

/// Checks that the device node exists and that this user may open it. Returns the module's devices.
fn node(found: &mut Findings) -> Result<Option<Vec<DeviceEntry>>> {
    let Ok(about) = std::fs::metadata(NODE) else {
        found.fail(
            "node",
            say!(found, "the module is loaded, but there is no {0}", NODE),
            say!(found, "udevadm trigger /sys/devices/virtual/*/rust_ulp; in a container: pass it (--device /dev/rust_ulp)"),
        )?;
        return Ok(None);
    };
    if !about.file_type().is_char_device() {
        let cure = say!(found, "rm {0}, then reload the module", NODE);
        found.fail(
            "node",
            say!(found, "{0} is not a character device", NODE),
            cure,
        )?;
        return Ok(None);
    }
    let group = Group::from_gid(nix::unistd::Gid::from_raw(about.gid()))
        .ok()
        .flatten();
    let group = group.map_or_else(|| about.gid().to_string(), |group| group.name);
    let mode = about.mode() & 0o7777;
    let (mode, owner) = (format!("{mode:04o}"), name_of(about.uid()));
    let who = say!(
        found,
        "{0} has mode {1}, owner {2}, group {3}",
        NODE,
        mode,
        owner,
        group
    );
    match Device::list() {
        Ok(entries) => {
            if about.mode() & 0o006 != 0 {
                found.could(
                    "node",
                    say!(found, "{0}: anybody may use it", who),
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
                say!(found, "{0}: {1} may not open it", who, me),
                say!(found, "as root: chgrp rdma {0} && chmod 0660 {0} && usermod -aG rdma {1}, then log in again", NODE, me),
            )?;
            Ok(None)
        }
        Err(error) => {
            let cure = match error {
                Error::Abi { .. } => "rmmod rust_ulp && modprobe rust_ulp",
                _ => "dmesg | tail",
            };
            found.fail("node", error.to_string(), cure)?;
            Ok(None)
        }
    }
}

/// Returns the commands that make a Soft-RoCE device of an interface that is up.
fn soft_roce() -> String {
    let interface = system::interfaces()
        .filter(|name| name != "lo")
        .find(|name| system::Interface::named(name).is_some_and(|interface| interface.is_up));
    let interface = interface.unwrap_or_else(|| "NETDEV".to_owned());
    format!("modprobe rdma_rxe && rdma link add rxe0 type rxe netdev {interface}")
}

/// Checks that there is a device that programs can use, and returns it.
fn device(
    args: &Diagnose,
    entries: Option<&[DeviceEntry]>,
    found: &mut Findings,
) -> Result<Option<RdmaDevice>> {
    let mut devices = rdma::devices(None)?;
    let wanted = args.device.name.as_deref();
    let mut refused = None;
    devices.retain(|device| {
        let Some(why) = refusal(device, entries) else {
            return true;
        };
        if wanted.is_none_or(|name| device.name == name) {
            refused.get_or_insert(format!("{} {}", device.name, found.say(why, &[])));
        }
        false
    });
    if let Some(what) = refused.filter(|_| wanted.is_some() || devices.is_empty()) {
        found.fail("device", what, soft_roce())?;
        return Ok(None);
    }
    if let Some(entries) = entries {
        // The module shows only devices that this process may use.
        devices.retain(|device| entries.iter().any(|entry| entry.name == device.name));
    }
    let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
    let Some(first) = names.first() else {
        let what = match system::has_module("rdma_rxe") {
            true => say!(found, "there is no RDMA device that this process may use"),
            false => say!(found, "there is no RDMA device that this process may use, and rdma_rxe (Soft-RoCE) is not loaded"),
        };
        found.fail("device", what, soft_roce())?;
        return Ok(None);
    };
    let default = entries.and_then(|entries| entries.iter().find(|entry| entry.is_default));
    let chosen = devices
        .iter()
        .find(|device| match (&args.device.name, default) {
            (Some(name), _) => device.name == *name,
            (None, Some(default)) => device.name == default.name,
            (None, None) => device.is_here(),
        });
    let Some(chosen) = chosen else {
        let names = names.join(", ");
        let what = match wanted {
            Some(wanted) => say!(
                found,
                "there is no RDMA device {0}; there is {1}",
                wanted,
                names
            ),
            None => say!(
                found,
                "there is no RDMA device that is used by default; there is {0}",
                names
            ),
        };
        found.fail("device", what, format!("ulp diagnose -d {first}"))?;
        return Ok(None);
    };
    if !chosen.is_here() {
        found.fail(
            "device",
            say!(found, "the interface of {0} is not in this network namespace", chosen.name),
            say!(found, "ip netns exec NAMESPACE ulp diagnose, or rdma link add rxe0 type rxe netdev NETDEV in this one"),
        )?;
        return Ok(None);
    }
    let guid = chosen.node_guid.as_deref().unwrap_or("?");
    let what = say!(
        found,
        "{0} of {1}, GUID {2}",
        chosen.name,
        names.join(", "),
        guid
    );
    found.ok("device", what)?;
    Ok(Some(chosen.clone()))
}

/// Checks that the port is up, and its MTU.
fn check_port(port: &Port, opened: Option<&Device>, found: &mut Findings) -> Result<bool> {
    let netdev = port.netdev.as_deref().and_then(system::Interface::named);
    let name = netdev.as_ref().map_or("NETDEV", |netdev| &netdev.name);
    let what = say!(
        found,
        "port {0} is {1}",
        port.port,
        port.state.to_uppercase()
    );
    if !port.is_active() {
        match &netdev {
            Some(netdev) if !netdev.is_up => found.fail(
                "port",
                say!(found, "{0}: its interface {1} is down", what, name),
                format!("ip link set {name} up"),
            )?,
            Some(netdev) if netdev.carrier == Some(false) => found.fail(
                "port",
                say!(found, "{0}: its interface {1} is up, but has no carrier: the other end of the link is down", what, name),
                say!(found, "connect the cable, or at the other end: ip link set NETDEV up; then see ip link show {0}", name),
            )?,
            _ => found.fail("port", what, "rdma link show; ip link")?,
        }
        return Ok(false);
    }
    found.ok("port", say!(found, "{0}, its interface is {1}", what, name))?;
    let (Some(netdev), Some(opened), false) = (&netdev, opened, port.is_infiniband()) else {
        return Ok(true);
    };
    let info = opened.port(port.port)?;
    let (mtu, max) = (info.active_mtu, info.max_mtu.min(4096));
    let what = say!(
        found,
        "packets carry {0} bytes, {1} has an MTU of {2}",
        mtu,
        name,
        netdev.mtu
    );
    if mtu < max {
        found.could(
            "mtu",
            say!(found, "{0}: {1} are possible", what, max),
            say!(
                found,
                "ip link set {0} mtu 4200, here, at the peer and in all switches between",
                name
            ),
        )?;
    } else {
        found.ok("mtu", what)?;
    }
    Ok(true)
}

fn describe(entry: &GidEntry, found: &Findings) -> String {
    let (kind, address) = (entry.type_name(), found.say(entry.address_kind(), &[]));
    say!(
        found,
        "GID index {0}, {1} ({2}, {3})",
        entry.index,
        entry.gid,
        kind,
        address
    )
}

/// Checks that the port has a GID that peers can reach, and the GID index of the arguments.
fn gid(
    args: &Diagnose,
    device: &RdmaDevice,
    port: &Port,
    opened: Option<&Device>,
    found: &mut Findings,
) -> Result<bool> {
    let gids = device.gids(port);
    let name = port.netdev.as_deref().unwrap_or("NETDEV");
    let usable = |entry: &&GidEntry| {
        entry.r#type == "ib"
            || (entry.netdev.is_some() && !entry.link_local && entry.r#type == "roce_v2")
    };
    let chosen = opened.and_then(|opened| opened.default_gid().ok());
    let chosen = chosen.map(|chosen| u32::from(chosen.gid_index));
    let best = gids
        .iter()
        .filter(usable)
        .max_by_key(|entry| (Some(entry.index) == chosen, entry.ipv4.is_some()));
    let Some(best) = best else {
        let present: Vec<String> = gids.iter().map(|entry| describe(entry, found)).collect();
        let present = match present.is_empty() {
            true => say!(found, "its GID table is empty"),
            false => present.join("; "),
        };
        found.fail(
            "gid",
            say!(
                found,
                "{0} has no address by which peers could reach it: {1}",
                name,
                present
            ),
            format!("ip addr add ADDRESS/24 dev {name}"),
        )?;
        return Ok(false);
    };
    let Some(index) = args.gid_index else {
        let what = match (opened, found.lang) {
            (Some(opened), Lang::En) => opened.to_string(),
            _ => describe(best, found),
        };
        found.ok("gid", what)?;
        return Ok(true);
    };
    let fault = match gids.iter().find(|entry| entry.index == u32::from(index)) {
        None => say!(found, "GID index {0} of port {1} is empty", index, port.port),
        Some(entry) if entry.netdev.is_none() && entry.r#type != "ib" => {
            say!(found, "{0} is of an interface in another network namespace", describe(entry, found))
        }
        Some(entry) if entry.link_local && entry.r#type != "ib" => say!(
            found,
            "{0} is good for one link only: peers behind a router, and those with IPv4 addresses, cannot answer",
            describe(entry, found)
        ),
        Some(entry) if entry.r#type == "roce_v1" => say!(
            found,
            "{0} is of RoCE v1, which peers of RoCE v2 do not understand, and routers do not forward",
            describe(entry, found)
        ),
        Some(entry) => {
            found.ok("gid", describe(entry, found))?;
            return Ok(true);
        }
    };
    let cure = say!(
        found,
        "use index {0}: {1}; `ulp gids` lists them",
        best.index,
        describe(best, found)
    );
    found.fail("gid", fault, cure)?;
    Ok(false)
}

/// Checks that as much memory as the arguments say can be registered.
fn memory(args: &Diagnose, device: &Device, found: &mut Findings) -> Result<bool> {
    let bytes = u64::from(args.memory);
    let size = format!("{} KiB", bytes.div_ceil(1 << 10));
    let (soft, hard) = getrlimit(Resource::RLIMIT_MEMLOCK)?;
    let limit = match soft {
        RLIM_INFINITY => say!(found, "no limit"),
        soft => say!(
            found,
            "a limit of {0} KiB (hard: {1} KiB)",
            soft >> 10,
            hard >> 10
        ),
    };
    let tried = device.alloc_pd().and_then(|pd| {
        let buffer = pd.alloc_buffer(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        buffer.grant_all(.., Access::REMOTE_WRITE, Default::default())
    });
    match tried {
        Ok(keys) => {
            let what = say!(
                found,
                "{0} registered under {1} keys; locked memory has {2}",
                size,
                keys.len(),
                limit
            );
            found.ok("memlock", what)?;
            return Ok(true);
        }
        Err(error) if error.kind() == ErrorKind::OutOfMemory && soft < bytes => found.fail(
            "memlock",
            say!(
                found,
                "{0} cannot be registered: locked memory has {1}",
                size,
                limit
            ),
            say!(
                found,
                "ulimit -l unlimited, and permanently: echo '* - memlock unlimited' > \
                 /etc/security/limits.d/rdma.conf (a service: LimitMEMLOCK=infinity)"
            ),
        )?,
        Err(error) => found.fail(
            "memlock",
            say!(found, "{0} cannot be registered: {1}", size, error),
            "ulimit -l; cat /proc/meminfo; ulp devices -v",
        )?,
    }
    Ok(false)
}

/// Checks that a queue pair can write to another of the same device: all but the network works.
fn write_to_itself(args: &Diagnose, device: &Device, found: &mut Findings) -> Result<bool> {
    let written = || -> rust_ulp::error::Result<bool> {
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(8)?);
        let buffer = pd.alloc_buffer(4096)?;
        let grant = buffer.grant(.., Access::REMOTE_WRITE)?;
        let make = || {
            let builder = pd.qp_builder::<Rc>(&cq);
            match args.gid_index {
                Some(index) => builder.gid(default_port(device), index).build(),
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
                "data_path",
                say!(found, "a queue pair wrote to another one of this device"),
            )?;
            Ok(true)
        }
        Ok(false) => {
            found.fail(
                "data_path",
                say!(found, "a write to itself completed, but did not arrive"),
                "dmesg | tail",
            )?;
            Ok(false)
        }
        Err(error) => {
            found.fail(
                "data_path",
                say!(found, "a write to itself failed: {0}", error),
                "dmesg | tail; ulp events",
            )?;
            Ok(false)
        }
    }
}

/// Checks that no counter of the device indicates a fault.
fn counters(device: &RdmaDevice, found: &mut Findings) -> Result<()> {
    let mut all = Vec::new();
    for port in &device.ports {
        match netlink::counters(device.index, port.port) {
            Ok(Some(counters)) => all.extend(counters),
            _ => return found.note("counters", say!(found, "not offered by this device")),
        }
        all.extend(rdma::Sysfs::default().port_counters(&device.name, port.port));
    }
    let bad = all.iter().filter(|(_, value)| *value != 0);
    let bad: Vec<String> = bad
        .filter_map(|(name, value)| {
            Some(format!(
                "{name} {value} ({})",
                found.say(trouble(name)?, &[])
            ))
        })
        .collect();
    if bad.is_empty() {
        return found.ok(
            "counters",
            say!(found, "none indicates a fault since the device was added"),
        );
    }
    found.could(
        "counters",
        bad.join("; "),
        say!(
            found,
            "ulp counters --watch 1 --nonzero, to see whether they still rise"
        ),
    )
}

/// Reports the settings that keep packets from being dropped.
fn flow_control(device: &RdmaDevice, port: &Port, found: &mut Findings) -> Result<()> {
    if port.is_infiniband() {
        return found.ok(
            "flow_control",
            say!(found, "InfiniBand has credits: packets are not dropped"),
        );
    }
    let Some(name) = &port.netdev else {
        return Ok(());
    };
    let not_offered = say!(found, "not offered by this device");
    match netlink::pause(name) {
        Ok((rx, tx)) => {
            let [rx, tx] = [rx, tx].map(|on| match on {
                true => say!(found, "on"),
                false => say!(found, "off"),
            });
            found.note(
                "pause",
                say!(found, "{0}: receiving {1}, sending {2}", name, rx, tx),
            )?;
        }
        Err(Errno::EOPNOTSUPP) => found.note("pause", format!("{name}: {not_offered}"))?,
        Err(errno) => found.note(
            "pause",
            say!(found, "{0}: cannot be read: {1}", name, errno),
        )?,
    }
    match netlink::priority_flow_control(name) {
        Ok(0) => found.could(
            "pfc",
            say!(found, "{0}: off for all priorities: packets are dropped under congestion", name),
            say!(found, "dcb pfc set dev {0} prio-pfc 3:on, here and in the switches, and DSCP 26 for the traffic", name),
        )?,
        Ok(mask) => {
            let priorities: Vec<String> = (0..8).filter(|n| (mask >> n) & 1 != 0).map(|n| n.to_string()).collect();
            found.ok("pfc", say!(found, "{0}: on for priorities {1}", name, priorities.join(", ")))?;
        }
        Err(Errno::EOPNOTSUPP) => found.note("pfc", format!("{name}: {not_offered}"))?,
        Err(errno) => found.note("pfc", say!(found, "{0}: cannot be read: {1}", name, errno))?,
    }
    // The mainline driver of mlx5 has its switches in debugfs.
    let ecn = match system::ecn(name) {
        Some((np, rp)) => say!(
            found,
            "{0}: notification point: priorities {1}; reaction point: priorities {2}",
            name,
            np,
            rp
        ),
        None => say!(
            found,
            "{0}: no switch for it in /sys/class/net/{0}/ecn",
            name
        ),
    };
    found.note("ecn", ecn)?;
    let dscp = match system::default_tos(&device.name, port.port) {
        Some(tos) => say!(
            found,
            "{0} for connections of the connection manager",
            tos >> 2
        ),
        None => say!(
            found,
            "0, unless the program sets QpBuilder::traffic_class()"
        ),
    };
    found.note("dscp", format!("{name}: {dscp}"))
}
