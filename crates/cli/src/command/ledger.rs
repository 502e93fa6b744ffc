//! `actum ledger`: look and prove. Appending and verifying have files of their own.

use std::sync::Arc;

use actum_api::error;
use actum_contract::digest::Digest;
use actum_contract::id::Tenant;
use actum_contract::limit::{PAGE_BYTES_MAX, PAGE_ENTRIES_MAX};
use actum_ledger::checkpoint::{Checkpoint, origin, proof_text, verifier_key};
use actum_ledger::coherence::assess;
use actum_ledger::entry::Entry;
use actum_ledger::event;
use actum_ledger::journal::Range;
use actum_ledger::merkle::{Plan, verify_consistency};
use actum_ledger::time;
use actum_store::Store;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{Ended, append, verify};
use crate::args::Global;
use crate::failure::Failure;
use crate::key::Key;
use crate::project::Project;
use crate::run::Open;
use crate::ui::{Out, clean, table};
use crate::witness;

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Append one event or entry, or JSON lines of them
    Append(append::Append),
    /// List entries, oldest first
    List(List),
    /// Show one entry
    Show(One),
    /// Check every entry, the chain, the head and the checkpoints
    Verify(verify::Verify),
    /// Print a proof that an entry is in the log (C2SP tlog-proof)
    Proof(One),
    /// Sign the head of the log and keep it (C2SP checkpoint)
    Checkpoint(Whose),
    /// Hand the newest checkpoint to the witnesses of actum.toml, which keep or sign it
    Witness(Whose),
    /// Print a proof that the log grew out of an earlier size of it (RFC 6962)
    Consistency(Consistency),
    /// Tell how coherent a lineage is: the status to declare before planning
    Coherence(Coherence),
    /// List refused documents, newest first
    Rejected(Rejected),
}

/// Whose ledger; needed only where a store holds several
#[derive(Debug, Args)]
pub(crate) struct Whose {
    /// The tenant whose ledger is meant
    #[arg(long, value_name = "TENANT")]
    pub tenant: Option<String>,

    /// The only one that may be meant, where the command runs for somebody.
    #[arg(skip)]
    pub own: Option<Tenant>,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    whose: Whose,

    /// Only entries of this type
    #[arg(long = "type", id = "type", value_name = "TYPE")]
    kind: Option<String>,

    /// Only events of this execution
    #[arg(long, value_name = "ID")]
    execution: Option<String>,

    /// How many entries at most
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,

    /// Go on where the page before ended
    #[arg(long, value_name = "CURSOR")]
    cursor: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct One {
    /// The entry's id
    id: String,

    #[command(flatten)]
    whose: Whose,
}

#[derive(Debug, Args)]
pub(crate) struct Consistency {
    /// The earlier size, as a checkpoint names it
    from: u64,

    #[command(flatten)]
    whose: Whose,
}

#[derive(Debug, Args)]
pub(crate) struct Coherence {
    /// The entries the lineage names
    #[arg(required = true)]
    ids: Vec<String>,

    /// Judge as of this time (RFC 3339) [default: now]
    #[arg(long, value_name = "TIME")]
    snapshot_at: Option<String>,

