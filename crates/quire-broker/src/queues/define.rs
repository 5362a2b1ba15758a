//! Queues that are created, altered and dropped at run time (docs/queues.md section 14). `alter.rs`
//! has the steps of a change.
//!
//! One command is carried out at a time. The commands of other connections wait in line; the
//! further commands of the same connection wait for the answer. A queue is created in these steps:
//!
//! 1. The queue enters the engine and the table of topics. It takes every message from here on.
//!    Commands do not find it yet.
//! 2. Its beginning goes into the log. When that is persisted, the place of the beginning cannot
//!    change in a crash.
//! 3. `queues.ack` is written, so that the journal keeps the files that the queue needs, and then
//!    `created-queues.state`.
//! 4. Commands find the queue. The answer is sent.
//!
//! A queue is dropped in these steps:
//!
//! 1. `created-queues.state` is written without the queue.
//! 2. Commands no longer find the queue, messages no longer enter it, and its subscriptions are
//!    ended.
//! 3. When no subscription and no background job uses the queue, it leaves the engine. The answer
//!    is sent.
//!
//! A crash leaves the queue as it is before or after the file was written. A write that fails may
//! still change the file. So the file is written again before the next command is begun.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use quire_journal::{Journal, JournalError, Position};

use super::alter::Altered;
use super::created::{CreatedQueue, CreatedQueuesFile, for_run_time};
use super::sidecars::{QueuePoints, QueuePointsFile};
use super::{Definition, QueueService, QueueSettings};
use crate::admin::{AdminReply, Requester};
use crate::config::ConfigErrors;
use crate::config::queues::QueueChanges;
use crate::config::tables::SourceQueue;
use crate::context::Context;
use crate::failure::code_of;
use crate::reply::{Refused, is_computed};
use crate::session::Stall;
use crate::subscription::ServedBy;
use crate::topic::{Incoming, RecordingRule};
use crate::{BrokerConfig, ConfigError, Event, OpenError};
use quire_command::Code;
use quire_expression::message_type::MessageType;
use quire_expression::topic::TopicSelector;
use quire_queue::QueueId;

/// A command about a queue.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Define {
    Create(Box<QueueSettings>),
    Alter { queue: String, changes: QueueChanges },
    Drop(String),
}

/// The queues of a start.
pub(crate) struct FoundQueues {
    /// Those of the configuration, then those that were created at run time.
    pub definitions: Vec<Definition>,
    /// Names of queues that were created at run time, and that the configuration defines now.
    pub replaced: Vec<String>,
    pub(super) defining: Defining,
}

/// The queues that were created at run time, and the commands about them.
pub(super) struct Defining {
    pub file: CreatedQueuesFile,
    pub(super) created: BTreeMap<QueueId, CreatedQueue>,
    /// The file does not have the current queues.
    is_stale: bool,
    waiting: VecDeque<(Requester, Define)>,
    current: Option<Current>,
    /// A write of the file failed, so the file has the old definitions or the new ones.
    pub(super) is_uncertain: bool,
    /// The file is being written again after such a failure.
    is_repairing: bool,
}

/// The command that is being carried out.
struct Current {
    by: Requester,
    queue: QueueId,
    step: Step,
}

pub(super) enum Step {
    /// Waits until the log is persisted up to this position, and until the files can be written.
    Ready(Position, Change),
    /// The files are being written.
    Writing(Change),
    /// Waits until no other part uses the queue. Then this is the answer.
    Removing(Answer),
}

/// The change that is made.
pub(super) enum Change {
    Create,
    Alter(Box<Altered>),
    Drop { warnings: Vec<String> },
}

pub(super) enum Answer {
    Dropped { warnings: Vec<String> },
    NotCreated(Refused),
}

/// The result of the first step of a command.
pub(super) enum Begun {
    Step(QueueId, Step),
    /// There is nothing to do.
    Done(AdminReply),
    /// The queue left the configuration, and only `queues.ack` has it.
    DropAbsent(String),
}

