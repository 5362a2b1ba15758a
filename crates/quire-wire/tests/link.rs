//! The frames between two instances: their bytes, and the laws of the codec.
//!
//! The layout is a contract between versions of quire. An encoder and a decoder that drift together
//! pass every round trip, and fail at the golden file.

use proptest::collection::vec;
use proptest::prelude::*;
use quire_types::{Bookmark, Position, PublisherId, Secret, Timestamp};
use quire_wire::link::*;

const SIZE_MAX: usize = 1000;

const MARK: Option<Mark> = Some(Mark {
    position: Position::new(2),
    bookmark: Bookmark::new(PublisherId::new(1), 5),
    time: Timestamp::from_ns(6),
});

const LOGON: Logon<'static> =
    Logon { version: VERSION, instance: "a", user: Some("u"), password: None, token: None };

const RECORD: LinkRecord<'static> = LinkRecord {
    position: Position::new(7),
    kind: 1,
    message_type: 1,
    bookmark: Bookmark::new(PublisherId::new(3), 4),
    expiration_s: Some(9),
    stamp: None,
    topic: "orders",
    correlation_id: b"c",
    attributes: b"",
    data: b"{}",
};

const STAMPED: LinkRecord<'static> =
    LinkRecord { stamp: Some(Timestamp::from_ns(10)), expiration_s: None, ..RECORD };

fn record() -> LinkRecord<'static> {
    RECORD
}

fn frame_of(count: usize, compress: impl FnOnce(&[u8]) -> Option<(u8, Vec<u8>)>) -> Vec<u8> {
    frame_with(&vec![record(); count], compress)
}

fn frame_with(records: &[LinkRecord<'_>], compress: impl FnOnce(&[u8]) -> Option<(u8, Vec<u8>)>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = RecordsWriter::begin(&mut bytes);
    records.iter().for_each(|record| writer.put(record, &mut bytes));
    writer.end(Position::new(8), MARK, compress, &mut bytes);
    bytes
}

/// The lines of the golden file: names and bytes.
fn golden() -> Vec<(&'static str, Vec<u8>)> {
    let lines = include_str!("golden/link-frames.txt").lines().filter(|line| !line.starts_with('#'));
    let read = |line: &'static str| {
        let (name, digits) = line.split_once(' ').unwrap();
        let digits = digits.replace(' ', "");
        let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        (name, (0..digits.len()).step_by(2).map(byte).collect())
    };
    lines.map(read).collect()
}

fn golden_bytes(name: &str) -> Vec<u8> {
    golden().into_iter().find(|(key, _)| *key == name).unwrap().1
}

fn wanted(publisher: u64, first: u64, last: u64, is_hole: bool) -> Wanted {
    Wanted { publisher: PublisherId::new(publisher), first, last, is_hole }
}

