//! Connections whose bytes arrive late, in pieces, or not at all.

use std::collections::{BTreeMap, VecDeque};

use quire_broker::ConnectionId;

use crate::random::Random;

/// Bytes on their way to a client above which the server's transport takes no more, and below which it does again.
const HIGH_WATER: usize = 32 * 1024;
const LOW_WATER: usize = 8 * 1024;

pub(super) struct Network {
    random: Random,
    links: BTreeMap<ConnectionId, Link>,
    last_connection: u64,
    /// Nothing goes wrong any more.
    is_calm: bool,
    stalls: u64,
}

/// One connection, seen from both sides. Each side detects the end independently, or never.
struct Link {
    client: usize,
    up: Pipe,
    down: Pipe,
    /// Bytes vanish both ways. Neither side is notified.
    is_silent: bool,
    /// What is on its way arrives, but nothing more is carried.
    is_broken: bool,
    client_open: bool,
    server: ServerSide,
}

/// The state of a connection as the server sees it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ServerSide {
    /// The server was not notified of the connection yet.
    Arriving,
    Open,
    /// The server was not notified of the end yet.
    Ending,
    Gone,
}

/// Bytes that were sent in one direction and not received.
#[derive(Default)]
struct Pipe {
    chunks: VecDeque<(u64, Vec<u8>)>,
    size: usize,
    /// The receiving side does not read at present.
    is_paused: bool,
    latency_ns: u64,
    byte_ns: u64,
}

/// An event that reaches the server.
pub(super) enum Arrival {
    Connected(ConnectionId),
    Bytes(ConnectionId, Vec<u8>),
    Writable(ConnectionId, bool),
    Ended(ConnectionId),
}

impl Network {
    pub fn new(seed: u64) -> Self {
        Network {
            random: Random::new(seed),
            links: BTreeMap::new(),
            last_connection: 0,
            is_calm: false,
            stalls: 0,
        }
    }

    /// From now on no byte is lost or slow. Silent connections are cut.
    pub fn calm(&mut self) {
        self.is_calm = true;
        for link in self.links.values_mut() {
            link.up.byte_ns = 0;
            link.down.byte_ns = 0;
            if link.is_silent {
                link.cut();
            }
        }
    }

    pub fn stall_count(&self) -> u64 {
        self.stalls
    }

    /// A client connects; the server learns of it.
    pub fn connect(&mut self, client: usize) -> ConnectionId {
        self.last_connection += 1;
        let connection = ConnectionId(self.last_connection);
        let pipe = |random: &mut Random| Pipe {
            latency_ns: random.below(2_000_000),
            // One in five is slow: some ten to hundred KB a second.
            byte_ns: if !self.is_calm && random.percent(20) { 10_000 + random.below(90_000) } else { 0 },
            ..Pipe::default()
        };
        let link = Link {
            client,
            up: pipe(&mut self.random),
            down: pipe(&mut self.random),
            is_silent: false,
            is_broken: false,
            client_open: true,
            server: ServerSide::Arriving,
        };
        self.links.insert(connection, link);
        connection
    }

    /// Whether the client's side is still open.
    pub fn is_open(&self, connection: ConnectionId) -> bool {
        self.links.get(&connection).is_some_and(|link| link.client_open)
    }

    /// Whether bytes of the connection are slow, or do not arrive, or the server does not read them.
    pub fn is_disturbed(&self, connection: ConnectionId) -> bool {
        self.links.get(&connection).is_none_or(|link| {
            !link.carries()
                || link.up.is_paused
                || link.up.byte_ns > 0
                || link.down.byte_ns > 0
                || link.server == ServerSide::Gone
        })
    }

    pub fn send_up(&mut self, connection: ConnectionId, now: u64, bytes: Vec<u8>) {
        if let Some(link) = self.links.get_mut(&connection).filter(|link| link.carries()) {
            link.up.put(now, bytes, &mut self.random);
        }
    }

    pub fn send_down(&mut self, connection: ConnectionId, now: u64, bytes: Vec<u8>) {
        if let Some(link) = self.links.get_mut(&connection).filter(|link| link.carries()) {
            link.down.put(now, bytes, &mut self.random);
        }
    }

    /// The next bytes that have come to the client.
    pub fn take_down(&mut self, connection: ConnectionId, now: u64) -> Option<Vec<u8>> {
        self.links.get_mut(&connection).filter(|link| !link.is_silent)?.down.take(now)
    }

    /// Everything that has come to the server.
    pub fn arrivals(&mut self, now: u64) -> Vec<Arrival> {
        let mut arrivals = Vec::new();
        for (&connection, link) in &mut self.links {
            if link.server == ServerSide::Arriving {
                link.server = ServerSide::Open;
                arrivals.push(Arrival::Connected(connection));
            }
            while link.server != ServerSide::Gone && !link.is_silent && !link.up.is_paused {
                let Some(bytes) = link.up.take(now) else { break };
                arrivals.push(Arrival::Bytes(connection, bytes));
            }
            if link.server == ServerSide::Ending && link.up.chunks.is_empty() {
                link.server = ServerSide::Gone;
                arrivals.push(Arrival::Ended(connection));
                continue;
            }
            let is_full = link.down.is_paused;
            let limit = if is_full { LOW_WATER } else { HIGH_WATER };
            if link.server == ServerSide::Open && (link.down.size > limit) != is_full {
                link.down.is_paused = !is_full;
                self.stalls += u64::from(!is_full);
                arrivals.push(Arrival::Writable(connection, is_full));
            }
        }
        self.links.retain(|_, link| {
            link.client_open || !matches!(link.server, ServerSide::Gone) || !link.down.chunks.is_empty()
        });
        arrivals
    }

