// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;
use crate::lang::keys;
use packet::OPERATIONS;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::process::id;

/// Frames in hexadecimal, each with its line in English: milliseconds, bytes, line.
const GOLDEN: &str = include_str!("golden.txt");

fn golden() -> Vec<(Duration, Vec<u8>, &'static str)> {
    let mut all = Vec::new();
    let mut lines = GOLDEN.lines().filter(|line| !line.starts_with('#'));
    while let (Some(input), Some(output)) = (lines.next(), lines.next()) {
        let (ms, hex) = input.split_once(' ').unwrap();
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        let bytes = (0..hex.len()).step_by(2).map(byte).collect();
        let at = Duration::from_millis(1000 + ms.parse::<u64>().unwrap());
        all.push((at, bytes, output.trim()));
    }
    assert!(all.len() >= 16, "{}", all.len());
    all
}

#[test]
fn each_packet_of_the_fixture_has_its_line_in_both_languages() {
    let (mut english, mut chinese) = (Printer::default(), Printer::default());
    chinese.lang = Lang::Zh;
    for (at, frame, want) in golden() {
        assert_eq!(english.line(at, &frame).unwrap().trim(), want);
        let line = chinese.line(at, &frame).unwrap();
        let is_chinese = |c| ('\u{4e00}'..'\u{9fff}').contains(&c);
        assert!(line.contains(is_chinese), "{line}");
    }
}

#[test]
fn each_text_is_used_and_is_there_in_both_languages() {
    let others = ["cnp", "mad", "ud", "unknown", "icrc", "again"];
    let naks = ["nak", "nak.rnr", "nak.0", "nak.1", "nak.2", "nak.3"];
    let used = OPERATIONS.map(|(_, key, _)| key).into_iter();
    let used: BTreeSet<_> = used.chain(others).chain(naks).collect();
    assert_eq!(keys(TEXTS), used);
}

#[test]
fn a_changed_byte_breaks_the_icrc_unless_routers_may_change_it() {
    let (_, frame, _) = golden().swap_remove(0);
    let icrc = Lang::En.text(TEXTS, "icrc");
    // The type of service, the time to live, the checksum of IP, that of UDP, and the reserved byte
    // of the BTH.
    let free = [15, 22, 24, 25, 40, 41, 46];
    for at in 14..frame.len() {
        let mut changed = frame.clone();
        changed[at] ^= 1;
        if let Some(packet) = Packet::decode(&changed, Lang::En) {
            let is_broken = packet.meaning.contains(icrc);
            assert_eq!(is_broken, !free.contains(&at), "{at}");
        }
    }
}

#[test]
fn a_file_that_cannot_be_written_is_named() {
    let path = Path::new("/proc/self/no/file");
    let error = Printer::default().write_to(path).unwrap_err();
    assert_eq!(error.to_string(), "/proc/self/no/file: cannot be written");
}

#[test]
fn a_capture_that_cannot_begin_leaves_the_file_alone() {
    let path = std::env::temp_dir().join(format!("ulp-sniff-{}-before.pcap", id()));
    std::fs::write(&path, "an earlier capture").unwrap();
    let args = Sniff {
        interface: Some("no such one".to_owned()),
        write: Some(path.clone()),
        ..Sniff::default()
    };
    let error = args.run().unwrap_err().to_string();
    assert!(error.contains("no network interface"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"an earlier capture");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_written_file_reads_the_same() {
    let path = std::env::temp_dir().join(format!("ulp-sniff-{}.pcap", id()));
    let mut printer = Printer::default();
    printer.write_to(&path).unwrap();
    let all = golden();
    for (at, frame, _) in &all {
        assert!(!printer.frame(*at, frame).unwrap());
        // What is not RoCE is not written.
        assert!(!printer.frame(*at, &frame[..20]).unwrap());
    }
    let bytes = std::fs::read(&path).unwrap();
    let want: Vec<_> = all.iter().map(|(at, frame, _)| (*at, &frame[..])).collect();
    assert_eq!(frames(&bytes).unwrap(), want);
    // A file that ends in the middle has the packets before.
    let cut = frames(&bytes[..bytes.len() - 1]).unwrap();
    assert_eq!(cut.len(), all.len() - 1);
    assert!(frames(&bytes[1..]).is_err());
    assert!(frames(&bytes[..20]).is_err());
    std::fs::remove_file(path).unwrap();
}

proptest! {
    #[test]
    fn nonsense_is_no_packet_or_has_a_line(bytes: Vec<u8>, at: usize, by: u8) {
        let mut printer = Printer::default();
        let _ = printer.line(Duration::ZERO, &bytes);
        let _ = frames(&bytes);
        for (_, mut frame, _) in golden() {
            let at = at % frame.len();
            frame[at] ^= by;
            let _ = printer.line(Duration::ZERO, &frame);
            let _ = printer.line(Duration::ZERO, &frame[..at]);
        }
    }
}
