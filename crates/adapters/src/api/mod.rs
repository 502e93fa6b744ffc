//! Calling a service by HTTP. Every connection is judged by the rules of a cell's way out before it is made; what signs a
//! request goes to no other origin; an answer never grows beyond its bound.

mod answer;
mod build;
mod reach;
mod sign;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use actum_contract::execution::{Network, Redactor, Verdict};
use actum_contract::tool::{Api, Interface, Went};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION};
use reqwest::{Certificate, Client, Method, Response, Url};
use serde_json::{Map, Value, json};
use tokio::sync::Notify;

use crate::call::Ask;
use crate::result::{Attempt, Problem, Stage};
use answer::{Answer, clean, clean_text};
use build::{Built, build};
use reach::{Place, judge};
use sign::{Question, Signature, Tokens};

pub(crate) use answer::retry_after_ms;
pub use reach::Decision;

/// Redirects that one call follows.
const REDIRECTS_MAX: usize = 5;

/// Clients that are kept: one for each name and the addresses it stands for.
const CLIENTS_MAX: usize = 32;

/// By which a service recognises a call that is made again.
const KEY_HEADER: HeaderName = HeaderName::from_static("idempotency-key");

const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// How often whoever waits is asked whether he still does.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// Letters of an error that are told.
const ERROR_CHARS_MAX: usize = 500;

/// Calls services. Blocks whoever calls it; may be called by many at once.
pub struct Http {
    hosts: BTreeMap<String, IpAddr>,
    are_hosts_listed: bool,
    roots: Vec<Certificate>,
    clients: Mutex<Vec<(Key, Client)>>,
    tokens: Tokens,
}

/// A client knows one name, and the addresses that were judged for it.
type Key = (String, Vec<SocketAddr>);

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Tokens are nobody's business.
        f.debug_struct("Http").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum BadHttp {
    #[error("the additional root certificates are no PEM: {0}")]
    Roots(reqwest::Error),
    #[error("the additional root certificates have no certificate in them")]
    NoRoots,
}

/// What happened on the way, kept apart so that it outlives a call that is broken off.
#[derive(Debug, Default)]
struct Trace {
    decisions: Vec<Decision>,
    redirects: usize,
    /// Method and address without its query.
    request: Option<(String, String)>,
    /// Tokens that were fetched.
    fetched: Vec<String>,
}

#[derive(Debug)]
struct Failed {
    went: Went,
    problem: Problem,
}

impl From<Problem> for Failed {
    fn from(problem: Problem) -> Self {
        Self { went: Went::Wrong(None), problem }
    }
}

impl Failed {
    fn unavailable(message: String) -> Self {
        Self { went: Went::Unavailable, problem: Problem::new(Stage::Call, message) }
    }
}

impl Http {
    /// `hosts`: names whose address the user has said himself, each alone or with a port. `extra_roots`: certificates in PEM that are trusted besides
    /// those of the platform.
    pub fn new(hosts: BTreeMap<String, IpAddr>, extra_roots: Option<&[u8]>) -> Result<Self, BadHttp> {
        // Whoever was first has chosen the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let roots = extra_roots.map(Certificate::from_pem_bundle).transpose().map_err(BadHttp::Roots)?;
        if roots.as_ref().is_some_and(Vec::is_empty) {
            return Err(BadHttp::NoRoots);
        }
        let hosts = hosts.into_iter().map(|(name, address)| (name.to_ascii_lowercase(), address)).collect();
        let roots = roots.unwrap_or_default();
        Ok(Self { hosts, are_hosts_listed: true, roots, clients: Mutex::default(), tokens: Tokens::default() })
    }

    /// The same for addresses that others name: that the user has said where a host is does not let them reach it.
    pub fn for_others(hosts: BTreeMap<String, IpAddr>) -> Result<Self, BadHttp> {
        Ok(Self { are_hosts_listed: false, ..Self::new(hosts, None)? })
    }

