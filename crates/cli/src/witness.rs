//! Witnesses of the ledger (D-509): places outside the database that keep checkpoints or sign them, so that a ledger that was
//! rewritten contradicts them. `[ledger] witnesses` names them; `actum ledger witness` and the clock of a server hand them the
//! newest checkpoint.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use actum_adapters::Http;
use actum_adapters::webhook::{Delivered, Delivery, host_of};
use actum_adapters::witness::WitnessAnswer;
use actum_api::error;
use actum_contract::digest::Digest;
use actum_contract::id::Tenant;
use actum_ledger::checkpoint::{Checkpoint, origin};
use actum_ledger::merkle::{Plan, verify_consistency};
use actum_ledger::witness::{WitnessKey, request_body};
use actum_store::Store;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::hook;
use crate::key::Key;
use crate::project::Project;
use crate::repository;
use crate::run::Open;
use crate::tool::secret;
use crate::workspace::new_id;

/// How long a witness may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// The status of a witness that has seen another size of the log than the request names.
const CONFLICT: u16 = 409;
const MINUTES_MAX: u64 = 60 * 24 * 31;

/// `[ledger]` of `actum.toml`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LedgerConfig {
    pub witnesses: Vec<WitnessConfig>,
    /// How often a server hands the newest checkpoint to them. None: with each housekeeping.
    pub witness_minutes: Option<u64>,
}

/// One witness.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum WitnessConfig {
    /// A folder on another disk or machine.
    File { path: PathBuf },
    /// A ref of a bare repository.
    Git {
        repository: PathBuf,
        #[serde(rename = "ref", default = "default_ref")]
        reference: String,
    },
    /// A service that gets each checkpoint as a webhook.
    Webhook { url: String, secret: String },
    /// A witness that signs (C2SP tlog-witness), by its verifier key.
    C2sp { url: String, key: String },
}

fn default_ref() -> String {
    "refs/actum/checkpoints".to_owned()
}

impl LedgerConfig {
    /// Reads the section. The error says what was expected.
    pub(crate) fn read(section: &Value) -> Result<Self, String> {
        let config: Self = serde_json::from_value(section.clone()).map_err(|e| e.to_string())?;
        if config.witness_minutes.is_some_and(|minutes| minutes == 0 || minutes > MINUTES_MAX) {
            return Err(format!("witness_minutes from 1 to {MINUTES_MAX}"));
        }
        config.witnesses.iter().try_for_each(WitnessConfig::check)?;
        Ok(config)
    }
}

impl WitnessConfig {
    fn check(&self) -> Result<(), String> {
        let is_url = |url: &String| host_of(url).is_some();
        match self {
            Self::File { path } | Self::Git { repository: path, .. } if !path.is_absolute() => {
                Err(format!("an absolute path, not {}", path.display()))
            }
            Self::Git { reference, .. } if !is_plain_ref(reference) => {
                Err(format!("a full name of a ref, such as refs/actum/checkpoints, not {reference:?}"))
            }
            Self::Webhook { url, .. } | Self::C2sp { url, .. } if !is_url(url) => {
                Err(format!("an http or https URL without a user, not {url:?}"))
            }
            Self::Webhook { secret, .. } if !secret.starts_with("env:") && !secret.starts_with("file:") => {
                Err("the secret as a reference: env:NAME or file:PATH".to_owned())
            }
            Self::C2sp { key, .. } if WitnessKey::parse(key).is_none() => {
                Err(format!("the verifier key of a witness, name+id+base64, not {key:?}"))
            }
            _ => Ok(()),
        }
    }

    fn name(&self) -> String {
        match self {
            Self::File { path } => format!("file {}", path.display()),
            Self::Git { repository, reference } => format!("git {}#{reference}", repository.display()),
            Self::Webhook { url, .. } => format!("webhook {}", host_of(url).unwrap_or_default()),
            Self::C2sp { url, .. } => format!("witness {}", host_of(url).unwrap_or_default()),
        }
    }
}

