// SPDX-License-Identifier: GPL-2.0
//! Rights come from a grant.
//@ error E0451: of struct `RemoteSlice`

pub fn promise() -> Result<RemoteSlice> {
    let slice = RemoteSlice::new(0, 8, 1)?;
    let slice = RemoteSlice { addr: 0, len: 8, rkey: 1, access: None }; //~ BAD
    Ok(slice)
}
