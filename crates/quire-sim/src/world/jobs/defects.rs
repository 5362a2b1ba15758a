//! A deliberate mistake of a client: it does not look after the messages that it has fetched.

use std::collections::HashSet;

use quire_command::{Bookmarks, Command, Extend, Selection, Settle, put_bookmark};
use quire_types::{Bookmark, PublisherId, Verdict};
use quire_wire::{Decode, Encode, RawFrame};

/// Whole frames of a client, without the renewals of messages that are not `begun`, and if
/// `forgets_releases` without the commands that release messages.
pub(super) fn without_care(mut bytes: &[u8], begun: &HashSet<Bookmark>, forgets_releases: bool) -> Vec<u8> {
    let mut sent = Vec::new();
    while let Some((size, _)) = bytes.split_first_chunk::<4>() {
        let (frame, rest) = bytes.split_at(bytes.len().min(4 + u32::from_le_bytes(*size) as usize));
        bytes = rest;
        // After the size and the kind comes the body.
        match Command::decode(RawFrame { kind: frame[4], body: &frame[5..] }) {
            Ok(Command::Extend(extend)) => {
                let mut renewed = Vec::new();
                for (publisher, sequence) in extend.bookmarks.iter() {
                    if begun.contains(&Bookmark { publisher: PublisherId(publisher), sequence }) {
                        put_bookmark(&mut renewed, publisher, sequence);
                    }
                }
                if let Some(bookmarks) = Bookmarks::from_bytes(&renewed).filter(|list| list.count() > 0) {
                    Command::Extend(Extend { bookmarks, ..extend }).encode(&mut sent);
                }
            }
            Ok(Command::Settle(Settle {
                verdict: Verdict::Release,
                messages: Selection::Bookmarks(_),
                ..
            })) if forgets_releases => (),
            _ => sent.extend_from_slice(frame),
        }
    }
    sent
}