    /// Asks once.
    pub fn attempt(&self, ask: &Ask<'_>) -> Attempt {
        let begun = Instant::now();
        let sandbox = &ask.link.sandbox;
        let deadline = ask.deadline.min(begun + Duration::from_millis(sandbox.timeout_ms));
        let trace = Mutex::new(Trace::default());
        let Interface::Api(api) = &ask.link.adapter.interface else {
            let problem = Problem::new(Stage::Call, "the adapter is of another type than api");
            return Attempt::failed(&ask.link.adapter.adapter_id, Went::Wrong(None), problem);
        };
        let question = Going {
            http: self,
            api,
            network: &sandbox.network,
            secrets: ask.secrets,
            trace: &trace,
            key: ask.idempotency_key,
        };
        // What asks whether to stop stays on this thread.
        let (operation, params) = (ask.operation, ask.params);
        let work = async {
            let answering = question.go(operation, params);
            tokio::time::timeout_at(deadline.into(), answering).await.unwrap_or_else(|_| {
                let waited = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
                let message = format!("no complete answer within {waited} ms");
                Err(Failed { went: Went::TimedOut, problem: Problem::new(Stage::Call, message) })
            })
        };
        let found = match wait_for(work, ask.stop) {
            Ok(Some(found)) => found,
            Ok(None) => Err(Problem::new(Stage::Call, "stopped before there was an answer").into()),
            Err(e) => Err(Failed::unavailable(format!("no connection can be made here: {e}"))),
        };
        let trace = trace.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut attempt = told(&ask.link.adapter.adapter_id, found, &trace, ask.secrets);
        attempt.duration_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        attempt
    }

    /// A client for one address of the web, that reaches nobody else: what was decided, and the client if it may be used.
    /// Follows no redirect. For whoever speaks another language over HTTP.
    pub async fn client(&self, network: &Network, url: &Url) -> (Decision, Result<Client, Problem>) {
        let (decision, found) = self.reach(network, url).await;
        (decision, found.map_err(|failed| failed.problem))
    }

    /// As `client`, for whoever waits for it on a thread of his own.
    pub fn client_for(&self, network: &Network, url: &str) -> Result<Client, Problem> {
        let url = Url::parse(url).map_err(|e| Problem::new(Stage::Call, format!("{url} is no address: {e}")))?;
        let found = wait_for(async { self.client(network, &url).await.1 }, &|| false);
        let unable = |e: &dyn fmt::Display| Problem::new(Stage::Call, format!("no connection can be made here: {e}"));
        found.map_err(|e| unable(&e))?.unwrap_or_else(|| Err(unable(&"the caller is gone")))
    }

    async fn reach(&self, network: &Network, url: &Url) -> (Decision, Result<Client, Failed>) {
        let Some(place) = Place::of(url) else {
            let why = "no address of http or https without a user in it".to_owned();
            return denied(url.host_str().unwrap_or_default(), 0, None, "ssrf_block.invalid_url", why);
        };
        match judge(network, (&self.hosts, self.are_hosts_listed), &place).await {
            Ok(addresses) => {
                let decision = Decision {
                    host: place.host.clone(),
                    port: place.port,
                    address: addresses.first().map(SocketAddr::ip),
                    allowed: true,
                    code: Verdict::Allowed.code(),
                    why: "listed".into(),
                };
                let client = self.client_of(url.host_str().unwrap_or_default(), addresses);
                (decision, client.map_err(|e| Failed::unavailable(format!("no client can be made: {}", chain(e)))))
            }
            Err((verdict, address)) => {
                let (code, why) = match verdict {
                    Verdict::Blocked { code, why } => (code, why),
                    Verdict::Allowed => (Verdict::Allowed.code(), String::new()),
                };
                denied(&place.host, place.port, address, code, why)
            }
        }
    }

