//! What pointers, guards, labels and receipts must not be talked into: moves that a person took back, answers that were
//! planted, artifacts that were altered, secrets that are kept.

use actum_predict::artifact::Artifact;
use actum_predict::pointer::bucket;
use actum_testkit::program::Program;
use actum_testkit::upstream::{Script, Turn, Upstream, Usage};
use rusqlite::{Connection, params};
use serde_json::{Value, json};

use super::artifact::{ID, added, artifact_of};
use super::compile;
use super::pointer::{moved, pointed};
use super::predict::{KEY, assert_nothing_holds, demo};
use super::run::asked;

const RIGHT: &str = "{\"label\": \"positive\"}";
const COST: Usage = Usage::new(40, 6);
const MAIL: &str = "ann.arbor@example.com";
const TOKEN: &str = "sk-proj-0123456789abcdefghijklmnopqrstuv";

fn paid(upstream: &Upstream) -> Program {
    let actum = demo(upstream);
    actum.run(&["spend", "authorize", "--max-total", "1usd"]).ok();
    actum
}

/// A project whose canary is for all, under a guard.
fn guarded(upstream: &Upstream, guard: &Value) -> (Program, String, String) {
    let actum = paid(upstream);
    let (a, b) = pointed(&actum);
    moved(&actum, "set", &["--primary", &a]);
    actum.file("guard.json", guard.to_string());
    moved(&actum, "canary", &["--artifact", &b, "--percent", "100", "--guard", "guard.json"]);
    (actum, a, b)
}

fn batch(actum: &Program, lines: &[Value]) -> actum_testkit::program::Ended {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    actum.run_with(&["predict", ID, "--batch", "-", "--json"], text.as_bytes())
}

fn texts(all: &[&str]) -> Vec<Value> {
    all.iter().map(|text| json!({"input": {"text": text}})).collect()
}

fn shown(actum: &Program) -> Value {
    asked(actum, &["pointer", "show", ID, "--json"])
}

fn explained(actum: &Program, n: u64) -> Value {
    let ended = actum.run(&["pointer", "explain", ID, &n.to_string(), "--json"]);
    assert_eq!((ended.code, &ended.json()["identical"]), (0, &json!(true)), "{}{}", ended.stdout, ended.stderr);
    ended.json()
}

/// Answers well, but not to what is to fail.
fn fragile() -> Script {
    Script::default().by(|body, _| {
        let is_bad = body["messages"].to_string().contains("fail");
        Some((if is_bad { Turn::Status(400, None) } else { Turn::text(RIGHT) }, COST))
    })
}

#[test]
fn fence_a_guard_does_not_promote_what_a_person_took_back() {
    let upstream = Upstream::start(fragile());
    let guard = json!({"samples": 2, "rollback_after": 2, "bounds": [{"metric": "error_rate", "max": 0.1}]});
    let (actum, a, b) = guarded(&upstream, &guard);
    batch(&actum, &texts(&["1", "2"])).json_lines();
    assert_eq!((&shown(&actum)["revision"], &shown(&actum)["primary_artifact"]), (&json!(3), &json!(b)));
    let back = actum.run(&["pointer", "rollback", ID, "--reason", "not so fast"]);
    assert_eq!(back.code, 0, "{}", back.stderr);
    assert!(back.stderr.contains("is tried on 100 % again; a guard only withdraws it now"), "{}", back.stderr);
    for line in batch(&actum, &texts(&["3", "4", "5"])).json_lines() {
        assert_eq!((&line["artifact"]["pointer_revision"], line.get("guard")), (&json!(4), None), "{line}");
    }
    let stands = shown(&actum);
    assert_eq!((&stands["revision"], &stands["restores"]), (&json!(4), &json!(2)));
    // Whoever looks hears that it is up to him, and nothing is moved by looking.
    let looked = asked(&actum, &["pointer", "guard", ID, "--json"]);
    assert_eq!((&looked["verdict"], &looked["change"]), (&json!("keep"), &Value::Null), "{looked}");
    assert_eq!(looked["reason_code"], Value::Null, "it has not promoted anything");
    let text = actum.run(&["pointer", "guard", ID]).ok();
    assert!(text.starts_with("keep: all bounds hold after 3 samples; a person decides\n"), "{text}");
    assert_eq!(shown(&actum), stands);
    assert_eq!(explained(&actum, 3)["actor"], "guard");
    assert_eq!(explained(&actum, 4)["again"], Value::Null);
    // It may still withdraw.
    let told = batch(&actum, &texts(&["fail"])).json_lines();
    assert_eq!(told[0]["guard"]["action"], "rollback", "{}", told[0]);
    let stands = shown(&actum);
    assert_eq!(
        (&stands["revision"], &stands["restores"], &stands["primary_artifact"], &stands["canary_artifact"]),
        (&json!(5), &json!(1), &json!(a), &Value::Null)
    );
    let again = explained(&actum, 5);
    assert_eq!((&again["actor"], &again["again"]["verdict"]), (&json!("guard"), &json!("rollback")));
    // Declared anew by a person, it decides again.
    moved(&actum, "canary", &["--artifact", &b, "--percent", "100", "--guard", "guard.json"]);
    batch(&actum, &texts(&["6", "7"])).json_lines();
    assert_eq!((&shown(&actum)["revision"], &shown(&actum)["primary_artifact"]), (&json!(7), &json!(b)));
    assert_eq!(explained(&actum, 7)["action"], "promote");
}

