//! Draws the ring that goes round a tree, and one convergence: `docs/tree-ring.svg` and
//! `docs/tree-healing.svg`.
//!
//! `cargo run -p kofm-sim --example tree_picture [-- DIRECTORY]`

use std::collections::VecDeque;
use std::fmt::Write as _;

use kofm_core::protocols::tree::{Frame, Item, Tree};
use kofm_core::topology::Topology;
use kofm_core::{Clock, Cluster, Effect, Effects, Input, InputOf, Protocol, SiteId, step};
use kofm_sim::healing::Bare;
use kofm_sim::rng::Rng;

const SITES: u16 = 7;
const UNITS: u32 = 3;
/// Where the sites of a balanced tree of seven are drawn.
const PLACES: [(f64, f64); 7] = [
    (230.0, 70.0),
    (120.0, 145.0),
    (340.0, 145.0),
    (65.0, 225.0),
    (175.0, 225.0),
    (285.0, 225.0),
    (395.0, 225.0),
];
/// The order in which the ring visits them.
const TOUR: [usize; 12] = [0, 1, 3, 1, 4, 1, 0, 2, 5, 2, 6, 2];
const PANEL: (f64, f64) = (460.0, 310.0);

fn main() {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
    let docs = std::env::args().nth(1).unwrap_or_else(|| docs.to_owned());
    for (name, picture) in [("tree-ring", ring()), ("tree-healing", healing())] {
        let path = format!("{docs}/{name}.svg");
        std::fs::write(&path, picture).unwrap_or_else(|error| panic!("{path}: {error}"));
        println!("{path}");
    }
}