fn is_plain_ref(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/_-.".contains(c);
    text.starts_with("refs/") && text.chars().all(is_plain) && !text.contains("..") && !text.ends_with('/')
}

/// How it went with one witness.
#[derive(Debug, Serialize)]
pub(crate) struct Witnessed {
    pub witness: String,
    pub ok: bool,
    pub detail: String,
}

/// The newest checkpoint of a log and what the witnesses did with it.
#[derive(Debug, Serialize)]
pub(crate) struct WitnessReport {
    pub tenant: String,
    pub size: u64,
    pub checkpoint: String,
    pub witnesses: Vec<Witnessed>,
}

/// Signs the head of a log, hands it to all witnesses and keeps it with the signatures that they added.
pub(crate) fn witness(open: &Open, tenant: &Tenant) -> Result<WitnessReport, Failure> {
    let config = open.project.config()?;
    let store = &*open.store;
    let log = WitnessedLog { open, store, tenant };
    let checkpoint = log.head()?;
    let mut note = checkpoint.sign(&Key::find_or_make(&open.project)?.signing);
    let mut witnesses = Vec::new();
    for one in &config.ledger.witnesses {
        let done = log.hand_to(one, &checkpoint, &mut note);
        let (ok, detail) = match done {
            Ok(detail) => (true, detail),
            Err(why) => (false, why),
        };
        witnesses.push(Witnessed { witness: one.name(), ok, detail });
    }
    open.waiter.wait(store.keep_checkpoint(tenant, checkpoint.size, &note))?;
    Ok(WitnessReport { tenant: tenant.as_str().to_owned(), size: checkpoint.size, checkpoint: note, witnesses })
}

/// Returns the notes of a log that witnesses keep where this machine can read them.
pub(crate) fn kept_by_witnesses(project: &Project, log_name: &str) -> Result<Vec<String>, Failure> {
    let config = project.config()?;
    let mut found = Vec::new();
    for one in &config.ledger.witnesses {
        match one {
            WitnessConfig::File { path } => found.extend(fs::read_to_string(path.join(file_name(log_name))).ok()),
            WitnessConfig::Git { repository, reference } => {
                found
                    .extend(repository::read_blob(project, repository, reference, &file_name(log_name)).ok().flatten());
            }
            WitnessConfig::Webhook { .. } | WitnessConfig::C2sp { .. } => {}
        }
    }
    Ok(found)
}

/// The name under which files and refs keep the checkpoint of a log.
fn file_name(log_name: &str) -> String {
    format!("{}.checkpoint", &Digest::blake3(log_name.as_bytes()).to_hex()[..32])
}

struct WitnessedLog<'a> {
    open: &'a Open,
    store: &'a dyn Store,
    tenant: &'a Tenant,
}

