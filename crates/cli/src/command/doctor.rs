//! `actum doctor`: what this machine can do, found out by doing it.

use std::path::{Path, PathBuf};

use actum_api::error;
use actum_sandbox::{Unavailable, Way};
use actum_workspace::{Mode, is_publishing_possible, is_reflink_possible};
use clap::Args;
use serde_json::{Value, json};

use super::Ended;
use crate::args::Global;
use crate::failure::Failure;
use crate::project::Project;
use crate::ui::{Out, table};

#[derive(Debug, Args)]
pub(crate) struct Doctor {}

/// One thing that was tried.
struct Finding {
    name: &'static str,
    ok: bool,
    detail: String,
    remedy: Option<String>,
}

/// A folder to try things in, removed afterwards: on the file system of the workspace, if we may write there.
struct Scratch(PathBuf);

impl Scratch {
    fn new(project: &Project) -> Result<Self, Failure> {
        let name = format!(".actum-doctor-{}", std::process::id());
        let places = [project.root().join(&name), std::env::temp_dir().join(&name)];
        let made = places.into_iter().find(|place| std::fs::create_dir(place).is_ok()).map(Self);
        made.ok_or_else(|| Failure::new(error::FILE, "cannot write here, nor to the folder for temporary files"))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Doctor {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let project = Project::find(global)?;
        let scratch = Scratch::new(&project)?;
        let findings = [overlay(&scratch.0), reflink(&scratch.0), copy()];
        let best = findings.iter().find(|finding| finding.ok).map_or("none", |finding| finding.name);
        let shown = |f: &Finding| json!({"name": f.name, "ok": f.ok, "detail": f.detail, "remedy": f.remedy});
        let modes: Vec<Value> = findings.iter().map(shown).collect();
        let publishing = publishing(&scratch.0);
        out.result(&json!({"staging": {"chosen": best, "modes": modes}, "publishing": shown(&publishing)}), || {
            let row = |f: &Finding| {
                let state = match (f.ok, f.name == best) {
                    (true, true) => "chosen",
                    (true, false) => "ok",
                    (false, _) => "no",
                };
                vec![f.name.to_owned(), state.to_owned(), f.detail.clone()]
            };
            let mut rows: Vec<_> = findings.iter().map(row).collect();
            rows.push(row(&publishing));
            table(&["STAGING", "", "FOUND"], &rows)
        });
        for finding in findings.iter().chain([&publishing]).filter(|finding| !finding.ok) {
            if let Some(remedy) = &finding.remedy {
                out.remark(&format!("to get {}: {remedy}", finding.name));
            }
        }
        Ok(0)
    }
}

fn overlay(scratch: &Path) -> Finding {
    match actum_sandbox::probe(scratch) {
        Ok(way) => Finding { name: "overlay", ok: true, detail: format!("mounted {}", way.word()), remedy: None },
        Err(Unavailable { why, remedy }) => Finding { name: "overlay", ok: false, detail: why, remedy: Some(remedy) },
    }
}

fn reflink(scratch: &Path) -> Finding {
    match is_reflink_possible(scratch, scratch) {
        Ok(()) => {
            Finding { name: "reflink", ok: true, detail: "files can share their blocks".to_owned(), remedy: None }
        }
        Err(why) => Finding { name: "reflink", ok: false, detail: why, remedy: None },
    }
}

fn publishing(scratch: &Path) -> Finding {
    let name = "publish";
    match is_publishing_possible(scratch) {
        Ok(()) => {
            let detail = "files are replaced by exchanging names".to_owned();
            Finding { name, ok: true, detail, remedy: None }
        }
        Err(detail) => {
            let remedy = "keep the workspace on a local file system (ext4, xfs, btrfs, tmpfs, overlay)".to_owned();
            Finding { name, ok: false, detail, remedy: Some(remedy) }
        }
    }
}

fn copy() -> Finding {
    Finding {
        name: "copy",
        ok: true,
        detail: "always works; costs time and room for every file".to_owned(),
        remedy: None,
    }
}

/// The best way to stage here.
pub(crate) fn best(project: &Project) -> Result<Mode, Failure> {
    let folder = project.folder()?;
    Ok(match actum_sandbox::probe(&folder) {
        Ok(Way::Privileged | Way::UserNamespace) => Mode::Overlay,
        Err(_) if is_reflink_possible(&folder, project.root()).is_ok() => Mode::Reflink,
        Err(_) => Mode::Copy,
    })
}

/// The way that was asked for, if there is one.
pub(crate) fn require(project: &Project, mode: Mode) -> Result<Mode, Failure> {
    if mode == Mode::Overlay {
        actum_sandbox::probe(&project.folder()?)
            .map_err(|e| Failure::new(error::STAGING, format!("no overlay here: {}", e.why)).hint(e.remedy))?;
    }
    Ok(mode)
}
