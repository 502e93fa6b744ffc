//! Overlays: whether this machine lets us mount one, by which way, and mounting it.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
    fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount, open_tree,
};

use serde::{Deserialize, Serialize};

use crate::cell::{path, paths};
use crate::{entry, sys};

/// The folders of an overlay. All of them exist; `upper` and `work` are on one file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layers {
    /// The first is on top of the others.
    #[serde(with = "paths")]
    pub lowers: Vec<PathBuf>,
    #[serde(with = "path")]
    pub upper: PathBuf,
    #[serde(with = "path")]
    pub work: PathBuf,
    /// The folder that the overlay covers. May be a lower layer itself.
    #[serde(with = "path")]
    pub at: PathBuf,
    /// The source of the mount, by which processes that still see it are found.
    pub name: String,
    /// Mounts inside `at`, in the order of mounting.
    pub inner: Vec<InnerMount>,
}

/// A mount inside an overlay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum InnerMount {
    Overlay(Layers),
    /// A file that can be read but not changed.
    File {
        #[serde(with = "path")]
        from: PathBuf,
        #[serde(with = "path")]
        at: PathBuf,
    },
}

/// How an overlay is mounted here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// With the rights of root.
    Privileged,
    /// In a user namespace of its own.
    UserNamespace,
}

impl Way {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Privileged => "as root",
            Self::UserNamespace => "in a user namespace",
        }
    }
}

/// Why this machine has no overlays for us, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Unavailable {
    pub why: String,
    pub remedy: String,
}

/// Mounts one for a moment, in a process of its own, below the folder `scratch`.
pub fn probe(scratch: &Path) -> Result<Way, Unavailable> {
    let folder = scratch.join(format!("overlay-probe-{}", std::process::id()));
    let probed = probe_in(&folder);
    let inner = folder.join("work/work");
    let _ = std::fs::set_permissions(&inner, std::os::unix::fs::PermissionsExt::from_mode(0o700));
    let _ = std::fs::remove_dir_all(&folder);
    probed.map_err(|why| Unavailable { remedy: remedy().to_owned(), why })
}

fn probe_in(folder: &Path) -> Result<Way, String> {
    let sub = |name: &str| {
        let path = folder.join(name);
        std::fs::create_dir_all(&path).map(|()| path).map_err(|e| format!("cannot make {}: {e}", folder.display()))
    };
    let (lower, upper) = (sub("lower")?, sub("upper")?);
    let (work, at, name) = (sub("work")?, sub("at")?, "actum-probe".to_owned());
    let layers = Layers { lowers: vec![lower], upper, work, at, name, inner: Vec::new() };
    let helper = entry::command(&layers, Path::new("")).and_then(|mut command| command.stdin(Stdio::null()).output());
    let ended = helper.map_err(|e| format!("cannot start the helper: {e}"))?;
    let ways = [Way::Privileged, Way::UserNamespace];
    let way = ways.into_iter().find(|way| ended.status.code() == Some(i32::from(way.code())));
    match way {
        Some(way) if layers.upper.join("probe").is_file() => Ok(way),
        _ => Err(String::from_utf8_lossy(&ended.stderr).trim().to_owned()),
    }
}

/// What an administrator can do, as far as the machine tells.
pub fn remedy() -> &'static str {
    let is = |path: &str, value: &str| std::fs::read_to_string(path).is_ok_and(|text| text.trim() == value);
    if is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") {
        "AppArmor keeps ordinary users from making namespaces: `sysctl kernel.apparmor_restrict_unprivileged_userns=0`"
    } else if is("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        "the kernel keeps ordinary users from making namespaces: `sysctl kernel.unprivileged_userns_clone=1`"
    } else if is("/proc/sys/user/max_user_namespaces", "0") {
        "no user namespaces are allowed: `sysctl user.max_user_namespaces=10000`"
    } else {
        "a kernel of at least 5.11 with overlayfs, and user namespaces or the rights of root"
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum MountError {
    #[error("cannot make namespaces of its own: {0}")]
    Namespace(io::Error),
    #[error("cannot open {0}: {1}")]
    Layer(String, io::Error),
    #[error("cannot mount the overlay: {0}")]
    Mount(Errno),
}

/// Keeps the overlay's marks readable without privileges, and rules out features (redirect_dir, metacopy) whose marks
/// would mean something else.
const MARKS: &str = "userxattr";
const SETTINGS: [(&str, &str); 2] = [("index", "off"), ("xino", "off")];

/// An overlay that is mounted nowhere yet. The first of `lowers` is on top of the others; over all of them is `upper`, or
/// nothing can be changed. For a process that stands in the root it builds, with its own processes in `proc`.
pub(crate) fn assemble(
    lowers: &[OwnedFd],
    upper_and_work: Option<(&OwnedFd, &OwnedFd)>,
) -> rustix::io::Result<OwnedFd> {
    let name = |opened: &OwnedFd| format!("proc/self/fd/{}", opened.as_raw_fd());
    let lowers: Vec<String> = lowers.iter().map(name).collect();
    let overlay = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&overlay, "source", "actum")?;
    fsconfig_set_flag(&overlay, MARKS)?;
    for (name, value) in SETTINGS {
        fsconfig_set_string(&overlay, name, value)?;
    }
    fsconfig_set_string(&overlay, "lowerdir", lowers.join(":"))?;
    if let Some((upper, work)) = upper_and_work {
        fsconfig_set_string(&overlay, "upperdir", name(upper))?;
        fsconfig_set_string(&overlay, "workdir", name(work))?;
    }
    fsconfig_create(&overlay)?;
    let plain = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    fsmount(&overlay, FsMountFlags::FSMOUNT_CLOEXEC, plain)
}

