//! The story of docs/rollout.md on examples/rollout, command by command as it stands there; then its audit from a copy of the
//! store alone, counted and hashed by the test itself.

use std::collections::BTreeMap;
use std::fs;

use actum_testkit::program::Program;
use rusqlite::{Connection, params};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::actum;
use super::run::asked;

const PAGE: &str = include_str!("../../../../docs/rollout.md");
const ID: &str = "examples/Review.v1";
const FILES: [&str; 9] = [
    "actum.toml",
    "answers.jsonl",
    "compile.yaml",
    "guard.yaml",
    "monday.jsonl",
    "review.yaml",
    "reviews.jsonl",
    "slips.yaml",
    "tuesday.jsonl",
];

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}

fn prepared(actum: Program) -> Program {
    for name in FILES {
        let path = format!("{}/../../examples/rollout/{name}", env!("CARGO_MANIFEST_DIR"));
        actum.file(name, fs::read(path).unwrap());
    }
    actum
}

/// The commands of the page, in their order, as a shell reads them.
fn commands() -> Vec<Vec<String>> {
    let typed = PAGE.lines().filter_map(|line| line.strip_prefix("$ actum "));
    let words = |line: &str| {
        let (mut words, mut word, mut is_quoted) = (Vec::new(), String::new(), false);
        for c in line.split("  #").next().unwrap_or_default().chars() {
            match c {
                '\'' => is_quoted = !is_quoted,
                ' ' if !is_quoted => words.extend(Some(std::mem::take(&mut word)).filter(|word| !word.is_empty())),
                other => word.push(other),
            }
        }
        words.extend(Some(word).filter(|word| !word.is_empty()));
        words
    };
    typed.map(words).collect()
}

/// What was told by the commands, each under the words of its command.
struct Told {
    actum: Program,
    all: Vec<(String, Vec<Value>)>,
    selected: String,
    slips: String,
}

impl Told {
    fn of(&self, words: &str) -> &[Value] {
        let found: Vec<_> = self.all.iter().filter(|(command, _)| command.contains(words)).collect();
        assert_eq!(found.len(), 1, "{words} in {:?}", self.all.iter().map(|(command, _)| command).collect::<Vec<_>>());
        &found[0].1
    }
}

/// Types everything that stands on the page. What it cannot know (`art_…`, `pred_…`) is what was told before.
fn story(actum: Program) -> Told {
    let mut told = Told { actum: prepared(actum), all: Vec::new(), selected: String::new(), slips: String::new() };
    let mut receipt = String::new();
    for words in commands() {
        let command = words.join(" ");
        let artifact = if told.slips.is_empty() { &told.selected } else { &told.slips };
        let named: Vec<&str> = words
            .iter()
            .map(|word| match word.as_str() {
                "art_…" => artifact.as_str(),
                "pred_…" => receipt.as_str(),
                other => other,
            })
            .collect();
        let ended = told.actum.run(&[&named[..], &["--json"]].concat());
        let expected = i32::from(command.contains("--max-drop"));
        assert_eq!(ended.code, expected, "{command}: {}{}", ended.stdout, ended.stderr);
        let said = ended.json_lines();
        if command.starts_with("compile ") {
            told.selected = text(&said[0]["selected_artifact"]);
        } else if command.starts_with("artifact add ") {
            told.slips = text(&said[0]["artifacts"][0]["artifact_id"]);
        } else if command.starts_with("predict ") {
            receipt = text(&said[said.len() - 1]["receipt_id"]);
        }
        told.all.push((command, said));
    }
    told
}

fn history(actum: &Program) -> Vec<Value> {
    let mut all = asked(actum, &["pointer", "history", ID, "--json"])["history"].as_array().unwrap().clone();
    all.reverse();
    all
}

