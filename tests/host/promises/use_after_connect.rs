// SPDX-License-Identifier: GPL-2.0
//! Connecting takes the queue pair: what it was is gone.
//@ error E0382: borrow of moved value: `prepared`

pub fn promise(prepared: PreparedQp<Rc>, peer: Endpoint) -> Result<()> {
    prepared.post_recv(Recv::empty())?;
    let qp = prepared.connect(peer)?;
    prepared.post_recv(Recv::empty())?; //~ BAD
    qp.post_recv(Recv::empty())
}
