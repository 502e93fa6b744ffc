//! `actum verify`, `actum replay`, `actum gate`: what can be proven about a run.

use std::path::{Path, PathBuf};

use actum_api::error;
use actum_contract::canon;
use actum_contract::digest::Digest;
use actum_engine::{Governed, full_history, govern};
use actum_ledger::Entry;
use actum_ledger::journal::Range;
use actum_ledger::merkle::{self, Plan};
use actum_ledger::receipt::Receipt;
use actum_ledger::run::Run;
use clap::Args;
use ed25519_dalek::VerifyingKey;
use ed25519_dalek::pkcs8::DecodePublicKey as _;
use serde_json::{Value, json};

use super::Ended;
use super::run::{may_again, submitter};
use crate::args::Global;
use crate::document::Document;
use crate::failure::Failure;
use crate::folder;
use crate::key::Key;
use crate::project::Project;
use crate::run::spent::{Since, receipts};
use crate::run::{Open, Recording, Shop, replay};
use crate::seat::told_to;
use crate::ui::Out;
use crate::workspace;

#[derive(Debug, Args)]
#[command(
    after_help = "With --key neither a project nor a store is needed: signature, form and the files beside the receipt are checked. In the project that made it, the chain of receipts and the ledger are checked too."
)]
pub(crate) struct Verify {
    /// Receipts: RECEIPT.json files, or runs
    #[arg(id = "receipt", required = true, value_name = "RECEIPT")]
    receipts: Vec<String>,

    /// The public key (PEM) that must have signed them [default: the project's own]
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
}

/// What was found out about one receipt.
#[derive(Debug, Default)]
struct Checks(Vec<Value>);

impl Checks {
    fn note(&mut self, name: &str, ok: bool, detail: impl Into<String>) {
        self.0.push(json!({"name": name, "ok": ok, "detail": detail.into()}));
    }

    fn judge<T, E: std::fmt::Display>(&mut self, name: &str, outcome: Result<T, E>, good: &str) -> Option<T> {
        match outcome {
            Ok(value) => {
                self.note(name, true, good);
                Some(value)
            }
            Err(e) => {
                self.note(name, false, e.to_string());
                None
            }
        }
    }

    fn valid(&self) -> bool {
        self.0.iter().all(|check| check["ok"] == true)
    }
}

impl Verify {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let open = match self.key {
            Some(_) => None,
            None => Some(Open::new(Project::find(global)?, out)?),
        };
        let key = match &self.key {
            Some(path) => Some(read_key(path)?),
            None => None,
        };
        let mut shown = Vec::new();
        for name in &self.receipts {
            let (path, run) = path_of(name, open.as_ref())?;
            let checks = check(&path, run.as_ref(), key.as_ref(), open.as_ref())?;
            shown.push((name, checks));
        }
        let valid = shown.iter().all(|(_, checks)| checks.valid());
        let all: Vec<Value> = shown
            .iter()
            .map(|(name, checks)| json!({"receipt": name, "valid": checks.valid(), "checks": checks.0}))
            .collect();
        let json = match &all[..] {
            [one] => one.clone(),
            many => json!({"valid": valid, "receipts": many}),
        };
        out.result(&json, || {
            let mut lines = Vec::new();
            for (name, checks) in &shown {
                lines.push(format!("{} {name}", if checks.valid() { "✓" } else { "✗" }));
                for check in &checks.0 {
                    let mark = if check["ok"] == true { "✓" } else { "✗" };
                    let word = |key: &str| check[key].as_str().unwrap_or_default().to_owned();
                    lines.push(format!("  {mark} {}: {}", word("name"), word("detail")));
                }
            }
            lines.join("\n")
        });
        Ok(u8::from(!valid))
    }
}

fn read_key(path: &Path) -> Result<VerifyingKey, Failure> {
    let text = Document::read(path)?.text;
    let text = String::from_utf8_lossy(&text);
    VerifyingKey::from_public_key_pem(&text).map_err(|_| {
        Failure::new(error::KEY, format!("{} is no Ed25519 public key in PEM", path.display()))
            .hint("`actum key show --pem` prints one")
    })
}

