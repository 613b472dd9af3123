//! Counters of the site, in the text form of Prometheus.

use std::fmt::{Display, Write};
use std::time::Duration;

use crate::api::State;
use crate::config::is_seat;
use crate::core::{Core, Pool};
use crate::links::LinkInfo;

/// Upper ends of the buckets, in seconds.
const BUCKETS: [f64; 12] =
    [0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0];

/// Pools with a histogram of their own.
const MAX_SERIES: usize = 200;

#[derive(Debug, Default)]
pub struct Metrics {
    pub submitted: u64,
    pub refused: u64,
    pub grants: u64,
    pub renewed: u64,
    pub released: u64,
    pub expired: u64,
    pub cancelled: u64,
    pub failed: u64,
    pub messages_sent: u64,
    /// About what was done with semaphores, to and from keepers.
    pub copies_sent: u64,
    pub messages_received: u64,
    pub peer_faults: u64,
    pub peer_resets: u64,
    pub conservation_errors: u64,
    pub epoch_changes: u64,
    pub stale_messages: u64,
    /// About copies of leases.
    pub copy_messages: u64,
}

/// How long leases of one pool were waited for and held.
#[derive(Debug, Default)]
pub struct Times {
    pub wait: Histogram,
    pub hold: Histogram,
}

#[derive(Debug, Default)]
pub struct Histogram {
    counts: [u64; BUCKETS.len() + 1],
    sum: f64,
}

impl Histogram {
    pub fn observe(&mut self, time: Duration) {
        let secs = time.as_secs_f64();
        let place = BUCKETS.iter().position(|&end| secs <= end).unwrap_or(BUCKETS.len());
        self.counts[place] += 1;
        self.sum += secs;
    }

    fn add(&mut self, other: &Self) {
        self.counts.iter_mut().zip(other.counts).for_each(|(count, more)| *count += more);
        self.sum += other.sum;
    }
}

impl Metrics {
    pub fn ended(&mut self, state: State) {
        match state {
            State::Released => self.released += 1,
            State::Cancelled => self.cancelled += 1,
            State::Failed => self.failed += 1,
            State::Expired | State::Queued | State::Granted => {}
        }
    }
}

