//! The end of an attempt: result, recording, receipt and the script that repeats it, in a folder of the run's own.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use actum_api::error;
use actum_contract::digest::Digest;
use actum_contract::id::Tenant;
use actum_contract::metadata;
use actum_engine::Waiter;
use actum_kernel::{Finished, Metrics, RunResult, State, Status, Verdict};
use actum_ledger::checkpoint::origin;
use actum_ledger::journal::Range;
use actum_ledger::receipt::{Receipt, seal, statement, subject};
use actum_workspace::{Change, Verb, deltas, folder_bytes, patch};
use serde_json::{Value, json};

use super::hands::{Done, RunHands};
use super::recording::Recording;
use super::spent::{Receipts, Since, receipts};
use crate::failure::Failure;
use crate::seat::told_to;
use crate::workspace::new_id;

/// Where a run leaves what it leaves.
#[derive(Debug, Clone)]
pub(crate) struct RunFolder(PathBuf);

/// How the names of files begin in which calls are noted.
const CALLS: &str = "calls-";

impl RunFolder {
    pub(crate) fn of(home: &Path, run: &str) -> Self {
        Self(home.join("runs").join(run))
    }

    pub(crate) fn make(home: &Path, run: &str) -> Done<Self> {
        let folder = Self::of(home, run);
        fs::create_dir_all(&folder.0).map_err(|e| unwritable(&folder.0, &e))?;
        Ok(folder)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.path("log")
    }

    /// A line of our own in the log.
    pub(super) fn note(&self, text: &str) {
        let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let file = fs::OpenOptions::new().append(true).create(true).open(self.log());
        let _ = file.and_then(|mut file| writeln!(file, "{line}"));
    }

