//! The messages of queues that a client holds: their leases, and the commands about them that were
//! not sent yet.
//!
//! The client renews the leases of messages that wait in it, and of messages on which a handler
//! runs. It releases messages that the program cannot begin before the lease ends
//! ([`Leases::attend`]). It drops messages whose leases are lost, and reports them.
//!
//! Acknowledgements wait until a batch is full, or for a limited time. Each queue gets one command.
//! A lease ends with its connection. An acknowledgement or an expiry of a message whose lease is
//! over is still sent: the server removes the message when the queue allows that and still has it
//! (docs/clients.md). Acknowledgements and expiries that are not known to be durable when the
//! connection is lost are sent again.
//!
//! The server may deliver a message again before it has received the client's command about it. The
//! client does not pass such a copy to the program. Either the program has settled the message, or
//! a handler still runs on it, or the command that releases the message is still to be received and
//! releases the copy, too.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use quire_types::{Bookmark, PublisherId};
use rustc_hash::FxBuildHasher;

use super::Event;
use super::lease::{Lease, Lost, Renewal, Word};
use quire_command::{
    Acks, BegunMessages, Bookmarks, Command, Extend, LeaseEnd, Message, Queued, Selection, Settle,
    put_begun_queue, put_bookmark,
};
use quire_types::Verdict;
use quire_types::time::Instant;
use quire_wire::Encode;

/// A delivery. A subscription to several queues over one topic gets a copy of each message from
/// each queue, with the same bookmark.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub subscription: u32,
    pub bookmark: Bookmark,
    pub queue: Arc<str>,
}

/// Why leases were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LossCause {
    /// Their period was over, and the messages are in the queue again.
    Expired,
    /// Their period was over, and the messages left the queue.
    MessageExpired,
    /// Another connection settled the messages.
    Settled,
    /// The connection was lost.
    Disconnected,
    /// The server ended the subscription.
    Ended,
}

/// The leases of one client.
#[derive(Debug)]
pub(super) struct Leases {
    batch_size: u32,
    timeout: Duration,
    held: HashMap<Key, Arc<Lease>, FxBuildHasher>,
    /// Lost leases of messages on which a handler still runs, and some whose handler has ended.
    outrun: HashMap<Key, Arc<Lease>, FxBuildHasher>,
    /// Above this number, those whose handlers have ended are dropped.
    outrun_count_max: usize,
    /// The earliest time at which a lease needs work.
    attends_at: Option<Instant>,
    /// Renewals that the server has not confirmed.
    renewals: VecDeque<Asked>,
    /// The client does not read, so it does not see the answers to renewals. A renewal counts when
    /// it is sent.
    is_unread: bool,
    /// Messages that are released by commands that the server has not answered.
    returns: VecDeque<Returned>,
    /// The messages in `returns`.
    returning: Index,
    /// Messages of retired subscriptions that were not released yet.
    retired: ByQueue,
    /// By subscription: deliveries that were lost before the program saw them, since the last call
    /// of `take_unseen`.
    unseen: HashMap<u32, u64, FxBuildHasher>,
    losses: Losses,
    /// Verdicts that wait.
    waiting: Vec<Waiting>,
    waiting_count: u64,
    /// The latest time at which the waiting ones are sent.
    due: Option<Instant>,
    /// Whether they are sent with the next bytes.
    is_due: bool,
    /// Verdicts that were sent and are not known to be durable, in their order.
    said: VecDeque<Said>,
    said_count: usize,
    /// The messages in `said` that were not returned to their queues. It is made at the first
    /// search for a delivery: most clients never need it.
    said_index: Option<Index>,
    /// Some verdicts were given, or are sent, after their leases ended. The server may deliver the
    /// messages again before it receives them, after a restart with any count of deliveries.
    has_late: bool,
}

/// Messages of one queue with the same verdict and reason. The verdict was not sent yet.
#[derive(Debug)]
pub(super) struct Waiting {
    pub queue: Arc<str>,
    pub verdict: Verdict,
    /// The reason of an expiry.
    pub reason: Option<Arc<str>>,
    /// As bytes.
    pub bookmarks: Vec<u8>,
}

impl Waiting {
    /// Adds the messages that were not returned to their queue.
    fn add_to(&self, index: &mut Index) {
        if !self.verdict.gives_back() {
            index.add(&self.queue, self.verdict, self.reason.as_ref(), &self.bookmarks);
        }
    }
}

