//! Connections between clients and instances, and between instances. Bytes arrive late, in pieces,
//! after a partition has healed, or never.
//!
//! The model is that of a transport that retransmits: within a connection no byte is lost and none
//! overtakes another. A partition holds the bytes of one direction back. On a silent connection
//! nothing arrives, and neither side is notified. The bytes that a process has written before its
//! end still arrive, but not after a power cut. An instance gets such bytes also when the next
//! process of the other instance has begun; a client then gets no more of them. A peer learns of an
//! end when the end of the connection arrives, or never.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::random::Random;

/// Bytes on their way above which the transport of an instance takes no more, and below which it
/// does again.
const HIGH_WATER: usize = 32 * 1024;
const LOW_WATER: usize = 8 * 1024;

/// The longest time that the first byte of a piece takes.
const LATENCY_NS_MAX: u64 = 3_000_000;

/// The longest time until a peer notices that a machine has lost power.
const UNNOTICED_NS_MAX: u64 = 3_000_000_000;

/// A process that has connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Site {
    Client(usize),
    Instance(usize),
}

/// An event of a connection, as one of its ends sees it.
pub(crate) enum Arrival {
    /// The peer connected.
    Opened(Site),
    Bytes(Vec<u8>),
    /// The transport takes more, or does not.
    Writable(bool),
    Ended,
}

pub(crate) struct Network {
    random: Random,
    connections: BTreeMap<u64, Connection>,
    last_connection: u64,
    /// Nothing goes wrong any more.
    is_calm: bool,
    /// Nothing gets from the first to the second.
    blocked: BTreeSet<(Site, Site)>,
    /// Nanoseconds for each byte from the first to the second.
    slow: BTreeMap<(Site, Site), u64>,
    stalls: u64,
}

/// Side 0 has connected to side 1.
struct Connection {
    sides: [Side; 2],
    /// Bytes vanish both ways. Neither side is notified.
    is_silent: bool,
    /// Both sides get the end, and nothing more.
    is_cut: bool,
}

struct Side {
    site: Site,
    is_open: bool,
    /// Does not read at present.
    is_paused: bool,
    /// Was told that the transport takes no more.
    is_full: bool,
    /// What is on its way from here to the other side.
    items: VecDeque<(u64, Item)>,
    size: usize,
    /// The other side has a part of the bytes of one write, and not all of them.
    is_mid_write: bool,
    latency_ns: u64,
    byte_ns: u64,
}

enum Item {
    Open,
    /// `is_last`: the last bytes of a write.
    Bytes {
        bytes: Vec<u8>,
        is_last: bool,
    },
    End,
}

impl Network {
    pub fn new(seed: u64) -> Self {
        Network {
            random: Random::new(seed),
            connections: BTreeMap::new(),
            last_connection: 0,
            is_calm: false,
            blocked: BTreeSet::new(),
            slow: BTreeMap::new(),
            stalls: 0,
        }
    }

    /// From now on no byte is lost or slow. Silent connections are cut.
    pub fn calm(&mut self, now: u64) {
        self.is_calm = true;
        self.heal(now);
        for connection in self.connections.values_mut() {
            connection.sides.iter_mut().for_each(|side| side.byte_ns = 0);
            if connection.is_silent {
                connection.cut(now);
            }
        }
    }

    /// Times that a transport of an instance took no more.
    pub fn stall_count(&self) -> u64 {
        self.stalls
    }

    /// Whether a connection can be made now.
    pub fn is_reachable(&self, from: Site, to: Site) -> bool {
        !self.blocked.contains(&(from, to)) && !self.blocked.contains(&(to, from))
    }

    /// From now on nothing gets from one site to the other.
    pub fn block(&mut self, from: Site, to: Site) {
        self.blocked.insert((from, to));
    }

    /// From now on each byte takes so long.
    pub fn slow_down(&mut self, from: Site, to: Site, byte_ns: u64) {
        self.slow.insert((from, to), byte_ns);
    }

    /// The partitions heal. Some of the connections over them have ended meanwhile.
    pub fn heal(&mut self, now: u64) {
        self.slow.clear();
        let blocked = std::mem::take(&mut self.blocked);
        for connection in self.connections.values_mut() {
            let [a, b] = [connection.sides[0].site, connection.sides[1].site];
            if (blocked.contains(&(a, b)) || blocked.contains(&(b, a))) && self.random.percent(50) {
                connection.cut(now);
            }
        }
    }