/// A file, or the receipt of a run and the run.
fn path_of(name: &str, open: Option<&Open>) -> Result<(PathBuf, Option<Run>), Failure> {
    let path = PathBuf::from(name);
    // Whoever is not at the keyboard names runs, no files of this machine.
    if let Some(open) = open.filter(|open| open.project.seat().is_some()) {
        let run = open.run(name)?;
        return Ok((open.left_by(&run)?.path("RECEIPT.json"), Some(run)));
    }
    if path.is_dir() {
        return Ok((path.join("RECEIPT.json"), None));
    }
    if path.exists() {
        return Ok((path, None));
    }
    match open {
        Some(open) if !name.contains('/') => {
            let run = open.run(name)?;
            Ok((open.left_by(&run)?.path("RECEIPT.json"), Some(run)))
        }
        _ => Err(Failure::new(error::FILE, format!("cannot read {name}: there is no such file"))),
    }
}

fn check(path: &Path, run: Option<&Run>, key: Option<&VerifyingKey>, open: Option<&Open>) -> Result<Checks, Failure> {
    let mut checks = Checks::default();
    let document = Document::read(path)?;
    let envelope = document.json()?;
    let Some(receipt) = checks.judge("form", Receipt::read(&envelope), "a DSSE envelope with an in-toto statement")
    else {
        return Ok(checks);
    };
    let signed = match (key, open) {
        (Some(key), _) => receipt.verify(key).map_err(|e| e.to_string()),
        (None, Some(open)) => {
            let trusted = Key::known_to(open)?;
            match trusted.with_id(&receipt.key_id) {
                Some(key) => receipt.verify(key).map_err(|e| e.to_string()),
                None => Err(trusted.why_unknown(&receipt.key_id)),
            }
        }
        (None, None) => Err("there is no key to check it with; name one with --key".to_owned()),
    };
    checks.judge("signature", signed, &format!("Ed25519 by key {}", receipt.key_id));
    if receipt.is_prediction() {
        of_prediction(&receipt, open, &mut checks)?;
        return Ok(checks);
    }
    match (run, folder_of_run(path)) {
        (Some(run), _) => of_run(&receipt, run, &mut checks),
        (None, Some(folder)) => in_folder(&receipt, &folder, &mut checks),
        (None, None) => {}
    }
    let predicate = receipt.predicate();
    let material = &predicate["contract"]["material"];
    let hash = canon::canonical(material).map(|text| Digest::sha256(&text).to_hex()).unwrap_or_default();
    let fits = predicate["contract"]["hash"] == hash.as_str();
    checks.note("contract", fits, if fits { hash } else { format!("its material hashes to {hash}") });
    beside(&receipt, path, &mut checks);
    if let Some(open) = open {
        in_store(&receipt, open, &mut checks)?;
    }
    Ok(checks)
}

/// A good receipt in the wrong folder proves nothing about the run: not that of another one, nor of an earlier attempt.
fn of_run(receipt: &Receipt, run: &Run, checks: &mut Checks) {
    let outcome = run.outcome.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok());
    let is_last = outcome.is_none_or(|outcome| outcome["receipt"]["digest"] == receipt.digest().to_hex().as_str());
    let ok = is_last && receipt.predicate()["runId"] == run.id.as_str();
    checks.note("run", ok, if ok { "the receipt of this run" } else { "it is not the receipt that this run left" });
}

