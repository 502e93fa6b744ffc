//! A journal in memory: the same decisions, no database. The reference the stores are compared with.

use std::collections::BTreeMap;
use std::sync::Mutex;

use actum_contract::digest::Digest;
use actum_contract::id::Tenant;
use actum_contract::limit::PAGE_BYTES_MAX;
use actum_ledger::access::{Access, KEPT_BYTES_MAX, Kept, Token, forgotten_before};
use actum_ledger::append::{Appended, Book, Decision, Log};
use actum_ledger::coherence::{Dependency, Found};
use actum_ledger::draft::{Rejection, Submission};
use actum_ledger::entry::{Entry, recorded_at};
use actum_ledger::event::State;
use actum_ledger::head::{self, Heads};
use actum_ledger::journal::{DeadLetter, Journal, JournalError, Outcome, Range, StoreTime, Work};
use actum_ledger::merkle::{Node, join};
use actum_ledger::pointer::{Pointed, Pointers};
use actum_ledger::registry::{Head, Item, Kind, Registry, Status};
use actum_ledger::time::{self, Moment};
use actum_ledger::verify::Row;
use jiff::Timestamp;
use serde_json::json;

#[derive(Debug, Default)]
pub struct Memory(Mutex<Content>);

#[derive(Debug, Default)]
struct Content {
    book: Book,
    entries: BTreeMap<Tenant, Vec<Appended>>,
    checkpoints: BTreeMap<(Tenant, u64), String>,
    letters: Vec<DeadLetter>,
    /// By tenant, token and key.
    kept: BTreeMap<(Tenant, String, String), Kept>,
    fresh: u64,
}

fn answer<T: Send + 'static>(value: T) -> Work<'static, T> {
    Box::pin(async move { Ok(value) })
}

impl Content {
    fn append(&mut self, submission: Submission) -> Outcome {
        let now = Timestamp::try_from(std::time::SystemTime::now()).expect("a time");
        let draft = match submission {
            Submission::Rejected(rejection) => return self.refuse(*rejection, now),
            Submission::Draft(draft) => draft,
        };
        self.fresh += 1;
        let fresh = format!("fresh-{}", self.fresh);
        match self.book.decide(&draft, || fresh, &Moment::new(now)) {
            Decision::Append(appended) => {
                let outcome = Outcome::Created { id: appended.id.clone(), seq: appended.seq };
                self.entries.entry(appended.tenant.clone()).or_default().push(*appended);
                outcome
            }
            Decision::Idempotent { id, seq } => Outcome::Idempotent { id, seq },
            Decision::Refuse(refusal) => self.refuse(draft.rejected(refusal), now),
        }
    }

    fn refuse(&mut self, rejection: Rejection, recorded_at: Timestamp) -> Outcome {
        let Rejection { tenant, refusal, document } = rejection;
        self.letters.push(DeadLetter {
            tenant: tenant.map(|t| t.to_string()),
            recorded_at,
            code: refusal.code.name().into(),
            refusal: json!({"message": refusal.message, "details": refusal.details()}).to_string(),
            document,
        });
        Outcome::Refused(refusal)
    }

    fn of(&self, tenant: &Tenant) -> &[Appended] {
        self.entries.get(tenant).map_or(&[], Vec::as_slice)
    }

    /// What is registered, by id, also what was removed.
    fn registered(&self, tenant: &Tenant, kind: Kind) -> impl Iterator<Item = Item> {
        let all = self.of(tenant).iter().filter_map(|entry| entry.registered.as_deref());
        let newest: BTreeMap<_, _> =
            all.filter(|row| row.kind == kind).map(|row| (row.item.id.clone(), row.item.clone())).collect();
        newest.into_values()
    }

    /// Where the pointers stand, by signature.
    fn pointed(&self, tenant: &Tenant) -> BTreeMap<String, Pointed> {
        let all = self.of(tenant).iter().filter_map(|entry| entry.moved.as_deref().map(|moved| moved.at(entry.seq)));
        all.map(|row| (row.signature.clone(), row)).collect()
    }

    /// Where the shared workspaces are, by name.
    fn headed(&self, tenant: &Tenant) -> BTreeMap<String, head::Head> {
        let all = self.of(tenant).iter().filter_map(|entry| entry.headed.as_deref());
        all.map(|head| (head.workspace.clone(), head.clone())).collect()
    }

