//! Commits of repositories as trees: `git`, in a cell that reaches the repository's host and nobody else, brings one into a
//! private folder, which is frozen and thrown away. Used where a workspace is named by a commit. Signs in nowhere.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use actum_api::error;
use actum_contract::digest::Digest;
use actum_contract::execution::{Filesystem, FilesystemLevel, Host, Network, NetworkLevel, Sandbox, limit};
use actum_ledger::head::INCLUDE_MAX;
use actum_sandbox::{Egress, Files, News, Spawner};
use actum_workspace::{Rules, Workspace};

use crate::cell::{self, Planned, Wanted, end_of};
use crate::failure::Failure;
use crate::project::Project;
use crate::run::Open;
use crate::ui::clean;
use crate::workspace::{LOCAL_TENANT, new_id, now_ms};

/// Brings one commit, and names what it tracks although its own rules ignore it. Servers that do not hand out a commit by
/// its id are asked for everything.
const SCRIPT: &str = r#"set -e
git init -q .
git fetch -q --depth 1 --no-tags "$1" "$2" 2>/dev/null || git fetch -q --no-tags "$1" '+refs/*:refs/all/*'
git -c advice.detachedHead=false checkout -q --force "$2"
git ls-files -z --cached --ignored --exclude-standard
"#;

const WEB_PORTS: [u16; 2] = [80, 443];
const TIMEOUT_MS: u64 = 300_000;
const DISK_MB: u64 = 4_096;
const MEMORY_MB: u64 = 1_024;

/// What is fetched at once for those who ask a server: for all of them, for the project's own tenant, and for each other one. A
/// repository that does not answer keeps a thread until its time is over.
const FETCHES_MAX: usize = 4;
const OWN_FETCHES_MAX: usize = 3;
const GUEST_FETCHES_MAX: usize = 1;
static FETCHES: Fetches = Fetches(Mutex::new(BTreeMap::new()));

/// Of what git says.
const SAID_BYTES_MAX: u64 = 64 << 10;
const SAID_LINES: usize = 3;

/// How these folders are called, in the folder for temporary files.
pub(crate) const SCRATCH: &str = "actum-git-";

/// A folder of our own that goes with us.
struct Scratch(PathBuf);

impl Scratch {
    fn make() -> Result<Self, Failure> {
        let folder = std::env::temp_dir().join(format!("{SCRATCH}{}", new_id()));
        let made = fs::DirBuilder::new().mode(0o700).create(&folder).and_then(|()| folder.canonicalize());
        made.map(Self).map_err(|e| Failure::of_io(format!("cannot make {}: {e}", folder.display()), &e))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Who fetches how much at this moment.
struct Fetches(Mutex<BTreeMap<String, usize>>);

impl Fetches {
    /// For one more of this tenant. Nobody waits: whoever waited would keep a thread, too.
    fn begin(&self, tenant: &str) -> Result<Fetching<'_>, Failure> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = all.get(tenant).copied().unwrap_or_default();
        let own_max = if tenant == LOCAL_TENANT { OWN_FETCHES_MAX } else { GUEST_FETCHES_MAX };
        if own >= own_max || all.values().sum::<usize>() >= FETCHES_MAX {
            let message = "as many repositories are being fetched already as may be at once";
            return Err(Failure::new(error::TOO_MANY_REQUESTS, message).hint("ask again when the others are there"));
        }
        all.insert(tenant.to_owned(), own + 1);
        Ok(Fetching { all: self, tenant: tenant.to_owned() })
    }
}

/// One fetch, until it is over.
struct Fetching<'a> {
    all: &'a Fetches,
    tenant: String,
}

impl Drop for Fetching<'_> {
    fn drop(&mut self) {
        let mut all = self.all.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = all.get_mut(&self.tenant) {
            *number -= 1;
            if *number == 0 {
                all.remove(&self.tenant);
            }
        }
    }
}

/// Where a repository is.
enum Where {
    Folder(PathBuf),
    Host(Host),
}

