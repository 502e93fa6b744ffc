//! A scripted model provider on loopback, for tests of whoever asks models: it speaks the four protocols, streaming and
//! not, says what its script says with exact numbers of tokens, misbehaves where it is told to, and keeps every request.
//! It never leaves loopback and never decides anything by itself.

mod hands;
mod http;
mod script;
mod wire;

use std::collections::BTreeMap;
use std::io::{self, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

pub use hands::{shell, write};
pub use script::{Script, Turn, Usage};

use http::Answer;
use wire::{Ask, Protocol};

/// How long [`Upstream::wait_for`] waits before it calls that a failure.
const ARRIVAL_SECONDS_MAX: u64 = 120;

/// What somebody asked, as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub method: String,
    pub path: String,
    /// What stood behind the question mark; empty without one.
    pub query: String,
    /// Names in lower case, in the order they came.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// The turn of the script it took; nothing for lists, counts and asides.
    pub turn: Option<usize>,
    /// What the answer said it used; nothing if it said nothing, or was no answer.
    pub usage: Option<Usage>,
}

impl Request {
    /// The first header of this name, in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// The body as JSON; null if it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// Whether it asked a model, instead of for a list or a count.
    pub fn is_call(&self) -> bool {
        self.method == "POST" && Protocol::of(&self.path).is_some()
    }
}

/// A provider that listens until it is stopped or dropped.
#[derive(Debug)]
pub struct Upstream {
    address: SocketAddr,
    shared: Arc<Shared>,
    listener: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    script: Script,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    requests: Vec<Request>,
    /// Turns that were taken.
    taken: usize,
    /// How many held turns may go on.
    released: usize,
    held: usize,
    connections: usize,
    open: BTreeMap<usize, TcpStream>,
    threads: Vec<JoinHandle<()>>,
    is_stopped: bool,
}

impl Upstream {
    /// Listens on a free port of loopback.
    ///
    /// # Panics
    /// When there is none.
    pub fn start(script: impl Into<Script>) -> Self {
        Self::start_at("127.0.0.1", script)
    }

