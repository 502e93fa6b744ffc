//! A database changed behind Actum's back: `verify` names the first entry that is wrong.

use actum_testkit::event::{event, signal};
use actum_testkit::postgres::shared_url;
use actum_testkit::program::Program;
use rusqlite::{Connection, params};
use serde_json::Value;

use super::actum;

fn filled(actum: Program) -> Program {
    let mut documents = vec![signal("t", "signal")];
    documents.extend((0..9).map(|n| event("t", &format!("exec-{n}"), 1, "planned")));
    let input: String = documents.iter().map(|d| format!("{d}\n")).collect();
    actum.run_with(&["ledger", "append", "-q"], input.as_bytes()).ok();
    actum
}

fn database(actum: &Program) -> Connection {
    Connection::open(actum.path(".actum/actum.db")).unwrap()
}

fn verify(actum: &Program, more: &[&str]) -> (i32, Value) {
    let ended = actum.run(&[&["ledger", "verify", "--json"], more].concat());
    (ended.code, ended.json())
}

/// The sequence number and the reason of the first bad entry.
fn first_bad(actum: &Program, more: &[&str]) -> (u64, String) {
    let (code, value) = verify(actum, more);
    assert_eq!((code, value["valid"].as_bool()), (1, Some(false)), "{value}");
    let bad = &value["first_bad"];
    (bad["seq"].as_u64().unwrap(), bad["reason"].as_str().unwrap().to_owned())
}

fn body(c: &Connection, seq: i64) -> Vec<u8> {
    c.query_row("SELECT body FROM ledger_entry WHERE seq = ?1", [seq], |r| r.get(0)).unwrap()
}

#[test]
fn an_untouched_ledger_holds() {
    let actum = filled(actum());
    actum.run(&["ledger", "checkpoint"]).ok();
    let (code, value) = verify(&actum, &[]);
    assert_eq!((code, value["ledgers"][0]["entries"].as_u64()), (0, Some(10)));
    assert_eq!(value["ledgers"][0]["checkpoints"], 1);
}

#[test]
fn a_byte_flipped_in_a_payload() {
    let actum = filled(actum());
    let c = database(&actum);
    let text = String::from_utf8(body(&c, 5)).unwrap();
    c.execute(
        "UPDATE ledger_entry SET body = ?1 WHERE seq = 5",
        params![text.replace("exec-4", "exec-5").into_bytes()],
    )
    .unwrap();
    assert_eq!(first_bad(&actum, &[]).0, 5);
    let shown = actum.run(&["ledger", "verify"]);
    assert_eq!(shown.code, 1);
    assert!(shown.stderr.starts_with("error[A0206]: entry 5 (event:"), "{}", shown.stderr);
}

#[test]
fn a_byte_flipped_in_the_file_itself() {
    let actum = filled(actum());
    let path = actum.path(".actum/actum.db");
    let mut bytes = std::fs::read(&path).unwrap();
    let needle = b"\"executionId\":\"exec-6\"";
    let at = bytes.windows(needle.len()).position(|w| w == needle).expect("the payload is in the file");
    bytes[at + 17] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    assert_eq!(first_bad(&actum, &[]).0, 7);
}

#[test]
fn an_entry_rewritten_together_with_its_hash() {
    let actum = filled(actum());
    let c = database(&actum);
    for (seq, expected) in [
        (5, (6, "it does not follow the entry before it")),
        (9, (9, "the head of the log does not fit the entries before it")),
    ] {
        let original = body(&c, seq);
        let forged = String::from_utf8(original.clone()).unwrap().replace("site_builder", "site_builder_").into_bytes();
        let put = |body: &[u8]| {
            let hash = actum_ledger::merkle::leaf(body).0;
            c.execute("UPDATE ledger_entry SET body = ?1, hash = ?2 WHERE seq = ?3", params![body, hash, seq]).unwrap();
        };
        put(&forged);
        let (at, reason) = first_bad(&actum, &[]);
        assert_eq!((at, reason.as_str()), expected);
        put(&original);
    }
    assert_eq!(verify(&actum, &[]).0, 0);
}

#[test]
fn an_entry_deleted() {
    let actum = filled(actum());
    database(&actum).execute("DELETE FROM ledger_entry WHERE seq = 4", []).unwrap();
    assert_eq!(first_bad(&actum, &[]), (4, "is missing (the next one found is 5)".into()));
}

