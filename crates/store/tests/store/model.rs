//! Random histories against a naive model of the rules: every store must answer as the model does, however the
//! documents fall into batches.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use actum_ledger::Journal;
use actum_ledger::journal::Outcome;
use actum_store::{Location, Older, open};
use actum_testkit::event::{event, signal, submission};
use actum_testkit::folder::Folder;
use actum_testkit::memory::Memory;
use actum_testkit::postgres::shared_url;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use serde_json::{Value, json};

/// One event, in the terms of the seed.
#[derive(Debug, Clone)]
struct Step {
    tenant: &'static str,
    execution: &'static str,
    attempt: u64,
    state: &'static str,
    coherence: &'static str,
    policy: &'static str,
    dry_run: bool,
    /// The error is COHERENCE_BLOCKED, not retryable.
    blocked: bool,
    target: &'static str,
    dependency: &'static str,
}

impl Step {
    fn document(&self) -> Value {
        let mut document = event(self.tenant, self.execution, self.attempt, self.state);
        document["payload"]["coherenceStatus"] = json!(self.coherence);
        document["payload"]["coherencePolicy"] = json!(self.policy);
        document["payload"]["dryRun"] = json!(self.dry_run);
        document["payload"]["target"] = json!(self.target);
        document["lineage"]["dependsOnLedgerIds"] = json!([self.dependency]);
        if self.state == "failed" && self.blocked {
            document["payload"]["error"] = json!({"code": "COHERENCE_BLOCKED", "message": "m", "retryable": false});
        }
        document
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    use proptest::sample::select;
    let step = (
        (select(vec!["a", "a", "b"]), select(vec!["x", "y"]), 1..=3_u64),
        select(vec!["planned", "planned", "running", "running", "succeeded", "failed", "cancelled"]),
        select(vec!["coherent", "coherent", "coherent", "partial", "stale"]),
        (select(vec!["block", "draft_only"]), any::<bool>(), any::<bool>()),
        (
            select(vec!["here", "here", "here", "there"]),
            select(vec!["signal", "signal", "signal", "signal", "late", "nowhere"]),
        ),
    );
    let step = step.prop_map(|((tenant, execution, attempt), state, coherence, rest, (target, dependency))| {
        let (policy, dry_run, blocked) = rest;
        Step { tenant, execution, attempt, state, coherence, policy, dry_run, blocked, target, dependency }
    });
    proptest::collection::vec(step, 1..40)
}

/// The rules, read off the seed and the decisions, without a thought for speed.
#[derive(Default)]
struct Model {
    /// (tenant, execution, attempt, state) → document.
    recorded: BTreeMap<(String, String, u64, String), Value>,
    /// (tenant, execution) → last state and attempt.
    last: BTreeMap<(String, String), (String, u64)>,
}

impl Model {
    fn answer(&mut self, step: &Step) -> &'static str {
        let failed_block = step.state == "failed" && step.blocked;
        // Section 7: stale must be failed with COHERENCE_BLOCKED, retryable false.
        if step.coherence == "stale" && !failed_block {
            return "VALIDATION_ERROR";
        }
        let identity = (step.tenant.to_owned(), step.execution.to_owned(), step.attempt, step.state.to_owned());
        if let Some(before) = self.recorded.get(&identity) {
            let same = ["payload", "lineage"].iter().all(|part| before[part] == step.document()[part]);
            return if same { "idempotent" } else { "IDEMPOTENCY_CONFLICT" };
        }
        if step.dependency != "signal" {
            return "UNKNOWN_LINEAGE";
        }
        let blocks = step.coherence == "stale" || (step.coherence == "partial" && step.policy == "block");
        let key = (step.tenant.to_owned(), step.execution.to_owned());
        let allowed = match self.last.get(&key).map(|(s, a)| (s.as_str(), *a)) {
            None => step.state == "planned" || (step.state == "failed" && blocks),
            Some(("planned", a)) => step.state == "running" && step.attempt == a,
            Some(("running", a)) => ["succeeded", "failed", "cancelled"].contains(&step.state) && step.attempt == a,
            Some(("failed", a)) => ["planned", "running"].contains(&step.state) && step.attempt > a,
            Some(_) => false,
        };
        if !allowed {
            return "INVALID_TRANSITION";
        }
        let gate = match (step.coherence, step.dry_run) {
            _ if blocks => failed_block,
            ("coherent", false) => !["running", "succeeded"].contains(&step.state),
            ("partial", false) => step.state != "succeeded",
            _ => true,
        };
        if !gate {
            return "COHERENCE_BLOCKED";
        }
        self.recorded.insert(identity, step.document());
        self.last.insert(key, (step.state.to_owned(), step.attempt));
        "created"
    }
}

fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Created { .. } => "created",
        Outcome::Idempotent { .. } => "idempotent",
        Outcome::Refused(refusal) => refusal.code.name(),
    }
}

/// Plays a history under names of its own, so that one store serves many histories.
async fn play(journal: &Arc<dyn Journal>, history: usize, steps: &[Step], batch: usize) -> Vec<&'static str> {
    let rename = |name: &str| format!("h{history}-{name}");
    for tenant in ["a", "b"] {
        let mut late = signal(&rename(tenant), "late");
        late["createdAt"] = json!("2025-01-19T10:00:00.001Z");
        for document in [signal(&rename(tenant), "signal"), late] {
            journal.append(submission(document)).await.unwrap();
        }
    }
    let mut words = Vec::new();
    for some in steps.chunks(batch) {
        let waiting: Vec<_> = some
            .iter()
            .map(|step| {
                let mut document = step.document();
                document["tenantId"] = json!(rename(step.tenant));
                journal.append(submission(document))
            })
            .collect();
        for answer in waiting {
            words.push(word(&answer.await.unwrap()));
        }
    }
    words
}

fn check(journal: Arc<dyn Journal>, cases: u32) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (seen, histories) = (RefCell::new(BTreeSet::new()), Cell::new(0));
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    // The same histories every time: a failure repeats.
    let random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    TestRunner::new_with_rng(config, random)
        .run(&(steps(), 1..20_usize), |(steps, batch)| {
            histories.set(histories.get() + 1);
            let mut model = Model::default();
            let expected: Vec<_> = steps.iter().map(|step| model.answer(step)).collect();
            seen.borrow_mut().extend(expected.iter().copied());
            prop_assert_eq!(runtime.block_on(play(&journal, histories.get(), &steps, batch)), expected);
            Ok(())
        })
        .unwrap();
    let seen = seen.into_inner();
    // The histories have been everywhere.
    assert_eq!(seen.len(), 7, "{seen:?}");
}

#[test]
fn memory_answers_as_the_model() {
    check(Arc::new(Memory::default()), 400);
}

#[test]
fn sqlite_answers_as_the_model() {
    let folder = Folder::new();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let store = runtime.block_on(open(&Location::Sqlite(folder.join("actum.db")), Older::Migrate)).unwrap();
    check(store, 200);
}

#[test]
fn postgres_answers_as_the_model() {
    // The pool's connections live on the runtime that opened the store, so it has to outlive the test.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = runtime.block_on(open(&Location::Postgres(shared_url()), Older::Migrate)).unwrap();
    check(store, 100);
}
