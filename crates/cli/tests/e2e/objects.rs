//! Object stores behind the real binary: what one machine has kept another one reads, whatever happens in between. Machines are
//! folders here; they share a database and an object store, and nothing else.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use actum_testkit::folder::Folder;
use actum_testkit::objects::{BUCKET, ObjectStore};
use actum_testkit::postgres::shared_url;
use actum_testkit::program::Program;
use actum_testkit::upstream::{Script, Turn, Upstream, Usage};

use super::actum;
use super::dataset::{ID, labelled};
use super::predict::{SIGNATURE, demo};
use super::run::{asked, project};

fn machine(url: &str, server: Option<&ObjectStore>) -> Program {
    joined(actum(), url, server)
}

fn joined(actum: Program, url: &str, server: Option<&ObjectStore>) -> Program {
    let variables = server.map(ObjectStore::variables).unwrap_or_default();
    variables.iter().fold(actum.with_env("ACTUM_BLOBS", url), |actum, (name, value)| actum.with_env(name, value))
}

fn mounted() -> (Folder, String) {
    let mount = Folder::new();
    let url = format!("file://{}", mount.path().display());
    (mount, url)
}

fn fill(actum: &Program) {
    for n in 0..40 {
        actum.file(&format!("d{}/f{n}", n % 4), format!("content {n}"));
    }
    actum.file("empty", "");
    let large: Vec<u8> = (0..9_000_000_u32).map(|i| (i >> 7) as u8).collect();
    actum.file("large", large);
}

fn frozen(actum: &Program) -> String {
    asked(actum, &["snapshot", "freeze", "--json"])["id"].as_str().unwrap().to_owned()
}

fn assert_same(one: &Program, two: &Program, folder: &str) {
    for name in ["empty", "large", "d0/f0", "d3/f39"] {
        let (here, there) =
            (fs::read(one.path(name)).unwrap(), fs::read(two.path(&format!("{folder}/{name}"))).unwrap());
        assert!(here == there, "{name}");
    }
}

fn travels(url: &str, server: Option<&ObjectStore>) {
    let (one, two) = (machine(url, server), machine(url, server));
    let doctor = asked(&one, &["doctor", "--json"]);
    assert_eq!(doctor["blobs"]["ok"], true, "{doctor}");
    fill(&one);
    let first = frozen(&one);
    one.file("d0/f0", "changed");
    let second = frozen(&one);
    two.run(&["snapshot", "thaw", &second, "out"]).ok();
    assert_same(&one, &two, "out");
    let diff = asked(&two, &["snapshot", "diff", &first, &second, "--json"]);
    assert_eq!(diff["deltas"].as_array().unwrap().len(), 1, "{diff}");
    assert!(two.run(&["snapshot", "diff", &first, &second]).ok().contains("+changed"));
    // The other way round: the beginning of an id is enough only where it is listed.
    let other = two.run(&["snapshot", "thaw", &second[..16], "again", "--json"]);
    assert_eq!((other.code, &other.error()["code"]), (7, &"NOT_FOUND".into()));
    let unknown = two.run(&["snapshot", "thaw", &"ab".repeat(32), "again", "--json"]);
    assert_eq!((unknown.code, &unknown.error()["code"]), (7, &"NOT_FOUND".into()));
}

#[test]
fn a_snapshot_travels_by_s3() {
    let server = ObjectStore::s3();
    travels(&format!("s3://{BUCKET}/some/prefix"), Some(&server));
}

#[test]
fn a_snapshot_travels_by_azure() {
    let server = ObjectStore::azure();
    travels(&format!("az://{BUCKET}/some/prefix"), Some(&server));
}

#[test]
fn a_snapshot_travels_by_a_shared_folder() {
    let (mount, url) = mounted();
    travels(&url, None);
    assert!(mount.join("local/blobs").is_dir(), "every tenant has a place of its own");
}

#[test]
fn traces_and_examples_travel_too() {
    let (_mount, url) = mounted();
    let (said, store) = (format!("{} {{\"label\": \"positive\"}}", "well, ".repeat(1_000)), shared_url());
    let upstream = Upstream::start(Script::default().turn(Turn::text(&said), Usage::new(40, 6)));
    let one = joined(demo(&upstream), &url, None).on_store(&store);
    one.run(&["signature", "add", "sentiment.yaml"]).ok();
    one.run(&["spend", "authorize", "--max-total", "1usd"]).ok();
    let long = format!("text={}", "very ".repeat(3_000));
    one.run(&["predict", ID, "--param", &long]).ok();
    one.file("labelled.jsonl", labelled(30));
    let imported = asked(&one, &["dataset", "import", "labelled.jsonl", "--signature", ID, "--json"]);
    let two = machine(&url, None).on_store(&store);
    let calls = asked(&two, &["trace", "list", "--json"]);
    let call = calls["receipts"].as_array().unwrap().iter().find(|one| one["kind"] == "call").unwrap().clone();
    assert_eq!(call["trace_storage"], "external");
    let shown = two.run(&["trace", "show", call["receipt_id"].as_str().unwrap()]).ok();
    assert!(shown.contains("very very") && shown.contains("well, well"));
    let hash = imported["dataset_hash"].as_str().unwrap_or_else(|| panic!("{imported}"));
    two.file("sentiment.yaml", SIGNATURE);
    let examples = two.run(&["dataset", "show", hash, "--lines"]).ok();
    assert!(examples.contains("0 went well") && examples.lines().count() == 30, "{examples}");
    // Without the object store it is not there.
    let alone = actum().on_store(&store);
    assert_ne!(alone.run(&["trace", "show", call["receipt_id"].as_str().unwrap()]).code, 0);
}

