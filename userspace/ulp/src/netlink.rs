// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests to the kernel over netlink: to the RDMA core, to ethtool and to data center bridging.
//!
//! The crate `neli` 0.7 could open the sockets and parse the attributes, about 70 of these lines, for
//! six more crates. It knows neither the attributes of the RDMA core and of ethtool nor `struct
//! dcbmsg`, so the constants and the requests would remain; and the loop over the answers, since its
//! router has a thread of its own and waits without a time-out.

use nix::errno::Errno;
use nix::sys::socket::{
    recv, sendto, setsockopt, socket, sockopt, AddressFamily, MsgFlags, NetlinkAddr, SockFlag,
    SockProtocol, SockType,
};
use nix::sys::time::TimeVal;
use std::os::fd::{AsRawFd, OwnedFd};

type Result<T> = std::result::Result<T, Errno>;

const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_DUMP: u16 = 0x300;
const NLA_F_NESTED: u16 = 1 << 15;
const NLA_TYPE_MASK: u16 = 0x3fff;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// Bytes of `struct nlmsghdr`.
const HEADER: usize = 16;
/// How often a dump is asked for, if objects come and go meanwhile.
const ATTEMPTS: u32 = 10;

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.get(..N)?.try_into().ok()
}

/// Reads a u8, u16, u32 or u64 in host order.
fn integer(bytes: &[u8]) -> u64 {
    match bytes.len() {
        1 => bytes.iter().map(|b| u64::from(*b)).sum(),
        2 => number(bytes, 0).map_or(0, u16::from_ne_bytes).into(),
        4 => number(bytes, 0).map_or(0, u32::from_ne_bytes).into(),
        _ => number(bytes, 0).map_or(0, u64::from_ne_bytes),
    }
}

/// Reads a text that ends with NUL.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned()
}

/// Iterates over the attributes in `bytes`, as type and contents. A malformed attribute ends the
/// iteration.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16::from_ne_bytes(number(bytes, 0)?));
        let kind = u16::from_ne_bytes(number(bytes, 2)?) & NLA_TYPE_MASK;
        let body = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, body))
    })
}

/// Returns the contents of the first attribute of a type.
fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes)
        .find(|(of, _)| *of == kind)
        .map(|(_, body)| body)
}

/// Appends an attribute.
fn put(message: &mut Vec<u8>, kind: u16, body: &[u8]) {
    // Names and numbers: short.
    message.extend(((body.len() + 4) as u16).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(body);
    message.resize(message.len().next_multiple_of(4), 0);
}

/// The bodies of the answers to a request.
#[derive(Debug, Default, PartialEq)]
struct Answers {
    bodies: Vec<Vec<u8>>,
    /// The list changed while the kernel sent it: entries may be missing or double.
    is_interrupted: bool,
}

impl Answers {
    /// Adds the messages of a datagram. Returns whether the last of the answer was among them; fails
    /// with the error that the kernel reports, or with [`Errno::EBADMSG`] for a truncated message.
    fn add(&mut self, mut datagram: &[u8]) -> Result<bool> {
        while !datagram.is_empty() {
            let len = number(datagram, 0).map(u32::from_ne_bytes);
            let kind = number(datagram, 4).map(u16::from_ne_bytes);
            let flags = number(datagram, 6).map_or(0, u16::from_ne_bytes);
            let len = len.ok_or(Errno::EBADMSG)? as usize;
            let body = datagram.get(HEADER..len).ok_or(Errno::EBADMSG)?;
            self.is_interrupted |= flags & NLM_F_DUMP_INTR != 0;
            match kind {
                // Both have a status, negative for an error. A dump that fails ends with NLMSG_DONE.
                Some(NLMSG_ERROR | NLMSG_DONE) => {
                    return match number(body, 0).map(i32::from_ne_bytes) {
                        None => Err(Errno::EBADMSG),
                        Some(error @ ..0) => Err(Errno::from_raw(error.wrapping_neg())),
                        Some(_) => Ok(true),
                    };
                }
                _ => self.bodies.push(body.to_vec()),
            }
            let next = len.next_multiple_of(4);
            datagram = datagram.get(next..).unwrap_or_default();
        }
        Ok(false)
    }
}

/// Asks until an answer was not interrupted. Fails with [`Errno::EINTR`] if none was.
fn uninterrupted(mut ask: impl FnMut() -> Result<Answers>) -> Result<Vec<Vec<u8>>> {
    for _ in 0..ATTEMPTS {
        let answers = ask()?;
        if !answers.is_interrupted {
            return Ok(answers.bodies);
        }
    }
    Err(Errno::EINTR)
}

struct Netlink {
    fd: OwnedFd,
}

impl Netlink {
    fn open(protocol: SockProtocol) -> Result<Self> {
        let fd = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            protocol,
        )?;
        setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::new(10, 0))?;
        Ok(Self { fd })
    }

    /// Sends a message, and returns the bodies of the answers.
    fn ask(&self, kind: u16, flags: u16, body: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut message = Vec::with_capacity(HEADER + body.len());
        message.extend(((HEADER + body.len()) as u32).to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend((NLM_F_REQUEST | NLM_F_ACK | flags).to_ne_bytes());
        message.extend([0; 8]);
        message.extend(body);
        let mut buffer = vec![0; 1 << 16];
        uninterrupted(|| {
            let kernel = NetlinkAddr::new(0, 0);
            sendto(self.fd.as_raw_fd(), &message, &kernel, MsgFlags::empty())?;
            let mut answers = Answers::default();
            loop {
                // With MSG_TRUNC, the call returns the length of the whole datagram.
                let n = match recv(self.fd.as_raw_fd(), &mut buffer, MsgFlags::MSG_TRUNC) {
                    Err(Errno::EINTR) => continue,
                    n => n?,
                };
                if answers.add(buffer.get(..n).ok_or(Errno::EMSGSIZE)?)? {
                    return Ok(answers);
                }
            }
        })
    }
}

