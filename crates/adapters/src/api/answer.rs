//! Reading what a service answers: so much and no more, without the secrets it may send back.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use actum_contract::execution::{Redactor, STDOUT_BYTES_MAX};
use reqwest::Response;
use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};
use serde_json::{Map, Value};

use crate::result::{Problem, Stage};

/// Bytes that are read beyond those that are kept, so that a secret at the edge is seen whole.
const MARGIN_BYTES: usize = 4 << 10;

const BYTES_MAX: usize = STDOUT_BYTES_MAX as usize;

/// An answer as it came.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) content_type: String,
    pub(super) retry_after_ms: Option<u64>,
    pub(super) body: Vec<u8>,
    pub(super) is_cut: bool,
}

impl Answer {
    /// Reads it; what is longer than it may be is left with the service.
    pub(super) async fn read(mut response: Response) -> Result<Self, reqwest::Error> {
        let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok()).map(ToOwned::to_owned);
        let retry_after_ms = header(RETRY_AFTER).and_then(|text| retry_after_ms(&text, SystemTime::now()));
        let content_type = header(CONTENT_TYPE).unwrap_or_default();
        let status = response.status().as_u16();
        let mut body = Vec::new();
        while body.len() <= BYTES_MAX + MARGIN_BYTES
            && let Some(piece) = response.chunk().await?
        {
            body.extend_from_slice(&piece);
        }
        let is_cut = body.len() > BYTES_MAX;
        Ok(Self { status, content_type, retry_after_ms, body, is_cut })
    }

    pub(super) const fn is_good(&self) -> bool {
        self.status >= 200 && self.status < 300
    }

    /// What it says: JSON where it says that it is, else text. With what is wrong with it, if something is.
    pub(super) fn value(&self, redactor: &Redactor) -> (Value, Option<Problem>) {
        if self.body.is_empty() {
            return (Value::Null, None);
        }
        let kind = self.content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        if !(kind.ends_with("/json") || kind.ends_with("+json")) {
            return (self.text(redactor), None);
        }
        if self.is_cut {
            let message = format!("the answer is longer than {BYTES_MAX} bytes and was cut: its JSON cannot be read");
            return (self.text(redactor), Some(Problem::new(Stage::Output, message)));
        }
        match serde_json::from_slice(&self.body) {
            Ok(mut value) => {
                clean(redactor, &mut value);
                (value, None)
            }
            Err(e) => {
                let place = format!("line {} column {}", e.line(), e.column());
                let problem = Problem::at(Stage::Output, place, format!("the answer is no JSON: {e}"));
                (self.text(redactor), Some(problem))
            }
        }
    }

    fn text(&self, redactor: &Redactor) -> Value {
        let mut text = String::from_utf8_lossy(&redactor.redact_values(&self.body).0).into_owned();
        if text.len() > BYTES_MAX {
            let end = (0..=BYTES_MAX).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
            text.truncate(end);
        }
        Value::String(text)
    }
}

/// Takes secrets out of every text in a value.
pub(super) fn clean(redactor: &Redactor, value: &mut Value) {
    match value {
        Value::String(text) => *text = clean_text(redactor, text),
        Value::Array(items) => items.iter_mut().for_each(|item| clean(redactor, item)),
        Value::Object(fields) => {
            let mut cleaned = Map::new();
            for (name, mut field) in std::mem::take(fields) {
                clean(redactor, &mut field);
                cleaned.insert(clean_text(redactor, &name), field);
            }
            *fields = cleaned;
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

pub(super) fn clean_text(redactor: &Redactor, text: &str) -> String {
    String::from_utf8_lossy(&redactor.redact_values(text.as_bytes()).0).into_owned()
}

/// Seconds, or a date of HTTP; a date that has passed is no time at all.
pub(crate) fn retry_after_ms(text: &str, now: SystemTime) -> Option<u64> {
    let text = text.trim();
    if text.bytes().all(|b| b.is_ascii_digit()) && !text.is_empty() {
        return Some(text.parse::<u64>().map_or(u64::MAX, |seconds| seconds.saturating_mul(1_000)));
    }
    let at = UNIX_EPOCH + Duration::from_secs(date(text)?);
    Some(at.duration_since(now).map_or(0, |wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)))
}

/// Seconds since 1970 of `Sun, 06 Nov 1994 08:49:37 GMT`. The two older forms nobody has to send are not read.
fn date(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (_, rest) = text.split_once(", ")?;
    let [day, month, year, time, "GMT"] = rest.split(' ').collect::<Vec<_>>()[..] else { return None };
    let month = MONTHS.iter().position(|name| *name == month)? as u64 + 1;
    let (day, year): (u64, u64) = (day.parse().ok()?, year.parse().ok()?);
    let [hour, minute, second] = time.split(':').map(|part| part.parse().ok()).collect::<Option<Vec<u64>>>()?[..]
    else {
        return None;
    };
    if !(1..=31).contains(&day) || !(1970..=9999).contains(&year) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    // Years that begin in March have their leap day at the end.
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = 365 * year + year / 4 - year / 100 + year / 400 + day_of_year;
    Some((days.checked_sub(719_468)?) * 86_400 + hour * 3_600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn dates_of_http() {
        for (text, seconds) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
            ("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_777),
            ("Tue, 29 Feb 2000 12:00:00 GMT", 951_825_600),
            ("Fri, 31 Dec 2027 23:59:59 GMT", 1_830_297_599),
        ] {
            assert_eq!(date(text), Some(seconds), "{text}");
        }
        for text in ["", "soon", "Sun, 06 Nov 1994 08:49:37", "Sun, 99 Nov 1994 08:49:37 GMT", "x, 1 Jan 1 0:0:0 GMT"] {
            assert_eq!(date(text), None, "{text}");
        }
        let now = UNIX_EPOCH + Duration::from_secs(784_111_770);
        assert_eq!(retry_after_ms("Sun, 06 Nov 1994 08:49:37 GMT", now), Some(7_000));
        assert_eq!(retry_after_ms("Thu, 01 Jan 1970 00:00:00 GMT", now), Some(0));
        assert_eq!(retry_after_ms(" 3 ", now), Some(3_000));
        assert_eq!(retry_after_ms("99999999999999999999999", now), Some(u64::MAX));
        assert_eq!(retry_after_ms("-1", now), None);
    }

    #[test]
    fn secrets_are_taken_out_of_names_and_values() {
        let redactor = Redactor::new(["hunter22"]);
        let mut value = json!({"a": ["x hunter22 y"], "hunter22": 1});
        clean(&redactor, &mut value);
        assert_eq!(value, json!({"a": ["x [REDACTED] y"], "[REDACTED]": 1}));
        let mut body = vec![b'x'; BYTES_MAX - 4];
        body.extend_from_slice(b"hunter22 and more");
        let answer =
            Answer { status: 200, content_type: "text/plain".into(), retry_after_ms: None, body, is_cut: true };
        let (Value::String(text), None) = answer.value(&redactor) else { panic!("no text") };
        assert!(text.len() <= BYTES_MAX && text.ends_with("x[RED"), "nothing of it is left at the edge");
    }
}
