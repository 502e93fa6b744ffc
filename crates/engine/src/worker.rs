//! Workers: claim what is ready, drive so many at once, keep their leases, hear who wants them to stop.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, scope};
use std::time::{Duration, Instant};

use actum_kernel::{Event, State, Status, Verdict, Why, code};
use actum_ledger::journal::JournalError;
use actum_ledger::run::{Claim, Filter, Held, Run, RunState, Settle};
use serde_json::{Value, json};

use crate::agreement;
use crate::desk::{Stop, stored};
use crate::drive::{Driver, Workshop};
use crate::entry::About;
use crate::wait::Waiter;

/// How a worker is set up.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Unique among all workers, also those that are gone.
    pub owner: String,
    /// Where its runs are: this machine's own, and those that any machine can take.
    pub places: Vec<String>,
    pub lease: Duration,
    pub jobs: usize,
    /// Only these runs, and only until all of them are over.
    pub submission: Option<String>,
}

/// Who looks on.
pub trait Watch: Send + Sync {
    /// Before each thing that is done.
    fn see(&self, run: &Run, state: &State);
    fn ended(&self, run: &Run, verdict: &Verdict);
    fn remark(&self, run: &Run, text: &str);
    /// Before anything else of a run that was claimed.
    fn taken(&self, _run: &Run) {}
    /// Somebody else has it now.
    fn lost(&self, _run: &Run) {}
    /// It went back into the queue, for others.
    fn handed_back(&self, _run: &Run) {}
    /// No runs are claimed for now: the store does not answer, or this process must not execute any. It is tried again.
    fn trouble(&self, _text: &str) {}
    /// Runs are claimed again.
    fn recovered(&self) {}
}

/// Folders are walked into as deep as they are: room for the deepest that is admitted.
const STACK_BYTES: usize = 64 << 20;

/// How often the store is asked whether somebody wants a run to stop: well within a second.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often an idle worker asks for work, and looks for leases that are over.
const ASK_EVERY: Duration = Duration::from_millis(200);
/// How often runs are looked for that wait in vain.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// How long a worker waits for a store that does not answer.
const RETRY_AFTER: Duration = Duration::from_secs(1);
const OVER_PAGE: usize = 1_000;
/// How long runs that end together are waited for before others are taken in their place.
const GATHER: Duration = Duration::from_millis(2);

/// What was found when the worker last looked around.
struct Surroundings {
    swept: Option<Instant>,
    /// Workers that are gone.
    gone: Vec<String>,
    /// Why this process must not begin runs, if so.
    may_claim: Result<(), CannotClaim>,
    /// Whether that was reported.
    is_reported: bool,
}

/// Why no run is begun here.
#[derive(Debug, Clone)]
enum CannotClaim {
    /// The clock differs too much from the store's, or the store does not answer.
    Store(JournalError),
    /// The machine failed a run, and still does not pass its self-check.
    Unwell(String),
}

pub struct Engine {
    waiter: Waiter,
    workshop: Arc<dyn Workshop>,
    watch: Arc<dyn Watch>,
    settings: Settings,
    held: Mutex<BTreeMap<String, (Held, Arc<Stop>)>>,
    /// Runs that are waiting for a thread or have one.
    busy: Mutex<usize>,
    freed: Condvar,
    /// Wakes whoever keeps leases, once there is nothing more to keep.
    ended: Condvar,
    interrupted: AtomicBool,
    over: Mutex<bool>,
    /// Why this machine failed a run, until it passes its self-check.
    unwell: Mutex<Option<String>>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("settings", &self.settings).finish_non_exhaustive()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    pub fn new(waiter: Waiter, workshop: Arc<dyn Workshop>, watch: Arc<dyn Watch>, settings: Settings) -> Self {
        Self {
            waiter,
            workshop,
            watch,
            settings,
            held: Mutex::default(),
            busy: Mutex::new(0),
            freed: Condvar::new(),
            ended: Condvar::new(),
            interrupted: AtomicBool::new(false),
            over: Mutex::new(false),
            unwell: Mutex::default(),
        }
    }

