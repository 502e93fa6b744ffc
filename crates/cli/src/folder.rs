//! The folders that commands and runs work on. Each is opened once, and from then on the open folder is used, not its name:
//! a name may lead elsewhere by the time it is used (D-507).

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use actum_api::error;
use actum_contract::folder::FolderId;
use actum_engine::Agreement;
use actum_workspace::{OpenFolder, TreePath};

use crate::failure::Failure;
use crate::project::Project;

/// Folders of the system, in which an agent changes the machine and not a project.
const SYSTEM: [&str; 12] =
    ["/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr"];

/// Folders that hold those of many users or services; a folder in them may be a project.
const SHARED: [&str; 6] = ["/home", "/opt", "/root", "/srv", "/tmp", "/var"];

/// Why the user has to allow a folder as a workspace, if so.
pub(crate) fn consent_needed(project: &Project, folder: &OpenFolder) -> Result<Option<&'static str>, Failure> {
    let (path, root) = (folder.path(), open_root(project)?);
    let is_shared = || path != root.path() && SHARED.iter().any(|shared| path == Path::new(shared));
    Ok(if path.parent().is_none() || SYSTEM.iter().any(|system| path.starts_with(system)) || is_shared() {
        Some("belongs to the system")
    } else if is_private(path, root.path()) {
        Some("is a part of your home where programs keep settings and credentials")
    } else if !path.starts_with(root.path()) {
        Some("does not lie in the project")
    } else {
        None
    })
}

/// Whether a folder is one of those in a home in which programs keep settings, credentials or histories. The project's own
/// folder is not, wherever it is.
fn is_private(path: &Path, root: &Path) -> bool {
    let home = std::env::var_os("HOME").map(PathBuf::from).and_then(|home| home.canonicalize().ok());
    home.is_some_and(|home| {
        let first = path.strip_prefix(&home).ok().and_then(|inner| inner.iter().next());
        // A project in such a folder was put there by its user.
        first.is_some_and(|name| name.as_bytes().starts_with(b".") && !root.starts_with(home.join(name)))
    })
}

/// Opens the root of a project. Links to it are followed: who runs the command has chosen it.
pub(crate) fn open_root(project: &Project) -> Result<OpenFolder, Failure> {
    open_named(project.root())
}

/// Opens a folder that the user at the keyboard has named. Links are followed, because they are the user's own.
pub(crate) fn open_named(path: &Path) -> Result<OpenFolder, Failure> {
    let found = path
        .canonicalize()
        .map_err(|e| Failure::of_io(format!("the folder {} cannot be used: {e}", path.display()), &e))?;
    if !found.is_dir() {
        return Err(Failure::new(error::FILE, format!("{} is not a folder", found.display())));
    }
    Ok(OpenFolder::anchor(&found)?)
}

/// Opens a folder that a caller of a server has named: beneath the root of the project, without following links.
pub(crate) fn open_beneath(project: &Project, path: &Path) -> Result<OpenFolder, Failure> {
    let outside = || {
        Failure::new(error::WORKSPACE_REFUSED, "the workspace does not lie in the project")
            .hint("name a folder of the project, seen from its root, or none")
    };
    let mut inner = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::Normal(name) => inner.push(name),
            _ => return Err(outside()),
        }
    }
    let root = open_root(project)?;
    let inner = match inner.as_os_str().as_bytes() {
        b"" => return Ok(root),
        bytes => TreePath::new(bytes).ok_or_else(outside)?,
    };
    if is_private(&root.path().join(inner.as_path()), root.path()) {
        return Err(outside());
    }
    root.beneath(&inner).map_err(|e| match e {
        actum_workspace::Error::NotOwnFolder(_) => outside(),
        // Where the project lies is nobody's business but its owner's.
        e if e.is_not_found() => Failure::new(error::FILE, format!("the project has no folder {}", path.display())),
        e => e.into(),
    })
}

/// The identity that an agreement keeps of a folder. None for the root of the project: it is not found by a name that a run
/// could change, and it may be moved or restored from a backup as a whole.
pub(crate) fn identity(project: &Project, folder: &OpenFolder) -> Result<Option<FolderId>, Failure> {
    let id = folder.id()?;
    Ok((id != open_root(project)?.id()?).then_some(id))
}

/// Opens the folder of a run again, without following links. `root` is the root of the project.
pub(crate) fn open_agreed(root: &Path, agreement: &Agreement) -> Result<OpenFolder, Failure> {
    let folder = OpenFolder::anchor(&agreement.workspace)?;
    let Some(agreed) = agreement.folder else { return Ok(folder) };
    // Some file systems get another device number at each mount; an inode number on the project's own one says enough.
    let found = folder.id()?;
    let here = open_named(root)?.id()?;
    let device = if found.device == here.device { found.device } else { agreed.device };
    Ok(folder.expect(Some(FolderId { device, ..agreed }))?)
}

/// Opens the folder of the run behind a stage or a publication; without a run, the root of the project.
pub(crate) fn open_behind(project: &Project, agreement: Option<&Agreement>) -> Result<OpenFolder, Failure> {
    match agreement {
        Some(agreement) => open_agreed(project.root(), agreement),
        None => open_root(project),
    }
}
