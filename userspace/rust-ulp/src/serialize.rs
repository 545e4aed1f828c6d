// SPDX-License-Identifier: MIT OR Apache-2.0

//! Serde for what peers tell each other: the feature `serde`.
//!
//! What is read is checked as the constructors check it. A GID is an IPv6 address, an MTU is its
//! bytes, and rights are the bits of [`Access`].

use crate::access::Access;
use crate::endpoint::Mtu;
use crate::gid::Gid;
use crate::remote::RemoteSlice;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::net::Ipv6Addr;

impl Serialize for Gid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Ipv6Addr::from(self.0).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Gid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ipv6Addr::deserialize(deserializer).map(Self::from)
    }
}

impl Serialize for Mtu {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.bytes().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Mtu {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = u32::deserialize(deserializer)?;
        let mtu = Self::at_most(bytes);
        let is_one = mtu.bytes() == bytes;
        is_one.then_some(mtu).ok_or_else(|| {
            let text = format!("an MTU is 256, 512, 1024, 2048 or 4096 bytes, not {bytes}");
            D::Error::custom(text)
        })
    }
}

impl Serialize for Access {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.bits().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Access {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bits = u32::deserialize(deserializer)?;
        let error = || D::Error::custom(format!("{bits:#x} has bits that are no rights"));
        Self::from_bits(bits).ok_or_else(error)
    }
}

#[derive(Deserialize, Serialize)]
#[serde(rename = "RemoteSlice")]
struct Fields {
    addr: u64,
    len: u64,
    rkey: u32,
    access: Option<Access>,
}

impl Serialize for RemoteSlice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = Fields {
            addr: self.addr(),
            len: self.len(),
            rkey: self.rkey(),
            access: self.access(),
        };
        fields.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RemoteSlice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = Fields::deserialize(deserializer)?;
        let slice = Self::new(fields.addr, fields.len, fields.rkey).map_err(D::Error::custom)?;
        Ok(match fields.access {
            Some(access) => slice.with_access(access),
            None => slice,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Endpoint;
    use serde_json::{from_str, json, to_value};

    #[test]
    fn an_end_and_a_slice_come_back() {
        let gid = "::ffff:10.9.0.2".parse().unwrap();
        let end = Endpoint::new(0x12, 0x34, gid, Mtu::B2048).lid(7);
        let value = json!({"qp_num": 0x12, "psn": 0x34, "gid": "::ffff:10.9.0.2", "lid": 7,
            "mtu": 2048, "responder": 1, "initiator": 1});
        assert_eq!(to_value(end).unwrap(), value);
        assert_eq!(from_str::<Endpoint>(&value.to_string()).unwrap(), end);

        let bare = RemoteSlice::new(4096, 64, 9).unwrap();
        for (slice, access) in [
            (bare, None),
            (bare.with_access(Access::REMOTE_READ), Some(4)),
        ] {
            let value = json!({"addr": 4096, "len": 64, "rkey": 9, "access": access});
            assert_eq!(to_value(slice).unwrap(), value);
            assert_eq!(from_str::<RemoteSlice>(&value.to_string()).unwrap(), slice);
        }
    }

    #[test]
    fn what_no_constructor_makes_is_refused() {
        for (text, words) in [
            (
                r#"{"addr":18446744073709551615,"len":1,"rkey":0,"access":null}"#,
                "remote address",
            ),
            (r#"{"addr":0,"len":1,"rkey":0,"access":1}"#, "no rights"),
        ] {
            let error = from_str::<RemoteSlice>(text).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        for bytes in ["0", "255", "1000", "8192"] {
            let error = from_str::<Mtu>(bytes).unwrap_err().to_string();
            assert!(error.contains("an MTU is"), "{error}");
        }
    }
}
