// SPDX-License-Identifier: MIT OR Apache-2.0

//! `ulp-test fuzz`: everything that a process can do to the device, at random, from several threads.
//!
//! Operations ([`ops`]) are made out of what there is: live handles of the right kind and now and
//! then of another, lengths inside and at the borders, addresses in memory that is meant for it; then
//! one struct in some is spoiled ([`actor`]). Threads share files and their objects ([`world`]), on both
//! hosts where `two-hosts` has made these, so that connections come about and data crosses.
//!
//! What a thread does follows from the seed and its number ([`dice`]), but for how its operations
//! interleave with those of others. What it must not see is a finding: an errno that the header does
//! not allow of that command ([`errnos`]), a struct that was written by a command which failed, a handle
//! twice, a mapping larger than its object, a call that does not end. What the kernel's checkers see,
//! and what is left behind, is for the suite.

mod actor;
mod corpus;
mod dice;
mod errnos;
mod ops;
mod rings;
mod world;

use crate::report::{because, check, patience, Outcome, Report};
use crate::sys::hostile::Kcov;
use actor::Actor;
use corpus::Corpus;
use dice::{generator, mutate, parse, Dice, Step};
use ops::OPS;
use rand::Rng;
use rand_xorshift::XorShiftRng;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use world::{lock, Count, Counts, World};

/// One struct in so many is spoiled.
const SPOIL: usize = 6;
/// Operations of a program.
const LENGTH: usize = 12;

/// The options of `ulp-test fuzz`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// What all is drawn from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Operations, all threads together.
    #[arg(long, default_value_t = 100_000)]
    ops: u64,
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: u8,
    /// At most so long.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Open files per host.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
    files: u8,
    /// Runs the program of that file, or of each file there, first; with --ops 0 nothing else.
    #[arg(long)]
    replay: Vec<PathBuf>,
    /// Is guided by what of the module is reached (KCOV), and keeps programs that reach more there.
    #[arg(long)]
    cover: Option<PathBuf>,
    /// What makes and destroys nothing is done so many times as often beside the rest.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    often: u32,
}

/// The number of an operation.
fn number_of(name: &str) -> Option<usize> {
    OPS.iter().position(|op| op.0 == name)
}

fn name_of(name: &str) -> Option<&'static str> {
    OPS.iter().map(|op| op.0).find(|op| *op == name)
}

/// The programs of a file, or of all files of a directory by their names.
fn load(path: &Path) -> Outcome<Vec<(String, Vec<Step>)>> {
    let mut files = vec![path.to_owned()];
    if path.is_dir() {
        let list = std::fs::read_dir(path).map_err(because("the corpus"))?;
        files = list.flatten().map(|entry| entry.path()).collect();
        files.sort();
    }
    let mut programs = Vec::new();
    for file in files {
        let name = file.display().to_string();
        let text = std::fs::read_to_string(&file).map_err(because(&name))?;
        let program = parse(&text, name_of).map_err(because(&name))?;
        programs.push((name, program));
    }
    Ok(programs)
}

impl Actor<'_> {
    /// Does one operation; its words are in `dice` then.
    fn act(&mut self, step: Step, seed: u64, spoil: usize) {
        let Some(number) = number_of(step.name) else {
            return;
        };
        self.dice = Dice::new(seed, step.words);
        self.spoil = spoil;
        self.careful = self.dice.below(3) != 0;
        self.doing = step.name;
        self.since = Instant::now();
        self.world.pulse(self.number, Some(number));
        (OPS[number].2)(self);
        self.world.pulse(self.number, None);
    }

    /// Gives every file its first objects.
    fn furnish(&mut self) {
        for slot in 0..self.world.slots.len() {
            let open = self.world.file(slot);
            ops::furnish(self, &open);
        }
    }
}

/// A program of fresh operations.
fn fresh(rng: &mut XorShiftRng, often: u32) -> Vec<Step> {
    let length = rng.next_u32() as usize % LENGTH + 1;
    let mut program = Vec::new();
    program.resize_with(length, || Step {
        name: any_name(rng, often),
        words: Vec::new(),
    });
    program
}

/// An operation, one as often as `OPS` says, a quick one `often` times that.
fn any_name(rng: &mut XorShiftRng, often: u32) -> &'static str {
    let weight = |op: &(&str, u32, ops::Op)| match ops::QUICK.contains(&op.0) {
        true => op.1 * often,
        false => op.1,
    };
    let total: u32 = OPS.iter().map(weight).sum();
    let mut at = rng.next_u32() % total;
    let op = OPS.iter().find(|op| {
        let weight = weight(op);
        let here = at < weight;
        at = at.saturating_sub(weight);
        here
    });
    op.map_or("query", |op| op.0)
}

