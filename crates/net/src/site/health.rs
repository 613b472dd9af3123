//! The verdict on a site: one word for every answer, sentences for people.

use std::sync::atomic::Ordering;

use super::Site;
use crate::api::{Health, Problem};
use kofm_site::rules::Principals;

impl Site {
    /// The site's health in a word, as the header `kofm-health` carries it.
    pub fn verdict(&self) -> String {
        let missing = self.missing_members();
        self.verdict_with(&missing)
    }

    fn verdict_with(&self, missing: &[String]) -> String {
        if self.is_draining() {
            return "draining".to_owned();
        }
        let view = self.0.view.borrow();
        if let Some(verdict) = view.verdict {
            return verdict.to_owned();
        }
        if view.disk {
            return "disk".to_owned();
        }
        drop(view);
        if !missing.is_empty() {
            return format!("missing={}", missing.join(","));
        }
        if self.is_exposed() { "insecure" } else { "ok" }.to_owned()
    }

    /// The site's health in sentences, each with the next step.
    pub fn health(&self) -> Health {
        let missing = self.missing_members();
        let health = self.verdict_with(&missing);
        let (site, view) = (self.0.config.site.clone(), self.view());
        let mut problems = Vec::new();
        let mut add = |code: &str, message: String, action: &str| {
            problems.push(Problem { code: code.to_owned(), message, action: action.to_owned() });
        };
        if self.is_draining() {
            let text = format!("site {site} is draining: it takes no new requests");
            add(
                "draining",
                text,
                "send requests to another site; `kofm undrain` ends it, or a start of this site",
            );
        }
        match view.verdict {
            Some("minority") => {
                let why = view.trouble.clone().unwrap_or_default();
                let text = format!("site {site} grants nothing, it has no majority: {why}");
                let action = "start the sites that `kofm members` shows as away, repair the \
                              network between the sites, or ask a site of the majority";
                add("minority", text, action);
            }
            // Told below.
            Some("disk") | None => {}
            Some(word) => {
                let why = view.trouble.clone().unwrap_or_default();
                let text = format!("site {site} grants nothing until its epoch is in force: {why}");
                let action = "wait some seconds; if it lasts, look for sites in state away or \
                              refused with `kofm members`, and read the log of this site";
                add(word, text, action);
            }
        }
        if view.disk || view.verdict == Some("disk") {
            let why = view.trouble.clone().map_or(String::new(), |why| format!(": {why}"));
            let text = format!("the disk of site {site} does not take its state{why}");
            let action = "free space in state_dir or repair the disk, then restart the site";
            add("disk", text, action);
        }
        for member in self.peers_seen() {
            if !missing.contains(&member.site) {
                continue;
            }
            let why = member.trouble.map_or(String::new(), |why| format!(": {why}"));
            let text = format!("site {} is {}{why}", member.site, member.state);
            let action = if member.state == "refused" {
                "read its log; it comes back with the next epoch, or needs a restart"
            } else {
                "start it with `kofm serve --config site.toml`, or repair the network to it"
            };
            add("missing", text, action);
        }
        for (text, action) in self.insecurities() {
            add("insecure", text, action);
        }
        Health { health, site, epoch: view.epoch, problems }
    }

    /// Members of the cluster to which this site has no link.
    fn missing_members(&self) -> Vec<String> {
        let away = self.peers().filter(|&peer| !self.0.mesh.is_up(peer));
        let names = away.map(|peer| self.name_of(peer));
        names.filter(|name| !name.is_empty()).collect()
    }

    /// Notes that clients from other machines reach this site: whether they need no credential, and
    /// whether they may speak HTTP without TLS.
    pub(crate) fn note_exposed(&self, open: bool, plain: bool) {
        self.0.exposed.fetch_or(plain, Ordering::Relaxed);
        self.0.unguarded.fetch_or(open, Ordering::Relaxed);
    }

    fn is_exposed(&self) -> bool {
        self.peers_exposed().is_some() || self.0.exposed.load(Ordering::Relaxed)
    }

    /// The address at which other machines reach the port for sites.
    fn peers_exposed(&self) -> Option<&str> {
        let config = &self.0.config;
        let listens = config.members.len() > 1 && !self.0.together && config.tls.is_none();
        let own = config.listen.as_ref().or_else(|| config.members.get(&config.site));
        own.filter(|address| listens && !self.0.local && !address.is_empty()).map(String::as_str)
    }

    /// Each way in which other machines can reach this site without protection, and the next step.
    pub fn insecurities(&self) -> Vec<(String, &'static str)> {
        let mut list = Vec::new();
        let site = &self.0.config.site;
        let open = self.with_principals(Principals::is_empty);
        if open && self.0.unguarded.load(Ordering::Relaxed) {
            let text = format!("clients on other machines use site {site} without a token");
            list.push((text, "set token_file, or let http be a loopback address"));
        }
        if self.0.exposed.load(Ordering::Relaxed) {
            let text = format!("clients on other machines use site {site} without TLS");
            let action = "set [https] or [tls] and remove insecure = true, or restrict the network \
                          of the port";
            list.push((text, action));
        }
        if let Some(address) = self.peers_exposed() {
            let text = format!("site {site} links to the other sites without TLS, at {address}");
            list.push((text, "let only the machines of the other sites reach this port"));
        }
        list
    }
}
