//! The events of a system, and the effect of each.

use quire_link::decide::{Here, PublishDecision, Published, RecordDecision, decide_publish, decide_record};

use crate::log::{Instances, Log, Message, Messages, Record};
use crate::rule::{Mistake, Numbers, Rule};
use crate::setup::Setup;
use crate::state::{Client, Connection, Link, LogNumbers, Mark, State};

/// The highest sequence that the first run can use, with [`Numbers::Fresh`].
const FIRST_RUN_MAX: u8 = 3;

/// An event. Instances are numbers from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Two instances make a connection.
    Connect(usize, usize),
    /// The connection is cut. The frames in flight are lost.
    Cut(usize, usize),
    /// An instance notices that the other one was killed.
    Drop(usize, usize),
    /// The first instance sends the next record of its log to the second one.
    Send(usize, usize),
    /// The second instance takes the oldest record in flight, and acknowledges it.
    Deliver(usize, usize),
    /// The second instance lacks a record that others follow, and asks the first one for all that
    /// it has.
    Ask(usize, usize),
    /// The server is killed and starts again.
    Crash(usize),
    /// The server is killed, and starts with this many records of its log.
    Restore(usize, u8),
    /// The instance is added.
    Join(usize),
    /// An operator lets clients in.
    Admit(usize),
    /// The client logs on to the instance, and sends the messages again that are not confirmed.
    LogOn(usize),
    /// The client publishes the next message.
    Publish,
    /// The client publishes the next message, and the instance refuses it.
    PublishRefused,
    /// The client gets a `persisted`, and the refusals of the messages up to it.
    Confirm,
    /// The client loses its connection.
    Leave,
    /// The program of the client is killed. The next run starts.
    NextRun,
}

impl State {
    /// The events that can happen.
    pub fn actions(&self, setup: &Setup, actions: &mut Vec<Action>) {
        self.protocol_actions(setup, actions);
        for number in self.members(setup).each() {
            let instance = &self.instances[number];
            if self.left.crashes > 0 {
                actions.push(Action::Crash(number));
            }
            if self.left.lost_disks > 0 && instance.log.size() > 0 {
                actions.push(Action::Restore(number, 0));
            }
            if self.left.backups > 0 {
                actions.extend((1..instance.log.size()).map(|size| Action::Restore(number, size)));
            }
            if self.left.admits > 0 && instance.is_filling && !instance.is_admitted {
                actions.push(Action::Admit(number));
            }
            if self.client.at.is_none() && !self.client.is_refused && self.lets_in(setup, number) {
                actions.push(Action::LogOn(number));
            }
        }
        if self.left.joins > 0 {
            actions.push(Action::Join(setup.instance_count - 1));
        }
        for (one, other) in setup.each_pair() {
            if self.left.cuts > 0 && self.connection(one, other) == Connection::Up {
                actions.push(Action::Cut(one, other));
            }
        }
        let client = &self.client;
        if let Some(at) = client.at {
            let published = client.last + 1 - self.runs[client.run].first;
            if !client.is_refused && published < setup.publishes[client.run] {
                actions.push(Action::Publish);
                if self.left.refusals > 0 {
                    actions.push(Action::PublishRefused);
                }
            }
            if self.confirmable(setup, at) > client.persisted {
                actions.push(Action::Confirm);
            }
            if self.left.moves > 0 {
                actions.push(Action::Leave);
            }
        }
        if self.left.next_runs > 0 && self.runs[0].first > 0 {
            actions.push(Action::NextRun);
        }
    }

