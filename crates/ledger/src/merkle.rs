//! The RFC 6962 tree over a log: growing it, proving inclusion and consistency, checking proofs.
//!
//! A growing tree needs only its frontier. Proofs need inner nodes; every eighth level is kept, the levels between
//! are recomputed from at most 256 hashes. `Plan` names the nodes a proof is made of, so that a store can fetch them.

use actum_contract::digest::Digest;

/// Levels whose nodes a store keeps are multiples of this.
pub const LEVEL_STEP: u32 = 8;

pub fn leaf(bytes: &[u8]) -> Digest {
    Digest::sha256_parts(&[&[0], bytes])
}

pub fn parent(left: Digest, right: Digest) -> Digest {
    Digest::sha256_parts(&[&[1], &left.0, &right.0])
}

/// A complete subtree: leaves `index << level` up to the next multiple.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node {
    pub level: u32,
    pub index: u64,
}

/// The right edge of a tree: one hash for each complete subtree, largest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Frontier {
    size: u64,
    stack: Vec<Digest>,
}

impl Frontier {
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Adds a leaf. Returns the nodes on kept levels that this completed.
    pub fn push(&mut self, leaf: Digest) -> Vec<(Node, Digest)> {
        let mut kept = Vec::new();
        let (mut hash, mut level) = (leaf, 0);
        while (self.size >> level) & 1 == 1 {
            let Some(left) = self.stack.pop() else { break };
            hash = parent(left, hash);
            level += 1;
            if level % LEVEL_STEP == 0 {
                kept.push((Node { level, index: self.size >> level }, hash));
            }
        }
        self.stack.push(hash);
        self.size += 1;
        kept
    }

    pub fn root(&self) -> Digest {
        fold(&self.stack)
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        self.stack.iter().flat_map(|d| d.0).collect()
    }

    /// The frontier that `to_bytes` wrote for a tree of `size`; nothing if the two do not fit together.
    pub fn from_bytes(size: u64, bytes: &[u8]) -> Option<Self> {
        if bytes.len() != size.count_ones() as usize * 32 {
            return None;
        }
        let stack = bytes.chunks_exact(32).filter_map(Digest::from_slice).collect();
        Some(Self { size, stack })
    }
}

/// Joins subtrees that lie side by side, largest first. No subtree at all is the empty tree.
fn fold(hashes: &[Digest]) -> Digest {
    let mut right_to_left = hashes.iter().rev().copied();
    match right_to_left.next() {
        None => Digest::sha256(b""),
        Some(last) => right_to_left.fold(last, |right, left| parent(left, right)),
    }
}

/// The hash of a complete subtree out of the hashes one or more levels below it.
pub fn join(mut hashes: Vec<Digest>) -> Option<Digest> {
    while hashes.len() > 1 {
        hashes = hashes.chunks(2).map(|pair| if let [l, r] = pair { parent(*l, *r) } else { pair[0] }).collect();
    }
    hashes.pop()
}

/// A proof in terms of complete subtrees: each element of the proof is the fold of one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan(Vec<Vec<Node>>);

impl Plan {
    /// Not a proof but the root itself, out of stored nodes instead of the frontier: the only element of `proof`.
    pub fn root(size: u64) -> Self {
        Self(vec![complete(0, size)])
    }

    /// Proof that leaf `index` is in the tree of `size`. Nothing if it cannot be.
    pub fn inclusion(index: u64, size: u64) -> Option<Self> {
        if index >= size {
            return None;
        }
        let mut groups = Vec::new();
        let (mut low, mut high) = (0, size);
        while high - low > 1 {
            let middle = low + split(high - low);
            if index < middle {
                groups.push(complete(middle, high));
                high = middle;
            } else {
                groups.push(complete(low, middle));
                low = middle;
            }
        }
        groups.reverse();
        Some(Self(groups))
    }

