//! Tree pools in real sites: a process is killed and comes back, memories are garbled, and the pool
//! heals with nobody's help.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::harness::{Cluster, serve, signal, until};

const POOL: &str = "[pools.gpu]\nunits = [\"a\", \"b\", \"c\"]\nprotocol = \"tree\"\n";

/// All units at once, for a moment; waits for as long as healing takes.
fn all_three(cluster: &Cluster, site: usize) {
    let out =
        cluster.run(site, &["run", "gpu:3", "--wait", "80s", "--", "printenv", "KOFM_UNITS_GPU"]);
    assert!(out.status.success(), "{out:?}");
    let mut units: Vec<_> =
        String::from_utf8(out.stdout).unwrap().trim().split(',').map(str::to_owned).collect();
    units.sort();
    assert_eq!(units, ["a", "b", "c"]);
}

fn post(http: &str, path: &str) -> String {
    let address = http.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn happened(cluster: &Cluster, event: &str) -> bool {
    let history = cluster.json(0, &["history", "--json"]);
    history.to_string().contains(&format!("\"{event}\""))
}

#[test]
fn a_tree_pool_goes_on_when_a_site_dies_and_comes_back() {
    let mut cluster = Cluster::start(3, POOL);
    all_three(&cluster, 0);
    all_three(&cluster, 2);
    // Site 2 dies with a unit in use.
    let held = cluster.run(2, &["acquire", "gpu", "--json"]);
    assert!(held.status.success(), "{held:?}");
    cluster.sites[2].kill().unwrap();
    cluster.sites[2].wait().unwrap();
    // Two of three go on, and make its unit anew once nobody can use it any more.
    all_three(&cluster, 1);
    let (child, http) = serve(&cluster.configs[2]);
    cluster.sites[2] = child;
    cluster.http[2] = http;
    all_three(&cluster, 2);
    // The root, too.
    cluster.sites[0].kill().unwrap();
    cluster.sites[0].wait().unwrap();
    let (child, http) = serve(&cluster.configs[0]);
    cluster.sites[0] = child;
    cluster.http[0] = http;
    all_three(&cluster, 0);
    cluster.all_free("gpu");
}

/// A site that stands still for longer than its site lease ends its leases when it goes on, and the
/// others have gone on without it. Its protocol must give back what the leases held.
#[test]
fn a_tree_pool_loses_no_unit_when_a_site_stands_still() {
    let cluster = Cluster::start_as(3, "site_lease = \"1s\"\n", POOL);
    all_three(&cluster, 0);
    let held = cluster.run(1, &["acquire", "gpu", "--json"]);
    assert!(held.status.success(), "{held:?}");
    signal(&cluster.sites[1], "STOP");
    cluster.members(0, 2);
    signal(&cluster.sites[1], "CONT");
    cluster.members(1, 3);
    for site in 0..3 {
        all_three(&cluster, site);
    }
    cluster.all_free("gpu");
}

#[test]
fn a_tree_pool_heals_from_garbage_in_every_site() {
    let cluster = Cluster::start(3, POOL);
    all_three(&cluster, 0);
    for http in &cluster.http {
        let answer = post(http, "/v1/pools/gpu/scramble");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    assert!(happened(&cluster, "corrupted"));
    until("the root has counted everything and found it right", || happened(&cluster, "healed"));
    for site in 0..3 {
        all_three(&cluster, site);
    }
    cluster.all_free("gpu");
}
