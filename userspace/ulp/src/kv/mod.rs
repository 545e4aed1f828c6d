// SPDX-License-Identifier: MIT OR Apache-2.0

//! `ulp kv`: a key-value store whose clients read the memory of its servers.
//!
//! - [`bench`]: the workloads of YCSB, over RDMA and over TCP

pub mod bench;

use crate::args::{address, seconds, size, DeviceArg};
use crate::output::{self, answer, interrupts, table, FormatArgs};
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use nix::sys::resource::{getrlimit, setrlimit, Resource};
use schemars::JsonSchema;
use serde::Serialize;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;
use ulp_kv::{Condition, Options, Server, ServerOptions, Store};

/// TCP port of servers.
const PORT: u16 = 7170;

/// Arguments of `ulp kv`.
#[derive(Debug, Args)]
pub struct Kv {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serves a table until Ctrl-C. Without --file the contents end with the server.
    #[command(visible_alias = "server")]
    Serve(ServeArgs),
    /// Sets the value of a key.
    Put {
        /// The key, 1 to 255 bytes.
        key: String,
        /// The value, at most 64 KiB; `-` reads it from the standard input.
        value: String,
        /// Delete the key after this time, in seconds or with a unit, or at most a second later.
        #[arg(long, value_name = "TIME", value_parser = seconds)]
        ttl: Option<u32>,
        #[command(flatten)]
        only_if: ConditionArgs,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Adds to the decimal number that is the value of a key, and prints the sum. A key that does
    /// not exist counts as 0.
    Add {
        /// The key.
        key: String,
        /// What to add.
        #[arg(default_value_t = 1, allow_negative_numbers = true)]
        by: i64,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Prints the value of a key as it is, or as JSON.
    Get {
        /// The key.
        key: String,
        #[command(flatten)]
        client: ClientArgs,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Deletes a key.
    Delete {
        /// The key.
        key: String,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Prints the values of several keys, which are looked up together.
    Mget {
        /// The keys.
        #[arg(required = true)]
        keys: Vec<String>,
        #[command(flatten)]
        client: ClientArgs,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Prints all keys, with the lengths of their values.
    List {
        #[command(flatten)]
        client: ClientArgs,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Prints the members of the store, or changes them and moves the keys.
    Members {
        /// The new members, HOST or HOST:PORT, by which all clients reach them. If it fails, do it
        /// again: it continues.
        names: Vec<String>,
        #[command(flatten)]
        client: ClientArgs,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Measures the YCSB workloads A, B and C, with keys of a Zipf distribution.
    Bench(bench::Bench),
}

#[derive(Debug, Args)]
struct ServeArgs {
    /// Size of the memory, such as 64MiB; at most 1GiB.
    #[arg(short, long, value_name = "SIZE", default_value = "256MiB", value_parser = size)]
    memory: u64,
    /// Number of keys that there are slots for; one for every 512 bytes of memory unless given.
    #[arg(
        short,
        long,
        value_name = "NUMBER",
        default_value_t = 0,
        hide_default_value = true
    )]
    keys: u64,
    /// Size of the longest value, at most 64KiB.
    #[arg(long, value_name = "SIZE", default_value = "64KiB", value_parser = size)]
    max_value: u64,
    /// Load the contents from this file, and save them to it at the end.
    #[arg(short, long, value_name = "FILE", conflicts_with = "tcp")]
    file: Option<PathBuf>,
    /// Save them at this interval, too, in seconds or with a unit. Writes wait while the server
    /// saves.
    #[arg(long, value_name = "TIME", value_parser = seconds, requires = "file")]
    save_every: Option<u32>,
    /// Refuse clients that do not know the secret in this file.
    #[arg(long, value_name = "FILE", conflicts_with = "tcp")]
    secret_file: Option<PathBuf>,
    /// Listen at this address only.
    #[arg(long, value_name = "ADDRESS", default_value = "::")]
    listen: String,
    /// TCP port.
    #[arg(short, long, default_value_t = PORT)]
    port: u16,
    #[command(flatten)]
    device: DeviceArg,
    /// Serve a store over TCP instead, for comparison.
    #[arg(long)]
    tcp: bool,
}

/// The options of all clients.
#[derive(Clone, Debug, Args)]
struct ClientArgs {
    /// The servers, HOST or HOST:PORT. One is enough if `ulp kv members` has told them the members;
    /// else all clients must name the same servers.
    #[arg(
        short,
        long,
        required = true,
        value_delimiter = ',',
        value_name = "HOST,..."
    )]
    servers: Vec<String>,
    /// The file with the secret of the servers.
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    #[command(flatten)]
    device: DeviceArg,
}

/// What a put depends on.
#[derive(Clone, Copy, Debug, Args)]
#[group(multiple = false)]
struct ConditionArgs {
    /// Put only if the key does not exist.
    #[arg(long)]
    if_absent: bool,
    /// Put only if the value has this version, which `get --format json` prints.
    #[arg(long, value_name = "VERSION")]
    if_version: Option<u64>,
}

impl ConditionArgs {
    fn condition(self) -> Condition {
        match self.if_version {
            Some(version) => Condition::Version(version),
            None if self.if_absent => Condition::Absent,
            None => Condition::Always,
        }
    }
}

/// The output of `ulp kv get` and `ulp kv mget`.
#[derive(Serialize, JsonSchema)]
pub struct Values {
    values: Vec<Value>,
}

#[derive(Serialize, JsonSchema)]
struct Value {
    key: String,
    /// The value, with invalid UTF-8 replaced; null if there is no such key.
    value: Option<String>,
    bytes: Option<usize>,
    /// The version of the value, which `put --if-version` takes.
    version: Option<u64>,
}

/// The output of `ulp kv members`.
#[derive(Serialize, JsonSchema)]
pub struct Members {
    /// The number of the list, which grows with each change; 0 if the servers have no list.
    epoch: u64,
    members: Vec<String>,
    /// The keys that were moved, if the members were changed.
    moved: Option<u64>,
}

/// The output of `ulp kv list`.
#[derive(Serialize, JsonSchema)]
pub struct Keys {
    keys: Vec<Key>,
}

#[derive(Serialize, JsonSchema, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    key: String,
    /// The length of the value.
    bytes: usize,
}

impl ClientArgs {
    fn names(&self) -> Vec<String> {
        self.servers
            .iter()
            .map(|host| address(host, PORT))
            .collect()
    }

    fn options(&self) -> Result<Options> {
        let mut options = Options::default();
        options.device.clone_from(&self.device.name);
        options.secret = secret(self.secret_file.as_deref())?;
        Ok(options)
    }

    fn connect(&self) -> Result<Store> {
        Ok(Store::connect(&self.names(), self.options()?)?)
    }
}

/// Reads a secret: the contents of a file without the end of its line.
fn secret(path: Option<&Path>) -> Result<Option<Vec<u8>>> {
    let Some(path) = path else {
        return Ok(None);
    };
    let mut bytes =
        std::fs::read(path).with_context(|| format!("reading the secret in {}", path.display()))?;
    while bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    anyhow::ensure!(
        !bytes.is_empty(),
        "{} has no secret in it; write one",
        path.display()
    );
    Ok(Some(bytes))
}

impl ServeArgs {
    fn run(&self) -> Result<()> {
        let stop = interrupts()?;
        // A client takes two descriptors.
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
        setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
        let listen = address(&self.listen, self.port);
        if self.tcp {
            let server = ulp_kv::tcp::TcpServer::new(&listen)?;
            message!("listening at {}, until Ctrl-C", server.local_addr()?);
            server.run(&stop);
            return Ok(());
        }
        let options = ServerOptions {
            memory: self.memory,
            keys: self.keys,
            max_value: u32::try_from(self.max_value).unwrap_or(u32::MAX),
            device: self.device.name.clone(),
            secret: secret(self.secret_file.as_deref())?,
            file: self.file.clone(),
            save_every: self.save_every.map(|n| Duration::from_secs(n.into())),
        };
        let server = Server::new(&listen, &options)?;
        let table = server.geometry();
        message!(
            "{} bytes under {} keys: {} slots, values to {} bytes; {} keys are there",
            self.memory,
            server.remote_keys(),
            table.slots(),
            table.max_value,
            server.contents().0
        );
        message!("listening at {}, until Ctrl-C", server.local_addr()?);
        server.run(&stop)?;
        let (stats, get) = (server.stats(), |n: &std::sync::atomic::AtomicU64| {
            n.load(Ordering::Relaxed)
        });
        let (keys, used) = server.contents();
        message!(
            "{} clients, {} writes, {} of them repeated, {} keys expired; {keys} keys are left, in {:.1} % of the memory",
            get(&stats.clients),
            get(&stats.requests),
            get(&stats.repeated),
            get(&stats.expired),
            used * 100.0
        );
        Ok(())
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn no_such(key: &str) -> ExitCode {
    message!("ulp: there is no key {key:?}");
    answer(false)
}

/// Prints the values of several keys as JSON or as a table.
fn print_values(
    keys: &[String],
    values: Vec<Option<ulp_kv::Value>>,
    format: &FormatArgs,
) -> Result<ExitCode> {
    let found = values.iter().all(Option::is_some);
    let value = |(key, value): (&String, Option<ulp_kv::Value>)| Value {
        key: key.clone(),
        bytes: value.as_ref().map(|value| value.bytes.len()),
        version: value.as_ref().map(|value| value.version),
        value: value.map(|value| text(&value.bytes)),
    };
    let values = Values {
        values: keys.iter().zip(values).map(value).collect(),
    };
    let cells = |value: &Value| vec![value.key.clone(), output::or_dash(value.value.as_ref())];
    format.print(&values, || {
        table(&["KEY", "VALUE"], values.values.iter().map(cells))
    })?;
    Ok(answer(found))
}

impl Kv {
    pub fn run(self) -> Result<ExitCode> {
        match self.command {
            Command::Serve(server) => server.run()?,
            Command::Put {
                key,
                value,
                ttl,
                only_if,
                client,
            } => {
                let mut bytes = value.into_bytes();
                if bytes == b"-" {
                    bytes.clear();
                    // One byte more than the limit, so that a longer value is refused.
                    let most = ulp_kv::MAX_VALUE as u64 + 1;
                    std::io::stdin()
                        .take(most)
                        .read_to_end(&mut bytes)
                        .context("reading the value")?;
                }
                let ttl = ttl.map(|seconds| Duration::from_secs(seconds.into()));
                let mut store = client.connect()?;
                let put = store.put_if(key.as_bytes(), &bytes, ttl, only_if.condition())?;
                if put.is_none() {
                    message!("ulp: the condition is not met; nothing was put");
                    return Ok(answer(false));
                }
            }
            Command::Add { key, by, client } => {
                let sum = client.connect()?.add(key.as_bytes(), by)?;
                output::write(&mut std::io::stdout(), format!("{sum}\n").as_bytes())?;
            }
            Command::Get {
                key,
                client,
                format,
            } => {
                let value = client.connect()?.get_value(key.as_bytes())?;
                if format.is_json() {
                    return print_values(&[key], vec![value], &format);
                }
                let Some(ulp_kv::Value {
                    bytes: mut value, ..
                }) = value
                else {
                    return Ok(no_such(&key));
                };
                let mut out = std::io::stdout();
                if out.is_terminal() {
                    value.push(b'\n');
                }
                output::write(&mut out, &value)?;
            }
            Command::Delete { key, client } => {
                if !client.connect()?.delete(key.as_bytes())? {
                    return Ok(no_such(&key));
                }
            }
            Command::Mget {
                keys,
                client,
                format,
            } => {
                let ops: Vec<ulp_kv::Op> = keys
                    .iter()
                    .map(|key| ulp_kv::Op::get(key.as_bytes()))
                    .collect();
                let values = client
                    .connect()?
                    .run(&ops)
                    .into_iter()
                    .map(|result| match result {
                        Ok(ulp_kv::Outcome::Value(value)) => Ok(value),
                        Ok(_) => Ok(None),
                        Err(error) => Err(error),
                    });
                let values: Vec<_> = values.collect::<ulp_kv::Result<_>>()?;
                return print_values(&keys, values, &format);
            }
            Command::List { client, format } => {
                let mut keys = Vec::new();
                client.connect()?.list(|key, bytes| {
                    keys.push(Key {
                        key: text(key),
                        bytes,
                    });
                })?;
                keys.sort();
                let list = Keys { keys };
                let cells = |key: &Key| vec![key.key.clone(), key.bytes.to_string()];
                format.print(&list, || {
                    table(&["KEY", "BYTES"], list.keys.iter().map(cells))
                })?;
            }
            Command::Members {
                names,
                client,
                format,
            } => {
                let mut store = client.connect()?;
                let names: Vec<String> = names.iter().map(|host| address(host, PORT)).collect();
                let moved = match names.is_empty() {
                    true => None,
                    false => Some(store.set_members(&names)?),
                };
                let members = Members {
                    epoch: store.members().epoch,
                    members: store.members().names.clone(),
                    moved,
                };
                let cells = |name: &String| vec![name.clone(), members.epoch.to_string()];
                format.print(&members, || {
                    table(&["MEMBER", "EPOCH"], members.members.iter().map(cells))
                })?;
            }
            Command::Bench(bench) => return bench.run(),
        }
        Ok(ExitCode::SUCCESS)
    }
}
