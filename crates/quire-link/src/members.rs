//! The instances that replicate to each other, and whether this one may lack records that another
//! one has (docs/internals/copies.md, *States, and when clients are let in*).
//!
//! **What for.** An instance whose log is new, or has less than it had before, is *filling*. It
//! takes no clients until every member that can have records for it was heard. Otherwise a
//! publisher would continue above records that arrive later.
//!
//! **What it promises.** A filling instance counts a member as heard only after all records that
//! the member had arrived, over whichever links. It has no clock, no socket and no log.
//!
//! **What the caller must do.** Pass on what other instances say
//! ([`handle_told`](Members::handle_told), [`handle_mark`](Members::handle_mark)). Say which
//! members are connected ([`set_connected`](Members::set_connected)). Say when the log lacks a
//! record that a member has seen there ([`handle_lost_record`](Members::handle_lost_record)).
//! After each call, [`poll_output`](Members::poll_output) until it has nothing. When
//! [`version`](Members::version) has changed, save [`saved`](Members::saved), and send
//! [`told`](Members::told) on every connection. A source begins to look at its log when the
//! destination has introduced itself on the connection: a filling destination gets all records.
//! Each link sends the [`marks`](Members::marks) after the records before them.
//!
//! **How it works.** The members are the instances that the configuration here names, and those
//! that the configuration of a member names. Each log has a number. A log that lost records gets a
//! greater one. For each filling member, an instance makes a mark: everything in its log at that
//! time. The mark follows the records on every link. A mark counts only when its instance knew the
//! latest number of every log, because a log that was lost later may have left records there.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use quire_types::{Bookmark, Position};
use quire_wire::link::{Member, Named, SentAll};

/// The introduction of an instance. It came from there, or over another instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberInfo {
    /// Its name.
    pub name: String,
    /// Its group.
    pub group: String,
    /// When its process started, in nanoseconds since 1970; 0: it was not heard of yet.
    pub started_ns: u64,
    /// The number of its log; 0: not known.
    pub log: u64,
    /// Its log may lack records.
    pub is_filling: bool,
    /// The instances that its configuration names.
    pub named: Vec<NamedInstance>,
    /// The last message that is known to be in its log.
    pub last: Option<Bookmark>,
}

/// A name in the configuration of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamedInstance {
    /// A destination with this name.
    Destination(String),
    /// A destination: any instance of the group.
    Group(String),
    /// An instance to which it does not send.
    Instance(String),
}

impl MemberInfo {
    /// As a frame has it.
    pub fn as_frame(&self) -> Member<'_> {
        let named = self.named.iter().map(|named| match named {
            NamedInstance::Destination(name) => Named::Destination(name),
            NamedInstance::Group(name) => Named::Group(name),
            NamedInstance::Instance(name) => Named::Instance(name),
        });
        let MemberInfo { name, group, started_ns, log, is_filling, last, .. } = self;
        let (started_ns, log, is_filling, last) = (*started_ns, *log, *is_filling, *last);
        Member { name, group, started_ns, log, is_filling, named: named.collect(), last }
    }

    /// From a frame.
    pub fn of_frame(member: &Member<'_>) -> Self {
        let named = member.named.iter().map(|named| match *named {
            Named::Destination(name) => NamedInstance::Destination(name.to_owned()),
            Named::Group(name) => NamedInstance::Group(name.to_owned()),
            Named::Instance(name) => NamedInstance::Instance(name.to_owned()),
        });
        MemberInfo {
            name: member.name.to_owned(),
            group: member.group.to_owned(),
            started_ns: member.started_ns,
            log: member.log,
            is_filling: member.is_filling,
            named: named.collect(),
            last: member.last,
        }
    }

    /// The later one of two introductions has the greater rank. A process that is filling becomes
    /// complete, and gets another number before it is filling again.
    fn rank(&self) -> (u64, u64, bool) {
        (self.log, self.started_ns, !self.is_filling)
    }

    /// Whether it has introduced itself.
    fn is_known(&self) -> bool {
        self.started_ns > 0
    }

    fn sends_to(&self, name: &str, group: &str) -> bool {
        self.named.iter().any(|named| match named {
            NamedInstance::Destination(destination) => destination == name,
            NamedInstance::Group(destinations) => destinations == group,
            NamedInstance::Instance(_) => false,
        })
    }
}

