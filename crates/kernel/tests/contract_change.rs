//! A changed contract never changes what was already done (D-501): runs that fail anywhere and are overridden or forked to
//! any other contract, any number of times, against a world that keeps count of what really happened.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;

use actum_contract::work::read_item;
use actum_contract::{ExecutionConfig, Layers, Partial, resolve};
use actum_kernel::{
    Acted, Agreed, Checked, Effect, End, Event, Failed, GoverningContract, Kind, Phase, Phases, Plan, State, Status,
    Step, Tested, Totals, decide, next,
};
use proptest::prelude::*;
use serde_json::json;

const MODES: [&str; 3] = ["off", "warn", "enforce"];
/// Attempts after which the world lets everything succeed.
const FAILURES_MAX: usize = 6;

/// A contract by the fields that branch.
#[derive(Debug, Clone, PartialEq)]
struct Terms {
    light: usize,
    heavy: usize,
    policy: usize,
    convergence: usize,
    runtime_corrections: u64,
    heavy_corrections: u64,
    files_per_step: u64,
}

impl Terms {
    fn contract(&self) -> GoverningContract {
        let words = [
            format!("lightValidationMode={}", MODES[self.light]),
            format!("heavyValidationMode={}", MODES[self.heavy]),
            format!("correctionPolicyMode={}", MODES[self.policy]),
            format!("correctionConvergenceMode={}", MODES[self.convergence]),
            format!("maxRuntimeCorrectionAttempts={}", self.runtime_corrections),
            format!("maxHeavyCorrectionAttempts={}", self.heavy_corrections),
            format!("maxFilesPerStep={}", self.files_per_step),
        ];
        let requested = Partial::read_words(words.iter().map(String::as_str)).unwrap();
        let config: ExecutionConfig =
            resolve(Layers { persisted: None, requested: &requested, env: &BTreeMap::new() }).unwrap().config;
        GoverningContract { hash: words.join(" "), config }
    }
}

prop_compose! {
    fn terms()(
        light in 0..3usize, heavy in 0..3usize, policy in 0..3usize, convergence in 0..3usize,
        runtime_corrections in 0..3u64, heavy_corrections in 0..3u64, files_per_step in prop::sample::select(vec![1u64, 15]),
    ) -> Terms {
        Terms { light, heavy, policy, convergence, runtime_corrections, heavy_corrections, files_per_step }
    }
}

/// How a run is taken up again.
#[derive(Debug, Clone)]
enum Again {
    Resume,
    Override(Terms),
    Fork(Terms),
}

fn again() -> impl Strategy<Value = Again> {
    prop_oneof![Just(Again::Resume), terms().prop_map(Again::Override), terms().prop_map(Again::Fork)]
}

/// What one effect meets. The last is as frequent as the others together.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Luck {
    AgentFails,
    /// A file that finished steps have changed is found changed by others, before the agent is started.
    ConflictBeforeAct,
    TooManyFiles,
    CheckFails,
    TestFails,
    Interrupted,
    Killed,
    Good,
}

fn luck() -> impl Strategy<Value = Luck> {
    use Luck::*;
    prop::sample::select(vec![
        AgentFails,
        ConflictBeforeAct,
        TooManyFiles,
        CheckFails,
        TestFails,
        Interrupted,
        Killed,
        Good,
        Good,
        Good,
        Good,
        Good,
    ])
}

/// The effects of steps in a tree, in the order in which they happened: its name.
fn tree(steps: &[String]) -> String {
    format!("tree:{}", steps.join(","))
}

fn steps_in(tree: &str) -> Vec<String> {
    tree.strip_prefix("tree:").unwrap().split(',').filter(|step| !step.is_empty()).map(ToOwned::to_owned).collect()
}

struct World {
    steps: usize,
    published: Vec<Vec<String>>,
    failures_left: usize,
}

