//! How a site starts: alone, as one of several, or all of them in one process.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use kofm_core::SiteId;
use kofm_core::voting::{DiskId, MAX_VOTERS, Wanted};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, broadcast, mpsc, watch};

use super::desk::Desk;
use super::history::Kept;
use super::keeper::{self, News, Note};
use super::{EVENTS, Inner, Site, members};
use crate::audit::Audit;
use crate::boottime::{Alarm, Boottime, Moment, read};
use crate::config::{Config, Durability, PoolConfig};
use crate::exposure::is_loopback;
use crate::http::TEST_FAULTS;
use crate::incarnation::{IdentityError, StateDir};
use crate::join::{Admits, Admitted, Registrar};
use crate::ledger::{Ledger, Limits};
use crate::link::{Answers, Callers, Identity, Lines, Lives, Mesh, Roster};
use crate::random;
use crate::store::etcd::Etcd;
use crate::store::voters::{Ballots, Voters};
use crate::store::{Beat, Pulse, Record, Store};
use crate::tls::Tls;
use crate::wire::Versions;
use kofm_site::api::{KeyId, MemberChange};
use kofm_site::core::{Change, Core, Doors, Origin, View};
use kofm_site::journal::Journal;
use kofm_site::keeper::Facts;
use kofm_site::plan::{self, Plan};
use kofm_site::rules::Principals;
use kofm_site::tallies::Tallies;

/// Why a site does not start. Nothing is left running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The address is taken, or not this machine's.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Which.
        address: String,
        /// What the system says.
        source: io::Error,
    },
    /// Its incarnation cannot be made durable.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The system has no more of something.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The configuration cannot be.
    #[error("{0}")]
    Config(String),
}

impl Site {
    /// Starts a site. With other members it listens for them; clients come through
    /// [`crate::http::serve`] or this handle.
    pub async fn start(mut config: Config) -> Result<Self, StartError> {
        if !config.etcd.is_empty() {
            let patience = config.site_lease / 4;
            let auth = &config.etcd_auth;
            let store = Etcd::new(&config.cluster, &config.etcd, auth, patience);
            find_place(&mut config, &store.map_err(StartError::Config)?).await?;
        }
        let listener = if config.members.len() > 1 || config.is_open() {
            let address = config.listen.as_ref().unwrap_or_else(|| &config.members[&config.site]);
            let bound = TcpListener::bind(address).await;
            Some(bound.map_err(|source| StartError::Listen { address: address.clone(), source })?)
        } else {
            None
        };
        let tls = tls_of(&config)?;
        let port = listener.as_ref().and_then(|it| it.local_addr().ok()).map_or(0, |it| it.port());
        let lives = Lives::new(&config.site, 0, port, config.site_lease);
        if config.etcd.is_empty() && config.state_dir.is_some() && listener.is_some() {
            find_number(&mut config, &lives, tls.as_ref()).await?;
        }
        let site = Self::start_on(config, listener, None, lives, tls.as_ref())?;
        if site.0.view.borrow().sole {
            site.ready().await;
        }
        Ok(site)
    }

    /// Starts all sites of a cluster in this process, on ports of the loopback interface. Their
    /// pools can be changed while they run.
    pub async fn start_together(
        sites: usize,
        pools: BTreeMap<String, PoolConfig>,
    ) -> Result<Vec<Self>, StartError> {
        let mut listeners = Vec::new();
        let mut members = BTreeMap::new();
        let width = sites.saturating_sub(1).to_string().len();
        for number in 0..sites {
            let address = "127.0.0.1:0".to_owned();
            let listener = TcpListener::bind(&address).await;
            let listener = listener.map_err(|source| StartError::Listen { address, source })?;
            members.insert(format!("s{number:0width$}"), listener.local_addr()?.to_string());
            listeners.push(listener);
        }
        let names: Vec<String> = members.keys().cloned().collect();
        let ballots = Arc::new(Ballots::open(None)?);
        let mut list = Vec::new();
        for (name, listener) in names.into_iter().zip(listeners) {
            let (members, pools) = (members.clone(), pools.clone());
            let config = Config { members, pools, ..Config::single(&name) };
            let lives = Lives::new(&name, 0, listener.local_addr()?.port(), config.site_lease);
            let together = Some(Arc::clone(&ballots));
            list.push(Self::start_on(config, Some(listener), together, lives, None)?);
        }
        for site in &list {
            site.ready().await;
        }
        Ok(list)
    }

