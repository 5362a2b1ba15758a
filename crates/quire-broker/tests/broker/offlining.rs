//! Messages of slow clients wait on disk (docs/operations.md, "Slow clients").

use std::path::Path;
use std::time::Duration;

use quire_broker::{BrokerConfig, Event, Limits, TransportConfig, TransportId};
use quire_command::*;
use tempfile::TempDir;

use super::pair::*;

const MIB: usize = 1 << 20;

/// A broker with a disk for slow clients, a publisher (1), and subscribers.
struct World {
    pair: Pair,
    directory: TempDir,
    sequence: u64,
    published: Vec<String>,
}

impl World {
    fn new(subscribers: u64, limits: Limits, transport: TransportConfig) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let limits = Limits { message_disk_path: Some(directory.path().to_owned()), ..limits };
        let mut pair = Pair::with(BrokerConfig { transports: vec![transport], limits, ..config() });
        pair.client(1, "publisher");
        for client in 2..2 + subscribers {
            pair.client(client, &format!("subscriber-{client}"));
            pair.subscribe(client, &subscribe(7, "orders"));
            pair.turn();
            pair.take(client);
        }
        World { pair, directory, sequence: 0, published: Vec::new() }
    }

    fn publish(&mut self, count: usize, size: usize) {
        for _ in 0..count {
            self.sequence += 1;
            let data = format!("{:09} {}", self.sequence, "x".repeat(size - 10));
            self.pair.publish(1, self.sequence, "orders", &data);
            self.published.push(data);
            self.pair.turn();
        }
    }

    fn files(&self) -> usize {
        std::fs::read_dir(self.directory.path()).unwrap().count()
    }

    fn in_memory(&self, client: u64) -> usize {
        let stats = self.pair.broker.stats();
        stats.connections.iter().find(|each| each.connection.0 == client).unwrap().backlog_bytes
    }

    fn is_offlined(&self, client: u64) -> bool {
        let stats = self.pair.broker.stats();
        stats.connections.iter().any(|each| each.connection.0 == client && each.offlined)
    }

    fn logged(&self, of: impl Fn(&Event) -> bool) -> usize {
        self.pair.log.iter().filter(|event| of(event)).count()
    }
}

fn small() -> TransportConfig {
    TransportConfig { max_client_backlog: 2 << 20, ..TransportConfig::default() }
}

#[test]
fn a_client_that_does_not_read_gets_everything_in_order_when_it_reads_again() {
    let mut world = World::new(2, Limits::default(), small());
    world.pair.set_writable(2, false);
    world.publish(400, 100_000);
    assert!(world.is_offlined(2) && !world.is_offlined(3));
    assert!(world.in_memory(2) < 8 * MIB, "{} bytes are in memory", world.in_memory(2));
    assert!(world.files() > 3);
    let stats = world.pair.broker.stats();
    assert_eq!((stats.offlined_count, stats.offlined_bytes > 30_000_000), (1, true));
    assert_eq!(world.pair.take(2), []);
    assert_eq!(world.pair.take_data(3), world.published, "others notice nothing");
    // It reads again while messages arrive.
    world.pair.set_writable(2, true);
    world.publish(20, 50_000);
    world.pair.turn();
    assert_eq!(world.pair.take_data(2), world.published);
    assert!(!world.is_offlined(2));
    assert_eq!((world.files(), world.pair.broker.stats().offlined_bytes), (0, 0));
    assert_eq!(world.logged(|event| matches!(event, Event::ClientOfflined { .. })), 1);
    assert_eq!(world.logged(|event| matches!(event, Event::ClientOnline { .. })), 1);
    world.publish(1, 100);
    assert_eq!(world.pair.take_data(2), world.published[world.published.len() - 1..]);
}

#[test]
fn a_client_that_reads_now_and_then_stays_offlined_and_gets_everything() {
    let mut world = World::new(1, Limits::default(), small());
    let mut received = Vec::new();
    for round in 0..60 {
        world.pair.set_writable(2, false);
        world.publish(20, 50_000);
        // It accepts some bytes of a turn.
        world.pair.set_writable(2, true);
        world.pair.one_turn();
        world.pair.set_writable(2, false);
        received.extend(world.pair.take_data(2));
        assert!(world.in_memory(2) < 8 * MIB, "round {round}: {} bytes", world.in_memory(2));
    }
    world.pair.set_writable(2, true);
    world.pair.turn();
    received.extend(world.pair.take_data(2));
    assert!(received == world.published);
    assert_eq!(world.files(), 0);
}

