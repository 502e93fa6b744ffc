//! `actum dataset`: labelled examples, out of receipts or out of files, in three parts that never mix.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use actum_api::error;
use actum_predict::Signature;
use actum_predict::dataset::{Dataset, Raw, Skipped, Slice, Split, read_line};
use actum_predict::evolve::Kind;
use actum_predict::sanitise::{sanitise, sanitise_text};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::Ended;
use super::tool::Why;
use crate::args::Global;
use crate::failure::Failure;
use crate::model::{catalogue, evidence, receipt};
use crate::project::Project;
use crate::run::shop::Open;
use crate::ui::{Out, clean, count, table};

/// What is read of a file.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// Examples that are shown of a dataset.
const SHOWN_MAX: usize = 20;
/// Letters of a value in a table.
const CELL_CHARS_MAX: usize = 50;
/// From this score on an answer may stand as an example.
const GOOD_SCORE: f64 = 1.0;

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Make one out of receipts and traces: what was asked, and what was answered or should have been
    Export(Export),
    /// Make one out of labelled examples: JSON lines with `input` and `expected`
    Import(Import),
    /// Say what the answer of a receipt should have been, or what it is worth
    Label(Labelled),
    /// The datasets there are
    List,
    /// One of them, by its hash or its name
    Show {
        /// The hash, the beginning of it, or a name
        id: String,
        /// Of which signature, if several have it
        #[arg(long, value_name = "ID")]
        signature: Option<String>,
        /// Print the examples as JSON lines, and nothing else
        #[arg(long)]
        lines: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Parts {
    /// Percent for train, holdout and test
    #[arg(long, value_name = "A/B/C", default_value = "80/10/10")]
    split: String,

    /// Another seed splits the examples again
    #[arg(long, value_name = "TEXT", default_value = "default")]
    seed: String,

    /// A name for it
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// No more than these many examples
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    max: Option<u64>,

    /// Write the examples to a file, as JSON lines
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Export {
    /// The signature: namespace/name.vN
    #[arg(long, value_name = "ID")]
    signature: String,

    /// Only labelled receipts
    #[arg(long)]
    labelled: bool,

    #[command(flatten)]
    parts: Parts,
}

#[derive(Debug, Args)]
pub(crate) struct Import {
    /// JSON lines: {"input": {…}, "expected": {…}}
    file: PathBuf,

    /// The signature: namespace/name.vN
    #[arg(long, value_name = "ID")]
    signature: String,

    /// Refuse the file if a line of it cannot be used
    #[arg(long)]
    strict: bool,

    #[command(flatten)]
    parts: Parts,
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("what").required(true).multiple(true).args(["expected", "score"])))]
pub(crate) struct Labelled {
    /// The receipt of a prediction (pred_…)
    receipt: String,

    /// What the answer should have been, as JSON
    #[arg(long, value_name = "JSON")]
    expected: Option<String>,

    /// What the answer is worth, from 0 to 1
    #[arg(long, value_name = "N")]
    score: Option<f64>,

    #[command(flatten)]
    why: Why,
}

impl Verb {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        match self {
            Self::Export(export) => export.run(global, out),
            Self::Import(import) => import.run(global, out),
            Self::Label(label) => label.run(global, out),
            Self::List => list(global, out),
            Self::Show { id, signature, lines } => show(&id, signature.as_deref(), lines, global, out),
        }
    }
}

impl Parts {
    fn split(&self) -> Result<Split, Failure> {
        Split::parse(&self.split).map_err(|e| {
            Failure::new(error::USAGE, format!("--split {:?}: {e}", self.split))
                .hint("write three whole numbers that sum up to 100: 80/10/10")
        })
    }

    fn build(
        &self,
        signature: &Signature,
        name: &str,
        raw: Vec<Raw>,
        skipped: Vec<Skipped>,
    ) -> Result<Dataset, Failure> {
        let name = self.name.as_deref().unwrap_or(name);
        let max = self.max.map(|max| usize::try_from(max).unwrap_or(usize::MAX));
        Dataset::build(name, signature, raw, self.split()?, &self.seed, max, skipped).map_err(|e| {
            Failure::new(error::INPUT, e.to_string())
                .hint("every example needs an input and an expected output that fit the schemas of the signature")
        })
    }

    /// Registers it, writes it where it is wanted, and shows it.
    fn keep(&self, open: &Open, dataset: &Dataset, out: &mut Out) -> Ended {
        if let Some(path) = &self.out {
            let cannot = |e| Failure::of_io(format!("cannot write {}: {e}", path.display()), &e);
            std::fs::write(path, dataset.lines()).map_err(cannot)?;
        }
        let known = evidence::add_dataset(open, dataset)?;
        let mut shown = dataset.manifest();
        shown["idempotent"] = json!(known.is_some());
        if let Some(known) = known.filter(|known| known["name"] != shown["name"]) {
            out.remark(&format!(
                "these examples are known already, as {}",
                clean(known["name"].as_str().unwrap_or_default())
            ));
            shown["name"] = known["name"].clone();
        }
        out.result(&shown, || summary(&shown));
        let told: Vec<&Skipped> = dataset.skipped.iter().filter(|one| one.reason != "duplicate").collect();
        for one in told.iter().take(SHOWN_MAX) {
            out.remark(&format!("left out  {}: {}  {}", clean(&one.at), one.reason, clean(&one.detail)));
        }
        if told.len() > SHOWN_MAX {
            out.remark(&format!("and {} more", told.len() - SHOWN_MAX));
        }
        Ok(0)
    }
}