fn happened(told: &Told) {
    let report = &told.of("compile compile.yaml")[0];
    let named = |one: &&Value| one["artifact_id"] == told.selected.as_str();
    let selected = report["candidate_artifacts"].as_array().unwrap().iter().find(named).unwrap();
    assert_eq!(selected["name"], "customer+0-shot");
    assert_eq!(report["comparison"]["is_significant"], true, "better than what was there, and not by chance");
    let moved = history(&told.actum);
    let says: Vec<_> = moved
        .iter()
        .map(|one| {
            let (after, is_guard) = (&one["after"], one["actor"] == "guard");
            (text(&one["action"]), is_guard, text(&after["primary_artifact"]), after["canary_artifact"].clone())
        })
        .collect();
    let baseline = says[0].2.clone();
    let (selected, slips) = (&told.selected, &told.slips);
    let change = |action: &str, is_guard: bool, primary: &String, canary: Value| {
        (action.to_owned(), is_guard, primary.clone(), canary)
    };
    assert_eq!(
        says,
        [
            change("set", false, &baseline, Value::Null),
            change("set_canary", false, &baseline, json!(selected)),
            change("promote", true, selected, Value::Null),
            change("set_canary", false, selected, json!(slips)),
            change("rollback", true, selected, Value::Null),
        ]
    );
    assert_eq!(moved[4]["restores"], 3);
    for (day, revision, verdict) in [("monday", 2, "promote"), ("tuesday", 4, "rollback")] {
        let lines = told.of(&format!("--batch {day}.jsonl"));
        let guarded: Vec<_> = lines.iter().filter(|one| !one["guard"].is_null()).collect();
        assert_eq!((guarded.len(), &guarded[0]["guard"]["action"]), (1, &json!(verdict)));
        let under = lines.iter().filter(|one| one["artifact"]["pointer_revision"] == revision);
        let (mut all, mut tried) = (0_u32, 0_u32);
        for one in under {
            all += 1;
            tried += u32::from(one["artifact"]["variant"] == "canary");
        }
        let share = f64::from(tried) / f64::from(all);
        assert!((0.1..=0.3).contains(&share), "{day}: {tried} of {all} is not about 20 %");
    }
    assert_eq!(told.of("dataset label")[0]["receipt_id"].as_str().map(str::len), Some(29));
    assert!(told.of("dataset export")[0]["counts"]["total"].as_u64() > Some(50));
}

/// Whoever comes back under the same revision gets the same, and what his bucket says.
fn kept(told: &Told) -> BTreeMap<String, u64> {
    let actum = &told.actum;
    let reason = ["--reason", "once more", "--json"];
    asked(actum, &[&["pointer", "canary", ID, "--artifact", &told.slips, "--percent", "20"], &reason[..]].concat());
    let monday = fs::read_to_string(actum.path("monday.jsonl")).unwrap();
    let users: Vec<Value> = monday.lines().take(15).map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut variants: BTreeMap<String, (String, u64)> = BTreeMap::new();
    for turn in 0..2_usize {
        // The same users, each with the question of another one.
        let line = |at: usize| {
            json!({"user": users[at]["user"], "input": users[(at + 7 * turn) % users.len()]["input"]}).to_string()
        };
        let lines: Vec<String> = (0..users.len()).map(line).collect();
        let ended = actum.run_with(&["predict", ID, "--batch", "-", "--json"], lines.join("\n").as_bytes());
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        for (user, one) in users.iter().zip(ended.json_lines()) {
            let artifact = &one["artifact"];
            let got = (text(&artifact["variant"]), artifact["rollout_bucket"].as_u64().unwrap());
            let first = variants.entry(text(&user["user"])).or_insert_with(|| got.clone());
            assert_eq!((first.clone(), &artifact["pointer_revision"]), (got, &json!(6)));
        }
    }
    variants.into_iter().map(|(user, (_, bucket))| (user, bucket)).collect()
}

/// Somebody changes his mind afterwards about what a guard has counted: that was not known then.
fn relabelled(told: &Told) {
    let lines = told.of("--batch monday.jsonl");
    let counted = lines.iter().filter(|one| one["artifact"]["variant"] == "canary").take(5);
    for one in counted {
        let expected = json!({"sentiment": "positive"}).to_string();
        told.actum.run(&["dataset", "label", &text(&one["receipt_id"]), "--expected", &expected]).ok();
        told.actum.run(&["dataset", "label", &text(&one["receipt_id"]), "--score", "0"]).ok();
    }
}

