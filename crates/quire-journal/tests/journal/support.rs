//! Helpers of the tests: small journals, records with expected content, and files to damage.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use quire_journal::*;

use crate::faulty_disk::{Call, FaultyDisk};

/// How long a test waits for what must come: only a hang takes longer, on the slowest machine.
pub const SOON: Duration = Duration::from_secs(120);

pub fn small() -> Options {
    Options { segment_size: 64 * 1024, prepared_segments: 1, ..Options::default() }
}

pub fn open(directory: &Path) -> (Journal, Recovery) {
    Journal::open(directory, &small(), &mut |_| ()).unwrap()
}

pub fn record<'a>(sequence: u64, topic: &'a str, data: &'a [u8]) -> NewRecord<'a> {
    NewRecord {
        kind: RecordKind::Publish,
        message_type: 1,
        publisher: PublisherId(7),
        sequence,
        timestamp: Timestamp(sequence.saturating_mul(1000)),
        topic,
        correlation_id: b"c",
        expiration_s: Some(9),
        attributes: Attributes::NONE,
        data,
    }
}

pub fn append(journal: &mut Journal, sequences: std::ops::RangeInclusive<u64>) {
    for sequence in sequences {
        let topic = format!("topic-{}", sequence % 10);
        let data = vec![sequence as u8; 500];
        let appended = journal.append(&record(sequence, &topic, &data)).unwrap();
        assert!(matches!(appended, Appended::Recorded(_)));
        if sequence.is_multiple_of(7) {
            journal.submit();
        }
    }
    journal.flush(SOON).unwrap();
}

pub fn sequences(reader: &Reader, after: Position) -> Vec<u64> {
    let mut cursor = reader.cursor(after);
    let mut found = Vec::new();
    while let Some(batch) = cursor.next(reader.persisted(), &AllTopics).unwrap() {
        for record in batch.records() {
            assert_eq!(record.data, vec![record.sequence as u8; 500]);
            assert_eq!(record.topic, format!("topic-{}", record.sequence % 10));
            assert_eq!((record.correlation_id, record.expiration_s), (&b"c"[..], Some(9)));
            found.push(record.sequence);
        }
    }
    found
}

pub fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "journal"));
    files.sort();
    files
}

pub fn write_at(path: &Path, bytes: &[u8], offset: u64) {
    fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

/// Makes the checksum of a segment header match again.
pub fn repair_segment_header(bytes: &mut [u8]) {
    let checksum = crc32c::crc32c(&bytes[..44]);
    bytes[44..48].copy_from_slice(&checksum.to_le_bytes());
}

/// Makes the checksums of the batch at `offset` match again, as far as its body is in the file.
pub fn repair_batch_header(bytes: &mut [u8], offset: usize) {
    let size = u32::from_le_bytes(bytes[offset + 12..offset + 16].try_into().unwrap()) as usize;
    if let Some(body) = bytes.get(offset + 64..offset + 64 + size) {
        let checksum = crc32c::crc32c(body);
        bytes[offset + 8..offset + 12].copy_from_slice(&checksum.to_le_bytes());
    }
    let checksum = crc32c::crc32c(&bytes[offset + 8..offset + 64]);
    bytes[offset + 4..offset + 8].copy_from_slice(&checksum.to_le_bytes());
}

/// A disk in memory that counts the files that readers open.
pub struct CountingDisk {
    pub disk: FaultyDisk,
    opened: Arc<AtomicUsize>,
}

impl CountingDisk {
    pub fn new() -> Self {
        let opened = Arc::new(AtomicUsize::new(0));
        let counter = opened.clone();
        let count = move |call: Call<'_>| {
            counter.fetch_add(usize::from(matches!(call, Call::Open(_))), Ordering::Relaxed);
            Ok(())
        };
        CountingDisk { disk: FaultyDisk::new(Arc::new(MemoryDisk::new(64 << 20)), count), opened }
    }

    pub fn opened(&self) -> usize {
        self.opened.load(Ordering::Relaxed)
    }

    /// Puts a copy of a file into [`MEMORY`].
    pub fn put(&self, file: &Path) {
        let (bytes, path) = (fs::read(file).unwrap(), Path::new(MEMORY).join(file.file_name().unwrap()));
        self.disk.disk.create(&path, bytes.len() as u64).unwrap().write_at(&bytes, 0).unwrap();
    }
}

/// The files of a journal on a disk in memory, to be changed and tried again and again.
#[derive(Clone)]
pub struct Snapshot(pub BTreeMap<PathBuf, Vec<u8>>);

pub const MEMORY: &str = "journal";

impl Snapshot {
    pub fn of(disk: &MemoryDisk) -> Self {
        let names = disk.list(Path::new(MEMORY)).unwrap();
        let paths = names.into_iter().map(|name| Path::new(MEMORY).join(name));
        Snapshot(paths.map(|path| (path.clone(), disk.read(&path).unwrap())).collect())
    }

    pub fn disk(&self) -> MemoryDisk {
        let disk = MemoryDisk::new(64 << 20);
        for (path, bytes) in &self.0 {
            disk.create(path, bytes.len() as u64).unwrap().write_at(bytes, 0).unwrap();
        }
        disk
    }
}

/// Opens a journal on a disk in memory.
pub fn open_on(disk: &MemoryDisk) -> Result<(Journal, Recovery), JournalError> {
    Journal::driven_by_hand(Arc::new(disk.clone()), Path::new(MEMORY), &small())
}

/// Position, publisher, sequence, topic and data of a record.
pub type ReadBack = (u64, u64, u64, String, Vec<u8>);

/// Everything that can be read, and what ended it.
pub fn read_all(reader: &Reader) -> (Vec<ReadBack>, Option<JournalError>) {
    let mut cursor = reader.cursor(Position(0));
    let mut found = Vec::new();
    loop {
        match cursor.next(reader.persisted(), &AllTopics) {
            Ok(None) => return (found, None),
            Err(error) => return (found, Some(error)),
            Ok(Some(batch)) => found.extend(batch.records().map(|record| {
                let Record { position, publisher, sequence, topic, data, .. } = record;
                (position.0, publisher.0, sequence, topic.to_owned(), data.to_vec())
            })),
        }
    }
}

/// Where the record with this position is.
pub fn place_of(reader: &Reader, position: Position) -> Option<RecordPlace> {
    let mut cursor = reader.cursor(Position(position.get().checked_sub(1)?));
    Some(cursor.next(position, &AllTopics).ok()??.place())
}
