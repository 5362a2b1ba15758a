//! One connection of a client: its bytes to write, a partly received frame, and its timers.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use quire_types::{Bookmark, PublisherId};

use super::command::CommandId;
use super::message::Message;
use super::publish::PublishStore;
use super::subscription::CaughtUp;
use super::{ClientConfig, ClientCore, Event, Failure, State};
use quire_command::{AckKind, Code, Command, Logon, Reply};
use quire_types::time::Instant;
use quire_wire::{
    Decode, Encode, FRAME_OVERHEAD_MAX, Inbox, LOGON_FRAME_SIZE_MAX, RawFrame, VERSION, WireError,
};

pub(super) struct Connection {
    inbox: Inbox,
    /// The largest frame that the server may send, in bytes.
    frame_size_max: usize,
    /// The first frame shows whether the logon was accepted. Until then only the logon is sent.
    up: bool,
    /// Bytes other than publishes. Each entry is sent when the store was sent up to its offset.
    control: VecDeque<(u64, Vec<u8>)>,
    heartbeat: Option<Duration>,
    last_received: Instant,
    last_sent: Instant,
}

impl Connection {
    pub fn new(config: &ClientConfig, now: Instant) -> Self {
        Connection {
            inbox: Inbox::new(LOGON_FRAME_SIZE_MAX),
            frame_size_max: LOGON_FRAME_SIZE_MAX,
            up: false,
            control: VecDeque::new(),
            heartbeat: config.heartbeat,
            last_received: now,
            last_sent: now,
        }
    }

    pub fn is_up(&self) -> bool {
        self.up
    }

    pub fn set_up(&mut self) {
        self.up = true;
    }

    pub fn log_on(&mut self, config: &ClientConfig, connection_number: u32) {
        let mut frame = Vec::new();
        let milliseconds = |duration: Duration| u32::try_from(duration.as_millis()).unwrap_or(u32::MAX);
        Command::Logon(Logon {
            version: VERSION,
            client_name: &config.name,
            user: config.user.as_deref(),
            password: config.password.as_deref(),
            heartbeat_ms: config.heartbeat.map_or(0, milliseconds),
            ack_interval_ms: milliseconds(config.ack_interval),
            client_version: Some(env!("CARGO_PKG_VERSION")),
            incarnation: config.incarnation,
            connection_number,
        })
        .encode(&mut frame);
        self.control.push_back((0, frame));
    }

    /// To be sent after the publishes up to the offset `after`.
    pub fn queue_bytes(&mut self, after: u64, bytes: &[u8]) {
        match self.control.back_mut() {
            Some((last, frames)) if *last == after => frames.extend_from_slice(bytes),
            _ => self.control.push_back((after, bytes.to_vec())),
        }
    }

    /// As [`Self::queue_bytes`], when there is a frame.
    fn queue_some(&mut self, after: u64, frame: Option<Vec<u8>>) {
        if let Some(frame) = frame {
            self.queue_bytes(after, &frame);
        }
    }

    pub fn say_goodbye(&mut self, after: u64) {
        if self.up {
            let mut frame = Vec::new();
            Command::Goodbye.encode(&mut frame);
            self.queue_bytes(after, &frame);
        }
    }

    pub fn transmit(&mut self, now: Instant, store: &mut PublishStore, out: &mut Vec<u8>, size: usize) {
        let start = out.len();
        loop {
            match self.control.front() {
                Some((after, _)) if *after <= store.sent() || !self.up => {
                    if let Some((_, bytes)) = self.control.pop_front() {
                        out.extend_from_slice(&bytes);
                    }
                }
                _ if !self.up => break,
                front => {
                    let until = front.map_or(u64::MAX, |(after, _)| *after);
                    let (before, room) = (out.len(), size.saturating_sub(out.len() - start));
                    store.take(out, until, room);
                    if out.len() == before {
                        break;
                    }
                }
            }
        }
        if out.len() > start {
            self.last_sent = now;
        }
    }

