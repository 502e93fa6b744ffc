//! `actum pointer`: which artifact of a signature is live, which one is tried on whom, who changed that, and why.

mod explain;
pub(crate) mod look;

use std::path::PathBuf;

use actum_api::error;
use actum_contract::canon;
use actum_ledger::pointer::Action;
use actum_predict::Signature;
use actum_predict::guard::Guard;
use actum_predict::hash;
use actum_predict::pointer::{Pointer, Scope};
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::Ended;
use super::tool::actor;
use crate::args::Global;
use crate::document::Document;
use crate::failure::Failure;
use crate::model::rollout::{self, Move, Standing};
use crate::model::{artifact, guard};
use crate::project::Project;
use crate::run::shop::Open;
use crate::tool::register::By;
use crate::ui::Out;

use look::{change_json, change_text, standing_json};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Where the pointer of a signature stands
    Show {
        /// namespace/name.vN
        signature: String,
    },
    /// All pointers
    List,
    /// Point a signature to an artifact; what was tried beside the old one is withdrawn
    Set(Box<Set>),
    /// Try an artifact on a part of those who ask, or withdraw it
    Canary(Box<Canary>),
    /// Make the artifact that is tried, or another one, the one for all
    Promote {
        /// namespace/name.vN
        signature: String,
        /// The artifact, if not the one that is tried; or baseline
        #[arg(long, value_name = "ID")]
        artifact: Option<String>,
        #[command(flatten)]
        why: Why,
    },
    /// Go one state back, and further each time
    Rollback {
        /// namespace/name.vN
        signature: String,
        /// Go back to what this revision left
        #[arg(long, value_name = "N")]
        to: Option<u64>,
        #[command(flatten)]
        why: Why,
    },
    /// Who moved it, when and why; the newest first
    History {
        /// namespace/name.vN
        signature: String,
    },
    /// Whether one change follows from what is on record; what a guard decided is judged again, and compared
    Explain {
        /// namespace/name.vN
        signature: String,
        /// The revision that it made
        revision: u64,
    },
    /// Show the artifact that a caller would get, and why
    Select {
        /// namespace/name.vN
        signature: String,
        #[command(flatten)]
        keys: SelectKeys,
    },
    /// Judge the artifact that is tried by its guard now, and act
    Guard {
        /// namespace/name.vN
        signature: String,
        /// Judge, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
}

/// Who changes something, why, and at which revision.
#[derive(Debug, Args)]
pub(crate) struct Why {
    /// Why; kept in the ledger with the change
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Who changes it, if it is not the user
    #[arg(long, value_name = "NAME")]
    actor: Option<String>,
    /// Only if the pointer stands at this revision; 0: if there is none
    #[arg(long = "if", id = "if", value_name = "N")]
    only_if: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct Set {
    /// namespace/name.vN
    signature: String,
    /// An artifact or the beginning of its id; or baseline, the signature's own way
    #[arg(long, value_name = "ID")]
    primary: String,
    /// Assigns callers to buckets; another seed assigns them again [default: unchanged]
    #[arg(long, value_name = "TEXT")]
    seed: Option<String>,
    /// By what those who ask are told apart: auto, run, thread, autopilot, user [default: as it was]
    #[arg(long, value_name = "SCOPE")]
    key_scope: Option<String>,
    /// Kept with the pointer: a JSON object
    #[arg(long, value_name = "JSON")]
    metadata: Option<String>,
    #[command(flatten)]
    why: Why,
}

#[derive(Debug, Args)]
pub(crate) struct Canary {
    /// namespace/name.vN
    signature: String,
    /// An artifact or the beginning of its id; or baseline, the signature's own way
    #[arg(long, value_name = "ID", required_unless_present = "clear", requires = "percent")]
    artifact: Option<String>,
    /// How many of a hundred get it
    #[arg(long, value_name = "N", requires = "artifact", value_parser = clap::value_parser!(u8).range(0..=100))]
    percent: Option<u8>,
    /// What decides by itself whether it becomes the one for all: a YAML or JSON file
    #[arg(long, value_name = "FILE", requires = "artifact")]
    guard: Option<PathBuf>,
    /// Assigns callers to buckets again
    #[arg(long, value_name = "TEXT", requires = "artifact")]
    seed: Option<String>,
    /// Withdraw what is tried
    #[arg(long, conflicts_with = "artifact")]
    clear: bool,
    #[command(flatten)]
    why: Why,
}

#[derive(Debug, Args)]
pub(crate) struct SelectKeys {
    /// The caller's key
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    #[arg(long, value_name = "ID")]
    run: Option<String>,
    #[arg(long, value_name = "ID")]
    thread: Option<String>,
    #[arg(long, value_name = "ID")]
    autopilot: Option<String>,
    #[arg(long, value_name = "ID")]
    user: Option<String>,
}

impl Verb {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let open = Open::new(Project::find(global)?, out)?;
        match self {
            Self::Show { signature } => {
                let standing = found(&open, &signature)?;
                out.result(&standing_json(&standing), || look::standing_text(&standing));
                Ok(0)
            }
            Self::List => look::list(&open, out),
            Self::Set(wanted) => set(&open, *wanted, out),
            Self::Canary(wanted) => canary(&open, *wanted, out),
            Self::Promote { signature, artifact, why } => promote(&open, &signature, artifact.as_deref(), why, out),
            Self::Rollback { signature, to, why } => rollback(&open, &signature, to, why, out),
            Self::History { signature } => look::history(&open, &signature, out),
            Self::Explain { signature, revision } => explain::run(&open, &signature, revision, out),
            Self::Select { signature, keys } => look::select(&open, &signature, keys, out),
            Self::Guard { signature, dry_run } => look::judge(&open, &signature, dry_run, out),
        }
    }
}

