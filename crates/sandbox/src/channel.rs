//! Messages between us and our own helpers: a length, a text, and open files beside it. Both ends are this program.

use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Open files that one message may carry. The system takes 253.
pub(crate) const FILES_MAX: usize = 250;

/// Arguments and environment of a program are limited to two megabytes by the system; as numbers they are longer.
const MESSAGE_BYTES_MAX: usize = 32 << 20;

pub(crate) fn send(to: &UnixStream, message: &impl Serialize, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    if files.len() > FILES_MAX || text.len() > MESSAGE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "more paths or longer arguments than a cell can take"));
    }
    let length = u32::try_from(text.len()).map_err(io::Error::other)?.to_ne_bytes();
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        beside.push(SendAncillaryMessage::ScmRights(files));
    }
    // The files travel with the first byte; whatever did not fit follows.
    let whole = [&length[..], &text].concat();
    let sent = rustix::net::sendmsg(to, &[IoSlice::new(&whole)], &mut beside, SendFlags::NOSIGNAL)?;
    (&mut &*to).write_all(&whole[sent..])
}

/// The next message; nothing when the other end is gone.
pub(crate) fn receive<T: DeserializeOwned>(from: &UnixStream) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut length = [0_u8; 4];
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let mut files = Vec::new();
    let got = loop {
        let mut room = [IoSliceMut::new(&mut length)];
        match rustix::net::recvmsg(from, &mut room, &mut beside, RecvFlags::CMSG_CLOEXEC) {
            Ok(got) => break got.bytes,
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CONNRESET) => return Ok(None),
            Err(e) => return Err(e.into()),
        }
    };
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            files.extend(received);
        }
    }
    if got == 0 {
        return Ok(None);
    }
    (&mut &*from).read_exact(&mut length[got..])?;
    let length = u32::from_ne_bytes(length) as usize;
    if length > MESSAGE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message without end"));
    }
    let mut text = vec![0; length];
    (&mut &*from).read_exact(&mut text)?;
    Ok(Some((serde_json::from_slice(&text)?, files)))
}

pub(crate) fn borrow<T: AsFd>(files: &[T]) -> Vec<BorrowedFd<'_>> {
    files.iter().map(AsFd::as_fd).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_files_arrive_in_order() {
        let (a, b) = UnixStream::pair().unwrap();
        let long = "x".repeat(3 << 20);
        let writer = std::thread::Builder::new()
            .spawn(move || {
                let (read, write) = io::pipe().unwrap();
                send(&a, &long, &[write.as_fd()]).unwrap();
                drop(write);
                send(&a, &"short", &[]).unwrap();
                read
            })
            .unwrap();
        let (text, files): (String, _) = receive(&b).unwrap().unwrap();
        assert_eq!((text.len(), files.len()), (3 << 20, 1));
        let (text, none): (String, _) = receive(&b).unwrap().unwrap();
        assert_eq!((text.as_str(), none.len()), ("short", 0));
        let mut read = writer.join().unwrap();
        assert!(receive::<String>(&b).unwrap().is_none(), "the other end is gone");
        let mut pipe = std::fs::File::from(files.into_iter().next().unwrap());
        pipe.write_all(b"through").unwrap();
        drop(pipe);
        let mut got = String::new();
        read.read_to_string(&mut got).unwrap();
        assert_eq!(got, "through");
    }
}
