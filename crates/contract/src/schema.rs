//! The normalised execution config: thirteen fields, their ranges, their defaults and what each one does.
//!
//! The table of fields is the single source: readers, the environment, `explain` and the JSON Schema all use it.
//! A bad value is refused with all the others that are bad; nothing is ever clamped or ignored.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::bad::{BadConfig, BadField};

/// Version of the config and of the contract around it that this runtime writes.
pub const SCHEMA_VERSION: u64 = 1;

/// The normalised config. Every field is present; two equal configs have equal canonical text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExecutionConfig {
    pub schema_version: u64,
    pub profile: Profile,
    pub light_validation_mode: Mode,
    pub heavy_validation_mode: Mode,
    pub max_runtime_correction_attempts: u64,
    pub max_heavy_correction_attempts: u64,
    pub correction_policy_mode: Mode,
    pub correction_convergence_mode: Mode,
    pub planner_timeout_ms: u64,
    pub max_files_per_step: u64,
    pub max_total_diff_bytes: u64,
    pub max_file_bytes: u64,
    pub allow_env_mutation: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    Full,
    Ci,
    Smoke,
}

impl Profile {
    pub const ALL: [Self; 3] = [Self::Full, Self::Ci, Self::Smoke];

    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Ci => "ci",
            Self::Smoke => "smoke",
        }
    }

    /// The fields this profile sets. `full` sets none: it is what the hard defaults are.
    pub fn preset(self) -> Partial {
        use Field as F;
        use Mode::{Off, Warn};
        let (validation, attempts, timeout) = match self {
            Self::Full => return Partial::default(),
            Self::Ci => (Off, 0, 5_000),
            Self::Smoke => (Warn, 1, 10_000),
        };
        let mut preset = Partial::default();
        preset.set(F::LightValidationMode, FieldValue::Mode(validation));
        preset.set(F::HeavyValidationMode, FieldValue::Mode(validation));
        preset.set(F::MaxRuntimeCorrectionAttempts, FieldValue::Integer(attempts));
        preset.set(F::MaxHeavyCorrectionAttempts, FieldValue::Integer(attempts));
        preset.set(F::CorrectionPolicyMode, FieldValue::Mode(Warn));
        preset.set(F::CorrectionConvergenceMode, FieldValue::Mode(Warn));
        preset.set(F::PlannerTimeoutMs, FieldValue::Integer(timeout));
        preset
    }
}

/// `off` = not run; `warn` = run and recorded, never fails, never corrects; `enforce` = corrected, then fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Off,
    Warn,
    Enforce,
}

impl Mode {
    pub const ALL: [Self; 3] = [Self::Off, Self::Warn, Self::Enforce];

    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Warn => "warn",
            Self::Enforce => "enforce",
        }
    }
}

/// One field of the config, in the order in which differences are reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Field {
    SchemaVersion,
    Profile,
    LightValidationMode,
    HeavyValidationMode,
    MaxRuntimeCorrectionAttempts,
    MaxHeavyCorrectionAttempts,
    CorrectionPolicyMode,
    CorrectionConvergenceMode,
    PlannerTimeoutMs,
    MaxFilesPerStep,
    MaxTotalDiffBytes,
    MaxFileBytes,
    AllowEnvMutation,
}

/// What a field may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Range {
    Profile,
    Mode,
    Integer { min: u64, max: u64 },
    Boolean,
}

/// What a field does hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldValue {
    Profile(Profile),
    Mode(Mode),
    Integer(u64),
    Boolean(bool),
}

struct Row {
    field: Field,
    name: &'static str,
    env: Option<&'static str>,
    range: Range,
    default: FieldValue,
    meaning: &'static str,
}

const fn row(
    field: Field,
    name: &'static str,
    env: &'static str,
    range: Range,
    default: FieldValue,
    meaning: &'static str,
) -> Row {
    let env = if env.is_empty() { None } else { Some(env) };
    Row { field, name, env, range, default, meaning }
}

