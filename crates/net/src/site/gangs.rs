//! Gangs through the site's handle.

use std::collections::BTreeMap;

use tokio::time::timeout;

use super::{PEER_PATIENCE, Site, nonsense};
use crate::api::{
    self, Answer, Call, Code, Gang, JoinCall, JoinGang, Joined, Members, PutGang, StartGang,
    Started, Submit,
};
use crate::config::{MAX_GANG, ROTA, check_name};
use kofm_site::core::total;

impl Site {
    /// All gangs, and the sites that did not answer.
    pub async fn gangs(&self) -> Result<(Vec<Gang>, Vec<String>), api::Error> {
        let entries = self.gang_list().await?;
        let (queue, missing) = self.waiting().await?;
        let (leases, _) = self.leases().await?;
        let show = |(name, members): (String, Members)| {
            let reason = Some(format!("gang {name}"));
            let running = leases.iter().any(|lease| lease.reason == reason);
            let waiting = queue.iter().any(|request| request.reason == reason);
            let state = match (running, waiting) {
                (true, _) => "running",
                (false, true) => "queued",
                (false, false) => "idle",
            };
            Gang { name, members, state: state.to_owned() }
        };
        let mut list: Vec<Gang> = entries.into_iter().map(show).collect();
        list.extend(self.rota_gangs().await?);
        Ok((list, missing))
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
        if members.is_empty() || members.len() > MAX_GANG {
            return Err(malformed(format!("a gang has 1 to {MAX_GANG} members")));
        }
        self.not_in_rota(name)?;
        self.check_members(&members).await?;
        self.set_gang(name, members).await
    }

    /// Removes a gang. A run of it goes on.
    pub async fn remove_gang(&self, name: &str) -> Result<(), api::Error> {
        self.not_in_rota(name)?;
        self.gang(name).await?;
        self.set_gang(name, Members::new()).await
    }

