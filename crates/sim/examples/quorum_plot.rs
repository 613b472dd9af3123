//! Draws `docs/quorum-messages.svg`: messages per grant against the number of sites, two units.
//!
//! ```text
//! cargo run --release -p kofm-sim --example quorum_plot
//! ```
//!
//! Every dot is a simulated run. Where `permission` would take too long, its line goes on by the
//! formula and is dashed.

use std::fmt::Write as _;
use std::path::Path;

use kofm_core::protocols::permission::Permission;
use kofm_core::protocols::quorum::Quorum;
use kofm_core::quorums::{Arbitration, Construction};
use kofm_core::{Cluster, PoolId, Protocol};
use kofm_sim::seeded::{Blind, Setup, run};
use kofm_sim::span::Span;

/// Units that the sites share.
const UNITS: u32 = 2;
const SITES: [u16; 13] = [10, 15, 20, 40, 70, 100, 200, 400, 700, 1_000, 2_000, 5_000, 10_000];
/// Above this, `permission` follows its formula.
const SIMULATED: u16 = 1_000;

/// A line of the chart.
struct Series {
    name: &'static str,
    note: String,
    class: &'static str,
    dots: Vec<(f64, f64)>,
    /// Points that were not simulated.
    formula: Vec<(f64, f64)>,
}

fn main() -> std::io::Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/quorum-messages.svg");
    std::fs::write(path, chart(&series()))
}

fn series() -> Vec<Series> {
    let (simulated, beyond) = SITES.split_at(SITES.partition_point(|&sites| sites <= SIMULATED));
    let asked = |&sites: &u16| (f64::from(sites), 2.0 * f64::from(sites - 1));
    let curve = |factor: f64| {
        let power = f64::from(UNITS) / f64::from(UNITS + 1);
        SITES.map(|sites| (f64::from(sites), factor * f64::from(sites).powf(power))).to_vec()
    };
    let line = |name, note: &str, class, dots, formula| Series {
        name,
        note: note.to_owned(),
        class,
        dots,
        formula,
    };
    let measure_all = |sites: &[u16], measure: fn(u16) -> f64| -> Vec<(f64, f64)> {
        sites.iter().map(|&sites| (f64::from(sites), measure(sites))).collect()
    };
    let permission =
        measure_all(simulated, |sites| measure::<Permission>(&Cluster::new(sites, UNITS)));
    let grid = measure_all(&SITES, |sites| {
        let said = Arbitration { construction: Some(Construction::Grid), ..Arbitration::default() };
        let arbitration = [(PoolId(0), said)].into();
        measure::<Quorum>(&Cluster { arbitration, ..Cluster::new(sites, UNITS) })
    });
    let chosen = measure_all(&SITES, |sites| measure::<Quorum>(&Cluster::new(sites, UNITS)));
    let onward = permission.last().copied().into_iter().chain(beyond.iter().map(asked)).collect();
    vec![
        line("permission", "dashed: by 2(N − 1)", "a", permission, onward),
        line("quorum, the paper’s grid", "", "b", grid, Vec::new()),
        line("quorum, sets as chosen", "", "c", chosen, Vec::new()),
        line("3 · N^(2/3)", "three for each member", "d", Vec::new(), curve(3.0)),
        line("N^(2/3)", "the bound on sets", "d", Vec::new(), curve(1.0)),
    ]
}

/// The mean over a run at a quarter of full load.
fn measure<P: Protocol>(cluster: &Cluster) -> f64 {
    let think = Span::Exponential(f64::from(cluster.sites) * 4.0 / f64::from(UNITS));
    let setup = Setup { requests: 1_000, think, ..Setup::new(cluster.clone()) };
    let report = run::<P>(&setup, &mut Blind);
    assert!(report.is_clean(), "{:?}", report.violations);
    report.messages_per_grant().mean
}

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 560.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 660.0;
const TOP: f64 = 84.0;
const BOTTOM: f64 = 490.0;
/// The ends of both axes, as powers of ten.
const X: (f64, f64) = (1.0, 4.0);
const Y: (f64, f64) = (0.5, 4.5);

fn place((x, y): (f64, f64)) -> (f64, f64) {
    let along = |value: f64, (low, high): (f64, f64)| (value.log10() - low) / (high - low);
    (LEFT + along(x, X) * (RIGHT - LEFT), BOTTOM - along(y, Y) * (BOTTOM - TOP))
}

/// Colours of the lines, of their dots and names. Plain rules: not every viewer knows variables.
fn colours(list: [(&str, &str); 4]) -> String {
    let rule = |(class, colour)| {
        format!(
            "  path.{class} {{ fill: none; stroke: {colour}; }} \
             circle.{class}, text.{class} {{ fill: {colour}; }}\n"
        )
    };
    list.map(rule).concat()
}

