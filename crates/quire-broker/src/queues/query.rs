//! Reads queues without changing them: the deliverable messages (protocol.md section 3, `query`),
//! and figures (docs/queues.md section 10).
//!
//! Positions and counts are taken when the command arrives. The messages at these positions are
//! read on reader threads, a page at a time, as the connection takes them. The connection's further
//! commands wait until the last page is sent.

use std::sync::Arc;

use quire_journal::{JournalError, Reader, Timestamp};

use super::QueueService;
use super::jobs::Lookup;
use crate::codec::Encoder;
use crate::context::Context;
use crate::entitlement::Grant;
use crate::failure::code_of;
use crate::replay::CHUNK_SIZE_MAX;
use crate::reply::{Refused, bad_order, not_last_value};
use crate::scan::{context_of, message_of};
use crate::session::{SessionId, Stall};
use quire_command::{Ack, AckKind, Acks, Code, Message, Query, Queued, Reply};
use quire_expression::filter::Filter;
use quire_expression::message_type::{Arena, MessageType};
use quire_expression::select::Select;
use quire_expression::topic::TopicSelector;
use quire_queue::WaitingMessage;
use quire_table::Order;

/// Messages that one query looks at: 16 MiB of their positions and counts. A deeper queue is looked
/// at with `top_n`.
const QUERY_MESSAGES_MAX: usize = 1 << 20;

/// A query under way.
pub(super) struct QueryJob {
    command: u32,
    acks: Acks,
    page: Page,
    /// Still to be sorted.
    order: Option<Order>,
    /// The messages that match, before `top_n` counts; of a filter without an order those that were
    /// looked at.
    total: u64,
    /// The work under way.
    pub(super) number: Option<u64>,
}

/// What is left of the answer.
pub(crate) struct Page {
    subscription: u32,
    encoder: Encoder,
    waiting: Arc<[WaitingMessage]>,
    /// Of these, done.
    done: usize,
    filter: Option<Filter>,
    /// The fields that are visible; `None` = all.
    select: Option<Select>,
    /// The most messages still wanted.
    left: usize,
    now: Timestamp,
}

/// Messages ready to be sent.
#[derive(Default)]
pub(crate) struct PageFound {
    frames: Vec<u8>,
    message_count: usize,
    /// Messages that match, whether or not they are still wanted.
    matched_count: u64,
    /// Messages looked at.
    done: usize,
    error: Option<JournalError>,
}

impl QueueService {
    pub(crate) fn query(&mut self, cx: &mut Context, id: SessionId, query: &Query<'_>, grant: &Grant) {
        cx.acknowledge_received(id, query.command, query.subscription, query.acks);
        match self.plan_query(cx, id, query, grant) {
            Ok(job) => {
                cx.acknowledge_processed(id, query.command, query.subscription, query.acks);
                self.querying.insert(id, job);
                cx.stall(id, Stall::Querying);
            }
            Err(refused) => cx.refuse_command(id, query.command, query.subscription, &refused),
        }
    }

