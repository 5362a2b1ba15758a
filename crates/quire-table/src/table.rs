//! The centre of the crate: every change of a row and every scan passes through [`Table`].

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{RowError, TableConfigError};
use crate::history::{AsOf, BeforeHistory, History, HistoryConfig, KnownHistory, Moment};
use crate::index::{ByKey, EntryReader, Indexes, RowEntries, Spelling};
use crate::key::KeyFields;
use crate::key_index::{KeyIndex, hash_of};
use crate::query::{Polled, Query, ScanId};
use crate::restore::{RowReader, SnapshotPiece};
use crate::result_page::{Change, Move, Page, PageId, PageQuery, Shown, SlotMove};
use crate::row::{Head, Row};
use crate::rows::{Previous, Rows};
use crate::scan::{Scan, Source, row_effort_max};
use crate::slots::{IndexLimits, Slots};
use crate::snapshot::BadSnapshot;
use crate::stamp::{KeyChange, KeyOrder, KnownChange, KnownOrder, RowStamp};
use quire_expression::filter::Filter;
use quire_expression::message_type::{Arena, MessageType};
use quire_journal::{Memory, Position, Timestamp};
use smallvec::SmallVec;

/// The parts of a table that scans and pages read while the caller changes others.
macro_rules! source_of {
    ($table:expr) => {
        Source {
            rows: &$table.rows,
            history: $table.history.as_ref(),
            indexes: &$table.indexes,
            topic: &$table.name,
            message_type: $table.message_type,
        }
    };
}

/// The settings of a table.
#[derive(Clone, Debug)]
pub struct TableConfig {
    /// The name of the topic.
    pub name: String,
    /// The type of its messages.
    pub message_type: MessageType,
    /// The fields from which the caller generates the keys; `None`: publishers supply the keys. A
    /// filter with values for all key fields finds its rows through their keys.
    pub key: Option<KeyFields>,
    /// Lists of fields: an index finds the rows that have given texts in all fields of one list.
    pub hash_indexes: Vec<Vec<String>>,
    /// Fields: an index finds the rows whose value is in a range.
    pub ordered_indexes: Vec<String>,
    /// How much of its history the table keeps; `None` = none.
    pub history: Option<HistoryConfig>,
    /// How queries use indexes.
    pub limits: IndexLimits,
}

/// The newest row of each key of one last-value topic.
///
/// A change ([`put`](Table::put), [`remove`](Table::remove), [`pop_expired`](Table::pop_expired))
/// keeps the row that it replaces in [`previous`](Table::previous) until the next change, unless
/// the caller of [`put_with`](Table::put_with) does not need it. A scan begins with
/// [`open`](Table::open). The caller then calls [`poll`](Table::poll) until the result is complete,
/// with any changes in between, and [`close`](Table::close) at the end.
///
/// A page begins with [`open_page`](Table::open_page). The caller calls
/// [`poll_page`](Table::poll_page) until the page is complete, and reads its rows with
/// [`open_shown`](Table::open_shown). After each later change, [`moves`](Table::moves) has the
/// changes of all pages.
#[derive(Debug)]
pub struct Table {
    name: String,
    message_type: MessageType,
    rows: Rows,
    keys: KeyIndex,
    by_key: Option<ByKey>,
    indexes: Indexes,
    limits: IndexLimits,
    /// The rows with a lifetime, by its end.
    lifetimes: BTreeSet<(Timestamp, u32)>,
    /// The row that the last change replaced.
    previous: Previous,
    history: Option<History>,
    /// When changes come from several instances.
    order: Option<Box<KeyOrder>>,
    scans: BTreeMap<ScanId, Scan>,
    next_scan: ScanId,
    pages: BTreeMap<PageId, Page>,
    next_page: PageId,
    /// The moves of the last change.
    moves: Vec<(PageId, SlotMove)>,
    /// Counts scans: a slot has the count of its last change.
    epoch: u32,
    arena: Arena,
}

/// Where the row with a key probably is ([`Table::look_ahead`]).
#[derive(Clone, Copy, Debug)]
pub struct KeyPlace {
    hash: u32,
    slot: Option<u32>,
}

