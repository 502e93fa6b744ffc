//! Single requests to an object store: what an error means, asking again, putting and getting one content with its digest
//! checked on the way. Used by `Far` alone, on its runtime.

use std::fs::File;
use std::future::Future;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use actum_contract::blob::BlobError;
use actum_contract::digest::{Blake3, Digest};
use futures_util::TryStreamExt as _;
use object_store::{Error, ObjectStoreExt as _, PutPayload, WriteMultipart};

use super::Far;
use crate::blob::pack::{Pack, Place};

/// Contents up to here are put in one request; larger ones in pieces of this size.
const WHOLE_BYTES_MAX: usize = 8 << 20;
/// Pieces of one content on their way at once.
const PIECES_AT_ONCE: usize = 2;
/// Contents from here on are put only if they are not there.
const ASKED_BYTES_MIN: u64 = 256 << 10;
/// One that was put longer ago than this is put again, so that no sweep finds it old.
const FRESH_MS: i64 = 12 * 60 * 60 * 1_000;
/// First wait after a failure; it doubles.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How often something wrong is fetched.
const WRONG_MAX: u32 = 2;
/// Letters of an error of somebody else that are shown.
const WHY_CHARS_MAX: usize = 300;

/// Why something was not done.
#[derive(Debug)]
pub(super) enum Trouble {
    Missing,
    Damaged(Digest),
    /// It may work later.
    Away(String),
    /// It will not.
    Refused(String),
    /// Not the object store's fault.
    Here(BlobError),
}

/// A content on its way out.
#[derive(Debug)]
pub(in crate::blob) struct Content {
    pub digest: Digest,
    pub pack: Arc<Pack>,
    pub place: Place,
}

impl Content {
    pub(super) fn bytes(&self) -> u64 {
        self.place.bytes
    }
}

/// The words of an error, shortened; those that come with it are often a whole page.
fn why(e: &Error) -> String {
    let text = e.to_string();
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match flat.char_indices().nth(WHY_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &flat[..end]),
        None => flat,
    }
}

/// The status of an answer, read from the words: the error has no other way to say it.
fn status_of(text: &str) -> Option<u16> {
    let (_, after) = text.split_once("status code: ")?;
    after.get(..3)?.parse().ok()
}

