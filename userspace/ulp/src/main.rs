// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]
#![deny(unsafe_code)]

//! `ulp`: the command-line tool of rust_ulp.
//!
//! Results go to the standard output, progress and messages to the standard error. The exit status
//! is 0 for success, 1 for the answer "no" (a key is missing, a check failed), and 2 for errors and
//! interrupted commands. A reader that closes the standard output early ends the command with 0.

#[macro_use]
mod output;

mod args;
mod bench;
mod diagnose;
mod ethtool;
mod generate;
mod lang;
mod listen;
mod machine;
mod netlink;
mod pingpong;
mod rdma;
mod resources;
mod rping;
mod schema;
mod selftest;
mod show;
mod sniff;
mod steps;
mod system;
mod top;
mod wire;

use clap::{ColorChoice, CommandFactory, Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// Measures latency, bandwidth and message rate, by libibverbs and by /dev/rust_ulp.
///
/// This is ulp bench with its back end verbs, which the tool ulp of the packages lacks: it would need
/// libibverbs.
#[derive(Debug, Parser)]
#[command(name = BENCH_VERBS, version, max_term_width = 100)]
struct BenchVerbs {
    #[command(flatten)]
    bench: bench::Bench,
}

/// The name under which the tool is [`BenchVerbs`].
const BENCH_VERBS: &str = "ulp-bench-verbs";

/// Shows, tests and measures RDMA devices, and uses them by /dev/rust_ulp.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    /// Color the output; auto: on a terminal, unless NO_COLOR is set
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t = ColorChoice::Auto)]
    color: ColorChoice,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lists the RDMA devices, their ports and their limits.
    Devices(show::Devices),
    /// Lists the GIDs of the ports, which GID is used, and why.
    Gids(show::Gids),
    /// Prints the asynchronous events of a device until Ctrl-C.
    Events(show::Events),
    /// Prints the counters of the devices, and what the counters of faults mean.
    Counters(show::Counters),
    /// Lists the queue pairs of all programs, with their states.
    Qp(show::Qps),
    /// Counts the objects of all programs and kernel modules, by owner.
    Resources(resources::Resources),
    /// Shows devices, queue pairs and open files with their rates, as top shows processes.
    Top(top::TopArgs),
    /// Finds faults of this host, or between it and a peer, and names the repair of each.
    Diagnose(diagnose::Diagnose),
    /// Tests a device as it is, and writes a report of a driver that nobody has tried.
    ///
    /// Tests between a port and itself, or between the ports of two devices of this host that a cable
    /// or a switch joins. It needs the module and access to /dev/rust_ulp, changes nothing, and takes
    /// a few seconds. Send the report of a driver that docs/providers.md calls untried to the issue
    /// tracker of rust_ulp. It has no names or addresses.
    Selftest(selftest::Selftest),
    /// Makes a connection step by step and explains each step, or makes a classic mistake.
    Steps(steps::Steps),
    /// Prints the RoCE v2 packets of an interface, each with its meaning, and writes a pcap file.
    Sniff(sniff::Sniff),
    /// Exchanges messages with ibv_rc_pingpong and its like, with rdma_client, or with itself.
    Pingpong(pingpong::Pingpong),
    /// Exchanges data with rping, as its server or its client.
    Rping(rping::Rping),
    /// Measures latency, bandwidth and message rate, by /dev/rust_ulp and by libibverbs.
    Bench(bench::Bench),
    /// Prints the JSON Schema of the output of a command.
    Schema(schema::Args),
    /// Writes the manual pages and the shell completions of all commands.
    #[command(hide = true)]
    Generate(generate::Generate),
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Devices(devices) => devices.run(),
        Command::Gids(gids) => gids.run(),
        Command::Events(events) => events.run(),
        Command::Counters(counters) => counters.run(),
        Command::Qp(qps) => qps.run(),
        Command::Resources(resources) => resources.run(),
        Command::Top(top) => top.run(),
        Command::Diagnose(diagnose) => diagnose.run(),
        Command::Selftest(selftest) => selftest.run(),
        Command::Steps(steps) => steps.run(),
        Command::Sniff(sniff) => sniff.run(),
        Command::Pingpong(pingpong) => pingpong.run(),
        Command::Rping(rping) => rping.run(),
        Command::Bench(bench) => bench.run(),
        Command::Schema(schema) => schema.run(),
        Command::Generate(generate) => generate.run(Cli::command()),
    }
}

