//! What waits for a person. A request is bound to the tool, to everything it is called with, and to the tenant; what was
//! agreed to is used once, or until a time. Kept as files beside the project's other things, moved whole from one state to
//! the next, so that one approval is used by one execution only.

use std::fs;
use std::path::{Path, PathBuf};

use actum_api::error;
use actum_contract::canon;
use actum_contract::digest::Digest;
use actum_contract::execution::Redactor;
use actum_contract::id::Tenant;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::tool::register::By;
use crate::workspace::{LOCAL_TENANT, new_id};

/// How long a request waits, and how long an agreement is good if nothing else is said.
pub(crate) const MINUTES: i64 = 60;

/// Nobody agrees to something by a slip of the finger.
const ID_CHARACTERS_MIN: usize = 8;

/// A call of which more would have to be shown is shown by its beginning.
const SHOWN_BYTES_MAX: usize = 256 << 10;

const STATES: [&str; 4] = ["pending", "approved", "denied", "used"];

/// Where a request is while a decision about it is put on record. The process that decides holds a lock on it.
const DECIDING: &str = "deciding";

/// What somebody wants to do.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub tool: String,
    pub tenant: &'a Tenant,
    /// The levels that wait: `filesystem elevated`, `network open`.
    pub wants: Vec<String>,
    /// Everything that was agreed on; only its digest is kept.
    pub agreed: &'a Value,
    /// What a person has to see to decide. Refused if a part of it would have to be left out: what cannot be seen cannot be
    /// agreed to.
    pub shown: Value,
    /// Fields from the project's own configuration, shown without secrets. Null if there are none.
    pub configured: Value,
    /// Fields of the same that a person has to see exactly as they are, such as a diff. Null if there are none.
    pub exact: Value,
}

impl Request<'_> {
    /// What makes it this request and no other.
    fn binding(&self) -> Result<String, Failure> {
        let whole =
            json!({"tool": self.tool, "tenant": self.tenant.as_str(), "wants": self.wants, "agreed": self.agreed});
        let text = canon::canonical(&whole).map_err(|e| Failure::new(error::INPUT, e.to_string()))?;
        Ok(Digest::sha256(&text).to_hex())
    }
}

fn folder(home: &Path, state: &str) -> Result<PathBuf, Failure> {
    let folder = home.join("approvals").join(state);
    fs::create_dir_all(&folder).map_err(|e| Failure::of_io(format!("cannot make {}: {e}", folder.display()), &e))?;
    Ok(folder)
}

fn load(path: &Path) -> Option<Value> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn save(path: &Path, value: &Value) -> Result<(), Failure> {
    let write = || -> std::io::Result<()> {
        let beside = path.with_extension(format!("{}.tmp", new_id()));
        fs::write(&beside, value.to_string())?;
        fs::File::open(&beside)?.sync_all()?;
        fs::rename(&beside, path)
    };
    write().map_err(|e| Failure::of_io(format!("cannot write {}: {e}", path.display()), &e))
}

fn all(home: &Path, state: &str) -> Result<Vec<(PathBuf, Value)>, Failure> {
    let entries = fs::read_dir(folder(home, state)?).into_iter().flatten().flatten().map(|entry| entry.path());
    let named = entries.filter(|path| path.extension().is_some_and(|ending| ending == "json"));
    let mut found: Vec<_> = named.filter_map(|path| load(&path).map(|value| (path, value))).collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(found)
}

fn is_past(value: &Value, now: Timestamp) -> bool {
    value["expires_at"].as_str().and_then(|text| text.parse::<Timestamp>().ok()).is_none_or(|until| until < now)
}

