//! Programs that use last-value topics: publishers that also delete, queries, and subscriptions
//! with records.

use quire_client::{
    ClientCore, CommandId, DeleteSpec, Event, FailureCode, NewMessage, PublishError, QuerySpec,
};
use quire_command::Code;
use quire_types::time::Now;

use super::follower::Follower;
use super::ledger::Ledger;
use super::queries::Answered;
use super::{ORDER, Topic, Want};
use crate::random::Random;
use crate::world::cast::Part;

/// A program of a client.
pub(in crate::world) enum Program {
    Publish(Publisher),
    Query(Querier),
    Follow(Follower),
}

/// Publishes to last-value topics, and deletes records.
#[derive(Default)]
pub(in crate::world) struct Publisher {
    /// By sequence; `None`: it is a delete.
    sent: Vec<(u64, Option<u64>)>,
    /// How many of them are persisted.
    persisted: usize,
}

/// Queries one topic after the other.
#[derive(Default)]
pub(in crate::world) struct Querier {
    topic: usize,
    running: Option<(u32, CommandId, Answered)>,
}

impl Program {
    /// `more` and `keeps_files`: see [`Follower::draw`].
    pub fn draw_all(
        topics: &[Topic],
        random: &mut Random,
        more: &mut Random,
        keeps_files: bool,
    ) -> Vec<(String, Program)> {
        if topics.is_empty() {
            return Vec::new();
        }
        let mut all = Vec::new();
        for number in 0..1 + random.below(2) {
            all.push((format!("last-publisher-{number}"), Program::Publish(Publisher::default())));
        }
        for number in 0..1 + random.below(2) {
            all.push((format!("last-query-{number}"), Program::Query(Querier::default())));
        }
        for number in 0..1 + random.below(4) {
            let follower = Follower::draw(topics, random, more, keeps_files);
            all.push((format!("last-follower-{number}"), Program::Follow(follower)));
        }
        all
    }

    /// Whether it is of a part of a cast.
    pub fn is_of(&self, part: Part) -> bool {
        match self {
            Program::Follow(follower) if follower.is_of(part) => true,
            _ => part == Part::LastValues,
        }
    }

    /// The process ends.
    pub fn restart(&mut self, ledger: &mut Ledger) {
        match self {
            Program::Publish(publisher) => *publisher = Publisher::default(),
            Program::Query(querier) => querier.running = None,
            Program::Follow(follower) => follower.leave(ledger),
        }
    }

    pub fn act(
        &mut self,
        name: &str,
        core: &mut ClientCore,
        now: Now,
        random: &mut Random,
        ledger: &mut Ledger,
        is_settling: bool,
    ) {
        match self {
            Program::Publish(_) if is_settling => (),
            Program::Publish(publisher) => publisher.act(core, now, random, ledger),
            Program::Query(querier) => querier.act(core, now, random, ledger, is_settling),
            Program::Follow(follower) => follower.act(name, core, now, random, ledger, is_settling),
        }
    }

    pub fn take(&mut self, core: &ClientCore, event: Event, now: Now, ledger: &mut Ledger) {
        match self {
            Program::Publish(publisher) => publisher.take(core, event, ledger),
            Program::Query(querier) => querier.take(event, now, ledger),
            Program::Follow(follower) => follower.take(event, now, ledger),
        }
    }
}

impl Publisher {
    fn act(&mut self, core: &mut ClientCore, now: Now, random: &mut Random, ledger: &mut Ledger) {
        for _ in 0..random.below(3) {
            let topic = random.below(ledger.topics.len() as u64) as usize;
            if random.percent(8) {
                self.delete(core, now, topic, random, ledger);
                continue;
            }
            let (value, key, quantity, data) = ledger.next(topic, random);
            let Topic { name, has_generated_keys, .. } = &ledger.topics[topic];
            let supplied = format!("key-{key}");
            let message = NewMessage {
                expiration_s: random.percent(30).then(|| random.below(4) as u32),
                key: if *has_generated_keys { "" } else { &supplied },
                ..NewMessage::new(name, data.as_bytes())
            };
            match core.publish(&message) {
                Ok(Some(sequence)) => {
                    ledger.sent(topic, key, quantity);
                    self.sent.push((sequence, Some(value)));
                }
                Ok(None) | Err(PublishError::Full { .. } | PublishError::Refused(_)) => return,
            }
        }
    }

    /// Deletes by filter, by keys, by both, or by the data of a message.
    fn delete(
        &mut self,
        core: &mut ClientCore,
        now: Now,
        topic: usize,
        random: &mut Random,
        ledger: &mut Ledger,
    ) {
        let mut want = Want::draw(&ledger.topics[topic], random);
        let names_key = want.filter().is_none() && want.keys.is_none();
        let data = (names_key || random.percent(20)).then(|| {
            let (_, key, _, data) = ledger.next(topic, random);
            (key, data)
        });
        // Without keys of the topic, a message has no key: the publisher names it.
        let by_data = data.filter(|_| ledger.topics[topic].has_generated_keys);
        if let Some((key, _)) = &by_data {
            let is_named = want.keys.as_ref().is_none_or(|keys| keys.contains(key));
            want.keys = Some(if is_named { vec![*key] } else { Vec::new() });
        } else if names_key {
            want.keys = Some(vec![random.below(ledger.topics[topic].key_count)]);
        }
        let names = want.keys.as_ref().filter(|keys| by_data.is_none() || keys.is_empty());
        let names: Option<Option<Vec<_>>> =
            names.map(|keys| keys.iter().map(|key| ledger.key_name(topic, *key)).collect());
        // The program knows the generated keys of messages that it has seen.
        if names == Some(None)
            || names.as_ref().is_some_and(|names| names.as_ref().is_some_and(Vec::is_empty))
        {
            return;
        }
        let (names, filter) = (names.flatten(), want.filter());
        let spec = DeleteSpec {
            topic: &ledger.topics[topic].name,
            filter: filter.as_deref(),
            keys: names.as_deref(),
            data: by_data.as_ref().map(|(_, data)| data.as_bytes()),
        };
        if let Ok((sequence, _)) = core.delete(&spec) {
            let span = ledger.span(now);
            ledger.delete(core.publisher(), sequence, topic, want, span);
            self.sent.push((sequence, None));
        }
    }

