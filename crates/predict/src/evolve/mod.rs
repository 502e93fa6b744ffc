//! Payloads of the ledger, brought to the version of today. Every reader passes here; what was written is never changed.
//!
//! Fields are added without a new version, and unknown ones are kept. What would be read otherwise gets a new version, a
//! step here, and a golden file of the old one in `golden/`, for good.

use serde_json::{Value, json};

use crate::{artifact, compile, dataset, pointer, receipt, signature};

/// Which payload it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Signature,
    Receipt,
    Artifact,
    Pointer,
    Label,
    Dataset,
    Compile,
    Eval,
}

/// What was written by a program that is newer than this one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a {} of version {found} was found, and version {known} is the newest that is known: use a newer actum", .kind.word())]
pub struct Newer {
    pub kind: Kind,
    /// As it stands there.
    pub found: String,
    pub known: u64,
}

/// From one version to the next.
type Step = fn(&mut Value);

const FIRST: u64 = 1;

impl Kind {
    pub const ALL: [Self; 8] = [
        Self::Signature,
        Self::Receipt,
        Self::Artifact,
        Self::Pointer,
        Self::Label,
        Self::Dataset,
        Self::Compile,
        Self::Eval,
    ];

    /// The type of its entry in the ledger.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Signature => "signature_catalog",
            Self::Receipt => "prediction_receipt",
            Self::Artifact => "compiled_artifact",
            Self::Pointer => "pointer_change",
            Self::Label => "prediction_label",
            Self::Dataset => "prediction_dataset",
            Self::Compile => "compile_report",
            Self::Eval => "eval_report",
        }
    }

    pub fn read(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }

    /// The version that is written today.
    pub const fn version(self) -> u64 {
        match self {
            Self::Signature => signature::CATALOG_VERSION,
            Self::Receipt => receipt::VERSION,
            Self::Artifact => artifact::VERSION,
            Self::Pointer => pointer::VERSION,
            Self::Label => dataset::LABEL_VERSION,
            Self::Dataset => dataset::VERSION,
            Self::Compile | Self::Eval => compile::VERSION,
        }
    }

    /// Where a payload says its version.
    const fn place(self) -> &'static str {
        match self {
            Self::Signature => "/catalog_version",
            Self::Receipt => "/receipt/receipt_version",
            _ => "/version",
        }
    }

    /// The steps there are, the first one from version 1.
    const fn steps(self) -> &'static [Step] {
        match self {
            Self::Receipt => &[receipt_without_pointer],
            _ => &[],
        }
    }
}

/// A payload in the version of today. One that does not say its version is of the first. A receipt keeps its id: what that
/// covers is not touched.
pub fn read(kind: Kind, mut payload: Value) -> Result<Value, Newer> {
    let known = kind.version();
    let found = match payload.pointer(kind.place()) {
        None | Some(Value::Null) => FIRST,
        Some(said) => said.as_u64().filter(|found| (FIRST..=known).contains(found)).ok_or_else(|| Newer {
            kind,
            found: said.to_string(),
            known,
        })?,
    };
    let done = usize::try_from(found - FIRST).unwrap_or(usize::MAX);
    for step in kind.steps().iter().skip(done) {
        step(&mut payload);
    }
    Ok(payload)
}

/// Version 2 tells which pointer has decided, if one has; before, there were none.
fn receipt_without_pointer(payload: &mut Value) {
    if let Some(receipt) = payload.get_mut("receipt").and_then(Value::as_object_mut) {
        receipt.insert("receipt_version".to_owned(), json!(2));
    }
}

#[cfg(test)]
mod tests;
