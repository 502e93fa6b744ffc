//! As much of HTTP/1.1 as a provider needs: requests with a length or in chunks, answers whole, in pieces, or broken.
//! It knows nothing of models.

use std::io::{self, BufRead, Read as _, Write};

use super::Request;

const LINE_BYTES_MAX: u64 = 64 * 1024;
const HEADERS_MAX: usize = 256;
const BODY_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// What goes back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Whole {
        status: u16,
        headers: Vec<(String, String)>,
        body: String,
    },
    /// Pieces of a stream, each sent by itself.
    Pieces {
        kind: &'static str,
        pieces: Vec<String>,
    },
    /// What is left out of it never comes.
    Half(Box<Self>),
    Raw(Vec<u8>),
    Nothing,
}

impl Answer {
    pub(super) fn json(status: u16, body: &serde_json::Value) -> Self {
        Self::text(status, body.to_string())
    }

    pub(super) fn text(status: u16, body: String) -> Self {
        Self::Whole { status, headers: vec![("content-type".into(), "application/json".into())], body }
    }

    pub(super) fn with(mut self, name: &str, value: impl ToString) -> Self {
        if let Self::Whole { headers, .. } = &mut self {
            headers.push((name.into(), value.to_string()));
        }
        self
    }

    /// Whether the connection can be used again.
    pub(super) fn send(&self, to: &mut dyn Write) -> io::Result<bool> {
        match self {
            Self::Whole { status, headers, body } => {
                to.write_all((head(*status, headers, body.len()) + body).as_bytes())?;
                Ok(true)
            }
            Self::Pieces { kind, pieces } => {
                start_pieces(kind, to)?;
                send_pieces(pieces, to)?;
                to.write_all(b"0\r\n\r\n")?;
                Ok(true)
            }
            Self::Half(answer) => {
                match &**answer {
                    Self::Whole { status, headers, body } => {
                        let half = body.len() / 2;
                        to.write_all(head(*status, headers, body.len()).as_bytes())?;
                        to.write_all(&body.as_bytes()[..half])?;
                    }
                    Self::Pieces { kind, pieces } => {
                        start_pieces(kind, to)?;
                        send_pieces(&pieces[..pieces.len() / 2], to)?;
                    }
                    other => return other.send(to),
                }
                Ok(false)
            }
            Self::Raw(bytes) => {
                to.write_all(bytes)?;
                Ok(false)
            }
            Self::Nothing => Ok(true),
        }
    }
}

fn head(status: u16, headers: &[(String, String)], length: usize) -> String {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("HTTP/1.1 {status} {}\r\n{headers}content-length: {length}\r\n\r\n", reason(status))
}

fn start_pieces(kind: &str, to: &mut dyn Write) -> io::Result<()> {
    let head = "HTTP/1.1 200 OK\r\ncache-control: no-store\r\ntransfer-encoding: chunked\r\n";
    to.write_all(format!("{head}content-type: {kind}\r\n\r\n").as_bytes())
}

fn send_pieces(pieces: &[String], to: &mut dyn Write) -> io::Result<()> {
    for piece in pieces {
        to.write_all(format!("{:x}\r\n{piece}\r\n", piece.len()).as_bytes())?;
        to.flush()?;
    }
    Ok(())
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        404 => "Not Found",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        529 => "Overloaded",
        _ => "Other",
    }
}

/// The next request on a connection; nothing at its end.
pub(super) fn read(from: &mut dyn BufRead, to: &mut dyn Write) -> io::Result<Option<Request>> {
    let Some(first) = line(from)? else { return Ok(None) };
    let mut words = first.split(' ');
    let (Some(method), Some(target), Some(_)) = (words.next(), words.next(), words.next()) else {
        return Err(bad("no request line"));
    };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut request = Request {
        method: method.into(),
        path: path.into(),
        query: query.into(),
        headers: Vec::new(),
        body: Vec::new(),
        turn: None,
        usage: None,
    };
    loop {
        let header = line(from)?.ok_or_else(|| bad("the request breaks off"))?;
        if header.is_empty() {
            break;
        }
        let (name, value) = header.split_once(':').ok_or_else(|| bad("no header"))?;
        request.headers.push((name.to_ascii_lowercase(), value.trim().into()));
        if request.headers.len() > HEADERS_MAX {
            return Err(bad("too many headers"));
        }
    }
    if request.header("expect").is_some_and(|value| value.eq_ignore_ascii_case("100-continue")) {
        to.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    if request.header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
        request.body = chunks(from)?;
    } else if let Some(length) = request.header("content-length") {
        let length = length.parse().map_err(|_| bad("no length"))?;
        request.body = exactly(from, length)?;
    }
    Ok(Some(request))
}

fn chunks(from: &mut dyn BufRead) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let size = line(from)?.ok_or_else(|| bad("the body breaks off"))?;
        let size = size.split(';').next().unwrap_or_default().trim();
        let size = u64::from_str_radix(size, 16).map_err(|_| bad("no size of a chunk"))?;
        if size == 0 {
            // Trailers, of which nobody here knows any.
            while line(from)?.is_some_and(|line| !line.is_empty()) {}
            return Ok(body);
        }
        if body.len() as u64 + size > BODY_BYTES_MAX {
            return Err(bad("too large a body"));
        }
        body.extend(exactly(from, size)?);
        line(from)?;
    }
}

fn exactly(from: &mut dyn BufRead, length: u64) -> io::Result<Vec<u8>> {
    if length > BODY_BYTES_MAX {
        return Err(bad("too large a body"));
    }
    let mut body = Vec::new();
    from.take(length).read_to_end(&mut body)?;
    if (body.len() as u64) < length {
        return Err(bad("the body breaks off"));
    }
    Ok(body)
}

fn line(from: &mut dyn BufRead) -> io::Result<Option<String>> {
    let mut bytes = Vec::new();
    from.take(LINE_BYTES_MAX).read_until(b'\n', &mut bytes)?;
    if bytes.is_empty() {
        return Ok(None);
    }
    if bytes.pop() != Some(b'\n') {
        return Err(bad("a line breaks off"));
    }
    let text = String::from_utf8(bytes).map_err(|_| bad("a line is no text"))?;
    Ok(Some(text.trim_end_matches('\r').into()))
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
