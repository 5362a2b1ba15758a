//! An interval tree. It finds the ranges that overlap a rank, in logarithmic time plus the number
//! of results.
//!
//! A balanced (AVL) tree in the order of the lower bounds, in which every node contains the highest
//! upper bound below it. Balance, and with it the depth of the recursion, does not depend on the
//! bounds.

use std::cmp::Ordering;

use slab::Slab;

/// A rank in the order of all values: numbers, then texts. Texts with the same beginning have the
/// same rank, so every result has to be checked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ValueRank(u128);

/// Ranges and the entries that they belong to.
#[derive(Debug)]
pub(super) struct RangeTree {
    nodes: Slab<Node>,
    root: u32,
}

/// As large as a line of the processor's cache, because a search mostly waits for memory.
#[derive(Clone, Copy, Debug)]
struct Node {
    low: ValueRank,
    high: ValueRank,
    /// The highest upper bound of this node and the nodes below it.
    highest: ValueRank,
    entry: u32,
    left: u32,
    right: u32,
    /// The number of levels from this node down; 1 for a leaf.
    height: u8,
}

/// No node.
const NONE: u32 = u32::MAX;

/// Where the kind of value begins in a [`ValueRank`].
const KIND_SHIFT: u32 = 120;

/// The number of bytes of a text that a rank distinguishes.
const TEXT_SIZE: usize = 15;

impl ValueRank {
    /// Below everything.
    pub const BOTTOM: ValueRank = ValueRank(0);

    /// Above everything.
    pub const TOP: ValueRank = ValueRank(u128::MAX);

    /// The rank of a number that is not NaN.
    pub fn number(number: f64) -> ValueRank {
        // Adding zero makes the negative zero the positive one. With these bits inverted, the order
        // of the bits is the order of the numbers.
        let bits = (number + 0.0).to_bits();
        let ordered = if bits >> 63 == 1 { !bits } else { bits | 1 << 63 };
        // Every second rank, so that there is one just below and one just above.
        ValueRank((1 << KIND_SHIFT) + 2 * u128::from(ordered))
    }

    pub fn text(text: &[u8]) -> ValueRank {
        let mut bytes = [0; 16];
        let size = text.len().min(TEXT_SIZE);
        bytes[1..=size].copy_from_slice(&text[..size]);
        ValueRank((2 << KIND_SHIFT) + u128::from_be_bytes(bytes))
    }

    /// Between a number and all numbers below it.
    pub fn just_below(self) -> ValueRank {
        ValueRank(self.0 - 1)
    }

    /// Between a number and all numbers above it.
    pub fn just_above(self) -> ValueRank {
        ValueRank(self.0 + 1)
    }

    /// Whether both are numbers, or both texts.
    pub fn is_like(self, other: ValueRank) -> bool {
        self.0 >> KIND_SHIFT == other.0 >> KIND_SHIFT
    }
}

impl Default for RangeTree {
    fn default() -> Self {
        RangeTree { nodes: Slab::new(), root: NONE }
    }
}

impl RangeTree {
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Adds the range from `low` to `high`. An entry may have several.
    pub fn insert(&mut self, low: ValueRank, high: ValueRank, entry: u32) {
        let node = self.nodes.vacant_key() as u32;
        self.nodes.insert(Node { low, high, entry, left: NONE, right: NONE, height: 1, highest: high });
        self.root = self.inserted(self.root, node);
    }

    /// Removes one range of `entry` that begins at `low`, if there is one.
    pub fn remove(&mut self, low: ValueRank, entry: u32) {
        self.root = self.removed(self.root, low, entry);
    }

    /// Calls `visit` with the entry of each range that begins at or below `high` and ends at or
    /// above `low`.
    pub fn for_each_overlap(&self, low: ValueRank, high: ValueRank, visit: &mut impl FnMut(u32)) {
        self.overlaps(self.root, low, high, visit);
    }