    /// Proof that the tree of `old` leaves is the beginning of the tree of `new` ones. Nothing if it cannot be.
    pub fn consistency(old: u64, new: u64) -> Option<Self> {
        if old == 0 || old > new {
            return None;
        }
        let mut groups = Vec::new();
        let (mut low, mut high, mut whole) = (0, new, true);
        while old != high {
            let middle = low + split(high - low);
            if old <= middle {
                groups.push(complete(middle, high));
                high = middle;
            } else {
                groups.push(complete(low, middle));
                low = middle;
                whole = false;
            }
        }
        if !whole {
            groups.push(complete(low, high));
        }
        groups.reverse();
        Some(Self(groups))
    }

    /// Every node the proof is made of.
    pub fn nodes(&self) -> Vec<Node> {
        self.0.concat()
    }

    /// The proof, given the hashes of `nodes()` in that order.
    pub fn proof(&self, hashes: &[Digest]) -> Option<Vec<Digest>> {
        let mut rest = hashes;
        let mut proof = Vec::with_capacity(self.0.len());
        for group in &self.0 {
            let (these, after) = rest.split_at_checked(group.len())?;
            proof.push(fold(these));
            rest = after;
        }
        rest.is_empty().then_some(proof)
    }
}

/// The largest power of two smaller than `n`, for `n` of at least two.
fn split(n: u64) -> u64 {
    1 << (63 - (n - 1).leading_zeros())
}

/// The complete subtrees that cover leaves `low..high`, largest first.
fn complete(mut low: u64, high: u64) -> Vec<Node> {
    let mut nodes = Vec::new();
    while low < high {
        let level = 63 - (high - low).leading_zeros();
        nodes.push(Node { level, index: low >> level });
        low += 1 << level;
    }
    nodes
}

/// Whether `proof` shows that the leaf with this hash stands at `index` in the tree of `size` with this root.
pub fn verify_inclusion(leaf: Digest, index: u64, size: u64, proof: &[Digest], root: Digest) -> bool {
    if index >= size {
        return false;
    }
    let (mut node, mut last, mut hash) = (index, size - 1, leaf);
    for &sibling in proof {
        if last == 0 {
            return false;
        }
        if node & 1 == 1 || node == last {
            hash = parent(sibling, hash);
            while node & 1 == 0 && node != 0 {
                node >>= 1;
                last >>= 1;
            }
        } else {
            hash = parent(hash, sibling);
        }
        node >>= 1;
        last >>= 1;
    }
    last == 0 && hash == root
}

