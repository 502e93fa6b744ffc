//! Reports for people: who was how good at what price, and where two candidates differ, example by example. Reads what is
//! kept, so that an old report looks as on its first day; what a field does not say is shown as a dash.

use serde_json::Value;

use super::BASELINE;
use crate::hash;

/// Letters of an answer in a table.
const OUTPUT_CHARS_MAX: usize = 60;

/// Hex digits by which a hash is shown.
const HASH_DIGITS_SHOWN: usize = 12;

/// A compile: what was asked for, every candidate on holdout, the selected one and the baseline on test, and where these
/// two differ.
pub fn report_text(report: &Value, evals: &[Value]) -> String {
    let counts = &report["metrics"]["dataset_counts"];
    let mut blocks = vec![format!(
        "{} {}\n{} examples ({} train, {} holdout, {} test) of dataset {}, measured by {}",
        word(&report["report_id"]),
        word(&report["signature_id"]),
        number(&counts["total"]),
        number(&counts["train"]),
        number(&counts["holdout"]),
        number(&counts["test"]),
        word(&report["dataset_hash"]).chars().take(HASH_DIGITS_SHOWN).collect::<String>(),
        word(&report["job"]["metric"]["kind"]),
    )];
    let selected = &report["selected_artifact"];
    for (split, heading) in [("holdout", "HOLDOUT"), ("test", "TEST")] {
        let row = |eval: &Value| {
            let mark = if !selected.is_null() && eval["artifact_id"] == *selected { "*" } else { "" };
            let interval = &eval["interval"];
            vec![
                mark.to_owned(),
                word(&eval["candidate"]),
                score(&eval["score"]),
                format!("{} to {}", score(&interval["low"]), score(&interval["high"])),
                number(&eval["tokens"]),
                match eval["currency"].as_str() {
                    Some(currency) => format!("{} {}", number(&eval["spent"]), clean(currency)),
                    None => number(&eval["spent"]),
                },
                number(&eval["failed"]),
            ]
        };
        let rows: Vec<Vec<String>> = evals.iter().filter(|eval| eval["split"] == split).map(row).collect();
        if !rows.is_empty() {
            blocks.push(table(&["", heading, "SCORE", "95 %", "TOKENS", "COST", "FAILED"], &rows));
        }
    }
    let is_chosen = |one: &&Value| one["artifact_id"] == *selected;
    let chosen = report["candidate_artifacts"].as_array().into_iter().flatten().find(is_chosen);
    let name = chosen.map_or_else(|| "–".to_owned(), |one| word(&one["name"]));
    blocks.push(format!("* selected on holdout: {name}, {}", word(selected)));
    if !report["comparison"].is_null() {
        blocks.push(compare_text(&report["comparison"]));
    } else if name != BASELINE {
        blocks.push("not examined: there are no examples in test".to_owned());
    }
    blocks.join("\n\n")
}

/// Two candidates side by side.
pub fn compare_text(comparison: &Value) -> String {
    let difference = &comparison["difference"];
    let side = |letter: &str| {
        let name = word(&comparison[format!("candidate_{letter}")]);
        format!("{letter}: {name}, {}, {}", word(&comparison[letter]), score(&comparison[format!("mean_{letter}")]))
    };
    let is_up = difference["mean"].as_f64().unwrap_or_default() > 0.0;
    let meaning = match (comparison["is_significant"].as_bool(), is_up) {
        (Some(true), true) => "a is better",
        (Some(true), false) => "a is worse",
        _ => "this may be chance",
    };
    let [mean, low, high] = ["mean", "low", "high"].map(|field| signed(&difference[field]));
    let head = format!(
        "{}\n{}\na − b on {} examples: {mean}, 95 % from {low} to {high}: {meaning}\nbetter {}, worse {}, equal {}",
        side("a"),
        side("b"),
        number(&comparison["samples"]),
        number(&comparison["better"]),
        number(&comparison["worse"]),
        number(&comparison["equal"]),
    );
    let changed = comparison["changed"].as_array().map(Vec::as_slice).unwrap_or_default();
    if changed.is_empty() {
        return head;
    }
    let row = |one: &Value| {
        let (a, b) = (&one["a"], &one["b"]);
        vec![
            word(&one["example_id"]),
            score(&a["score"]),
            score(&b["score"]),
            answer(&a["output"]),
            answer(&b["output"]),
            // Who compares without the dataset knows the answers alone.
            one.get("input").map(answer).unwrap_or_default(),
        ]
    };
    let rows: Vec<Vec<String>> = changed.iter().map(row).collect();
    let all = ["better", "worse"].map(|field| comparison[field].as_u64().unwrap_or_default()).iter().sum::<u64>();
    let more = all.saturating_sub(changed.len() as u64);
    let rest = if more > 0 { format!("\nand {more} more") } else { String::new() };
    format!("{head}\n\n{}{rest}", table(&["EXAMPLE", "A", "B", "ANSWER OF A", "ANSWER OF B", "INPUT"], &rows))
}

fn word(value: &Value) -> String {
    clean(value.as_str().unwrap_or("–"))
}

fn number(value: &Value) -> String {
    if value.is_number() { value.to_string() } else { "–".to_owned() }
}

fn score(value: &Value) -> String {
    value.as_f64().map_or_else(|| "–".to_owned(), |score| format!("{score:.3}"))
}

fn signed(value: &Value) -> String {
    value.as_f64().map_or_else(|| "–".to_owned(), |score| format!("{score:+.3}"))
}

fn answer(output: &Value) -> String {
    let text =
        output.as_str().map_or_else(|| String::from_utf8_lossy(&hash::canonical(output)).into_owned(), str::to_owned);
    let text = clean(&text);
    if text.chars().count() <= OUTPUT_CHARS_MAX {
        return text;
    }
    format!("{}…", text.chars().take(OUTPUT_CHARS_MAX - 1).collect::<String>())
}

/// One line, and nothing in it that a terminal would obey.
fn clean(text: &str) -> String {
    let is_obeyed = |c: char| {
        let is_turning =
            matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        c.is_control() || is_turning
    };
    text.chars().map(|c| if is_obeyed(c) { '\u{fffd}' } else { c }).collect()
}

/// Rows under headings, columns aligned; the last column is free.
fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let headings: Vec<String> = headings.iter().map(|heading| (*heading).to_owned()).collect();
    let all: Vec<&Vec<String>> = std::iter::once(&headings).chain(rows).collect();
    let width = |column: usize| all.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..headings.len()).map(|column| width(column).unwrap_or_default()).collect();
    let line = |row: &&Vec<String>| {
        let padded = row.iter().zip(&widths).map(|(cell, width)| {
            let gap = " ".repeat(width.saturating_sub(cell.chars().count()));
            format!("{cell}{gap}")
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    all.iter().map(line).collect::<Vec<_>>().join("\n")
}
