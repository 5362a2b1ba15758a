//! The codec keeps its laws: what is encoded decodes to the same value, any bytes give a value or
//! the peer's error, and what is accepted encodes again to something that decodes to the same
//! value.

use proptest::collection::vec;
use proptest::prelude::*;
use quire_command::*;
use quire_types::Verdict;
use quire_types::{Action, Delay, Files, HeaderValue, Headers, HeadersBuffer, Timestamp};
use quire_wire::*;

fn text(size_max: usize) -> impl Strategy<Value = String> {
    vec(any::<char>(), 0..size_max / 4).prop_map(String::from_iter)
}

/// None, or some of text and some of bytes.
fn headers() -> impl Strategy<Value = HeadersBuffer> {
    let values = (any::<bool>(), "[a-zß]{0,9}");
    proptest::collection::btree_map("[a-z.-]{1,9}", values, 0..5).prop_map(|headers| {
        let value = |is_text: bool, text| match is_text {
            true => HeaderValue::Text(text),
            false => HeaderValue::Bytes(str::as_bytes(text)),
        };
        HeadersBuffer::new(headers.iter().map(|(name, (is_text, text))| (&**name, value(*is_text, text))))
            .unwrap()
    })
}

fn delay() -> impl Strategy<Value = Delay> {
    let [relative, absolute] = [any::<u64>(), any::<u64>()];
    prop_oneof![
        Just(Delay::None),
        relative.prop_map(|ns| Delay::For { ns }),
        absolute.prop_map(|ns| Delay::Until(Timestamp(ns))),
    ]
}

/// Keys of records, as bytes.
fn keys() -> impl Strategy<Value = Option<Vec<u8>>> {
    proptest::option::of(vec(vec(any::<u8>(), 1..KEY_SIZE_MAX + 1), 0..9).prop_map(|keys| {
        let mut bytes = Vec::new();
        keys.iter().for_each(|key| put_key(&mut bytes, key));
        bytes
    }))
}

fn trace() -> Headers<'static> {
    Headers::from_bytes(b"\x05trace\0\x03\0abc").unwrap()
}

fn one_frame(bytes: &[u8]) -> RawFrame<'_> {
    RawFrame { kind: bytes[LENGTH_SIZE], body: &bytes[LENGTH_SIZE + 1..] }
}

fn client_round_trip(frame: &Command<'_>) {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    let mut inbox = Inbox::new(bytes.len());
    let mut rest = &bytes[..];
    let raw = inbox.next(&mut rest).unwrap().unwrap();
    assert_eq!(&Command::decode(raw).unwrap(), frame);
}

fn server_round_trip(frame: &Reply<'_>) {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    assert_eq!(&Reply::decode(one_frame(&bytes)).unwrap(), frame);
}

