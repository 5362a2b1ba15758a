//! A client that holds messages of a queue: the commands that it sends, when it sends them, and
//! those that it drops. The test is the server.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use quire_client::{Message, *};
use quire_command::{self as command, *};
use quire_types::Verdict;
use quire_types::time::Instant;
use quire_wire::{Decode, Encode, Inbox};

use crate::link::{config, message_of};

/// Something that a program does.
type Say = fn(&mut Worker);

pub const LEASE: Duration = Duration::from_secs(30);

/// A client that is logged on, and the server's end of its connection.
pub struct Worker {
    pub core: ClientCore,
    pub now: Instant,
    inbox: Inbox,
    pub number: u32,
    /// Flushes that the client has said; `said` shows them when `shows_flushes`.
    flushes: Vec<CommandId>,
    shows_flushes: bool,
    /// The server takes reasons.
    takes_reasons: bool,
    /// Commands about leases that are not answered.
    asked: Vec<u32>,
}

impl Worker {
    /// With a subscription to the queue `jobs`.
    fn new(config: ClientConfig, max_backlog: u32) -> Self {
        Self::renewing(config, max_backlog, Renewal::default())
    }

    /// With a subscription to the queue `jobs`, some of whose leases the client renews.
    pub fn renewing(config: ClientConfig, max_backlog: u32, renewal: Renewal) -> Self {
        let core = ClientCore::new(config, Instant(0));
        let mut worker = Worker {
            core,
            now: Instant(0),
            inbox: Inbox::new(1 << 20),
            number: 0,
            flushes: Vec::new(),
            shows_flushes: false,
            takes_reasons: true,
            asked: Vec::new(),
        };
        worker.connect();
        let max = Some(max_backlog);
        let spec = SubscriptionSpec { max_backlog: max, renewal, ..SubscriptionSpec::new("jobs") };
        let (number, command) = worker.core.subscribe(spec).unwrap();
        worker.number = number;
        let said = worker.said();
        assert!(said[0].contains(&format!("max_backlog: Some({max_backlog})")), "{said:?}");
        worker.enter(command, max_backlog);
        worker
    }

    /// The server takes the subscription, and grants this backlog.
    pub fn enter(&mut self, command: CommandId, granted: u32) {
        let CommandId(command) = command;
        let (kind, subscription) = (AckKind::Processed, self.number);
        let ack = Ack { kind, code: Code::Ok, command, subscription, detail: granted, reason: "" };
        self.hear(&Reply::Ack(ack));
    }

    pub fn connect(&mut self) {
        self.core.handle_connected(self.now);
        self.inbox = Inbox::new(1 << 20);
        self.said();
        let (takes_reasons, message_size_max) = (self.takes_reasons, 1 << 20);
        let logged_on =
            LoggedOn { version: 1, publisher: 7, message_size_max, takes_reasons, ..LoggedOn::default() };
        self.hear(&Reply::LoggedOn(logged_on));
    }

    pub fn hear(&mut self, frame: &Reply<'_>) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.core.handle_received(self.now, bytes.into()).unwrap();
    }

    /// Gives the client a message, and gives what it made of it.
    pub fn deliver(&mut self, sequence: u64) -> Message {
        self.deliver_again(sequence, 2).unwrap()
    }

    /// Gives the client a message, and gives what the program may see.
    pub fn deliver_again(&mut self, sequence: u64, deliveries: u32) -> Option<Message> {
        let lease_ms = LEASE.as_millis() as u64;
        let queued = Queued { lease_ms, deliveries, cancels: 1, position: 9, queue: None };
        self.hear(&Reply::Message(message(self.number, sequence, queued)));
        self.messages().pop()
    }

    /// The server ends the lease of a message.
    pub fn lapse(&mut self, sequence: u64) {
        let (subscription, reason) = (self.number, LeaseEnd::Expired);
        self.hear(&Reply::LeaseLost { subscription, reason, publisher: 5, sequence, queue: None });
    }

    /// As [`Worker::deliver_again`], with the name of the queue.
    pub fn deliver_from(&mut self, queue: &str, sequence: u64, deliveries: u32) -> Option<Message> {
        let (lease_ms, queue) = (LEASE.as_millis() as u64, Some(queue.as_bytes()));
        let queued = Queued { lease_ms, deliveries, cancels: 1, position: 9, queue };
        self.hear(&Reply::Message(message(self.number, sequence, queued)));
        self.messages().pop()
    }

    /// The server ends the lease of a message of a queue that it names.
    pub fn lapse_in(&mut self, queue: &str, sequence: u64) {
        let (subscription, reason, queue) = (self.number, LeaseEnd::Expired, Some(queue));
        self.hear(&Reply::LeaseLost { subscription, reason, publisher: 5, sequence, queue });
    }

