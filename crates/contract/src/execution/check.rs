//! The five checks of an execution's inputs, IV-01 to IV-05. All of them are made; every violation names its check. What
//! can only be known by looking at the machine arrives as facts.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Execution, INPUT_FILES_BYTES_MAX, STDIN_BYTES_MAX};

/// An entry of the allowlist: a tool that was approved, and how it may be used. No entry, no execution.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tool {
    pub id: String,
    /// Programs it may run, by name or by absolute path.
    pub commands: Vec<String>,
    /// Variables it may be given; none listed means: those the contract gives.
    pub environment: Vec<String>,
    /// Variables that are dangerous elsewhere and meant here.
    pub scoped: Vec<String>,
    /// Its arguments are a program text to somebody, and it was approved that callers write it.
    pub any_arguments: bool,
    /// Input that is too long is cut instead of refused.
    pub cuts_input: bool,
    /// BLAKE3 of the program, if no other may be run.
    pub pinned: Option<String>,
    pub blocked: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    pub check: &'static str,
    /// The field of the contract.
    pub field: String,
    pub message: String,
}

/// What was found on the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    pub input_files_bytes: u64,
    /// Fields whose paths lead out of the workspace, or to nothing, with what is wrong.
    pub bad_paths: Vec<(String, String)>,
}

/// Inputs as they are handed on: what was not approved is gone from them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inputs {
    pub environment: BTreeMap<String, String>,
    /// Variables that were taken out.
    pub stripped: Vec<String>,
    pub stdin: Option<String>,
    /// How long the input was before it was cut.
    pub stdin_cut_from: Option<u64>,
}

/// Characters with which a text becomes a program to a shell.
const SHELL: &[char] =
    &[';', '|', '&', '$', '`', '(', ')', '{', '}', '[', ']', '<', '>', '\\', '"', '\'', '!', '#', '*', '?', '\n', '\r'];

/// Programs that take a text for a program.
const INTERPRETERS: &[&str] = &[
    "sh",
    "bash",
    "dash",
    "zsh",
    "ksh",
    "fish",
    "csh",
    "tcsh",
    "busybox",
    "env",
    "xargs",
    "eval",
    "python",
    "perl",
    "ruby",
    "node",
    "nodejs",
    "deno",
    "bun",
    "php",
    "lua",
    "tclsh",
    "awk",
    "gawk",
    "mawk",
    "sed",
    "psql",
    "sqlite3",
    "mysql",
    "osascript",
    "pwsh",
    "ssh",
    "su",
    "sudo",
    "nsenter",
    "unshare",
    "find",
    "make",
    "gdb",
    "vim",
    "ed",
];

/// Variables that make other programs load or run something.
const DANGEROUS: &[&str] = &[
    "PATH",
    "RIPGREP_CONFIG_PATH",
    "MAKEFILES",
    "GOFLAGS",
    "ZDOTDIR",
    "DOTNET_*",
    "GEM_*",
    "BUNDLE_*",
    "AWKPATH",
    "AWKLIBPATH",
    "HISTFILE",
    "INPUTRC",
    "KSH_ENV",
    "FPATH",
    "COMSPEC",
    "LD_*",
    "DYLD_*",
    "GCONV_PATH",
    "LOCPATH",
    "NLSPATH",
    "GLIBC_TUNABLES",
    "MALLOC_*",
    "HOSTALIASES",
    "RES_OPTIONS",
    "LOCALDOMAIN",
    "RESOLV_HOST_CONF",
    "BASH_ENV",
    "ENV",
    "BASH_FUNC_*",
    "SHELLOPTS",
    "BASHOPTS",
    "PS4",
    "PROMPT_COMMAND",
    "IFS",
    "CDPATH",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "PYTHONHOME",
    "PYTHONINSPECT",
    "PYTHONWARNINGS",
    "PYTHONBREAKPOINT",
    "PYTHONEXECUTABLE",
    "PYTHONUSERBASE",
    "NODE_OPTIONS",
    "NODE_PATH",
    "NODE_EXTRA_CA_CERTS",
    "PERL5LIB",
    "PERL5OPT",
    "PERL5DB",
    "PERLLIB",
    "RUBYOPT",
    "RUBYLIB",
    "LUA_INIT*",
    "LUA_PATH*",
    "LUA_CPATH*",
    "JAVA_TOOL_OPTIONS",
    "_JAVA_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "CLASSPATH",
    "PHPRC",
    "PHP_INI_SCAN_DIR",
    "GIT_*",
    "EDITOR",
    "VISUAL",
    "PAGER",
    "BROWSER",
    "LESSOPEN",
    "LESSCLOSE",
    "MANPAGER",
    "SSH_*",
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTC",
    "RUSTFLAGS",
    "CARGO_*",
    "MAKEFLAGS",
    "TERMINFO",
    "TERMCAP",
    "HOME",
    "XDG_*",
    "SSL_CERT_*",
    "OPENSSL_CONF",
    "OPENSSL_MODULES",
    "NPM_CONFIG_*",
    "PIP_*",
];

