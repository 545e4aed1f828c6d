// SPDX-License-Identifier: GPL-2.0

//! What the sources promise about themselves.

use crate::repository;
use std::path::{Path, PathBuf};

fn rust_files(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(path);
        }
    }
}

/// The code of a file without comments and the contents of strings.
fn code(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let (mut quoted, mut escaped, mut last) = (false, false, ' ');
        for c in line.chars() {
            if !quoted && last == '/' && c == '/' {
                break;
            }
            if c == '"' && !escaped && last != '\'' {
                quoted = !quoted;
            }
            escaped = quoted && c == '\\' && !escaped;
            last = c;
            if !quoted {
                out.push(c);
            }
        }
        out.push('\n');
    }
    out
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
        .any(|w| w == word)
}

#[test]
fn the_sample_module_has_at_most_120_lines_and_is_safe() {
    let path = repository().join("rust_ulp/samples/rdma_ping.rs");
    let text = std::fs::read_to_string(path).unwrap();
    let count = text.lines().count();
    assert!(count <= 120, "rdma_ping.rs has {count} lines");
    assert!(
        !has_word(&code(&text), "unsafe"),
        "rdma_ping.rs has unsafe code"
    );
}

/// Returns the lines of the first `use` and of the last brace.
fn extent(lines: &[&str]) -> (usize, usize) {
    let first = lines.iter().position(|line| line.starts_with("use "));
    let last = lines.iter().rposition(|line| *line == "}");
    (first.unwrap(), last.unwrap())
}

#[test]
fn an_example_has_at_most_80_lines() {
    let mut files = Vec::new();
    for dir in ["rust-ulp/examples", "rust-ulp-extra/examples"] {
        rust_files(&repository().join("userspace").join(dir), &mut files);
    }
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let (first, last) = extent(&text.lines().collect::<Vec<_>>());
        let count = last - first + 1;
        assert!(count <= 80, "{} has {count} lines", path.display());
    }
}

#[test]
fn an_rdma_write_takes_at_most_50_lines() {
    let path = repository().join("userspace/rust-ulp/examples/rdma_write.rs");
    let text = std::fs::read_to_string(path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let (first, last) = extent(&lines);
    let count = last - first + 1;
    assert!(
        count <= 50,
        "rdma_write.rs has {count} lines from its first `use` to its last brace"
    );
    // All of the program is between these two.
    assert!(lines[..first]
        .iter()
        .all(|line| line.is_empty() || line.starts_with("//")));
    assert!(lines[last + 1..].iter().all(|line| line.is_empty()));
    // And no line is two.
    for line in &lines[first..=last] {
        assert!(
            line.chars().count() <= 100 && line.matches(';').count() <= 1,
            "{line}"
        );
    }
    for word in ["unsafe", "unwrap", "expect", "panic", "unreachable", "todo"] {
        assert!(!has_word(&code(&text), word), "rdma_write.rs says {word}");
    }
    for word in ["libibverbs", "rdma_sys", "ibv"] {
        assert!(!has_word(&text, word), "rdma_write.rs says {word}");
    }
}

/// `Pd::register_raw` is in memory.rs, and its test calls it.
#[test]
fn only_sys_and_register_raw_are_unsafe() {
    let mut files = Vec::new();
    for dir in [
        "rust-ulp/src",
        "rust-ulp/examples",
        "rust-ulp-extra/src",
        "rust-ulp-extra/examples",
    ] {
        rust_files(&repository().join("userspace").join(dir), &mut files);
    }
    assert!(files.len() > 8);
    let mut seen = false;
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let is_unsafe = has_word(&code(&text), "unsafe");
        let is_sys = path.parent().is_some_and(|dir| dir.ends_with("src/sys"));
        if is_sys || path.ends_with("src/sys.rs") {
            seen |= is_unsafe;
        } else if !path.ends_with("src/memory.rs") && !path.ends_with("src/tests/memory.rs") {
            assert!(!is_unsafe, "{} has unsafe code", path.display());
        }
        // The files of src/uapi are those of the module.
        let licence = match path.parent().is_some_and(|dir| dir.ends_with("src/uapi")) {
            false => "MIT OR Apache-2.0",
            true => "(GPL-2.0 WITH Linux-syscall-note) OR MIT",
        };
        assert!(
            text.starts_with(&format!("// SPDX-License-Identifier: {licence}\n")),
            "{} is not under {licence}",
            path.display()
        );
    }
    assert!(seen, "the search finds what there is");
}

/// The module's logic that this crate compiles is as safe as the rest of the module's logic.
#[test]
fn logic_is_safe_and_needs_no_kernel() {
    let mut files = Vec::new();
    rust_files(&repository().join("rust_ulp/logic"), &mut files);
    for name in ["abi", "decode", "define"] {
        files.push(repository().join(format!("rust_ulp/uapi/{name}.rs")));
    }
    for path in files {
        let code = code(&std::fs::read_to_string(&path).unwrap());
        for word in [
            "unsafe", "kernel", "unwrap", "expect", "panic", "std", "alloc",
        ] {
            assert!(!has_word(&code, word), "{} says {word}", path.display());
        }
    }
}

#[test]
fn the_search_knows_comments_and_strings() {
    assert!(!has_word(
        &code("let a = 1; // unsafe\nlet s = \"unsafe\";"),
        "unsafe"
    ));
    assert!(has_word(&code("let s = \"//\"; unsafe {}"), "unsafe"));
    assert!(!has_word("unsafe_code", "unsafe"));
}

/// The library is free of what it is there to replace.
#[test]
fn no_libibverbs() {
    let manifest =
        std::fs::read_to_string(repository().join("userspace/rust-ulp/Cargo.toml")).unwrap();
    let dependencies = manifest.split("[dependencies]").nth(1).unwrap();
    let dependencies = dependencies.split("\n[").next().unwrap();
    let names: Vec<&str> = dependencies
        .lines()
        .filter_map(|line| line.split_once(" = "))
        .map(|(name, _)| name)
        .collect();
    assert!(names.contains(&"nix"), "{names:?}");
    let theirs = ["rdma", "ibverbs", "sideway"];
    assert!(
        !names
            .iter()
            .any(|name| theirs.iter().any(|word| name.contains(word))),
        "{names:?}"
    );
}
