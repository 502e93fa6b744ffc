//! `actum ledger` on one machine.

use actum_ledger::checkpoint::parse_proof;
use actum_testkit::event::{event, signal};
use actum_testkit::program::Program;
use serde_json::{Value, json};
use signed_note::{Note, StandardVerifier, VerifierList};
use tlog_tiles::{Checkpoint, Hash, check_record, record_hash};

use super::{actum, run, runs};

fn lines(documents: &[Value]) -> Vec<u8> {
    documents.iter().flat_map(|d| format!("{d}\n").into_bytes()).collect()
}

fn life(execution: &str) -> Vec<Value> {
    ["planned", "running", "succeeded"].map(|state| event("t-001", execution, 1, state)).to_vec()
}

/// A ledger with a dependency and `n` executions.
fn filled(n: usize) -> Program {
    let actum = actum();
    let mut documents = vec![signal("t-001", "signal")];
    documents.extend((0..n).flat_map(|i| life(&format!("x-{i}"))));
    actum.run_with(&["ledger", "append", "-q"], &lines(&documents)).ok();
    actum
}

#[test]
fn the_rfcs_own_example_is_accepted_once_its_dependencies_exist() {
    let actum = actum();
    let mut example = event("t-001", "exec-001", 1, "planned");
    example["payload"]["dryRun"] = json!(false);
    example["lineage"]["dependsOnLedgerIds"] = json!(["led-100", "led-200"]);
    // Written over many lines, as people write it.
    let file = actum.file("event.json", serde_json::to_string_pretty(&example).unwrap());
    let append = || actum.run(&["ledger", "append", file.to_str().unwrap(), "--json"]);
    let early = append();
    assert_eq!((early.code, early.json()["error"]["code"].as_str()), (2, Some("UNKNOWN_LINEAGE")));
    actum.run_with(&["ledger", "append"], &lines(&[signal("t-001", "led-100"), signal("t-001", "led-200")])).ok();
    let first = append().json();
    assert_eq!((&first["ok"], &first["idempotent"]), (&json!(true), &json!(false)));
    let second = append().json();
    assert_eq!((&second["ok"], &second["idempotent"], &second["id"]), (&json!(true), &json!(true), &first["id"]));
    // An entry may leave its time and its id to the ledger.
    let plain = json!({"tenantId": "t-001", "module": "m", "source": "s", "type": "note", "payload": {}});
    actum.run_with(&["ledger", "append"], &lines(&[plain.clone(), plain])).ok();
    assert_eq!(actum.run(&["ledger", "verify", "--json"]).json()["valid"], true);
    example["payload"]["target"] = json!("elsewhere");
    std::fs::write(&file, example.to_string()).unwrap();
    let conflict = append();
    assert_eq!((conflict.code, conflict.json()["error"]["code"].as_str()), (6, Some("IDEMPOTENCY_CONFLICT")));
    assert_eq!(conflict.json()["error"]["details"]["violations"][0]["path"], "payload.target");
}

#[test]
fn each_refusal_has_its_exit_code() {
    let actum = filled(1);
    let mut broken = event("t-001", "y", 1, "planned");
    broken["payload"].as_object_mut().unwrap().remove("target");
    let mut conflicting = event("t-001", "x-0", 1, "planned");
    conflicting["payload"]["target"] = json!("elsewhere");
    let mut unknown = event("t-001", "y", 1, "planned");
    unknown["lineage"]["dependsOnLedgerIds"] = json!(["nowhere"]);
    let mut blocked = event("t-001", "y", 1, "planned");
    blocked["payload"]["coherenceStatus"] = json!("partial");
    let cases = [
        (broken, 2, "VALIDATION_ERROR"),
        (conflicting, 6, "IDEMPOTENCY_CONFLICT"),
        (unknown, 2, "UNKNOWN_LINEAGE"),
        (event("t-001", "y", 1, "running"), 6, "INVALID_TRANSITION"),
        (blocked, 3, "COHERENCE_BLOCKED"),
    ];
    for (document, code, name) in &cases {
        let ended = actum.run_with(&["ledger", "append", "--json"], &lines(std::slice::from_ref(document)));
        assert_eq!((ended.code, ended.json()["error"]["code"].as_str()), (*code, Some(*name)));
    }
    let rejected = actum.run(&["ledger", "rejected", "--json", "--tenant", "t-001"]).json();
    let codes: Vec<_> = rejected["rejected"].as_array().unwrap().iter().map(|r| r["code"].as_str().unwrap()).collect();
    assert_eq!(codes, cases.each_ref().map(|c| c.2).into_iter().rev().collect::<Vec<_>>());
}

