//! The configuration of one queue, and the combinations that are refused.

use std::time::Duration;

use quire_journal::Position;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// How often a message may be delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Semantics {
    /// Delivered under a lease, again and again, until it is acknowledged, expired or removed.
    #[default]
    AtLeastOnce,
    /// Leaves the queue at the moment it is delivered.
    AtMostOnce,
}

/// Which of the subscriptions with room gets a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FairnessModel {
    /// The first one found, in the order of their creation.
    Fast,
    /// The next one after the subscription that got the message before.
    RoundRobin,
    /// The one with the smallest part of its backlog in use.
    Proportional,
}

/// Whether a connection may acknowledge a message that it does not hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Leasing {
    /// It may.
    #[default]
    Sublease,
    /// It may not: such a message is skipped.
    Strict,
}

/// How the queue's expiration and the message's own combine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExpirationModel {
    /// The message's own, where it has one (0: never), else the queue's.
    #[default]
    Message,
    /// The queue's only.
    Queue,
    /// The shorter of those that are set.
    Minimum,
}

/// The expiration that a queue had for its messages up to a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EarlierExpiration {
    /// The last position with this expiration.
    pub until: Position,
    /// As [`QueueConfig::expiration`].
    pub expiration: Option<Duration>,
    /// As [`QueueConfig::expiration_model`].
    pub model: ExpirationModel,
}

/// The settings of one queue. `QueueConfig::default()` is an at-least-once, proportional queue
/// without limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueConfig {
    /// Delivery semantics.
    pub semantics: Semantics,
    /// `None`: proportional for at-least-once, round-robin for at-most-once.
    pub fairness_model: Option<FairnessModel>,
    /// How long a subscription may hold a message; `None`: without end.
    pub lease_period: Option<Duration>,
    /// The consumers that may acknowledge.
    pub leasing: Leasing,
    /// The most messages outstanding over the whole queue.
    pub max_backlog: Option<u32>,
    /// The most messages outstanding for one subscription.
    pub max_per_subscription_backlog: Option<u32>,
    /// A message whose delivery number `max_deliveries` fails is expired.
    pub max_deliveries: Option<u32>,
    /// A message cancelled more often than this is expired.
    pub max_cancels: Option<u32>,
    /// How long a message waits after its first cancel, its second, and so on; the last one
    /// repeats. Empty: it does not wait.
    pub retry_delay: Vec<Duration>,
    /// The most time in the queue, from the time the message was received.
    pub expiration: Option<Duration>,
    /// How `expiration` and the message's own expiration combine.
    pub expiration_model: ExpirationModel,
    /// The expirations before these, in ascending order of their positions. A message keeps the
    /// expiration that it entered with.
    pub earlier_expirations: Vec<EarlierExpiration>,
    /// Whether messages are ordered by the priority given with them.
    pub priority: bool,
    /// Whether messages may be barriers.
    pub barrier: bool,
    /// The most messages that are active at a time.
    pub target_queue_depth: Option<u64>,
    /// Whether [`Queues::poll_lease_event`](super::Queues::poll_lease_event) returns the events of
    /// leases.
    pub record_leases: bool,
}

/// A combination of settings that no queue can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// The target depth needs the queue to be in log order.
    #[error("target_queue_depth cannot be combined with {with}")]
    TargetQueueDepth {
        /// The element that excludes it.
        with: &'static str,
    },
    /// At-most-once queues are served round-robin only.
    #[error("an at-most-once queue allows no fairness_model but round-robin")]
    FairnessModel,
    /// A limit of nothing would stop the queue.
    #[error("{element} must be at least 1")]
    Zero {
        /// The element.
        element: &'static str,
    },
    /// The state of a queue depends on the element.
    #[error("{element} cannot be changed")]
    Fixed {
        /// The element.
        element: &'static str,
    },
    /// More queues than [`QUEUES_MAX`](super::QUEUES_MAX).
    #[error("more than {limit} queues")]
    TooManyQueues {
        /// The limit.
        limit: usize,
    },
}