fn chart(series: &[Series]) -> String {
    let light = colours([("a", "#cf222e"), ("b", "#bc6c00"), ("c", "#0969da"), ("d", "#6e7781")]);
    let dark = colours([("a", "#ff7b72"), ("b", "#e3a03b"), ("c", "#58a6ff"), ("d", "#9198a1")]);
    let mut svg = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"
  aria-label="Messages per grant against the number of sites, both logarithmic, for two units">
<style>
  .card {{ fill: #ffffff; }} .ink {{ fill: #1f2328; }} .soft {{ fill: #59636e; }}
  .rule {{ stroke: #d1d9e0; }} .fine {{ stroke: #eef1f4; }}
{light}  @media (prefers-color-scheme: dark) {{
    .card {{ fill: #0d1117; }} .ink {{ fill: #f0f6fc; }} .soft {{ fill: #9198a1; }}
    .rule {{ stroke: #3d444d; }} .fine {{ stroke: #1c2128; }}
{dark}  }}
  text {{ font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; }}
  .title {{ font-size: 19px; font-weight: 600; }} .name {{ font-weight: 600; }}
  .line {{ stroke-width: 2.2; stroke-linejoin: round; }}
  .dash {{ stroke-dasharray: 6 5; }} .d.line {{ stroke-width: 1.3; stroke-dasharray: 2 4; }}
  .lead {{ opacity: .5; }}
</style>
<rect class="card" width="{WIDTH}" height="{HEIGHT}" rx="10"/>
<text class="ink title" x="{LEFT}" y="38">Messages per grant, {UNITS} units</text>
<text class="soft" x="{LEFT}" y="60">simulated at a quarter of full load, logarithmic axes</text>
"#
    );
    axes(&mut svg);
    for one in series {
        draw(&mut svg, one);
    }
    labels(&mut svg, series);
    svg.push_str("</svg>\n");
    svg
}

fn axes(svg: &mut String) {
    let say = |power: i32| match power {
        4 => "10,000".to_owned(),
        3 => "1,000".to_owned(),
        _ => format!("{}", 10f64.powi(power)),
    };
    for power in 1..=4 {
        for digit in 1..=9 {
            let value = 10f64.powi(power) * f64::from(digit);
            let class = if digit == 1 { "rule" } else { "fine" };
            let (x, y) = place((value, value));
            if value.log10() <= X.1 {
                let _ = writeln!(svg, r#"<path class="{class}" d="M{x:.1} {TOP}V{BOTTOM}"/>"#);
            }
            if value.log10() <= Y.1 {
                let _ = writeln!(svg, r#"<path class="{class}" d="M{LEFT} {y:.1}H{RIGHT}"/>"#);
            }
        }
        let (x, y) = place((10f64.powi(power), 10f64.powi(power)));
        let label = say(power);
        let _ = writeln!(
            svg,
            r#"<text class="soft" x="{x:.1}" y="{:.1}" text-anchor="middle">{label}</text>
<text class="soft" x="{:.1}" y="{:.1}" text-anchor="end">{label}</text>"#,
            BOTTOM + 22.0,
            LEFT - 10.0,
            y + 4.5
        );
    }
    let _ = writeln!(
        svg,
        r#"<path class="rule" d="M{LEFT} {BOTTOM}H{RIGHT}"/>
<text class="ink" x="{:.1}" y="{:.1}" text-anchor="middle">sites N</text>"#,
        LEFT.midpoint(RIGHT),
        BOTTOM + 46.0
    );
}

fn draw(svg: &mut String, one: &Series) {
    let class = one.class;
    for (points, dash) in [(&one.formula, " dash"), (&one.dots, "")] {
        let places = points.iter().map(|&point| place(point));
        let steps: Vec<String> = places.map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
        if !steps.is_empty() {
            let path = steps.join("L");
            let _ = writeln!(svg, r#"<path class="{class} line{dash}" d="M{path}"/>"#);
        }
    }
    for (x, y) in one.dots.iter().map(|&point| place(point)) {
        let _ = writeln!(svg, r#"<circle class="{class} dot" cx="{x:.1}" cy="{y:.1}" r="3.4"/>"#);
    }
}

/// Names at the ends of the lines, kept apart, with the last value.
fn labels(svg: &mut String, series: &[Series]) {
    const GAP: f64 = 42.0;
    let mut above = TOP - GAP;
    for one in series {
        let Some(&end) = one.formula.last().or_else(|| one.dots.last()) else { continue };
        let (x, y) = place(end);
        let at = y.max(above + GAP);
        above = at;
        let count = grouped(end.1);
        let note = if one.note.is_empty() { String::new() } else { format!(" · {}", one.note) };
        let _ = writeln!(
            svg,
            r#"<path class="{class} lead" d="M{:.1} {y:.1}L{:.1} {at:.1}"/>
<text class="{class} name" x="{:.1}" y="{:.1}">{}</text>
<text class="soft" x="{:.1}" y="{:.1}">{count}{note}</text>"#,
            x + 6.0,
            x + 18.0,
            x + 24.0,
            at - 1.0,
            one.name,
            x + 24.0,
            at + 16.0,
            class = one.class,
        );
    }
}

fn grouped(value: f64) -> String {
    let text = format!("{value:.0}");
    match text.len() {
        0..=3 => text,
        length => format!("{},{}", &text[..length - 3], &text[length - 3..]),
    }
}
