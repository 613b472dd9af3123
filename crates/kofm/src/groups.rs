//! Groups from a file, and the paper's tables.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use kofm_core::protocols::groups::Groups;
use kofm_core::{Cluster, Effects, GroupId, Grouping, GroupingError, SiteId};
use kofm_sim::world::{Action, Move, Script, World};
use serde::Deserialize;

/// The largest file that is read.
const FILE_LIMIT: u64 = 1 << 20;
/// Tables that are printed at most.
const MOST_TABLES: usize = 200;

/// What processes and groups are called.
#[derive(Debug)]
pub(crate) struct Names {
    processes: Vec<String>,
    groups: Vec<String>,
}

impl Names {
    /// The paper's: p1, p2 and ga, gb.
    fn usual(grouping: &Grouping) -> Self {
        let letter = |group: GroupId| match u8::try_from(group.0) {
            Ok(n) if n < 26 => format!("g{}", char::from(b'a' + n)),
            _ => format!("g{}", group.0 + 1),
        };
        Self {
            processes: (1..=grouping.processes()).map(|n| format!("p{n}")).collect(),
            groups: grouping.all().map(letter).collect(),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    process: Vec<Process>,
    group: Vec<Group>,
    #[serde(default)]
    fork: Vec<Fork>,
    #[serde(default)]
    arc: Vec<Arc>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Process {
    name: String,
    needs: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    name: String,
    members: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fork {
    holder: String,
    other: String,
}

/// An arc that points at the process which goes first.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arc {
    from: String,
    to: String,
    /// The group of each that it is about, if the process is in several.
    from_group: Option<String>,
    to_group: Option<String>,
}

/// Reads a file with `[[process]]` and `[[group]]` tables; says what is wrong with it.
pub(crate) fn read(path: &str) -> Result<(Grouping, Names), String> {
    let size = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    if size > FILE_LIMIT {
        return Err(format!("{size} bytes, more than the {FILE_LIMIT} that are read"));
    }
    parse(&std::fs::read_to_string(path).map_err(|error| error.to_string())?)
}

fn parse(text: &str) -> Result<(Grouping, Names), String> {
    let file: File = toml::from_str(text).map_err(|error| {
        format!(
            "{error}\nwrite [[process]] tables with name and needs, \
             and [[group]] tables with name and members"
        )
    })?;
    let mut sites = BTreeMap::new();
    let mut resources: BTreeMap<&str, u32> = BTreeMap::new();
    let mut needs = Vec::new();
    for (site, process) in (0..=u16::MAX).map(SiteId).zip(&file.process) {
        if sites.insert(process.name.as_str(), site).is_some() {
            return Err(format!("there are two processes {}", process.name));
        }
        let mut list = Vec::new();
        for name in &process.needs {
            let next = u32::try_from(resources.len()).unwrap_or(u32::MAX);
            list.push(*resources.entry(name).or_insert(next));
        }
        needs.push(list);
    }
    let site = |name: &str, who: &str| {
        sites
            .get(name)
            .copied()
            .ok_or_else(|| format!("{who} names `{name}`, which is not a process"))
    };
    let mut members = Vec::new();
    for (i, group) in file.group.iter().enumerate() {
        let who = format!("group {}", group.name);
        if file.group[..i].iter().any(|earlier| earlier.name == group.name) {
            return Err(format!("there are two groups {}", group.name));
        }
        let list: Result<_, _> = group.members.iter().map(|name| site(name, &who)).collect();
        members.push(list?);
    }
    let names = Names {
        processes: file.process.iter().map(|process| process.name.clone()).collect(),
        groups: file.group.iter().map(|group| group.name.clone()).collect(),
    };
    let told = |error: GroupingError| told(&error, &names);
    let mut grouping = Grouping::new(needs, members).map_err(told)?;
    for fork in &file.fork {
        let (holder, other) = (site(&fork.holder, "a fork")?, site(&fork.other, "a fork")?);
        grouping = grouping.with_fork(holder, other).map_err(told)?;
    }
    let group = |name: &Option<String>| match name {
        None => Ok(None),
        Some(name) => match names.groups.iter().position(|known| known == name) {
            Some(place) => Ok(u16::try_from(place).ok().map(GroupId)),
            None => Err(format!("an arc names `{name}`, which is not a group")),
        },
    };
    for arc in &file.arc {
        let (from, to) = (site(&arc.from, "an arc")?, site(&arc.to, "an arc")?);
        let (over, of) = (group(&arc.from_group)?, group(&arc.to_group)?);
        grouping = grouping.with_arc((to, of), (from, over)).map_err(told)?;
    }
    Ok((grouping, names))
}

/// The error with the names of the file instead of numbers.
fn told(error: &GroupingError, names: &Names) -> String {
    let process = |site: &SiteId| names.processes.get(site.index()).cloned().unwrap_or_default();
    let group = |group: &GroupId| names.groups.get(group.index()).cloned().unwrap_or_default();
    match error {
        GroupingError::Nobody(g) => format!("group {} has no members", group(g)),
        GroupingError::Twice(g, p) => format!("group {} names {} twice", group(g), process(p)),
        GroupingError::Idle(p) => format!("process {} is in no group", process(p)),
        GroupingError::Needs(p) => format!(
            "process {} needs nothing, or something twice: name each resource once, also one that \
             nobody else needs",
            process(p)
        ),
        GroupingError::Rivals(g, a, b) => {
            let (a, b, g) = (process(a), process(b), group(g));
            format!("{a} and {b} of group {g} need the same resource: they can never work together")
        }
        GroupingError::Fork(a, b) => {
            format!("{} and {} do not compete: there is no fork", process(a), process(b))
        }
        GroupingError::Arc(a, b) => format!(
            "{} and {} have no two groups that compete: there is no arc",
            process(a),
            process(b)
        ),
        GroupingError::Size | GroupingError::UnknownProcess(..) | GroupingError::TooManyRivals => {
            error.to_string()
        }
    }
}

/// Lets groups work, one after the other, and prints who leads whom until all is as before.
pub(crate) fn tables(cluster: &Cluster, names: Option<Names>) -> String {
    let grouping = cluster.grouping().expect("checked with the command line");
    let names = names.unwrap_or_else(|| Names::usual(&grouping));
    let script = Script { endless: true, ..Script::of_groups(&grouping, false, 1) };
    let mut world = World::<Groups>::new(cluster, &script);
    let first = table(&world, &names);
    let mut text = format!("Table 1: initial values\n{first}");
    for number in 2..=MOST_TABLES {
        settle(&mut world, &script, |action| {
            matches!(action, Action::Deliver { .. } | Action::Local(_, Move::Claim(_)))
        });
        let Some(group) = working(&world) else { break };
        // Its members finish; whoever is hungry may go on, but nobody becomes hungry meanwhile.
        for &member in grouping.members(group) {
            act(&mut world, Action::Local(member, Move::Release(0)), &script);
        }
        settle(&mut world, &script, |action| matches!(action, Action::Deliver { .. }));
        let now = table(&world, &names);
        let _ = write!(
            text,
            "\nTable {number}: after {} has worked\n{now}",
            names.groups[group.index()]
        );
        if now == first {
            let _ = writeln!(text, "\nTable {number} is Table 1 again.");
            return text;
        }
    }
    text.push_str("\nAnd so on.\n");
    text
}

fn working(world: &World<Groups>) -> Option<GroupId> {
    let held = world.locals.iter().flat_map(|local| &local.claims).filter(|client| client.held);
    held.filter_map(|client| Grouping::named(&client.demand)).min()
}

fn act(world: &mut World<Groups>, action: Action<()>, script: &Script) {
    let (site, input) = world.input(action, script);
    world.apply(site, input, &mut Effects::default()).expect("groups break no promise");
}

fn settle(world: &mut World<Groups>, script: &Script, which: impl Fn(&Action<()>) -> bool) {
    while let Some(action) = world.enabled(script).into_iter().find(&which) {
        act(world, action, script);
    }
}

/// All arcs, a line for each process and group.
fn table(world: &World<Groups>, names: &Names) -> String {
    // p1 and ga become 1a, as in the paper, where all names are of that kind.
    let short = |name: &str, first: char| name.strip_prefix(first).map(str::to_owned);
    let processes: Option<Vec<_>> = names.processes.iter().map(|name| short(name, 'p')).collect();
    let groups: Option<Vec<_>> = names.groups.iter().map(|name| short(name, 'g')).collect();
    let copy = |site: SiteId, group: GroupId| match (&processes, &groups) {
        (Some(processes), Some(groups)) => {
            format!("{}{}", processes[site.index()], groups[group.index()])
        }
        _ => format!("({},{})", names.processes[site.index()], names.groups[group.index()]),
    };
    let mut text = String::new();
    for (site, local) in (0..).map(SiteId).zip(&world.locals) {
        let mut arcs: Vec<_> = local.protocol.arcs().list().collect();
        arcs.sort_by_key(|&(own, (other, group), _)| (own, group, other));
        for row in arcs.chunk_by(|a, b| a.0 == b.0) {
            let own = row[0].0;
            let (process, group) = (&names.processes[site.index()], &names.groups[own.index()]);
            let _ = write!(text, "  {process:<4} {group:<4}");
            for &(_, (other, group), leads) in row {
                let (low, high) = (copy(site, own), copy(other, group));
                let _ = write!(text, "  x_{low}^{high} = {}", u8::from(leads));
            }
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_five_tables_of_the_paper_come_out_and_the_fifth_is_the_first() {
        let file = include_str!("../../../examples/groups/figure9.toml");
        let (grouping, names) = parse(file).expect("it is shipped");
        let text = tables(&Cluster::of_groups(grouping), Some(names));
        let values: Vec<String> = text
            .split("\n\n")
            .map(|table| table.split("= ").skip(1).filter_map(|rest| rest.chars().next()).collect())
            .collect();
        // By process and group: p1 ga, p1 gd, p2 ga, p2 gb, p3 gb, p3 gc, p4 gc, p4 gd.
        let expected = [
            "111000111011011001001000",
            "000100000111111101101100",
            "100110100000000111111110",
            "110111110010010000000111",
            "111000111011011001001000",
            "",
        ];
        assert_eq!(values, expected);
        assert!(text.contains("x_1a^3b = 1") && text.ends_with("Table 5 is Table 1 again.\n"));
        assert!(text.contains("Table 2: after ga") && text.contains("Table 5: after gd"));
    }

    #[test]
    fn mistakes_in_a_file_are_named() {
        let process =
            |name: &str, needs: &str| format!("[[process]]\nname='{name}'\nneeds=[{needs}]\n");
        let group =
            |name: &str, list: &str| format!("[[group]]\nname='{name}'\nmembers=[{list}]\n");
        let two = process("p1", "'r'") + &process("p2", "'s'");
        let cases = [
            (two.clone() + &group("ga", "'p1','p9'"), "`p9`, which is not a process"),
            (two.clone() + &group("ga", "'p1','p1'"), "names p1 twice"),
            (two.clone() + &group("ga", "'p1'"), "process p2 is in no group"),
            (two.clone() + &group("ga", ""), "group ga has no members"),
            (two.clone() + &process("p2", "'t'") + &group("ga", "'p1'"), "two processes p2"),
            (two.clone() + &group("ga", "'p1','p2'") + &group("ga", "'p1'"), "two groups ga"),
            (process("p1", "") + &group("ga", "'p1'"), "p1 needs nothing"),
            (
                process("p1", "'r'") + &process("p2", "'r'") + &group("ga", "'p1','p2'"),
                "they can never work together",
            ),
            (
                two.clone() + &group("ga", "'p1','p2'") + "[[fork]]\nholder='p1'\nother='p2'\n",
                "do not compete",
            ),
            (
                two.clone() + &group("ga", "'p1','p2'") + "[[arc]]\nfrom='p1'\nto='p2'\n",
                "there is no arc",
            ),
            (
                two.clone()
                    + &group("ga", "'p1','p2'")
                    + "[[arc]]\nfrom='p1'\nto='p2'\nto_group='gz'\n",
                "`gz`, which is not a group",
            ),
            (two + "[[groups]]\n", "unknown field"),
        ];
        for (text, reason) in cases {
            let problem = parse(&text).err().unwrap_or_default();
            assert!(problem.contains(reason), "{text}: {problem}");
        }
    }
}
