//! Blobs in memory, with the promises of the port and nothing else, and what every place for contents must do.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::sync::{Arc, Mutex, MutexGuard};

use actum_contract::blob::{Batch, BlobError, Blobs};
use actum_contract::digest::Digest;

/// A clone is another handle on the same contents.
#[derive(Debug, Default, Clone)]
pub struct MemoryBlobs(Arc<Mutex<HashMap<Digest, Vec<u8>>>>);

impl MemoryBlobs {
    fn contents(&self) -> MutexGuard<'_, HashMap<Digest, Vec<u8>>> {
        self.0.lock().expect("no test panics while it holds this")
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

    fn replace(&self, digest: Digest, bytes: &[u8]) -> Result<(), BlobError> {
        self.put(digest, bytes)
    }

    fn put_stream(&self, from: &mut dyn Read, _anew: bool) -> Result<(Digest, u64), BlobError> {
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

/// What every place for contents must do. `reopened` is another handle on the same place.
pub fn conformance(blobs: &dyn Blobs, reopened: &dyn Fn() -> Box<dyn Blobs>) {
    let (one, two, large) = (b"one".to_vec(), Vec::new(), vec![7; 3_000_000]);
    let digest = |bytes: &[u8]| Digest::blake3(bytes);
    assert!(matches!(blobs.read(digest(&one)), Err(BlobError::Missing(d)) if d == digest(&one)));
    assert!(!blobs.contains(digest(&one)).expect("an answer"));

    let batch = blobs.batch().expect("a batch");
    for content in [&one, &two, &one] {
        batch.put(digest(content), content).expect("it is taken");
    }
    let streamed = batch.put_stream(&mut large.as_slice(), false).expect("it is taken");
    assert_eq!(streamed, (digest(&large), large.len() as u64));
    assert!(!reopened().contains(digest(&one)).expect("an answer"), "nothing counts before commit");
    batch.commit().expect("it is durable");
    batch.commit().expect("nothing more to do");
    for content in [&one, &two, &large] {
        for place in [blobs, &*reopened()] {
            assert_eq!(&place.read(digest(content)).expect("it is there"), content);
            let mut copy = Vec::new();
            assert_eq!(place.copy(digest(content), &mut copy).expect("it is there"), content.len() as u64);
            assert_eq!(&copy, content);
        }
    }
    // After a commit the same batch goes on.
    batch.put(digest(b"later"), b"later").expect("it is taken");
    batch.commit().expect("it is durable");
    drop(batch);
    assert_eq!(reopened().read(digest(b"later")).expect("it is there"), b"later");

    let dropped = blobs.batch().expect("a batch");
    dropped.put(digest(b"never"), b"never").expect("it is taken");
    drop(dropped);
    assert!(!reopened().contains(digest(b"never")).expect("an answer"), "a batch that is dropped leaves nothing");
}
