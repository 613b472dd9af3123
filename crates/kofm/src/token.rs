//! `kofm token`, `kofm allow` and `kofm rules`: principals and their rights.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use hyper::Method;
use kofm_net::Rule;
use kofm_net::api::{CreateToken, MadeToken, PutRules, TokenView};
use kofm_net::client::{Client, escape};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ask::Server;
use crate::exit::{Exit, USAGE};
use crate::keyring;
use crate::output::{say, say_line, tell};
use crate::tables::{print_json, show_ms, table};

/// How long a change of epoch may take.
const CHANGE: Duration = Duration::from_mins(1);
/// The principal that is made before the first one.
const FIRST: &str = "admin";

const EXAMPLES: &str = "\
A rule is VERBS:PATTERN. Verbs: read, acquire, release-own, release-any,
operate, admin. The pattern selects pools, semaphores and gangs by name; `*`
stands for any characters and `?` for one. acquire includes release-own; admin
includes all verbs, and admin:* also members, tokens, rules and the audit log.

Examples:
  kofm token create admin --allow 'admin:*'
  kofm token create ci --allow 'read:*' --allow 'acquire:gpu-*'
  KOFM_TOKEN=$(kofm token create bob --allow 'read,acquire:*') kofm status
  kofm token create alice --user alice --allow 'acquire:*'  # over a Unix socket
  kofm token create build --certificate build.pem --allow 'acquire:*'
  kofm token create nodes --network 10.0.0.0/8 --allow acquire:reboot
  kofm token ls
  kofm token revoke ci   # no site accepts it when the command returns";

