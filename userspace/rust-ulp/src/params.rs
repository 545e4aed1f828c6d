// SPDX-License-Identifier: MIT OR Apache-2.0

//! Parameters of a connection, as the specification encodes them.

use crate::error::{Error, Result};
use std::fmt;
use std::time::Duration;

/// `value` if it is at most `max`.
pub(crate) fn at_most<T: Into<u64> + Copy>(what: &'static str, value: T, max: T) -> Result<T> {
    within(what, value.into(), 0, max.into()).map(|()| value)
}

/// Checks that `value` is between `min` and `max`.
pub(crate) fn within(what: &'static str, value: u64, min: u64, max: u64) -> Result<()> {
    if value < min || value > max {
        return Err(Error::Value {
            what,
            value,
            min,
            max,
        });
    }
    Ok(())
}

/// Returns the element number `index` of `all`, from 0. `what` names the index.
pub(crate) fn nth<T: Copy>(what: &'static str, all: &[T], index: usize) -> Result<T> {
    all.get(index).copied().ok_or(Error::Value {
        what,
        value: index as u64,
        min: all.is_empty().into(), // there is none
        max: (all.len() as u64).saturating_sub(1),
    })
}

/// Checks the length of a buffer against the module's limit; the device may have less.
pub(crate) fn buffer_len(len: usize, max_buffer: u64) -> Result<()> {
    within("the length of a buffer", len as u64, 1, max_buffer)
}

/// Checks a number of 24 bits: of a queue pair, or of a packet.
pub(crate) fn bits_24(what: &'static str, value: u32) -> Result<u32> {
    at_most(what, value, 0xff_ffff)
}

/// The time that a reliable queue pair waits for an acknowledgement before it repeats a request:
/// 4.096 us * 2^n, with n from 1 to 31 (8 us to 2.4 hours), or for ever.
///
/// A device may take up to four times as long. With [`Retries`] of `r`, a peer that vanished is
/// noticed after about `r + 1` times this.
///
/// | n | time | | n | time |
/// |---|---|---|---|---|
/// | 8 | 1.05 ms | | 17 | 537 ms |
/// | 10 | 4.19 ms | | 18 | 1.07 s |
/// | 14 (default) | 67.1 ms | | 20 | 4.29 s |
///
/// Specification: Local ACK Timeout of the queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AckTimeout(pub(crate) u8);

impl AckTimeout {
    /// No limit: a peer that vanished is never noticed.
    pub const FOREVER: Self = Self(0);
    /// 67.1 ms: what a connection gets unless said.
    pub const DEFAULT: Self = Self(14);

    /// Returns the time with this number: 0 for ever, 1 to 31 for 4.096 us * 2^n.
    ///
    /// # Errors
    ///
    /// [`Error::Value`] for more than 31.
    pub fn new(n: u8) -> Result<Self> {
        at_most("an acknowledgement timeout", n, 31).map(Self)
    }

    /// Returns the shortest time of at least `time`; at most 4.096 us * 2^31.
    pub fn at_least(time: Duration) -> Self {
        (1..31)
            .map(Self)
            .find(|timeout| timeout.duration() >= Some(time))
            .unwrap_or(Self(31))
    }

    /// Returns the time; [`None`] for ever.
    pub fn duration(self) -> Option<Duration> {
        (self.0 != 0).then(|| Duration::from_nanos(4096 << (self.0 & 31)))
    }

    /// Returns its number.
    pub fn code(self) -> u8 {
        self.0
    }
}

impl fmt::Display for AckTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.duration() {
            Some(time) => write!(f, "{time:?}"),
            None => f.write_str("for ever"),
        }
    }
}

impl fmt::Debug for AckTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AckTimeout({}: {self})", self.0)
    }
}

/// The number of times that a reliable queue pair repeats what was not acknowledged: 0 to 7.
///
/// rxe takes 7 as for ever, with which a peer that vanished is never noticed; other devices take it
/// as seven.
///
/// Specification: Retry Count of the queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Retries(pub(crate) u8);