impl WitnessedLog<'_> {
    /// Returns the head, compared with the tree that it is the head of.
    fn head(&self) -> Result<Checkpoint, Failure> {
        let waiter = &self.open.waiter;
        let log = waiter.wait(self.store.log(self.tenant))?;
        waiter.wait(self.store.settled())?;
        let (size, root) = (log.frontier.size(), log.frontier.root());
        if self.proof(Some(Plan::root(size)))? != [root] {
            let message = format!("the head of {}'s log is not that of its entries; it is not signed", self.tenant);
            return Err(Failure::new(error::LEDGER_DAMAGED, message).hint("`actum ledger verify` tells more"));
        }
        Ok(Checkpoint { origin: origin(self.store.store_id(), self.tenant), size, root })
    }

    fn proof(&self, plan: Option<Plan>) -> Result<Vec<Digest>, Failure> {
        let broken = || Failure::new(error::STORE_DAMAGED, "the tree lacks hashes that the proof needs");
        let plan = plan.ok_or_else(broken)?;
        let hashes = self.open.waiter.wait(self.store.nodes(self.tenant, &plan.nodes()))?;
        plan.proof(&hashes).ok_or_else(broken)
    }

    fn hand_to(&self, witness: &WitnessConfig, now: &Checkpoint, note: &mut String) -> Result<String, String> {
        let name = file_name(&now.origin);
        match witness {
            WitnessConfig::File { path } => {
                let path = path.join(name);
                let earlier = fs::read_to_string(&path).ok();
                self.check_growth(earlier.as_deref(), now)?;
                write(&path, note).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
                Ok(format!("kept at {} entries", now.size))
            }
            WitnessConfig::Git { repository, reference } => {
                let failed = |failure: Failure| failure.message;
                let earlier =
                    repository::read_blob(&self.open.project, repository, reference, &name).map_err(failed)?;
                self.check_growth(earlier.as_deref(), now)?;
                repository::commit_blob(&self.open.project, repository, reference, &name, note).map_err(failed)?;
                Ok(format!("committed at {} entries", now.size))
            }
            WitnessConfig::Webhook { url, secret } => self.tell(url, secret, now, note),
            WitnessConfig::C2sp { url, key } => {
                let key = WitnessKey::parse(key).ok_or("its key is none of a witness")?;
                let (signed, seconds) = self.ask_for_signature(url, &key, now, note)?;
                *note = signed;
                Ok(format!("signed at {} entries, time {seconds}", now.size))
            }
        }
    }

    /// Fails if a log did not grow out of what was kept of it.
    fn check_growth(&self, earlier: Option<&str>, now: &Checkpoint) -> Result<(), String> {
        let Some(earlier) = earlier else { return Ok(()) };
        let kept = Checkpoint::parse(earlier).map_err(|e| format!("what it keeps is no checkpoint: {e}"))?;
        let fault = || format!("the log has not grown out of the one that it keeps, of {} entries", kept.size);
        if kept.origin != now.origin || kept.size > now.size {
            return Err(fault());
        }
        let is_grown = match Plan::consistency(kept.size, now.size) {
            None => kept.size == 0,
            Some(plan) => {
                let proof = self.proof(Some(plan)).map_err(|failure| failure.message)?;
                verify_consistency(kept.size, kept.root, now.size, now.root, &proof)
            }
        };
        if is_grown { Ok(()) } else { Err(fault()) }
    }

    fn http(&self) -> Result<Http, String> {
        let hosts = self.open.project.config().map_err(|failure| failure.message)?.sandbox.hosts.clone();
        Http::for_others(hosts).map_err(|e| e.to_string())
    }

    fn tell(&self, url: &str, secret: &str, now: &Checkpoint, note: &str) -> Result<String, String> {
        let config = self.open.project.config().map_err(|failure| failure.message)?;
        let secret = match secret::look_up(secret) {
            Some(Ok(secret)) => secret,
            Some(Err(why)) => return Err(format!("its secret, {secret}, {why}")),
            None => return Err(format!("its secret is no reference: {secret}")),
        };
        let body = json!({
            "type": "ledger.checkpoint", "timestamp": Timestamp::now().to_string(),
            "data": {"origin": now.origin, "size": now.size, "root": now.root.to_hex(), "checkpoint": note},
        });
        let id = format!("checkpoint-{}-{}", &file_name(&now.origin)[..16], now.size);
        let delivery = Delivery {
            url,
            secret: &secret,
            id: &id,
            at_s: Timestamp::now().as_second(),
            body: &body.to_string(),
            within: ANSWER_WITHIN,
        };
        match self.http()?.deliver(&hook::network(&config), &delivery) {
            Delivered::Status(200..=299) => Ok(format!("delivered at {} entries", now.size)),
            Delivered::Status(status) => Err(format!("it answered {status}")),
            Delivered::Lost(why) | Delivered::Denied(why) => Err(why),
        }
    }

    /// Returns the note with the witness's signature, and when that was made.
    fn ask_for_signature(
        &self,
        url: &str,
        key: &WitnessKey,
        now: &Checkpoint,
        note: &str,
    ) -> Result<(String, u64), String> {
        let kept = self.open.waiter.wait(self.store.checkpoints(self.tenant)).map_err(|e| e.to_string())?;
        let signed = kept.iter().filter(|note| key.signed_at(note).is_some());
        let mut old_size =
            signed.filter_map(|note| Checkpoint::parse(note).ok()).map(|one| one.size).max().unwrap_or(0);
        let config = self.open.project.config().map_err(|failure| failure.message)?;
        let http = self.http()?;
        // The second time with the size that the witness itself has named.
        for _ in 0..2 {
            let plan = if old_size == 0 { None } else { Plan::consistency(old_size, now.size) };
            let proof = match plan {
                Some(_) if old_size < now.size => self.proof(plan).map_err(|failure| failure.message)?,
                _ => Vec::new(),
            };
            let body = request_body(old_size, &proof, note);
            match http.add_checkpoint(&hook::network(&config), url, &body, ANSWER_WITHIN) {
                WitnessAnswer::Status(200, answer) => {
                    let signed = key.add_to(note, &answer).ok_or("it answered without a signature of its key")?;
                    let seconds = key.signed_at(&signed).unwrap_or_default();
                    return Ok((signed, seconds));
                }
                WitnessAnswer::Status(CONFLICT, answer) => match answer.trim().parse::<u64>() {
                    Ok(seen) if seen <= now.size && seen != old_size => old_size = seen,
                    Ok(seen) => return Err(format!("it has seen {seen} entries of this log, which has {}", now.size)),
                    Err(_) => return Err("it answered 409 without a size".to_owned()),
                },
                WitnessAnswer::Status(422, _) => {
                    return Err(format!(
                        "the log has not grown out of the one that it has seen, of {old_size} entries"
                    ));
                }
                WitnessAnswer::Status(status, _) => return Err(format!("it answered {status}")),
                WitnessAnswer::Lost(why) | WitnessAnswer::Denied(why) => return Err(why),
            }
        }
        Err("it names another size each time".to_owned())
    }
}