    /// Takes over one run whose worker is gone, and drives it until it is over or given back. False if another worker has
    /// it. For runs that have little left to do: the lease is not renewed.
    pub fn take_over(&self, run: &Run) -> Result<bool, JournalError> {
        let claim = Claim {
            owner: self.settings.owner.clone(),
            place: run.place.clone(),
            lease_ms: u64::try_from(self.settings.lease.as_millis()).unwrap_or(u64::MAX),
            runs_max: 1,
            submission: None,
            run: Some(run.id.clone()),
            dead: self.workshop.gone(),
        };
        let Some(run) = self.waiter.wait(self.waiter.runs.claim(claim))?.pop() else { return Ok(false) };
        self.driver().drive(&run, &Arc::default());
        Ok(true)
    }

    fn driver(&self) -> Driver<'_> {
        Driver {
            waiter: &self.waiter,
            workshop: &*self.workshop,
            watch: &*self.watch,
            owner: &self.settings.owner,
            hands_back: self.settings.submission.is_none(),
            lease: self.settings.lease,
            unwell: &self.unwell,
            engine: self,
        }
    }

    /// Stops everything here; the runs can go on later.
    pub fn interrupt(&self) {
        self.interrupted.store(true, Ordering::SeqCst);
        self.waiter.set_ending();
        let stops: Vec<Arc<Stop>> = locked(&self.held).values().map(|(_, stop)| Arc::clone(stop)).collect();
        stops.iter().for_each(|stop| stop.stop(Why::Interrupted));
        self.freed.notify_all();
    }

    /// Works until the submission is over; without one, until interrupted.
    pub fn work(&self) -> Result<(), JournalError> {
        let (sender, receiver) = channel::<Run>();
        let receiver = Mutex::new(receiver);
        scope(|threads| {
            let failed = |e: std::io::Error| JournalError::Unavailable(format!("cannot start a thread: {e}"));
            let started = (0..self.settings.jobs.max(1)).try_for_each(|n| {
                let named = Builder::new().name(format!("actum-run-{n}")).stack_size(STACK_BYTES);
                named.spawn_scoped(threads, || self.take_runs(&receiver)).map(drop)
            });
            let leases = Builder::new().name("actum-leases".into());
            let started = started.and_then(|()| leases.spawn_scoped(threads, || self.keep()).map(drop));
            let worked = started.map_err(failed).and_then(|()| self.dispatch(&sender));
            // Threads end once there is nobody left to send them anything.
            drop(sender);
            self.wait_for_all();
            *locked(&self.over) = true;
            self.ended.notify_all();
            worked
        })
    }

    fn take_runs(&self, receiver: &Mutex<Receiver<Run>>) {
        loop {
            let next = locked(receiver).recv();
            let Ok(run) = next else { return };
            let is_this = |(held, _): &&(Held, Arc<Stop>)| held.epoch == run.epoch;
            let stop = locked(&self.held).get(&run.id).filter(is_this).map(|(_, stop)| Arc::clone(stop));
            // Claimed anew meanwhile: then this is somebody else's.
            let stop = stop.unwrap_or_else(|| {
                let stop = Arc::<Stop>::default();
                stop.stop(Why::Lost);
                stop
            });
            if self.interrupted.load(Ordering::SeqCst) {
                stop.stop(Why::Interrupted);
            }
            self.driver().drive(&run, &stop);
            // Not what was claimed in its place, here too.
            locked(&self.held).retain(|id, (held, _)| *id != run.id || held.epoch != run.epoch);
            *locked(&self.busy) -= 1;
            self.freed.notify_all();
        }
    }

    fn wait_for_all(&self) {
        let mut busy = locked(&self.busy);
        while *busy > 0 {
            busy = self.freed.wait_timeout(busy, ASK_EVERY).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn dispatch(&self, sender: &Sender<Run>) -> Result<(), JournalError> {
        let mut around = Surroundings { swept: None, gone: Vec::new(), may_claim: Ok(()), is_reported: false };
        let mut is_in_trouble = false;
        while !self.interrupted.load(Ordering::SeqCst) {
            let dispatched = self.dispatch_some(sender, &mut around);
            if std::mem::replace(&mut is_in_trouble, dispatched.is_err()) && dispatched.is_ok() {
                self.watch.recovered();
            }
            match dispatched {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                // Somebody waits for the one, and is told; a worker goes on when the store does.
                Err(e) if self.settings.submission.is_some() => return Err(e),
                Err(e) => {
                    self.watch.trouble(&e.to_string());
                    let busy = locked(&self.busy);
                    drop(self.freed.wait_timeout(busy, RETRY_AFTER));
                }
            }
        }
        Ok(())
    }

    /// Hands out what can be had now, or waits a moment for it. True if there is nothing more to wait for.
    fn dispatch_some(&self, sender: &Sender<Run>, around: &mut Surroundings) -> Result<bool, JournalError> {
        if around.swept.is_none_or(|at| at.elapsed() >= SWEEP_EVERY) {
            self.sweep()?;
            let may_claim = self.may_claim();
            let is_reported = around.is_reported && may_claim.is_err();
            *around = Surroundings { swept: Some(Instant::now()), gone: self.workshop.gone(), may_claim, is_reported };
        }
        // One that has just failed a run is checked before it takes another.
        let is_unwell = around.may_claim.is_ok() && locked(&self.unwell).is_some();
        if is_unwell {
            around.may_claim = self.may_claim();
        }
        let free = if around.may_claim.is_ok() { self.gather() } else { 0 };
        let claimed = if free > 0 { self.claim(free, &around.gone)? } else { Vec::new() };
        let nothing = claimed.is_empty();
        // Whoever asked for more than there was has got all that the dead had left.
        if claimed.len() < free && self.settings.submission.is_none() && !around.gone.is_empty() {
            self.workshop.forget(&std::mem::take(&mut around.gone));
        }
        for run in claimed {
            let held = Held { tenant: run.tenant.clone(), run: run.id.clone(), epoch: run.epoch };
            // A lease that ran out while nobody could ask may be over for ourselves: whoever is at it lets go.
            if let Some((_, earlier)) = locked(&self.held).insert(run.id.clone(), (held, Arc::default())) {
                earlier.stop(Why::Lost);
            }
            *locked(&self.busy) += 1;
            if sender.send(run).is_err() {
                return Ok(true);
            }
        }
        if nothing && *locked(&self.busy) == 0 {
            self.sweep()?;
            if self.is_over()? {
                return Ok(true);
            }
        }
        let busy = locked(&self.busy);
        let is_idle = *busy == 0;
        if nothing || *busy >= self.settings.jobs {
            drop(self.freed.wait_timeout(busy, ASK_EVERY));
        }
        // What is under way goes on: its times are the store's. `actum run` reports why it takes no more once that is over.
        match &around.may_claim {
            Err(CannotClaim::Store(e)) if is_idle || self.settings.submission.is_none() => Err(e.clone()),
            Err(CannotClaim::Unwell(why)) => {
                // Said once; it is tried every moment.
                if !std::mem::replace(&mut around.is_reported, true) {
                    self.watch.trouble(why);
                }
                Ok(false)
            }
            _ => Ok(false),
        }
    }

    /// Whether this process may begin runs. A machine that failed one is asked again until it is well.
    fn may_claim(&self) -> Result<(), CannotClaim> {
        self.waiter.checked_time(&self.workshop.tenant()).map_err(CannotClaim::Store)?;
        let Some(reason) = locked(&self.unwell).clone() else { return Ok(()) };
        match self.workshop.self_check() {
            Ok(()) => {
                *locked(&self.unwell) = None;
                self.workshop.report_health(None);
                self.watch.recovered();
                Ok(())
            }
            Err(why) => Err(CannotClaim::Unwell(format!("this machine is unwell: {why} (first: {reason})"))),
        }
    }

    /// How many runs can be taken. A claim costs the same for one as for many, so a moment is waited for more to end.
    fn gather(&self) -> usize {
        let jobs = self.settings.jobs.max(1);
        let mut busy = locked(&self.busy);
        let until = Instant::now() + GATHER;
        while *busy > 0 && jobs - *busy < jobs / 4 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            busy = self.freed.wait_timeout(busy, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        jobs - *busy
    }

    fn claim(&self, free: usize, gone: &[String]) -> Result<Vec<Run>, JournalError> {
        let Settings { owner, places, lease, submission, .. } = &self.settings;
        let mut claimed = Vec::new();
        for place in places {
            let runs_max = free - claimed.len();
            if runs_max == 0 {
                break;
            }
            claimed.extend(self.waiter.wait(self.waiter.runs.claim(Claim {
                owner: owner.clone(),
                place: place.clone(),
                lease_ms: u64::try_from(lease.as_millis()).unwrap_or(u64::MAX),
                runs_max,
                submission: submission.clone(),
                run: None,
                dead: gone.to_vec(),
            }))?);
        }
        Ok(claimed)
    }

    /// Whether there is nothing more to wait for.
    fn is_over(&self) -> Result<bool, JournalError> {
        let Some(submission) = &self.settings.submission else { return Ok(false) };
        // What is blocked while nothing is under way waits for somebody to resume what it depends on.
        for state in [RunState::Queued, RunState::Running] {
            let submission = Some(submission.clone());
            let filter = Filter { state: Some(state), submission, limit: OVER_PAGE, ..Filter::default() };
            let tenant = self.workshop.tenant();
            if !self.waiter.wait(self.waiter.runs.runs(&tenant, filter))?.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Ends runs that wait for one that will never succeed.
    fn sweep(&self) -> Result<(), JournalError> {
        loop {
            let mut doomed = Vec::new();
            for place in &self.settings.places {
                doomed.extend(self.waiter.wait(self.waiter.runs.doomed(place))?);
            }
            if doomed.is_empty() {
                return Ok(());
            }
            let mut settled = false;
            for (run, because) in doomed {
                settled |= !self.is_interrupted(&run, &because)? && self.doom(&run, &because)?;
            }
            // Somebody else is at it.
            if !settled {
                return Ok(());
            }
        }
    }

    /// Whether a run that failed only had to stop for a while: those who wait for it go on waiting.
    fn is_interrupted(&self, waiting: &Run, failed: &str) -> Result<bool, JournalError> {
        let found = self.waiter.wait(self.waiter.runs.runs_named(&waiting.tenant, failed))?;
        let outcome = found.iter().find(|run| run.id == failed).and_then(|run| run.outcome.clone());
        let outcome: Value = outcome.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        Ok(outcome["error"]["code"] == code::INTERRUPTED)
    }

    fn doom(&self, run: &Run, because: &str) -> Result<bool, JournalError> {
        let message = format!("it depends on run {because}, which did not succeed");
        let verdict = Verdict::ended(Status::Failure, code::DEPENDENCY_FAILED, message.clone());
        let entries = match agreement::read(&run.metadata) {
            Ok(read) if run.attempt == 1 => {
                let hash = read.contract.hash.to_hex();
                let lineage = &read.agreement.lineage;
                vec![
                    About { run, attempt: run.attempt, lineage, contract_hash: &hash, external: false }
                        .blocked(&message),
                ]
            }
            _ => Vec::new(),
        };
        let outcome = json!({"verdict": verdict, "error": {"code": code::DEPENDENCY_FAILED, "message": message}});
        let settle = Settle {
            tenant: run.tenant.clone(),
            run: run.id.clone(),
            version: run.version,
            from: RunState::Blocked,
            to: RunState::Failed,
            attempt: run.attempt,
            events: vec![stored(&Event::Ended(verdict.clone()))],
            entries,
            metadata: None,
            outcome: Some(outcome.to_string()),
            forget_capsule: false,
        };
        let written = self.waiter.wait(self.waiter.runs.settle(settle))?;
        let done = written == actum_ledger::run::Written::Done;
        if done {
            self.watch.ended(run, &verdict);
        }
        Ok(done)
    }

    /// Renews leases and polls for cancellation.
    fn keep(&self) {
        let mut renewed = Instant::now();
        loop {
            let over = locked(&self.over);
            if *self.ended.wait_timeout(over, LOOK_EVERY).unwrap_or_else(PoisonError::into_inner).0 {
                return;
            }
            // Answers are about what was asked, whatever is claimed meanwhile.
            let asked = locked(&self.held).clone();
            if asked.is_empty() {
                renewed = Instant::now();
                continue;
            }
            let held: Vec<Held> = asked.values().map(|(held, _)| held.clone()).collect();
            let (begun, is_due) = (Instant::now(), renewed.elapsed() >= self.settings.lease / 2);
            let heard = if is_due {
                let lease_ms = u64::try_from(self.settings.lease.as_millis()).unwrap_or(u64::MAX);
                self.waiter.wait(self.waiter.runs.renew(self.settings.owner.clone(), lease_ms, held))
            } else {
                self.waiter.wait(self.waiter.runs.look_after(&held))
            };
            let heard = match heard {
                Ok(heard) => heard,
                // It may answer the next time, which is soon: what is not renewed is still due. Every write asks it again who
                // has the run.
                Err(e) => {
                    self.watch.trouble(&e.to_string());
                    continue;
                }
            };
            if is_due {
                renewed = begun;
            }
            for about in heard {
                match asked.get(&about.run) {
                    Some((_, stop)) if about.lost => stop.stop(Why::Lost),
                    Some((_, stop)) if about.cancel => stop.stop(Why::Cancelled),
                    _ => {}
                }
            }
        }
    }
}
