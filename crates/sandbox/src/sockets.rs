//! Counting what the sockets of a cell hold in their buffers, which is in no process's account. The kernel lists the
//! sockets of a network namespace over netlink (`NETLINK_SOCK_DIAG`), without any rights.

use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// Room for one part of a list; the kernel sends no larger ones.
const PART_BYTES: usize = 32 << 10;

/// Parts that are read of one list. A cell has no more open files than fit.
const PARTS_MAX: usize = 4096;

const HEADER_BYTES: usize = 16;
const INET_MESSAGE_BYTES: usize = 72;
const UNIX_MESSAGE_BYTES: usize = 16;

/// `SOCK_DIAG_BY_FAMILY`, and the flags of a request for a whole list.
const BY_FAMILY: u16 = 20;
const REQUEST_LIST: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;

/// Attributes that are asked for: `INET_DIAG_SKMEMINFO`; of unix sockets `UNIX_DIAG_PEER`, `UNIX_DIAG_RQLEN` and
/// `UNIX_DIAG_MEMINFO`.
const INET_MEMORY: u16 = 7;
const UNIX_PEER: u16 = 2;
const UNIX_QUEUES: u16 = 4;
const UNIX_MEMORY: u16 = 5;
const SHOW_ALL: u32 = 0x4 | 0x10 | 0x20;

/// The most that the kernel takes for one byte in flight, and for all of a closed sender's bytes by default.
const MESSAGE_BYTES_MAX: u64 = 1 << 10;
const CLOSED_SENDER_BYTES_MAX: u64 = 208 << 10;

/// Places in an account of memory (`SK_MEMINFO_*`).
const RECEIVED: usize = 0;
const SENT: usize = 2;
const RESERVED: usize = 4;
const QUEUED: usize = 5;
const OPTIONS: usize = 6;
const BACKLOG: usize = 7;

/// The sockets of the network namespace that this process is in.
#[derive(Debug)]
pub(crate) struct SocketTable(Option<OwnedFd>);

impl SocketTable {
    /// Without `isolated`, or if the kernel does not list sockets, nothing is counted.
    pub(crate) fn open(isolated: bool) -> Self {
        let open = || {
            let flags = SocketFlags::CLOEXEC;
            let protocol = Some(netlink::SOCK_DIAG);
            rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol).ok()
        };
        Self(isolated.then(open).flatten())
    }

    /// Returns the memory in the buffers of all sockets.
    pub(crate) fn buffer_bytes(&self) -> u64 {
        let Some(line) = &self.0 else { return 0 };
        let inet = [libc::AF_INET, libc::AF_INET6].into_iter().flat_map(|family| {
            [libc::IPPROTO_TCP, libc::IPPROTO_UDP].map(|protocol| inet_request(family as u8, protocol as u8))
        });
        let mut bytes = 0;
        for request in inet {
            each_message(line, &request, |message| bytes += inet_bytes(message));
        }
        each_message(line, &unix_request(), |message| bytes += unix_bytes(message));
        bytes
    }
}

/// Returns the memory that a unix socket stands for. What is in flight is in the account of its sender. Once that is closed,
/// only the receiver's queue is left to go by: it gives the bytes sent, or those of the first message.
fn unix_bytes(message: &[u8]) -> u64 {
    let value = |wanted| attribute(message, UNIX_MESSAGE_BYTES, wanted);
    let held = value(UNIX_MEMORY).map_or(0, memory);
    let has_sender = value(UNIX_PEER).is_some_and(|peer| number(peer, 0) != 0);
    // A listener has connections in its queue, which are sockets of their own.
    let is_listening = message.get(2).is_some_and(|state| *state == LISTEN);
    let queued = value(UNIX_QUEUES).map_or(0, |queues| number(queues, 0));
    match has_sender || is_listening {
        true => held,
        false if message.get(1).is_some_and(|kind| i32::from(*kind) == libc::SOCK_STREAM) => {
            held + (queued * MESSAGE_BYTES_MAX).min(CLOSED_SENDER_BYTES_MAX.max(queued))
        }
        // The kernel reports only the first of several messages.
        false => held + if queued > 0 { CLOSED_SENDER_BYTES_MAX.max(queued) } else { 0 },
    }
}

