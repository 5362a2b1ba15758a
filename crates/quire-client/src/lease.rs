//! Messages of queues that a client holds: the state of each lease, and the commands about them that are still to be sent.
//!
//! Acknowledgements wait until there is a batch of them, or for a limited time, and are sent as one command for each queue. A lease ends
//! with its connection. An acknowledgement or an expiry of a message whose lease is over is still sent: the server removes the message when
//! the queue allows that and still has it (docs/clients.md).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use quire_types::{Bookmark, PublisherId};
use rustc_hash::FxBuildHasher;

use quire_command::{Acks, Bookmarks, Command, Extend, Message, Queued, put_bookmark};
use quire_types::Verdict;
use quire_types::time::Instant;
use quire_wire::Encode;

/// How a message came from a queue, and whether it is still in our hands. Shared by all copies of the message.
#[derive(Debug)]
pub struct Lease {
    queue: Arc<str>,
    bookmark: Bookmark,
    subscription: u32,
    lease_ms: u64,
    deliveries: u32,
    cancels: u32,
    /// Nanoseconds of the driver's clock; `u64::MAX`: it does not end.
    deadline: AtomicU64,
    state: AtomicU8,
    connection: Arc<ConnectionEnd>,
}

/// Whether the connection that brought the leases is over.
#[derive(Debug, Default)]
struct ConnectionEnd(AtomicBool);

/// `Lease::state`: the program has begun the message, and there is no verdict and no end of the lease.
const HELD: u8 = 0;
/// The client has given a verdict on the message. The bits of [`VERDICTS`] say which.
const SETTLED: u8 = 1;
/// The server has reported that the client no longer holds the message.
const LOST: u8 = 2;
/// The lease was over, and then the client gave a verdict on the message. The bits of [`VERDICTS`] say which.
const SETTLED_LATE: u8 = 3;
/// The message came, and the program has not begun it.
const FETCHED: u8 = 4;
/// It went back before the program began it.
const RELEASED: u8 = 5;

/// The bits of `Lease::state` with the verdict of a settled message. The verdict and the state change together, so no reader sees one
/// without the other.
const VERDICTS: u8 = !STATES;
/// The bits of `Lease::state` with one of the values above.
const STATES: u8 = 0b111;
const ACKNOWLEDGED: u8 = 0b00_000;
const CANCELLED: u8 = 0b01_000;
const EXPIRED: u8 = 0b10_000;

/// `lease_ms` of a lease without end.
const UNLIMITED_MS: u64 = u64::MAX;

impl Lease {
    /// The lease of a message that did not come from a connection. Commands about it are not sent.
    pub(super) fn detached(queue: &str, bookmark: Bookmark, queued: &Queued<'_>) -> Self {
        Lease {
            queue: queue.into(),
            bookmark,
            subscription: 0,
            lease_ms: queued.lease_ms,
            deliveries: queued.deliveries,
            cancels: queued.cancels,
            deadline: AtomicU64::new(u64::MAX),
            state: AtomicU8::new(HELD),
            connection: Arc::default(),
        }
    }

