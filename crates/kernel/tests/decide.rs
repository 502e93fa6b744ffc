//! The kernel against a world that answers as a test says: every mode, every correction path, every limit, and that a
//! run can be taken up again after any event.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;

use actum_contract::schema::Mode;
use actum_contract::work::{WorkItem, read_item};
use actum_contract::{ExecutionConfig, Layers, Partial, resolve};
use actum_kernel::{
    Acted, Agreed, Checked, Effect, End, Event, Failed, GoverningContract, Kind, Phase, Phases, Plan, SetBack, State,
    Status, Step, Tested, ToolOp, Totals, Verdict, decide, next,
};
use proptest::prelude::*;
use serde_json::json;

fn config(words: &[&str]) -> ExecutionConfig {
    let requested = Partial::read_words(words.iter().copied()).unwrap();
    resolve(Layers { persisted: None, requested: &requested, env: &BTreeMap::new() }).unwrap().config
}

fn item(extra: serde_json::Value) -> WorkItem {
    let mut item = json!({"id": "i", "agent_id": "a", "description": "d"});
    item.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    read_item(&item).unwrap()
}

fn agreed(words: &[&str], extra: serde_json::Value) -> Agreed {
    let phases = Phases { plan: false, correct: true };
    let contract_hash = words.join(" ");
    Agreed { item: item(extra), contract_hash, config: config(words), phases, draft: false }
}

/// What the world answers; the last answer of a list is given again and again.
#[derive(Debug, Clone)]
struct World {
    steps: Vec<&'static str>,
    ends: Vec<End>,
    totals: Vec<Totals>,
    ops: usize,
    light: Vec<usize>,
    heavy: Vec<usize>,
    same_message: bool,
    tests: Option<bool>,
    conflict: bool,
    duplicate: bool,
    missing: bool,
}

impl Default for World {
    fn default() -> Self {
        Self {
            steps: Vec::new(),
            ends: vec![End::Done],
            totals: vec![Totals {
                changed: 1,
                diff_bytes: 10,
                largest_bytes: 5,
                files: 1,
                deltas: 1,
                ..Totals::default()
            }],
            ops: 0,
            light: vec![0],
            heavy: vec![0],
            same_message: false,
            tests: Some(true),
            conflict: false,
            duplicate: false,
            missing: false,
        }
    }
}

fn shift<T: Clone>(list: &mut Vec<T>) -> T {
    if list.len() > 1 { list.remove(0) } else { list[0].clone() }
}

impl World {
    fn failures(&mut self, heavy: bool, said: &mut usize) -> Vec<Failed> {
        let number = shift(if heavy { &mut self.heavy } else { &mut self.light });
        *said += 1;
        let word = if self.same_message { "same".to_owned() } else { "x".repeat(*said) };
        let kind = if heavy { Kind::Build } else { Kind::Content };
        (0..number).map(|n| Failed { check: "c".repeat(n + 1), kind, path: None, message: word.clone() }).collect()
    }

    fn answer(&mut self, effect: &Effect, said: &mut usize) -> Event {
        match effect {
            Effect::Freeze => Event::Frozen { before: "b".into(), commit: None },
            Effect::Stage => Event::Staged { stage: "s".into(), view: None },
            Effect::Plan { .. } => Event::Planned(Plan {
                steps: self.steps.iter().map(|id| Step { id: (*id).into(), description: String::new() }).collect(),
                in_time: true,
                took_ms: 1,
                ..Plan::default()
            }),
            Effect::Act { act, .. } => {
                *said += 1;
                Event::Acted(Box::new(Acted {
                    act: act.clone(),
                    end: shift(&mut self.ends),
                    state: format!("t{said}"),
                    changed: Vec::new(),
                    totals: shift(&mut self.totals),
                    ops: (0..self.ops).map(|_| op()).collect(),
                    took_ms: 1,
                    answers: None,
                }))
            }
            Effect::Check { heavy, .. } => {
                let failures = self.failures(*heavy, said);
                Event::Checked(Checked { heavy: *heavy, failures, timed_out: false, took_ms: 1 })
            }
            Effect::Weigh => Event::Weighed {
                capsule: "c".into(),
                duplicate_of: self.duplicate.then(|| "earlier".into()),
                missing: if self.missing { vec!["out".into()] } else { Vec::new() },
            },
            Effect::Test { .. } => Event::Tested(Tested {
                passed: self.tests == Some(true),
                timed_out: self.tests.is_none(),
                exit_code: Some(0),
                tests_passed: None,
                tests_failed: None,
                output: String::new(),
                took_ms: 1,
            }),
            Effect::Publish if self.conflict => Event::Conflicted { paths: vec!["p".into()] },
            Effect::Publish => Event::Published { publication: "p".into(), drift: Vec::new(), after: None },
            Effect::Finish(_) => unreachable!("an end is not performed"),
        }
    }
}

