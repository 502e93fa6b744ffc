//! Which rows of a log are meant: by a range of entries, or by an inner node of the tree. Shared by the dialects.

use actum_contract::digest::Digest;
use actum_ledger::journal::{JournalError, Range};
use actum_ledger::merkle::{LEVEL_STEP, Node, join};

/// Hashes to be read from one kept level; level 0 are the entries themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub level: u32,
    pub first: u64,
    pub count: u64,
}

/// The hashes on the nearest kept level below a node.
pub(crate) fn stretch(node: Node) -> Stretch {
    let level = node.level - node.level % LEVEL_STEP;
    let up = node.level - level;
    Stretch { level, first: node.index << up, count: 1 << up }
}

/// Where a range begins. From the very beginning means from whatever is there: a row that somebody put before the
/// first place must not be overlooked.
pub(crate) fn first_seq(range: &Range) -> i64 {
    match range.from {
        0 if !range.backwards => i64::MIN,
        from => i64::try_from(from).unwrap_or(i64::MAX),
    }
}

/// The node out of its stretch.
pub(crate) fn node(stretch: Stretch, hashes: Vec<Vec<u8>>) -> Result<Digest, JournalError> {
    let found = hashes.len() as u64;
    let hashes: Option<Vec<_>> = hashes.iter().map(|h| Digest::from_slice(h)).collect();
    hashes.filter(|_| found == stretch.count).and_then(join).ok_or_else(|| {
        let Stretch { level, first, count } = stretch;
        JournalError::Damaged(format!(
            "{found} of {count} hashes found on level {level} from {first}: run `actum store rebuild`"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_made_of_at_most_128_hashes() {
        assert_eq!(stretch(Node { level: 0, index: 5 }), Stretch { level: 0, first: 5, count: 1 });
        assert_eq!(stretch(Node { level: 7, index: 3 }), Stretch { level: 0, first: 384, count: 128 });
        assert_eq!(stretch(Node { level: 8, index: 3 }), Stretch { level: 8, first: 3, count: 1 });
        assert_eq!(stretch(Node { level: 19, index: 1 }), Stretch { level: 16, first: 8, count: 8 });
    }
}
