//! `actum workspace`: workspaces that no machine owns. Make one, see where it is and how it got there, have it in a folder.

use std::fs::File;
use std::io::{BufWriter, IsTerminal as _, Write};
use std::path::PathBuf;

use actum_api::error;
use actum_contract::digest::Digest;
use actum_contract::id::Tenant;
use actum_ledger::head::{Head, Move};
use actum_workspace::{deltas, diff, empty_tree, new_leaving_links, thaw_new};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::Ended;
use crate::archive;
use crate::args::Global;
use crate::failure::Failure;
use crate::folder;
use crate::project::Project;
use crate::protect::remark_on;
use crate::run::Open;
use crate::shared::{Named, bring};
use crate::ui::{Out, RESULT_BYTES_MAX, clean, count, table};
use crate::workspace::{self, new_id, now_ms};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Make one from a folder, a snapshot, or a commit
    Add(Add),
    /// Those there are
    List,
    /// Where one is
    Show(Name),
    /// How it got there, newest first
    History(History),
    /// Put it into a new or empty folder
    Checkout(Checkout),
    /// All its files as a tar archive
    Archive(Archive),
}

#[derive(Debug, Args)]
pub(crate) struct Add {
    /// Its name: letters, digits and . _ - /
    name: String,

    /// The folder it begins with
    #[arg(id = "file", value_name = "DIR", conflicts_with_all = ["snapshot", "git"])]
    dir: Option<PathBuf>,

    /// The snapshot it begins with: all digits of its id
    #[arg(long, value_name = "ID", conflicts_with = "git")]
    snapshot: Option<String>,

    /// The repository it begins with
    #[arg(long, value_name = "URL", requires = "commit")]
    git: Option<String>,

    /// The commit of that repository: all digits of it
    #[arg(long, value_name = "COMMIT", requires = "git")]
    commit: Option<String>,

    #[command(flatten)]
    of: Of,
}

#[derive(Debug, Args)]
pub(crate) struct Name {
    /// The workspace: its name, `snapshot:ID` or `git+URL#COMMIT`
    name: String,
}

#[derive(Debug, Args)]
pub(crate) struct History {
    /// The workspace: its name, `snapshot:ID` or `git+URL#COMMIT`
    name: String,

    /// Moves to show
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,

    /// Only moves before this one
    #[arg(long, value_name = "N")]
    cursor: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct Checkout {
    /// The workspace: its name, `snapshot:ID` or `git+URL#COMMIT`
    name: String,

    /// A new or empty folder
    dir: PathBuf,

    /// As it was after this move
    #[arg(long, value_name = "N")]
    at: Option<u64>,

    #[command(flatten)]
    of: Of,
}

#[derive(Debug, Args)]
pub(crate) struct Archive {
    /// The workspace: its name, `snapshot:ID` or `git+URL#COMMIT`
    name: String,

    /// As it was after this move
    #[arg(long, value_name = "N")]
    at: Option<u64>,

    /// Where to write it [default: stdout]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    #[command(flatten)]
    of: Of,
}

/// Whose workspace: whoever is at this machine may give others one, and look what became of it.
#[derive(Debug, Args)]
pub(crate) struct Of {
    /// Whose [default: local]
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
}

impl Of {
    fn opened(&self, open: Open, out: &Out) -> Result<Open, Failure> {
        let Some(name) = &self.tenant else { return Ok(open) };
        let tenant = Tenant::new(name.as_str()).map_err(|e| Failure::new(error::USAGE, format!("--tenant {e}")))?;
        if tenant == open.tenant { Ok(open) } else { open.of_tenant(tenant, out) }
    }
}

/// What somebody calls a workspace.
fn named(text: &str) -> Result<Named, Failure> {
    match Named::read(text) {
        Some(named) => named,
        None => Named::read(&format!("shared:{text}"))
            .unwrap_or_else(|| Err(Failure::new(error::INPUT, format!("{text:?} is no name of a workspace")))),
    }
}

impl Verb {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let open = Open::new(Project::find(global)?, out)?;
        match self {
            Self::Add(add) => add.run(&add.of.opened(open, out)?, out),
            Self::List => list(&open, out),
            Self::Show(name) => show(&open, &open.known_head(&named(&name.name)?.name())?, out),
            Self::History(history) => history.run(&open, out),
            Self::Checkout(checkout) => checkout.run(&checkout.of.opened(open, out)?, out),
            Self::Archive(archive) => archive.run(&archive.of.opened(open, out)?, out),
        }
    }
}

