//! Which keys and which histories are believed (D-509): a key is trusted by a person, by the configuration or by a trusted
//! key, and a ledger that was rewritten or rolled back contradicts the receipts that were signed over it.

use std::fs;
use std::path::PathBuf;

use actum_contract::digest::Digest;
use actum_ledger::receipt::{key_id, seal};
use actum_testkit::folder::Folder;
use actum_testkit::program::Program;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ed25519_dalek::SigningKey;
use ed25519_dalek::pkcs8::EncodePublicKey as _;
use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use rusqlite::Connection;
use serde_json::{Value, json};

use super::receipt::slip_in;
use super::run::{id, item, one, project};

/// A project of a user who has a home, which is not in the project.
struct AtHome {
    actum: Program,
    home: Folder,
}

impl std::ops::Deref for AtHome {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.actum
    }
}

fn at_home() -> AtHome {
    let actum = project(&[("a", "date +%N > a"), ("b", "date +%N > b")]);
    let home = Folder::new();
    let actum = actum.with_env("HOME", &home.path().display().to_string());
    AtHome { actum, home }
}

/// Copies the store of a project to a file in it.
pub(crate) fn save(actum: &Program, name: &str) {
    // Everything in one file, so that the copy is whole.
    let database = Connection::open(actum.path(".actum/actum.db")).unwrap();
    database.execute("VACUUM INTO ?1", [actum.path(name).to_str().unwrap()]).unwrap();
}

/// Puts a saved store in the place of the present one.
pub(crate) fn roll_back(actum: &Program, saved: &str) {
    for name in ["actum.db", "actum.db-wal", "actum.db-shm"] {
        fs::remove_file(actum.path(&format!(".actum/{name}"))).ok();
    }
    fs::copy(actum.path(saved), actum.path(".actum/actum.db")).unwrap();
}

fn published(actum: &Program, agent: &str) -> String {
    let (code, run) = one(actum, item(agent, agent), &[]);
    assert_eq!(code, 0, "{run}");
    id(&run)
}

/// The checks that failed, and all that was reported.
fn failed(actum: &Program, receipt: &str) -> (Vec<String>, Value) {
    let shown = actum.run(&["verify", "--json", receipt]).json();
    let checks = shown["checks"].as_array().unwrap().iter().filter(|check| check["ok"] != true);
    (checks.map(|check| check["name"].as_str().unwrap().to_owned()).collect(), shown)
}

fn key_file(actum: &Program) -> PathBuf {
    actum.run(&["key", "show", "--json"]).json()["path"].as_str().unwrap().into()
}

fn shown_id(actum: &Program) -> String {
    actum.run(&["key", "show", "--json"]).json()["keyid"].as_str().unwrap().to_owned()
}

fn ledger(actum: &Program) -> (i32, Value) {
    let ended = actum.run(&["ledger", "verify", "--json"]);
    (ended.code, ended.json())
}

/// A receipt of a run, altered and signed by a key of the attacker's.
fn forge(actum: &Program, run: &str, key: &SigningKey) -> String {
    let text = fs::read(actum.path(&format!(".actum/runs/{run}/RECEIPT.json"))).unwrap();
    let envelope: Value = serde_json::from_slice(&text).unwrap();
    let payload = BASE64.decode(envelope["payload"].as_str().unwrap()).unwrap();
    let mut statement: Value = serde_json::from_slice(&payload).unwrap();
    statement["predicate"]["receiptId"] = json!("forged");
    let forged = seal(&statement, key);
    let digest = Digest::sha256(&BASE64.decode(forged["payload"].as_str().unwrap()).unwrap()).to_hex();
    slip_in(
        actum,
        json!({
            "id": "receipt:forged", "tenantId": "local", "robotId": "a", "module": "engine", "source": "actum",
            "type": "receipt", "payload": {"digest": digest, "place": "elsewhere"},
        }),
    );
    let folder = actum.path(".actum/runs/forged");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("RECEIPT.json"), forged.to_string()).unwrap();
    folder.join("RECEIPT.json").display().to_string()
}

