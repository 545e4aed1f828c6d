// SPDX-License-Identifier: MIT OR Apache-2.0

//! The messages of two programs over TCP before their queue pairs are connected.
//!
//! The messages are neither authenticated nor encrypted: use them in trusted networks only.
//!
//! All numbers are in network order. A message is a header of 12 bytes and a body:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | magic, `RULP` |
//! | 4 | 2 | version, 1 |
//! | 6 | 2 | type: 1 hello, 2 refusal, 3 ready |
//! | 8 | 4 | length of the body, at most [`MAX_BODY`] |
//!
//! Hello, with which each side says who it is:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 1 | transport: 2 RC, 3 UC, 4 UD |
//! | 1 | 1 | MTU: 1 to 5 for 256 to 4,096 bytes |
//! | 2 | 1 | reads and atomics that it answers at a time |
//! | 3 | 1 | reads and atomics that it has under way at a time |
//! | 4 | 4 | number of its queue pair, 24 bits |
//! | 8 | 4 | number of its first packet, 24 bits |
//! | 12 | 16 | its GID |
//! | 28 | 2 | its LID, 0 with RoCE |
//! | 30 | 2 | number of grants, at most [`MAX_GRANTS`] |
//! | 32 | 24 each | grants: [`RemoteSlice`] (20 bytes), rights (4 bytes, the bits of [`Access`]) |
//!
//! Refusal: 2 bytes reason, 2 bytes zero. Ready has no body.
//!
//! The one who connects says hello; the other one takes its queue pair to Rtr and says hello or
//! refuses; the first takes its own to Rts and says ready; the other one takes its own to Rts and
//! says ready. So each knows that the peer can receive before it sends.

//!
//! # By the connection manager
//!
//! There the manager connects, and what is said goes in the private data of its messages, as
//! [`PrivateData`]; zeros may follow:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 2 | magic, `RU` |
//! | 2 | 1 | version, 1 (upper 4 bits), and number of grants (lower 4 bits) |
//! | 3 | 1 | bytes of data |
//! | 4 | 24 each | grants, as above |
//! | behind | | data, whose meaning is the programs' |
//!
//! A request has room for two grants, or one and 28 bytes of data; an acceptance for eight.

use crate::abi;
use crate::access::Access;
use crate::endpoint::{Endpoint, Mtu};
use crate::gid::Gid;
use crate::remote::RemoteSlice;

pub use crate::refusal::{Refusal, WireError};

/// Grants that one side can tell the other of.
pub const MAX_GRANTS: usize = 64;
/// Bytes of the header.
pub const HEADER_LEN: usize = 12;
/// Bytes of the largest body.
pub const MAX_BODY: usize = HELLO_LEN + MAX_GRANTS * GRANT_LEN;

const MAGIC: [u8; 4] = *b"RULP";
const VERSION: u16 = 1;
const HELLO_LEN: usize = 32;
const GRANT_LEN: usize = RemoteSlice::WIRE_LEN + 4;

const TYPE_HELLO: u16 = 1;
const TYPE_REFUSAL: u16 = 2;
const TYPE_READY: u16 = 3;

/// A type of queue pairs, by its number in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum TransportType {
    /// [`Rc`](crate::qp::Rc).
    Rc = abi::QPT_RC as u8,
    /// [`Uc`](crate::qp::Uc).
    Uc = abi::QPT_UC as u8,
    /// [`Ud`](crate::qp::Ud).
    Ud = abi::QPT_UD as u8,
}

impl TransportType {
    fn from_code(code: u8) -> Option<Self> {
        [Self::Rc, Self::Uc, Self::Ud]
            .into_iter()
            .find(|known| *known as u8 == code)
    }
}

/// The parameters of one side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The type of its queue pair.
    pub transport: TransportType,
    /// The sender's end of the connection.
    pub endpoint: Endpoint,
    /// The sender's grants, with their rights.
    pub grants: Vec<RemoteSlice>,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The parameters of the sender.
    Hello(Hello),
    /// The sender wants no connection.
    Refusal(Refusal),
    /// The sender can send and receive.
    Ready,
}

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    kind: u16,
    len: usize,
}

impl Header {
    /// Reads a header: its length is one that its type can have.
    ///
    /// # Errors
    ///
    /// [`WireError`].
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self, WireError> {
        let mut input = Input(bytes);
        if input.take::<4>()? != MAGIC {
            return Err(WireError::Magic);
        }
        let version = input.u16()?;
        if version != VERSION {
            return Err(WireError::Version(version));
        }
        let kind = input.u16()?;
        let wire_len = input.u32()?;
        let len = usize::try_from(wire_len).map_err(|_| WireError::Length(wire_len))?;
        let fits = match kind {
            TYPE_HELLO => {
                (HELLO_LEN..=MAX_BODY).contains(&len) && (len - HELLO_LEN) % GRANT_LEN == 0
            }
            TYPE_REFUSAL => len == 4,
            TYPE_READY => len == 0,
            kind => return Err(WireError::Type(kind)),
        };
        if !fits {
            return Err(WireError::Length(wire_len));
        }
        Ok(Self { kind, len })
    }

