// SPDX-License-Identifier: GPL-2.0
//! A queue pair of datagrams has no peer for whom a grant could be.
//@ error E0277: the trait bound `Ud: Connected` is not satisfied

pub fn promise(qp: &Qp<Rc>, datagrams: &Qp<Ud>) -> (GrantOptions, GrantOptions) {
    let other = GrantOptions::new();
    let other = other.bound_to(datagrams); //~ BAD
    (GrantOptions::new().bound_to(qp), other)
}
