// SPDX-License-Identifier: MIT OR Apache-2.0

//! Arguments that several commands have, and how their values are written.

use clap::Args;
use rust_ulp::Device;
use std::net::Ipv6Addr;
use std::ops::RangeInclusive;
use std::time::Duration;

/// The longest duration that an option takes: one day.
const MAX_DURATION: Duration = Duration::from_secs(86_400);

/// The option `--device` of commands that open one device.
#[derive(Clone, Debug, Args)]
pub struct DeviceArg {
    /// RDMA device [default: the first whose interface is in this network namespace]
    #[arg(short = 'd', long = "device", value_name = "NAME")]
    pub name: Option<String>,
}

impl DeviceArg {
    /// Opens the named device, or the default device.
    pub fn open(&self) -> rust_ulp::error::Result<Device> {
        match &self.name {
            Some(name) => Device::open(name),
            None => Device::open_default(),
        }
    }
}

/// Returns the port that programs use by default, to which the index of a GID belongs.
pub fn default_port(device: &Device) -> u32 {
    device.default_gid().map_or(1, |chosen| chosen.port)
}

/// Parses a number of bytes, such as 65536, 64K, 64KiB, 1M or 1GiB.
///
/// All units are powers of two, as in the other RDMA tools. The crate `bytesize` reads 64K as
/// 64000.
fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match &text[digits.len()..] {
        "" | "B" => 0,
        "k" | "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        unit => return Err(format!("unknown unit {unit:?}; use KiB, MiB or GiB")),
    };
    let n: u64 = digits.parse().map_err(|error| format!("{error}"))?;
    n.checked_mul(1 << shift)
        .ok_or_else(|| "the number is too large".to_owned())
}

/// Parses a number of bytes of at most 4 GiB, as [`size`] does.
pub fn size_u32(text: &str) -> Result<u32, String> {
    u32::try_from(size(text)?).map_err(|_| "the number is too large".to_owned())
}

/// Returns a parser of numbers of bytes in `range`, which `words` tells in an error message.
pub fn size_in(
    range: RangeInclusive<u32>,
    words: &'static str,
) -> impl Fn(&str) -> Result<u32, String> + Clone {
    move |text: &str| match size_u32(text)? {
        size if range.contains(&size) => Ok(size),
        _ => Err(format!("the size must be between {words}")),
    }
}

/// Parses a duration: a number of seconds such as 0.5, or with units, such as 500ms or 1min 30s.
pub fn duration(text: &str) -> Result<Duration, String> {
    let duration = match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())?,
        Err(_) => humantime::parse_duration(text).map_err(|error| error.to_string())?,
    };
    if duration < Duration::from_millis(1) || duration > MAX_DURATION {
        return Err("the duration must be between 1ms and 1day".to_owned());
    }
    Ok(duration)
}

/// Returns HOST:PORT for HOST, HOST:PORT, and an IPv6 address with or without brackets. A port that
/// is too large stays, for an error about it.
pub fn address(host: &str, port: u16) -> String {
    if host.parse::<Ipv6Addr>().is_ok() {
        return format!("[{host}]:{port}");
    }
    let has_port = host.rsplit_once(':').is_some_and(|(rest, port)| {
        port.parse::<u32>().is_ok() && (!rest.contains(':') || rest.ends_with(']'))
    });
    if has_port {
        host.to_owned()
    } else {
        format!("{host}:{port}")
    }
}

/// Returns HOST of HOST:PORT, without the brackets of an IPv6 address: as ping(8) takes it.
pub fn without_port(addr: &str) -> &str {
    let host = addr.rsplit_once(':').map_or(addr, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_get_a_port() {
        for (host, want) in [
            ("10.9.0.1", "10.9.0.1:7"),
            ("10.9.0.1:8", "10.9.0.1:8"),
            ("name", "name:7"),
            ("name:99999", "name:99999"),
            ("fd09::1", "[fd09::1]:7"),
            ("[fd09::1]", "[fd09::1]:7"),
            ("[fd09::1]:8", "[fd09::1]:8"),
            ("::", "[::]:7"),
        ] {
            assert_eq!(address(host, 7), want);
        }
    }

    #[test]
    fn a_host_is_without_port_and_brackets() {
        for (addr, want) in [
            ("10.9.0.1:7", "10.9.0.1"),
            ("name:7", "name"),
            ("[fd09::1]:7", "fd09::1"),
            ("fe80::1%w1:7", "fe80::1%w1"),
        ] {
            assert_eq!(without_port(addr), want);
        }
    }

    #[test]
    fn sizes_are_powers_of_two() {
        for (text, want) in [
            ("7", 7),
            ("64K", 65_536),
            ("64KiB", 65_536),
            ("3MiB", 3 << 20),
            ("1GiB", 1 << 30),
        ] {
            assert_eq!(size(text), Ok(want), "{text}");
        }
        let huge = "99999999999999GiB";
        for bad in [
            "",
            "-1",
            "GiB",
            "1TiB",
            "1 MiB",
            "9999999999999999999999",
            huge,
        ] {
            assert!(size(bad).is_err(), "{bad}");
        }
        assert!(size_u32("4G").is_err());
    }

    #[test]
    fn durations_are_seconds_or_have_units() {
        for (text, ms) in [
            ("2", 2000),
            ("0.5", 500),
            ("250ms", 250),
            ("1min 30s", 90_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for bad in ["0", "-1", "nan", "1e9", "2days", "0.1ms", "soon", ""] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