    /// Whole or not at all, and still there after the machine stopped.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> Done<()> {
        let (path, aside) = (self.path(name), self.path(&format!(".{name}.new")));
        let written = fs::File::create(&aside).and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_data()
        });
        written.and_then(|()| fs::rename(&aside, &path)).map_err(|e| unwritable(&path, &e))
    }

    /// As `write`, and executable.
    fn write_program(&self, name: &str, bytes: &[u8]) -> Done<()> {
        self.write(name, bytes)?;
        let path = self.path(name);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(|e| unwritable(&path, &e))
    }

    /// Keeps what an agent heard of its tools in one act, by its digest.
    pub(super) fn keep_answers(&self, digest: &str, bytes: &[u8]) -> Done<()> {
        self.write(&format!("answers-{digest}.json"), bytes)
    }

    /// Where the calls of an act are noted before they are made: by how many acts were on record then.
    pub(super) fn intents(&self, acts: usize) -> PathBuf {
        self.path(&format!("{CALLS}{acts}"))
    }

    /// Calls of acts that never came on record, because whoever had the run died: they were made all the same. Those of
    /// acts that did are with their events.
    pub(super) fn lost_calls(&self, acts: usize) -> Done<u64> {
        let lost = self.path("lost-calls");
        for (act, path) in self.noted_calls() {
            if act >= acts {
                let all = [fs::read(&lost).unwrap_or_default(), fs::read(&path).unwrap_or_default()].concat();
                self.write("lost-calls", &all)?;
            }
            fs::remove_file(&path).map_err(|e| unwritable(&path, &e))?;
        }
        Ok(fs::read(&lost).unwrap_or_default().iter().filter(|b| **b == b'\n').count() as u64)
    }

    fn noted_calls(&self) -> Vec<(usize, PathBuf)> {
        let named = |entry: fs::DirEntry| {
            let act = entry.file_name().to_str()?.strip_prefix(CALLS)?.parse().ok()?;
            Some((act, entry.path()))
        };
        fs::read_dir(&self.0).into_iter().flatten().flatten().filter_map(named).collect()
    }

    /// Forgets the calls of acts that are on record. Those of one that was broken off stay: they were made.
    pub(super) fn settle_calls(&self, acts: usize) {
        for (_, path) in self.noted_calls().into_iter().filter(|(act, _)| *act < acts) {
            let _ = fs::remove_file(path);
        }
    }

    /// How much there is of what an agent has heard so far.
    pub(super) fn answers_bytes(&self, digests: &[String]) -> usize {
        let bytes =
            |digest: &String| fs::metadata(self.path(&format!("answers-{digest}.json"))).ok().map(|found| found.len());
        usize::try_from(digests.iter().filter_map(bytes).sum::<u64>()).unwrap_or(usize::MAX)
    }

    pub(super) fn answers(&self, digest: &str) -> Option<Vec<u8>> {
        let name = format!("answers-{digest}.json");
        fs::read(self.path(&name)).ok().or_else(|| {
            // Those of acts that a fork took along lie where they were made.
            let others = fs::read_dir(self.0.parent()?).ok()?.flatten();
            others.into_iter().find_map(|other| fs::read(other.path().join(&name)).ok())
        })
    }

    /// Where an end is put together by whoever believes to have the run. Only once it is on record is it moved in: who
    /// had lost the run meanwhile has then touched nothing.
    fn aside(&self, epoch: u64) -> Self {
        Self(self.path(&format!("{ASIDE}{epoch}")))
    }

    pub(super) fn begin_end(&self, epoch: u64) -> Done<Self> {
        self.drop_end(epoch);
        let aside = self.aside(epoch);
        fs::create_dir(&aside.0).map_err(|e| unwritable(&aside.0, &e))?;
        Ok(aside)
    }

    pub(super) fn drop_end(&self, epoch: u64) {
        let _ = fs::remove_dir_all(self.aside(epoch).0);
    }

    /// Ends that never came on record.
    pub(super) fn drop_ends(&self) {
        for entry in fs::read_dir(&self.0).into_iter().flatten().flatten() {
            if entry.file_name().as_encoded_bytes().starts_with(ASIDE.as_bytes()) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }

    /// Moves in the end that is on record, which is that of the last one who had the run; whoever recorded it may have
    /// been killed before. The receipt comes last: where it lies, all that it names lies too.
    pub(crate) fn settle(&self, epoch: u64) {
        let aside = self.aside(epoch);
        if aside.0.is_dir() {
            for name in LEFT {
                let _ = fs::rename(aside.path(name), self.path(name));
            }
            self.drop_end(epoch);
        }
    }

    /// A new folder with a request in it, for an agent to answer in.
    pub(super) fn exchange(&self, request: &Value) -> Done<PathBuf> {
        let folder = self.path("exchange");
        let made = match fs::remove_dir_all(&folder) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
            _ => fs::create_dir(&folder),
        };
        made.map_err(|e| unwritable(&folder, &e))?;
        let path = folder.join("request.json");
        fs::write(&path, format!("{request:#}\n")).map_err(|e| unwritable(&path, &e))?;
        Ok(folder)
    }
}

/// Every contract of a run, oldest first, with the finished steps it governed.
pub(crate) fn contract_periods(state: &State) -> Vec<Value> {
    state.contracts.iter().map(|period| json!({"hash": period.contract.hash, "steps": period.steps})).collect()
}

const ASIDE: &str = ".ended-";
/// What an end leaves.
const LEFT: [&str; 6] =
    ["recording.json", "diff.patch", "receipt.statement.json", "result.json", "replay.sh", "RECEIPT.json"];

fn unwritable(path: &Path, e: &std::io::Error) -> Failure {
    Failure::of_io(format!("cannot write {}: {e}", path.display()), e)
}

/// Receipts read at a time.
const RECEIPTS_PAGE: usize = 200;

