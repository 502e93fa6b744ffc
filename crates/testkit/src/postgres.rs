//! Throwaway PostgreSQL clusters, started by the tests of the store and of the binary, and by `cargo xtask`.
//! A cluster never outlives the process that started it, however that process ends, and never listens beyond this
//! machine. Only std and no `crate::` path: xtask includes this very file, so that it need not build the crate.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// The variable that names a maintenance database on a running cluster; `cargo xtask test` sets it.
pub const SHARED_CLUSTER: &str = "ACTUM_TEST_POSTGRES";

const MISSING: &str = "PostgreSQL server binaries not found: run `cargo xtask test` once, it installs them";
const USER: &str = "actum";
/// Somebody else may take the port between our choice and the server's bind.
const START_ATTEMPTS_MAX: u32 = 10;
const LOG_LINES_MAX: usize = 20;

/// One server with its own folder and port on 127.0.0.1, and on one more address of this machine if it is told so. Dropping it stops the server and removes the folder.
#[derive(Debug)]
pub struct Cluster {
    binaries: PathBuf,
    folder: PathBuf,
    port: u16,
    /// Beside loopback.
    address: Option<String>,
    keeper: Keeper,
}

impl Cluster {
    /// Makes and starts a cluster; returns once it accepts connections.
    ///
    /// # Panics
    /// When the server binaries are missing or the server does not start.
    pub fn start() -> Cluster {
        Cluster::try_start().unwrap_or_else(|problem| panic!("{problem}"))
    }

    /// Like [`Cluster::start`], with a sentence instead of a panic.
    pub fn try_start() -> Result<Cluster, String> {
        Cluster::try_start_at(None)
    }

    /// One that also listens on this address, for whoever is on its network.
    ///
    /// # Panics
    /// When the server binaries are missing or the server does not start.
    pub fn start_at(address: &str) -> Cluster {
        Cluster::try_start_at(Some(address.to_owned())).unwrap_or_else(|problem| panic!("{problem}"))
    }

    fn try_start_at(address: Option<String>) -> Result<Cluster, String> {
        let binaries = find_binaries().ok_or(MISSING)?;
        let folder = std::env::temp_dir().join(unique_name("actum-pg"));
        let mut keeper = Keeper::spawn(&folder, &binaries)?;
        if !keeper.answered_done() {
            return Err(with_log("initdb failed", &folder));
        }
        let mut cluster = Cluster { binaries, folder, port: 0, address, keeper };
        for _ in 0..START_ATTEMPTS_MAX {
            cluster.port = free_port()?;
            if cluster.keeper.order(&cluster.start_order()) {
                return Ok(cluster);
            }
        }
        Err(with_log("the PostgreSQL server did not start", &cluster.folder))
    }

    fn start_order(&self) -> String {
        format!("start {} {}", self.port, self.address.as_deref().unwrap_or_default())
    }

    /// The address of a database, as those see it who are on the network of the address given at the start.
    pub fn url_from_outside(&self, url: &str) -> String {
        url.replace("127.0.0.1", self.address.as_deref().unwrap_or("127.0.0.1"))
    }

    /// The address of a database on this cluster, whether it exists or not.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/{database}", self.port)
    }

    /// Makes an empty database under a name never used before; returns its address.
    pub fn create_database(&self) -> String {
        create_database_beside(&self.binaries, &self.url("postgres"))
    }

    /// Crashes the server: no checkpoint, no farewell to its clients. What was committed must survive [`restart`].
    ///
    /// [`restart`]: Cluster::restart
    pub fn stop_immediate(&mut self) {
        assert!(self.keeper.order("stop"), "the keeper of the PostgreSQL server is gone");
    }

    /// Starts the server again on the same port and folder (stopping it first if it runs); returns once it accepts
    /// connections.
    ///
    /// # Panics
    /// When the server does not start.
    pub fn restart(&mut self) {
        let order = self.start_order();
        let started = (0..START_ATTEMPTS_MAX).any(|_| self.keeper.order(&order));
        assert!(started, "{}", with_log("the PostgreSQL server did not start again", &self.folder));
    }
}