// --- the RDMA core --------------------------------------------------------------

const RDMA_NL_NLDEV: u16 = 5;
const NLDEV_CMD_GET: u16 = 1;
const NLDEV_CMD_PORT_GET: u16 = 5;
const NLDEV_CMD_RES_QP_GET: u16 = 10;
const NLDEV_CMD_STAT_GET: u16 = 17;
const NLDEV_DEV_INDEX: u16 = 1;
const NLDEV_DEV_NAME: u16 = 2;
const NLDEV_PORT_INDEX: u16 = 3;
const NLDEV_RES_QP: u16 = 19;
const NLDEV_RES_LQPN: u16 = 21;
const NLDEV_RES_RQPN: u16 = 22;
const NLDEV_RES_RQ_PSN: u16 = 23;
const NLDEV_RES_SQ_PSN: u16 = 24;
const NLDEV_RES_TYPE: u16 = 26;
const NLDEV_RES_STATE: u16 = 27;
const NLDEV_RES_PID: u16 = 28;
const NLDEV_RES_KERN_NAME: u16 = 29;
const NLDEV_NDEV_NAME: u16 = 51;
const NLDEV_DEV_PROTOCOL: u16 = 67;
const NLDEV_STAT_HWCOUNTERS: u16 = 80;
const NLDEV_STAT_ENTRY: u16 = 81;
const NLDEV_STAT_ENTRY_NAME: u16 = 82;
const NLDEV_STAT_ENTRY_VALUE: u16 = 83;

fn rdma(command: u16, flags: u16, numbers: &[(u16, u32)]) -> Result<Vec<Vec<u8>>> {
    let mut body = Vec::new();
    for (kind, value) in numbers {
        put(&mut body, *kind, &value.to_ne_bytes());
    }
    let socket = Netlink::open(SockProtocol::NetlinkRDMA)?;
    socket.ask((RDMA_NL_NLDEV << 10) | command, flags, &body)
}

/// An RDMA device as the RDMA core lists it.
pub struct DeviceEntry {
    pub index: u32,
    pub name: String,
    /// "ib", "roce", "iw", "opa" or "usnic".
    pub protocol: Option<String>,
}

