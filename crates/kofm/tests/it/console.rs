//! The console at `/`, in a browser. Without Chromium the tests print `NOT RUN` and the reason.
//! `KOFM_SCREENSHOTS=DIR` keeps pictures.

use std::process::{Child, Stdio};
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::browser::Browser;
use crate::harness::{Cluster, exit_code, until};

/// A browser, or a line that says why the test is not run.
fn browser() -> Option<Browser> {
    static MISSING: OnceLock<String> = OnceLock::new();
    if MISSING.get().is_none() {
        match Browser::start() {
            Ok(browser) => return Some(browser),
            Err(reason) => drop(MISSING.set(reason)),
        }
    }
    eprintln!("NOT RUN: the console in a browser: {}", MISSING.get().map_or("", String::as_str));
    None
}

const ROWS: &str = "[...document.querySelectorAll('.body .row')].map(it => it.innerText)";
const DIALOG: &str = "document.getElementById('dialog')";

fn wait(cluster: &Cluster, args: &[&str]) -> Child {
    let mut command = cluster.command(0, args);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn press_button(browser: &mut Browser, text: &str) {
    let find = format!(
        "[...document.querySelectorAll('dialog button, #actions button')]\
         .find(it => it.textContent === '{text}')"
    );
    browser.until(&format!("!!({find})"));
    browser.js(&format!("({find}).click()"));
}

fn shows(browser: &mut Browser, text: &str) {
    browser.until(&format!("document.body.innerText.includes('{text}')"));
}

#[test]
fn the_console_shows_units_queue_and_timeline_and_acts_after_a_confirmation() {
    let Some(mut browser) = browser() else { return };
    let pools = "[pools.gpu]\nunits = [\"gpu-0\", \"gpu-1\"]\n[pools.licence]\nunits = 5\n";
    let cluster = Cluster::start(1, pools);
    let acquire = ["acquire", "gpu:2", "--owner", "alice", "--reason", "training", "--ttl", "10m"];
    assert!(cluster.run(0, &acquire).status.success());
    let mut bob = wait(&cluster, &["acquire", "gpu:2", "--owner", "bob", "--wait", "10m"]);
    until("bob waits", || !cluster.json(0, &["queue", "--json"]).as_array().unwrap().is_empty());

    browser.window(1200, 760, "light");
    browser.go(&format!("{}/", cluster.http[0]));
    browser.until(&format!("{ROWS}.some(it => it.startsWith('gpu'))"));
    shows(&mut browser, "Healthy: the site reports no problem.");
    browser.picture("pools-light");

    // The units of a pool, each by its name, by keyboard alone.
    browser.key("ArrowDown");
    browser.key("Home");
    browser.key("Enter");
    browser.until("location.hash === '#/pool/gpu'");
    browser.until(&format!("{ROWS}.filter(it => it.includes('alice')).length === 2"));
    browser.picture("units-light");
    browser.js("location.hash = '#/pool/gpu/timeline'");
    browser.until("document.querySelectorAll('.track i').length === 2");
    let label = browser.js("document.querySelector('.track').getAttribute('aria-label')");
    assert!(label.as_str().unwrap().contains("alice (training)"), "{label}");
    browser.picture("timeline-light");

    // The queue, and what blocks a request.
    browser.key("2");
    browser.until(&format!("{ROWS}.some(it => it.includes('alice (training) holds 2 units'))"));
    browser.window(390, 800, "dark");
    browser.until("document.documentElement.scrollWidth <= 390");
    browser.picture("queue-dark-390");
    browser.js("document.querySelector('.body .row').click()");
    browser.until(&format!("{DIALOG}.open && {DIALOG}.innerText.includes('bob')"));
    browser.picture("request-dark-390");
    browser.key("Escape");
    browser.until(&format!("!{DIALOG}.open"));

    // An operator releases the lease of alice, after a confirmation, and bob gets the units.
    browser.window(1200, 760, "dark");
    browser.key("3");
    browser.until(&format!("{ROWS}.some(it => it.includes('alice'))"));
    browser.js("document.querySelector('.body .row').click()");
    press_button(&mut browser, "Release…");
    browser.until(&format!("{DIALOG}.innerText.includes('Release this lease?')"));
    browser.picture("confirm-dark");
    let leases = cluster.json(0, &["status", "--json"])["leases"].clone();
    assert_eq!(leases[0]["owner"], "alice", "nothing happens before the confirmation");
    press_button(&mut browser, "Release");
    assert_eq!(exit_code(&mut bob), 0);
    // The event of the grant changes the list without a key.
    browser.until(&format!("{ROWS}.some(it => it.includes('bob'))"));

    // Quarantine a unit, return it, resize a pool.
    browser.js("location.hash = '#/pool/licence/units'");
    browser.until(&format!("{ROWS}.length === 5"));
    browser.js("document.querySelectorAll('.body .row')[3].click()");
    press_button(&mut browser, "Quarantine…");
    browser.until("!!document.getElementById('reason')");
    browser.type_text("dongle is broken");
    press_button(&mut browser, "Quarantine");
    browser.until(&format!("{ROWS}.some(it => it.includes('dongle is broken'))"));
    assert_eq!(cluster.pool(0, "licence")["quarantine"][0]["unit"], "3");
    browser.js("document.querySelectorAll('.body .row')[3].click()");
    press_button(&mut browser, "Return to service…");
    press_button(&mut browser, "Return");
    until("the unit is back", || cluster.pool(0, "licence")["quarantined"] == 0);
    press_button(&mut browser, "Resize…");
    browser.until("document.getElementById('size').value === '5'");
    browser.js("document.getElementById('size').value = '7'");
    press_button(&mut browser, "Resize");
    until("the pool is larger", || cluster.pool(0, "licence")["units"] == 7);

    // A site is drained after a confirmation; the last one that takes requests is not.
    browser.key("6");
    browser.until(&format!("{ROWS}.some(it => it.startsWith('s0'))"));
    browser.js("document.querySelector('.body .row').click()");
    press_button(&mut browser, "Drain…");
    browser.until(&format!("{DIALOG}.innerText.includes('Drain s0?')"));
    browser.picture("drain-dark");
    press_button(&mut browser, "Drain");
    browser.until("document.querySelector('#dialog .fault').innerText !== ''");
    press_button(&mut browser, "Keep as it is");

    // Each list is named for a screen reader, and nothing was refused by the policy.
    for key in ["1", "2", "3", "4", "5", "6", "7"] {
        browser.key(key);
        browser.until("!!document.querySelector('[role=grid][aria-label]')");
    }
    let tree = browser.send("Accessibility.getFullAXTree", &json!({}))["nodes"].clone();
    let named = |role: &str, name: &str| {
        let nodes = tree.as_array().unwrap().iter();
        nodes.clone().any(|it| it["role"]["value"] == role && it["name"]["value"] == name)
    };
    assert!(named("grid", "History") && named("searchbox", "Filter"), "{tree}");
    assert!(named("navigation", "Lists") && named("button", "Keys"), "{tree}");
    // The browser notes the refused drain.
    let faults: Vec<_> = browser.faults.iter().filter(|it| !it.contains("s0/drain")).collect();
    assert!(faults.is_empty(), "{faults:?}");
}

#[test]
fn the_console_asks_for_a_token_and_offers_what_its_rules_allow() {
    let Some(mut browser) = browser() else { return };
    let cluster = Cluster::start(1, "[pools]\ngpu = 2\n");
    let token = |args: &[&str], with: Option<&str>| {
        let mut command = cluster.command(0, args);
        let output = command.env("KOFM_TOKEN", with.unwrap_or_default()).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let admin = token(&["token", "create", "root", "--allow", "admin:*"], None);
    let create = ["token", "create", "viewer", "--allow", "read:*"];
    let viewer = token(&create, Some(&admin));
    token(&["acquire", "gpu", "--owner", "alice", "--ttl", "10m"], Some(&admin));

    browser.window(1200, 760, "light");
    browser.go(&format!("{}/#/leases", cluster.http[0]));
    browser.until("document.activeElement.id === 'token'");
    browser.picture("token-light");
    browser.type_text("kofm_wrong");
    browser.key("Enter");
    browser.until(&format!("{DIALOG}.innerText.includes('token rejected')"));
    browser.until("document.activeElement.id === 'token'");
    browser.type_text(&viewer);
    browser.key("Enter");
    browser.until(&format!("{ROWS}.some(it => it.includes('alice'))"));
    browser.js("document.querySelector('.body .row').click()");
    browser.until(&format!("{DIALOG}.open && {DIALOG}.innerText.includes('alice')"));
    let buttons = format!("[...{DIALOG}.querySelectorAll('button')].map(it => it.textContent)");
    assert_eq!(browser.js(&buttons), json!(["Close"]), "a viewer is offered no action");

    // A token in a link is taken out of the address.
    browser.go("about:blank");
    browser.go(&format!("{}/#token={admin}", cluster.http[0]));
    browser.until(&format!("{ROWS}.some(it => it.startsWith('gpu'))"));
    assert_eq!(browser.js("location.href.includes('kofm_')"), false);
    browser.key("3");
    browser.until(&format!("{ROWS}.some(it => it.includes('alice'))"));
    browser.js("document.querySelector('.body .row').click()");
    browser.until(&format!("{buttons}.includes('Release…')"));
}

#[test]
fn the_console_keeps_few_rows_of_thousands_of_pools_and_waiters() {
    let Some(mut browser) = browser() else { return };
    let cluster = Cluster::start(1, "[pools]\ngpu = 1\n");
    // The page asks this instead of the site: 20,000 pools and 10,000 requests that wait.
    let answers = r"
      const pool = n => ({
        name: `pool-${String(n).padStart(5, '0')}`, units: 4, held: n % 5 === 0 ? 4 : 1, free: 3,
        quarantined: 0, waiting: 0, protocol: 'roaming', on_expiry: 'release',
      });
      const request = n => ({
        id: `R0-${n}`, state: 'queued', want: {gpu: 1}, owner: `user-${n}`, reason: null,
        position: n + 1, blocked_by: [], lease: null, site: 's0', waited_ms: 1000 * (10000 - n),
      });
      const list = (length, row) => Array.from({length}, (_, n) => row(n));
      const answer = value => Promise.resolve(new Response(JSON.stringify(value)));
      const real = window.fetch.bind(window);
      window.asked = [];
      window.fetch = (path, init) => {
        const url = new URL(path, location.href);
        window.asked.push(path);
        if (url.pathname === '/v1/pools') return answer(list(20000, pool));
        if (url.pathname !== '/v1/queue') return real(path, init);
        const limit = Number(url.searchParams.get('limit'));
        const after = Number(url.searchParams.get('after') ?? 0);
        const queue = list(Math.min(limit, 10000 - after), n => request(after + n));
        const next = after + limit < 10000 ? {next: String(after + limit)} : {};
        return answer({queue, ...next});
      };";
    browser.send("Page.addScriptToEvaluateOnNewDocument", &json!({"source": answers}));
    browser.window(1200, 760, "light");
    browser.go(&format!("{}/", cluster.http[0]));
    shows(&mut browser, "20,000 pools");
    let rows = |browser: &mut Browser| {
        browser.js("document.querySelectorAll('.body .row').length").as_u64().unwrap()
    };
    assert!(rows(&mut browser) < 60, "only rows in view are in the document");
    browser.key("ArrowDown");
    browser.key("End");
    browser.until(&format!("{ROWS}.some(it => it.startsWith('pool-19999'))"));
    browser.js("document.getElementById('filter').focus()");
    browser.type_text("pool-12345");
    browser.until(&format!("{ROWS}.length === 1"));
    shows(&mut browser, "1 of 20,000 pools");

    browser.key("Escape");
    browser.js("document.activeElement.blur()");
    browser.key("2");
    shows(&mut browser, "first 500 waiting requests");
    assert!(rows(&mut browser) < 60);
    let pages = "window.asked.filter(it => it.startsWith('/v1/queue')).length";
    assert_eq!(browser.js(pages), 1, "one page is read as long as one is looked at");
    // A filter is applied to all requests.
    browser.js("document.getElementById('filter').focus()");
    browser.type_text("user-9999");
    browser.until(&format!("{ROWS}.length === 1"));
    shows(&mut browser, "1 of 10,000 waiting requests");
    assert_eq!(browser.faults, Vec::<String>::new());
    assert_eq!(browser.js("document.documentElement.scrollWidth"), Value::from(1200));
}
