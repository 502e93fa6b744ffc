//! Any bytes as an execution config, as the metadata of a run and as `FIELD=VALUE` words, called by libFuzzer: what is
//! accepted must survive being written and read again. It never judges what is refused, only that nothing panics.
#![no_main]

use actum_contract::metadata::{self, Stored};
use actum_contract::{Contract, ExecutionConfig, Field, Partial, canon};
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(value) = canon::parse(bytes) {
        if let Ok(partial) = Partial::read(&value) {
            check_partial(&partial);
        }
        match ExecutionConfig::read(&value) {
            Ok(config) => check_config(config),
            Err(bad) => assert!(!bad.to_string().is_empty(), "refused without a reason"),
        }
        if let Value::Object(members) = &value {
            check_metadata(members);
        }
    }
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(partial) = Partial::read_words(text.split('\n'))
    {
        check_partial(&partial);
    }
});

/// The same fields as JSON and as words are the same partial.
fn check_partial(partial: &Partial) {
    let set = || Field::all().filter_map(|field| Some((field.name(), partial.get(field)?)));
    let members: Map<_, _> = set().map(|(name, value)| (name.to_owned(), value.to_json())).collect();
    assert_eq!(Partial::read(&Value::Object(members)).as_ref(), Ok(partial));
    let words: Vec<_> = set().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(Partial::read_words(words.iter().map(String::as_str)).as_ref(), Ok(partial));
}

fn check_config(config: ExecutionConfig) {
    let value = serde_json::to_value(&config).expect("a config is JSON");
    assert_eq!(ExecutionConfig::read(&value).as_ref(), Ok(&config), "a config does not survive its own text");
    let contract = Contract::of(config);
    assert_eq!(metadata::check(&metadata::write(&contract)), Ok(Stored::Contract(contract)));
}

/// Accepted metadata holds exactly what the runtime itself would have written.
fn check_metadata(members: &Map<String, Value>) {
    match metadata::check(members) {
        Ok(Stored::Legacy) => assert!(metadata::KEYS.iter().all(|key| !members.contains_key(*key))),
        Ok(Stored::Contract(contract)) => {
            for (key, value) in metadata::write(&contract) {
                assert_eq!(members.get(&key), Some(&value), "{key}");
            }
        }
        Err(error) => {
            canon::canonical(&error.details()).expect("details are JSON");
            assert!(!error.to_string().is_empty(), "refused without a reason");
        }
    }
}
