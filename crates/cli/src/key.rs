//! The key that signs for this project, and which keys of others are trusted.
//!
//! The private key is kept outside the workspace, in the state folder of the user; the place of older versions, below
//! `.actum`, is still read. Trust begins outside the database: with the own key, keys that the user or the configuration
//! has pinned, and keys that took each other's place. A key that the ledger announces is trusted only if a trusted key has
//! signed it.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use actum_api::error;
use actum_contract::canon;
use actum_contract::digest::Digest;
use actum_contract::id::Tenant;
use actum_ledger::draft;
use actum_ledger::journal::Range;
use actum_ledger::receipt::key_id;
use actum_ledger::verify::Row;
use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use ed25519_dalek::pkcs8::{DecodePrivateKey as _, DecodePublicKey as _, EncodePrivateKey as _, EncodePublicKey as _};
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::project::Project;
use crate::run::Open;
use crate::seat::home_of;
use crate::workspace::new_id;

/// Entries of this type announce keys.
const TYPE: &str = "signing_key";

/// Announcements that are read: there is one for each machine and each rotation.
const ANNOUNCED_MAX: usize = 10_000;

const KEY: &str = "key.pem";
const TRUSTED: &str = "trusted";
/// Where older versions kept the public halves of keys that were replaced, beside the key.
const RETIRED: &str = "keys";
/// The public half of a key that is kept below `.actum`, so that another one in its place is noticed.
const PINNED: &str = "pinned.pem";
/// The id of the project's key, below `.actum`: by it the key is found after the project was moved or copied.
const KEY_ID: &str = "key.id";
/// The path of the project that a key was made for, beside the key.
const PROJECT: &str = "project";

#[derive(Debug)]
pub(crate) struct Key {
    pub path: PathBuf,
    pub signing: SigningKey,
}

/// Where the keys of a project are kept.
#[derive(Debug)]
struct KeyFolders {
    /// The project's own path.
    root: PathBuf,
    /// Outside the workspace. None if this user has no home.
    state: Option<PathBuf>,
    /// Below `.actum`, where older versions kept the key.
    beside: PathBuf,
}

impl KeyFolders {
    fn of(project: &Project) -> Self {
        let tenant = project.tenant().map(|tenant| tenant.as_str().to_owned()).unwrap_or_default();
        Self::named(project, &tenant, project.key_folder())
    }

    fn of_tenant(project: &Project, tenant: &Tenant) -> Self {
        Self::named(project, tenant.as_str(), home_of(project.root(), tenant))
    }

    fn named(project: &Project, tenant: &str, beside: PathBuf) -> Self {
        let root = project.root().canonicalize().unwrap_or_else(|_| project.root().to_owned());
        // The path and not a name inside the project: whoever can write there could name another project's key.
        let name = Digest::blake3(root.as_os_str().as_encoded_bytes()).to_hex();
        let tenant = Digest::blake3(tenant.as_bytes()).to_hex();
        let state = project.state_folder().map(|state| state.join("keys").join(&name[..32]).join(&tenant[..16]));
        Self { root, state, beside }
    }

    /// Remembers the project's path beside its key.
    fn name_project(&self) {
        if let Some(state) = self.state.as_ref().filter(|state| !state.join(PROJECT).exists()) {
            let _ = write_new(&state.join(PROJECT), self.root.as_os_str().as_encoded_bytes());
        }
    }

    /// Finds the key of a project that was at another path before, and copies it to this path's folder. The id in the project
    /// is not enough: a foreign project could name it. Nothing may be left where the key's project was.
    fn adopt(&self) -> Option<PathBuf> {
        let state = self.state.as_ref()?;
        let wanted = std::fs::read_to_string(self.beside.join(KEY_ID)).ok()?;
        let folders = |folder: &Path| -> Vec<PathBuf> {
            std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
        };
        let projects = folders(state.parent()?.parent()?);
        let is_wanted = |folder: &PathBuf| Key::read(folder.join(KEY)).is_ok_and(|key| key.id() == wanted.trim());
        let has_moved = |folder: &PathBuf| {
            use std::os::unix::ffi::OsStringExt as _;

            let path = std::fs::read(folder.join(PROJECT)).ok().map(std::ffi::OsString::from_vec);
            path.is_some_and(|path| Path::new(&path).symlink_metadata().is_err())
        };
        let mut candidates = projects.iter().flat_map(|project| folders(project)).filter(is_wanted);
        let from = candidates.find(has_moved)?;
        make_private(&state.join(TRUSTED)).ok()?;
        let kept = folders(&from.join(TRUSTED)).into_iter().map(|path| (path, state.join(TRUSTED)));
        let is_of_place = |path: &PathBuf| path.ends_with(KEY) || path.ends_with(PROJECT);
        let own = folders(&from).into_iter().filter(|path| !is_of_place(path)).map(|path| (path, state.clone()));
        // The key last: without it nothing here counts.
        for (path, to) in kept.chain(own).chain([(from.join(KEY), state.clone())]).filter(|(path, _)| path.is_file()) {
            write_new(&to.join(path.file_name()?), &std::fs::read(&path).ok()?).ok()?;
        }
        self.name_project();
        Some(state.join(KEY)).filter(|path| path.exists())
    }

