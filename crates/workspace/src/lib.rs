//! The file tree: freeze, stage, publish, undo, thaw.
//!
//! A workspace is a folder of the user's. Freezing turns it into a snapshot, a Merkle tree whose contents are kept
//! behind the port `Blobs`. A stage is a private copy of a snapshot. What was done in a stage is found (`seal`), and
//! applied to the workspace as a whole or not at all (`publish`), also across a crash. `docs/design/0004-workspace.md`
//! says why it is built so.
//!
//! Called by `cli`, later by `engine`. Never starts a program, never mounts, never reads a clock, never follows a link.

mod base;
mod beneath;
mod change;
mod copy;
mod crash;
mod error;
mod fit;
mod freeze;
mod ignored;
mod index;
mod journal;
mod link;
mod overlay;
mod patch;
mod path;
mod pending;
mod publisher;
mod record;
mod repository;
mod restage;
mod retain;
mod rule;
mod snapshot;
mod stage;
mod thaw;
mod transaction;
mod tree;
mod workspace;

pub use base::{BaseUsage, CopyProgress, RemovedBases, bases};
pub use beneath::OpenFolder;
pub use change::{Change, Rename, Verb, deltas, renames};
pub use copy::is_reflink_possible;
pub use crash::POINTS as CRASH_POINTS;
pub use error::{Conflict, Error, Result};
pub use fit::{Rebased, rebase};
pub use freeze::Frozen;
pub use journal::{Cause, Publication};
pub use link::{linked_paths, new_leaving_links, top_links};
pub use patch::{CompletePatch, complete_patch, patch};
pub use path::TreePath;
pub use pending::{PendingPublication, forget as forget_marker, pending};
pub use publisher::{PublishProcess, PublishReport, PublishRequest, Publisher, finish_publication, install_publisher};
pub use repository::steering_changes;
pub use restage::Edit;
pub use retain::{Kept, Limit, retain};
pub use rule::Rules;
pub use snapshot::Snapshot;
pub use stage::{FileView, Freshness, Mode, NewStage, OverlayView, Sealed, Stage, View};
pub use thaw::thaw_new;
pub use transaction::try_exchange;
pub use tree::{
    Kind, Node, contents as tree_contents, diff, empty as empty_tree, fetch, folder_bytes, is_whole, leaves, lookup,
    read_at_most,
};
pub use workspace::{Lock, LockHolder, Recovered, Workspace, is_own_folder, make_own_folder};
