//! The write side of message types does what `docs/last-values.md` and `docs/replay.md` state.
//! Named cases show the rules. A slow model over documents says what the fields of a result are,
//! for every format. Bytes of any kind give an error or a well-formed message.

mod assigning;
mod differences;
mod hostile;
mod merging;
mod model;
mod selecting;

use quire_expression::message_type::*;

/// The merge of two messages that are well-formed.
fn merged(message_type: MessageType, base: &[u8], delta: &[u8]) -> Vec<u8> {
    let mut out = b"an earlier result".to_vec();
    if let Err(error) = merge(message_type, base, delta, &mut out) {
        panic!("{error}: {:?} {:?}", String::from_utf8_lossy(base), String::from_utf8_lossy(delta));
    }
    out
}

/// The merge of two texts. `|` means SOH.
fn merged_text(message_type: MessageType, base: &str, delta: &str) -> String {
    let bytes = |text: &str| text.replace('|', "\u{1}").into_bytes();
    let out = merged(message_type, &bytes(base), &bytes(delta));
    String::from_utf8(out).unwrap().replace('\u{1}', "|")
}

/// The steps of a field.
fn path(names: &[&str]) -> Vec<Step> {
    names.iter().map(|name| Step::Name(name.as_bytes().into())).collect()
}
