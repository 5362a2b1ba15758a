//! A place never claims a record that the log lacks, against logs that are compared record by
//! record.
//!
//! The model has three instances with links between them. Each link passes on the records of others
//! or does not, as drawn. Records are published anywhere, links lag and are cut, processes restart,
//! and disks are lost. An instance whose disk was lost takes no publishes and sends no places until
//! the others have sent everything that they had.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use proptest::prelude::*;
use quire_link::{Place, PlaceVector, Places, PlacesFrame, Required};
use quire_types::Position;

const NAMES: [&str; 3] = ["a", "b", "c"];

#[derive(Clone, Debug)]
struct Record {
    number: u64,
    /// The instances that it passed before.
    path: Vec<usize>,
}

#[derive(Clone, Debug)]
enum Sent {
    /// A record, its position at the source, and that up to which the source has looked.
    Record(Record, u64),
    Places(PlacesFrame),
}

/// The link from one instance to another one.
#[derive(Debug, Default)]
struct Link {
    is_open: bool,
    scanned: u64,
    /// The end of the log of the source when the link began.
    greeted: u64,
    flight: VecDeque<Sent>,
    /// Records up to here arrived on this connection, and the last one with a path.
    received: (u64, u64),
}

struct Instance {
    log: Vec<Record>,
    number: u64,
    places: Places,
    /// The ends of the logs of others that must have been sent here; empty: it is complete.
    awaited: BTreeMap<usize, u64>,
    /// All claims: the end of this log, an instance, and a position of its log.
    claims: Vec<(u64, usize, Place)>,
    served: u64,
}

/// A mistake that the check must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// Nothing is required of other sources.
    RequiresNothing,
    /// A source that is away counts as known.
    KnownBeforeItsFrame,
}

struct World {
    instances: Vec<Instance>,
    links: BTreeMap<(usize, usize), Link>,
    passes_on: [bool; 9],
    /// All logs that existed, by instance and number.
    logs: BTreeMap<(usize, u64), Vec<u64>>,
    next: u64,
    mistake: Mistake,
    claim_count: usize,
}

impl World {
    fn new(passes_on: [bool; 9], mistake: Mistake) -> Self {
        let instance = || Instance {
            log: Vec::new(),
            number: 1,
            places: Places::default(),
            awaited: BTreeMap::new(),
            claims: Vec::new(),
            served: 0,
        };
        let pairs = (0..9).map(|pair| (pair / 3, pair % 3)).filter(|(from, to)| from != to);
        World {
            instances: (0..3).map(|_| instance()).collect(),
            links: pairs.map(|pair| (pair, Link::default())).collect(),
            passes_on,
            logs: (0..3).map(|instance| ((instance, 1), Vec::new())).collect(),
            next: 1,
            mistake,
            claim_count: 0,
        }
    }

    fn append(&mut self, instance: usize, record: Record) {
        let number = self.instances[instance].number;
        self.logs.entry((instance, number)).or_default().push(record.number);
        self.instances[instance].log.push(record);
    }

    fn publish(&mut self, instance: usize) {
        if self.instances[instance].awaited.is_empty() {
            let record = Record { number: self.next, path: Vec::new() };
            self.next += 1;
            self.append(instance, record);
        }
    }

    fn cut(&mut self, one: usize, other: usize) {
        for pair in [(one, other), (other, one)] {
            if let Some(link) = self.links.get_mut(&pair) {
                (link.is_open, link.flight) = (false, VecDeque::new());
            }
        }
    }

    fn connect(&mut self, from: usize, to: usize) {
        let end = self.instances[from].log.len() as u64;
        let link = self.links.get_mut(&(from, to)).unwrap();
        if link.is_open {
            return;
        }
        // Everything is offered again.
        *link = Link { is_open: true, greeted: end, ..Link::default() };
        self.instances[to].places.handle_link(NAMES[from]);
    }

    fn restart(&mut self, instance: usize) {
        (0..3).for_each(|other| self.cut(instance, other));
        self.instances[instance].places = Places::default();
        self.instances[instance].served = 0;
    }

    fn lose_disk(&mut self, instance: usize) {
        self.restart(instance);
        let others = (0..3).filter(|other| *other != instance);
        let awaited = others.map(|other| (other, self.instances[other].log.len() as u64)).collect();
        let lost = &mut self.instances[instance];
        lost.number += 1;
        (lost.log, lost.claims, lost.awaited) = (Vec::new(), Vec::new(), awaited);
        self.logs.insert((instance, lost.number), Vec::new());
        // The others hear of it, and make their marks again.
        for other in 0..3 {
            let end = self.instances[other].log.len() as u64;
            let is_filling = !self.instances[other].awaited.is_empty();
            if other != instance && is_filling {
                let mark = self.instances[instance].log.len() as u64;
                self.instances[other].awaited.insert(instance, mark);
            }
            let _ = end;
        }
    }

