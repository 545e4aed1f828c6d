// SPDX-License-Identifier: MIT OR Apache-2.0

//! `ulp devices`, `gids`, `events`, `counters` and `qp`: the state of the RDMA devices of this
//! host.
//!
//! All but `events` work without the module `rust_ulp`, and show more with it.

use crate::args::{duration, DeviceArg};
use crate::netlink::{self, QpEntry};
use crate::output::{self, answer, causes, interrupts, or_dash, FormatArgs};
use crate::rdma::{self, GidEntry, RdmaDevice};
use crate::system::{self, FileQp, UlpFile};
use anyhow::{Context, Result};
use clap::Args;
use rust_ulp::device::DeviceEntry;
use rust_ulp::events::EventKind;
use rust_ulp::{Device, Error};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The option `--device` of commands that show all devices.
#[derive(Debug, Args)]
pub struct Filter {
    /// Show this RDMA device only
    #[arg(short, long, value_name = "NAME")]
    device: Option<String>,
}

impl Filter {
    pub fn devices(&self) -> Result<Vec<RdmaDevice>> {
        rdma::devices(self.device.as_deref())
    }
}

/// Returns a word as the RDMA tools print it.
pub fn upper(word: &str) -> String {
    word.to_uppercase()
}

/// Returns what owns an object: the name of a process, or of a kernel module in brackets.
pub fn program_or_module(program: Option<&String>, module: Option<&String>) -> String {
    let module = || module.map(|module| format!("[{module}]"));
    or_dash(program.cloned().or_else(module))
}

// --- devices ----------------------------------------------------------------------

/// Arguments of `ulp devices`.
#[derive(Debug, Args)]
pub struct Devices {
    #[command(flatten)]
    filter: Filter,
    /// Show all attributes and limits of each device
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    format: FormatArgs,
}

/// The output of `ulp devices`.
#[derive(Serialize, JsonSchema)]
pub struct DeviceList {
    devices: Vec<DeviceRow>,
}

#[derive(Serialize, JsonSchema)]
struct DeviceRow {
    #[serde(flatten)]
    device: RdmaDevice,
    /// Whether a port of the device is usable in this network namespace.
    local_net: bool,
    /// What the module adds; null where the module is not loaded or may not be used.
    rust_ulp: Option<ModuleView>,
}

/// An RDMA device as the module shows it.
#[derive(Serialize, JsonSchema)]
struct ModuleView {
    /// Whether programs that name no device use this one.
    is_default: bool,
    /// Whether the device is implemented in software.
    software: bool,
    ports: Vec<PortView>,
    /// Against what else atomics of peers are atomic, as `ibv_devinfo -v` prints it.
    atomic_cap: String,
    /// The bits of `enum ib_device_cap_flags` that the driver reports.
    device_cap_flags: String,
    /// The limits of the device, with the names of `struct ib_device_attr`, and those of the
    /// module.
    limits: BTreeMap<&'static str, u64>,
}

#[derive(Serialize, JsonSchema)]
struct PortView {
    port: u32,
    active_mtu: u32,
    max_mtu: u32,
    max_msg_size: u32,
}

