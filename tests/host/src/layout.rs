// SPDX-License-Identifier: GPL-2.0

//! The ABI in Rust against the header: a C compiler compares every size, offset, type and value.

use crate::repository;
use crate::uapi::abi;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;

type Layout = &'static [(&'static str, usize, usize)];
/// A struct, as [`abi::STRUCTS`] has it: its name in C, its size, its layout, the types of its fields.
type Struct = (&'static str, u32, Layout, &'static [&'static str]);

fn header() -> PathBuf {
    repository().join("rust_ulp/uapi/rust_ulp.h")
}

/// The C type of a field, or of an element of it.
fn c_type(rust: &str) -> String {
    match rust {
        "u8" => "__u8".into(),
        "u16" => "__u16".into(),
        "u32" => "__u32".into(),
        "u64" => "__u64".into(),
        "i32" => "__s32".into(),
        name => {
            // The ABI's own: CamelCase there, snake_case in C.
            let mut c = String::from("struct rust_ulp");
            for letter in name.chars() {
                if letter.is_ascii_uppercase() {
                    c.push('_');
                }
                c.push(letter.to_ascii_lowercase());
            }
            c
        }
    }
}

/// A C file that compiles if, and only if, the header says what `abi.rs` says.
fn program(structs: &[Struct], numbers: &[(&str, i128)]) -> String {
    let mut c = format!("#include <stddef.h>\n#include \"{}\"\n", header().display());
    for (c_name, size, layout, types) in structs {
        let _ = writeln!(
            c,
            "_Static_assert(sizeof(struct {c_name}) == {size}, \"size of {c_name}\");"
        );
        assert_eq!(layout.len(), types.len());
        // Nothing after the last field that Rust does not know.
        let end: usize = layout
            .iter()
            .map(|(_, offset, size)| offset + size)
            .max()
            .unwrap();
        assert_eq!(end, *size as usize, "{c_name} has a tail");
        for ((field, offset, size), ty) in layout.iter().zip(*types) {
            let _ = writeln!(
                c,
                "_Static_assert(offsetof(struct {c_name}, {field}) == {offset}, \"offset of {c_name}.{field}\");\n\
                 _Static_assert(sizeof(((struct {c_name} *)0)->{field}) == {size}, \"size of {c_name}.{field}\");"
            );
            let union = abi::UNIONS
                .iter()
                .find(|(of, member, _)| of == c_name && member == field);
            if let Some((.., arms)) = union {
                for (arm, ty) in *arms {
                    let _ = writeln!(
                        c,
                        "_Static_assert(offsetof(struct {c_name}, {field}.{arm}) == {offset}, \"offset of {c_name}.{field}.{arm}\");\n\
                         _Static_assert(__builtin_types_compatible_p(__typeof__(((struct {c_name} *)0)->{field}.{arm}), {}), \"type of {c_name}.{field}.{arm}\");",
                        c_type(ty)
                    );
                }
                continue;
            }
            let (element, index) = match ty.strip_prefix('[').and_then(|t| t.split_once(';')) {
                Some((element, _)) => (element, "[0]"),
                None => (*ty, ""),
            };
            let _ = writeln!(
                c,
                "_Static_assert(__builtin_types_compatible_p(__typeof__(((struct {c_name} *)0)->{field}{index}), {}), \"type of {c_name}.{field}\");",
                c_type(element)
            );
        }
    }
    for (name, value) in numbers {
        let suffix = if *value > i128::from(i64::MAX) {
            "ULL"
        } else {
            ""
        };
        let _ = writeln!(
            c,
            "_Static_assert(RUST_ULP_{name} == {value}{suffix}, \"value of {name}\");"
        );
    }
    c
}

/// Compiles; what the compiler said if it did not like it.
fn compile(name: &str, source: &str, options: &[&str]) -> Result<(), String> {
    let dir = PathBuf::from(env!("OUT_DIR")).join("layout");
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join(format!("{name}.c"));
    std::fs::write(&file, source).unwrap();
    let output = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()))
        .arg("-fsyntax-only")
        .args(options)
        .arg(&file)
        .output()
        .expect("a C compiler: install gcc");
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

const STRICT: [&str; 6] = [
    "-std=gnu11",
    "-Wall",
    "-Wextra",
    "-Wpadded",
    "-Wpedantic",
    "-Werror",
];
/// Where Debian keeps `asm/types.h`; a compiler for 32 bits does not look there by itself.
#[cfg(target_arch = "x86_64")]
const ASM: [&str; 2] = ["-idirafter", "/usr/include/x86_64-linux-gnu"];

#[test]
fn c_and_rust_agree() {
    let program = program(abi::STRUCTS, abi::NUMBERS);
    compile("abi", &program, &STRICT).unwrap();
}

#[cfg(target_arch = "x86_64")]
#[test]
fn c_and_rust_agree_on_32_bits() {
    let [pre, dir] = ASM;
    let options = ["-m32", pre, dir];
    let options = [&options[..], &STRICT[..]].concat();
    compile("abi32", &program(abi::STRUCTS, abi::NUMBERS), &options).unwrap();
}

/// A header is included by C++ as well, and twice.
#[test]
fn header_stands_alone() {
    let include = format!("#include \"{}\"\n", header().display());
    compile("twice", &include.repeat(2), &STRICT).unwrap();
    compile(
        "cxx",
        &include,
        &["-x", "c++", "-std=c++11", "-Wall", "-Wextra", "-Werror"],
    )
    .unwrap();
}

/// A union has the bytes of each arm.
#[test]
fn unions_are_bytes() {
    let ud = abi::WrUd {
        ah: 0x0102_0304,
        qp_num: 0x0506_0708,
        qkey: 0x090a_0b0c,
        pad: 0x0d0e_0f10,
    };
    let args = abi::WrArgs::from(ud);
    assert_eq!(abi::WrUd::from(args), ud);
    let words = |one: u32, other: u32| {
        let [one, other] = [one.to_ne_bytes(), other.to_ne_bytes()];
        u64::from_ne_bytes([one, other].concat().try_into().unwrap())
    };
    let atomic = abi::WrAtomic {
        compare_add: words(ud.ah, ud.qp_num),
        swap: words(ud.qkey, ud.pad),
    };
    assert_eq!(abi::WrAtomic::from(args), atomic);
    assert_eq!(abi::WrArgs::from(atomic), args);
    assert_eq!(abi::WrArgs::default(), <abi::WrArgs as abi::Zero>::ZERO);
    assert_ne!(abi::WrArgs::default(), args);
    assert_eq!(
        abi::WrArgs::from(abi::WrUd::default()),
        abi::WrArgs::default()
    );
}

/// The comparison would notice.
#[test]
fn a_difference_is_found() {
    let wrong = |layout: Layout, types| {
        let one = ("rust_ulp_destroy", 16, layout, types);
        compile("wrong", &program(&[one], &[]), &STRICT)
    };
    const TYPES: &[&str] = &["u32", "u32", "u32", "u32"];
    wrong(abi::Destroy::LAYOUT, TYPES).unwrap();
    let moved = &[
        ("size", 4, 4),
        ("flags", 0, 4),
        ("handle", 8, 4),
        ("pad", 12, 4),
    ];
    assert!(wrong(moved, TYPES)
        .unwrap_err()
        .contains("offset of rust_ulp_destroy.size"));
    let signed = &["u32", "u32", "i32", "u32"];
    assert!(wrong(abi::Destroy::LAYOUT, signed)
        .unwrap_err()
        .contains("type of rust_ulp_destroy.handle"));
    let value = compile("wrong-value", &program(&[], &[("QPT_RC", 3)]), &STRICT);
    assert!(value.unwrap_err().contains("value of QPT_RC"));
    let padded =
        "struct s { char a; int b; };\nint x(struct s *s); int x(struct s *s) { return s->b; }\n";
    assert!(compile("padded", padded, &STRICT)
        .unwrap_err()
        .contains("padding"));
}

/// Nothing of the header is missing in Rust.
#[test]
fn rust_has_all_of_the_header() {
    let text = std::fs::read_to_string(header()).unwrap();
    let defined: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("#define RUST_ULP_"))
        .filter_map(|rest| rest.split_whitespace().next())
        // What takes an argument is no number.
        .filter(|name| !name.contains('('))
        .collect();
    let mut known: BTreeSet<&str> = abi::NUMBERS.iter().map(|(name, _)| *name).collect();
    assert!(
        known.len() > 90,
        "only {} constants were found in abi.rs",
        known.len()
    );
    known.insert("DEVICE_PATH");
    assert_eq!(defined, known);
    let path = format!("#define RUST_ULP_DEVICE_PATH\t\"{}\"\n", abi::DEVICE_PATH);
    assert!(text.contains(&path));

    let structs: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("struct ")?.strip_suffix(" {"))
        .collect();
    let known: BTreeSet<&str> = abi::STRUCTS.iter().map(|s| s.0).collect();
    assert_eq!(structs, known);
}

/// Whoever adds a command follows the rules: its size first, then flags.
#[test]
fn commands_begin_with_size_and_flags() {
    let objects = [
        "device_entry",
        "gid_entry",
        "cq_ring",
        "cqe",
        "ah_attr",
        "qp_attr",
        "event",
        "addr",
        "conn_param",
        "sge",
        "wr_atomic",
        "wr_ud",
        "wr",
        // What goes into an entry of io_uring.
        "uring_batch",
        "uring_cancel",
    ];
    for (c_name, size, layout, _) in abi::STRUCTS {
        if objects.contains(&&c_name["rust_ulp_".len()..]) {
            continue;
        }
        assert_eq!(layout[..2], [("size", 0, 4), ("flags", 4, 4)], "{c_name}");
        assert_eq!(size % 8, 0, "{c_name}");
    }
    let zero = abi::Wr::default();
    assert_eq!(zero, <abi::Wr as abi::Zero>::ZERO);
    assert_eq!(
        (zero.user_data, zero.sge, zero.flags),
        (0, abi::Sge::default(), 0)
    );
}
