//! The decisions of compiled entries are those of an obvious model, which goes through the entries
//! as the documentation says.

use std::sync::Arc;

use proptest::prelude::*;
use quire_expression::filter::{Filter, FilterOptions, MessageContext};
use quire_expression::message_type::{Arena, MessageType};
use quire_expression::select::Select;
use quire_expression::topic::{TopicPattern, TopicSelector};
use quire_types::{Headers, Timestamp};

use super::*;

const NAMES: [&str; 4] = ["anna", "bob", "anonymous", "annabel"];
const GROUPS: [&str; 3] = ["desk", "ops", "desk2"];
const TOPICS: [&str; 6] = ["orders", "orders/eu", "trades", "/quire/server", "/quire/clients", "x"];
const PATTERNS: [&str; 8] =
    ["orders", "^orders", "^", ".*eu$", "^/quire/", "^o|^t", "^/quire/server$", "^orders|.*x"];

fn is_pattern(text: &str) -> bool {
    text.contains(['^', '$', '*', '|'])
}

/// Whether a text of an entry means a name.
fn means(text: &str, name: &str) -> bool {
    if !is_pattern(text) {
        return text == name;
    }
    let is_resource = name.starts_with("/quire/");
    (!is_resource || text.starts_with("^/quire/")) && TopicPattern::new(text).unwrap().matches(name)
}

/// The decision of the documentation: the number of the entry, and whether it allows the request.
fn model(
    entries: &[EntrySettings],
    user: &str,
    groups: &[Box<str>],
    right: Right,
    topic: &str,
) -> (bool, Option<usize>) {
    for (index, entry) in entries.iter().enumerate() {
        let is_user = match user {
            "anonymous" => entry.user.iter().any(|text| text == "anonymous"),
            _ => entry.user.is_empty() || entry.user.iter().any(|text| means(text, user)),
        };
        let is_in_group = entry.group.is_empty()
            || entry.group.iter().any(|text| groups.iter().any(|group| means(text, group)));
        let is_topic = entry.topic.iter().any(|text| means(text, topic));
        if is_user && is_in_group && is_topic {
            if entry.allow.contains(&right) {
                return (true, Some(index + 1));
            }
            if entry.deny.contains(&right) {
                return (false, Some(index + 1));
            }
        }
    }
    (false, None)
}

fn entry() -> impl Strategy<Value = EntrySettings> {
    let users = prop::sample::subsequence(vec!["anna", "bob", "^anna", "anonymous", ".*"], 0..3);
    let groups = prop::sample::subsequence(vec!["desk", "^desk", "ops"], 0..2);
    let topics = prop::sample::subsequence(PATTERNS.to_vec(), 1..3);
    let rights = prop::collection::vec(0..3_u8, Right::ALL.len());
    let filter = prop::option::of(prop::sample::select(vec!["/a = 1", "/a = 2", "/b = 1"]));
    let select = prop::option::of(prop::sample::select(vec!["-/a", "-/b"]));
    (users, groups, topics, rights, filter, select).prop_map(
        |(user, group, topic, rights, filter, select)| {
            let of = |kind: u8| -> Vec<Right> {
                Right::ALL
                    .into_iter()
                    .zip(&rights)
                    .filter(|(_, k)| **k == kind)
                    .map(|(right, _)| right)
                    .collect()
            };
            let texts = |all: Vec<&str>| all.into_iter().map(str::to_owned).collect();
            let mut allow = of(1);
            if filter.is_some() || select.is_some() {
                allow.retain(|right| *right != Right::Replicate);
                allow.extend((!allow.contains(&Right::Read)).then_some(Right::Read));
            }
            let deny: Vec<Right> = of(2).into_iter().filter(|right| !allow.contains(right)).collect();
            let allow = if allow.is_empty() && deny.is_empty() { vec![Right::Read] } else { allow };
            EntrySettings {
                user: texts(user),
                group: texts(group),
                topic: texts(topic),
                allow,
                deny,
                filter: filter.map(str::to_owned),
                select: select.map(str::to_owned),
            }
        },
    )
}