/// Where a pointer stands, of a signature that may have one.
fn found(open: &Open, signature: &str) -> Result<Standing, Failure> {
    rollout::refuse_ours(signature)?;
    rollout::found(open, signature)
}

impl Why {
    /// Who and why, if the pointer stands where it is wanted to.
    fn by(self, open: &Open, signature: &str, standing: Option<&Standing>) -> Result<By, Failure> {
        let n = standing.map_or(0, |standing| standing.n);
        match self.only_if {
            Some(wanted) if wanted != n && n == 0 => {
                let message = format!("{signature} has no pointer, and so no revision {wanted}");
                return Err(Failure::new(error::POINTER_CONFLICT, message)
                    .details(json!({"signature_id": signature, "revision": 0}))
                    .hint("`--if 0` stands for that"));
            }
            Some(wanted) if wanted != n => return Err(rollout::conflict(open, signature, n)?),
            _ => {}
        }
        let by = By { actor: actor(self.actor), reason: self.reason };
        if by.reason.trim().is_empty() || by.actor.trim().is_empty() {
            let failure = Failure::new(error::USAGE, "a change needs an actor and a reason");
            return Err(failure.hint("say why: --reason TEXT"));
        }
        if by.actor.trim() == guard::ACTOR {
            let failure = Failure::new(error::USAGE, "a guard moves pointers by itself; its name cannot be used");
            return Err(failure.hint("say who you are: --actor NAME"));
        }
        Ok(by)
    }
}

fn set(open: &Open, wanted: Set, out: &mut Out) -> Ended {
    let signature = rollout::signature(open, &wanted.signature)?;
    let standing = rollout::standing(open, &wanted.signature)?;
    let by = wanted.why.by(open, &wanted.signature, standing.as_ref())?;
    let scope = wanted.key_scope.as_deref().map(scope_named).transpose()?;
    let metadata = wanted.metadata.as_deref().map(object).transpose()?;
    let primary = named(open, &signature, &wanted.primary)?;
    let mut after = match &standing {
        None => Pointer::new(&wanted.signature, &primary),
        Some(standing) => standing.pointer.promoted(&primary),
    };
    if let Some(seed) = wanted.seed {
        after.rollout_seed = seed;
    }
    if let Some(scope) = scope {
        after.key_scope = scope;
    }
    if let Some(metadata) = metadata {
        after.metadata = metadata;
    }
    let action = Action::Set;
    change(open, &wanted.signature, standing.as_ref(), Move { action, restores: None, after, by, decision: None }, out)
}

fn canary(open: &Open, wanted: Canary, out: &mut Out) -> Ended {
    let id = &wanted.signature;
    let signature = rollout::signature(open, id)?;
    let standing = rollout::found(open, id)?;
    let by = wanted.why.by(open, id, Some(&standing))?;
    let before = &standing.pointer;
    let (Some(text), Some(percent)) = (wanted.artifact, wanted.percent) else {
        let after = before.without_canary();
        let action = Action::ClearCanary;
        return change(open, id, Some(&standing), Move { action, restores: None, after, by, decision: None }, out);
    };
    let guard = wanted.guard.map(|path| read_guard(&path)).transpose()?;
    let tried = named(open, &signature, &text)?;
    if let Some(guard) = &guard {
        guard
            .score
            .check(&signature.output_schema)
            .map_err(|why| Failure::new(error::INPUT, format!("the guard's score: {why}")))?;
        if percent == 100 && guard.bounds.iter().any(|bound| bound.is_ratio) {
            out.remark("with 100 % there is no primary to compare with: a bound with ratio_to_primary never comes to its samples");
        }
    }
    let kept = before.guard.clone().filter(|_| before.canary_artifact.as_deref() == Some(&*tried));
    let mut after = before.set_canary(&tried, percent);
    after.guard = guard.map(|guard| guard.to_json()).or(kept);
    if let Some(seed) = wanted.seed {
        after.rollout_seed = seed;
    }
    let action = Action::SetCanary;
    change(open, id, Some(&standing), Move { action, restores: None, after, by, decision: None }, out)
}