    /// Everybody's tokens, by id.
    fn granted(&self) -> BTreeMap<String, Token> {
        let all = self.entries.values().flatten().filter_map(|entry| entry.granted.as_deref());
        all.map(|token| (token.id.clone(), token.clone())).collect()
    }

    fn keep(&mut self, tenant: &Tenant, token: &str, key: &str, kept: Kept) -> bool {
        if kept.body.len() > KEPT_BYTES_MAX {
            return false;
        }
        let before = forgotten_before(kept.at_ms);
        self.kept.retain(|(whose, ..), one| whose != tenant || one.at_ms >= before);
        let place = (tenant.clone(), token.to_owned(), key.to_owned());
        match self.kept.contains_key(&place) {
            true => false,
            false => self.kept.insert(place, kept).is_none(),
        }
    }

    fn dependency(&self, tenant: &Tenant, id: &str) -> Dependency {
        let all = self.of(tenant);
        let found = all.iter().find(|e| e.id == id).map(|this| {
            let entry = Entry::open(&this.body).expect("our own entry");
            let at = |e: &Appended| (e.id.clone(), time::from_nanoseconds(e.created_ns));
            let mut superseded_by: Vec<_> =
                all.iter().filter(|e| e.supersedes.iter().any(|s| s == id)).map(at).collect();
            superseded_by.sort_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
            if let Some(event) = &this.event {
                superseded_by.extend(all.iter().filter(|e| e.seq > this.seq).filter_map(|later| {
                    let other = later.event.as_ref()?;
                    let same = (&other.robot, &other.execution) == (&event.robot, &event.execution);
                    (same && other.state == State::Succeeded).then(|| at(later))
                }));
            }
            Found::of(entry, superseded_by).expect("our own entry")
        });
        Dependency { id: id.to_owned(), found }
    }
}

impl Memory {
    fn with<T: Send + 'static>(&self, ask: impl FnOnce(&mut Content) -> T) -> Work<'static, T> {
        answer(ask(&mut self.0.lock().expect("nobody panics while holding it")))
    }
}

impl Registry for Memory {
    fn heads<'a>(&'a self, tenant: &'a Tenant, kind: Kind) -> Work<'a, Vec<Head>> {
        let head = |Item { id, name, tool, form, .. }| Head { id, name, tool, form };
        self.with(|s| s.registered(tenant, kind).filter(is_there).map(head).collect())
    }

    fn items<'a>(&'a self, tenant: &'a Tenant, kind: Kind) -> Work<'a, Vec<Item>> {
        self.with(|s| s.registered(tenant, kind).filter(is_there).collect())
    }

    fn item<'a>(&'a self, tenant: &'a Tenant, kind: Kind, id: &'a str) -> Work<'a, Option<Item>> {
        self.with(|s| s.registered(tenant, kind).find(|item| item.id == id))
    }
}

fn is_there(item: &Item) -> bool {
    item.status != Status::Removed
}

impl Pointers for Memory {
    fn pointer<'a>(&'a self, tenant: &'a Tenant, signature: &'a str) -> Work<'a, Option<Pointed>> {
        self.with(|s| s.pointed(tenant).remove(signature))
    }

    fn pointers<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, Vec<Pointed>> {
        self.with(|s| s.pointed(tenant).into_values().collect())
    }
}

impl Heads for Memory {
    fn head<'a>(&'a self, tenant: &'a Tenant, workspace: &'a str) -> Work<'a, Option<head::Head>> {
        self.with(|s| s.headed(tenant).remove(workspace))
    }

    fn heads_of<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, Vec<head::Head>> {
        self.with(|s| s.headed(tenant).into_values().collect())
    }
}

impl Access for Memory {
    fn token<'a>(&'a self, id: &'a str) -> Work<'a, Option<Token>> {
        self.with(|s| s.granted().remove(id))
    }

    fn tokens<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, Vec<Token>> {
        self.with(|s| s.granted().into_values().filter(|token| token.tenant == *tenant).collect())
    }

    fn kept<'a>(&'a self, tenant: &'a Tenant, token: &'a str, key: &'a str) -> Work<'a, Option<Kept>> {
        let place = (tenant.clone(), token.to_owned(), key.to_owned());
        self.with(|s| s.kept.get(&place).cloned())
    }

