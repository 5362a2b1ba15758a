//! The options of a subscription: their names, which of them a command has, and which go together.

use std::fmt;

use super::request::Family;
use crate::command::{Query, Subscribe, SubscribeOptions};
use OptionName::{
    Bookmark, BookmarkNotFound, Conflation, ConflationKey, Deletions, Delta, FullyDurable, Grouping, Keys,
    Live, MaxBacklog, NoEmpties, Oof, OrderBy, Paused, Projection, Rate, RateMaxGap, Replace, Select, SkipN,
    Sow, TopN, Until,
};

macro_rules! options {
    ($($(#[$doc:meta])* $variant:ident = $name:literal;)*) => {
        /// An option of a subscription.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum OptionName {
            $($(#[$doc])* $variant,)*
        }

        impl OptionName {
            /// Every option.
            pub const ALL: &[OptionName] = &[$(OptionName::$variant,)*];

            /// The name on the wire, which is also the name of the argument in Python.
            pub const fn name(self) -> &'static str {
                match self { $(OptionName::$variant => $name,)* }
            }

            /// The option with this name, if there is one.
            pub fn from_name(name: &str) -> Option<OptionName> {
                match name { $($name => Some(OptionName::$variant),)* _ => None }
            }
        }
    };
}

options! {
    /// Where a replay begins, or the state of the records.
    Bookmark = "bookmark";
    /// The end of a replay. On the wire it is a part of the bookmark.
    Until = "until";
    /// Where a replay begins when its bookmark is not in the log.
    BookmarkNotFound = "bookmark_not_found";
    /// [`SubscribeOptions::LIVE`].
    Live = "live";
    /// [`SubscribeOptions::FULLY_DURABLE`].
    FullyDurable = "fully_durable";
    /// [`SubscribeOptions::PAUSED`].
    Paused = "paused";
    /// [`SubscribeOptions::DELETIONS`].
    Deletions = "deletions";
    /// The fastest pace.
    Rate = "rate";
    /// The longest wait for a message.
    RateMaxGap = "rate_max_gap";
    /// At most one message per key in an interval.
    Conflation = "conflation";
    /// The fields that are the key of conflation.
    ConflationKey = "conflation_key";
    /// The most messages of a queue outstanding.
    MaxBacklog = "max_backlog";
    /// [`SubscribeOptions::SOW`].
    Sow = "sow";
    /// The order of the records.
    OrderBy = "order_by";
    /// The most records.
    TopN = "top_n";
    /// The records to skip. This option makes the subscription a page.
    SkipN = "skip_n";
    /// Only the records with these keys.
    Keys = "keys";
    /// [`SubscribeOptions::OOF`].
    Oof = "oof";
    /// [`SubscribeOptions::DELTA`].
    Delta = "delta";
    /// [`SubscribeOptions::NO_EMPTIES`].
    NoEmpties = "no_empties";
    /// [`SubscribeOptions::REPLACE`].
    Replace = "replace";
    /// The part of each message.
    Select = "select";
    /// Records of groups, with these fields.
    Projection = "projection";
    /// The fields that make the groups.
    Grouping = "grouping";
}

/// The spelling of the names of options for the user of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spelling {
    /// As on the wire: `skip_n`.
    Wire,
    /// As the argument of a call in Python. `sow` and `delta` are calls.
    Argument,
    /// As an option of the command line: `--skip-n`.
    Flag,
}

impl Spelling {
    /// The name of an option.
    pub fn name(self, option: OptionName) -> String {
        match self {
            Spelling::Wire | Spelling::Argument => option.name().to_owned(),
            Spelling::Flag => format!("--{}", option.name().replace('_', "-")),
        }
    }

    /// An option as a reason mentions it.
    fn mention(self, option: OptionName) -> String {
        match (self, option) {
            // A bookmark such as "[A:B]" has it, too.
            (_, OptionName::Until) => "an end of the range".to_owned(),
            (Spelling::Argument, OptionName::Sow) => "`sow_and_subscribe`".to_owned(),
            (Spelling::Argument, OptionName::Delta) => "`delta_subscribe`".to_owned(),
            (Spelling::Argument, option) => format!("`{}`", option.name()),
            (Spelling::Wire | Spelling::Flag, option) => self.name(option),
        }
    }
}

/// The options that a command has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OptionSet(u32);

impl OptionSet {
    /// Whether an option is among them.
    pub const fn has(self, option: OptionName) -> bool {
        self.0 & (1 << option as u8) != 0
    }

    /// The set with a bookmark, and with the end of its range.
    #[must_use]
    pub fn with_bookmark(self, bookmark: &str) -> OptionSet {
        let set = self.with(OptionName::Bookmark);
        if has_end(bookmark) { set.with(OptionName::Until) } else { set }
    }

    /// The set with one more option.
    #[must_use]
    pub const fn with(self, option: OptionName) -> OptionSet {
        OptionSet(self.0 | 1 << option as u8)
    }
}

impl FromIterator<OptionName> for OptionSet {
    fn from_iter<T: IntoIterator<Item = OptionName>>(options: T) -> Self {
        options.into_iter().fold(OptionSet::default(), OptionSet::with)
    }
}

impl From<&Subscribe<'_>> for OptionSet {
    fn from(subscribe: &Subscribe<'_>) -> Self {
        use SubscribeOptions as Bits;
        let has = |bit| subscribe.options.has(bit);
        let given = [
            (BookmarkNotFound, has(Bits::NOT_FOUND_FAILS) || has(Bits::NOT_FOUND_NOW)),
            (Live, has(Bits::LIVE)),
            (FullyDurable, has(Bits::FULLY_DURABLE)),
            (Paused, has(Bits::PAUSED)),
            (Deletions, has(Bits::DELETIONS)),
            (Rate, subscribe.rate.is_some()),
            (RateMaxGap, subscribe.rate_max_gap_ns.is_some()),
            (Conflation, subscribe.conflation_ns.is_some()),
            (ConflationKey, subscribe.conflation_key.is_some()),
            (MaxBacklog, subscribe.max_backlog.is_some()),
            (Sow, has(Bits::SOW)),
            (OrderBy, subscribe.order_by.is_some()),
            (TopN, subscribe.top_n.is_some()),
            (SkipN, subscribe.skip_n.is_some()),
            (Keys, subscribe.keys.is_some()),
            (Oof, has(Bits::OOF)),
            (Delta, has(Bits::DELTA)),
            (NoEmpties, has(Bits::NO_EMPTIES)),
            (Replace, has(Bits::REPLACE)),
            (Select, subscribe.select.is_some()),
            (Projection, subscribe.projection.is_some()),
            (Grouping, subscribe.grouping.is_some()),
        ];
        let set: OptionSet =
            given.into_iter().filter_map(|(name, is_given)| is_given.then_some(name)).collect();
        subscribe.bookmark.map_or(set, |bookmark| set.with_bookmark(bookmark))
    }
}