/// Lists the RDMA devices of this network namespace; none where the kernel has no RDMA core.
pub fn devices() -> Result<Vec<DeviceEntry>> {
    let answers = match rdma(NLDEV_CMD_GET, NLM_F_DUMP, &[]) {
        Err(Errno::EPROTONOSUPPORT | Errno::ECONNREFUSED) => Vec::new(),
        answers => answers?,
    };
    let entry = |answer: &Vec<u8>| {
        Some(DeviceEntry {
            index: attribute(answer, NLDEV_DEV_INDEX).map(integer)? as u32,
            name: attribute(answer, NLDEV_DEV_NAME).map(text)?,
            protocol: attribute(answer, NLDEV_DEV_PROTOCOL).map(text),
        })
    };
    Ok(answers.iter().filter_map(entry).collect())
}

/// Returns the network interface of a port, if it is in this network namespace.
pub fn port_interface(device: u32, port: u32) -> Result<Option<String>> {
    let numbers = [(NLDEV_DEV_INDEX, device), (NLDEV_PORT_INDEX, port)];
    let answers = rdma(NLDEV_CMD_PORT_GET, 0, &numbers)?;
    let name = |answer: &Vec<u8>| attribute(answer, NLDEV_NDEV_NAME).map(text);
    Ok(answers.iter().find_map(name))
}

/// A queue pair as the RDMA core lists it.
#[derive(Default)]
pub struct QpEntry {
    pub number: u32,
    pub peer: Option<u32>,
    /// `enum ib_qp_type`.
    pub kind: u8,
    /// `enum ib_qp_state`.
    pub state: u8,
    pub rq_psn: Option<u32>,
    pub sq_psn: Option<u32>,
    pub pid: Option<u32>,
    /// The kernel module that owns it, if no process does.
    pub module: Option<String>,
}

/// Lists the queue pairs of a device.
pub fn queue_pairs(device: u32) -> Result<Vec<QpEntry>> {
    objects(device, &QP, |entry| {
        let get = |kind| attribute(entry, kind).map(|body| integer(body) as u32);
        QpEntry {
            number: get(NLDEV_RES_LQPN).unwrap_or(0),
            peer: get(NLDEV_RES_RQPN),
            kind: get(NLDEV_RES_TYPE).unwrap_or(0) as u8,
            state: get(NLDEV_RES_STATE).unwrap_or(0) as u8,
            rq_psn: get(NLDEV_RES_RQ_PSN),
            sq_psn: get(NLDEV_RES_SQ_PSN),
            pid: get(NLDEV_RES_PID),
            module: attribute(entry, NLDEV_RES_KERN_NAME).map(text),
        }
    })
}

/// A kind of object that the RDMA core tracks.
pub struct ResourceKind {
    /// Its name, as `rdma res` prints it.
    pub name: &'static str,
    command: u16,
    /// The attributes of a table of them, and of an object in it.
    table: u16,
    entry: u16,
}

/// The kinds of objects, with the numbers of `enum rdma_nldev_command` and `enum rdma_nldev_attr`.
pub const RESOURCES: &[ResourceKind] = &[
    kind("pd", 14, 46),
    kind("cq", 12, 35),
    QP,
    kind("mr", 13, 40),
    kind("cm_id", 11, 30),
];

const QP: ResourceKind = kind("qp", NLDEV_CMD_RES_QP_GET, NLDEV_RES_QP);

const fn kind(name: &'static str, command: u16, table: u16) -> ResourceKind {
    ResourceKind {
        name,
        command,
        table,
        // It follows in the enum.
        entry: table + 1,
    }
}

/// Who has an object.
pub struct Resource {
    pub pid: Option<u32>,
    /// The kernel module that owns it, if no process does.
    pub module: Option<String>,
}

/// Lists the owners of all objects of a kind that a device has.
pub fn resources(device: u32, kind: &ResourceKind) -> Result<Vec<Resource>> {
    objects(device, kind, |entry| Resource {
        pid: attribute(entry, NLDEV_RES_PID).map(|body| integer(body) as u32),
        module: attribute(entry, NLDEV_RES_KERN_NAME).map(text),
    })
}

/// Lists the objects of a kind that a device has, each made of its attributes by `of`.
fn objects<T>(device: u32, kind: &ResourceKind, of: impl Fn(&[u8]) -> T) -> Result<Vec<T>> {
    let answers = rdma(kind.command, NLM_F_DUMP, &[(NLDEV_DEV_INDEX, device)])?;
    let tables = answers
        .iter()
        .filter_map(|answer| attribute(answer, kind.table));
    let entries = tables.flat_map(attributes);
    let entries = entries.filter(|(number, _)| *number == kind.entry);
    Ok(entries.map(|(_, entry)| of(entry)).collect())
}

