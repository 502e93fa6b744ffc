//! Heads of shared workspaces: which tree each is at. One entry of the ledger for every move, and what is read off them.
//!
//! A workspace that no machine owns has no folder, only a head, and a move names the tree before and after it. Its id names
//! the workspace and counts its moves: of two who make move n only one is recorded, so that an append is a
//! compare-and-swap, and history and head are one write. Called by the store, which keeps the newest move of each workspace
//! as a row, and by `cli`. What the trees hold is not asked here.

use std::fmt;

use actum_contract::digest::Digest;
use actum_contract::id::Tenant;
use actum_contract::limit::INTEGER_SAFE_MAX;
use serde_json::{Map, Value, json};

use crate::entry::Entry;
use crate::event::{Fields, whole, words};
use crate::journal::Work;

pub const TYPE: &str = "workspace_head";
pub const MODULE: &str = "workspace";
pub const SOURCE: &str = "actum";

/// Version of the payload. Readers accept this and older ones; writers write this.
pub const VERSION: u64 = 1;

pub const NAME_BYTES_MAX: usize = 500;

/// Paths by others that a move lists.
pub const DRIFT_MAX: usize = 100;

/// Patterns that a workspace is made with.
pub const INCLUDE_MAX: usize = 1_000;

words!(
    /// Why a head moves.
    Cause {
        Create = "create", Publish = "publish", Undo = "undo", Set = "set",
    }
);

/// One move of the head of one workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    pub tenant: Tenant,
    pub workspace: String,
    /// 1 for the first, then counting up without a gap.
    pub n: u64,
    pub cause: Cause,
    /// Where it was: nothing for the first.
    pub before: Option<Digest>,
    pub after: Digest,
    /// The id of this very move, chosen by whoever makes it: by it he knows later whether it was his.
    pub publication: String,
    /// The run whose result it is, or the publication that is taken back.
    pub of: Option<String>,
    pub actor: String,
    /// Paths that others had changed since the result was begun.
    pub drift: Vec<String>,
    /// Patterns of what belongs to the workspace although its own rules ignore it; said when it is made.
    pub include: Vec<String>,
}

impl Move {
    /// The document for the ledger.
    pub fn document(&self) -> Value {
        let mut document = json!({
            "tenantId": self.tenant.as_str(), "module": MODULE, "source": SOURCE, "type": TYPE,
            "id": entry_id(&self.workspace, self.n),
            "payload": {
                "version": VERSION, "workspace": self.workspace, "n": self.n, "cause": self.cause.word(),
                "before": self.before.map(Digest::to_hex), "after": self.after.to_hex(),
                "publicationId": self.publication, "of": self.of, "actor": self.actor,
                "baseDrift": self.drift.iter().take(DRIFT_MAX).collect::<Vec<_>>(),
            },
        });
        if !self.include.is_empty() {
            document["payload"]["include"] = json!(self.include);
        }
        document
    }
}

/// The id of the entry with move `n` of a workspace, whatever letters its name has.
pub fn entry_id(workspace: &str, n: u64) -> String {
    format!("{ID_PREFIX}{}:{n}", &Digest::sha256(workspace.as_bytes()).to_hex()[..NAME_DIGITS])
}

/// Hex digits of its hash that stand for a name.
const NAME_DIGITS: usize = 40;

pub(crate) const ID_PREFIX: &str = "head:";

/// Whether a workspace may be called so.
pub fn is_name(name: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"@:/._+#~%=-".contains(&b);
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.bytes().all(is_plain)
}

/// Where a shared workspace is, as its newest move left it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    pub workspace: String,
    pub n: u64,
    pub tree: Digest,
}

impl Head {
    /// The id of the move that must be on record before this one.
    pub fn follows(&self) -> Option<String> {
        (self.n > 1).then(|| entry_id(&self.workspace, self.n - 1))
    }
}