impl ModuleView {
    fn new(entry: &DeviceEntry) -> Result<Self> {
        let device = Device::open(&entry.name).with_context(|| entry.name.clone())?;
        let (info, limits) = (device.info(), device.limits());
        let port = |port| {
            let info = device.port(port)?;
            Ok(PortView {
                port,
                active_mtu: info.active_mtu,
                max_mtu: info.max_mtu,
                max_msg_size: info.max_msg_size,
            })
        };
        Ok(Self {
            is_default: entry.is_default,
            software: info.software,
            ports: (1..=info.ports).map(port).collect::<Result<_>>()?,
            atomic_cap: info.atomic_cap.to_string(),
            device_cap_flags: format!("{:#x}", info.device_cap_flags),
            limits: BTreeMap::from([
                ("max_qp", info.max_qp.into()),
                ("max_qp_wr", info.max_qp_wr.into()),
                ("max_send_sge", info.max_send_sge.into()),
                ("max_recv_sge", info.max_recv_sge.into()),
                ("max_sge_rd", info.max_sge_rd.into()),
                ("max_cq", info.max_cq.into()),
                ("max_cqe", info.max_cqe.into()),
                ("max_srq", info.max_srq.into()),
                ("max_srq_wr", info.max_srq_wr.into()),
                ("max_srq_sge", info.max_srq_sge.into()),
                ("max_mr", info.max_mr.into()),
                ("max_mr_size", info.max_mr_size),
                ("page_size_cap", info.page_size_cap),
                ("max_fast_reg_page_list_len", info.max_fast_reg_pages.into()),
                ("max_pd", info.max_pd.into()),
                ("max_qp_rd_atom", info.max_responder.into()),
                ("max_qp_init_rd_atom", info.max_initiator.into()),
                ("local_ca_ack_delay", info.ack_delay.into()),
                ("num_comp_vectors", info.num_comp_vectors.into()),
                ("rust_ulp_max_objects", limits.max_objects.into()),
                ("rust_ulp_max_buffer", limits.max_buffer),
                ("rust_ulp_max_batch", limits.max_batch.into()),
                ("rust_ulp_max_queue_depth", limits.max_queue_depth.into()),
                ("rust_ulp_max_inline", limits.max_inline.into()),
            ]),
        })
    }
}

impl DeviceRow {
    /// Returns what the module says of a port.
    fn view(&self, port: &rdma::Port) -> Option<&PortView> {
        let views = &self.rust_ulp.as_ref()?.ports;
        views.iter().find(|view| view.port == port.port)
    }

    /// Formats the attributes that the table leaves out.
    fn attributes(&self) -> String {
        let device = &self.device;
        let texts = [
            ("protocol", &device.protocol),
            ("node_type", &device.node_type),
            ("sys_image_guid", &device.sys_image_guid),
            ("node_desc", &device.node_desc),
            ("firmware", &device.firmware),
            ("hca_type", &device.hca_type),
            ("board_id", &device.board_id),
            ("hw_rev", &device.hw_rev),
            ("vendor_id", &device.vendor_id),
            ("vendor_part_id", &device.vendor_part_id),
            ("driver", &device.driver),
        ];
        let mut rows: Vec<_> = texts
            .into_iter()
            .map(|(name, text)| vec![name.to_owned(), or_dash(text.as_ref())])
            .collect();
        for port in &device.ports {
            let mut add =
                |name: &str, value| rows.push(vec![format!("port {} {name}", port.port), value]);
            add("lid", or_dash(port.lid));
            add("lmc", or_dash(port.lmc));
            add("sm_lid", or_dash(port.sm_lid));
            add("sm_sl", or_dash(port.sm_sl));
            add("cap_mask", or_dash(port.cap_mask.as_ref()));
            add("gid_tbl_len", port.gid_tbl_len.to_string());
            add("pkey_tbl_len", port.pkey_tbl_len.to_string());
            let view = self.view(port);
            add("max_msg_sz", or_dash(view.map(|view| view.max_msg_size)));
        }
        if let Some(module) = &self.rust_ulp {
            let mut add = |name: &str, value| rows.push(vec![name.to_owned(), value]);
            add("atomic_cap", module.atomic_cap.clone());
            add("device_cap_flags", module.device_cap_flags.clone());
            for (name, limit) in &module.limits {
                add(name, limit.to_string());
            }
        }
        output::table(&[&device.name, "VALUE"], rows)
    }

