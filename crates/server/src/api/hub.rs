//! What listeners share: of each source one who looks how far it has come, and the pages that were read of it; of each token
//! one who looks whether it still opens the door; and the places there are.
//!
//! Nothing is kept for a listener here: each knows where it stands and takes pages from there, so that one that reads slowly
//! costs nobody anything and loses nothing.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::answer::Reply;
use super::event::{Page, Reached, Source};
use super::share::{Share, Shares, Whose, shared};
use super::turn::Turns;
use super::{Bounds, Caller, Face};
use crate::bridge::Refused;

/// Pages of one source that are kept for others, and how long.
const PAGES_MAX: usize = 4;
const PAGE_LIFE: Duration = Duration::from_secs(5);
/// However many sources there are, they are looked at so often together in a second.
const LOOKS_PER_SECOND_MAX: u32 = 500;

pub(crate) struct Hub {
    face: Arc<dyn Face>,
    /// Threads that read events; apart from those for requests.
    reads: Arc<Turns>,
    places: Shares,
    sources: Mutex<HashMap<Source, Weak<Channel>>>,
    guards: Mutex<HashMap<String, Weak<Guard>>>,
    look_every: Duration,
    check_every: Duration,
}

impl Hub {
    pub(crate) fn new(face: Arc<dyn Face>, streams_max: usize, bounds: &Bounds) -> Self {
        Self {
            face,
            reads: Arc::new(Turns::new(bounds.reads_max, bounds)),
            // Four fifths for one tenant, three for one token: who listens much listens with one token.
            places: Shares::with(streams_max, streams_max / 5 * 4, streams_max / 5 * 3),
            sources: Mutex::default(),
            guards: Mutex::default(),
            look_every: bounds.poll,
            check_every: bounds.check,
        }
    }

    /// A place among those who listen, if there is one in the share of this caller.
    pub(crate) fn place(&self, caller: &Caller) -> Option<Share> {
        self.places.try_take(Some(&Whose::from(caller)))
    }

    /// Returns when nobody listens any more, and nothing is read.
    pub(crate) async fn settled(&self) {
        self.places.settled().await;
        self.reads.settled().await;
    }

    pub(crate) fn channel(self: &Arc<Self>, source: &Source) -> Arc<Channel> {
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let made = || {
            let (source, face, reads) = (source.clone(), Arc::clone(&self.face), Arc::clone(&self.reads));
            let channel = Channel {
                source,
                face,
                reads,
                pages: tokio::sync::Mutex::default(),
                reached: watch::Sender::new(None),
            };
            let channel = Arc::new(channel);
            tokio::spawn(look(Arc::downgrade(self), Arc::downgrade(&channel)));
            channel
        };
        shared(&mut sources, source, made)
    }

    pub(crate) fn guard(self: &Arc<Self>, caller: &Caller) -> Arc<Guard> {
        let mut guards = self.guards.lock().unwrap_or_else(PoisonError::into_inner);
        let made = || {
            let guard = Arc::new(Guard { is_over: watch::Sender::new(false) });
            tokio::spawn(check(Arc::downgrade(self), Arc::downgrade(&guard), caller.clone()));
            guard
        };
        shared(&mut guards, &caller.token, made)
    }

    /// How long to wait between two looks at one source.
    fn pause(&self) -> Duration {
        let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner).len();
        let fair = Duration::from_secs(1) / LOOKS_PER_SECOND_MAX * u32::try_from(sources).unwrap_or(u32::MAX);
        self.look_every.max(fair)
    }
}

/// One source, and who listens to it.
pub(crate) struct Channel {
    source: Source,
    face: Arc<dyn Face>,
    reads: Arc<Turns>,
    /// Those read last, with when that was. Whoever reads holds this: one at a time for each source.
    pages: tokio::sync::Mutex<VecDeque<(Instant, Arc<Page>)>>,
    /// None: nobody has looked yet.
    reached: watch::Sender<Option<Reached>>,
}

impl Channel {
    pub(crate) fn reached(&self) -> watch::Receiver<Option<Reached>> {
        self.reached.subscribe()
    }

    /// The events behind the cursor: those that somebody has read just now, or read anew.
    pub(crate) async fn page(&self, cursor: Option<u64>) -> Result<Arc<Page>, Reply> {
        let mut pages = self.pages.lock().await;
        if let Some((_, page)) = pages.iter().find(|(_, page)| page.follows(cursor)) {
            return Ok(Arc::clone(page));
        }
        let (face, source) = (Arc::clone(&self.face), self.source.clone());
        let read = self.reads.work(move || Ok::<_, Refused>(Page::new(cursor, face.stretch(&source, cursor)?)));
        let page = Arc::new(read.await??);
        if page.last().is_some() {
            while pages.len() >= PAGES_MAX {
                pages.pop_front();
            }
            pages.push_back((Instant::now(), Arc::clone(&page)));
        }
        Ok(page)
    }

    fn forget(&self) {
        if let Ok(mut pages) = self.pages.try_lock() {
            pages.retain(|(read, _)| read.elapsed() < PAGE_LIFE);
        }
    }
}

/// Looks how far a source has come, as long as somebody listens to it.
async fn look(hub: Weak<Hub>, channel: Weak<Channel>) {
    loop {
        let (Some(shared), Some(channel)) = (hub.upgrade(), channel.upgrade()) else { return };
        let (face, source) = (Arc::clone(&channel.face), channel.source.clone());
        // What cannot be found out now is found out later; listeners give up by themselves.
        if let Ok(Ok(reached)) = channel.reads.work(move || face.reached(&source)).await {
            channel.reached.send_if_modified(|known| {
                let is_new = known.as_ref() != Some(&reached);
                *known = Some(reached);
                is_new
            });
        }
        channel.forget();
        let pause = shared.pause();
        drop((shared, channel));
        sleep(pause).await;
    }
}

/// Whether a token still opens the door, for all who listen by it.
pub(crate) struct Guard {
    is_over: watch::Sender<bool>,
}

impl Guard {
    pub(crate) fn is_over(&self) -> watch::Receiver<bool> {
        self.is_over.subscribe()
    }
}

async fn check(hub: Weak<Hub>, guard: Weak<Guard>, caller: Caller) {
    loop {
        let Some(every) = hub.upgrade().map(|hub| hub.check_every) else { return };
        sleep(every).await;
        let (Some(hub), Some(guard)) = (hub.upgrade(), guard.upgrade()) else { return };
        let (face, asked) = (Arc::clone(&hub.face), caller.clone());
        if let Ok(Ok(false)) = hub.reads.work(move || face.is_in(&asked)).await {
            guard.is_over.send_replace(true);
            return;
        }
    }
}