#[test]
fn an_answer_comes_before_the_next_question() {
    let actum = actum();
    let mut running = actum.start(&["ledger", "append", "--json", "-"], &[]);
    for n in 0..5 {
        assert!(running.send(&signal("t", &format!("s-{n}")).to_string()));
        let answer: Value = serde_json::from_str(&running.line().unwrap()).unwrap();
        assert_eq!((answer["ok"].as_bool(), answer["seq"].as_u64()), (Some(true), Some(n)));
    }
    assert_eq!(running.finish().0, 0);
}

#[test]
fn pages_follow_each_other_without_gap_or_overlap() {
    let actum = filled(5);
    actum.run_with(&["ledger", "append"], &lines(&[signal("zoe", "z-1"), signal("zoe", "z-2")])).ok();
    let (mut seen, mut cursor, mut pages) = (Vec::new(), None::<String>, 0);
    loop {
        let mut arguments = vec!["ledger", "list", "--json", "--limit", "4"];
        arguments.extend(cursor.iter().flat_map(|c| ["--cursor", c.as_str()]));
        let page = actum.run(&arguments).json();
        let entries = page["entries"].as_array().unwrap();
        seen.extend(entries.iter().map(|e| (e["tenantId"].as_str().unwrap().to_owned(), e["seq"].as_u64().unwrap())));
        pages += 1;
        match page["next_cursor"].as_str() {
            Some(next) => cursor = Some(next.to_owned()),
            None => break,
        }
    }
    let expected: Vec<_> =
        (0..16).map(|n| ("t-001".to_owned(), n)).chain((0..2).map(|n| ("zoe".to_owned(), n))).collect();
    assert_eq!((seen, pages), (expected, 5));
    let events = actum.run(&["ledger", "list", "--json", "--execution", "x-3"]).json();
    let states: Vec<_> = events["entries"].as_array().unwrap().iter().map(|e| e["state"].clone()).collect();
    assert_eq!(states, [json!("planned"), json!("running"), json!("succeeded")]);
    let signals = actum.run(&["ledger", "list", "--json", "--type", "signal"]).json();
    assert_eq!(signals["entries"].as_array().unwrap().len(), 3);
    // Several tenants: what concerns one log asks which.
    let which = actum.run(&["ledger", "checkpoint"]);
    assert_eq!(which.code, 2);
    assert!(which.stderr.contains("--tenant: t-001, zoe"), "{}", which.stderr);
    assert!(actum.run(&["ledger", "verify"]).ok().contains("ledger of zoe holds: 2 entries"));
}

#[test]
fn strangers_check_a_proof_with_public_tools() {
    let actum = filled(100);
    let shown = actum.run(&["ledger", "list", "--json", "--execution", "x-77"]).json();
    let id = shown["entries"][1]["id"].as_str().unwrap();
    let proof = actum.run(&["ledger", "proof", id, "--json"]).json();
    let text = actum.run(&["ledger", "proof", id]).ok();
    assert_eq!(text, proof["proof"].as_str().unwrap());
    let (index, hashes, note) = parse_proof(&text).unwrap();
    // Who signed the checkpoint: the key the project shows.
    let verifier = StandardVerifier::new(proof["verifier_key"].as_str().unwrap()).unwrap();
    let note = Note::from_bytes(note.as_bytes()).unwrap();
    note.verify(&VerifierList::new(vec![Box::new(verifier)])).unwrap();
    let head = Checkpoint::from_bytes(note.text()).unwrap();
    // That the entry is in the tree it names.
    let leaf = record_hash(proof["leaf"].as_str().unwrap().as_bytes());
    let hashes: Vec<_> = hashes.iter().map(|h| Hash(h.0)).collect();
    check_record(&hashes, head.size(), *head.hash(), index, leaf).unwrap();
    assert!(check_record(&hashes, head.size(), *head.hash(), index + 1, leaf).is_err());
    let entry = actum.run(&["ledger", "show", id, "--json"]).json();
    assert_eq!(entry["hash"], proof["leaf_hash"]);
    assert_eq!(entry["assessed"]["coherence"], "coherent");
}

