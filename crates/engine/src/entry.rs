//! What a run leaves in the ledger: its execution events, and what they stand on.

use std::collections::BTreeMap;

use actum_contract::Contract;
use actum_kernel::{Verdict, code};
use actum_ledger::draft::{self, Submission};
use actum_ledger::event::{MODULE, State};
use actum_ledger::journal::JournalError;
use actum_ledger::run::Run;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::agreement::{Lineage, RecordedContract, Submitter};
use crate::wait::Waiter;

/// A time as it is written: as exact as the store's own times, which it is compared with.
pub(crate) fn time(at: Timestamp) -> String {
    actum_ledger::time::format(at)
}

/// Who and what an event is about.
#[derive(Debug, Clone)]
pub(crate) struct About<'a> {
    pub run: &'a Run,
    pub attempt: u64,
    pub lineage: &'a Lineage,
    pub contract_hash: &'a str,
    /// Publishing is left to somebody outside.
    pub external: bool,
}

impl About<'_> {
    fn event(&self, state: State, coherence: &str, extra: Value) -> Submission {
        let mut payload = json!({
            "executionId": self.run.id, "workflowVersion": "v1", "agentVersion": "v1", "executionContractVersion": "v1",
            "attempt": self.attempt, "target": self.run.item, "action": "run",
            "snapshotAt": self.lineage.snapshot_at, "coherenceStatus": coherence, "dryRun": !self.external,
            "externalRefs": {"contractHash": self.contract_hash, "submission": self.run.submission},
        });
        if let (Some(fields), Value::Object(extra)) = (payload.as_object_mut(), extra) {
            fields.extend(extra);
        }
        let entry = json!({
            "tenantId": self.run.tenant.as_str(), "robotId": self.run.robot, "module": MODULE, "source": MODULE,
            "type": "execution_event", "state": state.word(),
            "payload": payload, "lineage": {"dependsOnLedgerIds": self.lineage.depends_on},
        });
        // The store gives it its time: no clock of ours can contradict another one.
        draft::read_own(entry)
    }

    pub(crate) fn planned(&self) -> Submission {
        self.event(State::Planned, "coherent", json!({}))
    }

    pub(crate) fn running(&self) -> Submission {
        self.event(State::Running, "coherent", json!({}))
    }

    /// How an attempt ended.
    pub(crate) fn ended(&self, verdict: &Verdict, result: Value) -> Submission {
        let message = verdict.message.clone().unwrap_or_default();
        let code = verdict.code.as_deref().unwrap_or("FAILED");
        let stale = code == code::COHERENCE_BLOCKED;
        let coherence = if stale { "stale" } else { "coherent" };
        match verdict.status {
            actum_kernel::Status::Success => self.event(State::Succeeded, coherence, json!({"result": result})),
            _ if verdict.cancelled => self.event(State::Cancelled, coherence, json!({"cancelReason": message})),
            status => {
                // Every denial is one to the ledger; what exactly was denied is in the message.
                let denied = status == actum_kernel::Status::Denied && !stale;
                let ledger_code = if denied { code::ADMISSION_DENIED } else { code };
                let message = if denied && code != ledger_code && !message.starts_with(code) {
                    format!("{code}: {message}")
                } else {
                    message
                };
                let error = json!({"code": ledger_code, "message": message, "retryable": verdict.retryable && !stale});
                self.event(State::Failed, coherence, json!({"error": error}))
            }
        }
    }

    /// It was never planned, and never will be: what it stands on has failed.
    pub(crate) fn blocked(&self, message: &str) -> Submission {
        let error = json!({"code": code::COHERENCE_BLOCKED, "message": message, "retryable": false});
        self.event(State::Failed, "partial", json!({"error": error}))
    }
}

/// What the ledger last recorded of a run: its state and attempt.
pub(crate) fn last_recorded(waiter: &Waiter, run: &Run) -> Result<Option<(State, u64)>, JournalError> {
    for attempt in (1..=run.attempt).rev() {
        for state in [State::Succeeded, State::Cancelled, State::Failed, State::Running, State::Planned] {
            let id = actum_ledger::event::id_of(&run.robot, &run.id, attempt, state);
            if waiter.wait(waiter.journal.entry(&run.tenant, &id))?.is_some() {
                return Ok(Some((state, attempt)));
            }
        }
    }
    Ok(None)
}

/// Ends an attempt that the ledger still holds open, so that another one can follow. Nothing if all is closed.
pub(crate) fn close_before(waiter: &Waiter, about: &About<'_>) -> Result<Vec<Submission>, JournalError> {
    let (state, attempt) = match last_recorded(waiter, about.run)? {
        Some((state @ (State::Planned | State::Running), attempt)) if attempt < about.attempt => (state, attempt),
        _ => return Ok(Vec::new()),
    };
    let open = About { attempt, ..about.clone() };
    let message = "the attempt was left open and is followed by another";
    let verdict = Verdict::ended(actum_kernel::Status::Failure, code::INTERRUPTED, message);
    let mut entries = Vec::new();
    if state == State::Planned {
        entries.push(open.running());
    }
    entries.push(open.ended(&verdict, Value::Null));
    Ok(entries)
}

/// The id under which the ledger keeps the success of a run's attempt.
pub(crate) fn succeeded_id(robot: &str, run: &str, attempt: u64) -> String {
    actum_ledger::event::id_of(robot, run, attempt, State::Succeeded)
}

/// The id under which the ledger keeps that an attempt was planned.
pub(crate) fn planned_id(robot: &str, run: &str, attempt: u64) -> String {
    actum_ledger::event::id_of(robot, run, attempt, State::Planned)
}

/// What a submission agreed on.
pub(crate) struct Agreements<'a> {
    /// The digest of each run's agreement.
    pub digests: &'a BTreeMap<String, String>,
    /// The contract of all its runs.
    pub contract: &'a Contract,
    pub by: &'a Submitter,
}

/// The workspace as a submission found it, and what was agreed on.
pub(crate) fn snapshot(
    tenant: &str,
    submission: &str,
    (workspace, tree): (&str, &str),
    at: &str,
    agreed: &Agreements<'_>,
) -> Submission {
    let entry = json!({
        "id": snapshot_id(submission), "tenantId": tenant, "module": "workspace", "source": "actum",
        "type": "workspace_snapshot", "createdAt": at,
        "payload": {
            "workspace": workspace, "tree": tree, "agreements": agreed.digests,
            "contract": RecordedContract::of(agreed.contract), "submittedBy": agreed.by,
        },
    });
    draft::read_own(entry)
}

/// The contract of a run was changed: by an override, or because it had none. `number` counts the changes of the run from 1.
pub(crate) fn contract_change(
    run: &Run,
    number: u64,
    (from, to): (Option<&Contract>, &Contract),
    by: Option<&Submitter>,
) -> Submission {
    let entry = json!({
        "id": contract_change_id(&run.id, number), "tenantId": run.tenant.as_str(), "robotId": run.robot,
        "module": "contract", "source": "actum", "type": "contract_change",
        "payload": {
            "executionId": run.id, "attempt": run.attempt, "afterEvents": run.version,
            "from": from.map(RecordedContract::of), "to": RecordedContract::of(to), "by": by,
        },
    });
    draft::read_own(entry)
}

pub(crate) fn contract_change_id(run: &str, number: u64) -> String {
    format!("contract-change:{run}:{number}")
}

pub(crate) fn snapshot_id(submission: &str) -> String {
    format!("snapshot:{submission}")
}
