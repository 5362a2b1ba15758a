//! Which fields to read: the paths of all filters of a message in one tree, so that each message is
//! read once.
//!
//! A plan counts the users of each path. Adding and releasing a path cost its length, not the size
//! of the plan.

use hashbrown::HashMap;
use memchr::memmem::Finder;
use rustc_hash::FxBuildHasher;

/// The most steps of one identifier. Reading a path recurses once per step.
pub const PATH_STEP_COUNT_MAX: usize = 64;

/// Above this many names below one step, they are looked up by hash instead of one after the other.
const FEW_NAMES: usize = 6;

/// One step of an identifier.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// A field, a tag, an element, or an attribute with its `@`.
    Name(Box<[u8]>),
    /// An element of an array, from 0.
    Index(u32),
}

/// A field of a plan: the index of its value in the result of
/// [`MessageType::read`](super::MessageType::read).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FieldId(u32);

impl FieldId {
    /// The index in the list of values.
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The index in a list that begins with `count` other values.
    pub(crate) fn after(self, count: usize) -> FieldId {
        // The number fits: each value takes memory, which ends long before 4 billion values.
        FieldId(self.0 + count as u32)
    }
}

/// The tree of the paths to read.
#[derive(Clone, Debug)]
pub struct FieldPlan {
    nodes: Vec<Node>,
    free: Vec<FieldId>,
    wants_first: bool,
}

#[derive(Clone, Debug, Default)]
struct Node {
    parent: Option<FieldId>,
    step: Option<Step>,
    users: u32,
    /// The number of users that want the value of the field itself. The others want fields below
    /// it.
    ends: u32,
    names: Names,
    indexes: Vec<(u32, FieldId)>,
}

/// The fields below one step, by their names.
#[derive(Clone, Debug)]
pub(crate) enum Names {
    Few(Vec<FewName>),
    Many(HashMap<Box<[u8]>, FieldId, FxBuildHasher>),
}

/// One of a few names.
#[derive(Clone, Debug)]
pub(crate) struct FewName {
    key: Key,
    name: Box<[u8]>,
    field: FieldId,
    /// Finds the name between quotes.
    quoted: Box<Finder<'static>>,
}

impl FewName {
    fn new(name: Box<[u8]>, field: FieldId) -> Self {
        let quoted = Box::new(Finder::new(&[b"\"", &*name, b"\""].concat()).into_owned());
        FewName { key: key_of(&name), name, field, quoted }
    }
}

/// Length, first and last byte of a name. They are enough to distinguish nearly all names without
/// reading the names.
type Key = u64;

#[inline(always)]
fn key_of(name: &[u8]) -> Key {
    match name {
        [] => 0,
        [first, ..] => (name.len() as u64) << 16 | u64::from(*first) << 8 | u64::from(name[name.len() - 1]),
    }
}

impl Default for Names {
    fn default() -> Self {
        Names::Few(Vec::new())
    }
}

impl Default for FieldPlan {
    fn default() -> Self {
        FieldPlan { nodes: vec![Node::default()], free: Vec::new(), wants_first: false }
    }
}

impl FieldPlan {
    /// The message itself.
    pub(crate) const ROOT: FieldId = FieldId(0);

    /// A plan for users that want only the first element of an array. An array is still an array,
    /// but its other elements may be missing.
    pub fn of_first_elements() -> Self {
        FieldPlan { wants_first: true, ..FieldPlan::default() }
    }

    /// From now on, `path` is read, too.
    pub fn add(&mut self, path: &[Step]) -> FieldId {
        let mut at = FieldPlan::ROOT;
        for step in path {
            at = self.child_or_new(at, step);
            self.nodes[at.index()].users += 1;
        }
        self.nodes[at.index()].ends += 1;
        at
    }

    /// Removes one user of `field`. Without users, the path is no longer read.
    pub fn release(&mut self, field: FieldId) {
        let mut at = field;
        self.nodes[at.index()].ends -= 1;
        while let Some(parent) = self.nodes[at.index()].parent {
            self.nodes[at.index()].users -= 1;
            if self.nodes[at.index()].users == 0 {
                let node = std::mem::take(&mut self.nodes[at.index()]);
                match node.step {
                    Some(Step::Name(name)) => self.nodes[parent.index()].names.remove(&name),
                    Some(Step::Index(_)) => {
                        self.nodes[parent.index()].indexes.retain(|(_, child)| *child != at)
                    }
                    None => {}
                }
                self.free.push(at);
            }
            at = parent;
        }
    }

    /// The number of values that a read returns. Every [`FieldId`] is below it.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether no field is read.
    pub fn is_empty(&self) -> bool {
        !self.has_names(FieldPlan::ROOT)
    }

    /// The names that are wanted below `at`.
    #[inline]
    pub(crate) fn names(&self, at: FieldId) -> &Names {
        &self.nodes[at.index()].names
    }

    /// Whether named fields below `at` are wanted.
    #[inline]
    pub(crate) fn has_names(&self, at: FieldId) -> bool {
        match &self.nodes[at.index()].names {
            Names::Few(names) => !names.is_empty(),
            Names::Many(_) => true,
        }
    }