    fn cells(&self) -> Vec<Vec<String>> {
        let yes = |flag| if flag { "yes" } else { "no" }.to_owned();
        let port = |port: &rdma::Port| {
            let (module, view) = (self.rust_ulp.as_ref(), self.view(port));
            let speed = [
                port.width.map(|width| format!("{width}X")),
                port.speed.clone(),
            ];
            vec![
                self.device.name.clone(),
                port.port.to_string(),
                upper(port.state),
                upper(port.phys_state),
                port.link_layer.to_owned(),
                or_dash(port.rate_gbps),
                or_dash(Some(
                    speed.into_iter().flatten().collect::<Vec<_>>().join(" "),
                )),
                or_dash(view.map(|view| view.active_mtu)),
                or_dash(view.map(|view| view.max_mtu)),
                or_dash(port.netdev.as_ref()),
                or_dash(self.device.node_guid.as_ref()),
                module.map_or_else(|| "-".to_owned(), |view| yes(view.is_default)),
                yes(self.local_net),
            ]
        };
        self.device.ports.iter().map(port).collect()
    }
}

/// Returns the devices as the module lists them, or why it does not.
fn module_devices() -> rust_ulp::error::Result<Vec<DeviceEntry>> {
    let entries = Device::list();
    if let Err(error) = &entries {
        message!("ulp: less is known without /dev/rust_ulp: {error}");
    }
    entries
}

impl Devices {
    pub fn run(self) -> Result<ExitCode> {
        let devices = self.filter.devices()?;
        let entries = module_devices().unwrap_or_default();
        let row = |device: RdmaDevice| {
            let entry = entries.iter().find(|entry| entry.name == device.name);
            let view = entry.map(ModuleView::new).transpose();
            let view = view.inspect_err(|error| message!("ulp: {}", causes(error)));
            DeviceRow {
                local_net: device.is_here(),
                rust_ulp: view.unwrap_or_default(),
                device,
            }
        };
        let devices = devices.into_iter().map(row).collect();
        let list = DeviceList { devices };
        let head = [
            "DEVICE",
            "PORT",
            "STATE",
            "PHYSICAL",
            "LINK",
            "Gbit/s",
            "SPEED",
            "MTU",
            "MAX MTU",
            "NETDEV",
            "NODE GUID",
            "DEFAULT",
            "HERE",
        ];
        self.format.print(&list, || {
            let mut text = output::table(&head, list.devices.iter().flat_map(DeviceRow::cells));
            for row in list.devices.iter().filter(|_| self.verbose) {
                text += &format!("\n\n{}", row.attributes());
            }
            text
        })?;
        if list.devices.is_empty() {
            message!("ulp: there is no RDMA device; `ulp diagnose` tells how to make one");
        }
        Ok(answer(!list.devices.is_empty()))
    }
}

// --- GIDs ---------------------------------------------------------------------------

/// Arguments of `ulp gids`.
#[derive(Debug, Args)]
pub struct Gids {
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    format: FormatArgs,
}

/// The output of `ulp gids`.
#[derive(Serialize, JsonSchema)]
pub struct GidList {
    gids: Vec<GidRow>,
}

#[derive(Serialize, JsonSchema)]
struct GidRow {
    device: String,
    port: u32,
    #[serde(flatten)]
    entry: GidEntry,
    /// Whether programs that name no GID use this one; null where the module is not loaded.
    used: Option<bool>,
}

impl Gids {
    pub fn run(self) -> Result<ExitCode> {
        let known = module_devices().is_ok();
        let (mut gids, mut reasons) = (Vec::new(), Vec::new());
        for device in self.filter.devices()? {
            // The module does not serve every device.
            let opened = Device::open(&device.name).ok().filter(|_| known);
            for port in &device.ports {
                let preferred = match &opened {
                    Some(opened) => Some(opened.gids(port.port)?),
                    None => None,
                };
                let used = |index| {
                    let mut gids = preferred.as_ref()?.iter();
                    Some(gids.any(|gid| gid.is_preferred && u32::from(gid.index) == index))
                };
                gids.extend(device.gids(port).into_iter().map(|entry| GidRow {
                    device: device.name.clone(),
                    port: port.port,
                    used: used(entry.index),
                    entry,
                }));
            }
            reasons.extend(opened.map(|opened| opened.to_string()));
        }
        let list = GidList { gids };
        let head = [
            "DEVICE", "PORT", "INDEX", "GID", "IPv4", "TYPE", "NETDEV", "USED",
        ];
        let cells = |row: &GidRow| {
            vec![
                row.device.clone(),
                row.port.to_string(),
                row.entry.index.to_string(),
                row.entry.gid.clone(),
                or_dash(row.entry.ipv4.as_ref()),
                row.entry.type_name().to_owned(),
                or_dash(row.entry.netdev.as_ref()),
                match row.used {
                    Some(true) => "*",
                    Some(false) => "",
                    None => "-",
                }
                .to_owned(),
            ]
        };
        self.format
            .print(&list, || output::table(&head, list.gids.iter().map(cells)))?;
        for reason in reasons {
            message!("{reason}");
        }
        Ok(ExitCode::SUCCESS)
    }
}