    /// `from` connects to an instance.
    pub fn connect(&mut self, from: Site, to: Site, now: u64) -> u64 {
        self.last_connection += 1;
        // Of the connections of clients one in five is slow: some ten to hundred KB a second.
        let may_be_slow = !self.is_calm && matches!(from, Site::Client(_));
        let mut side = |site| Side {
            site,
            is_open: true,
            is_paused: false,
            is_full: false,
            items: VecDeque::new(),
            size: 0,
            is_mid_write: false,
            latency_ns: self.random.below(LATENCY_NS_MAX),
            byte_ns: match may_be_slow && self.random.percent(20) {
                true => 10_000 + self.random.below(90_000),
                false => 0,
            },
        };
        let mut connection = Connection { sides: [side(from), side(to)], is_silent: false, is_cut: false };
        let latency_ns = connection.sides[0].latency_ns;
        connection.sides[0].items.push_back((now + latency_ns, Item::Open));
        self.connections.insert(self.last_connection, connection);
        self.last_connection
    }

    /// A site writes to one of its connections.
    pub fn send(&mut self, connection: u64, from: Site, now: u64, bytes: &[u8]) {
        let Some(connection) = self.connections.get_mut(&connection).filter(|found| found.carries()) else {
            return;
        };
        let number = connection.side_of(from);
        let byte_ns = self.slow.get(&(from, connection.sides[1 - number].site)).copied().unwrap_or(0);
        let side = &mut connection.sides[number];
        if side.is_open {
            side.put(now, byte_ns.max(side.byte_ns), bytes, &mut self.random);
        }
    }

    /// The number of bytes that the transport of a client takes now.
    pub fn room(&self, connection: u64, from: Site) -> usize {
        match self.connections.get(&connection) {
            Some(found) if found.carries() => LOW_WATER.saturating_sub(found.sides[found.side_of(from)].size),
            // What is written is lost.
            _ => LOW_WATER,
        }
    }

    /// Whether a site has bytes to read, or the end of the connection.
    pub fn is_readable(&self, connection: u64, site: Site, now: u64) -> bool {
        self.connections.get(&connection).is_some_and(|found| {
            let (near, far) = found.ends(site);
            let is_held = near.is_paused || found.is_silent || self.blocked.contains(&(far.site, site));
            near.is_open && !is_held && far.items.front().is_some_and(|(at, _)| *at <= now)
        })
    }

    /// Whether a site has read only a part of the bytes that its peer wrote at once.
    pub fn is_mid_write(&self, connection: u64, site: Site) -> bool {
        self.connections.get(&connection).is_some_and(|found| found.ends(site).1.is_mid_write)
    }

    /// A site closes one of its connections. The bytes that it has sent still arrive.
    pub fn close(&mut self, connection: u64, from: Site, now: u64) {
        let Some(found) = self.connections.get_mut(&connection) else { return };
        let number = found.side_of(from);
        found.leave(number, now, 0);
        self.tidy(connection);
    }

    /// The process of a site is gone. After a power cut nothing that it sent arrives any more, and
    /// its peers learn of it later.
    pub fn site_is_gone(&mut self, site: Site, now: u64, with_power: bool) {
        for number in self.open_connections_of(site) {
            let delay_ns = if with_power { self.random.below(UNNOTICED_NS_MAX) } else { 0 };
            let Some(connection) = self.connections.get_mut(&number) else { continue };
            let side = connection.side_of(site);
            if with_power {
                connection.sides[side].clear();
            }
            connection.leave(side, now, delay_ns);
            self.tidy(number);
        }
    }

    /// The next process of a site begins. Nothing of the process before it gets to a client any
    /// more.
    pub fn site_begins(&mut self, site: Site, now: u64) {
        self.site_is_gone(site, now, false);
        for connection in self.connections.values_mut().filter(|connection| connection.has(site)) {
            let side = connection.side_of(site);
            if let Site::Instance(_) = connection.sides[1 - side].site {
                continue;
            }
            connection.sides[side].clear();
            connection.sides[side].items.push_back((now, Item::End));
        }
    }

    fn open_connections_of(&self, site: Site) -> Vec<u64> {
        let is_open = |connection: &Connection| {
            connection.has(site) && connection.sides[connection.side_of(site)].is_open
        };
        let found = self.connections.iter().filter(|(_, connection)| is_open(connection));
        found.map(|(number, _)| *number).collect()
    }

