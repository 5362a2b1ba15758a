//! Combined replays: bookmark subscriptions that are resumed with one command share a replay
//! (docs/replay.md, *Pause and resume*). Lost connections, restarts, holds and replacements do not
//! separate them.
//!
//! Checked:
//! - The messages of one replay come in the order of the log across its subscriptions, over all
//!   connections.
//! - Together they do not exceed their rate.
//! - Each subscription sees exactly what the log has for it: see [`super::auditor`].

use quire_client::{ClientCore, CommandId, Event, SubscriptionSpec};
use quire_command::SubscribeOptions;
use quire_types::time::{Instant, Now};

use super::auditor::{Auditor, Start, StreamId, Value, Want, value_of};
use super::{Canary, SECOND_NS};
use crate::random::Random;

/// The messages of a second in which the server was late are sent faster than the rate, for so long
/// at most (docs/replay.md, *Rate*).
const COMPENSATED_NS: u64 = SECOND_NS / 5;

/// Number of a combined replay.
pub(super) type ReplayId = usize;

/// The messages of every combined replay.
#[derive(Default)]
pub(super) struct Ledger {
    replays: Vec<Replay>,
    fault: Option<String>,
}

struct Replay {
    reader: String,
    /// Messages in a second.
    rate: Option<u64>,
    got: Vec<Value>,
    /// When the rate began on the present connection.
    since: Instant,
    /// Messages since then, and how often a subscription could begin again, each time with a
    /// message at once.
    count: u64,
    begin_count: u64,
}

impl Ledger {
    fn begin(&mut self, reader: &str, rate: Option<u64>, since: Instant) -> ReplayId {
        let reader = reader.to_owned();
        self.replays.push(Replay { reader, rate, got: Vec::new(), since, count: 0, begin_count: 1 });
        self.replays.len() - 1
    }

    fn connected(&mut self, replay: ReplayId, now: Instant) {
        let replay = &mut self.replays[replay];
        (replay.since, replay.count, replay.begin_count) = (now, 0, 1);
    }

    fn begins_again(&mut self, replay: ReplayId) {
        self.replays[replay].begin_count += 1;
    }

    fn received(&mut self, replay: ReplayId, value: Value, now: Instant) {
        let Replay { reader, rate, got, since, count, begin_count } = &mut self.replays[replay];
        got.push(value);
        *count += 1;
        let Some(rate) = *rate else { return };
        let elapsed_ns = now.as_ns() - since.as_ns() + COMPENSATED_NS;
        // Above a thousand in a second, those of a millisecond come together.
        let most = elapsed_ns * rate / SECOND_NS + *begin_count * (1 + rate / 1_000);
        if *count > most {
            let fault = format!("{count} messages of a replay of {reader} came, its rate allows {most}");
            self.fault.get_or_insert(fault);
        }
    }

    /// # Errors
    /// What was promised and did not hold. `log`: the places of the messages in the log.
    pub fn verdict(&self, places: &[Option<usize>]) -> Result<(), String> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        for Replay { reader, got, .. } in &self.replays {
            let is_before = |pair: &&[Value]| places[pair[1] as usize] < places[pair[0] as usize];
            if let Some(pair) = got.windows(2).find(is_before) {
                return Err(format!("a replay of {reader} has message {} after {}", pair[1], pair[0]));
            }
        }
        Ok(())
    }

    /// Messages of combined replays.
    pub fn count(&self) -> u64 {
        self.replays.iter().map(|replay| replay.got.len() as u64).sum()
    }
}

/// The program of a client with a few such subscriptions.
pub(super) struct Program {
    random: Random,
    members: Vec<Member>,
    rate: Option<u64>,
    canary: Option<Canary>,
}

struct Member {
    want: Want,
    /// Another text of its filter that means the same.
    is_replaced: bool,
    /// The replacement that is not answered. The program waits for it, as a caller does.
    replacing: Option<CommandId>,
    stream: Option<StreamId>,
    /// Where the next subscription begins, of a process that keeps its bookmarks.
    resume: Option<String>,
    subscription: Option<u32>,
    entering: Option<CommandId>,
    is_paused: bool,
    is_held: bool,
    /// The replay in which the order of the log is promised for it.
    replay: Option<ReplayId>,
    /// The same when the command is answered. Earlier messages are of an earlier replay.
    resuming: Option<(CommandId, ReplayId)>,
}

impl Program {
    pub fn new(mut random: Random, canary: Option<Canary>) -> Self {
        let members = (0..2 + random.below(3)).map(|_| Member::new(Want::draw(&mut random))).collect();
        let rate = [None, None, Some(500), Some(2_000)][random.below(4) as usize];
        Program { random, members, rate, canary }
    }

