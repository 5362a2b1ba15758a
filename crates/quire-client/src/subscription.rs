//! The subscriptions of a client: their options, and the position of each.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quire_types::Bookmark;

use super::command::CommandId;
use super::last_values::packed;
use super::message::Cause;
use super::resume_position::{Continuation, ranges_of, text_of};
use super::view::{Name, Shown, View};
use super::{Event, Failure, Instance, LastBookmarks, Message, Renewal, ResumePosition};
use quire_command::subscribe::{Family, Former, FormerLog, OptionError, OptionName, OptionSet, Request};
use quire_command::{
    Acks, Code, KEY_SIZE_MAX, Keys, MessageKind, OofReason, PlaceList, Subscribe, SubscribeOptions, Texts,
    put_key,
};
use quire_wire::Encode;

/// The options of a subscription.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubscriptionSpec {
    /// Exact, or a pattern.
    pub topic: String,
    /// Content filter.
    pub filter: Option<String>,
    /// Where replay begins; present makes it a bookmark subscription.
    pub bookmark: Option<String>,
    /// `live`, `fully_durable`, `paused`, …; never `replace`, which is an option of the command and
    /// not of the subscription.
    pub options: SubscribeOptions,
    /// Where it resumes instead, when it ran before: after the processed messages.
    pub resume_position: Option<ResumePosition>,
    /// For queues: the most messages outstanding; `None` = 1, 0 = barriers only.
    pub max_backlog: Option<u32>,
    /// Whether to report that the replay has caught up: [`super::Event::Completed`], once.
    pub completed: bool,
    /// The highest rate: `1000` messages or `500KB` per second, or `2X` the original rate.
    pub rate: Option<String>,
    /// For a multiple of the original rate: the longest wait for a message.
    pub rate_max_gap: Option<Duration>,
    /// At most one message per key in each interval of this length.
    pub conflation: Option<Duration>,
    /// The fields that are the key, separated by commas; `None` = the key in the last-value topic.
    pub conflation_key: Option<String>,
    /// The fields to deliver; `None` = whole messages.
    pub select: Option<String>,
    /// The query with which it begins, with the options `sow` and perhaps `oof`.
    pub records: Option<RecordsSpec>,
    /// Which leases of messages from queues the client renews. A replacement does not change it.
    pub renewal: Renewal,
}

/// The query with which a subscription to last-value topics begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordsSpec {
    /// What to sort the records by.
    pub order_by: Option<String>,
    /// The most records wanted.
    pub top_n: Option<u32>,
    /// The records to skip before them. Given: the server keeps the page up to date.
    pub skip_n: Option<u32>,
    /// Only the records and messages with these keys.
    pub keys: Option<Vec<String>>,
    /// Records of groups with these fields, instead of the records.
    pub projection: Option<Vec<String>>,
    /// The fields that make the groups.
    pub grouping: Option<Vec<String>>,
}

impl SubscriptionSpec {
    /// Checks whether the options go together.
    ///
    /// # Errors
    /// The rule that is broken.
    pub fn check(&self) -> Result<(), OptionError> {
        Request::of(&self.subscribe(&self.lists())).map(|_| ())
    }

    fn lists(&self) -> Lists {
        let records = self.records.as_ref();
        Lists {
            keys: records.and_then(|records| records.keys.as_deref()).map(keys_of),
            projection: records.and_then(|records| records.projection.as_deref()).map(packed),
            grouping: records.and_then(|records| records.grouping.as_deref()).map(packed),
        }
    }

    /// The command that begins the subscription, without its numbers. `lists` are [`Self::lists`].
    fn subscribe<'a>(&'a self, lists: &'a Lists) -> Subscribe<'a> {
        let ns = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let records = self.records.as_ref();
        Subscribe {
            topic: &self.topic,
            filter: self.filter.as_deref(),
            bookmark: self.bookmark.as_deref(),
            options: self.options,
            max_backlog: self.max_backlog,
            rate: self.rate.as_deref(),
            rate_max_gap_ns: self.rate_max_gap.map(ns),
            conflation_ns: self.conflation.map(ns),
            conflation_key: self.conflation_key.as_deref(),
            select: self.select.as_deref(),
            order_by: records.and_then(|records| records.order_by.as_deref()),
            top_n: records.and_then(|records| records.top_n),
            skip_n: records.and_then(|records| records.skip_n),
            keys: lists.keys.as_deref().and_then(Keys::from_bytes),
            projection: lists.projection.as_deref().and_then(Texts::from_bytes),
            grouping: lists.grouping.as_deref().and_then(Texts::from_bytes),
            ..Subscribe::default()
        }
    }
}

