// SPDX-License-Identifier: MIT OR Apache-2.0

//! `ulp devices`, `gids`, `events`, `counters` and `qp`: what there is, and what goes on.

use crate::output::{self, interrupts, Format, FormatArgs, VERSION};
use crate::{netlink, system};
use anyhow::{bail, Context, Result};
use clap::Args;
use rust_ulp::{Device, DeviceEntry, Error, EventKind, GidEntry, LinkLayer, PortInfo, QpState};
use serde::Serialize;
use serde_json::json;
use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The devices, or the one by that name.
pub fn devices(name: Option<&str>) -> Result<Vec<DeviceEntry>> {
    let mut all = Device::list()?;
    if let Some(name) = name {
        all.retain(|entry| entry.name == name);
        if all.is_empty() {
            bail!(Error::NoDevice {
                name: name.to_owned()
            });
        }
    }
    Ok(all)
}

/// A port's network interface, of this namespace.
pub fn interface(port: &PortInfo) -> Option<system::Interface> {
    system::Interface::numbered(port.ifindex?)
}

fn link(layer: LinkLayer) -> String {
    match layer {
        LinkLayer::InfiniBand => "InfiniBand".to_owned(),
        LinkLayer::Ethernet => "Ethernet".to_owned(),
        other => format!("{other:?}"),
    }
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

// --- devices ----------------------------------------------------------------------

/// Arguments of `ulp devices`.
#[derive(Debug, Args)]
pub struct Devices {
    /// This device only.
    #[arg(short, long, value_name = "NAME")]
    device: Option<String>,
    /// All that a device can do, and not only what it is.
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Serialize)]
struct DeviceRow {
    name: String,
    index: u32,
    node_guid: String,
    is_default: bool,
    local_net: bool,
    software: bool,
    firmware: String,
    ports: Vec<PortRow>,
    capabilities: Vec<(&'static str, u64)>,
}

#[derive(Serialize)]
struct PortRow {
    port: u32,
    state: String,
    link_layer: String,
    max_mtu: u32,
    active_mtu: u32,
    lid: u16,
    gid_table_len: u32,
    pkey_table_len: u32,
    max_message: u32,
    interface: Option<String>,
}

fn device_row(entry: &DeviceEntry) -> Result<DeviceRow> {
    let device = Device::open(&entry.name).with_context(|| entry.name.clone())?;
    let (info, limits) = (device.info(), device.limits());
    let mut ports = Vec::new();
    for number in 1..=info.ports {
        let port = device.port(number)?;
        ports.push(PortRow {
            port: number,
            state: format!("{:?}", port.state),
            link_layer: link(port.link_layer),
            max_mtu: port.max_mtu,
            active_mtu: port.active_mtu,
            lid: port.lid,
            gid_table_len: port.gid_table_len,
            pkey_table_len: port.pkey_table_len,
            max_message: port.max_msg_size,
            interface: interface(&port).map(|interface| interface.name),
        });
    }
    Ok(DeviceRow {
        name: entry.name.clone(),
        index: entry.index,
        node_guid: entry.node_guid.to_string(),
        is_default: entry.is_default,
        local_net: entry.local_net,
        software: info.software,
        firmware: info.fw_ver.clone(),
        ports,
        capabilities: vec![
            ("queue pairs", info.max_qp.into()),
            ("requests per queue", info.max_qp_wr.into()),
            ("elements of a send", info.max_send_sge.into()),
            ("elements of a receive", info.max_recv_sge.into()),
            ("completion queues", info.max_cq.into()),
            ("entries of a completion queue", info.max_cqe.into()),
            ("shared receive queues", info.max_srq.into()),
            ("keys", info.max_mr.into()),
            ("pages under one key", info.max_fast_reg_pages.into()),
            ("bytes under one key", info.max_mr_size),
            ("protection domains", info.max_pd.into()),
            (
                "reads and atomics answered at a time",
                info.max_responder.into(),
            ),
            (
                "reads and atomics under way at a time",
                info.max_initiator.into(),
            ),
            ("completion vectors", info.num_comp_vectors.into()),
            (
                "this module: objects per open file",
                limits.max_objects.into(),
            ),
            ("this module: bytes of a buffer", limits.max_buffer),
            ("this module: requests per call", limits.max_batch.into()),
            (
                "this module: requests per queue",
                limits.max_queue_depth.into(),
            ),
            ("this module: inline bytes", limits.max_inline.into()),
        ],
    })
}

fn yes(flag: bool) -> String {
    if flag { "yes" } else { "no" }.to_owned()
}

impl Devices {
    pub fn run(self) -> Result<ExitCode> {
        let entries = devices(self.device.as_deref())?;
        let rows = entries.iter().map(device_row).collect::<Result<Vec<_>>>()?;
        let head = [
            "DEVICE",
            "PORT",
            "STATE",
            "LINK",
            "MTU",
            "MAX MTU",
            "NETDEV",
            "NODE GUID",
            "DEFAULT",
            "HERE",
        ];
        output::rows(self.format.format, "devices", &rows, &head, |row| {
            row.ports
                .iter()
                .map(|port| {
                    vec![
                        row.name.clone(),
                        port.port.to_string(),
                        port.state.clone(),
                        port.link_layer.clone(),
                        port.active_mtu.to_string(),
                        port.max_mtu.to_string(),
                        or_dash(port.interface.clone()),
                        row.node_guid.clone(),
                        yes(row.is_default),
                        yes(row.local_net),
                    ]
                })
                .collect()
        })?;
        if self.verbose && self.format.format == Format::Table {
            for row in &rows {
                let cells = row
                    .capabilities
                    .iter()
                    .map(|(what, n)| vec![(*what).to_owned(), n.to_string()]);
                output::print(&format!(
                    "\n{}",
                    output::table(&[&row.name, "AT MOST"], cells)
                ))?;
            }
        }
        if rows.is_empty() {
            eprintln!("ulp: no RDMA device; `ulp diagnose` says what to do");
            return Ok(ExitCode::FAILURE);
        }
        Ok(ExitCode::SUCCESS)
    }
}

// --- GIDs ---------------------------------------------------------------------------

/// Arguments of `ulp gids`.
#[derive(Debug, Args)]
pub struct Gids {
    /// Of this device only.
    #[arg(short, long, value_name = "NAME")]
    device: Option<String>,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Serialize)]
