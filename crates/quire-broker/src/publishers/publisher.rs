//! The sequences that a publisher has sent, and the answers to it. A publisher has one sequence for
//! all topics. Acknowledgements are cumulative and true, and never decrease.
//!
//! A publisher outlives its connection while any message of it is not persisted. The next
//! connection of that name is only accepted when the highest sequence that it receives is also on
//! the disk.

use std::collections::VecDeque;
use std::time::Duration;

use crate::ids::SessionId;
use crate::replicated::Destinations;
use crate::reply::Refusal;
use quire_journal::{Position, PublisherId};
use quire_types::time::Instant;

/// A client name as the source of messages.
#[derive(Debug)]
pub(crate) struct Publisher {
    pub(crate) id: PublisherId,
    /// The id of its messages that have no sequence.
    pub(crate) derived: PublisherId,
    /// The connection that holds the name.
    pub(crate) session: Option<SessionId>,
    /// Sequences up to here were seen: recorded, delivered unrecorded, or refused.
    highest: u64,
    /// The highest sequence seen when the connection began to send.
    highest_before: u64,
    /// The run of the connection; 0 = none.
    run: u64,
    /// The last sequence below the next one that is in the log here, or on the instance that
    /// acknowledged it to the run. Other sequences up to `highest` have no record.
    followed: u64,
    /// The last sequence below the next one that the connection has sent and that the log here has,
    /// or that an instance has acknowledged to its run.
    sent: u64,
    /// The last record of this publisher.
    last: Position,
    /// The destinations of its messages since the last [`Publisher::queue_ack`].
    destinations: Destinations,
    /// The answers to send, in order, each after a position is persisted.
    pending: VecDeque<PendingAnswer>,
    /// Sequences up to here may be acknowledged.
    due: u64,
    /// Sequences up to here were acknowledged, or answered one by one.
    acked: u64,
    /// The shortest time between two acknowledgements to the connection, and the time of the last
    /// one.
    ack_interval: Duration,
    acked_at: Option<Instant>,
    refusal_count: usize,
    /// The number of times that its sequence increased by more than is usual, since it logged on.
    jump_count: u64,
    /// When the first of its messages since the last [`Publisher::queue_ack`] was received.
    received_at: Option<Instant>,
    /// A message of the publisher was accepted in this turn.
    pub(crate) is_active: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PendingAnswer {
    /// Sequences up to `sequence` are acknowledged when `position` is persisted. `received_at`:
    /// when the first of these messages was received here.
    Acknowledge {
        position: Position,
        destinations: Destinations,
        sequence: u64,
        received_at: Option<Instant>,
    },
    /// One publish was refused. The refusal is sent after the acknowledgement of the earlier ones.
    /// No acknowledgement that is sent before may include a publish that `is_rejected`.
    Refuse { position: Position, sequence: u64, refusal: Refusal, is_rejected: bool },
}

/// The attributes of a record by which instances compare the messages of a publisher
/// (docs/internals/copies.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbering {
    /// 0 = not known, or the program gave the sequence.
    pub(crate) run: u64,
    /// The sequence that the publisher used before; `None` = the sequence minus one, or not known.
    pub(crate) follows: Option<u64>,
}

impl Numbering {
    /// That of messages that the log numbers, and without replication.
    pub(crate) const NONE: Numbering = Numbering { run: 0, follows: None };
}

/// An answer that can be sent to a publisher now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// All messages up to this sequence are persisted, or were refused and reported as refused.
    Persisted(u64),
    /// The message with this sequence was refused.
    Refused(u64, Refusal),
}

/// The next acknowledgement to a publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextAck {
    /// Up to this sequence, now.
    Due(u64),
    /// Not before the interval of its connection has passed.
    At(Instant),
}

impl Publisher {
    /// A publisher whose sequences up to `highest` were seen and are persisted.
    pub(crate) fn new(id: PublisherId, derived: PublisherId, highest: u64) -> Self {
        Publisher {
            id,
            derived,
            session: None,
            highest,
            highest_before: highest,
            run: 0,
            followed: 0,
            sent: 0,
            last: Position::default(),
            destinations: Destinations::NONE,
            pending: VecDeque::new(),
            due: highest,
            acked: highest,
            ack_interval: Duration::ZERO,
            acked_at: None,
            refusal_count: 0,
            jump_count: 0,
            received_at: None,
            is_active: false,
        }
    }

