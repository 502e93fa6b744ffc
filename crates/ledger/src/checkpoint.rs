//! Signed heads of a log and proofs against them, in the C2SP text forms: signed-note, tlog-checkpoint, tlog-proof.

use actum_contract::digest::Digest;
use actum_contract::id::Tenant;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};

/// Signature type of plain Ed25519 in signed notes.
const ED25519: u8 = 1;
const PROOF_HEADER: &str = "c2sp.org/tlog-proof@v1";

/// The name of a tenant's log in a store; also the name of the key that signs its checkpoints.
pub fn origin(store_id: &str, tenant: &Tenant) -> String {
    let mut name = format!("actum/{store_id}/");
    for byte in tenant.as_str().bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => name.push(byte.into()),
            other => name.push_str(&format!("%{other:02X}")),
        }
    }
    name
}

/// The head of a log at one size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    pub origin: String,
    pub size: u64,
    pub root: Digest,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadCheckpoint {
    #[error("text is not a signed checkpoint: {0}")]
    Form(&'static str),
    #[error("checkpoint carries no signature by key {0}")]
    Unsigned(String),
    #[error("signature of the checkpoint by key {0} is wrong")]
    Signature(String),
}

impl Checkpoint {
    fn text(&self) -> String {
        format!("{}\n{}\n{}\n", self.origin, self.size, BASE64.encode(self.root.0))
    }

    /// The signed note.
    pub fn sign(&self, key: &SigningKey) -> String {
        let text = self.text();
        let mut signature = key_id(&self.origin, &key.verifying_key()).to_vec();
        signature.extend_from_slice(&key.sign(text.as_bytes()).to_bytes());
        format!("{text}\n— {} {}\n", self.origin, BASE64.encode(signature))
    }

    /// Reads a note without asking who signed it.
    pub fn parse(note: &str) -> Result<Self, BadCheckpoint> {
        let (text, _) = split(note)?;
        let mut lines = text.lines();
        let mut next = |what| lines.next().filter(|l| !l.is_empty()).ok_or(BadCheckpoint::Form(what));
        let origin = next("the origin is missing")?.to_owned();
        let size = next("the size is missing")?;
        let canonical = size.parse::<u64>().ok().filter(|n| n.to_string() == size);
        let size = canonical.ok_or(BadCheckpoint::Form("the size is not a decimal number"))?;
        let root = BASE64.decode(next("the root is missing")?).ok().and_then(|b| Digest::from_slice(&b));
        let root = root.ok_or(BadCheckpoint::Form("the root is not a base64 hash"))?;
        Ok(Self { origin, size, root })
    }

    /// Reads a note and checks that `key` signed it under the origin's name.
    pub fn open(note: &str, key: &VerifyingKey) -> Result<Self, BadCheckpoint> {
        let checkpoint = Self::parse(note)?;
        let (text, signatures) = split(note)?;
        let id = key_id(&checkpoint.origin, key);
        let shown = || verifier_key(&checkpoint.origin, key);
        let mut found = false;
        for line in signatures.lines() {
            let Some((name, encoded)) = line.strip_prefix("— ").and_then(|l| l.split_once(' ')) else {
                return Err(BadCheckpoint::Form("a signature line does not begin with an em dash"));
            };
            let bytes = BASE64.decode(encoded).map_err(|_| BadCheckpoint::Form("a signature is not base64"))?;
            if name != checkpoint.origin || bytes.get(..4) != Some(&id) {
                continue;
            }
            let signature = Signature::from_slice(&bytes[4..]).map_err(|_| BadCheckpoint::Signature(shown()))?;
            key.verify_strict(text.as_bytes(), &signature).map_err(|_| BadCheckpoint::Signature(shown()))?;
            found = true;
        }
        if found { Ok(checkpoint) } else { Err(BadCheckpoint::Unsigned(shown())) }
    }
}

/// Text (with its last newline) and signature lines of a note.
fn split(note: &str) -> Result<(&str, &str), BadCheckpoint> {
    let at = note.rfind("\n\n").ok_or(BadCheckpoint::Form("no blank line before the signatures"))?;
    let (text, signatures) = (&note[..=at], &note[at + 2..]);
    if signatures.is_empty() || !signatures.ends_with('\n') {
        return Err(BadCheckpoint::Form("the signatures are missing or cut off"));
    }
    Ok((text, signatures))
}

/// First four bytes of SHA-256 over name, newline, type and key.
fn key_id(name: &str, key: &VerifyingKey) -> [u8; 4] {
    let hash = Digest::sha256_parts(&[name.as_bytes(), b"\n", &[ED25519], key.as_bytes()]);
    [hash.0[0], hash.0[1], hash.0[2], hash.0[3]]
}

/// The public key as verifiers of signed notes take it: `name+id+base64`.
pub fn verifier_key(name: &str, key: &VerifyingKey) -> String {
    let typed = [&[ED25519], key.as_bytes().as_slice()].concat();
    format!("{name}+{}+{}", hex::encode(key_id(name, key)), BASE64.encode(typed))
}

/// A `.tlog-proof` file: that the entry at `index` is in the log which `note` is a checkpoint of.
pub fn proof_text(index: u64, proof: &[Digest], note: &str) -> String {
    let mut text = format!("{PROOF_HEADER}\nindex {index}\n");
    for hash in proof {
        text.push_str(&BASE64.encode(hash.0));
        text.push('\n');
    }
    text.push('\n');
    text.push_str(note);
    text
}

/// A `.tlog-proof` file, taken apart: index, hashes, signed note.
pub fn parse_proof(text: &str) -> Result<(u64, Vec<Digest>, &str), BadCheckpoint> {
    let (head, note) = text.split_once("\n\n").ok_or(BadCheckpoint::Form("no blank line before the checkpoint"))?;
    let mut lines = head.lines().peekable();
    if lines.next() != Some(PROOF_HEADER) {
        return Err(BadCheckpoint::Form("the first line is not c2sp.org/tlog-proof@v1"));
    }
    lines.next_if(|line| line.starts_with("extra "));
    let index = lines.next().and_then(|l| l.strip_prefix("index ")).and_then(|n| n.parse().ok());
    let index = index.ok_or(BadCheckpoint::Form("the index is missing"))?;
    let hashes: Option<Vec<_>> = lines.map(|l| BASE64.decode(l).ok().and_then(|b| Digest::from_slice(&b))).collect();
    Ok((index, hashes.ok_or(BadCheckpoint::Form("a hash is not base64 of 32 bytes"))?, note))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> SigningKey {
        SigningKey::from_bytes(&[7; 32])
    }

    fn checkpoint() -> Checkpoint {
        let tenant = Tenant::new("t 1+ü").unwrap();
        Checkpoint { origin: origin("store", &tenant), size: 42, root: Digest::sha256(b"root") }
    }

    #[test]
    fn what_was_signed_opens_and_nothing_else_does() {
        let note = checkpoint().sign(&key());
        assert_eq!(checkpoint().origin, "actum/store/t%201%2B%C3%BC");
        assert_eq!(Checkpoint::open(&note, &key().verifying_key()), Ok(checkpoint()));
        let other = SigningKey::from_bytes(&[8; 32]).verifying_key();
        assert!(matches!(Checkpoint::open(&note, &other), Err(BadCheckpoint::Unsigned(_))));
        let bent = note.replace("\n42\n", "\n43\n");
        assert!(matches!(Checkpoint::open(&bent, &key().verifying_key()), Err(BadCheckpoint::Signature(_))));
        for bad in ["", "a\n1\n", "a\n01\nAA==\n\n— a AAAA\n", &note[..note.len() - 1]] {
            assert!(matches!(Checkpoint::open(bad, &key().verifying_key()), Err(BadCheckpoint::Form(_))), "{bad:?}");
        }
    }

    #[test]
    fn a_public_verifier_of_signed_notes_accepts_it() {
        use signed_note::{Note, StandardVerifier, VerifierList};
        let note = checkpoint().sign(&key());
        let vkey = verifier_key(&checkpoint().origin, &key().verifying_key());
        let verifier = StandardVerifier::new(&vkey).unwrap();
        let list = VerifierList::new(vec![Box::new(verifier)]);
        let (signed, _) = Note::from_bytes(note.as_bytes()).unwrap().verify(&list).unwrap();
        assert_eq!(signed.len(), 1);
        let bent = note.replace("\n42\n", "\n43\n");
        assert!(Note::from_bytes(bent.as_bytes()).unwrap().verify(&list).is_err());
    }

    #[test]
    fn a_proof_file_survives_its_text() {
        let note = checkpoint().sign(&key());
        let hashes = vec![Digest::sha256(b"a"), Digest::sha256(b"b")];
        let text = proof_text(7, &hashes, &note);
        assert!(text.starts_with("c2sp.org/tlog-proof@v1\nindex 7\n"));
        assert_eq!(parse_proof(&text).unwrap(), (7, hashes, note.as_str()));
        assert!(parse_proof(&text.replace("index", "indx")).is_err());
        let single = proof_text(0, &[], &note);
        assert_eq!(parse_proof(&single).unwrap(), (0, vec![], note.as_str()));
    }
}
