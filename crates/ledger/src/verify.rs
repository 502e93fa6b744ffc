//! Walking a stored log from its first entry and naming the first one that is not what was recorded.

use std::collections::HashMap;

use actum_contract::digest::Digest;
use actum_contract::id::Tenant;

use crate::append::{self, ExecutionKey, Log};
use crate::checkpoint::Checkpoint;
use crate::entry::Entry;
use crate::event;
use crate::merkle;
use crate::state::Last;
use crate::time;

/// A row of the stored log, as the database holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub seq: u64,
    pub id: String,
    pub kind: String,
    pub created_ns: i64,
    pub hash: Vec<u8>,
    pub body: Vec<u8>,
}

/// The first entry that is wrong, and how.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("entry {seq}{} of tenant {tenant}: {flaw}", .id.as_ref().map(|id| format!(" ({id})")).unwrap_or_default())]
pub struct Bad {
    pub tenant: String,
    pub seq: u64,
    /// The id of the entry, where one is left to ask.
    pub id: Option<String>,
    pub flaw: Flaw,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    #[error("is missing (the next one found is {0})")]
    Missing(i64),
    #[error("its content does not have the hash it was recorded with")]
    Hash,
    #[error("its content is unreadable: {0}")]
    Unreadable(String),
    #[error("its {0} is not the one it was recorded with")]
    Field(&'static str),
    #[error("it does not follow the entry before it")]
    Chain,
    #[error("it breaks the rules of its execution: {0}")]
    Rules(String),
    #[error("is missing: the head of the log says there are {0} entries")]
    Cut(u64),
    #[error("the head of the log knows only {0} entries")]
    Beyond(u64),
    #[error("the head of the log does not fit the entries before it")]
    Head,
    #[error("is missing: a checkpoint was signed over {0} entries")]
    CheckpointBeyond(u64),
    #[error("the log up to here is not the one that was signed in the checkpoint of {0} entries")]
    CheckpointRoot(u64),
    #[error("is missing: {receipt} was signed when there were {size} entries")]
    ReceiptBeyond { size: u64, receipt: String },
    #[error("the log up to here is not the one that {0} was signed over")]
    ReceiptHead(String),
    #[error("{0} cannot be compared with the log: it was altered")]
    ReceiptAltered(String),
    #[error("{0}")]
    OtherLog(String),
}

/// The head of a log as a signed receipt states it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedHead {
    pub size: u64,
    pub head: Digest,
    /// Which receipt says so, for messages.
    pub receipt: String,
}

/// Takes the rows in order, then the head. Checkpoints must be of this log; who signed them is checked before.
#[derive(Debug)]
pub struct Walk {
    tenant: Tenant,
    log: Log,
    checkpoints: Vec<Checkpoint>,
    heads: Vec<SignedHead>,
    /// Where each execution is, by the entries so far: what is stored beside them may have been altered.
    executions: HashMap<ExecutionKey, Last>,
}

impl Walk {
    pub fn new(tenant: Tenant, mut checkpoints: Vec<Checkpoint>) -> Self {
        checkpoints.sort_by_key(|c| std::cmp::Reverse(c.size));
        Self { tenant, log: Log::default(), checkpoints, heads: Vec::new(), executions: HashMap::new() }
    }

    /// Compares the log with the heads of receipts too. Who signed them is checked before.
    #[must_use]
    pub fn with_heads(mut self, mut heads: Vec<SignedHead>) -> Self {
        heads.sort_by_key(|head| std::cmp::Reverse(head.size));
        self.heads = heads;
        self
    }

    pub fn size(&self) -> u64 {
        self.log.frontier.size()
    }

    pub fn root(&self) -> Digest {
        self.log.frontier.root()
    }

    fn bad(&self, seq: u64, id: Option<&str>, flaw: Flaw) -> Bad {
        Bad { tenant: self.tenant.to_string(), seq, id: id.map(str::to_owned), flaw }
    }

