//! A client and an engine in one process, over a real socket pair and a real journal: the common
//! actions of a program.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quire_broker::BrokerConfig;
use quire_client::{ClientConfig, ConnectionState, Message, NewMessage, Reconnect, SubscriptionSpec};
use quire_command::{Code, Reply};
use quire_driver::client::{Client, Endpoint, FirstContact, Options, Queue, Stream, Subscribed, Taken};
use quire_driver::descriptor::socket_pair;
use quire_driver::store::BookmarkStore;
use quire_driver::{Engine, EngineError};
use quire_journal::Action;
use quire_journal::descriptor::Owned;
use quire_types::Files;
use quire_wire::Encode;

/// Only a hang takes longer, on the slowest machine.
const SOON: Duration = Duration::from_secs(120);

fn engine(directory: Option<&Path>) -> Arc<Engine> {
    let directory = directory.map_or("null".into(), |path| format!("{:?}", path.to_str().unwrap()));
    let config = format!(
        r#"{{"name":"test","transaction_log":{{"journal_directory":{directory},"journal_size":1048576,
            "topics":[{{"name":"^recorded","message_type":"json"}}]}}}}"#
    );
    Engine::open(BrokerConfig::from_json(&config).unwrap()).unwrap()
}

/// The client's thread holds the engine until it ends, which may be after the test: a test that has
/// a directory closes the engine itself.
fn client(engine: &Arc<Engine>, name: &str) -> Client {
    let engine = engine.clone();
    let client =
        Client::start(options(Endpoint::Embedded(Arc::new(move || engine.connect().map(Into::into))), name))
            .unwrap();
    assert_eq!(client.wait_connected(SOON, true), Some(FirstContact::Connected));
    client
}

fn options(endpoint: Endpoint, name: &str) -> Options {
    Options {
        endpoints: vec![endpoint],
        config: ClientConfig {
            name: name.into(),
            user: None,
            password: None,
            token: None,
            renews_token: false,
            heartbeat: Some(SOON),
            ack_interval: Duration::ZERO,
            reconnect: Reconnect::default(),
            address_count: 1,
            publish_store_size_max: 64 << 20,
            ack_batch_size: 1,
            ack_timeout: Duration::from_secs(1),
            incarnation: 1,
            observes: false,
        },
        publish_store: None,
        secret: None,
        bookmark_store: BookmarkStore::in_memory(),
        is_in_background: false,
        connect_timeout: SOON,
        receive_size_max: 64 << 20,
    }
}

fn publish(client: &Client, topic: &str, data: &str) -> Option<u64> {
    client.publish(&NewMessage::new(topic, data.as_bytes())).unwrap()
}

fn flush(client: &Client) {
    client.wait(client.flush().unwrap(), SOON).expect("in time").unwrap();
}

fn subscribe(client: &Client, spec: SubscriptionSpec) -> Subscribed {
    let subscribed = client.subscribe(spec, "sub", false, false, None).unwrap();
    client.wait(subscribed.command, SOON).expect("in time").unwrap();
    subscribed
}

fn bookmark(topic: &str, bookmark: &str) -> SubscriptionSpec {
    SubscriptionSpec { bookmark: Some(bookmark.into()), completed: true, ..SubscriptionSpec::new(topic) }
}

fn take(client: &Client, queue: &Queue, number: u32, count: usize) -> Vec<Message> {
    let mut messages = Vec::new();
    let deadline = Instant::now() + SOON;
    while messages.len() < count {
        assert!(Instant::now() < deadline, "{} of {count} messages came", messages.len());
        match client.take(queue, number, count - messages.len(), Duration::from_secs(1)) {
            Taken::Messages(more) => {
                queue.handed(more.len() as u64);
                messages.extend(more);
            }
            Taken::Nothing => (),
            Taken::Ended(failure) => panic!("ended: {failure:?}"),
        }
        client.taken(queue);
    }
    messages
}

