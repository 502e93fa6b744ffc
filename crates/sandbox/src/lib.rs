//! Other people's code, and what it sees.
//!
//! So far: a program is run on a private view of a folder, an overlay that exists only for it and is gone with it. The
//! walls around it (namespaces, limits, network) come with executions. Joined in `cli`, whose binary is also the helper
//! that enters a view before it becomes the program (`entry`).

mod entry;
mod overlay;
mod sys;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

pub use entry::{entry, not_started};
pub use overlay::{Layers, Unavailable, Way, is_in_use, probe};

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
