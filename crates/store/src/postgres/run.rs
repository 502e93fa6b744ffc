//! What the requests of a batch come to for runs: decided in memory, one after the other, from facts that were read
//! together, and written together. The runs concerned are locked meanwhile.

use std::collections::{BTreeSet, HashMap};

use actum_ledger::journal::JournalError;
use actum_ledger::run::{Claim, Held, NewRun, Renewed, RunState, Written};
use tokio_postgres::Row;

use super::run_read::state_of;
use super::run_rows::{Changed, Claims, Key, RunPlan};
use crate::change::{self, Change, Ended, Fact};
use crate::queue::Request;
use crate::request::RunRequest;

pub(super) fn about_runs(requests: &[Request]) -> impl Iterator<Item = &RunRequest> {
    requests.iter().filter_map(|request| match request {
        Request::Run(request) => Some(request),
        _ => None,
    })
}

/// The runs these are about, without repetition: those that may be changed; new ones, which must not exist; and what
/// they depend on.
pub(super) fn keys<'a>(requests: impl Iterator<Item = &'a RunRequest>) -> Vec<Key<'a>> {
    let mut keys = BTreeSet::new();
    for request in requests {
        match request {
            RunRequest::Submit { runs, .. } => {
                for run in runs {
                    keys.insert(key_of(run));
                    keys.extend(run.depends_on.iter().map(|id| (run.tenant.as_str(), id.as_str())));
                }
            }
            RunRequest::Commit(commit, _) => {
                keys.insert(held_key(&commit.held));
            }
            RunRequest::Settle(settle, _) => {
                keys.insert((settle.tenant.as_str(), settle.run.as_str()));
            }
            RunRequest::Renew { held, .. } => keys.extend(held.iter().map(held_key)),
            RunRequest::Cancel { tenant, run } => {
                keys.insert((tenant.as_str(), run));
            }
            RunRequest::Claim(_) => {}
        }
    }
    keys.into_iter().collect()
}

fn key_of(run: &NewRun) -> Key<'_> {
    (run.tenant.as_str(), run.id.as_str())
}

fn held_key(held: &Held) -> Key<'_> {
    (held.tenant.as_str(), held.run.as_str())
}

/// What is known of the runs of a batch, and what is to become of them.
#[derive(Debug, Default)]
pub(super) struct Roll<'a> {
    /// As they are after all decisions so far.
    facts: HashMap<Key<'a>, Fact>,
    /// As they were before the batch.
    stored: HashMap<Key<'a>, RunState>,
    pub plan: RunPlan<'a>,
}