// --- events -------------------------------------------------------------------------

/// Arguments of `ulp events`.
#[derive(Debug, Args)]
pub struct Events {
    #[command(flatten)]
    device: DeviceArg,
    /// End after N events
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<u64>,
    /// End after this time, in seconds or with a unit
    #[arg(short = 'D', long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    #[command(flatten)]
    format: FormatArgs,
}

/// A line of the output of `ulp events`.
#[derive(Serialize, JsonSchema)]
pub struct EventRow {
    /// When the event was reported, in seconds of CLOCK_MONOTONIC.
    time: f64,
    device: String,
    /// The kernel's name of the event.
    event: &'static str,
    port: Option<u32>,
    /// The number of events that were lost.
    lost: Option<u32>,
    meaning: &'static str,
}

/// Returns the kernel's name of an event, and its meaning.
fn event(kind: EventKind) -> (&'static str, &'static str) {
    match kind {
        EventKind::CqError => ("cq_err", "a completion queue has failed"),
        EventKind::QpFatal => ("qp_fatal", "a queue pair has failed"),
        EventKind::QpRequestError => ("qp_req_err", "a peer sent an invalid request"),
        EventKind::QpAccessError => (
            "qp_access_err",
            "a peer accessed memory that it may not access",
        ),
        EventKind::CommunicationEstablished => ("comm_est", "the first packet of a peer arrived"),
        EventKind::SqDrained => ("sq_drained", "a send queue has sent what was posted"),
        EventKind::PathMigrated => ("path_mig", "a queue pair uses its alternate path"),
        EventKind::PathMigrationFailed => {
            ("path_mig_err", "a queue pair cannot use its alternate path")
        }
        EventKind::DeviceFatal => ("device_fatal", "the device has failed"),
        EventKind::PortActive { .. } => ("port_active", "the port carries traffic"),
        EventKind::PortError { .. } => (
            "port_err",
            "the port carries no traffic: its link or its interface went down",
        ),
        EventKind::LidChange { .. } => ("lid_change", "the local identifier of the port changed"),
        EventKind::PkeyChange { .. } => ("pkey_change", "the table of partition keys changed"),
        EventKind::SmChange { .. } => ("sm_change", "another subnet manager took over"),
        EventKind::SrqError => ("srq_err", "a shared receive queue has failed"),
        EventKind::SrqLimit => (
            "srq_limit_reached",
            "a shared receive queue has fewer receives than its limit",
        ),
        EventKind::LastWqeReached => (
            "qp_last_wqe_reached",
            "a queue pair in error takes no more receives from its shared queue",
        ),
        EventKind::ClientReregister { .. } => (
            "client_reregister",
            "the subnet manager lost its registrations",
        ),
        EventKind::GidChange { .. } => {
            ("gid_change", "addresses have come or gone: see `ulp gids`")
        }
        EventKind::DeviceRemoved => ("device_removed", "the device is gone: the last event"),
        EventKind::DeviceRenamed => ("device_renamed", "the device has another name"),
        EventKind::Lost { .. } => ("lost", "events were lost because nobody read them"),
        _ => ("other", ""),
    }
}

