//! The topics and queues that only one instance has, and everything that uses them: clients of this
//! instance alone, visitors and an operator. A world of one instance has one cast. In a world of
//! several, some instances have one.

use quire_broker::{BrokerConfig, Limits, MaintenanceConfig, QueueSettings, RecordedTopic, TransportConfig};
use quire_queue::Semantics;
use quire_types::time::Now;

use super::auditor::Auditor;
use super::client::Client;
use super::last_values::{self, Ledger, Topic};
use super::operator::Operator;
use super::visitor::Visitor;
use super::{Canary, SECOND_NS, jobs, replays};
use crate::random::Random;

/// The queues, by name.
pub(super) const AT_LEAST_ONCE: &str = "work";
pub(super) const AT_MOST_ONCE: &str = "once";

pub(super) const ARCHIVE: &str = "archive";

/// Numbers of the first visitor and of the operator of the first instance, as processes of the
/// network and as publishers.
const FIRST_VISITOR: usize = 1000;
const OPERATOR: usize = 2000;
/// The visitors of an instance, at most.
const VISITOR_COUNT_MAX: u64 = 3;

/// The `max_client_backlog` of most casts, small enough to be reached, and the smallest that a
/// configuration may name.
const BACKLOG_MAX: u64 = 64 << 10;
const BACKLOG_MAX_LEAST: u64 = 1024;

/// The settings of an instance for its cast.
pub(super) struct Setup {
    backlog_max: u64,
    /// Rules of the maintenance schedule are drawn from here; `None`: there are none.
    rules: Option<Random>,
    /// Whether a rule removes files of the journal.
    may_remove: bool,
    last_values: Vec<Topic>,
    has_jobs: bool,
    /// The dead letters of jobs start an action.
    has_action: bool,
    /// Messages that are not well formed are refused.
    validates: bool,
}

/// A part that not every cast has.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Part {
    /// A schedule for the files of the journal.
    Maintenance,
    Jobs,
    /// An action that dead letters start.
    Action,
    CombinedReplays,
    LastValues,
    /// Queries of earlier states.
    EarlierStates,
    /// Subscriptions that continue after an earlier state.
    Following,
    Pages,
    Conflation,
}

impl Part {
    /// The part that a deliberate mistake concerns.
    fn of(canary: Canary) -> Option<Self> {
        match canary {
            Canary::EarlyRemoval => Some(Part::Maintenance),
            Canary::ForgottenRenewal
            | Canary::ForgottenRelease
            | Canary::ForgottenRenewalAtBegin
            | Canary::BegunLost => Some(Part::Jobs),
            Canary::EarlyPlace => Some(Part::Action),
            Canary::SeparateReplays => Some(Part::CombinedReplays),
            Canary::LateRecord
            | Canary::ForgottenOof
            | Canary::ForgottenDelete
            | Canary::SkippedChange
            | Canary::SkippedDifference => Some(Part::LastValues),
            Canary::LaterState => Some(Part::EarlierStates),
            Canary::SkippedFollowing => Some(Part::Following),
            Canary::SkippedMove => Some(Part::Pages),
            Canary::OlderMessage => Some(Part::Conflation),
            _ => None,
        }
    }
}

pub(super) struct Cast {
    pub setup: Setup,
    pub clients: Vec<Client>,
    pub visitors: Vec<Visitor>,
    pub operator: Option<Operator>,
    pub auditor: Auditor,
}

impl Cast {
    /// The cast of the instance `home`. `random` draws those that each cast has. `is_alone`: the
    /// world has no other instance. With a deliberate mistake, the cast has the part that it
    /// concerns.
    pub fn draw(
        seed: u64,
        home: usize,
        is_alone: bool,
        random: &mut Random,
        canary: Option<Canary>,
        now: Now,
    ) -> Self {
        let part = canary.and_then(Part::of);
        let mut seeds = Random::new(seed);
        let mut cast = Cast::draw_any(seed, home, is_alone, random, canary, now);
        while part.is_some_and(|part| !cast.has(part)) {
            cast = Cast::draw_any(seeds.number(), home, is_alone, random, canary, now);
        }
        cast
    }

    fn has(&self, part: Part) -> bool {
        let Setup { rules, last_values, .. } = &self.setup;
        match part {
            Part::Maintenance => rules.is_some(),
            Part::Action => self.setup.has_action,
            Part::EarlierStates => last_values.iter().any(Topic::has_earlier_states),
            _ => self.clients.iter().any(|client| client.is_of(part)),
        }
    }

