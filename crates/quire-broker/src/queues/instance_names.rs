//! The names under which a server published dead letters into the log, and the file that keeps them
//! (docs/journal-format.md, `instance-names.state`).
//!
//! A dead letter is a publish, and its publisher is derived from the name of the instance. A start
//! under another name must still recognize the dead letters that are in the log: each of them is
//! the record of an expiry.

use quire_journal::{FoundSidecar, JournalError, PublisherId, SidecarHead, Sidecars};

use super::dead_letter::publisher_of;
use crate::Event;

const FILE: &str = "instance-names.state";
const NAME: &str = "instance names";
const VERSION: u32 = 1;

/// How the file was found.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Found {
    /// The names, the last one last. Empty without a file.
    Names(Vec<String>),
    /// The reason why it cannot be used.
    Unusable(&'static str),
}

/// The file with the names. One at a time may write it.
pub(super) struct NamesFile(Sidecars);

impl NamesFile {
    pub fn new(files: Sidecars) -> Self {
        NamesFile(files)
    }

    /// Notes that the instance has this name from now on. Gives the names under which dead letters
    /// may be in the log, and the events to log.
    ///
    /// A name without dead letters is dropped when the instance gets another name.
    /// `highest_sequence` gives the highest sequence of a publisher in the log; it outlasts the
    /// records.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn begin(
        &self,
        name: &str,
        highest_sequence: impl Fn(PublisherId) -> Option<u64>,
    ) -> Result<(Vec<String>, Option<Event>), JournalError> {
        let (mut names, mut event) = match self.read()? {
            Found::Names(names) => (names, None),
            Found::Unusable(reason) => {
                (Vec::new(), Some(Event::InstanceNamesLost { file: FILE, reason: reason.to_owned() }))
            }
        };
        let last = names.last().cloned();
        if last.as_deref() == Some(name) {
            return Ok((names, None));
        }
        names.retain(|known| known != name && highest_sequence(publisher_of(known)).is_some());
        names.push(name.to_owned());
        let head = SidecarHead { version: VERSION, ..SidecarHead::default() };
        self.0.write(FILE, NAME, head, &[&encode(&names)])?;
        if let Some(from) = last {
            event = Some(Event::InstanceRenamed { from, to: name.to_owned() });
        }
        Ok((names, event))
    }

    fn read(&self) -> Result<Found, JournalError> {
        Ok(match self.0.read(FILE, NAME)? {
            FoundSidecar::Missing => Found::Names(Vec::new()),
            FoundSidecar::Whole(head, _) if head.version != VERSION => {
                Found::Unusable("a later version of quire wrote it")
            }
            FoundSidecar::Whole(_, content) => {
                decode(&content).map_or(Found::Unusable("it is not a list of names"), Found::Names)
            }
            FoundSidecar::Damaged | FoundSidecar::Older(_) => Found::Unusable("it is damaged"),
        })
    }
}

/// Names of instances have at most 100 bytes (`BrokerConfig::check`).
fn encode(names: &[String]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for name in names {
        bytes.extend_from_slice(&(name.len() as u16).to_le_bytes());
        bytes.extend_from_slice(name.as_bytes());
    }
    bytes
}

fn decode(mut rest: &[u8]) -> Option<Vec<String>> {
    let mut names = Vec::new();
    while !rest.is_empty() {
        let (size, after) = rest.split_first_chunk::<2>()?;
        let (name, after) = after.split_at_checked(usize::from(u16::from_le_bytes(*size)))?;
        names.push(String::from_utf8(name.to_vec()).ok()?);
        rest = after;
    }
    Some(names)
}

#[cfg(test)]
mod tests {
    use quire_journal::{Journal, Options};

    use super::*;

    fn renamed(from: &str, to: &str) -> Option<Event> {
        Some(Event::InstanceRenamed { from: from.to_owned(), to: to.to_owned() })
    }

    #[test]
    fn a_name_with_dead_letters_is_kept_and_the_last_name_is_the_last_entry() {
        let journal = Journal::in_memory(&Options::default()).unwrap();
        let file = NamesFile::new(journal.sidecars());
        let wrote = |publisher| [publisher_of("a"), publisher_of("c")].contains(&publisher).then_some(7);
        assert_eq!(file.begin("a", wrote).unwrap(), (vec!["a".to_owned()], None));
        assert_eq!(file.begin("a", wrote).unwrap(), (vec!["a".to_owned()], None));
        assert_eq!(
            file.begin("b", wrote).unwrap(),
            (vec!["a".to_owned(), "b".to_owned()], renamed("a", "b"))
        );
        assert_eq!(
            file.begin("c", wrote).unwrap(),
            (vec!["a".to_owned(), "c".to_owned()], renamed("b", "c"))
        );
        assert_eq!(
            file.begin("a", wrote).unwrap(),
            (vec!["c".to_owned(), "a".to_owned()], renamed("c", "a"))
        );
        assert_eq!(journal.sidecars().needs(), None);
    }

    #[test]
    fn a_file_that_cannot_be_used_is_reported_and_written_anew() {
        let journal = Journal::in_memory(&Options::default()).unwrap();
        let (file, files) = (NamesFile::new(journal.sidecars()), journal.sidecars());
        for (version, content) in [(VERSION, &b"\x05\0abc"[..]), (VERSION + 1, b"")] {
            files.write(FILE, NAME, SidecarHead { version, ..SidecarHead::default() }, &[content]).unwrap();
            let (names, event) = file.begin("a", |_| Some(1)).unwrap();
            assert_eq!(names, ["a"]);
            assert!(matches!(event, Some(Event::InstanceNamesLost { .. })), "{event:?}");
            assert_eq!(file.begin("a", |_| Some(1)).unwrap().1, None);
        }
    }
}
