//! Delta subscriptions receive only the changed fields of a record (docs/last-values.md, delta
//! subscriptions).

use std::sync::Arc;

use quire_expression::filter::MessageContext;
use quire_expression::message_type::Step;
use quire_expression::select::Select;
use quire_journal::{Position, Timestamp};

use crate::replay::OwnedMessage;
use crate::topic::TableId;

/// The options of a delta subscription.
#[derive(Debug)]
pub struct Delta {
    /// The subscription receives no message for a change in which no field differs.
    pub no_empties: bool,
    /// With a select list: for each table of the subscription, the list extended by the key fields.
    selects: Vec<(TableId, Select)>,
}

impl Delta {
    pub fn new(no_empties: bool, selects: Vec<(TableId, Select)>) -> Self {
        Delta { no_empties, selects }
    }

    /// Sets the select list, extended by the key fields, of one table.
    pub fn set_select(&mut self, table: TableId, select: Select) {
        self.selects.retain(|(id, _)| *id != table);
        self.selects.push((table, select));
    }

    /// The part of a difference that is delivered; `None` = all of it.
    pub fn select(&self, table: TableId) -> Option<&Select> {
        self.selects.iter().find(|(id, _)| *id == table).map(|(_, select)| select)
    }
}

/// The record that a message replaces while it is delivered to subscriptions.
pub struct Replaced {
    pub table: TableId,
    /// The fields of the key. Every difference contains them.
    pub key_fields: Arc<[Vec<Step>]>,
    pub position: Position,
    pub expires: Option<Timestamp>,
    pub message: OwnedMessage,
}

impl Replaced {
    /// The input of filters from the record.
    pub fn context(&self, now: Timestamp) -> MessageContext<'_> {
        MessageContext { now, ..self.message.context() }
    }
}
