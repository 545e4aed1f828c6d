// SPDX-License-Identifier: MIT OR Apache-2.0

//! The meta commands of memcached 1.6, as its `doc/protocol.txt` describes them. No I/O of its own.

use crate::wire::Condition;
use crate::{Op, Outcome, Value, MAX_VALUE};
use std::io::{self, BufRead, ErrorKind, Read, Write};

/// Bytes of the longest key, and of a line of the server.
const MAX_KEY: usize = 250;
const MAX_LINE: u64 = 2048;

/// Writes the request of an operation.
pub fn request(op: &Op<'_>, to: &mut impl Write) -> io::Result<()> {
    let key = op.key();
    let is_good = |byte: &u8| !byte.is_ascii_control() && *byte != b' ';
    if key.len() > MAX_KEY || !key.iter().all(is_good) {
        let what = "keys of memcached have at most 250 bytes, and no spaces";
        return Err(io::Error::new(ErrorKind::InvalidInput, what));
    }
    let only_if = Condition::Always;
    match *op {
        Op::Get { .. } => {
            to.write_all(b"mg ")?;
            to.write_all(key)?;
            to.write_all(b" v\r\n")
        }
        Op::Put {
            value,
            ttl: None,
            only_if: Condition::Always,
            ..
        } => {
            to.write_all(b"ms ")?;
            to.write_all(key)?;
            write!(to, " {}\r\n", value.len())?;
            to.write_all(value)?;
            to.write_all(b"\r\n")
        }
        Op::Delete { .. } if *op == (Op::Delete { key, only_if }) => {
            to.write_all(b"md ")?;
            to.write_all(key)?;
            to.write_all(b"\r\n")
        }
        _ => Err(ErrorKind::Unsupported.into()),
    }
}

/// Reads the answer to an operation.
pub fn answer(op: &Op<'_>, from: &mut impl BufRead) -> io::Result<Outcome> {
    let mut line = Vec::new();
    from.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let text = String::from_utf8_lossy(&line);
    let words: Vec<&str> = text.trim_end().split(' ').collect();
    Ok(match (op, &words[..]) {
        (Op::Get { .. }, ["VA", len]) => Outcome::Value(Some(Value {
            bytes: value(len.parse().unwrap_or(usize::MAX), from)?,
            version: 0,
        })),
        (Op::Get { .. }, ["EN"]) => Outcome::Value(None),
        (Op::Put { .. }, ["HD"]) => Outcome::Written(0),
        (Op::Delete { .. }, ["HD"]) => Outcome::Deleted(true),
        (Op::Delete { .. }, ["NF"]) => Outcome::Deleted(false),
        _ => return Err(nonsense(&format!("it answers {text:?}"))),
    })
}

fn nonsense(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

/// Reads a value and the end of its line.
fn value(len: usize, from: &mut impl BufRead) -> io::Result<Vec<u8>> {
    if len > MAX_VALUE {
        return Err(nonsense("it answers with a value that is too long"));
    }
    let (mut bytes, mut end) = (vec![0; len], [0; 2]);
    from.read_exact(&mut bytes)?;
    from.read_exact(&mut end)?;
    match &end {
        b"\r\n" => Ok(bytes),
        _ => Err(nonsense("it answers with a value of another length")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: Op<'_> = Op::Get { key: b"k" };

    #[test]
    fn requests_are_lines() {
        let only_if = Condition::Always;
        let mut bytes = Vec::new();
        request(&GET, &mut bytes).unwrap();
        request(&Op::put(b"k", b"a\r\nb"), &mut bytes).unwrap();
        request(&Op::Delete { key: b"k", only_if }, &mut bytes).unwrap();
        assert_eq!(bytes, b"mg k v\r\nms k 4\r\na\r\nb\r\nmd k\r\n");
    }

    #[test]
    fn what_memcached_cannot_do_is_refused() {
        let long = [b'k'; MAX_KEY + 1];
        let only_if = Condition::Absent;
        let put = Op::Put {
            key: b"k",
            value: b"",
            ttl: None,
            only_if,
        };
        let ops = [
            Op::get(b"a key"),
            Op::get(b"a\nkey"),
            Op::get(&long),
            put,
            Op::Delete { key: b"k", only_if },
            Op::Add { key: b"k", by: 1 },
        ];
        for op in ops {
            let mut bytes = Vec::new();
            assert!(request(&op, &mut bytes).is_err(), "{op:?}");
            assert!(bytes.is_empty(), "{op:?}");
        }
        assert!(request(&Op::get(&long[1..]), &mut Vec::new()).is_ok());
    }

    #[test]
    fn answers_are_taken_in_order() {
        let only_if = Condition::Always;
        let (put, delete) = (Op::put(b"k", b""), Op::Delete { key: b"k", only_if });
        let mut from = &b"VA 4\r\na\r\nb\r\nEN\r\nHD\r\nHD\r\nNF\r\nVA 0\r\n\r\n"[..];
        let got = [GET, GET, put, delete, delete, GET].map(|op| answer(&op, &mut from).unwrap());
        let value = |bytes: &[u8]| {
            Outcome::Value(Some(Value {
                bytes: bytes.to_vec(),
                version: 0,
            }))
        };
        let want = [
            value(b"a\r\nb"),
            Outcome::Value(None),
            Outcome::Written(0),
            Outcome::Deleted(true),
            Outcome::Deleted(false),
            value(b""),
        ];
        assert_eq!((got, from), (want, &b""[..]));
    }

    #[test]
    fn nonsense_is_an_error() {
        let cases: [(&[u8], &str); 10] = [
            (b"", "unexpected end"),
            (b"VA 4\r\nab", "failed to fill"),
            (b"VA 1\r\nab\r\n", "another length"),
            (b"VA 3\r\nab\r\n", "another length"),
            (b"VA 65537\r\n", "too long"),
            (b"VA -1\r\n", "too long"),
            (b"VA\r\n", "it answers \"VA"),
            (b"HD\r\n", "it answers \"HD"),
            (b"\r\n", "it answers"),
            (b"SERVER_ERROR out of memory\r\n", "out of memory"),
        ];
        for (mut bytes, why) in cases {
            // One that waits for more bytes than there are sees the next answer's.
            let bytes_and_more = [bytes, b"EN\r\n"].concat();
            if why == "another length" {
                bytes = &bytes_and_more;
            }
            let error = answer(&GET, &mut bytes).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
