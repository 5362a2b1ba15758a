//! Replacements of one subscription that are sent before the earlier ones are answered
//! (docs/clients.md).

use std::time::Duration;

use quire_client::{CommandId, FailureCode, RecordsSpec, SubscriptionSpec};
use quire_command::{Code, SubscribeOptions};

use crate::link::{Link, config};

const LONG: Duration = Duration::from_secs(60);
const EPOCH: &str = "0";

fn all(topic: &str) -> SubscriptionSpec {
    SubscriptionSpec { bookmark: Some(EPOCH.into()), ..SubscriptionSpec::new(topic) }
}

fn filtered(filter: &str) -> SubscriptionSpec {
    SubscriptionSpec { filter: Some(filter.into()), ..SubscriptionSpec::new("x") }
}

/// A reader, client 1, that has received the three messages of `x`, and the number of its
/// subscription.
fn reading() -> (Link, u32) {
    let mut link = Link::new(&["one"]);
    let (publisher, reader) = (link.client(config("publisher")), link.client(config("reader")));
    for number in 1..=3 {
        link.publish(publisher, "x", &format!(r#"{{"n":{number}}}"#));
    }
    link.run();
    let number = link.subscribe(reader, all("x"));
    assert_eq!(link.take(1).len(), 3);
    (link, number)
}

fn replace(link: &mut Link, number: u32, spec: SubscriptionSpec) -> CommandId {
    link.clients[1].core.replace(number, spec).unwrap()
}

fn filter_of(link: &Link, number: u32) -> Option<&str> {
    link.clients[1].core.subscription(number).unwrap().filter.as_deref()
}

/// Sends two replacements. The server receives and answers only the first one.
fn replace_twice(link: &mut Link, number: u32, specs: [SubscriptionSpec; 2]) -> [CommandId; 2] {
    let [first, second] = specs;
    let first = replace(link, number, first);
    link.turn_of_client(1);
    let second = replace(link, number, second);
    while link.turn_of_server(0) {}
    [first, second]
}

fn answer(link: &mut Link, command: CommandId) -> Result<(), FailureCode> {
    link.clients[1].answers.remove(&command.0).unwrap().map_err(|failure| failure.code)
}

#[test]
fn each_replacement_takes_effect_when_it_is_answered() {
    let (mut link, number) = reading();
    let specs = [filtered("/n > 1"), filtered("/n > 2")];
    let [first, second] = replace_twice(&mut link, number, specs);
    assert_eq!(filter_of(&link, number), Some("/n > 1"));
    link.run();
    assert_eq!(filter_of(&link, number), Some("/n > 2"));
    assert_eq!([answer(&mut link, first), answer(&mut link, second)], [Ok(()), Ok(())]);
}

#[test]
fn a_replacement_that_was_not_answered_before_a_reconnect_repeats_no_message() {
    let (mut link, number) = reading();
    let specs = [filtered("/n > 1"), filtered("/n > 2")];
    let [first, second] = replace_twice(&mut link, number, specs);
    link.cut(1);
    link.pass(LONG);
    assert_eq!([answer(&mut link, first), answer(&mut link, second)], [Ok(()), Ok(())]);
    assert_eq!(filter_of(&link, number), Some("/n > 2"));
    assert_eq!(link.take(1), [""; 0]);
}

#[test]
fn replacements_are_sent_again_in_their_order_each_as_it_was() {
    let (mut link, number) = reading();
    let again = SubscriptionSpec { bookmark: Some(EPOCH.into()), ..filtered("/n > 1") };
    let commands = [again, filtered("/n > 2")].map(|spec| replace(&mut link, number, spec));
    link.cut(1);
    link.pass(LONG);
    assert_eq!(commands.map(|command| answer(&mut link, command)), [Ok(()), Ok(())]);
    assert_eq!(link.take(1), [r#"{"n":3}"#]);
}

#[test]
fn a_refused_replacement_leaves_the_one_before_it_in_force() {
    let (mut link, number) = reading();
    let specs = [filtered("/n > 1"), filtered("/n >")];
    let [first, second] = replace_twice(&mut link, number, specs);
    link.run();
    assert_eq!(answer(&mut link, first), Ok(()));
    assert_eq!(answer(&mut link, second), Err(FailureCode::Wire(Code::BadFilter)));
    assert!(link.clients[1].ended.is_empty());
    assert_eq!(filter_of(&link, number), Some("/n > 1"));
    link.cut(1);
    link.publish(0, "x", r#"{"n":0}"#);
    link.publish(0, "x", r#"{"n":4}"#);
    link.pass(LONG);
    assert_eq!(link.take(1), [r#"{"n":4}"#]);
}

#[test]
fn a_replacement_after_a_refused_one_takes_effect() {
    let (mut link, number) = reading();
    let specs = [filtered("/n >"), filtered("/n > 2")];
    let [first, second] = replace_twice(&mut link, number, specs);
    link.run();
    assert_eq!(answer(&mut link, first), Err(FailureCode::Wire(Code::BadFilter)));
    assert_eq!(answer(&mut link, second), Ok(()));
    assert_eq!(filter_of(&link, number), Some("/n > 2"));
}

#[test]
fn a_replacement_of_a_subscription_that_has_ended_is_answered_when_the_connection_is_lost() {
    let (mut link, number) = reading();
    let command = replace(&mut link, number, filtered("/n > 1"));
    link.clients[1].core.unsubscribe(number).unwrap();
    link.cut(1);
    link.pass(LONG);
    assert_eq!(answer(&mut link, command), Err(FailureCode::Closed));
}

#[test]
fn a_replacement_after_one_that_gives_a_bookmark_gets_resume_positions() {
    let (mut link, _) = reading();
    let number = link.subscribe(1, SubscriptionSpec::new("x"));
    let commands = [all("x"), filtered("/n > 9")].map(|spec| replace(&mut link, number, spec));
    link.run();
    assert_eq!(commands.map(|command| answer(&mut link, command)), [Ok(()), Ok(())]);
    let last = link.publish(0, "x", r#"{"n":4}"#);
    link.pass(LONG);
    assert_eq!(link.clients[1].core.last_received(number).map(|bookmark| bookmark.sequence), Some(last));
}

#[test]
fn a_replacement_after_one_that_gives_a_bookmark_keeps_its_keys() {
    let (mut link, _) = reading();
    link.take(1);
    let keyed = || {
        let records = RecordsSpec { keys: Some(vec!["none".into()]), ..RecordsSpec::default() };
        SubscriptionSpec { records: Some(records), ..SubscriptionSpec::new("x") }
    };
    let at_once = SubscriptionSpec { bookmark: Some(EPOCH.into()), ..keyed() };
    for specs in [vec![at_once], vec![all("y"), keyed()]] {
        let number = link.subscribe(1, SubscriptionSpec::new("x"));
        let commands: Vec<_> = specs.into_iter().map(|spec| replace(&mut link, number, spec)).collect();
        link.run();
        assert!(commands.into_iter().all(|command| answer(&mut link, command).is_ok()));
        assert_eq!(link.take(1), [""; 0], "no message has the key");
        link.clients[1].core.unsubscribe(number).unwrap();
    }
}

fn live() -> SubscriptionSpec {
    SubscriptionSpec { options: SubscribeOptions::LIVE, ..SubscriptionSpec::new("x") }
}

fn pause(link: &mut Link, number: u32) -> Result<CommandId, FailureCode> {
    link.clients[1].core.set_paused(&[number], true).map_err(|failure| failure.code)
}

/// The subscription can be replaced, and receives the next message, also after a reconnect.
fn assert_goes_on(link: &mut Link, number: u32, spec: SubscriptionSpec) {
    let command = replace(link, number, spec);
    link.run();
    assert_eq!(answer(link, command), Ok(()));
    link.take(1);
    link.cut(1);
    link.publish(0, "x", r#"{"n":4}"#);
    link.pass(LONG);
    assert!(link.clients[1].ended.is_empty());
    let messages = std::mem::take(&mut link.clients[1].messages).into_iter();
    let received: Vec<_> = messages.filter(|(receiver, _)| *receiver == number).collect();
    assert_eq!(received, [(number, r#"{"n":4}"#.to_owned())]);
}

#[test]
fn a_live_subscription_that_cannot_be_paused_can_be_replaced_and_resumes() {
    let bad_option = FailureCode::Wire(Code::BadOption);
    for conflation in [None, Some(Duration::from_millis(1))] {
        let (mut link, _) = reading();
        let conflation_key = conflation.map(|_| "/n".to_owned());
        let spec = SubscriptionSpec { conflation, conflation_key, ..live() };
        let number = link.subscribe(1, SubscriptionSpec { bookmark: Some(EPOCH.into()), ..spec.clone() });
        assert_eq!(pause(&mut link, number).unwrap_err(), bad_option);
        assert_goes_on(&mut link, number, spec);
    }
    let (mut link, _) = reading();
    let number = link.subscribe(1, SubscriptionSpec::new("x"));
    assert_eq!(pause(&mut link, number).unwrap_err(), bad_option);
}

#[test]
fn a_pause_that_is_refused_because_of_a_replacement_is_taken_back() {
    for is_cut in [false, true] {
        let (mut link, number) = reading();
        let replaced = replace(&mut link, number, live());
        link.turn_of_client(1);
        let paused = pause(&mut link, number).unwrap();
        if is_cut {
            // The server has answered only the replacement.
            while link.turn_of_server(0) {}
            link.cut(1);
        }
        link.pass(LONG);
        assert_eq!(answer(&mut link, replaced), Ok(()));
        assert_eq!(answer(&mut link, paused), Err(FailureCode::Wire(Code::BadOption)), "{is_cut}");
        assert_goes_on(&mut link, number, live());
    }
}

#[test]
fn a_pause_before_the_bookmark_of_a_replacement_is_accepted_with_it() {
    let (mut link, _) = reading();
    let number = link.subscribe(1, SubscriptionSpec::new("x"));
    let replaced = replace(&mut link, number, all("x"));
    let paused = pause(&mut link, number).unwrap();
    link.run();
    assert_eq!([answer(&mut link, replaced), answer(&mut link, paused)], [Ok(()), Ok(())]);
    // Without a connection it is not known whether the server would accept the replacement.
    let number = link.subscribe(1, SubscriptionSpec::new("y"));
    replace(&mut link, number, all("y"));
    let paused = pause(&mut link, number).unwrap();
    link.cut(1);
    link.pass(LONG);
    assert_eq!(answer(&mut link, paused), Err(FailureCode::Wire(Code::BadOption)));
    assert!(link.clients[1].ended.is_empty());
}
