//! New definitions of views at run time (docs/views.md section 8).
//!
//! One command is carried out at a time. The others wait in line, and the further commands of the
//! same connection wait for the answer. A definition is replaced in these steps:
//!
//! 1. The new definition is checked. A mistake ends the command.
//! 2. Its groups are built next to the old ones (`derived/build.rs`). Before that, the queues that
//!    it reads and no other view reads get tables with their messages (`of_queue.rs`).
//! 3. `replaced-views.state` is written with the definition.
//! 4. It takes the place of the old one. The answer is sent when the view has its records.
//!
//! A crash leaves the definition of before or after step 3, and a start computes the view. A write
//! that fails may still change the file. The next command writes all of it again, and so does the
//! end of the server.

use std::collections::VecDeque;

use quire_command::Code;
use quire_journal::{FoundSidecar, Journal, JournalError, Position, SidecarHead, Sidecars};
use serde::{Deserialize, Serialize};

use super::derived::Progress;
use super::{TableDefinition, TableState, Tables};
use crate::admin::{AdminReply, Requester};
use crate::config::computed::{Other, redefine};
use crate::config::tables::SourceQueue;
use crate::config::views::ViewSettings;
use crate::config::{Compiled, hiding};
use crate::context::Context;
use crate::failure::code_of;
use crate::reply::Refused;
use crate::session::Stall;
use crate::topic::{QueueRoute, TableId};
use crate::{BrokerConfig, ConfigError, Event, OpenError};

const FILE: &str = "replaced-views.state";
const NAME: &str = "replaced views";
const VERSION: u32 = 1;

const DAMAGED: &str = "the definitions of views that were replaced at run time are not whole; restore the file from a backup, or \
                       remove it to start with the definitions of the configuration";
const LATER: &str = "a later version of quire wrote the definitions of views that were replaced at run time; start that version, \
                     or remove the file to start with the definitions of the configuration";

/// A definition that is in force instead of that of the configuration.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
struct ReplacedView {
    /// That of the configuration. It holds again when the configuration has another one.
    configured: ViewSettings,
    /// In force.
    settings: ViewSettings,
    /// When it was replaced.
    replaced_ns: u64,
}

/// The definitions that are in force instead of those of the configuration.
pub(crate) struct ReplacedViews {
    files: Sidecars,
    views: Vec<ReplacedView>,
    /// Views of the file whose definitions are not used, and why.
    unused: Vec<(String, String)>,
    /// The configuration has one of the definitions now.
    is_stale: bool,
}

/// The commands about definitions.
pub(super) struct Redefining {
    replaced: ReplacedViews,
    /// A write of the file failed, so the file has the old definitions or the new ones.
    is_uncertain: bool,
    waiting: VecDeque<(Requester, Box<ViewSettings>)>,
    current: Option<Current>,
}

/// The command that is being carried out.
struct Current {
    by: Requester,
    view: String,
    /// The view had another definition.
    changed: bool,
    /// The content of the file after the command.
    views: Vec<ReplacedView>,
    step: Step,
}

/// A new definition without mistakes.
struct Checked {
    /// The view had another definition.
    changed: bool,
    /// The content of the file with it.
    views: Vec<ReplacedView>,
    /// With the view.
    definition: Box<(TableId, TableDefinition)>,
}

enum Step {
    /// The tables of the queues that the definition reads get their messages.
    Loading(Box<(TableId, TableDefinition)>),
    Building,
    /// The file is being written.
    Writing,
    Replacing,
}

impl ReplacedViews {
    /// Reads the file, and compiles the configuration with its definitions. One that does not fit
    /// the configuration is not used. A definition of the file can name queues that were created at
    /// run time.
    ///
    /// # Errors
    /// A configuration with mistakes, and a file that cannot be used.
    pub fn load(
        config: &BrokerConfig,
        created: &[SourceQueue],
        journal: &Journal,
    ) -> Result<(Self, Compiled), OpenError> {
        let compiled = config.compile()?;
        let files = journal.sidecars();
        let mut loaded = ReplacedViews { views: Vec::new(), unused: Vec::new(), is_stale: false, files };
        let mut found = loaded.read(config)?;
        if found.is_empty() {
            return Ok((loaded, compiled));
        }
        found.retain(|replaced| {
            let name = &replaced.settings.name;
            let reason = match config.views.iter().find(|view| view.name == *name) {
                Some(view) if *view == replaced.configured => return true,
                Some(view) if *view == replaced.settings => {
                    loaded.is_stale = true;
                    return false;
                }
                Some(_) => "the configuration has another definition than the one that was replaced",
                None => "the configuration has no view with this name",
            };
            loaded.unused.push((name.clone(), reason.to_owned()));
            false
        });
        if let Ok(compiled) = with_views(config, &found).compile_with(created) {
            loaded.views = found;
            return Ok((loaded, compiled));
        }
        let mut used = compiled;
        for replaced in found {
            let name = replaced.settings.name.clone();
            loaded.views.push(replaced);
            match with_views(config, &loaded.views).compile_with(created) {
                Ok(compiled) => used = compiled,
                Err(mistakes) => {
                    loaded.views.pop();
                    loaded.unused.push((name, ConfigError::from(mistakes).to_string()));
                }
            }
        }
        Ok((loaded, used))
    }

