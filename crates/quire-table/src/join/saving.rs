//! The state of a join in snapshots: first the records of its topics, then its groups.

use quire_expression::filter::{Stored, put_bytes, put_number};
use quire_types::Timestamp;

use super::Joins;
use super::index::{Hash, JoinIndex, NONE, Record, Side};

/// The kinds of entries.
const GROUP: u8 = 0;
const RECORD: u8 = 1;

impl Joins {
    /// Begins a snapshot of the state of this call. The change before is done, and all records of
    /// groups were written.
    pub fn begin_saving(&mut self) {
        self.saving = Some(Box::default());
        self.maps.begin_saving();
    }

    /// As [`Groups::save`](crate::Groups::save).
    pub fn save(&mut self, effort: usize, out: &mut Vec<u8>) -> Option<u32> {
        if let Some(count) = self.save_records(effort, out) {
            return Some(count);
        }
        self.saving = None;
        let begin = out.len();
        out.push(GROUP);
        let count = self.maps.save(effort, out);
        if count.is_none() {
            out.truncate(begin);
        }
        count
    }

    /// Appends the next records; `None`: there are no more.
    fn save_records(&mut self, effort: usize, out: &mut Vec<u8>) -> Option<u32> {
        let Joins { sides, indexes, joins_of, saving, .. } = self;
        let saving = saving.as_mut()?;
        out.push(RECORD);
        let mut count = saving.take_copies(out);
        for _ in 0..effort.max(1) {
            let (source, place) = saving.next();
            let Some(side) = sides.get(source) else {
                if count == 0 {
                    out.pop();
                    return None;
                }
                break;
            };
            if place >= side.end() {
                saving.advance((source + 1, 0));
                continue;
            }
            if let Some(record) = side.used(place).filter(|_| !saving.is_known((source, place))) {
                store(source, place, record, side, &joins_of[source], indexes, out);
                count += 1;
            }
            saving.advance((source, place + 1));
        }
        Some(count)
    }

    /// The bytes that a snapshot holds.
    pub fn saving_size(&self) -> usize {
        self.saving.as_ref().map_or(0, |saving| saving.size()) + self.maps.saving_size()
    }

    /// Ends a snapshot before it is done.
    pub fn end_saving(&mut self) {
        self.saving = None;
        self.maps.end_saving();
    }

    /// A record changes; [`NONE`]: there is no record yet.
    pub(super) fn before_change(&mut self, source: usize, place: u32) {
        let Joins { sides, indexes, joins_of, saving, .. } = self;
        if let (Some(saving), Some(record)) = (saving, sides[source].get(place)) {
            saving.before_change((source, place), |out| {
                store(source, place, record, &sides[source], &joins_of[source], indexes, out);
                true
            });
        }
    }

    /// As [`Groups::restore`](crate::Groups::restore). `entries` are those of one call of
    /// [`save`](Self::save).
    pub fn restore(&mut self, entries: &[u8]) -> Option<()> {
        let mut stored = Stored(entries);
        let [kind] = stored.array()?;
        while !stored.is_empty() {
            match kind {
                GROUP => self.maps.restore(&self.config.projection, &mut stored)?,
                RECORD => self.restore_record(&mut stored)?,
                _ => return None,
            }
        }
        Some(())
    }

    fn restore_record(&mut self, stored: &mut Stored<'_>) -> Option<()> {
        let Joins { sides, indexes, joins_of, .. } = self;
        let source = usize::try_from(stored.number()?).ok()?;
        let records = sides.get_mut(source)?;
        let hash = hash(stored)?;
        let timestamp = Timestamp(u64::from_le_bytes(stored.array()?));
        let values = stored.bytes()?.into();
        if records.find(hash).is_some() {
            return None;
        }
        let place = records.add(Record { hash, values, timestamp });
        for (own, (join, side)) in joins_of[source].iter().enumerate() {
            let [has_key] = stored.array()?;
            if has_key != 0 {
                indexes[*join].link(self::hash(stored)?, place, *side, records, own);
            }
        }
        Some(())
    }
}

/// Appends a record: its topic, its hash, its time, its values, and its key of each join of the
/// topic.
fn store(
    source: usize,
    place: u32,
    record: &Record,
    side: &Side,
    joins: &[(usize, usize)],
    indexes: &[JoinIndex],
    out: &mut Vec<u8>,
) {
    debug_assert_ne!(place, NONE, "it is a record");
    put_number(source as u64, out);
    store_hash(record.hash, out);
    out.extend_from_slice(&record.timestamp.as_ns().to_le_bytes());
    put_bytes(&record.values, out);
    for (own, (join, _)) in joins.iter().enumerate() {
        let key = indexes[*join].hash(side.link(own, place).entry);
        out.push(key.is_some().into());
        key.into_iter().for_each(|key| store_hash(key, out));
    }
}

fn store_hash(hash: Hash, out: &mut Vec<u8>) {
    hash.iter().for_each(|half| out.extend_from_slice(&half.to_le_bytes()));
}

fn hash(stored: &mut Stored<'_>) -> Option<Hash> {
    Some([u64::from_le_bytes(stored.array()?), u64::from_le_bytes(stored.array()?)])
}
