//! What a value looks like that may be given over HTTP: patterns of ids, words, numbers and times, as pieces of JSON Schema.
//! Asked by `openapi`. It judges nothing: what is given is judged by the command, and a value that has the right form and
//! names nothing is answered with 404, 409 or 422.

use actum_contract::Profile;
use actum_ledger::run::RunState;
use clap::error::ErrorKind;
use serde_json::{Value, json};

use super::shape::{Form, Kind, Shape};
use actum_api::route::Place;

/// Whole numbers that every reader of JSON agrees on.
const WHOLE_MAX: u64 = (1 << 53) - 1;

/// What may stand in a path: what would lead elsewhere, or be read twice, is refused.
const IN_PATH: &str = r"^(?!\.{1,2}$)[^\u0000-\u001f\u007f-\u009f%]+$";
/// What may stand in a query.
const IN_QUERY: &str = r"^[^\u0000]*$";
/// A run, or the beginning of its id.
const RUN: &str = "^[0-9a-f-]{1,36}$";
/// A run or a stage, by its whole id or the beginning of it.
const STAGE: &str = "^[0-9A-Za-z_-]{1,64}$";
const SIGNATURE: &str = r"^[A-Za-z0-9@_./-]{3,200}\.v[1-9][0-9]{0,8}$";
/// An artifact, or the beginning of its id.
const ARTIFACT: &str = "^(art_)?[0-9a-f]{1,24}$";
const REGISTERED: &str = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$";
/// A digest, or its beginning.
const DIGEST: &str = "^[0-9a-f]{1,64}$";
const FIELD: &str = r"^[A-Za-z][A-Za-z0-9]*=[\s\S]*$";
const SPLIT: &str = "^[0-9]{1,3}/[0-9]{1,3}/[0-9]{1,3}$";
const TIME_SPAN: &str = "^[0-9]{1,9}(s|m|h|d)$";
const AMOUNT: &str = r"^[0-9]{1,15}((\.[0-9]{1,6})?usd)?$";
const CURSOR: &str = r"^[^\u0000-\u001f\u007f-\u009f]{1,400}$";

/// How an argument of a command looks: the command's words (only the first of them where all below it agree), the
/// argument, and the piece of schema.
struct Piece {
    command: &'static [&'static str],
    name: &'static str,
    made: fn() -> Value,
}

const fn piece(command: &'static [&'static str], name: &'static str, made: fn() -> Value) -> Piece {
    Piece { command, name, made }
}

fn pattern(text: &str) -> Value {
    json!({"type": "string", "pattern": text})
}

fn range(from: u64, to: u64) -> Value {
    json!({"type": "integer", "minimum": from, "maximum": to})
}

fn share() -> Value {
    json!({"type": "number", "minimum": 0, "maximum": 1})
}

