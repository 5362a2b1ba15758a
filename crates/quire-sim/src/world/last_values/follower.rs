//! A program that has one subscription with records at a time.

use std::collections::BTreeMap;
use std::time::Duration;

use quire_broker::TableExpiration;
use quire_client::{ClientCore, CommandId, Event, Failure, RecordsSpec, SubscriptionSpec};
use quire_command::SubscribeOptions;
use quire_types::time::Now;

use super::ledger::{Ledger, Span};
use super::place::Shape;
use super::program::is_refusal;
use super::streams::Course;
use super::{ORDER, Topic, Want};
use crate::random::Random;
use crate::world::cast::Part;

/// See the module.
pub(in crate::world) struct Follower {
    wants_oof: bool,
    is_delta: bool,
    kind: Kind,
    topic: usize,
    running: Option<Running>,
}

/// The messages that it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Whole,
    /// Only the records at some places of the order.
    Page,
    /// At most one message about each record in an interval.
    Conflated,
    /// The messages of the log after an earlier state.
    Earlier,
}

struct Running {
    subscription: u32,
    entering: Option<CommandId>,
    /// The command that replaces the subscription.
    replacing: Option<CommandId>,
    stream: usize,
    /// The instant of the records is in this time.
    span: Span,
}

impl Follower {
    /// `more` draws what only some followers have. `keeps_files`: the log keeps its files, so that
    /// no message after an earlier state is gone.
    pub fn draw(topics: &[Topic], random: &mut Random, more: &mut Random, keeps_files: bool) -> Self {
        let (wants_oof, is_delta) = (random.percent(70), random.percent(40));
        let topic = random.below(topics.len() as u64) as usize;
        let keeps_states = topics[topic].granularity_ns.is_some() && keeps_files;
        let kind = match more.below(6) {
            0..3 if keeps_states => Kind::Earlier,
            // After the end of a lifetime outside the page, another record enters it: the log does
            // not tell when.
            0 | 3 if topics[topic].expiration == TableExpiration::Disabled => Kind::Page,
            2 | 4 => Kind::Conflated,
            _ => Kind::Whole,
        };
        let is_whole = kind == Kind::Whole;
        Follower {
            wants_oof: wants_oof && kind != Kind::Earlier,
            is_delta: is_delta && is_whole,
            kind,
            topic,
            running: None,
        }
    }

    /// Whether it is of a part of a cast.
    pub fn is_of(&self, part: Part) -> bool {
        match part {
            Part::Following => self.kind == Kind::Earlier,
            Part::Pages => self.kind == Kind::Page,
            Part::Conflation => self.kind == Kind::Conflated,
            _ => false,
        }
    }

    pub fn leave(&mut self, ledger: &mut Ledger) {
        if let Some(running) = self.running.take() {
            ledger.over(running.stream);
        }
    }

    pub fn act(
        &mut self,
        name: &str,
        core: &mut ClientCore,
        now: Now,
        random: &mut Random,
        ledger: &mut Ledger,
        is_settling: bool,
    ) {
        if let Some(running) = &self.running {
            if !is_settling && random.below(400) == 0 {
                let subscription = running.subscription;
                self.leave(ledger);
                let _ = core.unsubscribe(subscription);
            } else if !is_settling && random.below(80) == 0 {
                self.replace(core, random, ledger);
            }
            return;
        }
        let Some((mut spec, shape)) = self.draw_spec(random, ledger) else { return };
        let course = match self.kind {
            Kind::Whole | Kind::Page => Course::Whole,
            Kind::Conflated => Course::Conflated(BTreeMap::new()),
            Kind::Earlier => {
                let Some((bookmark, earlier)) = ledger.draw_earlier(self.topic, random) else { return };
                spec.bookmark = Some(bookmark);
                Course::Log { earlier, next: None }
            }
        };
        if let Ok((subscription, entering)) = core.subscribe(spec) {
            let stream = ledger.begin(name, self.topic, shape, course, self.wants_oof, self.is_delta);
            let (span, entering) = (ledger.span(now), Some(entering));
            self.running = Some(Running { subscription, entering, replacing: None, stream, span });
        }
    }