    /// The process is killed and started again. Sometimes it has kept its bookmarks.
    pub fn restart(&mut self, core: &ClientCore, auditor: &mut Auditor) {
        let keeps_bookmarks = self.random.percent(50);
        for member in &mut self.members {
            let last = member.subscription.and_then(|subscription| core.last_received(subscription));
            // One that had not begun again yet keeps the bookmark of the process before.
            let last = last.map(|bookmark| bookmark.to_string()).or(member.resume.take());
            member.resume = last.filter(|_| keeps_bookmarks);
            if member.resume.is_none() {
                member.give_up(auditor);
            }
            if let Some(stream) = member.stream {
                auditor.reconnected(stream);
            }
            member.leave();
        }
    }

    pub fn connected(&self, now: Instant, auditor: &mut Auditor) {
        for member in &self.members {
            if let Some(stream) = member.stream {
                auditor.reconnected(stream);
            }
            if let Some(replay) = member.replay {
                auditor.replays.connected(replay, now);
            }
        }
    }

    pub fn act(
        &mut self,
        name: &str,
        core: &mut ClientCore,
        now: Now,
        auditor: &mut Auditor,
        is_settling: bool,
    ) {
        for member in &mut self.members {
            if member.subscription.is_none() {
                member.subscribe(name, self.rate, core, auditor);
            }
        }
        let is_entered = |member: &Member| member.subscription.is_some() && member.entering.is_none();
        if !self.members.iter().all(is_entered) {
            return;
        }
        if is_settling {
            self.let_go(core, auditor);
            self.resume(u64::MAX, name, core, now, auditor);
            return;
        }
        let is_begun = !self.members.iter().all(|member| member.is_paused);
        let mask = self.random.below(1 << self.members.len());
        match self.random.below(200) {
            _ if !is_begun => self.resume(u64::MAX, name, core, now, auditor),
            0..2 => self.pause(mask, core),
            2..8 => self.resume(mask, name, core, now, auditor),
            8..10 => self.hold(core),
            10..16 => self.let_go(core, auditor),
            16..18 => self.replace(core, auditor),
            _ => (),
        }
    }

    /// Resumes the paused ones of the mask with one command.
    fn resume(&mut self, mask: u64, name: &str, core: &mut ClientCore, now: Now, auditor: &mut Auditor) {
        let is_chosen = |(index, member): &(usize, &mut Member)| mask & (1 << index) != 0 && member.is_paused;
        let chosen = self.members.iter_mut().enumerate().filter(is_chosen);
        let mut chosen: Vec<&mut Member> = chosen.map(|(_, member)| member).collect();
        let numbers: Vec<u32> = chosen.iter().filter_map(|member| member.subscription).collect();
        if numbers.is_empty() {
            return;
        }
        let is_apart = self.canary == Some(Canary::SeparateReplays);
        let lists = numbers.chunks(if is_apart { 1 } else { numbers.len() });
        let commands: Result<Vec<CommandId>, _> = lists.map(|list| core.set_paused(list, false)).collect();
        let Ok(commands) = commands else { return };
        let replay = auditor.replays.begin(name, self.rate, now.instant);
        for (index, member) in chosen.iter_mut().enumerate() {
            member.is_paused = false;
            let command = commands[index.min(commands.len() - 1)];
            // One that is held alone follows when it is let go.
            member.resuming = (!member.is_held).then_some((command, replay));
        }
    }

    fn pause(&mut self, mask: u64, core: &mut ClientCore) {
        let chosen = self.members.iter_mut().enumerate().filter(|(index, _)| mask & (1 << index) != 0);
        let mut chosen: Vec<&mut Member> = chosen.map(|(_, member)| member).collect();
        let numbers: Vec<u32> = chosen.iter().filter_map(|member| member.subscription).collect();
        if core.set_paused(&numbers, true).is_ok() {
            for member in &mut chosen {
                (member.is_paused, member.replay, member.resuming) = (true, None, None);
            }
        }
    }

    /// The driver has no room for a subscription, or for all that share its replay.
    fn hold(&mut self, core: &mut ClientCore) {
        let chosen = self.random.below(self.members.len() as u64) as usize;
        let Some(number) = self.members[chosen].subscription else { return };
        let numbers = if self.random.percent(50) { core.companions(number) } else { vec![number] };
        if numbers.len() == 1 {
            let member = &mut self.members[chosen];
            (member.replay, member.resuming) = (None, None);
        }
        core.set_held(&numbers, true);
        for member in &mut self.members {
            member.is_held |= member.subscription.is_some_and(|number| numbers.contains(&number));
        }
    }

