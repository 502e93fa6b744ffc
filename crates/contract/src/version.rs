//! The closed contract material, its hash, and which versions this runtime supports.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::canon;
use crate::digest::Digest;
use crate::resolve::Resolved;
use crate::schema::{ExecutionConfig, Field, SCHEMA_VERSION};

pub const DETERMINISM_POLICY: u64 = 1;
pub const PLANNER_POLICY: u64 = 1;
pub const CORRECTION_RECIPE: u64 = 1;
pub const VALIDATION_POLICY: u64 = 1;
pub const RANDOMNESS_SEED: &str = "forbidden:no-random-branching";

/// Everything that affects branching, and nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Material {
    pub execution_contract_schema_version: u64,
    pub normalized_execution_config: ExecutionConfig,
    pub determinism_policy_version: u64,
    pub planner_policy_version: u64,
    pub correction_recipe_version: u64,
    pub validation_policy_version: u64,
    pub randomness_seed: String,
}

impl Material {
    /// The material of a config under this runtime's policies.
    pub fn of(config: ExecutionConfig) -> Self {
        Self {
            execution_contract_schema_version: SCHEMA_VERSION,
            normalized_execution_config: config,
            determinism_policy_version: DETERMINISM_POLICY,
            planner_policy_version: PLANNER_POLICY,
            correction_recipe_version: CORRECTION_RECIPE,
            validation_policy_version: VALIDATION_POLICY,
            randomness_seed: RANDOMNESS_SEED.to_owned(),
        }
    }

    pub fn to_json(&self) -> Value {
        // Integers within their ranges and strings only: there is nothing that could fail to serialise.
        serde_json::to_value(self).unwrap_or_default()
    }

    /// `sha256(canonicalJson(material))`.
    pub fn hash(&self) -> Digest {
        canon::canonical(&self.to_json()).map_or(Digest::ZERO, |text| Digest::sha256(&text))
    }
}

/// A contract: its material, its hash, and which fields came from the environment when it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contract {
    pub material: Material,
    pub hash: Digest,
    pub fallback_fields: Vec<Field>,
}

impl Contract {
    pub fn of(config: ExecutionConfig) -> Self {
        let material = Material::of(config);
        Self { hash: material.hash(), material, fallback_fields: Vec::new() }
    }

    pub fn resolved(resolved: &Resolved) -> Self {
        Self { fallback_fields: resolved.fallback_fields(), ..Self::of(resolved.config.clone()) }
    }

    pub fn config(&self) -> &ExecutionConfig {
        &self.material.normalized_execution_config
    }

    pub fn fallback_names(&self) -> Vec<&'static str> {
        self.fallback_fields.iter().map(|f| f.name()).collect()
    }
}

/// A version or seed of stored material that this runtime does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsupportedField {
    pub field: &'static str,
    pub value: Value,
}

/// The versions in a material, by name, with the one value this runtime supports.
fn supported() -> [(&'static str, Value); 6] {
    [
        ("executionContractSchemaVersion", json!(SCHEMA_VERSION)),
        ("determinismPolicyVersion", json!(DETERMINISM_POLICY)),
        ("plannerPolicyVersion", json!(PLANNER_POLICY)),
        ("correctionRecipeVersion", json!(CORRECTION_RECIPE)),
        ("validationPolicyVersion", json!(VALIDATION_POLICY)),
        ("randomnessSeed", json!(RANDOMNESS_SEED)),
    ]
}

/// For error details: every version this runtime takes.
pub fn supported_ranges() -> Value {
    json!({
        "schemaVersions": [SCHEMA_VERSION],
        "determinismPolicyVersions": [DETERMINISM_POLICY],
        "plannerPolicyVersions": [PLANNER_POLICY],
        "correctionRecipeVersions": [CORRECTION_RECIPE],
        "validationPolicyVersions": [VALIDATION_POLICY],
        "randomnessSeeds": [RANDOMNESS_SEED],
    })
}

/// The versions in stored material that are not ours. A version that is missing is not judged here: that is damage,
/// not another version, and the comparison with the recomputed material finds it.
pub fn unsupported(material: &Value) -> Vec<UnsupportedField> {
    let mut found: Vec<_> = supported()
        .into_iter()
        .filter_map(|(field, ours)| {
            // Only what has the form of a version can be another one; anything else is damage.
            let value =
                material.get(field).filter(|v| v.is_u64() == ours.is_u64() && v.is_string() == ours.is_string())?;
            (*value != ours).then(|| UnsupportedField { field, value: value.clone() })
        })
        .collect();
    let inner = &material["normalizedExecutionConfig"]["schemaVersion"];
    if inner.is_u64() && *inner != json!(SCHEMA_VERSION) {
        found.push(UnsupportedField { field: "normalizedExecutionConfig.schemaVersion", value: inner.clone() });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Profile;

    fn contract(profile: Profile) -> Contract {
        let preset = profile.preset();
        Contract::of(ExecutionConfig::build(|f| match f {
            Field::Profile => crate::schema::FieldValue::Profile(profile),
            _ => preset.get(f).unwrap_or(f.default_value()),
        }))
    }

    #[test]
    fn golden_vectors() {
        let golden = [
            (Profile::Full, 581, "eaa65ae6e4c8366fb3b20b76295914499fbe5f03f5e0c9a1b294d015badc7868"),
            (Profile::Ci, 563, "fc3f86dbbd662d3a78b6ce9a750603a313ff900b17b4786476481bb8f70ce2e4"),
            (Profile::Smoke, 569, "26a946c01889648e03013e7f2f4659b7aec0ad9aea5544701b6d7575e92c27aa"),
        ];
        for (profile, bytes, hash) in golden {
            let contract = contract(profile);
            assert_eq!(canon::canonical(&contract.material.to_json()).unwrap().len(), bytes);
            assert_eq!(contract.hash.to_hex(), hash, "{}", profile.name());
        }
    }

    #[test]
    fn no_field_of_the_config_is_left_out_of_the_hash() {
        let base = contract(Profile::Full);
        let value = base.material.to_json();
        for pointer in value["normalizedExecutionConfig"].as_object().unwrap().keys() {
            let mut other = value.clone();
            other["normalizedExecutionConfig"][pointer] = json!("other");
            assert_ne!(canon::sha256(&other).unwrap(), base.hash, "{pointer}");
        }
        assert_eq!(value.as_object().unwrap().len(), 7);
    }

    #[test]
    fn other_versions_are_told_apart_from_missing_ones() {
        let ours = contract(Profile::Full).material.to_json();
        assert!(unsupported(&ours).is_empty());
        for (field, _) in supported() {
            let mut other = ours.clone();
            other[field] = if field == "randomnessSeed" { json!("dice") } else { json!(2) };
            assert_eq!(unsupported(&other)[0].field, field);
            other[field] = json!(null);
            assert!(unsupported(&other).is_empty());
            other.as_object_mut().unwrap().remove(field);
            assert!(unsupported(&other).is_empty());
        }
        let mut inner = ours;
        inner["normalizedExecutionConfig"]["schemaVersion"] = json!(9);
        assert_eq!(unsupported(&inner)[0].field, "normalizedExecutionConfig.schemaVersion");
    }
}