    /// The events of connections, which do not need a client, a fault or an operator.
    pub fn protocol_actions(&self, setup: &Setup, actions: &mut Vec<Action>) {
        let members = self.members(setup);
        for (one, other) in setup.each_pair() {
            match self.connection(one, other) {
                Connection::Down if members.has(one) && members.has(other) => {
                    actions.push(Action::Connect(one, other));
                }
                Connection::Ended => actions.push(Action::Drop(one, other)),
                Connection::Down | Connection::Up => (),
            }
        }
        for (from, to) in setup.each_link() {
            let link = &self.links[from][to];
            if link.in_flight[0].is_some() {
                actions.push(Action::Deliver(from, to));
            }
            if self.connection(from, to) != Connection::Up {
                continue;
            }
            let log = &self.instances[from].log;
            if link.scanned < log.size() && link.in_flight_count() < setup.in_flight.max(1) {
                actions.push(Action::Send(from, to));
            }
            let is_idle = link.scanned == log.size() && link.in_flight[0].is_none();
            if setup.rule.is_copies() && is_idle && !link.has_asked && self.could_fill(from, to) {
                actions.push(Action::Ask(from, to));
            }
        }
    }

    /// Whether the first instance has a record for a hole of the second one.
    fn could_fill(&self, from: usize, to: usize) -> bool {
        let mut records = self.instances[from].log.records().iter();
        records.any(|record| self.has_hole(to, record.message.sequence))
    }

    /// The state after an event.
    #[must_use]
    pub fn after(&self, setup: &Setup, action: Action) -> State {
        let mut state = self.clone();
        state.apply(setup, action);
        state.settle(setup);
        state
    }

    fn apply(&mut self, setup: &Setup, action: Action) {
        match action {
            Action::Connect(one, other) => self.connect(setup, one, other),
            Action::Cut(one, other) => {
                self.left.cuts -= 1;
                self.disconnect(one, other);
            }
            Action::Drop(one, other) => self.disconnect(one, other),
            Action::Send(from, to) => {
                let link = &mut self.links[from][to];
                let record = self.instances[from].log.records()[usize::from(link.scanned)];
                link.scanned += 1;
                match setup.in_flight {
                    0 => self.deliver(setup, from, to, record),
                    _ => link.send(record),
                }
            }
            Action::Deliver(from, to) => {
                if let Some(record) = self.links[from][to].take() {
                    self.deliver(setup, from, to, record);
                }
            }
            Action::Ask(from, to) => {
                let link = &mut self.links[from][to];
                (link.scanned, link.greeted) = (0, self.instances[from].log.size());
                link.has_asked = true;
            }
            Action::Crash(number) => {
                self.left.crashes -= 1;
                self.kill(setup, number);
                if setup.rule.makes(Mistake::ForgetsFilling) {
                    self.instances[number].is_filling = false;
                }
            }
            Action::Restore(number, size) => self.restore(setup, number, size),
            Action::Join(number) => {
                self.left.joins -= 1;
                let members = self.members(setup).each();
                let all = members
                    .fold(Default::default(), |all, member| self.instances[member].log.messages().or(all));
                let instance = &mut self.instances[number];
                (instance.is_absent, instance.is_filling) = (false, setup.rule.is_copies());
                instance.due = all;
            }
            Action::Admit(number) => {
                self.left.admits -= 1;
                self.instances[number].is_admitted = true;
            }
            Action::LogOn(number) => self.log_on(setup, number),
            Action::Publish => {
                self.client.last += 1;
                let message = self.client.message(self.client.last);
                self.publish(setup, message);
            }
            Action::PublishRefused => {
                self.left.refusals -= 1;
                self.client.last += 1;
                self.client.refused.insert(self.client.message(self.client.last));
            }
            Action::Confirm => self.confirm(setup),
            Action::Leave => {
                self.left.moves -= 1;
                self.client.leave();
            }
            Action::NextRun => {
                self.left.next_runs -= 1;
                self.client = Client { run: 1, ..Client::default() };
            }
        }
    }

