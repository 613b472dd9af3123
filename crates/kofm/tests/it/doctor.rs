//! `kofm doctor`, and the verdict on health beside results.

use serde_json::Value;

use crate::harness::{Cluster, until};

#[test]
fn doctor_and_status_name_the_missing_site() {
    let mut cluster = Cluster::start(3, "[pools]\ngpu = 2\n");
    cluster.members(0, 3);
    until("doctor finds nothing", || cluster.run(0, &["doctor"]).status.success());
    assert!(cluster.run(0, &["status"]).stderr.is_empty());

    cluster.kill(2);
    let mut health = Value::Null;
    until("doctor names the missing site", || {
        let output = cluster.run(0, &["doctor", "--json"]);
        health = serde_json::from_slice(&output.stdout).unwrap();
        output.status.code() == Some(1) && health["health"] == "missing=s2"
    });
    assert_eq!(health["problems"][0]["code"], "missing", "{health}");
    let doctor = String::from_utf8(cluster.run(0, &["doctor"]).stdout).unwrap();
    assert!(doctor.contains("site s2 is") && doctor.contains("kofm serve"), "{doctor}");
    for command in ["status", "queue"] {
        let output = cluster.run(0, &[command, "--json"]);
        let talk = String::from_utf8(output.stderr).unwrap();
        assert!(talk.contains("site s2 is") && talk.contains("kofm doctor"), "{talk}");
        assert!(serde_json::from_slice::<Value>(&output.stdout).is_ok());
    }

    cluster.kill(1);
    until("one of three is a minority", || {
        let output = cluster.run(0, &["doctor", "--json"]);
        let health: Value = serde_json::from_slice(&output.stdout).unwrap();
        health["health"] == "minority"
    });
    let text = String::from_utf8(cluster.run(0, &["status"]).stderr).unwrap();
    assert!(text.contains("minority"), "{text}");
}

#[test]
fn doctor_says_how_to_start_a_site_if_none_answers() {
    let output = crate::harness::command("http://127.0.0.1:1", &["doctor"]).output().unwrap();
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    assert!(String::from_utf8(output.stderr).unwrap().contains("kofm up"));
}
