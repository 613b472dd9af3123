//! Network namespaces, one for each host, on one switch; all of it is gone when the lab is dropped.

use std::fs::File;
use std::io::Write;
use std::process::{Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

pub(crate) struct Lab {
    name: String,
    hosts: usize,
    /// What each host's filter drops now.
    rules: Vec<Vec<(u64, String)>>,
}

fn sh(program: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{program} {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr)))
}

impl Lab {
    /// So many hosts; an error says what is not allowed or not installed here.
    pub(crate) fn new(hosts: usize) -> Result<Self, String> {
        sh("nft", &["--version"]).map_err(|e| format!("{e}; apt-get install nftables"))?;
        let name = format!("kofm{}", std::process::id());
        let hub = format!("{name}-hub");
        let mut lab = Self { name, hosts: 0, rules: vec![Vec::new(); hosts] };
        sh("ip", &["netns", "add", &hub])?;
        sh("ip", &["-n", &hub, "link", "add", "switch", "type", "bridge"])?;
        sh("ip", &["-n", &hub, "link", "set", "switch", "up"])?;
        for host in 0..hosts {
            lab.hosts += 1;
            let (space, port) = (lab.space(host), format!("p{host}"));
            sh("ip", &["netns", "add", &space])?;
            let pair = ["link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns"];
            sh("ip", &[&["-n", &hub][..], &pair, &[&space]].concat())?;
            sh("ip", &["-n", &hub, "link", "set", &port, "master", "switch", "up"])?;
            let address = format!("{}/24", Self::address(host));
            sh("ip", &["-n", &space, "addr", "add", &address, "dev", "eth0"])?;
            sh("ip", &["-n", &space, "link", "set", "eth0", "up"])?;
            sh("ip", &["-n", &space, "link", "set", "lo", "up"])?;
            lab.filter(host)?;
        }
        Ok(lab)
    }

    pub(crate) fn space(&self, host: usize) -> String {
        format!("{}-{host}", self.name)
    }

    pub(crate) fn address(host: usize) -> String {
        format!("10.213.77.{}", host + 1)
    }

    /// A command inside a host.
    pub(crate) fn command(&self, host: usize, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.space(host), program]);
        command.stdin(Stdio::null());
        command
    }

    /// Moves the calling thread into a host.
    pub(crate) fn enter(space: &str) {
        let file = File::open(format!("/run/netns/{space}")).expect("the lab is there");
        move_into_link_name_space(
            std::os::fd::AsFd::as_fd(&file),
            Some(LinkNameSpaceType::Network),
        )
        .expect("whoever made it may enter");
    }

    /// Adds a rule to a host's filter; `direction` is `in` or `out`.
    pub(crate) fn drop_packets(
        &mut self,
        host: usize,
        id: u64,
        direction: &str,
        peer: Option<usize>,
        percent: u32,
    ) {
        let (field, side) = if direction == "in" {
            ("saddr", "iifname != \"lo\"")
        } else {
            ("daddr", "oifname != \"lo\"")
        };
        let peer = peer.map(|it| format!("ip {field} {} ", Self::address(it)));
        let lot = if percent < 100 {
            format!("numgen random mod 100 < {percent} ")
        } else {
            String::new()
        };
        let rule = format!("{direction} {side} {}{lot}counter drop", peer.unwrap_or_default());
        self.rules[host].push((id, rule));
        self.filter(host).expect("the filter takes another rule");
    }

    /// Takes the rules of a fault away; says how many packets they have dropped.
    pub(crate) fn heal(&mut self, host: usize, id: u64) -> u64 {
        let listed = sh(
            "ip",
            &["netns", "exec", &self.space(host), "nft", "list", "table", "inet", "chaos"],
        )
        .unwrap_or_default();
        let dropped = listed.lines().filter_map(|line| {
            let rest = line.split("counter packets ").nth(1)?;
            rest.split(' ').next()?.parse::<u64>().ok()
        });
        let dropped = dropped.sum();
        self.rules[host].retain(|rule| rule.0 != id);
        self.filter(host).expect("the filter takes fewer rules");
        dropped
    }

    fn filter(&self, host: usize) -> Result<(), String> {
        let chain = |name: &str, hook: &str| {
            let rules = self.rules[host].iter().filter_map(|(_, rule)| rule.strip_prefix(name));
            let rules: Vec<&str> = rules.collect();
            format!(
                "chain {name} {{ type filter hook {hook} priority 0; policy accept;\n{}\n}}\n",
                rules.join("\n")
            )
        };
        let text = format!(
            "add table inet chaos\ndelete table inet chaos\ntable inet chaos {{\n{}{}}}\n",
            chain("in", "input"),
            chain("out", "output")
        );
        let mut child = self
            .command(host, "nft")
            .args(["-f", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let mut stdin = child.stdin.take().expect("it is piped");
        stdin.write_all(text.as_bytes()).map_err(|error| error.to_string())?;
        drop(stdin);
        let output = child.wait_with_output().map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!("nft: {}\n{text}", String::from_utf8_lossy(&output.stderr)))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for host in 0..self.hosts {
            sh("ip", &["netns", "del", &self.space(host)]).ok();
        }
        sh("ip", &["netns", "del", &format!("{}-hub", self.name)]).ok();
    }
}