/// Returns the hardware counters of a port, with the driver's names, or [`None`] if the driver has
/// none.
pub fn counters(device: u32, port: u32) -> Result<Option<Vec<(String, u64)>>> {
    let numbers = [(NLDEV_DEV_INDEX, device), (NLDEV_PORT_INDEX, port)];
    let answers = match rdma(NLDEV_CMD_STAT_GET, 0, &numbers) {
        Err(Errno::EOPNOTSUPP | Errno::EINVAL) => return Ok(None),
        answers => answers?,
    };
    let mut counters = Vec::new();
    for answer in &answers {
        let table = attribute(answer, NLDEV_STAT_HWCOUNTERS).unwrap_or_default();
        for (_, entry) in attributes(table).filter(|(kind, _)| *kind == NLDEV_STAT_ENTRY) {
            let name = attribute(entry, NLDEV_STAT_ENTRY_NAME).map(text);
            let value = attribute(entry, NLDEV_STAT_ENTRY_VALUE).map(integer);
            counters.extend(name.zip(value));
        }
    }
    Ok(Some(counters))
}

// --- network interfaces -----------------------------------------------------------

const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const ETHTOOL_MSG_PAUSE_GET: u8 = 21;
const ETHTOOL_A_PAUSE_HEADER: u16 = 1;
const ETHTOOL_A_HEADER_DEV_NAME: u16 = 2;
const ETHTOOL_A_PAUSE_RX: u16 = 3;
const ETHTOOL_A_PAUSE_TX: u16 = 4;
const RTM_GETDCB: u16 = 78;
const DCB_CMD_IEEE_GET: u8 = 21;
const DCB_ATTR_IFNAME: u16 = 1;
const DCB_ATTR_IEEE: u16 = 13;
const DCB_ATTR_IEEE_PFC: u16 = 2;

fn nul(name: &str) -> Vec<u8> {
    name.bytes().chain([0]).collect()
}