fn head_json(head: &Head) -> Value {
    json!({"name": head.workspace, "n": head.n, "tree": head.tree.to_hex()})
}

fn list(open: &Open, out: &mut Out) -> Ended {
    let heads = open.waiter.wait(open.heads.heads_of(&open.tenant))?;
    out.result(&json!({"workspaces": heads.iter().map(head_json).collect::<Vec<_>>()}), || {
        let row = |head: &Head| vec![head.n.to_string(), head.tree.to_hex()[..16].to_owned(), head.workspace.clone()];
        table(&["MOVES", "TREE", "WORKSPACE"], &heads.iter().map(row).collect::<Vec<_>>())
    });
    Ok(0)
}

fn show(open: &Open, head: &Head, out: &mut Out) -> Ended {
    let last = open.made(&head.workspace, head.n)?;
    let mut shown = head_json(head);
    shown["last"] = last.as_ref().map_or(Value::Null, move_json);
    out.result(&shown, || {
        let by = last.map(|last| format!("\n  last {} by {}", last.cause, last.actor)).unwrap_or_default();
        format!("{}\n  tree {}\n  move {}{by}", head.workspace, head.tree.to_hex(), head.n)
    });
    Ok(0)
}

fn move_json(made: &Move) -> Value {
    json!({
        "n": made.n, "cause": made.cause.word(), "before": made.before.map(Digest::to_hex), "after": made.after.to_hex(),
        "publication": made.publication, "of": made.of, "actor": made.actor, "base_drift": made.drift,
    })
}

impl Add {
    fn run(&self, open: &Open, out: &mut Out) -> Ended {
        let Named::Plain(_) = named(&self.name)? else {
            return Err(Failure::new(error::INPUT, "what names a snapshot or a commit is there without being added")
                .hint("name it in a work file: `workspace: snapshot:ID`"));
        };
        let name = named(&self.name)?.name();
        if open.head(&name)?.is_some() {
            return Err(Failure::new(
                error::IDEMPOTENCY_CONFLICT,
                format!("there is a shared workspace {name:?} already"),
            )
            .hint("`actum workspace show` tells where it is"));
        }
        let actor = open.project.actor().unwrap_or_else(|| "cli".to_owned());
        let begins = match (&self.snapshot, &self.git, &self.commit) {
            (Some(id), ..) => Some(named(&format!("snapshot:{id}"))?),
            (None, Some(url), Some(commit)) => Some(named(&format!("git+{url}#{commit}"))?),
            _ => None,
        };
        let tree = match begins {
            Some(begins) => open.tree_of(&begins)?,
            None if open.project.seat().is_some() && self.dir.is_none() => {
                return Err(Failure::new(error::USAGE, "say what it begins with: a snapshot, or a commit"));
            }
            None => {
                let folder = self.dir.as_deref().unwrap_or(open.project.root());
                let rules = workspace::rules(folder, Vec::new(), Vec::new())?;
                let opened = workspace::open(&open.project, folder::open_named(folder)?, out)?;
                (opened.workspace.freeze(&rules, false, now_ms())?.id, Vec::new())
            }
        };
        let head = open.create(&name, tree, &actor)?;
        out.result(&head_json(&head), || format!("{}\n  tree {}", head.workspace, head.tree.to_hex()));
        out.remark(&format!("`workspace: {}` in a work file names it", head.workspace));
        Ok(0)
    }
}

