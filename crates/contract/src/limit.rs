//! Every bound of the system that is not part of a contract, named with its unit. Read by all crates.

/// Largest integer that survives a double unchanged; canonical JSON refuses anything beyond it, either way.
pub const INTEGER_SAFE_MAX: u64 = (1 << 53) - 1;

/// Nesting that the JSON reader follows before it refuses a document.
pub const JSON_DEPTH_MAX: usize = 127;

/// One ledger entry as it arrives, in bytes of JSON text.
pub const EVENT_BYTES_MAX: usize = 1 << 20;

/// A document handed to `canon` or to a configuration reader.
pub const DOCUMENT_BYTES_MAX: usize = 64 << 20;

/// Dependencies one entry may name.
pub const LINEAGE_IDS_MAX: usize = 1_000;

/// Tenant, robot and execution names, and ids that an entry brings along.
pub const NAME_BYTES_MAX: usize = 256;
pub const ENTRY_ID_BYTES_MAX: usize = 128;

/// How far a producer's clock may run ahead of ours.
pub const CLOCK_SKEW_MAX_SECONDS: i64 = 300;

/// How far the clock of a process that executes runs may differ from the store's, which is the reference. Below half of
/// the shortest lease, so that a lease means the same to both.
pub const RUN_CLOCK_SKEW_MAX_MS: i64 = 5_000;

/// Entries that one transaction of the store takes together, and their size; whichever is reached first.
pub const BATCH_ENTRIES_MAX: usize = 256;
pub const BATCH_BYTES_MAX: usize = 8 << 20;

/// Entries on one page of a list, and their size; whichever is reached first.
pub const PAGE_ENTRIES_MAX: usize = 1_000;
pub const PAGE_BYTES_MAX: usize = 8 << 20;

/// What is kept of a refused document that is not even JSON.
pub const DEAD_LETTER_BYTES_MAX: usize = 64 << 10;