const fn integers(min: u64, max: u64) -> Range {
    Range::Integer { min, max }
}

const ENFORCE: FieldValue = FieldValue::Mode(Mode::Enforce);

#[rustfmt::skip]
const TABLE: [Row; 13] = [
    row(Field::SchemaVersion, "schemaVersion", "", integers(SCHEMA_VERSION, SCHEMA_VERSION), FieldValue::Integer(SCHEMA_VERSION),
        "version of this list of fields"),
    row(Field::Profile, "profile", "ACTUM_PROFILE", Range::Profile, FieldValue::Profile(Profile::Full),
        "preset the other fields start from"),
    row(Field::LightValidationMode, "lightValidationMode", "ACTUM_LIGHT_VALIDATION_MODE", Range::Mode, ENFORCE,
        "fast checks of the changed files after every step"),
    row(Field::HeavyValidationMode, "heavyValidationMode", "ACTUM_HEAVY_VALIDATION_MODE", Range::Mode, ENFORCE,
        "build, tests and lint on the staged result once the plan is done"),
    row(Field::MaxRuntimeCorrectionAttempts, "maxRuntimeCorrectionAttempts", "ACTUM_MAX_RUNTIME_CORRECTION_ATTEMPTS", integers(0, 5), FieldValue::Integer(5),
        "how often a failed step may be corrected before the run fails"),
    row(Field::MaxHeavyCorrectionAttempts, "maxHeavyCorrectionAttempts", "ACTUM_MAX_HEAVY_CORRECTION_ATTEMPTS", integers(0, 3), FieldValue::Integer(3),
        "how often a failed heavy validation may be corrected before the run fails"),
    row(Field::CorrectionPolicyMode, "correctionPolicyMode", "ACTUM_CORRECTION_POLICY_MODE", Range::Mode, ENFORCE,
        "audit of each correction's real diff against the limits it declared"),
    row(Field::CorrectionConvergenceMode, "correctionConvergenceMode", "ACTUM_CORRECTION_CONVERGENCE_MODE", Range::Mode, ENFORCE,
        "stop when a correction leaves the same failure or as many failures as before"),
    row(Field::PlannerTimeoutMs, "plannerTimeoutMs", "ACTUM_PLANNER_TIMEOUT_MS", integers(1_000, 300_000), FieldValue::Integer(120_000),
        "time the planner has to produce a plan, in milliseconds"),
    row(Field::MaxFilesPerStep, "maxFilesPerStep", "ACTUM_MAX_FILES_PER_STEP", integers(1, 100), FieldValue::Integer(15),
        "files one step may change"),
    row(Field::MaxTotalDiffBytes, "maxTotalDiffBytes", "ACTUM_MAX_TOTAL_DIFF_BYTES", integers(1_000, 10_000_000), FieldValue::Integer(400_000),
        "size of one step's whole diff, in bytes"),
    row(Field::MaxFileBytes, "maxFileBytes", "ACTUM_MAX_FILE_BYTES", integers(1_000, 20_000_000), FieldValue::Integer(1_500_000),
        "size of any file a step writes, in bytes"),
    row(Field::AllowEnvMutation, "allowEnvMutation", "ACTUM_ALLOW_ENV_MUTATION", Range::Boolean, FieldValue::Boolean(false),
        "whether a step may change .env files"),
];

