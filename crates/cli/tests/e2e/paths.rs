//! A path from outside is opened once, without following links (D-507): a folder of the project that becomes a link, or
//! another folder, between submission and execution is refused, and nothing is read or written behind it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use actum_testkit::program::Program;
use actum_testkit::tree::{Leaves, read};
use serde_json::{Value, json};

use super::run::{id, item, one, project, with};
use super::runs::{is_over, status, until};
use super::serve::{Server, token};

const REPLACED: &str = "WORKSPACE_REPLACED";

/// A project in which agent `a` reads and overwrites everything, and a folder of the host that it must not reach.
fn world(as_nobody: bool) -> (Program, Program, Leaves) {
    let own = |program: Program| if as_nobody { program.owned_by_nobody() } else { program };
    let actum = project(&[
        ("a", "cat * > ../seen 2>/dev/null || true; cat * > copy; for f in id_*; do echo stolen > $f; done"),
        ("swap", "rm -r e2; ln -s \"$(cat target)\" e2"),
    ]);
    actum.file("e2/file", "in the project\n");
    let outside = super::actum();
    outside.file("id_ed25519", "secret of the host\n");
    let (actum, outside) = (own(actum), own(outside));
    let before = read(outside.folder());
    (actum, outside, before)
}

fn swap(actum: &Program, outside: &Program) {
    fs::remove_dir_all(actum.path("e2")).unwrap();
    symlink(outside.folder(), actum.path("e2")).unwrap();
}

fn on_e2(agent: &str) -> Value {
    json!({"workspace": "e2", "items": [item("i", agent)]})
}

