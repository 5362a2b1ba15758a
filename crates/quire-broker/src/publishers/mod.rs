//! The publishers with state in the broker: connected publishers, and disconnected publishers with
//! unsettled messages.

mod acknowledge;
mod logon;
mod publisher;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use crate::log::Log;
use hashbrown::HashMap;
use quire_journal::{Bookmark, PublisherId};
use quire_types::time::Instant;
use rustc_hash::FxBuildHasher;
use slotmap::SlotMap;

use crate::Event;
use crate::context::Context;
use crate::reply::Refusal;
use crate::session::{ACK_BACKLOG_MAX, PublisherKey, SessionId, Stall};
pub(crate) use publisher::{NextAck, Numbering, Publisher, Settled};

/// Disconnected publishers whose highest sequence is above the one in the journal, because their
/// last publishes were not recorded or were refused. At the limit, the publisher that disconnected
/// first is removed. If it connects again and repeats those publishes, they are accepted again.
const DEPARTED_MAX: usize = 65_536;

/// Disconnected publishers that receive refusals when they connect again. At the limit, the
/// publisher that disconnected first is removed. It never receives the reason why its messages were
/// refused.
const ABSENT_MAX: usize = 64;

pub(crate) struct Publishers {
    instance: String,
    all: SlotMap<PublisherKey, Publisher>,
    by_id: HashMap<PublisherId, PublisherKey, FxBuildHasher>,
    /// Publishers that published in this turn.
    active: Vec<PublisherKey>,
    /// Publishers with a pending answer that is not true yet.
    unsettled: BTreeSet<PublisherKey>,
    /// Disconnected publishers that wait only for refusals.
    absent: VecDeque<PublisherKey>,
    departed: HashMap<PublisherId, u64, FxBuildHasher>,
    departed_order: VecDeque<PublisherId>,
}

impl Publishers {
    pub(crate) fn new(instance: &str) -> Self {
        Publishers {
            instance: instance.to_owned(),
            all: SlotMap::with_key(),
            by_id: HashMap::default(),
            active: Vec::new(),
            unsettled: BTreeSet::new(),
            absent: VecDeque::new(),
            departed: HashMap::default(),
            departed_order: VecDeque::new(),
        }
    }

    /// The publisher with this name.
    pub(crate) fn of_client_name(&mut self, client_name: &str, log: &Log) -> PublisherKey {
        let id = PublisherId::of_client_name(client_name);
        if let Some(&key) = self.by_id.get(&id) {
            return key;
        }
        let recorded = log.highest_sequence(id).unwrap_or(0);
        let highest = recorded.max(self.departed.get(&id).copied().unwrap_or(0));
        let derived = PublisherId::derived(id, &self.instance);
        let publisher = match recorded {
            // Another instance may have sent its messages just now, or they may wait for a
            // destination since an earlier connection. The broker does not know these messages, so
            // the destinations must have all records that are in the log now.
            1.. if log.has_links => {
                Publisher::found(id, derived, highest, log.appended(), log.replicated.all())
            }
            _ => Publisher::new(id, derived, highest),
        };
        let is_unsettled = !publisher.is_settled();
        let key = self.all.insert(publisher);
        if is_unsettled {
            self.unsettled.insert(key);
        }
        self.by_id.insert(id, key);
        key
    }

    /// The connection of the publisher waits for its logon, so it is checked in every turn.
    pub(crate) fn hold_back(&mut self, key: PublisherKey) {
        self.unsettled.insert(key);
    }

    /// Messages of the publisher may have arrived from another instance while its connection
    /// waited.
    pub(crate) fn refresh(&mut self, key: PublisherKey, log: &Log) {
        let Some(publisher) = self.all.get_mut(key) else { return };
        let recorded = log.highest_sequence(publisher.id).unwrap_or(0);
        if recorded > publisher.highest() {
            publisher.record(recorded, log.appended());
            publisher.wait_for(log.replicated.all());
            publisher.queue_ack();
            self.unsettled.insert(key);
        }
    }

    /// The publisher with this key; `None` after it was removed. Any call that settles or releases
    /// may remove it.
    pub(crate) fn get(&self, key: PublisherKey) -> Option<&Publisher> {
        self.all.get(key)
    }

    /// As [`Publishers::get`].
    pub(crate) fn get_mut(&mut self, key: PublisherKey) -> Option<&mut Publisher> {
        self.all.get_mut(key)
    }

    /// Records that a publisher has published. [`Publishers::queue_acks`] processes it.
    #[inline]
    pub(crate) fn activate(&mut self, key: PublisherKey, now: Instant) {
        let Some(publisher) = self.all.get_mut(key) else { return };
        if !publisher.is_active {
            publisher.begin(now);
            self.active.push(key);
        }
    }