impl World {
    fn answer(&mut self, effect: &Effect, state: &State, luck: Luck) -> Event {
        let luck = if self.failures_left == 0 && luck != Luck::Good { Luck::Good } else { luck };
        if luck != Luck::Good {
            self.failures_left -= 1;
        }
        if luck == Luck::Interrupted {
            return Event::Stopped { cancelled: false, reason: "stop".into() };
        }
        match effect {
            Effect::Freeze => Event::Frozen { before: tree(&[]), commit: None },
            Effect::Stage => Event::Staged { stage: "s".into(), view: None },
            Effect::Plan { .. } => Event::Planned(Plan {
                steps: (1..=self.steps).map(|n| Step { id: format!("s{n}"), description: String::new() }).collect(),
                in_time: true,
                ..Plan::default()
            }),
            Effect::Act { .. } if luck == Luck::ConflictBeforeAct => Event::Conflicted { paths: vec!["p".into()] },
            Effect::Act { act, .. } => {
                let mut done = steps_in(state.current.as_deref().unwrap());
                if act.correction.is_none() {
                    done.push(act.step.id.clone());
                }
                let failed = End::Failed { exit_code: Some(1), message: "no".into() };
                let changed = if luck == Luck::TooManyFiles { 2 } else { 1 };
                Event::Acted(Box::new(Acted {
                    act: act.clone(),
                    end: if luck == Luck::AgentFails { failed } else { End::Done },
                    state: tree(&done),
                    changed: Vec::new(),
                    totals: Totals {
                        changed,
                        diff_bytes: 1,
                        largest_bytes: 1,
                        files: 1,
                        deltas: 1,
                        ..Totals::default()
                    },
                    ops: Vec::new(),
                    took_ms: 1,
                    answers: None,
                }))
            }
            Effect::Check { heavy, .. } => {
                let (kind, check) = (if *heavy { Kind::Build } else { Kind::Content }, "c".to_owned());
                let message = self.failures_left.to_string();
                let failed = Failed { check, kind, path: None, message };
                let failures = if luck == Luck::CheckFails { vec![failed] } else { Vec::new() };
                Event::Checked(Checked { heavy: *heavy, failures, timed_out: false, took_ms: 1 })
            }
            Effect::Weigh => Event::Weighed { capsule: "c".into(), duplicate_of: None, missing: Vec::new() },
            Effect::Test { .. } => Event::Tested(Tested {
                passed: luck != Luck::TestFails,
                timed_out: false,
                exit_code: Some(0),
                tests_passed: None,
                tests_failed: None,
                output: String::new(),
                took_ms: 1,
            }),
            Effect::Publish => {
                self.published.push(steps_in(state.current.as_deref().unwrap()));
                Event::Published { publication: "p".into(), drift: Vec::new(), after: None }
            }
            Effect::Finish(_) => unreachable!("an end is not performed"),
        }
    }
}

/// One run's journal, or the journals it was forked from.
struct Run {
    agreed: Agreed,
    sources: Vec<(Agreed, Vec<Event>)>,
    own: Vec<Event>,
}

impl Run {
    /// The state as a reader of the journals finds it.
    fn folded(&self) -> State {
        let mut state: Option<State> = None;
        let own = (self.agreed.clone(), self.own.clone());
        for (agreed, events) in self.sources.iter().chain([&own]) {
            let start = agreed.clone().at_start(events);
            let mut next = match state {
                None => State::new(start),
                Some(before) => before.forked(start),
            };
            next.follow(events);
            state = Some(next);
        }
        state.unwrap()
    }
}

fn govern(agreed: &Agreed, contract: &GoverningContract) -> Agreed {
    Agreed { contract_hash: contract.hash.clone(), config: contract.config.clone(), ..agreed.clone() }
}

