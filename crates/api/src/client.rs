//! A small blocking HTTP/1.1 client: one question, one answer of JSON, one connection. For `actum tool` inside a cell,
//! where whoever answers listens on the loopback of the cell; so no TLS, no proxies, no names to look up.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// The content of an answer.
pub const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// Status line and headers of an answer together.
const HEAD_BYTES_MAX: u64 = 64 << 10;
const HEADERS_MAX: usize = 64;
/// The line before a chunk: its size, and extensions nobody uses.
const CHUNK_LINE_BYTES_MAX: u64 = 256;
/// Headers after the last chunk; read and forgotten.
const TRAILERS_MAX: usize = 64;
/// `100 Continue` and its like before the answer itself.
const INTERIM_MAX: usize = 8;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("`{0}` is not an address of the form http://127.0.0.1:PORT/…")]
    Address(String),
    #[error("cannot reach {at}: {error}")]
    Unreachable { at: SocketAddr, error: io::Error },
    #[error("no answer within {0:?}")]
    Silent(Duration),
    #[error("the connection broke: {0}")]
    Broken(io::Error),
    #[error("the answer is larger than {ANSWER_BYTES_MAX} bytes")]
    TooLarge,
    #[error("the answer is not HTTP: {0}")]
    NotHttp(&'static str),
    #[error("the answer (status {status}) is not JSON: {error}")]
    NotJson { status: u16, error: serde_json::Error },
}

/// One question to `url` + `path`: the status, and the content as JSON (`null` if there is none). Any status is an
/// answer. `silence`: the longest time without a single byte, which for a call is as long as the call takes.
pub fn ask(
    url: &str,
    method: &str,
    path: &str,
    body: Option<&Value>,
    silence: Duration,
) -> Result<(u16, Value), ClientError> {
    let (at, prefix) = address(url).ok_or_else(|| ClientError::Address(url.to_owned()))?;
    let target = format!("{prefix}{path}");
    // A space or a line break would begin another part of the request.
    let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
    if !target.starts_with('/') || !is_plain(&target) || method.is_empty() || !is_plain(method) {
        return Err(ClientError::Address(format!("{method} {target}")));
    }
    let content = body.map(Value::to_string);
    let mut request =
        format!("{method} {target} HTTP/1.1\r\nhost: {at}\r\naccept: application/json\r\nconnection: close\r\n");
    if let Some(content) = &content {
        request.push_str(&format!("content-type: application/json\r\ncontent-length: {}\r\n", content.len()));
    }
    request.push_str("\r\n");
    request.push_str(content.as_deref().unwrap_or_default());

    let mut stream =
        TcpStream::connect_timeout(&at, silence).map_err(|error| ClientError::Unreachable { at, error })?;
    let timeouts = stream.set_read_timeout(Some(silence)).and(stream.set_write_timeout(Some(silence)));
    timeouts.map_err(ClientError::Broken)?;
    let written = stream.write_all(request.as_bytes());
    // Whoever refuses a request before its end answers and closes; that answer says more than the broken write.
    let (status, content) = match (read_answer(stream, method), written) {
        (Ok(answer), _) => answer,
        (Err(_), Err(error)) | (Err(ClientError::Broken(error)), Ok(())) => return Err(broken(error, silence)),
        (Err(error), Ok(())) => return Err(error),
    };
    if content.is_empty() {
        return Ok((status, Value::Null));
    }
    let value = serde_json::from_slice(&content).map_err(|error| ClientError::NotJson { status, error })?;
    Ok((status, value))
}

/// An id as one part of a path or a query: everything that could mean something there is written as `%XX`.
pub fn encode(id: &str) -> String {
    let mut text = String::with_capacity(id.len());
    for byte in id.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

fn address(url: &str) -> Option<(SocketAddr, &str)> {
    let rest = url.strip_prefix("http://")?;
    let (authority, prefix) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let at = match authority.strip_prefix("localhost:") {
        Some(port) => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port.parse().ok()?),
        None => authority.parse().ok()?,
    };
    Some((at, prefix.trim_end_matches('/')))
}

fn broken(error: io::Error, silence: Duration) -> ClientError {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ClientError::Silent(silence),
        _ => ClientError::Broken(error),
    }
}

/// How the end of the content is known.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Framing {
    Length(u64),
    Chunked,
    UntilClosed,
}

