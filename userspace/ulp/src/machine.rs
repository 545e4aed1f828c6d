// SPDX-License-Identifier: MIT OR Apache-2.0

//! The description of this machine in the reports of `ulp bench` and `ulp selftest`.

use nix::sys::utsname::UtsName;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fmt::Write;
use std::fs;

/// A machine, as the report describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Machine {
    pub host: String,
    pub kernel: String,
    pub cpu: String,
    pub cpus: usize,
    /// Whether the machine runs under a hypervisor or an emulator.
    pub virtual_machine: bool,
    /// The version or build id of the module, if it is loaded.
    pub module: Option<String>,
    /// Version of this program.
    pub tool: String,
    /// The clock source of the kernel.
    pub clocksource: String,
}

/// Returns the first line of a file, if it is not empty.
fn line(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.lines().next()?.trim().to_owned()).filter(|s| !s.is_empty())
}

/// Returns the version of the loaded module, or else its build id.
fn module() -> Option<String> {
    const DIR: &str = "/sys/module/rust_ulp";
    if !fs::exists(DIR).unwrap_or(false) {
        return None;
    }
    // An ELF note: a header of 12 bytes, the name "GNU", and the id.
    let note = fs::read(format!("{DIR}/notes/.note.gnu.build-id")).unwrap_or_default();
    let mut id = String::new();
    for byte in note.iter().skip(16) {
        let _ = write!(id, "{byte:02x}");
    }
    let id = (!id.is_empty()).then(|| format!("build id {id}"));
    let version = line(&format!("{DIR}/version"));
    Some(version.or(id).unwrap_or_else(|| "loaded".to_owned()))
}

impl Machine {
    pub fn here() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let uname = nix::sys::utsname::uname();
        let name = |get: fn(&UtsName) -> &OsStr| {
            let name = uname.as_ref().map(|uname| get(uname).to_string_lossy());
            name.unwrap_or_default().into_owned()
        };
        Self {
            host: name(UtsName::nodename),
            kernel: name(UtsName::release),
            cpu: field("model name").unwrap_or_default(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            virtual_machine: field("flags")
                .is_some_and(|f| f.split(' ').any(|f| f == "hypervisor")),
            module: module(),
            tool: env!("CARGO_PKG_VERSION").to_owned(),
            clocksource: line("/sys/devices/system/clocksource/clocksource0/current_clocksource")
                .unwrap_or_default(),
        }
    }
}
