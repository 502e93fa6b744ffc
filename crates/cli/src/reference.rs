//! The reference of all commands as Markdown, read off the definitions themselves.

use std::fmt::Write as _;

use clap::{Arg, Command};

/// One section for each command that is not hidden.
pub(crate) fn markdown(mut root: Command) -> String {
    root.build();
    let mut text = String::from(
        "# Command line reference\n\nWritten by `cargo xtask generate`; do not edit.\n\n\
         Every command also takes these flags, before or after its name:\n\n",
    );
    let global: Vec<_> = root.get_arguments().filter(|a| a.is_global_set()).collect();
    global.iter().for_each(|a| flag(&mut text, a));
    section(&mut text, &root, "actum");
    let trimmed: Vec<_> = text.lines().map(str::trim_end).collect();
    format!("{}\n", trimmed.join("\n").trim_end())
}

fn section(text: &mut String, command: &Command, path: &str) {
    for sub in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        let path = format!("{path} {}", sub.get_name());
        if sub.has_subcommands() {
            section(text, sub, &path);
            continue;
        }
        let positionals: Vec<_> = sub.get_positionals().collect();
        let shown: Vec<_> = positionals.iter().map(|a| a.to_string()).collect();
        let _ = write!(text, "\n## `{}`\n\n", format!("{path} {}", shown.join(" ")).trim_end());
        if let Some(about) = sub.get_long_about().or(sub.get_about()) {
            let _ = writeln!(text, "{about}\n");
        }
        for arg in &positionals {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(text, "- `{arg}`: {help}");
        }
        let own = |a: &&Arg| !a.is_global_set() && !a.is_positional() && !a.is_hide_set() && a.get_id() != "help";
        sub.get_arguments().filter(own).for_each(|a| flag(text, a));
        if let Some(after) = sub.get_after_help() {
            let _ = writeln!(text, "\n```text\n{after}\n```");
        }
    }
}

fn flag(text: &mut String, arg: &Arg) {
    let names = [arg.get_short().map(|c| format!("-{c}")), arg.get_long().map(|l| format!("--{l}"))];
    let mut name = names.into_iter().flatten().collect::<Vec<_>>().join(", ");
    if arg.get_action().takes_values() {
        let values = arg.get_value_names().unwrap_or_default();
        let _ = write!(name, " <{}>", values.iter().map(|v| v.as_str()).collect::<Vec<_>>().join("> <"));
    }
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default().replace('\n', " ");
    let _ = writeln!(text, "- `{name}`: {help}");
}
