//! A small blocking HTTP/1.1 client: one question, one answer, one connection; no proxies, no redirections. `ask` is for
//! `actum tool` inside a cell, where whoever answers listens on the loopback of the cell, so no names are looked up; `send` is
//! for `actum --server`, and speaks https by whatever it was given for it. Neither ever asks a second time.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::Value;

/// The content of an answer.
pub const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// How long it may take until somebody takes the connection.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// Where a server listens whose address names no port.
const PORT: u16 = 80;
const SECURE_PORT: u16 = 443;
/// Status line and headers of an answer together.
const HEAD_BYTES_MAX: u64 = 64 << 10;
const HEADERS_MAX: usize = 64;
/// The line before a chunk: its size, and extensions nobody uses.
const CHUNK_LINE_BYTES_MAX: u64 = 256;
/// Headers after the last chunk; read and forgotten.
const TRAILERS_MAX: usize = 64;
/// `100 Continue` and its like before the answer itself.
const INTERIM_MAX: usize = 8;

/// A connection, plain or not.
pub trait Line: Read + Write + Send {}

impl<T: Read + Write + Send> Line for T {}

/// Makes a connection secure: whoever answers must be known by that name.
pub type Secure = fn(TcpStream, &str) -> io::Result<Box<dyn Line>>;

static SECURE: OnceLock<Secure> = OnceLock::new();

/// From now on https is spoken in this way. What is said first counts.
pub fn speak_securely(secure: Secure) {
    SECURE.get_or_init(|| secure);
}

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("`{0}` is not an address of the form http://127.0.0.1:PORT/…")]
    Address(String),
    #[error("cannot reach {at}: {error}")]
    Unreachable { at: SocketAddr, error: io::Error },
    #[error("TLS verification failed for {name}: {error}")]
    Insecure { name: String, error: io::Error },
    #[error("no answer within {0:?}")]
    Silent(Duration),
    #[error("the connection broke: {0}")]
    Broken(io::Error),
    #[error("no address is known for `{0}`")]
    Nowhere(String),
    #[error("a header of the request cannot be sent: {0}")]
    Header(String),
    #[error("the answer is larger than {0} bytes")]
    TooLarge(u64),
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

    let stream = connect(at, silence, silence)?;
    let Answer { status, content, .. } = exchange(stream, method, &[request.as_bytes()], silence, ANSWER_BYTES_MAX)?;
    if content.is_empty() {
        return Ok((status, Value::Null));
    }
    let value = serde_json::from_slice(&content).map_err(|error| ClientError::NotJson { status, error })?;
    Ok((status, value))
}

/// A question to a server.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// `http://HOST[:PORT]` or `https://…`, with what stands before every path.
    pub url: &'a str,
    pub method: &'a str,
    /// With its query.
    pub path: &'a str,
    /// Beside those that say how the content is sent.
    pub headers: &'a [(&'a str, &'a str)],
    pub content: Option<&'a [u8]>,
    /// The longest time without a single byte.
    pub silence: Duration,
    pub answer_bytes_max: u64,
}

/// Whatever came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub content: Vec<u8>,
}

impl Answer {
    /// The value of a header that is there once, by its name in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(own, _)| own.eq_ignore_ascii_case(name));
        let (Some((_, value)), None) = (found.next(), found.next()) else { return None };
        Some(value)
    }
}

/// One question, whatever its content; the name of the server may have to be looked up. Any status is an answer.
pub fn send(request: &Request<'_>) -> Result<Answer, ClientError> {
    let (head, whom) = head_of(request)?;
    let stream = reach(&whom, request.silence)?;
    let content = request.content.unwrap_or_default();
    exchange(stream, request.method, &[head.as_bytes(), content], request.silence, request.answer_bytes_max)
}

/// A question that was sent, and whose answer is still to be read.
pub(crate) fn begin(request: &Request<'_>) -> Result<Box<dyn Line>, ClientError> {
    let (head, whom) = head_of(request)?;
    let silence = request.silence;
    let mut stream = reach(&whom, silence)?;
    let content = request.content.unwrap_or_default();
    let written = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(content));
    written.map_err(|error| broken(error, silence))?;
    Ok(stream)
}

/// The rest of an answer whose head was read.
pub(crate) fn read_rest(
    mut stream: impl BufRead,
    status: u16,
    headers: Headers,
    framing: Framing,
    request: &Request<'_>,
) -> Result<Answer, ClientError> {
    let content = read_content(&mut stream, framing, request.answer_bytes_max)?;
    Ok(Answer { status, headers, content })
}

