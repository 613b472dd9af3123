//! The rates of a comparison as a picture: a group of bars for each cell.

use std::fmt::Write as _;

use super::report::Report;

const LEFT: f64 = 150.0;
const WIDTH: f64 = 420.0;
const BAR: f64 = 14.0;
const GAP: f64 = 26.0;

/// Bars relative to the floor, with the rates beside them.
pub(super) fn svg(report: &Report) -> String {
    let (mut body, mut y) = (String::new(), 10.0);
    for column in report.columns() {
        let (title, clients) = (column.0.title().replace('>', "&gt;"), column.1);
        y += GAP;
        let _ =
            writeln!(body, "<text x=\"10\" y=\"{y:.0}\" class=\"t\">{title}, C = {clients}</text>");
        for row in report.rows() {
            let Some(entry) = report.entry(row, column) else { continue };
            let (Some(rate), Some(part)) = (entry.per_second, entry.of_floor) else { continue };
            y += BAR + 3.0;
            let class = if row.title().starts_with("kofm x3") { "k" } else { "o" };
            let (width, name, top) = ((part * WIDTH).min(1.5 * WIDTH), row.title(), y - BAR + 3.0);
            let end = LEFT + width + 6.0;
            let _ = writeln!(
                body,
                "<text x=\"{:.0}\" y=\"{y:.0}\" class=\"n\">{name}</text>\n\
                 <rect x=\"{LEFT}\" y=\"{top:.0}\" width=\"{width:.1}\" height=\"{BAR}\" \
                 class=\"{class}\"/>\n<text x=\"{end:.0}\" y=\"{y:.0}\">{rate:.0}</text>",
                LEFT - 8.0
            );
        }
    }
    let (width, height) = (LEFT + 1.5 * WIDTH + 70.0, y + 20.0);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <style>.t{{font-weight:bold}}.n{{text-anchor:end}}.k{{fill:#1f6feb}}.o{{fill:#8b949e}}\
         text{{fill:#57606a}}</style>\n\
         <title>Pairs of acquire and release per second; bars relative to the floor</title>\n\
         {body}</svg>\n"
    )
}
