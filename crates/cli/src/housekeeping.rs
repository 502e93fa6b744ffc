//! The clock of a server: from time to time, with some jitter, what is old is removed, reservations are marked whose caller is
//! gone, and guards are asked. Begun by `actum serve`; ends with it. One server at a time in a project: who finds another
//! one at it leaves it to that one. Trouble is told to the log and tried again the next time.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

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
    for tenant in tenants {
        let open = seated(tenant.clone())?;
        let looked = look_after(&open)?;
        plan.traces(&open, &mut freed)?;
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
