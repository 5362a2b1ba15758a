//! The places of other instances at points of the log here (docs/internals/copies.md, *A
//! subscription that moves*).
//!
//! **What for.** The logs of two instances have the same messages in another order. A subscription
//! that moves from here to another instance continues there at a *place*: a position of the log
//! there.
//!
//! **What it promises.** A place is taken at a point of the log here. When it has the position *q*
//! of an instance, every record of its log up to *q* is in the log here before this point. Records
//! that no link sends here are left out. A place is a lower bound: an earlier one is always right,
//! too. It costs messages that are sent again.
//!
//! **What the caller must do.** Say when a link from a source begins
//! ([`handle_link`](Places::handle_link)), and how far its records were recorded
//! ([`handle_records`](Places::handle_records)). Pass on its frames of places
//! ([`handle_places`](Places::handle_places)) in the order in which they came. Call
//! [`handle_reached`](Places::handle_reached) when the consumers of the log have got further. Begin
//! with a new engine when the log here has another number.
//!
//! **How it works.** A link is in the order of the log of its source. So a frame of places that
//! follows the records up to *q* is a place of the source. Some records of the source are not on
//! the link: they came to the source from a third instance, which sends them here itself. The frame
//! says how far the log here must have the records of the third one. A source can require this of
//! another one and the reverse. So the frames that fulfil each other count together. This is sound,
//! because each record has passed a finite number of instances. The records that a source leaves to
//! another one have passed fewer there.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use quire_types::Position;
use quire_wire::link::{KnownPlace, RequiredPlace, SentPlaces};

/// A position of the log of an instance. The greater one is the later one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The number of the log.
    pub log: u64,
    /// The position.
    pub position: Position,
}

/// Places by the names of their instances.
pub type PlaceVector = BTreeMap<Arc<str>, Place>;

/// Records that this instance has from another one, and that its destination must have from there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Required {
    /// The other instance.
    pub instance: Arc<str>,
    /// The number of its log.
    pub log: u64,
    /// Records that were published there have at most this position of its log.
    pub own: Position,
    /// And the other ones this.
    pub passed_on: Position,
}

impl Required {
    fn as_frame(&self) -> RequiredPlace<'_> {
        let Required { instance, log, own, passed_on } = self;
        RequiredPlace { instance, log: *log, own: *own, passed_on: *passed_on }
    }
}

/// A frame of places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacesFrame {
    /// The place of the source.
    pub place: Place,
    /// The places of others that the source knows at this place.
    pub known: PlaceVector,
    /// The records that the destination must have. `None`: the source does not know them yet. The
    /// frame then only says of which log the records of the link are.
    pub required: Option<Vec<Required>>,
}

impl PlacesFrame {
    /// From a frame.
    pub fn of_frame(sent: &SentPlaces<'_>) -> Self {
        let known = sent.known.iter();
        let known = known.map(|each| {
            let KnownPlace { instance, log, position } = *each;
            (instance.into(), Place { log, position })
        });
        let required_of = |each: &RequiredPlace<'_>| {
            let RequiredPlace { instance, log, own, passed_on } = *each;
            Required { instance: instance.into(), log, own, passed_on }
        };
        PlacesFrame {
            place: Place { log: sent.log, position: sent.position },
            known: known.collect(),
            required: sent.required.as_ref().map(|required| required.iter().map(required_of).collect()),
        }
    }

    fn requires_later_log_than(&self, earlier: &PlacesFrame) -> bool {
        let is_later = |required: &Required| {
            let of_same = |other: &&Required| other.instance == required.instance;
            earlier.required.iter().flatten().find(of_same).is_some_and(|other| other.log < required.log)
        };
        self.place.log > earlier.place.log || self.required.iter().flatten().any(is_later)
    }

    /// As a frame has it.
    pub fn as_frame(&self) -> SentPlaces<'_> {
        let known = self.known.iter();
        let known =
            known.map(|(instance, place)| KnownPlace { instance, log: place.log, position: place.position });
        let required =
            self.required.as_ref().map(|required| required.iter().map(Required::as_frame).collect());
        SentPlaces { log: self.place.log, position: self.place.position, known: known.collect(), required }
    }
}

/// The records of a source that are in the log here.
#[derive(Debug, Default)]
struct Source {
    /// The link has brought a frame of places since it began, so `log` is the log of its records.
    is_counted: bool,
    log: u64,
    /// All records that the source has sent, up to this position of its log, are in the log here.
    own: Position,
    /// The last one of them that was not published at the source.
    passed_on: Position,
    /// The first and the last frame that nothing has fulfilled. The first one is kept, because the
    /// last one requires records that are on their way.
    pending: VecDeque<PlacesFrame>,
}

/// See the documentation of the module.
#[derive(Debug, Default)]
pub struct Places {
    sources: BTreeMap<Arc<str>, Source>,
    /// Places at the end of the log.
    found: PlaceVector,
    /// Places that count when the consumers have reached these positions. The first and the last.
    waiting: VecDeque<(Position, Arc<PlaceVector>)>,
    /// The places that count, and the position of the log here at which they were taken.
    current: (Position, Arc<PlaceVector>),
    version: u64,
}