proptest! {
    #[test]
    fn a_publish_survives_the_wire(
        sequence: u64, expiration_s: Option<u32>, topic in text(1024), correlation in vec(any::<u8>(), 0..256), data in vec(any::<u8>(), 0..4096),
        headers in headers(), delay in delay(), key in vec(any::<u8>(), 0..256), is_delta: bool, is_update: bool, is_numbered: bool,
    ) {
        client_round_trip(&Command::Publish(Publish {
            sequence, expiration_s, delay, topic: topic.as_bytes(), correlation_id: &correlation, headers: headers.as_headers(), key: &key,
            is_delta, is_update, is_numbered, data: &data,
        }));
    }

    #[test]
    fn the_delay_of_a_frame_is_replaced_without_changing_anything_else(
        topic in text(1024), data in vec(any::<u8>(), 0..64), headers in headers(), ns: u64, end: u64,
    ) {
        let (relative, absolute) = (Delay::For { ns }, Delay::Until(Timestamp(end)));
        let publish = Publish {
            sequence: 7, expiration_s: Some(9), delay: relative, topic: topic.as_bytes(), correlation_id: b"c", headers: headers.as_headers(),
            key: b"k", is_delta: true, is_update: true, is_numbered: true, data: &data,
        };
        let encoded = |delay| {
            let mut bytes = Vec::new();
            Publish { delay, ..publish }.encode(&mut bytes);
            bytes
        };
        let mut bytes = encoded(relative);
        replace_delay(&mut bytes, absolute);
        prop_assert_eq!(&bytes, &encoded(absolute));
        replace_delay(&mut bytes, relative);
        prop_assert_eq!(bytes, encoded(relative));
    }

    #[test]
    fn a_batch_survives_the_wire_with_its_numbering(
        first in 0u64..1 << 60, datas in vec(vec(any::<u8>(), 0..64), 1..40), headers in headers(), delay in delay(),
        key in vec(any::<u8>(), 0..256), is_delta: bool, is_update: bool, is_numbered: bool,
    ) {
        let headers = headers.as_headers();
        let head =
            Publish { sequence: first, expiration_s: None, delay, topic: b"orders", correlation_id: b"", headers, key: &key, is_delta, is_update, is_numbered, data: b"" };
        let mut bytes = Vec::new();
        put_publish_batch(&mut bytes, &head, |out| datas.iter().for_each(|data| put_batch_item(out, data)));
        let Command::PublishBatch(batch) = Command::decode(one_frame(&bytes)).unwrap() else { panic!("another frame") };
        prop_assert!(batch.messages().all(|publish| (publish.headers, publish.delay) == (headers, delay)));
        let got: Vec<_> = batch.messages().map(|publish| (publish.sequence, publish.data.to_vec())).collect();
        let want: Vec<_> =
            (0..).zip(&datas).map(|(i, data)| (if first == 0 { 0 } else { first + i }, data.clone())).collect();
        prop_assert_eq!(got, want);
        client_round_trip(&Command::PublishBatch(batch));
    }

    #[test]
    fn a_subscription_survives_the_wire(
        command in 1u32.., acks in 0u8..16, subscription: u32, topic in text(200), filter in proptest::option::of(text(200)),
        bookmark in proptest::option::of(text(60)), options in 0u32..2048, max_backlog: Option<u32>,
        rate in proptest::option::of(text(20)), rate_max_gap_ns: Option<u64>,
        conflation_ns: Option<u64>, conflation_key in proptest::option::of(text(60)),
        select in proptest::option::of(text(60)), order_by in proptest::option::of(text(60)), top_n: Option<u32>, skip_n: Option<u32>,
        keys in keys(), texts in proptest::option::of(vec(text(40), 0..5)), takes_places: bool, place: Option<(u64, u64)>,
    ) {
        let keys = keys.as_deref().and_then(Keys::from_bytes);
        let texts = texts.map(|texts| {
            let mut packed = Vec::new();
            texts.iter().for_each(|text| put_text(&mut packed, text));
            packed
        });
        let place = place.map(|(log, position)| LogPlace { log, position });
        let texts = texts.as_deref().and_then(Texts::from_bytes);
        client_round_trip(&Command::Subscribe(Subscribe {
            command, acks: Acks(acks), subscription, topic: &topic, filter: filter.as_deref(), bookmark: bookmark.as_deref(),
            options: SubscribeOptions(options), max_backlog, rate: rate.as_deref(), rate_max_gap_ns, conflation_ns,
            conflation_key: conflation_key.as_deref(), select: select.as_deref(), order_by: order_by.as_deref(), top_n, skip_n, keys,
            projection: texts, grouping: texts, takes_places, place,
        }));
    }

    #[test]
    fn a_message_survives_the_wire(
        subscription: u32, bookmark: Option<(u64, u64)>, timestamp_ns: u64, topic in text(1024), correlation in vec(any::<u8>(), 0..256),
        data in vec(any::<u8>(), 0..4096), queued: Option<(u64, u32, u32, u64)>, queue in proptest::option::of(text(1024)),
        headers in headers(), key in vec(any::<u8>(), 0..256), kind in 0usize..7,
    ) {
        let kinds = [OofReason::Deleted, OofReason::Expired, OofReason::Match].map(MessageKind::Oof);
        let kind = match kind {
            _ if key.is_empty() => MessageKind::Publish,
            3 => MessageKind::Record,
            4 => MessageKind::Delta(RecordHash([7; 16])),
            5 => MessageKind::Delete,
            kind => kinds.get(kind).copied().unwrap_or_default(),
        };
        let data = if kind == MessageKind::Delete { &b"\x01a\x02bc"[..] } else { &data };
        let queue = queue.as_deref().map(str::as_bytes);
        let queued =
            queued.map(|(lease_ms, deliveries, cancels, position)| Queued { lease_ms, deliveries, cancels, position, queue });
        server_round_trip(&Reply::Message(Message {
            subscription, bookmark, timestamp_ns, queued, topic: topic.as_bytes(), correlation_id: &correlation, headers: headers.as_headers(),
            key: &key, kind, data,
        }));
    }

    #[test]
    fn what_is_said_about_messages_of_a_queue_survives_the_wire(
        command: u32, acks in 0u8..16, queue in text(1024), filter in text(200), bookmarks in vec(any::<(u64, u64)>(), 0..40), period_ms: u64,
        reason in text(REASON_SIZE_MAX),
    ) {
        let mut bytes = Vec::new();
        bookmarks.iter().for_each(|(publisher, sequence)| put_bookmark(&mut bytes, *publisher, *sequence));
        let list = Bookmarks::from_bytes(&bytes).unwrap();
        prop_assert_eq!(list.iter().collect::<Vec<_>>(), bookmarks);
        let (acks, queue) = (Acks(acks), queue.as_str());
        let delayed = Verdict::CancelWithDelay { delay_ms: period_ms };
        for verdict in [Verdict::Acknowledge, Verdict::Cancel, delayed, Verdict::Expire, Verdict::Release] {
            for messages in [Selection::Bookmarks(list), Selection::Matching(&filter)] {
                let settle = Settle { verdict, command, acks, queue, messages, reason: "" };
                client_round_trip(&Command::Settle(settle));
                if !matches!(verdict, Verdict::Acknowledge | Verdict::Release) {
                    client_round_trip(&Command::Settle(Settle { reason: &reason, ..settle }));
                }
            }
        }
        client_round_trip(&Command::Extend(Extend { period_ms, command, acks, queue, bookmarks: list }));
        let (command, subscription) = (command.max(1), 4);
        let mut queues = Vec::new();
        put_begun_queue(&mut queues, 0, "none");
        put_begun_queue(&mut queues, list.count() as u32, queue);
        let begun = [None, Some(&queues[..])].map(|queues| BegunMessages::from_bytes(&bytes, queues));
        prop_assert!(begun[1].unwrap().iter().all(|(of, _)| of == Some(queue)));
        for begun in [None].into_iter().chain(begun) {
            client_round_trip(&Command::Unsubscribe(Unsubscribe { command, acks, subscription, begun }));
        }
        for reason in [LeaseEnd::Expired, LeaseEnd::SettledByAnother, LeaseEnd::MessageExpired] {
            let (publisher, sequence) = (period_ms, 7);
            for queue in [None, (!queue.is_empty()).then_some(queue)] {
                server_round_trip(&Reply::LeaseLost { subscription: command, reason, publisher, sequence, queue });
            }
        }
        let subscriptions = SubscriptionNumbers::from_bytes(&[1, 0, 0, 0, 7, 1, 0, 0]).unwrap();
        server_round_trip(&Reply::ResumePosition { publisher: period_ms, sequence: 7, subscriptions });
        let mut places = Vec::new();
        server_round_trip(&Reply::Places { places: PlaceList::from_bytes(&places).unwrap(), subscriptions });
        for (name, position) in [(queue, 1), ("other", period_ms)] {
            put_place(&mut places, name, LogPlace { log: period_ms, position });
        }
        server_round_trip(&Reply::Places { places: PlaceList::from_bytes(&places).unwrap(), subscriptions });
    }

    #[test]
    fn questions_about_a_queue_survive_the_wire(
        command in 1u32.., acks in 0u8..16, subscription: u32, topic in text(200), filter in proptest::option::of(text(200)),
        order_by in proptest::option::of(text(60)), top_n: Option<u32>, json in text(400), skip_n: Option<u32>, keys in keys(),
        wants_last_values: bool, sequence: u64, texts in proptest::option::of(vec(text(40), 0..5)), data in proptest::option::of(vec(any::<u8>(), 0..64)),
    ) {
        let keys = keys.as_deref().and_then(Keys::from_bytes);
        let texts = texts.map(|texts| {
            let mut packed = Vec::new();
            texts.iter().for_each(|text| put_text(&mut packed, text));
            packed
        });
        client_round_trip(&Command::Query(Query {
            command, acks: Acks(acks), subscription, topic: &topic, filter: filter.as_deref(), order_by: order_by.as_deref(), top_n, skip_n, keys,
            bookmark: filter.as_deref(), select: order_by.as_deref(), wants_last_values,
            projection: texts.as_deref().and_then(Texts::from_bytes), grouping: texts.as_deref().and_then(Texts::from_bytes),
        }));
        let delete = SowDelete {
            command, acks: Acks(acks), sequence, topic: &topic, filter: filter.as_deref(), keys, data: data.as_deref(),
        };
        if filter.is_some() || keys.is_some() || data.is_some() {
            client_round_trip(&Command::SowDelete(delete));
        } else {
            let mut bytes = Vec::new();
            Command::SowDelete(delete).encode(&mut bytes);
            prop_assert!(Command::decode(one_frame(&bytes)).is_err());
        }
        client_round_trip(&Command::Stats { command, queue: filter.as_deref() });
        client_round_trip(&Command::Reload { command });
        client_round_trip(&Command::DefineView { command, settings: &json });
        client_round_trip(&Command::Disconnect { command, connection: u64::from(command), block_ms: subscription });
        server_round_trip(&Reply::Stats { command, json: &json });
        if !topic.is_empty() {
            for action in [LinkAction::Downgrade, LinkAction::Upgrade, LinkAction::Pause, LinkAction::Resume, LinkAction::Compare, LinkAction::Accept] {
                client_round_trip(&Command::Replicate { command, destination: &topic, action });
            }
        }
        for subject in [Subject::Server, Subject::Replication, Subject::Clients { after: subscription.into() }, Subject::Topics { after: &topic }, Subject::Messages { question: topic.as_bytes() }, Subject::Access { question: topic.as_bytes() }, Subject::Statistics { question: topic.as_bytes() }] {
            client_round_trip(&Command::Inspect { command, subject });
        }
        for action in [
            DefineQueue::Create { settings: &json },
            DefineQueue::Alter { queue: &topic, changes: &json },
            DefineQueue::Drop { queue: &topic },
        ] {
            client_round_trip(&Command::DefineQueue { command, action });
        }
    }

    #[test]
    fn journal_maintenance_survives_the_wire(
        command in 1u32.., number: u64, dry_run: bool, directory in proptest::option::of(text(40)), json in text(400),
    ) {
        for action in [Action::Archive, Action::Compress, Action::Remove] {
            for files in [Files::OlderThan(number), Files::Beyond(number)] {
                let archive_directory = directory.as_deref();
                client_round_trip(&Command::Maintain(Maintain { command, action, files, dry_run, archive_directory }));
            }
        }
        server_round_trip(&Reply::JournalFile { command, json: &json });
    }

    #[test]
    fn an_acknowledgement_survives_the_wire(code in 0usize..Code::ALL.len(), command: u32, subscription: u32, detail: u32, reason in text(200)) {
        let code = Code::ALL[code];
        for kind in [AckKind::Received, AckKind::Processed, AckKind::Completed, AckKind::Persisted] {
            server_round_trip(&Reply::Ack(Ack { kind, code, command, subscription, detail, reason: &reason }));
        }
        server_round_trip(&Reply::Error { code, reason: &reason });
        server_round_trip(&Reply::SubscriptionEnded { subscription, code, reason: &reason });
        for scope in [FailureScope::One, FailureScope::AllFromHere] {
            server_round_trip(&Reply::PublishFailed { sequence: u64::from(command), code, scope, reason: &reason });
        }
    }

    #[test]
    fn any_body_of_any_kind_gives_a_value_or_an_error(kind: u8, body in vec(any::<u8>(), 0..300)) {
        any_frame_holds_the_laws(RawFrame { kind, body: &body });
    }

    #[test]
    fn any_byte_of_a_frame_may_change_and_gives_a_value_or_an_error(at: prop::sample::Index, to: u8, which in 0usize..35) {
        let logon = Logon { version: 1, client_name: "loader", user: Some("u"), ..Logon::default() };
        let publish = Publish { sequence: 7, expiration_s: Some(1), delay: Delay::For { ns: 7 }, topic: b"orders", correlation_id: b"c", headers: trace(), key: b"k", is_delta: true, is_update: true, is_numbered: true, data: b"{}" };
        let keys = Keys::from_bytes(b"\x01a\x02bc");
        let texts = Texts::from_bytes(b"\x01\0\0\0a\x02\0\0\0bc");
        let place = Some(LogPlace { log: 7, position: 8 });
        let subscribe = Subscribe { command: 1, topic: "orders", filter: Some("/a = 1"), takes_places: true, place, ..Subscribe::default() };
        let mut bytes = Vec::new();
        let (acks, subscriptions) = (Acks::PROCESSED, SubscriptionNumbers::from_bytes(&TWO[..8]).unwrap());
        match which {
            0 => Command::Logon(logon).encode(&mut bytes),
            1 => publish.encode(&mut bytes),
            2 => put_publish_batch(&mut bytes, &publish, |out| put_batch_item(out, b"one")),
            3 => Command::Subscribe(subscribe).encode(&mut bytes),
            4 => Reply::LoggedOn(LoggedOn { version: 1, takes_reasons: true, ..LoggedOn::default() }).encode(&mut bytes),
            5 => Reply::Persisted { sequence: 9 }.encode(&mut bytes),
            6 => Command::Settle(SETTLE).encode(&mut bytes),
            7 => Command::Extend(Extend { period_ms: 9, command: 4, acks: Acks::PROCESSED, queue: "jobs", bookmarks: bookmarks(&TWO) })
                .encode(&mut bytes),
            8 => Command::Query(Query { command: 1, topic: "jobs", top_n: Some(3), ..Query::default() }).encode(&mut bytes),
            9 => QUEUED.encode(&mut bytes),
            10 => Command::Maintain(MAINTAIN).encode(&mut bytes),
            11 => Command::Flush { command: 3, acks }.encode(&mut bytes),
            12 => Command::Pause { command: 3, acks, subscriptions }.encode(&mut bytes),
            13 => Command::Resume { command: 3, acks, subscriptions }.encode(&mut bytes),
            14 => Command::Stats { command: 3, queue: Some("jobs") }.encode(&mut bytes),
            15 => Reply::Ack(Ack { kind: AckKind::Processed, code: Code::BadFilter, command: 3, subscription: 4, detail: 5, reason: "r" })
                .encode(&mut bytes),
            16 => Reply::PublishFailed { sequence: 9, code: Code::BadTopic, scope: FailureScope::One, reason: "r" }.encode(&mut bytes),
            17 => Reply::Error { code: Code::Internal, reason: "r" }.encode(&mut bytes),
            18 => Reply::SubscriptionEnded { subscription: 4, code: Code::Ok, reason: "r" }.encode(&mut bytes),
            19 => Reply::LeaseLost { subscription: 4, reason: LeaseEnd::Expired, publisher: 8, sequence: 9, queue: None }.encode(&mut bytes),
            20 => Reply::ResumePosition { publisher: 8, sequence: 9, subscriptions }.encode(&mut bytes),
            21 => Reply::JournalFile { command: 3, json: "{}" }.encode(&mut bytes),
            23 => Message { headers: trace(), ..QUEUED }.encode(&mut bytes),
            24 => Command::DefineQueue { command: 3, action: DefineQueue::Create { settings: "{}" } }.encode(&mut bytes),
            25 => Command::DefineQueue { command: 3, action: DefineQueue::Drop { queue: "q" } }.encode(&mut bytes),
            26 => Command::DefineQueue { command: 3, action: DefineQueue::Alter { queue: "q", changes: "{}" } }.encode(&mut bytes),
            27 => Command::SowDelete(SowDelete { command: 1, sequence: 2, topic: "orders", keys, data: Some(b"{}"), ..SowDelete::default() })
                .encode(&mut bytes),
            28 => Message { key: b"k", kind: MessageKind::Oof(OofReason::Match), queued: None, ..QUEUED }.encode(&mut bytes),
            30 => Message { key: b"k", kind: MessageKind::Delta(RecordHash([1; 16])), queued: None, ..QUEUED }.encode(&mut bytes),
            29 => Command::Query(Query { command: 1, topic: "orders", keys, skip_n: Some(1), wants_last_values: true, projection: texts, grouping: texts, ..Query::default() })
                .encode(&mut bytes),
            31 => Command::Replicate { command: 3, destination: "b", action: LinkAction::Downgrade }.encode(&mut bytes),
            32 => Command::Settle(REASONED).encode(&mut bytes),
            33 => Reply::Places { places: PlaceList::from_bytes(&[0; 18]).unwrap(), subscriptions }.encode(&mut bytes),
            22 => Command::Inspect { command: 3, subject: Subject::Clients { after: 4 } }.encode(&mut bytes),
            _ => Command::Unsubscribe(Unsubscribe { command: 3, acks: Acks::PROCESSED, subscription: 4, begun: None }).encode(&mut bytes),
        }
        let at = LENGTH_SIZE + at.index(bytes.len() - LENGTH_SIZE);
        bytes[at] = to;
        any_frame_holds_the_laws(one_frame(&bytes));
    }
}