fn submitted(server: &Server, token: &str, work: Value) -> String {
    let made = server.post(token, "/v1/runs", work).is(202);
    made["runs"][0]["run_id"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned()
}

/// What `status` says of a run once a worker has ended it.
fn worked_off(actum: &Program, run: &str) -> Value {
    let worker = actum.start(&["worker", "-q"], &[]);
    until("the run is over", || is_over(actum, run));
    worker.kill();
    status(actum, run)
}

/// Nothing of the outside was changed, and nothing of it is in the project.
fn untouched(actum: &Program, outside: &Program, before: &Leaves) {
    assert_eq!(&read(outside.folder()), before);
    for secret in [&b"secret of the host"[..], b"aWQgb2YgdGhlIGhvc3Q"] {
        assert_eq!(holding(actum.folder(), secret), Vec::<PathBuf>::new());
    }
}

/// The files in a folder, `.actum` among them, that hold some bytes.
fn holding(folder: &Path, wanted: &[u8]) -> Vec<PathBuf> {
    let (mut found, mut waiting) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = waiting.pop() {
        let listed = match fs::read_dir(&folder) {
            // The kernel's own folder of an overlay; only root looks into it.
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied && folder.ends_with("work/work") => continue,
            listed => listed.unwrap(),
        };
        for entry in listed.map(Result::unwrap) {
            let (kind, path) = (entry.file_type().unwrap(), entry.path());
            if kind.is_dir() {
                waiting.push(path);
            } else if kind.is_file() && fs::read(&path).unwrap().windows(wanted.len()).any(|part| part == wanted) {
                found.push(path);
            }
        }
    }
    found
}

#[test]
fn a_workspace_that_became_a_link_after_submission_is_refused() {
    for as_nobody in [false, true] {
        link_after_submission(as_nobody);
    }
}

fn link_after_submission(as_nobody: bool) {
    let (actum, outside, before) = world(as_nobody);
    let operator = token(&actum, "operator", &[]);
    let server = Server::start(&actum, &["--workers", "0"]);
    let run = submitted(&server, &operator, on_e2("a"));
    swap(&actum, &outside);
    let over = worked_off(&actum, &run);
    assert_eq!((&over["state"], &over["run"]["error_code"]), (&json!("failed"), &json!(REPLACED)), "{over}");
    untouched(&actum, &outside, &before);
    // Nor is one submitted that is a link by then, and where that leads is not told.
    let refused = server.post(&operator, "/v1/runs", on_e2("a"));
    assert_eq!(refused.status, 422, "{refused:?}");
    assert!(!refused.body.contains(outside.folder().to_str().unwrap()), "{refused:?}");
    // Nor through a link above it.
    fs::create_dir(actum.path("real")).unwrap();
    fs::create_dir(actum.path("real/deep")).unwrap();
    symlink("real", actum.path("way")).unwrap();
    let through = json!({"workspace": "way/deep", "items": [item("i", "a")]});
    assert_eq!(server.post(&operator, "/v1/runs", through).status, 422);
}

#[test]
fn a_workspace_that_is_another_folder_than_at_submission_is_refused() {
    let (actum, outside, before) = world(false);
    let operator = token(&actum, "operator", &[]);
    let server = Server::start(&actum, &["--workers", "0"]);
    let run = submitted(&server, &operator, on_e2("a"));
    // The old one stays, so that the new one has another inode.
    fs::rename(actum.path("e2"), actum.path("old")).unwrap();
    fs::create_dir(actum.path("e2")).unwrap();
    let over = worked_off(&actum, &run);
    assert_eq!((&over["state"], &over["run"]["error_code"]), (&json!("failed"), &json!(REPLACED)), "{over}");
    assert_eq!(fs::read_dir(actum.path("e2")).unwrap().count(), 0);
    // The folder itself is accepted wherever the project root's own content moves around it.
    fs::remove_dir(actum.path("e2")).unwrap();
    fs::rename(actum.path("old"), actum.path("e2")).unwrap();
    let run = submitted(&server, &operator, on_e2("a"));
    actum.file("elsewhere", "changed");
    let over = worked_off(&actum, &run);
    assert_eq!(over["state"], "succeeded", "{over}");
    untouched(&actum, &outside, &before);
}

#[test]
fn kept_and_published_results_are_not_carried_through_a_link() {
    let (actum, outside, before) = world(false);
    let work = actum.file("work.json", on_e2("a").to_string());
    let kept = actum.run(&["run", "--json", "--dry-run", work.to_str().unwrap()]);
    let kept = id(&kept.json()["runs"][0]);
    let published = actum.run(&["run", "--json", work.to_str().unwrap()]);
    assert_eq!(published.code, 0, "{}", published.stdout);
    let published = id(&published.json()["runs"][0]);
    swap(&actum, &outside);
    for arguments in [&["apply", &kept][..], &["undo", &published], &["diff", &kept], &["resume", &kept, "--fork"]] {
        let ended = actum.run(arguments);
        assert_ne!(ended.code, 0, "{arguments:?}: {}{}", ended.stdout, ended.stderr);
        untouched(&actum, &outside, &before);
    }
}

#[test]
fn an_interrupted_publication_is_not_completed_behind_a_link() {
    let (actum, outside, before) = world(false);
    let work = actum.file("work.json", on_e2("a").to_string());
    let arguments = ["run", "--json", work.to_str().unwrap()];
    let mut running = actum.start(&arguments, &[("ACTUM_CRASH_AT", "run.publishing")]);
    assert!(running.error_line().is_some_and(|line| line.starts_with("crash point")));
    running.kill();
    swap(&actum, &outside);
    let _ = actum.run(&["recover"]);
    let _ = actum.run(&["list"]);
    untouched(&actum, &outside, &before);
}

#[test]
fn a_workspace_outside_the_project_needs_the_consent_of_the_user() {
    let (actum, outside, before) = world(false);
    for workspace in [outside.folder().to_str().unwrap(), "/etc", "/usr/share", "/", ".."] {
        let work = json!({"workspace": workspace, "items": [item("i", "a")]});
        let refused = actum.run_with(&["run", "--json", "-"], work.to_string().as_bytes());
        assert_eq!(refused.code, 2, "{workspace}: {}{}", refused.stdout, refused.stderr);
        assert!(refused.stderr.contains("A0403"), "{}", refused.stderr);
        untouched(&actum, &outside, &before);
    }
    let work = json!({"workspace": outside.folder(), "items": [item("i", "a")]});
    let allowed = actum.run_with(&["run", "--json", "--allow-workspace", "-"], work.to_string().as_bytes());
    assert_eq!(allowed.code, 0, "{}{}", allowed.stdout, allowed.stderr);
    assert_eq!(fs::read_to_string(outside.path("id_ed25519")).unwrap(), "stolen\n");
    // A person's own link in the project leads there too, and is told in the same way.
    symlink(outside.folder(), actum.path("link")).unwrap();
    let work = json!({"workspace": "link", "items": [item("i", "a")]});
    let refused = actum.run_with(&["run", "--json", "-"], work.to_string().as_bytes());
    assert_eq!(refused.code, 2, "{}{}", refused.stdout, refused.stderr);
    // Over a server there is no such consent.
    let operator = token(&actum, "operator", &[]);
    let server = Server::start(&actum, &["--workers", "0"]);
    for way in ["/v1/runs", "/v1/runs?allow_workspace=true"] {
        let refused = server.post(&operator, way, json!({"workspace": "/etc", "items": [item("i", "a")]}));
        assert!([400, 422].contains(&refused.status), "{refused:?}");
    }
}

#[test]
fn links_that_leave_the_workspace_are_denied_unless_they_are_declared() {
    let (actum, outside, before) = world(false);
    actum.file("target", outside.folder().to_str().unwrap());
    let all = read(actum.folder());
    let (code, run) = one(&actum, item("i", "swap"), &[]);
    assert_eq!((code, &run["error_code"]), (3, &json!("LINK_LEAVES_WORKSPACE")), "{run}");
    assert!(run["denial_reason"].as_str().unwrap().ends_with("links: e2"), "{run}");
    assert_eq!(read(actum.folder()), all);
    assert_eq!(actum.run(&["replay", &id(&run)]).code, 0);
    let (code, run) = one(&actum, with(item("i", "swap"), "links", json!(["e2"])), &[]);
    assert_eq!(code, 0, "{run}");
    assert_eq!(actum.run(&["replay", &id(&run)]).code, 0);
    // It was declared, and still no run follows it.
    let work = actum.file("work.json", on_e2("a").to_string());
    let ended = actum.run(&["run", "--json", work.to_str().unwrap()]);
    assert_eq!(ended.code, 2, "{}{}", ended.stdout, ended.stderr);
    untouched(&actum, &outside, &before);
}

#[test]
fn a_link_leaves_by_whatever_it_leads_through() {
    let scripts = [
        ("absolute", "ln -s /etc/passwd l"),
        ("up", "mkdir -p d/e; ln -s ../../../x d/e/l"),
        ("chain", "mkdir d; ln -s .. d/up; ln -s d/up/../x l"),
        ("git", "ln -s .git/hooks l"),
        ("own", "ln -s .actum/key.pem l"),
        ("through-old", "ln -s old/x l"),
        ("makes-old-leave", "rm folder; ln -s . folder"),
        ("retargets", "ln -snf /root old"),
        ("round", "ln -s l l"),
    ];
    let actum = project(&scripts);
    fs::create_dir(actum.path("deep")).unwrap();
    fs::create_dir(actum.path("deep/er")).unwrap();
    symlink("/usr", actum.path("old")).unwrap();
    symlink("deep/er", actum.path("folder")).unwrap();
    symlink("folder/../../x", actum.path("inner")).unwrap();
    let before = read(actum.folder());
    for (agent, _) in scripts {
        let (code, run) = one(&actum, item("i", agent), &[]);
        assert_eq!((code, &run["error_code"]), (3, &json!("LINK_LEAVES_WORKSPACE")), "{agent}: {run}");
        assert_eq!(read(actum.folder()), before, "{agent}");
    }
    let harmless = [
        ("inner", "ln -s deep l; ln -s l/er m; ln -s nowhere n; ln -s ./deep/../deep/x o"),
        ("untouched", "echo 1 > new; ln -s new q"),
    ];
    let toml = fs::read_to_string(actum.path("actum.toml")).unwrap();
    let agents = harmless.map(|(id, script)| {
        format!("[agents.{id}]\ntype = \"command\"\ncommand = [\"sh\", \"-euc\", {}]\n", json!(script))
    });
    actum.file("actum.toml", format!("{toml}{}", agents.concat()));
    for (agent, _) in harmless {
        let (code, run) = one(&actum, item("i", agent), &[]);
        assert_eq!(code, 0, "{agent}: {run}");
    }
}

/// A link that leads out by way of an ignored one is denied, too: that one is on the disk and in no tree.
#[test]
fn a_link_through_an_ignored_link_is_denied() {
    let actum = project(&[("out", "ln -s out/esc good"), ("in", "ln -s out/near fine")]);
    actum.file(".gitignore", "out/\n");
    actum.file("out/near", "x");
    symlink("/etc", actum.path("out/esc")).unwrap();
    let (code, run) = one(&actum, item("i", "out"), &[]);
    assert_eq!((code, &run["error_code"]), (3, &json!("LINK_LEAVES_WORKSPACE")), "{run}");
    assert_eq!(one(&actum, item("j", "in"), &[]).0, 0);
}