/// A fresh database on the cluster that [`SHARED_CLUSTER`] names, else on one that this process starts on first use.
pub fn shared_url() -> String {
    static OWN: OnceLock<Cluster> = OnceLock::new();
    match std::env::var(SHARED_CLUSTER) {
        Ok(maintenance) => create_database_beside(&find_binaries().expect(MISSING), &maintenance),
        Err(_) => OWN.get_or_init(Cluster::start).create_database(),
    }
}

/// The shell that is the server's parent and outlives us by a moment: it sits in a process group of its own, deaf to
/// Ctrl-C, and takes the end of its standard input, which comes when we end in whatever way, as the order to clean up.
#[derive(Debug)]
struct Keeper {
    shell: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// Arguments: folder, folder of the binaries, owner of the folder or nothing, then the words that change the user.
/// The shell answers each step with one line. Ready is asked through the socket in the private folder: behind the TCP
/// port somebody else's server could answer. PIPE is ignored so that answering a dead owner does not end the cleaning.
const KEEPER: &str = r#"
folder=$1 binaries=$2 owner=$3
shift 3
trap '' HUP INT TERM PIPE
cd /
server=
stop() {
    [ -z "$server" ] || { kill -s "$1" "$server"; wait "$server"; server=; }
}
start() {
    [ -z "$address" ] || grep -q '^host all all samenet' "$folder/data/pg_hba.conf" ||
        echo 'host all all samenet trust' >>"$folder/data/pg_hba.conf"
    "$@" -D "$folder/data" -p "$port" -k "$folder" -c listen_addresses="127.0.0.1${address:+,$address}" \
        -c fsync=on -c max_connections=200 >>"$folder/log" 2>&1 </dev/null &
    server=$!
    polls=0
    while [ "$polls" -lt 1200 ]; do
        kill -0 "$server" || { server=; return 1; }
        "$binaries/pg_isready" -q -h "$folder" -p "$port" </dev/null && return 0
        polls=$((polls + 1))
        sleep 0.05
    done
    stop KILL
    return 1
}
mkdir -m 700 "$folder" || { echo failed; exit 1; }
[ -z "$owner" ] || chown "$owner" "$folder"
if "$@" "$binaries/initdb" --pgdata="$folder/data" --username=actum --auth=trust --encoding=UTF8 --locale=C --no-sync \
    >"$folder/log" 2>&1 </dev/null; then echo done; else echo failed; fi
while read -r order port address; do
    case $order in
    start) stop INT; if start "$@" "$binaries/postgres"; then echo done; else echo failed; fi ;;
    stop) stop QUIT; echo done ;;
    esac
done
stop QUIT
rm -rf -- "$folder"
"#;

impl Keeper {
    fn spawn(folder: &Path, binaries: &Path) -> Result<Keeper, String> {
        let mut command = Command::new("sh");
        command.arg("-c").arg(KEEPER).arg("keeper").arg(folder).arg(binaries);
        match server_user()? {
            None => command.arg(""),
            Some((user, group)) => command.arg(format!("{user}:{group}")).args([
                "setpriv",
                "--reuid",
                &user,
                "--regid",
                &group,
                "--clear-groups",
                "--",
            ]),
        };
        without_settings(&mut command)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut shell = command.spawn().map_err(|error| format!("cannot start sh: {error}"))?;
        let orders = shell.stdin.take();
        let answers = BufReader::new(shell.stdout.take().expect("stdout was asked for as a pipe"));
        Ok(Keeper { shell, orders, answers })
    }

    fn order(&mut self, line: &str) -> bool {
        let sent = self.orders.as_mut().is_some_and(|orders| writeln!(orders, "{line}").is_ok());
        sent && self.answered_done()
    }

    fn answered_done(&mut self) -> bool {
        let mut answer = String::new();
        self.answers.read_line(&mut answer).is_ok() && answer == "done\n"
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.orders.take());
        // Nothing useful can be done about a failing wait; the shell cleans up without us.
        let _ = self.shell.wait();
    }
}

