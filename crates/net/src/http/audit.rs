//! The audit log under `/v1/audit`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::State as Shared;
use serde::Deserialize;

use super::{Answer, App, Asked, ok};
use crate::api::{AuditEntry, Code, Error};
use crate::duration;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AuditQuery {
    since: Option<String>,
    principal: Option<String>,
    pool: Option<String>,
    limit: Option<usize>,
    #[serde(default)]
    verify: bool,
}

pub(super) async fn audit(Shared(app): Shared<App>, Asked(query): Asked<AuditQuery>) -> Answer {
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
    let AuditQuery { principal, pool, limit, .. } = query;
    let select = move |entry: &AuditEntry| {
        entry.at_ms >= from
            && principal.as_ref().is_none_or(|it| entry.principal.as_ref() == Some(it))
            && pool.as_ref().is_none_or(|it| entry.pools.contains(it))
    };
    let limit = limit.unwrap_or(1000);
    let read = tokio::task::spawn_blocking(move || log.entries(limit, select)).await;
    let list = read.map_err(|error| broken(&error))?.map_err(|error| broken(&error))?;
    ok(&list)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
