// SPDX-License-Identifier: MIT OR Apache-2.0

//! What clients did and saw, and whether one store can have done that: each key as if every operation had
//! happened at one moment between its begin and its end.
//!
//! A history has a line of JSON per [`Record`]. Operations without an end, of clients that were killed or were
//! not told, may have happened at any time after their begin, or never.
//!
//! The crate `stateright` has a `LinearizabilityTester`, which explores models. It searches one order of a whole
//! history by recursion, so its stack is as deep as the history is long, and a client of which an outcome is not
//! known cannot go on. Histories here have thousands of operations, and such clients.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};

/// What was done to a key. Values are numbers, and no two puts of a key have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Operation {
    /// This was put.
    Put(u64),
    /// It was looked up.
    Get,
    /// It was taken away.
    Delete,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Outcome {
    /// It was put.
    Done,
    /// This was there, or nothing.
    Found(Option<u64>),
    /// It was there, or not.
    Deleted(bool),
    /// It did not happen.
    Failed,
    /// Whether it happened is not known.
    Unknown,
}

/// A line of a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// When it was, on a clock that all clients have.
    pub time: u64,
    /// Whose it is: one operation at a time.
    pub client: u64,
    /// The key.
    pub key: String,
    /// What it is the begin of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begin: Option<Operation>,
    /// Or the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<Outcome>,
}

/// What cannot have been.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// There is no order of the operations in which this one gives what it gave.
    #[error("key {key:?}: no order of the operations explains that {operation:?} of client {client} gave {outcome:?} at {time}")]
    NotLinearizable {
        /// The key.
        key: String,
        /// Whose operation.
        client: u64,
        /// The operation.
        operation: Operation,
        /// What it gave.
        outcome: Outcome,
        /// When it ended.
        time: u64,
    },
    /// The history itself makes no sense.
    #[error("key {key:?}: client {client} ends at {time} what it did not begin")]
    Malformed {
        /// The key.
        key: String,
        /// Whose line.
        client: u64,
        /// When.
        time: u64,
    },
}

/// What `operation` does to a key in `state`, if it can give `outcome` there.
fn apply(state: Option<u64>, operation: Operation, outcome: Outcome) -> Option<Option<u64>> {
    match (operation, outcome) {
        (_, Outcome::Failed) => None,
        (Operation::Put(value), Outcome::Done | Outcome::Unknown) => Some(Some(value)),
        (Operation::Get, Outcome::Found(seen)) => (seen == state).then_some(state),
        (Operation::Delete, Outcome::Deleted(was)) => (was == state.is_some()).then_some(None),
        (Operation::Delete, Outcome::Unknown) => Some(None),
        _ => None,
    }
}

/// An operation under way.
#[derive(Clone, Copy, Debug)]
struct Pending {
    operation: Operation,
    /// How it will end.
    outcome: Outcome,
}

/// A state of the key, and the operations under way that have happened already.
type Configuration = (Option<u64>, Vec<usize>);

/// All that can be once any of the operations under way happen.
fn closure(configurations: &mut HashSet<Configuration>, pending: &BTreeMap<usize, Pending>) {
    let mut fresh: Vec<Configuration> = configurations.iter().cloned().collect();
    while let Some((state, happened)) = fresh.pop() {
        for (n, one) in pending {
            if happened.contains(n) {
                continue;
            }
            if let Some(next) = apply(state, one.operation, one.outcome) {
                let mut happened = happened.clone();
                happened.push(*n);
                happened.sort_unstable();
                let configuration = (next, happened);
                if configurations.insert(configuration.clone()) {
                    fresh.push(configuration);
                }
            }
        }
    }
}

fn check_key(key: &str, records: &[&Record]) -> Result<(), Violation> {
    // Ends are known at the begin: looked up beforehand.
    let mut ends: HashMap<usize, Outcome> = HashMap::new();
    let mut open: HashMap<u64, usize> = HashMap::new();
    for (n, record) in records.iter().enumerate() {
        match (record.begin, record.end) {
            (Some(_), None) => {
                open.insert(record.client, n);
            }
            (None, Some(outcome)) => match open.remove(&record.client) {
                Some(begin) => {
                    ends.insert(begin, outcome);
                }
                None => {
                    let (key, client, time) = (key.to_owned(), record.client, record.time);
                    return Err(Violation::Malformed { key, client, time });
                }
            },
            _ => {
                let (key, client, time) = (key.to_owned(), record.client, record.time);
                return Err(Violation::Malformed { key, client, time });
            }
        }
    }
    let mut configurations: HashSet<Configuration> = HashSet::from([(None, Vec::new())]);
    let mut pending: BTreeMap<usize, Pending> = BTreeMap::new();
    let mut under_way: HashMap<u64, usize> = HashMap::new();
    for (n, record) in records.iter().enumerate() {
        if let Some(operation) = record.begin {
            let outcome = ends.get(&n).copied().unwrap_or(Outcome::Unknown);
            // What did not happen, and lookups that nobody saw, change nothing.
            let silent = operation == Operation::Get && outcome == Outcome::Unknown;
            if outcome != Outcome::Failed && !silent {
                pending.insert(n, Pending { operation, outcome });
            }
            under_way.insert(record.client, n);
            continue;
        }
        let Some(begin) = under_way.remove(&record.client) else {
            continue;
        };
        let Some(one) = pending.get(&begin).copied() else {
            continue;
        };
        if one.outcome == Outcome::Unknown {
            // It may still happen.
            continue;
        }
        closure(&mut configurations, &pending);
        // By its end it has happened.
        configurations = configurations
            .into_iter()
            .filter(|(_, happened)| happened.contains(&begin))
            .map(|(state, happened)| {
                (
                    state,
                    happened.into_iter().filter(|n| *n != begin).collect(),
                )
            })
            .collect();
        pending.remove(&begin);
        if configurations.is_empty() {
            return Err(Violation::NotLinearizable {
                key: key.to_owned(),
                client: record.client,
                operation: one.operation,
                outcome: one.outcome,
                time: record.time,
            });
        }
    }
    Ok(())
}

