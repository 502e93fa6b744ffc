//! Strict items: nothing is published that was not tested on exactly what stands in the workspace then. If others changed
//! it meanwhile, the result is put on what they left, and tested again there.

use std::collections::BTreeSet;

use actum_kernel::{Desk, Event, State};
use actum_workspace::{Freshness, Lock, NewStage, Stage, deltas, diff};

use super::hands::{Done, RunHands};
use crate::workspace::now_ms;

/// How often a workspace may move while the tests run before that counts as a conflict.
const TRIES_MAX: usize = 3;

impl RunHands {
    /// The lock of the workspace; for a strict item on a workspace that is what the stage stands on. Or what happened
    /// instead.
    pub(super) fn lock_for(&mut self, state: &State, desk: &dyn Desk) -> Done<Result<Lock, Event>> {
        if !self.facts.agreement.work_item.strict {
            return Ok(Ok(self.workspace.lock()?));
        }
        for _ in 0..TRIES_MAX {
            if let Some(event) = self.rebase(state, desk)? {
                return Ok(Err(event));
            }
            let lock = self.workspace.lock()?;
            let base = self.stage(state)?.base;
            if self.workspace.state_held(&lock, &self.rules)? == base {
                return Ok(Ok(lock));
            }
        }
        Ok(Err(Event::Conflicted { paths: vec!["the workspace kept changing while it was tested".to_owned()] }))
    }

    /// Puts the result on the workspace as it is now, and tests it there. An event if that is the end of it.
    pub(super) fn rebase(&mut self, state: &State, desk: &dyn Desk) -> Done<Option<Event>> {
        let (before, current) = (Self::digest(state.before.as_ref())?, Self::digest(state.current.as_ref())?);
        let now = self.ground()?;
        if self.stage(state)?.base == now {
            return Ok(None);
        }
        let blobs = self.workspace.blobs();
        let theirs = diff(blobs, before, now)?;
        let theirs: BTreeSet<String> = deltas(&theirs).map(|change| change.path.to_string()).collect();
        let ours = diff(blobs, before, current)?;
        let both: Vec<String> =
            deltas(&ours).map(|change| change.path.to_string()).filter(|path| theirs.contains(path)).collect();
        if !both.is_empty() {
            return Ok(Some(Event::Conflicted { paths: both }));
        }
        let id = format!("{}.{}-{}", self.facts.run, self.facts.epoch, &now.to_hex()[..12]);
        let mode = self.mode();
        let freshness = Freshness::Strict;
        let wanted = NewStage { id, mode, freshness, rules: self.rules.clone(), at_ms: now_ms() };
        let item = &self.facts.agreement.work_item.id;
        let stage = Stage::new(&self.workspace, now, wanted, &|done, all| self.shop.report_copy(item, done, all))?;
        let still = stage.settle()?;
        stage.bring(&self.workspace, before, current)?;
        self.merged = Some(stage.seal(&self.workspace)?.after);
        self.moved = theirs.into_iter().collect();
        if let Some((old, still)) = self.stage.replace(stage).zip(self.still.replace(still)) {
            let _ = old.drop(still);
        }
        if self.facts.agreement.work_item.test_command.is_none() {
            return Ok(None);
        }
        let tested = self.test(state, state.left_ms(), desk)?;
        let failed = matches!(&tested, Event::Tested(tested) if !tested.passed);
        Ok(failed.then_some(tested))
    }
}
