//! Rebuilds the last-value topics from the log at the start (docs/last-values.md section 7).

use std::sync::Arc;

use quire_expression::topic::TopicPattern;
use quire_journal::{AllTopics, JournalError, Position, Record, RecordKind, RecoveryProgress, TopicFilter};
use quire_table::{KeyChange, KeyRule, Moment, PutOptions, Row, Stamp};

use super::container::Container;
use super::snapshot_file::{SnapshotParts, SnapshotSteps};
use super::{Arriving, DELETES_MAX, TableState, Tables, unkept};
use crate::Event;
use crate::context::Context;
use crate::topic::TableId;

/// The names of the topics that are read.
struct Names {
    names: Vec<Arc<str>>,
    patterns: Vec<TopicPattern>,
}

impl TopicFilter for Names {
    fn wants(&self, topic: &str) -> bool {
        self.names.iter().any(|name| **name == *topic)
            || self.patterns.iter().any(|pattern| pattern.matches(topic))
    }
}

impl Tables {
    /// Reads the records of the log.
    ///
    /// # Errors
    /// Damage in the log.
    pub(crate) fn recover(
        &mut self,
        cx: &mut Context,
        run_steps: &dyn Fn(SnapshotSteps) -> SnapshotParts,
        on_progress: &mut dyn FnMut(RecoveryProgress),
    ) -> Result<(), JournalError> {
        (0..self.all.len() as u32).for_each(|id| self.keep_order(cx, TableId(id)));
        let recovered = self.all.iter().filter(|state| state.definition.is_recovered);
        let read = self.containers.iter().filter(|container| container.definition.is_recovered);
        let pattern = |container: &Container| Some(container.definition.pattern.clone()?.1);
        let names = Names {
            names: recovered.map(|state| state.definition.name.clone()).collect(),
            patterns: read.filter_map(pattern).collect(),
        };
        if names.names.is_empty() && names.patterns.is_empty() {
            return Ok(());
        }
        self.load_snapshots(cx, run_steps)?;
        let first = cx.log.reader.first();
        let topics = self.all.iter().filter(|state| state.container.is_none());
        let topics = topics.map(|state| (&*state.definition, state.snapshot_position));
        let containers = self.containers.iter();
        let containers = containers.map(|container| (&container.definition, container.snapshot_position));
        let mut after = Position::new(u64::MAX);
        for (definition, position) in topics.chain(containers).filter(|(it, _)| it.is_recovered) {
            after = after.min(position);
            if position.next() < first {
                let topic = definition.name.to_string();
                cx.note(Event::RecordsMissing { topic, first: first.get() });
            }
        }
        self.begin_histories(cx)?;
        let limit = cx.log.journal.persisted();
        let segments = cx.log.reader.segments().into_iter();
        let ahead = segments.filter(|segment| segment.positions.is_some_and(|(_, last)| last > after));
        let total_bytes: u64 = ahead.map(|segment| segment.size).sum();
        let mut done_bytes = 0;
        let mut cursor = cx.log.reader.cursor(after);
        while let Some(batch) = cursor.next(limit, &names)? {
            batch.records().for_each(|record| self.restore(cx, &record));
            self.derive_all(cx);
            done_bytes = total_bytes.min(done_bytes + batch.size() as u64);
            on_progress(RecoveryProgress { done_bytes, total_bytes });
        }
        self.forget_empty(cx, true);
        (0..self.all.len() as u32).for_each(|id| self.note_expiry(TableId(id)));
        self.pin_log(cx);
        Ok(())
    }

    /// The history of a topic that is built from a log without its first records begins with the
    /// log.
    fn begin_histories(&mut self, cx: &Context) -> Result<(), JournalError> {
        let first = cx.log.reader.first();
        let is_late =
            |state: &&mut TableState| state.definition.is_recovered && state.snapshot_position.next() < first;
        for state in self.all.iter_mut().filter(is_late) {
            let mut cursor = cx.log.reader.cursor(Position::new(first.get() - 1)).sparingly();
            let batch = cursor.next(cx.log.journal.persisted(), &AllTopics)?;
            let begin = batch.and_then(|batch| Some(batch.records().next()?.timestamp));
            state.table.set_history_begin(begin.unwrap_or(cx.clock.now.wall));
        }
        Ok(())
    }

