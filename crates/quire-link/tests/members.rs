//! Several instances with links between them, of which some crash, lose their disks or start with
//! an old copy: clients are let in only when nothing older can still arrive, and in the end they
//! are let in everywhere.
//!
//! A log is a list of messages here. A connection is two queues. Everything between is the engine
//! ([`Members`]), with the marks of its links.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};
use quire_link::*;
use quire_types::Position;

/// The links of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Pair,
    Ring(usize),
    Mesh,
    /// The first instance sends to each other one what came from the rest.
    Hub,
    /// Each instance sends to its neighbors, in both directions.
    Chain,
}

/// A mistake. The network must find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// Marks are passed on over every link.
    RelaysOverPartialLinks,
    /// A link sends its marks before the records.
    MarksFirst,
    /// Nothing is saved but the number of the log.
    ForgetsFilling,
    /// Records that an older log had sent are still read.
    ReadsOlderLogs,
    /// A filling destination gets only what the path allows.
    FillsByPath,
}

impl Shape {
    fn count(self) -> usize {
        match self {
            Shape::Pair => 2,
            Shape::Ring(count) => count,
            Shape::Mesh => 3,
            Shape::Hub | Shape::Chain => 4,
        }
    }

    /// Whether the first instance sends to the second one.
    fn has_link(self, from: usize, to: usize) -> bool {
        from != to
            && match self {
                Shape::Pair | Shape::Mesh => true,
                Shape::Ring(count) => (from + 1) % count == to,
                Shape::Hub => from == 0 || to == 0,
                Shape::Chain => from.abs_diff(to) == 1,
            }
    }

    /// Whether it passes on what came from others.
    fn passes_on(self, from: usize) -> bool {
        match self {
            Shape::Pair | Shape::Mesh => false,
            Shape::Ring(_) | Shape::Chain => true,
            Shape::Hub => from == 0,
        }
    }
}

/// A message, and the instances that it passed.
#[derive(Clone, Debug)]
struct Message {
    number: usize,
    path: Vec<usize>,
}

/// What is on its way.
#[derive(Clone, Debug)]
enum Sent {
    Told(Vec<MemberInfo>),
    Mark(KeptMark, bool),
    Record(Message),
}

struct Node {
    log: Vec<Message>,
    members: Members,
    saved: SavedMembers,
    told: u64,
    /// Messages that it had before it lost them. They arrive before clients are let in, or never.
    due: BTreeSet<usize>,
}

impl Node {
    fn has(&self, message: usize) -> bool {
        self.log.iter().any(|known| known.number == message)
    }

    fn appended(&self) -> Position {
        Position::new(self.log.len() as u64)
    }
}

/// One direction of a connection.
#[derive(Default)]
struct Link {
    queue: VecDeque<Sent>,
    scanned: usize,
    greeted: usize,
    /// The marks that were sent.
    marked: BTreeMap<(String, String), (KeptMark, bool)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Up,
    /// The first instance of the two directions was killed; the second may read what came.
    Ended,
}

/// By how much clocks are set back. No process starts at a time at which it has started before.
const SET_BACK: u64 = 1_000_000;

struct Net {
    shape: Shape,
    mistake: Mistake,
    nodes: Vec<Node>,
    /// By source and destination, where there is a connection.
    links: BTreeMap<(usize, usize), (State, Link)>,
    message_count: usize,
    now_ns: u64,
    /// The instances whose clocks were set back.
    set_back: BTreeSet<usize>,
    /// An instance has heard of a later log with its name. It took it for that of another process.
    /// With a clock that was set back it can be wrong. Then a person must act.
    is_name_used_twice: bool,
}

fn name(number: usize) -> String {
    format!("i{number}")
}

fn number(name: &str) -> usize {
    name[1..].parse().unwrap()
}

impl Net {
    fn new(shape: Shape, mistake: Mistake) -> Self {
        let mut net = Net {
            shape,
            mistake,
            nodes: Vec::new(),
            links: BTreeMap::new(),
            message_count: 0,
            now_ns: 2 * SET_BACK,
            set_back: BTreeSet::new(),
            is_name_used_twice: false,
        };
        for number in 0..shape.count() {
            let members = net.members(number, SavedMembers::default(), Some("it is new"), 0);
            let saved = members.saved();
            net.nodes.push(Node { log: Vec::new(), members, saved, told: 0, due: BTreeSet::new() });
        }
        net
    }

