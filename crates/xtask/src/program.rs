//! Starting other programs, for every verb of the workshop: cargo in the project's root, and success as a sentence.
//! Never captures what a person should see while it happens, except where the caller asks for the output.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The root of the checkout that this program was built from.
pub(crate) fn root() -> PathBuf {
    let mut root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.pop();
    root.pop();
    root
}

/// Cargo in the root, without what the outer cargo told us about ourselves: build scripts that watch these variables
/// would run again each time a developer changes between `cargo` and `cargo xtask`.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(root());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text == "CARGO" || text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Runs a program before everybody's eyes.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{}` ended with {status}", words(command))),
        Err(error) => Err(format!("cannot start `{}`: {error}", words(command))),
    }
}

/// Runs a program for its standard output; what it says on standard error is passed on.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot start `{}`: {error}", words(command)))?;
    if !output.status.success() {
        return Err(format!("`{}` ended with {}", words(command), output.status));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("`{}` printed something that is not UTF-8", words(command)))
}

/// Whether a program runs and succeeds; what it prints is nobody's business.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

pub(crate) fn words(command: &Command) -> String {
    let arguments = command.get_args().map(|argument| argument.to_string_lossy());
    std::iter::once(command.get_program().to_string_lossy()).chain(arguments).collect::<Vec<_>>().join(" ")
}