/// A pointer that goes by runs: everything to find a bucket again stands in the receipt.
fn by_runs(told: &Told) {
    let actum = &told.actum;
    let reason = ["--reason", "by runs", "--json"];
    let set = ["pointer", "set", ID, "--primary", &told.selected, "--key-scope", "run", "--seed", "by-run"];
    asked(actum, &[&set[..], &reason].concat());
    asked(actum, &[&["pointer", "canary", ID, "--artifact", "baseline", "--percent", "50"], &reason[..]].concat());
    let monday = fs::read_to_string(actum.path("monday.jsonl")).unwrap();
    let lines: Vec<String> = monday
        .lines()
        .take(20)
        .enumerate()
        .map(|(n, line)| {
            let line: Value = serde_json::from_str(line).unwrap();
            json!({"run": format!("job-{n}"), "input": line["input"]}).to_string()
        })
        .collect();
    let ended = actum.run_with(&["predict", ID, "--batch", "-", "--json"], lines.join("\n").as_bytes());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    // Nobody says which run it is: then it is one of its own.
    asked(actum, &["predict", ID, "--param", "text=I love this wonderful film.", "--json"]);
}

/// A folder with nothing but a copy of the store.
fn copied(actum: &Program) -> Program {
    let audit = super::actum();
    fs::create_dir(audit.path(".actum")).unwrap();
    fs::copy(actum.path(".actum/actum.db"), audit.path(".actum/actum.db")).unwrap();
    audit
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hash(value: &Value) -> String {
    sha256(&serde_jcs::to_vec(value).unwrap())
}

fn bucket(signature: &str, seed: &str, key: &str) -> u64 {
    let hex = sha256(format!("{signature}|{seed}|{key}").as_bytes());
    u64::from_str_radix(&hex[..8], 16).unwrap() % 100
}

/// The entries, read past everything.
fn entries(audit: &Program) -> Vec<Value> {
    let c = Connection::open(audit.path(".actum/actum.db")).unwrap();
    let mut query = c.prepare("SELECT body FROM ledger_entry ORDER BY seq").unwrap();
    let rows = query.query_map([], |row| row.get::<_, Vec<u8>>(0)).unwrap();
    rows.map(|row| serde_json::from_slice(&row.unwrap()).unwrap()).collect()
}

fn of_type<'a>(entries: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    entries.iter().filter(move |entry| entry["type"] == kind)
}

fn predictions(entries: &[Value]) -> impl Iterator<Item = &Value> {
    of_type(entries, "prediction_receipt").filter(|entry| entry["payload"]["receipt"]["kind"] == "prediction")
}

/// Ids of what is named by its content.
fn names(entries: &[Value]) {
    for entry in of_type(entries, "compiled_artifact") {
        let mut artifact = entry["payload"]["artifact"].clone();
        let id = artifact.as_object_mut().unwrap().remove("artifact_id").unwrap();
        assert_eq!(id, format!("art_{}", &hash(&artifact)[..24]));
        assert_eq!(entry["id"], format!("rollout:artifact:{}", text(&id)));
    }
    let report = &of_type(entries, "compile_report").next().unwrap()["payload"];
    let fields = ["signature_id", "job_hash", "dataset_hash", "selected_artifact"];
    let covered: Value = fields.iter().map(|name| ((*name).to_owned(), report[*name].clone())).collect();
    assert_eq!(report["report_id"], format!("cmp_{}", &hash(&covered)[..20]));
    let (mut evals, mut of_report) = (0, 0);
    for eval in of_type(entries, "eval_report").map(|entry| &entry["payload"]) {
        let covered =
            json!({"report_id": eval["report_id"], "artifact_id": eval["artifact_id"], "split": eval["split"]});
        assert_eq!(eval["eval_id"], format!("eval_{}", &hash(&covered)[..20]));
        of_report += usize::from(eval["report_id"] == report["report_id"]);
        evals += 1;
    }
    assert_eq!((of_report, evals), (7, 9), "five on holdout, two on test, two by eval");
    for entry in of_type(entries, "pointer_change") {
        let n = &entry["payload"]["n"];
        assert_eq!(entry["id"], format!("rollout:pointer:{}:{n}", &sha256(ID.as_bytes())[..40]));
    }
}

