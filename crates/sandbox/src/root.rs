//! The file tree of a cell: an empty root in memory, the machine's own programs and libraries to be read, folders of its
//! own for what is temporary, and the paths it was granted. Built by the cell's first process from within; the machine's
//! tree is left behind for good at the end.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_change, move_mount,
    open_tree, unmount,
};

use crate::cell::{Access, Grant, Network, Origin, Source};
use crate::census::Written;
use crate::{overlay, sys};

/// What failed, as a person can read it.
pub(crate) type Built<T> = Result<T, String>;

/// Where programs and libraries are on Linux systems, those with a store of their own among them.
const SYSTEM: &[&str] =
    &["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "nix/store", "gnu/store", "run/current-system"];

/// What programs look up and nobody keeps secret: where libraries are, whom to trust, what time it is. Each costs a mount.
const SETTINGS: &[&str] = &[
    "ld.so.cache",
    "ssl",
    "pki",
    "alternatives",
    "localtime",
    "services",
    "os-release",
    "java-17-openjdk",
    "java-21-openjdk",
];

const DEVICES: &[&str] = &["null", "zero", "full", "urandom"];

/// Tells too much about the machine to everybody. What only root may read needs no mask: nobody in a cell is root.
const MASKED: &[&str] = &["kallsyms", "keys", "key-users", "sched_debug", "latency_stats"];

/// Over which the new root is put while it is built. Always there, and never granted.
const SITE: &str = "/sys";

pub(crate) const HOME: &str = "/home/actum";
const SCRATCH: &str = ".scratch";
const DENIED: &str = ".denied";
const OWN: &str = ".own";
/// Where the layers of an overlay are while it is put together. Gone before the program is there.
const LAYERS: &str = ".layers";
/// Of one grant. Their names have to fit into what the kernel takes at once, 256 bytes.
const LAYERS_MAX: usize = 8;
const OWN_NAMES: [&str; 5] = ["passwd", "group", "nsswitch.conf", "hosts", "resolv.conf"];

const READ_ONLY: u64 = libc::MOUNT_ATTR_RDONLY;
const HARMLESS: u64 = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;

fn told(doing: &str, what: impl AsRef<Path>) -> impl FnOnce(io::Error) -> String {
    move |e| format!("cannot {doing} {}: {e}", what.as_ref().display())
}

fn call<T>(doing: &str, what: impl AsRef<Path>, done: rustix::io::Result<T>) -> Built<T> {
    done.map_err(|e| told(doing, what)(e.into()))
}

/// A copy of the mounts at a path of the machine, held by nobody but us. Links on the way are refused: the path was looked
/// at before, and somebody may have put them there since.
pub(crate) fn tree(origin: Origin<'_>) -> io::Result<OwnedFd> {
    let found = find(origin.path, OFlags::empty())?;
    let mut how = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    how.set(OpenTreeFlags::AT_RECURSIVE, origin.whole);
    Ok(open_tree(found, "", how)?)
}

/// What is at a path. No link is followed on the way; one at its end is found with `NOFOLLOW`.
fn find(at: &Path, how: OFlags) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(CWD, at, how | OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
}

fn put(tree: BorrowedFd<'_>, at: &Path) -> Built<()> {
    let place = call("find", at, find(at, OFlags::NOFOLLOW))?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    call("mount", at, move_mount(tree, "", place, "", flags))
}

/// Shows a path of the machine at the same place, if it is there. What may be done with it is said later, for all at once.
fn show(name: &Path) -> Built<()> {
    let source = Path::new("/").join(name);
    let Ok(found) = fs::symlink_metadata(&source) else { return Ok(()) };
    if found.is_symlink() {
        let leads_to = fs::read_link(&source).map_err(told("read", &source))?;
        make_folders(name.parent())?;
        return symlink(leads_to, name).or_else(already).map_err(told("link", name));
    }
    make_place(name, found.is_dir())?;
    match rustix::mount::mount_bind_recursive(&source, name) {
        Err(Errno::ACCESS) => Ok(()),
        done => call("show", &source, done),
    }
}

fn already(e: io::Error) -> io::Result<()> {
    if e.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(e) }
}

fn make_folders(path: Option<&Path>) -> Built<()> {
    // Most are there: these were the first.
    let is_known = |path: &&Path| ["", "etc", "dev", "tmp"].iter().any(|known| *path == Path::new(known));
    match path.filter(|path| !is_known(path)) {
        Some(path) => fs::create_dir_all(path).map_err(told("make", path)),
        None => Ok(()),
    }
}