/// The number of a log that begins now. `earlier`: the latest number of the instance that is known.
/// Numbers grow with the clock. When the clock was set back, the nanoseconds of the second keep two
/// logs from having one number: a mark for the older log would count for the newer one.
pub fn log_number(now_ns: u64, earlier: u64) -> u64 {
    if now_ns > earlier { now_ns } else { earlier.saturating_add(1 + now_ns % 1_000_000_000) }
}

/// The numbers of logs, by instance.
type LogNumbers = BTreeMap<String, u64>;

/// A mark that is passed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptMark {
    /// The instance that made it.
    pub origin: String,
    /// The instance that it is for, and the number of its log.
    pub of: String,
    /// The number of the log of that instance.
    pub log: u64,
    /// The logs that the origin knew.
    pub known: BTreeMap<String, u64>,
    /// A link sends it after it has looked at the log here up to this position.
    pub after: Position,
}

impl KeptMark {
    /// As a frame has it. `is_whole`: it goes over a link that sends everything which can be
    /// missing at the destination.
    pub fn as_frame(&self, is_whole: bool) -> SentAll<'_> {
        let known = self.known.iter().map(|(name, log)| (&**name, *log)).collect();
        SentAll { origin: &self.origin, of: &self.of, log: self.log, is_whole, known }
    }

    /// From a frame.
    pub fn of_frame(sent: &SentAll<'_>) -> Self {
        KeptMark {
            origin: sent.origin.to_owned(),
            of: sent.of.to_owned(),
            log: sent.log,
            known: sent.known.iter().map(|(name, log)| ((*name).to_owned(), *log)).collect(),
            after: Position::ZERO,
        }
    }

    /// A later mark of an instance for the same log has a greater rank: numbers only grow.
    pub fn rank(&self) -> (u64, u128) {
        (self.log, self.known.values().map(|log| u128::from(*log)).sum())
    }

    /// Whether it was made with the knowledge of all these logs.
    fn covers(&self, logs: &LogNumbers) -> bool {
        logs.iter().all(|(name, log)| self.known.get(name).is_some_and(|known| known >= log))
    }
}

/// The state that is kept over a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedMembers {
    /// The number of the log.
    pub log: u64,
    /// The log may lack records.
    pub is_filling: bool,
    /// An operator has let clients in.
    pub is_admitted: bool,
    /// The other instances.
    pub others: Vec<MemberInfo>,
}

/// A member that a filling instance waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotHeard {
    /// Its name, or the name of a group of which no instance is known.
    pub name: String,
    /// It is a group.
    pub is_group: bool,
    /// The last message that is known to be in its log.
    pub last: Option<Bookmark>,
}

/// A request to the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembersOutput {
    /// The instance has another log now. End the connections to the older one. Bytes from there
    /// that were not read are dropped.
    DropOlder {
        /// The instance.
        name: String,
        /// The number of its new log.
        log: u64,
    },
    /// The log here has another number: end all links, so that they begin again, and end the
    /// connections of clients.
    BeginAgain,
    /// Something happened.
    Note(MembersEvent),
}

/// An event that the log of the server shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembersEvent {
    /// The instance is filling.
    Filling {
        /// The reason.
        reason: &'static str,
    },
    /// All members were heard.
    Complete,
    /// Another instance uses the name of this one.
    NameUsedTwice,
}

