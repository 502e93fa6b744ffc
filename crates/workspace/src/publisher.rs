//! Carrying a committed transaction to its end: in this process, or in one of its own that survives its caller.
//!
//! The port [`Publisher`] starts such a process before the transaction is committed, so that from the commit on there is
//! always a process to finish it. `cli` installs the real one; without it, as in unit tests, the caller does the work.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::OnceLock;

use actum_contract::folder::FolderId;
use serde::{Deserialize, Serialize};

use crate::beneath::OpenFolder;
use crate::error::{Conflict, Error, Result};
use crate::path::TreePath;
use crate::transaction::{self, Outcome, folder_of};
use crate::workspace::take_over_lock;

/// Starts processes that finish publications.
pub trait Publisher: Send + Sync {
    /// Starts one for the publication that is about to be committed. It holds `lock` until it ends.
    fn start(&self, request: &PublishRequest, lock: BorrowedFd<'_>) -> io::Result<Box<dyn PublishProcess>>;
}

/// A process that is ready to finish one publication.
pub trait PublishProcess {
    /// Lets it begin and waits for its end. None if it died.
    fn finish(self: Box<Self>) -> io::Result<Option<PublishReport>>;

    /// The publication was not committed.
    fn abandon(self: Box<Self>);
}

/// Which publication is to be finished.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishRequest {
    /// The folder of the workspace, as bytes: a path need not be text.
    root: Vec<u8>,
    /// Which folder that was when the publication began.
    folder: FolderId,
    id: String,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PublishReport {
    Applied,
    TakenBack { paths: Vec<Vec<u8>>, in_the_way: Vec<Vec<u8>>, kept: Vec<String> },
    Failed { message: String, errno: Option<i32> },
}

static PUBLISHER: OnceLock<Box<dyn Publisher>> = OnceLock::new();

/// Lets publications be finished by processes of their own from now on. The first call counts.
pub fn install_publisher(publisher: Box<dyn Publisher>) {
    let _ = PUBLISHER.set(publisher);
}

/// The work of such a process. Nothing if the publication was never committed.
pub fn finish_publication(request: &PublishRequest) -> PublishReport {
    let root = PathBuf::from(bytes_to_os(&request.root));
    let opened = OpenFolder::anchor(&root).and_then(|root| root.expect(Some(request.folder)));
    let finished = opened.and_then(|root| {
        let folder = folder_of(&root).join(&request.id);
        match folder.join("journal").exists() {
            true => {
                take_over_lock(&root);
                transaction::finish(&root, &folder).map(|_| true)
            }
            false => Ok(false),
        }
    });
    match finished {
        Ok(true) => PublishReport::Applied,
        Ok(false) => PublishReport::TakenBack { paths: Vec::new(), in_the_way: Vec::new(), kept: Vec::new() },
        Err(Error::Conflict(Conflict { paths, in_the_way, kept })) => {
            let bytes = |paths: Vec<TreePath>| paths.iter().map(|path| path.as_bytes().to_vec()).collect();
            PublishReport::TakenBack { paths: bytes(paths), in_the_way: bytes(in_the_way), kept }
        }
        Err(e) => PublishReport::Failed { errno: e.errno(), message: e.to_string() },
    }
}

fn bytes_to_os(bytes: &[u8]) -> &std::ffi::OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(bytes)
}

/// A process that will finish a publication, if processes are used here.
pub(crate) fn start(root: &OpenFolder, id: &str, lock: BorrowedFd<'_>) -> Result<Option<Box<dyn PublishProcess>>> {
    let Some(publisher) = PUBLISHER.get() else { return Ok(None) };
    let root_bytes = std::os::unix::ffi::OsStrExt::as_bytes(root.path().as_os_str()).to_vec();
    let request = PublishRequest { root: root_bytes, folder: root.id()?, id: id.to_owned() };
    let started = publisher.start(&request, lock);
    started.map(Some).map_err(crate::error::at("start the process that publishes to", root.path()))
}

/// Lets the process finish what was committed. If it dies, the caller does its work: it holds the lock.
pub(crate) fn finish(root: &OpenFolder, id: &str, process: Box<dyn PublishProcess>) -> Result<()> {
    let read = |paths: Vec<Vec<u8>>| paths.iter().filter_map(|path| TreePath::new(path)).collect();
    match process.finish() {
        Ok(Some(PublishReport::Applied)) => Ok(()),
        Ok(Some(PublishReport::TakenBack { paths, in_the_way, kept })) => {
            Err(Error::Conflict(Conflict { paths: read(paths), in_the_way: read(in_the_way), kept }))
        }
        Ok(Some(PublishReport::Failed { message, errno })) => Err(Error::Publisher {
            message,
            source: errno.map_or_else(|| io::Error::other("it failed"), io::Error::from_raw_os_error),
        }),
        Ok(None) | Err(_) => match transaction::resume(root, &folder_of(root).join(id))? {
            Outcome::Applied(_) | Outcome::Done => Ok(()),
            Outcome::TakenBack(conflict) => Err(Error::Conflict(conflict.unwrap_or_default())),
        },
    }
}
