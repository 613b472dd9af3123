//! Every negative verdict on what goes on forever has a run that can be taken again.

use std::io::BufReader;

use kofm_core::{Cluster, Kind, Service};
use kofm_sim::chosen::{Line, explore_expecting, replay};
use kofm_sim::fairness::Clients;
use kofm_sim::lasso::Written;
use kofm_sim::trace::Header;
use kofm_sim::world::Script;

use crate::{find, groups, kind, script};

/// Takes a run again, from what is written of it.
fn again(kind: Kind, cluster: &Cluster, run: &Written, lines: &[Line]) -> Result<u64, String> {
    let header = Header { lasso: Some(run.clone()), ..Header::new(kind.name(), cluster) };
    let lines: Vec<String> = lines.iter().map(|line| line.json.clone()).collect();
    let text = lines.join("\n");
    replay(kind, &header, &mut BufReader::new(text.as_bytes()), &mut |_| {})
}

fn figure9() -> Cluster {
    groups(4, &[&[1, 2], &[2, 3], &[3, 4], &[1, 4]], &[(1, 3), (2, 4)])
}

fn share() -> Cluster {
    groups(3, &[&[1, 2], &[1, 3]], &[])
}

#[test]
fn a_group_starves_where_a_partner_never_comes_and_the_run_shows_it() {
    let hungry = kind("groups-hungry");
    for (cluster, rests) in [
        (share(), true),
        // Another process goes on forever; the group starves all the same.
        (groups(4, &[&[1, 2], &[1, 3], &[4]], &[]), true),
    ] {
        let endless = Script { endless: true, ..Script::new(cluster.sites, 1, Vec::new()) };
        let seek = |clients| {
            let found =
                explore_expecting(hungry, &cluster, &endless, clients, 400_000, &mut |_| {});
            found.for_ever.unwrap()
        };
        let found = seek(Clients::May);
        assert!(!found.starved.is_empty() && found.runs.len() == found.starved.len());
        for (run, lines) in &found.runs {
            assert_eq!(again(hungry, &cluster, run, lines), Ok(lines.len() as u64));
            assert_eq!(run.prefix == lines.len(), rests);
        }
        assert!(seek(Clients::Arrive).starved.is_empty(), "with the assumption none does");
    }
}

#[test]
fn a_run_that_is_none_is_refused() {
    let (hungry, cluster) = (kind("groups-hungry"), share());
    let endless = Script { endless: true, ..Script::new(3, 1, Vec::new()) };
    let found = explore_expecting(hungry, &cluster, &endless, Clients::May, 100_000, &mut |_| {});
    let (run, lines) = &found.for_ever.unwrap().runs[0];
    let refused = |run: &Written, lines: &[Line]| again(hungry, &cluster, run, lines).unwrap_err();
    // With the partners that are awaited the run does not rest.
    let expecting = Written { clients: Clients::Arrive, ..run.clone() };
    assert!(refused(&expecting, lines).contains("does not rest"));
    // A loop that does not close.
    let early = Written { prefix: run.prefix - 1, ..run.clone() };
    assert!(refused(&early, lines).contains("line 1"));
    let late = Written { prefix: run.prefix + 1, ..run.clone() };
    assert!(refused(&late, lines).contains("the way in has"));
    // Moves that cannot happen, or are none.
    let mut moves = run.moves.clone();
    moves.as_array_mut().unwrap().swap(0, run.prefix - 1);
    assert!(refused(&Written { moves, ..run.clone() }, lines).contains("line"));
    let nonsense = Written { moves: serde_json::json!([{"fly": 1}]), ..run.clone() };
    assert!(refused(&nonsense, lines).contains("moves"));
    let sites = Script { rounds: vec![0; 2], ..run.script.clone() };
    assert!(refused(&Written { script: sites, ..run.clone() }, lines).contains("rounds"));
    // Steps of another run.
    assert!(refused(run, &lines[1..]).contains("line 2"));
    assert!(refused(run, &lines[..lines.len() - 1]).contains("turned once"));
}

