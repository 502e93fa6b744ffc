//! The line to a model: by way of the till, kept in the run's book; or, in a repetition, answered from it.

use std::sync::Arc;

use actum_kernel::Denial;
use actum_predict::policy;
use actum_predict::protocol::{Question, Trouble, error};
use actum_server::Teller;
use serde_json::{Value, json};

use super::till::{About, Asked, Till};
use crate::run::book::Book;

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

impl Line {
    pub(crate) async fn ask(
        &self,
        question: Question,
        about: &About,
        headers: &[(String, String)],
        teller: Option<&mut Teller>,
    ) -> Reply {
        let input = json!({"model": {
            "protocol": question.protocol.word(), "model": question.model, "key": question.masked_key(),
        }});
        let exact = question.exact_key();
        if let Some((book, denial)) = self.book.as_ref().and_then(|book| Some((book, book.denied()?))) {
            // It was told once already, and asks on.
            book.end();
            return denied(&question, Trouble::BudgetExhausted, denial);
        }
        if let Some(book) = self.book.as_ref().filter(|book| book.recorded().is_some()) {
            return repeat(book, &question, &input, &exact);
        }
        let Some(till) = &self.till else {
            let message = "nobody can be asked here".to_owned();
            return denied(&question, Trouble::NotRecorded, Denial { reason_code: PROVIDER.into(), message });
        };
        let asked = till.ask(question.clone(), about, headers, teller).await;
        let mut reply = match &asked.trouble {
            Some((trouble, denial)) if !asked.is_told && asked.body.is_empty() => {
                denied(&question, *trouble, denial.clone())
            }
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
            note(book, &input, &exact, &asked, &reply);
        }
        reply.asked = Some(asked);
        reply
    }
}

const PROVIDER: &str = "comms_failed.provider_error";

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
fn note(book: &Book, input: &Value, exact: &str, asked: &Asked, reply: &Reply) {
    let mut answer = json!({"status": reply.status, "content_type": reply.content_type});
    match std::str::from_utf8(&reply.body) {
        Ok(text) => answer["body"] = json!(text),
        Err(_) => answer["hex"] = json!(hex::encode(&reply.body)),
    }
    let mut kept =
        json!({"input": input, "exact": exact, "answer": answer, "receipt": asked.receipt, "spent": asked.spent});
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

fn repeat(book: &Book, question: &Question, input: &Value, exact: &str) -> Reply {
    let Some((place, kept)) = book.recall_model(input, exact) else {
        let message = book.wonder(input).message;
        return denied(question, Trouble::NotRecorded, Denial { reason_code: PROVIDER.into(), message });
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
