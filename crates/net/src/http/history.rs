//! What happened, and what was used: `/v1/history` and `/v1/usage`.

use axum::Extension;
use axum::extract::State as Shared;
use axum::http::Uri;
use schemars::JsonSchema;
use serde::Deserialize;

use super::paging::{Asked as Page, encode, linked, one_page, page_of};
use super::{Answer, App, Asked, json_body, refuse_unknown, with_missing};
use crate::api::{self, By, Code, Error, Place, Selection};
use crate::gate::Caller;
use crate::site::wall_ms;
use kofm_site::rules::Verb;

/// Events in an answer that is not paged.
const HISTORY: usize = 1000;
/// The time that a report is about if the query does not say.
const MONTH_MS: u64 = 30 * 24 * 3_600_000;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct HistoryQuery {
    /// Only events of this pool.
    pool: Option<String>,
    /// Only events of this owner's requests.
    owner: Option<String>,
    /// Only events of this kind, as `granted`.
    event: Option<String>,
    /// Only events since then: a duration, as `30d`, or a date, as `2026-01-31`.
    since: Option<String>,
    /// Only events until then.
    until: Option<String>,
    /// Entries of one page at most; above 5000 it is 5000.
    #[schemars(range(min = 1))]
    limit: Option<usize>,
    /// The cursor of the page: `next` of the page before.
    after: Option<String>,
}

/// The first page has the latest events. Each further one has those before it: within a page, as
/// in the whole list, the oldest comes first.
pub(super) async fn history(
    Shared(app): Shared<App>,
    uri: Uri,
    Asked(query): Asked<HistoryQuery>,
) -> Answer {
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
    let (mut list, missing) = app.site.history_before(selection, limit + 1, before).await?;
    if let Some(pool) = &query.pool {
        refuse_unknown(&app.site, pool, &list).await?;
    }
    let more = list.len() > limit;
    list.drain(..list.len().saturating_sub(limit));
    let next = list.first().filter(|_| more).map(|it| encode(&it.place()));
    if is_paged {
        return one_page(&uri, &list, &missing, next);
    }
    with_missing(linked(json_body(&list), &uri, next), &missing)
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct UsageQuery {
    /// What each row is about.
    #[serde(default)]
    by: By,
    /// Only what was used since then: a duration, as `30d`, or a date; without it, 30 days.
    since: Option<String>,
    /// Only this pool.
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
    let read = api::moment::parse(text, now_ms);
    read.map_err(|text| Error::new(Code::Malformed, format!("{name}: {text}")))
}
