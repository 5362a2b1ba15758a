//! Every frame, byte by byte, as `tests/golden/frames.txt` has it.
//!
//! The layout is a contract with clients that other people write. An encoder and a decoder that
//! drift together pass every round trip, and fail here. A frame that is new goes into the list
//! below, and its bytes, checked by hand against docs/protocol.md, into the file.

use quire_command::*;
use quire_types::{Action, Delay, Files, Headers, Secret, Timestamp, Verdict};
use quire_wire::*;

/// Keys in the file: `client/` or `server/`, the frame, and a variant after a dot.
fn client_frames() -> Vec<(&'static str, Command<'static>)> {
    let numbers = SubscriptionNumbers::from_bytes(&[1, 0, 0, 0, 7, 1, 0, 0]).unwrap();
    let bookmarks = Bookmarks::from_bytes(&[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    let keys = Keys::from_bytes(b"\x01a\x02bc").unwrap();
    let publish = Publish {
        headers: Headers::NONE,
        key: b"",
        is_delta: false,
        is_update: false,
        is_numbered: false,
        delay: Delay::None,
        sequence: 0x0102_0304_0506_0708,
        expiration_s: None,
        topic: b"orders",
        correlation_id: b"",
        data: b"{\"id\": 1}",
    };
    let batch_head = Publish { data: b"", ..publish };
    // Each item: its size in four bytes, then its data.
    let batch = PublishBatch::of_checked(batch_head, b"\x01\0\0\0a\x02\0\0\0bc");
    let subscribe = Subscribe {
        command: 1,
        acks: Acks::PROCESSED,
        subscription: 2,
        topic: "orders",
        filter: None,
        bookmark: None,
        options: SubscribeOptions(0),
        max_backlog: None,
        rate: None,
        rate_max_gap_ns: None,
        conflation_ns: None,
        conflation_key: None,
        select: None,
        order_by: None,
        top_n: None,
        skip_n: None,
        keys: None,
        projection: None,
        grouping: None,
        takes_places: false,
        place: None,
    };
    let query = Query {
        projection: None,
        grouping: None,
        command: 3,
        acks: Acks::COMPLETED,
        subscription: 4,
        topic: "jobs",
        filter: None,
        order_by: None,
        top_n: None,
        skip_n: None,
        keys: None,
        bookmark: None,
        select: None,
        wants_last_values: false,
    };
    let settle_because = |verdict, messages, reason| {
        let (acks, queue) = (Acks::PERSISTED, "jobs");
        Command::Settle(Settle { verdict, command: 5, acks, queue, messages, reason })
    };
    let settle = |verdict, messages| settle_because(verdict, messages, "");
    vec![
        ("logon.least", Command::Logon(Logon { version: 1, client_name: "loader-1", ..Logon::default() })),
        (
            "logon.all",
            Command::Logon(Logon {
                version: 1,
                client_name: "loader-1",
                user: Some("ada"),
                password: Some(Secret("secret")),
                token: None,
                heartbeat_ms: 30_000,
                ack_interval_ms: 100,
                client_version: Some("0.1.0"),
                incarnation: 0x0102_0304_0506_0708,
                connection_number: 9,
                run: 0x2122_2324_2526_2728,
                persisted: 77,
                observes: false,
            }),
        ),
        (
            "logon.token",
            Command::Logon(Logon {
                version: 1,
                client_name: "loader-1",
                token: Some(Secret("e30.e30.c2ln")),
                ..Logon::default()
            }),
        ),
        (
            "logon.observes",
            Command::Logon(Logon { version: 1, client_name: "loader-1", observes: true, ..Logon::default() }),
        ),
        ("publish.least", Command::Publish(publish)),
        (
            "publish.all",
            Command::Publish(Publish { expiration_s: Some(60), correlation_id: b"c-1", ..publish }),
        ),
        ("publish.headers", Command::Publish(Publish { headers: headers(), ..publish })),
        ("publish.delay", Command::Publish(Publish { delay: Delay::For { ns: 5_000_000_000 }, ..publish })),
        (
            "publish.not_before",
            Command::Publish(Publish {
                delay: Delay::Until(Timestamp(0x1112_1314_1516_1718)),
                headers: headers(),
                ..publish
            }),
        ),
        ("publish.key", Command::Publish(Publish { key: b"a-1", ..publish })),
        (
            "publish.delta",
            Command::Publish(Publish { is_delta: true, headers: headers(), key: b"a-1", ..publish }),
        ),
        ("publish.numbered", Command::Publish(Publish { is_numbered: true, ..publish })),
        ("publish_batch", Command::PublishBatch(batch)),
        (
            "publish_batch.delta",
            Command::PublishBatch(PublishBatch::of_checked(
                Publish { is_delta: true, key: b"a-1", ..batch_head },
                b"\x01\0\0\0a\x02\0\0\0bc",
            )),
        ),
        ("subscribe.least", Command::Subscribe(subscribe.clone())),
        (
            "subscribe.all",
            Command::Subscribe(Subscribe {
                acks: Acks::ALL,
                filter: Some("/id = 1"),
                bookmark: Some("0"),
                options: SubscribeOptions::LIVE,
                max_backlog: Some(10),
                rate: Some("2X"),
                rate_max_gap_ns: Some(6),
                conflation_ns: Some(7),
                conflation_key: Some("/id"),
                select: Some("-/,+/id"),
                ..subscribe.clone()
            }),
        ),
        (
            "subscribe.sow",
            Command::Subscribe(Subscribe {
                options: SubscribeOptions::SOW.and(SubscribeOptions::OOF),
                order_by: Some("/price DESC, /time"),
                top_n: Some(10),
                skip_n: Some(20),
                keys: Some(keys),
                ..subscribe.clone()
            }),
        ),
        (
            "subscribe.groups",
            Command::Subscribe(Subscribe {
                options: SubscribeOptions::SOW,
                projection: Texts::from_bytes(b"\x0e\0\0\0COUNT(1) AS /n"),
                grouping: Texts::from_bytes(b"\x02\0\0\0/a"),
                ..subscribe.clone()
            }),
        ),
        (
            "subscribe.place",
            Command::Subscribe(Subscribe {
                bookmark: Some("0"),
                takes_places: true,
                place: Some(LogPlace { log: 7, position: 8 }),
                ..subscribe.clone()
            }),
        ),
        (
            "subscribe.delta",
            Command::Subscribe(Subscribe {
                options: SubscribeOptions::DELTA.and(SubscribeOptions::NO_EMPTIES),
                ..subscribe
            }),
        ),
        (
            "unsubscribe",
            Command::Unsubscribe(Unsubscribe {
                command: 1,
                acks: Acks::PROCESSED,
                subscription: 2,
                begun: None,
            }),
        ),
        (
            "unsubscribe.begun",
            Command::Unsubscribe(Unsubscribe {
                command: 1,
                acks: Acks::PROCESSED,
                subscription: 2,
                begun: BegunMessages::from_bytes(bookmarks.as_bytes(), None),
            }),
        ),
        (
            "unsubscribe.begun_queues",
            Command::Unsubscribe(Unsubscribe {
                command: 1,
                acks: Acks::PROCESSED,
                subscription: 2,
                begun: BegunMessages::from_bytes(bookmarks.as_bytes(), Some(b"\x01\0\0\0\x04\0jobs")),
            }),
        ),
        ("flush", Command::Flush { command: 1, acks: Acks::PERSISTED }),
        ("heartbeat", Command::Heartbeat),
        ("goodbye", Command::Goodbye),
        ("pause", Command::Pause { command: 1, acks: Acks::PROCESSED, subscriptions: numbers }),
        ("resume", Command::Resume { command: 1, acks: Acks::PROCESSED, subscriptions: numbers }),
        ("settle.acknowledge", settle(Verdict::Acknowledge, Selection::Bookmarks(bookmarks))),
        ("settle.cancel", settle(Verdict::Cancel, Selection::Bookmarks(bookmarks))),
        ("settle.expire", settle(Verdict::Expire, Selection::Matching("/id = 1"))),
        (
            "settle.cancel_with_delay",
            settle(Verdict::CancelWithDelay { delay_ms: 5_000 }, Selection::Bookmarks(bookmarks)),
        ),
        ("settle.release", settle(Verdict::Release, Selection::Bookmarks(bookmarks))),
        (
            "settle.cancel_with_reason",
            settle_because(Verdict::Cancel, Selection::Bookmarks(bookmarks), "KeyError: 'id'"),
        ),
        (
            "settle.cancel_with_delay_and_reason",
            settle_because(
                Verdict::CancelWithDelay { delay_ms: 5_000 },
                Selection::Bookmarks(bookmarks),
                "späť",
            ),
        ),
        (
            "settle.expire_with_reason",
            settle_because(Verdict::Expire, Selection::Matching("/id = 1"), "no item"),
        ),
        (
            "extend",
            Command::Extend(Extend {
                period_ms: 5_000,
                command: 6,
                acks: Acks::PROCESSED,
                queue: "jobs",
                bookmarks,
            }),
        ),
        ("query.least", Command::Query(query.clone())),
        (
            "query.all",
            Command::Query(Query {
                filter: Some("/id = 1"),
                order_by: Some("/id DESC"),
                top_n: Some(9),
                ..query.clone()
            }),
        ),
        (
            "query.records",
            Command::Query(Query {
                top_n: Some(9),
                skip_n: Some(3),
                keys: Some(keys),
                select: Some("-/,+/id"),
                wants_last_values: true,
                ..query.clone()
            }),
        ),
        (
            "query.groups",
            Command::Query(Query {
                projection: Texts::from_bytes(b"\x0e\0\0\0COUNT(1) AS /n"),
                grouping: Texts::from_bytes(b"\x02\0\0\0/a"),
                wants_last_values: true,
                ..query.clone()
            }),
        ),
        ("query.earlier", Command::Query(Query { bookmark: Some("0|1|"), wants_last_values: true, ..query })),
        ("stats.all_queues", Command::Stats { command: 1, queue: None }),
        ("stats.one_queue", Command::Stats { command: 1, queue: Some("jobs") }),
        (
            "maintain.archive",
            Command::Maintain(Maintain {
                command: 1,
                action: Action::Archive,
                files: Files::OlderThan(2),
                dry_run: false,
                archive_directory: None,
            }),
        ),
        (
            "maintain.remove",
            Command::Maintain(Maintain {
                command: 1,
                action: Action::Remove,
                files: Files::Beyond(2),
                dry_run: true,
                archive_directory: None,
            }),
        ),
        (
            "maintain.compress",
            Command::Maintain(Maintain {
                command: 1,
                action: Action::Compress,
                files: Files::Beyond(2),
                dry_run: false,
                archive_directory: Some("/a"),
            }),
        ),
        ("inspect.server", Command::Inspect { command: 1, subject: Subject::Server }),
        ("inspect.clients", Command::Inspect { command: 1, subject: Subject::Clients { after: 2 } }),
        ("inspect.topics", Command::Inspect { command: 1, subject: Subject::Topics { after: "orders" } }),
        ("inspect.replication", Command::Inspect { command: 1, subject: Subject::Replication }),
        ("inspect.messages", Command::Inspect { command: 1, subject: Subject::Messages { question: &[1] } }),
        ("inspect.access", Command::Inspect { command: 1, subject: Subject::Access { question: &[1] } }),
        (
            "inspect.statistics",
            Command::Inspect { command: 1, subject: Subject::Statistics { question: &[1] } },
        ),
        (
            "inspect.subscriptions",
            Command::Inspect {
                command: 1,
                subject: Subject::Subscriptions { after_connection: 2, after_subscription: 3 },
            },
        ),
        (
            "replicate.downgrade",
            Command::Replicate { command: 1, destination: "east-2", action: LinkAction::Downgrade },
        ),
        (
            "replicate.upgrade",
            Command::Replicate { command: 1, destination: "east-2", action: LinkAction::Upgrade },
        ),
        (
            "replicate.pause",
            Command::Replicate { command: 1, destination: "east-2", action: LinkAction::Pause },
        ),
        (
            "replicate.resume",
            Command::Replicate { command: 1, destination: "east-2", action: LinkAction::Resume },
        ),
        ("replicate.admit", Command::Replicate { command: 1, destination: "", action: LinkAction::Admit }),
        (
            "replicate.compare",
            Command::Replicate { command: 1, destination: "east-1", action: LinkAction::Compare },
        ),
        (
            "replicate.accept",
            Command::Replicate { command: 1, destination: "42", action: LinkAction::Accept },
        ),
        (
            "replicate.accept.all",
            Command::Replicate { command: 1, destination: "", action: LinkAction::Accept },
        ),
        ("reload", Command::Reload { command: 1 }),
        ("disconnect", Command::Disconnect { command: 1, connection: 7, block_ms: 0 }),
        ("disconnect.block", Command::Disconnect { command: 1, connection: 7, block_ms: 60_000 }),
        ("define_view", Command::DefineView { command: 1, settings: "{\"name\":\"v\"}" }),
        (
            "define_queue.create",
            Command::DefineQueue { command: 1, action: DefineQueue::Create { settings: "{\"name\":\"q\"}" } },
        ),
        (
            "define_queue.alter",
            Command::DefineQueue {
                command: 1,
                action: DefineQueue::Alter { queue: "jobs", changes: "{\"lease_period_ns\":1}" },
            },
        ),
        (
            "define_queue.drop",
            Command::DefineQueue { command: 1, action: DefineQueue::Drop { queue: "jobs" } },
        ),
        (
            "sow_delete.keys",
            Command::SowDelete(SowDelete {
                command: 1,
                acks: Acks::PROCESSED,
                sequence: 2,
                topic: "orders",
                filter: None,
                keys: Some(keys),
                data: None,
            }),
        ),
        (
            "sow_delete.all",
            Command::SowDelete(SowDelete {
                command: 1,
                acks: Acks::ALL,
                sequence: 0,
                topic: "orders",
                filter: Some("/id = 1"),
                keys: Some(keys),
                data: Some(b"{\"id\": 1}"),
            }),
        ),
    ]
}

fn server_frames() -> Vec<(&'static str, Reply<'static>)> {
    let message = Message {
        headers: Headers::NONE,
        key: b"",
        kind: MessageKind::Publish,
        subscription: 1,
        bookmark: None,
        timestamp_ns: 0x0102_0304_0506_0708,
        queued: None,
        topic: b"orders",
        correlation_id: b"",
        data: b"{\"id\": 1}",
    };
    let queued = Queued { lease_ms: 30_000, deliveries: 1, cancels: 2, position: 3, queue: None };
    let oof = |reason| Reply::Message(Message { key: b"a-1", kind: MessageKind::Oof(reason), ..message });
    let ack =
        |kind, code, reason| Reply::Ack(Ack { kind, code, command: 1, subscription: 2, detail: 3, reason });
    vec![
        (
            "logged_on.least",
            Reply::LoggedOn(LoggedOn {
                version: 1,
                publisher: 2,
                last_sequence: 3,
                highest_sequence: 4,
                message_size_max: 5,
                instance: "orders-1",
                server_version: None,
                takes_reasons: false,
            }),
        ),
        (
            "logged_on.all",
            Reply::LoggedOn(LoggedOn {
                version: 1,
                publisher: 2,
                last_sequence: 3,
                highest_sequence: 4,
                message_size_max: 5,
                instance: "orders-1",
                server_version: Some("0.1.0"),
                takes_reasons: true,
            }),
        ),
        ("ack.received", ack(AckKind::Received, Code::Ok, "")),
        ("ack.processed", ack(AckKind::Processed, Code::BadFilter, "no")),
        ("ack.completed", ack(AckKind::Completed, Code::Ok, "")),
        ("ack.persisted", ack(AckKind::Persisted, Code::Ok, "")),
        ("persisted", Reply::Persisted { sequence: 7 }),
        (
            "publish_failed.one",
            Reply::PublishFailed {
                sequence: 7,
                code: Code::BadTopic,
                scope: FailureScope::One,
                reason: "no",
            },
        ),
        (
            "publish_failed.all",
            Reply::PublishFailed {
                sequence: 7,
                code: Code::StorageFull,
                scope: FailureScope::AllFromHere,
                reason: "no",
            },
        ),
        ("message.least", Reply::Message(message)),
        (
            "message.recorded",
            Reply::Message(Message { bookmark: Some((6, 7)), correlation_id: b"c-1", ..message }),
        ),
        (
            "message.queued",
            Reply::Message(Message { bookmark: Some((6, 7)), queued: Some(queued), ..message }),
        ),
        (
            "message.queued_under_another_name",
            Reply::Message(Message {
                bookmark: Some((6, 7)),
                queued: Some(Queued { lease_ms: u64::MAX, queue: Some(b"jobs"), ..queued }),
                ..message
            }),
        ),
        ("message.headers", Reply::Message(Message { headers: headers(), ..message })),
        ("message.key", Reply::Message(Message { headers: headers(), key: b"a-1", ..message })),
        ("message.record", Reply::Message(Message { key: b"a-1", kind: MessageKind::Record, ..message })),
        (
            "message.delete",
            Reply::Message(Message {
                key: b"a-1",
                kind: MessageKind::Delete,
                bookmark: Some((6, 7)),
                data: b"\x02bc",
                ..message
            }),
        ),
        ("message.oof_deleted", oof(OofReason::Deleted)),
        ("message.oof_expired", oof(OofReason::Expired)),
        ("message.oof_match", oof(OofReason::Match)),
        ("message.oof_entitlement", oof(OofReason::Entitlement)),
        (
            "message.delta",
            Reply::Message(Message {
                key: b"a-1",
                kind: MessageKind::Delta(RecordHash(*b"0123456789abcdef")),
                ..message
            }),
        ),
        ("error", Reply::Error { code: Code::SlowConsumer, reason: "too slow" }),
        ("heartbeat", Reply::Heartbeat),
        (
            "subscription_ended",
            Reply::SubscriptionEnded { subscription: 1, code: Code::Ok, reason: "the end" },
        ),
        ("stats", Reply::Stats { command: 1, json: "{}" }),
        (
            "lease_lost.expired",
            Reply::LeaseLost {
                subscription: 1,
                reason: LeaseEnd::Expired,
                publisher: 2,
                sequence: 3,
                queue: None,
            },
        ),
        (
            "lease_lost.settled",
            Reply::LeaseLost {
                subscription: 1,
                reason: LeaseEnd::SettledByAnother,
                publisher: 2,
                sequence: 3,
                queue: None,
            },
        ),
        (
            "lease_lost.message_expired",
            Reply::LeaseLost {
                subscription: 1,
                reason: LeaseEnd::MessageExpired,
                publisher: 2,
                sequence: 3,
                queue: None,
            },
        ),
        (
            "lease_lost.of_named_queue",
            Reply::LeaseLost {
                subscription: 1,
                reason: LeaseEnd::Expired,
                publisher: 2,
                sequence: 3,
                queue: Some("jobs"),
            },
        ),
        (
            "resume_position",
            Reply::ResumePosition {
                publisher: 1,
                sequence: 2,
                subscriptions: SubscriptionNumbers::from_bytes(&[3, 0, 0, 0]).unwrap(),
            },
        ),
        ("journal_file", Reply::JournalFile { command: 1, json: "{}" }),
        (
            "places",
            Reply::Places {
                // The number of the log, the position, and the size of the name.
                places: PlaceList::from_bytes(b"\x07\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0\x01\0b").unwrap(),
                subscriptions: SubscriptionNumbers::from_bytes(&[3, 0, 0, 0]).unwrap(),
            },
        ),
    ]
}

/// One header: the size of its name, its name, text, the size of its value, its value.
fn headers() -> Headers<'static> {
    Headers::from_bytes(b"\x05trace\0\x03\0abc").unwrap()
}

/// The name of the frame; a frame that is new does not compile before it is named here, and is then
/// missed below.
fn client_name(frame: &Command<'_>) -> &'static str {
    match frame {
        Command::Logon(_) => "logon",
        Command::Publish(_) => "publish",
        Command::PublishBatch(_) => "publish_batch",
        Command::Subscribe(_) => "subscribe",
        Command::Unsubscribe(_) => "unsubscribe",
        Command::Flush { .. } => "flush",
        Command::Heartbeat => "heartbeat",
        Command::Goodbye => "goodbye",
        Command::Pause { .. } => "pause",
        Command::Resume { .. } => "resume",
        Command::Settle(_) => "settle",
        Command::Extend(_) => "extend",
        Command::Query(_) => "query",
        Command::Stats { .. } => "stats",
        Command::Maintain(_) => "maintain",
        Command::Inspect { .. } => "inspect",
        Command::DefineQueue { .. } => "define_queue",
        Command::DefineView { .. } => "define_view",
        Command::SowDelete(_) => "sow_delete",
        Command::Replicate { .. } => "replicate",
        Command::Reload { .. } => "reload",
        Command::Disconnect { .. } => "disconnect",
    }
}

fn server_name(frame: &Reply<'_>) -> &'static str {
    match frame {
        Reply::LoggedOn(_) => "logged_on",
        Reply::Ack(_) => "ack",
        Reply::Persisted { .. } => "persisted",
        Reply::PublishFailed { .. } => "publish_failed",
        Reply::Message(_) => "message",
        Reply::Error { .. } => "error",
        Reply::Heartbeat => "heartbeat",
        Reply::SubscriptionEnded { .. } => "subscription_ended",
        Reply::Stats { .. } => "stats",
        Reply::LeaseLost { .. } => "lease_lost",
        Reply::ResumePosition { .. } => "resume_position",
        Reply::JournalFile { .. } => "journal_file",
        Reply::Places { .. } => "places",
    }
}

const GOLDEN: &str = include_str!("golden/frames.txt");

fn golden() -> Vec<(&'static str, Vec<u8>)> {
    let lines = GOLDEN.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let entry = |line: &'static str| {
        let (key, hex) = line.split_once(' ').unwrap_or_else(|| panic!("not a key and bytes: {line:?}"));
        let digits: Vec<u8> = hex.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        (key, digits.chunks(2).map(byte).collect())
    };
    lines.map(entry).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn raw(bytes: &[u8]) -> RawFrame<'_> {
    RawFrame { kind: bytes[LENGTH_SIZE], body: &bytes[LENGTH_SIZE + 1..] }
}

#[test]
fn every_frame_has_the_bytes_of_the_golden_file() {
    let mut golden = golden().into_iter();
    for (key, frame) in client_frames() {
        let key = format!("client/{key}");
        assert!(key["client/".len()..].starts_with(client_name(&frame)), "{key}");
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        let (golden_key, golden_bytes) =
            golden.next().unwrap_or_else(|| panic!("missing: {key} {}", hex(&bytes)));
        assert_eq!((golden_key, hex(&golden_bytes)), (&*key, hex(&bytes)));
        assert_eq!(Command::decode(raw(&golden_bytes)).as_ref(), Ok(&frame), "{key}");
    }
    for (key, frame) in server_frames() {
        let key = format!("server/{key}");
        assert!(key["server/".len()..].starts_with(server_name(&frame)), "{key}");
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        let (golden_key, golden_bytes) =
            golden.next().unwrap_or_else(|| panic!("missing: {key} {}", hex(&bytes)));
        assert_eq!((golden_key, hex(&golden_bytes)), (&*key, hex(&bytes)));
        assert_eq!(Reply::decode(raw(&golden_bytes)).as_ref(), Ok(&frame), "{key}");
    }
    assert_eq!(golden.next(), None);
}

#[test]
fn no_kind_of_frame_is_missing() {
    let keys: Vec<&str> = golden().into_iter().map(|(key, _)| key).collect();
    let has = |name: String| {
        keys.iter()
            .any(|key| *key == name || key.strip_prefix(&*name).is_some_and(|rest| rest.starts_with('.')))
    };
    for (_, frame) in client_frames() {
        assert!(has(format!("client/{}", client_name(&frame))));
    }
    // The kinds that decode at all: a frame that is neither in the file nor above would be found
    // here.
    for kind in 0..=255 {
        let body = [0; 64];
        match Command::decode(RawFrame { kind, body: &body[..0] }) {
            Err(WireError::UnknownKind { .. }) => (),
            _ => assert!(
                golden().iter().any(|(key, bytes)| key.starts_with("client/") && bytes[LENGTH_SIZE] == kind),
                "client frames of kind {kind} are not in the golden file"
            ),
        }
        match Reply::decode(RawFrame { kind, body: &body[..0] }) {
            Err(WireError::UnknownKind { .. }) => (),
            _ => assert!(
                golden().iter().any(|(key, bytes)| key.starts_with("server/") && bytes[LENGTH_SIZE] == kind),
                "server frames of kind {kind} are not in the golden file"
            ),
        }
    }
}