    /// Returns the bytes of the body.
    pub fn body_len(&self) -> usize {
        self.len
    }

    /// Reads the body.
    ///
    /// # Errors
    ///
    /// [`WireError`].
    pub fn decode_body(&self, body: &[u8]) -> Result<Message, WireError> {
        if body.len() != self.len {
            return Err(WireError::Length(
                u32::try_from(body.len()).unwrap_or(u32::MAX),
            ));
        }
        let mut input = Input(body);
        let message = match self.kind {
            TYPE_HELLO => Message::Hello(hello(&mut input)?),
            TYPE_REFUSAL => {
                let reason = Refusal::from_code(input.u16()?);
                if input.u16()? != 0 {
                    return Err(WireError::Field("padding"));
                }
                Message::Refusal(reason)
            }
            _ => Message::Ready,
        };
        if input.0.is_empty() {
            Ok(message)
        } else {
            Err(WireError::Field("number of grants"))
        }
    }
}

fn hello(input: &mut Input<'_>) -> Result<Hello, WireError> {
    let [transport, mtu, responder, initiator] = input.take()?;
    let transport = TransportType::from_code(transport).ok_or(WireError::Field("transport"))?;
    let mtu = Mtu::from_code(mtu).ok_or(WireError::Field("MTU"))?;
    let qp_num = input.u24("queue pair number")?;
    let psn = input.u24("packet number")?;
    let gid = Gid(input.take()?);
    let lid = input.u16()?;
    let count = usize::from(input.u16()?);
    if count > MAX_GRANTS {
        return Err(WireError::Field("number of grants"));
    }
    let grants = input.grants(count)?;
    Ok(Hello {
        transport,
        endpoint: Endpoint {
            qp_num,
            psn,
            gid,
            lid,
            mtu,
            responder,
            initiator,
        },
        grants,
    })
}

impl Message {
    /// Encodes header and body. Grants beyond [`MAX_GRANTS`] are left out; numbers of 24 bits are
    /// cut to that.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, body) = match self {
            Self::Hello(hello) => (TYPE_HELLO, encode_hello(hello)),
            Self::Refusal(reason) => {
                let mut body = reason.code().to_be_bytes().to_vec();
                body.extend([0, 0]);
                (TYPE_REFUSAL, body)
            }
            Self::Ready => (TYPE_READY, Vec::new()),
        };
        let mut out = Vec::with_capacity(HEADER_LEN + body.len());
        out.extend(MAGIC);
        out.extend(VERSION.to_be_bytes());
        out.extend(kind.to_be_bytes());
        // At most MAX_BODY.
        out.extend((body.len() as u32).to_be_bytes());
        out.extend(body);
        out
    }
}

fn encode_hello(hello: &Hello) -> Vec<u8> {
    let end = &hello.endpoint;
    let grants = hello.grants.iter().take(MAX_GRANTS);
    let mut body = Vec::with_capacity(HELLO_LEN + grants.len() * GRANT_LEN);
    body.extend([
        hello.transport as u8,
        end.mtu as u8,
        end.responder,
        end.initiator,
    ]);
    body.extend((end.qp_num & 0xff_ffff).to_be_bytes());
    body.extend((end.psn & 0xff_ffff).to_be_bytes());
    body.extend(end.gid.0);
    body.extend(end.lid.to_be_bytes());
    body.extend((grants.len() as u16).to_be_bytes());
    encode_grants(grants, &mut body);
    body
}

fn encode_grants<'a>(grants: impl Iterator<Item = &'a RemoteSlice>, out: &mut Vec<u8>) {
    for grant in grants {
        let access = grant.access().unwrap_or(Access::empty());
        out.extend(grant.to_bytes());
        out.extend(access.bits().to_be_bytes());
    }
}

/// Private data of a request, acceptance or rejection of the connection manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrivateData {
    /// The sender's grants, with their rights; at most 15.
    pub grants: Vec<RemoteSlice>,
    /// Further data of the program; at most 255 bytes.
    pub data: Vec<u8>,
}

impl PrivateData {
    const MAGIC: [u8; 2] = *b"RU";
    const VERSION: u8 = 1;

