//! The stable codes of errors on the wire: numbers and names never change meaning.

use std::fmt;

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal;)*) => {
        /// The cause of a failure, as a number that programs may rely on (protocol.md section 5).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Code {
            $($(#[$doc])* $variant = $number,)*
        }

        impl Code {
            /// Every code, in the order of their numbers.
            pub const ALL: &[Code] = &[$(Code::$variant,)*];

            /// The stable name, as in `bad_filter`.
            pub const fn name(self) -> &'static str {
                match self { $(Code::$variant => $name,)* }
            }

            /// The code with this number, if there is one.
            pub const fn from_number(number: u16) -> Option<Code> {
                match number { $($number => Some(Code::$variant),)* _ => None }
            }
        }
    };
}

codes! {
    /// Success.
    Ok = 0, "ok";
    /// The bytes are not a frame of this protocol.
    InvalidFrame = 1, "invalid_frame";
    /// This side does not support the protocol version of the peer.
    UnsupportedVersion = 2, "unsupported_version";
    /// The first frame is not a logon.
    LogonRequired = 3, "logon_required";
    /// A second logon on one connection.
    DuplicateLogon = 4, "duplicate_logon";
    /// User or password were not accepted.
    AuthenticationFailed = 5, "authentication_failed";
    /// Another connection holds, or took over, the client name.
    NameInUse = 6, "name_in_use";
    /// The user may not do this.
    NotEntitled = 7, "not_entitled";
    /// The topic is empty, too long, not text, has a control character, or is a pattern that does
    /// not compile.
    BadTopic = 8, "bad_topic";
    /// The content filter does not parse.
    BadFilter = 9, "bad_filter";
    /// The text is not a bookmark, a list of them, or a time.
    BadBookmark = 10, "bad_bookmark";
    /// None of the bookmarks is in the log, and the subscription asked to fail then.
    BookmarkNotFound = 11, "bookmark_not_found";
    /// A bookmark subscription on a topic that the transaction log does not record.
    NotJournaled = 12, "not_journaled";
    /// An option, or a combination of options, that is not allowed.
    BadOption = 13, "bad_option";
    /// The connection has no subscription with this number.
    UnknownSubscription = 14, "unknown_subscription";
    /// The connection already has a subscription with this number.
    SubscriptionInUse = 15, "subscription_in_use";
    /// A message, or a frame, is above the limit.
    MessageTooLarge = 16, "message_too_large";
    /// A named limit was reached. The reason names it.
    LimitExceeded = 17, "limit_exceeded";
    /// The disk is full; the journal takes no more writes.
    StorageFull = 18, "storage_full";
    /// A write or a sync failed; the journal takes no more writes.
    StorageFailed = 19, "storage_failed";
    /// The journal is damaged at a place that the reason names.
    JournalCorrupt = 20, "journal_corrupt";
    /// The connection did not take its messages fast enough.
    SlowConsumer = 21, "slow_consumer";
    /// No byte arrived for two heartbeat intervals.
    HeartbeatTimeout = 22, "heartbeat_timeout";
    /// The server is stopping.
    ShuttingDown = 23, "shutting_down";
    /// A bug on the side that reports it.
    Internal = 24, "internal";
    /// No queue has this name.
    UnknownQueue = 25, "unknown_queue";
    /// The message is not of the type of its topic, or it has no valid key for its last-value
    /// topic.
    BadMessage = 26, "bad_message";
    /// A queue with this name exists, with other settings or in the configuration of the server.
    QueueExists = 27, "queue_exists";
    /// The topic keeps no last values, and the command needs them.
    NotLastValue = 28, "not_last_value";
    /// The address takes connections over TLS only.
    TlsRequired = 29, "tls_required";
    /// The user of the connection, or its rights, have changed.
    EntitlementReset = 30, "entitlement_reset";
    /// The logon cannot be checked now: a service that the server asks does not answer as expected.
    AuthenticationUnavailable = 31, "authentication_unavailable";
    /// The log of the instance may lack messages that other instances have. It takes no clients
    /// until it has them.
    NotReady = 32, "not_ready";
}

/// The reason of [`Code::AuthenticationFailed`] for a token whose signature is right.
pub const TOKEN_EXPIRED: &str = "the token has expired";

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
