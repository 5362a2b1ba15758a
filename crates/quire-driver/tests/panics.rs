//! A bug in the middle of a turn ends the engine, so no work continues with half of its input. The
//! test has a separate process, because the logger causes the panic, and a process has only one
//! logger.

use std::sync::Arc;
use std::time::Duration;

use quire_broker::{AdminCommand, AdminReply, BrokerConfig};
use quire_command::{Command, Logon};
use quire_driver::{Engine, EngineError, EngineKey};
use quire_wire::{Encode, VERSION};

use std::io::{Read, Write};

struct PanickingLogger;

impl log::Log for PanickingLogger {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        assert!(!record.args().to_string().contains("\"fatal\" logged on"), "a test asked for a panic");
    }
    fn flush(&self) {}
}

fn config(directory: &std::path::Path) -> BrokerConfig {
    let config = format!(
        r#"{{"name":"test","transaction_log":{{"journal_directory":{:?},"journal_size":1048576,
            "topics":[{{"name":".*","message_type":"json"}}]}}}}"#,
        directory.to_str().unwrap()
    );
    BrokerConfig::from_json(&config).unwrap()
}

#[test]
fn an_engine_whose_turn_panicked_stops_and_says_why() {
    log::set_logger(&PanickingLogger).unwrap();
    log::set_max_level(log::LevelFilter::Info);
    let directory = tempfile::tempdir().unwrap();
    let key = EngineKey::Directory(directory.path().to_owned());
    let engine = Engine::shared(key.clone(), config(directory.path())).unwrap();
    let mut stream = engine.connect().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut bytes = Vec::new();
    let logon = Logon { version: VERSION, client_name: "fatal", ..Logon::default() };
    Command::Logon(logon).encode(&mut bytes);
    stream.write_all(&bytes).unwrap();
    assert_eq!(stream.read(&mut [0; 1024]).unwrap(), 0, "the connection ends without an answer");

    let is_panicked = |error: &EngineError| matches!(error, EngineError::Panicked { reason } if reason.contains("a test asked for a panic"));
    assert!(engine.admin(AdminCommand::Stats).is_err_and(|error| is_panicked(&error)));
    let refused = engine.connect().err().unwrap().to_string();
    assert!(refused.contains("internal error (a test asked for a panic)"), "{refused}");
    assert!(Engine::shared(key.clone(), config(directory.path())).is_err_and(|error| is_panicked(&error)));
    assert!(engine.close().is_err_and(|error| is_panicked(&error)));
    // The journal is free, and whole.
    assert_eq!(Arc::strong_count(&engine), 1);
    drop(engine);
    let engine = Engine::shared(key, config(directory.path())).unwrap();
    let reply = engine.admin(AdminCommand::Stats).unwrap();
    assert!(matches!(reply, AdminReply::Stats(stats) if stats.connection_count == 0));
    engine.close().unwrap();
}