/// The lists of a subscription, as a command has them.
#[derive(Default)]
struct Lists {
    keys: Option<Vec<u8>>,
    projection: Option<Vec<u8>>,
    grouping: Option<Vec<u8>>,
}

#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    entries: BTreeMap<u32, SubscriptionEntry>,
    /// Queries that were not answered completely.
    queries: BTreeMap<u32, Asked>,
    /// Questions to the server whether lost records still exist.
    questions: BTreeMap<u32, Questioned>,
    last_number: u32,
    /// The last value of [`SubscriptionEntry::together`].
    last_group: u32,
    /// The name of the current instance.
    instance: Arc<str>,
}

/// A query that was not answered completely.
#[derive(Debug)]
struct Asked {
    /// The queue or topic.
    topic: Arc<str>,
    command: CommandId,
}

/// A question that was not answered completely.
#[derive(Debug)]
struct Questioned {
    /// The subscription that lost the records.
    subscription: u32,
    command: CommandId,
}

#[derive(Debug)]
struct SubscriptionEntry {
    spec: SubscriptionSpec,
    /// After the last message received, or the last resume position of the server. A bookmark
    /// subscription resumes here after a reconnect.
    resume_position: ResumePosition,
    /// It resumed by a list, or from a store. Repeated messages are dropped for good: the instance
    /// may get messages from another one that the subscription received there, also long after the
    /// replay has caught up.
    catches_up: bool,
    /// How often it was given a new bookmark.
    generation: u16,
    /// The server accepted it at least once.
    accepted: bool,
    /// The backlog that the queues gave it, by the server's last answer.
    granted: u32,
    /// It had a backlog once. Messages of queues may still arrive for it, also after a replacement.
    is_of_queue: bool,
    /// See [`Subscriptions::retire`].
    is_retired: bool,
    /// See [`Subscriptions::is_bookmark_missing`].
    is_bookmark_missing: bool,
    /// The driver has no room for its messages, and the server holds them.
    is_held: bool,
    /// The same for subscriptions that were resumed with one command: they share a replay. A
    /// connection enters them again paused, and then resumes them with one command.
    together: Option<u32>,
    /// The last message that the program was given.
    given: Option<Bookmark>,
    /// It is resumed with others when the connection has entered all of them.
    awaits_resume: bool,
    /// The queue that delivers its messages, if the messages do not name it.
    queue: Option<Arc<str>>,
    /// The records that it has, when it begins with a query. A subscription with a bookmark has
    /// none when it follows the log.
    view: Option<View>,
    /// The result of its query was received whole.
    has_records: bool,
}

impl Subscriptions {
    pub fn add(&mut self, spec: SubscriptionSpec) -> u32 {
        let number = self.next_number();
        let resume_position = spec.resume_position.clone().unwrap_or_else(|| ResumePosition {
            start: spec.bookmark.as_deref().map(Arc::from),
            ..ResumePosition::default()
        });
        // It is unknown on which instance a stored position was taken, so any of its messages may
        // arrive a second time.
        let catches_up = resume_position.last.is_some();
        let view = spec.records.is_some().then(View::default);
        let entry = SubscriptionEntry {
            spec,
            view,
            has_records: false,
            resume_position,
            catches_up,
            generation: 0,
            accepted: false,
            granted: 0,
            is_of_queue: false,
            is_retired: false,
            is_bookmark_missing: false,
            is_held: false,
            together: None,
            given: None,
            awaits_resume: false,
            queue: None,
        };
        self.entries.insert(number, entry);
        number
    }

    /// A new number for the answers to a query.
    pub fn add_query(&mut self) -> u32 {
        self.next_number()
    }

    /// The query with this number was asked with a command.
    pub fn asked(&mut self, number: u32, topic: &str, command: CommandId) {
        self.queries.insert(number, Asked { topic: topic.into(), command });
    }

