//! A connection between two instances. It carries a link in each direction, whichever of the two
//! instances has made it, once that one has logged on (docs/protocol.md, *Links between
//! instances*).

use quire_types::time::Instant;

use super::incoming::Incoming;
use super::outgoing::{Outgoing, Shared};
use crate::context::Context;
use crate::io::ConnectionId;
use quire_link::{LoggingOn, MemberInfo};
use quire_wire::link::{BadFrame, FRAME_OVERHEAD_MAX, Frame, Member, Piece, Role, Splitter, next_frame};

pub(super) struct Connection {
    pub(super) id: ConnectionId,
    /// Whether it is encrypted.
    pub(super) tls: bool,
    /// The destination for which this instance has made it; `None`: the other one has made it.
    pub(super) made_for: Option<usize>,
    /// The logon, until it is over.
    pub(super) logon: Option<LoggingOn>,
    /// The numbers of the links of this instance that cannot use it: its user may not have their
    /// topics.
    pub(super) denied_links: Vec<usize>,
    splitter: Splitter,
    /// The frames for the link to the other instance that are not taken yet.
    answers: Vec<u8>,
    /// The link from the other instance.
    pub(super) incoming: Incoming,
    /// The name of the other instance and the number of its log, when it has introduced itself.
    pub(super) peer: Option<(String, u64)>,
    /// The members that it told last, itself first.
    pub(super) members: Vec<MemberInfo>,
    /// The version of the members that the other instance was told.
    pub(super) told: u64,
    /// The frames for the connection that are not taken yet.
    news: Vec<u8>,
    /// Bytes that are counted among the unfinished frames of all connections.
    counted_size: usize,
}

impl Connection {
    pub(super) fn new(
        (id, tls): (ConnectionId, bool),
        made_for: Option<usize>,
        logon: LoggingOn,
        incoming: Incoming,
    ) -> Self {
        Connection {
            id,
            tls,
            made_for,
            logon: Some(logon),
            denied_links: Vec::new(),
            splitter: Splitter::default(),
            answers: Vec::new(),
            incoming,
            peer: None,
            members: Vec::new(),
            told: 0,
            news: Vec::new(),
            counted_size: 0,
        }
    }

    /// Takes what came. The frames for the link from the other instance wait there for the run
    /// loop.
    ///
    /// # Errors
    /// The peer does not speak the protocol: nothing more can be taken.
    pub(super) fn receive(&mut self, now: Instant, mut bytes: &[u8]) -> Result<(), BadFrame> {
        self.incoming.heard(now);
        while let Some(Piece { role, head, body }) = self.splitter.next(&mut bytes)? {
            let head = head.as_ref().map_or(&[][..], |head| &head[..]);
            match role {
                Role::Source => {
                    [head, body].into_iter().for_each(|part| self.answers.extend_from_slice(part))
                }
                Role::Destination => [head, body].into_iter().for_each(|part| self.incoming.receive(part)),
                Role::Either => [head, body].into_iter().for_each(|part| self.news.extend_from_slice(part)),
            }
        }
        Ok(())
    }

    /// Counts the bytes that wait here among the unfinished frames of all connections.
    ///
    /// # Errors
    /// They lift the sum above its limit: the reason.
    pub(super) fn count(&mut self, cx: &mut Context) -> Result<(), String> {
        let logon_size = self.logon.as_ref().map_or(0, LoggingOn::waiting_size);
        let size = self.answers.len() + self.news.len() + self.incoming.waiting_size() + logon_size;
        let grows = size > self.counted_size;
        let all = &mut cx.clients.sessions.unfinished_size;
        *all = *all - self.counted_size + size;
        self.counted_size = size;
        let limit = cx.config.limits.max_unfinished;
        match grows && *all as u64 > limit {
            true => Err(format!("max_unfinished: {limit} bytes of unfinished frames are kept already")),
            false => Ok(()),
        }
    }

    /// The connection for a link of this instance to the other one. `None`: its user may not have
    /// the topics of the link. Both instances log it.
    pub(super) fn share(&mut self, cx: &mut Context, link: &mut Outgoing) -> Option<Shared> {
        if let Err(reason) = link.check_user(cx, &mut self.incoming.user) {
            self.denied_links.push(link.number);
            self.send(cx, &Frame::Ended { reason: &reason });
            return None;
        }
        let (address, user) = (self.incoming.peer().to_owned(), self.incoming.user.copy());
        Some(Shared { connection: self.id, address, user })
    }

    /// Takes the frames for the connection: the members that the other instance knows, when they
    /// have changed.
    ///
    /// # Errors
    /// As [`Connection::receive`].
    pub(super) fn take_news(&mut self) -> Result<Option<Vec<MemberInfo>>, BadFrame> {
        let (mut taken_size, mut told) = (0, None);
        while let Some((frame, size)) = next_frame(&self.news[taken_size..], FRAME_OVERHEAD_MAX)? {
            taken_size += size;
            if let Frame::Members(members) = frame {
                told = Some(members.iter().map(MemberInfo::of_frame).collect());
            }
        }
        self.news.drain(..taken_size);
        Ok(told)
    }

    /// Tells the other instance the members that are known here.
    pub(super) fn tell(&self, cx: &mut Context, members: Vec<Member<'_>>) {
        self.send(cx, &Frame::Members(members));
    }

    /// The connection is gone: its bytes count no longer.
    pub(super) fn forget(&mut self, cx: &mut Context) {
        cx.clients.sessions.unfinished_size -= std::mem::take(&mut self.counted_size);
    }

    /// Takes the frames for the link to the other instance.
    ///
    /// # Errors
    /// As [`Connection::receive`].
    pub(super) fn take_answers(&mut self, mut take: impl FnMut(&Frame<'_>)) -> Result<(), BadFrame> {
        let mut taken_size = 0;
        while let Some((frame, size)) = next_frame(&self.answers[taken_size..], FRAME_OVERHEAD_MAX)? {
            taken_size += size;
            take(&frame);
        }
        self.answers.drain(..taken_size);
        Ok(())
    }
}
