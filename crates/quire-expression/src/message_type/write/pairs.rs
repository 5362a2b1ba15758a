//! `nvfix` and `fix`: pairs of tag and value with a separator between them. A tag that occurs more
//! than once is an array.

use super::tree::{Kind, Space, Tree};
use super::{Layout, MergeError, Patch, Side};
use crate::message_type::Malformed;
use crate::message_type::nvfix::{FIX, NVFIX, Pair, Pairs, SEPARATOR};

pub(super) struct Tagged<const NUMERIC_TAGS: bool>;

pub(super) type Nvfix = Tagged<false>;

pub(super) type Fix = Tagged<true>;

impl<const NUMERIC_TAGS: bool> Layout for Tagged<NUMERIC_TAGS> {
    const REPEATED_NAMES_ARE_ARRAYS: bool = true;

    fn read(tree: &mut Tree<'_>) -> Result<(), Malformed> {
        read(if NUMERIC_TAGS { FIX } else { NVFIX }, tree)
    }

    fn go_to_end(patch: &mut Patch<'_>, base: &Tree<'_>, object: u32, _round: u8) {
        patch.copy_to(base.node(object).tail);
        write_separator(patch.out);
    }

    fn leave(patch: &mut Patch<'_>, base: &Tree<'_>, object: u32, _entered: usize, added_count: u32) {
        let tail = base.node(object).tail;
        // A base without the last separator gets one when its last pair is not the last one of the
        // result: data may end with SOH.
        if base.data.len() == tail as usize && (added_count > 0 || patch.at == tail) {
            Self::go_to_end(patch, base, object, 0);
        }
    }

    fn replace(patch: &mut Patch<'_>, base: &Tree<'_>, member: u32, delta: &Tree<'_>, group: &[u32]) {
        patch.copy_to(base.node(member).start);
        for (place, with) in group.iter().enumerate() {
            if place > 0 {
                patch.out.push(SEPARATOR);
            }
            Self::write_member(patch.out, delta, *with);
        }
        patch.skip_to(base.node(member).end);
    }

    fn remove(patch: &mut Patch<'_>, base: &Tree<'_>, member: u32) {
        let node = base.node(member);
        // The separator after it may be missing. The separator before it exists, because the first
        // pair of an array is never removed.
        patch.copy_to(node.start - 1);
        patch.skip_to(node.end);
    }

    fn write_null(out: &mut Vec<u8>, tree: &Tree<'_>, member: u32) {
        out.extend_from_slice(tree.name(member).bytes);
        out.push(b'=');
    }

    fn write_separator(out: &mut Vec<u8>) {
        write_separator(out);
    }

    fn write_start(_out: &mut Vec<u8>, _tree: &Tree<'_>, _object: u32, _member_count: u32) -> usize {
        0
    }

    fn write_end(out: &mut Vec<u8>, _tree: &Tree<'_>, _object: u32, _started: usize) {
        write_separator(out);
    }

    /// A wrong size of a data field ends at another place when other pairs follow it. Then its data
    /// includes some of them, so there are fewer fields.
    fn check(out: &[u8], member_count: impl FnOnce() -> u32) -> Result<(), MergeError> {
        if NUMERIC_TAGS {
            check(out, member_count()).map_err(|reason| MergeError::Malformed { side: Side::New, reason })
        } else {
            Ok(())
        }
    }
}

fn check(data: &[u8], member_count: u32) -> Result<(), Malformed> {
    let (mut count, mut size_start) = (0, 0);
    let mut reader = FIX.read(data);
    while let Some(pair) = reader.next()? {
        if pair.is_size {
            size_start = pair.start;
        } else {
            count += 1;
        }
    }
    if count == member_count {
        Ok(())
    } else {
        Err(Malformed::Syntax { offset: size_start, expected: "right size of a data field" })
    }
}

/// The size of a data field belongs to it. They are always written together.
fn read(pairs: Pairs, tree: &mut Tree<'_>) -> Result<(), Malformed> {
    let (data, mut size_start, mut member_count) = (tree.data, None, 0);
    // Without the last separator, which belongs to no pair.
    let mut tail = 0;
    let mut reader = pairs.read(data);
    while let Some(Pair { start, value, end, is_size }) = reader.next()? {
        if is_size {
            size_start = Some(start);
            continue;
        }
        let member_start = size_start.take().unwrap_or(start);
        let node = tree.open(Space::Name, start..value - 1, member_start, value)?;
        tree.close(node, if value == end { Kind::Null } else { Kind::Leaf }, end);
        (tail, member_count) = (end, member_count + 1);
    }
    tree.describe_object(0, 0, tail, member_count);
    tree.close(0, Kind::Object, data.len());
    Ok(())
}

/// Ends the last pair. Its last byte does not show whether it is ended: data may end with SOH.
fn write_separator(out: &mut Vec<u8>) {
    if !out.is_empty() {
        out.push(SEPARATOR);
    }
}
