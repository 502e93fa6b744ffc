//! How coherent a lineage is at a snapshot: the status a producer has to declare before it plans.

use jiff::Timestamp;

use crate::entry::Entry;
use crate::event::{self, Coherence, State};
use crate::time::{self, BadTime};

/// What the ledger knows of one dependency.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependency {
    pub id: String,
    /// Nothing if no such entry exists for the tenant.
    pub found: Option<Found>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub kind: String,
    pub state: Option<String>,
    /// For execution events: the coherence the event declared.
    pub coherence: Option<Coherence>,
    pub created_at: Timestamp,
    /// Entries that replace this one: those that say so, and a later success of the same execution.
    pub superseded_by: Vec<(String, Timestamp)>,
}

impl Found {
    /// What a stored entry says of itself.
    pub fn of(entry: Entry, superseded_by: Vec<(String, Timestamp)>) -> Result<Self, BadTime> {
        let declared = entry.payload["coherenceStatus"].as_str().filter(|_| entry.kind == event::TYPE);
        Ok(Self {
            coherence: declared.and_then(Coherence::named),
            created_at: time::parse(&entry.created_at)?,
            kind: entry.kind,
            state: entry.state,
            superseded_by,
        })
    }
}

/// The robot and the execution of a stored event; nothing for other entries.
pub fn execution_of(entry: &Entry) -> Option<(&str, &str)> {
    let execution = entry.payload["executionId"].as_str().filter(|_| entry.kind == event::TYPE)?;
    Some((entry.robot.as_deref()?, execution))
}

/// The status and one sentence for each dependency that lowered it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assessment {
    pub status: Coherence,
    pub reasons: Vec<String>,
}

/// Stale if a dependency was superseded by the time of the snapshot; else partial if one is missing, has not
/// succeeded or is a draft; else coherent. A lineage without any dependency justifies nothing: partial.
pub fn assess(dependencies: &[Dependency], snapshot_at: Timestamp) -> Assessment {
    let mut status = Coherence::Coherent;
    let mut reasons = Vec::new();
    if dependencies.is_empty() {
        status = Coherence::Partial;
        reasons.push("no dependency is named".to_owned());
    }
    for Dependency { id, found } in dependencies {
        let (lowered, why) = judge(found.as_ref(), snapshot_at);
        if lowered != Coherence::Coherent {
            status = status.max(lowered);
            reasons.push(format!("{id} {why}"));
        }
    }
    Assessment { status, reasons }
}

fn judge(found: Option<&Found>, snapshot_at: Timestamp) -> (Coherence, String) {
    let Some(found) = found else { return (Coherence::Partial, "is missing".into()) };
    if found.created_at > snapshot_at {
        return (Coherence::Partial, "was created after the snapshot".into());
    }
    if let Some((by, _)) = found.superseded_by.iter().find(|(_, at)| *at <= snapshot_at) {
        return (Coherence::Stale, format!("was superseded by {by}"));
    }
    let state = found.state.as_deref();
    if state == Some("draft") {
        return (Coherence::Partial, "is a draft".into());
    }
    if found.kind == event::TYPE {
        if state != Some(State::Succeeded.word()) {
            return (Coherence::Partial, format!("has not succeeded (it is {})", state.unwrap_or("unknown")));
        }
        if found.coherence == Some(Coherence::Partial) {
            return (Coherence::Partial, "succeeded on partial inputs, so its artifacts are drafts".into());
        }
    }
    (Coherence::Coherent, String::new())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::parse;

    fn found(kind: &str, state: Option<&str>) -> Found {
        Found {
            kind: kind.into(),
            state: state.map(Into::into),
            coherence: None,
            created_at: parse("2025-01-01T00:00:00Z").unwrap(),
            superseded_by: vec![],
        }
    }

    fn status(found: Option<Found>) -> Coherence {
        let other = Dependency { id: "a".into(), found: Some(self::found("signal", None)) };
        let this = Dependency { id: "b".into(), found };
        assess(&[other, this], parse("2025-01-02T00:00:00Z").unwrap()).status
    }

    #[test]
    fn each_reason() {
        assert_eq!(status(Some(found("signal", None))), Coherence::Coherent);
        assert_eq!(status(Some(found("artifact", Some("published")))), Coherence::Coherent);
        assert_eq!(status(Some(found("artifact", Some("draft")))), Coherence::Partial);
        assert_eq!(status(None), Coherence::Partial);
        for state in State::ALL {
            let expected = if state == State::Succeeded { Coherence::Coherent } else { Coherence::Partial };
            assert_eq!(status(Some(found(event::TYPE, Some(state.word())))), expected, "{state}");
        }
        let drafts = Found { coherence: Some(Coherence::Partial), ..found(event::TYPE, Some("succeeded")) };
        assert_eq!(status(Some(drafts)), Coherence::Partial);
        let late = Found { created_at: parse("2025-01-03T00:00:00Z").unwrap(), ..found("signal", None) };
        assert_eq!(status(Some(late)), Coherence::Partial);
    }

    #[test]
    fn superseded_only_counts_by_the_time_of_the_snapshot_and_outweighs_partial() {
        let by = |at: &str| vec![("c".to_owned(), parse(at).unwrap())];
        let before = Found { superseded_by: by("2025-01-02T00:00:00Z"), ..found("snapshot", Some("draft")) };
        assert_eq!(status(Some(before)), Coherence::Stale);
        let after = Found { superseded_by: by("2025-01-02T00:00:00.000000001Z"), ..found("snapshot", None) };
        assert_eq!(status(Some(after)), Coherence::Coherent);
        assert_eq!(assess(&[], parse("2025-01-02T00:00:00Z").unwrap()).status, Coherence::Partial);
    }
}
