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

    fn merge(&self, newer: &Self) -> Option<Self> {
        // Packets of a peer cause these, as many as it likes.
        let repeats = matches!(
            self.event,
            abi::EVENT_CONNECT_REQUEST | abi::EVENT_UNREACHABLE
        );
        (repeats && self.event == newer.event && self.handle == newer.handle).then_some(Self {
            info: newer.info,
            ..*self
        })
    }
}
