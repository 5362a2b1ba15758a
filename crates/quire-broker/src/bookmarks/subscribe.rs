//! The begin, the replacement and the end of subscriptions that are served from the log.

use std::time::Duration;

use quire_command::subscribe::{Delivery, Log, NotFound};
use quire_command::{Acks, Code};
use quire_journal::{Position, Timestamp};

use super::{Bookmarks, EndPosition, LogProgress, PendingCompletion, Source};
use crate::context::Context;
use crate::replay::{Pace, Rate};
use crate::reply::Refused;
use crate::subscription::{Bounds, Range, SubscriptionId};

/// How a subscription is served from the log, by the options of its command.
pub(crate) struct LogPlan {
    /// The start and the end; `None` for a replaced subscription that keeps both.
    range: Option<Range>,
    rate: Option<Rate>,
    delivery: Delivery,
}

impl LogPlan {
    /// # Errors
    /// A value that cannot be read.
    pub(crate) fn new(log: &Log<'_>) -> Result<Self, Refused> {
        let range = log.bookmark.map(str::parse::<Range>).transpose();
        let rate = log.pace.map(|pace| Rate::parse(pace.rate, pace.gap_max_ns.map(Duration::from_nanos)));
        Ok(LogPlan {
            range: range.map_err(|error| Refused::new(Code::BadBookmark, error.to_string()))?,
            rate: rate.transpose().map_err(|error| Refused::new(Code::BadOption, error.to_string()))?,
            delivery: log.delivery,
        })
    }

    /// The range in the log. `None`: the subscription keeps its place.
    pub(crate) fn range(&self) -> Option<&Range> {
        self.range.as_ref()
    }

    /// The subscription begins at another place in the log.
    pub(crate) fn set_range(&mut self, range: Range) {
        self.range = Some(range);
    }

    /// The start when the log contains none of its bookmarks.
    pub(crate) fn not_found(&self) -> NotFound {
        self.delivery.not_found
    }
}

/// A subscription that begins or is replaced, with its place in the log.
pub(crate) struct LogRequest {
    pub(crate) plan: LogPlan,
    pub(crate) command: u32,
    pub(crate) acks: Acks,
    /// The end of the log when the command arrived.
    pub(crate) log_end: Position,
    /// The start, and the end if there is one; `None`: the subscription keeps its place.
    pub(crate) place: Option<(Position, Option<EndPosition>)>,
    /// The client takes places.
    pub(crate) takes_places: bool,
    /// The subscription first receives the state of its last-value topic.
    pub(crate) awaits_records: bool,
    pub(crate) is_conflated: bool,
}

/// The parts of a replaced subscription that the new one continues with.
pub(crate) struct FormerPlace {
    progress: Box<LogProgress>,
    until: Option<EndPosition>,
    /// Only messages taken after this instant were wanted.
    taken_after: Option<Timestamp>,
    is_paused: bool,
    /// The subscriptions that share its replay, when it stays in the replay.
    companions: Vec<SubscriptionId>,
}

impl Bookmarks {
    /// A subscription becomes one of the log. [`Bookmarks::begin`] starts its messages, and takes
    /// the companions that this call returns.
    pub(crate) fn enter(
        &mut self,
        cx: &mut Context,
        id: SubscriptionId,
        request: LogRequest,
        former: Option<FormerPlace>,
    ) -> Vec<SubscriptionId> {
        let LogRequest { plan, command, acks, log_end, place, takes_places, awaits_records, is_conflated } =
            request;
        let LogPlan { range, rate, mut delivery } = plan;
        let (mut companions, mut until, mut taken_after, mut former_progress) =
            (Vec::new(), None, None, None);
        if let Some(former) = former {
            delivery.is_paused |= former.is_paused;
            (companions, until, taken_after) = (former.companions, former.until, former.taken_after);
            former_progress = Some(former.progress);
        }
        if let Some(range) = &range {
            taken_after = range.taken_after();
        }
        let after = place.as_ref().map(|(after, _)| *after);
        let until = place.map_or(until, |(_, until)| until);
        // With an interval, it does not matter whether a message is persisted when it is taken.
        delivery.is_live &= !is_conflated;
        delivery.is_fully_durable &= cx.log.replicated.any();
        let goal = PendingCompletion { command, goal: log_end };
        let completion = acks.has(Acks::COMPLETED).then_some(goal);
        let owed = former_progress.as_ref().and_then(|former| former.completed).filter(|_| after.is_none());
        let progress = LogProgress {
            after: after.or(former_progress.map(|former| former.after)).unwrap_or(log_end),
            delivery,
            wants_resume_positions: acks.has(Acks::PERSISTED),
            takes_places,
            // With records, the acknowledgement follows the last record.
            completed: completion.filter(|_| !awaits_records).or(owed),
            awaits_records,
            stage: Source::Detached,
            pace: rate.map(|rate| Box::new(Pace::new(rate))),
            until: None,
        };
        let subscription = cx.subscription(id);
        subscription.delivery.is_paused = delivery.is_paused;
        subscription.wanted.bounds = Bounds { taken_after, ..Bounds::default() }.shared();
        self.subscriptions.insert(id, Box::new(progress));
        self.set_until(cx, id, until);
        companions
    }

    /// A subscription receives its messages from now on, unless it is paused.
    pub(crate) fn begin(&mut self, cx: &mut Context, id: SubscriptionId, companions: Vec<SubscriptionId>) {
        let is_paused = cx.subscription(id).delivery.is_paused;
        self.send_first_resume_position(cx, id);
        if !is_paused {
            self.restart(cx, id, companions);
        }
    }

    /// A subscription has received the requested records. The messages after them follow.
    pub(crate) fn begin_after_records(&mut self, cx: &mut Context, id: SubscriptionId) {
        let subscription = cx.subscription(id);
        let (session, is_paused) = (subscription.session, subscription.delivery.is_paused);
        let Some(progress) = self.subscriptions.get_mut(id) else { return };
        if !std::mem::take(&mut progress.awaits_records) {
            return;
        }
        self.send_first_resume_position(cx, id);
        if !is_paused {
            self.start_replay(cx, session, vec![id]);
        }
    }

    /// A subscription is about to be replaced. Returns the parts that the new one continues with,
    /// when the log serves it. Subscriptions that share a replay stay in it if the new one keeps
    /// its place.
    pub(crate) fn part(
        &mut self,
        cx: &mut Context,
        id: SubscriptionId,
        keeps_place: bool,
    ) -> Option<FormerPlace> {
        let companions = if keeps_place { self.companions(cx, id) } else { Vec::new() };
        let until = self.progress(id)?.until.clone();
        self.clear_until(id);
        self.detach_bookmark(cx, id);
        let progress = self.subscriptions.remove(id)?;
        let subscription = cx.subscription(id);
        let (is_paused, taken_after) = (subscription.delivery.is_paused, subscription.wanted.taken_after());
        Some(FormerPlace { progress, until, taken_after, is_paused, companions })
    }

    /// A subscription is about to be removed.
    pub(crate) fn end(&mut self, cx: &mut Context, id: SubscriptionId) {
        self.clear_until(id);
        self.detach_bookmark(cx, id);
        self.subscriptions.remove(id);
    }
}