    fn read(&self, config: &BrokerConfig) -> Result<Vec<ReplacedView>, JournalError> {
        let directory = config.transaction_log.journal_directory.clone().unwrap_or_default();
        let unusable = |reason: &'static str| {
            let path = directory.join(FILE);
            Err(JournalError::Corrupt { path, offset: 0, reason, readable_to: Position::ZERO })
        };
        match self.files.read(FILE, NAME)? {
            FoundSidecar::Missing => Ok(Vec::new()),
            FoundSidecar::Whole(head, _) if head.version != VERSION => unusable(LATER),
            // The checksum matches, so a later version wrote keys that this version does not have.
            FoundSidecar::Whole(_, content) => serde_json::from_slice(&content).or_else(|_| unusable(LATER)),
            FoundSidecar::Damaged | FoundSidecar::Older(_) => unusable(DAMAGED),
        }
    }
}

/// The configuration with these definitions.
fn with_views(config: &BrokerConfig, replaced: &[ReplacedView]) -> BrokerConfig {
    let mut config = config.clone();
    for view in &mut config.views {
        if let Some(replaced) = replaced.iter().find(|replaced| replaced.settings.name == view.name) {
            *view = replaced.settings.clone();
        }
    }
    config
}

fn write(files: &Sidecars, views: &[ReplacedView]) -> Result<(), JournalError> {
    let content = serde_json::json!(views).to_string();
    let head = SidecarHead { version: VERSION, ..SidecarHead::default() };
    files.write(FILE, NAME, head, &[content.as_bytes()])
}

impl Redefining {
    pub fn new(replaced: ReplacedViews) -> Self {
        Redefining { replaced, is_uncertain: false, waiting: VecDeque::new(), current: None }
    }

    /// When the definition of the configuration was replaced.
    pub fn replaced_ns(&self, view: &str) -> Option<u64> {
        let replaced = self.replaced.views.iter().find(|replaced| replaced.settings.name == view);
        replaced.map(|replaced| replaced.replaced_ns)
    }
}

