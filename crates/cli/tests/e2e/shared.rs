//! Shared workspaces: named by a commit, a snapshot or a name, worked on by whoever has the contents, published by moving a
//! head. Nothing is moved twice, by two at once, or by whoever has lost the run.

use std::path::Path;

use actum_testkit::program::{Program, other};
use actum_testkit::tree::read;
use serde_json::{Value, json};

use super::run::{asked, id, item, project, with};
use super::runs::{until, work};

/// Writes a file of its own, and says where it is.
pub(crate) const AGENT: &str = "pwd; echo $ACTUM_WORK_ITEM_ID > made-$ACTUM_WORK_ITEM_ID";

pub(crate) fn git(folder: &Path, words: &[&str]) -> String {
    let mut command = other("git");
    command.current_dir(folder).args(["-c", "user.name=a", "-c", "user.email=a@example.test"]).args(words);
    let ended = actum_testkit::program::run(command, b"");
    ended.ok().trim().to_owned()
}

/// A repository with one commit, and the name of the workspace that is. The project is one too, as most are, and what that
/// ignores is none of the workspace's business.
pub(crate) fn repository(actum: &Program) -> String {
    let folder = actum.path("repository");
    git(&actum.path("."), &["init", "-q", "."]);
    actum.file(".gitignore", "made-one\n");
    for (name, text) in [("a.txt", "a\n"), ("sub/b.txt", "b\n"), (".gitignore", "ignored*\n"), ("ignored-kept", "x\n")]
    {
        actum.file(&format!("repository/{name}"), text);
    }
    git(&folder, &["init", "-q", "."]);
    git(&folder, &["add", "-f", "-A", "."]);
    git(&folder, &["commit", "-qm", "first"]);
    format!("git+file://{}#{}", folder.display(), git(&folder, &["rev-parse", "HEAD"]))
}

/// Lets every tenant run the agents of a project.
fn offered(actum: Program) -> Program {
    let text = std::fs::read_to_string(actum.path("actum.toml")).unwrap();
    actum.file("actum.toml", text.replace("phases =", "tenants = [\"*\"]\nphases ="));
    actum
}

pub(crate) fn submit(actum: &Program, workspace: &str, items: Vec<Value>, flags: &[&str]) -> (i32, Vec<Value>) {
    let work = json!({"workspace": workspace, "items": items}).to_string();
    let arguments: Vec<&str> = ["run", "--json", "-"].into_iter().chain(flags.iter().copied()).collect();
    let ended = actum.run_with(&arguments, work.as_bytes());
    assert!(!ended.stdout.is_empty(), "{}", ended.stderr);
    (ended.code, ended.json()["runs"].as_array().unwrap().clone())
}

pub(crate) fn moves(actum: &Program, workspace: &str) -> Vec<Value> {
    let shown = asked(actum, &["workspace", "history", workspace, "--limit", "1000", "--json"]);
    let mut moves = shown["moves"].as_array().unwrap().clone();
    moves.reverse();
    moves
}

/// The files of a workspace, put into a folder that was not there before.
fn files(actum: &Program, workspace: &str, folder: &str) -> Vec<String> {
    actum.run(&["workspace", "checkout", workspace, folder]).ok();
    let leaves = read(&actum.path(folder));
    leaves.keys().map(|path| String::from_utf8_lossy(path).into_owned()).collect()
}

fn sound(actum: &Program) {
    assert_eq!(asked(actum, &["ledger", "verify", "--json"])["valid"], true);
    assert_eq!(asked(actum, &["store", "rebuild", "--json"])["equal"], true);
}

