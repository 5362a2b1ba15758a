//! The four routing tests. They decide which records are sent to a destination
//! (docs/replication.md, *What is sent*).
//!
//! The same tests decide which records are sent and which destinations a publisher waits for. One
//! test differs. A publisher never waits for an instance that the message has passed. Whether a
//! message is *sent* depends on whether that instance still has it, and not on the path alone. So
//! an instance that lost its disk receives its own messages again.

use quire_expression::filter::{EVALUATION_EFFORT_MAX, Filter, MessageContext};
use quire_expression::message_type::{Arena, MessageType};
use quire_expression::topic::TopicSelector;
use quire_journal::{InstancePath, TopicFilter};

/// The tests of one destination.
#[derive(Clone, Debug)]
pub struct Route {
    /// The name of the instance.
    pub destination: String,
    /// Groups whose messages are forwarded.
    pub pass_through: Vec<TopicSelector>,
    pub topics: Vec<TopicRoute>,
}

/// Topics that are sent.
#[derive(Clone, Debug)]
pub struct TopicRoute {
    pub selector: TopicSelector,
    pub message_type: MessageType,
    pub filter: Option<Filter>,
}

impl Route {
    /// Test 2: the topic, the message type and the content. `context` is only called for a filter.
    /// A filter that would take too much effort counts as a match, so that no message is lost.
    pub fn takes<'a>(
        &self,
        topic: &str,
        message_type: u8,
        arena: &mut Arena,
        context: impl FnOnce() -> Option<MessageContext<'a>>,
    ) -> bool {
        let is_named =
            |route: &&TopicRoute| route.message_type.code() == message_type && route.selector.matches(topic);
        let mut named = self.topics.iter().filter(is_named).peekable();
        if named.peek().is_none() {
            return false;
        }
        let mut filters = Vec::new();
        for route in named {
            match &route.filter {
                None => return true,
                Some(filter) => filters.push(filter),
            }
        }
        let Some(context) = context() else { return true };
        filters.into_iter().any(|filter| {
            arena.allow(EVALUATION_EFFORT_MAX);
            filter.decide(&context, arena) != Some(false)
        })
    }

    /// Whether it sends messages of the topic. The content is not tested.
    pub fn names(&self, topic: &str, message_type: &str) -> bool {
        self.topics
            .iter()
            .any(|route| route.message_type.name() == message_type && route.selector.matches(topic))
    }

    /// Whether messages from an instance of a group are forwarded.
    pub fn passes_on_from(&self, group: &str) -> bool {
        self.pass_through.iter().any(|pattern| pattern.matches(group))
    }

    /// Test 3: the message was published here, or is forwarded from a group.
    pub fn passes_on(&self, path: InstancePath<'_>) -> bool {
        path.instances().last().is_none_or(|from| self.passes_on_from(from.group))
    }

    /// Test 4: whether a message with this path has passed the destination.
    pub fn has_passed(&self, path: InstancePath<'_>) -> bool {
        path.instances().any(|instance| instance.name == self.destination)
    }
}

impl TopicFilter for Route {
    fn wants(&self, topic: &str) -> bool {
        self.topics.iter().any(|route| route.selector.matches(topic))
    }
}