/// Verdicts that were sent.
#[derive(Debug)]
struct Said {
    /// The number of messages that the client had settled after it.
    settled_count: u64,
    verdicts: Waiting,
}

/// A command for another period.
#[derive(Debug)]
struct Asked {
    command: u32,
    at: Instant,
    leases: Vec<Arc<Lease>>,
}

/// A command that releases messages.
#[derive(Debug)]
struct Returned {
    command: u32,
    queue: Arc<str>,
    bookmarks: Vec<u8>,
}

/// Messages in some lists, each with its first verdict there.
#[derive(Debug, Default)]
struct Index(HashMap<(Arc<str>, Bookmark), Indexed, FxBuildHasher>);

#[derive(Debug)]
struct Indexed {
    verdict: Verdict,
    reason: Option<Arc<str>>,
    /// The number of times that the message is in the lists.
    count: u32,
}

impl Index {
    fn add(&mut self, queue: &Arc<str>, verdict: Verdict, reason: Option<&Arc<str>>, bookmarks: &[u8]) {
        for bookmark in each(bookmarks) {
            let indexed = self.0.entry((queue.clone(), bookmark));
            let first = || Indexed { verdict, reason: reason.cloned(), count: 0 };
            indexed.or_insert_with(first).count += 1;
        }
    }

    /// Undoes [`Index::add`] with the same arguments.
    fn remove(&mut self, queue: &Arc<str>, bookmarks: &[u8]) {
        for bookmark in each(bookmarks) {
            if let Entry::Occupied(mut entry) = self.0.entry((queue.clone(), bookmark)) {
                entry.get_mut().count -= 1;
                if entry.get().count == 0 {
                    entry.remove();
                }
            }
        }
    }

    /// The first verdict on the message, and its reason.
    fn get(&self, lease: &Lease) -> Option<(Verdict, Option<Arc<str>>)> {
        let indexed = self.0.get(&(lease.queue.clone(), lease.bookmark()));
        indexed.map(|indexed| (indexed.verdict, indexed.reason.clone()))
    }
}

/// Losses that were not reported yet.
#[derive(Debug, Default)]
struct Losses {
    counts: BTreeMap<(Arc<str>, LossCause), LossCount>,
    reported_at: Option<Instant>,
}

/// A number of lost leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossCount {
    /// Leases of messages that the program had begun.
    pub begun: u64,
    /// Leases of messages that the program never sees.
    pub unbegun: u64,
}

/// Bookmarks of one command: with the longest name of a queue they fit into the smallest frame that
/// a server may be configured to take.
const BOOKMARKS_PER_FRAME: usize = 4096;

/// Bytes of a bookmark in a command.
const BOOKMARK_SIZE: usize = size_of::<u128>();

/// The most bytes of the bookmarks of begun messages in one command, and of the names of their
/// queues. Together they fit into that frame.
const BEGUN_SIZE_MAX: usize = BOOKMARKS_PER_FRAME * BOOKMARK_SIZE;
const BEGUN_QUEUES_SIZE_MAX: usize = 32 * 1024;

/// The most verdicts that are kept until they are known to be durable, 16 bytes each, and 64 more
/// while [`Leases::said_index`] has them. Each 16 bytes of a reason count as one more. When there
/// are more, the oldest are dropped, and are not sent again after a lost connection.
const SAID_COUNT_MAX: usize = 1_000_000;

/// Lost leases that are kept although no handler runs any more, in addition to one for each handler
/// that runs.
const OUTRUN_SLACK: usize = 64;

/// The shortest time between two reports of losses, so that a queue that loses leases again and
/// again does not flood the log.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

impl Leases {
    pub fn new(batch_size: u32, timeout: Duration) -> Self {
        Leases {
            batch_size: batch_size.max(1),
            timeout,
            held: HashMap::default(),
            outrun: HashMap::default(),
            outrun_count_max: OUTRUN_SLACK,
            attends_at: None,
            renewals: VecDeque::new(),
            is_unread: false,
            returns: VecDeque::new(),
            returning: Index::default(),
            retired: ByQueue::default(),
            unseen: HashMap::default(),
            losses: Losses::default(),
            waiting: Vec::new(),
            waiting_count: 0,
            due: None,
            is_due: false,
            said: VecDeque::new(),
            said_count: 0,
            said_index: None,
            has_late: false,
        }
    }