fn op() -> ToolOp {
    ToolOp { name: "t".into(), input: json!({}), status: "success".into(), exit_code: None, output: None }
}

/// Runs to the end: how it ended, the words of what was done, and the state.
fn play(agreed: Agreed, mut world: World) -> (Verdict, Vec<String>, State, Vec<Event>) {
    let mut state = State::new(agreed.clone());
    let mut events = decide(&mut state, Event::Begun { attempt: 1, worker: "w".into() }).events;
    let (mut done, mut said) = (Vec::new(), 0);
    loop {
        // Whoever has the journal is where we are.
        assert_eq!(State::fold(agreed.clone(), &events), state, "after {events:#?}");
        match next(&state).expect("something is due") {
            Effect::Finish(verdict) => return (verdict, done, state, events),
            effect => {
                done.push(word(&effect));
                let decision = decide(&mut state, world.answer(&effect, &mut said));
                assert_eq!(decision.effects, next(&state).into_iter().collect::<Vec<_>>());
                events.extend(decision.events);
            }
        }
        assert!(done.len() < 200, "does not end: {done:?}");
    }
}

fn word(effect: &Effect) -> String {
    match effect {
        Effect::Freeze => "freeze".into(),
        Effect::Stage => "stage".into(),
        Effect::Plan { .. } => "plan".into(),
        Effect::Act { act, .. } => match &act.correction {
            None => act.step.id.clone(),
            Some(c) => format!("{}{}", if c.heavy { "heavy-correction-" } else { "correction-" }, c.number),
        },
        Effect::Check { heavy: true, .. } => "heavy".into(),
        Effect::Check { heavy: false, .. } => "light".into(),
        Effect::Weigh => "weigh".into(),
        Effect::Test { .. } => "test".into(),
        Effect::Publish => "publish".into(),
        Effect::Finish(_) => "finish".into(),
    }
}

fn all() -> serde_json::Value {
    json!({"validation": {"heavy": [["make"]]}, "test_command": "make test"})
}

fn ended(agreed: Agreed, world: World) -> (Status, Option<String>, Vec<String>) {
    let (verdict, done, ..) = play(agreed, world);
    (verdict.status, verdict.code, done)
}

#[test]
fn a_good_run_goes_the_whole_way_once() {
    let (status, code, done) = ended(agreed(&[], all()), World::default());
    assert_eq!((status, code), (Status::Success, None));
    assert_eq!(done, ["freeze", "stage", "step-1", "light", "heavy", "weigh", "test", "publish"]);
    let mut planned = agreed(&[], json!({}));
    planned.phases.plan = true;
    let (_, _, done) = ended(planned, World { steps: vec!["a", "b"], ..World::default() });
    assert_eq!(done, ["freeze", "stage", "plan", "a", "light", "b", "light", "weigh", "publish"]);
    let mut draft = agreed(&[], json!({}));
    draft.draft = true;
    let (verdict, done, ..) = play(draft, World::default());
    assert!(verdict.kept && !done.contains(&"publish".to_owned()));
}

#[test]
fn every_mode_of_both_validations() {
    for mode in Mode::ALL {
        for heavy in [false, true] {
            let field = if heavy { "heavyValidationMode" } else { "lightValidationMode" };
            let word = format!("{field}={}", mode.name());
            let mut world = World::default();
            // Fails at first; one correction mends it.
            *(if heavy { &mut world.heavy } else { &mut world.light }) = vec![1, 0];
            let (verdict, done, state, _) = play(agreed(&[&word], all()), world);
            let name = if heavy { "heavy" } else { "light" };
            let corrected = done.iter().any(|w| w.contains("correction"));
            assert_eq!(verdict.status, Status::Success, "{word}");
            match mode {
                Mode::Off => assert!(!done.contains(&name.to_owned()) && !corrected, "{word}: {done:?}"),
                Mode::Warn => {
                    assert!(done.contains(&name.to_owned()) && !corrected, "{word}: {done:?}");
                    assert!(state.warnings.iter().any(|w| w.contains(name)), "{word}: {:?}", state.warnings);
                }
                Mode::Enforce => assert!(corrected, "{word}: {done:?}"),
            }
        }
    }
}

