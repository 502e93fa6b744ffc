//! `actum contract` and `actum canon` as a person and a program meet them.

use actum_testkit::program::Program;
use serde_json::{Value, json};

use super::actum;

const FULL: &str = "eaa65ae6e4c8366fb3b20b76295914499fbe5f03f5e0c9a1b294d015badc7868";
const CI: &str = "fc3f86dbbd662d3a78b6ce9a750603a313ff900b17b4786476481bb8f70ce2e4";
const SMOKE: &str = "26a946c01889648e03013e7f2f4659b7aec0ad9aea5544701b6d7575e92c27aa";

#[test]
fn golden_hashes() {
    let actum = actum();
    assert_eq!(actum.run(&["contract", "hash"]).ok().trim(), FULL);
    for (profile, hash) in [("full", FULL), ("ci", CI), ("smoke", SMOKE)] {
        assert_eq!(actum.run(&["contract", "hash", "--profile", profile]).ok().trim(), hash);
    }
    // Asking for a hash needs neither a project nor a store, and leaves none behind.
    assert_eq!(std::fs::read_dir(actum.folder()).unwrap().count(), 0);
}

#[test]
fn hash_as_json_has_material_config_and_honest_provenance() {
    let actum = actum().with_env("ACTUM_MAX_FILES_PER_STEP", "3").with_env("ACTUM_PLANNER_TIMEOUT_MS", "9000");
    let value = actum.run(&["--json", "contract", "hash", "--profile", "ci", "--set", "maxFileBytes=2000"]).json();
    assert_eq!(value["fallbackUsed"], true);
    assert_eq!(value["fallbackFields"], json!(["maxFilesPerStep"]));
    let provenance = |field: &str| value["provenance"][field].as_str().unwrap().to_owned();
    assert_eq!(provenance("profile"), "explicit");
    assert_eq!(provenance("plannerTimeoutMs"), "preset");
    assert_eq!(provenance("maxFilesPerStep"), "env");
    assert_eq!(provenance("maxFileBytes"), "explicit");
    assert_eq!(provenance("maxTotalDiffBytes"), "default");
    assert_eq!(value["material"]["normalizedExecutionConfig"], value["effectiveExecutionConfig"]);
    // The hash is the one anybody gets over the material.
    let material = actum.file("material.json", value["material"].to_string());
    let hash = actum.run(&["canon", "--hash", "sha256", material.to_str().unwrap()]).ok();
    assert_eq!(hash.trim(), value["hash"].as_str().unwrap());
}

