//! Strategies with models that say what they are told to say: well, badly, too much, or not at all.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Call, Limits, Model, Outcome, Purpose, Status, Stop, run};
use crate::protocol::{Protocol, Said, Structured, Usage, compose};
use crate::{Signature, hash, policy};

/// A model that keeps its own books: it refuses to believe in a call that could cost more than is left.
struct Fake<F> {
    limits: Limits,
    answer: F,
    calls: Vec<Call>,
    tokens: u64,
    elapsed_ms: u64,
}

impl<F: FnMut(u64, &Call) -> Result<Said, Stop>> Fake<F> {
    fn new(limits: &Limits, answer: F) -> Self {
        Self { limits: limits.clone(), answer, calls: Vec::new(), tokens: 0, elapsed_ms: 0 }
    }

    fn purposes(&self) -> Vec<Purpose> {
        self.calls.iter().map(|call| call.purpose).collect()
    }

    /// All that was put into prompts.
    fn seen(&self) -> String {
        let all = self.calls.iter().flat_map(|call| &call.prompt.messages);
        all.map(|message| message.content.as_str()).collect::<Vec<_>>().join("\n")
    }
}

impl<F: FnMut(u64, &Call) -> Result<Said, Stop>> Model for Fake<F> {
    fn ask(&mut self, call: &Call) -> Result<Said, Stop> {
        let limits = &self.limits;
        let bound = self.input_tokens_max(&call.prompt) + call.prompt.output_tokens;
        assert!(call.prompt.output_tokens >= 1 && call.prompt.output_tokens <= limits.output_tokens);
        assert!(self.tokens + bound <= limits.tokens_max, "{} + {bound} > {}", self.tokens, limits.tokens_max);
        assert!((self.calls.len() as u64) < limits.calls_max);
        assert!(self.elapsed_ms < limits.timeout_ms);
        assert!(!matches!(call.purpose, Purpose::Iterate { n } if n > limits.iterations_max));
        let said = (self.answer)(self.calls.len() as u64, call);
        self.calls.push(call.clone());
        let usage = said.as_ref().ok().and_then(|said| said.usage);
        self.tokens += usage.map_or(bound, |usage| usage.input + usage.output);
        said
    }

    fn elapsed_ms(&self) -> u64 {
        self.elapsed_ms
    }
}

fn said(text: impl Into<String>) -> Result<Said, Stop> {
    let usage = Some(Usage { input: 10, output: 5, ..Usage::default() });
    Ok(Said { text: text.into(), usage, model: None, stop: None })
}

fn denied() -> Result<Said, Stop> {
    let stop = Stop { reason_code: policy::BUDGET_EXHAUSTED.to_owned(), message: "no".to_owned(), is_denied: true };
    Err(stop)
}

fn signature(program: Value) -> Signature {
    Signature::read(&json!({
        "namespace": "t", "name": "Find", "version": 1,
        "input_schema": {"type": "object", "properties": {"notes": {}, "q": {"type": "string"}}, "required": ["q"]},
        "output_schema": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
        "prompt_template": "{{ q }}{% if input.notes is defined %} in {{ notes }}{% endif %}",
        "program_template": program,
    }))
    .unwrap()
}

fn direct() -> Signature {
    signature(json!("direct.v1"))
}

fn rlm() -> Signature {
    signature(json!({"strategy": "rlm_lite.v1", "long_inputs": ["notes"]}))
}

fn limits(signature: &Signature) -> Limits {
    Limits::of(&signature.program, "m")
}

fn code(outcome: &Outcome) -> &str {
    outcome.error.as_ref().map_or("", |stop| stop.reason_code.as_str())
}

fn input() -> Value {
    json!({"q": "what?"})
}

fn notes() -> Value {
    let notes: Vec<String> = (0..400).map(|n| format!("note {n}: the sum of day {n} is {}", n * 7)).collect();
    let mut text = notes.join("\n");
    text.push_str("\nnote 400: the code of the vault is heron-42");
    json!({"q": "what is the code of the vault?", "notes": text})
}

