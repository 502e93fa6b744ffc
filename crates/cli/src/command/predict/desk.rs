//! Where one question after the other is asked by the same signature: which way, for whom, and what a guard says afterwards.

use std::sync::Arc;

use actum_api::error;
use actum_contract::digest::Digest;
use actum_ledger::receipt::{PREDICTION_TYPE, seal, statement_of, subject};
use actum_predict::artifact::{Artifact, Incompatible};
use actum_predict::pointer::{Keys, Scope};
use actum_predict::receipt::Rollout;
use actum_predict::signature::Strategy;
use actum_predict::strategy::{Outcome, Status};
use actum_predict::{Signature, Way};
use serde_json::{Value, json};

use super::Predict;
use crate::command::pointer::look::change_json;
use crate::command::tool::actor;
use crate::failure::Failure;
use crate::key::Key;
use crate::model::alive::Alive;
use crate::model::guard::{self, Watch};
use crate::model::line::Line;
use crate::model::predict::{Whom, predict, refuse, shown};
use crate::model::rollout::{self, Standing};
use crate::model::{Authorized, Counter, Recorded, Till, artifact, catalogue, evidence};
use crate::run::shop::Open;
use crate::seat::told_to;
use crate::ui::Out;
use crate::workspace::new_id;

/// For whom something is asked.
#[derive(Debug, Clone, Default)]
pub(super) struct Who {
    pub key: Option<String>,
    pub user: Option<String>,
    pub run: Option<String>,
    pub thread: Option<String>,
    pub agent: Option<String>,
}

/// One question.
#[derive(Debug)]
pub(super) struct Wanted {
    pub input: Value,
    pub who: Who,
    /// What the answer should be, and what it is worth; kept as its label, for this reason.
    pub expected: Option<Value>,
    pub score: Option<f64>,
    pub reason: String,
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Told {
    pub shown: Value,
    pub outcome: Outcome,
    /// Why there is no answer.
    pub failure: Option<Failure>,
    /// What a guard did after it, in a sentence.
    pub moved: Option<String>,
    /// What went wrong beside it.
    pub warning: Option<String>,
}

/// What goes around the pointer.
enum Named {
    Nothing,
    /// A strategy or a model: as the catalogue says.
    Catalogue,
    Artifact(Box<Artifact>),
}

/// The way a question takes.
struct Chosen {
    way: Way,
    rollout: Rollout,
    /// Why it cannot be taken.
    misfit: Option<Incompatible>,
    /// The pointer that has decided.
    standing: Option<Standing>,
}

pub(super) struct Desk<'d> {
    pub signature: Signature,
    pub open: &'d Open,
    args: &'d Predict,
    counter: Arc<Counter>,
    named: Named,
    watch: Watch,
}

impl<'d> Desk<'d> {
    pub(super) fn open(open: &'d Open, args: &'d Predict, out: &Out) -> Result<Self, Failure> {
        let mut signature = catalogue::find(&open.waiter, &open.tenant, &args.id)?;
        if let Some(word) = &args.strategy {
            signature.program.strategy = Strategy::read(word).ok_or_else(|| {
                let words = Strategy::ALL.map(Strategy::word).join(" or ");
                Failure::new(error::USAGE, format!("unsupported_strategy: {word:?}")).hint(format!("write {words}"))
            })?;
        }
        let named = match &args.artifact {
            Some(text) if text == artifact::BASELINE => Named::Artifact(Box::new(Artifact::of(&signature))),
            Some(text) => Named::Artifact(Box::new(artifact::find(open, text)?)),
            None if args.strategy.is_some() || args.model.is_some() => Named::Catalogue,
            None => Named::Nothing,
        };
        if let (Named::Catalogue, Some(standing)) = (&named, rollout::standing(open, &args.id)?) {
            let flag = if args.model.is_some() { "--model" } else { "--strategy" };
            out.remark(&format!(
                "{flag} goes around the pointer of {}, which is at revision {}: asked as the catalogue says",
                args.id, standing.n
            ));
        }
        let config = open.project.config()?;
        let places = (open.project.folder()?, open.project.root().to_owned());
        let counter = Counter::new(&open.waiter, &open.spend, &open.tenant, places, &config)?;
        Ok(Self { signature, open, args, counter, named, watch: Watch::default() })
    }

    /// The pointer that decides, if one does.
    fn standing(&self) -> Result<Option<Standing>, Failure> {
        match self.named {
            Named::Nothing => rollout::standing(self.open, &self.args.id),
            Named::Catalogue | Named::Artifact(_) => Ok(None),
        }
    }

