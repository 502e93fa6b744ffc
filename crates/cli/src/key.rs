//! The key that signs for this project: made on first use, readable by its owner only.

use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use actum_api::error;
use actum_ledger::draft;
use actum_ledger::journal::Range;
use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use ed25519_dalek::pkcs8::{DecodePrivateKey as _, DecodePublicKey as _, EncodePrivateKey as _, EncodePublicKey as _};
use ed25519_dalek::{SigningKey, VerifyingKey};

use serde_json::{Value, json};

use crate::failure::Failure;
use crate::project::Project;
use crate::run::Open;
use crate::workspace::new_id;

/// Keys of other machines are entries of this type.
const TYPE: &str = "signing_key";

/// Keys that are read: there is one for each machine and each time it was rotated.
const KEYS_MAX: usize = 10_000;

#[derive(Debug)]
pub(crate) struct Key {
    pub path: PathBuf,
    pub signing: SigningKey,
}

impl Key {
    /// The project's key, if it has one yet.
    pub(crate) fn find(project: &Project) -> Result<Option<Self>, Failure> {
        let path = project.key_path();
        if path.exists() { Self::read(path).map(Some) } else { Ok(None) }
    }

    pub(crate) fn find_or_make(project: &Project) -> Result<Self, Failure> {
        match Self::find(project)? {
            Some(key) => Ok(key),
            None => {
                project.folder()?;
                Self::make(project.key_path())
            }
        }
    }

    /// Every key that has signed for the project: the present one, and those it took the place of.
    pub(crate) fn known(project: &Project) -> Result<Vec<VerifyingKey>, Failure> {
        let mut keys: Vec<VerifyingKey> = Self::find(project)?.iter().map(Self::public).collect();
        for entry in std::fs::read_dir(retired(project)).into_iter().flatten().flatten() {
            let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
            keys.extend(VerifyingKey::from_public_key_pem(&text));
        }
        Ok(keys)
    }

    /// The same, and those by which other machines sign for the tenant, as the ledger says.
    pub(crate) fn known_to(open: &Open) -> Result<Vec<VerifyingKey>, Failure> {
        let mut keys = Self::known(&open.project)?;
        let range = Range { from: 0, limit: KEYS_MAX, backwards: false, kind: Some(TYPE.to_owned()) };
        for row in open.waiter.wait(open.waiter.journal.rows(&open.tenant, range))? {
            let entry: Value = serde_json::from_slice(&row.body).unwrap_or_default();
            let pem = entry["payload"]["publicKey"].as_str().unwrap_or_default();
            keys.extend(VerifyingKey::from_public_key_pem(pem));
        }
        Ok(keys)
    }

    /// Tells other machines by which key this one signs. Doing it twice is doing it once.
    pub(crate) fn announce(&self, open: &Open) -> Result<(), Failure> {
        let id = format!("key:{}", self.id());
        if open.waiter.wait(open.waiter.journal.entry(&open.tenant, &id))?.is_some() {
            return Ok(());
        }
        let entry = json!({
            "id": id, "tenantId": open.tenant.as_str(), "module": "engine", "source": "actum", "type": TYPE,
            "payload": {"keyId": self.id(), "publicKey": self.public_pem()?, "place": open.place},
        });
        open.waiter.wait(open.waiter.journal.append(draft::read_own(entry)))?;
        Ok(())
    }

    /// A new key from now on. The public half of the old one stays, so that what it signed can be checked.
    pub(crate) fn rotate(project: &Project) -> Result<Self, Failure> {
        let Some(old) = Self::find(project)? else { return Self::find_or_make(project) };
        let folder = retired(project);
        let cannot = |e: std::io::Error| unusable(&folder, format!("cannot be written: {e}"));
        std::fs::create_dir_all(&folder).map_err(cannot)?;
        std::fs::write(folder.join(format!("{}.pem", old.id())), old.public_pem()?).map_err(cannot)?;
        std::fs::remove_file(&old.path).map_err(cannot)?;
        Self::make(old.path)
    }

    fn make(path: PathBuf) -> Result<Self, Failure> {
        let cannot = |e: &dyn std::fmt::Display| unusable(&path, format!("cannot be made: {e}"));
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(|e| cannot(&e))?;
        let signing = SigningKey::from_bytes(&seed);
        let pem = signing.to_pkcs8_pem(LineEnding::LF).map_err(|e| cannot(&e))?;
        // Written aside and linked into place: of two that make the first key, one wins and both use it.
        let aside = path.with_extension(format!("new-{}", new_id()));
        let written =
            std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside).and_then(|mut file| {
                file.write_all(pem.as_bytes())?;
                file.sync_all()
            });
        let linked = written.and_then(|()| std::fs::hard_link(&aside, &path));
        let _ = std::fs::remove_file(&aside);
        match linked {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(cannot(&e)),
            _ => Self::read(path),
        }
    }

    fn read(path: PathBuf) -> Result<Self, Failure> {
        let read = std::fs::metadata(&path).and_then(|m| Ok((m.permissions().mode(), std::fs::read_to_string(&path)?)));
        let (mode, pem) = read.map_err(|e| unusable(&path, format!("cannot be read: {e}")))?;
        if mode & 0o077 != 0 {
            let hint = format!("chmod 600 {}", path.display());
            return Err(unusable(&path, "may be read by other users".into()).hint(hint));
        }
        let signing = SigningKey::from_pkcs8_pem(&pem)
            .map_err(|_| unusable(&path, "is not an Ed25519 private key in PKCS#8 PEM".into()))?;
        Ok(Self { path, signing })
    }

    pub(crate) fn public(&self) -> VerifyingKey {
        self.signing.verifying_key()
    }

    pub(crate) fn public_pem(&self) -> Result<String, Failure> {
        self.public()
            .to_public_key_pem(LineEnding::LF)
            .map_err(|e| unusable(&self.path, format!("cannot be shown: {e}")))
    }

    /// The id under which verifiers of DSSE envelopes look the key up.
    pub(crate) fn id(&self) -> String {
        actum_ledger::receipt::key_id(&self.public())
    }
}

fn retired(project: &Project) -> PathBuf {
    project.key_path().with_file_name("keys")
}

fn unusable(path: &Path, what: String) -> Failure {
    Failure::new(error::KEY, format!("signing key {} {what}", path.display()))
}