/// Whether `proof` shows that the tree of `old` leaves is the beginning of the tree of `new` ones.
pub fn verify_consistency(old: u64, old_root: Digest, new: u64, new_root: Digest, proof: &[Digest]) -> bool {
    if old == 0 || old > new {
        return false;
    }
    if old == new {
        return proof.is_empty() && old_root == new_root;
    }
    let mut rest = proof.iter().copied();
    let (mut node, mut last) = (old - 1, new - 1);
    while node & 1 == 1 {
        node >>= 1;
        last >>= 1;
    }
    let start = if old.is_power_of_two() { Some(old_root) } else { rest.next() };
    let Some(start) = start else { return false };
    let (mut first, mut second) = (start, start);
    for hash in rest {
        if last == 0 {
            return false;
        }
        if node & 1 == 1 || node == last {
            first = parent(hash, first);
            second = parent(hash, second);
            while node & 1 == 0 && node != 0 {
                node >>= 1;
                last >>= 1;
            }
        } else {
            second = parent(second, hash);
        }
        node >>= 1;
        last >>= 1;
    }
    last == 0 && first == old_root && second == new_root
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn leaves(n: u64) -> Vec<Digest> {
        (0..n).map(|i| leaf(&i.to_be_bytes())).collect()
    }

    /// MTH of RFC 6962, section 2.1, read off the page.
    fn oracle(leaves: &[Digest]) -> Digest {
        match leaves {
            [] => Digest::sha256(b""),
            [one] => *one,
            many => {
                let k = many.len().next_power_of_two() / 2;
                parent(oracle(&many[..k]), oracle(&many[k..]))
            }
        }
    }

    fn hashes_of(plan: &Plan, leaves: &[Digest]) -> Vec<Digest> {
        plan.nodes()
            .iter()
            .map(|n| {
                let low = (n.index << n.level) as usize;
                join(leaves[low..low + (1 << n.level)].to_vec()).unwrap()
            })
            .collect()
    }

    #[test]
    fn the_frontier_has_the_root_of_the_whole_tree_and_survives_its_bytes() {
        let all = leaves(600);
        let mut frontier = Frontier::default();
        let mut kept = HashMap::new();
        assert_eq!(frontier.root(), oracle(&[]));
        for (i, hash) in all.iter().enumerate() {
            kept.extend(frontier.push(*hash));
            assert_eq!(frontier.root(), oracle(&all[..=i]));
            let back = Frontier::from_bytes(frontier.size(), &frontier.to_bytes()).unwrap();
            assert_eq!(back, frontier);
        }
        assert_eq!(kept.len(), 2);
        assert_eq!(kept[&Node { level: 8, index: 1 }], oracle(&all[256..512]));
        assert_eq!(Frontier::from_bytes(3, &[0; 32]), None);
    }

    #[test]
    fn inclusion_and_consistency_for_every_pair_of_sizes() {
        let all = leaves(70);
        for size in 1..=all.len() as u64 {
            let root = oracle(&all[..size as usize]);
            let plan = Plan::root(size);
            assert_eq!(plan.proof(&hashes_of(&plan, &all)), Some(vec![root]));
            for index in 0..size {
                let plan = Plan::inclusion(index, size).unwrap();
                let proof = plan.proof(&hashes_of(&plan, &all)).unwrap();
                let leaf = all[index as usize];
                assert!(verify_inclusion(leaf, index, size, &proof, root), "{index} of {size}");
                assert!(!verify_inclusion(leaf, index + 1, size, &proof, root));
                assert!(!verify_inclusion(Digest::ZERO, index, size, &proof, root));
                if let Some(first) = proof.first() {
                    let mut bent = proof.clone();
                    bent[0] = Digest::sha256(&first.0);
                    assert!(!verify_inclusion(leaf, index, size, &bent, root));
                    assert!(!verify_inclusion(leaf, index, size, &proof[1..], root));
                }
                assert!(!verify_inclusion(leaf, index, size, &[proof, vec![root]].concat(), root));
            }
            for old in 1..=size {
                let old_root = oracle(&all[..old as usize]);
                let plan = Plan::consistency(old, size).unwrap();
                let proof = plan.proof(&hashes_of(&plan, &all)).unwrap();
                assert!(verify_consistency(old, old_root, size, root, &proof), "{old} in {size}");
                assert!(!verify_consistency(old, Digest::ZERO, size, root, &proof));
                assert!(!verify_consistency(old, old_root, size, Digest::ZERO, &proof));
            }
        }
        assert_eq!(Plan::inclusion(5, 5), None);
        assert_eq!(Plan::consistency(0, 5), None);
        assert_eq!(Plan::consistency(6, 5), None);
    }

    #[test]
    fn a_public_implementation_accepts_both_kinds_of_proof() {
        use tlog_tiles::{Hash, check_record, check_tree};
        let all = leaves(300);
        let hash = |d: Digest| Hash(d.0);
        let (new, root) = (all.len() as u64, oracle(&all));
        for index in (0..new).step_by(7) {
            let plan = Plan::inclusion(index, new).unwrap();
            let proof = plan.proof(&hashes_of(&plan, &all)).unwrap().into_iter().map(hash).collect();
            check_record(&proof, new, hash(root), index, hash(all[index as usize])).unwrap();
            assert!(check_record(&proof, new, hash(root), index, hash(root)).is_err());
        }
        for old in (1..new).step_by(11) {
            let plan = Plan::consistency(old, new).unwrap();
            let proof = plan.proof(&hashes_of(&plan, &all)).unwrap().into_iter().map(hash).collect();
            let old_root = oracle(&all[..old as usize]);
            check_tree(&proof, new, hash(root), old, hash(old_root)).unwrap();
            assert!(check_tree(&proof, new, hash(root), old, hash(root)).is_err());
        }
        assert_eq!(tlog_tiles::record_hash(b"leaf"), hash(leaf(b"leaf")));
    }
}
