//! Schemathesis, which tries an HTTP API by its OpenAPI document: in a cache folder, installed by `cargo xtask test`. Never part of a
//! checkout, never installed by a test. Only std and what stands beside it: xtask includes this very file, so that it need
//! not build the crate.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

use super::verifiers::{place, run, succeeds};

/// The variable that names the folder it is in; `cargo xtask test` sets it.
pub const FOLDER: &str = "ACTUM_TEST_SCHEMATHESIS";

const MISSING: &str = "schemathesis is not installed: run `cargo xtask test` once, it installs it";
const PACKAGE: &str = "schemathesis==4.32.5";

/// Where it is once it is installed.
#[derive(Debug, Clone)]
pub struct Schemathesis(PathBuf);

impl Schemathesis {
    /// The folder that [`FOLDER`] names, else one in the user's cache.
    pub fn place() -> PathBuf {
        place(FOLDER, "schemathesis")
    }

    /// What is installed.
    ///
    /// # Panics
    /// When it is not, or another version is.
    pub fn find() -> Self {
        let found = Self(Self::place());
        assert!(found.is_stamped(), "{MISSING}");
        found
    }

    /// Whether it is there and starts. A venv lives only as long as the Python it was made with.
    pub fn is_installed() -> bool {
        let found = Self(Self::place());
        found.is_stamped() && succeeds(found.command().arg("--version"))
    }

    /// Installs it anew, before everybody's eyes.
    pub fn install() -> Result<(), String> {
        let folder = Self::place();
        let cannot = |e: std::io::Error| format!("cannot make {}: {e}", folder.display());
        fs::create_dir_all(&folder).map_err(cannot)?;
        // Two checkouts share the folder; the second finds what the first has made.
        let lock = File::create(folder.with_extension("lock")).map_err(cannot)?;
        lock.lock().map_err(cannot)?;
        if Self::is_installed() {
            return Ok(());
        }
        fs::remove_dir_all(&folder).and_then(|()| fs::create_dir_all(&folder)).map_err(cannot)?;
        let venv = folder.join("venv");
        run(Command::new("/usr/bin/python3").args(["-m", "venv"]).arg(&venv))?;
        let flags = ["-m", "pip", "install", "--quiet", "--no-input", "--only-binary", ":all:"];
        run(Command::new(venv.join("bin/python")).args(flags).arg(PACKAGE))?;
        fs::write(folder.join("installed"), PACKAGE).map_err(cannot)
    }

    /// Its command line.
    pub fn command(&self) -> Command {
        Command::new(self.0.join("venv/bin/schemathesis"))
    }

    fn is_stamped(&self) -> bool {
        fs::read_to_string(self.0.join("installed")).is_ok_and(|text| text == PACKAGE)
    }
}
