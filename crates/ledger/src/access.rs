//! Who may enter: tokens, made and revoked by entries of the ledger, and answers kept for whoever asks twice.
//!
//! A token is made by change 1 and revoked by change 2, and by no other; the id of an entry names the token and the change, so
//! that of two who revoke it one does. A token's id is one among all tenants, because who brings it says nothing else. No
//! entry holds a secret: the hash of 32 random bytes leads back to nothing. Called by the store, which keeps each token as a
//! row, and by `cli`. It never sees the secret, never reads a clock, and does not know what a role may do.

use std::fmt;

use actum_contract::id::Tenant;
use actum_contract::limit::INTEGER_SAFE_MAX;
use serde_json::{Map, Value, json};

use crate::entry::Entry;
use crate::event::{Fields, whole, words};
use crate::journal::Work;

pub const TYPE: &str = "access_change";
pub const MODULE: &str = "access";
pub const SOURCE: &str = "actum";

/// Version of the payload. Readers accept this and older ones; writers write this.
pub const VERSION: u64 = 1;

/// Hex digits of a token's id, and of the hash of its secret.
pub const TOKEN_DIGITS: usize = 16;
pub const HASH_DIGITS: usize = 64;

pub const REASON_BYTES_MAX: usize = 4 << 10;

/// How long an answer is kept for whoever asks the same again, in milliseconds: a day.
pub const KEPT_MS_MAX: i64 = 24 * 60 * 60 * 1_000;

/// The largest content of an answer that is kept.
pub const KEPT_BYTES_MAX: usize = 1 << 20;

const FIELDS: [&str; 10] = ["version", "token", "n", "action", "role", "name", "hash", "expires_ms", "actor", "reason"];

words!(
    /// What somebody with the token may do.
    Role { Reader = "reader", Operator = "operator", Approver = "approver", Admin = "admin" }
);

words!(
    /// What a change does.
    Action { Create = "create", Revoke = "revoke" }
);

impl Action {
    /// The only number such a change has.
    pub const fn n(self) -> u64 {
        match self {
            Self::Create => 1,
            Self::Revoke => 2,
        }
    }
}

/// One change of one token. A revocation says of it what its making said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub tenant: Tenant,
    /// Its id: 16 hex digits.
    pub token: String,
    pub n: u64,
    pub action: Action,
    pub role: Role,
    pub name: String,
    /// SHA-256 of the secret, in hex.
    pub hash: String,
    /// From then on it opens nothing, in milliseconds since 1970.
    pub expires_ms: Option<i64>,
    pub actor: String,
    pub reason: String,
}

impl Change {
    /// The document for the ledger.
    pub fn document(&self) -> Value {
        let mut payload = json!({
            "version": VERSION, "token": self.token, "n": self.n, "action": self.action.word(),
            "role": self.role.word(), "name": self.name, "hash": self.hash, "actor": self.actor,
            "reason": self.reason,
        });
        if let Some(expires_ms) = self.expires_ms {
            payload["expires_ms"] = json!(expires_ms);
        }
        json!({
            "tenantId": self.tenant.as_str(), "module": MODULE, "source": SOURCE, "type": TYPE,
            "id": entry_id(&self.token, self.n), "payload": payload,
        })
    }
}

/// The id of the entry with change `n` of a token.
pub fn entry_id(token: &str, n: u64) -> String {
    format!("{ID_PREFIX}{token}:{n}")
}

const ID_PREFIX: &str = "access:token:";

/// Whether this may be the id of a token.
pub fn is_token(id: &str) -> bool {
    is_hex(id, TOKEN_DIGITS)
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// A token as its newest change left it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    pub id: String,
    pub tenant: Tenant,
    pub role: Role,
    pub name: String,
    pub hash: String,
    pub expires_ms: Option<i64>,
    pub is_revoked: bool,
    pub n: u64,
}

impl Token {
    /// Whether it opens anything at that moment.
    pub fn is_in_force(&self, now_ms: i64) -> bool {
        !self.is_revoked && self.expires_ms.is_none_or(|at| now_ms < at)
    }

    /// The id of the change that must be on record before this one.
    pub(crate) fn follows(&self) -> Option<String> {
        (self.n > 1).then(|| entry_id(&self.id, self.n - 1))
    }

    /// What a later change says of it otherwise, by the fields of the payload.
    pub(crate) fn differences(&self, later: &Self) -> Vec<&'static str> {
        let all = [
            ("token", self.tenant == later.tenant),
            ("role", self.role == later.role),
            ("name", self.name == later.name),
            ("hash", self.hash == later.hash),
            ("expires_ms", self.expires_ms == later.expires_ms),
        ];
        all.into_iter().filter(|(_, is_same)| !is_same).map(|(field, _)| field).collect()
    }
}

/// An answer as it was given, for whoever asks the same again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// Of the request it answers.
    pub request_hash: String,
    pub status: u16,
    pub content_type: String,
    pub body: Vec<u8>,
    pub exit: u8,
    /// When it was given, in milliseconds since 1970.
    pub at_ms: i64,
}

impl Kept {
    /// Whether its day is over. It may still be found until the next one is kept.
    pub fn is_over(&self, now_ms: i64) -> bool {
        self.at_ms < forgotten_before(now_ms)
    }
}

/// Answers from before this moment are forgotten.
pub fn forgotten_before(now_ms: i64) -> i64 {
    now_ms.saturating_sub(KEPT_MS_MAX)
}

/// The tokens of every tenant, and the answers kept for them. Tokens are changed by appending `Change::document`.
pub trait Access: Send + Sync {
    /// One of them, whoever's it is: the tenant stands in it.
    fn token<'a>(&'a self, id: &'a str) -> Work<'a, Option<Token>>;