/// The newest receipt below a position in the ledger for which `wanted` holds, with its position.
fn newest(waiter: &Waiter, tenant: &Tenant, below: u64, wanted: &dyn Fn(&Value) -> bool) -> Done<Option<(u64, Value)>> {
    let mut from = below;
    loop {
        let range = Range { from, limit: RECEIPTS_PAGE, backwards: true, kind: Some("receipt".to_owned()) };
        let rows = waiter.wait(waiter.journal.rows(tenant, range))?;
        let Some(last) = rows.last().map(|row| row.seq) else { return Ok(None) };
        for row in rows {
            let entry: Value = serde_json::from_slice(&row.body).unwrap_or(Value::Null);
            if wanted(&entry["payload"]) {
                return Ok(Some((row.seq, entry["payload"].clone())));
            }
        }
        from = last;
    }
}

/// Beyond every entry.
const END: u64 = i64::MAX as u64;

/// The last receipt of a workspace that is on record before a position: its place in the ledger, and its digest.
pub(crate) fn receipt_before(waiter: &Waiter, tenant: &Tenant, place: &str, seq: u64) -> Done<Option<(u64, String)>> {
    let found = newest(waiter, tenant, seq, &|receipt| receipt["place"] == place)?;
    Ok(found.map(|(seq, receipt)| (seq, receipt["digest"].as_str().unwrap_or_default().to_owned())))
}