#[test]
fn fence_nobody_plants_answers_for_those_who_try() {
    let upstream = Upstream::start(compile::sensible());
    let actum = compile::project(&upstream, &compile::job());
    let planned = asked(&actum, &["compile", "job.json", "--dry-run", "--json"]);
    let reference = Upstream::start(compile::sensible());
    let other = compile::project(&reference, &compile::job());
    compile::compile(&other, &[]);
    let receipts = asked(&other, &["trace", "list", "--limit", "1", "--json"])["receipts"].clone();
    // The name of a run of just this job.
    let run = receipts[0]["run_id"].as_str().unwrap();
    let thread = run.rsplitn(6, '-').last().unwrap().to_owned();
    assert!(run.starts_with("improve-"), "{run}");
    for run in [run, "improve-", "improve-x"] {
        let refused = actum.run(&["predict", ID, "--param", "text=1 went badly", "--run", run, "--json"]);
        assert_eq!((refused.code, &refused.error()["code"]), (2, &json!("USAGE")), "{}", refused.stderr);
        let lines =
            [json!({"input": {"text": "1 went badly"}}), json!({"input": {"text": "1 went badly"}, "run": run})];
        let refused = batch(&actum, &lines);
        assert_eq!(refused.code, 2, "{}", refused.stdout);
        assert!(refused.stderr.contains("line 2") && !refused.stderr.contains("line 1:"), "{}", refused.stderr);
        let text = format!("{}\n", lines[0]);
        let all = actum.run_with(&["predict", ID, "--batch", "-", "--run", run, "--json"], text.as_bytes());
        assert_eq!(all.code, 2, "{}", all.stdout);
    }
    assert_eq!(
        (upstream.requests().len(), asked(&actum, &["trace", "list", "--json"])["receipts"].clone()),
        (0, json!([]))
    );
    // Nor by hand, whatever it is called.
    let receipt = asked(&other, &["ledger", "list", "--type", "prediction_receipt", "--limit", "1", "--json"]);
    let id = receipt["entries"][0]["id"].as_str().unwrap();
    let whole = asked(&other, &["ledger", "show", id, "--json"]);
    let mut planted =
        json!({"tenantId": "local", "module": "predict", "source": "actum", "type": "prediction_receipt"});
    planted["payload"] = whole["payload"].clone();
    for id in [Value::Null, json!(id), json!("mine")] {
        let mut planted = planted.clone();
        if !id.is_null() {
            planted["id"] = id;
        }
        let refused = actum.run_with(&["ledger", "append", "-"], planted.to_string().as_bytes());
        assert_eq!(refused.code, 2, "{}", refused.stderr);
    }
    // The thread is no name of a run: what is asked below it is asked for somebody else.
    let said = asked(&actum, &["predict", ID, "--param", "text=1 went badly", "--thread", &thread, "--json"]);
    assert!(!said["receipt"]["run_id"].as_str().unwrap().starts_with("improve-"), "{said}");
    assert_eq!(compile::compile(&actum, &[])["asked"], planned["predictions_max"]);
}

