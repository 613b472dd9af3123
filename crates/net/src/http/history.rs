//! What happened, and what was used: `/v1/history` and `/v1/usage`.

use axum::Extension;
use axum::extract::State as Shared;
use serde::Deserialize;

use super::paging::{Asked as Page, encode, one_page, page_of};
use super::{Answer, App, Asked, json_body, listed, refuse_unknown, with_missing};
use crate::api::{By, Code, Error, Place, Selection};
use crate::gate::Caller;
use crate::site::wall_ms;
use kofm_site::duration;
use kofm_site::rules::Verb;

/// Events in an answer that is not paged.
const HISTORY: usize = 1000;
/// The time that a report is about if the query does not say.
const MONTH_MS: u64 = 30 * 24 * 3_600_000;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HistoryQuery {
    pool: Option<String>,
    owner: Option<String>,
    event: Option<String>,
    since: Option<String>,
    until: Option<String>,
    limit: Option<usize>,
    after: Option<String>,
}

/// The first page has the latest events. Each further one has those before it: within a page, as
/// in the whole list, the oldest comes first.
pub(super) async fn history(Shared(app): Shared<App>, Asked(query): Asked<HistoryQuery>) -> Answer {
    let page: Option<Page<Place>> = page_of(query.limit, query.after.as_deref())?;
    let now = wall_ms();
    let selection = Selection {
        since_ms: query.since.as_deref().map_or(Ok(0), |text| moment("since", text, now))?,
        until_ms: query.until.as_deref().map(|text| moment("until", text, now)).transpose()?,
        pool: query.pool.clone(),
        owner: query.owner,
        event: query.event,
    };
    let is_paged = page.is_some();
    let (limit, before) = page.map_or((HISTORY, None), |page| (page.limit, page.after));
    let more = usize::from(is_paged);
    let (mut list, missing) = app.site.history_before(selection, limit + more, before).await?;
    if let Some(pool) = &query.pool {
        refuse_unknown(&app.site, pool, &list).await?;
    }
    if !is_paged {
        return listed((list, missing));
    }
    let more = list.len() > limit;
    list.drain(..list.len().saturating_sub(limit));
    let next = list.first().filter(|_| more).map(|it| encode(&it.place()));
    one_page("history", &list, &missing, next)
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UsageQuery {
    #[serde(default)]
    by: By,
    since: Option<String>,
    pool: Option<String>,
}

/// Sums over the pools that the caller may read.
pub(super) async fn usage(
    Shared(app): Shared<App>,
    Extension(caller): Extension<Caller>,
    Asked(query): Asked<UsageQuery>,
) -> Answer {
    let now = wall_ms();
    let month = now.saturating_sub(MONTH_MS);
    let since = query.since.as_deref().map_or(Ok(month), |text| moment("since", text, now))?;
    if let Some(pool) = &query.pool {
        app.site.pool(pool).await?;
    }
    let readable = |name: &str| {
        query.pool.as_ref().is_none_or(|pool| pool == name) && caller.may(Verb::Read, name)
    };
    let (list, missing) = app.site.usage_since(query.by, since, readable).await?;
    with_missing(json_body(&list), &missing)
}

/// Reads a time: how long ago, or a date in UTC.
fn moment(name: &str, text: &str, now_ms: u64) -> Result<u64, Error> {
    if let Ok(ago) = duration::parse(text) {
        return Ok(now_ms.saturating_sub(u64::try_from(ago.as_millis()).unwrap_or(u64::MAX)));
    }
    date(text).ok_or_else(|| {
        let text = format!(
            "{name}: `{text}` must be a duration, as 30d, or a date, as 2026-01-31 or \
             2026-01-31T12:00:00Z"
        );
        Error::new(Code::Malformed, text)
    })
}

/// `2026-01-31` or `2026-01-31T12:00:00Z`, in milliseconds of Unix time.
fn date(text: &str) -> Option<u64> {
    let (day, time) = text.split_once('T').map_or((text, None), |(day, time)| (day, Some(time)));
    let parts = |text: &str, mark: char| -> Option<[u64; 3]> {
        let list: Option<Vec<u64>> = text
            .split(mark)
            .map(|part| part.parse().ok().filter(|_| part.bytes().all(|it| it.is_ascii_digit())))
            .collect();
        list?.try_into().ok()
    };
    let [year, month, day] = parts(day, '-')?;
    let [hour, minute, second] = match time {
        Some(time) => parts(time.strip_suffix('Z')?, ':')?,
        None => [0; 3],
    };
    let good = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    if !good {
        return None;
    }
    // Days since 1970-01-01, counting years from March: "days_from_civil" by Howard Hinnant.
    let (shifted, place) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let in_year = (153 * place + 2) / 5 + day - 1;
    let days = shifted * 365 + shifted / 4 - shifted / 100 + shifted / 400 + in_year;
    let days = days.checked_sub(719_468)?;
    Some((days * 86_400 + hour * 3600 + minute * 60 + second) * 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        assert_eq!(date("1970-01-01"), Some(0));
        assert_eq!(date("2000-02-29T01:02:03Z"), Some(951_786_123_000));
        assert_eq!(date("2026-11-18"), Some(1_794_960_000_000));
        assert_eq!(moment("since", "1h", 4_000_000).unwrap(), 400_000);
        assert_eq!(moment("since", "30d", 4_000_000).unwrap(), 0);
        for wrong in ["", "x", "2026", "2026-13-01", "2026-01-32", "2026-1-+1", "1969-12-31"] {
            assert!(moment("since", wrong, 0).is_err(), "{wrong}");
        }
        for wrong in ["2026-01-01T", "2026-01-01T1:2", "2026-01-01T25:00:00Z", "2026-01-01T1:2:3"] {
            assert!(moment("since", wrong, 0).is_err(), "{wrong}");
        }
    }
}