    #[command(flatten)]
    whose: Whose,
}

#[derive(Debug, Args)]
pub(crate) struct Rejected {
    #[command(flatten)]
    whose: Whose,

    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
}

type Shared = Arc<dyn Store>;

impl Verb {
    pub(crate) async fn run(mut self, global: &Global, out: &mut Out) -> Ended {
        let project = Project::find(global)?;
        let store = project.open(out, false).await?;
        let own = project.seat().map(|seat| seat.tenant.clone());
        if let Some(whose) = self.whose() {
            whose.own.clone_from(&own);
        }
        match self {
            Self::Append(append) => append.run(&store, own.as_ref(), out).await,
            Self::List(list) => list.run(&store, out).await,
            Self::Show(one) => one.show(&store, out).await,
            Self::Verify(verify) => verify.run(&project, &store, out).await,
            Self::Proof(one) => one.prove(&project, &store, out).await,
            Self::Checkpoint(whose) => checkpoint(&whose, &project, &store, out).await,
            Self::Consistency(consistency) => consistency.run(&store, out).await,
            Self::Coherence(coherence) => coherence.run(&store, out).await,
            Self::Rejected(rejected) => rejected.run(&store, out).await,
            // It waits for other hosts, and is dispatched to `Whose::witness` before.
            Self::Witness(_) => Ok(0),
        }
    }
}

impl Verb {
    fn whose(&mut self) -> Option<&mut Whose> {
        match self {
            Self::Append(_) => None,
            Self::List(List { whose, .. })
            | Self::Show(One { whose, .. })
            | Self::Verify(verify::Verify { whose, .. })
            | Self::Proof(One { whose, .. })
            | Self::Checkpoint(whose)
            | Self::Witness(whose)
            | Self::Consistency(Consistency { whose, .. })
            | Self::Coherence(Coherence { whose, .. })
            | Self::Rejected(Rejected { whose, .. }) => Some(whose),
        }
    }
}

impl Whose {
    /// The tenants meant: the one named, which must have a ledger, or all there are.
    pub(crate) async fn tenants(&self, store: &Shared) -> Result<Vec<Tenant>, Failure> {
        self.tenants_with(store, Vec::new()).await
    }

    /// The same, and tenants that ought to have a ledger.
    pub(crate) async fn tenants_with(&self, store: &Shared, expected: Vec<Tenant>) -> Result<Vec<Tenant>, Failure> {
        let mut all = store.tenants().await?;
        all.extend(expected);
        all.sort();
        all.dedup();
        // Of the others nobody is told that they are there.
        all.retain(|tenant| self.own.as_ref().is_none_or(|own| own == tenant));
        let Some(name) = &self.tenant else { return Ok(all) };
        let named = tenant(name)?;
        if all.contains(&named) {
            return Ok(vec![named]);
        }
        let names: Vec<_> = all.iter().map(Tenant::as_str).collect();
        let hint =
            if names.is_empty() { "the store is empty".into() } else { format!("there are {}", names.join(", ")) };
        Err(Failure::new(error::NOT_FOUND, format!("tenant {name:?} has no ledger in this store")).hint(hint))
    }

