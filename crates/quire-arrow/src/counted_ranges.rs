//! Ranges of messages that an aggregate counts from the index, without reading them.

use std::collections::VecDeque;

use quire_journal::{JournalError, Position, Reader, TopicFilter};

use crate::plan::{Bounds, Compiled};
use crate::spec::{Attribute, Function};

/// Consecutive records that are all wanted messages.
#[derive(Debug)]
pub(crate) struct Counted {
    pub first: Position,
    pub last: Position,
    /// Their topic, if the aggregate is by topic.
    pub topic: Option<String>,
}

/// The ranges of one scan, in order.
#[derive(Debug, Default)]
pub(crate) struct CountedRanges {
    pub ranges: VecDeque<Counted>,
    /// Blocks in them.
    pub block_count: u64,
    /// Bytes of these blocks.
    pub size: u64,
}

impl CountedRanges {
    /// The ranges that can be counted from the index. None when the values of the messages are
    /// needed, or when damage has to be left out, which only a reader notices.
    pub fn find(compiled: &Compiled, reader: &Reader, bounds: Bounds) -> Result<Self, JournalError> {
        let mut found = CountedRanges::default();
        let Some(aggregate) = compiled.aggregate.as_ref().filter(|_| is_countable(compiled)) else {
            return Ok(found);
        };
        let needs_topic = aggregate.by_topic || !compiled.topics.is_everything();
        reader.for_each_block_content(bounds.after, bounds.limit, |range, content| {
            let topic = content.topic.filter(|topic| needs_topic && compiled.topics.wants(topic));
            if !content.has_only_messages || (needs_topic && topic.is_none()) {
                return;
            }
            found.block_count += 1;
            found.size += range.size;
            let topic = topic.filter(|_| aggregate.by_topic);
            match found.ranges.back_mut() {
                Some(before) if before.last.next() == range.first && before.topic.as_deref() == topic => {
                    before.last = range.last;
                }
                _ => found.ranges.push_back(Counted {
                    first: range.first,
                    last: range.last,
                    topic: topic.map(str::to_owned),
                }),
            }
        })?;
        Ok(found)
    }
}

fn is_countable(compiled: &Compiled) -> bool {
    let is_known = |function: &Function| {
        matches!(
            function,
            Function::Count | Function::Min(Attribute::Position) | Function::Max(Attribute::Position)
        )
    };
    compiled.aggregate.as_ref().is_some_and(|aggregate| aggregate.functions.iter().all(is_known))
        && compiled.filter.is_none()
        && compiled.attribute_predicates.is_empty()
        && compiled.field_predicates.is_empty()
        && !compiled.includes_events
        && !compiled.includes_deletes
        && !compiled.skips_damage
}
