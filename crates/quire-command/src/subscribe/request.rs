//! The kinds of requests that a subscribe command can make.

use super::options::{self, OptionError, OptionName, OptionSet, Reason};
use crate::command::{Subscribe, SubscribeOptions};
use crate::packed::{Keys, Texts};

/// The request of a subscribe command, without its topic, its filter and its select list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// New messages, of topics and of queues.
    Stream(Stream<'a>),
    /// A range of the log. Without an end, new messages follow.
    Log(Log<'a>),
    /// The records of last-value topics, and then their changes.
    Records(Records<'a>),
    /// Only the fields that differ in each change of a record.
    Deltas(Deltas<'a>),
}

/// New messages, of topics and of queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream<'a> {
    /// For queues: the most messages outstanding; `None` = 1, 0 = barriers only.
    pub max_backlog: Option<u32>,
    /// How messages are conflated.
    pub conflation: Option<Interval<'a>>,
}

/// A range of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log<'a> {
    /// Where it begins and ends; `None`: it replaces a subscription, and keeps its place.
    pub bookmark: Option<&'a str>,
    /// How its messages are delivered.
    pub delivery: Delivery,
    /// The fastest pace.
    pub pace: Option<Pace<'a>>,
    /// How messages are conflated.
    pub conflation: Option<Interval<'a>>,
    /// Only messages with these keys.
    pub keys: Option<Keys<'a>>,
}

/// How the messages of the log are delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivery {
    /// After the replay, messages are delivered before they are persisted.
    pub is_live: bool,
    /// After the replay, messages are delivered when every synchronous destination has them, too.
    pub is_fully_durable: bool,
    /// No message is delivered until the subscription is resumed.
    pub is_paused: bool,
    /// Deletes of records are delivered, too.
    pub has_deletions: bool,
    /// Where the replay begins when none of its bookmarks is in the log.
    pub not_found: NotFound,
}

/// Where a replay begins when none of its bookmarks is in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NotFound {
    /// At the oldest message.
    #[default]
    Oldest,
    /// After the newest message.
    Now,
    /// It does not begin: the command is refused.
    Fail,
}

/// The highest rate of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace<'a> {
    /// Such as `1000`, `500KB` or `2X`.
    pub rate: &'a str,
    /// For a multiple of the original rate: the longest wait for a message, in nanoseconds.
    pub gap_max_ns: Option<u64>,
}

/// At most one message per key in an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval<'a> {
    /// In nanoseconds.
    pub ns: u64,
    /// The fields that are the key, separated by commas; `None` = the key in the last-value topic.
    pub key: Option<&'a str>,
}

/// The records of last-value topics, and then their changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Records<'a> {
    /// The records at the beginning.
    pub selection: Selected<'a>,
    /// A message for each record that leaves the view.
    pub has_oof: bool,
    /// How changes are conflated.
    pub conflation: Option<Interval<'a>>,
    /// The records are an earlier state, and later messages are read from the log.
    pub log: Option<Log<'a>>,
}

/// Which records of last-value topics are wanted, and in which order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Selected<'a> {
    /// The order of the records.
    pub order_by: Option<&'a str>,
    /// The most records wanted.
    pub top_n: Option<u32>,
    /// The records to skip at the beginning. With it, a subscription is a page.
    pub skip_n: Option<u32>,
    /// Only the records with these keys.
    pub keys: Option<Keys<'a>>,
    /// Records of groups, instead of the records.
    pub groups: Option<GroupsWanted<'a>>,
}

/// The records of groups that are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupsWanted<'a> {
    /// Their fields.
    pub projection: Texts<'a>,
    /// The fields that make the groups. `None` = one group.
    pub grouping: Option<Texts<'a>>,
}

/// Only the fields that differ in each change of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deltas<'a> {
    /// The records at the beginning; `None`: none.
    pub selection: Option<Selected<'a>>,
    /// A message for each record that leaves the view.
    pub has_oof: bool,
    /// No message for a change in which no field differs.
    pub no_empties: bool,
    /// How changes are conflated.
    pub conflation: Option<Interval<'a>>,
}

/// The call with which a program makes a subscription. A subscription is replaced by one of the
/// same family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names of the calls
pub enum Family {
    Subscribe,
    DeltaSubscribe,
    SowAndSubscribe,
    SowAndDeltaSubscribe,
}

/// The properties of a subscription that decide whether it can be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Former {
    /// The one with which it was made.
    pub family: Family,
    /// It is a page of records.
    pub is_page: bool,
    /// It has records of groups.
    pub is_aggregated: bool,
    /// It reads the log.
    pub log: Option<FormerLog>,
}

/// The properties that a subscription to the log keeps when it is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormerLog {
    /// It is paused.
    pub is_paused: bool,
    /// Its range has an end.
    pub has_end: bool,
}

impl<'a> Request<'a> {
    /// The request of a command that begins a subscription.
    ///
    /// # Errors
    /// Its options do not go together.
    pub fn of(subscribe: &Subscribe<'a>) -> Result<Self, OptionError> {
        Request::new(subscribe, OptionSet::from(subscribe))
    }

