//! Commands of a client for journal maintenance on its server.

use quire_types::Action;

use super::{ClientCore, CommandId, Failure};
use quire_command::{Command, Maintain};
use quire_types::Files;
use quire_wire::Encode;

impl ClientCore {
    /// Asks the server to archive, compress or remove one full journal file: the oldest selected
    /// one. With `dry_run` it asks for all selected files.
    /// [`Event::JsonReply`](super::Event::JsonReply) reports each file before the answer. Without
    /// one, no file is selected, or the file must stay. A connection may have one such command at a
    /// time. With `archive_directory` the server refuses the command unless it archives there.
    ///
    /// # Errors
    /// When the client is closed.
    pub fn maintain(
        &mut self,
        action: Action,
        files: Files,
        dry_run: bool,
        archive_directory: Option<&str>,
    ) -> Result<CommandId, Failure> {
        self.check_not_closed()?;
        Ok(self.command(|commands| {
            commands.once(None, |command, out| {
                Command::Maintain(Maintain { command, action, files, dry_run, archive_directory })
                    .encode(out);
            })
        }))
    }
}
