//! Journal maintenance: the actions on full journal files, and the selection of files.

/// An action on a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It moves to the archive directory, and stays part of the log.
    Archive,
    /// It is compressed in its directory, and stays part of the log.
    Compress,
    /// The file is removed. No reader can read its messages any more.
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
    /// Files that were not written for this time, in nanoseconds; 0 = every full file.
    OlderThan(u64),
    /// The oldest files, until the rest has at most this many bytes.
    Beyond(u64),
}