    /// The server answers the last commands about leases.
    pub fn grant(&mut self) {
        for command in std::mem::take(&mut self.asked) {
            self.hear(&accepted(CommandId(command)));
        }
    }

    /// As [`Worker::grant`], for a period that the server names.
    pub fn grant_for(&mut self, period: Duration) {
        let detail = period.as_millis() as u32;
        for command in std::mem::take(&mut self.asked) {
            let (kind, code) = (AckKind::Processed, Code::Ok);
            self.hear(&Reply::Ack(Ack { kind, code, command, subscription: 0, detail, reason: "" }));
        }
    }

    pub fn messages(&mut self) -> Vec<Message> {
        let mut all = Vec::new();
        while let Some(event) = self.core.poll_event() {
            if let Event::Messages { messages, .. } = event {
                all.extend(messages);
            }
        }
        all
    }

    /// The program gets a message. Whether it may.
    pub fn begin(&mut self, message: &Message) -> bool {
        self.core.begin(message.lease().unwrap(), self.now)
    }

    /// The program gives a verdict with a reason.
    fn settle_because(&mut self, message: &Message, verdict: Verdict, reason: &str) -> bool {
        self.core.settle_because(message.lease().unwrap(), verdict, reason, self.now).unwrap()
    }

    pub fn acknowledge(&mut self, message: &Message) -> bool {
        self.core.settle(message.lease().unwrap(), Verdict::Acknowledge, self.now).unwrap()
    }

    /// The server answers a flush, counted from 0.
    fn persisted(&mut self, flush: usize) {
        let (CommandId(command), kind) = (self.flushes[flush], AckKind::Persisted);
        self.hear(&Reply::Ack(Ack { kind, code: Code::Ok, command, subscription: 0, detail: 0, reason: "" }));
    }

    /// The server answers all flushes.
    pub fn persist_all(&mut self) {
        (0..self.flushes.len()).for_each(|flush| self.persisted(flush));
    }

    /// The server cannot make durable what the client settled before a flush, counted from 0.
    pub fn not_persisted(&mut self, flush: usize) {
        let (CommandId(command), kind) = (self.flushes[flush], AckKind::Persisted);
        let code = Code::StorageFailed;
        self.hear(&Reply::Ack(Ack { kind, code, command, subscription: 0, detail: 0, reason: "" }));
    }

    pub fn pass(&mut self, duration: Duration) {
        self.now = self.now + duration;
        assert!(!self.core.handle_timeout(self.now));
    }

    /// The commands that the client has sent since the last call, as text.
    pub fn said(&mut self) -> Vec<String> {
        let mut bytes = Vec::new();
        self.core.poll_transmit(self.now, &mut bytes);
        let mut rest = &bytes[..];
        let mut said = Vec::new();
        while let Some(frame) = self.inbox.next(&mut rest).unwrap() {
            let frame = Command::decode(frame).unwrap();
            if let Command::Flush { command, .. } = frame {
                self.flushes.push(CommandId(command));
                if !self.shows_flushes {
                    continue;
                }
            }
            said.push(match frame {
                Command::Settle(settle) => {
                    self.asked.extend((settle.command != 0).then_some(settle.command));
                    let messages = match settle.messages {
                        Selection::Matching(filter) => format!("matching {filter:?}"),
                        Selection::Bookmarks(all) => format!("{:?}", all.iter().collect::<Vec<_>>()),
                    };
                    let because = if settle.reason.is_empty() { "" } else { " because " };
                    format!("{:?} {} {messages}{because}{}", settle.verdict, settle.queue, settle.reason)
                }
                Command::Extend(Extend { period_ms, queue, bookmarks, command, .. }) => {
                    self.asked.extend((command != 0).then_some(command));
                    format!("extend {queue} {period_ms} {:?}", bookmarks.iter().collect::<Vec<_>>())
                }
                Command::Unsubscribe(Unsubscribe { begun: Some(begun), .. }) => {
                    let named = begun
                        .iter()
                        .map(|(queue, bookmark)| format!("{} {bookmark:?}", queue.unwrap_or("?")));
                    format!("Unsubscribe begun [{}]", named.collect::<Vec<_>>().join(", "))
                }
                other => format!("{other:?}"),
            });
        }
        said
    }
}

fn message(subscription: u32, sequence: u64, queued: Queued<'_>) -> command::Message<'_> {
    command::Message {
        subscription,
        bookmark: Some((5, sequence)),
        timestamp_ns: 1,
        queued: Some(queued),
        topic: b"orders",
        correlation_id: b"c",
        headers: quire_types::Headers::NONE,
        key: b"",
        kind: command::MessageKind::Publish,
        data: b"{}",
    }
}

pub fn accepted(command: CommandId) -> Reply<'static> {
    let CommandId(command) = command;
    let kind = AckKind::Processed;
    Reply::Ack(Ack { kind, code: Code::Ok, command, subscription: 0, detail: 0, reason: "" })
}