fn read_answer(stream: impl Read, method: &str) -> Result<(u16, Vec<u8>), ClientError> {
    let mut stream = BufReader::new(stream);
    for _ in 0..INTERIM_MAX {
        let (status, framing) = read_head(&mut stream)?;
        if status == 101 {
            return Err(ClientError::NotHttp("it changes to another protocol"));
        }
        if status < 200 {
            continue;
        }
        let has_content = method != "HEAD" && status != 204 && status != 304;
        let content = if has_content { read_content(&mut stream, framing)? } else { Vec::new() };
        return Ok((status, content));
    }
    Err(ClientError::NotHttp("it never gets beyond interim answers"))
}

fn read_head(stream: &mut impl BufRead) -> Result<(u16, Framing), ClientError> {
    let mut head = Vec::new();
    let mut rest = stream.take(HEAD_BYTES_MAX);
    while !head.ends_with(b"\r\n\r\n") {
        if rest.read_until(b'\n', &mut head).map_err(ClientError::Broken)? == 0 {
            let cut = if rest.limit() == 0 { "its head has no end" } else { "it ends within its head" };
            return Err(ClientError::NotHttp(cut));
        }
    }
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut answer = httparse::Response::new(&mut headers);
    let is_whole = answer.parse(&head).is_ok_and(|parsed| parsed.is_complete());
    let (true, Some(status)) = (is_whole, answer.code) else {
        return Err(ClientError::NotHttp("its head cannot be read"));
    };
    let mut framing = Framing::UntilClosed;
    for header in answer.headers.iter() {
        let value = str::from_utf8(header.value).unwrap_or_default().trim();
        if header.name.eq_ignore_ascii_case("transfer-encoding") {
            if !value.eq_ignore_ascii_case("chunked") {
                return Err(ClientError::NotHttp("its transfer encoding is unknown"));
            }
            framing = Framing::Chunked;
        } else if header.name.eq_ignore_ascii_case("content-length") && framing != Framing::Chunked {
            let length = value.parse().map_err(|_| ClientError::NotHttp("its length is not a number"))?;
            if matches!(framing, Framing::Length(other) if other != length) {
                return Err(ClientError::NotHttp("it has two lengths"));
            }
            framing = Framing::Length(length);
        }
    }
    Ok((status, framing))
}

fn read_content(stream: &mut impl BufRead, framing: Framing) -> Result<Vec<u8>, ClientError> {
    let mut content = Vec::new();
    match framing {
        Framing::Length(length) => append(stream, length, &mut content)?,
        Framing::Chunked => loop {
            let line = read_line(stream)?;
            let size = httparse::parse_chunk_size(&line);
            let Ok(httparse::Status::Complete((_, size))) = size else {
                return Err(ClientError::NotHttp("the size of a chunk cannot be read"));
            };
            if size == 0 {
                skip_trailers(stream)?;
                break;
            }
            append(stream, size, &mut content)?;
            if read_line(stream)? != b"\r\n" {
                return Err(ClientError::NotHttp("a chunk is longer than its size"));
            }
        },
        Framing::UntilClosed => {
            stream.take(ANSWER_BYTES_MAX + 1).read_to_end(&mut content).map_err(ClientError::Broken)?;
            if content.len() as u64 > ANSWER_BYTES_MAX {
                return Err(ClientError::TooLarge);
            }
        }
    }
    Ok(content)
}

fn append(stream: &mut impl BufRead, length: u64, content: &mut Vec<u8>) -> Result<(), ClientError> {
    if length > ANSWER_BYTES_MAX - content.len() as u64 {
        return Err(ClientError::TooLarge);
    }
    // Memory follows what arrives, not what was announced.
    let read = stream.take(length).read_to_end(content).map_err(ClientError::Broken)?;
    if (read as u64) < length { Err(ClientError::NotHttp("it ends within its content")) } else { Ok(()) }
}

fn read_line(stream: &mut impl BufRead) -> Result<Vec<u8>, ClientError> {
    let mut line = Vec::new();
    stream.take(CHUNK_LINE_BYTES_MAX).read_until(b'\n', &mut line).map_err(ClientError::Broken)?;
    if line.ends_with(b"\n") { Ok(line) } else { Err(ClientError::NotHttp("a line between chunks has no end")) }
}