/// Takes an agreement, if there is one.
pub(crate) fn taken(home: &Path, request: &Request<'_>) -> Result<Option<String>, Failure> {
    let (now, binding) = (Timestamp::now(), request.binding()?);
    let is_ours = |value: &Value| value["binding"] == binding.as_str() && !is_past(value, now);
    for (path, value) in all(home, "approved")?.into_iter().filter(|(_, value)| is_ours(value)) {
        let id = value["id"].as_str().unwrap_or_default().to_owned();
        if value["single_use"] == false {
            return Ok(Some(id));
        }
        // Whoever moves it away has it; everybody else finds it gone.
        if fs::rename(&path, folder(home, "used")?.join(format!("{id}.json"))).is_ok() {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

/// Takes an agreement, if there is one; else leaves a request and says so. The id of the agreement.
pub(crate) fn take(home: &Path, request: &Request<'_>) -> Result<String, Failure> {
    // Of this machine those decide whose it is: the approvers of another tenant are not asked.
    let is_of_machine = |what: &String| what.starts_with("filesystem ") || what.starts_with("network ");
    if request.tenant.as_str() != LOCAL_TENANT && request.wants.iter().any(is_of_machine) {
        let wants = request.wants.join(" and ");
        let message = format!("{} asks for {wants}, which no caller of the token's tenant can approve", request.tool);
        return Err(Failure::new(error::FORBIDDEN, message)
            .hint("ask the project's owner for one that sees less of the machine"));
    }
    let now = Timestamp::now();
    let binding = request.binding()?;
    let is_ours = |value: &Value| value["binding"] == binding.as_str() && !is_past(value, now);
    reclaim(home)?;
    // A request that was not answered in time is not asked any more.
    for (path, _) in all(home, "pending")?.iter().filter(|(_, value)| is_past(value, now)) {
        let _ = fs::remove_file(path);
    }
    // Waiting requests are read before decided ones: a decision that comes meanwhile is found then.
    let mut waiting = all(home, "pending")?;
    waiting.extend(all(home, DECIDING)?);
    let waiting = waiting.into_iter().find(|(_, value)| is_ours(value));
    if let Some((_, value)) = all(home, "denied")?.into_iter().find(|(_, value)| is_ours(value)) {
        let message = format!("{} asked for {}, and a person said no", request.tool, request.wants.join(" and "));
        return Err(Failure::new(error::APPROVAL_DENIED, message)
            .details(json!({"approval_id": value["id"], "until": value["expires_at"]}))
            .hint("ask for less, or ask again when that has expired"));
    }
    if let Some(id) = taken(home, request)? {
        return Ok(id);
    }
    let id = match waiting {
        Some((_, value)) => value["id"].as_str().unwrap_or_default().to_owned(),
        None => {
            let id = new_id();
            let expires = now + SignedDuration::from_mins(MINUTES);
            let value = json!({
                "id": id, "binding": binding, "tool_id": request.tool, "tenant": request.tenant.as_str(), "wants": request.wants,
                "call": call(request)?, "requested_at": now.to_string(), "expires_at": expires.to_string(),
            });
            save(&folder(home, "pending")?.join(format!("{id}.json")), &value)?;
            id
        }
    };
    let message = format!("{} asks for {}: a person has to agree", request.tool, request.wants.join(" and "));
    Err(Failure::new(error::APPROVAL_NEEDED, message)
        .details(json!({"approval_id": id, "wants": request.wants}))
        .hint(format!("`actum approve {id}` agrees; then run the command again")))
}

/// Returns what a person sees of the call. Fails if that would not be all of it: a command could be hidden in what looks like
/// a secret, or behind what is too long.
fn call(request: &Request<'_>) -> Result<Value, Failure> {
    let mut call = request.shown.clone();
    let length = call.to_string().len();
    if length > SHOWN_BYTES_MAX {
        let message = format!(
            "{} asks for an approval of {length} bytes, more than the {SHOWN_BYTES_MAX} that are shown",
            request.tool
        );
        return Err(Failure::new(error::INPUT, message).hint("ask for less at once"));
    }
    if has_secret(&call) {
        let message = format!(
            "{} asks for an approval of a call with a secret in it, which could not be shown whole",
            request.tool
        );
        return Err(Failure::new(error::INPUT, message)
            .hint("name the secret by a reference, such as env:NAME, or take it out of the text"));
    }
    let configured = redacted(&request.configured);
    for more in [&configured, &request.exact] {
        if let (Value::Object(call), Value::Object(more)) = (&mut call, more) {
            call.extend(more.clone());
        }
    }
    Ok(call)
}

/// Whether a text in a value looks as if it held a secret.
fn has_secret(value: &Value) -> bool {
    match value {
        Value::String(text) => Redactor::default().redact(text.as_bytes()).1 > 0,
        Value::Array(items) => items.iter().any(has_secret),
        Value::Object(fields) => fields.values().any(has_secret),
        _ => false,
    }
}

/// The same value without secrets in its texts.
fn redacted(value: &Value) -> Value {
    match value {
        Value::String(text) => {
            let (text, _) = Redactor::default().redact(text.as_bytes());
            String::from_utf8_lossy(&text).into_owned().into()
        }
        Value::Array(items) => items.iter().map(redacted).collect(),
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| {
                // The name may show that the value is a secret.
                let is_secret = value.as_str().is_some_and(|text| has_secret(&format!("{name}={text}").into()));
                (name.clone(), if is_secret { "[REDACTED]".into() } else { redacted(value) })
            };
            fields.iter().map(field).collect()
        }
        other => other.clone(),
    }
}

/// Lets requests wait again whose decision was never finished, because the process ended. One that was finished but for this is
/// removed: it must not be decided again.
fn reclaim(home: &Path) -> Result<(), Failure> {
    for (path, _) in all(home, DECIDING)? {
        let Ok(file) = fs::File::open(&path) else { continue };
        let (true, Some(name)) = (file.try_lock().is_ok(), path.file_name()) else { continue };
        let mut is_decided = false;
        for state in ["approved", "denied", "used"] {
            is_decided |= folder(home, state)?.join(name).exists();
        }
        let _ =
            if is_decided { fs::remove_file(&path) } else { fs::rename(&path, folder(home, "pending")?.join(name)) };
    }
    Ok(())
}

/// Everything there is, with its state.
pub(crate) fn list(home: &Path) -> Result<Vec<Value>, Failure> {
    reclaim(home)?;
    let now = Timestamp::now();
    let mut found = Vec::new();
    for (_, mut value) in all(home, DECIDING)? {
        value["state"] = "pending".into();
        found.push(value);
    }
    for state in STATES {
        for (_, mut value) in all(home, state)? {
            let is_open = state == "pending" || state == "approved";
            value["state"] = if is_open && is_past(&value, now) { "expired".into() } else { state.into() };
            found.push(value);
        }
    }
    Ok(found)
}

/// Returns the request of an id or of its beginning, whatever its state.
pub(crate) fn find(home: &Path, id: &str) -> Result<Value, Failure> {
    let too_short = id.len() < ID_CHARACTERS_MIN;
    let mut found = list(home)?;
    found.retain(|value| !too_short && value["id"].as_str().is_some_and(|own| own.starts_with(id)));
    match (found.pop(), found.is_empty()) {
        (Some(one), true) => Ok(one),
        _ => Err(Failure::new(error::NOT_FOUND, format!("there is no single request {id:?}"))
            .hint("`actum approvals list` shows the requests")),
    }
}

/// Decides about a request that waits. `minutes`: for how long, and as often as wanted; otherwise once, within an hour.
/// `record`: puts it into the ledger. What is not on record is not decided.
pub(crate) fn decide(
    home: &Path,
    id: &str,
    agreed: bool,
    minutes: Option<i64>,
    by: By,
    record: &dyn Fn(&Value) -> Result<(), Failure>,
) -> Result<Value, Failure> {
    let now = Timestamp::now();
    if id.len() < ID_CHARACTERS_MIN {
        return Err(
            Failure::new(error::USAGE, format!("{id:?} could be anything")).hint("name more of the request's id")
        );
    }
    let waiting = all(home, "pending")?;
    let mut matching =
        waiting.into_iter().filter(|(_, value)| value["id"].as_str().is_some_and(|own| own.starts_with(id)));
    let (Some((path, mut value)), None) = (matching.next(), matching.next()) else {
        let failure = Failure::new(error::NOT_FOUND, format!("no single request {id:?} waits"));
        return Err(failure.hint("`actum approvals list` shows what waits"));
    };
    if is_past(&value, now) {
        return Err(
            Failure::new(error::NOT_FOUND, format!("the request {id:?} has expired")).hint("run the command again")
        );
    }
    value["decided_at"] = now.to_string().into();
    value["decided_by"] = by.actor.into();
    value["reason"] = by.reason.into();
    value["single_use"] = minutes.is_none().into();
    value["expires_at"] = (now + SignedDuration::from_mins(minutes.unwrap_or(MINUTES))).to_string().into();
    let state = if agreed { "approved" } else { "denied" };
    let name = path.file_name().unwrap_or_default().to_owned();
    let place = folder(home, state)?.join(&name);
    let mut decision = value.clone();
    decision["state"] = state.into();
    // The caller that locks it and moves it away decides; all others find it locked or gone. If this process ends before the
    // decision is saved, the lock is free and the request waits again.
    let claimed = folder(home, DECIDING)?.join(&name);
    let decided = || {
        Failure::new(error::NOT_FOUND, format!("the request {id:?} was decided by another caller meanwhile"))
            .hint("`actum approvals list` shows how")
    };
    let cannot = |e: &std::io::Error| match e.kind() {
        std::io::ErrorKind::NotFound => decided(),
        _ => Failure::of_io(format!("cannot decide about {id:?}: {e}"), e),
    };
    let lock = fs::File::open(&path).map_err(|e| cannot(&e))?;
    lock.try_lock().map_err(|e| match e {
        fs::TryLockError::WouldBlock => decided(),
        fs::TryLockError::Error(e) => cannot(&e),
    })?;
    fs::rename(&path, &claimed).map_err(|e| cannot(&e))?;
    if let Err(failure) = record(&decision).and_then(|()| save(&place, &value)) {
        let _ = fs::rename(&claimed, &path);
        return Err(failure);
    }
    let _ = fs::remove_file(&claimed);
    Ok(decision)
}