#[test]
fn a_key_that_was_added_to_the_ledger_by_hand_is_not_trusted() {
    let actum = at_home();
    let run = published(&actum, "a");
    let key = SigningKey::from_bytes(&[7; 32]);
    let public = key.verifying_key().to_public_key_pem(LineEnding::LF).unwrap();
    let id = key_id(&key.verifying_key());
    let own = shown_id(&actum);
    // With a statement by the own key that is made up, too.
    let made_up = json!({"endorsedBy": own, "endorsement": "00".repeat(64)});
    for (suffix, more) in [("", json!({})), (":x", made_up)] {
        let mut payload = json!({"keyId": id, "publicKey": public, "place": "other:/srv"});
        payload.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        slip_in(
            &actum,
            json!({
                "id": format!("key:{id}{suffix}"), "tenantId": "local", "module": "engine", "source": "actum",
                "type": "signing_key", "payload": payload,
            }),
        );
    }
    let forged = forge(&actum, &run, &key);
    let (failed_checks, shown) = failed(&actum, &forged);
    assert_eq!(failed_checks[0], "signature", "{shown}");
    assert!(shown.to_string().contains("no trusted key has signed it"), "{shown}");
    let list = actum.run(&["key", "list", "--json"]).json();
    let role =
        |id: &str| list["keys"].as_array().unwrap().iter().find(|key| key["keyid"] == id).unwrap()["role"].clone();
    assert_eq!((role(&own), role(&id)), (json!("own"), json!("announced")));
    // A person may trust it, and so may the configuration.
    let toml = fs::read_to_string(actum.path("actum.toml")).unwrap();
    actum.file("actum.toml", format!("{toml}[trust]\nkeys = [\"{id}\"]\n"));
    assert!(!failed(&actum, &forged).0.contains(&"signature".to_owned()));
    actum.file("actum.toml", toml);
    assert_eq!(failed(&actum, &forged).0[0], "signature");
    actum.run(&["key", "trust", &id]).ok();
    assert!(!failed(&actum, &forged).0.contains(&"signature".to_owned()));
    assert_eq!(actum.run(&["key", "trust", "no-such-key"]).code, 7);
}

#[test]
fn the_key_is_kept_outside_the_workspace_and_found_again() {
    let actum = at_home();
    let first = published(&actum, "a");
    let key = key_file(&actum);
    assert!(key.starts_with(actum.home.join(".local/state/actum/keys")), "{}", key.display());
    assert!(!actum.path(".actum/key.pem").exists());
    let own = shown_id(&actum);
    // A moved project keeps its key, and a copied one has it too.
    let moved = super::actum();
    let to = moved.path("project");
    fs::rename(actum.folder(), &to).unwrap();
    let home = actum.home.path().display().to_string();
    let at = to.display().to_string();
    let there = super::actum().with_env("HOME", &home);
    assert_eq!(there.run(&["key", "show", "--json", "-C", &at]).json()["keyid"], own.as_str());
    assert_eq!(there.run(&["verify", "-C", &at, &first]).code, 0);
    // What the old key signed stays valid.
    there.run(&["key", "rotate", "-C", &at]).ok();
    assert_eq!(there.run(&["verify", "-C", &at, &first]).code, 0);
    fs::rename(&to, actum.folder()).unwrap();
}

#[test]
fn a_key_below_the_workspace_is_still_read_and_pinned() {
    // Made by a user without a home, as older versions kept it.
    let actum = project(&[("a", "date +%N > a")]);
    let run = published(&actum, "a");
    let beside = actum.path(".actum/key.pem");
    assert!(beside.exists());
    let home = Folder::new();
    let actum = actum.with_env("HOME", &home.path().display().to_string());
    assert_eq!(actum.run(&["verify", &run]).code, 0);
    // Another key in its place is noticed: it could have been put there by whoever can write to the folder.
    let own = fs::read(&beside).unwrap();
    let other = project(&[("a", "true")]);
    other.run(&["key", "show"]).ok();
    fs::copy(other.path(".actum/key.pem"), &beside).unwrap();
    let refused = actum.run(&["key", "show", "--json"]);
    assert_eq!((refused.code, &refused.error()["code"]), (2, &json!("KEY_UNUSABLE")), "{}", refused.stderr);
    fs::write(&beside, own).unwrap();
    let old = shown_id(&actum);
    actum.run(&["key", "rotate"]).ok();
    assert_ne!(shown_id(&actum), old);
    assert!(!beside.exists(), "the new key is kept outside the workspace");
    assert_eq!(actum.run(&["verify", &run]).code, 0);
}