    fn client_of(&self, host: &str, mut addresses: Vec<SocketAddr>) -> Result<Client, reqwest::Error> {
        addresses.sort_unstable();
        let key = (host.to_owned(), addresses);
        let known = |clients: &Vec<(Key, Client)>| {
            clients.iter().find(|(known, _)| *known == key).map(|(_, client)| client.clone())
        };
        if let Some(client) = self.clients.lock().ok().and_then(|clients| known(&clients)) {
            return Ok(client);
        }
        let begun = || {
            Client::builder()
                .no_proxy()
                .referer(false)
                .redirect(reqwest::redirect::Policy::none())
                .retry(reqwest::retry::never())
                .http1_only()
                // Each call makes its own connection, so that each is judged.
                .pool_max_idle_per_host(0)
                .connect_timeout(CONNECT_WITHIN)
                .user_agent(concat!("actum/", env!("CARGO_PKG_VERSION")))
                .dns_resolver(Nobody)
                .resolve_to_addrs(host, &key.1)
        };
        // A machine without certificates of its own can still speak plainly, or to whom was named.
        let built = begun().tls_certs_merge(self.roots.clone()).build();
        let client = built.or_else(|_| begun().tls_certs_only(self.roots.clone()).build())?;
        if let Ok(mut clients) = self.clients.lock() {
            if clients.len() >= CLIENTS_MAX {
                clients.remove(0);
            }
            clients.push((key, client.clone()));
        }
        Ok(client)
    }
}

/// Knows no name: all that may be dialled was looked up before.
#[derive(Debug)]
struct Nobody;

impl reqwest::dns::Resolve for Nobody {
    fn resolve(&self, name: reqwest::dns::Name) -> reqwest::dns::Resolving {
        let why = format!("{} was not judged", name.as_str());
        Box::pin(async move { Err(io::Error::other(why).into()) })
    }
}

fn denied<T>(
    host: &str,
    port: u16,
    address: Option<IpAddr>,
    code: &'static str,
    why: String,
) -> (Decision, Result<T, Failed>) {
    let message = format!("{host}:{port} may not be reached: {why} ({code})");
    let failed = match code {
        // Nobody has forbidden it: there is nobody of that name.
        "ssrf_block.dns_resolution_failed" => Failed::unavailable(format!("{host} is not found: {why}")),
        _ => Problem::new(Stage::Denied, message).into(),
    };
    let host = host.chars().take(253).collect();
    (Decision { host, port, address, allowed: false, code, why }, Err(failed))
}

/// A call on its way.
struct Going<'a> {
    http: &'a Http,
    api: &'a Api,
    network: &'a Network,
    secrets: &'a BTreeMap<String, String>,
    trace: &'a Mutex<Trace>,
    key: Option<&'a str>,
}