/// Whether a prediction's receipt is whole, was judged as it says, and stands in the ledger.
fn of_prediction(receipt: &Receipt, open: Option<&Open>, checks: &mut Checks) -> Result<(), Failure> {
    let told = &receipt.predicate()["prediction"];
    let id = told["receipt_id"].as_str().unwrap_or_default();
    let whole = actum_predict::receipt::check(told).map_err(|flaws| flaws.join(", "));
    checks.judge("receipt", whole, id);
    let text = actum_predict::hash::canonical(told);
    let is_subject = receipt.statement["subject"][0]["digest"]["sha256"] == Digest::sha256(&text).to_hex().as_str();
    checks.note(
        "subject",
        is_subject,
        if is_subject { "the receipt that it speaks of" } else { "it speaks of another one" },
    );
    let inputs = serde_json::from_value(told["policy"]["inputs"].clone()).map_err(|e| e.to_string());
    let judged = inputs.and_then(|inputs| {
        let again = actum_predict::policy::evaluate(&inputs);
        let is_same = told["policy"]["evaluation_hash"] == again.evaluation_hash.as_str();
        is_same.then_some(()).ok_or_else(|| format!("evaluated again it is {}", again.reason_code))
    });
    checks.judge("policy", judged, told["policy"]["reason_code"].as_str().unwrap_or_default());
    let Some(open) = open else { return Ok(()) };
    let entry_id = crate::model::receipt::entry_id(id);
    let body = open.waiter.wait(open.waiter.journal.entry(&open.tenant, &entry_id))?;
    let entry = body.as_deref().and_then(|body| Entry::open(body).ok());
    match entry.zip(body) {
        Some((entry, body)) if entry.payload["receipt"] == *told => included(open, entry.seq, &body, checks),
        Some(_) => {
            checks.note("ledger", false, "the ledger has another receipt under this id");
            Ok(())
        }
        None => {
            checks.note("ledger", false, format!("entry {entry_id} is not in the ledger"));
            Ok(())
        }
    }
}

/// Files of a run whose digests are part of its receipt, by the name of that part.
const SIGNED_FILES: [(&str, &str); 4] =
    [("recording.json", "recording"), ("diff.patch", "diff"), ("result.json", "result"), ("replay.sh", "replayScript")];

/// Returns the name of the folder in `runs` that a receipt lies in, if it does.
fn folder_of_run(path: &Path) -> Option<String> {
    let folder = path.canonicalize().ok()?.parent()?.to_owned();
    let is_run = folder.parent()?.file_name()? == "runs";
    is_run.then(|| folder.file_name().map(|name| name.to_string_lossy().into_owned()))?
}

/// The receipt of another run in this one's folder proves nothing about this one.
fn in_folder(receipt: &Receipt, folder: &str, checks: &mut Checks) {
    let of = receipt.predicate()["runId"].as_str().unwrap_or_default();
    let detail = match of == folder {
        true => "the receipt of this run".to_owned(),
        false => format!("it is the receipt of run {of}, in the folder of run {folder}"),
    };
    checks.note("run", of == folder, detail);
}

/// Compares the files beside a receipt with what was signed. In the folder of a run none of them may be missing, unless all
/// are: that is what retention leaves.
fn beside(receipt: &Receipt, path: &Path, checks: &mut Checks) {
    let predicate = receipt.predicate();
    let folder = path.parent().unwrap_or(Path::new("."));
    let is_kept_whole = folder_of_run(path).is_some()
        && SIGNED_FILES.iter().any(|(name, _)| folder.join(name).symlink_metadata().is_ok());
    for (name, part) in SIGNED_FILES {
        let Some(signed) = predicate[part]["sha256"].as_str() else { continue };
        let Some(bytes) = read_beside(&folder.join(name)) else {
            if is_kept_whole {
                checks.note(part, false, format!("{name} is missing"));
            }
            continue;
        };
        let ok = signed == Digest::sha256(&bytes).to_hex();
        checks.note(part, ok, format!("{name} {}", if ok { "is the one that was signed" } else { "was altered" }));
        if part == "recording" && ok {
            let capsule = Recording::read(&bytes).ok().and_then(|recording| canon::canonical(&recording.capsule).ok());
            let hash = capsule.map(|text| Digest::blake3(&text).to_hex()).unwrap_or_default();
            let ok = predicate["capsule"]["hash"] == hash.as_str();
            checks.note("capsule", ok, if ok { hash } else { format!("what was recorded hashes to {hash}") });
        }
    }
    let readable = "receipt.statement.json";
    match read_beside(&folder.join(readable)) {
        Some(bytes) => {
            let ok = canon::parse(&bytes).is_ok_and(|statement| statement == receipt.statement);
            let detail = if ok { "is the signed statement" } else { "was altered" };
            checks.note("statement", ok, format!("{readable} {detail}"));
        }
        None if is_kept_whole => checks.note("statement", false, format!("{readable} is missing")),
        None => {}
    }
}