impl From<&Query<'_>> for OptionSet {
    /// A query is the first part of a subscription with `sow`. No log follows its bookmark.
    fn from(query: &Query<'_>) -> Self {
        let given = [
            (Sow, true),
            (OrderBy, query.order_by.is_some()),
            (TopN, query.top_n.is_some()),
            (SkipN, query.skip_n.is_some()),
            (Keys, query.keys.is_some()),
            (Select, query.select.is_some()),
            (Projection, query.projection.is_some()),
            (Grouping, query.grouping.is_some()),
        ];
        given.into_iter().filter_map(|(name, is_given)| is_given.then_some(name)).collect()
    }
}

/// Whether a bookmark is a range with an end, as `[A:B]`. The broker refuses any other text.
fn has_end(bookmark: &str) -> bool {
    let inner = bookmark.trim().strip_prefix(['[', '(']).and_then(|rest| rest.strip_suffix([']', ')']));
    inner.and_then(|inner| inner.split_once(':')).is_some_and(|(_, end)| !end.trim().is_empty())
}

/// Options that do not go together. The fault of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionError {
    /// The option that is refused.
    pub option: OptionName,
    /// Why.
    pub reason: Reason,
}

/// Why an option is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It needs one of these options. The text continues the sentence.
    Requires(&'static [OptionName], &'static str),
    /// It cannot be given together with this option. The text continues the sentence.
    Excludes(OptionName, &'static str),
    /// A subscription cannot be replaced by one of another family.
    OtherFamily {
        /// The one with which it was made.
        former: Family,
        /// The one with which it would be replaced.
        new: Family,
    },
    /// Another reason.
    Other(&'static str),
}

impl OptionError {
    pub(super) const fn of(option: OptionName, reason: &'static str) -> Self {
        OptionError { option, reason: Reason::Other(reason) }
    }

    /// The reason, with the names of other options in the spelling of the user.
    pub fn reason(&self, spelling: Spelling) -> String {
        match self.reason {
            Reason::Requires(options, more) => {
                let names: Vec<_> = options.iter().map(|option| spelling.mention(*option)).collect();
                format!("it requires {}{more}", names.join(" or "))
            }
            // Two calls make such a subscription, and the user may have used either.
            Reason::Excludes(Delta, more) => {
                format!("it does not go together with a delta subscription{more}")
            }
            Reason::Excludes(option, more) => {
                format!("it does not go together with {}{more}", spelling.mention(option))
            }
            Reason::OtherFamily { former, new } => format!(
                "the subscription was made with {}, and {} cannot replace it; use the same options sow and delta, or \
                 unsubscribe first",
                former.name(),
                new.name()
            ),
            Reason::Other(reason) => reason.to_owned(),
        }
    }
}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.option.name(), self.reason(Spelling::Wire))
    }
}