#[test]
fn a_ledger_that_was_rolled_back_is_found_without_a_checkpoint() {
    let actum = at_home();
    published(&actum, "a");
    save(&actum, "saved.db");
    let second = published(&actum, "b");
    assert_eq!(ledger(&actum).0, 0);
    roll_back(&actum, "saved.db");
    // The receipts alone tell.
    fs::remove_dir_all(actum.home.join(".local/state/actum/heads")).unwrap();
    let (code, shown) = ledger(&actum);
    assert_eq!((code, shown["valid"].as_bool()), (1, Some(false)), "{shown}");
    assert!(shown["first_bad"]["reason"].as_str().unwrap().contains(&second), "{shown}");
    assert_eq!(actum.run(&["store", "check"]).code, 1);
    // It goes on, with other entries where the lost ones were.
    published(&actum, "b");
    let (code, shown) = ledger(&actum);
    assert_eq!(code, 1, "{shown}");
    let file = actum.path(&format!(".actum/runs/{second}/RECEIPT.json")).display().to_string();
    assert!(failed(&actum, &file).0.contains(&"ledger".to_owned()));
}

/// A foreign project that names this project's key does not get it.
#[test]
fn a_project_that_names_anothers_key_does_not_get_it() {
    let actum = at_home();
    let run = published(&actum, "a");
    let own = shown_id(&actum);
    let hostile = project(&[("a", "true")]).with_env("HOME", &actum.home.path().display().to_string());
    fs::create_dir_all(hostile.path(".actum")).unwrap();
    fs::write(hostile.path(".actum/key.id"), &own).unwrap();
    assert_ne!(hostile.run(&["key", "show", "--json"]).json()["keyid"], own.as_str());
    assert_eq!((shown_id(&actum), actum.run(&["verify", &run]).code), (own, 0));
}

/// With write access to database and run folders: rolled back and without the receipts that would tell, with an altered receipt,
/// and with another identity of the store.
#[test]
fn a_rewritten_ledger_contradicts_what_the_user_has_seen() {
    let actum = at_home();
    published(&actum, "a");
    let database = actum.path(".actum/actum.db");
    save(&actum, "saved.db");
    let second = published(&actum, "b");
    assert_eq!(ledger(&actum).0, 0);
    // One byte of a receipt.
    let receipt = actum.path(&format!(".actum/runs/{second}/RECEIPT.json"));
    let text = fs::read_to_string(&receipt).unwrap();
    let mut envelope: Value = serde_json::from_str(&text).unwrap();
    let signature = envelope["signatures"][0]["sig"].as_str().unwrap().to_owned();
    let other = if signature.starts_with('A') { "B" } else { "A" };
    envelope["signatures"][0]["sig"] = json!(format!("{other}{}", &signature[1..]));
    fs::write(&receipt, envelope.to_string()).unwrap();
    let (code, shown) = ledger(&actum);
    assert!(code == 1 && shown.to_string().contains(&second) && shown.to_string().contains("altered"), "{shown}");
    // Rolled back, with all receipts gone.
    fs::remove_dir_all(actum.path(".actum/runs")).unwrap();
    assert_eq!(ledger(&actum).0, 0);
    roll_back(&actum, "saved.db");
    let (code, shown) = ledger(&actum);
    assert!(code == 1 && shown.to_string().contains("this user saw last"), "{shown}");
    // A store that says it is another one.
    fs::remove_file(&database).unwrap();
    let (code, shown) = ledger(&actum);
    assert!(code != 0 || shown["ledgers"] == json!([]), "{shown}");
    published(&actum, "a");
    let (code, shown) = ledger(&actum);
    assert!(code == 1 && shown.to_string().contains("another log"), "{shown}");
}