/// Line and headers of a request, and who is asked.
fn head_of<'a>(request: &Request<'a>) -> Result<(String, Whom<'a>), ClientError> {
    let bad = || ClientError::Address(request.url.to_owned());
    let (whom, prefix) = whom(request.url).ok_or_else(bad)?;
    let target = format!("{prefix}{}", request.path);
    if !target.starts_with('/') || !is_plain(&target) || request.method.is_empty() || !is_plain(request.method) {
        return Err(ClientError::Address(format!("{} {target}", request.method)));
    }
    let mut head = format!("{} {target} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n", request.method, whom.authority);
    for (name, value) in request.headers {
        // Its value is not told: it may be a secret.
        let is_whole = value.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
        if name.is_empty() || !is_plain(name) || name.contains(':') || !is_whole {
            return Err(ClientError::Header((*name).to_owned()));
        }
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if let Some(content) = request.content {
        head.push_str(&format!("content-length: {}\r\n", content.len()));
    }
    head.push_str("\r\n");
    Ok((head, whom))
}

/// Whether nothing in it would begin another part of the request, as a space or a line break would.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Who is asked.
struct Whom<'a> {
    authority: &'a str,
    is_secure: bool,
}

/// Who is asked, and what stands before every path.
fn whom(url: &str) -> Option<(Whom<'_>, &str)> {
    let begins = |scheme: &str| url.get(..scheme.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(scheme));
    let (rest, is_secure) = match (begins("http://"), begins("https://") && SECURE.get().is_some()) {
        (true, _) => (&url["http://".len()..], false),
        (_, true) => (&url["https://".len()..], true),
        _ => return None,
    };
    let (authority, prefix) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    let is_one = !authority.is_empty() && authority.bytes().all(is_known);
    (is_one && !prefix.contains(['?', '#'])).then(|| (Whom { authority, is_secure }, prefix.trim_end_matches('/')))
}