/// What one thread does, until it is over.
fn thread(world: &World, number: usize, options: &Options) -> Outcome<Counts> {
    let mut actor = Actor::new(world, number).map_err(because("mapping memory"))?;
    let mut rng = generator(options.seed, number as u64 + 1);
    let cover = match &options.cover {
        Some(_) => Some(Kcov::begin().map_err(because("/sys/kernel/debug/kcov"))?),
        None => None,
    };
    while !world.stop.load(Ordering::Relaxed) {
        let mut program = fresh(&mut rng, options.often);
        if cover.is_some() {
            let corpus = lock(&world.corpus);
            let count = corpus.programs.len();
            if count > 0 && rng.next_u32() % 3 != 0 {
                let mut one = || corpus.programs[rng.next_u32() as usize % count].clone();
                let (base, other) = (one(), one());
                program = base;
                drop(corpus);
                let name = any_name(&mut rng, options.often);
                mutate(&mut program, &other, name, &mut rng);
            }
        }
        let (mut done, mut worth) = (Vec::new(), 0);
        for step in program {
            if world.done.load(Ordering::Relaxed) >= options.ops {
                world.stop.store(true, Ordering::Relaxed);
            }
            if world.stop.load(Ordering::Relaxed) {
                break;
            }
            let name = step.name;
            if let Some(cover) = &cover {
                cover.reset();
            }
            actor.act(step, rng.next_u64(), SPOIL);
            if let Some(cover) = &cover {
                let words = std::mem::take(&mut actor.dice.drawn);
                done.push(Step { name, words });
                if lock(&world.corpus).reach(cover.addresses()) > 0 {
                    worth = done.len();
                }
            }
        }
        if worth > 0 {
            done.truncate(worth);
            lock(&world.corpus).programs.push(done);
        }
    }
    actor.rings = None;
    Ok(actor.counts)
}

/// Runs one program in a world of its own; what of the module it reaches, when `cover` is there.
fn replay(
    program: &[Step],
    cover: Option<&Kcov>,
    corpus: &mut Corpus,
) -> Outcome<(Counts, world::Findings, usize)> {
    let world = World::new(2, 1)?;
    let mut actor = Actor::new(&world, 0).map_err(because("mapping memory"))?;
    actor.furnish();
    let mut reached = 0;
    for (i, step) in program.iter().enumerate() {
        if let Some(cover) = cover {
            cover.reset();
        }
        actor.act(step.clone(), i as u64, SPOIL);
        if let Some(cover) = cover {
            reached += corpus.reach(cover.addresses());
        }
    }
    actor.rings = None;
    let counts = std::mem::take(&mut actor.counts);
    drop(actor);
    Ok((counts, world.findings(), reached))
}

/// Which part of the interface a call belongs to.
fn group(what: &str) -> &'static str {
    match what {
        "SUBMIT" | "CANCEL" | "CQ_EVENTFD" | "shared requests" => "requests",
        "LISTEN" | "GET_REQUEST" | "ACCEPT" | "REJECT" | "CONNECT" | "CONN_WAIT" | "DISCONNECT"
        | "CONN_QUERY" => "connections",
        "mmap" | "munmap" | "mremap" | "mprotect" | "madvise" | "ring" | "buffer bytes" => {
            "mappings"
        }
        "read" | "poll" | "epoll" | "fdinfo" | "reopen" | "dup" | "fork" | "ATTACH" => "files",
        _ if what.starts_with("uring") => "io_uring",
        _ if what.starts_with("BUFFER") || what.starts_with("GRANT") => "memory",
        _ if what.ends_with("QUERY") || what == "DEVICE_LIST" || what.starts_with("a command") => {
            "queries"
        }
        _ => "objects",
    }
}

fn errno_name(errno: i32) -> String {
    match errno {
        0 => "ok".to_owned(),
        _ => format!("{:?}", nix::errno::Errno::from_raw(errno)),
    }
}

/// Calls that ask for no command at all, or whose arguments were spoiled on purpose.
const MEANT_TO_FAIL: [&str; 3] = [ops::NO_COMMAND, "uring none", "uring spoiled"];