    /// Makes the lease of a message of a queue that has arrived at `arrived`. The message names the
    /// queue, or all messages of the subscription are from `queue`. A retired subscription releases
    /// the message. `Err`: the program must not see it, because the subscription is retired, or
    /// because the program has processed another copy.
    pub fn received(
        &mut self,
        arrived: Instant,
        message: &Message<'_>,
        queued: &Queued<'_>,
        (renewal, is_retired): (Renewal, bool),
        queue: impl FnOnce() -> Option<Arc<str>>,
    ) -> Result<Option<Arc<Lease>>, Unwanted> {
        let queue = match queued.queue {
            Some(name) => std::str::from_utf8(name).ok().map(Arc::from),
            None => queue(),
        };
        let (Some(queue), Some((publisher, sequence))) = (queue, message.bookmark) else { return Ok(None) };
        let bookmark = Bookmark { publisher: PublisherId(publisher), sequence };
        let lease = Lease::new(queue, bookmark, message.subscription, queued, renewal, arrived);
        if lease.has_lease() {
            let key = key_of(&lease);
            if self.is_unwanted(&lease) {
                return Err(Unwanted);
            }
            if let Some(running) = self.outrun.remove(&key)
                && running.resume(arrived)
            {
                *self.unseen.entry(message.subscription).or_default() += 1;
                self.watch(&running);
                self.held.insert(key, running);
                return Err(Unwanted);
            }
            let lease = Arc::new(lease);
            if is_retired {
                lease.give_back();
                self.retired.put(&lease);
                return Err(Unwanted);
            }
            self.watch(&lease);
            self.held.insert(key, lease.clone());
            return Ok(Some(lease));
        }
        Ok(Some(Arc::new(lease)))
    }

    /// The server reports that a lease is over.
    pub fn lost(&mut self, key: &Key, end: LeaseEnd, events: &mut VecDeque<Event>) {
        let cause = match end {
            LeaseEnd::Expired => LossCause::Expired,
            LeaseEnd::MessageExpired => LossCause::MessageExpired,
            LeaseEnd::SettledByAnother => LossCause::Settled,
        };
        if let Some(lease) = self.held.remove(key)
            && self.lose(&lease, cause)
        {
            note_dropped(lease.subscription(), events);
        }
    }

    /// The server has ended a subscription, and with it its leases.
    pub fn ended(&mut self, subscription: u32) {
        let ended: Vec<_> = self.held.extract_if(|key, _| key.subscription == subscription).collect();
        for (_, lease) in ended {
            self.lose(&lease, LossCause::Ended);
        }
        self.forget(subscription);
    }

    /// Every lease is over. The verdicts that wait or are not known to be durable are sent with the
    /// first bytes of the next connection. Returns the number of those that were never sent.
    pub fn disconnected(&mut self, events: &mut VecDeque<Event>) -> u64 {
        let mut dropped = Vec::new();
        for (_, lease) in std::mem::take(&mut self.held) {
            if self.lose(&lease, LossCause::Disconnected) {
                dropped.push(lease.subscription());
            }
        }
        dropped.sort_unstable();
        dropped.into_iter().for_each(|subscription| note_dropped(subscription, events));
        self.attends_at = None;
        self.renewals.clear();
        self.returns.clear();
        self.returning = Index::default();
        self.said_index = None;
        self.is_unread = false;
        let unsaid = self.waiting_count;
        let said = std::mem::take(&mut self.said).into_iter().map(|said| said.verdicts);
        let later = std::mem::take(&mut self.waiting);
        for verdicts in said.filter(|said| !said.verdict.gives_back()).chain(later) {
            let Waiting { queue, verdict, reason, bookmarks } = verdicts;
            self.waiting_of(&queue, verdict, reason.as_ref()).extend_from_slice(&bookmarks);
        }
        self.said_count = 0;
        self.waiting_count =
            self.waiting.iter().map(|waiting| waiting.bookmarks.len() / BOOKMARK_SIZE).sum::<usize>() as u64;
        self.has_late |= self.waiting_count > 0;
        self.is_due |= self.waiting_count > 0;
        unsaid
    }

    /// Whether the program has messages of the subscription that are neither settled nor lost.
    pub fn has_begun(&self, subscription: u32) -> bool {
        self.held.iter().any(|(key, lease)| key.subscription == subscription && lease.is_begun())
    }