#[test]
fn corrections_are_counted_and_end() {
    // Fewer failures each time: converging, until there are no attempts left.
    let light = World { light: vec![9, 8, 7, 6, 5, 4, 3, 2, 1, 0], ..World::default() };
    let (_, code, done) = ended(agreed(&[], json!({})), light.clone());
    assert_eq!(code.as_deref(), Some("LIGHT_VALIDATION_FAILED"));
    assert_eq!(done.iter().filter(|w| w.starts_with("correction")).count(), 5);
    let (_, code, done) = ended(agreed(&["maxRuntimeCorrectionAttempts=0"], json!({})), light);
    assert_eq!((code.as_deref(), done.len()), (Some("LIGHT_VALIDATION_FAILED"), 4));
    let heavy = World { heavy: vec![9, 8, 7, 6, 5, 4], ..World::default() };
    let (_, code, done) = ended(agreed(&[], all()), heavy);
    assert_eq!(code.as_deref(), Some("HEAVY_VALIDATION_FAILED"));
    assert_eq!(done.iter().filter(|w| w.starts_with("heavy-correction")).count(), 3);
    // After each of them the fast checks come first.
    assert_eq!(done[4..8], ["heavy", "heavy-correction-1", "light", "heavy"]);
}

#[test]
fn what_does_not_converge_ends_at_once_or_is_told() {
    for (mode, converges) in [("enforce", false), ("warn", true), ("off", true)] {
        let word = format!("correctionConvergenceMode={mode}");
        // As many as before, then none.
        let world = World { heavy: vec![2, 2, 0], ..World::default() };
        let (verdict, _, state, _) = play(agreed(&[&word], all()), world);
        assert_eq!(verdict.status == Status::Success, converges, "{mode}: {verdict:?}");
        assert_eq!(state.warnings.len(), usize::from(mode == "warn"), "{mode}");
        if !converges {
            assert_eq!(verdict.code.as_deref(), Some("CORRECTION_NOT_CONVERGING"));
        }
    }
    // Fewer, but the same words: the signature covers all of them, so this is another failure.
    let world = World { light: vec![3, 2, 1, 0], same_message: true, ..World::default() };
    assert_eq!(ended(agreed(&[], json!({})), world).0, Status::Success);
    let world = World { light: vec![1, 1], same_message: true, ..World::default() };
    assert_eq!(ended(agreed(&[], json!({})), world).1.as_deref(), Some("CORRECTION_NOT_CONVERGING"));
}

#[test]
fn the_audit_of_corrections() {
    let wide = Totals { changed: 9, diff_bytes: 10, files: 9, deltas: 9, ..Totals::default() };
    let usual = World::default().totals[0].clone();
    for (mode, passes) in [("enforce", false), ("warn", true), ("off", true)] {
        let word = format!("correctionPolicyMode={mode}");
        let world = World { light: vec![1, 0], totals: vec![usual.clone(), wide.clone()], ..World::default() };
        let (verdict, _, state, _) = play(agreed(&[&word], json!({})), world);
        assert_eq!(verdict.status == Status::Success, passes, "{mode}: {verdict:?}");
        assert_eq!(state.warnings.len(), usize::from(mode == "warn"), "{mode}: {:?}", state.warnings);
        if !passes {
            assert_eq!(verdict.code.as_deref(), Some("CORRECTION_POLICY_VIOLATION"));
        }
    }
    let nothing = Totals { changed: 0, files: 1, deltas: 1, ..Totals::default() };
    let world = World { light: vec![1, 0], totals: vec![usual, nothing], ..World::default() };
    assert_eq!(ended(agreed(&[], json!({})), world).1.as_deref(), Some("CORRECTION_POLICY_VIOLATION"));
}

#[test]
fn an_agent_that_cannot_correct_fails_at_once() {
    let mut plain = agreed(&[], json!({}));
    plain.phases.correct = false;
    let (verdict, done, ..) = play(plain, World { light: vec![1], ..World::default() });
    assert_eq!(verdict.code.as_deref(), Some("LIGHT_VALIDATION_FAILED"));
    assert!(verdict.message.unwrap().contains("no phase"), "{done:?}");
}