    pub fn pause_reading(&mut self, connection: ConnectionId, paused: bool) {
        if let Some(link) = self.links.get_mut(&connection) {
            link.up.is_paused = paused;
        }
    }

    /// The server closes its side. Bytes that it sent still arrive.
    pub fn close(&mut self, connection: ConnectionId) {
        if let Some(link) = self.links.get_mut(&connection) {
            link.server = ServerSide::Gone;
        }
    }

    /// Whether everything that a server which closed had sent has arrived.
    pub fn has_ended(&self, connection: ConnectionId) -> bool {
        self.links.get(&connection).is_none_or(|link| {
            link.server == ServerSide::Gone && !link.is_silent && link.down.chunks.is_empty()
        })
    }

    /// When the server has received everything that the client has sent, and so notices its end.
    pub fn drained_at(&self, connection: ConnectionId, now: u64) -> u64 {
        let last = self.links.get(&connection).and_then(|link| link.up.chunks.back());
        last.map_or(now, |(at, _)| now.max(*at))
    }

    /// The client closes its side.
    pub fn leave(&mut self, connection: ConnectionId) {
        if let Some(link) = self.links.get_mut(&connection) {
            link.client_open = false;
            link.down.chunks.clear();
            link.down.size = 0;
            if !link.is_silent {
                link.end_at_server();
            }
        }
    }

    /// The process of a client is gone, and with it its connections.
    pub fn client_is_gone(&mut self, client: usize) {
        let of_client: Vec<_> =
            self.links.iter().filter(|(_, link)| link.client == client).map(|(id, _)| *id).collect();
        of_client.into_iter().for_each(|connection| self.leave(connection));
    }

    /// The process of the server is gone. Clients learn of it, but for those whose connection is silent.
    pub fn server_is_gone(&mut self) {
        for link in self.links.values_mut() {
            link.server = ServerSide::Gone;
            link.down.chunks.clear();
            link.up.chunks.clear();
        }
        self.links.retain(|_, link| link.client_open);
    }

    /// Breaks a connection, so that both sides learn of it; false when there is none.
    pub fn cut_one(&mut self, random: &mut Random) -> bool {
        self.pick(random).is_some_and(|link| {
            link.cut();
            true
        })
    }

    /// From now on nothing arrives on a connection. Neither side is notified.
    pub fn silence_one(&mut self, random: &mut Random) -> bool {
        self.pick(random).is_some_and(|link| {
            link.is_silent = true;
            true
        })
    }

    fn pick(&mut self, random: &mut Random) -> Option<&mut Link> {
        let count = self.links.len() as u64;
        if count == 0 {
            return None;
        }
        self.links.values_mut().nth(random.below(count) as usize)
    }

    pub fn next_due(&self) -> Option<u64> {
        let due = |link: &Link| {
            let up = link.up.chunks.front().filter(|_| !link.up.is_paused).map(|(at, _)| *at);
            let down = link.down.chunks.front().map(|(at, _)| *at);
            up.into_iter().chain(down).min().filter(|_| !link.is_silent)
        };
        self.links.values().filter_map(due).min()
    }
}

impl Link {
    fn carries(&self) -> bool {
        !self.is_silent && !self.is_broken
    }

    fn cut(&mut self) {
        self.is_silent = false;
        self.is_broken = true;
        self.up.chunks.clear();
        self.down.chunks.clear();
        self.down.size = 0;
        self.end_at_server();
        self.client_open = false;
    }

    fn end_at_server(&mut self) {
        self.server = match self.server {
            // The server never saw the connection, or knows already.
            ServerSide::Arriving | ServerSide::Gone => ServerSide::Gone,
            ServerSide::Open | ServerSide::Ending => ServerSide::Ending,
        };
        self.up.is_paused = false;
    }
}

impl Pipe {
    fn put(&mut self, now: u64, bytes: Vec<u8>, random: &mut Random) {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            // Mostly whole, sometimes cut anywhere.
            let size =
                if random.percent(70) { rest.len() } else { 1 + random.below(rest.len() as u64) as usize };
            let (chunk, more) = rest.split_at(size);
            let free = self.chunks.back().map_or(now, |(at, _)| *at).max(now);
            let at = (now + self.latency_ns).max(free + chunk.len() as u64 * self.byte_ns);
            self.chunks.push_back((at, chunk.to_vec()));
            self.size += chunk.len();
            rest = more;
        }
    }

    fn take(&mut self, now: u64) -> Option<Vec<u8>> {
        let (_, bytes) = self.chunks.pop_front_if(|(at, _)| *at <= now)?;
        self.size -= bytes.len();
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise an acknowledgement that a client receives after a power cut would count.
    #[test]
    fn bytes_that_a_server_sent_before_its_end_do_not_arrive_after_it() {
        let mut network = Network::new(1);
        let connection = network.connect(0);
        network.arrivals(0);
        network.send_down(connection, 0, b"persisted".to_vec());
        network.server_is_gone();
        assert_eq!(network.take_down(connection, u64::MAX), None);
        assert!(network.has_ended(connection));
    }
}
