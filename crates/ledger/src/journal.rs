//! The port through which everybody reaches the ledger. Declared here, implemented in `store`, joined in `cli`.

use std::pin::Pin;

use actum_contract::digest::Digest;
use actum_contract::id::Tenant;
use jiff::Timestamp;

use crate::append::Log;
use crate::coherence::Dependency;
use crate::draft::Submission;
use crate::merkle::Node;
use crate::refusal::Refusal;
use crate::verify::{Bad, Row};

/// An answer that arrives later; boxed so that the port can be a trait object.
pub type Work<'a, T> = Pin<Box<dyn Future<Output = Result<T, JournalError>> + Send + 'a>>;

/// The ledger of every tenant. No operation but `tenants` works without being told whose.
pub trait Journal: Send + Sync {
    /// Appends, or answers why not. When this returns, what it says is durable: the entry, or the dead letter.
    /// Submissions of one caller are decided in the order in which `append` was called.
    fn append(&self, submission: Submission) -> Work<'static, Outcome>;

    /// The stored text of one entry.
    fn entry<'a>(&'a self, tenant: &'a Tenant, id: &'a str) -> Work<'a, Option<Vec<u8>>>;

    /// Entries in order of their sequence, as rows of the log. A page ends at its limit or at a bound on its bytes; only
    /// an empty one means that there is no more.
    fn rows<'a>(&'a self, tenant: &'a Tenant, range: Range) -> Work<'a, Vec<Row>>;

    fn log<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, Log>;

    /// The time of the store, which is the reference for all that rules compare.
    fn time<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, StoreTime>;

    /// Hashes of complete subtrees, in the order asked for.
    fn nodes<'a>(&'a self, tenant: &'a Tenant, nodes: &'a [Node]) -> Work<'a, Vec<Digest>>;

    /// What is known of each id, for the assessment of a lineage.
    fn lineage<'a>(&'a self, tenant: &'a Tenant, ids: &'a [String]) -> Work<'a, Vec<Dependency>>;

    /// Keeps a signed checkpoint, so that `verify` finds a tail that was cut off behind it. One that is kept stays:
    /// a second of the same size is not taken.
    fn keep_checkpoint<'a>(&'a self, tenant: &'a Tenant, size: u64, note: &'a str) -> Work<'a, ()>;

    fn checkpoints<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, Vec<String>>;

    /// Refused documents, newest first: a tenant's, or for the operator all, also those that name no tenant.
    fn dead_letters<'a>(&'a self, tenant: Option<&'a Tenant>, limit: usize) -> Work<'a, Vec<DeadLetter>>;

    /// Whose ledgers there are; for the operator of the store.
    fn tenants(&self) -> Work<'_, Vec<Tenant>>;

    /// The name of this store in the origins of its logs.
    fn store_id(&self) -> &str;

    /// Returns when whatever could be read before is durable, too. For who tells of it to somebody that goes on from there; of
    /// itself a journal may show an entry a moment before it is.
    fn settled(&self) -> Work<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}

/// The time of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreTime {
    /// The clock of the database, or of the file system that holds it.
    pub clock: Timestamp,
    /// When the tenant's last entry was recorded.
    pub last: Option<Timestamp>,
}

impl StoreTime {
    /// The time that the next entry would get: never before the last one.
    pub fn now(&self) -> Timestamp {
        self.last.map_or(self.clock, |last| last.max(self.clock))
    }
}

/// A stretch of a log, forwards from `from` or backwards from the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    /// First sequence number (forwards), or the one to stay below (backwards).
    pub from: u64,
    pub limit: usize,
    pub backwards: bool,
    /// Only entries of this type.
    pub kind: Option<String>,
}

impl Range {
    pub fn forwards(from: u64, limit: usize) -> Self {
        Self { from, limit, backwards: false, kind: None }
    }
}

/// What became of a submission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Created { id: String, seq: u64 },
    Idempotent { id: String, seq: u64 },
    Refused(Refusal),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    pub tenant: Option<String>,
    pub recorded_at: Timestamp,
    pub code: String,
    /// The refusal's message and violations as JSON text.
    pub refusal: String,
    pub document: Vec<u8>,
}

/// Why the journal could not answer. Never a verdict on the submission.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// The database cannot be reached or was closed; what was under way may or may not have been recorded.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The database holds something that this program did not write.
    #[error("the store is damaged: {0}")]
    Damaged(String),
    /// The journal is not what was recorded.
    #[error(transparent)]
    Tampered(Box<Bad>),
    /// The clock of this process is too far from the store's, which is the reference.
    #[error("{0}")]
    ClockSkew(String),
    /// The database was made by a newer program, or is no store at all.
    #[error("{0}")]
    Unusable(String),
}
