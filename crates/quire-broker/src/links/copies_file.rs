//! The file `copies.place` next to the log: the members, whether the log may lack records, and the
//! conflicts of the links (docs/journal-format.md). The parts of it are in `members.rs` and
//! `conflicts.rs`.

use quire_journal::{FoundSidecar, Journal, JournalError, Position, SidecarHead, Sidecars};
use quire_link::{MemberInfo, SavedMembers};
use quire_wire::link::{Frame, next_frame};

const FILE: &str = "copies.place";
const NAME: &str = "copies";
const VERSION: u32 = 2;

/// It has the conflicts only.
const VERSION_WITHOUT_MEMBERS: u32 = 1;

const IS_FILLING: u8 = 1;
const IS_ADMITTED: u8 = 2;

/// The members, as the file has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SavedCopies {
    pub(super) members: SavedMembers,
    /// The identity of the directory in which the file was written; 0: not known.
    pub(super) directory: u64,
    /// The log had this end when the file was written.
    pub(super) end: Position,
}

/// A file that is ready to be written.
pub(super) struct CopiesFile {
    pub(super) files: Sidecars,
    pub(super) saved: SavedCopies,
    /// The bytes of the conflicts.
    pub(super) conflicts: Vec<u8>,
}

impl CopiesFile {
    /// Writes the file. Waits for the disk.
    pub(super) fn write(&self) -> Result<(), JournalError> {
        let head = SidecarHead { version: VERSION, position: self.saved.end, ..SidecarHead::default() };
        let members = encode(&self.saved);
        let size = (members.len() as u32).to_le_bytes();
        self.files.write(FILE, NAME, head, &[&size, &members, &self.conflicts])
    }
}

/// Reads the file of an earlier run: the members, if there are any, and the bytes of the conflicts.
/// Nothing when the file cannot be used.
pub(super) fn read(journal: &Journal) -> (Option<SavedCopies>, Vec<u8>) {
    match journal.sidecars().read(FILE, NAME) {
        Ok(FoundSidecar::Whole(SidecarHead { version: VERSION, position, .. }, content)) => {
            let Some((members, conflicts)) = divide(&content) else { return (None, Vec::new()) };
            (decode(members, position), conflicts.to_vec())
        }
        Ok(FoundSidecar::Whole(SidecarHead { version: VERSION_WITHOUT_MEMBERS, .. }, conflicts)) => {
            (None, conflicts)
        }
        _ => (None, Vec::new()),
    }
}

fn divide(content: &[u8]) -> Option<(&[u8], &[u8])> {
    let (size, rest) = content.split_first_chunk()?;
    rest.split_at_checked(u32::from_le_bytes(*size) as usize)
}

fn encode(saved: &SavedCopies) -> Vec<u8> {
    let SavedMembers { log, is_filling, is_admitted, others } = &saved.members;
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&saved.directory.to_le_bytes());
    bytes.extend_from_slice(&log.to_le_bytes());
    bytes.push((u8::from(*is_filling) * IS_FILLING) | (u8::from(*is_admitted) * IS_ADMITTED));
    Frame::Members(others.iter().map(MemberInfo::as_frame).collect()).encode(&mut bytes);
    bytes
}

/// `None`: the bytes are something else.
fn decode(bytes: &[u8], end: Position) -> Option<SavedCopies> {
    let (directory, rest) = bytes.split_first_chunk()?;
    let (log, rest) = rest.split_first_chunk()?;
    let (flags, rest) = rest.split_first()?;
    let (frame, _) = next_frame(rest, usize::MAX).ok()??;
    let Frame::Members(others) = frame else { return None };
    let members = SavedMembers {
        log: u64::from_le_bytes(*log),
        is_filling: flags & IS_FILLING != 0,
        is_admitted: flags & IS_ADMITTED != 0,
        others: others.iter().map(MemberInfo::of_frame).collect(),
    };
    Some(SavedCopies { members, directory: u64::from_le_bytes(*directory), end })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use quire_journal::{Bookmark, Options, PublisherId};
    use quire_link::NamedInstance;

    fn saved() -> SavedCopies {
        let named = vec![
            NamedInstance::Destination("a".into()),
            NamedInstance::Group("g".into()),
            NamedInstance::Instance("c".into()),
        ];
        let other = MemberInfo {
            name: "b".into(),
            group: "g".into(),
            started_ns: 3,
            log: 4,
            is_filling: true,
            named,
            last: Some(Bookmark::new(PublisherId::new(7), 9)),
        };
        let members = SavedMembers { log: 5, is_filling: true, is_admitted: false, others: vec![other] };
        SavedCopies { members, directory: 11, end: Position::new(6) }
    }

    #[test]
    fn what_is_saved_is_read_again() {
        let journal = Journal::in_memory(&Options::default()).unwrap();
        assert_eq!(read(&journal), (None, Vec::new()));
        let file = CopiesFile { files: journal.sidecars(), saved: saved(), conflicts: vec![1, 2] };
        file.write().unwrap();
        assert_eq!(read(&journal), (Some(saved()), vec![1, 2]));
    }

    #[test]
    fn a_file_of_version_1_has_the_conflicts_only() {
        let journal = Journal::in_memory(&Options::default()).unwrap();
        let head = SidecarHead { version: VERSION_WITHOUT_MEMBERS, ..SidecarHead::default() };
        journal.sidecars().write(FILE, NAME, head, &[&[1, 2]]).unwrap();
        assert_eq!(read(&journal), (None, vec![1, 2]));
    }

    proptest! {
        #[test]
        fn any_bytes_are_members_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Some((members, _)) = divide(&bytes) {
                let _ = decode(members, Position::ZERO);
            }
            if let Some(saved) = decode(&bytes, Position::ZERO) {
                prop_assert_eq!(decode(&encode(&saved), Position::ZERO), Some(saved));
            }
        }
    }
}
