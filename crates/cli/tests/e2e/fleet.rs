//! Many machines: two servers and three workers, each in a network namespace with an id and a folder of its own, on one
//! PostgreSQL and one object store that speaks like S3. Runs in a DAG are worked on while workers are killed, stopped for longer
//! than their lease and cut off, servers are killed, and the database and the object store go away. Every run ends once, is
//! published once, and money adds up. `ACTUM_FLEET_RUNS=1000` makes it large, `ACTUM_FLEET_SEED` rolls other dice.

#![expect(
    clippy::print_stderr,
    reason = "what happened to the fleet, and the seed by which it happens again, is told beside the result"
)]

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use actum_testkit::dice::Dice;
use actum_testkit::fleet::{Machine, Network};
use actum_testkit::folder::Folder;
use actum_testkit::objects::{BUCKET, ObjectStore};
use actum_testkit::postgres::{self, Cluster};
use actum_testkit::program::{Launched, Program};
use actum_testkit::upstream::{Script, Turn, Upstream, Usage};
use serde_json::{Value, json};

use super::actum;
use super::objects::Wire;
use super::run::asked;
use super::serve::token;

/// As many as end in about two minutes on two busy cores.
const RUNS: usize = 120;
const RUNS_OF_A_SUBMISSION: usize = 20;
const WIDTH: usize = 4;
const WORKERS: usize = 3;
const SLOTS: &str = "4";
const LEASE: Duration = Duration::from_secs(15);
/// Longer than a lease, by as much as it takes others to notice.
const LONG: Duration = Duration::from_secs(18);
/// How long the database and the object store are away.
const AWAY: Duration = Duration::from_secs(10);
const PORT: u16 = 7070;
const WORKSPACES: [&str; 2] = ["site", "notes"];
/// Every so many-th run asks a model; what each question costs.
const PAID_EVERY: usize = 5;
const USAGE: Usage = Usage::new(10, 5);
const COST: u64 = 15;
/// Runs that are repeated on a machine that made none of them.
const REPEATED: usize = 3;
const SILENCE: Duration = Duration::from_secs(30);

/// What is there before it, it needs; what it makes is its own, and names its run. Some take a while.
const AGENT: &str = "for f in $1; do [ $f = none ] || test -e made/$f; done; mkdir -p made; \
    case $ACTUM_WORK_ITEM_ID in *7|*3) sleep 0.5;; esac; echo $ACTUM_RUN_ID > made/$ACTUM_WORK_ITEM_ID";

/// Notes every turn that a run takes, as the database sees it; and money that is changed by who does not have the turn at the
/// log, which is the lock that everybody else waits for.
const NOTES: &str = "CREATE TABLE public.astray (id text);
    CREATE FUNCTION public.ask() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF NOT EXISTS (SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND relation = 'actum.ledger_lock'::regclass) THEN
            INSERT INTO public.astray VALUES (TG_TABLE_NAME);
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER ask AFTER INSERT OR UPDATE ON actum.spend_reservation FOR EACH ROW EXECUTE FUNCTION public.ask();
    CREATE TRIGGER ask AFTER INSERT OR UPDATE ON actum.spend_authorization FOR EACH ROW EXECUTE FUNCTION public.ask();
    CREATE TABLE public.seen (id text, epoch bigint, owner text, state text);
    CREATE FUNCTION public.see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF NEW.state IS DISTINCT FROM OLD.state OR NEW.owner IS DISTINCT FROM OLD.owner OR NEW.epoch <> OLD.epoch THEN
            INSERT INTO public.seen VALUES (NEW.id, NEW.epoch, NEW.owner, NEW.state);
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER seen AFTER UPDATE ON actum.run FOR EACH ROW EXECUTE FUNCTION public.see()";

/// Something that happens to a fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Blow {
    KillWorker,
    PauseWorker,
    CutWorker,
    KillServer,
    RestartDatabase,
    DatabaseAway,
    ObjectsAway,
}