    /// Encodes the data. Grants beyond 15 and bytes beyond 255 make it longer than anything can
    /// carry, and are an error there.
    pub fn encode(&self) -> Vec<u8> {
        let count = u8::try_from(self.grants.len()).unwrap_or(u8::MAX).min(15);
        let len = u8::try_from(self.data.len()).unwrap_or(u8::MAX);
        let mut out = Self::MAGIC.to_vec();
        out.extend([(Self::VERSION << 4) | count, len]);
        encode_grants(self.grants.iter(), &mut out);
        out.extend(&self.data);
        out
    }

    /// Reads the bytes, behind which there may be zeros.
    ///
    /// # Errors
    ///
    /// [`WireError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut input = Input(bytes);
        if input.take::<2>()? != Self::MAGIC {
            return Err(WireError::Magic);
        }
        let [first, len] = input.take()?;
        if first >> 4 != Self::VERSION {
            return Err(WireError::Version((first >> 4).into()));
        }
        let grants = input.grants((first & 15).into())?;
        let (data, rest) = input
            .0
            .split_at_checked(len.into())
            .ok_or(WireError::Field("length"))?;
        if rest.iter().any(|byte| *byte != 0) {
            return Err(WireError::Field("padding"));
        }
        Ok(Self {
            grants,
            data: data.to_vec(),
        })
    }
}

