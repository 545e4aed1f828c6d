// SPDX-License-Identifier: GPL-2.0
//! A datagram queue pair has no other end.
//@ error E0599: the method `peer` exists for reference `&Qp<Ud>`, but its trait bounds

pub fn promise(uc: &Qp<Uc>, ud: &Qp<Ud>) {
    println!("{} {}", ud.endpoint(), uc.peer());
    println!("{}", ud.peer()); //~ BAD
}
