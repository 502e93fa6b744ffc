//! `actum store`: upkeep of the database.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use actum_api::error;
use actum_store::{Check, Location, Older, Projection, Store};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::gc::Gc;
use super::{Ended, verify};
use crate::args::Global;
use crate::failure::Failure;
use crate::project::Project;
use crate::run::Open;
use crate::ui::{Out, count, table};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Bring the database to the version of this program
    Migrate,
    /// Check the database, every ledger and every projection
    Check(CheckArgs),
    /// Rebuild every projection from the journal and compare it with the stored one
    Rebuild,
    /// Copy the store, as of one moment, to a new SQLite file
    Backup(Backup),
    /// Remove what is older than [retention] of actum.toml keeps it, and contents that nothing refers to
    Gc(Gc),
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Also compare heads, snapshots, receipts and recordings with the object store
    #[arg(long)]
    objects: bool,

    /// What was found there, before the database is asked.
    #[arg(skip)]
    found: Vec<Check>,
}

impl CheckArgs {
    /// Asks the object store, which waits by itself, before the rest is asked.
    fn with_objects(mut self, global: &Global, out: &Out) -> Result<Self, Failure> {
        if self.objects {
            self.found = super::objects::check(&Open::new(Project::find(global)?, out)?)?;
        }
        Ok(self)
    }
}

#[derive(Debug, Args)]
pub(crate) struct Backup {
    /// The file to write; must not exist
    file: PathBuf,
}

impl Verb {
    /// What waits by itself is done before the rest, which is waited for as a whole.
    pub(crate) fn prepared(self, global: &Global, out: &Out) -> Result<Self, Failure> {
        match self {
            Self::Check(asked) => asked.with_objects(global, out).map(Self::Check),
            other => Ok(other),
        }
    }

    pub(crate) async fn run(self, global: &Global, out: &mut Out) -> Ended {
        let project = Project::find(global)?;
        let store = project.open(out, matches!(self, Self::Migrate)).await?;
        match self {
            Self::Migrate => Ok(migrate(&store, out)),
            Self::Check(asked) => check(&project, &store, asked.found, out).await,
            Self::Rebuild => rebuild(&store, out).await,
            Self::Backup(backup) => backup.run(&project, &store, out).await,
            Self::Gc(_) => Err(Failure::new(error::INTERNAL, "it waits for itself")),
        }
    }
}

fn migrate(store: &Arc<dyn Store>, out: &mut Out) -> u8 {
    let (before, now) = store.versions();
    out.result(&json!({"from": before, "to": now}), || match before {
        0 => format!("made a new store of version {now}"),
        same if same == now => format!("the store has version {now} already"),
        older => format!("migrated the store from version {older} to {now}"),
    });
    0
}

async fn check(project: &Project, store: &Arc<dyn Store>, objects: Vec<Check>, out: &mut Out) -> Ended {
    let mut checks = vec![store.check_database().await?, store.check_spend().await?, store.check_runs().await?];
    let mut ledgers = Vec::new();
    let mut tenants = store.tenants().await?;
    tenants.extend(verify::expected_tenants(project, store));
    tenants.sort();
    tenants.dedup();
    for tenant in tenants {
        let finding = verify::walk(project, store, tenant, &[], verify::Receipts::OfThisLog).await?;
        checks.push(Check { name: "ledger", ok: finding.ok(), detail: finding.to_text() });
        ledgers.push(finding.to_json());
    }
    match store.projections(false).await {
        Ok(projections) => checks.extend(projections.iter().map(compared)),
        Err(e) => checks.push(Check { name: "projections", ok: false, detail: e.to_string() }),
    }
    checks.extend(objects);
    let ok = checks.iter().all(|c| c.ok);
    let list: Vec<_> = checks.iter().map(|c| json!({"name": c.name, "ok": c.ok, "detail": c.detail})).collect();
    out.result(&json!({"valid": ok, "checks": list, "ledgers": ledgers}), || {
        let row = |c: &Check| vec![if c.ok { "ok" } else { "BAD" }.to_owned(), c.name.to_owned(), c.detail.clone()];
        table(&["", "CHECK", "FOUND"], &checks.iter().map(row).collect::<Vec<_>>())
    });
    match checks.iter().find(|c| !c.ok) {
        None => Ok(0),
        Some(_) if out.json => Ok(error::named(error::CHECK_FAILED).exit),
        Some(bad) => Err(Failure::new(error::CHECK_FAILED, format!("{} is bad: {}", bad.name, bad.detail))
            .hint("`actum store rebuild` mends projections; a bad ledger needs a backup")),
    }
}

