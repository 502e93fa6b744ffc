//! Packages that others wrote, in the versions a test was made with: Python and Node ones in a folder of the user's cache,
//! installed by `cargo xtask test` and used by tests. Never part of a checkout, never installed by a test. Only std: xtask
//! includes this very file, so that it need not build the crate.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Packages of one folder, each with its version.
pub(super) struct Packages {
    /// The variable that names the folder; `cargo xtask test` sets it.
    pub variable: &'static str,
    /// What the folder in the user's cache is called.
    pub name: &'static str,
    pub python: &'static [&'static str],
    pub node: &'static [&'static str],
}

impl Packages {
    /// The folder that the variable names, else one in the user's cache.
    pub(super) fn place(&self) -> PathBuf {
        place(self.variable, self.name)
    }

    /// Whether they were installed to the end, and in these versions.
    pub(super) fn are_whole(&self) -> bool {
        fs::read_to_string(self.stamp()).is_ok_and(|text| text == self.versions())
    }

    /// Their Python.
    pub(super) fn python(&self) -> Command {
        Command::new(self.place().join("venv/bin/python"))
    }

    /// Installs them anew, before everybody's eyes, unless `are_there`.
    pub(super) fn install(&self, are_there: impl Fn() -> bool) -> Result<(), String> {
        let folder = self.place();
        let cannot = |e: std::io::Error| format!("cannot make {}: {e}", folder.display());
        fs::create_dir_all(&folder).map_err(cannot)?;
        // Two checkouts share the folder; the second finds what the first has made.
        let lock = File::create(folder.with_extension("lock")).map_err(cannot)?;
        lock.lock().map_err(cannot)?;
        if are_there() {
            return Ok(());
        }
        fs::remove_dir_all(&folder).and_then(|()| fs::create_dir_all(&folder)).map_err(cannot)?;
        run(Command::new("/usr/bin/python3").args(["-m", "venv"]).arg(folder.join("venv")))?;
        let flags = ["-m", "pip", "install", "--quiet", "--no-input", "--only-binary", ":all:"];
        run(self.python().args(flags).args(self.python))?;
        if !self.node.is_empty() {
            // Their authors name the newest versions of Node only; they run on older ones.
            let flags = ["--no-audit", "--no-fund", "--ignore-scripts", "--engine-strict=false", "--loglevel=error"];
            run(Command::new("npm").arg("install").arg("--prefix").arg(&folder).args(flags).args(self.node))?;
        }
        fs::write(self.stamp(), self.versions()).map_err(cannot)
    }

    /// Written last: what it stands in is whole.
    fn stamp(&self) -> PathBuf {
        self.place().join("installed")
    }

    fn versions(&self) -> String {
        [self.python, self.node].concat().iter().map(|name| format!("{name}\n")).collect()
    }
}

/// The folder that a variable names, else one in the user's cache.
pub(super) fn place(folder: &str, name: &str) -> PathBuf {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = || variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    let home = || cache().unwrap_or_else(std::env::temp_dir);
    variable(folder).unwrap_or_else(|| home().join("actum-tests").join(name))
}

pub(super) fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

pub(super) fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("installing packages of others: `{program}` ended with {status}")),
        Err(error) => Err(format!("installing packages of others: cannot start `{program}`: {error}")),
    }
}
