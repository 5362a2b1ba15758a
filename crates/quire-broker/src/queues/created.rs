//! The queues that were created at run time: their settings, and the file that keeps them
//! (docs/journal-format.md, `created-queues.state`).
//!
//! Nothing else records these settings, so a file that cannot be used is an error at the start:
//! without it the server would silently run without these queues, and journal files that they need
//! could be removed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use quire_journal::{FoundSidecar, JournalError, Position, SidecarHead, Sidecars};

use super::{Definition, QueueSettings};
use crate::ConfigError;
use crate::config::ConfigErrors;
use crate::topic::RecordingRule;
use quire_expression::filter::FilterOptions;
use quire_queue::{EarlierExpiration, ExpirationModel};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

const FILE: &str = "created-queues.state";
const NAME: &str = "created queues";
const VERSION: u32 = 1;
const ENTRY_HEAD_SIZE: usize = 12;

const DAMAGED: &str = "the definitions of the queues that were created at run time are not whole; restore the file from a backup, \
                       or remove it to start without these queues";
const LATER: &str = "a later version of quire wrote the definitions of the queues that were created at run time; start that \
                     version, or remove the file to start without these queues";

/// The most bytes of the settings of one queue as JSON. Filters are the only long settings, and
/// this is room for many conditions.
pub(super) const SETTINGS_SIZE_MAX: usize = 64 * 1024;

/// One queue that was created at run time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CreatedQueue {
    /// The end of the log when the queue was created. Changes of messages up to here belong to
    /// other queues, which had the name before.
    pub begin: Position,
    /// With every default that depends on the server filled in.
    pub settings: QueueSettings,
    /// The expirations before `settings`, in ascending order of their positions. A message keeps
    /// the expiration that it entered with, also when the queue is rebuilt from the log.
    pub earlier_expirations: Vec<EarlierExpiration>,
}

/// The recovery points of queues that are created at run time.
const NOW: &str = "now";
const EPOCH: &str = "epoch";

/// The key of the earlier expirations. It is in the object of the settings. A file without them has
/// no such key.
const EARLIER: &str = "earlier_expirations";

/// An [`EarlierExpiration`] in the file.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct StoredExpiration {
    until: u64,
    expiration_ns: Option<u64>,
    expiration_model: ExpirationModel,
}

/// The file with the queues. One at a time may write it, on any thread.
#[derive(Clone)]
pub(crate) struct CreatedQueuesFile {
    files: Sidecars,
    directory: PathBuf,
}

impl CreatedQueuesFile {
    /// The file of the journal in `directory`. The directory appears in errors only.
    pub fn new(files: Sidecars, directory: &Path) -> Self {
        CreatedQueuesFile { files, directory: directory.to_owned() }
    }

    /// The queues that were written last; `None` when there is no file.
    ///
    /// # Errors
    /// A file that is damaged or of a later version, and what the system refuses.
    pub fn read(&self) -> Result<Option<Vec<CreatedQueue>>, JournalError> {
        match self.files.read(FILE, NAME)? {
            FoundSidecar::Missing => Ok(None),
            FoundSidecar::Whole(head, _) if head.version != VERSION => Err(self.unusable(LATER)),
            // The checksum matches, so a later version wrote keys that this version does not have.
            FoundSidecar::Whole(_, content) => decode(&content).map(Some).ok_or_else(|| self.unusable(LATER)),
            FoundSidecar::Damaged | FoundSidecar::Older(_) => Err(self.unusable(DAMAGED)),
        }
    }

    /// Refuses a missing file when there were queues that only it defines.
    ///
    /// # Errors
    /// [`JournalError::BadOption`], which names the queues.
    pub fn check_lost(&self, queues: &[String]) -> Result<(), JournalError> {
        if queues.is_empty() {
            return Ok(());
        }
        let path = self.directory.join(FILE);
        let reason = format!(
            "{} is missing. It has the definitions of queues that were created at run time: {}. Restore the file from a backup, or \
             define each of these queues as a [[queue]] with the same settings",
            path.display(),
            queues.join(", ")
        );
        Err(JournalError::BadOption { option: "queue", reason })
    }

    fn unusable(&self, reason: &'static str) -> JournalError {
        let path = self.directory.join(FILE);
        JournalError::Corrupt { path, offset: 0, reason, readable_to: Position::ZERO }
    }

    /// Replaces the file: a crash leaves the old one or the new one. Blocks until it is on stable
    /// storage.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn write(&self, queues: &[CreatedQueue]) -> Result<(), JournalError> {
        let position = queues.iter().map(|queue| queue.begin).max().unwrap_or_default();
        // The part of the log that they need changes with every acknowledgement. `queues.ack` has
        // it.
        let head = SidecarHead { version: VERSION, position, needs: None };
        self.files.write(FILE, NAME, head, &[&encode(queues)])
    }
}

