//! Connections between clients and instances, and between instances. Bytes arrive late, in pieces, or after a partition has healed.
//!
//! The model is that of a transport that retransmits: within a connection no byte is lost and none overtakes another. A partition holds the
//! bytes of one direction back. The bytes that a process has written before its end still arrive, but not after a power cut. A peer learns
//! of an end when the end of the connection arrives, or never.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::random::Random;

/// Bytes on their way above which the transport of a sender takes no more, and below which it does again.
const HIGH_WATER: usize = 32 * 1024;
const LOW_WATER: usize = 8 * 1024;

/// A process that has connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Site {
    Client(usize),
    Instance(usize),
}

/// An event of a connection, as one of its ends sees it.
pub(super) enum Arrival {
    /// The peer connected.
    Opened(Site),
    Bytes(Vec<u8>),
    /// The transport takes more, or does not.
    Writable(bool),
    Ended,
}

pub(super) struct Network {
    random: Random,
    connections: BTreeMap<u64, Connection>,
    last_connection: u64,
    /// Nothing gets from the first to the second.
    blocked: BTreeSet<(Site, Site)>,
    /// Nanoseconds for each byte from the first to the second.
    slow: BTreeMap<(Site, Site), u64>,
}

/// Side 0 has connected to side 1.
struct Connection {
    sides: [Side; 2],
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
    latency_ns: u64,
}

enum Item {
    Open,
    Bytes(Vec<u8>),
    End,
}

impl Network {
    pub fn new(seed: u64) -> Self {
        Network {
            random: Random::new(seed),
            connections: BTreeMap::new(),
            last_connection: 0,
            blocked: BTreeSet::new(),
            slow: BTreeMap::new(),
        }
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
        let mut side = |site| Side {
            site,
            is_open: true,
            is_paused: false,
            is_full: false,
            items: VecDeque::new(),
            size: 0,
            latency_ns: self.random.below(3_000_000),
        };
        let mut connection = Connection { sides: [side(from), side(to)] };
        let latency_ns = connection.sides[0].latency_ns;
        connection.sides[0].items.push_back((now + latency_ns, Item::Open));
        self.connections.insert(self.last_connection, connection);
        self.last_connection
    }

    /// A site writes to one of its connections.
    pub fn send(&mut self, connection: u64, from: Site, now: u64, bytes: &[u8]) {
        let Some(connection) = self.connections.get_mut(&connection) else { return };
        let number = connection.side_of(from);
        let byte_ns = self.slow.get(&(from, connection.sides[1 - number].site)).copied().unwrap_or(0);
        let side = &mut connection.sides[number];
        if side.is_open {
            side.put(now, byte_ns, bytes, &mut self.random);
        }
    }

    /// A site closes one of its connections. The bytes that it has sent still arrive.
    pub fn close(&mut self, connection: u64, from: Site, now: u64) {
        let Some(found) = self.connections.get_mut(&connection) else { return };
        let number = found.side_of(from);
        found.leave(number, now, 0);
        self.tidy(connection);
    }

    /// The process of a site is gone. After a power cut nothing that it sent arrives any more, and its peers learn of it later.
    pub fn site_is_gone(&mut self, site: Site, now: u64, with_power: bool) {
        let numbers: Vec<u64> = self.connections.keys().copied().collect();
        for number in numbers {
            let delay_ns = if with_power { self.random.below(3_000_000_000) } else { 0 };
            let Some(connection) = self.connections.get_mut(&number) else { continue };
            for side in 0..2 {
                if connection.sides[side].site == site && connection.sides[side].is_open {
                    if with_power {
                        connection.sides[side].clear();
                    }
                    connection.leave(side, now, delay_ns);
                }
            }
            self.tidy(number);
        }
    }

    /// Ends a connection for both sides; whether there is one.
    pub fn cut_one(&mut self, random: &mut Random, now: u64) -> bool {
        let count = self.connections.len() as u64;
        if count == 0 {
            return false;
        }
        let connection = self.connections.values_mut().nth(random.below(count) as usize);
        connection.is_some_and(|connection| {
            connection.cut(now);
            true
        })
    }

    pub fn pause_reading(&mut self, connection: u64, site: Site, is_paused: bool) {
        if let Some(connection) = self.connections.get_mut(&connection) {
            let number = connection.side_of(site);
            connection.sides[number].is_paused = is_paused;
        }
    }