fn texts(messages: &[Message]) -> Vec<&str> {
    messages.iter().map(|message| std::str::from_utf8(message.data()).unwrap()).collect()
}

#[test]
fn what_was_published_is_persisted_replayed_and_followed_live() {
    let directory = tempfile::tempdir().unwrap();
    let engine = engine(Some(directory.path()));
    let publisher = client(&engine, "publisher");
    for i in 1..=5000 {
        assert_eq!(publish(&publisher, "recorded", &format!("{{\"n\":{i}}}")), Some(i));
    }
    flush(&publisher);
    assert_eq!(publisher.persisted(), 5000);
    let reader = client(&engine, "reader");
    let replay =
        subscribe(&reader, SubscriptionSpec { filter: Some("/n > 10".into()), ..bookmark("recorded", "0") });
    let messages = take(&reader, &replay.queue, replay.number, 4990);
    let want: Vec<String> = (11..=5000).map(|i| format!("{{\"n\":{i}}}")).collect();
    assert_eq!(texts(&messages), want);
    assert!(replay.queue.wait_completed(replay.number, SOON));
    publish(&publisher, "recorded", "{\"n\":7777}");
    assert_eq!(texts(&take(&reader, &replay.queue, replay.number, 1)), ["{\"n\":7777}"]);
    let last = messages.last().unwrap().bookmark().unwrap();
    let resumed = subscribe(&reader, bookmark("recorded", &last.to_string()));
    assert_eq!(texts(&take(&reader, &resumed.queue, resumed.number, 1)), ["{\"n\":7777}"]);
    engine.close().unwrap();
}

#[test]
fn an_engine_that_is_stopped_and_started_again_has_everything_and_the_client_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let running = Arc::new(std::sync::Mutex::new(engine(Some(directory.path()))));
    let endpoint = {
        let running = running.clone();
        Endpoint::Embedded(Arc::new(move || running.lock().unwrap().connect().map(Into::into)))
    };
    let client = Client::start(Options {
        endpoints: vec![endpoint],
        config: ClientConfig {
            name: "c".into(),
            user: None,
            password: None,
            token: None,
            renews_token: false,
            heartbeat: None,
            ack_interval: Duration::ZERO,
            reconnect: Reconnect { initial_delay: Duration::from_millis(5), ..Reconnect::default() },
            address_count: 1,
            publish_store_size_max: 64 << 20,
            ack_batch_size: 1,
            ack_timeout: Duration::from_secs(1),
            incarnation: 1,
            observes: false,
        },
        publish_store: None,
        secret: None,
        bookmark_store: BookmarkStore::in_memory(),
        connect_timeout: SOON,
        is_in_background: false,
        receive_size_max: 64 << 20,
    })
    .unwrap();
    let replay = subscribe(&client, bookmark("^recorded", "0"));
    for round in 0..3 {
        for i in 1..=300 {
            publish(&client, "recorded", &(round * 300 + i).to_string());
        }
        // Stopped while publishes are under way; the client connects again by itself and sends what
        // was not acknowledged.
        let mut guard = running.lock().unwrap();
        guard.close().unwrap();
        *guard = engine(Some(directory.path()));
        drop(guard);
        for i in 301..=310 {
            publish(&client, "recorded/more", &(round * 300 + i).to_string());
        }
        flush(&client);
    }
    let messages = take(&client, &replay.queue, replay.number, 3 * 310);
    let mut sequences: Vec<u64> =
        messages.iter().map(|message| message.bookmark().unwrap().sequence).collect();
    assert_eq!(sequences, (1..=930).collect::<Vec<_>>());
    sequences.dedup();
    assert!(matches!(replay.queue.take(replay.number, 1, Duration::ZERO), Taken::Nothing));
    running.lock().unwrap().close().unwrap();
}

