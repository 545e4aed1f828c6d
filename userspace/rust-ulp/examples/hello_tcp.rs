// SPDX-License-Identifier: MIT OR Apache-2.0

//! A message over TCP, and its answer: `hello_rc` without RDMA, to compare with.
//!
//!     hello_tcp listen 0.0.0.0:18515
//!     hello_tcp 10.9.0.2:18515 "hello"

use std::io::{Read, Result, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen", addr] => answer(addr),
        [addr, message] => ask(addr, message),
        _ => {
            eprintln!("usage: hello_tcp listen ADDR:PORT | hello_tcp ADDR:PORT MESSAGE");
            std::process::exit(2)
        }
    };
    if let Err(line) = result.map_err(|error| format!("hello_tcp: {error}\n")) {
        eprint!("{line}"); // one write, so that lines of two programs do not mix
        std::process::exit(1)
    }
}

fn answer(addr: &str) -> Result<()> {
    let (mut tcp, peer) = TcpListener::bind(addr)?.accept()?;
    let mut message = String::new(); // a stream has no messages: it ends when the other end says so
    tcp.read_to_string(&mut message)?;
    println!("{peer} says {message:?}");
    tcp.write_all(b"hello to you")
}

fn ask(addr: &str, message: &str) -> Result<()> {
    let mut tcp = TcpStream::connect(addr)?;
    tcp.write_all(message.as_bytes())?;
    tcp.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    tcp.read_to_string(&mut answer)?;
    println!("the answer is {answer:?}");
    Ok(())
}
