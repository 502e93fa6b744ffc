//! A tree as one file that every system can unpack. The same tree is the same archive, byte by byte: no names of people, no times.

use std::ffi::OsStr;
use std::io::{self, Read as _, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use actum_api::error;
use actum_contract::blob::Blobs;
use actum_contract::digest::Digest;
use actum_workspace::{Kind, Node, leaves, read_at_most};
use tar::{Builder, EntryType, Header};

use crate::failure::Failure;

/// The name by which the web knows such a file.
pub(crate) const CONTENT_TYPE: &str = "application/x-tar";

/// Why it is not written to a terminal.
pub(crate) const NOT_TO_READ: &str = "an archive is nothing to read";

/// Contents that are brought near together.
const FETCHED_MAX: usize = 64;

/// What each file takes beside its content.
const ENTRY_BYTES: usize = 512;

/// Writes it, and says how many files there are. More than so many bytes of files are refused before they are read.
pub(crate) fn write(blobs: &dyn Blobs, tree: Digest, bytes_max: usize, into: &mut dyn Write) -> Result<usize, Failure> {
    let cannot = |e: io::Error| Failure::of_io(format!("cannot write the archive: {e}"), &e);
    let too_large = || {
        let message = format!("its files are more than {bytes_max} bytes together");
        Failure::new(error::INPUT, message).hint("have it on the machine: `actum workspace checkout`")
    };
    let mut bytes_left = bytes_max;
    let mut read = |node: &Node| -> Result<Vec<u8>, Failure> {
        bytes_left = bytes_left.checked_sub(ENTRY_BYTES).ok_or_else(too_large)?;
        if node.kind == Kind::Folder {
            return Ok(Vec::new());
        }
        let content = read_at_most(blobs, node.digest, bytes_left)?.ok_or_else(too_large)?;
        bytes_left -= content.len();
        Ok(content)
    };
    let all = leaves(blobs, tree)?;
    let mut archive = Builder::new(into);
    for (at, (path, node)) in all.iter().enumerate() {
        if at % FETCHED_MAX == 0 {
            let soon = all[at..].iter().take(FETCHED_MAX).filter(|(_, node)| node.kind != Kind::Folder);
            blobs.fetch(&soon.map(|(_, node)| node.digest).collect::<Vec<_>>())?;
        }
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
        let content = read(node)?;
        let added = match node.kind {
            Kind::Folder => archive.append_data(&mut header, path, io::empty()),
            Kind::Symlink => {
                // To the letter, whether or not it leads anywhere; a long one has an entry of its own before it.
                let target = content.as_slice();
                if header.set_link_name_literal(target).is_err() {
                    let mut before = Header::new_gnu();
                    before.set_entry_type(EntryType::GNULongLink);
                    before.set_size(target.len() as u64 + 1);
                    archive.append_data(&mut before, "@LongLink", target.chain(&[0][..])).map_err(cannot)?;
                }
                archive.append_data(&mut header, path, io::empty())
            }
            Kind::File | Kind::Executable => {
                header.set_size(content.len() as u64);
                archive.append_data(&mut header, path, content.as_slice())
            }
        };
        added.map_err(cannot)?;
    }
    archive.finish().map_err(cannot)?;
    Ok(all.len())
}
