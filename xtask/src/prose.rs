//! Words and phrases that the project's texts avoid, counted by area.
//!
//! `data/prose.csv` has the budget of each area and rule: the number that is there today. A budget
//! may only fall: `KOFM_LOWER_BUDGETS=1 cargo test -p xtask prose` writes lower numbers. An area
//! without a line has the budget zero, as have all documents.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Name and advice of each rule.
const RULES: [(&str, &str); 5] = [
    ("indefinite", "name the actor: site, peer, client, holder, operator"),
    ("who-clause", "name the actor before `who`"),
    ("what-subject", "name the thing; `what …` is not the subject of a sentence"),
    ("idiom", "say it in plain words: forever, again, fix, not a"),
    ("image", "use the word of the glossary"),
];

const INDEFINITE: [&str; 6] = ["whoever", "whomever", "nobody", "somebody", "everybody", "anybody"];
const AFTER_WHAT: [&str; 18] = [
    "is", "was", "has", "had", "a", "an", "the", "it", "they", "lies", "lay", "comes", "came",
    "goes", "others", "sites", "clients", "there",
];
const IDIOMS: [&[&str]; 8] = [
    &["make", "no", "sense"],
    &["makes", "no", "sense"],
    &["stands", "there"],
    &["so", "many"],
    &["so", "much"],
    &["for", "ever"],
    &["anew"],
    &["mend"],
];
const IMAGES: [&str; 15] = [
    "desk",
    "tray",
    "sitter",
    "sitters",
    "mourn",
    "doom",
    "legacy",
    "switchboard",
    "bestow",
    "sated",
    "restless",
    "laboratory",
    "made-up",
    "greeting",
    "retell",
];

/// A mistake: file, line, rule.
type Found = (PathBuf, usize, usize);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn files(folder: &Path, list: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if !["target", ".git", "node_modules"].contains(&name.as_str()) {
                files(&path, list);
            }
        } else {
            list.push(path);
        }
    }
}

/// The rules that a line of prose breaks, each as often as it breaks it.
fn broken(line: &str) -> Vec<usize> {
    let mut found = Vec::new();
    // Words with the character before them that is not a blank: a sentence begins after it.
    let mut words: Vec<(char, String)> = Vec::new();
    let mut before = '^';
    for part in line.split_whitespace() {
        let plain = |it: char| it.is_alphanumeric() || it == '-' || it == '_' || it == '\'';
        let start = part.find(plain).unwrap_or(part.len());
        if let Some(mark) = part[..start].chars().next_back() {
            before = mark;
        }
        let word: String = part[start..].chars().take_while(|&it| plain(it)).collect();
        let after = part.chars().next_back().unwrap_or(' ');
        if !word.is_empty() {
            words.push((before, word));
        }
        before = if plain(after) { ' ' } else { after };
    }
    let question = line.contains('?');
    let lower: Vec<String> = words.iter().map(|it| it.1.to_lowercase()).collect();
    for (place, (mark, word)) in words.iter().enumerate() {
        let rest: Vec<&str> = lower[place..].iter().map(String::as_str).collect();
        let next = words.get(place + 1).map_or("", |it| it.1.as_str());
        let capital = word.starts_with(char::is_uppercase);
        let begins = ".:;".contains(*mark) || *mark == '^' && capital;
        if INDEFINITE.contains(&rest[0]) {
            found.push(0);
        }
        let verb = next.chars().next().is_some_and(char::is_lowercase);
        if rest[0] == "who" && begins && verb && !question {
            found.push(1);
        }
        if rest[0] == "what" && begins && AFTER_WHAT.contains(&next) && !question {
            found.push(2);
        }
        let none = rest.starts_with(&["is", "no"]) && place > 0 && lower[place - 1] != "there";
        let good = ["longer", "more", "such", "other"].contains(rest.get(2).unwrap_or(&"more"));
        if IDIOMS.iter().any(|it| rest.starts_with(it)) || none && !good {
            found.push(3);
        }
        if IMAGES.contains(&rest[0]) {
            found.push(4);
        }
    }
    found
}

/// The prose of a line of Rust: its comment, and its string literals.
fn of_rust(line: &str) -> [String; 2] {
    let (mut comment, mut strings) = (String::new(), String::new());
    let mut letters = line.chars().peekable();
    let mut quoted = false;
    while let Some(letter) = letters.next() {
        match letter {
            '\\' if quoted => drop(letters.next()),
            '"' => {
                quoted = !quoted;
                strings.push_str(". ");
            }
            letter if quoted => strings.push(letter),
            '/' if letters.peek() == Some(&'/') => {
                comment = letters.collect::<String>().trim_start_matches(['/', '!']).to_owned();
                break;
            }
            _ => {}
        }
    }
    // The lines between the quotes of a long literal are taken for code: they have no prose marks.
    [comment, strings]
}