#[test]
fn a_commit_is_worked_on_checked_out_and_taken_back() {
    let actum = project(&[("a", AGENT), ("b", "test -e made-one; echo b >> a.txt; rm sub/b.txt")]);
    let workspace = repository(&actum);
    let second = with(item("two", "b"), "dependencies", json!(["one"]));
    let (code, runs) = submit(&actum, &workspace, vec![item("one", "a"), second], &[]);
    assert_eq!(code, 0, "{runs:?}");
    assert_eq!(runs[0]["created_files"], json!(["/workspace/made-one"]));
    // A folder that is empty now is one all the same.
    let all = [".gitignore", "a.txt", "ignored-kept", "made-one", "sub/"];
    assert_eq!(files(&actum, &workspace, "out"), all);
    assert_eq!(std::fs::read_to_string(actum.path("out/a.txt")).unwrap(), "a\nb\n");
    assert_eq!(asked(&actum, &["status", &id(&runs[1]), "--json"])["workspace"], workspace);
    for run in &runs {
        assert_eq!(asked(&actum, &["verify", &id(run), "--json"])["valid"], true);
        assert_eq!(asked(&actum, &["replay", &id(run), "--json"])["identical"], true);
    }
    let statement =
        std::fs::read_to_string(actum.path(&format!(".actum/runs/{}/receipt.statement.json", id(&runs[0]))));
    let statement: Value = serde_json::from_str(&statement.unwrap()).unwrap();
    assert_eq!(statement["predicate"]["before"]["commit"], workspace.rsplit_once('#').unwrap().1);
    // Taken back out of the middle: what came later stays.
    actum.run(&["undo", &id(&runs[0])]).ok();
    assert_eq!(files(&actum, &workspace, "undone"), [".gitignore", "a.txt", "ignored-kept", "sub/"]);
    let again = actum.run(&["undo", &id(&runs[0]), "--json"]);
    assert_eq!((again.code, again.error()["code"].as_str()), (6, Some("RUN_STATE")), "{again:?}");
    let causes: Vec<Value> = moves(&actum, &workspace).iter().map(|made| made["cause"].clone()).collect();
    assert_eq!(causes, ["create", "publish", "publish", "undo"]);
    assert!(!actum.path("made-one").exists(), "the project's own files are not touched");
    sound(&actum);
}

#[test]
fn a_draft_is_applied_and_what_was_changed_by_two_is_not() {
    let actum = project(&[("a", AGENT), ("b", "echo $ACTUM_RUN_ID > a.txt")]);
    actum.file("seed/a.txt", "a\n");
    actum.run(&["workspace", "add", "site", "seed"]).ok();
    let (code, runs) = submit(&actum, "shared:site", vec![item("x", "a")], &["--dry-run"]);
    assert_eq!((code, moves(&actum, "site").len()), (0, 1), "{runs:?}");
    // What waits for somebody is kept for him.
    let freed = asked(&actum, &["store", "gc", "--json"]);
    assert!(actum.run(&["diff", &id(&runs[0])]).ok().contains("+++ b/made-x"), "{freed}");
    let applied = asked(&actum, &["apply", &id(&runs[0]), "--json"]);
    assert_eq!(applied["deltas"][0]["path"], "made-x", "{applied}");
    let again = actum.run(&["apply", &id(&runs[0]), "--json"]);
    assert_eq!((again.code, again.error()["code"].as_str()), (6, Some("RUN_STATE")), "{again:?}");
    let (_, drafts) = submit(&actum, "shared:site", vec![item("y", "b")], &["--dry-run"]);
    let (code, _) = submit(&actum, "shared:site", vec![item("z", "b")], &[]);
    assert_eq!(code, 0);
    let refused = actum.run(&["apply", &id(&drafts[0]), "--json"]);
    assert_eq!((refused.code, refused.error()["code"].as_str()), (6, Some("PUBLISH_CONFLICT")), "{refused:?}");
    assert_eq!(refused.error()["details"]["paths"], json!(["a.txt"]));
    assert_eq!(moves(&actum, "site").len(), 3);
    sound(&actum);
}