impl Field {
    pub const COUNT: usize = TABLE.len();

    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.field)
    }

    pub fn named(name: &str) -> Option<Self> {
        TABLE.iter().find(|row| row.name == name).map(|row| row.field)
    }

    fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The variable that fills this field when nothing else does. `schemaVersion` has none.
    pub fn env(self) -> Option<&'static str> {
        self.row().env
    }

    pub fn range(self) -> Range {
        self.row().range
    }

    pub fn default_value(self) -> FieldValue {
        self.row().default
    }

    /// One line for people: what the field does.
    pub fn meaning(self) -> &'static str {
        self.row().meaning
    }

    /// Reads a value that arrived as JSON.
    pub fn read(self, value: &Value) -> Result<FieldValue, BadField> {
        let read = match self.range() {
            Range::Profile => value.as_str().and_then(profile_named).map(FieldValue::Profile),
            Range::Mode => value.as_str().and_then(mode_named).map(FieldValue::Mode),
            Range::Boolean => value.as_bool().map(FieldValue::Boolean),
            Range::Integer { min, max } => value.as_u64().filter(|n| (min..=max).contains(n)).map(FieldValue::Integer),
        };
        read.ok_or_else(|| BadField::outside(self, value.to_string()))
    }

    /// Reads a value that arrived as words: a flag or an environment variable.
    pub fn read_text(self, text: &str) -> Result<FieldValue, BadField> {
        let value = match self.range() {
            Range::Profile | Range::Mode => Value::String(text.to_owned()),
            Range::Boolean if text == "true" || text == "false" => Value::Bool(text == "true"),
            Range::Integer { .. } if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) => {
                text.parse::<u64>().map_or(Value::Null, Value::from)
            }
            _ => Value::Null,
        };
        self.read(&value).map_err(|_| BadField::outside(self, format!("{text:?}")))
    }
}

fn profile_named(name: &str) -> Option<Profile> {
    Profile::ALL.into_iter().find(|p| p.name() == name)
}

fn mode_named(name: &str) -> Option<Mode> {
    Mode::ALL.into_iter().find(|m| m.name() == name)
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Profile => f.write_str("full, ci or smoke"),
            Self::Mode => f.write_str("off, warn or enforce"),
            Self::Boolean => f.write_str("true or false"),
            Self::Integer { min, max } if min == max => write!(f, "exactly {min}"),
            Self::Integer { min, max } => write!(f, "a whole number from {min} to {max}"),
        }
    }
}

impl FieldValue {
    pub fn to_json(self) -> Value {
        match self {
            Self::Profile(p) => json!(p.name()),
            Self::Mode(m) => json!(m.name()),
            Self::Integer(n) => json!(n),
            Self::Boolean(b) => json!(b),
        }
    }
}

impl fmt::Display for FieldValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Profile(p) => f.write_str(p.name()),
            Self::Mode(m) => f.write_str(m.name()),
            Self::Integer(n) => write!(f, "{n}"),
            Self::Boolean(b) => write!(f, "{b}"),
        }
    }
}

impl ExecutionConfig {
    pub fn get(&self, field: Field) -> FieldValue {
        match field {
            Field::SchemaVersion => FieldValue::Integer(self.schema_version),
            Field::Profile => FieldValue::Profile(self.profile),
            Field::LightValidationMode => FieldValue::Mode(self.light_validation_mode),
            Field::HeavyValidationMode => FieldValue::Mode(self.heavy_validation_mode),
            Field::MaxRuntimeCorrectionAttempts => FieldValue::Integer(self.max_runtime_correction_attempts),
            Field::MaxHeavyCorrectionAttempts => FieldValue::Integer(self.max_heavy_correction_attempts),
            Field::CorrectionPolicyMode => FieldValue::Mode(self.correction_policy_mode),
            Field::CorrectionConvergenceMode => FieldValue::Mode(self.correction_convergence_mode),
            Field::PlannerTimeoutMs => FieldValue::Integer(self.planner_timeout_ms),
            Field::MaxFilesPerStep => FieldValue::Integer(self.max_files_per_step),
            Field::MaxTotalDiffBytes => FieldValue::Integer(self.max_total_diff_bytes),
            Field::MaxFileBytes => FieldValue::Integer(self.max_file_bytes),
            Field::AllowEnvMutation => FieldValue::Boolean(self.allow_env_mutation),
        }
    }