#[test]
fn what_the_server_refuses_is_told_with_its_code() {
    let engine = engine(None);
    let client = client(&engine, "c");
    for (spec, code) in [
        (bookmark("unrecorded", "0"), Code::NotJournaled),
        (bookmark("recorded", "yesterday"), Code::BadBookmark),
        (SubscriptionSpec { filter: Some("/a =".into()), ..SubscriptionSpec::new("t") }, Code::BadFilter),
        (SubscriptionSpec::new("("), Code::BadTopic),
    ] {
        let subscribed = client.subscribe(spec, "sub", false, false, None).unwrap();
        let failure = client.wait(subscribed.command, SOON).expect("in time").unwrap_err();
        assert_eq!(failure.code, code, "{failure}");
        assert_eq!(failure.column, if code == Code::BadFilter { 5 } else { 0 });
    }
}

#[test]
fn a_second_client_of_the_same_name_takes_it_over_and_the_first_does_not_come_back() {
    let engine = engine(None);
    let first = client(&engine, "same");
    let second = client(&engine, "same");
    let deadline = Instant::now() + SOON;
    while !matches!(first.state(), ConnectionState::Closed(_)) {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    assert!(
        matches!(first.state(), ConnectionState::Closed(Some(failure)) if failure.code == Code::NameInUse)
    );
    publish(&second, "recorded", "x");
    flush(&second);
}

#[test]
fn a_subscriber_that_does_not_take_its_replay_does_not_hold_up_the_others() {
    let engine = engine(None);
    let publisher = client(&engine, "publisher");
    let data = format!("\"{}\"", "x".repeat(10_000));
    for _ in 0..2000 {
        publish(&publisher, "recorded", &data);
    }
    flush(&publisher);
    let slow = client(&engine, "slow");
    let _untaken = subscribe(&slow, bookmark("recorded", "0"));
    let quick = client(&engine, "quick");
    let replay = subscribe(&quick, bookmark("recorded", "0"));
    assert_eq!(take(&quick, &replay.queue, replay.number, 2000).len(), 2000);
}

#[test]
fn a_directory_has_one_engine() {
    let directory = tempfile::tempdir().unwrap();
    let first = engine(Some(directory.path()));
    let config = format!(
        r#"{{"name":"test","transaction_log":{{"journal_directory":{:?}}}}}"#,
        directory.path().to_str().unwrap()
    );
    let second = Engine::open(BrokerConfig::from_json(&config).unwrap());
    assert!(matches!(second, Err(EngineError::Journal(quire_journal::JournalError::Locked { .. }))));
    drop(first);
}

#[test]
fn a_refused_subscription_leaves_nothing_behind() {
    let engine = engine(None);
    let client = client(&engine, "reader");
    for _ in 0..3 {
        let subscribed = client.subscribe(bookmark("unrecorded", "0"), "sub", false, false, None).unwrap();
        let failure = client.wait(subscribed.command, SOON).expect("in time").unwrap_err();
        assert_eq!(failure.code, Code::NotJournaled);
        assert_eq!(Arc::strong_count(&subscribed.queue), 1, "the client still holds its queue");
        let taken = subscribed.queue.take(subscribed.number, 1, Duration::ZERO);
        assert!(matches!(taken, Taken::Ended(Some(failure)) if failure.code == Code::NotJournaled));
    }
}

#[test]
fn the_answer_to_a_flush_that_nobody_waits_for_is_not_kept() {
    let engine = engine(None);
    let client = client(&engine, "publisher");
    for _ in 0..100 {
        publish(&client, "recorded", "{}");
        let command = client.flush().unwrap();
        client.wait(command, Duration::ZERO);
        client.abandon(command);
    }
    flush(&client);
    assert_eq!(client.answer_count(), 0);
}

#[test]
fn the_end_of_a_client_wakes_who_waits_at_a_shared_queue_without_subscriptions() {
    let engine = engine(None);
    let client = client(&engine, "reader");
    let (queue, later) = (client.shared_queue(), client.shared_queue());
    let waiting = std::thread::spawn(move || queue.take(0, 1, SOON));
    client.close(SOON);
    assert!(matches!(waiting.join().unwrap(), Taken::Ended(None)), "woken long before its time was over");
    assert!(matches!(later.take(0, 1, SOON), Taken::Ended(None)));
    assert!(matches!(client.shared_queue().take(0, 1, SOON), Taken::Ended(None)));
}

#[test]
fn threads_that_wait_for_different_things_of_one_client_all_get_them() {
    const COUNT: usize = 300;
    let directory = tempfile::tempdir().unwrap();
    let engine = engine(Some(directory.path()));
    let client = client(&engine, "both");
    let live = subscribe(&client, bookmark("recorded", "0"));
    std::thread::scope(|scope| {
        // One of them drives the connection, and the other ones wait for it.
        let taking = scope.spawn(|| take(&client, &live.queue, live.number, 3 * COUNT).len());
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..COUNT {
                    let sequence = publish(&client, "recorded", "{}").unwrap();
                    client.wait_persisted(sequence, SOON).expect("in time").unwrap();
                    flush(&client);
                }
            });
        }
        assert_eq!(taking.join().unwrap(), 3 * COUNT);
    });
    assert_eq!(client.unpersisted_count(), 0);
    drop(client);
    engine.close().unwrap();
}

