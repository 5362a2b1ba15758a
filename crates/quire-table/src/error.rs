//! Why a configuration or a key is refused.

use crate::key::KEY_SIZE_MAX;
use quire_expression::message_type::MessageType;

/// Why a last-value topic cannot have this configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableConfigError {
    /// Messages of this type have no fields, so that keys and indexes cannot be made of fields.
    #[error("{} messages have no fields; remove the list of key fields, and supply keys", message_type.name())]
    NoFields {
        /// The type of the messages.
        message_type: MessageType,
    },
    /// Messages of this type have no fields, so that an index would be empty.
    #[error("{} messages have no fields; remove the indexes", message_type.name())]
    NoIndexes {
        /// The type of the messages.
        message_type: MessageType,
    },
    /// A list of fields has none.
    #[error("{list}: at least one field is required")]
    EmptyList {
        /// The list.
        list: &'static str,
    },
    /// A text is not the name of a field.
    #[error("{list}: {field:?} is not the name of a field, such as /symbol")]
    NotAField {
        /// The list that has it.
        list: &'static str,
        /// The text.
        field: String,
    },
    /// Two indexes have the same fields, or an index has a field twice.
    #[error("{list}: {field:?} occurs twice")]
    Twice {
        /// The list that has it.
        list: &'static str,
        /// The field, or the fields.
        field: String,
    },
    /// There are too many indexes: each publish has to change all of them.
    #[error("{count} indexes, the limit is {}", crate::index::INDEXES_MAX)]
    TooManyIndexes {
        /// Their number.
        count: usize,
    },
}

/// Why a row cannot be in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// The size of the key.
    #[error("a key of {size} bytes; a key has 1 to {KEY_SIZE_MAX} bytes")]
    KeySize {
        /// Its bytes.
        size: usize,
    },
    /// The message is not smaller than 4 GiB.
    #[error("a message of {size} bytes; a record is smaller than 4 GiB")]
    DataSize {
        /// Its bytes.
        size: usize,
    },
}

/// Why a key that a publisher supplied is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// It has no characters.
    #[error("the key is empty; a key has 1 to {KEY_SIZE_MAX} characters")]
    Empty,
    /// It is longer than [`KEY_SIZE_MAX`].
    #[error("the key has {size} bytes; a key has 1 to {KEY_SIZE_MAX} characters")]
    TooLong {
        /// Its bytes.
        size: usize,
    },
    /// It has a character that keys cannot have.
    #[error(
        "character {number} of the key is not allowed; a key has letters, digits, '+', '/', '=', '-' and '_' only"
    )]
    Character {
        /// The number of the character, from 1.
        number: usize,
    },
}
