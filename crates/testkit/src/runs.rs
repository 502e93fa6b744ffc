//! What every store of runs must do. Each store's tests call `runs` with an empty one.

use std::sync::Arc;
use std::time::Duration;

use actum_contract::id::Tenant;
use actum_ledger::Journal;
use actum_ledger::draft::Submission;
use actum_ledger::refusal::Code;
use actum_ledger::run::{Claim, Commit, End, Filter, Held, NewEvent, NewRun, Run, RunState, Runs, Settle, Written};
use serde_json::{Value, json};

use crate::event::{event, signal, submission};

/// A store, seen through both ports.
#[derive(Clone)]
pub struct Both {
    pub runs: Arc<dyn Runs>,
    pub journal: Arc<dyn Journal>,
}

impl std::fmt::Debug for Both {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Both")
    }
}

/// A lease that does not run out while a test runs.
pub const LONG_MS: u64 = 3_600_000;

/// Every rule, on an empty store.
pub async fn runs(store: Both) {
    the_oldest_first(&store).await;
    only_of_a_submission(&store).await;
    a_run_to_its_end(&store).await;
    fencing(&store).await;
    leases_and_dead_owners(&store).await;
    dependencies(&store).await;
    doomed(&store).await;
    settling(&store).await;
    beginning_again(&store).await;
    a_refusal_leaves_nothing(&store).await;
    many_writes_about_one_run(&store).await;
    all_runs_or_none(&store).await;
    capsules(&store).await;
    lists(&store).await;
    asked_to_stop(&store).await;
    tenants_do_not_see_each_other(&store).await;
}

pub fn tenant(name: &str) -> Tenant {
    Tenant::new(name).expect("a tenant")
}

/// A run of the tenant in the place that has the tenant's name.
pub fn new_run(tenant_name: &str, id: &str) -> NewRun {
    NewRun {
        tenant: tenant(tenant_name),
        id: id.into(),
        submission: "s-1".into(),
        item: format!("item of {id}"),
        robot: "robot".into(),
        place: tenant_name.into(),
        planned: false,
        metadata: json!({"about": id}).to_string(),
        depends_on: Vec::new(),
    }
}

pub fn after(run: NewRun, depends_on: &[&str]) -> NewRun {
    NewRun { depends_on: depends_on.iter().map(|id| (*id).to_owned()).collect(), ..run }
}

pub fn claim_of(place: &str, runs_max: usize) -> Claim {
    let (owner, place) = ("worker-1".into(), place.into());
    Claim { owner, place, lease_ms: LONG_MS, runs_max, submission: None, run: None, dead: Vec::new() }
}

pub fn held(run: &Run) -> Held {
    Held { tenant: run.tenant.clone(), run: run.id.clone(), epoch: run.epoch }
}

