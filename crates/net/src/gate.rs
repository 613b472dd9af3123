//! Who asks, and whether it may: the credential of a client, and its rights.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use serde_json::Value;

use crate::access::Access;
use crate::api::{self, Call, Code, Happening, Holder};
use crate::site::Site;
use kofm_site::rules::{self, Credential, Principal, Principals, TOKEN_FILE, Verb};

/// Identifies the clients of a site.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    pub site: Site,
    pub access: Access,
}

/// The client at the other end of a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origin {
    /// Its address, for the audit log.
    pub address: Arc<str>,
    pub ip: Option<IpAddr>,
    /// The user of a Unix socket, or the key of a client certificate; or why that does not count.
    pub credential: Option<Result<Credential, Arc<str>>>,
}

/// A request for a credential.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Normal,
    /// Rules will do that may have changed since.
    Stale,
    /// The `FleetLock` protocol, whose nodes send no token: the address may identify them.
    FleetLock,
}

/// A client that was identified.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// None if no credential is asked for.
    pub name: Option<Arc<str>>,
    /// The rights of a principal; none if it may do everything.
    limits: Option<Arc<Principal>>,
    /// The one lease that its token is for.
    lease: Option<Arc<str>>,
    /// Names that the call concerns, for the audit log.
    touched: Arc<Mutex<Vec<String>>>,
}

const MISSING: &str = "token missing: set KOFM_TOKEN, or send `authorization: Bearer TOKEN`";
const REJECTED: &str = "token rejected: it is neither a token of the cluster (revoked?) nor in the \
                        site's token_file; set KOFM_TOKEN to a valid one";

impl Gate {
    /// The token that a request shows.
    pub(crate) fn token(headers: &HeaderMap) -> Option<Vec<u8>> {
        let shown = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes)?;
        let (scheme, token) = shown.split_at_checked("Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.to_vec())
    }

    /// Whether clients need no credential: the cluster has no principals, and the site no tokens.
    pub(crate) fn is_open(&self) -> bool {
        self.access.is_open() && self.site.with_principals(Principals::is_empty)
    }

    /// Identifies a client: by its token, otherwise by what its connection shows.
    pub(crate) async fn admit(
        &self,
        token: Option<&[u8]>,
        origin: &Origin,
        purpose: Purpose,
    ) -> Result<Caller, api::Error> {
        let unauthorized = |text: String| Err(api::Error::new(Code::Unauthorized, text));
        if self.is_open() {
            return Ok(Caller::new(None, None));
        }
        if token.is_some_and(|token| self.access.has(token)) {
            return Ok(Caller::new(Some(TOKEN_FILE.into()), None));
        }
        let ip = origin.ip.filter(|_| purpose == Purpose::FleetLock);
        if token.is_none() && origin.credential.is_none() && ip.is_none() {
            return unauthorized(MISSING.to_owned());
        }
        if purpose != Purpose::Stale && self.site.with_principals(|all| !all.is_empty()) {
            self.site.current_principals().await?;
        }
        if let Some(lease) = token.and_then(rules::lease_of) {
            if purpose == Purpose::Stale {
                // It concerns no lease; other sites need not be asked.
                let text = "the token is for a lease only, and lacks `read` on pattern `*`";
                return Err(api::Error::new(Code::Forbidden, text));
            }
            return self.admit_lease(lease).await;
        }
        let named = |(name, it): (&str, &Principal)| (Arc::from(name), Arc::new(it.clone()));
        let find = |shown: &Credential| {
            self.site.with_principals(|all| rules::find(all, shown).map(named))
        };
        let (name, principal) = match (token, &origin.credential) {
            (Some(token), _) => match find(&Credential::Token(rules::hash(token))) {
                Some(found) => found,
                None => return unauthorized(REJECTED.to_owned()),
            },
            (None, shown) => {
                let by_network = || {
                    let all = |all: &Principals| rules::find_network(all, ip?).map(named);
                    self.site.with_principals(all)
                };
                let own = shown.as_ref().and_then(|it| it.as_ref().ok());
                match (own.and_then(find).or_else(by_network), shown) {
                    (Some(found), _) => found,
                    (None, None) => return unauthorized(MISSING.to_owned()),
                    (None, Some(Err(why))) => return unauthorized(why.to_string()),
                    (None, Some(Ok(shown))) => {
                        let shown = shown.show();
                        return unauthorized(format!(
                            "token missing: the cluster has no principal for `{shown}` either; \
                             set KOFM_TOKEN, or ask an administrator for `kofm token create`"
                        ));
                    }
                }
            }
        };
        let limits = (!principal.rules_all()).then_some(principal);
        Ok(Caller::new(Some(name), limits))
    }