    /// The request of a command that replaces a subscription. Without a bookmark, a subscription
    /// that reads the log keeps its place and its pause.
    ///
    /// # Errors
    /// Its options do not go together, or do not go together with the subscription.
    pub fn replacing(subscribe: &Subscribe<'a>, former: &Former) -> Result<Self, OptionError> {
        let mut given = OptionSet::from(subscribe);
        let family = Family::of(subscribe.options);
        let is_sow = given.has(OptionName::Sow);
        if is_sow && (given.has(OptionName::Bookmark) || former.log.is_some()) {
            return Err(options::RECORDS_AGAIN);
        }
        if former.is_aggregated || given.has(OptionName::Projection) {
            return Err(options::NOT_OF_GROUPS);
        }
        if former.is_page != (is_sow && given.has(OptionName::SkipN)) {
            return Err(options::PAGE_BY_PAGE);
        }
        if former.family != family {
            let reason = Reason::OtherFamily { former: former.family, new: family };
            return Err(OptionError { option: OptionName::Replace, reason });
        }
        if let Some(FormerLog { is_paused, has_end }) = former.log {
            let has_end = has_end && !given.has(OptionName::Bookmark);
            given = given.with(OptionName::Bookmark);
            given = if is_paused { given.with(OptionName::Paused) } else { given };
            given = if has_end { given.with(OptionName::Until) } else { given };
        }
        Request::new(subscribe, given)
    }

    fn new(subscribe: &Subscribe<'a>, given: OptionSet) -> Result<Self, OptionError> {
        options::check(given)?;
        let has = |option| given.has(option);
        let conflation = subscribe.conflation_ns.map(|ns| Interval { ns, key: subscribe.conflation_key });
        let Subscribe { order_by, top_n, skip_n, keys, .. } = *subscribe;
        let grouping = subscribe.grouping;
        let groups = subscribe.projection.map(|projection| GroupsWanted { projection, grouping });
        let selected = Selected { order_by, top_n, skip_n, keys, groups };
        let selection = has(OptionName::Sow).then_some(selected);
        let has_oof = has(OptionName::Oof);
        let log = match has(OptionName::Bookmark) {
            true => Some(Log::new(subscribe, given, conflation)?),
            false => None,
        };
        Ok(match (selection, has(OptionName::Delta), log) {
            (selection, true, _) => {
                let no_empties = has(OptionName::NoEmpties);
                Request::Deltas(Deltas { selection, has_oof, no_empties, conflation })
            }
            (Some(selection), false, log) => {
                Request::Records(Records { selection, has_oof, conflation, log })
            }
            (None, false, Some(log)) => Request::Log(log),
            (None, false, None) => Request::Stream(Stream { max_backlog: subscribe.max_backlog, conflation }),
        })
    }

    /// The range of the log that it reads.
    pub fn log(&self) -> Option<&Log<'a>> {
        match self {
            Request::Log(log) => Some(log),
            Request::Records(records) => records.log.as_ref(),
            Request::Stream(_) | Request::Deltas(_) => None,
        }
    }

    /// The records with which it begins.
    pub fn selection(&self) -> Option<&Selected<'a>> {
        match self {
            Request::Records(records) => Some(&records.selection),
            Request::Deltas(deltas) => deltas.selection.as_ref(),
            Request::Stream(_) | Request::Log(_) => None,
        }
    }

    /// How its messages are conflated.
    pub fn conflation(&self) -> Option<&Interval<'a>> {
        match self {
            Request::Stream(stream) => stream.conflation.as_ref(),
            Request::Log(log) => log.conflation.as_ref(),
            Request::Records(records) => records.conflation.as_ref(),
            Request::Deltas(deltas) => deltas.conflation.as_ref(),
        }
    }
}

impl<'a> Log<'a> {
    fn new(
        subscribe: &Subscribe<'a>,
        given: OptionSet,
        conflation: Option<Interval<'a>>,
    ) -> Result<Self, OptionError> {
        let bit = |bit| subscribe.options.has(bit);
        let not_found = match (bit(SubscribeOptions::NOT_FOUND_NOW), bit(SubscribeOptions::NOT_FOUND_FAILS)) {
            (false, false) => NotFound::Oldest,
            (true, false) => NotFound::Now,
            (false, true) => NotFound::Fail,
            (true, true) => return Err(options::NOT_FOUND_TWICE),
        };
        Ok(Log {
            bookmark: subscribe.bookmark,
            delivery: Delivery {
                is_live: given.has(OptionName::Live),
                is_fully_durable: given.has(OptionName::FullyDurable),
                is_paused: given.has(OptionName::Paused),
                has_deletions: given.has(OptionName::Deletions),
                not_found,
            },
            pace: subscribe.rate.map(|rate| Pace { rate, gap_max_ns: subscribe.rate_max_gap_ns }),
            conflation,
            keys: subscribe.keys,
        })
    }
}

impl Family {
    /// The call that makes a subscription with these options.
    pub fn of(options: SubscribeOptions) -> Self {
        match (options.has(SubscribeOptions::SOW), options.has(SubscribeOptions::DELTA)) {
            (false, false) => Family::Subscribe,
            (false, true) => Family::DeltaSubscribe,
            (true, false) => Family::SowAndSubscribe,
            (true, true) => Family::SowAndDeltaSubscribe,
        }
    }

    /// Its name for programs.
    pub const fn name(self) -> &'static str {
        match self {
            Family::Subscribe => "subscribe",
            Family::DeltaSubscribe => "delta_subscribe",
            Family::SowAndSubscribe => "sow_and_subscribe",
            Family::SowAndDeltaSubscribe => "sow_and_delta_subscribe",
        }
    }
}
