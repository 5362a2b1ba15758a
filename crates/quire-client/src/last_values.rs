//! The commands of a client for last-value topics: queries, deletes, and questions about records
//! that a subscription has lost.

use super::command::CommandId;
use super::publish::check_topic;
use super::subscription::keys_of;
use super::{ClientCore, Event, Failure, PublishError};
use quire_command::{Acks, Code, Command, KEYS_MAX, Keys, Query, SowDelete, TEXTS_MAX, Texts, put_text};
use quire_wire::Encode;

/// Which records of last-value topics, or messages of a queue, to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuerySpec {
    /// A queue, a last-value topic, or a pattern of last-value topics.
    pub topic: String,
    /// Content filter.
    pub filter: Option<String>,
    /// The fields to sort by. Without it, messages of a queue are in delivery order.
    pub order_by: Option<String>,
    /// The most records wanted.
    pub top_n: Option<u32>,
    /// The records to skip before them.
    pub skip_n: Option<u32>,
    /// Only the records with these keys.
    pub keys: Option<Vec<String>>,
    /// Of last-value topics: the state after this message or time; `None` = the current state.
    pub bookmark: Option<String>,
    /// The fields to deliver; `None` = whole messages.
    pub select: Option<String>,
    /// Of one last-value topic: the fields of a record for each group, as `expression AS /field`;
    /// `None` = the records themselves.
    pub projection: Option<Vec<String>>,
    /// The fields that make the groups; `None` = one group.
    pub grouping: Option<Vec<String>>,
}

/// Which records to delete: those that satisfy all given members. At least one member besides the
/// topic is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeleteSpec<'a> {
    /// A last-value topic, or a pattern of them.
    pub topic: &'a str,
    /// Content filter.
    pub filter: Option<&'a str>,
    /// The records with these keys.
    pub keys: Option<&'a [String]>,
    /// A message: the record that a publish of it would replace.
    pub data: Option<&'a [u8]>,
}

impl ClientCore {
    /// Asks for records. Returns the number of the query. [`Event::Messages`] with this number has
    /// the records. [`Event::Completed`] and [`Event::Ended`] follow.
    ///
    /// # Errors
    /// [`Code::LimitExceeded`] for too many keys, and when the client is closed.
    pub fn query(&mut self, spec: &QuerySpec) -> Result<(u32, CommandId), Failure> {
        self.check_not_closed()?;
        let keys = spec.keys.as_deref().map(keys_of);
        let keys = keys.as_deref().map(checked).transpose()?;
        let projection = spec.projection.as_deref().map(packed);
        let grouping = spec.grouping.as_deref().map(packed);
        let projection = projection.as_deref().map(|texts| checked_texts(texts, "projection")).transpose()?;
        let grouping = grouping.as_deref().map(|texts| checked_texts(texts, "grouping")).transpose()?;
        let number = self.subscriptions.add_query();
        let command = self.command(|commands| {
            commands.once(Some(number), |command, out| {
                let query = Query {
                    command,
                    acks: Acks::PROCESSED.and(Acks::COMPLETED),
                    subscription: number,
                    topic: &spec.topic,
                    filter: spec.filter.as_deref(),
                    order_by: spec.order_by.as_deref(),
                    top_n: spec.top_n,
                    skip_n: spec.skip_n,
                    keys,
                    bookmark: spec.bookmark.as_deref(),
                    select: spec.select.as_deref(),
                    projection,
                    grouping,
                    wants_last_values: true,
                };
                Command::Query(query).encode(out);
            })
        });
        self.subscriptions.asked(number, &spec.topic, command);
        Ok((number, command))
    }

    /// The program takes no more answers to a query. The server ends it, and later answers are
    /// dropped.
    pub fn forget_query(&mut self, number: u32) {
        if self.subscriptions.forget_query(number) {
            let mut frame = Vec::new();
            self.commands.put_last_unsubscribe(number, None, &mut frame);
            // Without a connection, no server knows the query.
            self.queue_frames(&frame);
        }
    }

