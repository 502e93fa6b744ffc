//! `actum doctor`: what this machine can do, found out by doing it.

use std::path::{Path, PathBuf};

use actum_api::error;
use actum_contract::limit::RUN_CLOCK_SKEW_MAX_MS;
use actum_sandbox::{Ended, Unavailable, Wall, Way};
use actum_workspace::{BaseUsage, Mode, bases, is_reflink_possible, try_exchange};
use clap::Args;
use serde_json::{Value, json};

use crate::args::Global;
use crate::command::snapshot::size;
use crate::contents;
use crate::failure::Failure;
use crate::project::Project;
use crate::run::Open;
use crate::ui::{Out, count, table};

#[derive(Debug, Args)]
pub(crate) struct Doctor {}

/// One thing that was tried.
struct Finding {
    name: &'static str,
    ok: bool,
    /// It works, and could be better.
    improvable: bool,
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
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> super::Ended {
        let project = Project::find(global)?;
        let scratch = Scratch::new(&project)?;
        let findings = [overlay(&scratch.0), reflink(&scratch.0), copy()];
        let best = findings.iter().find(|finding| finding.ok).map_or("none", |finding| finding.name);
        let shown = |f: &Finding| json!({"name": f.name, "ok": f.ok, "detail": f.detail, "remedy": f.remedy});
        let modes: Vec<Value> = findings.iter().map(shown).collect();
        let publishing = publishing(&scratch.0);
        let walls = walls(&scratch.0);
        let sandbox: Vec<Value> = walls.iter().map(shown).collect();
        let contents = contents(&project);
        let clock = clock(&project, out);
        let bases = bases(&project.root().join(".actum"))?;
        let shown_base = |base: &BaseUsage| json!({"workspace": base.workspace, "files": base.files, "bytes": base.bytes, "used": base.is_used});
        let all = json!({
            "staging": {"chosen": best, "modes": modes, "bases": bases.iter().map(shown_base).collect::<Vec<_>>()}, "publishing": shown(&publishing),
            "blobs": shown(&contents), "clock": shown(&clock),
            "sandbox": {"available": walls.iter().all(|wall| wall.ok), "walls": sandbox},
        });
        out.result(&all, || {
            let row = |f: &Finding| {
                let state = match (f.ok, f.name == best) {
                    (true, true) => "chosen",
                    (true, false) => "ok",
                    (false, _) => "no",
                };
                vec![f.name.to_owned(), state.to_owned(), f.detail.clone()]
            };
            let mut rows: Vec<_> = findings.iter().map(row).collect();
            for base in &bases {
                let detail = format!(
                    "{}, {}, of {}",
                    count(base.files, "file", "files"),
                    size(base.bytes),
                    base.workspace.display()
                );
                rows.push(vec!["base".to_owned(), if base.is_used { "used" } else { "idle" }.to_owned(), detail]);
            }
            rows.push(row(&publishing));
            rows.push(row(&contents));
            rows.push(row(&clock));
            let cells: Vec<_> = walls.iter().map(row).collect();
            format!("{}\n\n{}", table(&["STAGING", "", "FOUND"], &rows), table(&["SANDBOX", "", "ENFORCED BY"], &cells))
        });
        for finding in findings
            .iter()
            .chain([&publishing, &contents, &clock])
            .chain(&walls)
            .filter(|finding| !finding.ok || finding.improvable)
        {
            if let Some(remedy) = &finding.remedy {
                out.remark(&format!("to get {}: {remedy}", finding.name));
            }
        }
        Ok(0)
    }
}

fn overlay(scratch: &Path) -> Finding {
    match actum_sandbox::probe(scratch) {
        Ok(way) => Finding {
            name: "overlay",
            ok: true,
            improvable: false,
            detail: format!("mounted {}", way.word()),
            remedy: None,
        },
        Err(Unavailable { why, remedy }) => {
            Finding { name: "overlay", ok: false, improvable: false, detail: why, remedy: Some(remedy) }
        }
    }
}

fn reflink(scratch: &Path) -> Finding {
    match is_reflink_possible(scratch, scratch) {
        Ok(()) => Finding {
            name: "reflink",
            ok: true,
            improvable: false,
            detail: "files can share their blocks".to_owned(),
            remedy: None,
        },
        Err(why) => Finding { name: "reflink", ok: false, improvable: false, detail: why, remedy: None },
    }
}

