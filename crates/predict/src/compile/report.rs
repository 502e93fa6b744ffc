//! What is kept of a compile: evals, the comparison of two candidates, and the report above them. Made by whoever has the
//! cells, kept in the ledger. The same cells give the same documents, to the byte.

use std::collections::HashMap;

use actum_contract::canon;
use serde_json::{Value, json};

use super::{COMPILER_VERSION, Candidate, Cell, Job, Scored, VERSION, eval_id, report_id};
use crate::dataset::{Dataset, Slice};
use crate::hash;
use crate::metric::Metric;
use crate::signature::Signature;
use crate::statistics::{bootstrap, mean, paired_bootstrap, rounded, safe, sign_test};

/// Examples that a comparison shows; all are counted.
const CHANGED_MAX: usize = 100;

/// Bytes of an answer in it. Report and comparison have to fit into one entry of the ledger.
const OUTPUT_BYTES_MAX: usize = 512;

/// What one candidate did on one part: the payload of an `eval_report`, without the cells.
pub fn eval(
    report_id: &str,
    signature_id: &str,
    dataset_hash: &str,
    metric: &Metric,
    slice: Slice,
    scored: &Scored<'_>,
) -> Value {
    let artifact_id = scored.candidate.artifact.id();
    let eval_id = eval_id(report_id, &artifact_id, slice);
    let interval = bootstrap(&scored.scores(), &eval_id);
    let count = scored.cells.len();
    json!({
        "version": VERSION,
        "eval_id": eval_id,
        "report_id": report_id,
        "signature_id": signature_id,
        "artifact_id": artifact_id,
        "candidate": scored.candidate.name,
        "split": slice.word(),
        "dataset_hash": dataset_hash,
        "metric": metric.to_json(),
        "samples": count,
        "score": interval.mean,
        "interval": interval,
        "tokens": safe(scored.sum(|cell| cell.tokens)),
        "spent": safe(scored.sum(|cell| cell.spent)),
        "latency_mean_ms": rounded(scored.sum(|cell| cell.latency_ms) as f64 / count.max(1) as f64),
        "failed": scored.cells.iter().filter(|cell| !matches!(cell.status.as_str(), "succeeded" | "partial")).count(),
    })
}

/// Everything about a compile: the payload of a `compile_report`. It names the dataset by its hash, not by where it lay.
#[expect(
    clippy::too_many_arguments,
    reason = "a report brings together all that a compile has; nothing else needs it so"
)]
pub fn report(
    job: &Job,
    signature: &Signature,
    dataset: &Dataset,
    job_hash: &str,
    candidates: &[Candidate],
    selected: usize,
    evals: &[Value],
    comparison: Option<Value>,
) -> Value {
    let (signature_id, dataset_hash, hashes) = (signature.id(), dataset.hash(), signature.hashes());
    let selected = candidates.get(selected).map(|one| one.artifact.id()).unwrap_or_default();
    let candidate = |one: &Candidate| {
        json!({
            "name": one.name,
            "artifact_id": one.artifact.id(),
            "strategy_id": one.artifact.program.strategy.word(),
            "model": one.artifact.program.model,
            "few_shot": one.artifact.shots.len(),
        })
    };
    let is_best = |eval: &&Value| eval["artifact_id"] == selected.as_str() && eval["split"] == Slice::Holdout.word();
    let brief = |eval: &Value| {
        json!({
            "eval_id": eval["eval_id"], "artifact_id": eval["artifact_id"], "split": eval["split"], "score": eval["score"],
        })
    };
    let mut asked = job.to_json();
    asked["dataset"] = json!(dataset_hash);
    // What was skipped on the way to a dataset is no part of it.
    let mut counts = json!({"total": dataset.examples.len()});
    for slice in Slice::ALL {
        counts[slice.word()] = json!(dataset.of(slice).count());
    }
    json!({
        "version": VERSION,
        "report_id": report_id(&signature_id, job_hash, &dataset_hash, &selected),
        "signature_id": signature_id,
        "schema_hash": hashes.schema_hash,
        "prompt_hash": hashes.prompt_hash,
        "program_hash": hashes.program_hash,
        "job_hash": job_hash,
        "dataset_hash": dataset_hash,
        "compiler_version": COMPILER_VERSION,
        "status": "succeeded",
        "job": asked,
        "selected_artifact": selected,
        "candidate_artifacts": candidates.iter().map(candidate).collect::<Vec<_>>(),
        "metrics": {
            "best_candidate_score": evals.iter().find(is_best).map(|eval| eval["score"].clone()),
            "candidate_count": candidates.len(),
            "dataset_counts": counts,
        },
        "evals": evals.iter().map(brief).collect::<Vec<_>>(),
        "comparison": comparison,
    })
}

