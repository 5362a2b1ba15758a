//! The live edge: one pass over what has just been persisted serves every bookmark subscription that has caught up.
//!
//! The broker's `edge` is the last record that the pass has served. A replay that arrives there joins the audience and is served from
//! the very next record on: no gap, no duplicate, whatever is published meanwhile. A subscription whose connection takes no more falls back
//! to a replay of its own at the record that it could not take.
//!
//! A `live` subscription that arrives is served from the publish stream instead. What was appended but not persisted by then still
//! comes through the pass, and what is published meanwhile is held back until that is done.

use quire_journal::{Position, Record, RecordKind};

use super::Broker;
use super::slice::{PASS, WEIGHED_EFFORT, WEIGHT_MAX};
use crate::filter::Decision;
use crate::replay::{context_of, message_of};
use crate::subscription::{Course, Joining, Progress, Progressing, Subscription, SubscriptionId};
use crate::time::Instant;
use crate::topic::{Stage, TopicId};
use crate::wire::Message;

/// Bytes of records that the pass takes in one turn: more would keep the other connections waiting.
const PASS_SIZE_MAX: usize = 4 * 1024 * 1024;

impl Broker {
    /// A subscription has arrived at the edge, or begins there or beyond it.
    pub(super) fn join_edge(&mut self, id: SubscriptionId) {
        let appended = self.journal.appended();
        let Some(progress) = self.subscription(id).progress_mut() else { return };
        let after = progress.after;
        match progress.live {
            false => {
                progress.stage = Progressing::AtEdge;
                self.join(id, Stage::Persisted);
                self.place_is_wanted(id);
            }
            true if after >= appended => {
                progress.stage = Progressing::Live;
                self.join(id, Stage::Published);
            }
            true => {
                progress.stage = Progressing::Joining(Box::new(Joining { join: appended, held: Vec::new() }));
                self.join(id, Stage::Persisted);
                self.join(id, Stage::Published);
                self.joining.insert(id);
            }
        }
        self.reach(id, after);
        let has_goals = |subscription: &Subscription| Some(subscription.progress()?.goals().next().is_some());
        if self.subscriptions.get(id).and_then(has_goals) == Some(true) {
            self.with_goals.insert(id);
        }
    }

    /// Serves what has become persisted since the last turn, up to the bound of one turn.
    pub(super) fn pass_edge(&mut self) {
        let persisted = self.journal.persisted();
        if self.edge < persisted {
            self.to_feed.extend(self.tails.drain(..));
        }
        let mut size_left = PASS_SIZE_MAX;
        let deadline = self.slices.deadline(PASS);
        while self.edge < persisted {
            let nobody_waits = !self.topics.anyone_waits_for_persisted() && self.awaited_ends.is_empty();
            if nobody_waits && !self.queues.any() {
                self.edge = persisted;
                self.edge_cursor = None;
                break;
            }
            if size_left == 0 {
                self.wants_turn = true;
                return;
            }
            // The pass stops where something has to be done, so that this comes between the right two messages.
            let goal = self.goal_above(self.edge).map_or(persisted, |goal| goal.min(persisted));
            self.pass_up_to(goal, &mut size_left, deadline);
            self.arrive();
        }
        self.arrive();
        self.find_passed_ends();
    }

    /// The nearest position above `edge` that somebody waits for.
    fn goal_above(&self, edge: Position) -> Option<Position> {
        let progress = |id: &SubscriptionId| self.subscriptions.get(*id)?.progress();
        self.with_goals
            .iter()
            .filter_map(progress)
            .flat_map(Progress::goals)
            .filter(|goal| *goal > edge)
            .min()
    }

    /// What has become true by the edge's moving.
    pub(super) fn arrive(&mut self) {
        let edge = self.edge;
        for id in self.with_goals.iter().copied().collect::<Vec<_>>() {
            let stage = self.subscriptions.get(id).and_then(|s| Some(&s.progress()?.stage));
            match stage {
                Some(Progressing::AtEdge | Progressing::Joining(_)) => self.reach(id, edge),
                // It comes to its goals elsewhere, and back here if it has not passed them then.
                _ => drop(self.with_goals.remove(&id)),
            }
        }
        for id in self.joining.iter().copied().collect::<Vec<_>>() {
            self.fall_in_step(id);
        }
    }