/// The tree of a commit, stored whole, and patterns of what it tracks although it ignores it.
pub(crate) fn fetch(open: &Open, url: &str, commit: &str) -> Result<(Digest, Vec<String>), Failure> {
    let seat = open.project.seat();
    let at = find(url, seat.is_some())?;
    let _fetching = seat.map(|seat| FETCHES.begin(seat.tenant.as_str())).transpose()?;
    let (tree, said) = (Scratch::make()?, Scratch::make()?);
    let ignored = bring(open, &at, url, commit, &tree.0, &said.0)?;
    fs::remove_dir_all(tree.0.join(".git"))
        .map_err(|e| Failure::of_io(format!("cannot clear {}: {e}", tree.0.display()), &e))?;
    let blobs = open.project.blobs()?;
    let workspace = Workspace::open(&tree.0, &open.project.folder()?, blobs)?;
    let rules = Rules::alone(ignored.clone(), Vec::new())?;
    Ok((workspace.freeze(&rules, true, now_ms())?.id, ignored))
}

fn find(url: &str, is_guest: bool) -> Result<Where, Failure> {
    let bad = |why: &str| {
        let failure = Failure::new(error::INPUT, format!("the repository {url:?} {why}"));
        failure.hint("https://HOST/PATH is understood; without a server also file:///PATH")
    };
    if let Some(path) = url.strip_prefix("file://") {
        if is_guest {
            return Err(bad("lies on this machine's disk, which is not asked for others"));
        }
        let found = Path::new(path).canonicalize().map_err(|e| bad(&format!("cannot be found: {e}")))?;
        return Ok(Where::Folder(found));
    }
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let Some(rest) = rest else { return Err(bad("has a scheme that is not understood")) };
    let host = rest.split('/').next().unwrap_or_default();
    if host.contains('@') {
        return Err(bad("holds a user or a password, which a name must not"));
    }
    // An address that is named is reached, also one of this machine; a name is looked up, and such addresses are not reached.
    let bare = host.rsplit_once(':').map_or(host, |(name, _)| name).trim_matches(['[', ']']);
    if is_guest && (bare.parse::<IpAddr>().is_ok() || bare.bytes().all(|b| b.is_ascii_digit() || b == b'.')) {
        return Err(bad("is an address, not a name"));
    }
    let host = match host.contains(':') {
        true => host.to_owned(),
        false => format!("{host}:{}", if url.starts_with("https") { 443 } else { 80 }),
    };
    let host = Host::parse(&host).map_err(|e| bad(&e.to_string()))?;
    // However it is written.
    if is_guest && !host.is_name() {
        return Err(bad("is no name of a host"));
    }
    Ok(Where::Host(host))
}

/// What the user has said of names, as far as it holds for what others name: a name without a port is one of the web, and
/// opens no other service of that machine.
fn hosts_for_others(at: &Where, hosts: &BTreeMap<String, IpAddr>) -> BTreeMap<String, IpAddr> {
    let is_web = matches!(at, Where::Host(host) if host.ports().iter().all(|port| WEB_PORTS.contains(port)));
    hosts.iter().filter(|(name, _)| is_web || name.contains(':')).map(|(name, at)| (name.clone(), *at)).collect()
}

/// A script that runs git in a cell.
struct GitCall<'a> {
    script: &'a str,
    arguments: &'a [&'a str],
    /// Its current folder, which it may write to.
    folder: &'a Path,
    read: Vec<PathBuf>,
    write: Vec<PathBuf>,
    network: Network,
    /// Where its output goes.
    said: &'a Path,
}

/// Why a script of git failed, in its own last words.
struct GitFailed(String);

