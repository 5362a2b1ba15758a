//! Queues that views read: the messages that enter and leave them, with their data
//! (docs/views.md section 4).
//!
//! The engine makes a move when a message begins to wait, and when it is no longer waiting or
//! leased. A move has no data. So a message that enters is read from the recent messages, or
//! fetched, and the moves after it wait. The run loop takes the moves in the phase of the views,
//! and passes them to the tables that the views read.

use std::collections::{BTreeMap, VecDeque};

use quire_journal::{Bookmark, JournalError, Position, Record};

use super::QueueService;
use super::jobs::Lookup;
use crate::context::Context;
use crate::topic::TableId;
use quire_queue::{Move, MoveKind, QueueId};

/// Messages of one portion of those that a queue has when a view begins to read it.
const PORTION: usize = 256;

/// The queues that views read.
#[derive(Default)]
pub(super) struct Sources {
    tables: BTreeMap<QueueId, TableId>,
    /// Those whose messages are not all moved yet.
    loading: VecDeque<QueueId>,
    /// As of [`of_queues_version`](crate::topic::TopicTable::of_queues_version).
    version: u64,
}

/// The effect of a move on the table of its queue.
pub(crate) enum Moved<'a> {
    Entered {
        table: TableId,
        bookmark: Option<Bookmark>,
        record: Record<'a>,
    },
    Left {
        table: TableId,
        position: Position,
        bookmark: Option<Bookmark>,
    },
    /// The table has all messages.
    Complete {
        table: TableId,
    },
    /// None. The next messages of a queue were looked at.
    Looked,
}

/// Takes a message that a queue has at a start, for its table.
type EachQueued<'a> = dyn FnMut(&mut Context, TableId, Option<Bookmark>, &Record<'_>) + 'a;

impl QueueService {
    /// Follows the queues that views read now.
    pub(crate) fn follow_sources(&mut self, cx: &Context) {
        let version = cx.topics.of_queues_version();
        if self.sources.version == version {
            return;
        }
        self.sources.version = version;
        let wanted = cx.topics.of_queues().into_iter();
        let wanted: BTreeMap<QueueId, TableId> =
            wanted.filter_map(|(name, table)| Some((self.find(&name)?, table))).collect();
        let Sources { tables, loading, .. } = &mut self.sources;
        for (queue, table) in tables.iter() {
            if wanted.get(queue) != Some(table) {
                self.engine.unfollow(*queue);
                loading.retain(|other| other != queue);
            }
        }
        for (queue, table) in &wanted {
            if tables.get(queue) != Some(table) {
                self.engine.follow(*queue);
                loading.push_back(*queue);
            }
        }
        *tables = wanted;
    }

    /// Whether a move can be taken now.
    pub(crate) fn has_moves(&self) -> bool {
        match self.engine.next_move() {
            Some(Move { kind: MoveKind::Entered, position, .. }) => {
                self.recent.has(position) || self.unreadable.contains(&position)
            }
            Some(_) => true,
            None => !self.sources.loading.is_empty(),
        }
    }

    /// The bytes of the moves that were not taken.
    pub(crate) fn moves_size(&self) -> usize {
        self.engine.move_count() * size_of::<Move>()
    }

    /// Takes the next move; `None`: there is none, or its message is being fetched.
    pub(crate) fn next_move(&mut self, cx: &mut Context) -> Option<Moved<'_>> {
        let Some(Move { queue, position, bookmark, kind }) = self.engine.next_move() else {
            let queue = *self.sources.loading.front()?;
            if self.engine.follow_next(queue, PORTION) {
                self.sources.loading.pop_front();
            }
            return Some(Moved::Looked);
        };
        let is_known = self.unreadable.contains(&position) || self.recent.has(position);
        if kind == MoveKind::Entered && !is_known {
            self.fetch(cx, position, false);
            return None;
        }
        self.engine.pop_move();
        let Some(table) = self.sources.tables.get(&queue).copied() else { return Some(Moved::Looked) };
        match kind {
            MoveKind::Left => Some(Moved::Left { table, position, bookmark }),
            MoveKind::Complete => Some(Moved::Complete { table }),
            MoveKind::Entered => {
                if let Some(after) = self.recent.take_ahead(position) {
                    self.fetch(cx, after.next(), true);
                }
                // A message that cannot be read is left out. It was logged.
                let record = self.recent.get(position);
                Some(record.map_or(Moved::Looked, |record| Moved::Entered { table, bookmark, record }))
            }
        }
    }

    /// At a start: passes all messages of the queues that views read to `each`. Waits for the disk.
    ///
    /// # Errors
    /// Damage in the log.
    pub(crate) fn load_sources(
        &mut self,
        cx: &mut Context,
        each: &mut EachQueued<'_>,
    ) -> Result<(), JournalError> {
        self.follow_sources(cx);
        for queue in std::mem::take(&mut self.sources.loading) {
            let Some(table) = self.sources.tables.get(&queue).copied() else { continue };
            let mut lookup = Lookup::new(cx.log.reader.clone());
            let mut is_done = false;
            while !is_done {
                is_done = self.engine.follow_next(queue, PORTION);
                while let Some(Move { position, bookmark, kind, .. }) = self.engine.next_move() {
                    self.engine.pop_move();
                    if kind == MoveKind::Entered
                        && let Some(record) = lookup.get(position)?
                    {
                        each(cx, table, bookmark, &record);
                    }
                }
            }
        }
        Ok(())
    }
}
