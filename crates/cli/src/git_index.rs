//! The index of a git repository, as far as it says which files `git checkout` writes: a program that may write to the index
//! could have git write into the repository's own folder, or anywhere else.

use std::fs::File;
use std::io::Read as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// An index of a million files is shorter.
const INDEX_BYTES_MAX: u64 = 256 << 20;
const HEADER_BYTES: usize = 12;
/// Of an entry, before its flags.
const FIXED_BYTES: usize = 60;
const EXTENDED: u16 = 0x4000;
const ENTRY_ALIGNMENT: usize = 8;
/// At the end: a digest of all before it, of SHA-1 or SHA-256.
const DIGEST_BYTES: [usize; 2] = [20, 32];

/// An index, with the folder of its repository and the working tree that its entries belong to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IndexPlace {
    pub index: PathBuf,
    pub repository: PathBuf,
    pub tree: PathBuf,
}

impl IndexPlace {
    /// Whether git would write only plain files of the working tree by this index. One that is too long, compressed, or in several
    /// files is not looked through; one that is not there is harmless.
    pub(crate) fn is_harmless(&self) -> bool {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::open(&self.index, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(rustix::io::Errno::NOENT) => return true,
            Err(_) => return false,
        };
        if !file.metadata().is_ok_and(|found| found.is_file() && found.len() <= INDEX_BYTES_MAX) {
            return false;
        }
        let mut bytes = Vec::new();
        file.take(INDEX_BYTES_MAX).read_to_end(&mut bytes).is_ok()
            && DIGEST_BYTES.iter().any(|digest| self.are_entries_plain(&bytes, *digest).is_some())
    }

    /// None if an entry is not plain, or the index is not of a form that is known.
    fn are_entries_plain(&self, bytes: &[u8], digest: usize) -> Option<()> {
        let body = bytes.get(..bytes.len().checked_sub(digest)?)?;
        let number = |at: usize| Some(u32::from_be_bytes(body.get(at..at + 4)?.try_into().ok()?));
        if !body.starts_with(b"DIRC") || !matches!(number(4)?, 2 | 3) {
            return None;
        }
        let mut at = HEADER_BYTES;
        for _ in 0..number(8)? {
            // The name of the object is as long as the digest.
            let flags_at = at + FIXED_BYTES - 20 + digest;
            let flags = u16::from_be_bytes(body.get(flags_at..flags_at + 2)?.try_into().ok()?);
            let name_at = flags_at + if flags & EXTENDED != 0 { 4 } else { 2 };
            let length = body.get(name_at..)?.iter().position(|byte| *byte == 0)?;
            self.is_plain(body.get(name_at..name_at + length)?).then_some(())?;
            at += (name_at + length - at) / ENTRY_ALIGNMENT * ENTRY_ALIGNMENT + ENTRY_ALIGNMENT;
        }
        while at < body.len() {
            // One in small letters changes what the entries mean: a part of them may be in another file.
            body.get(at..at + 4)?.iter().all(u8::is_ascii_uppercase).then_some(())?;
            at = at.checked_add(8)?.checked_add(usize::try_from(number(at + 4)?).ok()?)?;
        }
        (at == body.len()).then_some(())
    }

    fn is_plain(&self, name: &[u8]) -> bool {
        use std::os::unix::ffi::OsStrExt as _;

        let path = Path::new(std::ffi::OsStr::from_bytes(name));
        let is_own = |part: &std::ffi::OsStr| {
            let part = part.to_string_lossy().to_ascii_lowercase();
            part == ".git" || part.starts_with("git~")
        };
        !name.is_empty()
            && name.split(|byte| *byte == b'/').all(|part| !part.is_empty() && part != b".")
            && path.components().all(|part| matches!(part, Component::Normal(part) if !is_own(part)))
            && !self.tree.join(path).starts_with(&self.repository)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(names: &[&str], rest: &[u8]) -> Vec<u8> {
        let mut bytes = b"DIRC\0\0\0\x02".to_vec();
        bytes.extend((names.len() as u32).to_be_bytes());
        for name in names {
            let start = bytes.len();
            bytes.extend([0; FIXED_BYTES]);
            bytes.extend((name.len() as u16).to_be_bytes());
            bytes.extend(name.as_bytes());
            bytes.push(0);
            while !(bytes.len() - start).is_multiple_of(ENTRY_ALIGNMENT) {
                bytes.push(0);
            }
        }
        bytes.extend(rest);
        bytes.extend([0; 20]);
        bytes
    }

    #[test]
    fn entries_that_leave_the_working_tree_are_found() {
        let place = IndexPlace { index: "/w/s/index".into(), repository: "/w/s".into(), tree: "/w".into() };
        let is_plain = |bytes: &[u8]| place.are_entries_plain(bytes, 20).is_some();
        assert!(is_plain(&index(&["a", "b/c.txt", "b/.gitignore", "seven77"], b"TREE\0\0\0\x02xx")));
        assert!(is_plain(&index(&[], b"")));
        for name in ["../a", "/a", "b/.git/hooks/x", ".GIT/config", "git~1/config", "s/hooks/x", "b//c", "./a", ""] {
            assert!(!is_plain(&index(&["a", name], b"")), "{name}");
        }
        assert!(!is_plain(&index(&["a"], b"link\0\0\0\x02xx")));
        assert!(!is_plain(&index(&["a"], b"TREE\0\0\0\xffxx")));
        assert!(!is_plain(b"DIRC\0\0\0\x04\0\0\0\0"));
        let mut longer = index(&["a"], b"");
        longer[11] = 9;
        assert!(!is_plain(&longer));
    }
}
