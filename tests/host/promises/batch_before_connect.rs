// SPDX-License-Identifier: GPL-2.0
//! There is no batch of sends for a queue pair that is not connected.
//@ error E0599: no method named `batch` found for struct `Qp<Rc, Init>`

pub fn promise(qp: PreparedQp<Rc>) -> Result<()> {
    let _ = qp.batch(); //~ BAD
    qp.post_recv(Recv::empty())
}
