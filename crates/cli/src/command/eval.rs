//! `actum eval`: an artifact on a dataset, or two against each other; as a gate for CI by its exit code.

use std::path::PathBuf;

use actum_api::error;
use actum_predict::Signature;
use actum_predict::compile::{self, Candidate, Cell, Scored};
use actum_predict::dataset::{Dataset, Example, Slice};
use actum_predict::evolve::Kind;
use actum_predict::metric::Metric;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::Ended;
use super::compile::{How, few, interrupts, is_file, judge_of, keep_eval, named, settled, with_inputs};
use super::dataset::{name_of, read_file};
use super::run::money;
use crate::args::Global;
use crate::failure::Failure;
use crate::model::trial::{Options, Trial};
use crate::model::{artifact, catalogue, evidence};
use crate::project::Project;
use crate::run::shop::Open;
use crate::ui::{Out, clean, count, table};

#[derive(Debug, Args)]
pub(crate) struct Eval {
    /// The artifact: its id, or baseline, primary, canary
    #[arg(required_unless_present_any = ["list", "show"])]
    artifact: Option<String>,

    /// The dataset: its hash, its name, or a file of JSON lines
    #[arg(long, value_name = "DATASET", required_unless_present_any = ["list", "show"])]
    dataset: Option<String>,

    /// The signature, if the dataset does not tell
    #[arg(long, value_name = "ID")]
    signature: Option<String>,

    /// Another artifact to compare it with
    #[arg(long, value_name = "ARTIFACT")]
    against: Option<String>,

    /// On which part; `all` is for datasets that nothing was selected by
    #[arg(long, value_enum, default_value_t = Part::Test)]
    split: Part,

    /// `exact_match`, or as JSON what `metric` of a compile job may be
    #[arg(long, value_name = "METRIC", default_value = "exact_match")]
    metric: String,

    /// Fail, exit 1, if the score is lower
    #[arg(long, value_name = "N", value_parser = share)]
    min_score: Option<f64>,

    /// Fail, exit 1, if it is worse than the other by more than this
    #[arg(long, value_name = "N", value_parser = share, requires = "against")]
    max_drop: Option<f64>,

    /// What has to be lower for that: the mean of the differences, or all of its 95 % interval
    #[arg(long, value_enum, default_value_t = Gate::Mean)]
    gate: Gate,

    /// Part of its identity: the same eval under another label runs again
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,

    #[command(flatten)]
    how: How,

    /// The evals there are
    #[arg(long, conflicts_with_all = ["artifact", "show"])]
    list: bool,

    /// One of them, with its results example by example
    #[arg(long, value_name = "EVAL", conflicts_with = "artifact")]
    show: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Train,
    Holdout,
    Test,
    All,
}

