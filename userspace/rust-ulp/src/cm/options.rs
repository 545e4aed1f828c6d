// SPDX-License-Identifier: MIT OR Apache-2.0

//! Options and private data of connecting, accepting and rejecting.

#[cfg(doc)]
use super::Request;
use crate::abi;
use crate::error::{Error, Result};
use crate::grant::Grant;
#[cfg(doc)]
use crate::qp::PreparedQp;
use crate::wire;
use std::net::SocketAddr;
use std::time::Duration;

/// The default time limit of connecting and accepting.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// The private data of a request, an acceptance or a rejection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Saying {
    Form(wire::PrivateData),
    Raw(Vec<u8>),
}

impl Default for Saying {
    fn default() -> Self {
        Self::Raw(Vec::new())
    }
}

impl Saying {
    /// Changes the form; bytes that were to go as they are give way to an empty one.
    pub(super) fn form(&mut self, change: impl FnOnce(&mut wire::PrivateData)) {
        let mut form = match std::mem::take(self) {
            Self::Form(form) => form,
            Self::Raw(_) => wire::PrivateData::default(),
        };
        change(&mut form);
        *self = Self::Form(form);
    }

    /// Returns the bytes, as the ABI has them, and how many there are.
    pub(super) fn encode(&self, max: usize) -> Result<([u8; abi::CM_PRIVATE_MAX], u32)> {
        let bytes = match self {
            Self::Form(form) => form.encode(),
            Self::Raw(raw) => raw.clone(),
        };
        if bytes.len() > max {
            return Err(Error::TooMany {
                what: "bytes of private data",
                count: bytes.len() as u64,
                max: max as u64,
            });
        }
        let mut field = [0; abi::CM_PRIVATE_MAX];
        for (to, from) in field.iter_mut().zip(&bytes) {
            *to = *from;
        }
        Ok((field, bytes.len() as u32))
    }
}

macro_rules! options {
    (
        $(#[$meta:meta])*
        $name:ident { $($extra:ident: $ty:ty)* }, $max:literal, $grants:literal
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug)]
        pub struct $name {
            pub(super) timeout: Duration,
            pub(super) flow_control: bool,
            pub(super) user_data: u64,
            pub(super) saying: Saying,
            $(pub(super) $extra: $ty,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self::new()
            }
        }

        impl $name {
            /// Returns options with a time limit of [`TIMEOUT`] and without private data.
            pub fn new() -> Self {
                Self {
                    timeout: TIMEOUT,
                    flow_control: false,
                    user_data: 0,
                    saying: Saying::default(),
                    $($extra: <$ty>::default(),)*
                }
            }

            /// Sets the time limit. The default is [`TIMEOUT`].
            pub fn timeout(mut self, timeout: Duration) -> Self {
                self.timeout = timeout;
                self
            }

            /// Sets a value that events about the connection carry
            /// ([`Event::user_data`](crate::events::Event::user_data)); 0 unless said.
            pub fn user_data(mut self, value: u64) -> Self {
                self.user_data = value;
                self
            }

            #[doc = concat!("Tells the peer of a grant, with its rights. Each takes 24 bytes of the ", $max,
                " there are, and 4 are taken by the form: at most ", $grants, ".")]
            pub fn grant(mut self, grant: &Grant) -> Self {
                self.saying.form(|form| form.grants.push(grant.remote()));
                self
            }

            /// Tells the peer so many bytes, in the form of [`wire::PrivateData`].
            pub fn data(mut self, data: &[u8]) -> Self {
                self.saying.form(|form| form.data = data.to_vec());
                self
            }

            #[doc = concat!("Tells the peer these bytes, at most ", $max, ", in place of that form: for peers ",
                "that have one of their own. The peer may see zeros behind them.")]
            pub fn raw(mut self, bytes: &[u8]) -> Self {
                self.saying = Saying::Raw(bytes.to_vec());
                self
            }

            /// Asks for end-to-end flow control, where the device has it.
            #[doc(alias = "RUST_ULP_CONN_FLOW_CONTROL")]
            pub fn flow_control(mut self) -> Self {
                self.flow_control = true;
                self
            }
        }
    };
}

options! {
    /// Options of [`PreparedQp::connect_cm`].
    #[doc(alias = "rust_ulp_connect")]
    ConnectOptions { source: Option<SocketAddr> }, "56", "2"
}

options! {
    /// Options of [`Request::accept`].
    #[doc(alias = "rust_ulp_accept")]
    AcceptOptions {}, "196", "8"
}

impl ConnectOptions {
    /// Sets the address to connect from, with port 0 for any. The default is that of the route.
    pub fn source(mut self, addr: SocketAddr) -> Self {
        self.source = Some(addr);
        self
    }
}