proptest! {
    #[test]
    fn any_bytes_after_publishes_have_the_publishes_that_an_inbox_gives(
        data in vec(vec(any::<u8>(), 0..20), 0..5), has_heartbeat: bool, rest in vec(any::<u8>(), 0..60), cut: prop::sample::Index,
    ) {
        let mut bytes = Vec::new();
        for (sequence, data) in (1..).zip(&data) {
            Publish { sequence, topic: b"orders", data, ..Publish::default() }.encode(&mut bytes);
        }
        if has_heartbeat {
            Command::Heartbeat.encode(&mut bytes);
        }
        bytes.extend_from_slice(&rest);
        let bytes = &bytes[..cut.index(bytes.len() + 1)];
        let mut expected = Vec::new();
        let (mut inbox, mut left) = (Inbox::new(bytes.len()), bytes);
        while let Ok(Some(frame)) = inbox.next(&mut left)
            && let Ok(Command::Publish(publish)) = Command::decode(frame)
        {
            expected.push((publish.sequence, publish.data.to_vec()));
        }
        let found: Vec<_> = publishes(bytes).map(|publish| (publish.sequence, publish.data.to_vec())).collect();
        prop_assert_eq!(found, expected);
    }
}

fn any_frame_holds_the_laws(frame: RawFrame<'_>) {
    let mut again = Vec::new();
    if let Ok(value) = Command::decode(frame) {
        value.encode(&mut again);
        assert_eq!(Command::decode(one_frame(&again)), Ok(value));
    }
    again.clear();
    if let Ok(value) = Reply::decode(frame) {
        value.encode(&mut again);
        assert_eq!(Reply::decode(one_frame(&again)), Ok(value));
    }
}

