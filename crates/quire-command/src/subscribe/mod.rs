//! The kinds of subscriptions, and the rules about their options.
//!
//! A subscribe command is flat: each option is a field or a bit. [`Request::of`] returns the kind
//! of subscription for the options. It refuses options that do not go together. The broker, the
//! client, Python and the command line use this function or its rules ([`check`]). No other code
//! has such a rule. A rule that needs more than the options, such as the kind of the topic, is in
//! the broker.
//!
//! An [`OptionError`] has the option and the reason separately, so each caller can name options as
//! its users write them ([`Spelling`]).

mod options;
mod request;

pub use options::{OptionError, OptionName, OptionSet, Reason, Spelling, check, check_query};
pub use request::{
    Delivery, Deltas, Family, Former, FormerLog, GroupsWanted, Interval, Log, NotFound, Pace, Records,
    Request, Selected, Stream,
};
