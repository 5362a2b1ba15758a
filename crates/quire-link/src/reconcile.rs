//! Finds the messages of a source that the destination lacks, and asks for them
//! (docs/internals/copies.md, *Holes*).
//!
//! A [`Reconciliation`] compares the two logs, and asks for the messages that only the source has,
//! or that it has of another run. A source leaves out the messages that do not go to the
//! destination. So each request gets an answer once, and nothing is asked for again.
//!
//! Carry out [`next_step`](Reconciliation::next_step): answer the question from both logs with
//! [`handle_answers`](Reconciliation::handle_answers), or send the request, and hand the result to
//! [`handle_given`](Reconciliation::handle_given). Repeat this until there is nothing.

use std::sync::Arc;

use quire_types::PublisherId;
use quire_wire::link::{Given, WANTED_MAX, Wanted};

use crate::ranges::SequenceRanges;
use crate::summary::{Answer, BadAnswer, Comparison, Question, Settled, Side};

/// The next step of a [`Reconciliation`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Ask both logs.
    Ask(Question),
    /// Ask the source for messages.
    Want(Vec<Wanted>),
    /// It is complete.
    Nothing,
}

/// See the documentation of the module.
#[derive(Debug)]
pub struct Reconciliation {
    comparison: Comparison,
    /// The holes of the log here when the comparison began.
    holes: Arc<SequenceRanges>,
    /// The messages to ask for, ascending within a publisher.
    wanted: Vec<Wanted>,
    /// The holes among the messages that do not go here.
    left_out: SequenceRanges,
    given_count: u64,
}

impl Reconciliation {
    /// A comparison that passes over what an earlier one with this source has settled.
    pub fn new(settled: Settled, holes: Arc<SequenceRanges>) -> Self {
        Reconciliation {
            comparison: Comparison::with_settled(settled, Arc::clone(&holes)),
            holes,
            wanted: Vec::new(),
            left_out: SequenceRanges::default(),
            given_count: 0,
        }
    }

    /// The next step.
    pub fn next_step(&mut self) -> Next {
        if !self.wanted.is_empty() {
            return Next::Want(self.wanted[..self.wanted.len().min(WANTED_MAX)].to_vec());
        }
        self.comparison.settle_compared();
        self.comparison.question().map_or(Next::Nothing, |question| Next::Ask(question.clone()))
    }

    /// Takes the answers of both logs to the question.
    ///
    /// # Errors
    /// One of them is not an answer to the question.
    pub fn handle_answers(&mut self, here: Answer, there: Answer) -> Result<(), BadAnswer> {
        self.comparison.handle_answer(Side::Here, here)?;
        self.comparison.handle_answer(Side::There, there)?;
        // Messages that maintenance has removed are not missing.
        for (publisher, kept_from) in self.comparison.take_kept() {
            self.leave_out(publisher, 0, kept_from - 1);
        }
        for range in self.comparison.take_ranges() {
            // The source compares it in the other direction.
            if range.missing != Some(Side::There) {
                let (publisher, first, last) = (range.publisher, range.first, range.last);
                let is_hole = self.holes.overlaps(publisher, first, last);
                self.wanted.push(Wanted { publisher, first, last, is_hole });
            }
        }
        Ok(())
    }

    /// Takes the result of the request for messages. The records came before.
    ///
    /// # Errors
    /// It is not the result of the request.
    pub fn handle_given(&mut self, given: &Given) -> Result<(), BadAnswer> {
        let done = given.done as usize;
        let asked_count = self.wanted.len().min(WANTED_MAX);
        let next = self.wanted.get(done).filter(|_| done < asked_count).copied();
        // Without progress, it would be asked for for ever.
        let has_progress = done > 0 || next.is_some_and(|wanted| given.next > wanted.first);
        let fits = done <= asked_count && next.is_none_or(|wanted| given.next <= wanted.last);
        if !has_progress || !fits {
            return Err(BadAnswer);
        }
        if let Some(wanted) = next {
            self.wanted[done].first = given.next.max(wanted.first);
        }
        self.wanted.drain(..done);
        self.given_count = self.given_count.saturating_add(given.sent);
        for (publisher, first, last) in &given.left_out {
            self.leave_out(*publisher, *first, *last);
        }
        Ok(())
    }

    /// Messages that do not come. Only those in holes are noted.
    fn leave_out(&mut self, publisher: PublisherId, first: u64, last: u64) {
        for (first, last) in self.holes.overlapping(publisher, first, last) {
            self.left_out.insert(publisher, first, last);
        }
    }

    /// Ends it. Returns the settled ranges, the holes whose messages do not come, and how many
    /// messages the source sent.
    pub fn finish(self) -> (Settled, SequenceRanges, u64) {
        (self.comparison.into_settled(), self.left_out, self.given_count)
    }
}
