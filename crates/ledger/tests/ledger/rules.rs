//! Every rule of the execution event and of the append, against the seed's own examples and a naive model.

use actum_ledger::append::{Book, Decision, Known};
use actum_ledger::draft::{self, Submission};
use actum_ledger::entry::Entry;
use actum_ledger::refusal::{Code, Refusal};
use actum_ledger::time::Moment;
use serde_json::{Value, json};

use crate::{now, refused};

/// The valid example of the RFC.
fn example() -> Value {
    json!({
        "tenantId": "t-001", "robotId": "r-001", "module": "agent-builder", "source": "agent-builder",
        "type": "execution_event", "state": "planned", "createdAt": "2025-01-19T10:15:30.000Z",
        "payload": {
            "executionId": "exec-001", "workflowVersion": "v1", "agentVersion": "v1", "executionContractVersion": "v1",
            "attempt": 1, "target": "site_builder", "action": "plan_site_plan",
            "snapshotAt": "2025-01-19T10:00:00.000Z", "coherenceStatus": "coherent", "dryRun": false
        },
        "lineage": {"dependsOnLedgerIds": ["led-100", "led-200"]}
    })
}

fn signal(id: &str, created_at: &str) -> Value {
    json!({"id": id, "tenantId": "t-001", "module": "m", "source": "s", "type": "signal", "createdAt": created_at, "payload": {}})
}

fn paths(value: Value) -> Vec<String> {
    let refusal = refused(value);
    assert_eq!(refusal.code, Code::Validation);
    refusal.violations.into_iter().map(|v| v.path).collect()
}

/// The example with one place changed; `null` removes it.
fn with(path: &str, value: Value) -> Value {
    let mut event = example();
    put(&mut event, path, value);
    event
}

fn put(event: &mut Value, path: &str, value: Value) {
    let (parent, key) = path.rsplit_once('.').map_or(("", path), |(p, k)| (p, k));
    let parent =
        event.pointer_mut(&if parent.is_empty() { String::new() } else { format!("/{}", parent.replace('.', "/")) });
    let parent = parent.unwrap().as_object_mut().unwrap();
    if value.is_null() {
        parent.remove(key);
    } else {
        parent.insert(key.to_owned(), value);
    }
}

/// A book and a clock: the smallest store there is.
#[derive(Default)]
struct Ledger {
    book: Book,
    bodies: Vec<Vec<u8>>,
}

impl Ledger {
    fn with_example_dependencies() -> Self {
        let mut ledger = Self::default();
        for id in ["led-100", "led-200"] {
            assert_eq!(ledger.append(signal(id, "2025-01-19T09:00:00Z")), Ok(true));
        }
        ledger
    }

    /// Whether it was created (or idempotent), or the code of the refusal.
    fn append(&mut self, value: Value) -> Result<bool, Code> {
        self.try_append(value).map_err(|r| r.code)
    }

    fn try_append(&mut self, value: Value) -> Result<bool, Refusal> {
        let draft = match draft::read_value(value, now()) {
            Submission::Draft(draft) => draft,
            Submission::Rejected(rejection) => return Err(rejection.refusal),
        };
        let n = self.bodies.len();
        match self.book.decide(&draft, || format!("fresh-{n}"), &Moment::new(now())) {
            Decision::Append(appended) => {
                self.bodies.push(appended.body.to_vec());
                Ok(true)
            }
            Decision::Idempotent { .. } => Ok(false),
            Decision::Refuse(refusal) => Err(refusal),
        }
    }
}

#[test]
fn the_rfcs_valid_example_is_accepted_once_its_dependencies_exist() {
    assert_eq!(Ledger::default().append(example()), Err(Code::UnknownLineage));
    let mut ledger = Ledger::with_example_dependencies();
    assert_eq!(ledger.append(example()), Ok(true));
    assert_eq!(ledger.append(example()), Ok(false));
}

#[test]
fn the_rfcs_invalid_example_is_refused_for_both_reasons() {
    let mut event = with("state", json!("failed"));
    put(&mut event, "payload.coherenceStatus", json!("stale"));
    put(&mut event, "payload.error", json!({"code": "MODEL_OUTPUT_INVALID", "message": "bad", "retryable": true}));
    put(&mut event, "lineage.dependsOnLedgerIds", json!([]));
    assert_eq!(paths(event), ["payload.error.code", "payload.error.retryable", "lineage.dependsOnLedgerIds"]);
}