    fn overlaps(&self, at: u32, low: ValueRank, high: ValueRank, visit: &mut impl FnMut(u32)) {
        if at == NONE {
            return;
        }
        let node = self.node(at);
        if node.highest < low {
            return;
        }
        self.overlaps(node.left, low, high, visit);
        if node.low <= high {
            if node.high >= low {
                visit(node.entry);
            }
            self.overlaps(node.right, low, high, visit);
        }
    }

    /// The tree under `at` with `new` in it.
    fn inserted(&mut self, at: u32, new: u32) -> u32 {
        if at == NONE {
            return new;
        }
        let Node { low: place, entry, .. } = *self.node(new);
        if self.order(at, place, entry).is_gt() {
            let left = self.inserted(self.node(at).left, new);
            self.node_mut(at).left = left;
        } else {
            let right = self.inserted(self.node(at).right, new);
            self.node_mut(at).right = right;
        }
        self.balanced(at)
    }

    /// The tree under `at` without one range of `entry` that begins at `low`.
    fn removed(&mut self, at: u32, low: ValueRank, entry: u32) -> u32 {
        if at == NONE {
            return NONE;
        }
        let Node { left, right, .. } = *self.node(at);
        match self.order(at, low, entry) {
            Ordering::Greater => self.node_mut(at).left = self.removed(left, low, entry),
            Ordering::Less => self.node_mut(at).right = self.removed(right, low, entry),
            Ordering::Equal => {
                self.nodes.remove(at as usize);
                return self.joined(left, right);
            }
        }
        self.balanced(at)
    }

    /// One tree of two neighbours.
    fn joined(&mut self, left: u32, right: u32) -> u32 {
        if right == NONE {
            return left;
        }
        let (first, rest) = self.without_first(right);
        let node = self.node_mut(first);
        (node.left, node.right) = (left, rest);
        self.balanced(first)
    }

    /// The first node under `at`, and the tree without it.
    fn without_first(&mut self, at: u32) -> (u32, u32) {
        let Node { left, right, .. } = *self.node(at);
        if left == NONE {
            return (at, right);
        }
        let (first, rest) = self.without_first(left);
        self.node_mut(at).left = rest;
        (first, self.balanced(at))
    }

    /// The order of the node at `at` and a pair of a lower bound and an entry.
    fn order(&self, at: u32, low: ValueRank, entry: u32) -> Ordering {
        let node = self.node(at);
        node.low.cmp(&low).then(node.entry.cmp(&entry))
    }

    /// Restores the balance of `at` after one of its subtrees grew or shrank by a level. Returns
    /// the node that is now in its place.
    fn balanced(&mut self, at: u32) -> u32 {
        let Node { left, right, .. } = *self.node(at);
        match i16::from(self.height(left)) - i16::from(self.height(right)) {
            2 => {
                let Node { left: outer, right: inner, .. } = *self.node(left);
                if self.height(inner) > self.height(outer) {
                    self.node_mut(at).left = self.rotated_left(left);
                }
                self.rotated_right(at)
            }
            -2 => {
                let Node { left: inner, right: outer, .. } = *self.node(right);
                if self.height(inner) > self.height(outer) {
                    self.node_mut(at).right = self.rotated_right(right);
                }
                self.rotated_left(at)
            }
            _ => {
                self.update(at);
                at
            }
        }
    }

    fn rotated_left(&mut self, at: u32) -> u32 {
        let top = self.node(at).right;
        self.node_mut(at).right = self.node(top).left;
        self.node_mut(top).left = at;
        self.update(at);
        self.update(top);
        top
    }

    fn rotated_right(&mut self, at: u32) -> u32 {
        let top = self.node(at).left;
        self.node_mut(at).left = self.node(top).right;
        self.node_mut(top).right = at;
        self.update(at);
        self.update(top);
        top
    }

    fn update(&mut self, at: u32) {
        let Node { left, right, high, .. } = *self.node(at);
        let height = 1 + self.height(left).max(self.height(right));
        let children = [left, right].into_iter().filter(|child| *child != NONE);
        let highest = children.map(|child| self.node(child).highest).fold(high, ValueRank::max);
        let node = self.node_mut(at);
        (node.height, node.highest) = (height, highest);
    }

