//! The state of a run: its events, folded. `apply` is the whole of what an event means.

use std::collections::BTreeSet;

use actum_contract::ExecutionConfig;
use actum_contract::policy::correction::{AfterCorrection, after_audit, after_convergence};
use actum_contract::policy::planner::{AfterPlan, Planned, after_plan};
use actum_contract::policy::validation::{AfterValidation, after_validation, runs};
use actum_contract::work::WorkItem;
use serde::{Deserialize, Serialize};

use crate::correct::{Correction, signature};
use crate::event::{Act, Acted, Checked, End, Event, Failed, GoverningContract, Plan, SetBack, Step, Tested, ToolOp};
use crate::limit::{self, Admission, admit};
use crate::result::{Status, Verdict, code};

/// What a run was agreed on. Only an override changes it, and only for what comes after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agreed {
    pub item: WorkItem,
    /// Hash of the contract that holds `config`.
    pub contract_hash: String,
    pub config: ExecutionConfig,
    pub phases: Phases,
    /// Everything but publishing: the result is kept as a draft.
    pub draft: bool,
}

impl Agreed {
    /// The agreement that was in force when this journal began: under the contract of before the first override.
    /// `self` is the agreement in force at the end of the whole journal.
    pub fn at_start<'e>(mut self, journal: impl IntoIterator<Item = &'e Event>) -> Self {
        let first = journal.into_iter().find_map(|event| match event {
            Event::ContractChanged { from, .. } => Some(from),
            _ => None,
        });
        if let Some(contract) = first {
            self.govern_by(contract);
        }
        self
    }

    /// Puts another contract in force.
    pub fn govern_by(&mut self, contract: &GoverningContract) {
        self.contract_hash.clone_from(&contract.hash);
        self.config.clone_from(&contract.config);
    }
}

/// A contract and the finished steps it governed, in the order of the steps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContractPeriod {
    pub contract: GoverningContract,
    pub steps: Vec<String>,
    /// The number of acts that led to the result before this contract was in force: a step may be acted under one contract
    /// and validated under the next. None in recordings of before this was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acts_before: Option<u64>,
}

/// What the agent understands beside acting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Phases {
    pub plan: bool,
    pub correct: bool,
}

/// What is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// Nobody has begun.
    Begin,
    Freeze,
    Stage,
    Plan,
    Act(Act),
    Light,
    Heavy,
    Weigh,
    Test,
    Publish,
    Over(Verdict),
}

impl Phase {
    /// The word that a person sees.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Begin => "begin",
            Self::Freeze => "freeze",
            Self::Stage => "stage",
            Self::Plan => "plan",
            Self::Act(act) => match &act.correction {
                None => "step",
                Some(_) => "correct",
            },
            Self::Light => "light validation",
            Self::Heavy => "heavy validation",
            Self::Weigh => "admit",
            Self::Test => "test",
            Self::Publish => "publish",
            Self::Over(_) => "over",
        }
    }
}

