//! `actum undo`: take a publication back. An undo is a publication itself, so it can be undone too.

use actum_api::error;
use actum_engine::Done;
use actum_kernel::Event;
use actum_ledger::head;
use actum_ledger::run::Run;
use actum_workspace::{Cause, Change, Publication, Workspace, diff};
use clap::Args;
use serde_json::{Value, json};

use super::Ended;
use crate::args::Global;
use crate::consent::{self, Publishing};
use crate::failure::Failure;
use crate::folder;
use crate::project::Project;
use crate::run::Open;
use crate::shared::{self, Wanted};
use crate::ui::Out;
use crate::workspace::{self, Ledger, Opened, deltas_json, deltas_text, new_id, now_ms, paths_json};

#[derive(Debug, Args)]
pub(crate) struct Undo {
    /// The run, the publication or its stage, or the beginning of the id
    #[arg(id = "run", value_name = "ID")]
    id: String,
}

/// What a run published to a shared workspace is taken back from its head, wherever it still stands.
fn undo_shared(open: &Open, run: &Run, name: &str, out: &mut Out) -> Ended {
    if !run.state.is_over() {
        return Err(not_over(run));
    }
    let events = actum_engine::full_history(&open.waiter, run)?;
    let published = events.iter().rev().find_map(|event| match event {
        Event::Published { publication, .. } => shared::read_publication(publication).map(|(n, _)| n),
        _ => None,
    });
    let outcome: Value = run.outcome.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let earlier = match published.filter(|_| outcome["undone"] != true) {
        // The journal says which move it was, and the move whose it is: nobody else's is taken back.
        Some(n) => open.made(name, n)?.filter(|made| made.of.as_deref() == Some(&run.id)),
        None => None,
    };
    let Some((earlier, before)) = earlier.and_then(|made| made.before.map(|before| (made, before))) else {
        let message = format!("run {} has published nothing that could be taken back", run.id);
        return Err(Failure::new(error::RUN_STATE, message));
    };
    let changes: Vec<Change> =
        diff(&*open.project.blobs()?, before, earlier.after)?.iter().map(Change::reversed).collect();
    if open.project.seat().is_some() {
        let (blobs, base) = (open.project.blobs()?, earlier.after);
        let (of, onto) = (&*earlier.publication, open.head_tree(name)?);
        let publishing = Publishing {
            open,
            blobs: &*blobs,
            folder: None,
            base,
            after: before,
            onto,
            changes: &changes,
            verb: "undo",
            of,
        };
        consent::require(&publishing, None, out)?;
    }
    let actor = open.project.actor().unwrap_or_else(|| "cli".to_owned());
    let (cause, of, base) = (head::Cause::Undo, earlier.publication.as_str(), earlier.after);
    let wanted = Wanted { name, cause, of, actor: &actor, base, changes: &changes, keep: true };
    let (publication, rebased) = open.move_head(run, &wanted)?;
    if rebased.changes.is_empty() && !rebased.kept.is_empty() {
        let message = "nothing was undone: every path was changed again later";
        return Err(Failure::new(error::PUBLISH_CONFLICT, message).details(json!({"paths": paths_json(&rebased.kept)})));
    }
    out.result(
        &json!({
            "publication": publication, "undoes": earlier.publication, "workspace": name,
            "before": rebased.before.to_hex(), "after": rebased.after.to_hex(),
            "deltas": deltas_json(&rebased.changes), "kept": paths_json(&rebased.kept),
        }),
        || deltas_text(&rebased.changes),
    );
    Ok(0)
}

/// Tells the run behind a publication that it was undone; or, if an undo was undone as a whole, that its result is back.
/// The run that did not know it yet. Doing it twice is doing it once.
pub(crate) fn note_run(
    open: &Open,
    opened: &Opened,
    earlier: &Publication,
    made: &Publication,
) -> Result<Option<String>, Failure> {
    let Some((first, undo_count)) = first_publication(&opened.workspace, earlier)? else { return Ok(None) };
    let publication = made.id.clone();
    let done = match undo_count % 2 {
        0 => Done::Undone { publication },
        // What is only partly in place again counts as undone.
        _ if made.kept.is_empty() => Done::Redone { publication },
        _ => return Ok(None),
    };
    let Some((run, _)) = open.run_behind(&first.of)? else { return Ok(None) };
    let rows = open.waiter.wait(open.waiter.runs.events(&open.tenant, &run.id, 0))?;
    let events = actum_engine::events_of(&rows).unwrap_or_default();
    let names_it = |event: &Event| matches!(event, Event::Warned { what } if what.ends_with(&made.id));
    if events.iter().any(names_it) {
        return Ok(None);
    }
    open.note_done(&run, &done)?;
    Ok(Some(run.id))
}

