//! Epochs broken on purpose. Each must be caught; a harness that lets one live is worth nothing.

use std::panic::catch_unwind;

use kofm_core::Protocol;
use kofm_core::epoch::{Rules, Slip};
use kofm_core::protocols::permission::Permission;
use kofm_core::protocols::roaming::Roaming;

use kofm_sim::mortal::Budget;

use crate::exhaustive::{CRASH, Case, DOUBT, RESTART};

macro_rules! slips {
    ($($slip:ident),* $(,)?) => {
        $(
            #[derive(Clone, Debug, PartialEq, Eq, Hash)]
            struct $slip;
            impl Rules for $slip {
                const SLIP: Option<Slip> = Some(Slip::$slip);
            }
        )*
        /// The name, and what finds it.
        const ALL: &[(&str, fn() -> Option<String>)] = &[$((stringify!($slip), find::<$slip>)),*];
    };
}

slips! {
    SkipsQuarantine,
    EndsEveryQuarantine,
    NeverEndsQuarantine,
    ResumesBeforeBarrier,
    IgnoresEpoch,
    ReportsAndGoesOn,
    LosesWaiting,
    LosesHeld,
    ProposesTooEarly,
    ResumesUndecided,
    IgnoresIncarnation,
    ReusesIncarnation,
    NeverDeparts,
    GrantsWithoutLease,
}

fn find<R: Rules>() -> Option<String> {
    let two = Budget { crashes: 2, calm: true, ..CRASH };
    let duel = Budget { doubts: 2, calm: false, ..DOUBT };
    let budgets =
        [("crash", CRASH), ("restart", RESTART), ("doubt", DOUBT), ("two", two), ("duel", duel)];
    for (name, budget) in budgets {
        for (units, rounds) in [(1, [1, 0, 0]), (1, [0, 1, 1]), (2, [0, 1, 1])] {
            let case = Case(units, &[1], rounds, budget);
            let found =
                search::<Permission, R>(name, case).or_else(|| search::<Roaming, R>(name, case));
            if found.is_some() {
                return found;
            }
        }
    }
    None
}

fn search<P: Protocol, R: Rules>(name: &str, case: Case) -> Option<String> {
    let found = catch_unwind(|| case.explore::<P, R>(100_000));
    let Ok(found) = found else { return Some(format!("{} {name}: panic", P::NAME)) };
    let (violation, way) = found.violation?;
    let (property, detail) = (violation.property, violation.detail);
    if std::env::var_os("WAYS").is_some() {
        println!("{detail}\n{}", way.join("\n"));
    }
    Some(format!(
        "checker, {} {name}, {property}, {} states, {} steps",
        P::NAME,
        found.states,
        way.len()
    ))
}

#[test]
#[ignore = "a minute and a half; run it after a change of epochs"]
fn every_slip_is_caught() {
    let mut missed = Vec::new();
    for (name, find) in ALL {
        let found = find();
        println!("| {name} | {} |", found.as_deref().unwrap_or("not found"));
        if found.is_none() {
            missed.push(name);
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
