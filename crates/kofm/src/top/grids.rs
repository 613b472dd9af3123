//! The tables of `kofm top`, made from a site's answers.

use std::collections::BTreeMap;

use kofm_net::api::{self, Lease, Pool};

use super::data::List;
use super::grid::{Cell, Grid, Row, Tone};
use crate::tables::{show_blocker, show_blockers, show_ms, show_time, show_units, show_want};

/// Units of a pool that are listed; the largest pools have a million.
const MAX_UNITS: usize = 10_000;

pub(super) fn grid(list: &List) -> Grid {
    match list {
        List::Pools(pools) => Grid {
            head: &["POOL", "UNITS", "HELD", "FREE", "QUARANTINED", "WAITING", "PROTOCOL"],
            rows: pools.iter().map(pool).collect(),
            empty: "No pools. `kofm pool set NAME --units M` creates one.",
            ..Grid::default()
        },
        List::Queue(queue) => Grid {
            head: &["PLACE", "REQUEST", "WANT", "OWNER", "WAITED", "SITE", "WAITS FOR", "REASON"],
            rows: queue.iter().map(request).collect(),
            empty: "No request waits.",
            ..Grid::default()
        },
        List::Leases(leases) => Grid {
            head: &["UNITS", "OWNER", "HELD", "ENDS IN", "SITE", "FENCE", "STATE", "REASON"],
            rows: leases.iter().map(lease).collect(),
            empty: "No unit is held.",
            ..Grid::default()
        },
        List::Semaphores(list) => Grid {
            head: &["SEMAPHORE", "VALUE", "WAITING", "NEXT", "LACKS", "PROTOCOL"],
            rows: list.iter().map(semaphore).collect(),
            empty: "No semaphores. `kofm sem set NAME --value N` creates one.",
            ..Grid::default()
        },
        List::Gangs(gangs) => Grid {
            head: &["GANG", "STATE", "MEMBERS"],
            rows: gangs.iter().map(gang).collect(),
            empty: "No gangs. `kofm gang set NAME --member SITE=POOL:K` creates one.",
            ..Grid::default()
        },
        List::Sites(sites) => Grid {
            head: &["SITE", "STATE", "ADDRESS", "INCARNATION", "EPOCH", "PROBLEM"],
            rows: sites.iter().map(site).collect(),
            empty: "No sites.",
            ..Grid::default()
        },
        List::History(events) => Grid {
            head: &["TIME", "EVENT", "UNITS", "OWNER", "WAITED", "HELD", "SITE", "CAUSE"],
            rows: events.iter().rev().map(event).collect(),
            empty: "No events.",
            ..Grid::default()
        },
        List::Pool(pool, leases) => units(pool, leases),
        List::Request(request) => blockers(request),
    }
}

fn text(value: Option<&String>) -> Cell {
    value.map(String::as_str).into()
}

fn time(ms: u64) -> Cell {
    Cell::measured(show_ms(ms), ms)
}

fn pool(it: &Pool) -> Row {
    let cells = vec![
        it.name.as_str().into(),
        Cell::number(it.units),
        Cell::number(it.held),
        Cell::number(it.free),
        Cell::number(it.quarantined),
        Cell::number(it.waiting),
        it.protocol.as_str().into(),
    ];
    let tone = match (it.quarantined, it.held, it.waiting) {
        (1.., _, _) => Tone::Warn,
        (0, 0, 0) => Tone::Dim,
        _ => Tone::Plain,
    };
    Row::new(it.name.clone(), cells).toned(tone)
}

fn request(it: &api::Request) -> Row {
    let cells = vec![
        it.position.map(Cell::number).unwrap_or_default(),
        it.id.as_str().into(),
        show_want(&it.want).into(),
        text(it.owner.as_ref()),
        time(it.waited_ms),
        it.site.as_str().into(),
        show_blockers(&it.blocked_by).into(),
        text(it.reason.as_ref()),
    ];
    Row::new(it.id.clone(), cells)
}

fn lease(it: &Lease) -> Row {
    let cells = vec![
        show_units(&it.units).into(),
        text(it.owner.as_ref()),
        time(it.held_ms),
        time(it.expires_in_ms),
        it.site.as_str().into(),
        Cell::number(it.fence),
        it.state.as_str().into(),
        text(it.reason.as_ref()),
    ];
    let tone = if it.state == "live" { Tone::Plain } else { Tone::Warn };
    Row::new(it.request.clone(), cells).toned(tone)
}

fn semaphore(it: &api::Semaphore) -> Row {
    let next = it.head.as_ref().map(|head| head.owner.as_deref().unwrap_or(&head.site));
    let cells = vec![
        it.name.as_str().into(),
        Cell::number(it.value),
        Cell::number(it.waiting),
        next.into(),
        it.head.as_ref().map(|head| Cell::number(head.missing)).unwrap_or_default(),
        it.protocol.as_str().into(),
    ];
    let tone = if it.unsure.is_empty() { Tone::Plain } else { Tone::Warn };
    Row::new(it.name.clone(), cells).toned(tone)
}

fn gang(it: &api::Gang) -> Row {
    let member = |(site, want)| format!("{site} {}", show_want(want));
    let members = it.members.iter().map(member).collect::<Vec<_>>().join(", ");
    Row::new(
        it.name.clone(),
        vec![it.name.as_str().into(), it.state.as_str().into(), members.into()],
    )
}

