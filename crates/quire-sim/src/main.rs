//! Plays many histories: `quire-sim [--seeds COUNT] [--first SEED] [--only
//! journals|worlds|instances|rights]`. Ends with 1 at the first that goes wrong, and names its
//! seed. Each processor plays other seeds. The seeds from 0 to 99 together have every kind of
//! trouble: a run that contains them also ends with 1 when one is missing.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use quire_sim::world::{Played, Size, play};
use quire_sim::{Outcome, rights, run};

const USAGE: &str =
    "usage: quire-sim [--seeds COUNT] [--first SEED] [--only journals|worlds|instances|rights]";

/// The kinds of histories, by their names on the command line.
const KINDS: [&str; 4] = ["journals", "worlds", "instances", "rights"];

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
    let plays = Plays { only };
    // The threads take the seeds in their order, and finish those that they have begun. So the
    // first seed that goes wrong is always found.
    let next = AtomicU64::new(first);
    let play = || {
        let mut sum = Sum::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + count {
                return (sum, None);
            }
            if let Err(reason) = sum.play(seed, &plays) {
                next.store(first + count, Ordering::Relaxed);
                return (sum, Some((seed, reason)));
            }
        }
    };
    let results: Vec<_> = thread::scope(|scope| {
        let threads = (0..thread::available_parallelism().map_or(1, usize::from)).map(|_| scope.spawn(play));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().expect("a world panicked")).collect()
    });
    if let Some((seed, reason)) = results.iter().filter_map(|(_, failure)| failure.as_ref()).min() {
        eprintln!("seed {seed}: {reason}\nrepeat it with: quire-sim --first {seed} --seeds 1");
        return ExitCode::FAILURE;
    }
    let mut sum = Sum::default();
    results.iter().for_each(|(part, _)| sum.add(part));
    let Sum { journals, worlds, clusters, rights } = sum;
    if first == 0 && count >= 100 {
        let played = [(KINDS[1], &worlds, Size::One), (KINDS[2], &clusters, Size::Several)];
        for (kind, played, size) in played.into_iter().filter(|(kind, ..)| plays.kind(kind)) {
            let counters = played.counters(size).into_iter();
            let missing: Vec<_> = counters.filter(|(_, count)| *count == 0).map(|(words, _)| words).collect();
            if !missing.is_empty() {
                eprintln!("{kind}: nothing tests what the suite claims, no {}", missing.join(", no "));
                return ExitCode::FAILURE;
            }
        }
    }
    if plays.kind(KINDS[0]) {
        println!("{count} journals: {journals}; nothing acknowledged was lost");
    }
    if plays.kind(KINDS[1]) {
        println!(
            "{count} worlds: {}; nothing acknowledged was lost, nothing doubled, no reader missed anything",
            worlds.summary(Size::One)
        );
    }
    if plays.kind(KINDS[2]) {
        println!(
            "{count} worlds of several instances: {}; no counted copy was lost, nothing doubled, all instances agree",
            clusters.summary(Size::Several)
        );
    }
    if plays.kind(KINDS[3]) {
        println!(
            "{count} worlds with rights that change: {rights}; nothing was shown or withheld against them"
        );
    }
    ExitCode::SUCCESS
}

/// The kinds of histories that are played.
struct Plays {
    only: Option<String>,
}

impl Plays {
    fn kind(&self, kind: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only == kind)
    }
}

/// The results of the histories of a thread.
#[derive(Default)]
struct Sum {
    journals: Outcome,
    worlds: Played,
    clusters: Played,
    rights: rights::Played,
}

impl Sum {
    /// Plays the histories of a seed.
    ///
    /// # Errors
    /// What went wrong.
    fn play(&mut self, seed: u64, plays: &Plays) -> Result<(), String> {
        if plays.kind(KINDS[0]) {
            self.journals.add(&run(seed, None)?);
        }
        if plays.kind(KINDS[1]) {
            self.worlds.add(&play(seed, Size::One, None)?);
        }
        if plays.kind(KINDS[2]) {
            self.clusters.add(&play(seed, Size::Several, None)?);
        }
        if plays.kind(KINDS[3]) {
            self.rights.add(&rights::play(seed, None)?);
        }
        Ok(())
    }

    fn add(&mut self, other: &Sum) {
        self.journals.add(&other.journals);
        self.worlds.add(&other.worlds);
        self.clusters.add(&other.clusters);
        self.rights.add(&other.rights);
    }
}