fn promote(open: &Open, id: &str, artifact: Option<&str>, why: Why, out: &mut Out) -> Ended {
    let signature = rollout::signature(open, id)?;
    let standing = rollout::found(open, id)?;
    let by = why.by(open, id, Some(&standing))?;
    let artifact = match (artifact, &standing.pointer.canary_artifact) {
        (Some(text), _) => named(open, &signature, text)?,
        (None, Some(tried)) => named(open, &signature, tried)?,
        (None, None) => {
            let failure = Failure::new(error::USAGE, format!("{id} has no canary that could be promoted"));
            return Err(failure.hint("name an artifact by --artifact, or try one first: `actum pointer canary`"));
        }
    };
    let (action, after) = (Action::Promote, standing.pointer.promoted(&artifact));
    change(open, id, Some(&standing), Move { action, restores: None, after, by, decision: None }, out)
}

fn rollback(open: &Open, id: &str, to: Option<u64>, why: Why, out: &mut Out) -> Ended {
    let standing = found(open, id)?;
    let by = why.by(open, id, Some(&standing))?;
    let unavailable = |message: String| {
        let failure = Failure::new(error::ROLLBACK_UNAVAILABLE, message);
        failure.hint(format!("`actum pointer history {id}` shows the states there were"))
    };
    let (restores, after) = match to {
        None => rollout::earlier(open, id, standing.restores)?
            .ok_or_else(|| unavailable(format!("{id} stands at the first state it had, of revision 1")))?,
        Some(to) if to == 0 || to >= standing.n => {
            return Err(unavailable(format!("{id} is at revision {}; {to} is none before it", standing.n)));
        }
        Some(to) => rollout::left_by(open, id, to)?,
    };
    if restores == standing.restores {
        return Err(unavailable(format!("{id} stands at what revision {restores} left already")));
    }
    let (action, restores, tried) = (Action::Rollback, Some(restores), after.canary_artifact.clone());
    let percent = after.canary_percent;
    let code = change(open, id, Some(&standing), Move { action, restores, after, by, decision: None }, out)?;
    if let Some(tried) = tried {
        out.remark(&format!(
            "{tried} is tried on {percent} % again; a guard only withdraws it now, and `actum pointer canary {id} --clear` does at once"
        ));
    }
    Ok(code)
}

/// Makes a change and tells what it did. What would leave everything as it is leaves no trace, but for a rollback.
fn change(open: &Open, id: &str, before: Option<&Standing>, wanted: Move, out: &mut Out) -> Ended {
    // As canonical text: a number that was kept may be written in another way.
    let is_there = |standing: &&Standing| hash::of(&standing.pointer.to_json()) == hash::of(&wanted.after.to_json());
    // Who sets what he went back to has made up his mind: its guard promotes again.
    let is_same = |standing: &&Standing| is_there(standing) && !standing.is_restored();
    if let Some(standing) = before.filter(is_same)
        && wanted.action != Action::Rollback
    {
        let mut shown = standing_json(standing);
        shown["changed"] = json!(false);
        out.result(&shown, || format!("{id} stands there already, at revision {}", standing.n));
        return Ok(0);
    }
    let made = rollout::make(open, id, before, wanted)?;
    let mut shown = change_json(&made);
    shown["changed"] = json!(true);
    out.result(&shown, || change_text(&made));
    Ok(0)
}

/// The id of what is named, which exists and fits; the signature's own way is registered if need be.
fn named(open: &Open, signature: &Signature, text: &str) -> Result<String, Failure> {
    let found = artifact::fitting(open, signature, text)?;
    if text == artifact::BASELINE {
        artifact::add(open, &found)?;
    }
    Ok(found.id())
}

fn scope_named(word: &str) -> Result<Scope, Failure> {
    Scope::read(word).ok_or_else(|| {
        let words = Scope::ALL.map(Scope::word).join(", ");
        Failure::new(error::USAGE, format!("there is no key scope {word:?}")).hint(format!("there are {words}"))
    })
}

fn object(text: &str) -> Result<Map<String, Value>, Failure> {
    let bad = |why: String| Failure::new(error::USAGE, format!("--metadata is no JSON object{why}"));
    match canon::parse(text.as_bytes()) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(bad(String::new())),
        Err(e) => Err(bad(format!(": {}", e.message))),
    }
}

fn read_guard(path: &std::path::Path) -> Result<Guard, Failure> {
    let document = Document::read(path)?;
    Guard::read(&document.value()?).map_err(|flaws| document.flawed(&flaws, "guard"))
}
