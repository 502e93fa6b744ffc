//! What may be asked over HTTP: one table of routes, each standing for a command of the command line. The server routes and
//! checks access by it, `cli` makes commands, the OpenAPI document and a client of it. It never says what a command does.

use Need::{Admin, Approve, Operate};

/// What is done to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    Get,
    Post,
    Delete,
}

impl Method {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Delete => "DELETE",
        }
    }
}

/// What a caller has to be allowed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Need {
    Read,
    Operate,
    Approve,
    Admin,
}

impl Need {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Approve => "approve",
            Self::Admin => "admin",
        }
    }
}

/// Where an argument of a command comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    Path,
    Query,
    /// A field of the JSON content.
    Field,
    /// The whole content, given to the command as a file.
    Content,
    /// A field of the JSON content, text or JSON, given to the command as a file.
    File,
}

/// An argument that can be given over HTTP. What is not named cannot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arg {
    /// The id of the argument in the command line.
    pub name: &'static str,
    pub place: Place,
}

/// A list that is given page by page to whoever asks so, by `limit` and `cursor`, though its command gives all of it at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pages {
    /// The field of the answer that is the list.
    pub field: &'static str,
    /// The `limit` of a command that has one, by which it gives all that it gives at all.
    pub all: Option<&'static str>,
}

/// One thing that may be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    pub method: Method,
    /// Names in braces are names of arguments.
    pub path: &'static str,
    pub command: &'static [&'static str],
    /// Words that are always added.
    pub fixed: &'static [&'static str],
    pub args: &'static [Arg],
    pub need: Need,
    /// The status of success.
    pub status: u16,
    /// Whether it takes an Idempotency-Key.
    pub creates: bool,
    /// Whether it goes on telling what happens, to whoever takes `text/event-stream`.
    pub streams: bool,
    /// Whether the answer is an archive, whatever is asked for.
    pub is_archive: bool,
    pub pages: Option<Pages>,
}

impl Route {
    /// The names in braces, in their order.
    pub fn path_names(&self) -> impl Iterator<Item = &'static str> {
        self.path.split('/').filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'))
    }

    const fn with(mut self, fixed: &'static [&'static str]) -> Self {
        self.fixed = fixed;
        self
    }

    const fn answers(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    const fn streaming(mut self) -> Self {
        self.streams = true;
        self
    }

    const fn pages(mut self, field: &'static str) -> Self {
        self.pages = Some(Pages { field, all: None });
        self
    }

    /// Of a command with a `limit` of its own.
    const fn pages_of(mut self, field: &'static str, all: &'static str) -> Self {
        self.pages = Some(Pages { field, all: Some(all) });
        self
    }

    const fn archive(mut self) -> Self {
        self.is_archive = true;
        self
    }

    /// For looks at what not everybody who may look should see.
    const fn needs(mut self, need: Need) -> Self {
        self.need = need;
        self
    }

    /// Doing it twice is doing it once, without a key.
    const fn without_key(mut self) -> Self {
        self.creates = false;
        self
    }
}

