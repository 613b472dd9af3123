//! The memory that requests of each principal take at this site. A principal with the right to
//! acquire must not be able to use up that of the others.

use std::collections::BTreeMap;
use std::mem::size_of;
use std::sync::Arc;

use super::{Part, Request};
use crate::api::{self, Code, Submit, Want};

/// Bytes of the requests of one principal that wait or are granted.
const MAX_BYTES: usize = 32 << 20;
/// Bytes of a request beside its own fields: places in tables and queues.
const TABLES: usize = 256;

/// Bytes by principal. Requests without one are not counted: their number is bounded.
#[derive(Debug, Default)]
pub(super) struct Shares(BTreeMap<Arc<str>, usize>);

fn size(id: &str, texts: [Option<&str>; 2], want: &Want) -> usize {
    let texts: usize = texts.into_iter().flatten().map(str::len).sum();
    let pools: usize = want.keys().map(|name| 2 * name.len() + size_of::<Part>() + 64).sum();
    size_of::<Request>() + TABLES + id.len() + texts + pools
}

fn size_of_request(request: &Request) -> usize {
    size(&request.id, [request.owner.as_deref(), request.reason.as_deref()], &request.asked)
}

impl Shares {
    /// Refuses one more request of a principal that has too many, or too long ones.
    pub(super) fn check(&self, spec: &Submit) -> Result<(), api::Error> {
        let Some(principal) = spec.principal.as_deref() else { return Ok(()) };
        let id = spec.id.as_deref().unwrap_or_default();
        let texts = [spec.owner.as_deref(), spec.reason.as_deref()];
        let used = self.0.get(principal).copied().unwrap_or(0);
        if used + size(id, texts, &spec.want) <= MAX_BYTES {
            return Ok(());
        }
        let most = MAX_BYTES >> 20;
        let text = format!(
            "the requests of principal `{principal}` at this site take {most} MiB; cancel some, \
             or wait until some have ended"
        );
        Err(api::Error::new(Code::TooMany, text))
    }

    pub(super) fn add(&mut self, request: &Request) {
        if let Some(principal) = &request.principal {
            *self.0.entry(Arc::clone(principal)).or_default() += size_of_request(request);
        }
    }

    /// A request has ended.
    pub(super) fn take(&mut self, request: &Request) {
        let Some(principal) = &request.principal else { return };
        if let Some(used) = self.0.get_mut(principal) {
            *used = used.saturating_sub(size_of_request(request));
            if *used == 0 {
                self.0.remove(principal);
            }
        }
    }
}
