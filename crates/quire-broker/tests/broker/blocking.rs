//! An administrator ends connections: of one client, whose name is then blocked for a time, and of
//! a transport.

use std::time::Duration;

use quire_broker::{AdminCommand, AdminReply, Input, TransportConfig, TransportId};
use quire_command::{Code, Command};

use crate::pair::{Pair, Said, config, logon};

const MINUTE: Duration = Duration::from_secs(60);

fn administer(pair: &mut Pair, command: AdminCommand) -> AdminReply {
    let now = pair.now();
    pair.broker.handle(now, Input::Admin { ticket: 1, command });
    pair.turn();
    pair.replies.pop().map(|(_, reply)| reply).unwrap()
}

fn names(pair: &Pair) -> Vec<String> {
    let connections = pair.broker.stats().connections.into_iter();
    let mut names: Vec<_> = connections.map(|connection| connection.client_name).collect();
    names.sort();
    names
}

#[test]
fn a_blocked_client_name_logs_on_after_its_time() {
    let mut pair = Pair::new();
    pair.client(1, "shop");
    pair.client(2, "other");
    let reply = administer(&mut pair, AdminCommand::Disconnect(1, MINUTE));
    assert_eq!(reply, AdminReply::Disconnected { count: 1 });
    assert_eq!(pair.take(1), [Said::Error(Code::EntitlementReset), Said::Closed]);
    pair.connect(3);
    pair.send(3, &Command::Logon(logon("shop")));
    pair.turn();
    assert_eq!(pair.take(3), [Said::Error(Code::AuthenticationUnavailable), Said::Closed]);
    assert_eq!(names(&pair), ["other"]);
    pair.pass(MINUTE);
    pair.client(4, "shop");
    assert_eq!(names(&pair), ["other", "shop"]);
}

#[test]
fn a_client_that_is_ended_without_a_block_may_log_on_at_once() {
    let mut pair = Pair::new();
    pair.client(1, "shop");
    administer(&mut pair, AdminCommand::Disconnect(1, Duration::ZERO));
    pair.client(2, "shop");
    assert_eq!(names(&pair), ["shop"]);
    let reply = administer(&mut pair, AdminCommand::Disconnect(1, MINUTE));
    assert_eq!(reply, AdminReply::Disconnected { count: 0 }, "it does not exist any more");
}

#[test]
fn a_client_blocks_another_one_by_a_command() {
    let mut pair = Pair::new();
    pair.client(1, "shop");
    pair.client(2, "administrator");
    pair.send(2, &Command::Disconnect { command: 5, connection: 1, block_ms: 60_000 });
    pair.turn();
    let json = r#"{"disconnected":1}"#.to_owned();
    assert_eq!(pair.take(2), [Said::Stats { command: 5, json }]);
    pair.connect(3);
    pair.send(3, &Command::Logon(logon("shop")));
    pair.turn();
    assert_eq!(pair.take(3), [Said::Error(Code::AuthenticationUnavailable), Said::Closed]);
}

#[test]
fn only_the_connections_of_a_disabled_transport_end() {
    let mut config = config();
    config.transports.push(TransportConfig { name: "second".to_owned(), ..TransportConfig::default() });
    let mut pair = Pair::with(config);
    pair.client(1, "first");
    pair.connect_over(2, TransportId(1));
    pair.log_on(2, "second");
    let reply = administer(&mut pair, AdminCommand::DisconnectTransport(TransportId(1)));
    assert_eq!(reply, AdminReply::Disconnected { count: 1 });
    assert_eq!(pair.take(2), [Said::Error(Code::EntitlementReset), Said::Closed]);
    assert_eq!(names(&pair), ["first"]);
}
