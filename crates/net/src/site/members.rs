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
use kofm_site::plan::Plan;

/// The state of a site beside its link: whether it is a member, whether it drains, and for this
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
                marks.insert(site, old.unwrap_or_else(|| (mark, Moment::now())));
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

/// The data from which the rows of all sites are made.
struct Seen {
    view: View,
    marks: Marks,
    now: Moment,
}

impl Seen {
    fn plan<T>(&self, of: impl FnOnce(&Plan) -> T) -> Option<T> {
        self.view.plan().map(of)
    }

    fn is_member(&self, site: SiteId) -> bool {
        self.view.members.contains_key(&site)
    }

    fn is_voter(&self, site: SiteId) -> bool {
        self.plan(|it| it.voters.contains_key(&site)).unwrap_or(false)
    }

    fn drains(&self, site: SiteId) -> bool {
        self.plan(|it| it.draining.contains(&site)).unwrap_or(false)
    }

    fn role(&self, site: SiteId) -> String {
        let role = match (self.is_member(site), self.is_voter(site)) {
            (_, true) => "voter",
            (true, false) => "member",
            (false, false) => "outside",
        };
        role.to_owned()
    }

    fn facts(&self, site: SiteId) -> Option<Facts> {
        self.plan(|it| it.facts.get(&site).cloned()).flatten()
    }

    fn marked(&self, site: SiteId) -> Option<Moment> {
        self.marks.get(&site).map(|it| it.1)
    }

    fn since(&self, moment: Option<Moment>) -> Option<u64> {
        moment.map(|it| millis(self.now.since(it)))
    }

    fn left(&self, moment: Moment) -> u64 {
        millis(moment.since(self.now))
    }

    fn quarantine(&self, site: SiteId) -> Option<u64> {
        self.view.quarantined.get(&site).map(|it| self.left(*it))
    }
}

impl Site {
    /// The members as this site sees them.
    pub fn members(&self) -> Vec<api::Member> {
        let mut list = self.peers_seen();
        list.push(self.itself());
        list.sort_by_key(|member| member.number);
        list
    }

    fn seen(&self) -> Seen {
        let marks = self.0.marks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Seen { view: self.view(), marks, now: Moment::now() }
    }

    /// This site.
    fn itself(&self) -> api::Member {
        let (config, seen, health) = (&self.0.config, self.seen(), self.health());
        let (me, view) = (config.me(), &seen.view);
        // The zone is the one that counts.
        let own = seen.facts(me).unwrap_or_else(|| Facts::new(&config.zone));
        let rival = self.0.mesh.rival();
        let twin = rival.is_some() && health.health == "ok";
        let advice = health.problems.into_iter().next().map(|it| it.action);
        let stop = || format!("stop one of the two processes that say they are {}", config.site);
        api::Member {
            site: config.site.clone(),
            number: me.0,
            address: config.members[&config.site].clone(),
            state: "self".into(),
            zone: Some(own.zone).filter(|it| !it.is_empty()),
            role: seen.role(me),
            version: Some(Facts::new("").version),
            health: if twin { "twin".to_owned() } else { health.health },
            since_ms: seen.since(seen.marked(me)),
            advice: advice.or_else(|| twin.then(stop)),
            incarnation: Some(view.incarnation.max(self.0.incarnation)),
            epoch: view.epoch,
            member: seen.is_member(me),
            voter: seen.is_voter(me),
            draining: seen.drains(me),
            lease_ms: (!view.sole).then(|| view.leased.map_or(0, |it| seen.left(it))),
            quarantine_ms: seen.quarantine(me),
            trouble: view.trouble.clone().or(rival),
            unacknowledged: 0,
        }
    }

    /// The other members.
    pub(super) fn peers_seen(&self) -> Vec<api::Member> {
        let seen = self.seen();
        // A site that was taken out has no name any more.
        let links = self.0.mesh.info().into_iter();
        let links = links.filter(|link| !self.name_of(link.peer).is_empty());
        let row = |link: LinkInfo| {
            let (site, name) = (link.peer, self.name_of(link.peer));
            let (health, advice) =
                verdict_on(&name, &link, seen.is_member(site), seen.drains(site));
            // Sites of one process run one program.
            let together = || self.0.together.then(|| Facts::new(""));
            let facts = seen.facts(site).or_else(together);
            api::Member {
                site: name,
                number: site.0,
                state: match (&link.broken, link.up) {
                    (Some(_), _) => "refused",
                    (None, true) => "up",
                    (None, false) => "away",
                }
                .into(),
                zone: facts.as_ref().map(|it| it.zone.clone()).filter(|it| !it.is_empty()),
                role: seen.role(site),
                version: facts.map(|it| it.version),
                health,
                since_ms: seen.since(seen.marked(site).max(Some(link.since))),
                advice,
                address: link.address,
                incarnation: link.incarnation,
                epoch: seen.view.epoch,
                member: seen.is_member(site),
                voter: seen.is_voter(site),
                draining: seen.drains(site),
                lease_ms: None,
                quarantine_ms: seen.quarantine(site),
                trouble: link.broken.or(link.trouble),
                unacknowledged: link.waiting as u64,
            }
        };
        links.map(row).collect()
    }
}
