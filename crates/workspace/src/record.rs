//! Small files this crate keeps for itself: a magic line with a version, fields, and a digest over both at the end. A
//! file that is torn or foreign is known as such; one from a newer program is refused by name.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use actum_contract::digest::Digest;

use crate::error::{Error, Result, at};
use crate::path::TreePath;
use crate::tree::{Kind, Node};

const DIGEST_BYTES: usize = 32;

/// Fields being written.
#[derive(Debug)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    /// `magic` ends with its version and a newline.
    pub(crate) fn new(magic: &str) -> Self {
        Self(magic.as_bytes().to_vec())
    }

    pub(crate) fn number(&mut self, number: u64) -> &mut Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    /// Without a length: can only stand at the end.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn digest(&mut self, digest: Digest) -> &mut Self {
        self.0.extend_from_slice(&digest.0);
        self
    }

    pub(crate) fn node(&mut self, node: Option<Node>) -> &mut Self {
        match node {
            None => self.0.push(b'-'),
            Some(node) => {
                self.0.push(node.kind.to_byte());
                self.digest(node.digest);
            }
        }
        self
    }

    fn finish(mut self) -> Vec<u8> {
        let check = Digest::blake3(&self.0);
        self.0.extend_from_slice(&check.0);
        self.0
    }

    /// Writes the file aside and gives it its name in one step. `durable`: survives the machine stopping.
    pub(crate) fn save(self, path: &Path, durable: bool) -> Result<()> {
        let aside = path.with_extension(format!("tmp-{}", unique()));
        let bytes = self.finish();
        let written = File::create(&aside).and_then(|mut file| {
            file.write_all(&bytes)?;
            if durable { file.sync_data() } else { Ok(()) }
        });
        let named = written.and_then(|()| std::fs::rename(&aside, path));
        if named.is_err() {
            let _ = std::fs::remove_file(&aside);
        }
        named.map_err(at("write", path))?;
        if durable { sync_parent(path) } else { Ok(()) }
    }
}

/// A name that no other process has, and no other thread of this one.
pub(crate) fn unique() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Makes the names in the folder of `path` durable.
pub(crate) fn sync_parent(path: &Path) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(at("sync", folder))
}

/// Fields being read, in the order of writing.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    place: &'a str,
}

/// What lies in a folder that may not be there yet, in order.
pub(crate) fn listed(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(at("list", folder)(e)),
    };
    let paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>();
    let mut paths = paths.map_err(at("list", folder))?;
    paths.sort();
    Ok(paths)
}

/// The whole file, or nothing if there is none.
pub(crate) fn load(path: &Path) -> Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(at("open", path)(e)),
        Ok(mut file) => file.read_to_end(&mut bytes).map(|_| Some(bytes)).map_err(at("read", path)),
    }
}

/// Whether the digest at the end is that of what stands before it.
pub(crate) fn is_sound(bytes: &[u8]) -> bool {
    bytes.split_last_chunk::<DIGEST_BYTES>().is_some_and(|(body, check)| Digest::blake3(body) == Digest(*check))
}

impl<'a> Reader<'a> {
    /// Checks the magic and the digest. `place` is the name in messages.
    pub(crate) fn new(magic: &str, bytes: &'a [u8], place: &'a str) -> Result<Self> {
        let broken = || Error::Record(place.to_owned());
        let (magic, name) = (magic.as_bytes(), magic.trim_end_matches(|c: char| !c.is_alphabetic()).as_bytes());
        if !bytes.starts_with(magic) {
            return Err(if bytes.starts_with(name) { Error::Newer(place.to_owned()) } else { broken() });
        }
        if !is_sound(bytes) {
            return Err(broken());
        }
        Self::unchecked(magic.len(), bytes, place)
    }

    /// Leaves the check of the digest to the caller (`is_sound`).
    pub(crate) fn unchecked(magic_bytes: usize, bytes: &'a [u8], place: &'a str) -> Result<Self> {
        let broken = || Error::Record(place.to_owned());
        let (body, _) = bytes.split_last_chunk::<DIGEST_BYTES>().ok_or_else(broken)?;
        Ok(Self { rest: body.get(magic_bytes..).ok_or_else(broken)?, place })
    }

    fn broken(&self) -> Error {
        Error::Record(self.place.to_owned())
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or_else(|| self.broken())?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn number(&mut self) -> Result<u64> {
        let bytes = self.take(8)?;
        bytes.try_into().map(u64::from_le_bytes).map_err(|_| self.broken())
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8]> {
        let count = usize::try_from(self.number()?).map_err(|_| self.broken())?;
        self.take(count)
    }

    pub(crate) fn text(&mut self) -> Result<String> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| self.broken())
    }

    pub(crate) fn path(&mut self) -> Result<TreePath> {
        TreePath::new(self.bytes()?).ok_or_else(|| self.broken())
    }

    pub(crate) fn digest(&mut self) -> Result<Digest> {
        Digest::from_slice(self.take(DIGEST_BYTES)?).ok_or_else(|| self.broken())
    }

    pub(crate) fn node(&mut self) -> Result<Option<Node>> {
        match self.take(1)? {
            b"-" => Ok(None),
            kind => {
                let kind = Kind::from_byte(kind[0]).ok_or_else(|| self.broken())?;
                Ok(Some(Node { kind, digest: self.digest()? }))
            }
        }
    }

    /// Everything after the fields read so far.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_threads_write_the_same_record() {
        let folder = actum_testkit::folder::Folder::new();
        let path = folder.join("record");
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| (0..100).for_each(|_| Writer::new("test 1\n").save(&path, false).unwrap()));
            }
        });
        assert_eq!(listed(folder.path()).unwrap(), [path]);
    }
}
