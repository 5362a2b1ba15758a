//! Commands that wait for their answer, and are sent again after a reconnect.

use std::collections::{BTreeMap, VecDeque};

use super::leases::BegunList;
use super::subscription::{Replacement, SubscriptionSpec, Subscriptions};
use super::{Event, Failure, FailureCode};
use quire_command::{Acks, Command, Settle, SubscriptionNumbers, Unsubscribe};
use quire_wire::Encode;

/// Names a command of this client; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u32);

/// Set in the numbers of deletes only. A delete is kept with its number, perhaps in a file that
/// outlives the client. So a server may answer deletes of an earlier client, and their numbers must
/// not be those of commands of this one.
const DELETE_BIT: u32 = 1 << 31;

impl CommandId {
    /// The command number of the delete with this sequence.
    pub(super) fn of_delete(sequence: u64) -> Self {
        CommandId(DELETE_BIT | sequence as u32)
    }

    pub(super) fn is_delete(self) -> bool {
        self.0 & DELETE_BIT != 0
    }
}

/// A command that waits for its answer.
#[derive(Debug)]
enum Waiting {
    /// `said` is the number of settled messages that are known to be durable when its answer
    /// arrives. With `answered_by` no command was sent on this connection: the acknowledgement of
    /// this sequence is the answer.
    Flush {
        said: u64,
        answered_by: Option<u64>,
    },
    Subscribe {
        number: u32,
        reentry: bool,
    },
    /// Several replacements of one subscription can wait. Each takes effect when it is answered.
    Replace {
        number: u32,
        spec: Box<SubscriptionSpec>,
    },
    Unsubscribe {
        number: u32,
        begun: Option<BegunList>,
    },
    /// With `reentry` the answer is not reported.
    Pause {
        numbers: Vec<u8>,
        paused: bool,
        reentry: bool,
    },
    /// Sent once: when the connection is lost, it is unknown whether the command was carried out.
    /// `query`: the number of its answers.
    Once {
        frame: Vec<u8>,
        query: Option<u32>,
    },
    /// Settles messages. As `Once`, and its answer has the number of settled messages.
    Settle {
        frame: Vec<u8>,
        /// The frame for a server that does not support reasons; `None`: there is no reason.
        without_reason: Option<Vec<u8>>,
    },
    /// A delete, which is in the publish store.
    Delete {
        sequence: u64,
    },
    /// A flush of our own.
    Confirm {
        said: u64,
    },
    /// A flush for a receipt. The answer means that the server has processed all earlier publishes.
    Barrier,
}

#[derive(Debug, Default)]
pub(super) struct Commands {
    waiting: BTreeMap<CommandId, Waiting>,
    last: u32,
    /// Whether the server takes commands with reasons. It is known from the logon on.
    takes_reasons: bool,
    /// The number of messages that were ever settled. Then those whose verdict is known to be
    /// durable, or was given up.
    settled_count: u64,
    confirmed_count: u64,
    is_confirming: bool,
    /// Those whose verdict a server has reported as durable.
    durable_count: u64,
    /// Settled messages whose durability is unknown, until a flush has reported them.
    lost_count: u64,
    /// No flush has a lower `answered_by`.
    answered_from: u64,
}

impl Commands {
    /// A flush. `acknowledged`: the sequence whose acknowledgement the server sends after it has
    /// persisted or refused every publish so far. True: this acknowledgement is the answer, and no
    /// command is to be sent. It does not cover settled messages and other commands.
    pub fn flush(&mut self, acknowledged: Option<u64>) -> Result<(CommandId, bool), Failure> {
        let lost = std::mem::take(&mut self.lost_count);
        if lost > 0 {
            return Err(lost_settles(lost));
        }
        let is_alone = self.unconfirmed_count() == 0
            && self.waiting.values().all(|command| matches!(command, Waiting::Flush { .. }));
        let answered_by = acknowledged.filter(|_| is_alone);
        if let Some(sequence) = answered_by {
            self.answered_from = self.answered_from.min(sequence);
        }
        let command = self.add(Waiting::Flush { said: self.settled_count, answered_by });
        Ok((command, answered_by.is_some()))
    }