const ROUND: [Blow; 9] = [
    Blow::KillWorker,
    Blow::CutWorker,
    Blow::RestartDatabase,
    Blow::PauseWorker,
    Blow::KillServer,
    Blow::ObjectsAway,
    Blow::KillWorker,
    Blow::DatabaseAway,
    Blow::RestartDatabase,
];

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One machine of the fleet, with what runs there.
struct Member {
    actum: Program,
    machine: Option<Machine>,
    words: Vec<String>,
    log: PathBuf,
    running: Mutex<Option<Launched>>,
    address: SocketAddr,
}

impl Member {
    fn start(&self) {
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        *locked(&self.running) = Some(self.actum.launch(&words, &self.log));
    }

    /// Starts it again if it has ended by itself, as whoever looks after services does: without a store it does not begin.
    fn look_after(&self) -> bool {
        let Ok(mut running) = self.running.try_lock() else { return false };
        let has_ended = running.as_mut().is_some_and(|one| one.ended().is_some());
        if has_ended {
            let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
            *running = Some(self.actum.launch(&words, &self.log));
        }
        has_ended
    }

    fn log(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    fn told(&self, event: &str, message: &str) -> usize {
        let is =
            |line: &&Value| line["event"] == event && line["message"].as_str().unwrap_or_default().starts_with(message);
        self.log().iter().filter(is).count()
    }

    /// An answer, or nothing if there is none: whoever asks asks again.
    fn ask(&self, method: &str, path: &str, headers: &str, content: &str) -> Option<(u16, Value)> {
        let mut stream = TcpStream::connect_timeout(&self.address, Duration::from_secs(2)).ok()?;
        stream.set_read_timeout(Some(SILENCE)).ok()?;
        let length = content.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\naccept: application/json\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n{headers}\r\n{content}",
            self.address
        )
        .ok()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok()?;
        let answer = String::from_utf8(answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.get(9..12)?.parse().ok()?, serde_json::from_str(body).ok()?))
    }
}

/// What is to be done: the item, what it stands on, which workspace, whether it asks a model.
struct Wanted {
    submission: usize,
    items: Vec<Value>,
    workspace: &'static str,
}

struct Fleet {
    cluster: Mutex<Cluster>,
    store: String,
    wire: Wire,
    upstream: Upstream,
    auditor: Member,
    servers: Vec<Member>,
    workers: Vec<Member>,
    token: String,
    _objects: ObjectStore,
    _logs: Folder,
    // Last: what is in the namespaces goes first.
    _network: Option<Network>,
}

/// Says what is to be written by what was asked.
fn script() -> Script {
    Script::default().by(|body, _| {
        let text = body.to_string();
        let name: String = text.split("made/").nth(1)?.chars().take_while(|c| c.is_ascii_alphanumeric()).collect();
        let write =
            json!({"op": "write", "path": format!("made/{name}"), "content": "by a model\n", "executable": false});
        let operations = json!([write, {"op": "done", "summary": "done"}]);
        Some((Turn::text(json!({"thought": "as it is wanted", "operations": operations}).to_string()), USAGE))
    })
}

/// The agents of every machine, and whom they ask.
fn agents(upstream: &Upstream) -> String {
    format!(
        "[agents.sh]\ntype = \"command\"\ncommand = [\"sh\", \"-euc\", {}, \"sh\", \"{{description}}\"]\n\n\
         [agents.model]\ntype = \"predict\"\nmodel = \"m-1\"\nphases = [\"step\"]\n\n\
         [providers.up]\ntype = \"openai\"\nbase_url = \"{}/v1\"\nkey = \"env:UP_KEY\"\n\n\
         [prices.m-1]\ninput = 1000000\noutput = 1000000\n",
        json!(AGENT),
        upstream.url()
    )
}

