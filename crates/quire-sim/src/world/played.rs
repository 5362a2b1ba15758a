//! The events of a simulated world.

/// The events of a run, counted. A suite in which one of these stays at zero has not tested what its name claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Played {
    /// Messages that clients published.
    pub published: u64,
    /// Messages that readers received.
    pub delivered: u64,
    /// Messages of combined replays.
    pub combined: u64,
    /// Messages of a queue whose acknowledgement by a worker was confirmed.
    pub acknowledged: u64,
    /// Runs of handlers of workers that fetch ahead.
    pub runs: u64,
    /// Deliveries and ends of leases in the journal.
    pub leases: u64,
    /// Power cuts.
    pub power_cuts: u64,
    /// Servers that ended without one.
    pub kills: u64,
    /// Servers that were stopped as an operator stops them.
    pub stops: u64,
    /// Journals that took no more writes.
    pub poisoned: u64,
    /// Syncs that took seconds.
    pub hung_syncs: u64,
    /// Connections that were cut.
    pub cuts: u64,
    /// Connections that went silent without an end.
    pub silences: u64,
    /// Clients that were killed.
    pub client_kills: u64,
    /// Steps of the wall clock.
    pub clock_steps: u64,
    /// Times that a connection took no more.
    pub stalls: u64,
    /// Connections of peers that publish and leave without waiting for anything.
    pub visits: u64,
    /// Journal files that were archived, compressed or removed.
    pub maintained: u64,
    /// Those of them that were removed.
    pub removed: u64,
    /// Maintenance jobs in the middle of which the process or the power ended.
    pub cut_short: u64,
    /// Commands of an operator that create, alter and drop queues, and were answered.
    pub defined: u64,
    /// Queries of last-value topics whose results were checked.
    pub queried: u64,
    /// Messages of subscriptions that begin with records.
    pub followed: u64,
    /// Those of them that say that a record left the view.
    pub left: u64,
    /// Those of them that have only the fields that differ.
    pub differences: u64,
    /// Records that were deleted.
    pub deleted: u64,
    /// Queries of earlier states, and messages that came after such a state.
    pub earlier: u64,
    /// Messages of pages.
    pub paged: u64,
    /// Messages of conflated subscriptions with records.
    pub conflated: u64,
    /// Subscriptions with records that were replaced.
    pub replaced: u64,
}

impl Played {
    /// Adds the events of another history.
    pub fn add(&mut self, other: &Played) {
        let sums = self.counters();
        for (sum, more) in sums.into_iter().zip(other.clone().counters()) {
            *sum += *more;
        }
    }

    pub(super) fn counters(&mut self) -> [&mut u64; 30] {
        [
            &mut self.published,
            &mut self.delivered,
            &mut self.combined,
            &mut self.acknowledged,
            &mut self.runs,
            &mut self.leases,
            &mut self.power_cuts,
            &mut self.kills,
            &mut self.stops,
            &mut self.poisoned,
            &mut self.hung_syncs,
            &mut self.cuts,
            &mut self.silences,
            &mut self.client_kills,
            &mut self.clock_steps,
            &mut self.stalls,
            &mut self.visits,
            &mut self.maintained,
            &mut self.removed,
            &mut self.cut_short,
            &mut self.defined,
            &mut self.queried,
            &mut self.followed,
            &mut self.left,
            &mut self.differences,
            &mut self.deleted,
            &mut self.earlier,
            &mut self.paged,
            &mut self.conflated,
            &mut self.replaced,
        ]
    }
}

impl std::fmt::Display for Played {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Played {
            published,
            delivered,
            combined,
            acknowledged,
            runs,
            leases,
            power_cuts,
            kills,
            stops,
            poisoned,
            ..
        } = self;
        let Played { hung_syncs, cuts, silences, client_kills, clock_steps, stalls, visits, .. } = self;
        let Played { maintained, removed, cut_short, defined, .. } = self;
        let Played { queried, followed, left, differences, deleted, .. } = self;
        let Played { earlier, paged, conflated, replaced, .. } = self;
        write!(
            f,
            "{published} messages published, {delivered} delivered, {combined} in combined replays, {acknowledged} acknowledged in queues, {runs} runs of handlers, {leases} words of their holders; {power_cuts} power cuts, {kills} kills and {stops} stops of the server, \
             {poisoned} failed disks, {hung_syncs} hung syncs, {cuts} cut and {silences} silent connections, {client_kills} killed clients, \
             {clock_steps} clock steps, {stalls} stalls, {visits} visits; {maintained} journal files maintained, {removed} of them removed, \
             {cut_short} jobs cut short, {defined} commands that create, alter and drop queues; \
             {queried} queries of last values, {followed} messages of subscriptions with records, {left} of them oof and {differences} differences, {deleted} deleted records, \
             {earlier} queries of earlier states and messages after them, {paged} messages of pages, {conflated} conflated ones, {replaced} replacements"
        )
    }
}