impl History {
    fn run(self, open: &Open, out: &mut Out) -> Ended {
        let head = open.known_head(&named(&self.name)?.name())?;
        let from = self.cursor.map_or(head.n, |cursor| cursor.saturating_sub(1).min(head.n));
        let first = from.saturating_sub(u64::from(self.limit)) + 1;
        let mut moves = Vec::new();
        for n in (first..=from).rev() {
            moves.extend(open.made(&head.workspace, n)?);
        }
        let next = (first > 1 && from > 0).then_some(first);
        out.result(&json!({"moves": moves.iter().map(move_json).collect::<Vec<_>>(), "next": next}), || {
            let row = |made: &Move| {
                let of = made.of.clone().unwrap_or_default();
                vec![
                    made.n.to_string(),
                    made.cause.to_string(),
                    made.after.to_hex()[..16].to_owned(),
                    made.actor.clone(),
                    of,
                ]
            };
            table(&["N", "CAUSE", "TREE", "BY", "OF"], &moves.iter().map(row).collect::<Vec<_>>())
        });
        Ok(0)
    }
}

/// What a workspace is called, and what it holds: now, or after that move.
fn held(open: &Open, name: &str, at: Option<u64>) -> Result<(String, Digest), Failure> {
    let head = open.known_head(&named(name)?.name())?;
    let tree = match at {
        None => head.tree,
        Some(n) => {
            let made = open.made(&head.workspace, n)?;
            made.map(|made| made.after)
                .ok_or_else(|| Failure::new(error::NOT_FOUND, format!("{} has no move {n}", head.workspace)))?
        }
    };
    Ok((head.workspace, tree))
}

impl Archive {
    fn run(&self, open: &Open, out: &mut Out) -> Ended {
        if self.output.is_none() && !out.is_captured() && std::io::stdout().is_terminal() {
            let failure = Failure::new(error::USAGE, archive::NOT_TO_READ);
            return Err(failure.hint("say where to write it with --output, or pipe it into `tar x`"));
        }
        let (name, tree) = held(open, &self.name, self.at)?;
        let blobs = open.project.blobs()?;
        let Some(path) = &self.output else {
            // An answer is held in memory until it is read.
            let bytes_max = if out.is_captured() { RESULT_BYTES_MAX / 2 } else { usize::MAX };
            archive::write(&*blobs, tree, bytes_max, &mut Stdout(out))?;
            return Ok(0);
        };
        let cannot = |e: std::io::Error| Failure::of_io(format!("cannot write {}: {e}", path.display()), &e);
        // Half an archive is none: it has its name once it is whole, and takes nobody else's.
        let aside = path.with_file_name(format!(".{}.{}", path.file_name().unwrap_or_default().display(), new_id()));
        let mut file = BufWriter::new(File::create_new(&aside).map_err(cannot)?);
        let written = archive::write(&*blobs, tree, usize::MAX, &mut file);
        let kept = written.and_then(|files| {
            let file = file.into_inner().map_err(|e| cannot(e.into_error()))?;
            file.sync_all().and_then(|()| std::fs::hard_link(&aside, path)).map_err(cannot).map(|()| files)
        });
        // Nothing useful can be done about one that stays.
        let _ = std::fs::remove_file(&aside);
        let files = kept?;
        let (id, file) = (tree.to_hex(), path.display().to_string());
        out.result(&json!({"name": name, "tree": id, "files": files, "file": file}), || format!("{id} in {file}"));
        Ok(0)
    }
}

/// Where results go, to be written to.
struct Stdout<'a>(&'a mut Out);

impl Write for Stdout<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.bytes(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Checkout {
    fn run(&self, open: &Open, out: &mut Out) -> Ended {
        let (name, tree) = held(open, &self.name, self.at)?;
        let blobs = open.project.blobs()?;
        bring(&*blobs, tree)?;
        thaw_new(&open.project.folder()?, &*blobs, tree, &self.dir)?;
        // Other users may have assembled it, also from results without approval.
        let all = diff(&*blobs, empty_tree(), tree)?;
        if let Some(remark) = remark_on(deltas(&all).map(|change| change.path.as_path())) {
            out.remark(&remark);
        }
        let leaving = new_leaving_links(&*blobs, empty_tree(), tree, &all)?;
        if let Some(first) = leaving.first() {
            let many = count(leaving.len() as u64, "link leads", "links lead");
            out.remark(&format!("{many} out of the folder, the first: {}", clean(&first.to_string())));
        }
        let (id, folder) = (tree.to_hex(), self.dir.display().to_string());
        out.result(&json!({"name": name, "tree": id, "folder": folder}), || format!("{id} in {folder}"));
        Ok(0)
    }
}
