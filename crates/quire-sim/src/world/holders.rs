//! The holders of the messages of a queue, as the journal records them: they follow the rules, with
//! any faults of the server.
//!
//! Checked (J1 and so on are the names of the invariants):
//! - Q2: a message with a holder is not delivered to another consumer, and only the lease of its
//!   holder ends. A verdict of a consumer that did not hold the message is recorded when the
//!   message has no holder. After the end of a server, its holders hold nothing.
//! - Q3: of a queue that delivers at most once the journal has one delivery for each message.

use std::collections::HashMap;

use quire_journal::{AllTopics, Position, Reader, Record, RecordKind};
use quire_queue::{LeaseEventKind, LeaseRun};
use quire_types::time::Instant;

use super::cast::AT_MOST_ONCE;
use super::jobs::{self, Job, job_of};

/// The holders after the records so far.
#[derive(Default)]
struct Holders {
    /// By queue and message.
    holders: HashMap<(String, u64), String>,
    counted: u64,
    /// The jobs in the log.
    jobs: HashMap<u64, Job>,
    /// The ends of leases on jobs that no verdict explains.
    ends: Vec<LeaseEnd>,
}

/// The result of [`follow`].
pub(super) struct Followed {
    /// Deliveries and ends of leases.
    pub count: u64,
    /// The ends of leases on jobs that no verdict explains.
    pub ends: Vec<LeaseEnd>,
}

/// The lease of a worker on a job ended, between two times.
pub(super) struct LeaseEnd {
    pub worker: String,
    pub job: Job,
    pub cause: Cause,
    pub from: Instant,
    pub until: Instant,
}

/// Why a lease ended without a verdict of its holder.
pub(super) enum Cause {
    RanOut,
    /// The holder released the message, which it had not begun.
    Released,
}

/// The longest that the server keeps a lease record back to write it with another record, and the
/// time until it writes.
const WRITTEN_WITHIN_NS: u64 = 110_000_000;

/// Reads the journal. `lives` are its ends when its servers began. `ends` are its ends at the times
/// at which it grew.
///
/// # Errors
/// An impossible event, or a part of the journal that cannot be read.
pub(super) fn follow(
    reader: &Reader,
    lives: &[Position],
    ends: &[(Position, Instant)],
) -> Result<Followed, String> {
    let (mut all, mut lives) = (Holders::default(), lives.iter().peekable());
    let mut cursor = reader.cursor(Position::ZERO);
    // The first entries about older messages were removed together with the files that held them.
    let removed = cursor.after();
    let mut next = || cursor.next(reader.persisted(), &AllTopics);
    while let Some(batch) = next().map_err(|error| format!("the journal cannot be read: {error}"))? {
        for record in batch.records() {
            while lives.next_if(|begin| record.position > **begin).is_some() {
                all.holders.retain(|(queue, _), _| queue == AT_MOST_ONCE);
            }
            if record.kind == RecordKind::Publish
                && let Some(job) = job_of(record.data)
            {
                all.jobs.insert(record.position.get(), job);
            }
            if record.kind == RecordKind::Lease {
                let until = ends.get(ends.partition_point(|(end, _)| *end < record.position));
                all.take(&record, removed, until.map_or(Instant::from_ns(0), |(_, at)| *at))?;
            }
        }
    }
    Ok(Followed { count: all.counted, ends: all.ends })
}

impl Holders {
    /// `until`: when the record was written.
    fn take(&mut self, record: &Record<'_>, removed: Position, until: Instant) -> Result<(), String> {
        for run in LeaseRun::read(record.data, record.position) {
            let run = run.map_err(|error| format!("record {}: {error}", record.position))?;
            for position in run.first.max(removed.next()).get()..=run.last.get() {
                self.counted += 1;
                let cause = match run.kind {
                    LeaseEventKind::RanOut => Some(Cause::RanOut),
                    LeaseEventKind::Released => Some(Cause::Released),
                    _ => None,
                };
                if let (jobs::QUEUE, Some(cause), Some(job)) = (record.topic, cause, self.jobs.get(&position))
                {
                    let from = Instant::from_ns(until.as_ns().saturating_sub(WRITTEN_WITHIN_NS));
                    let worker = run.consumer.to_owned();
                    self.ends.push(LeaseEnd { worker, job: *job, cause, from, until });
                }
                self.take_one(record.topic, position, &run)
                    .map_err(|reason| format!("record {}: message {position} {reason}", record.position))?;
            }
        }
        Ok(())
    }

    fn take_one(&mut self, queue: &str, position: u64, run: &LeaseRun<'_>) -> Result<(), String> {
        let key = (queue.to_owned(), position);
        let holder = self.holders.get(&key).map(String::as_str);
        let is_right = match run.kind {
            LeaseEventKind::Delivered
            | LeaseEventKind::AcknowledgedUnheld
            | LeaseEventKind::ExpiredUnheld => holder.is_none(),
            _ => holder == Some(run.consumer) && queue != AT_MOST_ONCE,
        };
        if !is_right {
            return Err(format!("is held by {holder:?}, and {:?} by {}", run.kind, run.consumer));
        }
        match run.kind {
            LeaseEventKind::Delivered => drop(self.holders.insert(key, run.consumer.to_owned())),
            _ => drop(self.holders.remove(&key)),
        }
        Ok(())
    }
}
