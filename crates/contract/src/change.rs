//! What may happen to the contract of a run that exists: keep it, override it, or fork the run.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::bad::BadConfig;
use crate::resolve::{Layers, resolve};
use crate::schema::{ExecutionConfig, Field, FieldValue, Partial};
use crate::version::Contract;

/// What the person resuming the run has asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    Resume,
    /// `--override-execution-config`
    Override,
    /// `--fork`
    Fork,
}

/// What follows for the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Resume under the persisted contract.
    Keep,
    /// Rewrite this run's contract, then resume it in place.
    Override(Contract),
    /// The source keeps its contract and hash; a new run is queued under this one.
    Fork(Contract),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldDiff {
    pub field: Field,
    pub persisted: FieldValue,
    pub requested: FieldValue,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    #[error(transparent)]
    Bad(#[from] BadConfig),
    #[error("requested execution config differs from the persisted one: {}", summary(.diff))]
    Mismatch { diff: Vec<FieldDiff>, persisted: Box<ExecutionConfig>, requested: Box<ExecutionConfig> },
}

impl ChangeError {
    /// `{diff: [{field, persisted, requested}], persisted, requested}` for a mismatch.
    pub fn details(&self) -> Value {
        match self {
            Self::Bad(bad) => json!({"fields": bad.fields}),
            Self::Mismatch { diff, persisted, requested } => {
                json!({"diff": diff_json(diff), "persisted": persisted, "requested": requested})
            }
        }
    }
}

fn summary(diff: &[FieldDiff]) -> String {
    diff.iter()
        .map(|d| format!("{}: {} -> {}", d.field.name(), d.persisted, d.requested))
        .collect::<Vec<_>>()
        .join(", ")
}

/// The fields in which two configs differ, in declared order.
pub fn diff(persisted: &ExecutionConfig, requested: &ExecutionConfig) -> Vec<FieldDiff> {
    Field::all()
        .map(|field| FieldDiff { field, persisted: persisted.get(field), requested: requested.get(field) })
        .filter(|d| d.persisted != d.requested)
        .collect()
}

pub fn diff_json(diff: &[FieldDiff]) -> Value {
    diff.iter()
        .map(|d| json!({"field": d.field.name(), "persisted": d.persisted.to_json(), "requested": d.requested.to_json()}))
        .collect()
}

/// Decides what resuming with a request means. The environment has no part in it: the contract is persisted.
pub fn change(persisted: &ExecutionConfig, requested: &Partial, intent: Intent) -> Result<Change, ChangeError> {
    let resolved = resolve(Layers { persisted: Some(persisted), requested, env: &BTreeMap::new() })?;
    let diff = diff(persisted, &resolved.config);
    match intent {
        Intent::Fork => Ok(Change::Fork(Contract::of(resolved.config))),
        _ if diff.is_empty() => Ok(Change::Keep),
        Intent::Override => Ok(Change::Override(Contract::of(resolved.config))),
        Intent::Resume => Err(ChangeError::Mismatch {
            diff,
            persisted: Box::new(persisted.clone()),
            requested: Box::new(resolved.config),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn persisted() -> ExecutionConfig {
        let preset = crate::schema::Profile::Ci.preset();
        ExecutionConfig::build(|f| match f {
            Field::Profile => FieldValue::Profile(crate::schema::Profile::Ci),
            _ => preset.get(f).unwrap_or(f.default_value()),
        })
    }

    fn ask(words: &[&str], intent: Intent) -> Result<Change, ChangeError> {
        change(&persisted(), &Partial::read_words(words.iter().copied()).unwrap(), intent)
    }

    #[test]
    fn the_same_config_resumes() {
        assert_eq!(ask(&[], Intent::Resume), Ok(Change::Keep));
        assert_eq!(ask(&["profile=ci"], Intent::Resume), Ok(Change::Keep));
        assert_eq!(ask(&["plannerTimeoutMs=5000"], Intent::Override), Ok(Change::Keep));
    }

    #[test]
    fn another_config_is_refused_with_the_diff() {
        let error = ask(&["plannerTimeoutMs=6000", "lightValidationMode=warn"], Intent::Resume).unwrap_err();
        let details = error.details();
        assert_eq!(
            details["diff"],
            json!([
                {"field": "lightValidationMode", "persisted": "off", "requested": "warn"},
                {"field": "plannerTimeoutMs", "persisted": 5000, "requested": 6000},
            ])
        );
        assert_eq!(details["persisted"]["plannerTimeoutMs"], 5000);
        assert_eq!(details["requested"]["plannerTimeoutMs"], 6000);
        assert!(error.to_string().contains("plannerTimeoutMs: 5000 -> 6000"));
    }

    #[test]
    fn override_and_fork_get_a_new_hash_and_a_fork_is_always_a_fork() {
        let before = Contract::of(persisted());
        let Ok(Change::Override(over)) = ask(&["plannerTimeoutMs=6000"], Intent::Override) else { panic!() };
        assert_ne!(over.hash, before.hash);
        let Ok(Change::Fork(fork)) = ask(&["plannerTimeoutMs=6000"], Intent::Fork) else { panic!() };
        assert_eq!(fork.hash, over.hash);
        assert!(fork.fallback_fields.is_empty());
        assert_eq!(ask(&[], Intent::Fork), Ok(Change::Fork(before)));
    }
}
