//! A path inside a tree: bytes, relative, without `.`, `..` or empty names. Names need not be UTF-8.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Ordered by bytes. The empty path is the tree itself.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TreePath(Vec<u8>);

impl TreePath {
    pub const ROOT: Self = Self(Vec::new());

    /// Nothing if a name in it is not one.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let sound = bytes.is_empty() || bytes.split(|b| *b == b'/').all(is_name);
        sound.then(|| Self(bytes.to_vec()))
    }

    /// The path of `name` inside the folder `self`; the name has been checked.
    pub(crate) fn join(&self, name: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(self.0.len() + 1 + name.len());
        bytes.extend_from_slice(&self.0);
        if !bytes.is_empty() {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(name);
        Self(bytes)
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The folder it is in, and its name there; nothing for the tree itself.
    pub fn split(&self) -> Option<(Self, &[u8])> {
        if self.is_root() {
            return None;
        }
        let cut = self.0.iter().rposition(|b| *b == b'/');
        let folder = Self(self.0[..cut.unwrap_or(0)].to_vec());
        Some((folder, &self.0[cut.map_or(0, |cut| cut + 1)..]))
    }

    pub fn parent(&self) -> Option<Self> {
        self.split().map(|(folder, _)| folder)
    }

    /// Every folder above it, the nearest first, without the tree itself.
    pub fn folders(&self) -> impl Iterator<Item = Self> + use<> {
        std::iter::successors(self.parent(), Self::parent).take_while(|folder| !folder.is_root())
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|b| *b == b'/').filter(|name| !name.is_empty())
    }
}

/// Whether a folder may hold an entry of this name.
pub(crate) fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0)
}

/// As a person can read and a terminal can bear it: bytes that are not UTF-8 and control characters as `\xNN`.
impl fmt::Display for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                match c {
                    c if c.is_control() => {
                        let mut buffer = [0; 4];
                        c.encode_utf8(&mut buffer).bytes().try_for_each(|b| write!(f, "\\x{b:02x}"))?;
                    }
                    c => write!(f, "{c}")?,
                }
            }
            chunk.invalid().iter().try_for_each(|b| write!(f, "\\x{b:02x}"))?;
        }
        Ok(())
    }
}

impl fmt::Debug for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_real_paths_are_paths() {
        for bad in ["/a", "a/", "a//b", ".", "a/..", "../a", "a/./b", "a\0b"] {
            assert_eq!(TreePath::new(bad.as_bytes()), None, "{bad}");
        }
        let path = TreePath::new(b"a/b/c").unwrap();
        assert_eq!(path.split().unwrap().1, b"c");
        assert_eq!(path.folders().map(|p| p.to_string()).collect::<Vec<_>>(), ["a/b", "a"]);
        assert_eq!(TreePath::ROOT.join(b"x"), TreePath::new(b"x").unwrap());
        assert_eq!(TreePath::ROOT.parent(), None);
    }

    #[test]
    fn what_is_shown_is_harmless() {
        assert_eq!(TreePath::new(b"caf\xc3\xa9/\xff\x1b[2J").unwrap().to_string(), "café/\\xff\\x1b[2J");
    }
}