fn publishing(scratch: &Path) -> Finding {
    let name = "publish";
    match try_exchange(scratch) {
        Ok(()) => {
            let detail = "files are replaced by exchanging names".to_owned();
            Finding { name, ok: true, improvable: false, detail, remedy: None }
        }
        Err(e) => {
            let detail = format!("names cannot be exchanged: {e}");
            let remedy = "keep the workspace on a local file system (ext4, xfs, btrfs, tmpfs, overlay)".to_owned();
            Finding { name, ok: false, improvable: false, detail, remedy: Some(remedy) }
        }
    }
}

/// Whether the object store can be used, if there is one: something is put there, read and removed.
fn contents(project: &Project) -> Finding {
    let name = "blobs";
    let far = match project.active_config().blobs().and_then(|blobs| contents::far(blobs, project.root())) {
        Ok(Some(far)) => far,
        Ok(None) => {
            let detail = "contents are kept in the project's folder alone".to_owned();
            return Finding { name, ok: true, improvable: false, detail, remedy: None };
        }
        Err(e) => return Finding { name, ok: false, improvable: false, detail: e.message, remedy: e.hint },
    };
    match far.probe() {
        Ok(()) => {
            let detail = format!("{} can be written and read", far.shown());
            Finding { name, ok: true, improvable: false, detail, remedy: None }
        }
        Err(e) => {
            let remedy = "an object store that answers and takes the keys: docs/object-stores.md".to_owned();
            Finding { name, ok: false, improvable: false, detail: e.to_string(), remedy: Some(remedy) }
        }
    }
}

/// The clock of this process against the store's. Makes no store where there is none.
fn clock(project: &Project, out: &Out) -> Finding {
    let name = "clock";
    let fine = |detail: String| Finding { name, ok: true, improvable: false, detail, remedy: None };
    let bad = |detail: String, remedy: Option<String>| Finding { name, ok: false, improvable: false, detail, remedy };
    if !project.has_store() {
        return fine("there is no store yet to compare it with".to_owned());
    }
    let measured = Open::new(Project::at(project), out)
        .and_then(|open| open.waiter.measure_clock(&open.tenant).map_err(Failure::from));
    let measured = match measured {
        Ok(measured) => measured,
        Err(e) => return bad(format!("the store does not answer: {}", e.message), e.hint),
    };
    if let Err(e) = measured.check() {
        let remedy = "a clock within 5 s of the store's: set it, for example by NTP".to_owned();
        return bad(e.to_string(), Some(remedy));
    }
    let ahead = match measured.log_ahead_ms() {
        ms if ms > RUN_CLOCK_SKEW_MAX_MS => {
            format!("; the ledger's last entry is {} s ahead: new entries continue from its time", ms / 1_000)
        }
        _ => String::new(),
    };
    fine(format!("{} ms from the store's{ahead}", measured.skew_ms))
}

/// What a real cell says of its walls. One is built for it, and `true` is run in it.
fn walls(scratch: &Path) -> Vec<Finding> {
    let none = |detail: String, remedy: &str| {
        vec![Finding { name: "cell", ok: false, improvable: false, detail, remedy: Some(remedy.to_owned()) }]
    };
    let spawned = scratch.canonicalize().and_then(|folder| {
        let (_pipes, files) = actum_sandbox::Pipes::new(false)?;
        let mut running = actum_sandbox::run_alone(actum_sandbox::probe_cell(&folder), files)?;
        loop {
            if let actum_sandbox::News::Ended(report) = running.hear()? {
                return Ok(report);
            }
        }
    });
    let report = match spawned {
        Ok(report) => report,
        Err(e) => return none(e.to_string(), actum_sandbox::remedy()),
    };
    match &report.ended {
        Ended::NotBuilt(why) => return none(why.clone(), actum_sandbox::remedy()),
        Ended::Exited(0) => {}
        other => return none(format!("`true` did not run in a cell: {other:?}"), actum_sandbox::remedy()),
    }
    let namespaces =
        "namespaces for users, mounts, processes, network, ipc, names and control groups; a root of its own";
    let mut found =
        vec![Finding { name: "cell", ok: true, improvable: false, detail: namespaces.to_owned(), remedy: None }];
    for kept in report.kept {
        let is_counted = kept.wall == Wall::Memory && !kept.by.contains("control group");
        let remedy = match kept.wall {
            Wall::Landlock => Some("a kernel of at least 6.12 with landlock in its `lsm=` list".to_owned()),
            Wall::Memory if is_counted => Some(
                "a control group of our own: run as root, or `systemd-run --user --scope -p Delegate=yes actum …`"
                    .to_owned(),
            ),
            _ => None,
        };
        let name = kept.wall.word();
        found.push(Finding { name, ok: !kept.weaker, improvable: is_counted, detail: kept.by, remedy });
    }
    found
}

fn copy() -> Finding {
    Finding {
        name: "copy",
        ok: true,
        improvable: false,
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
