//! Content by its digest: the port behind which contents are kept, in a local folder or an object store.
//!
//! Implemented in `store`, used by `workspace`, joined in `cli`. Declares only; reads and writes nothing itself.

use std::fmt::Debug;
use std::io::{self, Read, Write};

use crate::digest::Digest;

/// A place that keeps contents, each under its BLAKE3. What is stored never changes.
pub trait Blobs: Send + Sync + Debug {
    fn contains(&self, digest: Digest) -> Result<bool, BlobError>;

    /// The whole content, checked against its digest. For contents that fit into memory.
    fn read(&self, digest: Digest) -> Result<Vec<u8>, BlobError>;

    /// Writes the content out piece by piece and returns its length. If it turns out to be damaged, an error says so
    /// after pieces have been written: the receiver throws them away.
    fn copy(&self, digest: Digest, into: &mut dyn Write) -> Result<u64, BlobError>;

    /// Brings contents near that will be asked for soon. Those that are here already cost nothing, and one that is unknown is
    /// no error.
    fn fetch(&self, _digests: &[Digest]) -> Result<(), BlobError> {
        Ok(())
    }

    /// Begins to store. Until the batch is dropped, nothing stored before or in it is swept away: whoever needs the
    /// contents to stay makes his reference to them durable first.
    fn batch(&self) -> Result<Box<dyn Batch + '_>, BlobError>;
}

/// Contents on their way in, from many threads at once. None of them counts before `commit` has returned.
pub trait Batch: Send + Sync {
    /// As long as this number is the same, everything that was stored under it is stored still.
    fn generation(&self) -> u64;

    /// Stores a content whose digest is known; one that is there already costs nothing.
    fn put(&self, digest: Digest, bytes: &[u8]) -> Result<(), BlobError>;

    /// Stores a content even if it is there, because what is there is damaged.
    fn replace(&self, digest: Digest, bytes: &[u8]) -> Result<(), BlobError>;

    /// Stores a content too large for memory; returns its digest and length. `anew`: also if what is there is damaged.
    fn put_stream(&self, from: &mut dyn Read, anew: bool) -> Result<(Digest, u64), BlobError>;

    /// Makes everything put so far durable.
    fn commit(&self) -> Result<(), BlobError>;
}

#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    #[error("content {0} is not stored")]
    Missing(Digest),
    #[error("content {0} is damaged in {1}")]
    Damaged(Digest, String),
    #[error("{0} was made by a newer version of this program")]
    Newer(String),
    /// The place they are in is away: the same may work later, and nothing is lost.
    #[error("{0}; try again later")]
    Unavailable(String),
    /// The place they are in says no, and will say so again.
    #[error("{0}")]
    Refused(String),
    #[error("cannot {doing} {place}: {source}")]
    Io { doing: &'static str, place: String, source: io::Error },
}