struct GidRow {
    device: String,
    port: u32,
    index: u32,
    gid: String,
    ipv4: Option<String>,
    r#type: String,
    interface: Option<String>,
    link_local: bool,
    chosen: bool,
}

impl GidRow {
    fn new(device: &str, port: u32, entry: &GidEntry) -> Self {
        Self {
            device: device.to_owned(),
            port,
            index: entry.index,
            gid: entry.gid.to_string(),
            ipv4: entry.gid.ipv4().map(|addr| addr.to_string()),
            r#type: entry.gid_type.to_string(),
            interface: entry.interface.as_ref().map(|(_, name)| name.clone()),
            link_local: entry.is_link_local,
            chosen: entry.is_preferred,
        }
    }
}

impl Gids {
    pub fn run(self) -> Result<ExitCode> {
        let mut rows = Vec::new();
        let mut reasons = Vec::new();
        for entry in devices(self.device.as_deref())? {
            let device = Device::open(&entry.name).with_context(|| entry.name.clone())?;
            for port in 1..=device.info().ports {
                let gids = device.gids(port)?;
                rows.extend(gids.iter().map(|gid| GidRow::new(&entry.name, port, gid)));
            }
            reasons.push(device.to_string());
        }
        let head = [
            "DEVICE", "PORT", "INDEX", "GID", "IPv4", "TYPE", "NETDEV", "USED",
        ];
        output::rows(self.format.format, "gids", &rows, &head, |row| {
            vec![vec![
                row.device.clone(),
                row.port.to_string(),
                row.index.to_string(),
                row.gid.clone(),
                or_dash(row.ipv4.clone()),
                row.r#type.clone(),
                or_dash(row.interface.clone()),
                if row.chosen { "*" } else { "" }.to_owned(),
            ]]
        })?;
        for reason in reasons {
            eprintln!("{reason}");
        }
        Ok(ExitCode::SUCCESS)
    }
}

// --- events -------------------------------------------------------------------------

/// Arguments of `ulp events`.
#[derive(Debug, Args)]
pub struct Events {
    /// Of this device [default: the first whose interface is in this network namespace]
    #[arg(short, long, value_name = "NAME")]
    device: Option<String>,
    /// End after so many.
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<u64>,
    /// End after so many seconds.
    #[arg(short = 'D', long, value_name = "S")]
    duration: Option<u64>,
    #[command(flatten)]
    format: FormatArgs,
}

/// What it means to somebody who looks at ports.
fn meaning(kind: EventKind) -> &'static str {
    match kind {
        EventKind::PortActive { .. } => "the port carries traffic",
        EventKind::PortError { .. } => {
            "the port carries no traffic: its link or its interface went down"
        }
        EventKind::GidChange { .. } => "addresses have come or gone: look at `ulp gids`",
        EventKind::PkeyChange { .. } => "the table of partition keys has changed",
        EventKind::LidChange { .. } => "the port has another local identifier",
        EventKind::SmChange { .. } => "another subnet manager rules",
        EventKind::ClientReregister { .. } => "the subnet manager forgot its clients",
        EventKind::DeviceFatal => "the device has failed",
        EventKind::DeviceRemoved => "the device is gone: the last event",
        EventKind::DeviceRenamed => "the device has another name",
        EventKind::Lost { .. } => "events were lost because nobody read them",
        _ => "",
    }
}