/// Facts about a change, from the caller of [`Table::put_with`].
#[derive(Clone, Copy, Debug, Default)]
pub struct PutOptions<'a> {
    /// The place of the key of the row, from [`Table::look_ahead`] of the same table. While it is
    /// right, the key is not searched again.
    pub place: Option<KeyPlace>,
    /// The spelling of the key fields, when [`KeyFields::key_of`] made the key from the data of the
    /// row ([`Key::spelling`](crate::Key::spelling)): they are not read again. `None`: the table
    /// reads them.
    pub spelling: Option<Spelling>,
    /// The entries of the row in the indexes ([`Table::entry_reader`]). `None`: the table reads
    /// them.
    pub entries: Option<&'a RowEntries>,
    /// Whether [`Table::previous`] returns the replaced row. Without it, the row is not copied.
    pub keeps_previous: bool,
    /// The order of the change, for a table that [keeps the order](Table::keep_order). The caller
    /// has asked [`Table::admits`].
    pub change: Option<KeyChange<'a>>,
}

/// The figures of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableStats {
    /// Rows.
    pub rows: usize,
    /// Bytes of all rows: keys, data and facts.
    pub rows_size: usize,
    /// Bytes of memory for rows and indexes, without the copies of scans.
    pub memory_size: usize,
    /// Rows that have a lifetime.
    pub lifetimes: usize,
    /// Open scans.
    pub scans: usize,
    /// Bytes of copies and sort keys that scans and pages hold.
    pub copies_size: usize,
    /// Open pages.
    pub pages: usize,
    /// Versions of the history.
    pub versions: usize,
    /// Bytes of the versions.
    pub history_size: usize,
    /// Deletes that the order of changes remembers.
    pub deletes: usize,
    /// Indexes that queries made, and that they use.
    pub made_indexes: usize,
    /// Indexes that are being built.
    pub building_indexes: usize,
}

impl Table {
    /// An empty table. Its rows will be in `memory`.
    ///
    /// # Errors
    /// [`TableConfigError`] for indexes that are not possible.
    pub fn new(config: TableConfig, memory: &Memory) -> Result<Table, TableConfigError> {
        let indexes = Indexes::new(&config, memory)?;
        Ok(Table {
            name: config.name,
            message_type: config.message_type,
            rows: Rows::new(memory),
            keys: KeyIndex::new(),
            by_key: config.key.map(|fields| ByKey::new(fields, memory)),
            indexes,
            limits: config.limits,
            lifetimes: BTreeSet::new(),
            previous: Previous::default(),
            history: config.history.map(History::new),
            order: None,
            scans: BTreeMap::new(),
            next_scan: ScanId(0),
            pages: BTreeMap::new(),
            next_page: PageId(0),
            moves: Vec::new(),
            epoch: 0,
            arena: Arena::default(),
        })
    }

    /// Moves the rows of at most `page_count_max` pages with many holes together. Returns the bytes
    /// of memory that this frees; 0: there are none to free.
    pub fn compact(&mut self, page_count_max: usize) -> usize {
        self.rows.squeeze(page_count_max)
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The figures of the table.
    pub fn stats(&self) -> TableStats {
        let lifetimes_size = self.lifetimes.len() * LIFETIME_SIZE;
        TableStats {
            rows: self.rows.len(),
            rows_size: self.rows.size(),
            memory_size: self.rows.memory_size()
                + self.keys.memory_size()
                + self.by_key.as_ref().map_or(0, ByKey::memory_size)
                + self.indexes.memory_size()
                + lifetimes_size,
            lifetimes: self.lifetimes.len(),
            scans: self.scans.len(),
            copies_size: self.scans.values().map(Scan::held_size).sum::<usize>()
                + self.pages.values().map(Page::size).sum::<usize>(),
            pages: self.pages.len(),
            versions: self.history.as_ref().map_or(0, History::len),
            history_size: self.history.as_ref().map_or(0, History::size),
            deletes: self.order.as_ref().map_or(0, |order| order.deleted_count()),
            made_indexes: self.indexes.made_count() - usize::from(self.is_building_index()),
            building_indexes: self.is_building_index().into(),
        }
    }

    /// The row with a key.
    pub fn get(&self, key: &[u8]) -> Option<Row<'_>> {
        self.slot_of(key, hash_of(key)).and_then(|slot| self.rows.row(slot))
    }

    /// Finds the place of a key that [`put_with`](Self::put_with) gets soon. The processor begins
    /// to read the row of the key from memory, at most `size` bytes. The wait for this memory is
    /// the largest part of the time of a put.
    pub fn look_ahead(&self, key: &[u8], size: usize) -> KeyPlace {
        let hash = hash_of(key);
        let slot = self.keys.find(hash, |_| true);
        self.prefetch_row(KeyPlace { hash, slot }, size)
    }