impl QueueConfig {
    /// Refuses impossible combinations.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.target_queue_depth.is_some() && self.priority {
            return Err(ConfigError::TargetQueueDepth { with: "priority" });
        }
        if self.target_queue_depth.is_some() && self.barrier {
            return Err(ConfigError::TargetQueueDepth { with: "barrier_expression" });
        }
        let round_robin = self.fairness_model.is_none_or(|model| model == FairnessModel::RoundRobin);
        if self.semantics == Semantics::AtMostOnce && !round_robin {
            return Err(ConfigError::FairnessModel);
        }
        let limits = [
            ("max_backlog", self.max_backlog.map(u64::from)),
            ("max_per_subscription_backlog", self.max_per_subscription_backlog.map(u64::from)),
            ("max_deliveries", self.max_deliveries.map(u64::from)),
            ("target_queue_depth", self.target_queue_depth),
        ];
        match limits.iter().find(|(_, limit)| *limit == Some(0)) {
            Some((element, _)) => Err(ConfigError::Zero { element }),
            None => Ok(()),
        }
    }

    /// Refuses a change of elements that the state of a queue depends on.
    pub(super) fn check_change(&self, new: &QueueConfig) -> Result<(), ConfigError> {
        let fixed = [
            ("semantics", self.semantics == new.semantics),
            ("fairness_model", self.fairness() == new.fairness()),
            ("priority", self.priority == new.priority),
            ("barrier_expression", self.barrier == new.barrier),
            ("target_queue_depth", self.target_queue_depth == new.target_queue_depth),
        ];
        match fixed.into_iter().find(|(_, is_same)| !is_same) {
            Some((element, _)) => Err(ConfigError::Fixed { element }),
            None => new.validate(),
        }
    }

    /// The elements that have no effect on this queue, for a warning.
    pub fn ineffective(&self) -> Vec<&'static str> {
        let at_most_once = self.semantics == Semantics::AtMostOnce;
        let unreachable = matches!((self.max_per_subscription_backlog, self.max_backlog), (Some(one), Some(all)) if one > all);
        [
            ("lease_period", at_most_once && self.lease_period.is_some()),
            ("max_deliveries", at_most_once && self.max_deliveries.is_some()),
            ("max_cancels", at_most_once && self.max_cancels.is_some()),
            ("retry_delay", at_most_once && !self.retry_delay.is_empty()),
            ("max_per_subscription_backlog", unreachable),
        ]
        .into_iter()
        .filter_map(|(element, ineffective)| ineffective.then_some(element))
        .collect()
    }

    /// The fairness model in force.
    pub fn fairness(&self) -> FairnessModel {
        self.fairness_model.unwrap_or(match self.semantics {
            Semantics::AtLeastOnce => FairnessModel::Proportional,
            Semantics::AtMostOnce => FairnessModel::RoundRobin,
        })
    }

    /// How long a message waits after this number of cancels, in nanoseconds.
    pub(super) fn retry_delay_ns(&self, cancels: u32) -> u64 {
        let index = (cancels.max(1) - 1) as usize;
        self.retry_delay.get(index).or(self.retry_delay.last()).map_or(0, |delay| nanoseconds(*delay))
    }

    /// How long the message at this position, with this expiration, may stay, in nanoseconds;
    /// `None`: forever.
    pub(super) fn lifetime_ns(&self, position: u64, own_s: Option<u32>) -> Option<u64> {
        let earlier = self.earlier_expirations.iter().find(|earlier| position <= earlier.until.get());
        let (expiration, model) = earlier
            .map_or((self.expiration, self.expiration_model), |earlier| (earlier.expiration, earlier.model));
        let queue = expiration.map(nanoseconds);
        let own = own_s.map(|seconds| (seconds > 0).then_some(u64::from(seconds) * 1_000_000_000));
        match (model, own) {
            (ExpirationModel::Queue, _) | (_, None) => queue,
            (ExpirationModel::Message, Some(own)) => own,
            (ExpirationModel::Minimum, Some(own)) => own.into_iter().chain(queue).min(),
        }
    }
}

pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