    /// Waits until the site may grant, or has ended.
    pub async fn ready(&self) {
        let mut view = self.0.view.subscribe();
        tokio::select! {
            _ = view.wait_for(|view| view.granting) => {}
            () = self.ended() => {}
        }
    }

    /// `together`: what all sites of the cluster decide by, if they live and die in this process.
    fn start_on(
        config: Config,
        listener: Option<TcpListener>,
        together: Option<Arc<Ballots>>,
        lives: Arc<Lives>,
        tls: Option<&Tls>,
    ) -> Result<Self, StartError> {
        let config = config.with_seats();
        let own = config.listen.as_ref().or_else(|| config.members.get(&config.site));
        let local = own.is_none_or(|address| is_loopback(address));
        if !config.members.contains_key(&config.site) {
            let text = format!("site `{}` is not a member", config.site);
            return Err(StartError::Config(text));
        }
        let units = config.pools.values().map(|pool| u64::from(pool.units)).sum();
        config.check_sum(units).map_err(StartError::Config)?;
        let state = config.state_dir.as_deref().map(StateDir::open).transpose()?.map(Arc::new);
        let incarnation = state.as_ref().map_or(1, |state| state.incarnation());
        lives.set_incarnation(incarnation);
        let door = Arc::new(Door(OnceLock::new()));
        let registrar = Registrar::open(&config, Arc::clone(&door) as _);
        let registrar = registrar.map_err(StartError::Config)?.map(Arc::new);
        let alone = config.members.len() == 1 && !config.is_open();
        let sole = together.is_some() || alone;
        let view = watch::Sender::new(View { sole, ..View::default() });
        let identity = Identity {
            cluster: config.cluster.clone(),
            name: config.site.clone(),
            me: config.me(),
            lives: Arc::clone(&lives),
            table: config.table(),
            versions: versions(std::env::var(TEST_WIRE).ok().as_deref()),
            silence: config.site_lease,
            tls: tls.cloned(),
            roster: Arc::new(Sites(view.clone())),
            moves: config.is_open(),
            registrar,
        };
        let dir = config.state_dir.as_deref();
        let peers = config.members.iter().filter(|(name, _)| **name != config.site);
        let numbered = peers
            .clone()
            .filter_map(|(name, it)| Some((config.number_of(name)?, (name.clone(), it.clone()))));
        let founders = founders(&config, together.is_some());
        let mut recalled = Principals::new();
        let ballots = if let Some(ballots) = together {
            ballots
        } else {
            let own = Ballots::open(dir)?;
            same_members(&config, tls, &own.known())?;
            if own.known().epoch > 0
                && let Ok(record) = plan::unpack(&own.known().body)
            {
                if let Some(tls) = tls {
                    tls.pin(&record.plan.keys);
                }
                recalled = record.plan.principals;
            }
            Arc::new(own)
        };
        let answers: Option<Arc<dyn Answers>> =
            (!sole && config.etcd.is_empty()).then(|| Arc::clone(&ballots) as _);
        let (mesh, links) = Mesh::start(identity, numbered.collect(), listener, answers);
        // Few: a site whose core hangs must not go on saying that it is well.
        let (news, news_receiver) = mpsc::channel(2);
        // Well below the lease: a voter that does not answer must not cost it.
        let patience = config.site_lease / 4;
        let store: Arc<dyn Store> = if config.etcd.is_empty() {
            let life = (config.me().0, incarnation);
            let callers = Arc::new(callers(&config, &lives, tls));
            let ballots = Arc::clone(&ballots);
            let voters = Voters::new(ballots, &config.site, founders, callers, life, patience);
            Arc::new(voters.unless_twin(Arc::clone(&lives)))
        } else {
            let auth = &config.etcd_auth;
            let etcd = Etcd::new(&config.cluster, &config.etcd, auth, patience);
            Arc::new(etcd.map_err(StartError::Config)?)
        };
        let disk = ballots.disk();
        let plan = first_plan(&config, tls);
        let own = (incarnation, disk, plan);
        let change = keep(&config, own, store, news, view.clone(), state.clone());
        let watched = (view.subscribe(), tls.cloned());
        tokio::spawn(watch_membership(config.me(), watched, lives));
        let marks = Arc::default();
        tokio::spawn(members::watch(config.me(), view.subscribe(), Arc::downgrade(&marks)));
        let events = broadcast::Sender::new(EVENTS);
        let synced = config.durability == Durability::Grant;
        let journal = dir.map(|dir| Journal::open(dir, incarnation, synced)).transpose()?;
        let mut core = Core::new(
            &config.core(),
            Origin { incarnation, now: read(), seed: random::seed() },
            Box::new(Lines(Arc::clone(&mesh))),
            events.clone(),
            change,
            journal,
        );
        if let Some(dir) = dir {
            let (tallies, earlier) = Tallies::open(dir)?;
            core.remember(tallies, earlier);
        }
        let limits = Limits { bytes: config.history_max, age: config.history_keep };
        let ledger = Ledger::open(dir, &config.site, limits)?;
        let place = Arc::new(OnceLock::new());
        core.keep_history(Box::new(Kept { ledger, desk: Arc::clone(&place) }));
        let audit = Arc::new(Audit::open(dir, &config.site)?);
        let alarm = Alarm::new()?;
        let desk = Arc::new(Desk::new(core));
        place.set(Arc::downgrade(&desk)).ok();
        tokio::spawn(Arc::clone(&desk).attend(links, news_receiver, alarm));
        let inner = Arc::new(Inner {
            config,
            incarnation,
            desk,
            mesh,
            events,
            followed: Mutex::default(),
            view,
            marks,
            usage: Mutex::default(),
            together: sole,
            draining: AtomicBool::new(false),
            exposed: AtomicBool::new(false),
            unguarded: AtomicBool::new(false),
            takers: AtomicU64::new(0),
            local,
            audit,
            late: Arc::new(Semaphore::new(super::calls::MAX_LATE)),
            recalled,
            _state: state,
        });
        door.0.set(Arc::downgrade(&inner)).ok();
        Ok(Self(inner))
    }
}

