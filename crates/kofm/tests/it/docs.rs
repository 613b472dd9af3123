//! Runs every command of the README and of the book, and compares what it prints.
//!
//! A page with commands has a line `<!-- test: cluster=up -->` (a cluster of three sites in one
//! process) or `<!-- test: cluster=none -->`, with `; needs=lab` if it runs the simulator. In a
//! block ```` ```console ````, lines that begin with `$ ` are commands, the others are the expected
//! output; `…` stands for any text. A command that ends with `&` runs in the background.
//! `[exit 75]` is the expected exit code. A prompt such as `a$ ` is a shell of its own: another
//! machine, with its own state and ports. In a command, a word such as `L0-…` is the last word with
//! that beginning that was printed.
//!
//! The language may be followed by `eventually` (repeat until the output matches), `stderr`
//! (compare standard error, too) or `skip="reason"`. A block with `file=NAME` is written to that
//! file.
//! `KOFM_DOCS=part` runs only pages whose path contains the part.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::harness::{KOFM, LONG, free_port, temp_dir};

/// Languages of blocks in which a reader expects commands: they must be `console`.
const SHELLS: [&str; 4] = ["sh", "bash", "shell", "zsh"];

struct Block {
    line: usize,
    info: String,
    text: String,
}

struct Page {
    path: PathBuf,
    cluster: Option<String>,
    /// It runs the simulator or the checker.
    needs_lab: bool,
    blocks: Vec<Block>,
}

/// One command and its expected output.
struct Step {
    line: usize,
    host: String,
    command: String,
    expected: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn pages() -> Vec<Page> {
    let mut paths = vec![root().join("README.md")];
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "md") {
                paths.push(path);
            }
        }
    }
    paths.sort();
    let wanted = std::env::var("KOFM_DOCS").unwrap_or_default();
    paths.retain(|path| path.to_string_lossy().contains(&wanted));
    paths.into_iter().map(page).collect()
}

fn page(path: PathBuf) -> Page {
    let text = fs::read_to_string(&path).unwrap();
    let cluster = text.lines().find_map(|line| {
        let rest = line.strip_prefix("<!-- test: cluster=")?;
        Some(rest.trim_end_matches("-->").trim().to_owned())
    });
    let needs = cluster.as_deref().and_then(|it| it.split_once("; needs=")).map(|it| it.1);
    let needs_lab = needs == Some("lab");
    let cluster = cluster.as_deref().map(|it| it.split(';').next().unwrap_or_default().to_owned());
    let mut blocks = Vec::new();
    let mut open: Option<(String, Block)> = None;
    for (line, text) in (1..).zip(text.lines()) {
        match &mut open {
            None => {
                let ticks: String = text.chars().take_while(|&it| it == '`').collect();
                if ticks.len() >= 3 {
                    let info = text[ticks.len()..].to_owned();
                    open = Some((ticks, Block { line, info, text: String::new() }));
                }
            }
            Some((ticks, _)) if text == ticks => blocks.extend(open.take().map(|it| it.1)),
            Some((_, block)) => {
                block.text.push_str(text);
                block.text.push('\n');
            }
        }
    }
    Page { path, cluster, needs_lab, blocks }
}

impl Block {
    fn language(&self) -> &str {
        self.info.split(',').next().unwrap_or_default().trim()
    }

    fn has(&self, word: &str) -> bool {
        self.info.split(',').any(|it| it.trim() == word)
    }

    fn value(&self, name: &str) -> Option<&str> {
        let rest = self.info.split_once(&format!("{name}="))?.1;
        match rest.strip_prefix('"') {
            Some(quoted) => quoted.split('"').next(),
            None => rest.split(',').next(),
        }
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::new();
        for (number, text) in (self.line + 1..).zip(self.text.lines()) {
            let prompt = text
                .split_once("$ ")
                .filter(|it| it.0.len() <= 8 && it.0.chars().all(|it| it.is_ascii_alphanumeric()));
            match (prompt, steps.last_mut()) {
                (Some((host, command)), _) => steps.push(Step {
                    line: number,
                    host: host.to_owned(),
                    command: command.to_owned(),
                    expected: String::new(),
                }),
                (None, Some(step)) => match text.strip_prefix("> ") {
                    Some(more) if step.expected.is_empty() => {
                        step.command.push('\n');
                        step.command.push_str(more);
                    }
                    _ => {
                        step.expected.push_str(text);
                        step.expected.push('\n');
                    }
                },
                (None, None) => panic!("line {number}: output before the first command"),
            }
        }
        steps
    }
}