#[test]
fn a_config_file_may_be_json_yaml_or_toml() {
    let actum = actum();
    actum.file("c.json", r#"{"profile": "smoke", "maxFileBytes": 2000}"#);
    actum.file("c.yaml", "profile: smoke\nmaxFileBytes: 2000\n");
    actum.file("c.toml", "profile = \"smoke\"\nmaxFileBytes = 2000\n");
    let hash = |name: &str| actum.run(&["contract", "hash", "--config", name]).ok();
    assert_eq!(hash("c.json"), hash("c.yaml"));
    assert_eq!(hash("c.json"), hash("c.toml"));
    // The words of the schema are words in YAML too.
    for mode in ["off", "warn", "enforce"] {
        actum.file("m.yaml", format!("lightValidationMode: {mode}\n"));
        let value = actum.run(&["contract", "hash", "--config", "m.yaml", "--json"]).json();
        assert_eq!(value["effectiveExecutionConfig"]["lightValidationMode"], mode);
    }
    let over = actum.run(&["contract", "hash", "--config", "c.yaml", "--set", "maxFileBytes=1500000"]).ok();
    assert_eq!(over.trim(), SMOKE);
}

#[test]
fn bad_fields_are_refused_together_and_never_clamped() {
    let actum = actum().with_env("ACTUM_MAX_FILES_PER_STEP", "0").with_env("ACTUM_PROFILE", "quick");
    let ended = actum.run(&["contract", "hash", "--json"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (2, ""));
    let error = ended.error();
    assert_eq!(error["code"], "CONFIG_INVALID");
    let fields: Vec<_> = error["details"]["fields"].as_array().unwrap().iter().map(|f| f["field"].clone()).collect();
    assert_eq!(fields, [json!("profile"), json!("maxFilesPerStep")]);
    assert_eq!(error["details"]["fields"][1]["variable"], "ACTUM_MAX_FILES_PER_STEP");

    // From every source at once.
    actum.file("bad.json", "{\"maxFileBytes\": 1}");
    let ended = actum.run(&[
        "contract",
        "hash",
        "--json",
        "--profile",
        "ci",
        "--set",
        "allowEnvMutation=yes",
        "--config",
        "bad.json",
    ]);
    let error = ended.error();
    let fields: Vec<_> = error["details"]["fields"].as_array().unwrap().iter().map(|f| f["field"].clone()).collect();
    assert_eq!(fields, [json!("maxFileBytes"), json!("allowEnvMutation"), json!("maxFilesPerStep")]);

    let actum = super::actum();
    actum.file("c.yaml", "profile: ci\n\nplannerTimeoutMs: 999\nmaxFiles: 3\n");
    let ended = actum.run(&["contract", "hash", "--config", "c.yaml"]);
    insta::assert_snapshot!(ended.stderr, @r"
    error[A0102]: 2 fields of the execution config are bad
      maxFiles is no field of an execution config
      plannerTimeoutMs is 999, expected a whole number from 1000 to 300000
     --> c.yaml:4:1
      |
    4 | maxFiles: 3
      | ^
      = help: `actum contract explain` shows every field with its range
      = see: docs/errors/A0102.md
    ");
    for bad in ["maxFileBytes", "maxFileBytes=", "maxFileBytes=1e3", "schemaVersion=2", "allowEnvMutation=yes"] {
        assert_eq!(actum.run(&["contract", "hash", "--set", bad]).code, 2, "{bad}");
    }
    let twice = actum.run(&["contract", "hash", "--set", "maxFileBytes=1000", "--set", "maxFileBytes=2000"]);
    assert!(twice.stderr.contains("set only once"), "{}", twice.stderr);
}

#[test]
fn explain_tells_where_each_value_comes_from() {
    let actum = actum().with_env("ACTUM_MAX_FILES_PER_STEP", "3");
    insta::assert_snapshot!(actum.run(&["contract", "explain", "--profile", "ci"]).ok());
    let fields = actum.run(&["contract", "explain", "--json"]).json()["fields"].clone();
    assert_eq!(fields.as_array().unwrap().len(), 13);
}

#[test]
fn show_and_diff() {
    let actum = actum();
    insta::assert_snapshot!(actum.run(&["contract", "show", "--profile", "smoke"]).ok());
    let diff = actum.run(&["contract", "diff", "full", "ci", "--json"]).json();
    assert_eq!((diff["identical"].clone(), diff["diff"].as_array().unwrap().len()), (json!(false), 8));
    assert_eq!(diff["diff"][0], json!({"field": "profile", "a": "full", "b": "ci"}));
    actum.file("same.json", r#"{"profile": "ci"}"#);
    assert_eq!(actum.run(&["contract", "diff", "same.json", "ci"]).ok(), format!("identical: {CI}\n"));
    assert_eq!(actum.run(&["contract", "diff", "full", "nothing"]).code, 7);
}

/// The seven keys, as a worker would have stored them.
fn metadata(actum: &Program) -> Value {
    let value = actum.run(&["contract", "hash", "--json"]).json();
    json!({
        "executionConfig": value["effectiveExecutionConfig"], "effectiveExecutionConfig": value["effectiveExecutionConfig"],
        "executionContractSchemaVersion": 1, "executionContractHash": value["hash"],
        "executionContractMaterial": value["material"], "executionContractFallbackUsed": value["fallbackUsed"],
        "executionContractFallbackFields": value["fallbackFields"], "owner": "somebody",
    })
}

#[test]
fn check_accepts_what_is_whole_and_fails_closed_on_the_rest() {
    let actum = actum();
    let check = |value: &Value| actum.run_with(&["contract", "check", "-", "--json"], value.to_string().as_bytes());
    let whole = metadata(&actum);
    assert_eq!(check(&whole).json()["hash"], FULL);
    assert_eq!(check(&json!({"owner": "somebody"})).json()["stored"], "legacy");

    let mut partial = whole.clone();
    partial.as_object_mut().unwrap().remove("executionContractHash");
    let ended = check(&partial);
    assert_eq!((ended.code, ended.error()["code"].clone()), (5, json!("CONTRACT_MISMATCH")));
    let mut altered = whole.clone();
    altered["effectiveExecutionConfig"]["maxFileBytes"] = json!(2000);
    let ended = check(&altered);
    assert_eq!((ended.code, ended.error()["code"].clone()), (5, json!("CONTRACT_MISMATCH")));
    let mut newer = whole;
    newer["executionContractMaterial"]["plannerPolicyVersion"] = json!(2);
    let ended = check(&newer);
    assert_eq!((ended.code, ended.error()["code"].clone()), (5, json!("UNSUPPORTED_CONTRACT")));
    assert_eq!(ended.error()["details"]["supportedRanges"]["plannerPolicyVersions"], json!([1]));
}

#[test]
fn canon_prints_the_canonical_text_and_nothing_else() {
    let actum = actum();
    let ended = actum.run_with(&["canon"], "{\"\u{20ac}\": 1, \"b\": [4.50, 1E30, -0], \"a\": \"\\u000f\"}".as_bytes());
    assert_eq!(ended.ok(), "{\"a\":\"\\u000f\",\"b\":[4.5,1e+30,0],\"\u{20ac}\":1}");
    let hash = |algorithm: &str| actum.run_with(&["canon", "--hash", algorithm], b"[]").ok();
    assert_eq!(hash("sha256").trim(), "4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945");
    assert_eq!(hash("blake3").trim().len(), 64);
}
