//! An object store behind the local folder: S3 and what speaks like it, Google's, Azure's, or a folder that several machines
//! have mounted. `Folder` sends to it and takes from it; the program's other parts never see it.
//!
//! ```text
//! PREFIX/SHELF/ab/abcd…   one object for each content, under its BLAKE3
//! ```
//!
//! It believes nothing it is given: what comes back is compared with its digest. It never deletes, except in `sweep`.
//! Outside it blocks; inside, requests run many at once on a small runtime of its own.

mod address;
mod talk;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use actum_contract::blob::BlobError;
use actum_contract::digest::Digest;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _};
use tokio::runtime::Runtime;

pub use address::BadFar;
pub(super) use talk::Content;
use talk::Trouble;

/// How long something that does not answer is asked again.
const PATIENCE: Duration = Duration::from_secs(90);
/// How long a question takes at most whose answer is only for a person.
const PROBE_PATIENCE: Duration = Duration::from_secs(5);
/// Small contents on their way at once.
const SMALL_AT_ONCE: usize = 32;
/// Others.
const LARGE_AT_ONCE: usize = 4;
/// Up to here a content is small.
const SMALL_BYTES_MAX: u64 = 512 << 10;
/// What has not even lain there for this long may be referred to by something that is not yet written.
pub const SWEEP_AGE_MIN: Duration = Duration::from_secs(24 * 60 * 60);
/// Where contents lie, unless it is said otherwise.
const SHELF: &str = "blobs";

/// An object store by its URL, and the shelf in it. Cheap to copy: copies share their connections.
#[derive(Clone)]
pub struct Far {
    line: Arc<Line>,
    /// Above the contents.
    shelf: String,
}

struct Line {
    store: Arc<dyn ObjectStore>,
    prefix: String,
    shown: String,
    folder: Option<PathBuf>,
    shared: bool,
    patience: Duration,
    /// Nothing only while it is being dropped.
    runtime: Option<Runtime>,
}

impl Drop for Line {
    fn drop(&mut self) {
        // Waiting for it is not allowed where tasks run, and nobody waits for an answer any more.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for Far {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Far").field("shown", &self.shown()).finish_non_exhaustive()
    }
}

/// What a sweep of an object store removed, or would have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FarSwept {
    pub contents: u64,
    pub bytes: u64,
    /// What is left there.
    pub kept: u64,
}

/// When this process was asked to end.
static STOPPED_AT: OnceLock<Instant> = OnceLock::new();
/// How often a request that waits looks whether the process has to end, and how long it may go on then.
const STOP_ASKED_EVERY: Duration = Duration::from_millis(250);
const STOP_PATIENCE: Duration = Duration::from_secs(4);

/// Lets requests to object stores end soon: this process was asked to end. What they were for is put off.
pub fn stop_waiting() {
    let _ = STOPPED_AT.set(Instant::now());
}

impl Far {
    /// Makes ready to speak to it; asks nothing yet. `options` are what stands beside the URL, secrets included.
    pub fn open(url: &str, options: &[(String, String)]) -> Result<Self, BadFar> {
        Self::open_with(url, options, PATIENCE)
    }

    fn open_with(url: &str, options: &[(String, String)], patience: Duration) -> Result<Self, BadFar> {
        let address::Reached { store, prefix, shown, folder, shared } = address::reach(url, options)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("far")
            .enable_all()
            .build()
            .map_err(|e| BadFar(format!("cannot start a thread for the object store: {e}")))?;
        let line = Line { store, prefix, shown, folder, shared, patience, runtime: Some(runtime) };
        Ok(Self { line: Arc::new(line), shelf: SHELF.to_owned() })
    }

    /// The same object store, another shelf in it: `TENANT/traces`. Nothing that lies on one is found on another.
    #[must_use]
    pub fn within(&self, shelf: &str) -> Self {
        Self { line: Arc::clone(&self.line), shelf: shelf.to_owned() }
    }

    /// Where it is, without secrets.
    pub fn shown(&self) -> String {
        self.line.shown.clone()
    }

    /// Whether other machines find there what this one has put there.
    pub fn is_shared(&self) -> bool {
        self.line.shared
    }

    /// What marks a pack as sent here.
    pub(super) fn mark(&self) -> String {
        format!("{} {}\n", self.line.shown, self.shelf)
    }

