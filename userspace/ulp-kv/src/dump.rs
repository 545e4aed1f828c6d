// SPDX-License-Identifier: MIT OR Apache-2.0

//! The file that a server loads its contents from and saves them to.
//!
//! The first line has the members and the next version as JSON. Behind it are the records, each with its length before it
//! (4 bytes, little-endian) and encoded as in the memory, but for place 0 of a table with seed 0.
//! The length 0 ends the file.

use crate::error::{Error, Result};
use crate::layout::{decode, Found, Geometry, HEADER, MAX_KEY, MAX_VALUE};
use crate::server::Membership;
use crate::table::{Memory, Table, LAST_VERSION};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, ErrorKind, Read, Write};
use std::path::Path;

/// What the checksums of the records in a file depend on.
const GEOMETRY: Geometry = Geometry {
    buckets: 1,
    max_value: 0,
    len: 0,
    segment: 128,
    seed: 0,
};

#[derive(Serialize, Deserialize)]
struct Head {
    ulp_kv: u32,
    membership: Membership,
    next_version: u64,
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> Error + '_ {
    move |cause| Error::File {
        path: path.display().to_string(),
        cause,
    }
}

fn corrupt(what: &'static str) -> std::io::Error {
    std::io::Error::new(ErrorKind::InvalidData, what)
}

/// Loads the contents into an empty table, and returns who the members are. A file that does not exist is
/// empty.
pub fn load<M: Memory>(path: &Path, table: &mut Table<M>, now: u32) -> Result<Membership> {
    let failed = failed(path);
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Membership::default()),
        file => file.map_err(&failed)?,
    };
    let mut file = BufReader::new(file);
    let mut line = String::new();
    let head = (&mut file).take(1 << 20).read_line(&mut line);
    let head = head.and_then(|_| Ok(serde_json::from_str::<Head>(&line)?));
    let head = head.map_err(&failed)?;
    if head.ulp_kv != 1 {
        return Err(failed(corrupt("the file of another version")));
    }
    if head.next_version >= LAST_VERSION {
        return Err(failed(corrupt("a version that is too large")));
    }
    table.skip_versions(head.next_version);
    let mut bytes = Vec::new();
    loop {
        let mut len = [0; 4];
        file.read_exact(&mut len).map_err(&failed)?;
        let len = u32::from_le_bytes(len) as usize;
        if len == 0 {
            return Ok(head.membership);
        }
        if len > HEADER + MAX_KEY + MAX_VALUE {
            return Err(failed(corrupt("a record that is too long")));
        }
        bytes.resize(len, 0);
        file.read_exact(&mut bytes).map_err(&failed)?;
        match decode(&GEOMETRY, 0, &bytes, true) {
            Found::Valid(record) => table.restore(&record, now)?,
            _ => return Err(failed(corrupt("a record that is not whole"))),
        }
    }
}

/// Saves the contents of a table. The file has either the old contents or the new ones.
pub fn save<M: Memory>(path: &Path, table: &Table<M>, membership: &Membership) -> Result<()> {
    let failed = failed(path);
    let mut new = path.to_owned().into_os_string();
    new.push(".new");
    let write = || -> Result<()> {
        let mut file = BufWriter::new(File::create(&new).map_err(&failed)?);
        let head = Head {
            ulp_kv: 1,
            membership: membership.clone(),
            next_version: table.next_version(),
        };
        serde_json::to_writer(&mut file, &head).map_err(|error| failed(error.into()))?;
        file.write_all(b"\n").map_err(&failed)?;
        table.for_each(|record| {
            let bytes = record.encode(&GEOMETRY, 0);
            let len = (bytes.len() as u32).to_le_bytes();
            let both = file.write_all(&len).and_then(|()| file.write_all(&bytes));
            both.map_err(&failed)
        })?;
        file.write_all(&[0; 4]).map_err(&failed)?;
        let file = file
            .into_inner()
            .map_err(|error| failed(error.into_error()))?;
        file.sync_all().map_err(&failed)
    };
    write()?;
    std::fs::rename(&new, path).map_err(&failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Members;
    use crate::table::tests::{put, request, Words};
    use crate::wire::{Condition, Write};

    fn table(words: &Words) -> Table<&Words> {
        let geometry = Geometry::new(1 << 17, 1 << 17, 300, 4096, 5).unwrap();
        Table::new(words, geometry, 1).unwrap()
    }

    #[test]
    fn contents_come_back() {
        let dir = std::env::temp_dir().join(format!("ulp-kv-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("contents");
        let members = Members {
            epoch: 3,
            names: vec!["a:1".to_owned()],
        };
        let (words, members) = (
            Words::new(1 << 17),
            Membership {
                members,
                moving: true,
            },
        );
        let mut old = table(&words);
        assert_eq!(load(&path, &mut old, 0).unwrap(), Membership::default());
        for n in 0..50u8 {
            old.apply(&put(&[n], &vec![n; 20 * n as usize]), 0).unwrap();
        }
        old.apply(
            &request(
                b"short",
                Condition::Always,
                Write::Put {
                    value: b"1",
                    ttl: 5,
                },
            ),
            100,
        )
        .unwrap();
        old.apply(
            &request(
                b"long",
                Condition::Always,
                Write::Put {
                    value: b"1",
                    ttl: 500,
                },
            ),
            100,
        )
        .unwrap();
        save(&path, &old, &members).unwrap();
        let words = Words::new(1 << 17);
        let mut new = table(&words);
        assert_eq!(load(&path, &mut new, 106).unwrap(), members);
        assert_eq!(new.keys(), 51);
        // 52 versions before, and one for each record that was loaded.
        assert_eq!(new.next_version(), 1 + 52 + 51);
        new.for_each(|record| {
            match record.key {
                b"long" => assert_eq!((record.value, record.expires), (&b"1"[..], 601)),
                [n] => assert_eq!(record.value, vec![*n; 20 * *n as usize]),
                key => panic!("{key:?}"),
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(new.expire(601).unwrap(), 1);
        // A byte that is wrong, and a file that is too short, are seen.
        let good = std::fs::read(&path).unwrap();
        let mut bad = good.clone();
        bad[good.len() / 2] ^= 1;
        for bad in [&bad[..], &good[..good.len() - 1], b"", b"{}\n"] {
            std::fs::write(&path, bad).unwrap();
            let words = Words::new(1 << 17);
            let loaded = load(&path, &mut table(&words), 0);
            assert!(matches!(loaded, Err(Error::File { .. })), "{loaded:?}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