pub fn batching(ack_batch_size: u32) -> ClientConfig {
    ClientConfig { ack_batch_size, ack_timeout: Duration::from_secs(1), ..config("worker") }
}

#[test]
fn a_message_says_what_its_queue_says() {
    let mut worker = Worker::new(batching(1), 10);
    let message = worker.deliver(1);
    let lease = message.lease().unwrap();
    assert_eq!((lease.queue(), lease.deliveries(), lease.cancels()), ("jobs", 2, 1));
    assert_eq!((lease.period(), lease.deadline()), (Some(LEASE), Some(worker.now + LEASE)));
    assert_eq!((message.topic(), message.source_topic()), (&b"jobs"[..], &b"orders"[..]));
    assert_eq!((message.correlation_id(), message.data()), (&b"c"[..], &b"{}"[..]));
}

#[test]
fn a_message_of_a_pattern_names_its_queue() {
    let mut worker = Worker::new(batching(1), 10);
    let queued = Queued { lease_ms: u64::MAX, queue: Some(b"other"), ..Queued::default() };
    worker.hear(&Reply::Message(message(worker.number, 1, queued)));
    let message = worker.messages().pop().unwrap();
    let lease = message.lease().unwrap();
    assert_eq!((lease.queue(), lease.period(), lease.deadline()), ("other", None, None));
    assert_eq!((message.topic(), message.source_topic()), (&b"other"[..], &b"orders"[..]));
    assert_eq!(message.data(), b"{}");
    worker.acknowledge(&message);
    assert_eq!(worker.said(), ["Acknowledge other [(5, 1)]"]);
}

#[test]
fn acknowledgements_go_out_when_there_is_a_batch_of_them() {
    let mut worker = Worker::new(batching(3), 10);
    let messages: Vec<Message> = (1..=4).map(|sequence| worker.deliver(sequence)).collect();
    assert!(worker.acknowledge(&messages[0]), "the driver must learn of the timer");
    assert!(!worker.acknowledge(&messages[1]));
    assert_eq!(worker.said(), [""; 0]);
    assert!(worker.acknowledge(&messages[2]));
    assert!(!worker.core.is_idle());
    assert_eq!(worker.said(), ["Acknowledge jobs [(5, 1), (5, 2), (5, 3)]"]);
    worker.acknowledge(&messages[3]);
    assert_eq!(worker.core.unconfirmed_count(), 4);
}

#[test]
fn a_batch_is_no_larger_than_the_backlog() {
    let mut worker = Worker::new(batching(80), 2);
    for sequence in 1..=2 {
        let message = worker.deliver(sequence);
        worker.acknowledge(&message);
    }
    assert_eq!(worker.said(), ["Acknowledge jobs [(5, 1), (5, 2)]"]);
}

#[test]
fn a_batch_is_no_larger_than_the_backlog_that_the_server_granted() {
    let mut worker = Worker::new(batching(80), 100);
    let spec = SubscriptionSpec { max_backlog: Some(100), ..SubscriptionSpec::new("jobs") };
    let command = worker.core.replace(worker.number, spec).unwrap();
    worker.said();
    worker.enter(command, 2);
    for sequence in 1..=2 {
        let message = worker.deliver(sequence);
        worker.acknowledge(&message);
    }
    assert_eq!(worker.said(), ["Acknowledge jobs [(5, 1), (5, 2)]"]);
}

#[test]
fn an_acknowledgement_waits_no_longer_than_it_may() {
    let mut worker = Worker::new(batching(80), 100);
    let message = worker.deliver(1);
    worker.acknowledge(&message);
    assert_eq!(worker.core.next_timeout(), Some(worker.now + Duration::from_secs(1)));
    worker.pass(Duration::from_millis(999));
    assert_eq!(worker.said(), [""; 0]);
    worker.pass(Duration::from_millis(1));
    assert_eq!(worker.said(), ["Acknowledge jobs [(5, 1)]"]);
    assert!(worker.core.next_timeout() > Some(worker.now + Duration::from_secs(1)), "that of the lease");
}

#[test]
fn flush_unsubscribe_and_close_send_what_waits_first() {
    let cases: [(Say, &str); 3] = [
        (|worker| drop(worker.core.flush()), "Flush"),
        (|worker| drop(worker.core.unsubscribe(worker.number)), "Unsubscribe"),
        (|worker| worker.core.close(), "Unsubscribe"),
    ];
    for (say, then) in cases {
        let mut worker = Worker::new(batching(80), 100);
        worker.shows_flushes = true;
        let message = worker.deliver(1);
        worker.acknowledge(&message);
        say(&mut worker);
        let said = worker.said();
        assert_eq!(said[0], "Acknowledge jobs [(5, 1)]", "{then}");
        assert!(said[1].starts_with(then), "{said:?}");
    }
}