    /// Removes the queries that were not answered completely, because the connection is lost.
    pub fn take_queries(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.queries).into_keys().collect()
    }

    /// The query of a command that was not answered completely.
    pub fn query_of(&self, command: CommandId) -> Option<u32> {
        self.queries.iter().find(|(_, asked)| asked.command == command).map(|(number, _)| *number)
    }

    /// The client logged on to an instance. Subscriptions that were on another instance resume by a
    /// list.
    pub fn reach_instance(&mut self, name: &Arc<str>) {
        self.instance = name.clone();
        for entry in self.entries.values_mut() {
            entry.catches_up |= is_elsewhere(&entry.resume_position, name);
        }
    }

    /// The server accepted the subscription.
    pub fn accepted(&mut self, number: u32) {
        if let Some(entry) = self.entries.get_mut(&number) {
            entry.accepted = true;
        }
    }

    /// The server accepted a replacement.
    pub fn replaced(&mut self, number: u32, mut spec: SubscriptionSpec) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        entry.accepted = true;
        if spec.bookmark.is_some() {
            let start = spec.bookmark.as_deref().map(Arc::from);
            entry.resume_position = ResumePosition { start, ..ResumePosition::default() };
            entry.given = None;
            entry.catches_up = false;
            entry.generation = entry.generation.wrapping_add(1);
            entry.view = None;
            entry.together = None;
        } else {
            spec.bookmark = entry.spec.bookmark.take();
        }
        // It stays paused if it was.
        let paused = entry.spec.options.0 & SubscribeOptions::PAUSED.0;
        spec.options = spec.options.and(SubscribeOptions(paused));
        spec.renewal = entry.spec.renewal;
        entry.spec = spec;
        entry.queue = None;
    }

    pub fn remove(&mut self, number: u32) -> bool {
        self.entries.remove(&number).is_some() || self.queries.remove(&number).is_some()
    }

    pub fn clear(&mut self) -> Vec<u32> {
        self.questions.clear();
        let queries = std::mem::take(&mut self.queries).into_keys();
        std::mem::take(&mut self.entries).into_keys().chain(queries).collect()
    }

    /// Checks whether a subscription can be replaced.
    ///
    /// # Errors
    /// [`Code::UnknownSubscription`], and [`Code::BadOption`] for options that do not go together.
    pub fn check_replacement(&self, number: u32, replacement: &Replacement<'_>) -> Result<(), Failure> {
        let Replacement { spec, after_bookmark } = *replacement;
        let SubscriptionEntry { spec: former, .. } =
            self.entries.get(&number).ok_or_else(|| unknown(number))?;
        let lists = spec.lists();
        let mut subscribe = spec.subscribe(&lists);
        let has_bookmark = former.bookmark.is_some() || after_bookmark;
        let log = has_bookmark.then(|| FormerLog {
            is_paused: former.options.has(SubscribeOptions::PAUSED),
            // For a waiting replacement, the server has the end.
            has_end: OptionSet::from(&former.subscribe(&Lists::default())).has(OptionName::Until)
                && !after_bookmark,
        });
        let (mut family, mut is_page) = (
            Family::of(former.options),
            former.records.as_ref().is_some_and(|records| records.skip_n.is_some()),
        );
        if log.is_some() {
            // The records of an earlier state are not asked for again.
            (family, is_page) = (Family::Subscribe, false);
            let options = SubscribeOptions(subscribe.options.0 & !SubscribeOptions::SOW.0);
            subscribe = Subscribe { options, order_by: None, top_n: None, skip_n: None, ..subscribe };
        }
        let is_aggregated = former.records.as_ref().is_some_and(|records| records.projection.is_some());
        let former = Former { family, is_page, is_aggregated, log };
        Request::replacing(&subscribe, &former).map(|_| ()).map_err(|error| bad_option(&error))
    }

    /// Changes the pause that the user wants. Returns the subscriptions for which a command is
    /// sent. A held one is not resumed. `gives_bookmark`: whether a replacement of the subscription
    /// that waits gives it a bookmark.
    pub fn set_paused(
        &mut self,
        numbers: &[u32],
        paused: bool,
        gives_bookmark: impl Fn(u32) -> bool,
    ) -> Result<Vec<u32>, Failure> {
        if numbers.is_empty() {
            return Err(Failure::new(Code::BadOption, "no subscription is named"));
        }
        for number in numbers {
            let SubscriptionEntry { spec, .. } = self.entry(*number)?;
            let has_bookmark = spec.bookmark.is_some() || gives_bookmark(*number);
            if !has_bookmark || spec.options.has(SubscribeOptions::LIVE) {
                return Err(unpausable(*number));
            }
        }
        self.last_group = self.last_group.wrapping_add(1);
        let group = self.last_group;
        for number in numbers {
            let SubscriptionEntry { spec: SubscriptionSpec { options, .. }, together, .. } =
                self.entry(*number)?;
            let was_paused = options.has(SubscribeOptions::PAUSED);
            let without = SubscribeOptions(options.0 & !SubscribeOptions::PAUSED.0);
            *options = if paused { without.and(SubscribeOptions::PAUSED) } else { without };
            match (was_paused, paused) {
                (_, true) => *together = None,
                (true, false) => *together = Some(group),
                (false, false) => (),
            }
        }
        let is_told = |number: &u32| paused || !self.entries.get(number).is_some_and(|entry| entry.is_held);
        Ok(numbers.iter().copied().filter(is_told).collect())
    }

    /// A command that paused or resumed these subscriptions is answered, or its connection is lost.
    /// If a subscription cannot be paused in its current form, the pause is taken back: an earlier
    /// replacement can have another outcome than expected.
    ///
    /// # Errors
    /// [`Code::BadOption`] for the first such subscription.
    pub fn settle_pause(&mut self, numbers: impl Iterator<Item = u32>) -> Result<(), Failure> {
        let mut result = Ok(());
        for number in numbers {
            let Some(SubscriptionEntry { spec, together, .. }) = self.entries.get_mut(&number) else {
                continue;
            };
            if spec.bookmark.is_none() || spec.options.has(SubscribeOptions::LIVE) {
                spec.options = SubscribeOptions(spec.options.0 & !SubscribeOptions::PAUSED.0);
                *together = None;
                result = result.and(Err(unpausable(number)));
            }
        }
        result
    }

    /// The driver has no room for some subscriptions, or has room again. Returns those for which
    /// commands are sent, for each command a list. Subscriptions that share a replay leave it, and
    /// continue in it, with one command. The user has paused the others.
    pub fn set_held(&mut self, numbers: &[u32], is_held: bool) -> Vec<Vec<u32>> {
        let mut alone = Vec::new();
        let mut groups: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for number in numbers {
            let Some(entry) = self.entries.get_mut(number) else { continue };
            let was_held = std::mem::replace(&mut entry.is_held, is_held);
            if was_held == is_held || entry.spec.options.has(SubscribeOptions::PAUSED) {
                continue;
            }
            match entry.together {
                Some(group) => groups.entry(group).or_default().push(*number),
                None => alone.push(vec![*number]),
            }
        }
        alone.into_iter().chain(groups.into_values()).collect()
    }

    /// The subscriptions that share a replay with this one, with itself, in the order of their
    /// numbers.
    pub fn companions(&self, number: u32) -> Vec<u32> {
        let together = self.entries.get(&number).and_then(|entry| entry.together);
        let companions = self
            .entries
            .iter()
            .filter(|(other, entry)| **other == number || (together.is_some() && entry.together == together));
        companions.map(|(other, _)| *other).collect()
    }

    /// A new connection enters the subscriptions. Returns the lists of those that it then resumes
    /// together.
    pub fn begin_connection(&mut self) -> Vec<Vec<u32>> {
        let mut groups: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (number, entry) in &mut self.entries {
            entry.awaits_resume = false;
            if let Some(group) = entry.together.filter(|_| !entry.is_held) {
                groups.entry(group).or_default().push(*number);
            }
        }
        let groups: Vec<Vec<u32>> = groups.into_values().filter(|numbers| numbers.len() > 1).collect();
        for number in groups.iter().flatten() {
            if let Some(entry) = self.entries.get_mut(number) {
                entry.awaits_resume = true;
            }
        }
        groups
    }

    /// The program takes no more answers to a query. Returns whether it was not answered
    /// completely.
    pub fn forget_query(&mut self, number: u32) -> bool {
        self.queries.remove(&number).is_some()
    }

    pub fn contains(&self, number: u32) -> bool {
        self.entries.contains_key(&number)
            || self.queries.contains_key(&number)
            || self.questions.contains_key(&number)
    }

    pub fn spec(&self, number: u32) -> Option<&SubscriptionSpec> {
        self.entries.get(&number).map(|entry| &entry.spec)
    }

    pub fn generation(&self, number: u32) -> u16 {
        self.entries.get(&number).map_or(0, |entry| entry.generation)
    }

    pub fn resume_position(&self, number: u32) -> Option<&ResumePosition> {
        self.entries.get(&number).map(|entry| &entry.resume_position)
    }

    /// Which leases of the subscription, or of the answers to the query, the client renews, and
    /// whether it releases all messages. `None`: there is no such subscription any more.
    pub fn custody(&self, number: u32) -> Option<(Renewal, bool)> {
        let custody = self.entries.get(&number).map(|entry| (entry.spec.renewal, entry.is_retired));
        custody.or_else(|| self.queries.contains_key(&number).then_some((Renewal::Never, false)))
    }

    /// The program takes no more messages of the subscription. Messages that arrive later are
    /// released.
    pub fn retire(&mut self, number: u32) -> Result<SubscriptionSpec, Failure> {
        let entry = self.entry(number)?;
        entry.is_retired = true;
        entry.spec.renewal = Renewal::Never;
        // A new connection enters it without a backlog.
        entry.spec.max_backlog = Some(0);
        Ok(entry.spec.clone())
    }

    /// The name of the queue that delivers the messages of this subscription.
    pub fn queue(&mut self, number: u32) -> Option<&Arc<str>> {
        if let Some(asked) = self.queries.get(&number) {
            return Some(&asked.topic);
        }
        let SubscriptionEntry { queue, spec, .. } = self.entries.get_mut(&number)?;
        Some(queue.get_or_insert_with(|| spec.topic.as_str().into()))
    }

    /// The server has begun or changed it. `detail` is the number of messages of queues that it may
    /// have outstanding. For a bookmark subscription it shows whether its bookmark is missing.
    /// `replacement` is the subscription that the server has accepted.
    pub fn entered(
        &mut self,
        number: u32,
        replacement: Option<&SubscriptionSpec>,
        detail: u32,
    ) -> Option<Event> {
        let entry = self.entries.get_mut(&number)?;
        let spec = replacement.unwrap_or(&entry.spec);
        if spec.bookmark.is_none() && entry.spec.bookmark.is_none() {
            entry.granted = detail;
            entry.is_of_queue |= detail > 0;
            return None;
        }
        let (is_missing, has_no_place) = (detail & 1 != 0, detail & 2 != 0);
        // A replacement with another bookmark begins again.
        let begins_anew = replacement.is_some_and(|spec| spec.bookmark.is_some());
        entry.is_bookmark_missing = is_missing || (entry.is_bookmark_missing && !begins_anew);
        if is_missing && !is_elsewhere(&entry.resume_position, &self.instance) {
            // The instance has another log than before. The sequences of its publishers may begin
            // again.
            entry.catches_up = false;
            entry.resume_position.publishers = LastBookmarks::default();
        }
        let topic = || spec.topic.clone();
        if has_no_place && !is_missing {
            let start = entry.resume_position.start.as_deref();
            return Some(Event::PlaceMissing { topic: topic(), begins_again: start == Some("0") });
        }
        is_missing.then(|| Event::BookmarkMissing {
            topic: topic(),
            begins_now: spec.options.has(SubscribeOptions::NOT_FOUND_NOW),
        })
    }

    /// The server has a note about it.
    pub fn note(&self, number: u32, replacement: Option<&SubscriptionSpec>, text: &str) -> Option<Event> {
        let entry = self.entries.get(&number)?;
        let topic = replacement.unwrap_or(&entry.spec).topic.clone();
        Some(Event::SubscriptionNote { topic, text: text.to_owned() })
    }

    /// None of its bookmarks was in the log when it began, or when it continued after a reconnect.
    pub fn is_bookmark_missing(&self, number: u32) -> bool {
        self.entries.get(&number).is_some_and(|entry| entry.is_bookmark_missing)
    }

    /// Whether messages of queues may still arrive for it.
    pub fn is_of_queue(&self, number: u32) -> bool {
        self.entries.get(&number).is_some_and(|entry| entry.is_of_queue)
    }

    /// The most messages of queues that it may have outstanding.
    pub fn backlog(&self, number: u32) -> u32 {
        self.entries.get(&number).map_or(1, |entry| entry.granted)
    }

    /// Consecutive messages of a subscription, a query or a question. Removes the messages that it
    /// had received before. Returns the number of the subscription or query that they are for.
    pub fn received(&mut self, number: u32, messages: &mut Vec<Message>, instance: &Instance) -> u32 {
        let owner = self.questions.get(&number).map(|question| question.subscription);
        let Some(entry) = self.entries.get_mut(&owner.unwrap_or(number)) else {
            messages.iter_mut().for_each(|message| message.set_cause(Cause::Query));
            return number;
        };
        if let Some(view) = &mut entry.view {
            match owner {
                Some(owner) => messages.retain_mut(|message| {
                    message.set_subscription(owner);
                    message.set_cause(Cause::Left(OofReason::Match));
                    view.exists(message.source_topic(), message.key())
                }),
                None => messages.retain_mut(|message| is_news(view, message)),
            }
            if entry.spec.bookmark.is_none() {
                return owner.unwrap_or(number);
            }
        }
        if entry.spec.bookmark.is_none() {
            return number;
        }
        messages.iter_mut().for_each(|message| message.set_origin(instance.number, entry.generation));
        let last = messages.iter().rev().find_map(Message::bookmark);
        let received = ranges_of(messages.iter().filter_map(Message::bookmark));
        if entry.catches_up {
            let had = &entry.resume_position.publishers;
            messages.retain(|message| message.bookmark().is_none_or(|bookmark| !had.has(bookmark)));
        }
        entry.given = messages.iter().rev().find_map(Message::bookmark).or(entry.given);
        if entry.spec.options.has(SubscribeOptions::DELETIONS) {
            let received = std::mem::take(messages);
            received.into_iter().for_each(|message| message.add_each_deleted(messages));
        }
        if let Some(last) = last {
            entry.resume_position.reach(last, &instance.name, &received);
            entry.follow_log();
        }
        number
    }

    /// The server sent a resume position for a subscription.
    pub fn told(&mut self, number: u32, resume_position: Bookmark, instance: &Instance) {
        if let Some(entry) = self.entries.get_mut(&number) {
            entry.resume_position.reach(resume_position, &instance.name, &[]);
            entry.follow_log();
        }
    }

    /// The server sent places for a subscription. Everything up to them was received.
    pub fn told_places(&mut self, number: u32, told: PlaceList<'_>) -> Option<Event> {
        let entry = self.entries.get_mut(&number)?;
        entry.resume_position.note_places(told.iter());
        let places = Arc::new(entry.resume_position.places.clone()?);
        let (after, generation) = (entry.given, entry.generation);
        Some(Event::Places { subscription: number, after, generation, places })
    }

    /// The replay has caught up: this is not asked for again. Or a query is answered, and is
    /// removed.
    pub fn completed(&mut self, number: u32) -> CaughtUp {
        if self.queries.remove(&number).is_some() {
            return CaughtUp::Query;
        }
        if self.questions.contains_key(&number) {
            return CaughtUp::Question;
        }
        let Some(entry) = self.entries.get_mut(&number) else { return CaughtUp::Again };
        if let Some(view) = &mut entry.view {
            view.complete(entry.spec.options.has(SubscribeOptions::OOF));
            entry.has_records = true;
            return CaughtUp::Records;
        }
        if std::mem::take(&mut entry.spec.completed) { CaughtUp::Requested } else { CaughtUp::Again }
    }

    /// The connection is lost: the queries of these subscriptions will be repeated.
    pub fn outdate(&mut self) -> Vec<u32> {
        self.questions.clear();
        let viewing = self.entries.iter_mut().filter(|(_, entry)| entry.accepted);
        let restart = |(number, entry): (&u32, &mut SubscriptionEntry)| {
            entry.view.as_mut()?.restart();
            Some(*number)
        };
        viewing.filter_map(restart).collect()
    }

    /// The next question about records that a subscription has lost; `None` when there is none.
    pub fn question(&mut self, subscription: u32) -> Option<Question> {
        let number = self.next_number();
        let SubscriptionEntry { view, spec, .. } = self.entries.get_mut(&subscription)?;
        let mut keys = Vec::new();
        view.as_mut()?.question()?.iter().for_each(|(_, key)| put_key(&mut keys, key));
        let (topic, select) = (spec.topic.clone(), spec.select.clone());
        Some(Question { number, topic, select, keys })
    }

    /// A question of a subscription was asked with a command.
    pub fn questioned(&mut self, number: u32, subscription: u32, command: CommandId) {
        self.questions.insert(number, Questioned { subscription, command });
    }

    /// The question that was asked with a command.
    pub fn question_of(&self, command: CommandId) -> Option<u32> {
        self.questions.iter().find(|(_, question)| question.command == command).map(|(number, _)| *number)
    }

    /// A question was answered or refused. Returns the messages about the records that the server
    /// no longer has.
    pub fn question_answered(&mut self, number: u32) -> Option<(u32, Vec<Message>)> {
        let Questioned { subscription, .. } = self.questions.remove(&number)?;
        let view = self.entries.get_mut(&subscription)?.view.as_mut()?;
        let gone = view.answered();
        let message = |(topic, key): &Name| {
            Message::alone(&quire_command::Message {
                subscription,
                topic,
                key,
                kind: MessageKind::Oof(OofReason::Deleted),
                ..quire_command::Message::default()
            })
        };
        Some((subscription, gone.iter().filter_map(message).collect()))
    }

    /// Numbers of the subscriptions that a new connection must enter.
    pub fn accepted_numbers(&self) -> impl Iterator<Item = u32> {
        self.entries.iter().filter(|(_, entry)| entry.accepted).map(|(number, _)| *number)
    }

    /// Encodes the command that enters a subscription at its place, or replaces it by
    /// `replacement`.
    pub fn encode(
        &self,
        number: u32,
        command: u32,
        replacement: Option<&Replacement<'_>>,
        out: &mut Vec<u8>,
    ) {
        let Some(entry) = self.entries.get(&number) else { return };
        let replace = replacement.is_some();
        let spec = replacement.map_or(&entry.spec, |replacement| replacement.spec);
        let has_bookmark = entry.spec.bookmark.is_some()
            || replacement.is_some_and(|replacement| replacement.after_bookmark);
        let bookmark = spec.bookmark.as_deref().filter(|_| !replace);
        let resume = bookmark.map(|bookmark| resumed(&entry.resume_position, bookmark, &self.instance));
        let Continuation { bookmark: resume, place } = resume.unwrap_or_default();
        // The records of an earlier state are not asked for again when messages after it have
        // arrived, nor by a replacement.
        let is_of_log = replace && entry.spec.bookmark.is_some();
        let records = spec.records.as_ref().filter(|_| entry.view.is_some() && !is_of_log);
        let options = match records {
            Some(_) => spec.options,
            None => SubscribeOptions(spec.options.0 & !SubscribeOptions::SOW.0),
        };
        let options = match (replace, entry.is_held || entry.awaits_resume) {
            (true, _) => options.and(SubscribeOptions::REPLACE),
            (false, true) => options.and(SubscribeOptions::PAUSED),
            (false, false) => options,
        };
        let mut acks = Acks::PROCESSED;
        // With a replacement, the server sends only the difference of the results.
        if spec.completed || entry.catches_up || (records.is_some() && !replace) {
            acks = acks.and(Acks::COMPLETED);
        }
        if spec.bookmark.is_some() || (replace && has_bookmark) {
            acks = acks.and(Acks::PERSISTED);
        }
        // A subscription that was accepted follows every change. When its query is repeated, the
        // records beyond the first ones count, too. A page follows only its records.
        let skip_n = records.and_then(|records| records.skip_n);
        let top_n = records.and_then(|records| records.top_n).filter(|_| !entry.accepted || skip_n.is_some());
        // After a bookmark they also apply to the messages of the log.
        let is_keyed = records.is_some() || has_bookmark || spec.bookmark.is_some();
        let lists = spec.lists();
        let begun = spec.subscribe(&lists);
        let subscribe = Subscribe {
            command,
            acks,
            subscription: number,
            bookmark: resume.as_deref().or(spec.bookmark.as_deref()),
            options,
            order_by: begun.order_by.filter(|_| records.is_some()),
            top_n,
            skip_n,
            keys: begun.keys.filter(|_| is_keyed),
            takes_places: spec.bookmark.is_some(),
            place,
            ..begun
        };
        quire_command::Command::Subscribe(subscribe).encode(out);
    }

    fn next_number(&mut self) -> u32 {
        loop {
            self.last_number = self.last_number.wrapping_add(1).max(1);
            if !self.contains(self.last_number) {
                return self.last_number;
            }
        }
    }

    fn entry(&mut self, number: u32) -> Result<&mut SubscriptionEntry, Failure> {
        self.entries.get_mut(&number).ok_or_else(|| unknown(number))
    }
}