    /// Identifies a client by the id of a lease: it may renew and release that one, in the name of
    /// the principal that asked for it, as long as that is a principal.
    async fn admit_lease(&self, lease: &str) -> Result<Caller, api::Error> {
        let holder = self.site.holder(lease).await?;
        let valid = holder.as_ref().is_some_and(|it| match it.principal.as_deref() {
            None => true,
            Some(TOKEN_FILE) => !self.access.is_open(),
            Some(name) => self.site.with_principals(|all| all.contains_key(name)),
        });
        let Some(holder) = holder.filter(|_| valid) else {
            let text = "token rejected: it is for a lease that has ended or whose principal was \
                        revoked";
            return Err(api::Error::new(Code::Unauthorized, text));
        };
        let none =
            Principal { credential: Credential::User(0), rules: BTreeSet::new(), made_ms: 0 };
        // A name that no principal can have.
        let nameless = || format!("lease:{}", api::lease_name(lease)).into();
        let name = holder.principal.map_or_else(nameless, Into::into);
        let lease = Some(lease.into());
        Ok(Caller { lease, ..Caller::new(Some(name), Some(Arc::new(none))) })
    }

    /// Whether a call over the lean protocol is allowed; it then carries its principal.
    pub(crate) async fn check_call(
        &self,
        caller: &Caller,
        call: &mut Call,
    ) -> Result<(), api::Error> {
        if let Call::Submit { spec, .. } = call {
            spec.principal = caller.name.as_deref().map(str::to_owned);
            return caller.needs_all(Verb::Acquire, spec.want.keys());
        }
        if caller.may_everything() {
            return Ok(());
        }
        let (id, own, other) = if let Call::Watch { id, .. } = call {
            // The answer has the lease's id.
            (id, None, Verb::ReleaseAny)
        } else if let Call::Cancel(id) = call {
            (id, Some(Verb::ReleaseOwn), Verb::Operate)
        } else if let Call::Renew(id) = call {
            (id, Some(Verb::Acquire), Verb::Operate)
        } else if let Call::Release(id) = call {
            (id, Some(Verb::ReleaseOwn), Verb::ReleaseAny)
        } else {
            // The only other call concerns the connection itself.
            return if matches!(call, Call::Abandon(_)) { Ok(()) } else { caller.needs_admin() };
        };
        let holder = self.site.holder(id).await?;
        caller.needs_on(holder.as_ref(), id, own, other)
    }
}

impl Gate {
    /// Writes a call over the lean protocol to the audit log.
    pub(crate) fn note_call(&self, caller: &Caller, address: &str, call: &Call, allowed: bool) {
        let (verb, quiet) = if matches!(call, Call::Submit { .. }) {
            (Verb::Acquire.name(), false)
        } else if matches!(call, Call::Release(_)) {
            ("release", false)
        } else if matches!(call, Call::Cancel(_)) {
            ("cancel", false)
        } else if matches!(call, Call::Renew(_)) {
            ("renew", true)
        } else {
            (Verb::Read.name(), true)
        };
        if allowed && quiet {
            return;
        }
        let (touched, result) = (caller.touched(), if allowed { "allowed" } else { "denied" });
        let id = if let Call::Release(id) | Call::Cancel(id) = call { id.as_str() } else { "" };
        let object =
            if touched.is_empty() { api::lease_name(id).to_owned() } else { touched.join(",") };
        let who = caller.name.as_deref();
        let entry = crate::audit::entry(who, address, verb, &object, touched, result);
        self.site.audit().note(entry);
    }
}

impl Caller {
    fn new(name: Option<Arc<str>>, limits: Option<Arc<Principal>>) -> Self {
        Self { name, limits, lease: None, touched: Arc::default() }
    }

    /// The same caller, for the next call.
    pub(crate) fn again(&self) -> Self {
        Self { touched: Arc::default(), ..self.clone() }
    }

    /// Notes a name that the call concerns.
    pub(crate) fn touch(&self, name: &str) {
        let mut touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
        if !touched.iter().any(|it| it == name) {
            touched.push(name.to_owned());
        }
    }

    /// The names that the call concerns.
    pub(crate) fn touched(&self) -> Vec<String> {
        self.touched.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) const fn may_everything(&self) -> bool {
        self.limits.is_none()
    }

    /// The rules of its principal, as they are written.
    pub(crate) fn rules(&self) -> Vec<String> {
        let rules = self.limits.as_ref().map(|it| it.rules.iter().map(ToString::to_string));
        rules.map_or_else(|| vec!["admin:*".to_owned()], Iterator::collect)
    }

    pub(crate) fn may(&self, verb: Verb, name: &str) -> bool {
        self.limits.as_ref().is_none_or(|it| it.allows(verb, name))
    }

