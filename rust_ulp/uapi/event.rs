// SPDX-License-Identifier: GPL-2.0

//! The ABI's events as records of a queue.

use crate::{
    logic::events::Record,
    uapi::abi, //
};

impl Record for abi::Event {
    fn time_ns(&self) -> u64 {
        self.time_ns
    }

    fn lost(count: u32, time_ns: u64) -> Self {
        Self {
            event: abi::EVENT_LOST,
            info: count,
            time_ns,
            ..Default::default()
        }
    }

    fn is_request(&self) -> bool {
        self.event == abi::EVENT_CONNECT_REQUEST
    }

    fn repeats(&self) -> bool {
        matches!(
            self.event,
            abi::EVENT_CONNECT_REQUEST | abi::EVENT_UNREACHABLE
        )
    }

    fn merge(&self, newer: &Self) -> Option<Self> {
        let same = (self.event, self.handle) == (newer.event, newer.handle);
        (same && self.repeats()).then_some(Self {
            info: newer.info,
            ..*self
        })
    }
}
