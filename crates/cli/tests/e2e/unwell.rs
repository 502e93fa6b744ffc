//! Workers whose surroundings are unwell: a database that is away for a moment, a machine whose disk or helper fails. None of
//! it costs a run.

use std::fs;
use std::sync::atomic::Ordering;

use actum_testkit::folder::Folder;
use actum_testkit::objects::{BUCKET, ObjectStore};
use actum_testkit::postgres::{Cluster, shared_url, told};
use actum_testkit::program::{Process, Program};
use serde_json::json;

use super::actum;
use super::objects::Wire;
use super::run::{id, item, project};
use super::runs::{check, define, end, is_over, status, submit, tag, until, worker};
use super::workspace_hostile::in_own_mounts;

/// A worker that comes back within its lease goes on with its run: the epoch is still the first.
#[test]
fn database_away_for_a_moment_costs_nothing() {
    let mut cluster = Cluster::start();
    let url = cluster.create_database();
    let actum = actum().on_store(&url);
    define(&actum, "echo x >> lines; sleep 1");
    actum.file("work.yaml", "items: [{id: item, agent_id: a, description: d, test_command: 'true'}]\n");
    let run = submit(&actum, &[]).remove(0);
    let worker = worker(&actum, &[], &[]);
    until("the agent works", || !Process::with_argument(&tag(&actum)).is_empty());
    cluster.stop_immediate();
    // The first step ends while the database is away.
    until("the agent has ended its step", || Process::with_argument(&tag(&actum)).is_empty());
    cluster.restart();
    until("the run is over", || is_over(&actum, &run));
    end(worker);
    check(&actum, &run, "database away");
    assert_eq!(told(&url, "SELECT epoch::text FROM actum.run"), ["1"]);
    assert_eq!(fs::read_to_string(actum.path("lines")).unwrap(), "x\nx\n");
}

/// A database that accepts and never answers: a worker that is asked to end does so, and the run is executed later.
#[test]
fn worker_ends_also_if_the_database_is_silent() {
    let cluster = Cluster::start();
    let url = cluster.create_database();
    let (front, rest) = url.rsplit_once(':').unwrap();
    let (port, name) = rest.split_once('/').unwrap();
    let wire = Wire::from("127.0.0.1", port.parse().unwrap());
    let actum = actum().on_store(&url);
    define(&actum, "echo x >> lines; sleep 1");
    actum.file("work.yaml", "items: [{id: item, agent_id: b, description: d, test_command: 'true'}]\n");
    let run = submit(&actum, &[]).remove(0);
    let reached = format!("{front}:{}/{name}", wire.port);
    let other = Program::new(env!("CARGO_BIN_EXE_actum")).on_store(&reached);
    let silenced = worker(&other, &["-C", actum.folder().to_str().unwrap()], &[]);
    until("the agent works", || !Process::with_argument(&tag(&actum)).is_empty());
    wire.silent.store(true, Ordering::SeqCst);
    silenced.signal("TERM");
    // Its end is the proof: the database stays silent until then.
    let (code, _, errors) = silenced.finish();
    assert_eq!(code, 0, "{errors:?}");
    assert!(wire.silent.load(Ordering::SeqCst));
    assert!(Process::with_argument(&tag(&actum)).is_empty());
    let second = worker(&actum, &[], &[]);
    until("the run is over", || is_over(&actum, &run));
    end(second);
    check(&actum, &run, "silent database");
    assert_eq!(fs::read_to_string(actum.path("lines")).unwrap(), "x\n");
}

/// The helper that makes cells dies in the middle of a run: the run goes back to the queue, and a new helper takes over.
#[test]
fn dead_cell_helper_costs_no_run() {
    let actum = actum();
    define(&actum, "echo x >> lines; sleep 2");
    actum.file("work.yaml", "items: [{id: item, agent_id: b, description: d, test_command: 'true'}]\n");
    let runs: Vec<String> = (0..2).flat_map(|_| submit(&actum, &[])).collect();
    let worker = worker(&actum, &["--slots", "1"], &[]);
    until("the agent works", || !Process::with_argument(&tag(&actum)).is_empty());
    let helper = worker.below().into_iter().find(|process| process.has_argument("--actum-spawner")).expect("a helper");
    helper.kill();
    for run in &runs {
        until("the run is over", || is_over(&actum, run));
        let shown = status(&actum, run);
        assert_eq!(shown["state"], "succeeded", "{shown}");
    }
    end(worker);
    let set_back = status(&actum, &runs[0])["events"].as_array().unwrap().iter().any(|e| e["event"] == "set_back");
    assert!(set_back, "it is on record");
}

