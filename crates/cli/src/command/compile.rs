//! `actum compile`: candidates for a signature, scored on a dataset, and the best of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use actum_api::error;
use actum_predict::Signature;
use actum_predict::artifact::{Artifact, Way};
use actum_predict::compile::{self, Candidate, Cell, Job, Scored, Source};
use actum_predict::dataset::{Dataset, Example, Slice};
use actum_predict::evolve::Kind;
use actum_predict::hash;
use actum_predict::metric::Metric;
use actum_predict::sanitise::sanitise;
use actum_predict::signature::Program;
use clap::Args;
use serde_json::{Value, json};

use super::Ended;
use super::dataset::{name_of, read_file};
use super::run::money;
use super::spend::amount;
use crate::args::Global;
use crate::document::Document;
use crate::failure::Failure;
use crate::model::predict::Whom;
use crate::model::rollout::{self, Standing};
use crate::model::trial::{Interrupts, Options, Trial};
use crate::model::{Counter, artifact, catalogue, evidence};
use crate::project::Project;
use crate::run::shop::Open;
use crate::ui::{Out, clean, count, table};

/// Hex digits of a hash in the name of a report.
const KEY_DIGITS: usize = 24;
/// With fewer examples most differences may be chance.
const EXAMPLES_FEW: usize = 20;
/// Letters of an input that stand in a report.
const INPUT_CHARS_MAX: usize = 200;

#[derive(Debug, Args)]
pub(crate) struct Compile {
    /// The job: a YAML or JSON file (`actum schema compile-job` prints what may stand there)
    #[arg(required_unless_present_any = ["list", "show"])]
    file: Option<PathBuf>,

    #[command(flatten)]
    how: How,

    /// Say what would be asked, and ask nothing
    #[arg(long)]
    dry_run: bool,

    /// The reports there are
    #[arg(long, conflicts_with_all = ["file", "show"])]
    list: bool,

    /// One of them, with all its evals
    #[arg(long, value_name = "REPORT", conflicts_with = "file")]
    show: Option<String>,
}

/// How artifacts are tried.
#[derive(Debug, Args)]
pub(crate) struct How {
    /// What may be spent by this command, if nothing else allows more
    #[arg(long, value_name = "AMOUNT")]
    budget: Option<String>,

    /// In which currency
    #[arg(long, default_value = actum_ledger::spend::CURRENCY)]
    currency: String,

    /// So many questions at a time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=64))]
    parallel: u64,

    /// The provider, if several have the model
    #[arg(long, value_name = "ID")]
    provider: Option<String>,

    /// Adds every exchange to this file, a line of JSON each; a provider of type `recorded` answers from it
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

impl How {
    pub(crate) fn options(&self) -> Result<Options, Failure> {
        let budget = self.budget.as_deref().map(|text| amount(text, &self.currency)).transpose()?;
        Ok(Options {
            parallel: usize::try_from(self.parallel).unwrap_or(1),
            budget: budget.map(|amount| (amount, self.currency.clone())),
            provider: self.provider.clone(),
            record: self.record.clone(),
            interrupts: Interrupts::default(),
        })
    }

    pub(crate) fn currency(&self) -> &str {
        &self.currency
    }

