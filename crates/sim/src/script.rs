//! Stories in a tiny language, with what the sites said below each line.
//!
//! ```text
//! cluster permission sites=2 units=3
//! ----
//! ok
//!
//! claim s0 a p0:1
//! ----
//! s0 claim 1.s0 p0:1 | send s1 Request { claim: 1.s0, demand: p0:1, gathered: [] }
//! ```
//!
//! Commands: `cluster PROTOCOL sites=N units=M[,M] [topology=ring|tree]`, `claim SITE NAME DEMAND`,
//! `release NAME [DEMAND]`, `withdraw NAME`, `add SITE DEMAND`, `deliver FROM TO`, `settle`
//! (deliver
//! until nothing is left) and `explain NAME`. Lines that begin with `#` are comments.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use kofm_core::topology::Topology;
use kofm_core::{
    Cluster, Demand, Effects, Input, InputOf, Kind, PoolId, Protocol, SiteId, Stamp, Units, Visitor,
};

use crate::visit_on;
use crate::world::{Action, Exact, Script, World, clock};

/// Runs a story and gives it back with what the sites say now.
pub fn retell(story: &str) -> Result<String, String> {
    let first = story.lines().find(|line| line.starts_with("cluster "));
    let first = first.ok_or("a story begins with `cluster PROTOCOL sites=N units=M`")?;
    let (kind, cluster) = cluster(first)?;
    visit_on(kind, &cluster.topology, Teller { story, cluster: &cluster })
}

fn cluster(line: &str) -> Result<(Kind, Cluster), String> {
    let mut words = line.split_whitespace().skip(1);
    let name = words.next().ok_or("no protocol")?;
    let kind = Kind::named(name).ok_or_else(|| format!("there is no protocol {name}"))?;
    let mut cluster = Cluster::new(1, 1);
    for word in words {
        match word.split_once('=') {
            Some(("sites", n)) => cluster.sites = number(n)?,
            Some(("units", list)) => {
                let units: Result<_, _> = list.split(',').map(|m| number(m).map(Units)).collect();
                cluster.pools = units?;
            }
            Some(("topology", "ring")) => cluster.topology = Topology::Ring,
            Some(("topology", "tree")) => cluster.topology = Topology::Tree,
            _ => return Err(format!("`{word}` is not part of a cluster")),
        }
    }
    Ok((kind, cluster))
}

struct Teller<'a> {
    story: &'a str,
    cluster: &'a Cluster,
}

impl Visitor for Teller<'_> {
    type Output = Result<String, String>;

    fn visit<P: Protocol>(self) -> Self::Output {
        let script = Script::new(self.cluster.sites, 0, Vec::new());
        let mut stage = Stage::<P> {
            world: World::new(self.cluster, &script),
            exact: Exact::new(self.cluster).0,
            names: BTreeMap::new(),
            script,
        };
        let mut text = String::new();
        let mut answer = false;
        for line in self.story.lines() {
            if line.is_empty() || line.starts_with('#') {
                // What was said before ends at an empty line and is told anew.
                answer = false;
                text.push_str(line);
                text.push('\n');
            } else if line == "----" {
                answer = true;
            } else if !answer {
                let said = stage.act(line).map_err(|problem| format!("{line}: {problem}"))?;
                let _ = write!(text, "{line}\n----\n{said}");
            }
        }
        Ok(text)
    }
}

struct Stage<P: Protocol> {
    world: World<P>,
    exact: Exact<P>,
    names: BTreeMap<String, (SiteId, Stamp)>,
    script: Script,
}