#[test]
fn fence_whoever_is_named_decides_and_nobody_goes_by_himself() {
    let upstream = Upstream::start(Script::default().last(RIGHT, COST));
    let actum = paid(&upstream);
    let (a, b) = pointed(&actum);
    moved(&actum, "set", &["--primary", &a]);
    moved(&actum, "canary", &["--artifact", &b, "--percent", "50"]);
    let predict = |more: &[&str]| {
        let told = asked(&actum, &[&["predict", ID, "--param", "text=x", "--json"], more].concat());
        let run = told["receipt"]["run_id"].as_str().unwrap().to_owned();
        (told["artifact"].clone(), run)
    };
    let own = |key: &str| json!(bucket(ID, "default", key));
    for (more, key, scope) in [
        (&["--user", "a"][..], "a", "user"),
        (&["--user", "bob"], "bob", "user"),
        (&["--thread", "t", "--user", "a"], "t", "thread"),
        (&["--key", "k", "--user", "a"], "k", "key"),
        (&["--run", "r1", "--user", "a"], "r1", "run"),
    ] {
        let [(first, run), (second, other)] = [predict(more), predict(more)];
        assert_eq!(first, second, "{more:?}");
        assert_eq!(run == other, more.contains(&"--run"));
        let selected = asked(&actum, &[&["pointer", "select", ID, "--json"], more].concat());
        assert_eq!((&selected["bucket"], &selected["scope"]), (&own(key), &json!(scope)), "{more:?}");
        assert_eq!(
            [&first["rollout_bucket"], &first["compiled_id"]],
            [&selected["bucket"], &selected["artifact"]],
            "{more:?}"
        );
    }
    let [(first, run), (second, other)] = [predict(&[]), predict(&[])];
    assert_ne!(run, other);
    assert_eq!([&first["rollout_bucket"], &second["rollout_bucket"]], [&own(&run), &own(&other)]);
    // Who it would be cannot be said before it is asked; the run tells afterwards.
    let nobody = actum.run(&["pointer", "select", ID, "--json"]);
    assert_eq!((nobody.code, &nobody.error()["code"]), (2, &json!("USAGE")), "{}", nobody.stderr);
    assert_eq!(asked(&actum, &["pointer", "select", ID, "--run", &run, "--json"])["artifact"], first["compiled_id"]);
    // The same where the pointer goes by runs.
    moved(&actum, "set", &["--primary", &a, "--key-scope", "run"]);
    moved(&actum, "canary", &["--artifact", &b, "--percent", "50"]);
    let (told, run) = predict(&["--user", "a"]);
    assert_eq!((&told["rollout_bucket"], &told["key_scope"]), (&own(&run), &json!("run")));
    for more in [&[][..], &["--user", "a"]] {
        let nobody = actum.run(&[&["pointer", "select", ID], more].concat());
        assert!(nobody.code == 2 && nobody.stderr.contains("--run"), "{more:?}: {}", nobody.stderr);
    }
    // Where it goes by users, nobody is no user and gets the primary.
    moved(&actum, "set", &["--primary", &a, "--key-scope", "user"]);
    moved(&actum, "canary", &["--artifact", &b, "--percent", "100"]);
    assert_eq!(predict(&[]).0["compiled_id"], a.as_str());
    assert_eq!(asked(&actum, &["pointer", "select", ID, "--json"])["artifact"], a.as_str());
}

/// One whose answers may be anything.
const FREE: &str = r#"
namespace: demo
name: Who
version: 1
input_schema: {type: object, properties: {text: {type: string}}, required: [text], additionalProperties: false}
output_schema: {type: object, properties: {who: {type: string}}, required: [who], additionalProperties: false}
prompt_template: "Who wrote this? {{ text }}"
program_template: direct.v1
"#;
const WHO: &str = "demo/Who.v1";

