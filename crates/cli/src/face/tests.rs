//! Commands over HTTP without HTTP: on a real project with a real store, for two tenants, with good input and bad.

use std::collections::BTreeMap;
use std::sync::Arc;

use actum_api::route::{ROUTES, Route};
use actum_contract::id::Tenant;
use actum_engine::Waiter;
use actum_store::{Location, Older, Store};
use actum_testkit::event;
use actum_testkit::folder::Folder;
use serde_json::{Value, json};

use super::{Answer, Given, JSON, JSON_LINES, TEXT, run};
use crate::active_config::ActiveConfig;
use crate::seat::Seat;

const SIGNATURE: &str = r#"
namespace: demo
name: Sentiment
version: 1
description: How a text feels.
input_schema: {type: object, properties: {text: {type: string}}, required: [text], additionalProperties: false}
output_schema: {type: object, properties: {label: {type: string}}, required: [label], additionalProperties: false}
prompt_template: "How does this feel? {{ text }}"
program_template: direct.v1
"#;
const ID: &str = "demo/Sentiment.v1";
const AGENTS: &str = "[agents.a]\ntype = \"command\"\ncommand = [\"true\"]\ntenants = [\"acme\"]\n";
const WORK: &str = "items:\n  - {id: one, agent_id: a, description: Do it.}\n";

/// A project whose store is open.
struct World {
    folder: Folder,
    store: Arc<dyn Store>,
    waiter: Waiter,
}

impl World {
    fn new() -> Self {
        let folder = Folder::new();
        folder.file("actum.toml", AGENTS);
        folder.file("readme.txt", "hello\n");
        let runtime = Waiter::runtime().unwrap();
        actum_workspace::make_own_folder(&folder.join(".actum")).unwrap();
        let location = Location::Sqlite(folder.join(".actum/actum.db"));
        let store = runtime.block_on(actum_store::open(&location, Older::Migrate)).unwrap();
        let waiter = Waiter::new(runtime, store.clone(), store.clone());
        Self { folder, store, waiter }
    }

    fn seat(&self, tenant: &str, actor: &str) -> Arc<Seat> {
        let tenant = Tenant::new(tenant).unwrap();
        let config = ActiveConfig::at(self.folder.path());
        let seat = Seat::new(self.store.clone(), self.waiter.clone(), tenant, actor.to_owned(), config);
        Arc::new(Seat { state: None, ..seat })
    }

    fn ask(&self, tenant: &str, what: &str, content: impl AsRef<[u8]>) -> Answer {
        self.ask_as(tenant, what, content, false)
    }

    fn text(&self, what: &str) -> String {
        let answer = self.ask_as("local", what, "", true);
        assert_eq!((answer.exit, answer.content_type.as_str()), (0, TEXT), "{what}");
        String::from_utf8(answer.body).unwrap()
    }

    /// `what`: method and path, with a query. Content that begins with a brace is sent as JSON.
    fn ask_as(&self, tenant: &str, what: &str, content: impl AsRef<[u8]>, wants_text: bool) -> Answer {
        let (method, url) = what.split_once(' ').unwrap();
        let (path, query) = url.split_once('?').unwrap_or((url, ""));
        let (route, path) = find(method, path);
        let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| pair.split_once('=').unwrap());
        let query = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let content = content.as_ref().to_vec();
        let is_json = content.first().is_some_and(|first| b"{[\"".contains(first));
        let given =
            Given { path, query, content, is_json, wants_text, request_id: "r-1".into(), trace: None, once: None };
        run(self.seat(tenant, "ann@acme"), route, &given)
    }
}

/// The route, with `|` in place of the slashes in a value.
fn find(method: &str, path: &str) -> (&'static Route, BTreeMap<String, String>) {
    let given: Vec<&str> = path.split('/').collect();
    let fits = |route: &&Route| {
        let own: Vec<&str> = route.path.split('/').collect();
        let fits = |(own, given): (&&str, &&str)| own.starts_with('{') || own == given;
        route.method.word() == method && own.len() == given.len() && own.iter().zip(&given).all(fits)
    };
    // What is named literally comes first.
    let route = ROUTES.iter().filter(fits).min_by_key(|route| route.path_names().count()).expect(path);
    let own = route.path.split('/').zip(&given).filter_map(|(own, given)| {
        Some((own.strip_prefix('{')?.strip_suffix('}')?.to_owned(), given.replace('|', "/")))
    });
    (route, own.collect())
}

