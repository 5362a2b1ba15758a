//! Subscriptions and queries, and deletes of records: the commands that select messages
//! (protocol.md section 3).

use super::frame::{Encode, Fields, FromBody, WireError, put_field, put_frame};
use super::from_client::{QUERY, SOW_DELETE, SUBSCRIBE, decode_acks, put_command};
use quire_command::{Keys, LogPlace, Query, SowDelete, Subscribe, SubscribeOptions, Texts};

impl Encode for Subscribe<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_frame(out, SUBSCRIBE, |out| {
            put_command(out, self.command, self.acks);
            put_field(out, 3, &self.subscription.to_le_bytes());
            put_field(out, 4, self.topic.as_bytes());
            if let Some(filter) = self.filter {
                put_field(out, 5, filter.as_bytes());
            }
            if let Some(bookmark) = self.bookmark {
                put_field(out, 6, bookmark.as_bytes());
            }
            if self.options != SubscribeOptions::default() {
                put_field(out, 7, &self.options.0.to_le_bytes());
            }
            if let Some(max_backlog) = self.max_backlog {
                put_field(out, 8, &max_backlog.to_le_bytes());
            }
            if let Some(rate) = self.rate {
                put_field(out, 9, rate.as_bytes());
            }
            if let Some(gap) = self.rate_max_gap_ns {
                put_field(out, 10, &gap.to_le_bytes());
            }
            if let Some(interval) = self.conflation_ns {
                put_field(out, 11, &interval.to_le_bytes());
            }
            if let Some(key) = self.conflation_key {
                put_field(out, 12, key.as_bytes());
            }
            if let Some(select) = self.select {
                put_field(out, 13, select.as_bytes());
            }
            let Subscribe { order_by, top_n, skip_n, keys, .. } = *self;
            ResultFields { order_by, top_n, skip_n, keys }.put(out);
            if let Some(projection) = self.projection {
                put_field(out, 21, projection.as_bytes());
            }
            if let Some(grouping) = self.grouping {
                put_field(out, 22, grouping.as_bytes());
            }
            if self.takes_places {
                put_field(out, 128, &[]);
            }
            if let Some(LogPlace { log, position }) = self.place {
                put_field(out, 129, [log.to_le_bytes(), position.to_le_bytes()].as_flattened());
            }
        });
    }
}

impl<'a> FromBody<'a> for Subscribe<'a> {
    fn from_body(body: &'a [u8]) -> Result<Self, WireError> {
        let mut fields = Fields::new("subscribe", body);
        let mut subscribe = Subscribe::default();
        let (mut subscription, mut topic, mut result) = (None, None, ResultFields::default());
        while let Some((tag, value)) = fields.next()? {
            match tag {
                1 => subscribe.command = fields.u32(value, "command")?,
                2 => subscribe.acks = decode_acks(&fields, value)?,
                3 => subscription = Some(fields.u32(value, "subscription")?),
                4 => topic = Some(fields.text(value, "topic")?),
                5 => subscribe.filter = Some(fields.text(value, "filter")?),
                6 => subscribe.bookmark = Some(fields.text(value, "bookmark")?),
                7 => subscribe.options = SubscribeOptions(fields.u32(value, "options")?),
                8 => subscribe.max_backlog = Some(fields.u32(value, "max_backlog")?),
                9 => subscribe.rate = Some(fields.text(value, "rate")?),
                10 => subscribe.rate_max_gap_ns = Some(fields.u64(value, "rate_max_gap")?),
                11 => subscribe.conflation_ns = Some(fields.u64(value, "conflation")?),
                12 => subscribe.conflation_key = Some(fields.text(value, "conflation_key")?),
                13 => subscribe.select = Some(fields.text(value, "select")?),
                21 => subscribe.projection = Some(take_texts(&fields, value, "projection")?),
                22 => subscribe.grouping = Some(take_texts(&fields, value, "grouping")?),
                128 => {
                    let [] = fields.array(value, "takes_places")?;
                    subscribe.takes_places = true;
                }
                129 => {
                    let number = u128::from_le_bytes(fields.array(value, "place")?);
                    let (log, position) = (number as u64, (number >> 64) as u64);
                    subscribe.place = Some(LogPlace { log, position });
                }
                tag => result.take(&fields, tag, value)?,
            }
        }
        let ResultFields { order_by, top_n, skip_n, keys } = result;
        let mut subscribe = Subscribe { order_by, top_n, skip_n, keys, ..subscribe };
        if subscribe.command == 0 {
            return Err(fields.bad("command"));
        }
        if !SubscribeOptions::ALL.has(subscribe.options) {
            return Err(fields.bad("options"));
        }
        subscribe.subscription = subscription.ok_or_else(|| fields.bad("subscription"))?;
        subscribe.topic = topic.ok_or_else(|| fields.bad("topic"))?;
        Ok(subscribe)
    }
}

impl Encode for Query<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_frame(out, QUERY, |out| {
            put_command(out, self.command, self.acks);
            put_field(out, 3, &self.subscription.to_le_bytes());
            put_field(out, 4, self.topic.as_bytes());
            if let Some(filter) = self.filter {
                put_field(out, 5, filter.as_bytes());
            }
            if let Some(bookmark) = self.bookmark {
                put_field(out, 6, bookmark.as_bytes());
            }
            if let Some(select) = self.select {
                put_field(out, 13, select.as_bytes());
            }
            let Query { order_by, top_n, skip_n, keys, .. } = *self;
            ResultFields { order_by, top_n, skip_n, keys }.put(out);
            if self.wants_last_values {
                put_field(out, 20, &[1]);
            }
            if let Some(projection) = self.projection {
                put_field(out, 21, projection.as_bytes());
            }
            if let Some(grouping) = self.grouping {
                put_field(out, 22, grouping.as_bytes());
            }
        });
    }
}

