//! The state machine of an execution, with attempts.

use crate::event::State;

/// The last accepted event of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Last {
    pub state: State,
    pub attempt: u64,
}

/// Whether `next` may follow `last`. `blocked` tells that the gate blocks the execution, which is the only way it may
/// begin with `failed`. The sentence says what would be allowed.
pub fn transition(last: Option<Last>, next: State, attempt: u64, blocked: bool) -> Result<(), String> {
    use State::{Cancelled, Failed, Planned, Running, Succeeded};
    let Some(Last { state, attempt: before }) = last else {
        return match next {
            Planned => Ok(()),
            Failed if blocked => Ok(()),
            Failed => Err(
                "an execution may begin with failed only when the gate blocks it (stale, or partial with policy block)"
                    .into(),
            ),
            _ => Err(format!("an execution begins with planned, not with {next}")),
        };
    };
    if attempt < before {
        return Err(format!("attempt {attempt} is lower than attempt {before} already recorded"));
    }
    match (state, next) {
        (Succeeded | Cancelled, _) => Err(format!("{state} is terminal; start a new execution to run again")),
        (Failed, Planned | Running) if attempt > before => Ok(()),
        (Failed, Planned | Running) => Err(format!("after failed the attempt must rise above {before}")),
        (Failed, _) => Err("failed may be followed only by planned or running of a higher attempt".into()),
        (Planned, Running) | (Running, Succeeded | Failed | Cancelled) if attempt == before => Ok(()),
        (Planned, Running) | (Running, Succeeded | Failed | Cancelled) => {
            Err(format!("the attempt rises only after failed; attempt {before} is still {state}"))
        }
        (Planned, _) => Err("planned may be followed only by running".into()),
        (Running, _) => Err("running may be followed only by succeeded, failed or cancelled".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seed's section 4 and D-401, D-402 as a list; everything not on it must be refused.
    fn allowed(last: Option<(State, u64)>, next: State, attempt: u64, blocked: bool) -> bool {
        use State::*;
        match last {
            None => next == Planned || (next == Failed && blocked),
            Some((state, before)) => {
                let same = [(Planned, Running), (Running, Succeeded), (Running, Failed), (Running, Cancelled)];
                let retry = [(Failed, Planned), (Failed, Running)];
                (same.contains(&(state, next)) && attempt == before)
                    || (retry.contains(&(state, next)) && attempt > before)
            }
        }
    }

    #[test]
    fn the_whole_domain() {
        let mut checked = 0;
        for last in std::iter::once(None).chain(State::ALL.into_iter().map(|s| Some((s, 3)))) {
            for next in State::ALL {
                for attempt in 1..=5 {
                    for blocked in [false, true] {
                        let answer =
                            transition(last.map(|(state, attempt)| Last { state, attempt }), next, attempt, blocked);
                        assert_eq!(
                            answer.is_ok(),
                            allowed(last, next, attempt, blocked),
                            "{last:?} {next:?} {attempt} {blocked}: {answer:?}"
                        );
                        checked += 1;
                    }
                }
            }
        }
        assert_eq!(checked, 6 * 5 * 5 * 2);
    }
}