    pub(crate) fn provider(&self) -> Option<&str> {
        self.provider.as_deref()
    }
}

/// Who may stop what is tried: whoever sits at the keyboard. In a seat nobody does.
pub(crate) fn interrupts(global: &Global, out: &Out) -> Result<Interrupts, Failure> {
    match &global.seat {
        Some(_) => Ok(Interrupts::default()),
        None => Interrupts::listen(!out.quiet() && !out.is_json()),
    }
}

/// A job with all that it names.
struct Prepared {
    job: Job,
    signature: Signature,
    dataset: Dataset,
    candidates: Vec<Candidate>,
    job_hash: String,
    dataset_hash: String,
}

impl Prepared {
    /// Under which its report is known.
    fn id(&self) -> String {
        let short = |hash: &str| hash[..KEY_DIGITS.min(hash.len())].to_owned();
        format!("rollout:compile:{}:{}", short(&self.job_hash), short(&self.dataset_hash))
    }
}

impl Compile {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let options = Options { interrupts: interrupts(global, out)?, ..self.how.options()? };
        let file = match (&self.file, &self.show) {
            (Some(file), _) => file,
            (None, Some(id)) => return show(id, &Open::new(Project::find(global)?, out)?, out),
            (None, None) => return list(&Open::new(Project::find(global)?, out)?, out),
        };
        let job = read_job(file)?;
        let open = Open::new(Project::find(global)?, out)?;
        let prepared = prepare(&open, job, file, options.provider.as_deref())?;
        if let Some(report) = evidence::entry(&open, Kind::Compile, &prepared.id())? {
            let mut shown = whole(&open, &report)?;
            shown["idempotent_replay"] = json!(true);
            shown["asked"] = json!(0);
            out.result(&shown, || text(&shown));
            out.remark("this job was done before: nothing was asked");
            return Ok(0);
        }
        if self.dry_run {
            return foresee(&prepared, out);
        }
        evidence::add_dataset(&open, &prepared.dataset)?;
        few(prepared.dataset.of(Slice::Holdout).count(), "select by", out);
        few(prepared.dataset.of(Slice::Test).count(), "examine on", out);
        let judge = judge_of(&open, &prepared.job.metric)?;
        let mut trial = Trial::begin(&open, (&prepared.id(), prepared.job.label.as_deref()), judge, options, out)?;
        let done = compile(&open, &prepared, &mut trial);
        if let Some((lost, why)) = trial.lost() {
            out.remark(&format!("{lost} exchanges are not in the recording: {why}"));
        }
        let report = done?;
        let (asked, spent) = trial.cost();
        let mut shown = whole(&open, &report)?;
        shown["idempotent_replay"] = json!(false);
        shown["asked"] = json!(asked);
        out.result(&shown, || text(&shown));
        out.remark(&format!(
            "{} asked, {}",
            count(asked as u64, "question", "questions"),
            money(spent, trial.currency().unwrap_or(self.how.currency()))
        ));
        Ok(0)
    }
}

fn read_job(file: &Path) -> Result<Job, Failure> {
    let document = Document::read(file)?;
    let value = document.value()?;
    Job::read(&value).map_err(|flaws| document.flawed(&flaws, "compile-job"))
}

fn prepare(open: &Open, job: Job, file: &Path, provider: Option<&str>) -> Result<Prepared, Failure> {
    let signature = catalogue::find(&open.waiter, &open.tenant, &job.signature_id)?;
    let dataset = match &job.source {
        Source::Hash(wanted) => evidence::dataset(open, wanted, Some(&signature))?,
        Source::File { .. } if open.project.seat().is_some() => {
            let failure = Failure::new(error::INPUT, "dataset: a file can only be named where it lies");
            return Err(failure.hint("make a dataset of it first, and name that by its hash or name"));
        }
        Source::File { path, split, split_seed } => {
            let path = file.parent().unwrap_or(Path::new("")).join(path);
            let (raw, skipped) = read_file(open, &path)?;
            let made = Dataset::build(&name_of(&path), &signature, raw, *split, split_seed, None, skipped);
            made.map_err(|e| Failure::new(error::INPUT, format!("{}: {e}", path.display())))?
        }
    };
    let mut known = BTreeMap::new();
    for id in job.named_artifacts() {
        known.insert(id.to_owned(), artifact::find(open, id)?);
    }
    let bad = |message: String| Failure::new(error::INPUT, format!("{}: {message}", file.display()));
    let candidates = job.candidates(&signature, &dataset, &known).map_err(|e| bad(e.to_string()))?;
    if let Metric::Judge { signature: judge, .. } = &job.metric {
        catalogue::find(&open.waiter, &open.tenant, judge)?;
    }
    job.metric.check(&signature.output_schema).map_err(|why| bad(format!("metric: {why}")))?;
    // A prompt that cannot be written is found before anything is paid for.
    for one in &candidates {
        let way = one.artifact.bind(&signature).map_err(|why| artifact::incompatible(&one.artifact, &why))?;
        // One that some inputs lack something for is tried all the same.
        let mut written =
            dataset.of(Slice::Holdout).take(EXAMPLES_FEW).map(|one| way.signature.render(&one.input, &[]));
        if let Some(Err(why)) = written.next().filter(|first| first.is_err() && written.all(|one| one.is_err())) {
            return Err(bad(format!("the candidate {:?}: {why}", one.name)));
        }
    }
    // Examples are kept without secrets, and a number may be written in another way.
    let redactor = evidence::redactor(open)?;
    for one in &candidates {
        let inputs: BTreeSet<String> =
            one.artifact.shots.iter().map(|shot| hash::of(&sanitise(&shot.input, &redactor))).collect();
        let is_shown = |example: &Example| inputs.contains(&hash::of(&example.input));
        let shown = [Slice::Holdout, Slice::Test].into_iter().find(|slice| dataset.of(*slice).any(is_shown));
        if let Some(slice) = shown {
            let message = format!(
                "the candidate {:?} shows examples that it would be examined by, of {}",
                one.name,
                slice.word()
            );
            return Err(bad(message).hint("take its examples from train: `few_shot: N` does"));
        }
    }
    let programs: Vec<&Program> = candidates.iter().map(|one| &one.artifact.program).collect();
    let job_hash = match settled(open, provider, &programs, &job.metric)? {
        Value::Null => job.hash(&signature, &dataset, &candidates),
        more => hash::of(&json!({"job_hash": job.hash(&signature, &dataset, &candidates), "settled": more})),
    };
    let dataset_hash = dataset.hash();
    Ok(Prepared { job, signature, dataset, candidates, job_hash, dataset_hash })
}