    /// A publisher whose sequences up to `highest` are in the log. `position` is the position of
    /// the last one. They may not be safe yet.
    pub(crate) fn found(
        id: PublisherId,
        derived: PublisherId,
        highest: u64,
        position: Position,
        to: Destinations,
    ) -> Self {
        let mut publisher = Publisher::new(id, derived, 0);
        publisher.record(highest, position);
        publisher.wait_for(to);
        publisher.queue_ack();
        publisher
    }

    /// A connection holds the name from now on, for messages of this run. It is acknowledged at
    /// most once in `ack_interval`.
    pub(crate) fn hold(&mut self, session: SessionId, ack_interval: Duration, run: u64) {
        self.session = Some(session);
        self.run = run;
        self.ack_interval = ack_interval;
        self.acked_at = None;
    }

    /// The connection sends its messages from now on.
    pub(crate) fn begin_sending(&mut self) {
        self.highest_before = self.highest;
    }

    /// Whether the sequence is not above one that the connection has sent. Each sequence of a
    /// connection is higher than the one before, so the message was sent before, or never.
    pub(crate) fn has_sent(&self, sequence: u64) -> bool {
        sequence > self.highest_before && sequence <= self.highest
    }

    /// Whether its sequence would increase by more than `usual`.
    pub(crate) fn jumps_to(&self, sequence: u64, usual: u64) -> bool {
        sequence.saturating_sub(self.highest) > usual
    }

    /// Records that its sequence increases by more than is usual. Returns whether this is the first
    /// time since it logged on.
    pub(crate) fn note_jump(&mut self) -> bool {
        self.jump_count += 1;
        self.jump_count == 1
    }

    /// The number of such increases since it logged on.
    pub(crate) fn jump_count(&self) -> u64 {
        self.jump_count
    }

    /// The log here has the sequences up to `recorded`, and a server has acknowledged those up to
    /// `persisted` to the run of the connection.
    pub(crate) fn note_followed(&mut self, recorded: u64, persisted: u64) {
        // Sequences that were seen here, and that the log does not have, were refused or are not
        // recorded.
        self.followed = if persisted > self.highest { persisted } else { recorded };
        self.sent = persisted;
    }

    /// The run of a message, and the sequence that it follows. A record with a run says it only
    /// when it is not the sequence minus one. One without a run always says it, because a record of
    /// an earlier version has neither.
    pub(crate) fn numbering(&self, sequence: u64, is_numbered: bool) -> Numbering {
        if sequence == 0 {
            return Numbering::NONE;
        }
        let run = self.run_of(is_numbered);
        let is_said = run == 0 || self.followed.checked_add(1) != Some(sequence);
        Numbering { run, follows: is_said.then_some(self.followed) }
    }

    /// As [`Publisher::numbering`], for a message that the log lacks although it has later ones. It
    /// is in a hole, or among sequences that were passed over, from `first` on. A client sends its
    /// messages in order, so it has used no sequence between the last one that it sent and this
    /// one. A client of an earlier version does not say which ones were acknowledged before.
    pub(crate) fn late_numbering(&self, sequence: u64, is_numbered: bool, first: u64) -> Numbering {
        let before = sequence.saturating_sub(1);
        let follows = match self.run {
            0 => before,
            _ => self.sent.min(before).max(first.saturating_sub(1)),
        };
        let run = self.run_of(is_numbered);
        Numbering { run, follows: (run == 0 || follows != before).then_some(follows) }
    }

    /// The run of a message; 0 = the program numbers it, or the client is of an earlier version.
    pub(crate) fn run_of(&self, is_numbered: bool) -> u64 {
        if is_numbered { 0 } else { self.run }
    }

    /// The log has the message with this sequence, which the connection has sent. Other instances
    /// have sent messages of the publisher up to `highest`.
    pub(crate) fn follow(&mut self, sequence: u64, highest: u64) {
        self.sent = sequence;
        self.followed = self.followed.max(sequence).max(highest);
    }

    /// The highest sequence seen.
    pub(crate) fn highest(&self) -> u64 {
        self.highest
    }

