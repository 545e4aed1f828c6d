// SPDX-License-Identifier: MIT OR Apache-2.0
//? starter fails: reason

//! Lab 9: lets peers in by the connection manager.
//!
//!     main DEVICE ADDRESS:PORT CONNECTIONS

use lab::{Line, Result, LONG};
use rust_ulp::cm::{AcceptOptions, Listener, Request};
use rust_ulp::events::EventKind;
use rust_ulp::qp::Rc;
use rust_ulp::wr::{Recv, Send};
use rust_ulp::{Access, Buffer, Device};

/// The version of the exchange that this program speaks.
const VERSION: u64 = 2;

fn main() {
    lab::run(work)
}

/// Accepts a request, and does what the peer asks for.
fn serve(dev: &Device, memory: &Buffer, request: Request, nonce: u64) -> Result<()> {
    let (pd, cq) = (memory.pd(), dev.create_cq(16)?);
    let word = pd.alloc_buffer(64)?;
    let qp = pd.qp_builder::<Rc>(&cq).build()?;
    qp.post_recv(Recv::new(word.slice(..)?))?;
    let grant = memory.grant(.., Access::REMOTE_READ | Access::REMOTE_WRITE)?;
    let remote = grant.remote();
    // learner 2: what does the peer need to know to access the memory?
    //? let _ = (remote, nonce);
    //? let options = AcceptOptions::new();
    let (addr, len, rkey) = (remote.addr(), remote.len(), remote.rkey());
    let text = format!("addr={addr} len={len} rkey={rkey} nonce={nonce}");
    let options = AcceptOptions::new().raw(text.as_bytes());
    // end 2
    let connection = request.accept(qp, &options)?;
    let len = cq.wait(LONG)?.ok()?.byte_len as usize;
    match word.to_vec(..len)?.as_slice() {
        b"revoke" => {
            // learner 3: end the grant, say `revoked`, and stay until the peer has hung up
            //? connection.qp().post(Send::inline_bytes(b"revoked"))?;
            grant.revoke()?;
            connection.qp().post(Send::inline_bytes(b"revoked"))?;
            loop {
                let event = dev.events().wait(LONG)?;
                if event.kind == EventKind::Disconnected && event.is_about(&connection) {
                    break;
                }
            }
            // end 3
        }
        b"leave" => {
            // learner 4: say `bye`, and hang up when the word cannot be lost any more
            //? connection.qp().post(Send::inline_bytes(b"bye"))?;
            //? connection.disconnect()?;
            connection.qp().post(Send::inline_bytes(b"bye"))?;
            cq.wait(LONG)?.check()?;
            connection.disconnect()?;
            // end 4
        }
        other => return Err(format!("'{}' came", String::from_utf8_lossy(other)).into()),
    }
    Ok(())
}

fn work(args: &[&str]) -> Result<()> {
    let [device, addr, connections] = *args else {
        return Err("usage: main DEVICE ADDRESS:PORT CONNECTIONS".into());
    };
    let dev = Device::open(device)?;
    let memory = dev.alloc_pd()?.alloc_buffer(4096)?;
    let listener = Listener::bind(&dev, addr.parse()?, 4)?;
    let mut left: u32 = connections.parse()?;
    while left > 0 {
        let request = listener.next_request(LONG)?;
        let said = String::from_utf8_lossy(request.private().raw()).to_string();
        // The manager fills private data up with zeros.
        let said = Line(said.trim_end_matches('\0').to_string());
        let (version, nonce) = (said.number("version")?, said.number("nonce")?);
        if version != VERSION {
            // learner 1: the peer speaks another version: let it know which one would do
            //? let _ = nonce;
            //? request.reject(b"")?;
            request.reject(format!("version={VERSION} nonce={nonce}").as_bytes())?;
            // end 1
            continue;
        }
        serve(&dev, &memory, request, nonce)?;
        left -= 1;
    }
    Ok(())
}
