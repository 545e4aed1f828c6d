// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the server makes of a message: it carries out the requests, one after the other, and
//! answers all of them in one message. No I/O.

use crate::error::Result;
use crate::replies::Replies;
use crate::server::MOVING;
use crate::table::{Memory, Table};
use crate::wire::{answers, Answer, Ask, Header, Reply, Request, Status, Write, ANSWER_MOST};

/// Bytes of a value that goes into an answer, at most. Longer ones are read by their clients.
pub const LARGE: usize = 2048;

/// What a server did with messages.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Writes.
    pub writes: u64,
    /// Writes that had been carried out before.
    pub repeated: u64,
    /// Gets.
    pub gets: u64,
}

/// What a message is served with.
#[derive(Debug)]
pub struct Service<'a, M> {
    /// The table.
    pub table: &'a mut Table<M>,
    /// The replies to earlier writes.
    pub replies: &'a mut Replies,
    /// The epoch that requests must have.
    pub epoch: u64,
    /// The second since the epoch of Unix.
    pub now: u32,
    /// Bytes of the answer, at most.
    pub most: usize,
}

impl<M: Memory> Service<'_, M> {
    /// Carries out the requests of a message, and puts the answer into `answer`. Returns the number
    /// of the message, or [`None`] if it makes no sense; then nothing is carried out.
    pub fn serve(
        &mut self,
        client: u64,
        message: &[u8],
        answer: &mut Vec<u8>,
        done: &mut Done,
    ) -> Result<Option<u32>> {
        let Some((header, asks)) = Header::decode(message) else {
            return Ok(None);
        };
        answer.clear();
        answer.extend(answers(header.number, header.count));
        let mut left = asks.len();
        for ask in &asks {
            left -= 1;
            match ask {
                Ask::Get(key) => {
                    done.gets += 1;
                    // The others need room, too.
                    let taken = answer.len() + (left + 1) * ANSWER_MOST;
                    let most = self.most.saturating_sub(taken).min(LARGE);
                    if self.table.get(key, most, answer)? == Status::Unmet {
                        let status = match header.epoch == self.epoch {
                            true => Status::Unmet,
                            // It may be at another server.
                            false => Status::Epoch,
                        };
                        Answer::new(status).encode(answer);
                    }
                }
                Ask::Write(request) => {
                    done.writes += 1;
                    self.write(client, &header, request, done)?.encode(answer);
                }
            }
        }
        Ok(Some(header.number))
    }

    fn write(
        &mut self,
        client: u64,
        header: &Header,
        request: &Request<'_>,
        done: &mut Done,
    ) -> Result<Reply> {
        if let Some(reply) = self.replies.known(client, request.sequence, header.done) {
            done.repeated += 1;
            return Ok(reply);
        }
        if header.epoch != self.epoch {
            // It may come again with the right one.
            return Ok(Reply::new(request.sequence, Status::Epoch));
        }
        if matches!(request.write, Write::Move { .. }) && header.epoch != MOVING {
            return Ok(Reply::new(request.sequence, Status::Invalid));
        }
        let reply = self.table.apply(request, self.now)?;
        self.replies.keep(client, reply);
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Geometry, Slot};
    use crate::table::tests::Words;
    use crate::wire::{take_answers, Condition, ANSWERS_HEADER};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// An answer, with data of its own.
    type Got = (Status, u64, u64, Vec<u8>);

    struct Server {
        table: Table<&'static Words>,
        replies: Replies,
        epoch: u64,
        most: usize,
        done: Done,
    }

    impl Server {
        fn new(most: usize) -> Self {
            let len = 1 << 20;
            let geometry = Geometry::new(len, len, 1000, 8192, 5).unwrap();
            let words = Box::leak(Box::new(Words::new(len as usize)));
            let mut replies = Replies::default();
            replies.connect(7);
            Self {
                table: Table::new(&*words, geometry, 1).unwrap(),
                replies,
                epoch: 3,
                most,
                done: Done::default(),
            }
        }

        fn serve(&mut self, message: &[u8]) -> Option<Vec<Got>> {
            let (mut answer, before) = (Vec::new(), std::mem::take(&mut self.done));
            let mut service = Service {
                table: &mut self.table,
                replies: &mut self.replies,
                epoch: self.epoch,
                now: 0,
                most: self.most,
            };
            let number = service
                .serve(7, message, &mut answer, &mut self.done)
                .unwrap();
            self.done.writes += before.writes;
            self.done.repeated += before.repeated;
            number?;
            assert!(answer.len() <= self.most, "{} bytes", answer.len());
            let mut rest = &answer[..];
            let (_, count) = take_answers(&mut rest).unwrap();
            let all = (0..count).map(|_| {
                let Answer {
                    status,
                    version,
                    slot,
                    data,
                } = Answer::decode(&mut rest).unwrap();
                (status, version, slot, data.to_vec())
            });
            let all = all.collect();
            assert!(rest.is_empty());
            Some(all)
        }
    }

    fn message(epoch: u64, done: u64, asks: &[Ask<'_>]) -> Vec<u8> {
        let header = Header {
            number: 9,
            count: asks.len() as u32,
            done,
            epoch,
        };
        let mut bytes = header.encode().to_vec();
        asks.iter().for_each(|ask| ask.encode(&mut bytes));
        bytes
    }

    fn write<'a>(sequence: u64, key: &'a [u8], write: Write<'a>) -> Ask<'a> {
        let condition = Condition::Always;
        Ask::Write(Request {
            sequence,
            condition,
            key,
            write,
        })
    }

    fn put<'a>(sequence: u64, key: &'a [u8], value: &'a [u8]) -> Ask<'a> {
        write(sequence, key, Write::Put { value, ttl: 0 })
    }

    proptest! {
        /// Messages of any requests do what these do one after the other, and a repeated message
        /// changes nothing.
        #[test]
        fn a_message_is_its_requests_in_order(
            messages in prop::collection::vec(prop::collection::vec((0u8..4, 0u8..12, 0usize..300), 1..30), 1..12), repeat: u64
        ) {
            let mut server = Server::new(1 << 15);
            let mut model: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
            let (mut sequence, mut writes, mut repeated) = (0, 0, 0);
            for (n, steps) in messages.iter().enumerate() {
                let keys: Vec<[u8; 1]> = (0..12).map(|key| [key]).collect();
                let values: Vec<Vec<u8>> = steps.iter().enumerate().map(|(at, step)| vec![(n * 30 + at) as u8; step.2]).collect();
                let (mut asks, mut want) = (Vec::new(), Vec::new());
                let done = sequence + 1;
                for ((what, key, _), value) in steps.iter().zip(&values) {
                    let place = &keys[*key as usize][..];
                    match what {
                        0 => {
                            sequence += 1;
                            asks.push(put(sequence, place, value));
                            model.insert(*key, value.clone());
                            want.push((Status::Done, vec![]));
                        }
                        1 => {
                            sequence += 1;
                            asks.push(write(sequence, place, Write::Delete));
                            let was = model.remove(key).is_some();
                            want.push((if was { Status::Done } else { Status::Unmet }, vec![]));
                        }
                        _ => {
                            asks.push(Ask::Get(place));
                            want.push(match model.get(key) {
                                Some(value) => (Status::Done, value.clone()),
                                None => (Status::Unmet, vec![]),
                            });
                        }
                    }
                }
                let bytes = message(3, done, &asks);
                let got = server.serve(&bytes).unwrap();
                let seen: Vec<_> = got.iter().map(|(status, _, _, data)| (*status, data.clone())).collect();
                prop_assert_eq!(seen, want);
                let count = asks.iter().filter(|ask| matches!(ask, Ask::Write(_))).count() as u64;
                writes += count;
                if (repeat >> n) & 1 == 1 {
                    // The replies to writes are the same; what is there is what was there at the end.
                    let again = server.serve(&bytes).unwrap();
                    writes += count;
                    repeated += count;
                    for ((ask, got), again) in asks.iter().zip(&got).zip(&again) {
                        match ask {
                            Ask::Write(_) => prop_assert_eq!(got, again),
                            Ask::Get(key) => prop_assert_eq!(model.get(&key[0]), (again.0 == Status::Done).then_some(&again.3)),
                        }
                    }
                }
            }
            prop_assert_eq!((server.done.writes, server.done.repeated), (writes, repeated));
            prop_assert_eq!(server.table.keys(), model.len() as u64);
        }
    }

    #[test]
    fn what_is_long_is_read_by_the_client() {
        let long = vec![1; LARGE + 1];
        let mut server = Server::new(2 * LARGE);
        let puts = [
            put(1, b"a", &long[1..]),
            put(2, b"b", &long),
            put(3, b"c", &long[9..]),
        ];
        let slots: Vec<u64> = server
            .serve(&message(3, 1, &puts))
            .unwrap()
            .iter()
            .map(|got| got.2)
            .collect();
        let gets = [
            Ask::Get(b"b"),
            Ask::Get(b"a"),
            Ask::Get(b"c"),
            Ask::Get(b"d"),
            Ask::Get(b"a"),
        ];
        let got = server.serve(&message(3, 4, &gets)).unwrap();
        let status: Vec<Status> = got.iter().map(|got| got.0).collect();
        // The last two of those that exist would fit alone, but not into this message.
        let want = [
            Status::Large,
            Status::Done,
            Status::Large,
            Status::Unmet,
            Status::Large,
        ];
        assert_eq!(status, want);
        assert_eq!(
            [got[0].2, got[1].2, got[2].2],
            [slots[1], slots[0], slots[2]]
        );
        assert!(got[0].3.is_empty() && got[1].3 == long[1..]);
        assert!(Slot(got[0].2).len() > LARGE);
        assert_eq!(
            server.serve(&message(3, 4, &gets[2..3])).unwrap()[0].3,
            long[9..]
        );
    }

    #[test]
    fn a_full_message_has_room_for_every_answer() {
        let keys: Vec<[u8; 2]> = (0..64).map(|n| [n, 1]).collect();
        let most = ANSWERS_HEADER + 64 * ANSWER_MOST;
        let mut server = Server::new(most);
        for (n, key) in keys.iter().enumerate() {
            server
                .serve(&message(3, 1, &[put(n as u64 + 1, key, &[7; 100])]))
                .unwrap();
        }
        let gets: Vec<_> = keys.iter().map(|key| Ask::Get(key)).collect();
        let got = server.serve(&message(3, 65, &gets)).unwrap();
        // Sums need more than gets of keys that do not exist.
        assert!(got
            .iter()
            .all(|got| got.0 == Status::Done || got.0 == Status::Large));
        let adds: Vec<_> = (0..64)
            .map(|n| write(65 + n, b"sum", Write::Add(3)))
            .collect();
        let got = server.serve(&message(3, 65, &adds)).unwrap();
        let sums: Vec<_> = got.iter().map(|got| got.3.clone()).collect();
        let want: Vec<_> = (1..=64i64)
            .map(|n| (3 * n).to_le_bytes().to_vec())
            .collect();
        assert_eq!(sums, want);
    }

    #[test]
    fn another_epoch_is_told() {
        let mut server = Server::new(1 << 12);
        let asks = [
            put(1, b"key", b"value"),
            Ask::Get(b"key"),
            Ask::Get(b"other"),
        ];
        let status = |server: &mut Server, epoch| {
            let got = server.serve(&message(epoch, 1, &asks)).unwrap();
            [got[0].0, got[1].0, got[2].0]
        };
        assert_eq!(status(&mut server, 2), [Status::Epoch; 3]);
        assert_eq!(server.table.keys(), 0);
        assert_eq!(
            status(&mut server, 3),
            [Status::Done, Status::Done, Status::Unmet]
        );
        // What is found here is here. A write that was carried out is not carried out again.
        assert_eq!(
            status(&mut server, 4),
            [Status::Done, Status::Done, Status::Epoch]
        );
        let moved = write(
            2,
            b"moved",
            Write::Move {
                value: b"",
                version: 5,
                expires: 0,
            },
        );
        assert_eq!(
            server.serve(&message(3, 1, &[moved])).unwrap()[0].0,
            Status::Invalid
        );
        server.epoch = MOVING;
        assert_eq!(
            server.serve(&message(MOVING, 1, &[moved])).unwrap()[0].0,
            Status::Done
        );
    }

    #[test]
    fn nonsense_changes_nothing() {
        let mut server = Server::new(1 << 12);
        let mut bytes = message(3, 1, &[put(1, b"key", b"value")]);
        bytes.extend([0; 8]);
        assert_eq!(server.serve(&bytes), None);
        assert_eq!((server.table.keys(), server.done.writes), (0, 0));
    }
}