impl GitCall<'_> {
    /// Returns what it printed.
    fn run(
        self,
        project: &Project,
        hosts: Option<BTreeMap<String, IpAddr>>,
    ) -> Result<Result<Vec<u8>, GitFailed>, Failure> {
        let sandbox = Sandbox {
            timeout_ms: TIMEOUT_MS,
            memory_mb: MEMORY_MB,
            cpu_cores: limit("cpu_cores").default,
            disk_mb: DISK_MB,
            filesystem: Filesystem { level: FilesystemLevel::Standard, ..Filesystem::default() },
            network: self.network,
            max_children: limit("max_children").max.min(64),
            allow_fork: true,
        };
        let environment = [
            ("GIT_CONFIG_GLOBAL", "/dev/null"),
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("GIT_TERMINAL_PROMPT", "0"),
            ("GIT_CONFIG_COUNT", "2"),
            ("GIT_CONFIG_KEY_0", "safe.directory"),
            ("GIT_CONFIG_VALUE_0", "*"),
            ("GIT_CONFIG_KEY_1", "core.hooksPath"),
            ("GIT_CONFIG_VALUE_1", "/dev/null"),
        ];
        let mut config = project.config()?.sandbox.clone();
        if let Some(hosts) = hosts {
            config.hosts = hosts;
        }
        let program = ["sh", "-c", self.script, "git"].iter().chain(self.arguments).map(Into::into).collect();
        let wanted = Wanted {
            program,
            environment: environment.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter().collect(),
            root: self.folder.to_owned(),
            folder: self.folder.to_owned(),
            sandbox: &sandbox,
            read: self.read,
            write: self.write,
            deny: Vec::new(),
            outputs: Vec::new(),
            stage: Vec::new(),
            config: &config,
            grace_ms: 0,
            programs: None,
            bridge: None,
        };
        let Planned { cell, rules, .. } = wanted.cell()?;
        let (told, errors) = (self.said.join("out"), self.said.join("err"));
        let mut egress = None;
        let report = files(&told, &errors).and_then(|files| {
            let spawner = Spawner::start(0)?;
            let mut running = spawner.run(cell, files)?;
            loop {
                match running.hear()? {
                    News::Started => {}
                    News::Listening(listeners) => egress = Some(Egress::serve(listeners.way_out, rules.clone())?),
                    News::Ended(report) => return Ok(report),
                }
            }
        });
        let log = egress.map(Egress::end).unwrap_or_default();
        let report = report.map_err(|e| cell::not_built(&e.to_string()))?;
        if end_of(&report.ended).is_some_and(|end| end.code() == 0) {
            return Ok(Ok(fs::read(&told).unwrap_or_default()));
        }
        let refused = log.decisions.iter().find(|one| !one.allowed);
        let refused = refused.map(|one| format!("; {}: {}", one.host, one.why)).unwrap_or_default();
        let text = head(&errors);
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = lines.iter().rev().take(SAID_LINES).rev().copied().collect::<Vec<_>>().join("; ");
        Ok(Err(GitFailed(format!("{}{refused}", clean(&last)))))
    }
}

/// Prints a file of a ref, or nothing if there is none.
const READ_SCRIPT: &str = r#"git --git-dir="$1" cat-file blob "$2:$3" 2>/dev/null || :"#;

/// Commits a file to a ref, beside the other files there. Fails if the ref has moved meanwhile.
const COMMIT_SCRIPT: &str = r#"set -e
export GIT_DIR="$1" GIT_AUTHOR_NAME=actum GIT_AUTHOR_EMAIL=actum@localhost GIT_COMMITTER_NAME=actum GIT_COMMITTER_EMAIL=actum@localhost
blob=$(printf '%s' "$4" | git hash-object -w --stdin)
old=$(git rev-parse -q --verify "$2^{commit}" || :)
if [ -n "$old" ]; then others=$(git ls-tree "$old" | grep -vF "$(printf '\t')$3" || :); fi
tree=$( { [ -z "$others" ] || printf '%s\n' "$others"; printf '100644 blob %s\t%s\n' "$blob" "$3"; } | git mktree)
commit=$(git commit-tree "$tree" ${old:+-p "$old"} -m "Checkpoint")
git update-ref "$2" "$commit" "${old:-0000000000000000000000000000000000000000}"
"#;

/// Returns a file that a ref of a repository on this machine holds.
pub(crate) fn read_blob(
    project: &Project,
    repository: &Path,
    reference: &str,
    name: &str,
) -> Result<Option<String>, Failure> {
    let text = run_locally(project, repository, READ_SCRIPT, &[reference, name], false)?;
    Ok(Some(String::from_utf8_lossy(&text).into_owned()).filter(|text| !text.is_empty()))
}

/// Commits a file to a ref of a bare repository on this machine.
pub(crate) fn commit_blob(
    project: &Project,
    repository: &Path,
    reference: &str,
    name: &str,
    text: &str,
) -> Result<(), Failure> {
    run_locally(project, repository, COMMIT_SCRIPT, &[reference, name, text], true).map(drop)
}