    /// As [`look_ahead`](Self::look_ahead), for several keys with their sizes. `each` gets their
    /// places in the same order. The processor waits for the memory of all of them at once: first
    /// for their lines of the index, then for their slots, then for their rows.
    pub fn look_all_ahead<'k>(
        &self,
        keys: impl Iterator<Item = (&'k [u8], usize)>,
        mut each: impl FnMut(KeyPlace),
    ) {
        let mut places: SmallVec<[(KeyPlace, usize); LOOKUPS_AHEAD]> = keys
            .map(|(key, size)| {
                let hash = hash_of(key);
                self.keys.prefetch(hash);
                (KeyPlace { hash, slot: None }, size)
            })
            .collect();
        for (place, _) in &mut places {
            place.slot = self.keys.find(place.hash, |_| true);
            place.slot.iter().for_each(|slot| self.rows.prefetch_slot(*slot));
        }
        places.into_iter().for_each(|(place, size)| each(self.prefetch_row(place, size)));
    }

    fn prefetch_row(&self, place: KeyPlace, size: usize) -> KeyPlace {
        if let Some(slot) = place.slot {
            self.rows.prefetch(slot, size.min(AHEAD_SIZE_MAX) + HEAD_SIZE_USUAL);
        }
        place
    }

    /// Makes a row the newest of its key. Returns whether the key is new. `options` are facts about
    /// the change that save work.
    ///
    /// # Errors
    /// [`RowError`]: the key is empty or longer than [`KEY_SIZE_MAX`](crate::KEY_SIZE_MAX), or the
    /// data is not smaller than 4 GiB. The table is unchanged.
    pub fn put_with(&mut self, row: &Row<'_>, options: PutOptions<'_>) -> Result<bool, RowError> {
        row.check()?;
        let stamped;
        let row = match self.order.is_some() {
            true => {
                stamped = Row { stamp: self.stamp_row(row.key, options.change), ..*row };
                &stamped
            }
            false => row,
        };
        let entries = options.entries.filter(|entries| self.indexes.fit(entries));
        let spelling = options.spelling.or(entries.map(|entries| entries.spelling));
        let spelling = spelling.unwrap_or_else(|| self.spelling_of(row));
        let keeps_previous = options.keeps_previous || self.history.is_some() || !self.pages.is_empty();
        let hash = options.place.map_or_else(|| hash_of(row.key), |place| place.hash);
        debug_assert_eq!(hash, hash_of(row.key), "the place is of the key");
        let slot =
            options.place.and_then(|place| place.slot).filter(|slot| self.rows.has_key(*slot, row.key));
        let known = slot.or_else(|| self.slot_of(row.key, hash));
        self.read_indexed(known);
        self.previous.clear();
        let slot = match known {
            Some(slot) => {
                self.leave(slot);
                let previous = keeps_previous.then_some(&mut self.previous);
                self.rows.replace(slot, row, self.epoch, previous);
                slot
            }
            None => {
                let slot = self.rows.insert(&Head::new(row).parts(row), self.epoch);
                self.keys.insert(hash, slot);
                slot
            }
        };
        if let Some(expires) = row.expires {
            self.lifetimes.insert((expires, slot));
        }
        match entries {
            Some(entries) => self.change_indexes_to(slot, row, entries, spelling),
            None => self.change_indexes(slot, Some(row), spelling),
        }
        self.keep_version(Moment { position: row.position, timestamp: row.timestamp });
        self.change_pages(slot, row.timestamp);
        Ok(known.is_none())
    }

    /// Returns a reader of rows of snapshots for this table. The reader needs no table, so that
    /// another thread can use it.
    pub fn row_reader(&self) -> RowReader {
        let key = self.by_key.as_ref().map(ByKey::fields);
        RowReader::new(EntryReader::new(self.message_type, key, &self.indexes), self.rows.memory())
    }

    /// Returns a reader of the entries that rows have in the indexes of this table, for
    /// [`PutOptions::entries`]. The reader needs no table, so that another thread can use it.
    /// `None`: a put reads nothing of the data, because there are no indexes, and either keys are
    /// supplied or `knows_spelling` is set, because the caller has [`PutOptions::spelling`].
    pub fn entry_reader(&self, knows_spelling: bool) -> Option<EntryReader> {
        let key = self.by_key.as_ref().map(ByKey::fields).filter(|_| !knows_spelling);
        let reader = || EntryReader::new(self.message_type, key, &self.indexes);
        (key.is_some() || !self.indexes.is_empty()).then(reader)
    }

