//! What a site is told before it starts: `Config`, and how it is read from TOML.
//!
//! Every mistake in a file is reported with its line, not only the first one.

mod reader;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use kofm_core::{Kind, SiteId};

pub use kofm_site::config::{
    DEFAULT_SEMAPHORE, MAX_POOLS, MAX_SEMAPHORES, MAX_SITES, MAX_UNITS, PoolConfig, RotaConfig,
    SemaphoreConfig, check_name, default_protocol, protocol_named, semaphore_protocol_named,
};
pub(crate) use kofm_site::config::{MAX_GANG, ROTA, SITE_LEASE, is_seat};
use kofm_site::config::{add_seats, number_of};

use crate::api::Members;
use crate::https::HttpsConfig;
use crate::tls::TlsConfig;

/// Units in all pools of a cluster of several sites: about five bytes each in the record of an
/// epoch, which has to fit into one frame.
const MAX_ALL_UNITS: u64 = 2_000_000;
/// The same with etcd, which takes 1.5 MB.
const MAX_ALL_UNITS_ETCD: u64 = 200_000;

/// One site of a cluster. Everything but `site` and the addresses it listens on is the same at all
/// sites: they compare it when they meet, and refuse each other where it differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The cluster's name: sites of different clusters refuse each other.
    pub cluster: String,
    /// This site's name; one of the members.
    pub site: String,
    /// All sites and where the others reach them, `host:port`.
    pub members: BTreeMap<String, String>,
    /// Where this site listens for the others. Default: its address among the members.
    pub listen: Option<String>,
    /// Where clients are answered, `host:port`.
    pub http: Option<String>,
    /// A Unix socket for clients on this machine.
    pub socket: Option<PathBuf>,
    /// Where the incarnation is kept. Needed as soon as there are other sites.
    pub state_dir: Option<PathBuf>,
    /// A file with the tokens that clients must show one of; see [`crate::Access::read`]. Without
    /// it everybody is answered who can connect.
    pub token_file: Option<PathBuf>,
    /// Starts although other machines reach an address without protection; see
    /// [`crate::exposure`].
    pub insecure: bool,
    /// Names by which clients call this site, beside addresses and names without a dot. Others are
    /// refused, so that a web page cannot reach it under a name of its own.
    pub http_names: Vec<String>,
    /// The pools, by name: what a cluster begins with. It keeps later changes itself.
    pub pools: BTreeMap<String, PoolConfig>,
    /// The semaphores, by name. A pool may have the same one.
    pub semaphores: BTreeMap<String, SemaphoreConfig>,
    /// The gangs, by name.
    pub gangs: BTreeMap<String, Members>,
    /// The root of the tree for pools of that protocol, as long as it lives; otherwise the first
    /// live site is.
    pub tree_root: Option<String>,
    /// Gangs that take turns by the papers' algorithm, fixed for the life of the cluster.
    pub rota: Option<RotaConfig>,
    /// How long a site may grant after it last reached a majority of the members, or etcd. Client
    /// leases end with it, and what a dead site gave away comes back after it.
    pub site_lease: Duration,
    /// The members of an etcd that keeps the cluster's epoch, `http://host:port` or
    /// `https://host:port` each. Without it a majority of the sites does.
    pub etcd: Vec<String>,
    /// How this site and etcd recognise each other.
    pub etcd_auth: EtcdAuth,
    /// Certificates with which sites authenticate each other; without them every process that
    /// reaches the port of a site is believed.
    pub tls: Option<TlsConfig>,
    /// The certificate that clients see; without it, that of the site is used.
    pub https: Option<HttpsConfig>,
    /// How long a certificate is valid that this site makes for its clients; it is renewed at half
    /// of that.
    pub certificate_lifetime: Duration,
    /// The sites that decide who is in the cluster. Given, sites come and go while it runs, and
    /// `members` needs these and this one only; otherwise all members vote and are fixed.
    pub voters: Vec<String>,
    /// The zone of this site, as a name: voters are spread over zones, and pools may name some.
    /// Empty if it has none.
    pub zone: String,
    /// How long the history is kept on disk.
    pub history_keep: Duration,
    /// How many bytes of history are kept on disk.
    pub history_max: u64,
    /// When what this site writes down about leases is on its disk.
    pub durability: Durability,
    /// The numbers of the members, where the cluster has given them; otherwise their places.
    pub(crate) numbers: BTreeMap<String, SiteId>,
}

/// How a site and etcd recognise each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdAuth {
    /// The authority of etcd's certificates, PEM; needed for `https`.
    pub ca: Option<PathBuf>,
    /// The certificate that this site shows, and its key, PEM.
    pub own: Option<(PathBuf, PathBuf)>,
    /// The user of etcd, and the file with its password.
    pub user: Option<(String, PathBuf)>,
}

