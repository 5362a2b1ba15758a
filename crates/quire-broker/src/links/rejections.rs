//! Messages of two runs with one bookmark. The links keep their bookmarks, and tell the instance
//! that sent the message (docs/internals/copies.md, *Decisions*).

use quire_journal::{AllTopics, Bookmark, JournalError, Position, Reader, RecordKind};
use quire_link::{RecordHere, hash_of};

use super::conflicts::Side;
use super::{Arrived, Links};
use crate::Event;
use crate::context::Context;
use crate::log::Log;

/// The instances that the messages came from; those that were published here came from none.
type Origins = Vec<(Bookmark, u64, Box<str>)>;

impl Links {
    /// A message of a source was not recorded, because another one has its bookmark here. `run` is
    /// 0 when the message counts as a duplicate nevertheless.
    pub(crate) fn note_conflict(
        &mut self,
        cx: &mut Context,
        arrived: &Arrived,
        bookmark: Bookmark,
        run: u64,
    ) {
        let source = arrived.source().name;
        let Some(new) = self.conflicts.note(Side::Source, source, bookmark, run) else { return };
        if new.is_first_of_publisher {
            cx.note(Event::LinkConflict { source: source.to_owned(), bookmark, count: new.count });
        }
    }

    /// A destination has rejected messages of this instance.
    pub(super) fn note_rejected_by(
        &mut self,
        cx: &mut Context,
        number: usize,
        rejected: Vec<(Bookmark, u64)>,
    ) {
        let name = &self.outgoing[number].definition.settings.name;
        for (bookmark, run) in &rejected {
            if *run != 0 {
                cx.log.replicated.reject(*bookmark, *run);
            }
            let Some(new) = self.conflicts.note(Side::Destination, name, *bookmark, *run) else { continue };
            new.forgotten.into_iter().for_each(|oldest| cx.log.replicated.forget_rejected(oldest));
            if new.is_first_of_publisher {
                let (destination, bookmark) = (name.clone(), *bookmark);
                cx.note(Event::LinkRejected { destination, bookmark, count: new.count });
            }
        }
        let rejected: Vec<_> = rejected.into_iter().filter(|(_, run)| *run != 0).collect();
        self.rejections.extend_from_slice(&rejected);
        let reader = cx.log.reader.clone();
        cx.begin_job(
            move |_| find_origins(&reader, &rejected),
            move |links: &mut Links, cx, _, found| {
                // Without the record, it is not known which instance sent it.
                links.pass_on(cx, found.and_then(Result::ok).unwrap_or_default());
            },
        );
    }

    /// Tells the instances that the messages came from.
    fn pass_on(&mut self, cx: &mut Context, origins: Origins) {
        for (bookmark, run, instance) in origins {
            self.conflicts.pass_to(bookmark, run, &instance);
            let connections = self.connections.iter_mut().map(|connection| &mut connection.incoming);
            for incoming in connections.filter(|incoming| incoming.is_from(Some(&instance))) {
                incoming.reject(cx, bookmark, run);
            }
        }
    }

    /// The rejections that publishers were not told of, each with the run.
    pub(crate) fn take_rejections(&mut self) -> Vec<(Bookmark, u64)> {
        std::mem::take(&mut self.rejections)
    }

    /// A record was appended that the journal does not know without a look into the log. Such
    /// records are kept until the log can be searched for them.
    pub(crate) fn note_recent(
        &mut self,
        log: &Log,
        position: Position,
        bookmark: Bookmark,
        (run, kind, topic, data): (u64, RecordKind, &str, &[u8]),
    ) {
        let answers = self.connections.iter().filter_map(|each| each.incoming.looked_up_through());
        let record = RecordHere { run, hash: hash_of(kind, topic, data) };
        self.recent.add(position, bookmark, record, answers.chain([log.journal.persisted()]).min());
    }

    /// One of the last records of the log, by its bookmark.
    pub(crate) fn recent(&self, bookmark: Bookmark) -> Option<RecordHere> {
        self.recent.get(bookmark)
    }
}

/// Reads the records of this run, and gives the instances that have sent them.
fn find_origins(reader: &Reader, rejected: &[(Bookmark, u64)]) -> Result<Origins, JournalError> {
    let mut origins = Vec::new();
    for (bookmark, run) in rejected {
        let Some(position) = reader.find(*bookmark)? else { continue };
        let mut cursor = reader.cursor(Position::new(position.get() - 1)).sparingly();
        let Some(batch) = cursor.next(position, &AllTopics)? else { continue };
        let record = batch.records().find(|record| record.position == position && record.run() == *run);
        if let Some(source) = record.as_ref().and_then(|record| record.source()) {
            origins.push((*bookmark, *run, source.instance.name.into()));
        }
    }
    Ok(origins)
}
