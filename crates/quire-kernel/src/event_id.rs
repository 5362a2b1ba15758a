//! The ids of the lines of the log.

use crate::io::Event;

/// Makes `Event::IDS` and `Event::id` from the ids.
macro_rules! ids {
    ($($variant:ident = $id:literal),* $(,)?) => {
        impl Event {
            /// The id of each event. `docs/reference/log.md` explains them.
            pub const IDS: &[&str] = &[$($id),*];

            /// The id of the line in the log. It never changes its meaning: monitors search for it.
            pub fn id(&self) -> &'static str {
                match self {
                    $(Event::$variant { .. } => $id),*
                }
            }
        }
    };
}

ids! {
    ShuttingDown = "00-0002",
    InstanceRenamed = "00-0003",
    InstanceNamesLost = "00-0004",
    ClockBehind = "00-0005",
    ConfigWarning = "02-0001",
    LoggedOn = "10-0004",
    Disconnected = "10-0005",
    Ended = "10-0006",
    SequenceJumped = "10-0007",
    Refused = "10-0008",
    MoreRefused = "10-0009",
    LoggedOff = "10-0010",
    ClientOfflined = "10-0015",
    ClientOnline = "10-0016",
    SubscriptionEnded = "11-0001",
    MessageUnreadable = "11-0002",
    LinkUp = "12-0001",
    LinkCaughtUp = "12-0002",
    LinkDown = "12-0003",
    LinkWaitedFor = "12-0004",
    LinkPaused = "12-0005",
    LinkHasGap = "12-0006",
    LinkAccepted = "12-0007",
    LinkRefused = "12-0008",
    LinkConflict = "12-0009",
    LinkLost = "12-0010",
    LinkRejected = "12-0011",
    LogFilling = "12-0012",
    ClientsWait = "12-0013",
    LogComplete = "12-0014",
    ClientsAdmitted = "12-0015",
    NameUsedTwice = "12-0016",
    LinkCompared = "12-0017",
    LinkNotCompared = "12-0018",
    MessagesMissing = "12-0019",
    GapAccepted = "12-0020",
    JournalFailed = "20-0001",
    JournalStalled = "20-0002",
    JournalResumed = "20-0003",
    JournalFilesTaken = "20-0004",
    JournalFileTaken = "20-0005",
    MaintenanceFailed = "20-0006",
    TornTailCut = "20-0007",
    SequencesLost = "20-0008",
    QueueMessageUnreadable = "31-0001",
    DeadLetter = "31-0002",
    DeadLetters = "31-0003",
    MessageExpired = "31-0004",
    MessagesExpired = "31-0005",
    MessageCancelled = "31-0006",
    MessagesCancelled = "31-0007",
    QueuePointsNotSaved = "31-0008",
    QueuesNotPaged = "31-0009",
    QueueCreated = "31-0011",
    QueueAltered = "31-0012",
    QueueDropped = "31-0013",
    QueueMessagesLeftOut = "31-0014",
    QueueRecordPassedOver = "31-0015",
    QueueSettingIgnored = "31-0016",
    TablesNotPaged = "40-0001",
    KeyFieldMissing = "40-0002",
    SnapshotNotSaved = "40-0003",
    SnapshotNotUsed = "40-0004",
    RecordsMissing = "40-0005",
    RecordNotKept = "40-0006",
    DeletesForgotten = "40-0007",
    ViewNotWritten = "40-0008",
    ViewComputedAgain = "40-0009",
    ViewDefined = "40-0010",
    ViewDefinitionNotUsed = "40-0011",
    Administered = "50-0001",
    DeliveriesLeftOut = "60-0009",
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_event_has_an_id_of_its_own() {
        assert_eq!(Event::IDS.iter().collect::<HashSet<_>>().len(), Event::IDS.len());
    }
}
