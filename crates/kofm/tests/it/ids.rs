//! One id is one request, also while sites are away.

use crate::harness::{Cluster, get, until};

/// The status of `GET /v1/requests/ID` at a site.
fn status(cluster: &Cluster, site: usize, id: &str) -> u16 {
    let answer = get(&cluster.http[site], &format!("/v1/requests/{id}"));
    answer.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn an_id_is_unknown_only_if_every_site_that_may_have_it_says_so() {
    // A killed site is back while its leases are kept, however slow the machine is.
    let mut cluster = Cluster::start_as(3, "site_lease = \"30s\"\n", "[pools]\ngpu = 2\n");
    cluster.members(1, 3);
    assert_eq!(status(&cluster, 1, "job"), 404);
    let acquire = ["acquire", "gpu", "--id", "job", "--ttl", "10m", "--json"];
    let lease = cluster.json(0, &acquire)["id"].clone();
    cluster.kill(0);
    // While it is a member, and when the others have gone on without it.
    for members in [3, 2] {
        if members == 2 {
            cluster.members(1, 2);
        }
        assert_eq!(status(&cluster, 1, "job"), 503);
        let output = cluster.run(1, &acquire);
        assert_eq!(output.status.code(), Some(69), "{output:?}");
    }
    cluster.restart(0);
    for site in [1, 0] {
        until("the site is back", || {
            let code = status(&cluster, site, "job");
            assert!(code == 200 || code == 503, "{code}");
            code == 200
        });
    }
    assert_eq!(cluster.json(1, &acquire)["id"], lease);
    assert_eq!(cluster.pool(1, "gpu")["held"], 1);
}

#[test]
fn an_id_of_a_site_that_stays_away_is_free_again() {
    let mut cluster = Cluster::start_as(3, "site_lease = \"1s\"\n", "[pools]\ngpu = 1\n");
    cluster.members(1, 3);
    let acquire = ["acquire", "gpu", "--id", "job", "--ttl", "10m", "--json"];
    let lease = cluster.json(0, &acquire)["id"].clone();
    cluster.kill(0);
    until("its quarantine is over", || status(&cluster, 1, "job") == 404);
    assert_ne!(cluster.json(1, &acquire)["id"], lease);
    cluster.restart(0);
    cluster.members(0, 3);
    assert_eq!(status(&cluster, 0, "job"), 200);
    assert_eq!(cluster.pool(0, "gpu")["held"], 1);
}