#[test]
fn a_full_batch_goes_before_the_next_command() {
    let mut worker = Worker::new(batching(1), 10);
    let message = worker.deliver(1);
    worker.acknowledge(&message);
    worker.core.queue_stats(None).unwrap();
    let said = worker.said();
    assert_eq!(said[0], "Acknowledge jobs [(5, 1)]");
    assert!(said[1].starts_with("Stats"), "{said:?}");
}

#[test]
fn the_first_word_about_a_message_counts() {
    let mut worker = Worker::new(batching(1), 10);
    let message = worker.deliver(1);
    let lease = message.lease().unwrap().clone();
    assert_eq!(lease.verdict(), None);
    assert!(worker.core.settle(&lease, Verdict::Cancel, worker.now).unwrap());
    assert!(!worker.core.settle(&lease, Verdict::Expire, worker.now).unwrap());
    assert!(!worker.acknowledge(&message));
    assert_eq!(worker.said(), ["Cancel jobs [(5, 1)]"]);
    assert_eq!(lease.verdict(), Some(Verdict::Cancel));
    assert!(!lease.is_lost(worker.now + LEASE));
}

#[test]
fn what_is_said_after_the_lease_was_lost_is_sent_but_not_a_cancel() {
    let cases = [
        (Verdict::Acknowledge, vec!["Acknowledge jobs [(5, 1)]"]),
        (Verdict::Expire, vec!["Expire jobs [(5, 1)]"]),
        (Verdict::Cancel, vec![]),
    ];
    for (verdict, said) in cases {
        let mut worker = Worker::new(batching(1), 10);
        let message = worker.deliver(1);
        let lease = message.lease().unwrap().clone();
        assert!(!lease.is_lost(worker.now));
        let (subscription, reason) = (worker.number, LeaseEnd::Expired);
        worker.hear(&Reply::LeaseLost { subscription, reason, publisher: 5, sequence: 1, queue: None });
        assert!(lease.is_lost(worker.now));
        assert_eq!(worker.core.settle(&lease, verdict, worker.now).unwrap(), !said.is_empty());
        assert_eq!(worker.said(), said);
        assert!(lease.is_lost(worker.now), "another consumer may have the message");
        assert_eq!(lease.verdict(), Some(verdict));
        assert!(!worker.acknowledge(&message), "the first word counts");
        assert_eq!(worker.said(), [""; 0]);
    }
}

#[test]
fn a_late_acknowledgement_leaves_the_next_lease_on_the_message_as_it_is() {
    let mut worker = Worker::new(batching(80), 10);
    let first = worker.deliver(1);
    let (subscription, reason) = (worker.number, LeaseEnd::Expired);
    worker.hear(&Reply::LeaseLost { subscription, reason, publisher: 5, sequence: 1, queue: None });
    let second = worker.deliver(1);
    worker.acknowledge(&first);
    worker.hear(&Reply::LeaseLost { subscription, reason, publisher: 5, sequence: 1, queue: None });
    assert!(second.lease().unwrap().is_lost(worker.now));
}

#[test]
fn a_lease_is_over_when_its_time_is() {
    let mut worker = Worker::new(batching(1), 10);
    let message = worker.deliver(1);
    let lease = message.lease().unwrap();
    assert!(!lease.is_lost(Instant((worker.now + LEASE).0 - 1)));
    assert!(lease.is_lost(worker.now + LEASE));
    // The clocks differ by the time under way: the server may still take the word.
    assert!(worker.acknowledge(&message));
}

#[test]
fn leases_end_with_the_connection_and_what_was_said_is_sent_by_the_next_one() {
    let mut worker = Worker::new(batching(80), 100);
    let messages: Vec<Message> = (1..=4).map(|sequence| worker.deliver(sequence)).collect();
    worker.acknowledge(&messages[0]);
    worker.core.handle_disconnected(worker.now);
    assert!(messages[1].lease().unwrap().is_lost(worker.now));
    assert_eq!(worker.core.next_timeout(), None);
    worker.acknowledge(&messages[1]);
    worker.core.settle(messages[2].lease().unwrap(), Verdict::Cancel, worker.now).unwrap();
    assert!(worker.core.flush().is_err(), "it says once that the first may come again");
    worker.core.flush().unwrap();
    worker.pass(Duration::from_secs(60));
    worker.shows_flushes = true;
    worker.connect();
    let said = worker.said();
    assert_eq!(said[0], "Acknowledge jobs [(5, 1), (5, 2)]");
    assert!(said[1].starts_with("Subscribe") && said[2].starts_with("Flush"), "{said:?}");
    worker.acknowledge(&messages[3]);
    worker.pass(Duration::from_secs(1));
    assert_eq!(worker.said()[0], "Acknowledge jobs [(5, 4)]");
    assert!(messages.iter().skip(1).all(|message| message.lease().unwrap().is_lost(worker.now)));
}

