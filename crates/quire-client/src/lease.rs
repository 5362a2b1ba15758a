//! The lease of one message of a queue: its owner, and its end.
//!
//! A lease has one owner at every moment. [`Lease::begin`] and the verdict of the program change
//! the owner, and so does the server.
//!
//! | state | owner |
//! | --- | --- |
//! | `FETCHED` | the client. It renews the lease, or gives the message back |
//! | `HANDLED` | a handler that runs. The client renews the lease meanwhile |
//! | `HELD` | the program. Only the program extends the lease |
//! | `SETTLED`, `SETTLED_LATE` | none. The program has given its verdict |
//! | `LOST`, `OUTRUN`, `RETURNED` | none. The message is in its queue, or with another consumer |

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use quire_types::{Bookmark, Verdict};

use quire_command::Queued;
use quire_types::time::Instant;

/// The leases of a subscription that the client renews.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Renewal {
    /// Leases of messages that the program has not begun. After that the program extends them: it
    /// takes messages one by one or in batches, and the client does not know how long each one
    /// takes.
    #[default]
    UntilBegun,
    /// Also leases of messages on which a handler runs, until [`Lease::end_handling`].
    WhileHandled,
    /// None. Messages that the program does not begin in time are released.
    Never,
}

/// The result of [`Lease::begin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// The program gets the message.
    Yes,
    /// As `Yes`, and the lease has run for a while, so renew it now ([`super::ClientCore::renew`]).
    Aged,
    /// The program must not see the message: its lease is lost, or ends too soon, and the message
    /// is delivered again.
    No,
}

/// How a message was delivered by a queue, and whether this client still holds it. All copies of
/// the message share it.
#[derive(Debug)]
pub struct Lease {
    pub(super) queue: Arc<str>,
    bookmark: Bookmark,
    subscription: u32,
    /// The period that the server granted last.
    lease_ms: AtomicU64,
    deliveries: u32,
    cancels: u32,
    renewal: Renewal,
    /// Nanoseconds of the driver's clock; `u64::MAX`: it does not end.
    deadline: AtomicU64,
    /// When the client last asked for another period, or got the first one; nanoseconds, too.
    asked_at: AtomicU64,
    state: AtomicU8,
}

/// `Lease::state`: the program has begun the message, and there is no verdict and no end of the
/// lease.
const HELD: u8 = 0;
/// The client has given a verdict on the message. The bits of [`VERDICTS`] contain it.
const SETTLED: u8 = 1;
/// The client no longer holds the message.
const LOST: u8 = 2;
/// The lease was over, and then the client gave a verdict on the message. The bits of [`VERDICTS`]
/// contain it.
const SETTLED_LATE: u8 = 3;
/// The message has arrived, and the program has not begun it.
const FETCHED: u8 = 4;
/// It was released before the program began it, or the program has processed another copy. The
/// program must not see it.
const RETURNED: u8 = 5;
/// A handler runs on the message. Otherwise as `HELD`.
const HANDLED: u8 = 6;
/// A handler runs on the message, and the client no longer holds it.
const OUTRUN: u8 = 7;

/// The bits of `Lease::state` with the verdict of a settled message. The verdict and the state
/// change together, so no reader sees one without the other.
const VERDICTS: u8 = !STATES;
/// The bits of `Lease::state` with one of the values above.
const STATES: u8 = 0b111;
const ACKNOWLEDGED: u8 = 0b00_000;
const CANCELLED: u8 = 0b01_000;
const EXPIRED: u8 = 0b10_000;

/// `lease_ms` of a lease without end.
const UNLIMITED_MS: u64 = u64::MAX;

/// Renewals in each lease period. With three, two of them may fail before a lease is lost.
const RENEWALS_PER_PERIOD: u64 = 3;
/// A message that has not begun is released when this part of its period is left. In this time the
/// command reaches the server.
const RETURN_PART: u64 = 4;
/// A lease that has run for this part of its period is renewed when the program begins the message,
/// so that the program has almost a whole period. Renewals of younger leases would cost a command
/// for each message of a fast program.
const AGED_PART: u64 = 20;
/// See [`Lease::must_renew`].
const EARLY_PART: u32 = 12;

