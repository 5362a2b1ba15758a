//! Message types: how the fields of a message are found in its bytes.
//!
//! A type is a [`Format`]: it reads the wanted fields in one pass and says when the bytes are not of its kind. The codes are stored in the
//! journal and never change meaning.

mod binary;
mod fields;
mod json;

pub use fields::{Fields, Path, PathError, Scalar};

/// A type of message that this build knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MessageType {
    /// JSON documents; fields are addressed as `/member/member`.
    Json = 1,
    /// Bytes without fields.
    Binary = 2,
}

/// What a message type can do.
pub trait Format: Sync {
    /// Whether its messages have fields: a filter that reads some is refused where there are none.
    fn has_fields(&self) -> bool;

    /// Puts what `data` holds at each of the paths into `fields`.
    ///
    /// # Errors
    /// The bytes are not of this type: no filter that reads fields matches (reference: topics-filters-sow 3.2).
    fn read(&self, data: &[u8], paths: &[Path], fields: &mut Fields) -> Result<(), Malformed>;
}

/// The bytes are not of their message type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the bytes are not of this message type")]
pub struct Malformed;

impl MessageType {
    /// Every type.
    pub const ALL: &[MessageType] = &[MessageType::Json, MessageType::Binary];

    /// The type with this code in the journal.
    pub fn from_code(code: u8) -> Option<Self> {
        MessageType::ALL.iter().copied().find(|known| known.code() == code)
    }

    /// The type with this name in a configuration.
    pub fn from_name(name: &str) -> Option<Self> {
        MessageType::ALL.iter().copied().find(|known| known.name() == name)
    }

    /// Its code in the journal.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Its name in a configuration.
    pub const fn name(self) -> &'static str {
        match self {
            MessageType::Json => "json",
            MessageType::Binary => "binary",
        }
    }

    /// What it can do.
    pub fn format(self) -> &'static dyn Format {
        match self {
            MessageType::Json => &json::Json,
            MessageType::Binary => &binary::Binary,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_lead_back_to_their_type() {
        for known in MessageType::ALL {
            assert_eq!(MessageType::from_code(known.code()), Some(*known));
            assert_eq!(MessageType::from_name(known.name()), Some(*known));
        }
        assert_eq!((MessageType::Json.code(), MessageType::Binary.code()), (1, 2));
        assert_eq!((MessageType::from_code(0), MessageType::from_name("JSON")), (None, None));
    }
}
