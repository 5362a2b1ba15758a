//! An interval tree: which ranges overlap a place, in logarithmic time and the number of them.
//!
//! A balanced (AVL) tree in the order of the lower bounds, in which every node knows the highest upper bound below it. Balance, and with it the depth of
//! the recursion, does not depend on who chooses the bounds.

use std::cmp::Ordering;

use slab::Slab;

/// One end of a range, both ends being part of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Bound {
    /// Below everything.
    Bottom,
    /// Never NaN, never the negative zero.
    Number(f64),
    /// Above every number; in the order of the bytes.
    Text(Box<[u8]>),
    /// Above everything.
    Top,
}

/// A place among the bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Place<'a> {
    Bottom,
    Number(f64),
    Text(&'a [u8]),
    Top,
}

/// Ranges and the entries that they belong to.
#[derive(Debug)]
pub(super) struct RangeTree {
    nodes: Slab<Node>,
    root: u32,
}

#[derive(Debug)]
struct Node {
    low: Bound,
    high: Bound,
    entry: u32,
    left: u32,
    right: u32,
    /// Levels from here down, 1 for a leaf.
    height: u8,
    /// The node with the highest upper bound from here down.
    highest: u32,
}

/// No node.
const NONE: u32 = u32::MAX;

impl Bound {
    pub fn number(number: f64) -> Bound {
        // Adding zero makes the negative zero the positive one.
        Bound::Number(number + 0.0)
    }

    fn place(&self) -> Place<'_> {
        match self {
            Bound::Bottom => Place::Bottom,
            Bound::Number(number) => Place::Number(*number),
            Bound::Text(text) => Place::Text(text),
            Bound::Top => Place::Top,
        }
    }
}

impl Place<'_> {
    pub fn number(number: f64) -> Place<'static> {
        Place::Number(number + 0.0)
    }

    fn kind(self) -> u8 {
        match self {
            Place::Bottom => 0,
            Place::Number(_) => 1,
            Place::Text(_) => 2,
            Place::Top => 3,
        }
    }
}

impl Eq for Place<'_> {}

impl PartialOrd for Place<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Place<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Place::Number(left), Place::Number(right)) => left.total_cmp(right),
            (Place::Text(left), Place::Text(right)) => left.cmp(right),
            (left, right) => left.kind().cmp(&right.kind()),
        }
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
    pub fn insert(&mut self, low: Bound, high: Bound, entry: u32) {
        let node = self.nodes.vacant_key() as u32;
        self.nodes.insert(Node { low, high, entry, left: NONE, right: NONE, height: 1, highest: node });
        self.root = self.inserted(self.root, node);
    }

    /// Removes one range of `entry` that begins at `low`, if there is one.
    pub fn remove(&mut self, low: &Bound, entry: u32) {
        self.root = self.removed(self.root, low.place(), entry);
    }

    /// Calls `visit` with the entry of each range that begins at or below `high` and ends at or above `low`.
    pub fn for_each_overlap(&self, low: Place<'_>, high: Place<'_>, visit: &mut impl FnMut(u32)) {
        self.overlaps(self.root, low, high, visit);
    }

    fn overlaps(&self, at: u32, low: Place<'_>, high: Place<'_>, visit: &mut impl FnMut(u32)) {
        if at == NONE || self.node(self.node(at).highest).high.place() < low {
            return;
        }
        let node = self.node(at);
        self.overlaps(node.left, low, high, visit);
        if node.low.place() <= high {
            if node.high.place() >= low {
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
        let (place, entry) = (self.node(new).low.place(), self.node(new).entry);
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
    fn removed(&mut self, at: u32, low: Place<'_>, entry: u32) -> u32 {
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

    /// How the node at `at` stands to a lower bound and an entry.
    fn order(&self, at: u32, low: Place<'_>, entry: u32) -> Ordering {
        let node = self.node(at);
        node.low.place().cmp(&low).then(node.entry.cmp(&entry))
    }

    /// Makes `at` right again after one of its subtrees grew or shrank by a level; gives what stands in its place.
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
        let Node { left, right, .. } = *self.node(at);
        let height = 1 + self.height(left).max(self.height(right));
        let mut highest = at;
        for child in [left, right].into_iter().filter(|child| *child != NONE) {
            let candidate = self.node(child).highest;
            if self.node(candidate).high.place() > self.node(highest).high.place() {
                highest = candidate;
            }
        }
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
        /// Checks balance and marks under `at`; gives its height.
        fn check(&self, at: u32) -> u8 {
            if at == NONE {
                return 0;
            }
            let node = self.node(at);
            let (left, right) = (self.check(node.left), self.check(node.right));
            assert!(left.abs_diff(right) <= 1, "unbalanced");
            assert_eq!(node.height, 1 + left.max(right));
            for child in [node.left, node.right].into_iter().filter(|child| *child != NONE) {
                let highest = &self.node(self.node(child).highest).high;
                assert!(highest.place() <= self.node(node.highest).high.place());
            }
            node.height
        }
    }

    fn bound() -> impl Strategy<Value = Bound> {
        prop_oneof![
            1 => Just(Bound::Bottom),
            6 => (-20..20_i32).prop_map(|number| Bound::number(number.into())),
            3 => "[a-c]{1,2}".prop_map(|text| Bound::Text(text.into_bytes().into())),
            1 => Just(Bound::Top),
        ]
    }

    proptest! {
        #[test]
        fn the_tree_gives_the_ranges_that_a_list_gives(
            operations in proptest::collection::vec((bound(), bound(), 0..30_u32, any::<bool>()), 1..200),
            low in bound(),
            high in bound(),
        ) {
            let (mut tree, mut list) = (RangeTree::default(), Vec::<(Bound, Bound, u32)>::new());
            for (from, to, entry, is_removal) in operations {
                if is_removal && !list.is_empty() {
                    let (from, _, entry) = list.swap_remove(entry as usize % list.len());
                    tree.remove(&from, entry);
                    // Of several ranges with one beginning and one entry, any may have gone: forget them all.
                    while let Some(at) = list.iter().position(|known| known.0 == from && known.2 == entry) {
                        list.swap_remove(at);
                        tree.remove(&from, entry);
                    }
                } else {
                    tree.insert(from.clone(), to.clone(), entry);
                    list.push((from, to, entry));
                }
                tree.check(tree.root);
                prop_assert_eq!(tree.len(), list.len());
            }
            let (low, high) = (low.place(), high.place());
            let mut found = Vec::new();
            tree.for_each_overlap(low, high, &mut |entry| found.push(entry));
            let mut expected: Vec<u32> = list
                .iter()
                .filter(|(from, to, _)| from.place() <= high && to.place() >= low)
                .map(|(.., entry)| *entry)
                .collect();
            found.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(found, expected);
        }
    }
}