/// How a verdict about a message counts.
pub(super) enum Word {
    /// The lease was not known to be over.
    InTime,
    /// The lease was over. The message may be with another consumer.
    Late,
    /// It was not the first verdict.
    Repeated,
}

/// The owner of a lost lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// The client. The program never sees the message.
    Unbegun,
    /// The program.
    Begun,
    /// A handler that still runs.
    Outrun,
}

impl Lease {
    /// The lease of a message that has just arrived.
    pub(super) fn new(
        queue: Arc<str>,
        bookmark: Bookmark,
        subscription: u32,
        queued: &Queued<'_>,
        renewal: Renewal,
        arrived: Instant,
    ) -> Self {
        let lease = Lease {
            queue,
            bookmark,
            subscription,
            lease_ms: AtomicU64::new(queued.lease_ms),
            deliveries: queued.deliveries,
            cancels: queued.cancels,
            renewal,
            deadline: AtomicU64::new(u64::MAX),
            asked_at: AtomicU64::new(arrived.0),
            state: AtomicU8::new(FETCHED),
        };
        lease.deadline.store(lease.end_after(arrived, lease.period()), Ordering::Relaxed);
        lease
    }

    /// The lease of a message that did not come from a connection. Commands about it are not sent.
    pub(super) fn detached(queue: &str, bookmark: Bookmark, queued: &Queued<'_>) -> Self {
        Lease {
            deadline: AtomicU64::new(u64::MAX),
            state: AtomicU8::new(HELD),
            ..Lease::new(queue.into(), bookmark, 0, queued, Renewal::Never, Instant(0))
        }
    }

