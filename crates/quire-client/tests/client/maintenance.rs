//! A client asks its server for journal maintenance: the answers, and the result after a lost
//! connection.

use quire_client::FailureCode;
use quire_command::Code;
use quire_journal::Action;
use quire_types::Files;

use crate::link::*;

const ALL: Files = Files::OlderThan(0);

#[test]
fn the_files_come_before_the_answer() {
    let mut link = Link::new(&["one"]);
    let keeper = link.client(config("keeper"));
    let filler = "x".repeat(50_000);
    for _ in 0..12 {
        link.publish(keeper, "orders", &filler);
        link.run();
    }
    let command = link.clients[keeper].core.maintain(Action::Remove, ALL, true, None).unwrap();
    link.run();
    let side = &mut link.clients[keeper];
    assert_eq!(side.answers.remove(&command.0), Some(Ok(())));
    assert!(side.told.len() > 1, "{:?}", side.told);
    assert!(side.told.iter().all(|(asked, json)| *asked == command.0 && json.contains("\"sealed\"")));
    let command = side.core.maintain(Action::Archive, ALL, false, None).unwrap();
    link.run();
    let refused = link.clients[keeper].answers.remove(&command.0).unwrap().unwrap_err();
    assert_eq!(refused.code, Code::BadOption);
    assert!(refused.reason.contains("journal_archive_directory"), "{refused}");
}

#[test]
fn a_connection_that_breaks_is_an_answer_and_nothing_is_asked_again() {
    let mut link = Link::new(&["one"]);
    let keeper = link.client(config("keeper"));
    let command = link.clients[keeper].core.maintain(Action::Remove, ALL, false, None).unwrap();
    link.cut(keeper);
    link.run();
    let failure = link.clients[keeper].answers.remove(&command.0).unwrap().unwrap_err();
    assert_eq!(failure.code, FailureCode::Disconnected);
    assert!(failure.reason.contains("before the server answered"), "{failure}");
    link.clients[keeper].core.close();
    assert!(link.clients[keeper].core.maintain(Action::Remove, ALL, false, None).is_err());
}