/// Every kind of frame, with its name in the golden file.
fn examples() -> Vec<(&'static str, Vec<u8>)> {
    let mark = MARK;
    let member = Member {
        name: "a",
        group: "g",
        started_ns: 11,
        log: 13,
        is_filling: true,
        named: vec![Named::Destination("b"), Named::Group("w"), Named::Instance("c")],
        last: Some(Bookmark::new(PublisherId::new(3), 4)),
    };
    let hello = Hello {
        version: VERSION,
        instance: "a",
        group: "g",
        destination: "b",
        destination_group: "",
        started_ns: 11,
        mark,
        topics: vec![Offered { topic: "orders", message_type: "json", key: "/id" }],
        marked_log: 12,
        excluded: vec!["key"],
        members: vec![member.clone()],
    };
    let members = vec![Member { named: Vec::new(), last: None, ..member.clone() }];
    let welcome =
        Welcome { version: 1, instance: "b", group: "b", has_mark: true, members, ..Welcome::default() };
    let known = vec![("a", 13), ("b", 14)];
    let sent_all = SentAll { origin: "a", of: "b", log: 14, is_whole: true, known };
    let required =
        RequiredPlace { instance: "d", log: 15, own: Position::new(6), passed_on: Position::new(4) };
    let places = SentPlaces {
        log: 13,
        position: Position::new(9),
        known: vec![KnownPlace { instance: "c", log: 14, position: Position::new(5) }],
        required: Some(vec![required]),
    };
    let unknown = SentPlaces { log: 13, position: Position::new(9), ..SentPlaces::default() };
    let frames = [
        ("hello", Frame::Hello(hello)),
        ("welcome", Frame::Welcome(welcome)),
        ("refused", Frame::Refused { reason: "no" }),
        ("acknowledged", Frame::Acknowledged { through: Position::new(9), hops: 1, mark }),
        ("heartbeat", Frame::Heartbeat),
        ("caught_up", Frame::Mark(SentAll::default())),
        ("mark", Frame::Mark(sent_all)),
        ("members", Frame::Members(vec![member.clone()])),
        ("ended", Frame::Ended { reason: "no" }),
        ("logon", Frame::Logon(Logon { token: Some(Secret("t")), ..LOGON })),
        ("logon_password", Frame::Logon(Logon { password: Some(Secret("p\u{e4}ss")), ..LOGON })),
        ("logged_on", Frame::LoggedOn { user: "u" }),
        ("rejected", Frame::Rejected { bookmark: record().bookmark, run: 258 }),
        ("question", Frame::Question { number: 3, question: &[1] }),
        ("answer", Frame::Answer { number: 3, reason: "", answer: &[1, 2] }),
        ("answer_refused", Frame::Answer { number: 3, reason: "no", answer: &[] }),
        ("wanted", Frame::Wanted { number: 4, ranges: vec![wanted(7, 5, 6, true), wanted(8, 9, 9, false)] }),
        (
            "given",
            Frame::Given {
                number: 4,
                reason: "",
                given: Given { done: 1, next: 9, sent: 2, left_out: vec![(PublisherId::new(7), 5, 5)] },
            },
        ),
        ("places", Frame::Places(places)),
        ("places_unknown", Frame::Places(unknown)),
    ];
    let encode = |(name, frame): &(&'static str, Frame<'_>)| {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        assert_eq!(next_frame(&bytes, SIZE_MAX), Ok(Some((frame.clone(), bytes.len()))));
        (*name, bytes)
    };
    let mut examples: Vec<_> = frames.iter().map(encode).collect();
    // The caller compresses: here with the bytes of the file.
    let compressed = golden_bytes("compressed");
    let compress = |_: &[u8]| Some((compressed[5], compressed[10..].to_vec()));
    examples.push(("compressed", frame_of(20, compress)));
    examples.push(("records", frame_of(1, |_| None)));
    examples.push(("records_stamped", frame_with(&[STAMPED], |_| None)));
    examples
}

#[test]
fn records_arrive_as_they_were_sent() {
    let bytes = frame_with(&[record(), STAMPED], |_| None);
    let Ok(Some((Frame::Records(records), size))) = next_frame(&bytes, SIZE_MAX) else { panic!() };
    assert_eq!((size, records.through, records.last), (bytes.len(), Position::new(8), MARK));
    let found: Vec<_> = records.each_after(0).map(Result::unwrap).collect();
    let (first, second) = (found[0], found[1]);
    assert_eq!((found.len(), first.0, second.0), (2, record(), STAMPED));
    let rest: Vec<_> = records.each_after(first.1).map(Result::unwrap).collect();
    assert_eq!(rest, [second]);
}

#[test]
fn every_frame_has_the_bytes_of_the_golden_file() {
    for (name, bytes) in examples() {
        assert_eq!(golden_bytes(name), bytes, "{name}: {bytes:02x?}");
    }
    for kind in 0..=255 {
        let is_known = next_frame(&[1, 0, 0, 0, kind], SIZE_MAX) != Err(BadFrame("an unknown kind"));
        let is_golden = golden().iter().any(|(_, bytes)| bytes[4] == kind);
        assert_eq!(is_known, is_golden, "the kind {kind}");
    }
}

