//! Gangs through the site's handle.

use std::collections::BTreeMap;

use super::core::total;
use super::{PEER_PATIENCE, Site, nonsense};
use crate::api::{
    self, Answer, Call, Code, Gang, GangEntry, JoinCall, JoinGang, Joined, PutGang, StartGang,
    Started, Submit, Want,
};
use crate::config::{SEAT, check_name};

/// Members of a gang at most.
const MAX_MEMBERS: usize = 64;

impl Site {
    /// All gangs, and the sites that did not answer.
    pub async fn gangs(&self) -> Result<(Vec<Gang>, Vec<String>), api::Error> {
        let (entries, missing) = self.gang_entries().await?;
        let (queue, _) = self.queue().await?;
        let (leases, _) = self.leases().await?;
        let live = entries.into_values().filter(|entry| !entry.members.is_empty());
        let show = |entry: GangEntry| {
            let reason = Some(format!("gang {}", entry.name));
            let running = leases.iter().any(|lease| lease.reason == reason);
            let waiting = queue.iter().any(|request| request.reason == reason);
            let state = match (running, waiting) {
                (true, _) => "running",
                (false, true) => "queued",
                (false, false) => "idle",
            };
            Gang { name: entry.name, members: entry.members, state: state.to_owned() }
        };
        Ok((live.map(show).collect(), missing))
    }

    /// One gang.
    pub async fn gang(&self, name: &str) -> Result<Gang, api::Error> {
        let (list, _) = self.gangs().await?;
        list.into_iter().find(|gang| gang.name == name).ok_or_else(|| unknown(name))
    }

    /// Makes a gang, or gives it other members.
    pub async fn put_gang(&self, name: &str, spec: PutGang) -> Result<(), api::Error> {
        let malformed = |text: String| api::Error::new(Code::Malformed, text);
        check_name(name).map_err(malformed)?;
        let members = spec.members.0;
        if members.is_empty() || members.len() > MAX_MEMBERS {
            return Err(malformed(format!("a gang has 1 to {MAX_MEMBERS} members")));
        }
        self.check_members(&members).await?;
        self.tell_gang(name, members).await
    }

    /// Removes a gang. A run of it goes on.
    pub async fn remove_gang(&self, name: &str) -> Result<(), api::Error> {
        self.gang(name).await?;
        self.tell_gang(name, BTreeMap::new()).await
    }

    /// Asks for everything that a gang needs; whoever asks starts all members, or none.
    pub async fn start_gang(&self, name: &str, spec: StartGang) -> Result<Started, api::Error> {
        let gang = self.gang(name).await?;
        self.check_members(&gang.members).await?;
        let away = gang.members.keys().find(|member| !self.is_here(member));
        if let Some(member) = away {
            let text = format!("site `{member}` does not answer; gang `{name}` cannot start now");
            return Err(api::Error::new(Code::Unreachable, text));
        }
        let submit = Submit {
            want: total(&gang.members),
            ttl: spec.ttl,
            wait: spec.wait,
            id: spec.id,
            owner: spec.owner,
            reason: Some(format!("gang {name}")),
        };
        let request = self.submit(submit).await?;
        Ok(self.started(name, &gang.members, request))
    }

    fn started(
        &self,
        name: &str,
        members: &BTreeMap<String, Want>,
        request: api::Request,
    ) -> Started {
        let units = request.lease.as_ref().map(|lease| &lease.units);
        let shares = units.map(|units| api::shares(members, units)).unwrap_or_default();
        let together = self.together().is_ok();
        Started { gang: name.to_owned(), members: members.clone(), shares, together, request }
    }

