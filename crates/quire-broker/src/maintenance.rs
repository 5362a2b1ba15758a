//! Journal maintenance: full journal files are archived, compressed and removed, by a schedule and
//! by command.
//!
//! The work waits for the disk. It leaves as a [`MaintenanceJob`] for the driver, one at a time. A
//! job is about one file. So the files that must stay are looked up again for each file, and a
//! command waits for at most one file.

use std::collections::VecDeque;
use std::time::Duration;

use quire_journal::{Action, Position, Which};

use super::admin::{AdminReply, Requester};
use super::config::MaintenanceConfig;
use super::context::Context;
use super::journal_files::{Failed, Maintenance, MaintenanceDone, MaintenanceJob};
use super::tail::LogConsumer;
use super::{Event, Output, Timer};
use crate::context::Shutdown;
use quire_command::Code;
use quire_types::Files;

/// The commands and rules that wait for their turn.
pub(super) struct MaintenanceService {
    /// Tasks take turns, one file each. At most one task of each connection, and one of the
    /// schedule.
    waiting: VecDeque<Task>,
    running: Option<Task>,
    schedule: Schedule,
}

enum Task {
    Asked {
        by: Requester,
        what: Maintenance,
    },
    /// The rule that runs, by its index, and the number of files that it has taken in this round.
    Scheduled {
        rule: usize,
        taken: usize,
    },
}

/// What is done at intervals. An interval begins when the rules have taken every file that they
/// mean.
struct Schedule {
    rules: Vec<(Action, Files)>,
    interval: Duration,
    /// The first interval begins with the first turn.
    has_begun: bool,
}

impl MaintenanceService {
    /// A service that has nothing to do but what is scheduled.
    pub(super) fn new(cx: &mut Context) -> Self {
        let config = &cx.config.transaction_log.maintenance;
        let (rules, interval) = (rules(config), Duration::from_nanos(config.interval_ns));
        if !rules.is_empty() {
            cx.clock.timers.set(Timer::Maintenance, cx.clock.now.instant);
        }
        let schedule = Schedule { rules, interval, has_begun: false };
        MaintenanceService { waiting: VecDeque::new(), running: None, schedule }
    }

    /// Takes a command. The reply follows when the job is done. `consumers` are those of the log.
    pub(super) fn ask(
        &mut self,
        cx: &mut Context,
        consumers: &[&dyn LogConsumer],
        by: Requester,
        what: Maintenance,
    ) {
        self.waiting.retain(|task| task.is_wanted(cx));
        if cx.shutdown != Shutdown::No {
            return cx.reply(&by, AdminReply::refused(Code::ShuttingDown, "the server is stopping"));
        }
        let connection = by.connection();
        let others = self.running.iter().chain(&self.waiting);
        if connection.is_some() && others.filter_map(Task::connection).any(|other| Some(other) == connection)
        {
            let reason = "the connection has a maintenance command that is not answered yet";
            return cx.reply(&by, AdminReply::refused(Code::LimitExceeded, reason));
        }
        self.waiting.push_back(Task::Asked { by, what });
        self.begin(cx, consumers);
    }

    /// The timer fired: the interval of the schedule is over.
    pub(super) fn timer_fired(&mut self, cx: &mut Context, consumers: &[&dyn LogConsumer]) {
        if !std::mem::replace(&mut self.schedule.has_begun, true) {
            return self.rest(cx);
        }
        self.waiting.push_back(Task::Scheduled { rule: 0, taken: 0 });
        self.begin(cx, consumers);
    }

    /// Takes the result of the job that was handed out, and hands out the next one.
    pub(super) fn done(&mut self, cx: &mut Context, consumers: &[&dyn LogConsumer], done: MaintenanceDone) {
        match self.running.take() {
            Some(Task::Asked { by, what }) => answer(cx, &by, &what, done),
            Some(Task::Scheduled { rule, taken }) => self.scheduled_done(cx, rule, taken, done),
            None => return,
        }
        self.begin(cx, consumers);
    }