    /// Whether the client holds messages of the subscription.
    pub fn has_any(&self, subscription: u32) -> bool {
        self.held.keys().any(|key| key.subscription == subscription)
    }

    /// Deliveries of the subscription that were lost before the program saw them, since the last
    /// call.
    pub fn take_unseen(&mut self, subscription: u32) -> u64 {
        self.unseen.remove(&subscription).unwrap_or_default()
    }

    /// Ends the leases of a subscription. Returns the messages that the program has begun. The
    /// others are released. `None`: there are more than one command can have, so all count as
    /// begun.
    pub fn release(&mut self, subscription: u32) -> Option<BegunList> {
        let mut begun = ByQueue::default();
        self.held.retain(|key, lease| {
            if key.subscription == subscription && !lease.give_back() {
                lease.lose();
                begun.put(lease);
            }
            key.subscription != subscription
        });
        self.forget(subscription);
        begun.as_begun()
    }

    /// Keeps an acknowledgement until a batch is full. `granted` is the backlog of the
    /// subscription. Returns whether to wake the driver.
    pub fn acknowledge(
        &mut self,
        lease: &Lease,
        granted: u32,
        now: Instant,
        events: &mut VecDeque<Event>,
    ) -> bool {
        if matches!(self.take(lease, Verdict::Acknowledge, events), Word::Repeated) {
            return false;
        }
        self.keep(lease, Verdict::Acknowledge, "");
        let is_first = self.due.is_none();
        if is_first {
            self.due = Some(now + self.timeout);
        }
        let was_due = self.is_due;
        self.is_due |= self.waiting_count >= u64::from(self.batch_size.min(granted.max(1)));
        is_first || self.is_due != was_due
    }

    /// Returns whether a cancel or an expiry is to be sent: not after an earlier verdict. A late
    /// cancel is not sent. The message was returned to the queue when the lease ended, and the
    /// cancel must not take it from its next holder.
    pub fn settle(&mut self, lease: &Lease, verdict: Verdict, events: &mut VecDeque<Event>) -> bool {
        match self.take(lease, verdict, events) {
            Word::InTime => true,
            Word::Late => !verdict.gives_back(),
            Word::Repeated => false,
        }
    }

    /// Keeps a verdict until it can be sent.
    pub fn keep(&mut self, lease: &Lease, verdict: Verdict, reason: &str) {
        let reason = (!reason.is_empty()).then(|| reason.into());
        self.keep_with(lease, verdict, reason.as_ref());
    }

    /// Asks for longer leases, for messages that the client still holds. `None`: the period of the
    /// queue. Returns the frames.
    pub fn extend(&mut self, leases: &[Arc<Lease>], period: Option<Duration>, now: Instant) -> Vec<u8> {
        let mut by_queue = ByQueue::default();
        for lease in leases {
            if self.held.contains_key(&key_of(lease)) && !lease.is_lost(now) {
                lease.set_period(now, period.or(lease.period()));
                self.watch(lease);
                by_queue.put(lease);
            }
        }
        // 0 means the period of the queue. So a period below a millisecond is sent as one
        // millisecond.
        let to_ms = |period: Duration| u64::try_from(period.as_millis()).unwrap_or(u64::MAX - 1).max(1);
        let period_ms = period.map_or(0, to_ms);
        let mut out = Vec::new();
        for (queue, leases) in &by_queue.0 {
            for bookmarks in pieces(&bookmarks_of(leases)) {
                let extend = Extend { period_ms, command: 0, acks: Acks(0), queue, bookmarks };
                Command::Extend(extend).encode(&mut out);
            }
        }
        out
    }

    /// From now on the client does not read. Renewals without an answer count as confirmed, and so
    /// does each one that is sent until the client reads again. The server grants them as long as
    /// it has the leases. A lease that it does not have is lost when the client reads its
    /// `lease_lost`.
    pub fn unread(&mut self) {
        if !std::mem::replace(&mut self.is_unread, true) {
            for asked in &self.renewals {
                asked.leases.iter().for_each(|lease| lease.confirm(asked.at, None));
            }
        }
    }

    /// All waiting bytes were read.
    pub fn emptied(&mut self) {
        self.is_unread = false;
    }

