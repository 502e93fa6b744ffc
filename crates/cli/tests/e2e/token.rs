//! Tokens by way of the real binary: made, shown once, listed, revoked, over; and the secret is nowhere but in the hand of
//! whoever made it.

use std::fs;
use std::path::Path;

use actum_testkit::postgres::shared_url;
use actum_testkit::program::Program;
use serde_json::{Value, json};

use super::actum;
use super::run::asked;

/// A token that has to be made.
fn made(actum: &Program, more: &[&str]) -> Value {
    asked(actum, &[&["token", "create", "--json"], more].concat())
}

fn listed(actum: &Program, more: &[&str]) -> Vec<Value> {
    let list = asked(actum, &[&["token", "list", "--json"], more].concat());
    list["tokens"].as_array().unwrap().clone()
}

/// Every file below a folder that holds this.
fn files_with(folder: &Path, text: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_with(&path, text));
        } else if fs::read(&path).unwrap().windows(text.len()).any(|part| part == text) {
            found.push(path.display().to_string());
        }
    }
    found
}

fn the_life_of_a_token(actum: &Program) {
    assert!(listed(actum, &[]).is_empty());
    assert!(actum.run(&["token", "list"]).ok().contains("no tokens of local"));
    let first = made(actum, &["--role", "operator", "--name", "nightly", "--expires", "30d", "--reason", "because"]);
    let (id, text) = (first["id"].as_str().unwrap(), first["token"].as_str().unwrap());
    let secret = text.strip_prefix(&format!("actum_{id}_")).unwrap();
    assert_eq!((id.len(), secret.len()), (16, 64));
    let keys: Vec<_> = first.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["expires_at", "id", "name", "role", "tenant", "token"]);
    assert_eq!(
        (&first["role"], &first["tenant"], &first["name"]),
        (&json!("operator"), &json!("local"), &json!("nightly"))
    );
    assert!(first["expires_at"].as_str().unwrap().ends_with('Z'));

    // For a script: one line, and nothing else, on stdout.
    let plain = actum.run(&["token", "create", "--role", "admin", "--tenant", "acme"]);
    assert_eq!(plain.code, 0, "{}", plain.stderr);
    let admin = plain.stdout.trim_end();
    assert!(
        admin.starts_with("actum_") && admin.len() == text.len() && !plain.stderr.contains(admin),
        "{}",
        plain.stderr
    );
    assert!(plain.stderr.contains("not shown again"), "{}", plain.stderr);
    let admin_id = &admin[6..22];

    let all = listed(actum, &[]);
    let wanted = json!({"id": id, "role": "operator", "tenant": "local", "name": "nightly", "status": "active", "expires_at": first["expires_at"]});
    assert_eq!(all, [wanted]);
    let of_acme = listed(actum, &["--tenant", "acme"]);
    assert_eq!(
        (&of_acme[0]["id"], &of_acme[0]["name"], &of_acme[0]["expires_at"]),
        (&json!(admin_id), &json!(admin_id), &Value::Null)
    );

    // Nobody takes back what is another's, nor learns that it is there.
    let strange = actum.run(&["token", "revoke", admin_id, "--json"]);
    let absent = actum.run(&["token", "revoke", "0000000000000000", "--json"]);
    assert_eq!((strange.code, &strange.error()["code"]), (7, &json!("NOT_FOUND")));
    assert_eq!(strange.stderr.replace(admin_id, ""), absent.stderr.replace("0000000000000000", ""));
    let revoked = asked(actum, &["token", "revoke", id, "--reason", "lost", "--actor", "bob", "--json"]);
    assert_eq!((&revoked["status"], &revoked["changed"]), (&json!("revoked"), &json!(true)));
    assert_eq!(asked(actum, &["token", "revoke", id, "--json"])["changed"], false);
    assert!(actum.run(&["token", "revoke", admin_id, "--tenant", "acme"]).ok().contains("revoked"));
    let shown = actum.run(&["token", "list"]).ok();
    assert!(shown.contains("revoked") && shown.contains("nightly") && !shown.contains(secret), "{shown}");

    // Who did what, and what of it is on record.
    let entry = |n: u32| asked(actum, &["ledger", "show", &format!("access:token:{id}:{n}"), "--json"]);
    let (first, second) = (entry(1), entry(2));
    assert_eq!((&first["type"], &first["payload"]["reason"]), (&json!("access_change"), &json!("because")));
    assert_eq!((&second["payload"]["action"], &second["payload"]["actor"]), (&json!("revoke"), &json!("bob")));
    assert_eq!(first["payload"]["hash"], second["payload"]["hash"]);
    let hash = first["payload"]["hash"].as_str().unwrap();
    assert!(!listed(actum, &[])[0].to_string().contains(hash));
    assert_eq!(actum.run(&["store", "check", "--json"]).json()["valid"], true);
    assert_eq!(actum.run(&["store", "rebuild", "--json"]).json()["equal"], true);
    assert_eq!(actum.run(&["ledger", "verify", "--json"]).json()["valid"], true);
    actum.run(&["store", "backup", "copy.db"]).ok();
    for secret in [secret, &admin[23..]] {
        assert_eq!(files_with(actum.folder(), secret.as_bytes()), Vec::<String>::new());
        let bytes: Vec<u8> = (0..32).map(|i| u8::from_str_radix(&secret[2 * i..2 * i + 2], 16).unwrap()).collect();
        assert_eq!(files_with(actum.folder(), &bytes), Vec::<String>::new());
    }
    assert!(!files_with(actum.folder(), hash.as_bytes()).is_empty(), "it was looked for in the right place");
}

#[test]
fn a_token_is_made_shown_once_and_revoked() {
    the_life_of_a_token(&actum());
}

