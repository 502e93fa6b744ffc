//! Waiting for a run over MCP: it is looked at again and again, less and less often, on threads that others use in between.
//! Between two looks a wait holds no thread. Called by `offer`; decides nothing about a run.

use std::time::Duration;

use actum_api::error;
use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::Peer;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep};

use super::Host;
use super::rows::Row;
use crate::api::Given;
use crate::bridge::Refused;
use crate::fields::bad;

/// How long a wait is, unless the caller says otherwise. Shorter than the patience of clients for an answer.
pub(crate) const WAIT_SECONDS: u64 = 20;
pub(crate) const WAIT_SECONDS_MAX: u64 = 600;
/// Waits at once: of all callers together, of one tenant, and of one token.
pub(crate) const WAITS_MAX: usize = 256;
pub(crate) const TENANT_WAITS_MAX: usize = 192;
pub(crate) const TOKEN_WAITS_MAX: usize = 64;
/// What somebody who waits has said to ask for it. It is held for as long as he waits, so it has to be little.
const ASKED_BYTES_MAX: usize = 16 << 10;
/// Between two looks: from the first to the last.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Nothing more happens by itself. `planned` is left to somebody outside.
const OVER: [&str; 4] = ["succeeded", "failed", "cancelled", "planned"];
/// What is told of a run, of all that its status says.
const TOLD: [&str; 11] = [
    "run_id",
    "item_id",
    "agent_id",
    "state",
    "attempt",
    "progress",
    "result",
    "error",
    "warnings",
    "waits_for",
    "spend",
];

/// To whom progress is told.
pub(crate) struct Listener {
    pub peer: Peer<RoleServer>,
    pub token: Option<ProgressToken>,
}

pub(crate) struct Wait {
    run: String,
    cursor: u64,
    seconds: u64,
}

impl Wait {
    pub(crate) fn read(arguments: &Map<String, Value>) -> Result<Self, Refused> {
        let run = match arguments.get("run") {
            Some(Value::String(run)) if !run.is_empty() => run.clone(),
            _ => return Err(bad("`run` must be a run_id")),
        };
        let number = |name: &str, default: u64, max: u64| match arguments.get(name) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => {
                // Some models write numbers as text.
                let number = value.as_u64().or_else(|| value.as_str()?.parse().ok());
                let wrong = || bad(&format!("`{name}` must be a whole number from 0 to {max}"));
                number.filter(|number| *number <= max).ok_or_else(wrong)
            }
        };
        Ok(Self {
            run,
            cursor: number("cursor", 0, u64::MAX)?,
            seconds: number("wait_seconds", WAIT_SECONDS, WAIT_SECONDS_MAX)?,
        })
    }

    /// Until the run is over, the time is up, or we end.
    pub(crate) async fn wait(self, host: &Host, row: &'static Row, listener: &Listener) -> Result<Value, Refused> {
        if host.asked_bytes > ASKED_BYTES_MAX {
            return Err(bad(&format!("a wait is asked for in {ASKED_BYTES_MAX} bytes at most")).with_status(413));
        }
        let busy = || {
            let hint = Some("Ask for its status instead.");
            Refused::named(error::TOO_MANY_REQUESTS, "too many callers wait for runs already", &Value::Null, hint)
        };
        let _place = host.shared.waits.try_take(Some(&host.whose)).ok_or_else(busy)?;
        let until = Instant::now() + Duration::from_secs(self.seconds);
        let (mut pause, mut seen) = (PAUSE, None);
        loop {
            let status = match host.look(row.route, self.given()).await {
                Ok(answer) => Some(super::value_of(answer)?),
                // All threads are taken for a moment; whoever waits can wait a little longer.
                Err(refused) if refused.status == 503 && Instant::now() < until => None,
                Err(refused) => return Err(refused),
            };
            if let Some(status) = status {
                let (told, events) = self.told(&status);
                let is_last = told["is_over"] == true || Instant::now() >= until || host.is_ending();
                if is_last {
                    return Ok(told);
                }
                if seen != Some(events) {
                    (seen, pause) = (Some(events), PAUSE);
                    listener.tell(events, &status).await;
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            tokio::select! {
                () = sleep(pause.min(left)) => pause = (pause * 3 / 2).min(PAUSE_MAX),
                () = host.ending() => {}
            }
        }
    }

    fn given(&self) -> Given {
        let path = [("run".to_owned(), self.run.clone())].into();
        Given { path, request_id: "watch".to_owned(), ..Given::default() }
    }

    /// What is told of a status, and how many events there are.
    fn told(&self, status: &Value) -> (Value, u64) {
        let mut told = Map::new();
        for name in TOLD {
            told.extend(status.get(name).map(|value| (name.to_owned(), value.clone())));
        }
        let events = status["events"].as_array().map(Vec::as_slice).unwrap_or_default();
        let number = events.len() as u64;
        let skipped = usize::try_from(self.cursor).unwrap_or(usize::MAX).min(events.len());
        let is_over = status["state"].as_str().is_some_and(|state| OVER.contains(&state));
        told.insert("events".to_owned(), json!(events[skipped..]));
        told.insert("cursor".to_owned(), json!(number));
        told.insert("is_over".to_owned(), json!(is_over));
        (Value::Object(told), number)
    }
}

impl Listener {
    async fn tell(&self, events: u64, status: &Value) {
        let Some(token) = self.token.clone() else { return };
        let progress = &status["progress"];
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let message = match progress.is_object() {
            true => format!(
                "{}, {} of {} steps, {} files",
                word(&progress["phase"]),
                progress["steps_done"],
                progress["steps"],
                progress["files"]
            ),
            false => word(&status["state"]),
        };
        // It has to grow each time, and nobody knows of how much.
        let note = ProgressNotificationParam::new(token, events as f64).with_message(message);
        // Whoever is gone is found out when the request is cancelled.
        self.peer.notify_progress(note).await.unwrap_or_default();
    }
}