impl Retries {
    /// 6: what a connection gets unless said.
    pub const DEFAULT: Self = Self(6);

    /// Returns a count of 0 to 7.
    ///
    /// # Errors
    ///
    /// [`Error::Value`] for more than 7.
    pub fn new(count: u8) -> Result<Self> {
        at_most("a number of retries", count, 7).map(Self)
    }

    /// Returns the count.
    pub fn count(self) -> u8 {
        self.0
    }
}

/// The number of times that a reliable queue pair repeats what found no receive at the peer: 0 to
/// 6, or for ever.
///
/// Between two tries it waits as long as the peer's [`RnrTimer`] says.
///
/// Specification: RNR Retry Count of the queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RnrRetries(pub(crate) u8);

impl RnrRetries {
    /// No limit: a peer that forgot to post is never noticed.
    pub const FOREVER: Self = Self(7);
    /// 6: what a connection gets unless said.
    pub const DEFAULT: Self = Self(6);

    /// Returns a count of 0 to 6, and for ever with 7.
    ///
    /// # Errors
    ///
    /// [`Error::Value`] for more than 7.
    pub fn new(count: u8) -> Result<Self> {
        at_most("a number of RNR retries", count, 7).map(Self)
    }

    /// Returns the count; [`None`] for ever.
    pub fn count(self) -> Option<u8> {
        (self.0 != 7).then_some(self.0)
    }

    /// Returns its number.
    pub fn code(self) -> u8 {
        self.0
    }
}

/// Units of 0.01 ms, by number.
const RNR_TIMES: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// The time that a peer whose request found no receive is told to wait before it tries again: 0.01
/// ms to 655.36 ms.
///
/// | n | ms | | n | ms | | n | ms | | n | ms |
/// |---|---|---|---|---|---|---|---|---|---|---|
/// | 0 | 655.36 | | 8 | 0.16 | | 16 | 2.56 | | 24 | 40.96 |
/// | 1 | 0.01 | | 9 | 0.24 | | 17 | 3.84 | | 25 | 61.44 |
/// | 2 | 0.02 | | 10 | 0.32 | | 18 | 5.12 | | 26 | 81.92 |
/// | 3 | 0.03 | | 11 | 0.48 | | 19 | 7.68 | | 27 | 122.88 |
/// | 4 | 0.04 | | 12 | 0.64 | | 20 (default) | 10.24 | | 28 | 163.84 |
/// | 5 | 0.06 | | 13 | 0.96 | | 21 | 15.36 | | 29 | 245.76 |
/// | 6 | 0.08 | | 14 | 1.28 | | 22 | 20.48 | | 30 | 327.68 |
/// | 7 | 0.12 | | 15 | 1.92 | | 23 | 30.72 | | 31 | 491.52 |
///
/// Specification: IBA table 45.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RnrTimer(pub(crate) u8);

impl RnrTimer {
    /// 10.24 ms: what a connection gets unless said.
    pub const DEFAULT: Self = Self(20);

    /// Returns the time with this number of the table: 0 to 31.
    ///
    /// # Errors
    ///
    /// [`Error::Value`] for more than 31.
    pub fn new(n: u8) -> Result<Self> {
        at_most("an RNR timer", n, 31).map(Self)
    }

    /// Returns the shortest time of at least `time`; at most 655.36 ms.
    pub fn at_least(time: Duration) -> Self {
        (1..32)
            .map(Self)
            .find(|timer| timer.duration() >= time)
            .unwrap_or(Self(0))
    }

    /// Returns the time.
    pub fn duration(self) -> Duration {
        let units = RNR_TIMES.get(usize::from(self.0 & 31)).copied();
        Duration::from_micros(10) * units.unwrap_or(0)
    }

    /// Returns its number.
    pub fn code(self) -> u8 {
        self.0
    }
}

impl fmt::Display for RnrTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.duration())
    }
}

impl fmt::Debug for RnrTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RnrTimer({}: {self})", self.0)
    }
}