    /// Everything that has come to a site.
    pub fn arrivals(&mut self, site: Site, now: u64) -> Vec<(u64, Arrival)> {
        let mut arrivals = Vec::new();
        let mut ended = Vec::new();
        for (&id, connection) in &mut self.connections {
            let here = match &connection.sides {
                [a, _] if a.site == site => 0,
                [_, b] if b.site == site => 1,
                _ => continue,
            };
            let [first, second] = &mut connection.sides;
            let (near, far) = if here == 0 { (first, second) } else { (second, first) };
            let is_blocked = self.blocked.contains(&(far.site, site));
            while near.is_open
                && !is_blocked
                && (!near.is_paused || matches!(far.items.front(), Some((_, Item::End))))
                && let Some((_, item)) = far.items.pop_front_if(|(at, _)| *at <= now)
            {
                match item {
                    Item::Open => arrivals.push((id, Arrival::Opened(far.site))),
                    Item::Bytes(bytes) => {
                        far.size -= bytes.len();
                        arrivals.push((id, Arrival::Bytes(bytes)));
                    }
                    Item::End => {
                        near.is_open = false;
                        ended.push(id);
                        arrivals.push((id, Arrival::Ended));
                    }
                }
            }
            let limit = if near.is_full { LOW_WATER } else { HIGH_WATER };
            if near.is_open && (near.size > limit) != near.is_full {
                near.is_full = !near.is_full;
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

    pub fn next_due(&self) -> Option<u64> {
        let due = |connection: &Connection| {
            let due = |number: usize| {
                let (from, to) = (&connection.sides[number], &connection.sides[1 - number]);
                let is_held = to.is_paused || !to.is_open || self.blocked.contains(&(from.site, to.site));
                from.items.front().filter(|_| !is_held).map(|(at, _)| *at)
            };
            due(0).into_iter().chain(due(1)).min()
        };
        self.connections.values().filter_map(due).min()
    }
}

impl Connection {
    fn side_of(&self, site: Site) -> usize {
        usize::from(self.sides[0].site != site)
    }

    fn cut(&mut self, now: u64) {
        for side in &mut self.sides {
            side.clear();
            if side.is_open {
                side.items.push_back((now, Item::End));
            }
        }
        // A side that has left gets nothing, and the other one the end.
        for number in 0..2 {
            if !self.sides[number].is_open {
                self.sides[number].items.push_back((now, Item::End));
            }
        }
    }

    fn leave(&mut self, number: usize, now: u64, delay_ns: u64) {
        if !self.sides[number].is_open {
            return;
        }
        self.sides[1 - number].clear();
        let side = &mut self.sides[number];
        side.is_open = false;
        let last = side.items.back().map_or(now, |(at, _)| *at).max(now);
        side.items.push_back((last + side.latency_ns + delay_ns, Item::End));
    }
}

impl Side {
    fn clear(&mut self) {
        self.items.clear();
        self.size = 0;
    }

    fn put(&mut self, now: u64, byte_ns: u64, bytes: &[u8], random: &mut Random) {
        let mut rest = bytes;
        while !rest.is_empty() {
            // Mostly whole, sometimes cut anywhere.
            let size =
                if random.percent(80) { rest.len() } else { 1 + random.below(rest.len() as u64) as usize };
            let (chunk, more) = rest.split_at(size);
            let free = self.items.back().map_or(now, |(at, _)| *at).max(now);
            let at = (now + self.latency_ns).max(free + chunk.len() as u64 * byte_ns);
            self.items.push_back((at, Item::Bytes(chunk.to_vec())));
            self.size += chunk.len();
            rest = more;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise an acknowledgement that a client receives after a power cut would count.
    #[test]
    fn a_power_cut_drops_the_bytes_that_an_instance_has_sent_and_a_kill_does_not() {
        for with_power in [true, false] {
            let mut network = Network::new(1);
            let (client, instance) = (Site::Client(0), Site::Instance(0));
            let connection = network.connect(client, instance, 0);
            network.arrivals(instance, u64::MAX);
            network.send(connection, instance, 0, b"persisted");
            network.site_is_gone(instance, 0, with_power);
            let arrivals = network.arrivals(client, u64::MAX);
            let is_received = arrivals.iter().any(|(_, arrival)| matches!(arrival, Arrival::Bytes(_)));
            assert_eq!(is_received, !with_power);
        }
    }
}