impl std::error::Error for OptionError {}

const fn requires(option: OptionName, others: &'static [OptionName]) -> OptionError {
    OptionError { option, reason: Reason::Requires(others, "") }
}

const fn excludes(option: OptionName, other: OptionName, more: &'static str) -> OptionError {
    OptionError { option, reason: Reason::Excludes(other, more) }
}

const WHOLE: &str = " in this version: leave it out, or receive whole messages";
const OF_QUEUES: &str = ": it limits the messages of a queue, and a queue keeps no last values";
const PERSISTED: &str = ": a delete is delivered when it is persisted";
const CURRENT: &str =
    ": after the bookmark the messages come from the log, which does not tell when a record leaves";
const KEY_OF_GROUP: &str = ": the messages of each group are conflated; leave it out";
const OF_GROUPS: &str = ": the groups are those of the current records";
const OWN_FIELDS: &str = ": a projection has its own fields; leave it out";
const KEY_OF_RECORD: &str = ": messages about different records would replace each other; leave it out, and the key of each record is used";

/// Every rule, in the order of the checks. The first broken rule is the error.
///
/// A rule whose repair would only lead to another error comes later: `delta` is first, because
/// adding the bookmark that `rate` requires would not help.
const RULES: &[OptionError] = &[
    excludes(Bookmark, Delta, WHOLE),
    excludes(Rate, Delta, WHOLE),
    excludes(RateMaxGap, Delta, WHOLE),
    excludes(Live, Delta, WHOLE),
    excludes(FullyDurable, Delta, WHOLE),
    excludes(Paused, Delta, WHOLE),
    excludes(Deletions, Delta, WHOLE),
    excludes(BookmarkNotFound, Delta, WHOLE),
    excludes(SkipN, Delta, WHOLE),
    excludes(MaxBacklog, Delta, OF_QUEUES),
    excludes(MaxBacklog, Sow, OF_QUEUES),
    excludes(BookmarkNotFound, Sow, ": a state whose bookmark is not in the log is always refused"),
    excludes(Deletions, Sow, ""),
    requires(Rate, &[Bookmark]),
    requires(Live, &[Bookmark]),
    requires(FullyDurable, &[Bookmark]),
    requires(Paused, &[Bookmark]),
    requires(Deletions, &[Bookmark]),
    requires(BookmarkNotFound, &[Bookmark]),
    requires(Until, &[Bookmark]),
    requires(NoEmpties, &[Delta]),
    requires(Oof, &[Sow, Delta]),
    requires(OrderBy, &[Sow]),
    requires(TopN, &[Sow]),
    requires(SkipN, &[Sow]),
    // After its records, a subscription with a bookmark continues with the messages of these keys.
    requires(Keys, &[Sow, Bookmark]),
    requires(SkipN, &[TopN]),
    OptionError { option: RateMaxGap, reason: Reason::Requires(&[Rate], ", a multiple such as \"2X\"") },
    requires(ConflationKey, &[Conflation]),
    excludes(Rate, Live, ""),
    excludes(FullyDurable, Live, ""),
    excludes(Paused, Live, ""),
    excludes(Deletions, Live, PERSISTED),
    excludes(Live, Until, ": at the end of the replay the subscription ends"),
    excludes(Deletions, Conflation, ": a message that is held would come after the delete of its record"),
    excludes(Oof, Bookmark, CURRENT),
    excludes(SkipN, Bookmark, CURRENT),
    excludes(ConflationKey, Delta, KEY_OF_RECORD),
    excludes(ConflationKey, Oof, KEY_OF_RECORD),
    excludes(ConflationKey, SkipN, KEY_OF_RECORD),
    requires(Projection, &[Sow]),
    requires(Grouping, &[Projection]),
    excludes(Select, Projection, OWN_FIELDS),
    excludes(ConflationKey, Projection, KEY_OF_GROUP),
];