    /// Both links of a pair begin: from the begin of the log. An instance that is filled reports
    /// it.
    fn connect(&mut self, setup: &Setup, one: usize, other: usize) {
        *self.connection_mut(one, other) = Connection::Up;
        if setup.rule.is_copies() && !setup.notices_backups {
            self.find_lost_records(one, other);
            self.find_lost_records(other, one);
        }
        let (here, there) = (self.instances[one].known, self.instances[other].known);
        self.learn(one, there);
        self.learn(other, here);
        for (from, to) in [(one, other), (other, one)] {
            if setup.has_link(from, to) {
                let greeted = self.instances[from].log.size();
                self.links[from][to] = Link { greeted, ..Link::default() };
            }
        }
    }

    /// An instance gets the numbers of logs. Bytes of a log that does not exist any more are
    /// dropped first. Marks that were made before do not count.
    fn learn(&mut self, number: usize, numbers: LogNumbers) {
        for (other, log) in numbers.into_iter().enumerate() {
            if log <= self.instances[number].known[other] {
                continue;
            }
            self.instances[number].known[other] = log;
            self.instances[number].heard = Instances::default();
            if other != number && self.connection(number, other) == Connection::Ended {
                self.disconnect(number, other);
            }
        }
    }

    /// The other instance has records that this one had before its log became older.
    fn find_lost_records(&mut self, number: usize, other: usize) {
        let there = self.instances[other].log.messages();
        let instance = &mut self.instances[number];
        if instance.due.and(there) == Messages::default() {
            return;
        }
        instance.is_filling = true;
        if self.client.at == Some(number) {
            self.client.leave();
        }
    }

    fn disconnect(&mut self, one: usize, other: usize) {
        *self.connection_mut(one, other) = Connection::Down;
        self.links[one][other] = Link::default();
        self.links[other][one] = Link::default();
    }

    /// Connections and memory of the instance are lost. Another instance may still read the frames
    /// that the instance had sent to it.
    fn kill(&mut self, setup: &Setup, number: usize) {
        for other in (0..setup.instance_count).filter(|other| *other != number) {
            self.links[other][number] = Link::default();
            let in_flight = self.links[number][other].in_flight;
            self.links[number][other] = Link { in_flight, ..Link::default() };
            match self.connection(number, other) != Connection::Down && in_flight[0].is_some() {
                true => *self.connection_mut(number, other) = Connection::Ended,
                false => self.disconnect(number, other),
            }
        }
        let instance = &mut self.instances[number];
        (instance.heard, instance.marks) = (Instances::default(), Default::default());
        if self.client.at == Some(number) {
            self.client.leave();
        }
    }

    fn restore(&mut self, setup: &Setup, number: usize, size: u8) {
        match size {
            0 => self.left.lost_disks -= 1,
            _ => self.left.backups -= 1,
        }
        self.kill(setup, number);
        self.lost += 1;
        let instance = &mut self.instances[number];
        instance.due = instance.due.or(instance.log.messages());
        instance.log = instance.log.prefix(size);
        instance.is_filling = setup.rule.is_copies() && (size == 0 || setup.notices_backups);
        (instance.has_conflict, instance.rejected) = (false, Messages::default());
        instance.acknowledged = Messages::default();
        instance.is_admitted = false;
        let log = instance.known[number];
        instance.known = LogNumbers::default();
        instance.known[number] = log + 1;
    }

    /// Marks for the instance no longer count.
    fn forget_marks(&mut self, number: usize) {
        let marks = self.instances.iter_mut().flat_map(|other| &mut other.marks);
        marks.for_each(|of_origin| of_origin[number] = Mark::default());
        self.links.iter_mut().flatten().for_each(|link| link.marked[number] = Instances::default());
    }

