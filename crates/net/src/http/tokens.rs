//! Principals and rules under `/v1/tokens` and `/v1/rules`.

use std::collections::BTreeSet;

use axum::Extension;
use axum::body::Body;
use axum::extract::State as Shared;
use axum::http::Request as HttpRequest;

use super::{Answer, App, Named, body, ok};
use crate::api::{Code, CreateToken, Error, PutRules, Removed, RuleView, TokenView};
use crate::gate::Caller;
use crate::tls::key_of_pem;
use kofm_site::rules::{Credential, Rule, Verb};

fn parse(texts: &[String]) -> Result<BTreeSet<Rule>, Error> {
    let rules = texts.iter().map(|text| text.parse::<Rule>());
    rules.collect::<Result<_, _>>().map_err(|text| Error::new(Code::Malformed, text))
}

/// The credential of a principal that gets no token.
fn credential(spec: &CreateToken) -> Result<Option<Credential>, Error> {
    let malformed = |text: String| Error::new(Code::Malformed, text);
    let key = |pem: &String| {
        key_of_pem(pem)
            .map_err(|_| malformed("certificate: it must be a certificate in PEM form".to_owned()))
    };
    let certificate = spec.certificate.as_ref().map(key).transpose()?;
    let network = spec.network.as_ref().map(|it| it.parse()).transpose().map_err(malformed)?;
    let given = [
        spec.user.map(Credential::User),
        certificate.map(Credential::Certificate),
        network.map(Credential::Network),
    ];
    let mut given = given.into_iter().flatten();
    let first = given.next();
    if given.next().is_some() {
        let text = "a principal has one credential: user, certificate or network".to_owned();
        return Err(malformed(text));
    }
    Ok(first)
}

pub(super) async fn list(Shared(app): Shared<App>) -> Answer {
    ok(&app.site.tokens())
}

pub(super) async fn create(
    Shared(app): Shared<App>,
    Extension(caller): Extension<Caller>,
    request: HttpRequest<Body>,
) -> Answer {
    let spec: CreateToken = body(request).await?;
    caller.touch(&spec.name);
    let (credential, rules) = (credential(&spec)?, parse(&spec.rules)?);
    let name = spec.name;
    let all = |rule: &Rule| rule.pattern == "*" && rule.verbs.contains(&Verb::Admin);
    if app.gate.is_open() && !rules.iter().any(all) {
        let text = "the first principal must have the rule admin:*, because every client needs a \
                    token from then on; create it first, as in `kofm token create admin --allow \
                    admin:*`";
        return Err(Error::new(Code::InUse, text).into());
    }
    ok(&match credential {
        None => app.site.create_token(&name, rules).await?,
        Some(credential) => app.site.create_principal(&name, credential, rules).await?,
    })
}

/// Refuses a change after which no principal could administer the cluster, unless this site's
/// `token_file` can.
fn keep_an_administrator(
    app: &App,
    name: &str,
    deny: Option<&BTreeSet<Rule>>,
) -> Result<(), Error> {
    let rules = |texts: &[String]| parse(texts).unwrap_or_default();
    let admin = |it: &Rule| it.pattern == "*" && it.verbs.contains(&Verb::Admin);
    let stays = |token: &TokenView| {
        let kept = |rule: &&Rule| token.name != name || deny.is_some_and(|it| !it.contains(*rule));
        rules(&token.rules).iter().filter(kept).any(admin)
    };
    let tokens = app.site.tokens();
    let was = tokens.iter().any(|it| it.name == name && rules(&it.rules).iter().any(admin));
    if !app.gate.access.is_open() || !was || tokens.iter().any(stays) {
        return Ok(());
    }
    let text = format!(
        "principal `{name}` is the last one with the rule admin:*; create another one first"
    );
    Err(Error::new(Code::InUse, text))
}

pub(super) async fn revoke(
    Shared(app): Shared<App>,
    Extension(caller): Extension<Caller>,
    Named(name): Named,
) -> Answer {
    caller.touch(&name);
    keep_an_administrator(&app, &name, None)?;
    app.site.revoke_token(&name).await?;
    ok(&Removed::new(&name, "revoked"))
}

pub(super) async fn rules(Shared(app): Shared<App>) -> Answer {
    let list = app.site.tokens().into_iter().flat_map(|token| {
        let name = token.name;
        token.rules.into_iter().map(move |rule| RuleView { principal: name.clone(), rule })
    });
    ok(&list.collect::<Vec<_>>())
}

pub(super) async fn change(
    Shared(app): Shared<App>,
    Extension(caller): Extension<Caller>,
    Named(name): Named,
    request: HttpRequest<Body>,
) -> Answer {
    caller.touch(&name);
    let PutRules { allow, deny } = body(request).await?;
    let (allow, deny) = (parse(&allow)?, parse(&deny)?);
    keep_an_administrator(&app, &name, Some(&deny))?;
    if !allow.is_empty() {
        app.site.allow(&name, allow).await?;
    }
    if !deny.is_empty() {
        app.site.deny(&name, deny).await?;
    }
    let known = app.site.tokens().into_iter().find(|it| it.name == name);
    let unknown = || {
        let text = format!("unknown principal `{name}`; `kofm token ls` lists them");
        Error::new(Code::NotFound, text)
    };
    ok(&known.ok_or_else(unknown)?)
}