/// A shell: one for each machine of a page.
struct Shell {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    dir: PathBuf,
    /// Addresses of the page, and those that are used instead.
    ports: Vec<(String, String)>,
    count: usize,
}

impl Shell {
    fn start(dir: PathBuf, bin: &Path, ports: Vec<(String, String)>) -> Self {
        fs::create_dir_all(&dir).unwrap();
        let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
        if !dir.join("examples").exists() {
            std::os::unix::fs::symlink(examples, dir.join("examples")).unwrap();
        }
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new("sh");
        command.current_dir(&dir).env("PATH", path).env("HOME", &dir);
        command.env("XDG_STATE_HOME", dir.join("state")).env("KOFM_DIR", dir.join("kofm"));
        command.env("KOFM_LOG", "error").env_remove("KOFM_TOKEN").env_remove("KOFM_ADDR");
        if let Some((_, used)) = ports.iter().find(|it| it.0 == "127.0.0.1:7600") {
            command.env("KOFM_ADDR", format!("http://{used}"));
        }
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdin, stdout, dir, ports, count: 0 }
    }

    fn used(&self, text: &str) -> String {
        self.ports.iter().fold(text.to_owned(), |text, (shown, used)| text.replace(shown, used))
    }

    fn shown(&self, text: &str) -> String {
        self.ports.iter().fold(text.to_owned(), |text, (shown, used)| text.replace(used, shown))
    }

    /// Runs a command: its output, its diagnostics and its exit code.
    fn run(&mut self, command: &str) -> (String, String, i32) {
        self.count += 1;
        let number = self.count;
        let command = self.used(command);
        let files = format!("</dev/null >>out.{number} 2>>err.{number}");
        let run = match command.strip_suffix('&') {
            // A simple command, so that `$!` is its process.
            Some(command) => format!("{command} {files} &\nrc=0; pids=\"$pids $!\""),
            None => format!("{{ {command}\n}} {files}\nrc=$?"),
        };
        let script = format!(": >out.{number}; : >err.{number}\n{run}\necho MARK $rc\n");
        self.stdin.write_all(script.as_bytes()).unwrap();
        self.stdin.flush().unwrap();
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        let code = line.trim().strip_prefix("MARK ").and_then(|it| it.parse().ok()).unwrap_or(-1);
        let read = |kind| fs::read_to_string(self.dir.join(format!("{kind}.{number}"))).unwrap();
        (self.shown(&read("out")), self.shown(&read("err")), code)
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        drop(self.stdin.write_all(b"kill -9 $pids 2>/dev/null; exit\n"));
        drop(self.stdin.flush());
        self.child.wait().ok();
    }
}

/// The cluster of a page; it ends with the page.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Whether a text is as expected, where `…` is any text and a run of blanks is one blank.
fn matches(expected: &str, text: &str) -> bool {
    let plain = |text: &str| {
        let line = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        text.trim_end().lines().map(line).collect::<Vec<_>>().join("\n")
    };
    let (expected, text) = (plain(expected), plain(text));
    let pieces: Vec<&str> = expected.split('…').collect();
    let [first, between @ .., last] = pieces.as_slice() else { return expected == text };
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    for piece in between {
        let Some(place) = rest.find(piece) else { return false };
        rest = &rest[place + piece.len()..];
    }
    rest.ends_with(last)
}

