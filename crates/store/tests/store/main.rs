//! Both databases and the contents beside them, through their ports: one program, so that it is linked once.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod access;
mod blobs;
mod conformance;
mod durable;
mod model;
mod old;
mod pointer;
mod registry;
mod retention;
mod runs;
mod spend;
mod spend_crash;
mod webhook;

use std::ops::RangeInclusive;
use std::sync::{Arc, Barrier};
use std::thread;

use actum_store::{Location, Older, Store, open};
use tokio::runtime::Runtime;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A store with the runtime its connections live on.
fn opened(location: &Location) -> (Runtime, Arc<dyn Store>) {
    let runtime = runtime();
    let store = runtime.block_on(open(location, Older::Migrate)).unwrap();
    (runtime, store)
}

/// Who wants the same at the same time, each with an opening of the store as so many programs have.
const RIVALS: usize = 4;

/// Every rival does all of these, each at the same time as all others. What they heard, one after the other. Whoever waits for
/// the others must not fail on the way, or they would wait for ever: what was heard is judged afterwards.
fn rivals<T: Send>(
    location: &Location,
    numbers: RangeInclusive<u64>,
    act: impl Fn(usize, u64, &Runtime, &Arc<dyn Store>) -> T + Sync,
) -> Vec<T> {
    let (together, act) = (&Barrier::new(RIVALS), &act);
    let openings: Vec<_> = (0..RIVALS).map(|_| opened(location)).collect();
    thread::scope(|scope| {
        let rival = |(name, (runtime, store)): (usize, (Runtime, Arc<dyn Store>))| {
            let numbers = numbers.clone();
            move || {
                let act = |n| {
                    together.wait();
                    act(name, n, &runtime, &store)
                };
                numbers.map(act).collect::<Vec<_>>()
            }
        };
        let all: Vec<_> = openings.into_iter().enumerate().map(|one| scope.spawn(rival(one))).collect();
        all.into_iter().flat_map(|one| one.join().unwrap()).collect()
    })
}

/// Dying in another process. There are no places to die at in a release build.
#[cfg(debug_assertions)]
mod death {
    #![expect(clippy::disallowed_methods, reason = "a test that kills itself needs another process to die in")]

    use std::process::{Command, Stdio};

    /// Does a test of this program in another process, with this order in its environment. Whether that was killed.
    pub(crate) fn comes_by<'a>(test: &str, order: impl Iterator<Item = (&'a str, &'a str)>) -> bool {
        let mut other = Command::new(std::env::current_exe().unwrap());
        other.args(["--exact", test]).envs(order);
        other.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().code().is_none()
    }

    /// What this process was told under these names, if it is the other one.
    pub(crate) fn told<const N: usize>(names: [&str; N]) -> Option<[String; N]> {
        let told: Vec<String> = names.iter().filter_map(|name| std::env::var(name).ok()).collect();
        told.try_into().ok()
    }

    /// From now on the process dies when it passes this place.
    pub(crate) fn waits_at(place: String) {
        actum_contract::crash::arm(Box::new(move |passed| {
            if passed == place {
                std::process::abort();
            }
        }));
    }
}