    /// Renews a lease that the program has begun, and those that have run for a while: a program
    /// that begins one message after the other does not cost a command for each. Returns the
    /// frames; `command` numbers them.
    pub fn renew(&mut self, begun: &Arc<Lease>, now: Instant, command: impl FnMut() -> u32) -> Vec<u8> {
        let mut by_queue = ByQueue::default();
        if self.held.get(&key_of(begun)).is_some_and(|held| Arc::ptr_eq(held, begun)) {
            by_queue.put(begun);
        }
        let others = self.held.values().filter(|lease| !Arc::ptr_eq(lease, begun));
        others.filter(|lease| lease.may_renew(now)).for_each(|lease| by_queue.put(lease));
        self.ask(by_queue, now, command)
    }

    /// Renews the leases that need it, and releases the messages that cannot begin in time. Returns
    /// the frames; `command` numbers them.
    pub fn attend(
        &mut self,
        now: Instant,
        mut command: impl FnMut() -> u32,
        events: &mut VecDeque<Event>,
    ) -> Vec<u8> {
        if self.attends_at.is_none_or(|at| at > now) {
            return Vec::new();
        }
        let (mut renewed, mut returned) = (ByQueue::default(), ByQueue::default());
        self.attends_at = None;
        for lease in self.held.values() {
            if lease.must_return(now) {
                returned.put(lease);
            } else if lease.must_renew(now) {
                renewed.put(lease);
            }
        }
        let mut frames = self.ask(renewed, now, &mut command);
        frames.extend(self.give_back(returned, command, events));
        self.attends_at = self.held.values().filter_map(|lease| lease.needs_attention_at()).min();
        frames
    }

    /// Releases the messages of a subscription that the program has not begun. Returns the frames;
    /// `command` numbers them.
    pub fn give_back_unbegun(
        &mut self,
        subscription: u32,
        command: impl FnMut() -> u32,
        events: &mut VecDeque<Event>,
    ) -> Vec<u8> {
        let mut returned = ByQueue::default();
        let of_it = self.held.values().filter(|lease| lease.subscription() == subscription);
        of_it.for_each(|lease| returned.put(lease));
        self.give_back(returned, command, events)
    }

    /// Releases the messages that arrived for retired subscriptions. Returns the frames; `command`
    /// numbers them.
    pub fn give_back_retired(&mut self, command: impl FnMut() -> u32) -> Vec<u8> {
        let returned = std::mem::take(&mut self.retired);
        self.put_returns(returned, Verdict::Release, "", command)
    }

    /// The frames of a verdict of the program that returns a message to its queue.
    pub fn cancel(&mut self, lease: &Arc<Lease>, verdict: Verdict, reason: &str, command: u32) -> Vec<u8> {
        let mut returned = ByQueue::default();
        returned.put(lease);
        self.put_returns(returned, verdict, reason, || command)
    }

    /// The server has answered a command. `detail` is from the answer; `None`: the command was
    /// refused. Returns whether [`attend`](Self::attend) or [`cancel`](Self::cancel) made the
    /// command.
    pub fn answered(&mut self, command: u32, detail: Option<u32>) -> bool {
        if let Some(index) = self.renewals.iter().position(|asked| asked.command == command) {
            if let Some(Asked { at, leases, .. }) = self.renewals.remove(index)
                && let Some(granted_ms) = detail
            {
                for lease in leases {
                    lease.confirm(at, NonZeroU32::new(granted_ms));
                    // A shorter period than before is renewed earlier.
                    self.watch(&lease);
                }
            }
            return true;
        }
        let index = self.returns.iter().position(|returned| returned.command == command);
        let Some(returned) = index.and_then(|index| self.returns.remove(index)) else { return false };
        self.returning.remove(&returned.queue, &returned.bookmarks);
        true
    }

    /// Acknowledgements that have waited long enough are sent with the next bytes.
    pub fn tick(&mut self, now: Instant) {
        if self.due.is_some_and(|due| due <= now) {
            self.is_due = true;
        }
    }

    /// Whether acknowledgements are sent with the next bytes.
    pub fn is_due(&self) -> bool {
        self.is_due
    }

    /// The waiting verdicts, to be sent now.
    pub fn take_waiting(&mut self) -> Vec<Waiting> {
        (self.due, self.is_due, self.waiting_count) = (None, false, 0);
        std::mem::take(&mut self.waiting)
    }