    fn height(&self, at: u32) -> u8 {
        if at == NONE { 0 } else { self.node(at).height }
    }

    fn node(&self, at: u32) -> &Node {
        &self.nodes[at as usize]
    }

    fn node_mut(&mut self, at: u32) -> &mut Node {
        &mut self.nodes[at as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl RangeTree {
        /// Checks balance and marks under `at`. Returns its height.
        fn check(&self, at: u32) -> u8 {
            if at == NONE {
                return 0;
            }
            let node = self.node(at);
            let (left, right) = (self.check(node.left), self.check(node.right));
            assert!(left.abs_diff(right) <= 1, "unbalanced");
            assert_eq!(node.height, 1 + left.max(right));
            let children = [node.left, node.right].into_iter().filter(|child| *child != NONE);
            let highest = children.map(|child| self.node(child).highest).fold(node.high, ValueRank::max);
            assert_eq!(node.highest, highest);
            node.height
        }
    }

    fn bound() -> impl Strategy<Value = ValueRank> {
        prop_oneof![
            1 => Just(ValueRank::BOTTOM),
            6 => (-20..20_i32).prop_map(|number| ValueRank::number(number.into())),
            3 => "[a-c]{1,2}".prop_map(|text| ValueRank::text(text.as_bytes())),
            1 => Just(ValueRank::TOP),
        ]
    }

    #[test]
    fn places_are_in_the_order_of_the_values() {
        let numbers = [f64::NEG_INFINITY, -1e300, -2.0, -1e-300, 0.0, 1e-300, 1.0, 1.5, 1e300, f64::INFINITY];
        let texts: [&[u8]; 5] = [b"a", b"a\0", b"ab", b"b", b"\xff"];
        let mut places = vec![ValueRank::BOTTOM];
        for place in numbers.map(ValueRank::number) {
            places.extend([place.just_below(), place, place.just_above()]);
        }
        assert!(places.windows(2).all(|pair| pair[0] < pair[1]), "{places:?}");
        places.extend(texts.map(ValueRank::text));
        places.push(ValueRank::TOP);
        // A zero byte makes no difference, and neither do the bytes after the first fifteen.
        assert!(places.windows(2).all(|pair| pair[0] <= pair[1]), "{places:?}");
        assert_eq!(ValueRank::number(-0.0), ValueRank::number(0.0));
        assert!(ValueRank::number(f64::INFINITY).just_above() < ValueRank::text(b"\0"));
        assert!(ValueRank::text(&[0xFF; 20]) < ValueRank::TOP);
    }

    proptest! {
        #[test]
        fn the_tree_gives_the_ranges_that_a_list_gives(
            operations in proptest::collection::vec((bound(), bound(), 0..30_u32, any::<bool>()), 1..200),
            low in bound(),
            high in bound(),
        ) {
            let (mut tree, mut list) = (RangeTree::default(), Vec::<(ValueRank, ValueRank, u32)>::new());
            for (from, to, entry, is_removal) in operations {
                if is_removal && !list.is_empty() {
                    let (from, _, entry) = list.swap_remove(entry as usize % list.len());
                    tree.remove(from, entry);
                    // Of several ranges with one beginning and one entry, any may have gone: forget
                    // them all.
                    while let Some(at) = list.iter().position(|known| known.0 == from && known.2 == entry) {
                        list.swap_remove(at);
                        tree.remove(from, entry);
                    }
                } else {
                    tree.insert(from, to, entry);
                    list.push((from, to, entry));
                }
                tree.check(tree.root);
                prop_assert_eq!(tree.len(), list.len());
            }
            let mut found = Vec::new();
            tree.for_each_overlap(low, high, &mut |entry| found.push(entry));
            let mut expected: Vec<u32> = list
                .iter()
                .filter(|(from, to, _)| *from <= high && *to >= low)
                .map(|(.., entry)| *entry)
                .collect();
            found.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(found, expected);
        }
    }
}
