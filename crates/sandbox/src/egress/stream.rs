//! One connection out of a cell: whom it wants, whether it may, and then bytes both ways.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use actum_contract::execution::{AddressKind, Host, Verdict, allows, kind_of};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::credential::{Begun, Credential, Credentials};
use super::speech::{BEGINNING_BYTES_MAX, Body, Chunks, Greeting, Request, Speech, absolute, listen};
use super::{Count, Decision, Shared};

/// How long a program may take to say what it wants where it has to say something.
const SPEAK_WITHIN: Duration = Duration::from_secs(10);

/// How long is waited for a program to speak first where the other side may be the one who does.
const MAY_SPEAK_WITHIN: Duration = Duration::from_millis(300);

const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Plain and encrypted: on these ports nothing else is let through.
const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

/// Whom a connection is for, and how it came to us.
struct Wish {
    by: &'static str,
    host: String,
    port: u16,
}

/// Serves a connection to its end. Whatever goes wrong is noted, and the connection is closed.
pub(super) async fn serve(shared: &Shared, mut stream: TcpStream, is_proxy: bool) {
    let mut beginning = Vec::new();
    let wish = if is_proxy {
        match timeout(SPEAK_WITHIN, wish(&mut stream, &mut beginning)).await {
            Ok(Ok(Some(wish))) => wish,
            _ => return,
        }
    } else {
        let Ok(local) = stream.local_addr() else { return };
        let Ok(host) = shared.names.lock().map(|names| names.name(local.ip())) else { return };
        Wish { by: "connection", host, port: local.port() }
    };
    let count = Arc::new(Count::default());
    let at = shared.note(shared.decision(wish.by, &wish.host, Some(wish.port), &Verdict::Allowed), Arc::clone(&count));
    let mut carrying = Carrying { shared, wish, at, count, has_agreed: false };
    if let Err(verdict) = carrying.go(&mut stream, beginning).await {
        let blocked = shared.decision(carrying.wish.by, &carrying.wish.host, Some(carrying.wish.port), &verdict);
        if !carrying.has_agreed {
            refuse(&mut stream, carrying.wish.by, &blocked).await;
        }
        shared.revise(at, |decision| {
            *decision = Decision { address: decision.address, after_ms: decision.after_ms, ..blocked };
        });
    }
}

/// A connection on its way.
struct Carrying<'s> {
    shared: &'s Shared,
    wish: Wish,
    /// Where it is in the log.
    at: Option<usize>,
    count: Arc<Count>,
    /// Whoever asked a proxy was told yes, and whatever comes now is from the other side.
    has_agreed: bool,
}

/// Says no in the language of whoever asks, where there is one.
async fn refuse(stream: &mut TcpStream, by: &str, decision: &Decision) {
    let text = format!("{}: {}\n", decision.code, decision.why);
    let answer = match by {
        "connect" | "http" => format!(
            "HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
            text.len()
        )
        .into_bytes(),
        "socks5" => vec![5, 2, 0, 1, 0, 0, 0, 0, 0, 0],
        _ => return,
    };
    let _ = stream.write_all(&answer).await;
}

/// What is asked of the proxy.
async fn wish(stream: &mut TcpStream, beginning: &mut Vec<u8>) -> io::Result<Option<Wish>> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 1 && first == [5] {
        return socks(stream).await;
    }
    let request = loop {
        match listen(beginning) {
            Speech::More if beginning.len() < BEGINNING_BYTES_MAX => read_more(stream, beginning).await?,
            Speech::Http(request) => break request,
            _ => return Ok(None),
        }
    };
    if request.method == "CONNECT" {
        beginning.drain(..request.length);
        return Ok(split(&request.target, None).map(|(host, port)| Wish { by: "connect", host, port }));
    }
    let authority = absolute(&request.target).filter(|_| request.target.starts_with("http://")).map(|(host, _)| host);
    Ok(authority.and_then(|authority| split(authority, Some(HTTP_PORT))).map(|(host, port)| Wish {
        by: "http",
        host,
        port,
    }))
}