impl<'a> Roll<'a> {
    pub(super) fn new(keys: &[Key<'a>], rows: &[Row]) -> Result<Self, JournalError> {
        let mut roll = Self::default();
        for row in rows {
            let number = |column: usize| row.get::<_, i64>(column) as u64;
            let (state, cancel) = (state_of(row, 1)?, row.get(6));
            let (attempt, epoch, version, waits) = (number(2), number(3), number(4), number(5));
            let key = keys[row.get::<_, i64>(0) as usize - 1];
            roll.stored.insert(key, state);
            roll.facts.insert(key, Fact { state, attempt, epoch, version, waits, cancel });
        }
        Ok(roll)
    }

    /// Whether all of these are new.
    pub(super) fn are_new(&self, runs: &'a [NewRun]) -> bool {
        let distinct: BTreeSet<_> = runs.iter().map(key_of).collect();
        distinct.len() == runs.len() && !distinct.iter().any(|key| self.facts.contains_key(key))
    }

    pub(super) fn submit(&mut self, runs: &'a [NewRun]) {
        for run in runs {
            let key = key_of(run);
            let depends_on: BTreeSet<_> = run.depends_on.iter().map(String::as_str).collect();
            // What happens to dependencies within this batch is told to all dependants at its end.
            let succeeded = |id: &&&str| self.stored.get(&(key.0, **id)) == Some(&RunState::Succeeded);
            let waits = (depends_on.len() - depends_on.iter().filter(succeeded).count()) as u64;
            let state = change::first_state(run, waits);
            self.facts.insert(key, Fact { state, attempt: 1, epoch: 0, version: 0, waits, cancel: false });
            self.plan.new.push((run, state, waits));
            self.plan.dependencies.extend(depends_on.into_iter().map(|id| (key, id)));
        }
    }

    /// What a commit or a settlement would change; nothing if it is too late for it.
    pub(super) fn change(&self, request: &'a RunRequest) -> Option<(Key<'a>, Change<'a>)> {
        match request {
            RunRequest::Commit(commit, code) => {
                let key = held_key(&commit.held);
                let fact = self.facts.get(&key)?;
                Some((key, change::commit(*fact, commit, code)?))
            }
            RunRequest::Settle(settle, code) => {
                let key = (settle.tenant.as_str(), settle.run.as_str());
                let fact = self.facts.get(&key)?;
                Some((key, change::settle(*fact, settle, code)?))
            }
            _ => None,
        }
    }

    pub(super) fn apply(&mut self, key: Key<'a>, change: Change<'a>) {
        let Change { before, after, events, metadata, ended } = change;
        let numbered = events.iter().zip(before.version..);
        self.plan.events.extend(numbered.map(|(event, n)| (key, n, after.attempt, event)));
        if let Some(Ended { capsule, forget_capsule, .. }) = ended {
            if forget_capsule {
                self.plan.admitted.retain(|(other, _)| *other != key);
                self.plan.forgotten.push(key);
            }
            self.plan.admitted.extend(capsule.map(|hash| (key, hash)));
        }
        let changed = self.put(key, after);
        changed.metadata = metadata.or(changed.metadata);
        if let Some(mut last) = ended {
            // An earlier word on the outcome stands if there is no later one.
            if let Some(earlier) = changed.ended.filter(|e| e.replaces_outcome && !last.replaces_outcome) {
                last = Ended { replaces_outcome: true, outcome: earlier.outcome, error: earlier.error, ..last };
            }
            changed.ended = Some(last);
        }
    }

    fn put(&mut self, key: Key<'a>, fact: Fact) -> &mut Changed<'a> {
        self.facts.insert(key, fact);
        let was = self.stored.get(&key).copied().unwrap_or(RunState::Queued);
        let changed = self.plan.changed.entry(key).or_insert(Changed { was, fact, metadata: None, ended: None });
        changed.fact = fact;
        changed
    }

    pub(super) fn cancel(&mut self, tenant: &'a str, run: &'a str) -> Written {
        match self.facts.get(&(tenant, run)).copied().and_then(change::cancel) {
            None => Written::Lost,
            Some(fact) => {
                self.put((tenant, run), fact);
                Written::Done
            }
        }
    }

    pub(super) fn renew(&mut self, lease_ms: i64, all: &'a [Held]) -> Vec<Renewed> {
        let mut renewed = Vec::with_capacity(all.len());
        for held in all {
            let key = held_key(held);
            let fact = self.facts.get(&key).copied().filter(|fact| fact.is_held(held.epoch));
            if fact.is_some() {
                self.plan.leases.insert(key, lease_ms);
            }
            renewed.push(change::renewed(&held.run, fact));
        }
        renewed
    }

    /// Joins a claim to others like it; its runs are the next `runs_max` that they get.
    pub(super) fn claim(&mut self, claim: &'a Claim) -> Share {
        let Claim { owner, place, lease_ms, runs_max, submission, run, dead } = claim;
        let (submission, run, lease_ms) = (submission.as_deref(), run.as_deref(), *lease_ms as i64);
        let like = |c: &Claims<'_>| {
            (c.place, c.submission, c.run, c.lease_ms) == (place.as_str(), submission, run, lease_ms)
                && c.dead == dead.as_slice()
        };
        let all = &mut self.plan.claims;
        let of = all.iter().position(like).unwrap_or_else(|| {
            all.push(Claims { place, submission, run, lease_ms, dead, owners: Vec::new() });
            all.len() - 1
        });
        let owners = &mut all[of].owners;
        owners.extend(std::iter::repeat_n(owner.as_str(), *runs_max));
        Share { of, runs_max: *runs_max }
    }
}

/// A claim's part in what a statement takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share {
    pub of: usize,
    pub runs_max: usize,
}
