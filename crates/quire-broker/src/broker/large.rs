//! Large messages of clients, which another thread examines before they are recorded.
//!
//! A turn that reads a message of megabytes field by field would keep every connection waiting. So the
//! connection of the message waits alone ([`Stall::Preparing`]), a job examines the message, and then
//! the intake takes the message again from the beginning, with what the job has found. Topics,
//! duplicates and records are looked at again then, because they may have changed.

use std::collections::VecDeque;

use quire_command::Publish;
use quire_expression::message_type::Arena;

use super::Broker;
use super::publish::check_json;
use crate::context::{Context, Shutdown};
use crate::reply::Refusal;
use crate::session::{OwnedPublish, Phase, PublisherKey, SessionId, Stall};
use crate::tables::{Arriving, Preparation};

/// What jobs have found about a message.
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
    /// The next job looks.
    Asked,
    Valid,
    /// The reason why it is not.
    Invalid(String),
}

/// The large messages whose jobs are done.
#[derive(Default)]
pub(super) struct LargeMessages {
    done: VecDeque<Done>,
}

/// The end of a job.
struct Done {
    session: SessionId,
    sequence: u64,
    /// `None`: the job panicked.
    found: Option<(OwnedPublish, Examined)>,
}

impl Examined {
    fn run(&mut self, publish: &Publish<'_>, size_max: usize, arena: &mut Arena) {
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
    /// Has a message examined. The commands of its connection wait.
    pub(super) fn examine(
        &mut self,
        cx: &mut Context,
        id: SessionId,
        message: OwnedPublish,
        mut examined: Examined,
    ) {
        let Publish { sequence, data, .. } = message.as_publish();
        let size_max = cx.transport_of(id).max_message_size as usize;
        let held_size = examined.preparation.as_ref().map_or(0, |preparation| preparation.size());
        cx.session(id).preparing_size = data.len() + held_size;
        cx.stall(id, Stall::Preparing);
        cx.begin_job(
            move |mut arena| {
                examined.run(&message.as_publish(), size_max, &mut arena);
                (message, examined)
            },
            move |large: &mut LargeMessages, _, _, found| {
                large.done.push_back(Done { session: id, sequence, found });
            },
        );
    }
}

impl Broker {
    /// Takes the messages that were examined. The connections of those that are done continue.
    pub(super) fn take_examined(&mut self) {
        while let Some(Done { session: id, sequence, found }) = self.large.done.pop_front() {
            let is_open = self.cx.sessions.all.get(id).is_some_and(|session| session.phase == Phase::Open);
            // The client was not acknowledged, and sends the message again.
            if !is_open || self.cx.shutdown != Shutdown::No {
                continue;
            }
            let Some(publisher) = self.publishers.begin_publish(&mut self.cx, id) else { continue };
            self.cx.session(id).preparing_size = 0;
            match found {
                Some((message, examined)) => self.take_again(id, publisher, message, examined),
                None => {
                    let reason = "the server cannot examine the message, by a fault of its own".to_owned();
                    let refusal = Refusal::BadMessage(reason);
                    self.publishers.refuse(&mut self.cx, id, publisher, sequence, refusal);
                }
            }
            let session = self.cx.session(id);
            if session.preparing_size == 0 {
                self.cx.resume_commands(id, Stall::Preparing);
            }
            self.cx.count_unfinished(id);
        }
    }

    fn take_again(
        &mut self,
        id: SessionId,
        publisher: PublisherKey,
        message: OwnedPublish,
        examined: Examined,
    ) {
        let publish = message.as_publish();
        let result = match self.topic_of(id, publish.topic) {
            Ok(topic) => self.check_and_publish(id, publisher, &publish, topic, examined),
            Err(refusal) => Err(refusal),
        };
        match result {
            Ok(None) => {}
            Ok(Some(examined)) => self.large.examine(&mut self.cx, id, message, examined),
            Err(refusal) => {
                let sequence = publish.sequence;
                self.publishers.refuse(&mut self.cx, id, publisher, sequence, refusal);
            }
        }
    }
}
