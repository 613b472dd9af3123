use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyEvent;
use serde_json::{Value, json};

use super::*;

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn pool(name: &str, units: u32, held: u32) -> Value {
    json!({
        "name": name, "units": units, "held": held, "free": units - held, "quarantined": 0,
        "waiting": 0, "protocol": "roaming", "on_expiry": "release",
    })
}

fn lease(owner: &str, unit: &str, fence: u64) -> Value {
    json!({
        "id": format!("L0-{owner}"), "request": format!("R0-{owner}"), "units": {"gpu": [unit]},
        "fence": fence, "ttl_ms": 30_000, "expires_in_ms": 12_300, "site": "s0", "epoch": 1,
        "state": "live", "owner": owner, "reason": "training", "held_ms": 65_000,
    })
}

fn waiting(position: u64, owner: &str) -> Value {
    json!({
        "id": format!("R0-{position}"), "state": "queued", "want": {"gpu": 2}, "owner": owner,
        "reason": null, "position": position, "lease": null, "site": "s0", "waited_ms": 4000,
        "blocked_by": [{
            "site": "s0", "owner": "alice", "reason": "training", "pool": "gpu", "units": 4,
            "lease": "L0-1", "state": "held", "expires_in_ms": 18_100,
        }],
    })
}

fn data(subject: Subject, list: List) -> Data {
    let health = json!({"health": "ok", "site": "s0", "epoch": 7, "problems": []});
    Data { subject, list, health: from(health) }
}

fn pools(list: Vec<Value>) -> Data {
    data(Subject::Pools, List::Pools(list.into_iter().map(from).collect()))
}

fn lines(screen: &mut Screen, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let row = |y| (0..width).map(|x| buffer[(x, y)].symbol().to_owned()).collect::<String>();
    (0..height).map(|y| row(y).trim_end().to_owned()).collect()
}

fn press(screen: &mut Screen, keys: &str) -> Next {
    let mut next = Next::Stay;
    for key in keys.chars() {
        let code = if key == '\n' { KeyCode::Enter } else { KeyCode::Char(key) };
        next = screen.press(KeyEvent::from(code));
    }
    next
}

#[test]
fn the_list_of_pools_fits_80_columns_and_24_lines() {
    let mut screen = Screen::new("http://127.0.0.1:7600");
    screen.update(Ok(pools(vec![pool("gpu", 4, 2), pool("licence", 10, 0)])));
    let text = lines(&mut screen, 80, 24);
    assert_eq!(
        text[..6],
        [
            "kofm top  http://127.0.0.1:7600                                 site s0, epoch 7",
            "Healthy: the site reports no problem.",
            " 1 Pools  2 Queue  3 Leases  4 Semaphores  5 Gangs  6 Sites  7 History",
            "POOL     UNITS  HELD  FREE  QUARANTINED  WAITING  PROTOCOL",
            "gpu      4      2     2     0            0        roaming",
            "licence  10     0     10    0            0        roaming",
        ]
    );
    assert_eq!(text[23], "1/2  q quit  Enter details  / filter  s sort  r reverse  Tab next");
}

#[test]
fn a_long_list_scrolls_and_the_selection_stays_in_view() {
    let mut screen = Screen::new("a");
    let list = || (0..20_000).map(|n| pool(&format!("p{n:05}"), 1, 0)).collect();
    screen.update(Ok(pools(list())));
    lines(&mut screen, 80, 24);
    screen.press(KeyEvent::from(KeyCode::End));
    assert!(lines(&mut screen, 80, 24)[22].starts_with("p19999"));
    screen.press(KeyEvent::from(KeyCode::PageUp));
    let text = lines(&mut screen, 80, 24);
    assert!(text[23].starts_with("19981/20000"), "{text:?}");
    assert!(text.iter().any(|line| line.starts_with("p19980")), "{text:?}");
    screen.press(KeyEvent::from(KeyCode::Home));
    assert!(lines(&mut screen, 80, 24)[4].starts_with("p00000"));
}

#[test]
fn a_refresh_keeps_the_selected_row() {
    let mut screen = Screen::new("a");
    screen.update(Ok(pools(vec![pool("b", 1, 0), pool("c", 1, 0)])));
    press(&mut screen, "j");
    screen.update(Ok(pools(vec![pool("a", 1, 0), pool("b", 1, 0), pool("c", 1, 0)])));
    assert_eq!(screen.grid.rows[screen.selected].key, "c");
    // The row has gone: the selection stays within the list.
    screen.update(Ok(pools(vec![pool("a", 1, 0)])));
    assert_eq!(screen.selected, 0);
}

#[test]
fn a_filter_is_typed_kept_and_cleared() {
    let mut screen = Screen::new("a");
    screen.update(Ok(pools(vec![pool("gpu", 4, 2), pool("quota", 10, 0)])));
    // `q` is a letter of the filter here, and ends the program nowhere else.
    assert_eq!(press(&mut screen, "/q"), Next::Stay);
    assert_eq!(lines(&mut screen, 80, 24)[23], "Filter: q");
    press(&mut screen, "\n");
    let text = lines(&mut screen, 80, 24);
    assert!(text[4].starts_with("quota") && text[5].is_empty(), "{text:?}");
    screen.press(KeyEvent::from(KeyCode::Esc));
    assert!(lines(&mut screen, 80, 24)[4].starts_with("gpu"));
    assert_eq!(press(&mut screen, "q"), Next::Quit);
}

