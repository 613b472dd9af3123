//! Which sites are in the cluster, and which of them vote.

use std::collections::BTreeMap;

use kofm_core::SiteId;
use kofm_core::voting::{self, Candidate, DiskId, Electorate};

use super::moves::Departure;
use super::{Core, Responder};
use crate::api::{self, Code, MemberChange};
use crate::boottime::Moment;
use crate::config::{MAX_SITES, check_name};
use crate::keeper::{Facts, Note};
use crate::plan::Plan;

/// A voter that has been silent for this many site leases is replaced.
const VOTER_PATIENCE: u32 = 12;

impl Core {
    /// Takes in sites that are not in the plan and say that they want to be, and sees to it that
    /// enough sites vote.
    pub(super) fn take_in(&mut self) {
        let change = &self.change;
        let first = change.epochs.record().members.keys().next() == Some(&self.me);
        let idle = change.planned.is_none() && change.epochs.may_grant();
        if !first || !idle || !change.joinable && change.wanted.is_none() {
            return;
        }
        let mut plan = self.plan.clone();
        if change.joinable {
            self.place_newcomers(&mut plan);
        }
        self.note_facts(&mut plan);
        plan.voters = self.choose_voters(&plan, &change.record().members);
        if plan != self.plan {
            self.change_plan(plan, None);
        }
    }

    fn place_newcomers(&self, plan: &mut Plan) {
        for (name, (pulse, since)) in &self.change.pulses {
            let note = Note::read(&pulse.note);
            let here = self.now.since(*since) < self.change.lease && !note.address.is_empty();
            if !here || plan.removed.contains(name) {
                continue;
            }
            if let Some(site) = plan.sites.values_mut().find(|site| site.0 == *name) {
                // It has moved.
                site.1 = note.address;
            } else if check_name(name).is_ok()
                && plan.sites.len() < MAX_SITES
                && (plan.keys.is_empty() || plan.keys.contains_key(name))
            {
                plan.give_number(name, note.address);
            }
        }
    }

    /// Writes down what sites say of themselves.
    pub(super) fn note_facts(&self, plan: &mut Plan) {
        let change = &self.change;
        let own = Note::read(&change.own_note());
        for (&site, (name, _)) in &plan.sites {
            let heard = change.pulses.get(name);
            let heard = heard.filter(|it| self.now.since(it.1) < change.lease);
            let facts = match heard {
                _ if site == self.me => own.facts.clone(),
                Some((pulse, _)) => Note::read(&pulse.note).facts,
                None => continue,
            };
            let old = plan.zone_of(site).to_owned();
            // A site does not leave a pool, or come into one, while it has some of its units.
            let stays = plan.facts.contains_key(&site)
                && plan.pools.values().any(|pool| !pool.scope.zones.is_empty());
            let facts = Facts { zone: if stays { old } else { facts.zone }, ..facts };
            if facts.are_names() {
                plan.facts.insert(site, facts);
            }
        }
    }

    /// Who should vote on the next epoch, among these members.
    pub(super) fn choose_voters(&self, plan: &Plan, members: &BTreeMap<SiteId, u64>) -> Electorate {
        match self.change.wanted {
            Some(wanted) => voting::choose(&plan.voters, &self.candidates(plan, members), wanted),
            None => plan.voters.clone(),
        }
    }

    /// The sites whose disks may vote on the next epoch, as far as this site can tell.
    fn candidates(
        &self,
        plan: &Plan,
        members: &BTreeMap<SiteId, u64>,
    ) -> BTreeMap<SiteId, Candidate> {
        let change = &self.change;
        let candidate = |(&site, (name, _)): (&SiteId, &(String, String))| {
            let heard = change.pulses.get(name);
            let fresh = |it: &Moment| self.now.since(*it) < change.lease;
            let last = heard.map_or(change.started, |it| it.1.max(change.started));
            let silent = self.now.since(last);
            let pulse = heard.filter(|it| fresh(&it.1)).map(|it| &it.0);
            let pulse = pulse.filter(|it| members.get(&site) == Some(&it.incarnation));
            let disk = pulse.map(|it| Note::read(&it.note).disk);
            let disk = disk.filter(|it| *it != DiskId::ANY);
            let lost = silent > change.lease * VOTER_PATIENCE;
            let leaves = plan.draining.contains(&site);
            (site, Candidate { disk, lost, leaves, zone: plan.zone_of(site).to_owned() })
        };
        plan.sites.iter().map(candidate).collect()
    }

