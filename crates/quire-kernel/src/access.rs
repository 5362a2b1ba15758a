//! Access rights. Every command passes [`Context::admit`] once, before the part that carries it out
//! receives it.

use quire_command::{Code, Command};

use super::admin::{AdminCommand, Requester};
use super::context::Context;
use super::reply::Refused;
use crate::session::Principal;

/// The rights of the peer of a connection. The driver derives them from the address of the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// The rights that the configuration gives to clients.
    #[default]
    Client,
    /// All rights: the user of the server, or root, on the machine of the server.
    Administrator,
    /// No rights: another user of the machine, on the socket of the administrator.
    Denied,
}

impl Context {
    /// Whether the requester may run an administrative command.
    ///
    /// # Errors
    /// The reason for the refusal.
    pub fn admit_admin(&self, by: &Requester, command: &AdminCommand) -> Result<(), Refused> {
        let by_clients = &self.config.transaction_log.maintenance.by_clients;
        match (by, command) {
            (Requester::Client { access: Access::Client, .. }, AdminCommand::Maintain(what))
                if !by_clients.allows(what.action) =>
            {
                let verb = what.action.verb();
                let reason = format!(
                    "clients of this server may not {verb} journal files: its transaction_log.maintenance.by_clients says what they may"
                );
                Err(Refused::new(Code::NotEntitled, reason))
            }
            _ => Ok(()),
        }
    }

    /// Whether the principal may run the command. Every principal that is logged on may run every
    /// command today.
    ///
    /// # Errors
    /// The reason for the refusal.
    #[inline]
    pub fn admit(&self, _principal: &Principal, _command: &Command<'_>) -> Result<(), Refused> {
        Ok(())
    }
}
