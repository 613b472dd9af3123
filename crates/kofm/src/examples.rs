//! Examples in the help of commands whose definition has none.

use clap::Command;

/// The words of a command, and its examples.
const EXAMPLES: [(&str, &str); 25] = [
    ("check-config", "kofm check-config /etc/kofm/site.toml"),
    ("renew", "kofm renew L0-1f3a…              # the id that `kofm acquire` printed"),
    (
        "release",
        "kofm release L0-1f3a…            # the holder, by the lease's id\n  \
         kofm release L0-de0c5adf         # an operator, by its name in `kofm status`",
    ),
    ("cancel", "kofm cancel R0-a0ba8aae299f6150  # the id is in `kofm queue`"),
    (
        "status",
        "kofm status                      # all pools and leases\n  \
         kofm status gpu --json",
    ),
    ("queue", "kofm queue\n  kofm queue --json"),
    ("explain", "kofm explain R0-a0ba8aae299f6150 # the id is in `kofm queue`"),
    ("members", "kofm members\n  kofm members --json"),
    ("drain", "kofm drain b                     # before maintenance of machine b"),
    ("undrain", "kofm undrain b"),
    ("member ls", "kofm member ls"),
    ("member rm", "kofm member rm b"),
    ("member replace", "kofm member replace b            # its disk is lost"),
    ("pool ls", "kofm pool ls\n  kofm pool ls --json"),
    ("pool rm", "kofm pool rm gpu"),
    ("sem set", "kofm sem set slots --value 3"),
    ("sem v", "kofm sem v slots\n  kofm sem v slots:2"),
    ("sem ls", "kofm sem ls\n  kofm sem ls --json"),
    ("sem rm", "kofm sem rm slots"),
    ("gang set", "kofm gang set pair --member s0=gpu:1 --member s1=gpu:1,licence:1"),
    ("gang ls", "kofm gang ls"),
    ("gang rm", "kofm gang rm pair"),
    ("token ls", "kofm token ls"),
    ("token revoke", "kofm token revoke ci"),
    ("completions", "kofm completions bash >/etc/bash_completion.d/kofm"),
];

/// The same commands with these examples after their help.
pub(crate) fn add(command: Command) -> Command {
    EXAMPLES.iter().fold(command, |command, (words, text)| {
        at(command, &words.split(' ').collect::<Vec<_>>(), text)
    })
}

fn at(command: Command, words: &[&str], text: &str) -> Command {
    let [first, rest @ ..] = words else {
        let before = command.get_after_help().map(|it| format!("{it}\n\n")).unwrap_or_default();
        return command.after_help(format!("{before}Examples:\n  {text}"));
    };
    command.mut_subcommand(first, |command| at(command, rest, text))
}