    pub fn is_idle(&self, store: &PublishStore) -> bool {
        self.control.is_empty() && (!self.up || store.sent() == store.end())
    }

    /// Decodes everything that is whole, and reports it to `core`.
    pub fn receive(&mut self, now: Instant, bytes: Bytes, core: &mut ClientCore) -> Result<(), WireError> {
        self.last_received = now;
        let mut inbox = std::mem::replace(&mut self.inbox, Inbox::new(0));
        let mut run = Run::default();
        let mut rest = &bytes[..];
        let result = loop {
            match inbox.next(&mut rest) {
                Ok(Some(frame)) => {
                    if let Err(error) = self.frame(now, frame, &bytes, &mut run, core) {
                        break Err(error);
                    }
                    inbox.set_frame_size_max(self.frame_size_max);
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        run.end(core);
        self.inbox = inbox;
        result
    }

    fn frame(
        &mut self,
        now: Instant,
        raw: RawFrame<'_>,
        bytes: &Bytes,
        run: &mut Run,
        core: &mut ClientCore,
    ) -> Result<(), WireError> {
        let frame = Reply::decode(raw)?;
        // Heartbeats come before it when a logon has to wait for the disk.
        let may_be_first = matches!(frame, Reply::LoggedOn(_) | Reply::Error { .. } | Reply::Heartbeat);
        if !self.up && !may_be_first {
            return Err(WireError::Malformed { frame: "first frame", field: "kind" });
        }
        if let Reply::Message(message) = &frame {
            let ClientCore { leases, subscriptions, .. } = core;
            let queue = || subscriptions.queue(message.subscription).cloned();
            let lease = message.queued.and_then(|queued| leases.received(now, message, &queued, queue));
            run.push(Message::new(shared(bytes, raw.body), message, lease), core);
            return Ok(());
        }
        run.end(core);
        match frame {
            Reply::Message(_) | Reply::Heartbeat => (),
            Reply::LeaseLost { subscription, reason: _, publisher, sequence } => {
                core.leases.lost(subscription, publisher, sequence);
            }
            Reply::Stats { command, json } => {
                let ClientCore { commands, subscriptions, events, .. } = core;
                let command = CommandId(command);
                events.push_back(Event::Told { command, json: json.to_owned() });
                commands.answered(command, Ok(()), subscriptions, events);
            }
            Reply::JournalFile { command, json } => {
                core.events.push_back(Event::Told { command: CommandId(command), json: json.to_owned() });
            }
            Reply::Persisted { sequence } => core.persisted_up_to(sequence),
            Reply::Ack(ack) => {
                let result = match ack.code {
                    Code::Ok => Ok(()),
                    code => {
                        Err(Failure { code: code.into(), reason: ack.reason.to_owned(), column: ack.detail })
                    }
                };
                match ack.kind {
                    AckKind::Completed => {
                        let subscription = ack.subscription;
                        let after = core.store.end();
                        match core.subscriptions.completed(subscription) {
                            CaughtUp::Told => {
                                core.events.push_back(Event::Completed { subscription, total: None });
                            }
                            CaughtUp::Again => (),
                            CaughtUp::Query => {
                                let total = Some(ack.detail.into());
                                core.events.push_back(Event::Completed { subscription, total });
                                core.events.push_back(Event::Ended { subscription, failure: None });
                            }
                            CaughtUp::Records => self.queue_some(after, core.ask_about_lost(subscription)),
                            CaughtUp::Question => self.queue_some(after, core.finish_question(subscription)),
                        }
                    }
                    AckKind::Received => (),
                    AckKind::Processed | AckKind::Persisted => {
                        let command = CommandId(ack.command);
                        match result {
                            Err(failure) if !core.commands.is_waiting(command) => {
                                let after = core.store.end();
                                self.queue_some(after, core.refused_later(command, failure));
                            }
                            result => {
                                let ClientCore { commands, subscriptions, events, .. } = core;
                                if result.is_ok() {
                                    events.extend(subscriptions.entered(ack.subscription, ack.detail));
                                    if command.is_delete() && commands.is_waiting(command) {
                                        events
                                            .push_back(Event::Told { command, json: ack.detail.to_string() });
                                    }
                                }
                                commands.answered(command, result, subscriptions, events);
                            }
                        }
                    }
                }
            }
            Reply::LoggedOn(logged_on) => {
                core.reach_instance(logged_on.instance);
                self.frame_size_max = logged_on.message_size_max as usize + FRAME_OVERHEAD_MAX;
                core.logged_on(self, &logged_on);
            }
            Reply::PublishFailed { sequence, code, scope, reason } => {
                core.publish_failed(sequence, scope, Failure::new(code, reason));
            }
            Reply::ResumePosition { publisher, sequence, subscriptions } => {
                let bookmark = Bookmark { publisher: PublisherId(publisher), sequence };
                for subscription in subscriptions.iter() {
                    core.subscriptions.told(subscription, bookmark, &core.instance);
                }
            }
            Reply::SubscriptionEnded { subscription, code, reason } => {
                if core.subscriptions.remove(subscription) {
                    let failure = (code != Code::Ok).then(|| Failure::new(code, reason));
                    core.events.push_back(Event::Ended { subscription, failure });
                }
            }
            Reply::Error { code, reason } => {
                if ends_for_good(code) || (!self.up && *core.state() == State::Connecting) {
                    core.finish(Some(Failure::new(code, reason)));
                }
                core.events.push_back(Event::ConnectionEnded { reason: reason.to_owned() });
            }
        }
        Ok(())
    }

    /// Nothing is read for now: the server is not silent.
    pub fn unread(&mut self, now: Instant) {
        self.last_received = now;
    }

    pub fn next_timeout(&self) -> Option<Instant> {
        let heartbeat = self.heartbeat?;
        Some((self.last_sent + heartbeat).min(self.last_received + heartbeat * 2))
    }

    /// True when the server has been silent for two intervals.
    pub fn tick(&mut self, now: Instant, after: u64) -> bool {
        let Some(heartbeat) = self.heartbeat else { return false };
        if now >= self.last_received + heartbeat * 2 {
            return true;
        }
        if self.up && now >= self.last_sent + heartbeat {
            let mut frame = Vec::new();
            Command::Heartbeat.encode(&mut frame);
            self.queue_bytes(after, &frame);
            self.last_sent = now;
        }
        false
    }
}

/// A client that receives this code does not reconnect automatically.
fn ends_for_good(code: Code) -> bool {
    matches!(
        code,
        Code::NameInUse
            | Code::AuthenticationFailed
            | Code::NotEntitled
            | Code::UnsupportedVersion
            | Code::InvalidFrame
            | Code::LogonRequired
            | Code::DuplicateLogon
            | Code::MessageTooLarge
    )
}

/// `body` as shared bytes: a slice of `bytes` when it is a part of it. Otherwise (a frame that arrived in pieces) a copy.
fn shared(bytes: &Bytes, body: &[u8]) -> Bytes {
    let (start, end) = (bytes.as_ptr() as usize, bytes.as_ptr() as usize + bytes.len());
    let at = body.as_ptr() as usize;
    if at >= start && at + body.len() <= end { bytes.slice_ref(body) } else { Bytes::copy_from_slice(body) }
}

/// Messages of one subscription that came one after the other: handed on together.
#[derive(Default)]
struct Run {
    messages: Vec<Message>,
}

impl Run {
    fn push(&mut self, message: Message, core: &mut ClientCore) {
        if self.messages.first().is_some_and(|first| first.subscription() != message.subscription()) {
            self.end(core);
        }
        self.messages.push(message);
    }

    fn end(&mut self, core: &mut ClientCore) {
        let Some(subscription) = self.messages.last().map(Message::subscription) else { return };
        let mut messages = std::mem::take(&mut self.messages);
        if core.subscriptions.contains(subscription) {
            let subscription = core.subscriptions.received(subscription, &mut messages, &core.instance);
            if !messages.is_empty() {
                core.events.push_back(Event::Messages { subscription, messages });
            }
        }
    }
}
