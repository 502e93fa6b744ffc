//! A tree as one file that every system can unpack. The same tree is the same archive, byte by byte: no names of people, no times.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use actum_api::error;
use actum_contract::blob::Blobs;
use actum_contract::digest::Digest;
use actum_workspace::{Kind, leaves};
use tar::{Builder, EntryType, Header};

use crate::failure::Failure;

/// The name by which the web knows such a file.
pub(crate) const CONTENT_TYPE: &str = "application/x-tar";

/// Writes it, and says how many files there are.
pub(crate) fn write(blobs: &dyn Blobs, tree: Digest, into: &mut dyn Write) -> Result<usize, Failure> {
    let cannot = |e: io::Error| Failure::new(error::FILE, format!("cannot write the archive: {e}"));
    let all = leaves(blobs, tree)?;
    let mut archive = Builder::new(into);
    for (path, node) in &all {
        let path = Path::new(OsStr::from_bytes(path.as_bytes()));
        let mut header = Header::new_gnu();
        let (kind, mode) = match node.kind {
            Kind::File => (EntryType::Regular, 0o644),
            Kind::Executable => (EntryType::Regular, 0o755),
            Kind::Symlink => (EntryType::Symlink, 0o777),
            // One that is empty; the others follow from what is in them.
            Kind::Folder => (EntryType::Directory, 0o755),
        };
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(0);
        let added = match node.kind {
            Kind::Folder => archive.append_data(&mut header, path, io::empty()),
            Kind::Symlink => {
                // To the letter, whether or not it leads anywhere; a long one has an entry of its own before it.
                let target = blobs.read(node.digest)?;
                match header.set_link_name_literal(&target) {
                    Ok(()) => archive.append_data(&mut header, path, io::empty()),
                    Err(_) => archive.append_link(&mut header, path, Path::new(OsStr::from_bytes(&target))),
                }
            }
            Kind::File | Kind::Executable => {
                let content = blobs.read(node.digest)?;
                header.set_size(content.len() as u64);
                archive.append_data(&mut header, path, content.as_slice())
            }
        };
        added.map_err(cannot)?;
    }
    archive.finish().map_err(cannot)?;
    Ok(all.len())
}
