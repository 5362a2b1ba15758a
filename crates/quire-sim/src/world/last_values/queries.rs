//! The result of a query is the state of the topic at one position between the command and its last
//! record, or that of the instant that its bookmark names.

use super::Want;
use super::ledger::Span;
use super::log::{Earlier, Instant, Log, Row, TopicState};
use super::streams::{Lifetimes, brief};

/// A query that was answered.
pub(super) struct Answered {
    pub topic: usize,
    pub want: Want,
    /// Sorted by `/q` from the highest, then by the number of the message.
    pub is_ordered: bool,
    pub top_n: Option<usize>,
    pub skip_n: usize,
    /// Values of `/k` and numbers of messages, in the order of the result.
    pub rows: Vec<(u64, u64)>,
    /// How many records match, as the server says.
    pub total: u64,
    pub span: Span,
    /// It asks for the state of an earlier instant.
    pub earlier: Option<Earlier>,
}

impl Answered {
    /// # Errors
    /// The result was the state at no position.
    pub fn check(&self, log: &Log, lifetimes: Lifetimes) -> Result<(), String> {
        if let Some(earlier) = &self.earlier {
            let is_at =
                |at: &Instant| self.fits(&log.state_at(at), Lifetimes { over: at.time_ns, peak: at.time_ns });
            if earlier.0.iter().any(is_at) {
                return Ok(());
            }
            let states: Vec<_> = earlier.0.iter().map(|at| brief(&log.state_at(at))).collect();
            return Err(format!(
                "a query of topic {} gave {:?} for {earlier:?}, where its state was one of {states:?} ({:?})",
                self.topic, self.rows, self.want
            ));
        }
        let mut state = TopicState::new();
        let is_right = log.any_state(self.span.from, self.span.to, |_, at| {
            state.clone_from(at);
            self.fits(at, lifetimes)
        });
        if is_right {
            return Ok(());
        }
        let state = brief(&state);
        let Answered { topic, want, is_ordered, top_n, skip_n, rows, total, span, .. } = self;
        Err(format!(
            "a query of topic {topic} gave {rows:?}, {total} in all, which was its state at no position from {} to {} \
             ({want:?}, ordered {is_ordered}, top {top_n:?}, skip {skip_n}); the last state was {state:?}",
            span.from, span.to
        ))
    }

    fn fits(&self, state: &TopicState, lifetimes: Lifetimes) -> bool {
        let matching = (0..).zip(state).filter_map(|(key, row)| Some((key, (*row)?)));
        let matching = matching.filter(|(key, row)| self.want.matches(*key, row.quantity));
        let is_over = |row: &Row| row.expires.is_some_and(|at| at <= lifetimes.over);
        let mut possible: Vec<(u64, Row)> = matching.filter(|(_, row)| !is_over(row)).collect();
        let must_be_there = |row: &Row| row.expires.is_none_or(|at| at > lifetimes.peak);
        let certain = possible.iter().filter(|(_, row)| must_be_there(row)).count();
        let all = possible.len();
        if self.is_ordered {
            possible.sort_by_key(|(_, row)| (std::cmp::Reverse(row.quantity), row.value));
        }
        let place = |wanted: &(u64, u64)| possible.iter().position(|(key, row)| (*key, row.value) == *wanted);
        let Some(places) = self.rows.iter().map(place).collect::<Option<Vec<_>>>() else { return false };
        if self.is_ordered && !places.is_sorted() {
            return false;
        }
        let cut = |count: usize| count.saturating_sub(self.skip_n).min(self.top_n.unwrap_or(usize::MAX));
        if !(cut(certain)..=cut(all)).contains(&self.rows.len()) {
            return false;
        }
        if self.top_n.is_none() {
            // All that must be there are there.
            let found = places.iter().filter(|place| must_be_there(&possible[**place].1)).count();
            return found == certain && self.total == self.rows.len() as u64;
        }
        // Which ones are left out is certain when the order is, and all lifetimes are.
        !self.is_ordered
            || certain < all
            || places.iter().copied().eq(self.skip_n..self.skip_n + places.len())
    }
}
