//! The names of topics.

/// The longest topic, in bytes: enough for any path-like name. It is copied into every record.
pub const TOPIC_SIZE_MAX: usize = 1024;

/// Why a text is not the name of a topic. The caller has to correct it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopicNameError {
    /// A topic has at least one byte.
    #[error("the topic is empty")]
    Empty,
    /// Above [`TOPIC_SIZE_MAX`].
    #[error("the topic has {size} bytes, the limit is {TOPIC_SIZE_MAX}")]
    TooLong {
        /// Its size in bytes.
        size: usize,
    },
    /// A topic has no control characters: they would be invisible in output, and could end a line
    /// of a list.
    #[error("the topic {topic:?} has a control character at byte {at}")]
    Control {
        /// The topic.
        topic: Box<str>,
        /// The index of the character, from 0.
        at: usize,
    },
}

/// Whether a message can be published to `topic`.
///
/// # Errors
/// Why not.
pub fn check_topic_name(topic: &str) -> Result<(), TopicNameError> {
    match topic.len() {
        0 => return Err(TopicNameError::Empty),
        1..=TOPIC_SIZE_MAX => (),
        size => return Err(TopicNameError::TooLong { size }),
    }
    match topic.char_indices().find(|(_, character)| character.is_control()) {
        Some((at, _)) => Err(TopicNameError::Control { topic: topic.into(), at }),
        None => Ok(()),
    }
}