/// Whether a variable makes other programs load or run something.
pub fn is_dangerous(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    DANGEROUS.iter().any(|known| match known.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == *known,
    })
}

/// Whether a program takes text for a program, so that what is handed to it could mislead it.
pub fn is_interpreter(command: &str) -> bool {
    let name = command.rsplit('/').next().unwrap_or_default();
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    INTERPRETERS.contains(&name) || INTERPRETERS.contains(&stem)
}

/// The first character with which a text becomes a program.
pub fn shell_character(text: &str) -> Option<char> {
    text.chars().find(|c| SHELL.contains(c))
}

/// Makes all checks. The inputs are to be used only if there is no violation.
pub fn check(execution: &Execution, tool: Option<&Tool>, facts: &Facts) -> (Inputs, Vec<Violation>) {
    let mut found = Vec::new();
    let mut say = |check, field: &str, message: String| found.push(Violation { check, field: field.into(), message });
    command(execution, tool, &mut say);
    arguments(execution, tool, &mut say);
    paths(execution, facts, &mut say);
    let mut inputs = environment(execution, tool, &mut say);
    size(execution, tool, facts, &mut inputs, &mut say);
    (inputs, found)
}

type Say<'a> = &'a mut dyn FnMut(&'static str, &str, String);

fn command(execution: &Execution, tool: Option<&Tool>, say: Say<'_>) {
    let Some(tool) = tool else {
        return say("IV-01", "tool_id", format!("{} is on no allowlist", execution.tool_id));
    };
    if tool.blocked {
        say("IV-01", "tool_id", format!("{} is blocked", tool.id));
    }
    let command = &execution.inputs.command;
    if !tool.commands.contains(command) {
        let allowed = if tool.commands.is_empty() { "nothing".to_owned() } else { tool.commands.join(", ") };
        say("IV-01", "inputs.command", format!("{} may not run {command:?}; it may run {allowed}", tool.id));
    }
}

/// Arguments reach the program as they are, without a shell in between. Only a program that itself takes text for a
/// program could be misled by one.
fn arguments(execution: &Execution, tool: Option<&Tool>, say: Say<'_>) {
    let inputs = &execution.inputs;
    let name = inputs.command.rsplit('/').next().unwrap_or_default();
    let interprets = is_interpreter(name);
    let approved = tool.is_some_and(|tool| tool.any_arguments);
    for (at, argument) in inputs.arguments.iter().enumerate() {
        let field = format!("inputs.arguments[{at}]");
        if argument.contains('\0') {
            say("IV-02", &field, "contains a NUL character".to_owned());
        } else if let Some(c) = shell_character(argument).filter(|_| interprets && !approved) {
            say(
                "IV-02",
                &field,
                format!(
                    "contains {c:?}, and {name} takes text for a program; the tool's `arguments = \"any\"` allows that"
                ),
            );
        }
    }
    if inputs.command.is_empty() || inputs.command.contains('\0') {
        say("IV-02", "inputs.command", "is no name of a program".to_owned());
    }
}

fn paths(execution: &Execution, facts: &Facts, say: Say<'_>) {
    let inputs = &execution.inputs;
    let one = inputs.working_directory.iter().map(|path| ("inputs.working_directory".to_owned(), path));
    let many = |field: &'static str, paths: &'_ [String]| -> Vec<(String, String)> {
        paths.iter().enumerate().map(|(at, path)| (format!("{field}[{at}]"), path.clone())).collect()
    };
    let artifacts: Vec<String> = execution.outputs.artifacts.iter().map(|artifact| artifact.path.clone()).collect();
    let filesystem = &execution.sandbox.filesystem;
    let all = one
        .map(|(field, path)| (field, path.clone()))
        .chain(many("inputs.input_files", &inputs.input_files))
        .chain(many("outputs.output_files", &execution.outputs.output_files))
        .chain(many("outputs.artifacts", &artifacts))
        .chain(many("sandbox.filesystem.read", &filesystem.read))
        .chain(many("sandbox.filesystem.write", &filesystem.write))
        .chain(many("sandbox.filesystem.deny", &filesystem.deny));
    for (field, path) in all {
        let parts = path.split(['/', '\\']);
        if path.is_empty() || path.contains('\0') {
            say("IV-03", &field, "is no path".to_owned());
        } else if parts.into_iter().any(|part| part == "..") {
            say("IV-03", &field, format!("{path:?} goes up with `..`"));
        } else if path.get(1..3).is_some_and(|drive| drive == ":\\") {
            say("IV-03", &field, format!("{path:?} is a path of another system"));
        }
    }
    for (field, wrong) in &facts.bad_paths {
        say("IV-03", field, wrong.clone());
    }
}

fn environment(execution: &Execution, tool: Option<&Tool>, say: Say<'_>) -> Inputs {
    let mut inputs = Inputs::default();
    for (name, value) in &execution.inputs.environment {
        let field = format!("inputs.environment.{name}");
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            say("IV-04", &field, "is no variable".to_owned());
            continue;
        }
        let listed = tool.is_none_or(|tool| tool.environment.is_empty() || tool.environment.contains(name));
        let scoped = tool.is_some_and(|tool| tool.scoped.contains(name));
        if scoped || (listed && !is_dangerous(name)) {
            inputs.environment.insert(name.clone(), value.clone());
        } else {
            inputs.stripped.push(name.clone());
        }
    }
    inputs
}