#[test]
fn an_expiry_without_a_connection_is_sent_by_the_next_one() {
    let mut worker = Worker::new(batching(80), 100);
    let messages: Vec<Message> = (1..=3).map(|sequence| worker.deliver(sequence)).collect();
    worker.core.handle_disconnected(worker.now);
    worker.core.settle(messages[0].lease().unwrap(), Verdict::Expire, worker.now).unwrap();
    worker.acknowledge(&messages[1]);
    worker.core.settle(messages[2].lease().unwrap(), Verdict::Expire, worker.now).unwrap();
    assert_eq!(worker.core.unconfirmed_count(), 3);
    worker.connect();
    let said = worker.said();
    assert_eq!(said[..2], ["Expire jobs [(5, 1), (5, 3)]", "Acknowledge jobs [(5, 2)]"]);
    assert!(said[2].starts_with("Subscribe"), "{said:?}");
}

#[test]
fn a_client_whose_acknowledgements_wait_for_a_logon_has_nothing_to_write() {
    let mut worker = Worker::new(batching(80), 100);
    let message = worker.deliver(1);
    worker.acknowledge(&message);
    worker.core.handle_disconnected(worker.now);
    worker.core.handle_connected(worker.now);
    worker.inbox = Inbox::new(1 << 20);
    assert!(worker.said()[0].starts_with("Logon"));
    assert!(worker.core.is_idle(), "its thread would write in a loop");
    worker.core.close();
    assert!(worker.core.wants_close());
}

#[test]
fn a_message_has_begun_until_it_is_settled_or_lost() {
    let mut worker = Worker::new(batching(1), 10);
    let number = worker.number;
    let messages = [worker.deliver(1), worker.deliver(2)];
    assert!(!worker.core.has_begun(number), "the program has neither");
    assert!(worker.begin(&messages[0]));
    assert!(worker.core.has_begun(number));
    assert!(!worker.core.has_begun(number + 1), "another subscription");
    worker.acknowledge(&messages[0]);
    assert!(!worker.core.has_begun(number));
    assert!(worker.begin(&messages[1]));
    let lost = worker.now;
    worker.core.handle_disconnected(lost);
    assert!(!worker.core.has_begun(number));
}

#[test]
fn leases_go_back_with_their_subscription() {
    let mut worker = Worker::new(batching(1), 10);
    let message = worker.deliver(1);
    worker.core.unsubscribe(worker.number).unwrap();
    assert!(message.lease().unwrap().is_lost(worker.now));
}

#[test]
fn what_the_program_has_not_begun_is_released_with_the_subscription_or_the_client() {
    let cases: [(Say, usize); 2] =
        [(|worker| drop(worker.core.unsubscribe(worker.number)), 1), (|worker| worker.core.close(), 2)];
    for (end, frame_count) in cases {
        let mut worker = Worker::new(batching(80), 10);
        let messages: Vec<Message> = (1..=4).map(|sequence| worker.deliver(sequence)).collect();
        let leases: Vec<Arc<Lease>> =
            messages.iter().map(|message| message.lease().unwrap().clone()).collect();
        assert!([1, 2, 1].into_iter().all(|index| worker.core.begin(&leases[index], worker.now)));
        worker.core.settle(&leases[2], Verdict::Cancel, worker.now).unwrap();
        worker.said();
        end(&mut worker);
        let said = worker.said();
        assert_eq!((said.len(), &*said[0]), (frame_count, "Unsubscribe begun [jobs (5, 2)]"), "{said:?}");
        assert!(!worker.begin(&messages[0]) && !worker.begin(&messages[3]), "the program must not see them");
        assert!(leases.iter().all(|lease| lease.is_lost(worker.now) || lease.verdict().is_some()));
        let told = worker.core.settle(&leases[0], Verdict::Acknowledge, worker.now);
        assert_ne!(told, Ok(true), "nothing is said about what went back");
    }
}

#[test]
fn more_begun_messages_than_one_frame_takes_are_not_named() {
    let mut worker = Worker::new(batching(80), 5_000);
    for sequence in 1..=4_097 {
        let message = worker.deliver(sequence);
        assert!(worker.begin(&message));
    }
    worker.said();
    worker.core.unsubscribe(worker.number).unwrap();
    assert!(worker.said()[0].contains("begun: None"), "every message counts as begun");
}