#[test]
fn a_group_that_cannot_work_any_more_is_shown_with_a_run() {
    let (kind, cluster) = (kind("groups-as-printed-self"), share());
    let endless = Script { endless: true, ..Script::new(3, 1, Vec::new()) };
    let found = explore_expecting(kind, &cluster, &endless, Clients::Come, 100_000, &mut |_| {});
    let found = found.for_ever.expect("no promise is broken in one state");
    assert_eq!(found.dead, [kofm_core::GroupId(0)]);
    let (run, lines) = &found.runs[0];
    assert_eq!((run.property.as_str(), run.prefix < lines.len()), ("dead", true));
    assert_eq!(again(kind, &cluster, run, lines), Ok(lines.len() as u64));
    // A turn that leaves something out is refused.
    let mut short = run.clone();
    short.moves.as_array_mut().unwrap().pop();
    assert!(again(kind, &cluster, &short, lines).unwrap_err().contains("the loop"));
}

#[test]
#[ignore = "a million states: run in release with --ignored"]
fn tokens_that_go_round_while_claims_wait_are_a_run_without_end() {
    let pusher = kind("tree-as-printed-pusher");
    let cluster = Cluster::new(3, 2);
    let mut script = script(pusher, 3, 2, 1);
    script.demands.remove(0);
    let found = find(pusher, &cluster, &script, 5_000_000);
    let (violation, lines) = found.violation.expect("three wait forever");
    assert_eq!(violation.property, "progress");
    let run = found.lasso.expect("it goes round");
    assert!(run.prefix < lines.len(), "there is a loop");
    assert_eq!(again(pusher, &cluster, &run, &lines), Ok(lines.len() as u64));
    // A turn that leaves something out forever is not fair.
    let mut short = run;
    short.moves.as_array_mut().unwrap().pop();
    let problem = again(pusher, &cluster, &short, &lines).unwrap_err();
    assert!(problem.contains("the loop"), "{problem}");
}

#[test]
fn a_deadlock_is_a_run_that_rests() {
    for (name, sites, units, most) in
        [("quorum-as-printed", 3, 2, 2), ("sem-quorum-as-printed", 3, 1, 1)]
    {
        let (kind, cluster) = (kind(name), Cluster::new(sites, units));
        let found = find(kind, &cluster, &script(kind, sites, most, 2), 3_000_000);
        let (violation, lines) = found.violation.expect("it deadlocks");
        assert_eq!(violation.property, "progress", "{name}");
        let run = found.lasso.unwrap();
        assert_eq!(run.prefix, lines.len());
        assert_eq!(again(kind, &cluster, &run, &lines), Ok(lines.len() as u64), "{name}");
    }
}

/// The readings of §5 of Cheng 1999, each with the fault that it has.
#[test]
fn every_reading_of_the_variation_for_hungry_groups_fails() {
    let idle = groups(4, &[&[1, 2], &[3], &[1, 4]], &[(1, 3), (3, 4)]);
    let cases = [
        // A process that has informed a group gives away what that group needs.
        ("", figure9(), ("resources", 7)),
        // If it keeps that, groups deadlock.
        ("-holds", figure9(), ("progress", 8)),
        // If it informs a group only that leads all others, it waits for idle ones.
        ("-leads", figure9(), ("progress", 4)),
        // If it keeps what an idle group leads for, hungry ones wait for that.
        ("-keeps", idle, ("progress", 6)),
    ];
    for (reading, cluster, expected) in cases {
        let kind = kind(&format!("groups-hungry-as-printed{reading}"));
        let script = Script::new(cluster.sites, 1, Vec::new());
        let found = find(kind, &cluster, &script, 1_500_000);
        let (fault, lines) = found.violation.expect("every reading fails");
        assert_eq!((fault.property, lines.len()), expected, "{reading}");
        if let Some(run) = &found.lasso {
            assert_eq!(again(kind, &cluster, run, &lines), Ok(lines.len() as u64));
        }
        assert_eq!(found.lasso.is_some(), expected.0 == "progress");
    }
}

#[test]
fn no_run_of_a_sound_protocol_goes_round() {
    let sound = |kind: &&Kind| {
        let profile = kind.profile();
        let single = matches!(profile.serves, Service::Pool | Service::Semaphore);
        single && !profile.as_printed
    };
    let mut tried = 0;
    for &kind in Kind::ALL.iter().filter(sound) {
        let script = script(kind, 2, 1, 1);
        let cluster = Cluster::new(2, 1);
        let found = explore_expecting(kind, &cluster, &script, Clients::May, 400_000, &mut |_| {});
        assert!(found.violation.is_none(), "{}: {:?}", kind.name(), found.violation);
        assert!(found.complete, "{}", kind.name());
        tried += 1;
    }
    assert!(tried >= 8, "{tried}");
}