    /// The one tenant meant; if it is not named there must be exactly one.
    async fn only(&self, store: &Shared) -> Result<Tenant, Failure> {
        let mut all = self.tenants(store).await?;
        match (all.pop(), all.is_empty()) {
            (Some(only), true) => Ok(only),
            (None, _) => {
                Err(Failure::new(error::NOT_FOUND, "the ledger is empty").hint("`actum ledger append` begins it"))
            }
            (Some(last), false) => {
                let names: Vec<_> = all.iter().chain([&last]).map(Tenant::as_str).collect();
                let message = format!("the store holds the ledgers of {} tenants", names.len());
                Err(Failure::new(error::USAGE, message).hint(format!("say which with --tenant: {}", names.join(", "))))
            }
        }
    }
}

impl Whose {
    /// Hands the newest checkpoint of each log that is meant to all witnesses. Fails with code 1 if one of them did not take it.
    pub(crate) fn witness(mut self, global: &Global, out: &mut Out) -> Ended {
        let open = Open::new(Project::find(global)?, out)?;
        self.own = open.project.seat().map(|seat| seat.tenant.clone());
        if open.project.config()?.ledger.witnesses.is_empty() {
            return Err(Failure::new(error::USAGE, "the ledger has no witnesses")
                .hint("name them in actum.toml: [ledger] witnesses = [{ type = \"file\", path = \"/mnt/audit\" }]"));
        }
        let mut tenants = open.waiter.wait(open.store.tenants())?;
        tenants.retain(|tenant| {
            self.own.as_ref().is_none_or(|own| own == tenant)
                && self.tenant.as_ref().is_none_or(|named| named == tenant.as_str())
        });
        if tenants.is_empty() {
            return Err(Failure::new(error::NOT_FOUND, "there is no such ledger, or it is empty"));
        }
        let reports =
            tenants.iter().map(|tenant| witness::witness(&open, tenant)).collect::<Result<Vec<_>, Failure>>()?;
        out.result(&json!({"ledgers": reports}), || {
            let rows = reports.iter().flat_map(|report| {
                report.witnesses.iter().map(|one| {
                    let word = if one.ok { "ok" } else { "FAILED" };
                    vec![report.tenant.clone(), clean(&one.witness), word.to_owned(), clean(&one.detail)]
                })
            });
            table(&["TENANT", "WITNESS", "", "DETAIL"], &rows.collect::<Vec<_>>())
        });
        Ok(u8::from(reports.iter().any(|report| report.witnesses.iter().any(|one| !one.ok))))
    }
}

fn tenant(name: &str) -> Result<Tenant, Failure> {
    Tenant::new(name).map_err(|e| Failure::new(error::USAGE, format!("--tenant {e}")))
}

fn check_limit(limit: usize) -> Result<(), Failure> {
    match (1..=PAGE_ENTRIES_MAX).contains(&limit) {
        true => Ok(()),
        false => Err(Failure::new(error::USAGE, format!("--limit is {limit}, expected 1 to {PAGE_ENTRIES_MAX}"))),
    }
}

fn opened(body: &[u8]) -> Result<Entry, Failure> {
    Entry::open(body).map_err(|e| Failure::new(error::STORE_DAMAGED, e.to_string()))
}

impl List {
    async fn run(self, store: &Shared, out: &mut Out) -> Ended {
        check_limit(self.limit)?;
        let mut tenants = self.whose.tenants(store).await?;
        let mut from = 0;
        if let Some(cursor) = &self.cursor {
            let (seq, at) = read_cursor(cursor)?;
            tenants.retain(|t| *t >= at);
            from = if tenants.first() == Some(&at) { seq } else { 0 };
        }
        let kind = if self.execution.is_some() { Some(event::TYPE.to_owned()) } else { self.kind.clone() };
        let (mut entries, mut bytes, mut next) = (Vec::new(), 0, None);
        'tenants: for tenant in &tenants {
            loop {
                let range = Range { kind: kind.clone(), ..Range::forwards(from, self.page()) };
                let rows = store.rows(tenant, range).await?;
                let Some(last) = rows.last().map(|row| row.seq) else { break };
                for row in rows {
                    let entry = opened(&row.body)?;
                    if self.execution.as_ref().is_some_and(|e| entry.payload["executionId"].as_str() != Some(e)) {
                        continue;
                    }
                    if entries.len() == self.limit || bytes >= PAGE_BYTES_MAX {
                        next = Some(format!("{}@{tenant}", row.seq));
                        break 'tenants;
                    }
                    bytes += row.body.len();
                    entries.push(entry);
                }
                from = last + 1;
            }
            from = 0;
        }
        let json = || json!({"entries": entries.iter().map(Entry::to_json).collect::<Vec<_>>(), "next_cursor": next});
        match out.json {
            true => out.line(&json().to_string()),
            false => out.line(&rows_text(&entries)),
        }
        if let Some(cursor) = next {
            out.remark(&format!("there is more: --cursor {cursor}"));
        }
        Ok(0)
    }

    /// Entries to ask for at once: all that are wanted, or full pages where most will be passed over.
    fn page(&self) -> usize {
        if self.execution.is_some() { PAGE_ENTRIES_MAX } else { self.limit + 1 }
    }
}

fn read_cursor(cursor: &str) -> Result<(u64, Tenant), Failure> {
    let parts = cursor.split_once('@').and_then(|(seq, name)| Some((seq.parse().ok()?, Tenant::new(name).ok()?)));
    parts.ok_or_else(|| Failure::new(error::USAGE, format!("{cursor:?} is not a cursor of an earlier page")))
}

fn rows_text(entries: &[Entry]) -> String {
    let row = |e: &Entry| {
        let dash = || "-".to_owned();
        let execution = match e.payload["executionId"].as_str() {
            Some(id) => format!("{id} #{}", e.payload["attempt"]),
            None => dash(),
        };
        let state = e.state.clone().unwrap_or_else(dash);
        vec![e.tenant.clone(), e.seq.to_string(), e.kind.clone(), state, execution, e.created_at.clone(), e.id.clone()]
    };
    let rows: Vec<_> = entries.iter().map(row).collect();
    table(&["TENANT", "SEQ", "TYPE", "STATE", "EXECUTION", "CREATED", "ID"], &rows)
}

