//! Principals of the cluster, as a site knows and changes them.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::timeout;

use super::Site;
use crate::api::{self, Answer, Call, Code, Holder, MadeToken, TokenView};
use crate::boottime::{Boottime, Moment};
use kofm_site::ids::home_of;
use kofm_site::rules::{self, Credential, Principal, PrincipalChange, Principals, Rule};

/// How long a credential may wait until this site knows the cluster's rules again.
const CATCH_UP: Duration = Duration::from_secs(2);

impl Site {
    /// Uses the principals of the cluster; those of the site's last life before there is an epoch.
    pub(crate) fn with_principals<T>(&self, work: impl FnOnce(&Principals) -> T) -> T {
        let view = self.0.view.borrow();
        match view.plan() {
            Some(plan) => work(&plan.principals),
            None => work(&self.0.recalled),
        }
    }

    /// Whether principals cannot have changed without this site: it is in the epoch, and its right
    /// to grant has not run out. Every change of them is an epoch that this site either takes part
    /// in, and grants nothing meanwhile, or is not a member of.
    fn is_current(&self) -> bool {
        let view = self.0.view.borrow();
        let now = Moment::now();
        view.granting && (view.sole || view.leased.is_some_and(|until| now < until))
    }

    /// Waits until the principals that this site knows are those of the cluster.
    pub(crate) async fn current_principals(&self) -> Result<(), api::Error> {
        if self.is_current() {
            return Ok(());
        }
        let mut view = self.0.view.subscribe();
        let caught_up = async {
            while !self.is_current() {
                if view.changed().await.is_err() {
                    return;
                }
            }
        };
        timeout(CATCH_UP, caught_up).await.ok();
        if self.is_current() {
            return Ok(());
        }
        let text = "this site cannot check the token: it has no majority of the cluster; try \
                    another site";
        Err(api::Error::new(Code::Unreachable, text))
    }

    /// Whose a lease or request is; nothing if no site has it.
    pub(crate) async fn holder(&self, id: &str) -> Result<Option<Holder>, api::Error> {
        if let Some(holder) = self.holder_by_id(id) {
            return Ok(Some(holder));
        }
        let call = Call::Holder(id.to_owned());
        let answer = if id.starts_with('L') && home_of(id).is_some() {
            self.at_home(id, call).await
        } else {
            self.anywhere(id, call, super::PEER_PATIENCE).await
        };
        match answer {
            Ok(Answer::Holder(holder)) => Ok(Some(holder)),
            Ok(_) => Err(super::nonsense()),
            Err(error) if error.error == Code::UnknownRequest => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes a principal with a token. It is in the answer, and nowhere else.
    pub async fn create_token(
        &self,
        name: &str,
        rules: BTreeSet<Rule>,
    ) -> Result<MadeToken, api::Error> {
        let token = crate::random::new_token();
        let credential = Credential::Token(rules::hash(token.as_bytes()));
        let made = self.create_principal(name, credential, rules).await?;
        Ok(MadeToken { token: Some(token), ..made })
    }

    /// Makes a principal that shows this credential.
    pub async fn create_principal(
        &self,
        name: &str,
        credential: Credential,
        rules: BTreeSet<Rule>,
    ) -> Result<MadeToken, api::Error> {
        self.check_rules(&rules)?;
        let shown = credential.show();
        let principal = Principal { credential, rules: rules.clone(), made_ms: now_ms() };
        self.change_principal(name, PrincipalChange::Create(principal)).await?;
        let rules = rules.iter().map(ToString::to_string).collect();
        Ok(MadeToken { name: name.to_owned(), token: None, credential: shown, rules })
    }

    /// Ends a principal: no site accepts its token from then on.
    pub async fn revoke_token(&self, name: &str) -> Result<(), api::Error> {
        self.change_principal(name, PrincipalChange::Revoke).await
    }

    /// Gives rules to a principal.
    pub async fn allow(&self, name: &str, rules: BTreeSet<Rule>) -> Result<(), api::Error> {
        self.check_rules(&rules)?;
        self.change_principal(name, PrincipalChange::Allow(rules)).await
    }

    /// Takes rules from a principal.
    pub async fn deny(&self, name: &str, rules: BTreeSet<Rule>) -> Result<(), api::Error> {
        self.change_principal(name, PrincipalChange::Deny(rules)).await
    }

    /// All principals with their rules.
    pub fn tokens(&self) -> Vec<TokenView> {
        let now = now_ms();
        let view = |(name, it): (&String, &Principal)| TokenView {
            name: name.clone(),
            credential: it.credential.show(),
            rules: it.rules.iter().map(ToString::to_string).collect(),
            age_ms: now.saturating_sub(it.made_ms),
        };
        self.with_principals(|all| all.iter().map(view).collect())
    }

    async fn change_principal(&self, name: &str, it: PrincipalChange) -> Result<(), api::Error> {
        self.next_epoch(Call::Principal { name: name.to_owned(), change: it }).await?;
        // This site serves by the new rules before the command returns.
        self.current_principals().await
    }

    /// A rule for one name must name something that exists: the name may be mistyped.
    fn check_rules(&self, rules: &BTreeSet<Rule>) -> Result<(), api::Error> {
        let view = self.0.view.borrow();
        let Some(plan) = view.plan() else { return Ok(()) };
        let known = |name: &String| {
            plan.pools.contains_key(name)
                || plan.semaphores.contains_key(name)
                || plan.gangs.contains_key(name)
        };
        let one = |rule: &&Rule| !rule.pattern.contains(['*', '?']);
        match rules.iter().filter(one).find(|rule| !known(&rule.pattern)) {
            Some(rule) => {
                let text = format!(
                    "rule `{rule}`: there is no pool, semaphore or gang `{}`; make it first, or \
                     use a pattern with `*`",
                    rule.pattern
                );
                Err(api::Error::new(Code::UnknownPool, text))
            }
            None => Ok(()),
        }
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
