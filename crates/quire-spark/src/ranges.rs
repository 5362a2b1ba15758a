//! The range that a read of a journal covers, by its options.

use quire_journal::{Reader, Timestamp};
use quire_types::Bookmark;

use crate::failure::{Failure, Outcome};
use crate::journals::{Range, identity, refreshed};
use crate::options::{LogPlace, ReadOptions, before};

/// The current range of a read. `directory` is from `journals::locate`.
pub fn span(directory: &str, options: &ReadOptions, now: Timestamp) -> Outcome<Range> {
    let found = refreshed(directory, options.archive.as_deref())?;
    let places = Places { found: &found, options, now, last: found.persisted().get() };
    let (after, limit, at_ns) = match options.last_values {
        None => {
            let after = places.start()?;
            (after, places.end()?.max(after), None)
        }
        Some(_) => {
            let (limit, at_ns) = places.state()?;
            (0, limit, Some(at_ns))
        }
    };
    Ok(Range {
        directory: directory.to_owned(),
        archive: options.archive.clone(),
        after,
        limit,
        at: identity(&found, limit),
        at_ns,
    })
}

struct Places<'a> {
    found: &'a Reader,
    options: &'a ReadOptions,
    now: Timestamp,
    last: u64,
}

impl Places<'_> {
    fn start(&self) -> Outcome<u64> {
        let before_first = self.before_first();
        if let Some(ns) = self.options.starting_ns {
            let after = self.position_before(ns.saturating_sub(1))?;
            if after >= self.last && !self.options.starts_at_latest {
                return Err(Failure::option(
                    "startingTimestamp: it is behind the last message; timestampStrategy=latest begins there",
                ));
            }
            return Ok(after);
        }
        let starting = self.options.starting.as_ref().unwrap_or(&LogPlace::Earliest);
        Ok(self.position("startingOffsets", starting)?.max(before_first))
    }

    fn end(&self) -> Outcome<u64> {
        match self.options.ending_ns {
            Some(ns) => self.position_before(ns),
            None => self.position("endingOffsets", &self.options.ending),
        }
    }

    /// The end of a read of last values, and the instant at which lifetimes are checked.
    fn state(&self) -> Outcome<(u64, u64)> {
        let instant_ns = self.options.ending_ns.or(match &self.options.ending {
            LogPlace::AgoNs(ns) => Some(before(self.now, *ns).as_ns()),
            LogPlace::TimeNs(ns) => Some(*ns),
            _ => None,
        });
        if let Some(ns) = instant_ns {
            return Ok((self.position_before(ns)?, ns));
        }
        let limit = self.end()?;
        let at = identity(self.found, limit).filter(|_| self.options.ending != LogPlace::Latest);
        Ok((limit, at.map_or(self.now.as_ns(), |(_, ns)| ns)))
    }

    fn position(&self, key: &'static str, place: &LogPlace) -> Outcome<u64> {
        match place {
            LogPlace::Earliest => Ok(self.before_first()),
            LogPlace::Latest => Ok(self.last),
            LogPlace::Back(count) => Ok(self.last.saturating_sub(*count)),
            LogPlace::AgoNs(ns) => self.position_before(before(self.now, *ns).as_ns()),
            LogPlace::TimeNs(ns) => self.position_before(*ns),
            LogPlace::Bookmark(text) => self.bookmark(key, text),
        }
    }

    fn bookmark(&self, key: &'static str, text: &str) -> Outcome<u64> {
        let count = self.options.directories.len();
        if count != 1 {
            return Err(Failure::option(format!(
                "{key}: a bookmark names a message of one journal, and {count} are read"
            )));
        }
        let wrong = |reason: String| Failure { key: Some(key), ..Failure::new("bad_bookmark", reason) };
        let bookmark: Bookmark = text.parse().map_err(|error| wrong(format!("{text}: {error}")))?;
        let found = self.found.find(bookmark)?;
        let places = self.options.places();
        Ok(found.ok_or_else(|| wrong(format!("the journal in {places} does not have {text}")))?.get())
    }

    fn before_first(&self) -> u64 {
        self.found.first().get().saturating_sub(1)
    }

    fn position_before(&self, ns: u64) -> Outcome<u64> {
        Ok(self.found.position_before(Timestamp::from_ns(ns))?.get())
    }
}