/// What decides about the answers and stands in no artifact: the models that the settings choose where a program names none,
/// and what the judge is asked by. Nothing if there is no such thing.
pub(crate) fn settled(
    open: &Open,
    provider: Option<&str>,
    programs: &[&Program],
    metric: &Metric,
) -> Result<Value, Failure> {
    let judge = judge_of(open, metric)?;
    let of_judge = judge.as_ref().map(|(judge, _)| &judge.signature.program);
    let unnamed = programs.iter().copied().chain(of_judge).filter(|program| program.model.is_none());
    let (mut models, mut counter) = (Vec::new(), None);
    for program in unnamed {
        if counter.is_none() {
            let config = open.project.config()?;
            let places = (open.project.folder()?, open.project.root().to_owned());
            counter = Some(Counter::new(&open.waiter, &open.spend, &open.tenant, places, &config)?);
        }
        if let Some(counter) = &counter {
            models.push(Whom::of(counter, None, provider, program)?.model);
        }
    }
    if models.is_empty() && judge.is_none() {
        return Ok(Value::Null);
    }
    Ok(json!({"models": models, "judge": judge.map(|(judge, _)| judge.hashes)}))
}

/// What would be asked, before it is.
fn foresee(prepared: &Prepared, out: &mut Out) -> Ended {
    let examples = |slice| prepared.dataset.of(slice).count();
    let (holdout, test) = (examples(Slice::Holdout), examples(Slice::Test));
    let names: Vec<Value> = prepared
        .candidates
        .iter()
        .map(|one| json!({"name": one.name, "artifact_id": one.artifact.id(), "strategy_id": one.artifact.program.strategy.word(), "model": one.artifact.program.model, "few_shot": one.artifact.shots.len()}))
        .collect();
    let answers = prepared.candidates.len() * holdout + test * prepared.candidates.len().min(2);
    // A judge is asked about every answer.
    let predictions = answers * if matches!(prepared.job.metric, Metric::Judge { .. }) { 2 } else { 1 };
    let shown = json!({
        "job_hash": prepared.job_hash, "dataset_hash": prepared.dataset_hash, "candidates": names,
        "holdout": holdout, "test": test, "predictions_max": predictions,
    });
    out.result(&shown, || {
        let row = |one: &Candidate| {
            vec![
                clean(&one.name),
                one.artifact.program.strategy.word().to_owned(),
                one.artifact.program.model.as_deref().map_or_else(|| "-".to_owned(), clean),
                one.artifact.shots.len().to_string(),
                one.artifact.id(),
            ]
        };
        let rows: Vec<Vec<String>> = prepared.candidates.iter().map(row).collect();
        format!(
            "{}\n\nat most {predictions} predictions: {} on {holdout} examples of holdout, two on {test} of test",
            table(&["CANDIDATE", "STRATEGY", "MODEL", "EXAMPLES", "ARTIFACT"], &rows),
            count(prepared.candidates.len() as u64, "candidate", "candidates"),
        )
    });
    Ok(0)
}

