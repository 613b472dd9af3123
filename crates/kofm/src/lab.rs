//! What `sim` and `check` have in common on the command line.

use std::collections::BTreeSet;

use clap::Args;
use kofm_core::protocols::gang::Shares;
use kofm_core::protocols::sem_quorum::turns;
use kofm_core::quorums::{Arbitration, Construction, RequestSets};
use kofm_core::topology::Topology;
use kofm_core::{Cluster, Fault, Grouping, Kind, PoolId, Service, SiteId, Units};

use crate::exit::{Exit, INFEASIBLE};
use crate::groups::{self, Names};
use crate::{sets, topology};

/// A protocol and the cluster that it runs in.
#[derive(Debug, Args)]
pub(crate) struct Lab {
    /// The protocol, by name; `kofm protocols` lists them
    #[arg(long, value_name = "P")]
    protocol: String,
    /// Number of sites
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    sites: Option<u16>,
    /// Units in the pool, or the first value of the semaphore; several with commas: 4,2
    #[arg(long, value_name = "M", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    units: Vec<u32>,
    /// Who is linked to whom: full, ring, tree, or a file with a link per line; for groups, a TOML
    /// file with processes and groups, which makes --sites and --units unnecessary
    #[arg(long, value_name = "T", default_value = "full")]
    topology: String,
    /// How request sets are made, for protocols that have them: broadcast, threshold, uniform,
    /// tournament, projective, grid, cyclic [default: the one with the fewest messages]
    #[arg(long, value_name = "C", value_parser = construction)]
    construction: Option<Construction>,
    /// Dead arbiters that request sets have to survive
    #[arg(long, value_name = "F", default_value_t = 0)]
    crashes: u16,
    /// The sites that arbitrate, with commas: 0,1,2 [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    arbiters: Option<Vec<u16>>,
    /// A file with a line for each site: the sites that it asks
    #[arg(long, value_name = "FILE", conflicts_with_all = ["construction", "crashes", "arbiters"])]
    sets: Option<String>,
    /// The faults that a published listing is run with, with commas, or none [default: all that
    /// are printed]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    reading: Vec<String>,
    /// Semaphores: every counter is set back by X once it has reached X, raz(X) of the paper
    #[arg(long, value_name = "X", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    reset: Option<u32>,
}

fn construction(name: &str) -> Result<Construction, String> {
    Construction::named(name).ok_or_else(|| {
        let names: Vec<_> = Construction::ALL.iter().map(|one| one.name()).collect();
        format!("use one of {}", names.join(", "))
    })
}

impl Lab {
    /// The protocol asked for.
    pub(crate) fn kind(&self) -> Result<Kind, Exit> {
        let kind = Kind::named(&self.protocol).ok_or_else(|| {
            let names: Vec<_> = Kind::ALL.iter().map(|kind| kind.name()).collect();
            let (asked, names) = (&self.protocol, names.join(", "));
            Exit::usage(format!("there is no protocol `{asked}`: use one of {names}"))
        })?;
        if self.units.contains(&0) && !is_semaphore(kind) {
            return Err(Exit::usage("--units 0 is not in 1..=1000000: a pool has a unit"));
        }
        if self.units.len() > 1 && !knows_several_pools(kind) {
            let name = kind.name();
            return Err(Exit::usage(format!("{name} knows one pool only: give one --units")));
        }
        let said = self.arbitration() != Arbitration::default() || self.sets.is_some();
        if !kind.profile().arbitrated && said {
            let name = kind.name();
            return Err(Exit::usage(format!(
                "{name} asks no arbiters: --construction, --crashes, --arbiters and --sets are for \
                 quorum and sem-quorum"
            )));
        }
        if self.reset.is_some() && !is_semaphore(kind) {
            let name = kind.name();
            return Err(Exit::usage(format!("--reset is for semaphores: {name} has no counters")));
        }
        Ok(kind)
    }

    /// The reading asked for, if one is.
    fn reading(&self, kind: Kind) -> Result<Option<BTreeSet<Fault>>, Exit> {
        let all = kind.faults();
        let fault = |name: &String| {
            all.iter().copied().find(|fault| fault.name() == name).ok_or_else(|| {
                let names: Vec<_> = all.iter().map(|fault| fault.name()).collect();
                let (listing, names) = (kind.name(), names.join(", "));
                Exit::usage(if names.is_empty() {
                    format!("--reading: {listing} has no faults to choose from")
                } else {
                    format!("--reading `{name}`: {listing} has {names}, or none")
                })
            })
        };
        match &self.reading[..] {
            [] => Ok(None),
            [none] if none == "none" && !all.is_empty() => Ok(Some(BTreeSet::new())),
            names => names.iter().map(fault).collect::<Result<_, _>>().map(Some),
        }
    }

    /// The cluster asked for.
    pub(crate) fn cluster(&self, kind: Kind) -> Result<Cluster, Exit> {
        if self.units.len() > 1_000 {
            return Err(Exit::usage("--units: at most 1,000 pools"));
        }
        if let Some((grouping, _)) = self.group_file(kind)? {
            self.reading(kind)?;
            return Ok(Cluster::of_groups(grouping));
        }
        let (Some(sites), false) = (self.sites, self.units.is_empty()) else {
            return Err(Exit::usage("--sites N and --units M say how large the cluster is"));
        };
        let topology = topology::parse(&self.topology, sites)?;
        let mut cluster = Cluster {
            sites,
            pools: self.units.iter().copied().map(Units).collect(),
            topology,
            reading: self.reading(kind)?,
            reset: self.reset,
            ..Cluster::new(sites, 1)
        };
        self.name_arbiters(kind, &mut cluster)?;
        if kind.profile().serves == Service::Group {
            let wrong = |error| Exit::usage(format!("--sites {sites}: {error}"));
            cluster.groups = Some(cluster.grouping().map_err(wrong)?);
        }
        if kind.profile().serves == Service::Gang && Shares::new(&cluster).is_none() {
            return Err(Exit::usage("gang: sites times pools are at most 65,000"));
        }
        Ok(cluster)
    }

