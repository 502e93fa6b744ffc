//! Runs, joined: file trees, cells, keys and the store behind the ports of the kernel and the engine.

mod act;
pub(crate) mod book;
mod builtin;
mod check;
mod finish;
mod hands;
mod look;
mod offer;
mod program;
mod rebase;
mod recording;
mod replay;
mod script;
mod shared;
pub(crate) mod shop;
pub(crate) mod spent;

pub(crate) use act::UNCOVERED;
pub(crate) use finish::{contract_periods, receipt_before};
pub(crate) use recording::{ADMISSION, LINKS_ARE_FOLLOWED, PLACE_COUNTS, REPOSITORIES_ARE_OBEYED, Recording};
pub(crate) use replay::replay;
pub(crate) use shop::{LocalWorker, Open, Shop, Shops, local_workers};

/// Places where tests stop the process for good while a result is published.
pub(crate) const PUBLISH_POINTS: &[&str] = &["run.publishing", "run.applied"];