/// A pipe has no end.
fn read_beside(path: &Path) -> Option<Vec<u8>> {
    std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    std::fs::read(path).ok()
}

/// What the store knows of a receipt: the ledger has it, and the one before it.
fn in_store(receipt: &Receipt, open: &Open, checks: &mut Checks) -> Result<(), Failure> {
    let predicate = receipt.predicate();
    let digest = receipt.digest().to_hex();
    let id = format!("receipt:{}", predicate["receiptId"].as_str().unwrap_or_default());
    let journal = &open.waiter.journal;
    let body = open.waiter.wait(journal.entry(&open.tenant, &id))?;
    let entry = body.as_deref().and_then(|body| Entry::open(body).ok());
    let Some((entry, body)) = entry.zip(body) else {
        checks.note("ledger", false, format!("entry {id} is not in the ledger"));
        return Ok(());
    };
    if entry.payload["digest"] != digest.as_str() {
        checks.note("ledger", false, "the ledger has another receipt under this id");
        return Ok(());
    }
    let seq = entry.seq;
    included(open, seq, &body, checks)?;
    signed_over(predicate, open, checks)?;
    let place = predicate["place"].as_str().unwrap_or_default();
    let (ok, detail) = chained(predicate, open, place, seq)?;
    checks.note("chain", ok, detail);
    money(predicate, open, checks)
}

/// Whether the log still is the one over which the receipt was signed: its head then is the last entry of that size.
fn signed_over(predicate: &Value, open: &Open, checks: &mut Checks) -> Result<(), Failure> {
    let ledger = &predicate["ledger"];
    let (Some(size), Some(head)) = (ledger["size"].as_u64(), ledger["head"].as_str()) else { return Ok(()) };
    let Some(last) = size.checked_sub(1) else { return Ok(()) };
    let rows = open.waiter.wait(open.waiter.journal.rows(&open.tenant, Range::forwards(last, 1)))?;
    let is_same = rows.first().is_some_and(|row| row.seq == last && merkle::leaf(&row.body).to_hex() == head);
    let detail = match is_same {
        true => format!("the first {size} entries are those it was signed over"),
        false => format!("the ledger's first {size} entries are not those it was signed over"),
    };
    checks.note("history", is_same, detail);
    Ok(())
}

/// A receipt names the newest of its place that was on record when it was made. Those that came on record between that and
/// its own entry are of others that ended at the same time, on other machines too: they stand beside it, not before it.
fn chained(predicate: &Value, open: &Open, place: &str, seq: u64) -> Result<(bool, String), Failure> {
    let made_at = predicate["ledger"]["size"].as_u64().unwrap_or(0);
    let named = predicate["previousReceipt"].as_str();
    let (mut at, mut beside) = (seq, 0_usize);
    loop {
        let before = crate::run::receipt_before(&open.waiter, &open.tenant, place, at)?;
        let others = if beside > 0 { format!(", as do others; {beside} came in between") } else { String::new() };
        match (named, before) {
            (None, None) => return Ok((true, format!("the first of its workspace{others}"))),
            (Some(named), Some((before, digest))) if named == digest => {
                return Ok((true, format!("follows the receipt in entry {before}{others}")));
            }
            (_, Some((before, _))) if before >= made_at => (at, beside) = (before, beside + 1),
            (None, Some((before, _))) => {
                return Ok((false, format!("it names no predecessor, and there is one in entry {before}")));
            }
            (Some(_), None) => return Ok((false, "its predecessor is not in the ledger before it".to_owned())),
            (Some(_), Some((before, _))) => {
                return Ok((false, format!("it does not name its predecessor, the receipt in entry {before}")));
            }
        }
    }
}