    /// The engine of a process that starts.
    fn members(
        &mut self,
        number: usize,
        saved: SavedMembers,
        begins: Option<&'static str>,
        appended: usize,
    ) -> Members {
        self.now_ns += 1;
        let now_ns = self.clock(number);
        let named = (0..self.shape.count()).filter(|to| self.shape.has_link(number, *to));
        let own = MemberInfo {
            name: name(number),
            group: name(number),
            started_ns: now_ns,
            named: named.map(|to| NamedInstance::Destination(name(to))).collect(),
            ..MemberInfo::default()
        };
        let log = match begins {
            Some(_) => log_number(now_ns, saved.log),
            None => saved.log,
        };
        Members::new(own, SavedMembers { log, ..saved }, begins, Position::new(appended as u64))
    }

    /// The clock of an instance.
    fn clock(&self, number: usize) -> u64 {
        self.now_ns - if self.set_back.contains(&number) { SET_BACK } else { 0 }
    }

    fn is_up(&self, one: usize, other: usize) -> bool {
        self.links.get(&(one, other)).is_some_and(|(state, _)| *state == State::Up)
    }

    fn connect(&mut self, one: usize, other: usize) {
        if one == other || self.is_up(one, other) {
            return;
        }
        if !self.shape.has_link(one, other) && !self.shape.has_link(other, one) {
            return;
        }
        self.cut(one, other);
        for (from, to) in [(one, other), (other, one)] {
            let greeted = self.nodes[from].log.len();
            self.links.insert((from, to), (State::Up, Link { greeted, ..Link::default() }));
        }
        for (from, to) in [(one, other), (other, one)] {
            self.tell(from, to);
        }
        // The introductions are part of the handshake: a source does not look at its log before it
        // knows whether its destination is filling.
        for (from, to) in [(one, other), (other, one)] {
            self.deliver(from, to);
        }
        self.follow();
    }

    fn cut(&mut self, one: usize, other: usize) {
        self.links.remove(&(one, other));
        self.links.remove(&(other, one));
    }

    fn tell(&mut self, from: usize, to: usize) {
        let told = self.nodes[from].members.told().cloned().collect();
        if let Some((State::Up, link)) = self.links.get_mut(&(from, to)) {
            link.queue.push_back(Sent::Told(told));
        }
    }

    /// Carries out what the engines want.
    fn follow(&mut self) {
        for number in 0..self.nodes.len() {
            let sources = (0..self.nodes.len())
                .filter(|from| self.shape.has_link(*from, number) && self.is_up(*from, number));
            let sources = sources.map(name).collect();
            let node = &mut self.nodes[number];
            node.members.set_connected(sources, node.appended());
            let mut begins_again = false;
            while let Some(output) = self.nodes[number].members.poll_output() {
                match output {
                    MembersOutput::DropOlder { name, .. } => {
                        let other = self::number(&name);
                        let is_ended = self.links.get(&(other, number)).map(|(state, _)| *state);
                        if is_ended == Some(State::Ended) && self.mistake != Mistake::ReadsOlderLogs {
                            self.cut(number, other);
                        }
                    }
                    MembersOutput::BeginAgain => begins_again = true,
                    MembersOutput::Note(event) => {
                        self.is_name_used_twice |= event == MembersEvent::NameUsedTwice;
                    }
                }
            }
            if begins_again {
                (0..self.nodes.len()).for_each(|other| self.cut(number, other));
            }
            let node = &mut self.nodes[number];
            if node.members.version() != node.told {
                node.told = node.members.version();
                node.saved = node.members.saved();
                (0..self.nodes.len()).for_each(|to| self.tell(number, to));
            }
        }
    }