    /// Where trusted keys are kept.
    fn trusted(&self) -> PathBuf {
        self.state.as_ref().map_or_else(|| self.beside.join(RETIRED), |state| state.join(TRUSTED))
    }
}

/// A statement by one key that another one is trusted.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Endorsement {
    /// The id of the key that signed it.
    endorsed_by: String,
    /// Its signature over `endorsed_text`, in hexadecimal digits.
    endorsement: String,
}

impl Endorsement {
    fn sign(by: &SigningKey, key: &VerifyingKey) -> Self {
        let signature = by.sign(&endorsed_text(key));
        Self { endorsed_by: key_id(&by.verifying_key()), endorsement: hex::encode(signature.to_bytes()) }
    }

    fn holds(&self, by: &VerifyingKey, key: &VerifyingKey) -> bool {
        let signature = hex::decode(&self.endorsement).ok().and_then(|bytes| Signature::from_slice(&bytes).ok());
        key_id(by) == self.endorsed_by
            && signature.is_some_and(|signature| by.verify_strict(&endorsed_text(key), &signature).is_ok())
    }
}

fn endorsed_text(key: &VerifyingKey) -> Vec<u8> {
    let shape = json!({"type": "https://actum.dev/key-endorsement/v1", "public": hex::encode(key.as_bytes())});
    canon::canonical(&shape).unwrap_or_default()
}

/// A key that an entry of the ledger announces.
#[derive(Debug)]
struct AnnouncedKey {
    key: VerifyingKey,
    place: String,
    endorsement: Option<Endorsement>,
}

/// The keys whose receipts are believed, and those that are only announced.
#[derive(Debug, Default)]
pub(crate) struct TrustedKeys {
    pub keys: Vec<VerifyingKey>,
    /// Id and place of keys that the ledger announces and nobody trusted has signed.
    pub unknown: Vec<(String, String)>,
}

impl TrustedKeys {
    pub(crate) fn with_id(&self, id: &str) -> Option<&VerifyingKey> {
        self.keys.iter().find(|key| key_id(key) == id)
    }

    /// Why receipts of a key are not believed.
    pub(crate) fn why_unknown(&self, id: &str) -> String {
        match self.unknown.iter().find(|(unknown, _)| unknown == id) {
            Some((_, place)) => format!(
                "key {id} is announced by {place}, but no trusted key has signed it; `actum key trust {id}` does, if it is yours"
            ),
            None => format!("key {id} is not trusted here; `actum key list` shows those that are"),
        }
    }
}

impl Key {
    /// Returns the project's key, if it has one yet.
    pub(crate) fn find(project: &Project) -> Result<Option<Self>, Failure> {
        let folders = KeyFolders::of(project);
        if let Some(path) = folders.state.as_ref().map(|state| state.join(KEY)).filter(|path| path.exists()) {
            folders.name_project();
            return Self::read(path).map(Some);
        }
        let path = folders.beside.join(KEY);
        if !path.exists() {
            return folders.adopt().map(Self::read).transpose();
        }
        let key = Self::read(path)?;
        if let Some(state) = &folders.state {
            key.pin(state, &folders.beside)?;
        }
        Ok(Some(key))
    }

    pub(crate) fn find_or_make(project: &Project) -> Result<Self, Failure> {
        if let Some(key) = Self::find(project)? {
            return Ok(key);
        }
        project.folder()?;
        let folders = KeyFolders::of(project);
        match folders.state.clone().filter(|state| make_private(state).is_ok()) {
            Some(state) => {
                let key = Self::make(state.join(KEY))?;
                folders.name_project();
                key.name_in(&folders.beside);
                Ok(key)
            }
            // A service without a home.
            None => Self::make(folders.beside.join(KEY)),
        }
    }