    /// Verdicts were sent. The client has settled `settled_count` messages now.
    pub fn said(&mut self, verdicts: Waiting, settled_count: u64) {
        self.said_count += verdicts.said_count();
        if let Some(index) = &mut self.said_index {
            verdicts.add_to(index);
        }
        self.said.push_back(Said { settled_count, verdicts });
        while self.said_count > SAID_COUNT_MAX {
            self.forget_first_said();
        }
    }

    /// The first verdicts, up to this number of settled messages, are known to be durable.
    pub fn confirmed(&mut self, settled_count: u64) {
        while self.said.front().is_some_and(|said| said.settled_count <= settled_count) {
            self.forget_first_said();
        }
        self.has_late &= !self.said.is_empty() || !self.waiting.is_empty();
    }

    /// Verdicts that were not sent.
    pub fn waiting_count(&self) -> u64 {
        self.waiting_count
    }

    /// The messages of a queue with verdicts that are not known to be durable. Messages that were
    /// returned are not among them.
    pub fn unconfirmed(&self, queue: &str) -> impl Iterator<Item = Bookmark> {
        let verdicts = self.said.iter().map(|said| &said.verdicts).chain(&self.waiting);
        let of_queue =
            verdicts.filter(move |verdicts| !verdicts.verdict.gives_back() && &*verdicts.queue == queue);
        of_queue.flat_map(|verdicts| each(&verdicts.bookmarks))
    }

    pub fn next_timeout(&self) -> Option<Instant> {
        let due = self.due.filter(|_| !self.is_due);
        due.into_iter().chain(self.attends_at).chain(self.losses.next_report()).min()
    }

    /// Reports the losses, once a minute at most.
    pub fn report(&mut self, now: Instant, events: &mut VecDeque<Event>) {
        if self.losses.next_report().is_some_and(|at| at <= now) {
            self.losses.reported_at = Some(now);
            let losses = std::mem::take(&mut self.losses.counts).into_iter();
            events.extend(losses.map(|((queue, cause), count)| Event::LeasesLost { queue, cause, count }));
        }
    }

    /// Whether the program has processed the message, or a command in transit releases this copy. A
    /// message that was acknowledged or expired gets the same verdict again, if the server may not
    /// have received it.
    fn is_unwanted(&mut self, lease: &Lease) -> bool {
        if self.returning.get(lease).is_some() {
            return true;
        }
        if lease.deliveries() < 2 && !self.has_late {
            return false;
        }
        // They are one batch.
        let is_given = |given: &Waiting| {
            !given.verdict.gives_back()
                && given.queue == lease.queue
                && each(&given.bookmarks).any(|bookmark| bookmark == lease.bookmark())
        };
        if self.waiting.iter().any(is_given) {
            self.is_due = true;
            return true;
        }
        if self.said.is_empty() {
            return false;
        }
        let Leases { said, said_index, .. } = self;
        let index = said_index.get_or_insert_with(|| {
            let mut index = Index::default();
            said.iter().for_each(|said| said.verdicts.add_to(&mut index));
            index
        });
        let Some((verdict, reason)) = index.get(lease) else { return false };
        self.keep_with(lease, verdict, reason.as_ref());
        self.is_due = true;
        true
    }

    /// The client does not hold the message any more. Returns whether the program never sees it.
    fn lose(&mut self, lease: &Arc<Lease>, cause: LossCause) -> bool {
        let Some(lost) = lease.lose() else { return false };
        let count = self.losses.counts.entry((lease.queue.clone(), cause)).or_default();
        match lost {
            Lost::Unbegun => {
                count.unbegun += 1;
                *self.unseen.entry(lease.subscription()).or_default() += 1;
            }
            Lost::Begun => count.begun += 1,
            Lost::Outrun => {
                count.begun += 1;
                if self.outrun.len() >= self.outrun_count_max {
                    self.outrun.retain(|_, lease| lease.is_outrun());
                    self.outrun_count_max = self.outrun.len() * 2 + OUTRUN_SLACK;
                }
                self.outrun.insert(key_of(lease), lease.clone());
            }
        }
        lost == Lost::Unbegun
    }

    /// A subscription has ended.
    fn forget(&mut self, subscription: u32) {
        self.unseen.remove(&subscription);
        self.outrun.retain(|key, _| key.subscription != subscription);
    }

    /// Schedules the work for a lease.
    fn watch(&mut self, lease: &Lease) {
        if let Some(at) = lease.needs_attention_at() {
            self.attends_at = Some(self.attends_at.map_or(at, |other| other.min(at)));
        }
    }