/// The heads of every tenant's shared workspaces. Moves are made by appending `Move::document`.
pub trait Heads: Send + Sync {
    fn head<'a>(&'a self, tenant: &'a Tenant, workspace: &'a str) -> Work<'a, Option<Head>>;

    /// All of them, ordered by name.
    fn heads_of<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, Vec<Head>>;
}

/// Checks the envelope and the payload of a move. Returns its id and its row if all it needs is usable; violations may
/// have been noted nonetheless.
pub(crate) fn read(top: &mut Fields<'_>, payload: &Map<String, Value>) -> Option<(String, Head)> {
    top.literal("module", MODULE);
    top.literal("source", SOURCE);
    let id = top.get("id").and_then(Value::as_str);
    let mut p = Fields { object: payload, prefix: "payload.", violations: top.violations };
    let Read { workspace, n, after, .. } = read_payload(&mut p)?;
    let head = Head { workspace: workspace.to_owned(), n, tree: after };
    let expected = entry_id(&head.workspace, head.n);
    if id != Some(&expected) {
        top.note("id", format!("must be {expected:?}"));
    }
    Some((expected, head))
}

/// A stored entry read back as the move it records; nothing if it records none.
pub fn move_of(entry_bytes: &[u8]) -> Option<Move> {
    let entry = Entry::open(entry_bytes).ok().filter(|entry| entry.kind == TYPE)?;
    let tenant = Tenant::new(entry.tenant.as_str()).ok()?;
    let mut violations = Vec::new();
    let mut p = Fields { object: entry.payload.as_object()?, prefix: "payload.", violations: &mut violations };
    let Read { workspace, n, cause, before, after, publication, of, actor, drift, include } = read_payload(&mut p)?;
    let (workspace, publication) = (workspace.to_owned(), publication.to_owned());
    let (of, actor) = (of.map(ToOwned::to_owned), actor.to_owned());
    let read = Move { tenant, workspace, n, cause, before, after, publication, of, actor, drift, include };
    violations.is_empty().then_some(read)
}

/// A payload, read.
struct Read<'a> {
    workspace: &'a str,
    n: u64,
    cause: Cause,
    before: Option<Digest>,
    after: Digest,
    publication: &'a str,
    of: Option<&'a str>,
    actor: &'a str,
    drift: Vec<String>,
    include: Vec<String>,
}

fn read_payload<'a>(p: &mut Fields<'a>) -> Option<Read<'a>> {
    if p.get("version").and_then(whole) != Some(VERSION) {
        p.note("version", format!("must be {VERSION}; if it is more, use a newer actum"));
    }
    let workspace = p.get("workspace").and_then(Value::as_str).filter(|name| is_name(name));
    if workspace.is_none() {
        p.note("workspace", format!("must be 1 to {NAME_BYTES_MAX} letters, digits or @ : / . _ + # ~ % = -"));
    }
    let n = p.get("n").and_then(whole).filter(|n| (1..=INTEGER_SAFE_MAX).contains(n));
    if n.is_none() {
        p.note("n", "must be a whole number of at least 1");
    }
    let cause = p.word("cause", Cause::named, &Cause::ALL.map(Cause::word));
    if let (Some(n), Some(cause)) = (n, cause)
        && (n == 1) != (cause == Cause::Create)
    {
        p.note("cause", "must be create for the first move, and only for that");
    }
    let before = p.get("before").filter(|before| !before.is_null()).map(|before| tree(Some(before)));
    match (n, before) {
        (Some(1), Some(_)) => p.note("before", "must be null for the first move"),
        (Some(2..), None) | (_, Some(None)) => p.note("before", "must be the tree that the workspace was at"),
        _ => {}
    }
    let after = tree(p.get("after"));
    if after.is_none() {
        p.note("after", "must be a tree: 64 hex digits");
    }
    let publication = p.name("publicationId");
    let of = p.get("of").filter(|of| !of.is_null()).and_then(Value::as_str);
    let actor = p.name("actor");
    let drift = texts(p.get("baseDrift"), DRIFT_MAX);
    if drift.is_none() {
        p.note("baseDrift", format!("must be a list of at most {DRIFT_MAX} paths"));
    }
    let include = p.get("include").map_or(Some(Vec::new()), |include| texts(Some(include), INCLUDE_MAX));
    if include.is_none() || (n != Some(1) && include.as_ref().is_some_and(|include| !include.is_empty())) {
        p.note("include", format!("must be a list of at most {INCLUDE_MAX} patterns, and only in the first move"));
    }
    Some(Read {
        workspace: workspace?,
        n: n?,
        cause: cause?,
        before: before.flatten(),
        after: after?,
        publication: publication?,
        of,
        actor: actor?,
        drift: drift.unwrap_or_default(),
        include: include.unwrap_or_default(),
    })
}