#[test]
fn every_other_end() {
    let totals = |change: fn(&mut Totals)| {
        let mut totals = World::default().totals[0].clone();
        change(&mut totals);
        World { totals: vec![totals], ..World::default() }
    };
    let failed = End::Failed { exit_code: Some(3), message: "no".into() };
    let rows: Vec<(&str, Status, World, serde_json::Value)> = vec![
        ("AGENT_FAILED", Status::Failure, World { ends: vec![failed], ..World::default() }, json!({})),
        ("TIMEOUT", Status::Timeout, World { ends: vec![End::TimedOut], ..World::default() }, json!({})),
        (
            "ADMISSION_DENIED",
            Status::Denied,
            World { ends: vec![End::OutOfOps { why: None }], ..World::default() },
            json!({}),
        ),
        ("ADMISSION_DENIED", Status::Denied, totals(|t| t.files = 11), json!({})),
        ("ADMISSION_DENIED", Status::Denied, totals(|t| t.deltas = 101), json!({})),
        (
            "ADMISSION_DENIED",
            Status::Denied,
            World { ops: 3, ..World::default() },
            json!({"constraints": {"max_tool_ops": 2}}),
        ),
        ("PROTECTED_FILE", Status::Denied, totals(|t| t.protected.push("AGENTS.md".into())), json!({})),
        ("STEP_LIMIT_EXCEEDED", Status::Failure, totals(|t| t.changed = 16), json!({})),
        ("STEP_LIMIT_EXCEEDED", Status::Failure, totals(|t| t.diff_bytes = 400_001), json!({})),
        ("STEP_LIMIT_EXCEEDED", Status::Failure, totals(|t| t.largest_bytes = 1_500_001), json!({})),
        ("STEP_LIMIT_EXCEEDED", Status::Failure, totals(|t| t.env_files.push(".env".into())), json!({})),
        ("OUTPUT_MISSING", Status::Failure, World { missing: true, ..World::default() }, json!({})),
        ("DUPLICATE_CAPSULE", Status::Denied, World { duplicate: true, ..World::default() }, json!({})),
        ("TESTS_FAILED", Status::Failure, World { tests: Some(false), ..World::default() }, all()),
        ("TIMEOUT", Status::Timeout, World { tests: None, ..World::default() }, all()),
        ("PUBLISH_CONFLICT", Status::Failure, World { conflict: true, ..World::default() }, json!({})),
    ];
    for (wanted, status, world, extra) in rows {
        let (verdict, done, ..) = play(agreed(&[], extra), world);
        assert_eq!((verdict.code.as_deref(), verdict.status), (Some(wanted), status), "{done:?}");
        assert_eq!(verdict.retryable, status != Status::Denied, "{wanted}");
        assert_eq!(verdict.kept, wanted == "PUBLISH_CONFLICT", "{wanted}");
        assert!(wanted == "PUBLISH_CONFLICT" || !done.contains(&"publish".to_owned()), "{wanted}");
    }
    let allowed = totals(|t| t.env_files.push(".env".into()));
    assert_eq!(ended(agreed(&["allowEnvMutation=true"], json!({})), allowed).0, Status::Success);
}

#[test]
fn plans_that_are_none() {
    let plan = |steps: Vec<Step>, in_time, failed: Option<&str>| {
        let mut planned = agreed(&[], json!({}));
        planned.phases.plan = true;
        let mut state = State::new(planned);
        for event in [
            Event::Begun { attempt: 1, worker: "w".into() },
            Event::Frozen { before: "b".into(), commit: None },
            Event::Staged { stage: "s".into(), view: None },
        ] {
            decide(&mut state, event);
        }
        let failed = failed.map(Into::into);
        let decision =
            decide(&mut state, Event::Planned(Plan { steps, in_time, failed, took_ms: 1, ..Plan::default() }));
        match decision.effects.into_iter().next() {
            Some(Effect::Finish(verdict)) => (verdict.status, verdict.code.unwrap()),
            other => panic!("{other:?}"),
        }
    };
    let step = Step { id: "a".into(), description: String::new() };
    assert_eq!(plan(Vec::new(), true, None), (Status::Failure, "PLAN_EMPTY".into()));
    assert_eq!(plan(vec![step], false, None), (Status::Timeout, "PLAN_TIMEOUT".into()));
    assert_eq!(plan(Vec::new(), true, Some("no")), (Status::Failure, "PLAN_FAILED".into()));
}

