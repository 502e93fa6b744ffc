//! Who is at the other end of a connection, and how many connections each of them has: one alone must not have all there are.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// Of all connections, so many quarters may be those of one peer.
const QUARTERS_OF_ONE: usize = 3;
/// Fewer connections than that are too few to share out.
const SHARED_FROM: usize = 16;

/// The other end of a connection, as every request on it knows it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) IpAddr);

/// Connections by their peers.
#[derive(Debug)]
pub(crate) struct Peers {
    of_one_max: usize,
    open: Mutex<HashMap<IpAddr, usize>>,
}

impl Peers {
    pub(crate) fn new(connections_max: usize) -> Arc<Self> {
        let of_one_max =
            if connections_max < SHARED_FROM { connections_max } else { connections_max * QUARTERS_OF_ONE / 4 };
        Arc::new(Self { of_one_max, open: Mutex::default() })
    }

    /// A place for one more connection of this peer; none if it has too many.
    pub(crate) fn enter(self: &Arc<Self>, peer: IpAddr) -> Option<Place> {
        // One and the same, whichever way it came.
        let peer = peer.to_canonical();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let number = open.entry(peer).or_default();
        if *number >= self.of_one_max {
            return None;
        }
        *number += 1;
        Some(Place { peers: Arc::clone(self), peer })
    }
}

/// Given back when the connection is over.
#[derive(Debug)]
pub(crate) struct Place {
    peers: Arc<Peers>,
    peer: IpAddr,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.peers.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = open.get_mut(&self.peer) {
            *number -= 1;
            if *number == 0 {
                open.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_all_connections_and_places_come_back() {
        let peers = Peers::new(16);
        let [one, other]: [IpAddr; 2] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
        let mut held: Vec<_> = (0..12).map(|_| peers.enter(one).unwrap()).collect();
        assert!(peers.enter(one).is_none());
        assert!(peers.enter("::ffff:10.0.0.1".parse().unwrap()).is_none());
        assert!(peers.enter(other).is_some());
        held.pop();
        held.extend(peers.enter(one));
        assert_eq!(held.len(), 12);
        drop(held);
        assert!(peers.open.lock().unwrap().is_empty());
        assert!(Peers::new(1).enter(one).is_some());
    }
}
