//! The attempts to connect: which address is next, and after which delay.

use std::time::Duration;

/// The first delay after every address was tried without success. It doubles with each pass. As
/// with clients.
const DELAY_MIN: Duration = Duration::from_millis(200);

/// The longest delay.
const DELAY_MAX: Duration = Duration::from_secs(20);

/// See the documentation of the module.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    /// The place of the address that is tried now, or next.
    pub(super) address: usize,
    /// Passes over all addresses without success, and links in a row that ended soon.
    pub(super) failed_passes: u32,
    /// The last link ended soon.
    is_unsteady: bool,
    /// The destination has ended the link.
    pub(super) is_refused: bool,
    pub(super) last_error: Option<String>,
}

impl Attempts {
    /// The destination has answered.
    pub(super) fn answered(&mut self) {
        self.is_refused = false;
        if !self.is_unsteady {
            self.failed_passes = 0;
        }
        self.last_error = None;
    }

    /// Whether the error is another one than the last.
    pub(super) fn note_error(&mut self, reason: &str) -> bool {
        let is_new = self.last_error.as_deref() != Some(reason);
        if is_new {
            self.last_error = Some(reason.to_owned());
        }
        is_new
    }

    /// An attempt, or a link, has failed. `ended`: the link was live, and whether it ended soon.
    /// Gives the delay before the next pass over the addresses; `None`: the next address is tried
    /// at once.
    pub(super) fn fail(
        &mut self,
        ended: Option<bool>,
        was_shared: bool,
        address_count: usize,
    ) -> Option<Duration> {
        if let Some(is_brief) = ended {
            let was_unsteady = std::mem::replace(&mut self.is_unsteady, is_brief);
            if !is_brief || !was_unsteady {
                self.failed_passes = 0;
            }
        }
        self.is_refused = false;
        let was_live = ended.is_some();
        if !was_live && self.address + 1 < address_count {
            self.address += 1;
            return None;
        }
        self.address = 0;
        let delay = DELAY_MIN.saturating_mul(1 << self.failed_passes.min(16)).min(DELAY_MAX);
        self.failed_passes += 1;
        // The destination connects again, and this connection is used.
        Some(if was_live && was_shared { delay.max(DELAY_MIN * 2) } else { delay })
    }
}