impl One {
    async fn find(&self, store: &Shared) -> Result<(Tenant, Vec<u8>), Failure> {
        let mut found = Vec::new();
        for tenant in self.whose.tenants(store).await? {
            if let Some(body) = store.entry(&tenant, &self.id).await? {
                found.push((tenant, body));
            }
        }
        match (found.pop(), found.is_empty()) {
            (Some(one), true) => Ok(one),
            (None, _) => Err(Failure::new(error::NOT_FOUND, format!("no entry has the id {:?}", self.id))),
            (Some(last), false) => {
                let names: Vec<_> = found.iter().chain([&last]).map(|(t, _)| t.as_str()).collect();
                let message = format!("several tenants have an entry with the id {:?}", self.id);
                Err(Failure::new(error::USAGE, message).hint(format!("say which with --tenant: {}", names.join(", "))))
            }
        }
    }

    async fn show(self, store: &Shared, out: &mut Out) -> Ended {
        let (tenant, body) = self.find(store).await?;
        let entry = opened(&body)?;
        let mut json = entry.to_json();
        if entry.kind == event::TYPE {
            let text = |v: &Value| v.as_str().map(str::to_owned);
            let ids = entry.lineage.as_ref().and_then(|l| l["dependsOnLedgerIds"].as_array());
            let ids: Vec<_> = ids.into_iter().flatten().filter_map(text).collect();
            if let Some(at) = entry.payload["snapshotAt"].as_str().and_then(|t| time::parse(t).ok()) {
                let assessment = assess(&store.lineage(&tenant, &ids).await?, at);
                json["assessed"] = json!({"coherence": assessment.status.word(), "reasons": assessment.reasons});
            }
        }
        out.result(&json, || serde_json::to_string_pretty(&json).unwrap_or_else(|_| json.to_string()));
        Ok(0)
    }

    async fn prove(self, project: &Project, store: &Shared, out: &mut Out) -> Ended {
        let (tenant, body) = self.find(store).await?;
        let entry = opened(&body)?;
        let checkpoint = head(store, &tenant).await?;
        let size = checkpoint.size;
        let proof = proof(store, &tenant, Plan::inclusion(entry.seq, size)).await?;
        let key = Key::find_or_make(project)?;
        let note = checkpoint.sign(&key.signing);
        let text = proof_text(entry.seq, &proof, &note);
        let hashes: Vec<_> = proof.iter().map(|h| h.to_hex()).collect();
        let json = json!({
            "id": entry.id, "index": entry.seq, "leaf_hash": entry.hash.to_hex(), "size": size,
            "root": checkpoint.root.to_hex(), "hashes": hashes, "checkpoint": note, "proof": text,
            "leaf": String::from_utf8_lossy(&body), "verifier_key": verifier_key(&checkpoint.origin, &key.public()),
        });
        out.result(&json, || text.trim_end().to_owned());
        Ok(0)
    }
}

/// The head of a log, after it has been compared with the tree it is the head of.
async fn head(store: &Shared, tenant: &Tenant) -> Result<Checkpoint, Failure> {
    let log = store.log(tenant).await?;
    store.settled().await?;
    let (size, root) = (log.frontier.size(), log.frontier.root());
    if proof(store, tenant, Some(Plan::root(size))).await? != [root] {
        let message = format!("the head of {tenant}'s log is not that of its entries; it is not signed");
        return Err(Failure::new(error::LEDGER_DAMAGED, message).hint("`actum ledger verify` tells more"));
    }
    Ok(Checkpoint { origin: origin(store.store_id(), tenant), size, root })
}

/// The hashes of a proof, fetched from the store.
async fn proof(store: &Shared, tenant: &Tenant, plan: Option<Plan>) -> Result<Vec<Digest>, Failure> {
    let broken = || Failure::new(error::STORE_DAMAGED, "the tree lacks hashes that the proof needs");
    let plan = plan.ok_or_else(broken)?;
    let hashes = store.nodes(tenant, &plan.nodes()).await?;
    plan.proof(&hashes).ok_or_else(broken)
}

