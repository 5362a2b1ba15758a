//! Parts of messages: the selected fields, and their bytes (docs/replay.md, "Select lists").

use super::nvfix::{FIX, NVFIX};
use super::{Arena, FieldId, FieldPlan, Malformed, MessageType, Step, bson, json, msgpack};
use crate::unreadable::contained;

/// Which fields of a message are selected.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    plan: FieldPlan,
    /// By [`FieldId::index`]: the rule of the field; `None` = the rule of the field around it.
    rules: Vec<Option<bool>>,
}

impl Selection {
    /// Selects a field or excludes it. A later rule for the same field replaces an earlier one.
    pub fn rule(&mut self, path: &[Step], is_in: bool) {
        let field = self.plan.add(path);
        self.rules.resize(self.plan.len(), None);
        self.rules[field.index()] = Some(is_in);
    }

    /// Whether a field is selected. For an element of an array, the array counts.
    pub fn has(&self, path: &[Step]) -> bool {
        let mut field = Some(FieldPlan::ROOT);
        let mut is_in = self.is_root_in();
        for step in path {
            let Step::Name(name) = step else { break };
            field = field.and_then(|field| self.plan.names(field).find(name));
            is_in = self.is_in(field, is_in);
        }
        is_in
    }

    /// The selected part of a message, in `out` if it is not the whole message. A message that
    /// cannot be parsed is returned whole.
    pub fn apply<'a>(
        &self,
        message_type: Option<MessageType>,
        data: &'a [u8],
        arena: &mut Arena,
        out: &'a mut Vec<u8>,
    ) -> &'a [u8] {
        if self.apply_to(message_type, data, arena, out) { out } else { data }
    }

    /// Writes the selected part of a message. `false`: the message has no parts, or cannot be
    /// parsed.
    pub fn apply_to(
        &self,
        message_type: Option<MessageType>,
        data: &[u8],
        arena: &mut Arena,
        out: &mut Vec<u8>,
    ) -> bool {
        arena.reset();
        out.clear();
        let Some(message_type) = message_type.filter(|message_type| message_type.has_parts()) else {
            return false;
        };
        contained(|| self.write(message_type, data, arena, out)) == Ok(Ok(()))
    }

    /// As [`Selection::apply_to`], and nothing of a message that has no parts. An array of records
    /// or a single value has none.
    pub fn apply_strictly(
        &self,
        message_type: Option<MessageType>,
        data: &[u8],
        arena: &mut Arena,
        out: &mut Vec<u8>,
    ) {
        if !self.apply_to(message_type, data, arena, out) {
            out.clear();
        }
    }

    fn write(
        &self,
        message_type: MessageType,
        data: &[u8],
        arena: &Arena,
        out: &mut Vec<u8>,
    ) -> Result<(), Malformed> {
        match message_type {
            MessageType::Json => json::select_document(data, self, arena, out),
            MessageType::Nvfix => NVFIX.select(data, self, out),
            MessageType::Fix => FIX.select(data, self, out),
            MessageType::Msgpack => msgpack::select_document(data, self, arena, out),
            MessageType::Bson => bson::select_document(data, self, out),
            MessageType::Binary | MessageType::Xml => {
                unreachable!("no part of them is a message")
            }
        }
    }

    /// Whether the message is selected where no rule applies.
    pub(super) fn is_root_in(&self) -> bool {
        self.rules.first().copied().flatten().unwrap_or(true)
    }

    /// Whether a field is selected. Without a rule for it, `around` decides.
    pub(super) fn is_in(&self, field: Option<FieldId>, around: bool) -> bool {
        field.and_then(|field| self.rules[field.index()]).unwrap_or(around)
    }

    /// The rules for parts of a field.
    pub(super) fn within(&self, field: Option<FieldId>) -> Option<(&FieldPlan, FieldId)> {
        field.filter(|field| self.plan.has_names(*field)).map(|field| (&self.plan, field))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::select::Select;

    fn selected(list: &str, message: &str) -> String {
        let select = Select::parse(list).unwrap();
        let (mut arena, mut out) = (Arena::default(), Vec::new());
        let left = select.apply(Some(MessageType::Json), message.as_bytes(), &mut arena, &mut out);
        String::from_utf8(left.to_vec()).unwrap()
    }

    #[test]
    fn what_stays_in() {
        let message = r#"{"a": 1, "b" : {"c": [1, 2], "d": {}}, "e":"x,\"}", "b.c":null}"#;
        for (list, left) in [
            ("+/a", r#"{"a":1,"b":{"c": [1, 2], "d": {}},"e":"x,\"}","b.c":null}"#),
            ("-/,+/a", r#"{"a":1}"#),
            ("-/,+/e,+/a", r#"{"a":1,"e":"x,\"}"}"#),
            ("-/a,-/e", r#"{"b":{"c": [1, 2], "d": {}},"b.c":null}"#),
            ("-/,+/b", r#"{"b":{"c": [1, 2], "d": {}}}"#),
            ("-/,+/b,-/b/c", r#"{"b":{"d":{}}}"#),
            ("-/,+/b/c", r#"{"b":{"c":[1, 2]}}"#),
            ("-/b/c,-/b/d,-/a", r#"{"e":"x,\"}","b.c":null}"#),
            ("+/a,-/a,-/,+/b/d", r#"{"b":{"d":{}}}"#),
            ("-/a,+/a,-/", r#"{"a":1}"#),
            ("-/,+/b/c/d", "{}"),
            ("-/", "{}"),
        ] {
            assert_eq!(selected(list, message), left, "{list}");
        }
    }

    #[test]
    fn a_path_goes_into_every_element_of_an_array() {
        let message = r#"{"legs":[{"px":1,"q":2},3,[{"px":4},[]],{"q":5},{}],"none":[]}"#;
        assert_eq!(selected("-/,+/legs/px,+/none", message), r#"{"legs":[{"px":1},[{"px":4}]],"none":[]}"#);
        assert_eq!(selected("-/legs/px", message), r#"{"legs":[{"q":2},3,[[]],{"q":5},{}],"none":[]}"#);
        assert_eq!(selected("-/,+/legs/nothing", message), "{}");
    }

    #[test]
    fn names_are_compared_as_they_mean() {
        assert_eq!(selected("-/,+/symbol", r#"{"s\u0079mbol":1,"\"":2}"#), r#"{"s\u0079mbol":1}"#);
    }

    #[test]
    fn what_has_no_parts_is_left_whole() {
        let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
        let in_member = format!("{{\"a\":{deep}}}");
        for message in ["[1,2]", "17", "", "{", r#"{"a":1,}"#, r#"{"a":1} x"#, &deep, &in_member] {
            assert_eq!(selected("-/,+/a/b", message), message);
        }
        let select = Select::parse("-/").unwrap();
        let (mut arena, mut out) = (Arena::default(), Vec::new());
        for message_type in
            [None, Some(MessageType::Nvfix), Some(MessageType::Bson), Some(MessageType::Binary)]
        {
            assert_eq!(select.apply(message_type, b"{}x", &mut arena, &mut out), b"{}x");
        }
    }
}