    /// Adds the rows and versions of a piece of a snapshot to a table that only `restore` has
    /// filled. Its [`row_reader`](Self::row_reader) has read them. Scans and `get` find a row after
    /// [`finish_restore`](Self::finish_restore).
    pub fn restore(&mut self, piece: SnapshotPiece) {
        self.previous.clear();
        for (slot, (facts, entries)) in (self.rows.end()..).zip(piece.facts()) {
            self.keys.restore(facts.hash);
            if let Some(expires) = facts.expires {
                self.lifetimes.insert((expires, slot));
            }
            if let Some(by_key) = &mut self.by_key {
                by_key.restore(slot, facts.spelling);
            }
            self.indexes.restore_row(slot, facts.data_size, entries);
        }
        if let Some(history) = &mut self.history {
            piece.versions().for_each(|(row, ended)| history.restore(ended, row));
        }
        for (key, stamp) in piece.deletes() {
            self.order.get_or_insert_default().delete(key, stamp, 0);
        }
        self.rows.adopt(piece.rows, self.epoch);
    }

    /// Makes the index of the keys of all rows, and the other indexes. This is done once, after the
    /// last [`restore`](Self::restore).
    ///
    /// # Errors
    /// [`BadSnapshot::SameKey`]: two rows have the same key. The table cannot be used then.
    pub fn finish_restore(&mut self) -> Result<(), BadSnapshot> {
        self.indexes.finish_restore();
        if let Some(by_key) = &mut self.by_key {
            by_key.finish_restore();
        }
        let key = |slot| self.rows.row(slot).map(|row| row.key);
        self.keys.finish_restore(|one, other| key(one) == key(other)).ok_or(BadSnapshot::SameKey)
    }

    /// Compares the changes of a key by their stamps from now on, and remembers the stamps of
    /// deletes. `instance` is the name of this instance. When more than `deleted_max` deletes are
    /// remembered, the oldest one is forgotten.
    pub fn keep_order(&mut self, instance: &str, deleted_max: usize) {
        self.order.get_or_insert_default().set(instance, deleted_max);
    }

    /// Whether changes are compared by their stamps.
    pub fn keeps_order(&self) -> bool {
        self.order.is_some()
    }

    /// Whether deletes were forgotten.
    pub fn has_forgotten(&self) -> bool {
        self.order.as_ref().is_some_and(|order| order.forgotten_count() > 0)
    }

    /// Whether a change of a key changes the table. Otherwise the table has a later row or a later
    /// delete of the key.
    pub fn admits(&self, key: &[u8], change: &KeyChange<'_>) -> bool {
        let Some(order) = &self.order else { return true };
        order.admits(change, self.known_stamp(order, key))
    }

    /// The change that the table knows of a key, when it is of the publisher of this change. It may
    /// be of another publisher with the same number.
    pub fn known_of(&self, key: &[u8], change: &KeyChange<'_>) -> Option<KnownChange> {
        match self.get(key) {
            Some(row) => {
                let is_own = stamp_of(&row).publisher == change.publisher_number();
                is_own.then_some(KnownChange::Row(row.position))
            }
            None => {
                let sequence = self.order.as_ref()?.deleted_by(key, change)?;
                Some(KnownChange::Delete { sequence })
            }
        }
    }

    /// The order of the next row of a key. The key is no longer deleted.
    #[cold]
    fn stamp_row(&mut self, key: &[u8], change: Option<KeyChange<'_>>) -> Option<RowStamp> {
        let known = self.order.as_ref().and_then(|order| self.known_stamp(order, key));
        let order = self.order.as_mut()?;
        order.put(key);
        change.map(|change| order.row_stamp(&change, known))
    }

    /// The time of the stamp of a new change of this instance: `time`, or later when the key has
    /// such a stamp already. So the new change is the latest one. `is_sent`: other instances get
    /// the changes of this one. Their stamps must then differ.
    pub fn next_stamp(&self, key: &[u8], time: Timestamp, is_sent: bool) -> Timestamp {
        let Some(order) = &self.order else { return time };
        let known = self.known_stamp(order, key);
        let is_own = known.is_some_and(|known| known.instance == 0) && !is_sent;
        let last = known.map_or(order.forgotten(), |known| known.time);
        match last {
            Timestamp(0) => time,
            last if is_own => time.max(last),
            Timestamp(last) => time.max(Timestamp(last.saturating_add(1))),
        }
    }

    fn known_stamp(&self, order: &KeyOrder, key: &[u8]) -> Option<RowStamp> {
        match self.get(key) {
            Some(row) => Some(stamp_of(&row)),
            None => order.deleted(key),
        }
    }

    /// Deletes the row with a key, as [`remove`](Self::remove), and remembers the delete, also when
    /// there is no row. The caller has asked [`admits`](Self::admits).
    pub fn delete(&mut self, key: &[u8], at: Moment, change: &KeyChange<'_>) -> bool {
        let known = self.order.as_ref().and_then(|order| self.known_stamp(order, key));
        if let Some(order) = &mut self.order {
            let stamp = order.row_stamp(change, known);
            order.delete(key, stamp, change.sequence);
        }
        self.remove(key, at)
    }

