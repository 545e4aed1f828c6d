// SPDX-License-Identifier: GPL-2.0

//! What must not compile.
//!
//! Each file of `promises/` has lines marked `//~ BAD`, and says which error they are. Its imports are
//! [`IMPORTS`]. Without the marked lines it compiles; with them it does not, for that reason and in one
//! of those lines. The code of the error and a part of its text are compared, not all that a compiler
//! has to say: that changes from one version to the next. `trybuild` compares all of it, and does not
//! compile the good lines.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What the crates were compiled to, for `rustc --extern`.
struct Library {
    deps: PathBuf,
    rlib: PathBuf,
    extra: PathBuf,
}

/// What each promise imports. It stands behind the text of the promise, whose lines keep their numbers.
const IMPORTS: &str = "
use rust_ulp::{error::Result, grant::GrantOptions, tcp::Incoming, *};
use rust_ulp::qp::{Rc, Retries, State, Transport, Uc, Ud};
use rust_ulp::wr::{AnyRequest, FetchAdd, Post, Read, Recv, Request, Send, SendTo, Write};
use rust_ulp_extra::{pool::{Chunk, Pool}, stream};
use std::time::Duration;
";

/// Compiles only where one crate was compiled with the other one.
const CONTROL: &str = "pub fn f(memory: rust_ulp::LocalSlice) { \
    let _ = rust_ulp_extra::pool::Pool::new(memory, 1); }\n";

/// The libraries in `deps` whose names begin with `prefix`, the newest first.
fn libraries(deps: &Path, prefix: &str) -> Vec<PathBuf> {
    let mut found: Vec<_> = std::fs::read_dir(deps)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.starts_with(prefix) && name.ends_with(".rlib")
        })
        .map(|entry| (entry.metadata().unwrap().modified().unwrap(), entry.path()))
        .collect();
    found.sort();
    found.into_iter().rev().map(|(_, path)| path).collect()
}

impl Library {
    /// The newest ones beside this program that work with this compiler, and with each other.
    fn find() -> Self {
        let exe = std::env::current_exe().unwrap();
        let deps = exe.parent().unwrap().to_owned();
        let mut why = String::from("there is none");
        for extra in libraries(&deps, "librust_ulp_extra-") {
            for rlib in libraries(&deps, "librust_ulp-") {
                let library = Self {
                    deps: deps.clone(),
                    rlib,
                    extra: extra.clone(),
                };
                match library.compile("control", CONTROL) {
                    Ok(()) => return library,
                    Err(error) => why = error,
                }
            }
        }
        panic!("no librust_ulp*.rlib in {} work: {why}", deps.display());
    }

    /// Compiles a library; what the compiler says, as JSON, if it does not like it.
    fn compile(&self, name: &str, text: &str) -> Result<(), String> {
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("promises");
        std::fs::create_dir_all(&dir).unwrap();
        let file = dir.join(format!("{name}.rs"));
        std::fs::write(&file, text).unwrap();
        let output = Command::new(env!("HOST_RUSTC"))
            .args([
                "--edition=2021",
                "--crate-type=lib",
                "--emit=metadata",
                "--error-format=json",
                "-Aunused_imports",
            ])
            .arg(format!("--crate-name={name}"))
            .arg(format!("--out-dir={}", dir.display()))
            .arg(format!("-Ldependency={}", self.deps.display()))
            .arg(format!("--extern=rust_ulp={}", self.rlib.display()))
            .arg(format!("--extern=rust_ulp_extra={}", self.extra.display()))
            .arg(&file)
            .output()
            .unwrap_or_else(|e| panic!("{}: {e}", env!("HOST_RUSTC")));
        match output.status.success() {
            true => Ok(()),
            // Whether a type is called by its path depends on the version, and on who else has one.
            false => {
                let mut messages = String::from_utf8_lossy(&output.stderr).into_owned();
                for path in [
                    "rust_ulp_extra::pool::",
                    "rust_ulp::wr::",
                    "rust_ulp::qp::",
                    "rust_ulp::",
                ] {
                    messages = messages.replace(path, "");
                }
                Err(messages)
            }
        }
    }
}

/// The messages themselves, without what comes with them.
fn summary(messages: &str) -> String {
    let texts = messages.lines().filter_map(|line| {
        line.split_once("\"message\":\"")?
            .1
            .split_once("\",\"code\"")
    });
    let texts: Vec<&str> = texts.map(|(text, _)| text).collect();
    format!("\n    {}", texts.join("\n    "))
}