    /// The next record or mark of a link. Returns whether there was one.
    fn send(&mut self, from: usize, to: usize) -> bool {
        if !self.is_up(from, to) || !self.shape.has_link(from, to) {
            return false;
        }
        let is_filling = self.nodes[from].members.is_member_filling(&name(to));
        let before = self.nodes[from].members.groups_before(&name(to));
        let passes_on = self.shape.passes_on(from);
        let is_whole = before.is_some_and(|groups| groups.is_empty() || passes_on);
        let is_whole = is_whole || self.mistake == Mistake::RelaysOverPartialLinks;
        let node = &self.nodes[from];
        let Some((_, link)) = self.links.get_mut(&(from, to)) else { return false };
        for mark in node.members.marks() {
            let is_due = mark.after.get() as usize <= link.scanned || self.mistake == Mistake::MarksFirst;
            let key = (mark.origin.clone(), mark.of.clone());
            let sent = (mark.clone(), is_whole);
            if is_due && link.marked.get(&key) != Some(&sent) {
                link.queue.push_back(Sent::Mark(mark.clone(), is_whole));
                link.marked.insert(key, sent);
                return true;
            }
        }
        while let Some(record) = node.log.get(link.scanned) {
            let is_older = link.scanned < link.greeted;
            link.scanned += 1;
            let path = &record.path;
            if !is_older && path.last() == Some(&to) {
                continue;
            }
            let fills = is_filling && self.mistake != Mistake::FillsByPath;
            let by_path = path.is_empty() || path.contains(&from) || path.contains(&to) || passes_on;
            if fills || by_path {
                link.queue.push_back(Sent::Record(record.clone()));
                return true;
            }
        }
        false
    }

    /// The next frame of a connection arrives. Returns whether there was one.
    fn deliver(&mut self, from: usize, to: usize) -> bool {
        let Some((_, link)) = self.links.get_mut(&(from, to)) else { return false };
        let Some(sent) = link.queue.pop_front() else { return false };
        let now_ns = self.clock(to);
        let node = &mut self.nodes[to];
        match sent {
            Sent::Told(told) => {
                node.members.handle_told(now_ns, told, node.appended());
                node.members.handle_contact();
            }
            Sent::Mark(mark, is_whole) => {
                node.members.handle_mark(now_ns, mark, is_whole, node.appended());
            }
            Sent::Record(Message { number, mut path }) => {
                path.push(from);
                if !node.has(number) {
                    let is_late = node.due.contains(&number) && !node.members.is_filling();
                    assert!(!is_late, "instance {to} had lost message {number}, and let clients in before");
                    node.log.push(Message { number, path });
                }
            }
        }
        self.follow();
        true
    }

    fn publish(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        if node.members.holds_clients() {
            return;
        }
        let number = self.message_count;
        self.message_count += 1;
        node.log.push(Message { number, path: Vec::new() });
    }

    /// The process ends. Others may still read what it has sent.
    fn kill(&mut self, number: usize) {
        for other in 0..self.nodes.len() {
            self.links.remove(&(other, number));
            if let Some((state, link)) = self.links.get_mut(&(number, other)) {
                *state = State::Ended;
                if link.queue.is_empty() {
                    self.links.remove(&(number, other));
                }
            }
        }
    }

    fn crash(&mut self, number: usize) {
        self.kill(number);
        let mut saved = self.nodes[number].saved.clone();
        if self.mistake == Mistake::ForgetsFilling {
            saved.is_filling = false;
        }
        let appended = self.nodes[number].log.len();
        let members = self.members(number, saved, None, appended);
        let node = &mut self.nodes[number];
        (node.members, node.told) = (members, 0);
        self.follow();
    }

    /// The log ends after this many records, as an old copy does.
    fn restore(&mut self, number: usize, size: usize) {
        self.kill(number);
        let node = &mut self.nodes[number];
        node.due.extend(node.log.iter().map(|message| message.number));
        node.log.truncate(size);
        let size = node.log.len();
        let saved = if size == 0 { SavedMembers::default() } else { node.saved.clone() };
        let members = self.members(number, saved, Some("it is an older copy"), size);
        let node = &mut self.nodes[number];
        (node.saved, node.members, node.told) = (members.saved(), members, 0);
        self.follow();
    }