#[test]
fn a_token_is_made_by_an_ordinary_user() {
    the_life_of_a_token(&actum().owned_by_nobody());
}

#[test]
fn a_token_is_made_in_a_shared_store() {
    let url = shared_url();
    let store = actum_store::Location::Postgres(url.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    drop(runtime.block_on(actum_store::open(&store, actum_store::Older::Migrate)).unwrap());
    the_life_of_a_token(&actum().on_store(&url));
}

#[test]
fn who_may_only_read_the_store_makes_none() {
    let actum = actum();
    let id = made(&actum, &["--role", "reader"])["id"].clone();
    let visitor = actum.as_nobody();
    for arguments in [vec!["token", "create", "--role", "admin"], vec!["token", "revoke", id.as_str().unwrap()]] {
        let refused = visitor.run(&arguments);
        assert_ne!(refused.code, 0, "{arguments:?}: {}", refused.stdout);
        assert!(!refused.stdout.contains("actum_"), "{}", refused.stdout);
    }
    assert_eq!(listed(&actum, &[]).len(), 1);
    assert_eq!(listed(&actum, &[])[0]["status"], "active");
}

#[test]
fn a_token_whose_time_is_over_is_shown_as_such() {
    let actum = actum();
    made(&actum, &["--role", "reader", "--expires", "1s", "--name", "short"]);
    made(&actum, &["--role", "reader", "--expires", "1h", "--name", "long"]);
    // Instead of waiting: what is on record says when it was over.
    let database = rusqlite::Connection::open(actum.path(".actum/actum.db")).unwrap();
    database.execute("UPDATE token SET expires_ms = 1 WHERE name = 'short'", []).unwrap();
    drop(database);
    let status = |name: &str| {
        let all = listed(&actum, &[]);
        all.iter().find(|one| one["name"] == name).unwrap()["status"].clone()
    };
    assert_eq!((status("short"), status("long")), (json!("expired"), json!("active")));
    // That was somebody else's hand, and it is found.
    assert_eq!(actum.run(&["store", "check", "--json"]).json()["valid"], false);
}

#[test]
fn what_cannot_be_is_refused_and_makes_nothing() {
    let actum = actum();
    let long = "x".repeat(257);
    let create = |more: &[&'static str]| [&["token", "create"], more].concat();
    let mut cases = vec![
        (create(&[]), 2, "--role"),
        (create(&["--role", "root"]), 2, "root"),
        (create(&["--role", "Admin"]), 2, "Admin"),
        (create(&["--role", ""]), 2, "--role"),
        (create(&["--role", "reader", "--role", "admin"]), 2, "--role"),
        (create(&["--role", "reader", "--tenant", ""]), 2, "--tenant"),
        (create(&["--role", "reader", "--tenant", " "]), 2, "--tenant"),
        (create(&["--role", "reader", "--tenant", "a\nb"]), 2, "--tenant"),
        (create(&["--role", "reader", "--name", ""]), 2, "--name"),
        (create(&["--role", "reader", "--name", "a\tb"]), 2, "--name"),
        (vec!["token", "create", "--role", "reader", "--name", &long], 2, "--name"),
        (vec!["token", "create", "--role", "reader", "--tenant", &long], 2, "--tenant"),
        (vec!["token", "list", "--tenant", ""], 2, "--tenant"),
        (vec!["token", "revoke"], 2, "<ID>"),
        (vec!["token", "revoke", ""], 7, "no token"),
        (vec!["token", "revoke", "%"], 7, "no token"),
        (vec!["token", "revoke", "0123456789ABCDEF"], 7, "no token"),
        (vec!["token", "revoke", "0123456789abcdef"], 7, "no token"),
    ];
    for time in ["", "0d", "-1d", "1", "d", "1w", "1.5h", "100001d", "99999999999999999999d", "1é", "1 d"] {
        cases.push((vec!["token", "create", "--role", "reader", "--expires", time], 2, ""));
    }
    let reason = "r".repeat(5_000);
    cases.push((vec!["token", "create", "--role", "reader", "--reason", &reason], 2, "payload.reason"));
    for (arguments, code, word) in cases {
        let ended = actum.run(&arguments);
        assert_eq!(ended.code, code, "{arguments:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(word), "{arguments:?}: {word} is missing in {}", ended.stderr);
        assert!(!ended.stdout.contains("actum_"), "{arguments:?}");
    }
    assert!(listed(&actum, &[]).is_empty());
    // Whoever names the whole of a token does not find it in a log.
    let whole = made(&actum, &["--role", "reader"])["token"].as_str().unwrap().to_owned();
    let mistaken = actum.run(&["token", "revoke", &whole]);
    assert_eq!(mistaken.code, 7);
    assert!(!mistaken.stderr.contains(&whole[24..]), "{}", mistaken.stderr);
}

#[test]
fn nobody_writes_one_into_the_ledger() {
    let actum = actum();
    let id = made(&actum, &["--role", "reader"])["id"].as_str().unwrap().to_owned();
    let mut entry = asked(&actum, &["ledger", "show", &format!("access:token:{id}:1"), "--json"]);
    entry["payload"]["token"] = json!("00000000000000ff");
    entry["payload"]["role"] = json!("admin");
    let document = json!({
        "tenantId": "local", "module": "access", "source": "actum", "type": "access_change",
        "id": "access:token:00000000000000ff:1", "payload": entry["payload"],
    });
    let forged = actum.run_with(&["ledger", "append", "-", "--json"], document.to_string().as_bytes());
    assert_ne!(forged.code, 0, "{}", forged.stdout);
    assert_eq!(listed(&actum, &[]).len(), 1);
}
