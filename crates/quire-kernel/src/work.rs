//! Background jobs: work that may wait for the disk, and the functions for its results.
//!
//! A service passes a job to [`Context::begin_job`], with a function for its result. The driver
//! runs the job on another thread and hands in its result. The run loop calls the owner with it.

use std::any::Any;

use hashbrown::HashMap;
use quire_expression::message_type::Arena;
use quire_expression::unreadable::Unreadables;
use rustc_hash::FxBuildHasher;

use super::Output;
use super::context::Context;

/// A job that reads from the journal, or writes a file next to it. It may block on the disk. Run it
/// outside of the loop, then hand in the result as `Input::ReadDone`. Requests are independent of
/// each other and may be run in any order, on any thread.
pub struct ReadRequest {
    number: u64,
    job: Box<dyn FnOnce(Arena) -> Found + Send>,
    /// For the messages that the job reads.
    unreadables: Unreadables,
}

/// The result of a [`ReadRequest`].
pub struct ReadDone {
    number: u64,
    /// `None` when the job panicked.
    found: Option<Found>,
}

/// Identifies a running [`ReadRequest`], also after a panic of its job.
#[derive(Clone, Copy, Debug)]
pub struct ReadTicket(u64);

/// The result of a job. Only [`Context::begin_job`] knows its type.
type Found = Box<dyn Any + Send>;

/// The continuation of a job: it finds the owner among the services, and calls it.
type Continuation = Box<dyn FnOnce(Parts<'_, '_>, &mut Context, u64, Option<Found>) + Send>;

/// The services of the broker that can own jobs.
pub type Parts<'p, 'a> = &'p mut [&'a mut dyn Any];

/// The jobs in progress.
#[derive(Default)]
pub struct Work {
    /// The number of the last job.
    number: u64,
    continuations: HashMap<u64, Continuation, FxBuildHasher>,
}

impl Work {
    fn begin(&mut self, continuation: Continuation) -> u64 {
        self.number += 1;
        self.continuations.insert(self.number, continuation);
        self.number
    }
}

impl Context {
    /// Runs a job on another thread, and returns its number. `done` is called with the service of
    /// type `Owner`, the number of the job, and its result. The result is `None` when the job
    /// panicked because of a bug in quire.
    pub fn begin_job<Owner: 'static, T: Send + 'static>(
        &mut self,
        job: impl FnOnce(Arena) -> T + Send + 'static,
        done: impl FnOnce(&mut Owner, &mut Context, u64, Option<T>) + Send + 'static,
    ) -> u64 {
        let number = self.work.begin(Box::new(move |parts, cx, number, found| {
            let owner = parts.iter_mut().find_map(|part| part.downcast_mut::<Owner>());
            debug_assert!(owner.is_some(), "{} is no part of the broker", std::any::type_name::<Owner>());
            if let Some(owner) = owner {
                let found = found.and_then(|found| found.downcast::<T>().ok());
                done(owner, cx, number, found.map(|found| *found));
            }
        }));
        let unreadables = self.messages.unreadable.reports().clone();
        let job = Box::new(move |arena| Box::new(job(arena)) as Found);
        self.outputs.push_back(Output::Read(ReadRequest { number, job, unreadables }));
        number
    }

    /// As [`Context::begin_job`], for a job whose result is only for the context.
    pub fn begin_inner_job<T: Send + 'static>(
        &mut self,
        job: impl FnOnce() -> T + Send + 'static,
        done: impl FnOnce(&mut Context, Option<T>) + Send + 'static,
    ) {
        let number = self.work.begin(Box::new(move |_, cx, _, found| {
            let found = found.and_then(|found| found.downcast::<T>().ok());
            done(cx, found.map(|found| *found));
        }));
        let unreadables = self.messages.unreadable.reports().clone();
        let job = Box::new(move |_| Box::new(job()) as Found);
        self.outputs.push_back(Output::Read(ReadRequest { number, job, unreadables }));
    }

    /// Passes the result of a job to the service that waits for it.
    pub fn finish_job(&mut self, ReadDone { number, found }: ReadDone, parts: Parts<'_, '_>) {
        if let Some(continuation) = self.work.continuations.remove(&number) {
            continuation(parts, self, number, found);
        }
    }
}

impl ReadRequest {
    /// The ticket of this request. Keep it while [`ReadRequest::run`] runs.
    pub fn ticket(&self) -> ReadTicket {
        ReadTicket(self.number)
    }

    /// Runs the job. Never panics on any content of a disk.
    pub fn run(self) -> ReadDone {
        let arena = Arena::reporting_to(&self.unreadables);
        ReadDone { number: self.number, found: Some((self.job)(arena)) }
    }
}

impl ReadTicket {
    /// The read panicked. Its owner gets this result instead of waiting forever.
    pub fn panicked(self) -> ReadDone {
        ReadDone { number: self.0, found: None }
    }
}
