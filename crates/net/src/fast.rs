//! The site's end of fast connections: framed calls on an upgraded HTTP connection.

mod server;

use std::borrow::Cow;
use std::time::Duration;

use kofm_api::fast::FastCall;

pub(crate) use self::server::{Outbox, serve};
use crate::api::{Call, Hold, Submit};

/// An answer that is not there yet is kept back for this long.
const PATIENCE: Duration = Duration::from_secs(30);

/// The call of a site's core that does this.
fn into_call(call: FastCall<'_>) -> Call {
    match call {
        FastCall::Submit { want, ttl_ms, wait_ms, id, owner, reason } => {
            let spec = Submit {
                want: want.into_owned(),
                ttl: ttl_ms.map(Duration::from_millis),
                wait: wait_ms.map(Duration::from_millis),
                id: id.map(Cow::into_owned),
                owner: owner.map(Cow::into_owned),
                reason: reason.map(Cow::into_owned),
                principal: None,
            };
            Call::Submit { spec, fresh: false, hold: Hold::Lease, patience: Some(PATIENCE) }
        }
        FastCall::Watch { id, wait_ms } => {
            Call::Watch { id: id.into_owned(), wait: Duration::from_millis(wait_ms) }
        }
        FastCall::Cancel(id) => Call::Cancel(id.into_owned()),
        FastCall::Renew(id) => Call::Renew(id.into_owned()),
        FastCall::Release(id) => Call::Release(id.into_owned()),
        FastCall::Abandon(number) => Call::Abandon(number),
    }
}