fn encode(queues: &[CreatedQueue]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for queue in queues {
        let settings = queue.to_json();
        bytes.extend_from_slice(&queue.begin.get().to_le_bytes());
        bytes.extend_from_slice(&(settings.len() as u32).to_le_bytes());
        bytes.extend_from_slice(settings.as_bytes());
    }
    bytes
}

fn decode(mut rest: &[u8]) -> Option<Vec<CreatedQueue>> {
    let mut queues = Vec::new();
    while !rest.is_empty() {
        let (head, after) = rest.split_first_chunk::<ENTRY_HEAD_SIZE>()?;
        let (begin, size) = head.split_first_chunk::<8>()?;
        let size = usize::try_from(u32::from_le_bytes(size.try_into().ok()?)).ok()?;
        let (settings, after) = after.split_at_checked(size)?;
        queues.push(CreatedQueue::from_json(Position::new(u64::from_le_bytes(*begin)), settings)?);
        rest = after;
    }
    Some(queues)
}

impl CreatedQueue {
    /// A queue that is created when the log ends at `begin`.
    pub fn new(begin: Position, settings: QueueSettings) -> Self {
        CreatedQueue { begin, settings, earlier_expirations: Vec::new() }
    }

    /// The queue takes the messages after this position.
    pub fn takes_after(&self) -> Position {
        if self.is_from_epoch() { Position::ZERO } else { self.begin }
    }

    /// Whether the queue takes the messages that are in the log already.
    pub fn is_from_epoch(&self) -> bool {
        self.settings.recovery_point.as_deref() == Some(EPOCH)
    }

    fn to_json(&self) -> String {
        let mut all = self.settings.explicit();
        let stored = self.earlier_expirations.iter().map(|earlier| StoredExpiration {
            until: earlier.until.get(),
            expiration_ns: earlier.expiration.map(|period| period.as_nanos() as u64),
            expiration_model: earlier.model,
        });
        let stored: Vec<StoredExpiration> = stored.collect();
        if !stored.is_empty() {
            all.insert(EARLIER.to_owned(), serde_json::to_value(stored).unwrap_or_default());
        }
        Value::from(all).to_string()
    }

    fn from_json(begin: Position, text: &[u8]) -> Option<Self> {
        let mut all: Map<String, Value> = serde_json::from_slice(text).ok()?;
        let stored: Vec<StoredExpiration> = match all.remove(EARLIER) {
            Some(stored) => serde_json::from_value(stored).ok()?,
            None => Vec::new(),
        };
        let earlier = stored.into_iter().map(|stored| EarlierExpiration {
            until: Position::new(stored.until),
            expiration: stored.expiration_ns.map(Duration::from_nanos),
            model: stored.expiration_model,
        });
        let settings = serde_json::from_value(Value::from(all)).ok()?;
        Some(CreatedQueue { begin, settings, earlier_expirations: earlier.collect() })
    }

    /// Lowers every position of the queue that is after the end of the log. Returns whether one
    /// was.
    pub fn clamp(&mut self, end: Position) -> bool {
        let mut is_changed = false;
        let earlier = self.earlier_expirations.iter_mut().map(|earlier| &mut earlier.until);
        for position in earlier.chain([&mut self.begin]).filter(|position| **position > end) {
            *position = end;
            is_changed = true;
        }
        is_changed
    }

    /// The queue for use.
    ///
    /// # Errors
    /// [`ConfigErrors`] when the settings do not fit the server or the other queues.
    pub fn compile(
        &self,
        others: &[&Definition],
        rules: &[RecordingRule],
        options: &FilterOptions,
    ) -> Result<Definition, ConfigErrors> {
        let mut definition = Definition::compile_one(&self.settings, others, rules, options)?;
        // A queue that is dropped and created again may have the same settings, but not the same
        // state.
        definition.state_key.push_str(&format!(" after {}", self.begin));
        if self.is_from_epoch() {
            // A place in `queues.ack` or in the log that belongs to an earlier queue with the name
            // has another text.
            definition.recovery_point.0 = format!("{EPOCH} {}", self.begin);
        }
        definition.config.earlier_expirations.clone_from(&self.earlier_expirations);
        Ok(definition)
    }
}