    fn plan_query(
        &mut self,
        cx: &mut Context,
        id: SessionId,
        query: &Query<'_>,
        grant: &Grant,
    ) -> Result<QueryJob, Refused> {
        let Some(queue) = self.find(query.topic) else {
            return Err(match query.wants_last_values {
                true if let Err(error) = TopicSelector::new(query.topic) => {
                    Refused::new(Code::BadTopic, error.to_string())
                }
                true => not_last_value(query.topic, cx.topics.is_container(query.topic)),
                false => Refused::new(Code::UnknownQueue, format!("no queue has the name {:?}", query.topic)),
            });
        };
        for (key, is_given) in [
            ("keys", query.keys.is_some()),
            ("select", query.select.is_some()),
            ("skip_n", query.skip_n.is_some()),
            ("bookmark", query.bookmark.is_some()),
            ("projection", query.projection.is_some()),
            ("grouping", query.grouping.is_some()),
        ] {
            if is_given {
                let reason = format!(
                    "{key}: {:?} is a queue; only queries of last-value topics have {key}",
                    query.topic
                );
                return Err(Refused::new(Code::BadOption, reason));
            }
        }
        if cx.session(id).subscriptions.contains_key(&query.subscription) {
            let reason = format!("subscription {} exists", query.subscription);
            return Err(Refused::new(Code::SubscriptionInUse, reason));
        }
        let filter = query.filter.map(|text| cx.parse_filter(id, text)).transpose()?;
        let filter = cx.narrow(id, grant, filter)?;
        let options = cx.options_within(id, grant, query.topic);
        let order = query.order_by.map(|text| Order::parse(text, &options)).transpose();
        let order = order.map_err(|error| bad_order(&error))?;
        let left = query.top_n.map_or(usize::MAX, |count| count as usize);
        // Without a filter and an order, only the first messages are read.
        let is_plain = filter.is_none() && order.is_none();
        let limit = if is_plain { left } else { usize::MAX }.min(QUERY_MESSAGES_MAX + 1);
        let mut waiting = Vec::new();
        let now = self.time(cx.clock.now);
        if limit > 0 {
            self.engine.browse(queue, now, |message| {
                waiting.push(message);
                waiting.len() < limit
            });
        }
        if waiting.len() > QUERY_MESSAGES_MAX {
            let reason =
                format!("more than {QUERY_MESSAGES_MAX} messages; give a top_n, without a filter or order");
            return Err(Refused::new(Code::LimitExceeded, reason));
        }
        let total = if is_plain { self.engine.stats(queue, now).map_or(0, |stats| stats.waiting) } else { 0 };
        let page = Page {
            subscription: query.subscription,
            encoder: cx.session(id).outbox.encoder(),
            waiting: waiting.into(),
            done: 0,
            filter,
            select: grant.visible_fields(query.topic),
            left,
            now: cx.clock.now.wall,
        };
        Ok(QueryJob { command: query.command, acks: query.acks, page, order, total, number: None })
    }

    /// Continues with the queries whose connections have room.
    pub(super) fn continue_queries(&mut self, cx: &mut Context) {
        let ready = |(id, job): (&SessionId, &QueryJob)| {
            let has_room = cx.clients.sessions.all.get(*id).is_some_and(|session| session.has_room());
            (job.number.is_none() && has_room).then_some(*id)
        };
        for id in self.querying.iter().filter_map(ready).collect::<Vec<_>>() {
            let Some(job) = self.querying.get_mut(&id) else { continue };
            // With a filter or an order, the others are counted.
            let is_over = job.page.left == 0 && job.page.filter.is_none() && job.order.is_none();
            if is_over || job.page.done == job.page.waiting.len() {
                self.end_query(cx, id, None);
                continue;
            }
            let (reader, page) = (cx.log.reader.clone(), job.page.copy());
            let number = match job.order.take() {
                Some(order) => cx.begin_job(
                    move |arena| page.sort(reader, &order, arena),
                    move |queues: &mut QueueService, cx, number, found| queues.sorted(cx, id, number, found),
                ),
                None => cx.begin_job(
                    move |arena| page.run(reader, arena),
                    move |queues: &mut QueueService, cx, number, found| {
                        queues.page_found(cx, id, number, found);
                    },
                ),
            };
            if let Some(job) = self.querying.get_mut(&id) {
                job.number = Some(number);
            }
        }
    }

    /// A page has been read.
    fn page_found(&mut self, cx: &mut Context, id: SessionId, number: u64, found: Option<PageFound>) {
        let Some(job) = self.querying.get_mut(&id).filter(|job| job.number == Some(number)) else {
            return;
        };
        job.number = None;
        let Some(found) = found else {
            let refused = Refused::new(Code::Internal, "the messages could not be read".to_owned());
            return self.end_query(cx, id, Some(refused));
        };
        job.page.done += found.done;
        job.page.left -= found.message_count;
        if job.page.filter.is_some() {
            job.total += found.matched_count;
        }
        cx.clients.counters.delivered += found.message_count as u64;
        cx.session(id).outbox.note_messages(found.message_count as u64);
        cx.session(id).outbox.put_replayed(found.frames);
        cx.touch(id);
        if let Some(error) = found.error {
            self.end_query(cx, id, Some(Refused::new(code_of(&error), error.to_string())));
        }
    }