    /// Sequences up to here are persisted or answered. It remains below `highest` when the journal
    /// has failed.
    pub(crate) fn persisted(&self) -> u64 {
        self.due
    }

    /// Whether a message with this sequence was seen before. 0 means no sequence, which is never a
    /// duplicate.
    pub(crate) fn is_duplicate(&self, sequence: u64) -> bool {
        sequence != 0 && sequence <= self.highest
    }

    /// A message was received.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.is_active = true;
        self.received_at.get_or_insert(now);
    }

    /// A message was recorded at `position`.
    pub(crate) fn record(&mut self, sequence: u64, position: Position) {
        self.last = position;
        self.highest = self.highest.max(sequence);
    }

    /// The last message goes to these destinations. Its acknowledgement waits for them.
    pub(crate) fn wait_for(&mut self, destinations: Destinations) {
        self.destinations = self.destinations.union(destinations);
    }

    /// An unrecorded message was accepted. It still counts in the sequence.
    pub(crate) fn pass(&mut self, sequence: u64) {
        self.highest = self.highest.max(sequence);
    }

    /// A message was refused. The refusal is a separate answer, after the acknowledgement of the
    /// earlier messages.
    pub(crate) fn refuse(&mut self, sequence: u64, refusal: Refusal) {
        self.queue_ack();
        self.pending.push_back(PendingAnswer::Refuse {
            position: self.last,
            sequence,
            refusal,
            is_rejected: false,
        });
        self.refusal_count += 1;
        self.highest = self.highest.max(sequence);
    }

    /// Another instance has rejected a message of the run of the connection. It is refused, unless
    /// it is confirmed. Returns whether it is refused.
    pub(crate) fn reject(&mut self, sequence: u64, refusal: Refusal) -> bool {
        self.queue_ack();
        if sequence <= self.acked || sequence > self.highest {
            return false;
        }
        if sequence <= self.due {
            // It may be acknowledged, and was not yet.
            let position = Position::ZERO;
            let is_known = |answer: &PendingAnswer| matches!(answer, PendingAnswer::Refuse { sequence: known, .. } if *known == sequence);
            if self.pending.iter().any(is_known) {
                return false;
            }
            self.pending.push_front(PendingAnswer::Refuse { position, sequence, refusal, is_rejected: true });
            self.refusal_count += 1;
            return true;
        }
        let Some(index) = self.pending.iter().position(|answer| answer.sequence() >= sequence) else {
            return false;
        };
        let PendingAnswer::Acknowledge { position, destinations, sequence: last, received_at } =
            self.pending[index]
        else {
            return false;
        };
        let before = index.checked_sub(1).map_or(self.due, |before| self.pending[before].sequence());
        let acknowledge = |sequence, received_at| PendingAnswer::Acknowledge {
            position,
            destinations,
            sequence,
            received_at,
        };
        let earlier = (sequence - 1 > before).then(|| acknowledge(sequence - 1, received_at));
        let later = (last > sequence).then(|| acknowledge(last, received_at.filter(|_| earlier.is_none())));
        let refused = PendingAnswer::Refuse { position, sequence, refusal, is_rejected: true };
        let mut rest = self.pending.split_off(index);
        rest.pop_front();
        self.pending.extend(earlier.into_iter().chain([refused]).chain(later));
        self.pending.extend(rest);
        self.refusal_count += 1;
        true
    }

    /// Queues one acknowledgement for the messages that were accepted since the last call. Call it
    /// once at the end of a turn, so that a turn needs one entry, not one per message.
    pub(crate) fn queue_ack(&mut self) {
        let (position, sequence) = (self.last, self.highest);
        let received_at = self.received_at.take();
        let known = match self.pending.back() {
            Some(PendingAnswer::Acknowledge { sequence, .. } | PendingAnswer::Refuse { sequence, .. }) => {
                *sequence
            }
            None => self.due,
        };
        if known >= sequence {
            return;
        }
        let to = std::mem::take(&mut self.destinations);
        match self.pending.back_mut() {
            Some(PendingAnswer::Acknowledge { position: p, destinations, sequence: s, .. })
                if *p == position =>
            {
                *s = sequence;
                *destinations = destinations.union(to);
            }
            _ => self.pending.push_back(PendingAnswer::Acknowledge {
                position,
                destinations: to,
                sequence,
                received_at,
            }),
        }
    }

    /// Settles the answers whose records are safe: `is_safe` decides this for records up to a
    /// position, with their destinations. Calls `note` with the time of receipt of messages that
    /// are safe now, and `send` with the answers that must be sent at once.
    /// [`Publisher::next_ack`] is then the acknowledgement that may be sent in addition.
    pub(crate) fn settle(
        &mut self,
        is_safe: impl Fn(Position, Destinations) -> bool,
        mut note: impl FnMut(Instant),
        mut send: impl FnMut(Settled),
    ) {
        while let Some(answer) =
            self.pending.pop_front_if(|answer| is_safe(answer.position(), answer.destinations()))
        {
            match answer {
                PendingAnswer::Acknowledge { sequence, received_at, .. } => {
                    received_at.map(&mut note);
                    self.due = self.due.max(sequence);
                }
                PendingAnswer::Refuse { sequence, refusal, is_rejected, .. } => {
                    let limit = if is_rejected { sequence.saturating_sub(1) } else { u64::MAX };
                    let before = self.due.min(limit);
                    if before > self.acked {
                        self.acked = before;
                        send(Settled::Persisted(before));
                    }
                    send(Settled::Refused(sequence, refusal));
                    self.refusal_count -= 1;
                    self.due = self.due.max(sequence);
                    self.acked = self.acked.max(sequence);
                }
            }
        }
    }

    /// The sequence up to which an acknowledgement may be sent, when it is higher than the last
    /// one.
    fn due(&self) -> Option<u64> {
        (self.due > self.acked).then_some(self.due)
    }

    /// The acknowledgement that is sent now, or when it can be sent; `None` when there is no
    /// sequence to acknowledge.
    pub(crate) fn next_ack(&mut self, now: Instant) -> Option<NextAck> {
        self.due()?;
        match self.acked_at.map(|at| at + self.ack_interval) {
            Some(at) if at > now => Some(NextAck::At(at)),
            _ => self.take_due(now).map(NextAck::Due),
        }
    }

    /// The sequence of an acknowledgement that does not wait for the interval; `None` when there is
    /// no sequence to acknowledge.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<u64> {
        let due = self.due()?;
        self.acked = due;
        self.acked_at = Some(now);
        Some(due)
    }

    /// Whether all accepted messages are persisted or answered.
    pub(crate) fn is_settled(&self) -> bool {
        self.pending.is_empty()
    }

    /// Whether all messages that were accepted up to this position of the log are answered.
    pub(crate) fn has_settled(&self, position: Position) -> bool {
        self.pending.front().is_none_or(|answer| answer.position() > position)
    }

    /// Whether all accepted messages are in the log up to this position.
    pub(crate) fn is_within(&self, limit: Position) -> bool {
        self.pending.back().is_none_or(|answer| answer.position() <= limit)
    }

    /// Whether all accepted messages are safe.
    pub(crate) fn is_safe(&self, is_safe: impl Fn(Position, Destinations) -> bool) -> bool {
        self.pending.iter().all(|answer| is_safe(answer.position(), answer.destinations()))
    }

    /// A new connection is accepted. Returns the last sequence to send, and the refusals that no
    /// earlier connection received. Messages that are not safe yet are answered later: the journal
    /// has no room for them, or a destination does not have them.
    pub(crate) fn enter(
        &mut self,
        is_safe: impl Fn(Position, Destinations) -> bool,
    ) -> (u64, Vec<(u64, Refusal)>) {
        let mut refused = Vec::new();
        let note = |_| ();
        self.settle(is_safe, note, |settled| {
            if let Settled::Refused(sequence, refusal) = settled {
                refused.push((sequence, refusal));
            }
        });
        self.jump_count = 0;
        self.acked = self.due;
        (self.due, refused)
    }

    /// The client sends its messages after this sequence again, because the log lacks some of them,
    /// or has messages of another run among them. Each of them is answered again. The answers up to
    /// this sequence still wait for their destinations.
    pub(crate) fn rewind(&mut self, sequence: u64) {
        let kept = self.pending.partition_point(|answer| answer.sequence() <= sequence);
        let next = self.pending.split_off(kept).pop_front();
        let before = self.pending.back().map_or(self.due, PendingAnswer::sequence);
        if let Some(PendingAnswer::Acknowledge { position, destinations, received_at, .. }) = next
            && before < sequence
        {
            let earlier = PendingAnswer::Acknowledge { position, destinations, sequence, received_at };
            self.pending.push_back(earlier);
        }
        let is_refusal = |answer: &&PendingAnswer| matches!(answer, PendingAnswer::Refuse { .. });
        self.refusal_count = self.pending.iter().filter(is_refusal).count();
        self.highest = self.highest.min(sequence);
        self.due = self.due.min(sequence);
        self.acked = self.acked.min(sequence);
    }

    /// Refusals that were not sent yet.
    pub(crate) fn refusal_count(&self) -> usize {
        self.refusal_count
    }

    /// The journal accepts no more writes. Removes the sequences that can never be acknowledged,
    /// and returns the first of them. Some of them may be in the log. When they are sent again,
    /// they wait for the destinations `to`.
    pub(crate) fn fail(&mut self, to: Destinations) -> u64 {
        self.pending.clear();
        self.destinations = to;
        self.refusal_count = 0;
        self.due + 1
    }
}

