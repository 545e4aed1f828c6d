// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the peer said, in the form of this crate.

use crate::error::{Error, Result};
use crate::refusal::Private;
use crate::remote::RemoteSlice;
use crate::wire;
use std::fmt;

impl Private {
    /// Decodes the form of this crate.
    ///
    /// # Errors
    ///
    /// [`Error::Wire`] if they are not in that form.
    pub fn message(&self) -> Result<wire::PrivateData> {
        Ok(wire::PrivateData::decode(self.raw())?)
    }

    /// The grant number `index`, from 0.
    ///
    /// # Errors
    ///
    /// As [`Self::message`]; [`Error::Range`] if there are fewer.
    pub fn grant(&self, index: usize) -> Result<RemoteSlice> {
        let grants = self.message()?.grants;
        grants.get(index).copied().ok_or(Error::Range {
            what: "grants of the peer, by number from 0",
            offset: index as u64,
            len: 1,
            capacity: grants.len() as u64,
        })
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