    fn draw_any(
        seed: u64,
        home: usize,
        is_alone: bool,
        random: &mut Random,
        canary: Option<Canary>,
        now: Now,
    ) -> Self {
        // The parts of only some casts are drawn separately: the others stay as they are when a
        // kind is added or changed.
        let apart = |tag: u64| Random::new(seed ^ tag.rotate_left(40) ^ (home as u64).rotate_left(56));
        let publishers = 1 + random.below(3);
        let readers = 2 + random.below(4);
        let mut clients: Vec<_> =
            (0..publishers).map(|number| Client::publisher(number, home, random, now)).collect();
        clients.extend((0..readers).map(|number| Client::reader(number, home, random, now)));
        let workers = random.below(5);
        clients.extend((0..workers).map(|number| Client::worker(number, home, random, now)));
        // One worker always takes the messages of the queue.
        clients.push(Client::worker(workers / 3 * 3 + 3, home, random, now));
        let mut visiting = apart(0x0076);
        let visitor_count = if visiting.percent(50) { 1 + visiting.below(VISITOR_COUNT_MAX) } else { 0 };
        let backlog_max = if visiting.percent(20) { BACKLOG_MAX_LEAST } else { BACKLOG_MAX };
        let visitors = (0..visitor_count as usize).map(|number| {
            let number = FIRST_VISITOR + home * VISITOR_COUNT_MAX as usize + number;
            Visitor::new(number, home, Random::new(visiting.number()))
        });
        let visitors = visitors.collect();
        let mut maintenance = apart(0x006d);
        let has_rules = maintenance.percent(50);
        if has_rules {
            clients.iter_mut().for_each(Client::linger);
        }
        let mut defining = apart(0x0071);
        let operator = defining
            .percent(50)
            .then(|| Operator::new(OPERATOR + home, home, Random::new(defining.number())));
        let (mut last_values, mut more) = (apart(0x0073), apart(0x0074));
        let topics = last_values::draw_topics(&mut last_values, &mut more);
        for (name, program) in
            last_values::Program::draw_all(&topics, &mut last_values, &mut more, !has_rules)
        {
            clients.push(Client::last_values(name, home, program, &mut last_values, now));
        }
        let mut jobs = apart(0x006a);
        let has_jobs = jobs.percent(50);
        let mut acting = apart(0x0061);
        let has_action = has_jobs && acting.percent(50);
        if has_jobs {
            let action = has_action.then(|| Random::new(acting.number()));
            for (name, program) in jobs::Program::draw_all(&mut jobs, action, canary) {
                clients.push(Client::jobs(name, home, program, &mut jobs, now));
            }
        }
        let mut combined = apart(0x0063);
        if combined.percent(50) {
            let program = replays::Program::new(Random::new(combined.number()), canary);
            clients.push(Client::replays("combined".into(), home, program, &mut combined, now));
        }
        let validates = apart(0x0077).percent(50);
        let ledger = Ledger::new(topics.clone(), canary, last_values.number());
        let first_late = if is_alone { usize::MAX } else { FIRST_VISITOR };
        Cast {
            setup: Setup {
                backlog_max,
                rules: has_rules.then_some(maintenance),
                may_remove: is_alone,
                last_values: topics,
                has_jobs,
                has_action,
                validates: validates && canary != Some(Canary::ForgottenValidation),
            },
            clients,
            visitors,
            operator,
            auditor: Auditor::new(canary, random.number(), validates, first_late, ledger),
        }
    }
}

impl Setup {
    /// Adds the topics and queues of the cast to a configuration.
    pub fn add_to(&mut self, config: &mut BrokerConfig, random: &mut Random) {
        let recorded = RecordedTopic { validate: self.validates, ..RecordedTopic::new("^recorded/", "json") };
        let passing = RecordedTopic { recorded: false, ..RecordedTopic::new("^passing/", "json") };
        let jobs = self.has_jobs.then(jobs::rules).into_iter().flatten();
        let log = &mut config.transaction_log;
        log.topics.extend([recorded, passing].into_iter().chain(last_values::rules()).chain(jobs));
        log.journal_archive_directory = Some(ARCHIVE.into());
        let may_remove = self.may_remove;
        log.maintenance = self.rules.as_mut().map(|random| rules(random, may_remove)).unwrap_or_default();
        config.queues.extend([at_least_once(random), at_most_once(random)]);
        config.queues.extend(self.has_jobs.then(|| jobs::settings(self.has_action)));
        if self.has_action {
            config.events = jobs::events();
        }
        config.sow_topics.extend(last_values::settings(&self.last_values));
        for transport in &mut config.transports {
            *transport = TransportConfig { max_client_backlog: self.backlog_max, ..transport.clone() };
        }
        config.limits = Limits { max_unpersisted: 16 << 10 << random.below(6), ..Limits::default() };
    }
}

/// Rules of a maintenance schedule. Some of them are absent, so that the others go deeper.
pub(super) fn rules(random: &mut Random, may_remove: bool) -> MaintenanceConfig {
    let mut sometimes = |most: u64| random.percent(40).then(|| 1 + random.below(most));
    MaintenanceConfig {
        archive_after_ns: sometimes(5 * SECOND_NS),
        compress_after_ns: sometimes(5 * SECOND_NS),
        remove_after_ns: sometimes(3 * SECOND_NS).filter(|_| may_remove),
        archive_size_max: sometimes(4 << 16),
        compress_size_max: sometimes(4 << 16),
        remove_size_max: sometimes(3 << 16).filter(|_| may_remove),
        interval_ns: SECOND_NS / 10 + random.below(2 * SECOND_NS),
        ..MaintenanceConfig::default()
    }
}

/// A queue whose leases end while some workers still hold on to them.
fn at_least_once(random: &mut Random) -> QueueSettings {
    QueueSettings {
        name: AT_LEAST_ONCE.into(),
        message_type: "json".into(),
        underlying_topic: Some("recorded/b".into()),
        lease_period_ns: Some(SECOND_NS / 2),
        max_per_subscription_backlog: Some(1 + random.below(50) as u32),
        // From start to start the state is kept or not, and a file may be there or not.
        file_backed_metadata: random.below(2) == 0,
        record_leases: true,
        ..QueueSettings::default()
    }
}

fn at_most_once(random: &mut Random) -> QueueSettings {
    QueueSettings {
        name: AT_MOST_ONCE.into(),
        message_type: "json".into(),
        underlying_topic: Some("recorded/a".into()),
        semantics: Semantics::AtMostOnce,
        file_backed_metadata: random.below(2) == 0,
        record_leases: true,
        ..QueueSettings::default()
    }
}
