// SPDX-License-Identifier: MIT OR Apache-2.0

//! Addresses as the ABI has them.

use crate::abi;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};

const AF_INET: u16 = libc::AF_INET as u16;
const AF_INET6: u16 = libc::AF_INET6 as u16;

pub(super) fn to_abi(addr: &SocketAddr) -> abi::Addr {
    let mut bytes = [0; 16];
    let (family, scope_id) = match addr {
        SocketAddr::V4(v4) => {
            for (to, from) in bytes.iter_mut().zip(v4.ip().octets()) {
                *to = from;
            }
            (AF_INET, 0)
        }
        SocketAddr::V6(v6) => {
            bytes = v6.ip().octets();
            (AF_INET6, v6.scope_id())
        }
    };
    abi::Addr {
        family,
        port: addr.port(),
        scope_id,
        addr: bytes,
    }
}

/// An address that the kernel gave; one that it left out is `0.0.0.0:0`.
pub(super) fn from_abi(addr: &abi::Addr) -> SocketAddr {
    if addr.family == AF_INET6 {
        return SocketAddrV6::new(addr.addr.into(), addr.port, 0, addr.scope_id).into();
    }
    let [a, b, c, d, ..] = addr.addr;
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), addr.port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::Ipv6Addr;

    proptest! {
        #[test]
        fn addresses_come_back(octets: [u8; 16], v4: [u8; 4], port: u16, scope: u32) {
            let v6 = SocketAddrV6::new(Ipv6Addr::from(octets), port, 0, scope);
            let v4 = SocketAddr::new(IpAddr::V4(v4.into()), port);
            for addr in [v4, v6.into()] {
                prop_assert_eq!(from_abi(&to_abi(&addr)), addr);
            }
        }
    }

    #[test]
    fn addresses_are_as_the_header_has_them() {
        let addr = to_abi(&"10.9.0.2:7174".parse().unwrap());
        assert_eq!((addr.family, addr.port, addr.scope_id), (2, 7174, 0));
        assert_eq!(addr.addr, [10, 9, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let addr = to_abi(&"[fe80::1%3]:9".parse().unwrap());
        assert_eq!((addr.family, addr.port, addr.scope_id), (10, 9, 3));
        assert_eq!((addr.addr[0], addr.addr[15]), (0xfe, 1));
        let nothing = from_abi(&abi::Addr::default());
        assert_eq!(nothing, "0.0.0.0:0".parse().unwrap());
    }
}