/// Calls that were made often and never succeeded, with how often: what they lead to was not tried.
fn never_done(counts: &Counts) -> Vec<(&'static str, u64)> {
    let mut calls: BTreeMap<&str, [u64; 2]> = BTreeMap::new();
    for (&(what, errno), count) in counts {
        calls.entry(what).or_default()[usize::from(errno != 0)] += count.calls;
    }
    calls
        .into_iter()
        .filter(|&(what, [done, refused])| {
            let often = match group(what) {
                // One end must meet another one first.
                "connections" => 10_000,
                _ => 1000,
            };
            !MEANT_TO_FAIL.contains(&what) && done == 0 && refused >= often
        })
        .map(|(what, [_, refused])| (what, refused))
        .collect()
}

fn total(counts: &Counts) -> u64 {
    counts.values().map(|count| count.calls).sum()
}

/// One table by groups, one by calls.
fn tables(counts: &Counts, threads: usize, findings: usize, took: Duration) {
    let mut groups: BTreeMap<&str, [Count; 2]> = BTreeMap::new();
    let mut calls: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (&(what, errno), &count) in counts {
        groups.entry(group(what)).or_default()[usize::from(errno != 0)] += count;
        let list = calls.entry(what).or_default();
        list.push(format!("{} {}", errno_name(errno), count.calls));
    }
    println!("# | group | operations | done | refused | seconds of {threads} threads |");
    println!("# |---|---|---|---|---|");
    for (group, [good, bad]) in &groups {
        let (done, refused) = (good.calls, bad.calls);
        let seconds = (good.took + bad.took).as_secs();
        println!(
            "# | {group} | {} | {done} | {refused} | {seconds} |",
            done + refused
        );
    }
    let total = total(counts);
    println!(
        "# | all | {total} operations | {findings} findings | {} s |",
        took.as_secs()
    );
    println!("#");
    for (what, list) in &calls {
        let of = |((name, _), _): &(&(&str, i32), &Count)| name == what;
        let took: Duration = counts.iter().filter(of).map(|(_, count)| count.took).sum();
        println!("# {what}: {}; {:.1} s", list.join(", "), took.as_secs_f64());
    }
}

/// Waits until all is done; false when a call does not end.
fn watch(world: &World, options: &Options, began: Instant, is_over: impl Fn() -> bool) -> bool {
    let patience = 30 * u64::from(patience());
    let mut said = 0;
    while !is_over() {
        std::thread::sleep(Duration::from_millis(50));
        let minutes = began.elapsed().as_secs() / 60;
        if minutes > said {
            said = minutes;
            let done = world.done.load(Ordering::Relaxed);
            println!("# after {minutes} min: {done} operations");
        }
        if began.elapsed() > Duration::from_secs(options.seconds) {
            world.stop.store(true, Ordering::Relaxed);
        }
        let late = world.late(patience * 1000);
        for (number, what, thread) in &late {
            println!(
                "# thread {number} has been at '{}' for {patience} s",
                OPS[*what].0
            );
            let stack = std::fs::read_to_string(format!("/proc/self/task/{thread}/stack"));
            print!("{}", stack.unwrap_or_default());
        }
        if !late.is_empty() {
            return false;
        }
    }
    true
}

fn random(report: &mut Report, options: &Options) -> Outcome<Corpus> {
    let began = Instant::now();
    let world = World::new(options.files.into(), options.threads.into())?;
    let mut first = Actor::new(&world, 0).map_err(because("mapping memory"))?;
    first.furnish();
    let mut counts = std::mem::take(&mut first.counts);
    drop(first);
    if let Some(path) = &options.cover {
        let known = load(path)?.into_iter().map(|(_, program)| program);
        lock(&world.corpus).programs.extend(known);
    }
    let ended = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..usize::from(options.threads))
            .map(|number| {
                let world = &world;
                scope.spawn(move || thread(world, number, options))
            })
            .collect();
        let is_over = || threads.iter().all(|thread| thread.is_finished());
        if !watch(&world, options, began, is_over) {
            report.case("every call ends", || Err("see above".to_owned()));
            let _ = report.status();
            std::process::exit(1);
        }
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or(Err("a thread panicked".to_owned()))
        };
        threads
            .into_iter()
            .map(join)
            .collect::<Vec<Outcome<Counts>>>()
    });
    for thread in ended {
        for (what, count) in thread? {
            *counts.entry(what).or_default() += count;
        }
    }
    let findings = world.findings();
    tables(
        &counts,
        options.threads.into(),
        findings.len(),
        began.elapsed(),
    );
    for (what, (count, example)) in &findings {
        report.case(format!("seed {}", options.seed), || {
            Err(format!("{what}; {count} times, first by {example}"))
        });
    }
    let total = total(&counts);
    report.case(
        format!(
            "seed {}: {total} operations, {} threads",
            options.seed, options.threads
        ),
        || check("nothing was done", total > 0),
    );
    for (what, tries) in never_done(&counts) {
        report.case(
            format!("seed {}: {what} succeeds now and then", options.seed),
            || Err(format!("never, in {tries} tries")),
        );
    }
    let corpus = std::mem::take(&mut *lock(&world.corpus));
    Ok(corpus)
}

