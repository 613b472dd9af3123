//! Draws the ring that goes round a tree, and one convergence: `docs/tree-ring.svg` and
//! `docs/tree-healing.svg`.
//!
//! `cargo run -p kofm-sim --example tree_picture`

use std::collections::VecDeque;
use std::fmt::Write as _;

use kofm_core::protocols::tree::{Frame, Tree};
use kofm_core::topology::Topology;
use kofm_core::{Clock, Cluster, Effect, Effects, Input, Protocol, SiteId, step};
use kofm_sim::healing::Bare;
use kofm_sim::rng::Rng;

const SITES: u16 = 7;
const UNITS: u32 = 3;
/// Where the sites of a balanced tree of seven are drawn.
const PLACES: [(f64, f64); 7] = [
    (160.0, 40.0),
    (85.0, 110.0),
    (235.0, 110.0),
    (45.0, 180.0),
    (125.0, 180.0),
    (195.0, 180.0),
    (275.0, 180.0),
];
const STYLE: &str = "<style>text{font:13px sans-serif;text-anchor:middle;fill:#222}\
    .small{font-size:11px}.bad{fill:#b00020;font-weight:bold}.left{text-anchor:start}\
    line{stroke:#aaa;stroke-width:2}circle{fill:#fff;stroke:#222;stroke-width:1.5}\
    .ring{fill:none;stroke:#1f6feb;stroke-width:1.6}.head{fill:#1f6feb}</style>";

fn main() {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/");
    std::fs::write(format!("{docs}tree-ring.svg"), ring()).expect("docs can be written");
    std::fs::write(format!("{docs}tree-healing.svg"), healing()).expect("docs can be written");
}

fn edges() -> impl Iterator<Item = (usize, usize)> {
    (1..usize::from(SITES)).map(|site| ((site - 1) / 2, site))
}

fn picture(width: f64, height: f64, body: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\">\n{STYLE}\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n{body}</svg>\n"
    )
}

/// The walk that visits every link twice: down on one side, up on the other.
fn ring() -> String {
    let mut body = String::from(
        "<defs><marker id=\"a\" markerWidth=\"8\" markerHeight=\"8\" refX=\"6\" refY=\"3\" \
         orient=\"auto\"><path class=\"head\" d=\"M0,0 L6,3 L0,6 z\"/></marker></defs>\n",
    );
    for (a, b) in edges() {
        let ((x1, y1), (x2, y2)) = (PLACES[a], PLACES[b]);
        let _ = writeln!(body, "<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\"/>");
        for (from, to) in [(a, b), (b, a)] {
            let ((x1, y1), (x2, y2)) = (PLACES[from], PLACES[to]);
            let (dx, dy) = (x2 - x1, y2 - y1);
            let length = dx.hypot(dy);
            // Keeps to the right, and clear of the circles.
            let (nx, ny) = (-dy / length * 7.0, dx / length * 7.0);
            let (ux, uy) = (dx / length * 20.0, dy / length * 20.0);
            let _ = writeln!(
                body,
                "<path class=\"ring\" marker-end=\"url(#a)\" d=\"M{:.1},{:.1} L{:.1},{:.1}\"/>",
                x1 + ux + nx,
                y1 + uy + ny,
                x2 - ux + nx,
                y2 - uy + ny
            );
        }
    }
    for (site, (x, y)) in PLACES.iter().enumerate() {
        let _ = writeln!(
            body,
            "<circle cx=\"{x}\" cy=\"{y}\" r=\"15\"/><text x=\"{x}\" y=\"{}\">{site}</text>",
            y + 4.0
        );
    }
    body.push_str(
        "<text x=\"160\" y=\"225\">0 1 3 1 4 1 0 2 5 2 6 2, and again: one ring</text>\n",
    );
    picture(320.0, 240.0, &body)
}

/// A cluster whose messages are delivered in turn, link after link.
struct Stage {
    sites: Vec<(Tree<Bare>, Clock)>,
    links: Vec<(SiteId, SiteId, VecDeque<Frame>)>,
}

impl Stage {
    fn garbled() -> Self {
        let cluster = Cluster { topology: Topology::Tree, ..Cluster::new(SITES, UNITS) };
        let mut rng = Rng::new(5);
        let mut draw = || rng.bits();
        let mut sites = Vec::new();
        let mut links = Vec::new();
        for me in cluster.all() {
            let mut site = Tree::<Bare>::new(me, &cluster);
            site.scramble(&mut draw);
            for to in cluster.topology.neighbours(me, SITES) {
                let frame = site.garbage(to, &mut draw);
                links.push((me, to, frame.into_iter().collect()));
            }
            sites.push((site, Clock::default()));
        }
        Self { sites, links }
    }

    fn take(&mut self, site: SiteId, input: kofm_core::InputOf<Tree<Bare>>) {
        let (protocol, clock) = &mut self.sites[site.index()];
        let mut out = Effects::default();
        step(protocol, clock, input, &mut out).expect("garbage is understood");
        for effect in out.drain() {
            if let Effect::Send { to, message, .. } = effect {
                let link = self.links.iter_mut().find(|link| (link.0, link.1) == (site, to));
                link.expect("neighbours only").2.push_back(message);
            }
        }
    }

