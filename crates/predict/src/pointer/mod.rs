//! Pointers: which artifact of a signature is live, which one is tried, and on whom.
//!
//! Changed by `cli` through the ledger, asked before every prediction. The same key gets the same answer from everybody
//! who knows the pointer: nothing is drawn, nothing is remembered.

use actum_contract::digest::Digest;
use actum_contract::part::{Flaw, Part};
use serde_json::{Map, Value, json};

use crate::artifact::{is_id, read_signature_id, read_version};
use crate::guard::Guard;
use crate::{depth, hash};

/// Of the form pointers are kept in.
pub const VERSION: u64 = 1;

/// How a bucket is found; it stands in pointers and receipts, so that anybody can find it again.
pub const BUCKET_ALGO: &str = "sha256-be32-mod100.v1";

/// Buckets there are, and so the most percent.
const BUCKETS: u8 = 100;

/// What is used where nobody says anything.
const DEFAULT: &str = "default";

const SEED_BYTES_MAX: usize = 200;

/// Bytes of metadata and of a guard, as canonical JSON, and levels of each.
const METADATA_BYTES_MAX: usize = 16 << 10;
const GUARD_BYTES_MAX: usize = 16 << 10;
const LEVELS_MAX: usize = 32;

/// Letters of a key that are told.
const KEY_CHARS_SHOWN: usize = 80;

const NOUN: &str = "a pointer";

/// The first 8 hex digits of the SHA-256 of `signature_id|rollout_seed|canary_key` as a number, mod 100.
pub fn bucket(signature_id: &str, rollout_seed: &str, canary_key: &str) -> u8 {
    let parts: [&[u8]; 5] = [signature_id.as_bytes(), b"|", rollout_seed.as_bytes(), b"|", canary_key.as_bytes()];
    let Digest([a, b, c, d, ..]) = Digest::sha256_parts(&parts);
    let rest = u32::from_be_bytes([a, b, c, d]) % u32::from(BUCKETS);
    u8::try_from(rest).expect("a rest of 100 is less than 100")
}

/// What the key of a rollout is: what stays together stays with one artifact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The first that is known, from the key given to the user.
    Auto,
    Run,
    Thread,
    Autopilot,
    User,
}

impl Scope {
    pub const ALL: [Self; 5] = [Self::Auto, Self::Run, Self::Thread, Self::Autopilot, Self::User];

    pub const fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Run => "run",
            Self::Thread => "thread",
            Self::Autopilot => "autopilot",
            Self::User => "user",
        }
    }

    pub fn read(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.word() == word)
    }
}

/// Who asks, as far as it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keys {
    /// Given by whoever asks, for `auto`.
    pub key: Option<String>,
    pub run: Option<String>,
    pub thread: Option<String>,
    pub autopilot: Option<String>,
    pub user: Option<String>,
}

impl Keys {
    /// What counts in a scope, and what it is. An empty text is no key.
    fn find(&self, scope: Scope) -> Option<(&'static str, &str)> {
        let all = [
            ("key", &self.key),
            (Scope::Run.word(), &self.run),
            (Scope::Thread.word(), &self.thread),
            (Scope::Autopilot.word(), &self.autopilot),
            (Scope::User.word(), &self.user),
        ];
        let mut known =
            all.into_iter().filter_map(|(name, key)| Some((name, key.as_deref().filter(|key| !key.is_empty())?)));
        match scope {
            Scope::Auto => known.next().or(Some((DEFAULT, DEFAULT))),
            scope => known.find(|(name, _)| *name == scope.word()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    Primary,
    Canary,
}

impl Variant {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Canary => "canary",
        }
    }
}

/// What somebody gets, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    pub artifact: String,
    pub variant: Variant,
    /// Without a key: none.
    pub bucket: Option<u8>,
    /// Which key has counted: `key`, `run`, `thread`, `autopilot`, `user`, `default`, or `none`.
    pub scope: &'static str,
    /// One sentence, for people.
    pub why: String,
}

