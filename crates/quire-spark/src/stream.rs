//! Micro-batches.
//!
//! An offset has for each journal the end of a batch, **its beginning**, and its last record. Spark
//! does not store the first offset of a query. Without the beginning, a failed first batch would
//! begin at a later head in the second attempt. The record proves that a restarted query reads the
//! same journal.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use quire_arrow::Plan;
use quire_types::Timestamp;
use quire_types::time::{Instant, Now};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::ser::{Formatter, Serializer};

use crate::failure::{Failure, Outcome};
use crate::journals::{Identity, Range, identity, locate, reader, reader_of, refreshed};
use crate::options::{LogPlace, ReadOptions};
use crate::ranges::span;
use crate::read::{Planned, Read, bounds};

const VERSION: u32 = 1;

/// An idle Spark query asks every 10 ms. A search for new files is not needed that often.
const REFRESH: Duration = Duration::from_millis(50);

/// A query over journals that grow.
pub struct Stream {
    read: Read,
    directories: Vec<String>,
    /// When the query ends at a known position: the last positions.
    head: Option<BTreeMap<String, u64>>,
    /// Where directories begin that are not in the checkpoint.
    added: BTreeMap<String, u64>,
    refreshed: Option<Instant>,
    last_batch: Instant,
}

/// The end of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offset {
    v: u32,
    journals: BTreeMap<String, JournalBatch>,
}

/// A batch in one journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct JournalBatch {
    /// Its records are after this position.
    from: u64,
    /// Its last position.
    to: u64,
    /// The record there.
    at: Option<Identity>,
}

/// The most that a batch may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Messages.
    Rows(u64),
    /// Bytes of the log.
    Bytes(u64),
    /// Everything if `true`; otherwise the default limit.
    All(bool),
}

/// The question for the next batch.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latest {
    /// Where it begins.
    pub start: Value,
    /// Its limit.
    pub limit: Option<Limit>,
}

/// A batch.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// Where it begins. The end contains it, too.
    pub start: Option<Value>,
    /// Where it ends.
    pub end: Value,
}

impl Offset {
    /// Its JSON, in the spelling of offsets.
    pub fn to_json(&self) -> Outcome<String> {
        let mut text = Vec::new();
        let written = self.serialize(&mut Serializer::with_formatter(&mut text, Spelling));
        written.map_err(|error| Failure::internal(error.to_string()))?;
        String::from_utf8(text).map_err(|error| Failure::internal(error.to_string()))
    }

    /// An offset of a checkpoint, in any spelling.
    fn of(value: &Value) -> Outcome<Self> {
        let offset = Offset::deserialize(value).ok().filter(|offset| offset.v == VERSION);
        offset.ok_or_else(|| {
            Failure::new(
                "bad_bookmark",
                format!("the checkpoint has an offset of another source or version, {value}; begin with a new checkpoint"),
            )
        })
    }
}

impl Stream {
    /// A query that begins or continues.
    pub fn new(mut read: Read, now: Now) -> Outcome<Self> {
        read.frame.options.check_stream()?;
        // A query without a start begins with the next messages.
        read.frame.options.starting.get_or_insert(LogPlace::Latest);
        read.check(now.wall)?;
        let directories = read
            .frame
            .options
            .directories
            .iter()
            .map(|directory| locate(directory))
            .collect::<Outcome<_>>()?;
        Ok(Stream {
            read,
            directories,
            head: None,
            added: BTreeMap::new(),
            refreshed: None,
            last_batch: now.instant,
        })
    }

    fn options(&self) -> &ReadOptions {
        &self.read.frame.options
    }

    /// The offset at which the query begins.
    pub fn initial(&mut self, now: Timestamp) -> Outcome<Offset> {
        let mut starts = BTreeMap::new();
        for directory in &self.directories {
            starts.insert(directory.clone(), span(directory, self.options(), now)?.after);
        }
        self.offset(&starts, &starts)
    }

    /// The limit of a batch without another one.
    pub fn default_limit(&self) -> Limit {
        Limit::Rows(self.options().max_messages)
    }

