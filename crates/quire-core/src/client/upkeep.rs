//! What a client has done with full journal files of its server.

use quire_journal::Action;

use super::{ClientCore, CommandId, Failure};
use crate::wire::{ClientFrame, Files, Upkeep};

impl ClientCore {
    /// Has one full journal file taken care of, the oldest that is meant; with `dry_run` asks for all that are. Each comes as
    /// [`Event::Told`](super::Event::Told) before the answer; none: there is none, or it must stay. One at a time.
    ///
    /// # Errors
    /// When the client is closed.
    pub fn upkeep(&mut self, action: Action, files: Files, dry_run: bool) -> Result<CommandId, Failure> {
        self.check_not_closed()?;
        Ok(self.command(|commands| {
            commands.once(None, |command, out| {
                ClientFrame::Upkeep(Upkeep { command, action, files, dry_run }).encode(out);
            })
        }))
    }
}