#[test]
fn a_machine_that_dies_at_any_place_loses_nothing_it_promised() {
    let places = actum_store::CRASH_POINTS.iter().filter(|place| place.starts_with("blobs."));
    for place in places {
        let (_mount, url) = mounted();
        let (one, two) = (machine(&url, None), machine(&url, None));
        fill(&one);
        let mut running = one.start(&["snapshot", "freeze"], &[("ACTUM_CRASH_AT", place)]);
        let reached = running.error_line().is_some_and(|line| line.starts_with("crash point"));
        running.kill();
        assert!(reached, "{place}");
        let id = frozen(&one);
        // Whatever is not there now never will be.
        drop(fs::remove_dir_all(one.path(".actum/blobs")));
        two.run(&["snapshot", "thaw", &id, "out"]).ok();
        assert_same(&one, &two, "out");
    }
}

/// Passes connections on, hangs up at once, or keeps them open and passes nothing on.
pub(crate) struct Wire {
    pub port: u16,
    pub cut: Arc<AtomicBool>,
    pub silent: Arc<AtomicBool>,
}

impl Wire {
    fn to(port: u16) -> Self {
        Self::from("127.0.0.1", port)
    }

    /// From a free port of an address of this machine.
    pub(crate) fn from(address: &str, port: u16) -> Self {
        let listener = TcpListener::bind((address, 0)).unwrap();
        let own = listener.local_addr().unwrap().port();
        let cut = Arc::new(AtomicBool::new(false));
        let silent = Arc::new(AtomicBool::new(false));
        let (seen, held) = (Arc::clone(&cut), Arc::clone(&silent));
        let serve = move || {
            for near in listener.incoming().flatten() {
                if seen.load(Ordering::SeqCst) {
                    drop(near.shutdown(Shutdown::Both));
                    continue;
                }
                let Ok(far) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let (seen, held) = (Arc::clone(&seen), Arc::clone(&held));
                    let pass = move || pass(from, to, &seen, &held);
                    std::thread::Builder::new().spawn(pass).unwrap();
                }
            }
        };
        std::thread::Builder::new().spawn(serve).unwrap();
        Self { port: own, cut, silent }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, cut: &AtomicBool, silent: &AtomicBool) {
    let mut piece = [0; 16 << 10];
    loop {
        let read = from.read(&mut piece);
        while silent.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        match read {
            Ok(read) if read > 0 && !cut.load(Ordering::SeqCst) && to.write_all(&piece[..read]).is_ok() => {}
            _ => break,
        }
    }
    drop((from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both)));
}

/// How long the object store is away in the test.
const AWAY: Duration = Duration::from_secs(8);

#[test]
fn an_object_store_that_is_away_for_a_while_loses_nothing() {
    let server = ObjectStore::s3();
    let wire = Wire::to(server.port());
    let url = format!("s3://{BUCKET}/x");
    let endpoint = format!("http://127.0.0.1:{}", wire.port);
    let one = machine(&url, Some(&server)).with_env("AWS_ENDPOINT", &endpoint);
    let two = machine(&url, Some(&server));
    fill(&one);
    let packs = one.path(".actum/blobs/packs");
    let running = one.start(&["snapshot", "freeze", "--json"], &[]);
    // Away from the moment there is something to send.
    let until = Instant::now() + Duration::from_secs(60);
    let is_packed = || {
        fs::read_dir(&packs)
            .into_iter()
            .flatten()
            .flatten()
            .any(|e| e.path().extension().is_some_and(|end| end == "idx"))
    };
    while !is_packed() {
        assert!(Instant::now() < until);
        std::thread::yield_now();
    }
    wire.cut.store(true, Ordering::SeqCst);
    std::thread::sleep(AWAY);
    wire.cut.store(false, Ordering::SeqCst);
    let (code, out, errors) = running.finish();
    assert_eq!(code, 0, "{errors:?}");
    let told: serde_json::Value = serde_json::from_str(&out.join("")).unwrap();
    two.run(&["snapshot", "thaw", told["id"].as_str().unwrap(), "out"]).ok();
    assert_same(&one, &two, "out");
}