/// The failure for options that do not go together.
pub(super) fn bad_option(error: &OptionError) -> Failure {
    Failure::new(Code::BadOption, error.to_string())
}

fn unpausable(number: u32) -> Failure {
    let reason = format!("subscription {number} cannot be paused: it is live, or has no bookmark");
    Failure::new(Code::BadOption, reason)
}

fn unknown(number: u32) -> Failure {
    Failure::new(Code::UnknownSubscription, format!("no subscription has the number {number}"))
}

impl SubscriptionEntry {
    /// It has a position in the log after its records, and resumes there without them.
    fn follow_log(&mut self) {
        if self.has_records && self.spec.bookmark.is_some() {
            self.view = None;
        }
    }
}

/// The cause of a `completed` acknowledgement.
pub(super) enum CaughtUp {
    /// The user asked for it. It is reported once.
    Requested,
    /// A re-entry. It is not reported.
    Again,
    /// A query. It ends with the acknowledgement.
    Query,
    /// The result of the query of a subscription.
    Records,
    /// A question about records that a subscription has lost.
    Question,
}

/// A replacement of a subscription, on its way to the server.
pub(super) struct Replacement<'a> {
    pub spec: &'a SubscriptionSpec,
    /// An earlier replacement gives the subscription a bookmark. The server refuses that for a
    /// subscription with records.
    pub after_bookmark: bool,
}