const TWO: [u8; 32] = [1; 32];
const SETTLE: Settle<'static> = Settle {
    verdict: Verdict::Cancel,
    command: 0x0403_0201,
    acks: Acks::PERSISTED,
    queue: "jobs",
    messages: Selection::Matching("/a = 1"),
    reason: "",
};
const REASONED: Settle<'static> =
    Settle { verdict: Verdict::CancelWithDelay { delay_ms: 9 }, reason: "späť", ..SETTLE };
const QUEUED: Message<'static> = Message {
    subscription: 5,
    bookmark: Some((6, 7)),
    timestamp_ns: 8,
    queued: Some(Queued { lease_ms: u64::MAX, deliveries: 2, cancels: 1, position: 9, queue: Some(b"jobs") }),
    topic: b"work",
    correlation_id: b"c",
    headers: Headers::NONE,
    key: b"",
    kind: MessageKind::Publish,
    data: b"{}",
};

const MAINTAIN: Maintain<'static> = Maintain {
    command: 3,
    action: Action::Remove,
    files: Files::Beyond(0x0102),
    dry_run: true,
    archive_directory: Some("/a"),
};

fn bookmarks(bytes: &[u8]) -> Bookmarks<'_> {
    Bookmarks::from_bytes(bytes).unwrap()
}