fn value(answer: &Answer) -> Value {
    serde_json::from_slice(&answer.body).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&answer.body)))
}

#[track_caller]
fn good(answer: Answer, status: u16) -> Value {
    let shown = value(&answer);
    assert_eq!((answer.status, answer.exit, answer.content_type.as_str()), (status, 0, JSON), "{shown}");
    shown
}

#[track_caller]
fn bad(answer: Answer, status: u16, code: &str) -> String {
    let shown = value(&answer);
    assert_eq!((answer.status, shown["error"]["code"].as_str()), (status, Some(code)), "{shown}");
    assert!(answer.exit != 0 && answer.content_type == JSON);
    let body = String::from_utf8(answer.body).unwrap();
    assert!(!body.contains("actum-request-"), "{body}");
    body
}

#[test]
fn a_run_is_submitted_listed_shown_and_cancelled() {
    let world = World::new();
    let made = good(world.ask("local", "POST /v1/runs?profile=ci", WORK), 202);
    let id = made["runs"][0]["run_id"].as_str().unwrap().to_owned();
    let listed = good(world.ask("local", "GET /v1/runs?limit=5", ""), 200);
    assert_eq!(listed["runs"][0]["run_id"], id.as_str());
    let shown = good(world.ask("local", &format!("GET /v1/runs/{id}"), ""), 200);
    assert_eq!((&shown["item_id"], &shown["state"]), (&json!("one"), &json!("queued")));
    assert_eq!(shown["contract"]["effectiveExecutionConfig"]["profile"], "ci");
    assert_eq!(good(world.ask("local", "GET /v1/status", ""), 200)["runs"]["queued"], 1);
    assert_eq!(
        good(world.ask("local", &format!("GET /v1/runs/{id}/contract"), ""), 200)["hash"],
        shown["contract"]["hash"]
    );
    assert_eq!(good(world.ask("local", &format!("GET /v1/runs/{id}/logs"), ""), 200)["run_id"], id.as_str());
    // The decision is no: the command did what it was asked to, and its exit code tells.
    let decision = world.ask("local", &format!("GET /v1/runs/{id}/decision"), "");
    assert_eq!((decision.status, decision.exit, value(&decision)["decision"].as_str()), (200, 1, Some("FAIL")));
    let cancelled = good(world.ask("local", &format!("POST /v1/runs/{id}/cancel"), ""), 200);
    assert_eq!(cancelled["cancelled"], true);
    bad(world.ask("local", &format!("POST /v1/runs/{id}/cancel"), "{}"), 409, "RUN_STATE");
    bad(world.ask("local", &format!("GET /v1/runs/{id}/diff"), ""), 404, "NOT_FOUND");
    bad(world.ask("local", &format!("POST /v1/runs/{id}/replay"), ""), 422, "FILE_UNREADABLE");
    // JSON is a work file as well.
    let json = json!({"items": [{"id": "two", "agent_id": "a", "description": "x"}]}).to_string();
    let made = good(world.ask("local", "POST /v1/runs?dry_run=true&set=maxFilesPerStep=3", json), 202);
    assert_eq!(made["runs"][0]["item_id"], "two");
}