/// SOCKS 5 as far as it is needed: connections, without a password.
async fn socks(stream: &mut TcpStream) -> io::Result<Option<Wish>> {
    let [_, count] = read_array::<2>(stream).await?;
    let mut methods = vec![0; usize::from(count)];
    stream.read_exact(&mut methods).await?;
    if !methods.contains(&0) {
        stream.write_all(&[5, 0xff]).await?;
        return Ok(None);
    }
    stream.write_all(&[5, 0]).await?;
    let mut head = [0; 4];
    stream.read_exact(&mut head).await?;
    let host = match head {
        [5, 1, _, 1] => IpAddr::from(read_array::<4>(stream).await?).to_string(),
        [5, 1, _, 4] => IpAddr::from(read_array::<16>(stream).await?).to_canonical().to_string(),
        [5, 1, _, 3] => {
            let mut name = vec![0; usize::from(stream.read_u8().await?)];
            stream.read_exact(&mut name).await?;
            String::from_utf8_lossy(&name).into_owned()
        }
        _ => {
            stream.write_all(&[5, 7, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
            return Ok(None);
        }
    };
    let port = stream.read_u16().await?;
    Ok(Some(Wish { by: "socks5", host, port }))
}

async fn read_array<const N: usize>(stream: &mut TcpStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

async fn read_more(stream: &mut TcpStream, into: &mut Vec<u8>) -> io::Result<()> {
    match stream.read_buf(into).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

/// Host and port of an authority; nothing if it is no plain one.
fn split(authority: &str, usual: Option<u16>) -> Option<(String, u16)> {
    if let Some((address, rest)) = authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let port = rest.strip_prefix(':').map_or(usual, |port| port.parse().ok())?;
        return Some((address.to_owned(), port));
    }
    match authority.rsplit_once(':') {
        Some((host, port)) => Some((host.to_owned(), port.parse().ok()?)),
        None => Some((authority.to_owned(), usual?)),
    }
}

impl Carrying<'_> {
    /// Checks, dials and carries. The verdict if it was not let through.
    async fn go(&mut self, stream: &mut TcpStream, mut beginning: Vec<u8>) -> Result<(), Verdict> {
        let (shared, wish) = (self.shared, &self.wish);
        let rules = &shared.rules;
        if let blocked @ Verdict::Blocked { .. } = allows(&rules.allow, &rules.deny, &wish.host, Some(wish.port)) {
            return Err(blocked);
        }
        // Whoever asked a proxy waits for its yes before he speaks.
        let agreed: &[u8] = match wish.by {
            "connect" => b"HTTP/1.1 200 Connection established\r\n\r\n",
            "socks5" => &[5, 0, 0, 1, 0, 0, 0, 0, 0, 0],
            _ => b"",
        };
        let lost = |e: io::Error| Verdict::blocked("ssrf_block.connection_failed", e.to_string());
        let address = resolve(shared, wish).await?;
        shared.revise(self.at, |decision| decision.address = Some(address));
        stream.write_all(agreed).await.map_err(lost)?;
        self.has_agreed = !agreed.is_empty();
        let speech = hear(stream, &mut beginning, wish.port).await;
        let request = judge(&speech, wish)?;
        let dialled = timeout(CONNECT_WITHIN, TcpStream::connect(SocketAddr::new(address, wish.port))).await;
        let mut out = dialled.map_err(|_| lost(io::ErrorKind::TimedOut.into()))?.map_err(lost)?;
        let credentials = rules.credentials.as_ref().map(|all| (all, all.for_host(&wish.host, wish.port)));
        let credentials = credentials.filter(|(_, fitting)| !fitting.is_empty());
        match (request, credentials, &speech) {
            (Some(request), credentials, _) => {
                let plain = credentials.map(|(_, fitting)| fitting).unwrap_or_default();
                let plain: Vec<&Credential> = plain.into_iter().filter(|one| one.is_plain).collect();
                self.one_request(stream, &mut out, &beginning, request, &plain).await
            }
            (None, Some((all, fitting)), Speech::Tls(_)) => self.opened(stream, out, &beginning, all, &fitting).await,
            (None, Some(_), _) => {
                let why = "a host with credentials is asked by HTTP or HTTPS, and says so at once";
                Err(Verdict::blocked("ssrf_block.no_name", why))
            }
            (None, None, _) => self.both_ways(stream, &mut out, beginning, &speech).await,
        }
    }

    /// Opens an encrypted connection in the cell, adds the credentials to its one request, and passes that on over an encrypted
    /// connection to the real host.
    async fn opened(
        &self,
        stream: &mut TcpStream,
        out: TcpStream,
        beginning: &[u8],
        all: &Credentials,
        fitting: &[&Credential],
    ) -> Result<(), Verdict> {
        let host = self.wish.host.trim_end_matches('.').to_ascii_lowercase();
        let failed =
            |what: &str, e: io::Error| Verdict::blocked("ssrf_block.connection_failed", format!("{what} {host}: {e}"));
        let late = |what: &str| failed(what, io::ErrorKind::TimedOut.into());
        let inside = timeout(SPEAK_WITHIN, all.accept(&host, Begun { beginning, stream })).await;
        let mut inside = inside
            .map_err(|_| late("no greeting for"))?
            .map_err(|e| failed("the program does not believe Actum's certificate for", e))?;
        let outside = timeout(CONNECT_WITHIN, all.connect(&host, out)).await;
        let mut outside =
            outside.map_err(|_| late("no greeting from"))?.map_err(|e| failed("no secure connection to", e))?;
        let mut text = Vec::new();
        let hearing = async {
            loop {
                match listen(&text) {
                    Speech::More if text.len() < BEGINNING_BYTES_MAX => {
                        if inside.read_buf(&mut text).await? == 0 {
                            return Ok::<_, io::Error>(None);
                        }
                    }
                    Speech::Http(request) => return Ok(Some(request)),
                    _ => return Ok(None),
                }
            }
        };
        let heard = timeout(SPEAK_WITHIN, hearing).await.map_err(|_| late("no request for"))?;
        let Some(request) = heard.map_err(|e| failed("no request for", e))? else {
            return Err(Verdict::blocked("ssrf_block.invalid_url", "what comes over TLS is no request of HTTP/1.1"));
        };
        judge_request(&request, &self.wish)?;
        self.one_request(&mut inside, &mut outside, &text, &request, fitting).await
    }

    /// Counts bytes against what the cell may have carried.
    fn carried(&self, bytes: usize, count: &AtomicU64) -> Result<(), Verdict> {
        count.fetch_add(bytes as u64, Ordering::Relaxed);
        let most = self.shared.rules.bytes_max;
        let before = self.shared.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        match before + bytes as u64 > most {
            true => Err(Verdict::blocked("ssrf_block.byte_limit", format!("more than {most} bytes"))),
            false => Ok(()),
        }
    }

    /// Bytes both ways until both sides have ended, or one has failed. A program that has not spoken yet is judged by what it
    /// says later, and so is the rest of a first line.
    async fn both_ways(
        &self,
        inside: &mut TcpStream,
        outside: &mut TcpStream,
        beginning: Vec<u8>,
        speech: &Speech,
    ) -> Result<(), Verdict> {
        let (mut inside_read, mut inside_write) = inside.split();
        let (mut outside_read, mut outside_write) = outside.split();
        let asking = async {
            let mut beginning = beginning;
            let mut is_encrypted = matches!(speech, Speech::Tls(_));
            if *speech == Speech::More {
                while matches!(listen(&beginning), Speech::More) && beginning.len() < BEGINNING_BYTES_MAX {
                    if inside_read.read_buf(&mut beginning).await.unwrap_or(0) == 0 {
                        break;
                    }
                }
                let speech = listen(&beginning);
                is_encrypted = matches!(speech, Speech::Tls(_));
                if judge(&speech, &self.wish)?.is_some() {
                    let why = "a request that comes late could be followed by another";
                    return Err(Verdict::blocked("ssrf_block.no_name", why));
                }
            }
            self.carried(beginning.len(), &self.count.sent)?;
            if outside_write.write_all(&beginning).await.is_err() {
                return Ok(());
            }
            while !is_encrypted && !is_first_line_over(&beginning) {
                let before = beginning.len();
                if inside_read.read_buf(&mut beginning).await.unwrap_or(0) == 0 {
                    break;
                }
                judge(&listen(&beginning), &self.wish)?;
                self.carried(beginning.len() - before, &self.count.sent)?;
                if outside_write.write_all(&beginning[before..]).await.is_err() {
                    return Ok(());
                }
            }
            self.pass(&mut inside_read, &mut outside_write, &self.count.sent).await
        };
        let answering = self.pass(&mut outside_read, &mut inside_write, &self.count.received);
        tokio::try_join!(asking, answering).map(|_| ())
    }

    async fn pass(
        &self,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
        count: &AtomicU64,
    ) -> Result<(), Verdict> {
        let mut bytes = vec![0; 16 << 10];
        loop {
            let length = from.read(&mut bytes).await.unwrap_or(0);
            if length == 0 {
                let _ = to.shutdown().await;
                return Ok(());
            }
            self.carried(length, count)?;
            // What is encrypted may wait in a buffer.
            if to.write_all(&bytes[..length]).await.is_err() || to.flush().await.is_err() {
                return Ok(());
            }
        }
    }

    /// One request and its answer. The connection ends with it, so that no second request can name another host.
    async fn one_request<I, O>(
        &self,
        inside: &mut I,
        outside: &mut O,
        beginning: &[u8],
        request: &Request,
        credentials: &[&Credential],
    ) -> Result<(), Verdict>
    where
        I: AsyncRead + AsyncWrite + Unpin,
        O: AsyncRead + AsyncWrite + Unpin,
    {
        let path = match absolute(&request.target) {
            Some((_, rest)) if rest.starts_with('/') => rest.to_owned(),
            Some((_, rest)) => format!("/{rest}"),
            None => request.target.clone(),
        };
        let mut head = format!("{} {path} HTTP/1.1\r\n", request.method).into_bytes();
        let is_replaced = |name: &str| credentials.iter().any(|one| one.header.eq_ignore_ascii_case(name));
        for (name, value) in request.headers.iter().filter(|(name, _)| !is_replaced(name)) {
            head.extend_from_slice(&[name.as_bytes(), b": ", value, b"\r\n"].concat());
        }
        for Credential { header, value, .. } in credentials {
            head.extend_from_slice(format!("{header}: {value}\r\n").as_bytes());
        }
        if !credentials.is_empty() {
            self.shared.revise(self.at, |decision| decision.has_credential = true);
        }
        head.extend_from_slice(b"Connection: close\r\n\r\n");
        self.carried(head.len(), &self.count.sent)?;
        if outside.write_all(&head).await.is_err() || outside.flush().await.is_err() {
            return Ok(());
        }
        let (mut inside_read, mut inside_write) = tokio::io::split(inside);
        let (mut outside_read, mut outside_write) = tokio::io::split(outside);
        let asking = async {
            let mut length = match request.body {
                Body::Length(length) => length,
                _ => u64::MAX,
            };
            let mut chunks = Chunks::default();
            let mut bytes = beginning[request.length..].to_vec();
            loop {
                let most = usize::try_from(length).unwrap_or(usize::MAX).min(bytes.len());
                let broken = || Verdict::blocked("ssrf_block.invalid_url", "the request's body is not in pieces");
                let taken = match request.body {
                    Body::Chunked => chunks.take(&bytes).ok_or_else(broken)?,
                    _ => most,
                };
                self.carried(taken, &self.count.sent)?;
                length -= taken as u64;
                let is_sent =
                    outside_write.write_all(&bytes[..taken]).await.is_ok() && outside_write.flush().await.is_ok();
                if !is_sent || length == 0 || chunks.are_over() {
                    return Ok(());
                }
                bytes.clear();
                bytes.reserve(16 << 10);
                if inside_read.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                    return Ok(());
                }
            }
        };
        let answering = self.pass(&mut outside_read, &mut inside_write, &self.count.received);
        tokio::try_join!(asking, answering).map(|_: ((), ())| ())
    }
}

/// Whether nothing that follows can become a part of the first line, by which servers tell a request of HTTP.
fn is_first_line_over(beginning: &[u8]) -> bool {
    let line = beginning.trim_ascii_start();
    line.contains(&b'\n') || beginning.len() >= BEGINNING_BYTES_MAX
}

/// The first bytes, as far as they are needed to tell what this is.
async fn hear(stream: &mut TcpStream, beginning: &mut Vec<u8>, port: u16) -> Speech {
    let patience = if [HTTP_PORT, HTTPS_PORT].contains(&port) { SPEAK_WITHIN } else { MAY_SPEAK_WITHIN };
    let hearing = async {
        loop {
            match listen(beginning) {
                Speech::More if beginning.len() < BEGINNING_BYTES_MAX => read_more(stream, beginning).await?,
                other => return Ok::<_, io::Error>(other),
            }
        }
    };
    match timeout(patience, hearing).await {
        Ok(Ok(speech)) => speech,
        _ => listen(beginning),
    }
}

/// Whether what is said fits whom it was said to. The request, if it is one that has to be followed.
fn judge<'a>(speech: &'a Speech, wish: &Wish) -> Result<Option<&'a Request>, Verdict> {
    let host = wish.host.trim_end_matches('.');
    let is_address = host.parse::<IpAddr>().is_ok();
    let none = |what: &str| Verdict::blocked("ssrf_block.no_name", format!("port {} is for {what}", wish.port));
    match speech {
        Speech::Tls(Greeting { hides: true, .. }) => {
            Err(Verdict::blocked("ssrf_block.no_name", "the greeting hides the name it is for"))
        }
        Speech::Tls(Greeting { name: Some(name), .. }) if !name.eq_ignore_ascii_case(host) => Err(mismatch(wish, name)),
        Speech::Tls(Greeting { name: Some(_), .. }) => Ok(None),
        Speech::Tls(Greeting { name: None, .. }) if is_address => Ok(None),
        Speech::Tls(_) => Err(Verdict::blocked("ssrf_block.no_name", "the TLS greeting names no host")),
        Speech::Http(_) if wish.port == HTTPS_PORT => Err(none("encrypted connections only")),
        Speech::Http(request) => judge_request(request, wish).map(|()| Some(&**request)),
        Speech::Broken => Err(Verdict::blocked("ssrf_block.invalid_url", "what it says cannot be understood")),
        Speech::Other | Speech::More if wish.port == HTTPS_PORT => Err(none("encrypted connections only")),
        Speech::Other | Speech::More if wish.port == HTTP_PORT => Err(none("requests of HTTP only")),
        Speech::Other => Ok(None),
        // Nothing was said, or the beginning of something that could have been said whole.
        Speech::More => Ok(None),
    }
}

