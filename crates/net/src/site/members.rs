//! The sites of the cluster as one of them sees them, with the next step for those that need one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use kofm_core::SiteId;
use tokio::sync::watch;

use super::{Site, View};
use crate::api;
use crate::boottime::{Boottime as _, Moment};
use kofm_site::core::millis;
use kofm_site::keeper::Facts;
use kofm_site::links::LinkInfo;

/// What is known of a site beside its link: whether it is a member, whether it drains, and for this
/// site the verdict on it.
type Mark = (bool, bool, Option<&'static str>);

/// The last mark of each site, and when it was new.
pub(super) type Marks = BTreeMap<SiteId, (Mark, Moment)>;

/// Notes when marks change, as long as the site lives.
pub(super) async fn watch(me: SiteId, mut view: watch::Receiver<View>, marks: Weak<Mutex<Marks>>) {
    let mut last = (None, None);
    loop {
        let seen = {
            let view = view.borrow_and_update();
            // The record is another one whenever members or plan are.
            let now = (view.record.as_ref().map(|it| Arc::as_ptr(it) as usize), view.verdict);
            let same = now == last;
            last = now;
            (!same).then(|| marks_of(me, &view))
        };
        if let Some(seen) = seen {
            let Some(marks) = marks.upgrade() else { return };
            let mut marks = marks.lock().unwrap_or_else(PoisonError::into_inner);
            marks.retain(|site, _| seen.contains_key(site));
            for (site, mark) in seen {
                let old = marks.get(&site).filter(|old| old.0 == mark).copied();
                marks.insert(site, old.unwrap_or((mark, Moment::now())));
            }
        }
        if view.changed().await.is_err() {
            return;
        }
    }
}

fn marks_of(me: SiteId, view: &View) -> BTreeMap<SiteId, Mark> {
    let Some(plan) = view.plan() else { return BTreeMap::new() };
    let mark = |&site: &SiteId| {
        let member = view.members.contains_key(&site);
        let verdict = view.verdict.filter(|_| site == me);
        (site, (member, plan.draining.contains(&site), verdict))
    };
    plan.sites.keys().map(mark).collect()
}

/// How a peer is, in a word, and the next step if it is not well.
fn verdict_on(
    name: &str,
    link: &LinkInfo,
    member: bool,
    draining: bool,
) -> (String, Option<String>) {
    let (health, advice) = match link {
        LinkInfo { broken: Some(_), .. } => {
            let advice = format!(
                "read the log of {name}; it comes back with the next epoch, or needs a restart"
            );
            ("refused", Some(advice))
        }
        LinkInfo { up: false, .. } if member => {
            let advice = format!(
                "start {name} or repair the network to it; if its machine or disk is lost: `kofm \
                 member replace {name}`"
            );
            ("away", Some(advice))
        }
        LinkInfo { up: false, .. } => {
            let advice = format!(
                "start {name}; if its machine or disk is lost: `kofm member replace {name}`, or \
                 `kofm member rm {name}` for one site less"
            );
            ("away", Some(advice))
        }
        LinkInfo { trouble: Some(_), .. } => {
            let advice = format!("stop one of the two processes that say they are {name}");
            ("twin", Some(advice))
        }
        _ if !member => {
            let advice = format!(
                "wait until {name} has joined; if it lasts, run `kofm doctor` at {name}, and read \
                 its log"
            );
            ("changing", Some(advice))
        }
        _ if draining => {
            let advice = format!(
                "stop {name} when it holds no lease any more; `kofm undrain {name}` takes it back"
            );
            ("draining", Some(advice))
        }
        _ => ("ok", None),
    };
    (health.to_owned(), advice)
}

impl Site {
    /// The members as this site sees them.
    pub fn members(&self) -> Vec<api::Member> {
        let config = &self.0.config;
        let now = Moment::now();
        let view = self.view();
        let epoch = view.epoch;
        let left = |moment: &Moment| millis(moment.since(now));
        let member = |site| view.members.contains_key(&site);
        let quarantine = |site| view.quarantined.get(&site).map(left);
        let plan = view.plan();
        let voter = |site| plan.is_some_and(|it| it.voters.contains_key(&site));
        let draining = |site| plan.is_some_and(|it| it.draining.contains(&site));
        let role = |site| match (member(site), voter(site)) {
            (_, true) => "voter",
            (true, false) => "member",
            (false, false) => "outside",
        };
        let own = Facts::new(&config.zone);
        let facts = |site| {
            let told = plan.and_then(|it| it.facts.get(&site)).cloned();
            // Sites of one process run one program.
            told.or_else(|| self.0.together.then(|| Facts::new("")))
        };
        let marks = self.0.marks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let marked = |site| marks.get(&site).map(|it| it.1);
        let since = |moment: Option<Moment>| moment.map(|it| millis(now.since(it)));
        let me = config.me();
        let health = self.health();
        let rival = self.0.mesh.rival();
        let twin = rival.as_ref().filter(|_| health.health == "ok");
        let advice = health.problems.into_iter().next().map(|it| it.action);
        let stop = || format!("stop one of the two processes that say they are {}", config.site);
        let mut list = vec![api::Member {
            site: config.site.clone(),
            number: me.0,
            address: config.members[&config.site].clone(),
            state: "self".into(),
            zone: Some(own.zone).filter(|it| !it.is_empty()),
            role: role(me).into(),
            version: Some(own.version),
            health: if twin.is_some() { "twin".to_owned() } else { health.health },
            since_ms: since(marked(me)),
            advice: advice.or_else(|| twin.map(|_| stop())),
            incarnation: Some(view.incarnation.max(self.0.incarnation)),
            epoch,
            member: member(me),
            voter: voter(me),
            draining: draining(me),
            lease_ms: (!view.sole).then(|| view.leased.as_ref().map_or(0, left)),
            quarantine_ms: quarantine(me),
            trouble: view.trouble.clone().or(rival),
            unacknowledged: 0,
        }];
        // A site that was taken out has no name any more.
        let links = self.0.mesh.info().into_iter();
        let links = links.filter(|link| !self.name_of(link.peer).is_empty());
        list.extend(links.map(|link| {
            let name = self.name_of(link.peer);
            let (health, advice) = verdict_on(&name, &link, member(link.peer), draining(link.peer));
            let facts = facts(link.peer);
            api::Member {
                site: name,
                number: link.peer.0,
                state: match (&link.broken, link.up) {
                    (Some(_), _) => "refused",
                    (None, true) => "up",
                    (None, false) => "away",
                }
                .into(),
                zone: facts.as_ref().map(|it| it.zone.clone()).filter(|it| !it.is_empty()),
                role: role(link.peer).into(),
                version: facts.map(|it| it.version),
                health,
                since_ms: since(marked(link.peer).max(Some(link.since))),
                advice,
                address: link.address,
                incarnation: link.incarnation,
                epoch,
                member: member(link.peer),
                voter: voter(link.peer),
                draining: draining(link.peer),
                lease_ms: None,
                quarantine_ms: quarantine(link.peer),
                trouble: link.broken.or(link.trouble),
                unacknowledged: link.waiting as u64,
            }
        }));
        list.sort_by_key(|member| member.number);
        list
    }
}
