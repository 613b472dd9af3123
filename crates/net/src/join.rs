//! How a machine becomes a site: an invitation, its code, and the certificate that it buys.
//!
//! A code names a site that has the authority's key, and carries the hash of the authority and a
//! secret. The machine sends the secret over TLS to a site that this authority has certified, with
//! a request for its own certificate. A code is good once, and until it expires by the clock of the
//! site.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::BytesMut;
use kofm_site::api::KeyId;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::authority::{self, Pair};
use crate::config::{Config, check_name, is_address};
use crate::random;
use crate::store::ballots::Ballots;
use crate::store::etcd::{decode, encode};
use crate::tls::{connect_to_join, fingerprint, key_of_pem, site_uri};
use crate::wire::{Admission, Frame, Join, MAX_BODY};
use kofm_client::read_certificates;

/// How far the clocks of a site and of a machine that joins may be apart.
const SKEW: u64 = 3600;
/// How long a machine waits for a connection to the site that its code names.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it waits for the answer: the cluster has to agree on its name and key.
const LONG_PATIENCE: Duration = Duration::from_mins(1);
const PREFIX: &str = "kofm1-";

/// Seconds of Unix time.
fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs())
}

/// A time that people can read.
fn about(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// An invitation, as its code says it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Code {
    /// The cluster's name.
    pub cluster: String,
    /// The site that takes the code.
    pub address: String,
    authority: [u8; 16],
    secret: [u8; 16],
    /// Seconds of Unix time.
    expires: u64,
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = postcard::to_stdvec(self).map_err(|_| fmt::Error)?;
        let sum = crc32fast::hash(&bytes).to_le_bytes();
        bytes.extend_from_slice(&sum);
        let text = encode(&bytes).replace('+', "-").replace('/', "_");
        write!(f, "{PREFIX}{}", text.trim_end_matches('='))
    }
}

impl FromStr for Code {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            "CODE: it is damaged or incomplete; a code must be as `kofm invite` printed it, in one \
             line: copy all of it"
                .to_owned()
        };
        let digits = text.trim().strip_prefix(PREFIX).ok_or_else(wrong)?;
        let mut digits = digits.replace('-', "+").replace('_', "/");
        while !digits.len().is_multiple_of(4) {
            digits.push('=');
        }
        let bytes = decode(&digits).ok_or_else(wrong)?;
        let (body, sum) = bytes.split_last_chunk::<4>().ok_or_else(wrong)?;
        if crc32fast::hash(body) != u32::from_le_bytes(*sum) {
            return Err(wrong());
        }
        postcard::from_bytes(body).map_err(|_| wrong())
    }
}

/// Writes a file that only its owner may read, and that did not exist.
pub fn write_secret(path: &Path, text: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// Makes a directory that only its owner may enter.
pub fn create_private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // A string takes everything.
        write!(text, "{byte:02x}").ok();
        text
    })
}

/// A random secret, in hexadecimal.
pub fn random_secret() -> String {
    hex(&random::secret())
}

fn invitations(config: &Config) -> Option<PathBuf> {
    config.state_dir.as_ref().map(|dir| dir.join("invites"))
}

fn file_of(dir: &Path, secret: &[u8]) -> PathBuf {
    dir.join(hex(&Sha256::digest(secret)))
}

/// Makes the empty votes of a site that founds a cluster. Without them it does not: its disk may
/// have been lost while the cluster goes on.
pub fn found(state_dir: &Path) -> io::Result<()> {
    create_private_dir(state_dir)?;
    Ballots::open(Some(state_dir)).map(drop)
}