/// The first that fits counts.
const PIECES: &[Piece] = &[
    piece(&["list"], "state", || json!({"type": "string", "enum": RunState::ALL.map(RunState::word)})),
    piece(&["diff"], "run", || pattern(STAGE)),
    piece(&["apply"], "run", || pattern(STAGE)),
    piece(&["undo"], "run", || pattern(STAGE)),
    piece(&["logs"], "run", || pattern(STAGE)),
    piece(&["status"], "run", || pattern(RUN)),
    piece(&["resume"], "run", || pattern(RUN)),
    piece(&["cancel"], "run", || pattern(RUN)),
    piece(&["gate"], "run", || pattern(RUN)),
    piece(&["replay"], "run", || pattern(RUN)),
    piece(&["contract"], "run", || pattern(RUN)),
    piece(&["receipt"], "run", || pattern(RUN)),
    piece(&["verify"], "receipt", || pattern(RUN)),
    piece(&[], "profile", || json!({"type": "string", "enum": Profile::ALL.map(Profile::name)})),
    piece(&[], "set", || pattern(FIELD)),
    piece(&["tool", "call"], "params", || json!({"type": "object"})),
    piece(&["tool"], "id", || pattern(REGISTERED)),
    piece(&["adapter"], "id", || pattern(REGISTERED)),
    piece(&["signature"], "id", || pattern(SIGNATURE)),
    piece(&["artifact", "list"], "signature", || pattern(IN_QUERY)),
    piece(&["artifact", "show"], "id", || pattern(ARTIFACT)),
    piece(&["artifact"], "id", || pattern(SIGNATURE)),
    piece(&["pointer"], "primary", || pattern(ARTIFACT)),
    piece(&["pointer"], "artifact", || pattern(ARTIFACT)),
    piece(&["pointer"], "metadata", || json!({"type": "object"})),
    piece(&["snapshot"], "id", || pattern(DIGEST)),
    piece(&["snapshot"], "b", || pattern(DIGEST)),
    piece(&["dataset", "label"], "score", share),
    piece(&["dataset"], "split", || pattern(SPLIT)),
    piece(&["eval"], "min_score", share),
    piece(&["eval"], "max_drop", share),
    piece(&["ledger"], "limit", || range(1, 1_000)),
    piece(&["ledger"], "from", || range(1, WHOLE_MAX)),
    piece(&["ledger"], "cursor", || pattern(CURSOR)),
    piece(&["ledger"], "snapshot_at", || json!({"type": "string", "format": "date-time"})),
    piece(
        &["ledger", "coherence"],
        "ids",
        || json!({"type": "string", "minLength": 1, "maxLength": 256, "pattern": IN_QUERY}),
    ),
    piece(
        &["spend"],
        "state",
        || json!({"type": "string", "enum": ["reserved", "committed", "released", "reconcile_required"]}),
    ),
    piece(&["spend"], "expires", || pattern(TIME_SPAN)),
    piece(&["schema"], "name", || json!({"type": "string", "enum": crate::command::schema::names()})),
    piece(&[], "signature", || pattern(SIGNATURE)),
];

/// What may be given for an argument of a route.
pub(super) fn schema(form: &Form, shape: &Shape) -> Value {
    let mut one = piece_of(form, shape).unwrap_or_else(|| plain(form, shape));
    if let Some(default) = default(shape) {
        one["default"] = default;
    }
    if shape.many { json!({"type": "array", "items": one}) } else { one }
}

fn piece_of(form: &Form, shape: &Shape) -> Option<Value> {
    let fits = |piece: &&Piece| piece.name == shape.name && form.route.command.starts_with(piece.command);
    PIECES.iter().find(fits).map(|piece| (piece.made)())
}

/// By its kind alone.
fn plain(form: &Form, shape: &Shape) -> Value {
    let in_content = matches!(shape.place, Place::Field | Place::File);
    match shape.kind {
        Kind::Switch => json!({"type": "boolean", "default": false}),
        Kind::Whole { signed } => whole(form, shape, signed),
        Kind::Number => json!({"type": "number"}),
        Kind::Amount if in_content => {
            json!({"type": ["integer", "string"], "minimum": 0, "maximum": WHOLE_MAX, "pattern": AMOUNT})
        }
        Kind::Amount => pattern(AMOUNT),
        Kind::WordOrJson if in_content => json!({"type": ["string", "object"]}),
        Kind::Json | Kind::File if in_content => json!({}),
        _ => text(shape),
    }
}

fn text(shape: &Shape) -> Value {
    let words: Vec<String> = shape.arg.get_possible_values().iter().map(|word| word.get_name().to_owned()).collect();
    match shape.place {
        _ if !words.is_empty() => json!({"type": "string", "enum": words}),
        Place::Path => json!({"type": "string", "minLength": 1, "maxLength": 256, "pattern": IN_PATH}),
        Place::Query => pattern(IN_QUERY),
        _ => json!({"type": "string"}),
    }
}