/// The layout is a contract with clients that other people write: byte by byte, as protocol.md
/// says.
#[test]
fn the_frames_of_queues_have_the_documented_layout() {
    let mut bytes = Vec::new();
    Command::Settle(SETTLE).encode(&mut bytes);
    let head = [1, 1, 4, 0, 1, 2, 3, 4, 8, 0, 0, 0];
    assert_eq!(bytes, [&[23, 0, 0, 0, 11][..], &head, b"jobs", b"/a = 1"].concat());
    bytes.clear();
    Command::Settle(REASONED).encode(&mut bytes);
    let head = [1, 7, 4, 0, 1, 2, 3, 4, 8, 0, 0, 0];
    let delay = [9, 0, 0, 0, 0, 0, 0, 0];
    let reason = [&[6, 0][..], "späť".as_bytes()].concat();
    assert_eq!(bytes, [&[39, 0, 0, 0, 11][..], &head, b"jobs", &delay, &reason, b"/a = 1"].concat());
    bytes.clear();
    let mut list = Vec::new();
    put_bookmark(&mut list, 0x0102, 0x0304);
    let extend = Extend {
        period_ms: 5,
        command: 6,
        acks: Acks::PROCESSED,
        queue: "jobs",
        bookmarks: bookmarks(&list),
    };
    Command::Extend(extend).encode(&mut bytes);
    let head = [5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 6, 0, 0, 0, 2, 0, 0, 0];
    let bookmark = [2, 1, 0, 0, 0, 0, 0, 0, 4, 3, 0, 0, 0, 0, 0, 0];
    assert_eq!(bytes, [&[41, 0, 0, 0, 12][..], &head, b"jobs", &bookmark].concat());
    bytes.clear();
    QUEUED.encode(&mut bytes);
    let fixed = |n: u8| [n, 0, 0, 0, 0, 0, 0, 0];
    let head = [&[7, 1, 4, 0, 5, 0, 0, 0][..], &fixed(6), &fixed(7), &fixed(8)].concat();
    let queued = [&[255; 8][..], &[2, 0, 0, 0, 1, 0, 0, 0], &fixed(9), &[4, 0], b"jobs"].concat();
    assert_eq!(bytes, [&[70, 0, 0, 0, 68][..], &head, &queued, b"work", b"c", b"{}"].concat());
    bytes.clear();
    let reason = LeaseEnd::SettledByAnother;
    Reply::LeaseLost { subscription: 1, reason, publisher: 3, sequence: 4, queue: None }.encode(&mut bytes);
    assert_eq!(bytes, [&[25, 0, 0, 0, 73][..], &[1, 0, 0, 0, 2, 0, 0, 0], &fixed(3), &fixed(4)].concat());
    bytes.clear();
    let subscriptions = SubscriptionNumbers::from_bytes(&[1, 0, 0, 0]).unwrap();
    Reply::ResumePosition { publisher: 3, sequence: 4, subscriptions }.encode(&mut bytes);
    assert_eq!(bytes, [&[21, 0, 0, 0, 74][..], &fixed(3), &fixed(4), &[1, 0, 0, 0]].concat());
}

