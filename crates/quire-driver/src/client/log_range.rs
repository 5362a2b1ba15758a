//! A range of the log of a server, taken from its beginning to its end.

use std::sync::Arc;
use std::time::Duration;

use quire_client::{CommandId, ConnectionState, Failure, Message};
use quire_command::Code;

use super::{Client, Queue, Taken, closed};

/// The messages of a bookmark subscription with the option `completed`. Its end was in the log when
/// the range was planned.
///
/// A subscription waits for an end that is not in the log, because a later record may be the end.
/// The end of this range was in the log. If the replay does not find it, it was removed, or the
/// server has another log.
pub struct LogRange {
    queue: Arc<Queue>,
    number: u32,
    /// A command that was sent after the end of the log was reached. When its answer arrives,
    /// everything that the server sent before it has arrived.
    question: Option<CommandId>,
}

/// The result of asking for messages.
#[derive(Debug)]
pub enum Step {
    /// At least one.
    Messages(Vec<Message>),
    /// None in time.
    Nothing,
    /// The end was passed.
    Ended,
    /// There are no more messages, and the end was not reached.
    Failed(Failure),
}

impl LogRange {
    /// The range that the subscription `number` reads, whose messages go to `queue`.
    pub fn new(queue: Arc<Queue>, number: u32) -> Self {
        LogRange { queue, number, question: None }
    }

    /// Takes up to `count_max` messages, waiting up to `timeout` for the first.
    pub fn take(&mut self, client: &Client, count_max: usize, timeout: Duration) -> Step {
        match self.queue.take(self.number, count_max, timeout) {
            Taken::Messages(messages) => {
                client.taken(&self.queue);
                Step::Messages(messages)
            }
            Taken::Ended(Some(failure)) => Step::Failed(failure),
            Taken::Ended(None) => match client.state() {
                ConnectionState::Closed(failure) => Step::Failed(failure.unwrap_or_else(closed)),
                _ => Step::Ended,
            },
            Taken::Nothing if self.queue.is_caught_up(self.number) => self.look_for_the_end(client, timeout),
            Taken::Nothing => Step::Nothing,
        }
    }

    /// When the end is in the log, the server completes the subscription and ends it at once. Both
    /// reports have arrived when a later command is answered.
    fn look_for_the_end(&mut self, client: &Client, timeout: Duration) -> Step {
        let question = match self.question.map_or_else(|| client.flush(), Ok) {
            Ok(question) => question,
            Err(failure) => return Step::Failed(failure),
        };
        self.question = Some(question);
        match client.wait(question, timeout) {
            None => return Step::Nothing,
            Some(Err(failure)) => return Step::Failed(failure),
            Some(Ok(())) => self.question = None,
        }
        match self.queue.take(self.number, 1, Duration::ZERO) {
            Taken::Nothing => Step::Failed(Failure::new(
                Code::BookmarkNotFound,
                "the log ends without the end of the range: it was removed, or this is another log",
            )),
            Taken::Messages(messages) => {
                client.taken(&self.queue);
                Step::Messages(messages)
            }
            Taken::Ended(Some(failure)) => Step::Failed(failure),
            Taken::Ended(None) => Step::Ended,
        }
    }
}
