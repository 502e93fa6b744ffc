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
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};

pub use entry::entry;
pub use overlay::{Layers, Unavailable, Way, probe};

/// What a program finds where it is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum View {
    /// The folder itself.
    Folder(PathBuf),
    /// An overlay, mounted for this program alone.
    Overlay(Layers),
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot start {program}: {source}")]
    Start { program: String, source: io::Error },
    #[error("cannot find this program's own file: {0}")]
    Own(io::Error),
}

/// Runs a program to its end, with our own input and output. Its current folder is the view.
pub fn run(view: &View, program: &[OsString]) -> Result<ExitStatus, Error> {
    let Some((name, arguments)) = program.split_first() else {
        return Err(Error::Start { program: String::new(), source: io::ErrorKind::InvalidInput.into() });
    };
    let failed = |source| Error::Start { program: name.to_string_lossy().into_owned(), source };
    let mut command = match view {
        View::Folder(folder) => {
            let mut command = Command::new(name);
            command.args(arguments).current_dir(folder);
            command
        }
        View::Overlay(layers) => {
            let mut command = entry::command(layers).map_err(Error::Own)?;
            command.args(program);
            command
        }
    };
    command.stdin(Stdio::inherit()).status().map_err(failed)
}
