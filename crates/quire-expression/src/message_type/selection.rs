//! Parts of messages: which fields stay in, and the bytes that are left (docs/replay.md, "Select lists").

use super::json::select_document;
use super::{Arena, FieldId, FieldPlan, MessageType, Step};
use crate::unreadable::contained;

/// Which fields of a message stay in.
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

    /// Whether a field stays in. Of an element of an array, the array counts.
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

    /// The selected part of a message, in `out` if it is not the whole message. A message that cannot be parsed is returned whole.
    pub fn apply<'a>(
        &self,
        message_type: Option<MessageType>,
        data: &'a [u8],
        arena: &mut Arena,
        out: &'a mut Vec<u8>,
    ) -> &'a [u8] {
        arena.reset();
        out.clear();
        let is_selected = message_type.is_some_and(MessageType::has_parts)
            && contained(|| select_document(data, self, arena, out)) == Ok(Ok(()));
        if is_selected { out } else { data }
    }

    /// Whether the message stays in where no rule applies.
    pub(super) fn is_root_in(&self) -> bool {
        self.rules.first().copied().flatten().unwrap_or(true)
    }

    /// Whether a field stays in, of something that does or not.
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
    use proptest::collection::{hash_map, vec};
    use proptest::prelude::*;
    use proptest::sample::select;

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
        for message_type in [None, Some(MessageType::Nvfix), Some(MessageType::Binary)] {
            assert_eq!(select.apply(message_type, b"{}x", &mut arena, &mut out), b"{}x");
        }
    }

    /// `+` or `-`, and the names of a path.
    type Entry = (bool, Vec<&'static str>);

    fn names() -> impl Strategy<Value = &'static str> {
        select(vec!["a", "b", "c"])
    }

    fn values() -> impl Strategy<Value = serde_json::Value> {
        let scalar = prop_oneof![Just(serde_json::json!(1)), Just(serde_json::json!("text"))];
        scalar.prop_recursive(4, 32, 4, |inner| {
            let members = hash_map(names(), inner.clone(), 0..4);
            prop_oneof![
                vec(inner, 0..4).prop_map(serde_json::Value::from),
                members.prop_map(|members| members.into_iter().collect()),
            ]
        })
    }

    /// The rules as they are written, applied to one value at a time.
    fn left_of(
        value: &serde_json::Value,
        path: &mut Vec<String>,
        list: &[Entry],
    ) -> Option<serde_json::Value> {
        let is_about =
            |named: &[&str]| named.len() <= path.len() && named.iter().zip(path.iter()).all(|(a, b)| a == b);
        let entries = list.iter().filter(|(_, named)| is_about(named));
        // Of equal lengths the last is the greatest.
        let is_in = entries.max_by_key(|(_, named)| named.len()).is_none_or(|(is_in, _)| *is_in);
        match value {
            serde_json::Value::Object(members) => {
                let mut left = serde_json::Map::new();
                for (name, member) in members {
                    path.push(name.clone());
                    left.extend(left_of(member, path, list).map(|member| (name.clone(), member)));
                    path.pop();
                }
                (!left.is_empty() || (is_in && members.is_empty())).then_some(left.into())
            }
            serde_json::Value::Array(elements) => {
                let left: Vec<_> =
                    elements.iter().filter_map(|element| left_of(element, path, list)).collect();
                (!left.is_empty() || (is_in && elements.is_empty())).then_some(left.into())
            }
            scalar => is_in.then(|| scalar.clone()),
        }
    }

    proptest! {
        #[test]
        fn what_is_left_is_what_the_rules_say(
            members in hash_map(names(), values(), 0..4),
            list in vec((any::<bool>(), vec(names(), 0..4)), 1..6),
        ) {
            let message: serde_json::Value = members.into_iter().collect();
            let text = |(is_in, path): &Entry| format!("{}/{}", if *is_in { '+' } else { '-' }, path.join("/"));
            let text = list.iter().map(text).collect::<Vec<_>>().join(",");
            let expected = left_of(&message, &mut Vec::new(), &list).unwrap_or_else(|| serde_json::json!({}));
            let left: serde_json::Value = serde_json::from_str(&selected(&text, &message.to_string())).unwrap();
            prop_assert_eq!(left, expected, "{} of {}", text, message);
        }
    }
}