/// A failure that a correction was made for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Answered {
    signature: String,
    blocking: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    pub agreed: Agreed,
    pub phase: Phase,
    pub attempt: u64,
    pub before: Option<String>,
    pub commit: Option<String>,
    pub stage: Option<String>,
    /// What the stage shows of the workspace: `frozen`, `strict` or `live`.
    pub view: Option<String>,
    pub steps: Vec<Step>,
    /// Steps that are done for good.
    pub steps_done: usize,
    /// The stage's tree after the last act that ended.
    pub current: Option<String>,
    /// The stage's tree after the last act within its limits. Another attempt continues from here.
    accepted: Option<String>,
    /// Files and deltas in it.
    accepted_counts: (u64, u64),
    /// Acts that led to the accepted state.
    acts_accepted: u64,
    /// Files of the accepted state that only a person may publish.
    obeyed: Vec<String>,
    pub ops: Vec<ToolOp>,
    /// Those of acts that count; what came after them was thrown away.
    ops_kept: usize,
    /// What the agent heard of its tools, act by act, and how much of it is of acts that count.
    pub answers: Vec<String>,
    answers_kept: usize,
    pub files: u64,
    pub deltas: u64,
    /// Time that the agent, the checks and the tests took in this attempt.
    pub spent_ms: u64,
    pub runtime_corrections: u64,
    pub heavy_corrections: u64,
    pub warnings: Vec<String>,
    /// Machines that could not go on with this attempt.
    pub set_backs: Vec<SetBack>,
    /// What the last validation found; what a correction is told.
    pub failures: Vec<Failed>,
    /// Validations that failed at first and passed in the end.
    pub mended: Vec<String>,
    pub tested: Option<Tested>,
    pub capsule: Option<String>,
    pub publishing: Option<String>,
    pub published: Option<String>,
    /// The workspace as the publication left it, with what others had changed.
    pub published_tree: Option<String>,
    pub drift: Vec<String>,
    /// Every contract the run had, oldest first. The last one is in force.
    pub contracts: Vec<ContractPeriod>,
    light: Option<Answered>,
    heavy: Option<Answered>,
    /// The correction at hand answers a heavy validation, which is due again after it.
    mends_heavy: bool,
    /// Where an attempt that ended was.
    was: Option<Box<Phase>>,
    /// The attempt ended by a conflict that was found before the agent was started: finished steps are still of use.
    conflict_before_act: bool,
}

/// Ends after which another attempt begins from the start: what was done is of no use, or stands on the wrong ground.
const FROM_THE_START: [&str; 8] = [
    code::PUBLISH_CONFLICT,
    code::COHERENCE_BLOCKED,
    code::ADMISSION_DENIED,
    code::DUPLICATE_CAPSULE,
    code::PROTECTED_FILE,
    code::LINK_LEAVES,
    code::OUTPUT_MISSING,
    code::DEPENDENCY_FAILED,
];

/// Machines that may fail an attempt before it fails itself, and how often in all.
const MACHINES_MAX: usize = 3;
const SET_BACKS_MAX: usize = 9;

impl State {
    pub fn new(agreed: Agreed) -> Self {
        let contracts = vec![period(&agreed)];
        Self {
            agreed,
            phase: Phase::Begin,
            attempt: 0,
            before: None,
            commit: None,
            stage: None,
            view: None,
            steps: Vec::new(),
            steps_done: 0,
            current: None,
            accepted: None,
            accepted_counts: (0, 0),
            acts_accepted: 0,
            obeyed: Vec::new(),
            ops: Vec::new(),
            ops_kept: 0,
            answers: Vec::new(),
            answers_kept: 0,
            files: 0,
            deltas: 0,
            spent_ms: 0,
            runtime_corrections: 0,
            heavy_corrections: 0,
            warnings: Vec::new(),
            set_backs: Vec::new(),
            failures: Vec::new(),
            mended: Vec::new(),
            tested: None,
            capsule: None,
            publishing: None,
            published: None,
            published_tree: None,
            drift: Vec::new(),
            contracts,
            light: None,
            heavy: None,
            mends_heavy: false,
            was: None,
            conflict_before_act: false,
        }
    }