/// Who runs the server: nobody else for an ordinary user; for root, whom PostgreSQL refuses, the first of two accounts
/// that exists. As numbers, user and group.
fn server_user() -> Result<Option<(String, String)>, String> {
    let id = |arguments: &[&str]| {
        let output = Command::new("id").args(arguments).stderr(Stdio::null()).output().ok()?;
        let number = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        output.status.success().then_some(number)
    };
    if id(&["-u"]).is_none_or(|user| user != "0") {
        return Ok(None);
    }
    let account = ["postgres", "nobody"].iter().find_map(|name| Some((id(&["-u", name])?, id(&["-g", name])?)));
    account.map(Some).ok_or_else(|| {
        "PostgreSQL refuses to run as root and there is no user postgres or nobody: run as an ordinary user".to_owned()
    })
}

/// The folder of the server binaries: on the path, else the newest of the Debian layout.
pub fn find_binaries() -> Option<PathBuf> {
    let complete = |folder: &PathBuf| ["initdb", "postgres", "createdb"].iter().all(|name| folder.join(name).is_file());
    let path = std::env::var_os("PATH").unwrap_or_default();
    if let Some(folder) = std::env::split_paths(&path).find(complete) {
        return Some(folder);
    }
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten().map(|version| version.path());
    versions.map(|version| version.join("bin")).filter(complete).max_by_key(|folder| major_version(folder))
}

fn major_version(binaries: &Path) -> Option<u32> {
    binaries.parent()?.file_name()?.to_str()?.parse().ok()
}

fn create_database_beside(binaries: &Path, maintenance: &str) -> String {
    let name = unique_name("test").replace('-', "_");
    // template0, because nobody can be connected to it: a copy of a template in use is refused.
    let mut command = Command::new(binaries.join("createdb"));
    command.args(["--template", "template0", "--maintenance-db", maintenance, &name]);
    let output = without_settings(&mut command).output().expect("createdb could not be started");
    assert!(output.status.success(), "createdb failed: {}", String::from_utf8_lossy(&output.stderr));
    url_of_sibling(maintenance, &name)
}

/// Runs a statement behind Actum's back, for tests that damage a database.
pub fn execute(url: &str, statement: &str) {
    psql(url, statement).expect("the statement runs");
}

/// What a statement says behind Actum's back, a line for each row.
pub fn told(url: &str, statement: &str) -> Vec<String> {
    psql(url, statement).expect("the statement runs").lines().map(str::to_owned).collect()
}