#[test]
fn slow_jobs_change_no_order() {
    let mut world = World::new(1, Limits::default(), small());
    world.pair.reads_at_once = false;
    let mut received = Vec::new();
    for round in 0..200 {
        world.pair.set_writable(2, round % 3 == 0);
        world.publish(5, 60_000);
        if round % 5 == 0 {
            world.pair.run_last_read();
        }
        if round % 17 == 0 {
            world.pair.run_reads();
        }
        received.extend(world.pair.take_data(2));
    }
    world.pair.reads_at_once = true;
    world.pair.set_writable(2, true);
    world.pair.turn();
    received.extend(world.pair.take_data(2));
    assert!(received == world.published);
}

#[test]
fn a_disk_that_does_not_take_messages_in_time_ends_the_client() {
    let mut world = World::new(1, Limits::default(), small());
    world.pair.reads_at_once = false;
    world.pair.set_writable(2, false);
    world.publish(700, 100_000);
    assert_eq!(world.pair.take(2), [Said::Error(Code::SlowConsumer), Said::Closed]);
    let ended = |event: &Event| matches!(event, Event::Ended { reason, .. } if reason.contains("the disk does not take them"));
    assert_eq!(world.logged(ended), 1);
    world.pair.run_reads();
    world.pair.turn();
    world.pair.run_reads();
    assert_eq!(world.files(), 0);
}

#[test]
fn a_client_beyond_its_share_of_the_disk_is_ended() {
    let limits = Limits { message_disk_limit: 20 << 20, ..Limits::default() };
    let mut world = World::new(1, limits, small());
    world.pair.set_writable(2, false);
    world.publish(90, 100_000);
    assert!(world.is_offlined(2), "9 MB of 10");
    world.publish(80, 100_000);
    let said = world.pair.take(2);
    assert_eq!(said[said.len() - 2..], [Said::Error(Code::SlowConsumer), Said::Closed]);
    world.pair.turn();
    assert_eq!(world.files(), 0);
}

#[test]
fn the_client_with_the_most_on_disk_is_ended_at_the_limit_of_all() {
    let limits = Limits { message_disk_limit: 24 << 20, ..Limits::default() };
    let mut world = World::new(3, limits, TransportConfig { client_max_capacity: 1000, ..small() });
    world.pair.set_writable(2, false);
    world.publish(60, 100_000);
    world.pair.set_writable(3, false);
    world.pair.set_writable(4, false);
    world.publish(90, 100_000);
    let said = world.pair.take(2);
    assert_eq!(said[said.len() - 2..], [Said::Error(Code::SlowConsumer), Said::Closed]);
    assert!(world.is_offlined(3) && world.is_offlined(4));
    for client in [3, 4] {
        world.pair.take(client);
        world.pair.set_writable(client, true);
    }
    world.pair.turn();
    assert_eq!(world.pair.take_data(3).len(), 90);
    assert_eq!(world.pair.take_data(4).len(), 90);
}

#[test]
fn what_waits_for_all_clients_moves_to_disk_beginning_with_the_most() {
    let limits = Limits { max_waiting: 12 << 20, ..Limits::default() };
    let transport = TransportConfig { client_max_capacity: 1000, ..TransportConfig::default() };
    let mut world = World::new(3, limits, transport);
    world.pair.set_writable(2, false);
    world.publish(100, 100_000);
    for client in [3, 4] {
        world.pair.take(client);
        world.pair.set_writable(client, false);
    }
    world.publish(40, 100_000);
    assert_eq!((world.is_offlined(2), world.is_offlined(3), world.is_offlined(4)), (true, false, false));
    world.publish(100, 100_000);
    let in_memory: usize = (2..=4).map(|client| world.in_memory(client)).sum();
    assert!(in_memory <= (12 << 20) + MIB, "{in_memory} bytes are in memory");
    for client in 2..=4 {
        world.pair.set_writable(client, true);
    }
    world.pair.turn();
    assert!(world.pair.take_data(2) == world.published);
    for client in [3, 4] {
        assert!(world.pair.take_data(client) == world.published[100..]);
    }
}