/// Follows undos of undos back to the result of a run. Returns its publication and how many undos lead from it to `last`.
fn first_publication(workspace: &Workspace, last: &Publication) -> Result<Option<(Publication, usize)>, Failure> {
    let known = workspace.publications()?;
    let (mut found, mut undo_count) = (last.clone(), 0);
    // Each undo is younger than what it undoes, so the walk ends; the bound is for damaged records.
    while found.cause == Cause::Undo && undo_count < known.len() {
        let Some(earlier) = known.iter().find(|known| known.id == found.of) else { return Ok(None) };
        (found, undo_count) = (earlier.clone(), undo_count + 1);
    }
    Ok((found.cause == Cause::Publish).then_some((found, undo_count)))
}

fn not_over(run: &Run) -> Failure {
    Failure::new(error::RUN_STATE, format!("run {} is not over: it is {}", run.id, run.state))
        .hint("wait for its end, or cancel it; a published result can be undone then")
}

impl Undo {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let project = Project::find(global)?;
        let open = Open::new(Project::find(global)?, out)?;
        if let Some((run, name)) = open.run_on_shared(&self.id)? {
            return undo_shared(&open, &run, &name, out);
        }
        if project.is_guest()? {
            return Err(open
                .run(&self.id)
                .err()
                .unwrap_or_else(|| Failure::new(error::RUN_STATE, format!("run {} has no result of yours", self.id))));
        }
        let behind = open.run_behind(&self.id)?;
        if let Some((run, _)) = behind.as_ref().filter(|(run, _)| !run.state.is_over()) {
            return Err(not_over(run));
        }
        let folder = folder::open_behind(&project, behind.as_ref().map(|(_, agreement)| agreement))?;
        let opened = workspace::open(&project, folder, out)?;
        let rules = workspace::rules(opened.workspace.path(), Vec::new(), Vec::new())?;
        let ledger = Ledger::open(&project, out)?;
        let lock = workspace::lock(&project, &opened, out)?;
        let earlier = opened.workspace.publication(&self.id)?;
        // Also if the publication itself was named.
        if let Some((first, _)) = first_publication(&opened.workspace, &earlier)?
            && let Some((run, _)) = open.run_behind(&first.of)?.filter(|(run, _)| !run.state.is_over())
        {
            return Err(not_over(&run));
        }
        if open.project.seat().is_some() {
            let changes: Vec<Change> = earlier.changes.iter().map(Change::reversed).collect();
            let publishing = Publishing {
                open: &open,
                blobs: opened.workspace.blobs(),
                folder: Some(opened.workspace.path()),
                base: earlier.after,
                after: earlier.before,
                onto: opened.workspace.state_held(&lock, &rules)?,
                changes: &changes,
                verb: "undo",
                of: &earlier.id,
            };
            consent::require(&publishing, None, out)?;
        }
        let publication = opened.workspace.undo(&lock, &earlier, &rules, &new_id(), now_ms())?;
        ledger.record(&opened, &publication, out)?;
        // Before anything is said of the run: what is still in place was not undone.
        if publication.changes.is_empty() && !publication.kept.is_empty() {
            let message = "nothing was undone: every path was changed again later";
            return Err(Failure::new(error::PUBLISH_CONFLICT, message).details(json!({
                "paths": paths_json(&publication.kept),
            })));
        }
        note_run(&open, &opened, &earlier, &publication)?;
        opened.workspace.forget_pending(&publication.id)?;
        drop(lock);
        let id = &publication.id;
        out.result(
            &json!({
                "publication": id,
                "undoes": earlier.id,
                "before": publication.before.to_hex(),
                "after": publication.after.to_hex(),
                "deltas": deltas_json(&publication.changes),
                "kept": paths_json(&publication.kept),
            }),
            || deltas_text(&publication.changes),
        );
        for path in &publication.kept {
            out.remark(&format!("kept {path}: it was changed again later"));
        }
        match publication.changes.is_empty() {
            true => out.remark("nothing to undo: everything is as it was before"),
            false => out.remark(&format!("`actum undo {id}` takes this back in turn")),
        }
        Ok(0)
    }
}