impl PendingAnswer {
    /// The last sequence that it answers.
    fn sequence(&self) -> u64 {
        match self {
            PendingAnswer::Acknowledge { sequence, .. } | PendingAnswer::Refuse { sequence, .. } => *sequence,
        }
    }

    /// The position that must be persisted before the answer.
    fn position(&self) -> Position {
        match self {
            PendingAnswer::Acknowledge { position, .. } | PendingAnswer::Refuse { position, .. } => *position,
        }
    }

    /// The destinations that must have it.
    fn destinations(&self) -> Destinations {
        match self {
            PendingAnswer::Acknowledge { destinations, .. } => *destinations,
            PendingAnswer::Refuse { .. } => Destinations::NONE,
        }
    }
}

#[cfg(test)]
mod tests {
    use quire_types::TopicNameError;

    use super::*;

    fn publisher() -> Publisher {
        Publisher::new(PublisherId::new(1), PublisherId::new(2), 0)
    }

    fn settle(publisher: &mut Publisher, persisted: u64) -> Vec<Settled> {
        let mut answers = Vec::new();
        let is_safe = |position, _| position <= Position::new(persisted);
        publisher.settle(is_safe, |_| (), |settled| answers.push(settled));
        answers.extend(publisher.take_due(Instant::default()).map(Settled::Persisted));
        answers
    }

