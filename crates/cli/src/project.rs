//! Where we are: the project root, its `.actum` folder, its store.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use actum_api::error;
use actum_contract::id::Tenant;
use actum_store::blob::Folder as Blobs;
use actum_store::{Location, Older, Store};

use crate::active_config::ActiveConfig;
use crate::args::Global;
use crate::config::Config;
use crate::contents::{self, Shelf};
use crate::failure::Failure;
use crate::seat::Seat;
use crate::ui::Out;
use crate::workspace::LOCAL_TENANT;

/// A project: the nearest folder upward that has `actum.toml` or `.actum`, else the current one.
#[derive(Debug)]
pub(crate) struct Project {
    root: PathBuf,
    store: Option<String>,
    config: Arc<ActiveConfig>,
    /// For whom it is open, if it is not the user.
    seat: Option<Arc<Seat>>,
}

impl Project {
    pub(crate) fn find(global: &Global) -> Result<Self, Failure> {
        if let Some(seat) = &global.seat {
            return Ok(Self::seated(Arc::clone(seat)));
        }
        let here =
            std::env::current_dir().map_err(|e| Failure::of_io(format!("cannot tell the current folder: {e}"), &e))?;
        let marked = |dir: &&Path| dir.join("actum.toml").is_file() || is_own(&dir.join(".actum"));
        let root = here.ancestors().find(marked).unwrap_or(&here).to_owned();
        Ok(Self { config: ActiveConfig::at(&root), root, store: named_store(global), seat: None })
    }

    /// The project that a seat is in.
    pub(crate) fn seated(seat: Arc<Seat>) -> Self {
        Self { root: seat.root.clone(), store: None, config: Arc::clone(&seat.config), seat: Some(seat) }
    }

    /// The project that a file belongs to; if it lies in none, the one we are in.
    pub(crate) fn of_file(file: &Path, global: &Global) -> Result<Self, Failure> {
        let here = Self::find(global)?;
        if here.seat.is_some() {
            return Ok(here);
        }
        let folder = file.canonicalize().ok().and_then(|file| file.parent().map(Path::to_owned));
        let marked = |dir: &&Path| dir.join("actum.toml").is_file() || is_own(&dir.join(".actum"));
        let root = folder.as_deref().and_then(|folder| folder.ancestors().find(marked).map(Path::to_owned));
        Ok(root.map_or(here, |root| Self {
            config: ActiveConfig::at(&root),
            root,
            store: named_store(global),
            seat: None,
        }))
    }