fn main() -> ExitCode {
    // Clap ends with status 2 for invalid arguments, with 0 after --help.
    let name = std::env::args_os().next().map(PathBuf::from);
    if name.is_some_and(|name| name.ends_with(BENCH_VERBS)) {
        let bench = BenchVerbs::parse().bench;
        return bench.run().unwrap_or_else(|error| output::failed(&error));
    }
    let cli = Cli::parse();
    match cli.color {
        ColorChoice::Auto => anstream::ColorChoice::Auto,
        ColorChoice::Always => anstream::ColorChoice::Always,
        ColorChoice::Never => anstream::ColorChoice::Never,
    }
    .write_global();
    run(cli.command).unwrap_or_else(|error| output::failed(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The letters of perftest's options, and the long names that they have there.
    const PERFTEST: &[(char, &str)] = &[
        ('D', "duration"),
        ('F', "cpu-freq"),
        ('I', "inline-size"),
        ('Q', "cq-mod"),
        ('S', "sl"),
        ('V', "version"),
        ('a', "all"),
        ('c', "connection"),
        ('d', "device"),
        ('e', "events"),
        ('h', "help"),
        ('i', "ib-port"),
        ('l', "post-list"),
        ('m', "mtu"),
        ('n', "iters"),
        ('o', "outs"),
        ('p', "port"),
        ('q', "qp"),
        ('r', "rx-depth"),
        ('s', "size"),
        ('t', "tx-depth"),
        ('u', "qp-timeout"),
        ('x', "gid-index"),
        // perftest has it for raw Ethernet only.
        ('j', "json"),
    ];

    /// Commands that fail before they look for a device or a host, and what each says.
    const REFUSED: &[(&str, &str)] = &[
        ("devices --format xml", "'xml' for '--format"),
        ("counters --watch soon", "'soon' for '--watch"),
        ("diagnose --memory 2GiB", "between 1 byte and 1GiB"),
        ("diagnose --serve -j", "cannot be used with"),
        ("diagnose --serve -m 1MiB", "cannot be used with"),
        ("diagnose --serve --lang zh", "cannot be used with"),
        ("sniff nonsense", "no network interface nonsense"),
        ("sniff -r /nonexistent", "No such file"),
        ("sniff -r /etc/passwd", "not a pcap file"),
        ("sniff w1 -r FILE", "cannot be used with"),
        ("sniff -n 0", "0 is not in 1.."),
        ("top --once --sort nonsense", "'nonsense' for '--sort"),
        ("schema nonsense", "'nonsense' for '<COMMAND>"),
        ("pingpong rc -m 1000", "256, 512, 1024, 2048 or 4096"),
        (
            "pingpong srq -q 3 -r 2",
            "a receive (-r) for each queue pair",
        ),
        ("pingpong cm HOST -c", "pingpong cm has no -c"),
        ("pingpong rc HOST -q 2", "pingpong rc has no -q"),
        ("bench plot", "not provided"),
        ("bench plot /nonexistent", "No such file"),
        (
            "bench plot /etc/passwd -o /nonexistent",
            "/etc/passwd is not",
        ),
        ("bench write", "not provided"),
        ("bench write speed HOST", "'speed' for '<METRIC>"),
        ("bench write lat HOST --frob", "'--frob'"),
        ("bench write lat HOST --min-rate 1", "a latency has no rate"),
        ("bench write bw HOST --min-rate 0", "a number above 0"),
        (
            "bench write lat HOST --backend pigeon",
            "'pigeon' for '--backend",
        ),
        ("bench write lat HOST -n 5 -D 1", "cannot be used with"),
        ("bench write lat HOST -s 1TiB", "unknown unit \"TiB\""),
        ("bench write lat HOST -s 0", "1 to 16777216, not 0"),
        ("bench write bw HOST -s 4000M", "1 to 16777216, not 41943"),
        (
            "bench write lat HOST -q 2",
            "one queue pair (-q) per thread",
        ),
        ("bench write bw HOST -q 0", "1 to 256, not 0"),
        ("bench write bw HOST -l 64 -t 8", "(-q), is 1 to 8, not 64"),
        ("bench write lat HOST -c UD", "UD (-c) has no write"),
        ("bench send lat HOST --backend tcp", "'tcp' for '--backend"),
        ("bench read lat HOST -c UC", "UC (-c) has no read"),
        ("bench send lat HOST -c XX", "'XX' for '--connection"),
        ("bench send bw HOST -c UD -s 5000", "is at most 4096"),
        ("bench atomic lat HOST -s 16", "has 8 bytes"),
        ("bench read bw HOST -o 0", "(-o) is 1 to 255"),
        (
            "bench read bw HOST -I 64",
            "only writes and sends have inline",
        ),
        ("bench read bw HOST -o 256", "256 is not in 0..=255"),
        ("bench write bw HOST -o 4", "only reads and atomics"),
        ("bench write bw HOST -u 32", "(-u) is 0 to 31, not 32"),
        ("bench write bw HOST --use-srq", "only sends arrive"),
        (
            "bench send bw HOST --use-srq --backend uring",
            "io_uring does not tell",
        ),
        ("bench write lat HOST --sqpoll", "only the back end uring"),
        (
            "bench write lat HOST --busy-poll 50",
            "only the back end call with -e",
        ),
        (
            "bench write lat HOST -e --busy-poll 50 --backend uring",
            "only the back end call with -e",
        ),
        (
            "bench write lat HOST --delivery softirq --backend verbs",
            "no choice of the delivery",
        ),
        ("bench send bw HOST --rate_limit 0", "a number above 0"),
        (
            "bench send lat HOST --rate_limit 1",
            "--rate_limit is for bandwidth",
        ),
        (
            "bench send bw HOST --bind_source_ip here",
            "'here' for '--bind_source_ip",
        ),
        (
            "bench send bw HOST --bind_source_ip 192.0.2.1",
            "connecting from 192.0.2.1: ",
        ),
        ("bench send bw HOST --run_infinitely", "--duration"),
        ("bench connect HOST -x 1", "choose its port and its GID"),
        ("bench register -e", "waits for nothing"),
        ("bench register --bind_source_ip 127.0.0.1", "has no peer"),
        ("bench connect HOST --backend uring", "cannot use io_uring"),
        ("bench register --backend uring", "cannot use io_uring"),
    ];

    fn parsed<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once("ulp").chain(words))
    }

    /// The words of each command that has no commands of its own, without hidden ones.
    fn leaves(command: &clap::Command, words: &[String], out: &mut Vec<Vec<String>>) {
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            let words = [words, &[sub.get_name().to_owned()]].concat();
            match sub.has_subcommands() {
                true => leaves(sub, &words, out),
                false => out.push(words),
            }
        }
    }

    fn all_leaves() -> Vec<Vec<String>> {
        let mut out = Vec::new();
        leaves(&Cli::command(), &[], &mut out);
        assert!(out.len() >= 20, "{out:?}");
        out
    }

    #[test]
    fn the_tool_of_the_back_end_verbs_takes_what_bench_takes() {
        for words in [
            "serve --once",
            "write lat HOST --backend verbs",
            "send rate HOST -e --backend verbs",
        ] {
            BenchVerbs::try_parse_from(format!("{BENCH_VERBS} {words}").split(' ')).unwrap();
        }
        assert!(BenchVerbs::try_parse_from([BENCH_VERBS, "devices"]).is_err());
    }

    #[test]
    fn arguments_that_cannot_work_are_refused_with_the_reason() {
        for (words, reason) in REFUSED {
            // Nobody answers there: one that is not refused says so.
            let words = words.replace("HOST", "127.0.0.1");
            let said = match parsed(words.split(' ')) {
                Ok(cli) => format!("{:#}", run(cli.command).expect_err(&words)),
                Err(error) => {
                    assert_eq!(error.exit_code(), i32::from(output::ERROR), "{words}");
                    error.to_string()
                }
            };
            assert!(said.contains(reason), "ulp {words}: {said}");
        }
    }

    #[test]
    fn each_command_has_a_help_and_refuses_an_unknown_option() {
        for words in all_leaves() {
            for (option, status) in [("--help", 0), ("--nonsense", i32::from(output::ERROR))] {
                let words = words.iter().map(String::as_str).chain([option]);
                let words: Vec<_> = words.collect();
                let error = parsed(words.iter().copied()).expect_err(option);
                assert_eq!(error.exit_code(), status, "{words:?}: {error}");
            }
        }
    }

    #[test]
    fn the_exit_status_of_each_command_is_tested() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/vm/78-tools");
        let suite = std::fs::read_to_string(path).unwrap();
        let rows = suite.lines().filter_map(|line| {
            let (status, words) = line.trim_start().split_once('|')?;
            ["0", "1", "2"].contains(&status).then_some(words)
        });
        let refused = REFUSED.iter().map(|(words, _)| *words);
        let tested: Vec<_> = rows.chain(refused).map(|row| format!("{row} ")).collect();
        for words in all_leaves() {
            // Servers end by Ctrl-C.
            let begin = words.join(" ") + " ";
            let is_tested = tested.iter().any(|row| row.starts_with(&begin));
            assert!(is_tested || begin.ends_with(" serve "), "ulp {begin}");
        }
    }

    #[test]
    fn manual_pages_and_completions_are_generated() {
        let dir = std::env::temp_dir().join(format!("ulp-generate-{}", std::process::id()));
        let cli = parsed(["generate", dir.to_str().unwrap()]).unwrap();
        run(cli.command).unwrap();
        for words in all_leaves() {
            let page = dir.join(format!("man/ulp-{}.1", words.join("-")));
            assert!(std::fs::metadata(&page).unwrap().len() > 0, "{page:?}");
        }
        for file in ["ulp.bash", "ulp.fish", "_ulp"] {
            let file = dir.join("completions").join(file);
            assert!(std::fs::metadata(&file).unwrap().len() > 0, "{file:?}");
        }
        let mut read = std::process::Command::new("bash");
        read.arg("-n").arg(dir.join("completions/ulp.bash"));
        assert!(read.status().unwrap().success());
        std::fs::remove_dir_all(dir).unwrap();
    }

    fn visit(command: &clap::Command, check: &mut impl FnMut(&clap::Command, &clap::Arg)) {
        command.get_arguments().for_each(|arg| check(command, arg));
        command.get_subcommands().for_each(|sub| visit(sub, check));
    }

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn letters_of_bench_mean_what_they_mean_in_perftest() {
        let cli = Cli::command();
        visit(
            cli.find_subcommand("bench").unwrap(),
            &mut |command, arg| {
                if let (Some(letter), Some(long)) = (arg.get_short(), arg.get_long()) {
                    let name = command.get_name();
                    // `plot` measures nothing.
                    let known = PERFTEST.contains(&(letter, long)) || name == "plot";
                    assert!(known, "ulp bench {name}: -{letter} is --{long}");
                }
            },
        );
    }

    #[test]
    fn json_has_a_short_form_in_every_command_with_a_format() {
        let mut commands = Vec::new();
        visit(&Cli::command(), &mut |command, arg| {
            if arg.get_id() == "format" {
                let short = command
                    .get_arguments()
                    .find(|arg| arg.get_short() == Some('j'));
                assert_eq!(short.and_then(|arg| arg.get_long()), Some("json"));
                commands.push(command.get_name().to_owned());
            }
        });
        assert!(commands.len() >= 12, "{commands:?}");
    }

    /// Returns whether the option takes this value. What is missing beside it does not count.
    fn takes(command: &clap::Command, arg: &clap::Arg, value: &str) -> bool {
        let option = format!("--{}", arg.get_long().unwrap());
        let parsed = command
            .clone()
            .try_get_matches_from(["ulp", &option, value]);
        let refused = |error: clap::Error| {
            use clap::error::ErrorKind::{InvalidValue, ValueValidation};
            [InvalidValue, ValueValidation].contains(&error.kind())
        };
        !parsed.is_err_and(refused)
    }

    #[test]
    fn sizes_times_and_addresses_are_written_alike() {
        let (mut sizes, mut times, mut listeners) = (0, 0, 0);
        visit(&Cli::command(), &mut |command, arg| {
            let what = format!("ulp {}: {}", command.get_name(), arg.get_id());
            let unit = arg.get_value_names().and_then(|names| names.first());
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            let is_size = ["Size", "Bytes", "Path MTU"]
                .iter()
                .any(|word| help.starts_with(word));
            assert_eq!(is_size, unit.is_some_and(|unit| unit == "SIZE"), "{what}");
            match unit.map_or("", |unit| unit.as_str()) {
                "SIZE" => {
                    sizes += 1;
                    assert!(
                        takes(command, arg, "1KiB") && takes(command, arg, "1024"),
                        "{what}"
                    );
                    assert!(!takes(command, arg, "1 parsec"), "{what}");
                }
                "TIME" => {
                    times += 1;
                    assert!(
                        takes(command, arg, "2s") && takes(command, arg, "2"),
                        "{what}"
                    );
                    assert!(!takes(command, arg, "2 parsecs"), "{what}");
                    assert!(help.contains("in seconds or with a unit"), "{what}: {help}");
                }
                unit => assert!(!["BYTES", "SECONDS", "MS"].contains(&unit), "{what}"),
            }
            let names = arg.get_long().into_iter();
            let mut names = names.chain(arg.get_visible_aliases().unwrap_or_default());
            if names.any(|name| name == "listen") {
                listeners += 1;
                assert!(unit.is_some_and(|unit| unit == "ADDRESS"), "{what}");
            }
        });
        assert!(
            (sizes, times, listeners) >= (10, 8, 5),
            "{sizes} {times} {listeners}"
        );
    }

    #[test]
    fn servers_of_several_clients_are_started_alike() {
        let mut servers = Vec::new();
        fn each(command: &clap::Command, servers: &mut Vec<String>) {
            for sub in command.get_subcommands() {
                if sub.get_name() == "serve" {
                    let what = command.get_name().to_owned();
                    assert!(
                        sub.get_visible_aliases().any(|name| name == "server"),
                        "{what}"
                    );
                    let has = |long| sub.get_arguments().any(|arg| arg.get_long() == Some(long));
                    assert!(has("listen") && has("port") && has("device"), "{what}");
                    servers.push(what);
                }
                each(sub, servers);
            }
        }
        each(&Cli::command(), &mut servers);
        servers.sort();
        assert_eq!(servers, ["bench", "steps"]);
    }

    #[test]
    fn every_argument_has_a_help_text() {
        visit(&Cli::command(), &mut |command, arg| {
            let named = arg.is_hide_set() || arg.get_help().is_some();
            assert!(named, "ulp {}: {}", command.get_name(), arg.get_id());
        });
    }
}
