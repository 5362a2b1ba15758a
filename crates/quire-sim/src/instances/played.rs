//! The events of worlds of several instances.

/// The events of a run, counted. A suite in which one of these stays at zero has not tested what its name claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Played {
    /// Messages that clients published.
    pub published: u64,
    /// Messages that subscribers received.
    pub delivered: u64,
    /// Instances.
    pub instances: u64,
    /// Worlds in which every destination is waited for.
    pub strict: u64,
    /// Worlds whose links have a filter.
    pub filtered: u64,
    /// Worlds whose links compress.
    pub compressed: u64,
    /// Links that came up.
    pub links: u64,
    /// Times that a client continued on another instance.
    pub failovers: u64,
    /// Clients that were killed.
    pub client_kills: u64,
    /// Partitions that held both directions back.
    pub partitions: u64,
    /// Partitions that held one direction back.
    pub one_way: u64,
    /// Slow connections between two instances.
    pub slow: u64,
    /// Connections that were cut.
    pub cuts: u64,
    /// Instances that ended without losing power.
    pub kills: u64,
    /// Instances that lost power.
    pub power_cuts: u64,
    /// Instances that were stopped as an operator stops them.
    pub stops: u64,
    /// Journals that took no more writes.
    pub poisoned: u64,
    /// Disks that were lost.
    pub lost_disks: u64,
    /// Older disks that were restored.
    pub restores: u64,
    /// Steps of the wall clock of an instance.
    pub clock_steps: u64,
    /// Destinations that were not waited for any more.
    pub downgrades: u64,
    /// Links that were paused.
    pub pauses: u64,
    /// Publishers that continued above a gap, as the documentation says.
    pub torn: u64,
    /// Messages that an instance dropped, and said so, because they came after later ones of their publisher.
    pub conflicts: u64,
    /// Acknowledged messages of which no counted copy was left.
    pub excused: u64,
}

impl Played {
    /// Adds the events of another history.
    pub fn add(&mut self, other: &Played) {
        let sums = self.counters();
        for (sum, more) in sums.into_iter().zip(other.clone().counters()) {
            *sum += *more;
        }
    }

    pub(super) fn counters(&mut self) -> [&mut u64; 25] {
        [
            &mut self.published,
            &mut self.delivered,
            &mut self.instances,
            &mut self.strict,
            &mut self.filtered,
            &mut self.compressed,
            &mut self.links,
            &mut self.failovers,
            &mut self.client_kills,
            &mut self.partitions,
            &mut self.one_way,
            &mut self.slow,
            &mut self.cuts,
            &mut self.kills,
            &mut self.power_cuts,
            &mut self.stops,
            &mut self.poisoned,
            &mut self.lost_disks,
            &mut self.restores,
            &mut self.clock_steps,
            &mut self.downgrades,
            &mut self.pauses,
            &mut self.torn,
            &mut self.conflicts,
            &mut self.excused,
        ]
    }
}

impl std::fmt::Display for Played {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Played { published, delivered, instances, strict, links, failovers, client_kills, .. } = self;
        let Played { partitions, one_way, slow, cuts, kills, power_cuts, stops, poisoned, .. } = self;
        let Played { lost_disks, restores, clock_steps, downgrades, torn, excused, .. } = self;
        let Played { filtered, compressed, pauses, conflicts, .. } = self;
        write!(
            f,
            "{instances} instances ({strict} worlds wait for all destinations, {filtered} filter, {compressed} compress), {published} messages published, {delivered} delivered, {links} links, \
             {failovers} failovers and {client_kills} kills of clients; {partitions} partitions, {one_way} one-way partitions, {slow} slow links, {cuts} cut connections, \
             {kills} kills, {power_cuts} power cuts and {stops} stops of instances, {poisoned} failed disks, {lost_disks} lost disks, {restores} restored backups, \
             {clock_steps} clock steps, {downgrades} downgrades, {pauses} pauses, {torn} publishers above a gap, {conflicts} conflicts, {excused} messages without a counted copy"
        )
    }
}