    /// Whether the keys are those that the pointer goes by.
    pub(super) fn check(&self, who: &Who) -> Result<(), Failure> {
        match self.standing()? {
            Some(standing) => check_keys(&standing, who),
            None => Ok(()),
        }
    }

    pub(super) fn ask(&mut self, wanted: &Wanted) -> Result<Told, Failure> {
        let who = &wanted.who;
        refuse_trials(who)?;
        let run = who.run.clone().unwrap_or_else(|| format!("predict-{}", new_id()));
        let Chosen { way, rollout, misfit, standing } = self.choose(who, &run)?;
        let (provider, program) = (self.args.provider.as_deref(), &way.signature.program);
        let whom = match Whom::of(&self.counter, self.args.model.as_deref(), provider, program) {
            Err(_) if misfit.is_some() => Whom::nobody(program),
            found => found?,
        };
        // A run that is named is somebody else's.
        let _alive = match who.run {
            None => Some(Alive::enter(&self.counter.home, &run, self.open.waiter.journal.store_id())?),
            Some(_) => None,
        };
        let beside = who.run.is_some().then(new_id);
        let who = match self.open.project.payer() {
            None => {
                let (thread, autopilot) = (who.thread.clone(), who.agent.clone());
                Authorized { run, thread, autopilot, beside, ..Authorized::default() }
            }
            // What he says chooses the way and stands on record; he spends what was allowed to him.
            Some(payer) => Authorized {
                is_run_hearsay: who.run.is_some(),
                run,
                beside,
                autopilot: Some(payer),
                is_served: true,
                ..Authorized::default()
            },
        };
        let line = Line { till: Some(Arc::new(Till::open(&self.counter, who))), book: None };
        let predicted = match &misfit {
            None => predict(&line, &whom, &way, &rollout, &wanted.input, None)?,
            Some(why) => refuse(&line, &whom, (&way, &rollout), &wanted.input, why)?,
        };
        if let Some(path) = self.args.record.as_ref().filter(|_| !predicted.exchanges.is_empty()) {
            Recorded::add(path, &predicted.exchanges)?;
        }
        let mut shown = shown(&predicted);
        let receipt = shown["receipt"].take();
        shown["artifact"] = artifact_json(&receipt);
        shown["receipt_path"] = json!(sealed(self.open, &receipt)?);
        shown["receipt"] = receipt;
        let outcome = predicted.outcome;
        let id = shown["receipt_id"].as_str().unwrap_or_default();
        let is_labelled = wanted.expected.is_some() || wanted.score.is_some();
        if is_labelled && outcome.status != Status::Denied {
            let by = (&*actor(self.open.project.actor()), wanted.reason.as_str());
            evidence::label(self.open, id, wanted.expected.as_ref(), wanted.score, by)?;
        }
        let failure = failure_of(&outcome, id);
        let (mut moved, mut warning) = (None, None);
        if standing.is_some_and(|standing| standing.pointer.guard.is_some()) {
            // There is an answer, whatever becomes of the pointer.
            match self.guard() {
                Ok(Some((change, says))) => (shown["guard"], moved) = (change, Some(says)),
                Ok(None) => {}
                Err(failure) => warning = Some(format!("warning: the guard was not asked: {}", failure.message)),
            }
        }
        Ok(Told { shown, outcome, failure, moved, warning })
    }

    /// Which way it goes, and who said so.
    fn choose(&self, who: &Who, run: &str) -> Result<Chosen, Failure> {
        let bound = |artifact: &Artifact, rollout, standing| match artifact.bind(&self.signature) {
            Ok(way) => Chosen { way, rollout, misfit: None, standing },
            Err(why) => {
                let mut signature = self.signature.clone();
                let hashes = signature.hashes();
                signature.program = artifact.program.clone();
                let way = Way { signature, hashes, compiled_id: artifact.id() };
                Chosen { way, rollout, misfit: Some(why), standing }
            }
        };
        if let Named::Artifact(artifact) = &self.named {
            return Ok(bound(artifact, Rollout::pinned(), None));
        }
        let Some(standing) = self.standing()? else {
            let way = Way::catalogue(self.signature.clone());
            return Ok(Chosen { way, rollout: Rollout::default(), misfit: None, standing: None });
        };
        check_keys(&standing, who)?;
        // A run that was made up for this question stands for nobody: whoever is named comes before it.
        let is_somebody = [&who.key, &who.thread, &who.agent, &who.user].iter().any(|one| one.is_some());
        let goes_by_itself = standing.pointer.key_scope == Scope::Run || !is_somebody;
        let keys = Keys {
            key: who.key.clone(),
            run: who.run.clone().or_else(|| goes_by_itself.then(|| run.to_owned())),
            thread: who.thread.clone(),
            autopilot: who.agent.clone(),
            user: who.user.clone(),
        };
        let selected = standing.pointer.select(&keys);
        let rollout = Rollout::of(&standing.pointer, &selected, standing.n);
        Ok(bound(&artifact::find(self.open, &selected.artifact)?, rollout, Some(standing)))
    }