/// Every receipt says who got what, and that follows from the pointer as it was.
fn dealt(entries: &[Value], users: &BTreeMap<String, String>) {
    let pointers: BTreeMap<u64, &Value> = of_type(entries, "pointer_change")
        .map(|entry| (entry["payload"]["n"].as_u64().unwrap(), &entry["payload"]["after"]))
        .collect();
    let mut by_scope = BTreeMap::new();
    for entry in predictions(entries) {
        let receipt = &entry["payload"]["receipt"];
        let policy = &receipt["policy"];
        let Some(revision) = policy["pointer_revision"].as_u64() else { continue };
        let pointer = pointers[&revision];
        let scope = text(&policy["key_scope"]);
        let key = match scope.as_str() {
            "run" => Some(text(&receipt["run_id"])),
            "user" => users.get(&text(&receipt["receipt_id"])).cloned(),
            other => panic!("nobody goes by {other}"),
        };
        let own = policy["rollout_bucket"].as_u64().unwrap();
        if let Some(key) = key {
            assert_eq!(own, bucket(ID, &text(&pointer["rollout_seed"]), &key), "{receipt}");
            *by_scope.entry(scope).or_insert(0) += 1;
        }
        let is_canary = !pointer["canary_artifact"].is_null() && pointer["canary_percent"].as_u64().unwrap() > own;
        let (variant, artifact) =
            if is_canary { ("canary", "canary_artifact") } else { ("primary", "primary_artifact") };
        assert_eq!((&policy["artifact_variant"], &receipt["compiled_id"]), (&json!(variant), &pointer[artifact]));
        for field in ["canary_percent", "rollout_seed", "bucket_algo"] {
            assert_eq!(policy[field], pointer[field]);
        }
    }
    assert_eq!(by_scope, BTreeMap::from([("run".to_owned(), 21), ("user".to_owned(), 281)]));
}

fn rounded(x: f64) -> f64 {
    (x * 1e6).round() / 1e6
}

/// What a guard has to have measured: of the primary and of the canary, in its stretch of the ledger.
fn measured(entries: &[Value], change: &Value, variant: &str) -> Value {
    let range = &change["decision"]["range"];
    let is_in = |entry: &&Value| {
        (range["from_seq"].as_u64().unwrap()..=range["to_seq"].as_u64().unwrap())
            .contains(&entry["seq"].as_u64().unwrap())
    };
    // The newest label of a receipt counts.
    let labels: BTreeMap<String, &Value> = of_type(entries, "prediction_label")
        .filter(is_in)
        .map(|entry| (text(&entry["payload"]["receipt_id"]), &entry["payload"]["expected"]))
        .collect();
    let (mut errors, mut spent, mut latencies, mut scores) = (0, 0, Vec::new(), Vec::new());
    for entry in predictions(entries).filter(is_in) {
        let receipt = &entry["payload"]["receipt"];
        let is_ours = receipt["policy"]["pointer_revision"].as_u64() == change["n"].as_u64().map(|n| n - 1)
            && receipt["policy"]["artifact_variant"] == variant
            && receipt["status"] != "denied";
        if !is_ours {
            continue;
        }
        errors += u64::from(receipt["status"] != "succeeded");
        spent += receipt["budget"]["spent"].as_u64().unwrap();
        latencies.push(receipt["timing"]["latency_ms"].as_u64().unwrap());
        if let Some(expected) = labels.get(&text(&receipt["receipt_id"])) {
            let output = &entry["payload"]["trace"]["payload"]["output"];
            scores.push(f64::from(u8::from(output["sentiment"] == expected["sentiment"])));
        }
    }
    latencies.sort_unstable();
    let count = latencies.len() as f64;
    let at = (latencies.len() * 95).div_ceil(100) - 1;
    json!({
        "samples": latencies.len(), "scored": scores.len(), "error_rate": rounded(errors as f64 / count),
        "cost": rounded(spent as f64 / count),
        "latency_mean_ms": rounded(latencies.iter().sum::<u64>() as f64 / count), "latency_p95_ms": latencies[at],
        "score": rounded(scores.iter().sum::<f64>() / scores.len() as f64),
    })
}

