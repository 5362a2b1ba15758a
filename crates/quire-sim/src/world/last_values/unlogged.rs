//! Topics that are in memory only. The log does not have their states, so less is checked: each
//! result for itself, and at the end the views of the subscriptions against the last result.

use std::collections::BTreeMap;

use super::ledger::Ledger;
use super::log::{Row, TopicState};
use super::place::Shape;
use super::queries::Answered;
use super::streams::View;
use super::{Condition, Want};

impl Ledger {
    /// The result of a query of a topic that is not in the log.
    ///
    /// # Errors
    /// The result cannot be right.
    pub(super) fn take_unlogged(&mut self, answered: &Answered) -> Result<(), String> {
        let Answered { topic, want, is_ordered, top_n, rows, total, .. } = answered;
        let quantity = |value: u64| self.messages[value as usize].quantity;
        let view = BTreeMap::from_iter(rows.iter().copied());
        let matches = rows.iter().all(|(key, value)| want.matches(*key, quantity(*value)));
        let rank = |(_, value): &(u64, u64)| (std::cmp::Reverse(quantity(*value)), *value);
        let is_right = matches
            && view.len() == rows.len()
            && (!is_ordered || rows.is_sorted_by_key(rank))
            && match top_n {
                Some(top_n) => rows.len() <= *top_n,
                None => *total == rows.len() as u64,
            };
        if !is_right {
            return Err(format!("a query of topic {topic} gave {rows:?}, {total} in all ({want:?})"));
        }
        self.played.queried += 1;
        if matches!(want, Want { condition: Condition::All, keys: None }) && top_n.is_none() {
            self.last_views[*topic] = Some(view);
        }
        Ok(())
    }

    /// The records of a view that a subscription asks for.
    pub(super) fn visible(&self, shape: &Shape, view: &View) -> View {
        let row = |key| {
            let value = *view.get(&key)?;
            let quantity = self.messages[value as usize].quantity;
            Some(Row { value, quantity, expires: None, position: 0 })
        };
        let count = view.last_key_value().map_or(0, |(key, _)| key + 1);
        let state: TopicState = (0..count).map(row).collect();
        shape.shown(&state).into_iter().map(|(key, row)| (key, row.value)).collect()
    }
}