    fn let_go(&mut self, core: &mut ClientCore, auditor: &mut Auditor) {
        if self.members.iter().any(|member| member.is_held) {
            let numbers: Vec<u32> = self.members.iter().filter_map(|member| member.subscription).collect();
            core.set_held(&numbers, false);
            for member in &mut self.members {
                member.is_held = false;
                member.begins_again(auditor);
            }
        }
    }

    fn replace(&mut self, core: &mut ClientCore, auditor: &mut Auditor) {
        let chosen = self.random.below(self.members.len() as u64) as usize;
        let member = &mut self.members[chosen];
        let Some(number) = member.subscription.filter(|_| member.replacing.is_none()) else { return };
        let Some(spec) = core.subscription(number).cloned() else { return };
        let filter = member.filter(!member.is_replaced);
        let options = SubscribeOptions::default();
        let spec = SubscriptionSpec { bookmark: None, filter, options, ..spec };
        if let Ok(command) = core.replace(number, spec) {
            member.replacing = Some(command);
            member.is_replaced ^= true;
            member.begins_again(auditor);
        }
    }

    pub fn take(&mut self, event: Event, now: Now, auditor: &mut Auditor) {
        match event {
            Event::Messages { subscription, messages } => {
                let Some(member) = self.member_of(subscription) else { return };
                for message in &messages {
                    if let Some(stream) = member.stream {
                        auditor.received(stream, message);
                    }
                    if let (Some(replay), Some(value)) = (member.replay, value_of(message.data())) {
                        auditor.replays.received(replay, value, now.instant);
                    }
                }
            }
            Event::Answered { command, result } => {
                for member in &mut self.members {
                    member.replacing.take_if(|replacing| *replacing == command);
                    if let Some((_, replay)) = member.resuming.take_if(|(resuming, _)| *resuming == command) {
                        member.replay = Some(replay);
                    }
                }
                let Some(member) = self.members.iter_mut().find(|member| member.entering == Some(command))
                else {
                    return;
                };
                member.entering = None;
                match (result, member.stream) {
                    (Ok(()), Some(stream)) => auditor.accepted(stream),
                    _ => {
                        member.give_up(auditor);
                        member.leave();
                    }
                }
            }
            Event::Ended { subscription, .. } => {
                if let Some(member) = self.member_of(subscription) {
                    member.give_up(auditor);
                    member.leave();
                }
            }
            _ => (),
        }
    }

    fn member_of(&mut self, subscription: u32) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| member.subscription == Some(subscription))
    }
}

impl Member {
    fn new(want: Want) -> Self {
        Member {
            want,
            is_replaced: false,
            replacing: None,
            stream: None,
            resume: None,
            subscription: None,
            entering: None,
            is_paused: true,
            is_held: false,
            replay: None,
            resuming: None,
        }
    }

    fn subscribe(&mut self, name: &str, rate: Option<u64>, core: &mut ClientCore, auditor: &mut Auditor) {
        let spec = SubscriptionSpec {
            filter: self.filter(self.is_replaced),
            bookmark: Some(self.resume.take().unwrap_or_else(|| "0".into())),
            options: SubscribeOptions::PAUSED,
            rate: rate.map(|rate| rate.to_string()),
            ..SubscriptionSpec::new(self.want.topic())
        };
        if let Ok((subscription, command)) = core.subscribe(spec) {
            self.stream.get_or_insert_with(|| auditor.begin(name, self.want, Start::Epoch));
            (self.subscription, self.entering) = (Some(subscription), Some(command));
        }
    }

    fn filter(&self, is_replaced: bool) -> Option<String> {
        match (self.want.filter(), is_replaced) {
            (filter, false) => filter,
            (None, true) => Some("1 = 1".into()),
            (Some(filter), true) => Some(format!("({filter}) AND 1 = 1")),
        }
    }

    fn begins_again(&self, auditor: &mut Auditor) {
        if let Some(replay) = self.replay {
            auditor.replays.begins_again(replay);
        }
    }

    /// The next messages belong to another stream.
    fn give_up(&mut self, auditor: &mut Auditor) {
        if let Some(stream) = self.stream.take() {
            auditor.over(stream);
        }
    }

    /// Its subscription is gone. The next one begins paused.
    fn leave(&mut self) {
        (self.subscription, self.entering, self.replacing) = (None, None, None);
        (self.replay, self.resuming) = (None, None);
        (self.is_paused, self.is_held) = (true, false);
    }
}