/// An environment variable with which tests let a site speak the versions of another release:
/// `6..7`. It is read only where faults are allowed, too.
const TEST_WIRE: &str = "KOFM_TEST_WIRE";

fn versions(given: Option<&str>) -> Versions {
    let allowed = std::env::var_os(TEST_FAULTS).is_some();
    let range = given.filter(|_| allowed).and_then(|text| text.split_once(".."));
    let range = range.and_then(|(oldest, newest)| {
        Some(Versions { oldest: oldest.parse().ok()?, newest: newest.parse().ok()? })
    });
    range.unwrap_or(Versions::OWN)
}

/// Where machines are admitted to the cluster, once the site has started.
struct Door(OnceLock<Weak<Inner>>);

impl Admits for Door {
    fn admit<'a>(&'a self, name: &'a str, key: KeyId) -> Admitted<'a> {
        Box::pin(async move {
            let site = self.0.get().and_then(Weak::upgrade).map(Site);
            let site = site.ok_or("the site is starting or stopping: wait until it runs")?;
            let admitted = site.change_member(name, MemberChange::Admit(key)).await;
            admitted.map_err(|error| error.message)
        })
    }
}

/// The sites of the record that this one knows.
#[derive(Debug)]
struct Sites(watch::Sender<View>);

impl Roster for Sites {
    fn is_removed(&self, name: &str) -> bool {
        self.0.borrow().plan().is_some_and(|plan| plan.removed.contains(name))
    }

    fn is_taken(&self, name: &str) -> bool {
        let view = self.0.borrow();
        view.plan().is_some_and(|plan| {
            plan.removed.contains(name) || plan.sites.values().any(|it| it.0 == name)
        })
    }

    fn voters(&self) -> BTreeMap<String, String> {
        let view = self.0.borrow();
        let Some(plan) = view.plan() else { return BTreeMap::new() };
        plan.voters.keys().filter_map(|site| plan.sites.get(site)).cloned().collect()
    }
}

/// Tells whether this process is in the epoch, as long as the site lives.
async fn watch_membership(
    me: SiteId,
    (mut view, tls): (watch::Receiver<View>, Option<Tls>),
    lives: Arc<Lives>,
) {
    let mut numbers: BTreeMap<String, SiteId> = BTreeMap::new();
    loop {
        let now: Option<BTreeMap<String, SiteId>> = view
            .borrow()
            .plan()
            .map(|plan| plan.sites.iter().map(|(&site, it)| (it.0.clone(), site)).collect());
        if let (Some(tls), Some(plan)) = (&tls, view.borrow().plan()) {
            tls.pin(&plan.keys);
        }
        // A site that was replaced is another one with the same name.
        if let Some(now) = now.filter(|it| *it != numbers) {
            for (name, site) in &numbers {
                if now.get(name) != Some(site) {
                    lives.forget(name);
                }
            }
            numbers = now;
        }
        let member = {
            let view = view.borrow_and_update();
            view.incarnation > 0 && view.members.get(&me) == Some(&view.incarnation)
        };
        lives.set_member(member);
        if view.changed().await.is_err() {
            return;
        }
    }
}

