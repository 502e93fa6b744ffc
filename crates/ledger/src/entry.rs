//! One entry as it is stored: canonical JSON that names its predecessor, hashed as a leaf of the Merkle tree.
//!
//! The hash of an entry is its RFC 6962 leaf hash, and `prev` holds the hash of the entry before it, so that one
//! hash serves both the chain and the tree.

use actum_contract::canon;
use actum_contract::digest::Digest;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::draft::Draft;
use crate::merkle;
use crate::time;

/// Version of the stored form. Readers accept this and older ones; writers write this.
pub const FORMAT: u64 = 1;

/// A stored entry, opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub seq: u64,
    pub id: String,
    pub tenant: String,
    pub robot: Option<String>,
    pub module: String,
    pub source: String,
    pub kind: String,
    pub state: Option<String>,
    pub created_at: String,
    pub recorded_at: String,
    pub payload: Value,
    pub lineage: Option<Value>,
    pub prev: Digest,
    pub hash: Digest,
}

/// Why stored bytes are not an entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadEntry {
    #[error("stored text is not JSON: {0}")]
    Json(String),
    #[error("stored entry has no usable {0}")]
    Field(&'static str),
    #[error("stored entry has format {0}, this program reads up to {FORMAT}: use a newer one")]
    Newer(u64),
}

/// What the ledger adds to a draft.
#[derive(Debug, Clone, Copy)]
pub struct Seal<'a> {
    pub id: &'a str,
    pub seq: u64,
    pub prev: Digest,
    pub recorded_at: Timestamp,
}

/// The stored form of a draft. Members are in canonical order because they are written in it.
pub fn seal(draft: &Draft, seal: Seal<'_>) -> Vec<u8> {
    let recorded_at = time::format(seal.recorded_at);
    let created_at = draft.created_at.as_ref().map_or(recorded_at.as_str(), |(text, _)| text);
    let lineage_bytes = draft.lineage.as_ref().map_or(0, Vec::len);
    let mut out = Vec::with_capacity(draft.payload.len() + lineage_bytes + 512);
    let mut member = |key: &str, write: &dyn Fn(&mut Vec<u8>)| {
        out.push(if out.is_empty() { b'{' } else { b',' });
        canon::write_text(key, &mut out);
        out.push(b':');
        write(&mut out);
    };
    let text = |text: &str| {
        let text = text.to_owned();
        move |out: &mut Vec<u8>| canon::write_text(&text, out)
    };
    let number = |n: u64| move |out: &mut Vec<u8>| out.extend_from_slice(n.to_string().as_bytes());

    member("createdAt", &text(created_at));
    member("format", &number(FORMAT));
    member("id", &text(seal.id));
    if let Some(lineage) = &draft.lineage {
        member("lineage", &|out| out.extend_from_slice(lineage));
    }
    member("module", &text(&draft.module));
    member("payload", &|out| out.extend_from_slice(&draft.payload));
    member("prev", &text(&seal.prev.to_hex()));
    member("recordedAt", &text(&recorded_at));
    if let Some(robot) = &draft.robot {
        member("robotId", &text(robot));
    }
    member("seq", &number(seal.seq));
    member("source", &text(&draft.source));
    if let Some(state) = &draft.state {
        member("state", &text(state));
    }
    member("tenantId", &text(draft.tenant.as_str()));
    member("type", &text(&draft.kind));
    out.push(b'}');
    out
}

impl Entry {
    /// Opens stored bytes. Whether they are the bytes that were stored is `verify`'s question.
    pub fn open(body: &[u8]) -> Result<Self, BadEntry> {
        let mut value: Value = serde_json::from_slice(body).map_err(|e| BadEntry::Json(e.to_string()))?;
        let format = value["format"].as_u64().ok_or(BadEntry::Field("format"))?;
        if format > FORMAT {
            return Err(BadEntry::Newer(format));
        }
        let optional = |field: &str| value[field].as_str().map(str::to_owned);
        let text = |field: &'static str| optional(field).ok_or(BadEntry::Field(field));
        let entry = Self {
            seq: value["seq"].as_u64().ok_or(BadEntry::Field("seq"))?,
            id: text("id")?,
            tenant: text("tenantId")?,
            robot: optional("robotId"),
            module: text("module")?,
            source: text("source")?,
            kind: text("type")?,
            state: optional("state"),
            created_at: text("createdAt")?,
            recorded_at: text("recordedAt")?,
            prev: Digest::from_hex(&text("prev")?).ok_or(BadEntry::Field("prev"))?,
            payload: Value::Null,
            lineage: None,
            hash: merkle::leaf(body),
        };
        let payload = value["payload"].take();
        let lineage = value.get_mut("lineage").map(Value::take);
        Ok(Self { payload, lineage, ..entry })
    }

    /// The entry as other programs see it.
    pub fn to_json(&self) -> Value {
        let mut value = json!({
            "seq": self.seq, "id": self.id, "tenantId": self.tenant, "module": self.module, "source": self.source,
            "type": self.kind, "createdAt": self.created_at, "recordedAt": self.recorded_at, "payload": self.payload,
            "prev": self.prev.to_hex(), "hash": self.hash.to_hex(),
        });
        let mut put = |key: &str, member: Option<Value>| {
            if let Some(member) = member {
                value[key] = member;
            }
        };
        put("robotId", self.robot.clone().map(Value::String));
        put("state", self.state.clone().map(Value::String));
        put("lineage", self.lineage.clone());
        value
    }
}