/// Whether a request is for the host that the connection is for, and can be read in one way only.
fn judge_request(request: &Request, wish: &Wish) -> Result<(), Verdict> {
    let host = wish.host.trim_end_matches('.');
    let fits = |said: &String| {
        split(said, Some(wish.port)).is_some_and(|(name, port)| {
            name.trim_end_matches('.').eq_ignore_ascii_case(host) && (port == wish.port || port == HTTP_PORT)
        })
    };
    if let Some(other) = request.hosts.iter().find(|said| !fits(said)) {
        return Err(mismatch(wish, other));
    }
    if request.hosts.is_empty() {
        return Err(Verdict::blocked("ssrf_block.no_name", "the request names no host"));
    }
    if request.body == Body::Unclear || ["CONNECT", "PRI", "TRACE"].contains(&request.method.as_str()) {
        return Err(Verdict::blocked("ssrf_block.invalid_url", "the request could be read in two ways"));
    }
    Ok(())
}

fn mismatch(wish: &Wish, said: &str) -> Verdict {
    let said: String = said.chars().take(80).collect();
    Verdict::blocked("ssrf_block.name_mismatch", format!("a connection to {} says it is for {said:?}", wish.host))
}

/// The address to dial: the one that was looked at. One that is not public has to be listed as such, or said by the user.
async fn resolve(shared: &Shared, wish: &Wish) -> Result<IpAddr, Verdict> {
    let host = wish.host.trim_end_matches('.').to_ascii_lowercase();
    let hosts = &shared.rules.hosts;
    if let Some(address) = hosts.get(&format!("{host}:{}", wish.port)).or_else(|| hosts.get(&host)) {
        return Ok(*address);
    }
    if let Ok(address) = host.parse::<IpAddr>() {
        // Listed as it is: this was checked before.
        return Ok(address.to_canonical());
    }
    let failed = |why: String| Verdict::blocked("ssrf_block.dns_resolution_failed", why);
    let asked = timeout(CONNECT_WITHIN, tokio::net::lookup_host((host.as_str(), wish.port))).await;
    let found = asked.map_err(|_| failed("no answer".into()))?.map_err(|e| failed(e.to_string()))?;
    let is_listed = |address: IpAddr| {
        let listed: Vec<Host> = shared.rules.allow.iter().filter(|host| !host.is_any()).cloned().collect();
        allows(&listed, &shared.rules.deny, &address.to_string(), Some(wish.port)) == Verdict::Allowed
    };
    let mut refused = failed(format!("{host} has no address"));
    for address in found.map(|found| found.ip().to_canonical()) {
        let denied = allows(&shared.rules.deny, &[], &address.to_string(), None) == Verdict::Allowed;
        if denied {
            refused = Verdict::blocked("ssrf_block.host_not_allowed", format!("{host} is {address}, which is denied"));
            continue;
        }
        match kind_of(address) {
            AddressKind::Public => return Ok(address),
            _ if is_listed(address) => return Ok(address),
            AddressKind::Metadata => {
                refused = Verdict::blocked("ssrf_block.metadata_endpoint", format!("{host} is {address}"));
            }
            AddressKind::Private => {
                refused = Verdict::blocked("ssrf_block.private_address", format!("{host} is {address}"));
            }
        }
    }
    Err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_line_ends_with_its_line_feed() {
        for (bytes, is_over) in
            [(&b"\r\n G\x01T / "[..], false), (b"SSH-2.0-x\r\n", true), (b"\n", false), (b"", false)]
        {
            assert_eq!(is_first_line_over(bytes), is_over, "{bytes:?}");
        }
    }

    #[test]
    fn authorities_are_split_only_where_they_are_plain() {
        assert_eq!(split("a.test:8080", None), Some(("a.test".into(), 8080)));
        assert_eq!(split("a.test", Some(80)), Some(("a.test".into(), 80)));
        assert_eq!(split("[::1]:443", None), Some(("::1".into(), 443)));
        assert_eq!(split("a.test", None), None);
        assert_eq!(split("a.test:x", Some(80)), None);
        assert_eq!(
            split("allowed.test@evil.test:80", None),
            Some(("allowed.test@evil.test".into(), 80)),
            "no host name"
        );
    }
}
