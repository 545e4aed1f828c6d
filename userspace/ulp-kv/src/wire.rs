// SPDX-License-Identifier: MIT OR Apache-2.0

//! The messages between client and server. No I/O.
//!
//! A message of a client has a header and up to [`MAX_COUNT`] requests. The server's message has an
//! answer to each of them, in the same order. A number has 8 bytes in little-endian order, unless
//! said otherwise; requests and answers begin at multiples of 8.

use crate::layout::{MAX_KEY, MAX_VALUE};

/// Requests of a message, at most.
pub const MAX_COUNT: usize = 64;
/// Bytes of the header of a client's message: number and count (32 bits each), done, epoch.
pub const HEADER: usize = 24;
/// Bytes of a get before its key: operation, condition, length of the key (8 bits each), 0, length
/// of the value (32 bits).
const GET: usize = 8;
/// Bytes of a write before its key: as a get, sequence, version, argument.
const WRITE: usize = 32;
/// Bytes of the header of a server's message: number and count.
pub const ANSWERS_HEADER: usize = 8;
/// Bytes of an answer before its data: status and length of the data (32 bits each), version, slot.
pub const ANSWER: usize = 24;
/// Bytes of an answer that brings no value, at most.
pub const ANSWER_MOST: usize = ANSWER + 8;
/// Bytes of a message in either direction, at most, unless one request or answer is longer.
pub const MESSAGE: usize = 32 << 10;
/// Messages of a client that the server has not answered, at most.
pub const WINDOW: u32 = 4;

/// Returns the bytes of the longest message of a client.
pub fn message_len(max_value: u32) -> usize {
    MESSAGE.max(HEADER + (WRITE + MAX_KEY + max_value as usize).next_multiple_of(8))
}

/// What a write depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// The write happens in any case.
    #[default]
    Always,
    /// The key must not exist.
    Absent,
    /// The key must have the value of this version.
    Version(u64),
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write<'a> {
    /// To set a value, which the server deletes after `ttl` seconds; 0 is never.
    Put {
        /// The value.
        value: &'a [u8],
        /// Seconds.
        ttl: u32,
    },
    /// To delete the key.
    Delete,
    /// To set a value with all that it had on another server. It is done already if the key has this
    /// version or a later one.
    Move {
        /// The value.
        value: &'a [u8],
        /// Its version.
        version: u64,
        /// The second, since the epoch of Unix, at which the server deletes the key; 0 is never.
        expires: u32,
    },
    /// To add to the decimal number that is the value; a key that does not exist counts as 0.
    Add(i64),
}

/// A request to change a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Number of the request among those of its client.
    pub sequence: u64,
    /// The condition.
    pub condition: Condition,
    /// The key.
    pub key: &'a [u8],
    /// What to do with it.
    pub write: Write<'a>,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask<'a> {
    /// The value of this key.
    Get(&'a [u8]),
    /// A change.
    Write(Request<'a>),
}

/// The header of a client's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Number of the message among those of its connection, for the answer.
    pub number: u32,
    /// Requests that follow.
    pub count: u32,
    /// The client has the replies to all requests before this one, and repeats none of them.
    pub done: u64,
    /// The epoch of the list of members that the client has.
    pub epoch: u64,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// It is done.
    Done = 0,
    /// The key does not exist, or the condition is not met; nothing was changed.
    Unmet = 1,
    /// There is no memory for the record.
    NoMemory = 2,
    /// There is no slot for the key.
    NoSlot = 3,
    /// The value to add to is no number, or the sum is too large.
    NoNumber = 4,
    /// The list of members has another epoch; nothing was changed.
    Epoch = 5,
    /// The request makes no sense, or the value is too long.
    Invalid = 6,
    /// The request was made before, and its reply is forgotten.
    Forgotten = 7,
    /// The value is long, or the message is full: the client may read the record itself.
    Large = 8,
}

impl Status {
    fn decode(word: u32) -> Option<Self> {
        Some(match word {
            0 => Self::Done,
            1 => Self::Unmet,
            2 => Self::NoMemory,
            3 => Self::NoSlot,
            4 => Self::NoNumber,
            5 => Self::Epoch,
            6 => Self::Invalid,
            7 => Self::Forgotten,
            8 => Self::Large,
            _ => return None,
        })
    }
}

/// The reply to a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// As [`Request::sequence`].
    pub sequence: u64,
    /// How it ended.
    pub status: Status,
    /// The version that the key has now; 0 if it does not exist.
    pub version: u64,
    /// The word of the key's slot; 0 if it does not exist.
    pub slot: u64,
    /// The sum.
    pub number: i64,
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Takes bytes off the front.
fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(taken)
}

