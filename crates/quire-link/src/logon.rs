//! The logon of a connection: the state machine of both instances (docs/protocol.md, *Links between
//! instances*).
//!
//! ```text
//! the instance that has made the connection:  Sent ------------------> over
//!                                               `logged_on` came
//! the other one:                              Awaited ------> Checking ------> over
//!                                               `logon` came    the caller has checked it
//! ```
//!
//! Before the logon is over, no other frame is looked at, and no link can begin.

use std::time::Duration;

use quire_types::{Secret, time::Instant};
use quire_wire::link::{BadFrame, Frame, LOGON_SIZE_MAX, Logon, VERSION, announced_version, next_frame};

use crate::{HEARTBEAT, SILENCE_MAX};

/// See the documentation of the module.
///
/// Hand in all bytes of the connection ([`handle_bytes`](LoggingOn::handle_bytes)), and call
/// [`advance`](LoggingOn::advance) at [`poll_timeout`](LoggingOn::poll_timeout). Drop it when a
/// step ends the logon or the connection.
#[derive(Debug)]
pub struct LoggingOn {
    phase: LogonPhase,
    /// The part of a frame that has arrived. It may have a password, so that it is never logged.
    input: Secret<Vec<u8>>,
}

#[derive(Clone, Copy, Debug)]
enum LogonPhase {
    /// The logon of the other instance is to be complete at this time.
    Awaited { due: Instant },
    /// The caller checks it. A heartbeat is due at `beats_at`.
    Checking { due: Instant, beats_at: Instant },
    /// The logon was sent. The other instance is gone when nothing came until this time.
    Sent { silent_at: Instant },
}

/// The next action of the caller.
#[derive(Debug, PartialEq, Eq)]
pub enum LogonStep {
    /// Nothing.
    Wait,
    /// Send the bytes.
    Send(Vec<u8>),
    /// Check the identity of the other instance.
    Check(GivenIdentity),
    /// The other instance has accepted the logon.
    LoggedOn {
        /// The user of the connection; empty without authentication.
        user: String,
    },
    /// The other instance has refused the logon.
    Refused(String),
    /// The logon cannot be checked now, or the other instance is gone: end the connection. The
    /// instance that made it tries again soon.
    Failed(String),
    /// The other instance has broken the rules, or was too slow: end the connection.
    Broken(String),
}

/// The identity that another instance has given.
#[derive(Debug, PartialEq, Eq)]
pub struct GivenIdentity {
    /// The name of the instance.
    pub instance: String,
    /// Its user.
    pub user: Option<String>,
    /// Its password.
    pub password: Option<Secret<String>>,
    /// Its token.
    pub token: Option<Secret<String>>,
}

impl GivenIdentity {
    fn new(logon: &Logon<'_>) -> Self {
        let owned = |secret: Secret<&str>| Secret(secret.0.to_owned());
        GivenIdentity {
            instance: logon.instance.to_owned(),
            user: logon.user.map(str::to_owned),
            password: logon.password.map(owned),
            token: logon.token.map(owned),
        }
    }
}

impl LoggingOn {
    /// Of a connection that the other instance has made.
    pub fn awaited(now: Instant, timeout: Duration) -> Self {
        LoggingOn { phase: LogonPhase::Awaited { due: now + timeout }, input: Secret(Vec::new()) }
    }

    /// Of a connection that this instance has made. Also returns the bytes to send.
    pub fn sent(now: Instant, logon: Logon<'_>) -> (Self, Vec<u8>) {
        let mut bytes = Vec::new();
        Frame::Logon(logon).encode(&mut bytes);
        let phase = LogonPhase::Sent { silent_at: now + SILENCE_MAX };
        (LoggingOn { phase, input: Secret(Vec::new()) }, bytes)
    }

    /// Bytes that came, and were not worked on.
    pub fn waiting_size(&self) -> usize {
        self.input.0.len()
    }

