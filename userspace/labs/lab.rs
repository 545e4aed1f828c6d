// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the programs of the labs share: the exchange over TCP, in lines of `name=value`.

use rust_ulp::{Endpoint, Gid, Mtu};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// What can go wrong in a lab.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// How long a lab waits for anything: the check ends a program that hangs, and the machine may stall.
pub const LONG: Duration = Duration::from_secs(600);

/// Runs `work` with the arguments of the program. An error is printed, and the status is 1.
pub fn run(work: fn(&[&str]) -> Result<()>) {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    if let Err(error) = work(&args) {
        eprintln!("{error}");
        std::process::exit(1)
    }
}

/// The connection to the other end of the exchange.
pub struct Wire {
    stream: TcpStream,
    lines: BufReader<TcpStream>,
}

impl Wire {
    /// Connects to ADDRESS:PORT.
    pub fn connect(addr: &str) -> Result<Self> {
        let stream = TcpStream::connect(addr)?;
        stream.set_read_timeout(Some(LONG))?;
        stream.set_nodelay(true)?;
        let lines = BufReader::new(stream.try_clone()?);
        Ok(Self { stream, lines })
    }

    /// Sends a line.
    pub fn say(&mut self, line: &str) -> Result<()> {
        Ok(self.stream.write_all(format!("{line}\n").as_bytes())?)
    }

    /// Waits for the next line.
    pub fn hear(&mut self) -> Result<Line> {
        let mut line = String::new();
        if self.lines.read_line(&mut line)? == 0 {
            return Err("the other end has closed the exchange".into());
        }
        Ok(Line(line.trim().to_string()))
    }

    /// Waits for the line that is this word.
    pub fn wait_for(&mut self, word: &str) -> Result<()> {
        let line = self.hear()?.0;
        if line == word {
            Ok(())
        } else {
            Err(format!("'{line}' came, not '{word}'").into())
        }
    }
}

/// A line of the exchange.
pub struct Line(pub String);

impl Line {
    /// The value of `name=value`.
    pub fn text(&self, name: &str) -> Result<&str> {
        let mut fields = self
            .0
            .split_whitespace()
            .filter_map(|word| word.split_once('='));
        let found = fields.find(|(key, _)| *key == name);
        found
            .map(|(_, value)| value)
            .ok_or_else(|| format!("no {name}= in '{}'", self.0).into())
    }

    /// The same as a number.
    pub fn number(&self, name: &str) -> Result<u64> {
        Ok(self.text(name)?.parse()?)
    }

    /// The same as a number of 32 bits.
    pub fn short(&self, name: &str) -> Result<u32> {
        Ok(self.text(name)?.parse()?)
    }

    /// The same as a GID.
    pub fn gid(&self, name: &str) -> Result<Gid> {
        Ok(self.text(name)?.parse()?)
    }

    /// The queue pair that the line describes, by its number, first PSN and GID; see lab 3.
    pub fn endpoint(&self) -> Result<Endpoint> {
        let (qpn, psn) = (self.short("qpn")?, self.short("psn")?);
        Ok(Endpoint::new(qpn, psn, self.gid("gid")?, Mtu::B1024))
    }
}

/// Calls `done` until it returns a value, for at most [`LONG`].
pub fn until<T>(mut done: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let end = Instant::now() + LONG;
    loop {
        if let Some(value) = done()? {
            return Ok(value);
        }
        if Instant::now() > end {
            return Err("it takes too long".into());
        }
    }
}
