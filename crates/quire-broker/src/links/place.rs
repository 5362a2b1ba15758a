//! The file `destinations.place` next to the log: where each destination is, so that a restart does
//! not send it everything again (docs/journal-format.md). A file that is missing or too old costs
//! messages that are sent twice and dropped there.

use std::time::Duration;

use quire_journal::{
    Bookmark, FoundSidecar, Journal, JournalError, Position, PublisherId, SidecarHead, Sidecars, Timestamp,
};
use quire_link::LinkPlace;
use quire_types::time::Instant;
use quire_wire::link::Mark;

use super::Links;
use super::copies_file::CopiesFile;
use crate::context::Context;

const FILE: &str = "destinations.place";
const NAME: &str = "destinations";
const VERSION: u32 = 4;

/// It has no numbers of logs.
const VERSION_WITHOUT_LOGS: u32 = 3;

/// It has no times of marks. Without a time, the position and the bookmark of a mark decide.
const VERSION_WITHOUT_TIMES: u32 = 2;

/// How often the file is written, at most.
const INTERVAL: Duration = Duration::from_secs(1);

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Saved {
    /// By the name of the destination.
    pub(super) places: Vec<(String, LinkPlace)>,
    /// The first position of the log that must stay for the destinations.
    pub(super) needs: Option<Position>,
}

/// The file, and what it holds.
pub(super) struct Places {
    files: Sidecars,
    saved: Saved,
    /// The number of the job that writes it.
    writing: Option<u64>,
    look_due: Option<Instant>,
}

/// A file that is ready to be written.
pub(crate) struct PlacesFile {
    files: Sidecars,
    saved: Saved,
    /// To be written before.
    copies: Option<CopiesFile>,
}

impl Places {
    pub(super) fn new(journal: &Journal) -> Self {
        Places { files: journal.sidecars(), saved: Saved::default(), writing: None, look_due: None }
    }

    /// Reads the places that an earlier run saved. Nothing when the file cannot be used.
    pub(super) fn read(&self) -> Vec<(String, LinkPlace)> {
        match self.files.read(FILE, NAME) {
            Ok(FoundSidecar::Whole(SidecarHead { version, .. }, content)) => {
                decode(version, &content).unwrap_or_default()
            }
            _ => Vec::new(),
        }
    }

    /// Whether it is time to look whether the destinations have moved.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.writing.is_none() && self.look_due.is_none_or(|due| due <= now)
    }

    /// Has the file written when the destinations have moved, after that of the copies: records
    /// before the saved place are not sent again, and their rejections do not come again.
    pub(super) fn save(&mut self, cx: &mut Context, saved: Saved, copies: Option<CopiesFile>) {
        self.look_due = Some(cx.clock.now.instant + INTERVAL);
        if saved != self.saved || copies.is_some() {
            let file = PlacesFile { files: self.files.clone(), saved: saved.clone(), copies };
            let written = |links: &mut Links, cx: &mut Context, _, found| {
                links.places_written(cx, matches!(found, Some(Ok(()))));
            };
            self.writing = Some(cx.begin_job(move |_| file.write(), written));
            self.saved = saved;
        }
    }

    /// The next turn looks.
    pub(super) fn look_now(&mut self) {
        self.look_due = None;
    }

    /// The file was written, or the write failed: the next one comes soon.
    pub(super) fn written(&mut self, is_written: bool) {
        self.writing = None;
        if !is_written {
            self.saved = Saved::default();
        }
    }

    /// When to look again.
    pub(super) fn due(&self) -> Option<Instant> {
        self.look_due.filter(|_| self.writing.is_none())
    }

    pub(super) fn write_now(&self, saved: Saved) -> Result<(), JournalError> {
        PlacesFile { files: self.files.clone(), saved, copies: None }.write()
    }
}

