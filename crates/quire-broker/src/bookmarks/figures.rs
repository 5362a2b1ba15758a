//! The positions of bookmark subscriptions, computed on request. The delivery of messages maintains
//! no counters for them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quire_expression::topic::{TopicPattern, TopicSelector};
use quire_journal::Position;

use super::{Bookmarks, LogProgress, Source};
use crate::context::Context;
use crate::replay::{Replay, ReplayId};
use crate::stats::{Page, SubscriptionStats, TopicStats};
use crate::subscription::SubscriptionId;
use crate::topic::PatternIndex;

/// The positions of members of replays.
pub(crate) type ReplayPositions = BTreeMap<SubscriptionId, Position>;

/// The most pattern matches for one answer about topics. They take tens of milliseconds. An answer
/// that would need more contains fewer topics.
const MATCHES_MAX: usize = 1 << 17;

impl Bookmarks {
    /// Collects the positions of the members of the replays of some subscriptions. Each replay is
    /// traversed once, because it may have any number of members.
    pub(crate) fn replay_positions(&self, ids: &[SubscriptionId]) -> ReplayPositions {
        let stages = ids.iter().filter_map(|id| self.progress(*id));
        let replays: BTreeSet<ReplayId> = stages
            .filter_map(|progress| match progress.stage {
                Source::Replaying(replay) => Some(replay),
                _ => None,
            })
            .collect();
        let replays = replays.into_iter().filter_map(|id| self.replays.get(id));
        replays.flat_map(positions_in).collect()
    }

    /// Adds the position and the lag of a subscription. `positions` are the positions of its
    /// replay.
    pub(crate) fn describe(
        &self,
        cx: &Context,
        id: SubscriptionId,
        positions: &ReplayPositions,
        stats: &mut SubscriptionStats,
    ) {
        let Some(progress) = self.progress(id) else { return };
        let position = position_of(cx, progress, positions.get(&id).copied());
        let lag = lag_of(cx, position);
        let taken = (lag > 0).then(|| cx.log.reader.time_before(position.next())).flatten();
        let age_ns = taken.map_or(0, |taken| cx.clock.now.wall.as_ns().saturating_sub(taken.as_ns()));
        stats.position = Some(position.get());
        stats.lag = Some(lag);
        stats.lag_s = Some(Duration::from_nanos(age_ns).as_secs_f64());
    }

    /// The largest lag of the subscriptions that are not paused.
    pub(crate) fn lag_max(&self, cx: &Context) -> u64 {
        let running = |id: SubscriptionId| {
            let is_paused = cx.clients.subscriptions.all.get(id)?.delivery.is_paused;
            self.progress(id).filter(|_| !is_paused)
        };
        let replaying = self.replays.values().flat_map(positions_in);
        let replaying = replaying.filter_map(|(id, position)| {
            running(id).map(|progress| position_of(cx, progress, Some(position)))
        });
        let others = cx.clients.subscriptions.all.keys().filter_map(running);
        let others = others.filter(|progress| !matches!(progress.stage, Source::Replaying(_)));
        let others = others.map(|progress| position_of(cx, progress, None));
        replaying.chain(others).map(|position| lag_of(cx, position)).max().unwrap_or_default()
    }

    /// Counts the subscriptions that are not in the audience of their topics: those that read the
    /// log, and those that are paused. The page is shorter when they have many patterns.
    pub(crate) fn count_subscriptions(&self, cx: &Context, page: &mut Page<TopicStats>) {
        let reads = |id: SubscriptionId| {
            let stage = self.progress(id).map(|progress| &progress.stage);
            matches!(stage, Some(Source::Detached | Source::Replaying(_)))
        };
        let mut by_name: BTreeMap<&str, usize> = BTreeMap::new();
        let mut by_pattern: BTreeMap<&str, (&TopicPattern, usize)> = BTreeMap::new();
        for (_, subscription) in cx.clients.subscriptions.all.iter().filter(|(id, _)| reads(*id)) {
            match &subscription.wanted.selector {
                TopicSelector::Name(name) => *by_name.entry(name).or_default() += 1,
                TopicSelector::Pattern(pattern) => {
                    by_pattern.entry(pattern.text()).or_insert((pattern, 0)).1 += 1;
                }
            }
        }
        let patterns: Vec<_> = by_pattern.into_values().collect();
        let mut index = PatternIndex::default();
        (0..).zip(&patterns).for_each(|(number, (pattern, _))| index.insert(pattern.prefix(), number));
        let mut match_count = 0;
        let mut counted = Vec::new();
        for mut topic in std::mem::take(&mut page.items) {
            match_count += index.candidates(&topic.topic).count();
            if match_count > MATCHES_MAX && !counted.is_empty() {
                page.has_more = true;
                break;
            }
            let found = index.candidates(&topic.topic).map(|number| patterns[number as usize]);
            let found = found.filter(|(pattern, _)| pattern.matches(&topic.topic)).map(|(_, count)| count);
            topic.subscription_count += found.sum::<usize>() + by_name.get(&*topic.topic).unwrap_or(&0);
            counted.push(topic);
        }
        page.items = counted;
    }
}

/// The members of a replay, and the position of each.
fn positions_in(replay: &Replay) -> impl Iterator<Item = (SubscriptionId, Position)> {
    replay.subscriptions.iter().enumerate().map(|(index, id)| (*id, replay.after(index)))
}

/// The position up to which all wanted records were handed to the connection. `replayed` is its
/// position in its replay.
fn position_of(cx: &Context, progress: &LogProgress, replayed: Option<Position>) -> Position {
    let after = match progress.stage {
        Source::Detached => progress.after,
        Source::Replaying(_) => replayed.unwrap_or(progress.after),
        Source::Tailing | Source::SwitchingToLive { .. } => cx.log.served,
        Source::Live => cx.log.appended(),
    };
    after.max(progress.after)
}

/// The records that can be read after a position.
fn lag_of(cx: &Context, position: Position) -> u64 {
    cx.log.visible().get().saturating_sub(position.get())
}
