//! Witnesses of a log: the request by which a checkpoint is handed to one (C2SP tlog-witness) and the signature that it adds (C2SP
//! tlog-cosignature). Pure; requests are sent elsewhere.

use actum_contract::digest::Digest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ed25519_dalek::{Signature, VerifyingKey};

/// Signature type of cosignatures with a time in signed notes.
const COSIGNATURE: u8 = 4;
const ID_BYTES: usize = 4;
const TIME_BYTES: usize = 8;

/// The public key of a witness.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WitnessKey {
    pub name: String,
    id: [u8; ID_BYTES],
    key: VerifyingKey,
}

impl WitnessKey {
    /// Reads a verifier key, `name+id+base64`. None if it is not one of a witness.
    pub fn parse(text: &str) -> Option<Self> {
        let (name, rest) = text.split_once('+')?;
        let (id, encoded) = rest.split_once('+')?;
        let bytes = BASE64.decode(encoded).ok()?;
        let (kind, public) = bytes.split_first()?;
        let key = VerifyingKey::from_bytes(public.try_into().ok()?).ok()?;
        let hash = Digest::sha256_parts(&[name.as_bytes(), b"\n", &[COSIGNATURE], key.as_bytes()]);
        let is_own = *kind == COSIGNATURE && hex::encode(&hash.0[..ID_BYTES]) == id && !name.is_empty();
        is_own.then(|| Self { name: name.to_owned(), id: [hash.0[0], hash.0[1], hash.0[2], hash.0[3]], key })
    }

    /// Returns when the witness signed a note, in seconds since 1970. None if it did not.
    pub fn signed_at(&self, note: &str) -> Option<u64> {
        let at = note.rfind("\n\n")?;
        let (text, signatures) = (&note[..=at], &note[at + 2..]);
        signatures.lines().find_map(|line| self.check(text, line))
    }

    /// Checks one line of signatures under the text of a checkpoint. Returns the time that it states.
    fn check(&self, text: &str, line: &str) -> Option<u64> {
        let (name, encoded) = line.strip_prefix("— ")?.split_once(' ')?;
        let bytes = BASE64.decode(encoded).ok().filter(|_| name == self.name)?;
        let (id, rest) = bytes.split_at_checked(ID_BYTES)?;
        let (time, signature) = rest.split_at_checked(TIME_BYTES)?;
        let seconds = u64::from_be_bytes(time.try_into().ok()?);
        let signed = format!("cosignature/v1\ntime {seconds}\n{text}");
        let signature = Signature::from_slice(signature).ok().filter(|_| id == self.id)?;
        self.key.verify_strict(signed.as_bytes(), &signature).ok().map(|()| seconds)
    }

    /// Adds the lines of an answer that this witness has signed to a note. None if there is none.
    pub fn add_to(&self, note: &str, answer: &str) -> Option<String> {
        let text = &note[..=note.rfind("\n\n")?];
        let line = answer.lines().find(|line| self.check(text, line).is_some())?;
        Some(format!("{note}{line}\n"))
    }
}

/// Returns the body of an `add-checkpoint` request. `proof`: that the log grew out of the one at `old_size`.
pub fn request_body(old_size: u64, proof: &[Digest], note: &str) -> String {
    let mut body = format!("old {old_size}\n");
    for hash in proof {
        body.push_str(&BASE64.encode(hash.0));
        body.push('\n');
    }
    body + "\n" + note
}

#[cfg(test)]
mod tests {
    use actum_contract::id::Tenant;
    use ed25519_dalek::{Signer as _, SigningKey};

    use super::*;
    use crate::checkpoint::{Checkpoint, origin};

    fn witness() -> (SigningKey, String) {
        let key = SigningKey::from_bytes(&[9; 32]);
        let public = key.verifying_key();
        let id = Digest::sha256_parts(&[b"witness.example", b"\n", &[COSIGNATURE], public.as_bytes()]);
        let typed = [&[COSIGNATURE], public.as_bytes().as_slice()].concat();
        let text = format!("witness.example+{}+{}", hex::encode(&id.0[..4]), BASE64.encode(typed));
        (key, text)
    }

    fn cosign(key: &SigningKey, id: [u8; 4], text: &str, seconds: u64) -> String {
        let signature = key.sign(format!("cosignature/v1\ntime {seconds}\n{text}").as_bytes());
        let bytes = [&id[..], &seconds.to_be_bytes(), &signature.to_bytes()].concat();
        format!("— witness.example {}\n", BASE64.encode(bytes))
    }

    #[test]
    fn accepts_own_cosignature_only() {
        let (key, text) = witness();
        let witness = WitnessKey::parse(&text).unwrap();
        let log = Checkpoint { origin: origin("s", &Tenant::new("t").unwrap()), size: 3, root: Digest::sha256(b"r") };
        let note = log.sign(&SigningKey::from_bytes(&[1; 32]));
        let body = &note[..=note.rfind("\n\n").unwrap()];
        assert_eq!(witness.signed_at(&note), None);
        let line = cosign(&key, witness.id, body, 1_700_000_000);
        let signed = witness.add_to(&note, &format!("— other AAAA\n{line}")).unwrap();
        assert_eq!(witness.signed_at(&signed), Some(1_700_000_000));
        assert!(Checkpoint::open(&signed, &SigningKey::from_bytes(&[1; 32]).verifying_key()).is_ok());
        for bad in [
            cosign(&SigningKey::from_bytes(&[8; 32]), witness.id, body, 1),
            cosign(&key, [0; 4], body, 1),
            cosign(&key, witness.id, &body.replace('3', "4"), 1),
            "— witness.example AAAA\n".to_owned(),
            String::new(),
        ] {
            assert_eq!(witness.add_to(&note, &bad), None, "{bad}");
        }
    }

    #[test]
    fn refuses_keys_of_other_kinds() {
        let (_, text) = witness();
        let (name, rest) = text.split_once('+').unwrap();
        let (id, encoded) = rest.split_once('+').unwrap();
        for bad in [
            String::new(),
            name.into(),
            format!("{name}+00000000+{encoded}"),
            format!("+{id}+{encoded}"),
            format!("{name}+{id}+AQ=="),
        ] {
            assert_eq!(WitnessKey::parse(&bad), None, "{bad}");
        }
    }

    #[test]
    fn request_has_size_proof_and_note() {
        assert_eq!(request_body(0, &[], "note\n"), "old 0\n\nnote\n");
        let hash = Digest::sha256(b"a");
        assert_eq!(request_body(7, &[hash], "n\n"), format!("old 7\n{}\n\nn\n", BASE64.encode(hash.0)));
    }
}