    fn step(&mut self, step: &Step) {
        let count = self.nodes.len();
        match *step {
            Step::Publish(at) => self.publish(at % count),
            Step::Connect(one, other) => self.connect(one % count, other % count),
            Step::Cut(one, other) => {
                self.cut(one % count, other % count);
                self.follow();
            }
            Step::Send(from, to) => {
                self.send(from % count, to % count);
            }
            Step::Deliver(from, to) => {
                self.deliver(from % count, to % count);
            }
            Step::Settle => self.settle(),
            Step::Crash(number) => self.crash(number % count),
            Step::LoseDisk(number) => self.restore(number % count, 0),
            Step::SetClockBack(number) => {
                self.set_back.insert(number % count);
            }
            Step::Backup(number, size) => self.restore(number % count, size),
        }
    }

    /// Everything that is connected sends and takes what it has.
    fn settle(&mut self) {
        let count = self.nodes.len();
        let pairs: Vec<_> = (0..count).flat_map(|from| (0..count).map(move |to| (from, to))).collect();
        for _ in 0..10_000 {
            let mut moved = false;
            for &(from, to) in &pairs {
                while self.send(from, to) {
                    moved = true;
                }
                while self.deliver(from, to) {
                    moved = true;
                }
            }
            if !moved {
                return;
            }
        }
        panic!("the instances never come to rest");
    }