/// Whether this site's last life was in this cluster, and in one of the same members: those of one
/// that is without etcd are fixed for its life.
fn same_members(config: &Config, tls: Option<&Tls>, known: &Record) -> Result<(), StartError> {
    if known.epoch == 0 {
        return Ok(());
    }
    let record = plan::unpack(&known.body).map_err(StartError::Config)?;
    let (theirs, ours) = (&record.plan.cluster, &config.cluster);
    if theirs != ours {
        let text = format!(
            "state_dir is of cluster {theirs}, and the configuration of cluster {ours}: give the \
             configuration of {theirs}, or another state_dir"
        );
        return Err(StartError::Config(text));
    }
    let pinned = record.plan.keys.get(&config.site);
    if let (Some(tls), Some(key)) = (tls, pinned)
        && tls.key() != *key
    {
        let text = format!(
            "the key of site {} is not the one that cluster {ours} knows: its files and its \
             state_dir are of different sites, or another disk took its place; run `kofm member \
             replace {}` at another site, and `kofm join` here",
            config.site, config.site
        );
        return Err(StartError::Config(text));
    }
    if config.is_open() {
        return Ok(());
    }
    let sites: BTreeSet<&str> = record.plan.sites.values().map(|it| it.0.as_str()).collect();
    // Sites of the file that the record lacks were removed, or are about to be replaced. A record
    // of one site is that of a single site, which no other can have left.
    let alone = sites.len() == 1 && config.members.len() > 1;
    if !alone && sites.iter().all(|it| config.members.contains_key(*it)) {
        return Ok(());
    }
    let sites: Vec<&str> = sites.into_iter().collect();
    let text = format!(
        "state_dir is of a cluster of {}, and its members are fixed: to have others, stop all \
         sites when nothing is held, take their state_dirs away and start anew, or use etcd",
        sites.join(", ")
    );
    Err(StartError::Config(text))
}

fn tls_of(config: &Config) -> Result<Option<Tls>, StartError> {
    let load = |files| Tls::load(files, &config.cluster, &config.site);
    config.tls.as_ref().map(load).transpose().map_err(StartError::Config)
}

/// Asks other sites.
fn callers(config: &Config, lives: &Arc<Lives>, tls: Option<&Tls>) -> Callers {
    let configured = config.members.clone();
    Callers::new(&config.cluster, Arc::clone(lives), tls.cloned(), configured)
}

/// The sites that decide on the first epoch: those of the file, or its `voters`; this one alone
/// where all sites are in this process.
fn founders(config: &Config, together: bool) -> BTreeMap<SiteId, (String, String)> {
    let founds = |name: &String| {
        let alone = together && *name == config.site;
        let all = !together && config.voters.is_empty();
        alone || all || config.voters.contains(name)
    };
    let founders = config.members.iter().filter(|it| founds(it.0));
    let numbered = |(name, address): (&String, &String)| {
        Some((config.number_of(name)?, (name.clone(), address.clone())))
    };
    founders.filter_map(numbered).collect()
}

/// Takes the members and their numbers from a record, if this site is in it.
fn place_in(config: &mut Config, record: &Record) -> Result<bool, String> {
    if record.epoch == 0 {
        return Ok(false);
    }
    let sites = plan::unpack(&record.body)?.plan.sites;
    if sites.values().all(|it| it.0 != config.site) {
        return Ok(false);
    }
    config.numbers = sites.iter().map(|(&it, site)| (site.0.clone(), it)).collect();
    let file = config.members.clone();
    let own = |name: &String| *name == config.site || !config.is_open();
    let address = |(name, address): (String, String)| {
        let address = file.get(&name).filter(|_| own(&name)).cloned().unwrap_or(address);
        (name, address)
    };
    config.members = sites.into_values().map(address).collect();
    Ok(true)
}

