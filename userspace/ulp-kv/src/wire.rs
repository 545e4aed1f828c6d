// SPDX-License-Identifier: MIT OR Apache-2.0

//! The messages between client and server: a request per write, and its reply. No I/O.

use crate::layout::{MAX_KEY, MAX_VALUE};

/// Bytes of a request before its key.
pub const REQUEST_HEADER: usize = 48;
/// Bytes of a reply.
pub const REPLY_LEN: usize = 48;

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

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Number of the request among those of its client.
    pub sequence: u64,
    /// The client has the replies to all requests before this one, and repeats none of them.
    pub done: u64,
    /// The epoch of the list of members that the client has.
    pub epoch: u64,
    /// The condition.
    pub condition: Condition,
    /// The key.
    pub key: &'a [u8],
    /// What to do with it.
    pub write: Write<'a>,
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
}

/// The reply to a request.
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

impl Request<'_> {
    /// Returns the bytes of the request.
    pub fn encode(&self) -> Vec<u8> {
        let (operation, argument, value): (u8, u64, &[u8]) = match self.write {
            Write::Put { value, ttl } => (1, ttl.into(), value),
            Write::Delete => (2, 0, &[]),
            Write::Add(by) => (3, by as u64, &[]),
            Write::Move { value, expires, .. } => (4, expires.into(), value),
        };
        let (condition, version) = match (self.write, self.condition) {
            (Write::Move { version, .. }, _) => (0, version),
            (_, Condition::Always) => (0, 0),
            (_, Condition::Absent) => (1, 0),
            (_, Condition::Version(version)) => (2, version),
        };
        let mut bytes = Vec::with_capacity(REQUEST_HEADER + self.key.len() + value.len());
        // The lengths were checked.
        bytes.extend([operation, condition, self.key.len() as u8, 0]);
        bytes.extend((value.len() as u32).to_le_bytes());
        for word in [self.sequence, self.done, self.epoch, version, argument] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.key);
        bytes.extend(value);
        bytes
    }
}

impl<'a> Request<'a> {
    /// Reads a request, if it makes sense.
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let [operation, condition, key_len, 0, len @ ..] = *bytes.first_chunk::<8>()? else {
            return None;
        };
        let value_len = u32::from_le_bytes(len) as usize;
        let argument = word(bytes, 40)?;
        let data = bytes.get(REQUEST_HEADER..)?;
        let (key, value) = data.split_at_checked(key_len.into())?;
        if !(1..=MAX_KEY).contains(&key.len()) || value.len() != value_len || value_len > MAX_VALUE
        {
            return None;
        }
        Some(Self {
            sequence: word(bytes, 8)?,
            done: word(bytes, 16)?,
            epoch: word(bytes, 24)?,
            condition: match condition {
                0 => Condition::Always,
                1 => Condition::Absent,
                2 => Condition::Version(word(bytes, 32)?),
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
                    version: word(bytes, 32)?,
                    expires: u32::try_from(argument).ok()?,
                },
                _ => return None,
            },
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

    /// Returns the bytes of the reply.
    pub fn encode(&self) -> [u8; REPLY_LEN] {
        let mut bytes = [0; REPLY_LEN];
        let number = self.number as u64;
        let words = [
            self.status as u64,
            self.sequence,
            self.version,
            self.slot,
            number,
        ];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads a reply, if it makes sense.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            status: match word(bytes, 0)? {
                0 => Status::Done,
                1 => Status::Unmet,
                2 => Status::NoMemory,
                3 => Status::NoSlot,
                4 => Status::NoNumber,
                5 => Status::Epoch,
                6 => Status::Invalid,
                7 => Status::Forgotten,
                _ => return None,
            },
            sequence: word(bytes, 8)?,
            version: word(bytes, 16)?,
            slot: word(bytes, 24)?,
            number: word(bytes, 32)? as i64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn requests_are_read_back(sequence: u64, done: u64, epoch: u64, version: u64, ttl: u32, by: i64, expires: u32, which in 0..10,
                                  key in prop::collection::vec(any::<u8>(), 1..=255),
                                  value in prop::collection::vec(any::<u8>(), 0..500), cut in 1usize..50) {
            let condition = [Condition::Always, Condition::Absent, Condition::Version(version)][which as usize % 3];
            let moved = Write::Move { value: &value, version, expires };
            let write = [Write::Put { value: &value, ttl }, Write::Delete, Write::Add(by), moved][which as usize / 3];
            let request = Request { sequence, done, epoch, condition, key: &key, write };
            let bytes = request.encode();
            prop_assert_eq!(Request::decode(&bytes), Some(request));
            prop_assert_eq!(Request::decode(&bytes[..bytes.len() - cut.min(bytes.len())]), None);
        }

        #[test]
        fn replies_are_read_back(sequence: u64, version: u64, slot: u64, number: i64, status in 0u64..10) {
            let mut bytes = Reply { sequence, status: Status::Done, version, slot, number }.encode();
            bytes[..8].copy_from_slice(&status.to_le_bytes());
            let reply = Reply::decode(&bytes);
            prop_assert_eq!(reply.is_some(), status < 8);
            prop_assert!(reply.is_none_or(|reply| reply.encode() == bytes && reply.status as u64 == status));
        }

        #[test]
        fn nonsense_does_not_panic(bytes: Vec<u8>) {
            let _ = (Request::decode(&bytes), Reply::decode(&bytes));
        }
    }
}
