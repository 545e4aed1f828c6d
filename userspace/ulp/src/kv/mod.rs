// SPDX-License-Identifier: MIT OR Apache-2.0

//! `ulp kv`: a key-value store whose servers take no part in gets and puts.
//!
//! - [`bench`]: the workloads of YCSB, over RDMA and over TCP

pub mod bench;

use crate::args::{address, size, DeviceArg};
use crate::output::{self, answer, interrupts, table, FormatArgs};
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use nix::sys::resource::{getrlimit, setrlimit, Resource};
use schemars::JsonSchema;
use serde::Serialize;
use std::io::{IsTerminal, Read};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use ulp_kv::{Options, Server, ServerOptions, Store};

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
    /// Serves memory for a table until Ctrl-C. The contents end with the server.
    #[command(visible_alias = "server")]
    Serve(ServeArgs),
    /// Sets the value of a key.
    Put {
        /// The key, 1 to 255 bytes.
        key: String,
        /// The value, at most 64 KiB; `-` reads it from the standard input.
        value: String,
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
    /// Measures the YCSB workloads A, B and C, with keys of a Zipf distribution.
    Bench(bench::Bench),
}

#[derive(Debug, Args)]
struct ServeArgs {
    /// Size of the memory, such as 64MiB; at most 1GiB.
    #[arg(short, long, value_name = "SIZE", default_value = "256MiB", value_parser = size)]
    memory: u64,
    /// Size of the longest value, at most 64KiB. Each key takes twice as much memory.
    #[arg(long, value_name = "SIZE", default_value = "64KiB", value_parser = size)]
    max_value: u64,
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
    /// The servers, HOST or HOST:PORT. All clients must name the same servers.
    #[arg(
        short,
        long,
        required = true,
        value_delimiter = ',',
        value_name = "HOST,..."
    )]
    servers: Vec<String>,
    #[command(flatten)]
    device: DeviceArg,
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

    fn options(&self) -> Options {
        let mut options = Options::default();
        options.device.clone_from(&self.device.name);
        options
    }

    fn connect(&self) -> Result<Store> {
        Ok(Store::connect(&self.names(), self.options())?)
    }
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
            max_value: u32::try_from(self.max_value).unwrap_or(u32::MAX),
            device: self.device.name.clone(),
        };
        let server = Server::new(&listen, &options)?;
        let table = server.table();
        message!(
            "{} bytes under {} keys: room for {} keys of values to {} bytes",
            self.memory,
            server.keys(),
            table.slots(),
            table.max_value
        );
        message!("listening at {}, until Ctrl-C", server.local_addr()?);
        server.run(&stop)?;
        let (stats, get) = (server.stats(), |n: &std::sync::atomic::AtomicU64| {
            n.load(Ordering::Relaxed)
        });
        message!(
            "{} clients, {} cut off, {} locks of lost clients freed",
            get(&stats.clients),
            get(&stats.cut_off),
            get(&stats.locks_freed)
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
    values: Vec<Option<Vec<u8>>>,
    format: &FormatArgs,
) -> Result<ExitCode> {
    let found = values.iter().all(Option::is_some);
    let value = |(key, value): (&String, Option<Vec<u8>>)| Value {
        key: key.clone(),
        bytes: value.as_ref().map(Vec::len),
        value: value.as_deref().map(text),
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
            Command::Put { key, value, client } => {
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
                client.connect()?.put(key.as_bytes(), &bytes)?;
            }
            Command::Get {
                key,
                client,
                format,
            } => {
                let value = client.connect()?.get(key.as_bytes())?;
                if format.is_json() {
                    return print_values(&[key], vec![value], &format);
                }
                let Some(mut value) = value else {
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
                let values = client.connect()?.get_many(&keys)?;
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
            Command::Bench(bench) => return bench.run(),
        }
        Ok(ExitCode::SUCCESS)
    }
}