    /// The parts of the order that a snapshot has in addition to rows and deletes.
    pub(crate) fn known_order(&self) -> Option<KnownOrder> {
        self.order.as_ref().map(|order| order.known())
    }

    /// The deletes from a number on, each with its number.
    pub(crate) fn deletes_from(&self, number: u64) -> impl Iterator<Item = (u64, &[u8], RowStamp)> {
        self.order.iter().flat_map(move |order| order.deletes_from(number))
    }

    /// The order of a snapshot whose rows and deletes were restored.
    pub fn restore_order(&mut self, known: KnownOrder) {
        self.order.get_or_insert_default().restore(known);
    }

    /// Removes the row with a key. `at` is the record of the log that removes it. Returns whether
    /// there was one.
    pub fn remove(&mut self, key: &[u8], at: Moment) -> bool {
        self.previous.clear();
        self.moves.clear();
        let hash = hash_of(key);
        let slot = self.slot_of(key, hash);
        if let Some(slot) = slot {
            self.remove_slot(slot, at);
        }
        slot.is_some()
    }

    /// The row that the last change replaced or removed; `None` when there was none, or when
    /// [`put_with`](Self::put_with) did not keep it.
    pub fn previous(&self) -> Option<Row<'_>> {
        self.previous.row()
    }

    /// When the next lifetime ends.
    pub fn next_expiry(&self) -> Option<Timestamp> {
        self.lifetimes.first().map(|(expires, _)| *expires)
    }

    /// Removes one row whose lifetime ended at `now` or before, the oldest first. Returns whether
    /// there was one.
    pub fn pop_expired(&mut self, now: Timestamp) -> bool {
        self.previous.clear();
        self.moves.clear();
        let expired = self.lifetimes.first().filter(|(expires, _)| *expires <= now).copied();
        if let Some((timestamp, slot)) = expired {
            if let Some((order, row)) = self.order.as_mut().zip(self.rows.row(slot)) {
                order.delete(row.key, stamp_of(&row), 0);
            }
            // The state of a position has no row whose lifetime ended before the time of the
            // position.
            self.remove_slot(slot, Moment { position: Position(u64::MAX), timestamp });
        }
        expired.is_some()
    }

    /// Begins a scan. Its result is the state at this call: later changes do not change it. Rows
    /// whose lifetime ended at `now` or before are not in it.
    pub fn open(&mut self, mut query: Query, now: Timestamp) -> ScanId {
        let slots = self.slots(query.keys.as_deref(), query.filter.as_ref(), query.copies_size_max);
        if query.as_of.is_none() {
            query.keys = None;
        }
        self.begin_scan(query, now, slots)
    }

    /// The slots of all rows that can have one of the keys and match the filter, and perhaps
    /// others. `size_max`: the bytes that the scan may hold.
    fn slots(&self, keys: Option<&[Box<[u8]>]>, filter: Option<&Filter>, size_max: usize) -> Slots {
        if let Some(keys) = keys {
            return Slots::listed(keys.iter().filter_map(|key| self.slot_of(key, hash_of(key))).collect());
        }
        let limits = &self.limits;
        let slot_of = |key: &[u8]| self.slot_of(key, hash_of(key));
        let by_key = self.by_key.as_ref().zip(filter);
        let by_key =
            by_key.and_then(|(by_key, filter)| by_key.candidates(filter, limits.listed_max, slot_of));
        let walk = filter.and_then(|filter| self.indexes.walk(filter));
        let end = self.rows.end();
        match (by_key, walk) {
            (Some(slots), walk) if walk.as_ref().is_none_or(|(_, count)| slots.len() <= *count) => {
                Slots::listed(slots)
            }
            (_, Some((mut walk, count))) if count <= limits.listed_max => {
                let mut slots = Vec::with_capacity(count);
                walk.take(&self.indexes, usize::MAX, &mut slots);
                Slots::listed(slots)
            }
            (None, Some((walk, count)))
                if count <= self.rows.len() / limits.walked_part
                    && Slots::size_of_walk(end) <= size_max / 2 =>
            {
                Slots::walked(walk, end, limits.portion_len)
            }
            (Some(slots), _) => Slots::listed(slots),
            _ => Slots::All { next: 0, end },
        }
    }

    fn begin_scan(&mut self, query: Query, now: Timestamp, slots: Slots) -> ScanId {
        if self.epoch == u32::MAX {
            self.renumber_epochs();
        }
        let scan = self.next_scan;
        self.next_scan = ScanId(scan.0 + 1);
        let versions = query.as_of.and(self.history.as_ref()).map_or((0, 0), History::numbers);
        self.scans.insert(scan, Scan::new(query, now, self.epoch, slots, versions.0..versions.1));
        self.epoch += 1;
        scan
    }

    /// Passes the next rows of a scan to `out`, until `effort` is used up, `out` returns false, or
    /// the scan has ended. One unit of effort is about one row with a simple filter. At least one
    /// row is read. A row for which `out` returned false counts as taken.
    ///
    /// A scan that is not open has no rows.
    pub fn poll(&mut self, scan: ScanId, effort: usize, out: &mut dyn FnMut(&Row<'_>) -> bool) -> Polled {
        let source = source_of!(self);
        let Some(scan) = self.scans.get_mut(&scan) else { return Polled::Done { matched: 0 } };
        let polled = scan.poll(effort, source, &mut self.arena, out);
        if let (Polled::Done { matched }, Some(filter)) = (polled, scan.costly_filter()) {
            let (rows, part) = (self.rows.len(), self.limits.walked_part as u64);
            if rows >= self.limits.made_rows_min && matched.saturating_mul(part) <= rows as u64 {
                self.indexes.make_for(filter, rows, self.rows.size() / self.limits.made_size_part);
            }
        }
        polled
    }

    /// Whether an index is being built, because a scan needed it. The caller calls
    /// [`build_index`](Table::build_index) until it is whole.
    pub fn is_building_index(&self) -> bool {
        self.indexes.is_building()
    }

    /// Reads the next rows into the index that is being built, at most `count`. Returns whether
    /// there are more.
    pub fn build_index(&mut self, count: usize) -> bool {
        self.indexes.build(&self.rows, self.message_type, count, &mut self.arena)
    }

    /// Ends a scan and frees its memory.
    pub fn close(&mut self, scan: ScanId) {
        self.scans.remove(&scan);
    }

    /// The instant whose state answers for a time, or for the message at a position, which has the
    /// time. `None`: the current state, because the time is not over, or the table keeps no
    /// history.
    ///
    /// # Errors
    /// [`BeforeHistory`].
    pub fn as_of(
        &self,
        time: Timestamp,
        position: Option<Position>,
        now: Timestamp,
    ) -> Result<Option<AsOf>, BeforeHistory> {
        self.history.as_ref().map_or(Ok(None), |history| history.as_of(time, position, now))
    }

    /// The states of instants before this time are not known.
    pub fn set_history_begin(&mut self, begin: Timestamp) {
        if let Some(history) = &mut self.history {
            history.set_begin(begin);
        }
    }

    /// With a granularity: the table knows the states after messages only in the periods after the
    /// one of this time, and otherwise those at the ends of periods. The rows that a snapshot has
    /// lost began at the time of its last message or before. A lifetime can end later, so the state
    /// after this message can lack one of them.
    pub fn set_exact_after(&mut self, time: Timestamp) {
        if let Some(history) = &mut self.history {
            history.set_exact_after(time);
        }
    }

    /// The states that the history has; `None`: the table keeps no history.
    pub fn known_history(&self) -> Option<KnownHistory> {
        self.history.as_ref().map(History::known)
    }

    /// The numbers of the versions: from the first one to before the end.
    pub(crate) fn version_numbers(&self) -> (u64, u64) {
        self.history.as_ref().map_or((0, 0), History::numbers)
    }

    /// A version by its number, as bytes.
    pub(crate) fn version(&self, number: u64) -> Option<(Moment, &[u8])> {
        self.history.as_ref()?.version(number)
    }

    /// The row that was replaced or removed becomes a version.
    fn keep_version(&mut self, ended: Moment) {
        if let (Some(history), Some(bytes)) = (&mut self.history, self.previous.bytes()) {
            let needed = self.scans.values().filter_map(|scan| Some(scan.as_of()?.time)).min();
            history.push(ended, bytes, needed);
        }
    }

    /// Begins a page. It shows rows when [`poll_page`](Table::poll_page) has read all rows.
    pub fn open_page(&mut self, query: PageQuery) -> PageId {
        let slots = self.slots(query.keys.as_deref(), query.filter.as_ref(), query.size_max);
        let page = self.next_page;
        self.next_page = PageId(page.0 + 1);
        self.pages.insert(page, Page::new(query, slots));
        page
    }

    /// Reads the next rows for a page, until `effort` is used up: `effort` as for
    /// [`poll`](Table::poll). Rows whose lifetime ended at `now` or before are not in the page.
    /// After [`Polled::Done`] the page follows every change.
    ///
    /// A page that is not open has no rows.
    pub fn poll_page(&mut self, page: PageId, effort: usize, now: Timestamp) -> Polled {
        let source = source_of!(self);
        match self.pages.get_mut(&page) {
            Some(page) => page.poll(effort, source, now, &mut self.arena),
            None => Polled::Done { matched: 0 },
        }
    }

    /// Begins a scan of rows that a page shows now, in its order.
    pub fn open_shown(&mut self, page: PageId, shown: Shown, copies_size_max: usize) -> ScanId {
        let slots_of = |page| self.pages.get(&page).map(Page::shown_slots).unwrap_or_default();
        let mut slots = slots_of(page);
        if let Shown::Beyond(other) | Shown::Common(other) = shown {
            let others = slots_of(other);
            slots.retain(|slot| others.binary_search(slot).is_ok() == matches!(shown, Shown::Common(_)));
        }
        let order = self.pages.get(&page).and_then(Page::order).cloned();
        let query = Query { order, copies_size_max, ..Query::default() };
        // The rows of the page count as valid until they are removed.
        self.begin_scan(query, Timestamp(0), Slots::listed(slots))
    }

    /// The moves of all pages by the last change.
    pub fn moves(&self) -> impl Iterator<Item = Move<'_>> {
        self.moves.iter().filter_map(|(page, (kind, slot))| {
            let row = match slot {
                Some(slot) => self.rows.row(*slot),
                None => self.previous(),
            };
            Some(Move { page: *page, kind: *kind, row: row? })
        })
    }

    /// Why a page has ended.
    pub fn page_failure(&self, page: PageId) -> Option<Polled> {
        self.pages.get(&page).and_then(Page::failure)
    }

    /// Ends a page and frees its memory.
    pub fn close_page(&mut self, page: PageId) {
        self.pages.remove(&page);
    }

    fn slot_of(&self, key: &[u8], hash: u32) -> Option<u32> {
        self.keys.find(hash, |slot| self.rows.has_key(slot, key))
    }

    fn remove_slot(&mut self, slot: u32, at: Moment) {
        self.read_indexed(Some(slot));
        self.leave(slot);
        if let Some(row) = self.rows.row(slot) {
            self.keys.remove(hash_of(row.key), slot);
        }
        self.rows.remove(slot, self.epoch, &mut self.previous);
        self.change_indexes(slot, None, Spelling::Usual);
        self.keep_version(at);
        self.change_pages(slot, Timestamp(0));
    }

    fn spelling_of(&mut self, row: &Row<'_>) -> Spelling {
        let by_key = self.by_key.as_ref();
        by_key.map_or(Spelling::Usual, |by_key| {
            Spelling::of_row(by_key.fields(), row.key, row.data, &mut self.arena)
        })
    }

    /// Reads the entries of the row that is about to change. `None`: there is no row.
    fn read_indexed(&mut self, slot: Option<u32>) {
        if !self.indexes.is_empty() {
            let before = slot.and_then(|slot| Some((slot, self.rows.row(slot)?.data)));
            self.indexes.read_before(before, self.message_type, &mut self.arena);
        }
    }

    /// The row of a slot was replaced by this one, or removed. [`read_indexed`](Self::read_indexed)
    /// was called before.
    fn change_indexes(&mut self, slot: u32, after: Option<&Row<'_>>, spelling: Spelling) {
        if let Some(by_key) = &mut self.by_key {
            by_key.change(slot, spelling);
        }
        if self.indexes.is_empty() {
            return;
        }
        self.indexes.change(slot, self.message_type, after.map(|row| row.data), &mut self.arena);
    }

    /// As [`change_indexes`](Self::change_indexes), with entries that were read without the table.
    #[cold]
    fn change_indexes_to(&mut self, slot: u32, row: &Row<'_>, entries: &RowEntries, spelling: Spelling) {
        if let Some(by_key) = &mut self.by_key {
            by_key.change(slot, spelling);
        }
        if !self.indexes.is_empty() {
            self.indexes.change_to(slot, row.data.len(), entries);
        }
    }

    /// The row of a slot was put, replaced or removed.
    fn change_pages(&mut self, slot: u32, now: Timestamp) {
        self.moves.clear();
        if self.pages.is_empty() {
            return;
        }
        let source = source_of!(self);
        let change = Change { slot, before: self.previous.row(), after: self.rows.row(slot) };
        // All filters together may take the effort of one.
        let mut effort = change.after.as_ref().map_or(0, row_effort_max);
        for (id, page) in &mut self.pages {
            let moves = page.change(change, &mut effort, source, now, &mut self.arena);
            self.moves.extend(moves.into_iter().map(|moved| (*id, moved)));
        }
    }

    /// The row of the slot is about to change. Scans that need it copy it.
    fn leave(&mut self, slot: u32) {
        let Some(bytes) = self.rows.bytes(slot) else { return };
        if let Some(expires) = Row::expires_of(bytes) {
            self.lifetimes.remove(&(expires, slot));
        }
        if self.scans.is_empty() {
            return;
        }
        let epoch = self.rows.epoch(slot);
        let source = source_of!(self);
        // Scans are in the order of their epochs. Those before the last change of the slot have
        // their copy.
        for scan in self.scans.values_mut().rev().take_while(|scan| scan.epoch() >= epoch) {
            scan.before_change(slot, source, &mut self.arena);
        }
    }

    /// Makes the epochs small again, and keeps their order as far as a scan can see it.
    fn renumber_epochs(&mut self) {
        let scans: Vec<u32> = self.scans.values().map(Scan::epoch).collect();
        let number_of = |epoch: u32| scans.partition_point(|scan| *scan < epoch) as u32;
        self.rows.renumber_epochs(number_of);
        for (number, scan) in self.scans.values_mut().enumerate() {
            scan.set_epoch(number as u32);
        }
        self.epoch = scans.len() as u32;
    }
}