fn compared(projection: &Projection) -> Check {
    let Projection { name, rows, differing } = projection;
    let detail = match differing {
        0 => format!("{}, equal to what the journal yields", count(*rows, "row", "rows")),
        n => format!("{} not what the journal yields", count(*n, "row is", "rows are")),
    };
    Check { name, ok: *differing == 0, detail }
}

async fn rebuild(store: &Arc<dyn Store>, out: &mut Out) -> Ended {
    let projections = store.projections(true).await?;
    let differing: u64 = projections.iter().map(|p| p.differing).sum();
    let list: Vec<Value> =
        projections.iter().map(|p| json!({"name": p.name, "rows": p.rows, "differing": p.differing})).collect();
    out.result(&json!({"equal": differing == 0, "projections": list}), || {
        let row = |p: &Projection| vec![p.name.to_owned(), p.rows.to_string(), p.differing.to_string()];
        table(&["PROJECTION", "ROWS", "DIFFERED"], &projections.iter().map(row).collect::<Vec<_>>())
    });
    match differing {
        0 => {
            out.remark("every projection is equal to what was there");
            Ok(0)
        }
        _ if out.json => Ok(error::named(error::CHECK_FAILED).exit),
        n => {
            let message =
                format!("{n} rows of the projections did not follow from the journal; they have been replaced");
            Err(Failure::new(error::CHECK_FAILED, message)
                .hint("what wrote them? run `actum store check` from time to time"))
        }
    }
}

impl Backup {
    async fn run(self, project: &Project, store: &Arc<dyn Store>, out: &mut Out) -> Ended {
        let cannot = |e: std::io::Error| Failure::of_io(format!("cannot write {}: {e}", self.file.display()), &e);
        if self.file.exists() {
            let message = format!("{} exists already; name another file", self.file.display());
            return Err(Failure::new(error::FILE, message));
        }
        // Made aside and read back, every entry of every ledger; only then does it get its name.
        let mut aside = self.file.clone().into_os_string();
        aside.push(format!(".partial-{}", std::process::id()));
        let aside = PathBuf::from(aside);
        let copied = copy_to(&aside, project, store).await.and_then(|ledgers| {
            let synced = std::fs::OpenOptions::new().write(true).open(&aside).and_then(|file| file.sync_all());
            synced.and_then(|()| std::fs::hard_link(&aside, &self.file)).map_err(cannot)?;
            Ok(ledgers)
        });
        let _ = std::fs::remove_file(&aside);
        let ledgers = copied?;
        let file = self.file.display().to_string();
        out.result(&json!({"file": file, "ledgers": ledgers}), || {
            format!("copied to {file} and verified: {}", count(ledgers.len() as u64, "ledger", "ledgers"))
        });
        Ok(0)
    }
}

async fn copy_to(file: &Path, project: &Project, store: &Arc<dyn Store>) -> Result<Vec<Value>, Failure> {
    store.backup(file).await?;
    let copy = actum_store::open(&Location::Sqlite(file.to_owned()), Older::Refuse).await?;
    let mut ledgers = Vec::new();
    for tenant in copy.tenants().await? {
        let finding = verify::walk(project, &copy, tenant, &[], verify::Receipts::Ignored).await?;
        if !finding.ok() {
            return Err(Failure::new(error::LEDGER_DAMAGED, format!("the copy is bad: {}", finding.to_text())));
        }
        ledgers.push(finding.to_json());
    }
    Ok(ledgers)
}