#[test]
fn each_required_field_is_required_and_typed() {
    let required = [
        "tenantId",
        "robotId",
        "module",
        "source",
        "type",
        "state",
        "createdAt",
        "payload",
        "lineage",
        "payload.executionId",
        "payload.workflowVersion",
        "payload.agentVersion",
        "payload.executionContractVersion",
        "payload.attempt",
        "payload.target",
        "payload.action",
        "payload.snapshotAt",
        "payload.coherenceStatus",
        "payload.dryRun",
        "lineage.dependsOnLedgerIds",
    ];
    for path in required {
        assert!(paths(with(path, Value::Null)).iter().any(|p| p == path), "{path} missing");
        assert!(paths(with(path, json!([[]]))).iter().any(|p| p.starts_with(path)), "{path} of another type");
        assert!(paths(with(path, json!(""))).iter().any(|p| p == path), "{path} empty");
    }
}

#[test]
fn each_field_rule_has_a_violation_of_its_own() {
    let cases: &[(&str, Value, &str)] = &[
        ("module", json!("builder"), "module"),
        ("source", json!("agent-Builder"), "source"),
        ("type", json!("Execution-Event"), "type"),
        ("state", json!("done"), "state"),
        ("createdAt", json!("2025-01-19"), "createdAt"),
        ("createdAt", json!("2025-01-19T09:59:59Z"), "payload.snapshotAt"),
        ("createdAt", json!("2026-01-01T00:05:01Z"), "createdAt"),
        ("tenantId", json!(" "), "tenantId"),
        ("robotId", json!("a\u{0}b"), "robotId"),
        ("id", json!("mine"), "id"),
        ("seq", json!(1), "seq"),
        ("payload.executionContractVersion", json!("v2"), "payload.executionContractVersion"),
        ("payload.attempt", json!(0), "payload.attempt"),
        ("payload.attempt", json!(1.5), "payload.attempt"),
        ("payload.attempt", json!("1"), "payload.attempt"),
        ("payload.attempt", json!(-1), "payload.attempt"),
        ("payload.snapshotAt", json!("yesterday"), "payload.snapshotAt"),
        ("payload.snapshotAt", json!("2025-01-19T10:15:30.001Z"), "payload.snapshotAt"),
        ("payload.coherenceStatus", json!("good"), "payload.coherenceStatus"),
        ("payload.coherencePolicy", json!("ignore"), "payload.coherencePolicy"),
        ("payload.dryRun", json!("false"), "payload.dryRun"),
        ("payload.result", json!("text"), "payload.result"),
        ("payload.externalRefs", json!([]), "payload.externalRefs"),
        ("payload.durationMs", json!(-1), "payload.durationMs"),
        ("payload.durationMs", json!("1"), "payload.durationMs"),
        ("payload.error", json!({"code": "X", "message": "m", "retryable": true}), "payload.error"),
        ("payload.cancelReason", json!("because"), "payload.cancelReason"),
        ("lineage.dependsOnLedgerIds", json!(["led-100", ""]), "lineage.dependsOnLedgerIds[1]"),
        ("lineage.dependsOnLedgerIds", json!(["led-100", 7]), "lineage.dependsOnLedgerIds[1]"),
        ("lineage.dependsOnLedgerIds", json!("led-100"), "lineage.dependsOnLedgerIds"),
        ("lineage.rerunOfExecutionId", json!(""), "lineage.rerunOfExecutionId"),
        ("lineage.supersedes", json!([""]), "lineage.supersedes[0]"),
        ("payload.result", json!({"a": [1, 1e17]}), "payload.result.a[1]"),
        ("lineage.dependsOnLedgerIds", json!(["led-100", "a\u{0}b"]), "lineage.dependsOnLedgerIds[1]"),
        ("lineage.weight", json!(-9007199254740994.0), "lineage.weight"),
    ];
    for (path, value, expected) in cases {
        assert_eq!(paths(with(path, value.clone())), [*expected], "{path} = {value}");
    }
}

