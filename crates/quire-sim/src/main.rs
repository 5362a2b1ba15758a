//! Plays many histories: `quire-sim [--seeds COUNT] [--first SEED]`. Ends with 1 at the first that goes wrong, and names its seed.

use std::process::ExitCode;

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
    let mut all = Outcome::default();
    for seed in first..first + count {
        match run(seed, None) {
            Ok(outcome) => {
                all.appended += outcome.appended;
                all.power_cuts += outcome.power_cuts;
                all.kills += outcome.kills;
                all.torn += outcome.torn;
                all.poisoned += outcome.poisoned;
                all.kept += outcome.kept;
            }
            Err(reason) => {
                eprintln!("seed {seed}: {reason}\nrepeat it with: quire-sim --first {seed} --seeds 1");
                return ExitCode::FAILURE;
            }
        }
    }
    println!(
        "{count} histories: {} records, {} power cuts, {} kills, {} torn tails, {} failed disks, {} segments archived, compressed or removed; \
         nothing acknowledged was lost",
        all.appended, all.power_cuts, all.kills, all.torn, all.poisoned, all.kept
    );
    ExitCode::SUCCESS
}