impl Events {
    pub fn run(self) -> Result<ExitCode> {
        let device = match &self.device {
            Some(name) => Device::open(name)?,
            None => Device::open_default()?,
        };
        let events = device.events()?;
        let stop = interrupts()?;
        eprintln!("{}: waiting for events, until Ctrl-C", device.name());
        let end = self
            .duration
            .map(|s| Instant::now() + Duration::from_secs(s.min(1 << 30)));
        let mut seen = 0;
        while !stop.load(Ordering::Relaxed)
            && self.count.is_none_or(|count| seen < count)
            && end.is_none_or(|end| Instant::now() < end)
        {
            let event = match events.wait(Duration::from_millis(200)) {
                Ok(event) => event,
                Err(Error::Timeout { .. }) => continue,
                Err(error) => return Err(error.into()),
            };
            seen += 1;
            let (time, kind) = (event.time.as_secs_f64(), format!("{:?}", event.kind));
            output::print(&match self.format.format {
                Format::Table => format!(
                    "{time:14.6} {:8} {kind:32} {}",
                    device.name(),
                    meaning(event.kind)
                )
                .trim_end()
                .to_owned(),
                Format::Json => json!({
                    "version": VERSION, "time": time, "device": device.name(), "event": kind,
                    "meaning": meaning(event.kind),
                })
                .to_string(),
            })?;
            if event.kind == EventKind::DeviceRemoved {
                break;
            }
        }
        eprintln!("{seen} events");
        Ok(ExitCode::SUCCESS)
    }
}

// --- counters -----------------------------------------------------------------------

/// Arguments of `ulp counters`.
#[derive(Debug, Args)]
pub struct Counters {
    /// Of this device only.
    #[arg(short, long, value_name = "NAME")]
    device: Option<String>,
    /// Those only that are not 0.
    #[arg(long)]
    nonzero: bool,
    /// Every so many seconds, by how much they rose, until Ctrl-C.
    #[arg(short, long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=86400))]
    watch: Option<u64>,
    #[command(flatten)]
    format: FormatArgs,
}

/// A counter that tells of trouble, and of which. Those of rxe, and what others call the same.
pub fn trouble(counter: &str) -> Option<&'static str> {
    Some(match counter {
        "duplicate_request" => "requests came again: their acknowledgements were lost or late",
        "out_of_seq_request" | "out_of_sequence" | "rcvd_seq_err" | "packet_seq_err" => {
            "packets were missing: the path loses them"
        }
        "rcvd_rnr_err" => "peers had no receive posted: they have to post more, or earlier",
        "send_rnr_err" => "a program here had no receive posted when a message came",
        "retry_exceeded_err" | "local_ack_timeout_err" => {
            "peers did not answer: gone, a wrong GID, or UDP port 4791 does not get through"
        }
        "retry_rnr_exceeded_err" => {
            "a peer posted no receive for so long that a queue pair gave up"
        }
        "completer_retry_err" => "requests were sent again",
        "send_err" => "packets could not be sent: no route, or the interface is down",
        "link_downed" => "the link went down",
        "symbol_error" | "port_rcv_errors" => "damaged packets: look at cable and connectors",
        "port_xmit_discards" | "rx_discards_phy" => {
            "packets were dropped: congestion without flow control"
        }
        _ => return None,
    })
}

#[derive(Clone, Serialize)]
struct CounterRow {
    device: String,
    port: u32,
    counter: String,
    value: u64,
    trouble: Option<&'static str>,
}

fn counters(entries: &[DeviceEntry]) -> Result<Vec<CounterRow>> {
    let mut rows = Vec::new();
    for entry in entries {
        for port in 1..=entry.ports {
            let counters = netlink::counters(entry.index, port)
                .with_context(|| format!("{}, port {port}: the driver's counters", entry.name))?;
            rows.extend(counters.into_iter().map(|(counter, value)| CounterRow {
                device: entry.name.clone(),
                port,
                trouble: trouble(&counter),
                counter,
                value,
            }));
        }
    }
    Ok(rows)
}