/// Checks a history, whose lines may come in any order. Returns the number of operations.
///
/// # Errors
///
/// The first [`Violation`].
pub fn check(history: &[Record]) -> Result<usize, Violation> {
    let mut keys: BTreeMap<&str, Vec<&Record>> = BTreeMap::new();
    for record in history {
        keys.entry(&record.key).or_default().push(record);
    }
    for (key, mut records) in keys {
        // At the same moment: begins first, which allows more.
        records.sort_by_key(|record| (record.time, record.end.is_some()));
        check_key(key, &records)?;
    }
    Ok(history
        .iter()
        .filter(|record| record.begin.is_some())
        .count())
}

#[cfg(test)]
mod tests {
    use super::Operation::*;
    use super::Outcome::*;
    use super::*;
    use proptest::prelude::*;

    /// Operations as (client, begin, end, what, how).
    fn verdict(operations: &[(u64, u64, u64, Operation, Outcome)]) -> Result<usize, Violation> {
        let line = |time, client, begin, end| Record {
            time,
            client,
            key: "k".to_owned(),
            begin,
            end,
        };
        let mut history = Vec::new();
        for (client, begin, end, what, how) in operations {
            history.push(line(*begin, *client, Some(*what), None));
            history.push(line(*end, *client, None, Some(*how)));
        }
        check(&history)
    }

    #[test]
    fn what_can_have_been() {
        for good in [
            &[(1, 1, 2, Put(7), Done), (2, 3, 4, Get, Found(Some(7)))][..],
            &[
                (1, 1, 9, Put(7), Done),
                (2, 2, 3, Get, Found(None)),
                (3, 4, 5, Get, Found(Some(7))),
            ],
            &[
                (1, 1, 9, Put(7), Done),
                (2, 1, 9, Put(8), Done),
                (3, 10, 11, Get, Found(Some(7))),
            ],
            &[
                (1, 1, 2, Put(7), Done),
                (2, 3, 4, Delete, Deleted(true)),
                (3, 5, 6, Get, Found(None)),
            ],
            // Nobody knows: it may have happened, even later.
            &[
                (1, 1, 2, Put(7), Unknown),
                (2, 3, 4, Get, Found(None)),
                (3, 5, 6, Get, Found(Some(7))),
            ],
            &[(1, 1, 2, Put(7), Unknown), (2, 3, 4, Get, Found(None))],
            &[(1, 1, 2, Put(7), Failed), (2, 3, 4, Get, Found(None))],
        ] {
            assert_eq!(verdict(good), Ok(good.len()), "{good:?}");
        }
    }

    #[test]
    fn what_cannot_have_been() {
        for bad in [
            // Lost, stale, out of nothing, twice deleted, back and forth, and what had failed.
            &[(1, 1, 2, Put(7), Done), (2, 3, 4, Get, Found(None))][..],
            &[
                (1, 1, 2, Put(7), Done),
                (1, 3, 4, Put(8), Done),
                (2, 5, 6, Get, Found(Some(7))),
            ],
            &[(2, 5, 6, Get, Found(Some(7)))],
            &[
                (1, 1, 2, Put(7), Done),
                (2, 3, 4, Delete, Deleted(true)),
                (3, 5, 6, Delete, Deleted(true)),
            ],
            &[
                (1, 1, 9, Put(7), Done),
                (2, 2, 3, Get, Found(Some(7))),
                (3, 4, 5, Get, Found(None)),
            ],
            &[(1, 1, 2, Put(7), Failed), (2, 3, 4, Get, Found(Some(7)))],
            &[
                (1, 1, 2, Put(7), Unknown),
                (2, 3, 4, Get, Found(Some(7))),
                (3, 5, 6, Get, Found(None)),
            ],
        ] {
            assert!(
                matches!(verdict(bad), Err(Violation::NotLinearizable { .. })),
                "{bad:?}"
            );
        }
        let end = Record {
            time: 1,
            client: 1,
            key: String::new(),
            begin: None,
            end: Some(Done),
        };
        assert!(matches!(check(&[end]), Err(Violation::Malformed { .. })));
    }

    proptest! {
        /// A register that really does one thing after the other, seen by clients whose operations overlap.
        #[test]
        fn a_true_register_passes_and_a_false_one_does_not(
            steps in prop::collection::vec((0u64..4, 0u8..3, 0u64..30), 3..60), lie in 0usize..60
        ) {
            let mut state = None;
            let mut free = [0u64; 4];
            let mut history = Vec::new();
            for (n, (client, what, slack)) in steps.iter().enumerate() {
                // It happens at `now`, and begins and ends around that.
                let now = 100 * (n as u64 + 1);
                let begin = free[*client as usize].max(now.saturating_sub(5 * slack));
                let end = now + slack;
                if begin > now {
                    continue;
                }
                free[*client as usize] = end + 1;
                let (what, how) = match what {
                    0 => { state = Some(n as u64); (Put(n as u64), Done) }
                    1 => (Get, Found(state)),
                    _ => { let was = state.is_some(); state = None; (Delete, Deleted(was)) }
                };
                history.push((*client, begin, end, what, how));
            }
            prop_assert!(verdict(&history).is_ok());
            // What nobody put is seen by nobody.
            if let Some(one) = history.get_mut(lie) {
                if one.3 == Get {
                    one.4 = Found(Some(1 << 40));
                    prop_assert!(verdict(&history).is_err());
                }
            }
        }
    }
}