/// Which artifact is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Pointer {
    pub signature_id: String,
    pub primary_artifact: String,
    pub canary_artifact: Option<String>,
    pub canary_percent: u8,
    pub rollout_seed: String,
    pub key_scope: Scope,
    pub metadata: Map<String, Value>,
    /// When the canary is promoted or withdrawn by itself: a `Guard`, as it was declared.
    pub guard: Option<Value>,
}

impl Pointer {
    pub fn new(signature_id: &str, primary: &str) -> Self {
        Self {
            signature_id: signature_id.to_owned(),
            primary_artifact: primary.to_owned(),
            canary_artifact: None,
            canary_percent: 0,
            rollout_seed: DEFAULT.to_owned(),
            key_scope: Scope::Auto,
            metadata: Map::new(),
            guard: None,
        }
    }

    /// Reads a pointer; every flaw is found, not only the first.
    pub fn read(value: &Value) -> Result<Self, Vec<Flaw>> {
        let mut flaws = Vec::new();
        let pointer = read(&mut Part::new(value, "", NOUN, &mut flaws));
        match (pointer, flaws.is_empty()) {
            (Some(pointer), true) => Ok(pointer),
            _ => Err(flaws),
        }
    }

    /// As it is kept: every field, whether it says something or not.
    pub fn to_json(&self) -> Value {
        json!({
            "version": VERSION,
            "signature_id": self.signature_id,
            "primary_artifact": self.primary_artifact,
            "canary_artifact": self.canary_artifact,
            "canary_percent": self.canary_percent,
            "rollout_seed": self.rollout_seed,
            "key_scope": self.key_scope.word(),
            "bucket_algo": BUCKET_ALGO,
            "metadata": self.metadata,
            "guard": self.guard,
        })
    }

    /// What whoever has these keys gets.
    pub fn select(&self, keys: &Keys) -> Selection {
        let found = keys.find(self.key_scope);
        let bucket = found.map(|(_, key)| bucket(&self.signature_id, &self.rollout_seed, key));
        let canary = self.canary_artifact.as_ref().filter(|_| bucket.is_some_and(|n| self.canary_percent > n));
        let variant = if canary.is_some() { Variant::Canary } else { Variant::Primary };
        Selection {
            artifact: canary.unwrap_or(&self.primary_artifact).clone(),
            variant,
            bucket,
            scope: found.map_or("none", |(name, _)| name),
            why: self.why(found.zip(bucket), variant),
        }
    }

    fn why(&self, found: Option<((&str, &str), u8)>, variant: Variant) -> String {
        let percent = self.canary_percent;
        let Some(((name, key), bucket)) = found else {
            let scope = self.key_scope.word();
            return format!("the pointer goes by {scope}, and none is known: this is the primary");
        };
        let key: String = key.chars().take(KEY_CHARS_SHOWN).collect();
        let who = match name {
            DEFAULT => "no key is known, and \"default\"".to_owned(),
            name => format!("the {name} {key:?}"),
        };
        let in_bucket = format!("{who} is in bucket {bucket}");
        match (variant, &self.canary_artifact) {
            (_, None) => format!("{in_bucket}, and there is no canary: this is the primary"),
            (Variant::Canary, _) => format!("{in_bucket}, below {percent}: this is the canary"),
            (Variant::Primary, _) => {
                format!("{in_bucket}, and the canary takes those below {percent}: this is the primary")
            }
        }
    }

    /// With an artifact that is tried on so many percent. The guard of another canary does not hold for this one.
    pub fn set_canary(&self, artifact: &str, percent: u8) -> Self {
        let guard = self.guard.clone().filter(|_| self.canary_artifact.as_deref() == Some(artifact));
        Self { canary_artifact: Some(artifact.to_owned()), canary_percent: percent.min(BUCKETS), guard, ..self.clone() }
    }

    pub fn without_canary(&self) -> Self {
        Self { canary_artifact: None, canary_percent: 0, guard: None, ..self.clone() }
    }

