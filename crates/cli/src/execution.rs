//! Where executions are kept: a folder for each, held while it is under way, and a mark until it is in the ledger. An
//! execution whose program was killed leaves the mark; whoever comes next records what became of it.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use actum_api::error;
use actum_contract::crash;
use actum_contract::digest::Digest;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::project::Project;
use crate::workspace::Ledger;
use crate::workspace::new_id;

/// Places where tests stop the process for good.
const CRASH_POINTS: &[&str] = &["execution.claimed", "execution.kept", "execution.recorded"];

fn unwritable(path: &Path) -> impl Fn(std::io::Error) -> Failure {
    let path = path.display().to_string();
    move |e| Failure::of_io(format!("cannot write {path}: {e}"), &e)
}

/// Where an execution's things are kept.
pub(crate) fn folder_of(project: &Project, id: &str) -> Result<PathBuf, Failure> {
    let legal = |c: char| c.is_ascii_alphanumeric() || ['.', '_', '-'].contains(&c);
    if id.is_empty() || id.len() > 128 || !id.chars().all(legal) || id.starts_with(['.', '-']) {
        let message = format!("{id:?} is no name of an execution");
        return Err(Failure::new(error::INPUT, message).hint("letters, digits, dots, lines: at most 128"));
    }
    Ok(project.folder()?.join("executions").join(id))
}

/// Whether somebody holds it: whoever was killed holds nothing.
pub(crate) fn is_under_way(folder: &Path) -> bool {
    File::open(folder.join("lock")).is_ok_and(|file| file.try_lock_shared().is_err())
}

/// An execution that is under way: its id is taken, and nobody else has it.
#[derive(Debug)]
pub(crate) struct Claim {
    pub folder: PathBuf,
    mark: PathBuf,
    _held: File,
}

impl Claim {
    /// Takes the id. `known`: what is to be told of it if it is never heard of again.
    pub(crate) fn take(project: &Project, id: &str, known: &Value) -> Result<Self, Failure> {
        let folder = folder_of(project, id)?;
        let marks = marks(project)?;
        let above = folder.parent().unwrap_or(&folder);
        fs::create_dir_all(above).map_err(unwritable(above))?;
        let exists = || Failure::new(error::EXECUTION_EXISTS, format!("there was an execution {id} already"));
        match fs::create_dir(&folder) {
            Ok(()) => {}
            // Taken by somebody who was killed before he began anything.
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && is_abandoned(&folder, &marks.join(id)) => {}
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => return Err(exists()),
            Err(e) => return Err(unwritable(&folder)(e)),
        }
        let held = File::create(folder.join("lock")).map_err(unwritable(&folder))?;
        held.try_lock().map_err(|_| exists())?;
        // Held first: a mark without a holder is that of somebody who is gone.
        let mark = marks.join(id);
        keep(&mark, known.to_string().as_bytes())?;
        crash::pass(CRASH_POINTS, "execution.claimed");
        Ok(Self { folder, mark, _held: held })
    }

    /// Keeps the result, then records it. Doing it twice is doing it once.
    pub(crate) fn finish(self, result: &Value, ledger: &Ledger) -> Result<(), Failure> {
        finish(&self.folder, &self.mark, result, ledger)
    }

    /// Nothing was run, so the id is free again.
    pub(crate) fn give_back(self) {
        let _ = fs::remove_dir_all(&self.folder);
        let _ = fs::remove_file(&self.mark);
    }
}

fn is_abandoned(folder: &Path, mark: &Path) -> bool {
    !is_under_way(folder) && !mark.exists() && !folder.join("result.json").exists() && !folder.join("stdout").exists()
}

fn marks(project: &Project) -> Result<PathBuf, Failure> {
    let marks = project.folder()?.join("executions-unrecorded");
    fs::create_dir_all(&marks).map_err(unwritable(&marks))?;
    Ok(marks)
}

fn finish(folder: &Path, mark: &Path, result: &Value, ledger: &Ledger) -> Result<(), Failure> {
    let bytes = serde_json::to_vec_pretty(result).map_err(|e| Failure::new(error::INTERNAL, e.to_string()))?;
    keep(&folder.join("result.json"), &bytes)?;
    crash::pass(CRASH_POINTS, "execution.kept");
    record(mark, result, &bytes, ledger)
}

fn record(mark: &Path, result: &Value, bytes: &[u8], ledger: &Ledger) -> Result<(), Failure> {
    ledger.record_execution(result, Digest::blake3(bytes))?;
    crash::pass(CRASH_POINTS, "execution.recorded");
    fs::remove_file(mark).map_err(unwritable(mark))
}

/// Records executions that nobody has recorded and nobody is at any more.
pub(crate) fn settle(project: &Project, ledger: &Ledger) -> Result<(), Failure> {
    for entry in fs::read_dir(marks(project)?).into_iter().flatten().flatten() {
        let (mark, id) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let Ok(folder) = folder_of(project, &id) else { continue };
        if is_under_way(&folder) {
            continue;
        }
        let read = |path: &Path| -> Option<(Vec<u8>, Value)> {
            let bytes = fs::read(path).ok()?;
            let value = serde_json::from_slice(&bytes).ok()?;
            Some((bytes, value))
        };
        match (read(&folder.join("result.json")), read(&mark)) {
            (Some((bytes, result)), _) => record(&mark, &result, &bytes, ledger)?,
            (None, Some((_, known))) if folder.is_dir() => {
                let interpretation =
                    json!({"meaning": "Ended from outside", "action": "Look at what it left, and run it again"});
                let result = json!({
                    "execution_id": id, "tool_id": known["tool_id"], "status": "interrupted", "exit_code": null,
                    "interpretation": interpretation, "evidence": {"contract_sha256": known["contract_sha256"]},
                });
                finish(&folder, &mark, &result, ledger)?;
            }
            // A mark that was not finished, or of something that was given back.
            _ => drop(fs::remove_file(&mark)),
        }
    }
    Ok(())
}

/// Written whole or not at all.
fn keep(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let write = || -> std::io::Result<()> {
        let beside = path.with_file_name(format!(".{}.{}", path.file_name().unwrap_or_default().display(), new_id()));
        let mut file = File::create(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    write().map_err(unwritable(path))
}