/// Finds the number of this site where sites come and go: in what its last life knew, or from the
/// voters, who have it given one where it is new.
async fn find_number(
    config: &mut Config,
    lives: &Arc<Lives>,
    tls: Option<&Tls>,
) -> Result<(), StartError> {
    let dir = config.state_dir.clone().unwrap_or_default();
    let fresh = !dir.join("promises").exists();
    if fresh && config.is_open() && config.votes() {
        let site = &config.site;
        let text = format!(
            "state_dir {} has no votes, and site {site} cannot found the cluster again: if its \
             disk was lost, run `kofm member replace {site}` at another site, and there `kofm \
             invite`; here `kofm join CODE --site {site}`",
            dir.display()
        );
        return Err(StartError::Config(text));
    }
    // A lock on the directory comes later; nothing is decided here.
    let known = Ballots::open(Some(&dir))?.known();
    if let (Some(tls), Ok(record)) = (tls, plan::unpack(&known.body)) {
        tls.pin(&record.plan.keys);
    }
    same_members(config, tls, &known)?;
    if place_in(config, &known).map_err(StartError::Config)? {
        return Ok(());
    }
    if known.epoch > 0 {
        let text = format!("site `{}` was removed from the cluster", config.site);
        return Err(StartError::Config(text));
    }
    if config.is_open() && config.votes() {
        return Ok(());
    }
    let patience = config.site_lease / 4;
    let (me, callers) = (Arc::new(Ballots::open(None)?), callers(config, lives, tls));
    let mut founders = founders(config, false);
    founders.retain(|_, it| it.0 != config.site);
    let store = Voters::new(me, "", founders, Arc::new(callers), (u16::MAX, 0), patience);
    if config.is_open() {
        return find_place(config, &store).await;
    }
    // Where members are listed, this may be the first start of all, or that of a new disk in a
    // cluster that runs.
    if let Some(record) = store.seek(&Arc::default()).await {
        place_in(config, &record).map_err(StartError::Config)?;
    }
    Ok(())
}

/// Asks the store for the number of this site, and has it given one where it is new.
async fn find_place(config: &mut Config, store: &dyn Store) -> Result<(), StartError> {
    let address = config.members.get(&config.site).cloned().unwrap_or_default();
    let facts = Facts::new(&config.zone);
    let note = Note { address, facts, ..Note::default() };
    let note = postcard::to_stdvec(&note).unwrap_or_default();
    let mut known = Arc::new(Record::default());
    for count in 0.. {
        let (site, note) = (config.site.clone(), note.clone());
        let pulse = Pulse { site, incarnation: 0, count, note };
        match store.beat(Arc::clone(&known), pulse, false).await {
            // There is no epoch yet: all begin with what they were told.
            Ok(Beat::Steady(_)) if known.epoch == 0 && config.voters.is_empty() => return Ok(()),
            Ok(Beat::Steady(_)) => {}
            Ok(Beat::Moved(record)) => {
                let epoch = record.epoch;
                let placed = place_in(config, &record);
                known = Arc::new(record);
                if placed.map_err(|why| StartError::Config(format!("the store: {why}")))? {
                    return Ok(());
                }
                tracing::info!(epoch, "not in the cluster yet: waits to be taken in");
            }
            Err(error) => tracing::warn!(%error, "waits for the cluster"),
        }
        tokio::time::sleep(config.site_lease / 20).await;
    }
    Ok(())
}

/// What the cluster begins with, if this site founds it. Where it has an authority of its own, all
/// sites are known by their keys.
fn first_plan(config: &Config, tls: Option<&Tls>) -> Plan {
    let mut plan = Plan::first(&config.core());
    plan.cluster.clone_from(&config.cluster);
    let own = config.tls.as_ref().is_some_and(|it| it.ca_key.is_some());
    if let Some(tls) = tls.filter(|_| own && config.voters == [config.site.clone()]) {
        plan.keys.insert(config.site.clone(), tls.key());
    }
    plan
}

/// Starts the tasks that talk to the store.
fn keep(
    config: &Config,
    (incarnation, disk, plan): (u64, DiskId, Plan),
    store: Arc<dyn Store>,
    news: mpsc::Sender<News>,
    running: watch::Sender<View>,
    state: Option<Arc<StateDir>>,
) -> Change {
    let address = config.members[&config.site].clone();
    let note = Note { address, disk, facts: Facts::new(&config.zone) };
    let (me, watched) = watch::channel(keeper::Standing::before_joining(incarnation, &note));
    let (proposals, offered) = mpsc::channel(4);
    let (lease, name) = (config.site_lease, config.site.clone());
    tokio::spawn(keeper::beat(Arc::clone(&store), name, lease, watched, news.clone()));
    tokio::spawn(keeper::propose(store, offered, news));
    let joinable = config.is_open();
    let sole = running.borrow().sole;
    let whole = sole && state.is_none();
    let wanted = (!sole && config.etcd.is_empty()).then(|| {
        let listed = !config.is_open() && config.members.len() <= MAX_VOTERS;
        if listed { Wanted::All } else { Wanted::Automatic }
    });
    let doors = Doors {
        me,
        proposals,
        running,
        state: state.map(|it| it as _),
        joinable,
        wanted,
        sole,
        whole,
    };
    Change::new(config.me(), incarnation, Moment::now(), plan, lease, doors)
}
