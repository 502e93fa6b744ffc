//! What a real run adds to its agent: freeze, stage, cell, admit, publish, receipt, on a workspace of 10,000 files.

use actum_testkit::folder::Folder;

use crate::measure::{median, print, spread, verdict};

const FILES: usize = 10_000;
const RUNS: usize = 40;

pub(crate) fn overhead() {
    let folder = Folder::new();
    for n in 0..FILES {
        folder.file(&format!("src/{:02}/{:02}/{n}.txt", n % 20, n / 20 % 25), format!("file {n}\n").repeat(20));
    }
    folder
        .file("actum.toml", "[agents.a]\ntype = \"command\"\ncommand = [\"sh\", \"-c\", \"date +%N > changed.txt\"]\n");
    let items: Vec<_> = (0..RUNS)
        .map(|n| {
            let before = if n > 0 { serde_json::json!([format!("i{}", n - 1)]) } else { serde_json::json!([]) };
            serde_json::json!({"id": format!("i{n}"), "agent_id": "a", "description": "d", "dependencies": before})
        })
        .collect();
    let work = folder.file("work.json", serde_json::json!({ "items": items }).to_string());
    let mut actum = actum_testkit::program::other(env!("CARGO_BIN_EXE_actum"));
    let ended =
        actum.current_dir(folder.path()).args(["run", "--json", "--jobs", "1"]).arg(&work).output().expect("it runs");
    assert!(
        ended.status.success(),
        "{}{}",
        String::from_utf8_lossy(&ended.stdout),
        String::from_utf8_lossy(&ended.stderr)
    );
    // From the claim to the last write, less what the agent took.
    let database = rusqlite::Connection::open(folder.join(".actum/actum.db")).expect("the store");
    let sql = "SELECT r.id, min(e.at_ms), r.updated_ms,
                      sum(CASE WHEN e.kind = 'acted' THEN json_extract(e.body, '$.took_ms') ELSE 0 END)
               FROM run r JOIN run_event e ON e.run = r.n GROUP BY r.id ORDER BY r.id";
    let mut statement = database.prepare(sql).expect("a statement");
    let rows = statement
        .query_map([], |row| Ok((row.get::<_, i64>(1)?, row.get::<_, i64>(2)?, row.get::<_, i64>(3)?)))
        .expect("rows");
    let times: Vec<(f64, f64)> = rows
        .map(|row| row.expect("a row"))
        .map(|(begun, ended, agent)| ((ended - begun - agent) as f64, agent as f64))
        .collect();
    let (around, agent): (Vec<f64>, Vec<f64>) = times.into_iter().unzip();
    print(&format!("a real run on {FILES} files: agent in its cell {} ms", spread(&agent)));
    print(&format!("  median overhead {:.1} ms", median(around.iter().copied())));
    verdict("ms around the agent", &around, 60.0, true);
}