/// Whoever brings the files brings what an agent runs. So the project says who may, and the machine is nobody else's to give.
#[test]
fn agents_are_run_by_those_they_are_offered_to() {
    let world = World::new();
    let mut agents = String::new();
    for (id, fields) in [
        ("own", ""),
        ("all", "tenants = [\"*\"]"),
        ("hers", "tenants = [\"other\"]"),
        ("secret", "tenants = [\"*\"]\nenvironment = { KEY = \"env:HOME\" }"),
        ("secret-named", "tenants = [\"*\", \"acme\"]\nenvironment = { KEY = \"file:/etc/passwd\" }"),
        ("near", "tenants = [\"*\"]\nfilesystem = \"extended\""),
        ("near-named", "tenants = [\"acme\"]\nfilesystem = \"extended\""),
        ("host", "tenants = [\"*\"]\nfilesystem = \"elevated\""),
        ("host-named", "tenants = [\"acme\"]\nfilesystem = \"elevated\""),
        ("net-named", "tenants = [\"acme\"]\nnetwork = \"open\""),
    ] {
        agents.push_str(&format!("[agents.{id}]\ntype = \"command\"\ncommand = [\"sh\", \"./build.sh\"]\n{fields}\n"));
    }
    world.folder.file("actum.toml", agents);
    let tree = |tenant: &str| good(world.ask(tenant, "POST /v1/snapshots", ""), 201)["id"].as_str().unwrap().to_owned();
    let [acme, local] = ["acme", "local"].map(tree);
    let ask = |tenant: &str, tree: &str, agent: &str| {
        let item = json!({"id": "one", "agent_id": agent, "description": "x"});
        let work = json!({"workspace": format!("snapshot:{tree}"), "items": [item]});
        world.ask(tenant, "POST /v1/runs", work.to_string())
    };
    for agent in ["all", "secret-named", "near-named"] {
        good(ask("acme", &acme, agent), 202);
    }
    // What is not offered is not told from what is not there.
    let hint = "offered to acme are: all, host-named, near-named, net-named, secret-named;";
    let unknown = bad(ask("acme", &acme, "nobody"), 422, "INPUT_INVALID");
    assert!(unknown.contains(hint) && unknown.contains("`tenants` of an agent"), "{unknown}");
    for agent in ["own", "hers", "secret", "near", "host"] {
        let told = bad(ask("acme", &acme, agent), 422, "INPUT_INVALID");
        assert_eq!(told, unknown.replace("nobody", agent));
    }
    for agent in ["host-named", "net-named"] {
        let told = bad(ask("acme", &acme, agent), 403, "FORBIDDEN");
        assert!(told.contains("the project's owner"), "{told}");
    }
    assert_eq!(good(world.ask("acme", "GET /v1/approvals", ""), 200)["approvals"], json!([]), "nothing to agree to");
    // Those whose project it is have all of them, and decide for themselves.
    for agent in ["own", "hers", "secret", "near"] {
        good(ask("local", &local, agent), 202);
    }
    bad(ask("local", &local, "host"), 428, "APPROVAL_NEEDED");
}

#[test]
fn entries_are_appended_for_the_callers_tenant_only() {
    let world = World::new();
    let entry = |tenant: &str, id: &str| event::signal(tenant, id).to_string();
    let made = good(world.ask("acme", "POST /v1/ledger/entries", entry("acme", "s-1")), 201);
    assert_eq!((&made["ok"], &made["id"]), (&json!(true), &json!("s-1")));
    let again = good(world.ask("acme", "POST /v1/ledger/entries", entry("acme", "s-1")), 201);
    assert_eq!(again["idempotent"], true);
    let forged = bad(world.ask("acme", "POST /v1/ledger/entries", entry("local", "s-2")), 400, "VALIDATION_ERROR");
    assert!(forged.contains("tenantId"), "{forged}");
    let lines = format!("{}\n{}\n", entry("acme", "s-3"), entry("other", "s-4"));
    let many = world.ask("acme", "POST /v1/ledger/entries", lines);
    assert_eq!((many.status, many.exit, many.content_type.as_str()), (200, 2, JSON_LINES));
    // What was refused is the caller's too.
    let rejected = good(world.ask("acme", "GET /v1/ledger/rejected", ""), 200);
    assert_eq!(rejected["rejected"].as_array().unwrap().len(), 2);
    assert_eq!(good(world.ask("local", "GET /v1/ledger/rejected", ""), 200)["rejected"], json!([]));
    bad(world.ask("acme", "GET /v1/ledger/entries/s-4", ""), 404, "NOT_FOUND");
    let shown = good(world.ask("acme", "GET /v1/ledger/entries/s-1", ""), 200);
    assert_eq!(shown["tenantId"], "acme");
    let proof = good(world.ask("acme", "GET /v1/ledger/proof/s-1", ""), 200);
    assert_eq!(proof["size"], 2);
    good(world.ask("acme", "POST /v1/ledger/checkpoint", ""), 200);
    assert_eq!(good(world.ask("acme", "GET /v1/ledger/verification", ""), 200)["valid"], true);
    assert_eq!(good(world.ask("acme", "GET /v1/ledger/coherence?ids=s-1&ids=s-3", ""), 200)["reasons"], json!([]));
    good(world.ask("acme", "GET /v1/ledger/consistency/1", ""), 200);
}

