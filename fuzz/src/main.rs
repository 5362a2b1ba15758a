//! Any bytes for one reader of messages, guided by coverage: the law of
//! `crates/quire-expression/tests/corpus`.
//!
//! `QUIRE_READER` is the name of a message type. One input in 32 takes all nine paths, which cost
//! more; the input decides, so that it has the same coverage each time. The arguments are those of
//! libFuzzer. `SEEDS=directory` writes the corpus there, and ends.

#![no_main]

#[path = "../../crates/quire-expression/tests/corpus/law.rs"]
mod law;

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use quire_expression::message_type::MessageType;

use law::{Law, corpus};

thread_local! {
    static LAW: RefCell<Law> = RefCell::new(Law::new(reader()));
}

fn reader() -> MessageType {
    let name = std::env::var("QUIRE_READER").expect("QUIRE_READER is the name of a message type");
    MessageType::from_name(&name).expect("QUIRE_READER is the name of a message type")
}

/// Writes the corpus, one file for each message.
fn write_seeds(directory: &str) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    for (number, (_, data)) in corpus(reader()).iter().enumerate() {
        std::fs::write(format!("{directory}/seed-{number}"), data)?;
    }
    Ok(())
}

fuzz_target!(
    init: {
        if let Ok(directory) = std::env::var("SEEDS") {
            write_seeds(&directory).expect("the seeds can be written");
            std::process::exit(0);
        }
    },
    |data: &[u8]| LAW.with_borrow_mut(|law| {
        let sum: u32 = data.iter().map(|byte| u32::from(*byte)).sum();
        match sum.is_multiple_of(32) {
            true => law.agrees(data),
            false => law.reads(data),
        };
    })
);