    fn base(&self) -> Path {
        Path::from(format!("{}/{}", self.line.prefix, self.shelf))
    }

    fn name(&self, digest: Digest) -> Path {
        let hex = digest.to_hex();
        self.base().join(&hex[..2]).join(hex)
    }

    /// Works on the runtime and waits here: whoever calls may himself be a task somewhere, which cannot run another runtime.
    fn wait<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Trouble>> + Send + 'static,
    ) -> Result<T, Trouble> {
        let gone = || Trouble::Away("its thread has ended".to_owned());
        let (answer, answered) = mpsc::sync_channel(1);
        let runtime = self.line.runtime.as_ref().ok_or_else(gone)?;
        // Nobody listens any more only if whoever asked is gone.
        drop(runtime.spawn(async move { drop(answer.send(work.await)) }));
        loop {
            match answered.recv_timeout(STOP_ASKED_EVERY) {
                Ok(answer) => return answer,
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err(gone()),
                // A process that has to end does not wait for an object store that does not answer.
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    if STOPPED_AT.get().is_some_and(|at| at.elapsed() >= STOP_PATIENCE) {
                        return Err(Trouble::Away("this process was asked to end".to_owned()));
                    }
                }
            }
        }
    }

    fn failed(&self, digest: Digest) -> impl FnOnce(Trouble) -> BlobError {
        let shown = self.shown();
        move |trouble| match trouble {
            Trouble::Missing => BlobError::Missing(digest),
            Trouble::Damaged(digest) => BlobError::Damaged(digest, shown),
            Trouble::Away(why) => BlobError::Unavailable(format!("the object store {shown} does not answer: {why}")),
            Trouble::Refused(why) => BlobError::Refused(format!("the object store {shown} refuses: {why}")),
            Trouble::Here(e) => e,
        }
    }

    /// Whether a content is there. Its length is all that is looked at.
    pub(super) fn contains(&self, digest: Digest) -> Result<bool, BlobError> {
        let (far, name) = (self.clone(), self.name(digest));
        match self.wait(async move { far.insist(|| far.line.store.head(&name)).await.map(drop) }) {
            Ok(()) => Ok(true),
            Err(Trouble::Missing) => Ok(false),
            Err(trouble) => Err(self.failed(digest)(trouble)),
        }
    }

    /// Those of the contents that are not there.
    pub(super) fn missing(&self, digests: Vec<Digest>) -> Result<Vec<Digest>, BlobError> {
        let far = self.clone();
        let asked = self.wait(async move {
            let asking = digests.into_iter().map(|digest| {
                let (far, name) = (&far, far.name(digest));
                async move {
                    match far.insist(|| far.line.store.head(&name)).await {
                        Ok(_) => Ok(None),
                        Err(Trouble::Missing) => Ok(Some(digest)),
                        Err(trouble) => Err(trouble),
                    }
                }
            });
            let asking: Vec<_> = asking.collect();
            stream::iter(asking).buffer_unordered(SMALL_AT_ONCE).try_collect::<Vec<Option<Digest>>>().await
        });
        let mut missing: Vec<Digest> = asked.map_err(self.failed(Digest::ZERO))?.into_iter().flatten().collect();
        missing.sort_unstable();
        Ok(missing)
    }

    /// Puts contents there; returns when all of them are.
    pub(super) fn send(&self, contents: Vec<Content>) -> Result<(), BlobError> {
        let far = self.clone();
        let (small, large): (Vec<_>, Vec<_>) = contents.into_iter().partition(|one| one.bytes() <= SMALL_BYTES_MAX);
        let sent = self.wait(async move {
            for (contents, at_once) in [(small, SMALL_AT_ONCE), (large, LARGE_AT_ONCE)] {
                let sending = contents.iter().map(|content| far.put(content));
                stream::iter(sending.collect::<Vec<_>>()).buffer_unordered(at_once).try_collect::<Vec<()>>().await?;
            }
            Ok(())
        });
        sent.map_err(self.failed(Digest::ZERO))
    }

    /// Writes a content to a file, if it is there and is what its digest says.
    pub(super) fn take(&self, digest: Digest, into: std::fs::File) -> Result<(), BlobError> {
        let far = self.clone();
        self.wait(async move { far.get(digest, &into).await }).map_err(self.failed(digest))
    }

    /// Many at once. `into` makes the file for one, `done` takes it over. What is not there is passed over.
    pub(super) fn take_all(
        &self,
        digests: Vec<Digest>,
        into: impl Fn(Digest) -> Result<(std::fs::File, PathBuf), BlobError> + Send + Sync + 'static,
        done: impl Fn(Digest, PathBuf, bool) -> Result<(), BlobError> + Send + Sync + 'static,
    ) -> Result<(), BlobError> {
        let far = self.clone();
        let taken = self.wait(async move {
            let taking = digests.into_iter().map(|digest| {
                let (far, into, done) = (&far, &into, &done);
                async move {
                    let (file, aside) = into(digest).map_err(Trouble::Here)?;
                    let got = far.get(digest, &file).await;
                    done(digest, aside, got.is_ok()).map_err(Trouble::Here)?;
                    match got {
                        // Whoever needs it is told when he reads it.
                        Err(Trouble::Missing | Trouble::Damaged(_)) => Ok(()),
                        other => other,
                    }
                }
            });
            stream::iter(taking.collect::<Vec<_>>()).buffer_unordered(SMALL_AT_ONCE).try_collect::<Vec<()>>().await?;
            Ok(())
        });
        taken.map_err(self.failed(Digest::ZERO))
    }

    /// Puts something there, reads it and removes it again: whether this object store can be used.
    pub fn probe(&self) -> Result<(), BlobError> {
        let name = self.base().join(format!("probe-{}", uuid::Uuid::now_v7().simple()));
        let store = Arc::clone(&self.line.store);
        let (far, brief) = (self.clone(), PROBE_PATIENCE);
        let tried = self.wait(async move {
            let bytes = b"actum".as_slice();
            let asked = async {
                far.insist(|| store.put(&name, bytes.into())).await?;
                let found = far.insist(|| async { store.get(&name).await?.bytes().await }).await?;
                far.insist(|| store.delete(&name)).await?;
                Ok(found == bytes)
            };
            match tokio::time::timeout(brief, asked).await {
                Ok(Ok(true)) => Ok(()),
                Ok(Ok(false)) => Err(Trouble::Refused("it gives back something else than was put there".to_owned())),
                Ok(Err(Trouble::Missing)) => Err(Trouble::Refused("what was put there is not there".to_owned())),
                Ok(Err(trouble)) => Err(trouble),
                Err(_) => Err(Trouble::Away(format!("no answer within {} seconds", brief.as_secs()))),
            }
        });
        tried.map_err(self.failed(Digest::ZERO))
    }

    /// Removes what is not to be kept and has lain there for long enough. Nothing locks an object store: `keep` has to know
    /// what every machine refers to. `dry`: only counts.
    pub fn sweep(&self, keep: &dyn Fn(Digest) -> bool, older_than: Duration, dry: bool) -> Result<FarSwept, BlobError> {
        let (far, base) = (self.clone(), self.base());
        let listed =
            self.wait(async move { far.insist(|| far.line.store.list(Some(&base)).try_collect::<Vec<_>>()).await });
        let age_ms = i64::try_from(older_than.max(SWEEP_AGE_MIN).as_millis()).unwrap_or(i64::MAX);
        let before_ms = jiff::Timestamp::now().as_millisecond().saturating_sub(age_ms);
        let (mut swept, mut dead) = (FarSwept::default(), Vec::new());
        for object in listed.map_err(self.failed(Digest::ZERO))? {
            // What has another name is not ours.
            let Some(digest) = object.location.filename().and_then(Digest::from_hex) else { continue };
            if object.last_modified.timestamp_millis() >= before_ms || keep(digest) {
                swept.kept += 1;
                continue;
            }
            swept.contents += 1;
            swept.bytes += object.size;
            dead.push(object.location);
        }
        if dry {
            return Ok(swept);
        }
        let far = self.clone();
        let removed = self.wait(async move {
            let removing = dead.iter().map(|name| async {
                match far.insist(|| far.line.store.delete(name)).await {
                    Err(Trouble::Missing) => Ok(()),
                    other => other,
                }
            });
            stream::iter(removing.collect::<Vec<_>>()).buffer_unordered(SMALL_AT_ONCE).try_collect::<Vec<()>>().await?;
            Ok(())
        });
        removed.map_err(self.failed(Digest::ZERO))?;
        Ok(swept)
    }
}
