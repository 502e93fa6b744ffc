//! The configuration in force in a process. `actum.toml` and the files that it names are read once; a server goes on with what
//! it has read until an admin has it read them again (D-508). So a run that changes the file changes nothing by itself.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use actum_contract::digest::Digest;

use crate::config::Config;
use crate::contents::BlobsConfig;
use crate::document::Document;
use crate::failure::Failure;

pub(crate) const NAME: &str = "actum.toml";

#[derive(Debug)]
pub(crate) struct ActiveConfig {
    root: PathBuf,
    /// Where the store of the process is, once it is open.
    store: OnceLock<String>,
    loaded: RwLock<Option<Arc<Loaded>>>,
}

/// One reading of the file. What is in it is looked at when it is asked for: a flaw in one section keeps nobody from another.
#[derive(Debug)]
struct Loaded {
    document: Option<Document>,
    config: OnceLock<Arc<Config>>,
}

impl ActiveConfig {
    pub(crate) fn at(root: &Path) -> Arc<Self> {
        Arc::new(Self { root: root.to_owned(), store: OnceLock::new(), loaded: RwLock::default() })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Remembers where the store is, without its password.
    pub(crate) fn note_store(&self, shown: &str) {
        let _ = self.store.set(shown.to_owned());
    }

    pub(crate) fn store(&self) -> Option<&str> {
        self.store.get().map(String::as_str)
    }

    /// Returns the configuration in force, which is read when it is first asked for.
    pub(crate) fn current(&self) -> Result<Arc<Config>, Failure> {
        self.loaded()?.config(&self.root)
    }

    /// Returns the section `[blobs]` of the configuration in force, whatever is wrong with the others.
    pub(crate) fn blobs(&self) -> Result<BlobsConfig, Failure> {
        match &self.loaded()?.document {
            Some(document) => BlobsConfig::of(document),
            None => Ok(BlobsConfig::default()),
        }
    }

    /// Reads the file again and takes it into force. If something is wrong with it, nothing changes.
    pub(crate) fn reload(&self) -> Result<Arc<Config>, Failure> {
        let loaded = Loaded::read(&self.root)?;
        let config = loaded.config(&self.root)?;
        *self.loaded.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(loaded));
        Ok(config)
    }

    /// Whether the files differ from the configuration in force.
    pub(crate) fn is_outdated(&self) -> bool {
        let Ok(current) = self.current() else { return false };
        let now = Loaded::read(&self.root).and_then(|loaded| loaded.config(&self.root));
        now.map_or(true, |now| now.digest != current.digest)
    }

    fn loaded(&self) -> Result<Arc<Loaded>, Failure> {
        if let Some(loaded) = &*self.loaded.read().unwrap_or_else(PoisonError::into_inner) {
            return Ok(Arc::clone(loaded));
        }
        let read = Arc::new(Loaded::read(&self.root)?);
        let mut loaded = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        Ok(Arc::clone(loaded.get_or_insert(read)))
    }
}

impl Loaded {
    fn read(root: &Path) -> Result<Self, Failure> {
        let path = root.join(NAME);
        let document = if path.exists() { Some(Document::read(&path)?) } else { None };
        Ok(Self { document, config: OnceLock::new() })
    }

    fn config(&self, root: &Path) -> Result<Arc<Config>, Failure> {
        if let Some(config) = self.config.get() {
            return Ok(Arc::clone(config));
        }
        let config = match &self.document {
            Some(document) => Config::of(root, document)?,
            None => Config::default(),
        };
        Ok(Arc::clone(self.config.get_or_init(|| Arc::new(config))))
    }
}

/// Returns the digest of the file and of those that it names, by which agreements and receipts know a configuration.
pub(crate) fn digest_of(document: &Document, root: &Path, files: &[PathBuf]) -> Digest {
    let mut parts: Vec<Vec<u8>> = vec![document.text.clone()];
    for file in files {
        parts.push(file.as_os_str().as_encoded_bytes().to_vec());
        parts.push(std::fs::read(root.join(file)).unwrap_or_default());
    }
    let digests: Vec<[u8; 32]> = parts.iter().map(|part| Digest::sha256(part).0).collect();
    Digest::sha256_parts(&digests.iter().map(<[u8; 32]>::as_slice).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use actum_testkit::folder::Folder;

    #[test]
    fn changed_files_take_effect_by_a_reload_only() {
        let folder = Folder::new();
        folder.file(NAME, "[retention]\nruns_days = 3\n");
        let active = ActiveConfig::at(folder.path());
        let days = || active.current().unwrap().retention.runs_days;
        let first = active.current().unwrap().digest;
        assert_eq!((days(), active.is_outdated()), (Some(3), false));
        folder.file(NAME, "[retention]\nruns_days = 4\n");
        assert_eq!((days(), active.is_outdated()), (Some(3), true));
        active.reload().unwrap();
        assert_eq!((days(), active.is_outdated()), (Some(4), false));
        assert_ne!(active.current().unwrap().digest, first);
        // What cannot be read changes nothing.
        folder.file(NAME, "[retention]\nruns_days = \"x\"\n");
        assert!(active.reload().is_err() && active.is_outdated());
        assert_eq!(days(), Some(4));
    }

    #[test]
    fn scripts_of_agents_are_part_of_it() {
        let folder = Folder::new();
        let script = "steps:\n  \"*\": [{write: {path: a, content: x}}]\n";
        folder.file("script.yaml", script);
        folder.file(NAME, "[agents.a]\ntype = \"script\"\nscript = \"script.yaml\"\n");
        let active = ActiveConfig::at(folder.path());
        let before = active.current().unwrap().agents["a"].clone();
        folder.file("script.yaml", script.replace("content: x", "content: y"));
        assert!(active.is_outdated());
        assert_eq!(active.current().unwrap().agents["a"].agent, before.agent);
    }

    #[test]
    fn a_flaw_elsewhere_keeps_nobody_from_the_object_store() {
        let folder = Folder::new();
        folder.file(NAME, "[blobs]\nurl = \"file:///x\"\n[nonsense]\n");
        let active = ActiveConfig::at(folder.path());
        assert!(active.blobs().is_ok() && active.current().is_err());
    }
}