/// Two candidates on the examples that both have answered: `a − b`.
pub fn compare(a: &Scored<'_>, b: &Scored<'_>, seed: &str) -> Value {
    let others: HashMap<&str, &Cell> = b.cells.iter().map(|cell| (cell.example_id.as_str(), cell)).collect();
    let pairs: Vec<(&Cell, &Cell)> =
        a.cells.iter().filter_map(|cell| others.get(cell.example_id.as_str()).map(|other| (cell, *other))).collect();
    let (scores_a, scores_b): (Vec<f64>, Vec<f64>) = pairs.iter().map(|(a, b)| (a.score, b.score)).unzip();
    let difference = paired_bootstrap(&scores_a, &scores_b, seed);
    let count = |is: fn(f64, f64) -> bool| pairs.iter().filter(|(a, b)| is(a.score, b.score)).count();
    let shown = |cell: &Cell| json!({"score": rounded(cell.score), "output": shortened(&cell.output)});
    let changed = pairs.iter().filter(|(a, b)| a.score != b.score).take(CHANGED_MAX);
    let (better, worse) = (count(|a, b| a > b), count(|a, b| a < b));
    // Where every step is as large as the other a coin decides; else the interval weighs them, if there are enough.
    let mut steps = pairs.iter().map(|(a, b)| rounded((a.score - b.score).abs())).filter(|step| *step > 0.0);
    let is_equal = steps.next().is_none_or(|first| steps.all(|step| step == first));
    let is_enough = if is_equal { sign_test(better, worse) <= SIGNIFICANCE } else { better + worse >= DIFFERENCES_MIN };
    json!({
        "a": a.candidate.artifact.id(),
        "b": b.candidate.artifact.id(),
        "candidate_a": a.candidate.name,
        "candidate_b": b.candidate.name,
        "samples": pairs.len(),
        "mean_a": rounded(mean(&scores_a)),
        "mean_b": rounded(mean(&scores_b)),
        "difference": difference,
        "better": better,
        "worse": worse,
        "equal": count(|a, b| a == b),
        // Of a handful of examples all may differ by chance, and then the interval is too narrow to tell.
        "is_significant": difference.is_significant() && is_enough,
        "changed": changed
            .map(|(a, b)| json!({"example_id": a.example_id, "a": shown(a), "b": shown(b)}))
            .collect::<Vec<_>>(),
    })
}

/// With fewer differences of any size an interval says nothing.
const DIFFERENCES_MIN: usize = 6;

/// How often one of two equals is by chance on the better side at least as clearly, either way.
const SIGNIFICANCE: f64 = 0.05;

/// An answer as it is, or the beginning of its text: what is too long, or holds a number that the ledger would refuse.
fn shortened(output: &Value) -> Value {
    let text = String::from_utf8_lossy(&hash::canonical(output)).into_owned();
    let is_whole = canon::canonical(output).is_ok() && canon::unsafe_doubles(output, "").is_empty();
    if is_whole && text.len() <= OUTPUT_BYTES_MAX {
        return output.clone();
    }
    let end = text.floor_char_boundary(OUTPUT_BYTES_MAX);
    let rest = if end < text.len() { "…" } else { "" };
    json!(format!("{}{rest}", &text[..end]))
}