    fn take(&mut self, core: &ClientCore, event: Event, ledger: &mut Ledger) {
        match event {
            Event::Persisted => {
                let persisted = core.persisted();
                while let Some((sequence, value)) =
                    self.sent.get(self.persisted).filter(|(sequence, _)| *sequence <= persisted)
                {
                    match value {
                        Some(value) => ledger.published(*value, true),
                        None => ledger.deleted(core.publisher(), *sequence, None),
                    }
                    self.persisted += 1;
                }
            }
            // A delete that waits for a disk is sent again.
            Event::PublishFailed { sequence: 0, failure } if !is_refusal(failure.code) => (),
            Event::PublishFailed { sequence, failure } => {
                let at = self.sent.binary_search_by_key(&sequence, |(sequence, _)| *sequence);
                match at.map(|at| (at, self.sent.remove(at))) {
                    Ok((at, (_, Some(value)))) => {
                        self.persisted = self.persisted.min(at);
                        ledger.published(value, false);
                    }
                    _ => ledger.refused(format!("the delete {sequence} is refused: {failure:?}")),
                }
            }
            Event::JsonReply { command, json } => {
                // The number of the command of a delete is made from its sequence.
                let of_delete = |(sequence, value): &&(u64, Option<u64>)| {
                    value.is_none() && CommandId(*sequence as u32 | 1 << 31) == command
                };
                let sequence = self.sent.iter().rev().find(of_delete).map(|(sequence, _)| *sequence);
                if let Some(sequence) = sequence {
                    ledger.deleted(core.publisher(), sequence, json.parse().ok());
                }
            }
            Event::Answered { result: Err(failure), .. } if is_refusal(failure.code) => {
                ledger.refused(format!("a delete is refused: {failure}"));
            }
            _ => (),
        }
    }
}

/// Whether the server refuses a command that is right. The logon of a killed process can arrive
/// after the one of the process that was started in its place, and takes the name.
pub(super) fn is_refusal(code: FailureCode) -> bool {
    match code {
        FailureCode::Wire(code) => {
            !matches!(code, Code::StorageFull | Code::StorageFailed | Code::ShuttingDown | Code::NameInUse)
        }
        FailureCode::Closed | FailureCode::Disconnected => false,
    }
}

impl Querier {
    fn act(
        &mut self,
        core: &mut ClientCore,
        now: Now,
        random: &mut Random,
        ledger: &mut Ledger,
        is_settling: bool,
    ) {
        if let Some((number, ..)) = &self.running {
            if !is_settling && random.percent(5) {
                core.forget_query(*number);
                self.running = None;
            }
            return;
        }
        if !is_settling && random.percent(70) {
            return;
        }
        self.topic = (self.topic + 1) % ledger.topics.len();
        let topic = self.topic;
        let asks_for_all = is_settling || random.percent(30);
        let want = if asks_for_all { Want::ALL } else { Want::draw(&ledger.topics[topic], random) };
        let Some(keys) = want.names(ledger, topic) else { return };
        let earlier =
            if !is_settling && random.percent(50) { ledger.draw_earlier(topic, random) } else { None };
        let (bookmark, earlier) = earlier.unzip();
        let is_ordered = random.percent(40);
        let top_n = (!asks_for_all && random.percent(30)).then(|| 1 + random.below(8) as u32);
        let skip_n = top_n.filter(|_| random.percent(40)).map(|_| random.below(5) as u32);
        let spec = QuerySpec {
            topic: ledger.topics[topic].name.clone(),
            filter: want.filter(),
            order_by: is_ordered.then(|| ORDER.to_owned()),
            top_n,
            skip_n,
            keys,
            bookmark,
            ..QuerySpec::default()
        };
        if let Ok((number, command)) = core.query(&spec) {
            let answered = Answered {
                topic,
                want,
                is_ordered,
                top_n: top_n.map(|count| count as usize),
                skip_n: skip_n.unwrap_or_default() as usize,
                rows: Vec::new(),
                total: 0,
                span: ledger.span(now),
                earlier,
            };
            self.running = Some((number, command, answered));
        }
    }

    fn take(&mut self, event: Event, now: Now, ledger: &mut Ledger) {
        let Some((number, _, answered)) = &mut self.running else { return };
        match event {
            Event::Messages { subscription, messages } if subscription == *number => {
                let topic = answered.topic;
                answered.rows.extend(messages.iter().filter_map(|message| ledger.record(topic, message)));
            }
            Event::Completed { subscription, total } if subscription == *number => {
                answered.total = total.unwrap_or_default();
                if let Some((.., answered)) = self.running.take() {
                    ledger.answered(answered, now);
                }
            }
            Event::Ended { subscription, failure } if subscription == *number => {
                let is_gone = |code| {
                    let earlier = answered.earlier.as_ref();
                    code == FailureCode::Wire(Code::BookmarkNotFound) && ledger.is_removed(earlier)
                };
                let failure = failure.filter(|failure| is_refusal(failure.code) && !is_gone(failure.code));
                self.running = None;
                if let Some(failure) = failure {
                    ledger.refused(format!("a query is refused: {failure}"));
                }
            }
            _ => (),
        }
    }
}
