// SPDX-License-Identifier: MIT OR Apache-2.0

//! The peer's private data, in the form of this crate.

use crate::error::Result;
use crate::params::nth;
use crate::refusal::Private;
use crate::remote::RemoteSlice;
use crate::wire;
use std::fmt;

impl Private {
    /// Decodes the form of this crate.
    ///
    /// # Errors
    ///
    /// [`Error::Wire`](crate::Error::Wire) if they are not in that form.
    pub fn message(&self) -> Result<wire::PrivateData> {
        Ok(wire::PrivateData::decode(self.raw())?)
    }

    /// Returns the grant number `index`, from 0.
    ///
    /// # Errors
    ///
    /// As [`Self::message`]; [`Error::Value`](crate::Error::Value) if there are fewer.
    pub fn grant(&self, index: usize) -> Result<RemoteSlice> {
        let grants = self.message()?.grants;
        nth("the index of a grant of the peer", &grants, index)
    }
}

impl fmt::Debug for Private {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.message() {
            Ok(message) => fmt::Debug::fmt(&message, f),
            Err(_) => write!(f, "Private({:02x?})", self.raw()),
        }
    }
}
