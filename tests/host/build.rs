// SPDX-License-Identifier: GPL-2.0

//! Takes out of the sources what the tests cannot name: the functions of the completion ring in
//! `rust_ulp/object/ring.rs`, whose file needs a kernel.

use std::fmt::Write;
use std::path::{Path, PathBuf};

fn main() {
    let root = PathBuf::from(env("CARGO_MANIFEST_DIR")).join("../../rust_ulp");
    let out = PathBuf::from(env("OUT_DIR"));
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-env=HOST_RUSTC={}", env("RUSTC"));
    let ring = ring(&read(&root.join("object/ring.rs")));
    write(&out.join("cq_ring.rs"), &ring);
    for (variant, line, instead) in [
        (
            "without_threshold",
            "state.wake_at = state.wake_at.min(min);",
            "",
        ),
        (
            "without_minimum",
            "state.wake_at = state.wake_at.min(min);",
            "state.wake_at = min;",
        ),
        ("without_wakeup", "self.waiters.notify_all();", ""),
        (
            "without_lock",
            "state.wake_at = state.wake_at.min(min);",
            "drop(state); state = self.state.lock(); state.wake_at = state.wake_at.min(min);",
        ),
        ("without_polled", "state.polled = true;", ""),
        ("without_woken", "streaming.woken = false;", ""),
        ("without_signal", "        state.signal();\n", ""),
        (
            "without_room",
            "state.reserved = state.reserved.saturating_add(count);",
            "state.reserved = state.reserved.saturating_add(1);",
        ),
    ] {
        assert!(
            ring.contains(line),
            "object/ring.rs has no '{line}': the variants have to follow"
        );
        write(
            &out.join(format!("{variant}.rs")),
            &ring.replace(line, instead),
        );
    }
}

fn env(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("Cargo sets {name}"))
}

fn read(path: &Path) -> String {
    println!("cargo:rerun-if-changed={}", path.display());
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

/// The ring as `ring.rs` has it, but for what makes and maps it.
fn ring(text: &str) -> String {
    let mut out = String::new();
    for start in [
        "struct Header {",
        "struct State {",
        "struct Streaming {",
        "impl State {",
        "impl Streaming {",
    ] {
        out.push_str(&item(text, start));
    }
    out.push_str("fn new_state(entries: u32) -> State {\n");
    out.push_str(&part(text, "        let state = State {", "        };"));
    out.push_str("state\n}\n");
    out.push_str("impl Ring {\n");
    out.push_str(&part(text, "    fn event(&self, event: Event) {", "    }"));
    out.push_str("}\n");
    // Without what copies to user space.
    let source = item(text, "impl Source for Ring {");
    let copy = part(&source, "    fn copy(", "    }");
    out.push_str(&source.replace(&copy, ""));
    let mut ring = item(text, "impl Ring {");
    for (start, end) in [
        ("    pub(crate) fn new(", "    }"),
        ("    pub(crate) fn pages(", "    }"),
        ("    fn write(", "    }"),
    ] {
        ring = ring.replace(&part(&ring, start, end), "");
    }
    // A comment in front of nothing is an error.
    let mut lines: Vec<&str> = ring.lines().collect();
    lines.retain(|line| !line.trim_start().starts_with("///"));
    out.push_str(&lines.join("\n"));
    out
}

/// An item, from the line that begins with `start` to its brace.
fn item(text: &str, start: &str) -> String {
    part(text, start, "}")
}

/// The lines from the one that begins with `start` to the first that is `end`.
fn part(text: &str, start: &str, end: &str) -> String {
    let lines = text.lines().skip_while(|line| !line.starts_with(start));
    let mut out = String::new();
    for line in lines {
        writeln!(out, "{line}").unwrap();
        if line == end {
            return out;
        }
    }
    panic!("object/ring.rs has no '{start}': the model in tests/host has to follow");
}
