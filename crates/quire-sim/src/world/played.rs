//! The events of a simulated world.

use super::Size;

/// Defines the counters of [`Played`], with the sizes of the worlds that can have such events, and
/// with their words in a summary.
macro_rules! counters {
    ($($name:ident $($size:ident)|+ $words:literal,)*) => {
        /// The events of a run, counted. A suite in which one of these stays at zero has not tested
        /// what its name claims.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Played {
            $(#[doc = concat!("Counts ", $words, ".")] pub $name: u64,)*
        }

        impl Played {
            /// Each counter of worlds of a size, with its words in a summary.
            pub fn counters(&self, size: Size) -> Vec<(&'static str, u64)> {
                let all = [$(($words, self.$name, matches!(size, $(Size::$size)|+))),*];
                let counted = all.into_iter().filter(|(.., is_counted)| *is_counted);
                counted.map(|(words, count, _)| (words, count)).collect()
            }

            /// Adds the events of another history.
            pub fn add(&mut self, other: &Played) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counters! {
    instances One | Several "instances",
    published One | Several "messages published",
    delivered One | Several "messages delivered to readers",
    power_cuts One | Several "power cuts",
    late_power_cuts One | Several "power cuts after the end of the process",
    kills One | Several "kills of instances",
    stops One | Several "stops of instances",
    poisoned One | Several "failed disks",
    hung_syncs One | Several "hung syncs",
    cuts One | Several "cut connections",
    thread_reads One | Several "reads by threads",
    caller_reads One | Several "reads by callers",
    loop_reads One | Several "reads by event loops",
    publisher_writes One | Several "writes by publishers",
    blocked One | Several "writes of clients that were blocked",
    spurious One | Several "sockets that were reported and had nothing",
    silences One | Several "silent connections",
    stalls One | Several "stalls",
    client_kills One | Several "killed clients",
    clock_steps One | Several "clock steps",
    combined One | Several "messages of combined replays",
    acknowledged One | Several "acknowledged messages of queues",
    runs One | Several "runs of handlers",
    started One | Several "runs of actions for dead letters",
    leases One | Several "deliveries and ends of leases in the journal",
    visits One | Several "visits",
    maintained One | Several "journal files maintained",
    removed One | Several "journal files removed",
    cut_short One | Several "maintenance jobs cut short",
    defined One | Several "commands that create, alter and drop queues",
    queried One | Several "queries of last values",
    followed One | Several "messages of subscriptions with records",
    left One | Several "records that left a view",
    differences One | Several "differences",
    deleted One | Several "deleted records",
    earlier One | Several "queries of earlier states and messages after them",
    paged One | Several "messages of pages",
    conflated One | Several "conflated messages",
    replaced One | Several "replaced subscriptions",
    links Several "links that came up",
    strict Several "worlds that wait for all destinations",
    filtered Several "worlds with filters of links",
    compressed Several "worlds with compressed links",
    mixed Several "instances of several that have local topics and queues",
    failovers Several "failovers",
    partitions Several "partitions",
    one_way Several "one-way partitions",
    slow Several "slow links",
    lost_disks Several "lost disks",
    restores Several "restored backups",
    downgrades Several "downgrades",
    pauses Several "pauses",
    torn Several "publishers above a gap",
    late Several "late messages",
    differing Several "records that two writers left different",
    excused Several "messages without a counted copy",
    shared_jobs Several "messages of local queues over replicated topics",
    shared_acknowledged Several "acknowledged messages of them",
    shared_views Several "messages of subscriptions with records that move",
    shared_differences Several "differences of them",
}

impl Played {
    /// The counters of worlds of a size, also those that are zero.
    pub fn summary(&self, size: Size) -> String {
        let counters = self.counters(size).into_iter();
        let texts: Vec<_> = counters.map(|(words, count)| format!("{count} {words}")).collect();
        texts.join(", ")
    }
}
