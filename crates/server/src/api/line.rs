//! One line for each request that is over: for a log. Never holds a token, a query, or a path as it was asked for.

use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use tokio::time::Instant;

use super::Caller;

/// The status in the line of a caller who left before there was an answer.
const LEFT: u16 = 499;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// `-` for one that nobody serves.
    pub method: &'static str,
    /// As in the table of routes, never as asked for; `-` for none of them.
    pub route: &'static str,
    /// 499: the caller left before there was an answer.
    pub status: u16,
    pub ms: u64,
    pub tenant: Option<String>,
    /// The token's id.
    pub token: Option<String>,
    pub request_id: String,
    /// The same as `ms`, for who counts finer.
    pub took: Duration,
    /// `traceparent`, as it came.
    pub trace: Option<String>,
}

pub type Log = Arc<dyn Fn(&Line) + Send + Sync>;

/// A line in the making; said when it is dropped, so also for those who leave.
pub(crate) struct Record {
    log: Option<Log>,
    begun: Instant,
    line: Line,
}

impl Record {
    pub(crate) fn begin(log: Option<Log>, method: &Method, request_id: &str) -> Self {
        let line = Line {
            method: word(method),
            route: "-",
            status: LEFT,
            ms: 0,
            tenant: None,
            token: None,
            request_id: request_id.to_owned(),
            took: Duration::ZERO,
            trace: None,
        };
        Self { log, begun: Instant::now(), line }
    }

    pub(crate) fn found(&mut self, route: &'static str) {
        self.line.route = route;
    }

    pub(crate) fn traced(&mut self, trace: Option<&str>) {
        self.line.trace = trace.map(ToOwned::to_owned);
    }

    pub(crate) fn entered(&mut self, caller: &Caller) {
        self.line.tenant = Some(caller.tenant.clone());
        self.line.token = Some(caller.token.clone());
    }

    pub(crate) fn answered(&mut self, status: u16) {
        self.line.status = status;
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if let Some(log) = &self.log {
            self.line.took = self.begun.elapsed();
            self.line.ms = millis(self.line.took);
            log(&self.line);
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A method is any word a caller likes; those in a log are ours.
fn word(method: &Method) -> &'static str {
    ["GET", "HEAD", "POST", "DELETE", "PUT", "PATCH", "OPTIONS", "TRACE", "CONNECT"]
        .into_iter()
        .find(|word| *word == method.as_str())
        .unwrap_or("-")
}
