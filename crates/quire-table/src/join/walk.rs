//! Finds the combinations of joined records that a record is in, in portions.

use smallvec::SmallVec;

use super::index::{CHILD, JoinIndex, NONE, PARENT, Side};

/// How a walk comes to the records of one topic.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hop {
    /// The topic, and the join by which the walk comes there.
    source: usize,
    join: usize,
    /// The topic that it comes from; `None`: it begins with the list of an entry.
    from: Option<usize>,
    /// From a child to its parents.
    is_up: bool,
}

/// A join of two topics.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    /// The topics, parent first.
    pub sources: [usize; 2],
    /// The number of the join among those of each of the topics.
    pub places: [usize; 2],
}

/// All topics from one on. First its parents up to the first topic, then the others, each after the
/// topic that it is joined with.
pub(super) fn hops_from(source: usize, edges: &[Edge]) -> Vec<Hop> {
    let mut hops = Vec::new();
    let mut known = vec![source];
    let mut at = source;
    while let Some((join, edge)) = edge_above(at, edges) {
        let parent = edge.sources[PARENT];
        hops.push(Hop { source: parent, join, from: Some(at), is_up: true });
        known.push(parent);
        at = parent;
    }
    // Each edge is after those above it.
    for (join, edge) in edges.iter().enumerate() {
        let [parent, child] = edge.sources;
        if !known.contains(&child) {
            hops.push(Hop { source: child, join, from: Some(parent), is_up: false });
            known.push(child);
        }
    }
    hops
}

/// As [`hops_from`] for the parents of a topic, without the topic and all below it.
pub(super) fn hops_without(source: usize, edges: &[Edge]) -> Vec<Hop> {
    let Some((join, edge)) = edge_above(source, edges) else { return Vec::new() };
    let parent = edge.sources[PARENT];
    let mut below = vec![source];
    below.extend(edges.iter().fold(Vec::new(), |mut found, edge| {
        let [parent, child] = edge.sources;
        if parent == source || found.contains(&parent) {
            found.push(child);
        }
        found
    }));
    let mut hops = vec![Hop { source: parent, join, from: None, is_up: true }];
    hops.extend(hops_from(parent, edges).into_iter().filter(|hop| !below.contains(&hop.source)));
    hops
}

/// The join of a topic with its parent; `None` for the first topic.
pub(super) fn edge_above(source: usize, edges: &[Edge]) -> Option<(usize, &Edge)> {
    edges.iter().enumerate().find(|(_, edge)| edge.sources[CHILD] == source)
}

/// A walk, and where it is.
#[derive(Debug)]
pub(super) struct Walk {
    /// The record of each topic; [`NONE`]: all its fields are NULL.
    pub bound: SmallVec<[u32; 8]>,
    /// The entry that it begins with.
    entry: u32,
    level: usize,
    is_entering: bool,
}

/// The result of a portion of a walk.
pub(super) enum Walked {
    /// [`Walk::bound`] has a combination.
    Found,
    /// There are no more.
    Done,
    /// The portion is over.
    Paused,
}

/// The memory that a walk reads.
pub(super) struct Ground<'a> {
    pub edges: &'a [Edge],
    pub sides: &'a [Side],
    pub indexes: &'a [JoinIndex],
}

impl Walk {
    /// Over the combinations with a record.
    pub fn with(source: usize, place: u32, source_count: usize) -> Self {
        let mut walk = Walk::without(NONE, source_count);
        walk.bound[source] = place;
        walk
    }

    /// Over the combinations of the parents in an entry.
    pub fn without(entry: u32, source_count: usize) -> Self {
        let bound = SmallVec::from_elem(NONE, source_count);
        Walk { bound, entry, level: 0, is_entering: true }
    }

    /// Continues to the next combination. Each step takes one from `budget`.
    pub fn next(&mut self, hops: &[Hop], ground: &Ground<'_>, budget: &mut u32) -> Walked {
        loop {
            if *budget == 0 {
                return Walked::Paused;
            }
            *budget -= 1;
            if self.is_entering {
                let Some(hop) = hops.get(self.level) else {
                    self.is_entering = false;
                    return Walked::Found;
                };
                match self.first(hop, ground) {
                    Some(place) => self.enter(hop, place),
                    None => self.is_entering = false,
                }
                continue;
            }
            let Some(level) = self.level.checked_sub(1) else { return Walked::Done };
            self.level = level;
            let hop = &hops[level];
            match self.following(hop, ground) {
                NONE => self.bound[hop.source] = NONE,
                place => self.enter(hop, place),
            }
        }
    }

    fn enter(&mut self, hop: &Hop, place: u32) {
        self.bound[hop.source] = place;
        self.level += 1;
        self.is_entering = true;
    }

    /// The first record of a hop. [`NONE`]: there is none, and the fields are NULL. `None`: there
    /// is none, and so no combination.
    fn first(&self, hop: &Hop, ground: &Ground<'_>) -> Option<u32> {
        let (side, own) = if hop.is_up { (PARENT, CHILD) } else { (CHILD, PARENT) };
        let entry = match hop.from {
            None => self.entry,
            Some(from) => match self.bound[from] {
                NONE => NONE,
                place => ground.sides[from].link(ground.edges[hop.join].places[own], place).entry,
            },
        };
        let first = ground.indexes[hop.join].first(entry, side);
        (!hop.is_up || first != NONE).then_some(first)
    }

    /// The record after the current one of a hop.
    fn following(&self, hop: &Hop, ground: &Ground<'_>) -> u32 {
        let side = if hop.is_up { PARENT } else { CHILD };
        match self.bound[hop.source] {
            NONE => NONE,
            place => ground.sides[hop.source].link(ground.edges[hop.join].places[side], place).next,
        }
    }
}
