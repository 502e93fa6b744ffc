//! The helper: this very binary, started anew with a single thread, mounts the view for itself and becomes the program.
//! Nothing it mounts is visible to anybody else, and all of it ends with the program.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use crate::overlay::{Layers, Way, mount};

/// The first argument of the helper; no command of the user's can be called so.
const MARK: &str = "--actum-enter-view";

/// Exit code when the view could not be made, as with other sandboxes.
pub(crate) const NO_VIEW: u8 = 125;

/// Exit code when the program in the view could not be started, as with a shell: 127 if there is none, 126 if it may
/// not be run.
pub fn not_started(error: &io::Error) -> u8 {
    if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }
}

/// The helper for a view; the program and its arguments are to be added.
pub(crate) fn command(layers: &Layers, within: &Path) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(MARK).arg(serde_json::to_string(layers)?).arg(within);
    Ok(command)
}

/// If this process was started as the helper, does its work; the exit code if that failed. Must be called first thing.
pub fn entry(arguments: &[OsString]) -> Option<(u8, String)> {
    crate::spawner::entry(arguments);
    let [_, mark, layers, within, program @ ..] = arguments else { return None };
    if mark != MARK {
        return None;
    }
    Some(match serde_json::from_slice::<Layers>(layers.as_encoded_bytes()) {
        Ok(layers) => enter(&layers, Path::new(within), program),
        Err(e) => (NO_VIEW, format!("invalid description of the view: {e}")),
    })
}

/// Mounts layers for this process alone, which has a single thread. It sees them from then on; the program that it runs is the
/// one that it was started as.
pub fn mount_for_this_process(layers: &Layers) -> io::Result<()> {
    mount(layers).map(drop).map_err(|e| io::Error::other(e.to_string()))
}

/// Comes back only if something failed.
fn enter(layers: &Layers, within: &Path, program: &[OsString]) -> (u8, String) {
    let way = match mount(layers) {
        Ok(way) => way,
        Err(e) => return (NO_VIEW, e.to_string()),
    };
    let folder = layers.at.join(within);
    if let Err(e) = std::env::set_current_dir(&folder) {
        return (NO_VIEW, format!("cannot enter {}: {e}", folder.display()));
    }
    match program.split_first() {
        Some((name, arguments)) => {
            let error = Command::new(name).args(arguments).exec();
            (not_started(&error), format!("cannot start {}: {error}", name.to_string_lossy()))
        }
        // A probe: through the overlay into the upper folder and back.
        None => match std::fs::write("probe", way.word()) {
            Ok(()) if Path::new("probe").is_file() => (way.code(), String::new()),
            _ => (NO_VIEW, "the overlay cannot be written to".to_owned()),
        },
    }
}

impl Way {
    /// Exit code by which a probe says how it was done.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Privileged => 0,
            Self::UserNamespace => 10,
        }
    }
}