impl Going<'_> {
    fn note<T>(&self, change: impl FnOnce(&mut Trace) -> T) -> T {
        change(&mut self.trace.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn go(&self, operation: Option<&str>, params: &Map<String, Value>) -> Result<Answer, Failed> {
        let mut built = build(self.api, operation, params)?;
        if let Some(key) = self.key.and_then(|key| HeaderValue::from_str(key).ok()) {
            built.headers.insert(KEY_HEADER, key);
        }
        self.note(|trace| trace.request = Some((built.method.clone(), shown(&built.url))));
        let question = Question::of(&self.api.auth, self.secrets)?;
        let Some(question) = question else {
            return self.follow(&built, &Signature::of(&self.api.auth, self.secrets)?).await;
        };
        let kept = self.http.tokens.find(&question);
        let is_kept = kept.is_some();
        let token = match kept {
            Some(token) => token,
            None => self.fetch(&question).await?,
        };
        let answer = self.follow(&built, &self.signed(token)?).await?;
        if answer.status != 401 {
            return Ok(answer);
        }
        self.http.tokens.forget(&question);
        if !is_kept {
            return Ok(answer);
        }
        // It may have been taken back before its time.
        let token = self.fetch(&question).await?;
        self.follow(&built, &self.signed(token)?).await
    }

    fn signed(&self, token: String) -> Result<Signature, Problem> {
        self.note(|trace| trace.fetched.push(token.clone()));
        Signature::of(&self.api.auth, &BTreeMap::from([("token".to_owned(), token)]))
    }

    async fn fetch(&self, question: &Question<'_>) -> Result<String, Failed> {
        let url =
            Url::parse(question.url).map_err(|e| Problem::new(Stage::Call, format!("token_url is no address: {e}")))?;
        let form = HeaderValue::from_static("application/x-www-form-urlencoded");
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, form)]);
        let response = self.send("POST", &url, headers, Some(question.form().into_bytes())).await?;
        let answer = self.read(response, &url).await?;
        if !answer.is_good() {
            let said: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
            let why = ["error", "error_description"].map(|name| said.get(name).and_then(Value::as_str).unwrap_or(""));
            let why: String = why.join(" ").chars().take(ERROR_CHARS_MAX).collect();
            let message = format!("no token was given out: status {} {}", answer.status, why.trim());
            let went = Went::Wrong(Some(u64::from(answer.status)));
            return Err(Failed { went, problem: Problem::new(Stage::Call, message.trim_end()) });
        }
        Ok(self.http.tokens.take(question, &answer.body)?)
    }

    /// Asks, and goes where it is sent. Once at another origin, nothing is signed any more.
    async fn follow(&self, built: &Built, signature: &Signature) -> Result<Answer, Failed> {
        let mut url = built.url.clone();
        let mut is_home = true;
        let mut count = 0;
        loop {
            let mut headers = built.headers.clone();
            let mut target = url.clone();
            if is_home {
                signature.add_to(&mut target, &mut headers);
            }
            let response = self.send(&built.method, &target, headers, built.body.clone()).await?;
            let status = u64::from(response.status().as_u16());
            let is_sent_on = [301, 302, 303, 307, 308].contains(&status);
            let next = response.headers().get(LOCATION).and_then(|place| place.to_str().ok()).map(|to| url.join(to));
            let Some(next) = next.filter(|_| is_sent_on && ["GET", "HEAD"].contains(&built.method.as_str())) else {
                return self.read(response, &url).await;
            };
            let failed = |message: String| Failed {
                went: Went::Wrong(Some(status)),
                problem: Problem::new(Stage::Call, message),
            };
            let next = next.map_err(|e| failed(format!("the service sends us on to no address: {e}")))?;
            count += 1;
            if count > REDIRECTS_MAX {
                return Err(failed(format!("the service sends us on more than {REDIRECTS_MAX} times")));
            }
            if url.scheme() == "https" && next.scheme() == "http" {
                let why = "a redirect leads from https to http".to_owned();
                let port = next.port_or_known_default().unwrap_or(0);
                let host = next.host_str().unwrap_or_default();
                let (decision, no) = denied::<Answer>(host, port, None, "ssrf_block.invalid_url", why);
                self.note(|trace| trace.decisions.push(decision));
                return no;
            }
            self.note(|trace| trace.redirects += 1);
            is_home = is_home && next.origin() == url.origin();
            url = next;
        }
    }

    async fn send(
        &self,
        method: &str,
        url: &Url,
        headers: HeaderMap,
        body: Option<Vec<u8>>,
    ) -> Result<Response, Failed> {
        let (decision, client) = self.http.reach(self.network, url).await;
        let at = self.note(|trace| {
            trace.decisions.push(decision);
            trace.decisions.len() - 1
        });
        let method = Method::from_bytes(method.as_bytes())
            .map_err(|_| Problem::new(Stage::Input, format!("{method:?} is no method")))?;
        let mut request = client?.request(method, url.clone()).headers(headers);
        if let Some(body) = body {
            request = request.body(body);
        }
        let response = request.send().await.map_err(|e| lost(e, url))?;
        if let Some(dialled) = response.remote_addr() {
            self.note(|trace| trace.decisions[at].address = Some(dialled.ip().to_canonical()));
        }
        Ok(response)
    }

    async fn read(&self, response: Response, url: &Url) -> Result<Answer, Failed> {
        Answer::read(response).await.map_err(|e| {
            let message = format!("the answer of {} broke off: {}", shown(url), chain(e));
            Problem::new(Stage::Call, message).into()
        })
    }
}

/// An address as it may be seen: queries have keys in them.
fn shown(url: &Url) -> String {
    format!("{}{}", url.origin().ascii_serialization(), url.path())
}

/// Who was not reached, and who was and did not answer.
fn lost(e: reqwest::Error, url: &Url) -> Failed {
    let (is_connect, is_timeout) = (e.is_connect(), e.is_timeout());
    let why = chain(e);
    let host = url.host_str().unwrap_or_default();
    match (is_connect, is_timeout) {
        (true, true) => Failed::unavailable(format!("{host} does not answer within {} s", CONNECT_WITHIN.as_secs())),
        (true, false) if why.contains("certificate") => {
            Failed::unavailable(format!("{host} cannot be trusted: {why}; a root of your own can be added"))
        }
        (true, false) => Failed::unavailable(format!("{host} cannot be reached: {why}")),
        (false, _) => Problem::new(Stage::Call, format!("{host} gave no answer: {why}")).into(),
    }
}