async fn checkpoint(whose: &Whose, project: &Project, store: &Shared, out: &mut Out) -> Ended {
    let tenant = whose.only(store).await?;
    // Read before the head: one that somebody keeps meanwhile may be of a longer log.
    let kept_before = store.checkpoints(&tenant).await?;
    let checkpoint = head(store, &tenant).await?;
    let Checkpoint { origin, size, root } = &checkpoint;
    // What was signed once stays true: the log may only have grown since.
    for note in kept_before {
        let Ok(kept) = Checkpoint::parse(&note) else { continue };
        let plan = Plan::consistency(kept.size, *size);
        let grown = match plan {
            Some(plan) => {
                verify_consistency(kept.size, kept.root, *size, *root, &proof(store, &tenant, Some(plan)).await?)
            }
            None => kept.size == 0,
        };
        if !grown {
            let message =
                format!("the log has not grown out of the one signed at {} entries; it is not signed", kept.size);
            return Err(Failure::new(error::LEDGER_DAMAGED, message).hint("`actum ledger verify` tells more"));
        }
    }
    let key = Key::find_or_make(project)?;
    let note = checkpoint.sign(&key.signing);
    store.keep_checkpoint(&tenant, *size, &note).await?;
    let json = json!({
        "tenant": tenant.as_str(), "origin": origin, "size": size, "root": root.to_hex(), "checkpoint": note,
        "verifier_key": verifier_key(origin, &key.public()),
    });
    out.result(&json, || note.trim_end().to_owned());
    Ok(0)
}

impl Consistency {
    async fn run(self, store: &Shared, out: &mut Out) -> Ended {
        let tenant = self.whose.only(store).await?;
        let Checkpoint { size, root, .. } = head(store, &tenant).await?;
        let Some(plan) = Plan::consistency(self.from, size) else {
            let message = format!("the log has {size} entries; a proof begins at 1 up to that, not at {}", self.from);
            return Err(Failure::new(error::USAGE, message));
        };
        let old_root = proof(store, &tenant, Some(Plan::root(self.from))).await?;
        let hashes = proof(store, &tenant, Some(plan)).await?;
        let hex: Vec<_> = hashes.iter().map(|h| h.to_hex()).collect();
        let old_root = old_root.first().map(|h| h.to_hex());
        let json =
            json!({"from": self.from, "from_root": old_root, "size": size, "root": root.to_hex(), "hashes": hex});
        out.result(&json, || hex.join("\n"));
        Ok(0)
    }
}

impl Coherence {
    async fn run(self, store: &Shared, out: &mut Out) -> Ended {
        let tenant = self.whose.only(store).await?;
        let at = match &self.snapshot_at {
            None => jiff::Timestamp::now(),
            Some(text) => time::parse(text).map_err(|e| Failure::new(error::USAGE, format!("--snapshot-at {e}")))?,
        };
        let assessment = assess(&store.lineage(&tenant, &self.ids).await?, at);
        let json =
            json!({"status": assessment.status.word(), "reasons": assessment.reasons, "snapshotAt": time::format(at)});
        out.result(&json, || {
            let reasons: String = assessment.reasons.iter().map(|r| format!("\n  {r}")).collect();
            format!("{}{reasons}", assessment.status)
        });
        Ok(0)
    }
}

impl Rejected {
    async fn run(self, store: &Shared, out: &mut Out) -> Ended {
        check_limit(self.limit)?;
        let named = self.whose.tenant.as_deref().map(tenant).transpose()?;
        let tenant = self.whose.own.clone().or(named);
        let letters = store.dead_letters(tenant.as_ref(), self.limit).await?;
        let json: Vec<_> = letters
            .iter()
            .map(|l| {
                let refusal: Value = serde_json::from_str(&l.refusal).unwrap_or_default();
                json!({
                    "tenantId": l.tenant, "recordedAt": time::format(l.recorded_at), "code": l.code,
                    "message": refusal["message"], "details": refusal["details"],
                    "document": String::from_utf8_lossy(&l.document),
                })
            })
            .collect();
        out.result(&json!({"rejected": json}), || {
            let rows: Vec<_> = json
                .iter()
                .map(|l| {
                    let text = |key: &str| l[key].as_str().unwrap_or("-").to_owned();
                    vec![text("recordedAt"), text("tenantId"), text("code"), text("message")]
                })
                .collect();
            table(&["RECORDED", "TENANT", "CODE", "WHY"], &rows)
        });
        Ok(0)
    }
}
