//! What there is only so much of, and how much of it one tenant and one token may hold at the same time: so that nobody has all of
//! it, whoever he is. Counts what is held now, never what was held before.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

use super::Caller;

/// Fewer than that are too few to share out.
const SHARED_FROM: usize = 16;

/// In whose share something is held.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Whose {
    pub(crate) tenant: String,
    pub(crate) token: String,
}

impl From<&Caller> for Whose {
    fn from(caller: &Caller) -> Self {
        Self { tenant: caller.tenant.clone(), token: caller.token.clone() }
    }
}

/// So much of one thing, and who holds how much of it.
pub(crate) struct Shares {
    all: Arc<Semaphore>,
    number: usize,
    of_tenant: usize,
    of_token: usize,
    tenants: Mutex<HashMap<String, Weak<Semaphore>>>,
    tokens: Mutex<HashMap<String, Weak<Semaphore>>>,
}

impl Shares {
    /// Half of it for one tenant, a quarter for one token.
    pub(crate) fn new(number: usize) -> Self {
        Self::with(number, number / 2, number / 4)
    }

    pub(crate) fn with(number: usize, of_tenant: usize, of_token: usize) -> Self {
        let number = number.min(Semaphore::MAX_PERMITS).min(u32::MAX as usize);
        let (of_tenant, of_token) = if number < SHARED_FROM { (number, number) } else { (of_tenant, of_token) };
        Self {
            all: Arc::new(Semaphore::new(number)),
            number,
            of_tenant,
            of_token,
            tenants: Mutex::default(),
            tokens: Mutex::default(),
        }
    }

    /// What one token has at most.
    pub(crate) fn of_token(&self) -> usize {
        self.of_token
    }

    /// So much of it once there is so much, in a share or in nobody's. Whoever waits for his own share is in nobody's way.
    pub(crate) async fn take(&self, whose: Option<&Whose>, number: usize) -> Result<Share, AcquireError> {
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        let own = match whose.map(|whose| self.own(whose)) {
            Some([token, tenant]) => {
                let token = token.acquire_many_owned(number).await?;
                Some([token, tenant.acquire_many_owned(number).await?])
            }
            None => None,
        };
        Ok(Share { all: Arc::clone(&self.all).acquire_many_owned(number).await?, own })
    }

    /// One of it, if it is to be had now.
    pub(crate) fn try_take(&self, whose: Option<&Whose>) -> Option<Share> {
        self.try_take_many(whose, 1)
    }

    pub(crate) fn try_take_many(&self, whose: Option<&Whose>, number: usize) -> Option<Share> {
        let number = u32::try_from(number).ok()?;
        let taken = |all: Arc<Semaphore>| all.try_acquire_many_owned(number).ok();
        let own = match whose.map(|whose| self.own(whose)) {
            Some([token, tenant]) => Some([taken(token)?, taken(tenant)?]),
            None => None,
        };
        Some(Share { all: taken(Arc::clone(&self.all))?, own })
    }

    /// Of the token, and of the tenant.
    fn own(&self, whose: &Whose) -> [Arc<Semaphore>; 2] {
        [(&self.tokens, &whose.token, self.of_token), (&self.tenants, &whose.tenant, self.of_tenant)].map(
            |(all, name, number)| {
                let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                shared(&mut all, name, || Arc::new(Semaphore::new(number)))
            },
        )
    }

    /// Returns when nobody holds anything.
    pub(crate) async fn settled(&self) {
        let number = u32::try_from(self.number).unwrap_or(u32::MAX);
        // An error would mean that nobody can have anything either.
        self.all.acquire_many(number).await.map(drop).unwrap_or_default();
    }
}

/// Held, and given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    all: OwnedSemaphorePermit,
    own: Option<[OwnedSemaphorePermit; 2]>,
}

impl Share {
    /// Gives back what is more than so much.
    pub(crate) fn keep(&mut self, number: usize) {
        for permit in self.own.iter_mut().flatten().chain([&mut self.all]) {
            drop(permit.split(permit.num_permits().saturating_sub(number)));
        }
    }
}

/// The one that somebody uses already, or a new one. Those that nobody uses any more make room.
pub(crate) fn shared<K: Clone + Eq + Hash, T>(
    all: &mut HashMap<K, Weak<T>>,
    key: &K,
    made: impl FnOnce() -> Arc<T>,
) -> Arc<T> {
    if let Some(known) = all.get(key).and_then(Weak::upgrade) {
        return known;
    }
    all.retain(|_, one| one.strong_count() > 0);
    let new = made();
    all.insert(key.clone(), Arc::downgrade(&new));
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whose(tenant: &str, token: &str) -> Whose {
        Whose { tenant: tenant.to_owned(), token: token.to_owned() }
    }

    #[test]
    fn a_token_has_a_quarter_a_tenant_half_and_all_of_it_comes_back() {
        let shares = Shares::new(16);
        let taken = |tenant, token| -> Vec<Share> {
            std::iter::from_fn(|| shares.try_take(Some(&whose(tenant, token)))).collect()
        };
        let first = taken("a", "1");
        let (second, third) = (taken("a", "2"), taken("a", "3"));
        assert_eq!((first.len(), second.len(), third.len()), (4, 4, 0));
        let (fourth, fifth, sixth) = (taken("b", "4"), taken("b", "5"), taken("c", "6"));
        assert_eq!((fourth.len(), fifth.len(), sixth.len()), (4, 4, 0));
        assert!(shares.try_take(None).is_none());
        // What is given back may be taken by whoever has a share left.
        drop(first);
        assert_eq!((taken("b", "6").len(), taken("c", "6").len()), (0, 4));
        drop((second, fourth, fifth));
        let one = taken("a", "1");
        assert_eq!((shares.tokens.lock().unwrap().len(), shares.tenants.lock().unwrap().len()), (1, 1));
        drop(one);
        assert_eq!(shares.all.available_permits(), 16);
    }

    #[test]
    fn few_are_not_shared_out() {
        let shares = Shares::new(SHARED_FROM - 1);
        let held: Vec<_> = std::iter::from_fn(|| shares.try_take(Some(&whose("a", "1")))).collect();
        assert_eq!(held.len(), SHARED_FROM - 1);
    }

    #[tokio::test]
    async fn what_is_not_needed_is_given_back_and_whoever_leaves_holds_nothing() {
        let shares = Shares::new(16);
        let one = whose("a", "1");
        let mut held = shares.take(Some(&one), 4).await.unwrap();
        {
            let mut waits = std::pin::pin!(shares.take(Some(&one), 1));
            assert!(futures_util::poll!(waits.as_mut()).is_pending());
        }
        held.keep(1);
        let more = shares.take(Some(&one), 3).await.unwrap();
        assert_eq!(shares.all.available_permits(), 12);
        drop((held, more));
        assert_eq!(shares.all.available_permits(), 16);
    }
}