#[test]
fn tenants_see_nothing_of_each_other() {
    let world = World::new();
    let entry = event::signal("acme", "s-1").to_string();
    good(world.ask("acme", "POST /v1/ledger/entries", entry), 201);
    good(world.ask("acme", "POST /v1/signatures", SIGNATURE), 201);
    good(world.ask("acme", "POST /v1/signatures/demo|Sentiment.v1/artifact", ""), 201);
    // The folder is not his; what he has kept is.
    bad(world.ask("acme", "POST /v1/runs", WORK), 403, "FORBIDDEN");
    let frozen = good(world.ask("acme", "POST /v1/snapshots", ""), 201);
    let work = format!("workspace: snapshot:{}\n{WORK}", frozen["id"].as_str().unwrap());
    let made = good(world.ask("acme", "POST /v1/runs", &*work), 202);
    let run = made["runs"][0]["run_id"].as_str().unwrap();
    let none = "0".repeat(64);
    let told = bad(world.ask("acme", "POST /v1/runs", format!("workspace: snapshot:{none}\n{WORK}")), 404, "NOT_FOUND");
    assert!(told.contains("there is no snapshot"), "{told}");
    let wanted = |id: &str| json!({"name": "z", "snapshot": id}).to_string();
    bad(world.ask("acme", "POST /v1/workspaces", wanted(&none)), 404, "NOT_FOUND");
    // A content that is there and is no tree is none either.
    let file = actum_contract::digest::Digest::blake3(b"hello\n").to_hex();
    bad(world.ask("acme", "POST /v1/workspaces", wanted(&file)), 404, "NOT_FOUND");
    good(world.ask("acme", "POST /v1/authorizations", r#"{"max_total": 500, "reason": "r"}"#), 201);
    let empty = [
        ("GET /v1/runs", "runs"),
        ("GET /v1/ledger/entries", "entries"),
        ("GET /v1/ledger/entries?cursor=0@acme", "entries"),
        ("GET /v1/signatures", "signatures"),
        ("GET /v1/artifacts", "artifacts"),
        ("GET /v1/authorizations", "authorizations"),
        ("GET /v1/snapshots", "snapshots"),
        ("GET /v1/approvals", "approvals"),
        ("GET /v1/pointers", "pointers"),
    ];
    for (what, name) in empty {
        assert_eq!(good(world.ask("other", what, ""), 200)[name].as_array().map(Vec::len), Some(0), "{what}");
    }
    let missing = [
        format!("GET /v1/runs/{run}"),
        format!("GET /v1/runs/{run}/logs"),
        format!("GET /v1/runs/{run}/contract"),
        format!("GET /v1/receipts/{run}/verification"),
        format!("POST /v1/runs/{run}/cancel"),
        format!("POST /v1/runs/{run}/replay"),
        "GET /v1/ledger/entries/s-1".to_owned(),
        "GET /v1/ledger/proof/s-1".to_owned(),
        "GET /v1/signatures/demo|Sentiment.v1".to_owned(),
        "GET /v1/pointers/demo|Sentiment.v1".to_owned(),
        "POST /v1/ledger/checkpoint".to_owned(),
    ];
    for what in missing {
        let told = bad(world.ask("other", &what, ""), 404, "NOT_FOUND");
        assert!(!told.contains("acme"), "{what}: {told}");
    }
    // To look makes none; each has a key of its own, in a folder of its own.
    bad(world.ask("acme", "GET /v1/key", ""), 404, "NOT_FOUND");
    for tenant in ["acme", "other", "local"] {
        let entry =
            json!({"tenantId": tenant, "module": "m", "source": "s", "type": "note_kept", "id": "k", "payload": {}});
        good(world.ask(tenant, "POST /v1/ledger/entries", entry.to_string()), 201);
        good(world.ask(tenant, "POST /v1/ledger/checkpoint", ""), 200);
    }
    let shown = world.ask("acme", "GET /v1/key", "");
    assert!(!String::from_utf8_lossy(&shown.body).contains(world.folder.path().to_str().unwrap()));
    let key = |tenant| good(world.ask(tenant, "GET /v1/key", ""), 200)["public"].clone();
    assert_ne!(key("acme"), key("other"));
    assert_ne!(key("acme"), key("local"));
    assert!(world.folder.join(".actum/tenants/acme/key.pem").is_file());
}

#[test]
fn whoever_asks_is_the_actor_and_nobody_else_can_be() {
    let world = World::new();
    good(world.ask("local", "POST /v1/signatures", SIGNATURE), 201);
    let set = good(
        world.ask(
            "local",
            "POST /v1/pointers/demo|Sentiment.v1",
            r#"{"primary": "baseline", "reason": "first", "if": 0, "metadata": {"a": [1]}}"#,
        ),
        200,
    );
    assert_eq!((&set["actor"], &set["reason"]), (&json!("ann@acme"), &json!("first")));
    assert_eq!(set["after"]["metadata"], json!({"a": [1]}));
    let forged = r#"{"primary": "baseline", "reason": "x", "actor": "root"}"#;
    let told = bad(world.ask("local", "POST /v1/pointers/demo|Sentiment.v1", forged), 400, "USAGE");
    assert!(told.contains("actor") && told.contains("key_scope"), "{told}");
    let stale = r#"{"primary": "baseline", "reason": "x", "if": 7}"#;
    bad(world.ask("local", "POST /v1/pointers/demo|Sentiment.v1", stale), 409, "POINTER_CONFLICT");
    let history = good(world.ask("local", "GET /v1/pointers/demo|Sentiment.v1/audits", ""), 200);
    assert_eq!(history["history"].as_array().unwrap().len(), 1);
    assert_eq!(good(world.ask("local", "GET /v1/pointers/demo|Sentiment.v1/audits/1", ""), 200)["identical"], true);
    let guard = json!({"artifact": "baseline", "percent": 10, "reason": "try", "guard": "bounds: 7"}).to_string();
    let told = bad(world.ask("local", "POST /v1/pointers/demo|Sentiment.v1/canary", guard), 422, "INPUT_INVALID");
    assert!(told.contains("guard.yaml"), "{told}");
}

#[test]
fn text_is_what_the_command_line_prints() {
    let world = World::new();
    good(world.ask("local", "POST /v1/signatures", SIGNATURE), 201);
    let list = world.text("GET /v1/signatures");
    assert_eq!(list, "SIGNATURE          STRATEGY   DESCRIPTION\ndemo/Sentiment.v1  direct.v1  How a text feels.\n");
    assert_eq!(world.text("GET /v1/runs"), "no runs\n");
    assert_eq!(world.text("GET /v1/status"), "no runs yet\n");
    assert!(world.text("GET /v1/schemas").lines().any(|line| line == "openapi"));
    let answer = world.ask_as("local", "POST /v1/ledger/entries", event::signal("local", "s").to_string(), true);
    assert_eq!(String::from_utf8(answer.body).unwrap(), "recorded s as entry 1\n");
    // What is wrong is told in the same form to everybody.
    bad(world.ask_as("local", "GET /v1/runs/nowhere", "", true), 404, "NOT_FOUND");
    let refused = world.ask_as("local", "POST /v1/ledger/entries", "{}", true);
    assert_eq!((refused.status, refused.exit), (200, 2));
    assert!(String::from_utf8(refused.body).unwrap().starts_with("error[A0201]"));
}

#[test]
fn values_are_never_flags() {
    let world = World::new();
    good(world.ask("local", "POST /v1/signatures", SIGNATURE), 201);
    let hostile =
        ["--store=|etc|passwd", "-C|etc", "--help", "-h", "--version", "--json", "--", "-", "-v", "--actor=root"];
    for name in hostile {
        for what in
            ["GET /v1/signatures/", "GET /v1/runs/", "GET /v1/pointers/", "GET /v1/artifacts/", "GET /v1/tools/"]
        {
            let answer = world.ask("local", &format!("{what}{name}"), "");
            assert!(matches!(answer.status, 400 | 404 | 422), "{what}{name}: {}", value(&answer));
            assert!(!String::from_utf8_lossy(&answer.body).contains("Usage:"), "{name}");
        }
        let text = name.replace('|', "/");
        let set = json!({"primary": text, "reason": text, "seed": text}).to_string();
        let answer = world.ask("local", "POST /v1/pointers/demo|Sentiment.v1", set);
        assert!(matches!(answer.status, 400 | 404 | 422), "{name}: {}", value(&answer));
        let moved = json!({"primary": "baseline", "reason": text, "seed": text}).to_string();
        let moved = good(world.ask("local", "POST /v1/pointers/demo|Sentiment.v1", moved), 200);
        assert_eq!((&moved["reason"], &moved["after"]["rollout_seed"]), (&json!(text), &json!(text)));
        assert_eq!(moved["actor"], "ann@acme");
    }
}

#[test]
fn no_file_of_this_machine_can_be_named() {
    let world = World::new();
    let secret =
        world.folder.file("secret.jsonl", "{\"input\": {\"text\": \"a\"}, \"expected\": {\"label\": \"b\"}}\n");
    let secret = secret.display().to_string();
    let piped = secret.replace('/', "|");
    good(world.ask("local", "POST /v1/signatures", SIGNATURE), 201);
    bad(world.ask("local", &format!("GET /v1/receipts/{piped}/verification"), ""), 404, "NOT_FOUND");
    bad(world.ask("local", &format!("POST /v1/runs/{piped}/replay"), ""), 404, "NOT_FOUND");
    bad(world.ask("local", "POST /v1/runs/|etc/replay", ""), 404, "NOT_FOUND");
    bad(world.ask("local", "GET /v1/snapshots/|etc/diff/|usr", ""), 404, "NOT_FOUND");
    let eval = json!({"artifact": "baseline", "dataset": secret, "signature": ID}).to_string();
    bad(world.ask("local", "POST /v1/evals", eval), 404, "NOT_FOUND");
    let job = json!({
        "signature_id": ID, "dataset": {"file": secret}, "metric": "exact_match", "search_space": {},
    });
    let answer = world.ask("local", "POST /v1/compile-reports", job.to_string());
    assert_eq!(answer.status, 422, "{}", value(&answer));
    for workspace in ["/etc", "..", "../..", "/", "sub/../..", "link"] {
        std::os::unix::fs::symlink("/etc", world.folder.join("link")).ok();
        let work = json!({"workspace": workspace, "items": [{"id": "i", "agent_id": "a", "description": "x"}]});
        bad(world.ask("local", "POST /v1/runs", work.to_string()), 422, "WORKSPACE_REFUSED");
    }
    for id in ["..|..|..|etc", "..", ".", "|etc|passwd", "a\0b"] {
        for what in
            ["GET /v1/executions/{}/logs", "GET /v1/runs/{}/diff", "POST /v1/runs/{}/apply", "POST /v1/runs/{}/undo"]
        {
            let answer = world.ask("local", &what.replace("{}", id), "");
            assert!(matches!(answer.status, 400 | 404 | 422), "{what} {id}: {}", value(&answer));
        }
    }
}

#[test]
fn what_is_not_known_or_not_fitting_is_refused_with_what_there_is() {
    let world = World::new();
    let told = bad(world.ask("local", "GET /v1/runs?colour=red&limit=5", ""), 400, "USAGE");
    assert!(told.contains("colour") && told.contains("state, limit, cursor"), "{told}");
    for query in ["limit=", "limit=x", "limit=-1", "limit=0", "limit=99999", "limit=1&limit=2", "state=a&state=b"] {
        bad(world.ask("local", &format!("GET /v1/runs?{query}"), ""), 400, "USAGE");
    }
    bad(world.ask("local", "GET /v1/runs?state=gone", ""), 422, "USAGE");
    bad(world.ask("local", "GET /v1/key?pem=1", ""), 400, "USAGE");
    bad(world.ask("local", "GET /v1/runs?store=/etc/passwd", ""), 400, "USAGE");
    bad(world.ask("local", "POST /v1/runs?detach=true", WORK), 400, "USAGE");
    bad(world.ask("local", "POST /v1/runs", ""), 400, "USAGE");
    let pointer = "POST /v1/pointers/demo|Sentiment.v1";
    for (content, word) in [
        ("[]", "no object"),
        ("\"text\"", "no object"),
        ("{", "no JSON"),
        ("{\"a\": 1, \"a\": 2}", "no JSON"),
        ("primary: baseline", "not sent as JSON"),
        ("{\"primary\": 7, \"reason\": \"r\"}", "must be text"),
        ("{\"primary\": null, \"reason\": \"r\"}", "must be text"),
        ("{\"primary\": [\"baseline\"], \"reason\": \"r\"}", "must be text"),
        ("{\"primary\": \"x\", \"reason\": \"r\", \"if\": \"0\"}", "whole number"),
        ("{\"primary\": \"x\", \"reason\": \"r\", \"if\": 1.5}", "whole number"),
        ("{\"primary\": \"x\", \"reason\": \"r\", \"if\": -1}", "invalid value"),
        ("{\"primary\": \"x\", \"reason\": \"r\", \"guard\": \"/etc/passwd\"}", "not known"),
        ("{\"primary\": \"x\"}", "--reason"),
        ("", "required"),
    ] {
        let answer = world.ask("local", pointer, content);
        assert_eq!(answer.status, 400, "{content}");
        let told = String::from_utf8(answer.body).unwrap();
        assert!(told.contains(word), "{content}: {told}");
    }
    bad(world.ask("local", "POST /v1/snapshots", r#"{"include": "x"}"#), 400, "USAGE");
    bad(world.ask("local", "POST /v1/snapshots", r#"{"include": ["x", 7]}"#), 400, "USAGE");
    bad(world.ask("local", "POST /v1/snapshots", r#"{"paranoid": "yes"}"#), 400, "USAGE");
    good(world.ask("local", "POST /v1/snapshots", r#"{"include": ["*.txt"], "paranoid": true}"#), 201);
    bad(world.ask("local", "POST /v1/runs/x/cancel", r#"{"force": true}"#), 400, "USAGE");
    // All that is wrong is told at once.
    let told = value(&world.ask("local", pointer, r#"{"x": 1, "y": 2, "if": true}"#));
    assert_eq!(told["error"]["details"]["fields"].as_array().unwrap().len(), 3);
}

#[test]
fn contents_are_bounded_kept_apart_and_gone_afterwards() {
    let world = World::new();
    let huge = format!("{{\"items\": \"{}\"}}", "x".repeat(actum_contract::limit::DOCUMENT_BYTES_MAX));
    bad(world.ask("local", "POST /v1/runs", huge), 422, "FILE_UNREADABLE");
    let told = bad(world.ask("local", "POST /v1/runs", "items: [\n"), 422, "INPUT_INVALID");
    assert!(told.contains("request.yaml"), "{told}");
    bad(world.ask("local", "POST /v1/runs", b"\xff\xfe\x00".as_slice()), 422, "INPUT_INVALID");
    bad(world.ask("local", "POST /v1/tools", "tool_id: 7\n"), 422, "INPUT_INVALID");
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    bad(world.ask("local", "POST /v1/signatures", deep), 422, "INPUT_INVALID");
}

#[test]
fn a_command_that_breaks_is_an_answer_like_any_other() {
    static BROKEN: Route = Route { command: &["nothing"], path: "/v1/nothing", ..ROUTES[0] };
    let world = World::new();
    let answer = run(world.seat("local", "ann"), &BROKEN, &Given::default());
    assert_eq!(answer.exit, 70);
    bad(answer, 500, "INTERNAL_ERROR");
    // To wait for the store where others must not wait is a mistake of ours, and a panic.
    let runtime = Waiter::runtime().unwrap();
    let answer = runtime.block_on(async { world.ask("local", "GET /v1/runs", "") });
    let told = bad(answer, 500, "INTERNAL_ERROR");
    assert!(told.contains("r-1") && told.contains("A0000"), "{told}");
    good(world.ask("local", "GET /v1/runs", ""), 200);
}