#[test]
fn the_key_is_made_once_and_kept_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let actum = actum();
    let first = actum.run(&["key", "show", "--json"]).json();
    assert_eq!(actum.run(&["key", "show", "--json"]).json(), first);
    assert!(actum.run(&["key", "show", "--pem"]).ok().starts_with("-----BEGIN PUBLIC KEY-----"));
    let path = actum.path(".actum/key.pem");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let open = actum.run(&["key", "show"]);
    assert_eq!(open.code, 2);
    assert!(open.stderr.contains("chmod 600"), "{}", open.stderr);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::write(&path, "nonsense").unwrap();
    assert!(actum.run(&["key", "show"]).stderr.contains("PKCS#8 PEM"));
}

#[test]
fn coherence_says_what_to_declare() {
    let actum = filled(1);
    let events = actum.run(&["ledger", "list", "--json", "--execution", "x-0"]).json();
    let id = |n: usize| events["entries"][n]["id"].as_str().unwrap().to_owned();
    let status = |arguments: &[&str]| {
        let value = actum.run(&[&["ledger", "coherence", "--json"], arguments].concat()).json();
        (value["status"].as_str().unwrap().to_owned(), value["reasons"].as_array().unwrap().len())
    };
    assert_eq!(status(&["signal", &id(2)]), ("coherent".into(), 0));
    assert_eq!(status(&["signal", "absent"]), ("partial".into(), 1));
    assert_eq!(status(&[&id(0), "absent"]), ("stale".into(), 2));
    assert_eq!(status(&["signal", "--snapshot-at", "2024-01-01T00:00:00Z"]), ("partial".into(), 1));
    assert_eq!(actum.run(&["ledger", "coherence", "signal", "--snapshot-at", "soon"]).code, 2);
}

#[test]
fn a_project_is_found_from_below_and_flags_stand_anywhere() {
    let actum = filled(0);
    std::fs::create_dir_all(actum.path("deep/below")).unwrap();
    let below = actum.run(&["-C", "deep/below", "ledger", "list", "--json"]).json();
    assert_eq!(below["entries"].as_array().unwrap().len(), 1);
    assert!(!actum.path("deep/below/.actum").exists());
    assert_eq!(actum.run(&["--json", "ledger", "list"]).stdout, actum.run(&["ledger", "list", "--json"]).stdout);
    assert_eq!(std::fs::read_to_string(actum.path(".actum/.gitignore")).unwrap(), "*\n");
    let elsewhere = actum.run(&["ledger", "list", "--json", "--store", "other.db"]).json();
    assert_eq!(elsewhere["entries"], json!([]));
}

#[test]
fn help_schemas_and_completions_are_there() {
    let actum = actum();
    for name in actum.run(&["schema", "--list"]).ok().lines() {
        let schema = actum.run(&["schema", name]).json();
        // The one that describes what is served is of another kind.
        match name {
            "openapi" => assert_eq!(schema["openapi"], "3.1.0"),
            _ => assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema", "{name}"),
        }
    }
    for shell in ["bash", "zsh", "fish"] {
        assert!(actum.run(&["completions", shell]).ok().contains("actum"));
    }
    assert!(actum.run(&["ledger", "append", "--help"]).ok().contains("producer | actum ledger append"));
    assert!(actum.run(&["--version"]).ok().starts_with("actum 0."));
}

