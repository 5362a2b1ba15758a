//! Messages that a queue does not have because the configuration changed (docs/queues.md section
//! 5).
//!
//! A [`Selection`] decides which messages of the log enter a queue. `queues.ack` has the selection
//! of the last run. When a start finds another one, or no queue with the name, it counts the
//! messages that entered earlier, are not settled, and do not fit any more. Until they fit again,
//! the settled position of the queue stays before the first of them. So the log is kept, and a
//! start with the earlier selection finds them where they were.

use std::collections::BTreeMap;

use quire_journal::{Memory, Position, Record, RecordKind};
use serde::{Deserialize, Serialize};

use super::define::answer;
use super::recover::{Beginning, changes_in};
use super::sidecars::{QueuePoint, QueuePoints};
use super::{Definition, QueueService};
use crate::admin::{AdminReply, Requester};
use crate::config::queues::Selection;
use crate::context::Context;
use crate::io::LeftOutBecause;
use crate::reply::Refused;
use crate::scan::context_of;
use crate::{Event, Output};
use quire_expression::filter::{Filter, FilterOptions};
use quire_expression::message_type::{Arena, MessageType};
use quire_expression::topic::TopicSelector;
use quire_queue::{Change, ChangeKind, QueueConfig, QueueEntry, QueueId, Queues, Reasons, Time};

/// A selection that a queue had, and the end of the log when it ended.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Earlier {
    pub until: u64,
    pub selection: Selection,
}

/// The messages that are left out of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LeftOut {
    pub count: u64,
    /// The position of the first one.
    pub first: u64,
    /// The selections under which they entered, each once.
    pub earlier: Vec<Earlier>,
}

/// The messages that are left out of all queues.
#[derive(Default)]
pub(super) struct AllLeftOut {
    /// Of the queues that are there.
    by_queue: BTreeMap<QueueId, LeftOut>,
    /// The queues that left the configuration with messages, as `queues.ack` has them.
    absent: Vec<QueuePoint>,
    /// Queues that are being dropped. They exist until `queues.ack` is written without them.
    dropped: Vec<Dropped>,
    /// The part of `dropped` that the write of `queues.ack` under way leaves out.
    writing: Vec<Dropped>,
}

/// A queue that left the configuration, and is being dropped.
struct Dropped {
    point: QueuePoint,
    /// They wait for the answer. At least one.
    by: Vec<Requester>,
}

impl AllLeftOut {
    /// Of a queue that is there.
    pub fn of(&self, queue: QueueId) -> Option<&LeftOut> {
        self.by_queue.get(&queue)
    }

    /// The queues that left the configuration with messages, for the next `queues.ack`.
    pub fn absent(&self) -> &[QueuePoint] {
        &self.absent
    }

    /// The queues that left the configuration with messages, as `queues.ack` may still have them.
    /// The log keeps their messages.
    pub fn kept(&self) -> impl Iterator<Item = &QueuePoint> {
        self.absent.iter().chain(self.dropped.iter().chain(&self.writing).map(|dropped| &dropped.point))
    }

    /// How many messages a queue has that left the configuration; `None` when there is no such
    /// queue.
    pub fn absent_count(&self, name: &str) -> Option<u64> {
        self.kept().find(|point| point.queue == name).map(|point| point.left_out.count)
    }

    /// A write of `queues.ack` begins.
    pub fn begin_write(&mut self) {
        self.writing.append(&mut self.dropped);
    }
}

impl QueueService {
    /// Drops a queue that left the configuration. The answer follows when `queues.ack` has the
    /// change. Until then the queue exists.
    pub(super) fn drop_absent(&mut self, cx: &mut Context, by: Requester, name: &str) {
        let AllLeftOut { absent, dropped, writing, .. } = &mut self.left_out;
        if let Some(index) = absent.iter().position(|point| point.queue == name) {
            dropped.push(Dropped { point: absent.remove(index), by: vec![by] });
            self.save_now(cx);
        } else if let Some(dropped) =
            dropped.iter_mut().chain(writing).find(|dropped| dropped.point.queue == name)
        {
            dropped.by.push(by);
        }
    }

    /// The write of `queues.ack` that [`AllLeftOut::begin_write`] announced has ended.
    pub(super) fn answer_dropped(&mut self, cx: &mut Context, failure: Option<&Refused>) {
        let written = std::mem::take(&mut self.left_out.writing);
        if failure.is_none() && !written.is_empty() {
            self.pin_log(cx);
        }
        for Dropped { point, by } in written {
            let (queue, message_count) = (point.queue.clone(), point.left_out.count);
            let reply = match failure {
                Some(refused) => {
                    self.left_out.absent.push(point);
                    refused.clone().into()
                }
                None => {
                    let by = by.first().map(Requester::name).unwrap_or_default();
                    cx.note(Event::QueueDropped { queue: queue.clone(), message_count, by });
                    AdminReply::QueueDropped { queue, message_count, warnings: Vec::new() }
                }
            };
            by.iter().for_each(|by| answer(cx, by, reply.clone()));
        }
    }
}

