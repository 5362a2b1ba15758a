//! Comparisons with the sources: the messages that this instance lacks are asked for
//! (docs/internals/copies.md, *Holes*).
//!
//! In a *round*, the log is compared with that of each source that is connected and has sent what
//! it had. A round begins when a source has caught up, by command, and at intervals. It begins with
//! the holes that the log has then. Those that no source could fill, and that no source leaves out,
//! are the *gap* (`gap.rs`).
//!
//! The comparison with one source is `quire_link::reconcile`. One question or request of each
//! source is under way at a time, and answers are compared by jobs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quire_journal::{Bookmark, PublisherId, Reader};
use quire_link::SequenceRanges;
use quire_link::reconcile::{Next, Reconciliation};
use quire_link::summary::{Answer, MemoryAnswer, Question, Settled, answer_from_log};
use quire_types::Position;
use quire_types::time::Instant;
use quire_wire::link::Given;

use super::Links;
use super::connection::Connection;
use super::gap::Gap;
use super::incoming::Incoming;
use super::summary::VISITED_MAX;
use crate::context::Context;
use crate::io::{ConnectionId, Event};

/// The time between two rounds, at least.
const INTERVAL: Duration = Duration::from_secs(1);

/// Holes that a round looks at, at most. They take 160 KB.
const HOLES_MAX: usize = 10_000;

/// See the documentation of the module.
#[derive(Debug, Default)]
pub(super) struct Comparisons {
    is_wanted: bool,
    /// When the next round may begin.
    due: Option<Instant>,
    /// When a round is due without another reason.
    scheduled: Option<Instant>,
    round: Option<Round>,
    /// The settled ranges of each source, and the start of its process. After another start it may
    /// send other topics.
    settled: BTreeMap<Arc<str>, (u64, Settled)>,
    round_count: u64,
}

#[derive(Debug, Default)]
struct Round {
    /// Publishers whose holes were looked at. `None`: all.
    visited_count: Option<usize>,
    holes: Arc<SequenceRanges>,
    comparings: Vec<Comparing>,
    /// Holes whose messages do not come here.
    left_out: SequenceRanges,
    /// A comparison has failed, or there are more holes than are looked at.
    is_partial: bool,
    /// The end of the log when the last comparison ended.
    through: Option<Position>,
}

/// The comparison with one source.
#[derive(Debug)]
struct Comparing {
    connection: ConnectionId,
    source: Arc<str>,
    started_ns: u64,
    step: Step,
}

#[derive(Debug)]
enum Step {
    Next(Box<Reconciliation>),
    /// The source is asked.
    Asked(Box<Reconciliation>, u64, Question),
    /// It has answered, and the answer here is made from memory.
    Answering(Box<Reconciliation>, MemoryAnswer, Vec<u8>),
    /// It has answered. The log is read for the answer here when it is on the disk up to the
    /// position: with what the source had sent before it answered.
    Answered(Box<Reconciliation>, Question, Vec<u8>, Position),
    /// A job compares the answers.
    Comparing(u64),
    /// The source is to send messages.
    Wanted(Box<Reconciliation>, u64),
    Failed(String),
    Over,
}

/// A frame of the source.
#[derive(Debug)]
pub(super) enum FromSource {
    Answered(u64, Result<Vec<u8>, String>),
    Given(u64, Result<Given, String>),
}

/// The result of a job that compares two answers.
type Compared = (Box<Reconciliation>, Result<(), String>);

impl Comparisons {
    /// Wants another round, after the one that may be under way. `is_urgent`: it begins at once.
    pub(super) fn want(&mut self, is_urgent: bool) {
        self.is_wanted = true;
        self.due = self.due.filter(|_| !is_urgent);
    }

    /// A message of a source is not recorded here, because of the settings of this instance.
    pub(super) fn note_unrecorded(&mut self, bookmark: Bookmark) {
        let Some(round) = &mut self.round else { return };
        let Bookmark { publisher, sequence } = bookmark;
        if round.holes.overlaps(publisher, sequence, sequence) {
            round.left_out.insert(publisher, sequence, sequence);
        }
    }

