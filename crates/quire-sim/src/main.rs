//! Plays many histories: `quire-sim [--seeds COUNT] [--first SEED]`. Ends with 1 at the first that goes wrong, and names its seed.

use std::process::ExitCode;

use quire_sim::world::{self, Played};
use quire_sim::{Outcome, run};

fn main() -> ExitCode {
    let (mut first, mut count) = (0, 100);
    let mut arguments = std::env::args().skip(1);
    while let (Some(name), value) = (arguments.next(), arguments.next()) {
        match (name.as_str(), value.and_then(|value| value.parse::<u64>().ok())) {
            ("--seeds", Some(value)) => count = value,
            ("--first", Some(value)) => first = value,
            _ => {
                eprintln!("usage: quire-sim [--seeds COUNT] [--first SEED]");
                return ExitCode::from(2);
            }
        }
    }
    let (mut journals, mut worlds) = (Outcome::default(), Played::default());
    for seed in first..first + count {
        let played = run(seed, None)
            .map(|outcome| journals.add(&outcome))
            .and_then(|()| world::play(seed, None).map(|played| worlds.add(&played)));
        if let Err(reason) = played {
            eprintln!("seed {seed}: {reason}\nrepeat it with: quire-sim --first {seed} --seeds 1");
            return ExitCode::FAILURE;
        }
    }
    println!("{count} journals: {journals}; nothing acknowledged was lost");
    println!(
        "{count} worlds: {worlds}; nothing acknowledged was lost, nothing doubled, no reader missed anything"
    );
    ExitCode::SUCCESS
}
