//! What needs a real model, which answers on loopback. Built and run by `cargo xtask test --model` only, never with the
//! other tests.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;

use actum_testkit::model;
use actum_testkit::program::Program;
use serde_json::{Value, json};

/// Asks the model itself, with nothing of ours between.
fn ask(path: &str, body: &Value) -> Value {
    let url = model::url();
    let address = url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let (body, kind) = (body.to_string(), "Content-Type: application/json\r\nConnection: close");
    // HTTP/1.0, so that the answer comes in one piece and its end is that of the connection.
    write!(stream, "POST {path} HTTP/1.0\r\nHost: {address}\r\n{kind}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.split(' ').nth(1) == Some("200"), "{answer}");
    serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {answer}"))
}

#[test]
fn model_keeps_to_a_schema() {
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["sentiment"],
        "properties": {"sentiment": {"enum": ["positive", "negative"]}},
    });
    let asked = |text: &str| {
        let question = json!({
            "model": "smollm2", "temperature": 0, "max_tokens": 32,
            "messages": [{"role": "user", "content": format!("Is this positive or negative? {text}")}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "sentiment", "strict": true, "schema": schema}},
        });
        let answer = ask("/v1/chat/completions", &question);
        let used = |name: &str| answer["usage"][name].as_u64().unwrap();
        assert!(used("prompt_tokens") > 0 && used("completion_tokens") > 0, "{answer}");
        serde_json::from_str::<Value>(answer["choices"][0]["message"]["content"].as_str().unwrap()).unwrap()
    };
    for text in ["I love this wonderful film.", "This is awful, I hate it."] {
        let said = asked(text);
        let word = said["sentiment"].as_str().unwrap();
        assert!(["positive", "negative"].contains(&word), "{said}");
        assert_eq!(asked(text), said, "the same question has the same answer");
    }
}

/// A signature, end to end: asked by actum, held to its schema by the model, receipted.
#[test]
fn model_answers_a_signature() {
    let actum = Program::new(env!("CARGO_BIN_EXE_actum"));
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/predict/sentiment.yaml");
    actum.file("sentiment.yaml", std::fs::read(example).unwrap());
    actum.file(
        "actum.toml",
        format!(
            "[providers.local]\ntype = \"openai\"\nbase_url = \"{}/v1\"\nmodels = [\"smollm2\"]\n\
             [prices.smollm2]\ninput = 1000\noutput = 2000\n",
            model::url()
        ),
    );
    actum.run(&["signature", "add", "sentiment.yaml"]).ok();
    actum.run(&["spend", "authorize", "--max-total", "1usd"]).ok();
    for (text, expected) in [("I love this wonderful film.", "positive"), ("This is awful, I hate it.", "negative")] {
        let param = format!("text={text}");
        let ended = actum.run(&["predict", "examples/Sentiment.v1", "--param", &param, "--json"]);
        let told = ended.json();
        assert_eq!((ended.code, &told["output"]["sentiment"]), (0, &json!(expected)), "{told}");
        let budget = &told["budget"];
        let tokens = |name: &str| budget[name].as_u64().unwrap();
        let cost = (tokens("input_tokens") * 1_000 + tokens("output_tokens") * 2_000).div_ceil(1_000_000);
        assert_eq!(tokens("spent"), cost, "{budget}");
    }
}