    /// Continues the round, or begins one. `expected` are the instances that send to this one, as
    /// far as it is known.
    pub(super) fn advance(
        &mut self,
        cx: &mut Context,
        connections: &mut [Connection],
        expected: &[&str],
        gap: &mut Gap,
    ) {
        let now = cx.clock.now.instant;
        if self.round.is_none() {
            self.begin(cx, connections);
        }
        let Some(round) = &mut self.round else { return };
        if let Some(visited_count) = round.visited_count {
            return round.look_for_holes(cx, visited_count, connections, &self.settled);
        }
        for connection in &mut *connections {
            let replies = connection.incoming.take_replies();
            let is_of = |comparing: &&mut Comparing| comparing.connection == connection.id;
            let Some(comparing) = round.comparings.iter_mut().find(is_of) else { continue };
            replies.into_iter().for_each(|reply| comparing.take(cx, reply));
        }
        for comparing in &mut round.comparings {
            let connection = connections.iter_mut().find(|connection| connection.id == comparing.connection);
            let incoming = connection.map(|connection| &mut connection.incoming);
            let is_up = |incoming: &&mut Incoming| {
                incoming.is_open()
                    && incoming.source().is_some_and(|source| source.name == comparing.source)
                    && comparing.asked().is_none_or(|number| incoming.awaits(number))
            };
            let Some(incoming) = incoming.filter(is_up) else {
                round.is_partial |= !matches!(comparing.step, Step::Over);
                comparing.step = Step::Over;
                continue;
            };
            match comparing.advance(cx, incoming) {
                Ok(None) => (),
                Ok(Some(finished)) => {
                    let (settled, left_out, count) = finished.finish();
                    let source = Arc::clone(&comparing.source);
                    if count > 0 {
                        cx.note(Event::LinkCompared { source: source.to_string(), count });
                    }
                    self.settled.insert(source, (comparing.started_ns, settled));
                    left_out.iter().for_each(|(publisher, first, last)| {
                        round.left_out.insert(publisher, first, last);
                    });
                }
                Err(reason) => {
                    round.is_partial = true;
                    cx.note(Event::LinkNotCompared { source: comparing.source.to_string(), reason });
                }
            }
        }
        if round.comparings.iter().all(|comparing| matches!(comparing.step, Step::Over)) {
            let through = *round.through.get_or_insert(cx.log.appended());
            // Another comparison then finds the recorded messages.
            if cx.log.journal.persisted() >= through {
                self.end(cx, now, expected, gap);
            }
        }
    }

    fn begin(&mut self, cx: &mut Context, connections: &[Connection]) {
        let now = cx.clock.now.instant;
        let interval = cx.config.replication.compare_interval_ns.map(Duration::from_nanos);
        let scheduled = *self.scheduled.get_or_insert(now + interval.unwrap_or_default());
        if interval.is_some() && scheduled <= now {
            self.is_wanted = true;
        }
        if !self.is_wanted || self.due.is_some_and(|due| due > now) {
            return;
        }
        (self.is_wanted, self.scheduled) = (false, None);
        if !connections.iter().any(is_comparable) {
            // There is no source to compare with.
            self.round_count += 1;
            return;
        }
        self.round = Some(Round { visited_count: Some(0), ..Round::default() });
        cx.clock.wants_turn = true;
    }

    fn end(&mut self, cx: &mut Context, now: Instant, expected: &[&str], gap: &mut Gap) {
        let Some(round) = self.round.take() else { return };
        self.due = Some(now + INTERVAL);
        self.round_count += 1;
        cx.clock.wants_turn |= self.is_wanted;
        let has = |name: &&str| round.comparings.iter().any(|comparing| *comparing.source == **name);
        if round.is_partial || !expected.iter().all(has) {
            // A source that was not asked can have the messages, or leave them out.
            return;
        }
        let mut found = SequenceRanges::default();
        for (publisher, first, last) in open_holes(cx, &round.holes) {
            for (first, last) in round.left_out.missing(publisher, first, last) {
                found.insert(publisher, first, last);
            }
        }
        if gap.found(&cx.log.journal, found, &round.left_out) {
            gap.event().into_iter().for_each(|event| cx.note(event));
        }
    }

