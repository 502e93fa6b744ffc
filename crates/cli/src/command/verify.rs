//! `actum ledger verify`: walk every log and name the first entry that is not what was recorded.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use actum_api::error;
use actum_contract::digest::Digest;
use actum_contract::id::Tenant;
use actum_ledger::checkpoint::{Checkpoint, origin};
use actum_ledger::journal::{JournalError, Range};
use actum_ledger::receipt::Receipt;
use actum_ledger::verify::{Bad, Flaw, SignedHead, Walk};
use actum_store::Store;
use clap::Args;
use ed25519_dalek::VerifyingKey;
use ed25519_dalek::pkcs8::DecodePublicKey as _;
use serde_json::{Value, json};

use super::Ended;
use super::ledger::Whose;
use crate::document::Document;
use crate::failure::Failure;
use crate::key::{Key, TrustedKeys};
use crate::known_head::KnownHead;
use crate::project::Project;
use crate::seat::home_of;
use crate::ui::{Out, count};
use crate::witness::kept_by_witnesses;

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  actum ledger checkpoint > monday.note\n  actum ledger verify --checkpoint monday.note"
)]
pub(crate) struct Verify {
    #[command(flatten)]
    pub(super) whose: Whose,

    /// A checkpoint kept elsewhere that the log must still fit; may be given several times
    #[arg(long, value_name = "FILE")]
    checkpoint: Vec<PathBuf>,

    /// Accept receipts of another log, because the store was replaced
    #[arg(long)]
    other_logs: bool,

    /// The public key (PEM) that must have signed it [default: the project's own]
    #[arg(long, value_name = "FILE", requires = "checkpoint")]
    key: Option<PathBuf>,
}

/// Entries read at a time.
const WALK_ENTRIES: usize = 1_000;

/// What was found in one tenant's log.
pub(crate) struct Finding {
    tenant: Tenant,
    entries: u64,
    root: String,
    checkpoints: usize,
    /// Receipts whose heads were compared.
    receipts: usize,
    /// Receipts that were not compared, because no trusted key has signed them.
    receipts_unknown: usize,
    bad: Option<Bad>,
}

impl Verify {
    pub(crate) async fn run(self, project: &Project, store: &Arc<dyn Store>, out: &mut Out) -> Ended {
        let given = self.given(project)?;
        let tenants = self.whose.tenants_with(store, expected_tenants(project, store)).await?;
        for (name, checkpoint) in &given {
            if !tenants.iter().any(|t| origin(store.store_id(), t) == checkpoint.origin) {
                let message =
                    format!("{name} is a checkpoint of {:?}, which is no log of this store", checkpoint.origin);
                return Err(Failure::new(error::LEDGER_DAMAGED, message));
            }
        }
        let given: Vec<_> = given.into_iter().map(|(_, checkpoint)| checkpoint).collect();
        let mut findings = Vec::new();
        for tenant in tenants {
            let notes = kept_by_witnesses(project, &origin(store.store_id(), &tenant))?;
            let witnessed = notes.iter().filter_map(|note| Checkpoint::parse(note).ok());
            let all: Vec<_> = given.iter().cloned().chain(witnessed).collect();
            let receipts = if self.other_logs { Receipts::OfThisLog } else { Receipts::Compared };
            findings.push(walk(project, store, tenant, &all, receipts).await?);
        }
        report(&findings, out)
    }

    /// Checkpoints from files, each signed by the key that is trusted.
    fn given(&self, project: &Project) -> Result<Vec<(String, Checkpoint)>, Failure> {
        if self.checkpoint.is_empty() {
            return Ok(Vec::new());
        }
        let key = match &self.key {
            Some(path) => public_key(path)?,
            None => match Key::find(project)? {
                Some(key) => key.public(),
                None => {
                    let message = "this project has no key that could have signed the checkpoint";
                    return Err(Failure::new(error::KEY, message).hint("name the signer's public key with --key"));
                }
            },
        };
        let open = |path: &PathBuf| {
            let document = Document::read(path)?;
            let note = String::from_utf8_lossy(&document.text).into_owned();
            let checkpoint = Checkpoint::open(&note, &key)
                .map_err(|e| Failure::new(error::LEDGER_DAMAGED, format!("{}: {e}", document.name)))?;
            Ok((document.name, checkpoint))
        };
        self.checkpoint.iter().map(open).collect()
    }
}

fn public_key(path: &Path) -> Result<VerifyingKey, Failure> {
    let document = Document::read(path)?;
    VerifyingKey::from_public_key_pem(&String::from_utf8_lossy(&document.text)).map_err(|_| {
        let message = format!("{} is not an Ed25519 public key in PEM", document.name);
        Failure::new(error::KEY, message).hint("`actum key show --pem` prints one")
    })
}