impl<P: Protocol> Stage<P> {
    fn act(&mut self, line: &str) -> Result<String, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["cluster", ..] => Ok("ok\n".to_owned()),
            ["claim", site, name, wants] => {
                let site = site_id(site)?;
                let local = self.world.locals.get(site.index()).ok_or("no such site")?;
                let claim = local.protocol.next_stamp(clock(local.time));
                self.names.insert(name.to_owned(), (site, claim));
                Ok(self.take(site, Input::Claim { claim, demand: demand(wants)? }))
            }
            ["release", name] => {
                let (site, claim) = self.named(name)?;
                Ok(self.take(site, Input::Release { claim, part: None }))
            }
            ["release", name, part] => {
                let (site, claim) = self.named(name)?;
                Ok(self.take(site, Input::Release { claim, part: Some(demand(part)?) }))
            }
            ["withdraw", name] => {
                let (site, claim) = self.named(name)?;
                Ok(self.take(site, Input::Withdraw { claim }))
            }
            ["add", site, amount] => {
                let (site, demand) = (site_id(site)?, demand(amount)?);
                let local = self.world.locals.get(site.index()).ok_or("no such site")?;
                let room =
                    |(pool, units): (_, Units)| u64::from(units.0) <= local.protocol.room(pool);
                if !demand.parts().all(room) {
                    return Err("nothing can be added there".to_owned());
                }
                Ok(self.take(site, Input::Add { demand }))
            }
            ["deliver", from, to] => self.deliver(site_id(from)?, site_id(to)?),
            ["settle"] => self.settle(),
            ["explain", name] => {
                let (site, claim) = self.named(name)?;
                let blockers = self.world.locals[site.index()].protocol.explain(claim);
                let mut text = String::new();
                for blocker in &blockers {
                    let _ = writeln!(text, "{blocker:?}");
                }
                Ok(if blockers.is_empty() { "nothing\n".to_owned() } else { text })
            }
            _ => Err("not a command".to_owned()),
        }
    }

    fn named(&self, name: &str) -> Result<(SiteId, Stamp), String> {
        self.names.get(name).copied().ok_or_else(|| format!("nobody claimed {name}"))
    }

    fn take(&mut self, site: SiteId, input: InputOf<P>) -> String {
        let text = self.exact.follow(0, site, 0, input.clone()).text();
        let result = self.world.apply(site, input, &mut Effects::default());
        let text = text.trim_start().trim_start_matches("0. ");
        match result {
            Ok(()) => format!("{text}\n"),
            Err(violation) => format!("{text}\n{}: {}\n", violation.property, violation.detail),
        }
    }

    fn deliver(&mut self, from: SiteId, to: SiteId) -> Result<String, String> {
        let enabled = self.world.enabled(&self.script);
        let oldest = Action::Deliver { from, to, nth: 0 };
        if !enabled.contains(&oldest) {
            return Err("nothing is on its way there".to_owned());
        }
        let (site, input) = self.world.input(oldest, &self.script);
        Ok(self.take(site, input))
    }

    fn settle(&mut self) -> Result<String, String> {
        let mut text = String::new();
        for _ in 0..10_000 {
            let next =
                self.world.enabled(&self.script).into_iter().find_map(|action| match action {
                    Action::Deliver { from, to, .. } => Some((from, to)),
                    Action::Local(..) => None,
                });
            let Some((from, to)) = next else {
                return Ok(if text.is_empty() { "nothing\n".to_owned() } else { text });
            };
            text += &self.deliver(from, to)?;
        }
        Err("no end after 10,000 messages".to_owned())
    }
}

fn site_id(word: &str) -> Result<SiteId, String> {
    number(word.strip_prefix('s').unwrap_or(word)).map(SiteId)
}

fn demand(text: &str) -> Result<Demand, String> {
    let part = |part: &str| {
        let (pool, units) = part.split_once(':').ok_or("a demand is written p0:2,p1:1")?;
        let pool = pool.strip_prefix('p').unwrap_or(pool);
        Ok((PoolId(number(pool)?), Units(number(units)?)))
    };
    text.split(',').map(part).collect::<Result<Vec<_>, String>>().map(Demand::from_iter)
}

fn number<N: std::str::FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| format!("`{text}` is not a number that fits"))
}
