//! The two hashes of the system and their text form: SHA-256 for what others recompute, BLAKE3 for content.

use std::fmt;

use sha2::{Digest as _, Sha256};

/// Thirty-two bytes that identify content; shown as lower-case hex.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    pub const ZERO: Self = Self([0; 32]);

    pub fn sha256(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// SHA-256 of several parts one after another, without joining them first.
    pub fn sha256_parts(parts: &[&[u8]]) -> Self {
        let mut hasher = Sha256::new();
        for part in parts {
            hasher.update(part);
        }
        Self(hasher.finalize().into())
    }

    pub fn blake3(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    pub fn to_hex(self) -> String {
        hex::encode(self.0)
    }

    pub fn from_hex(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        let lower = text.bytes().all(|b| !b.is_ascii_uppercase());
        (lower && hex::decode_to_slice(text, &mut bytes).is_ok()).then_some(Self(bytes))
    }

    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

/// BLAKE3 of content that arrives piece by piece.
#[derive(Debug, Default)]
pub struct Blake3(blake3::Hasher);

impl Blake3 {
    pub fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    pub fn finish(&self) -> Digest {
        Digest(*self.0.finalize().as_bytes())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::sha256(b"").to_hex(), empty);
        assert_eq!(Digest::sha256_parts(&[b"ab", b"", b"c"]), Digest::sha256(b"abc"));
        assert_eq!(Digest::blake3(b"").to_hex(), "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262");
        let mut pieces = Blake3::default();
        pieces.update(b"ab");
        pieces.update(b"c");
        assert_eq!(pieces.finish(), Digest::blake3(b"abc"));
        assert_eq!(Digest::from_hex(empty), Some(Digest::sha256(b"")));
        assert_eq!(Digest::from_hex(&empty.to_uppercase()), None);
        assert_eq!(Digest::from_hex("00"), None);
    }
}
