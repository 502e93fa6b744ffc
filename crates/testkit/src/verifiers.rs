//! Verifiers that others wrote, for what we sign: Python and Node packages in a cache folder, installed by
//! `cargo xtask test` and used by the tests of the binary. Never part of a checkout, never installed by a test.
//! Only std and no `crate::` path: xtask includes this very file, so that it need not build the crate.

use std::path::PathBuf;
use std::process::Command;

use super::packages::{Packages, succeeds};

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

const PACKAGES: Packages = Packages { variable: FOLDER, name: "verifiers", python: PYTHON, node: NODE };

/// Where everything is once it is installed.
#[derive(Debug, Clone)]
pub struct Verifiers(PathBuf);

impl Verifiers {
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

    /// Whether everything is there and starts. A venv lives only as long as the Python it was made with.
    pub fn are_installed() -> bool {
        let found = Self(Self::place());
        PACKAGES.are_whole()
            && succeeds(found.python().args(["-c", "import securesystemslib, in_toto_attestation, cryptography"]))
            && succeeds(found.node().args(["-e", "require('@sigstore/verify'), require('@sigstore/bundle')"]))
    }

    /// Installs them anew, before everybody's eyes.
    pub fn install() -> Result<(), String> {
        PACKAGES.install(Self::are_installed)
    }

    /// Their Python.
    pub fn python(&self) -> Command {
        PACKAGES.python()
    }

    /// Node, with their packages within reach.
    pub fn node(&self) -> Command {
        let mut command = Command::new("node");
        command.env("NODE_PATH", self.0.join("node_modules"));
        command
    }
}