impl Config {
    /// Whether pools of so many units together are too many, and what is wrong then.
    pub(crate) fn check_sum(&self, units: u64) -> Result<(), String> {
        let most = if self.etcd.is_empty() { MAX_ALL_UNITS } else { MAX_ALL_UNITS_ETCD };
        if units <= most {
            return Ok(());
        }
        Err(format!("all pools together have {units} units; {most} are the most in this cluster"))
    }

    /// The settings in which this differs from another, apart from those that change while sites
    /// run.
    pub fn differs_in(&self, other: &Self) -> Vec<&'static str> {
        // Named one by one, so that a new setting is not forgotten here.
        let Self {
            cluster,
            site,
            members,
            listen,
            http,
            socket,
            state_dir,
            token_file,
            insecure,
            http_names,
            tree_root,
            rota,
            site_lease,
            etcd,
            etcd_auth,
            tls,
            https,
            certificate_lifetime,
            voters,
            zone,
            history_keep,
            history_max,
            durability,
            pools: _,
            semaphores: _,
            gangs: _,
            numbers: _,
        } = self;
        let settings = [
            ("cluster", *cluster == other.cluster),
            ("site", *site == other.site),
            ("members", *members == other.members),
            ("listen", *listen == other.listen),
            ("http", *http == other.http),
            ("socket", *socket == other.socket),
            ("state_dir", *state_dir == other.state_dir),
            ("token_file", *token_file == other.token_file),
            ("insecure", *insecure == other.insecure),
            ("http_names", *http_names == other.http_names),
            ("tree_root", *tree_root == other.tree_root),
            ("fixed_gangs", *rota == other.rota),
            ("site_lease", *site_lease == other.site_lease),
            ("etcd", *etcd == other.etcd),
            ("etcd_auth", *etcd_auth == other.etcd_auth),
            ("tls", *tls == other.tls),
            ("https", *https == other.https),
            ("certificate_lifetime", *certificate_lifetime == other.certificate_lifetime),
            ("voters", *voters == other.voters),
            ("zone", *zone == other.zone),
            ("history_keep", *history_keep == other.history_keep),
            ("history_max", *history_max == other.history_max),
            ("durability", *durability == other.durability),
        ];
        settings.into_iter().filter(|it| !it.1).map(|it| it.0).collect()
    }
}

/// How long certificates for clients are valid.
const CERTIFICATE_LIFETIME: Duration = Duration::from_hours(90 * 24);

/// Fixed gangs at most.
const MAX_ROTA: usize = 1_000;

/// When leases that a site writes down are on its disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// When the kernel likes: its next life finds them unless the machine died.
    #[default]
    None,
    /// Before a client hears of its grant: they are found when the machine is back, too.
    Grant,
}

const MIN_SITE_LEASE: Duration = Duration::from_secs(1);
/// How long the history is kept.
const HISTORY_KEEP: Duration = Duration::from_hours(400 * 24);
/// Bytes of history that are kept: more than ten million leases.
const HISTORY_MAX: u64 = 1 << 30;
/// Less would be less than one of its files.
pub(crate) const MIN_HISTORY: u64 = 16 << 20;
const MAX_SITE_LEASE: Duration = Duration::from_mins(10);

impl Config {
    /// The same with a seat for each member.
    pub(crate) fn with_seats(mut self) -> Self {
        add_seats(&mut self.pools, &self.members);
        self
    }

    /// A cluster of one site that nobody listens to: add pools, and start it.
    pub fn single(site: &str) -> Self {
        Self {
            cluster: "local".into(),
            site: site.into(),
            members: BTreeMap::from([(site.into(), String::new())]),
            listen: None,
            http: None,
            socket: None,
            state_dir: None,
            token_file: None,
            insecure: false,
            http_names: Vec::new(),
            pools: BTreeMap::new(),
            semaphores: BTreeMap::new(),
            gangs: BTreeMap::new(),
            tree_root: None,
            rota: None,
            site_lease: SITE_LEASE,
            etcd: Vec::new(),
            etcd_auth: EtcdAuth::default(),
            tls: None,
            https: None,
            certificate_lifetime: CERTIFICATE_LIFETIME,
            voters: Vec::new(),
            zone: String::new(),
            history_keep: HISTORY_KEEP,
            history_max: HISTORY_MAX,
            durability: Durability::None,
            numbers: BTreeMap::new(),
        }
    }

