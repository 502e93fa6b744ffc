//! Listening: a thread with a runtime of its own, the connections on it, and how all of this comes to its end.

use std::io;
use std::net::TcpListener;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use actum_api::route::Route;
use axum::extract::Request;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::runtime::Runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tower::util::MapRequest;

use super::peer::{Peer, Peers, Place};
use super::request::{Desk, pass};
use super::share::Share;
use super::stranger::{Stranger, Strangers};
use super::{Bounds, Face, Settings};
use crate::bridge::{ACCEPT_PAUSE, HEAD_BYTES_MAX, HEADERS_MAX};
use crate::paced::Paced;

/// How long threads are waited for once everything is cut.
const CUT_PATIENCE: Duration = Duration::from_millis(100);

/// Serves until it is ended or dropped.
#[derive(Debug)]
pub struct Api {
    stop: Option<oneshot::Sender<Duration>>,
    thread: Option<JoinHandle<()>>,
}

impl Api {
    pub(crate) fn serve_with(
        listener: TcpListener,
        face: Arc<dyn Face>,
        routes: &'static [Route],
        settings: Settings,
        bounds: Bounds,
    ) -> io::Result<Self> {
        let is_loopback = listener.local_addr()?.ip().is_loopback();
        let connections_max = settings.connections_max.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        let desk = Arc::new(Desk::new(face, routes, settings, bounds, is_loopback));
        let (stop, stopped) = oneshot::channel();
        let (report, started) = mpsc::sync_channel(1);
        // A thread of our own: a runtime may be neither entered nor dropped where the caller runs inside another one.
        let thread = Builder::new().name("actum-api".to_owned()).spawn(move || {
            let ready = runtime(&bounds).and_then(|runtime| {
                listener.set_nonblocking(true)?;
                let _inside = runtime.enter();
                let listener = tokio::net::TcpListener::from_std(listener)?;
                Ok((runtime, listener))
            });
            match ready {
                Ok((runtime, listener)) => {
                    // Nobody listening means `serve` is gone, and then `stopped` says so too.
                    report.send(Ok(())).unwrap_or_default();
                    run(runtime, listener, &desk, connections_max, stopped);
                }
                Err(error) => report.send(Err(error)).unwrap_or_default(),
            }
        })?;
        let api = Self { stop: Some(stop), thread: Some(thread) };
        started.recv().map_err(|_| io::Error::other("the server did not start"))??;
        Ok(api)
    }

    /// Accepts nothing more, lets what is under way end, and after so long cuts the rest: connections are closed, and
    /// whatever still runs on a thread is left to itself.
    pub fn end(mut self, patience: Duration) {
        self.stop(patience);
    }

    fn stop(&mut self, patience: Duration) {
        if let Some(stop) = self.stop.take() {
            // A thread that is over already hears nothing.
            stop.send(patience).unwrap_or_default();
        }
        if let Some(thread) = self.thread.take() {
            // What panicked there was told to whoever asked; there is nothing left to mend.
            thread.join().unwrap_or_default();
        }
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

/// The place that a connection takes, until it is over.
#[derive(Debug, Clone)]
pub(crate) struct Slot(Arc<Mutex<Taken>>);

/// Nothing of it is read: it is held, and given back.
#[derive(Debug)]
enum Taken {
    /// `stranger`: its caller has not shown a token yet.
    Asking {
        _slot: OwnedSemaphorePermit,
        _place: Place,
        stranger: Option<Stranger>,
        /// Its part of the connections of its token and tenant, once they are known.
        _share: Option<Share>,
    },
    Listening {
        _place: Share,
    },
}

impl Slot {
    /// Whether its caller has shown a token.
    pub(crate) fn is_known(&self) -> bool {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        !matches!(&*taken, Taken::Asking { stranger: Some(_), .. })
    }

    /// Its caller has shown a token: from now on it counts among the connections of that token and its tenant.
    pub(crate) fn know(&self, share: Share) {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Taken::Asking { stranger, _share, .. } = &mut *taken {
            (*stranger, *_share) = (None, Some(share));
        }
    }

    /// Takes another place instead: one that is counted elsewhere, whoever the peer is.
    pub(crate) fn put(&self, place: Share) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Taken::Listening { _place: place };
    }
}

/// One thread for everything that does not block: whoever floods us keeps one processor busy, not all of them.
fn runtime(bounds: &Bounds) -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(bounds.enters_max + bounds.looks_max + bounds.works_max + bounds.reads_max)
        .thread_name("actum-request")
        .build()
}

fn run(
    runtime: Runtime,
    listener: tokio::net::TcpListener,
    desk: &Arc<Desk>,
    connections_max: usize,
    stopped: oneshot::Receiver<Duration>,
) {
    runtime.block_on(async {
        let slots = Arc::new(Semaphore::new(connections_max));
        let peers = Peers::new(connections_max);
        let strangers = Strangers::new(connections_max);
        // First it is known that we end, then the listener is closed.
        let told = async {
            let patience = stopped.await.unwrap_or_default();
            desk.end();
            patience
        };
        let patience = tokio::select! {
            () = accept(listener, desk, (&slots, &strangers), &peers) => Duration::ZERO,
            patience = told => patience,
        };
        let all = u32::try_from(connections_max).unwrap_or(u32::MAX);
        let settled = async {
            // An error would mean that there can be no connection either.
            slots.acquire_many(all).await.map(drop).unwrap_or_default();
            desk.settled().await;
        };
        // What is still under way then is cut.
        let _ = tokio::time::timeout(patience, settled).await;
    });
    runtime.shutdown_timeout(CUT_PATIENCE);
}

async fn accept(
    listener: tokio::net::TcpListener,
    desk: &Arc<Desk>,
    (slots, strangers): (&Arc<Semaphore>, &Arc<Strangers>),
    peers: &Arc<Peers>,
) {
    let router = Router::new().fallback(pass).with_state(Arc::clone(desk));
    // Never closed, so this ends only with the runtime.
    while let Ok(slot) = Arc::clone(slots).acquire_owned().await {
        strangers.room().await;
        match listener.accept().await {
            Ok((stream, address)) => {
                // One who has too many loses this one; nobody else waits for it.
                let Some(place) = peers.enter(address.ip()) else { continue };
                let router = router.clone().layer(Extension(Peer(address.ip().to_canonical())));
                tokio::spawn(converse(stream, router, Arc::clone(desk), (slot, place), strangers.enter()));
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn converse(
    stream: tokio::net::TcpStream,
    router: Router,
    desk: Arc<Desk>,
    held: (OwnedSemaphorePermit, Place),
    (stranger, cut): (Stranger, oneshot::Receiver<()>),
) {
    // Answers are small and written at once; without it each waits for the acknowledgement of the last one.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let slot = Slot(Arc::new(Mutex::new(Taken::Asking {
        _slot: held.0,
        _place: held.1,
        stranger: Some(stranger),
        _share: None,
    })));
    let told = slot.clone();
    let service = MapRequest::new(router, move |mut request: Request<_>| {
        request.extensions_mut().insert(told.clone());
        request
    });
    let io = TokioIo::new(Paced::new(stream, desk.bounds.write));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(desk.bounds.head)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(io, TowerToHyperService::new(service));
    let mut connection = pin!(connection);
    let cut = async {
        // Once its caller is known, nothing cuts it.
        if cut.await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = cut => return,
        // Whatever broke the connection, there is nobody left to tell.
        _ = connection.as_mut() => return,
        () = desk.ending() => connection.as_mut().graceful_shutdown(),
    }
    connection.await.unwrap_or_default();
    drop(slot);
}