    /// The server has persisted or refused every publish up to `sequence`. Answers the flushes that
    /// wait for this.
    pub fn acknowledged(&mut self, sequence: u64, events: &mut VecDeque<Event>) {
        if sequence < self.answered_from {
            return;
        }
        self.answered_from = u64::MAX;
        let answered_from = &mut self.answered_from;
        self.waiting.retain(|id, command| {
            let Waiting::Flush { answered_by: Some(last), .. } = command else { return true };
            if *last <= sequence {
                events.push_back(Event::Answered { command: *id, result: Ok(()) });
                return false;
            }
            *answered_from = (*answered_from).min(*last);
            true
        });
    }

    /// Counts settled messages. Returns their number so far.
    pub fn settled(&mut self, count: u64) -> u64 {
        self.settled_count += count;
        self.settled_count
    }

    /// Of all messages that were ever settled, the first ones have a verdict that a server has
    /// reported as durable. Returns their number.
    pub fn durable_count(&self) -> u64 {
        self.durable_count
    }

    /// The number of settled messages whose verdicts are not known to be durable.
    pub fn unconfirmed_count(&self) -> u64 {
        self.settled_count - self.confirmed_count
    }

    /// Whether to ask the server about them now. Only one question waits at a time, so the cost is
    /// low.
    pub fn wants_confirmation(&self) -> bool {
        !self.is_confirming && self.unconfirmed_count() > 0
    }

    /// The question.
    pub fn confirm(&mut self) -> CommandId {
        self.is_confirming = true;
        self.add(Waiting::Confirm { said: self.settled_count })
    }

    /// Answered when the server has processed everything that was published before. It does not
    /// cover settled messages.
    pub fn barrier(&mut self) -> CommandId {
        self.add(Waiting::Barrier)
    }

    pub fn subscribe(&mut self, number: u32) -> CommandId {
        self.add(Waiting::Subscribe { number, reentry: false })
    }

    pub fn replace(&mut self, number: u32, spec: SubscriptionSpec) -> CommandId {
        self.add(Waiting::Replace { number, spec: Box::new(spec) })
    }

    /// The new subscription of a command that replaces one, while it waits for its answer.
    pub fn replacement(&self, id: CommandId) -> Option<&SubscriptionSpec> {
        match self.waiting.get(&id) {
            Some(Waiting::Replace { spec, .. }) => Some(spec),
            _ => None,
        }
    }

    /// `begun`: the messages of queues that the program has begun; the others are released.
    pub fn unsubscribe(&mut self, number: u32, begun: Option<BegunList>) -> CommandId {
        self.add(Waiting::Unsubscribe { number, begun })
    }

    /// The frame that ends a subscription. Its answer is not used.
    pub fn put_last_unsubscribe(&mut self, number: u32, begun: Option<&BegunList>, out: &mut Vec<u8>) {
        let CommandId(command) = self.next_id();
        put_unsubscribe(number, command, Acks::default(), begun, out);
    }

    /// A number for a command whose answer is handled elsewhere.
    pub fn unanswered(&mut self) -> CommandId {
        self.next_id()
    }

    /// Waits for the answer to a delete.
    pub fn delete(&mut self, id: CommandId, sequence: u64) {
        self.waiting.insert(id, Waiting::Delete { sequence });
    }

    /// The number of the subscription that a command of the program enters or replaces.
    pub fn entered_number(&self, id: CommandId) -> Option<u32> {
        self.waiting.get(&id)?.enters()
    }

    /// Whether the answer to a command is waited for.
    pub fn is_waiting(&self, id: CommandId) -> bool {
        self.waiting.contains_key(&id)
    }

