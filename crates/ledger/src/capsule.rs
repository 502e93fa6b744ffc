//! The capsule: what a run did, content only. Two runs that did the same have the same hash, whenever and under whatever
//! name they did it.

use actum_contract::canon;
use actum_contract::digest::Digest;
use serde_json::{Value, json};

/// What a run did: changes of objects, projections, laws and quality; the trace of its tools; what it made.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Capsule {
    pub work_item: Value,
    pub contract_hash: String,
    pub before: String,
    /// Files: `{op, path, before, after}`.
    pub delta_o: Vec<Value>,
    pub delta_pi: Vec<Value>,
    pub delta_lambda: Vec<Value>,
    /// Verdicts that changed.
    pub delta_q: Vec<Value>,
    /// Without ids and times.
    pub tool_trace: Vec<Value>,
    /// `{type, path, hash}`.
    pub artifacts: Vec<Value>,
}

impl Capsule {
    pub fn to_json(&self) -> Value {
        json!({
            "workItem": self.work_item,
            "contractHash": self.contract_hash,
            "before": self.before,
            "deltas": self.deltas(),
            "toolTrace": self.tool_trace,
            "artifacts": self.artifacts,
        })
    }

    pub fn deltas(&self) -> Value {
        json!({"O": self.delta_o, "Π": self.delta_pi, "Λ": self.delta_lambda, "Q": self.delta_q})
    }

    pub fn delta_size(&self) -> usize {
        self.delta_o.len() + self.delta_pi.len() + self.delta_lambda.len() + self.delta_q.len()
    }

    /// Nothing was changed; such a capsule repeats nothing.
    pub fn is_empty(&self) -> bool {
        self.delta_size() == 0
    }

    /// BLAKE3 over the canonical form. Nothing if it holds what canonical JSON cannot say.
    pub fn hash(&self) -> Option<Digest> {
        canon::canonical(&self.to_json()).ok().map(|text| Digest::blake3(&text))
    }

    pub fn trace_digest(&self) -> Option<Digest> {
        canon::canonical(&json!(self.tool_trace)).ok().map(|text| Digest::sha256(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_counts_and_nothing_else() {
        let base = Capsule { work_item: json!({"id": "a"}), before: "x".into(), ..Capsule::default() };
        let hash = base.hash().unwrap();
        assert_eq!(base.clone().hash().unwrap(), hash);
        assert!(base.is_empty());
        let one = vec![json!({"a": 1})];
        for other in [
            Capsule { work_item: json!({"id": "b"}), ..base.clone() },
            Capsule { contract_hash: "h".into(), ..base.clone() },
            Capsule { before: "y".into(), ..base.clone() },
            Capsule { delta_o: one.clone(), ..base.clone() },
            Capsule { delta_pi: one.clone(), ..base.clone() },
            Capsule { delta_lambda: one.clone(), ..base.clone() },
            Capsule { delta_q: one.clone(), ..base.clone() },
            Capsule { tool_trace: one.clone(), ..base.clone() },
            Capsule { artifacts: one.clone(), ..base.clone() },
        ] {
            assert_ne!(other.hash().unwrap(), hash, "{other:?}");
        }
    }
}
