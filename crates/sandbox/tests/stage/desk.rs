//! What every case works with: a helper that makes cells, a folder, and a stage in it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use actum_sandbox::{Access, Cell, Files, Grant, Limits, Network, News, Report, Source, Spawner};
use actum_testkit::folder::Folder;

/// Where cells see a stage. There is nothing of that name on the machine.
pub(crate) const PROJECT: &str = "/home/u/proj";

pub(crate) type Case = (&'static str, fn(&Desk));

pub(crate) struct Desk {
    pub(crate) folder: Folder,
    pub(crate) spawner: Spawner,
}

/// How a program in a cell ended, and what it said on both its outputs.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) report: Report,
    pub(crate) said: String,
}

impl Desk {
    pub(crate) fn new() -> Self {
        let folder = Folder::new();
        for name in ["lower", "upper", "work"] {
            fs::create_dir(folder.join(name)).unwrap();
        }
        Self { folder, spawner: Spawner::start(1).unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Makes a file with all folders on the way.
    pub(crate) fn file(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        self.folder.file(name, text)
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// The stage of this desk, at the usual place.
    pub(crate) fn overlay(&self) -> Grant {
        let from =
            Source::Overlay { lowers: vec![self.path("lower")], upper: self.path("upper"), work: self.path("work") };
        Grant { path: PROJECT.into(), access: Access::Write, from }
    }

    pub(crate) fn elsewhere(&self, name: &str, path: &str, access: Access) -> Grant {
        Grant { path: path.into(), access, from: Source::Folder(self.path(name)) }
    }

    pub(crate) fn run(&self, cell: Cell) -> Ran {
        let (mut from, to) = std::io::pipe().unwrap();
        let files = Files {
            input: fs::File::open("/dev/null").unwrap().into(),
            output: to.try_clone().unwrap().into(),
            errors: to.into(),
        };
        let mut running = self.spawner.run(cell, files).unwrap();
        let report = loop {
            if let News::Ended(report) = running.hear().unwrap() {
                break report;
            }
        };
        let mut said = Vec::new();
        from.read_to_end(&mut said).unwrap();
        Ran { report, said: String::from_utf8_lossy(&said).into_owned() }
    }

    /// A script in a cell with these grants, which has to succeed. What it said.
    pub(crate) fn sh(&self, grants: &[Grant], script: &str) -> String {
        let ran = self.run(cell(grants, script));
        assert_eq!(ran.report.ended, actum_sandbox::Ended::Exited(0), "{ran:?}");
        ran.said
    }

    /// Nothing of the upper folder may belong to anybody but who owns the folder.
    pub(crate) fn assert_owned(&self, name: &str) {
        let owner = fs::metadata(self.path(name)).map(|m| (m.uid(), m.gid())).unwrap();
        for (path, _) in tree(&self.path(name)) {
            let found = fs::symlink_metadata(self.path(name).join(&path)).unwrap();
            assert_eq!((found.uid(), found.gid()), owner, "{path}");
        }
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        // The kernel leaves a folder there that nobody may look into.
        let inner = self.path("work/work");
        if inner.exists() {
            fs::set_permissions(inner, fs::Permissions::from_mode(0o700)).unwrap();
        }
    }
}

/// A shell that stands where the first grant is.
pub(crate) fn cell(grants: &[Grant], script: &str) -> Cell {
    Cell {
        program: ["sh", "-c", script].iter().map(Into::into).collect(),
        pinned: None,
        environment: vec![("PATH".into(), "/usr/bin:/bin".into())],
        folder: grants[0].path.clone(),
        grants: grants.to_vec(),
        deny: Vec::new(),
        limits: Limits {
            timeout_ms: Some(60_000),
            grace_ms: 100,
            memory_bytes: 512 << 20,
            cores: 1,
            children: 10,
            fork: true,
            scratch_bytes: 16 << 20,
            disk_bytes: 256 << 20,
        },
        network: Network::Off,
        bridge: None,
        weaker: Vec::new(),
    }
}

/// Everything in a folder by its path: what it is, how it may be used, what it says.
pub(crate) fn tree(folder: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(path) = waiting.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let mode = meta.mode() & 0o7777;
        let what = if meta.is_dir() {
            waiting.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            format!("folder {mode:o}")
        } else if meta.is_symlink() {
            format!("link {}", fs::read_link(&path).unwrap().display())
        } else if meta.file_type().is_char_device() {
            format!("device {}", meta.rdev())
        } else {
            format!("file {mode:o} {}", String::from_utf8_lossy(&fs::read(&path).unwrap()))
        };
        let name = path.strip_prefix(folder).unwrap();
        if !name.as_os_str().as_bytes().is_empty() {
            found.insert(name.display().to_string(), what);
        }
    }
    found
}