/// Something to mount on, if nothing is there yet.
fn make_place(at: &Path, is_folder: bool) -> Built<()> {
    if fs::symlink_metadata(at).is_ok() {
        return Ok(());
    }
    make_folders(at.parent())?;
    if is_folder { fs::create_dir(at) } else { fs::File::create(at).map(drop) }.map_err(told("make", at))
}

fn write(name: &str, text: &str) -> Built<()> {
    fs::write(name, text).map_err(told("write", name))
}

/// Everything that is the same for every cell. Afterwards this process stands in the new root.
pub(crate) fn lay_foundation() -> Built<()> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    call("leave the mounts of", "/", mount_change("/", private))?;
    let plain = MountFlags::NOSUID | MountFlags::NODEV;
    // Of the size that most want for what is temporary, which lies in it as well.
    let options = format!("size={USUAL_BYTES},nr_inodes=64k,mode=755");
    let options = std::ffi::CString::new(options).map_err(|e| e.to_string())?;
    call("mount", SITE, mount("actum", SITE, "tmpfs", plain, Some(options.as_c_str())))?;
    std::env::set_current_dir(SITE).map_err(told("enter", SITE))?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    for name in ["etc", "dev", "dev/pts", "dev/shm", "proc", "tmp", "home", &HOME[1..], DENIED] {
        fs::create_dir(name).map_err(told("make", name))?;
    }
    for name in SYSTEM {
        show(Path::new(name))?;
    }
    for name in SETTINGS {
        show(&Path::new("etc").join(name))?;
    }
    let whole = open_tree(CWD, ".", OpenTreeFlags::OPEN_TREE_CLOEXEC).map_err(|e| told("open", "/")(e.into()))?;
    sys::set_mount(whole.as_fd(), READ_ONLY | HARMLESS, None, true).map_err(told("protect", "/usr"))?;
    // But for the root itself, which is not finished yet.
    sys::unset_mount(whole.as_fd(), READ_ONLY).map_err(told("open", "/"))?;
    write(
        "etc/passwd",
        "root:x:0:0:root:/root:/usr/sbin/nologin\nactum:x:1000:1000:actum:/home/actum:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
    )?;
    write("etc/group", "root:x:0:\nactum:x:1000:\nnogroup:x:65534:\n")?;
    write("etc/hostname", "actum\n")?;
    write("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")?;
    names(&Network::Off)?;
    devices()?;
    denied()?;
    scratch()?;
    processes()
}

fn devices() -> Built<()> {
    for name in DEVICES {
        show(&Path::new("dev").join(name))?;
    }
    for (name, leads_to) in [
        ("random", "urandom"),
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        symlink(leads_to, format!("dev/{name}")).map_err(told("link", name))?;
    }
    let plain = MountFlags::NOSUID | MountFlags::NOEXEC;
    // The system has some four thousand for all together.
    let options = c"newinstance,ptmxmode=0666,mode=620,max=64";
    call("mount", "/dev/pts", mount("devpts", "dev/pts", "devpts", plain, Some(options)))?;
    symlink("pts/ptmx", "dev/ptmx").map_err(told("link", "/dev/ptmx"))
}

/// What stands in the place of things that may not be seen.
fn denied() -> Built<()> {
    make_folders(Some(&Path::new(DENIED).join("folder")))?;
    write(&format!("{DENIED}/file"), "")?;
    for name in ["folder", "file"] {
        let path = Path::new(DENIED).join(name);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).map_err(told("close", &path))?;
    }
    Ok(())
}

/// Those of the cell alone, read only, and without its first.
fn processes() -> Built<()> {
    let plain = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    call("mount", "/proc", mount("proc", "proc", "proc", plain, Some(c"hidepid=invisible")))?;
    for name in MASKED {
        let path = Path::new("proc").join(name);
        if let Ok(found) = fs::symlink_metadata(&path) {
            mask(&path, found.is_dir())?;
        }
    }
    let opened =
        open_tree(CWD, "proc", OpenTreeFlags::OPEN_TREE_CLOEXEC).map_err(|e| told("open", "/proc")(e.into()))?;
    sys::set_mount(opened.as_fd(), READ_ONLY, None, false).map_err(told("protect", "/proc"))
}

