//! What must stay of the log when old journal files are removed.

use quire_journal::Position;

use super::Broker;
use crate::subscription::Progressing;

impl Broker {
    /// The first position that must stay: a queue needs it, or a bookmark subscription, paused ones too, has not passed it (reference:
    /// queues-and-transaction-log G3). `None` when nobody needs anything.
    pub fn keep_from(&self) -> Option<Position> {
        let subscriptions = self.subscriptions.iter().filter_map(|(_, subscription)| {
            let progress = subscription.progress()?;
            match progress.stage {
                // What comes next is in memory, or at the end of the log.
                Progressing::AtEdge | Progressing::Live => None,
                Progressing::Halted | Progressing::Replaying(_) | Progressing::Joining { .. } => {
                    Some(progress.after.next())
                }
            }
        });
        subscriptions.chain(self.needed_position()).min()
    }
}
