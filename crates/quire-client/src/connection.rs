//! One connection of a client: a partly received frame, the messages, the replies about the
//! connection itself, and the timers. `replies.rs` takes the other replies.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quire_types::Secret;

use super::lease::Lease;
use super::leases::Unwanted;
use super::message::Message;
use super::{ClientConfig, ClientCore, ConnectionState, Event, Failure};
use quire_command::{Code, Command, Logon, Reply};
use quire_types::time::Instant;
use quire_wire::{
    Decode, Encode, Inbox, LOGON_FRAME_SIZE_MAX, RawFrame, SERVER_FRAME_SIZE_MAX, VERSION, WireError,
};

pub(super) struct Connection {
    inbox: Inbox,
    /// The largest frame that the server may send, in bytes.
    frame_size_max: usize,
    heartbeat: Option<Duration>,
    last_received: Instant,
    last_sent: Instant,
    /// Since then the client does not read, and bytes may wait. A lease in them began at that time
    /// at the earliest.
    unread_since: Option<Instant>,
}

impl Connection {
    pub fn new(config: &ClientConfig, now: Instant) -> Self {
        Connection {
            inbox: Inbox::new(LOGON_FRAME_SIZE_MAX),
            frame_size_max: LOGON_FRAME_SIZE_MAX,
            heartbeat: config.heartbeat,
            last_received: now,
            last_sent: now,
            unread_since: None,
        }
    }

    /// The first frame of the client.
    pub fn logon(config: &ClientConfig, connection_number: u32, run: u64, persisted: u64) -> Vec<u8> {
        let mut frame = Vec::new();
        let milliseconds = |duration: Duration| u32::try_from(duration.as_millis()).unwrap_or(u32::MAX);
        Command::Logon(Logon {
            version: VERSION,
            client_name: &config.name,
            user: config.user.as_deref(),
            password: config.password.as_ref().map(|password| Secret(&*password.0)),
            token: config.token.as_ref().map(|token| Secret(&*token.0)),
            heartbeat_ms: config.heartbeat.map_or(0, milliseconds),
            ack_interval_ms: milliseconds(config.ack_interval),
            client_version: Some(env!("CARGO_PKG_VERSION")),
            incarnation: config.incarnation,
            connection_number,
            run,
            persisted,
            observes: config.observes,
        })
        .encode(&mut frame);
        frame
    }

    /// Bytes were given to the driver.
    pub fn sent(&mut self, now: Instant) {
        self.last_sent = now;
    }

    /// Decodes all complete frames, and reports them to `core`.
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
        core.give_back_retired();
        core.leases.report(now, &mut core.events);
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
        // The server may send heartbeats before it, because a logon can wait for the disk.
        let may_be_first = matches!(frame, Reply::LoggedOn(_) | Reply::Error { .. } | Reply::Heartbeat);
        if !core.is_up() && !may_be_first {
            return Err(WireError::Malformed { frame: "first frame", field: "kind" });
        }
        if let Reply::Message(message) = &frame {
            if let Ok(lease) = self.lease_of(now, message, core) {
                run.push(Message::new(shared(bytes, raw.body), message, lease), core);
            }
            return Ok(());
        }
        run.end(core);
        match frame {
            Reply::Heartbeat => (),
            Reply::LoggedOn(logged_on) => {
                core.reach_instance(logged_on.instance);
                self.frame_size_max = SERVER_FRAME_SIZE_MAX;
                core.logged_on(now, &logged_on);
            }
            Reply::Error { code, reason } => {
                let is_first = !core.is_up() && *core.state() == ConnectionState::Connecting;
                let is_temporary = matches!(code, Code::AuthenticationUnavailable | Code::NotReady);
                let is_final = ends_for_good(code) || (is_first && !is_temporary);
                if is_final && !core.renews_token(code, reason) {
                    core.finish(Some(Failure::new(code, reason)));
                }
                core.ending();
                core.events.push_back(Event::ConnectionEnded { code, reason: reason.to_owned() });
            }
            reply => core.take_reply(reply),
        }
        Ok(())
    }

    /// The lease of a message; `None` when it has none.
    ///
    /// # Errors
    /// The program must not see the message.
    #[inline]
    fn lease_of(
        &self,
        now: Instant,
        message: &quire_command::Message<'_>,
        core: &mut ClientCore,
    ) -> Result<Option<Arc<Lease>>, Unwanted> {
        let Some(queued) = &message.queued else { return Ok(None) };
        let ClientCore { leases, subscriptions, .. } = core;
        // The end of a subscription returns its messages.
        let custody = subscriptions.custody(message.subscription).ok_or(Unwanted)?;
        let queue = || subscriptions.queue(message.subscription).cloned();
        let arrived = self.unread_since.unwrap_or(now);
        leases.received(arrived, message, queued, custody, queue)
    }

    /// The client does not read for now. The server does not count as silent.
    pub fn unread(&mut self, now: Instant) {
        self.last_received = now;
        self.unread_since.get_or_insert(now);
    }

    /// All waiting bytes were read.
    pub fn emptied(&mut self) {
        self.unread_since = None;
    }

    /// `is_up`: the client is logged on. It sends no heartbeats before.
    pub fn next_timeout(&self, is_up: bool) -> Option<Instant> {
        let heartbeat = self.heartbeat?;
        let silence = self.last_received + heartbeat * 2;
        Some(if is_up { silence.min(self.last_sent + heartbeat) } else { silence })
    }

    /// Whether the server has been silent for two intervals.
    pub fn is_silent(&self, now: Instant) -> bool {
        self.heartbeat.is_some_and(|heartbeat| now >= self.last_received + heartbeat * 2)
    }

    /// Whether a heartbeat is to be sent now, because nothing was sent for an interval. It counts
    /// as sent.
    pub fn begin_heartbeat(&mut self, now: Instant) -> bool {
        let is_due = self.heartbeat.is_some_and(|heartbeat| now >= self.last_sent + heartbeat);
        if is_due {
            self.last_sent = now;
        }
        is_due
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

/// `body` as shared bytes: a slice of `bytes` when it is a part of it. Otherwise (a frame that
/// arrived in pieces) a copy.
fn shared(bytes: &Bytes, body: &[u8]) -> Bytes {
    let (start, end) = (bytes.as_ptr() as usize, bytes.as_ptr() as usize + bytes.len());
    let at = body.as_ptr() as usize;
    if at >= start && at + body.len() <= end { bytes.slice_ref(body) } else { Bytes::copy_from_slice(body) }
}

/// Consecutive messages of one subscription, which are passed on together.
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