/// Bytes that are taken from the front.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (head, tail) = self
            .0
            .split_first_chunk::<N>()
            .ok_or(WireError::Field("length"))?;
        self.0 = tail;
        Ok(*head)
    }

    fn u16(&mut self) -> Result<u16, WireError> {
        Ok(u16::from_be_bytes(self.take()?))
    }

    fn u32(&mut self) -> Result<u32, WireError> {
        Ok(u32::from_be_bytes(self.take()?))
    }

    fn grants(&mut self, count: usize) -> Result<Vec<RemoteSlice>, WireError> {
        let mut grants = Vec::with_capacity(count);
        for _ in 0..count {
            let slice = RemoteSlice::from_bytes(&self.take()?);
            let slice = slice.map_err(|_| WireError::Field("grant"))?;
            let access = Access::from_bits(self.u32()?).ok_or(WireError::Field("rights"))?;
            grants.push(slice.with_access(access));
        }
        Ok(grants)
    }

    fn u24(&mut self, what: &'static str) -> Result<u32, WireError> {
        match self.u32()? {
            n @ 0..=0xff_ffff => Ok(n),
            _ => Err(WireError::Field(what)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode(bytes: &[u8]) -> Result<Message, WireError> {
        let (header, body) = bytes
            .split_first_chunk()
            .ok_or(WireError::Field("length"))?;
        Header::decode(header)?.decode_body(body)
    }

    fn grant() -> impl Strategy<Value = RemoteSlice> {
        (any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>()).prop_map(|(a, l, k, r)| {
            RemoteSlice::new(a, l % (u64::MAX - a).max(1), k)
                .unwrap()
                .with_access(Access::from_bits_truncate(r))
        })
    }

    fn message() -> impl Strategy<Value = Message> {
        let hello = (
            prop::sample::select(vec![
                TransportType::Rc,
                TransportType::Uc,
                TransportType::Ud,
            ]),
            (
                0u32..1 << 24,
                0u32..1 << 24,
                any::<[u8; 16]>(),
                any::<u16>(),
            ),
            (1u8..=5, any::<u8>(), any::<u8>()),
            prop::collection::vec(grant(), 0..=MAX_GRANTS),
        )
            .prop_map(
                |(transport, (qp_num, psn, gid, lid), (mtu, r, i), grants)| {
                    let mtu = Mtu::from_code(mtu).unwrap();
                    Message::Hello(Hello {
                        transport,
                        endpoint: Endpoint::new(qp_num, psn, Gid(gid), mtu)
                            .rd_atomic(r, i)
                            .lid(lid),
                        grants,
                    })
                },
            );
        prop_oneof![
            4 => hello,
            1 => any::<u16>().prop_map(|n| Message::Refusal(Refusal::from_code(n))),
            1 => Just(Message::Ready),
        ]
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(message in message()) {
            let bytes = message.encode();
            prop_assert!(bytes.len() <= HEADER_LEN + MAX_BODY);
            prop_assert_eq!(decode(&bytes), Ok(message));
        }

        #[test]
        fn any_bytes_decode_to_something_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }

        #[test]
        fn what_is_decoded_is_encoded(message in message(), at: prop::sample::Index, to: u8) {
            // One byte wrong: an error, or another message that stands for just these bytes.
            let mut bytes = message.encode();
            let at = at.index(bytes.len());
            bytes[at] = to;
            if let Ok(other) = decode(&bytes) {
                prop_assert_eq!(other.encode(), bytes);
            }
        }

        #[test]
        fn cut_messages_are_errors(message in message(), at: prop::sample::Index) {
            let bytes = message.encode();
            prop_assert!(decode(&bytes[..at.index(bytes.len())]).is_err());
        }
    }

    proptest! {
        #[test]
        fn private_data_comes_back(
            grants in prop::collection::vec(grant(), 0..=15),
            data in prop::collection::vec(any::<u8>(), 0..=255),
            zeros in 0usize..64,
            cut: prop::sample::Index,
        ) {
            let said = PrivateData { grants, data };
            let bytes = said.encode();
            let mut padded = bytes.clone();
            padded.resize(bytes.len() + zeros, 0);
            prop_assert_eq!(PrivateData::decode(&padded), Ok(said));
            padded.push(1);
            prop_assert!(PrivateData::decode(&padded).is_err());
            prop_assert!(PrivateData::decode(&bytes[..cut.index(bytes.len())]).is_err());
        }

        #[test]
        fn any_private_data_is_something_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..224)) {
            let mut ours = b"RU".to_vec();
            ours.extend(&bytes);
            let _ = (PrivateData::decode(&bytes), PrivateData::decode(&ours));
        }
    }

    #[test]
    fn private_data_fits_where_it_goes() {
        let grant = RemoteSlice::new(0x1000, 0x2000, 0x3000)
            .unwrap()
            .with_access(Access::REMOTE_WRITE);
        let said = |grants, data: &[u8]| PrivateData {
            grants: vec![grant; grants],
            data: data.to_vec(),
        };
        assert!(said(2, b"four").encode().len() == abi::CM_REQ_PRIVATE_MAX);
        assert_eq!(said(1, &[0; 28]).encode().len(), abi::CM_REQ_PRIVATE_MAX);
        assert_eq!(said(8, b"").encode().len(), abi::CM_REP_PRIVATE_MAX);
        // Too much of it is never taken for less.
        assert!(said(16, b"").encode().len() > abi::CM_PRIVATE_MAX);
        assert!(said(0, &[0; 256]).encode().len() > abi::CM_PRIVATE_MAX);
        let mut want =
            b"RU\x11\x02\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\x20\0\0\0\x30\0\0\0\0\x02hi".to_vec();
        assert_eq!(said(1, b"hi").encode(), want);
        want[2] = 0x21;
        assert_eq!(PrivateData::decode(&want), Err(WireError::Version(2)));
        assert_eq!(PrivateData::decode(&[0; 56]), Err(WireError::Magic));
    }

    #[test]
    fn the_number_of_grants_is_that_of_the_bytes() {
        let grant = RemoteSlice::new(1, 2, 3)
            .unwrap()
            .with_access(Access::all());
        let endpoint = Endpoint::new(1, 2, Gid([3; 16]), Mtu::B256);
        let hello = Message::Hello(Hello {
            transport: TransportType::Rc,
            endpoint,
            grants: vec![grant; 2],
        });
        let bytes = hello.encode();
        assert_eq!(decode(&bytes), Ok(hello));
        for count in [0, 1, 3, 64, 65, u16::MAX] {
            let mut bytes = bytes.clone();
            bytes[HEADER_LEN + 30..HEADER_LEN + 32].copy_from_slice(&count.to_be_bytes());
            assert!(
                matches!(decode(&bytes), Err(WireError::Field(_))),
                "{count}"
            );
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_table() {
        let hello = Message::Hello(Hello {
            transport: TransportType::Rc,
            endpoint: Endpoint::new(0x010203, 0x040506, Gid([7; 16]), Mtu::B1024)
                .rd_atomic(9, 8)
                .lid(0x0a0b),
            grants: vec![RemoteSlice::new(0x1000, 0x2000, 0x3000)
                .unwrap()
                .with_access(Access::REMOTE_WRITE)],
        });
        let mut want =
            b"RULP\0\x01\0\x01\0\0\0\x38\x02\x03\x09\x08\0\x01\x02\x03\0\x04\x05\x06".to_vec();
        want.extend([7; 16]);
        want.extend(b"\x0a\x0b\0\x01\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\x20\0\0\0\x30\0\0\0\0\x02");
        assert_eq!(hello.encode(), want);
        assert_eq!(
            Header::decode(b"RULP\0\x01\0\x01\xff\xff\xff\xff"),
            Err(WireError::Length(u32::MAX))
        );
        assert_eq!(
            Header::decode(b"RULP\0\x02\0\x01\0\0\0\x20"),
            Err(WireError::Version(2))
        );
        assert_eq!(Header::decode(b"HTTP/1.1 200"), Err(WireError::Magic));
    }
}