    /// The groups in the file that `--topology` names, if it names one and the protocol has groups.
    pub(crate) fn group_file(&self, kind: Kind) -> Result<Option<(Grouping, Names)>, Exit> {
        let network = matches!(self.topology.as_str(), "full" | "ring" | "tree");
        if kind.profile().serves != Service::Group || network {
            return Ok(None);
        }
        let path = &self.topology;
        let (grouping, names) = groups::read(path)
            .map_err(|problem| Exit::usage(format!("--topology {path}: {problem}")))?;
        let (sites, units) = (grouping.processes(), grouping.resources());
        if self.sites.is_some_and(|n| n != sites) || self.units.iter().any(|&m| m != units) {
            return Err(Exit::usage(format!(
                "{path} has {sites} processes and {units} resources: leave out --sites and --units"
            )));
        }
        Ok(Some((grouping, names)))
    }

    /// What was said about arbiters.
    fn arbitration(&self) -> Arbitration {
        Arbitration {
            construction: self.construction,
            crashes: self.crashes,
            arbiters: self.arbiters.as_ref().map(|list| list.iter().copied().map(SiteId).collect()),
        }
    }

    /// Puts down what was said about arbiters, if anything was and if it can be done.
    fn name_arbiters(&self, kind: Kind, cluster: &mut Cluster) -> Result<(), Exit> {
        let said = self.arbitration();
        let pools = || (0..).map(PoolId).take(self.units.len());
        if let Some(path) = &self.sets {
            let sets = sets::read(path)?;
            cluster.sets = pools().map(|pool| (pool, sets.clone())).collect();
        } else if said == Arbitration::default() {
            return Ok(());
        } else {
            cluster.arbitration = pools().map(|pool| (pool, said.clone())).collect();
        }
        let terms = if is_semaphore(kind) { turns(cluster) } else { cluster.clone() };
        RequestSets::check(&terms).map_err(|(_, error)| match &self.sets {
            Some(path) => Exit::new(INFEASIBLE, format!("--sets {path}: {error}")),
            None => Exit::usage(error.to_string()),
        })
    }

    /// The shape as the user named it, where it is not the usual one.
    pub(crate) fn shape(&self, cluster: &Cluster) -> String {
        if cluster.topology == Topology::Full && self.topology == "full" {
            String::new()
        } else {
            format!(", {}", self.topology)
        }
    }

    /// Units per claim from `A..B` or `K`, checked against the largest pool.
    pub(crate) fn amounts(
        &self,
        kind: Kind,
        text: Option<&str>,
        default: (u32, u32),
    ) -> Result<(u32, u32), Exit> {
        let Some(text) = text else { return Ok(default) };
        if self.kind()?.profile().serves == Service::Group && text != "1" && text != "1..1" {
            return Err(Exit::usage("--k: a process asks for all that it needs, once"));
        }
        let (low, high) = text.split_once("..").unwrap_or((text, text));
        let parse = |part: &str| part.parse::<u32>().ok();
        // What a semaphore has not got, somebody adds.
        let units = self.units.iter().copied().max().unwrap_or(1);
        let most = if is_semaphore(kind) { 1_000_000 } else { units };
        match (parse(low), parse(high)) {
            (Some(low), Some(high)) if 1 <= low && low <= high && high <= most => Ok((low, high)),
            _ => Err(Exit::usage(format!(
                "--k {text}: write K or A..B with 1 <= A <= B <= {most}{}",
                if is_semaphore(kind) { "" } else { ", the units of the pool" }
            ))),
        }
    }
}

/// Whether a protocol runs several pools at once.
fn knows_several_pools(kind: Kind) -> bool {
    let listings = [Kind::PermissionAsPrinted, Kind::PermissionLazyAsPrinted];
    kind.profile().full_service || listings.contains(&kind)
}

/// Whether pools are semaphores.
pub(crate) fn is_semaphore(kind: Kind) -> bool {
    kind.profile().serves == Service::Semaphore
}

/// Why a protocol does not take what only some do.
pub(crate) fn plain_service(kind: Kind) -> Exit {
    let why = if kind.profile().as_printed {
        "is a published listing"
    } else {
        "serves groups of processes that work together"
    };
    let name = kind.name();
    Exit::usage(format!("{name} {why}: one claim at a time, no withdrawal, no partial release"))
}

/// A protocol and pools for people: `permission, 3 sites, 4 units`.
pub(crate) fn title(kind: Kind, cluster: &Cluster) -> String {
    let plural = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
    let units = |units: &Units| match kind.profile().serves {
        Service::Pool | Service::Group | Service::Gang => plural(units.0 as usize, "unit"),
        Service::Semaphore => format!("a semaphore of {units}"),
    };
    let units: Vec<String> = cluster.pools.iter().map(units).collect();
    format!("{}, {}, {}", kind.name(), plural(cluster.sites.into(), "site"), units.join(" + "))
}