fn run_locally(
    project: &Project,
    repository: &Path,
    script: &str,
    arguments: &[&str],
    writes: bool,
) -> Result<Vec<u8>, Failure> {
    let (tree, said) = (Scratch::make()?, Scratch::make()?);
    let place = repository.display().to_string();
    let arguments: Vec<&str> = std::iter::once(&*place).chain(arguments.iter().copied()).collect();
    let folder = vec![repository.to_owned()];
    let (read, write) = if writes { (Vec::new(), folder) } else { (folder, Vec::new()) };
    let network = Network::default();
    let call = GitCall { script, arguments: &arguments, folder: &tree.0, read, write, network, said: &said.0 };
    call.run(project, None)?.map_err(|GitFailed(why)| {
        Failure::new(error::FILE, format!("git failed in {place}: {why}")).hint("it has to be a bare repository")
    })
}

/// Runs git; the paths that it tracks although they are ignored, as patterns.
fn bring(open: &Open, at: &Where, url: &str, commit: &str, tree: &Path, said: &Path) -> Result<Vec<String>, Failure> {
    let (read, network) = match at {
        Where::Folder(folder) => (vec![folder.clone()], Network::default()),
        Where::Host(host) => {
            let network = Network { level: NetworkLevel::Api, allow: vec![host.clone()], deny: Vec::new() };
            (Vec::new(), network)
        }
    };
    let hosts = match open.project.is_guest()? {
        true => Some(hosts_for_others(at, &open.project.config()?.sandbox.hosts)),
        false => None,
    };
    let call =
        GitCall { script: SCRIPT, arguments: &[url, commit], folder: tree, read, write: Vec::new(), network, said };
    let paths = call.run(&open.project, hosts)?.map_err(|GitFailed(why)| {
        let message = format!("commit {commit} of {url} cannot be had: {why}");
        Failure::new(error::NOT_FOUND, message).hint("check URL and commit; it is fetched without signing in")
    })?;
    let pattern = |path: &[u8]| {
        let text = std::str::from_utf8(path).ok().filter(|text| !text.is_empty())?;
        let escaped = text.chars().fold(String::from("/"), |mut all, c| {
            if "\\*?[]!# ".contains(c) {
                all.push('\\');
            }
            all.push(c);
            all
        });
        Some(escaped)
    };
    let patterns: Vec<String> = paths.split(|b| *b == 0).filter_map(pattern).collect();
    if patterns.len() > INCLUDE_MAX {
        let message = format!("commit {commit} tracks more than {INCLUDE_MAX} files that its own rules ignore");
        return Err(Failure::new(error::WORKSPACE_REFUSED, message).hint("mend its .gitignore"));
    }
    Ok(patterns)
}

fn files(told: &Path, errors: &Path) -> std::io::Result<Files> {
    let input = File::open("/dev/null")?.into();
    Ok(Files { input, output: File::create(told)?.into(), errors: File::create(errors)?.into() })
}

fn head(path: &Path) -> String {
    let mut bytes = Vec::new();
    let _ = File::open(path).and_then(|file| file.take(SAID_BYTES_MAX).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_name_hosts_and_nothing_else() {
        for host in ["::1", "fd00::1", "[::1]", "[::1]:443", "10.0.0.1", "*", "*.example.com", "a@b", "", "x:y"] {
            assert!(find(&format!("https://{host}/x.git"), true).is_err(), "{host}");
        }
        for host in ["code.example", "code.example:8443"] {
            assert!(find(&format!("https://{host}/x.git"), true).is_ok(), "{host}");
        }
        assert!(find("https://127.0.0.1/x.git", false).is_ok());
        assert!(find("file:///", true).is_err() && find("ssh://code.example/x", true).is_err());
    }

    #[test]
    fn nobody_has_all_fetches_and_they_come_back() {
        let fetches = Fetches(Mutex::default());
        let begin = |tenant: &str| fetches.begin(tenant).map_err(|failure| failure.row.status);
        let own: Vec<_> = (0..3).map(|_| begin(LOCAL_TENANT).unwrap()).collect();
        assert_eq!(begin(LOCAL_TENANT).err(), Some(429));
        let guest = begin("a").unwrap();
        assert_eq!(begin("b").err(), Some(429), "there are no more in all");
        drop(own);
        let other = begin("b").unwrap();
        assert_eq!(begin("a").err(), Some(429), "he has one");
        drop((guest, other));
        assert!(begin("a").is_ok() && fetches.0.lock().unwrap().is_empty());
    }
}