impl RunHands {
    pub(super) fn receipt(&mut self, verdict: &Verdict, state: &State) -> Done<Finished> {
        let end = self.folder.begin_end(self.facts.epoch)?;
        let changes = self.changes(state)?;
        let capsule = self.capsule(state)?;
        let is_success = verdict.status == Status::Success;
        let output = if is_success { state.current.clone() } else { state.before.clone() }.unwrap_or_default();
        let receipt_id = new_id();
        let log = self.shop.waiter.wait(self.shop.waiter.journal.log(&self.shop.tenant))?;
        let spent = self.spent(state, log.frontier.size())?;
        let mut result = self.result(verdict, state, &changes, &receipt_id, &output);
        result.spend = spent.as_ref().map(|receipts| receipts.spent.clone());
        let blobs = self.workspace.blobs();
        let diff_text = patch(blobs, &changes)?;
        let heard = self.all_heard(state)?;
        let recording = Recording::of(&self.facts, state, verdict, &capsule, &self.programs, heard);
        let recording = serde_json::to_vec(&recording).unwrap_or_default();
        let result_text = serde_json::to_vec_pretty(&result).unwrap_or_default();
        let script = is_success.then(|| self.replay_script());

        let mut subjects = Vec::new();
        match Digest::from_hex(&output) {
            // The topmost folder of a tree names everything below it.
            Some(tree) => {
                subjects.push(subject("workspace", Digest::sha256(&folder_bytes(blobs, tree)?), &output));
            }
            // It ended before the workspace was looked at: all there is to speak of is what was wanted.
            None => {
                let item = serde_json::to_vec(&self.facts.agreement.work_item).unwrap_or_default();
                subjects.push(subject("work-item", Digest::sha256(&item), &Digest::blake3(&item).to_hex()));
            }
        }
        if is_success {
            for change in deltas(&changes) {
                if let Some(node) = change.after.filter(|node| node.kind.is_file()) {
                    let content = blobs.read(node.digest)?;
                    subjects.push(subject(&change.path.to_string(), Digest::sha256(&content), &node.digest.to_hex()));
                }
            }
        }
        let waiter = &self.shop.waiter;
        let fields: Value = serde_json::from_str(&self.facts.metadata).unwrap_or(Value::Null);
        // One receipt after the other: each names the one before it, and is on record before the next is signed.
        self.turn = self.shop.turn();
        let last = receipt_before(waiter, &self.shop.tenant, &self.facts.place, END)?;
        let previous = last.map(|(_, digest)| digest);
        let log_name = origin(waiter.journal.store_id(), &self.shop.tenant);
        self.shop.known_head.note(&log_name, log.frontier.size(), log.head, |size| {
            let last = waiter.journal.rows(&self.shop.tenant, Range::forwards(size - 1, 1));
            waiter.wait(last).ok()?.first()?.hash.as_slice().try_into().ok().map(Digest)
        });
        let mut predicate = json!({
            "receiptId": receipt_id,
            "runId": self.facts.run,
            "submission": self.facts.submission,
            "attempt": self.facts.attempt,
            "tenant": self.shop.tenant.as_str(),
            "place": self.facts.place,
            "status": verdict.status,
            "published": state.published,
            "error": verdict.code.as_ref().map(|code| json!({"code": code, "message": verdict.message})),
            "contract": {"hash": self.facts.contract_hash, "material": fields[metadata::MATERIAL]},
            "contracts": contract_periods(state),
            "workItem": self.facts.agreement.work_item,
            "agent": self.facts.agreement.agent,
            "before": {"tree": state.before, "commit": state.commit},
            "view": state.view,
            "configuration": {
                "submitted": self.facts.agreement.config,
                "executed": self.shop.config.digest.map(Digest::to_hex),
            },
            "after": {"tree": output, "workspace": state.published_tree},
            "capsule": {"hash": capsule.hash().map(Digest::to_hex), "deltas": capsule.deltas()},
            "artifacts": result.artifact_hashes,
            "toolTrace": {"sha256": capsule.trace_digest().map(Digest::to_hex), "operations": state.ops.len()},
            "tests": state.tested.as_ref().map(|tested| json!({
                "command": self.facts.agreement.work_item.test_command, "passed": tested.passed,
                "exitCode": tested.exit_code, "testsPassed": tested.tests_passed, "testsFailed": tested.tests_failed,
            })),
            "corrections": {"runtime": state.runtime_corrections, "heavy": state.heavy_corrections},
            "warnings": state.warnings,
            "metrics": result.metrics,
            "recording": {"sha256": Digest::sha256(&recording).to_hex()},
            "diff": {"sha256": Digest::sha256(&diff_text).to_hex()},
            "result": {"sha256": Digest::sha256(&result_text).to_hex()},
            "replayScript": script.as_ref().map(|script| json!({"sha256": Digest::sha256(script.as_bytes()).to_hex()})),
            "baseDrift": state.drift,
            "ledger": {
                "origin": log_name,
                "size": log.frontier.size(), "head": log.head.to_hex(),
            },
            "previousReceipt": previous,
            "startedOn": format!("{:.3}", self.started),
            "finishedOn": format!("{:.3}", self.now()),
            "builder": {"id": format!("https://actum.dev/runtime@{}", env!("CARGO_PKG_VERSION"))},
        });
        if let Some(spent) = spent {
            predicate["spend"] = spent.json();
        }
        let statement = statement(subjects, predicate);
        let envelope = seal(&statement, &self.shop.key.signing);
        let digest = Receipt::read(&envelope)
            .map_err(|e| Failure::new(error::INTERNAL, format!("the receipt cannot be read again: {e}")))?
            .digest()
            .to_hex();
        end.write("recording.json", &recording)?;
        end.write("diff.patch", &diff_text)?;
        end.write("receipt.statement.json", format!("{statement:#}\n").as_bytes())?;
        end.write("result.json", &result_text)?;
        end.write("RECEIPT.json", format!("{envelope}\n").as_bytes())?;
        if let Some(script) = &script {
            end.write_program("replay.sh", script.as_bytes())?;
        }

        let error = verdict
            .code
            .as_ref()
            .map(|code| json!({"code": code, "message": verdict.message, "retryable": verdict.retryable}));
        let mut outcome = json!({
            "result": result,
            "verdict": verdict,
            "error": error,
            "capsule": capsule.hash().filter(|_| !capsule.is_empty()).map(Digest::to_hex),
            "receipt": {"id": receipt_id, "digest": digest},
            "warnings": state.warnings,
            "drift": state.drift,
            "before": state.before,
            "current": state.current,
        });
        if self.facts.agreement.shared.is_some() {
            outcome["files"] = self.share_files(&end)?;
        }
        let entry = json!({
            "id": format!("receipt:{receipt_id}"),
            "tenantId": self.shop.tenant.as_str(), "robotId": self.facts.agreement.work_item.agent_id,
            "module": "engine", "source": "actum", "type": "receipt",
            "payload": {
                "receiptId": receipt_id, "runId": self.facts.run, "attempt": self.facts.attempt,
                "place": self.facts.place, "status": verdict.status, "digest": digest, "previous": previous,
            },
        });
        Ok(Finished { outcome, entries: vec![entry] })
    }

