//! The coherence gate: which states an execution may rest in, given how coherent its inputs are.

use crate::event::{Coherence, CoherencePolicy, State};

/// What an event says about its inputs and itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gated {
    pub coherence: Coherence,
    pub policy: CoherencePolicy,
    pub dry_run: bool,
    pub state: State,
    /// The event is `failed` with COHERENCE_BLOCKED, not retryable.
    pub reports_block: bool,
}

/// Whether the gate lets nothing through but the report that it blocked.
pub fn blocks(coherence: Coherence, policy: CoherencePolicy) -> bool {
    match coherence {
        Coherence::Coherent => false,
        Coherence::Partial => policy == CoherencePolicy::Block,
        Coherence::Stale => true,
    }
}

/// The matrix decides which resting states the success path may reach; `failed` by an execution error and
/// `cancelled` by a person stay reachable.
pub fn gate(event: Gated) -> Result<(), &'static str> {
    let Gated { coherence, policy, dry_run, state, reports_block } = event;
    if blocks(coherence, policy) {
        return match reports_block {
            true => Ok(()),
            false => Err(
                "inputs are not coherent: the only event accepted is failed with COHERENCE_BLOCKED, retryable false",
            ),
        };
    }
    match (coherence, dry_run, state) {
        (Coherence::Coherent, false, State::Running | State::Succeeded) => {
            Err("without dryRun a coherent execution rests at planned: external publishing happens elsewhere")
        }
        (Coherence::Partial, false, State::Succeeded) => {
            Err("partial inputs without dryRun end as cancelled with PARTIAL_REQUIRES_REVIEW, not as succeeded")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_matrix() {
        use State::*;
        // (coherence, policy, dryRun) -> states accepted; a blocked gate accepts only the report of the block.
        let open: [(Coherence, CoherencePolicy, bool, &[State]); 6] = [
            (Coherence::Coherent, CoherencePolicy::Block, true, &[Planned, Running, Succeeded, Failed, Cancelled]),
            (Coherence::Coherent, CoherencePolicy::DraftOnly, true, &[Planned, Running, Succeeded, Failed, Cancelled]),
            (Coherence::Coherent, CoherencePolicy::Block, false, &[Planned, Failed, Cancelled]),
            (Coherence::Coherent, CoherencePolicy::DraftOnly, false, &[Planned, Failed, Cancelled]),
            (Coherence::Partial, CoherencePolicy::DraftOnly, true, &[Planned, Running, Succeeded, Failed, Cancelled]),
            (Coherence::Partial, CoherencePolicy::DraftOnly, false, &[Planned, Running, Failed, Cancelled]),
        ];
        for coherence in Coherence::ALL {
            for policy in CoherencePolicy::ALL {
                for dry_run in [false, true] {
                    for state in State::ALL {
                        for reports_block in [false, true] {
                            let event = Gated { coherence, policy, dry_run, state, reports_block };
                            let row = open.iter().find(|(c, p, d, _)| (*c, *p, *d) == (coherence, policy, dry_run));
                            let expected = row.map_or(reports_block, |(.., states)| states.contains(&state));
                            assert_eq!(gate(event).is_ok(), expected, "{event:?}");
                        }
                    }
                }
            }
        }
    }
}