fn mask(at: &Path, is_folder: bool) -> Built<()> {
    let name = Path::new(DENIED).join(if is_folder { "folder" } else { "file" });
    let cloned = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = call("copy", &name, open_tree(CWD, &name, cloned))?;
    sys::set_mount(tree.as_fd(), READ_ONLY | HARMLESS, None, false).map_err(told("protect", &name))?;
    put(tree.as_fd(), at)
}

/// What is different for each cell.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    pub grants: &'a [Grant],
    /// Those of all grants' origins, if they were taken by somebody with more rights than ours.
    pub trees: Option<Vec<OwnedFd>>,
    pub deny: &'a [PathBuf],
    pub scratch_bytes: u64,
    pub network: &'a Network,
}

/// Adds it, and leaves the machine's tree behind. Where the cell may write.
pub(crate) fn finish(plan: Plan<'_>) -> Built<Vec<Written>> {
    resize_scratch(plan.scratch_bytes)?;
    if *plan.network == Network::Open {
        names(plan.network)?;
    }
    let granted = take(plan.grants, plan.trees)?;
    let covers_names = plan.grants.iter().any(|grant| grant.path == Path::new("/etc"));
    if covers_names {
        keep_names()?;
    }
    let written = show_granted(granted)?;
    if covers_names {
        own_names()?;
    }
    for path in plan.deny {
        deny(path, plan.grants)?;
    }
    close()?;
    Ok(written)
}

/// A grant, and the trees of its origins.
type Granted<'a> = (&'a Grant, Vec<OwnedFd>);

/// With what lies in another after it, so that it covers what is there.
fn take(grants: &[Grant], trees: Option<Vec<OwnedFd>>) -> Built<Vec<Granted<'_>>> {
    let mut trees = trees.map(Vec::into_iter);
    let mut take_one = |grant: &Grant| match &mut trees {
        Some(trees) => Ok(trees.by_ref().take(grant.origins().len()).collect()),
        None => {
            let taken = |origin: Origin<'_>| tree(origin).map_err(told("show", origin.path));
            grant.origins().into_iter().map(taken).collect()
        }
    };
    let taken = grants.iter().map(|grant| take_one(grant).map(|trees| (grant, trees)));
    let mut granted = taken.collect::<Built<Vec<Granted<'_>>>>()?;
    granted.sort_by_key(|(grant, _)| &grant.path);
    Ok(granted)
}

fn show_granted(granted: Vec<Granted<'_>>) -> Built<Vec<Written>> {
    let all: Vec<(&Path, bool)> =
        granted.iter().map(|(grant, trees)| (grant.path.as_path(), trees.iter().all(is_folder))).collect();
    let mut written = Vec::new();
    for (index, (grant, mut trees)) in granted.into_iter().enumerate() {
        let missing = || "the helper did not pass on what the cell needs".to_owned();
        let inner = all[index + 1..].iter();
        let inner = inner.filter_map(|(path, is)| Some((path.strip_prefix(&grant.path).ok()?, *is)));
        let (tree, kept) = match &grant.from {
            Source::Overlay { upper, work, .. } => {
                let stage = trees.pop().ok_or_else(missing)?;
                if !(1..LAYERS_MAX).contains(&trees.len()) {
                    let path = grant.path.display();
                    return Err(format!("cannot show {path}: an overlay has 1 to {} lower layers", LAYERS_MAX - 1));
                }
                let (merged, upper) = merge(&trees, &stage, (upper, work), &inner.collect::<Vec<_>>())?;
                (merged, Some(upper))
            }
            Source::Layers { lowers } => {
                if grant.access > Access::Read || !(1..=LAYERS_MAX).contains(&trees.len()) {
                    let path = grant.path.display();
                    return Err(format!("cannot show {path}: 1 to {LAYERS_MAX} layers, and only to be read"));
                }
                (stack(&trees, lowers, &inner.collect::<Vec<_>>())?, None)
            }
            Source::Same | Source::Folder(_) => (trees.pop().ok_or_else(missing)?, None),
            Source::Outer => (shown_already(&grant.path)?, None),
        };
        let allowed = match grant.access {
            Access::Look | Access::Read => READ_ONLY | HARMLESS,
            Access::Write | Access::Pinned => HARMLESS,
        };
        sys::set_mount(tree.as_fd(), allowed, None, true).map_err(told("protect", &grant.path))?;
        let at = within(&grant.path);
        let outer = all[..index].iter().rev().find(|(path, _)| grant.path.starts_with(path));
        match (outer, find(at, OFlags::NOFOLLOW)) {
            // What is granted is not changed to make room for something else.
            (Some((outer, _)), Err(Errno::NOENT)) => {
                let (path, outer) = (grant.path.display(), outer.display());
                return Err(format!("cannot show {path}: nothing is there in {outer} that it could cover"));
            }
            (Some(_), _) => {}
            (None, _) => make_place(at, is_folder(&tree))?,
        }
        put(tree.as_fd(), at)?;
        if grant.access > Access::Read && grant.from != Source::Outer {
            written.push(Written::new(grant.path.clone(), kept));
        }
    }
    Ok(written)
}

