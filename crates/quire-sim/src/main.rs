//! Plays many histories: `quire-sim [--seeds COUNT] [--first SEED] [--only journals|worlds|instances]`. Ends with 1 at the first that goes
//! wrong, and names its seed. Without `--only`, every second seed has a world of several instances, to keep the time of `make sim` short.

use std::process::ExitCode;

use quire_sim::{Outcome, instances, run, world};

const USAGE: &str = "usage: quire-sim [--seeds COUNT] [--first SEED] [--only journals|worlds|instances]";

/// The kinds of histories, by their names on the command line.
const KINDS: [&str; 3] = ["journals", "worlds", "instances"];

fn main() -> ExitCode {
    let (mut first, mut count) = (0, 100);
    let mut only = None;
    let mut arguments = std::env::args().skip(1);
    while let (Some(name), Some(value)) = (arguments.next(), arguments.next().or(Some(String::new()))) {
        match (name.as_str(), value.parse::<u64>()) {
            ("--seeds", Ok(value)) => count = value,
            ("--first", Ok(value)) => first = value,
            ("--only", Err(_)) if KINDS.contains(&value.as_str()) => only = Some(value),
            _ => {
                eprintln!("{USAGE}");
                return ExitCode::from(2);
            }
        }
    }
    let plays = |kind: &str| only.as_ref().is_none_or(|only| only == kind);
    let mut journals = Outcome::default();
    let mut cluster_count = 0;
    let (mut worlds, mut clusters) = (world::Played::default(), instances::Played::default());
    for seed in first..first + count {
        let mut played = Ok(());
        if plays(KINDS[0]) {
            played = run(seed, None).map(|outcome| journals.add(&outcome));
        }
        if played.is_ok() && plays(KINDS[1]) {
            played = world::play(seed, None).map(|played| worlds.add(&played));
        }
        if played.is_ok() && plays(KINDS[2]) && (only.is_some() || seed % 2 == 0) {
            cluster_count += 1;
            played = instances::play(seed, None).map(|played| clusters.add(&played));
        }
        if let Err(reason) = played {
            eprintln!("seed {seed}: {reason}\nrepeat it with: quire-sim --first {seed} --seeds 1");
            return ExitCode::FAILURE;
        }
    }
    if plays(KINDS[0]) {
        println!("{count} journals: {journals}; nothing acknowledged was lost");
    }
    if plays(KINDS[1]) {
        println!(
            "{count} worlds: {worlds}; nothing acknowledged was lost, nothing doubled, no reader missed anything"
        );
    }
    if plays(KINDS[2]) {
        println!(
            "{cluster_count} worlds of several instances: {clusters}; no counted copy was lost, nothing doubled, all instances agree"
        );
    }
    ExitCode::SUCCESS
}
