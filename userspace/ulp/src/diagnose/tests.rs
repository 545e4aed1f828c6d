// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tests that each English text has a Chinese one, and the reverse.

use super::cause::RetryCause;
use super::{host, CHINESE};
use crate::show::trouble;
use std::collections::BTreeSet;

/// The sources with texts: those of the diagnosis, and that of the meanings of counters.
const SOURCES: [&str; 3] = [
    include_str!("mod.rs"),
    include_str!("host.rs"),
    include_str!("peer.rs"),
];
const SHOW: &str = include_str!("../show.rs");

/// Returns the string literal at the start of a text, without the breaks in it.
fn literal(text: &str) -> Option<String> {
    let (text, _) = text.strip_prefix('"')?.split_once('"')?;
    let mut lines = text.split("\\\n");
    let first = lines.next()?.to_owned();
    Some(lines.fold(first, |all, line| all + line.trim_start()))
}

/// Returns the texts that the diagnosis says.
fn said() -> BTreeSet<String> {
    let mut texts = BTreeSet::new();
    for source in SOURCES {
        let calls = source.split("say!(").skip(1);
        let texts_of = calls.filter_map(|call| {
            let (_, text) = call.split_once(',')?;
            literal(text.trim_start())
        });
        texts.extend(texts_of);
    }
    texts
}

/// Returns the texts that the crate and other modules have.
fn others() -> BTreeSet<String> {
    let names = SHOW.split('"').filter_map(trouble);
    let mut texts: BTreeSet<String> = names.map(str::to_owned).collect();
    texts.extend(["link-local", "an IPv4 address", "an IPv6 address"].map(str::to_owned));
    texts.extend([host::IWARP, host::NO_SERVICE].map(str::to_owned));
    for cause in [
        RetryCause::PortDown,
        RetryCause::WrongGid,
        RetryCause::WrongNumber,
        RetryCause::WrongPsn,
        RetryCause::PeerDead,
        RetryCause::Paused,
        RetryCause::Mtu,
        RetryCause::Lossy,
        RetryCause::Blocked,
    ] {
        let (_, what, cure) = cause.texts();
        texts.extend([what, cure].map(str::to_owned));
    }
    texts
}

/// Returns the places for values of a text, sorted.
fn places(text: &str) -> BTreeSet<&str> {
    let parts = text.split('{').skip(1);
    parts
        .filter_map(|part| Some(part.split_once('}')?.0))
        .collect()
}

#[test]
fn each_english_text_has_a_chinese_one_with_the_same_places() {
    let lines = CHINESE.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.map(|line| line.split_once(" = ").expect(line));
    let pairs: Vec<(&str, &str)> = pairs.collect();
    for (english, chinese) in &pairs {
        assert_eq!(places(english), places(chinese), "{english}");
        assert!(!chinese.is_empty(), "{english}");
    }
    let translated: BTreeSet<String> = pairs.iter().map(|pair| pair.0.to_owned()).collect();
    assert_eq!(translated.len(), pairs.len(), "a text is there twice");
    let (said, others) = (said(), others());
    assert!(
        said.len() > 60 && others.len() > 30,
        "{} {}",
        said.len(),
        others.len()
    );
    let all: BTreeSet<String> = said.union(&others).cloned().collect();
    let missing: Vec<&String> = all.difference(&translated).collect();
    let unused: Vec<&String> = translated.difference(&all).collect();
    assert!(
        missing.is_empty() && unused.is_empty(),
        "missing {missing:#?}, unused {unused:#?}"
    );
}