#[test]
fn fence_what_is_expected_holds_no_secret() {
    let answer = |who: &str| (Turn::text(json!({ "who": who }).to_string()), COST);
    let upstream = Upstream::start(Script::default().by(move |body, _| {
        let text = body["messages"].to_string();
        Some(match () {
            () if text.contains("with an address") => answer(MAIL),
            () if text.contains("with a key") => answer(&format!("{TOKEN} is mine")),
            () => answer("ann"),
        })
    }));
    let actum = paid(&upstream);
    actum.file("who.yaml", FREE);
    actum.run(&["signature", "add", "who.yaml"]).ok();
    let line = |text: &str, who: &str| json!({"input": {"text": text}, "expected": {"who": who}});
    let secrets = [MAIL, TOKEN, KEY];
    // From a file: left out, by name.
    let mut lines = vec![line("plain", "ann")];
    lines.extend(secrets.iter().map(|secret| line(&format!("with {secret} in it"), secret)));
    lines.push(line(&format!("{MAIL} asks"), "bob"));
    actum.file("who.jsonl", lines.iter().map(|line| format!("{line}\n")).collect::<String>());
    let told = actum.run(&["dataset", "import", "who.jsonl", "--signature", WHO, "--json"]);
    assert_eq!(told.code, 0, "{}", told.stderr);
    assert_eq!(told.json()["skipped_reasons"], json!({"redacted": 3}), "{}", told.stdout);
    assert_eq!(told.json()["counts"]["total"], 2);
    let strict = actum.run(&["dataset", "import", "who.jsonl", "--signature", WHO, "--strict", "--json"]);
    assert_eq!(strict.code, 2, "{}", strict.stdout);
    // With a batch: refused before anything is asked.
    for secret in secrets {
        let text = format!("{}\n{}\n", line("plain", "ann"), line("other", secret));
        let refused = actum.run_with(&["predict", WHO, "--batch", "-", "--json"], text.as_bytes());
        assert_eq!(refused.code, 2, "{}", refused.stdout);
        assert!(refused.stderr.contains("line 2") && !refused.stderr.contains(secret), "{}", refused.stderr);
    }
    assert_eq!(upstream.requests().len(), 0);
    // As a label of what was answered.
    let said = asked(&actum, &["predict", WHO, "--param", "text=plain", "--json"]);
    let receipt = said["receipt_id"].as_str().unwrap();
    for secret in secrets {
        let expected = json!({ "who": secret }).to_string();
        let refused = actum.run(&["dataset", "label", receipt, "--expected", &expected, "--json"]);
        assert_eq!((refused.code, &refused.error()["code"]), (2, &json!("INPUT_INVALID")), "{}", refused.stderr);
        assert!(!refused.stderr.contains(secret), "{}", refused.stderr);
    }
    assert_eq!(asked(&actum, &["ledger", "list", "--type", "prediction_label", "--json"])["entries"], json!([]));
    // Out of answers that held one.
    for text in ["text=with an address", "text=with a key"] {
        actum.run(&["predict", WHO, "--param", text, "--json"]).ok();
    }
    let exported = asked(&actum, &["dataset", "export", "--signature", WHO, "--json"]);
    assert_eq!(exported["skipped_reasons"], json!({"redacted": 2}), "{exported}");
    assert_eq!(exported["counts"]["total"], 1);
    // What is known by the key of the provider was never an answer that anybody heard; none of all that is kept.
    for secret in secrets {
        assert_nothing_holds(&actum, secret);
    }
}

/// Puts another body in the place of an artifact, as somebody would who has the file.
fn altered(actum: &Program, id: &str, is_named_anew: bool) {
    let database = Connection::open(actum.path(".actum/actum.db")).unwrap();
    let entry = format!("rollout:artifact:{id}");
    let body: Vec<u8> =
        database.query_row("SELECT body FROM ledger_entry WHERE id = ?1", [&entry], |row| row.get(0)).unwrap();
    let mut text = String::from_utf8(body).unwrap().replace("A: {{ text }}", "Z: {{ text }}");
    if is_named_anew {
        let mut whole: Value = serde_json::from_str(&text).unwrap();
        whole["payload"]["artifact"].as_object_mut().unwrap().remove("artifact_id");
        let new = Artifact::read(&whole["payload"]["artifact"]).unwrap().id();
        text = text.replace(&format!("\"artifact_id\":\"{id}\""), &format!("\"artifact_id\":\"{new}\""));
    }
    let hash = actum_ledger::merkle::leaf(text.as_bytes()).0;
    let put = "UPDATE ledger_entry SET body = ?1, hash = ?2 WHERE id = ?3";
    assert_eq!(database.execute(put, params![text.into_bytes(), hash, entry]).unwrap(), 1);
}

#[test]
fn fence_an_artifact_that_was_altered_is_not_asked_by() {
    for is_named_anew in [false, true] {
        let upstream = Upstream::start(Script::default().last(RIGHT, COST));
        let actum = paid(&upstream);
        let mut artifact = artifact_of(&actum, "A: {{ text }}");
        artifact["label"] = json!("short");
        let a = added(&actum, &artifact);
        moved(&actum, "set", &["--primary", &a]);
        assert_eq!(actum.run(&["ledger", "verify"]).code, 0);
        altered(&actum, &a, is_named_anew);
        for words in [
            &["predict", ID, "--param", "text=x"][..],
            &["predict", ID, "--param", "text=x", "--artifact", &a],
            &["predict", ID, "--param", "text=x", "--artifact", "short"],
            &["predict", ID, "--param", "text=x", "--artifact", &a[..16]],
            &["pointer", "promote", ID, "--artifact", &a, "--reason", "x"],
            &["pointer", "set", ID, "--primary", "short", "--reason", "x"],
            &["pointer", "canary", ID, "--artifact", "short", "--percent", "1", "--reason", "x"],
            &["eval", "primary", "--dataset", "x.jsonl", "--signature", ID],
            &["artifact", "show", &a],
        ] {
            actum.file("x.jsonl", super::dataset::labelled(30));
            let refused = actum.run(&[words, &["--json"]].concat());
            assert_eq!((refused.code, &refused.error()["code"]), (1, &json!("LEDGER_DAMAGED")), "{words:?}");
            assert!(refused.stderr.contains("ledger verify"), "{}", refused.stderr);
        }
        assert_eq!((upstream.requests().len(), &shown(&actum)["revision"]), (0, &json!(1)));
        let explained = actum.run(&["pointer", "explain", ID, "1", "--json"]);
        assert_eq!((explained.code, &explained.json()["identical"]), (1, &json!(false)), "{}", explained.stdout);
        assert_eq!(actum.run(&["ledger", "verify"]).code, 1);
    }
}