#[test]
fn a_closed_client_refuses_the_first_verdict_on_a_message_with_a_lease() {
    let mut worker = Worker::new(batching(1), 10);
    let (held, done) = (worker.deliver(1), worker.deliver(2));
    worker.acknowledge(&done);
    worker.core.close();
    let (held, done) = (held.lease().unwrap().clone(), done.lease().unwrap().clone());
    for verdict in [Verdict::Acknowledge, Verdict::Cancel, Verdict::Expire] {
        let failure = worker.core.settle(&held, verdict, worker.now).unwrap_err();
        assert_eq!((failure.code.name(), held.verdict()), ("closed", None));
        assert_eq!(worker.core.settle(&done, verdict, worker.now), Ok(false), "it has a verdict");
    }
    assert!(worker.core.extend(&[held], None, worker.now).is_err());
}

#[test]
fn a_lease_can_be_extended_while_it_is_held() {
    let mut worker = Worker::new(batching(1), 10);
    let (held, done) = (worker.deliver(1), worker.deliver(2));
    assert!(worker.begin(&held));
    worker.acknowledge(&done);
    worker.said();
    let leases: Vec<Arc<Lease>> = [&held, &done].map(|message| message.lease().unwrap().clone()).into();
    worker.pass(Duration::from_secs(20));
    assert!(worker.core.extend(&leases, None, worker.now).unwrap());
    assert_eq!(worker.said(), ["extend jobs 0 [(5, 1)]"]);
    assert_eq!(leases[0].deadline(), Some(worker.now + LEASE));
    assert!(worker.core.extend(&leases, Some(Duration::from_secs(300)), worker.now).unwrap());
    assert_eq!(worker.said(), ["extend jobs 300000 [(5, 1)]"]);
    worker.pass(Duration::from_secs(300));
    assert!(!worker.core.extend(&leases, None, worker.now).unwrap(), "it is too late");
}

#[test]
fn by_filter_and_by_bookmark_it_is_answered_once() {
    let mut worker = Worker::new(batching(80), 100);
    let message = worker.deliver(1);
    worker.acknowledge(&message);
    let expire = worker.core.settle_matching("jobs", Verdict::Expire, "/a = 1", "").unwrap();
    let ack = worker
        .core
        .settle_bookmarks("jobs", Verdict::Acknowledge, &[message.bookmark().unwrap()], "")
        .unwrap();
    let said = worker.said();
    assert_eq!(
        said,
        ["Acknowledge jobs [(5, 1)]", "Expire jobs matching \"/a = 1\"", "Acknowledge jobs [(5, 1)]"]
    );
    worker.hear(&accepted(expire));
    worker.core.handle_disconnected(worker.now);
    let mut answers = Vec::new();
    while let Some(event) = worker.core.poll_event() {
        if let Event::Answered { command, result } = event {
            answers.push((command, result.map_err(|failure| failure.code)));
        }
    }
    assert_eq!(answers, [(expire, Ok(())), (ack, Err(FailureCode::Disconnected))]);
    worker.connect();
    let said = worker.said();
    assert_eq!(said[0], "Acknowledge jobs [(5, 1)]", "it was not known to be durable");
    assert!(said[1..].iter().all(|said| said.starts_with("Subscribe")), "{said:?}");
}

#[test]
fn a_reason_goes_with_its_messages_and_with_no_others() {
    let mut worker = Worker::new(batching(80), 100);
    let messages: Vec<Message> = (1..=6).map(|sequence| worker.deliver(sequence)).collect();
    worker.settle_because(&messages[0], Verdict::Cancel, "busy");
    worker.settle_because(&messages[1], Verdict::CancelWithDelay { delay_ms: 5 }, "later");
    worker.settle_because(&messages[2], Verdict::Cancel, "");
    assert_eq!(
        worker.said(),
        [
            "Cancel jobs [(5, 1)] because busy",
            "CancelWithDelay { delay_ms: 5 } jobs [(5, 2)] because later",
            "Cancel jobs [(5, 3)]"
        ]
    );
    // The second verdict does not count, and neither does its reason.
    worker.settle_because(&messages[0], Verdict::Expire, "no item");
    assert_eq!(worker.said(), [""; 0]);
    worker.settle_because(&messages[3], Verdict::Expire, "no item");
    assert_eq!(worker.said(), ["Expire jobs [(5, 4)] because no item"]);
    let bookmarks = [messages[4].bookmark().unwrap()];
    worker.core.settle_bookmarks("jobs", Verdict::Expire, &bookmarks, "by hand").unwrap();
    worker.core.settle_matching("jobs", Verdict::Cancel, "/a = 1", "all").unwrap();
    assert_eq!(
        worker.said(),
        ["Expire jobs [(5, 5)] because by hand", "Cancel jobs matching \"/a = 1\" because all"]
    );
}