/// A broker with two transports. The clients 2 and 3 are of the first one, which has these limits,
/// and client 4 is of the other one.
fn two_transports(limited: TransportConfig) -> World {
    let mut world = World::new(0, Limits::default(), TransportConfig::default());
    let path = Some(world.directory.path().to_owned());
    let limits = Limits { message_disk_path: path, ..Limits::default() };
    let other = TransportConfig { name: "other".to_owned(), ..TransportConfig::default() };
    let limited = TransportConfig { client_max_capacity: 1000, ..limited };
    world.pair = Pair::with(BrokerConfig { transports: vec![limited, other], limits, ..config() });
    world.pair.client(1, "publisher");
    for client in 2..=4 {
        world.pair.connect_over(client, TransportId(u16::from(client == 4)));
        world.pair.log_on(client, &format!("subscriber-{client}"));
        world.pair.subscribe(client, &subscribe(7, "orders"));
        world.pair.turn();
        world.pair.take(client);
    }
    world
}

#[test]
fn what_waits_for_the_clients_of_a_transport_stays_within_its_limit_of_the_memory() {
    let limited = TransportConfig { message_memory_limit: Some(6 << 20), ..TransportConfig::default() };
    let mut world = two_transports(limited);
    for client in 2..=4 {
        world.pair.set_writable(client, false);
    }
    world.publish(150, 100_000);
    let in_memory = world.in_memory(2) + world.in_memory(3);
    assert!(in_memory <= (6 << 20) + MIB, "{in_memory} bytes are in memory");
    assert!(world.is_offlined(2) && world.is_offlined(3) && !world.is_offlined(4));
    assert!(world.in_memory(4) > 14_000_000, "the other transport has another limit");
    for client in 2..=4 {
        world.pair.set_writable(client, true);
    }
    world.pair.turn();
    for client in 2..=4 {
        assert!(world.pair.take_data(client) == world.published);
    }
}

#[test]
fn a_client_of_a_transport_without_disk_is_ended_at_the_limit_of_the_transport() {
    let limited = TransportConfig {
        message_memory_limit: Some(6 << 20),
        message_disk_limit: Some(0),
        ..TransportConfig::default()
    };
    let mut world = two_transports(limited);
    world.pair.set_writable(2, false);
    world.publish(30, 100_000);
    world.pair.set_writable(3, false);
    world.publish(50, 100_000);
    assert_eq!(world.pair.take(2), [Said::Error(Code::SlowConsumer), Said::Closed]);
    let ended = |event: &Event| matches!(event, Event::Ended { reason, .. } if reason.contains("message_memory_limit of the transport"));
    assert_eq!(world.logged(ended), 1);
    assert_eq!(world.files(), 0);
    world.pair.set_writable(3, true);
    world.pair.turn();
    assert_eq!(world.pair.take_data(3), world.published);
    assert_eq!(world.pair.take_data(4), world.published);
}

#[test]
fn the_client_with_the_most_on_disk_is_ended_at_the_disk_limit_of_its_transport() {
    let limited = TransportConfig {
        message_disk_limit: Some(24 << 20),
        max_client_backlog: 2 << 20,
        ..TransportConfig::default()
    };
    let mut world = two_transports(limited);
    world.pair.set_writable(2, false);
    world.publish(80, 100_000);
    world.pair.set_writable(3, false);
    world.publish(120, 100_000);
    let ended = |event: &Event| matches!(event, Event::Ended { reason, .. } if reason.contains("message_disk_limit of the transport"));
    assert_eq!(world.logged(ended), 1);
    let said = world.pair.take(2);
    assert_eq!(said[said.len() - 2..], [Said::Error(Code::SlowConsumer), Said::Closed]);
    assert!(world.is_offlined(3));
    assert_eq!(world.pair.take_data(4), world.published);
}