    /// What its calls cost, if it can have made any, as the ledger says up to a position.
    fn spent(&self, state: &State, below: u64) -> Done<Option<Receipts>> {
        if self.repeats.is_some() || (state.answers.is_empty() && self.till.is_none() && self.facts.epoch < 2) {
            return Ok(None);
        }
        let since = Since::Created(self.facts.created_ms);
        receipts(&self.shop.waiter, &self.shop.tenant, &self.facts.run, below, since)
    }

    fn result(
        &self,
        verdict: &Verdict,
        state: &State,
        changes: &[Change],
        receipt_id: &str,
        output: &str,
    ) -> RunResult {
        let is_success = verdict.status == Status::Success;
        let root = &self.facts.agreement.workspace;
        let paths = |wanted: &dyn Fn(Verb) -> bool| -> Vec<String> {
            let counted = deltas(changes).filter(|change| is_success && wanted(change.verb()));
            counted.map(|change| root.join(change.path.as_path()).display().to_string()).collect()
        };
        let artifact_hashes: BTreeMap<String, String> = deltas(changes)
            .filter(|_| is_success)
            .filter_map(|change| Some((change.path.to_string(), change.after?.digest.to_hex())))
            .collect();
        let tested = state.tested.as_ref();
        let script = self.folder.path("replay.sh");
        let is_denied = verdict.status == Status::Denied;
        let told = |path: &Path| told_to(&self.shop.tenant, &self.shop.root, path);
        RunResult {
            status: verdict.status,
            receipt_id: receipt_id.to_owned(),
            receipt_path: told(&self.folder.path("RECEIPT.json")),
            modified_files: paths(&|verb| !matches!(verb, Verb::Add | Verb::Delete)),
            created_files: paths(&|verb| verb == Verb::Add),
            deleted_files: paths(&|verb| verb == Verb::Delete),
            output_hash: output.to_owned(),
            artifact_hashes,
            metrics: Metrics {
                execution_time_ms: state.spent_ms,
                tool_ops_count: state.tool_ops(),
                delta_size: state.delta_size(),
                files_touched: state.files,
                tests_passed: tested.and_then(|tested| tested.tests_passed),
                tests_failed: tested.and_then(|tested| tested.tests_failed),
            },
            spend: None,
            test_output: tested.map(|tested| tested.output.clone()),
            proof_script: is_success.then(|| told(&script)),
            error: verdict.message.clone().filter(|_| !is_denied && !is_success),
            denial_reason: verdict.message.clone().filter(|_| is_denied),
        }
    }

    fn replay_script(&self) -> String {
        let quote = |path: &Path| format!("'{}'", path.display().to_string().replace('\'', "'\\''"));
        format!(
            "#!/usr/bin/env bash\n\
             # Repeats run {run} offline on a copy of its recorded input, and compares what comes out.\n\
             # The workspace is not touched. ACTUM names another binary.\n\
             set -euo pipefail\n\
             exec \"${{ACTUM:-{program}}}\" -C {root} replay {run} \"$@\"\n",
            run = self.facts.run,
            program = self.shop.program.display().to_string().replace(['"', '\\', '$', '`'], ""),
            root = quote(&self.shop.root),
        )
    }
}