    /// A server has seen the sequences up to `highest`, of earlier connections too. It answers a
    /// repeated delete with 0 records, so these deletes fail: their numbers are unknown.
    pub fn fail_seen_deletes(&mut self, highest: u64, events: &mut VecDeque<Event>) {
        let reason = "the connection was lost before the server told how many records it deleted";
        let failure = Failure::new(FailureCode::Disconnected, reason);
        let is_seen =
            |command: &Waiting| matches!(command, Waiting::Delete { sequence } if *sequence <= highest);
        self.fail_all_that(is_seen, &failure, events);
    }

    /// As [`Commands::unsubscribe`], without a connection. It is answered at once, and so are
    /// commands that wait to enter the subscription.
    pub fn unsubscribe_unconnected(&mut self, number: u32, events: &mut VecDeque<Event>) -> CommandId {
        self.fail_all_that(|command| command.enters() == Some(number), &ended_before(), events);
        let id = self.next_id();
        events.push_back(Event::Answered { command: id, result: Ok(()) });
        id
    }

    pub fn pause(&mut self, numbers: &[u32], paused: bool) -> CommandId {
        self.add(Waiting::Pause { numbers: bytes_of(numbers), paused, reentry: false })
    }

    /// A command that is not sent again. `encode` makes its frame with its number.
    pub fn once(&mut self, query: Option<u32>, encode: impl FnOnce(u32, &mut Vec<u8>)) -> CommandId {
        let id = self.add(Waiting::Once { frame: Vec::new(), query });
        if let Some(Waiting::Once { frame, .. }) = self.waiting.get_mut(&id) {
            encode(id.0, frame);
        }
        id
    }

    /// A command that settles messages, and is not sent again.
    pub fn settle(&mut self, settle: &Settle<'_>) -> CommandId {
        let id = self.next_id();
        let frame_with = |reason| {
            let mut frame = Vec::new();
            Command::Settle(Settle { command: id.0, reason, ..*settle }).encode(&mut frame);
            frame
        };
        let without_reason = (!settle.reason.is_empty()).then(|| frame_with(""));
        self.waiting.insert(id, Waiting::Settle { frame: frame_with(settle.reason), without_reason });
        id
    }

    /// A server says whether it takes reasons.
    pub fn takes_reasons(&mut self, takes_reasons: bool) {
        self.takes_reasons = takes_reasons;
    }