impl Export {
    fn run(self, global: &Global, out: &mut Out) -> Ended {
        let open = Open::new(Project::find(global)?, out)?;
        let signature = catalogue::find(&open.waiter, &open.tenant, &self.signature)?;
        self.parts.split()?;
        let labels = evidence::labels(&open, 0..u64::MAX)?;
        let traces = receipt::traces(&open.project)?;
        let (mut raw, mut skipped) = (Vec::new(), Vec::new());
        evidence::each(&open, Kind::Receipt, 0, &mut |_, payload| {
            let kept = &payload["receipt"];
            let text = |name: &str| kept[name].as_str().unwrap_or_default();
            let is_trial = text("run_id").starts_with(evidence::TRIALS);
            if text("kind") != "prediction" || text("signature_id") != self.signature || is_trial {
                return Ok(());
            }
            let id = text("receipt_id").to_owned();
            let label = labels.get(&id).cloned().unwrap_or_default();
            let mut skip = |reason: &str, detail: &str| {
                skipped.push(Skipped { at: id.clone(), reason: reason.to_owned(), detail: detail.to_owned() });
            };
            let is_labelled = label.expected.is_some() || label.score.is_some();
            if self.labelled && !is_labelled {
                skip("not_labelled", "the expected answer is unknown");
                return Ok(());
            }
            let Ok(whole) = receipt::whole(&payload, &traces) else {
                skip("no_trace", "its trace is gone, or is not what it was");
                return Ok(());
            };
            let said = &whole["trace"]["payload"];
            let Some(input) = said.get("input") else {
                let why = if said.get("input_omitted").is_some() { "omitted" } else { "no_input" };
                skip(why, "the trace does not hold what was asked");
                return Ok(());
            };
            let expected = match (label.expected, label.score, text("status")) {
                (Some(expected), ..) => expected,
                (None, Some(score), _) if score < GOOD_SCORE => {
                    skip("low_score", "the answer was not good enough to be an example");
                    return Ok(());
                }
                (None, _, "succeeded" | "partial") => said["output"].clone(),
                (None, _, status) => {
                    skip("not_succeeded", status);
                    return Ok(());
                }
            };
            if evidence::is_redacted(&expected) {
                skip("redacted", "what was answered held a secret or personal data, which is not kept");
                return Ok(());
            }
            raw.push(Raw { at: id.clone(), input: input.clone(), expected, receipt_id: Some(id), is_labelled });
            Ok(())
        })?;
        let dataset = self.parts.build(&signature, "receipts", raw, skipped)?;
        self.parts.keep(&open, &dataset, out)
    }
}

impl Import {
    fn run(self, global: &Global, out: &mut Out) -> Ended {
        self.parts.split()?;
        let open = Open::new(Project::find(global)?, out)?;
        let signature = catalogue::find(&open.waiter, &open.tenant, &self.signature)?;
        let (raw, skipped) = read_file(&open, &self.file)?;
        let name = name_of(&self.file);
        let dataset = self.parts.build(&signature, &name, raw, skipped)?;
        if let Some(first) = dataset.skipped.first().filter(|_| self.strict) {
            let left = dataset.skipped.len() as u64;
            let message = format!("{} cannot be used: {}: {}", count(left, "line", "lines"), first.at, first.detail);
            return Err(Failure::new(error::INPUT, message).details(dataset.manifest()["skipped"].clone()));
        }
        self.parts.keep(&open, &dataset, out)
    }
}

/// How a dataset out of a file is called, if nobody says.
pub(crate) fn name_of(file: &Path) -> String {
    file.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The examples of a file, without secrets, and the lines that are none.
pub(crate) fn read_file(open: &Open, path: &Path) -> Result<(Vec<Raw>, Vec<Skipped>), Failure> {
    let cannot = |e: std::io::Error| Failure::of_io(format!("cannot read {}: {e}", path.display()), &e);
    // What is no plain file does not say how long it is.
    let mut bytes = Vec::new();
    std::fs::File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)).map_err(cannot)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        let message = format!("{} is larger than {FILE_BYTES_MAX} bytes", path.display());
        return Err(Failure::new(error::FILE, message));
    }
    let redactor = evidence::redactor(open)?;
    let (mut raw, mut skipped) = (Vec::new(), Vec::new());
    for (at, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        if line.trim_ascii().is_empty() {
            continue;
        }
        match read_line(at + 1, line) {
            // What both sides are stripped of would be equal.
            Ok(one) if !evidence::is_comparable(&one.expected, &redactor) => skipped.push(Skipped::new(
                &one.at,
                "redacted",
                "what is expected holds a secret or personal data, which is not kept and so cannot be compared",
            )),
            Ok(one) => raw.push(Raw {
                input: sanitise(&one.input, &redactor),
                expected: sanitise(&one.expected, &redactor),
                ..one
            }),
            // What is told of a line may quote it.
            Err(bad) => skipped.push(Skipped { detail: sanitise_text(&bad.detail, &redactor), ..bad }),
        }
    }
    Ok((raw, skipped))
}