/// Says so where there are too few examples to tell much.
pub(crate) fn few(examples: usize, what_for: &str, out: &Out) {
    if examples < EXAMPLES_FEW {
        let there = count(examples as u64, "example", "examples");
        out.remark(&format!("there are only {there} to {what_for}: the interval will be wide"));
    }
}

/// The judge of a metric, if it has one.
pub(crate) fn judge_of(open: &Open, metric: &Metric) -> Result<Option<(Way, Metric)>, Failure> {
    let Metric::Judge { signature, field } = metric else { return Ok(None) };
    let judge = catalogue::find(&open.waiter, &open.tenant, signature)?;
    // What it says is read by the same rule as any other field.
    let read = Metric::Contains { field: Some(field.clone()) };
    read.check(&judge.output_schema)
        .map_err(|why| Failure::new(error::INPUT, format!("the judge {signature}: {why}")))?;
    Ok(Some((Way::catalogue(judge), metric.clone())))
}

/// Puts an eval on record, with its results; the one that is, if somebody was faster.
pub(crate) fn keep_eval(open: &Open, mut eval: Value, cells: &[Cell], trial: &Trial<'_>) -> Result<Value, Failure> {
    if let Some(currency) = trial.currency() {
        eval["currency"] = json!(currency);
    }
    let results = serde_json::to_vec(cells).unwrap_or_default();
    eval["results"] = json!(evidence::keep(open, &results)?);
    let id = format!("rollout:eval:{}", eval["eval_id"].as_str().unwrap_or_default());
    recorded(open, Kind::Eval, &id, eval)
}

/// Puts an entry on record; what is under its name then, as everybody after us will read it.
fn recorded(open: &Open, kind: Kind, id: &str, payload: Value) -> Result<Value, Failure> {
    evidence::append(open, kind, id, payload.clone())?;
    Ok(evidence::entry(open, kind, id)?.unwrap_or(payload))
}

fn compile(open: &Open, prepared: &Prepared, trial: &mut Trial<'_>) -> Result<Value, Failure> {
    let Prepared { job, signature, dataset, candidates, job_hash, dataset_hash } = prepared;
    let bound: Vec<Way> = candidates
        .iter()
        .map(|one| one.artifact.bind(signature).map_err(|why| artifact::incompatible(&one.artifact, &why)))
        .collect::<Result<_, _>>()?;
    let examples = |slice| dataset.of(slice).collect::<Vec<&Example>>();
    let ways: Vec<&Way> = bound.iter().collect();
    let holdout = trial.cells("holdout", &ways, &examples(Slice::Holdout), &job.metric)?;
    let scored: Vec<Scored<'_>> =
        candidates.iter().zip(&holdout).map(|(candidate, cells)| Scored { candidate, cells }).collect();
    let selected = compile::select(&scored);
    // The best of holdout, and what it has to be better than; nobody else ever sees test.
    let last: Vec<usize> = if selected == 0 { vec![0] } else { vec![selected, 0] };
    let ways: Vec<&Way> = last.iter().map(|at| &bound[*at]).collect();
    let test = trial.cells("test", &ways, &examples(Slice::Test), &job.metric)?;
    let tested: Vec<Scored<'_>> =
        last.iter().zip(&test).map(|(at, cells)| Scored { candidate: &candidates[*at], cells }).collect();
    let selected_id = candidates[selected].artifact.id();
    let report_id = compile::report_id(&signature.id(), job_hash, dataset_hash, &selected_id);
    let eval = |slice, scored: &Scored<'_>| {
        let made = compile::eval(&report_id, &signature.id(), dataset_hash, &job.metric, slice, scored);
        keep_eval(open, made, scored.cells, trial)
    };
    let mut evals = scored.iter().map(|one| eval(Slice::Holdout, one)).collect::<Result<Vec<_>, _>>()?;
    for one in tested.iter().filter(|one| !one.cells.is_empty()) {
        evals.push(eval(Slice::Test, one)?);
    }
    let comparison = match &tested[..] {
        [best, baseline] if !best.cells.is_empty() => {
            Some(with_inputs(compile::compare(best, baseline, job_hash), dataset))
        }
        _ => None,
    };
    for candidate in candidates {
        artifact::add(open, &candidate.artifact)?;
    }
    actum_contract::crash::pass(CRASH_POINTS, "compile.reporting");
    // The last of it all: a job has its report when everything that it names is there.
    let report = compile::report(job, signature, dataset, job_hash, candidates, selected, &evals, comparison);
    recorded(open, Kind::Compile, &prepared.id(), report)
}