fn psql(url: &str, statement: &str) -> Result<String, String> {
    let program = find_binaries().expect(MISSING).join("psql");
    let mut command = Command::new(program);
    command.args(["-X", "-A", "-t", "-c", statement, url]);
    let output = without_settings(&mut command).output().expect("psql could not be started");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// The same address with another database: only the path is replaced, parameters stay.
fn url_of_sibling(maintenance: &str, database: &str) -> String {
    let (address, parameters) = match maintenance.split_once('?') {
        Some((address, parameters)) => (address, format!("?{parameters}")),
        None => (maintenance, String::new()),
    };
    let host = address.find("://").map_or(0, |at| at + 3);
    let end = address[host..].find('/').map_or(address.len(), |at| host + at);
    format!("{}/{database}{parameters}", &address[..end])
}

/// PostgreSQL's programs obey many variables (PGHOST, PGOPTIONS, the locale); the user's must not reach them.
fn without_settings(command: &mut Command) -> &mut Command {
    let path = std::env::var_os("PATH").unwrap_or_default();
    command.env_clear().env("PATH", path).env("LC_ALL", "C")
}

fn free_port() -> Result<u16, String> {
    let address = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    address.map(|address| address.port()).map_err(|error| format!("no free port on 127.0.0.1: {error}"))
}

fn unique_name(prefix: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_nanos());
    format!("{prefix}-{}-{}-{nanos}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

fn with_log(problem: &str, folder: &Path) -> String {
    let log = std::fs::read_to_string(folder.join("log")).unwrap_or_else(|error| format!("(no log: {error})"));
    let lines: Vec<&str> = log.lines().collect();
    format!("{problem}; the end of its log:\n{}", lines[lines.len().saturating_sub(LOG_LINES_MAX)..].join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;
    use std::time::{Duration, Instant};

    const HOLD: &str = "ACTUM_TESTKIT_HOLD";

    fn gone(folder: &Path, port: u16) -> bool {
        !folder.exists() && TcpStream::connect(("127.0.0.1", port)).is_err()
    }

    #[test]
    fn what_was_committed_survives_a_crash() {
        let mut cluster = Cluster::start();
        let (folder, port) = (cluster.folder.clone(), cluster.port);
        let url = cluster.create_database();
        assert_ne!(url, cluster.create_database());
        assert_eq!(psql(&url, "show fsync").unwrap(), "on");
        psql(&url, "create table t (n int)").unwrap();
        psql(&url, "insert into t values (7)").unwrap();

        cluster.stop_immediate();
        psql(&url, "select 1").expect_err("the server should be down");
        cluster.restart();
        assert_eq!(psql(&url, "select n from t").unwrap(), "7");
        cluster.restart();
        assert_eq!(psql(&url, "select n from t").unwrap(), "7");

        drop(cluster);
        assert!(gone(&folder, port), "dropping a cluster leaves nothing behind");
    }

    #[test]
    fn a_taken_port_is_reported_and_harms_nobody() {
        let mut cluster = Cluster::start();
        let owner = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let taken = owner.local_addr().unwrap().port();
        assert!(!cluster.keeper.order(&format!("start {taken}")));
        cluster.restart();
        assert_eq!(psql(&cluster.url("postgres"), "select 1").unwrap(), "1");
    }

    /// What the process does that the next test kills. Its input ends when that test does.
    fn hold_a_cluster() {
        let cluster = Cluster::start();
        let held = format!("\nholding {} {}\n", cluster.port, cluster.folder.display());
        std::io::stdout().write_all(held.as_bytes()).unwrap();
        std::io::stdin().read_line(&mut String::new()).unwrap();
    }

    /// How: a second copy of this very test holds a cluster; its whole process group, as with a closed terminal, is
    /// killed with the one signal that nobody can catch.
    #[test]
    fn nothing_is_left_behind_by_a_killed_process() {
        if std::env::var_os(HOLD).is_some() {
            return hold_a_cluster();
        }
        let module = module_path!().split_once("::").unwrap().1;
        let this_test = format!("{module}::nothing_is_left_behind_by_a_killed_process");
        let mut holder = Command::new(std::env::current_exe().unwrap())
            .args([&this_test, "--exact", "--nocapture"])
            .env(HOLD, "yes")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines().map(Result::unwrap);
        let held = lines.find_map(|line| line.split_once("holding ").map(|(_, held)| held.to_owned())).unwrap();
        let (port, folder) = held.split_once(' ').unwrap();
        let (port, folder) = (port.parse().unwrap(), PathBuf::from(folder));
        assert!(folder.join("data").exists());
        TcpStream::connect(("127.0.0.1", port)).unwrap();

        let group = format!("-{}", holder.id());
        assert!(Command::new("kill").args(["-s", "KILL", "--", &group]).status().unwrap().success());
        holder.wait().unwrap();
        let started = Instant::now();
        while !gone(&folder, port) {
            assert!(started.elapsed() < Duration::from_secs(60), "{} or its server is still there", folder.display());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn a_shared_url_is_a_fresh_database() {
        let (first, second) = (shared_url(), shared_url());
        assert_ne!(first, second);
        assert_eq!(psql(&first, "select 1").unwrap(), "1");
    }

    #[test]
    fn only_the_database_of_an_address_is_replaced() {
        for (maintenance, expected) in [
            ("postgres://u@h:1/postgres", "postgres://u@h:1/new"),
            ("postgres://u@h:1/postgres?sslmode=disable", "postgres://u@h:1/new?sslmode=disable"),
            ("postgres://u@h:1", "postgres://u@h:1/new"),
        ] {
            assert_eq!(url_of_sibling(maintenance, "new"), expected);
        }
    }
}