/// An error with its causes, without the address it was about.
pub(crate) fn chain(e: reqwest::Error) -> String {
    let e = e.without_url();
    let mut text = e.to_string();
    let mut source = std::error::Error::source(&e);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text.chars().take(ERROR_CHARS_MAX).collect()
}

/// Drives a future on a thread of its own, since whoever calls may be inside a runtime already. Nothing: stopped.
pub(crate) fn wait_for<T: Send>(
    work: impl Future<Output = T> + Send,
    stop: &dyn Fn() -> bool,
) -> io::Result<Option<T>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (give, take) = mpsc::sync_channel(1);
    let end = Notify::new();
    std::thread::scope(|scope| {
        let driving = || {
            let found = runtime.block_on(async {
                tokio::select! {
                    found = work => Some(found),
                    () = end.notified() => None,
                }
            });
            // A name that is still being looked up is nobody's concern any more.
            runtime.shutdown_background();
            let _ = give.send(found);
        };
        std::thread::Builder::new().name("http".into()).spawn_scoped(scope, driving)?;
        loop {
            match take.recv_timeout(ASK_EVERY) {
                Ok(found) => return Ok(found),
                Err(mpsc::RecvTimeoutError::Timeout) if stop() => end.notify_one(),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(None),
            }
        }
    })
}

/// The attempt as it may be seen by everybody.
fn told(adapter_id: &str, found: Result<Answer, Failed>, trace: &Trace, secrets: &BTreeMap<String, String>) -> Attempt {
    let values: Vec<String> = secrets.values().chain(&trace.fetched).flat_map(|value| written(value)).collect();
    let redactor = Redactor::new(values.iter().map(String::as_str));
    let (method, url) = trace.request.clone().unzip();
    let decisions: Vec<Value> = trace.decisions.iter().map(Decision::to_value).collect();
    let mut evidence = json!({"method": method, "url": url, "redirects": trace.redirects, "decisions": decisions});
    let mut attempt = match found {
        Ok(answer) => {
            evidence["status"] = json!(answer.status);
            evidence["content_type"] = json!(answer.content_type);
            evidence["bytes_read"] = json!(answer.body.len());
            let code = u64::from(answer.status);
            let (output, problem) = answer.value(&redactor);
            let (went, problem) = match (answer.is_good(), problem) {
                (true, None) => (Went::Well, None),
                (true, Some(problem)) => (Went::Wrong(None), Some(problem)),
                (false, _) => {
                    let message = format!("the service answered with status {code}");
                    (Went::Wrong(Some(code)), Some(Problem::new(Stage::Call, message)))
                }
            };
            Attempt {
                output,
                is_cut: answer.is_cut,
                code: Some(code),
                retry_after_ms: answer.retry_after_ms,
                problem,
                ..Attempt::new(adapter_id, went)
            }
        }
        Err(failed) => {
            let code = match failed.went {
                Went::Wrong(code) => code,
                _ => None,
            };
            Attempt { code, ..Attempt::failed(adapter_id, failed.went, failed.problem) }
        }
    };
    clean(&redactor, &mut evidence);
    attempt.evidence = evidence;
    if let Some(problem) = &mut attempt.problem {
        problem.message = clean_text(&redactor, &problem.message);
        problem.path = problem.path.as_deref().map(|path| clean_text(&redactor, path));
    }
    attempt
}

/// A secret as it is, and as it stands in addresses, forms and JSON.
fn written(secret: &str) -> Vec<String> {
    let mut forms = vec![secret.to_owned()];
    if let Ok(mut url) = Url::parse("form://x") {
        url.query_pairs_mut().append_key_only(secret);
        forms.extend(url.query().map(ToOwned::to_owned));
        forms.extend(url.query().map(|query| query.replace('+', "%20")));
    }
    forms.push(Value::from(secret).to_string().trim_matches('"').to_owned());
    forms.sort_unstable();
    forms.dedup();
    forms
}

#[cfg(test)]
mod tests;