impl EventRow {
    fn new(device: &str, time: Duration, kind: EventKind) -> Self {
        let (event, meaning) = event(kind);
        let (mut port, mut lost) = (None, None);
        match kind {
            EventKind::PortActive { port: number }
            | EventKind::PortError { port: number }
            | EventKind::LidChange { port: number }
            | EventKind::PkeyChange { port: number }
            | EventKind::SmChange { port: number }
            | EventKind::ClientReregister { port: number }
            | EventKind::GidChange { port: number } => port = Some(number),
            EventKind::Lost { count } => lost = Some(count),
            _ => {}
        }
        Self {
            time: time.as_secs_f64(),
            device: device.to_owned(),
            event,
            port,
            lost,
            meaning,
        }
    }

    fn text(&self) -> String {
        let (time, event) = (self.time, upper(self.event));
        let port = self.port.map(|port| format!("port {port}"));
        let port = port.unwrap_or_default();
        let text = format!(
            "{time:14.6} {:8} {event:20} {port:7} {}",
            self.device, self.meaning
        );
        text.trim_end().to_owned()
    }
}

impl Events {
    pub fn run(self) -> Result<ExitCode> {
        let device = self.device.open()?;
        let events = device.events();
        let stop = interrupts()?;
        message!("{}: waiting for events, until Ctrl-C", device.name());
        let end = self.duration.map(|duration| Instant::now() + duration);
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
            let row = EventRow::new(device.name(), event.time, event.kind);
            self.format.stream(&row, || row.text())?;
            if event.kind == EventKind::DeviceRemoved {
                break;
            }
        }
        message!("{seen} events");
        Ok(ExitCode::SUCCESS)
    }
}

// --- counters -----------------------------------------------------------------------

/// Arguments of `ulp counters`.
#[derive(Debug, Args)]
pub struct Counters {
    #[command(flatten)]
    filter: Filter,
    /// Show only counters that are not 0
    #[arg(long)]
    nonzero: bool,
    /// Print the increase over each interval, in seconds or with a unit, until Ctrl-C
    #[arg(short, long, value_name = "TIME", value_parser = duration)]
    watch: Option<Duration>,
    #[command(flatten)]
    format: FormatArgs,
}

/// The counters of a driver that count requests that were sent again, as rxe, mlx5 and bnxt_re name
/// them.
pub const RETRIES: &[&str] = &[
    "completer_retry_err",
    "local_ack_timeout_err",
    "packet_seq_err",
    "rnr_nak_retry_err",
    "to_retransmits",
    "seq_err_naks_rcvd",
];

/// Returns what a counter that is not 0 means, if it indicates a fault.
///
/// The names are those of rxe, of mlx5 and of the specification.
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
        "port_xmit_discards" | "rx_discards_phy" | "tx_discards_phy" => {
            "packets were dropped: congestion without flow control"
        }
        "out_of_buffer" | "rx_out_of_buffer" => {
            "packets were dropped because no receive was posted in time"
        }
        "np_ecn_marked_roce_packets" => "a switch marked packets to here: congestion on the path",
        "rp_cnp_handled" => "peers asked this host to send more slowly: congestion on the path",
        "tx_pause_storm_error_events" | "rx_pause_storm_error_events" => {
            "pause frames stopped the port for so long that the adapter gave up"
        }
        _ => return None,
    })
}

/// The output of `ulp counters`; one per interval with `--watch`.
#[derive(Clone, Serialize, JsonSchema)]
pub struct CounterList {
    counters: Vec<CounterRow>,
}

/// The place that the kernel shows a counter in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Source {
    /// The driver's hardware counters, as `rdma statistic` prints them.
    Hw,
    /// The port counters of the specification, in sysfs.
    Port,
    /// The statistics of the network interface, as `ethtool -S` prints them.
    Netdev,
}

#[derive(Clone, Serialize, JsonSchema)]
struct CounterRow {
    device: String,
    port: u32,
    source: Source,
    counter: String,
    value: u64,
    /// What the counter indicates if it is not 0; null for counters of no fault.
    trouble: Option<&'static str>,
}

impl CounterRow {
    fn key(&self) -> (&str, u32, Source, &str) {
        (&self.device, self.port, self.source, &self.counter)
    }