    /// With another artifact for everybody.
    pub fn promoted(&self, artifact: &str) -> Self {
        Self { primary_artifact: artifact.to_owned(), ..self.without_canary() }
    }
}

fn read(part: &mut Part<'_>) -> Option<Pointer> {
    read_version(part);
    let signature_id = read_signature_id(part);
    if !part.has("primary_artifact") {
        part.bad("primary_artifact", &Value::Null, ARTIFACT);
    }
    let primary = read_artifact(part, "primary_artifact");
    let has_canary = part.has("canary_artifact");
    let canary = read_artifact(part, "canary_artifact");
    if canary.is_some() && canary == primary {
        part.bad("canary_artifact", &json!(canary), "another one than primary_artifact");
    }
    let canary_percent = match part.take("canary_percent") {
        None => Some(0),
        Some(value) => {
            let found = value.as_u64().and_then(|n| u8::try_from(n).ok()).filter(|n| *n <= BUCKETS);
            if found.is_none() {
                part.bad("canary_percent", &value, "a whole number from 0 to 100");
            }
            found
        }
    };
    if !has_canary && canary_percent.is_some_and(|n| n > 0) {
        part.bad("canary_percent", &json!(canary_percent), "0 where there is no canary_artifact");
    }
    let rollout_seed = part.text("rollout_seed").unwrap_or_else(|| DEFAULT.to_owned());
    if !(1..=SEED_BYTES_MAX).contains(&rollout_seed.len()) || rollout_seed.contains('|') {
        part.bad("rollout_seed", &json!(rollout_seed), &format!("1 to {SEED_BYTES_MAX} bytes without |"));
    }
    let key_scope = match part.text("key_scope") {
        None => Some(Scope::Auto),
        Some(word) => {
            let scope = Scope::read(&word);
            if scope.is_none() {
                let words = Scope::ALL.map(Scope::word).join(", ");
                part.bad("key_scope", &json!(word), &format!("one of {words}"));
            }
            scope
        }
    };
    if let Some(other) = part.take("bucket_algo").filter(|algo| *algo != BUCKET_ALGO) {
        part.bad("bucket_algo", &other, BUCKET_ALGO);
    }
    let metadata = read_object(part, "metadata", METADATA_BYTES_MAX);
    let guard = read_object(part, "guard", GUARD_BYTES_MAX);
    match &guard {
        Some(guard) if !has_canary => part.bad("guard", &json!(guard), "nothing where there is no canary_artifact"),
        Some(guard) => {
            let at = part.name("guard");
            Guard::check(&json!(guard), &at, part.flaws);
        }
        None => {}
    }
    part.finish();
    Some(Pointer {
        signature_id: signature_id?,
        primary_artifact: primary?,
        canary_artifact: canary,
        canary_percent: canary_percent?,
        rollout_seed,
        key_scope: key_scope?,
        metadata: metadata.unwrap_or_default(),
        guard: guard.map(Value::Object),
    })
}

const ARTIFACT: &str = "the id of an artifact: art_ and 24 hex digits";

fn read_artifact(part: &mut Part<'_>, field: &str) -> Option<String> {
    let id = part.text(field)?;
    if !is_id(&id) {
        part.bad(field, &json!(id), ARTIFACT);
        return None;
    }
    Some(id)
}

fn read_object(part: &mut Part<'_>, field: &str, bytes_max: usize) -> Option<Map<String, Value>> {
    let value = part.take(field)?;
    if depth::is_deeper(&value, LEVELS_MAX) {
        part.bad(field, &json!("too deep"), &format!("at most {LEVELS_MAX} levels"));
        return None;
    }
    match value {
        Value::Object(fields) if hash::canonical(&json!(fields)).len() <= bytes_max => Some(fields),
        other => {
            part.bad(field, &other, &format!("an object of at most {bytes_max} bytes"));
            None
        }
    }
}

#[cfg(test)]
mod tests;
