//! One read of the log for a replay, as a value that can run on any thread.

use crate::scan::{context_of, facts_of, message_of};
use quire_journal::{Batch, Cursor, JournalError, Position, Record, RecordKind, Timestamp, TopicFilter};

use super::ReplayPosition;
use crate::scan::SCAN_SIZE_MAX;
use crate::subscription::{Member, Members, Sent};
use quire_command::{KEY_SIZE_MAX, Message, MessageKind, put_key};
use quire_expression::filter::EVALUATION_EFFORT_MAX;
use quire_expression::message_type::{Arena, MessageType};

/// The place of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Located {
    /// The range begins after this position; `None` when the log contains none of the bookmarks.
    pub after: Option<Position>,
    /// The last position of the range; `None` when the range has no end, or its end is not known
    /// yet.
    pub until: Option<Position>,
}

/// Read records up to `limit`, from `place` on, for `members`.
pub struct Reading {
    pub cursor: Cursor,
    pub place: ReplayPosition,
    pub limit: Position,
    pub members: Members,
    /// Bytes of frames after which to stop.
    pub chunk_size_max: usize,
    /// Whether the messages are to be delivered one by one.
    pub is_itemized: bool,
    /// The current time for `NOW`-like functions of a filter.
    pub now: Timestamp,
    /// For a read on the loop: the effort that all filters together may take. On another thread,
    /// each filter may take [`EVALUATION_EFFORT_MAX`] for each message.
    pub inline_effort: Option<u64>,
}

/// The result of a read.
pub struct Found {
    pub chunk: Chunk,
    /// Where reading continues, or why that is impossible. The messages before the damage are in
    /// the chunk.
    pub cursor: Result<Cursor, JournalError>,
    /// The member whose filter takes too much effort for the message after the chunk, and the size
    /// of that message in bytes.
    pub costly: Option<(usize, usize)>,
    /// The read ran on the loop.
    pub was_inline: bool,
}

/// Frames ready to be sent.
#[derive(Debug, Default)]
pub struct Chunk {
    pub frames: Vec<u8>,
    /// The messages of each member. Empty when they are delivered one by one.
    pub sent: Vec<Sent>,
    /// Bytes of the frames as they were read.
    pub size: usize,
    /// The place after them.
    pub next: ReplayPosition,
    /// A description of each message, when they are delivered one by one.
    pub items: Vec<Item>,
    /// The conflation keys of the items, one after the other.
    pub keys: Vec<u8>,
    /// The number of items that were delivered.
    pub taken_count: usize,
}

/// One message of a chunk.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    /// The index of the member that it is for.
    pub member: usize,
    /// Where its conflation key ends, if that member conflates.
    pub key_end: usize,
    /// Where its frame ends.
    pub frame_end: usize,
    /// Bytes of its data.
    pub data_size: usize,
    pub timestamp: Timestamp,
    /// The place after it.
    pub place: ReplayPosition,
}

impl Reading {
    pub fn run(self, arena: Arena) -> Found {
        let Reading { mut cursor, place, limit, members, chunk_size_max, is_itemized, now, inline_effort } =
            self;
        let mut matcher = Matcher::new(&members, now, inline_effort, arena);
        let sent = if is_itemized { Vec::new() } else { vec![Sent::default(); members.len()] };
        let mut chunk = Chunk { next: place, sent, ..Chunk::default() };
        let mut scanned_size = 0;
        let cursor = loop {
            // A replay with small chunks, because of other replays or of a rate, must also limit
            // its read-ahead. Data that is read beyond the chunk is read again for the next chunk.
            cursor.set_read_step(chunk_size_max.saturating_sub(chunk.frames.len()));
            let batch = match cursor.next(limit, &Wanted(&members)) {
                Ok(Some(batch)) => batch,
                Ok(None) => {
                    chunk.next = chunk.next.max(ReplayPosition { after: limit, served: 0 });
                    break Ok(cursor);
                }
                Err(error) => break Err(error),
            };
            scanned_size += batch.size();
            let is_full = !chunk.take(&batch, limit, &mut matcher, chunk_size_max, is_itemized);
            if is_full || scanned_size >= SCAN_SIZE_MAX {
                break Ok(cursor);
            }
        };
        // A replay may hold its cursor for a long time, and there may be thousands of replays.
        let cursor = cursor.map(|mut cursor| {
            cursor.rest_at(chunk.next.after);
            cursor
        });
        chunk.size = chunk.frames.len();
        Found { chunk, cursor, costly: matcher.costly, was_inline: inline_effort.is_some() }
    }
}