fn skip_trailers(stream: &mut impl BufRead) -> Result<(), ClientError> {
    for _ in 0..TRAILERS_MAX {
        if read_line(stream)? == b"\r\n" {
            return Ok(());
        }
    }
    Err(ClientError::NotHttp("it has too many trailers"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::net::TcpListener;
    use std::thread::Builder;

    fn answer_of(text: &[u8]) -> Result<(u16, Vec<u8>), ClientError> {
        read_answer(text, "GET")
    }

    #[test]
    fn content_ends_by_length_by_chunks_or_with_the_connection() {
        let expected = (200, b"hello".to_vec());
        for text in [
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhelloXX",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nTrailer: 1\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\nhello",
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        ] {
            assert_eq!(answer_of(text.as_bytes()).unwrap(), expected, "{text}");
        }
        assert_eq!(answer_of(b"HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n").unwrap(), (204, Vec::new()));
        assert_eq!(read_answer(&b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"[..], "HEAD").unwrap().0, 200);
    }

    #[test]
    fn nonsense_is_no_answer() {
        for text in [
            "",
            "garbage",
            "SSH-2.0-x\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel",
            "HTTP/1.1 200 OK\r\ncontent-length: five\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhello\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
        ] {
            assert!(matches!(answer_of(text.as_bytes()), Err(ClientError::NotHttp(_))), "{text}");
        }
        let endless = "HTTP/1.1 100 Continue\r\n\r\n".repeat(INTERIM_MAX + 1);
        assert!(matches!(answer_of(endless.as_bytes()), Err(ClientError::NotHttp(_))));
    }

    #[test]
    fn a_large_answer_is_given_up_before_it_is_held() {
        let announced = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", ANSWER_BYTES_MAX + 1);
        assert!(matches!(answer_of(announced.as_bytes()), Err(ClientError::TooLarge)));
        let chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n";
        assert!(matches!(answer_of(chunked), Err(ClientError::TooLarge)));
        let endless = io::Cursor::new(b"HTTP/1.1 200 OK\r\n\r\n").chain(io::repeat(b'x'));
        assert!(matches!(read_answer(endless, "GET"), Err(ClientError::TooLarge)));
        let head = io::Cursor::new(b"HTTP/1.1 200 OK\r\n").chain(io::repeat(b'x'));
        assert!(matches!(read_answer(head, "GET"), Err(ClientError::NotHttp(_))));
    }

    #[test]
    fn what_would_be_another_request_is_not_sent() {
        let wait = Duration::from_secs(1);
        for (url, method, path) in [
            ("https://127.0.0.1:1/t/x", "GET", "/v1"),
            ("http://example.com/t/x", "GET", "/v1"),
            ("http://127.0.0.1/t/x", "GET", "/v1"),
            ("http://127.0.0.1:1", "GET", "v1"),
            ("http://127.0.0.1:1", "GET", "/a b"),
            ("http://127.0.0.1:1", "GET", "/a\r\nx: y"),
            ("http://127.0.0.1:1", "GET /", "/a"),
            ("http://127.0.0.1:1", "", "/a"),
        ] {
            assert!(
                matches!(ask(url, method, path, None, wait), Err(ClientError::Address(_))),
                "{url} {method} {path}"
            );
        }
        assert_eq!(encode("a/b?c d\u{e9}-._~"), "a%2Fb%3Fc%20d%C3%A9-._~");
    }

    #[test]
    fn a_question_and_its_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/t/abc", listener.local_addr().unwrap());
        let served = Builder::new().name("answer".into()).spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap());
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                lines.read_line(&mut head).unwrap();
            }
            let mut content = [0; 7];
            lines.read_exact(&mut content).unwrap();
            stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 7\r\n\r\n{\"b\":2}").unwrap();
            // The next one is heard and never answered.
            let (silent, _) = listener.accept().unwrap();
            (head, content, silent)
        });
        let (status, value) = ask(&url, "POST", "/v1/call", Some(&json!({"a": 1})), Duration::from_secs(10)).unwrap();
        assert_eq!((status, value), (404, json!({"b": 2})));
        let silence = Duration::from_millis(50);
        assert!(matches!(ask(&url, "GET", "/v1/tools/x", None, silence), Err(ClientError::Silent(_))));
        let (head, content, _silent) = served.unwrap().join().unwrap();
        assert!(head.starts_with("POST /t/abc/v1/call HTTP/1.1\r\nhost: 127.0.0.1:"), "{head}");
        assert_eq!(&content, b"{\"a\":1}");
    }
}