/// Keeps those programs that reach what those before them do not, without the operations that they do
/// not need for that.
fn distill(found: Corpus, path: &Path, end: Instant) -> Outcome<usize> {
    let cover = Kcov::begin().map_err(because("/sys/kernel/debug/kcov"))?;
    let mut kept = Corpus::default();
    // What every program reaches, with nothing in it.
    replay(&[], Some(&cover), &mut kept)?;
    let mut programs = found.programs;
    programs.sort_by_key(Vec::len);
    for mut program in programs {
        if Instant::now() > end {
            break;
        }
        let mut with = Corpus {
            programs: Vec::new(),
            reached: kept.reached.clone(),
        };
        let (.., gain) = replay(&program, Some(&cover), &mut with)?;
        if gain == 0 {
            continue;
        }
        let mut at = program.len();
        while at > 0 && program.len() > 1 && Instant::now() < end {
            at -= 1;
            let mut shorter = program.clone();
            shorter.remove(at);
            let mut less = Corpus {
                programs: Vec::new(),
                reached: kept.reached.clone(),
            };
            let (.., still) = replay(&shorter, Some(&cover), &mut less)?;
            if still >= gain {
                program = shorter;
            }
        }
        kept.reached = with.reached;
        kept.programs.push(program);
    }
    std::fs::create_dir_all(path).map_err(because("the corpus"))?;
    for (i, program) in kept.programs.iter().enumerate() {
        let file = path.join(format!("{i:03}"));
        std::fs::write(file, corpus::text(program)).map_err(because("the corpus"))?;
    }
    println!(
        "# {} programs kept, which reach {} places alone",
        kept.programs.len(),
        kept.reached.len()
    );
    Ok(kept.programs.len())
}

fn all(report: &mut Report, options: &Options) -> Outcome {
    println!(
        "# fuzz --seed {} --ops {} --threads {} --seconds {} --files {} --often {}",
        options.seed, options.ops, options.threads, options.seconds, options.files, options.often
    );
    for path in &options.replay {
        for (name, program) in load(path)? {
            let name = name.rsplit('/').next().unwrap_or("").to_owned();
            report.case(format!("replay of {name}"), || {
                let (_, findings, _) = replay(&program, None, &mut Corpus::default())?;
                let first = findings.iter().next();
                first.map_or(Ok(()), |(what, (_, by))| Err(format!("{what}: {by}")))
            });
        }
    }
    if options.ops == 0 {
        return Ok(());
    }
    let found = random(report, options)?;
    if let Some(path) = &options.cover {
        println!(
            "# {} places in the module were reached, {} programs",
            found.reached.len(),
            found.programs.len()
        );
        let end = Instant::now() + Duration::from_secs(options.seconds / 2 + 20);
        let kept = distill(found, path, end)?;
        report.case("programs kept", || check("none", kept > 0));
    }
    Ok(())
}

/// Everything that the options say.
pub fn run(options: &Options) -> ExitCode {
    let mut report = Report::new();
    if let Err(why) = all(&mut report, options) {
        report.case("the fuzzer itself", || Err(why));
    }
    report.status()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_what_never_succeeds() {
        let count = |calls| Count {
            calls,
            ..Count::default()
        };
        let mut counts = Counts::from([
            (("PD_CREATE", 22), count(600)),
            (("PD_CREATE", 12), count(600)),
            (("QUERY", 22), count(999)),
            (("REJECT", 9), count(9_999)),
            ((ops::NO_COMMAND, 25), count(5000)),
        ]);
        assert_eq!(never_done(&counts), [("PD_CREATE", 1200)]);
        counts.insert(("PD_CREATE", 0), count(1));
        assert_eq!(never_done(&counts), []);
    }
}