    /// The instance takes a record of a link, and acknowledges it.
    fn deliver(&mut self, setup: &Setup, from: usize, to: usize, record: Record) {
        let message = record.message;
        let path = record.path.with(from);
        let rule = setup.rule;
        let instance = &mut self.instances[to];
        let new = Record { message, path, source: from as u8 + 1 };
        let here = instance.log.here(message.sequence);
        let is_passed_over = matches!(here, Here::Below { .. }) && self.passed.has(message);
        let drops_below = rule == Rule::HighestSequence || rule.makes(Mistake::DropsInsteadOfFilling);
        let ignores_run = rule == Rule::HighestSequence || rule.makes(Mistake::IgnoresTheRunOfARecord);
        match decide_record(here, u64::from(message.run)) {
            RecordDecision::Record if drops_below && matches!(here, Here::Below { .. }) => (),
            RecordDecision::Record if rule.makes(Mistake::CountsPassedOver) && is_passed_over => (),
            RecordDecision::Record => instance.log.append(new),
            RecordDecision::Reject if !ignores_run => {
                instance.has_conflict = true;
                if self.connection(from, to) == Connection::Up {
                    let source = &mut self.instances[from];
                    source.has_conflict = true;
                    source.rejected.insert(message);
                }
                return;
            }
            RecordDecision::Duplicate | RecordDecision::Compare | RecordDecision::Reject => (),
        }
        let instance = &mut self.instances[to];
        instance.acknowledged.insert(message);
    }

    /// A source gets the rejections of its destinations for messages that it has. It reports them
    /// to its own sources, and to its client when the message is from this client and is not
    /// confirmed.
    fn pass_rejections(&mut self, setup: &Setup) {
        let links = setup.each_link().collect::<Vec<_>>();
        let mut is_over = false;
        while !std::mem::replace(&mut is_over, true) {
            for (from, to) in &links {
                let source = &self.instances[*from];
                let rejected = self.instances[*to].rejected.and(source.log.messages());
                let is_new = rejected.without(source.rejected) != Messages::default();
                let is_passed = !setup.rule.makes(Mistake::KeepsRejections);
                if is_new && is_passed && self.connection(*from, *to) == Connection::Up {
                    let source = &mut self.instances[*from];
                    source.rejected = source.rejected.or(rejected);
                    source.has_conflict = true;
                    is_over = false;
                }
            }
        }
        if let Some(at) = self.client.at {
            let mut unconfirmed = self.client.persisted + 1..=self.client.last;
            let rejected = self.instances[at].rejected;
            self.client.is_refused |= unconfirmed.any(|sequence| rejected.has(self.client.message(sequence)));
        }
    }

    /// Whether the instance lets a client in.
    fn lets_in(&self, setup: &Setup, number: usize) -> bool {
        let instance = &self.instances[number];
        if setup.rule.is_copies() {
            return !instance.is_filling || instance.is_admitted;
        }
        // The sync destinations that are connected and send to it have sent their logs. The others
        // are waited for 5 s at most.
        let mut sync = setup.sync.without(number).each().filter(|other| setup.has_link(number, *other));
        sync.all(|other| {
            let link = &self.links[other][number];
            let is_up = self.connection(number, other) == Connection::Up && setup.has_link(other, number);
            !is_up || (link.scanned >= link.greeted && link.in_flight[0].is_none())
        })
    }

    fn log_on(&mut self, setup: &Setup, number: usize) {
        let instance = &self.instances[number];
        let older = instance.due.each().any(|message| instance.log.find(message.sequence).is_none());
        self.has_early_logon |= older && !instance.is_admitted && setup.notices_backups;
        let highest = instance.log.highest();
        self.client.at = Some(number);
        let run = &mut self.runs[self.client.run];
        if run.first == 0 || self.client.last < run.first {
            let is_fresh = self.client.run == 1 && setup.numbers == Numbers::Fresh;
            let last = if is_fresh { highest.max(FIRST_RUN_MAX) } else { highest };
            (run.told, run.first) = (highest, last + 1);
            (self.client.last, self.client.persisted) = (last, last);
            return;
        }
        // Another program has published under the name.
        if highest > self.client.last {
            self.client.is_refused = true;
            return;
        }
        for sequence in self.client.persisted + 1..=self.client.last {
            self.publish(setup, self.client.message(sequence));
        }
    }

