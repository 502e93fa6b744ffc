//! Between the folder and the object store behind it: packs that are not there yet are sent and marked, contents that are not
//! here are fetched and kept near. Called by `Folder`; it never removes anything from the object store.

use std::fs;
use std::io::Write;
use std::sync::Arc;

use actum_contract::blob::BlobError;
use actum_contract::digest::Digest;

use super::far::Content;
use super::pack::{self, Pack};
use super::{Behind, Folder, io_error};
use crate::crash;

impl Folder {
    /// Sends every pack that is not marked, whoever made it. A mark that is lost, or half written, costs only time.
    pub(super) fn send_all(&self) -> Result<(), BlobError> {
        let Some(behind) = &self.behind else { return Ok(()) };
        let folder = self.packs_path();
        for id in self.names(".idx")? {
            if self.is_sent(&id) {
                continue;
            }
            let Some(pack) = Pack::open(&folder, &id)?.map(Arc::new) else { continue };
            let contents = pack.entries().map(|(digest, place)| Content { digest, pack: Arc::clone(&pack), place });
            crash::point("blobs.sending");
            match behind.far.send(contents.collect()) {
                // Another batch has sent it meanwhile and joined it with others.
                Err(_) if !pack::index_name(&folder, &id).exists() => continue,
                sent => sent?,
            }
            crash::point("blobs.sent");
            self.mark_sent(&id)?;
            crash::point("blobs.marked");
        }
        Ok(())
    }

    /// Those of the contents that the object store behind this folder does not have, also if they are in this folder.
    pub fn missing_behind(&self, digests: &[Digest]) -> Result<Vec<Digest>, BlobError> {
        match &self.behind {
            Some(behind) => behind.far.missing(digests.to_vec()),
            None => Ok(Vec::new()),
        }
    }

    /// Whether the object store behind this folder has all of a pack. Without one behind it, nothing is sent.
    pub(super) fn is_sent(&self, id: &str) -> bool {
        let Some(behind) = &self.behind else { return false };
        fs::read(pack::mark_name(&self.packs_path(), id)).is_ok_and(|found| found == behind.far.mark().as_bytes())
    }

    pub(super) fn mark_sent(&self, id: &str) -> Result<(), BlobError> {
        let Some(behind) = &self.behind else { return Ok(()) };
        let path = pack::mark_name(&self.packs_path(), id);
        // Two processes may have sent the same pack.
        let aside = path.with_extension(format!("{}.tmp", uuid::Uuid::now_v7().simple()));
        let written = fs::write(&aside, behind.far.mark()).and_then(|()| fs::rename(&aside, &path));
        written.map_err(io_error("write", &path))
    }
}

impl Behind {
    /// Makes sure that a content is near. `lost` is what is wrong with it here, for when it is nowhere else.
    fn bring(&self, digest: Digest, lost: BlobError) -> Result<(), BlobError> {
        let (file, aside) = self.near.begin()?;
        let taken = self.far.take(digest, file);
        self.near.end(digest, &aside, taken.is_ok())?;
        match taken {
            Err(BlobError::Missing(_)) => Err(lost),
            taken => taken,
        }
    }

    pub(super) fn read(&self, digest: Digest, lost: BlobError) -> Result<Vec<u8>, BlobError> {
        if let Some(found) = self.near.read(digest)? {
            return Ok(found);
        }
        self.bring(digest, lost)?;
        self.near.read(digest)?.ok_or_else(|| BlobError::Damaged(digest, self.far.shown()))
    }

    pub(super) fn copy(&self, digest: Digest, into: &mut dyn Write, lost: BlobError) -> Result<u64, BlobError> {
        if let Some(copied) = self.near.copy(digest, into)? {
            return Ok(copied);
        }
        self.bring(digest, lost)?;
        self.near.copy(digest, into)?.ok_or_else(|| BlobError::Damaged(digest, self.far.shown()))
    }

    /// Brings many near at once.
    pub(super) fn fetch(&self, mut digests: Vec<Digest>) -> Result<(), BlobError> {
        digests.sort_unstable();
        digests.dedup();
        if digests.is_empty() {
            return Ok(());
        }
        let (near, done) = (Arc::clone(&self.near), Arc::clone(&self.near));
        self.far.take_all(digests, move |_| near.begin(), move |digest, aside, whole| done.end(digest, &aside, whole))
    }
}