/// Returns the 32 bits at `at`.
fn half(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

impl Header {
    /// Returns the bytes of the header.
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let first = (u64::from(self.count) << 32) | u64::from(self.number);
        let words = [first, self.done, self.epoch];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads a message, if all of it makes sense.
    pub fn decode(bytes: &[u8]) -> Option<(Self, Vec<Ask<'_>>)> {
        let mut rest = bytes;
        let head = take(&mut rest, HEADER)?;
        let header = Self {
            number: half(head, 0)?,
            count: half(head, 4)?,
            done: word(head, 8)?,
            epoch: word(head, 16)?,
        };
        let count = header.count as usize;
        if count == 0 || count > MAX_COUNT {
            return None;
        }
        let mut asks = Vec::with_capacity(count);
        for _ in 0..count {
            asks.push(Ask::decode(&mut rest)?);
        }
        rest.is_empty().then_some((header, asks))
    }
}

impl<'a> Ask<'a> {
    /// Returns the bytes of the request.
    pub fn len(&self) -> usize {
        let len = match self {
            Self::Get(key) => GET + key.len(),
            Self::Write(request) => {
                let value = match request.write {
                    Write::Put { value, .. } | Write::Move { value, .. } => value.len(),
                    Write::Delete | Write::Add(_) => 0,
                };
                WRITE + request.key.len() + value
            }
        };
        len.next_multiple_of(8)
    }

    /// Appends the bytes of the request.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let end = bytes.len() + self.len();
        match *self {
            Self::Get(key) => {
                bytes.extend([5, 0, key.len() as u8, 0, 0, 0, 0, 0]);
                bytes.extend(key);
            }
            Self::Write(Request {
                sequence,
                condition,
                key,
                write,
            }) => {
                let (operation, argument, value): (u8, u64, &[u8]) = match write {
                    Write::Put { value, ttl } => (1, ttl.into(), value),
                    Write::Delete => (2, 0, &[]),
                    Write::Add(by) => (3, by as u64, &[]),
                    Write::Move { value, expires, .. } => (4, expires.into(), value),
                };
                let (condition, version) = match (write, condition) {
                    (Write::Move { version, .. }, _) => (0, version),
                    (_, Condition::Always) => (0, 0),
                    (_, Condition::Absent) => (1, 0),
                    (_, Condition::Version(version)) => (2, version),
                };
                // The lengths were checked.
                bytes.extend([operation, condition, key.len() as u8, 0]);
                bytes.extend((value.len() as u32).to_le_bytes());
                for word in [sequence, version, argument] {
                    bytes.extend(word.to_le_bytes());
                }
                bytes.extend(key);
                bytes.extend(value);
            }
        }
        bytes.resize(end, 0);
    }

    /// Takes a request off the front, if it makes sense.
    fn decode(bytes: &mut &'a [u8]) -> Option<Self> {
        let before = bytes.len();
        let head = take(bytes, GET)?;
        let [operation, condition, key_len, 0, len @ ..] = *head.first_chunk::<8>()? else {
            return None;
        };
        let (key_len, value_len) = (usize::from(key_len), u32::from_le_bytes(len) as usize);
        if key_len == 0 || value_len > MAX_VALUE {
            return None;
        }
        let ask = if operation == 5 {
            let key = take(bytes, key_len)?;
            (condition == 0 && value_len == 0).then_some(Self::Get(key))?
        } else {
            let words = take(bytes, WRITE - GET)?;
            let (version, argument) = (word(words, 8)?, word(words, 16)?);
            let (key, value) = (take(bytes, key_len)?, take(bytes, value_len)?);
            Self::Write(Request {
                sequence: word(words, 0)?,
                condition: match condition {
                    0 => Condition::Always,
                    1 => Condition::Absent,
                    2 => Condition::Version(version),
                    _ => return None,
                },
                key,
                write: match operation {
                    1 => Write::Put {
                        value,
                        ttl: u32::try_from(argument).ok()?,
                    },
                    2 if value.is_empty() => Write::Delete,
                    3 if value.is_empty() => Write::Add(argument as i64),
                    4 if condition == 0 => Write::Move {
                        value,
                        version,
                        expires: u32::try_from(argument).ok()?,
                    },
                    _ => return None,
                },
            })
        };
        let len = before - bytes.len();
        take(bytes, len.next_multiple_of(8) - len)?;
        Some(ask)
    }
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// How it ended.
    pub status: Status,
    /// The version that the key has now; 0 if it does not exist.
    pub version: u64,
    /// The word of the key's slot; 0 if it does not exist.
    pub slot: u64,
    /// The value of a get; the sum, with 8 bytes, of an addition.
    pub data: &'a [u8],
}

/// Returns the header of a server's message.
pub fn answers(number: u32, count: u32) -> [u8; ANSWERS_HEADER] {
    ((u64::from(count) << 32) | u64::from(number)).to_le_bytes()
}

/// Takes the header of a server's message off the front: number and count.
pub fn take_answers(bytes: &mut &[u8]) -> Option<(u32, u32)> {
    let head = take(bytes, ANSWERS_HEADER)?;
    Some((half(head, 0)?, half(head, 4)?))
}

impl<'a> Answer<'a> {
    /// Makes an answer about a key that does not exist, or of which nothing is said.
    pub fn new(status: Status) -> Self {
        Self {
            status,
            version: 0,
            slot: 0,
            data: &[],
        }
    }