#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum Token {
    /// Create a principal; print its token, once
    Create(Create),
    /// List the principals
    Ls(Ls),
    /// Revoke a principal's token at all sites
    Revoke(Revoke),
}

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Create {
    /// The principal's name
    name: String,
    /// Rule; may be repeated
    #[arg(long, value_name = "VERBS:PATTERN")]
    allow: Vec<String>,
    /// User, by name or number, of a Unix socket of a site; instead of a token
    #[arg(long, group = "credential")]
    user: Option<String>,
    /// Client certificate, PEM, that https clients show; instead of a token
    #[arg(long, group = "credential", value_name = "FILE")]
    certificate: Option<PathBuf>,
    /// Network of nodes that ask for reboot slots, as 10.0.0.0/8; instead of a token
    #[arg(long, group = "credential", value_name = "ADDRESS/BITS")]
    network: Option<String>,
    #[command(flatten)]
    server: Server,
    /// Print JSON: {"name","token","credential","rules"}
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Ls {
    #[command(flatten)]
    server: Server,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Revoke {
    /// The principal's name
    name: String,
    #[command(flatten)]
    server: Server,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const ALLOW_EXAMPLES: &str = "\
The rule is in force at all sites when the command returns.

Examples:
  kofm allow ci 'acquire:gpu-*'
  kofm allow ci read,release-any:licence 'operate:gpu-*'
  kofm allow ci 'acquire:gpu-*' --remove";

#[derive(Debug, Args)]
#[command(after_help = ALLOW_EXAMPLES)]
pub(crate) struct Allow {
    /// The principal
    name: String,
    /// Rules, as in read,acquire:gpu-*
    #[arg(value_name = "VERBS:PATTERN", required = true)]
    rules: Vec<String>,
    /// Remove the rules instead
    #[arg(long)]
    remove: bool,
    #[command(flatten)]
    server: Server,
    /// Print the principal as JSON
    #[arg(long)]
    json: bool,
}

const RULES_EXAMPLES: &str = "\
Examples:
  kofm rules
  kofm rules --json";

#[derive(Debug, Args)]
#[command(after_help = RULES_EXAMPLES)]
pub(crate) struct Rules {
    #[command(flatten)]
    server: Server,
    /// Print JSON: [{"principal","rule"}]
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct RuleRow {
    principal: String,
    rule: String,
}

impl Token {
    pub(crate) fn run(self) -> Result<(), Exit> {
        match self {
            Self::Create(create) => create.run(),
            Self::Ls(ls) => ls.run(),
            Self::Revoke(revoke) => revoke.run(),
        }
    }
}

fn check(rules: &[String]) -> Result<Vec<Rule>, Exit> {
    let rules = rules.iter().map(|text| text.parse::<Rule>());
    rules.collect::<Result<_, _>>().map_err(Exit::usage)
}

async fn create(client: &Client, spec: &CreateToken) -> Result<MadeToken, Exit> {
    Ok(client.call(Method::POST, "/v1/tokens", Some(spec), CHANGE).await?)
}

/// The number of a user of this machine.
fn uid(user: &str) -> Result<u32, Exit> {
    if let Ok(uid) = user.parse() {
        return Ok(uid);
    }
    let lines = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let number = |line: &str| {
        let mut fields = line.split(':');
        (fields.next() == Some(user)).then(|| fields.nth(1)?.parse().ok())?
    };
    lines.lines().find_map(number).ok_or_else(|| {
        let text = format!(
            "--user: `{user}` is not in /etc/passwd; give the user's number, as `id -u {user}` \
             prints it"
        );
        Exit::new(USAGE, text)
    })
}

impl Create {
    fn spec(&self) -> Result<CreateToken, Exit> {
        let read = |path: &PathBuf| {
            let text = std::fs::read_to_string(path);
            let wrong = |error| format!("--certificate: {}: {error}", path.display());
            text.map_err(|error| Exit::new(USAGE, wrong(error)))
        };
        Ok(CreateToken {
            name: self.name.clone(),
            rules: self.allow.clone(),
            user: self.user.as_deref().map(uid).transpose()?,
            certificate: self.certificate.as_ref().map(read).transpose()?,
            network: self.network.clone(),
        })
    }

    fn run(self) -> Result<(), Exit> {
        let (rules, spec) = (check(&self.allow)?, self.spec()?);
        let admin = |rule: &Rule| rule.allows(kofm_net::Verb::Admin, "*") && rule.pattern == "*";
        let (made, kept) = self.server.with(async |client| {
            // A client without a token is answered as long as there is no principal.
            let open = self.server.client_with(None)?;
            let list = open.get::<Vec<TokenView>>("/v1/tokens").await;
            let first = list.is_ok_and(|it| it.is_empty());
            if !first || rules.iter().any(admin) {
                let made = create(&client, &spec).await?;
                let own = made.token.clone().filter(|_| first);
                return Ok((made, own));
            }
            // Without an administrator no client could change anything any more.
            let root = CreateToken {
                name: FIRST.to_owned(),
                rules: vec!["admin:*".to_owned()],
                ..CreateToken::default()
            };
            let root = create(&client, &root).await?;
            let client = self.server.client_with(root.token.as_deref())?;
            Ok((create(&client, &spec).await?, root.token))
        })?;
        if let Some(token) = kept {
            tell("kofm: every client of this cluster needs a token from now on");
            for address in self.server.addr.split(',') {
                match keyring::keep(address, &token) {
                    Ok(path) => tell(&format!(
                        "kofm: the administrator's token for {address} is in {}; kofm finds it \
                         there",
                        path.display()
                    )),
                    Err(error) => tell(&format!(
                        "kofm: cannot keep the administrator's token: {error}; it is {token}"
                    )),
                }
            }
        }
        if self.json {
            return print_json(&made);
        }
        if self.allow.is_empty() {
            let name = &made.name;
            tell(&format!("kofm: {name} has no rights yet; `kofm allow {name} VERBS:PATTERN`"));
        }
        match &made.token {
            Some(token) => say_line(token),
            None => tell(&format!("{}: {}", made.name, made.credential)),
        }
        Ok(())
    }
}

impl Ls {
    fn run(self) -> Result<(), Exit> {
        let list: Vec<TokenView> =
            self.server.with(async |client| Ok(client.get("/v1/tokens").await?))?;
        if self.json {
            return print_json(&list);
        }
        let rows = list.iter().map(|it| {
            vec![it.name.clone(), it.credential.clone(), show_ms(it.age_ms), it.rules.join("  ")]
        });
        say(&table(&["PRINCIPAL", "CREDENTIAL", "AGE", "RULES"], rows));
        Ok(())
    }
}

impl Revoke {
    fn run(self) -> Result<(), Exit> {
        let path = format!("/v1/tokens/{}", escape(&self.name));
        let revoked: Value = self.server.with(async |client| {
            Ok(client.call(Method::DELETE, &path, None::<&()>, CHANGE).await?)
        })?;
        if self.json {
            return print_json(&revoked);
        }
        tell(&format!("{} revoked", self.name));
        Ok(())
    }
}

impl Allow {
    pub(crate) fn run(self) -> Result<(), Exit> {
        check(&self.rules)?;
        let path = format!("/v1/rules/{}", escape(&self.name));
        let mut body = PutRules::default();
        if self.remove {
            body.deny = self.rules;
        } else {
            body.allow = self.rules;
        }
        let view: TokenView = self.server.with(async |client| {
            Ok(client.call(Method::POST, &path, Some(&body), CHANGE).await?)
        })?;
        if self.json {
            return print_json(&view);
        }
        tell(&format!("{}: {}", view.name, view.rules.join("  ")));
        Ok(())
    }
}

impl Rules {
    pub(crate) fn run(self) -> Result<(), Exit> {
        let list: Vec<RuleRow> =
            self.server.with(async |client| Ok(client.get("/v1/rules").await?))?;
        if self.json {
            return print_json(&list);
        }
        let rows = list.iter().map(|it| vec![it.principal.clone(), it.rule.clone()]);
        say(&table(&["PRINCIPAL", "RULE"], rows));
        Ok(())
    }
}