/// Replaces words such as `L0-…` by the last word with that beginning that was printed.
fn complete(command: &str, printed: &str) -> String {
    let word = |word: &str| {
        let start = word.strip_suffix('…').filter(|it| it.len() >= 3);
        let last =
            start.and_then(|start| printed.split_whitespace().rfind(|it| it.starts_with(start)));
        last.unwrap_or(word).to_owned()
    };
    command.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// The shells of a page: one without a name, or one for each machine.
fn shells(
    page: &Page,
    dir: &Path,
    bin: &Path,
    ports: &[(String, String)],
) -> BTreeMap<String, Shell> {
    let local = |port| format!("127.0.0.1:{port}");
    let run = page.blocks.iter().filter(|it| it.language() == "console");
    let hosts: BTreeSet<String> = run
        .filter(|it| it.value("skip").is_none())
        .flat_map(Block::steps)
        .map(|it| it.host)
        .collect();
    let machine = |it| (format!("10.0.0.{it}:7700"), local(free_port()));
    let machines: Vec<(String, String)> = (1..=hosts.len()).map(machine).collect();
    let shell = |host: String| {
        let mut ports = ports.to_vec();
        if !host.is_empty() {
            ports.push((local(7600), local(free_port())));
            ports.extend(machines.iter().cloned());
        }
        (host.clone(), Shell::start(dir.join(host), bin, ports))
    };
    hosts.into_iter().map(shell).collect()
}

/// Runs a page; says where it is not as expected.
fn run(page: &Page, faults: &mut String) {
    let place = page.path.strip_prefix(root()).unwrap().display().to_string();
    let dir = temp_dir();
    let bin = dir.join("bin");
    fs::create_dir_all(&bin).unwrap();
    std::os::unix::fs::symlink(KOFM, bin.join("kofm")).unwrap();
    let mut ports = Vec::new();
    let mut cluster = None;
    if page.cluster.as_deref() == Some("up") {
        let mut command = Command::new(KOFM);
        command.args(["up", "--http", "127.0.0.1:0"]).env("KOFM_LOG", "error");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().take(3);
        for (number, line) in lines.enumerate() {
            let line = line.unwrap();
            let used = line.split("http://").nth(1).unwrap().trim().to_owned();
            ports.push((format!("127.0.0.1:{}", 7600 + number), used));
        }
        cluster = Some(Running(child));
    }
    let mut shells = shells(page, &dir, &bin, &ports);
    let mut printed = String::new();
    for block in &page.blocks {
        if let Some(name) = block.value("file") {
            for shell in shells.values() {
                fs::write(shell.dir.join(name), shell.used(&block.text)).unwrap();
            }
        }
        if block.language() != "console" || block.value("skip").is_some() {
            continue;
        }
        for step in block.steps() {
            // The fixture has started it.
            if cluster.is_some() && step.command.starts_with("kofm up") {
                continue;
            }
            let shell = shells.get_mut(&step.host).unwrap();
            let command = complete(&step.command, &printed);
            let (expected, code) = match step.expected.trim_end().rsplit_once("[exit ") {
                Some((text, code)) => (text, code.trim_end_matches(']').parse().unwrap()),
                None => (step.expected.as_str(), 0),
            };
            let background = command.ends_with('&');
            let start = std::time::Instant::now();
            let fault = loop {
                let (mut out, err, rc) = shell.run(&command);
                if block.has("stderr") {
                    out = err + &out;
                } else if rc != code {
                    out += &err;
                }
                writeln!(printed, "{out}").unwrap();
                let good = background || (rc == code && matches(expected, &out));
                if good {
                    break None;
                }
                if !block.has("eventually") || start.elapsed() > LONG {
                    break Some(format!("exit {rc}, printed:\n{out}"));
                }
                std::thread::sleep(std::time::Duration::from_millis(100));
            };
            if let Some(fault) = fault {
                writeln!(faults, "{place}:{}: $ {command}\n{fault}", step.line).unwrap();
                break;
            }
        }
    }
    drop(shells);
    drop(cluster);
    fs::remove_dir_all(dir).ok();
}

#[test]
fn every_command_of_readme_and_book_prints_what_it_says() {
    let mut faults = String::new();
    let (mut commands, mut skipped) = (0, 0);
    for page in pages() {
        let place = page.path.display();
        for block in &page.blocks {
            if SHELLS.contains(&block.language()) {
                writeln!(faults, "{place}:{}: commands must be in a console block", block.line)
                    .unwrap();
            }
        }
        let console = || page.blocks.iter().filter(|it| it.language() == "console");
        if console().next().is_none() {
            continue;
        }
        if page.cluster.is_none() {
            writeln!(faults, "{place}: it has commands and no line <!-- test: cluster=… -->")
                .unwrap();
            continue;
        }
        for block in console() {
            let count = block.steps().len();
            commands += count;
            match block.value("skip") {
                Some("") => {
                    writeln!(faults, "{place}:{}: skip needs a reason", block.line).unwrap();
                }
                Some(_) => skipped += count,
                None => {}
            }
        }
        if page.needs_lab && !cfg!(feature = "lab") {
            println!("NOT RUN: {place}: it needs the feature `lab`");
            continue;
        }
        run(&page, &mut faults);
    }
    assert!(faults.is_empty(), "\n{faults}");
    let all = std::env::var_os("KOFM_DOCS").is_none();
    assert!(
        !all || skipped * 10 <= commands.max(10),
        "{skipped} of {commands} commands are not run"
    );
    println!("{commands} commands, {skipped} of them not run");
}

#[test]
fn an_expected_output_may_leave_out_parts() {
    assert!(matches("a  b\nc", "a b\nc\n"));
    assert!(matches("L0-…", "L0-12ab"));
    assert!(matches("…\nheld …s, free", "x\ny\nheld 1.2s, free\n"));
    assert!(!matches("L0-…", "R0-12ab") && !matches("a", "ab") && !matches("a…c", "ab"));
    assert_eq!(complete("kofm release L0-…", "L0-1 L0-2 R0-3"), "kofm release L0-2");
    assert_eq!(complete("echo R1-…", "L0-1"), "echo R1-…");
}

#[test]
fn local_links_of_readme_and_book_lead_somewhere() {
    let mut dead = String::new();
    for page in pages() {
        let text = fs::read_to_string(&page.path).unwrap();
        for part in text.split("](").skip(1) {
            let link = part.split(')').next().unwrap_or_default();
            let file = link.split('#').next().unwrap_or_default();
            if file.is_empty() || file.contains("://") || file.contains(char::is_whitespace) {
                continue;
            }
            if !page.path.parent().unwrap().join(file).exists() {
                writeln!(dead, "{}: {link}", page.path.display()).unwrap();
            }
        }
    }
    assert!(dead.is_empty(), "\n{dead}");
}

#[test]
fn the_summary_of_the_book_lists_every_page() {
    let docs = root().join("docs");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let mut absent = Vec::new();
    for page in pages() {
        let Ok(path) = page.path.strip_prefix(&docs) else { continue };
        let path = path.display().to_string();
        if path != "SUMMARY.md" && !summary.contains(&format!("]({path})")) {
            absent.push(path);
        }
    }
    assert!(absent.is_empty(), "not in docs/SUMMARY.md: {absent:?}");
}

/// The words between quotes in the part of a text between two marks.
fn quoted<'a>(text: &'a str, start: &str, end: &str) -> BTreeSet<&'a str> {
    let part = text.split_once(start).and_then(|it| it.1.split_once(end)).map_or("", |it| it.0);
    part.split('"').skip(1).step_by(2).collect()
}

#[test]
fn the_reference_of_the_configuration_lists_every_key() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let (page, reader) =
        (read("docs/reference/config.md"), read("crates/net/src/config/reader.rs"));
    let (top, tables) = page.split_once("## Tables").unwrap();
    let listed = |text: &str| -> BTreeSet<String> {
        let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
        rows.filter_map(|row| Some(row.split_once('`')?.0.to_owned())).collect()
    };
    let keys = quoted(&reader, "const KEYS", "];");
    assert!(keys.contains("site_lease"), "the keys are where this test looks for them");
    assert_eq!(listed(top), keys.iter().map(ToString::to_string).collect());
    let listed = listed(tables);
    let lists = ["[\"units\",", "[\"sites\",", "[\"value\",", "&[\"ca\",", "&[\"protocol\","];
    for start in lists {
        let place = reader.find(start).unwrap_or_else(|| panic!("{start} is not in the reader"));
        let end = reader[place..].find(']').unwrap();
        for key in reader[place..place + end].split('"').skip(1).step_by(2) {
            assert!(listed.contains(key), "docs/reference/config.md lacks `{key}`");
        }
    }
}