    /// Ends the query at the present end of the log.
    pub fn available_now(&mut self) -> Outcome<()> {
        let mut head = BTreeMap::new();
        for directory in &self.directories {
            let found = refreshed(directory, self.options().archive.as_deref())?;
            head.insert(directory.clone(), found.persisted().get());
        }
        self.head = Some(head);
        Ok(())
    }

    /// The end of the next batch; `None` when there is none.
    pub fn latest(&mut self, request: &Latest, now: Now) -> Outcome<Option<Offset>> {
        let begun = self.begun(&Offset::of(&request.start)?, now.wall)?;
        let mut ends = self.ends(now.instant)?;
        for (directory, end) in &mut ends {
            *end = (*end).max(begun[directory]);
        }
        let available: u64 = ends.iter().map(|(directory, end)| end - begun[directory]).sum();
        if available == 0 || self.waits(available, now.instant) {
            return Ok(None);
        }
        let limit = request.limit.unwrap_or(Limit::All(false));
        if limit != Limit::All(true) {
            self.shorten(&begun, &mut ends, limit)?;
        }
        self.last_batch = now.instant;
        self.offset(&begun, &ends).map(Some)
    }

    /// The ends of the journals as an offset, for reports of progress. Spark calls this often, so
    /// it has no records, which would have to be read.
    pub fn newest(&mut self, now: Instant) -> Outcome<Offset> {
        let place = |(directory, end)| (directory, JournalBatch { from: end, to: end, at: None });
        Ok(Offset { v: VERSION, journals: self.ends(now)?.into_iter().map(place).collect() })
    }

    /// The ends of the journals.
    fn ends(&mut self, now: Instant) -> Outcome<BTreeMap<String, u64>> {
        if let Some(head) = &self.head {
            return Ok(head.clone());
        }
        let is_due = self.refreshed.is_none_or(|refreshed| now.since(refreshed) > REFRESH);
        let mut newest = BTreeMap::new();
        for directory in &self.directories {
            let archive = self.options().archive.as_deref();
            let found = if is_due { refreshed(directory, archive)? } else { reader(directory, archive)? };
            newest.insert(directory.clone(), found.persisted().get());
        }
        if is_due {
            self.refreshed = Some(now);
        }
        Ok(newest)
    }

    /// Cuts a batch into tasks.
    pub fn plan(&mut self, batch: &Batch, now: Timestamp) -> Outcome<Planned> {
        let end = Offset::of(&batch.end)?;
        // Spark compares offsets as text. If another version of quire has written the first offset
        // in another spelling, Spark begins a batch from an offset to the same one. That batch was
        // read before.
        if let Some(start) = &batch.start
            && Offset::of(start)? == end
        {
            return Ok(Planned::default());
        }
        let ranges: Vec<Range> = end
            .journals
            .into_iter()
            .map(|(directory, JournalBatch { from, to, at })| Range {
                directory,
                archive: self.options().archive.clone(),
                after: from,
                limit: to,
                at,
                at_ns: None,
            })
            .collect();
        self.read.plan_ranges(&ranges, now)
    }

    /// Notes that a batch is complete. Nothing depends on it.
    pub fn commit(&mut self, offset: &Value) -> Outcome<()> {
        Offset::of(offset).map(drop)
    }

    /// Where the next batch begins in each journal. One that is new to the query begins where its
    /// options say.
    fn begun(&mut self, start: &Offset, now: Timestamp) -> Outcome<BTreeMap<String, u64>> {
        if let Some(missing) = start.journals.keys().find(|directory| !self.directories.contains(directory)) {
            return Err(Failure::option(format!(
                "path: the checkpoint was made with {missing}, which is not read any more; begin with a new checkpoint"
            )));
        }
        let mut begun = BTreeMap::new();
        for directory in &self.directories {
            let after = match start.journals.get(directory) {
                Some(JournalBatch { to, at, .. }) => {
                    let archive = self.read.frame.options.archive.clone();
                    let (directory, at) = (directory.clone(), at.clone());
                    if at.is_some() {
                        reader_of(&Range { directory, archive, after: *to, limit: *to, at, at_ns: None })?;
                    }
                    *to
                }
                // Decided once: `latest` changes, and no message may be skipped before a batch has
                // recorded the position.
                None => match self.added.get(directory) {
                    Some(after) => *after,
                    None => {
                        let after = span(directory, &self.read.frame.options, now)?.after;
                        self.added.insert(directory.clone(), after);
                        after
                    }
                },
            };
            begun.insert(directory.clone(), after);
        }
        Ok(begun)
    }

