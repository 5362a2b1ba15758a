//! Deletes. The records are found first, and then removed in portions. Each portion is one record
//! of the log.
//!
//! The records are those of the instant at which the command arrived. A record that another client
//! replaced since then is removed only when the filter of the delete matches the new message, too.

use std::collections::VecDeque;
use std::sync::Arc;

use quire_command::{Acks, Code, SowDelete};
use quire_expression::filter::Filter;
use quire_journal::{Position, put_deleted_key};
use quire_table::{self as table, KeyRule, Polled, ScanId};

use super::view::context_of_row;
use super::{Arriving, Tables};
use crate::context::Context;
use crate::entitlement::Grant;
use crate::reply::Refused;
use crate::session::{SessionId, Stall};
use crate::slice::PASS;
use crate::topic::TableId;

/// The most keys of one record of the log, and their bytes. The records of one portion are removed
/// in one piece of work.
const PORTION_COUNT_MAX: usize = 1024;
const PORTION_SIZE_MAX: usize = 64 * 1024;

/// Records that one delete examines before the next piece of work.
const EFFORT: usize = 256;

/// A delete in progress.
pub(super) struct Delete {
    command: u32,
    acks: Acks,
    sequence: u64,
    filter: Option<Filter>,
    parts: VecDeque<Part>,
    /// The parts before this one were found. Each topic is examined once, because a pattern may
    /// have a hundred thousand topics. No record is removed before all are found.
    found_count: usize,
    count: u64,
}

/// The records of one table.
struct Part {
    table: TableId,
    /// `None`: all records were found.
    scan: Option<ScanId>,
    found: VecDeque<(Box<[u8]>, Position)>,
}

/// Records that are removed together.
pub(crate) struct Portion {
    pub session: SessionId,
    pub topic: Arc<str>,
    /// The keys, as a record of the log has them.
    pub keys: Vec<u8>,
    /// The sequence of the delete, when this is its last portion. The earlier portions have
    /// sequences of the server.
    pub sequence: Option<u64>,
}

/// A delete that ended early, and was answered.
pub(crate) struct RefusedDelete {
    pub session: SessionId,
    pub sequence: u64,
}

/// The answer to a delete.
pub(crate) struct DeleteDone {
    pub command: u32,
    pub acks: Acks,
    pub count: u64,
}

impl Tables {
    /// Finds the records of a delete. The commands of the connection wait until they are removed.
    ///
    /// # Errors
    /// Why it is refused.
    pub(crate) fn begin_delete(
        &mut self,
        cx: &mut Context,
        id: SessionId,
        delete: &SowDelete<'_>,
        tables: &[TableId],
        grant: &Grant,
    ) -> Result<(), Refused> {
        let filter = self.open_delete(cx, id, delete, tables)?;
        let filter = cx.narrow(id, grant, filter)?;
        let mut parts = VecDeque::new();
        for table in tables {
            let keys = self.keys_of(cx, delete, *table)?;
            parts.push_back(self.begin_part(cx, *table, keys, filter.as_ref()));
        }
        let SowDelete { command, acks, sequence, .. } = *delete;
        self.deleting.insert(id, Delete { command, acks, sequence, filter, parts, found_count: 0, count: 0 });
        cx.stall(id, Stall::Deleting);
        cx.clock.wants_turn = true;
        Ok(())
    }

    /// The keys that a delete names; `None` = all keys.
    fn keys_of(
        &mut self,
        cx: &mut Context,
        delete: &SowDelete<'_>,
        table: TableId,
    ) -> Result<Option<Vec<Box<[u8]>>>, Refused> {
        let named = delete.keys.map(|keys| keys.iter().map(Box::<[u8]>::from).collect::<Vec<_>>());
        let Some(data) = delete.data else { return Ok(named) };
        let definition = &self.state(table).definition;
        if matches!(definition.key_rule, KeyRule::Supplied) {
            let reason = format!(
                "data: publishers supply the keys of {:?}, so a message does not select a record; use keys",
                definition.name
            );
            return Err(Refused::new(Code::BadOption, reason));
        }
        let key = self.key_of(cx, table, &Arriving::of_data(data), cx.clock.now.wall);
        let key = key.map_err(|reason| Refused::new(Code::BadMessage, format!("data: {reason}")))?;
        let key = Box::<[u8]>::from(&key[..]);
        Ok(Some(match named {
            Some(named) => named.into_iter().filter(|named| *named == key).take(1).collect(),
            None => vec![key],
        }))
    }

    fn begin_part(
        &mut self,
        cx: &mut Context,
        id: TableId,
        keys: Option<Vec<Box<[u8]>>>,
        filter: Option<&Filter>,
    ) -> Part {
        let copies_size_max = usize::try_from(cx.config.limits.max_query_copies).unwrap_or(usize::MAX);
        let query = table::Query {
            as_of: None,
            filter: filter.cloned(),
            keys,
            order: None,
            skip_n: 0,
            top_n: None,
            copies_size_max,
        };
        let scan = self.state(id).table.open(query, cx.clock.now.wall);
        Part { table: id, scan: Some(scan), found: VecDeque::new() }
    }