/// Runs that a server executes are remembered as well.
#[test]
fn a_server_remembers_the_newest_head() {
    let actum = at_home();
    let token = super::serve::token(&actum, "operator", &[]);
    let server = super::serve::Server::start(&actum, &["--workers", "1"]);
    let made = server.post(&token, "/v1/runs", json!({"items": [item("a", "a")]})).is(202);
    let run = made["runs"][0]["run_id"].as_str().unwrap().to_owned();
    super::runs::until("the run is over", || super::runs::is_over(&actum, &run));
    drop(server);
    let heads = fs::read_dir(actum.home.join(".local/state/actum/heads")).unwrap().flatten().count();
    assert!(heads > 0);
    assert_eq!(ledger(&actum).0, 0);
    let forged = json!({"id": "f1", "tenantId": "local", "module": "server", "source": "actum", "type": "configuration_loaded", "payload": {}});
    let refused = actum.run_with(&["ledger", "append", "--json", "-"], forged.to_string().as_bytes());
    assert_eq!(refused.json()["error"]["code"], "VALIDATION_ERROR", "{}", refused.stdout);
}

/// A run after the ledger was rolled back does not make the shorter history the known one.
#[test]
fn later_runs_do_not_hide_that_the_ledger_was_rolled_back() {
    let actum = at_home();
    let database = actum.path(".actum/actum.db");
    let submit = |name: &str| one(&actum, item(name, "a"), &[]).1;
    submit("one");
    let old = actum.path("old.db");
    let backup = format!("VACUUM INTO '{}'", old.display());
    Connection::open(&database).unwrap().execute(&backup, []).unwrap();
    let second = submit("two");
    assert_eq!(actum.run(&["ledger", "verify"]).code, 0);
    for ending in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(database.with_extension(format!("db{ending}")));
    }
    fs::rename(&old, &database).unwrap();
    fs::remove_dir_all(actum.path(&format!(".actum/runs/{}", id(&second)))).unwrap();
    assert_eq!(actum.run(&["ledger", "verify"]).code, 1);
    submit("three");
    submit("four");
    let verified = actum.run(&["ledger", "verify", "--json"]);
    assert_eq!((verified.code, &verified.json()["valid"]), (1, &json!(false)), "{}", verified.stdout);
}

/// A ledger without entries contradicts receipts, and the head that this user has seen.
#[test]
fn erased_ledger_is_found() {
    for forgets_receipts in [false, true] {
        let actum = at_home();
        let (_, run) = one(&actum, item("i", "a"), &[]);
        assert_eq!(actum.run(&["ledger", "verify"]).code, 0);
        let database = Connection::open(actum.path(".actum/actum.db")).unwrap();
        for table in ["ledger_entry", "ledger_log", "ledger_node", "checkpoint"] {
            database.execute(&format!("DELETE FROM {table}"), []).unwrap();
        }
        if forgets_receipts {
            fs::remove_dir_all(actum.path(&format!(".actum/runs/{}", id(&run)))).unwrap();
        }
        for command in [&["ledger", "verify", "--json"], &["store", "check", "--json"]] {
            let verified = actum.run(command);
            assert_eq!(
                (verified.code, &verified.json()["valid"]),
                (1, &json!(false)),
                "{command:?}: {}",
                verified.stdout
            );
        }
    }
}

/// Another id of the store does not take receipts out of the comparison.
#[test]
fn receipts_of_another_log_are_a_finding() {
    let actum = project(&[("a", "echo x > made")]);
    one(&actum, item("i", "a"), &[]);
    assert_eq!(actum.run(&["ledger", "verify"]).code, 0);
    let database = Connection::open(actum.path(".actum/actum.db")).unwrap();
    database.execute("UPDATE store SET id = '01a1f656-0000-70ff-9d17-6e09e6cbfd6d'", []).unwrap();
    database.execute("DELETE FROM checkpoint", []).unwrap();
    let verified = actum.run(&["ledger", "verify"]);
    assert_eq!(verified.code, 1, "{}", verified.stdout);
    assert!(verified.stderr.contains("1 receipt is of another log"), "{}", verified.stderr);
    assert_eq!(actum.run(&["ledger", "verify", "--other-logs"]).code, 0);
}
