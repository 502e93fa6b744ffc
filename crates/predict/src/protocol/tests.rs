//! All four protocols with what real providers send, and with what nobody should.

mod answers;
mod bounds;
mod masks;
mod questions;
mod streams;

use serde_json::{Value, json};

use super::*;

pub(super) fn ask(protocol: Protocol, stream: bool) -> Question {
    let mut question = read(protocol, body(protocol, stream), stream).unwrap();
    question.limit_output(1_000, "max_tokens");
    question
}

pub(super) fn read(protocol: Protocol, body: Value, stream: bool) -> Result<Question, String> {
    let model = (protocol == Protocol::Generate).then_some("m-1");
    Question::read(protocol, model, stream && model.is_some(), body.to_string().as_bytes())
}

/// The smallest question of each.
pub(super) fn body(protocol: Protocol, stream: bool) -> Value {
    let messages = json!([{"role": "user", "content": "hello"}]);
    match protocol {
        Protocol::Chat | Protocol::Messages => json!({"model": "m-1", "messages": messages, "stream": stream}),
        Protocol::Responses => json!({"model": "m-1", "input": "hello", "stream": stream}),
        Protocol::Generate => json!({"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}),
    }
}
