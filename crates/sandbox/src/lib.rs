//! Other people's code: the cell it runs in, what it sees, what it may use, and its way out.
//!
//! A `Cell` says what is wanted; a `Spawner` builds it and starts the program; the report says how it ended and by what
//! each limit was kept. Joined in `cli`, whose binary is also every helper (`entry`). Decides nothing about who may run
//! what: that was agreed before.

mod capture;
mod cell;
mod census;
mod cgroup;
mod channel;
mod collect;
mod detached;
mod egress;
mod entry;
mod init;
mod overlay;
mod put;
mod root;
mod seccomp;
mod session;
mod slot;
mod sockets;
mod spawner;
mod sys;
mod wall;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

pub use capture::{Captured, Pipes, Room, Stream, Watched, watch};
pub use cell::{Access, Cell, Ended, Grant, Identity, Kept, Limits, Network, Report, Source, Used, Wall, probe_cell};
pub use collect::{
    find_program, make_beneath, move_beneath, open_beneath, open_unlinked, open_up, path_of, read_beneath,
};
pub use detached::{Detached, serve as serve_detached};
pub use egress::{Credential, Credentials, Decision, Egress, Log, Rules};
pub use entry::{entry, mount_for_this_process, not_started};
pub use init::PROXY_PORT;
pub use overlay::{InnerMount, Layers, Unavailable, Way, is_in_use, probe, remedy};
pub use put::{
    link_beneath, list_beneath, make_folder_beneath, put_folder, put_in_place, remove_all_beneath, remove_beneath,
    set_mode_beneath, symlink_beneath, write_beneath,
};
pub use root::is_without_overlay;
pub use session::Session;
pub use spawner::{Ahead, Files, Listeners, News, Running, Signals, Spawner, Stopper, run_alone};

/// Whether this process may do what no other may.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// What a program finds where it is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum View {
    /// The folder itself.
    Folder(PathBuf),
    /// An overlay, mounted for this program alone.
    Overlay(Layers),
}

/// A program ready to be started in a view: with our own input and output, in the folder `within` of the view.
pub fn command(view: &View, within: &Path, program: &[OsString]) -> io::Result<Command> {
    let (name, arguments) = program.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    match view {
        View::Folder(folder) => {
            let mut command = Command::new(name);
            command.args(arguments).current_dir(folder.join(within));
            Ok(command)
        }
        View::Overlay(layers) => {
            let mut command = entry::command(layers, within)?;
            command.args(program);
            Ok(command)
        }
    }
}
