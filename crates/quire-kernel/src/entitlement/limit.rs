//! The limits of users, as they are configured: the first entry that matches a user decides.

use serde::Deserialize;

use super::entry::Who;
use crate::config::{ConfigError, ConfigErrors};

/// The most entries. A logon goes through them.
const ENTRIES_MAX: usize = 10_000;

/// Limits of the configuration for each user that matches.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UserLimitSettings {
    /// Names or patterns of users; empty: every user.
    pub user: Vec<String>,
    /// Names or patterns of groups, of which the user must be in one; empty: any groups.
    pub group: Vec<String>,
    /// The most concurrent connections of a user.
    pub max_connections: u32,
    /// The most subscriptions of all connections of a user; `None`: no limit.
    pub max_subscriptions: Option<u32>,
    /// Bytes that wait to be sent on all connections of a user; `None`: no limit.
    pub max_waiting: Option<u64>,
    /// The most that all connections of a user may publish in a second; `None`: no limit.
    pub publish_rate: Option<PublishRate>,
}

/// The most that a user may publish in a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PublishRate {
    /// Messages.
    Messages(u64),
    /// Bytes of data.
    Bytes(u64),
}

impl Default for UserLimitSettings {
    fn default() -> Self {
        UserLimitSettings {
            user: Vec::new(),
            group: Vec::new(),
            max_connections: 1_000,
            max_subscriptions: None,
            max_waiting: None,
            publish_rate: None,
        }
    }
}

/// The entries of a configuration.
#[derive(Debug, Default)]
pub struct UserLimits(Vec<(Who, UserLimitSettings)>);

impl UserLimits {
    /// Checks the entries.
    ///
    /// # Errors
    /// Every mistake, with its key.
    pub fn compile(settings: &[UserLimitSettings]) -> Result<Self, ConfigErrors> {
        let mut errors = ConfigErrors::default();
        if settings.len() > ENTRIES_MAX {
            let reason = format!("{} entries, the limit is {ENTRIES_MAX}", settings.len());
            errors.push(ConfigError::new("user_limits", reason));
        }
        let entries = settings.iter().enumerate().map(|(index, settings)| {
            let mut wrong = |key: &str, reason: String| {
                errors.push(ConfigError::new(format!("user_limits[{index}].{key}"), reason));
            };
            let who = Who::new(&settings.user, &settings.group, &mut wrong);
            let positive = |number: Option<u64>| number.is_none_or(|number| number > 0);
            let rate = settings.publish_rate.map(|rate| match rate {
                PublishRate::Messages(count) | PublishRate::Bytes(count) => count,
            });
            for (key, is_valid) in [
                ("max_connections", settings.max_connections > 0),
                ("max_subscriptions", positive(settings.max_subscriptions.map(u64::from))),
                ("max_waiting", settings.max_waiting.is_none_or(|size| size >= 1_024)),
                ("publish_rate", positive(rate)),
            ] {
                if !is_valid {
                    let least = if key == "max_waiting" { 1_024 } else { 1 };
                    wrong(key, format!("expected at least {least}"));
                }
            }
            (who, settings.clone())
        });
        let entries: Vec<_> = entries.collect();
        errors.none_or(UserLimits(entries))
    }

    /// The limits of a user; `None`: it has none.
    pub fn of_user(&self, user: &str, groups: &[Box<str>]) -> Option<&UserLimitSettings> {
        self.0.iter().find(|(who, _)| who.matches(user, groups)).map(|(_, settings)| settings)
    }
}