/// The settings of a queue that is created at run time, with the defaults that depend on the server
/// filled in: two commands with the same meaning have equal settings.
///
/// # Errors
/// [`ConfigError`] for a key that such a queue cannot have, and when the message type is not known.
pub(super) fn for_run_time(
    mut settings: QueueSettings,
    rules: &[RecordingRule],
) -> Result<QueueSettings, ConfigError> {
    let refuse = |key: &str, reason: String| Err(ConfigError::new(key, reason));
    let point = settings.recovery_point.get_or_insert_with(|| NOW.to_owned());
    if point != NOW && point != EPOCH {
        let reason = format!(
            "a queue that is created at run time begins with the next message ({NOW}) or with the first one of the log ({EPOCH}); \
             define it in the configuration of the server to begin elsewhere"
        );
        return refuse("recovery_point", reason);
    }
    let topic = settings.underlying_topic.get_or_insert_with(|| settings.name.clone()).clone();
    if settings.message_type.is_empty() {
        let target = settings.default_publish_target.as_ref().unwrap_or(&topic);
        let Some(recorded) = RecordingRule::message_type_of(rules, target) else {
            return refuse("underlying_topic", format!("the transaction log does not record {target:?}"));
        };
        recorded.name().clone_into(&mut settings.message_type);
    }
    check_size(&settings.to_json())?;
    Ok(settings)
}