impl Counters {
    fn show(&self, mut rows: Vec<CounterRow>) -> Result<()> {
        rows.retain(|row| !self.nonzero || row.value != 0);
        let head = ["DEVICE", "PORT", "COUNTER", "VALUE", "TELLS OF"];
        let cells = |row: &CounterRow| {
            let trouble = row.trouble.filter(|_| row.value != 0).unwrap_or_default();
            vec![vec![
                row.device.clone(),
                row.port.to_string(),
                row.counter.clone(),
                row.value.to_string(),
                trouble.to_owned(),
            ]]
        };
        output::rows(self.format.format, "counters", &rows, &head, cells)
    }

    pub fn run(self) -> Result<ExitCode> {
        let entries = devices(self.device.as_deref())?;
        let mut last = counters(&entries)?;
        let Some(seconds) = self.watch else {
            self.show(last)?;
            return Ok(ExitCode::SUCCESS);
        };
        let stop = interrupts()?;
        eprintln!("every {seconds} s, until Ctrl-C");
        let mut next = Instant::now();
        loop {
            next += Duration::from_secs(seconds);
            while Instant::now() < next && !stop.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(50));
            }
            // What there is until Ctrl-C is shown, too.
            let now = counters(&entries)?;
            let before: HashMap<_, _> = last
                .iter()
                .map(|row| {
                    (
                        (row.device.as_str(), row.port, row.counter.as_str()),
                        row.value,
                    )
                })
                .collect();
            let mut rose = now.clone();
            for row in &mut rose {
                let key = (row.device.as_str(), row.port, row.counter.as_str());
                row.value = row
                    .value
                    .wrapping_sub(before.get(&key).copied().unwrap_or(0));
            }
            self.show(rose)?;
            last = now;
            if stop.load(Ordering::Relaxed) {
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
}

// --- queue pairs --------------------------------------------------------------------

/// Arguments of `ulp qp`.
#[derive(Debug, Args)]
pub struct Qps {
    /// Of this device only.
    #[arg(short, long, value_name = "NAME")]
    device: Option<String>,
    /// Those of /dev/rust_ulp only.
    #[arg(short, long)]
    ours: bool,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Serialize)]
struct QpRow {
    device: String,
    number: u32,
    r#type: String,
    state: String,
    peer: Option<u32>,
    rq_psn: Option<u32>,
    sq_psn: Option<u32>,
    sends: Option<u32>,
    receives: Option<u32>,
    pid: Option<u32>,
    program: String,
}

/// `enum ib_qp_type`.
fn qp_type(kind: u8) -> String {
    match kind {
        0 => "SMI".to_owned(),
        1 => "GSI".to_owned(),
        2 => "RC".to_owned(),
        3 => "UC".to_owned(),
        4 => "UD".to_owned(),
        8 => "RAW".to_owned(),
        n => format!("type {n}"),
    }
}

impl Qps {
    pub fn run(self) -> Result<ExitCode> {
        let mut owners = system::owners();
        let mut rows = Vec::new();
        for entry in devices(self.device.as_deref())? {
            let qps = netlink::queue_pairs(entry.index)
                .with_context(|| format!("{}: its queue pairs", entry.name))?;
            for qp in qps {
                let owner = owners.remove(&(entry.name.clone(), qp.number));
                if self.ours && qp.module.as_deref() != Some("rust_ulp") {
                    continue;
                }
                let module = qp.module.map(|name| format!("[{name}]"));
                rows.push(QpRow {
                    device: entry.name.clone(),
                    number: qp.number,
                    r#type: qp_type(qp.kind),
                    state: format!("{:?}", QpState::from_code(qp.state)),
                    peer: qp.peer,
                    rq_psn: qp.rq_psn,
                    sq_psn: qp.sq_psn,
                    sends: owner.as_ref().map(|owner| owner.sends),
                    receives: owner.as_ref().map(|owner| owner.receives),
                    pid: owner.as_ref().map(|owner| owner.pid).or(qp.pid),
                    program: owner
                        .map(|owner| owner.program)
                        .or(module)
                        .unwrap_or_default(),
                });
            }
        }
        let number = |n: Option<u32>| or_dash(n.map(|n| n.to_string()));
        let head = [
            "DEVICE", "QPN", "TYPE", "STATE", "PEER QPN", "RQ PSN", "SQ PSN", "SENDS", "RECVS",
            "PID", "PROGRAM",
        ];
        output::rows(self.format.format, "queue_pairs", &rows, &head, |row| {
            vec![vec![
                row.device.clone(),
                row.number.to_string(),
                row.r#type.clone(),
                row.state.clone(),
                number(row.peer),
                number(row.rq_psn),
                number(row.sq_psn),
                number(row.sends),
                number(row.receives),
                number(row.pid),
                row.program.clone(),
            ]]
        })?;
        Ok(ExitCode::SUCCESS)
    }
}