/// The stamp of a row in a table that keeps the order.
fn stamp_of(row: &Row<'_>) -> RowStamp {
    row.stamp.unwrap_or(RowStamp { time: row.timestamp, instance: 0, publisher: 0 })
}

/// The most keys that are searched together without an allocation.
const LOOKUPS_AHEAD: usize = 8;

/// For a longer row, the processor prefetches the rest when the beginning is replaced.
const AHEAD_SIZE_MAX: usize = 512;

/// Bytes of a row and its entry before its data, about: most keys are generated, and few rows have
/// more than the necessary parts.
const HEAD_SIZE_USUAL: usize = 56;

/// Bytes of a lifetime in the list of lifetimes, about.
const LIFETIME_SIZE: usize = 24;

#[cfg(test)]
mod tests {
    use quire_journal::Headers;

    use super::*;

    fn table() -> Table {
        let config = TableConfig {
            name: "orders".into(),
            message_type: MessageType::Json,
            key: None,
            hash_indexes: Vec::new(),
            ordered_indexes: Vec::new(),
            history: None,
            limits: IndexLimits::default(),
        };
        Table::new(config, &Memory::heap()).unwrap()
    }

    fn put(table: &mut Table, key: &str, data: &str) {
        let row = Row {
            key: key.as_bytes(),
            position: Position(1),
            timestamp: Timestamp(1),
            stamp: None,
            expires: None,
            correlation_id: b"",
            headers: Headers::NONE,
            data: data.as_bytes(),
        };
        table.put_with(&row, PutOptions::default()).unwrap();
    }