    /// The arguments of a subscription; `None`: it names a key that is not known yet.
    fn draw_spec(&self, random: &mut Random, ledger: &Ledger) -> Option<(SubscriptionSpec, Shape)> {
        let topic = self.topic;
        let want = Want::draw(&ledger.topics[topic], random);
        let keys = want.names(ledger, topic)?;
        let oof = if self.wants_oof { SubscribeOptions::OOF } else { SubscribeOptions::default() };
        let delta = if self.is_delta { SubscribeOptions::DELTA } else { SubscribeOptions::default() };
        let page = (self.kind == Kind::Page).then(|| (random.below(4) as u32, 1 + random.below(6) as u32));
        let interval = Duration::from_millis(20 + random.below(1_000));
        let spec = SubscriptionSpec {
            filter: want.filter(),
            options: SubscribeOptions::SOW.and(oof).and(delta),
            conflation: (self.kind == Kind::Conflated).then_some(interval),
            records: Some(RecordsSpec {
                keys,
                order_by: page.map(|_| ORDER.to_owned()),
                skip_n: page.map(|(skip_n, _)| skip_n),
                top_n: page.map(|(_, top_n)| top_n),
                ..RecordsSpec::default()
            }),
            ..SubscriptionSpec::new(ledger.topics[topic].name.clone())
        };
        let page = page.map(|(skip_n, top_n)| (skip_n as usize, top_n as usize));
        Some((spec, Shape { want, page, from: ledger.appended() }))
    }

    /// Replaces the subscription by one with another filter, other keys, or other places. The log
    /// does not tell when a lifetime ends, so this needs a topic without them.
    fn replace(&mut self, core: &mut ClientCore, random: &mut Random, ledger: &mut Ledger) {
        let can_be_replaced = matches!(self.kind, Kind::Whole | Kind::Page)
            && ledger.topics[self.topic].expiration == TableExpiration::Disabled;
        if !can_be_replaced {
            return;
        }
        let Some((spec, shape)) = self.draw_spec(random, ledger) else { return };
        let Some(running) = self.running.as_mut().filter(|running| running.is_entered()) else { return };
        if let Ok(command) = core.replace(running.subscription, spec) {
            running.replacing = Some(command);
            ledger.replace(running.stream, shape);
        }
    }

    pub fn take(&mut self, event: Event, now: Now, ledger: &mut Ledger) {
        let Some(running) = &mut self.running else { return };
        match event {
            // The subscription is entered again after it.
            Event::LoggedOn { .. } => {
                running.span = ledger.span(now);
                ledger.entered(running.stream);
            }
            Event::Outdated { subscription } if subscription == running.subscription => {
                ledger.outdated(running.stream);
            }
            Event::Messages { subscription, messages } if subscription == running.subscription => {
                messages.iter().for_each(|message| ledger.followed(running.stream, message));
            }
            Event::Completed { subscription, .. } if subscription == running.subscription => {
                ledger.complete(running.stream, running.span, now);
            }
            Event::Answered { command, result } if Some(command) == running.entering => {
                running.entering = None;
                if let Err(failure) = result {
                    self.end(Some(failure), ledger);
                }
            }
            Event::Answered { command, result } if Some(command) == running.replacing => {
                running.replacing = None;
                ledger.replaced(running.stream, result.is_ok());
                let refused = result.err().filter(|failure| is_refusal(failure.code));
                if let Some(failure) = refused.filter(|failure| !is_too_early(failure)) {
                    ledger.refused(format!("a replacement is refused: {failure}"));
                }
            }
            Event::Ended { subscription, failure } if subscription == running.subscription => {
                self.end(failure, ledger);
            }
            _ => (),
        }
    }

    fn end(&mut self, failure: Option<Failure>, ledger: &mut Ledger) {
        self.leave(ledger);
        if let Some(failure) = failure.filter(|failure| is_refusal(failure.code)) {
            ledger.refused(format!("a subscription with records is refused: {failure}"));
        }
    }
}

impl Running {
    /// The server knows the subscription, and no command waits.
    fn is_entered(&self) -> bool {
        self.entering.is_none() && self.replacing.is_none()
    }
}

/// Too many changes of the subscription wait.
fn is_too_early(failure: &Failure) -> bool {
    use quire_client::FailureCode::Wire;
    failure.code == Wire(quire_command::Code::LimitExceeded)
}
