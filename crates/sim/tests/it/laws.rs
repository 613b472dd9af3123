//! What holds for every registered protocol, whatever it does.
//!
//! 1. Function: equal state and input give equal state and effects.
//! 2. Refusal is total: a message that is refused changes nothing, and no message makes it panic.
//! 3. Time shift: holds by construction; `step` is given no time.
//! 4. Capacity, 5. one grant, 6. fences, 7. progress, 8. rest: judged by the oracle in `seeds`, and
//!    in every small world in `exhaustive`.
//! 9. Cost: in `prices`.
//! 10. Honest profile: an infeasible demand is rejected and changes nothing.
//! 11. Explanation: a waiting claim says what it waits for, a held one nothing.
//! 12. Letting go twice: a second release or withdrawal changes nothing.

use kofm_core::{
    Demand, Effect, Effects, Input, InputOf, PoolId, Protocol, Rejection, Service, SiteId, Units,
    Visitor, step,
};
use kofm_sim::rng::Rng;
use kofm_sim::world::{Local, World, clock};
use serde_json::Value;

use crate::for_all;
use crate::walk::{Witness, busy, sites, walk};

#[test]
fn equal_state_and_input_give_equal_state_and_effects() {
    #[derive(Clone, Copy)]
    struct Function;
    impl<P: Protocol> Witness<P> for Function {
        fn before(&mut self, _world: &World<P>, local: &Local<P>, input: &InputOf<P>) {
            let run = || {
                let (mut local, mut out) = (local.clone(), Effects::default());
                let result = local.apply(input.clone(), &mut out);
                (local, out, result)
            };
            assert_eq!(run(), run());
        }
    }
    impl Visitor for Function {
        type Output = ();
        fn visit<P: Protocol>(mut self) {
            for seed in 0..20 {
                walk::<P>(seed, 500, &mut self);
            }
        }
    }
    for_all(Function);
}

#[test]
fn a_refused_message_changes_nothing_and_none_panics() {
    #[derive(Clone)]
    struct Liar {
        rng: Rng,
        refused: u32,
    }
    impl<P: Protocol> Witness<P> for Liar {
        fn before(&mut self, _world: &World<P>, local: &Local<P>, input: &InputOf<P>) {
            let Input::Deliver { from, message, .. } = input else { return };
            let mut lie = serde_json::to_value(message).unwrap();
            bend(&mut lie, &mut self.rng);
            let Ok(message) = serde_json::from_value(lie) else { return };
            let from = if self.rng.below(4) == 0 { SiteId(9) } else { *from };
            let before = (local.protocol.clone(), clock(local.time));
            let (mut protocol, mut now) = before.clone();
            let mut out = Effects::default();
            let input = Input::Deliver { from, clock: clock(local.time), message };
            if step(&mut protocol, &mut now, input, &mut out).is_err() {
                self.refused += 1;
                assert_eq!((protocol, now), before);
                assert!(out.as_slice().is_empty());
            }
        }
    }
    #[derive(Clone, Copy)]
    struct Refusal;
    impl Visitor for Refusal {
        type Output = ();
        fn visit<P: Protocol>(self) {
            let mut liar = Liar { rng: Rng::new(1), refused: 0 };
            for seed in 0..40 {
                walk::<P>(seed, 500, &mut liar);
            }
            assert!(liar.refused > 0, "{}: no lie was ever refused", P::NAME);
        }
    }
    for_all(Refusal);
}

/// Replaces one number, or empties or repeats one list, somewhere in a document.
fn bend(value: &mut Value, rng: &mut Rng) {
    const NUMBERS: [u64; 7] = [0, 1, 2, 7, 65_535, u32::MAX as u64, u64::MAX];
    match value {
        Value::Number(_) => {
            let pick = usize::try_from(rng.below(NUMBERS.len() as u64)).unwrap();
            *value = NUMBERS[pick].into();
        }
        Value::Array(list) if list.is_empty() => {}
        Value::Array(list) => match rng.below(6) {
            0 => list.clear(),
            1 => list.push(list[0].clone()),
            _ => {
                let pick = usize::try_from(rng.below(list.len() as u64)).unwrap();
                bend(&mut list[pick], rng);
            }
        },
        Value::Object(map) => {
            let pick = usize::try_from(rng.below(map.len() as u64)).unwrap();
            bend(map.values_mut().nth(pick).unwrap(), rng);
        }
        Value::Bool(bool) => *bool = !*bool,
        Value::Null | Value::String(_) => {}
    }
}