    #[test]
    fn a_refusal_splits_the_run_of_acknowledgements() {
        let mut publisher = publisher();
        for sequence in [1, 2] {
            publisher.record(sequence, Position::new(sequence));
        }
        publisher.refuse(3, Refusal::BadTopic(TopicNameError::Empty.into()));
        for sequence in [4, 5] {
            publisher.record(sequence, Position::new(sequence - 1));
        }
        publisher.queue_ack();
        assert_eq!(settle(&mut publisher, 1), []);
        assert_eq!(
            settle(&mut publisher, 4),
            [
                Settled::Persisted(2),
                Settled::Refused(3, Refusal::BadTopic(TopicNameError::Empty.into())),
                Settled::Persisted(5)
            ]
        );
        assert!(publisher.is_settled());
    }

    #[test]
    fn an_unrecorded_message_is_acknowledged_with_the_recorded_ones_before_it() {
        let mut publisher = publisher();
        publisher.record(1, Position::new(7));
        publisher.pass(2);
        publisher.queue_ack();
        assert_eq!(settle(&mut publisher, 6), []);
        assert_eq!(settle(&mut publisher, 7), [Settled::Persisted(2)]);
        publisher.pass(3);
        publisher.queue_ack();
        assert_eq!(settle(&mut publisher, 7), [Settled::Persisted(3)]);
    }

    #[test]
    fn answers_before_the_messages_that_are_sent_again_still_wait() {
        let mut publisher = publisher();
        publisher.record(1, Position::new(1));
        publisher.refuse(2, Refusal::BadTopic(TopicNameError::Empty.into()));
        publisher.record(9, Position::new(9));
        publisher.refuse(10, Refusal::BadTopic(TopicNameError::Empty.into()));
        publisher.rewind(5);
        publisher.queue_ack();
        assert_eq!((publisher.highest(), publisher.refusal_count()), (5, 1));
        assert_eq!(
            settle(&mut publisher, 8),
            [Settled::Persisted(1), Settled::Refused(2, Refusal::BadTopic(TopicNameError::Empty.into()))]
        );
        assert_eq!(settle(&mut publisher, 9), [Settled::Persisted(5)]);
    }

