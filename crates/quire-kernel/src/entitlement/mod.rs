//! Entitlements: which user may do what (docs/security.md, "Entitlements").
//!
//! The configuration has a list of entries. An entry applies to a request when its user, its groups
//! and its topics match, and it lists the right. The first entry that applies decides, in the order
//! of the file. When no entry applies, the request is refused. Without any entry, there are no
//! [`Entitlements`], and everything is allowed.
//!
//! - `entry`: an entry as it is configured, checked and compiled.
//! - `rights`: the entries of one user, and the decision about a request.
//! - `grant`: the part of the messages that a command may see or change.
//! - `guard`: the decisions about the topics of a pattern.
//! - `limit`: the limits of users, as they are configured.
//! - `nameable`: the messages of the log that a user may name by their bookmarks.
//! - `replicable`: the topics that a link may have.
//! - `explain`: the decision entry by entry, for a person.

mod entry;
mod explain;
mod grant;
mod guard;
mod limit;
mod nameable;
mod replicable;
mod rights;
#[cfg(test)]
mod tests;

pub use entry::{Entitlements, EntrySettings, Resource, Right};
pub use explain::{Explanation, Step};
pub use grant::{Grant, TopicSelect};
pub use limit::{PublishRate, UserLimitSettings, UserLimits};
pub use nameable::Nameable;
pub use replicable::Replicable;
pub use rights::{ANONYMOUS, Denied, Rights};
