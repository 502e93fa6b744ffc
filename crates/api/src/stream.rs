//! Listening to a server: a question whose answer does not end, read line by line, and the events in it. For `actum --server`;
//! it asks once, and whoever wants to go on after the connection broke asks again from where he was.

use std::io::{self, BufRead as _, BufReader, Read};

use crate::client::{Answer, ClientError, Framing, Line, Request, begin, read_head, read_rest};

/// The longest line of an event.
const LINE_BYTES_MAX: u64 = 64 << 20;
/// The line before a chunk.
const CHUNK_LINE_BYTES_MAX: u64 = 256;

/// An event as it arrived.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Told {
    /// Its id; of one that has none, that of the last one that had.
    pub id: Option<String>,
    pub kind: String,
    pub data: String,
}

/// An answer that goes on, or one like any other.
#[derive(Debug)]
pub enum Opened {
    Stream(Box<Incoming>),
    Answer(Answer),
}

/// Asks; a success that is a stream of events is handed on as it comes.
pub fn open(request: &Request<'_>) -> Result<Opened, ClientError> {
    let stream = begin(request)?;
    let mut stream = BufReader::new(stream);
    let (status, headers, framing) = read_head(&mut stream)?;
    let is_stream = headers.iter().any(|(name, value)| {
        name.eq_ignore_ascii_case("content-type") && value.to_ascii_lowercase().starts_with("text/event-stream")
    });
    if status != 200 || !is_stream {
        return read_rest(stream, status, headers, framing, request).map(Opened::Answer);
    }
    let content = Content { stream, framing, left: 0, is_over: false };
    Ok(Opened::Stream(Box::new(Incoming { lines: BufReader::new(content), last_id: None })))
}

/// The events of a stream.
pub struct Incoming {
    lines: BufReader<Content>,
    last_id: Option<String>,
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Incoming").field("last_id", &self.last_id).finish_non_exhaustive()
    }
}

impl Incoming {
    /// The next event; none at the end of the stream. Signs of life are events without a kind and data: whoever hears one knows
    /// that the connection holds.
    pub fn told(&mut self) -> Result<Option<Told>, io::Error> {
        let (mut kind, mut data, mut id) = (String::new(), Vec::new(), None);
        loop {
            let mut line = Vec::new();
            (&mut self.lines).take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
            if line.pop() != Some(b'\n') {
                return if line.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
            let line = String::from_utf8(line).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
            let line = line.trim_end_matches('\r');
            if line.is_empty() {
                self.last_id = id.or(self.last_id.take());
                return Ok(Some(Told { id: self.last_id.clone(), kind, data: data.join("\n") }));
            }
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value).to_owned();
            match field {
                "id" => id = Some(value),
                "event" => kind = value,
                "data" => data.push(value),
                // Comments, and what others may add.
                _ => {}
            }
        }
    }
}

/// The content of an answer as it comes, without what stands between its chunks.
struct Content {
    stream: BufReader<Box<dyn Line>>,
    framing: Framing,
    /// Bytes of the chunk that are still to come.
    left: u64,
    is_over: bool,
}

impl Read for Content {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.framing {
            _ if self.is_over || buffer.is_empty() => return Ok(0),
            Framing::UntilClosed => return self.stream.read(buffer),
            Framing::Length(left) => {
                let read = (&mut self.stream).take(*left).read(buffer)?;
                *left -= read as u64;
                return Ok(read);
            }
            Framing::Chunked => {}
        }
        if self.left == 0 {
            self.left = self.chunk()?;
            if self.left == 0 {
                self.is_over = true;
                return Ok(0);
            }
        }
        let read = (&mut self.stream).take(self.left).read(buffer)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= read as u64;
        if self.left == 0 {
            self.line()?;
        }
        Ok(read)
    }
}

impl Content {
    fn chunk(&mut self) -> io::Result<u64> {
        let line = self.line()?;
        match httparse::parse_chunk_size(&line) {
            Ok(httparse::Status::Complete((_, size))) => Ok(size),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the size of a chunk cannot be read")),
        }
    }

    fn line(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        (&mut self.stream).take(CHUNK_LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        if line.ends_with(b"\n") { Ok(line) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpListener;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// What is heard of this answer: the events, and whether it ended well.
    fn heard(answer: &'static str) -> (Vec<Told>, bool) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        thread::scope(|scope| {
            scope.spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut asked = [0; 4096];
                let _ = stream.read(&mut asked).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            });
            let request = Request {
                url: &url,
                method: "GET",
                path: "/v1/events",
                headers: &[],
                content: None,
                silence: Duration::from_secs(20),
                answer_bytes_max: 1_000,
            };
            let Opened::Stream(mut incoming) = open(&request).unwrap() else { panic!("an answer") };
            let mut all = Vec::new();
            loop {
                match incoming.told() {
                    Ok(Some(told)) => all.push(told),
                    Ok(None) => return (all, true),
                    Err(_) => return (all, false),
                }
            }
        })
    }

    fn told(id: Option<&str>, kind: &str, data: &str) -> Told {
        Told { id: id.map(ToOwned::to_owned), kind: kind.into(), data: data.into() }
    }

    #[test]
    fn events_are_put_together_whatever_the_chunks_are() {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n";
        let plain: &'static str =
            format!("{head}\r\n: hi\n\nid: 4\nevent: a\ndata: x\ndata:y\n\nevent: end\r\ndata\r\n\r\n").leak();
        let expected = vec![told(None, "", ""), told(Some("4"), "a", "x\ny"), told(Some("4"), "end", "")];
        assert_eq!(heard(plain), (expected.clone(), true));
        let chunked: &'static str = format!(
            "{head}transfer-encoding: chunked\r\n\r\n2\r\n: \r\n4\r\nhi\n\n\r\n1d\r\nid: 4\nevent: a\ndata: x\ndata:y\r\n\
             2\r\n\n\n\r\n15\r\nevent: end\r\ndata\r\n\r\n\r\n0\r\n\r\n"
        )
        .leak();
        assert_eq!(heard(chunked), (expected, true));
    }

    #[test]
    fn what_breaks_off_is_no_event() {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        for rest in ["", "5\r\nid: 4", "ff\r\nid: 4\nevent: a\n", "5\r\nid: 4\r\n", "zz\r\n"] {
            let (all, is_whole) = heard(format!("{head}{rest}").leak());
            assert!(all.is_empty() && !is_whole, "{rest}");
        }
    }
}