    /// The session has ended. Records that its delete has not removed remain.
    pub(super) fn forget_delete(&mut self, id: SessionId) {
        let Some(delete) = self.deleting.remove(&id) else { return };
        for part in delete.parts {
            if let Some(scan) = part.scan {
                self.state(part.table).table.close(scan);
            }
        }
    }

    /// The tables that deletes are reading.
    pub(super) fn deleting_tables(&self) -> Vec<TableId> {
        self.deleting.values().flat_map(|delete| &delete.parts).map(|part| part.table).collect()
    }

    /// Searches the records of the deletes, as long as the turn has time.
    fn find(&mut self, cx: &mut Context) {
        let deadline = cx.clock.slices.deadline(PASS);
        let Tables { all, deleting, .. } = self;
        let (mut failed, mut read) = (Vec::new(), Vec::new());
        'deletes: for (id, delete) in deleting {
            while let Some(part) = delete.parts.get_mut(delete.found_count) {
                while let Some(scan) = part.scan {
                    if cx.clock.slices.is_past(deadline) {
                        cx.clock.wants_turn = true;
                        break 'deletes;
                    }
                    let table = &mut all[part.table.0 as usize].table;
                    let polled = table.poll(scan, EFFORT, &mut |row| {
                        part.found.push_back((row.key.into(), row.position));
                        true
                    });
                    let limit = match polled {
                        Polled::More => continue,
                        Polled::Done { .. } => {
                            part.scan = None;
                            table.close(scan);
                            read.push(part.table);
                            continue;
                        }
                        Polled::TooManyCopies => "max_query_copies: too many records were replaced meanwhile",
                        Polled::TooMuchEffort | Polled::TooMuchHistory => {
                            "the filter takes more than the limit of effort for one record"
                        }
                    };
                    failed.push((*id, limit));
                    continue 'deletes;
                }
                delete.found_count += 1;
            }
        }
        for id in read {
            self.note_building(cx, id);
        }
        for (id, reason) in failed {
            let refused = Refused::new(Code::LimitExceeded, reason.to_owned());
            self.refuse_delete(cx, id, &refused);
        }
    }

    /// A delete that ended early since the last call.
    pub(crate) fn next_refused(&mut self, cx: &mut Context) -> Option<RefusedDelete> {
        self.find(cx);
        self.refused.pop()
    }

    /// Ends a delete early. The records that it has not removed remain.
    fn refuse_delete(&mut self, cx: &mut Context, id: SessionId, refused: &Refused) {
        let Some(delete) = self.deleting.get(&id) else { return };
        let (command, sequence) = (delete.command, delete.sequence);
        self.forget_delete(id);
        self.refused.push(RefusedDelete { session: id, sequence });
        cx.refuse_command(id, command, 0, refused);
        cx.resume_commands(id, Stall::Deleting);
    }

    /// The next records to remove; `None` when there are none in this turn.
    pub(crate) fn next_portion(&mut self, cx: &mut Context) -> Option<Portion> {
        if self.deleting.is_empty() {
            return None;
        }
        let Tables { all, deleting, arena, .. } = self;
        let (id, delete) =
            deleting.iter_mut().find(|(_, delete)| delete.found_count >= delete.parts.len())?;
        while delete.parts.len() > 1 && delete.parts.front().is_some_and(|part| part.found.is_empty()) {
            delete.parts.pop_front();
        }
        let is_last_part = delete.parts.len() == 1;
        let part = delete.parts.front_mut()?;
        let state = &all[part.table.0 as usize];
        let definition = &state.definition;
        // Earlier work has used its budget of effort, and a filter without effort matches no
        // record.
        arena.allow(u64::MAX);
        let (mut keys, mut count) = (Vec::new(), 0);
        while count < PORTION_COUNT_MAX
            && keys.len() < PORTION_SIZE_MAX
            && let Some((key, position)) = part.found.pop_front()
        {
            let Some(row) = state.table.get(&key) else { continue };
            let is_over = row.expires.is_some_and(|expires| expires <= cx.clock.now.wall);
            let mut still_matches = || {
                let context =
                    context_of_row(&definition.name, definition.message_type, &row, cx.clock.now.wall);
                delete.filter.as_ref().is_none_or(|filter| filter.matches_with(&context, arena))
            };
            if !is_over && (row.position == position || still_matches()) {
                put_deleted_key(&mut keys, &key);
                count += 1;
            }
        }
        let is_part_done = part.found.is_empty();
        let portion = Portion {
            session: *id,
            topic: definition.name.clone(),
            keys,
            sequence: (is_part_done && is_last_part).then_some(delete.sequence),
        };
        delete.count += count as u64;
        if is_part_done && !is_last_part {
            delete.parts.pop_front();
        }
        Some(portion)
    }

    /// The last portion of a delete was removed.
    pub(crate) fn finish_delete(&mut self, cx: &mut Context, id: SessionId) -> Option<DeleteDone> {
        let Delete { command, acks, count, .. } = self.deleting.remove(&id)?;
        cx.resume_commands(id, Stall::Deleting);
        Some(DeleteDone { command, acks, count })
    }
}
