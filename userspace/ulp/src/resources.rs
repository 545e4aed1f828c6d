// SPDX-License-Identifier: MIT OR Apache-2.0

//! `ulp resources`: the protection domains, completion queues, queue pairs, memory regions and
//! connection identifiers of this host, by process and kernel module, as `rdma res` lists them.

use crate::netlink::{self, ResourceKind};
use crate::output::{self, FormatArgs};
use crate::show::{self, Filter};
use crate::system;
use anyhow::{Context, Result};
use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::process::ExitCode;

/// Arguments of `ulp resources`.
#[derive(Debug, Args)]
pub struct Resources {
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    format: FormatArgs,
}

/// The output of `ulp resources`.
#[derive(Serialize, JsonSchema)]
pub struct ResourceList {
    owners: Vec<Owner>,
}

/// What a process or a kernel module has of a device.
#[derive(Serialize, JsonSchema)]
struct Owner {
    device: String,
    /// The process; null for objects of the kernel.
    pid: Option<u32>,
    /// The name of that process.
    program: Option<String>,
    /// The kernel module that created the objects, if no process did by uverbs.
    module: Option<String>,
    /// The number of objects of each kind: pd, cq, qp, mr and cm_id.
    objects: BTreeMap<&'static str, u32>,
}

impl Owner {
    fn cells(&self) -> Vec<String> {
        let mut cells = vec![
            self.device.clone(),
            output::or_dash(self.pid),
            show::program_or_module(self.program.as_ref(), self.module.as_ref()),
        ];
        let count = |kind: &ResourceKind| self.objects.get(kind.name).copied().unwrap_or(0);
        cells.extend(
            netlink::RESOURCES
                .iter()
                .map(|kind| count(kind).to_string()),
        );
        cells
    }
}

/// Counts the objects of a device by their owners.
fn owners(device: &str, found: &[(&'static str, netlink::Resource)]) -> Vec<Owner> {
    let mut all: BTreeMap<_, BTreeMap<&'static str, u32>> = BTreeMap::new();
    for (kind, resource) in found {
        let owner = (resource.pid, resource.module.clone());
        *all.entry(owner).or_default().entry(*kind).or_default() += 1;
    }
    let owner = |((pid, module), objects)| Owner {
        device: device.to_owned(),
        pid,
        program: pid.and_then(system::program),
        module,
        objects,
    };
    all.into_iter().map(owner).collect()
}

impl Resources {
    pub fn run(self) -> Result<ExitCode> {
        let mut list = ResourceList { owners: Vec::new() };
        for device in self.filter.devices()? {
            let mut found = Vec::new();
            for kind in netlink::RESOURCES {
                let resources = netlink::resources(device.index, kind)
                    .with_context(|| format!("listing the {}s of {}", kind.name, device.name))?;
                found.extend(resources.into_iter().map(|resource| (kind.name, resource)));
            }
            list.owners.extend(owners(&device.name, &found));
        }
        let head = ["DEVICE", "PID", "PROGRAM", "PD", "CQ", "QP", "MR", "CM_ID"];
        self.format.print(&list, || {
            output::table(&head, list.owners.iter().map(Owner::cells))
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::Resource;

    #[test]
    fn objects_are_counted_by_their_owners() {
        let of = |pid, module: Option<&str>| Resource {
            pid,
            module: module.map(str::to_owned),
        };
        let found = [
            ("qp", of(None, Some("ib_core"))),
            ("qp", of(Some(0), None)),
            ("mr", of(Some(0), None)),
            ("qp", of(Some(0), None)),
        ];
        let owners = owners("rxe0", &found);
        let cells: Vec<_> = owners.iter().map(Owner::cells).collect();
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            cells,
            [
                words("rxe0 - [ib_core] 0 0 1 0 0"),
                words("rxe0 0 - 0 0 2 1 0")
            ]
        );
    }
}
