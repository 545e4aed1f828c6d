// SPDX-License-Identifier: GPL-2.0

//! Handles, from all sides.

use crate::{
    logic::handle::{Handle, Kind, MAX_OBJECTS},
    repository,
};
use proptest::prelude::*;
use std::collections::HashSet;

fn kind() -> impl Strategy<Value = Kind> {
    prop::sample::select(Kind::TEARDOWN.to_vec())
}

proptest! {
    #[test]
    fn there_and_back(kind in kind(), index: u16, generation in 0u16..2047) {
        let handle = Handle { kind, index, generation };
        let raw = handle.to_raw();
        prop_assert!(raw != 0 && raw >> 31 == 0);
        prop_assert_eq!(Handle::from_raw(raw), Some(handle));
    }

    #[test]
    fn back_and_there(raw: u32) {
        match Handle::from_raw(raw) {
            Some(handle) => {
                prop_assert_eq!(handle.to_raw(), raw);
                prop_assert!(u32::from(handle.index) < MAX_OBJECTS);
            }
            None => prop_assert!(raw >> 31 != 0 || !(1..=9).contains(&(raw >> 27))),
        }
    }

    #[test]
    fn a_generation_too_large_touches_no_other_field(kind in kind(), index: u16, generation: u16) {
        let raw = Handle { kind, index, generation }.to_raw();
        let back = Handle::from_raw(raw).unwrap();
        prop_assert_eq!((back.kind, back.index), (kind, index));
        prop_assert!(Handle::next_generation(generation) < 2047);
    }
}

#[test]
fn generations_come_round_after_2047() {
    let mut seen = HashSet::new();
    let mut generation = 0;
    while seen.insert(generation) {
        let handle = Handle {
            kind: Kind::Qp,
            index: 0,
            generation,
        };
        assert_eq!(Handle::from_raw(handle.to_raw()), Some(handle));
        generation = Handle::next_generation(generation);
    }
    assert_eq!((seen.len(), generation), (2047, 0));
}

#[test]
fn no_kind_is_another() {
    let raws: HashSet<u32> = Kind::TEARDOWN
        .iter()
        .map(|&kind| {
            Handle {
                kind,
                index: 7,
                generation: 7,
            }
            .to_raw()
        })
        .collect();
    assert_eq!(raws.len(), Kind::TEARDOWN.len());
    assert_eq!(Handle::from_raw(0), None);
    assert_eq!(Handle::from_raw(u32::MAX), None);
    assert_eq!(MAX_OBJECTS, u32::from(u16::MAX) + 1);
    // UseCount go before what they use.
    let place = |kind| Kind::TEARDOWN.iter().position(|k| *k == kind).unwrap();
    assert!(place(Kind::Qp) < place(Kind::Cq) && place(Kind::Qp) < place(Kind::Pd));
    assert!(place(Kind::Qp) < place(Kind::Srq) && place(Kind::Srq) < place(Kind::Cq));
    assert!(place(Kind::Srq) < place(Kind::Pd) && place(Kind::Ah) < place(Kind::Pd));
    assert!(place(Kind::Listener) < place(Kind::Qp) && place(Kind::Connection) < place(Kind::Qp));
    assert!(place(Kind::Grant) < place(Kind::Buffer) && place(Kind::Buffer) < place(Kind::Pd));
}

/// Tracepoints print the kind of an object by its number.
#[test]
fn tracepoints_name_each_kind() {
    let text = std::fs::read_to_string(repository().join("rust_ulp/trace/ulp_trace.h")).unwrap();
    let list = text.split_once("#define show_ulp_kind(kind)").unwrap().1;
    let list = list.split_once("\n\n").unwrap().0;
    let named: Vec<_> = list
        .split('{')
        .skip(1)
        .map(|entry| {
            let (number, name) = entry.split_once(',').unwrap();
            let number: u32 = number.trim().parse().unwrap();
            (number, name.split('"').nth(1).unwrap().to_owned())
        })
        .collect();
    let mut kinds = Kind::TEARDOWN.map(|kind| (kind as u32, format!("{kind:?}").to_lowercase()));
    kinds.sort();
    assert_eq!(named, kinds);
}

#[test]
fn numbering() {
    let got: Vec<_> = crate::logic::numbered(["a", "b", "c"].into_iter()).collect();
    assert_eq!(got, [(0, "a"), (1, "b"), (2, "c")]);
}