impl Far {
    fn trouble(&self, e: &Error) -> Trouble {
        let text = why(e);
        match e {
            // Where the folder itself is gone, nothing is known about what lies in it.
            Error::NotFound { .. } if self.line.folder.as_ref().is_some_and(|folder| !folder.is_dir()) => {
                Trouble::Away("its folder is not there".to_owned())
            }
            Error::NotFound { .. } => {
                let all = e.to_string();
                let whole = ["NoSuchBucket", "ContainerNotFound", "bucket does not exist"];
                match whole.iter().any(|word| all.contains(word)) {
                    true => Trouble::Refused(format!("there is no such bucket or container: {text}")),
                    false => Trouble::Missing,
                }
            }
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
                Trouble::Refused(format!("access is denied, check the keys: {text}"))
            }
            Error::NotSupported { .. } | Error::NotImplemented { .. } | Error::InvalidPath { .. } => {
                Trouble::Refused(text)
            }
            other => {
                let all = other.to_string();
                let is_final = match status_of(&all) {
                    Some(408 | 429) => false,
                    Some(status) => (400..500).contains(&status),
                    None => all.contains("redirect without LOCATION") || is_local_refusal(other),
                };
                if is_final { Trouble::Refused(text) } else { Trouble::Away(text) }
            }
        }
    }

    /// Asks again as long as it may still be answered.
    pub(super) async fn insist<T, F>(&self, mut ask: impl FnMut() -> F) -> Result<T, Trouble>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        let (mut failing, mut pause) = (None::<Instant>, PAUSE_MIN);
        loop {
            let trouble = match ask().await {
                Ok(answer) => return Ok(answer),
                Err(e) => self.trouble(&e),
            };
            let since = *failing.get_or_insert_with(Instant::now);
            if !matches!(trouble, Trouble::Away(_)) || since.elapsed() >= self.line.patience {
                return Err(trouble);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Puts one content there. The same twice does no harm.
    pub(super) async fn put(&self, content: &Content) -> Result<(), Trouble> {
        if content.bytes() >= ASKED_BYTES_MIN && self.has_fresh(content).await? {
            return Ok(());
        }
        let name = self.name(content.digest);
        if content.bytes() <= WHOLE_BYTES_MAX as u64 {
            let bytes = content.pack.read(content.digest, content.place).map_err(Trouble::Here)?;
            let payload = PutPayload::from(bytes);
            return self.insist(|| self.line.store.put(&name, payload.clone())).await.map(drop);
        }
        // What is damaged here would be found out only after it was sent.
        content.pack.copy(content.digest, content.place, &mut std::io::sink()).map_err(Trouble::Here)?;
        self.insist(|| async {
            let here = |e| Error::Generic { store: "pack", source: Box::new(e) };
            let (mut from, mut piece) = (content.pack.reader(content.place).map_err(here)?, vec![0; 1 << 20]);
            let mut upload =
                WriteMultipart::new_with_chunk_size(self.line.store.put_multipart(&name).await?, WHOLE_BYTES_MAX);
            loop {
                let read = match from.read(&mut piece) {
                    Ok(read) => read,
                    Err(e) => {
                        drop(upload.abort().await);
                        return Err(Error::Generic { store: "pack", source: Box::new(e) });
                    }
                };
                if read == 0 {
                    return upload.finish().await.map(drop);
                }
                if let Err(e) = upload.wait_for_capacity(PIECES_AT_ONCE).await {
                    drop(upload.abort().await);
                    return Err(e);
                }
                upload.write(&piece[..read]);
            }
        })
        .await
    }

    async fn has_fresh(&self, content: &Content) -> Result<bool, Trouble> {
        let name = self.name(content.digest);
        match self.insist(|| self.line.store.head(&name)).await {
            Ok(found) => {
                let age_ms = jiff::Timestamp::now().as_millisecond() - found.last_modified.timestamp_millis();
                Ok(found.size == content.bytes() && age_ms < FRESH_MS)
            }
            Err(Trouble::Missing) => Ok(false),
            Err(trouble) => Err(trouble),
        }
    }

    /// Writes one content to a file that is empty; all of it, or an error.
    pub(super) async fn get(&self, digest: Digest, into: &File) -> Result<(), Trouble> {
        let name = self.name(digest);
        for _ in 0..WRONG_MAX {
            // An answer that breaks off is asked for again from its beginning.
            let found = self.insist(|| self.copy(&name, into)).await?.map_err(Trouble::Here)?;
            if found == digest {
                return Ok(());
            }
        }
        Err(Trouble::Damaged(digest))
    }

    /// The digest of what was written; the inner error is that of the file.
    async fn copy(
        &self,
        name: &object_store::path::Path,
        mut into: &File,
    ) -> object_store::Result<Result<Digest, BlobError>> {
        let failed = |source| BlobError::Io { doing: "keep", place: format!("content {name}"), source };
        if let Err(e) = into.set_len(0).and_then(|()| into.seek(SeekFrom::Start(0)).map(drop)) {
            return Ok(Err(failed(e)));
        }
        let mut hasher = Blake3::default();
        let mut pieces = self.line.store.get(name).await?.into_stream();
        while let Some(piece) = pieces.try_next().await? {
            hasher.update(&piece);
            if let Err(e) = into.write_all(&piece) {
                return Ok(Err(failed(e)));
            }
        }
        Ok(Ok(hasher.finish()))
    }
}

/// What a folder says that will not change by waiting.
fn is_local_refusal(e: &Error) -> bool {
    let mut source = std::error::Error::source(e);
    while let Some(inner) = source {
        if let Some(io) = inner.downcast_ref::<std::io::Error>() {
            return matches!(io.kind(), std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem);
        }
        source = inner.source();
    }
    false
}