impl Tables {
    /// At a start: reports the definitions of the file that are not used. Removes them from the
    /// file, and those that the configuration has now.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn note_unused(&mut self, cx: &mut Context) -> Result<(), JournalError> {
        let ReplacedViews { files, views, unused, is_stale } = &mut self.redefining.replaced;
        if unused.is_empty() && !*is_stale {
            return Ok(());
        }
        for (view, reason) in unused.drain(..) {
            cx.note(Event::ViewDefinitionNotUsed { view, reason });
        }
        write(files, views)
    }

    /// At the end: the file has the definitions that are in force.
    pub(super) fn write_uncertain_views(&self) -> Result<(), JournalError> {
        let Redefining { replaced, is_uncertain, .. } = &self.redefining;
        if *is_uncertain { write(&replaced.files, &replaced.views) } else { Ok(()) }
    }

    /// Replaces the definition of a view when it is the turn of the command. The answer follows,
    /// and the further commands of the connection wait for it.
    pub(crate) fn define_view(&mut self, cx: &mut Context, by: Requester, settings: Box<ViewSettings>) {
        if let Some(session) = by.connection().and_then(|connection| cx.session_of(connection)) {
            cx.stall(session, Stall::Defining);
        }
        self.redefining.waiting.push_back((by, settings));
        cx.clock.wants_turn = true;
    }

    /// Continues the command that is being carried out, and then the next ones.
    pub(crate) fn redefine(&mut self, cx: &mut Context) {
        loop {
            if let Some(current) = self.redefining.current.take() {
                self.redefining.current = self.continue_redefining(cx, current);
                if self.redefining.current.is_some() {
                    return;
                }
            }
            self.look_at_queues(cx);
            let Some((by, settings)) = self.redefining.waiting.pop_front() else { return };
            // A command of a connection that has ended is not begun.
            if !cx.hears(&by) {
                continue;
            }
            let view = settings.name.clone();
            match self.begin_redefining(cx, *settings) {
                Ok(Some(Checked { changed, views, definition })) => {
                    let step = Step::Loading(definition);
                    self.redefining.current = Some(Current { by, view, changed, views, step });
                }
                Ok(None) => answer(cx, &by, AdminReply::ViewDefined { view, changed: false }),
                Err(refused) => answer(cx, &by, refused.into()),
            }
        }
    }

    /// Checks a definition; `None`: the view has this definition.
    fn begin_redefining(
        &mut self,
        cx: &mut Context,
        mut settings: ViewSettings,
    ) -> Result<Option<Checked>, Refused> {
        if let Some(failure) = &cx.log.failure {
            return Err(Refused::new(failure.code, failure.reason.clone()));
        }
        let name = settings.name.clone();
        let found = cx.topics.table(&name).and_then(|id| {
            let definition = self.all[id.0 as usize].definition.clone();
            definition.view.clone().map(|view| (id, definition, view))
        });
        let Some((table, old, view)) = found else {
            let reason = format!(
                "name: the server has no view {name:?}. Add a [[view]] with this name to its configuration. Only the definition \
                 of a view that exists can be replaced"
            );
            return Err(bad(reason));
        };
        if settings.message_type.is_empty() {
            old.message_type.name().clone_into(&mut settings.message_type);
        }
        let changed = view.settings != settings;
        if !changed && !self.redefining.is_uncertain {
            return Ok(None);
        }
        if settings.message_type != old.message_type.name() {
            let reason = format!(
                "message_type: the messages of the view {name:?} are {}, and its readers expect that. A view with other \
                 messages needs another name",
                old.message_type.name()
            );
            return Err(bad(reason));
        }
        let definition = self.check_redefined(cx, table, &settings)?;
        let configured = cx.config.views.iter().find(|view| view.name == name);
        let mut views = self.redefining.replaced.views.clone();
        views.retain(|replaced| replaced.settings.name != name);
        if let Some(configured) = configured.filter(|configured| **configured != settings) {
            let (configured, replaced_ns) = (configured.clone(), cx.clock.now.wall.as_ns());
            views.push(ReplacedView { configured, settings, replaced_ns });
        }
        let sources = definition.view.iter().flat_map(|view| &view.sources);
        let queues: Vec<SourceQueue> =
            sources.filter_map(|name| cx.topics.queue_route(name)).map(QueueRoute::source).collect();
        queues.iter().for_each(|queue| self.add_queue_table(cx, queue));
        Ok(Some(Checked { changed, views, definition: Box::new((table, definition)) }))
    }

    /// The definition of a view with these settings.
    fn check_redefined(
        &self,
        cx: &Context,
        table: TableId,
        settings: &ViewSettings,
    ) -> Result<TableDefinition, Refused> {
        let find = |name: &str| match cx.topics.table(name).map(|id| &self.all[id.0 as usize]) {
            Some(state) if state.container.is_none() => Other::LastValues(state.definition.message_type),
            Some(_) => Other::None,
            None if cx.topics.is_container(name) => Other::Pattern,
            None => match cx.topics.queue_route(name) {
                Some(queue) => Other::Queue(queue.message_type),
                None => Other::None,
            },
        };
        let options = cx.config.filter_options();
        let made = redefine(settings, &find, &options);
        let definition = made.map_err(|mistakes| bad(ConfigError::from(mistakes).to_string()))?;
        let sources = definition.view.iter().flat_map(|view| &view.sources);
        if let Some(queue) = sources.clone().find(|name| cx.topics.is_unsettled_queue(name)) {
            let key = source_key(settings);
            return Err(bad(format!("{key}: the queue {queue:?} is being created or dropped; try again")));
        }
        for source in sources.filter_map(|name| cx.topics.table(name)) {
            if let Some(path) = self.path_to(source, table) {
                let key = source_key(settings);
                let names = path.iter().map(|id| &*self.all[id.0 as usize].definition.name);
                let names: Vec<&str> = [&*settings.name].into_iter().chain(names).collect();
                return Err(bad(format!("{key}: the view reads itself: {}", names.join(" reads "))));
            }
        }
        if let Some(number) = hiding(cx.clients.access.entitlements.as_deref(), &definition).next() {
            let reason = format!(
                "grouping: the select of entitlement {number} hides a field of it. Change the entitlement first, or leave the \
                 field out"
            );
            return Err(bad(reason));
        }
        Ok(definition)
    }

    /// The shortest way from a topic over its sources to another.
    fn path_to(&self, from: TableId, to: TableId) -> Option<Vec<TableId>> {
        let mut reader_of: Vec<Option<TableId>> = vec![None; self.all.len()];
        let mut waiting = VecDeque::from([from]);
        while let Some(reader) = waiting.pop_front() {
            if reader == to {
                let next = |at: &TableId| reader_of[at.0 as usize].filter(|_| *at != from);
                let mut path: Vec<TableId> = std::iter::successors(Some(to), next).collect();
                path.reverse();
                return Some(path);
            }
            let copied = self.all[reader.0 as usize].definition.conflated.as_ref();
            let copied = copied.and_then(|conflated| self.id_of(&conflated.source));
            for source in self.derived.sources_of(reader).iter().copied().chain(copied) {
                if reader_of[source.0 as usize].is_none() {
                    reader_of[source.0 as usize] = Some(reader);
                    waiting.push_back(source);
                }
            }
        }
        None
    }

    fn id_of(&self, name: &str) -> Option<TableId> {
        let has_name = |state: &TableState| !state.is_free && *state.definition.name == *name;
        (0..).map(TableId).zip(&self.all).find(|(_, state)| has_name(state)).map(|(id, _)| id)
    }

    /// One step of a command; `None`: it is answered.
    fn continue_redefining(&mut self, cx: &mut Context, mut current: Current) -> Option<Current> {
        if let Step::Loading(definition) = &current.step {
            let sources = definition.1.view.iter().flat_map(|view| &view.sources);
            if !self.has_complete_queues(cx, sources) {
                return Some(current);
            }
            if let Step::Loading(definition) = std::mem::replace(&mut current.step, Step::Building) {
                let (table, definition) = *definition;
                self.begin_build(cx, table, definition);
            }
        }
        match (&current.step, self.build_progress()) {
            (_, Some(Progress::Failed(refused))) => {
                answer(cx, &current.by, refused.into());
                return None;
            }
            (Step::Building, Some(Progress::Following)) => {
                let (files, views) = (self.redefining.replaced.files.clone(), current.views.clone());
                cx.begin_job(move |_| write(&files, &views), Tables::definition_written);
                current.step = Step::Writing;
            }
            (Step::Replacing, Some(Progress::Replaced)) => {
                let Current { by, view, changed, .. } = current;
                answer(cx, &by, AdminReply::ViewDefined { view, changed });
                return None;
            }
            _ => (),
        }
        Some(current)
    }

    /// The definition is on stable storage, or could not be written; `None`: by a bug of ours.
    fn definition_written(
        &mut self,
        cx: &mut Context,
        _number: u64,
        result: Option<Result<(), JournalError>>,
    ) {
        let is_writing = |current: &mut Current| matches!(current.step, Step::Writing);
        let Some(mut current) = self.redefining.current.take_if(is_writing) else { return };
        let refused = match result {
            Some(Ok(())) => None,
            Some(Err(error)) => Some(Refused::new(code_of(&error), error.to_string())),
            None => Some(Refused::new(Code::Internal, "the definition could not be written".to_owned())),
        };
        self.redefining.is_uncertain = refused.is_some();
        cx.clock.wants_turn = true;
        match refused {
            Some(refused) => {
                self.end_build();
                answer(cx, &current.by, refused.into());
            }
            None => {
                self.redefining.replaced.views = std::mem::take(&mut current.views);
                let (view, by) = (current.view.clone(), current.by.name());
                cx.note(Event::ViewDefined { view, by });
                self.let_replace();
                current.step = Step::Replacing;
                self.redefining.current = Some(current);
            }
        }
    }
}

/// Sends the reply, and continues with the further commands of the connection.
fn answer(cx: &mut Context, by: &Requester, reply: AdminReply) {
    cx.reply(by, reply);
    if let Some(session) = by.connection().and_then(|connection| cx.session_of(connection)) {
        cx.resume_commands(session, Stall::Defining);
        cx.clock.wants_turn = true;
    }
}

/// The key with the sources.
fn source_key(settings: &ViewSettings) -> &'static str {
    if settings.join.is_empty() { "underlying_topic" } else { "join" }
}

fn bad(reason: String) -> Refused {
    Refused::new(Code::BadOption, reason)
}
