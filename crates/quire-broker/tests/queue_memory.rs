//! What queues keep of the log has a bound in memory, also when every message was written alone.
//! Counted by the allocator.

mod counting;

use std::path::Path;
use std::sync::Arc;

use counting::allocated;
use quire_broker::{Access, Broker, BrokerConfig, ConnectionId, Input, Output, QueueSettings, TransportId};
use quire_command::{Command, Logon, Publish};
use quire_journal::{Journal, MemoryDisk, Timestamp};
use quire_types::time::{Instant, Now};
use quire_wire::Encode;

#[test]
fn small_messages_that_are_written_one_by_one_do_not_fill_the_memory() {
    let queue =
        QueueSettings { name: "jobs".into(), message_type: "json".into(), ..QueueSettings::default() };
    let config = BrokerConfig { queues: vec![queue], ..BrokerConfig::default() };
    // All that is published here lies in one segment: a disk in memory would count, too.
    let options = quire_journal::Options {
        segment_size: 256 << 20,
        first_segment_size: 256 << 20,
        ..config.journal_options()
    };
    let disk = Arc::new(MemoryDisk::new(1 << 30));
    let (journal, _) = Journal::driven_by_hand(disk, Path::new("journal"), &options).unwrap();
    let mut broker = Broker::new(config, journal).unwrap();
    let now = Now { instant: Instant(1), wall: Timestamp(1) };
    let connection = ConnectionId(1);
    let mut turn = |input: Input<'_>| {
        broker.handle(now, input);
        broker.finish_turn(now);
        while let Some(output) = broker.poll_output() {
            match output {
                Output::Send { bytes, .. } => broker.recycle(bytes),
                Output::Read(request) => broker.handle(now, Input::ReadDone(request.run())),
                _ => (),
            }
        }
        broker.write_journal();
        broker.handle(now, Input::Flushed);
    };
    turn(Input::Connected {
        connection,
        peer: "127.0.0.1:50000",
        transport: TransportId::default(),
        access: Access::Client,
    });
    let mut bytes = Vec::new();
    Command::Logon(Logon { version: 1, client_name: "publisher", ..Logon::default() }).encode(&mut bytes);
    turn(Input::Received { connection, bytes: &bytes });
    let before = allocated();
    for sequence in 1..=150_000 {
        let publish = Publish {
            sequence,
            expiration_s: None,
            topic: b"jobs",
            correlation_id: b"",
            headers: quire_types::Headers::NONE,
            delay: quire_types::Delay::None,
            key: b"",
            is_delta: false,
            data: b"{}",
        };
        bytes.clear();
        Command::Publish(publish).encode(&mut bytes);
        turn(Input::Received { connection, bytes: &bytes });
    }
    let grown = (allocated() - before) >> 20;
    assert!(grown < 44, "{grown} MiB");
}
