//! `actum logs`: what a run or an execution has put out so far, and with `-f` until it ends.

use std::fs::File;
use std::io::{IsTerminal as _, Read as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use actum_api::error;
use actum_ledger::run::RunState;
use clap::Args;
use serde_json::json;

use super::Ended;
use crate::args::Global;
use crate::failure::Failure;
use crate::project::Project;
use crate::run::Open;
use crate::terminal::Marker;
use crate::ui::Out;

#[derive(Debug, Args)]
pub(crate) struct Logs {
    /// The run or the execution
    #[arg(id = "run", value_name = "ID")]
    id: String,

    /// Go on until it has ended
    #[arg(short, long)]
    follow: bool,

    /// Print the bytes as they are, also on a terminal, which may obey them
    #[arg(long)]
    raw: bool,
}

/// How often a stream is looked at for more.
const LOOK_EVERY: Duration = Duration::from_millis(50);

impl Logs {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        if self.raw {
            out.set_raw();
        }
        let project = Project::find(global)?;
        let folder = crate::execution::folder_of(&project, &self.id)?;
        if !folder.is_dir() {
            return self.follow_run(project, out);
        }
        if out.json && !self.follow {
            let is_over = !crate::execution::is_under_way(&folder);
            let text = |name: &str| {
                String::from_utf8_lossy(&std::fs::read(folder.join(name)).unwrap_or_default()).into_owned()
            };
            let shown = json!({
                "execution_id": self.id, "over": is_over, "stdout": text("stdout"), "stderr": text("stderr"),
            });
            out.line(&shown.to_string());
            return Ok(0);
        }
        let mut output = Tail::new(folder.join("stdout"));
        let mut errors = Tail::new(folder.join("stderr"));
        errors.marker = (!self.raw && std::io::stderr().is_terminal()).then(Marker::default);
        loop {
            // Looked at first: what was written before the end is read after it.
            let is_over = !self.follow || !crate::execution::is_under_way(&folder);
            let more = output.copy(out) | errors.copy_aside(out);
            if is_over && !more {
                return Ok(0);
            }
            if !more {
                std::thread::sleep(LOOK_EVERY);
            }
        }
    }
}

impl Logs {
    fn follow_run(&self, project: Project, out: &mut Out) -> Ended {
        let open = Open::new(project, out)?;
        let run = open.run(&self.id).map_err(|e| match e.row.name {
            error::NOT_FOUND => {
                Failure::new(error::NOT_FOUND, format!("there is no run and no execution {:?}", self.id))
                    .hint("`actum list` shows the runs there are")
            }
            _ => e,
        })?;
        let left = open.left_by(&run)?;
        let path = left.log();
        if run.state == RunState::Succeeded && !path.exists() && !left.path("recording.json").exists() {
            out.remark(&format!("there is no log of run {}: {}", run.id, crate::retention::GONE));
        }
        if out.json && !self.follow {
            let text = std::fs::read(&path).unwrap_or_default();
            let (state, text) = (run.state, String::from_utf8_lossy(&text));
            let shown = json!({"run_id": run.id, "state": state.word(), "over": state.is_over(), "log": text});
            out.line(&shown.to_string());
            return Ok(0);
        }
        let mut log = Tail::new(path);
        loop {
            let is_over = !self.follow || open.run(&run.id)?.state.is_over();
            let more = log.copy(out);
            if is_over && !more {
                return Ok(0);
            }
            if !more {
                std::thread::sleep(LOOK_EVERY);
            }
        }
    }
}

struct Tail {
    path: PathBuf,
    file: Option<File>,
    /// For what does not go by `Out`.
    marker: Option<Marker>,
}

impl Tail {
    fn new(path: PathBuf) -> Self {
        Self { path, file: None, marker: None }
    }

    /// Copies what has come since to where results go. True if there was something.
    fn copy(&mut self, out: &mut Out) -> bool {
        let bytes = self.read();
        out.bytes(&bytes);
        !bytes.is_empty()
    }

    /// The same, to where everything else goes; for whoever gets one text, behind the rest of it.
    fn copy_aside(&mut self, out: &mut Out) -> bool {
        if out.is_captured() {
            return self.copy(out);
        }
        let bytes = self.read();
        let marked = self.marker.as_mut().map(|marker| marker.mark(&bytes));
        let shown = marked.as_deref().map_or(&*bytes, str::as_bytes);
        let written = std::io::stderr().write_all(shown).and_then(|()| std::io::stderr().flush());
        !bytes.is_empty() && written.is_ok()
    }

    fn read(&mut self) -> Vec<u8> {
        if self.file.is_none() {
            self.file = File::open(&self.path).ok();
        }
        let mut bytes = Vec::new();
        let read = self.file.as_mut().map_or(0, |file| file.read_to_end(&mut bytes).unwrap_or(0));
        bytes.truncate(read);
        bytes
    }
}