/// The count of the messages that are left out: made at a start, while the log is read.
pub(super) struct Counting {
    queues: Vec<Counted>,
    /// Their messages that are left out, by their places in `queues`. The engine drops settled
    /// ones. They may be more than fit into memory, so that the engine has pageable memory.
    left_out: Queues,
    arena: Arena,
}

/// A queue that has another selection, or another beginning than before.
struct Counted {
    /// As it was at the last run.
    point: QueuePoint,
    /// The queue, if it is still there, and where it begins now.
    queue: Option<(QueueId, Position)>,
    /// The selections under which messages entered. `None` for one that cannot be read any more: it
    /// counts as selecting all messages.
    earlier: Vec<(Earlier, Option<Selector>)>,
    why: LeftOutBecause,
}

/// A [`Selection`] for use.
struct Selector {
    message_type: MessageType,
    topic: TopicSelector,
    filter: Option<Filter>,
}

impl QueueService {
    /// Compares the queues with those of the last run.
    pub(super) fn begin_counting(
        &mut self,
        cx: &Context,
        stored: Option<QueuePoints>,
        beginnings: &[Beginning],
    ) -> Counting {
        let end = cx.log.journal.persisted();
        let mut counting =
            Counting { queues: Vec::new(), left_out: Queues::new(), arena: cx.messages.unreadable.arena() };
        for point in stored.map(|stored| stored.points).unwrap_or_default() {
            let queue = self.find(&point.queue);
            // A queue that was created at run time has one selection, and is not there any more
            // when it was dropped.
            if queue.map_or(point.is_created, |queue| self.defining.is_created(queue)) {
                continue;
            }
            let selection = queue.map(|queue| &self.definition(queue).selection);
            let beginning = queue.map(|queue| &beginnings[queue.get() as usize]);
            let begins_later = beginning.is_some_and(|begin| begin.is_changed && begin.after > point.settled);
            if point.selection.as_ref() == selection && !begins_later {
                match queue {
                    Some(queue) if point.left_out.count > 0 => {
                        self.left_out.by_queue.insert(queue, point.left_out);
                    }
                    None if point.left_out.count > 0 => self.left_out.absent.push(point),
                    // A file of an earlier version does not have the selection of the queue.
                    _ => (),
                }
                continue;
            }
            let why = match queue {
                Some(queue) if begins_later => {
                    LeftOutBecause::Begins { recovery_point: self.definition(queue).recovery_point.0.clone() }
                }
                Some(_) => LeftOutBecause::Settings,
                None => LeftOutBecause::Removed,
            };
            let mut earlier = point.left_out.earlier.clone();
            if let Some(last) = &point.selection {
                earlier.retain(|other| other.selection != *last);
                earlier.push(Earlier { until: end.get(), selection: last.clone() });
            }
            counting.add(
                &cx.config.filter_options(),
                self.snapshots.pageable_memory(&cx.log.journal),
                Counted {
                    queue: queue.zip(beginning.map(|beginning| beginning.after)),
                    earlier: earlier.into_iter().map(|earlier| (earlier, None)).collect(),
                    point,
                    why,
                },
            );
        }
        counting
    }

    /// Notes the messages that are left out, and logs their number.
    pub(super) fn end_counting(&mut self, cx: &mut Context, counting: Counting) {
        let Counting { queues, left_out: engine, .. } = counting;
        for (number, counted) in (0..).map(QueueId::new).zip(queues) {
            let Counted { mut point, queue, earlier, why } = counted;
            let count = engine.stats(number, Time::default()).map_or(0, |stats| stats.queue_depth);
            if count == 0 {
                continue;
            }
            let before_first = engine.settled(number, Position::ZERO).unwrap_or_default();
            let selection = queue.map(|(queue, _)| &self.definition(queue).selection);
            let earlier = earlier.into_iter().map(|(earlier, _)| earlier);
            let earlier = earlier.filter(|earlier| Some(&earlier.selection) != selection).collect();
            let left_out = LeftOut { count, first: before_first.next().get(), earlier };
            match (queue, &why) {
                (Some(_), LeftOutBecause::Begins { .. }) => {
                    let event = Event::QueueMessagesLeftOut { queue: point.queue, count, why };
                    cx.note(event);
                }
                (Some((queue, _)), _) => drop(self.left_out.by_queue.insert(queue, left_out)),
                (None, _) => {
                    (point.settled, point.selection, point.left_out) = (before_first, None, left_out);
                    self.left_out.absent.push(point);
                }
            }
        }
        let AllLeftOut { by_queue, absent, .. } = &self.left_out;
        let there = by_queue.iter().map(|(queue, left_out)| {
            let queue = self.all[queue.get() as usize].name.to_string();
            Event::QueueMessagesLeftOut { queue, count: left_out.count, why: LeftOutBecause::Settings }
        });
        let absent = absent.iter().map(|point| {
            let (queue, count) = (point.queue.clone(), point.left_out.count);
            Event::QueueMessagesLeftOut { queue, count, why: LeftOutBecause::Removed }
        });
        cx.outputs.extend(there.chain(absent).map(Output::Log));
    }
}