/// Writes the file with the queues that were created at run time. For a new queue, the settled
/// positions are written first, so that the journal keeps the files that the queue needs.
pub(crate) struct WriteCreated {
    points: Option<(QueuePointsFile, QueuePoints)>,
    file: CreatedQueuesFile,
    queues: Vec<CreatedQueue>,
}

impl WriteCreated {
    pub fn run(self) -> Result<(), JournalError> {
        if let Some((file, points)) = self.points {
            file.write(&points)?;
        }
        self.file.write(&self.queues)
    }
}

impl Defining {
    /// The queue, if it was created at run time.
    pub fn created(&self, queue: QueueId) -> Option<&CreatedQueue> {
        self.created.get(&queue)
    }

    pub fn is_created(&self, queue: QueueId) -> bool {
        self.created.contains_key(&queue)
    }

    /// The position after which the queue takes messages.
    pub fn begin(&self, queue: QueueId) -> Position {
        self.created(queue).map_or(Position::ZERO, CreatedQueue::takes_after)
    }

    /// The end of the log when the queue was created.
    pub fn created_at(&self, queue: QueueId) -> Position {
        self.created(queue).map_or(Position::ZERO, |created| created.begin)
    }

    /// Lets no position of the queues be after the end of the log. Whether the file has to be
    /// written.
    pub fn clamp(&mut self, end: Position) -> bool {
        for created in self.created.values_mut() {
            self.is_stale |= created.clamp(end);
        }
        std::mem::take(&mut self.is_stale)
    }

    /// The content of the file.
    pub fn definitions(&self) -> Vec<CreatedQueue> {
        in_order(self.created.values())
    }

    /// The content of the file after a change of a queue.
    fn definitions_after(&self, queue: QueueId, change: &Change) -> Vec<CreatedQueue> {
        let others = self.created.iter().filter(|(other, _)| **other != queue).map(|(_, created)| created);
        let changed = match change {
            Change::Create => self.created(queue),
            Change::Alter(altered) => Some(altered.created()),
            Change::Drop { .. } => None,
        };
        in_order(others.chain(changed))
    }
}

/// At the start.
impl QueueService {
    /// The queues that were created at run time, as views see them. A file that cannot be used is
    /// an error of [`load_created`](Self::load_created).
    pub(crate) fn created_sources(config: &BrokerConfig, journal: &Journal) -> Vec<SourceQueue> {
        let directory = config.transaction_log.journal_directory.as_deref().unwrap_or(Path::new(""));
        let file = CreatedQueuesFile::new(journal.sidecars(), directory);
        let created = file.read().ok().flatten().unwrap_or_default();
        let source = |created: CreatedQueue| {
            let settings = created.settings;
            Some(SourceQueue {
                message_type: MessageType::from_name(&settings.message_type)?,
                name: settings.name.into(),
                file_backed: settings.file_backed_metadata,
            })
        };
        created.into_iter().filter_map(source).collect()
    }

    /// Adds the queues that were created at run time to those of the configuration, which replace
    /// queues with the same names.
    ///
    /// # Errors
    /// A file that cannot be used, and a queue that does not fit the configuration.
    pub(crate) fn load_created(
        config: &BrokerConfig,
        mut definitions: Vec<Definition>,
        rules: &[RecordingRule],
        journal: &Journal,
    ) -> Result<FoundQueues, OpenError> {
        let directory = config.transaction_log.journal_directory.as_deref().unwrap_or(Path::new(""));
        let file = CreatedQueuesFile::new(journal.sidecars(), directory);
        let options = config.filter_options();
        let (mut created, mut replaced) = (BTreeMap::new(), Vec::new());
        let queues = file.read()?;
        if queues.is_none() {
            let points = QueuePointsFile::new(journal.sidecars()).read().unwrap_or_default();
            let is_configured = |name: &str| config.queues.iter().any(|configured| configured.name == name);
            let lost =
                points.points.into_iter().filter(|point| point.is_created && !is_configured(&point.queue));
            file.check_lost(&lost.map(|point| point.queue).collect::<Vec<_>>())?;
        }
        for queue in queues.unwrap_or_default() {
            let name = &queue.settings.name;
            if config.queues.iter().any(|configured| configured.name == *name) {
                replaced.push(name.clone());
                continue;
            }
            let others: Vec<&Definition> = definitions.iter().collect();
            let compiled = queue.compile(&others, rules, &options);
            let definition = compiled.map_err(|errors| {
                let ConfigError { key, reason } = errors.into();
                let reason = format!(
                    "{reason}. {key} belongs to a queue that was created at run time. Change the configuration back, or \
                     define a [[queue]] with this name, which replaces the other one"
                );
                ConfigError::new("queues", reason)
            })?;
            created.insert(QueueId::new(definitions.len() as u32), queue);
            definitions.push(definition);
        }
        let is_stale = !replaced.is_empty();
        let defining = Defining {
            file,
            created,
            is_stale,
            waiting: VecDeque::new(),
            current: None,
            is_uncertain: false,
            is_repairing: false,
        };
        Ok(FoundQueues { definitions, replaced, defining })
    }
}

