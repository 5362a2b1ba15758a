//! The parts of frames that are about the instances which replicate to each other, and about their
//! logs (docs/internals/copies.md, *States, and when clients are let in*).

use quire_types::{Bookmark, Position, PublisherId};

use super::{BadFrame, put_text, put_u32, put_u64, take_text, take_u8, take_u32, take_u64};

/// The most instances in one frame: more than replicate to each other.
pub const MEMBERS_MAX: usize = 128;

/// The most names in the configuration of one instance.
pub const NAMED_MAX: usize = 128;

/// An instance, as the sender of the frame knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its group.
    pub group: &'a str,
    /// When its process started, in nanoseconds since 1970.
    pub started_ns: u64,
    /// The number of its log.
    pub log: u64,
    /// Its log may lack records.
    pub is_filling: bool,
    /// The instances that its configuration names.
    pub named: Vec<Named<'a>>,
    /// The last message that is known to be in its log.
    pub last: Option<Bookmark>,
}

/// A name in the configuration of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named<'a> {
    /// A destination with this name.
    Destination(&'a str),
    /// A destination: any instance of the group.
    Group(&'a str),
    /// An instance to which it does not send.
    Instance(&'a str),
}

/// An instance has sent everything that it had, over the link or over others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentAll<'a> {
    /// The instance; empty: the sender has sent everything that it had at `welcome`.
    pub origin: &'a str,
    /// The instance whose log is filling.
    pub of: &'a str,
    /// The number of that log.
    pub log: u64,
    /// The link sends everything that can be missing at the destination.
    pub is_whole: bool,
    /// The numbers of the logs that the origin knew.
    pub known: Vec<(&'a str, u64)>,
}

/// A position of the log of an instance: everything up to it comes before the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownPlace<'a> {
    /// The instance.
    pub instance: &'a str,
    /// The number of its log.
    pub log: u64,
    /// The position.
    pub position: Position,
}

/// Records of another instance that the source has, and that the link does not pass on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequiredPlace<'a> {
    /// The instance that sent them to the source.
    pub instance: &'a str,
    /// The number of the log of that instance.
    pub log: u64,
    /// Its records that were published there are below this position of its log, or at it.
    pub own: Position,
    /// Its other records are.
    pub passed_on: Position,
}

/// The places of instances at one point of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentPlaces<'a> {
    /// The number of the log of the source.
    pub log: u64,
    /// The position up to which the source has looked at it.
    pub position: Position,
    /// Everything of other instances up to these positions is in the log of the source up to
    /// `position`.
    pub known: Vec<KnownPlace<'a>>,
    /// The destination must have these records from others. `None`: the source does not know them
    /// yet, and the frame only says of which log its records are.
    pub required: Option<Vec<RequiredPlace<'a>>>,
}

pub(super) fn put_places(out: &mut Vec<u8>, sent: &SentPlaces<'_>) {
    put_u64(out, sent.log);
    put_u64(out, sent.position.get());
    let known = &sent.known[..sent.known.len().min(MEMBERS_MAX)];
    put_u32(out, known.len() as u32);
    for KnownPlace { instance, log, position } in known {
        put_text(out, instance);
        [*log, position.get()].into_iter().for_each(|number| put_u64(out, number));
    }
    out.push(sent.required.is_some().into());
    let required = sent.required.as_deref().unwrap_or_default();
    let required = &required[..required.len().min(MEMBERS_MAX)];
    put_u32(out, required.len() as u32);
    for RequiredPlace { instance, log, own, passed_on } in required {
        put_text(out, instance);
        [*log, own.get(), passed_on.get()].into_iter().for_each(|number| put_u64(out, number));
    }
}