#[test]
fn two_entries_swapped() {
    let swap = |sql: &str| {
        let actum = filled(actum());
        database(&actum).execute_batch(sql).unwrap();
        first_bad(&actum, &[]).0
    };
    // Only their places, and together with everything but their place.
    let places = "UPDATE ledger_entry SET seq = 100 WHERE seq = 3; UPDATE ledger_entry SET seq = 3 WHERE seq = 6;
                  UPDATE ledger_entry SET seq = 6 WHERE seq = 100;";
    assert_eq!(swap(places), 3);
    let contents = "CREATE TEMP TABLE t AS SELECT * FROM ledger_entry WHERE seq IN (3, 6);
        UPDATE ledger_entry SET id = 'x' WHERE seq = 3;
        UPDATE ledger_entry SET (id, hash, body) = (SELECT id, hash, body FROM t WHERE seq = 3) WHERE seq = 6;
        UPDATE ledger_entry SET (id, hash, body) = (SELECT id, hash, body FROM t WHERE seq = 6) WHERE seq = 3;";
    assert_eq!(swap(contents), 3);
}

/// Cuts the tail as carefully as one can: entries, projections and head all say there were only six.
fn cut(actum: &Program) {
    let c = database(actum);
    let mut frontier = actum_ledger::merkle::Frontier::default();
    (0..6).for_each(|seq| {
        frontier.push(actum_ledger::merkle::leaf(&body(&c, seq)));
    });
    let head = actum_ledger::merkle::leaf(&body(&c, 5)).0;
    c.execute_batch("DELETE FROM ledger_entry WHERE seq >= 6; DELETE FROM execution WHERE last_seq >= 6").unwrap();
    let log = params![6, head, frontier.to_bytes()];
    c.execute("UPDATE ledger_log SET size = ?1, head = ?2, frontier = ?3", log).unwrap();
}

#[test]
fn the_tail_cut_off() {
    // Carelessly: the head still knows.
    let actum = filled(actum());
    database(&actum).execute("DELETE FROM ledger_entry WHERE seq >= 6", []).unwrap();
    assert_eq!(first_bad(&actum, &[]), (6, "is missing: the head of the log says there are 10 entries".into()));

    // Carefully: only a checkpoint tells, the one kept in the store or one kept elsewhere.
    let actum = filled(super::actum());
    let note = actum.run(&["ledger", "checkpoint"]).ok();
    actum.file("kept.note", &note);
    cut(&actum);
    let expected = (6, "is missing: a checkpoint was signed over 10 entries".to_owned());
    assert_eq!(first_bad(&actum, &[]), expected);
    // No new checkpoint is signed over it.
    let refused = actum.run(&["ledger", "checkpoint"]);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("has not grown out of the one signed at 10 entries"), "{}", refused.stderr);
    database(&actum).execute("DELETE FROM checkpoint", []).unwrap();
    assert_eq!(verify(&actum, &[]).0, 0, "without any checkpoint a careful cut cannot be seen");
    assert_eq!(first_bad(&actum, &["--checkpoint", "kept.note"]), expected);
    // New entries on top do not hide it.
    let more: String = (0..6).map(|i| format!("{}\n", signal("t", &format!("new-{i}")))).collect();
    actum.run_with(&["ledger", "append", "-q"], more.as_bytes()).ok();
    let (seq, reason) = first_bad(&actum, &["--checkpoint", "kept.note"]);
    assert_eq!((seq, reason.contains("not the one that was signed")), (9, true), "{reason}");
    // A checkpoint that somebody else signed, or that was changed, proves nothing.
    actum.file("bent.note", note.replace("\n10\n", "\n9\n"));
    let bent = actum.run(&["ledger", "verify", "--checkpoint", "bent.note"]);
    assert_eq!(bent.code, 1);
    assert!(bent.stderr.contains("signature"), "{}", bent.stderr);
}

#[test]
fn columns_beside_the_text_and_rows_before_the_first() {
    let actum = filled(actum());
    let c = database(&actum);
    c.execute_batch("UPDATE ledger_entry SET created_ns = 0 WHERE seq = 2").unwrap();
    assert_eq!(first_bad(&actum, &[]), (2, "its creation time is not the one it was recorded with".into()));
    c.execute_batch("UPDATE ledger_entry SET type = 'evil' WHERE seq = 1").unwrap();
    assert_eq!(first_bad(&actum, &[]), (1, "its type is not the one it was recorded with".into()));
    let rogue =
        "PRAGMA ignore_check_constraints = on; INSERT INTO ledger_entry (tenant, seq, id, type, created_ns, hash, body)
                 SELECT tenant, -1, 'rogue', type, created_ns, hash, body FROM ledger_entry WHERE seq = 0";
    c.execute_batch(rogue).unwrap();
    assert_eq!(first_bad(&actum, &[]), (0, "is missing (the next one found is -1)".into()));
}

