//! The file `copies.place` next to the log: the members, whether the log may lack records, the
//! messages that are missing, and the conflicts of the links (docs/journal-format.md). The parts of
//! it are in `members.rs`, `gap.rs` and `conflicts.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use quire_journal::{FoundSidecar, Journal, JournalError, Position, SidecarHead, Sidecars};
use quire_link::{MemberInfo, SavedMembers};
use quire_wire::link::{Frame, next_frame};

const FILE: &str = "copies.place";
const NAME: &str = "copies";
const VERSION: u32 = 3;

/// It has no missing messages.
const VERSION_WITHOUT_A_GAP: u32 = 2;

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

/// The content of a file. Each part is empty when the file does not have it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FoundCopies {
    pub(super) saved: Option<SavedCopies>,
    /// The bytes of the gap, and of the conflicts.
    pub(super) gap: Vec<u8>,
    pub(super) conflicts: Vec<u8>,
    /// There is a file, and it cannot be read.
    pub(super) is_unreadable: bool,
}

/// The order of the contents of the file. A job can be writing one while the broker writes a newer
/// one: they would share a temporary file, and the older content would replace the newer one.
#[derive(Debug, Default)]
pub(super) struct Order {
    made: AtomicU64,
    /// The number of the newest content that was written. It is locked during a write.
    written: Mutex<u64>,
}

impl Order {
    /// The number of the next content.
    pub(super) fn next(&self) -> u64 {
        self.made.fetch_add(1, Relaxed) + 1
    }
}

/// A file that is ready to be written.
pub(super) struct CopiesFile {
    pub(super) files: Sidecars,
    pub(super) order: Arc<Order>,
    /// The number of this content in the order.
    pub(super) number: u64,
    pub(super) saved: SavedCopies,
    /// The bytes of the gap, and of the conflicts.
    pub(super) gap: Vec<u8>,
    pub(super) conflicts: Vec<u8>,
}

impl CopiesFile {
    /// Writes the file, unless it has a newer content. Waits for the disk.
    pub(super) fn write(&self) -> Result<(), JournalError> {
        let mut written = self.order.written.lock();
        if *written > self.number {
            return Ok(());
        }
        let head = SidecarHead { version: VERSION, position: self.saved.end, ..SidecarHead::default() };
        let members = encode(&self.saved);
        let [members_size, gap_size] = [&members, &self.gap].map(|part| (part.len() as u32).to_le_bytes());
        let parts: [&[u8]; 5] = [&members_size, &members, &gap_size, &self.gap, &self.conflicts];
        self.files.write(FILE, NAME, head, &parts)?;
        *written = self.number;
        Ok(())
    }
}

/// Reads the file of an earlier run.
pub(super) fn read(journal: &Journal) -> FoundCopies {
    let found = match journal.sidecars().read(FILE, NAME) {
        Ok(FoundSidecar::Missing) => return FoundCopies::default(),
        Ok(FoundSidecar::Whole(head, content)) => take_apart(head, &content),
        _ => None,
    };
    found.unwrap_or(FoundCopies { is_unreadable: true, ..FoundCopies::default() })
}

/// `None`: the content is something else.
fn take_apart(head: SidecarHead, mut content: &[u8]) -> Option<FoundCopies> {
    let mut found = FoundCopies::default();
    match head.version {
        VERSION | VERSION_WITHOUT_A_GAP => {
            let members = take_part(&mut content)?;
            found.saved = Some(decode(members, head.position)?);
            if head.version == VERSION {
                found.gap = take_part(&mut content)?.to_vec();
            }
        }
        VERSION_WITHOUT_MEMBERS => (),
        _ => return None,
    }
    found.conflicts = content.to_vec();
    Some(found)
}

