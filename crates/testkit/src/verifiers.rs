//! Verifiers that others wrote, for what we sign: Python and Node packages in a cache folder, installed by
//! `cargo xtask test` and used by the tests of the binary. Never part of a checkout, never installed by a test.
//! Only std and no `crate::` path: xtask includes this very file, so that it need not build the crate.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The variable that names the folder they are in; `cargo xtask test` sets it.
pub const FOLDER: &str = "ACTUM_TEST_VERIFIERS";

const MISSING: &str = "the verifiers of others are not installed: run `cargo xtask test` once, it installs them";

/// With all they need, so that tomorrow's test is today's.
const PYTHON: &[&str] = &[
    "securesystemslib[crypto]==1.6.0",
    "in-toto-attestation==0.9.3",
    "cryptography==50.0.2",
    "cffi==2.1.1",
    "pycparser==3.12",
    "protobuf==7.36.2",
];
const NODE: &[&str] =
    &["@sigstore/verify@4.1.2", "@sigstore/bundle@5.0.0", "@sigstore/core@4.0.1", "@sigstore/protobuf-specs@0.5.2"];

/// Where everything is once it is installed.
#[derive(Debug, Clone)]
pub struct Verifiers(PathBuf);

impl Verifiers {
    /// The folder that [`FOLDER`] names, else one in the user's cache.
    pub fn place() -> PathBuf {
        place(FOLDER, "verifiers")
    }

    /// What is installed.
    ///
    /// # Panics
    /// When it is not, or other versions are.
    pub fn find() -> Self {
        let found = Self(Self::place());
        assert!(found.is_stamped(), "{MISSING}");
        found
    }

    /// Whether everything is there and starts. A venv lives only as long as the Python it was made with.
    pub fn are_installed() -> bool {
        let found = Self(Self::place());
        found.is_stamped()
            && succeeds(found.python().args(["-c", "import securesystemslib, in_toto_attestation, cryptography"]))
            && succeeds(found.node().args(["-e", "require('@sigstore/verify'), require('@sigstore/bundle')"]))
    }

    /// Installs them anew, before everybody's eyes.
    pub fn install() -> Result<(), String> {
        let folder = Self::place();
        let cannot = |e: std::io::Error| format!("cannot make {}: {e}", folder.display());
        fs::create_dir_all(&folder).map_err(cannot)?;
        // Two checkouts share the folder; the second finds what the first has made.
        let lock = File::create(folder.with_extension("lock")).map_err(cannot)?;
        lock.lock().map_err(cannot)?;
        if Self::are_installed() {
            return Ok(());
        }
        fs::remove_dir_all(&folder).and_then(|()| fs::create_dir_all(&folder)).map_err(cannot)?;
        let this = Self(folder.clone());
        run(Command::new("/usr/bin/python3").args(["-m", "venv"]).arg(folder.join("venv")))?;
        let flags = ["-m", "pip", "install", "--quiet", "--no-input", "--only-binary", ":all:"];
        run(this.python().args(flags).args(PYTHON))?;
        // Their authors name the newest versions of Node only; they run on older ones.
        let flags = ["--no-audit", "--no-fund", "--ignore-scripts", "--engine-strict=false", "--loglevel=error"];
        run(Command::new("npm").arg("install").arg("--prefix").arg(&folder).args(flags).args(NODE))?;
        fs::write(this.stamp(), versions()).map_err(cannot)
    }

    /// Their Python.
    pub fn python(&self) -> Command {
        Command::new(self.0.join("venv/bin/python"))
    }

    /// Node, with their packages within reach.
    pub fn node(&self) -> Command {
        let mut command = Command::new("node");
        command.env("NODE_PATH", self.0.join("node_modules"));
        command
    }

    /// Written last: what it stands in is whole.
    fn stamp(&self) -> PathBuf {
        self.0.join("installed")
    }

    fn is_stamped(&self) -> bool {
        fs::read_to_string(self.stamp()).is_ok_and(|text| text == versions())
    }
}

fn versions() -> String {
    [PYTHON, NODE].concat().iter().map(|name| format!("{name}\n")).collect()
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
