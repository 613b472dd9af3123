//! The same steps, taken by the protocol itself.

use std::collections::VecDeque;
use std::time::Duration;

use kofm_core::protocols::tree::{Frame, Item, Pace, Rules, Timer, Tree};
use kofm_core::{Clock, Cluster, Effect, Effects, Input, Protocol, SiteId, step};

use super::{Configuration, Event, Start, System};

/// `tree` with its controller alone: tokens are not counted, and nothing is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Controller;

impl Rules for Controller {
    const WATCHES: bool = false;
    const COALESCES: bool = false;
    const GATED: bool = false;
    const PARKS: bool = false;
    const LEASE: bool = false;
    const COUNTS: bool = false;

    fn pace(_sites: u16) -> Pace {
        // One beat is the timeout.
        Pace { timeout: 0, gate: u16::MAX, ..Pace::new(Duration::from_millis(1), 1) }
    }
}

/// A step as it stands in a trace.
pub type Step = crate::trace::Step<Frame, Timer>;

/// Sites of the protocol itself, in some configuration.
struct Sites<'a> {
    system: &'a System,
    list: Vec<(Tree<Controller>, Clock)>,
    links: Vec<VecDeque<(Clock, Frame)>>,
}

impl<'a> Sites<'a> {
    fn new(system: &'a System, from: &Configuration) -> Result<Self, String> {
        let shape = from.sites.len() == usize::from(system.cluster.sites)
            && from.links.len() == system.links.len();
        if !shape {
            return Err("the configuration is of another system".to_owned());
        }
        let place = |(me, &(colour, next)): (SiteId, &(u64, usize))| {
            let fresh = Tree::<Controller>::new(me, &system.cluster);
            let site = fresh.left_with(system.colours, colour, next);
            let site = site.ok_or_else(|| format!("{me} has no such colour or channel"))?;
            Ok((site, Clock::default()))
        };
        let sites: Result<Vec<_>, String> =
            system.cluster.all().zip(&from.sites).map(place).collect();
        let sites = sites?;
        let stale = |colours: &VecDeque<u64>| {
            let frames = colours.iter().map(|&colour| sites[0].0.stale(colour));
            frames.map(|frame| (Clock::default(), frame)).collect()
        };
        let links = from.links.iter().map(stale).collect();
        Ok(Self { system, list: sites, links })
    }

    fn take(&mut self, number: u64, event: Event) -> Result<Step, String> {
        let (site, input) = match event {
            Event::TimesOut if self.links.iter().all(VecDeque::is_empty) => {
                (SiteId(0), Input::Fire { timer: Timer::Beat })
            }
            Event::TimesOut => return Err("the timeout comes when nothing is on a link".to_owned()),
            Event::Arrives(link) => {
                let (from, to) = *self.system.links.get(link).ok_or("there is no such link")?;
                let next = self.links[link].pop_front();
                let (clock, message) = next.ok_or("nothing is on that link")?;
                (to, Input::Deliver { from, clock, message })
            }
        };
        let (protocol, clock) = &mut self.list[site.index()];
        let mut out = Effects::default();
        step(protocol, clock, input.clone(), &mut out).map_err(|fault| fault.to_string())?;
        for effect in out.as_slice() {
            if let Effect::Send { to, clock, message, .. } = effect {
                let link = self.system.link(site, *to);
                self.links[link].push_back((*clock, message.clone()));
            }
        }
        Ok(Step::new(number, None, site, input, out.drain().collect()))
    }

    fn configuration(&self) -> Configuration {
        let colour = |(_, frame): &(Clock, Frame)| match frame.items.first() {
            Some(Item::Control(control)) => control.colour,
            Some(Item::Token(_) | Item::Wake | Item::Want { .. }) | None => u64::MAX,
        };
        Configuration {
            sites: self.list.iter().map(|(site, _)| site.stance()).collect(),
            links: self.links.iter().map(|link| link.iter().map(colour).collect()).collect(),
        }
    }
}

/// The most sites of a cluster whose runs are taken again.
const MOST_SITES: u16 = 64;

/// Takes a run with the protocol itself, and judges it: its steps, or what is wrong with it.
///
/// The loop ends where it began, up to turning the colours, and what can always happen in it does.
pub fn steps(cluster: &Cluster, start: &Start) -> Result<Vec<Step>, String> {
    if cluster.sites > MOST_SITES {
        return Err(format!("a run from any configuration has at most {MOST_SITES} sites"));
    }
    let system = System::shaped(cluster, start.colours, 0);
    let mut sites = Sites::new(&system, &start.from)?;
    let mut all = Vec::new();
    let mut turn: Option<(Configuration, Vec<Event>)> = None;
    for &event in &start.events {
        let before = sites.configuration();
        let due = System::events(&before);
        if all.len() == start.prefix {
            turn = Some((before, due.clone()));
        }
        all.push(sites.take(all.len() as u64 + 1, event)?);
        if let Some((_, left_out)) = &mut turn {
            left_out.retain(|one| *one != event && due.contains(one));
        }
    }
    let (began, left_out) = turn.ok_or("a run without end has a loop")?;
    if system.turned(sites.configuration()) != system.turned(began) {
        return Err("the loop does not lead back to where it began".to_owned());
    }
    match left_out.first() {
        Some(event) => Err(format!("the loop is not fair: it always leaves out {event:?}")),
        None => Ok(all),
    }
}

