// SPDX-License-Identifier: MIT OR Apache-2.0

//! The replies of the last requests of each client, so that a request which a client repeats on a
//! new connection is carried out once.

use crate::wire::{Reply, Status};
use std::collections::{BTreeMap, HashMap};

/// Replies that are kept per client.
const PER_CLIENT: usize = 1024;
/// Clients whose replies are kept.
const CLIENTS: usize = 4096;

#[derive(Debug, Default)]
struct Client {
    replies: BTreeMap<u64, Reply>,
    /// Requests before this one are done, or will never be.
    done: u64,
    /// When the client connected last, as a count of connections.
    connected: u64,
}

/// The replies.
#[derive(Debug, Default)]
pub struct Replies {
    clients: HashMap<u64, Client>,
    connections: u64,
}

impl Replies {
    /// Notes that a client connects, and returns whether its replies are here.
    pub fn connect(&mut self, client: u64) -> bool {
        self.connections += 1;
        let known = self.clients.contains_key(&client);
        if !known && self.clients.len() >= CLIENTS {
            // The one that connected first.
            let oldest = self
                .clients
                .iter()
                .min_by_key(|(_, client)| client.connected);
            if let Some(oldest) = oldest.map(|(id, _)| *id) {
                self.clients.remove(&oldest);
            }
        }
        self.clients.entry(client).or_default().connected = self.connections;
        known
    }

    /// Returns the reply to a request that is not to be carried out: it was before, or its client
    /// needs no reply any more. `done` is as in
    /// [`Header::done`](crate::wire::Header::done).
    pub fn known(&mut self, id: u64, sequence: u64, done: u64) -> Option<Reply> {
        let forgotten = Reply::new(sequence, Status::Forgotten);
        let Some(client) = self.clients.get_mut(&id) else {
            return Some(forgotten);
        };
        if done > client.done {
            client.done = done;
            client.replies = client.replies.split_off(&done);
        }
        match client.replies.get(&sequence) {
            Some(reply) => Some(*reply),
            None if sequence < client.done => Some(forgotten),
            None => None,
        }
    }

    /// Keeps the reply to a request that was carried out.
    pub fn keep(&mut self, id: u64, reply: Reply) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        client.replies.insert(reply.sequence, reply);
        if client.replies.len() > PER_CLIENT {
            if let Some((first, _)) = client.replies.pop_first() {
                client.done = client.done.max(first + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_carried_out_once() {
        let mut replies = Replies::default();
        let (done, forgotten) = (
            |n| Reply::new(n, Status::Done),
            |n| Some(Reply::new(n, Status::Forgotten)),
        );
        assert_eq!(replies.known(7, 1, 0), forgotten(1));
        assert!(!replies.connect(7) && !replies.connect(8) && replies.connect(7));
        assert_eq!(replies.known(7, 5, 3), None);
        replies.keep(7, done(5));
        assert_eq!(replies.known(7, 5, 3), Some(done(5)));
        assert_eq!(replies.known(8, 5, 3), None);
        // Out of order, and one that comes when its client has given it up.
        assert_eq!(replies.known(7, 4, 3), None);
        replies.keep(7, done(4));
        assert_eq!(replies.known(7, 6, 6), None);
        assert_eq!(
            (replies.known(7, 4, 3), replies.known(7, 2, 0)),
            (forgotten(4), forgotten(2))
        );
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut replies = Replies::default();
        replies.connect(1);
        for n in 0..2000 {
            assert_eq!(replies.known(1, n, 0), None);
            replies.keep(1, Reply::new(n, Status::Done));
        }
        assert_eq!(replies.clients[&1].replies.len(), PER_CLIENT);
        assert_eq!(replies.known(1, 3, 0).unwrap().status, Status::Forgotten);
        assert_eq!(replies.known(1, 1999, 0).unwrap().status, Status::Done);
        for n in 2..=CLIENTS as u64 + 1 {
            replies.connect(n);
        }
        assert!(!replies.connect(1) && replies.connect(CLIENTS as u64));
        assert_eq!(replies.clients.len(), CLIENTS);
    }
}
