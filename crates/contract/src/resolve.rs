//! Resolution: from what is persisted, requested and in the environment to one normalised config, with provenance.
//!
//! Called by `cli` for every command that takes a contract, and by the engine at submission and resume. The caller
//! reads the environment; this never does.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::bad::BadConfig;
use crate::policy::determinism::{self, Given, Named};
use crate::schema::{ExecutionConfig, Field, FieldValue, Partial, Profile};

/// Where the value of a field came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Persisted,
    Explicit,
    Preset,
    Env,
    Default,
}

impl Source {
    pub fn name(self) -> &'static str {
        match self {
            Self::Persisted => "persisted",
            Self::Explicit => "explicit",
            Self::Preset => "preset",
            Self::Env => "env",
            Self::Default => "default",
        }
    }
}

/// The layers of one resolution. `env` holds the variables that are set, by field, unread.
#[derive(Debug, Clone, Copy)]
pub struct Layers<'a> {
    pub persisted: Option<&'a ExecutionConfig>,
    pub requested: &'a Partial,
    pub env: &'a BTreeMap<Field, String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    pub config: ExecutionConfig,
    provenance: [Source; Field::COUNT],
}

impl Resolved {
    pub fn source(&self, field: Field) -> Source {
        self.provenance[field as usize]
    }

    /// Exactly the fields whose value came from an environment variable that was set, in declared order.
    pub fn fallback_fields(&self) -> Vec<Field> {
        Field::all().filter(|f| self.source(*f) == Source::Env).collect()
    }

    pub fn provenance_json(&self) -> Value {
        Field::all().map(|f| (f.name().to_owned(), json!(self.source(f).name()))).collect::<Map<_, _>>().into()
    }
}