/// As a stream that decrypts: a read takes everything from the socket, and gives seven bytes of it
/// at most. The socket is not readable while bytes are left.
struct Decrypting {
    socket: Owned<UnixStream>,
    buffered: VecDeque<u8>,
}

impl Stream for Decrypting {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut record = [0; 4096];
        loop {
            match self.socket.read(&mut record) {
                Ok(0) => break,
                Ok(size) => self.buffered.extend(&record[..size]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && self.buffered.is_empty() => {
                    return Err(error);
                }
                Err(_) => break,
            }
        }
        let size = self.buffered.len().min(buffer.len()).min(7);
        for (to, from) in buffer.iter_mut().zip(self.buffered.drain(..size)) {
            *to = from;
        }
        Ok(size)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.write(bytes)
    }

    fn has_buffered(&self) -> bool {
        !self.buffered.is_empty()
    }
}

impl AsFd for Decrypting {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[test]
fn bytes_that_a_stream_has_decrypted_are_read_although_its_socket_is_not_ready() {
    let engine = engine(None);
    let its_engine = engine.clone();
    let endpoint = Endpoint::Embedded(Arc::new(move || {
        let socket = its_engine.connect()?;
        Ok(Box::new(Decrypting { socket, buffered: VecDeque::new() }))
    }));
    let reader = Client::start(options(endpoint, "reader")).unwrap();
    assert_eq!(reader.wait_connected(SOON, true), Some(FirstContact::Connected));
    let publisher = client(&engine, "publisher");
    let live = subscribe(&reader, SubscriptionSpec::new("recorded"));
    for count in 1..=100 {
        publish(&publisher, "recorded", "{\"text\":\"longer than one read\"}");
        if count % 2 == 0 {
            // This thread reads, as it waits for the answer.
            flush(&reader);
        }
        let deadline = Instant::now() + SOON;
        // The thread of the client reads.
        while live.queue.len() < count {
            assert!(Instant::now() < deadline, "message {count} did not come");
            std::thread::yield_now();
        }
    }
}

#[test]
fn after_a_wait_the_thread_of_the_client_reads_again() {
    let engine = engine(None);
    let (reader, publisher) = (client(&engine, "reader"), client(&engine, "publisher"));
    let live = subscribe(&reader, SubscriptionSpec::new("recorded"));
    for count in 1..=100 {
        flush(&reader);
        publish(&publisher, "recorded", "{}");
        let deadline = Instant::now() + SOON;
        // No call of this thread reads the socket of the reader.
        while live.queue.len() < count {
            assert!(Instant::now() < deadline, "message {count} did not come");
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_publish_leaves_while_another_thread_waits_for_messages() {
    let engine = engine(None);
    let client = client(&engine, "both");
    let live = subscribe(&client, SubscriptionSpec::new("recorded"));
    std::thread::scope(|scope| {
        let taking = scope.spawn(|| take(&client, &live.queue, live.number, 100).len());
        for _ in 0..100 {
            publish(&client, "recorded", "{}");
        }
        assert_eq!(taking.join().unwrap(), 100);
    });
}

#[test]
fn a_close_ends_the_wait_of_another_thread() {
    for _ in 0..20 {
        let engine = engine(None);
        let client = client(&engine, "closed");
        let live = subscribe(&client, SubscriptionSpec::new("ticks"));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| client.take(&live.queue, live.number, 1, SOON));
            client.close(SOON);
            assert!(matches!(waiting.join().unwrap(), Taken::Ended(_)));
        });
    }
}

#[test]
fn a_client_knows_when_it_last_heard_something() {
    let engine = engine(None);
    let client = client(&engine, "both");
    let (before, heard) = client.heard();
    assert!(before.is_some() && heard.is_empty());
    let quiet = subscribe(&client, SubscriptionSpec::new("other"));
    let busy = subscribe(&client, SubscriptionSpec::new("recorded"));
    publish(&client, "recorded", "{}");
    take(&client, &busy.queue, busy.number, 1);
    let (after, heard) = client.heard();
    assert!(after >= before && heard.contains_key(&busy.number) && !heard.contains_key(&quiet.number));
}

#[test]
fn a_client_that_may_not_wait_ends_although_nobody_reads_what_it_says() {
    let deaf = Arc::new(std::sync::Mutex::new(Vec::new()));
    let its_deaf = deaf.clone();
    let endpoint = Endpoint::Embedded(Arc::new(move || {
        let (ours, theirs) = socket_pair()?;
        its_deaf.lock().unwrap().push(theirs);
        Ok(ours.into())
    }));
    // So much is to be said at the logon that the socket does not take it.
    let long = "x".repeat(4 << 20);
    let mut options = options(endpoint, "talker");
    options.config.password = Some(quire_types::Secret(long));
    let client = Client::start(options).unwrap();
    client.begin_close();
    client.close(Duration::ZERO);
    assert!(client.wait_closed(SOON), "the thread goes on");
}

#[test]
fn a_server_that_refuses_and_closes_before_it_reads_is_understood() {
    let endpoint = Endpoint::Embedded(Arc::new(|| {
        let (ours, mut theirs) = socket_pair()?;
        let mut frame = Vec::new();
        Reply::Error { code: Code::NotEntitled, reason: "not you" }.encode(&mut frame);
        theirs.write_all(&frame)?;
        Ok(ours.into())
    }));
    let client = Client::start(options(endpoint, "stranger")).unwrap();
    match client.wait_connected(SOON, false) {
        Some(FirstContact::Ended(failure)) => assert_eq!(failure.reason, "not you"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_engine_maintains_its_journal_when_a_client_asks_and_stops_meanwhile() {
    let directory = tempfile::tempdir().unwrap();
    for directory in [Some(directory.path()), None] {
        let engine = engine(directory);
        let keeper = client(&engine, "keeper");
        let filler = "x".repeat(300_000);
        for _ in 0..20 {
            publish(&keeper, "recorded", &filler);
        }
        flush(&keeper);
        let full = engine.reader().segments().len() - 1;
        assert!(full > 2, "{full}");
        let ask = |dry_run| {
            let command = keeper.maintain(Action::Remove, Files::OlderThan(0), dry_run, None).unwrap();
            keeper.wait(command, SOON).expect("in time").unwrap();
            keeper.take_json_replies(command)
        };
        assert_eq!(ask(true).len(), full);
        assert_eq!(ask(false).len(), 1);
        assert_eq!(engine.reader().segments().len(), full);
        keeper.maintain(Action::Compress, Files::OlderThan(0), false, None).unwrap();
        engine.close().unwrap();
    }
}