/// The rules that only subscriptions have. A query of groups has pages, and earlier states.
const RULES_OF_SUBSCRIPTIONS: &[OptionError] =
    &[excludes(Projection, Bookmark, OF_GROUPS), excludes(Projection, SkipN, ": groups have no pages")];

/// Checks whether options of a subscription go together.
///
/// # Errors
/// The first rule that is broken.
pub fn check(options: OptionSet) -> Result<(), OptionError> {
    check_rules(options, RULES).and_then(|()| check_rules(options, RULES_OF_SUBSCRIPTIONS))
}

fn check_rules(options: OptionSet, rules: &[OptionError]) -> Result<(), OptionError> {
    let is_broken = |rule: &&OptionError| match rule.reason {
        _ if !options.has(rule.option) => false,
        Reason::Requires(others, _) => !others.iter().any(|other| options.has(*other)),
        Reason::Excludes(other, _) => options.has(other),
        Reason::OtherFamily { .. } | Reason::Other(_) => false,
    };
    rules.iter().find(is_broken).map_or(Ok(()), |rule| Err(*rule))
}

/// Checks whether the options of a query go together.
///
/// # Errors
/// The first rule that is broken.
pub fn check_query(query: &Query<'_>) -> Result<(), OptionError> {
    check_rules(OptionSet::from(query), RULES)
}

pub(super) const RECORDS_AGAIN: OptionError = OptionError::of(
    Replace,
    "a subscription with a bookmark cannot receive records again; leave out sow, or unsubscribe, and subscribe again",
);

pub(super) const PAGE_BY_PAGE: OptionError = OptionError::of(
    Replace,
    "a page is replaced by a page, with skip_n, and no other subscription can become one; unsubscribe, and subscribe again",
);

pub(super) const NOT_OF_GROUPS: OptionError = OptionError::of(
    Replace,
    "a subscription with projection cannot be replaced, and cannot replace another one; unsubscribe, and subscribe again",
);

pub(super) const NOT_FOUND_TWICE: OptionError =
    OptionError::of(BookmarkNotFound, "it has one meaning at a time");