impl Places {
    /// A link from a source begins. Until its first frame of places, it is not known of which log
    /// its records are.
    pub fn handle_link(&mut self, source: &str) {
        self.source(source).is_counted = false;
    }

    /// Records of a source were recorded: everything that it sends up to a position of its log, and
    /// the last one of them that was not published there.
    pub fn handle_records(&mut self, source: &str, through: Position, passed_on: Position) {
        if let Some(source) = self.sources.get_mut(source) {
            source.passed_on = source.passed_on.max(passed_on);
            if source.is_counted {
                source.own = source.own.max(through);
            }
        }
    }

    /// A frame of places came from a source, after the records before it. `appended` is the end of
    /// the log here, and `own` the name of this instance.
    pub fn handle_places(&mut self, source: &str, mut frame: PlacesFrame, appended: Position, own: &str) {
        frame.known.retain(|instance, _| **instance != *own && **instance != *source);
        let Place { log, position } = frame.place;
        let known = self.source(source);
        if !known.is_counted && known.log != log {
            // Records that were received before have any path. A log that was lost and filled again
            // has all of them up to here.
            (known.log, known.own, known.passed_on) = (log, position, position);
            known.pending.clear();
        }
        let is_first = !std::mem::replace(&mut known.is_counted, true);
        known.own = known.own.max(position);
        // Nothing fulfils what is required of a log that was lost.
        known.pending.retain(|earlier| !frame.requires_later_log_than(earlier));
        if frame.required.is_some() {
            if known.pending.len() > 1 {
                known.pending.pop_back();
            }
            known.pending.push_back(frame);
        }
        self.version += u64::from(is_first);
        let before = self.found.clone();
        while self.settle() {}
        if self.found != before {
            let vector = Arc::new(self.found.clone());
            if self.waiting.len() > 1 {
                self.waiting.pop_back();
            }
            self.waiting.push_back((appended, vector));
        }
    }

    /// The consumers of the log have got everything up to a position.
    pub fn handle_reached(&mut self, position: Position) {
        while let Some(reached) = self.waiting.pop_front_if(|(appended, _)| *appended <= position) {
            self.current = reached;
            self.version += 1;
        }
    }

    /// Changes with the places that count, and when more is known about a source.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The places that count, and the position of the log here at which they were taken.
    pub fn current(&self) -> (Position, &Arc<PlaceVector>) {
        (self.current.0, &self.current.1)
    }

    /// The records that the log here has from a source, as its destinations must have them. `None`:
    /// it is not known.
    pub fn required(&self, source: &str) -> Option<Required> {
        let (name, source) = self.sources.get_key_value(source)?;
        source.is_counted.then(|| Required {
            instance: Arc::clone(name),
            log: source.log,
            own: source.own,
            passed_on: source.passed_on,
        })
    }

    fn source(&mut self, name: &str) -> &mut Source {
        if !self.sources.contains_key(name) {
            self.sources.insert(name.into(), Source::default());
        }
        self.sources.entry(name.into()).or_default()
    }

    /// Takes the latest frames that fulfil each other. Returns whether there are any.
    fn settle(&mut self) -> bool {
        // The number of pending frames of each source that may count.
        let mut counts: BTreeMap<Arc<str>, usize> =
            self.sources.iter().map(|(name, source)| (Arc::clone(name), source.pending.len())).collect();
        while let Some(name) = self.find_unfulfilled(&counts) {
            counts.entry(name).and_modify(|count| *count -= 1);
        }
        let mut has_news = false;
        for (name, count) in counts {
            let Some(source) = self.sources.get_mut(&name) else { continue };
            let Some(frame) = source.pending.drain(..count).next_back() else { continue };
            has_news = true;
            raise(&mut self.found, &name, frame.place);
            frame.known.iter().for_each(|(name, place)| raise(&mut self.found, name, *place));
        }
        has_news
    }

    /// A source whose last frame that may count requires what the others do not fulfil.
    fn find_unfulfilled(&self, counts: &BTreeMap<Arc<str>, usize>) -> Option<Arc<str>> {
        let frame_of = |name: &str| {
            let count = counts.get(name).copied().unwrap_or_default();
            count.checked_sub(1).and_then(|index| self.sources.get(name)?.pending.get(index))
        };
        let has = |required: &Required| {
            let Some(source) = self.sources.get(&required.instance) else { return false };
            let place = frame_of(&required.instance).map(|frame| frame.place);
            let found = self.found.get(&required.instance).copied();
            let reaches = |place: Place| place.log == required.log && place.position >= required.passed_on;
            source.log == required.log
                && source.own >= required.own
                && (required.passed_on == Position::ZERO || place.into_iter().chain(found).any(reaches))
        };
        let is_unfulfilled =
            |name: &&Arc<str>| frame_of(name).is_some_and(|frame| !frame.required.iter().flatten().all(has));
        counts.keys().find(is_unfulfilled).cloned()
    }
}

fn raise(places: &mut PlaceVector, name: &Arc<str>, place: Place) {
    let known = places.entry(Arc::clone(name)).or_default();
    *known = place.max(*known);
}