/// What the cell sees under a path so far.
fn shown_already(path: &Path) -> Built<OwnedFd> {
    let found = call("find", path, find(within(path), OFlags::NOFOLLOW))?;
    let how = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    call("copy", path, open_tree(found, "", how))
}

/// What will cover something in an overlay, and whether that is a folder.
type Inner<'a> = (&'a Path, bool);

/// Returns an overlay of lower layers and the folder that holds `upper` and `work`; and the upper folder.
fn merge(
    trees: &[OwnedFd],
    stage: &OwnedFd,
    (upper, work): (&Path, &Path),
    inner: &[Inner<'_>],
) -> Built<(OwnedFd, OwnedFd)> {
    let mut places = Places::default();
    let named = trees.iter().enumerate();
    let mut lowers = named.map(|(at, tree)| places.put(tree, &at.to_string())).collect::<Built<Vec<_>>>()?;
    places.put(stage, "stage")?;
    let stage_at = Path::new(LAYERS).join("stage");
    let own = |path: &Path| match path.file_name().filter(|_| path.parent() == upper.parent()) {
        Some(name) => call("find", path, find(&stage_at.join(name), OFlags::empty())),
        None => Err(format!("{} is not beside {}", path.display(), upper.display())),
    };
    let (upper, work) = (own(upper)?, own(work)?);
    let missing = missing(inner, std::iter::once(&upper).chain(&lowers));
    if !missing.is_empty() {
        lowers.push(places.make_up(&missing)?);
    }
    let merged = overlay::assemble(&lowers, Some((&upper, &work))).map_err(not_mounted)?;
    places.clear()?;
    Ok((merged, upper))
}

/// An overlay that cannot be changed, of trees that are known by these paths.
fn stack(trees: &[OwnedFd], paths: &[PathBuf], inner: &[Inner<'_>]) -> Built<OwnedFd> {
    let mut places = Places::default();
    let named = trees.iter().enumerate();
    let mut layers = named.map(|(at, tree)| places.put(tree, &at.to_string())).collect::<Built<Vec<_>>>()?;
    let missing = missing(inner, &layers);
    // The kernel refuses a layer that lies in another, as a stage does in its workspace. It does not look into overlays, so
    // the outer one, and what is beneath it, becomes one.
    let is_outer = |path: &PathBuf| paths.iter().any(|other| other != path && other.starts_with(path));
    let outer = paths.iter().position(is_outer).filter(|at| *at > 0);
    // It does not take a single layer either.
    if !missing.is_empty() || layers.len() - outer.unwrap_or(0) == 1 {
        layers.push(places.make_up(&missing)?);
    }
    if let Some(outer) = outer {
        let apart = overlay::assemble(&layers.split_off(outer), None).map_err(not_mounted)?;
        layers.push(places.put(&apart, "apart")?);
    }
    let merged = overlay::assemble(&layers, None).map_err(not_mounted)?;
    places.clear()?;
    Ok(merged)
}

const NOT_MOUNTED: &str = "cannot mount the overlay";

fn not_mounted(e: Errno) -> String {
    format!("{NOT_MOUNTED}: {}", io::Error::from(e))
}

/// Whether a cell was not built because this machine, or a file system, has no overlays for us.
pub fn is_without_overlay(why: &str) -> bool {
    why.contains(NOT_MOUNTED)
}

/// Of what will cover something, where nothing is.
fn missing<'i, 'l>(inner: &[Inner<'i>], layers: impl IntoIterator<Item = &'l OwnedFd> + Clone) -> Vec<Inner<'i>> {
    let is_in = |layer: &OwnedFd, at: &Path| rustix::fs::statat(layer, at, AtFlags::SYMLINK_NOFOLLOW).is_ok();
    let is_missing = |at: &Path| !layers.clone().into_iter().any(|layer| is_in(layer, at));
    inner.iter().filter(|(at, _)| is_missing(at)).copied().collect()
}

/// Where layers are while an overlay is put together: the kernel takes them from places among our own mounts only.
#[derive(Debug, Default)]
struct Places(Vec<PathBuf>);

impl Places {
    fn put(&mut self, tree: &OwnedFd, name: &str) -> Built<OwnedFd> {
        let at = self.make(name)?;
        put(tree.as_fd(), &at)?;
        self.take(at)
    }

    /// A layer with nothing but places to be covered. Beneath all others, so that none of them has to be written to.
    fn make_up(&mut self, missing: &[Inner<'_>]) -> Built<OwnedFd> {
        let at = self.make("beneath")?;
        let plain = MountFlags::NOSUID | MountFlags::NODEV;
        let options = c"size=1m,nr_inodes=4k,mode=755";
        call("mount", &at, mount("actum", &at, "tmpfs", plain, Some(options)))?;
        for (inner, is_folder) in missing {
            make_place(&at.join(inner), *is_folder)?;
        }
        self.take(at)
    }

    fn make(&self, name: &str) -> Built<PathBuf> {
        let at = Path::new(LAYERS).join(name);
        fs::create_dir_all(&at).map_err(told("make", &at))?;
        Ok(at)
    }

    fn take(&mut self, at: PathBuf) -> Built<OwnedFd> {
        let found = call("find", &at, find(&at, OFlags::empty()))?;
        self.0.push(at);
        Ok(found)
    }

    fn clear(self) -> Built<()> {
        for at in &self.0 {
            call("take away", at, unmount(at, UnmountFlags::DETACH))?;
            // Only empty folders: whatever is left of a tree must not go with it.
            let _ = fs::remove_dir(at);
        }
        let _ = fs::remove_dir(LAYERS);
        Ok(())
    }
}

/// How often a path is looked for that was there a moment ago, and with which pause.
const FINDS_MAX: usize = 10;
const FIND_AGAIN_AFTER: Duration = Duration::from_micros(300);

fn deny(path: &Path, grants: &[Grant]) -> Built<()> {
    let at = within(path);
    // In a stage a program may have made a link under that name. Elsewhere it leads to what was to be denied.
    let is_live = |grant: &Grant| match &grant.from {
        Source::Same | Source::Outer => true,
        Source::Overlay { lowers, .. } => lowers.iter().all(|lower| *lower == grant.path),
        Source::Folder(_) | Source::Layers { .. } => false,
    };
    let is_staged = grants.iter().any(|grant| !is_live(grant) && path.starts_with(&grant.path));
    // The stage of a live run hides `.actum` by itself.
    let is_hidden = |grant: &Grant| grant.from != Source::Same && path == grant.path.join(".actum");
    let is_shown = |grant: &Grant| is_live(grant) && path.starts_with(&grant.path) && !is_hidden(grant);
    let is_shown = grants.iter().any(is_shown);
    // Another cell may be renaming a folder on the way to and fro.
    let mut found = find(at, OFlags::NOFOLLOW);
    for _ in 0..FINDS_MAX {
        if !matches!(found, Err(Errno::NOENT | Errno::NOTDIR)) {
            break;
        }
        std::thread::sleep(FIND_AGAIN_AFTER);
        found = find(at, OFlags::NOFOLLOW);
    }
    match found {
        Ok(found) if kind(&found) == FileType::Symlink && !is_staged => Err(told("deny", path)(Errno::LOOP.into())),
        Ok(found) => mask(at, is_folder(&found)),
        // It was there when the cell was planned, and may be there again under this name or another one.
        Err(Errno::NOENT | Errno::NOTDIR) if is_shown && !is_staged => {
            Err(format!("cannot deny {}: it was moved meanwhile", path.display()))
        }
        // Where we cannot come, the program cannot either: it is nobody else.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => Ok(()),
        Err(e) => Err(told("deny", path)(e.into())),
    }
}

fn kind(found: &OwnedFd) -> FileType {
    rustix::fs::fstat(found).map_or(FileType::Unknown, |s| FileType::from_raw_mode(s.st_mode))
}

fn is_folder(found: &OwnedFd) -> bool {
    kind(found) == FileType::Directory
}

/// The path as it is seen from the new root, in which we stand.
fn within(path: &Path) -> &Path {
    let inner = path.strip_prefix("/").unwrap_or(path);
    if inner.as_os_str().is_empty() { Path::new(".") } else { inner }
}

/// What most want to be able to write there.
const USUAL_BYTES: u64 = 512 << 20;

fn resize_scratch(bytes: u64) -> Built<()> {
    if bytes == USUAL_BYTES {
        return Ok(());
    }
    let options = std::ffi::CString::new(format!("size={bytes}")).map_err(|e| e.to_string())?;
    let plain = MountFlags::NOSUID | MountFlags::NODEV;
    call("resize", "/tmp", rustix::mount::mount_remount("tmp", plain, options.as_c_str()))
}

/// Folders that can be written to, in a root that cannot.
fn scratch() -> Built<()> {
    fs::create_dir(SCRATCH).map_err(told("make", SCRATCH))?;
    for (name, at, mode) in [("tmp", "tmp", 0o1777), ("home", &HOME[1..], 0o700), ("shm", "dev/shm", 0o1777)] {
        let part = Path::new(SCRATCH).join(name);
        fs::create_dir(&part).map_err(told("make", &part))?;
        fs::set_permissions(&part, fs::Permissions::from_mode(mode)).map_err(told("open", &part))?;
        call("mount", at, rustix::mount::mount_bind(&part, at))?;
    }
    Ok(())
}

/// Who is called what.
fn names(network: &Network) -> Built<()> {
    if *network == Network::Open {
        // Where the machine asks; often a link into a folder that the cell does not have.
        for name in ["resolv.conf", "hosts"] {
            let text = fs::read_to_string(Path::new("/etc").join(name)).unwrap_or_default();
            write(&format!("etc/{name}"), &text)?;
        }
        return Ok(());
    }
    write("etc/hosts", "127.0.0.1 localhost actum\n::1 localhost\n")?;
    write("etc/resolv.conf", "nameserver 127.0.0.1\noptions timeout:2 attempts:1\n")
}

/// Puts the cell's own settings where no grant can cover them.
fn keep_names() -> Built<()> {
    fs::create_dir(OWN).map_err(told("make", OWN))?;
    for name in OWN_NAMES {
        fs::copy(Path::new("etc").join(name), Path::new(OWN).join(name)).map_err(told("copy", name))?;
    }
    Ok(())
}

/// Where the machine's own settings were granted: in a cell, users and hosts are still the cell's.
fn own_names() -> Built<()> {
    for name in OWN_NAMES {
        let at = Path::new("etc").join(name);
        // A link could lead anywhere; it then tells what the machine says.
        if fs::symlink_metadata(&at).is_ok_and(|found| found.is_file()) {
            let own = Path::new(OWN).join(name);
            let cloned = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
            let tree = call("copy", &own, open_tree(CWD, &own, cloned))?;
            sys::set_mount(tree.as_fd(), READ_ONLY | HARMLESS, None, false).map_err(told("protect", &own))?;
            put(tree.as_fd(), &at)?;
        }
    }
    Ok(())
}

/// Makes the root read only and the only one.
fn close() -> Built<()> {
    let opened = open_tree(CWD, ".", OpenTreeFlags::OPEN_TREE_CLOEXEC).map_err(|e| told("open", "/")(e.into()))?;
    sys::set_mount(opened.as_fd(), READ_ONLY | HARMLESS, None, false).map_err(told("protect", "/"))?;
    call("enter", "/", rustix::process::pivot_root(".", "."))?;
    call("leave", "/", unmount(".", UnmountFlags::DETACH))?;
    std::env::set_current_dir("/").map_err(told("enter", "/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path was looked at, and a part of it has become a link since: it is not followed.
    #[test]
    fn no_tree_is_taken_through_a_link() {
        let tree = |path: &Path| tree(Origin { path, owned_as: Path::new(""), whole: true });
        let folder = std::env::temp_dir().canonicalize().unwrap().join(format!("actum-tree-{}", std::process::id()));
        fs::create_dir_all(folder.join("real/inner")).unwrap();
        symlink("real", folder.join("link")).unwrap();
        for path in ["link", "link/inner", "real/../link/inner"] {
            let refused = tree(&folder.join(path)).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::ELOOP), "{path}");
        }
        let refused = tree(Path::new("/proc/self/root/tmp")).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ELOOP));
        // Without a link it is taken, by whom the kernel lets.
        match tree(&folder.join("real/inner")) {
            Ok(_) => assert!(rustix::process::geteuid().is_root()),
            Err(e) => assert_eq!(e.raw_os_error(), Some(libc::EPERM)),
        }
        fs::remove_dir_all(folder).unwrap();
    }
}