    /// Remembers a key below `.actum` where nobody who can only write there can change it. Keys that it replaced are
    /// trusted once, at this moment.
    fn pin(&self, state: &Path, beside: &Path) -> Result<(), Failure> {
        let pinned = state.join(PINNED);
        let cannot = |e: std::io::Error| unusable(&pinned, format!("cannot be written: {e}"));
        if !pinned.exists() {
            if make_private(&state.join(TRUSTED)).is_err() {
                return Ok(());
            }
            for key in public_keys(&beside.join(RETIRED)) {
                trust(&state.join(TRUSTED), &key)?;
            }
            write_new(&pinned, self.public_pem()?.as_bytes()).map_err(cannot)?;
        }
        let text = std::fs::read_to_string(&pinned).unwrap_or_default();
        match VerifyingKey::from_public_key_pem(&text) {
            Ok(key) if key == self.public() => Ok(()),
            _ => Err(unusable(&self.path, format!("is not the one that was used here before ({})", pinned.display()))
                .hint(format!("if you replaced it yourself, remove {}", pinned.display()))),
        }
    }

    /// Returns every key that is trusted without asking the ledger: the own one, those it replaced, and pinned ones.
    pub(crate) fn known(project: &Project) -> Result<Vec<VerifyingKey>, Failure> {
        let mut keys: Vec<VerifyingKey> = Self::find(project)?.iter().map(Self::public).collect();
        keys.extend(public_keys(&KeyFolders::of(project).trusted()));
        Ok(keys)
    }

    /// Returns the keys that are trusted: those that are known, those that the configuration pins, and those of the ledger
    /// that a trusted key has signed.
    pub(crate) fn known_to(open: &Open) -> Result<TrustedKeys, Failure> {
        let rows = open.waiter.wait(open.waiter.journal.rows(&open.tenant, announcements()))?;
        Self::known_by(&open.project, &rows)
    }

    /// The same from the entries of the ledger that announce keys.
    pub(crate) fn known_by(project: &Project, rows: &[Row]) -> Result<TrustedKeys, Failure> {
        Self::trusted_by(project, Self::known(project)?, rows)
    }

    /// The same for a tenant of the project, also for callers of other tenants.
    pub(crate) fn known_of(project: &Project, tenant: &Tenant, rows: &[Row]) -> Result<TrustedKeys, Failure> {
        if project.tenant().is_ok_and(|own| own == *tenant) {
            return Self::known_by(project, rows);
        }
        let folders = KeyFolders::of_tenant(project, tenant);
        let kept = folders.state.iter().map(|state| state.join(KEY)).chain([folders.beside.join(KEY)]);
        let own = kept.filter(|path| path.exists()).find_map(|path| Self::read(path).ok());
        let mut keys: Vec<VerifyingKey> = own.iter().map(Self::public).collect();
        keys.extend(public_keys(&folders.trusted()));
        Self::trusted_by(project, keys, rows)
    }

    fn trusted_by(project: &Project, keys: Vec<VerifyingKey>, rows: &[Row]) -> Result<TrustedKeys, Failure> {
        let mut trusted = TrustedKeys { keys, unknown: Vec::new() };
        let pinned: BTreeSet<String> = project.config()?.trust.keys.iter().cloned().collect();
        let mut waiting: Vec<AnnouncedKey> = rows.iter().filter_map(|row| AnnouncedKey::read(&row.body)).collect();
        loop {
            let is_trusted = |one: &AnnouncedKey| {
                let by = |endorsement: &Endorsement| {
                    trusted.with_id(&endorsement.endorsed_by).is_some_and(|by| endorsement.holds(by, &one.key))
                };
                pinned.contains(&key_id(&one.key)) || one.endorsement.as_ref().is_some_and(by)
            };
            let (found, rest): (Vec<_>, Vec<_>) = waiting.into_iter().partition(is_trusted);
            waiting = rest;
            if found.is_empty() {
                break;
            }
            trusted.keys.extend(found.into_iter().map(|one| one.key));
        }
        for one in waiting {
            if trusted.with_id(&key_id(&one.key)).is_none() {
                trusted.unknown.push((key_id(&one.key), one.place));
            }
        }
        trusted.unknown.sort();
        trusted.unknown.dedup();
        Ok(trusted)
    }