    /// Ends a connection for both sides. Returns whether there is one.
    pub fn cut_one(&mut self, random: &mut Random, now: u64) -> bool {
        self.pick(random).is_some_and(|connection| {
            connection.cut(now);
            true
        })
    }

    /// From now on nothing arrives on a connection. Returns whether there is one.
    pub fn silence_one(&mut self, random: &mut Random) -> bool {
        self.pick(random).is_some_and(|connection| {
            connection.is_silent = true;
            true
        })
    }

    fn pick(&mut self, random: &mut Random) -> Option<&mut Connection> {
        let count = self.connections.len() as u64;
        if count == 0 {
            return None;
        }
        self.connections.values_mut().nth(random.below(count) as usize)
    }

    pub fn pause_reading(&mut self, connection: u64, site: Site, is_paused: bool) {
        if let Some(connection) = self.connections.get_mut(&connection) {
            let number = connection.side_of(site);
            connection.sides[number].is_paused = is_paused;
        }
    }

    /// Whether bytes of a client's connection are slow, or do not arrive, or the instance does not
    /// read them.
    pub fn is_disturbed(&self, connection: u64) -> bool {
        self.connections.get(&connection).is_none_or(|connection| {
            let [near, far] = &connection.sides;
            !connection.carries() || far.is_paused || !far.is_open || near.byte_ns > 0 || far.byte_ns > 0
        })
    }

    /// When the instance has received everything that a client has sent, and so notices the end of
    /// the connection, if it ends now.
    pub fn drained_at(&self, connection: u64, now: u64) -> u64 {
        self.connections.get(&connection).map_or(now, |connection| connection.sides[0].end_at(now))
    }

    /// The next event of one connection of a client.
    pub fn take(&mut self, connection: u64, site: Site, now: u64) -> Option<Arrival> {
        let found = self.connections.get_mut(&connection)?;
        let arrival = found.take(found.side_of(site), now, &self.blocked);
        if let Some(Arrival::Ended) = arrival {
            self.tidy(connection);
        }
        arrival
    }

    /// Everything that has come to an instance.
    pub fn arrivals(&mut self, site: Site, now: u64) -> Vec<(u64, Arrival)> {
        let mut arrivals = Vec::new();
        let mut ended = Vec::new();
        for (&id, connection) in self.connections.iter_mut().filter(|(_, found)| found.has(site)) {
            let here = connection.side_of(site);
            while let Some(arrival) = connection.take(here, now, &self.blocked) {
                if let Arrival::Ended = arrival {
                    ended.push(id);
                }
                arrivals.push((id, arrival));
            }
            let near = &mut connection.sides[here];
            let limit = if near.is_full { LOW_WATER } else { HIGH_WATER };
            if near.is_open && (near.size > limit) != near.is_full {
                near.is_full = !near.is_full;
                self.stalls += u64::from(near.is_full);
                arrivals.push((id, Arrival::Writable(!near.is_full)));
            }
        }
        ended.into_iter().for_each(|id| self.tidy(id));
        arrivals
    }

    fn tidy(&mut self, connection: u64) {
        let is_over = |connection: &Connection| connection.sides.iter().all(|side| !side.is_open);
        if self.connections.get(&connection).is_some_and(is_over) {
            self.connections.remove(&connection);
        }
    }

    /// When something arrives next, after `now`.
    pub fn next_due(&self, now: u64) -> Option<u64> {
        let due = |connection: &Connection| {
            let due = |number: usize| {
                let (from, to) = (&connection.sides[number], &connection.sides[1 - number]);
                let is_held = to.is_paused || !to.is_open || self.blocked.contains(&(from.site, to.site));
                from.items.front().filter(|_| !is_held).map(|(at, _)| *at).filter(|at| *at > now)
            };
            due(0).into_iter().chain(due(1)).min()
        };
        self.connections.values().filter(|connection| !connection.is_silent).filter_map(due).min()
    }
}

impl Connection {
    fn has(&self, site: Site) -> bool {
        self.sides[0].site == site || self.sides[1].site == site
    }

    fn side_of(&self, site: Site) -> usize {
        usize::from(self.sides[0].site != site)
    }

