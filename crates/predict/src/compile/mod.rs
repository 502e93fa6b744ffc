//! Compiling a signature: candidates for a better way to ask it, scored on examples, one of them selected.
//!
//! `cli` reads a job, asks every candidate every example, and hands the cells back; here is decided what the candidates
//! are, which is the best, and what is said about it. Never asks a model, never looks at test before one is selected.

mod candidate;
mod job;
mod report;
mod schema;
mod spec;
mod text;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use candidate::BadJob;
pub use job::{Job, Source};
pub use report::{compare, eval, report};
pub use schema::schema;
pub use spec::{Draw, Search, Shots, Spec};
pub use text::{compare_text, report_text};

use crate::artifact::Artifact;
use crate::dataset::Slice;
use crate::hash;
use crate::metric::Metric;
use crate::statistics::{mean, rounded};

/// Of the form reports and evals are kept in.
pub const VERSION: u64 = 1;

/// Part of every job's hash: who chooses candidates otherwise does another job.
pub const COMPILER_VERSION: &str = "actum-compile.v1";

/// Candidates of one job, the signature itself included.
pub const CANDIDATES_MAX: usize = 256;

/// The signature as it is, among the candidates.
pub const BASELINE: &str = "baseline";

/// Hex digits of the hashes that name reports and evals.
const ID_DIGITS: usize = 20;

/// A way to ask, with the name it has in the job.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    pub name: String,
    pub artifact: Artifact,
}

/// One example answered by one candidate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    pub example_id: String,
    pub score: f64,
    pub output: Value,
    pub status: String,
    pub reason_code: Option<String>,
    pub tokens: u64,
    pub spent: u64,
    pub latency_ms: u64,
    pub receipt_id: String,
}

/// A candidate with its cells of one part, in the order of example ids.
#[derive(Debug, Clone, Copy)]
pub struct Scored<'a> {
    pub candidate: &'a Candidate,
    pub cells: &'a [Cell],
}

impl Scored<'_> {
    fn scores(&self) -> Vec<f64> {
        self.cells.iter().map(|cell| cell.score).collect()
    }

    fn sum(&self, of: impl Fn(&Cell) -> u64) -> u128 {
        self.cells.iter().map(|cell| u128::from(of(cell))).sum()
    }
}

/// The best of them: by its mean score, then by fewer tokens, then by the order.
pub fn select(holdout: &[Scored<'_>]) -> usize {
    // As it is kept: what differs only in how doubles are added is a tie.
    let ranks: Vec<(f64, u128)> =
        holdout.iter().map(|one| (rounded(mean(&one.scores())), one.sum(|cell| cell.tokens))).collect();
    let is_better =
        |(score, tokens): (f64, u128), best: (f64, u128)| score > best.0 || (score == best.0 && tokens < best.1);
    (1..ranks.len()).fold(0, |best, at| if is_better(ranks[at], ranks[best]) { at } else { best })
}

/// Names a report: what was asked for, of what, and what came of it.
pub fn report_id(signature_id: &str, job_hash: &str, dataset_hash: &str, selected: &str) -> String {
    named(
        "cmp_",
        &json!({
            "signature_id": signature_id, "job_hash": job_hash, "dataset_hash": dataset_hash, "selected_artifact": selected,
        }),
    )
}

/// Names an eval.
pub fn eval_id(report_id: &str, artifact_id: &str, slice: Slice) -> String {
    named("eval_", &json!({"report_id": report_id, "artifact_id": artifact_id, "split": slice.word()}))
}

/// Stands for the report where an eval belongs to no compile.
pub fn eval_job_id(signature_id: &str, dataset_hash: &str, metric: &Metric, label: Option<&str>) -> String {
    named(
        "evl_",
        &json!({
            "signature_id": signature_id, "dataset_hash": dataset_hash, "metric": metric.to_json(), "label": label,
        }),
    )
}

fn named(prefix: &str, covered: &Value) -> String {
    format!("{prefix}{}", &hash::of(covered)[..ID_DIGITS])
}

#[cfg(test)]
mod tests;