    /// The queue fields of a message with this lease.
    pub(super) fn queued(&self) -> Queued<'_> {
        let Lease { queue, deliveries, cancels, .. } = self;
        Queued {
            lease_ms: self.lease_ms(),
            deliveries: *deliveries,
            cancels: *cancels,
            position: 0,
            queue: Some(queue.as_bytes()),
        }
    }

    /// The queue that delivered the message.
    pub fn queue(&self) -> &str {
        &self.queue
    }

    /// The message.
    pub fn bookmark(&self) -> Bookmark {
        self.bookmark
    }

    /// The period that the server granted; `None`: no lease, or one without end.
    pub fn period(&self) -> Option<Duration> {
        let lease_ms = self.lease_ms();
        (lease_ms != 0 && lease_ms != UNLIMITED_MS).then(|| Duration::from_millis(lease_ms))
    }

    /// When it ends, counted from the arrival of the message, or from the last renewal that the
    /// server has confirmed. `None`: it has no end, or there is no lease.
    pub fn deadline(&self) -> Option<Instant> {
        let deadline = self.deadline.load(Ordering::Acquire);
        (deadline != u64::MAX).then_some(Instant(deadline))
    }

    /// The number of deliveries of the message, including this one; 0 for a barrier.
    pub fn deliveries(&self) -> u32 {
        self.deliveries
    }

    /// The number of its cancels.
    pub fn cancels(&self) -> u32 {
        self.cancels
    }

    /// The number of the subscription that received it.
    pub fn subscription(&self) -> u32 {
        self.subscription
    }

    /// Called before the program gets the message.
    #[must_use]
    pub fn begin(&self, now: Instant) -> Begun {
        match self.state() {
            FETCHED => (),
            LOST | OUTRUN | RETURNED => return Begun::No,
            _ => return Begun::Yes,
        }
        if self.is_too_late(now) {
            return Begun::No;
        }
        let to = if self.renewal == Renewal::WhileHandled && self.has_lease() { HANDLED } else { HELD };
        match self.change(FETCHED, to) {
            false => Begun::No,
            true if self.is_aged(now) => Begun::Aged,
            true => Begun::Yes,
        }
    }

    /// The handler has returned. Without a verdict, the program has the message from now on, and
    /// extends its lease.
    pub fn end_handling(&self) {
        // The thread of the client can lose the lease in the meantime, and get it again with
        // another delivery.
        let _ = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| match state {
            HANDLED => Some(HELD),
            OUTRUN => Some(LOST),
            _ => None,
        });
    }

    /// Whether the program must not see the message, or has processed it.
    pub fn is_settled_or_over(&self) -> bool {
        self.has_lease() && self.state() != FETCHED
    }

    /// Whether another consumer has the message, or may have it: the server reported it, the time
    /// is over, or the connection is closed.
    pub fn is_lost(&self, now: Instant) -> bool {
        match self.state() {
            SETTLED => false,
            LOST | OUTRUN | SETTLED_LATE | RETURNED => true,
            _ => self.has_lease() && self.deadline().is_some_and(|deadline| deadline <= now),
        }
    }

    /// The first verdict of the client on the message. Later ones have no effect. A cancel is
    /// returned without its delay.
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
        self.has_lease() && self.verdict().is_none()
    }

    pub(super) fn has_lease(&self) -> bool {
        self.lease_ms() != 0
    }

    /// Whether the program has the message, and it is neither settled nor lost.
    pub(super) fn is_begun(&self) -> bool {
        matches!(self.state(), HELD | HANDLED)
    }

    /// Whether a handler still runs on the message, which the client no longer holds.
    pub(super) fn is_outrun(&self) -> bool {
        self.state() == OUTRUN
    }

    /// Releases the message, unless the program has begun it. Returns whether it did.
    pub(super) fn give_back(&self) -> bool {
        self.change(FETCHED, RETURNED)
    }

    /// The client no longer holds the message. `None`: it has a verdict, which remains.
    pub(super) fn lose(&self) -> Option<Lost> {
        if self.change(FETCHED, LOST) {
            Some(Lost::Unbegun)
        } else if self.change(HANDLED, OUTRUN) {
            Some(Lost::Outrun)
        } else {
            self.change(HELD, LOST).then_some(Lost::Begun)
        }
    }

    /// The server has delivered the message to this client again, while its handler still runs: the
    /// handler continues with this delivery. False: the handler has returned.
    pub(super) fn resume(&self, arrived: Instant) -> bool {
        self.set_period(arrived, self.period());
        self.change(OUTRUN, HANDLED)
    }

    /// The client asked for another period at `now`. The server grants it from then on.
    pub(super) fn set_period(&self, now: Instant, period: Option<Duration>) {
        self.asked_at.store(now.0, Ordering::Release);
        self.deadline.store(self.end_after(now, period), Ordering::Release);
    }

    /// The client asks for another period. It counts when the server confirms it.
    pub(super) fn ask(&self, now: Instant) {
        self.asked_at.store(now.0, Ordering::Release);
    }

    /// The server has granted the request of `asked_at`, if it is the latest one. `granted_ms`: the
    /// length of the period, when the server sends it. The period changes when the queue is
    /// altered.
    pub(super) fn confirm(&self, asked_at: Instant, granted_ms: Option<NonZeroU32>) {
        if self.asked_at.load(Ordering::Acquire) != asked_at.0 {
            return;
        }
        let before = self.period();
        if let Some(granted_ms) = granted_ms {
            self.lease_ms.store(granted_ms.get().into(), Ordering::Release);
        }
        let end = self.end_after(asked_at, self.period());
        if self.period() < before {
            self.deadline.store(end, Ordering::Release);
        } else {
            self.deadline.fetch_max(end, Ordering::AcqRel);
        }
    }

    /// Notes a verdict about the message; the first one counts.
    pub(super) fn settle(&self, verdict: Verdict) -> Word {
        let verdict = match verdict {
            Verdict::Acknowledge => ACKNOWLEDGED,
            Verdict::Cancel | Verdict::CancelWithDelay { .. } | Verdict::Release => CANCELLED,
            Verdict::Expire => EXPIRED,
        };
        // The loop checks the states in the order in which the program's threads change them. So it
        // finds a concurrent change at the next state.
        for held in [FETCHED, HANDLED, HELD] {
            if self.change(held, SETTLED | verdict) {
                return Word::InTime;
            }
        }
        for lost in [OUTRUN, LOST] {
            if self.change(lost, SETTLED_LATE | verdict) {
                return Word::Late;
            }
        }
        Word::Repeated
    }

    /// When the client has to renew it, or to release the message.
    pub(super) fn needs_attention_at(&self) -> Option<Instant> {
        let back = self.return_at().filter(|_| self.state() == FETCHED);
        let renewal = self.renew_at().filter(|_| self.is_renewed());
        back.into_iter().chain(renewal).min()
    }

    /// Whether the message is released at `now`, because the program has not begun it. Renewals
    /// were not answered, or there are none.
    pub(super) fn must_return(&self, now: Instant) -> bool {
        self.state() == FETCHED && self.is_too_late(now)
    }

    /// Whether the client has to renew it at `now`, or soon after it. Renewals that are due soon
    /// are sent together.
    pub(super) fn must_renew(&self, now: Instant) -> bool {
        let early = now + self.period().unwrap_or_default() / EARLY_PART;
        self.is_renewed() && self.renew_at().is_some_and(|at| at <= early)
    }

    /// Whether the client may renew it now, because it has run for a while.
    pub(super) fn may_renew(&self, now: Instant) -> bool {
        self.is_renewed() && self.is_aged(now)
    }

    fn lease_ms(&self) -> u64 {
        self.lease_ms.load(Ordering::Acquire)
    }

    fn is_renewed(&self) -> bool {
        self.renewal != Renewal::Never && matches!(self.state(), FETCHED | HANDLED)
    }

    fn is_too_late(&self, now: Instant) -> bool {
        self.return_at().is_some_and(|at| at <= now)
    }

    fn is_aged(&self, now: Instant) -> bool {
        let (Some(period), Some(deadline)) = (self.period_ns(), self.deadline()) else { return false };
        let is_asked = now.0 < self.asked_at.load(Ordering::Acquire).saturating_add(period / AGED_PART);
        self.renewal != Renewal::Never
            && !is_asked
            && deadline.0 < now.0.saturating_add(period - period / AGED_PART)
    }

    fn return_at(&self) -> Option<Instant> {
        let (period, deadline) = (self.period_ns()?, self.deadline()?);
        Some(Instant(deadline.0.saturating_sub(period / RETURN_PART)))
    }

    fn renew_at(&self) -> Option<Instant> {
        let (period, deadline) = (self.period_ns()?, self.deadline()?);
        let step = period / RENEWALS_PER_PERIOD;
        let asked_at = self.asked_at.load(Ordering::Acquire);
        Some(Instant(deadline.0.saturating_sub(period - step).max(asked_at.saturating_add(step))))
    }

    fn period_ns(&self) -> Option<u64> {
        self.period().map(|period| u64::try_from(period.as_nanos()).unwrap_or(u64::MAX))
    }

    fn end_after(&self, now: Instant, period: Option<Duration>) -> u64 {
        period.map_or(u64::MAX, |period| (now + period).0)
    }

    fn state(&self) -> u8 {
        self.state.load(Ordering::Acquire) & STATES
    }

    fn change(&self, from: u8, to: u8) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use quire_types::PublisherId;

    use super::*;

    /// Leases of messages on which handlers run.
    fn handled(count: usize) -> Vec<Lease> {
        let bookmark = Bookmark { publisher: PublisherId(7), sequence: 1 };
        let queued = Queued { lease_ms: 1_000, deliveries: 1, ..Queued::default() };
        let lease = || {
            let lease = Lease::new("jobs".into(), bookmark, 1, &queued, Renewal::WhileHandled, Instant(0));
            assert_eq!(lease.begin(Instant(0)), Begun::Yes);
            lease
        };
        std::iter::repeat_with(lease).take(count).collect()
    }

    #[test]
    #[allow(clippy::disallowed_methods)] // the thread of the program and that of the client
    fn a_handler_has_ended_also_when_its_lease_is_lost_and_granted_again_meanwhile() {
        let leases = handled(10_000);
        // Both threads work on the same lease.
        let (begun, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for (index, lease) in leases.iter().enumerate() {
                    begun.store(index + 1, Ordering::Release);
                    while ended.load(Ordering::Acquire) <= index {
                        let _ = lease.lose();
                        let _ = lease.resume(Instant(0));
                    }
                }
            });
            for (index, lease) in leases.iter().enumerate() {
                while begun.load(Ordering::Acquire) <= index {
                    std::hint::spin_loop();
                }
                lease.end_handling();
                ended.store(index + 1, Ordering::Release);
            }
        });
        assert_eq!(leases.iter().filter(|lease| matches!(lease.state(), HANDLED | OUTRUN)).count(), 0);
    }
}