/// Resolves every field. A variable is read only if its value is used, and then refused if it is bad.
pub fn resolve(layers: Layers<'_>) -> Result<Resolved, BadConfig> {
    let Layers { persisted, requested, env } = layers;
    let mut bad = Vec::new();

    let mut from_env = |field: Field| {
        let text = env.get(&field).map_or("", String::as_str);
        field.read_text(text).unwrap_or_else(|mut e| {
            e.variable = field.env();
            bad.push(e);
            field.default_value()
        })
    };

    let (named, profile) = match (requested.get(Field::Profile), persisted) {
        (Some(FieldValue::Profile(p)), _) => (Named::Request, p),
        (_, None) if env.contains_key(&Field::Profile) => match from_env(Field::Profile) {
            FieldValue::Profile(p) => (Named::Environment, p),
            _ => (Named::Environment, Profile::Full),
        },
        _ => (Named::Nobody, Profile::Full),
    };
    let preset = profile.preset();

    let mut provenance = [Source::Default; Field::COUNT];
    let mut values = [FieldValue::Integer(0); Field::COUNT];
    for field in Field::all() {
        let source = determinism::source(Given {
            persisted: persisted.is_some(),
            explicit: requested.get(field).is_some(),
            profile: named,
            preset: preset.get(field).is_some(),
            env: env.contains_key(&field),
        });
        let value = match source {
            Source::Explicit => requested.get(field),
            Source::Preset => preset.get(field),
            Source::Persisted => persisted.map(|config| config.get(field)),
            Source::Env if field == Field::Profile => Some(FieldValue::Profile(profile)),
            Source::Env => Some(from_env(field)),
            Source::Default => None,
        };
        values[field as usize] = value.unwrap_or(field.default_value());
        provenance[field as usize] = source;
    }
    if !bad.is_empty() {
        return Err(BadConfig::new(bad));
    }
    Ok(Resolved { config: ExecutionConfig::build(|field| values[field as usize]), provenance })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words(words: &[&str]) -> Partial {
        Partial::read_words(words.iter().copied()).unwrap()
    }

    fn vars(pairs: &[(Field, &str)]) -> BTreeMap<Field, String> {
        pairs.iter().map(|(f, v)| (*f, (*v).to_owned())).collect()
    }

    fn fresh(requested: &[&str], env: &[(Field, &str)]) -> Resolved {
        resolve(Layers { persisted: None, requested: &words(requested), env: &vars(env) }).unwrap()
    }

    #[test]
    fn nothing_given_is_full_by_default() {
        let r = fresh(&[], &[]);
        assert!(Field::all().all(|f| r.source(f) == Source::Default && r.config.get(f) == f.default_value()));
        assert!(r.fallback_fields().is_empty());
    }

    #[test]
    fn a_profile_sets_its_seven_fields_and_keeps_the_rest() {
        for (name, expected) in [("ci", 7), ("smoke", 7), ("full", 0)] {
            let r = fresh(&[&format!("profile={name}")], &[]);
            assert_eq!(r.source(Field::Profile), Source::Explicit);
            assert_eq!(Field::all().filter(|f| r.source(*f) == Source::Preset).count(), expected, "{name}");
        }
        assert_eq!(fresh(&["profile=ci"], &[]).config.planner_timeout_ms, 5_000);
        assert_eq!(fresh(&["profile=ci", "plannerTimeoutMs=7000"], &[]).config.planner_timeout_ms, 7_000);
    }

    #[test]
    fn the_environment_fills_only_what_nothing_above_set() {
        let env = [(Field::PlannerTimeoutMs, "9000"), (Field::MaxFilesPerStep, "3"), (Field::MaxFileBytes, "2000")];
        let r = fresh(&["profile=ci", "maxFileBytes=5000"], &env);
        assert_eq!(r.config.planner_timeout_ms, 5_000);
        assert_eq!(r.config.max_file_bytes, 5_000);
        assert_eq!(r.config.max_files_per_step, 3);
        assert_eq!(r.fallback_fields(), [Field::MaxFilesPerStep]);
    }

    #[test]
    fn a_profile_named_by_the_environment_yields_to_a_variable_for_the_field() {
        let r = fresh(&[], &[(Field::Profile, "ci"), (Field::PlannerTimeoutMs, "9000")]);
        assert_eq!(r.fallback_fields(), [Field::Profile, Field::PlannerTimeoutMs]);
        assert_eq!((r.config.profile, r.config.planner_timeout_ms), (Profile::Ci, 9_000));
        assert_eq!(r.source(Field::LightValidationMode), Source::Preset);
    }

    #[test]
    fn a_persisted_contract_shuts_the_environment_out() {
        let persisted = fresh(&["profile=smoke", "maxFilesPerStep=7"], &[]).config;
        // Not even a bad variable matters: it is never read.
        let env = vars(&[(Field::MaxFilesPerStep, "nonsense"), (Field::Profile, "ci"), (Field::MaxFileBytes, "2000")]);
        let keep = resolve(Layers { persisted: Some(&persisted), requested: &Partial::default(), env: &env }).unwrap();
        assert_eq!(keep.config, persisted);
        assert!(Field::all().all(|f| keep.source(f) == Source::Persisted));
        // A request without a profile goes over it; one with a profile starts afresh.
        let requested = words(&["maxFileBytes=4000"]);
        let over = resolve(Layers { persisted: Some(&persisted), requested: &requested, env: &env }).unwrap();
        assert_eq!(over.config, ExecutionConfig { max_file_bytes: 4_000, ..persisted.clone() });
        let requested = words(&["profile=full"]);
        let anew = resolve(Layers { persisted: Some(&persisted), requested: &requested, env: &env }).unwrap();
        assert_eq!(anew.config, fresh(&[], &[]).config);
    }

    #[test]
    fn every_bad_variable_is_named() {
        let env = vars(&[(Field::MaxFilesPerStep, "0"), (Field::LightValidationMode, ""), (Field::Profile, "quick")]);
        let bad = resolve(Layers { persisted: None, requested: &Partial::default(), env: &env }).unwrap_err();
        let text = bad.to_string();
        assert_eq!(bad.fields.len(), 3, "{text}");
        assert!(text.contains("maxFilesPerStep is \"0\" (from ACTUM_MAX_FILES_PER_STEP), expected"), "{text}");
    }

    /// The rule of D-004 in other words, as an oracle: a list of layers, the first that has the field wins.
    fn oracle(
        field: Field,
        persisted: Option<&ExecutionConfig>,
        requested: &Partial,
        env: &Partial,
    ) -> (FieldValue, Source) {
        let mut layers: Vec<(Option<FieldValue>, Source)> = vec![(requested.get(field), Source::Explicit)];
        let preset_of = |p: Option<FieldValue>| match p {
            Some(FieldValue::Profile(p)) => p.preset(),
            _ => Partial::default(),
        };
        if requested.get(Field::Profile).is_some() {
            layers.push((preset_of(requested.get(Field::Profile)).get(field), Source::Preset));
        } else if let Some(p) = persisted {
            layers.push((Some(p.get(field)), Source::Persisted));
        }
        if persisted.is_none() {
            layers.push((env.get(field), Source::Env));
            if requested.get(Field::Profile).is_none() {
                layers.push((preset_of(env.get(Field::Profile)).get(field), Source::Preset));
            }
        }
        layers.push((Some(field.default_value()), Source::Default));
        layers.into_iter().find_map(|(v, s)| v.map(|v| (v, s))).unwrap()
    }

    fn partials() -> impl Strategy<Value = Partial> {
        let choose = |field: Field| match field.range() {
            crate::schema::Range::Profile => {
                proptest::sample::select(Profile::ALL.to_vec()).prop_map(FieldValue::Profile).boxed()
            }
            crate::schema::Range::Mode => {
                proptest::sample::select(crate::schema::Mode::ALL.to_vec()).prop_map(FieldValue::Mode).boxed()
            }
            crate::schema::Range::Boolean => any::<bool>().prop_map(FieldValue::Boolean).boxed(),
            crate::schema::Range::Integer { min, max } => (min..=max).prop_map(FieldValue::Integer).boxed(),
        };
        let fields: Vec<_> = Field::all().filter(|f| f.env().is_some()).collect();
        fields.iter().map(|f| proptest::option::of(choose(*f))).collect::<Vec<_>>().prop_map(move |values| {
            let mut partial = Partial::default();
            for (&field, value) in fields.iter().zip(values) {
                if let Some(value) = value {
                    partial.set(field, value);
                }
            }
            partial
        })
    }

    proptest! {
        #[test]
        fn resolution_agrees_with_the_oracle(base in proptest::option::of(partials()), requested in partials(), env in partials()) {
            let none = BTreeMap::new();
            let persisted = base.map(|b| resolve(Layers { persisted: None, requested: &b, env: &none }).unwrap().config);
            let vars: BTreeMap<_, _> = Field::all()
                .filter_map(|f| env.get(f).map(|v| (f, v.to_string())))
                .collect();
            let r = resolve(Layers { persisted: persisted.as_ref(), requested: &requested, env: &vars }).unwrap();
            for field in Field::all() {
                prop_assert_eq!((r.config.get(field), r.source(field)), oracle(field, persisted.as_ref(), &requested, &env), "{}", field.name());
            }
        }
    }
}
