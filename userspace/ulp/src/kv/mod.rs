// SPDX-License-Identifier: MIT OR Apache-2.0

//! `ulp kv`: a key-value store whose servers take no part in gets and puts.
//!
//! - [`bench`]: YCSB's mixes, over RDMA and over TCP

mod bench;

use crate::output::{address, interrupts, print, table, Format, FormatArgs, VERSION};
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use serde_json::json;
use std::io::{IsTerminal, Read, Write};
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
    /// Offers memory for a table, until Ctrl-C. Its contents end with it.
    Server(ServerArgs),
    /// Sets the value of a key.
    Put {
        /// 1 to 255 bytes.
        key: String,
        /// At most 64 KiB; `-` reads it from the standard input.
        value: String,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Prints the value of a key, as it is.
    Get {
        /// The key.
        key: String,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Takes a key away.
    Delete {
        /// The key.
        key: String,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Prints the values of many keys, which are looked up together.
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
    /// Measures YCSB's mixes A, B and C, with keys that are as popular as Zipf says.
    Bench(bench::Bench),
}

#[derive(Debug, Args)]
struct ServerArgs {
    /// Memory, such as 64MiB; at most 1GiB.
    #[arg(short, long, default_value = "256MiB", value_parser = size)]
    memory: u64,
    /// The longest value: each key takes twice that. At most 64KiB.
    #[arg(long, default_value = "64KiB", value_parser = size)]
    max_value: u64,
    /// Listen at this address only.
    #[arg(long, default_value = "::")]
    listen: String,
    /// TCP port.
    #[arg(short, long, default_value_t = PORT)]
    port: u16,
    /// RDMA device [default: the first whose interface is in this network namespace]
    #[arg(short, long, value_name = "NAME")]
    device: Option<String>,
    /// Serve a store over TCP instead, to compare with.
    #[arg(long)]
    tcp: bool,
}

/// What all clients have.
#[derive(Clone, Debug, Args)]
struct ClientArgs {
    /// The servers, HOST or HOST:PORT. All clients have to name the same.
    #[arg(
        short,
        long,
        required = true,
        value_delimiter = ',',
        value_name = "HOST,..."
    )]
    servers: Vec<String>,
    /// RDMA device [default: the first whose interface is in this network namespace]
    #[arg(short, long, value_name = "NAME")]
    device: Option<String>,
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
        options.device.clone_from(&self.device);
        options
    }

    fn connect(&self) -> Result<Store> {
        Ok(Store::connect(&self.names(), self.options())?)
    }
}

/// Bytes, with KiB, MiB or GiB.
fn size(text: &str) -> std::result::Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match &text[digits.len()..] {
        "" | "B" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        unit => return Err(format!("{unit:?} is no unit: KiB, MiB or GiB")),
    };
    let n: u64 = digits.parse().map_err(|error| format!("{error}"))?;
    n.checked_mul(1 << unit)
        .ok_or_else(|| "too large".to_owned())
}

impl ServerArgs {
    fn run(&self) -> Result<()> {
        let stop = interrupts()?;
        let listen = address(&self.listen, self.port);
        if self.tcp {
            let server = ulp_kv::tcp::TcpServer::new(&listen)?;
            eprintln!("listening at {}, until Ctrl-C", server.local_addr()?);
            server.run(&stop);
            return Ok(());
        }
        let options = ServerOptions {
            memory: self.memory,
            max_value: u32::try_from(self.max_value).unwrap_or(u32::MAX),
            device: self.device.clone(),
        };
        let server = Server::new(&listen, &options)?;
        let table = server.table();
        eprintln!(
            "{} bytes under {} keys: room for {} keys of values to {} bytes",
            self.memory,
            server.keys(),
            table.slots(),
            table.max_value
        );
        eprintln!("listening at {}, until Ctrl-C", server.local_addr()?);
        server.run(&stop)?;
        let (stats, get) = (server.stats(), |n: &std::sync::atomic::AtomicU64| {
            n.load(Ordering::Relaxed)
        });
        eprintln!(
            "{} clients, {} cut off, {} locks freed of those who were gone",
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
    eprintln!("ulp: there is no key {key:?}");
    ExitCode::FAILURE
}

fn many(client: &ClientArgs, keys: &[String], format: Format) -> Result<ExitCode> {
    let values = client.connect()?.get_many(keys)?;
    let found = || keys.iter().zip(&values);
    match format {
        Format::Json => {
            let row = |(key, value): (&String, &Option<Vec<u8>>)| json!({"key": key, "value": value.as_deref().map(text), "bytes": value.as_ref().map(Vec::len)});
            let rows: Vec<_> = found().map(row).collect();
            print(&serde_json::to_string_pretty(
                &json!({"version": VERSION, "values": rows}),
            )?)?;
        }
        Format::Table => {
            let cells = found().map(|(key, value)| {
                let value = value.as_deref().map_or_else(|| "-".to_owned(), text);
                vec![key.clone(), value]
            });
            print(&table(&["KEY", "VALUE"], cells))?;
        }
    }
    Ok(match values.iter().all(Option::is_some) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

impl Kv {
    pub fn run(self) -> Result<ExitCode> {
        match self.command {
            Command::Server(server) => server.run()?,
            Command::Put { key, value, client } => {
                let mut bytes = value.into_bytes();
                if bytes == b"-" {
                    bytes.clear();
                    // One more than can be: then it is too large, however long it is.
                    let most = ulp_kv::MAX_VALUE as u64 + 1;
                    std::io::stdin()
                        .take(most)
                        .read_to_end(&mut bytes)
                        .context("the value")?;
                }
                client.connect()?.put(key.as_bytes(), &bytes)?;
            }
            Command::Get { key, client } => {
                let Some(value) = client.connect()?.get(key.as_bytes())? else {
                    return Ok(no_such(&key));
                };
                let mut out = std::io::stdout().lock();
                out.write_all(&value)?;
                if out.is_terminal() {
                    writeln!(out)?;
                }
                out.flush()?;
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
            } => return many(&client, &keys, format.format),
            Command::List { client, format } => {
                let mut rows = Vec::new();
                client
                    .connect()?
                    .list(|key, len| rows.push((text(key), len)))?;
                rows.sort();
                match format.format {
                    Format::Json => {
                        let rows: Vec<_> = rows
                            .iter()
                            .map(|(key, len)| json!({"key": key, "bytes": len}))
                            .collect();
                        print(&serde_json::to_string_pretty(
                            &json!({"version": VERSION, "keys": rows}),
                        )?)?;
                    }
                    Format::Table => {
                        let cells = rows
                            .iter()
                            .map(|(key, len)| vec![key.clone(), len.to_string()]);
                        print(&table(&["KEY", "BYTES"], cells))?;
                    }
                }
            }
            Command::Bench(bench) => return bench.run(),
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, want) in [
            ("1GiB", 1 << 30),
            ("64K", 65_536),
            ("7", 7),
            ("3MiB", 3 << 20),
        ] {
            assert_eq!(size(text), Ok(want));
        }
        for bad in [
            "",
            "GiB",
            "1TiB",
            "1 MiB",
            "99999999999999999999",
            "99999999999999GiB",
        ] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