    #[test]
    fn a_record_follows_the_last_recorded_sequence_or_the_last_one_that_was_acknowledged_elsewhere() {
        let mut publisher = Publisher::new(PublisherId::new(1), PublisherId::new(2), 9);
        publisher.hold(SessionId::default(), Duration::ZERO, 5);
        let follows = |publisher: &Publisher, sequence| publisher.numbering(sequence, false).follows;
        // Sequence 9 was refused here.
        publisher.note_followed(8, 9);
        assert_eq!((follows(&publisher, 10), follows(&publisher, 9)), (Some(8), None));
        publisher.follow(10, 10);
        assert_eq!(follows(&publisher, 11), None);
        publisher.refuse(11, Refusal::BadTopic(TopicNameError::Empty.into()));
        publisher.pass(12);
        assert_eq!(follows(&publisher, 13), Some(10));
        // Another instance has acknowledged more than there is here.
        publisher.note_followed(10, 20);
        assert_eq!((follows(&publisher, 21), follows(&publisher, 25)), (None, Some(20)));
        assert_eq!(publisher.numbering(21, false).run, 5);
        assert_eq!(publisher.numbering(21, true), Numbering { run: 0, follows: Some(20) });
        assert_eq!(publisher.numbering(0, false), Numbering::NONE);
    }

    fn name_in_use(sequence: u64) -> Refusal {
        Refusal::NameInUse { sequence }
    }

    #[test]
    fn a_rejected_message_is_refused_and_those_around_it_are_acknowledged() {
        let mut publisher = publisher();
        for sequence in 1..=9 {
            publisher.record(sequence, Position::new(sequence));
            if sequence % 3 == 0 {
                publisher.queue_ack();
            }
        }
        publisher.record(10, Position::new(10));
        for sequence in [5, 9, 7, 10] {
            assert!(publisher.reject(sequence, name_in_use(sequence)));
            assert!(!publisher.reject(sequence, name_in_use(sequence)), "once");
        }
        assert!(!publisher.reject(11, name_in_use(11)), "it has not come");
        assert_eq!(publisher.refusal_count(), 4);
        assert_eq!(settle(&mut publisher, 3), [Settled::Persisted(3)]);
        let refused = |sequence| Settled::Refused(sequence, name_in_use(sequence));
        let expected = [
            Settled::Persisted(4),
            refused(5),
            Settled::Persisted(6),
            refused(7),
            Settled::Persisted(8),
            refused(9),
            refused(10),
        ];
        assert_eq!(settle(&mut publisher, 10), expected);
        assert!(publisher.is_settled());
        assert!(!publisher.reject(6, name_in_use(6)), "it is confirmed");
    }

    #[test]
    fn a_message_that_may_be_acknowledged_and_was_not_yet_is_refused() {
        let mut publisher = publisher();
        for sequence in 1..=4 {
            publisher.record(sequence, Position::new(sequence));
        }
        publisher.queue_ack();
        publisher.settle(|_, _| true, |_| (), |_| panic!("the interval of the connection has not passed"));
        assert!(publisher.reject(3, name_in_use(3)) && !publisher.reject(3, name_in_use(3)));
        let expected = [Settled::Persisted(2), Settled::Refused(3, name_in_use(3)), Settled::Persisted(4)];
        assert_eq!(settle(&mut publisher, 4), expected);
    }

    #[test]
    fn acknowledgements_never_go_back() {
        let mut publisher = publisher();
        publisher.record(9, Position::new(1));
        publisher.queue_ack();
        publisher.queue_ack();
        assert_eq!(settle(&mut publisher, 1), [Settled::Persisted(9)]);
        publisher.refuse(4, Refusal::BadTopic(TopicNameError::Empty.into()));
        publisher.queue_ack();
        assert_eq!(
            settle(&mut publisher, 1),
            [Settled::Refused(4, Refusal::BadTopic(TopicNameError::Empty.into()))]
        );
    }
}
