//! The ledger reads the log: which messages and deletes are in it, and whether they are right.

use quire_journal::{Bookmark, Position, Reader, Record, RecordKind, TopicFilter};

use super::PREFIX;
use super::ledger::Ledger;
use super::log::{Change, Row};
use crate::world::Canary;

/// The last-value topics.
struct Names;

impl TopicFilter for Names {
    fn wants(&self, topic: &str) -> bool {
        topic.starts_with(PREFIX)
    }
}

impl Ledger {
    pub(super) fn read(&mut self, reader: &Reader, persisted: Position) -> Result<(), String> {
        let known = self.read_to;
        let mut cursor = reader.cursor(known);
        while let Some(batch) = cursor.next(persisted, &Names).map_err(|error| error.to_string())? {
            for record in batch.records().filter(|record| record.position > known) {
                if Names.wants(record.topic) {
                    self.take_record(&record)?;
                }
            }
        }
        self.read_to = persisted;
        Ok(())
    }

    fn take_record(&mut self, record: &Record<'_>) -> Result<(), String> {
        let topic = self.topics.iter().position(|topic| topic.name == record.topic);
        let topic = topic.ok_or("the log has an unknown last-value topic")?;
        let position = record.position.get();
        match record.kind {
            RecordKind::Publish => {
                let (value, key, quantity) = read_data(record.data).ok_or("the log has unknown data")?;
                let sent = self.messages.get_mut(value as usize);
                let sent = sent.ok_or_else(|| format!("the log has message {value}, which was not sent"))?;
                if (sent.topic, sent.key, sent.quantity) != (topic, key, quantity) {
                    return Err(format!("message {value} is changed in the log"));
                }
                if std::mem::replace(&mut sent.is_logged, true) {
                    return Err(format!("the log has message {value} of topic {topic} twice"));
                }
                let name = record.key().ok_or_else(|| format!("message {value} has no key in the log"))?;
                let expires = self.topics[topic].end_of(record.received().as_ns(), record.expiration_s);
                let log = &mut self.logs[topic];
                log.name(name, key)?;
                let row = Row { value, quantity, expires, position };
                let (timestamp_ns, bookmark) = (record.timestamp.as_ns(), bookmark_of(record));
                log.push(Change { position, timestamp_ns, bookmark, key, row: Some(row) });
                Ok(())
            }
            RecordKind::Delete if self.is_meant(Canary::ForgottenDelete, 20) => Ok(()),
            RecordKind::Delete => self.take_delete(topic, record),
            RecordKind::Acknowledge | RecordKind::Lease => Ok(()),
        }
    }

    fn take_delete(&mut self, topic: usize, record: &Record<'_>) -> Result<(), String> {
        let position = record.position;
        let names: Vec<_> = record.deleted_keys().collect();
        let log = &mut self.logs[topic];
        let deletion = self.deletes.get_mut(&(record.publisher.get(), record.sequence));
        let deletion = deletion.ok_or_else(|| format!("no publisher sent the delete at {position}"))?;
        if deletion.topic != topic || deletion.logged.replace(names.len() as u64).is_some() {
            return Err(format!("the delete at {position} is in the log twice, or in another topic"));
        }
        deletion.logged_life = self.life;
        let mut keys = Vec::new();
        for name in names {
            let key = log.key_of(name).ok_or_else(|| format!("{position} deletes an unknown key"))?;
            let row = log.state()[key as usize];
            if !row.is_some_and(|row| deletion.want.matches(key, row.quantity)) {
                let want = &deletion.want;
                return Err(format!(
                    "{position} deletes the record {row:?} of /k = {key}, which {want:?} is not"
                ));
            }
            keys.push(key);
        }
        for (key, row) in (0..).zip(log.state()) {
            let Some(row) = row else { continue };
            let was_there = deletion.sent.life == self.life && row.position <= deletion.sent.from;
            let is_named = deletion.want.matches(key, row.quantity) && row.expires.is_none();
            if was_there && is_named && !keys.contains(&key) {
                return Err(format!("the delete at {position} left the record {row:?} of /k = {key}"));
            }
        }
        self.played.deleted += keys.len() as u64;
        let (timestamp_ns, bookmark) = (record.timestamp.as_ns(), bookmark_of(record));
        for key in keys {
            log.push(Change { position: position.get(), timestamp_ns, bookmark, key, row: None });
        }
        Ok(())
    }
}

fn bookmark_of(record: &Record<'_>) -> Bookmark {
    Bookmark { publisher: record.publisher, sequence: record.sequence }
}

/// The number of a message, and its fields `/k` and `/q`.
pub(super) fn read_data(data: &[u8]) -> Option<(u64, u64, u64)> {
    let text = std::str::from_utf8(data).ok()?.strip_prefix(r#"{"v":"#)?;
    let (value, text) = text.split_once(r#","k":"#)?;
    let (key, text) = text.split_once(r#","q":"#)?;
    let (quantity, _) = text.split_once(',')?;
    Some((value.parse().ok()?, key.parse().ok()?, quantity.parse().ok()?))
}
