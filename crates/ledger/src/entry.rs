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
use crate::time::{self, Moment};

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
    pub recorded: &'a Moment,
}

/// The stored form of a draft. Members are in canonical order because they are written in it.
pub fn seal(draft: &Draft, seal: Seal<'_>) -> Vec<u8> {
    let created_at = draft.created_at.as_ref().map_or(seal.recorded.text.as_str(), |(text, _)| text);
    let lineage_bytes = draft.lineage.as_ref().map_or(0, Vec::len);
    let mut out = Vec::with_capacity(draft.payload.len() + lineage_bytes + 640);
    out.push(b'{');
    text_member(&mut out, "createdAt", created_at);
    raw_member(&mut out, "format", FORMAT.to_string().as_bytes());
    text_member(&mut out, "id", seal.id);
    if let Some(lineage) = &draft.lineage {
        raw_member(&mut out, "lineage", lineage);
    }
    text_member(&mut out, "module", &draft.module);
    raw_member(&mut out, "payload", &draft.payload);
    text_member(&mut out, "prev", &seal.prev.to_hex());
    text_member(&mut out, "recordedAt", &seal.recorded.text);
    if let Some(robot) = &draft.robot {
        text_member(&mut out, "robotId", robot);
    }
    raw_member(&mut out, "seq", seal.seq.to_string().as_bytes());
    text_member(&mut out, "source", &draft.source);
    if let Some(state) = &draft.state {
        text_member(&mut out, "state", state);
    }
    text_member(&mut out, "tenantId", draft.tenant.as_str());
    text_member(&mut out, "type", &draft.kind);
    out.push(b'}');
    out
}

/// When a stored entry was recorded, without opening all of it. Within strings quotes are escaped, and canonical order puts
/// the member behind the payload: the last match is the member itself.
pub fn recorded_at(body: &[u8]) -> Option<Timestamp> {
    const MEMBER: &[u8] = b"\"recordedAt\":\"";
    let start = body.windows(MEMBER.len()).rposition(|part| part == MEMBER)? + MEMBER.len();
    let text = body.get(start..)?.split(|byte| *byte == b'"').next()?;
    time::parse(std::str::from_utf8(text).ok()?).ok()
}

fn text_member(out: &mut Vec<u8>, key: &str, value: &str) {
    begin_member(out, key);
    canon::write_text(value, out);
}

/// `value` is canonical text already.
fn raw_member(out: &mut Vec<u8>, key: &str, value: &[u8]) {
    begin_member(out, key);
    out.extend_from_slice(value);
}

fn begin_member(out: &mut Vec<u8>, key: &str) {
    if out.len() > 1 {
        out.push(b',');
    }
    canon::write_text(key, out);
    out.push(b':');
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