impl Chunk {
    /// Takes the wanted records of a batch. Returns false when the chunk became full, or `limit`
    /// was reached, within the batch.
    fn take(
        &mut self,
        batch: &Batch,
        limit: Position,
        matcher: &mut Matcher<'_>,
        size_max: usize,
        is_itemized: bool,
    ) -> bool {
        for record in batch.records() {
            if record.position <= self.next.after {
                continue;
            }
            if record.position > limit {
                return false;
            }
            if record.position.get() > self.next.after.get() + 1 {
                // No member wants the partly served record any more, so it was skipped.
                self.next.served = 0;
            }
            let members = matcher.members;
            while (self.next.served as usize) < members.len() {
                let member = self.next.served as usize;
                let is_wanted = matcher.wants(member, &record);
                if matcher.costly.is_some() {
                    return false;
                }
                self.next.served += 1;
                if !is_wanted {
                    continue;
                }
                let Member { number, encoder, .. } = members[member];
                let message = message_of(&record, number);
                let message = match record.kind {
                    RecordKind::Delete => matcher.delete(&record, message),
                    _ => Message { data: matcher.select(member, &record), ..message },
                };
                let data_size = message.data.len();
                let size_before = self.frames.len();
                encoder.put_message(&message, &mut self.frames);
                if let Some(sent) = self.sent.get_mut(member) {
                    sent.note(1, self.frames.len() - size_before);
                }
                if self.next.served as usize == members.len() {
                    self.next = ReplayPosition { after: record.position, served: 0 };
                }
                if is_itemized {
                    matcher.write_key(member, &record, &mut self.keys);
                    self.items.push(Item {
                        member,
                        key_end: self.keys.len(),
                        frame_end: self.frames.len(),
                        data_size,
                        timestamp: record.timestamp,
                        place: self.next,
                    });
                }
                if self.frames.len() >= size_max {
                    return false;
                }
                if self.next.after == record.position {
                    break;
                }
            }
            self.next = ReplayPosition { after: record.position, served: 0 };
        }
        true
    }
}

/// Decides which members want a record. It caches the answers about the topic, because successive
/// records usually have the same topic.
struct Matcher<'a> {
    members: &'a [Member],
    now: Timestamp,
    topic: String,
    topic_wanted: Vec<bool>,
    /// Memory for the evaluation of filters.
    arena: Arena,
    /// Memory for the selected parts of a message.
    selected: Vec<u8>,
    /// Whether the effort is for all messages together.
    is_inline: bool,
    /// The member whose filter had too small a budget of effort left, and the size of the message.
    costly: Option<(usize, usize)>,
}

impl<'a> Matcher<'a> {
    fn new(members: &'a [Member], now: Timestamp, inline_effort: Option<u64>, mut arena: Arena) -> Self {
        arena.allow(inline_effort.unwrap_or(EVALUATION_EFFORT_MAX));
        Matcher {
            members,
            now,
            topic: String::new(),
            topic_wanted: vec![false; members.len()],
            arena,
            selected: Vec::new(),
            is_inline: inline_effort.is_some(),
            costly: None,
        }
    }

    fn wants(&mut self, member: usize, record: &Record<'_>) -> bool {
        let is_delete = record.kind == RecordKind::Delete;
        if record.kind != RecordKind::Publish
            && !(is_delete && self.members[member].wants_deletions && deleted(record).next().is_some())
        {
            return false;
        }
        if self.topic != record.topic {
            self.topic.clear();
            self.topic.push_str(record.topic);
            for (wanted, member) in self.topic_wanted.iter_mut().zip(self.members) {
                *wanted = member.wanted.selector.matches(record.topic);
            }
        }
        let Member { wanted, after, .. } = &self.members[member];
        let is_left_out = record.position <= *after || wanted.leaves_out(|| facts_of(record, self.now));
        if !self.topic_wanted[member] || is_left_out {
            return false;
        }
        match &wanted.filter {
            // A delete has no content, so it passes every filter.
            _ if is_delete => true,
            None => true,
            Some(filter) => {
                let Some(context) = context_of(record, self.now) else { return false };
                if !self.is_inline {
                    self.arena.allow(EVALUATION_EFFORT_MAX);
                }
                let decided = filter.decide(&context, &mut self.arena);
                if decided.is_none() {
                    self.costly = Some((member, record.data.len()));
                }
                decided == Some(true)
            }
        }
    }

    /// The part of a record that a member wants.
    fn select<'r>(&'r mut self, member: usize, record: &Record<'r>) -> &'r [u8] {
        let select = self.members[member].wanted.select.as_ref();
        match select.and_then(|select| select.of_topic(record.topic)) {
            None => record.data,
            Some(select) => {
                let message_type = MessageType::from_code(record.message_type);
                select.apply(message_type, record.data, &mut self.arena, &mut self.selected)
            }
        }
    }

    /// The message about a delete: its first key, and the others as data.
    fn delete<'r>(&'r mut self, record: &Record<'r>, message: Message<'r>) -> Message<'r> {
        self.selected.clear();
        let mut keys = deleted(record);
        let key = keys.next().unwrap_or_default();
        keys.for_each(|key| put_key(&mut self.selected, key));
        Message { kind: MessageKind::Delete, key, data: &self.selected, ..message }
    }

    fn write_key(&mut self, member: usize, record: &Record<'_>, keys: &mut Vec<u8>) {
        if let Some(key) = &self.members[member].conflation_key {
            let context = context_of(record, self.now);
            key.write(record.topic, context.as_ref(), &mut self.arena, keys);
        }
    }
}

/// The keys of a delete that a message can have.
fn deleted<'a>(record: &Record<'a>) -> impl Iterator<Item = &'a [u8]> {
    record.deleted_keys().filter(|key| (1..=KEY_SIZE_MAX).contains(&key.len()))
}

/// The topics that any member wants.
struct Wanted<'a>(&'a [Member]);

impl TopicFilter for Wanted<'_> {
    fn wants(&self, topic: &str) -> bool {
        self.0.iter().any(|member| member.wanted.selector.matches(topic))
    }
}