    /// The instance takes a publish of its client.
    fn publish(&mut self, setup: &Setup, message: Message) {
        let Some(at) = self.client.at else { return };
        let rule = setup.rule;
        let instance = &mut self.instances[at];
        let here = instance.log.here(message.sequence);
        let is_rejected = instance.rejected.has(message);
        let published = Published { run: u64::from(message.run), is_rejected, is_gap: false };
        let ignores_run = rule.makes(Mistake::IgnoresTheRunOfAPublish) && matches!(here, Here::Record { .. });
        let is_passed = rule.makes(Mistake::ConfirmsInHoles) && matches!(here, Here::Below { .. });
        let is_passed_over = rule.makes(Mistake::CountsPassedOver)
            && matches!(here, Here::Below { .. })
            && self.passed.has(message);
        match decide_publish(here, published) {
            PublishDecision::Record if is_passed || is_passed_over => (),
            PublishDecision::Record => {
                instance.log.append(Record { message, ..Record::default() });
                self.pass(message);
            }
            // It is confirmed only when the log has it.
            PublishDecision::Duplicate => (),
            PublishDecision::Refuse => self.client.is_refused |= rule.is_copies() && !ignores_run,
        }
    }

    /// The message was recorded. Those before it that were refused on the connection are passed
    /// over.
    fn pass(&mut self, message: Message) {
        let mut before = message.sequence - 1;
        while before > 0 && self.client.refused.has(self.client.message(before)) {
            self.passed.insert(self.client.message(before));
            before -= 1;
        }
    }

    /// The sequence up to which the messages of the client can be confirmed, or are refused.
    pub fn confirmable(&self, setup: &Setup, at: usize) -> u8 {
        let client = &self.client;
        if client.is_refused {
            return client.persisted;
        }
        let mut reached = client.persisted;
        let is_answered = |message| client.refused.has(message) || self.is_safe(setup, at, message);
        while reached < client.last && is_answered(client.message(reached + 1)) {
            reached += 1;
        }
        reached
    }

    fn is_safe(&self, setup: &Setup, at: usize, message: Message) -> bool {
        let log = &self.instances[at].log;
        let counted = setup.counted(at).each();
        if setup.rule == Rule::HighestSequence {
            // A destination acknowledges everything that came to it, when its own destinations have
            // acknowledged it.
            let is_acknowledged = |from: usize, to: usize| {
                let link = &self.links[from][to];
                let is_up = self.connection(from, to) == Connection::Up;
                is_up && link.scanned == self.instances[from].log.size() && link.in_flight[0].is_none()
            };
            let mut links = setup.each_link().filter(|(from, to)| match setup.passes_through() {
                true => *to != at,
                false => *from == at && setup.counted(at).has(*to),
            });
            return message.sequence <= log.highest() && links.all(|(from, to)| is_acknowledged(from, to));
        }
        let has = |number: usize| {
            let instance = &self.instances[number];
            let log = &instance.log;
            let is_there = match setup.rule {
                Rule::Copies(Some(Mistake::IgnoresTheRunOfAPublish)) => log.find(message.sequence).is_some(),
                Rule::Copies(Some(Mistake::ConfirmsInHoles)) if number == at => {
                    message.sequence <= log.highest()
                }
                Rule::Copies(Some(Mistake::CountsPassedOver))
                    if self.passed.has(message) && message.sequence < log.highest() =>
                {
                    true
                }
                _ => log.has(message),
            };
            is_there || instance.acknowledged.has(message)
        };
        let having = counted.filter(|other| has(*other) && self.hears_of(setup, at, *other, has));
        has(at) && having.count() >= setup.required_of(at)
    }

    /// Whether the acknowledgements of another instance arrive here, over instances that have the
    /// message.
    fn hears_of(&self, setup: &Setup, at: usize, other: usize, has: impl Fn(usize) -> bool) -> bool {
        let mut from = at;
        while from != other {
            let next = if setup.has_link(from, other) { other } else { (from + 1) % setup.instance_count };
            if self.connection(from, next) != Connection::Up || !has(next) {
                return false;
            }
            from = next;
        }
        true
    }

