// SPDX-License-Identifier: MIT OR Apache-2.0

//! What clients and servers send each other in the mode of messages: a change, and its answer.

use crate::error::{Error, Result};
use crate::layout::{word, Slot, MAX_KEY};
use crate::table::Place;

/// Changes that a client may have under way. Its server keeps as many answers.
pub const WINDOW: usize = 16;
/// Bytes of an answer.
pub const ANSWER: usize = 24;
/// Bytes of a message before its key.
const HEADER: usize = 16;

/// Returns the bytes of the longest message.
pub fn message_len(max_value: u32) -> usize {
    (HEADER + MAX_KEY + max_value as usize).next_multiple_of(64)
}

/// A change: a put, or a delete, which has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Its new value.
    pub value: Option<&'a [u8]>,
}

impl<'a> Change<'a> {
    /// Returns the bytes of a message: number, lengths, key, value.
    pub fn encode(&self, number: u32) -> Vec<u8> {
        let value = self.value.unwrap_or_default();
        let kinds = (u64::from(self.value.is_none()) << 40) | ((self.key.len() as u64) << 32);
        let words = [kinds | u64::from(number), value.len() as u64].map(u64::to_le_bytes);
        [words.as_flattened(), self.key, value].concat()
    }

    /// Reads a message. Returns its number, too; [`None`] if it makes no sense.
    pub fn decode(message: &'a [u8]) -> Option<(u32, Self)> {
        let (kinds, len) = (word(message, 0), word(message, 8));
        let (key, value) = message
            .get(HEADER..)?
            .split_at_checked((kinds >> 32) as usize & 0xff)?;
        let is_whole = value.len() as u64 == len && !key.is_empty();
        let value = ((kinds >> 40) == 0).then_some(value);
        is_whole.then_some((kinds as u32, Self { key, value }))
    }
}

/// What an answer says: the place of the key, or that it was not there, or why nothing was done.
pub type Answer = Result<Option<Place>>;

/// Returns the bytes of the answer to the message with this number.
pub fn encode_answer(number: u32, answer: &Answer) -> [u8; ANSWER] {
    let (status, place) = match answer {
        Ok(Some(place)) => (0, Some(place)),
        Ok(None) => (1, None),
        Err(Error::NoSlot) => (2, None),
        Err(Error::NoMemory) => (3, None),
        Err(_) => (4, None),
    };
    let (at, slot) = place.map_or((0, 0), |place| (place.at, place.slot.0));
    let mut bytes = [0; ANSWER];
    let words = [(status << 32) | u64::from(number), at, slot];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Reads an answer. Returns the number of its message, too.
pub fn decode_answer(bytes: &[u8]) -> (u32, Answer) {
    let head = word(bytes, 0);
    let answer = match head >> 32 {
        0 => Ok(Some(Place {
            at: word(bytes, 8),
            slot: Slot(word(bytes, 16)),
        })),
        1 => Ok(None),
        2 => Err(Error::NoSlot),
        3 => Err(Error::NoMemory),
        _ => Err(Error::Corrupt("it refuses a message that is right")),
    };
    (head as u32, answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_change_is_read_back_and_half_of_it_is_none(
            number: u32, key in prop::collection::vec(any::<u8>(), 1..=255),
            value in prop::option::of(prop::collection::vec(any::<u8>(), 0..500)), cut in 0usize..800
        ) {
            let change = Change { key: &key, value: value.as_deref() };
            let bytes = change.encode(number);
            prop_assert!(bytes.len() <= message_len(500));
            prop_assert_eq!(Change::decode(&bytes), Some((number, change)));
            prop_assert_eq!(Change::decode(&bytes[..cut % bytes.len()]), None);
            let longer = [&bytes[..], b"x"].concat();
            prop_assert_eq!(Change::decode(&longer), None);
        }

        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            if let Some((number, change)) = Change::decode(&bytes) {
                let again = change.encode(number);
                prop_assert_eq!(Change::decode(&again), Some((number, change)));
            }
            let (number, answer) = decode_answer(&bytes);
            prop_assert_eq!(decode_answer(&encode_answer(number, &answer)).0, number);
        }
    }

    #[test]
    fn answers_are_read_back() {
        let place = Place {
            at: 1 << 20,
            slot: Slot(77),
        };
        let done = decode_answer(&encode_answer(5, &Ok(Some(place))));
        assert!(matches!(done, (5, Ok(Some(is))) if is == place));
        assert!(matches!(
            decode_answer(&encode_answer(6, &Ok(None))),
            (6, Ok(None))
        ));
        let full = encode_answer(u32::MAX, &Err(Error::NoSlot));
        assert!(matches!(
            decode_answer(&full),
            (u32::MAX, Err(Error::NoSlot))
        ));
        let full = encode_answer(0, &Err(Error::NoMemory));
        assert!(matches!(decode_answer(&full), (0, Err(Error::NoMemory))));
    }
}
