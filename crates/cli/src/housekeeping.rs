//! The clock of a server: from time to time, with some jitter, what is old is removed, reservations are marked whose caller is
//! gone, and guards are asked. Begun by `actum serve`; ends with it. One server at a time in a project: who finds another
//! one at it leaves it to that one. Trouble is told to the log and tried again the next time.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use actum_api::error;
use actum_contract::id::Tenant;
use serde_json::json;

use crate::command::serve::Front;
use crate::failure::Failure;
use crate::log::{self, Level};
use crate::project::Project;
use crate::retention::{Freed, Plan, Turn, jittered, look_after};
use crate::run::Open;
use crate::ui::Out;
use crate::witness::witness;
use crate::workspace::{LOCAL_TENANT, now_ms};

/// Keeps house until it is dropped.
pub(crate) struct House {
    /// Dropped to end it.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl House {
    pub(crate) fn begin(front: &Arc<Front>, every: Duration) -> Result<Self, Failure> {
        if every.is_zero() {
            return Ok(Self { stop: None, thread: None });
        }
        let (stop, stopped) = channel();
        let front = Arc::clone(front);
        let keeping = move || {
            while stopped.recv_timeout(jittered(every)) == Err(RecvTimeoutError::Timeout) {
                if let Err(failure) = keep(&front) {
                    log::say(Level::Error, "housekeeping.trouble", &json!({"message": failure.message}));
                }
            }
        };
        let thread = Builder::new().name("actum-housekeeping".into()).spawn(keeping);
        let thread = thread.map_err(|e| Failure::new(error::INTERNAL, format!("cannot start a thread: {e}")))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for House {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // It ends what it is at; what panicked there harmed nothing but itself.
            thread.join().unwrap_or_default();
        }
    }
}

/// When this server has handed checkpoints to the witnesses of its ledger.
struct WitnessClock(Mutex<Option<Instant>>);

static WITNESS_CLOCK: WitnessClock = WitnessClock(Mutex::new(None));

impl WitnessClock {
    /// Whether so many minutes have passed; if so, they are counted from now.
    fn is_due(&self, minutes: Option<u64>) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = Duration::from_secs(60 * minutes.unwrap_or(0));
        let is_due = last.is_none_or(|last| last.elapsed() >= wait);
        if is_due {
            *last = Some(Instant::now());
        }
        is_due
    }
}

/// A witness that does not take the checkpoint is reported to the log, and asked again the next time.
fn hand_to_witnesses(open: &Open, tenant: &Tenant) {
    match witness(open, tenant) {
        Ok(report) => {
            let is_ok = report.witnesses.iter().all(|one| one.ok);
            let level = if is_ok { Level::Info } else { Level::Error };
            log::say(level, "ledger.witnessed", &json!(report));
        }
        Err(failure) => {
            let fields = json!({"tenant": tenant.as_str(), "message": failure.message});
            log::say(Level::Error, "ledger.not_witnessed", &fields);
        }
    }
}

/// Once.
fn keep(front: &Front) -> Result<(), Failure> {
    let out = Out::captured(true);
    let seated = |tenant: Tenant| {
        let project = Project::seated(Arc::new(front.seat(tenant, "housekeeping")));
        Open::new(project, &out)
    };
    let local = Tenant::new(LOCAL_TENANT).map_err(|e| Failure::new(error::INTERNAL, e.to_string()))?;
    let own = seated(local.clone())?;
    let Some(_turn) = Turn::take(&own.project)? else {
        log::say(Level::Debug, "housekeeping.taken", &json!({}));
        return Ok(());
    };
    let retention = own.project.config()?.retention;
    let plan = Plan { retention, now_ms: now_ms(), dry: false, sweeps: false };
    let mut freed = Freed::default();
    plan.rows(&own, &*front.store, &mut freed)?;
    let mut tenants = front.waiter.wait(front.store.tenants())?;
    if !tenants.contains(&local) {
        tenants.push(local);
    }
    let ledger = &own.project.config()?.ledger;
    let is_witness_due = !ledger.witnesses.is_empty() && WITNESS_CLOCK.is_due(ledger.witness_minutes);
    for tenant in tenants {
        let open = seated(tenant.clone())?;
        let looked = look_after(&open)?;
        plan.traces(&open, &mut freed)?;
        if is_witness_due {
            hand_to_witnesses(&open, &tenant);
        }
        if looked.stuck > 0 || !looked.moved.is_empty() {
            let fields = json!({"tenant": tenant.as_str(), "stuck": looked.stuck, "moved": looked.moved});
            log::say(Level::Warn, "housekeeping.found", &fields);
        }
    }
    plan.files(&own, &out, &mut freed)?;
    let level = if freed.is_nothing() { Level::Debug } else { Level::Info };
    log::say(level, "housekeeping.done", &freed.to_json());
    Ok(())
}