    /// Lets the guard look at what there is now, and act.
    fn guard(&mut self) -> Result<Option<(Value, String)>, Failure> {
        let Some(standing) = self.standing()? else { return Ok(None) };
        let Some(judgement) = self.watch.judge(self.open, &standing)? else { return Ok(None) };
        let Some(change) = guard::act(self.open, &standing, &judgement)? else { return Ok(None) };
        let word = change.action.word();
        let says = format!("guard: {word} as revision {} of {}: {}", change.n, change.signature, change.reason);
        Ok(Some((change_json(&change), says)))
    }
}

/// What is asked under such a name would count as an answer to whoever tries artifacts.
pub(super) fn refuse_trials(who: &Who) -> Result<(), Failure> {
    match who.run.as_deref().filter(|run| run.starts_with(evidence::TRIALS)) {
        Some(run) => {
            Err(Failure::new(error::USAGE, format!("{run:?}: runs of this name are those of compile and eval"))
                .hint("choose another name for --run"))
        }
        None => Ok(()),
    }
}

fn check_keys(standing: &Standing, who: &Who) -> Result<(), Failure> {
    let scope = standing.pointer.key_scope;
    if who.key.is_none() || scope == Scope::Auto {
        return Ok(());
    }
    let flag = rollout::flag_of(scope);
    let message = format!("the pointer of {} goes by {}, not by a key", standing.pointer.signature_id, scope.word());
    Err(Failure::new(error::USAGE, message)
        .hint(format!("give {flag} in place of --key; in a batch its name without --")))
}

/// By which way it went, off the receipt.
fn artifact_json(receipt: &Value) -> Value {
    let policy = &receipt["policy"];
    json!({
        "compiled_id": receipt["compiled_id"], "variant": policy["artifact_variant"],
        "rollout_bucket": policy["rollout_bucket"], "canary_percent": policy["canary_percent"],
        "key_scope": policy["key_scope"], "pointer_revision": policy["pointer_revision"],
    })
}

/// What somebody is told who got no answer.
fn failure_of(outcome: &Outcome, receipt: &str) -> Option<Failure> {
    if matches!(outcome.status, Status::Succeeded | Status::Partial) {
        return None;
    }
    let Some(stop) = &outcome.error else {
        return Some(Failure::new(error::PREDICT_FAILED, "no model answered"));
    };
    let name = match stop.reason_code.as_str() {
        "predict_failed.invalid_input" | "predict_failed.bad_prompt" => error::INPUT,
        "policy_denied.approval_required" | "policy_denied.threshold_exceeded" => error::APPROVAL_NEEDED,
        actum_predict::policy::HASH_MISMATCH => error::ARTIFACT_INCOMPATIBLE,
        _ if stop.is_denied => error::SPEND_DENIED,
        _ => error::PREDICT_FAILED,
    };
    let failure = Failure::new(name, format!("{}: {}", stop.reason_code, stop.message))
        .details(json!({"reason_code": stop.reason_code, "receipt_id": receipt}));
    Some(match name {
        error::SPEND_DENIED => failure.hint(format!("`actum policy explain {receipt}` shows the rule")),
        error::PREDICT_FAILED => failure.hint(format!("`actum trace show {receipt}` shows what was said")),
        error::ARTIFACT_INCOMPATIBLE => failure.hint("`actum artifact list --signature ID` shows what there is"),
        _ => failure,
    })
}

/// Signs the receipt, for whoever wants to verify it elsewhere.
fn sealed(open: &Open, receipt: &Value) -> Result<String, Failure> {
    let key = Key::find_or_make(&open.project)?;
    let text = actum_predict::hash::canonical(receipt);
    let name = receipt["receipt_id"].as_str().unwrap_or_default();
    let of = subject(name, Digest::sha256(&text), &Digest::blake3(&text).to_hex());
    let said = statement_of(PREDICTION_TYPE, vec![of], json!({"receiptId": name, "prediction": receipt}));
    let envelope = seal(&said, &key.signing);
    let folder = open.project.folder()?.join("predictions");
    let path = folder.join(format!("{name}.json"));
    let written = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, format!("{envelope}\n")));
    written.map_err(|e| Failure::of_io(format!("cannot write {}: {e}", path.display()), &e))?;
    Ok(told_to(&open.tenant, open.project.root(), &path))
}