/// The instances that replicate to each other. See the documentation of the module.
#[derive(Debug)]
pub struct Members {
    own: MemberInfo,
    /// When this process started. Others may be told a later time.
    process_started_ns: u64,
    is_admitted: bool,
    /// A link was open since the start, or since the log has its number.
    has_contact: bool,
    /// How often the log has got another number since the start of the process.
    begun_again: usize,
    is_name_reported: bool,
    others: BTreeMap<String, MemberInfo>,
    /// The sources that are connected.
    connected: BTreeSet<String>,
    /// By origin, and the instance that they are for.
    marks: BTreeMap<(String, String), KeptMark>,
    /// The members that have sent everything, while the log is filling.
    heard: BTreeSet<String>,
    version: u64,
    outputs: VecDeque<MembersOutput>,
}

impl Members {
    /// `own` has the name, the group, the start of the process, and the names in the configuration.
    /// The rest of its fields is in `saved`. `begins`: the reason why the log is filling from now
    /// on. `appended` is the end of the log.
    pub fn new(
        own: MemberInfo,
        saved: SavedMembers,
        begins: Option<&'static str>,
        appended: Position,
    ) -> Self {
        let SavedMembers { log, is_filling, is_admitted, others } = saved;
        let others = others.into_iter().map(|other| (other.name.clone(), other)).collect();
        let mut members = Members {
            process_started_ns: own.started_ns,
            own: MemberInfo { log, is_filling, ..own },
            is_admitted,
            has_contact: false,
            begun_again: 0,
            is_name_reported: false,
            others,
            connected: BTreeSet::new(),
            marks: BTreeMap::new(),
            heard: BTreeSet::new(),
            version: 1,
            outputs: VecDeque::new(),
        };
        members.own.is_filling |= begins.is_some();
        members.is_admitted &= begins.is_none();
        members.settle(appended);
        members.outputs.clear();
        if members.own.is_filling {
            let reason = begins.unwrap_or("it was filling when it stopped");
            members.note(MembersEvent::Filling { reason });
        }
        members
    }

    /// The next thing that the caller has to do.
    pub fn poll_output(&mut self) -> Option<MembersOutput> {
        self.outputs.pop_front()
    }

    /// Changes with everything that is saved or told to other instances.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The state to save.
    pub fn saved(&self) -> SavedMembers {
        SavedMembers {
            log: self.own.log,
            is_filling: self.own.is_filling,
            is_admitted: self.is_admitted,
            others: self.others.values().cloned().collect(),
        }
    }

    /// The news for other instances: about this one, and about those that introduced themselves.
    /// This one is the first.
    pub fn told(&self) -> impl Iterator<Item = &MemberInfo> {
        std::iter::once(&self.own).chain(self.others.values().filter(|other| other.is_known()))
    }

    /// The name of this instance.
    pub fn name(&self) -> &str {
        &self.own.name
    }

    /// The number of the log here.
    pub fn log(&self) -> u64 {
        self.own.log
    }

    /// Whether the log here may lack records.
    pub fn is_filling(&self) -> bool {
        self.own.is_filling
    }

    /// Whether an operator has let clients in although the log may lack records.
    pub fn is_admitted(&self) -> bool {
        self.own.is_filling && self.is_admitted
    }

    /// Whether clients are not let in.
    pub fn holds_clients(&self) -> bool {
        self.own.is_filling && !self.is_admitted
    }

    /// Whether the log of a member may lack records.
    pub fn is_member_filling(&self, name: &str) -> bool {
        self.others.get(name).is_some_and(|other| other.is_filling)
    }

    /// The latest number of the log of an instance; 0: not known.
    pub fn log_of(&self, name: &str) -> u64 {
        self.others.get(name).map_or(0, |other| other.log)
    }

    /// The members, and the sources that are connected.
    pub fn names(&self) -> BTreeSet<String> {
        self.closure(&self.connected)
    }

    /// The marks to pass on.
    pub fn marks(&self) -> impl Iterator<Item = &KeptMark> {
        self.marks.values()
    }

    /// The groups of the instances that send to this one, without `destination`. `None`: one of
    /// them is not known. A link to `destination` that passes on the messages of all these groups
    /// sends everything that is here and can be missing there.
    pub fn groups_before(&self, destination: &str) -> Option<Vec<&str>> {
        self.senders_before(destination).map(|senders| senders.into_iter().map(|(_, group)| group).collect())
    }