    /// The state after the whole journal of a run that is no fork. `agreed` is in force at its end; each event is judged
    /// by the contract that was in force when it was written.
    pub fn fold<'e>(agreed: Agreed, events: impl IntoIterator<Item = &'e Event, IntoIter: Clone>) -> Self {
        let events = events.into_iter();
        let mut state = Self::new(agreed.at_start(events.clone()));
        state.follow(events);
        state
    }

    /// Takes note of events that are on record. What follows from one was recorded together with it, and comes next.
    pub fn follow<'e>(&mut self, events: impl IntoIterator<Item = &'e Event>) {
        for event in events {
            drop(self.apply(event));
        }
    }

    /// The first state of a fork: finished steps stay finished, and `agreed` governs what comes after.
    pub fn forked(mut self, agreed: Agreed) -> Self {
        let contract = GoverningContract { hash: agreed.contract_hash.clone(), config: agreed.config.clone() };
        self.agreed = agreed;
        self.attempt = 0;
        // These are of the source's attempt: the fork has begun none.
        (self.publishing, self.capsule, self.tested, self.spent_ms) = (None, None, None, 0);
        self.set_backs.clear();
        self.change_contract(&contract);
        self
    }

    /// Why no further machine tries this attempt: as many have failed it as may. Nothing if another one may.
    pub fn too_many_set_backs(&self) -> Option<String> {
        let machines: BTreeSet<&str> = self.set_backs.iter().map(|one| one.machine.as_str()).collect();
        if machines.len() < MACHINES_MAX && self.set_backs.len() < SET_BACKS_MAX {
            return None;
        }
        let each: Vec<String> =
            self.set_backs.iter().map(|one| format!("{} ({}): {}", one.machine, one.worker, one.reason)).collect();
        Some(format!("{} machines failed it {} times: {}", machines.len(), each.len(), each.join("; ")))
    }

    /// From here on this contract governs. A validation or correction that is due is decided again under it; what is
    /// finished stays finished.
    fn change_contract(&mut self, contract: &GoverningContract) {
        self.agreed.govern_by(contract);
        if self.contracts.last().is_some_and(|last| last.contract == *contract) {
            return;
        }
        self.contracts.push(ContractPeriod {
            contract: contract.clone(),
            steps: Vec::new(),
            acts_before: Some(self.acts_accepted),
        });
        match (&self.phase, self.was.take()) {
            (Phase::Over(verdict), Some(was)) => {
                let over = Phase::Over(verdict.clone());
                self.phase = *was;
                self.judge_again();
                self.was = Some(Box::new(std::mem::replace(&mut self.phase, over)));
            }
            (Phase::Over(_), None) => {}
            _ => self.judge_again(),
        }
    }

    /// Makes due what the contract in force asks for, where another one may have asked for something else.
    fn judge_again(&mut self) {
        match &self.phase {
            Phase::Act(Act { correction: Some(correction), .. }) => {
                // The correction was not made: the failure is judged again before another one is decided.
                if correction.heavy {
                    (self.heavy, self.mends_heavy) = (None, false);
                    self.phase = self.after_steps();
                } else {
                    self.light = None;
                    self.light_or_after();
                }
            }
            Phase::Light => self.light_or_after(),
            Phase::Heavy | Phase::Weigh | Phase::Test | Phase::Publish => self.phase = self.after_steps(),
            Phase::Begin | Phase::Freeze | Phase::Stage | Phase::Plan | Phase::Act(_) | Phase::Over(_) => {}
        }
    }

    fn light_or_after(&mut self) {
        match runs(self.agreed.config.light_validation_mode) {
            true => self.phase = Phase::Light,
            false => self.after_light(),
        }
    }

    /// Objects that changed, and verdicts that did.
    pub fn delta_size(&self) -> u64 {
        self.deltas + self.mended.len() as u64
    }

    pub fn left_ms(&self) -> u64 {
        self.agreed.item.constraints.timeout_ms.saturating_sub(self.spent_ms).max(1)
    }

    /// Takes note of an event. What follows from it and has to be recorded with it is returned, and not yet applied.
    pub(crate) fn apply(&mut self, event: &Event) -> Vec<Event> {
        match event {
            Event::Begun { attempt, .. } => self.begin(*attempt),
            Event::Frozen { before, commit } => {
                self.restart();
                (self.before, self.commit) = (Some(before.clone()), commit.clone());
                (self.current, self.accepted) = (Some(before.clone()), Some(before.clone()));
                self.phase = Phase::Stage;
            }
            Event::Staged { stage, view } => {
                self.stage = Some(stage.clone());
                self.view.clone_from(view);
                self.phase = Phase::Plan;
                if !self.agreed.phases.plan {
                    let description = self.agreed.item.description.clone();
                    let steps = vec![Step { id: "step-1".to_owned(), description }];
                    return vec![Event::Planned(Plan { steps, in_time: true, ..Plan::default() })];
                }
            }
            Event::Planned(plan) => return self.planned(plan),
            Event::Acted(acted) => return self.acted(acted),
            Event::Checked(checked) => return self.checked(checked),
            Event::Weighed { capsule, duplicate_of, missing } => {
                self.capsule = Some(capsule.clone());
                return self.weighed(duplicate_of.as_deref(), missing);
            }
            Event::Tested(tested) => {
                self.spent_ms += tested.took_ms;
                self.tested = Some(tested.clone());
                return match tested {
                    Tested { timed_out: true, .. } => vec![self.timeout("the tests")],
                    Tested { passed: false, exit_code, output, .. } => {
                        let code = exit_code.map(|code| format!(" with code {code}")).unwrap_or_default();
                        let line = last_line(output);
                        let line = if line.is_empty() { line } else { format!(": {line}") };
                        vec![fail(code::TESTS_FAILED, format!("Tests failed{code}{line}"))]
                    }
                    _ => self.publish_or_keep(),
                };
            }
            Event::Publishing { publication } => self.publishing = Some(publication.clone()),
            Event::Reverted { .. } => self.publishing = None,
            Event::Published { publication, drift, after } => {
                (self.published, self.drift) = (Some(publication.clone()), drift.clone());
                self.published_tree.clone_from(after);
                return vec![Event::Ended(Verdict::success(false))];
            }
            Event::Conflicted { paths } if matches!(self.phase, Phase::Act(_)) => {
                self.conflict_before_act = true;
                let message = format!(
                    "others changed what finished steps have changed: {}; restore it and resume, or run the work item again",
                    some(paths)
                );
                return vec![fail(code::PUBLISH_CONFLICT, message)];
            }
            Event::Conflicted { paths } => {
                let message = format!("others changed what was to be published: {}", some(paths));
                let verdict = Verdict::ended(Status::Failure, code::PUBLISH_CONFLICT, message);
                return vec![Event::Ended(Verdict { kept: true, ..verdict })];
            }
            Event::Stale { paths } => {
                let message = format!("inputs changed since the run was planned: {}", some(paths));
                return vec![Event::Ended(Verdict::ended(Status::Denied, code::COHERENCE_BLOCKED, message))];
            }
            Event::Stopped { cancelled, reason } => {
                let code = if *cancelled { code::CANCELLED } else { code::INTERRUPTED };
                let verdict = Verdict::ended(Status::Failure, code, reason.clone());
                return vec![Event::Ended(Verdict { cancelled: *cancelled, retryable: !cancelled, ..verdict })];
            }
            Event::Faulted { code, message, retryable } => {
                let verdict = Verdict::ended(Status::Failure, code, message.clone());
                return vec![Event::Ended(Verdict { retryable: *retryable, ..verdict })];
            }
            Event::SetBack(set_back) => self.set_backs.push(set_back.clone()),
            Event::Warned { what } => self.warnings.push(what.clone()),
            Event::ContractChanged { to, .. } => self.change_contract(to),
            Event::Ended(verdict) => {
                let was = std::mem::replace(&mut self.phase, Phase::Over(verdict.clone()));
                self.was = Some(Box::new(was));
            }
        }
        Vec::new()
    }

    fn begin(&mut self, attempt: u64) {
        let is_new = attempt > self.attempt;
        self.attempt = attempt;
        if self.phase == Phase::Begin {
            self.phase = Phase::Freeze;
            return;
        }
        // Otherwise the run is taken over in the middle, and goes on where it was.
        if !is_new {
            return;
        }
        let Phase::Over(verdict) = &self.phase else { return };
        let was = self.was.take().map_or(Phase::Freeze, |was| *was);
        // A conflict found before an act leaves the finished steps as they are: they fit once the files are restored.
        let keeps_steps = std::mem::take(&mut self.conflict_before_act);
        // What succeeded has nothing left to go on with.
        let from_the_start = !keeps_steps && verdict.code.as_deref().is_none_or(|code| FROM_THE_START.contains(&code));
        self.spent_ms = 0;
        self.set_backs.clear();
        (self.publishing, self.capsule, self.tested) = (None, None, None);
        if from_the_start || self.before.is_none() {
            self.restart();
        } else {
            self.ops.truncate(self.ops_kept);
            self.answers.truncate(self.answers_kept);
            self.current.clone_from(&self.accepted);
            (self.files, self.deltas) = self.accepted_counts;
            // What was found of the whole result is found again: the contract may be another one by now.
            self.phase = match was {
                Phase::Heavy | Phase::Weigh | Phase::Test | Phase::Publish => self.after_steps(),
                other => other,
            };
        }
    }

    /// Drops everything that was done, to begin with a new snapshot. How often something was corrected and which
    /// contracts the run had is kept over all attempts.
    fn restart(&mut self) {
        let mut contracts = std::mem::take(&mut self.contracts);
        for period in &mut contracts {
            period.steps.clear();
            period.acts_before = Some(0);
        }
        *self = Self {
            attempt: self.attempt,
            phase: Phase::Freeze,
            spent_ms: self.spent_ms,
            runtime_corrections: self.runtime_corrections,
            heavy_corrections: self.heavy_corrections,
            warnings: std::mem::take(&mut self.warnings),
            set_backs: std::mem::take(&mut self.set_backs),
            contracts,
            ..Self::new(self.agreed.clone())
        };
    }

    fn planned(&mut self, plan: &Plan) -> Vec<Event> {
        self.spent_ms += plan.took_ms;
        self.ops.extend(plan.ops.iter().cloned());
        self.answers.extend(plan.answers.clone());
        if let Some(denial) = &plan.denied {
            return vec![denial.ends()];
        }
        if let Some(why) = &plan.exhausted {
            return vec![deny(code::ADMISSION_DENIED, why.clone())];
        }
        let outcome = match &plan.failed {
            Some(_) => Planned::Failed { in_time: plan.in_time },
            None => Planned::Steps { none: plan.steps.is_empty(), in_time: plan.in_time },
        };
        match after_plan(outcome) {
            AfterPlan::Proceed => {
                self.steps = plan.steps.clone();
                (self.ops_kept, self.answers_kept) = (self.ops.len(), self.answers.len());
                self.next_step();
                Vec::new()
            }
            AfterPlan::FailEmpty => vec![fail(code::PLAN_EMPTY, "the plan has no steps")],
            AfterPlan::FailTimeout => {
                let message = format!("there was no plan within {} ms", self.agreed.config.planner_timeout_ms);
                vec![Event::Ended(Verdict::ended(Status::Timeout, code::PLAN_TIMEOUT, message))]
            }
            AfterPlan::FailPlanner => {
                vec![fail(code::PLAN_FAILED, plan.failed.clone().unwrap_or_default())]
            }
        }
    }

    /// The next step, or what comes after all of them.
    fn next_step(&mut self) {
        let index = self.steps_done;
        self.phase = match self.steps.get(index) {
            Some(step) => Phase::Act(Act { index, step: step.clone(), correction: None }),
            None => self.after_steps(),
        };
    }

    fn after_steps(&self) -> Phase {
        let has_heavy = !self.agreed.item.validation.heavy.is_empty();
        if has_heavy && runs(self.agreed.config.heavy_validation_mode) { Phase::Heavy } else { Phase::Weigh }
    }

    fn acted(&mut self, acted: &Acted) -> Vec<Event> {
        self.spent_ms += acted.took_ms;
        self.ops.extend(acted.ops.iter().cloned());
        self.answers.extend(acted.answers.clone());
        let constraints = &self.agreed.item.constraints;
        match &acted.end {
            End::TimedOut => return vec![self.timeout("the agent")],
            End::OutOfOps { why } => {
                let (wanted, max) = (self.tool_ops() + 1, constraints.max_tool_ops);
                let counted = || format!("Exceeded max tool ops: {wanted} > {max}");
                return vec![deny(code::ADMISSION_DENIED, why.clone().unwrap_or_else(counted))];
            }
            End::Denied(denial) => return vec![denial.ends()],
            End::Failed { message, .. } => return vec![fail(code::AGENT_FAILED, message.clone())],
            End::Done => {}
        }
        self.current = Some(acted.state.clone());
        (self.files, self.deltas) = (acted.totals.files, acted.totals.deltas);
        if let Some(path) = acted.totals.protected.first() {
            let why = format!("{path} is obeyed by other programs, and is not declared in output_files");
            return vec![deny(code::PROTECTED_FILE, why)];
        }
        if !acted.totals.leaving.is_empty() {
            let links = some(&acted.totals.leaving);
            let why = format!("links that lead out of the workspace are not declared in links: {links}");
            return vec![deny(code::LINK_LEAVES, why)];
        }
        if let Err(reason) = admit(self.weight(), constraints) {
            return vec![deny(code::ADMISSION_DENIED, reason)];
        }
        if let Some(why) = limit::step(&acted.totals, &self.agreed.config) {
            return vec![fail(code::STEP_LIMIT, format!("{} went beyond a limit: {why}", acted.act.step.id))];
        }
        let mut follows = Vec::new();
        if let Some(correction) = &acted.act.correction
            && let Some(why) = correction.audit(&acted.totals)
        {
            let what = format!("correction {} broke its limits: {why}", correction.number);
            match after_audit(self.agreed.config.correction_policy_mode, false) {
                AfterCorrection::Continue => {}
                AfterCorrection::Warn => follows.push(Event::Warned { what }),
                AfterCorrection::Fail => return vec![fail(code::CORRECTION_POLICY, what)],
            }
        }
        self.accepted.clone_from(&self.current);
        self.accepted_counts = (self.files, self.deltas);
        self.acts_accepted += 1;
        self.obeyed.clone_from(&acted.totals.obeyed);
        (self.ops_kept, self.answers_kept) = (self.ops.len(), self.answers.len());
        self.light_or_after();
        follows
    }

    /// The number of acts that led to the result so far.
    pub fn accepted_act_count(&self) -> u64 {
        self.acts_accepted
    }

    /// Operations that count as the work item's.
    pub fn tool_ops(&self) -> u64 {
        self.ops.iter().filter(|op| op.is_tools()).count() as u64
    }

    fn weight(&self) -> Admission {
        Admission { files: self.files, tool_ops: self.tool_ops(), delta_size: self.delta_size() }
    }

    fn after_light(&mut self) {
        if std::mem::take(&mut self.mends_heavy) {
            self.phase = self.after_steps();
        } else {
            if let (Some(step), Some(period)) = (self.steps.get(self.steps_done), self.contracts.last_mut()) {
                period.steps.push(step.id.clone());
            }
            self.steps_done += 1;
            self.next_step();
        }
    }

    fn checked(&mut self, checked: &Checked) -> Vec<Event> {
        self.spent_ms += checked.took_ms;
        self.failures = checked.failures.clone();
        let config = &self.agreed.config;
        let (word, mode, used, max) = match checked.heavy {
            true => {
                ("heavy", config.heavy_validation_mode, self.heavy_corrections, config.max_heavy_correction_attempts)
            }
            false => (
                "light",
                config.light_validation_mode,
                self.runtime_corrections,
                config.max_runtime_correction_attempts,
            ),
        };
        if checked.timed_out {
            return vec![self.timeout(&format!("the {word} validation"))];
        }
        let passed = checked.failures.is_empty();
        let first = checked.failures.first().map(Failed::shown).unwrap_or_default();
        let mut follows = Vec::new();
        let answered = if checked.heavy { self.heavy.take() } else { self.light.take() };
        if let Some(answered) = &answered
            && !passed
        {
            let now = checked.failures.len() as u64;
            let same = signature(&checked.failures) == answered.signature;
            let what = format!(
                "the correction did not converge: {} → {now} failures of the {word} validation{}: {first}",
                answered.blocking,
                if same { ", the same as before" } else { "" }
            );
            match after_convergence(config.correction_convergence_mode, same, now.cmp(&answered.blocking)) {
                AfterCorrection::Continue => {}
                AfterCorrection::Warn => follows.push(Event::Warned { what }),
                AfterCorrection::Fail => return vec![fail(code::NOT_CONVERGING, what)],
            }
        }
        let what = format!("{word} validation failed: {first}");
        let failed_code = if checked.heavy { code::HEAVY_FAILED } else { code::LIGHT_FAILED };
        match after_validation(mode, passed, used, max) {
            AfterValidation::Correct if !self.agreed.phases.correct => {
                let why = format!("{what}; the agent has no phase \"correct\" in which it could mend that");
                follows.push(fail(failed_code, why));
                return follows;
            }
            AfterValidation::Correct => {
                self.correct(checked, used + 1);
                return follows;
            }
            AfterValidation::Fail => {
                let tried = if used > 0 { format!(" after {used} of {max} corrections") } else { String::new() };
                follows.push(fail(failed_code, format!("{what}{tried}")));
                return follows;
            }
            AfterValidation::Recorded => follows.push(Event::Warned { what }),
            AfterValidation::NotRun | AfterValidation::Passed => {}
        }
        if passed && answered.is_some() {
            self.mended.push(word.to_owned());
        }
        if checked.heavy {
            self.phase = Phase::Weigh
        } else {
            self.after_light()
        }
        follows
    }

    fn correct(&mut self, checked: &Checked, number: u64) {
        let correction = Correction::of(&checked.failures, checked.heavy, number, &self.agreed.config);
        let answered = Answered { signature: correction.signature.clone(), blocking: correction.blocking };
        if checked.heavy {
            (self.heavy_corrections, self.heavy, self.mends_heavy) = (number, Some(answered), true);
        } else {
            (self.runtime_corrections, self.light) = (number, Some(answered));
        }
        // After all steps it is the last one that is gone back to.
        let index = self.steps_done.min(self.steps.len().saturating_sub(1));
        let step = self.steps.get(index).cloned().unwrap_or(Step { id: "step-1".into(), description: String::new() });
        self.phase = Phase::Act(Act { index, step, correction: Some(correction) });
    }

    fn weighed(&mut self, duplicate_of: Option<&str>, missing: &[String]) -> Vec<Event> {
        if !missing.is_empty() {
            return vec![fail(code::OUTPUT_MISSING, format!("declared outputs are not there: {}", some(missing)))];
        }
        if let Err(reason) = admit(self.weight(), &self.agreed.item.constraints) {
            return vec![deny(code::ADMISSION_DENIED, reason)];
        }
        if let Some(run) = duplicate_of {
            return vec![deny(code::DUPLICATE_CAPSULE, format!("the same was admitted before, with run {run}"))];
        }
        if self.agreed.item.test_command.is_some() {
            self.phase = Phase::Test;
            return Vec::new();
        }
        self.publish_or_keep()
    }

    fn publish_or_keep(&mut self) -> Vec<Event> {
        if self.agreed.draft {
            return vec![Event::Ended(Verdict::success(true))];
        }
        if !self.obeyed.is_empty() {
            let why = format!("other programs obey {}: a person has to publish the result", some(&self.obeyed));
            let verdict = Verdict::ended(Status::Denied, code::PROTECTED_FILE, why);
            return vec![Event::Ended(Verdict { kept: true, ..verdict })];
        }
        self.phase = Phase::Publish;
        Vec::new()
    }

    fn timeout(&self, who: &str) -> Event {
        let message = format!("{who} took longer than timeout_ms {}", self.agreed.item.constraints.timeout_ms);
        Event::Ended(Verdict::ended(Status::Timeout, code::TIMEOUT, message))
    }
}

fn period(agreed: &Agreed) -> ContractPeriod {
    let contract = GoverningContract { hash: agreed.contract_hash.clone(), config: agreed.config.clone() };
    ContractPeriod { contract, steps: Vec::new(), acts_before: Some(0) }
}

fn fail(code: &str, message: impl Into<String>) -> Event {
    Event::Ended(Verdict::ended(Status::Failure, code, message))
}

fn deny(code: &str, message: impl Into<String>) -> Event {
    Event::Ended(Verdict::ended(Status::Denied, code, message))
}

/// The first few of a list, and how many more there are.
fn some(paths: &[String]) -> String {
    const SHOWN: usize = 5;
    let more = paths.len().saturating_sub(SHOWN);
    let shown = paths.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

/// The last line that says something, cut.
pub(crate) fn last_line(text: &str) -> String {
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    line.chars().take(200).collect()
}