/// Writes a note under a name that is there as a whole or not at all.
fn write(path: &Path, note: &str) -> std::io::Result<()> {
    let aside = path.with_extension(new_id());
    let written = fs::write(&aside, note)
        .and_then(|()| fs::File::open(&aside)?.sync_all())
        .and_then(|()| fs::rename(&aside, path));
    if written.is_err() {
        let _ = fs::remove_file(&aside);
    }
    written
}

/// The JSON Schema of the section.
pub(crate) fn schema() -> Value {
    let text = |about: &str| json!({"type": "string", "description": about});
    let witness = |kind: &str, about: &str, fields: Value, required: &[&str]| {
        let mut properties = json!({"type": {"const": kind, "description": about}});
        if let (Some(all), Value::Object(fields)) = (properties.as_object_mut(), fields) {
            all.extend(fields);
        }
        json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
    };
    let git = json!({
        "repository": text("absolute path of a bare repository"),
        "ref": {"type": "string", "default": default_ref(), "description": "the ref that checkpoints are committed to"},
    });
    let webhook = json!({"url": text("the URL that gets each checkpoint"), "secret": text("its secret, as env:NAME or file:PATH")});
    let c2sp = json!({"url": text("its submission prefix"), "key": text("its verifier key, name+id+base64")});
    let kinds = [
        witness("file", "a folder on another disk", json!({"path": text("absolute path")}), &["type", "path"]),
        witness("git", "a ref of a bare repository", git, &["type", "repository"]),
        witness("webhook", "a service that gets each checkpoint", webhook, &["type", "url", "secret"]),
        witness("c2sp", "a witness that signs (C2SP tlog-witness)", c2sp, &["type", "url", "key"]),
    ];
    json!({
        "witnesses": {"type": "array", "items": {"oneOf": kinds}, "default": [],
            "description": "places outside the database that keep or sign checkpoints of the ledger"},
        "witness_minutes": {"type": "integer", "minimum": 1, "maximum": MINUTES_MAX,
            "description": "how often a server hands them the newest checkpoint; without it, with each housekeeping"},
    })
}
