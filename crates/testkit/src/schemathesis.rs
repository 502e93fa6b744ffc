//! Schemathesis, which tries an HTTP API by its OpenAPI document: in a cache folder, installed by `cargo xtask test`. Never part of a
//! checkout, never installed by a test. Only std and what stands beside it: xtask includes this very file, so that it need
//! not build the crate.

use std::path::PathBuf;
use std::process::Command;

use super::packages::{Packages, succeeds};

/// The variable that names the folder it is in; `cargo xtask test` sets it.
pub const FOLDER: &str = "ACTUM_TEST_SCHEMATHESIS";

const MISSING: &str = "schemathesis is not installed: run `cargo xtask test` once, it installs it";
const PACKAGE: &str = "schemathesis==4.32.5";

const PACKAGES: Packages = Packages { variable: FOLDER, name: "schemathesis", python: &[PACKAGE], node: &[] };

/// Where it is once it is installed.
#[derive(Debug, Clone)]
pub struct Schemathesis(PathBuf);

impl Schemathesis {
    /// The folder that [`FOLDER`] names, else one in the user's cache.
    pub fn place() -> PathBuf {
        PACKAGES.place()
    }

    /// What is installed.
    ///
    /// # Panics
    /// When it is not, or another version is.
    pub fn find() -> Self {
        assert!(PACKAGES.are_whole(), "{MISSING}");
        Self(Self::place())
    }

    /// Whether it is there and starts. A venv lives only as long as the Python it was made with.
    pub fn is_installed() -> bool {
        let found = Self(Self::place());
        PACKAGES.are_whole() && succeeds(found.command().arg("--version"))
    }

    /// Installs it anew, before everybody's eyes.
    pub fn install() -> Result<(), String> {
        PACKAGES.install(Self::is_installed)
    }

    /// Its command line.
    pub fn command(&self) -> Command {
        Command::new(self.0.join("venv/bin/schemathesis"))
    }
}