#[test]
fn another_attempt_goes_on_where_it_can_and_counts_on() {
    // The second step fails: the first stays done.
    let mut planned = agreed(&[], json!({}));
    planned.phases.plan = true;
    let failed = End::Failed { exit_code: Some(1), message: "no".into() };
    let world = World { steps: vec!["a", "b"], ends: vec![End::Done, failed], ..World::default() };
    let (verdict, _, mut state, _) = play(planned.clone(), world.clone());
    assert_eq!(verdict.code.as_deref(), Some("AGENT_FAILED"));
    let after_a = state.current.clone();
    decide(&mut state, Event::Begun { attempt: 2, worker: "w".into() });
    let Some(Effect::Act { act, .. }) = next(&state) else { panic!("{:?}", next(&state)) };
    assert_eq!((act.step.id.as_str(), state.steps_done, &state.current), ("b", 1, &after_a));
    assert_eq!(state.spent_ms, 0, "each attempt has its own time");
    // A fork of it begins there too, under its own first attempt.
    let (_, _, state, _) = play(planned.clone(), world);
    let mut forked = state.forked(planned);
    decide(&mut forked, Event::Begun { attempt: 1, worker: "w".into() });
    let Some(Effect::Act { act, .. }) = next(&forked) else { panic!("{:?}", next(&forked)) };
    assert_eq!(act.step.id, "b");
    // What stood on the wrong ground begins anew; corrections count on.
    let world = World { light: vec![1, 0], conflict: true, ..World::default() };
    let (_, _, mut state, _) = play(agreed(&[], json!({})), world);
    assert_eq!(state.runtime_corrections, 1);
    decide(&mut state, Event::Begun { attempt: 2, worker: "w".into() });
    assert_eq!(next(&state), Some(Effect::Freeze));
    assert_eq!((state.runtime_corrections, state.steps_done, state.before), (1, 0, None));
}

#[test]
fn conflict_before_a_step_keeps_the_finished_steps() {
    let mut planned = agreed(&[], json!({}));
    planned.phases.plan = true;
    let failed = End::Failed { exit_code: Some(1), message: "no".into() };
    let world = World { steps: vec!["a", "b"], ends: vec![End::Done, failed], ..World::default() };
    let (_, _, mut state, mut events) = play(planned.clone(), world);
    let after_a = state.current.clone();
    let conflicted = Event::Conflicted { paths: vec!["p".into()] };
    for event in [Event::Begun { attempt: 2, worker: "w".into() }, conflicted] {
        events.extend(decide(&mut state, event).events);
    }
    let Some(Effect::Finish(verdict)) = next(&state) else { panic!("{:?}", next(&state)) };
    assert_eq!((verdict.code.as_deref(), verdict.kept), (Some("PUBLISH_CONFLICT"), false), "half a result is not kept");
    events.extend(decide(&mut state, Event::Begun { attempt: 3, worker: "w".into() }).events);
    let Some(Effect::Act { act, .. }) = next(&state) else { panic!("{:?}", next(&state)) };
    assert_eq!((act.step.id.as_str(), state.steps_done, &state.current), ("b", 1, &after_a));
    assert_eq!(State::fold(planned, &events), state);
}

/// The audited case: a correction is due, a file of a finished step was changed, and the contract is overridden.
#[test]
fn override_after_a_conflict_before_a_correction_keeps_the_finished_steps() {
    let mut planned = agreed(&["lightValidationMode=enforce"], json!({}));
    planned.phases = Phases { plan: true, correct: true };
    let failed = End::Failed { exit_code: Some(1), message: "no".into() };
    let ends = vec![End::Done, End::Done, failed];
    let world = World { steps: vec!["a", "b"], light: vec![0, 1], ends, ..World::default() };
    let (verdict, _, mut state, _) = play(planned.clone(), world);
    assert_eq!((verdict.code.as_deref(), state.steps_done), (Some("AGENT_FAILED"), 1));
    decide(&mut state, Event::Begun { attempt: 2, worker: "w".into() });
    decide(&mut state, Event::Conflicted { paths: vec!["p".into()] });
    let other = agreed(&["lightValidationMode=off"], json!({}));
    let contract = |agreed: &Agreed| {
        Box::new(GoverningContract { hash: agreed.contract_hash.clone(), config: agreed.config.clone() })
    };
    decide(&mut state, Event::ContractChanged { from: contract(&planned), to: contract(&other) });
    decide(&mut state, Event::Begun { attempt: 3, worker: "w".into() });
    assert!(state.steps_done >= 1, "{:?}", state.phase);
    assert_ne!(state.phase, Phase::Freeze);
}