/// A worker with a full disk gives its runs back, claims nothing, and goes on when there is room again.
#[test]
fn full_disk_costs_no_run() {
    let folder = Folder::new();
    fs::create_dir(folder.join("w")).unwrap();
    let script = r#"
        mount -t tmpfs -o size=24m tmpfs w; cd w
        printf '[agents.a]\ntype = "command"\ncommand = ["sh", "-c", "head -c 300000 /dev/urandom > out-$ACTUM_WORK_ITEM_ID"]\n' > actum.toml
        echo '*.fill' > .gitignore
        echo '[{"id":"one","agent_id":"a","description":"d"},{"id":"two","agent_id":"a","description":"d"},{"id":"three","agent_id":"a","description":"d"}]' > work.json
        export ACTUM_STORE=sqlite:../store.db
        "$ACTUM" run --detach -q work.json > /dev/null
        free=$(df --output=avail -k . | tail -1); head -c $(( (free - 200) * 1024 )) /dev/zero > x.fill
        "$ACTUM" worker 2> ../err & worker=$!
        trap 'kill -KILL $worker 2> /dev/null || :' EXIT
        for n in $(seq 600); do grep -q unwell ../err && break; sleep 0.1; done
        grep -q unwell ../err || { cat ../err; exit 9; }
        [ "$("$ACTUM" list --json | grep -o '"state":"failed"' | wc -l)" = 0 ] || { "$ACTUM" list; exit 8; }
        "$ACTUM" worker status | grep -q 'claims nothing' || { "$ACTUM" worker status; exit 6; }
        for run in $("$ACTUM" list --json | grep -o '"run_id":"[^"]*"' | cut -d'"' -f4); do
            "$ACTUM" status $run | grep -q 'which claims nothing: ' || { "$ACTUM" status $run; exit 4; }
        done
        rm x.fill
        for n in $(seq 600); do
            [ "$("$ACTUM" list --json | grep -o '"state":"succeeded"' | wc -l)" = 3 ] && break; sleep 0.1
        done
        "$ACTUM" worker status | grep -q ' well ' || { "$ACTUM" worker status; exit 5; }
        kill -TERM $worker; wait $worker || :
        [ "$("$ACTUM" list --json | grep -o '"state":"succeeded"' | wc -l)" = 3 ] || { "$ACTUM" list; cat ../err; exit 7; }
        grep -q 'takes runs again' ../err
    "#;
    let ended = in_own_mounts(script, folder.path());
    let (stdout, stderr) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{stdout}\n{stderr}");
}

/// Machines whose keys the object store refuses: each gives the run back once and claims nothing more. After three of them the
/// run ends with that history, and another machine can resume it.
#[test]
fn machines_that_the_object_store_refuses_are_on_record() {
    let server = ObjectStore::azure();
    let (store, url) = (shared_url(), format!("az://{BUCKET}/unwell"));
    let machine = |name: &str, key: Option<&str>| {
        let mut made = project(&[("a", "echo x > made")])
            .on_store(&store)
            .with_env("ACTUM_MACHINE", name)
            .with_env("ACTUM_BLOBS", &url);
        for (variable, value) in server.variables() {
            let value = match (&**variable, key) {
                ("AZURE_STORAGE_ACCOUNT_KEY", Some(key)) => key,
                _ => value,
            };
            made = made.with_env(variable, value);
        }
        made
    };
    let good = machine("good", None);
    assert_eq!(good.run(&["workspace", "add", "site", "--json"]).code, 0);
    let text = json!({"workspace": "shared:site", "items": [item("i", "a")]}).to_string();
    let submitted = good.run_with(&["run", "--json", "--detach", "-"], text.as_bytes());
    let run = id(&submitted.json()["runs"][0]);
    for (count, name) in ["m1", "m2", "m3"].into_iter().enumerate() {
        let bad: Program = machine(name, Some("d3Jvbmc="));
        let worker = worker(&bad, &[], &[]);
        let set_backs = || {
            let events = status(&good, &run)["events"].clone();
            events.as_array().unwrap().iter().filter(|event| event["event"] == "set_back").count()
        };
        until("the run was given back", || set_backs() > count || is_over(&good, &run));
        if count < 2 {
            until("the worker says so", || bad.run(&["worker", "status"]).stdout.contains("claims nothing"));
        }
        end(worker);
    }
    let shown = status(&good, &run);
    assert_eq!(shown["error"]["code"], "MACHINE_FAILED", "{shown}");
    let message = shown["error"]["message"].as_str().unwrap();
    assert!(["3 machines", "m1 (", "m2 (", "m3 ("].iter().all(|part| message.contains(part)), "{message}");
    let resumed = good.run(&["resume", "--json", &run]);
    assert_eq!(resumed.code, 0, "{}{}", resumed.stdout, resumed.stderr);
}

/// A soft limit of open files is raised to the hard one, and a folder with more packs than files may be open is read.
#[test]
fn few_open_files_cost_no_run() {
    let actum = project(&[("a", "echo x > made")]);
    for n in 0..120 {
        actum.file(&format!("f{n}"), format!("content {n}"));
        if n % 2 == 0 {
            actum.run(&["snapshot", "freeze", "-q"]).ok();
        }
    }
    let limited = |limits: &str| {
        let words = ["prlimit", &format!("--nofile={limits}")].map(str::to_owned);
        let program = Program::new(env!("CARGO_BIN_EXE_actum")).started_by(&words);
        program.run(&["-C", actum.folder().to_str().unwrap(), "snapshot", "check"])
    };
    for limits in ["32:1024", "96:96"] {
        let ended = limited(limits);
        assert_eq!(ended.code, 0, "{limits}: {}{}", ended.stdout, ended.stderr);
    }
}