    fn cells(&self) -> Vec<String> {
        let trouble = self.trouble.filter(|_| self.value != 0).unwrap_or_default();
        let source = match self.source {
            Source::Hw => "hw",
            Source::Port => "port",
            Source::Netdev => "netdev",
        };
        vec![
            self.device.clone(),
            self.port.to_string(),
            source.to_owned(),
            self.counter.clone(),
            self.value.to_string(),
            trouble.to_owned(),
        ]
    }
}

impl CounterList {
    /// Returns how much each counter has risen since `before`: nothing, if it was reset.
    fn since(&self, before: &Self) -> Self {
        let rows = before.counters.iter();
        let before: HashMap<_, _> = rows.map(|row| (row.key(), row.value)).collect();
        let mut increase = self.clone();
        for row in &mut increase.counters {
            let before = before.get(&row.key()).copied().unwrap_or(0);
            row.value = row.value.saturating_sub(before);
        }
        increase
    }
}

/// Reads all counters of some devices.
fn counters(devices: &[RdmaDevice]) -> Result<CounterList> {
    let (sysfs, mut list) = (rdma::Sysfs::default(), Vec::new());
    for device in devices {
        for port in &device.ports {
            let hardware = netlink::counters(device.index, port.port).with_context(|| {
                format!("{}, port {}: the driver's counters", device.name, port.port)
            })?;
            let netdev = port.netdev.as_deref();
            for (source, counters) in [
                (Source::Hw, hardware.unwrap_or_default()),
                (Source::Port, sysfs.port_counters(&device.name, port.port)),
                (
                    Source::Netdev,
                    netdev.map(rdma::ethtool_counters).unwrap_or_default(),
                ),
            ] {
                list.extend(counters.into_iter().map(|(counter, value)| CounterRow {
                    device: device.name.clone(),
                    port: port.port,
                    source,
                    trouble: trouble(&counter),
                    counter,
                    value,
                }));
            }
        }
    }
    Ok(CounterList { counters: list })
}

impl Counters {
    fn text(&self, list: &CounterList) -> String {
        let head = ["DEVICE", "PORT", "SOURCE", "COUNTER", "VALUE", "MEANING"];
        output::table(&head, list.counters.iter().map(CounterRow::cells))
    }

    pub fn run(self) -> Result<ExitCode> {
        let devices = self.filter.devices()?;
        let read = || counters(&devices);
        let shown = |mut list: CounterList| {
            list.counters.retain(|row| !self.nonzero || row.value != 0);
            list
        };
        let mut last = read()?;
        let Some(interval) = self.watch else {
            let list = shown(last);
            self.format.print(&list, || self.text(&list))?;
            return Ok(ExitCode::SUCCESS);
        };
        let stop = interrupts()?;
        message!(
            "every {}, until Ctrl-C",
            humantime::format_duration(interval)
        );
        let mut next = Instant::now();
        loop {
            next += interval;
            while Instant::now() < next && !stop.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(50));
            }
            // The increase until Ctrl-C is shown, too.
            let now = read()?;
            let list = shown(now.since(&last));
            self.format.stream(&list, || self.text(&list))?;
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
    #[command(flatten)]
    filter: Filter,
    /// Show only queue pairs of /dev/rust_ulp
    #[arg(short, long)]
    ours: bool,
    #[command(flatten)]
    format: FormatArgs,
}

/// `enum ib_qp_type`.
const QP_TYPES: &[&str] = &[
    "smi",
    "gsi",
    "rc",
    "uc",
    "ud",
    "raw_ipv6",
    "raw_ethertype",
    "unknown",
    "raw_packet",
    "xrc_ini",
    "xrc_tgt",
];
/// `enum ib_qp_state`.
const QP_STATES: &[&str] = &[
    "reset", "init", "rtr", "rts", "sqd", "sqe", "err", "unknown",
];

/// The output of `ulp qp`.
#[derive(Serialize, JsonSchema)]
pub struct QpList {
    queue_pairs: Vec<QpRow>,
}