/// Commands.
impl QueueService {
    /// Carries out a command when it is its turn. The answer follows; the connection's further
    /// commands wait for it.
    pub(crate) fn define(&mut self, cx: &mut Context, by: Requester, command: Define) {
        if let Some(session) = by.connection().and_then(|connection| cx.session_of(connection)) {
            cx.stall(session, Stall::Defining);
        }
        self.defining.waiting.push_back((by, command));
        cx.clock.wants_turn = true;
    }

    /// Continues the command that is being carried out, and then the next ones.
    pub(crate) fn continue_defining(&mut self, cx: &mut Context) {
        self.continue_commands(cx);
        let is_unsettled = |current: &&Current| match &current.step {
            Step::Ready(_, change) | Step::Writing(change) => !matches!(change, Change::Alter(_)),
            Step::Removing(_) => true,
        };
        let unsettled = self.defining.current.as_ref().filter(is_unsettled);
        cx.topics.set_unsettled_queue(unsettled.map(|current| self.definition(current.queue).name.clone()));
    }

    fn continue_commands(&mut self, cx: &mut Context) {
        loop {
            if let Some(current) = self.defining.current.take() {
                self.defining.current = self.take_step(cx, current);
                if self.defining.current.is_some() {
                    return;
                }
            }
            if self.repair(cx) {
                return;
            }
            let Some((by, command)) = self.defining.waiting.pop_front() else { return };
            // A command of a connection that has ended is not begun.
            if !cx.hears(&by) {
                continue;
            }
            let begun = match command {
                Define::Create(settings) => self.begin_create(cx, *settings),
                Define::Alter { queue, changes } => self.begin_alter(cx, &queue, &changes),
                Define::Drop(name) => self.begin_drop(cx, &name),
            };
            match begun {
                Ok(Begun::Step(queue, step)) => self.defining.current = Some(Current { by, queue, step }),
                Ok(Begun::Done(reply)) => answer(cx, &by, reply),
                Ok(Begun::DropAbsent(name)) => self.drop_absent(cx, by, &name),
                Err(refused) => answer(cx, &by, refused.into()),
            }
        }
    }

    /// Writes the file again after a write that failed: otherwise the answer to the next command
    /// could be wrong after a restart. Whether the command has to wait for that.
    fn repair(&mut self, cx: &mut Context) -> bool {
        if !self.defining.is_uncertain || self.defining.waiting.is_empty() {
            return false;
        }
        if !self.defining.is_repairing && !self.saving.is_under_way {
            let (file, queues) = (self.defining.file.clone(), self.defining.definitions());
            self.defining.is_repairing = true;
            self.begin_write(cx, WriteCreated { points: None, file, queues });
        }
        true
    }

    fn begin_write(&mut self, cx: &mut Context, write: WriteCreated) {
        self.saving.is_under_way = true;
        cx.begin_job(move |_| write.run(), QueueService::definitions_written);
    }

    /// At the end: the file has the definitions that hold.
    pub(super) fn write_uncertain(&mut self) -> Result<(), JournalError> {
        if self.defining.is_uncertain {
            self.defining.file.write(&self.defining.definitions())?;
        }
        Ok(())
    }