    /// Whether neither fields nor elements below `at` are wanted.
    #[inline]
    pub(crate) fn is_leaf(&self, at: FieldId) -> bool {
        let node = &self.nodes[at.index()];
        node.indexes.is_empty() && matches!(&node.names, Names::Few(names) if names.is_empty())
    }

    /// Whether the value of the field itself is wanted.
    #[inline]
    pub(crate) fn is_end(&self, at: FieldId) -> bool {
        self.nodes[at.index()].ends > 0
    }

    /// Whether only the first element of the field is wanted, if it is an array.
    #[inline]
    pub(crate) fn wants_first_of(&self, at: FieldId) -> bool {
        self.wants_first && self.is_leaf(at)
    }

    /// The elements of `at` that are wanted.
    #[inline]
    pub(crate) fn indexes(&self, at: FieldId) -> &[(u32, FieldId)] {
        &self.nodes[at.index()].indexes
    }

    /// Calls `visit` with every field directly below `at`.
    pub(crate) fn for_each_child(&self, at: FieldId, mut visit: impl FnMut(FieldId)) {
        self.indexes(at).iter().for_each(|(_, child)| visit(*child));
        self.names(at).fields().for_each(visit);
    }

    fn child_or_new(&mut self, at: FieldId, step: &Step) -> FieldId {
        let known = match step {
            Step::Name(name) => self.names(at).find(name),
            Step::Index(index) => {
                self.indexes(at).iter().find(|(known, _)| known == index).map(|(_, child)| *child)
            }
        };
        known.unwrap_or_else(|| self.new_child(at, step))
    }

    fn new_child(&mut self, at: FieldId, step: &Step) -> FieldId {
        let child = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(Node::default());
            // The number fits: each path takes memory, which ends long before 4 billion paths.
            FieldId(self.nodes.len() as u32 - 1)
        });
        self.nodes[child.index()] = Node { parent: Some(at), step: Some(step.clone()), ..Node::default() };
        match step {
            Step::Name(name) => self.nodes[at.index()].names.insert(name.clone(), child),
            Step::Index(index) => self.nodes[at.index()].indexes.push((*index, child)),
        }
        child
    }
}

impl Names {
    /// The field with this name, if it is wanted.
    #[inline(always)]
    pub(crate) fn find(&self, name: &[u8]) -> Option<FieldId> {
        match self {
            Names::Few(names) => {
                let key = key_of(name);
                for known in names {
                    if known.key == key && *known.name == *name {
                        return Some(known.field);
                    }
                }
                None
            }
            Names::Many(names) => names.get(name).copied(),
        }
    }

    /// The fields, in any order.
    pub(crate) fn fields(&self) -> impl Iterator<Item = FieldId> + '_ {
        let (few, many) = match self {
            Names::Few(names) => (&**names, None),
            Names::Many(names) => (&[][..], Some(names)),
        };
        few.iter().map(|known| known.field).chain(many.into_iter().flat_map(|names| names.values().copied()))
    }

    /// Their number.
    pub(crate) fn count(&self) -> usize {
        match self {
            Names::Few(names) => names.len(),
            Names::Many(names) => names.len(),
        }
    }

    /// The index of the name of this field among a few names, below [`Names::count`]. `None` when
    /// there are many names.
    #[inline]
    pub(crate) fn index_of(&self, field: FieldId) -> Option<usize> {
        match self {
            Names::Few(names) => names.iter().position(|known| known.field == field),
            Names::Many(_) => None,
        }
    }

    /// Whether this part of a JSON text may contain one of the names. Escapes may stand for any of
    /// them.
    pub(crate) fn may_stand_in(&self, text: &[u8]) -> bool {
        let Names::Few(names) = self else { return true };
        memchr::memchr(b'\\', text).is_some() || names.iter().any(|known| known.quoted.find(text).is_some())
    }

    fn insert(&mut self, name: Box<[u8]>, child: FieldId) {
        match self {
            Names::Few(names) if names.len() == FEW_NAMES => {
                let mut many: HashMap<_, _, FxBuildHasher> =
                    names.drain(..).map(|known| (known.name, known.field)).collect();
                many.insert(name, child);
                *self = Names::Many(many);
            }
            Names::Few(names) => names.push(FewName::new(name, child)),
            Names::Many(names) => {
                names.insert(name, child);
            }
        }
    }

    fn remove(&mut self, name: &[u8]) {
        match self {
            Names::Few(names) => names.retain(|known| *known.name != *name),
            Names::Many(names) => {
                names.remove(name);
                if names.is_empty() {
                    *self = Names::default();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(names: &[&str]) -> Vec<Step> {
        names.iter().map(|name| Step::Name(name.as_bytes().into())).collect()
    }

    #[test]
    fn a_released_path_is_no_longer_read_and_its_place_is_used_again() {
        let mut plan = FieldPlan::default();
        for round in 0..3 {
            let fields: Vec<_> =
                (0..20).map(|number| plan.add(&path(&["a", &format!("f{number}")]))).collect();
            let again = plan.add(&path(&["a", "f7"]));
            assert_eq!(again, fields[7], "round {round}");
            fields.iter().for_each(|field| plan.release(*field));
            assert!(!plan.is_empty(), "f7 has a second user");
            plan.release(again);
            assert!(plan.is_empty());
            assert_eq!(plan.len(), 22, "root, a and twenty fields");
        }
    }
}