    /// Changes the part that a site has in the cluster.
    pub(super) fn plan_member(&mut self, name: &str, change: MemberChange, reply: Responder) {
        match self.changed_member(name, change) {
            Ok(plan) => self.change_plan(plan, Some(reply)),
            Err(error) => self.respond(reply, Err(error)),
        }
    }

    fn changed_member(&self, name: &str, change: MemberChange) -> Result<Plan, api::Error> {
        let refuse = |code, text: String| Err(api::Error::new(code, text));
        let members = &self.change.record().members;
        let mut plan = self.plan.clone();
        if let MemberChange::Admit(key) = change {
            return plan.admit(name, key).map(|()| plan);
        }
        // One that has not come yet.
        let awaited = plan.keys.contains_key(name) && plan.site_named(name).is_none();
        if awaited && matches!(change, MemberChange::Remove | MemberChange::Replace) {
            plan.keys.remove(name);
            return Ok(plan);
        }
        let Some((site, address)) = plan.site_named(name) else {
            let text = format!("site {name} is not in this cluster; `kofm member ls` lists them");
            return refuse(Code::NotFound, text);
        };
        let runs = self.candidates(&plan, members).get(&site).is_some_and(|it| it.disk.is_some());
        match change {
            MemberChange::Admit(_) => {}
            MemberChange::Drain => {
                let left = members.keys().filter(|it| !plan.draining.contains(it));
                if left.filter(|it| **it != site).count() == 0 {
                    let text = format!(
                        "site {name} is the last one that takes requests; it must not be drained: \
                         undrain another one first"
                    );
                    return refuse(Code::InUse, text);
                }
                plan.draining.insert(site);
            }
            MemberChange::Undrain => {
                if !plan.draining.remove(&site) {
                    return refuse(Code::InUse, format!("site {name} is not draining"));
                }
            }
            MemberChange::Remove | MemberChange::Replace if plan.sites.len() == 1 => {
                let text = format!("site {name} is the last voter; it must not be removed");
                return refuse(Code::InUse, text);
            }
            MemberChange::Remove if !self.change.joinable => {
                let text = "the members of this cluster are listed in its configuration; sites \
                            come and go in one that `kofm init` made, or with etcd";
                return refuse(Code::Unsupported, text.to_owned());
            }
            MemberChange::Remove => {
                plan.take_out(site);
                plan.removed.insert(name.to_owned());
            }
            MemberChange::Replace if runs => {
                let text = format!(
                    "site {name} answers; only a site that is gone can be replaced: stop it \
                     first, or remove it with `kofm member rm {name}`"
                );
                return refuse(Code::InUse, text);
            }
            MemberChange::Replace => {
                plan.take_out(site);
                if !self.change.joinable {
                    // Its name and address stay listed: it comes back with an empty disk.
                    plan.give_number(name, address);
                }
            }
        }
        let deserted = self.plan.pools.iter().find(|(_, pool)| {
            plan.site_named(name).is_none()
                && change == MemberChange::Remove
                && self.plan.sites_of(&pool.scope).contains(&site)
                && plan.sites_of(&pool.scope).is_empty()
        });
        if let Some((pool, _)) = deserted {
            let text = format!(
                "site {name} must stay: it is the last one that shares pool `{pool}`; remove the \
                 pool, or give it other sites first"
            );
            return refuse(Code::InUse, text);
        }
        plan.voters = self.choose_voters(&plan, members);
        let candidates = self.candidates(&plan, members);
        let answer = |site: &&SiteId| candidates.get(site).is_some_and(|it| it.disk.is_some());
        let answering = plan.voters.keys().filter(answer).count();
        if self.change.wanted.is_some() && answering <= plan.voters.len() / 2 {
            let text = format!(
                "site {name} must stay: without it {answering} of {} voters would answer, and a \
                 majority must; start the others first",
                plan.voters.len()
            );
            return refuse(Code::InUse, text);
        }
        Ok(plan)
    }

    /// Does what the cluster says of this site: while it drains, it takes no new requests, and
    /// other sites go on with what it has.
    pub(super) fn follow_drain(&mut self) {
        let drained = self.plan.draining.contains(&self.me);
        if drained == self.drained {
            return;
        }
        self.drained = drained;
        if drained {
            self.end_all_takers();
            self.departure = Some(Departure::Drain);
        } else if self.departure == Some(Departure::Drain) {
            self.departure = None;
        }
    }
}