    /// Queues an acknowledgement for every publisher that published since the last call.
    pub(crate) fn queue_acks(&mut self) {
        for key in self.active.drain(..) {
            let Some(publisher) = self.all.get_mut(key) else { continue };
            publisher.is_active = false;
            publisher.queue_ack();
            // A disconnected and settled publisher must be removed.
            if !publisher.is_settled() || publisher.session.is_none() {
                self.unsettled.insert(key);
            }
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// Whether all of its accepted messages are persisted or answered. A removed publisher is
    /// settled.
    pub(crate) fn is_settled(&self, key: PublisherKey) -> bool {
        self.get(key).is_none_or(Publisher::is_settled)
    }

    /// The publishers with pending answers.
    pub(crate) fn unsettled(&self) -> Vec<PublisherKey> {
        self.unsettled.iter().copied().collect()
    }

    /// Assigns the name to a connection.
    pub(crate) fn hold(&mut self, key: PublisherKey, session: SessionId, ack_interval: Duration, run: u64) {
        self.absent.retain(|other| *other != key);
        if let Some(publisher) = self.all.get_mut(key) {
            publisher.hold(session, ack_interval, run);
        }
    }

    /// The connection releases the name, unless another connection holds it now.
    pub(crate) fn release(&mut self, key: PublisherKey, session: SessionId, log: &Log) {
        if let Some(publisher) = self.all.get_mut(key)
            && publisher.session == Some(session)
        {
            publisher.session = None;
            self.tidy(key, log);
        }
    }

    /// Settles a publisher that has no connection. Persisted messages need no report. Refusals are
    /// kept until it connects again.
    pub(crate) fn acknowledge_absent(&mut self, key: PublisherKey, log: &Log) {
        self.unsettled.remove(&key);
        let Some(publisher) = self.all.get_mut(key) else { return };
        if !publisher.is_safe(|position, to| log.is_safe(position, to)) {
            self.unsettled.insert(key);
            return;
        }
        if publisher.refusal_count() == 0 {
            publisher.enter(|position, to| log.is_safe(position, to));
            return self.tidy(key, log);
        }
        if !self.absent.contains(&key) {
            self.absent.push_back(key);
        }
        if self.absent.len() > ABSENT_MAX
            && let Some(oldest) = self.absent.pop_front()
        {
            if let Some(publisher) = self.all.get_mut(oldest) {
                publisher.enter(|position, to| log.is_safe(position, to));
            }
            self.tidy(oldest, log);
        }
    }

    /// Call when an answer was sent or the connection was lost. Removes publishers that need no
    /// state.
    pub(crate) fn tidy(&mut self, key: PublisherKey, log: &Log) {
        let Some(publisher) = self.all.get(key) else { return };
        if !publisher.is_settled() {
            return;
        }
        self.unsettled.remove(&key);
        if publisher.session.is_some() || publisher.is_active || publisher.persisted() < publisher.highest() {
            return;
        }
        let Some(publisher) = self.all.remove(key) else { return };
        self.absent.retain(|other| *other != key);
        self.by_id.remove(&publisher.id);
        if publisher.highest() > log.highest_sequence(publisher.id).unwrap_or(0) {
            self.remember(publisher.id, publisher.highest());
        }
    }

    fn remember(&mut self, id: PublisherId, highest: u64) {
        if self.departed.insert(id, highest).is_none() {
            self.departed_order.push_back(id);
        }
        if self.departed_order.len() > DEPARTED_MAX
            && let Some(oldest) = self.departed_order.pop_front()
        {
            self.departed.remove(&oldest);
        }
    }

    /// Returns the publisher of a publish frame, which every such frame needs first. `None` when
    /// the session accepts no more publishes.
    #[inline(always)]
    pub(crate) fn begin_publish(&mut self, cx: &mut Context, id: SessionId) -> Option<PublisherKey> {
        let session = &mut cx.clients.sessions.all[id];
        let publisher = session.identity.as_ref()?.publisher;
        if !session.has_published {
            session.has_published = true;
            cx.touch(id);
        }
        self.activate(publisher, cx.clock.now.instant);
        Some(publisher)
    }

    /// Logs a sequence that is far above the last one. All sequences between them count as
    /// duplicates from now on, also when another program has published under the name. Sequences
    /// that a program chooses itself may increase by any amount, so the publish is not refused.
    #[cold]
    pub(crate) fn note_jump(&mut self, cx: &mut Context, id: SessionId, key: PublisherKey, to: u64) {
        let Some(publisher) = self.get_mut(key) else { return };
        let from = publisher.highest();
        if publisher.note_jump() {
            let session = &cx.clients.sessions.all[id];
            let (connection, client_name) = (session.connection, session.client_name().unwrap_or_default());
            cx.note(Event::SequenceJumped { connection, client_name, from, to });
        }
    }

    /// Another instance has a message of another run with the bookmark. The message of this run is
    /// refused, unless it is confirmed. When its publisher is not connected, it is refused at the
    /// next logon.
    pub(crate) fn reject(&mut self, bookmark: Bookmark, run: u64) {
        let Some(key) = self.by_id.get(&bookmark.publisher).copied() else { return };
        let sequence = bookmark.sequence;
        let publisher = self.all.get_mut(key).filter(|publisher| publisher.run_of(false) == run);
        if publisher.is_some_and(|publisher| publisher.reject(sequence, Refusal::NameInUse { sequence })) {
            self.unsettled.insert(key);
        }
    }

    pub(crate) fn refuse(
        &mut self,
        cx: &mut Context,
        id: SessionId,
        key: PublisherKey,
        sequence: u64,
        refusal: Refusal,
    ) {
        cx.clients.counters.refused += 1;
        // The answer to this message would cover earlier messages, which the journal did not take.
        // The client sends all of them again.
        if sequence != 0 && cx.log.failure.is_some() && cx.session(id).knows_of_failure {
            return;
        }
        let jump_logged = cx.config.limits.sequence_jump_logged;
        let Some(publisher) = self.get_mut(key) else { return };
        if publisher.jumps_to(sequence, jump_logged) {
            self.note_jump(cx, id, key, sequence);
        }
        let Some(publisher) = self.get_mut(key) else { return };
        publisher.refuse(sequence, refusal);
        if publisher.refusal_count() >= ACK_BACKLOG_MAX {
            cx.stall(id, Stall::AckBacklog);
        }
    }
}