    /// Builds a config out of one value per field; each must be of its field's kind, as readers guarantee.
    pub(crate) fn build(value_of: impl Fn(Field) -> FieldValue) -> Self {
        let profile = |f| match value_of(f) {
            FieldValue::Profile(p) => p,
            _ => Profile::Full,
        };
        let mode = |f| match value_of(f) {
            FieldValue::Mode(m) => m,
            _ => Mode::Enforce,
        };
        let integer = |f| match value_of(f) {
            FieldValue::Integer(n) => n,
            _ => 0,
        };
        Self {
            schema_version: integer(Field::SchemaVersion),
            profile: profile(Field::Profile),
            light_validation_mode: mode(Field::LightValidationMode),
            heavy_validation_mode: mode(Field::HeavyValidationMode),
            max_runtime_correction_attempts: integer(Field::MaxRuntimeCorrectionAttempts),
            max_heavy_correction_attempts: integer(Field::MaxHeavyCorrectionAttempts),
            correction_policy_mode: mode(Field::CorrectionPolicyMode),
            correction_convergence_mode: mode(Field::CorrectionConvergenceMode),
            planner_timeout_ms: integer(Field::PlannerTimeoutMs),
            max_files_per_step: integer(Field::MaxFilesPerStep),
            max_total_diff_bytes: integer(Field::MaxTotalDiffBytes),
            max_file_bytes: integer(Field::MaxFileBytes),
            allow_env_mutation: value_of(Field::AllowEnvMutation) == FieldValue::Boolean(true),
        }
    }

    /// Reads a complete config; a missing field is as bad as a wrong one.
    pub fn read(value: &Value) -> Result<Self, BadConfig> {
        let partial = Partial::read(value)?;
        let missing: Vec<_> = Field::all().filter(|f| partial.get(*f).is_none()).map(BadField::missing).collect();
        if !missing.is_empty() {
            return Err(BadConfig { fields: missing, rest: Box::new(partial) });
        }
        Ok(Self::build(|field| partial.get(field).unwrap_or(field.default_value())))
    }
}

/// Some of the fields: what a file, a flag, a request or a preset sets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Partial([Option<FieldValue>; Field::COUNT]);

impl Partial {
    pub fn get(&self, field: Field) -> Option<FieldValue> {
        self.0[field as usize]
    }