fn judged(entries: &[Value]) {
    let changes: Vec<&Value> = of_type(entries, "pointer_change").map(|entry| &entry["payload"]).collect();
    let by_guard: Vec<&&Value> = changes.iter().filter(|change| change["actor"] == "guard").collect();
    assert_eq!(by_guard.len(), 2);
    for change in by_guard {
        let (decision, evidence) = (&change["decision"], &change["decision"]["evidence"]);
        for side in ["primary", "canary"] {
            assert_eq!(hash(&measured(entries, change, side)), hash(&evidence[side]), "{side}: {evidence}");
        }
        let covered = json!({
            "verdict": change["action"], "reason_code": decision["reason_code"], "evidence": evidence,
        });
        assert_eq!(decision["evaluation_hash"], hash(&covered));
        assert_eq!(evidence["guard"], change["before"]["guard"]);
    }
    for pair in changes.windows(2) {
        assert_eq!(
            (&pair[1]["before"], pair[1]["n"].as_u64()),
            (&pair[0]["after"], pair[0]["n"].as_u64().map(|n| n + 1))
        );
    }
}

/// What the program says of the copy.
fn explained(audit: &Program) {
    let verified = audit.run(&["ledger", "verify", "--json"]);
    assert_eq!((verified.code, &verified.json()["valid"]), (0, &json!(true)), "{}", verified.stderr);
    for change in history(audit) {
        let n = change["revision"].to_string();
        let ended = audit.run(&["pointer", "explain", ID, &n, "--json"]);
        let told = ended.json();
        assert_eq!((ended.code, &told["identical"]), (0, &json!(true)), "{told}");
        assert_eq!(
            (&told["actor"], &told["reason"], &told["at"]),
            (&change["actor"], &change["reason"], &change["at"])
        );
        let (recorded, again) = (&told["evaluation_hash"]["recorded"], &told["evaluation_hash"]["again"]);
        assert_eq!((recorded, recorded), (again, &change["decision"]["evaluation_hash"]));
    }
    let text = audit.run(&["pointer", "explain", ID, "5"]).ok();
    for words in ["the state of revision 3", "✓ decision: judged again", "BROKEN", "follows from what is on record"] {
        assert!(text.contains(words), "{words} is missing in {text}");
    }
}

/// Changes one entry behind everybody's back.
fn altered(audit: &Program, entry: &Value, from: &str, to: &str) -> Program {
    let other = copied(audit);
    let c = Connection::open(other.path(".actum/actum.db")).unwrap();
    let seq = entry["seq"].as_i64().unwrap();
    let body: Vec<u8> = c.query_row("SELECT body FROM ledger_entry WHERE seq = ?1", [seq], |row| row.get(0)).unwrap();
    let body = String::from_utf8(body).unwrap();
    assert!(body.contains(from), "{from} is missing in {body}");
    let forged = body.replace(from, to).into_bytes();
    c.execute("UPDATE ledger_entry SET body = ?1 WHERE seq = ?2", params![forged, seq]).unwrap();
    drop(c);
    let found = other.run(&["ledger", "verify", "--json"]);
    assert_eq!((found.code, &found.json()["first_bad"]["seq"]), (1, &json!(seq)), "{from}");
    other
}