/// A queue pair, as `ulp qp` and `ulp top` show it.
#[derive(Serialize, JsonSchema)]
pub struct QpRow {
    pub device: String,
    pub qp_num: u32,
    #[schemars(extend("enum" = QP_TYPES))]
    pub r#type: &'static str,
    #[schemars(extend("enum" = QP_STATES))]
    pub state: &'static str,
    pub dest_qp_num: Option<u32>,
    pub rq_psn: Option<u32>,
    pub sq_psn: Option<u32>,
    /// Outstanding send requests; known for queue pairs of /dev/rust_ulp.
    pub sends: Option<u32>,
    /// Outstanding receives; known for queue pairs of /dev/rust_ulp.
    pub recvs: Option<u32>,
    /// The process that owns the queue pair.
    pub pid: Option<u32>,
    /// The name of that process.
    pub program: Option<String>,
    /// The kernel module that created the queue pair.
    pub module: Option<String>,
}

impl QpRow {
    /// Describes a queue pair of `device`. `owner` is what fdinfo tells of it.
    pub fn new(device: &str, qp: &QpEntry, owner: Option<(&UlpFile, &FileQp)>) -> Self {
        let pid = owner.and_then(|(file, _)| file.pids.first().copied());
        let pid = pid.or(qp.pid);
        Self {
            device: device.to_owned(),
            qp_num: qp.number,
            r#type: rdma::word(QP_TYPES, qp.kind.into()),
            state: rdma::word(QP_STATES, qp.state.into()),
            dest_qp_num: qp.peer,
            rq_psn: qp.rq_psn,
            sq_psn: qp.sq_psn,
            sends: owner.map(|(_, qp)| qp.sends),
            recvs: owner.map(|(_, qp)| qp.receives),
            pid,
            program: pid.and_then(system::program),
            module: qp.module.clone(),
        }
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.device.clone(),
            self.qp_num.to_string(),
            upper(self.r#type),
            upper(self.state),
            or_dash(self.dest_qp_num),
            or_dash(self.rq_psn),
            or_dash(self.sq_psn),
            or_dash(self.sends),
            or_dash(self.recvs),
            or_dash(self.pid),
            program_or_module(self.program.as_ref(), self.module.as_ref()),
        ]
    }
}

impl Qps {
    pub fn run(self) -> Result<ExitCode> {
        let files = system::files();
        let mut queue_pairs = Vec::new();
        for device in self.filter.devices()? {
            let qps = netlink::queue_pairs(device.index)
                .with_context(|| format!("listing the queue pairs of {}", device.name))?;
            for qp in qps {
                if self.ours && qp.module.as_deref() != Some("rust_ulp") {
                    continue;
                }
                let owner = system::owner(&files, &device.name, qp.number);
                queue_pairs.push(QpRow::new(&device.name, &qp, owner));
            }
        }
        let list = QpList { queue_pairs };
        let head = [
            "DEVICE", "QPN", "TYPE", "STATE", "PEER QPN", "RQ PSN", "SQ PSN", "SENDS", "RECVS",
            "PID", "PROGRAM",
        ];
        self.format.print(&list, || {
            output::table(&head, list.queue_pairs.iter().map(QpRow::cells))
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_was_reset_has_not_risen() {
        let list = |values: &[(&str, u64)]| CounterList {
            counters: values
                .iter()
                .map(|(counter, value)| CounterRow {
                    device: "rxe0".to_owned(),
                    port: 1,
                    source: Source::Hw,
                    counter: (*counter).to_owned(),
                    value: *value,
                    trouble: None,
                })
                .collect(),
        };
        let before = list(&[("sent_pkts", 10), ("rcvd_pkts", 10)]);
        let now = list(&[("sent_pkts", 12), ("rcvd_pkts", 3), ("new", 4)]);
        let risen: Vec<u64> = now
            .since(&before)
            .counters
            .iter()
            .map(|row| row.value)
            .collect();
        assert_eq!(risen, [2, 0, 4]);
    }
}
