//! The joins of a view: which topics it reads, and by which fields (docs/views.md, "Joins").

use quire_expression::filter::{JoinCondition, JoinedTopic, TopicField};
use quire_expression::message_type::MessageType;
use quire_table::JoinKeys;

/// The most topics of one view. Each of them multiplies the work of a change.
const JOINED_MAX: usize = 16;

/// A topic that a view names.
pub(super) enum Source {
    /// The type of its messages.
    Found(MessageType),
    /// It has a mistake, which is reported there.
    Mistaken,
    /// Why no view can read it.
    Refused(String),
}

/// The topics of a view, and their joins.
pub(super) struct JoinPlan {
    /// The first topic, and the others after the one that they are joined with.
    pub topics: Vec<JoinedTopic>,
    pub joins: Vec<JoinKeys>,
    /// The fields of the joins, in pairs: those of the parent and of the child.
    pub keys: Vec<TopicField>,
}

/// A mistake in an entry of `join`: its number, and the reason; `None`: it is reported elsewhere.
pub(super) struct Mistake(pub usize, pub Option<String>);

/// The topics that the entries name, also when some entries have mistakes.
pub(super) fn topics_of(entries: &[String]) -> Vec<String> {
    let parsed = entries.iter().filter_map(|entry| JoinCondition::parse(entry).ok());
    parsed.flat_map(|found| [found.left, found.right]).map(|field| field.topic.into()).collect()
}

impl JoinPlan {
    /// Puts the topics in an order in which each is joined with one before it. The left topic of
    /// the first entry is the first.
    pub fn new(entries: &[String], find: &dyn Fn(&str) -> Source) -> Result<Self, Mistake> {
        let mut conditions = Vec::new();
        for (number, entry) in entries.iter().enumerate() {
            let parsed = JoinCondition::parse(entry);
            let found = parsed
                .map_err(|bad| Mistake(number, Some(format!("{}\n{}", bad.with_caret(entry), EXAMPLE))))?;
            conditions.push((number, found));
        }
        let mut plan = JoinPlan { topics: Vec::new(), joins: Vec::new(), keys: Vec::new() };
        if let Some((_, JoinCondition { left, .. })) = conditions.first() {
            plan.add_topic(0, left, find)?;
        }
        while !conditions.is_empty() {
            let count = conditions.len();
            let mut left_over = Vec::new();
            for (number, condition) in conditions {
                if !plan.add(number, &condition, find)? {
                    left_over.push((number, condition));
                }
            }
            if left_over.len() == count {
                let (number, JoinCondition { left, right }) = &left_over[0];
                let reason = format!(
                    "neither {:?} nor {:?} is joined with {:?}, the first topic",
                    left.topic, right.topic, plan.topics[0].topic
                );
                return Err(Mistake(*number, Some(reason)));
            }
            conditions = left_over;
        }
        Ok(plan)
    }

    fn place(&self, field: &TopicField) -> Option<usize> {
        self.topics.iter().position(|topic| topic.topic == field.topic)
    }

    /// Adds a condition. Returns false when none of its topics is known yet.
    fn add(
        &mut self,
        number: usize,
        condition: &JoinCondition,
        find: &dyn Fn(&str) -> Source,
    ) -> Result<bool, Mistake> {
        let JoinCondition { left, right } = condition;
        if left.topic == right.topic {
            let reason = format!(
                "{:?} is joined with itself: make a view of it, and join the topic with the view",
                left.topic
            );
            return Err(Mistake(number, Some(reason)));
        }
        let (parent, child) = match (self.place(left), self.place(right)) {
            (None, None) => return Ok(false),
            (Some(parent), None) => {
                self.add_topic(number, right, find)?;
                ((parent, left), (self.topics.len() - 1, right))
            }
            (None, Some(parent)) => {
                self.add_topic(number, left, find)?;
                ((parent, right), (self.topics.len() - 1, left))
            }
            // Each topic comes after its parent.
            (Some(first), Some(second)) if first < second => ((first, left), (second, right)),
            (Some(first), Some(second)) => ((second, right), (first, left)),
        };
        let numbers = [self.keys.len(), self.keys.len() + 1];
        self.check_types(number, [parent.1, child.1])?;
        self.keys.extend([parent.1.clone(), child.1.clone()]);
        match self.joins.iter_mut().find(|join| join.child == child.0) {
            Some(join) if join.parent == parent.0 => {
                join.parent_fields.push(numbers[0]);
                join.child_fields.push(numbers[1]);
            }
            Some(_) => {
                let reason = format!(
                    "the joins make a cycle: {:?} and {:?} are joined by the entries before",
                    left.topic, right.topic
                );
                return Err(Mistake(number, Some(reason)));
            }
            None => self.joins.push(JoinKeys {
                parent: parent.0,
                child: child.0,
                parent_fields: vec![numbers[0]],
                child_fields: vec![numbers[1]],
            }),
        }
        Ok(true)
    }

    fn add_topic(
        &mut self,
        number: usize,
        field: &TopicField,
        find: &dyn Fn(&str) -> Source,
    ) -> Result<(), Mistake> {
        let message_type = match find(&field.topic) {
            Source::Found(found) if found.has_fields() => found,
            Source::Found(found) => {
                let reason = format!("the messages on {:?} have no fields: {}", field.topic, found.name());
                return Err(Mistake(number, Some(reason)));
            }
            Source::Mistaken => return Err(Mistake(number, None)),
            Source::Refused(reason) => return Err(Mistake(number, Some(reason))),
        };
        if self.topics.len() == JOINED_MAX {
            return Err(Mistake(number, Some(format!("more than {JOINED_MAX} topics"))));
        }
        self.topics.push(JoinedTopic { topic: field.topic.clone(), message_type });
        Ok(())
    }

    fn check_types(&self, number: usize, fields: [&TopicField; 2]) -> Result<(), Mistake> {
        for field in fields {
            let Some(named) = &field.message_type else { continue };
            let known = self.place(field).map(|place| self.topics[place].message_type);
            if known != MessageType::from_name(named) {
                let known = known.map_or("", MessageType::name);
                let reason = format!("the messages on {:?} are {known}, not {named}", field.topic);
                return Err(Mistake(number, Some(reason)));
            }
        }
        Ok(())
    }
}

const EXAMPLE: &str = "write it as [orders].[/account] = [accounts].[/id]";