/// Whatever is altered, the ledger does not hold; and what a guard has decided does not follow any more.
fn alterations(audit: &Program, entries: &[Value]) {
    let change = |n: u64| of_type(entries, "pointer_change").find(|entry| entry["payload"]["n"] == n).unwrap();
    let is_not = |other: &Program, n: &str, name: &str| {
        let ended = other.run(&["pointer", "explain", ID, n, "--json"]);
        let told = ended.json();
        assert_eq!((ended.code, &told["identical"]), (1, &json!(false)), "{told}");
        let failed = told["checks"].as_array().unwrap().iter().filter(|check| check["ok"] == false);
        let failed: Vec<String> = failed.map(|check| text(&check["name"])).collect();
        assert!(failed.iter().any(|one| one == name), "{name} is not among {failed:?}");
    };
    let under = |entry: &&Value| {
        let policy = &entry["payload"]["receipt"]["policy"];
        policy["pointer_revision"] == 4 && policy["artifact_variant"] == "canary"
    };
    let receipt = predictions(entries).find(under).unwrap();
    let id = text(&receipt["payload"]["receipt"]["receipt_id"]);
    is_not(
        &altered(audit, receipt, "\"artifact_variant\":\"canary\"", "\"artifact_variant\":\"primary\""),
        "5",
        "decision",
    );
    is_not(&altered(audit, receipt, "\"status\":\"succeeded\"", "\"status\":\"denied\""), "5", "decision");
    let label =
        of_type(entries, "prediction_label").find(|entry| entry["payload"]["receipt_id"] == id.as_str()).unwrap();
    let (was, other) = match text(&label["payload"]["expected"]["sentiment"]).as_str() {
        "positive" => ("\"sentiment\":\"positive\"", "\"sentiment\":\"negative\""),
        _ => ("\"sentiment\":\"negative\"", "\"sentiment\":\"positive\""),
    };
    is_not(&altered(audit, label, was, other), "5", "decision");
    is_not(&altered(audit, change(5), "\"score\":0.5,", "\"score\":0.4,"), "5", "decision");
    is_not(&altered(audit, change(5), "\"actor\":\"guard\"", "\"actor\":\"mallory\""), "5", "decision");
    is_not(&altered(audit, change(2), "\"canary_percent\":20", "\"canary_percent\":90"), "3", "before");
    is_not(&altered(audit, change(5), "\"restores\":3", "\"restores\":1"), "5", "after");
    let from = format!("\"from_seq\":{}", change(5)["payload"]["decision"]["range"]["from_seq"]);
    is_not(&altered(audit, change(5), &from, "\"from_seq\":800"), "5", "range");
    let slips = text(&change(4)["payload"]["after"]["canary_artifact"]);
    is_not(&altered(audit, change(4), &slips, "art_000000000000000000000000"), "4", "artifact");
    // A person's move that claims to be a guard's.
    let by = format!("\"actor\":\"{}\"", text(&change(4)["payload"]["actor"]));
    is_not(&altered(audit, change(4), &by, "\"actor\":\"guard\""), "4", "decision");
}

fn told_and_audited(actum: Program) -> (Program, Vec<Value>) {
    let told = story(actum);
    happened(&told);
    let again = kept(&told);
    relabelled(&told);
    by_runs(&told);
    let mut users = BTreeMap::new();
    for day in ["monday", "tuesday"] {
        let lines = fs::read_to_string(told.actum.path(&format!("{day}.jsonl"))).unwrap();
        for (line, said) in lines.lines().zip(told.of(&format!("--batch {day}.jsonl"))) {
            let line: Value = serde_json::from_str(line).unwrap();
            users.insert(text(&said["receipt_id"]), text(&line["user"]));
        }
    }
    users.insert(text(&told.of("--user user-7")[0]["receipt_id"]), "user-7".to_owned());
    assert!(again.iter().all(|(user, own)| *own == bucket(ID, "default", user)));
    let audit = copied(&told.actum);
    explained(&audit);
    let entries = entries(&audit);
    names(&entries);
    dealt(&entries, &users);
    judged(&entries);
    (audit, entries)
}

#[test]
fn the_story_of_the_page_and_its_audit() {
    let (audit, entries) = told_and_audited(actum());
    alterations(&audit, &entries);
}

#[test]
fn the_story_of_the_page_as_an_ordinary_user() {
    told_and_audited(actum().owned_by_nobody());
}