    fn lacks(&self, verb: Verb, kind: &str, name: &str) -> api::Error {
        if let Some(lease) = &self.lease {
            let lease = api::lease_name(lease);
            let text = format!(
                "the token is for lease `{lease}` only, and lacks `{verb}` on {kind} `{name}`; \
                 set KOFM_TOKEN to the token of a principal"
            );
            return api::Error::new(Code::Forbidden, text);
        }
        let who = self.name.as_deref().unwrap_or_default();
        let text = format!(
            "principal `{who}` lacks `{verb}` on {kind} `{name}`; an administrator grants it with \
             `kofm allow {who} {verb}:{name}`"
        );
        api::Error::new(Code::Forbidden, text)
    }

    /// Refuses a verb on a pool, semaphore or gang that no rule grants.
    pub(crate) fn needs(&self, verb: Verb, kind: &str, name: &str) -> Result<(), api::Error> {
        self.touch(name);
        if self.may(verb, name) { Ok(()) } else { Err(self.lacks(verb, kind, name)) }
    }

    pub(crate) fn needs_all<'a>(
        &self,
        verb: Verb,
        pools: impl Iterator<Item = &'a String>,
    ) -> Result<(), api::Error> {
        // All are noted, also those after the first that is refused.
        let checked: Vec<_> = pools.map(|pool| self.needs(verb, "pool", pool)).collect();
        checked.into_iter().collect()
    }

    /// Refuses callers that may not administer the whole cluster.
    pub(crate) fn needs_admin(&self) -> Result<(), api::Error> {
        if self.may_everything() { Ok(()) } else { Err(self.lacks(Verb::Admin, "pattern", "*")) }
    }

    /// Whether a lease or request is the caller's.
    fn owns(&self, holder: &Holder) -> bool {
        holder.principal.is_some() && holder.principal.as_deref() == self.name.as_deref()
    }

    /// Refuses a verb on a lease or request: one for the caller's own, another for those of others.
    pub(crate) fn needs_on(
        &self,
        holder: Option<&Holder>,
        id: &str,
        own: Option<Verb>,
        other: Verb,
    ) -> Result<(), api::Error> {
        holder.into_iter().flat_map(|it| &it.pools).for_each(|pool| self.touch(pool));
        if let Some(lease) = &self.lease {
            // Every call on a lease has a verb for its owner.
            return if own.is_some() && **lease == *id {
                Ok(())
            } else {
                Err(self.lacks(other, "lease", api::lease_name(id)))
            };
        }
        let verb = match holder {
            Some(holder) if self.owns(holder) => own,
            Some(_) => Some(other),
            // An id that no site has protects nothing; a name may still mean a lease.
            None if crate::site::is_given_id(id) => None,
            None => {
                return if self.may_everything() || self.may(other, "*") {
                    Ok(())
                } else {
                    Err(unknown(id))
                };
            }
        };
        match (verb, holder) {
            (Some(verb), Some(holder)) => self.needs_all(verb, holder.pools.iter()),
            (Some(_) | None, _) => Ok(()),
        }
    }

    /// Whether the caller may see an event.
    pub(crate) fn may_see(&self, happening: &Happening) -> bool {
        if let Some(lease) = &self.lease {
            return happening.lease.as_deref() == Some(api::lease_name(lease));
        }
        let own = happening.principal.is_some() && happening.principal == self.name;
        own || happening.want.keys().all(|pool| self.may(Verb::Read, pool))
    }

    /// Whether the caller may see an entry of a list, or a request; the id of a lease that it must
    /// not release is taken out of it.
    pub(crate) fn sees(&self, entry: &mut Value) -> bool {
        if let Some(lease) = &self.lease {
            let name = Value::from(api::lease_name(lease));
            return entry["name"] == name
                || entry["lease"] == name
                || entry["lease"]["name"] == name;
        }
        let own = entry["principal"].as_str().is_some_and(|it| Some(it) == self.name.as_deref());
        let mut pools: Vec<String> = Vec::new();
        for field in ["want", "units"] {
            pools.extend(entry[field].as_object().into_iter().flat_map(|it| it.keys().cloned()));
        }
        if pools.is_empty() {
            let name = entry["pool"].as_str().or_else(|| entry["name"].as_str());
            pools.extend(name.map(str::to_owned));
        }
        if !own && !pools.iter().all(|pool| self.may(Verb::Read, pool)) {
            return false;
        }
        if !own
            && !pools.iter().all(|pool| self.may(Verb::ReleaseAny, pool))
            && let Some(lease) = entry.get_mut("lease").and_then(Value::as_object_mut)
        {
            lease.remove("id");
        }
        true
    }
}

fn unknown(id: &str) -> api::Error {
    let text = format!("there is no request or lease `{id}`, or it ended long ago");
    api::Error::new(Code::UnknownRequest, text)
}