#[test]
fn what_each_state_must_and_must_not_carry() {
    let error = json!({"code": "X", "message": "m", "retryable": true});
    assert_eq!(paths(with("state", json!("failed"))), ["payload.error"]);
    assert_eq!(paths(with("state", json!("cancelled"))), ["payload.cancelReason"]);
    for (state, field, value) in
        [("failed", "payload.error", error), ("cancelled", "payload.cancelReason", json!("user"))]
    {
        let mut event = with("state", json!(state));
        put(&mut event, field, value);
        assert!(matches!(draft::read_value(event.clone(), now()), Submission::Draft(_)));
        put(&mut event, "payload.result", json!({}));
        assert_eq!(paths(event), ["payload.result"]);
    }
    for broken in [json!({}), json!({"code": "", "message": 1, "retryable": "no"})] {
        let mut event = with("state", json!("failed"));
        put(&mut event, "payload.error", broken);
        assert_eq!(paths(event), ["payload.error.code", "payload.error.message", "payload.error.retryable"]);
    }
    // A success without a result is allowed: SHOULD is not MUST.
    assert!(matches!(draft::read_value(with("state", json!("succeeded")), now()), Submission::Draft(_)));
    // Stale may only be failed.
    let stale = paths(with("payload.coherenceStatus", json!("stale")));
    assert_eq!(stale, ["payload.coherenceStatus", "payload.error.code", "payload.error.retryable"]);
}

#[test]
fn other_entries_are_free_in_form_but_not_in_name() {
    let ok = |value| matches!(draft::read_value(value, now()), Submission::Draft(_));
    assert!(ok(signal("led-1", "2025-01-01T00:00:00Z")));
    assert!(ok(
        json!({"tenantId": "t", "module": "m", "source": "s", "type": "workspace_snapshot", "payload": {"files": 3}, "state": "draft"})
    ));
    for (field, value) in [
        ("type", json!("Signal")),
        ("type", json!("1signal")),
        ("type", json!("a-b")),
        ("id", json!("a b")),
        ("id", json!("x".repeat(129))),
        ("id", json!("")),
        ("payload", json!([])),
        ("module", json!("")),
        ("state", json!("")),
        ("createdAt", json!("soon")),
        ("extra", json!(1)),
        ("lineage", json!([])),
        ("id", json!("event:0123456789abcdef0123456789abcdef")),
    ] {
        let mut entry = signal("led-1", "2025-01-01T00:00:00Z");
        entry[field] = value.clone();
        assert_eq!(paths(entry), [field], "{field} = {value}");
    }
    assert_eq!(paths(json!([1])), [""]);
}

#[test]
fn idempotency_compares_payload_and_lineage_and_names_the_differing_paths() {
    let mut ledger = Ledger::with_example_dependencies();
    ledger.append(example()).unwrap();
    // The producer's clock, the order and repetition of dependencies, and the spelling of a number carry no meaning.
    let mut same = with("lineage.dependsOnLedgerIds", json!(["led-200", "led-100", "led-200"]));
    put(&mut same, "createdAt", json!("2025-01-19T10:16:00Z"));
    put(&mut same, "payload.attempt", json!(1.0));
    assert_eq!(ledger.append(same), Ok(false));
    let mut other = with("payload.target", json!("elsewhere"));
    put(&mut other, "payload.extra", json!({"a": 1}));
    put(&mut other, "lineage.dependsOnLedgerIds", json!(["led-100"]));
    let refusal = ledger.try_append(other).unwrap_err();
    assert_eq!(refusal.code, Code::IdempotencyConflict);
    let mut paths: Vec<_> = refusal.violations.iter().map(|v| v.path.as_str()).collect();
    paths.sort_unstable();
    assert_eq!(paths, ["lineage.dependsOnLedgerIds", "payload.extra", "payload.target"]);
    // An explicit null is another document.
    assert_eq!(
        ledger.append({
            let mut e = example();
            e["payload"]["note"] = Value::Null;
            e
        }),
        Err(Code::IdempotencyConflict)
    );
    // Another robot, tenant, attempt or state is another identity.
    assert_eq!(ledger.append(with("robotId", json!("r-002"))), Ok(true));
    assert_eq!(ledger.append(with("payload.attempt", json!(2))), Err(Code::InvalidTransition));
    assert_eq!(ledger.append(with("tenantId", json!("t-002"))), Err(Code::UnknownLineage));
}

