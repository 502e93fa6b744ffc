//! What a worker does, told to the log and to the collector, and passed on to whoever looked on before. Never holds a run up.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use actum_engine::Watch;
use actum_kernel::{State, Verdict};
use actum_ledger::run::Run;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Stay, left, taken, trace_of};
use crate::log::{self, Level};

pub(crate) struct Watched {
    inner: Arc<dyn Watch>,
    /// Runs that are here, by id and epoch.
    stays: Mutex<HashMap<(String, u64), Stay>>,
}

impl Watched {
    pub(crate) fn new(inner: Arc<dyn Watch>) -> Self {
        Self { inner, stays: Mutex::default() }
    }

    fn left(&self, run: &Run, end: &str, error: Option<&str>) {
        let stay = self.stays.lock().unwrap_or_else(PoisonError::into_inner).remove(&(run.id.clone(), run.epoch));
        if let Some(stay) = stay {
            left(stay, run, end, error);
        }
    }

    fn say(level: Level, event: &'static str, run: &Run, more: Value) {
        if !log::hears(level) {
            return;
        }
        let mut fields = json!({
            "run": run.id, "item": run.item, "agent": run.robot, "tenant": run.tenant.as_str(), "attempt": run.attempt,
            "epoch": run.epoch, "trace_id": trace_of(run),
        });
        if let (Some(fields), Value::Object(more)) = (fields.as_object_mut(), more) {
            fields.extend(more);
        }
        log::say(level, event, &fields);
    }
}

impl Watch for Watched {
    fn taken(&self, run: &Run) {
        // A run that was resumed, or handed back, waited for something else too.
        let waited = Timestamp::now().as_millisecond().saturating_sub(run.created_ms);
        let waited = u64::try_from(waited).ok().filter(|_| run.attempt == 1 && run.epoch <= 1);
        Self::say(Level::Info, "run.taken", run, json!({"waited_ms": waited}));
        if let Some(stay) = taken(run, waited.map(Duration::from_millis)) {
            self.stays.lock().unwrap_or_else(PoisonError::into_inner).insert((run.id.clone(), run.epoch), stay);
        }
        self.inner.taken(run);
    }

    fn see(&self, run: &Run, state: &State) {
        Self::say(Level::Debug, "run.step", run, json!({"phase": state.phase.word()}));
        self.inner.see(run, state);
    }

    fn ended(&self, run: &Run, verdict: &Verdict) {
        let end = if verdict.cancelled { "cancelled" } else { verdict.status.word() };
        let is_well = end == "success";
        let error = (!is_well).then(|| verdict.code.as_deref().unwrap_or(end));
        let level = if is_well { Level::Info } else { Level::Warn };
        Self::say(level, "run.ended", run, json!({"end": end, "error": error}));
        self.left(run, end, error);
        self.inner.ended(run, verdict);
    }

    fn lost(&self, run: &Run) {
        Self::say(Level::Warn, "run.lost", run, json!({}));
        self.left(run, "lost", Some("lease_lost"));
        self.inner.lost(run);
    }

    fn handed_back(&self, run: &Run) {
        Self::say(Level::Info, "run.handed_back", run, json!({}));
        self.left(run, "handed_back", None);
        self.inner.handed_back(run);
    }

    fn remark(&self, run: &Run, text: &str) {
        Self::say(Level::Warn, "run.remark", run, json!({"message": text}));
        self.inner.remark(run, text);
    }

    fn trouble(&self, text: &str) {
        log::store_trouble(text);
        self.inner.trouble(text);
    }

    fn recovered(&self) {
        self.inner.recovered();
    }
}