    /// A job has compared two answers; `None` after a bug.
    fn compared(&mut self, cx: &mut Context, number: u64, found: Option<Compared>) {
        let Some(round) = &mut self.round else { return };
        let is_of =
            |comparing: &&mut Comparing| matches!(comparing.step, Step::Comparing(job) if job == number);
        let Some(comparing) = round.comparings.iter_mut().find(is_of) else { return };
        cx.clock.wants_turn = true;
        let error = match found {
            Some((reconciliation, Ok(()))) => {
                comparing.step = Step::Next(reconciliation);
                return;
            }
            Some((_, Err(reason))) => reason,
            None => "the answers were not compared".to_owned(),
        };
        round.is_partial = true;
        comparing.step = Step::Over;
        cx.note(Event::LinkNotCompared { source: comparing.source.to_string(), reason: error });
    }

    /// When the next round begins.
    pub(super) fn next_timeout(&self, cx: &Context) -> Option<Instant> {
        if self.round.is_some() {
            return None;
        }
        let scheduled = self.scheduled.filter(|_| cx.config.replication.compare_interval_ns.is_some());
        self.due.filter(|_| self.is_wanted).into_iter().chain(scheduled).min()
    }

    /// The rounds that have ended.
    pub(super) fn round_count(&self) -> u64 {
        self.round_count
    }

    /// A round is under way.
    pub(super) fn is_comparing(&self) -> bool {
        self.round.is_some()
    }
}

impl Round {
    /// Looks for holes in the knowledge of the log, some publishers in a turn. Then begins the
    /// comparisons.
    fn look_for_holes(
        &mut self,
        cx: &mut Context,
        visited_count: usize,
        connections: &[Connection],
        settled: &BTreeMap<Arc<str>, (u64, Settled)>,
    ) {
        cx.clock.wants_turn = true;
        let holes = Arc::make_mut(&mut self.holes);
        for (publisher, first, last) in cx.log.journal.exact_holes(visited_count, VISITED_MAX) {
            match holes.range_count() < HOLES_MAX {
                true => holes.insert(publisher, first, last),
                false => self.is_partial = true,
            }
        }
        let visited_count = visited_count + VISITED_MAX;
        self.visited_count = Some(visited_count).filter(|count| *count < cx.log.journal.publisher_count());
        if self.visited_count.is_some() {
            return;
        }
        for connection in connections.iter().filter(|connection| is_comparable(connection)) {
            let Some(source) = connection.incoming.source() else { continue };
            let earlier =
                settled.get(&source.name).filter(|(started_ns, _)| *started_ns == source.started_ns);
            let settled = earlier.map(|(_, settled)| settled.clone()).unwrap_or_default();
            self.comparings.push(Comparing {
                connection: connection.id,
                source: Arc::clone(&source.name),
                started_ns: source.started_ns,
                step: Step::Next(Box::new(Reconciliation::new(settled, Arc::clone(&self.holes)))),
            });
        }
    }
}

impl Comparing {
    /// Takes a frame of the source. One that is not the answer belongs to an earlier round.
    fn take(&mut self, cx: &mut Context, reply: FromSource) {
        self.step = match (std::mem::replace(&mut self.step, Step::Over), reply) {
            (Step::Asked(reconciliation, number, question), FromSource::Answered(of, answer))
                if number == of =>
            {
                match answer {
                    Ok(there) => match MemoryAnswer::begin(&question) {
                        Some(memory) => Step::Answering(reconciliation, memory, there),
                        None => Step::Answered(reconciliation, question, there, cx.log.appended()),
                    },
                    Err(reason) => Step::Failed(reason),
                }
            }
            (Step::Wanted(mut reconciliation, number), FromSource::Given(of, given)) if number == of => {
                match given
                    .and_then(|given| reconciliation.handle_given(&given).map_err(|error| error.to_string()))
                {
                    Ok(()) => Step::Next(reconciliation),
                    Err(reason) => Step::Failed(reason),
                }
            }
            (step, _) => step,
        };
    }