    fn begin_create(&mut self, cx: &mut Context, settings: QueueSettings) -> Result<Begun, Refused> {
        let mut settings = for_run_time(settings, cx.topics.rules()).map_err(|error| bad(error.into()))?;
        let name = settings.name.clone();
        settings.dead_letter_topic = settings.dead_letter_topic.map(|topic| self.letters_to(topic));
        if let Some(queue) = self.find(&name) {
            let Some(created) = self.defining.created(queue) else { return Err(configured(&name)) };
            let differing = created.settings.differences(&settings).join(", ");
            if differing.is_empty() {
                return Ok(Begun::Done(AdminReply::QueueCreated { queue: name, existed: true }));
            }
            let reason = format!(
                "queue {name:?} exists with other settings: {differing}. Change them with alter_queue, or drop the queue and create it again"
            );
            return Err(Refused::new(Code::QueueExists, reason));
        }
        if let Some(count) = self.left_out.absent_count(&name) {
            let reason = format!(
                "queue {name:?} left the configuration, and messages of it are not acknowledged: {count}. Put it back, or drop it \
                 to give them up"
            );
            return Err(Refused::new(Code::QueueExists, reason));
        }
        let limit = cx.config.limits.max_created_queues;
        if self.defining.created.len() >= limit as usize {
            let reason = format!(
                "max_created_queues: {limit} queues were created at run time; drop one, or raise limits.max_created_queues of the server"
            );
            return Err(Refused::new(Code::LimitExceeded, reason));
        }
        check_unused(cx, &name)?;
        check_journal(cx)?;
        let created = CreatedQueue::new(cx.log.journal.appended(), settings);
        let others: Vec<&Definition> = self.live().map(|(_, definition)| &**definition).collect();
        let definition =
            created.compile(&others, cx.topics.rules(), &cx.config.filter_options()).map_err(bad)?;
        check_not_replicated(cx, &definition)?;
        check_targets(cx, &definition)?;
        let queue = self.add(cx, created, definition)?;
        let begin = self.defining.begin(queue);
        if let Err(error) = self.log_begin(cx, queue, begin) {
            cx.fail(&error);
        }
        Ok(Begun::Step(queue, Step::Ready(cx.log.journal.appended(), Change::Create)))
    }

    fn begin_drop(&mut self, cx: &mut Context, name: &str) -> Result<Begun, Refused> {
        let Some(queue) = self.find(name) else {
            check_journal(cx)?;
            let absent = self.left_out.absent_count(name).map(|_| Begun::DropAbsent(name.to_owned()));
            return absent.ok_or_else(|| unknown(name));
        };
        if !self.defining.is_created(queue) {
            return Err(configured(name));
        }
        check_no_views(cx, name)?;
        check_journal(cx)?;
        let warnings = self.letters_without_queue(queue);
        Ok(Begun::Step(queue, Step::Ready(Position::ZERO, Change::Drop { warnings })))
    }

    /// One step of a command; `None`: it is answered.
    fn take_step(&mut self, cx: &mut Context, current: Current) -> Option<Current> {
        let Current { by, queue, step } = current;
        let step = match step {
            Step::Ready(_, Change::Create) if cx.log.failure.is_some() => {
                let failure = cx.failure_frame();
                self.retire(cx, queue);
                Step::Removing(Answer::NotCreated(Refused::new(failure.code, failure.reason)))
            }
            Step::Ready(_, Change::Alter(_)) if cx.log.failure.is_some() => {
                let failure = cx.failure_frame();
                answer(cx, &by, Refused::new(failure.code, failure.reason).into());
                return None;
            }
            Step::Ready(rests_on, change) => {
                let is_ready = rests_on <= cx.log.journal.persisted() && !self.saving.is_under_way;
                if is_ready {
                    self.write_definitions(cx, queue, change)
                } else {
                    Step::Ready(rests_on, change)
                }
            }
            Step::Writing(change) => Step::Writing(change),
            Step::Removing(reply) => match self.try_remove(cx, queue) {
                None => Step::Removing(reply),
                Some(message_count) => {
                    let reply = match reply {
                        Answer::NotCreated(refused) => refused.into(),
                        Answer::Dropped { warnings } => self.dropped(cx, &by, queue, message_count, warnings),
                    };
                    answer(cx, &by, reply);
                    return None;
                }
            },
        };
        Some(Current { by, queue, step })
    }