    /// The reason that is sent to the server of the connection. Empty if the server does not
    /// support reasons.
    pub fn reason_to_send<'a>(&self, reason: &'a str) -> &'a str {
        if self.takes_reasons { reason } else { "" }
    }

    /// Whether the answer to a command is waited for, and has the number of messages or records.
    pub fn awaits_count(&self, id: CommandId) -> bool {
        matches!(self.waiting.get(&id), Some(Waiting::Delete { .. } | Waiting::Settle { .. }))
    }

    /// The connection is gone, and with it every subscription on the server. Commands that paused,
    /// continued or ended a subscription are done. The others wait for the next connection. A
    /// replacement is sent again after the subscription was entered again.
    ///
    /// Messages that were settled, but are not known to be durable, are lost. So are the `unsaid`
    /// acknowledgements. A waiting flush reports it, or the next one does.
    pub fn disconnected(
        &mut self,
        unsaid: u64,
        subscriptions: &mut Subscriptions,
        events: &mut VecDeque<Event>,
    ) {
        self.lost_count += self.unconfirmed_count() + unsaid;
        (self.confirmed_count, self.is_confirming) = (self.settled_count, false);
        let is_flush = |command: &Waiting| matches!(command, Waiting::Flush { .. });
        if self.lost_count > 0 && self.waiting.values().any(is_flush) {
            let failure = lost_settles(std::mem::take(&mut self.lost_count));
            self.fail_all_that(is_flush, &failure, events);
        }
        for subscription in subscriptions.outdate() {
            events.push_back(Event::Outdated { subscription });
        }
        // The next connection has no subscription for them.
        let is_ended =
            |command: &Waiting| command.enters().is_some_and(|number| !subscriptions.contains(number));
        self.fail_all_that(is_ended, &ended_before(), events);
        self.waiting.retain(|id, command| match command {
            // The next connection sends it as a command.
            Waiting::Flush { answered_by, .. } => {
                *answered_by = None;
                true
            }
            Waiting::Barrier
            | Waiting::Delete { .. }
            | Waiting::Replace { .. }
            | Waiting::Subscribe { reentry: false, .. } => true,
            Waiting::Subscribe { reentry: true, .. }
            | Waiting::Pause { reentry: true, .. }
            | Waiting::Confirm { .. } => false,
            Waiting::Unsubscribe { .. } => {
                events.push_back(Event::Answered { command: *id, result: Ok(()) });
                false
            }
            Waiting::Pause { numbers, .. } => {
                let result = subscriptions.settle_pause(numbers_of(numbers));
                events.push_back(Event::Answered { command: *id, result });
                false
            }
            Waiting::Once { .. } | Waiting::Settle { .. } => {
                let failure = Failure::new(
                    FailureCode::Disconnected,
                    "the connection was lost before the server answered",
                );
                if let Waiting::Once { query: Some(query), .. } = command
                    && subscriptions.remove(*query)
                {
                    let subscription = *query;
                    events.push_back(Event::Ended { subscription, failure: Some(failure.clone()) });
                }
                events.push_back(Event::Answered { command: *id, result: Err(failure) });
                false
            }
        });
        for subscription in subscriptions.take_queries() {
            let reason = "the connection was lost before the last record of the query";
            let failure = Some(Failure::new(FailureCode::Disconnected, reason));
            events.push_back(Event::Ended { subscription, failure });
        }
    }

    /// Adds a command for every subscription that a new connection must enter, before the waiting
    /// commands. After them, subscriptions that share a replay are resumed. This also carries out
    /// the pauses that the user asked for without a connection: the subscriptions are entered in
    /// the state that the last of them wants. Returns the number of subscriptions.
    pub fn reenter(&mut self, subscriptions: &mut Subscriptions, events: &mut VecDeque<Event>) -> usize {
        self.waiting.retain(|id, command| {
            let Waiting::Pause { numbers, .. } = command else { return true };
            let result = subscriptions.settle_pause(numbers_of(numbers));
            events.push_back(Event::Answered { command: *id, result });
            false
        });
        let groups = subscriptions.begin_connection();
        let mut count = 0;
        for number in subscriptions.accepted_numbers() {
            self.add(Waiting::Subscribe { number, reentry: true });
            count += 1;
        }
        for numbers in groups {
            self.add(Waiting::Pause { numbers: bytes_of(&numbers), paused: false, reentry: true });
        }
        count
    }

    /// The frames of all waiting commands, in the order in which they were asked for. Those that
    /// enter subscriptions again are first.
    pub fn frames(&self, subscriptions: &Subscriptions) -> Vec<(CommandId, Vec<u8>)> {
        let is_reentry = |command: &Waiting| matches!(command, Waiting::Subscribe { reentry: true, .. });
        let first = self.waiting.iter().filter(|(_, command)| is_reentry(command));
        let then = self.waiting.iter().filter(|(_, command)| !is_reentry(command));
        first.chain(then).filter_map(|(id, _)| Some((*id, self.frame(*id, subscriptions)?))).collect()
    }

    /// The frame of one command.
    pub fn frame(&self, id: CommandId, subscriptions: &Subscriptions) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        let CommandId(command) = id;
        match self.waiting.get(&id)? {
            Waiting::Flush { .. } | Waiting::Confirm { .. } | Waiting::Barrier => {
                Command::Flush { command, acks: Acks::PERSISTED }.encode(&mut out)
            }
            Waiting::Subscribe { number, .. } => subscriptions.encode(*number, command, None, &mut out),
            Waiting::Replace { number, spec } => {
                let after_bookmark = self.gives_bookmark_before(id, *number);
                let replacement = Replacement { spec, after_bookmark };
                subscriptions.encode(*number, command, Some(&replacement), &mut out);
            }
            Waiting::Unsubscribe { number, begun } => {
                put_unsubscribe(*number, command, Acks::PROCESSED, begun.as_ref(), &mut out);
            }
            Waiting::Pause { numbers, paused, .. } => {
                let subscriptions = SubscriptionNumbers::from_bytes(numbers)?;
                let acks = Acks::PROCESSED;
                let frame = if *paused {
                    Command::Pause { command, acks, subscriptions }
                } else {
                    Command::Resume { command, acks, subscriptions }
                };
                frame.encode(&mut out);
            }
            Waiting::Settle { without_reason: Some(frame), .. } if !self.takes_reasons => {
                out.extend_from_slice(frame);
            }
            Waiting::Once { frame, .. } | Waiting::Settle { frame, .. } => out.extend_from_slice(frame),
            // The publish store sends it.
            Waiting::Delete { .. } => return None,
        }
        Some(out)
    }

    /// Whether a replacement of the subscription that waits before this command gives it a
    /// bookmark. The server has carried it out when it receives this command.
    fn gives_bookmark_before(&self, id: CommandId, number: u32) -> bool {
        self.waiting.range(..id).any(|(_, command)| command.gives_bookmark(number))
    }

    /// Whether a replacement of the subscription that waits gives it a bookmark.
    pub fn gives_bookmark(&self, number: u32) -> bool {
        self.waiting.values().any(|command| command.gives_bookmark(number))
    }

    /// A command was answered. Changes the subscriptions accordingly and reports the answer.
    pub fn answered(
        &mut self,
        id: CommandId,
        result: Result<(), Failure>,
        subscriptions: &mut Subscriptions,
        events: &mut VecDeque<Event>,
    ) {
        let Some(command) = self.waiting.remove(&id) else { return };
        // It also fails when a subscription of the list was refused. That was reported.
        if matches!(command, Waiting::Pause { reentry: true, .. }) {
            return;
        }
        if let Waiting::Confirm { said } = command {
            self.lost_count += if result.is_err() { said.saturating_sub(self.confirmed_count) } else { 0 };
            self.is_confirming = false;
            self.confirmed(said);
            if result.is_ok() {
                self.durable_count = self.durable_count.max(said);
            }
            return;
        }
        if let (Waiting::Flush { said, .. }, Ok(())) = (&command, &result) {
            self.durable_count = self.durable_count.max(*said);
            self.confirmed(*said);
        }
        if let (Waiting::Once { query: Some(query), .. }, Err(failure)) = (&command, &result)
            && subscriptions.remove(*query)
        {
            events.push_back(Event::Ended { subscription: *query, failure: Some(failure.clone()) });
        }
        match (command, &result) {
            (Waiting::Subscribe { number, reentry }, result) => {
                match result {
                    Ok(()) => subscriptions.accepted(number),
                    Err(failure) => {
                        if subscriptions.remove(number) || reentry {
                            let failure = Some(failure.clone());
                            events.push_back(Event::Ended { subscription: number, failure });
                        }
                    }
                }
                if reentry {
                    return;
                }
            }
            // A refused replacement changes nothing.
            (Waiting::Replace { number, spec }, Ok(())) => subscriptions.replaced(number, *spec),
            (Waiting::Pause { numbers, .. }, Err(_)) => {
                // The server gives the reason.
                let _ = subscriptions.settle_pause(numbers_of(&numbers));
            }
            _ => (),
        }
        events.push_back(Event::Answered { command: id, result });
    }

    /// Whether a flush waits for its answer.
    pub fn awaits_flush(&self) -> bool {
        self.waiting.values().any(|command| matches!(command, Waiting::Flush { .. }))
    }

    /// The caller does not wait for the answer any more. A flush is forgotten, so that it is not
    /// sent again after a reconnect. So is a command that acts once and waits for a connection: it
    /// would act at a time that the caller does not expect. The others change subscriptions, and
    /// are still sent. True: there will be no answer.
    pub fn abandon(&mut self, id: CommandId, is_up: bool) -> bool {
        match self.waiting.get(&id) {
            Some(Waiting::Flush { .. } | Waiting::Delete { .. }) => self.waiting.remove(&id).is_some(),
            Some(Waiting::Once { .. } | Waiting::Settle { .. }) if !is_up => {
                self.waiting.remove(&id).is_some()
            }
            Some(_) => false,
            None => true,
        }
    }

    /// No publish will be persisted any more.
    pub fn fail_flushes(&mut self, failure: &Failure, events: &mut VecDeque<Event>) {
        let waits = |command: &Waiting| matches!(command, Waiting::Flush { .. } | Waiting::Barrier);
        self.fail_all_that(waits, failure, events);
    }

    fn fail_all_that(
        &mut self,
        waits: impl Fn(&Waiting) -> bool,
        failure: &Failure,
        events: &mut VecDeque<Event>,
    ) {
        self.waiting.retain(|id, command| {
            let fails = waits(command);
            if fails {
                events.push_back(Event::Answered { command: *id, result: Err(failure.clone()) });
            }
            !fails
        });
    }

    /// No command will be answered any more.
    pub fn fail_all(&mut self, failure: &Failure, events: &mut VecDeque<Event>) {
        let all = std::mem::take(&mut self.waiting);
        let is_ours = |command: &Waiting| {
            matches!(command, Waiting::Confirm { .. } | Waiting::Pause { reentry: true, .. })
        };
        for (id, _) in all.into_iter().filter(|(_, command)| !is_ours(command)) {
            events.push_back(Event::Answered { command: id, result: Err(failure.clone()) });
        }
    }

    /// Settled messages up to this count are known to be durable, or were given up.
    fn confirmed(&mut self, said: u64) {
        self.confirmed_count = self.confirmed_count.max(said);
    }

    fn add(&mut self, command: Waiting) -> CommandId {
        let id = self.next_id();
        self.waiting.insert(id, command);
        id
    }

    fn next_id(&mut self) -> CommandId {
        self.last = (self.last.wrapping_add(1) & !DELETE_BIT).max(1);
        CommandId(self.last)
    }
}

