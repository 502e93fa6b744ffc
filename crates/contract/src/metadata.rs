//! The seven metadata keys of a run, and what a worker asserts of them before it does anything else.
//!
//! Fails closed: all seven absent is a run from before contracts; anything between that and a complete, unaltered
//! set is a mismatch. Unknown versions are told first, because then nothing else here can be judged.

use serde_json::{Map, Value, json};

use crate::schema::{ExecutionConfig, Field};
use crate::version::{Contract, UnsupportedField, supported_ranges, unsupported};

pub const EXECUTION_CONFIG: &str = "executionConfig";
pub const SCHEMA_VERSION: &str = "executionContractSchemaVersion";
pub const HASH: &str = "executionContractHash";
pub const MATERIAL: &str = "executionContractMaterial";
pub const EFFECTIVE_CONFIG: &str = "effectiveExecutionConfig";
pub const FALLBACK_USED: &str = "executionContractFallbackUsed";
pub const FALLBACK_FIELDS: &str = "executionContractFallbackFields";

pub const KEYS: [&str; 7] =
    [EXECUTION_CONFIG, SCHEMA_VERSION, HASH, MATERIAL, EFFECTIVE_CONFIG, FALLBACK_USED, FALLBACK_FIELDS];

/// What the metadata of a run says about its contract.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stored {
    /// None of the keys: attach a contract on first resume, and record that.
    Legacy,
    Contract(Contract),
}

/// The two ways in which stored metadata is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContractError {
    #[error("this runtime does not support {}", list(.fields))]
    Unsupported { fields: Vec<UnsupportedField> },
    #[error("stored contract does not match the recomputed one: {}", .differences.iter().map(|d| d.key).collect::<Vec<_>>().join(", "))]
    Mismatch { differences: Vec<Difference> },
}

/// A key whose stored value is not the recomputed one. Null stands for absent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    pub key: &'static str,
    pub stored: Value,
    pub recomputed: Value,
}

impl ContractError {
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unsupported { .. } => "UNSUPPORTED_CONTRACT",
            Self::Mismatch { .. } => "CONTRACT_MISMATCH",
        }
    }

    pub fn details(&self) -> Value {
        match self {
            Self::Unsupported { fields } => json!({
                "unsupportedFields": fields.iter().map(|f| json!({"field": f.field, "value": f.value})).collect::<Vec<_>>(),
                "supportedRanges": supported_ranges(),
            }),
            Self::Mismatch { differences } => json!({
                "differences": differences.iter()
                    .map(|d| json!({"key": d.key, "stored": d.stored, "recomputed": d.recomputed}))
                    .collect::<Vec<_>>(),
            }),
        }
    }
}

fn list(fields: &[UnsupportedField]) -> String {
    fields.iter().map(|f| format!("{}={}", f.field, f.value)).collect::<Vec<_>>().join(", ")
}

/// The seven keys of a contract, to be merged into a run's metadata.
pub fn write(contract: &Contract) -> Map<String, Value> {
    let material = contract.material.to_json();
    let config = material["normalizedExecutionConfig"].clone();
    let values = [
        config.clone(),
        json!(contract.material.execution_contract_schema_version),
        json!(contract.hash.to_hex()),
        material,
        config,
        json!(!contract.fallback_fields.is_empty()),
        json!(contract.fallback_names()),
    ];
    KEYS.iter().map(|k| (*k).to_owned()).zip(values).collect()
}

/// Reads and asserts the stored keys. Keys that are not ours are left alone.
pub fn check(metadata: &Map<String, Value>) -> Result<Stored, ContractError> {
    if KEYS.iter().all(|key| !metadata.contains_key(*key)) {
        return Ok(Stored::Legacy);
    }
    check_support(metadata)?;

    let stored = |key: &'static str| metadata.get(key).cloned().unwrap_or(Value::Null);
    let mut differences: Vec<Difference> = KEYS
        .iter()
        .filter(|key| !metadata.contains_key(**key))
        .map(|key| Difference { key, stored: Value::Null, recomputed: json!("present") })
        .collect();

    // The effective config is what the run executes under; everything else is recomputed from it.
    let contract = match ExecutionConfig::read(&stored(EFFECTIVE_CONFIG)) {
        Ok(config) => Contract { fallback_fields: read_fallback_fields(metadata), ..Contract::of(config) },
        Err(bad) => {
            if metadata.contains_key(EFFECTIVE_CONFIG) {
                let recomputed = json!(bad.to_string());
                differences.push(Difference { key: EFFECTIVE_CONFIG, stored: stored(EFFECTIVE_CONFIG), recomputed });
            }
            return Err(ContractError::Mismatch { differences });
        }
    };
    for (key, recomputed) in write(&contract) {
        let Some(key) = KEYS.into_iter().find(|k| *k == key) else { continue };
        if metadata.contains_key(key) && stored(key) != recomputed {
            differences.push(Difference { key, stored: stored(key), recomputed });
        }
    }
    if differences.is_empty() { Ok(Stored::Contract(contract)) } else { Err(ContractError::Mismatch { differences }) }
}