/// Places where tests stop the process for good while a report is written.
const CRASH_POINTS: &[&str] = &["compile.reporting"];

/// A comparison that shows what was asked, too.
pub(crate) fn with_inputs(mut comparison: Value, dataset: &Dataset) -> Value {
    for one in comparison["changed"].as_array_mut().into_iter().flatten() {
        let example = dataset.examples.iter().find(|example| one["example_id"] == example.id.as_str());
        if let Some(example) = example {
            // All of it is in the dataset.
            let text = String::from_utf8_lossy(&hash::canonical(&example.input)).into_owned();
            one["input"] = json!(text.chars().take(INPUT_CHARS_MAX).collect::<String>());
        }
    }
    comparison
}

/// A report with its evals.
fn whole(open: &Open, report: &Value) -> Result<Value, Failure> {
    let mut evals = Vec::new();
    for one in report["evals"].as_array().into_iter().flatten() {
        let id = one["eval_id"].as_str().unwrap_or_default();
        evals.extend(evidence::entry(open, Kind::Eval, &format!("rollout:eval:{id}"))?);
    }
    let mut shown = report.clone();
    shown["eval_reports"] = json!(evals);
    Ok(shown)
}

fn text(shown: &Value) -> String {
    let evals = shown["eval_reports"].as_array().cloned().unwrap_or_default();
    compile::report_text(shown, &evals)
}

fn show(id: &str, open: &Open, out: &mut Out) -> Ended {
    let shown = whole(open, &evidence::report(open, id)?)?;
    out.result(&shown, || text(&shown));
    Ok(0)
}

fn list(open: &Open, out: &mut Out) -> Ended {
    let all = evidence::reports(open)?;
    out.result(&json!({"reports": all}), || {
        let row = |one: &Value| {
            let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), clean);
            vec![
                text(&one["report_id"]),
                text(&one["metrics"]["best_candidate_score"]),
                text(&one["metrics"]["candidate_count"]),
                text(&one["selected_artifact"]),
                text(&one["signature_id"]),
            ]
        };
        table(&["REPORT", "SCORE", "CANDIDATES", "SELECTED", "SIGNATURE"], &all.iter().map(row).collect::<Vec<_>>())
    });
    Ok(0)
}

/// Whether a name is meant as that of a file: no id, no word and no report looks like one.
pub(crate) fn is_file(open: &Open, name: &str) -> bool {
    let is_path = name.contains('/') || [".yaml", ".yml", ".json"].iter().any(|end| name.ends_with(end));
    open.project.seat().is_none() && is_path && Path::new(name).is_file()
}

/// An artifact by its id, by the word for the signature's own, or by what a pointer says of it.
pub(crate) fn named(open: &Open, signature: &Signature, name: &str) -> Result<Artifact, Failure> {
    match name {
        "baseline" => Ok(Artifact::of(signature)),
        file if is_file(open, file) => {
            let mut read = Vec::new();
            super::artifact::read_file(Path::new(file), &mut read)?;
            match <[Artifact; 1]>::try_from(read) {
                Ok([one]) => Ok(one),
                Err(_) => Err(Failure::new(error::INPUT, format!("{file} does not hold one artifact"))),
            }
        }
        "primary" | "canary" => {
            let standing = rollout::standing(open, &signature.id())?;
            let found = standing.and_then(|Standing { pointer, .. }| match name {
                "primary" => Some(pointer.primary_artifact),
                _ => pointer.canary_artifact,
            });
            let id = found.ok_or_else(|| {
                Failure::new(error::NOT_FOUND, format!("the pointer of {} has no {name}", signature.id()))
                    .hint("`actum pointer show` says what it has")
            })?;
            artifact::find(open, &id)
        }
        id => artifact::find(open, id),
    }
}