    /// The source looks at the next record for a link.
    fn send(&mut self, from: usize, to: usize) {
        let fills = !self.instances[to].awaited.is_empty();
        let source = &self.instances[from];
        let link = self.links.get_mut(&(from, to)).unwrap();
        let Some(record) = source.log.get(link.scanned as usize).filter(|_| link.is_open) else { return };
        link.scanned += 1;
        let position = link.scanned;
        let has_passed = record.path.contains(&to);
        if has_passed && position > link.greeted && record.path.last() == Some(&to) {
            return;
        }
        let passes_on = record.path.last().is_none_or(|_| self.passes_on[3 * from + to]);
        if fills || has_passed || record.path.contains(&from) || passes_on {
            link.flight.push_back(Sent::Record(record.clone(), position));
        }
    }

    fn send_places(&mut self, from: usize, to: usize) {
        let source = &self.instances[from];
        let link = &self.links[&(from, to)];
        if !link.is_open || link.scanned < link.greeted || !source.awaited.is_empty() {
            return;
        }
        let position = Position::new(link.scanned);
        let others = (0..3).filter(|other| ![from, to].contains(other) && !self.passes_on[3 * from + to]);
        let required = match self.mistake {
            Mistake::RequiresNothing => Some(Vec::new()),
            Mistake::KnownBeforeItsFrame => {
                let known = others.filter_map(|other| source.places.required(NAMES[other]));
                Some(known.collect::<Vec<Required>>())
            }
            Mistake::None => others.map(|other| source.places.required(NAMES[other])).collect(),
        };
        let (taken_at, known) = source.places.current();
        let known: PlaceVector = match taken_at <= position {
            true => known.iter().map(|(name, place)| (Arc::clone(name), *place)).collect(),
            false => PlaceVector::new(),
        };
        let frame = PlacesFrame { place: Place { log: source.number, position }, known, required };
        self.links.get_mut(&(from, to)).unwrap().flight.push_back(Sent::Places(frame));
    }

    fn take(&mut self, from: usize, to: usize) {
        let link = self.links.get_mut(&(from, to)).unwrap();
        let Some(sent) = link.flight.pop_front() else { return };
        match sent {
            Sent::Record(mut record, position) => {
                link.received.0 = position;
                if !record.path.is_empty() {
                    link.received.1 = position;
                }
                let (through, passed_on) = link.received;
                record.path.push(from);
                if self.instances[to].log.iter().all(|known| known.number != record.number) {
                    self.append(to, record);
                }
                let (through, passed_on) = (Position::new(through), Position::new(passed_on));
                self.instances[to].places.handle_records(NAMES[from], through, passed_on);
            }
            Sent::Places(frame) => {
                let appended = Position::new(self.instances[to].log.len() as u64);
                self.instances[to].places.handle_places(NAMES[from], frame, appended, NAMES[to]);
            }
        }
    }

    /// The filling instances may be complete, and the consumers of a log continue.
    fn turn(&mut self, instance: usize, to: u64) {
        for other in 0..3 {
            let Some(link) = self.links.get(&(other, instance)) else { continue };
            let is_sent = |mark: &mut u64| link.is_open && link.scanned >= *mark && link.flight.is_empty();
            if self.instances[instance].awaited.get_mut(&other).is_some_and(is_sent) {
                self.instances[instance].awaited.remove(&other);
            }
        }
        let this = &mut self.instances[instance];
        this.served = (this.served + to).min(this.log.len() as u64);
        this.places.handle_reached(Position::new(this.served));
        let (taken_at, places) = this.places.current();
        for (name, place) in places.iter() {
            let other = NAMES.iter().position(|known| *known == &**name).unwrap();
            this.claims.push((taken_at.get(), other, *place));
        }
        self.claim_count += places.len();
    }

    /// Each record that a place claims is in the log up to the point.
    fn check(&self) -> Result<(), String> {
        for (number, instance) in self.instances.iter().enumerate() {
            for (end, other, place) in &instance.claims {
                let has: BTreeSet<u64> =
                    instance.log[..*end as usize].iter().map(|record| record.number).collect();
                let claimed = self.logs.get(&(*other, place.log)).map_or(&[][..], |log| log);
                let claimed = claimed.get(..place.position.get() as usize).ok_or("beyond the end")?;
                if let Some(missing) = claimed.iter().find(|record| !has.contains(record)) {
                    return Err(format!(
                        "{} has at {end} a place {place:?} of {}, and lacks {missing}: {:?} {:?}",
                        NAMES[number], NAMES[*other], claimed, instance.log
                    ));
                }
            }
        }
        Ok(())
    }
}

#[derive(Clone, Debug)]
enum Step {
    Publish(usize),
    Connect(usize, usize),
    Cut(usize, usize),
    Send(usize, usize, u8),
    Take(usize, usize, u8),
    Places(usize, usize),
    Turn(usize, u64),
    Restart(usize),
    LoseDisk(usize),
    /// Everything is sent and taken.
    Flow,
}