#[test]
fn a_reason_waits_for_the_next_connection_with_its_expiry_and_is_sent_again() {
    let mut worker = Worker::new(batching(80), 100);
    let messages: Vec<Message> = (1..=5).map(|sequence| worker.deliver(sequence)).collect();
    worker.settle_because(&messages[0], Verdict::Expire, "no item");
    assert_eq!(worker.said(), ["Expire jobs [(5, 1)] because no item"]);
    worker.core.handle_disconnected(worker.now);
    worker.settle_because(&messages[1], Verdict::Expire, "no item");
    worker.settle_because(&messages[2], Verdict::Expire, "");
    worker.settle_because(&messages[3], Verdict::Expire, "no city");
    worker.acknowledge(&messages[4]);
    worker.connect();
    let expected = [
        "Expire jobs [(5, 1), (5, 2)] because no item",
        "Expire jobs [(5, 3)]",
        "Expire jobs [(5, 4)] because no city",
        "Acknowledge jobs [(5, 5)]",
    ];
    assert_eq!(worker.said()[..4], expected);
    // The server has not heard the expiry, and delivers the message again.
    worker.core.handle_disconnected(worker.now);
    worker.connect();
    assert_eq!(worker.said()[..4], expected);
    assert!(worker.deliver_again(4, 2).is_none());
    assert_eq!(worker.said(), ["Expire jobs [(5, 4)] because no city"]);
}

#[test]
fn a_server_that_takes_no_reasons_gets_the_commands_without_them() {
    let mut worker = Worker::new(batching(80), 100);
    let messages: Vec<Message> = (1..=3).map(|sequence| worker.deliver(sequence)).collect();
    worker.core.handle_disconnected(worker.now);
    worker.takes_reasons = false;
    worker.settle_because(&messages[0], Verdict::Expire, "no item");
    let command = worker.core.settle_matching("jobs", Verdict::Expire, "/a = 1", "all").unwrap();
    worker.connect();
    let said = worker.said();
    assert_eq!(said[0], "Expire jobs [(5, 1)]");
    assert_eq!(said.last().unwrap(), "Expire jobs matching \"/a = 1\"");
    worker.hear(&accepted(command));
    let message = worker.deliver(9);
    worker.settle_because(&message, Verdict::Cancel, "busy");
    assert_eq!(worker.said(), ["Cancel jobs [(5, 9)]"]);
}

#[test]
fn a_reason_that_is_too_long_is_refused_and_the_message_keeps_its_lease() {
    let mut worker = Worker::new(batching(80), 100);
    let message = worker.deliver(1);
    let longest = "x".repeat(REASON_SIZE_MAX);
    let too_long = format!("{longest}x");
    let failure = worker
        .core
        .settle_because(message.lease().unwrap(), Verdict::Cancel, &too_long, worker.now)
        .unwrap_err();
    assert_eq!(failure.code, FailureCode::from(Code::BadOption));
    assert!(worker.core.settle_matching("jobs", Verdict::Expire, "", &too_long).is_err());
    assert_eq!((worker.said(), message.lease().unwrap().verdict()), (vec![], None));
    worker.settle_because(&message, Verdict::Cancel, &longest);
    assert_eq!(worker.said(), [format!("Cancel jobs [(5, 1)] because {longest}")]);
}

#[test]
fn the_answers_of_a_query_come_under_its_number() {
    let mut worker = Worker::new(batching(1), 10);
    let spec = QuerySpec { topic: "jobs".into(), top_n: Some(2), ..QuerySpec::default() };
    let (number, command) = worker.core.query(&spec).unwrap();
    assert!(worker.said()[0].contains("top_n: Some(2)"));
    worker.hear(&accepted(command));
    worker.hear(&Reply::Message(message(number, 3, Queued::default())));
    let answer = worker.messages().pop().unwrap();
    assert_eq!((answer.subscription(), answer.lease().unwrap().period()), (number, None));
    assert_eq!(answer.cause(), Cause::Query);
    let CommandId(command) = command;
    let completed = Ack {
        kind: AckKind::Completed,
        code: Code::Ok,
        command,
        subscription: number,
        detail: 0,
        reason: "",
    };
    worker.hear(&Reply::Ack(completed));
    worker.hear(&Reply::Message(message(number, 4, Queued::default())));
    assert!(worker.messages().is_empty(), "it was answered");
    // Also what was only looked at can be settled.
    worker.acknowledge(&answer);
    assert_eq!(worker.said(), ["Acknowledge jobs [(5, 3)]"]);
}

#[test]
fn a_message_that_is_processed_in_turn_is_acknowledged_where_that_is_wanted() {
    let mut worker = Worker::new(batching(1), 10);
    let (first, second) = (worker.deliver(1), worker.deliver(2));
    assert_eq!(first.cause(), Cause::Publish);
    let mut progress = quire_client::SubscriptionProgress::new(BTreeSet::new(), true);
    progress.hand_out_in_turn(&first);
    // A handler says itself when it has processed a message.
    progress.hand_out(&second);
    let leases = progress.take_leases();
    assert_eq!(leases.len(), 1);
    assert!(Arc::ptr_eq(&leases[0], first.lease().unwrap()));
    assert!(progress.take_leases().is_empty(), "each is acknowledged once");
    let mut other = quire_client::SubscriptionProgress::new(BTreeSet::new(), false);
    other.hand_out_in_turn(&first);
    assert!(!other.acknowledges() && other.take_leases().is_empty());
}