/// Mounts the overlay, and what is inside it, for this process alone.
pub(crate) fn mount(layers: &Layers) -> Result<Way, MountError> {
    let way = leave()?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).map_err(MountError::Mount)?;
    // Everything is opened first: the overlay may cover the paths of its own layers.
    let opened = OpenedMount::of_overlay(layers)?;
    opened.mount()?;
    Ok(way)
}

/// A mount whose sources are open: no path has to be quoted for the kernel, and none can be exchanged.
enum OpenedMount<'a> {
    Overlay { layers: &'a Layers, lowers: Vec<File>, upper: File, work: File, inner: Vec<OpenedMount<'a>> },
    File { from: OwnedFd, at: &'a Path },
}

fn by_descriptor(file: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

impl<'a> OpenedMount<'a> {
    fn of_overlay(layers: &'a Layers) -> Result<Self, MountError> {
        // By the time they are opened, their paths may lead through a link.
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |path: &Path| {
            let opened = openat2(rustix::fs::CWD, path, flags, Mode::empty(), resolve);
            opened.map(File::from).map_err(|e| MountError::Layer(path.display().to_string(), e.into()))
        };
        let inner = layers.inner.iter().map(|inner| match inner {
            InnerMount::Overlay(layers) => Self::of_overlay(layers),
            InnerMount::File { from, at } => {
                let how =
                    OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
                let opened = openat2(rustix::fs::CWD, from, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve);
                let cloned = opened.and_then(|opened| open_tree(&opened, "", how));
                let from = cloned.map_err(|e| MountError::Layer(from.display().to_string(), e.into()))?;
                Ok(Self::File { from, at })
            }
        });
        let inner = inner.collect::<Result<_, _>>()?;
        let lowers = layers.lowers.iter().map(|path| open(path)).collect::<Result<_, _>>()?;
        Ok(Self::Overlay { layers, lowers, upper: open(&layers.upper)?, work: open(&layers.work)?, inner })
    }

    fn mount(&self) -> Result<(), MountError> {
        match self {
            Self::Overlay { layers, lowers, upper, work, inner } => {
                let settings = SETTINGS.map(|(name, value)| format!("{name}={value}")).join(",");
                let lowers = lowers.iter().map(by_descriptor).collect::<Vec<_>>().join(":");
                let (upper, work) = (by_descriptor(upper), by_descriptor(work));
                let options = format!("{MARKS},lowerdir={lowers},upperdir={upper},workdir={work},{settings}");
                let options = CString::new(options).map_err(|_| MountError::Mount(Errno::INVAL))?;
                let flags = MountFlags::NOSUID | MountFlags::NODEV;
                rustix::mount::mount(layers.name.as_str(), &layers.at, "overlay", flags, Some(options.as_c_str()))
                    .map_err(MountError::Mount)?;
                inner.iter().try_for_each(OpenedMount::mount)
            }
            Self::File { from, at } => {
                sys::set_mount(from.as_fd(), libc::MOUNT_ATTR_RDONLY, None, false)
                    .map_err(|e| MountError::Layer(at.display().to_string(), e))?;
                let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
                move_mount(from, "", rustix::fs::CWD, *at, flags).map_err(MountError::Mount)
            }
        }
    }
}

/// Mounts of our own: with root's rights if we have them, else in a user namespace where we are who we are.
fn leave() -> Result<Way, MountError> {
    match sys::unshare_mounts(false) {
        Ok(()) => return Ok(Way::Privileged),
        Err(Errno::PERM) => {}
        Err(e) => return Err(MountError::Namespace(e.into())),
    }
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    sys::unshare_mounts(true).map_err(|e| MountError::Namespace(e.into()))?;
    let write = |name: &str, text: String| std::fs::write(format!("/proc/self/{name}"), text);
    write("setgroups", "deny".to_owned())
        .and_then(|()| write("uid_map", format!("{user} {user} 1")))
        .and_then(|()| write("gid_map", format!("{group} {group} 1")))
        .map_err(MountError::Namespace)?;
    Ok(Way::UserNamespace)
}

/// Whether a process still sees the mount of this name, or stands in this folder. A program may have closed every
/// descriptor it inherited; what it sees and where it stands it cannot hide from its own user.
pub fn is_in_use(name: &str, folder: &Path) -> bool {
    let own = std::process::id().to_string();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().into_string().ok());
    let others = pids.filter(|pid| pid.bytes().all(|b| b.is_ascii_digit()) && *pid != own);
    others.map(|pid| PathBuf::from("/proc").join(pid)).any(|process| {
        let sees = std::fs::read_to_string(process.join("mountinfo"))
            .is_ok_and(|mounts| mounts.lines().any(|line| line.split(' ').any(|word| word == name)));
        let stands = std::fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd.starts_with(folder));
        sees || stands
    })
}