/// What the receipt says was spent is what the receipts of its calls say.
fn money(predicate: &Value, open: &Open, checks: &mut Checks) -> Result<(), Failure> {
    let Some(said) = predicate.get("spend").filter(|said| !said.is_null()) else { return Ok(()) };
    let run = predicate["runId"].as_str().unwrap_or_default();
    let (below, since) = (predicate["ledger"]["size"].as_u64().unwrap_or(0), said["since"].as_u64().unwrap_or(0));
    let found = receipts(&open.waiter, &open.tenant, run, below, Since::Entry(since))?;
    let ok = found.as_ref().is_some_and(|found| found.json() == *said);
    let detail = match ok {
        true => format!("{} {} in {} calls, as their receipts say", said["spent"], said["currency"], said["calls"]),
        false => "the receipts of its calls in the ledger are not those it names".to_owned(),
    };
    checks.note("spend", ok, detail.replace('"', ""));
    Ok(())
}

/// Whether the ledger can prove that it holds an entry.
fn included(open: &Open, seq: u64, body: &[u8], checks: &mut Checks) -> Result<(), Failure> {
    let journal = &open.waiter.journal;
    let log = open.waiter.wait(journal.log(&open.tenant))?;
    open.waiter.wait(journal.settled())?;
    let size = log.frontier.size();
    let included = match Plan::inclusion(seq, size) {
        None => false,
        Some(plan) => {
            let hashes = open.waiter.wait(journal.nodes(&open.tenant, &plan.nodes()))?;
            let proof = plan.proof(&hashes).unwrap_or_default();
            let leaf = merkle::leaf(body);
            merkle::verify_inclusion(leaf, seq, size, &proof, log.frontier.root())
        }
    };
    checks.note(
        "ledger",
        included,
        match included {
            true => format!("entry {seq} of {size}, included in the root {}", log.frontier.root()),
            false => "the ledger does not prove that it holds the receipt".to_owned(),
        },
    );
    Ok(())
}

#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// The run, or its RECEIPT.json
    run: String,

    /// Repeat it on this folder; a file that is not what was recorded is named
    #[arg(long, value_name = "DIR")]
    input: Option<PathBuf>,

    /// Call the models again instead of using the recording; the calls cost money, within the budget
    #[arg(long)]
    live: bool,
}