    fn confirm(&mut self, setup: &Setup) {
        let Some(at) = self.client.at else { return };
        let reached = self.confirmable(setup, at);
        for sequence in self.client.persisted + 1..=reached {
            let message = self.client.message(sequence);
            if self.client.refused.has(message) {
                continue;
            }
            let is_here = self.instances[at].log.has(message);
            let having = setup.counted(at).each();
            let having = having.filter(|other| self.instances[*other].log.has(message));
            let is_there = having.count() >= setup.required_of(at);
            self.confirmed.insert(message);
            self.has_false_confirmation |= !(is_here && is_there);
        }
        self.client.persisted = reached;
    }

    /// Whether the source sends the record at the place of its log.
    fn is_sent(&self, setup: &Setup, from: usize, to: usize, place: u8, record: &Record) -> bool {
        let rule = setup.rule;
        let is_older = place < self.links[from][to].greeted;
        let has_passed = record.path.has(to);
        if !is_older && usize::from(record.source) == to + 1 {
            return false;
        }
        if has_passed || record.path == Instances::default() || setup.passes_through() {
            return true;
        }
        let is_copies = rule.is_copies();
        let is_filled = is_copies && (is_older || self.instances[to].is_filling);
        let has_returned = is_copies && record.path.has(from);
        (is_filled && !rule.makes(Mistake::FillsByPath))
            || (has_returned && !rule.makes(Mistake::KeepsReturnedRecords))
    }

    /// Does everything that follows at once: passes over records that are not sent, and passes on
    /// marks. Values that no longer matter become the same in every state.
    fn settle(&mut self, setup: &Setup) {
        self.pass_rejections(setup);
        loop {
            for (from, to) in setup.each_link() {
                self.pass_over(setup, from, to);
            }
            (0..setup.instance_count).for_each(|number| self.ask_for_marks(setup, number));
            let mut links = setup.each_link();
            if !links.any(|(from, to)| self.pass_marks(setup, from, to)) {
                break;
            }
        }
        for (from, to) in setup.each_link() {
            self.links[from][to].has_asked &= self.could_fill(from, to);
        }
        for number in 0..setup.instance_count {
            let others = (0..setup.instance_count).filter(|other| *other != number);
            let there =
                others.fold(Messages::default(), |all, other| all.or(self.instances[other].log.messages()));
            let instance = &mut self.instances[number];
            instance.due = instance.due.and(there);
            let messages = instance.log.messages();
            instance.had = instance.had.or(messages);
            instance.due = instance.due.without(messages);
            instance.acknowledged = instance.acknowledged.without(messages);
            if !instance.is_filling {
                instance.is_admitted = false;
                self.forget_marks(number);
            }
        }
        if usize::from(self.lost) > setup.disks_to_spare() {
            self.confirmed = self.confirmed.and(self.kept());
        }
        if self.lost > 0 && self.is_quiet(setup) && !self.instances.iter().any(|one| one.is_filling) {
            self.lost = 0;
        }
    }

    /// The messages that a log has.
    pub fn kept(&self) -> Messages {
        let logs = self.instances.iter().map(|instance| instance.log.messages());
        logs.fold(Messages::default(), Messages::or)
    }

    /// All instances are connected, and nothing is left to send.
    pub fn is_quiet(&self, setup: &Setup) -> bool {
        let mut actions = Vec::new();
        self.protocol_actions(setup, &mut actions);
        actions.is_empty()
    }

    fn pass_over(&mut self, setup: &Setup, from: usize, to: usize) {
        if self.connection(from, to) != Connection::Up {
            return;
        }
        let log: Log = self.instances[from].log;
        while let Some(record) = log.records().get(usize::from(self.links[from][to].scanned)) {
            let place = self.links[from][to].scanned;
            let is_there = self.instances[to].log.has(record.message);
            if !is_there && self.is_sent(setup, from, to, place, record) {
                break;
            }
            self.links[from][to].scanned += 1;
        }
    }