    fn write_definitions(&mut self, cx: &mut Context, queue: QueueId, change: Change) -> Step {
        let points = self.saving.saved.as_ref().filter(|_| matches!(change, Change::Create));
        let points = points.map(|points| {
            (
                QueuePointsFile::new(cx.log.journal.sidecars()),
                self.file_entries(cx, points, cx.log.journal.persisted()),
            )
        });
        let (file, queues) = (self.defining.file.clone(), self.defining.definitions_after(queue, &change));
        self.begin_write(cx, WriteCreated { points, file, queues });
        Step::Writing(change)
    }

    /// The definitions are on stable storage, or could not be written; `None`: by a bug of ours.
    fn definitions_written(
        &mut self,
        cx: &mut Context,
        _number: u64,
        result: Option<Result<(), JournalError>>,
    ) {
        self.saving.is_under_way = false;
        let failure = match result {
            Some(Ok(())) => None,
            Some(Err(error)) => Some(Refused::new(code_of(&error), error.to_string())),
            None => Some(Refused::new(Code::Internal, "the definition could not be written".to_owned())),
        };
        self.defining.is_uncertain = failure.is_some();
        cx.clock.wants_turn = true;
        if std::mem::take(&mut self.defining.is_repairing) {
            // The command that waited for the repair fails in the same way. The next one tries
            // again.
            if let Some(refused) = failure
                && let Some((by, _)) = self.defining.waiting.pop_front()
            {
                answer(cx, &by, refused.into());
            }
            return;
        }
        let Some(Current { by, queue, step: Step::Writing(change) }) = self.defining.current.take() else {
            return;
        };
        let reply = match (change, failure) {
            (Change::Create, None) => {
                let name = self.definition(queue).name.clone();
                self.by_name.insert(name.clone(), queue);
                self.fills.start(queue);
                // So a start that has lost the definitions finds that there were some.
                self.save_now(cx);
                let queue = name.to_string();
                cx.note(Event::QueueCreated { queue: queue.clone(), by: by.name() });
                Ok(AdminReply::QueueCreated { queue, existed: false })
            }
            (Change::Create, Some(refused)) => {
                self.retire(cx, queue);
                Err(Answer::NotCreated(refused))
            }
            (Change::Alter(altered), None) => Ok(self.altered(cx, &by, queue, *altered)),
            (Change::Drop { warnings }, None) => {
                self.retire(cx, queue);
                Err(Answer::Dropped { warnings })
            }
            // The queue does not change.
            (Change::Alter(_) | Change::Drop { .. }, Some(refused)) => Ok(refused.into()),
        };
        match reply {
            Ok(reply) => answer(cx, &by, reply),
            Err(reply) => self.defining.current = Some(Current { by, queue, step: Step::Removing(reply) }),
        }
    }

    fn dropped(
        &self,
        cx: &mut Context,
        by: &Requester,
        queue: QueueId,
        message_count: u64,
        warnings: Vec<String>,
    ) -> AdminReply {
        let queue = self.definition(queue).name.to_string();
        let event = Event::QueueDropped { queue: queue.clone(), message_count, by: by.name() };
        cx.note(event);
        warnings.iter().for_each(|text| cx.note(Event::ConfigWarning { text: text.clone() }));
        AdminReply::QueueDropped { queue, message_count, warnings }
    }
}

/// Sends the reply, and continues with the further commands of the connection.
pub(super) fn answer(cx: &mut Context, by: &Requester, reply: AdminReply) {
    cx.reply(by, reply);
    if let Some(session) = by.connection().and_then(|connection| cx.session_of(connection)) {
        cx.resume_commands(session, Stall::Defining);
    }
}

/// The queues in the order of their creation.
fn in_order<'a>(queues: impl Iterator<Item = &'a CreatedQueue>) -> Vec<CreatedQueue> {
    let mut all: Vec<CreatedQueue> = queues.cloned().collect();
    all.sort_by_key(|created| created.begin);
    all
}