    /// All of a tenant's, ordered by id; also those that are revoked or over.
    fn tokens<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, Vec<Token>>;

    /// What was answered to a token's request with this key.
    fn kept<'a>(&'a self, tenant: &'a Tenant, token: &'a str, key: &'a str) -> Work<'a, Option<Kept>>;

    /// Keeps an answer, and forgets those of the tenant whose day is over by then. False: it was not kept, because there is
    /// one already, or because it is larger than `KEPT_BYTES_MAX`.
    fn keep<'a>(&'a self, tenant: &'a Tenant, token: &'a str, key: &'a str, kept: Kept) -> Work<'a, bool>;
}

/// Checks the envelope and the payload of a change. Returns its id and its row if all it needs is usable; violations
/// may have been noted nonetheless.
pub(crate) fn read(
    top: &mut Fields<'_>,
    payload: &Map<String, Value>,
    tenant: Option<&Tenant>,
) -> Option<(String, Token)> {
    top.literal("module", MODULE);
    top.literal("source", SOURCE);
    let id = top.get("id").and_then(Value::as_str);
    let mut p = Fields { object: payload, prefix: "payload.", violations: top.violations };
    let read = read_payload(&mut p)?;
    let (expected, row) = (entry_id(read.token, read.n), tenant.map(|tenant| read.row(tenant.clone())));
    if id != Some(&expected) {
        top.note("id", format!("must be {expected:?}"));
    }
    Some((expected, row?))
}

/// A stored entry read back as the change it records; nothing if it records none.
pub fn change_of(entry_bytes: &[u8]) -> Option<Change> {
    let entry = Entry::open(entry_bytes).ok().filter(|entry| entry.kind == TYPE)?;
    let tenant = Tenant::new(entry.tenant.as_str()).ok()?;
    let mut violations = Vec::new();
    let mut p = Fields { object: entry.payload.as_object()?, prefix: "payload.", violations: &mut violations };
    let change = read_payload(&mut p)?.change(tenant);
    violations.is_empty().then_some(change)
}

/// A payload, read.
struct Read<'a> {
    token: &'a str,
    n: u64,
    action: Action,
    role: Role,
    name: &'a str,
    hash: &'a str,
    expires_ms: Option<i64>,
    actor: &'a str,
    reason: &'a str,
}

impl Read<'_> {
    fn row(&self, tenant: Tenant) -> Token {
        Token {
            id: self.token.to_owned(),
            tenant,
            role: self.role,
            name: self.name.to_owned(),
            hash: self.hash.to_owned(),
            expires_ms: self.expires_ms,
            is_revoked: self.action == Action::Revoke,
            n: self.n,
        }
    }

    fn change(self, tenant: Tenant) -> Change {
        Change {
            tenant,
            token: self.token.to_owned(),
            n: self.n,
            action: self.action,
            role: self.role,
            name: self.name.to_owned(),
            hash: self.hash.to_owned(),
            expires_ms: self.expires_ms,
            actor: self.actor.to_owned(),
            reason: self.reason.to_owned(),
        }
    }
}

fn read_payload<'a>(p: &mut Fields<'a>) -> Option<Read<'a>> {
    check_version(p);
    // What nobody reads may be what nobody should have written: a secret, least of all.
    for field in p.object.keys().filter(|field| !FIELDS.contains(&field.as_str())) {
        p.note(field, "is not a field of a change of a token");
    }
    let token = read_hex(p, "token", TOKEN_DIGITS);
    let n = p.get("n").and_then(whole).filter(|n| *n >= 1);
    if n.is_none() {
        p.note("n", "must be a whole number of at least 1");
    }
    let action = p.word("action", Action::named, &Action::ALL.map(Action::word));
    if let (Some(n), Some(action)) = (n, action)
        && n != action.n()
    {
        p.note("n", format!("must be {}: that is the number of a change that says {action}", action.n()));
    }
    let role = p.word("role", Role::named, &Role::ALL.map(Role::word));
    let name = p.name("name");
    let hash = read_hex(p, "hash", HASH_DIGITS);
    let expires_ms = p.get("expires_ms").map(|given| whole(given).filter(|at| (1..=INTEGER_SAFE_MAX).contains(at)));
    if expires_ms == Some(None) {
        p.note("expires_ms", "must be a whole number of at least 1");
    }
    let actor = p.name("actor");
    let reason = p.get("reason").and_then(Value::as_str).filter(|text| text.len() <= REASON_BYTES_MAX);
    if reason.is_none() {
        p.note("reason", format!("must be a string of at most {REASON_BYTES_MAX} bytes"));
    }
    Some(Read {
        token: token?,
        n: n?,
        action: action?,
        role: role?,
        name: name?,
        hash: hash?,
        expires_ms: expires_ms.flatten().and_then(|at| i64::try_from(at).ok()),
        actor: actor?,
        reason: reason?,
    })
}

fn check_version(p: &mut Fields<'_>) {
    match p.get("version").and_then(whole) {
        Some(VERSION) => {}
        Some(newer) if newer > VERSION => {
            p.note("version", format!("is {newer}, this program knows versions up to {VERSION}: use a newer actum"));
        }
        _ => p.note("version", format!("must be {VERSION}")),
    }
}

fn read_hex<'a>(p: &mut Fields<'a>, field: &str, digits: usize) -> Option<&'a str> {
    let found = p.get(field).and_then(Value::as_str).filter(|text| is_hex(text, digits));
    if found.is_none() {
        p.note(field, format!("must be {digits} hex digits, in lower case"));
    }
    found
}