/// The area of a file and the prose in it, by line.
fn prose(path: &Path, area: &str, list: &mut Vec<(String, PathBuf, usize, String)>) {
    let Ok(text) = fs::read_to_string(path) else { return };
    let shown = path.strip_prefix(root()).unwrap_or(path).to_owned();
    // The help of the commands is in blocks there.
    let help = path.ends_with("docs/reference/cli.md");
    let rust = path.extension().is_some_and(|end| end == "rs");
    let mut block = false;
    for (number, line) in (1..).zip(text.lines()) {
        if rust {
            let [comment, strings] = of_rust(line);
            list.push((format!("{area} comments"), shown.clone(), number, comment));
            list.push((format!("{area} strings"), shown.clone(), number, strings));
        } else {
            block ^= line.starts_with("```");
            if !block || help {
                list.push((area.to_owned(), shown.clone(), number, line.to_owned()));
            }
        }
    }
}

fn all() -> Vec<(String, PathBuf, usize, String)> {
    let mut list = Vec::new();
    let add = |folder: &str, end: &str, area: &str, list: &mut Vec<_>| {
        let mut paths = Vec::new();
        files(&root().join(folder), &mut paths);
        paths.sort();
        for path in paths.iter().filter(|it| it.extension().is_some_and(|it| it == end)) {
            prose(path, area, list);
        }
    };
    // Code moves between crates, so most of them are one area. The commands are `kofm`'s.
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let name = entry.unwrap().file_name().to_string_lossy().into_owned();
        let area = if name == "kofm" { "kofm" } else { "crates" };
        add(&format!("crates/{name}/src"), "rs", area, &mut list);
        if root().join(format!("crates/{name}/tests")).is_dir() {
            add(&format!("crates/{name}/tests"), "rs", "tests", &mut list);
        }
    }
    for folder in ["docs", "integrations", "clients"] {
        let mut paths = Vec::new();
        files(&root().join(folder), &mut paths);
        for path in paths.iter().filter(|it| it.extension().is_some_and(|it| it == "md")) {
            let area = path.strip_prefix(root()).unwrap_or(path).display().to_string();
            prose(path, &area, &mut list);
        }
    }
    let single = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"];
    for file in single.iter().chain(&["examples/site.toml"]) {
        prose(&root().join(file), file, &mut list);
    }
    list
}

#[test]
fn texts_keep_their_budgets_of_avoided_words() {
    let mut found: BTreeMap<(String, usize), Vec<Found>> = BTreeMap::new();
    for (area, path, number, text) in all() {
        for rule in broken(&text) {
            found.entry((area.clone(), rule)).or_default().push((path.clone(), number, rule));
        }
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/prose.csv");
    let text = fs::read_to_string(&file).unwrap_or_default();
    let mut budgets: BTreeMap<(String, usize), usize> = BTreeMap::new();
    for line in text.lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let rule = RULES.iter().position(|rule| rule.0 == fields[1]).unwrap();
        budgets.insert((fields[0].to_owned(), rule), fields[2].parse().unwrap());
    }
    if std::env::var_os("KOFM_LOWER_BUDGETS").is_some() {
        let mut lower = "area,rule,budget\n".to_owned();
        for ((area, rule), budget) in &budgets {
            let count = found.get(&(area.clone(), *rule)).map_or(0, Vec::len);
            if count > 0 {
                writeln!(lower, "{area},{},{}", RULES[*rule].0, count.min(*budget)).unwrap();
            }
        }
        fs::write(&file, lower).unwrap();
    }
    let mut over = String::new();
    for ((area, rule), places) in &found {
        let budget = budgets.get(&(area.clone(), *rule)).copied().unwrap_or(0);
        if places.len() <= budget {
            continue;
        }
        let (name, advice) = RULES[*rule];
        writeln!(over, "{area}: {name}: {} of {budget}; {advice}", places.len()).unwrap();
        for (path, number, _) in places.iter().take(5 + places.len().min(20)) {
            writeln!(over, "  {}:{number}", path.display()).unwrap();
        }
    }
    assert!(over.is_empty(), "\n{over}");
}

#[test]
fn the_rules_find_what_they_name_and_nothing_else() {
    let cases: [(&str, &[usize]); 12] = [
        ("Whoever has a command leaves it, and nobody waits.", &[0, 0]),
        ("Who asks late waits longer.", &[1]),
        ("a client who asks late", &[]),
        ("Who may do this?", &[]),
        ("What is missing it makes.", &[2]),
        ("Show what is missing.", &[]),
        ("It is no duration, and so many others.", &[3, 3]),
        ("There is no majority; it is no longer here.", &[]),
        ("It waits for ever.", &[3]),
        ("It waits for every site.", &[]),
        ("It sits at a desk.", &[4]),
        ("The desktop has a legacy_name.", &[]),
    ];
    for (text, rules) in cases {
        assert_eq!(broken(text), rules, "{text}");
    }
}