    /// The request that the source is to answer.
    fn asked(&self) -> Option<u64> {
        match self.step {
            Step::Asked(_, number, _) | Step::Wanted(_, number) => Some(number),
            _ => None,
        }
    }

    /// Continues. Returns the comparison when it is complete.
    ///
    /// # Errors
    /// Why it cannot be completed.
    fn advance(
        &mut self,
        cx: &mut Context,
        incoming: &mut Incoming,
    ) -> Result<Option<Box<Reconciliation>>, String> {
        self.step = match std::mem::replace(&mut self.step, Step::Over) {
            Step::Next(mut reconciliation) => match reconciliation.next_step() {
                Next::Ask(question) => match incoming.ask_source(cx, &question) {
                    Some(number) => Step::Asked(reconciliation, number, question),
                    None => return Err("the link has ended".to_owned()),
                },
                Next::Want(ranges) => match incoming.want(cx, ranges) {
                    Some(number) => Step::Wanted(reconciliation, number),
                    None => return Err("the link has ended".to_owned()),
                },
                Next::Nothing => return Ok(Some(reconciliation)),
            },
            Step::Answering(reconciliation, mut memory, there) => {
                if memory.advance(&cx.log.journal, VISITED_MAX) {
                    compare(cx, reconciliation, move || Ok(memory.into_answer()), there)
                } else {
                    cx.clock.wants_turn = true;
                    Step::Answering(reconciliation, memory, there)
                }
            }
            Step::Answered(reconciliation, question, there, appended)
                if cx.log.journal.persisted() >= appended =>
            {
                let reader = cx.log.reader.clone();
                compare(cx, reconciliation, move || read_answer(&question, &reader), there)
            }
            Step::Failed(reason) => return Err(reason),
            step => step,
        };
        Ok(None)
    }
}

/// Begins a job that compares two answers: they can be large.
fn compare(
    cx: &mut Context,
    mut reconciliation: Box<Reconciliation>,
    here: impl FnOnce() -> Result<Answer, String> + Send + 'static,
    there: Vec<u8>,
) -> Step {
    let job = move |_| {
        let result = here().and_then(|here| {
            let there = Answer::decode(&there).ok_or("an answer about its messages cannot be read")?;
            reconciliation.handle_answers(here, there).map_err(|error| error.to_string())
        });
        (reconciliation, result)
    };
    Step::Comparing(cx.begin_job(job, |links: &mut Links, cx, number, found| {
        links.comparisons.compared(cx, number, found);
    }))
}

fn read_answer(question: &Question, reader: &Reader) -> Result<Answer, String> {
    match answer_from_log(question, reader) {
        Ok(Some(answer)) => Ok(answer),
        Ok(None) => Err("the log was not read".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Whether the log can be compared with that of the instance: it has sent what it had.
fn is_comparable(connection: &Connection) -> bool {
    connection.incoming.is_open() && connection.incoming.has_caught_up()
}

/// The parts of the ranges that are holes of the log now.
fn open_holes(cx: &Context, ranges: &SequenceRanges) -> Vec<(PublisherId, u64, u64)> {
    let mut open = Vec::new();
    for (publisher, first, last) in ranges.iter() {
        let holes = cx.log.journal.exact_holes_of(publisher);
        let inside = holes.map(|(begin, end)| (begin.max(first), end.min(last)));
        open.extend(
            inside.filter(|(first, last)| first <= last).map(|(first, last)| (publisher, first, last)),
        );
    }
    open
}