impl Fleet {
    fn new() -> Self {
        let mut network = match Network::make() {
            Ok(network) => Some(network),
            Err(why) => {
                eprintln!("without network namespaces, so nobody is cut off: {why}");
                None
            }
        };
        let here = network.as_ref().map_or_else(|| "127.0.0.1".to_owned(), Network::address);
        let cluster = Cluster::start_at(&here);
        let store = cluster.url_from_outside(&cluster.create_database());
        let objects = ObjectStore::s3();
        let wire = Wire::from(&here, objects.port());
        let upstream = Upstream::start_at(&here, script());
        let logs = Folder::new();
        let config = format!("{}\n[blobs]\nurl = \"s3://{BUCKET}/fleet\"\n", agents(&upstream));
        let mut member = |name: String, words: &dyn Fn(&SocketAddr) -> Vec<String>| {
            let machine = network.as_mut().map(Network::machine);
            let mut program = actum().on_store(&store).with_env("UP_KEY", "sk-key-that-nobody-keeps");
            for (key, value) in objects.variables() {
                let value = if *key == "AWS_ENDPOINT" { format!("http://{here}:{}", wire.port) } else { value.clone() };
                program = program.with_env(key, &value);
            }
            program = program.with_env("HOME", "/nonexistent").with_env("PATH", "/usr/local/bin:/usr/bin:/bin");
            program.file("actum.toml", &config);
            let address = match &machine {
                Some(machine) => format!("{}:{PORT}", machine.address).parse().unwrap(),
                None => TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap(),
            };
            let words = words(&address);
            let actum = match &machine {
                Some(machine) => program.started_by(&machine.words),
                None => program.with_env("ACTUM_MACHINE", &name),
            };
            Member { actum, machine, words, log: logs.join(&name), running: Mutex::new(None), address }
        };
        let serve = |address: &SocketAddr| {
            let address = address.to_string();
            let words =
                ["serve", "--workers", "0", "--rate", "0", "--housekeeping", "5", "--log=json", "--listen", &address];
            words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()
        };
        let work = |_: &SocketAddr| {
            let lease = LEASE.as_secs().to_string();
            let words = ["worker", "--slots", SLOTS, "--lease", &lease, "--log=json"];
            words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()
        };
        let auditor = member("auditor".to_owned(), &serve);
        let servers: Vec<_> = (0..2).map(|n| member(format!("server-{n}"), &serve)).collect();
        let workers: Vec<_> = (0..WORKERS).map(|n| member(format!("worker-{n}"), &work)).collect();
        super::shared::trust_each_other(
            [&auditor].into_iter().chain(&servers).chain(&workers).map(|member| &member.actum),
        );
        auditor.actum.file("seed/a.txt", "a\n");
        for name in WORKSPACES {
            auditor.actum.run(&["workspace", "add", name, "seed"]).ok();
        }
        auditor.actum.run(&["spend", "authorize", "--max-total", "1000usd", "--id", "auth_fleet"]).ok();
        let token = token(&auditor.actum, "admin", &[]);
        postgres::execute(&store, NOTES);
        servers.iter().chain(&workers).for_each(Member::start);
        Self {
            cluster: Mutex::new(cluster),
            store,
            wire,
            upstream,
            auditor,
            servers,
            workers,
            token,
            _objects: objects,
            _logs: logs,
            _network: network,
        }
    }

    /// Submits under one key until somebody has said that it is done.
    fn submit(&self, wanted: &Wanted, dice: &mut Dice, repeated: &AtomicUsize) -> Vec<String> {
        let content = json!({"workspace": format!("shared:{}", wanted.workspace), "items": wanted.items}).to_string();
        let headers =
            format!("authorization: Bearer {}\r\nidempotency-key: submission-{}\r\n", self.token, wanted.submission);
        let end = Instant::now() + Duration::from_secs(300);
        loop {
            assert!(Instant::now() < end, "nobody takes submission {}", wanted.submission);
            let server = &self.servers[dice.roll(2) as usize];
            match server.ask("POST", "/v1/runs", &headers, &content) {
                Some((202, answer)) => {
                    let runs = answer["runs"].as_array().unwrap();
                    return runs.iter().map(|run| run["run_id"].as_str().unwrap().to_owned()).collect();
                }
                Some((status, answer)) => assert!(status >= 500 || status == 429, "{status} {answer}"),
                None => {}
            }
            repeated.fetch_add(1, Ordering::SeqCst);
            sleep(Duration::from_millis(300));
        }
    }