/// The first address of a name that takes the connection.
fn reach(whom: &Whom<'_>, silence: Duration) -> Result<Box<dyn Line>, ClientError> {
    let Whom { authority, is_secure } = *whom;
    // A colon within brackets belongs to the address.
    let port = authority.rfind(':').filter(|at| !authority[*at..].contains(']'));
    let usual = if is_secure { SECURE_PORT } else { PORT };
    let whole = if port.is_some() { authority.to_owned() } else { format!("{authority}:{usual}") };
    let name = authority[..port.unwrap_or(authority.len())].trim_matches(['[', ']']);
    let mut last = ClientError::Nowhere(authority.to_owned());
    for at in whole.to_socket_addrs().map_err(|_| ClientError::Nowhere(authority.to_owned()))? {
        match connect(at, CONNECT_PATIENCE, silence) {
            Ok(stream) => {
                let Some(secure) = SECURE.get().filter(|_| is_secure) else { return Ok(Box::new(stream)) };
                let insecure = |error| ClientError::Insecure { name: name.to_owned(), error };
                return secure(stream, name).map_err(insecure);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn connect(at: SocketAddr, patience: Duration, silence: Duration) -> Result<TcpStream, ClientError> {
    let reached = TcpStream::connect_timeout(&at, patience);
    let stream = reached.map_err(|error| ClientError::Unreachable { at, error })?;
    let timeouts = stream.set_read_timeout(Some(silence)).and(stream.set_write_timeout(Some(silence)));
    timeouts.map_err(ClientError::Broken)?;
    Ok(stream)
}

fn exchange(
    mut stream: impl Line,
    method: &str,
    parts: &[&[u8]],
    silence: Duration,
    bytes_max: u64,
) -> Result<Answer, ClientError> {
    let written = parts.iter().try_for_each(|part| stream.write_all(part));
    // Whoever refuses a request before its end answers and closes; that answer says more than the broken write.
    match (read_answer(stream, method, bytes_max), written) {
        (Ok(answer), _) => Ok(answer),
        (Err(_), Err(error)) | (Err(ClientError::Broken(error)), Ok(())) => Err(broken(error, silence)),
        (Err(error), Ok(())) => Err(error),
    }
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
pub(crate) enum Framing {
    Length(u64),
    Chunked,
    UntilClosed,
}

fn read_answer(stream: impl Read, method: &str, bytes_max: u64) -> Result<Answer, ClientError> {
    let mut stream = BufReader::new(stream);
    for _ in 0..INTERIM_MAX {
        let (status, headers, framing) = read_head(&mut stream)?;
        if status == 101 {
            return Err(ClientError::NotHttp("it changes to another protocol"));
        }
        if status < 200 {
            continue;
        }
        let has_content = method != "HEAD" && status != 204 && status != 304;
        let content = if has_content { read_content(&mut stream, framing, bytes_max)? } else { Vec::new() };
        return Ok(Answer { status, headers, content });
    }
    Err(ClientError::NotHttp("it never gets beyond interim answers"))
}

pub(crate) type Headers = Vec<(String, String)>;

pub(crate) fn read_head(stream: &mut impl BufRead) -> Result<(u16, Headers, Framing), ClientError> {
    let mut head = Vec::new();
    let mut rest = stream.take(HEAD_BYTES_MAX);
    while !head.ends_with(b"\r\n\r\n") {
        if rest.read_until(b'\n', &mut head).map_err(ClientError::Broken)? == 0 {
            return Err(match (rest.limit(), head.is_empty()) {
                (0, _) => ClientError::NotHttp("its head has no end"),
                // Closed without a word: as a server does that ends.
                (_, true) => ClientError::Broken(io::ErrorKind::UnexpectedEof.into()),
                (_, false) => ClientError::NotHttp("it ends within its head"),
            });
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
    let told = |header: &httparse::Header<'_>| {
        (header.name.to_owned(), String::from_utf8_lossy(header.value).trim().to_owned())
    };
    Ok((status, answer.headers.iter().map(told).collect(), framing))
}

fn read_content(stream: &mut impl BufRead, framing: Framing, bytes_max: u64) -> Result<Vec<u8>, ClientError> {
    let mut content = Vec::new();
    match framing {
        Framing::Length(length) => append(stream, length, &mut content, bytes_max)?,
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
            append(stream, size, &mut content, bytes_max)?;
            if read_line(stream)? != b"\r\n" {
                return Err(ClientError::NotHttp("a chunk is longer than its size"));
            }
        },
        Framing::UntilClosed => {
            stream.take(bytes_max.saturating_add(1)).read_to_end(&mut content).map_err(ClientError::Broken)?;
            if content.len() as u64 > bytes_max {
                return Err(ClientError::TooLarge(bytes_max));
            }
        }
    }
    Ok(content)
}

fn append(stream: &mut impl BufRead, length: u64, content: &mut Vec<u8>, bytes_max: u64) -> Result<(), ClientError> {
    if length > bytes_max - content.len() as u64 {
        return Err(ClientError::TooLarge(bytes_max));
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
        read_answer(text, "GET", ANSWER_BYTES_MAX).map(|answer| (answer.status, answer.content))
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
        let head = read_answer(&b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"[..], "HEAD", ANSWER_BYTES_MAX).unwrap();
        assert_eq!((head.status, head.header("Content-Length")), (200, Some("5")));
    }

    #[test]
    fn nonsense_is_no_answer() {
        // Nothing at all is what a server says that ends.
        assert!(matches!(answer_of(b""), Err(ClientError::Broken(_))));
        for text in [
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
        assert!(matches!(answer_of(announced.as_bytes()), Err(ClientError::TooLarge(_))));
        let chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n";
        assert!(matches!(answer_of(chunked), Err(ClientError::TooLarge(_))));
        let endless = io::Cursor::new(b"HTTP/1.1 200 OK\r\n\r\n").chain(io::repeat(b'x'));
        assert!(matches!(read_answer(endless, "GET", ANSWER_BYTES_MAX), Err(ClientError::TooLarge(_))));
        let head = io::Cursor::new(b"HTTP/1.1 200 OK\r\n").chain(io::repeat(b'x'));
        assert!(matches!(read_answer(head, "GET", ANSWER_BYTES_MAX), Err(ClientError::NotHttp(_))));
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

    #[test]
    fn anything_is_sent_and_anything_comes_back() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let served = Builder::new().name("answer".into()).spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap());
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                lines.read_line(&mut head).unwrap();
            }
            let mut content = [0; 3];
            lines.read_exact(&mut content).unwrap();
            let answer = "HTTP/1.1 201 Created\r\nX-Actum-Exit: 2\r\nx: 1\r\nx: 2\r\ncontent-length: 2\r\n\r\nhi";
            stream.write_all(answer.as_bytes()).unwrap();
            (head, content)
        });
        let url = format!("http://localhost:{port}/");
        let headers = [("authorization", "Bearer t"), ("content-type", "application/yaml")];
        let request = Request {
            url: &url,
            method: "POST",
            path: "/v1/runs?set=a",
            headers: &headers,
            content: Some(b"a: "),
            silence: Duration::from_secs(10),
            answer_bytes_max: 2,
        };
        let answer = send(&request).unwrap();
        assert_eq!((answer.status, answer.content.as_slice()), (201, &b"hi"[..]));
        assert_eq!((answer.header("x-actum-exit"), answer.header("x"), answer.header("y")), (Some("2"), None, None));
        let (head, content) = served.unwrap().join().unwrap();
        assert!(head.starts_with(&format!("POST /v1/runs?set=a HTTP/1.1\r\nhost: localhost:{port}\r\n")), "{head}");
        assert!(head.contains("authorization: Bearer t\r\n") && head.contains("content-length: 3\r\n"), "{head}");
        assert_eq!(&content, b"a: ");
        for url in ["https://x", "http://", "http://a b", "http://u@localhost", "http://x/?q", "http://x#f", "x", ""] {
            assert!(matches!(send(&Request { url, ..request }), Err(ClientError::Address(_))), "{url}");
        }
        for (method, path) in [("GET /", "/a"), ("", "/a"), ("GET", "a"), ("GET", "/a b"), ("GET", "/a\r\nx: y")] {
            assert!(matches!(
                send(&Request { method, path, url: "http://127.0.0.1:1", ..request }),
                Err(ClientError::Address(_))
            ));
        }
        for header in [("a", "b\r\nc: d"), ("a b", "c"), ("a:", "c"), ("", "c"), ("a", "\u{e9}")] {
            let told = send(&Request { headers: &[header], ..request });
            assert!(matches!(told, Err(ClientError::Header(_))), "{header:?}");
        }
        let closed = send(&Request { url: &url, ..request });
        assert!(matches!(closed, Err(ClientError::Unreachable { .. })), "{closed:?}");
    }
}