/// A commit of one event.
pub fn step(run: &Run) -> Commit {
    let events = vec![NewEvent { kind: "step".into(), body: r#"{"n":1}"#.into() }];
    Commit { held: held(run), version: run.version, events, entries: Vec::new(), metadata: None, end: None }
}

pub fn end(run: &Run, state: RunState) -> Commit {
    let outcome = Some(json!({"result": state.word()}).to_string());
    Commit { end: Some(End { state, outcome, capsule: None }), ..step(run) }
}

pub fn settle_of(run: &Run, to: RunState) -> Settle {
    Settle {
        tenant: run.tenant.clone(),
        run: run.id.clone(),
        version: run.version,
        from: run.state,
        to,
        attempt: run.attempt,
        events: vec![NewEvent { kind: "settled".into(), body: "{}".into() }],
        entries: Vec::new(),
        metadata: None,
        outcome: None,
        forget_capsule: false,
    }
}

impl Both {
    async fn submit(&self, runs: Vec<NewRun>) -> Written {
        self.runs.submit(runs, Vec::new()).await.expect("the store answers")
    }

    async fn submitted(&self, runs: Vec<NewRun>) {
        assert_eq!(self.submit(runs).await, Written::Done);
    }

    async fn claim(&self, claim: Claim) -> Vec<Run> {
        self.runs.claim(claim).await.expect("the store answers")
    }

    async fn claim_one(&self, place: &str) -> Run {
        let mut runs = self.claim(claim_of(place, 1)).await;
        runs.pop().expect("a run")
    }

    async fn commit(&self, commit: Commit) -> Written {
        self.runs.commit(commit).await.expect("the store answers")
    }

    async fn settle(&self, settle: Settle) -> Written {
        self.runs.settle(settle).await.expect("the store answers")
    }

    async fn run(&self, tenant_name: &str, id: &str) -> Run {
        let found = self.runs.runs_named(&tenant(tenant_name), id).await.expect("the store answers");
        found.into_iter().find(|run| run.id == id).expect("a run of that name")
    }

    async fn state(&self, tenant_name: &str, id: &str) -> RunState {
        self.run(tenant_name, id).await.state
    }

    async fn log_size(&self, tenant_name: &str) -> u64 {
        self.journal.log(&tenant(tenant_name)).await.expect("a log").frontier.size()
    }

    async fn kinds(&self, tenant_name: &str, id: &str) -> Vec<String> {
        let events = self.runs.events(&tenant(tenant_name), id, 0).await.expect("events");
        assert!(events.iter().map(|e| e.n).eq(0..events.len() as u64), "{events:?}");
        events.into_iter().map(|e| e.kind).collect()
    }
}

fn ids(runs: &[Run]) -> Vec<&str> {
    runs.iter().map(|run| run.id.as_str()).collect()
}

async fn the_oldest_first(store: &Both) {
    store.submitted(vec![new_run("oldest", "r-3"), new_run("oldest", "r-1")]).await;
    store.submitted(vec![new_run("oldest", "r-2")]).await;
    assert!(store.claim(claim_of("elsewhere", 9)).await.is_empty());
    assert!(store.claim(claim_of("oldest", 0)).await.is_empty());
    let first = store.claim(claim_of("oldest", 2)).await;
    assert_eq!(ids(&first), ["r-1", "r-2"]);
    let run = &first[0];
    assert_eq!((run.state, run.attempt, run.epoch, run.version), (RunState::Running, 1, 1, 0));
    assert_eq!((run.owner.as_deref(), run.waits, run.cancel), (Some("worker-1"), 0, false));
    assert_eq!((run.item.as_str(), run.robot.as_str()), ("item of r-1", "robot"));
    assert_eq!((run.metadata.as_str(), &run.outcome), (r#"{"about":"r-1"}"#, &None));
    assert_eq!(run.lease_until_ms, Some(run.updated_ms + LONG_MS as i64));
    assert!(run.created_ms <= run.updated_ms && run.created_ms > 1_700_000_000_000);
    assert_eq!(store.run("oldest", "r-1").await, *run);
    assert_eq!(ids(&store.claim(claim_of("oldest", 2)).await), ["r-3"]);
    assert!(store.claim(claim_of("oldest", 2)).await.is_empty());
    // Handed back, the oldest is the first to be taken again.
    assert_eq!(store.commit(Commit { events: Vec::new(), ..end(run, RunState::Queued) }).await, Written::Done);
    let back = store.run("oldest", "r-1").await;
    assert_eq!((back.state, &back.owner, back.lease_until_ms), (RunState::Queued, &None, None));
    let again = store.claim_one("oldest").await;
    assert_eq!((again.id.as_str(), again.epoch), ("r-1", 2));
}

async fn only_of_a_submission(store: &Both) {
    let of = |id: &str, submission: &str| NewRun { submission: submission.into(), ..new_run("of", id) };
    store.submitted(vec![of("r-1", "a"), of("r-2", "b"), of("r-3", "b"), of("r-4", "a")]).await;
    let claim = |submission: &str| Claim { submission: Some(submission.into()), ..claim_of("of", 1) };
    assert_eq!(ids(&store.claim(claim("b")).await), ["r-2"]);
    assert!(store.claim(claim("c")).await.is_empty());
    let expired = Claim { lease_ms: 0, runs_max: 2, ..claim("a") };
    assert_eq!(ids(&store.claim(expired).await), ["r-1", "r-4"]);
    // A lease that is over frees a run only for those who ask for its submission.
    assert_eq!(ids(&store.claim(Claim { runs_max: 9, ..claim("b") }).await), ["r-3"]);
    assert_eq!(ids(&store.claim(Claim { runs_max: 9, ..claim("a") }).await), ["r-1", "r-4"]);
}

async fn a_run_to_its_end(store: &Both) {
    let t = tenant("path");
    let planned = vec![submission(signal("path", "signal")), submission(event("path", "x", 1, "planned"))];
    let work = store.runs.submit(vec![new_run("path", "r-1")], planned.clone());
    assert_eq!(work.await.expect("an answer"), Written::Done);
    assert_eq!(store.log_size("path").await, 2);
    // What is in the ledger already counts as written.
    let work = store.runs.submit(vec![new_run("path", "r-2")], planned);
    assert_eq!(work.await.expect("an answer"), Written::Done);
    assert_eq!(store.log_size("path").await, 2);

    let run = store.claim_one("path").await;
    let running = Commit { entries: vec![submission(event("path", "x", 1, "running"))], ..step(&run) };
    assert_eq!(store.commit(running).await, Written::Done);
    let two = vec![
        NewEvent { kind: "asked".into(), body: "{}".into() },
        NewEvent { kind: "answered".into(), body: "\"ü 🙂\"".into() },
    ];
    let metadata = Some("{\"about\":\"changed\"}".to_owned());
    assert_eq!(store.commit(Commit { version: 1, events: two, metadata, ..step(&run) }).await, Written::Done);
    let between = store.run("path", "r-1").await;
    assert_eq!((between.state, between.version, between.epoch), (RunState::Running, 3, 1));
    assert_eq!(between.metadata, "{\"about\":\"changed\"}");
    assert_eq!(between.owner.as_deref(), Some("worker-1"));
    let entries = vec![submission(event("path", "x", 1, "succeeded")), submission(signal("path", "capsule of x"))];
    let last = Commit { version: 3, entries, ..end(&run, RunState::Succeeded) };
    // A name with a blank is no id: refused, and nothing of it happened.
    assert!(matches!(store.commit(last.clone()).await, Written::Refused(_)));
    let entries = vec![submission(event("path", "x", 1, "succeeded")), submission(signal("path", "capsule"))];
    assert_eq!(store.commit(Commit { entries, ..last }).await, Written::Done);
    assert_eq!(store.log_size("path").await, 5);
    let ended = store.run("path", "r-1").await;
    assert_eq!((ended.state, ended.version, &ended.owner, ended.lease_until_ms), (RunState::Succeeded, 4, &None, None));
    assert_eq!(ended.outcome.as_deref(), Some(r#"{"result":"succeeded"}"#));
    assert_eq!(ended.metadata, "{\"about\":\"changed\"}");
    assert_eq!(store.kinds("path", "r-1").await, ["step", "asked", "answered", "step"]);
    let later = store.runs.events(&t, "r-1", 2).await.expect("events");
    assert_eq!((later.len(), later[0].n, later[0].attempt), (2, 2, 1));
    assert_eq!(later[0].body, "\"ü 🙂\"");
    assert!(later[0].at_ms >= ended.created_ms);
}

/// Whoever lost a run writes nothing about it, to the ledger neither.
async fn fencing(store: &Both) {
    store.submitted(vec![new_run("fence", "r-1")]).await;
    let entry = || vec![submission(signal("fence", "late"))];
    let old = store.claim(Claim { lease_ms: 0, ..claim_of("fence", 1) }).await.pop().expect("a run");
    // Its lease is over, but nobody has taken it: still its own.
    assert_eq!(store.commit(step(&old)).await, Written::Done);
    let new = store.claim(Claim { owner: "worker-2".into(), ..claim_of("fence", 1) }).await.pop().expect("a run");
    assert_eq!((new.epoch, new.version, new.owner.as_deref()), (2, 1, Some("worker-2")));
    let before = store.run("fence", "r-1").await;
    for lost in [
        Commit { version: 1, entries: entry(), ..step(&old) },
        Commit { version: 1, entries: entry(), ..end(&old, RunState::Failed) },
        Commit { version: 0, entries: entry(), ..step(&new) },
        Commit { version: 2, entries: entry(), ..end(&new, RunState::Succeeded) },
        Commit { held: Held { epoch: 3, ..held(&new) }, entries: entry(), ..step(&new) },
        Commit { held: Held { run: "r-2".into(), ..held(&new) }, entries: entry(), ..step(&new) },
        Commit { held: Held { tenant: tenant("another"), ..held(&new) }, entries: entry(), ..step(&new) },
    ] {
        assert_eq!(store.commit(lost).await, Written::Lost);
    }
    assert_eq!(store.run("fence", "r-1").await, before);
    assert_eq!(store.kinds("fence", "r-1").await, ["step"]);
    assert_eq!(store.log_size("fence").await, 0);
    assert_eq!(store.commit(end(&new, RunState::Failed)).await, Written::Done);
    // Over is over.
    assert_eq!(store.commit(Commit { version: 2, ..step(&new) }).await, Written::Lost);
}

async fn leases_and_dead_owners(store: &Both) {
    store.submitted(vec![new_run("lease", "r-1"), new_run("lease", "r-2"), new_run("lease", "r-3")]).await;
    let by = |owner: &str, lease_ms| Claim { owner: owner.into(), lease_ms, ..claim_of("lease", 1) };
    let first = store.claim(by("b", LONG_MS)).await;
    let second = store.claim(by("a", 1)).await;
    assert_eq!((ids(&first), ids(&second)), (vec!["r-1"], vec!["r-2"]));
    // The end of a lease never goes back.
    store.runs.renew("b".into(), 1, vec![held(&first[0])]).await.expect("an answer");
    std::thread::sleep(Duration::from_millis(20));
    // One whose lease is over stands in line with what is queued, by its age.
    let both = store.claim(Claim { runs_max: 9, ..by("c", LONG_MS) }).await;
    assert_eq!(ids(&both), ["r-2", "r-3"]);
    assert_eq!(both.iter().map(|run| run.epoch).collect::<Vec<_>>(), [2, 1]);
    assert!(store.claim(by("d", LONG_MS)).await.is_empty());
    let dead = Claim { dead: vec!["nobody".into(), "b".into()], runs_max: 9, ..by("d", 0) };
    let taken = store.claim(dead).await;
    assert_eq!((ids(&taken), taken[0].epoch, taken[0].owner.as_deref()), (vec!["r-1"], 2, Some("d")));
    // A lease that is renewed in time is not over; nor is one renewed by somebody who has lost the run.
    let renewed = store.runs.renew("d".into(), LONG_MS, vec![held(&first[0]), held(&taken[0]), held(&second[0])]);
    let renewed = renewed.await.expect("an answer");
    assert_eq!(
        renewed.iter().map(|r| (r.run.as_str(), r.lost)).collect::<Vec<_>>(),
        [("r-1", true), ("r-1", false), ("r-2", true)]
    );
    assert!(store.claim(by("e", LONG_MS)).await.is_empty());
    let until = store.run("lease", "r-1").await.lease_until_ms.expect("a lease");
    assert!(until > taken[0].updated_ms + LONG_MS as i64 / 2);
    let dead = |who: &str| Claim { dead: vec![who.into()], runs_max: 9, ..by("e", LONG_MS) };
    assert_eq!(ids(&store.claim(dead("c")).await), ["r-2", "r-3"]);
}

async fn dependencies(store: &Both) {
    let t = tenant("dag");
    let run = |id: &str, depends_on: &[&str]| after(new_run("dag", id), depends_on);
    store
        .submitted(vec![
            run("r-4", &["r-2", "r-3", "r-2"]),
            run("r-1", &[]),
            run("r-2", &["r-1"]),
            run("r-3", &["r-1"]),
            run("r-5", &["nowhere"]),
            NewRun { planned: true, ..run("r-6", &["r-1"]) },
        ])
        .await;
    let states = |expected: [RunState; 6]| async move {
        for (n, state) in expected.into_iter().enumerate() {
            assert_eq!(store.state("dag", &format!("r-{}", n + 1)).await, state, "r-{}", n + 1);
        }
    };
    use RunState::{Blocked, Planned, Queued, Running, Succeeded};
    states([Queued, Blocked, Blocked, Blocked, Blocked, Planned]).await;
    assert_eq!(store.run("dag", "r-4").await.waits, 2);
    assert_eq!(store.run("dag", "r-6").await.waits, 1);
    let found = store.runs.dependencies(&t, "r-4").await.expect("dependencies");
    assert_eq!(found, [("r-2".to_owned(), Blocked), ("r-3".to_owned(), Blocked)]);

    let first = store.claim(claim_of("dag", 9)).await;
    assert_eq!(ids(&first), ["r-1"]);
    store.commit(end(&first[0], Succeeded)).await;
    states([Succeeded, Queued, Queued, Blocked, Blocked, Planned]).await;
    assert_eq!(store.run("dag", "r-6").await.waits, 0);
    let next = store.claim(claim_of("dag", 9)).await;
    assert_eq!(ids(&next), ["r-2", "r-3"]);
    // Both at once: each takes one off what the fourth waits for.
    let waiting: Vec<_> = next.iter().map(|run| store.runs.commit(end(run, Succeeded))).collect();
    for answer in waiting {
        assert_eq!(answer.await.expect("an answer"), Written::Done);
    }
    states([Succeeded, Succeeded, Succeeded, Queued, Blocked, Planned]).await;
    // One that comes later does not wait for what has succeeded.
    store.submitted(vec![run("r-7", &["r-1", "r-4"])]).await;
    assert_eq!(store.run("dag", "r-7").await.waits, 1);
    // The one that nobody knew comes after all.
    store.submitted(vec![run("nowhere", &[])]).await;
    let rest = store.claim(claim_of("dag", 9)).await;
    assert_eq!(ids(&rest), ["nowhere", "r-4"]);
    store.commit(end(&rest[0], Succeeded)).await;
    states([Succeeded, Succeeded, Succeeded, Running, Queued, Planned]).await;
}

async fn doomed(store: &Both) {
    let run = |id: &str, depends_on: &[&str]| after(new_run("doom", id), depends_on);
    store
        .submitted(vec![run("a", &[]), run("b", &[]), run("c", &["a", "b"]), run("d", &["c"]), run("e", &["b"])])
        .await;
    assert!(store.runs.doomed("doom").await.expect("an answer").is_empty());
    let taken = store.claim(claim_of("doom", 9)).await;
    store.commit(end(&taken[1], RunState::Cancelled)).await;
    store.commit(end(&taken[0], RunState::Failed)).await;
    let found = store.runs.doomed("doom").await.expect("an answer");
    let pairs: Vec<_> = found.iter().map(|(run, of)| (run.id.as_str(), of.as_str())).collect();
    assert_eq!(pairs, [("c", "a"), ("e", "b")]);
    assert_eq!(store.settle(settle_of(&found[0].0, RunState::Failed)).await, Written::Done);
    let found = store.runs.doomed("doom").await.expect("an answer");
    let pairs: Vec<_> = found.iter().map(|(run, of)| (run.id.as_str(), of.as_str())).collect();
    assert_eq!(pairs, [("d", "c"), ("e", "b")]);
    assert!(store.runs.doomed("elsewhere").await.expect("an answer").is_empty());
}

async fn settling(store: &Both) {
    store.submitted(vec![new_run("settle", "r-1"), after(new_run("settle", "r-2"), &["r-1"])]).await;
    let queued = store.run("settle", "r-1").await;
    let entry = || vec![submission(signal("settle", "late"))];
    for lost in [
        Settle { version: 1, entries: entry(), ..settle_of(&queued, RunState::Cancelled) },
        Settle { from: RunState::Failed, entries: entry(), ..settle_of(&queued, RunState::Cancelled) },
        Settle { run: "r-3".into(), entries: entry(), ..settle_of(&queued, RunState::Cancelled) },
        Settle { tenant: tenant("another"), entries: entry(), ..settle_of(&queued, RunState::Cancelled) },
    ] {
        assert_eq!(store.settle(lost).await, Written::Lost);
    }
    assert_eq!((store.run("settle", "r-1").await, store.log_size("settle").await), (queued.clone(), 0));
    // Nothing is settled over the head of whoever holds it.
    let running = store.claim_one("settle").await;
    assert_eq!(store.settle(settle_of(&running, RunState::Cancelled)).await, Written::Lost);
    assert_eq!(store.settle(settle_of(&queued, RunState::Cancelled)).await, Written::Lost);
    assert_eq!(store.commit(end(&running, RunState::Queued)).await, Written::Done);

    let queued = store.run("settle", "r-1").await;
    let outcome = Some(r#"{"error":{"code":"CANCELLED_BY_USER"}}"#.to_owned());
    let cancelled = Settle {
        outcome: outcome.clone(),
        entries: entry(),
        metadata: Some("new".into()),
        ..settle_of(&queued, RunState::Cancelled)
    };
    assert_eq!(store.settle(cancelled).await, Written::Done);
    let run = store.run("settle", "r-1").await;
    assert_eq!((run.state, run.version, &run.outcome), (RunState::Cancelled, 2, &outcome));
    assert_eq!((run.metadata.as_str(), store.log_size("settle").await), ("new", 1));
    assert_eq!(store.kinds("settle", "r-1").await, ["step", "settled"]);
    // Success frees what waits for it, however it came about.
    assert_eq!(store.settle(settle_of(&run, RunState::Succeeded)).await, Written::Done);
    assert_eq!(store.run("settle", "r-1").await.outcome, outcome);
    assert_eq!(store.state("settle", "r-2").await, RunState::Queued);
    assert!(store.runs.settle(settle_of(&run, RunState::Running)).await.is_err());
}

/// A run that begins anew forgets its outcome and whether it was asked to stop; those that wait for it wait again.
async fn beginning_again(store: &Both) {
    store.submitted(vec![new_run("again", "r-1"), after(new_run("again", "r-2"), &["r-1"])]).await;
    let run = store.claim_one("again").await;
    assert_eq!(store.runs.ask_to_cancel(&run.tenant, "r-1").await.expect("an answer"), Written::Done);
    assert_eq!(store.commit(end(&run, RunState::Cancelled)).await, Written::Done);
    let over = store.run("again", "r-1").await;
    assert!(over.cancel && over.outcome.is_some());
    assert_eq!(store.settle(Settle { attempt: 2, ..settle_of(&over, RunState::Queued) }).await, Written::Done);
    let again = store.run("again", "r-1").await;
    assert_eq!((again.state, again.attempt, again.cancel, &again.outcome), (RunState::Queued, 2, false, &None));
    let run = store.claim_one("again").await;
    assert_eq!((run.attempt, run.epoch, run.version), (2, 2, 2));
    store.commit(end(&run, RunState::Succeeded)).await;
    let events = store.runs.events(&run.tenant, "r-1", 0).await.expect("events");
    assert_eq!(events.iter().map(|e| e.attempt).collect::<Vec<_>>(), [1, 2, 2]);
    assert_eq!(store.state("again", "r-2").await, RunState::Queued);

    // It was undone: what waits for it waits again, and one that begins again with it is blocked.
    let undone = store.run("again", "r-1").await;
    assert_eq!(store.settle(settle_of(&undone, RunState::Failed)).await, Written::Done);
    let waiting = store.run("again", "r-2").await;
    assert_eq!((waiting.state, waiting.waits), (RunState::Blocked, 1));
    assert_eq!(store.settle(settle_of(&waiting, RunState::Cancelled)).await, Written::Done);
    let cancelled = store.run("again", "r-2").await;
    assert_eq!(store.settle(settle_of(&cancelled, RunState::Queued)).await, Written::Done);
    assert_eq!(store.state("again", "r-2").await, RunState::Blocked);
    let failed = store.run("again", "r-1").await;
    assert_eq!(store.settle(settle_of(&failed, RunState::Queued)).await, Written::Done);
    let run = store.claim_one("again").await;
    store.commit(end(&run, RunState::Succeeded)).await;
    assert_eq!(store.state("again", "r-2").await, RunState::Queued);
}

/// What the ledger does not take leaves no trace, and does no harm to what was handed in at the same moment.
async fn a_refusal_leaves_nothing(store: &Both) {
    let t = tenant("refusal");
    store.journal.append(submission(signal("refusal", "signal"))).await.expect("an answer");
    let names: Vec<_> = (0..9).map(|n| format!("r-{n}")).collect();
    store.submitted(names.iter().map(|id| new_run("refusal", id)).collect()).await;
    let runs = store.claim(claim_of("refusal", 9)).await;
    let entry = |state: &str, execution: &str| submission(event("refusal", execution, 1, state));
    let broken = || submission(json!({"tenantId": "refusal"}));
    // In the middle of others; first an entry that would be taken, then one that is not. The second of them depends on
    // what the first would have written, so leaving the first out matters.
    let mut waiting = Vec::new();
    for (n, run) in runs.iter().enumerate() {
        let x = format!("x-{n}");
        let entries: Vec<Submission> = match n {
            2 => vec![entry("planned", "shared"), entry("succeeded", &x)],
            4 => vec![entry("planned", &x), broken()],
            5 => vec![entry("running", "shared")],
            6 => vec![broken()],
            7 => vec![entry("planned", "shared"), entry("running", "shared")],
            _ => vec![entry("planned", &x), entry("running", &x)],
        };
        waiting.push(store.runs.commit(Commit { entries, ..end(run, RunState::Succeeded) }));
    }
    let refused = store.runs.submit(vec![new_run("refusal", "s-1")], vec![entry("planned", "y"), entry("failed", "y")]);
    let taken = store.runs.submit(vec![new_run("refusal", "s-2")], vec![entry("planned", "z")]);
    let appended = store.journal.append(entry("running", "z"));
    for (n, answer) in waiting.into_iter().enumerate() {
        let written = answer.await.expect("an answer");
        let code = match &written {
            Written::Refused(refusal) => Some(refusal.code),
            _ => None,
        };
        let expected = match n {
            2 | 5 => Some(Code::InvalidTransition),
            4 | 6 => Some(Code::Validation),
            _ => None,
        };
        assert_eq!(code, expected, "{n}: {written:?}");
        assert_eq!(written == Written::Done, expected.is_none(), "{n}: {written:?}");
    }
    // Planned may not be followed by failed without having run.
    assert!(matches!(refused.await.expect("an answer"), Written::Refused(_)));
    assert_eq!(taken.await.expect("an answer"), Written::Done);
    appended.await.expect("an answer");
    for (n, run) in runs.iter().enumerate() {
        let now = store.run("refusal", &run.id).await;
        match n {
            2 | 4 | 5 | 6 => {
                assert_eq!(now, *run);
                assert!(store.kinds("refusal", &run.id).await.is_empty());
            }
            _ => assert_eq!((now.state, now.version), (RunState::Succeeded, 1)),
        }
    }
    assert!(store.runs.runs_named(&t, "s-1").await.expect("an answer").is_empty());
    assert_eq!(store.state("refusal", "s-2").await, RunState::Queued);
    // The signal, two for each of the five, and the two of z.
    assert_eq!(store.log_size("refusal").await, 13);
    assert!(store.journal.dead_letters(Some(&t), 9).await.expect("letters").is_empty());
    // Whoever was refused still holds the run.
    assert_eq!(store.commit(end(&runs[2], RunState::Failed)).await, Written::Done);
}

/// All handed in at once, all about the same run: as if one after the other.
async fn many_writes_about_one_run(store: &Both) {
    store.submitted(vec![new_run("many", "r-1")]).await;
    let run = store.claim_one("many").await;
    let at = |version| Commit { version, ..step(&run) };
    let ended = Run { state: RunState::Failed, version: 4, ..run.clone() };
    let work = [
        store.runs.commit(at(0)),
        store.runs.commit(at(1)),
        store.runs.commit(at(1)),
        store.runs.ask_to_cancel(&run.tenant, "r-1"),
        store.runs.commit(Commit { metadata: Some("m".into()), ..at(2) }),
        store.runs.commit(Commit { version: 3, ..end(&run, RunState::Failed) }),
        store.runs.commit(at(4)),
        store.runs.ask_to_cancel(&run.tenant, "r-1"),
        store.runs.settle(Settle { attempt: 2, ..settle_of(&ended, RunState::Queued) }),
        store.runs.settle(Settle { version: 5, from: RunState::Queued, ..settle_of(&ended, RunState::Cancelled) }),
    ];
    let mut answers = Vec::new();
    for answer in work {
        answers.push(answer.await.expect("an answer"));
    }
    use Written::{Done, Lost};
    assert_eq!(answers, [Done, Done, Lost, Done, Done, Done, Lost, Lost, Done, Done]);
    let run = store.run("many", "r-1").await;
    assert_eq!((run.state, run.version, run.cancel, run.metadata.as_str()), (RunState::Cancelled, 6, false, "m"));
    assert_eq!((run.attempt, &run.outcome), (1, &None));
    assert_eq!(store.kinds("many", "r-1").await, ["step", "step", "step", "step", "settled", "settled"]);
}

async fn all_runs_or_none(store: &Both) {
    let t = tenant("all");
    let runs = |ids: &[&str]| ids.iter().map(|id| new_run("all", id)).collect::<Vec<_>>();
    let entry = |id: &str| vec![submission(signal("all", id))];
    let work = [
        store.runs.submit(runs(&["r-1", "r-2"]), entry("a")),
        store.runs.submit(runs(&["r-1", "r-2"]), entry("b")),
        store.runs.submit(runs(&["r-3", "r-2"]), entry("c")),
        store.runs.submit(runs(&["r-4", "r-4"]), entry("d")),
        store.runs.submit(Vec::new(), entry("e")),
        // Another tenant's run of the same name is another run.
        store.runs.submit(vec![new_run("all-2", "r-1")], Vec::new()),
    ];
    let mut answers = Vec::new();
    for answer in work {
        answers.push(answer.await.expect("an answer"));
    }
    use Written::{Done, Lost};
    assert_eq!(answers, [Done, Lost, Lost, Lost, Done, Done]);
    assert_eq!(store.submit(runs(&["r-5", "r-1"])).await, Lost);
    let all = store.runs.runs(&t, Filter { limit: 9, ..Filter::default() }).await.expect("runs");
    assert_eq!(ids(&all), ["r-2", "r-1"]);
    assert_eq!(store.log_size("all").await, 2);
    assert!(store.runs.submit(vec![new_run("all", "with\0nul")], Vec::new()).await.is_err());
}

async fn capsules(store: &Both) {
    let t = tenant("capsule");
    let elsewhere = NewRun { place: "capsule-2".into(), ..new_run("capsule", "r-3") };
    store.submitted(vec![new_run("capsule", "r-1"), new_run("capsule", "r-2"), elsewhere]).await;
    let admitted = |place: &'static str, hash: &'static str| {
        let t = t.clone();
        async move { store.runs.admitted(&t, place, hash).await.expect("an answer") }
    };
    assert_eq!(admitted("capsule", "h").await, None);
    let with = |run: &Run, hash: &str| {
        let mut commit = end(run, RunState::Succeeded);
        commit.end.iter_mut().for_each(|end| end.capsule = Some(hash.into()));
        commit
    };
    for run in store.claim(claim_of("capsule", 9)).await {
        assert_eq!(store.commit(with(&run, "h")).await, Written::Done);
    }
    // The first one stays.
    assert_eq!(admitted("capsule", "h").await.as_deref(), Some("r-1"));
    assert_eq!(admitted("capsule-2", "h").await, None);
    let third = store.claim_one("capsule-2").await;
    store.commit(with(&third, "h")).await;
    assert_eq!(admitted("capsule-2", "h").await.as_deref(), Some("r-3"));
    assert_eq!(store.runs.admitted(&tenant("another"), "capsule", "h").await.expect("an answer"), None);
    for (id, left) in [("r-2", Some("r-1")), ("r-1", None)] {
        let run = store.run("capsule", id).await;
        let undo = Settle { forget_capsule: true, ..settle_of(&run, RunState::Cancelled) };
        assert_eq!(store.settle(undo).await, Written::Done);
        assert_eq!(admitted("capsule", "h").await.as_deref(), left);
    }
    assert_eq!(admitted("capsule-2", "h").await.as_deref(), Some("r-3"));
}

async fn lists(store: &Both) {
    let t = tenant("list");
    let mut all: Vec<_> = (0..12).map(|n| new_run("list", &format!("r-{n:02}"))).collect();
    all.iter_mut().skip(8).for_each(|run| run.submission = "s-2".into());
    all[3].place = "list-2".into();
    all[11].metadata = json!({"about": "r-11", "more": {"said": "\"about\":"}}).to_string();
    // What no database has to understand.
    all[9].metadata = json!({"about": "r-09", "more": "\0"}).to_string();
    all[8].metadata = "no JSON".into();
    store.submitted(all).await;
    for (n, run) in store.claim(claim_of("list", 5)).await.iter().enumerate() {
        let outcome = Some(json!({"error": {"code": if n % 2 == 0 { "X" } else { "Y" }, "message": "m"}}).to_string());
        let end = Some(End { state: RunState::Failed, outcome, capsule: None });
        assert_eq!(store.commit(Commit { end, ..step(run) }).await, Written::Done);
    }
    let listed = |filter: Filter| {
        let t = t.clone();
        async move {
            let found = store.runs.runs(&t, filter).await.expect("runs");
            found.into_iter().map(|run| run.id).collect::<Vec<_>>()
        }
    };
    let some = || Filter { limit: 3, ..Filter::default() };
    assert_eq!(listed(some()).await, ["r-11", "r-10", "r-09"]);
    assert_eq!(listed(Filter { before: Some("r-09".into()), ..some() }).await, ["r-08", "r-07", "r-06"]);
    let failed = Filter { state: Some(RunState::Failed), ..some() };
    assert_eq!(listed(failed.clone()).await, ["r-05", "r-04", "r-02"]);
    assert_eq!(listed(Filter { before: Some("r-02".into()), ..failed }).await, ["r-01", "r-00"]);
    let of = Filter { submission: Some("s-2".into()), limit: 99, ..some() };
    assert_eq!(listed(of.clone()).await, ["r-11", "r-10", "r-09", "r-08"]);
    assert!(listed(Filter { state: Some(RunState::Running), ..of.clone() }).await.is_empty());
    let narrow =
        Filter { state: Some(RunState::Queued), before: Some("r-11".into()), place: Some("list".into()), ..of };
    assert_eq!(listed(narrow).await, ["r-10", "r-09", "r-08"]);
    assert_eq!(listed(Filter { place: Some("list-2".into()), ..some() }).await, ["r-03"]);
    assert!(listed(Filter::default()).await.is_empty());
    // What is wanted of the metadata is there, whatever else is; what nobody has is null, or not there.
    let only = Filter { only: Some("about"), limit: 4, ..some() };
    let runs = store.runs.runs(&t, only).await.expect("runs");
    let texts: Vec<Value> = runs.iter().map(|run| serde_json::from_str(&run.metadata).unwrap_or_default()).collect();
    let about: Vec<&Value> = texts.iter().map(|text| &text["about"]).collect();
    assert_eq!(about, [&json!("r-11"), &json!("r-10"), &json!("r-09"), &json!(null)]);
    for (only, found) in [("about", [json!("r-11"), json!("r-10")]), ("nothing", [json!(null), json!(null)])] {
        let filter = Filter { state: Some(RunState::Queued), only: Some(only), limit: 2, ..some() };
        let runs = store.runs.runs(&t, filter).await.expect("runs");
        let metadata = |run: &Run| serde_json::from_str::<Value>(&run.metadata).expect("JSON")[only].clone();
        assert_eq!(runs.iter().map(metadata).collect::<Vec<_>>(), found);
    }

    let code = |code: &str| Some(code.to_owned());
    let counts = store.runs.counts(&t).await.expect("counts");
    let expected = [(RunState::Failed, code("X"), 3), (RunState::Failed, code("Y"), 2), (RunState::Queued, None, 7)];
    assert_eq!(counts, expected);
    let named = |prefix: &'static str| {
        let t = t.clone();
        async move {
            let found = store.runs.runs_named(&t, prefix).await.expect("runs");
            found.into_iter().map(|run| run.id).collect::<Vec<_>>()
        }
    };
    assert_eq!(named("r-1").await, ["r-10", "r-11"]);
    assert_eq!(named("r-").await, ["r-00", "r-01"]);
    assert_eq!(named("r-11").await, ["r-11"]);
    assert!(named("R-11").await.is_empty() && named("r-12").await.is_empty() && named("%").await.is_empty());
}

async fn asked_to_stop(store: &Both) {
    let t = tenant("stop");
    store.submitted((0..4).map(|n| new_run("stop", &format!("r-{n}"))).collect()).await;
    let ask = |id: &'static str| store.runs.ask_to_cancel(&t, id);
    assert_eq!(ask("r-0").await.expect("an answer"), Written::Lost);
    let mut runs = store.claim(Claim { lease_ms: 0, ..claim_of("stop", 3) }).await;
    assert_eq!(ask("r-1").await.expect("an answer"), Written::Done);
    assert_eq!(ask("r-9").await.expect("an answer"), Written::Lost);
    assert_eq!(store.runs.ask_to_cancel(&tenant("another"), "r-1").await.expect("an answer"), Written::Lost);
    runs[2] = store.claim(Claim { runs_max: 3, ..claim_of("stop", 3) }).await.swap_remove(2);
    let mut mine: Vec<_> = runs.iter().map(held).collect();
    mine[0].epoch = 2;
    mine[1].epoch = 2;
    let mut old = mine.clone();
    old[2].epoch = 1;
    old.push(Held { run: "r-9".into(), ..old[2].clone() });
    let noted =
        |all: Vec<actum_ledger::run::Renewed>| all.into_iter().map(|r| (r.run, r.lost, r.cancel)).collect::<Vec<_>>();
    let row = |run: &str, lost, cancel| (run.to_owned(), lost, cancel);
    let looked = store.runs.look_after(&mine).await.expect("an answer");
    assert_eq!(noted(looked), [row("r-1", false, true)]);
    let looked = store.runs.look_after(&old).await.expect("an answer");
    assert_eq!(noted(looked), [row("r-1", false, true), row("r-2", true, false), row("r-9", true, false)]);
    let before = store.run("stop", "r-0").await;
    assert_eq!(store.runs.look_after(&[]).await.expect("an answer"), []);
    assert_eq!(store.run("stop", "r-0").await, before);
    let renewed = store.runs.renew("worker-1".into(), LONG_MS, old).await.expect("an answer");
    assert_eq!(
        noted(renewed),
        [row("r-0", false, false), row("r-1", false, true), row("r-2", true, false), row("r-9", true, false)]
    );
}

async fn tenants_do_not_see_each_other(store: &Both) {
    let (alice, bob) = (tenant("alice"), tenant("bob"));
    let of = |name: &str| NewRun { place: "shared".into(), ..new_run(name, "r-1") };
    store.submitted(vec![of("alice")]).await;
    store.submitted(vec![NewRun { metadata: "bob's".into(), ..of("bob") }]).await;
    // Bob's waits for a run that only Alice has.
    store.submitted(vec![of("alice")].into_iter().map(|run| NewRun { id: "r-2".into(), ..run }).collect()).await;
    let waits = NewRun { id: "r-3".into(), depends_on: vec!["r-2".into()], ..of("bob") };
    store.submitted(vec![waits]).await;
    // A place is served for whoever has work there.
    let taken = store.claim(claim_of("shared", 9)).await;
    let keys: Vec<_> = taken.iter().map(|run| (run.tenant.as_str(), run.id.as_str())).collect();
    assert_eq!(keys, [("alice", "r-1"), ("bob", "r-1"), ("alice", "r-2")]);
    for run in taken.iter().filter(|run| run.tenant == alice) {
        assert_eq!(store.commit(end(run, RunState::Succeeded)).await, Written::Done);
    }
    let filter = || Filter { limit: 9, ..Filter::default() };
    let bobs = store.runs.runs(&bob, filter()).await.expect("runs");
    assert_eq!(ids(&bobs), ["r-3", "r-1"]);
    assert_eq!((bobs[0].state, bobs[1].metadata.as_str()), (RunState::Blocked, "bob's"));
    assert_eq!(store.runs.counts(&bob).await.expect("counts").len(), 2);
    assert!(store.runs.events(&bob, "r-1", 0).await.expect("events").is_empty());
    assert!(store.runs.runs_named(&bob, "r-2").await.expect("runs").is_empty());
    assert!(store.runs.dependencies(&bob, "r-3").await.expect("dependencies").is_empty());
    assert_eq!(store.runs.runs(&alice, filter()).await.expect("runs").len(), 2);
}