    fn keep<'a>(&'a self, tenant: &'a Tenant, token: &'a str, key: &'a str, kept: Kept) -> Work<'a, bool> {
        self.with(|s| s.keep(tenant, token, key, kept))
    }
}

impl Journal for Memory {
    fn append(&self, submission: Submission) -> Work<'static, Outcome> {
        self.with(|s| s.append(submission))
    }

    fn entry<'a>(&'a self, tenant: &'a Tenant, id: &'a str) -> Work<'a, Option<Vec<u8>>> {
        self.with(|s| s.of(tenant).iter().find(|e| e.id == id).map(|e| e.body.to_vec()))
    }

    fn rows<'a>(&'a self, tenant: &'a Tenant, range: Range) -> Work<'a, Vec<Row>> {
        let row = |e: &Appended| Row {
            seq: e.seq,
            id: e.id.clone(),
            kind: e.kind.clone(),
            created_ns: e.created_ns,
            hash: e.hash.0.to_vec(),
            body: e.body.to_vec(),
        };
        let wanted = |e: &&Appended| range.kind.as_ref().is_none_or(|k| *k == e.kind);
        self.with(|s| {
            let all = s.of(tenant).iter().filter(wanted);
            let mut rows: Vec<_> = match range.backwards {
                true => all.rev().filter(|e| e.seq < range.from).take(range.limit).map(row).collect(),
                false => all.filter(|e| e.seq >= range.from).take(range.limit).map(row).collect(),
            };
            let mut bytes = 0;
            let fits = rows.iter().position(|r| {
                bytes += r.body.len();
                bytes >= PAGE_BYTES_MAX
            });
            rows.truncate(fits.map_or(rows.len(), |last| last + 1));
            rows
        })
    }

    fn log<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, Log> {
        self.with(|s| s.book.logs().find(|(t, _)| *t == tenant).map(|(_, log)| log.clone()).unwrap_or_default())
    }

    fn time<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, StoreTime> {
        let clock = Timestamp::try_from(std::time::SystemTime::now()).expect("a time");
        self.with(|s| StoreTime { clock, last: s.of(tenant).last().and_then(|entry| recorded_at(&entry.body)) })
    }

    fn nodes<'a>(&'a self, tenant: &'a Tenant, nodes: &'a [Node]) -> Work<'a, Vec<Digest>> {
        let found: Option<Vec<_>> = {
            let state = self.0.lock().expect("nobody panics while holding it");
            let hashes: Vec<_> = state.of(tenant).iter().map(|e| e.hash).collect();
            let range = |n: &Node| (n.index << n.level) as usize..((n.index + 1) << n.level) as usize;
            nodes.iter().map(|n| hashes.get(range(n)).and_then(|h| join(h.to_vec()))).collect()
        };
        Box::pin(async move { found.ok_or_else(|| JournalError::Damaged("no such node".into())) })
    }

    fn lineage<'a>(&'a self, tenant: &'a Tenant, ids: &'a [String]) -> Work<'a, Vec<Dependency>> {
        self.with(|s| ids.iter().map(|id| s.dependency(tenant, id)).collect())
    }

    fn keep_checkpoint<'a>(&'a self, tenant: &'a Tenant, size: u64, note: &'a str) -> Work<'a, ()> {
        self.with(|s| {
            let kept = s.checkpoints.entry((tenant.clone(), size)).or_default();
            if note.len() > kept.len() {
                note.clone_into(kept);
            }
        })
    }

    fn checkpoints<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, Vec<String>> {
        self.with(|s| s.checkpoints.iter().filter(|((t, _), _)| t == tenant).map(|(_, note)| note.clone()).collect())
    }

    fn dead_letters<'a>(&'a self, tenant: Option<&'a Tenant>, limit: usize) -> Work<'a, Vec<DeadLetter>> {
        let tenant = tenant.map(|t| t.as_str().to_owned());
        self.with(|s| {
            s.letters.iter().rev().filter(|l| tenant.is_none() || l.tenant == tenant).take(limit).cloned().collect()
        })
    }

    fn tenants(&self) -> Work<'_, Vec<Tenant>> {
        self.with(|s| s.entries.keys().cloned().collect())
    }

    fn store_id(&self) -> &str {
        "memory"
    }
}