/// A question whether records still exist.
pub(super) struct Question {
    pub number: u32,
    /// The topic of the subscription, and its select list.
    pub topic: String,
    pub select: Option<String>,
    /// As [`put_key`] writes them.
    pub keys: Vec<u8>,
}

/// Whether the program receives a message of a subscription to records. The record of a repeated
/// result becomes the change that it is.
fn is_news(view: &mut View, message: &mut Message) -> bool {
    let (topic, key) = (message.source_topic(), message.key());
    // The topic keeps no last values.
    if key.is_empty() {
        return true;
    }
    match message.cause() {
        Cause::Publish | Cause::Delta => {
            let is_known = view.published(topic, key, message.record_hash());
            // With a bookmark it is a message of the log, which the program receives also when its
            // data is the same.
            return !is_known || message.bookmark().is_some();
        }
        // The server counts a record that `top_n` has left out.
        Cause::Left(_) => return view.left(topic, key),
        // A subscription to records gets none.
        Cause::Delete => return true,
        Cause::Query => match view.record(topic, key, message.record_hash()) {
            Some(Shown::Record) => (),
            Some(Shown::Change) => message.set_cause(Cause::Publish),
            None => return false,
        },
    }
    true
}

/// The keys as a command has them. No record has a key that cannot be in a command.
pub(super) fn keys_of<T: AsRef<[u8]>>(keys: &[T]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let possible = |key: &&[u8]| (1..=KEY_SIZE_MAX).contains(&key.len());
    keys.iter().map(AsRef::as_ref).filter(possible).for_each(|key| put_key(&mut bytes, key));
    bytes
}

/// Whether a position is not exact on the instance.
fn is_elsewhere(resume_position: &ResumePosition, instance: &str) -> bool {
    resume_position.last.is_some() && *resume_position.instance != *instance
}

/// The bookmark with which to continue from the resume position on `instance`; `None` = the
/// bookmark that was requested at first. A range keeps its end, and has no list. On another
/// instance it begins again, and repeated messages are dropped.
fn resumed(resume_position: &ResumePosition, bookmark: &str, instance: &str) -> Continuation {
    match bookmark.trim_start().strip_prefix(['[', '(']).and_then(|range| range.split_once(':')) {
        Some((_, end)) => {
            let last = resume_position.last.filter(|_| *resume_position.instance == *instance);
            let bookmark = last.map(|last| format!("({}:{end}", text_of(last)));
            Continuation { bookmark, place: None }
        }
        None => resume_position.continue_on(instance),
    }
}
