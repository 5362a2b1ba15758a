//! The threads that archive, compress and remove full journal files, off the loop that carries the broker: as configured
//! ([`Housekeeper`]), and as clients ask for it ([`Errands`]).

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use quire_core::broker::{Event, UpkeepConfig, UpkeepDone, UpkeepRequest};
use quire_journal::{Action, JournalError, Position, Upkeep, Which};

use crate::clock::Clock;
use crate::error::EngineError;
use crate::reader_pool::caught;
use crate::waker::Waker;

/// The longest that the thread waits for the loop to say what must stay; a loop that takes longer is ending.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// Looks after the journal files until it is dropped.
pub(crate) struct Housekeeper {
    /// From the thread: what must stay? Answered in a turn of the loop, which alone may look at the broker.
    questions: Receiver<Sender<Option<Position>>>,
    events: Receiver<Event>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Housekeeper {
    /// Starts the thread; `None` when nothing is to be done.
    pub fn start(
        upkeep: Upkeep,
        config: UpkeepConfig,
        waker: &Arc<Waker>,
    ) -> Result<Option<Self>, EngineError> {
        let rules = [
            (Action::Archive, config.archive_after_ns, config.archive_size_max),
            (Action::Compress, config.compress_after_ns, config.compress_size_max),
            (Action::Remove, config.remove_after_ns, config.remove_size_max),
        ];
        if rules.iter().all(|(_, age_ns, size_max)| age_ns.is_none() && size_max.is_none()) {
            return Ok(None);
        }
        let (stop, stopped) = bounded::<()>(0);
        let (ask, questions) = bounded(1);
        let (report, events) = unbounded();
        let waker = Arc::clone(waker);
        let interval = Duration::from_nanos(config.interval_ns);
        let keep = move || {
            let clock = Clock::start();
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                let now = clock.now().wall;
                let by_rule = rules.into_iter().flat_map(|(action, age_ns, size_max)| {
                    let older = age_ns.map(|age_ns| Which::older_than(Duration::from_nanos(age_ns), now));
                    let beyond = size_max.map(|size_max| Which::Beyond { size_max });
                    older.into_iter().chain(beyond).map(move |which| (action, which))
                });
                for (action, which) in by_rule {
                    let taken = match action {
                        Action::Archive => upkeep.archive(which),
                        Action::Compress => upkeep.compress(which),
                        Action::Remove => match what_must_stay(&ask, &waker) {
                            Ok(needed) => upkeep.remove(which, needed),
                            // The loop is ending.
                            Err(_) => return,
                        },
                    };
                    let event = match taken {
                        Ok(taken) if taken.is_empty() => continue,
                        Ok(taken) => Event::JournalFilesTaken { action, count: taken.len() },
                        Err(JournalError::Closed) => return,
                        Err(error) => Event::UpkeepFailed { action, reason: error.to_string() },
                    };
                    // Nobody listens only when the loop is ending.
                    let _ = report.send(event);
                    waker.ring();
                }
            }
        };
        let thread = std::thread::Builder::new().name("quire-upkeep".into()).spawn(keep);
        let thread = thread.map_err(EngineError::Thread)?;
        Ok(Some(Housekeeper { questions, events, stop: Some(stop), thread: Some(thread) }))
    }

    /// Answers what the thread asks; to be called in every turn.
    pub fn answer(&self, keep_from: impl Fn() -> Option<Position>) {
        for question in self.questions.try_iter() {
            // It waits, unless it gave up.
            let _ = question.send(keep_from());
        }
    }

    /// What was done since.
    pub fn poll_event(&self) -> Option<Event> {
        self.events.try_recv().ok()
    }
}

fn what_must_stay(
    ask: &Sender<Sender<Option<Position>>>,
    waker: &Waker,
) -> Result<Option<Position>, RecvTimeoutError> {
    let (answer, answered) = bounded(1);
    ask.send(answer).map_err(|_| RecvTimeoutError::Disconnected)?;
    waker.ring();
    answered.recv_timeout(ANSWER_TIME_MAX)
}

impl Drop for Housekeeper {
    fn drop(&mut self) {
        self.stop = None;
        // A question that waits gets no answer any more.
        self.questions = crossbeam_channel::never();
        if let Some(thread) = self.thread.take() {
            // It has nothing more to report.
            let _ = thread.join();
        }
    }
}

/// Does what clients ask for, on a thread for each request: that costs nothing beside the file, and a server that nobody asks has none.
pub(crate) struct Errands {
    done: Receiver<UpkeepDone>,
    finished: Sender<UpkeepDone>,
    waker: Arc<Waker>,
    /// Of the last request; the broker hands out one at a time.
    thread: Option<JoinHandle<()>>,
}

impl Errands {
    pub fn new(waker: &Arc<Waker>) -> Self {
        let (finished, done) = unbounded();
        Errands { done, finished, waker: Arc::clone(waker), thread: None }
    }

    /// Does it, and rings the waker when it is done.
    pub fn submit(&mut self, request: UpkeepRequest) {
        self.wait();
        let (finished, waker) = (self.finished.clone(), Arc::clone(&self.waker));
        let run = move || {
            let done = caught(|| request.run());
            let done = done.unwrap_or_else(|| UpkeepDone::failed("it panicked, which is a bug in quire"));
            // Nobody listens only when the loop is ending.
            let _ = finished.send(done);
            waker.ring();
        };
        match std::thread::Builder::new().name("quire-errand".into()).spawn(run) {
            Ok(thread) => self.thread = Some(thread),
            Err(error) => {
                // The receiver is our own.
                let _ = self.finished.send(UpkeepDone::failed(&format!("no thread for it: {error}")));
                self.waker.ring();
            }
        }
    }

    /// What was done since.
    pub fn poll(&self) -> Option<UpkeepDone> {
        self.done.try_recv().ok()
    }

    /// Waits for the thread: before the next request it has nothing left to do but to ring, at the end it finishes its file.
    fn wait(&mut self) {
        if let Some(thread) = self.thread.take() {
            // It has sent what it did; panics are caught in it.
            let _ = thread.join();
        }
    }
}

impl Drop for Errands {
    fn drop(&mut self) {
        self.wait();
    }
}
