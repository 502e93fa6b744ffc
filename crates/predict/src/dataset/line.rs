//! Lines of datasets: those that others write, forgiving in nothing, and those that we keep. Called by `cli` for files it
//! imports and by `dataset` for what it wrote itself; one bad line never costs the others.

use actum_contract::canon;
use serde_json::{Map, Value, json};

use super::{EXAMPLE_BYTES_MAX, Example, Raw, Skipped, Slice};
use crate::hash;

/// What a line may hold besides input and expectation, because we write it; of no weight in what others bring.
const OURS: [&str; 4] = ["example_id", "split", "receipt_id", "labelled"];

/// The words for what was expected.
const EXPECTED: [&str; 3] = ["expected", "output", "label"];

/// One line of a labelled file: `{"input": …, "expected" | "output" | "label": …}`. Lines are counted from one.
pub fn read_line(number: usize, line: &[u8]) -> Result<Raw, Skipped> {
    let at = format!("line {number}");
    let skipped = |reason: &str, detail: &str| Skipped::new(&at, reason, detail);
    // Its own fields make a line of ours longer than its example.
    if line.len() > EXAMPLE_BYTES_MAX + (1 << 10) {
        return Err(skipped("too_long", &format!("{} bytes, more than {EXAMPLE_BYTES_MAX}", line.len())));
    }
    let line = line.strip_prefix(b"\xef\xbb\xbf".as_slice()).filter(|_| number == 1).unwrap_or(line);
    let value = canon::parse(line).map_err(|why| skipped("not_json", &why.to_string()))?;
    let Value::Object(mut fields) = value else {
        return Err(skipped("bad_line", "a line has to be an object {input, expected}"));
    };
    OURS.iter().for_each(|name| drop(fields.remove(*name)));
    let input = fields.remove("input");
    let mut given = EXPECTED.iter().filter_map(|name| fields.remove(*name));
    let (expected, other) = (given.next(), given.next());
    if let Some(field) = fields.keys().next() {
        let told = format!("{field} is no field of an example; it has input and expected");
        return Err(skipped("bad_line", &told));
    }
    if other.is_some() {
        return Err(skipped("bad_line", "expected, output and label say the same: give one of them"));
    }
    let input = input.ok_or_else(|| skipped("no_input", "the line has no input"))?;
    let expected = expected.ok_or_else(|| skipped("no_output", "the line does not say what was expected"))?;
    Ok(Raw { at, input, expected, receipt_id: None, is_labelled: true })
}

/// As it is kept, without the end of the line.
pub(super) fn write(example: &Example) -> Vec<u8> {
    let mut fields = json!({
        "example_id": example.id,
        "input": example.input,
        "expected": example.expected,
        "split": example.slice.word(),
        "labelled": example.is_labelled,
    });
    if let Some(receipt_id) = &example.receipt_id {
        fields["receipt_id"] = json!(receipt_id);
    }
    hash::canonical(&fields)
}

/// Reads what `write` wrote; none if that is not what stands there.
pub(super) fn read_own(line: &[u8]) -> Option<Example> {
    let Value::Object(mut fields) = canon::parse(line).ok()? else { return None };
    let text = |fields: &Map<String, Value>, name: &str| fields.get(name)?.as_str().map(ToOwned::to_owned);
    Some(Example {
        id: text(&fields, "example_id")?,
        slice: Slice::read(&text(&fields, "split")?)?,
        receipt_id: text(&fields, "receipt_id"),
        is_labelled: fields.get("labelled")?.as_bool()?,
        input: fields.remove("input")?,
        expected: fields.remove("expected")?,
    })
}