    /// The queue fields of a message with this lease.
    pub(super) fn queued(&self) -> Queued<'_> {
        let Lease { queue, lease_ms, deliveries, cancels, .. } = self;
        Queued {
            lease_ms: *lease_ms,
            deliveries: *deliveries,
            cancels: *cancels,
            position: 0,
            queue: Some(queue.as_bytes()),
        }
    }

    /// The queue that the message came from.
    pub fn queue(&self) -> &str {
        &self.queue
    }

    /// The message.
    pub fn bookmark(&self) -> Bookmark {
        self.bookmark
    }

    /// The period that the server granted; `None`: no lease, or one without end.
    pub fn period(&self) -> Option<Duration> {
        (self.lease_ms != 0 && self.lease_ms != UNLIMITED_MS).then(|| Duration::from_millis(self.lease_ms))
    }

    /// When it ends, counted from the arrival of the message; `None`: it has no end, or there is no lease.
    pub fn deadline(&self) -> Option<Instant> {
        let deadline = self.deadline.load(Ordering::Acquire);
        (deadline != u64::MAX).then_some(Instant(deadline))
    }

    /// How often the message was delivered, this time included; 0 for a barrier.
    pub fn deliveries(&self) -> u32 {
        self.deliveries
    }

    /// How often it was cancelled.
    pub fn cancels(&self) -> u32 {
        self.cancels
    }

    /// The number of the subscription that it came on.
    pub fn subscription(&self) -> u32 {
        self.subscription
    }

    /// The program gets the message. False: the message was released before, and the program must not see it.
    pub fn begin(&self) -> bool {
        let begun = self.state.compare_exchange(FETCHED, HELD, Ordering::AcqRel, Ordering::Acquire);
        begun != Err(RELEASED)
    }

    /// Gives the message back, unless the program has begun it. Whether it did.
    fn release(&self) -> bool {
        self.state.compare_exchange(FETCHED, RELEASED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Whether another consumer has the message, or may have it: the server reported it, the time is over, or the connection is closed.
    pub fn is_lost(&self, now: Instant) -> bool {
        match self.state.load(Ordering::Acquire) & STATES {
            SETTLED => false,
            LOST | SETTLED_LATE | RELEASED => true,
            _ => {
                self.lease_ms != 0
                    && (self.is_disconnected() || self.deadline().is_some_and(|deadline| deadline <= now))
            }
        }
    }

    /// The verdict of the client on the message: the first one, because later ones have no effect. A cancel is given without its delay.
    pub fn verdict(&self) -> Option<Verdict> {
        let state = self.state.load(Ordering::Acquire);
        matches!(state & STATES, SETTLED | SETTLED_LATE).then(|| match state & VERDICTS {
            CANCELLED => Verdict::Cancel,
            EXPIRED => Verdict::Expire,
            _ => Verdict::Acknowledge,
        })
    }

    /// Whether there is a lease and no verdict: the queue keeps the message until it gets one.
    pub(super) fn is_unsettled(&self) -> bool {
        self.lease_ms != 0 && self.verdict().is_none()
    }

    /// Notes a verdict about the message; the first one counts.
    fn settle(&self, verdict: Verdict) -> Word {
        let verdict = match verdict {
            Verdict::Acknowledge => ACKNOWLEDGED,
            Verdict::Cancel | Verdict::CancelWithDelay { .. } | Verdict::Release => CANCELLED,
            Verdict::Expire => EXPIRED,
        };
        let change = |from, to| self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
        self.begin();
        if self.lease_ms != 0 && self.is_disconnected() {
            // Fails when the message was settled, or is lost already.
            let _ = change(HELD, LOST);
        }
        if change(HELD, SETTLED | verdict).is_ok() {
            Word::InTime
        } else if change(LOST, SETTLED_LATE | verdict).is_ok() {
            Word::Late
        } else {
            Word::Repeated
        }
    }

    fn is_disconnected(&self) -> bool {
        self.connection.0.load(Ordering::Acquire)
    }
}

/// How a verdict about a message counts.
enum Word {
    /// The lease was not known to be over.
    InTime,
    /// The lease was over. The message may be with another consumer.
    Late,
    /// Another verdict came before it.
    Repeated,
}

/// The leases of one client.
#[derive(Debug)]
pub(super) struct Leases {
    batch_size: u32,
    timeout: Duration,
    held: HashMap<(u32, u64, u64), Arc<Lease>, FxBuildHasher>,
    connection: Arc<ConnectionEnd>,
    /// Verdicts that wait.
    waiting: Vec<Waiting>,
    waiting_count: u64,
    /// When those that wait go out at the latest.
    due: Option<Instant>,
    /// Whether they go out with the next bytes.
    is_due: bool,
}

/// Messages of one queue with the same verdict, which was not sent yet.
#[derive(Debug)]
pub(super) struct Waiting {
    pub queue: Arc<str>,
    pub verdict: Verdict,
    /// As bytes.
    pub bookmarks: Vec<u8>,
}

/// Bookmarks of one command: with the longest name of a queue they fit into the smallest frame that a server may be configured to take.
const BOOKMARKS_PER_FRAME: usize = 4096;

/// Bytes of the bookmarks of begun messages that one command takes.
pub(super) const BEGUN_SIZE_MAX: usize = BOOKMARKS_PER_FRAME * size_of::<u128>();

impl Leases {
    pub fn new(batch_size: u32, timeout: Duration) -> Self {
        Leases {
            batch_size: batch_size.max(1),
            timeout,
            held: HashMap::default(),
            connection: Arc::default(),
            waiting: Vec::new(),
            waiting_count: 0,
            due: None,
            is_due: false,
        }
    }

    /// Makes the lease of a message that came from a queue. The message names the queue, or all messages of the subscription come from `queue`.
    pub fn received(
        &mut self,
        now: Instant,
        message: &Message<'_>,
        queued: &Queued<'_>,
        queue: impl FnOnce() -> Option<Arc<str>>,
    ) -> Option<Arc<Lease>> {
        let queue = match queued.queue {
            Some(name) => Arc::from(std::str::from_utf8(name).ok()?),
            None => queue()?,
        };
        let (subscription, (publisher, sequence)) = (message.subscription, message.bookmark?);
        let period = (queued.lease_ms != UNLIMITED_MS).then(|| Duration::from_millis(queued.lease_ms));
        let lease = Arc::new(Lease {
            queue,
            bookmark: Bookmark { publisher: PublisherId(publisher), sequence },
            subscription,
            lease_ms: queued.lease_ms,
            deliveries: queued.deliveries,
            cancels: queued.cancels,
            deadline: AtomicU64::new(match period {
                Some(period) if queued.lease_ms > 0 => (now + period).0,
                _ => u64::MAX,
            }),
            state: AtomicU8::new(FETCHED),
            connection: self.connection.clone(),
        });
        if queued.lease_ms > 0 {
            self.held.insert((subscription, publisher, sequence), lease.clone());
        }
        Some(lease)
    }

    /// The server reports that a lease is over.
    pub fn lost(&mut self, subscription: u32, publisher: u64, sequence: u64) {
        if let Some(lease) = self.held.remove(&(subscription, publisher, sequence)) {
            // A verdict that was given before the server ended the lease remains.
            for from in [FETCHED, HELD] {
                let _ = lease.state.compare_exchange(from, LOST, Ordering::AcqRel, Ordering::Acquire);
            }
        }
    }

    /// Whether the program has messages of the subscription that are neither settled nor lost.
    pub fn has_begun(&self, subscription: u32) -> bool {
        let is_begun = |lease: &Lease| lease.state.load(Ordering::Acquire) == HELD;
        self.held.iter().any(|((of, ..), lease)| *of == subscription && is_begun(lease))
    }

    /// Ends the leases of a subscription. Gives the bookmarks of the messages that the program has begun, as bytes; the others are
    /// released.
    pub fn release(&mut self, subscription: u32) -> Vec<u8> {
        let mut begun = Vec::new();
        self.held.retain(|(of, publisher, sequence), lease| {
            if *of == subscription && !lease.release() {
                lease.state.store(LOST, Ordering::Release);
                put_bookmark(&mut begun, *publisher, *sequence);
            }
            *of != subscription
        });
        begun
    }

    /// Keeps an acknowledgement until a batch is full; `granted` is the backlog of the subscription. Whether it is worth waking the driver.
    pub fn acknowledge(&mut self, lease: &Lease, granted: u32, now: Instant) -> bool {
        if matches!(self.take(lease, Verdict::Acknowledge), Word::Repeated) {
            return false;
        }
        self.keep(lease, Verdict::Acknowledge);
        let is_first = self.due.is_none();
        if is_first {
            self.due = Some(now + self.timeout);
        }
        let was_due = self.is_due;
        self.is_due |= self.waiting_count >= u64::from(self.batch_size.min(granted.max(1)));
        is_first || self.is_due != was_due
    }

    /// The frame of a cancel or an expiry, which is sent at once. `None` when an earlier verdict was given. A late cancel is not sent: the
    /// message was returned when the lease ended, and a cancel must not take it from its next holder.
    pub fn settle(&mut self, lease: &Lease, verdict: Verdict) -> Option<Vec<u8>> {
        let is_said = match self.take(lease, verdict) {
            Word::InTime => true,
            Word::Late => !verdict.gives_back(),
            Word::Repeated => false,
        };
        is_said.then(|| {
            let mut bookmarks = Vec::new();
            put_bookmark(&mut bookmarks, lease.bookmark.publisher.get(), lease.bookmark.sequence);
            bookmarks
        })
    }

    /// Keeps a verdict until it can be sent.
    pub fn keep(&mut self, lease: &Lease, verdict: Verdict) {
        let is_it = |waiting: &Waiting| waiting.verdict == verdict && waiting.queue == lease.queue;
        let at = self.waiting.iter().position(is_it).unwrap_or_else(|| {
            self.waiting.push(Waiting { queue: lease.queue.clone(), verdict, bookmarks: Vec::new() });
            self.waiting.len() - 1
        });
        let Bookmark { publisher, sequence } = lease.bookmark;
        put_bookmark(&mut self.waiting[at].bookmarks, publisher.get(), sequence);
        self.waiting_count += 1;
    }

    /// Asks for longer leases of those that are still ours; `None`: for as long as the queue grants. Gives the frames.
    pub fn extend(&mut self, leases: &[Arc<Lease>], period: Option<Duration>, now: Instant) -> Vec<u8> {
        let mut by_queue: Vec<(&str, Vec<u8>)> = Vec::new();
        for lease in leases {
            let key = (lease.subscription, lease.bookmark.publisher.get(), lease.bookmark.sequence);
            if !self.held.contains_key(&key) || lease.is_lost(now) {
                continue;
            }
            let granted = period.or(lease.period());
            let deadline = granted.map_or(u64::MAX, |period| (now + period).0);
            lease.deadline.store(deadline, Ordering::Release);
            let at = by_queue.iter().position(|(queue, _)| *queue == &*lease.queue).unwrap_or_else(|| {
                by_queue.push((&lease.queue, Vec::new()));
                by_queue.len() - 1
            });
            put_bookmark(&mut by_queue[at].1, key.1, key.2);
        }
        // 0 means the period of the queue. So a period below a millisecond is sent as one millisecond.
        let to_ms = |period: Duration| u64::try_from(period.as_millis()).unwrap_or(UNLIMITED_MS - 1).max(1);
        let period_ms = period.map_or(0, to_ms);
        let mut out = Vec::new();
        for (queue, bookmarks) in by_queue {
            for bookmarks in pieces(&bookmarks) {
                let extend = Extend { period_ms, command: 0, acks: Acks(0), queue, bookmarks };
                Command::Extend(extend).encode(&mut out);
            }
        }
        out
    }

    /// Acknowledgements that have waited long enough are sent with the next bytes.
    pub fn tick(&mut self, now: Instant) {
        if self.due.is_some_and(|due| due <= now) {
            self.is_due = true;
        }
    }

    /// Whether acknowledgements go out with the next bytes.
    pub fn is_due(&self) -> bool {
        self.is_due
    }

    /// The waiting verdicts, to be sent now.
    pub fn take_waiting(&mut self) -> Vec<Waiting> {
        (self.due, self.is_due, self.waiting_count) = (None, false, 0);
        std::mem::take(&mut self.waiting)
    }

    /// Verdicts that were not sent.
    pub fn waiting_count(&self) -> u64 {
        self.waiting_count
    }

    pub fn next_timeout(&self) -> Option<Instant> {
        self.due.filter(|_| !self.is_due)
    }

    /// Every lease is over. The verdicts that wait go out with the first bytes of the next connection. Gives their number.
    pub fn disconnected(&mut self) -> u64 {
        self.connection.0.store(true, Ordering::Release);
        self.connection = Arc::default();
        self.held.clear();
        self.is_due |= self.waiting_count > 0;
        self.waiting_count
    }

    fn take(&mut self, lease: &Lease, verdict: Verdict) -> Word {
        let word = lease.settle(verdict);
        if matches!(word, Word::InTime) {
            let Bookmark { publisher, sequence } = lease.bookmark;
            self.held.remove(&(lease.subscription, publisher.get(), sequence));
        }
        word
    }
}

/// Bookmarks, as many at a time as go into one frame.
pub(super) fn pieces(bookmarks: &[u8]) -> impl Iterator<Item = Bookmarks<'_>> {
    bookmarks.chunks(BOOKMARKS_PER_FRAME * size_of::<u128>()).filter_map(Bookmarks::from_bytes)
}