fn texts(value: Option<&Value>, max: usize) -> Option<Vec<String>> {
    let list = value.and_then(Value::as_array).filter(|list| list.len() <= max)?;
    list.iter().map(|text| text.as_str().map(str::to_owned)).collect()
}

fn tree(value: Option<&Value>) -> Option<Digest> {
    value.and_then(Value::as_str).and_then(Digest::from_hex)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::draft::{self, Submission};

    fn first() -> Move {
        Move {
            tenant: Tenant::new("t").unwrap(),
            workspace: "git+https://example.test/a.git#0".to_owned(),
            n: 1,
            cause: Cause::Create,
            before: None,
            after: Digest::blake3(b"a"),
            publication: "p1".to_owned(),
            of: None,
            actor: "ann".to_owned(),
            drift: vec!["a".to_owned()],
            include: vec!["/b".to_owned()],
        }
    }

    fn flaws(edit: impl FnOnce(&mut Value)) -> Vec<String> {
        let mut document = first().document();
        edit(&mut document);
        match draft::read_value(document, Timestamp::UNIX_EPOCH) {
            Submission::Draft(_) => Vec::new(),
            Submission::Rejected(rejection) => {
                rejection.refusal.violations.into_iter().map(|violation| violation.path).collect()
            }
        }
    }

    #[test]
    fn a_move_is_read_as_it_was_written() {
        assert!(flaws(|_| ()).is_empty());
        let Submission::Draft(draft) = draft::read_value(first().document(), Timestamp::UNIX_EPOCH) else {
            panic!("it is sound")
        };
        let head = draft.headed.unwrap();
        assert_eq!((head.n, head.tree, head.follows()), (1, Digest::blake3(b"a"), None));
        let second = Head { n: 2, ..*head };
        assert_eq!(second.follows(), Some(entry_id(&first().workspace, 1)));
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(flaws(|d| d["payload"]["workspace"] = json!("a b")), ["payload.workspace"]);
        assert_eq!(flaws(|d| d["payload"]["after"] = json!("x")), ["payload.after"]);
        assert_eq!(flaws(|d| d["payload"]["before"] = json!(Digest::blake3(b"b").to_hex())), ["payload.before"]);
        assert_eq!(flaws(|d| d["payload"]["cause"] = json!("publish")), ["payload.cause"]);
        assert_eq!(flaws(|d| d["payload"]["version"] = json!(2)), ["payload.version"]);
        assert_eq!(flaws(|d| d["payload"]["baseDrift"] = Value::Null), ["payload.baseDrift"]);
        assert_eq!(flaws(|d| d["payload"]["include"] = json!([1])), ["payload.include"]);
        assert_eq!(flaws(|d| d["id"] = json!("head:x:1")), ["id"]);
        let second = |d: &mut Value| {
            (d["payload"]["n"], d["payload"]["cause"]) = (json!(2), json!("publish"));
            d["payload"]["include"] = json!([]);
            d["id"] = json!(entry_id(&first().workspace, 2));
        };
        assert_eq!(flaws(second), ["payload.before"]);
    }

    #[test]
    fn names() {
        for name in ["a", "snapshot:00ff", "git+file:///a/b%20c#v1", "team/site"] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "a b", "a\n", "é", &"a".repeat(501)] {
            assert!(!is_name(name), "{name}");
        }
    }
}