    /// How many runs there are in each state.
    fn states(&self) -> BTreeMap<String, usize> {
        let _held = locked(&self.cluster);
        let rows = postgres::told(&self.store, "SELECT state, count(*) FROM actum.run GROUP BY state");
        let read = |row: &String| row.split_once('|').map(|(state, n)| (state.to_owned(), n.parse().unwrap()));
        rows.iter().filter_map(read).collect()
    }

    fn strike(&self, blow: Blow, dice: &mut Dice) {
        let worker = &self.workers[dice.roll(WORKERS as u64) as usize];
        match blow {
            Blow::KillWorker => {
                if let Some(running) = &mut *locked(&worker.running) {
                    running.kill();
                }
                worker.start();
            }
            Blow::PauseWorker => {
                let mut running = locked(&worker.running);
                let signal =
                    |running: &mut Option<Launched>, name| running.as_ref().is_some_and(|one| one.signal(name));
                assert!(signal(&mut running, "STOP"), "it is there to be stopped");
                sleep(LONG);
                assert!(signal(&mut running, "CONT"), "it is there to go on");
            }
            Blow::CutWorker => {
                let held = locked(&worker.running);
                if let Some(machine) = &worker.machine {
                    machine.cut();
                    sleep(LONG);
                    machine.mend();
                }
                drop(held);
            }
            Blow::KillServer => {
                let server = &self.servers[dice.roll(2) as usize];
                if let Some(running) = &mut *locked(&server.running) {
                    running.kill();
                }
                sleep(Duration::from_secs(1));
                server.start();
            }
            Blow::RestartDatabase => {
                let mut cluster = locked(&self.cluster);
                cluster.stop_immediate();
                cluster.restart();
            }
            Blow::DatabaseAway => {
                let mut cluster = locked(&self.cluster);
                cluster.stop_immediate();
                sleep(AWAY);
                cluster.restart();
            }
            Blow::ObjectsAway => {
                self.wire.cut.store(true, Ordering::SeqCst);
                sleep(AWAY);
                self.wire.cut.store(false, Ordering::SeqCst);
            }
        }
    }
}

/// Layers of a few items, each standing on one or two of the layer before.
fn wanted(runs: usize, dice: &mut Dice) -> Vec<Wanted> {
    let mut all = Vec::new();
    for submission in 0..runs.div_ceil(RUNS_OF_A_SUBMISSION) {
        let number = RUNS_OF_A_SUBMISSION.min(runs - submission * RUNS_OF_A_SUBMISSION);
        let name = |at: usize| format!("s{submission}x{at}");
        let mut items = Vec::new();
        for at in 0..number {
            let layer = at / WIDTH;
            let mut needs: Vec<String> = match layer {
                0 => Vec::new(),
                _ => (0..=dice.roll(2)).map(|_| name((layer - 1) * WIDTH + dice.roll(WIDTH as u64) as usize)).collect(),
            };
            needs.sort();
            needs.dedup();
            let is_paid = (submission * RUNS_OF_A_SUBMISSION + at) % PAID_EVERY == 2;
            let (agent, description) = match is_paid {
                true => ("model", format!("Write made/{} as it is wanted.", name(at))),
                false => ("sh", if needs.is_empty() { "none".to_owned() } else { needs.join(" ") }),
            };
            items.push(json!({
                "id": name(at), "agent_id": agent, "description": description, "dependencies": needs,
            }));
        }
        let workspace = WORKSPACES[usize::from(submission % 3 == 2)];
        all.push(Wanted { submission, items, workspace });
    }
    all
}