/// Returns the tenants that have left something outside the ledger: receipts, and heads that this user has seen. Their logs are
/// expected to be there.
pub(crate) fn expected_tenants(project: &Project, store: &Arc<dyn Store>) -> Vec<Tenant> {
    let mut found = KnownHead::tenants(project, &|tenant| origin(store.store_id(), tenant));
    let local = project.root().join(".actum");
    let others = std::fs::read_dir(local.join("tenants")).into_iter().flatten().flatten().map(|entry| entry.path());
    for home in std::iter::once(local).chain(others) {
        let runs = std::fs::read_dir(home.join("runs")).into_iter().flatten().flatten();
        let named = runs.filter_map(|run| {
            let document = serde_json::from_slice(&std::fs::read(run.path().join("RECEIPT.json")).ok()?).ok()?;
            let receipt = Receipt::read(&document).ok()?;
            let tenant = Tenant::new(receipt.predicate().get("tenant")?.as_str()?.to_owned()).ok()?;
            let stated = receipt.predicate().get("ledger")?.get("origin")?.as_str()?;
            (stated == origin(store.store_id(), &tenant)).then_some(tenant)
        });
        found.extend(named.take(1));
    }
    found
}

/// Whether a log is compared with the receipts that runs have left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Receipts {
    Compared,
    /// The same, but for those of other logs.
    OfThisLog,
    /// The log is a copy, which may be older than they are.
    Ignored,
}

/// What the receipts in the folders of runs say of a log.
#[derive(Debug, Default)]
struct ReceiptHeads {
    heads: Vec<SignedHead>,
    /// Receipts signed by keys that are not trusted.
    unknown: usize,
    /// Receipts that are not what was signed.
    altered: Vec<String>,
    /// Receipts of other logs.
    elsewhere: usize,
}

impl ReceiptHeads {
    fn read(project: &Project, keys: &TrustedKeys, tenant: &Tenant, log_name: &str) -> Self {
        let mut found = Self::default();
        let runs = home_of(project.root(), tenant).join("runs");
        for folder in std::fs::read_dir(runs).into_iter().flatten().flatten() {
            // A run that is not over has none yet, and retention removes old ones.
            let Ok(bytes) = std::fs::read(folder.path().join("RECEIPT.json")) else { continue };
            let name = format!("the receipt of run {}", folder.file_name().display());
            let document = serde_json::from_slice(&bytes).ok();
            let Some(receipt) = document.and_then(|document| Receipt::read(&document).ok()) else {
                found.altered.push(name);
                continue;
            };
            let Some(key) = keys.with_id(&receipt.key_id) else {
                found.unknown += 1;
                continue;
            };
            if receipt.verify(key).is_err() {
                found.altered.push(name);
                continue;
            }
            match stated_head(&receipt, log_name, name) {
                Some(head) => found.heads.push(head),
                None => found.elsewhere += 1,
            }
        }
        found
    }
}

/// The head that a receipt was signed over, if that is of this log. A project may have used another store before.
fn stated_head(receipt: &Receipt, log_name: &str, name: String) -> Option<SignedHead> {
    let ledger = receipt.predicate().get("ledger")?;
    let text = |name: &str| ledger.get(name).and_then(Value::as_str);
    if text("origin") != Some(log_name) {
        return None;
    }
    let size = ledger.get("size").and_then(Value::as_u64)?;
    Some(SignedHead { size, head: Digest::from_hex(text("head")?)?, receipt: name })
}