    /// The instances that send to this one, without `destination`, each with its group. `None`: one
    /// of the members is not known.
    pub fn senders_before(&self, destination: &str) -> Option<Vec<(&str, &str)>> {
        let mut senders = Vec::new();
        for name in self.names().into_iter().filter(|name| name != destination) {
            let other = self.others.get(&name).filter(|other| other.is_known())?;
            if other.sends_to(&self.own.name, &self.own.group) {
                senders.push((&*other.name, &*other.group));
            }
        }
        Some(senders)
    }

    /// The last message of a member that is known here.
    pub fn note_last(&mut self, name: &str, last: Option<Bookmark>) {
        if let Some(other) = self.others.get_mut(name) {
            other.last = last.or(other.last);
        }
    }

    /// A link to or from another instance is open.
    pub fn handle_contact(&mut self) {
        self.has_contact = true;
    }

    /// Whether [`set_connected`](Members::set_connected) was called with these instances.
    pub fn is_connected_to<'a>(&self, names: impl Iterator<Item = &'a str>) -> bool {
        let mut count = 0;
        let are_known = { names }.all(|name| {
            count += 1;
            self.connected.contains(name)
        });
        are_known && count == self.connected.len()
    }

    /// The instances that are connected as sources. `appended` is the end of the log.
    pub fn set_connected(&mut self, names: BTreeSet<String>, appended: Position) {
        if names != self.connected {
            let before = self.names();
            self.connected = names;
            // Other instances send their marks again: an origin may have become a member.
            self.version += u64::from(self.names() != before);
            self.settle(appended);
        }
    }

    /// An operator lets clients in. Returns the members that were not heard.
    pub fn handle_admit(&mut self) -> Vec<NotHeard> {
        let not_heard = self.not_heard();
        if self.holds_clients() {
            self.is_admitted = true;
            self.version += 1;
        }
        not_heard
    }

    /// Another instance says which ones it knows.
    pub fn handle_told(
        &mut self,
        now_ns: u64,
        told: impl IntoIterator<Item = MemberInfo>,
        appended: Position,
    ) {
        let before = (self.version, self.own.clone(), self.others.clone());
        for mut member in told {
            if member.name == self.own.name {
                self.look_at_own_number(now_ns, member.log);
                if (member.log, member.started_ns) > (self.own.log, self.own.started_ns) {
                    // The clock was set back between two starts.
                    self.own.started_ns = member.started_ns.saturating_add(1);
                    self.version += 1;
                }
                continue;
            }
            let known = self.others.get(&member.name);
            member.last = member.last.or(known.and_then(|known| known.last));
            match known.map(|known| (member.rank().cmp(&known.rank()), member.log > known.log)) {
                Some((std::cmp::Ordering::Greater, is_new_log)) => {
                    let (name, log) = (member.name.clone(), member.log);
                    self.others.insert(name.clone(), member);
                    self.version += 1;
                    if is_new_log {
                        self.forget_heard(name, log);
                    }
                }
                Some(_) => self.note_last(&member.name, member.last),
                None => {
                    self.others.insert(member.name.clone(), member);
                    self.version += 1;
                }
            }
        }
        self.settle(appended);
        // Strangers were told, and forgotten at once. The answer to that could make the other
        // instance tell its own strangers again, without an end.
        if (&self.own, &self.others) == (&before.1, &before.2) {
            self.version = before.0;
        }
    }

    /// A mark came, after all records before it were recorded. `is_whole`: it came over a link that
    /// sends everything which can be missing here. Only then it is passed on.
    pub fn handle_mark(&mut self, now_ns: u64, mark: KeptMark, is_whole: bool, appended: Position) {
        let members = self.names();
        for (instance, log) in &mark.known {
            if *instance == self.own.name {
                self.look_at_own_number(now_ns, *log);
            } else if members.contains(instance) && *log > self.log_of(instance) {
                let new = || MemberInfo { name: instance.clone(), ..MemberInfo::default() };
                let other = self.others.entry(instance.clone()).or_insert_with(new);
                // The rest comes with its introduction.
                (other.log, other.started_ns, other.is_filling) = (*log, 0, false);
                self.version += 1;
                self.forget_heard(instance.clone(), *log);
            }
        }
        let kept = KeptMark { after: appended, ..mark };
        if !members.contains(&kept.origin) {
            return self.settle(appended);
        }
        if kept.of == self.own.name {
            let counts = kept.log == self.own.log && kept.covers(&self.numbers());
            if self.own.is_filling && counts {
                self.heard.insert(kept.origin);
            }
        } else if is_whole && members.contains(&kept.of) {
            let key = (kept.origin.clone(), kept.of.clone());
            if self.marks.get(&key).is_none_or(|earlier| kept.rank() > earlier.rank()) {
                self.marks.insert(key, kept);
            }
        }
        self.settle(appended);
    }

    /// A member knows a record of the log here that the log lacks.
    pub fn handle_lost_record(&mut self, now_ns: u64) {
        self.begin_filling(
            now_ns,
            self.own.log,
            "another instance knows a record of this log that is no longer there",
        );
    }

    /// The members that a filling instance waits for.
    pub fn not_heard(&self) -> Vec<NotHeard> {
        if !self.own.is_filling {
            return Vec::new();
        }
        let members = self.closure(&self.connected);
        let senders = self.senders(&members);
        let missing = senders.into_iter().filter(|name| !self.heard.contains(*name));
        let missing = missing.map(|name| {
            let last = self.others.get(name).and_then(|other| other.last);
            NotHeard { name: name.to_owned(), is_group: false, last }
        });
        let groups = self.unknown_groups(&members).into_iter();
        missing.chain(groups.map(|name| NotHeard { name, is_group: true, last: None })).collect()
    }

    /// Another instance knows a log of this one with a later number. When it began before this
    /// process, the log here is an older copy. Otherwise another instance uses the name. A clock
    /// that was set back gives earlier logs later numbers: so the log here is also an older copy
    /// when nothing was heard before. A log that is filling loses nothing by another number, so it
    /// takes one: its first contact may have been an instance that did not know the later log. Each
    /// member can know one such log. Beyond this number, two instances with one name are at rest.
    fn look_at_own_number(&mut self, now_ns: u64, log: u64) {
        if log <= self.own.log {
            return;
        }
        let may_be_own = self.own.is_filling && self.begun_again < self.others.len();
        if log < self.process_started_ns || !self.has_contact || may_be_own {
            self.begin_filling(now_ns, log, "another instance knows a later log of this one");
        } else if !std::mem::replace(&mut self.is_name_reported, true) {
            self.note(MembersEvent::NameUsedTwice);
        }
    }

    fn begin_filling(&mut self, now_ns: u64, earlier: u64, reason: &'static str) {
        self.own.log = log_number(now_ns, earlier);
        (self.own.is_filling, self.is_admitted, self.has_contact) = (true, false, false);
        self.begun_again += 1;
        self.heard.clear();
        self.version += 1;
        self.note(MembersEvent::Filling { reason });
        self.outputs.push_back(MembersOutput::BeginAgain);
    }

    /// A member has another log. The older log may have left more records with other members
    /// after they were heard.
    fn forget_heard(&mut self, name: String, log: u64) {
        self.heard.clear();
        self.outputs.push_back(MembersOutput::DropOlder { name, log });
    }

    /// The numbers that a mark must cover: of this log and of the members. Sources that no
    /// configuration names are not known everywhere.
    fn numbers(&self) -> LogNumbers {
        let members = self.closure(&BTreeSet::new());
        let others = self.others.values().filter(|other| members.contains(&other.name));
        let others = others.map(|other| (other.name.clone(), other.log));
        others.chain([(self.own.name.clone(), self.own.log)]).collect()
    }

    /// The instances that are named here, by one of them, or that are in `first`.
    fn closure(&self, first: &BTreeSet<String>) -> BTreeSet<String> {
        let mut found: BTreeSet<String> = first.clone();
        let mut named: Vec<&NamedInstance> = self.own.named.iter().collect();
        named.extend(first.iter().filter_map(|name| self.others.get(name)).flat_map(|other| &other.named));
        while let Some(next) = named.pop() {
            let names: Vec<&String> = match next {
                NamedInstance::Destination(name) | NamedInstance::Instance(name) => vec![name],
                NamedInstance::Group(group) => {
                    let of_group = self.others.values().filter(|other| other.group == *group);
                    of_group.map(|other| &other.name).collect()
                }
            };
            for name in names.into_iter().filter(|name| **name != self.own.name) {
                if found.insert(name.clone()) {
                    named.extend(self.others.get(name).into_iter().flat_map(|other| &other.named));
                }
            }
        }
        found.remove(&self.own.name);
        found
    }

    /// The members whose records can come here: over links that are known, or from a member that is
    /// not known yet.
    fn senders<'a>(&self, members: &'a BTreeSet<String>) -> BTreeSet<&'a str> {
        let known = |name: &str| self.others.get(name).filter(|other| other.is_known());
        let mut reached = BTreeSet::new();
        loop {
            let is_next = |name: &&String| {
                let Some(other) = known(name) else { return true };
                let mut next =
                    reached.iter().map(|next: &&str| (*next, known(next).map_or("", |n| &n.group)));
                other.sends_to(&self.own.name, &self.own.group)
                    || next.any(|(name, group)| other.sends_to(name, group))
            };
            let mut rest = members.iter().filter(|name| !reached.contains(name.as_str()));
            let Some(next) = rest.find(is_next) else { return reached };
            reached.insert(next.as_str());
        }
    }

    /// The groups that are destinations, and of which no instance is known.
    fn unknown_groups(&self, members: &BTreeSet<String>) -> BTreeSet<String> {
        let others = members.iter().filter_map(|name| self.others.get(name));
        let named = others.chain([&self.own]).flat_map(|member| &member.named);
        let groups = named.filter_map(|named| match named {
            NamedInstance::Group(group) => Some(group),
            NamedInstance::Destination(_) | NamedInstance::Instance(_) => None,
        });
        let is_known = |group: &str| {
            let mut others = self.others.values().filter(|other| other.is_known());
            self.own.group == group || others.any(|other| other.group == group)
        };
        groups.filter(|group| !is_known(group)).cloned().collect()
    }

    /// Makes the marks that are due, and looks whether all members were heard.
    fn settle(&mut self, appended: Position) {
        let members = self.closure(&self.connected);
        let before = self.others.len();
        self.others.retain(|name, _| members.contains(name));
        self.version += u64::from(self.others.len() < before);
        let others = &self.others;
        self.marks.retain(|_, mark| {
            let of = others.get(&mark.of);
            of.is_none_or(|of| mark.log > of.log || (mark.log == of.log && (of.is_filling || !of.is_known())))
        });
        let numbers = self.all_numbers();
        let filling = self.others.values().filter(|other| other.is_filling && other.is_known());
        for of in filling {
            let key = (self.own.name.clone(), of.name.clone());
            let earlier = self.marks.get(&key);
            if earlier.is_some_and(|mark| mark.log == of.log && mark.covers(&numbers)) {
                continue;
            }
            let (origin, name) = key.clone();
            let known = numbers.clone();
            self.marks.insert(key, KeptMark { origin, of: name, log: of.log, known, after: appended });
        }
        if self.own.is_filling && self.not_heard().is_empty() {
            (self.own.is_filling, self.is_admitted) = (false, false);
            self.heard.clear();
            self.version += 1;
            self.note(MembersEvent::Complete);
        }
    }

    fn all_numbers(&self) -> LogNumbers {
        let others = self.others.values().map(|other| (other.name.clone(), other.log));
        others.chain([(self.own.name.clone(), self.own.log)]).collect()
    }

    fn note(&mut self, event: MembersEvent) {
        self.outputs.push_back(MembersOutput::Note(event));
    }
}
