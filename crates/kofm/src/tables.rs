//! What a site says, as tables and words for people, or as JSON.

use std::collections::BTreeMap;

use kofm_net::api::{self, Want};
use serde::Serialize;

use crate::exit::{Exit, SYSTEM};
use crate::output::say_line;

pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Exit> {
    say_line(&json(value)?);
    Ok(())
}

pub(crate) fn json(value: &impl Serialize) -> Result<String, Exit> {
    serde_json::to_string_pretty(value).map_err(|error| Exit::new(SYSTEM, error.to_string()))
}

pub(crate) fn pools_table(pools: &[api::Pool]) -> String {
    let rows = pools.iter().map(|it| {
        vec![
            it.name.clone(),
            it.units.to_string(),
            it.held.to_string(),
            it.free.to_string(),
            it.quarantined.to_string(),
            it.waiting.to_string(),
            it.protocol.clone(),
        ]
    });
    table(&["POOL", "UNITS", "HELD", "FREE", "QUARANTINED", "WAITING", "PROTOCOL"], rows)
}

/// What people have quarantined, after an empty line; nothing where there is nothing.
pub(crate) fn quarantine_table(pools: &[api::Pool]) -> String {
    let rows = pools.iter().flat_map(|pool| {
        pool.quarantine.iter().map(|it| {
            let held = if it.held { "when it is released" } else { "yes" };
            vec![pool.name.clone(), it.unit.clone(), held.to_owned(), it.reason.clone()]
        })
    });
    let text = table(&["POOL", "UNIT", "QUARANTINED", "REASON"], rows);
    if text.lines().count() > 1 { format!("\n{text}") } else { String::new() }
}

pub(crate) fn leases_table(leases: &[api::Lease]) -> String {
    let rows = leases.iter().map(|it| {
        let state = if it.state == "live" { String::new() } else { format!(" {}", it.state) };
        vec![
            format!("{}{state}", it.name),
            show_units(&it.units),
            it.owner.clone().unwrap_or_default(),
            show_ms(it.held_ms),
            show_ms(it.expires_in_ms),
            it.site.clone(),
            it.reason.clone().unwrap_or_default(),
        ]
    });
    table(&["LEASE", "UNITS", "OWNER", "HELD", "ENDS IN", "SITE", "REASON"], rows)
}

pub(crate) fn queue_table(queue: &[api::Request]) -> String {
    let rows = queue.iter().map(|it| {
        vec![
            it.position.unwrap_or(0).to_string(),
            it.id.clone(),
            show_want(&it.want),
            it.owner.clone().unwrap_or_default(),
            show_ms(it.waited_ms),
            it.site.clone(),
            it.reason.clone().unwrap_or_default(),
            show_blockers(&it.blocked_by),
        ]
    });
    table(&["PLACE", "REQUEST", "WANT", "OWNER", "WAITED", "SITE", "REASON", "WAITS FOR"], rows)
}

/// The first of those in the way: `kofm explain` has them all.
pub(crate) fn show_blockers(list: &[api::Blocker]) -> String {
    let Some(first) = list.first() else { return String::new() };
    let owner = first.owner.as_deref().unwrap_or("an unknown owner");
    let reason = first.reason.as_ref().map_or(String::new(), |text| format!(" ({text})"));
    let more = if list.len() > 1 { ", …" } else { "" };
    format!("{owner}{reason}{more}")
}

pub(crate) fn show_blocker(blocker: &api::Blocker) -> String {
    let (owner, units, pool) =
        (blocker.owner.as_deref().unwrap_or("an unknown owner"), blocker.units, &blocker.pool);
    let reason = blocker.reason.as_ref().map_or(String::new(), |text| format!(" ({text})"));
    let amount = format!("{units} {} of {pool}", if units == 1 { "unit" } else { "units" });
    match blocker.state.as_str() {
        "held" => {
            let ends = match (blocker.expires_in_ms, &blocker.lease) {
                // Kept for an operator to look at, by `on_expiry` of its pool.
                (Some(0), Some(lease)) if owner != "kofm" => {
                    format!("; the lease has expired; `kofm release {lease}` releases it")
                }
                (Some(0) | None, _) => String::new(),
                (Some(ms), _) => format!("; the lease expires in {} unless renewed", show_ms(ms)),
            };
            format!("{owner}{reason} holds {amount} at {}{ends}", blocker.site)
        }
        "queued" => format!("{owner}{reason} is ahead and wants {amount} at {}", blocker.site),
        "unanswered" => format!("site {} has not answered about {pool}", blocker.site),
        _ => format!("an earlier claim of site {} counts {amount}", blocker.site),
    }
}

pub(crate) fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let head: Vec<String> = head.iter().map(ToString::to_string).collect();
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    let mut widths = vec![0; rows[0].len()];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}"));
        out.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        out.push('\n');
    }
    out
}

pub(crate) fn show_units(units: &BTreeMap<String, Vec<String>>) -> String {
    let parts = units.iter().map(|(pool, list)| format!("{pool} {}", list.join(",")));
    parts.collect::<Vec<_>>().join("; ")
}

pub(crate) fn show_want(want: &Want) -> String {
    let parts = want.iter().map(|(pool, units)| format!("{pool}:{units}"));
    parts.collect::<Vec<_>>().join(" ")
}

pub(crate) fn show_ms(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms}ms"),
        1000..60_000 => format!("{}.{}s", ms / 1000, ms % 1000 / 100),
        60_000..3_600_000 => format!("{}m{:02}s", ms / 60_000, ms % 60_000 / 1000),
        _ => format!("{}h{:02}m", ms / 3_600_000, ms % 3_600_000 / 60_000),
    }
}

/// UTC, as `12:34:56`: history is short.
pub(crate) fn show_time(at_ms: u64) -> String {
    let secs = at_ms / 1000 % 86_400;
    format!("{:02}:{:02}:{:02}Z", secs / 3600, secs % 3600 / 60, secs % 60)
}

/// UTC, as `2026-01-31 12:34:56`.
pub(crate) fn show_date(at_ms: u64) -> String {
    let (days, secs) = (at_ms / 86_400_000, at_ms / 1000 % 86_400);
    // "civil_from_days" by Howard Hinnant: years begin in March.
    let shifted = days + 719_468;
    let (era, in_era) = (shifted / 146_097, shifted % 146_097);
    let year = (in_era - in_era / 1460 + in_era / 36_524 - in_era / 146_096) / 365;
    let in_year = in_era - (365 * year + year / 4 - year / 100);
    let place = (5 * in_year + 2) / 153;
    let day = in_year - (153 * place + 2) / 5 + 1;
    let month = if place < 10 { place + 3 } else { place - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (secs / 3600, secs % 3600 / 60, secs % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_shown() {
        assert_eq!(show_date(0), "1970-01-01 00:00:00");
        assert_eq!(show_date(951_786_123_000), "2000-02-29 01:02:03");
        assert_eq!(show_date(1_794_960_000_000), "2026-11-18 00:00:00");
    }
}
