//! The fields of one message, by their offsets. Merges and differences use them.
//!
//! The list of nodes is in the order of the message: an object comes directly before its members.
//! Arrays are values without nodes. Names are compared by a short hash first. An object of many
//! members has its names sorted, so that no choice of names makes a lookup slow.
//!
//! A large base of a merge has nodes only for the fields that the delta names
//! ([`Tree::read_for`]). So a small delta of a large record, or a constructed field, needs little
//! more time than reading the record.

use std::cmp::Ordering;
use std::hash::Hasher;
use std::ops::Range;

use rustc_hash::FxHasher;

use super::{MESSAGE_SIZE_MAX, NODE_COUNT_MAX};
use crate::message_type::{Malformed, Step};

/// No node.
pub(super) const NONE: u32 = u32::MAX;

/// Up to this many members, names are compared one after the other.
const FEW_MEMBERS: usize = 16;

pub(super) struct Tree<'a> {
    pub data: &'a [u8],
    pub nodes: Vec<Node>,
    repeated_names_are_arrays: bool,
    /// XML: whether an element with text is an object. Then its text is not a field, and a merge
    /// keeps it.
    pub has_text_objects: bool,
    /// Names that differ from the bytes in the message: JSON with escapes, numbers as keys of
    /// MessagePack.
    decoded_names: Vec<u8>,
    /// Members of large objects, by hash, name and place.
    sorted: Vec<u32>,
    /// While the base of a merge is read.
    wanted: Option<Wanted<'a>>,
}

/// The fields that get nodes.
struct Wanted<'a> {
    delta: Box<Tree<'a>>,
    /// The fields that are open, from the root on.
    open: Vec<OpenField>,
}

struct OpenField {
    /// The node of the delta with its name.
    named: Option<u32>,
    /// Where the search for its next member begins.
    hint: Option<u32>,
    /// See [`Tree::name_bits`].
    bits: u64,
}

/// One field, or the message itself. Offsets count from the beginning of the message.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub kind: Kind,
    pub space: Space,
    is_decoded: bool,
    pub mark: Mark,
    name: Range<u32>,
    hash: u32,
    /// Where the member begins, with its name.
    pub start: u32,
    /// Where its value begins. BSON: the member, because the type comes before the name.
    pub value: u32,
    /// Where both end.
    pub end: u32,
    /// For an object: the end of its head. JSON: after `{`. MessagePack: after the count. XML:
    /// after the attributes.
    pub body: u32,
    /// For an object: the offset for further members.
    pub tail: u32,
    /// The node after the last one below this one.
    next: u32,
    /// For an object: the number of its members, including those that do not count.
    pub member_count: u32,
    /// For an object of many members: the beginning of its part of `sorted`.
    sorted: u32,
    /// The node that counts among those of this name: the first of an array of elements or pairs,
    /// otherwise the last.
    pub representative: u32,
    /// For the node that counts: the number of nodes with its name.
    pub group_size: u32,
    /// The next member with its name.
    follower: u32,
    /// The node with this name in the other message.
    pub partner: u32,
    /// The number of nodes of the other message with this name.
    pub match_count: u32,
}

/// The kind of value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Members, which are fields too.
    Object,
    /// An explicit NULL.
    Null,
    /// Everything else, arrays included.
    Leaf,
}

/// Names of different spaces are different names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Space {
    /// An attribute of XML.
    Attribute,
    /// A name that a path can have.
    Name,
    /// A key of MessagePack that no path can name, by its bytes.
    Key,
}

/// Which part of a field is in a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    Nothing,
    /// Some members of it.
    Parts,
    Whole,
    /// Its name with the value NULL.
    Null,
}

/// A name in one of its spaces.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Name<'n> {
    pub space: Space,
    pub bytes: &'n [u8],
}

impl<'a> Tree<'a> {
    /// A tree of the message itself, without fields.
    pub fn new(data: &'a [u8], repeated_names_are_arrays: bool) -> Result<Self, Malformed> {
        if data.len() > MESSAGE_SIZE_MAX {
            return Err(Malformed::TooLarge);
        }
        // Small messages need no second allocation, and large ones do not reserve much in advance.
        let capacity = (data.len() / 12).clamp(4, 64);
        let mut tree = Tree {
            data,
            nodes: Vec::with_capacity(capacity),
            repeated_names_are_arrays,
            has_text_objects: false,
            decoded_names: Vec::new(),
            sorted: Vec::new(),
            wanted: None,
        };
        let root = tree.open(Space::Name, 0..0, 0, 0)?;
        tree.nodes[root].end = data.len() as u32;
        Ok(tree)
    }