fn play(first: &Terms, steps: usize, mut lucks: Vec<Luck>, mut agains: Vec<Again>) -> Result<(), TestCaseError> {
    let item = json!({
        "id": "i", "agent_id": "a", "description": "d", "test_command": ["true"], "validation": {"heavy": [["true"]]},
    });
    let contract = first.contract();
    let agreed = Agreed {
        item: read_item(&item).unwrap(),
        contract_hash: contract.hash.clone(),
        config: contract.config.clone(),
        phases: Phases { plan: true, correct: true },
        draft: false,
    };
    let mut world = World { steps, published: Vec::new(), failures_left: FAILURES_MAX };
    let mut run = Run { agreed, sources: Vec::new(), own: Vec::new() };
    let mut used = vec![contract.hash];
    let (mut attempt, mut most) = (1, (0, 0, 0));
    let mut state = run.folded();
    run.own.extend(decide(&mut state, Event::Begun { attempt, worker: "w".into() }).events);
    loop {
        prop_assert_eq!(&run.folded(), &state);
        let counters = (state.steps_done, state.runtime_corrections, state.heavy_corrections);
        prop_assert!(counters.0 >= most.0 && counters.1 >= most.1 && counters.2 >= most.2, "{most:?} → {counters:?}");
        prop_assert!(state.steps_done <= state.steps.len(), "{} of {}", state.steps_done, state.steps.len());
        most = counters;
        match next(&state).unwrap() {
            Effect::Finish(verdict) if verdict.status == Status::Success => break,
            Effect::Finish(_) => {
                match agains.pop().unwrap_or(Again::Resume) {
                    Again::Resume => attempt += 1,
                    Again::Override(terms) => {
                        let (old, new) = (&run.agreed, terms.contract());
                        let from = GoverningContract { hash: old.contract_hash.clone(), config: old.config.clone() };
                        run.agreed = govern(old, &new);
                        used.push(new.hash.clone());
                        let changed = Event::ContractChanged { from: Box::new(from), to: Box::new(new) };
                        run.own.extend(decide(&mut state, changed).events);
                        attempt += 1;
                    }
                    Again::Fork(terms) => {
                        let new = terms.contract();
                        used.push(new.hash.clone());
                        let forked = govern(&run.agreed, &new);
                        run.sources.push((std::mem::replace(&mut run.agreed, forked), std::mem::take(&mut run.own)));
                        state = run.folded();
                        attempt = 1;
                    }
                }
                run.own.extend(decide(&mut state, Event::Begun { attempt, worker: "w".into() }).events);
            }
            effect => {
                let luck = lucks.pop().unwrap_or(Luck::Good);
                if luck == Luck::Killed {
                    // Another worker goes on from the journal.
                    state = run.folded();
                    run.own.extend(decide(&mut state, Event::Begun { attempt, worker: "x".into() }).events);
                    continue;
                }
                let event = world.answer(&effect, &state, luck);
                run.own.extend(decide(&mut state, event).events);
            }
        }
    }
    let all: Vec<String> = (1..=steps).map(|n| format!("s{n}")).collect();
    prop_assert_eq!(&world.published, &vec![all.clone()], "every step once, in order, published once");
    let governed: Vec<String> = state.contracts.iter().flat_map(|period| period.steps.clone()).collect();
    prop_assert_eq!(governed, all, "each step stands under one contract");
    used.dedup();
    let listed: Vec<String> = state.contracts.iter().map(|period| period.contract.hash.clone()).collect();
    prop_assert_eq!(listed, used);
    prop_assert!(matches!(state.phase, Phase::Over(_)));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_step_happens_once_under_any_override_or_fork(
        first in terms(),
        steps in 1..6usize,
        lucks in prop::collection::vec(luck(), 0..60),
        agains in prop::collection::vec(again(), 0..6),
    ) {
        play(&first, steps, lucks, agains)?;
    }
}

/// The audited case: ten steps, a failure at step 4, light validation switched off, and the other direction.
#[test]
fn override_keeps_finished_steps() {
    let terms = |light| Terms {
        light,
        heavy: 0,
        policy: 2,
        convergence: 2,
        runtime_corrections: 0,
        heavy_corrections: 0,
        files_per_step: 15,
    };
    for at in [2, 4, 9] {
        for (from, to) in [(2, 0), (0, 2), (2, 1), (1, 0)] {
            for fork in [false, true] {
                let again = if fork { Again::Fork(terms(to)) } else { Again::Override(terms(to)) };
                // freeze, stage, plan; then a step is one effect without light validation and two with it.
                let effects = 3 + (at - 1) * if from == 0 { 1 } else { 2 };
                let mut lucks = vec![Luck::Good; effects];
                lucks.push(Luck::AgentFails);
                lucks.reverse();
                play(&terms(from), 10, lucks, vec![again]).unwrap();
            }
        }
    }
}