#[test]
fn what_an_object_store_refuses_is_told_at_once_and_without_keys() {
    let server = ObjectStore::s3();
    let missing = machine("s3://nobodys/x", Some(&server));
    missing.file("a", "a");
    let told = missing.run(&["snapshot", "freeze", "--json"]);
    assert_eq!((told.code, &told.error()["code"]), (2, &"BLOBS_REFUSED".into()), "{}", told.stderr);
    assert!(told.stderr.contains("bucket") && !told.stderr.contains("secret"), "{}", told.stderr);
    assert_eq!(asked(&missing, &["doctor", "--json"])["blobs"]["ok"], false);
    for url in ["s3://", "ftp://x", "s3://user:hunter2@bucket/x", "file:///nowhere/at/all", "nonsense"] {
        let bad = machine(url, None);
        bad.file("a", "a");
        let told = bad.run(&["snapshot", "freeze", "--json"]);
        assert_eq!((told.code, &told.error()["code"]), (2, &"CONFIG_INVALID".into()), "{url}: {}", told.stderr);
        assert!(!told.stderr.contains("hunter2"), "{}", told.stderr);
    }
    // By the file, with keys by reference.
    let named = server.variables().iter().fold(actum(), |actum, (name, value)| actum.with_env(name, value));
    let text = "[blobs]\nurl = \"s3://test/by-file\"\naccess_key_id = \"env:AWS_ACCESS_KEY_ID\"\nsecret_access_key = \"env:NOT_THERE\"\n";
    named.file("actum.toml", text);
    named.file("a", "a");
    let told = named.run(&["snapshot", "freeze", "--json"]);
    assert!(told.code == 2 && told.stderr.contains("NOT_THERE"), "{}", told.stderr);
    named.file("actum.toml", text.replace("NOT_THERE", "AWS_SECRET_ACCESS_KEY"));
    let id = frozen(&named);
    let two = machine(&format!("s3://{BUCKET}/by-file"), Some(&server));
    two.run(&["snapshot", "thaw", &id, "out"]).ok();
    named.file("actum.toml", "[blobs]\nsecret_access_key = \"hunter2\"\n");
    let told = named.run(&["snapshot", "freeze", "--json"]);
    assert!(told.code == 2 && !told.stderr.contains("hunter2"), "{}", told.stderr);
}

/// A worker that is asked to end while an object store does not answer ends soon, and its run goes back to the queue.
#[test]
fn worker_that_fetches_contents_ends_soon_when_asked() {
    let server = ObjectStore::s3();
    let wire = Wire::to(server.port());
    let url = format!("s3://{BUCKET}/stop");
    let endpoint = format!("http://127.0.0.1:{}", wire.port);
    let actum = joined(project(&[("a", "echo x > made")]), &url, Some(&server));
    let actum = actum.with_env("AWS_ENDPOINT", &endpoint);
    assert_eq!(actum.run(&["workspace", "add", "site", "--json"]).code, 0);
    let text = serde_json::json!({"workspace": "shared:site", "items": [super::run::item("i", "a")]}).to_string();
    let run = super::run::id(&actum.run_with(&["run", "--json", "--detach", "-"], text.as_bytes()).json()["runs"][0]);
    // This machine has none of it any more, and the object store does not answer.
    fs::remove_dir_all(actum.path(".actum/blobs")).unwrap();
    wire.cut.store(true, Ordering::SeqCst);
    let worker = super::runs::worker(&actum, &[], &[]);
    super::runs::until("it has the run", || super::runs::state(&actum, &run) == "running");
    let asked = Instant::now();
    super::runs::end(worker);
    assert!(asked.elapsed() < Duration::from_secs(10), "it ended after {:?}", asked.elapsed());
    assert_eq!(super::runs::state(&actum, &run), "queued");
    wire.cut.store(false, Ordering::SeqCst);
    super::runs::work(&actum, std::slice::from_ref(&run));
    assert_eq!(super::runs::state(&actum, &run), "succeeded");
}

/// A run could put a link or another folder in the place of an object store that is in the project.
#[test]
fn object_store_in_the_project_is_refused() {
    let actum = project(&[("a", "echo x > x")]);
    let text = fs::read_to_string(actum.path("actum.toml")).unwrap();
    for (folder, is_refused) in [("store", true), (".actum/store", false)] {
        fs::create_dir_all(actum.path(folder)).unwrap();
        let url = format!("file://{}", actum.path(folder).display());
        actum.file("actum.toml", format!("{text}\n[blobs]\nurl = \"{url}\"\n"));
        let ended = actum.run(&["snapshot", "freeze", "--json"]);
        assert_eq!(ended.code != 0, is_refused, "{folder}: {}{}", ended.stdout, ended.stderr);
        assert_eq!(ended.stderr.contains("is in the project"), is_refused, "{}", ended.stderr);
    }
}