pub fn text(core: &Core, links: &[LinkInfo]) -> String {
    let mut out = Out(String::new());
    let metrics = &core.metrics;
    out.head("kofm_build_info", "gauge", "The running version.");
    out.put("kofm_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    out.one("kofm_epoch", "gauge", "The version of the cluster's configuration.", core.epoch());
    out.head("kofm_pool_units", "gauge", "Units in the pool.");
    let shown = |pool: &&Pool| !pool.gone && !is_seat(&pool.name);
    let pools = || core.pools.iter().filter(shown);
    for pool in pools() {
        out.put("kofm_pool_units", &[("pool", &pool.name)], pool.config.units);
    }
    out.head("kofm_pool_units_held", "gauge", "Units in leases of this site.");
    for pool in pools() {
        let held = pool.used.len().saturating_sub(pool.quarantined.len());
        out.put("kofm_pool_units_held", &[("pool", &pool.name)], held);
    }
    let help = "Units kept back for a person; each is counted at one site.";
    out.head("kofm_pool_units_quarantined", "gauge", help);
    for pool in pools() {
        out.put("kofm_pool_units_quarantined", &[("pool", &pool.name)], pool.kept_back());
    }
    out.head("kofm_requests_waiting", "gauge", "Requests that wait at this site.");
    for pool in pools() {
        out.put("kofm_requests_waiting", &[("pool", &pool.name)], core.waiting_for(pool));
    }
    out.head("kofm_oldest_wait_seconds", "gauge", "How long the oldest request has waited.");
    let now = core.now;
    for pool in pools() {
        let oldest = pool.waiting.first().and_then(|it| core.requests.get(&it.1));
        let secs = oldest.map_or(0.0, |it| now.since(it.submitted).as_secs_f64());
        out.put("kofm_oldest_wait_seconds", &[("pool", &pool.name)], secs);
    }
    let semaphores = || core.semaphores.iter().filter(|it| !it.gone);
    out.head("kofm_semaphore_waiting", "gauge", "P that wait at this site.");
    for it in semaphores() {
        out.put("kofm_semaphore_waiting", &[("semaphore", &it.name)], it.waiting.len());
    }
    out.head("kofm_semaphore_taken_total", "counter", "Units that clients of this site took.");
    for it in semaphores() {
        out.put("kofm_semaphore_taken_total", &[("semaphore", &it.name)], core.own_tally(it).taken);
    }
    out.head("kofm_semaphore_added_total", "counter", "Units that clients of this site added.");
    for it in semaphores() {
        out.put("kofm_semaphore_added_total", &[("semaphore", &it.name)], core.own_tally(it).added);
    }
    for (name, help, value) in [
        ("kofm_requests_total", "Requests taken on.", metrics.submitted),
        ("kofm_requests_refused_total", "Requests refused at once.", metrics.refused),
        ("kofm_grants_total", "Leases given.", metrics.grants),
        ("kofm_leases_renewed_total", "Renewals.", metrics.renewed),
        ("kofm_leases_released_total", "Leases given back.", metrics.released),
        ("kofm_leases_expired_total", "Leases that were not renewed in time.", metrics.expired),
        ("kofm_requests_cancelled_total", "Requests given up by clients.", metrics.cancelled),
        ("kofm_requests_failed_total", "Requests whose wait ran out.", metrics.failed),
        ("kofm_peer_faults_total", "Messages refused as wrong.", metrics.peer_faults),
        ("kofm_session_resets_total", "Peers that came back without memory.", metrics.peer_resets),
    ] {
        out.one(name, "counter", help, value);
    }
    out.head("kofm_messages_total", "counter", "Messages between sites.");
    out.put("kofm_messages_total", &[("direction", "out")], metrics.messages_sent);
    out.put("kofm_messages_total", &[("direction", "in")], metrics.messages_received);
    let help = "Messages sent about copies of leases in pools that hold or quarantine.";
    out.one("kofm_copy_messages_total", "counter", help, metrics.copy_messages);
    let help = "Messages by which P and V are kept by other sites.";
    out.one("kofm_semaphore_copies_total", "counter", help, metrics.copies_sent);
    let help = "Units that were found with two holders; always 0.";
    out.one("kofm_units_conservation_error", "gauge", help, metrics.conservation_errors);
    let times = || pools().filter_map(|pool| Some((&*pool.name, pool.times.as_deref()?)));
    let waits = times().map(|(pool, it)| (pool, &it.wait));
    out.histograms("kofm_request_wait_seconds", "From request to grant.", waits);
    let holds = times().map(|(pool, it)| (pool, &it.hold));
    out.histograms("kofm_lease_hold_seconds", "From grant to the end.", holds);
    if let Some((bytes, dropped)) = core.kept.as_ref().map(|kept| kept.counts()) {
        out.one("kofm_history_bytes", "gauge", "Bytes of history that this site keeps.", bytes);
        let help = "Events that are not in the history because the disk did not take them.";
        out.one("kofm_history_dropped_total", "counter", help, dropped);
    }
    out.head("kofm_protocol_at_rest", "gauge", "1 where the protocol owes and waits for nothing.");
    for (number, (name, rest)) in core.protocols().enumerate() {
        let number = number.to_string();
        out.put(
            "kofm_protocol_at_rest",
            &[("protocol", name), ("engine", &number)],
            u8::from(rest),
        );
    }
    out.head("kofm_link_up", "gauge", "1 where the peer is connected.");
    for link in links {
        let peer = core.site_name(link.peer);
        out.put("kofm_link_up", &[("peer", &peer)], u8::from(link.up));
    }
    out.head("kofm_session_resumes_total", "counter", "Connections made to the peer.");
    for link in links {
        let peer = core.site_name(link.peer);
        out.put("kofm_session_resumes_total", &[("peer", &peer)], link.resumes);
    }
    out.head("kofm_link_messages_total", "counter", "Session messages with the peer.");
    for link in links {
        let peer = core.site_name(link.peer);
        out.put("kofm_link_messages_total", &[("peer", &peer), ("direction", "out")], link.sent);
        out.put("kofm_link_messages_total", &[("peer", &peer), ("direction", "in")], link.received);
    }
    out.head("kofm_session_unacknowledged", "gauge", "Messages that wait for the peer.");
    for link in links {
        let peer = core.site_name(link.peer);
        out.put("kofm_session_unacknowledged", &[("peer", &peer)], link.waiting);
    }
    out.0
}

struct Out(String);

impl Out {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}").expect("strings take all");
    }

    fn put(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        for (i, (label, text)) in labels.iter().enumerate() {
            let start = if i == 0 { '{' } else { ',' };
            write!(self.0, "{start}{label}=\"{text}\"").expect("strings take all");
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        writeln!(self.0, " {value}").expect("strings take all");
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.head(name, kind, help);
        self.put(name, &[], value);
    }

    fn histogram(&mut self, name: &str, pool: &str, histogram: &Histogram) {
        let mut total = 0;
        let bucket = format!("{name}_bucket");
        for (end, count) in BUCKETS.iter().zip(histogram.counts) {
            total += count;
            self.put(&bucket, &[("pool", pool), ("le", &end.to_string())], total);
        }
        total += histogram.counts[BUCKETS.len()];
        self.put(&bucket, &[("pool", pool), ("le", "+Inf")], total);
        self.put(&format!("{name}_sum"), &[("pool", pool)], histogram.sum);
        self.put(&format!("{name}_count"), &[("pool", pool)], total);
    }

    /// One histogram for each pool, up to [`MAX_SERIES`]; those of all others together.
    fn histograms<'a>(
        &mut self,
        name: &str,
        help: &str,
        mut list: impl Iterator<Item = (&'a str, &'a Histogram)>,
    ) {
        self.head(name, "histogram", help);
        for (pool, histogram) in list.by_ref().take(MAX_SERIES) {
            self.histogram(name, pool, histogram);
        }
        let mut others = Histogram::default();
        let mut more = false;
        for (_, histogram) in list {
            others.add(histogram);
            more = true;
        }
        if more {
            self.histogram(name, "(others)", &others);
        }
    }
}