    /// Listens on a free port of an address of this machine.
    ///
    /// # Panics
    /// When there is none.
    pub fn start_at(address: &str, script: impl Into<Script>) -> Self {
        let listener = TcpListener::bind((address, 0)).expect("there is a free port");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared { script: script.into(), state: Mutex::default(), changed: Condvar::new() });
        let own = Arc::clone(&shared);
        let listener = std::thread::spawn(move || own.listen(&listener));
        Self { address, shared, listener: Some(listener) }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://127.0.0.1:PORT`, without a path.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Everything that was asked so far, in the order it arrived.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.state().requests.clone()
    }

    /// Only what was asked of a model.
    pub fn calls(&self) -> Vec<Request> {
        self.requests().into_iter().filter(Request::is_call).collect()
    }

    /// The sum of what its answers said they used.
    pub fn used(&self) -> Usage {
        self.shared.state().requests.iter().filter_map(|request| request.usage).fold(Usage::default(), Usage::plus)
    }

    /// How many connections were made.
    pub fn connections(&self) -> usize {
        self.shared.state().connections
    }

    /// How many turns of the script were taken.
    pub fn turns(&self) -> usize {
        self.shared.state().taken
    }

    /// Waits until so many requests have arrived; they need not be answered.
    ///
    /// # Panics
    /// When they do not come.
    pub fn wait_for(&self, requests: usize) {
        let until = Instant::now() + Duration::from_secs(ARRIVAL_SECONDS_MAX);
        let mut state = self.shared.state();
        while state.requests.len() < requests {
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "only {} of {requests} requests came", state.requests.len());
            state = self.shared.wait(state, left);
        }
    }

    /// Lets one more turn that is held go on, now or when it comes.
    pub fn release(&self) {
        self.shared.state().released += 1;
        self.shared.changed.notify_all();
    }

    /// Closes every connection and listens no more; what was asked.
    pub fn stop(mut self) -> Vec<Request> {
        self.end();
        self.requests()
    }

    fn end(&mut self) {
        let Some(listener) = self.listener.take() else { return };
        {
            let mut state = self.shared.state();
            state.is_stopped = true;
            for stream in state.open.values() {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
        self.shared.changed.notify_all();
        // Whoever waits in `accept` has to be woken.
        drop(TcpStream::connect(self.address));
        let _ = listener.join();
        let threads = std::mem::take(&mut self.shared.state().threads);
        for thread in threads {
            let _ = thread.join();
        }
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, at_most: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, at_most).unwrap_or_else(PoisonError::into_inner).0
    }

    fn listen(self: Arc<Self>, listener: &TcpListener) {
        for stream in listener.incoming() {
            let mut state = self.state();
            if state.is_stopped {
                return;
            }
            // A connection that went away before it was taken.
            let Some((stream, twin)) = stream.ok().and_then(|stream| Some((stream.try_clone().ok()?, stream))) else {
                continue;
            };
            state.connections += 1;
            let number = state.connections;
            state.open.insert(number, twin);
            let own = Arc::clone(&self);
            let thread = std::thread::spawn(move || {
                // Whoever asks may go away at any time, and some tests want just that.
                let _ = own.serve(&stream);
                let _ = stream.shutdown(Shutdown::Both);
                own.state().open.remove(&number);
            });
            // Those that have ended need not be joined later.
            state.threads.retain(|thread| !thread.is_finished());
            state.threads.push(thread);
        }
    }

    fn serve(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let (mut reader, mut writer) = (BufReader::new(stream), stream);
        while let Some(request) = http::read(&mut reader, &mut writer)? {
            let answer = self.answer(request);
            if !answer.send(&mut writer)? {
                break;
            }
            if matches!(answer, Answer::Nothing) {
                // Until the other side has had enough, or the test.
                while reader.read(&mut [0; 1024])? > 0 {}
                break;
            }
            writer.flush()?;
        }
        Ok(())
    }

    /// Puts the request on record together with the turn it takes, and makes the answer.
    fn answer(&self, mut request: Request) -> Answer {
        let body = request.json();
        let ask = request.is_call().then(|| Ask::new(&request, &body)).flatten();
        let Some(ask) = ask else {
            let answer = wire::other(&request);
            self.record(request);
            return answer;
        };
        let mut state = self.state();
        let before = state.requests.iter().filter(|one| one.body == request.body).count();
        let aside = self.script.aside.as_ref().filter(|_| !ask.has_tools);
        let aside = aside.map(|(text, usage)| (Turn::Text(text.clone()), *usage));
        let (turn, usage, number) = match self.script.to(&body, before).or(aside) {
            Some((turn, usage)) => (turn, usage, state.requests.len()),
            None => {
                let number = state.taken;
                state.taken += 1;
                request.turn = Some(number);
                let (turn, usage) = self.script.at(number);
                (turn, usage, number)
            }
        };
        request.usage = turn.states(usage);
        state.requests.push(request);
        let turn = self.hold(state, turn);
        wire::answer(&ask, &turn, usage, number)
    }

    fn record(&self, request: Request) {
        self.state().requests.push(request);
        self.changed.notify_all();
    }

    /// Waits as long as the turn wants; what then has to be said.
    fn hold(&self, mut state: MutexGuard<'_, State>, mut turn: Turn) -> Turn {
        self.changed.notify_all();
        loop {
            turn = match turn {
                Turn::Delay(time, then) => {
                    let until = Instant::now() + time;
                    while !state.is_stopped && Instant::now() < until {
                        state = self.wait(state, until.saturating_duration_since(Instant::now()));
                    }
                    *then
                }
                Turn::Held(then) => {
                    let mine = state.held;
                    state.held += 1;
                    while !state.is_stopped && state.released <= mine {
                        state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                    }
                    *then
                }
                other => return other,
            };
        }
    }
}

#[cfg(test)]
mod tests;