#[test]
fn a_run_can_be_stopped_anywhere() {
    let (_, _, _, events) = play(agreed(&[], all()), World { light: vec![1, 0], ..World::default() });
    for cut in 1..events.len() - 1 {
        for cancelled in [false, true] {
            let mut state = State::fold(agreed(&[], all()), &events[..cut]);
            if matches!(next(&state), Some(Effect::Finish(_))) {
                continue;
            }
            let decision = decide(&mut state, Event::Stopped { cancelled, reason: "r".into() });
            let Some(Effect::Finish(verdict)) = decision.effects.first() else { panic!("{decision:?}") };
            assert_eq!((verdict.cancelled, verdict.retryable), (cancelled, !cancelled), "after {cut}");
        }
    }
}

fn numbers() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(0usize..4, 1..8)
}

fn modes() -> impl Strategy<Value = Vec<String>> {
    let mode = || proptest::sample::select(vec!["off", "warn", "enforce"]);
    (mode(), mode(), mode(), mode(), 0u64..6, 0u64..4).prop_map(|(light, heavy, policy, converge, runtime, deep)| {
        vec![
            format!("lightValidationMode={light}"),
            format!("heavyValidationMode={heavy}"),
            format!("correctionPolicyMode={policy}"),
            format!("correctionConvergenceMode={converge}"),
            format!("maxRuntimeCorrectionAttempts={runtime}"),
            format!("maxHeavyCorrectionAttempts={deep}"),
        ]
    })
}

proptest! {
    /// Whatever the modes and whatever the world answers: it ends, within its attempts, and the journal tells the state.
    #[test]
    fn every_run_ends_within_its_limits(words in modes(), light in numbers(), heavy in numbers(), same: bool) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let agreed = agreed(&words, all());
        let config = agreed.config.clone();
        let world = World { light, heavy, same_message: same, ..World::default() };
        let (verdict, done, state, _) = play(agreed, world);
        prop_assert!(state.runtime_corrections <= config.max_runtime_correction_attempts);
        prop_assert!(state.heavy_corrections <= config.max_heavy_correction_attempts);
        prop_assert_eq!(verdict.status == Status::Success, done.contains(&"publish".to_owned()));
        let corrected = done.iter().any(|w| w.contains("correction"));
        let enforced = config.light_validation_mode == Mode::Enforce || config.heavy_validation_mode == Mode::Enforce;
        prop_assert!(enforced || (!corrected && verdict.status == Status::Success));
    }
}

/// Machine failures are limited by machines and by their count, and another attempt begins without them.
#[test]
fn set_backs_end_after_three_machines_or_nine_times() {
    let after = |machines: &[&str]| {
        let mut state = State::new(agreed(&[], json!({})));
        decide(&mut state, Event::Begun { attempt: 1, worker: "w".into() });
        for machine in machines {
            let reason = "no room left".to_owned();
            let set_back = SetBack { machine: (*machine).to_owned(), worker: "w".into(), reason };
            decide(&mut state, Event::SetBack(set_back));
        }
        state
    };
    assert_eq!(after(&["a"; 8]).too_many_set_backs(), None);
    assert_eq!(after(&["a", "b", "a", "b"]).too_many_set_backs(), None);
    for machines in [&["a"; 9][..], &["a", "b", "c"]] {
        let message = after(machines).too_many_set_backs().unwrap();
        assert_eq!(message.matches("no room left").count(), machines.len(), "{message}");
    }
    let mut again = after(&["a", "b", "c"]);
    decide(&mut again, Event::Faulted { code: "MACHINE_FAILED".into(), message: String::new(), retryable: true });
    decide(&mut again, Event::Begun { attempt: 2, worker: "w".into() });
    assert_eq!(again.too_many_set_backs(), None);
}