#[test]
fn a_reader_that_goes_away_does_not_stop_an_append() {
    let actum = actum();
    let input: String = (0..3000).map(|n| format!("{}\n", signal("t", &format!("s-{n}")))).collect();
    let file = actum.file("many.jsonl", input);
    let mut running = actum.start(&["ledger", "append", file.to_str().unwrap()], &[]);
    assert!(running.line().is_some());
    assert_eq!(running.abandon(), 0);
    assert_eq!(actum.run(&["ledger", "verify", "--json"]).json()["ledgers"][0]["entries"], 3000);
}

#[test]
fn a_log_that_grew_is_shown_to_have_grown() {
    let actum = filled(30);
    let old = actum.run(&["ledger", "checkpoint", "--json"]).json();
    let more: Vec<_> = (30..50).flat_map(|i| life(&format!("x-{i}"))).collect();
    actum.run_with(&["ledger", "append", "-q"], &lines(&more)).ok();
    let new = actum.run(&["ledger", "checkpoint", "--json"]).json();
    let proof = actum.run(&["ledger", "consistency", &old["size"].to_string(), "--json"]).json();
    assert_eq!((&proof["from_root"], &proof["root"]), (&old["root"], &new["root"]));
    let hash = |v: &Value| Hash(actum_contract::digest::Digest::from_hex(v.as_str().unwrap()).unwrap().0);
    let hashes: Vec<_> = proof["hashes"].as_array().unwrap().iter().map(hash).collect();
    let (size, from) = (proof["size"].as_u64().unwrap(), proof["from"].as_u64().unwrap());
    tlog_tiles::check_tree(&hashes, size, hash(&new["root"]), from, hash(&old["root"])).unwrap();
    assert!(tlog_tiles::check_tree(&hashes, size, hash(&old["root"]), from, hash(&old["root"])).is_err());
    assert_eq!(actum.run(&["ledger", "consistency", "0"]).code, 2);
    assert_eq!(actum.run(&["ledger", "consistency", "9999"]).code, 2);
}

#[test]
fn a_tenant_without_a_ledger_is_not_found() {
    let actum = filled(1);
    for arguments in
        [&["ledger", "verify"][..], &["ledger", "checkpoint"], &["ledger", "list"], &["ledger", "show", "signal"]]
    {
        let ended = actum.run(&[arguments, &["--tenant", "typo"]].concat());
        assert_eq!(ended.code, 7, "{arguments:?}");
        assert!(ended.stderr.contains("there are t-001"), "{}", ended.stderr);
    }
}

#[test]
fn what_happens_to_a_run_is_told_by_nobody_else() {
    let actum = run::project(&[("a", "echo done > done.txt")]);
    let work = json!([run::item("x", "a")]).to_string();
    let submitted = actum.run_with(&["run", "--json", "--detach", "-"], work.as_bytes());
    let run = run::id(&submitted.json()["runs"][0]);
    let append =
        |document: &Value| actum.run_with(&["ledger", "append", "--json", "-"], &lines(std::slice::from_ref(document)));
    let mut made_up = event("local", &run, 1, "planned");
    let refused = append(&made_up);
    assert_eq!((refused.code, refused.json()["error"]["code"].as_str()), (2, Some("VALIDATION_ERROR")), "{refused:?}");
    assert!(refused.stdout.contains("is a run of this store"), "{}", refused.stdout);
    // Whoever has no such run may speak of one by that name: it is another's.
    made_up["tenantId"] = json!("t-001");
    assert_eq!(append(&made_up).json()["error"]["code"], "UNKNOWN_LINEAGE");
    runs::work(&actum, std::slice::from_ref(&run));
    assert_eq!(runs::state(&actum, &run), "succeeded");
    let mut recorded = runs::entries(&actum, "execution_event").pop().unwrap();
    // As it came.
    recorded
        .as_object_mut()
        .unwrap()
        .retain(|field, _| !["id", "seq", "prev", "hash", "recordedAt"].contains(&&**field));
    let again = append(&recorded);
    assert_eq!(
        (again.code, &again.json()["idempotent"]),
        (0, &json!(true)),
        "what is recorded may come again: {again:?}"
    );
    runs::check_project(&actum, "made up");
}