    /// What the core is told of it.
    pub(crate) fn core(&self) -> kofm_site::config::Config {
        kofm_site::config::Config {
            site: self.site.clone(),
            members: self.members.clone(),
            numbers: self.numbers.clone(),
            pools: self.pools.clone(),
            semaphores: self.semaphores.clone(),
            gangs: self.gangs.clone(),
            tree_root: self.tree_root.clone(),
            rota: self.rota.clone(),
            site_lease: self.site_lease,
        }
    }

    /// This site's number: its place among the names of all.
    pub fn me(&self) -> SiteId {
        self.number_of(&self.site).unwrap_or(SiteId(0))
    }

    /// A site's number.
    pub fn number_of(&self, site: &str) -> Option<SiteId> {
        number_of(site, &self.numbers, &self.members)
    }

    /// Whether this site is one of those that decide on epochs.
    pub(crate) fn votes(&self) -> bool {
        self.voters.is_empty() || self.voters.contains(&self.site)
    }

    /// Whether sites come and go while the cluster runs.
    pub(crate) fn is_open(&self) -> bool {
        !self.etcd.is_empty() || !self.voters.is_empty()
    }

    /// A digest of what must be the same at all sites, with the numbers of the protocols that they
    /// know. Pools and semaphores are not in it: the
    /// cluster agrees on them itself.
    pub fn table(&self) -> u64 {
        let fixed = !self.is_open();
        let names: Vec<&String> = self.members.keys().filter(|_| fixed).collect();
        let protocols: Vec<u16> = Kind::IN_SITES.iter().map(|kind| kind.id().0).collect();
        let text = format!("{names:?}{:?}{:?}{protocols:?}", self.site_lease, self.rota);
        // FNV-1a: against mistakes, not against malice.
        text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }

    /// Reads a configuration file.
    pub fn parse(text: &str) -> Result<Self, Mistakes> {
        reader::read(text)
    }
}

/// All that is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Mistakes(pub Vec<Mistake>);

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, mistake) in self.0.iter().enumerate() {
            let end = if i == 0 { "" } else { "\n" };
            write!(f, "{end}line {}: {}", mistake.line, mistake.text)?;
        }
        Ok(())
    }
}

/// One thing that is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong and what to do.
    pub text: String,
}