/// Walks one log against its head, the checkpoints kept in the store and those given by hand, and what receipts state.
pub(crate) async fn walk(
    project: &Project,
    store: &Arc<dyn Store>,
    tenant: Tenant,
    given: &[Checkpoint],
    receipts: Receipts,
) -> Result<Finding, Failure> {
    let log_name = origin(store.store_id(), &tenant);
    let known_head = KnownHead::of(project, &tenant);
    let (stated, expected) = match receipts {
        Receipts::Compared | Receipts::OfThisLog => {
            let rows = store.rows(&tenant, crate::key::announcements()).await.unwrap_or_default();
            // Who may not read the key compares nothing with receipts, and the report counts them.
            let keys = Key::known_of(project, &tenant, &rows).unwrap_or_default();
            (ReceiptHeads::read(project, &keys, &tenant, &log_name), known_head.expected(&log_name))
        }
        Receipts::Ignored => (ReceiptHeads::default(), Ok(None)),
    };
    let ReceiptHeads { mut heads, unknown: receipts_unknown, altered, elsewhere } = stated;
    let receipts_count = heads.len();
    let is_other = expected.as_ref().err().cloned();
    let known_digest = expected.as_ref().ok().and_then(|known| known.as_ref().map(|known| known.head));
    heads.extend(expected.ok().flatten());
    // Who may not read the key can still compare what the checkpoints say with the log.
    let key = Key::find(project).ok().flatten();
    let mut checkpoints: Vec<_> = given.iter().filter(|c| c.origin == log_name).cloned().collect();
    for note in store.checkpoints(&tenant).await? {
        // One that we did not sign still says what somebody saw; one that claims our signature must bear it.
        let opened = match &key {
            Some(key) => Checkpoint::open(&note, &key.public()).or_else(|e| match e {
                actum_ledger::checkpoint::BadCheckpoint::Unsigned(_) => Checkpoint::parse(&note),
                other => Err(other),
            }),
            None => Checkpoint::parse(&note),
        };
        let opened = opened.map_err(|e| {
            let message = format!("a kept checkpoint of tenant {tenant}: {e}");
            Failure::new(error::LEDGER_DAMAGED, message)
        })?;
        checkpoints.push(opened);
    }
    let count = checkpoints.len();
    let mut walk = Walk::new(tenant.clone(), checkpoints).with_heads(heads);
    // The head is read before the entries: what is appended meanwhile lies beyond it and is no business of this walk.
    let head = match store.log(&tenant).await {
        Ok(head) => Some(head),
        Err(JournalError::Damaged(_)) => None,
        Err(e) => return Err(e.into()),
    };
    let end = head.as_ref().map_or(u64::MAX, |head| head.frontier.size());
    let mut bad = None;
    while bad.is_none() && walk.size() < end {
        let rows = store.rows(&tenant, Range::forwards(walk.size(), WALK_ENTRIES)).await?;
        if rows.is_empty() {
            break;
        }
        bad = rows.iter().take((end - walk.size()) as usize).find_map(|row| walk.row(row).err());
    }
    let (entries, root) = (walk.size(), walk.root().to_hex());
    if bad.is_none() {
        let at_head = |flaw| Bad { tenant: tenant.to_string(), seq: entries.saturating_sub(1), id: None, flaw };
        bad = match &head {
            None => Some(at_head(Flaw::Head)),
            Some(head) => match walk.finish(head) {
                Err(found) => Some(found),
                // Entries beyond the head are new ones only if the head has moved since.
                Ok(_) => match store.rows(&tenant, Range::forwards(entries, 1)).await?.first() {
                    Some(beyond) if store.log(&tenant).await? == *head => {
                        let (seq, id) = (beyond.seq, Some(beyond.id.clone()));
                        Some(Bad { tenant: tenant.to_string(), seq, id, flaw: Flaw::Beyond(entries) })
                    }
                    _ => None,
                },
            },
        };
    }
    if bad.is_none() {
        let of_others = (elsewhere > 0 && receipts == Receipts::Compared).then(|| {
            format!(
                "{} of another log than this one, of {entries} entries; `--other-logs` accepts that if the store was replaced",
                crate::ui::count(elsewhere as u64, "receipt is", "receipts are")
            )
        });
        let flaw = altered.into_iter().next().map(Flaw::ReceiptAltered);
        let flaw = flaw.or(is_other.map(Flaw::OtherLog)).or(of_others.map(Flaw::OtherLog));
        bad = flaw.map(|flaw| Bad { tenant: tenant.to_string(), seq: entries.saturating_sub(1), id: None, flaw });
    }
    if bad.is_none()
        && receipts != Receipts::Ignored
        && let Some(head) = &head
    {
        // The walk has compared it with the known one.
        known_head.note(&log_name, head.frontier.size(), head.head, |_| known_digest);
    }
    Ok(Finding { tenant, entries, root, checkpoints: count, receipts: receipts_count, receipts_unknown, bad })
}

impl Finding {
    pub(crate) fn ok(&self) -> bool {
        self.bad.is_none()
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "tenant": self.tenant.as_str(), "valid": self.ok(), "entries": self.entries, "root": self.root,
            "checkpoints": self.checkpoints, "receipts": self.receipts, "receipts_unknown": self.receipts_unknown, "first_bad": self.bad.as_ref().map(bad_json),
        })
    }

    pub(crate) fn to_text(&self) -> String {
        match &self.bad {
            Some(bad) => bad.to_string(),
            None => format!(
                "ledger of {} holds: {}, {}{}{}, root {}",
                self.tenant,
                count(self.entries, "entry", "entries"),
                count(self.checkpoints as u64, "checkpoint", "checkpoints"),
                match self.receipts {
                    0 => String::new(),
                    receipts => format!(", {}", count(receipts as u64, "receipt", "receipts")),
                },
                match self.receipts_unknown {
                    0 => String::new(),
                    unknown => format!(" ({unknown} more by keys that are not trusted)"),
                },
                self.root
            ),
        }
    }
}

fn bad_json(bad: &Bad) -> Value {
    json!({"tenant": bad.tenant, "seq": bad.seq, "id": bad.id, "reason": bad.flaw.to_string()})
}

fn report(findings: &[Finding], out: &mut Out) -> Ended {
    let first = findings.iter().find_map(|f| f.bad.as_ref());
    let logs: Vec<_> = findings.iter().map(Finding::to_json).collect();
    let json = json!({"valid": first.is_none(), "first_bad": first.map(bad_json), "ledgers": logs});
    if out.json {
        out.line(&json.to_string());
    } else {
        for finding in findings.iter().filter(|f| f.ok()) {
            out.line(&finding.to_text());
        }
        if findings.is_empty() {
            out.line("the ledger is empty");
        }
        if let Some(bad) = first {
            return Err(Failure::new(error::LEDGER_DAMAGED, bad.to_string()));
        }
    }
    Ok(if first.is_none() { 0 } else { error::named(error::LEDGER_DAMAGED).exit })
}