    /// Whether the caller checks the identity of the other instance.
    pub fn is_checking(&self) -> bool {
        matches!(self.phase, LogonPhase::Checking { .. })
    }

    /// Takes bytes of the connection.
    pub fn handle_bytes(&mut self, now: Instant, bytes: &[u8]) -> LogonStep {
        let step = match &mut self.phase {
            LogonPhase::Checking { .. } => {
                return LogonStep::Broken("it sent more before its logon was answered".to_owned());
            }
            LogonPhase::Awaited { .. } => {
                self.input.0.extend_from_slice(bytes);
                self.take_logon(now)
            }
            LogonPhase::Sent { silent_at } => {
                *silent_at = now + SILENCE_MAX;
                self.input.0.extend_from_slice(bytes);
                self.take_answers()
            }
        };
        step.unwrap_or_else(|error| LogonStep::Broken(error.to_string()))
    }

    fn take_logon(&mut self, now: Instant) -> Result<LogonStep, BadFrame> {
        let LogonPhase::Awaited { due } = self.phase else { return Ok(LogonStep::Wait) };
        let input = &self.input.0;
        if let Some(version) = announced_version(input).filter(|version| *version != VERSION) {
            return Ok(LogonStep::Broken(format!(
                "it uses version {version} of links, and this instance version {VERSION}: run the same version of quire on both"
            )));
        }
        let given = match next_frame(input, LOGON_SIZE_MAX)? {
            None => return Ok(LogonStep::Wait),
            Some((Frame::Logon(logon), size)) if size == input.len() => GivenIdentity::new(&logon),
            Some((Frame::Logon(_), _)) => return Err(BadFrame("more before the logon was answered")),
            Some(_) => return Ok(LogonStep::Broken("its first frame is no logon".to_owned())),
        };
        self.input = Secret(Vec::new());
        self.phase = LogonPhase::Checking { due, beats_at: now + HEARTBEAT };
        Ok(LogonStep::Check(given))
    }

    fn take_answers(&mut self) -> Result<LogonStep, BadFrame> {
        while let Some((frame, size)) = next_frame(&self.input.0, LOGON_SIZE_MAX)? {
            return Ok(match frame {
                Frame::Heartbeat => {
                    self.input.0.drain(..size);
                    continue;
                }
                Frame::LoggedOn { user } if size == self.input.0.len() => {
                    LogonStep::LoggedOn { user: user.to_owned() }
                }
                Frame::Refused { reason } => LogonStep::Refused(reason.to_owned()),
                Frame::Ended { reason } => LogonStep::Failed(reason.to_owned()),
                _ => LogonStep::Failed("it sent a frame that does not answer a logon".to_owned()),
            });
        }
        Ok(LogonStep::Wait)
    }

    /// Does what is due.
    pub fn advance(&mut self, now: Instant) -> LogonStep {
        match &mut self.phase {
            LogonPhase::Awaited { due } if *due <= now => {
                LogonStep::Broken("no logon within logon_timeout".to_owned())
            }
            // The other instance did nothing wrong.
            LogonPhase::Checking { due, .. } if *due <= now => {
                LogonStep::Failed("the logon was not checked within logon_timeout".to_owned())
            }
            LogonPhase::Checking { beats_at, .. } if *beats_at <= now => {
                *beats_at = now + HEARTBEAT;
                let mut bytes = Vec::new();
                Frame::Heartbeat.encode(&mut bytes);
                LogonStep::Send(bytes)
            }
            LogonPhase::Sent { silent_at } if *silent_at <= now => {
                LogonStep::Failed("its logon was not answered for 10 s".to_owned())
            }
            _ => LogonStep::Wait,
        }
    }

    /// When it has something to do next.
    pub fn poll_timeout(&self) -> Instant {
        match self.phase {
            LogonPhase::Awaited { due } => due,
            LogonPhase::Checking { due, beats_at } => due.min(beats_at),
            LogonPhase::Sent { silent_at } => silent_at,
        }
    }
}