/// Returns whether an interface obeys pause frames, and whether it sends them.
pub fn pause(interface: &str) -> Result<(bool, bool)> {
    // struct genlmsghdr: command, version, reserved.
    let generic = |command| vec![command, 1, 0, 0];
    let socket = Netlink::open(SockProtocol::NetlinkGeneric)?;
    let mut body = generic(CTRL_CMD_GETFAMILY);
    put(&mut body, CTRL_ATTR_FAMILY_NAME, &nul("ethtool"));
    let answers = socket.ask(GENL_ID_CTRL, 0, &body)?;
    let behind = |answers: &[Vec<u8>], n: usize| {
        let body = answers.first().and_then(|answer| answer.get(n..));
        body.map(<[u8]>::to_vec).ok_or(Errno::ENODATA)
    };
    let family = behind(&answers, 4)?;
    let family = attribute(&family, CTRL_ATTR_FAMILY_ID).ok_or(Errno::ENODATA)?;
    let mut header = Vec::new();
    put(&mut header, ETHTOOL_A_HEADER_DEV_NAME, &nul(interface));
    let mut body = generic(ETHTOOL_MSG_PAUSE_GET);
    put(&mut body, ETHTOOL_A_PAUSE_HEADER | NLA_F_NESTED, &header);
    let answer = behind(&socket.ask(integer(family) as u16, 0, &body)?, 4)?;
    let on = |kind| attribute(&answer, kind).map(|body| integer(body) != 0);
    match (on(ETHTOOL_A_PAUSE_RX), on(ETHTOOL_A_PAUSE_TX)) {
        (Some(rx), Some(tx)) => Ok((rx, tx)),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

/// Returns the priorities of an interface that have flow control: bit n for priority n.
pub fn priority_flow_control(interface: &str) -> Result<u8> {
    let socket = Netlink::open(SockProtocol::NetlinkRoute)?;
    // struct dcbmsg: family, command, padding.
    let mut body = vec![0, DCB_CMD_IEEE_GET, 0, 0];
    put(&mut body, DCB_ATTR_IFNAME, &nul(interface));
    let answers = socket.ask(RTM_GETDCB, 0, &body)?;
    let answer = answers.first().and_then(|answer| answer.get(4..));
    let ieee = attribute(answer.ok_or(Errno::EOPNOTSUPP)?, DCB_ATTR_IEEE);
    let pfc = ieee.and_then(|ieee| attribute(ieee, DCB_ATTR_IEEE_PFC));
    // struct ieee_pfc: capable, enabled, and more.
    pfc.and_then(|pfc| pfc.get(1).copied())
        .ok_or(Errno::EOPNOTSUPP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn attributes_are_found_again() {
        let mut message = Vec::new();
        put(&mut message, 1, &7u32.to_ne_bytes());
        put(&mut message, 2 | NLA_F_NESTED, b"name\0");
        put(&mut message, 3, &[9]);
        let kinds: Vec<u16> = attributes(&message).map(|(kind, _)| kind).collect();
        assert_eq!(kinds, [1, 2, 3]);
        assert_eq!(attribute(&message, 1).map(integer), Some(7));
        assert_eq!(attribute(&message, 2).map(text).as_deref(), Some("name"));
        assert_eq!(attribute(&message, 3).map(integer), Some(9));
        assert_eq!(attribute(&message, 4), None);
    }

    /// A message with this body.
    fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
        let mut message = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend(flags.to_ne_bytes());
        message.extend([0; 8]);
        message.extend(body);
        message.resize(message.len().next_multiple_of(4), 0);
        message
    }

    #[test]
    fn an_answer_ends_with_its_status() {
        let status = |kind, status: i32| message(kind, 0, &status.to_ne_bytes());
        let mut answers = Answers::default();
        let entries = [message(99, 2, b"one"), message(99, 2, b"three")].concat();
        assert_eq!(answers.add(&entries), Ok(false));
        assert_eq!(answers.add(&status(NLMSG_DONE, 0)), Ok(true));
        assert_eq!(answers.bodies, [&b"one"[..], b"three"]);
        assert!(!answers.is_interrupted);
        for kind in [NLMSG_ERROR, NLMSG_DONE] {
            let mut answers = Answers::default();
            assert_eq!(answers.add(&status(kind, 0)), Ok(true));
            let failed = [entries.clone(), status(kind, -libc::EPERM)].concat();
            assert_eq!(answers.add(&failed), Err(Errno::EPERM));
            // The status is missing.
            assert_eq!(answers.add(&message(kind, 0, &[])), Err(Errno::EBADMSG));
        }
        for len in 1..20 {
            let part = entries.get(..len).unwrap();
            let result = Answers::default().add(part);
            assert_eq!(
                result,
                if len == 19 {
                    Ok(false)
                } else {
                    Err(Errno::EBADMSG)
                }
            );
        }
    }

    #[test]
    fn an_interrupted_dump_is_repeated() {
        let datagram = |flags, status: i32| {
            let done = message(NLMSG_DONE, flags, &status.to_ne_bytes());
            [message(99, flags, b"entry"), done].concat()
        };
        for interrupted in [0, 1, ATTEMPTS - 1, ATTEMPTS] {
            let mut asked = 0;
            let result = uninterrupted(|| {
                let flags = if asked < interrupted {
                    NLM_F_DUMP_INTR
                } else {
                    0
                };
                asked += 1;
                let mut answers = Answers::default();
                assert_eq!(answers.add(&datagram(flags, 0)), Ok(true));
                Ok(answers)
            });
            assert_eq!(asked, ATTEMPTS.min(interrupted + 1));
            match interrupted {
                ATTEMPTS => assert_eq!(result, Err(Errno::EINTR)),
                _ => assert_eq!(result, Ok(vec![b"entry".to_vec()])),
            }
        }
        let mut asked = 0;
        let failed = uninterrupted(|| {
            asked += 1;
            Answers::default().add(&datagram(NLM_F_DUMP_INTR, -libc::EPERM))?;
            Ok(Answers::default())
        });
        assert_eq!((failed, asked), (Err(Errno::EPERM), 1));
    }

    proptest! {
        #[test]
        fn nonsense_ends(bytes: Vec<u8>) {
            // An attribute has four bytes at least.
            prop_assert!(attributes(&bytes).count() <= bytes.len() / 4);
        }
    }
}
