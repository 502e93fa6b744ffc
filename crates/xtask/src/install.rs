//! What a fresh machine lacks, as a table; `test` and `bench` call it first. It never installs what is already there
//! and never builds from source what the system can provide.

use crate::agents::Agents;
use crate::linters::Linters;
use crate::objects::Objects;
use crate::schemathesis::Schemathesis;
use crate::servers::Servers;
use crate::verifiers::Verifiers;
use crate::{postgres, program};
use std::path::Path;
use std::process::Command;

struct Need {
    name: &'static str,
    present: fn() -> bool,
    source: Source,
}

enum Source {
    /// A package of the system, where there is apt-get.
    System(&'static str),
    /// A component of the Rust toolchain in use.
    Toolchain(&'static str),
    /// Packages of others in a folder of their own; comes after the programs that install them.
    Folder(fn() -> Result<(), String>),
}

/// One row for each thing beyond cargo and a linker, which this program itself already needed.
const NEEDS: &[Need] = &[
    Need {
        name: "PostgreSQL server",
        present: || postgres::find_binaries().is_some(),
        source: Source::System("postgresql"),
    },
    Need {
        name: "git",
        present: || program::succeeds(Command::new("git").arg("--version")),
        source: Source::System("git"),
    },
    Need {
        name: "ripgrep",
        present: || program::succeeds(Command::new("rg").arg("--version")),
        source: Source::System("ripgrep"),
    },
    Need {
        name: "bubblewrap",
        present: || program::succeeds(Command::new("bwrap").arg("--version")),
        source: Source::System("bubblewrap"),
    },
    Need {
        name: "curl",
        present: || program::succeeds(Command::new("curl").arg("--version")),
        source: Source::System("curl"),
    },
    Need { name: "python3", present: || Path::new("/usr/bin/python3").exists(), source: Source::System("python3") },
    Need {
        name: "python3-venv",
        present: || program::succeeds(Command::new("/usr/bin/python3").args(["-c", "import ensurepip, venv"])),
        source: Source::System("python3-venv"),
    },
    Need { name: "node", present: || Path::new("/usr/bin/node").exists(), source: Source::System("nodejs") },
    Need { name: "npm", present: || Path::new("/usr/bin/npm").exists(), source: Source::System("npm") },
    Need {
        name: "openssl",
        present: || program::succeeds(Command::new("openssl").arg("version")),
        source: Source::System("openssl"),
    },
    Need {
        name: "libfaketime",
        present: || Path::new("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1").exists(),
        source: Source::System("libfaketime"),
    },
    Need {
        name: "strace",
        present: || program::succeeds(Command::new("strace").arg("--version")),
        source: Source::System("strace"),
    },
    Need { name: "verifiers of others", present: Verifiers::are_installed, source: Source::Folder(Verifiers::install) },
    Need { name: "MCP servers of others", present: Servers::are_installed, source: Source::Folder(Servers::install) },
    Need { name: "schemathesis", present: Schemathesis::is_installed, source: Source::Folder(Schemathesis::install) },
    Need { name: "agents of others", present: Agents::are_installed, source: Source::Folder(Agents::install) },
    Need { name: "object stores of others", present: Objects::are_installed, source: Source::Folder(Objects::install) },
    Need { name: "linters of others", present: Linters::are_installed, source: Source::Folder(Linters::install) },
    Need {
        name: "systemd-analyze",
        present: || program::succeeds(Command::new("systemd-analyze").arg("--version")),
        source: Source::System("systemd"),
    },
    Need { name: "network tools", present: || is_for_administrators("ip"), source: Source::System("iproute2") },
    Need { name: "ext4 tools", present: || is_for_administrators("mkfs.ext4"), source: Source::System("e2fsprogs") },
    Need {
        name: "btrfs tools",
        present: || is_for_administrators("mkfs.btrfs"),
        source: Source::System("btrfs-progs"),
    },
    Need {
        name: "rustfmt",
        present: || program::succeeds(program::cargo().args(["fmt", "--version"])),
        source: Source::Toolchain("rustfmt"),
    },
    Need {
        name: "clippy",
        present: || program::succeeds(program::cargo().args(["clippy", "--version"])),
        source: Source::Toolchain("clippy"),
    },
];

/// A tool that may lie where ordinary users do not look.
fn is_for_administrators(name: &str) -> bool {
    ["/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin"]
        .iter()
        .any(|folder| Path::new(folder).join(name).exists())
}

/// Installs what is missing of the toolchain: what the first checks are made with.
pub(crate) fn tools() -> Result<(), String> {
    for need in NEEDS {
        if let Source::Toolchain(component) = need.source
            && !(need.present)()
        {
            program::run(Command::new("rustup").args(["component", "add", component]))?;
        }
    }
    Ok(())
}

/// Installs every missing row; asks the system's package lists to be renewed at most once.
pub(crate) fn missing() -> Result<(), String> {
    tools()?;
    let (mut packages, mut folders) = (Vec::new(), Vec::new());
    for need in NEEDS.iter().filter(|need| !(need.present)()) {
        println!("{} is missing", need.name);
        match need.source {
            Source::System(package) => packages.push(package),
            Source::Folder(install) => folders.push(install),
            Source::Toolchain(_) => {}
        }
    }
    if !packages.is_empty() {
        install_packages(&packages)?;
    }
    for install in folders {
        install()?;
    }
    match NEEDS.iter().find(|need| !(need.present)()) {
        Some(need) => Err(format!("{} is still missing after its installation: look at the output above", need.name)),
        None => Ok(()),
    }
}

fn install_packages(packages: &[&str]) -> Result<(), String> {
    let by_hand = format!("install {} by hand, then run `cargo xtask test` again", packages.join(" and "));
    if !program::succeeds(Command::new("apt-get").arg("--version")) {
        return Err(format!("there is no apt-get on this machine: {by_hand}"));
    }
    let is_root = program::output(Command::new("id").arg("-u"))?.trim() == "0";
    if !is_root && !program::succeeds(Command::new("sudo").arg("--version")) {
        return Err(format!("neither root nor sudo: {by_hand}"));
    }
    let apt_get = |arguments: &[&str]| {
        let mut command = if is_root { Command::new("env") } else { Command::new("sudo") };
        if !is_root {
            command.arg("env");
        }
        program::run(command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get"]).args(arguments))
    };
    apt_get(&["update"])?;
    apt_get(&[&["install", "--yes", "--no-install-recommends"], packages].concat())
}