pub(super) fn take_places<'a>(body: &mut &'a [u8]) -> Result<SentPlaces<'a>, BadFrame> {
    let (log, position) = (take_u64(body)?, Position::new(take_u64(body)?));
    let mut sent = SentPlaces { log, position, ..SentPlaces::default() };
    for _ in 0..take_count(body, MEMBERS_MAX, BadFrame("more places than instances"))? {
        let (instance, log) = (take_text(body)?, take_u64(body)?);
        sent.known.push(KnownPlace { instance, log, position: Position::new(take_u64(body)?) });
    }
    let is_known = take_u8(body)? != 0;
    let mut required = Vec::new();
    for _ in 0..take_count(body, MEMBERS_MAX, BadFrame("more required places than instances"))? {
        let (instance, log) = (take_text(body)?, take_u64(body)?);
        let (own, passed_on) = (Position::new(take_u64(body)?), Position::new(take_u64(body)?));
        required.push(RequiredPlace { instance, log, own, passed_on });
    }
    sent.required = is_known.then_some(required);
    Ok(sent)
}

pub(super) fn put_members(out: &mut Vec<u8>, members: &[Member<'_>]) {
    let members = &members[..members.len().min(MEMBERS_MAX)];
    put_u32(out, members.len() as u32);
    for member in members {
        put_text(out, member.name);
        put_text(out, member.group);
        put_u64(out, member.started_ns);
        put_u64(out, member.log);
        out.push(member.is_filling.into());
        let named = &member.named[..member.named.len().min(NAMED_MAX)];
        put_u32(out, named.len() as u32);
        for named in named {
            let (kind, name) = match named {
                Named::Destination(name) => (0, name),
                Named::Group(name) => (1, name),
                Named::Instance(name) => (2, name),
            };
            out.push(kind);
            put_text(out, name);
        }
        let last = member.last.map_or([0; 2], |last| [last.publisher.get(), last.sequence]);
        last.into_iter().for_each(|number| put_u64(out, number));
    }
}

pub(super) fn take_members<'a>(body: &mut &'a [u8]) -> Result<Vec<Member<'a>>, BadFrame> {
    let count = take_count(body, MEMBERS_MAX, BadFrame("more instances than a frame has"))?;
    (0..count).map(|_| take_member(body)).collect()
}

fn take_member<'a>(body: &mut &'a [u8]) -> Result<Member<'a>, BadFrame> {
    let mut member = Member {
        name: take_text(body)?,
        group: take_text(body)?,
        started_ns: take_u64(body)?,
        log: take_u64(body)?,
        is_filling: take_u8(body)? != 0,
        ..Member::default()
    };
    let count = take_count(body, NAMED_MAX, BadFrame("more names than an instance has"))?;
    for _ in 0..count {
        let (kind, name) = (take_u8(body)?, take_text(body)?);
        member.named.push(match kind {
            0 => Named::Destination(name),
            1 => Named::Group(name),
            2 => Named::Instance(name),
            _ => return Err(BadFrame("an unknown kind of a name")),
        });
    }
    let last = Bookmark::new(PublisherId::new(take_u64(body)?), take_u64(body)?);
    member.last = (last.sequence > 0).then_some(last);
    Ok(member)
}

pub(super) fn put_sent_all(out: &mut Vec<u8>, sent: &SentAll<'_>) {
    put_text(out, sent.origin);
    put_text(out, sent.of);
    put_u64(out, sent.log);
    out.push(sent.is_whole.into());
    let known = &sent.known[..sent.known.len().min(MEMBERS_MAX)];
    put_u32(out, known.len() as u32);
    for (name, log) in known {
        put_text(out, name);
        put_u64(out, *log);
    }
}

pub(super) fn take_sent_all<'a>(body: &mut &'a [u8]) -> Result<SentAll<'a>, BadFrame> {
    let (origin, of) = (take_text(body)?, take_text(body)?);
    let (log, is_whole) = (take_u64(body)?, take_u8(body)? != 0);
    let count = take_count(body, MEMBERS_MAX, BadFrame("more logs than a mark has"))?;
    let known = (0..count).map(|_| Ok((take_text(body)?, take_u64(body)?))).collect::<Result<_, _>>()?;
    Ok(SentAll { origin, of, log, is_whole, known })
}

fn take_count(body: &mut &[u8], count_max: usize, error: BadFrame) -> Result<usize, BadFrame> {
    let count = take_u32(body)? as usize;
    if count <= count_max { Ok(count) } else { Err(error) }
}