    /// The same project once more, for whoever wants one of its own.
    pub(crate) fn at(other: &Self) -> Self {
        let config = Arc::clone(&other.config);
        Self { root: other.root.clone(), store: other.store.clone(), config, seat: other.seat.clone() }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The configuration in force.
    pub(crate) fn config(&self) -> Result<Arc<Config>, Failure> {
        self.config.current()
    }

    /// The configuration as something that can be read again.
    pub(crate) fn active_config(&self) -> &Arc<ActiveConfig> {
        &self.config
    }

    /// For whom it is open, if it is not the user.
    pub(crate) fn seat(&self) -> Option<&Arc<Seat>> {
        self.seat.as_ref()
    }

    /// Who acts, if it is not the user.
    pub(crate) fn actor(&self) -> Option<String> {
        self.seat.as_ref().map(|seat| seat.actor.clone())
    }

    /// The id of the token of whoever acts, if he came in over a server.
    pub(crate) fn token(&self) -> Option<&str> {
        self.seat.as_ref()?.token.as_deref()
    }

    /// In whose name a caller of a server spends; nothing for whoever is at this machine.
    pub(crate) fn payer(&self) -> Option<String> {
        self.token().and_then(|_| self.actor())
    }

    /// Whose things these are.
    pub(crate) fn tenant(&self) -> Result<Tenant, Failure> {
        match &self.seat {
            Some(seat) => Ok(seat.tenant.clone()),
            None => Tenant::new(LOCAL_TENANT).map_err(|e| Failure::new(error::INTERNAL, e.to_string())),
        }
    }

    /// Whether it is open for somebody to whom its files do not belong.
    pub(crate) fn is_guest(&self) -> Result<bool, Failure> {
        Ok(self.tenant()?.as_str() != LOCAL_TENANT)
    }

    /// Contents by their digest.
    pub(crate) fn blobs(&self) -> Result<Arc<Blobs>, Failure> {
        Ok(Arc::new(self.shelf(Shelf::Blobs)?))
    }

    /// Contents of one kind, for whom the project is open.
    pub(crate) fn shelf(&self, shelf: Shelf) -> Result<Blobs, Failure> {
        contents::open(self.config.blobs()?, &self.root, &self.folder()?, &self.tenant()?, shelf)
    }

    /// By what other machines know that they have the same contents; nothing if they cannot.
    pub(crate) fn contents_name(&self) -> Result<Option<String>, Failure> {
        Ok(contents::far(self.config.blobs()?, &self.root)?.map(|far| far.shown()))
    }

    /// The project's own folder, made on first use and kept out of version control.
    pub(crate) fn folder(&self) -> Result<PathBuf, Failure> {
        if let Some(seat) = &self.seat {
            return seat.folder();
        }
        let folder = self.root.join(".actum");
        actum_workspace::make_own_folder(&folder)?;
        Ok(folder)
    }

    /// Returns the folder below `.actum` in which older versions kept the signing key; makes nothing.
    pub(crate) fn key_folder(&self) -> PathBuf {
        match &self.seat {
            Some(seat) => seat.home.clone(),
            None => self.root.join(".actum"),
        }
    }

    /// Returns the folder in which this user keeps state that belongs to no workspace. None if there is none, or if it is inside
    /// the project, where runs could read it and publish to it.
    pub(crate) fn state_folder(&self) -> Option<PathBuf> {
        match &self.seat {
            Some(seat) => seat.state.clone(),
            None => state_folder().filter(|state| !is_inside(state, &self.root)),
        }
    }

    pub(crate) fn location(&self) -> Result<Location, Failure> {
        match &self.store {
            Some(url) => Location::parse(url).map_err(|e| Failure::new(error::USAGE, e.to_string())),
            None => Ok(Location::Sqlite(self.folder()?.join("actum.db"))),
        }
    }

    /// Whether there is a store to be opened, without making anything.
    pub(crate) fn has_store(&self) -> bool {
        match self.store.as_deref().map(Location::parse) {
            Some(Ok(Location::Sqlite(path))) => path.exists(),
            Some(_) => true,
            None => self.root.join(".actum/actum.db").exists(),
        }
    }

    /// Opens the store. A file of an older version is brought up to date; a shared store is not, unless told to.
    pub(crate) async fn open(&self, out: &Out, migrate: bool) -> Result<Arc<dyn Store>, Failure> {
        if let Some(seat) = &self.seat {
            return Ok(Arc::clone(&seat.store));
        }
        let location = self.location()?;
        out.detail(&format!("store: {}", location.shown()));
        self.config.note_store(&location.shown());
        let older = match &location {
            Location::Postgres(_) if !migrate => Older::Refuse,
            _ => Older::Migrate,
        };
        Ok(actum_store::open(&location, older).await?)
    }
}

/// The store that was asked for; by a variable too, because a password does not belong among the words of a command.
fn named_store(global: &Global) -> Option<String> {
    global.store.clone().or_else(|| std::env::var("ACTUM_STORE").ok().filter(|url| !url.is_empty()))
}

/// Returns the folder in which the user keeps Actum's state that belongs to no workspace, by the XDG rules.
pub(crate) fn state_folder() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    Some(base.join("actum"))
}

/// Whether a path is inside a folder or that folder itself, links resolved as far as the path exists.
pub(crate) fn is_inside(path: &Path, folder: &Path) -> bool {
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let there = path.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    let real = there.map_or_else(
        || path.to_owned(),
        |(above, real)| path.strip_prefix(above).map_or_else(|_| path.to_owned(), |rest| real.join(rest)),
    );
    real.starts_with(&folder) || path.starts_with(&folder)
}

/// Whether a project has its things there. A folder that a snapshot of another project was restored to has some too.
fn is_own(folder: &Path) -> bool {
    let is_others = |name: &std::ffi::OsStr| name == "workspace" || name == ".gitignore";
    let mut names = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    actum_workspace::is_own_folder(folder)
        && !(folder.join("workspace/lock").exists() && names.all(|name| is_others(&name)))
}
