//! The codec of a connection. It decodes the received bytes into commands, and encodes replies into
//! bytes.
//!
//! The functions that run for every message are always inlined. With one protocol, the choice
//! between protocols then has no cost.
//!
//! This is the only module that imports a wire protocol. Another protocol is another variant of
//! [`Codec`] and of [`Encoder`].

use quire_command::{Code, Command, Message, MessageKind, Publish, RecordHash, Reply};
use quire_wire::{
    Decode, Encode, FRAME_OVERHEAD_MAX, Inbox, LENGTH_SIZE, LOGON_FRAME_SIZE_MAX, VERSION, WireError,
    copy_bookmark, copy_others_than_messages, decode_message, encode_without_data, messages, publishes,
};

/// Decodes the commands of one connection. Holds the received part of an unfinished command.
#[derive(Debug)]
pub enum Codec {
    /// The quire protocol (docs/protocol.md).
    Quire(Inbox),
}

/// Encodes the replies for one connection. Every part that encodes bytes for the connection has a
/// copy, on any thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoder {
    /// The quire protocol.
    Quire,
}

/// Bytes that are not a command. The connection ends, because the bytes after them cannot be
/// decoded.
#[derive(Debug)]
pub struct CodecError {
    /// The code that the peer gets.
    pub code: Code,
    /// What is wrong with the bytes.
    pub reason: String,
}

impl From<WireError> for CodecError {
    fn from(error: WireError) -> Self {
        CodecError { code: error.code(), reason: error.to_string() }
    }
}

impl Codec {
    /// The codec of a new connection that uses the quire protocol. It accepts commands up to the
    /// size of a logon.
    pub fn quire() -> Self {
        Codec::Quire(Inbox::new(LOGON_FRAME_SIZE_MAX))
    }

    /// The encoder of the replies to these commands.
    pub fn encoder(&self) -> Encoder {
        match self {
            Codec::Quire(_) => Encoder::Quire,
        }
    }

    /// Takes the codec and the unfinished command that it holds. The codec that remains in its
    /// place accepts no command.
    pub fn take(&mut self) -> Codec {
        match self {
            Codec::Quire(inbox) => Codec::Quire(std::mem::replace(inbox, Inbox::new(0))),
        }
    }

    /// Limits the size of commands. Data of at most `message_size_max` bytes are accepted; `None` =
    /// only a logon.
    pub fn set_message_size_max(&mut self, message_size_max: Option<usize>) {
        match self {
            Codec::Quire(inbox) => inbox.set_frame_size_max(
                message_size_max.map_or(LOGON_FRAME_SIZE_MAX, |size| size + FRAME_OVERHEAD_MAX),
            ),
        }
    }

    /// Bytes held of an unfinished command.
    pub fn unfinished_size(&self) -> usize {
        match self {
            Codec::Quire(inbox) => inbox.partial_size(),
        }
    }

    /// Calls `take` with the next command, which it removes from the front of `bytes`. Returns
    /// whether there was a command. If not, more bytes must arrive first, and `bytes` is empty.
    ///
    /// The command is passed to a function by reference, because each move of a command within an
    /// option or a result copies it.
    ///
    /// # Errors
    /// [`CodecError`]: the codec must not be called again.
    #[inline(always)]
    pub fn next(&mut self, bytes: &mut &[u8], take: impl FnOnce(&Command<'_>)) -> Result<bool, CodecError> {
        match self {
            Codec::Quire(inbox) => {
                let Some(frame) = inbox.next(bytes)? else { return Ok(false) };
                match Command::decode(frame) {
                    Ok(ref command) => take(command),
                    Err(error) => return Err(error.into()),
                }
                Ok(true)
            }
        }
    }

    /// The publishes at the front of `bytes`, up to another command or an unfinished one. `bytes`
    /// must begin with a command: the last call of the codec returned a command.
    #[inline(always)]
    pub fn publishes<'b>(&self, bytes: &'b [u8]) -> impl Iterator<Item = Publish<'b>> {
        match self {
            Codec::Quire(_) => publishes(bytes),
        }
    }
}

