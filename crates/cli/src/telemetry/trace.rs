//! Which trace something belongs to. A run's is its submitter's, if he named one, and else follows from the run's id: so
//! every worker that ever has it writes to the same one. Never says anything about the run but its id.

use std::cell::Cell;

use actum_contract::digest::Digest;
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator};
use serde::Deserialize;

const TRACEPARENT_CHARS: usize = 55;

/// `00-<trace>-<span>-<flags>`, lower case, as the W3C has it; what is not exactly that is none.
pub(crate) fn parse(text: &str) -> Option<SpanContext> {
    let is_plain = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    let mut parts = text.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    if version.len() != 2 || version == "ff" || !is_plain(version) {
        return None;
    }
    // A later version may have more at its end; this one may not.
    if version == "00" && text.len() != TRACEPARENT_CHARS {
        return None;
    }
    if (trace.len(), span.len(), flags.len()) != (32, 16, 2) || ![trace, span, flags].into_iter().all(is_plain) {
        return None;
    }
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()? & 1);
    let context = SpanContext::new(trace, span, flags, true, TraceState::NONE);
    context.is_valid().then_some(context)
}

/// The trace of a run whose submitter named none.
pub(crate) fn of_run(run: &str) -> TraceId {
    let hash = Digest::sha256(format!("actum run {run}").as_bytes()).to_hex();
    TraceId::from_hex(hash.get(..32).unwrap_or_default()).unwrap_or(TraceId::INVALID)
}

/// The span that a run's submitter named, by its metadata.
pub(crate) fn named_in(metadata: &str) -> Option<SpanContext> {
    #[derive(Deserialize)]
    struct Named {
        trace: Option<String>,
    }
    serde_json::from_str::<Named>(metadata).ok()?.trace.as_deref().and_then(parse)
}

thread_local! {
    static NEXT: Cell<Option<TraceId>> = const { Cell::new(None) };
}

/// Ids at random, but for a root that was told which trace it begins.
#[derive(Debug, Default)]
pub(super) struct Ids(RandomIdGenerator);

impl IdGenerator for Ids {
    fn new_trace_id(&self) -> TraceId {
        NEXT.take().unwrap_or_else(|| self.0.new_trace_id())
    }

    fn new_span_id(&self) -> SpanId {
        self.0.new_span_id()
    }
}

/// What begins a root in here begins it in this trace.
pub(super) fn within<T>(trace: TraceId, begin: impl FnOnce() -> T) -> T {
    NEXT.set(Some(trace));
    let begun = begin();
    NEXT.set(None);
    begun
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_trace_is_what_the_standard_says_or_none() {
        let found = parse(GOOD).unwrap();
        assert_eq!(found.trace_id().to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert!(found.is_remote() && found.is_sampled());
        assert!(!parse(&GOOD.replace("-01", "-00")).unwrap().is_sampled());
        assert!(parse(&format!("01{}-more", &GOOD[2..])).is_some());
        let bad = [
            String::new(),
            "00".into(),
            GOOD.to_uppercase(),
            format!("{GOOD}-"),
            format!("{GOOD}0"),
            format!("ff{}", &GOOD[2..]),
            GOOD.replace("4bf9", "zzzz"),
            GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            GOOD.replace("00f067aa0ba902b7", &"0".repeat(16)),
            GOOD.replace('-', "_"),
            "é".repeat(55),
            "00-".repeat(1_000),
        ];
        for text in bad {
            assert!(parse(&text).is_none(), "{text}");
        }
    }

    #[test]
    fn a_run_has_one_trace_wherever_it_runs() {
        assert_eq!(of_run("a"), of_run("a"));
        assert_ne!(of_run("a"), of_run("b"));
        assert_ne!(of_run(""), TraceId::INVALID);
        assert_eq!(named_in(&format!("{{\"trace\":\"{GOOD}\",\"x\":1}}")), parse(GOOD));
        assert!(named_in("{\"trace\":1}").is_none() && named_in("").is_none() && named_in("{}").is_none());
        let ids = Ids::default();
        assert_eq!(within(of_run("a"), || ids.new_trace_id()), of_run("a"));
        assert_ne!(ids.new_trace_id(), of_run("a"));
    }
}