#[test]
fn an_entry_that_brings_its_id_is_idempotent_too() {
    let mut ledger = Ledger::default();
    assert_eq!(ledger.append(signal("a", "2025-01-01T00:00:00Z")), Ok(true));
    assert_eq!(ledger.append(signal("a", "2025-01-02T00:00:00Z")), Ok(false));
    let mut other = signal("a", "2025-01-01T00:00:00Z");
    other["type"] = json!("noise");
    assert_eq!(ledger.append(other), Err(Code::IdempotencyConflict));
    // Without an id each document is an entry of its own.
    let mut anonymous = signal("a", "2025-01-01T00:00:00Z");
    anonymous.as_object_mut().unwrap().remove("id");
    assert_eq!(ledger.append(anonymous.clone()), Ok(true));
    assert_eq!(ledger.append(anonymous), Ok(true));
}

#[test]
fn a_dependency_must_exist_for_the_tenant_and_not_be_younger_than_the_snapshot() {
    let mut ledger = Ledger::default();
    ledger.append(signal("led-100", "2025-01-19T10:00:00.000Z")).unwrap();
    ledger.append(signal("led-200", "2025-01-19T12:00:00.001+02:00")).unwrap();
    let refusal = ledger.try_append(example()).unwrap_err();
    assert_eq!(refusal.code, Code::UnknownLineage);
    assert_eq!(refusal.violations.len(), 1);
    assert!(refusal.message.contains("\"led-200\" was created after snapshotAt"), "{}", refusal.message);
    assert_eq!(ledger.append(with("lineage.dependsOnLedgerIds", json!(["led-100"]))), Ok(true));
}

#[test]
fn codes_are_checked_in_their_order() {
    let mut ledger = Ledger::with_example_dependencies();
    ledger.append(example()).unwrap();
    // Broken form, conflicting identity, unknown lineage, wrong transition and blocked gate at once: form wins.
    let mut event = with("payload.target", json!("x"));
    put(&mut event, "lineage.dependsOnLedgerIds", json!(["nowhere"]));
    put(&mut event, "payload.dryRun", json!("no"));
    assert_eq!(ledger.append(event.clone()), Err(Code::Validation));
    put(&mut event, "payload.dryRun", json!(false));
    assert_eq!(ledger.append(event.clone()), Err(Code::IdempotencyConflict));
    put(&mut event, "state", json!("succeeded"));
    assert_eq!(ledger.append(event.clone()), Err(Code::UnknownLineage));
    put(&mut event, "lineage.dependsOnLedgerIds", json!(["led-100"]));
    assert_eq!(ledger.append(event.clone()), Err(Code::InvalidTransition));
    put(&mut event, "state", json!("running"));
    assert_eq!(ledger.append(event), Err(Code::CoherenceBlocked));
}

fn event(state: &str, attempt: u64, coherence: &str, policy: &str, dry_run: bool, blocked: bool) -> Value {
    let mut e = with("state", json!(state));
    put(&mut e, "payload.attempt", json!(attempt));
    put(&mut e, "payload.coherenceStatus", json!(coherence));
    put(&mut e, "payload.coherencePolicy", json!(policy));
    put(&mut e, "payload.dryRun", json!(dry_run));
    match state {
        "failed" if blocked => {
            put(&mut e, "payload.error", json!({"code": "COHERENCE_BLOCKED", "message": "m", "retryable": false}))
        }
        "failed" => put(&mut e, "payload.error", json!({"code": "X", "message": "m", "retryable": true})),
        "cancelled" => put(&mut e, "payload.cancelReason", json!("PARTIAL_REQUIRES_REVIEW")),
        _ => {}
    }
    e
}