    /// Trusts a key from now on, here and, by an entry of the ledger, wherever this project's own key is trusted.
    pub(crate) fn trust(open: &Open, wanted: &str) -> Result<VerifyingKey, Failure> {
        let key = match std::fs::read_to_string(wanted) {
            Ok(text) => VerifyingKey::from_public_key_pem(&text)
                .map_err(|_| unusable(Path::new(wanted), "is not an Ed25519 public key in PEM".into()))?,
            Err(_) => {
                announced(open)?.into_iter().map(|one| one.key).find(|key| key_id(key) == wanted).ok_or_else(|| {
                    Failure::new(error::NOT_FOUND, format!("there is no file {wanted} and no announced key of this id"))
                        .hint("`actum key list` shows the keys that the ledger announces")
                })?
            }
        };
        let folders = KeyFolders::of(&open.project);
        let folder = folders.trusted();
        make_private(&folder).map_err(|e| unusable(&folder, format!("cannot be made: {e}")))?;
        trust(&folder, &key)?;
        let own = Self::find_or_make(&open.project)?;
        own.announce_key(open, &key, Some(Endorsement::sign(&own.signing, &key)), None)?;
        Ok(key)
    }

    /// Tells other machines by which key this one signs. Doing it twice is doing it once.
    pub(crate) fn announce(&self, open: &Open) -> Result<(), Failure> {
        let endorsement = self.path.with_file_name(format!("{}.json", self.id()));
        let endorsement = std::fs::read(endorsement).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        self.announce_key(open, &self.public(), endorsement, Some(&open.place))
    }

    fn announce_key(
        &self,
        open: &Open,
        key: &VerifyingKey,
        endorsement: Option<Endorsement>,
        place: Option<&str>,
    ) -> Result<(), Failure> {
        // The first announcement of a key, and each statement about it, is an entry of its own.
        let id = match &endorsement {
            None => format!("key:{}", key_id(key)),
            Some(endorsement) => format!("key:{}:{}", key_id(key), endorsement.endorsed_by),
        };
        if open.waiter.wait(open.waiter.journal.entry(&open.tenant, &id))?.is_some() {
            return Ok(());
        }
        let mut payload = json!({"keyId": key_id(key), "publicKey": pem(key)?, "place": place});
        if let (Some(Value::Object(more)), Some(payload)) =
            (endorsement.and_then(|one| serde_json::to_value(one).ok()), payload.as_object_mut())
        {
            payload.extend(more);
        }
        let entry = json!({
            "id": id, "tenantId": open.tenant.as_str(), "module": "engine", "source": "actum", "type": TYPE,
            "payload": payload,
        });
        open.waiter.wait(open.waiter.journal.append(draft::read_own(entry)))?;
        Ok(())
    }

    /// Signs with a new key from now on. The old key signs the new one, and its public half stays trusted.
    pub(crate) fn rotate(project: &Project) -> Result<Self, Failure> {
        let Some(old) = Self::find(project)? else { return Self::find_or_make(project) };
        let folders = KeyFolders::of(project);
        let home = match &folders.state {
            Some(state) if make_private(state).is_ok() => state.clone(),
            _ => folders.beside.clone(),
        };
        let trusted = folders.trusted();
        let cannot = |e: std::io::Error| unusable(&home, format!("cannot be written: {e}"));
        make_private(&trusted).map_err(cannot)?;
        trust(&trusted, &old.public())?;
        // Each step leaves a key that signs: the new one takes its place in one rename, after all that speaks for it is there.
        let new = Self::make(home.join(format!("next-{}.pem", new_id())))?;
        let endorsement = Endorsement::sign(&old.signing, &new.public());
        let text = serde_json::to_vec(&endorsement).unwrap_or_default();
        write_new(&home.join(format!("{}.json", new.id())), &text).map_err(cannot)?;
        let path = home.join(KEY);
        std::fs::rename(&new.path, &path).map_err(cannot)?;
        if old.path != path {
            let _ = std::fs::remove_file(&old.path);
        }
        let key = Self::read(path)?;
        key.name_in(&folders.beside);
        Ok(key)
    }

    /// Notes below `.actum` which key this is. Without the note a moved project gets a new key.
    fn name_in(&self, beside: &Path) {
        let note = beside.join(KEY_ID);
        let aside = beside.join(format!("{KEY_ID}.{}", new_id()));
        if std::fs::write(&aside, self.id()).is_ok() {
            let _ = std::fs::rename(&aside, &note);
        }
    }

