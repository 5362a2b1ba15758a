//! Large messages of clients, which another thread examines before they are recorded.
//!
//! If a turn read a message of megabytes field by field, every connection would wait. So only the
//! connection of the message waits ([`Stall::Preparing`]), a job examines the message, and then the
//! intake takes the message again from the beginning, with what the job has found. Topics,
//! duplicates and records are then checked again, because they may have changed.

use std::collections::VecDeque;

use quire_command::Publish;
use quire_expression::message_type::Arena;

use super::InHand;
use super::prepare::check_json;
use crate::context::Context;
use crate::session::{OwnedPublish, SessionId, Stall};
use crate::tables::{Arriving, Preparation};

/// The results of the jobs for a message.
#[derive(Default)]
pub(super) struct Examined {
    pub json: Json,
    pub preparation: Option<Box<Preparation>>,
}

/// Whether a message is JSON.
#[derive(Default)]
pub(super) enum Json {
    #[default]
    Unknown,
    /// The next job checks this.
    Asked,
    Valid,
    /// The reason why it is not.
    Invalid(String),
}

/// Bytes of messages and records that jobs hold at a time. Above this limit, the next messages
/// wait.
const RUNNING_SIZE_MAX: usize = 64 * 1024 * 1024;

/// The large messages of all connections.
#[derive(Default)]
pub(super) struct LargeMessages {
    /// Messages whose jobs are done.
    done: VecDeque<Done>,
    /// Messages whose jobs begin when others are done.
    waiting: VecDeque<Done>,
    /// Bytes that the jobs in progress hold.
    running_size: usize,
}

/// The end of a job.
pub(super) struct Done {
    pub session: SessionId,
    pub sequence: u64,
    /// `None`: the job panicked.
    pub found: Option<(OwnedPublish, Examined)>,
}

impl Examined {
    /// Does the work that the turn leaves to another thread.
    pub(super) fn run(&mut self, publish: &Publish<'_>, size_max: usize, arena: &mut Arena) {
        if let Json::Asked = self.json {
            self.json = match check_json(publish.data) {
                Ok(()) => Json::Valid,
                Err(error) => Json::Invalid(error.to_string()),
            };
        }
        if let Some(preparation) = &mut self.preparation {
            preparation.run(&Arriving::of_publish(publish, size_max), arena);
        }
    }
}

impl LargeMessages {
    /// A message whose job is done, or whose next job can begin.
    pub(super) fn next_done(&mut self) -> Option<Done> {
        let waiting = |large: &mut Self| {
            (large.running_size <= RUNNING_SIZE_MAX).then(|| large.waiting.pop_front()).flatten()
        };
        self.done.pop_front().or_else(|| waiting(self))
    }

    /// Starts the examination of a message. The commands of its connection wait.
    pub(super) fn examine(
        &mut self,
        cx: &mut Context,
        id: SessionId,
        message: OwnedPublish,
        mut examined: Examined,
    ) {
        let Publish { sequence, data, .. } = message.as_publish();
        let size_max = cx.transport_of(id).max_message_size as usize;
        cx.session(id).preparing_size = data.len();
        cx.stall(id, Stall::Preparing);
        if self.running_size > RUNNING_SIZE_MAX {
            if let Some(preparation) = &mut examined.preparation {
                preparation.postpone();
            }
            self.waiting.push_back(Done { session: id, sequence, found: Some((message, examined)) });
            return;
        }
        let size = data.len() + examined.preparation.as_ref().map_or(0, |preparation| preparation.size());
        self.running_size += size;
        cx.begin_job(
            move |mut arena| {
                examined.run(&message.as_publish(), size_max, &mut arena);
                (message, examined)
            },
            move |InHand { large, .. }: &mut InHand, _, _, found| {
                large.running_size -= size;
                large.done.push_back(Done { session: id, sequence, found });
            },
        );
    }
}