/// A look; what does more is one with more.
pub const fn get(path: &'static str, command: &'static [&'static str], args: &'static [Arg]) -> Route {
    let (method, need) = (Method::Get, Need::Read);
    let (fixed, status) = (&[] as &[&str], 200);
    let (creates, streams, is_archive, pages) = (false, false, false, None);
    Route { method, path, command, fixed, args, need, status, creates, streams, is_archive, pages }
}

const fn post(need: Need, path: &'static str, command: &'static [&'static str], args: &'static [Arg]) -> Route {
    Route { method: Method::Post, need, creates: true, ..get(path, command, args) }
}

const fn delete(need: Need, path: &'static str, command: &'static [&'static str], args: &'static [Arg]) -> Route {
    Route { method: Method::Delete, need, ..get(path, command, args) }
}

const fn path(name: &'static str) -> Arg {
    Arg { name, place: Place::Path }
}

const fn query(name: &'static str) -> Arg {
    Arg { name, place: Place::Query }
}

const fn field(name: &'static str) -> Arg {
    Arg { name, place: Place::Field }
}

const fn content(name: &'static str) -> Arg {
    Arg { name, place: Place::Content }
}

const fn file(name: &'static str) -> Arg {
    Arg { name, place: Place::File }
}

const RUN: &[Arg] = &[path("run")];
const ID: &[Arg] = &[path("id")];
const SIGNATURE: &[Arg] = &[path("signature")];
const WITH_REASON: &[Arg] = &[path("id"), field("reason")];

/// Everything that may be asked, by what it is about.
#[rustfmt::skip]
pub const ROUTES: &[Route] = &[
    // Runs.
    post(Operate, "/v1/runs", &["run"], &[content("file"), query("item"), query("profile"), query("set"), query("dry_run")])
        .with(&["--detach"]).answers(202),
    get("/v1/runs", &["list"], &[query("state"), query("limit"), query("cursor")]),
    get("/v1/runs/{run}", &["status"], RUN),
    get("/v1/status", &["status"], &[]),
    post(Operate, "/v1/runs/{run}/resume", &["resume"], &[path("run"), field("profile"), field("set"), field("override_execution_config")])
        .with(&["--detach"]).answers(202),
    post(Operate, "/v1/runs/{run}/fork", &["resume"], &[path("run"), field("profile"), field("set")])
        .with(&["--fork", "--detach"]).answers(202),
    post(Operate, "/v1/runs/{run}/cancel", &["cancel"], RUN).without_key(),
    get("/v1/runs/{run}/diff", &["diff"], &[path("run"), query("stat")]),
    post(Operate, "/v1/runs/{run}/apply", &["apply"], &[path("run"), field("keep")]),
    post(Operate, "/v1/runs/{run}/undo", &["undo"], RUN),
    get("/v1/runs/{run}/decision", &["gate"], RUN),
    post(Operate, "/v1/runs/{run}/replay", &["replay"], &[path("run"), field("live")]),
    get("/v1/runs/{run}/logs", &["logs"], RUN),
    get("/v1/runs/{run}/events", &["events"], &[path("run"), query("after"), query("types"), query("limit")]).streaming(),
    get("/v1/runs/{run}/contract", &["contract", "show"], RUN),
    get("/v1/runs/{run}/receipt", &["receipt"], RUN),
    get("/v1/receipts/{receipt}", &["receipt"], &[path("receipt")]),
    get("/v1/receipts/{receipt}/verification", &["verify"], &[path("receipt")]),
    post(Operate, "/v1/receipts/{receipt}/label", &["dataset", "label"],
        &[path("receipt"), field("expected"), field("score"), field("reason")]),

    // Tools, and calls of them.
    post(Operate, "/v1/executions", &["tool", "call"], &[field("tool"), field("operation"), field("adapter"), field("params")]),
    get("/v1/executions/{run}/logs", &["logs"], RUN),
    get("/v1/tools", &["tool", "list"], &[query("level")]).pages("tools"),
    // A document may say that it is approved, and name secrets of this machine.
    post(Admin, "/v1/tools", &["tool", "add"], &[content("files"), query("reason")]).answers(201),
    post(Operate, "/v1/tools/refresh", &["tool", "refresh"], &[]).without_key(),
    get("/v1/tools/{id}", &["tool", "show"], &[path("id"), query("level"), query("history")]),
    post(Approve, "/v1/tools/{id}/approve", &["tool", "approve"], WITH_REASON),
    post(Approve, "/v1/tools/{id}/activate", &["tool", "activate"], WITH_REASON),
    post(Operate, "/v1/tools/{id}/deprecate", &["tool", "deprecate"], WITH_REASON),
    post(Operate, "/v1/tools/{id}/block", &["tool", "block"], WITH_REASON),
    delete(Admin, "/v1/tools/{id}", &["tool", "remove"], &[path("id"), query("reason")]),
    get("/v1/adapters", &["adapter", "list"], &[query("level")]).pages("adapters"),
    post(Admin, "/v1/adapters", &["adapter", "add"], &[content("files"), query("reason")]).answers(201),
    get("/v1/adapters/{id}", &["adapter", "show"], &[path("id"), query("level"), query("history")]),
    post(Approve, "/v1/adapters/{id}/approve", &["adapter", "approve"], WITH_REASON),
    post(Approve, "/v1/adapters/{id}/activate", &["adapter", "activate"], WITH_REASON),
    post(Operate, "/v1/adapters/{id}/deprecate", &["adapter", "deprecate"], WITH_REASON),
    post(Operate, "/v1/adapters/{id}/block", &["adapter", "block"], WITH_REASON),
    delete(Admin, "/v1/adapters/{id}", &["adapter", "remove"], &[path("id"), query("reason")]),

    // What waits for a person.
    get("/v1/approvals", &["approvals", "list"], &[]).pages("approvals"),
    get("/v1/approvals/{id}", &["approvals", "show"], ID),
    post(Approve, "/v1/approvals/{id}/approve", &["approve"], &[path("id"), field("minutes"), field("reason")]),
    post(Approve, "/v1/approvals/{id}/deny", &["deny"], WITH_REASON),

    // Questions to models.
    get("/v1/signatures", &["signature", "list"], &[]).pages("signatures"),
    post(Operate, "/v1/signatures", &["signature", "add"], &[content("files")]).answers(201),
    get("/v1/signatures/{id}", &["signature", "show"], ID),
    get("/v1/signatures/{id}/artifact", &["artifact", "new"], ID),
    post(Operate, "/v1/signatures/{id}/artifact", &["artifact", "add"], ID).answers(201),
    post(Operate, "/v1/predictions", &["predict"], &[field("signature"), file("input"), file("batch"), field("artifact"),
        field("strategy"), field("model"), field("provider"), field("key"), field("user"), field("run"), field("thread"),
        field("agent")]).answers(201),
    get("/v1/traces", &["trace", "list"], &[query("run"), query("limit")]).pages_of("receipts", "10000"),
    get("/v1/traces/{id}", &["trace", "show"], ID),
    get("/v1/policy/reasons", &["policy", "reasons"], &[]).pages("reasons"),
    get("/v1/policy/explanations/{id}", &["policy", "explain"], ID),

    // Artifacts, and which of them is live.
    get("/v1/artifacts", &["artifact", "list"], &[query("signature")]).pages("artifacts"),
    post(Operate, "/v1/artifacts", &["artifact", "add"], &[content("files")]).answers(201),
    get("/v1/artifacts/{id}", &["artifact", "show"], ID),
    get("/v1/pointers", &["pointer", "list"], &[]).pages("pointers"),
    get("/v1/pointers/{signature}", &["pointer", "show"], SIGNATURE),
    post(Operate, "/v1/pointers/{signature}", &["pointer", "set"], &[path("signature"), field("primary"), field("seed"),
        field("key_scope"), field("metadata"), field("reason"), field("if")]),
    post(Operate, "/v1/pointers/{signature}/canary", &["pointer", "canary"], &[path("signature"), field("artifact"),
        field("percent"), file("guard"), field("seed"), field("clear"), field("reason"), field("if")]),
    post(Operate, "/v1/pointers/{signature}/promote", &["pointer", "promote"],
        &[path("signature"), field("artifact"), field("reason"), field("if")]),
    post(Operate, "/v1/pointers/{signature}/rollback", &["pointer", "rollback"],
        &[path("signature"), field("to"), field("reason"), field("if")]),
    get("/v1/pointers/{signature}/audits", &["pointer", "history"], SIGNATURE).pages("history"),
    get("/v1/pointers/{signature}/audits/{revision}", &["pointer", "explain"], &[path("signature"), path("revision")]),
    get("/v1/pointers/{signature}/selection", &["pointer", "select"], &[path("signature"), query("key"), query("run"),
        query("thread"), query("autopilot"), query("user")]),
    post(Operate, "/v1/pointers/{signature}/guard", &["pointer", "guard"], &[path("signature"), field("dry_run")]),

    // What artifacts are made of, and measured by.
    get("/v1/datasets", &["dataset", "list"], &[]).pages("datasets"),
    post(Operate, "/v1/datasets", &["dataset", "import"], &[content("file"), query("signature"), query("strict"),
        query("split"), query("seed"), query("name"), query("max")]).answers(201),
    post(Operate, "/v1/datasets/export", &["dataset", "export"], &[field("signature"), field("labelled"), field("split"),
        field("seed"), field("name"), field("max")]).answers(201),
    get("/v1/datasets/{id}", &["dataset", "show"], &[path("id"), query("signature"), query("lines")]),
    get("/v1/compile-reports", &["compile"], &[]).with(&["--list"]).pages("reports"),
    post(Operate, "/v1/compile-reports", &["compile"], &[content("file"), query("budget"), query("currency"),
        query("parallel"), query("provider"), query("dry_run")]).answers(201),
    get("/v1/compile-reports/{show}", &["compile"], &[path("show")]),
    get("/v1/evals", &["eval"], &[]).with(&["--list"]).pages("evals"),
    post(Operate, "/v1/evals", &["eval"], &[field("artifact"), field("dataset"), field("signature"), field("against"),
        field("split"), field("metric"), field("min_score"), field("max_drop"), field("gate"), field("label"),
        field("budget"), field("currency"), field("parallel"), field("provider")]).answers(201),
    get("/v1/evals/{show}", &["eval"], &[path("show")]),

    // Money.
    get("/v1/authorizations", &["spend", "list"], &[]).pages("authorizations"),
    post(Approve, "/v1/authorizations", &["spend", "authorize"], &[field("max_total"), field("max_per_call"),
        field("max_per_day"), field("threshold"), field("mode"), field("currency"), field("agent"), field("thread"),
        field("run"), field("unlimited"), field("within"), field("alone"), field("expires"), field("id"),
        field("reason")]).answers(201),
    post(Approve, "/v1/authorizations/{id}/revoke", &["spend", "revoke"], WITH_REASON),
    get("/v1/reservations", &["spend", "reservations"], &[query("authorization"), query("run"), query("state"), query("limit")]).pages_of("reservations", "10000"),
    post(Operate, "/v1/reservations/reconcile", &["spend", "reconcile"], &[]),
    post(Approve, "/v1/reservations/{call}/reconcile", &["spend", "reconcile"],
        &[path("call"), field("run"), field("commit"), field("release"), field("reason")]),
    post(Approve, "/v1/reservations/{call}/commit", &["spend", "reconcile"],
        &[path("call"), field("run"), field("commit"), field("reason")]),
    post(Approve, "/v1/reservations/{call}/release", &["spend", "reconcile"],
        &[path("call"), field("run"), field("reason")]).with(&["--release"]),

    // The ledger.
    get("/v1/ledger/entries", &["ledger", "list"], &[query("type"), query("execution"), query("limit"), query("cursor")]),
    post(Operate, "/v1/ledger/entries", &["ledger", "append"], &[content("file")]).answers(201),
    get("/v1/ledger/entries/{id}", &["ledger", "show"], ID),
    get("/v1/ledger/proof/{id}", &["ledger", "proof"], ID),
    get("/v1/ledger/consistency/{from}", &["ledger", "consistency"], &[path("from")]),
    post(Operate, "/v1/ledger/checkpoint", &["ledger", "checkpoint"], &[]),
    post(Admin, "/v1/ledger/witness", &["ledger", "witness"], &[]).without_key(),
    get("/v1/ledger/verification", &["ledger", "verify"], &[]),
    get("/v1/ledger/coherence", &["ledger", "coherence"], &[query("ids"), query("snapshot_at")]),
    get("/v1/ledger/rejected", &["ledger", "rejected"], &[query("limit")]).pages_of("rejected", "1000"),

    // What happens, as it happens, and who is told of it.
    get("/v1/events", &["events"], &[query("after"), query("types"), query("limit")]).streaming(),
    // Tokens and webhooks are made without a key: the answer holds a secret, and would be kept.
    get("/v1/tokens", &["token", "list"], &[]).needs(Admin).pages("tokens"),
    post(Admin, "/v1/tokens", &["token", "create"], &[field("role"), field("name"), field("expires"), field("reason")])
        .answers(201).without_key(),
    delete(Admin, "/v1/tokens/{id}", &["token", "revoke"], &[path("id"), query("reason")]),
    get("/v1/webhooks", &["webhook", "list"], &[]).needs(Admin).pages("webhooks"),
    post(Admin, "/v1/webhooks", &["webhook", "add"], &[field("url"), field("types"), field("name"), field("reason")])
        .answers(201).without_key(),
    get("/v1/webhooks/{id}", &["webhook", "show"], ID).needs(Admin),
    delete(Admin, "/v1/webhooks/{id}", &["webhook", "remove"], &[path("id"), query("reason")]),
    post(Admin, "/v1/webhooks/{id}/test", &["webhook", "test"], ID).without_key(),
    post(Admin, "/v1/webhooks/{id}/enable", &["webhook", "enable"], WITH_REASON).without_key(),

    // The workspace, and what else there is.
    get("/v1/workspaces", &["workspace", "list"], &[]).pages("workspaces"),
    post(Operate, "/v1/workspaces", &["workspace", "add"], &[field("name"), field("snapshot"), field("git"), field("commit")]).answers(201),
    get("/v1/workspaces/{name}", &["workspace", "show"], &[path("name")]),
    get("/v1/workspaces/{name}/archive", &["workspace", "archive"], &[path("name"), query("at")]).archive(),
    get("/v1/workspaces/{name}/history", &["workspace", "history"], &[path("name"), query("limit"), query("cursor")]),
    get("/v1/snapshots", &["snapshot", "list"], &[]).pages("snapshots"),
    post(Operate, "/v1/snapshots", &["snapshot", "freeze"], &[field("include"), field("exclude"), field("paranoid")]).answers(201),
    get("/v1/snapshots/{id}/diff/{b}", &["snapshot", "diff"], &[path("id"), path("b"), query("stat")]),
    post(Operate, "/v1/snapshots/{id}/pin", &["snapshot", "pin"], ID).without_key(),
    post(Operate, "/v1/snapshots/{id}/unpin", &["snapshot", "unpin"], ID).without_key(),
    delete(Operate, "/v1/snapshots/{id}", &["snapshot", "forget"], ID),
    post(Operate, "/v1/snapshots/check", &["snapshot", "check"], &[]).without_key(),
    post(Admin, "/v1/snapshots/gc", &["snapshot", "gc"], &[]).without_key(),
    get("/v1/stages", &["stage", "list"], &[]).pages("stages"),
    delete(Operate, "/v1/stages/{id}", &["stage", "drop"], ID),
    post(Admin, "/v1/store/check", &["store", "check"], &[field("objects")]).without_key(),
    post(Admin, "/v1/store/gc", &["store", "gc"], &[field("dry_run")]).without_key(),
    get("/v1/schemas", &["schema"], &[]).with(&["--list"]),
    get("/v1/schemas/{name}", &["schema"], &[path("name")]),
    get("/v1/usage", &["usage"], &[]),
    get("/v1/config", &["config", "show"], &[]),
    post(Admin, "/v1/config/reload", &["config", "reload"], &[]).without_key(),
    get("/v1/key", &["key", "show"], &[query("pem")]),
    get("/v1/keys", &["key", "list"], &[]).pages("keys"),
    post(Admin, "/v1/key/rotate", &["key", "rotate"], &[]).without_key(),
];

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    #[test]
    fn no_two_routes_are_the_same() {
        let mut seen = BTreeSet::new();
        for route in ROUTES {
            assert!(seen.insert((route.method, route.path)), "{} {}", route.method.word(), route.path);
        }
    }

    #[test]
    fn paths_are_plain_and_name_what_comes_from_them() {
        for route in ROUTES {
            let of_path: Vec<_> =
                route.args.iter().filter(|arg| arg.place == Place::Path).map(|arg| arg.name).collect();
            assert_eq!(route.path_names().collect::<Vec<_>>(), of_path, "{}", route.path);
            assert!(route.path.starts_with("/v1/") && !route.path.ends_with('/'), "{}", route.path);
            let is_plain = |segment: &str| segment.bytes().all(|b| b.is_ascii_lowercase() || b"-_{}1".contains(&b));
            assert!(route.path.split('/').skip(1).all(|segment| !segment.is_empty() && is_plain(segment)));
            let names: BTreeSet<_> = route.args.iter().map(|arg| arg.name).collect();
            assert_eq!(names.len(), route.args.len(), "{}", route.path);
        }
    }

    /// A router may know only one name for a place.
    #[test]
    fn what_stands_in_the_same_place_has_the_same_name() {
        let mut names: BTreeMap<Vec<&str>, &str> = BTreeMap::new();
        for route in ROUTES {
            let segments: Vec<_> = route.path.split('/').collect();
            for (at, segment) in segments.iter().enumerate().filter(|(_, segment)| segment.starts_with('{')) {
                let name = names.entry(segments[..at].to_vec()).or_insert(segment);
                assert_eq!(name, segment, "{}", route.path);
            }
        }
    }

    #[test]
    fn no_answer_with_a_secret_is_kept() {
        for path in ["/v1/tokens", "/v1/webhooks"] {
            let made = ROUTES.iter().find(|route| route.method == Method::Post && route.path == path);
            assert!(made.is_some_and(|route| !route.creates), "{path}");
        }
    }

    #[test]
    fn who_only_looks_changes_nothing() {
        for route in ROUTES {
            let reads = route.method == Method::Get;
            let is_for_few = ["/v1/webhooks", "/v1/tokens"].iter().any(|path| route.path.starts_with(path));
            assert_eq!(reads && !is_for_few, route.need == Need::Read, "{}", route.path);
            assert!(reads || !route.streams, "{}", route.path);
            assert!(!(reads && route.creates) && (200..300).contains(&route.status), "{}", route.path);
            let has_content = route.args.iter().any(|arg| !matches!(arg.place, Place::Path | Place::Query));
            assert!(route.method == Method::Post || !has_content, "{}", route.path);
            let whole = route.args.iter().filter(|arg| arg.place == Place::Content).count();
            let parts = route.args.iter().filter(|arg| matches!(arg.place, Place::Field | Place::File)).count();
            assert!(whole <= 1 && (whole == 0 || parts == 0), "{}", route.path);
        }
    }
}
