//! The audit log under `/v1/audit`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::State as Shared;
use axum::http::Uri;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;

use super::openapi::either;
use super::operation::{list_of, schema_of};
use super::paging::{linked, page_of};
use super::{Answer, App, Asked, json_body, ok};
use crate::api::{AuditCheck, AuditEntry, Code, Error};
use crate::duration;

/// Entries of an answer without a limit.
const ENTRIES: usize = 1000;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AuditQuery {
    /// Only entries of this last time, as `12h`.
    since: Option<String>,
    /// Only entries of this principal.
    principal: Option<String>,
    /// Only entries that concern this pool, semaphore, gang or principal.
    pool: Option<String>,
    /// Entries at most, the newest ones; without it 1000, above 5000 it is 5000.
    #[schemars(range(min = 1))]
    limit: Option<usize>,
    /// The cursor of the page: the number of its oldest entry.
    after: Option<u64>,
    /// Check the chain of hashes instead.
    #[serde(default)]
    verify: bool,
}

/// The schema of the answer.
pub(super) fn answer(generator: &mut SchemaGenerator) -> Schema {
    let list = list_of::<AuditEntry>(generator);
    either(list, schema_of::<AuditCheck>(generator))
}

pub(super) async fn audit(
    Shared(app): Shared<App>,
    uri: Uri,
    Asked(query): Asked<AuditQuery>,
) -> Answer {
    let since = query.since.as_deref().map(duration::parse).transpose();
    let since = since.map_err(|text| Error::new(Code::Malformed, text))?;
    let broken = |error: &dyn std::fmt::Display| {
        Error::new(Code::Unreachable, format!("the audit log cannot be read: {error}"))
    };
    // Files are read on a thread that may wait for the disk.
    let log = app.site.audit();
    if query.verify {
        let checked = tokio::task::spawn_blocking(move || log.verify()).await;
        let checked = checked.map_err(|error| broken(&error))?;
        return ok(&checked.map_err(|error| broken(&error))?);
    }
    let from = since.map_or(0, |since| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        millis(now.saturating_sub(since))
    });
    let AuditQuery { principal, pool, limit, after, .. } = query;
    let limit = page_of::<u64>(Some(limit.unwrap_or(ENTRIES)), None)?.map_or(0, |it| it.limit);
    let select = move |entry: &AuditEntry| {
        entry.at_ms >= from
            && after.is_none_or(|after| entry.number < after)
            && principal.as_ref().is_none_or(|it| entry.principal.as_ref() == Some(it))
            && pool.as_ref().is_none_or(|it| entry.pools.contains(it))
    };
    let read = tokio::task::spawn_blocking(move || log.entries(limit + 1, select)).await;
    let mut list = read.map_err(|error| broken(&error))?.map_err(|error| broken(&error))?;
    let more = list.len() > limit;
    list.drain(..list.len().saturating_sub(limit));
    let next = list.first().filter(|_| more).map(|it| it.number.to_string());
    Ok(linked(json_body(&list), &uri, next))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