    /// Whether a batch is delayed until there are more messages for it.
    fn waits(&self, available: u64, now: Instant) -> bool {
        let delay = Duration::from_nanos(self.options().max_trigger_delay_ns);
        self.options().min_messages.is_some_and(|wanted| available < wanted)
            && self.head.is_none()
            && now.since(self.last_batch) < delay
    }

    /// Shortens the batch. The journals share the limits. The unused part of one journal is added
    /// to the next.
    fn shorten(
        &self,
        begun: &BTreeMap<String, u64>,
        ends: &mut BTreeMap<String, u64>,
        limit: Limit,
    ) -> Outcome<()> {
        let mut rows = match limit {
            Limit::Rows(rows) => rows,
            _ => self.options().max_messages,
        };
        let size = match limit {
            Limit::Bytes(size) => Some(size),
            _ => self.options().max_bytes,
        };
        // Journals with the least come first, so that the unused part is known.
        let mut order: Vec<(u64, String)> = ends
            .iter()
            .map(|(directory, end)| (end - begun[directory], directory.clone()))
            .filter(|(available, _)| *available > 0)
            .collect();
        order.sort();
        let mut count = order.len() as u64;
        for (_, directory) in order {
            let (after, mut end) = (begun[&directory], ends[&directory]);
            end = end.min(after.saturating_add((rows / count).max(1)));
            if let Some(size) = size {
                let found = reader(&directory, self.options().archive.as_deref())?;
                end = Plan::limit_by_size(&found, bounds(after, end), (size / count).max(1)).get();
            }
            rows = rows.saturating_sub(end - after);
            count -= 1;
            ends.insert(directory, end);
        }
        Ok(())
    }

    fn offset(&self, from: &BTreeMap<String, u64>, to: &BTreeMap<String, u64>) -> Outcome<Offset> {
        let mut journals = BTreeMap::new();
        for directory in &self.directories {
            let found = reader(directory, self.options().archive.as_deref())?;
            let (from, to) = (from[directory], to[directory]);
            journals.insert(directory.clone(), JournalBatch { from, to, at: identity(&found, to) });
        }
        Ok(Offset { v: VERSION, journals })
    }
}

/// The spelling of `json.dumps` in Python: blanks after commas and colons, and only ASCII.
///
/// PySpark reads the offsets of a source in Python and writes them again, in this spelling. For
/// Spark, an offset of another spelling is another offset, so the source on the JVM spells them in
/// this way, too. A query can then change its source.
struct Spelling;

impl Formatter for Spelling {
    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, is_first: bool) -> io::Result<()> {
        if is_first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, is_first: bool) -> io::Result<()> {
        if is_first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, out: &mut W, fragment: &str) -> io::Result<()> {
        for character in fragment.chars() {
            if matches!(character, ' '..='~') {
                out.write_all(&[character as u8])?;
                continue;
            }
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_spelled_as_python_spells_them() {
        let place = JournalBatch { from: 0, to: 500, at: Some(("4711|17|".into(), u64::MAX)) };
        let odd = "/data/\u{7f}ä\u{1f600}\n\"\\\u{1}".to_owned();
        let journals = [("/data".to_owned(), place), (odd, JournalBatch { from: 1, to: 1, at: None })];
        let offset = Offset { v: VERSION, journals: journals.into() };
        let text = offset.to_json().unwrap();
        let expected = concat!(
            r#"{"v": 1, "journals": {"/data": {"from": 0, "to": 500, "at": ["4711|17|", 18446744073709551615]}, "#,
            r#""/data/\u007f\u00e4\ud83d\ude00\n\"\\\u0001": {"from": 1, "to": 1, "at": null}}}"#
        );
        assert_eq!(text, expected);
        assert_eq!(Offset::of(&serde_json::from_str(&text).unwrap()), Ok(offset));
    }
}