impl Labelled {
    fn run(self, global: &Global, out: &mut Out) -> Ended {
        let expected = self.expected.as_deref().map(|text| {
            actum_contract::canon::parse(text.as_bytes()).map_err(|e| {
                Failure::new(error::INPUT, format!("--expected is no JSON: {}", e.message))
                    .hint("write it as JSON: --expected '{\"label\": \"positive\"}'")
            })
        });
        let expected = expected.transpose()?;
        if self.score.is_some_and(|score| !(0.0..=1.0).contains(&score)) {
            return Err(Failure::new(error::USAGE, "--score is a number from 0 to 1"));
        }
        let open = Open::new(Project::find(global)?, out)?;
        let found = evidence::entry(&open, Kind::Receipt, &receipt::entry_id(&self.receipt))?;
        let Some(payload) = found.filter(|payload| payload["receipt"]["kind"] == "prediction") else {
            let failure = Failure::new(error::NOT_FOUND, format!("there is no prediction {:?}", self.receipt));
            return Err(failure.hint("`actum trace list` shows receipts; a label belongs to one of kind prediction"));
        };
        if let Some(expected) = &expected {
            let id = payload["receipt"]["signature_id"].as_str().unwrap_or_default();
            let signature = catalogue::find(&open.waiter, &open.tenant, id)?;
            signature.check_output(expected).map_err(|flaws| {
                Failure::new(error::INPUT, format!("--expected does not fit the schema: {}", flaws.join("; ")))
            })?;
        }
        let by = self.why.by();
        evidence::label(&open, &self.receipt, expected.as_ref(), self.score, (&by.actor, &by.reason))?;
        let shown = json!({"receipt_id": self.receipt, "expected": expected, "score": self.score});
        out.result(&shown, || format!("labelled  {}", self.receipt));
        Ok(0)
    }
}

fn list(global: &Global, out: &mut Out) -> Ended {
    let open = Open::new(Project::find(global)?, out)?;
    let all = evidence::datasets(&open)?;
    out.result(&json!({"datasets": all}), || {
        let row = |one: &Value| {
            let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), clean);
            let hash: String = text(&one["dataset_hash"]).chars().take(16).collect();
            let counts = &one["counts"];
            let number = |name: &str| counts[name].to_string();
            vec![
                hash,
                text(&one["name"]),
                number("train"),
                number("holdout"),
                number("test"),
                text(&one["signature_id"]),
            ]
        };
        table(&["DATASET", "NAME", "TRAIN", "HOLDOUT", "TEST", "SIGNATURE"], &all.iter().map(row).collect::<Vec<_>>())
    });
    Ok(0)
}

fn show(id: &str, signature: Option<&str>, lines: bool, global: &Global, out: &mut Out) -> Ended {
    let open = Open::new(Project::find(global)?, out)?;
    let signature = signature.map(|id| catalogue::find(&open.waiter, &open.tenant, id)).transpose()?;
    let dataset = evidence::dataset(&open, id, signature.as_ref())?;
    if lines {
        out.bytes(&dataset.lines());
        return Ok(0);
    }
    let shown = dataset.manifest();
    out.result(&shown, || {
        let short = |value: &Value| clean(&value.to_string()).chars().take(CELL_CHARS_MAX).collect::<String>();
        let rows: Vec<Vec<String>> = Slice::ALL
            .iter()
            .flat_map(|slice| dataset.of(*slice))
            .take(SHOWN_MAX)
            .map(|one| vec![one.id.clone(), one.slice.word().to_owned(), short(&one.expected), short(&one.input)])
            .collect();
        let mut text = format!("{}\n\n{}", summary(&shown), table(&["EXAMPLE", "PART", "EXPECTED", "INPUT"], &rows));
        if dataset.examples.len() > SHOWN_MAX {
            text += &format!("\nand {} more: --lines prints all", dataset.examples.len() - SHOWN_MAX);
        }
        text
    });
    Ok(0)
}

fn summary(manifest: &Value) -> String {
    let text = |name: &str| clean(manifest[name].as_str().unwrap_or_default());
    let counts = &manifest["counts"];
    let mut lines = vec![
        format!("dataset    {}", text("dataset_hash")),
        format!("name       {}", text("name")),
        format!("signature  {}", text("signature_id")),
        format!(
            "examples   {}: train {}, holdout {}, test {}  (seed {})",
            counts["total"],
            counts["train"],
            counts["holdout"],
            counts["test"],
            text("split_seed")
        ),
    ];
    let reasons = manifest["skipped_reasons"].as_object().into_iter().flatten();
    let left: Vec<String> = reasons.map(|(reason, n)| format!("{n} {reason}")).collect();
    if !left.is_empty() {
        lines.push(format!("left out   {}", left.join(", ")));
    }
    lines.join("\n")
}
