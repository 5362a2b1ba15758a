//! The difference of two messages: the fields of the later one that differ.

use super::tree::{Kind, Mark, NONE, Tree};
use super::{Layout, MergeError, read_both};
use crate::message_type::Step;

pub(super) fn difference<L: Layout>(
    old: &[u8],
    new: &[u8],
    keep: &[Vec<Step>],
    out: &mut Vec<u8>,
) -> Result<bool, MergeError> {
    let (mut old, mut new) = read_both::<L>(old, new)?;
    L::names_fields(&old, &new)?;
    let differs = compare::<L>(&mut old, 0, &mut new, 0);
    for path in keep {
        keep_field::<L>(&mut new, path);
    }
    L::keep_root(&mut new);
    write::<L>(&old, &new, 0, out);
    L::check(out, || {
        let kept = new.members(0).filter(|member| new.node(*member).mark != Mark::Nothing);
        let removed = old.members(0).filter(|member| old.node(*member).mark != Mark::Nothing);
        kept.map(|member| new.node(member).group_size).sum::<u32>() + removed.count() as u32
    })?;
    Ok(differs)
}

/// Marks the fields of two objects that differ. Returns whether any does. Recursion is bounded by
/// `DOCUMENT_DEPTH_MAX`.
fn compare<L: Layout>(old: &mut Tree<'_>, old_object: u32, new: &mut Tree<'_>, new_object: u32) -> bool {
    old.index(old_object);
    new.index(new_object);
    new.node_mut(new_object).partner = old_object;
    let mut differs = false;
    let mut hint = old.first(old_object);
    let mut at = new.first(new_object);
    while let Some(member) = at {
        if new.counts(member) {
            let mark = match old.find(old_object, new, member, &mut hint) {
                None => Mark::Whole,
                Some(known) => {
                    old.node_mut(known).partner = member;
                    compare_members::<L>(old, known, new, member)
                }
            };
            new.node_mut(member).mark = mark;
            differs |= mark != Mark::Nothing;
        }
        at = new.after(new_object, member);
    }
    let mut at = old.first(old_object);
    while let Some(member) = at {
        let node = old.node(member);
        let is_null = node.kind == Kind::Null && !is_array::<L>(old, member);
        if old.counts(member) && node.partner == NONE && !is_null {
            old.node_mut(member).mark = Mark::Null;
            differs = true;
        }
        at = old.after(old_object, member);
    }
    differs
}

fn compare_members<L: Layout>(
    old: &mut Tree<'_>,
    old_member: u32,
    new: &mut Tree<'_>,
    new_member: u32,
) -> Mark {
    let is_array = is_array::<L>(old, old_member) || is_array::<L>(new, new_member);
    let kinds = (old.node(old_member).kind, new.node(new_member).kind);
    if kinds == (Kind::Object, Kind::Object) && !is_array {
        return if compare::<L>(old, old_member, new, new_member) { Mark::Parts } else { Mark::Nothing };
    }
    let is_equal = if is_array {
        let values = old.group(old_member).map(|member| old.value(member));
        values.eq(new.group(new_member).map(|member| new.value(member)))
    } else {
        old.value(old_member) == new.value(new_member)
    };
    if is_equal { Mark::Nothing } else { Mark::Whole }
}

/// Whether a member is one of several that are an array.
fn is_array<L: Layout>(tree: &Tree<'_>, member: u32) -> bool {
    L::REPEATED_NAMES_ARE_ARRAYS && tree.node(member).group_size > 1
}

/// Adds a field to the marked ones.
fn keep_field<L: Layout>(new: &mut Tree<'_>, path: &[Step]) {
    let way = new.path(path);
    for (step, member) in way.iter().enumerate() {
        if step + 1 == way.len() || is_array::<L>(new, *member) {
            return keep_whole(new, *member);
        }
        let node = new.node_mut(*member);
        match node.mark {
            Mark::Nothing => node.mark = Mark::Parts,
            Mark::Parts => {}
            Mark::Whole | Mark::Null => return,
        }
    }
}

/// Recursion is bounded by `DOCUMENT_DEPTH_MAX`.
fn keep_whole(new: &mut Tree<'_>, field: u32) {
    match new.node(field).mark {
        Mark::Nothing => new.node_mut(field).mark = Mark::Whole,
        // Fields that the new message does not have stay in.
        Mark::Parts => {
            let mut at = new.first(field);
            while let Some(member) = at {
                if new.counts(member) {
                    keep_whole(new, member);
                }
                at = new.after(field, member);
            }
        }
        Mark::Whole | Mark::Null => {}
    }
}

/// Writes the marked part of an object. Recursion is bounded by `DOCUMENT_DEPTH_MAX`.
fn write<L: Layout>(old: &Tree<'_>, new: &Tree<'_>, object: u32, out: &mut Vec<u8>) {
    let is_marked = |tree: &Tree<'_>, member: &u32| tree.node(*member).mark != Mark::Nothing;
    let old_object = new.node(object).partner;
    let kept = || new.members(object).filter(|member| is_marked(new, member));
    let removed = || old.members(old_object).filter(|member| is_marked(old, member));
    // A count of members of messages fits.
    let started = L::write_start(out, new, object, (kept().count() + removed().count()) as u32);
    for round in 0..L::ROUND_COUNT {
        for member in kept().filter(|member| L::round(new.node(*member)) == round) {
            if new.node(member).mark == Mark::Parts {
                L::write_separator(out);
                write::<L>(old, new, member, out);
                continue;
            }
            for one in new.group(member) {
                L::write_separator(out);
                L::write_member(out, new, one);
            }
        }
        for member in removed().filter(|member| L::round(old.node(*member)) == round) {
            L::write_separator(out);
            L::write_null(out, old, member);
        }
        L::write_end_of_round(out, object, round);
    }
    L::write_end(out, new, object, started);
}