#[test]
fn fence_no_answer_is_worth_nothing_whatever_its_label_says() {
    let upstream = Upstream::start(fragile());
    let guard = json!({"samples": 2, "bounds": [{"metric": "score", "min": 0.5}]});
    let (actum, a, _) = guarded(&upstream, &guard);
    let line = |text: &str| json!({"input": {"text": text}, "score": 1});
    let told = batch(&actum, &[line("fail 1"), line("fail 2")]);
    assert_eq!(told.json_lines().len(), 2, "{}", told.stderr);
    let newest = asked(&actum, &["pointer", "history", ID, "--json"])["history"][0].clone();
    assert_eq!((&newest["action"], &newest["actor"]), (&json!("rollback"), &json!("guard")), "{newest}");
    let measured = &newest["decision"]["evidence"]["canary"];
    assert_eq!((&measured["score"], &measured["scored"]), (&json!(0), &json!(2)), "{measured}");
    assert_eq!(newest["after"]["primary_artifact"], a.as_str());
    explained(&actum, 3);
    // By a label of its own, too.
    moved(&actum, "canary", &["--artifact", "baseline", "--percent", "100", "--guard", "guard.json"]);
    for line in batch(&actum, &texts(&["fail 3", "fail 4"])).json_lines() {
        actum.run(&["dataset", "label", line["receipt_id"].as_str().unwrap(), "--score", "1"]).ok();
    }
    assert_eq!(asked(&actum, &["pointer", "guard", ID, "--json"])["verdict"], "rollback");
    explained(&actum, 5);
}

/// A no of the provider, in its own words.
fn refusal(body: &str) -> Turn {
    let head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close";
    Turn::Raw(format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes())
}

#[test]
fn fence_what_a_provider_complains_of_is_kept_without_secrets() {
    let plain = json!({"error": {"message": format!("{MAIL} may not use {TOKEN} here")}}).to_string();
    let always = refusal(&plain);
    // Each where only the beginning of what is told would be left of it.
    let cut = |secret: &str| format!("{} {secret} {}", "x".repeat(499 - secret.len() / 2), "y".repeat(200));
    let turns = [plain, cut(MAIL), cut(TOKEN)].map(|body| refusal(&body));
    let script = turns.into_iter().fold(Script::default(), |script, turn| script.turn(turn, Usage::default()));
    let upstream = Upstream::start(script.last(json!({ "label": MAIL }).to_string(), COST));
    let actum = paid(&upstream);
    for n in 0..3 {
        let more: &[&str] = if n == 0 { &[] } else { &["--json"] };
        let ended = actum.run(&[&["predict", ID, "--param", "text=x"], more].concat());
        assert_eq!(ended.code, 1, "{n}: {}", ended.stderr);
        for secret in [MAIL, TOKEN, &MAIL[..8], &TOKEN[..18]] {
            assert!(
                !ended.stderr.contains(secret) && !ended.stdout.contains(secret),
                "{n}: {}{}",
                ended.stderr,
                ended.stdout
            );
        }
        assert!(format!("{}{}", ended.stderr, ended.stdout).contains("status 400"), "{n}: {}", ended.stderr);
    }
    // An answer that does not fit is quoted where that is told.
    let ended = actum.run(&["predict", ID, "--param", "text=x", "--json"]);
    assert_eq!(ended.code, 1, "{}", ended.stderr);
    for secret in [MAIL, TOKEN, &MAIL[..8], &TOKEN[..18]] {
        assert_nothing_holds(&actum, secret);
    }
    // Compiles tell of it, too.
    let upstream = Upstream::start(Script::default().by(move |_, _| Some((always.clone(), Usage::default()))));
    let actum = compile::project(&upstream, &compile::job());
    let ended = actum.run(&["compile", "job.json"]);
    assert!(ended.code == 1 && ended.stderr.contains("status 400"), "{}", ended.stderr);
    for secret in [MAIL, TOKEN] {
        assert!(!ended.stderr.contains(secret), "{}", ended.stderr);
        assert_nothing_holds(&actum, secret);
    }
}
