//! The line to a model: by way of the till, kept in the run's book; or, in a repetition, answered from it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use actum_kernel::Denial;
use actum_predict::policy;
use actum_predict::protocol::{Question, Trouble, error};
use actum_server::Teller;
use serde_json::{Value, json};

use super::till::{About, Asked, Till};
use crate::run::book::{Book, Words};

const JSON: &str = "application/json";

#[derive(Clone)]
pub(crate) struct Line {
    /// None when a run is repeated: then everything is on record.
    pub till: Option<Arc<Till>>,
    /// What is kept of it, if it is a run.
    pub book: Option<Arc<Book>>,
}

/// What whoever asked is told.
#[derive(Debug)]
pub(crate) struct Reply {
    pub status: u16,
    pub content_type: String,
    pub body: Vec<u8>,
    /// Why there is no answer, or only a part of one.
    pub trouble: Option<(Trouble, Denial)>,
    pub is_denied: bool,
    /// Whether he has heard it already.
    pub is_told: bool,
    /// What the till has to say of it; nothing in a repetition.
    pub asked: Option<Asked>,
}

/// How long somebody waits for an answer: until a time, or until he is stopped.
#[derive(Debug, Clone)]
pub(crate) struct Within {
    pub until: Instant,
    pub stopped: Arc<AtomicBool>,
}

/// How often it is looked whether whoever asks has to stop.
const LOOK_EVERY: Duration = Duration::from_millis(50);

impl Within {
    fn is_over(&self) -> bool {
        self.stopped.load(Ordering::SeqCst) || Instant::now() >= self.until
    }
}

impl Line {
    /// Asks, and waits no longer than that. What was cut off is settled by `Till::abandon`.
    pub(crate) async fn ask_within(&self, question: Question, about: &About, within: &Within) -> Reply {
        let mut work = Box::pin(self.ask(question.clone(), about, &[], None));
        while !within.is_over() {
            if let Ok(reply) = tokio::time::timeout(LOOK_EVERY, &mut work).await {
                return reply;
            }
        }
        drop(work);
        let message = "the time for the answer is over".to_owned();
        let denial = Denial { reason_code: policy::TIMEOUT.to_owned(), message };
        if let Some(book) = &self.book {
            let answer = json!({"status": 0, "content_type": JSON, "body": ""});
            let (input, words) = (input_of(&question), Words::of(&question));
            let mut kept = json!({
                "input": input, "exact": words.exact, "kind": words.kind, "answer": answer, "trouble": denial,
            });
            if words.is_aside {
                kept["aside"] = json!(true);
            }
            book.note(usize::MAX, &kept);
        }
        Reply { is_denied: false, ..denied(&question, Trouble::Upstream, denial) }
    }

    pub(crate) async fn ask(
        &self,
        question: Question,
        about: &About,
        headers: &[(String, String)],
        teller: Option<&mut Teller>,
    ) -> Reply {
        let (input, words) = (input_of(&question), Words::of(&question));
        if let Some((book, denial)) = self.book.as_ref().and_then(|book| Some((book, book.denied()?))) {
            // It was told once already, and asks on.
            book.end();
            return denied(&question, Trouble::BudgetExhausted, denial);
        }
        // Whoever has a till asks, also in a repetition.
        if let Some(book) = self.book.as_ref().filter(|book| book.recorded().is_some() && self.till.is_none()) {
            return repeat(book, &question, &input, &words);
        }
        let Some(till) = &self.till else {
            let message = "no model provider is available during replay".to_owned();
            return denied(
                &question,
                Trouble::NotRecorded,
                Denial { reason_code: policy::PROVIDER_ERROR.into(), message },
            );
        };
        let asked = till.ask(question.clone(), about, headers, teller).await;
        let mut reply = match &asked.trouble {
            // Half an answer is none, unless it was heard already.
            Some((trouble, denial)) if !asked.is_told => denied(&question, *trouble, denial.clone()),
            trouble => Reply {
                status: asked.status,
                content_type: asked.content_type.clone(),
                body: asked.body.clone(),
                trouble: trouble.clone(),
                is_denied: false,
                is_told: asked.is_told,
                asked: None,
            },
        };
        reply.is_denied = asked.is_denied;
        if let Some(book) = &self.book {
            note(book, &input, &words, &asked, &reply);
        }
        reply.asked = Some(asked);
        reply
    }
}

/// By which a question is found again: by what stays the same each time.
fn input_of(question: &Question) -> Value {
    json!({"model": {
        "protocol": question.protocol.word(), "model": question.model, "key": question.masked_key(),
    }})
}

/// A no in the words of the provider.
fn denied(question: &Question, trouble: Trouble, denial: Denial) -> Reply {
    let (status, value) = error(question.protocol, trouble, Some(&denial.reason_code), &denial.message);
    Reply {
        status,
        content_type: JSON.to_owned(),
        body: value.to_string().into_bytes(),
        trouble: Some((trouble, denial)),
        is_denied: true,
        is_told: false,
        asked: None,
    }
}

/// Keeps an exchange, so that it can be repeated.
fn note(book: &Book, input: &Value, words: &Words, asked: &Asked, reply: &Reply) {
    let mut answer = json!({"status": reply.status, "content_type": reply.content_type});
    match std::str::from_utf8(&reply.body) {
        Ok(text) => answer["body"] = json!(text),
        Err(_) => answer["hex"] = json!(hex::encode(&reply.body)),
    }
    let mut kept = json!({
        "input": input, "exact": words.exact, "kind": words.kind, "answer": answer, "receipt": asked.receipt,
        "spent": asked.spent,
    });
    if words.is_aside {
        kept["aside"] = json!(true);
    }
    if let Some((_, denial)) = &asked.trouble {
        kept["trouble"] = json!(denial);
        // A model without a price is refused, and the agent may take another one. Every other no is the end.
        if asked.is_denied && denial.reason_code != policy::UNPRICED {
            kept["denied"] = json!(true);
            book.deny(denial.clone());
        }
    }
    book.note(usize::MAX, &kept);
}

fn repeat(book: &Book, question: &Question, input: &Value, words: &Words) -> Reply {
    let Some((place, kept)) = book.recall_model(input, words) else {
        let message = book.wonder_at_model(input, words).message;
        return denied(question, Trouble::NotRecorded, Denial { reason_code: policy::PROVIDER_ERROR.into(), message });
    };
    let trouble = serde_json::from_value::<Denial>(kept["trouble"].clone()).ok();
    let is_denied = kept["denied"] == true;
    if let Some(denial) = trouble.clone().filter(|_| is_denied) {
        book.deny(denial);
    }
    book.note(place, &kept);
    let answer = &kept["answer"];
    let body = match answer["hex"].as_str() {
        Some(text) => hex::decode(text).unwrap_or_default(),
        None => answer["body"].as_str().unwrap_or_default().as_bytes().to_vec(),
    };
    let status = answer["status"].as_u64().and_then(|status| u16::try_from(status).ok()).unwrap_or(502);
    Reply {
        status,
        content_type: answer["content_type"].as_str().unwrap_or(JSON).to_owned(),
        body,
        trouble: trouble.map(|denial| (Trouble::Upstream, denial)),
        is_denied,
        is_told: false,
        asked: None,
    }
}
