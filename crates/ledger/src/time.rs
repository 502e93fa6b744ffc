//! RFC 3339 timestamps, read strictly and compared as instants.

use jiff::Timestamp;

/// Why a text is not a timestamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadTime {
    #[error("must be an RFC 3339 timestamp with an offset, such as 2025-01-19T10:15:30.000Z")]
    Form,
    #[error("must name a day and a time that exist")]
    Value,
    #[error("must lie between the years 1700 and 2200")]
    Range,
}

/// Reads `YYYY-MM-DDTHH:MM:SS[.fraction](Z|±HH:MM)`. ISO 8601 forms beyond that, leap seconds and fractions finer
/// than a nanosecond are refused: they would be rounded, and two producers could disagree about the instant.
pub fn parse(text: &str) -> Result<Timestamp, BadTime> {
    if !has_form(text.as_bytes()) {
        return Err(BadTime::Form);
    }
    if &text[17..19] == "60" {
        return Err(BadTime::Value);
    }
    let at: Timestamp = text.parse().map_err(|_| BadTime::Value)?;
    match at.as_second() {
        -8_520_336_000..7_258_118_400 => Ok(at),
        _ => Err(BadTime::Range),
    }
}

fn has_form(text: &[u8]) -> bool {
    const HEAD: &[u8] = b"dddd-dd-ddTdd:dd:dd";
    let matches = |pattern: &[u8], text: &[u8]| {
        pattern.len() == text.len()
            && pattern.iter().zip(text).all(|(p, t)| match p {
                b'd' => t.is_ascii_digit(),
                b's' => matches!(t, b'+' | b'-'),
                p => p.eq_ignore_ascii_case(t),
            })
    };
    let Some((head, mut rest)) = text.split_at_checked(HEAD.len()) else { return false };
    if let Some(fraction) = rest.strip_prefix(b".") {
        let digits = fraction.iter().take_while(|b| b.is_ascii_digit()).count();
        if !(1..=9).contains(&digits) {
            return false;
        }
        rest = &fraction[digits..];
    }
    matches(HEAD, head) && (matches(b"Z", rest) || matches(b"sdd:dd", rest))
}

/// A time of the store's own, with the text that a whole batch of entries shares.
#[derive(Debug, Clone)]
pub struct Moment {
    pub at: Timestamp,
    pub text: String,
}

impl Moment {
    /// The time as the text can hold it: what is kept beside the text must be the same instant.
    pub fn new(at: Timestamp) -> Self {
        let at = Timestamp::from_microsecond(at.as_microsecond()).unwrap_or(at);
        Self { at, text: format(at) }
    }
}

/// The text the store writes for its own times: UTC, microseconds.
pub fn format(at: Timestamp) -> String {
    format!("{at:.6}")
}

/// Nanoseconds since 1970, as stores keep instants. The range that `parse` allows fits.
pub fn nanoseconds(at: Timestamp) -> i64 {
    i64::try_from(at.as_nanosecond()).unwrap_or(i64::MAX)
}

pub fn from_microseconds(us: i64) -> Timestamp {
    Timestamp::from_microsecond(us).unwrap_or(Timestamp::MAX)
}

pub fn from_nanoseconds(ns: i64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(ns)).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strict_forms() {
        for good in [
            "2025-01-19T10:15:30.000Z",
            "2025-01-19T10:15:30Z",
            "2025-01-19T10:15:30+02:00",
            "2025-01-19t10:15:30.123456789-00:00",
            "2024-02-29T00:00:00Z",
        ] {
            assert!(parse(good).is_ok(), "{good}");
        }
        for (bad, why) in [
            ("2025-01-19", BadTime::Form),
            ("2025-01-19T10:15:30", BadTime::Form),
            ("2025-01-19 10:15:30Z", BadTime::Form),
            ("20250119T101530Z", BadTime::Form),
            ("2025-01-19T10:15Z", BadTime::Form),
            ("2025-01-19T10:15:30+02", BadTime::Form),
            ("2025-01-19T10:15:30+0200", BadTime::Form),
            ("2025-01-19T10:15:30.Z", BadTime::Form),
            ("2025-01-19T10:15:30,5Z", BadTime::Form),
            ("2025-01-19T10:15:30.1234567891Z", BadTime::Form),
            ("2025-01-19T10:15:30Z[UTC]", BadTime::Form),
            (" 2025-01-19T10:15:30Z", BadTime::Form),
            ("２025-01-19T10:15:30Z", BadTime::Form),
            ("", BadTime::Form),
            ("2025-02-29T00:00:00Z", BadTime::Value),
            ("2025-13-01T00:00:00Z", BadTime::Value),
            ("2025-01-01T24:00:00Z", BadTime::Value),
            ("2016-12-31T23:59:60Z", BadTime::Value),
            ("0001-01-01T00:00:00Z", BadTime::Range),
        ] {
            assert_eq!(parse(bad), Err(why), "{bad}");
        }
    }

    #[test]
    fn instants_compare_across_offsets() {
        assert_eq!(parse("2025-01-19T12:00:00+02:00").unwrap(), parse("2025-01-19T10:00:00Z").unwrap());
        assert!(parse("2025-01-19T10:00:00.000000001Z").unwrap() > parse("2025-01-19T10:00:00Z").unwrap());
        let at = parse("2025-01-19T10:00:00.000000001Z").unwrap();
        assert_eq!(from_nanoseconds(nanoseconds(at)), at);
        assert_eq!(format(at), "2025-01-19T10:00:00.000000Z");
        for text in ["2025-01-19T10:00:00.123456789Z", "1969-12-31T23:59:59.999999999Z"] {
            let moment = Moment::new(parse(text).unwrap());
            assert_eq!(parse(&moment.text), Ok(moment.at));
        }
    }
}