    /// A member says that it is there, that it still is, or that it is done: those of a gang meet
    /// at the site of the first.
    pub async fn join_gang(&self, name: &str, spec: JoinGang) -> Result<Joined, api::Error> {
        let (mut entries, _) = self.gang_entries().await?;
        let entry = entries.remove(name).filter(|entry| !entry.members.is_empty());
        let members = entry.ok_or_else(|| unknown(name))?.members;
        if !members.contains_key(&spec.member) {
            let text = format!("`{}` is not a member of gang `{name}`", spec.member);
            return Err(api::Error::new(Code::Malformed, text));
        }
        if spec.token.is_empty() || spec.token.len() > 200 {
            let text = "`token` is a name of your own, up to 200 bytes";
            return Err(api::Error::new(Code::Malformed, text));
        }
        let first = members.keys().next().and_then(|first| self.0.config.number_of(first));
        let (member, token, run) = (spec.member, spec.token, spec.run);
        let ttl = spec.ttl.unwrap_or(super::core::DEFAULT_TTL);
        let (name, owner, leave) = (name.to_owned(), spec.owner, spec.leave);
        let state = if leave { "done" } else { "gathering" }.to_owned();
        let echo = Joined::new(&name, &member, state, ttl);
        let call = Call::Join(JoinCall { name, members, member, token, run, ttl, owner, leave });
        let answer = match first.filter(|&first| first != self.0.config.me()) {
            Some(first) => self.ask(first, call, PEER_PATIENCE).await?,
            None => self.call(call).await?,
        };
        if let Answer::Joined(joined) = answer {
            return Ok(*joined);
        }
        if matches!(answer, Answer::Done) { Ok(echo) } else { Err(nonsense()) }
    }

    fn is_here(&self, member: &str) -> bool {
        let number = self.0.config.number_of(member);
        number.is_some_and(|it| it == self.0.config.me() || self.0.mesh.is_up(it))
    }

    /// What is known of gangs, by name; the newest counts.
    async fn gang_entries(&self) -> Result<(BTreeMap<String, GangEntry>, Vec<String>), api::Error> {
        let (list, missing) =
            self.gather(Call::Gangs, |answer| {
                if let Answer::Gangs(list) = answer { list } else { Vec::new() }
            })
            .await?;
        let mut newest: BTreeMap<String, GangEntry> = BTreeMap::new();
        for entry in list {
            let known = newest.get(&entry.name);
            if known.is_none_or(|known| (known.version, known.by) < (entry.version, entry.by)) {
                newest.insert(entry.name.clone(), entry);
            }
        }
        Ok((newest, missing))
    }

    /// Tells all sites that answer; none of the others can start it before they have asked.
    async fn tell_gang(
        &self,
        name: &str,
        members: BTreeMap<String, Want>,
    ) -> Result<(), api::Error> {
        let (entries, _) = self.gang_entries().await?;
        let version = entries.get(name).map_or(0, |entry| entry.version) + 1;
        let entry = GangEntry { name: name.to_owned(), members, version, by: self.0.config.me() };
        self.call(Call::PutGang(entry.clone())).await?;
        self.ask_all(&Call::PutGang(entry)).await;
        Ok(())
    }

    /// That sites and pools exist, and that there is enough of everything.
    async fn check_members(&self, members: &BTreeMap<String, Want>) -> Result<(), api::Error> {
        let (pools, _) = self.pools().await?;
        for (member, want) in members {
            if self.0.config.number_of(member).is_none() {
                let names: Vec<&str> = self.0.config.members.keys().map(String::as_str).collect();
                let text = format!("there is no site `{member}`; there are {}", names.join(", "));
                return Err(api::Error::new(Code::Malformed, text));
            }
            if let Some(pool) = want.iter().find(|it| *it.1 == 0).map(|it| it.0) {
                let text = format!("member `{member}` asks for 0 units of `{pool}`");
                return Err(api::Error::new(Code::Malformed, text));
            }
        }
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        for (pool, units) in members.values().flatten() {
            *sums.entry(pool).or_default() += u64::from(*units);
        }
        for (name, sum) in sums {
            let Some(pool) = pools.iter().find(|pool| pool.name == name) else {
                let text = format!("there is no pool `{name}`; GET /v1/pools lists them");
                return Err(api::Error::new(Code::UnknownPool, text));
            };
            if sum > u64::from(pool.units) {
                let text = format!(
                    "the members ask for {sum} units of pool `{name}` together, which has {}; they \
                     would never start",
                    pool.units
                );
                return Err(api::Error::new(Code::Infeasible, text));
            }
        }
        Ok(())
    }
}

fn unknown(name: &str) -> api::Error {
    let text = format!("there is no gang `{name}`; GET /v1/gangs lists them");
    api::Error::new(Code::UnknownGang, text)
}

/// Whether a pool is the seat of a site, which only gangs ask for.
pub(super) fn is_seat(pool: &str) -> bool {
    pool.starts_with(SEAT)
}
