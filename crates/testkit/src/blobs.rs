//! Blobs in memory, with the promises of the port and nothing else. Counts what is put, so that a test can tell.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::sync::{Mutex, MutexGuard};

use actum_contract::blob::{Batch, BlobError, Blobs};
use actum_contract::digest::Digest;

#[derive(Debug, Default)]
pub struct MemoryBlobs(Mutex<HashMap<Digest, Vec<u8>>>);

impl MemoryBlobs {
    fn contents(&self) -> MutexGuard<'_, HashMap<Digest, Vec<u8>>> {
        self.0.lock().expect("no test panics while it holds this")
    }

    /// How many contents there are.
    pub fn count(&self) -> usize {
        self.contents().len()
    }
}

impl Blobs for MemoryBlobs {
    fn contains(&self, digest: Digest) -> Result<bool, BlobError> {
        Ok(self.contents().contains_key(&digest))
    }

    fn read(&self, digest: Digest) -> Result<Vec<u8>, BlobError> {
        self.contents().get(&digest).cloned().ok_or(BlobError::Missing(digest))
    }

    fn copy(&self, digest: Digest, into: &mut dyn Write) -> Result<u64, BlobError> {
        let content = self.read(digest)?;
        let failed = |source| BlobError::Io { doing: "write out", place: digest.to_hex(), source };
        into.write_all(&content).map_err(failed)?;
        Ok(content.len() as u64)
    }

    fn batch(&self) -> Result<Box<dyn Batch + '_>, BlobError> {
        Ok(Box::new(Pending { blobs: self, contents: Mutex::default() }))
    }
}

/// Contents that do not count yet.
struct Pending<'a> {
    blobs: &'a MemoryBlobs,
    contents: Mutex<HashMap<Digest, Vec<u8>>>,
}

impl Batch for Pending<'_> {
    fn generation(&self) -> u64 {
        0
    }

    fn put(&self, digest: Digest, bytes: &[u8]) -> Result<(), BlobError> {
        assert_eq!(Digest::blake3(bytes), digest, "a content must be stored under its own digest");
        self.contents.lock().expect("no panic").insert(digest, bytes.to_vec());
        Ok(())
    }

    fn put_stream(&self, from: &mut dyn Read) -> Result<(Digest, u64), BlobError> {
        let mut bytes = Vec::new();
        let failed = |source| BlobError::Io { doing: "read", place: "a stream".to_owned(), source };
        from.read_to_end(&mut bytes).map_err(failed)?;
        let digest = Digest::blake3(&bytes);
        self.put(digest, &bytes)?;
        Ok((digest, bytes.len() as u64))
    }

    fn commit(&self) -> Result<(), BlobError> {
        let new = std::mem::take(&mut *self.contents.lock().expect("no panic"));
        self.blobs.contents().extend(new);
        Ok(())
    }
}