/// What every system can unpack, here and from elsewhere: the same files, and the same bytes each time.
#[test]
fn a_workspace_is_had_as_one_file() {
    let actum = project(&[("a", AGENT)]);
    let (far, long) = ("deep/".repeat(30), "../".repeat(60) + "x");
    actum.file("seed/a.txt", "a\n");
    actum.file(&format!("seed/{far}b"), "b\n");
    actum.file("seed/ü 1", [0, 255, 10]);
    std::fs::create_dir(actum.path("seed/empty")).unwrap();
    let odd = "./a//".repeat(30);
    for (name, target) in [("near", "./a.txt"), ("far", long.as_str()), ("nowhere", "//no//where"), ("odd", &odd)] {
        std::os::unix::fs::symlink(target, actum.path("seed").join(name)).unwrap();
    }
    std::fs::set_permissions(actum.path("seed/a.txt"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    actum.run(&["workspace", "add", "team/site", "seed"]).ok();
    let (code, _) = submit(&actum, "shared:team/site", vec![item("x", "a")], &[]);
    assert_eq!(code, 0);
    let unpacked = |who: &Program, words: &[&str], folder: &str| {
        let (folder, archive) = (who.path(folder), who.path(&format!("{folder}.tar")));
        let mut running = who.launch(words, &archive);
        let mut code = None;
        until("an archive", || {
            code = running.ended();
            code.is_some()
        });
        let bytes = std::fs::read(&archive).unwrap();
        assert_eq!(code, Some(0), "{}", String::from_utf8_lossy(&bytes));
        std::fs::create_dir(&folder).unwrap();
        let mut tar = other("tar");
        tar.arg("xpf").arg(&archive).arg("-C").arg(&folder);
        actum_testkit::program::run(tar, b"").ok();
        (read(&folder), bytes)
    };
    actum.run(&["workspace", "checkout", "team/site", "out"]).ok();
    let (files, bytes) = unpacked(&actum, &["workspace", "archive", "team/site"], "here");
    assert_eq!(files, read(&actum.path("out")));
    assert!(files.len() > 7 && files.keys().any(|path| path.ends_with(b"made-x")), "{files:?}");
    assert_eq!(
        unpacked(&actum, &["workspace", "archive", "team/site", "--at", "1"], "before").0,
        read(&actum.path("seed"))
    );
    let told = asked(&actum, &["workspace", "archive", "team/site", "-o", "a.tar", "--json"]);
    assert_eq!((&told["name"], &told["files"]), (&json!("shared:team/site"), &json!(files.len())), "{told}");
    assert_eq!(std::fs::read(actum.path("a.tar")).unwrap(), bytes);
    // Nothing that is there is written over, and what cannot be had leaves nothing behind.
    assert_eq!(actum.run(&["workspace", "archive", "team/site", "-o", "a.tar"]).code, 2);
    let none = actum.run(&["workspace", "archive", "team/site", "--at", "9", "-o", "b.tar", "--json"]);
    assert_eq!((none.code, none.error()["code"].as_str()), (7, Some("NOT_FOUND")), "{none:?}");
    assert!(!actum.path("b.tar").exists());

    let mut server = actum.start(&["serve", "--listen", "127.0.0.1:0", "--workers", "0", "--json"], &[]);
    let shown: Value = serde_json::from_str(&server.line().unwrap()).unwrap();
    let (url, token) = (shown["url"].as_str().unwrap(), shown["token"].as_str().unwrap());
    let away = super::actum().with_env("ACTUM_SERVER", url).with_env("ACTUM_TOKEN", token);
    assert_eq!(unpacked(&away, &["workspace", "archive", "team/site"], "there"), (files, bytes));
    // What an answer does not hold is refused before it is read; at the machine it is had all the same.
    actum.file("big/zeros", vec![0; 33 << 20]);
    actum.run(&["workspace", "add", "big", "big"]).ok();
    let large = away.run(&["workspace", "archive", "big", "--json"]);
    assert!(large.code == 2 && large.error()["message"].as_str().unwrap().contains("more than"), "{:?}", large.error());
    asked(&actum, &["workspace", "archive", "big", "-o", "big.tar", "--json"]);
    assert!(std::fs::metadata(actum.path("big.tar")).unwrap().len() > 33 << 20);
    let refused = away.run(&["workspace", "checkout", "team/site", "x", "--json"]);
    assert!(refused.error()["hint"].as_str().unwrap().contains("workspace archive"), "{refused:?}");
    server.signal("TERM");
    assert_eq!(server.finish().0, 0);
}

/// Whoever agrees to a result, however many at once: the head moves once, and what the run says of it is that move.
#[test]
fn a_result_is_applied_once_and_only_what_is_its_own_is_taken_back() {
    let actum = project(&[("a", AGENT)]);
    actum.file("seed/a.txt", "a\n");
    actum.run(&["workspace", "add", "site", "seed"]).ok();
    let (_, drafts) = submit(&actum, "shared:site", vec![item("x", "a")], &["--dry-run"]);
    let (_, same) =
        submit(&actum, "shared:site", vec![with(item("x", "a"), "description", json!("again"))], &["--dry-run"]);
    let draft = id(&drafts[0]);
    let ended: Vec<_> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..4).map(|_| scope.spawn(|| actum.run(&["apply", &draft, "--json"]))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let done: Vec<_> = ended.iter().filter(|one| one.code == 0).collect();
    assert_eq!(done.len(), 1, "{ended:?}");
    assert!(ended.iter().all(|one| one.code == 0 || one.error()["code"] == "RUN_STATE"), "{ended:?}");
    let made = moves(&actum, "site");
    assert_eq!((made.len(), &made[1]["of"]), (2, &json!(draft)), "{made:?}");
    let name = format!("2:{}", made[1]["publication"].as_str().unwrap());
    assert_eq!(done[0].json()["publication"], name);
    // What is there already moves nothing, and there is nothing of it to be taken back.
    let none = asked(&actum, &["apply", &id(&same[0]), "--json"]);
    assert_eq!((&none["publication"], &none["deltas"]), (&json!("none"), &json!([])), "{none}");
    let refused = actum.run(&["undo", &id(&same[0]), "--json"]);
    assert_eq!((refused.code, refused.error()["code"].as_str()), (6, Some("RUN_STATE")), "{refused:?}");
    let undone = asked(&actum, &["undo", &draft, "--json"]);
    assert_eq!(undone["deltas"][0]["path"], "made-x", "{undone}");
    assert_eq!(moves(&actum, "site").len(), 3);
    sound(&actum);
}

/// Killed before the head is moved, and after: whoever comes next moves it once.
#[test]
fn a_head_is_moved_once_whoever_dies() {
    for at in ["run.publishing", "run.applied", "run.published", "run.receipted", "run.ended"] {
        let actum = project(&[("a", AGENT)]);
        actum.file("seed/a.txt", "a\n");
        actum.run(&["workspace", "add", "site", "seed"]).ok();
        let work_file = json!({"workspace": "shared:site", "items": [item("x", "a")]}).to_string();
        actum.file("work.json", work_file);
        let mut running = actum.start(&["run", "--json", "work.json"], &[("ACTUM_CRASH_AT", at)]);
        assert!(running.error_line().is_some_and(|line| line.starts_with("crash point")), "{at}");
        let below = running.below();
        running.kill();
        until("its processes are gone", || !below.iter().any(|process| process.lives()));
        let runs = super::runs::all_runs(&actum);
        // Given back as by a worker whom the contents were away from: what has moved the head is neither cancelled nor undone.
        if at == "run.published" {
            let store = rusqlite::Connection::open(actum.path(".actum/actum.db")).unwrap();
            store.execute("UPDATE run SET state = 'queued', owner = NULL, lease_until_ms = NULL", []).unwrap();
            for word in ["cancel", "undo"] {
                let refused = actum.run(&[word, &runs[0], "--json"]);
                assert_eq!((refused.code, refused.error()["code"].as_str()), (6, Some("RUN_STATE")), "{refused:?}");
            }
        }
        work(&actum, &runs);
        let made = moves(&actum, "site");
        assert_eq!(made.len(), 2, "{at}: {made:?}");
        assert_eq!((&made[1]["of"], &made[1]["cause"]), (&json!(runs[0]), &json!("publish")), "{at}");
        assert_eq!(asked(&actum, &["verify", &runs[0], "--json"])["valid"], true, "{at}");
        sound(&actum);
    }
}

#[test]
fn what_names_no_workspace_is_refused_by_name() {
    let actum = project(&[("a", AGENT)]);
    let workspace = repository(&actum);
    let other = format!("{}#{}", workspace.rsplit_once('#').unwrap().0, "0".repeat(40));
    let snapshot = format!("snapshot:{}", "0".repeat(64));
    for (name, code, part) in [
        ("snapshot:12", "INPUT_INVALID", "64 hex digits"),
        (&snapshot, "NOT_FOUND", "there is no snapshot"),
        ("git+file:///nowhere#main", "INPUT_INVALID", "names no commit"),
        (&other, "NOT_FOUND", "cannot be had"),
        (&format!("git+ssh://x/y#{}", "0".repeat(40)), "INPUT_INVALID", "scheme"),
        (&format!("git+https://u:p@x/y#{}", "0".repeat(40)), "INPUT_INVALID", "password"),
        ("shared:nobody", "NOT_FOUND", "there is no shared workspace"),
        ("shared:a b", "INPUT_INVALID", "bad name"),
    ] {
        let work = json!({"workspace": name, "items": [item("x", "a")]}).to_string();
        let ended = actum.run_with(&["run", "--json", "-"], work.as_bytes());
        let error = ended.error();
        assert_eq!(error["code"], code, "{name}: {error}");
        assert!(error["message"].as_str().unwrap().contains(part), "{name}: {error}");
    }
    assert_eq!(asked(&actum, &["list", "--json"])["runs"], json!([]));
    let twice = || actum.run(&["workspace", "add", "site", "--json"]);
    assert_eq!(twice().code, 0);
    assert_eq!((twice().code, twice().error()["code"].clone()), (6, json!("IDEMPOTENCY_CONFLICT")));
    let forged = json!({"id": "head:x:1", "tenantId": "local", "module": "workspace", "source": "actum", "type": "workspace_head", "payload": {}});
    let ended = actum.run_with(&["ledger", "append", "--json", "-"], forged.to_string().as_bytes());
    assert_eq!(ended.json()["error"]["code"], "VALIDATION_ERROR", "{ended:?}");
}

/// Several machines: folders of their own with the same agents, one PostgreSQL, one object store.
fn machines<const N: usize>(store: &str, contents: &Path) -> [Program; N] {
    let machines = std::array::from_fn(|_| {
        let big = "for n in $(seq 12); do head -c 900000 /dev/zero | tr '\\0' a | fold > big-$n; done";
        let actum = project(&[("a", AGENT), ("big", big)]).on_store(store);
        let text = std::fs::read_to_string(actum.path("actum.toml")).unwrap();
        actum.file("actum.toml", format!("{text}\n[blobs]\nurl = \"file://{}\"\n", contents.display()));
        actum
    });
    trust_each_other(machines.iter());
    machines
}

/// Each of these machines trusts the keys of all others, by its configuration.
pub(crate) fn trust_each_other<'m>(machines: impl Iterator<Item = &'m Program> + Clone) {
    let key = |actum: &Program| asked(actum, &["key", "show", "--json"])["keyid"].clone();
    let keys: Value = machines.clone().map(key).collect();
    for actum in machines {
        let text = std::fs::read_to_string(actum.path("actum.toml")).unwrap();
        actum.file("actum.toml", format!("{text}\n[trust]\nkeys = {keys}\n"));
    }
}

#[test]
fn any_machine_takes_any_run_and_shows_what_came_of_it() {
    let (store, contents) = (actum_testkit::postgres::shared_url(), actum_testkit::folder::Folder::new());
    let [one, two, three] = machines(&store, contents.path());
    let workspace = repository(&one);
    let items = (0..12).map(|n| item(&format!("i{n}"), "a")).collect();
    let (code, runs) = submit(&one, &workspace, items, &["--detach"]);
    assert_eq!(code, 0, "{runs:?}");
    let runs: Vec<String> = runs.iter().map(id).collect();
    // Whoever submitted works on none of them.
    work(&two, &runs);
    assert_eq!(moves(&three, &workspace).len(), 13);
    let found = files(&three, &workspace, "out");
    assert!((0..12).all(|n| found.contains(&format!("made-i{n}"))), "{found:?}");
    // More than a log that is shown: what a receipt names is there whatever its size.
    let big = with(item("big", "big"), "constraints", json!({"max_files": 20}));
    let (_, made) = submit(&one, &workspace, vec![big], &["--detach"]);
    let large = id(&made[0]);
    work(&two, std::slice::from_ref(&large));
    assert!(three.run(&["diff", &large]).ok().len() > 9_000_000);
    assert_eq!(asked(&three, &["verify", &large, "--json"])["valid"], true);
    let receipt = asked(&three, &["status", &large, "--json"])["result"]["receipt_id"].as_str().unwrap().to_owned();
    // By the receipt's own id, on a machine that has never looked at the run.
    assert!(one.run(&["receipt", &receipt, "--json"]).json()["payload"].is_string());
    for actum in [&one, &three] {
        let run = &runs[0];
        assert!(actum.run(&["diff", run]).ok().contains("+++ b/made-i0"));
        assert!(actum.run(&["logs", run]).ok().contains("/workspace"));
        assert_eq!(asked(actum, &["verify", run, "--json"])["valid"], true);
        assert_eq!(asked(actum, &["replay", run, "--json"])["identical"], true);
    }
    sound(&three);
}

/// Two servers, the same request at both at once under one key: it is done once, also if the first answer was never heard.
#[test]
fn a_submission_under_one_key_is_made_once_by_many_servers() {
    let (store, contents) = (actum_testkit::postgres::shared_url(), actum_testkit::folder::Folder::new());
    let [one, two] = machines(&store, contents.path());
    let first = super::serve::Server::start(&one, &["--workers", "0"]);
    let token = first.told["token"].as_str().unwrap().to_owned();
    let second = super::serve::Server::start(&two, &["--workers", "0"]);
    one.file("seed/a.txt", "a\n");
    one.run(&["workspace", "add", "site", "seed"]).ok();
    let work = json!({"workspace": "shared:site", "items": [item("x", "a"), item("y", "a")]}).to_string();
    let bearer = format!("Bearer {token}");
    let submit = |server: &super::serve::Server| {
        let headers = [("authorization", bearer.as_str()), ("idempotency-key", "k-1")];
        server.ask_with("POST", "/v1/runs", &headers, &work)
    };
    let answers: Vec<_> = std::thread::scope(|scope| {
        let asked: Vec<_> = (0..8)
            .map(|n| {
                scope.spawn({
                    let server = if n % 2 == 0 { &first } else { &second };
                    move || submit(server)
                })
            })
            .collect();
        asked.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let ids = |answer: &super::serve::Reply| {
        assert_eq!(answer.status, 202, "{answer:?}");
        let mut ids: Vec<String> = answer.json()["runs"].as_array().unwrap().iter().map(id).collect();
        ids.sort();
        ids
    };
    let all: std::collections::BTreeSet<Vec<String>> = answers.iter().map(ids).collect();
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!(asked(&one, &["list", "--json"])["runs"].as_array().map(Vec::len), Some(2));
}

/// Whoever is no owner of the project works on what belongs to no machine, and on nothing else.
#[test]
fn other_tenants_run_on_shared_workspaces_only() {
    let actum = offered(project(&[("a", AGENT)]));
    actum.file("secret.txt", "of the project\n");
    let workspace = repository(&actum);
    let text = std::fs::read_to_string(actum.path("actum.toml")).unwrap();
    let deploy = "[agents.deploy]\ntype = \"command\"\ncommand = [\"sh\", \"./build.sh\"]\n";
    actum.file("actum.toml", format!("{text}{deploy}environment = {{ DEPLOY_KEY = \"env:HOME\" }}\n"));
    let server = super::serve::Server::start(&actum, &["--workers", "2"]);
    let guest = super::serve::token(&actum, "operator", &["--tenant", "acme"]);
    let other = super::serve::token(&actum, "operator", &["--tenant", "other"]);
    let owner = super::serve::token(&actum, "operator", &[]);
    let admin = super::serve::token(&actum, "admin", &[]);
    let refused = server.post(&guest, "/v1/runs", json!({"items": [item("x", "a")]})).is(403);
    assert!(refused["error"]["hint"].as_str().unwrap().contains("shared workspace"), "{refused}");
    // Nobody's disk is read for others; whoever sits at the machine has made it known.
    let by_url = json!({"workspace": workspace, "items": [item("x", "a")]});
    server.post(&guest, "/v1/runs", by_url).is(422);
    let tree = asked(&actum, &["snapshot", "freeze", "repository", "--json"])["id"].as_str().unwrap().to_owned();
    let of_others = json!({"workspace": format!("snapshot:{tree}"), "items": [item("x", "a")]});
    assert_ne!(server.post(&guest, "/v1/runs", of_others).status, 202, "contents of one tenant are not another's");
    // Nor does what he brings see what the project's agents know.
    let by_secrets = json!({"workspace": "shared:his", "items": [item("x", "deploy")]});
    let refused = server.post(&guest, "/v1/runs", by_secrets).is(422);
    assert!(refused["error"]["hint"].as_str().unwrap().contains("`tenants` of an agent"), "{refused}");
    for (method, path) in [("GET", "/v1/snapshots"), ("POST", "/v1/executions"), ("GET", "/v1/tools")] {
        assert_eq!(server.ask(&guest, method, path, "").status, 403, "{path}");
    }
    // What the owner runs is not the guest's to see.
    let made = server.post(&owner, "/v1/runs", json!({"items": [item("own", "a")]})).is(202);
    let run = made["runs"][0]["run_id"].as_str().unwrap();
    for path in ["", "/diff", "/logs", "/receipt", "/events", "/decision"] {
        let answer = server.ask_with(
            "GET",
            &format!("/v1/runs/{run}{path}"),
            &[("authorization", &format!("Bearer {other}")), ("accept", "application/json")],
            "",
        );
        assert_eq!(answer.status, 404, "{path}: {answer:?}");
    }
    for path in ["apply", "undo", "cancel", "resume", "replay"] {
        let answer = server.post(&other, &format!("/v1/runs/{run}/{path}"), json!({}));
        assert_eq!(answer.status, 404, "{path}: {answer:?}");
    }
    let is_done =
        |token: &str, run: &str| server.get(token, &format!("/v1/runs/{run}")).is(200)["state"] == "succeeded";
    until("it is over", || is_done(&owner, run));
    assert!(actum.path("made-own").exists());
    // Whoever sits at the machine gives him something to work on, and takes out what became of it.
    actum.file("seed/a.txt", "a\n");
    actum.run(&["workspace", "add", "site", "seed", "--tenant", "acme"]).ok();
    let made = server.post(&guest, "/v1/runs", json!({"workspace": "shared:site", "items": [item("x", "a")]})).is(202);
    let run = made["runs"][0]["run_id"].as_str().unwrap();
    until("the guest's is over", || is_done(&guest, run));
    actum.run(&["workspace", "checkout", "site", "out", "--tenant", "acme"]).ok();
    assert!(actum.path("out/a.txt").exists() && actum.path("out/made-x").exists());
    assert_eq!(actum.run(&["workspace", "show", "site"]).code, 7, "it is none of the owner's");
    let archive = "/v1/workspaces/site/archive";
    let answer = server.ask(&guest, "GET", archive, "");
    assert!(answer.status == 200 && answer.head.contains("application/x-tar"), "{}", answer.head);
    for token in [&other, &owner] {
        assert_eq!(server.ask(token, "GET", archive, "").status, 404);
    }
    assert_eq!(server.ask(&guest, "GET", "/v1/workspaces/site/archive?at=99", "").status, 404);
    assert_eq!(server.ask(&guest, "GET", "/v1/workspaces/site/archive?tenant=local", "").status, 400);
    // What he may do once more is what is offered by then.
    let again = |what: &str| server.post(&guest, &format!("/v1/runs/{run}/{what}"), json!({})).status;
    assert_eq!(again("replay"), 200);
    let text = std::fs::read_to_string(actum.path("actum.toml")).unwrap();
    for other in [text.replace("tenants = [\"*\"]\n", ""), text.replace("made-", "other-")] {
        assert_ne!(other, text);
        actum.file("actum.toml", other);
        server.post(&admin, "/v1/config/reload", json!({})).is(200);
        for what in ["fork", "resume", "replay"] {
            assert_eq!(again(what), 403, "{what}");
        }
    }
    actum.file("actum.toml", text);
    server.post(&admin, "/v1/config/reload", json!({})).is(200);
    assert_eq!(again("fork"), 202);
}

/// Somebody agreed to one execution; another one, wherever it begins, is agreed to anew.
#[test]
fn a_fork_is_agreed_to_anew() {
    let actum = project(&[("a", "echo x > x")]);
    let text = std::fs::read_to_string(actum.path("actum.toml")).unwrap();
    actum.file("actum.toml", text.replace("phases =", "network = \"open\"\nphases ="));
    actum.file("work.json", json!({"items": [item("one", "a")]}).to_string());
    let agree = |ended: &actum_testkit::program::Ended| {
        assert_eq!((ended.code, ended.error()["code"].as_str()), (8, Some("APPROVAL_NEEDED")), "{}", ended.stderr);
        actum.run(&["approve", ended.error()["details"]["approval_id"].as_str().unwrap()]).ok();
    };
    let run = ["run", "work.json", "--detach", "--json"];
    agree(&actum.run(&run));
    let made = id(&asked(&actum, &run)["runs"][0]);
    let fork = ["resume", &made, "--fork", "--detach", "--json"];
    agree(&actum.run(&fork));
    asked(&actum, &fork);
    assert_eq!(actum.run(&fork).code, 8, "it was for one only");
    // The same run goes on without being asked again.
    actum.run(&["cancel", &made]).ok();
    assert_ne!(actum.run(&["resume", &made, "--detach"]).code, 8);
}

/// Serves the files of a folder, as any web server would, until the test is over. Where it listens.
fn web_of(folder: &Path) -> std::net::SocketAddr {
    use std::io::{BufRead as _, BufReader, Write as _};

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (at, folder) = (listener.local_addr().unwrap(), folder.to_owned());
    let serve = move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let first = lines.next().unwrap_or_default();
            lines.take_while(|line| !line.is_empty()).for_each(drop);
            let path = first.split([' ', '?']).nth(1).unwrap_or_default().trim_start_matches('/').to_owned();
            let answer = match std::fs::read(folder.join(path)) {
                Ok(content) => {
                    let head =
                        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", content.len());
                    [head.into_bytes(), content].concat()
                }
                Err(_) => b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_vec(),
            };
            let _ = stream.write_all(&answer);
        }
    };
    std::thread::Builder::new().name("web".into()).spawn(serve).unwrap();
    at
}

/// Over HTTP from a host that is allowed by its name; the run is done here, in the name of the tenant, and seen by it alone.
#[test]
fn other_tenants_name_repositories_that_are_elsewhere() {
    let actum = offered(project(&[("a", AGENT)]));
    let commit = repository(&actum).rsplit_once('#').unwrap().1.to_owned();
    git(&actum.path("repository"), &["update-server-info"]);
    let at = web_of(&actum.path("repository/.git"));
    let text = std::fs::read_to_string(actum.path("actum.toml")).unwrap();
    let name = format!("code.test:{}", at.port());
    let hosts = format!("{{ \"{name}\" = \"127.0.0.1\", \"near.test\" = \"127.0.0.1\" }}");
    actum.file("actum.toml", format!("{text}\n[sandbox]\nhosts = {hosts}\n"));
    let server = super::serve::Server::start(&actum, &["--workers", "2"]);
    let guest = super::serve::token(&actum, "operator", &["--tenant", "acme"]);
    let workspace = format!("git+http://{name}#{commit}");
    // An address that is nobody's but this machine's is not reached, whatever it serves; nor is one of a name at any port.
    for host in ["near.test", "127.0.0.1", "localhost", "[::1]", "127.1", "2130706433", "169.254.169.254"] {
        let near = format!("git+http://{host}:{}#{commit}", at.port());
        let refused = server.post(&guest, "/v1/runs", json!({"workspace": near, "items": [item("x", "a")]}));
        assert!([404, 422].contains(&refused.status), "{host}: {refused:?}");
    }
    let made = server.post(&guest, "/v1/runs", json!({"workspace": workspace, "items": [item("x", "a")]})).is(202);
    let run = made["runs"][0]["run_id"].as_str().unwrap();
    let state = || server.get(&guest, &format!("/v1/runs/{run}")).is(200)["state"].as_str().unwrap().to_owned();
    until("it is over", || ["succeeded", "failed"].contains(&state().as_str()));
    assert_eq!(state(), "succeeded");
    let diff = server.get(&guest, &format!("/v1/runs/{run}/diff")).is(200);
    assert!(diff["patch"].as_str().unwrap().contains("+++ b/made-x"), "{diff}");
    assert_eq!(server.get(&guest, &format!("/v1/runs/{run}/receipt")).status, 200);
    // Where the project lies is not told, and what he has written himself is not touched.
    let root = actum.path(".").canonicalize().unwrap().display().to_string();
    for path in ["", "/diff", "/logs", "/receipt", "/contract", "/decision", "/events"] {
        let shown = server.ask_with(
            "GET",
            &format!("/v1/runs/{run}{path}"),
            &[("authorization", &format!("Bearer {guest}")), ("accept", "application/json")],
            "",
        );
        assert!(!shown.body.contains(&root), "{path}: {shown:?}");
    }
    let verified = format!("/v1/receipts/{run}/verification");
    for path in ["/v1/runs", "/v1/workspaces", "/v1/key", &verified] {
        assert!(!server.get(&guest, path).body.contains(&root), "{path}");
    }
    let note = json!({"tenantId": "acme", "module": "m", "source": "s", "type": "note_kept", "id": "n", "payload": {"at": format!("{root}/x")}});
    server.post(&guest, "/v1/ledger/entries", note).is(201);
    assert_eq!(server.get(&guest, "/v1/ledger/entries/n").is(200)["payload"]["at"], format!("{root}/x"));
    let heads = server.get(&guest, "/v1/workspaces").is(200);
    assert_eq!((&heads["workspaces"][0]["name"], &heads["workspaces"][0]["n"]), (&json!(workspace), &json!(2)));
    server.post(&guest, &format!("/v1/runs/{run}/undo"), json!({})).is(200);
    assert_eq!(asked(&actum, &["workspace", "list", "--json"])["workspaces"], json!([]), "the owner has none");
    assert_eq!(asked(&actum, &["ledger", "verify", "--tenant", "acme", "--json"])["valid"], true);
}

/// It keeps one thread of whoever named it, and nobody else from anything.
#[test]
fn a_repository_that_never_answers_holds_up_who_named_it() {
    let actum = project(&[("a", AGENT)]);
    let commit = repository(&actum).rsplit_once('#').unwrap().1.to_owned();
    git(&actum.path("repository"), &["update-server-info"]);
    let at = web_of(&actum.path("repository/.git"));
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let text = std::fs::read_to_string(actum.path("actum.toml")).unwrap();
    let ports = [at, silent.local_addr().unwrap()].map(|at| format!("\"code.test:{}\" = \"127.0.0.1\"", at.port()));
    actum.file("actum.toml", format!("{text}\n[sandbox]\nhosts = {{ {} }}\n", ports.join(", ")));
    let server = super::serve::Server::start(&actum, &["--workers", "0"]);
    let token = |tenant: &str| super::serve::token(&actum, "operator", &["--tenant", tenant]);
    let (guest, other) = (token("acme"), token("other"));
    let begins = |at: std::net::SocketAddr| json!({"name": "site", "git": format!("http://code.test:{}", at.port()), "commit": commit});
    let never = begins(silent.local_addr().unwrap());
    std::thread::scope(|scope| {
        let first = scope.spawn(|| server.post(&guest, "/v1/workspaces", never.clone()));
        // Whoever is told no at once must not be waited for.
        silent.set_nonblocking(true).unwrap();
        let mut held = None;
        until("it is asked", || {
            held = held.take().or_else(|| silent.accept().ok());
            held.is_some() || first.is_finished()
        });
        assert!(held.is_some(), "{:?}", first.join().unwrap());
        let refused = server.post(&guest, "/v1/workspaces", begins(at));
        assert!(refused.head.to_lowercase().contains("retry-after: 5"), "{refused:?}");
        assert_eq!(refused.is(429)["error"]["code"], "TOO_MANY_REQUESTS");
        server.post(&other, "/v1/workspaces", begins(at)).is(201);
        drop((held, silent));
        first.join().unwrap().is(404);
    });
    server.post(&guest, "/v1/workspaces", begins(at)).is(201);
}
