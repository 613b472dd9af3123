//! What `sim` and `check` have in common on the command line.

use clap::Args;
use kofm_core::topology::Topology;
use kofm_core::{Cluster, Kind, Units};

use crate::failure::Failure;
use crate::topology;

/// A protocol and the cluster that it runs in.
#[derive(Debug, Args)]
pub(crate) struct Lab {
    /// The protocol, by name; `kofm protocols` lists them
    #[arg(long, value_name = "P")]
    protocol: String,
    /// How many sites
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    sites: u16,
    /// Units in the pool; several pools with commas: 4,2
    #[arg(long, value_name = "M", value_delimiter = ',', required = true,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    units: Vec<u32>,
    /// Who is linked to whom: full, ring, tree, or a file with a link per line
    #[arg(long, value_name = "T", default_value = "full")]
    topology: String,
}

impl Lab {
    /// The protocol asked for.
    pub(crate) fn kind(&self) -> Result<Kind, Failure> {
        let kind = Kind::named(&self.protocol).ok_or_else(|| {
            let names: Vec<_> = Kind::ALL.iter().map(|kind| kind.name()).collect();
            let (asked, names) = (&self.protocol, names.join(", "));
            Failure::usage(format!("there is no protocol `{asked}`: use one of {names}"))
        })?;
        if self.units.len() > 1 && !kind.profile().full_service {
            let name = kind.name();
            return Err(Failure::usage(format!("{name} knows one pool only: give one --units")));
        }
        Ok(kind)
    }

    /// The cluster asked for.
    pub(crate) fn cluster(&self) -> Result<Cluster, Failure> {
        if self.units.len() > 1_000 {
            return Err(Failure::usage("--units: at most 1,000 pools"));
        }
        let topology = topology::parse(&self.topology, self.sites)?;
        Ok(Cluster {
            sites: self.sites,
            pools: self.units.iter().copied().map(Units).collect(),
            topology,
            ..Cluster::new(self.sites, 1)
        })
    }

    /// The shape as the user named it, where it is not the usual one.
    pub(crate) fn shape(&self, cluster: &Cluster) -> String {
        if cluster.topology == Topology::Full {
            String::new()
        } else {
            format!(", {}", self.topology)
        }
    }

    /// Units per claim from `A..B` or `K`, checked against the largest pool.
    pub(crate) fn amounts(
        &self,
        text: Option<&str>,
        default: (u32, u32),
    ) -> Result<(u32, u32), Failure> {
        let Some(text) = text else { return Ok(default) };
        let (low, high) = text.split_once("..").unwrap_or((text, text));
        let parse = |part: &str| part.parse::<u32>().ok();
        let most = self.units.iter().copied().max().unwrap_or(1);
        match (parse(low), parse(high)) {
            (Some(low), Some(high)) if 1 <= low && low <= high && high <= most => Ok((low, high)),
            _ => Err(Failure::usage(format!(
                "--k {text}: write K or A..B with 1 <= A <= B <= {most}, the units of the pool"
            ))),
        }
    }
}

/// A protocol and pools for people: `permission, 3 sites, 4 units`.
pub(crate) fn title(kind: Kind, cluster: &Cluster) -> String {
    let plural = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
    let units: Vec<String> =
        cluster.pools.iter().map(|units| plural(units.0 as usize, "unit")).collect();
    format!("{}, {}, {}", kind.name(), plural(cluster.sites.into(), "site"), units.join(" + "))
}