/// A whole number as the command takes it: where its bounds are is found out by asking the parser itself.
fn whole(form: &Form, shape: &Shape, signed: bool) -> Value {
    let takes = |number: i128| {
        let mut words: Vec<String> =
            std::iter::once("actum").chain(form.route.command.iter().copied()).map(str::to_owned).collect();
        match shape.arg.get_long() {
            Some(long) => words.push(format!("--{long}={number}")),
            None => {
                words.push("--".to_owned());
                let before = form.positionals().take_while(|name| *name != shape.name).count();
                words.extend(std::iter::repeat_n("1".to_owned(), before));
                words.push(number.to_string());
            }
        }
        let parsed = form.parser.clone().try_get_matches_from(words);
        parsed.err().is_none_or(|e| !matches!(e.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue))
    };
    let (mut low, mut high) = (if signed { -i128::from(WHOLE_MAX) } else { 0 }, i128::from(WHOLE_MAX));
    // One is in every range that we have; the bounds are on both sides of it.
    let edge = |inside: i128, outside: i128| {
        let (mut inside, mut outside) = (inside, outside);
        while (outside - inside).abs() > 1 {
            let between = i128::midpoint(inside, outside);
            *(if takes(between) { &mut inside } else { &mut outside }) = between;
        }
        inside
    };
    if takes(1) {
        low = if takes(low) { low } else { edge(1, low) };
        high = if takes(high) { high } else { edge(1, high) };
    }
    json!({"type": "integer", "minimum": i64::try_from(low).unwrap_or(i64::MIN), "maximum": i64::try_from(high).unwrap_or(i64::MAX)})
}

fn default(shape: &Shape) -> Option<Value> {
    let text = shape.arg.get_default_values().first().and_then(|value| value.to_str());
    let text = text.filter(|_| shape.kind != Kind::Switch && !shape.many)?;
    let number = matches!(shape.kind, Kind::Whole { .. }).then(|| text.parse::<u64>().ok()).flatten();
    Some(number.map_or_else(|| json!(text), |number| json!(number)))
}

#[cfg(test)]
mod tests {
    use super::super::shape::forms;
    use super::*;

    fn of(method: &str, path: &str, name: &str) -> Value {
        let form = forms().iter().find(|form| form.route.method.word() == method && form.route.path == path).unwrap();
        schema(form, form.shapes.iter().find(|shape| shape.name == name).unwrap())
    }

    #[test]
    fn bounds_are_those_of_the_parsers() {
        let limit = json!({"type": "integer", "minimum": 1, "maximum": 1000, "default": 50});
        assert_eq!(of("GET", "/v1/runs", "limit"), limit);
        assert_eq!(of("GET", "/v1/traces", "limit")["maximum"], 10_000);
        let minutes = json!({"type": "integer", "minimum": 1, "maximum": 10_080});
        assert_eq!(of("POST", "/v1/approvals/{id}/approve", "minutes"), minutes);
        let percent = json!({"type": "integer", "minimum": 0, "maximum": 100});
        assert_eq!(of("POST", "/v1/pointers/{signature}/canary", "percent"), percent);
        assert_eq!(of("POST", "/v1/pointers/{signature}/rollback", "to")["maximum"], json!(WHOLE_MAX));
        assert_eq!(of("GET", "/v1/pointers/{signature}/audits/{revision}", "revision")["minimum"], 0);
    }

    #[test]
    fn every_piece_belongs_to_an_argument_and_every_pattern_can_be_read() {
        for piece in PIECES {
            let fits = |form: &&Form| {
                form.route.command.starts_with(piece.command)
                    && form.shapes.iter().any(|shape| shape.name == piece.name)
            };
            assert!(forms().iter().any(|form| fits(&form)), "{:?} {}", piece.command, piece.name);
        }
        for text in [RUN, STAGE, SIGNATURE, ARTIFACT, REGISTERED, DIGEST, FIELD, SPLIT, TIME_SPAN, AMOUNT] {
            assert!(regex::Regex::new(text).is_ok(), "{text}");
        }
        let is = |pattern: &str, text: &str| regex::Regex::new(pattern).unwrap().is_match(text);
        assert!(is(RUN, "01a1e35c-059f-75ab-aa11-8acb0c4960c8") && is(RUN, "01a1") && !is(RUN, "../x"));
        assert!(is(SIGNATURE, "demo/Sentiment.v1") && !is(SIGNATURE, "Sentiment") && !is(SIGNATURE, "a/b.v0"));
        assert!(is(SIGNATURE, "@a/b.v1") && !is(SIGNATURE, "a b.v1"));
        assert!(is(AMOUNT, "2.50usd") && is(AMOUNT, "100") && !is(AMOUNT, "-1") && !is(AMOUNT, ""));
    }
}
