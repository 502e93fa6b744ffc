//! `actum stage`: private copies of the workspace, by hand. What is done in one is shown by `actum diff`, published by
//! `actum apply`, or thrown away.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};

use actum_api::error;
use actum_workspace::{Freshness, Mode, NewStage, Stage, View, Workspace};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use super::{Ended, doctor};
use crate::args::Global;
use crate::failure::Failure;
use crate::folder;
use crate::progress::Progress;
use crate::project::Project;
use crate::ui::{Out, table};
use crate::workspace::{self, new_id, now_ms, time};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Freeze the workspace and make a private copy of it
    New(New),
    /// Run a program in a stage
    Exec(Exec),
    /// The stages there are
    List,
    /// Throw a stage away, with everything done in it
    Drop(Drop),
}

#[derive(Debug, Args)]
pub(crate) struct New {
    /// How the copy is made; the best this machine can do if left out
    #[arg(long, value_enum)]
    mode: Option<ModeName>,

    /// Show only the files of the snapshot, without ignored ones
    #[arg(long, conflicts_with = "live")]
    strict: bool,

    /// Show the workspace as it is at any moment: later edits in it show through
    #[arg(long)]
    live: bool,

    /// Take paths although .gitignore leaves them out
    #[arg(long, value_name = "PATTERN")]
    include: Vec<String>,

    /// Leave paths out
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum ModeName {
    Overlay,
    Reflink,
    Copy,
}

impl From<ModeName> for Mode {
    fn from(name: ModeName) -> Self {
        match name {
            ModeName::Overlay => Self::Overlay,
            ModeName::Reflink => Self::Reflink,
            ModeName::Copy => Self::Copy,
        }
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "A stage keeps what is written to the workspace apart. It is no sandbox: the program reaches the rest of the machine as you do."
)]
pub(crate) struct Exec {
    /// The stage, or the beginning of its id
    id: String,

    /// The program and its arguments
    #[arg(last = true, required = true)]
    program: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Drop {
    /// The stage, or the beginning of its id
    id: String,
}

impl Verb {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let project = Project::find(global)?;
        match self {
            Self::New(new) => new.run(&project, out),
            Self::Exec(exec) => exec.run(&project, out),
            Self::List => list(&project, out),
            Self::Drop(named) => {
                let opened = workspace::open(&project, folder::open_root(&project)?, out)?;
                let stage = Stage::find(&project.folder()?, &named.id)?;
                let id = stage.id.clone();
                let still = workspace::settle(&opened, &stage)?;
                stage.drop(still)?;
                out.result(&json!({ "dropped": id }), || format!("dropped {id}"));
                Ok(0)
            }
        }
    }
}

impl New {
    fn run(self, project: &Project, out: &mut Out) -> Ended {
        let rules = workspace::rules(project.root(), self.include, self.exclude)?;
        let opened = workspace::open(project, folder::open_root(project)?, out)?;
        let mode = match self.mode {
            Some(name) => doctor::require(project, name.into())?,
            None => doctor::best(project)?,
        };
        let at_ms = now_ms();
        let (frozen, _kept) = opened.workspace.freeze_held(&rules, false, at_ms)?;
        let freshness = match (self.strict, self.live && mode == Mode::Overlay) {
            (true, _) => Freshness::Strict,
            (false, true) => Freshness::Live,
            (false, false) => Freshness::Frozen,
        };
        let wanted = NewStage { id: new_id(), mode, freshness, rules, at_ms };
        let progress = Progress::new(&[vec!["stage".to_owned()]], out);
        let stage =
            Stage::new(&opened.workspace, frozen.id, wanted, &|done, all| progress.copying("stage", done, all))?;
        let folder = match stage.view(&opened.workspace) {
            View::Folder(folder) => Some(folder.display().to_string()),
            View::Overlay { .. } => None,
        };
        let shown = json!({
            "id": stage.id, "base": stage.base.to_hex(), "mode": mode.word(), "strict": stage.freshness == Freshness::Strict,
            "view": stage.freshness.as_str(), "folder": folder,
        });
        out.result(&shown, || stage.id.clone());
        out.remark(&match folder {
            Some(folder) => format!("{}: work in {folder}", mode.word()),
            None => format!("{}: `actum stage exec {} -- PROGRAM` runs a program in it", mode.word(), stage.id),
        });
        Ok(0)
    }
}

impl Exec {
    /// Becomes the program: signals, input, output and the exit code are its own.
    fn run(self, project: &Project, out: &Out) -> Ended {
        let opened = workspace::open(project, folder::open_root(project)?, out)?;
        let stage = Stage::find(&project.folder()?, &self.id)?;
        let view = workspace::view(&opened, &stage);
        let within = here_within(&opened.workspace);
        drop(workspace::settle(&opened, &stage)?);
        let _held = stage.hold()?;
        let error = match actum_sandbox::command(&view, &within, &self.program) {
            Ok(mut command) => command.exec(),
            Err(e) => e,
        };
        let program = self.program.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let failure = Failure::new(error::STAGING, format!("cannot start {program}: {error}"));
        out.fail(&failure);
        Ok(actum_sandbox::not_started(&error))
    }
}

/// Where we stand in the workspace, so that the program stands there too.
fn here_within(workspace: &Workspace) -> PathBuf {
    let here = std::env::current_dir().and_then(std::fs::canonicalize).unwrap_or_default();
    here.strip_prefix(workspace.path()).map(Path::to_owned).unwrap_or_default()
}

fn list(project: &Project, out: &mut Out) -> Ended {
    workspace::open(project, folder::open_root(project)?, out)?;
    let stages = Stage::list(&project.folder()?)?;
    let shown = |stage: &Stage| {
        json!({
            "id": stage.id, "base": stage.base.to_hex(), "mode": stage.mode.word(),
            "strict": stage.freshness == Freshness::Strict, "view": stage.freshness.as_str(),
            "created_at": time(stage.at_ms),
        })
    };
    out.result(&json!({"stages": stages.iter().map(shown).collect::<Vec<_>>()}), || {
        let row = |stage: &Stage| {
            let mode = format!("{}, {}", stage.mode.word(), stage.freshness.as_str());
            vec![stage.id.clone(), mode, time(stage.at_ms), stage.base.to_hex()[..16].to_owned()]
        };
        table(&["STAGE", "MODE", "MADE", "ON SNAPSHOT"], &stages.iter().map(row).collect::<Vec<_>>())
    });
    Ok(0)
}