/// Reads every frame and every record of the bytes, and encodes again what is not records.
fn read_all(mut bytes: &[u8]) -> Result<(), BadFrame> {
    while let Some((frame, size)) = next_frame(bytes, SIZE_MAX)? {
        if let Frame::Records(records) = frame {
            records.each_after(0).for_each(drop);
        } else {
            let mut again = Vec::new();
            frame.encode(&mut again);
            assert_eq!(next_frame(&again, usize::MAX), Ok(Some((frame, again.len()))));
        }
        bytes = &bytes[size..];
    }
    Ok(())
}

#[test]
fn a_frame_that_is_cut_short_is_waited_for_and_a_changed_one_never_panics() {
    for (_, bytes) in examples() {
        for size in 0..bytes.len() {
            assert_eq!(next_frame(&bytes[..size], SIZE_MAX), Ok(None));
        }
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut changed = bytes.clone();
                changed[at] = value;
                let _ = read_all(&changed);
            }
        }
    }
}

#[test]
fn the_version_of_a_first_frame_is_found_before_the_rest_is_read() {
    for (name, bytes) in examples() {
        let is_first = name == "hello" || name.starts_with("logon");
        assert_eq!(announced_version(&bytes), is_first.then_some(VERSION), "{name}");
        assert_eq!(announced_version(&bytes[..6.min(bytes.len())]), None, "{name}");
    }
    let mut later = Vec::new();
    Frame::Logon(Logon { version: VERSION + 1, ..LOGON }).encode(&mut later);
    let Ok(Some((Frame::Logon(logon), _))) = next_frame(&later, SIZE_MAX) else { panic!() };
    assert_eq!(logon, Logon { version: VERSION + 1, ..Logon::default() }, "nothing else of it is read");
}

#[test]
fn the_secrets_of_a_logon_are_not_in_its_debug_output() {
    let logon =
        Frame::Logon(Logon { password: Some(Secret("marked")), token: Some(Secret("marked")), ..LOGON });
    assert!(!format!("{logon:?}").contains("marked"));
}

#[test]
fn a_frame_above_the_limit_is_refused_before_it_arrives() {
    assert!(next_frame(&[0xff, 0xff, 0, 0], SIZE_MAX).is_err());
}

/// A frame with some of its bytes changed, or any body of a kind.
fn almost_a_frame() -> impl Strategy<Value = Vec<u8>> {
    let changed = (0..examples().len(), vec((any::<prop::sample::Index>(), any::<u8>()), 0..4));
    let changed = changed.prop_map(|(number, changes)| {
        let (_, mut bytes) = examples().swap_remove(number);
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes
    });
    let body = (0u8..20, vec(any::<u8>(), 0..200)).prop_map(|(kind, body)| {
        let size = 1 + body.len() as u32;
        [&size.to_le_bytes()[..], &[kind], &body].concat()
    });
    prop_oneof![changed, body, vec(any::<u8>(), 0..100)]
}

proptest! {
    #[test]
    fn any_bytes_are_frames_of_a_link_or_refused(parts in vec(almost_a_frame(), 1..4)) {
        let _ = read_all(&parts.concat());
    }

    #[test]
    fn any_bytes_are_divided_as_they_are_read(
        parts in vec(almost_a_frame(), 1..4),
        sizes in vec(1_usize..40, 1..20),
    ) {
        let bytes = parts.concat();
        let (mut splitter, mut rest, mut sizes) = (Splitter::default(), &bytes[..], sizes.iter().cycle());
        let mut divided = Ok(Vec::new());
        while let (false, Ok(found)) = (rest.is_empty(), &mut divided) {
            let (mut part, after) = rest.split_at(rest.len().min(*sizes.next().unwrap()));
            rest = after;
            loop {
                match splitter.next(&mut part) {
                    Ok(Some(piece)) => {
                        found.extend(piece.head.into_iter().flatten());
                        found.extend_from_slice(piece.body);
                    }
                    Ok(None) => break,
                    Err(error) => {
                        divided = Err(error);
                        break;
                    }
                }
            }
        }
        // Without an error, nothing is lost but a head that has not arrived completely.
        if let Ok(found) = divided {
            prop_assert!(bytes.starts_with(&found) && bytes.len() - found.len() < 5);
        }
    }
}