    fn make(path: PathBuf) -> Result<Self, Failure> {
        let cannot = |e: &dyn std::fmt::Display| unusable(&path, format!("cannot be made: {e}"));
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(|e| cannot(&e))?;
        let signing = SigningKey::from_bytes(&seed);
        let pem = signing.to_pkcs8_pem(LineEnding::LF).map_err(|e| cannot(&e))?;
        write_new(&path, pem.as_bytes()).map_err(|e| cannot(&e))?;
        Self::read(path)
    }

    fn read(path: PathBuf) -> Result<Self, Failure> {
        let cannot = |e: &std::io::Error| unusable(&path, format!("cannot be read: {e}"));
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(&path).map_err(|e| cannot(&e))?;
        let found = file.metadata().map_err(|e| cannot(&e))?;
        if found.permissions().mode() & 0o077 != 0 {
            let hint = format!("chmod 600 {}", path.display());
            return Err(unusable(&path, "may be read by other users".into()).hint(hint));
        }
        let own = rustix::process::geteuid().as_raw();
        if found.uid() != own && own != 0 {
            return Err(unusable(&path, "belongs to another user".into()));
        }
        let pem = std::io::read_to_string(file).map_err(|e| cannot(&e))?;
        let signing = SigningKey::from_pkcs8_pem(&pem)
            .map_err(|_| unusable(&path, "is not an Ed25519 private key in PKCS#8 PEM".into()))?;
        Ok(Self { path, signing })
    }

    pub(crate) fn public(&self) -> VerifyingKey {
        self.signing.verifying_key()
    }

    pub(crate) fn public_pem(&self) -> Result<String, Failure> {
        pem(&self.public())
    }

    /// The id under which verifiers of DSSE envelopes look the key up.
    pub(crate) fn id(&self) -> String {
        key_id(&self.public())
    }
}

fn pem(key: &VerifyingKey) -> Result<String, Failure> {
    key.to_public_key_pem(LineEnding::LF)
        .map_err(|e| Failure::new(error::KEY, format!("the public key cannot be shown: {e}")))
}

/// The entries of the ledger that announce keys.
pub(crate) fn announcements() -> Range {
    Range { from: 0, limit: ANNOUNCED_MAX, backwards: false, kind: Some(TYPE.to_owned()) }
}

/// Returns the keys that entries of the ledger announce, each as often as it is announced.
fn announced(open: &Open) -> Result<Vec<AnnouncedKey>, Failure> {
    let rows = open.waiter.wait(open.waiter.journal.rows(&open.tenant, announcements()))?;
    Ok(rows.iter().filter_map(|row| AnnouncedKey::read(&row.body)).collect())
}

impl AnnouncedKey {
    fn read(body: &[u8]) -> Option<Self> {
        let entry: Value = serde_json::from_slice(body).ok()?;
        let payload = entry.get("payload")?;
        let text = |name: &str| payload.get(name).and_then(Value::as_str);
        Some(Self {
            key: VerifyingKey::from_public_key_pem(text("publicKey")?).ok()?,
            place: text("place").unwrap_or("another machine").to_owned(),
            endorsement: Endorsement::deserialize(payload).ok(),
        })
    }
}

/// Returns the public keys in a folder, if it is there.
fn public_keys(folder: &Path) -> Vec<VerifyingKey> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let texts = entries.filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
    texts.filter_map(|text| VerifyingKey::from_public_key_pem(&text).ok()).collect()
}

fn trust(folder: &Path, key: &VerifyingKey) -> Result<(), Failure> {
    let path = folder.join(format!("{}.pem", key_id(key)));
    write_new(&path, pem(key)?.as_bytes()).map_err(|e| unusable(&path, format!("cannot be written: {e}")))
}

fn make_private(folder: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Writes a file that only its owner may read, whole or not at all. One that is there stays: of two that write the same file
/// at once, one wins.
fn write_new(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let aside = path.with_extension(format!("new-{}", new_id()));
    let written =
        std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside).and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()
        });
    let linked = written.and_then(|()| std::fs::hard_link(&aside, path));
    let _ = std::fs::remove_file(&aside);
    match linked {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(e),
        _ => std::fs::File::open(path.parent().unwrap_or(path)).and_then(|folder| folder.sync_all()),
    }
}

fn unusable(path: &Path, what: String) -> Failure {
    Failure::new(error::KEY, format!("signing key {} {what}", path.display()))
}