#[test]
fn the_log_has_at_most_one_line_a_second_about_clients_that_are_offlined() {
    let limited = TransportConfig { max_client_backlog: 1024, ..TransportConfig::default() };
    let mut world = World::new(1, Limits::default(), limited);
    let mut received = Vec::new();
    for _ in 0..20 {
        world.pair.set_writable(2, false);
        world.publish(60, 50_000);
        assert!(world.is_offlined(2));
        world.pair.set_writable(2, true);
        world.pair.turn();
        assert!(!world.is_offlined(2));
        received.extend(world.pair.take_data(2));
        world.pair.pass(Duration::from_millis(100));
    }
    assert!(received == world.published);
    let left_out = world.pair.log.iter().filter_map(|event| match event {
        Event::ClientOfflined { left_out, .. } => Some(*left_out),
        _ => None,
    });
    assert_eq!(left_out.collect::<Vec<_>>(), [0, 9]);
    assert_eq!(world.logged(|event| matches!(event, Event::ClientOnline { .. })), 2);
    assert!(world.pair.log.iter().any(|event| event.to_string().contains("9 more such lines were left out")));
}

#[test]
fn a_client_whose_oldest_message_is_too_old_is_ended() {
    let transport =
        TransportConfig { client_message_age_limit_ns: Some(60_000_000_000), ..TransportConfig::default() };
    let mut world = World::new(2, Limits::default(), transport);
    world.pair.set_writable(2, false);
    world.publish(1, 100);
    world.pair.pass(Duration::from_secs(50));
    world.publish(1, 100);
    // Messages that it has read are not old any more.
    world.pair.set_writable(2, true);
    world.pair.turn();
    assert_eq!(world.pair.take_data(2).len(), 2);
    world.pair.set_writable(2, false);
    world.publish(1, 100);
    world.pair.pass(Duration::from_secs(59));
    assert_eq!(world.pair.take(2), []);
    world.pair.pass(Duration::from_secs(6));
    let said = world.pair.take(2);
    assert_eq!(said[said.len() - 2..], [Said::Error(Code::SlowConsumer), Said::Closed]);
    assert_eq!(world.pair.take_data(3).len(), 3);
}

#[test]
fn an_offlined_client_that_logs_off_gets_its_last_acknowledgement() {
    let mut world = World::new(1, Limits::default(), small());
    world.pair.set_writable(2, false);
    world.publish(200, 100_000);
    world.pair.publish(2, 1, "others", "mine");
    world.pair.turn();
    world.publish(10, 100_000);
    assert!(world.is_offlined(2));
    world.pair.send(2, &Command::Goodbye);
    world.pair.set_writable(2, true);
    world.pair.turn();
    let said = world.pair.take(2);
    assert!(said.contains(&Said::Persisted(1)), "the publish is acknowledged");
    assert_eq!(said.last(), Some(&Said::Closed));
    assert_eq!(world.files(), 0);
}

#[test]
fn a_client_that_disconnects_takes_its_files_with_it_also_those_of_jobs() {
    for runs_before in 0..4 {
        let mut world = World::new(1, Limits::default(), small());
        world.pair.set_writable(2, false);
        world.publish(150, 100_000);
        world.pair.reads_at_once = false;
        world.pair.set_writable(2, true);
        for _ in 0..runs_before {
            world.publish(10, 100_000);
            world.pair.run_last_read();
        }
        world.pair.disconnect(2);
        world.pair.reads_at_once = true;
        world.pair.turn();
        assert_eq!((world.files(), world.pair.broker.stats().offlined_bytes), (0, 0), "{runs_before}");
    }
}

#[test]
fn a_page_that_was_removed_ends_the_client_without_a_gap() {
    let mut world = World::new(1, Limits::default(), small());
    world.pair.set_writable(2, false);
    world.publish(150, 100_000);
    for entry in std::fs::read_dir(world.directory.path()).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    world.pair.set_writable(2, true);
    world.pair.turn();
    let mut said = world.pair.take(2);
    assert_eq!(said.split_off(said.len() - 2), [Said::Error(Code::SlowConsumer), Said::Closed]);
    let received = said.iter().filter_map(|said| match said {
        Said::Message { data, .. } => Some(data),
        _ => None,
    });
    assert!(received.eq(world.published.iter().take(said.len())), "what it got has no gap");
}

#[test]
fn a_directory_that_cannot_be_used_is_an_error_at_the_start() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = Path::new(file.path()).join("offline");
    let limits = Limits { message_disk_path: Some(path), ..Limits::default() };
    let options = BrokerConfig { limits, ..config() };
    let journal = quire_journal::Journal::in_memory(&options.journal_options()).unwrap();
    let error = quire_broker::Broker::new(options, journal).err().unwrap().to_string();
    assert!(error.contains("limits.message_disk_path"), "{error}");
}
