// SPDX-License-Identifier: MIT OR Apache-2.0
//! stub
#[derive(Debug)]
pub(crate) struct Kernel;
impl Kernel {
    pub(crate) unsafe fn issue(&self, _name: &str, _arg: *mut u8) -> Result<(), nix::errno::Errno> {
        Err(nix::errno::Errno::ENOTTY)
    }
}
