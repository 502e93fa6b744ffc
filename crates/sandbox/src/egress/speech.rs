//! What a connection says of itself in its first bytes: the name in a TLS greeting, or the request of plain HTTP. Reads
//! bytes; decides nothing.

use tls_parser::{TlsExtension, TlsExtensionType, TlsMessage, TlsMessageHandshake, TlsRecordType};

/// Longest beginning that is looked at.
pub(super) const BEGINNING_BYTES_MAX: usize = 64 << 10;

/// An extension behind which the real name is hidden.
const ENCRYPTED_HELLO: u16 = 0xfe0d;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Speech {
    /// Not enough bytes yet to tell.
    More,
    Tls(Greeting),
    Http(Box<Request>),
    /// Neither.
    Other,
    /// One of the two, and not to be understood.
    Broken,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Greeting {
    pub name: Option<String>,
    /// There may be another name under the one that is shown.
    pub hides: bool,
}

/// A request of plain HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    pub method: String,
    pub target: String,
    /// All that it names, each once.
    pub hosts: Vec<String>,
    pub body: Body,
    /// The lines that are passed on, without those between neighbours.
    pub headers: Vec<(String, Vec<u8>)>,
    /// Bytes up to the body.
    pub length: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Body {
    Length(u64),
    Chunked,
    /// Said in two ways, or not as it must be.
    Unclear,
}

/// Lines between neighbours, which end with us.
const BETWEEN_NEIGHBOURS: &[&str] =
    &["connection", "keep-alive", "proxy-connection", "proxy-authorization", "upgrade", "te", "trailer"];

pub(super) fn listen(beginning: &[u8]) -> Speech {
    match hear(beginning) {
        // Whoever takes so long to say something hides it.
        Speech::More if beginning.len() >= BEGINNING_BYTES_MAX => Speech::Broken,
        // Servers read generously; what they would take for a request is not let through as something else.
        Speech::Other if beginning.windows(5).any(|w| w.eq_ignore_ascii_case(b"HTTP/")) => Speech::Broken,
        speech => speech,
    }
}

fn hear(beginning: &[u8]) -> Speech {
    if beginning.is_empty() {
        return Speech::More;
    }
    if beginning[0] == 0x16 {
        return tls(beginning);
    }
    // Servers skip empty lines before a request, and so does who wants to be overlooked.
    let empty = beginning.iter().take_while(|b| [b'\r', b'\n'].contains(b)).count();
    let text = &beginning[empty..];
    let word = text.iter().take_while(|b| b.is_ascii_alphabetic() || **b == b'-' || **b == b'_').count();
    match text.get(word) {
        _ if word > METHOD_BYTES_MAX => Speech::Other,
        None => Speech::More,
        Some(b' ') if word > 0 => http(beginning, empty),
        _ => Speech::Other,
    }
}

/// Longest word that may be the method of a request.
const METHOD_BYTES_MAX: usize = 32;

fn tls(beginning: &[u8]) -> Speech {
    let mut message = Vec::new();
    let mut rest = beginning;
    // A greeting may come in several records.
    loop {
        match tls_parser::parse_tls_raw_record(rest) {
            Ok((after, record)) if record.hdr.record_type == TlsRecordType::Handshake => {
                message.extend_from_slice(record.data);
                rest = after;
            }
            Err(e) if e.is_incomplete() => break,
            _ => return Speech::Broken,
        }
        if let Some(length) = message.get(1..4) {
            let length = usize::from(length[0]) << 16 | usize::from(length[1]) << 8 | usize::from(length[2]);
            if message.len() >= 4 + length {
                return greeting(&message);
            }
        }
    }
    Speech::More
}

fn greeting(message: &[u8]) -> Speech {
    let Ok((_, TlsMessage::Handshake(TlsMessageHandshake::ClientHello(hello)))) =
        tls_parser::parse_tls_message_handshake(message)
    else {
        return Speech::Broken;
    };
    let Some(Ok((left, extensions))) = hello.ext.map(tls_parser::parse_tls_client_hello_extensions) else {
        return Speech::Tls(Greeting { name: None, hides: false });
    };
    let mut names = Vec::new();
    // What could not be read to the end may hide anything.
    let mut hides = !left.is_empty();
    for extension in &extensions {
        match extension {
            TlsExtension::SNI(entries) => names.extend(entries.iter().map(|(_, name)| *name)),
            TlsExtension::EncryptedServerName { .. } => hides = true,
            TlsExtension::Unknown(TlsExtensionType(ENCRYPTED_HELLO), _) => hides = true,
            _ => {}
        }
    }
    let name = match names.as_slice() {
        [name] => std::str::from_utf8(name).ok().map(ToOwned::to_owned),
        [] => None,
        _ => {
            hides = true;
            None
        }
    };
    Speech::Tls(Greeting { name, hides })
}

/// Host and rest of a target that names its host, as one to a proxy does. In any other, whatever it contains is a path.
pub(super) fn absolute(target: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = target.split_once("://")?;
    if !scheme.bytes().all(|b| b.is_ascii_alphanumeric() || [b'+', b'-', b'.'].contains(&b)) {
        return None;
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    Some(rest.split_at(end))
}

fn http(beginning: &[u8], empty: usize) -> Speech {
    let mut lines = [httparse::EMPTY_HEADER; 128];
    let mut request = httparse::Request::new(&mut lines);
    let length = match request.parse(&beginning[empty..]) {
        Ok(httparse::Status::Complete(length)) => empty + length,
        Ok(httparse::Status::Partial) if beginning.len() < BEGINNING_BYTES_MAX => return Speech::More,
        // Some other protocol that begins with a word.
        Err(httparse::Error::Version | httparse::Error::Token | httparse::Error::NewLine) => return Speech::Other,
        _ => return Speech::Broken,
    };
    let (method, target) = (request.method.unwrap_or_default(), request.path.unwrap_or_default());
    let mut hosts = Vec::new();
    if let Some((host, _)) = absolute(target) {
        hosts.push(host.to_owned());
    }
    let mut body = Body::Length(0);
    let mut lengths = Vec::new();
    let mut headers = Vec::new();
    for header in request.headers.iter() {
        let name = header.name.to_ascii_lowercase();
        let value = String::from_utf8_lossy(header.value).trim().to_owned();
        match name.as_str() {
            "host" => hosts.push(value),
            "content-length" => lengths.push(value),
            "transfer-encoding" => {
                let is_plain = value.eq_ignore_ascii_case("chunked") && body == Body::Length(0);
                body = if is_plain { Body::Chunked } else { Body::Unclear };
            }
            _ => {}
        }
        if !BETWEEN_NEIGHBOURS.contains(&name.as_str()) {
            headers.push((header.name.to_owned(), header.value.to_vec()));
        }
    }
    lengths.dedup();
    body = match (body, lengths.as_slice()) {
        (body, []) => body,
        (Body::Length(_), [one]) if one.bytes().all(|b| b.is_ascii_digit()) => {
            one.parse().map_or(Body::Unclear, Body::Length)
        }
        // A length and pieces at once: two readers would see two different requests.
        _ => Body::Unclear,
    };
    hosts.dedup();
    Speech::Http(Box::new(Request {
        method: method.to_owned(),
        target: target.to_owned(),
        hosts,
        body,
        headers,
        length,
    }))
}

/// Follows a body in pieces to its end.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    state: Chunk,
    left: u64,
    line: Vec<u8>,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Chunk {
    #[default]
    Size,
    Data,
    AfterData,
    Trailer,
    End,
}

impl Chunks {
    /// How many of these bytes belong to the body. `None` if they are no pieces.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while at < bytes.len() && self.state != Chunk::End {
            if self.state == Chunk::Data {
                let step = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len() - at);
                (at, self.left) = (at + step, self.left - step as u64);
                if self.left == 0 {
                    self.state = Chunk::AfterData;
                }
                continue;
            }
            self.line.push(bytes[at]);
            at += 1;
            if self.line.len() > 4096 {
                return None;
            }
            if !self.line.ends_with(b"\r\n") {
                continue;
            }
            let line = std::mem::take(&mut self.line);
            let line = &line[..line.len() - 2];
            self.state = match self.state {
                Chunk::Size => {
                    let digits = line.split(|b| *b == b';').next()?;
                    self.left = u64::from_str_radix(std::str::from_utf8(digits).ok()?.trim(), 16).ok()?;
                    if self.left == 0 { Chunk::Trailer } else { Chunk::Data }
                }
                Chunk::AfterData if line.is_empty() => Chunk::Size,
                Chunk::Trailer if line.is_empty() => Chunk::End,
                Chunk::Trailer => Chunk::Trailer,
                _ => return None,
            };
        }
        Some(at)
    }

    pub(super) fn are_over(&self) -> bool {
        self.state == Chunk::End
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str) -> Request {
        match listen(text.as_bytes()) {
            Speech::Http(request) => *request,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn requests_say_whom_they_want() {
        let plain = request("GET /x HTTP/1.1\r\nHost: a.test\r\nConnection: upgrade\r\nUpgrade: h2c\r\nX: y\r\n\r\n");
        assert_eq!((plain.hosts.as_slice(), plain.body), (["a.test".to_owned()].as_slice(), Body::Length(0)));
        assert_eq!(plain.headers.len(), 2);
        let both = request("GET http://a.test/x HTTP/1.1\r\nHost: b.test\r\n\r\n");
        assert_eq!(both.hosts, ["a.test", "b.test"]);
        let query = request("GET /login?next=http://b.test/x HTTP/1.1\r\nHost: a.test\r\n\r\n");
        assert_eq!(query.hosts, ["a.test"], "an address in a path is a part of the path");
        assert_eq!(absolute("http://a.test?q=1/2"), Some(("a.test", "?q=1/2")));
        let unclear = request("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n");
        assert_eq!(unclear.body, Body::Unclear);
        let twice = request("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n");
        assert_eq!(twice.body, Body::Unclear);
        assert_eq!(listen(b"GET / HT"), Speech::More);
        assert_eq!(listen(b"SSH-2.0-x\r\n"), Speech::Other);
        assert_eq!(listen(b"EHLO me\r\n"), Speech::Other);
        assert_eq!(request("\r\nPROPFIND / HTTP/1.1\r\nHost: a.test\r\n\r\n").hosts, ["a.test"]);
        for odd in [
            "GET  / HTTP/1.1\r\n\r\n",
            "GET\t/ HTTP/1.1\r\n\r\n",
            " GET / HTTP/1.1\r\n",
            "GET1 / HTTP/1.1\r\n",
            "PRI * HTTP/2.0\r\n\r\n",
        ] {
            assert_eq!(listen(odd.as_bytes()), Speech::Broken, "{odd:?}");
        }
        assert_eq!(absolute("h-t+p://evil.test/"), Some(("evil.test", "/")));
        let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(200));
        assert_eq!(listen(many.as_bytes()), Speech::Broken);
        let signed = request("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +4\r\n\r\n");
        assert_eq!(signed.body, Body::Unclear);
    }

    #[test]
    fn greetings_say_their_name() {
        let hello = |extensions: &[u8]| {
            let mut body = vec![3, 3];
            body.extend([7; 32]);
            body.extend([0, 0, 2, 0x13, 1, 1, 0]);
            body.extend(u16::try_from(extensions.len()).unwrap().to_be_bytes());
            body.extend(extensions);
            let length = u32::try_from(body.len()).unwrap().to_be_bytes();
            let message = [&[1], &length[1..], &body].concat();
            let length = u16::try_from(message.len()).unwrap().to_be_bytes();
            [&[0x16, 3, 1], &length[..], &message].concat()
        };
        let name = |name: &str| {
            let length = u16::try_from(name.len()).unwrap();
            let list = [&[0][..], &length.to_be_bytes(), name.as_bytes()].concat();
            let of = |n: usize| u16::try_from(n).unwrap().to_be_bytes();
            [&[0, 0][..], &of(list.len() + 2), &of(list.len()), &list].concat()
        };
        let whole = hello(&name("a.test"));
        assert_eq!(listen(&whole), Speech::Tls(Greeting { name: Some("a.test".into()), hides: false }));
        for cut in 1..whole.len() {
            assert_eq!(listen(&whole[..cut]), Speech::More, "{cut}");
        }
        let hidden = hello(&[name("a.test"), vec![0xfe, 0x0d, 0, 1, 0]].concat());
        assert_eq!(listen(&hidden), Speech::Tls(Greeting { name: Some("a.test".into()), hides: true }));
        assert_eq!(listen(&hello(&[])), Speech::Tls(Greeting { name: None, hides: false }));
        assert_eq!(listen(&[0x16, 9, 9, 0xff, 0xff, 1]), Speech::Broken);
    }

    #[test]
    fn pieces_are_followed_to_their_end_and_no_further() {
        let body = b"5;x=y\r\nhello\r\n0\r\nT: v\r\n\r\nGET / HTTP/1.1\r\n";
        let end = body.len() - 16;
        let mut whole = Chunks::default();
        assert_eq!(whole.take(body), Some(end));
        assert!(whole.are_over());
        let mut bytewise = Chunks::default();
        let taken: usize = body.iter().map(|b| bytewise.take(&[*b]).unwrap()).sum();
        assert_eq!(taken, end);
        assert_eq!(Chunks::default().take(b"zz\r\n"), None);
    }
}