    /// The messages have been put into order.
    fn sorted(
        &mut self,
        cx: &mut Context,
        id: SessionId,
        number: u64,
        found: Option<Result<(Vec<WaitingMessage>, u64), JournalError>>,
    ) {
        let Some(found) = found else { return self.page_found(cx, id, number, None) };
        let Some(job) = self.querying.get_mut(&id).filter(|job| job.number == Some(number)) else {
            return;
        };
        job.number = None;
        match found {
            Ok((waiting, total)) => {
                job.page.waiting = waiting.into();
                job.page.filter = None;
                job.total = total;
            }
            Err(error) => self.end_query(cx, id, Some(Refused::new(code_of(&error), error.to_string()))),
        }
    }

    fn end_query(&mut self, cx: &mut Context, id: SessionId, refused: Option<Refused>) {
        let Some(QueryJob { command, acks, page, total, .. }) = self.querying.remove(&id) else { return };
        match refused {
            Some(refused) => cx.refuse_command(id, command, page.subscription, &refused),
            None if acks.has(Acks::COMPLETED) => {
                let detail = u32::try_from(total).unwrap_or(u32::MAX);
                let (kind, subscription) = (AckKind::Completed, page.subscription);
                let ack = Ack { kind, code: Code::Ok, command, subscription, detail, reason: "" };
                cx.put(id, &Reply::Ack(ack));
            }
            None => (),
        }
        cx.resume_commands(id, Stall::Querying);
    }
}

impl Page {
    fn copy(&self) -> Page {
        let (filter, select) = (self.filter.clone(), self.select.clone());
        Page { waiting: self.waiting.clone(), filter, select, ..*self }
    }

    /// Reads on until a chunk is full.
    pub(super) fn run(self, reader: Reader, mut arena: Arena) -> PageFound {
        let mut lookup = Lookup::new(reader);
        let (mut found, mut selected) = (PageFound::default(), Vec::new());
        for waiting in &self.waiting[self.done..] {
            let is_full = found.message_count == self.left;
            if (is_full && self.filter.is_none()) || found.frames.len() >= CHUNK_SIZE_MAX {
                break;
            }
            let record = match lookup.get(waiting.position) {
                Ok(record) => record,
                Err(error) => {
                    found.error = Some(error);
                    break;
                }
            };
            found.done += 1;
            let Some(record) = record else { continue };
            let matches = |filter: &Filter| {
                context_of(&record, self.now).is_some_and(|message| filter.matches_with(&message, &mut arena))
            };
            if !self.filter.as_ref().is_none_or(matches) {
                continue;
            }
            found.matched_count += 1;
            if is_full {
                continue;
            }
            let queued = Queued {
                position: waiting.position.get(),
                deliveries: waiting.delivery_count,
                cancels: waiting.cancel_count,
                ..Queued::default()
            };
            let mut message = Message { queued: Some(queued), ..message_of(&record, self.subscription) };
            if let Some(select) = &self.select {
                let message_type = MessageType::from_code(record.message_type);
                message.data = select.apply(message_type, record.data, &mut arena, &mut selected);
            }
            self.encoder.put_message(&message, &mut found.frames);
            found.message_count += 1;
        }
        found
    }

    /// The messages that match, in the order asked for, as many as are wanted; and how many match.
    pub(super) fn sort(
        self,
        reader: Reader,
        order: &Order,
        mut arena: Arena,
    ) -> Result<(Vec<WaitingMessage>, u64), JournalError> {
        let mut lookup = Lookup::new(reader);
        let mut keys = Vec::new();
        for waiting in self.waiting.iter() {
            let Some(record) = lookup.get(waiting.position)? else { continue };
            let Some(message) = context_of(&record, self.now) else { continue };
            if self.filter.as_ref().is_none_or(|filter| filter.matches_with(&message, &mut arena)) {
                keys.push((order.key_of(message.message_type, message.data, &mut arena), *waiting));
            }
        }
        keys.sort_by(|(left, _), (right, _)| left.cmp(right));
        let total = keys.len() as u64;
        Ok((keys.into_iter().map(|(_, waiting)| waiting).take(self.left).collect(), total))
    }
}