impl PlacesFile {
    /// Writes the file. Waits for the disk.
    pub(crate) fn write(self) -> Result<(), JournalError> {
        if let Some(copies) = &self.copies {
            copies.write()?;
        }
        let Saved { places, needs } = self.saved;
        let head = SidecarHead { version: VERSION, position: needs.unwrap_or_default(), needs };
        let mut content = Vec::new();
        for (name, LinkPlace { resume_from, mark, instance, log }) in &places {
            let instance = instance.as_deref().unwrap_or_default();
            for name in [name, instance] {
                content.extend_from_slice(&(name.len() as u16).to_le_bytes());
            }
            let mark = mark.map_or([0; 4], |Mark { position, bookmark, time }| {
                [position.get(), bookmark.publisher.get(), bookmark.sequence, time.as_ns()]
            });
            for number in [resume_from.get()].into_iter().chain(mark).chain([*log]) {
                content.extend_from_slice(&number.to_le_bytes());
            }
            content.extend_from_slice(name.as_bytes());
            content.extend_from_slice(instance.as_bytes());
        }
        self.files.write(FILE, NAME, head, &[&content])
    }
}

fn decode(version: u32, mut content: &[u8]) -> Option<Vec<(String, LinkPlace)>> {
    let count = match version {
        VERSION_WITHOUT_TIMES => 4,
        VERSION_WITHOUT_LOGS => 5,
        VERSION => 6,
        _ => return None,
    };
    let mut places = Vec::new();
    while !content.is_empty() {
        let (head, rest) = content.split_at_checked(2 + 2 + count * size_of::<u64>())?;
        let (sizes, numbers) = head.split_first_chunk::<4>()?;
        let mut sizes = sizes.as_chunks::<2>().0.iter().map(|bytes| u16::from_le_bytes(*bytes).into());
        let mut numbers = numbers.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
        let (resume_from, position) = (Position::new(numbers.next()?), numbers.next()?);
        let bookmark = Bookmark::new(PublisherId::new(numbers.next()?), numbers.next()?);
        let time = Timestamp::from_ns(numbers.next().unwrap_or_default());
        let log = numbers.next().unwrap_or_default();
        let (name, rest) = rest.split_at_checked(sizes.next()?)?;
        let (instance, rest) = rest.split_at_checked(sizes.next()?)?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
        let mark = (position > 0).then_some(Mark { position: Position::new(position), bookmark, time });
        let instance = text(instance).map(|name| Some(name).filter(|name| !name.is_empty()))?;
        places.push((text(name)?, LinkPlace { resume_from, mark, instance, log }));
        content = rest;
    }
    Some(places)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use quire_journal::{Disk, MemoryDisk, Options};

    #[test]
    fn what_is_saved_is_read_again() {
        let journal = Journal::in_memory(&Options::default()).unwrap();
        let places = Places::new(&journal);
        assert_eq!(places.read(), []);
        let bookmark = Bookmark::new(PublisherId::new(7), 9);
        let mark = Some(Mark { position: Position::new(3), bookmark, time: Timestamp::from_ns(11) });
        let instance = Some("east-2".to_owned());
        let east = LinkPlace { resume_from: Position::new(5), mark, instance, log: 12 };
        let saved = vec![("east".to_owned(), east), ("b".to_owned(), LinkPlace::default())];
        places.write_now(Saved { places: saved.clone(), needs: Some(Position::new(1)) }).unwrap();
        assert_eq!(places.read(), saved);
        assert_eq!(journal.sidecars().needs(), Some(Position::new(1)));
    }

    /// Made from the description of version 2 in docs/journal-format.md.
    #[test]
    fn a_file_of_version_2_is_read_with_marks_without_times() {
        let disk = MemoryDisk::new(1 << 20);
        let options = Options { segment_size: 64 * 1024, ..Options::default() };
        let directory = Path::new("journal");
        let (journal, _) = Journal::driven_by_hand(Arc::new(disk.clone()), directory, &options).unwrap();
        let bytes = include_bytes!("../../../../tests/golden/destinations-v2.place");
        let file = disk.create(&directory.join(FILE), bytes.len() as u64).unwrap();
        file.write_at(bytes, 0).unwrap();
        let bookmark = Bookmark::new(PublisherId::new(7), 9);
        let mark = Some(Mark { position: Position::new(3), bookmark, time: Timestamp::default() });
        let instance = Some("east-2".to_owned());
        let east = LinkPlace { resume_from: Position::new(5), mark, instance, log: 0 };
        let saved = [("east".to_owned(), east), ("b".to_owned(), LinkPlace::default())];
        assert_eq!(Places::new(&journal).read(), saved);
    }
}