pub use kofm_client::is_address;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_good_file_is_read() {
        let config = Config::parse(
            r#"
            cluster = "lab"
            site = "b"
            http = "127.0.0.1:7600"
            state_dir = "/var/lib/kofm"
            [members]
            a = "10.0.0.1:7700"
            b = "10.0.0.2:7700"
            [pools]
            reboot = 2
            [pools.gpu]
            units = ["gpu-0", "gpu-1"]
            protocol = "permission"
            on_expiry = "quarantine"
            "#,
        )
        .unwrap();
        assert_eq!(config.me(), SiteId(1));
        assert_eq!(config.pools["reboot"].units, 2);
        assert_eq!(config.pools["gpu"].unit_name(1), "gpu-1");
        assert_eq!(config.pools["reboot"].unit_name(1), "1");
    }

    #[test]
    fn every_mistake_is_reported_with_its_line() {
        let text = "site = \"c\"\nhtp = \"x\"\nhttp = \"nowhere\"\n[members]\na = \"h:1\"\n\
                    b = 7\n[pools]\nx = 0\n\"y z\" = 1\n[pools.gpu]\nunits = [\"g\", \"g\"]\n\
                    protocol = \"permision\"\non_expiry = \"never\"\n[pools.w]\nunit = 3\n";
        let mistakes = Config::parse(text).unwrap_err();
        let lines: Vec<usize> = mistakes.0.iter().map(|mistake| mistake.line).collect();
        assert_eq!(lines, [1, 2, 3, 4, 6, 8, 9, 11, 12, 13, 14, 15], "{mistakes}");
        assert!(mistakes.to_string().contains("did you mean `http`?"), "{mistakes}");
    }

    #[test]
    fn an_address_is_for_one_thing() {
        let text = |http: &str, b: &str| {
            format!(
                "site = \"a\"\nhttp = \"{http}\"\nstate_dir = \"/tmp\"\n[members]\n\
                 a = \"h:1\"\nb = \"{b}\"\n[pools]\nx = 1\n"
            )
        };
        Config::parse(&text("h:3", "h:2")).unwrap();
        let mistakes = Config::parse(&text("h:1", "h:1")).unwrap_err();
        let lines: Vec<usize> = mistakes.0.iter().map(|mistake| mistake.line).collect();
        assert_eq!(lines, [2, 6], "{mistakes}");
    }

    #[test]
    fn a_cluster_has_no_more_units_than_fit_into_a_record() {
        let text = |pools: usize, rest: &str| {
            let pools: Vec<String> = (0..pools).map(|it| format!("p{it} = 1000000\n")).collect();
            format!(
                "site = \"a\"\nhttp = \"h:3\"\nstate_dir = \"/tmp\"\n{rest}\n[pools]\n{}",
                pools.concat()
            )
        };
        let two = "[members]\na = \"h:1\"\nb = \"h:2\"";
        let etcd = "etcd = [\"http://h:2379\"]\n[members]\na = \"h:1\"";
        for (pools, rest, good) in
            [(2, "", true), (3, "", false), (3, two, false), (1, etcd, false)]
        {
            let parsed = Config::parse(&text(pools, rest));
            assert_eq!(parsed.is_ok(), good, "{pools} {rest}: {parsed:?}");
        }
    }

    #[test]
    fn settings_that_differ_are_named() {
        let config = Config::parse("http = \"h:1\"\n[pools]\nx = 1\n").unwrap();
        let other = Config::parse("http = \"h:2\"\nsite_lease = \"9s\"\n[pools]\nx = 2\n");
        assert_eq!(config.differs_in(&other.unwrap()), ["http", "site_lease"]);
        assert_eq!(config.differs_in(&config), [""; 0]);
    }

    #[test]
    fn garbage_is_refused_not_panicked_on() {
        for text in ["[", "=", "a = [", "\u{0}", "site = 1", "pools = 3", "members = []"] {
            assert!(Config::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_published_listing_never_runs_in_a_site() {
        for kind in Kind::ALL {
            if kind.profile().as_printed {
                assert!(protocol_named(kind.name()).is_err());
                assert!(semaphore_protocol_named(kind.name()).is_err());
            }
        }
    }

    #[test]
    fn semaphores_are_read_and_their_mistakes_reported() {
        let text = |semaphores: &str| format!("http = \"127.0.0.1:1\"\n{semaphores}\n");
        let config = Config::parse(&text(
            "[semaphores]\nslots = 3\n[semaphores.items]\nvalue = 0\nprotocol = \"sem-quorum\"",
        ));
        let config = config.unwrap();
        assert_eq!(config.semaphores["slots"], SemaphoreConfig::new(3));
        assert_eq!(config.semaphores["items"].protocol, Kind::SemQuorum);
        for (bad, hint) in [
            ("[semaphores]\nx = -1", "line 3: semaphore `x`"),
            ("[semaphores]\nx = 4294967296", "from 0 to 4294967295"),
            ("[semaphores.x]\nprotocol = \"sem-token\"", "its `value`"),
            ("[semaphores.x]\nvalue = 1\nprotocol = \"permission\"", "not for semaphores"),
            ("[pools.x]\nunits = 1\nprotocol = \"sem-token\"", "not for pools"),
            ("[semaphores.x]\nvalue = 1\nvalu = 2", "did you mean `value`?"),
            ("[semaphores.x]\nvalue = 1\ncrashes = 1", "sem-quorum"),
            ("[semaphores]\n\"a b\" = 1", "is not a name"),
        ] {
            let mistakes = Config::parse(&text(bad)).unwrap_err().to_string();
            assert!(mistakes.contains(hint), "{bad}: {mistakes}");
        }
    }

    #[test]
    fn a_quorum_pool_may_say_who_decides() {
        let text = |pool: &str| {
            format!(
                "http = \"127.0.0.1:1\"\nsite = \"a\"\nstate_dir = \"/tmp\"\n[members]\n\
                 a = \"h:1\"\nb = \"h:2\"\nc = \"h:3\"\n[pools.gpu]\nunits = 1\n{pool}\n"
            )
        };
        let quorum = |rest: &str| text(&format!("protocol = \"quorum\"\n{rest}"));
        let good = "construction = \"threshold\"\ncrashes = 1\narbiters = [\"a\", \"b\", \"c\"]";
        let config = Config::parse(&quorum(good)).unwrap();
        let said = config.pools["gpu"].arbitration.clone().unwrap();
        assert_eq!(said.crashes, 1);
        assert_eq!(said.arbiters, Some(vec![SiteId(0), SiteId(1), SiteId(2)]));
        for (bad, hint) in [
            (quorum("construction = \"heap\""), "there is no construction"),
            (quorum("crashes = 2"), "the most is 1"),
            (quorum("crashes = -1"), "a number of sites"),
            (quorum("arbiters = [\"z\"]"), "not a member"),
            (quorum("arbiters = []"), ""),
            (text("crashes = 1"), "protocol = \"quorum\""),
        ] {
            let mistakes = Config::parse(&bad).unwrap_err().to_string();
            assert!(mistakes.contains(hint), "{bad}: {mistakes}");
        }
    }
}