    /// A message of every link, and a beat of everybody.
    fn round(&mut self) {
        for i in 0..self.links.len() {
            let (from, to) = (self.links[i].0, self.links[i].1);
            if let Some(message) = self.links[i].2.pop_front() {
                self.take(to, Input::Deliver { from, clock: Clock::default(), message });
            }
        }
    }

    fn beat(&mut self) {
        for site in (0..SITES).map(SiteId) {
            let timer = self.sites[site.index()].0.alarm().expect("it has a beat");
            self.take(site, Input::Fire { timer });
        }
    }

    fn counts(&self) -> Vec<u32> {
        let mut counts = vec![0; UNITS as usize + 2];
        let here = self.sites.iter().flat_map(|(site, _)| site.census().tokens);
        let flying = self.links.iter().flat_map(|link| &link.2).flat_map(Tree::<Bare>::tokens_in);
        here.chain(flying).for_each(|token| counts[token as usize] += 1);
        counts
    }
}

fn name(token: u32) -> String {
    match token {
        UNITS => "push".to_owned(),
        token if token > UNITS => "prio".to_owned(),
        unit => format!("u{unit}"),
    }
}

/// One panel: who has which tokens, and what is on which link.
fn panel(stage: &Stage, title: &str, x: f64, y: f64) -> String {
    let counts = stage.counts();
    let list = |tokens: Vec<u32>| {
        let span = |token: &u32| {
            let class = if counts[*token as usize] > 1 { " class=\"bad\"" } else { "" };
            format!("<tspan{class}>{} </tspan>", name(*token))
        };
        tokens.iter().map(span).collect::<String>()
    };
    let mut body = format!("<g transform=\"translate({x},{y})\">\n");
    let _ = writeln!(
        body,
        "<text x=\"160\" y=\"14\"><tspan font-weight=\"bold\">{title}</tspan></text>"
    );
    for (a, b) in edges() {
        let ((x1, y1), (x2, y2)) = (PLACES[a], PLACES[b]);
        let _ = writeln!(body, "<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\"/>");
        let on = |link: &&(SiteId, SiteId, VecDeque<Frame>)| {
            let ends = (link.0.index(), link.1.index());
            ends == (a, b) || ends == (b, a)
        };
        let flying = stage.links.iter().filter(on).flat_map(|link| &link.2);
        let flying: Vec<u32> = flying.flat_map(Tree::<Bare>::tokens_in).collect();
        let (mx, my) = (f64::midpoint(x1, x2), f64::midpoint(y1, y2));
        let _ =
            writeln!(body, "<text class=\"small\" x=\"{mx}\" y=\"{my}\">{}</text>", list(flying));
    }
    for (site, (x, y)) in PLACES.iter().enumerate() {
        let tokens = stage.sites[site].0.census().tokens;
        let _ = writeln!(
            body,
            "<circle cx=\"{x}\" cy=\"{y}\" r=\"12\"/><text x=\"{x}\" y=\"{}\">{site}</text>\
             <text class=\"small\" x=\"{x}\" y=\"{}\">{}</text>",
            y + 4.0,
            y + 26.0,
            list(tokens)
        );
    }
    let wrong = |(token, count): (usize, &u32)| {
        let token = u32::try_from(token).unwrap_or(0);
        (*count != 1).then(|| format!("{} × {count}", name(token)))
    };
    let wrong: Vec<String> = counts.iter().enumerate().filter_map(wrong).collect();
    let text = if wrong.is_empty() { "every token once".to_owned() } else { wrong.join(", ") };
    let _ = writeln!(body, "<text x=\"160\" y=\"228\">{text}</text>\n</g>");
    body
}

/// One convergence, a panel for each circulation that the root completes.
fn healing() -> String {
    let mut stage = Stage::garbled();
    let mut panels =
        vec![("garbage everywhere".to_owned(), panel_of(&stage, 0, "garbage everywhere"))];
    let mut colour = stage.sites[0].0.census().circulation;
    let mut circulations = 0;
    for round in 0..400 {
        stage.round();
        if round % 6 == 0 {
            stage.beat();
        }
        let now = stage.sites[0].0.census().circulation;
        if now != colour {
            colour = now;
            circulations += 1;
            let title = format!("the root has counted {circulations}×");
            panels.push((title.clone(), panel_of(&stage, panels.len(), &title)));
            let right = stage.counts().iter().all(|&count| count == 1);
            if right && circulations > 1 {
                break;
            }
        }
    }
    let rows = panels.len().div_ceil(2);
    let body: String = panels.into_iter().map(|(_, body)| body).collect();
    picture(660.0, 250.0 * rows as f64, &body)
}

fn panel_of(stage: &Stage, number: usize, title: &str) -> String {
    let (column, row) = ((number % 2) as f64, (number / 2) as f64);
    panel(stage, title, 10.0 + 325.0 * column, 10.0 + 250.0 * row)
}