pub(super) fn bad(errors: ConfigErrors) -> Refused {
    Refused::new(Code::BadOption, ConfigError::from(errors).to_string())
}

pub(super) fn unknown(name: &str) -> Refused {
    Refused::new(Code::UnknownQueue, format!("no queue has the name {name:?}"))
}

pub(super) fn configured(name: &str) -> Refused {
    let reason = format!(
        "the configuration of the server defines queue {name:?}; it can be changed and removed there only"
    );
    Refused::new(Code::QueueExists, reason)
}

/// A journal that takes no writes cannot record where a queue begins.
pub(super) fn check_journal(cx: &Context) -> Result<(), Refused> {
    match &cx.log.failure {
        Some(failure) => Err(Refused::new(failure.code, failure.reason.clone())),
        None => Ok(()),
    }
}

/// A link with the topics of a queue that is not a local one is refused, and a queue that is
/// created at run time cannot be a local one.
fn check_not_replicated(cx: &Context, definition: &Definition) -> Result<(), Refused> {
    let refused = match cx.topics.incoming(&definition.selector) {
        Some(Incoming::Topic(topic)) => Some(format!(
            "messages of the topic {topic:?} come from another instance, and the next link would be refused; define the queue \
             as [[local_queue]] in the configuration"
        )),
        Some(Incoming::TooMany) => {
            let reason = "other instances send so many topics that the server does not know whether they send those of the queue; \
                          define the queue in the configuration";
            Some(reason.to_owned())
        }
        None => cx.config.replication.refuses(definition, true),
    };
    match refused {
        Some(reason) => Err(Refused::new(Code::BadOption, format!("underlying_topic: {reason}"))),
        None => Ok(()),
    }
}

/// A view keeps its sources.
fn check_no_views(cx: &Context, name: &str) -> Result<(), Refused> {
    let views = match cx.topics.views_of_queue(name) {
        None => return Ok(()),
        Some([]) => "a view that is being defined".to_owned(),
        Some([view]) => format!("the view {view:?}"),
        Some(views) => {
            let names: Vec<String> = views.iter().map(|view| format!("{view:?}")).collect();
            format!("the views {}", names.join(", "))
        }
    };
    let reason = format!(
        "queue {name:?} is a source of {views}. Give each view a definition without the queue first, with define_view or \
         quire view replace"
    );
    Err(Refused::new(Code::BadOption, reason))
}

/// Only the server writes to a view or a conflated topic.
pub(super) fn check_targets(cx: &Context, definition: &Definition) -> Result<(), Refused> {
    let dead_letters = definition.dead_letter_topic.as_ref().map(|topic| ("dead_letter_topic", topic));
    let targets = [("default_publish_target", &definition.publish_target)].into_iter().chain(dead_letters);
    for (key, topic) in targets {
        if cx.topics.is_computed(topic) {
            return Err(Refused::new(Code::BadOption, format!("{key}: {}", is_computed(topic))));
        }
    }
    Ok(())
}

/// A subscription to the topic of this name would become a consumer of the queue when its client
/// connects again.
fn check_unused(cx: &Context, name: &str) -> Result<(), Refused> {
    if cx.topics.table(name).is_some() {
        return Err(Refused::new(Code::BadOption, format!("name: a last-value topic has the name {name:?}")));
    }
    if cx.topics.is_container(name) || cx.topics.container_of(name).is_some() {
        let reason = format!(
            "name: the pattern of a last-value topic includes the name {name:?}, or it has this name"
        );
        return Err(Refused::new(Code::BadOption, reason));
    }
    let count = cx.clients.subscriptions.all.values().filter(|subscription| {
        let is_ordinary =
            matches!(subscription.served_by, ServedBy::Stream) && !subscription.delivery.has_ended;
        is_ordinary && matches!(&subscription.wanted.selector, TopicSelector::Name(topic) if **topic == *name)
    });
    match count.count() {
        0 => Ok(()),
        count => {
            let reason = format!(
                "name: {count} subscriptions without a bookmark name the topic {name:?}. End them, or give the queue another \
                 name and set underlying_topic"
            );
            Err(Refused::new(Code::BadOption, reason))
        }
    }
}