impl Waiting {
    /// Whether it is a replacement of the subscription that gives it a bookmark.
    fn gives_bookmark(&self, number: u32) -> bool {
        match self {
            Waiting::Replace { number: other, spec } => *other == number && spec.bookmark.is_some(),
            _ => false,
        }
    }

    /// The subscription that the user enters or replaces with the command.
    fn enters(&self) -> Option<u32> {
        match self {
            Waiting::Subscribe { number, reentry: false } | Waiting::Replace { number, .. } => Some(*number),
            _ => None,
        }
    }
}

fn ended_before() -> Failure {
    Failure::new(FailureCode::Closed, "the subscription was ended before the command was answered")
}

fn bytes_of(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn numbers_of(bytes: &[u8]) -> impl Iterator<Item = u32> {
    SubscriptionNumbers::from_bytes(bytes).into_iter().flat_map(SubscriptionNumbers::iter)
}

fn put_unsubscribe(
    subscription: u32,
    command: u32,
    acks: Acks,
    begun: Option<&BegunList>,
    out: &mut Vec<u8>,
) {
    let begun = begun.and_then(BegunList::as_messages);
    Command::Unsubscribe(Unsubscribe { command, acks, subscription, begun }).encode(out);
}

fn lost_settles(count: u64) -> Failure {
    let reason =
        format!("the connection was lost before {count} settled messages were durable: they may come again");
    Failure::new(FailureCode::Disconnected, reason)
}
