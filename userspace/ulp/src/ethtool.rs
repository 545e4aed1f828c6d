// SPDX-License-Identifier: MIT OR Apache-2.0

//! The statistics of a network interface, as `ethtool -S` prints them.
//!
//! Netlink has only the standard statistics, so this is the ioctl. The crate `below-ethtool` 0.9 does
//! not set the number of entries that it has room for; Linux 7.2 returns no names to it.

#![allow(unsafe_code)]

use nix::errno::Errno;
use nix::sys::socket::{socket, AddressFamily, SockFlag, SockType};
use std::os::fd::{AsRawFd, OwnedFd};

const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSTATS: u32 = 0x1d;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETH_SS_STATS: u32 = 1;
const ETH_GSTRING_LEN: usize = 32;
/// The largest number of statistics, and the number that the buffers have room for.
const MAX_STATS: usize = 1 << 15;
const ROOM: usize = 2 * MAX_STATS;

/// Runs a command, whose structure begins with `head`, and returns the `room` bytes after that.
fn command(socket: &OwnedFd, netdev: &str, head: &[u32], room: usize) -> nix::Result<Vec<u8>> {
    let mut buffer: Vec<u8> = head.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let len = buffer.len();
    buffer.resize(len + room, 0);
    let mut name = [0; libc::IF_NAMESIZE];
    if netdev.len() >= name.len() {
        return Err(Errno::ENODEV);
    }
    for (to, byte) in name.iter_mut().zip(netdev.bytes()) {
        *to = byte as libc::c_char;
    }
    let mut request = libc::ifreq {
        ifr_name: name,
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_data: buffer.as_mut_ptr().cast(),
        },
    };
    // SAFETY: `request` and `buffer` outlive the call. The kernel writes the head and an entry per
    // statistic (net/ethtool/ioctl.c). Linux 7.2 compares the number of entries with that in the
    // head. A kernel that does not writes as many as the driver has. ETHTOOL_GSSET_INFO returned at
    // most MAX_STATS just before, and `buffer` has room for twice as many.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &mut request) };
    Errno::result(done)?;
    Ok(buffer.split_off(len))
}

/// Returns the statistics of a network interface, with the driver's names.
pub fn statistics(netdev: &str) -> nix::Result<Vec<(String, u64)>> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Inet, SockType::Datagram, flags, None)?;
    // The command, a reserved word, and the 64 bits of the set's mask.
    let mask = (1u64 << ETH_SS_STATS).to_ne_bytes();
    let half = |n: usize| u32::from_ne_bytes([mask[n], mask[n + 1], mask[n + 2], mask[n + 3]]);
    let head = [ETHTOOL_GSSET_INFO, 0, half(0), half(4)];
    let info = command(&socket, netdev, &head, 4)?;
    let count = info.try_into().map_or(0, u32::from_ne_bytes);
    if count == 0 || count as usize > MAX_STATS {
        return Err(Errno::EOPNOTSUPP);
    }
    let head = [ETHTOOL_GSTRINGS, ETH_SS_STATS, count];
    let names = command(&socket, netdev, &head, ROOM * ETH_GSTRING_LEN)?;
    let values = command(
        &socket,
        netdev,
        &[ETHTOOL_GSTATS, count],
        ROOM * size_of::<u64>(),
    )?;
    let name = |bytes: &[u8]| {
        let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).into_owned()
    };
    let value = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
    let names = names.chunks_exact(ETH_GSTRING_LEN).map(name);
    let values = values.chunks_exact(size_of::<u64>()).map(value);
    let all = names.zip(values).take(count as usize);
    Ok(all.filter(|(name, _)| !name.is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_have_named_statistics_or_none() {
        for interface in &nix::net::if_::if_nameindex().unwrap() {
            let name = interface.name().to_str().unwrap();
            match statistics(name) {
                Ok(all) => assert!(!all.is_empty(), "{name}"),
                Err(error) => assert_eq!(error, Errno::EOPNOTSUPP, "{name}"),
            }
        }
        assert_eq!(statistics("no such one"), Err(Errno::ENODEV));
        assert_eq!(statistics("a name that is too long"), Err(Errno::ENODEV));
    }
}