    /// Appends the bytes of an answer with `len` bytes of data, which the caller appends.
    pub fn encode_head(&self, len: usize, bytes: &mut Vec<u8>) {
        let mut head = [0; ANSWER];
        let first = ((len as u64) << 32) | self.status as u64;
        for (to, word) in head
            .chunks_exact_mut(8)
            .zip([first, self.version, self.slot])
        {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes.extend(head);
    }

    /// Appends the bytes of the answer.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        self.encode_head(self.data.len(), bytes);
        bytes.extend(self.data);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }

    /// Takes an answer off the front, if it makes sense.
    pub fn decode(bytes: &mut &'a [u8]) -> Option<Self> {
        let head = take(bytes, ANSWER)?;
        let len = half(head, 4)? as usize;
        let data = take(bytes, len)?;
        take(bytes, len.checked_next_multiple_of(8)? - len)?;
        Some(Self {
            status: Status::decode(half(head, 0)?)?,
            version: word(head, 8)?,
            slot: word(head, 16)?,
            data,
        })
    }
}

impl Reply {
    /// Makes a reply about a key that does not exist.
    pub fn new(sequence: u64, status: Status) -> Self {
        Self {
            sequence,
            status,
            version: 0,
            slot: 0,
            number: 0,
        }
    }

    /// Appends the bytes of the answer.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let number = self.number.to_le_bytes();
        let answer = Answer {
            status: self.status,
            version: self.version,
            slot: self.slot,
            data: match self.number {
                0 => &[],
                _ => &number,
            },
        };
        answer.encode(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Any request with this key and value.
    fn ask<'a>(
        which: usize,
        key: &'a [u8],
        value: &'a [u8],
        (sequence, version, number): (u64, u64, u32),
    ) -> Ask<'a> {
        let conditions = [
            Condition::Always,
            Condition::Absent,
            Condition::Version(version),
        ];
        let condition = conditions[which % 3];
        let (ttl, expires) = (number, number);
        let write = match which / 3 {
            0 => Write::Put { value, ttl },
            1 => Write::Delete,
            2 => Write::Add(version as i64),
            _ if which == 9 => Write::Move {
                value,
                version,
                expires,
            },
            _ => return Ask::Get(key),
        };
        Ask::Write(Request {
            sequence,
            condition,
            key,
            write,
        })
    }

    proptest! {
        #[test]
        fn messages_are_read_back(number: u32, done: u64, epoch: u64, words: (u64, u64, u32), cut in 1usize..50, at: usize,
                                  asks in prop::collection::vec((0usize..12, prop::collection::vec(any::<u8>(), 1..=255),
                                                                 prop::collection::vec(any::<u8>(), 0..500)), 1..=MAX_COUNT)) {
            let asks: Vec<_> = asks.iter().map(|(which, key, value)| ask(*which, key, value, words)).collect();
            let header = Header { number, count: asks.len() as u32, done, epoch };
            let mut bytes = header.encode().to_vec();
            for ask in &asks {
                let before = bytes.len();
                ask.encode(&mut bytes);
                prop_assert_eq!(bytes.len() - before, ask.len());
            }
            prop_assert_eq!(Header::decode(&bytes), Some((header, asks)));
            prop_assert_eq!(Header::decode(&bytes[..bytes.len() - cut.min(bytes.len())]), None);
            bytes.push(0);
            prop_assert_eq!(Header::decode(&bytes), None);
            bytes.pop();
            let at = at % bytes.len();
            bytes[at] ^= 0x55;
            let _ = Header::decode(&bytes);
        }

        #[test]
        fn answers_are_read_back(number: u32, all in prop::collection::vec((0u32..12, any::<u64>(), any::<u64>(), prop::collection::vec(any::<u8>(), 0..500)), 1..20)) {
            let mut bytes = answers(number, all.len() as u32).to_vec();
            for (status, version, slot, data) in &all {
                let at = bytes.len();
                Answer { status: Status::Done, version: *version, slot: *slot, data }.encode(&mut bytes);
                bytes[at..at + 4].copy_from_slice(&status.to_le_bytes());
            }
            let mut rest = &bytes[..];
            prop_assert_eq!(take_answers(&mut rest), Some((number, all.len() as u32)));
            for (status, version, slot, data) in &all {
                let answer = Answer::decode(&mut rest);
                prop_assert_eq!(answer.is_some(), *status < 9);
                if let Some(answer) = answer {
                    prop_assert_eq!((answer.status as u32, answer.version, answer.slot, answer.data), (*status, *version, *slot, &data[..]));
                }
            }
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn nonsense_does_not_panic(bytes: Vec<u8>, len: u32) {
            let _ = Header::decode(&bytes);
            let mut long = [&[0; 4][..], &len.to_le_bytes(), &bytes].concat();
            long.resize(long.len().max(ANSWER), 0);
            let _ = (take_answers(&mut &bytes[..]), Answer::decode(&mut &long[..]));
        }
    }
}