#[test]
fn an_infeasible_demand_is_rejected_and_changes_nothing() {
    #[derive(Clone, Copy)]
    struct Honest;
    impl Visitor for Honest {
        type Output = ();
        fn visit<P: Protocol>(self) {
            let (cluster, _) = busy(&P::PROFILE);
            let infeasible = match P::PROFILE.serves {
                Service::Pool | Service::Group | Service::Gang => (
                    Demand::one(PoolId(0), 4),
                    Rejection::TooMany { pool: PoolId(0), units: Units(4), capacity: Units(3) },
                ),
                Service::Semaphore => (
                    [0, 1].map(|pool| (PoolId(pool), Units(1))).into_iter().collect(),
                    Rejection::OnePool,
                ),
            };
            let cases = [
                (Demand::from_iter([]), Rejection::Empty),
                infeasible,
                (Demand::one(PoolId(9), 1), Rejection::UnknownPool(PoolId(9))),
            ];
            for (demand, expected) in cases {
                let fresh = P::new(SiteId(0), &cluster);
                let (mut protocol, mut now) = (fresh.clone(), clock(5));
                let claim = protocol.next_stamp(now);
                let mut out = Effects::default();
                step(&mut protocol, &mut now, Input::Claim { claim, demand }, &mut out).unwrap();
                assert_eq!(out.as_slice(), [Effect::Reject { claim, reason: expected }]);
                assert_eq!(protocol, fresh);
            }
        }
    }
    for_all(Honest);
}

#[test]
fn a_waiting_claim_says_what_it_waits_for() {
    struct Explains {
        waiting: u32,
    }
    impl<P: Protocol> Witness<P> for Explains {
        fn before(&mut self, world: &World<P>, _local: &Local<P>, _input: &InputOf<P>) {
            for local in &world.locals {
                for client in &local.claims {
                    let blockers = local.protocol.explain(client.claim);
                    if client.held {
                        assert_eq!(blockers, [], "{} is held", client.claim);
                        continue;
                    }
                    self.waiting += 1;
                    assert!(!blockers.is_empty(), "{} waits for nothing", client.claim);
                    for blocker in blockers {
                        assert!(sites().any(|site| site == blocker.site), "{blocker:?}");
                        assert!(!client.demand.units(blocker.pool).is_zero(), "{blocker:?}");
                        assert!(!blocker.units.is_zero(), "{blocker:?}");
                        assert_ne!(blocker.claim, Some(client.claim));
                    }
                }
            }
        }
    }
    #[derive(Clone, Copy)]
    struct Explanation;
    impl Visitor for Explanation {
        type Output = ();
        fn visit<P: Protocol>(self) {
            let mut explains = Explains { waiting: 0 };
            for seed in 0..20 {
                walk::<P>(seed, 500, &mut explains);
            }
            assert!(explains.waiting > 0);
        }
    }
    for_all(Explanation);
}

#[test]
fn letting_go_twice_changes_nothing() {
    struct Twice;
    impl<P: Protocol> Witness<P> for Twice {
        fn before(&mut self, _world: &World<P>, local: &Local<P>, input: &InputOf<P>) {
            let again = match input {
                Input::Release { part: None, .. } | Input::Withdraw { .. } => input.clone(),
                _ => return,
            };
            let (mut protocol, mut now) = (local.protocol.clone(), clock(local.time));
            let mut out = Effects::default();
            step(&mut protocol, &mut now, input.clone(), &mut out).unwrap();
            out.drain();
            let after = protocol.clone();
            step(&mut protocol, &mut now, again, &mut out).unwrap();
            assert!(out.as_slice().is_empty());
            assert_eq!(protocol, after);
        }
    }
    #[derive(Clone, Copy)]
    struct LettingGo;
    impl Visitor for LettingGo {
        type Output = ();
        fn visit<P: Protocol>(self) {
            for seed in 0..20 {
                walk::<P>(seed, 500, &mut Twice);
            }
        }
    }
    for_all(LettingGo);
}