/// What comes after `"key":` in a line of JSON, as far as it is a string or a number.
fn value<'a>(json: &'a str, key: &str) -> Option<&'a str> {
    let rest = json.split_once(&format!("\"{key}\":"))?.1;
    let end = rest.find([',', '}', ']'])?;
    Some(rest[..end].trim_matches('"'))
}

/// Whether this message is the error that the file announces, in one of the lines.
fn is_expected(message: &str, code: &str, says: &str, bad: &[usize]) -> bool {
    if !message.contains("\"level\":\"error\"")
        || !message.contains(&format!("\"code\":{{\"code\":\"{code}\""))
    {
        return false;
    }
    // The spans that matter are primary ones, and have the line before that mark.
    let in_bad_line = message
        .split("\"byte_end\":")
        .filter(|span| span.contains("\"is_primary\":true"))
        .filter_map(|span| value(span, "line_start")?.parse().ok())
        .any(|line: usize| bad.contains(&line));
    in_bad_line && message.contains(&says.replace('"', "\\\""))
}

/// The text without its bad lines.
fn good(text: &str) -> String {
    text.lines()
        .map(|line| {
            if line.ends_with("//~ BAD") {
                "\n"
            } else {
                line
            }
        })
        .flat_map(|line| [line, "\n"])
        .collect()
}

/// What is wrong with the promise in `path`, if something is.
fn check(library: &Library, path: &Path) -> Result<(), String> {
    let name = path.file_stem().unwrap().to_str().unwrap();
    let text = std::fs::read_to_string(path).unwrap();
    let (code, says) = text
        .lines()
        .find_map(|line| line.strip_prefix("//@ error ")?.split_once(": "))
        .ok_or("it announces no error")?;
    let bad: Vec<usize> = (1..)
        .zip(text.lines())
        .filter(|(_, line)| line.ends_with("//~ BAD"))
        .map(|(number, _)| number)
        .collect();
    if bad.is_empty() {
        return Err("it has no bad line".into());
    }
    let Err(messages) = library.compile(name, &format!("{text}{IMPORTS}")) else {
        return Err("it compiles".into());
    };
    if messages
        .lines()
        .any(|message| is_expected(message, code, says, &bad))
    {
        return Ok(());
    }
    let got = summary(&messages);
    Err(format!(
        "not {code} with {says:?} in lines {bad:?}, but{got}"
    ))
}

#[test]
fn what_cannot_work_does_not_compile() {
    let library = Library::find();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("promises");
    let mut files: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(files.len() >= 54, "only {} promises", files.len());
    // Without the bad lines, all of them together.
    let mut all = String::new();
    for file in &files {
        let name = file.file_stem().unwrap().to_str().unwrap();
        let text = good(&std::fs::read_to_string(file).unwrap());
        all.push_str(&format!("pub mod {name} {{\n{text}{IMPORTS}}}\n"));
    }
    if let Err(why) = library.compile("all_good", &all) {
        panic!("without their bad lines: {}", summary(&why));
    }
    let mut broken = String::new();
    for file in &files {
        if let Err(why) = check(&library, file) {
            broken.push_str(&format!("{}: {why}\n", file.display()));
        }
    }
    assert!(broken.is_empty(), "{broken}");
}

/// The comparison itself: another error, another line or none are noticed.
#[test]
fn a_broken_promise_is_noticed() {
    let library = Library::find();
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let outcome = |name: &str, text: &str| {
        let file = dir.join(format!("{name}.rs"));
        std::fs::write(&file, text).unwrap();
        check(&library, &file).unwrap_err()
    };
    let head = "//@ error E0308: mismatched types\npub fn f() -> u8 {\n";
    let kept = outcome("kept", &format!("{head}let x = 1; //~ BAD\n1\n}}\n"));
    assert_eq!(kept, "it compiles");
    let other = outcome("other", &format!("{head}let x = y; //~ BAD\n1\n}}\n"));
    assert!(other.starts_with("not E0308"), "{other}");
    let spelled = head.replace("mismatched", "other");
    let text = outcome("text", &format!("{spelled}return \"\"; //~ BAD\n1\n}}\n"));
    assert!(text.starts_with("not E0308"), "{text}");
    let elsewhere = outcome("elsewhere", "//@ error E0308: mismatched types\ntype T = u8;\ntype T = u16; //~ BAD\nfn f() -> T { 1u8 }\n");
    assert!(elsewhere.starts_with("not E0308"), "{elsewhere}");
}
