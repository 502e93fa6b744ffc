//! The gateway: models for whoever asks by his provider's own protocol, be it an agent in its cell or a program outside.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use actum_predict::protocol::{NO_RETRY, Protocol, Question, Route, Trouble, error, error_event, models, route};
use actum_predict::{Way, signature};
use actum_server::models::Flaw;
use actum_server::{Asked, Head, Models, Teller};
use serde_json::{Value, json};

use super::line::Line;
use super::till::{About, Till};
use crate::failure::Failure;
use crate::run::book::{Book, MODELS};
use crate::workspace::new_id;

/// What a count of tokens is made of; it is for the caller's own use, nothing is paid by it.
const COUNT_BYTES_PER_TOKEN: usize = 3;

pub(super) const EVENTS: &str = "text/event-stream";

/// Answers for models.
pub(crate) struct Gateway {
    line: Line,
    /// How each protocol's questions are called in receipts.
    about: Mutex<Vec<(Protocol, About)>>,
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway").finish_non_exhaustive()
    }
}

/// An answer that is whole.
struct Whole {
    status: u16,
    content_type: String,
    body: Vec<u8>,
    /// What clients understand of asking again.
    headers: Vec<(&'static str, String)>,
}

impl Whole {
    fn json(status: u16, value: &Value) -> Self {
        Self {
            status,
            content_type: "application/json".to_owned(),
            body: value.to_string().into_bytes(),
            headers: Vec::new(),
        }
    }
}

impl Gateway {
    /// Without a till everything is on record in the book.
    pub(crate) fn new(till: Option<Arc<Till>>, book: Option<Arc<Book>>) -> Self {
        Self { line: Line { till, book }, about: Mutex::default() }
    }

    /// Nobody asks any more: what was cut off is settled as far as it can be.
    pub(crate) fn close(&self) {
        if let Some(till) = &self.line.till {
            till.hang_up();
            // What cannot be written down now is found by its deadline.
            till.counter().waiter.wait(Box::pin(till.abandon(None))).unwrap_or_default();
        }
    }

    async fn answer(&self, heard: Asked, teller: &mut Teller) -> Option<Whole> {
        let refused = |protocol, trouble, message: &str| {
            let (status, value) = error(protocol, trouble, None, message);
            Some(Whole { headers: hint(trouble), ..Whole::json(status, &value) })
        };
        let Some(route) = route(&heard.method, &heard.path) else {
            let protocol = if heard.path.starts_with("/v1beta") { Protocol::Generate } else { Protocol::Chat };
            return refused(protocol, Trouble::NotFound, "there is nothing here");
        };
        let protocol = match &route {
            Route::Ask { protocol, .. } | Route::Count { protocol } => *protocol,
            Route::Models { gemini: true } => Protocol::Generate,
            Route::Models { gemini: false } => Protocol::Chat,
        };
        match heard.flaw {
            _ if !heard.is_allowed => {
                return refused(protocol, Trouble::Unauthorized, "the key is not the one given out");
            }
            Some(Flaw::TooLarge) => return refused(protocol, Trouble::TooLarge, "the question is too large"),
            Some(Flaw::TooSlow | Flaw::Elsewhere) => {
                return refused(protocol, Trouble::Invalid, "the question did not arrive whole");
            }
            None => {}
        }
        match route {
            Route::Models { gemini } => match self.models() {
                Ok(names) => Some(Whole::json(200, &models(gemini, &names))),
                Err(failure) => refused(protocol, Trouble::NotRecorded, &failure.message),
            },
            Route::Count { protocol } => {
                let tokens = heard.body.len().div_ceil(COUNT_BYTES_PER_TOKEN);
                let name = if protocol == Protocol::Generate { "totalTokens" } else { "input_tokens" };
                Some(Whole::json(200, &json!({ name: tokens })))
            }
            Route::Ask { protocol, model, stream } => {
                match Question::read(protocol, model.as_deref(), stream, &heard.body) {
                    Ok(mut question) => {
                        if stream && !heard.query.split('&').any(|pair| pair == "alt=sse") {
                            question.stream_as_array();
                        }
                        self.ask(question, &heard, teller).await
                    }
                    Err(why) => refused(protocol, Trouble::Invalid, &why),
                }
            }
        }
    }

    /// The models there are; in a repetition, those there were.
    fn models(&self) -> Result<Vec<String>, Failure> {
        let names = || self.line.till.as_ref().map(|till| till.counter().models()).unwrap_or_default();
        let Some(book) = &self.line.book else { return Ok(names()) };
        let told = book.look(&json!({ MODELS: true }), || Ok(json!(names())))?;
        Ok(serde_json::from_value(told).unwrap_or_default())
    }

    async fn ask(&self, question: Question, heard: &Asked, teller: &mut Teller) -> Option<Whole> {
        let protocol = question.protocol;
        let reply = self.line.ask(question, &self.about(protocol), &heard.headers, Some(teller)).await;
        // A stream that broke off ends with an error, then as in a repetition.
        let is_begun = reply.is_told || (200..300).contains(&reply.status);
        let headers = reply.trouble.as_ref().map(|(trouble, _)| hint(*trouble)).unwrap_or_default();
        let event = reply
            .trouble
            .filter(|_| is_begun)
            .map(|(trouble, denial)| error_event(protocol, trouble, Some(&denial.reason_code), &denial.message));
        if reply.is_told {
            teller.tell(event.unwrap_or_default().into()).await;
            return None;
        }
        let body = [reply.body, event.unwrap_or_default()].concat();
        Some(Whole { status: reply.status, content_type: reply.content_type, body, headers })
    }

    fn about(&self, protocol: Protocol) -> About {
        let mut known = self.about.lock().unwrap_or_else(PoisonError::into_inner);
        let made = match known.iter().find(|(of, _)| *of == protocol) {
            Some((_, about)) => about.clone(),
            None => {
                let made = About::new(&Way::catalogue(signature::gateway(protocol.word())));
                known.push((protocol, made.clone()));
                made
            }
        };
        About { prediction: new_id(), ..made }
    }
}

/// Clients ask again whatever the status is 429, unless they are told that it is of no use.
fn hint(trouble: Trouble) -> Vec<(&'static str, String)> {
    let (name, value) = NO_RETRY;
    if trouble.is_passing() { Vec::new() } else { vec![(name, value.to_owned())] }
}

impl Models for Gateway {
    fn ask(self: Arc<Self>, asked: Asked, mut teller: Teller) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            if let Some(whole) = self.answer(asked, &mut teller).await {
                let is_stream = whole.content_type.starts_with(EVENTS);
                let head = Head { status: whole.status, content_type: whole.content_type, headers: whole.headers };
                if is_stream {
                    // What came in pieces comes in pieces again.
                    teller.begin(head);
                    teller.tell(whole.body.into()).await;
                } else {
                    teller.whole(head, whole.body.into()).await;
                }
            }
        })
    }
}