#[test]
fn the_figures_of_queues_come_before_their_answer() {
    let mut worker = Worker::new(batching(1), 10);
    let command = worker.core.queue_stats(Some("jobs")).unwrap();
    while worker.core.poll_event().is_some() {}
    worker.hear(&Reply::Stats { command: command.0, json: "{}" });
    assert!(
        matches!(worker.core.poll_event(), Some(Event::JsonReply { command: asked, json }) if asked == command && json == "{}")
    );
    assert!(
        matches!(worker.core.poll_event(), Some(Event::Answered { command: asked, result: Ok(()) }) if asked == command)
    );
}

#[test]
fn the_client_asks_by_itself_whether_what_it_settled_is_durable() {
    let mut worker = Worker::new(batching(1), 10);
    let messages: Vec<Message> = (1..=2).map(|sequence| worker.deliver(sequence)).collect();
    worker.acknowledge(&messages[0]);
    worker.said();
    worker.acknowledge(&messages[1]);
    worker.said();
    assert_eq!((worker.flushes.len(), worker.core.unconfirmed_count()), (1, 2), "one question at a time");
    worker.persisted(0);
    assert_eq!(worker.core.unconfirmed_count(), 1);
    worker.said();
    worker.persisted(1);
    assert_eq!((worker.flushes.len(), worker.core.unconfirmed_count()), (2, 0));
    assert!(worker.core.is_idle());
    worker.core.handle_disconnected(worker.now);
    assert!(worker.core.flush().is_ok(), "nothing was lost");
}

#[test]
fn a_flush_does_not_promise_what_was_lost_with_the_connection() {
    for asked_before in [true, false] {
        let mut worker = Worker::new(batching(80), 100);
        let messages: Vec<Message> = (1..=2).map(|sequence| worker.deliver(sequence)).collect();
        worker.acknowledge(&messages[0]);
        if asked_before {
            let flush = worker.core.flush().unwrap();
            worker.said();
            worker.core.handle_disconnected(worker.now);
            let mut answers = Vec::new();
            while let Some(event) = worker.core.poll_event() {
                if let Event::Answered { command, result } = event {
                    answers.push((command, result.unwrap_err().code));
                }
            }
            assert_eq!(answers, [(flush, FailureCode::Disconnected)]);
        } else {
            worker.core.handle_disconnected(worker.now);
            assert_eq!(worker.core.flush().unwrap_err().code, FailureCode::Disconnected);
        }
        assert!(worker.core.flush().is_ok(), "it was said once");
    }
}

#[test]
fn what_a_flush_has_confirmed_is_not_lost_with_the_connection() {
    for last_question_is_answered in [true, false] {
        let mut worker = Worker::new(batching(1), 10);
        let message = worker.deliver(1);
        worker.acknowledge(&message);
        let flush = worker.core.flush().unwrap();
        worker.said();
        // The client's question after the acknowledgement, and the flush.
        assert_eq!((worker.flushes.len(), worker.core.unconfirmed_count()), (2, 1));
        let flush = worker.flushes.iter().position(|command| *command == flush).unwrap();
        worker.persisted(flush);
        assert_eq!(worker.core.unconfirmed_count(), 0);
        let later = worker.deliver(2);
        worker.acknowledge(&later);
        if last_question_is_answered {
            worker.persisted(1 - flush);
            assert_eq!(worker.core.unconfirmed_count(), 1, "that question was about the first one only");
        }
        worker.core.handle_disconnected(worker.now);
        let lost = worker.core.flush().unwrap_err();
        assert!(lost.reason.contains("before 1 settled"), "{}", lost.reason);
    }
}

#[test]
fn a_flush_after_a_settled_message_sends_its_command() {
    let mut worker = Worker::new(batching(1), 10);
    worker.shows_flushes = true;
    let message = worker.deliver(1);
    worker.acknowledge(&message);
    worker.said();
    let publish = message_of("orders", "{}", Sequence::Auto);
    worker.core.publish(&publish).unwrap();
    worker.said();
    let flush = worker.core.flush().unwrap();
    worker.said();
    assert!(worker.flushes.contains(&flush), "the acknowledgement of the publish does not tell of it");
    worker.persisted(0);
    worker.persisted(1);
    assert_eq!(worker.core.unconfirmed_count(), 0);
    worker.core.publish(&publish).unwrap();
    worker.said();
    worker.core.flush().unwrap();
    assert!(worker.core.is_idle(), "every settle before is known to be durable");
}
