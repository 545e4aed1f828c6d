// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the command lines of the demonstrations have in common.

use std::net::Ipv6Addr;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;

/// The exit status of errors and of commands that Ctrl-C interrupted; 1 is the answer "no".
pub const ERROR: u8 = 2;

/// Returns HOST:PORT for HOST, HOST:PORT, and an IPv6 address with or without brackets. A port that
/// is too large stays, for an error about it.
pub fn address(host: &str, port: u16) -> String {
    if host.parse::<Ipv6Addr>().is_ok() {
        return format!("[{host}]:{port}");
    }
    let has_port = host.rsplit_once(':').is_some_and(|(rest, port)| {
        port.parse::<u32>().is_ok() && (!rest.contains(':') || rest.ends_with(']'))
    });
    match has_port {
        true => host.to_owned(),
        false => format!("{host}:{port}"),
    }
}

/// Returns a flag that Ctrl-C and SIGTERM set. A second signal ends the program.
pub fn interrupts() -> std::io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, ERROR.into(), stop.clone())?;
        signal_hook::flag::register(signal, stop.clone())?;
    }
    Ok(stop)
}

/// Returns the exit status of `program`, after a line about what failed.
pub fn ended(program: &str, done: anyhow::Result<ExitCode>) -> ExitCode {
    done.unwrap_or_else(|error| {
        let mut text = format!("{program}: {error}");
        for cause in error.chain().skip(1).map(ToString::to_string) {
            if !text.contains(&cause) {
                text = format!("{text}: {cause}");
            }
        }
        // One write, so that lines of several processes do not mix.
        let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("{text}\n").as_bytes());
        ExitCode::from(ERROR)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_get_a_port() {
        for (host, want) in [
            ("10.9.0.1", "10.9.0.1:7"),
            ("name:8", "name:8"),
            ("fd09::1", "[fd09::1]:7"),
            ("[fd09::1]:8", "[fd09::1]:8"),
        ] {
            assert_eq!(address(host, 7), want);
        }
    }
}