fn size(execution: &Execution, tool: Option<&Tool>, facts: &Facts, inputs: &mut Inputs, say: Say<'_>) {
    inputs.stdin.clone_from(&execution.inputs.stdin);
    let length = inputs.stdin.as_ref().map_or(0, |text| text.len() as u64);
    if length > STDIN_BYTES_MAX {
        if tool.is_some_and(|tool| tool.cuts_input) {
            inputs.stdin_cut_from = Some(length);
            if let Some(text) = &mut inputs.stdin {
                let mut end = STDIN_BYTES_MAX as usize;
                while !text.is_char_boundary(end) {
                    end -= 1;
                }
                text.truncate(end);
            }
        } else {
            say("IV-05", "inputs.stdin", format!("is {length} bytes, at most {STDIN_BYTES_MAX} are taken"));
        }
    }
    if facts.input_files_bytes > INPUT_FILES_BYTES_MAX {
        let message =
            format!("are {} bytes together, at most {INPUT_FILES_BYTES_MAX} are taken", facts.input_files_bytes);
        say("IV-05", "inputs.input_files", message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::execution::{Inputs as Given, Outputs, Sandbox};

    fn execution(command: &str, arguments: &[&str]) -> Execution {
        Execution {
            execution_id: None,
            tool_id: "TL-003".into(),
            adapter_id: None,
            inputs: Given {
                command: command.into(),
                arguments: arguments.iter().map(ToString::to_string).collect(),
                ..Given::default()
            },
            sandbox: Sandbox::default(),
            outputs: Outputs::default(),
            metadata: serde_json::Map::new(),
        }
    }

    fn tool(commands: &[&str]) -> Tool {
        Tool { id: "TL-003".into(), commands: commands.iter().map(ToString::to_string).collect(), ..Tool::default() }
    }

    fn checks(execution: &Execution, tool: Option<&Tool>, facts: &Facts) -> Vec<&'static str> {
        check(execution, tool, facts).1.iter().map(|violation| violation.check).collect()
    }

    #[test]
    fn all_violations_are_collected() {
        let mut bad = execution("sh", &["-c", "rm -rf / ; x"]);
        bad.inputs.working_directory = Some("../up".into());
        bad.inputs.environment.insert("A=B".into(), "c".into());
        bad.inputs.stdin = Some("x".repeat(STDIN_BYTES_MAX as usize + 1));
        assert_eq!(checks(&bad, None, &Facts::default()), ["IV-01", "IV-02", "IV-03", "IV-04", "IV-05"]);
    }

    #[test]
    fn only_listed_commands_of_tools_that_are_not_blocked() {
        let rg = execution("rg", &[]);
        assert!(checks(&rg, Some(&tool(&["rg"])), &Facts::default()).is_empty());
        assert_eq!(checks(&rg, Some(&tool(&["rgx", "/usr/bin/rg"])), &Facts::default()), ["IV-01"]);
        let blocked = Tool { blocked: true, ..tool(&["rg"]) };
        assert_eq!(checks(&rg, Some(&blocked), &Facts::default()), ["IV-01"]);
    }

    #[test]
    fn a_pattern_for_ripgrep_works_and_a_text_for_a_shell_does_not() {
        let facts = Facts::default();
        assert!(checks(&execution("rg", &[r"fn \w+\(", "$(x)", "a;b"]), Some(&tool(&["rg"])), &facts).is_empty());
        for interpreter in ["sh", "/bin/bash", "python3", "python3.11", "node", "psql"] {
            for c in SHELL {
                let bad = execution(interpreter, &["-c", &format!("x{c}")]);
                assert_eq!(checks(&bad, Some(&tool(&[interpreter])), &facts), ["IV-02"], "{interpreter} {c}");
            }
            assert!(checks(&execution(interpreter, &["script.x"]), Some(&tool(&[interpreter])), &facts).is_empty());
        }
        let approved = Tool { any_arguments: true, ..tool(&["sh"]) };
        assert!(checks(&execution("sh", &["-c", "a; b"]), Some(&approved), &facts).is_empty());
        assert_eq!(checks(&execution("rg", &["a\0b"]), Some(&tool(&["rg"])), &facts), ["IV-02"]);
    }

    #[test]
    fn paths_that_go_up_are_refused_and_dots_in_names_are_not() {
        let with = |path: &str| {
            let mut execution = execution("rg", &[]);
            execution.inputs.input_files = vec![path.into()];
            checks(&execution, Some(&tool(&["rg"])), &Facts::default())
        };
        for path in ["../x", "a/../b", "..", "a\\..\\b", "a/..", "C:\\Windows\\x", ""] {
            assert_eq!(with(path), ["IV-03"], "{path}");
        }
        for path in ["a..b", "...", "a/b.c", "./x", "..a"] {
            assert!(with(path).is_empty(), "{path}");
        }
        let facts = Facts { bad_paths: vec![("inputs.input_files[0]".into(), "leads out".into())], ..Facts::default() };
        assert_eq!(checks(&execution("rg", &[]), Some(&tool(&["rg"])), &facts), ["IV-03"]);
    }

    #[test]
    fn variables_are_stripped_unless_approved_and_dangerous_ones_unless_scoped() {
        let mut given = execution("rg", &[]);
        for name in ["LANG_X", "LD_PRELOAD", "LD_LIBRARY_PATH", "PATH", "NODE_OPTIONS", "GIT_SSH_COMMAND", "BASH_ENV"] {
            given.inputs.environment.insert(name.into(), "v".into());
        }
        let left =
            |tool: &Tool| check(&given, Some(tool), &Facts::default()).0.environment.into_keys().collect::<Vec<_>>();
        assert_eq!(left(&tool(&["rg"])), ["LANG_X"]);
        assert_eq!(
            left(&Tool { environment: vec!["LD_PRELOAD".into()], ..tool(&["rg"]) }),
            [""; 0],
            "approved is not enough"
        );
        let scoped = Tool { environment: vec!["X".into()], scoped: vec!["PATH".into()], ..tool(&["rg"]) };
        assert_eq!(left(&scoped), ["PATH"]);
        assert_eq!(
            check(&given, Some(&tool(&["rg"])), &Facts::default()).0.stripped.len(),
            6,
            "what was stripped is known"
        );
    }

    #[test]
    fn too_much_input_is_refused_or_cut_at_a_character() {
        let mut long = execution("rg", &[]);
        long.inputs.stdin = Some("é".repeat(STDIN_BYTES_MAX as usize));
        assert_eq!(checks(&long, Some(&tool(&["rg"])), &Facts::default()), ["IV-05"]);
        let cuts = Tool { cuts_input: true, ..tool(&["rg"]) };
        let (inputs, violations) = check(&long, Some(&cuts), &Facts::default());
        assert!(violations.is_empty());
        assert_eq!(inputs.stdin.unwrap().len() as u64, STDIN_BYTES_MAX);
        assert_eq!(inputs.stdin_cut_from, Some(2 * STDIN_BYTES_MAX));
        let facts = Facts { input_files_bytes: INPUT_FILES_BYTES_MAX + 1, ..Facts::default() };
        assert_eq!(checks(&execution("rg", &[]), Some(&tool(&["rg"])), &facts), ["IV-05"]);
    }
}