#[test]
fn a_settle_with_a_reason_that_is_empty_too_long_or_of_another_verdict_is_refused() {
    let is_taken = |verdict: u8, size: u16, reason: &[u8]| {
        let head = [&[verdict, 4, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], b"jobs", &size.to_le_bytes()].concat();
        let body = [&*head, reason, &TWO].concat();
        match Command::decode(RawFrame { kind: 11, body: &body }) {
            Ok(Command::Settle(settle)) => settle.reason.as_bytes() == reason,
            Err(WireError::Malformed { frame: "settle", .. }) => false,
            other => panic!("{other:?}"),
        }
    };
    let longest = [b'x'; REASON_SIZE_MAX + 1];
    let size_max = REASON_SIZE_MAX as u16;
    assert!(is_taken(1, 2, b"no") && is_taken(2, 2, b"no"));
    assert!(is_taken(1, size_max, &longest[1..]));
    assert!(!is_taken(1, size_max + 1, &longest), "too long");
    assert!(!is_taken(1, 0, b""), "a flag without a reason");
    assert!(!is_taken(1, 2, &[0xff, 0xff]), "no UTF-8");
    assert!(!is_taken(1, u16::MAX, b"no"), "longer than the frame");
    assert!(!is_taken(0, 2, b"no") && !is_taken(3, 2, b"no"), "no dead letter can follow");
}