impl<'a> FromBody<'a> for Query<'a> {
    fn from_body(body: &'a [u8]) -> Result<Self, WireError> {
        let mut fields = Fields::new("query", body);
        let mut query = Query::default();
        let (mut subscription, mut topic, mut result) = (None, None, ResultFields::default());
        while let Some((tag, value)) = fields.next()? {
            match tag {
                1 => query.command = fields.u32(value, "command")?,
                2 => query.acks = decode_acks(&fields, value)?,
                3 => subscription = Some(fields.u32(value, "subscription")?),
                4 => topic = Some(fields.text(value, "topic")?),
                5 => query.filter = Some(fields.text(value, "filter")?),
                6 => query.bookmark = Some(fields.text(value, "bookmark")?),
                13 => query.select = Some(fields.text(value, "select")?),
                20 => query.wants_last_values = take_bool(&fields, value, "last_values")?,
                21 => query.projection = Some(take_texts(&fields, value, "projection")?),
                22 => query.grouping = Some(take_texts(&fields, value, "grouping")?),
                tag => result.take(&fields, tag, value)?,
            }
        }
        let ResultFields { order_by, top_n, skip_n, keys } = result;
        let mut query = Query { order_by, top_n, skip_n, keys, ..query };
        if query.command == 0 {
            return Err(fields.bad("command"));
        }
        query.subscription = subscription.ok_or_else(|| fields.bad("subscription"))?;
        query.topic = topic.ok_or_else(|| fields.bad("topic"))?;
        Ok(query)
    }
}

/// The fields of a result that subscriptions and queries share.
#[derive(Default)]
struct ResultFields<'a> {
    order_by: Option<&'a str>,
    top_n: Option<u32>,
    skip_n: Option<u32>,
    keys: Option<Keys<'a>>,
}

impl<'a> ResultFields<'a> {
    fn put(&self, out: &mut Vec<u8>) {
        if let Some(order_by) = self.order_by {
            put_field(out, 16, order_by.as_bytes());
        }
        if let Some(top_n) = self.top_n {
            put_field(out, 17, &top_n.to_le_bytes());
        }
        if let Some(skip_n) = self.skip_n {
            put_field(out, 18, &skip_n.to_le_bytes());
        }
        if let Some(keys) = self.keys {
            put_field(out, 19, keys.as_bytes());
        }
    }

    /// Reads a field that is not one of the command itself.
    fn take(&mut self, fields: &Fields<'a>, tag: u8, value: &'a [u8]) -> Result<(), WireError> {
        match tag {
            16 => self.order_by = Some(fields.text(value, "order_by")?),
            17 => self.top_n = Some(fields.u32(value, "top_n")?),
            18 => self.skip_n = Some(fields.u32(value, "skip_n")?),
            19 => self.keys = Some(take_keys(fields, value)?),
            tag => fields.unknown(tag)?,
        }
        Ok(())
    }
}

fn take_keys<'a>(fields: &Fields<'a>, value: &'a [u8]) -> Result<Keys<'a>, WireError> {
    Keys::from_bytes(value).ok_or_else(|| fields.bad("keys"))
}

fn take_texts<'a>(fields: &Fields<'a>, value: &'a [u8], field: &'static str) -> Result<Texts<'a>, WireError> {
    Texts::from_bytes(value).ok_or_else(|| fields.bad(field))
}

fn take_bool(fields: &Fields<'_>, value: &[u8], field: &'static str) -> Result<bool, WireError> {
    match fields.array(value, field)? {
        [0] => Ok(false),
        [1] => Ok(true),
        _ => Err(fields.bad(field)),
    }
}

impl Encode for SowDelete<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_frame(out, SOW_DELETE, |out| {
            put_command(out, self.command, self.acks);
            put_field(out, 3, &self.sequence.to_le_bytes());
            put_field(out, 4, self.topic.as_bytes());
            if let Some(filter) = self.filter {
                put_field(out, 5, filter.as_bytes());
            }
            if let Some(data) = self.data {
                put_field(out, 6, data);
            }
            if let Some(keys) = self.keys {
                put_field(out, 19, keys.as_bytes());
            }
        });
    }
}

impl<'a> FromBody<'a> for SowDelete<'a> {
    fn from_body(body: &'a [u8]) -> Result<Self, WireError> {
        let mut fields = Fields::new("sow_delete", body);
        let mut delete = SowDelete::default();
        let mut topic = None;
        while let Some((tag, value)) = fields.next()? {
            match tag {
                1 => delete.command = fields.u32(value, "command")?,
                2 => delete.acks = decode_acks(&fields, value)?,
                3 => delete.sequence = fields.u64(value, "sequence")?,
                4 => topic = Some(fields.text(value, "topic")?),
                5 => delete.filter = Some(fields.text(value, "filter")?),
                6 => delete.data = Some(value),
                19 => delete.keys = Some(take_keys(&fields, value)?),
                tag => fields.unknown(tag)?,
            }
        }
        if delete.command == 0 {
            return Err(fields.bad("command"));
        }
        if delete.filter.is_none() && delete.data.is_none() && delete.keys.is_none() {
            return Err(fields.bad("filter, data and keys, one of them is needed"));
        }
        delete.topic = topic.ok_or_else(|| fields.bad("topic"))?;
        Ok(delete)
    }
}