/// The traffic class of a packet, in IPv4 its type of service: six bits DSCP, two bits ECN.
///
/// Specification: RFC 2474, RFC 3168.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TrafficClass(pub u8);

impl TrafficClass {
    /// Returns the class of a differentiated-services code point, 0 to 63, without ECN.
    ///
    /// # Errors
    ///
    /// [`Error::Value`] for more than 63.
    pub fn from_dscp(dscp: u8) -> Result<Self> {
        at_most("a DSCP", dscp, 63).map(|dscp| Self(dscp << 2))
    }

    /// Returns the code point: 0 to 63.
    pub fn dscp(self) -> u8 {
        self.0 >> 2
    }

    /// Returns the congestion bits: 0 not capable, 1 and 2 capable, 3 congestion was met.
    pub fn ecn(self) -> u8 {
        self.0 & 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_are_those_of_the_specification() {
        let ms = |n| RnrTimer::new(n).unwrap().duration().as_secs_f64() * 1000.0;
        for (n, want) in [
            (0, 655.36),
            (1, 0.01),
            (12, 0.64),
            (20, 10.24),
            (31, 491.52),
        ] {
            assert!((ms(n) - want).abs() < 1e-9, "{n}: {}", ms(n));
        }
        assert!((2..32).all(|n| ms(n) > ms(n - 1)) && ms(0) > ms(31));
        let ack = |n| AckTimeout::new(n).unwrap().duration();
        assert_eq!(ack(0), None);
        assert_eq!(ack(1), Some(Duration::from_nanos(8192)));
        assert_eq!(ack(14), Some(Duration::from_nanos(67_108_864)));
        assert_eq!(AckTimeout::DEFAULT.to_string(), "67.108864ms");
        assert_eq!(AckTimeout::FOREVER.to_string(), "for ever");
        assert_eq!(RnrTimer::DEFAULT.to_string(), "10.24ms");
    }

    #[test]
    fn a_time_of_the_table_is_itself() {
        for n in 0..32 {
            let (ack, rnr) = (AckTimeout(n), RnrTimer(n));
            assert_eq!(RnrTimer::at_least(rnr.duration()), rnr);
            if let Some(time) = ack.duration() {
                assert_eq!(AckTimeout::at_least(time), ack);
            }
        }
    }

    #[test]
    fn ranges_end_where_the_fields_do() {
        assert!(AckTimeout::new(31).is_ok() && AckTimeout::new(32).is_err());
        assert!(RnrTimer::new(31).is_ok() && RnrTimer::new(32).is_err());
        assert!(Retries::new(7).is_ok() && Retries::new(8).is_err());
        assert_eq!(RnrRetries::new(6).unwrap().count(), Some(6));
        assert_eq!(RnrRetries::new(7).unwrap(), RnrRetries::FOREVER);
        assert_eq!(RnrRetries::FOREVER.count(), None);
        assert!(RnrRetries::new(8).is_err());
        let class = TrafficClass::from_dscp(46).unwrap();
        assert_eq!((class.0, class.dscp(), class.ecn()), (0xb8, 46, 0));
        let error = TrafficClass::from_dscp(64).unwrap_err();
        assert_eq!(error.to_string(), "a DSCP is 64; pass 63 at most");
        assert!(bits_24("x", 0xff_ffff).is_ok() && bits_24("x", 1 << 24).is_err());
    }

    proptest! {
        #[test]
        fn the_shortest_that_is_long_enough(us in 0u64..1 << 40) {
            let time = Duration::from_micros(us);
            let ack = AckTimeout::at_least(time);
            prop_assert!(ack.code() == 31 || ack.duration() >= Some(time));
            prop_assert!(ack.code() == 1 || AckTimeout(ack.code() - 1).duration() < Some(time));
            let rnr = RnrTimer::at_least(time);
            prop_assert!(rnr.code() == 0 || rnr.duration() >= time);
            let shorter = match rnr.code() { 1 => None, 0 => Some(31), n => Some(n - 1) };
            prop_assert!(shorter.is_none_or(|n| RnrTimer(n).duration() < time));
        }
    }
}
