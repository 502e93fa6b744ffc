//! Machines of one network: namespaces of the kernel on a bridge, each with an address and an id of its own, whose links can be
//! cut. Used by the tests of many machines; needs root. Nothing is left of it when it is dropped.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::folder::Folder;

const IP: &str = "/usr/sbin/ip";
/// Shows a machine an id of its own, then becomes the program. `ip netns exec` has made a world of mounts for it.
const BECOME: &str = "mount --bind \"$1\" /etc/machine-id; shift; exec \"$@\"";

/// How the names of all networks begin.
pub const PREFIX: &str = "af";

/// A bridge on this machine, and whoever is on it.
#[derive(Debug)]
pub struct Network {
    /// What all its names begin with; a name of a link has 15 letters at most.
    name: String,
    /// The first three numbers of all addresses.
    prefix: String,
    machines: u32,
    ids: Folder,
}

/// One machine on a network.
#[derive(Debug, Clone)]
pub struct Machine {
    pub address: String,
    /// What a program is started by to run there.
    pub words: Vec<String>,
    link: String,
}

impl Network {
    /// Nothing where namespaces cannot be made, with the reason.
    pub fn make() -> Result<Self, String> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let nth = MADE.fetch_add(1, Ordering::Relaxed);
        let own = std::process::id();
        let name = format!("{PREFIX}{own:x}-{nth:x}");
        // 10.64 to 10.127: by the process, so that two tests are on two networks.
        let prefix = format!("10.{}.{}", 64 + (own >> 8) % 64, (own.wrapping_add(nth * 37)) % 256);
        sweep();
        let network = Self { name, prefix, machines: 0, ids: Folder::new() };
        ip(&["link", "add", &network.name, "type", "bridge"])?;
        ip(&["addr", "add", &format!("{}/24", network.address()), "dev", &network.name])?;
        ip(&["link", "set", &network.name, "up"])?;
        Ok(network)
    }

    /// That of this machine.
    pub fn address(&self) -> String {
        format!("{}.1", self.prefix)
    }

    /// # Panics
    /// When it cannot be made.
    pub fn machine(&mut self) -> Machine {
        self.machines += 1;
        let (space, link) = (format!("{}n{}", self.name, self.machines), format!("{}v{}", self.name, self.machines));
        let address = format!("{}.{}", self.prefix, self.machines + 1);
        let id = self.ids.file(&space, format!("{:032x}\n", self.machines)).display().to_string();
        let wide = format!("{address}/24");
        let steps: [&[&str]; 6] = [
            &["netns", "add", &space],
            &["link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", &space],
            &["link", "set", &link, "master", &self.name, "up"],
            &["-n", &space, "addr", "add", &wide, "dev", "eth0"],
            &["-n", &space, "link", "set", "eth0", "up"],
            &["-n", &space, "link", "set", "lo", "up"],
        ];
        for words in steps {
            ip(words).unwrap_or_else(|problem| panic!("{problem}"));
        }
        let words = [IP, "netns", "exec", &space, "/bin/sh", "-c", BECOME, "sh", &id];
        Machine { address, words: words.iter().map(|word| (*word).to_owned()).collect(), link }
    }
}

/// Removes what a process has left that was killed, with everything that still runs there. Names say whose they are.
fn sweep() {
    let said = |words: &[&str]| {
        let output = Command::new(IP).args(words).stderr(Stdio::null()).output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
    };
    let is_left = |name: &str| {
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-')).map(|(owner, _)| owner);
        let owner = owner.and_then(|owner| u32::from_str_radix(owner, 16).ok());
        owner.is_some_and(|owner| !std::path::Path::new(&format!("/proc/{owner}")).exists())
    };
    for space in said(&["netns", "list"]).lines().filter_map(|line| line.split(' ').next()).filter(|name| is_left(name))
    {
        for process in said(&["netns", "pids", space]).split_whitespace() {
            let _ = Command::new("kill").args(["-s", "KILL", process]).stderr(Stdio::null()).status();
        }
        let _ = ip(&["netns", "del", space]);
    }
    let links = said(&["-o", "link", "show", "type", "bridge"]);
    for link in links.lines().filter_map(|line| line.split(": ").nth(1)).filter(|name| is_left(name)) {
        let _ = ip(&["link", "del", link]);
    }
}

fn ip(words: &[&str]) -> Result<(), String> {
    let done = Command::new(IP).args(words).stdin(Stdio::null()).output();
    match done {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("`ip {}`: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim())),
        Err(e) => Err(format!("there is no {IP}: {e}")),
    }
}

impl Machine {
    /// Nothing gets through any more, and nobody is told.
    pub fn cut(&self) {
        ip(&["link", "set", &self.link, "down"]).expect("the link is there");
    }

    pub fn mend(&self) {
        ip(&["link", "set", &self.link, "up"]).expect("the link is there");
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for n in 1..=self.machines {
            let _ = ip(&["netns", "del", &format!("{}n{n}", self.name)]);
        }
        let _ = ip(&["link", "del", &self.name]);
    }
}