/// Makes an invitation to the cluster of this site, which must have the authority's key.
pub fn invite(config: &Config, expires_in: Duration) -> Result<Code, String> {
    let key = config.tls.as_ref().and_then(|tls| tls.ca_key.as_ref());
    let (Some(tls), Some(_), Some(dir)) = (&config.tls, key, invitations(config)) else {
        return Err(
            "this site has no key of the cluster's authority (`ca_key`); make the code at \
                    a site that has it: each site that `kofm init` or `kofm join` made"
                .to_owned(),
        );
    };
    let authority = read_certificates(&tls.ca)?;
    let address = config.members.get(&config.site).cloned().unwrap_or_default();
    let code = Code {
        cluster: config.cluster.clone(),
        address,
        authority: fingerprint(&authority[0]),
        secret: random::secret(),
        expires: unix_time().saturating_add(expires_in.as_secs()),
    };
    let path = file_of(&dir, &code.secret);
    create_private_dir(&dir)
        .and_then(|()| write_secret(&path, &format!("{}\n", code.expires)))
        .map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(code)
}

/// Makes names and keys known to the whole cluster.
pub(crate) trait Admits: Send + Sync {
    /// Lets the machine with this key come under that name, or says why it may not.
    fn admit<'a>(&'a self, name: &'a str, key: KeyId) -> Admitted<'a>;
}

/// When the cluster has agreed, or why it has not.
pub(crate) type Admitted<'a> = Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;

/// Takes in machines that show a code.
pub(crate) struct Registrar {
    admits: Arc<dyn Admits>,
    cluster: String,
    site: String,
    authority: Pair,
    invitations: PathBuf,
    voters: BTreeMap<String, String>,
    site_lease: Duration,
}

impl fmt::Debug for Registrar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registrar").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

impl Registrar {
    /// The registrar of a site that has the authority's key.
    pub(crate) fn open(config: &Config, admits: Arc<dyn Admits>) -> Result<Option<Self>, String> {
        let Some(tls) = &config.tls else { return Ok(None) };
        let (Some(path), Some(invitations)) = (&tls.ca_key, invitations(config)) else {
            return Ok(None);
        };
        let read = |path: &Path| {
            let text = fs::read_to_string(path);
            text.map_err(|error| format!("tls: {}: {error}", path.display()))
        };
        let authority = Pair { public: read(&tls.ca)?, key: read(path)? };
        let voter = |name: &String| Some((name.clone(), config.members.get(name)?.clone()));
        Ok(Some(Self {
            admits,
            cluster: config.cluster.clone(),
            site: config.site.clone(),
            authority,
            invitations,
            voters: config.voters.iter().filter_map(voter).collect(),
            site_lease: config.site_lease,
        }))
    }

    /// Makes a certificate, if the code is good. Otherwise nothing changes.
    pub(crate) async fn admit(
        &self,
        join: &Join,
        taken: bool,
        voters: &BTreeMap<String, String>,
    ) -> Result<Admission, String> {
        let (now, site) = (unix_time(), &self.site);
        let again = format!("run `kofm invite` at site {site} for another code");
        let path = file_of(&self.invitations, &join.secret);
        let used = path.with_extension("used");
        let expires = match fs::read_to_string(&path) {
            Ok(text) => text.trim().parse::<u64>().unwrap_or(0),
            Err(_) if used.exists() => {
                return Err(format!("CODE: it was used before, and is good once; {again}"));
            }
            Err(_) => {
                let cluster = &self.cluster;
                return Err(format!("CODE: cluster {cluster} did not make it; {again}"));
            }
        };
        if now >= expires {
            let since = about(now - expires);
            return Err(format!("CODE: it expired {since} ago; {again}"));
        }
        let skew = join.clock.abs_diff(now);
        if skew > SKEW {
            let (skew, way) = (about(skew), if join.clock > now { "ahead" } else { "behind" });
            return Err(format!(
                "the clock of this machine is {skew} {way} of site {site}'s; clocks must agree to \
                 an hour: set it (`timedatectl set-ntp true`), and use the same code again"
            ));
        }
        check_name(&join.site).map_err(|text| format!("--site: {text}"))?;
        if taken {
            let name = &join.site;
            return Err(format!(
                "--site: the cluster has or had a site {name}; a name must be new: use the same \
                 code with another --site"
            ));
        }
        if !is_address(&join.address) {
            return Err("--listen: an address must be host:port".to_owned());
        }
        let hosts = hosts_of(&join.address);
        let certificate =
            authority::issue(&self.authority, &self.cluster, &join.site, &hosts, &join.request)?;
        let key = key_of_pem(&certificate)?;
        // Renamed by one of several that show it at once.
        fs::rename(&path, &used)
            .map_err(|error| format!("CODE: it cannot be marked as used: {error}; try again"))?;
        if let Err(why) = self.admits.admit(&join.site, key).await {
            // Nothing has changed, so it is still good.
            fs::rename(&used, &path).ok();
            return Err(format!("{why}; then use the same code again"));
        }
        Ok(Admission {
            cluster: self.cluster.clone(),
            certificate,
            authority: self.authority.public.clone(),
            authority_key: self.authority.key.clone(),
            voters: if voters.is_empty() { self.voters.clone() } else { voters.clone() },
            site_lease: u64::try_from(self.site_lease.as_millis()).unwrap_or(u64::MAX),
        })
    }
}

