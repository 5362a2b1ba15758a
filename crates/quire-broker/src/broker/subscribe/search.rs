//! The search for the starts of subscriptions in the log.

use crate::context::Context;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use quire_journal::{Bookmark, JournalError, Position};

use super::plan::Plan;
use crate::bookmarks::LogPlan;
use crate::failure::code_of;
use crate::log::{Moment, find_moment};
use crate::replay::Located;
use crate::reply::Refused;
use crate::session::{SessionId, Stall};
use quire_command::Code;
use quire_command::subscribe::NotFound;

/// The subscribe commands that wait for the search of their starts. Their sessions accept no
/// further command meanwhile, so that commands stay in order.
#[derive(Default)]
pub(crate) struct Searches {
    by_session: HashMap<SessionId, Pending, FxBuildHasher>,
    /// The commands whose start may be found after the next flush.
    waiting: Vec<SessionId>,
    /// The commands whose search is done.
    found: Vec<(SessionId, Plan, Start)>,
}

/// The start of the subscription of a plan.
pub(super) enum Start {
    At(Result<Bounds, Refused>),
    WithStateOf(Result<Moment, Refused>),
}

struct Pending {
    plan: Plan,
    /// The message whose time and position are searched; `None`: the search is for the start of the
    /// plan.
    bookmark: Option<Bookmark>,
    /// The search in progress; `None` while it waits until the messages before the command are
    /// persisted.
    number: Option<u64>,
}

/// The start of a subscription, and its end when the end is in the log.
pub(super) type Bounds = (Position, Option<Position>);

impl Searches {
    /// Searches for the start of a plan.
    pub(super) fn begin(&mut self, cx: &mut Context, id: SessionId, plan: Plan) {
        self.by_session.insert(id, Pending { plan, bookmark: None, number: None });
        cx.stall(id, Stall::Searching);
        self.search(cx, id);
    }

    /// Searches for the message after which a subscription with records begins.
    pub(super) fn find(&mut self, cx: &mut Context, id: SessionId, plan: Plan, bookmark: Bookmark) {
        self.by_session.insert(id, Pending { plan, bookmark: Some(bookmark), number: None });
        cx.stall(id, Stall::Searching);
        self.search(cx, id);
    }

    fn search(&mut self, cx: &mut Context, id: SessionId) {
        let Some(pending) = self.by_session.get_mut(&id) else { return };
        let (reader, nameable) = (cx.log.reader.clone(), cx.nameable(id));
        pending.number = match (pending.bookmark, pending.plan.range()) {
            (Some(bookmark), _) => Some(cx.begin_job(
                move |_| find_moment(&reader, bookmark, &nameable),
                move |searches: &mut Searches, cx, number, found| {
                    let start = searches.state_found(cx, id, number, found);
                    searches.found.extend(start.map(|(plan, moment)| (id, plan, Start::WithStateOf(moment))));
                },
            )),
            (None, Some(range)) => {
                let (range, now) = (range.clone(), pending.plan.log_end);
                Some(cx.begin_job(
                    move |_| range.locate(&reader, now, &nameable),
                    move |searches: &mut Searches, cx, number, found| {
                        let start = searches.located(cx, id, number, found);
                        searches.found.extend(start.map(|(plan, bounds)| (id, plan, Start::At(bounds))));
                    },
                ))
            }
            (None, None) => None,
        };
    }

    /// A plan whose start was found, or cannot be found.
    pub(super) fn next_found(&mut self) -> Option<(SessionId, Plan, Start)> {
        self.found.pop()
    }

    /// A search is done; `None` because of a bug in quire. Returns the plan, and its start or the
    /// reason why it has none.
    fn located(
        &mut self,
        cx: &Context,
        id: SessionId,
        number: u64,
        found: Option<Result<Located, JournalError>>,
    ) -> Option<(Plan, Result<Bounds, Refused>)> {
        let pending = self.by_session.get_mut(&id).filter(|pending| pending.number == Some(number))?;
        let plan = &pending.plan;
        let not_found = plan.log.as_ref().map(LogPlan::not_found).unwrap_or_default();
        let bounds = match found {
            Some(Ok(Located { after: Some(after), until })) => Ok((after, until)),
            // Subscribers know a bookmark before its message is persisted, so the message may be
            // persisted later.
            Some(Ok(_)) if cx.log.visible() < plan.log_end && cx.log.failure.is_none() => {
                pending.number = None;
                self.waiting.push(id);
                return None;
            }
            Some(Ok(_)) if not_found == NotFound::Fail => {
                let reason = "none of the bookmarks is in the log: journal files were removed, or the server \
                              has another log (bookmark_not_found chooses another start)";
                Err(Refused::new(Code::BookmarkNotFound, reason.to_owned()))
            }
            Some(Ok(Located { until, .. })) => {
                let after = if not_found == NotFound::Now { plan.log_end } else { Position::default() };
                pending.plan.is_bookmark_missing = true;
                Ok((after, until))
            }
            Some(Err(error)) => Err(Refused::new(code_of(&error), error.to_string())),
            None => Err(Refused::new(Code::Internal, "looking for the bookmark failed".to_owned())),
        };
        self.by_session.remove(&id).map(|pending| (pending.plan, bounds))
    }

    /// A search for the message of a state is done. Returns the plan, and the instant or the reason
    /// why there is none.
    fn state_found(
        &mut self,
        cx: &Context,
        id: SessionId,
        number: u64,
        found: Option<Result<Option<Moment>, JournalError>>,
    ) -> Option<(Plan, Result<Moment, Refused>)> {
        let pending = self.by_session.get_mut(&id).filter(|pending| pending.number == Some(number))?;
        let found = match found {
            Some(Ok(Some(moment))) => Ok(moment),
            Some(Ok(None)) if cx.log.visible() < pending.plan.log_end && cx.log.failure.is_none() => {
                pending.number = None;
                self.waiting.push(id);
                return None;
            }
            Some(Ok(None)) => {
                Err(Refused::new(Code::BookmarkNotFound, "the bookmark is not in the log".to_owned()))
            }
            Some(Err(error)) => Err(Refused::new(code_of(&error), error.to_string())),
            None => Err(Refused::new(Code::Internal, "looking for the bookmark failed".to_owned())),
        };
        self.by_session.remove(&id).map(|pending| (pending.plan, found))
    }

    /// Searches again for starts that were not persisted yet.
    pub(crate) fn retry(&mut self, cx: &mut Context) {
        let persisted = cx.log.visible();
        for id in std::mem::take(&mut self.waiting) {
            match self.by_session.get(&id) {
                Some(pending) if pending.plan.log_end <= persisted || cx.log.failure.is_some() => {
                    self.search(cx, id);
                }
                Some(_) => self.waiting.push(id),
                None => (),
            }
        }
    }

    /// The session no longer has subscriptions.
    pub(super) fn forget(&mut self, id: SessionId) {
        self.by_session.remove(&id);
        self.found.retain(|(session, ..)| *session != id);
    }
}