#[test]
fn a_rebuild_never_hides_damage_of_the_journal() {
    for damage in ["DELETE FROM ledger_entry WHERE seq >= 6", "DELETE FROM ledger_entry WHERE seq = 4"] {
        let actum = filled(actum());
        database(&actum).execute_batch(damage).unwrap();
        let found = first_bad(&actum, &[]);
        let rebuild = actum.run(&["store", "rebuild", "--json"]);
        assert_eq!((rebuild.code, rebuild.error()["code"].as_str()), (1, Some("LEDGER_DAMAGED")));
        assert_eq!(first_bad(&actum, &[]), found);
        assert_eq!(actum.run(&["store", "check"]).code, 1);
    }
    // A head that is merely lost or broken can be made anew; a checkpoint is signed only over a sound one.
    for damage in ["DELETE FROM ledger_log", "UPDATE ledger_log SET head = zeroblob(32), frontier = zeroblob(64)"] {
        let actum = filled(actum());
        actum.run(&["ledger", "checkpoint"]).ok();
        database(&actum).execute_batch(damage).unwrap();
        assert_eq!(actum.run(&["ledger", "checkpoint"]).code, 1);
        assert_eq!(actum.run(&["store", "rebuild"]).code, 1);
        assert_eq!(actum.run(&["store", "rebuild"]).code, 0);
        assert_eq!(verify(&actum, &[]).0, 0);
        actum.run(&["ledger", "checkpoint"]).ok();
    }
}

#[test]
fn broken_projections_are_found_and_mended() {
    let actum = filled(actum());
    let damage = "UPDATE execution SET state = 'succeeded' WHERE execution = 'exec-3'; DELETE FROM execution WHERE execution = 'exec-4';
                  UPDATE ledger_log SET head = zeroblob(32)";
    database(&actum).execute_batch(damage).unwrap();
    let check = actum.run(&["store", "check", "--json"]);
    assert_eq!(check.code, 1);
    let checks = check.json()["checks"].clone();
    let bad: Vec<_> =
        checks.as_array().unwrap().iter().filter(|c| c["ok"] == false).map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(bad, ["ledger", "ledger_log", "execution"]);
    let rebuilt = actum.run(&["store", "rebuild", "--json"]);
    assert_eq!((rebuilt.code, rebuilt.json()["equal"].as_bool()), (1, Some(false)));
    assert_eq!(actum.run(&["store", "rebuild", "--json"]).json()["equal"], true);
    assert!(actum.run(&["store", "check"]).ok().contains("ok  execution"));
}

#[test]
fn on_postgres_too() {
    let url = shared_url();
    let actum = filled(actum().on_store(&url));
    let sql = |text: &str| actum_testkit::postgres::execute(&url, text);
    assert_eq!(verify(&actum, &[]).0, 0);
    sql(
        "UPDATE actum.ledger_entry SET body = convert_to(replace(convert_from(body, 'UTF8'), 'exec-4', 'exec-5'), 'UTF8') WHERE seq = 5",
    );
    assert_eq!(first_bad(&actum, &[]).0, 5);
    sql("DELETE FROM actum.ledger_entry WHERE seq >= 3");
    assert_eq!(first_bad(&actum, &[]), (3, "is missing: the head of the log says there are 10 entries".into()));
    let rebuild = actum.run(&["store", "rebuild", "--json"]);
    assert_eq!((rebuild.code, rebuild.error()["code"].as_str()), (1, Some("LEDGER_DAMAGED")));
    let backup = actum.run(&["store", "backup", "copy.db"]);
    assert_eq!((backup.code, actum.path("copy.db").exists()), (1, false));
}

/// A projection that was altered lets an illegal event be appended; the walk replays the state machine and finds it.
#[test]
fn illegal_history_behind_an_altered_projection() {
    let actum = filled(actum());
    let changed = database(&actum).execute("UPDATE execution SET state = 'failed', attempt = 1", []).unwrap();
    assert!(changed > 0);
    let execution: String =
        database(&actum).query_row("SELECT execution FROM execution LIMIT 1", [], |row| row.get(0)).unwrap();
    let appended = actum.run_with(&["ledger", "append"], event("t", &execution, 2, "planned").to_string().as_bytes());
    assert_eq!(appended.code, 0, "{}{}", appended.stdout, appended.stderr);
    let (_, why) = first_bad(&actum, &[]);
    assert!(why.contains("rules of its execution"), "{why}");
    assert_eq!(actum.run(&["store", "check"]).code, 1);
}