    /// Asks for everything that a gang needs; whoever asks starts all members, or none.
    pub async fn start_gang(&self, name: &str, spec: StartGang) -> Result<Started, api::Error> {
        if self.in_rota(name) {
            let text = format!(
                "gang `{name}` is fixed: each member joins at its own site; run `kofm gang run \
                 {name} --as SITE -- …` there"
            );
            return Err(api::Error::new(Code::Unsupported, text));
        }
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
            principal: spec.principal,
        };
        let request = self.submit_as(submit, false).await?;
        Ok(self.started(name, &gang.members, request))
    }

    fn started(&self, name: &str, members: &Members, request: api::Request) -> Started {
        let units = request.lease.as_ref().map(|lease| &lease.units);
        let shares = units.map(|units| api::shares(members, units)).unwrap_or_default();
        let together = self.0.together;
        Started { gang: name.to_owned(), members: members.clone(), shares, together, request }
    }

    /// A member says that it is there, that it still is, or that it is done: those of a gang meet
    /// at the site of the first.
    pub async fn join_gang(&self, name: &str, spec: JoinGang) -> Result<Joined, api::Error> {
        let members = match self.rota_members(name) {
            Some(members) => members,
            None => self.gang_list().await?.remove(name).ok_or_else(|| unknown(name))?,
        };
        if !members.contains_key(&spec.member) {
            let text = format!("`{}` is not a member of gang `{name}`", spec.member);
            return Err(api::Error::new(Code::Malformed, text));
        }
        if spec.token.is_empty() || spec.token.len() > 200 {
            let text = "`token` is a name of your own, up to 200 bytes";
            return Err(api::Error::new(Code::Malformed, text));
        }
        let place = if self.in_rota(name) { Some(&spec.member) } else { members.keys().next() };
        let first = place.and_then(|first| self.0.config.number_of(first));
        let (member, token, run) = (spec.member, spec.token, spec.run);
        let ttl = spec.ttl.unwrap_or(kofm_site::core::DEFAULT_TTL);
        let (name, owner, leave) = (name.to_owned(), spec.owner, spec.leave);
        let (principal, code, confirm) = (spec.principal, spec.code, spec.confirm);
        let state = if leave { "done" } else { "gathering" }.to_owned();
        let echo = Joined::new(&name, &member, state, ttl);
        // Often enough that the member is heard of.
        let patience = spec.wait.unwrap_or_default().min(ttl / 3);
        let wait = !patience.is_zero();
        let call = JoinCall {
            name,
            members,
            member,
            token,
            run,
            ttl,
            owner,
            principal,
            leave,
            code,
            confirm,
            wait,
        };
        let ask = async |call: JoinCall, patience| match first {
            Some(first) if first != self.0.config.me() => {
                self.ask(first, Call::Join(call), patience).await
            }
            Some(_) | None => self.call(Call::Join(call)).await,
        };
        let now = JoinCall { wait: false, ..call.clone() };
        let waited = timeout(patience, ask(call, patience)).await.ok();
        // Without news, where it stands.
        let answer = match waited.filter(|_| wait) {
            Some(Ok(answer)) => answer,
            Some(Err(error)) if error.error != Code::Unreachable => return Err(error),
            Some(Err(_)) | None => ask(now, PEER_PATIENCE).await?,
        };
        if let Answer::Joined(joined) = answer {
            return Ok(*joined);
        }
        if matches!(answer, Answer::Done) { Ok(echo) } else { Err(nonsense()) }
    }

    fn in_rota(&self, name: &str) -> bool {
        let rota = self.0.config.rota.as_ref();
        rota.is_some_and(|rota| name == ROTA || rota.gangs.contains_key(name))
    }

    fn not_in_rota(&self, name: &str) -> Result<(), api::Error> {
        if !self.in_rota(name) {
            return Ok(());
        }
        let text =
            format!("gang `{name}` is in [fixed_gangs], which only the configuration changes");
        Err(api::Error::new(Code::Unsupported, text))
    }

    /// The members of a gang in the rota, or of all of them under its own name.
    fn rota_members(&self, name: &str) -> Option<Members> {
        let rota = self.0.config.rota.as_ref().filter(|_| self.in_rota(name))?;
        let gangs = rota.gangs.iter().filter(|it| name == ROTA || it.0 == name);
        let need = |site: &String| {
            let list = rota.needs.get(site).into_iter().flatten();
            (site.clone(), list.map(|resource| (resource.clone(), 1)).collect())
        };
        Some(gangs.flat_map(|it| it.1).map(need).collect())
    }

    async fn rota_gangs(&self) -> Result<Vec<Gang>, api::Error> {
        let Some(rota) = &self.0.config.rota else { return Ok(Vec::new()) };
        let (seen, _) =
            self.gather(Call::Rota, |answer| {
                if let Answer::Rota(list) = answer { list } else { Vec::new() }
            })
            .await?;
        let gang = |name: &String| {
            let mut words = seen.iter().filter(|it| it.0 == *name).map(|it| it.1);
            let state = match words.clone().next() {
                None => "idle",
                Some(_) if words.any(|works| works) => "running",
                Some(_) => "queued",
            };
            let members = self.rota_members(name).unwrap_or_default();
            Gang { name: name.clone(), members, state: state.to_owned() }
        };
        Ok(rota.gangs.keys().map(gang).collect())
    }

    fn is_here(&self, member: &str) -> bool {
        let number = self.0.config.number_of(member);
        number.is_some_and(|it| it == self.0.config.me() || self.0.mesh.is_up(it))
    }

    async fn gang_list(&self) -> Result<BTreeMap<String, Members>, api::Error> {
        if let Answer::Gangs(list) = self.call(Call::Gangs).await? {
            Ok(list)
        } else {
            Err(nonsense())
        }
    }

    async fn set_gang(&self, name: &str, members: Members) -> Result<(), api::Error> {
        let call = Call::SetGang { name: name.to_owned(), members };
        self.next_epoch(call).await
    }

    /// That sites and pools exist, and that there is enough of everything.
    async fn check_members(&self, members: &Members) -> Result<(), api::Error> {
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
                return Err(api::Error::unknown_pool(name));
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
    let text = format!("there is no gang `{name}`; `kofm gang ls` lists them");
    api::Error::new(Code::UnknownGang, text)
}