/// Somebody stands still in the middle of a transaction, with the lock of the log in his hand.
#[test]
fn nobody_waits_for_good_for_who_stands_still_in_a_transaction() {
    let store = postgres::shared_url();
    let [one, two] = [0; 2].map(|_| actum().on_store(&store));
    two.run(&["signature", "list"]).ok();
    let append = ["spend", "authorize", "--max-total", "1usd"];
    let mut still = one.start(&append, &[("ACTUM_CRASH_AT", "append.begun")]);
    assert!(still.error_line().is_some_and(|line| line.starts_with("crash point")));
    two.run(&append).ok();
    still.kill();
    assert_eq!(asked(&two, &["spend", "list", "--json"])["authorizations"].as_array().unwrap().len(), 1);
}

/// The store fails for a moment while an agent asks: that is not the agent's failure.
#[test]
fn an_agent_that_could_not_be_answered_is_put_off() {
    let upstream = Upstream::start(script());
    let store = postgres::shared_url();
    let actum = actum().on_store(&store).with_env("UP_KEY", "sk-key-that-nobody-keeps");
    actum.file("actum.toml", agents(&upstream));
    actum.run(&["spend", "authorize", "--max-total", "1usd", "--id", "auth_fleet"]).ok();
    // The first call that is to be paid for is not; everything else is as ever.
    let once = "CREATE SEQUENCE public.once;
        CREATE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF NEW.state = 'committed' AND nextval('public.once') = 1 THEN RAISE EXCEPTION 'once'; END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER fail BEFORE UPDATE ON actum.spend_reservation FOR EACH ROW EXECUTE FUNCTION public.fail()";
    postgres::execute(&store, once);
    let item = json!({"id": "i", "agent_id": "model", "description": "Write made/i as it is wanted."});
    let ended = actum.run_with(&["run", "--detach", "--json", "-"], item.to_string().as_bytes());
    let runs = vec![ended.json()["runs"][0]["run_id"].as_str().unwrap().to_owned()];
    super::runs::work(&actum, &runs);
    super::runs::check(&actum, &runs[0], "put off");
    assert_eq!((upstream.calls().len(), super::runs::status(&actum, &runs[0])["attempt"].as_u64()), (2, Some(1)));
    let found = asked(&actum, &["spend", "reservations", "--json"])["reservations"].clone();
    let mut states: Vec<&str> = found.as_array().unwrap().iter().filter_map(|one| one["state"].as_str()).collect();
    states.sort_unstable();
    assert_eq!(states, ["committed", "reconcile_required"], "what nobody knows the cost of waits for somebody");
}