fn site(it: &api::Member) -> Row {
    let state = match (it.state.as_str(), it.member) {
        ("self", _) => "this site",
        (state, true) => state,
        (_, false) => "not a member",
    };
    let cells = vec![
        it.site.as_str().into(),
        state.into(),
        it.address.as_str().into(),
        it.incarnation.map(Cell::number).unwrap_or_default(),
        Cell::number(it.epoch),
        text(it.trouble.as_ref()),
    ];
    let good = it.member && it.trouble.is_none() && (it.state == "self" || it.state == "up");
    Row::new(it.site.clone(), cells).toned(if good { Tone::Plain } else { Tone::Warn })
}

fn event(it: &api::Happening) -> Row {
    let units = if it.units.is_empty() { show_want(&it.want) } else { show_units(&it.units) };
    let duration = |ms: Option<u64>| ms.map(time).unwrap_or_default();
    let cells = vec![
        Cell::measured(show_time(it.at_ms), it.at_ms),
        it.event.as_ref().into(),
        units.into(),
        it.owner.as_deref().into(),
        duration(it.waited_ms),
        duration(it.held_ms),
        it.site.as_ref().into(),
        it.cause.as_deref().into(),
    ];
    let bad = ["expired", "failed", "held", "quarantined", "suspended", "departed"];
    let tone = if bad.contains(&it.event.as_ref()) { Tone::Warn } else { Tone::Plain };
    Row::new(format!("{}/{}", it.site, it.seq), cells).toned(tone)
}

/// Each unit of a pool by its name: who has it, since when, until when.
fn units(pool: &Pool, leases: &[Lease]) -> Grid {
    let mut held: BTreeMap<&str, &Lease> = BTreeMap::new();
    for lease in leases {
        let names = lease.units.get(&pool.name).into_iter().flatten();
        held.extend(names.map(|unit| (unit.as_str(), lease)));
    }
    let reasons: BTreeMap<&str, &str> =
        pool.quarantine.iter().map(|it| (it.unit.as_str(), it.reason.as_str())).collect();
    let mut names = pool.names.clone();
    if names.is_empty() {
        names = (0..pool.units).take(MAX_UNITS).map(|unit| unit.to_string()).collect();
        // A unit beyond the end of a pool that was made smaller is held until its release.
        let beyond = held.keys().filter(|unit| unit.parse().is_ok_and(|it: u32| it >= pool.units));
        names.extend(beyond.map(|&unit| unit.to_owned()));
    }
    let hidden = names.len().saturating_sub(MAX_UNITS);
    names.truncate(MAX_UNITS);
    let row = |unit: &String| {
        let quarantine = reasons.get(unit.as_str());
        let Some(lease) = held.get(unit.as_str()) else {
            let state = if quarantine.is_some() { "quarantined" } else { "not held" };
            let mut cells = vec![unit_cell(unit), state.into()];
            cells.extend([(); 4].map(|()| Cell::default()));
            cells.push(quarantine.copied().into());
            let tone = if quarantine.is_some() { Tone::Warn } else { Tone::Dim };
            return Row::new(unit.clone(), cells).toned(tone);
        };
        let state = match (lease.state.as_str(), quarantine) {
            ("live", None) => "held",
            ("live", Some(_)) => "held, then quarantined",
            (state, _) => state,
        };
        let reason = lease.reason.as_deref().or_else(|| quarantine.copied());
        let cells = vec![
            unit_cell(unit),
            state.into(),
            text(lease.owner.as_ref()),
            time(lease.held_ms),
            time(lease.expires_in_ms),
            lease.site.as_str().into(),
            reason.into(),
        ];
        let tone = if state == "held" { Tone::Plain } else { Tone::Warn };
        Row::new(unit.clone(), cells).toned(tone)
    };
    let counts = format!(
        "Pool {}: {} of {} units free, {} held, {} quarantined, {} waiting; {}; on expiry: {}",
        pool.name,
        pool.free,
        pool.units,
        pool.held,
        pool.quarantined,
        pool.waiting,
        pool.protocol,
        pool.on_expiry.name()
    );
    let mut intro = vec![counts];
    if hidden > 0 || (pool.names.is_empty() && pool.units as usize > MAX_UNITS) {
        intro.push(format!("The first {MAX_UNITS} units are listed."));
    }
    Grid {
        intro,
        head: &["UNIT", "STATE", "OWNER", "HELD FOR", "ENDS IN", "SITE", "REASON"],
        rows: names.iter().map(row).collect(),
        empty: "The pool has no units.",
    }
}

/// Units with numbers are sorted by number.
fn unit_cell(unit: &str) -> Cell {
    Cell { text: unit.to_owned(), number: unit.parse().ok() }
}

/// What one request waits for, as `kofm explain` says it.
fn blockers(it: &api::Request) -> Grid {
    let want = show_want(&it.want);
    let owner = it.owner.as_deref().unwrap_or("no owner");
    let state = format!("{:?}", it.state).to_lowercase();
    let mut intro =
        vec![format!("Request {} ({owner}) wants {want}: {state} at {}", it.id, it.site)];
    if let Some(position) = it.position {
        intro.push(format!("Place {position}, waited {}", show_ms(it.waited_ms)));
    }
    intro.extend(it.cause.clone());
    // One clause per row: a sentence with an owner and a reason is wider than most terminals.
    let clauses = it.blocked_by.iter().enumerate().flat_map(|(number, blocker)| {
        let text = show_blocker(blocker);
        let indent = |(part, clause): (usize, &str)| {
            (format!("{number}.{part}"), format!("{}{clause}", if part == 0 { "" } else { "  " }))
        };
        text.split("; ").enumerate().map(indent).collect::<Vec<_>>()
    });
    let rows = clauses.map(|(key, clause)| Row::new(key, vec![clause.into()]));
    Grid { intro, head: &["BLOCKED BY"], rows: rows.collect(), empty: "Nothing blocks it." }
}