impl Counting {
    fn add(&mut self, options: &FilterOptions, memory: &Memory, mut counted: Counted) {
        for (earlier, selector) in &mut counted.earlier {
            *selector = compile(&earlier.selection, options);
        }
        // The settings do not matter: the engine is only asked which messages are left.
        if self.left_out.add_queue_in(QueueConfig::default(), memory).is_ok() {
            self.queues.push(counted);
        }
    }

    /// The log after this position has to be read; `None` when there is nothing to count.
    pub fn reads_after(&self) -> Option<Position> {
        self.queues.iter().map(|counted| counted.point.settled).min()
    }

    /// Takes the next record of the log.
    pub fn take(&mut self, service: &QueueService, cx: &mut Context, record: &Record<'_>) {
        let Counting { queues, left_out, arena } = self;
        let all = || (0..).map(QueueId::new).zip(&*queues);
        match record.kind {
            RecordKind::Publish => {
                for (number, counted) in all() {
                    if counted.is_left_out(service, record, arena) {
                        left_out.enqueue(number, record.position, QueueEntry::default());
                    }
                }
                let Some((name, position)) = service.dead_letters.origin(record) else { return };
                for (queue, _) in all().filter(|(_, counted)| counted.point.queue == name) {
                    let kind = ChangeKind::Expired { reasons: Reasons::default(), deliveries: 0, cancels: 0 };
                    left_out.restore(Change { queue, position, bookmark: None, kind });
                }
            }
            RecordKind::Acknowledge => {
                let Some((number, _)) = all().find(|(_, counted)| counted.point.queue == record.topic) else {
                    return;
                };
                for logged in changes_in(record) {
                    match logged {
                        Ok(logged) => logged.changes(number).for_each(|change| left_out.restore(change)),
                        // The queue is only counted. If it is configured, the start fails by this
                        // record.
                        Err(error) => {
                            let (queue, reason) = (record.topic.to_owned(), error.to_string());
                            cx.note(Event::QueueRecordPassedOver { queue, reason });
                        }
                    }
                }
            }
            RecordKind::Lease | RecordKind::Delete => (),
        }
    }
}

impl Counted {
    /// Whether the message was in the queue, and does not fit any more.
    fn is_left_out(&self, service: &QueueService, record: &Record<'_>, arena: &mut Arena) -> bool {
        if record.position <= self.point.settled {
            return false;
        }
        let entered = self.earlier.iter().any(|(earlier, selector)| {
            record.position.get() <= earlier.until
                && selector.as_ref().is_none_or(|selector| selector.takes(record, arena))
        });
        let fits = |(queue, after): (QueueId, Position), arena: &mut Arena| {
            let definition: &Definition = service.definition(queue);
            record.position > after
                && definition.takes(record)
                && definition.entry_of(record, Time::default(), record.timestamp, arena).is_some()
        };
        entered && !self.queue.is_some_and(|queue| fits(queue, arena))
    }
}

fn compile(selection: &Selection, options: &FilterOptions) -> Option<Selector> {
    let filter = selection.filter.as_ref().map(|text| Filter::parse(text, options)).transpose();
    Some(Selector {
        message_type: MessageType::from_name(&selection.message_type)?,
        topic: TopicSelector::new(&selection.underlying_topic).ok()?,
        filter: filter.ok()?,
    })
}

impl Selector {
    fn takes(&self, record: &Record<'_>, arena: &mut Arena) -> bool {
        let matches = |filter: &Filter| {
            let message = context_of(record, record.timestamp);
            message.is_some_and(|message| filter.matches_with(&message, arena))
        };
        record.message_type == self.message_type.code()
            && self.topic.matches(record.topic)
            && self.filter.as_ref().is_none_or(matches)
    }
}