    /// The table of a topic that is read. It is created for a record that needs one.
    fn table_of(&mut self, cx: &mut Context, record: &Record<'_>) -> Option<TableId> {
        if let Some(id) = cx.topics.table(record.topic) {
            return Some(id);
        }
        let id = cx.topics.container_of(record.topic)?;
        let container = &self.containers[id.0 as usize];
        let is_needed = container.definition.is_recovered
            && (record.kind == RecordKind::Publish || record.kind == RecordKind::Delete && cx.log.has_links)
            && record.position > container.snapshot_position;
        // A topic that the log does not record as the container requires has no table.
        if is_needed { self.make_table(cx, id, &record.topic.into()).ok() } else { None }
    }

    /// The order of a record, if the changes of its topic are compared by their stamps. Records
    /// with stamps can be of a time when the server had replication.
    fn change_of<'a>(&mut self, cx: &Context, id: TableId, record: &Record<'a>) -> Option<KeyChange<'a>> {
        let table = &mut self.state(id).table;
        if !table.keeps_order() {
            record.attributes.stamp()?;
            table.keep_order(&cx.config.name, DELETES_MAX);
        }
        let instance = record.origin().instance.map_or("", |instance| instance.name);
        let stamp = Stamp { time: record.stamp(), instance };
        let (publisher, sequence, is_late) = (record.publisher, record.sequence, record.is_late);
        Some(KeyChange { stamp, publisher, sequence, is_late })
    }

    fn restore(&mut self, cx: &mut Context, record: &Record<'_>) {
        let Some(id) = self.table_of(cx, record) else { return };
        let definition = &self.all[id.0 as usize].definition;
        if !definition.is_recovered || record.position <= self.all[id.0 as usize].snapshot_position {
            return;
        }
        match record.kind {
            RecordKind::Publish if record.message_type == definition.message_type.code() => {
                let generated;
                let key = match record.key() {
                    Some(key) => key,
                    // The message was published before the topic kept last values. Without a
                    // supplied key, it does not become a record.
                    None if matches!(definition.key_rule, KeyRule::Supplied) => return,
                    None => match self.key_of(cx, id, &Arriving::of_record(record), record.timestamp) {
                        Ok(key) => {
                            generated = key;
                            &generated[..]
                        }
                        Err(_) => return,
                    },
                };
                let mut change = self.change_of(cx, id, record);
                if let Some(arrived) = change {
                    change = self.place_late(cx, id, key, arrived);
                    if change.is_none_or(|change| !self.state(id).table.admits(key, &change)) {
                        return;
                    }
                }
                let state = self.state(id);
                let expires = state.definition.expiration.end_of(record.received(), record.expiration_s);
                let row = Row {
                    key,
                    position: record.position,
                    timestamp: record.timestamp,
                    stamp: None,
                    expires,
                    correlation_id: record.correlation_id,
                    headers: record.headers(),
                    data: record.data,
                };
                let keeps_previous = state.reads_previous();
                let options = PutOptions { change, keeps_previous, ..PutOptions::default() };
                match state.table.put_with(&row, options) {
                    Ok(_) => self.derive_restored(id, Some(&row), record.timestamp),
                    Err(error) => cx.note(unkept(&state.definition, record.position, &error)),
                }
            }
            RecordKind::Delete => {
                let at = Moment { position: record.position, timestamp: record.timestamp };
                let change = self.change_of(cx, id, record);
                for key in record.deleted_keys() {
                    let placed = change.map(|change| self.place_late(cx, id, key, change));
                    let table = &mut self.state(id).table;
                    let is_removed = match placed {
                        Some(Some(change)) if table.admits(key, &change) => table.delete(key, at, &change),
                        Some(_) => false,
                        None => table.remove(key, at),
                    };
                    if is_removed {
                        self.derive_restored(id, None, record.timestamp);
                    }
                }
            }
            RecordKind::Publish | RecordKind::Acknowledge | RecordKind::Lease => (),
        }
    }
}