    /// Checks the next row.
    pub fn row(&mut self, row: &Row) -> Result<(), Bad> {
        let expected = self.size();
        if row.seq != expected {
            return Err(self.bad(expected, None, Flaw::Missing(row.seq as i64)));
        }
        let hash = merkle::leaf(&row.body);
        let bad = |flaw| Err(self.bad(row.seq, Some(&row.id), flaw));
        if row.hash != hash.0 {
            return bad(Flaw::Hash);
        }
        let entry = match Entry::open(&row.body) {
            Ok(entry) => entry,
            Err(e) => return bad(Flaw::Unreadable(e.to_string())),
        };
        if entry.seq != row.seq {
            return bad(Flaw::Field("seq"));
        }
        if entry.id != row.id {
            return bad(Flaw::Field("id"));
        }
        if entry.tenant != self.tenant.as_str() {
            return bad(Flaw::Field("tenant"));
        }
        // Columns that stand beside the text decide about lineage and lists; they must say what the text says.
        if entry.kind != row.kind {
            return bad(Flaw::Field("type"));
        }
        if time::parse(&entry.created_at).map(time::nanoseconds) != Ok(row.created_ns) {
            return bad(Flaw::Field("creation time"));
        }
        if entry.prev != self.log.head {
            return bad(Flaw::Chain);
        }
        if entry.kind == event::TYPE
            && let Err(flaw) = self.follow(&entry)
        {
            return Err(self.bad(row.seq, Some(&row.id), flaw));
        }
        self.log.frontier.push(hash);
        self.log.head = hash;
        self.check_checkpoints(Some(&row.id))
    }

    /// Replays the state machine: an event must be one that could be appended after those before it.
    fn follow(&mut self, entry: &Entry) -> Result<(), Flaw> {
        let draft = append::draft_of(entry).ok_or_else(|| Flaw::Unreadable("it is no execution event".to_owned()))?;
        let Some(event) = draft.event else { return Ok(()) };
        if event.id() != entry.id {
            return Err(Flaw::Field("id"));
        }
        let key = (event.robot.clone(), event.execution.clone());
        append::judge(self.executions.get(&key).copied(), &event).map_err(|refusal| Flaw::Rules(refusal.message))?;
        self.executions.insert(key, Last { state: event.state, attempt: event.attempt });
        Ok(())
    }

    fn check_checkpoints(&mut self, id: Option<&str>) -> Result<(), Bad> {
        while let Some(next) = self.checkpoints.last().filter(|c| c.size <= self.size()) {
            if next.size == self.size() && next.root != self.root() {
                let size = next.size;
                return Err(self.bad(self.size().saturating_sub(1), id, Flaw::CheckpointRoot(size)));
            }
            self.checkpoints.pop();
        }
        while let Some(next) = self.heads.last().filter(|head| head.size <= self.size()) {
            if next.size == self.size() && next.head != self.log.head {
                let flaw = Flaw::ReceiptHead(next.receipt.clone());
                return Err(self.bad(self.size().saturating_sub(1), id, flaw));
            }
            self.heads.pop();
        }
        Ok(())
    }

    /// Checks the entries without a head, for making one: every kept checkpoint must be reached, and a stored head
    /// that says there were more entries is believed.
    pub fn finish_journal(mut self, stored_size: u64) -> Result<Log, Bad> {
        self.check_checkpoints(None)?;
        let size = self.size();
        if stored_size > size {
            return Err(self.bad(size, None, Flaw::Cut(stored_size)));
        }
        match self.checkpoints.first() {
            Some(largest) => Err(self.bad(size, None, Flaw::CheckpointBeyond(largest.size))),
            None => Ok(self.log),
        }
    }

    /// Checks the stored head and the checkpoints beyond the last row.
    pub fn finish(mut self, head: &Log) -> Result<Log, Bad> {
        self.check_checkpoints(None)?;
        let (size, stored) = (self.size(), head.frontier.size());
        if stored > size {
            return Err(self.bad(size, None, Flaw::Cut(stored)));
        }
        if let Some(largest) = self.checkpoints.first() {
            return Err(self.bad(size, None, Flaw::CheckpointBeyond(largest.size)));
        }
        if let Some(SignedHead { size: said, receipt, .. }) = self.heads.first() {
            let flaw = Flaw::ReceiptBeyond { size: *said, receipt: receipt.clone() };
            return Err(self.bad(size, None, flaw));
        }
        if stored < size {
            return Err(self.bad(stored, None, Flaw::Beyond(stored)));
        }
        if *head != self.log {
            return Err(self.bad(size.saturating_sub(1), None, Flaw::Head));
        }
        Ok(self.log)
    }
}
