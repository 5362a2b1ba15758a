//! How far bookmark subscriptions have come, for those who ask. Nothing is counted while messages are served.

use std::time::Duration;

use quire_journal::Position;

use super::Bookmarks;
use crate::context::Context;
use crate::stats::{Page, SubscriptionStats, TopicStats};
use crate::subscription::{Progress, Source, Subscription, SubscriptionId};

impl Bookmarks {
    /// Adds the position and the lag of a subscription.
    pub(crate) fn describe(&self, cx: &Context, id: SubscriptionId, stats: &mut SubscriptionStats) {
        let Some(progress) = cx.subscriptions.all[id].progress() else { return };
        let position = self.position(cx, id, progress);
        let lag = lag_of(cx, position);
        let taken = (lag > 0).then(|| cx.log.reader.time_before(position.next())).flatten();
        let age_ns = taken.map_or(0, |taken| cx.now.wall.as_ns().saturating_sub(taken.as_ns()));
        stats.position = Some(position.get());
        stats.lag = Some(lag);
        stats.lag_s = Some(Duration::from_nanos(age_ns).as_secs_f64());
    }

    /// The largest lag of the subscriptions that are not paused.
    pub(crate) fn lag_max(&self, cx: &Context) -> u64 {
        let lag = |(id, subscription): (SubscriptionId, &Subscription)| {
            let progress = subscription.progress().filter(|progress| !progress.is_paused)?;
            Some(lag_of(cx, self.position(cx, id, progress)))
        };
        cx.subscriptions.all.iter().filter_map(lag).max().unwrap_or_default()
    }

    /// Counts the subscriptions that are not in the audience of their topics: those that read the log, and those that are paused.
    pub(crate) fn count_subscriptions(&self, cx: &Context, page: &mut Page<TopicStats>) {
        let reads = |subscription: &&Subscription| {
            let stage = subscription.progress().map(|progress| &progress.stage);
            matches!(stage, Some(Source::Detached | Source::Replaying(_)))
        };
        for subscription in cx.subscriptions.all.values().filter(reads) {
            let wanted = page.items.iter_mut().filter(|topic| subscription.selector.matches(&topic.topic));
            wanted.for_each(|topic| topic.subscription_count += 1);
        }
    }

    /// Everything up to here was handed to the connection, or is not wanted.
    fn position(&self, cx: &Context, id: SubscriptionId, progress: &Progress) -> Position {
        let after = match progress.stage {
            Source::Detached => progress.after,
            Source::Replaying(replay) => {
                let replay = &self.replays[replay];
                let index = replay.subscriptions.iter().position(|member| *member == id);
                index.map_or(progress.after, |index| replay.after(index))
            }
            Source::Tailing | Source::SwitchingToLive(_) => cx.log.served,
            Source::Live => cx.log.appended(),
        };
        after.max(progress.after)
    }
}

/// The records that can be read after a position.
fn lag_of(cx: &Context, position: Position) -> u64 {
    cx.log.visible().get().saturating_sub(position.get())
}