#[test]
fn rows_are_sorted_by_the_chosen_column() {
    let mut screen = Screen::new("a");
    screen.update(Ok(pools(vec![pool("b", 9, 0), pool("a", 10, 0)])));
    press(&mut screen, "s");
    assert_eq!(screen.grid.rows[0].key, "a");
    press(&mut screen, "s");
    assert_eq!(screen.grid.rows[0].key, "b");
    assert!(lines(&mut screen, 80, 24)[3].starts_with("POOL  UNIT↑"));
    press(&mut screen, "r");
    assert_eq!(screen.grid.rows[0].key, "a");
    assert!(lines(&mut screen, 80, 24)[3].starts_with("POOL  UNIT↓"));
}

#[test]
fn a_pool_opens_its_units_by_name() {
    let mut screen = Screen::new("a");
    screen.update(Ok(pools(vec![pool("gpu", 3, 1)])));
    let subject = Subject::Pool("gpu".into());
    assert_eq!(press(&mut screen, "\n"), Next::Show(subject.clone()));
    let mut gpu = pool("gpu", 3, 1);
    gpu["names"] = json!(["gpu-0", "gpu-1", "gpu-2"]);
    gpu["quarantine"] = json!([{"unit": "gpu-2", "reason": "ECC errors", "held": false}]);
    let leases = vec![from(lease("alice", "gpu-1", 9))];
    screen.update(Ok(data(subject, List::Pool(Box::new(from(gpu)), leases))));
    let text = lines(&mut screen, 80, 24);
    assert_eq!(
        text[3..8],
        [
            "Pool gpu: 2 of 3 units free, 1 held, 0 quarantined, 0 waiting; roaming; on expi…",
            "UNIT   STATE        OWNER  HELD FOR  ENDS IN  SITE  REASON",
            "gpu-0  not held",
            "gpu-1  held         alice  1m05s     12.3s    s0    training",
            "gpu-2  quarantined                                  ECC errors",
        ]
    );
    screen.press(KeyEvent::from(KeyCode::Esc));
    assert_eq!(screen.subject(), Subject::Pools);
}

#[test]
fn a_request_opens_what_blocks_it() {
    let mut screen = Screen::new("a");
    assert_eq!(press(&mut screen, "2"), Next::Show(Subject::Queue));
    let queue = vec![from(waiting(1, "bob")), from(waiting(2, "carol"))];
    screen.update(Ok(data(Subject::Queue, List::Queue(queue))));
    let text = lines(&mut screen, 80, 24);
    assert!(text[4].contains("R0-1") && text[4].contains("alice (training)"), "{text:?}");
    let subject = Subject::Request("R0-2".into());
    assert_eq!(press(&mut screen, "j\n"), Next::Show(subject.clone()));
    let request = Box::new(from(waiting(2, "carol")));
    screen.update(Ok(data(subject, List::Request(request))));
    let text = lines(&mut screen, 80, 24).join("\n");
    assert!(text.contains("Request R0-2 (carol) wants gpu:2: queued at s0"), "{text}");
    assert!(text.contains("Place 2, waited 4.0s"), "{text}");
    assert!(text.contains("\nalice (training) holds 4 units of gpu at s0\n"), "{text}");
    assert!(text.contains("\n  the lease expires in 18.1s unless renewed\n"), "{text}");
}

#[test]
fn an_answer_to_an_earlier_subject_is_dropped() {
    let mut screen = Screen::new("a");
    press(&mut screen, "3");
    screen.update(Ok(pools(vec![pool("gpu", 4, 2)])));
    assert!(screen.data.is_none());
}

#[test]
fn problems_and_errors_are_shown_in_words_above_the_last_answer() {
    let mut screen = Screen::new("a");
    let mut data = pools(vec![pool("gpu", 4, 2)]);
    data.health = from(json!({
        "health": "minority", "site": "s0", "epoch": 7,
        "problems": [{
            "code": "minority", "message": "1 of 3 sites answers; nothing is granted",
            "action": "start the other sites",
        }],
    }));
    screen.update(Ok(data));
    screen.update(Err("connection refused".into()));
    let text = lines(&mut screen, 80, 24);
    assert_eq!(text[1], "Not up to date: connection refused");
    assert_eq!(text[2], "minority: 1 of 3 sites answers; nothing is granted");
    assert_eq!(text[3], "  start the other sites");
    assert!(text[6].starts_with("gpu"), "{text:?}");
}

#[test]
fn every_list_is_drawn_at_any_size() {
    let event = json!({
        "at_ms": 1000, "seq": 1, "event": "expired", "site": "s0", "owner": "a\u{1b}[2Jb",
    });
    let lists = [
        data(Subject::Pools, List::Pools(vec![from(pool("gpu", 4, 2))])),
        data(Subject::Queue, List::Queue(vec![from(waiting(1, "bob"))])),
        data(Subject::Leases, List::Leases(vec![from(lease("alice", "gpu-1", 9))])),
        data(Subject::Semaphores, List::Semaphores(Vec::new())),
        data(Subject::Gangs, List::Gangs(Vec::new())),
        data(Subject::Sites, List::Sites(Vec::new())),
        data(Subject::History, List::History(vec![from(event)])),
    ];
    for (tab, data) in lists.into_iter().enumerate() {
        let mut screen = Screen::new("http://a-site-with-a-long-name.example:7600");
        screen.show_tab(tab);
        screen.update(Ok(data));
        for (width, height) in [(1, 1), (10, 3), (40, 10), (80, 24), (300, 100)] {
            let text = lines(&mut screen, width, height).join("\n");
            assert!(!text.contains('\x1b'), "{text}");
        }
    }
}
