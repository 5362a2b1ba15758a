//! The progress of the messages of one subscription, and the store in which it is kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use quire_client::{self as core, Failure, Lease, Message, PositionsByInstance, Processed};
use quire_journal::Bookmark;

use crate::store::PositionWriter;

/// The names of the instances that a client was logged on to, by the numbers in its messages.
pub(super) type Instances = Arc<Mutex<Vec<Arc<str>>>>;

/// The progress of one subscription. The subscription and its messages share it.
pub struct SharedProgress {
    /// The user's name of the subscription.
    pub sub_id: String,
    state: Mutex<ProgressState>,
    /// `None`: an ordinary subscription, whose messages have no position in a log.
    writer: Option<PositionWriter>,
    instances: Instances,
    /// A warning was logged that the position does not move.
    was_warned: AtomicBool,
}

/// The receiver of messages in the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandedTo {
    /// A loop: it has processed a message when it asks for the next one.
    Loop,
    /// A handler: it has processed a message when it returns.
    Handler,
}

struct ProgressState {
    progress: core::SubscriptionProgress,
    most_recent: Option<Bookmark>,
}

impl SharedProgress {
    pub(super) fn new(
        sub_id: &str,
        progress: core::SubscriptionProgress,
        most_recent: Option<Bookmark>,
        writer: Option<PositionWriter>,
        instances: Instances,
    ) -> Arc<Self> {
        Arc::new(SharedProgress {
            sub_id: sub_id.to_owned(),
            state: Mutex::new(ProgressState { progress, most_recent }),
            writer,
            instances,
            was_warned: AtomicBool::new(false),
        })
    }

    /// The subscription begins, or begins again, with the bookmark of its command. A store that
    /// cannot be written reports the error with the next message.
    pub(super) fn begin(&self, generation: u16, start: Option<&str>) {
        let mut state = self.state.lock();
        state.progress.begin(generation);
        state.most_recent = None;
        if let Some(writer) = &self.writer
            && let Err(failure) = writer.begin(start)
        {
            log::error!(target: "quire.client", "the place of the subscription {:?} is not kept: {failure}", self.sub_id);
        }
    }

    /// Messages are handed out. Returns the results of `make` for those that were not processed
    /// before, each with its ordinal. `to` determines how the program reports that a message is
    /// processed.
    pub fn hand_out<T>(
        &self,
        messages: Vec<Message>,
        to: HandedTo,
        mut make: impl FnMut(Message, u64) -> T,
    ) -> Vec<T> {
        let mut handed = Vec::with_capacity(messages.len());
        let mut state = self.state.lock();
        for message in messages {
            let ordinal = match to {
                HandedTo::Loop => state.progress.hand_out_in_turn(&message),
                HandedTo::Handler => state.progress.hand_out(&message),
            };
            if let Some(ordinal) = ordinal {
                handed.push(make(message, ordinal));
            }
        }
        if state.progress.is_overflowed() && !self.was_warned.swap(true, Ordering::Relaxed) {
            log::warn!(
                target: "quire.client",
                "the subscription {:?} has too many messages behind an unprocessed one: its place stays there",
                self.sub_id
            );
        }
        handed
    }

    /// The program asks for the next message: it has processed all earlier ones. Returns the leases
    /// to acknowledge, and whether the store could be written.
    pub(super) fn processed_all(&self) -> (Vec<Arc<Lease>>, Result<(), Failure>) {
        let mut state = self.state.lock();
        let processed = state.progress.processed_all();
        (state.progress.take_leases(), self.keep(&mut state, processed))
    }

    /// Whether a message of a queue is acknowledged when it is processed.
    pub(super) fn acknowledges(&self) -> bool {
        self.state.lock().progress.acknowledges()
    }

    /// Places were told after a message.
    pub(super) fn told_places(
        &self,
        generation: u16,
        after: Option<Bookmark>,
        places: &Arc<PositionsByInstance>,
    ) {
        if self.writer.is_some() {
            self.state.lock().progress.told_places(generation, after, places);
        }
    }

    /// One message is processed. A second call has no effect. Neither has a message of a bookmark
    /// that the subscription no longer has.
    ///
    /// # Errors
    /// The store could not be written.
    pub(super) fn processed(&self, ordinal: u64) -> Result<(), Failure> {
        let mut state = self.state.lock();
        let processed = state.progress.processed(ordinal);
        self.keep(&mut state, processed)
    }

    /// The bookmark after which to resume.
    pub fn most_recent(&self) -> Option<Bookmark> {
        self.state.lock().most_recent
    }

    /// Messages that were handed out and are not processed.
    pub fn outstanding_count(&self) -> usize {
        self.state.lock().progress.outstanding_count()
    }

    fn keep(&self, state: &mut ProgressState, processed: Option<Processed>) -> Result<(), Failure> {
        let Some(processed) = processed else { return Ok(()) };
        let instance = match &processed {
            Processed::UpTo { last, instance, .. } => {
                state.most_recent = Some(*last);
                self.instances.lock().get(usize::from(*instance)).cloned().unwrap_or_default()
            }
            Processed::Ahead(_) => Arc::default(),
        };
        self.writer.as_ref().map_or(Ok(()), |writer| writer.processed(&processed, &instance))
    }
}