    /// A rule continues until it selects no more files.
    fn scheduled_done(
        &mut self,
        cx: &mut Context,
        rule: usize,
        taken: usize,
        MaintenanceDone(outcome): MaintenanceDone,
    ) {
        let action = self.schedule.rules[rule].0;
        let (taken, failed) = match outcome {
            Ok(files) if !files.is_empty() => {
                return self.waiting.push_back(Task::Scheduled { rule, taken: taken + files.len() });
            }
            Ok(_) => (taken, None),
            Err(failed) => (taken, Some(failed)),
        };
        if taken > 0 {
            cx.note(Event::JournalFilesTaken { action, count: taken });
        }
        if let Some(Failed { reason, .. }) = failed {
            cx.note(Event::MaintenanceFailed { action, reason });
        }
        if rule + 1 < self.schedule.rules.len() {
            self.waiting.push_back(Task::Scheduled { rule: rule + 1, taken: 0 });
        } else {
            self.rest(cx);
        }
    }

    /// Sets the timer for the next round.
    fn rest(&self, cx: &mut Context) {
        cx.clock.timers.set(Timer::Maintenance, cx.clock.now.instant + self.schedule.interval);
    }

    /// Hands out the task that waits first, unless a job is under way. Commands of connections that
    /// have ended are dropped.
    fn begin(&mut self, cx: &mut Context, consumers: &[&dyn LogConsumer]) {
        while self.running.is_none() && cx.shutdown == Shutdown::No {
            let Some(task) = self.waiting.pop_front() else { return };
            if !task.is_wanted(cx) {
                continue;
            }
            let (action, files, dry_run, archive_directory) = match &task {
                Task::Asked { what, .. } => {
                    (what.action, what.files, what.dry_run, what.archive_directory.clone())
                }
                Task::Scheduled { rule, .. } => {
                    let (action, files) = self.schedule.rules[*rule];
                    (action, files, false, None)
                }
            };
            let which = match files {
                Files::OlderThan(age_ns) => {
                    Which::older_than(Duration::from_nanos(age_ns), cx.clock.now.wall)
                }
                Files::Beyond(size_max) => Which::Beyond { size_max },
            };
            cx.outputs.push_back(Output::Maintenance(MaintenanceJob {
                maintenance: cx.log.journal.maintenance(),
                action,
                which,
                needed: needed_from(cx, consumers),
                dry_run,
                archive_directory,
            }));
            self.running = Some(task);
        }
    }
}

impl Task {
    fn connection(&self) -> Option<super::ConnectionId> {
        match self {
            Task::Asked { by, .. } => by.connection(),
            Task::Scheduled { .. } => None,
        }
    }

    /// Whether a client or the process waits for it.
    fn is_wanted(&self, cx: &Context) -> bool {
        match self {
            Task::Asked { by, .. } => cx.hears(by),
            Task::Scheduled { .. } => true,
        }
    }
}

fn rules(config: &MaintenanceConfig) -> Vec<(Action, Files)> {
    if !config.is_scheduled {
        return Vec::new();
    }
    let rules = [
        (Action::Archive, config.archive_after_ns, config.archive_size_max),
        (Action::Compress, config.compress_after_ns, config.compress_size_max),
        (Action::Remove, config.remove_after_ns, config.remove_size_max),
    ];
    let of = |(action, age_ns, size_max): (Action, Option<u64>, Option<u64>)| {
        let files = age_ns.map(Files::OlderThan).into_iter().chain(size_max.map(Files::Beyond));
        files.map(move |files| (action, files))
    };
    rules.into_iter().flat_map(of).collect()
}

/// Logs the files that were taken, and replies.
fn answer(cx: &mut Context, by: &Requester, what: &Maintenance, MaintenanceDone(outcome): MaintenanceDone) {
    let files = match outcome {
        Ok(files) => files,
        Err(Failed { code, reason }) => return cx.reply(by, AdminReply::Refused { code, reason }),
    };
    if let (Requester::Client { connection, client_name, .. }, false) = (by, what.dry_run) {
        for file in &files {
            let (connection, client_name, path) = (*connection, client_name.clone(), file.path.clone());
            cx.note(Event::JournalFileTaken { connection, client_name, action: what.action, path });
        }
    }
    cx.reply(by, AdminReply::Files(files));
}

/// The first position that must stay: the lowest that a consumer of the log needs. A subscription
/// that has caught up may fall back to a replay before the job runs. So everything after the
/// position that all of them were handed stays too.
fn needed_from(cx: &Context, consumers: &[&dyn LogConsumer]) -> Position {
    let needed = consumers.iter().filter_map(|consumer| consumer.needed_from(cx));
    needed.fold(cx.log.served.next(), Position::min)
}