fn step() -> impl Strategy<Value = Step> {
    let pair = || (0..3_usize, 1..3_usize).prop_map(|(from, more)| (from, (from + more) % 3));
    prop_oneof![
        8 => (0..3_usize).prop_map(Step::Publish),
        4 => pair().prop_map(|(from, to)| Step::Connect(from, to)),
        1 => pair().prop_map(|(from, to)| Step::Cut(from, to)),
        8 => (pair(), 1..5_u8).prop_map(|((from, to), count)| Step::Send(from, to, count)),
        8 => (pair(), 1..6_u8).prop_map(|((from, to), count)| Step::Take(from, to, count)),
        6 => pair().prop_map(|(from, to)| Step::Places(from, to)),
        6 => (0..3_usize, 1..9_u64).prop_map(|(instance, count)| Step::Turn(instance, count)),
        1 => (0..3_usize).prop_map(Step::Restart),
        1 => (0..3_usize).prop_map(Step::LoseDisk),
        2 => Just(Step::Flow),
    ]
}

fn play(passes_on: [bool; 9], steps: &[Step], mistake: Mistake) -> (Result<(), String>, usize) {
    let mut world = World::new(passes_on, mistake);
    for step in steps {
        match *step {
            Step::Publish(instance) => world.publish(instance),
            Step::Connect(from, to) => {
                world.connect(from, to);
                world.connect(to, from);
            }
            Step::Cut(one, other) => world.cut(one, other),
            Step::Send(from, to, count) => (0..count).for_each(|_| world.send(from, to)),
            Step::Take(from, to, count) => (0..count).for_each(|_| world.take(from, to)),
            Step::Places(from, to) => world.send_places(from, to),
            Step::Turn(instance, count) => world.turn(instance, count),
            Step::Restart(instance) => world.restart(instance),
            // Two logs that are lost at a time may have had the only copy.
            Step::LoseDisk(instance) if world.instances.iter().all(|each| each.awaited.is_empty()) => {
                world.lose_disk(instance);
            }
            Step::LoseDisk(_) => (),
            Step::Flow => flow(&mut world),
        }
        if let Err(reason) = world.check() {
            return (Err(format!("{reason} after {step:?}")), world.claim_count);
        }
    }
    (Ok(()), world.claim_count)
}

fn flow(world: &mut World) {
    let pairs: Vec<_> = world.links.keys().copied().collect();
    for _ in 0..4 {
        for &(from, to) in &pairs {
            (0..100).for_each(|_| world.send(from, to));
            world.send_places(from, to);
            (0..200).for_each(|_| world.take(from, to));
        }
        (0..3).for_each(|instance| world.turn(instance, 1000));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn a_place_claims_no_record_that_the_log_lacks(
        passes_on: [bool; 9], steps in prop::collection::vec(step(), 1..120),
    ) {
        let (result, _) = play(passes_on, &steps, Mistake::None);
        prop_assert_eq!(result, Ok(()));
    }
}

/// The steps of a case that is drawn from a number.
fn drawn(seed: u64) -> ([bool; 9], Vec<Step>) {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let drawn = (any::<[bool; 9]>(), prop::collection::vec(step(), 1..120)).new_tree(&mut runner);
    drawn.unwrap().current()
}

/// The check is worth nothing when a mistake passes it, or when nothing is claimed.
#[test]
fn mistakes_are_found_and_places_are_claimed() {
    let all: Vec<_> = (0..4_000).map(drawn).collect();
    for mistake in [Mistake::RequiresNothing, Mistake::KnownBeforeItsFrame] {
        let found = all.iter().filter(|(passes_on, steps)| play(*passes_on, steps, mistake).0.is_err());
        assert!(found.count() > 0, "{mistake:?} was not found");
    }
    let claiming = all.iter().filter(|(passes_on, steps)| play(*passes_on, steps, Mistake::None).1 > 0);
    assert!(claiming.count() > 1_000);
}

/// Everything that was published is claimed soon after the links are quiet, with any
/// `pass_through`.
#[test]
fn places_reach_the_ends_of_the_logs() {
    for bits in 0..512_u32 {
        let passes_on = std::array::from_fn(|bit| bits & (1 << bit) != 0);
        let mut world = World::new(passes_on, Mistake::None);
        for (from, to) in [(0, 1), (0, 2), (1, 2), (1, 0), (2, 0), (2, 1)] {
            world.connect(from, to);
        }
        for _ in 0..5 {
            (0..3).for_each(|instance| world.publish(instance));
            flow(&mut world);
        }
        for instance in 0..3 {
            let (_, places) = world.instances[instance].places.current();
            for other in (0..3).filter(|other| *other != instance) {
                assert_eq!(places[NAMES[other]].position.get(), 15, "{instance} of {other}: {passes_on:?}");
            }
        }
        assert_eq!(world.check(), Ok(()));
    }
}
