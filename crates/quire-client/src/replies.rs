//! Carries out the replies of the server that are not messages.
//!
//! The connection decodes them (`connection.rs`), and keeps those about itself.

use std::sync::Arc;

use quire_types::{Bookmark, PublisherId};

use super::command::CommandId;
use super::leases::Key;
use super::subscription::CaughtUp;
use super::{ClientCore, Event, Failure};
use quire_command::{Ack, AckKind, Code, Reply};

impl ClientCore {
    /// Takes a reply about a command, a publish, a subscription or a lease.
    pub(super) fn take_reply(&mut self, reply: Reply<'_>) {
        match reply {
            Reply::Ack(ack) => self.take_ack(&ack),
            Reply::Stats { command, json } => {
                self.json_came(command, json);
                let ClientCore { commands, subscriptions, events, .. } = self;
                commands.answered(CommandId(command), Ok(()), subscriptions, events);
            }
            Reply::JournalFile { command, json } => self.json_came(command, json),
            Reply::Persisted { sequence } => self.persisted_up_to(sequence),
            Reply::PublishFailed { sequence, code, scope, reason } => {
                self.publish_failed(sequence, scope, Failure::new(code, reason));
            }
            Reply::LeaseLost { subscription, reason, publisher, sequence, queue } => {
                let ClientCore { leases, subscriptions, events, .. } = self;
                let bookmark = Bookmark { publisher: PublisherId(publisher), sequence };
                let queue = queue.map(Arc::from).or_else(|| subscriptions.queue(subscription).cloned());
                if let Some(queue) = queue {
                    leases.lost(&Key { subscription, bookmark, queue }, reason, events);
                }
            }
            Reply::ResumePosition { publisher, sequence, subscriptions } => {
                let bookmark = Bookmark { publisher: PublisherId(publisher), sequence };
                for subscription in subscriptions.iter() {
                    self.subscriptions.told(subscription, bookmark, &self.instance);
                }
            }
            Reply::Places { places, subscriptions } => {
                for subscription in subscriptions.iter() {
                    self.events.extend(self.subscriptions.told_places(subscription, places));
                }
            }
            Reply::SubscriptionEnded { subscription, code, reason } => {
                self.leases.ended(subscription);
                if self.subscriptions.remove(subscription) {
                    let failure = (code != Code::Ok).then(|| Failure::new(code, reason));
                    self.events.push_back(Event::Ended { subscription, failure });
                }
            }
            // The connection has taken them.
            Reply::Message(_) | Reply::Heartbeat | Reply::LoggedOn(_) | Reply::Error { .. } => (),
        }
    }

    fn json_came(&mut self, command: u32, json: &str) {
        self.events.push_back(Event::JsonReply { command: CommandId(command), json: json.to_owned() });
    }

    fn take_ack(&mut self, ack: &Ack<'_>) {
        match ack.kind {
            AckKind::Received => (),
            AckKind::Completed => self.completed(ack.subscription, ack.detail),
            AckKind::Processed | AckKind::Persisted => {
                let result = match ack.code {
                    Code::Ok => Ok(()),
                    code => {
                        let (code, reason) = (code.into(), ack.reason.to_owned());
                        Err(Failure { code, reason, column: ack.detail })
                    }
                };
                let is_of_leases = ack.kind == AckKind::Processed
                    && self.leases.answered(ack.command, result.is_ok().then_some(ack.detail));
                if !is_of_leases {
                    self.answered(ack, result);
                }
            }
        }
    }

    /// A subscription has all that was recorded before it, or a query all of its result: `total`
    /// records.
    fn completed(&mut self, subscription: u32, total: u32) {
        match self.subscriptions.completed(subscription) {
            CaughtUp::Requested => {
                self.events.push_back(Event::Completed { subscription, total: None });
            }
            CaughtUp::Again => (),
            CaughtUp::Query => {
                self.events.push_back(Event::Completed { subscription, total: Some(total.into()) });
                self.events.push_back(Event::Ended { subscription, failure: None });
            }
            CaughtUp::Records => self.ask_about_lost(subscription),
            CaughtUp::Question => self.finish_question(subscription),
        }
    }

    /// The result of a command.
    fn answered(&mut self, ack: &Ack<'_>, result: Result<(), Failure>) {
        let command = CommandId(ack.command);
        match result {
            Err(failure) if !self.commands.is_waiting(command) => self.refused_later(command, failure),
            result => {
                if result.is_ok() {
                    self.succeeded(command, ack);
                }
                let ClientCore { commands, subscriptions, events, .. } = self;
                commands.answered(command, result, subscriptions, events);
                self.leases.confirmed(self.commands.durable_count());
            }
        }
    }

    /// A command was carried out: the numbers in its answer are for its subscription, or for the
    /// program.
    fn succeeded(&mut self, command: CommandId, ack: &Ack<'_>) {
        let ClientCore { commands, subscriptions, events, .. } = self;
        let replacement = commands.replacement(command);
        if let Some(number) = commands.entered_number(command)
            && !ack.reason.is_empty()
        {
            events.extend(subscriptions.note(number, replacement, ack.reason));
        }
        events.extend(subscriptions.entered(ack.subscription, replacement, ack.detail));
        if commands.awaits_count(command) {
            events.push_back(Event::JsonReply { command, json: ack.detail.to_string() });
        }
    }
}
