//! Journal maintenance: what is done with full journal files, and with which.

/// What is done with a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It moves to the archive directory, and stays part of the log.
    Archive,
    /// It is compressed where it is, and stays part of the log.
    Compress,
    /// The file is removed. Its messages are gone for every reader.
    Remove,
}

impl Action {
    /// As in "cannot archive".
    pub const fn verb(self) -> &'static str {
        match self {
            Action::Archive => "archive",
            Action::Compress => "compress",
            Action::Remove => "remove",
        }
    }

    /// As in "it was archived".
    pub const fn done(self) -> &'static str {
        match self {
            Action::Archive => "archived",
            Action::Compress => "compressed",
            Action::Remove => "removed",
        }
    }
}

/// The selection of full journal files: always the oldest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// Those not written to for longer, in nanoseconds; 0 = every full one.
    OlderThan(u64),
    /// The oldest files, until the rest has at most this many bytes.
    Beyond(u64),
}