/// `TCP_LISTEN`, also of unix sockets.
const LISTEN: u8 = 10;

fn request(body: &[u8]) -> Vec<u8> {
    let length = (HEADER_BYTES + body.len()) as u32;
    let mut bytes = Vec::with_capacity(length as usize);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(BY_FAMILY.to_ne_bytes());
    bytes.extend(REQUEST_LIST.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend(body);
    bytes
}

fn inet_request(family: u8, protocol: u8) -> Vec<u8> {
    let mut body = vec![family, protocol, 1 << (INET_MEMORY - 1), 0];
    body.extend(u32::MAX.to_ne_bytes());
    body.extend([0; 48]);
    request(&body)
}

fn unix_request() -> Vec<u8> {
    let mut body = vec![libc::AF_UNIX as u8, 0, 0, 0];
    body.extend(u32::MAX.to_ne_bytes());
    body.extend(0_u32.to_ne_bytes());
    body.extend(SHOW_ALL.to_ne_bytes());
    body.extend([0; 8]);
    request(&body)
}

/// Asks for a list and hands on what follows the header of each message.
fn each_message(line: &OwnedFd, request: &[u8], mut take: impl FnMut(&[u8])) {
    if rustix::net::send(line, request, SendFlags::empty()).is_err() {
        return;
    }
    let mut part = vec![0; PART_BYTES];
    for _ in 0..PARTS_MAX {
        let Ok((length, _)) = rustix::net::recv(line, &mut part[..], RecvFlags::empty()) else { return };
        let mut rest = &part[..length.min(PART_BYTES)];
        while rest.len() >= HEADER_BYTES {
            let length = number(rest, 0) as usize;
            let kind = u16::from_ne_bytes([rest[4], rest[5]]);
            if kind != BY_FAMILY || !(HEADER_BYTES..=rest.len()).contains(&length) {
                return;
            }
            take(&rest[HEADER_BYTES..length]);
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
    }
}

fn inet_bytes(message: &[u8]) -> u64 {
    attribute(message, INET_MESSAGE_BYTES, INET_MEMORY).map_or(0, memory)
}

/// Returns one attribute of those that follow the fixed part of a message.
fn attribute(message: &[u8], fixed: usize, wanted: u16) -> Option<&[u8]> {
    let mut rest = message.get(fixed..)?;
    while rest.len() >= 4 {
        let length = usize::from(u16::from_ne_bytes([rest[0], rest[1]]));
        let kind = u16::from_ne_bytes([rest[2], rest[3]]);
        let value = rest.get(4..length)?;
        if kind == wanted {
            return Some(value);
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
    None
}

fn memory(account: &[u8]) -> u64 {
    let at = |index: usize| number(account, 4 * index);
    at(RECEIVED) + at(RESERVED) + at(OPTIONS) + at(BACKLOG) + at(SENT).max(at(QUEUED))
}

fn number(bytes: &[u8], at: usize) -> u64 {
    let found = bytes.get(at..at + 4).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
    u64::from(found.map_or(0, u32::from_ne_bytes))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn grows_by(bytes: u64, hold: impl FnOnce() -> Box<dyn std::any::Any>) {
        let table = SocketTable::open(true);
        let before = table.buffer_bytes();
        let held = hold();
        // Other tests have sockets in the same network, which may give back meanwhile.
        assert!(table.buffer_bytes() + (64 << 10) > before + bytes, "{before}");
        drop(held);
    }

    #[test]
    fn counts_what_is_sent_and_not_received() {
        grows_by(200 << 10, || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let receiver = listener.accept().unwrap();
            sender.write_all(&[0; 200 << 10]).unwrap();
            Box::new((sender, receiver))
        });
        grows_by(100 << 10, || {
            let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
            let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
            for _ in 0..4 {
                sender.send_to(&[0; 32 << 10], receiver.local_addr().unwrap()).unwrap();
            }
            Box::new(receiver)
        });
        grows_by(100 << 10, || {
            let (mut sender, receiver) = UnixStream::pair().unwrap();
            sender.write_all(&[0; 100 << 10]).unwrap();
            Box::new(receiver)
        });
    }
}
