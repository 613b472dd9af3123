//! Addresses that other machines reach, and the protection that each of them lacks.

use std::net::{IpAddr, ToSocketAddrs};

use crate::config::Config;

/// An address of a site that other machines reach without protection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exposure {
    /// The setting that has the address: `http`, `listen` or `members.NAME`.
    pub key: String,
    /// The address.
    pub address: String,
    /// The protection that is missing.
    pub lacks: &'static str,
    /// The setting that protects it.
    pub remedy: &'static str,
}

impl Exposure {
    /// The fault, the rule and the next step in a line.
    pub fn rule(&self) -> String {
        let Self { key, address, lacks, remedy } = self;
        format!(
            "{key} = \"{address}\" is reached from other machines, and {lacks}; it must {remedy}, \
             be a loopback address, or be accepted with insecure = true"
        )
    }
}

/// The addresses of this site that other machines reach without protection. `credentials`: whether
/// clients have to show one.
pub fn exposures(config: &Config, credentials: bool) -> Vec<Exposure> {
    let mut list = Vec::new();
    if let Some(address) = config.http.as_ref().filter(|it| !credentials && !is_loopback(it)) {
        list.push(Exposure {
            key: "http".to_owned(),
            address: address.clone(),
            lacks: "clients need no token",
            remedy: "have token_file",
        });
    }
    let encrypted = config.tls.is_some() || config.https.is_some();
    if let Some(address) = config.http.as_ref().filter(|it| !encrypted && !is_loopback(it)) {
        list.push(Exposure {
            key: "http".to_owned(),
            address: address.clone(),
            lacks: "tokens cross the network in clear",
            remedy: "have a certificate, [https] or [tls]",
        });
    }
    let several = config.members.len() > 1 || config.is_open();
    let (key, address) = match (&config.listen, config.members.get(&config.site)) {
        (Some(address), _) => ("listen".to_owned(), Some(address)),
        (None, address) => (format!("members.{}", config.site), address),
    };
    let bare = several && config.tls.is_none();
    if let Some(address) = address.filter(|it| bare && !is_loopback(it)) {
        list.push(Exposure {
            key,
            address: address.clone(),
            lacks: "sites do not authenticate each other",
            remedy: "have certificates",
        });
    }
    list
}

/// Whether `host:port` is reached from this machine only. A name is as good as its addresses.
pub fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |it| it.0);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(ip) = host.parse::<IpAddr>() {
        return ip.to_canonical().is_loopback();
    }
    if host.eq_ignore_ascii_case("localhost") {
        return true;
    }
    let Ok(found) = (host, 0).to_socket_addrs() else { return false };
    let found: Vec<IpAddr> = found.map(|it| it.ip()).collect();
    !found.is_empty() && found.iter().all(IpAddr::is_loopback)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(http: &str, listen: &str) -> Config {
        let text = format!(
            "site = \"a\"\nhttp = \"{http}\"\nlisten = \"{listen}\"\nstate_dir = \"/tmp\"\n\
             [members]\na = \"127.0.0.1:1\"\nb = \"127.0.0.1:2\"\n[pools]\nx = 1\n"
        );
        Config::parse(&text).unwrap()
    }

    #[test]
    fn only_loopback_stays_on_the_machine() {
        for own in ["127.0.0.1:1", "127.8.9.1:1", "[::1]:1", "localhost:1", "[::ffff:127.0.0.1]:1"]
        {
            assert!(is_loopback(own), "{own}");
        }
        for other in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[fe80::1]:1", "no-such-host.invalid:1"]
        {
            assert!(!is_loopback(other), "{other}");
        }
    }

    #[test]
    fn each_address_needs_its_own_protection() {
        let keys = |http, listen, credentials| {
            let list = exposures(&config(http, listen), credentials);
            list.into_iter().map(|it| it.key).collect::<Vec<String>>()
        };
        assert_eq!(keys("127.0.0.1:3", "127.0.0.1:4", false), [""; 0]);
        assert_eq!(keys("0.0.0.0:3", "127.0.0.1:4", false), ["http", "http"]);
        assert_eq!(keys("0.0.0.0:3", "127.0.0.1:4", true), ["http"]);
        assert_eq!(keys("0.0.0.0:3", "0.0.0.0:4", false), ["http", "http", "listen"]);
        assert_eq!(keys("0.0.0.0:3", "0.0.0.0:4", true), ["http", "listen"]);
        let mut own = config("127.0.0.1:3", "127.0.0.1:4");
        own.listen = None;
        own.members.insert("a".into(), "10.0.0.1:7700".into());
        assert_eq!(exposures(&own, false)[0].key, "members.a");
    }
}