    fn pass_up_to(&mut self, limit: Position, size_left: &mut usize, deadline: Option<Instant>) {
        let edge = self.edge;
        let cursor = self.edge_cursor.take();
        let mut cursor = cursor.unwrap_or_else(|| self.reader.cursor(edge));
        let mut last_topic: Option<(TopicId, u64, String)> = None;
        let mut weight = 0;
        'pass: while self.edge < limit && *size_left > 0 {
            let batch = match cursor.next(limit, &Everything) {
                Ok(Some(batch)) => batch,
                Ok(None) => {
                    self.edge = limit;
                    break;
                }
                // Subscriptions fall back to replays, which meet the damage again and report it. Queues have no replay: what they cannot
                // take in here enters them at the next start, and no more is taken until then.
                Err(error) => {
                    if self.queues.any() {
                        self.fail(&error);
                    }
                    return self.scatter(limit);
                }
            };
            for record in batch.records() {
                if record.position <= self.edge {
                    continue;
                }
                let ends = !self.awaited_ends.is_empty() && self.find_ends(&record);
                if ends {
                    self.arrive();
                }
                let generation = self.topics.generation();
                let topic = match &last_topic {
                    Some((topic, known_in, name)) if name == record.topic && *known_in == generation => {
                        *topic
                    }
                    _ => {
                        let topic = self.topics.intern(record.topic);
                        last_topic = Some((topic, self.topics.generation(), record.topic.to_owned()));
                        topic
                    }
                };
                weight += self.serve_persisted(topic, &record);
                self.edge = record.position;
                if ends {
                    self.arrive();
                }
                if weight >= WEIGHT_MAX {
                    weight = 0;
                    if self.slices.is_past(deadline) {
                        if self.queues.any() {
                            self.queues.keep(batch.clone());
                        }
                        cursor.rest_at(self.edge);
                        *size_left = 0;
                        break 'pass;
                    }
                }
            }
            if self.queues.any() {
                self.queues.keep(batch.clone());
            }
            *size_left = size_left.saturating_sub(batch.size());
            if self.slices.is_past(deadline) {
                *size_left = 0;
            }
        }
        self.edge_cursor = Some(cursor);
    }

    /// Serves those that follow; gives the weight of that, as [`super::slice`] counts.
    fn serve_persisted(&mut self, topic: TopicId, record: &Record<'_>) -> usize {
        if record.kind != RecordKind::Publish {
            return 0;
        }
        if !self.topics.topic(topic).queues.is_empty() {
            self.enqueue(topic, record);
        }
        if !self.topics.has_audience(topic, Stage::Persisted) {
            return 0;
        }
        let Some(context) = context_of(record, self.now.wall) else { return 0 };
        let mut matched = std::mem::take(&mut self.matched);
        let push = |id, decision| matched.push((id, decision));
        let effort = self.topics.for_each_decision(topic, Stage::Persisted, &context, self.turn_effort, push);
        for &(subscription, decision) in &matched {
            if decision == Decision::Open {
                self.look_again(subscription, record);
                continue;
            }
            self.with_selected(subscription, Some(context.message_type), record.data, |broker, data| {
                broker.deliver_persisted(subscription, record, data);
            });
        }
        matched.clear();
        self.matched = matched;
        effort as usize / WEIGHED_EFFORT
    }

    /// The filter of a subscription takes more effort for the record than the pass has: a replay, run elsewhere, evaluates it.
    fn look_again(&mut self, id: SubscriptionId, record: &Record<'_>) {
        let Some(progress) = self.subscriptions.get(id).and_then(Subscription::progress) else { return };
        let is_served_otherwise =
            matches!(&progress.stage, Progressing::Joining(joining) if record.position > joining.join);
        if record.position > progress.after && !is_served_otherwise {
            self.fall_behind(id, Position::new(record.position.get() - 1));
        }
    }

    /// `data` is what the subscription wants of the record.
    fn deliver_persisted(&mut self, id: SubscriptionId, record: &Record<'_>, data: &[u8]) {
        let now = self.now.instant;
        let Some(subscription) = self.subscriptions.get_mut(id) else { return };
        let Subscription { session: session_id, number, ref mut course, ref conflation, .. } = *subscription;
        let Course::Bookmark(progress) = course else { return };
        let is_wanted = record.position > progress.after
            && progress.taken_after.is_none_or(|instant| record.timestamp > instant)
            && !matches!(&progress.stage, Progressing::Joining(joining) if record.position > joining.join);
        if !is_wanted {
            return;
        }
        let can_go = progress.pace.as_mut().is_none_or(|pace| {
            // What is at the edge has just come: nothing could be sent before.
            pace.rest();
            pace.opens_at(now, record.timestamp) <= now
        });
        // What is conflated is held for a connection that takes nothing, as long as there is room.
        let has_room = conflation.as_ref().is_some_and(|conflation| conflation.has_room());
        if !can_go || !(has_room || self.sessions[session_id].can_be_fed()) {
            return self.fall_behind(id, Position::new(record.position.get() - 1));
        }
        if let Some(pace) = &mut progress.pace {
            pace.went(now, data.len(), record.timestamp);
        }
        if conflation.is_some() {
            return self.hold_record(id, record, data);
        }
        self.give_buffer(session_id);
        let session = &mut self.sessions[session_id];
        let size_before = session.outbox.size();
        Message { data, ..message_of(record, number) }.encode(session.outbox.bytes_mut());
        let size = session.outbox.size() - size_before;
        session.outbox.count_as_replayed(size);
        self.counters.delivered += 1;
        self.touch(session_id);
    }

    /// A subscription cannot follow: it goes on from the log, at the pace of its connection.
    pub(super) fn fall_behind(&mut self, id: SubscriptionId, after: Position) {
        self.halt(id);
        let session = self.subscription(id).session;
        if let Some(progress) = self.subscription(id).progress_mut() {
            progress.after = after;
        }
        // The edge moves past this record before anything is read: the replay begins behind it.
        self.begin_replay(session, vec![id], after);
    }

    fn scatter(&mut self, limit: Position) {
        let edge = self.edge;
        let at_edge = |(id, subscription): (SubscriptionId, &Subscription)| {
            let progress = subscription.progress()?;
            let follows = matches!(progress.stage, Progressing::AtEdge | Progressing::Joining(_));
            (follows && progress.after < limit).then_some(id)
        };
        let followers: Vec<_> = self.subscriptions.iter().filter_map(at_edge).collect();
        for id in followers {
            let after = self.subscription(id).progress().map_or(edge, |progress| progress.after.max(edge));
            self.fall_behind(id, after);
        }
        self.edge = limit;
    }

    /// A `live` subscription goes over to the publish stream once the pass has served all that was appended before it joined.
    fn fall_in_step(&mut self, id: SubscriptionId) {
        let edge = self.edge;
        let subscription = &mut self.subscriptions[id];
        let session_id = subscription.session;
        let selector = subscription.selector.clone();
        let Some(progress) = subscription.progress_mut() else { return };
        let Progressing::Joining(joining) = &mut progress.stage else { return };
        if edge < joining.join {
            return;
        }
        let held = std::mem::take(&mut joining.held);
        progress.stage = Progressing::Live;
        self.joining.remove(&id);
        self.topics.remove(&selector, Stage::Persisted, id);
        if !held.is_empty() {
            self.session(session_id).outbox.bytes_mut().extend_from_slice(&held);
            self.touch(session_id);
        }
    }
}

/// The pass looks at every record.
struct Everything;

impl quire_journal::TopicFilter for Everything {
    fn wants(&self, _: &str) -> bool {
        true
    }
}