    pub fn set(&mut self, field: Field, value: FieldValue) {
        self.0[field as usize] = Some(value);
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// `over` wins where both set a field.
    pub fn overlaid(mut self, over: &Self) -> Self {
        for field in Field::all() {
            if let Some(value) = over.get(field) {
                self.set(field, value);
            }
        }
        self
    }

    /// Reads an object of fields. All bad and unknown ones are reported together.
    pub fn read(value: &Value) -> Result<Self, BadConfig> {
        let Value::Object(members) = value else {
            return Err(BadConfig::new(vec![BadField::not_an_object(value)]));
        };
        Self::collect(members.iter().map(|(name, value)| match Field::named(name) {
            Some(field) => field.read(value).map(|v| (field, v)),
            None => Err(BadField::unknown(name, value.to_string())),
        }))
    }

    /// Reads `FIELD=VALUE` words. Naming a field twice is refused: one of the two would be lost.
    pub fn read_words<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, BadConfig> {
        let mut seen = Vec::new();
        Self::collect(words.into_iter().map(|word| {
            let Some((name, text)) = word.split_once('=') else {
                return Err(BadField::not_a_pair(word));
            };
            let field = Field::named(name).ok_or_else(|| BadField::unknown(name, format!("{text:?}")))?;
            if seen.contains(&field) {
                return Err(BadField::twice(field, text));
            }
            seen.push(field);
            field.read_text(text).map(|v| (field, v))
        }))
    }

    fn collect(reads: impl Iterator<Item = Result<(Field, FieldValue), BadField>>) -> Result<Self, BadConfig> {
        let (mut partial, mut bad) = (Self::default(), Vec::new());
        for read in reads {
            match read {
                Ok((field, value)) => partial.set(field, value),
                Err(field) => bad.push(field),
            }
        }
        if bad.is_empty() { Ok(partial) } else { Err(BadConfig { fields: bad, rest: Box::new(partial) }) }
    }
}

/// JSON Schema of the config, from the table.
pub fn json_schema() -> Value {
    let properties: Map<_, _> = TABLE
        .iter()
        .map(|row| {
            let mut schema = match row.range {
                Range::Profile => json!({"enum": Profile::ALL.map(Profile::name)}),
                Range::Mode => json!({"enum": Mode::ALL.map(Mode::name)}),
                Range::Boolean => json!({"type": "boolean"}),
                Range::Integer { min, max } => json!({"type": "integer", "minimum": min, "maximum": max}),
            };
            schema["description"] = json!(row.meaning);
            schema["default"] = row.default.to_json();
            (row.name.to_owned(), schema)
        })
        .collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "execution config",
        "description": "Fields that a request, a file or a flag may set; those left out are resolved.",
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_fields() {
        for (i, row) in TABLE.iter().enumerate() {
            assert_eq!(row.field as usize, i, "{}", row.name);
            assert!(row.field.read(&row.default.to_json()).is_ok(), "default of {}", row.name);
        }
    }

    #[test]
    fn every_bad_field_is_reported_with_its_value_and_range() {
        let bad = Partial::read(&json!({
            "plannerTimeoutMs": 999, "lightValidationMode": "Warn", "maxFilesPerStep": 15.5, "allowEnvMutation": "true",
            "plannerTimeoutMS": 1000, "schemaVersion": 2, "maxHeavyCorrectionAttempts": -1, "profile": null,
        }))
        .unwrap_err();
        assert_eq!(bad.fields.len(), 8);
        let text = bad.to_string();
        assert!(text.contains("plannerTimeoutMs is 999, expected a whole number from 1000 to 300000"), "{text}");
        assert!(text.contains("lightValidationMode is \"Warn\", expected off, warn or enforce"), "{text}");
        assert!(
            text.contains("plannerTimeoutMS is no field of an execution config; did you mean plannerTimeoutMs?"),
            "{text}"
        );
        assert!(text.contains("schemaVersion is 2, expected exactly 1"), "{text}");
    }

    #[test]
    fn borders_are_inside_and_one_beyond_is_outside() {
        for field in Field::all() {
            if let Range::Integer { min, max } = field.range() {
                assert!(field.read(&json!(min)).is_ok() && field.read(&json!(max)).is_ok());
                assert!(field.read(&json!(max + 1)).is_err());
                assert!(min == 0 || field.read(&json!(min - 1)).is_err());
                for text in ["", " 5", "+5", "5.0", "0x5", "5 ", "-0", "99999999999999999999999"] {
                    assert!(field.read_text(text).is_err(), "{} took {text:?}", field.name());
                }
            }
        }
        for text in ["", "TRUE", "1", "yes"] {
            assert!(Field::AllowEnvMutation.read_text(text).is_err());
        }
    }

    #[test]
    fn words_name_a_field_once() {
        let bad = Partial::read_words(["maxFileBytes=1000", "maxFileBytes=2000", "profile", "x=1"]).unwrap_err();
        assert_eq!(bad.fields.len(), 3);
        let long = "x".repeat(1_000_000);
        let bad = Partial::read_words([format!("{long}={long}").as_str()]).unwrap_err();
        assert!(bad.to_string().len() < 300);
        let ok = Partial::read_words(["maxFileBytes=1000", "profile=ci"]).unwrap();
        assert_eq!(ok.get(Field::MaxFileBytes), Some(FieldValue::Integer(1000)));
    }

    #[test]
    fn a_complete_config_survives_its_own_text() {
        let config = ExecutionConfig::build(Field::default_value);
        let value = serde_json::to_value(&config).unwrap();
        assert_eq!(ExecutionConfig::read(&value).unwrap(), config);
        let mut short = value.clone();
        short.as_object_mut().unwrap().remove("profile");
        assert_eq!(ExecutionConfig::read(&short).unwrap_err().fields[0].field, "profile");
        for field in Field::all() {
            assert_eq!(config.get(field).to_json(), value[field.name()]);
        }
    }
}