    /// Notes a verdict of the program. Another copy of the message is settled with it, and the
    /// program must not see it.
    fn take(&mut self, lease: &Lease, verdict: Verdict, events: &mut VecDeque<Event>) -> Word {
        let word = lease.settle(verdict);
        let key = key_of(lease);
        match word {
            // `attends_at` does not change: a new time for each message would wake the thread of
            // the client for each.
            Word::InTime => drop(self.held.remove(&key)),
            Word::Late => {
                self.has_late = true;
                self.outrun.remove(&key);
                let gives_back = |copy: &Arc<Lease>| !verdict.gives_back() && copy.give_back();
                if self.held.get(&key).is_some_and(gives_back) {
                    self.held.remove(&key);
                    note_dropped(lease.subscription(), events);
                }
            }
            Word::Repeated => (),
        }
        word
    }

    fn ask(&mut self, leases: ByQueue, now: Instant, mut command: impl FnMut() -> u32) -> Vec<u8> {
        let mut out = Vec::new();
        for (queue, leases) in leases.0 {
            for leases in leases.chunks(BOOKMARKS_PER_FRAME) {
                let command = command();
                let bytes = bookmarks_of(leases);
                let Some(bookmarks) = Bookmarks::from_bytes(&bytes) else { continue };
                let extend =
                    Extend { period_ms: 0, command, acks: Acks::PROCESSED, queue: &queue, bookmarks };
                Command::Extend(extend).encode(&mut out);
                for lease in leases {
                    match self.is_unread {
                        true => lease.set_period(now, lease.period()),
                        false => lease.ask(now),
                    }
                }
                self.renewals.push_back(Asked { command, at: now, leases: leases.to_vec() });
            }
        }
        out
    }

    /// Releases those of the messages that the program has still not begun.
    fn give_back(
        &mut self,
        mut leases: ByQueue,
        command: impl FnMut() -> u32,
        events: &mut VecDeque<Event>,
    ) -> Vec<u8> {
        for (_, leases) in &mut leases.0 {
            leases.retain(|lease| lease.give_back());
            for lease in leases {
                self.held.remove(&key_of(lease));
                note_dropped(lease.subscription(), events);
            }
        }
        self.put_returns(leases, Verdict::Release, "", command)
    }

    fn put_returns(
        &mut self,
        leases: ByQueue,
        verdict: Verdict,
        reason: &str,
        mut command: impl FnMut() -> u32,
    ) -> Vec<u8> {
        let mut out = Vec::new();
        for (queue, leases) in leases.0 {
            for leases in leases.chunks(BOOKMARKS_PER_FRAME) {
                let command = command();
                let bookmarks = bookmarks_of(leases);
                let Some(messages) = Bookmarks::from_bytes(&bookmarks).map(Selection::Bookmarks) else {
                    continue;
                };
                let acks = Acks::PROCESSED;
                let settle = Settle { verdict, command, acks, queue: &queue, messages, reason };
                Command::Settle(settle).encode(&mut out);
                self.returning.add(&queue, verdict, None, &bookmarks);
                self.returns.push_back(Returned { command, queue: queue.clone(), bookmarks });
            }
        }
        out
    }

    fn forget_first_said(&mut self) {
        if let Some(said) = self.said.pop_front() {
            self.said_count -= said.verdicts.said_count();
            let Waiting { queue, verdict, bookmarks, .. } = &said.verdicts;
            if let Some(index) = &mut self.said_index
                && !verdict.gives_back()
            {
                index.remove(queue, bookmarks);
            }
        }
        if self.said.is_empty() {
            self.said_index = None;
        }
    }

    fn keep_with(&mut self, lease: &Lease, verdict: Verdict, reason: Option<&Arc<str>>) {
        let Bookmark { publisher, sequence } = lease.bookmark();
        put_bookmark(self.waiting_of(&lease.queue, verdict, reason), publisher.get(), sequence);
        self.waiting_count += 1;
    }