    /// Calls `read` with the tree, which keeps only the fields that a delta with indexed objects
    /// names.
    pub fn read_for(
        &mut self,
        delta: Tree<'a>,
        read: impl FnOnce(&mut Self) -> Result<(), Malformed>,
    ) -> Result<Tree<'a>, Malformed> {
        let root = OpenField { named: Some(0), hint: delta.first(0), bits: delta.name_bits(0) };
        self.wanted = Some(Wanted { delta: Box::new(delta), open: vec![root] });
        read(self)?;
        // Only this function takes it.
        self.wanted.take().map(|wanted| *wanted.delta).ok_or(Malformed::TooLarge)
    }

    /// Adds a field whose name is these bytes of the message. Close it when its value was taken.
    pub fn open(
        &mut self,
        space: Space,
        name: Range<usize>,
        start: usize,
        value: usize,
    ) -> Result<usize, Malformed> {
        let hash = hash_of(&self.data[name.clone()]);
        self.push(space, false, name.start as u32..name.end as u32, hash, start, value)
    }

    /// Adds a field whose name is not in the message as these bytes.
    pub fn open_decoded(
        &mut self,
        space: Space,
        name: &[u8],
        start: usize,
        value: usize,
    ) -> Result<usize, Malformed> {
        let name_start = self.decoded_names.len();
        if name_start + name.len() > MESSAGE_SIZE_MAX {
            return Err(Malformed::TooLarge);
        }
        self.decoded_names.extend_from_slice(name);
        let range = name_start as u32..self.decoded_names.len() as u32;
        self.push(space, true, range, hash_of(name), start, value)
    }

    fn push(
        &mut self,
        space: Space,
        is_decoded: bool,
        name: Range<u32>,
        hash: u32,
        start: usize,
        value: usize,
    ) -> Result<usize, Malformed> {
        let index = self.nodes.len();
        if index == NODE_COUNT_MAX {
            return Err(Malformed::TooLarge);
        }
        if let Some(Wanted { delta, open }) = &mut self.wanted {
            let names: &[u8] = if is_decoded { &self.decoded_names } else { self.data };
            let name = Name { space, bytes: &names[name.start as usize..name.end as usize] };
            let mut field = OpenField { named: None, hint: None, bits: 0 };
            if let Some(OpenField { named: Some(object), hint, bits }) = open.last_mut()
                && *bits & bit_of(hash) != 0
                && let Some(named) = delta.find_name(*object, name, hash, hint)
            {
                field =
                    OpenField { named: Some(named), hint: delta.first(named), bits: delta.name_bits(named) };
            }
            open.push(field);
        }
        // Places fit, because the message is below `MESSAGE_SIZE_MAX`.
        self.nodes.push(Node {
            kind: Kind::Leaf,
            space,
            is_decoded,
            mark: Mark::Nothing,
            name,
            hash,
            start: start as u32,
            value: value as u32,
            end: value as u32,
            body: 0,
            tail: 0,
            next: index as u32 + 1,
            member_count: 0,
            sorted: NONE,
            representative: index as u32,
            group_size: 1,
            follower: NONE,
            partner: NONE,
            match_count: 0,
        });
        Ok(index)
    }

    /// Ends a field: its value has this kind and ends here. The field is removed if it is not
    /// wanted.
    pub fn close(&mut self, node: usize, kind: Kind, end: usize) {
        if node > 0
            && let Some(wanted) = &mut self.wanted
            && wanted.open.pop().is_none_or(|field| field.named.is_none())
        {
            if self.nodes[node].is_decoded {
                self.decoded_names.truncate(self.nodes[node].name.start as usize);
            }
            self.nodes.truncate(node);
            return;
        }
        let next = self.nodes.len() as u32;
        let node = &mut self.nodes[node];
        (node.kind, node.end, node.next) = (kind, end as u32, next);
    }

    /// Sets where the members of an object are, and their number.
    pub fn describe_object(&mut self, node: usize, body: usize, tail: usize, member_count: u32) {
        let node = &mut self.nodes[node];
        (node.body, node.tail, node.member_count) = (body as u32, tail as u32, member_count);
    }

    /// Removes the fields below a node: it is a value as a whole.
    pub fn forget_members(&mut self, node: usize) {
        self.nodes.truncate(node + 1);
    }

    pub fn node(&self, node: u32) -> &Node {
        &self.nodes[node as usize]
    }

    pub fn node_mut(&mut self, node: u32) -> &mut Node {
        &mut self.nodes[node as usize]
    }

    pub fn name(&self, node: u32) -> Name<'_> {
        let node = self.node(node);
        let names = if node.is_decoded { &self.decoded_names } else { self.data };
        Name { space: node.space, bytes: &names[node.name.start as usize..node.name.end as usize] }
    }

    /// A bit for the name: names with different bits are different.
    pub fn name_bit(&self, node: u32) -> u64 {
        bit_of(self.node(node).hash)
    }

    /// The bits of the names of the members of an object. All bits for many members, because
    /// reading them for each of many objects would be slow.
    fn name_bits(&self, object: u32) -> u64 {
        match self.node(object).kind {
            Kind::Object if self.node(object).member_count as usize > FEW_MEMBERS => u64::MAX,
            _ => self.members(object).fold(0, |bits, member| bits | self.name_bit(member)),
        }
    }

    /// Bytes of the message.
    pub fn bytes(&self, range: Range<u32>) -> &'a [u8] {
        &self.data[range.start as usize..range.end as usize]
    }

    /// The value with everything that belongs to it.
    pub fn value(&self, node: u32) -> &'a [u8] {
        let node = self.node(node);
        self.bytes(node.value..node.end)
    }

    /// The first member of an object. [`Tree::after`] gives the others.
    pub fn first(&self, object: u32) -> Option<u32> {
        let object_node = self.node(object);
        (object_node.kind == Kind::Object && object + 1 < object_node.next).then_some(object + 1)
    }

    /// The next member of the same object.
    pub fn after(&self, object: u32, member: u32) -> Option<u32> {
        let next = self.node(member).next;
        (next < self.node(object).next).then_some(next)
    }

    /// The members of an object, in the order of the message.
    pub fn members(&self, object: u32) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(self.first(object), move |member| self.after(object, *member))
    }

    /// The members of an indexed object that are written for a member that counts: all elements of
    /// an array, otherwise this one.
    pub fn group(&self, representative: u32) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(Some(representative), |member| {
            let follower = self.node(*member).follower;
            (follower != NONE).then_some(follower)
        })
    }

    /// Whether the node counts among those of its name.
    pub fn counts(&self, node: u32) -> bool {
        self.node(node).representative == node
    }

    /// Prepares an object for [`Tree::find`], and finds the members that have one name. The first
    /// of them counts when they are an array, otherwise the last.
    pub fn index(&mut self, object: u32) {
        let count = self.node(object).member_count;
        let (mut few, mut many) = ([0; FEW_MEMBERS], Vec::new());
        let members: &mut [u32] = if count as usize <= FEW_MEMBERS {
            self.members(object).zip(&mut few).for_each(|(member, place)| *place = member);
            &mut few[..count as usize]
        } else {
            many.extend(self.members(object));
            &mut many
        };
        if count as usize <= FEW_MEMBERS && !self.has_equal(members) {
            return;
        }
        members.sort_unstable_by(|left, right| self.order(*left, *right).then(left.cmp(right)));
        let mut rest = &*members;
        while let Some((first, after)) = rest.split_first() {
            let size = 1 + after.iter().take_while(|other| self.order(*first, **other).is_eq()).count();
            let (group, others) = rest.split_at(size);
            self.set_group(group);
            rest = others;
        }
        if !many.is_empty() {
            self.nodes[object as usize].sorted = self.sorted.len() as u32;
            self.sorted.append(&mut many);
        }
    }

    /// As [`Tree::index`], for all objects.
    pub fn index_all(&mut self) {
        for node in 0..self.nodes.len() as u32 {
            if self.node(node).kind == Kind::Object {
                self.index(node);
            }
        }
    }

    fn has_equal(&self, members: &[u32]) -> bool {
        members.iter().enumerate().any(|(place, member)| {
            members[..place].iter().any(|earlier| self.order(*earlier, *member).is_eq())
        })
    }

    fn set_group(&mut self, group: &[u32]) {
        let counts = if self.repeated_names_are_arrays { group.first() } else { group.last() };
        let (Some(counts), size) = (counts, group.len() as u32) else { return };
        group.iter().for_each(|member| self.node_mut(*member).representative = *counts);
        self.node_mut(*counts).group_size = size;
        for pair in group.windows(2) {
            self.node_mut(pair[0]).follower = pair[1];
        }
    }

    fn order(&self, left: u32, right: u32) -> Ordering {
        let hashes = self.node(left).hash.cmp(&self.node(right).hash);
        hashes.then_with(|| {
            let (left, right) = (self.name(left), self.name(right));
            (left.space, left.bytes).cmp(&(right.space, right.bytes))
        })
    }

    /// The member of an indexed object with the name that `node` has in `other`: the one that
    /// counts. The search begins at `hint`, which is then set to the place after the result: two
    /// messages mostly have their fields in the same order.
    pub fn find(&self, object: u32, other: &Tree<'_>, node: u32, hint: &mut Option<u32>) -> Option<u32> {
        self.find_name(object, other.name(node), other.node(node).hash, hint)
    }

    /// As [`Tree::find`], for a name with its hash.
    fn find_name(&self, object: u32, name: Name<'_>, hash: u32, hint: &mut Option<u32>) -> Option<u32> {
        let is_it = |member: u32| self.node(member).hash == hash && self.name(member) == name;
        let found = match *hint {
            Some(member) if is_it(member) => Some(member),
            _ => self.search(object, name, hash),
        }?;
        *hint = self.after(object, found);
        Some(self.node(found).representative)
    }

    /// One of the members of an indexed object that have this name.
    fn search(&self, object: u32, name: Name<'_>, hash: u32) -> Option<u32> {
        let is_it = |member: &u32| self.node(*member).hash == hash && self.name(*member) == name;
        let object_node = self.node(object);
        if object_node.sorted == NONE {
            return self.members(object).find(is_it);
        }
        let start = object_node.sorted as usize;
        let sorted = &self.sorted[start..start + object_node.member_count as usize];
        let place = sorted.partition_point(|member| {
            let known = self.name(*member);
            let hashes = self.node(*member).hash.cmp(&hash);
            hashes.then_with(|| (known.space, known.bytes).cmp(&(name.space, name.bytes))).is_lt()
        });
        sorted.get(place).copied().filter(is_it)
    }

    /// The field that a path names, after all objects on the way to it. A path that leads into an
    /// array ends there. Empty when the message has no such field.
    pub fn path(&self, path: &[Step]) -> Vec<u32> {
        let mut way = Vec::new();
        let mut object = 0;
        for step in path {
            let Step::Name(name) = step else { break };
            if self.node(object).kind != Kind::Object {
                break;
            }
            match self.member_of_step(object, name) {
                Some(member) => way.push(member),
                None => return Vec::new(),
            }
            object = way[way.len() - 1];
        }
        way
    }

    fn member_of_step(&self, object: u32, name: &[u8]) -> Option<u32> {
        // Only XML has attributes, and its elements have no names with this character.
        let attribute = name.strip_prefix(b"@").map(|bytes| Name { space: Space::Attribute, bytes });
        let name = Name { space: Space::Name, bytes: name };
        let is_it = |member: &u32| self.name(*member) == name || Some(self.name(*member)) == attribute;
        let found = self.members(object).find(is_it)?;
        if self.repeated_names_are_arrays { Some(found) } else { self.members(object).filter(is_it).last() }
    }
}

fn bit_of(hash: u32) -> u64 {
    1 << (hash % 64)
}

fn hash_of(name: &[u8]) -> u32 {
    let mut hasher = FxHasher::default();
    hasher.write(name);
    // The upper half is mixed best.
    (hasher.finish() >> 32) as u32
}