fn compiled(entries: &[EntrySettings]) -> Arc<Entitlements> {
    let compiled = Entitlements::compile(entries, &FilterOptions::default());
    compiled.unwrap_or_else(|errors| panic!("{errors:?}")).expect("there are entries")
}

fn message<'a>(topic: &'a str, data: &'a [u8]) -> MessageContext<'a> {
    MessageContext {
        message_type: MessageType::Json,
        data,
        topic,
        key: None,
        bookmark: None,
        correlation_id: b"",
        headers: Headers::default(),
        timestamp: Timestamp::default(),
        now: Timestamp::default(),
    }
}

fn groups() -> impl Strategy<Value = Vec<Box<str>>> {
    let groups = prop::sample::subsequence(GROUPS.to_vec(), 0..3);
    groups.prop_map(|groups| groups.into_iter().map(Into::into).collect())
}

proptest! {
    #[test]
    fn a_decision_is_that_of_the_first_entry_that_applies(
        entries in prop::collection::vec(entry(), 1..6),
        user in prop::sample::select(NAMES.to_vec()),
        groups in groups(),
    ) {
        let entitlements = compiled(&entries);
        let mut rights = entitlements.of_user(user, &groups);
        for topic in TOPICS {
            for right in Right::ALL {
                let (allowed, number) = model(&entries, user, &groups, right, topic);
                prop_assert_eq!(rights.allows(right, topic), allowed, "{} {}", right, topic);
                let explained = entitlements.explain(user, &groups, right, topic);
                prop_assert_eq!((explained.allowed, explained.entry), (allowed, number));
                let filter = number.filter(|_| allowed).and_then(|number| entries[number - 1].filter.clone());
                prop_assert_eq!(explained.filter, filter);
            }
            let (allowed, _) = model(&entries, user, &groups, Right::Write, topic);
            prop_assert_eq!(rights.writable(topic, FilterOptions::default).is_ok(), allowed);
            prop_assert_eq!(rights.writable(topic, FilterOptions::default).is_ok(), allowed, "from the memory");
        }
    }

    /// Of a pattern, and of each topic by name: the same messages are visible, with the same
    /// fields, and the filter of the client sees these fields.
    #[test]
    fn a_pattern_shows_what_its_topics_show(
        entries in prop::collection::vec(entry(), 1..6),
        needed in prop::sample::select(vec![vec![Right::Read], vec![Right::Read, Right::Query], vec![Right::Replay]]),
        pattern in prop::sample::select(vec!["^", "^orders", "^o|^t"]),
        own in prop::option::of(prop::sample::select(vec!["/b = 1", "/a = 1 OR 1 = 1", "/a IS NULL"])),
        wanted_fields in prop::option::of(prop::sample::select(vec!["-/,+/a", "-/c"])),
    ) {
        let (user, groups, options) = ("anna", vec!["desk".into()], FilterOptions::default());
        let rights = compiled(&entries).of_user(user, &groups);
        let of_pattern = rights.grant(&needed, pattern);
        let own = own.map(|text| Filter::parse(text, &options).unwrap());
        let selector = TopicSelector::new(pattern).unwrap();
        for topic in ["orders", "orders/eu", "trades"].into_iter().filter(|topic| selector.matches(topic)) {
            let by_name = rights.grant(&needed, topic);
            let deciding: Option<Vec<&EntrySettings>> = needed.iter().map(|right| {
                let (allowed, number) = model(&entries, user, &groups, *right, topic);
                number.filter(|_| allowed).map(|number| &entries[number - 1])
            }).collect();
            let selects = deciding.iter().flatten().filter_map(|entry| entry.select.as_deref());
            let hidden = Some(Select::granted(selects).unwrap());
            let seeing = FilterOptions { hidden: hidden.clone(), ..options.clone() };
            let own_seeing = own.as_ref().map(|own| Filter::parse(own.text(), &seeing).unwrap());
            for data in [
                r#"{"a":1,"b":1}"#, r#"{"a":2,"b":1}"#, r#"{"a":2,"b":2,"c":3}"#, r#"{"c":1}"#, "{",
                r#"{"a":1,"b":1,"b":1}"#, r#"{"a":1,"b":1,"c":{"d":1,"d":1}}"#,
            ] {
                let message = message(topic, data.as_bytes());
                let shows = |grant: &Grant| {
                    let filter = grant.filter(own.clone(), &options).unwrap();
                    grant.includes(topic) && filter.is_none_or(|filter| filter.matches(&message))
                };
                let wanted = own_seeing.as_ref().is_none_or(|filter| filter.matches(&message));
                let is_sound = data.ends_with('}') && !data.contains(r#""b":1,"b""#) && !data.contains(r#""d":1,"d""#);
                let expected = wanted && deciding.as_ref().is_some_and(|entries| entries.iter().all(|entry| {
                    let filter = entry.filter.as_deref();
                    let is_limited = filter.is_some() || entry.select.is_some();
                    (is_sound || !is_limited)
                        && filter.is_none_or(|text| Filter::parse(text, &options).unwrap().matches(&message))
                }));
                prop_assert_eq!(by_name.as_ref().is_ok_and(shows), expected, "{} {}", topic, data);
                prop_assert_eq!(of_pattern.as_ref().is_ok_and(shows), expected, "{} {} {}", pattern, topic, data);
                let wanted_fields = wanted_fields.map(|text| Select::parse(text).unwrap());
                let part = |select: Option<&Select>| {
                    let mut part = Vec::new();
                    let (json, mut arena) = (Some(MessageType::Json), Arena::default());
                    select.map_or(data.as_bytes(), |select| {
                        select.apply(json, data.as_bytes(), &mut arena, &mut part)
                    }).to_vec()
                };
                let shown = |grant: &Grant| {
                    let select = grant.select(wanted_fields.clone());
                    part(select.as_ref().and_then(|select| select.of_topic(topic)).as_deref())
                };
                if expected {
                    let expected = part(hidden.as_ref().map(|hidden| hidden.of(wanted_fields.as_ref())).as_ref());
                    prop_assert_eq!(shown(by_name.as_ref().unwrap()), expected.clone());
                    prop_assert_eq!(shown(of_pattern.as_ref().unwrap()), expected);
                }
            }
        }
    }
}

#[test]
fn a_filter_of_a_client_cannot_leave_that_of_its_entry() {
    let entries = [EntrySettings {
        topic: vec!["orders".to_owned()],
        allow: vec![Right::Read],
        filter: Some("/a = 1".to_owned()),
        ..EntrySettings::default()
    }];
    let rights = compiled(&entries).of_user("anna", &[]);
    let options = FilterOptions::default();
    let grant = rights.grant(&[Right::Read], "orders").unwrap();
    for text in ["1 = 1", "/a = 2 OR 1 = 1", "NOT (1 = 2)"] {
        let own = Filter::parse(text, &options).unwrap();
        let filter = grant.filter(Some(own), &options).unwrap().unwrap();
        assert!(filter.matches(&message("orders", br#"{"a":1}"#)), "{text}");
        assert!(!filter.matches(&message("orders", br#"{"a":2}"#)), "{text}");
        assert_eq!(filter.text(), text, "the filter of the entry is shown to nobody");
    }
    for text in ["1 = 1) OR (1 = 1", "1 = 1 -- ", "'"] {
        assert!(Filter::all(None, &[("/a = 1", &options), (text, &options)], false, "").is_err(), "{text}");
    }
}

/// Both filters were checked with the configuration, but together they have too many patterns.
#[test]
fn filters_that_are_too_large_together_show_nothing() {
    let patterns = |field: &str| {
        (0..300).map(|number| format!("/{field} LIKE 'x{number}'")).collect::<Vec<_>>().join(" OR ")
    };
    let of = |right: Right, filter: String| EntrySettings {
        topic: vec!["^orders".to_owned()],
        allow: vec![right],
        filter: Some(filter),
        ..EntrySettings::default()
    };
    let entries = [of(Right::Read, patterns("a")), of(Right::Replay, patterns("b"))];
    let (rights, options) = (compiled(&entries).of_user("anna", &[]), FilterOptions::default());
    for topic in ["orders", "^orders/"] {
        let grant = rights.grant(&[Right::Read, Right::Replay], topic).unwrap();
        let visible = grant.visible(&options).expect("a filter");
        assert!(!visible.matches(&message("orders", br#"{"a":"x1","b":"x1"}"#)), "{topic}");
    }
    let one = rights.grant(&[Right::Read], "orders").unwrap().visible(&options).unwrap();
    assert!(one.matches(&message("orders", br#"{"a":"x1"}"#)));
}

type Change = fn(&mut EntrySettings);

#[test]
fn a_mistake_in_an_entry_names_its_key() {
    let entry = |change: Change| {
        let mut entry = EntrySettings {
            topic: vec!["orders".to_owned()],
            allow: vec![Right::Read],
            ..EntrySettings::default()
        };
        change(&mut entry);
        entry
    };
    let changes: [(&str, Change); 14] = [
        ("topic", |entry| entry.topic = vec!["^orders|trades".to_owned()]),
        ("topic", |entry| entry.topic = vec!["orders$".to_owned()]),
        ("topic", |entry| entry.topic = Vec::new()),
        ("user", |entry| entry.user = vec!["a+b".to_owned()]),
        ("group", |entry| entry.group = vec!["^(".to_owned()]),
        ("allow", |entry| entry.allow = Vec::new()),
        ("deny", |entry| entry.deny = vec![Right::Read]),
        ("filter", |entry| entry.filter = Some("/a =".to_owned())),
        ("filter", |entry| (entry.allow, entry.filter) = (vec![Right::Admin], Some("/a = 1".to_owned()))),
        ("filter", |entry| {
            (entry.allow, entry.filter) = (vec![Right::Read, Right::Replicate], Some("/a = 1".to_owned()));
        }),
        ("select", |entry| entry.select = Some("/a".to_owned())),
        ("select", |entry| (entry.allow, entry.select) = (vec![Right::Write], Some("-/a".to_owned()))),
        ("select", |entry| {
            (entry.allow, entry.select) = (vec![Right::Read, Right::Replicate], Some("-/a".to_owned()));
        }),
        ("filter", |entry| {
            (entry.allow, entry.deny, entry.filter) =
                (Vec::new(), vec![Right::Read], Some("/a = 1".to_owned()));
        }),
    ];
    for (key, change) in changes {
        let entries = [entry(|_| ()), entry(change)];
        let errors = Entitlements::compile(&entries, &FilterOptions::default()).unwrap_err();
        let first = crate::ConfigError::from(errors);
        assert_eq!(first.key, format!("entitlements[1].{key}"), "{first}");
    }
}

#[test]
fn whole_topics_are_those_without_a_filter() {
    let entries = [
        EntrySettings {
            topic: vec!["orders/eu".to_owned()],
            allow: vec![Right::Read],
            filter: Some("/a = 1".to_owned()),
            ..EntrySettings::default()
        },
        EntrySettings {
            topic: vec!["^orders".to_owned()],
            allow: vec![Right::Read, Right::Replay],
            ..EntrySettings::default()
        },
    ];
    let rights = compiled(&entries).of_user("anna", &[]);
    let whole =
        |needed: &[Right], text: &str| rights.check_whole(needed, &TopicSelector::new(text).unwrap()).is_ok();
    assert!(whole(&[Right::Read, Right::Replay], "orders"));
    assert!(whole(&[Right::Replay], "^orders"), "the same text");
    assert!(!whole(&[Right::Read], "^orders"), "an entry before it has a filter");
    assert!(!whole(&[Right::Read], "orders/eu"));
    assert!(!whole(&[Right::Replay], "^orders/eu"), "another text");
    assert!(!whole(&[Right::Write], "orders"));
}
