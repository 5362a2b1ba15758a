//! The figures of every object of the instance, as its statistics and its administrator see them.

use super::Broker;
use crate::subscription::SubscriptionId;
use crate::tail::LogConsumer;
use crate::{
    DurationFigures, Figures, JournalFigures, Page, SubscriptionStats, TopicStats, TransportFigures,
};

/// Every figure of the instance.
pub(super) fn figures(broker: &Broker) -> Figures {
    let mut stats = broker.stats();
    stats.connections.sort_unstable_by_key(|connection| connection.connection);
    let ids = broker.cx.all_subscriptions();
    Figures {
        server: broker.server_stats(),
        stats,
        subscriptions: subscriptions(broker, &ids).collect(),
        topics: all_topics(broker),
        replication: broker.links.stats(&broker.cx),
        journal: journal(broker),
        transports: transports(broker),
        disconnects: broker.cx.clients.counters.ends.clone(),
        persisted_durations: broker.cx.clients.counters.persisted.figures(),
    }
}

fn transports(broker: &Broker) -> Vec<TransportFigures> {
    let clients = &broker.cx.clients;
    let mut all: Vec<TransportFigures> = broker
        .cx
        .config
        .transports
        .iter()
        .enumerate()
        .map(|(index, transport)| TransportFigures {
            name: transport.name.clone(),
            ..clients.counters.gone.get(index).cloned().unwrap_or_default()
        })
        .collect();
    for session in clients.sessions.all.values() {
        let figures = &mut all[usize::from(session.transport.0)];
        figures.connections += 1;
        figures.messages_in += session.traffic.published_count;
        figures.messages_out += session.outbox.message_count();
        figures.bytes_in += session.traffic.received_bytes;
        figures.bytes_out += session.traffic.sent_bytes;
    }
    all
}

/// The figures of these subscriptions.
pub(super) fn subscriptions(
    broker: &Broker,
    ids: &[SubscriptionId],
) -> impl Iterator<Item = SubscriptionStats> {
    let positions = broker.bookmarks.replay_positions(ids);
    ids.iter().map(move |id| {
        let mut stats = broker.cx.describe(*id);
        broker.bookmarks.describe(&broker.cx, *id, &positions, &mut stats);
        broker.queues.describe(&broker.cx, *id, &mut stats);
        stats
    })
}

/// The topics whose names sort after this one, as far as they are known.
pub(super) fn topics_after(
    broker: &Broker,
    after: &str,
    is_known: impl Fn(&str) -> bool,
) -> Page<TopicStats> {
    let mut page = broker.cx.topics_after(after, is_known);
    broker.tables.describe(&broker.cx, &mut page);
    broker.bookmarks.count_subscriptions(&broker.cx, &mut page);
    page
}

fn all_topics(broker: &Broker) -> Vec<TopicStats> {
    let mut topics: Vec<TopicStats> = Vec::new();
    loop {
        let after = topics.last().map_or("", |last| &last.topic).to_owned();
        let page = topics_after(broker, &after, |_| true);
        let is_last = !page.has_more || page.items.is_empty();
        topics.extend(page.items);
        if is_last {
            return topics;
        }
    }
}

fn journal(broker: &Broker) -> JournalFigures {
    let journal = &broker.cx.log.journal;
    let sizes = journal.sizes();
    let syncs = journal.syncs();
    let consumers =
        ["queues", "subscriptions", "last_values", "replication"].into_iter().zip(consumers!(broker));
    let needed = consumers.filter_map(|(name, consumer)| Some((consumer.needed_from(&broker.cx)?, name)));
    let first_needed = needed.min_by_key(|(position, _)| *position);
    JournalFigures {
        segments: sizes.count,
        active_bytes: sizes.active,
        sealed_bytes: sizes.sealed,
        archived_bytes: sizes.archived,
        compressed_bytes: sizes.compressed,
        first: sizes.first.get(),
        appended_bytes: syncs.written_bytes,
        syncs: DurationFigures::new(&syncs.counts, syncs.sum),
        kept_by: first_needed.filter(|(position, _)| *position <= sizes.oldest_last).map(|(_, name)| name),
    }
}
