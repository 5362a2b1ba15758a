//! States of earlier instants: `sow` with a bookmark (docs/last-values.md section 3).
//!
//! A time is an instant. The instant of a bookmark is the time of its message, which a background
//! job reads from the log. Commands of the connection wait for it, so that they stay in order.

use crate::scan::StartPoint;
use quire_command::Code;
use quire_expression::filter::Filter;
use quire_journal::{Bookmark, JournalError, Position, Timestamp};
use quire_table::{AsOf, BeforeHistory};

use super::plan::{Asker, RecordsPlan};
use super::{TableDurability, TableState, Tables};
use crate::context::Context;
use crate::failure::code_of;
use crate::log::{Moment, find_moment};
use crate::reply::Refused;
use crate::session::{SessionId, Stall};
use crate::topic::TableId;

/// The state that a query requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AskedState {
    Current,
    At(Moment),
    After(Bookmark),
}

/// A query that waits for the search of its bookmark.
pub(super) struct Finding {
    plan: RecordsPlan,
    filter: Option<Filter>,
    asker: Asker,
    bookmark: Bookmark,
    /// The end of the log when the command arrived.
    log_end: Position,
    /// The search in progress; `None` while it waits until the messages before the command are
    /// persisted.
    number: Option<u64>,
}

impl AskedState {
    /// Reads the bookmark of a query.
    ///
    /// # Errors
    /// It names no single instant.
    pub fn parse(text: &str) -> Result<AskedState, Refused> {
        let point = text.trim().parse::<StartPoint>().map_err(|error| {
            let reason = format!("bookmark: {error}. A state has one bookmark or one time");
            Refused::new(Code::BadBookmark, reason)
        })?;
        Ok(match point {
            StartPoint::Now => AskedState::Current,
            StartPoint::Epoch => AskedState::At(Moment { time: Timestamp(0), position: None }),
            StartPoint::Time(time) => AskedState::At(Moment { time, position: None }),
            StartPoint::Bookmark(bookmark) => AskedState::After(bookmark),
        })
    }
}

impl TableState {
    /// The instant of the state that the table returns for another instant; `None`: the current
    /// state.
    ///
    /// # Errors
    /// The history does not contain the instant.
    pub(super) fn as_of(&self, cx: &mut Context, instant: Moment) -> Result<Option<AsOf>, Refused> {
        let now = cx.log.stamp(cx.clock.now.wall);
        // Messages of a transient topic may be missing in the log. Their positions are then not
        // comparable.
        let position = instant.position.filter(|_| self.definition.durability == TableDurability::Persistent);
        let found = self.table.as_of(instant.time, position, now);
        found.map_err(|BeforeHistory { begin, is_by_size }| {
            let key = if is_by_size { "max_size" } else { "window" };
            let reason = format!(
                "bookmark: the history of {:?} begins at {begin}, and the bookmark is of {}; ask for a later state, or raise {key} of \
                 its history",
                self.definition.name, instant.time
            );
            Refused::new(Code::BadBookmark, reason)
        })
    }
}

impl Tables {
    /// The instant of the state that a topic returns for another instant; `None`: the current
    /// state.
    ///
    /// # Errors
    /// The history does not contain the instant.
    pub(crate) fn as_of(
        &self,
        cx: &mut Context,
        id: TableId,
        instant: Moment,
    ) -> Result<Option<AsOf>, Refused> {
        self.all[id.0 as usize].as_of(cx, instant)
    }

    /// Whether one of the tables keeps its history.
    pub(crate) fn keep_history(&self, tables: &[TableId]) -> bool {
        tables.iter().any(|table| self.all[table.0 as usize].definition.config.history.is_some())
    }

    /// Searches for the bookmark of a query. The commands of the connection wait.
    pub(super) fn find_bookmark(
        &mut self,
        cx: &mut Context,
        id: SessionId,
        (plan, filter, asker): (RecordsPlan, Option<Filter>, Asker),
        bookmark: Bookmark,
    ) {
        let log_end = if cx.log.failure.is_some() { cx.log.visible() } else { cx.log.appended() };
        let number = Some(begin_search(cx, id, bookmark));
        self.finding.insert(id, Finding { plan, filter, asker, bookmark, log_end, number });
        cx.stall(id, Stall::Searching);
    }

    /// A search is done; `None` because of a bug in quire.
    fn bookmark_found(
        &mut self,
        cx: &mut Context,
        id: SessionId,
        number: u64,
        found: Option<Result<Option<Moment>, JournalError>>,
    ) {
        let is_current = |finding: &&mut Finding| finding.number == Some(number);
        let Some(finding) = self.finding.get_mut(&id).filter(is_current) else { return };
        let found = match found {
            Some(Ok(Some(instant))) => Ok(instant),
            // Subscribers know a bookmark before its message is persisted, so the message may be
            // persisted later.
            Some(Ok(None)) if cx.log.visible() < finding.log_end && cx.log.failure.is_none() => {
                finding.number = None;
                return;
            }
            Some(Ok(None)) => {
                Err(Refused::new(Code::BookmarkNotFound, "the bookmark is not in the log".to_owned()))
            }
            Some(Err(error)) => Err(Refused::new(code_of(&error), error.to_string())),
            None => Err(Refused::new(Code::Internal, "looking for the bookmark failed".to_owned())),
        };
        let Some(Finding { plan, filter, asker, .. }) = self.finding.remove(&id) else { return };
        match found {
            Ok(instant) => self.begin_query(cx, id, &plan, filter.as_ref(), asker, Some(instant)),
            Err(refused) => cx.refuse_command(id, asker.command, asker.number, &refused),
        }
        cx.resume_commands(id, Stall::Searching);
    }

    /// Searches again for bookmarks that were not persisted yet.
    pub(crate) fn retry_searches(&mut self, cx: &mut Context) {
        let (persisted, has_failed) = (cx.log.visible(), cx.log.failure.is_some());
        for (id, finding) in &mut self.finding {
            if finding.number.is_none() && (finding.log_end <= persisted || has_failed) {
                finding.number = Some(begin_search(cx, *id, finding.bookmark));
            }
        }
    }
}

fn begin_search(cx: &mut Context, id: SessionId, bookmark: Bookmark) -> u64 {
    let (reader, nameable) = (cx.log.reader.clone(), cx.nameable(id));
    cx.begin_job(
        move |_| find_moment(&reader, bookmark, &nameable),
        move |tables: &mut Tables, cx, number, found| tables.bookmark_found(cx, id, number, found),
    )
}