    /// The side of a site, and the other one.
    fn ends(&self, site: Site) -> (&Side, &Side) {
        let here = self.side_of(site);
        (&self.sides[here], &self.sides[1 - here])
    }

    fn carries(&self) -> bool {
        !self.is_silent && !self.is_cut
    }

    fn cut(&mut self, now: u64) {
        (self.is_cut, self.is_silent) = (true, false);
        for side in &mut self.sides {
            side.clear();
            side.is_paused = false;
            side.items.push_back((now, Item::End));
        }
    }

    fn leave(&mut self, number: usize, now: u64, delay_ns: u64) {
        if !self.sides[number].is_open {
            return;
        }
        // The peer reads what is left up to the end.
        self.sides[1 - number].is_paused = false;
        self.sides[1 - number].clear();
        let side = &mut self.sides[number];
        side.is_open = false;
        side.items.push_back((side.end_at(now) + delay_ns, Item::End));
    }

    /// The next event that has come to a side.
    fn take(&mut self, here: usize, now: u64, blocked: &BTreeSet<(Site, Site)>) -> Option<Arrival> {
        let [first, second] = &mut self.sides;
        let (near, far) = if here == 0 { (first, second) } else { (second, first) };
        let is_held = near.is_paused || self.is_silent || blocked.contains(&(far.site, near.site));
        if !near.is_open || is_held {
            return None;
        }
        let (_, item) = far.items.pop_front_if(|(at, _)| *at <= now)?;
        Some(match item {
            Item::Open => Arrival::Opened(far.site),
            Item::Bytes { bytes, is_last } => {
                far.size -= bytes.len();
                far.is_mid_write = !is_last;
                Arrival::Bytes(bytes)
            }
            Item::End => {
                near.is_open = false;
                Arrival::Ended
            }
        })
    }
}

impl Side {
    fn clear(&mut self) {
        self.items.clear();
        self.size = 0;
    }

    /// When the end arrives if this side leaves.
    fn end_at(&self, now: u64) -> u64 {
        self.items.back().map_or(now, |(at, _)| *at).max(now) + self.latency_ns
    }

    fn put(&mut self, now: u64, byte_ns: u64, bytes: &[u8], random: &mut Random) {
        let mut rest = bytes;
        while !rest.is_empty() {
            // Mostly whole, sometimes cut anywhere.
            let size =
                if random.percent(75) { rest.len() } else { 1 + random.below(rest.len() as u64) as usize };
            let (chunk, more) = rest.split_at(size);
            let free = self.items.back().map_or(now, |(at, _)| *at).max(now);
            let at = (now + self.latency_ns).max(free + chunk.len() as u64 * byte_ns);
            let is_last = more.is_empty();
            self.items.push_back((at, Item::Bytes { bytes: chunk.to_vec(), is_last }));
            self.size += chunk.len();
            rest = more;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: Site = Site::Client(0);
    const OTHER: Site = Site::Instance(1);

    /// Whether the bytes that an instance has sent arrive at `peer` after `then` happened.
    fn is_received(peer: Site, then: impl FnOnce(&mut Network, Site)) -> bool {
        let mut network = Network::new(1);
        let instance = Site::Instance(0);
        let connection = network.connect(peer, instance, 0);
        network.arrivals(instance, u64::MAX);
        network.send(connection, instance, 0, b"persisted");
        then(&mut network, instance);
        let mut is_received = false;
        while let Some(arrival) = network.take(connection, peer, u64::MAX) {
            is_received |= matches!(arrival, Arrival::Bytes(_));
        }
        assert!(network.connections.is_empty(), "the peer does not learn of the end");
        is_received
    }

    /// Otherwise an acknowledgement that a client receives after a power cut would count.
    #[test]
    fn a_power_cut_drops_the_bytes_that_an_instance_has_sent_and_a_kill_does_not() {
        assert!(!is_received(CLIENT, |network, instance| network.site_is_gone(instance, 0, true)));
        assert!(is_received(CLIENT, |network, instance| network.site_is_gone(instance, 0, false)));
    }

    #[test]
    fn bytes_of_an_earlier_process_arrive_at_an_instance_and_not_at_a_client() {
        let begins_again = |network: &mut Network, instance| {
            network.site_is_gone(instance, 0, false);
            network.site_begins(instance, 0);
        };
        assert!(!is_received(CLIENT, begins_again));
        assert!(is_received(OTHER, begins_again));
    }
}