    fn heal(&mut self) {
        // An instance that begins again is connected in the next round.
        for _ in 0..2 * self.nodes.len() {
            for one in 0..self.nodes.len() {
                for other in 0..one {
                    self.connect(one, other);
                }
            }
            self.settle();
        }
        if self.is_name_used_twice && !self.set_back.is_empty() {
            return;
        }
        let all: BTreeSet<_> =
            self.nodes.iter().flat_map(|node| node.log.iter().map(|message| message.number)).collect();
        for (number, node) in self.nodes.iter().enumerate() {
            assert!(
                !node.members.is_filling(),
                "instance {number} never heard of {:?}",
                node.members.not_heard()
            );
            let lacks: Vec<_> = all.iter().filter(|message| !node.has(**message)).collect();
            assert!(lacks.is_empty(), "instance {number} lacks {lacks:?}");
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Publish(usize),
    Connect(usize, usize),
    Cut(usize, usize),
    Send(usize, usize),
    Deliver(usize, usize),
    Settle,
    Crash(usize),
    LoseDisk(usize),
    Backup(usize, usize),
    SetClockBack(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let two = || (0..12_usize, 0..12_usize);
    prop_oneof![
        6 => (0..12_usize).prop_map(Step::Publish),
        8 => two().prop_map(|(one, other)| Step::Connect(one, other)),
        1 => two().prop_map(|(one, other)| Step::Cut(one, other)),
        10 => two().prop_map(|(from, to)| Step::Send(from, to)),
        10 => two().prop_map(|(from, to)| Step::Deliver(from, to)),
        1 => Just(Step::Settle),
        1 => (0..12_usize).prop_map(Step::Crash),
        1 => (0..12_usize).prop_map(Step::LoseDisk),
        1 => (0..12_usize, 1..4_usize).prop_map(|(number, size)| Step::Backup(number, size)),
        1 => (0..12_usize).prop_map(Step::SetClockBack),
    ]
}

fn shape() -> impl Strategy<Value = Shape> {
    prop_oneof![
        Just(Shape::Pair),
        Just(Shape::Ring(3)),
        Just(Shape::Ring(4)),
        Just(Shape::Mesh),
        Just(Shape::Hub),
        Just(Shape::Chain),
    ]
}

fn run(shape: Shape, mistake: Mistake, steps: &[Step]) {
    let mut net = Net::new(shape, mistake);
    steps.iter().for_each(|step| net.step(step));
    net.heal();
}

proptest! {
    #![proptest_config(Config { cases: 1_000, ..Config::default() })]

    #[test]
    fn clients_wait_for_older_messages_and_are_let_in_in_every_network(
        shape in shape(),
        steps in vec(step(), 0..150),
    ) {
        run(shape, Mistake::None, &steps);
    }
}

#[test]
fn the_network_finds_every_planted_mistake() {
    for mistake in [
        Mistake::RelaysOverPartialLinks,
        Mistake::MarksFirst,
        Mistake::ForgetsFilling,
        Mistake::ReadsOlderLogs,
        Mistake::FillsByPath,
    ] {
        let config =
            Config { cases: 20_000, max_shrink_iters: 0, failure_persistence: None, ..Config::default() };
        let mut runner = TestRunner::new_with_rng(
            config,
            proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
        );
        let result = runner.run(&(shape(), vec(step(), 50..200)), |(shape, steps)| {
            run(shape, mistake, &steps);
            Ok(())
        });
        assert!(matches!(result, Err(TestError::Fail(..))), "{mistake:?} was not found");
    }
}

/// An instance starts with an old copy of its log, and has no sign of it. Its first contact is a
/// new instance, which does not know the later log.
#[test]
fn an_older_copy_is_found_also_when_the_first_contact_does_not_know_the_later_log() {
    for shape in [Shape::Ring(3), Shape::Ring(4), Shape::Mesh] {
        let mut net = Net::new(shape, Mistake::None);
        net.heal();
        let older = net.nodes[1].saved.clone();
        net.restore(1, 0);
        net.heal();
        let later = net.nodes[1].members.log();
        net.restore(2, 0);
        net.kill(1);
        let members = net.members(1, older.clone(), None, 0);
        (net.nodes[1].saved, net.nodes[1].members, net.nodes[1].told) = (older, members, 0);
        net.follow();
        net.connect(1, 2);
        net.settle();
        net.heal();
        assert!(net.nodes[1].members.log() > later);
    }
}

/// A clock that was set back gives the new log an earlier number. The first contact is a new
/// instance, too.
#[test]
fn a_lost_disk_gets_a_later_number_although_the_clock_was_set_back() {
    for shape in [Shape::Ring(3), Shape::Ring(4), Shape::Mesh] {
        let mut net = Net::new(shape, Mistake::None);
        net.heal();
        let earlier = net.nodes[1].members.log();
        net.set_back.insert(1);
        net.restore(1, 0);
        net.restore(2, 0);
        net.connect(1, 2);
        net.settle();
        assert!(net.nodes[1].members.log() < earlier);
        net.heal();
        assert!(net.nodes[1].members.log() > earlier && !net.is_name_used_twice);
    }
}

/// Each of the two begins to fill at most once for each member.
#[test]
fn two_processes_with_one_name_do_not_begin_again_for_ever() {
    let mut net = Net::new(Shape::Mesh, Mistake::None);
    net.heal();
    let saved = net.nodes[1].saved.clone();
    let mut twins = [(); 2].map(|()| net.members(1, saved.clone(), Some("it is a copy"), 0));
    let mut begun = 0;
    for _ in 0..10 {
        for (one, other) in [(0, 1), (1, 0)] {
            let log = twins[one].log();
            let told = [MemberInfo { name: name(1), log, started_ns: 1, ..MemberInfo::default() }];
            net.now_ns += 1;
            twins[other].handle_contact();
            twins[other].handle_told(net.now_ns, told, Position::ZERO);
            while let Some(output) = twins[other].poll_output() {
                begun += usize::from(output == MembersOutput::BeginAgain);
            }
        }
    }
    assert!(begun <= 2 * 2, "{begun}");
}

#[test]
fn all_instances_of_a_new_set_let_clients_in_when_all_are_connected() {
    for shape in [Shape::Pair, Shape::Ring(4), Shape::Mesh, Shape::Hub, Shape::Chain] {
        let mut net = Net::new(shape, Mistake::None);
        assert!(net.nodes.iter().all(|node| node.members.holds_clients()));
        net.heal();
    }
}

/// A ring of three with some messages on all instances.
fn ring() -> Net {
    let mut net = Net::new(Shape::Ring(3), Mistake::None);
    net.heal();
    (0..9).for_each(|number| net.publish(number % 3));
    net.settle();
    net
}

#[test]
fn an_instance_of_a_ring_with_a_lost_disk_waits_for_its_source() {
    let mut net = ring();
    net.restore(0, 0);
    net.connect(0, 1);
    net.settle();
    // It was told by the second instance that there is a third one.
    let names: Vec<_> = net.nodes[0].members.not_heard().into_iter().map(|member| member.name).collect();
    assert!(net.nodes[0].members.holds_clients() && names.contains(&name(2)), "{names:?}");
    net.heal();
    assert_eq!(net.nodes[0].log.len(), 9);
}

#[test]
fn a_filling_instance_gets_the_records_of_a_third_one_that_lost_them_too() {
    let mut net = Net::new(Shape::Mesh, Mistake::None);
    net.heal();
    net.publish(2);
    net.settle();
    net.restore(2, 0);
    net.restore(1, 0);
    net.connect(0, 1);
    assert!(net.send(0, 1), "it passes on the message of the third instance");
    net.heal();
}

#[test]
fn an_operator_lets_clients_in_and_hears_who_was_not_heard() {
    let mut net = ring();
    net.restore(0, 0);
    net.connect(0, 1);
    net.settle();
    let not_heard = net.nodes[0].members.handle_admit();
    assert!(not_heard.iter().any(|member| member.name == name(1)), "{not_heard:?}");
    assert!(!net.nodes[0].members.holds_clients());
    net.follow();
    net.crash(0);
    assert!(net.nodes[0].members.is_admitted(), "a crash does not withdraw it");
    net.heal();
}

fn info(name: &str, log: u64, named: &[&str]) -> MemberInfo {
    let named = named.iter().map(|name| NamedInstance::Destination((*name).to_owned()));
    MemberInfo {
        name: name.into(),
        group: name.into(),
        started_ns: 1,
        log,
        named: named.collect(),
        ..MemberInfo::default()
    }
}

fn filling(named: &[&str]) -> Members {
    let saved = SavedMembers { log: 5, ..SavedMembers::default() };
    Members::new(info("a", 0, named), saved, Some("it is new"), Position::ZERO)
}

#[test]
fn a_member_that_cannot_send_to_this_instance_is_not_waited_for() {
    let mut members = filling(&["b"]);
    assert!(members.holds_clients(), "it is not known whether b sends");
    members.handle_told(9, [info("b", 1, &["c"]), info("c", 1, &[])], Position::ZERO);
    assert!(!members.is_filling());
    let mut members = filling(&["b"]);
    members.handle_told(9, [info("b", 1, &["c"]), info("c", 1, &["a"])], Position::ZERO);
    let names: Vec<_> = members.not_heard().into_iter().map(|member| member.name).collect();
    assert_eq!(names, ["b", "c"], "b sends over c");
}

/// Two instances that forget what the other one tells would tell it again without an end.
#[test]
fn an_instance_that_is_no_member_changes_nothing_that_is_told() {
    let mut members = filling(&["b"]);
    members.handle_told(9, [info("b", 1, &["a"])], Position::ZERO);
    let version = members.version();
    members.handle_told(9, [info("b", 1, &["a"]), info("x", 1, &[])], Position::ZERO);
    assert_eq!(members.version(), version);
}

#[test]
fn an_instance_without_members_is_complete_at_once() {
    let mut members = filling(&[]);
    assert!(!members.is_filling());
    assert_eq!(members.poll_output(), None);
}

#[test]
fn a_group_is_waited_for_until_one_of_its_instances_is_known() {
    let own = MemberInfo { named: vec![NamedInstance::Group("west".into())], ..info("a", 0, &[]) };
    let saved = SavedMembers { log: 5, ..SavedMembers::default() };
    let mut members = Members::new(own, saved, Some("it is new"), Position::ZERO);
    assert_eq!(members.not_heard(), [NotHeard { name: "west".into(), is_group: true, last: None }]);
    let west = MemberInfo { group: "west".into(), ..info("w", 1, &["a"]) };
    members.handle_told(9, [west], Position::ZERO);
    assert_eq!(members.not_heard(), [NotHeard { name: "w".into(), is_group: false, last: None }]);
}

#[test]
fn a_log_that_is_older_than_the_members_know_begins_to_fill_before_the_first_contact_only() {
    let complete = || {
        let saved = SavedMembers { log: 5, ..SavedMembers::default() };
        Members::new(info("a", 0, &["b"]), saved, None, Position::ZERO)
    };
    let mut members = complete();
    members.handle_told(3, [info("b", 1, &["a"]), info("a", 8, &["b"])], Position::ZERO);
    assert!(members.holds_clients());
    assert!(members.log() > 8);
    let mut members = complete();
    members.handle_contact();
    members.handle_told(3, [info("b", 1, &["a"]), info("a", 8, &["b"])], Position::ZERO);
    assert!(!members.is_filling());
    assert_eq!(members.poll_output(), Some(MembersOutput::Note(MembersEvent::NameUsedTwice)));
}
