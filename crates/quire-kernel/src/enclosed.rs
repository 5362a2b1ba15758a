//! Messages inside of messages: a dead letter, and the message about a removed record, are JSON
//! objects that have the data of another message.

use quire_expression::message_type::MessageType;
use serde::de::IgnoredAny;
use serde_json::Value;

/// The member with the data of a message, with the comma before it: `message` when it is JSON,
/// `text` when it is text, and `base64` otherwise.
pub fn enclosed(message_type: MessageType, data: &[u8]) -> Vec<u8> {
    let is_json = message_type == MessageType::Json && serde_json::from_slice::<IgnoredAny>(data).is_ok();
    // `IgnoredAny` does not look at the bytes of a text. JSON is UTF-8, and so is the object.
    match (is_json, std::str::from_utf8(data)) {
        (true, Ok(_)) => [b",\"message\":", data].concat(),
        (false, Ok(text)) => format!(",\"text\":{}", Value::from(text)).into_bytes(),
        (_, Err(_)) => format!(",\"base64\":\"{}\"", base64(data)).into_bytes(),
    }
}

/// Adds a member to a JSON object, with the comma before it, if the object has room for it.
pub fn add(object: &mut Vec<u8>, member: Option<&[u8]>, size_max: usize) {
    let Some(member) = member.filter(|member| object.len() + member.len() <= size_max) else { return };
    object.pop();
    object.extend_from_slice(member);
    object.push(b'}');
}

/// Bytes as text (RFC 4648, section 4).
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for digit in 0..4 {
            let is_digit = digit <= chunk.len();
            let index = (bits >> (18 - 6 * digit)) as usize & 63;
            text.push(if is_digit { char::from(DIGITS[index]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_the_text_that_the_standard_shows() {
        let shown = ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"];
        for (size, text) in shown.into_iter().enumerate() {
            assert_eq!(base64(&b"foobar"[..size]), text);
        }
        assert_eq!(base64(&[0xff, 0xfe, 0xfd]), "//79");
    }
}