#[test]
fn the_paths_through_the_matrix() {
    let run = |coherence, policy, dry_run, states: &[(&str, u64, bool)]| {
        let mut ledger = Ledger::with_example_dependencies();
        states.iter().map(|(s, a, b)| ledger.append(event(s, *a, coherence, policy, dry_run, *b))).collect::<Vec<_>>()
    };
    let created = Ok(true);
    let full = [("planned", 1, false), ("running", 1, false), ("succeeded", 1, false)];
    assert_eq!(run("coherent", "block", true, &full), [created; 3]);
    assert_eq!(
        run("coherent", "block", false, &full),
        [created, Err(Code::CoherenceBlocked), Err(Code::InvalidTransition)]
    );
    assert_eq!(run("partial", "draft_only", true, &full), [created; 3]);
    assert_eq!(run("partial", "draft_only", false, &full), [created, created, Err(Code::CoherenceBlocked)]);
    let cancel = [("planned", 1, false), ("running", 1, false), ("cancelled", 1, false), ("planned", 2, false)];
    assert_eq!(run("partial", "draft_only", false, &cancel), [created, created, created, Err(Code::InvalidTransition)]);
    let block = [("planned", 1, false), ("failed", 1, false), ("failed", 1, true)];
    assert_eq!(
        run("partial", "block", true, &block),
        [Err(Code::CoherenceBlocked), Err(Code::CoherenceBlocked), created]
    );
    assert_eq!(run("stale", "block", true, &[("failed", 1, true)]), [created]);
    assert_eq!(run("stale", "block", true, &[("planned", 1, false)]), [Err(Code::Validation)]);
    let retry = [
        ("planned", 1, false),
        ("running", 1, false),
        ("failed", 1, false),
        ("running", 1, false),
        ("running", 2, false),
        ("failed", 2, false),
        ("planned", 3, false),
        ("running", 3, false),
        ("succeeded", 3, false),
        ("running", 4, false),
    ];
    let expected = [
        created,
        created,
        created,
        Ok(false),
        created,
        created,
        created,
        created,
        created,
        Err(Code::InvalidTransition),
    ];
    assert_eq!(run("coherent", "block", true, &retry), expected);
}

#[test]
fn entries_are_canonical_chained_and_keep_the_document_as_it_was() {
    let mut ledger = Ledger::with_example_dependencies();
    ledger.append(example()).unwrap();
    let mut prev = "0".repeat(64);
    for (i, body) in ledger.bodies.iter().enumerate() {
        let value: Value = serde_json::from_slice(body).unwrap();
        assert_eq!(&actum_contract::canon::canonical(&value).unwrap(), body);
        let entry = Entry::open(body).unwrap();
        assert_eq!((entry.seq, entry.prev.to_hex()), (i as u64, prev));
        prev = entry.hash.to_hex();
    }
    let entry = Entry::open(&ledger.bodies[2]).unwrap();
    assert_eq!(entry.payload, example()["payload"]);
    assert_eq!(entry.lineage, Some(example()["lineage"].clone()));
    assert_eq!(entry.created_at, "2025-01-19T10:15:30.000Z");
    assert_eq!(entry.recorded_at, "2026-01-01T00:00:00.000000Z");
    let newer = String::from_utf8(ledger.bodies[2].clone()).unwrap().replace("\"format\":1", "\"format\":2");
    assert!(Entry::open(newer.as_bytes()).unwrap_err().to_string().contains("use a newer one"));
}

#[test]
fn text_that_is_not_json_is_refused_with_its_position() {
    let deep = "[".repeat(1000);
    let long = "x".repeat(actum_contract::limit::EVENT_BYTES_MAX + 1);
    for (text, line) in [
        ("{\"a\":\n1,\n\"a\":2}", 3),
        ("{\"a\": ", 1),
        ("", 1),
        ("\u{feff}{}", 1),
        (deep.as_str(), 1),
        (long.as_str(), 1),
    ] {
        let Submission::Rejected(rejection) = draft::read(text.as_bytes(), now()) else { panic!("{text}") };
        assert_eq!(rejection.refusal.violations[0].line, Some(line), "{}", rejection.refusal);
        assert!(rejection.document.len() <= actum_contract::limit::DEAD_LETTER_BYTES_MAX);
    }
}

#[test]
fn a_known_entry_without_its_text_is_never_taken_for_the_same() {
    let mut book = Book::default();
    let tenant = actum_contract::Tenant::new("t-001").unwrap();
    book.learn_entry(&tenant, "a".into(), Known { seq: 0, created_ns: 0, body: None });
    let Submission::Draft(draft) = draft::read_value(signal("a", "2025-01-01T00:00:00Z"), now()) else { panic!() };
    assert!(
        matches!(book.decide(&draft, String::new, &Moment::new(now())), Decision::Refuse(r) if r.code == Code::IdempotencyConflict)
    );
}