/// The answer to a submission was lost: whoever asks again, or of two servers at once, is told of the same runs.
#[test]
fn what_is_submitted_twice_under_one_key_is_done_once() {
    let store = postgres::shared_url();
    let [one, two] = [0; 2].map(|_| super::run::project(&[("a", "true")]).on_store(&store));
    one.file("seed/a.txt", "a\n");
    one.run(&["workspace", "add", "site", "seed"]).ok();
    let token = token(&one, "operator", &[]);
    let servers = [&one, &two].map(|actum| super::serve::Server::start(actum, &["--workers", "0"]));
    let items: Vec<Value> = (0..3).map(|n| super::run::item(&format!("i{n}"), "a")).collect();
    let work = json!({"workspace": "shared:site", "items": items}).to_string();
    let bearer = format!("Bearer {token}");
    let post = &|at: usize, key: &str, work: &str| {
        let headers = [("authorization", bearer.as_str()), ("idempotency-key", key)];
        servers[at].ask_with("POST", "/v1/runs", &headers, work)
    };
    let first = post(0, "k", &work).is(202);
    for at in [0, 1] {
        // As if nobody had lived to keep the answer.
        postgres::execute(&store, "DELETE FROM actum.kept_answer");
        assert_eq!(post(at, "k", &work).is(202), first);
    }
    // Another token's key is another key, and so is another request under it.
    postgres::execute(&store, "DELETE FROM actum.kept_answer");
    assert_ne!(post(1, "k", &work.replace("i0", "j0")).is(202)["submission"], first["submission"]);
    let at_once: Vec<Value> = scope(|threads| {
        let asking: Vec<_> = (0..8)
            .map(|n| {
                let work = &work;
                threads.spawn(move || post(n % 2, "both", work).is(202))
            })
            .collect();
        asking.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(at_once.iter().all(|one| *one == at_once[0]), "{at_once:?}");
    assert_eq!(postgres::told(&store, "SELECT count(*) FROM actum.run"), ["9"]);
}

#[test]
fn a_fleet_loses_no_run_whatever_happens_to_it() {
    let number = |name: &str, usual: u64| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(usual);
    let runs = number("ACTUM_FLEET_RUNS", RUNS as u64) as usize;
    let seed = number("ACTUM_FLEET_SEED", 41);
    eprintln!("{runs} runs, ACTUM_FLEET_SEED={seed}");
    let mut dice = Dice::new(seed);
    let all = wanted(runs, &mut dice);
    let fleet = Fleet::new();
    let began = Instant::now();
    let (repeated, struck, over) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let started_again = AtomicUsize::new(0);
    let blows: Mutex<BTreeMap<Blow, usize>> = Mutex::default();
    let (mut for_blows, mut for_submissions) = (Dice::new(dice.roll(1 << 30)), Dice::new(dice.roll(1 << 30)));
    let ids: Vec<Vec<String>> = scope(|threads| {
        // Whatever fails here must not leave the others striking for ever.
        struct Over<'a>(&'a AtomicBool);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let end = Over(&over);
        threads.spawn(|| {
            scope(|within| {
                for (at, blow) in ROUND.iter().cycle().copied().enumerate() {
                    struck.store(at, Ordering::SeqCst);
                    // In the first round everything comes soon; then there is time to get on between two blows.
                    let pause =
                        if at < ROUND.len() { 1_000 + for_blows.roll(2_000) } else { 4_000 + for_blows.roll(8_000) };
                    sleep(Duration::from_millis(pause));
                    if over.load(Ordering::SeqCst) {
                        break;
                    }
                    *locked(&blows).entry(blow).or_default() += 1;
                    let (fleet, mut dice) = (&fleet, Dice::new(for_blows.roll(1 << 30)));
                    let blow = within.spawn(move || fleet.strike(blow, &mut dice));
                    // What takes longer than a lease goes on while other things happen.
                    if at % 2 == 0 {
                        blow.join().unwrap();
                    }
                }
            });
        });
        let (fleet, over, started_again) = (&fleet, &over, &started_again);
        threads.spawn(move || {
            while !over.load(Ordering::SeqCst) {
                let members = fleet.servers.iter().chain(&fleet.workers);
                started_again.fetch_add(members.filter(|one| one.look_after()).count(), Ordering::SeqCst);
                sleep(Duration::from_secs(1));
            }
        });
        let mut ids = Vec::new();
        for (at, wanted) in all.iter().enumerate() {
            // Spread over the first round, so that every blow hits somebody.
            let patience = Instant::now() + Duration::from_secs(300);
            while struck.load(Ordering::SeqCst) < (at + 1) * ROUND.len() / all.len() {
                assert!(Instant::now() < patience, "the round does not end");
                sleep(Duration::from_millis(100));
            }
            ids.push(fleet.submit(wanted, &mut for_submissions, &repeated));
        }
        let patience = Instant::now() + Duration::from_secs(120 + 2 * runs as u64);
        loop {
            let states = fleet.states();
            let left: usize = ["queued", "running", "blocked"].iter().filter_map(|state| states.get(*state)).sum();
            if left == 0 {
                break;
            }
            assert!(Instant::now() < patience, "they do not end: {states:?}");
            sleep(Duration::from_millis(300));
        }
        drop(end);
        ids
    });
    let took = began.elapsed();
    let sum = |event: &str, message: &str| fleet.workers.iter().map(|one| one.told(event, message)).sum::<usize>();
    eprintln!(
        "{runs} runs in {took:.1?}; blows {:?}; submissions repeated {}; started again {}; taken {}, put off {}, lost {}, troubles of the store {}",
        locked(&blows),
        repeated.load(Ordering::SeqCst),
        started_again.load(Ordering::SeqCst),
        sum("run.taken", ""),
        sum("run.remark", "put off"),
        sum("run.lost", ""),
        sum("store.trouble", ""),
    );
    check(&fleet, &all, &ids, runs);
}

fn check(fleet: &Fleet, all: &[Wanted], ids: &[Vec<String>], runs: usize) {
    let ask = |statement: &str| postgres::told(&fleet.store, statement);
    // Every run is there once, has ended once, and well.
    let failed = ask("SELECT r.id, r.item, r.state, r.error, o.outcome FROM actum.run r \
        LEFT JOIN actum.run_outcome o ON o.id = r.id WHERE r.state <> 'succeeded'");
    assert!(failed.is_empty(), "{failed:#?}");
    assert_eq!(
        ask("SELECT count(*), count(DISTINCT id), count(DISTINCT item) FROM actum.run"),
        [format!("{runs}|{runs}|{runs}")]
    );
    assert_eq!(ask("SELECT run FROM actum.run_event WHERE kind = 'ended' GROUP BY run HAVING count(*) <> 1"), [""; 0]);
    assert_eq!(ask("SELECT count(DISTINCT run) FROM actum.run_event WHERE kind = 'ended'"), [runs.to_string()]);
    assert_eq!(ask("SELECT id FROM public.seen WHERE state = 'succeeded' GROUP BY id HAVING count(*) <> 1"), [""; 0]);
    let one_owner =
        "SELECT id, epoch FROM public.seen WHERE owner IS NOT NULL GROUP BY id, epoch HAVING count(DISTINCT owner) > 1";
    assert_eq!(ask(one_owner), [""; 0], "two had a run under one epoch");
    let actum = &fleet.auditor.actum;
    let ended: Vec<Value> = super::runs::entries(actum, "execution_event");
    let mut ends: BTreeMap<String, usize> = BTreeMap::new();
    for event in ended.iter().filter(|event| event["state"] == "succeeded") {
        *ends.entry(event["payload"]["executionId"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    assert_eq!((ends.len(), ends.values().all(|n| *n == 1)), (runs, true), "{ends:?}");
    assert!(!ended.iter().any(|event| event["state"] == "failed"), "nothing failed on the way");
    // Each result is in the head once, and each moved it once.
    for name in WORKSPACES {
        let here: Vec<(&Wanted, &Vec<String>)> = all.iter().zip(ids).filter(|(one, _)| one.workspace == name).collect();
        let expected: usize = here.iter().map(|(one, _)| one.items.len()).sum();
        let folder = format!("out-{name}");
        actum.run(&["workspace", "checkout", name, &folder]).ok();
        for (wanted, ids) in &here {
            for (item, id) in wanted.items.iter().zip(*ids) {
                let text =
                    std::fs::read_to_string(actum.path(&format!("{folder}/made/{}", item["id"].as_str().unwrap())));
                let own = if item["agent_id"] == "model" { "by a model\n".to_owned() } else { format!("{id}\n") };
                assert_eq!(text.unwrap(), own, "{item}");
            }
        }
        let made = std::fs::read_dir(actum.path(&format!("{folder}/made"))).map_or(0, Iterator::count);
        assert_eq!(made, expected);
        let head = format!("SELECT n FROM actum.head WHERE workspace = 'shared:{name}'");
        assert_eq!(ask(&head), [(expected + 1).to_string()], "{name}");
    }
    check_money(fleet, runs);
    assert_eq!(asked(actum, &["ledger", "verify", "--json"])["valid"], true);
    actum.run(&["store", "check"]).ok();
    assert_eq!(asked(actum, &["store", "rebuild", "--json"])["equal"], true);
    check_receipts(fleet, ids);
}

/// By a machine that made none of them.
fn check_receipts(fleet: &Fleet, ids: &[Vec<String>]) {
    fleet.auditor.start();
    let headers = format!("authorization: Bearer {}\r\n", fleet.token);
    let end = Instant::now() + SILENCE;
    while fleet.auditor.ask("GET", "/v1/status", &headers, "").is_none_or(|(status, _)| status != 200) {
        assert!(Instant::now() < end, "the auditor does not serve");
        sleep(Duration::from_millis(100));
    }
    let all: Vec<&String> = ids.iter().flatten().collect();
    scope(|threads| {
        for part in all.chunks(all.len().div_ceil(4)) {
            let headers = &headers;
            threads.spawn(move || {
                for id in part {
                    let path = format!("/v1/receipts/{id}/verification");
                    let (status, verified) = fleet.auditor.ask("GET", &path, headers, "").unwrap();
                    assert_eq!((status, &verified["valid"]), (200, &json!(true)), "{id}: {verified}");
                }
            });
        }
    });
    // Runs of both kinds.
    let mut dice = Dice::new(all.len() as u64);
    let some = (0..REPEATED).map(|_| all[dice.roll(all.len() as u64) as usize]).chain([all[2]]);
    for id in some {
        let ended = fleet.auditor.actum.run(&["replay", id, "--json"]);
        assert_eq!(ended.json()["identical"], true, "{ended:?}");
    }
}

fn check_money(fleet: &Fleet, runs: usize) {
    let actum = &fleet.auditor.actum;
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{value} is no number"));
    let reservations = asked(actum, &["spend", "reservations", "--limit", "10000", "--json"])["reservations"].clone();
    let reservations = reservations.as_array().unwrap();
    let of = |state: &str| reservations.iter().filter(|one| one["state"] == state).collect::<Vec<_>>();
    let committed: u64 = of("committed").iter().map(|one| number(&one["committed"])).sum();
    let receipts = asked(actum, &["trace", "list", "--limit", "10000", "--json"])["receipts"].clone();
    let receipts: u64 = receipts
        .as_array()
        .unwrap()
        .iter()
        .filter(|one| one["kind"] == "call")
        .map(|one| number(&one["budget"]["spent"]))
        .sum();
    let counted = fleet.upstream.calls().iter().filter(|call| call.usage.is_some()).count() as u64 * COST;
    let paid = (0..runs).filter(|n| n % PAID_EVERY == 2).count() as u64;
    let unknown = of("reconcile_required").len() as u64;
    eprintln!(
        "money: {paid} runs ask; {} reservations, {} committed ({committed}), {} released, {unknown} to be reconciled, {} open; receipts {receipts}, upstream {counted}",
        reservations.len(),
        of("committed").len(),
        of("released").len(),
        of("reserved").len(),
    );
    let astray = postgres::told(&fleet.store, "SELECT id, count(*) FROM public.astray GROUP BY id");
    assert_eq!(astray, [""; 0], "money was changed outside of the transaction that has the turn");
    assert_eq!(committed, receipts, "receipts and money disagree");
    // Every run that asks was answered at least once; what it was charged for was asked.
    assert!(committed >= paid * COST, "{committed} < {paid} × {COST}");
    // What is not on record as paid is on record as unknown.
    assert!(committed <= counted, "{committed} > {counted}");
    assert!(counted <= committed + unknown * COST, "{counted} was asked");
    assert_eq!(of("reserved"), Vec::<&Value>::new(), "nothing is under way");
    // Each of these is a call of somebody who had the run and lost it.
    for one in of("reconcile_required") {
        let epoch = format!("SELECT epoch > 1 FROM actum.run WHERE id = '{}'", one["run_id"].as_str().unwrap());
        assert_eq!(postgres::told(&fleet.store, &epoch), ["t"], "{one}");
    }
    let spent = asked(actum, &["spend", "list", "--json"])["authorizations"][0].clone();
    assert_eq!(number(&spent["spent"]), committed, "{spent}");
}
