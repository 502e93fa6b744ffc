//! MCP servers and packages that others wrote, for our adapters to call: Node and Python packages in a cache folder,
//! installed by `cargo xtask test`. Never part of a checkout, never installed by a test.
//! Only std and what stands beside it: xtask includes this very file, so that it need not build the crate.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::packages::{place, run, succeeds};

/// The variable that names the folder they are in; `cargo xtask test` sets it.
pub const FOLDER: &str = "ACTUM_TEST_MCP";

const MISSING: &str = "the MCP servers of others are not installed: run `cargo xtask test` once, it installs them";

/// Name and exact version. `node` is a Node that is newer than the system's.
const NODE: &[(&str, &str)] = &[
    ("@modelcontextprotocol/server-filesystem", "2026.8.31"),
    ("@modelcontextprotocol/server-everything", "2026.8.31"),
    ("@modelcontextprotocol/conformance", "0.1.16"),
    ("node", "22.23.3"),
    ("semver", "7.8.6"),
    ("nanoid", "5.1.16"),
];
/// Servers and a client, in a venv.
const PYTHON: &[(&str, &str)] = &[("mcp-server-git", "2026.10.19"), ("mcp", "2.3.0"), ("mcp-types", "2.3.0")];
/// Libraries in a folder of their own, as a project has them beside it.
const LIBRARIES: &[(&str, &str)] = &[("markdown-it-py", "4.3.0"), ("mdurl", "0.1.2")];

/// Where everything is once it is installed.
#[derive(Debug, Clone)]
pub struct Servers(PathBuf);

impl Servers {
    /// The folder that [`FOLDER`] names, else one in the user's cache.
    pub fn place() -> PathBuf {
        place(FOLDER, "mcp")
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
        found.is_stamped() && found.starts()
    }

    /// Installs them anew, before everybody's eyes; what somebody has installed by hand is kept if it is the same.
    pub fn install() -> Result<(), String> {
        let folder = Self::place();
        let cannot = |e: std::io::Error| format!("cannot make {}: {e}", folder.display());
        fs::create_dir_all(&folder).map_err(cannot)?;
        // Two checkouts share the folder; the second finds what the first has made.
        let lock = File::create(folder.with_extension("lock")).map_err(cannot)?;
        lock.lock().map_err(cannot)?;
        let this = Self(folder.clone());
        if !(this.is_exact() && this.starts()) {
            fs::remove_dir_all(&folder).and_then(|()| fs::create_dir_all(&folder)).map_err(cannot)?;
            run(Command::new("/usr/bin/python3").args(["-m", "venv"]).arg(folder.join("venv")))?;
            let flags = ["-m", "pip", "install", "--quiet", "--no-input", "--only-binary", ":all:"];
            run(this.python().args(flags).args(pins(PYTHON)))?;
            run(this.python().args(flags).arg("--target").arg(folder.join("packages")).args(pins(LIBRARIES)))?;
            fs::write(folder.join("package.json"), manifest()).map_err(cannot)?;
            let flags = ["--no-audit", "--no-fund", "--engine-strict=false", "--loglevel=error"];
            run(Command::new("npm").arg("install").args(flags).current_dir(&folder))?;
        }
        fs::write(this.stamp(), versions()).map_err(cannot)
    }

    /// The folder of it all: `node_modules`, `venv`, `packages`.
    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// Their Python, with the MCP client.
    pub fn python(&self) -> Command {
        Command::new(self.0.join("venv/bin/python"))
    }

    /// Their Node, which is newer than the system's.
    pub fn node(&self) -> Command {
        Command::new(self.0.join("node_modules/.bin/node"))
    }

    fn starts(&self) -> bool {
        succeeds(self.python().args(["-c", "import mcp, mcp_server_git"]))
            && succeeds(self.node().args(["-e", "require('semver')"]).current_dir(&self.0))
    }

    /// Whether the versions on the disk are those of the tables.
    fn is_exact(&self) -> bool {
        let is_node = |(name, version): &(&str, &str)| {
            let manifest = self.0.join("node_modules").join(name).join("package.json");
            let stated = format!("\"version\": \"{version}\"");
            fs::read_to_string(manifest).is_ok_and(|text| text.contains(&stated))
        };
        let within = |folder: PathBuf, packages: &[(&str, &str)]| {
            packages
                .iter()
                .all(|(name, version)| folder.join(format!("{}-{version}.dist-info", name.replace('-', "_"))).exists())
        };
        // There is one of these in a venv, named after its Python.
        let site = fs::read_dir(self.0.join("venv/lib")).into_iter().flatten().flatten().next();
        let site = site.map(|python| python.path().join("site-packages")).unwrap_or_default();
        NODE.iter().all(is_node) && within(site, PYTHON) && within(self.0.join("packages"), LIBRARIES)
    }

    /// Written last: what it stands in is whole.
    fn stamp(&self) -> PathBuf {
        self.0.join("installed")
    }

    fn is_stamped(&self) -> bool {
        fs::read_to_string(self.stamp()).is_ok_and(|text| text == versions())
    }
}

fn pins(packages: &[(&str, &str)]) -> Vec<String> {
    packages.iter().map(|(name, version)| format!("{name}=={version}")).collect()
}

/// npm runs what a package brings only where it is told so; the package `node` fetches its program that way.
fn manifest() -> String {
    let rows: Vec<String> = NODE.iter().map(|(name, version)| format!("\"{name}\": \"{version}\"")).collect();
    format!("{{\"private\": true, \"dependencies\": {{{}}}, \"allowScripts\": {{\"node\": true}}}}\n", rows.join(", "))
}

fn versions() -> String {
    [NODE, PYTHON, LIBRARIES].concat().iter().map(|(name, version)| format!("{name} {version}\n")).collect()
}