    fn result(table: &mut Table, scan: ScanId) -> Vec<String> {
        let mut rows = Vec::new();
        let polled = table.poll(scan, usize::MAX, &mut |row| {
            rows.push(String::from_utf8(row.data.to_vec()).unwrap());
            true
        });
        assert_eq!(polled, Polled::Done { matched: rows.len() as u64 });
        table.close(scan);
        rows.sort();
        rows
    }

    #[test]
    fn epochs_begin_again_without_a_change_of_the_results_of_open_scans() {
        let everything = || Query { copies_size_max: 1 << 20, ..Query::default() };
        let mut table = table();
        table.epoch = u32::MAX - 2;
        (0..4).for_each(|key| put(&mut table, &key.to_string(), "before"));
        let first = table.open(everything(), Timestamp(0));
        put(&mut table, "1", "between");
        let second = table.open(everything(), Timestamp(0));
        put(&mut table, "2", "after");
        assert_eq!(table.epoch, u32::MAX);
        let third = table.open(everything(), Timestamp(0));
        assert_eq!(table.epoch, 3);
        put(&mut table, "3", "last");
        put(&mut table, "4", "new");
        assert_eq!(result(&mut table, first), ["before", "before", "before", "before"]);
        assert_eq!(result(&mut table, second), ["before", "before", "before", "between"]);
        assert_eq!(result(&mut table, third), ["after", "before", "before", "between"]);
        let now = table.open(everything(), Timestamp(0));
        assert_eq!(result(&mut table, now), ["after", "before", "between", "last", "new"]);
    }
}
