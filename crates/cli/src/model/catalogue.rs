//! The catalogue of signatures: entries of the ledger that never change. Ours, which the built-in agent asks by, are part of
//! the program.

use actum_api::error;
use actum_contract::digest::Digest;
use actum_contract::id::Tenant;
use actum_engine::Waiter;
use actum_ledger::draft;
use actum_ledger::journal::{Outcome, Range};
use actum_predict::Signature;
use actum_predict::evolve::Kind;
use actum_predict::signature::CATALOG_VERSION;

use serde_json::json;

use super::evidence;
use crate::failure::Failure;

const TYPE: &str = "signature_catalog";
/// Signatures read at a time.
const PAGE: usize = 200;

/// The id of the entry of a signature, whatever letters its own has.
fn entry_id(signature: &str) -> String {
    format!("signature:{}", &Digest::sha256(signature.as_bytes()).to_hex()[..40])
}

/// Registers a signature; whether it is new.
pub(crate) fn add(waiter: &Waiter, tenant: &Tenant, signature: &Signature) -> Result<bool, Failure> {
    let id = signature.id();
    if id.starts_with(OURS) {
        let failure = Failure::new(error::INPUT, format!("{id}: the namespace {OURS:?} is actum's own"));
        return Err(failure.hint("choose another namespace"));
    }
    let hashes = signature.hashes();
    let document = json!({
        "id": entry_id(&id), "tenantId": tenant.as_str(), "module": "predict", "source": "actum", "type": TYPE,
        "payload": {
            "signature_id": id, "signature": signature.to_json(), "catalog_version": CATALOG_VERSION,
            "schema_hash": hashes.schema_hash, "prompt_hash": hashes.prompt_hash, "program_hash": hashes.program_hash,
        },
    });
    match waiter.wait(waiter.journal.append(draft::read_own(document)))? {
        Outcome::Created { .. } => Ok(true),
        Outcome::Idempotent { .. } => Ok(false),
        Outcome::Refused(refusal) if refusal.code.name() == "IDEMPOTENCY_CONFLICT" => {
            let next = next_version(signature);
            let message = format!("{id} is registered with other content, and never changes");
            Err(Failure::new(error::SIGNATURE_CONFLICT, message)
                .details(refusal.details())
                .hint(format!("register this as {next}")))
        }
        Outcome::Refused(refusal) => Err(Failure::new(error::INPUT, refusal.message)),
    }
}

/// Whose signatures nobody else may register, nor point elsewhere.
pub(crate) const OURS: &str = "actum/";

fn next_version(signature: &Signature) -> String {
    let id = signature.id();
    match id.rsplit_once(".v").and_then(|(name, version)| Some((name, version.parse::<u64>().ok()?))) {
        Some((name, version)) => format!("{name}.v{}", version.saturating_add(1)),
        None => id,
    }
}

/// One by its id.
pub(crate) fn find(waiter: &Waiter, tenant: &Tenant, id: &str) -> Result<Signature, Failure> {
    registered(waiter, tenant, id)?.ok_or_else(|| {
        let failure = Failure::new(error::NOT_FOUND, format!("no signature {id:?} is registered"));
        failure.hint("`actum signature list` shows what is; `actum signature add FILE` registers one")
    })
}

/// The same, if there is one.
pub(crate) fn registered(waiter: &Waiter, tenant: &Tenant, id: &str) -> Result<Option<Signature>, Failure> {
    if let Some(own) = super::agent::signatures().into_iter().find(|one| one.id() == id) {
        return Ok(Some(own));
    }
    let bytes = waiter.wait(waiter.journal.entry(tenant, &entry_id(id)))?;
    bytes.map(|bytes| read(&bytes)).transpose()
}

fn read(bytes: &[u8]) -> Result<Signature, Failure> {
    let damaged = |why: String| Failure::new(error::LEDGER_DAMAGED, format!("a signature in the ledger {why}"));
    let payload = evidence::payload_of(Kind::Signature, bytes)?;
    Signature::read(&payload["signature"])
        .map_err(|flaws| damaged(flaws.first().map(ToString::to_string).unwrap_or_default()))
}

/// All that were registered, in the order in which they were.
pub(crate) fn all(waiter: &Waiter, tenant: &Tenant) -> Result<Vec<Signature>, Failure> {
    let (mut from, mut found) = (0, Vec::new());
    loop {
        let range = Range { from, limit: PAGE, backwards: false, kind: Some(TYPE.to_owned()) };
        let rows = waiter.wait(waiter.journal.rows(tenant, range))?;
        let Some(last) = rows.last().map(|row| row.seq) else { return Ok(found) };
        for row in rows {
            found.push(read(&row.body)?);
        }
        from = last + 1;
    }
}