/// Refuses settings as JSON that are too large.
///
/// # Errors
/// [`ConfigError`] with the limit.
pub(crate) fn check_size(json: &str) -> Result<(), ConfigError> {
    let size = json.len();
    if size <= SETTINGS_SIZE_MAX {
        return Ok(());
    }
    let reason = format!("the settings have {size} bytes as JSON, the limit is {SETTINGS_SIZE_MAX}");
    Err(ConfigError::new("name", reason))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use proptest::prelude::*;
    use quire_journal::{Disk, Journal, MemoryDisk, Options};
    use quire_queue::{ExpirationModel, FairnessModel, Leasing, Semantics};

    fn queue(name: &str, begin: u64) -> CreatedQueue {
        let settings = QueueSettings {
            name: name.into(),
            message_type: "json".into(),
            lease_period_ns: Some(30_000_000_000),
            retry_delay_ns: vec![1, 2],
            recovery_point: Some("now".into()),
            ..QueueSettings::default()
        };
        CreatedQueue::new(Position::new(begin), settings)
    }

    #[test]
    fn queues_are_read_back_whole_or_not_at_all() {
        let queues = vec![queue("orders", 7), queue("größe \"x\"", u64::MAX)];
        let bytes = encode(&queues);
        assert_eq!(decode(&bytes), Some(queues.clone()));
        let first_size = encode(&queues[..1]).len();
        for end in (1..bytes.len()).filter(|end| *end != first_size) {
            assert_eq!(decode(&bytes[..end]), None, "{end} bytes");
        }
    }

    #[test]
    fn an_entry_has_the_bytes_of_its_page() {
        let bytes = encode(&[queue("q", 258)]);
        assert_eq!(bytes[..8], [2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(u32::from_le_bytes(bytes[8..12].try_into().unwrap()) as usize, bytes.len() - 12);
        let json: serde_json::Value = serde_json::from_slice(&bytes[12..]).unwrap();
        assert_eq!((&json["name"], &json["lease_period_ns"]), (&"q".into(), &30_000_000_000_u64.into()));
    }

    fn altered(name: &str, begin: u64) -> CreatedQueue {
        let earlier = |until, expiration_s: Option<u64>, model| EarlierExpiration {
            until: Position::new(until),
            expiration: expiration_s.map(Duration::from_secs),
            model,
        };
        let earlier_expirations = vec![
            earlier(begin + 1, None, ExpirationModel::Message),
            earlier(u64::MAX, Some(60), ExpirationModel::Minimum),
        ];
        CreatedQueue { earlier_expirations, ..queue(name, begin) }
    }

    #[test]
    fn earlier_expirations_are_kept_with_the_settings() {
        let queues = vec![altered("orders", 7), queue("other", 9)];
        assert_eq!(decode(&encode(&queues)), Some(queues.clone()));
        let json: Value = serde_json::from_str(&queues[0].to_json()).unwrap();
        let first = serde_json::json!({ "until": 8, "expiration_ns": null, "expiration_model": "message" });
        assert_eq!(json["earlier_expirations"][0], first);
        // Keys of a later version are not ignored.
        for unknown in [r#"{"name":"a","earlier_expirations":[{"until":1}]}"#, r#"{"name":"a","later":1}"#] {
            assert_eq!(CreatedQueue::from_json(Position::ZERO, unknown.as_bytes()), None, "{unknown}");
        }
        // A log that lost its end does not reach the positions.
        let mut clamped = altered("orders", 7);
        assert!(!clamped.clone().clamp(Position::new(u64::MAX)));
        assert!(clamped.clamp(Position::new(8)));
        let ends = clamped.earlier_expirations.iter().map(|earlier| earlier.until.get());
        assert_eq!((clamped.begin.get(), ends.collect::<Vec<_>>()), (7, vec![8, 8]));
    }

    #[test]
    fn a_file_of_version_1_is_read() {
        let disk = MemoryDisk::new(1 << 20);
        let options = Options { segment_size: 64 * 1024, ..Options::default() };
        let directory = Path::new("journal");
        let (journal, _) = Journal::driven_by_hand(Arc::new(disk.clone()), directory, &options).unwrap();
        let bytes = include_bytes!("../../../../tests/golden/created-queues-v1.state");
        let file = disk.create(&directory.join(FILE), bytes.len() as u64).unwrap();
        file.write_at(bytes, 0).unwrap();
        let file = CreatedQueuesFile::new(journal.sidecars(), directory);
        let all_keys = QueueSettings {
            name: "all".into(),
            message_type: "json".into(),
            underlying_topic: Some("^orders/".into()),
            default_publish_target: Some("orders/new".into()),
            semantics: Semantics::AtMostOnce,
            fairness_model: Some(FairnessModel::RoundRobin),
            lease_period_ns: Some(30_000_000_000),
            leasing: Leasing::Strict,
            max_backlog: Some(7),
            max_per_subscription_backlog: Some(3),
            max_deliveries: Some(5),
            max_cancels: Some(2),
            retry_delay_ns: vec![1_000_000_000, 10_000_000_000],
            expiration_ns: Some(3_600_000_000_000),
            expiration_model: ExpirationModel::Minimum,
            filter: Some("/qty > 0".into()),
            priority: Some("/price".into()),
            barrier_expression: Some("/end = 1".into()),
            target_queue_depth: Some(1000),
            recovery_point: Some("now".into()),
            dead_letter_topic: Some("dead".into()),
            file_backed_metadata: true,
            record_leases: true,
        };
        let few = QueueSettings {
            name: "größe".into(),
            message_type: "binary".into(),
            underlying_topic: Some("größe".into()),
            recovery_point: Some("now".into()),
            ..QueueSettings::default()
        };
        let of = |begin, settings| CreatedQueue::new(Position::new(begin), settings);
        let queues = vec![of(258, all_keys), of(1 << 40, few)];
        assert_eq!(file.read().unwrap().as_deref(), Some(&queues[..]));
        // Version 1 is also the version that is written.
        file.write(&queues).unwrap();
        assert_eq!(disk.read(&directory.join(FILE)).unwrap(), bytes);
    }

    #[test]
    fn a_missing_file_defines_no_queue_and_a_damaged_one_is_an_error() {
        let journal = Journal::in_memory(&Options::default()).unwrap();
        let file = CreatedQueuesFile::new(journal.sidecars(), Path::new("journal"));
        assert_eq!(file.read().unwrap(), None);
        let queues = vec![queue("orders", 7)];
        file.write(&queues).unwrap();
        assert_eq!(file.read().unwrap().as_deref(), Some(&queues[..]));
        assert_eq!(journal.sidecars().needs(), None);
        let head = SidecarHead { version: VERSION, ..SidecarHead::default() };
        journal.sidecars().write(FILE, NAME, head, &[b"no queue"]).unwrap();
        assert!(file.read().unwrap_err().to_string().contains("a later version of quire"));
        journal.sidecars().write(FILE, "another name", head, &[]).unwrap();
        let error = file.read().unwrap_err().to_string();
        assert!(error.contains("created-queues.state is damaged") && error.contains("backup"), "{error}");
        let later = SidecarHead { version: VERSION + 1, ..SidecarHead::default() };
        journal.sidecars().write(FILE, NAME, later, &[]).unwrap();
        assert!(file.read().unwrap_err().to_string().contains("a later version of quire"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_queues_or_nothing(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(queues) = decode(&bytes) {
                prop_assert_eq!(decode(&encode(&queues)), Some(queues));
            }
        }

        #[test]
        fn any_bytes_in_the_place_of_settings_are_queues_or_nothing(
            begin in any::<u64>(),
            settings in prop_oneof!["\\PC{0,80}", r#"\{"name":"[a-z]{0,3}","max_backlog":[0-9]{1,12}\}"#],
        ) {
            let mut bytes = begin.to_le_bytes().to_vec();
            bytes.extend((settings.len() as u32).to_le_bytes());
            bytes.extend(settings.as_bytes());
            if let Some(queues) = decode(&bytes) {
                prop_assert_eq!(queues[0].begin.get(), begin);
                prop_assert_eq!(queues.len(), 1);
                prop_assert_eq!(decode(&encode(&queues)), Some(queues));
            }
        }
    }
}