fn picture(width: f64, height: f64, label: &str, body: &str) -> String {
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"
  aria-label="{label}">
<style>
  .card {{ fill: #ffffff; }} .ink {{ fill: #1f2328; }} .soft {{ fill: #59636e; }}
  .link {{ stroke: #d1d9e0; stroke-width: 2; }}
  .site {{ fill: #ffffff; stroke: #1f2328; stroke-width: 1.5; }}
  .way {{ fill: none; stroke: #0969da; stroke-width: 1.6; }} .head {{ fill: #0969da; }}
  .good {{ fill: #ddf4ff; stroke: #0969da; }} .bad {{ fill: #ffebe9; stroke: #cf222e; }}
  @media (prefers-color-scheme: dark) {{
    .card {{ fill: #0d1117; }} .ink {{ fill: #f0f6fc; }} .soft {{ fill: #9198a1; }}
    .link {{ stroke: #3d444d; }} .site {{ fill: #0d1117; stroke: #f0f6fc; }}
    .way {{ stroke: #58a6ff; }} .head {{ fill: #58a6ff; }}
    .good {{ fill: #0c2d4a; stroke: #58a6ff; }} .bad {{ fill: #4a1418; stroke: #ff7b72; }}
  }}
  text {{ font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; text-anchor: middle; }}
  .title {{ font-weight: 600; font-size: 15px; }} .token {{ font-size: 10.5px; }}
</style>
<rect class="card" width="{width}" height="{height}" rx="10"/>
<defs><marker id="a" markerWidth="8" markerHeight="8" refX="6" refY="3" orient="auto">
  <path class="head" d="M0,0 L6,3 L0,6 z"/></marker></defs>
{body}</svg>
"#
    )
}

fn text(body: &mut String, class: &str, (x, y): (f64, f64), text: &str) {
    let _ = writeln!(body, r#"<text class="{class}" x="{x:.1}" y="{y:.1}">{text}</text>"#);
}

fn circle(body: &mut String, (x, y): (f64, f64), name: usize) {
    let _ = writeln!(body, r#"<circle class="site" cx="{x:.1}" cy="{y:.1}" r="14"/>"#);
    text(body, "ink", (x, y + 4.5), &name.to_string());
}

/// An arrow between two circles, moved to its right by `aside`.
fn arrow(body: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64), aside: f64) {
    let (dx, dy) = (x2 - x1, y2 - y1);
    let length = dx.hypot(dy);
    let (nx, ny) = (-dy / length * aside, dx / length * aside);
    let (ux, uy) = (dx / length * 19.0, dy / length * 19.0);
    let _ = writeln!(
        body,
        r#"<path class="way" marker-end="url(#a)" d="M{:.1},{:.1} L{:.1},{:.1}"/>"#,
        x1 + ux + nx,
        y1 + uy + ny,
        x2 - ux + nx,
        y2 - uy + ny
    );
}

fn edges() -> impl Iterator<Item = (usize, usize)> {
    (1..usize::from(SITES)).map(|site| ((site - 1) / 2, site))
}

fn links(body: &mut String) {
    for (a, b) in edges() {
        let ((x1, y1), (x2, y2)) = (PLACES[a], PLACES[b]);
        let _ = writeln!(body, r#"<line class="link" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>"#);
    }
}

/// The walk along the tree, and the same as a ring.
fn ring() -> String {
    let mut body = String::new();
    text(&mut body, "ink title", (230.0, 30.0), "A tree of seven sites");
    text(&mut body, "ink title", (640.0, 30.0), "The ring that goes round it");
    links(&mut body);
    let around = |at: usize| {
        let angle = std::f64::consts::TAU * at as f64 / TOUR.len() as f64;
        (640.0 + 105.0 * angle.sin(), 170.0 - 105.0 * angle.cos())
    };
    for at in 0..TOUR.len() {
        let next = (at + 1) % TOUR.len();
        arrow(&mut body, PLACES[TOUR[at]], PLACES[TOUR[next]], 7.0);
        arrow(&mut body, around(at), around(next), 0.0);
    }
    for (site, &place) in PLACES.iter().enumerate() {
        circle(&mut body, place, site);
    }
    for (at, &site) in TOUR.iter().enumerate() {
        circle(&mut body, around(at), site);
    }
    let caption =
        "Each link is walked once in each direction. A site comes as often as it has links.";
    text(&mut body, "soft", (430.0, 315.0), caption);
    picture(860.0, 335.0, "The walk round a tree of seven sites, as a ring", &body)
}

/// A cluster whose messages are delivered in turn, link after link.
struct Stage {
    sites: Vec<(Tree<Bare>, Clock)>,
    links: Vec<(SiteId, SiteId, VecDeque<Frame>)>,
    /// A panel for the start, and one for each time that the root has counted.
    panels: Vec<String>,
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
        Self { sites, links, panels: Vec::new() }
    }

    fn take(&mut self, site: SiteId, input: InputOf<Tree<Bare>>) {
        let (before, counts) = (self.colour(), self.counts());
        let (protocol, clock) = &mut self.sites[site.index()];
        let mut out = Effects::default();
        step(protocol, clock, input, &mut out).expect("garbage is understood");
        let mut purged = Vec::new();
        for effect in out.drain() {
            if let Effect::Send { to, message, .. } = effect {
                for item in &message.items {
                    if let Item::Control(control) = item {
                        purged = (0..UNITS + 2).filter(|&it| control.purge.has(it)).collect();
                    }
                }
                let link = self.links.iter_mut().find(|link| (link.0, link.1) == (site, to));
                link.expect("neighbours only").2.push_back(message);
            }
        }
        if self.colour() != before {
            let now = self.counts();
            let made = (0..UNITS + 2).filter(|&it| now[it as usize] > counts[it as usize]);
            let mut text = Vec::new();
            for (word, list) in [("makes", made.collect()), ("purges", purged)] {
                let list: Vec<String> = list.into_iter().map(name).collect();
                if !list.is_empty() {
                    text.push(format!("{word} {}", list.join(", ")));
                }
            }
            if text.is_empty() {
                text.push("finds nothing wrong".to_owned());
            }
            let title = format!("Count {}: {}", self.panels.len(), text.join("; "));
            self.draw(&title);
        }
    }

    /// The circulation that the root is in.
    fn colour(&self) -> u64 {
        self.sites[0].0.census().circulation
    }

    /// A message of every link.
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

    fn is_right(&self) -> bool {
        self.counts().iter().all(|&count| count == 1)
    }

    /// Adds a panel: who has which tokens, and what is on which link.
    fn draw(&mut self, title: &str) {
        let counts = self.counts();
        let number = self.panels.len();
        let (x, y) = ((number % 2) as f64 * PANEL.0, (number / 2) as f64 * PANEL.1);
        let mut body = format!("<g transform=\"translate({x},{y})\">\n");
        text(&mut body, "ink title", (PANEL.0 / 2.0, 28.0), title);
        links(&mut body);
        for (a, b) in edges() {
            let mut tokens = Vec::new();
            for (from, to, frames) in &self.links {
                let sign = match (from.index(), to.index()) {
                    ends if ends == (a, b) => "↓",
                    ends if ends == (b, a) => "↑",
                    _ => continue,
                };
                let flying = frames.iter().flat_map(Tree::<Bare>::tokens_in);
                tokens.extend(flying.map(|token| (token, sign)));
            }
            let ((x1, y1), (x2, y2)) = (PLACES[a], PLACES[b]);
            let middle = (f64::midpoint(x1, x2), f64::midpoint(y1, y2));
            // On the outer side of the link.
            let side = if x2 < x1 { -1.0 } else { 1.0 };
            pills(&mut body, &tokens, &counts, middle, side, 12.0);
        }
        for (site, &place) in PLACES.iter().enumerate() {
            circle(&mut body, place, site);
            let tokens = self.sites[site].0.census().tokens;
            let tokens: Vec<_> = tokens.into_iter().map(|token| (token, "")).collect();
            match site {
                1 => pills(&mut body, &tokens, &counts, place, -1.0, 20.0),
                0 | 2 => pills(&mut body, &tokens, &counts, place, 1.0, 20.0),
                _ => {
                    let below = (place.0, place.1 + 18.0 + 8.5 * tokens.len().div_ceil(2) as f64);
                    pills(&mut body, &tokens, &counts, below, 0.0, 0.0);
                }
            }
        }
        let wrong = |(token, count): (u32, &u32)| {
            (*count != 1).then(|| format!("{} {count}×", name(token)))
        };
        let wrong: Vec<String> = (0..).zip(&counts).filter_map(wrong).collect();
        let caption =
            if wrong.is_empty() { "every token once".to_owned() } else { wrong.join(", ") };
        text(&mut body, "soft", (PANEL.0 / 2.0, PANEL.1 - 12.0), &caption);
        body.push_str("</g>\n");
        self.panels.push(body);
    }
}

fn name(token: u32) -> String {
    match token {
        UNITS => "push".to_owned(),
        token if token > UNITS => "prio".to_owned(),
        unit => format!("u{unit}"),
    }
}

/// Tokens, two in a row, beside or below a place.
fn pills(
    body: &mut String,
    tokens: &[(u32, &str)],
    counts: &[u32],
    (x, y): (f64, f64),
    side: f64,
    gap: f64,
) {
    const SIZE: (f64, f64) = (40.0, 15.0);
    let rows = tokens.len().div_ceil(2) as f64;
    for (row, pair) in (0i32..).zip(tokens.chunks(2)) {
        let width = pair.len() as f64 * SIZE.0;
        let left = x + side * (gap + width / 2.0) - width / 2.0;
        let top = y + (f64::from(row) - rows / 2.0) * (SIZE.1 + 2.0);
        for (place, &(token, sign)) in (0i32..).zip(pair) {
            let left = left + f64::from(place) * SIZE.0;
            let class = if counts[token as usize] > 1 { "bad" } else { "good" };
            let _ = writeln!(
                body,
                r#"<rect class="{class}" x="{:.1}" y="{top:.1}" width="{}" height="{}" rx="7"/>"#,
                left + 1.0,
                SIZE.0 - 2.0,
                SIZE.1
            );
            let at = (left + SIZE.0 / 2.0, top + 11.0);
            text(body, "ink token", at, &format!("{}{sign}", name(token)));
        }
    }
}

/// One convergence, a panel for each circulation that the root completes.
fn healing() -> String {
    let mut stage = Stage::garbled();
    stage.draw("Garbage in all memories and on all links");
    for round in 0..400 {
        stage.round();
        if round % 6 == 0 {
            stage.beat();
        }
        // It has to be right when the root has counted, and to be found right.
        if stage.panels.len() > 2 && stage.is_right() && stage.panels.len().is_multiple_of(2) {
            break;
        }
    }
    assert!(stage.is_right(), "it heals");
    let rows = stage.panels.len().div_ceil(2) as f64;
    let label =
        "Seven sites heal from garbage: where every token is each time the root has counted";
    picture(2.0 * PANEL.0, rows * PANEL.1, label, &stage.panels.concat())
}