    fn waiting_of(&mut self, queue: &Arc<str>, verdict: Verdict, reason: Option<&Arc<str>>) -> &mut Vec<u8> {
        let is_it = |waiting: &Waiting| {
            waiting.verdict == verdict && waiting.reason.as_ref() == reason && waiting.queue == *queue
        };
        let found = match reason {
            None => self.waiting.iter().position(is_it),
            // A search through many reasons would take longer for each of them.
            Some(_) => self.waiting.len().checked_sub(1).filter(|last| is_it(&self.waiting[*last])),
        };
        let at = found.unwrap_or_else(|| {
            let (queue, reason) = (queue.clone(), reason.cloned());
            self.waiting.push(Waiting { queue, verdict, reason, bookmarks: Vec::new() });
            self.waiting.len() - 1
        });
        &mut self.waiting[at].bookmarks
    }
}

impl Waiting {
    /// The number of verdicts that it counts against [`SAID_COUNT_MAX`].
    fn said_count(&self) -> usize {
        let reason_size = self.reason.as_ref().map_or(0, |reason| reason.len());
        self.bookmarks.len() / BOOKMARK_SIZE + reason_size.div_ceil(BOOKMARK_SIZE)
    }
}

/// The program must not see a message: it has processed another copy, or takes no more messages of
/// the subscription.
pub(super) struct Unwanted;

/// Leases, grouped by their queues.
#[derive(Debug, Default)]
struct ByQueue(Vec<(Arc<str>, Vec<Arc<Lease>>)>);

impl ByQueue {
    fn put(&mut self, lease: &Arc<Lease>) {
        let at = self.0.iter().position(|(queue, _)| *queue == lease.queue).unwrap_or_else(|| {
            self.0.push((lease.queue.clone(), Vec::new()));
            self.0.len() - 1
        });
        self.0[at].1.push(lease.clone());
    }

    /// The messages for the command that ends their subscription, when they fit.
    fn as_begun(&self) -> Option<BegunList> {
        let mut begun = BegunList::default();
        for (queue, leases) in &self.0 {
            begun.bookmarks.extend(bookmarks_of(leases));
            put_begun_queue(&mut begun.queues, u32::try_from(leases.len()).ok()?, queue);
        }
        (begun.bookmarks.len() <= BEGUN_SIZE_MAX && begun.queues.len() <= BEGUN_QUEUES_SIZE_MAX)
            .then_some(begun)
    }
}

/// The messages of a subscription that the program has begun.
#[derive(Debug, Default)]
pub(super) struct BegunList {
    /// As bytes.
    bookmarks: Vec<u8>,
    /// Their queues, as bytes.
    queues: Vec<u8>,
}

impl BegunList {
    /// For a command. Lists of queues without messages are left out.
    pub fn as_messages(&self) -> Option<BegunMessages<'_>> {
        let queues = (!self.queues.is_empty()).then_some(&*self.queues);
        BegunMessages::from_bytes(&self.bookmarks, queues)
    }
}

impl Losses {
    fn next_report(&self) -> Option<Instant> {
        let at = self.reported_at.map_or(Instant(0), |at| at + REPORT_INTERVAL);
        (!self.counts.is_empty()).then_some(at)
    }
}

/// The program must not see some messages of a subscription. They may wait in its queue.
fn note_dropped(subscription: u32, events: &mut VecDeque<Event>) {
    if !matches!(events.back(), Some(Event::Dropped { subscription: last }) if *last == subscription) {
        events.push_back(Event::Dropped { subscription });
    }
}

fn key_of(lease: &Lease) -> Key {
    Key { subscription: lease.subscription(), bookmark: lease.bookmark(), queue: lease.queue.clone() }
}

fn bookmarks_of(leases: &[Arc<Lease>]) -> Vec<u8> {
    let mut bookmarks = Vec::with_capacity(leases.len() * BOOKMARK_SIZE);
    for lease in leases {
        let Bookmark { publisher, sequence } = lease.bookmark();
        put_bookmark(&mut bookmarks, publisher.get(), sequence);
    }
    bookmarks
}

/// The bookmarks in bytes as [`put_bookmark`] writes them.
fn each(bookmarks: &[u8]) -> impl Iterator<Item = Bookmark> {
    bookmarks.as_chunks::<BOOKMARK_SIZE>().0.iter().map(|bytes| {
        let number = u128::from_le_bytes(*bytes);
        Bookmark { publisher: PublisherId(number as u64), sequence: (number >> 64) as u64 }
    })
}

/// Bookmarks, in portions that fit into one frame.
pub(super) fn pieces(bookmarks: &[u8]) -> impl Iterator<Item = Bookmarks<'_>> {
    bookmarks.chunks(BEGUN_SIZE_MAX).filter_map(Bookmarks::from_bytes)
}