/// The names under which clients find a site that listens there.
pub fn hosts_of(address: &str) -> Vec<String> {
    let host = address.rsplit_once(':').map_or(address, |it| it.0);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let mut hosts = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    let special = host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_unspecified());
    if !special && !hosts.iter().any(|it| it == host) {
        hosts.push(host.to_owned());
    }
    hosts
}

/// The address of this machine towards the site that a code names.
pub async fn local_address(code: &Code) -> Result<std::net::IpAddr, String> {
    Ok(connect(code).await?.local_addr().map_err(|error| error.to_string())?.ip())
}

async fn connect(code: &Code) -> Result<TcpStream, String> {
    let address = &code.address;
    let stream = match timeout(PATIENCE, TcpStream::connect(address)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(unreachable(address, &error.to_string())),
        Err(_) => return Err(unreachable(address, "no answer")),
    };
    Ok(stream)
}

fn unreachable(address: &str, why: &str) -> String {
    format!(
        "no site at {address} ({why}); the site that made the code must run and be reachable from \
         here: start it with `kofm serve`, and use the same code again"
    )
}

/// Shows a code; what a site of this name and address needs then, and its key.
pub async fn redeem(code: &Code, site: &str, address: &str) -> Result<(Admission, String), String> {
    let Pair { public: request, key } = authority::request(&code.cluster, site)?;
    let join = Join {
        secret: code.secret.to_vec(),
        site: site.to_owned(),
        address: address.to_owned(),
        request,
        clock: unix_time(),
    };
    let answered = timeout(LONG_PATIENCE, show(code, &join)).await;
    let answer = answered.map_err(|_| unreachable(&code.address, "no answer in time"))??;
    Ok((answer, key))
}