/// The command in a `maintain` frame with this body; `None` when it is malformed.
fn decoded(body: &[u8]) -> Option<Maintain<'_>> {
    match Command::decode(RawFrame { kind: 15, body }) {
        Ok(Command::Maintain(maintain)) => Some(maintain),
        Err(WireError::Malformed { frame: "maintain", .. }) => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_frames_about_journal_files_have_the_documented_layout() {
    let field = |tag: u8, value: &[u8]| [&[tag, value.len() as u8, 0, 0, 0], value].concat();
    let frame = |kind: u8, body: &[u8]| [&[body.len() as u8 + 1, 0, 0, 0, kind], body].concat();
    let mut bytes = Vec::new();
    Command::Maintain(MAINTAIN).encode(&mut bytes);
    let (command, action) = (field(1, &[3, 0, 0, 0]), |number| field(3, &[number]));
    let number = [2, 1, 0, 0, 0, 0, 0, 0];
    let body = [&*command, &action(2), &field(5, &number), &field(6, &[1]), &field(7, b"/a")].concat();
    assert_eq!(bytes, frame(15, &body));
    bytes.clear();
    Reply::JournalFile { command: 3, json: "{}" }.encode(&mut bytes);
    assert_eq!(bytes, frame(75, b"\x03\0\0\0{}"));
    let (age, size_max) = (field(4, &number), field(5, &number));
    let said = Maintain {
        files: Files::OlderThan(0x0102),
        action: Action::Archive,
        dry_run: false,
        archive_directory: None,
        ..MAINTAIN
    };
    assert_eq!(decoded(&[&*command, &action(0), &age].concat()), Some(said));
    assert_eq!(
        decoded(&[&*age, &field(6, &[0]), &command, &action(0), &field(200, b"later")].concat()),
        Some(said)
    );
    for body in [
        [&*action(0), &age].concat(),
        [&*field(1, &[0; 4]), &action(0), &age].concat(),
        [&*command, &age].concat(),
        [&*command, &action(3), &age].concat(),
        [&*command, &action(0)].concat(),
        [&*command, &action(0), &age, &size_max].concat(),
        [&*command, &action(0), &age, &field(6, &[2])].concat(),
        [&*command, &action(0), &age, &field(7, &[255])].concat(),
        [&*command, &action(0), &age, &field(8, &[1])].concat(),
    ] {
        assert_eq!(decoded(&body), None, "{body:?}");
    }
}

#[test]
fn a_list_of_bookmarks_is_whole_and_has_a_limit() {
    assert!(Bookmarks::from_bytes(&[0; 17]).is_none());
    let most = vec![0; 16 * SETTLE_BOOKMARKS_MAX];
    assert_eq!(Bookmarks::from_bytes(&most).map(Bookmarks::count), Some(SETTLE_BOOKMARKS_MAX));
    assert!(Bookmarks::from_bytes(&[&most[..], &[0; 16]].concat()).is_none());
}

#[test]
fn a_list_of_keys_is_whole_and_has_a_limit() {
    let keys = Keys::from_bytes(b"\x01a\x02bc").unwrap();
    assert_eq!(keys.iter().collect::<Vec<_>>(), [&b"a"[..], b"bc"]);
    assert_eq!(Keys::from_bytes(b"").map(|keys| keys.iter().count()), Some(0));
    for bad in [&b"\x00"[..], b"\x01", b"\x02a", b"\x01a\x00"] {
        assert_eq!(Keys::from_bytes(bad), None, "{bad:?}");
    }
    let most = b"\x01a".repeat(KEYS_MAX);
    assert!(Keys::from_bytes(&most).is_some());
    assert!(Keys::from_bytes(&[&most[..], b"\x01a"].concat()).is_none());
}

/// A record and an `oof` have a key, and a message is not both.
#[test]
fn a_message_about_a_record_without_a_key_is_malformed() {
    let mut frame = Vec::new();
    Message { key: b"k", kind: MessageKind::Record, ..QUEUED }.encode(&mut frame);
    const FLAGS_AT: usize = LENGTH_SIZE + 1;
    let flags = frame[FLAGS_AT];
    for bad in [flags & !16, flags | 64, flags & !16 & !32 | 64, flags | 128, flags & !16 & !32 | 128] {
        frame[FLAGS_AT] = bad;
        assert!(Reply::decode(one_frame(&frame)).is_err(), "{bad:#b}");
    }
    frame[FLAGS_AT] = flags;
    assert!(Reply::decode(one_frame(&frame)).is_ok());
}

#[test]
fn commands_without_fields_or_with_lists_survive_the_wire() {
    let numbers = [1u32, 7, 9].map(u32::to_le_bytes).concat();
    let subscriptions = SubscriptionNumbers::from_bytes(&numbers).unwrap();
    assert_eq!(subscriptions.iter().collect::<Vec<_>>(), [1, 7, 9]);
    for frame in [
        Command::Heartbeat,
        Command::Goodbye,
        Command::Flush { command: 4, acks: Acks::PERSISTED },
        Command::Unsubscribe(Unsubscribe { command: 5, acks: Acks::PROCESSED, subscription: 0, begun: None }),
        Command::Pause { command: 6, acks: Acks::PROCESSED, subscriptions },
        Command::Resume { command: 7, acks: Acks::PROCESSED, subscriptions },
        Command::Logon(Logon {
            version: 1,
            client_name: "n",
            heartbeat_ms: 5,
            ack_interval_ms: 6,
            incarnation: u64::MAX,
            connection_number: 3,
            run: 8,
            persisted: u64::MAX,
            ..Logon::default()
        }),
    ] {
        client_round_trip(&frame);
    }
    server_round_trip(&Reply::Heartbeat);
    server_round_trip(&Reply::Persisted { sequence: u64::MAX });
    for (last_sequence, highest_sequence) in [(0, 0), (7, 7), (7, 9)] {
        server_round_trip(&Reply::LoggedOn(LoggedOn {
            version: 1,
            instance: "one",
            last_sequence,
            highest_sequence,
            takes_reasons: last_sequence == 7,
            ..LoggedOn::default()
        }));
    }
}

#[test]
fn a_logon_that_does_not_say_who_it_is_gets_refused() {
    for (name, version, magic_at) in
        [("", 1, None), ("a\u{7}b", 1, None), ("ok", 0, None), ("ok", 1, Some(10))]
    {
        let mut bytes = Vec::new();
        Command::Logon(Logon { version, client_name: name, ..Logon::default() }).encode(&mut bytes);
        if let Some(at) = magic_at {
            bytes[at] ^= 1;
        }
        assert!(
            matches!(Command::decode(one_frame(&bytes)), Err(WireError::Malformed { frame: "logon", .. })),
            "{name:?}"
        );
    }
}

#[test]
fn every_code_has_one_number_and_one_name() {
    for code in Code::ALL {
        assert_eq!(Code::from_number(*code as u16), Some(*code));
        assert_eq!(Code::ALL.iter().filter(|other| other.name() == code.name()).count(), 1);
    }
    assert_eq!(Code::from_number(Code::ALL.len() as u16), None);
}
