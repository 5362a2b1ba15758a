//! The events of a simulated world.

/// Defines the counters of [`Played`], with their words in a summary.
macro_rules! counters {
    ($($name:ident $words:literal,)*) => {
        /// The events of a run, counted. A suite in which one of these stays at zero has not tested
        /// what its name claims.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Played {
            $(#[doc = concat!("Counts ", $words, ".")] pub $name: u64,)*
        }

        impl Played {
            /// Each counter, with its words in a summary.
            pub fn counters(&self) -> Vec<(&'static str, u64)> {
                vec![$(($words, self.$name)),*]
            }

            /// Adds the events of another history.
            pub fn add(&mut self, other: &Played) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counters! {
    instances "instances",
    published "messages published",
    delivered "messages delivered to readers",
    power_cuts "power cuts",
    late_power_cuts "power cuts after the end of the process",
    kills "kills of instances",
    stops "stops of instances",
    poisoned "failed disks",
    hung_syncs "hung syncs",
    cuts "cut connections",
    silences "silent connections",
    stalls "stalls",
    client_kills "killed clients",
    clock_steps "clock steps",
    combined "messages of combined replays",
    acknowledged "acknowledged messages of queues",
    runs "runs of handlers",
    leases "deliveries and ends of leases in the journal",
    visits "visits",
    maintained "journal files maintained",
    removed "journal files removed",
    cut_short "maintenance jobs cut short",
    defined "commands that create, alter and drop queues",
    queried "queries of last values",
    followed "messages of subscriptions with records",
    left "records that left a view",
    differences "differences",
    deleted "deleted records",
    earlier "queries of earlier states and messages after them",
    paged "messages of pages",
    conflated "conflated messages",
    replaced "replaced subscriptions",
    links "links that came up",
    strict "worlds that wait for all destinations",
    filtered "worlds with filters of links",
    compressed "worlds with compressed links",
    mixed "instances of several that have local topics and queues",
    failovers "failovers",
    partitions "partitions",
    one_way "one-way partitions",
    slow "slow links",
    lost_disks "lost disks",
    restores "restored backups",
    downgrades "downgrades",
    pauses "pauses",
    torn "publishers above a gap",
    conflicts "conflicts",
    excused "messages without a counted copy",
    shared_jobs "messages of local queues over replicated topics",
    shared_acknowledged "acknowledged messages of them",
    shared_views "messages of subscriptions with records that move",
}

impl std::fmt::Display for Played {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let counters = self.counters().into_iter().filter(|(_, count)| *count > 0);
        let texts: Vec<_> = counters.map(|(words, count)| format!("{count} {words}")).collect();
        f.write_str(&texts.join(", "))
    }
}