impl Part {
    fn slices(self) -> Vec<Slice> {
        match self {
            Self::Train => vec![Slice::Train],
            Self::Holdout => vec![Slice::Holdout],
            Self::Test => vec![Slice::Test],
            Self::All => Slice::ALL.to_vec(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Gate {
    Mean,
    Interval,
}

/// Hex digits by which a dataset is shown.
const HASH_DIGITS_SHOWN: usize = 16;

/// What is compared, and by what.
struct Job {
    signature: Signature,
    dataset: Dataset,
    metric: Metric,
    id: String,
}

impl Eval {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let (artifact, dataset) = match (&self.artifact, &self.dataset, &self.show) {
            (Some(artifact), Some(dataset), _) => (artifact.clone(), dataset.clone()),
            (_, _, Some(id)) => return show(id, &Open::new(Project::find(global)?, out)?, out),
            _ => return list(&Open::new(Project::find(global)?, out)?, out),
        };
        let options = Options { interrupts: interrupts(global, out)?, ..self.how.options()? };
        let metric = read_metric(&self.metric)?;
        let open = Open::new(Project::find(global)?, out)?;
        let job = self.prepare(&open, &artifact, &dataset, metric)?;
        let mut candidates = vec![candidate(&open, &job.signature, &artifact)?];
        if let Some(other) = &self.against {
            candidates.push(candidate(&open, &job.signature, other)?);
        }
        let slices = self.split.slices().into_iter().filter(|slice| job.dataset.of(*slice).next().is_some());
        let slices: Vec<Slice> = slices.collect();
        if slices.is_empty() {
            let failure = Failure::new(error::INPUT, "there are no examples in this part of the dataset");
            return Err(failure.hint("choose another by --split, or make a dataset with another --split A/B/C"));
        }
        let judge = judge_of(&open, &job.metric)?;
        evidence::add_dataset(&open, &job.dataset)?;
        let mut trial = Trial::begin(&open, (&job.id, self.label.as_deref()), judge, options, out)?;
        let done: Result<Vec<_>, Failure> =
            slices.into_iter().map(|slice| self.one(&open, &job, slice, &candidates, &mut trial)).collect();
        if let Some((lost, why)) = trial.lost() {
            out.remark(&format!("{lost} exchanges are not in the recording: {why}"));
        }
        let done = done?;
        let (asked, spent) = trial.cost();
        // Of several parts the results stand side by side.
        let all: Vec<Vec<Cell>> =
            (0..candidates.len()).map(|at| done.iter().flat_map(|part| part[at].1.iter().cloned()).collect()).collect();
        let scored: Vec<Scored<'_>> =
            candidates.iter().zip(&all).map(|(candidate, cells)| Scored { candidate, cells }).collect();
        let comparison = match &scored[..] {
            [a, b] => Some(with_inputs(compile::compare(a, b, &job.id), &job.dataset)),
            _ => None,
        };
        let evals: Vec<Value> = done.iter().flat_map(|part| part.iter().map(|(eval, _)| eval.clone())).collect();
        few(all[0].len(), "judge by", out);
        for one in &candidates {
            let is_shown = |cell: &Cell| {
                let example = job.dataset.examples.iter().find(|example| example.id == cell.example_id);
                example.is_some_and(|example| one.artifact.shots.iter().any(|shot| shot.input == example.input))
            };
            if !one.artifact.shots.is_empty() && all[0].iter().any(is_shown) {
                out.remark(&format!(
                    "{} shows examples that it is examined by here: its score says little",
                    clean(&one.name)
                ));
            }
        }
        let score = actum_predict::statistics::rounded(mean(&all[0]));
        let broken = self.broken(score, comparison.as_ref());
        let shown = json!({
            "signature_id": job.signature.id(), "dataset_hash": job.dataset.hash(), "metric": job.metric.to_json(),
            "score": score, "samples": all[0].len(), "evals": evals, "comparison": comparison, "asked": asked,
            "passed": broken.is_none(), "failed_because": broken,
        });
        out.result(&shown, || {
            let mut text = format!(
                "dataset  {} of {}, measured by {}\n\n{}",
                job.dataset.hash().chars().take(HASH_DIGITS_SHOWN).collect::<String>(),
                job.signature.id(),
                job.metric.word(),
                text(&evals)
            );
            if let Some(comparison) = &comparison {
                text += &format!("\n\n{}", compile::compare_text(comparison));
            }
            text
        });
        let questions = count(asked as u64, "question", "questions");
        out.remark(&format!("{questions} asked, {}", money(spent, trial.currency().unwrap_or(self.how.currency()))));
        match broken {
            None => Ok(0),
            Some(why) if out.is_json() => {
                out.detail(&why);
                Ok(error::named(error::REGRESSION).exit)
            }
            Some(why) => Err(Failure::new(error::REGRESSION, why)),
        }
    }

    fn prepare(&self, open: &Open, named: &str, wanted: &str, metric: Metric) -> Result<Job, Failure> {
        let find = |id: &str| catalogue::find(&open.waiter, &open.tenant, id);
        // Whose it is tells the artifact, where it is named by its id.
        let is_id = ["art_", "cmp_"].iter().any(|begin| named.starts_with(begin)) && !is_file(open, named);
        let of_artifact = match is_id {
            true => Some(artifact::find(open, named)?.signature_id),
            false => None,
        };
        let id = self.signature.clone().or(of_artifact);
        let path = PathBuf::from(wanted);
        // Whoever is not at the keyboard names datasets, no files of this machine.
        let (signature, dataset) = if open.project.seat().is_none() && path.is_file() {
            let id = id.ok_or_else(|| {
                Failure::new(error::USAGE, "for which signature is the file?").hint("name it by --signature")
            })?;
            let signature = find(&id)?;
            let (raw, skipped) = read_file(open, &path)?;
            let made = Dataset::build(
                &name_of(&path),
                &signature,
                raw,
                actum_predict::dataset::Split::default(),
                "default",
                None,
                skipped,
            );
            let dataset = made.map_err(|e| Failure::new(error::INPUT, format!("{}: {e}", path.display())))?;
            (signature, dataset)
        } else {
            let signature = id.as_deref().map(find).transpose()?;
            let dataset = evidence::dataset(open, wanted, signature.as_ref())?;
            let signature = match signature {
                Some(signature) => signature,
                None => find(&dataset.signature_id)?,
            };
            (signature, dataset)
        };
        metric.check(&signature.output_schema).map_err(|why| Failure::new(error::USAGE, format!("--metric: {why}")))?;
        let id = compile::eval_job_id(&signature.id(), &dataset.hash(), &metric, self.label.as_deref());
        Ok(Job { signature, dataset, metric, id })
    }

    /// The evals of one part: those that are on record, and those that have to be made.
    fn one(
        &self,
        open: &Open,
        job: &Job,
        slice: Slice,
        candidates: &[Candidate],
        trial: &mut Trial<'_>,
    ) -> Result<Vec<(Value, Vec<Cell>)>, Failure> {
        let examples: Vec<&Example> = job.dataset.of(slice).collect();
        let mut made = Vec::new();
        for candidate in candidates {
            // What the settings decide is part of what it is known by.
            let job_id = match settled(open, self.how.provider(), &[&candidate.artifact.program], &job.metric)? {
                Value::Null => job.id.clone(),
                more => {
                    let label =
                        format!("{}|{}", self.label.as_deref().unwrap_or_default(), actum_predict::hash::of(&more));
                    compile::eval_job_id(&job.signature.id(), &job.dataset.hash(), &job.metric, Some(&label))
                }
            };
            let id = compile::eval_id(&job_id, &candidate.artifact.id(), slice);
            if let Some(eval) = evidence::entry(open, Kind::Eval, &format!("rollout:eval:{id}"))? {
                // Whoever made it elsewhere has the results; the answers are on record, and come to the same.
                if let Ok(cells) = results(open, &eval) {
                    made.push((eval, cells));
                    continue;
                }
            }
            let way = candidate
                .artifact
                .bind(&job.signature)
                .map_err(|why| artifact::incompatible(&candidate.artifact, &why))?;
            let what = format!("{} on {}", candidate.name, slice.word());
            let mut cells = trial.cells(&what, &[&way], &examples, &job.metric)?;
            let cells = cells.pop().unwrap_or_default();
            let scored = Scored { candidate, cells: &cells };
            let eval = compile::eval(&job_id, &job.signature.id(), &job.dataset.hash(), &job.metric, slice, &scored);
            made.push((keep_eval(open, eval, &cells, trial)?, cells));
        }
        Ok(made)
    }

    /// Why the gate is closed, if it is.
    fn broken(&self, score: f64, comparison: Option<&Value>) -> Option<String> {
        if let Some(min) = self.min_score.filter(|min| score < *min) {
            return Some(format!("the score is {score}, and must not be lower than {min}"));
        }
        let (max, comparison) = self.max_drop.zip(comparison)?;
        let difference = &comparison["difference"];
        let (name, worst) = match self.gate {
            Gate::Mean => ("mean", difference["mean"].as_f64()?),
            // Of a handful of examples nothing is told.
            Gate::Interval if comparison["is_significant"] != true => return None,
            Gate::Interval => ("high end", difference["high"].as_f64()?),
        };
        (worst < -max).then(|| {
            let (low, high) = (&difference["low"], &difference["high"]);
            format!(
                "it is worse by {} ({name} of the differences; 95 % from {low} to {high}), and may be by {max}",
                -worst
            )
        })
    }
}

/// A gate of anything else would never close, or never open.
fn share(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.0..=1.0).contains(number));
    number.ok_or_else(|| "give a number from 0 to 1".to_owned())
}

fn mean(cells: &[Cell]) -> f64 {
    actum_predict::statistics::mean(&cells.iter().map(|cell| cell.score).collect::<Vec<f64>>())
}

fn candidate(open: &Open, signature: &Signature, name: &str) -> Result<Candidate, Failure> {
    let found = named(open, signature, name)?;
    found.bind(signature).map_err(|why| artifact::incompatible(&found, &why))?;
    artifact::add(open, &found)?;
    let name = found.label.clone().unwrap_or_else(|| name.to_owned());
    Ok(Candidate { name, artifact: found })
}

fn read_metric(text: &str) -> Result<Metric, Failure> {
    let bad = |why: String| {
        Failure::new(error::USAGE, format!("--metric {text:?}: {why}"))
            .hint("write exact_match, or as JSON '{\"kind\": \"field_match\", \"fields\": [\"label\"]}'")
    };
    let value = match text.starts_with(['{', '"']) {
        true => actum_contract::canon::parse(text.as_bytes()).map_err(|e| bad(e.message.to_string()))?,
        false => json!(text),
    };
    Metric::read(&value).map_err(|flaws| bad(flaws.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")))
}

fn results(open: &Open, eval: &Value) -> Result<Vec<Cell>, Failure> {
    let bytes = evidence::content(open, eval["results"].as_str().unwrap_or_default())?;
    serde_json::from_slice(&bytes).map_err(|e| {
        let id = eval["eval_id"].as_str().unwrap_or_default();
        Failure::new(error::CONTENT_DAMAGED, format!("the results of {id} cannot be read: {e}"))
    })
}

fn text(evals: &[Value]) -> String {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), clean);
    let row = |one: &Value| {
        let between = format!("{} … {}", one["interval"]["low"], one["interval"]["high"]);
        vec![
            text(&one["eval_id"]),
            text(&one["candidate"]),
            text(&one["split"]),
            text(&one["samples"]),
            text(&one["score"]),
            between,
            text(&one["failed"]),
            text(&one["tokens"]),
            text(&one["spent"]),
        ]
    };
    let headings = ["EVAL", "ARTIFACT", "PART", "EXAMPLES", "SCORE", "95 %", "FAILED", "TOKENS", "SPENT"];
    table(&headings, &evals.iter().map(row).collect::<Vec<_>>())
}

fn all(open: &Open) -> Result<Vec<Value>, Failure> {
    let mut found = Vec::new();
    evidence::each(open, Kind::Eval, 0, &mut |_, payload| {
        found.push(payload);
        Ok(())
    })?;
    Ok(found)
}

fn list(open: &Open, out: &mut Out) -> Ended {
    let all = all(open)?;
    out.result(&json!({"evals": all}), || text(&all));
    Ok(0)
}

fn show(id: &str, open: &Open, out: &mut Out) -> Ended {
    if id.is_empty() {
        let failure = Failure::new(error::USAGE, "the eval's id is empty");
        return Err(failure.hint("`actum eval --list` shows the evals"));
    }
    let begins = |one: &Value| one["eval_id"].as_str().is_some_and(|own| own.starts_with(id));
    let mut found: Vec<Value> = all(open)?.into_iter().filter(begins).collect();
    let eval = match (found.pop(), found.is_empty()) {
        (Some(one), true) => one,
        (Some(_), false) => {
            let failure = Failure::new(error::USAGE, format!("{id:?} is the beginning of several evals"));
            return Err(failure.hint("give more of the id; `actum eval --list` shows them"));
        }
        (None, _) => {
            let failure = Failure::new(error::NOT_FOUND, format!("there is no eval {id:?}"));
            return Err(failure.hint("`actum eval --list` shows those there are"));
        }
    };
    let cells = results(open, &eval)?;
    let mut shown = eval.clone();
    shown["results"] = json!(cells);
    out.result(&shown, || {
        let short = |value: &Value| clean(&value.to_string()).chars().take(60).collect::<String>();
        let rows: Vec<Vec<String>> = cells
            .iter()
            .map(|cell| {
                vec![
                    cell.example_id.clone(),
                    cell.score.to_string(),
                    cell.status.clone(),
                    cell.receipt_id.clone(),
                    short(&cell.output),
                ]
            })
            .collect();
        let headings = ["EXAMPLE", "SCORE", "STATUS", "RECEIPT", "OUTPUT"];
        format!("{}\n\n{}", text(std::slice::from_ref(&eval)), table(&headings, &rows))
    });
    Ok(0)
}
