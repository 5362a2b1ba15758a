//! How far the destinations of replication have got. Together with the persisted position it decides what is safe: `log.rs` asks here.

use quire_journal::Position;

/// Some of the destinations, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Destinations(u64);

impl Destinations {
    pub(crate) const NONE: Destinations = Destinations(0);

    pub(crate) fn insert(&mut self, number: usize) {
        self.0 |= 1 << number;
    }

    pub(crate) fn contains(self, number: usize) -> bool {
        self.0 & (1 << number) != 0
    }

    pub(crate) fn union(self, other: Destinations) -> Destinations {
        Destinations(self.0 | other.0)
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// The destinations of this instance.
#[derive(Debug, Default)]
pub(crate) struct Replicated {
    destinations: Vec<Acknowledged>,
    /// Of the sync destinations of a message, this many must have it; `None`: all.
    required: Option<u32>,
    /// Clients are not let in yet: the instance is being filled with what it lost.
    pub(crate) holds_logons: bool,
}

#[derive(Clone, Copy, Debug)]
struct Acknowledged {
    position: Position,
    is_waited_for: bool,
}

impl Replicated {
    pub(crate) fn new(waited_for: impl Iterator<Item = bool>, required: Option<u32>) -> Self {
        let destinations = waited_for
            .map(|is_waited_for| Acknowledged { position: Position::ZERO, is_waited_for })
            .collect();
        Replicated { destinations, required, holds_logons: false }
    }

    /// Whether there are destinations.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        !self.destinations.is_empty()
    }

    /// Everything up to `position` that is routed to the destination is persisted there. Gives whether it was at another position.
    pub(crate) fn set(&mut self, number: usize, position: Position) -> bool {
        let before = std::mem::replace(&mut self.destinations[number].position, position);
        before != position
    }

    /// Publishers wait for the destination from now on, or do not.
    pub(crate) fn wait_for(&mut self, number: usize, is_waited_for: bool) {
        self.destinations[number].is_waited_for = is_waited_for;
    }

    /// Whether publishers wait for the destination now.
    pub(crate) fn is_waited_for(&self, number: usize) -> bool {
        self.destinations[number].is_waited_for
    }

    /// Every destination. Messages that were in the log at the start wait for all of those that are waited for.
    pub(crate) fn all(&self) -> Destinations {
        let mut all = Destinations::NONE;
        (0..self.destinations.len()).for_each(|number| all.insert(number));
        all
    }

    /// Whether enough of these destinations have everything up to `position`.
    #[inline]
    pub(crate) fn has(&self, position: Position, of: Destinations) -> bool {
        of.is_empty() || self.is_enough(position, of)
    }

    fn is_enough(&self, position: Position, of: Destinations) -> bool {
        let waited_for = self.destinations.iter().enumerate();
        let waited_for =
            waited_for.filter(|(number, destination)| of.contains(*number) && destination.is_waited_for);
        let (mut count, mut having) = (0, 0);
        for (_, destination) in waited_for {
            count += 1;
            having += u32::from(destination.position >= position);
        }
        having >= self.required.map_or(count, |required| required.min(count))
    }

    /// The position up to which enough of all destinations have everything that is routed to them.
    pub(crate) fn everywhere(&self, persisted: Position) -> Position {
        let waited_for = self.destinations.iter().filter(|destination| destination.is_waited_for);
        let mut positions: Vec<_> = waited_for.map(|destination| destination.position).collect();
        positions.sort_unstable_by(|a, b| b.cmp(a));
        let required =
            self.required.map_or(positions.len(), |required| positions.len().min(required as usize));
        required.checked_sub(1).map_or(persisted, |last| positions[last].min(persisted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both() -> Destinations {
        let mut both = Destinations::NONE;
        both.insert(0);
        both.insert(1);
        both
    }

    #[test]
    fn a_message_is_safe_when_every_sync_destination_that_it_is_routed_to_has_it() {
        let mut replicated = Replicated::new([true, true].into_iter(), None);
        let (five, mut first) = (Position::new(5), Destinations::NONE);
        first.insert(0);
        assert!(replicated.has(five, Destinations::NONE));
        assert!(!replicated.has(five, first));
        replicated.set(0, five);
        assert!(replicated.has(five, first));
        assert!(!replicated.has(five, both()));
        assert_eq!(replicated.everywhere(five), Position::ZERO);
        replicated.set(1, Position::new(4));
        assert_eq!(replicated.everywhere(five), Position::new(4));
        replicated.wait_for(1, false);
        assert!(replicated.has(five, both()));
        assert_eq!(replicated.everywhere(five), five);
    }

    #[test]
    fn required_acks_counts_the_destinations_that_are_waited_for() {
        let mut replicated = Replicated::new([true, true].into_iter(), Some(1));
        let five = Position::new(5);
        assert!(!replicated.has(five, both()));
        replicated.set(1, five);
        assert!(replicated.has(five, both()));
        assert_eq!(replicated.everywhere(five), five);
    }
}