/// The next part of the content: its size and its bytes.
fn take_part<'a>(content: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (size, rest) = content.split_first_chunk()?;
    let (part, rest) = rest.split_at_checked(u32::from_le_bytes(*size) as usize)?;
    *content = rest;
    Some(part)
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
    use std::path::Path;
    use std::sync::Arc;

    use proptest::prelude::*;
    use quire_journal::{Bookmark, Disk, MemoryDisk, Options, PublisherId};
    use quire_link::NamedInstance;

    use super::super::conflicts::{Conflicts, Side};
    use super::super::gap::Gap;
    use super::*;
    use crate::stats::MissingRange;

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
        assert_eq!(read(&journal), FoundCopies::default());
        let (gap, conflicts) = (vec![3], vec![1, 2]);
        let files = journal.sidecars();
        let order = Arc::new(Order::default());
        let file = |conflicts: &[u8]| CopiesFile {
            files: files.clone(),
            number: order.next(),
            order: Arc::clone(&order),
            saved: saved(),
            gap: gap.clone(),
            conflicts: conflicts.to_vec(),
        };
        let older = file(&[9]);
        file(&conflicts).write().unwrap();
        let expected =
            FoundCopies { saved: Some(saved()), gap: gap.clone(), conflicts, is_unreadable: false };
        assert_eq!(read(&journal), expected);
        older.write().unwrap();
        assert_eq!(read(&journal), expected, "a job is done later than a write of the broker");
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_a_missing_one() {
        let mut bytes = include_bytes!("../../../../tests/golden/copies-v3.place").to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        let expected = FoundCopies { is_unreadable: true, ..FoundCopies::default() };
        assert_eq!(read(&journal_with(&bytes)), expected);
        let journal = Journal::in_memory(&Options::default()).unwrap();
        for (version, content) in [(VERSION + 1, &[0_u8; 99][..]), (VERSION, &[1, 2])] {
            let head = SidecarHead { version, ..SidecarHead::default() };
            journal.sidecars().write(FILE, NAME, head, &[content]).unwrap();
            assert_eq!(read(&journal), expected);
        }
    }

    #[test]
    fn a_file_of_version_1_has_the_conflicts_only() {
        let journal = Journal::in_memory(&Options::default()).unwrap();
        let head = SidecarHead { version: VERSION_WITHOUT_MEMBERS, ..SidecarHead::default() };
        journal.sidecars().write(FILE, NAME, head, &[&[1, 2]]).unwrap();
        assert_eq!(read(&journal), FoundCopies { conflicts: vec![1, 2], ..FoundCopies::default() });
    }

    /// A journal whose directory has these bytes as the file.
    fn journal_with(bytes: &[u8]) -> Journal {
        let disk = MemoryDisk::new(1 << 20);
        let options = Options { segment_size: 64 * 1024, ..Options::default() };
        let directory = Path::new("journal");
        let (journal, _) = Journal::driven_by_hand(Arc::new(disk.clone()), directory, &options).unwrap();
        disk.create(&directory.join(FILE), bytes.len() as u64).unwrap().write_at(bytes, 0).unwrap();
        journal
    }

    /// Made from the description of each version in docs/journal-format.md.
    #[test]
    fn files_of_all_versions_are_read() {
        let older = read(&journal_with(include_bytes!("../../../../tests/golden/copies-v2.place")));
        assert_eq!(older.saved, Some(saved()));
        assert!(older.gap.is_empty());
        let conflicts = Conflicts::of_bytes(&older.conflicts);
        assert_eq!(conflicts.count(Side::Source, "b"), 1);
        let newer = read(&journal_with(include_bytes!("../../../../tests/golden/copies-v3.place")));
        assert_eq!((newer.saved, newer.conflicts), (older.saved, older.conflicts));
        let gap = Gap::of_bytes(&newer.gap);
        assert_eq!((gap.missing_count(), gap.accepted_count(), gap.total()), (3, 2, 9));
        let range = |first, last| vec![MissingRange { publisher: 7, first, last }];
        assert_eq!(gap.ranges(), (range(4, 6), range(10, 11)));
        assert_eq!(gap.encoded(), newer.gap);
    }

    proptest! {
        #[test]
        fn any_bytes_are_members_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            for version in VERSION_WITHOUT_MEMBERS..=VERSION {
                let _ = take_apart(SidecarHead { version, ..SidecarHead::default() }, &bytes);
            }
            if let Some(saved) = decode(&bytes, Position::ZERO) {
                prop_assert_eq!(decode(&encode(&saved), Position::ZERO), Some(saved));
            }
        }
    }
}