#[test]
fn a_trace_says_what_was_asked_and_what_came_of_it() {
    for signature in [direct(), rlm()] {
        let limits = limits(&signature);
        let final_answer = r#"{"op": "final", "answer": {"a": "x"}}"#;
        let answer = if signature == direct() { r#"{"a": "x"}"# } else { final_answer };
        let outcome = run(&signature, &input(), &limits, &mut Fake::new(&limits, |_, _| said(answer)));
        assert_eq!((&outcome.trace["input"], &outcome.trace["output"]), (&input(), &json!({"a": "x"})));
        assert_eq!(outcome.trace["input_hash"], hash::of(&input()));
        assert!(outcome.trace.get("input_omitted").is_none());
        // What did not fit is told as well.
        let bad = json!({"q": 7});
        let outcome = run(&signature, &bad, &limits, &mut Fake::new(&limits, |_, _| denied()));
        assert_eq!((&outcome.trace["input"], &outcome.trace["output"]), (&bad, &json!(null)));
    }
}

#[test]
fn an_input_that_is_too_long_is_named_in_the_trace() {
    let signature = rlm();
    let limits = limits(&signature);
    let of = |bytes: usize| {
        let around = hash::canonical(&json!({"q": "?", "notes": ""})).len();
        let input = json!({"q": "?", "notes": "x".repeat(bytes - around)});
        let outcome = run(&signature, &input, &limits, &mut Fake::new(&limits, |_, _| denied()));
        assert_eq!(outcome.trace["input_hash"], hash::of(&input));
        outcome.trace
    };
    let whole = of(1 << 20);
    assert!(whole.get("input").is_some() && whole.get("input_omitted").is_none());
    let long = of((1 << 20) + 1);
    assert_eq!((long.get("input"), &long["input_omitted"]), (None, &json!((1 << 20) + 1)));
}

/// As deep as text may be that is read at all.
#[test]
fn a_trace_can_be_read_again_however_deep_things_are() {
    let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    let limits = limits(&direct());
    for levels in [62, 63, 64, 100, 126] {
        let notes: Value = serde_json::from_str(&deep(levels)).unwrap();
        let input = json!({"q": "?", "notes": notes});
        let answer = format!(r#"{{"a": "x", "b": {}}}"#, deep(levels));
        let outcome = run(&direct(), &input, &limits, &mut Fake::new(&limits, |_, _| said(answer.as_str())));
        let again: Value = serde_json::from_str(&outcome.trace.to_string()).unwrap();
        assert_eq!(again.get("input").is_some(), levels < 64, "{levels} levels and the object around them");
        assert_eq!(again.get("input_omitted").is_some(), levels >= 64);
        let asked_with = run(&direct(), &self::input(), &limits, &mut Fake::new(&limits, |_, _| said(&*answer)));
        let again: Value = serde_json::from_str(&asked_with.trace.to_string()).unwrap();
        assert_eq!(again["output"].is_null(), levels >= 64);
        assert_eq!(code(&asked_with), if levels < 64 { "" } else { policy::INVALID_OUTPUT });
    }
}

#[test]
fn direct_succeeds_at_once_or_after_a_repair() {
    let (signature, limits) = (direct(), limits(&direct()));
    let mut model = Fake::new(&limits, |_, _| said(r#"Sure: {"a": "x"}"#));
    let outcome = run(&signature, &input(), &limits, &mut model);
    assert_eq!((outcome.status, &outcome.output, outcome.calls), (Status::Succeeded, &json!({"a": "x"}), 1));
    assert_eq!(outcome.usage, Usage { input: 10, output: 5, ..Usage::default() });
    assert_eq!(outcome.trace["output_hash"], hash::of(&json!({"a": "x"})));
    assert_eq!(model.calls[0].prompt.schema, Some(signature.output_schema.clone()));

    let mut model = Fake::new(&limits, |n, _| said(if n == 0 { r#"{"a": 7}"# } else { r#"{"a": "y"}"# }));
    let outcome = run(&signature, &input(), &limits, &mut model);
    assert_eq!((outcome.status, &outcome.output, outcome.calls), (Status::Succeeded, &json!({"a": "y"}), 2));
    assert_eq!(model.purposes(), [Purpose::Answer, Purpose::Repair]);
    assert!(model.seen().contains("/a: "));
    assert!(outcome.trace["calls"][0]["flaw"].is_string());
}

#[test]
fn direct_fails_and_says_why() {
    let (signature, limits) = (direct(), limits(&direct()));
    let mut model = Fake::new(&limits, |_, _| said("no idea"));
    let outcome = run(&signature, &input(), &limits, &mut model);
    assert_eq!((outcome.status, code(&outcome), outcome.calls), (Status::Failed, policy::INVALID_OUTPUT, 2));
    assert_eq!(outcome.output, Value::Null);

    let mut model = Fake::new(&limits, |_, _| denied());
    let outcome = run(&signature, &input(), &limits, &mut model);
    assert_eq!((outcome.status, code(&outcome), outcome.calls), (Status::Denied, policy::BUDGET_EXHAUSTED, 1));
    let mut model = Fake::new(&limits, |n, _| if n == 0 { said("?") } else { denied() });
    assert_eq!(run(&signature, &input(), &limits, &mut model).status, Status::Denied);
    let mut model = Fake::new(&limits, |_, _| Err(Stop::failed(policy::PROVIDER_ERROR, "500")));
    let outcome = run(&signature, &input(), &limits, &mut model);
    assert_eq!((outcome.status, code(&outcome)), (Status::Failed, policy::PROVIDER_ERROR));

    for bad in [json!({}), json!(null), json!({"q": 7})] {
        let mut model = Fake::new(&limits, |_, _| said("never"));
        let outcome = run(&signature, &bad, &limits, &mut model);
        assert_eq!((outcome.status, code(&outcome), outcome.calls), (Status::Failed, policy::INVALID_INPUT, 0));
    }
}

#[test]
fn direct_is_stopped_at_each_border() {
    let signature = direct();
    let bound = {
        let all = limits(&signature);
        let mut model = Fake::new(&all, |_, _| said(r#"{"a": "x"}"#));
        run(&signature, &input(), &all, &mut model);
        let prompt = model.calls[0].prompt.clone();
        model.input_tokens_max(&prompt)
    };
    let with = |change: &dyn Fn(&mut Limits)| {
        let mut limits = limits(&signature);
        change(&mut limits);
        let mut model = Fake::new(&limits, |n, _| said(if n == 0 { "?" } else { r#"{"a": "x"}"# }));
        let outcome = run(&signature, &input(), &limits, &mut model);
        let first = model.calls.first().map_or(0, |call| call.prompt.output_tokens);
        (outcome.status, code(&outcome).to_owned(), outcome.calls, first)
    };
    let exhausted = |code: &str, calls, first| (Status::Failed, code.to_owned(), calls, first);
    assert_eq!(with(&|l| l.calls_max = 2), (Status::Succeeded, String::new(), 2, 1_024));
    assert_eq!(with(&|l| l.calls_max = 1), exhausted(policy::CALLS_EXHAUSTED, 1, 1_024));
    assert_eq!(with(&|l| l.calls_max = 0), exhausted(policy::CALLS_EXHAUSTED, 0, 0));
    assert_eq!(with(&|l| l.tokens_max = bound), exhausted(policy::TOKENS_EXHAUSTED, 0, 0));
    // One token is enough for a call, and what is left of it not for another.
    assert_eq!(with(&|l| l.tokens_max = bound + 1), exhausted(policy::TOKENS_EXHAUSTED, 1, 1));
    assert_eq!(with(&|l| l.timeout_ms = 0), exhausted(policy::TIMEOUT, 0, 0));
}

#[test]
fn what_an_input_says_stays_text() {
    let (signature, limits) = (direct(), limits(&direct()));
    let mut model = Fake::new(&limits, |_, _| said(r#"{"a": "x"}"#));
    run(&signature, &json!({"q": "{{ 7 * 7 }} {% raw %}"}), &limits, &mut model);
    assert!(model.seen().contains("{{ 7 * 7 }} {% raw %}"));
}

#[test]
fn hostile_answers_are_borne() {
    let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
    let huge = "x".repeat(1 << 20);
    let many = format!(r#"{{"a": [{}1]}}"#, "1,".repeat(20_000));
    for text in [
        "\0\0\0".to_owned(),
        String::new(),
        deep,
        huge,
        many,
        "{\"a\": \"\u{0}".to_owned(),
        r#"{"op":"grep","var":"notes","pattern":"(((("}"#.to_owned(),
    ] {
        for signature in [direct(), rlm()] {
            let limits = limits(&signature);
            let mut model = Fake::new(&limits, |_, _| said(text.clone()));
            let outcome = run(&signature, &notes(), &limits, &mut model);
            assert_eq!(outcome.status, Status::Failed);
            assert!(outcome.trace.to_string().len() < 100_000);
            assert!(!model.seen().contains('\0'));
        }
    }
}

#[test]
fn rlm_finds_a_needle() {
    let signature = rlm();
    let limits = limits(&signature);
    let mut model = Fake::new(&limits, |n, call| match n {
        0 => said(r#"{"op":"grep","var":"notes","pattern":"(?i)vault"}"#),
        1 => said(r#"{"op":"ask","var":"r1","question":"what is the code?"}"#),
        2 => {
            assert!(call.prompt.messages[1].content.contains("401: note 400: the code of the vault is heron-42"));
            assert!(call.prompt.schema.is_none());
            said("heron-42")
        }
        _ => said(r#"{"op":"final","answer":{"a":"heron-42"}}"#),
    });
    let outcome = run(&signature, &notes(), &limits, &mut model);
    assert_eq!((outcome.status, &outcome.output, outcome.calls), (Status::Succeeded, &json!({"a": "heron-42"}), 4));
    let (first, second, third) = (Purpose::Iterate { n: 1 }, Purpose::Iterate { n: 2 }, Purpose::Iterate { n: 3 });
    assert_eq!(model.purposes(), [first, second, Purpose::Sub { n: 1 }, third]);
    // The long input is in no prompt but by its beginning.
    assert!(!model.seen().contains("note 200:") && model.seen().contains("[variable notes: "));
    let iterations = outcome.trace["iterations"].as_array().unwrap();
    assert_eq!(iterations.len(), 3);
    let mut before = hash::of(&json!({"signature_id": signature.id(), "input_hash": hash::of(&notes())}));
    for (at, one) in iterations.iter().enumerate() {
        let state =
            json!({"before": before, "iteration": at + 1, "operation": one["operation"], "result": one["result"]});
        assert_eq!(one["state_hash"], hash::of(&state));
        before = hash::of(&state);
    }
    assert_eq!(outcome.trace["state_hash"], before);
}

#[test]
fn rlm_splits_maps_and_joins() {
    let signature = signature(json!({"strategy": "rlm_lite.v1", "long_inputs": ["notes"], "max_iterations": 8}));
    let limits = limits(&signature);
    let mut model = Fake::new(&limits, |_, call| match call.purpose {
        Purpose::Iterate { n: 1 } => said(r#"{"op":"split","var":"notes","n":3}"#),
        Purpose::Iterate { n: 2 } => said(r#"{"op":"map","vars":["r1"],"question":"the code?"}"#),
        Purpose::Iterate { n: 3 } => said(r#"{"op":"join","vars":["r2"]}"#),
        Purpose::Iterate { n: 4 } => said(r#"{"op":"peek","var":"r3","start":0,"end":9}"#),
        Purpose::Iterate { n: 5 } => said(r#"{"op":"peek","var":"nowhere"}"#),
        Purpose::Sub { .. } if call.prompt.messages[1].content.contains("heron-42") => said("found"),
        Purpose::Sub { .. } => said("nothing"),
        _ => said(r#"{"op":"final","answer":{"a":"ok"}}"#),
    });
    let outcome = run(&signature, &notes(), &limits, &mut model);
    assert_eq!((outcome.status, outcome.calls), (Status::Succeeded, 9));
    assert!(model.seen().contains("nothing\nnothing\nfound"));
    assert!(model.seen().contains("error: there is no variable nowhere"));
}

#[test]
fn rlm_repairs_once_in_a_round() {
    let (signature, limits) = (rlm(), limits(&rlm()));
    let mut model = Fake::new(&limits, |n, _| match n {
        0 => said("let me think"),
        1 => said(r#"{"op":"grep","var":"notes","pattern":"vault"}"#),
        2 => said(r#"{"op":"final","answer":{"b":1}}"#),
        _ => said(r#"{"op":"final","answer":{"a":"x"}}"#),
    });
    let outcome = run(&signature, &notes(), &limits, &mut model);
    assert_eq!((outcome.status, outcome.calls), (Status::Succeeded, 4));
    assert_eq!(model.purposes()[1], Purpose::Repair);

    // Twice no good: the money that was set aside is for the answer.
    let mut model = Fake::new(&limits, |n, _| said(if n < 2 { "?" } else { r#"{"a":"guess"}"# }));
    let outcome = run(&signature, &notes(), &limits, &mut model);
    assert_eq!((outcome.status, code(&outcome), outcome.calls), (Status::Partial, policy::INVALID_OUTPUT, 3));
    assert_eq!((model.purposes()[2], &outcome.output), (Purpose::Answer, &json!({"a": "guess"})));
}

#[test]
fn rlm_sees_that_it_turns_in_a_circle() {
    let (signature, limits) = (rlm(), limits(&rlm()));
    let mut model = Fake::new(&limits, |_, call| match call.purpose {
        // Written otherwise, and the same.
        Purpose::Iterate { n: 1 } => said(r#"{"op":"peek","var":"notes"}"#),
        Purpose::Iterate { .. } => said(r#"{"end":2000,"start":0,"var":"notes","op":"peek"}"#),
        _ => said(r#"{"a":"best"}"#),
    });
    let outcome = run(&signature, &notes(), &limits, &mut model);
    assert_eq!((outcome.status, code(&outcome), outcome.calls), (Status::Partial, policy::NO_PROGRESS, 3));

    // With an answer at hand nothing more is spent.
    let mut model = Fake::new(&limits, |_, _| said(r#"{"op":"peek","var":"notes","answer":{"a":"so far"}}"#));
    let outcome = run(&signature, &notes(), &limits, &mut model);
    assert_eq!((outcome.status, code(&outcome), outcome.calls), (Status::Partial, policy::NO_PROGRESS, 2));
    assert_eq!(outcome.output, json!({"a": "so far"}));
}

#[test]
fn rlm_is_denied_in_the_middle() {
    let (signature, limits) = (rlm(), limits(&rlm()));
    for (first, status) in [
        (r#"{"op":"ask","var":"notes","question":"?"}"#, Status::Denied),
        (r#"{"op":"ask","var":"notes","question":"?","answer":{"a":"so far"}}"#, Status::Partial),
        (r#"{"op":"ask","var":"notes","question":"?","answer":{"b":"not valid"}}"#, Status::Denied),
    ] {
        let mut model = Fake::new(&limits, |n, _| if n == 0 { said(first) } else { denied() });
        let outcome = run(&signature, &notes(), &limits, &mut model);
        // Nobody asks again who was denied.
        assert_eq!((outcome.status, code(&outcome), outcome.calls), (status, policy::BUDGET_EXHAUSTED, 2));
        assert_eq!(outcome.output.is_null(), status == Status::Denied);
    }
}

#[test]
fn rlm_runs_out_of_each_budget_with_an_answer() {
    let signature = rlm();
    let with = |change: &dyn Fn(&mut Limits)| {
        let mut limits = Limits { chars_shown_max: 1_000_000, ..limits(&signature) };
        change(&mut limits);
        let mut n = 0;
        let mut model = Fake::new(&limits, |_, call| match call.purpose {
            Purpose::Answer => said(r#"{"a":"guess"}"#),
            Purpose::Sub { .. } => said("so"),
            _ => {
                n += 1;
                said(format!(r#"{{"op":"map","vars":["notes","notes"],"question":"{n}"}}"#))
            }
        });
        let outcome = run(&signature, &notes(), &limits, &mut model);
        assert!(outcome.error.is_some() && matches!(outcome.status, Status::Partial | Status::Failed));
        let last = model.purposes().last().copied();
        (outcome.status, code(&outcome).to_owned(), outcome.calls, last)
    };
    let partial = |code: &str, calls| (Status::Partial, code.to_owned(), calls, Some(Purpose::Answer));
    // Two rounds of three calls, a third that should have been the answer, and the answer.
    assert_eq!(with(&|_| ()), partial(policy::ITERATIONS_EXHAUSTED, 8));
    assert_eq!(with(&|l| l.iterations_max = 1), partial(policy::ITERATIONS_EXHAUSTED, 2));
    for calls in 1..8 {
        assert_eq!(with(&|l| l.calls_max = calls), partial(policy::CALLS_EXHAUSTED, calls));
    }
    assert_eq!(with(&|l| l.calls_max = 0), (Status::Failed, policy::CALLS_EXHAUSTED.to_owned(), 0, None));
    assert_eq!(with(&|l| l.timeout_ms = 0), (Status::Failed, policy::TIMEOUT.to_owned(), 0, None));
    assert_eq!(with(&|l| l.tokens_max = 100), (Status::Failed, policy::TOKENS_EXHAUSTED.to_owned(), 0, None));
    let some = with(&|l| l.tokens_max = 12_000);
    assert_eq!((some.0, some.1.as_str(), some.3), (Status::Partial, policy::TOKENS_EXHAUSTED, Some(Purpose::Answer)));
}

#[test]
fn time_is_looked_at_before_each_call() {
    struct Slow(u64, Vec<Purpose>);
    impl Model for Slow {
        fn ask(&mut self, call: &Call) -> Result<Said, Stop> {
            self.0 += 60;
            self.1.push(call.purpose);
            said(r#"{"op":"ask","var":"notes","question":"?"}"#)
        }
        fn elapsed_ms(&self) -> u64 {
            self.0
        }
    }
    let limits = Limits { timeout_ms: 120, ..limits(&rlm()) };
    let mut model = Slow(0, Vec::new());
    let outcome = run(&rlm(), &notes(), &limits, &mut model);
    assert_eq!((outcome.status, code(&outcome)), (Status::Failed, policy::TIMEOUT));
    assert_eq!(model.1, [Purpose::Iterate { n: 1 }, Purpose::Sub { n: 1 }]);
}

#[test]
fn no_more_characters_are_shown_than_may_be() {
    let input = json!({"q": "what?", "notes": "§".repeat(7_000)});
    for chars_shown_max in [0, 1, 3, 100, 1_000, 2_999, 10_000, 30_000] {
        let limits = Limits { chars_shown_max, iterations_max: 8, calls_max: 100, ..limits(&rlm()) };
        for is_sub in [false, true] {
            let mut model = Fake::new(&limits, |n, call| match call.purpose {
                Purpose::Iterate { .. } => said("?"),
                Purpose::Repair if is_sub => {
                    said(json!({"op": "map", "vars": ["notes", "notes"], "question": n.to_string()}).to_string())
                }
                Purpose::Repair => said(json!({"op": "peek", "var": "notes", "start": n, "end": 6_000}).to_string()),
                Purpose::Sub { .. } => said("so"),
                Purpose::Answer => said(r#"{"a":"guess"}"#),
            });
            let outcome = run(&rlm(), &input, &limits, &mut model);
            assert_eq!(outcome.status, Status::Partial);
            let seen = model.seen().matches('§').count() as u64;
            assert!(seen <= chars_shown_max, "{seen} of {chars_shown_max}");
            // Answers of sub-calls are variables as well, and are written in other letters.
            let shown = outcome.trace["shown_chars"].as_u64().unwrap();
            assert!(shown <= chars_shown_max && if is_sub { seen <= shown } else { seen == shown });
            assert!(chars_shown_max < 1_000 || seen > chars_shown_max / 4, "{seen} of {chars_shown_max}");
        }
    }
}

fn any_limits() -> impl Strategy<Value = Limits> {
    let tokens = prop_oneof![0..20_000_u64, 0..400_000_u64];
    (1..3_000_u64, 0..12_u64, tokens, 1..=8_u64, prop_oneof![0..500_u64, 0..60_000_u64]).prop_map(
        |(output_tokens, calls_max, tokens_max, iterations_max, chars_shown_max)| Limits {
            output_tokens,
            calls_max,
            tokens_max,
            iterations_max,
            chars_shown_max,
            timeout_ms: 1_000,
            ..limits(&rlm())
        },
    )
}

/// What a model may say, good and bad; none of it holds the letter that is counted.
fn any_answer() -> impl Strategy<Value = String> {
    let var = "notes|r1|r2|r3|r1_1|r2_2|zz";
    prop_oneof![
        (var, 0..5_000_u64)
            .prop_map(|(var, n)| json!({"op": "peek", "var": var, "start": n, "end": n + 3_000}).to_string()),
        (var, "[a-z.]{1,3}|.|\\(").prop_map(|(var, p)| json!({"op": "grep", "var": var, "pattern": p}).to_string()),
        (var, 0..70_u64).prop_map(|(var, n)| json!({"op": "split", "var": var, "n": n}).to_string()),
        (var, "[a-z]{1,9}").prop_map(|(var, q)| json!({"op": "ask", "var": var, "question": q}).to_string()),
        (prop::collection::vec(var, 0..5), "[a-z]{1,9}")
            .prop_map(|(vars, q)| json!({"op": "map", "vars": vars, "question": q}).to_string()),
        prop::collection::vec(var, 1..5).prop_map(|vars| json!({"op": "join", "vars": vars}).to_string()),
        Just(json!({"op": "final", "answer": {"a": "x"}}).to_string()),
        Just(json!({"op": "final", "answer": 7}).to_string()),
        Just(json!({"a": "x"}).to_string()),
        "[a-z \0]{0,40}",
        (1..20_000_usize).prop_map(|n| "\"y\\\0".repeat(n)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn no_call_is_made_that_could_cost_more_than_is_left(
        limits in any_limits(),
        answers in prop::collection::vec((any_answer(), 0..4_u8), 16),
        is_direct: bool,
    ) {
        let signature = if is_direct { direct() } else { rlm() };
        let input = json!({"q": "what?", "notes": "§§§§§§§\n".repeat(1_000)});
        let mut model = Fake::new(&limits, |n, call| {
            let (text, kind) = &answers[n as usize % answers.len()];
            // The most there can be, nothing known, a little, or nothing at all.
            let most = compose(Protocol::Chat, &call.prompt, Structured::JsonSchema).input_tokens_max();
            let usage = match kind {
                0 => Some(Usage { input: most, output: call.prompt.output_tokens, ..Usage::default() }),
                1 => None,
                2 => Some(Usage { input: 3, output: 1, ..Usage::default() }),
                _ => Some(Usage::default()),
            };
            Ok(Said { text: text.clone(), usage, model: None, stop: None })
        });
        let outcome = run(&signature, &input, &limits, &mut model);
        prop_assert_eq!(outcome.calls, model.calls.len() as u64);
        prop_assert_eq!(outcome.trace["calls"].as_array().unwrap().len(), model.calls.len());
        if !is_direct {
            prop_assert!(model.seen().matches('§').count() as u64 <= limits.chars_shown_max);
        }
        match outcome.status {
            Status::Succeeded => prop_assert!(outcome.error.is_none() && signature.check_output(&outcome.output).is_ok()),
            Status::Partial => prop_assert!(outcome.error.is_some() && signature.check_output(&outcome.output).is_ok()),
            Status::Denied | Status::Failed => prop_assert!(outcome.error.is_some() && outcome.output.is_null()),
        }
        let known = outcome.error.as_ref().is_none_or(|stop| policy::reason(&stop.reason_code).is_some());
        prop_assert!(known);
    }
}
