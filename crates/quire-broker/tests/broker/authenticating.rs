//! Logons whose password the driver checks: they wait for the result, and nothing else does.

use std::time::Duration;

use quire_broker::{Access, BrokerConfig, ConnectionId, Input, TransportConfig};
use quire_command::*;
use quire_types::Secret;

use super::pair::*;

/// A broker whose clients need a password.
fn guarded() -> Pair {
    let transport = TransportConfig { authenticates: true, ..TransportConfig::default() };
    Pair::with(BrokerConfig { transports: vec![transport], ..config() })
}

fn send_logon(pair: &mut Pair, client: u64, name: &str, user: &str) {
    pair.connect(client);
    let (user, password) = (Some(user), Some(Secret("correct horse")));
    pair.send(client, &Command::Logon(Logon { user, password, heartbeat_ms: 1500, ..logon(name) }));
    pair.turn();
}

/// The driver has checked the password of the client.
fn answer(pair: &mut Pair, client: u64, user: Result<&str, &str>) {
    let now = pair.now();
    let user = user.map_err(|reason| (Code::AuthenticationFailed, reason));
    pair.broker.handle(now, Input::Authenticated { connection: ConnectionId(client), user, groups: "" });
    pair.turn();
    // The bytes that were not read meanwhile arrived at the end of this turn.
    pair.turn();
}

#[test]
fn a_logon_waits_for_the_check_of_its_password_and_its_commands_wait_with_it() {
    let mut pair = guarded();
    send_logon(&mut pair, 1, "loader", "anna");
    pair.publish(1, 1, "orders", "sent without waiting for the answer");
    pair.turn();
    let password = Some(Secret("correct horse".to_owned()));
    assert_eq!(pair.logons, [(ConnectionId(1), Some("anna".to_owned()), password)]);
    assert_eq!(pair.take(1), []);
    assert_eq!(pair.broker.stats().appended, 0);
    answer(&mut pair, 1, Ok("anna"));
    assert_eq!(pair.take(1), [Said::LoggedOn { last_sequence: 0 }, Said::Persisted(1)]);
}

#[test]
fn a_refused_logon_ends_its_connection_and_takes_no_name() {
    let mut pair = guarded();
    send_logon(&mut pair, 1, "loader", "anna");
    answer(&mut pair, 1, Ok("anna"));
    pair.take(1);
    send_logon(&mut pair, 2, "loader", "anna");
    pair.publish(2, 1, "orders", "refused");
    answer(&mut pair, 2, Err("user or password are not accepted"));
    assert_eq!(pair.take(2), [Said::Error(Code::AuthenticationFailed), Said::Closed]);
    assert_eq!(pair.take(1), []);
    assert_eq!(pair.broker.stats().appended, 0);
    pair.publish(1, 1, "orders", "a");
    pair.turn();
    assert_eq!(pair.take(1), [Said::Persisted(1)]);
}

#[test]
fn the_checked_user_decides_who_takes_over_a_name() {
    let mut pair = guarded();
    for (client, user) in [(1, "anna"), (2, "bob")] {
        // The user that a client claims does not count.
        send_logon(&mut pair, client, "loader", "anna");
        answer(&mut pair, client, Ok(user));
    }
    assert_eq!(pair.take(1), [Said::LoggedOn { last_sequence: 0 }]);
    assert_eq!(pair.take(2), [Said::Error(Code::NameInUse), Said::Closed]);
}

#[test]
fn the_check_counts_in_the_time_for_the_logon() {
    let mut pair = guarded();
    send_logon(&mut pair, 1, "loader", "anna");
    pair.pass(Duration::from_millis(4999));
    let said = pair.take(1);
    assert!(!said.is_empty() && said.iter().all(|said| *said == Said::Heartbeat), "{said:?}");
    pair.pass(Duration::from_millis(1));
    // The client has done nothing wrong, and tries again.
    assert_eq!(pair.take(1), [Said::Error(Code::AuthenticationUnavailable), Said::Closed]);
    // The result comes too late.
    answer(&mut pair, 1, Ok("anna"));
    assert_eq!(pair.take(1), []);
    assert_eq!(pair.broker.stats().connection_count, 0);
}

#[test]
fn a_result_for_a_connection_that_has_ended_has_no_effect() {
    let mut pair = guarded();
    send_logon(&mut pair, 1, "loader", "anna");
    pair.disconnect(1);
    answer(&mut pair, 1, Ok("anna"));
    // Neither has a second result.
    send_logon(&mut pair, 2, "loader", "anna");
    answer(&mut pair, 2, Ok("anna"));
    answer(&mut pair, 2, Err("late"));
    assert_eq!(pair.take(2), [Said::LoggedOn { last_sequence: 0 }]);
}

#[test]
fn an_administrator_needs_no_password() {
    let mut pair = guarded();
    pair.connect_as(1, Access::Administrator);
    pair.log_on(1, "quire");
    assert_eq!(pair.logons, []);
}

#[test]
fn a_second_logon_does_not_replace_one_that_waits() {
    let mut pair = guarded();
    send_logon(&mut pair, 1, "loader", "anna");
    pair.send(1, &Command::Logon(logon("other")));
    pair.turn();
    assert_eq!(pair.logons.len(), 1);
    answer(&mut pair, 1, Ok("anna"));
    let said = [Said::LoggedOn { last_sequence: 0 }, Said::Error(Code::DuplicateLogon), Said::Closed];
    assert_eq!(pair.take(1), said);
}