/// The steps of a run, compared with those that were written down.
pub fn replay(
    cluster: &Cluster,
    start: &Start,
    written: impl Iterator<Item = Result<Step, String>>,
    show: &mut dyn FnMut(String),
) -> Result<u64, String> {
    let all = steps(cluster, start).map_err(|problem| format!("line 1: {problem}"))?;
    let mut count = 0;
    for (step, number) in written.zip(2..) {
        let step = step.map_err(|problem| format!("line {number}: {problem}"))?;
        if all.get(number - 2) != Some(&step) {
            return Err(format!("line {number} is not a step of the run in line 1"));
        }
        show(step.text());
        count += 1;
    }
    if count < all.len() as u64 {
        return Err("the trace ends before the loop has turned once".to_owned());
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use kofm_core::topology::{Graph, Topology};

    use super::*;

    fn path(sites: u16) -> Cluster {
        let edges = (1..sites).map(|site| (SiteId(site - 1), SiteId(site))).collect();
        let topology = Topology::Graph(Graph::new(sites, edges).expect("a path"));
        Cluster { topology, ..Cluster::new(sites, 1) }
    }

    /// Every step of every configuration to begin with is that of the protocol.
    fn agree(system: &System, every: u64) -> u64 {
        let mut compared = 0;
        let starts = u64::try_from(system.starts()).expect("small");
        for number in (0..starts).step_by(usize::try_from(every).expect("small")) {
            let from = system.start(number);
            assert_eq!(system.unpacked(system.key(&from)), from);
            for event in System::events(&from) {
                let mut sites = Sites::new(system, &from).expect("it fits");
                sites.take(1, event).expect("it can happen");
                assert_eq!(sites.configuration(), system.after(&from, event), "{from:?} {event:?}");
                compared += 1;
            }
        }
        compared
    }

    #[test]
    fn the_model_takes_the_steps_of_the_protocol() {
        let two = System::new(&Cluster::new(2, 1), 4, 1).expect("small");
        assert_eq!(agree(&two, 1), 164);
        let deep = System::new(&Cluster::new(2, 1), 6, 2).expect("small");
        assert!(agree(&deep, 7) > 1_000);
        let star = System::new(&Cluster::new(3, 1), 8, 1).expect("small");
        let line = System::new(&path(3), 8, 1).expect("small");
        assert!(agree(&star, 997) > 1_000 && agree(&line, 997) > 1_000);
    }

    fn explored(cluster: &Cluster, colours: u64, stale: u32) -> super::super::Found {
        System::new(cluster, colours, stale).expect("small").explore(&mut |_| {})
    }

    #[test]
    fn with_the_papers_colours_every_run_comes_to_one_controller() {
        for stale in 1..=2 {
            let colours = System::papers_colours(2, stale);
            let found = explored(&Cluster::new(2, 1), colours, stale);
            assert_eq!(found.lasso, None, "{stale}");
            assert!(found.states >= found.starts && found.right > 0);
        }
        for cluster in [Cluster::new(3, 1), path(3)] {
            let found = explored(&cluster, System::papers_colours(3, 1), 1);
            assert_eq!((found.lasso, found.starts), (None, 839_808));
        }
    }

    #[test]
    fn with_more_controllers_than_colours_a_run_goes_round_for_ever() {
        let cluster = Cluster::new(2, 1);
        for (colours, stale) in [(2, 2), (3, 2), (5, 3)] {
            let found = explored(&cluster, colours, stale);
            let lasso = found.lasso.expect("one controller more than colours");
            let on_links: usize = lasso.from.links.iter().map(VecDeque::len).sum();
            assert_eq!(on_links as u64 % colours, 1, "{lasso:?}");
            let all = steps(&cluster, &lasso).expect("it goes round");
            assert_eq!(all.len(), lasso.events.len());
            // The judge refuses a loop that does not close.
            let mut short = lasso.clone();
            short.events.pop();
            assert!(steps(&cluster, &short).is_err());
        }
        // Half the paper's number is enough for two sites.
        for (colours, stale) in [(2, 1), (4, 2), (6, 3)] {
            assert_eq!(explored(&cluster, colours, stale).lasso, None, "{colours}");
        }
    }

    /// The paper's number for eight messages on a link is 18 for two sites.
    #[test]
    fn eighteen_colours_heal_from_eighteen_controllers_and_not_from_nineteen() {
        let cluster = Cluster::new(2, 1);
        let system = System::shaped(&cluster, 18, 0);
        let there = system.link(SiteId(0), SiteId(1));
        let run = |count: u64| {
            let mut links = vec![VecDeque::new(); 2];
            links[there] = (0..count).map(|i| i % 18).collect();
            let from = Configuration { sites: vec![(0, 0), (17, 0)], links };
            // There and back, until the colours are where they were.
            let turn = [Event::Arrives(there), Event::Arrives(1 - there)];
            let events = turn.into_iter().cycle().take(2 * 18).collect();
            steps(&cluster, &Start { colours: 18, from, prefix: 0, events })
        };
        assert_eq!(run(19).map(|steps| steps.len()), Ok(36));
        assert!(run(18).is_err());
    }
}