impl Replay {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let path = Path::new(&self.run);
        let is_file = global.seat.is_none() && path.exists();
        // Ours, wherever the file lies: it may come from somebody else, with a project of his own around it.
        let open = Open::new(Project::find(global)?, out)?;
        let folder = match (is_file, is_file && path.is_dir()) {
            (true, true) => path.to_owned(),
            (true, false) => path.parent().unwrap_or(Path::new(".")).to_owned(),
            _ => {
                let run = open.run(&self.run)?;
                may_again(&open, &run, false, &Value::Null)?;
                open.left_by(&run)?.path("")
            }
        };
        let file = folder.join("recording.json");
        let bytes = Document::read(&file).map_err(|e| {
            Failure { message: format!("there is no recording of the run: {}", e.message), ..e }
                .hint(format!("a run leaves one when it ends; {}", crate::retention::GONE))
        })?;
        let unusable = |why: String| Failure::new(error::INPUT, format!("{}: {why}", file.display()));
        let recording = Recording::read(&bytes.text).map_err(unusable)?;
        // What was signed by us is what is repeated: a recording says which program to run.
        let envelope = Document::read(&folder.join("RECEIPT.json")).and_then(|document| document.json())?;
        let receipt = Receipt::read(&envelope).map_err(|e| unusable(format!("its receipt is none: {e}")))?;
        let keys = Key::known_to(&open)?;
        if !keys.keys.iter().any(|key| receipt.verify(key).is_ok()) {
            return Err(unusable("its receipt is not signed by a key of this project".into())
                .hint("go to the project that made it; only its own runs are repeated there"));
        }
        if receipt.predicate()["recording"]["sha256"] != Digest::sha256(&bytes.text).to_hex().as_str() {
            return Err(unusable("it is not the one that the receipt names".into()));
        }
        let shop = Shop::open(&open, 1)?;
        let input = match &self.input {
            None => None,
            Some(folder) => {
                let rules = workspace::rules(folder, Vec::new(), Vec::new())?;
                let other = shop.workspace(folder::open_named(folder)?)?;
                Some(other.freeze(&rules, true, workspace::now_ms())?.id)
            }
        };
        let replayed = replay(&shop, &recording, input, self.live, submitter(&open.project))?;
        for program in &replayed.programs_changed {
            out.remark(&format!("{program} is no longer the program that the run used"));
        }
        out.result(&replayed.json(), || match (&replayed.first_difference, replayed.identical) {
            (_, true) => format!("✓ identical: {}", replayed.actual),
            (Some(difference), _) => {
                let word = |key: &str| difference[key].as_str().map(ToOwned::to_owned);
                let what = word("what").unwrap_or_default();
                let place = word("path")
                    .or_else(|| difference["call"].as_u64().map(|n| format!("call {n}")))
                    .or_else(|| {
                        let shown = |key: &str| difference[key].to_string().chars().take(200).collect::<String>();
                        (what == "question").then(|| format!("{}, where it was {}", shown("actual"), shown("expected")))
                    })
                    .unwrap_or_default();
                let why = word("message").or_else(|| word("why")).map(|why| format!("\n  {why}")).unwrap_or_default();
                format!(
                    "✗ not identical: the first difference is in {what} {place}{why}\n  expected {}\n  found    {}",
                    replayed.expected, replayed.actual
                )
            }
            (None, false) => "✗ not identical".to_owned(),
        });
        Ok(u8::from(!replayed.identical))
    }
}

#[derive(Debug, Args)]
pub(crate) struct Gate {
    /// The run, or the beginning of its id
    run: String,
}

impl Gate {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let open = Open::new(Project::find(global)?, out)?;
        let row = open.run(&self.run)?;
        let events = full_history(&open.waiter, &row)?;
        let path = open.left_by(&row)?.path("RECEIPT.json");
        let receipt = match path.exists() {
            false => Governed::Invalid("the run has no receipt".to_owned()),
            true => match check(&path, Some(&row), None, Some(&open)) {
                Ok(checks) if checks.valid() => {
                    Governed::Valid { path: told_to(&open.tenant, open.project.root(), &path) }
                }
                Ok(checks) => {
                    let failed = checks.0.iter().filter(|check| check["ok"] == false);
                    let names: Vec<String> = failed
                        .map(|c| {
                            format!(
                                "{}: {}",
                                c["name"].as_str().unwrap_or_default(),
                                c["detail"].as_str().unwrap_or_default()
                            )
                        })
                        .collect();
                    Governed::Invalid(names.join("; "))
                }
                Err(failure) => Governed::Invalid(failure.message),
            },
        };
        let refusal = actum_engine::refusal(&open.waiter, &row)?;
        let decision = govern(&row, &events, &receipt, refusal.as_ref());
        let passed = decision["decision"] == "PASS";
        out.result(&decision, || {
            let mut lines = vec![decision["decision"].as_str().unwrap_or_default().to_owned()];
            for reason in decision["reasons"].as_array().into_iter().flatten() {
                let word = |key: &str| reason[key].as_str().unwrap_or_default();
                lines.push(format!("  {}: {}", word("code"), word("message")));
            }
            lines.push(format!("  decision {}", decision["decisionHash"].as_str().unwrap_or_default()));
            lines.join("\n")
        });
        Ok(u8::from(!passed))
    }
}