fn check_support(metadata: &Map<String, Value>) -> Result<(), ContractError> {
    let mut fields = metadata.get(MATERIAL).map(unsupported).unwrap_or_default();
    for (key, pointer) in [
        (SCHEMA_VERSION, metadata.get(SCHEMA_VERSION)),
        ("executionConfig.schemaVersion", metadata.get(EXECUTION_CONFIG).and_then(|c| c.get("schemaVersion"))),
        ("effectiveExecutionConfig.schemaVersion", metadata.get(EFFECTIVE_CONFIG).and_then(|c| c.get("schemaVersion"))),
    ] {
        // Only a number can be a version; anything else is damage and comes out as a mismatch.
        if let Some(value) = pointer.filter(|v| v.is_u64() && **v != json!(crate::schema::SCHEMA_VERSION))
            && fields.iter().all(|f| f.field != key)
        {
            fields.push(UnsupportedField { field: key, value: value.clone() });
        }
    }
    if fields.is_empty() { Ok(()) } else { Err(ContractError::Unsupported { fields }) }
}

/// The stored list of fallback fields as far as it makes sense; what does not shows up as a difference.
fn read_fallback_fields(metadata: &Map<String, Value>) -> Vec<Field> {
    let names = metadata.get(FALLBACK_FIELDS).and_then(Value::as_array);
    let mut fields: Vec<_> = names.into_iter().flatten().filter_map(Value::as_str).filter_map(Field::named).collect();
    fields.sort_unstable();
    fields.dedup();
    fields.retain(|f| f.env().is_some());
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::FieldValue;

    fn stored() -> Map<String, Value> {
        let config = ExecutionConfig::build(Field::default_value);
        let mut metadata = write(&Contract { fallback_fields: vec![Field::MaxFileBytes], ..Contract::of(config) });
        metadata.insert("note".into(), json!("somebody else's key"));
        metadata
    }

    #[test]
    fn what_was_written_is_accepted() {
        let metadata = stored();
        assert_eq!(metadata.len(), 8);
        let Stored::Contract(contract) = check(&metadata).unwrap() else { panic!("legacy") };
        assert_eq!(contract.fallback_fields, [Field::MaxFileBytes]);
        assert_eq!(contract.config().get(Field::PlannerTimeoutMs), FieldValue::Integer(120_000));
    }

    #[test]
    fn none_of_the_keys_is_a_legacy_run() {
        assert_eq!(check(&Map::new()).unwrap(), Stored::Legacy);
        let other: Map<_, _> = [("note".to_owned(), json!(1))].into_iter().collect();
        assert_eq!(check(&other).unwrap(), Stored::Legacy);
    }

    #[test]
    fn any_subset_of_the_keys_is_a_mismatch() {
        for mask in 1..(1u32 << 7) - 1 {
            let mut metadata = stored();
            for (i, key) in KEYS.iter().enumerate() {
                if mask & (1 << i) == 0 {
                    metadata.remove(*key);
                }
            }
            let error = check(&metadata).unwrap_err();
            assert_eq!(error.code(), "CONTRACT_MISMATCH", "mask {mask:07b}: {error}");
        }
    }

    #[test]
    fn any_altered_key_is_a_mismatch() {
        let altered = [
            (EXECUTION_CONFIG, json!({"profile": "ci"})),
            (SCHEMA_VERSION, json!("1")),
            (HASH, json!("0".repeat(64))),
            (HASH, json!("EAA65AE6E4C8366FB3B20B76295914499FBE5F03F5E0C9A1B294D015BADC7868")),
            (MATERIAL, json!({})),
            (MATERIAL, json!(null)),
            (EFFECTIVE_CONFIG, json!("full")),
            (FALLBACK_USED, json!(false)),
            (FALLBACK_FIELDS, json!([])),
            (FALLBACK_FIELDS, json!(["maxFileBytes", "maxFileBytes"])),
            (FALLBACK_FIELDS, json!(["schemaVersion"])),
            (FALLBACK_FIELDS, json!(["unheardOf"])),
        ];
        for (key, value) in altered {
            let mut metadata = stored();
            metadata.insert(key.to_owned(), value.clone());
            let error = check(&metadata).unwrap_err();
            assert_eq!(error.code(), "CONTRACT_MISMATCH", "{key} = {value}: {error}");
        }
        for field in Field::all().filter(|f| *f != Field::SchemaVersion) {
            for key in [EXECUTION_CONFIG, EFFECTIVE_CONFIG] {
                let mut metadata = stored();
                metadata[key][field.name()] = json!(7);
                assert_eq!(check(&metadata).unwrap_err().code(), "CONTRACT_MISMATCH", "{key}.{}", field.name());
            }
        }
    }

    #[test]
    fn unknown_versions_are_told_first_with_the_supported_ranges() {
        let mut metadata = stored();
        metadata[MATERIAL]["plannerPolicyVersion"] = json!(2);
        metadata.insert(SCHEMA_VERSION.into(), json!(3));
        metadata.insert(HASH.into(), json!("altered too"));
        let error = check(&metadata).unwrap_err();
        assert_eq!(error.code(), "UNSUPPORTED_CONTRACT");
        let details = error.details();
        assert_eq!(details["unsupportedFields"].as_array().unwrap().len(), 2);
        assert_eq!(details["supportedRanges"]["plannerPolicyVersions"], json!([1]));
        assert_eq!(
            error.to_string(),
            "this runtime does not support plannerPolicyVersion=2, executionContractSchemaVersion=3"
        );
    }
}