impl Encoder {
    /// The version of the protocol, for the reply to a logon.
    pub fn version(self) -> u16 {
        match self {
            Encoder::Quire => VERSION,
        }
    }

    /// Appends a reply to `out`.
    #[inline(always)]
    pub fn put(self, reply: &Reply<'_>, out: &mut Vec<u8>) {
        match self {
            Encoder::Quire => reply.encode(out),
        }
    }

    /// Appends a message to `out`.
    #[inline(always)]
    pub fn put_message(self, message: &Message<'_>, out: &mut Vec<u8>) {
        match self {
            Encoder::Quire => message.encode(out),
        }
    }

    /// The bytes of an encoded message before its body.
    pub fn head_size(self) -> usize {
        match self {
            Encoder::Quire => LENGTH_SIZE + 1,
        }
    }

    /// Appends a message to `out`, except its data. The data must follow.
    #[inline(always)]
    pub fn put_message_without_data(self, message: &Message<'_>, out: &mut Vec<u8>) {
        match self {
            Encoder::Quire => encode_without_data(message, out),
        }
    }

    /// Appends to `out` the frames that are not messages. The last frame may be without its data.
    pub fn copy_others_than_messages(self, frames: &[u8], out: &mut Vec<u8>) {
        match self {
            Encoder::Quire => copy_others_than_messages(frames, out),
        }
    }

    /// The messages among frames that it has encoded.
    pub fn messages(self, frames: &[u8]) -> impl Iterator<Item = Message<'_>> {
        match self {
            Encoder::Quire => messages(frames),
        }
    }

    /// The encoded message with other data: the fields of a record that differ.
    pub fn as_delta(self, frame: Vec<u8>, data: &[u8], hash: RecordHash) -> Vec<u8> {
        match self {
            Encoder::Quire => {
                let Ok(message) = decode_message(&frame[self.head_size()..]) else { return frame };
                let mut out = Vec::with_capacity(frame.len());
                let message = Message { data, kind: MessageKind::Delta(hash), ..message };
                self.put_message(&message, &mut out);
                out
            }
        }
    }

    /// Replaces the bookmark of the encoded message `to` by the bookmark of the encoded message
    /// `from`.
    pub fn copy_bookmark(self, from: &[u8], to: &mut [u8]) {
        match self {
            Encoder::Quire => copy_bookmark(from, to),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flush(command: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        Command::Flush { command, acks: quire_command::Acks::PERSISTED }.encode(&mut bytes);
        bytes
    }

    #[test]
    fn a_codec_that_is_taken_out_keeps_its_unfinished_command_and_leaves_one_that_accepts_nothing() {
        let bytes = flush(7);
        let (first, mut rest) = bytes.split_at(9);
        let mut codec = Codec::quire();
        assert!(!codec.next(&mut { first }, |_| unreachable!()).unwrap());
        let mut taken = codec.take();
        assert_eq!((taken.unfinished_size(), codec.unfinished_size()), (9, 0));
        let is_whole = |command: &Command<'_>| assert!(matches!(command, Command::Flush { command: 7, .. }));
        assert!(taken.next(&mut rest, is_whole).unwrap());
        assert_eq!(codec.next(&mut &bytes[..], |_| ()).unwrap_err().code, Code::MessageTooLarge);
    }

    #[test]
    fn only_a_logon_fits_before_the_size_of_messages_is_set() {
        let size = LOGON_FRAME_SIZE_MAX as u32 + 1;
        let mut codec = Codec::quire();
        assert_eq!(codec.next(&mut &size.to_le_bytes()[..], |_| ()).unwrap_err().code, Code::MessageTooLarge);
        let mut codec = Codec::quire();
        codec.set_message_size_max(Some(0));
        assert!(!codec.next(&mut &size.to_le_bytes()[..], |_| ()).unwrap());
        codec.set_message_size_max(None);
        assert!(codec.next(&mut &[7][..], |_| ()).is_err());
    }
}
