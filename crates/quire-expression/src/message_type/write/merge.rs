//! The merge of two messages: the base with the fields of the delta.

use super::tree::{Kind, NONE, Tree};
use super::{Layout, MergeError, Patch, Side, read_object, read_objects_for};

pub(super) fn merge<L: Layout>(base: &[u8], delta: &[u8], out: &mut Vec<u8>) -> Result<(), MergeError> {
    let delta = match read_object::<L>(delta, Side::New) {
        Ok(delta) => delta,
        Err(error) => {
            // A mistake in the base is reported first.
            read_object::<L>(base, Side::Old)?;
            return Err(error);
        }
    };
    let (mut old, mut new) = read_objects_for::<L>(base, delta, false)?;
    merge_trees::<L>(&mut old, &mut new, out)
}

/// Merges messages. The base was read for the delta. Members of the delta that are to replace a
/// whole object do not have [`Kind::Object`].
pub(super) fn merge_trees<L: Layout>(
    old: &mut Tree<'_>,
    new: &mut Tree<'_>,
    out: &mut Vec<u8>,
) -> Result<(), MergeError> {
    if !L::names_fields(old, new)? {
        out.extend_from_slice(old.data);
        return Ok(());
    }
    out.reserve(old.data.len() + new.data.len());
    let patch = Patch { base: old.data, at: 0, out };
    let mut merging = Merging { old, new, patch, group: Vec::new() };
    merging.object::<L>(0, 0);
    merging.patch.copy_to(merging.patch.base.len() as u32);
    L::check(out, || {
        let replaced = old.members(0).filter(|member| old.node(*member).partner != NONE);
        old.node(0).member_count - replaced.count() as u32 + new.node(0).member_count
    })
}

struct Merging<'m, 'o, 'n> {
    old: &'m mut Tree<'o>,
    new: &'m mut Tree<'n>,
    patch: Patch<'m>,
    /// The members of one name, while they are written.
    group: Vec<u32>,
}

impl Merging<'_, '_, '_> {
    /// Merges an object of the delta into one of the base. Recursion is bounded by
    /// `DOCUMENT_DEPTH_MAX`.
    fn object<L: Layout>(&mut self, base: u32, delta: u32) {
        self.match_members::<L>(base, delta);
        let is_added = |new: &Tree<'_>, member: u32| new.counts(member) && new.node(member).partner == NONE;
        let added = self.new.members(delta).filter(|member| is_added(self.new, *member));
        let size = |member| if L::REPEATED_NAMES_ARE_ARRAYS { self.new.node(member).group_size } else { 1 };
        let added_count: u32 = added.map(size).sum();
        let entered = L::enter(&mut self.patch, self.old, base, added_count);
        for round in 0..L::ROUND_COUNT {
            let mut at = self.old.first(base);
            while let Some(member) = at {
                if self.old.node(member).partner != NONE && L::round(self.old.node(member)) == round {
                    self.named_member::<L>(member);
                }
                at = self.old.after(base, member);
            }
            let mut at = self.new.first(delta);
            while let Some(member) = at {
                if is_added(self.new, member) && L::round(self.new.node(member)) == round {
                    for one in self.new.group(member) {
                        L::go_to_end(&mut self.patch, self.old, base, round);
                        L::write_member(self.patch.out, self.new, one);
                    }
                }
                at = self.new.after(delta, member);
            }
        }
        L::leave(&mut self.patch, self.old, base, entered, added_count);
    }

    /// Finds the members of two objects that have one name.
    fn match_members<L: Layout>(&mut self, base: u32, delta: u32) {
        let mut hint = self.new.first(delta);
        let bits = self.new.members(delta).fold(0, |bits, member| bits | self.new.name_bit(member));
        let mut at = self.old.first(base);
        while let Some(member) = at {
            // Most members of the base are not in the delta, and are not compared with its names.
            if bits & self.old.name_bit(member) != 0
                && let Some(named) = self.new.find(delta, self.old, member, &mut hint)
            {
                let node = self.new.node_mut(named);
                node.match_count += 1;
                if node.partner == NONE || !L::REPEATED_NAMES_ARE_ARRAYS {
                    node.partner = member;
                }
                self.old.node_mut(member).partner = named;
            }
            at = self.old.after(base, member);
        }
    }

    /// Writes the part of the base up to a member that the delta names, and the member.
    fn named_member<L: Layout>(&mut self, member: u32) {
        let named = self.old.node(member).partner;
        let (old, new) = (self.old.node(member), self.new.node(named));
        if new.partner != member {
            // For an array of members, the place of the first one is kept. For other members of one
            // name only the last one counts, and the others are not changed.
            if L::REPEATED_NAMES_ARE_ARRAYS {
                L::remove(&mut self.patch, self.old, member);
            }
            return;
        }
        let is_array = L::REPEATED_NAMES_ARE_ARRAYS && (new.group_size > 1 || new.match_count > 1);
        if old.kind == Kind::Object && new.kind == Kind::Object && !is_array {
            return self.object::<L>(member, named);
        }
        self.group.clear();
        self.group.extend(self.new.group(named));
        L::replace(&mut self.patch, self.old, member, self.new, &self.group);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{json, msgpack, pairs, xml};
    use super::*;

    /// The nodes of the base of a merge, and the members of its root.
    fn counts<L: Layout>(base: &[u8], delta: &[u8]) -> (usize, u32) {
        let delta = read_object::<L>(delta, Side::New).unwrap();
        let (base, _) = read_objects_for::<L>(base, delta, false).unwrap();
        (base.nodes.len(), base.node(0).member_count)
    }

    #[test]
    fn a_large_base_of_a_merge_has_nodes_for_the_fields_of_the_delta_only() {
        let base = format!(r#"{{"k":{{"l":1,"m":2}}{}}}"#, r#","\u0061":{"b":1}"#.repeat(1_000));
        assert_eq!(counts::<json::Json>(base.as_bytes(), br#"{"z":1,"k":{"m":3}}"#), (3, 1_001));
        let base = format!("<r><k>1</k>{}</r>", r#"<a c="1"><b/></a>"#.repeat(1_000));
        assert_eq!(counts::<xml::Xml>(base.as_bytes(), b"<r><k>2</k><z/></r>"), (3, 1));
        let base = format!("1=2\u{1}{}", "55=1\u{1}".repeat(1_000));
        assert_eq!(counts::<pairs::Fix>(base.as_bytes(), b"1=3\x017=1"), (2, 1_001));
        // {"k": 1, 7: {"k": 2}, "k": 3, …} and {7: {}}
        let base = [&b"\xDE\x07\xD0\x07\x81\xa1k\x02"[..], &b"\xa1k\x03".repeat(1_999)].concat();
        assert_eq!(counts::<msgpack::Msgpack>(&base, b"\x81\x07\x80"), (2, 2_000));
    }
}