    /// An instance that is filled asks all that it can reach for a mark. An instance makes one
    /// unless it has made one that counts.
    fn ask_for_marks(&mut self, setup: &Setup, number: usize) {
        if !self.instances[number].is_filling {
            return;
        }
        let mut reached = Instances::one(number);
        loop {
            let is_next = |other: &usize| {
                let is_up = |near: usize| near != *other && self.connection(near, *other) == Connection::Up;
                !reached.has(*other) && reached.each().any(is_up)
            };
            let Some(other) = (0..setup.instance_count).find(is_next) else { return };
            reached = reached.with(other);
            let known = self.instances[number].known;
            self.learn(other, known);
            let instance = &mut self.instances[other];
            let mark = Mark { after: instance.log.size() + 1, numbers: instance.known };
            if !counts(setup.rule, instance.marks[other][number], known, number) {
                self.keep_mark(other, other, number, mark);
            }
        }
    }

    /// The mark is to be passed on to all destinations of the instance.
    fn keep_mark(&mut self, at: usize, origin: usize, of: usize, mark: Mark) {
        self.instances[at].marks[origin][of] = mark;
        for link in &mut self.links[at] {
            link.marked[of] = link.marked[of].without(origin);
        }
    }

    /// Passes on a mark that is due on the link. Returns whether there was one.
    fn pass_marks(&mut self, setup: &Setup, from: usize, to: usize) -> bool {
        let link = self.links[from][to];
        if self.connection(from, to) != Connection::Up || link.in_flight[0].is_some() {
            return false;
        }
        let marks = self.instances[from].marks;
        let all = 0..setup.instance_count;
        let mut due = all.clone().flat_map(|origin| all.clone().map(move |of| (origin, of)));
        let due = due.find(|(origin, of)| {
            let after = marks[*origin][*of].after;
            after > 0 && link.scanned + 1 >= after && !link.marked[*of].has(*origin)
        });
        let Some((origin, of)) = due else { return false };
        let mark = marks[origin][of];
        self.links[from][to].marked[of] = link.marked[of].with(origin);
        if of == to {
            self.hear(setup, to, origin, mark);
            return true;
        }
        let known = self.instances[to].marks[origin][of];
        let is_newer = known.after == 0 || known.numbers != mark.numbers;
        let is_whole = setup.passes_through() || setup.rule.makes(Mistake::RelaysOverPartialLinks);
        if origin != to && is_newer && is_whole {
            let after = self.instances[to].log.size() + 1;
            self.keep_mark(to, origin, of, Mark { after, ..mark });
        }
        true
    }

    /// An instance that is filled gets a mark.
    fn hear(&mut self, setup: &Setup, number: usize, origin: usize, mark: Mark) {
        let rule = setup.rule;
        if !self.instances[number].is_filling || !counts(rule, mark, self.instances[number].known, number) {
            return;
        }
        self.learn(number, mark.numbers);
        let others = self.members(setup).without(number);
        let instance = &mut self.instances[number];
        instance.heard = instance.heard.with(origin);
        if rule.makes(Mistake::SpeaksForOthers) {
            instance.heard = others;
        }
        if instance.heard.contains(others) || rule.makes(Mistake::LetsInAfterTheFirst) {
            (instance.is_filling, instance.heard) = (false, Instances::default());
        }
    }
}

/// Whether the mark was made with the knowledge of all logs that the instance with this number has.
fn counts(rule: Rule, mark: Mark, known: LogNumbers, number: usize) -> bool {
    let is_known = |other: usize| {
        let is_own = other == number;
        mark.numbers[other] >= known[other]
            || (is_own && rule.makes(Mistake::CountsOldMarks))
            || (!is_own && rule.makes(Mistake::CountsMarksOfOldSystems))
    };
    mark.after > 0 && (0..known.len()).all(is_known)
}
