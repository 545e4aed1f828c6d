// SPDX-License-Identifier: GPL-2.0
//! A queue pair is connected once, even when that failed.
//@ error E0382: use of moved value: `prepared`

pub fn promise(prepared: PreparedQp<Rc>, peer: Endpoint) -> Result<()> {
    if let Err(error) = prepared.connect(peer) {
        eprintln!("{error}");
        prepared.connect(peer)?; //~ BAD
    }
    Ok(())
}