async fn show(code: &Code, join: &Join) -> Result<Admission, String> {
    let stream = connect(code).await?;
    let stranger = || {
        let Code { address, cluster, .. } = code;
        format!(
            "CODE: the site at {address} is not of the cluster {cluster} that made it; a code must \
             be used at its own cluster: run `kofm invite` there for another one"
        )
    };
    let (mut stream, names) =
        connect_to_join(stream, code.authority).await.map_err(|_| stranger())?;
    if !names.iter().any(|it| it.starts_with(&site_uri(&code.cluster, ""))) {
        return Err(stranger());
    }
    let talk = async {
        let mut buffer = BytesMut::new();
        Frame::Join(join.clone()).encode(&mut buffer);
        stream.write_all(&buffer).await?;
        stream.flush().await?;
        buffer.clear();
        loop {
            if let Some(frame) = Frame::decode(&mut buffer, MAX_BODY).map_err(io::Error::other)? {
                return Ok(frame);
            }
            if stream.read_buf(&mut buffer).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
        }
    };
    match talk.await {
        Ok(Frame::Joined(answer)) => answer,
        Ok(_) => Err(stranger()),
        Err(error) => Err(unreachable(&code.address, &error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::TlsConfig;

    struct Dir(PathBuf);

    impl Drop for Dir {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).ok();
        }
    }

    /// A cluster that takes all but one in.
    struct Willing;

    impl Admits for Willing {
        fn admit<'a>(&'a self, name: &'a str, _: KeyId) -> Admitted<'a> {
            let refused = (name == "refused").then(|| "no majority".to_owned());
            Box::pin(async move { refused.map_or(Ok(()), Err) })
        }
    }

    fn cluster(name: &str) -> (Dir, Config) {
        let dir = std::env::temp_dir().join(format!("kofm-join-{name}-{}", std::process::id()));
        fs::remove_dir_all(&dir).ok();
        create_private_dir(&dir).unwrap();
        let pair = authority::create(name).unwrap();
        fs::write(dir.join("ca.pem"), &pair.public).unwrap();
        write_secret(&dir.join("ca.key"), &pair.key).unwrap();
        let mut config = Config::single("a");
        config.cluster = name.to_owned();
        config.state_dir = Some(dir.clone());
        config.members = BTreeMap::from([("a".to_owned(), "h:1".to_owned())]);
        config.voters = vec!["a".to_owned()];
        config.tls = Some(TlsConfig {
            ca: dir.join("ca.pem"),
            ca_key: Some(dir.join("ca.key")),
            cert: dir.join("site.pem"),
            key: dir.join("site.key"),
        });
        (Dir(dir), config)
    }

    fn join(code: &Code, site: &str) -> Join {
        Join {
            secret: code.secret.to_vec(),
            site: site.to_owned(),
            address: "10.0.0.2:7700".to_owned(),
            request: authority::request("lab", site).unwrap().public,
            clock: unix_time(),
        }
    }

    #[test]
    fn a_code_survives_its_text_and_a_damaged_one_is_refused() {
        let (_dir, config) = cluster("text");
        let code = invite(&config, Duration::from_mins(1)).unwrap();
        let text = code.to_string();
        assert_eq!(text.parse::<Code>().unwrap(), code);
        for bad in [&text[..text.len() - 1], &text[1..], "", "kofm1-", "hello"] {
            assert!(bad.parse::<Code>().unwrap_err().contains("copy all of it"), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_good_code_buys_one_certificate() {
        let (_dir, config) = cluster("good");
        let registrar = Registrar::open(&config, Arc::new(Willing)).unwrap().unwrap();
        let code = invite(&config, Duration::from_mins(1)).unwrap();
        // Wrong machines do not use the code up.
        let refused = registrar.admit(&join(&code, "a"), true, &BTreeMap::new()).await.unwrap_err();
        assert!(refused.contains("another --site"), "{refused}");
        let refused =
            registrar.admit(&join(&code, "b c"), false, &BTreeMap::new()).await.unwrap_err();
        assert!(refused.contains("--site"), "{refused}");
        let year = Join { clock: unix_time() + 31_536_000, ..join(&code, "b") };
        let refused = registrar.admit(&year, false, &BTreeMap::new()).await.unwrap_err();
        assert!(refused.contains("365 days ahead"), "{refused}");
        let unlucky = registrar.admit(&join(&code, "refused"), false, &BTreeMap::new()).await;
        assert!(unlucky.unwrap_err().contains("same code again"));
        let admission = registrar.admit(&join(&code, "b"), false, &BTreeMap::new()).await.unwrap();
        assert_eq!(admission.voters, BTreeMap::from([("a".into(), "h:1".into())]));
        let refused =
            registrar.admit(&join(&code, "c"), false, &BTreeMap::new()).await.unwrap_err();
        assert!(refused.contains("used before"), "{refused}");
    }

    #[tokio::test]
    async fn expired_and_foreign_codes_are_refused() {
        let (_dir, config) = cluster("old");
        let registrar = Registrar::open(&config, Arc::new(Willing)).unwrap().unwrap();
        let code = invite(&config, Duration::ZERO).unwrap();
        let refused =
            registrar.admit(&join(&code, "b"), false, &BTreeMap::new()).await.unwrap_err();
        assert!(refused.contains("expired"), "{refused}");
        let (_other, foreign) = cluster("foreign");
        let code = invite(&foreign, Duration::from_mins(1)).unwrap();
        let refused =
            registrar.admit(&join(&code, "b"), false, &BTreeMap::new()).await.unwrap_err();
        assert!(refused.contains("did not make it"), "{refused}");
    }
}
