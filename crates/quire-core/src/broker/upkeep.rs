//! What clients have done with full journal files, one after the other, and what must stay of the log when such files are removed.
//!
//! The work waits for the disk, so it leaves as an [`UpkeepRequest`] for the driver, one at a time: two of them would only wait for each
//! other. A request is about one file, so that what must stay is looked up anew for each, and nobody waits for more than a file.

use std::collections::VecDeque;
use std::time::Duration;

use quire_journal::{Action, JournalError, Position, SegmentInfo, Which};
use serde_json::json;

use super::acknowledge::code_of;
use super::subscribe::Refused;
use super::{Broker, ConnectionId, Event, Output, Shutdown};
use crate::session::{Phase, SessionId};
use crate::subscription::Progressing;
use crate::wire::{Ack, AckKind, Code, Files, ServerFrame, Upkeep};

/// Something to do with a journal file. It blocks on the disk: run it off the loop, then hand the result back as
/// [`Input::UpkeepDone`](super::Input::UpkeepDone); there is no other one before that.
pub struct UpkeepRequest {
    upkeep: quire_journal::Upkeep,
    action: Action,
    which: Which,
    needed: Option<Position>,
    dry_run: bool,
}

/// What became of an [`UpkeepRequest`]: the files that were taken, or would be, or why there are none.
pub struct UpkeepDone(Result<Vec<SegmentInfo>, (Code, String)>);

impl UpkeepRequest {
    /// Does it.
    pub fn run(&self) -> UpkeepDone {
        let UpkeepRequest { upkeep, action, which, needed, dry_run } = self;
        let files = if *dry_run {
            Ok(upkeep.plan(*action, *which, *needed))
        } else {
            upkeep.take_next(*action, *which, *needed).map(|file| file.into_iter().collect())
        };
        UpkeepDone(files.map_err(|error| (code_of_upkeep(&error), error.to_string())))
    }
}

impl UpkeepDone {
    /// It could not be tried, or panicked.
    pub fn failed(reason: &str) -> Self {
        UpkeepDone(Err((Code::Internal, reason.to_owned())))
    }
}

/// The commands that are not answered yet.
#[derive(Default)]
pub(super) struct Upkeeps {
    /// At most one of each connection that is there.
    waiting: VecDeque<Asked>,
    running: Option<Asked>,
}

struct Asked {
    by: ConnectionId,
    client_name: Option<String>,
    what: Upkeep,
}

impl Broker {
    /// Takes a command; the answer comes when it was its turn.
    pub(super) fn ask_upkeep(&mut self, id: SessionId, what: Upkeep) {
        if !self.config.transaction_log.upkeep.by_clients.allows(what.action) {
            let verb = what.action.verb();
            let reason = format!(
                "clients of this server may not {verb} journal files: its transaction_log.upkeep.by_clients says what they may"
            );
            return self.refuse_command(id, what.command, 0, &Refused::new(Code::NotEntitled, reason));
        }
        let session = self.session(id);
        let asked = Asked { by: session.connection, client_name: session.client_name(), what };
        self.upkeeps.waiting.retain(|other| self.by_connection.contains_key(&other.by));
        let Upkeeps { waiting, running } = &mut self.upkeeps;
        if running.iter().chain(&*waiting).any(|other| other.by == asked.by) {
            let reason = "the connection has an upkeep that is not answered yet".to_owned();
            return self.refuse_command(id, what.command, 0, &Refused::new(Code::LimitExceeded, reason));
        }
        waiting.push_back(asked);
        self.begin_upkeep();
    }

    /// Answers the command that was done, and hands out the next one.
    pub(super) fn upkeep_done(&mut self, UpkeepDone(outcome): UpkeepDone) {
        let Some(asked) = self.upkeeps.running.take() else { return };
        let Upkeep { command, action, dry_run, .. } = asked.what;
        if let (Ok(files), false) = (&outcome, dry_run) {
            self.outputs.extend(files.iter().map(|file| {
                let (client_name, path) = (asked.client_name.clone(), file.path.clone());
                Output::Log(Event::JournalFileTaken { connection: asked.by, client_name, action, path })
            }));
        }
        if let Some(id) = self.session_of(asked.by) {
            match outcome {
                Ok(files) => {
                    for file in &files {
                        self.put(id, &ServerFrame::JournalFile { command, json: &json_of(file) });
                    }
                    let kind = AckKind::Processed;
                    let ack = Ack { kind, code: Code::Ok, command, subscription: 0, detail: 0, reason: "" };
                    self.put(id, &ServerFrame::Ack(ack));
                }
                Err((code, reason)) => self.refuse_command(id, command, 0, &Refused::new(code, reason)),
            }
        }
        self.begin_upkeep();
    }

    /// Hands out the command that waits first, unless another one is being worked on. Those of connections that have ended are dropped.
    fn begin_upkeep(&mut self) {
        while self.upkeeps.running.is_none() && self.shutdown == Shutdown::No {
            let Some(asked) = self.upkeeps.waiting.pop_front() else { return };
            if !self.session_of(asked.by).is_some_and(|id| self.session(id).phase == Phase::Open) {
                continue;
            }
            let request = UpkeepRequest {
                upkeep: self.journal.upkeep(),
                action: asked.what.action,
                which: match asked.what.files {
                    Files::OlderThan(age_ns) => {
                        Which::older_than(Duration::from_nanos(age_ns), self.now.wall)
                    }
                    Files::Beyond(size_max) => Which::Beyond { size_max },
                },
                needed: self.keep_from(),
                dry_run: asked.what.dry_run,
            };
            self.outputs.push_back(Output::Upkeep(request));
            self.upkeeps.running = Some(asked);
        }
    }

    /// The first position that must stay: a queue needs it, or a bookmark subscription, paused ones too, has not passed it (reference:
    /// queues-and-transaction-log G3). `None` when nobody needs anything.
    pub fn keep_from(&self) -> Option<Position> {
        let subscriptions = self.subscriptions.iter().filter_map(|(_, subscription)| {
            let progress = subscription.progress()?;
            match progress.stage {
                // What comes next is in memory, or at the end of the log.
                Progressing::AtEdge | Progressing::Live => None,
                Progressing::Halted | Progressing::Replaying(_) | Progressing::Joining(_) => {
                    Some(progress.after.next())
                }
            }
        });
        subscriptions.chain(self.needed_position()).min()
    }
}

/// What a client is told, whose fault or wish it was.
fn code_of_upkeep(error: &JournalError) -> Code {
    match error {
        JournalError::BadOption { .. } => Code::BadOption,
        JournalError::Closed => Code::ShuttingDown,
        error => code_of(error),
    }
}

/// As in protocol.md, `journal_file`.
fn json_of(file: &SegmentInfo) -> String {
    let (first, last) = file.bookmarks.map(|(first, last)| (first.to_string(), last.to_string())).unzip();
    let (first_ns, last_ns) = file.timestamps.map(|(first, last)| (first.as_ns(), last.as_ns())).unzip();
    json!({
        "path": file.path.to_string_lossy(),
        "number": file.number,
        "first": first,
        "last": last,
        "first_ns": first_ns,
        "last_ns": last_ns,
        "count": file.count,
        "size": file.size,
        "state": file.state.name(),
    })
    .to_string()
}