    /// Deletes records. The delete has a sequence and is kept like a publish. Returns its sequence,
    /// and the command. [`Event::JsonReply`] has the number of deleted records.
    ///
    /// # Errors
    /// As [`ClientCore::publish`], and [`Code::LimitExceeded`] for too many keys.
    pub fn delete(&mut self, spec: &DeleteSpec<'_>) -> Result<(u64, CommandId), PublishError> {
        self.check_open()?;
        let DeleteSpec { topic, filter, keys, data } = *spec;
        check_topic(topic)?;
        let keys = keys.map(keys_of);
        let keys = keys.as_deref().map(checked).transpose()?;
        let sequence = self.last_sequence.checked_add(1).ok_or_else(|| self.sequences_end())?;
        let command = CommandId::of_delete(sequence);
        let mut frame = Vec::new();
        let CommandId(number) = command;
        let delete =
            SowDelete { command: number, acks: Acks::PROCESSED, sequence, topic, filter, keys, data };
        Command::SowDelete(delete).encode(&mut frame);
        self.check_command_size(frame.len())?;
        self.store.check_room(frame.len())?;
        self.store.push(sequence, |out| out.extend_from_slice(&frame))?;
        self.commands.delete(command, sequence);
        self.last_sequence = sequence;
        self.sent_last = None;
        Ok((sequence, command))
    }

    /// Asks about the records that a subscription has lost. When there are none to ask about,
    /// reports that the program has the whole difference.
    pub(super) fn ask_about_lost(&mut self, subscription: u32) {
        let Some(question) = self.subscriptions.question(subscription) else {
            return self.events.push_back(Event::Completed { subscription, total: None });
        };
        let command = self.commands.unanswered();
        self.subscriptions.questioned(question.number, subscription, command);
        let CommandId(command) = command;
        let mut frame = Vec::new();
        let query = Query {
            command,
            acks: Acks::PROCESSED.and(Acks::COMPLETED),
            subscription: question.number,
            topic: &question.topic,
            keys: Keys::from_bytes(&question.keys),
            select: question.select.as_deref(),
            wants_last_values: true,
            ..Query::default()
        };
        Command::Query(query).encode(&mut frame);
        self.queue_frames(&frame);
    }

    /// A question about lost records was answered or refused. Asks the next question.
    pub(super) fn finish_question(&mut self, number: u32) {
        let Some((subscription, messages)) = self.subscriptions.question_answered(number) else { return };
        if !messages.is_empty() {
            self.events.push_back(Event::Messages { subscription, messages });
        }
        self.ask_about_lost(subscription);
    }

    /// The server refused a command that is not waiting any more: a question, a query that it ends
    /// before the last record, or a delete without a caller.
    pub(super) fn refused_later(&mut self, command: CommandId, failure: Failure) {
        if let Some(number) = self.subscriptions.question_of(command) {
            return self.finish_question(number);
        }
        if let Some(subscription) = self.subscriptions.query_of(command) {
            self.subscriptions.forget_query(subscription);
            self.events.push_back(Event::Ended { subscription, failure: Some(failure) });
        } else if command.is_delete() {
            self.events.push_back(Event::PublishFailed { sequence: 0, failure });
        }
    }
}

/// Texts as a command has them.
pub(super) fn packed(texts: &[String]) -> Vec<u8> {
    let mut packed = Vec::new();
    texts.iter().for_each(|text| put_text(&mut packed, text));
    packed
}

/// The texts of a command.
fn checked_texts<'t>(texts: &'t [u8], option: &str) -> Result<Texts<'t>, Failure> {
    let too_many =
        || Failure::new(Code::LimitExceeded, format!("{option}: one command takes {TEXTS_MAX} entries"));
    Texts::from_bytes(texts).ok_or_else(too_many)
}

/// The keys of a command.
fn checked(keys: &[u8]) -> Result<Keys<'_>, Failure> {
    let too_many = || Failure::new(Code::LimitExceeded, format!("keys: one command takes {KEYS_MAX} keys"));
    Keys::from_bytes(keys).ok_or_else(too_many)
}
