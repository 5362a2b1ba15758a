//! The options of a read and of a write: each with the unit and meaning that `docs/spark.md`
//! describes.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use quire_arrow::{Lifetimes, Topics, time_ns};
use quire_types::{Bookmark, Timestamp};
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Outcome};
use crate::text::{ago_ns, closest, duration_ns, percent_decoded, quoted, size, whole, without_password};

/// The most messages in a batch of a query, so that a backlog does not become one batch.
const MAX_MESSAGES_PER_TRIGGER: u64 = 1_000_000;

const MAX_TRIGGER_DELAY_NS: u64 = 15 * 60 * 1_000_000_000;

const FLUSH_TIMEOUT_NS: u64 = 5 * 60 * 1_000_000_000;

/// The largest count of the core and of Spark.
const COUNT_MAX: u64 = i64::MAX as u64;

/// The most tasks of one read: more would take more time to distribute than to run, and each needs
/// a request to a server.
const PARTITIONS_MAX: u64 = 100_000;

/// The limits of an Arrow batch, whose offsets have 32 bits.
const BATCH_ROWS_MAX: u64 = i32::MAX as u64;
const BATCH_BYTES_MAX: u64 = 256 << 20;

/// Times of the log are before 2554.
const TIME_END_NS: i128 = 18_429_897_600_000_000_000;

const READ: [&str; 36] = [
    "path",
    "paths",
    "archiveDirectory",
    "url",
    "user",
    "passwordFile",
    "tokenFile",
    "sslCa",
    "sslCertificate",
    "sslKey",
    "topics",
    "topicPattern",
    "topicPrefix",
    "filter",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "timestampStrategy",
    "failOnDataLoss",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "minMessagesPerTrigger",
    "maxTriggerDelay",
    "partitionBytes",
    "minPartitions",
    "batchRows",
    "batchBytes",
    "fields",
    "includeQueueEvents",
    "includeDeletes",
    "includeHeaders",
    "lastValues",
    "expiration",
    "pushConditions",
    "reader",
];

const WRITE: [&str; 15] = [
    "path",
    "url",
    "user",
    "passwordFile",
    "tokenFile",
    "sslCa",
    "sslCertificate",
    "sslKey",
    "topic",
    "publisher",
    "txnId",
    "sinkEpoch",
    "stagingDirectory",
    "checkpointLocation",
    "flushTimeout",
];

/// Secrets, which cannot be options, and the options with their files.
const SECRETS: [(&str, &str); 2] = [("password", "passwordFile"), ("token", "tokenFile")];

/// Spark adds these options for sources and sinks.
const OF_SPARK: [&str; 3] = ["checkpointlocation", "querydescription", "queryname"];

/// Properties of a table in the catalog.
const OF_A_TABLE: [&str; 4] = ["location", "owner", "provider", "external"];

const NO_TABLE: &str = "Spark keeps no options for a table of the catalog (CREATE TABLE ... USING quire); make a view instead: \
                        CREATE TEMPORARY VIEW ... USING quire OPTIONS (...)";

/// The beginning of the names of options for the paths of columns.
const FIELD: &str = "field.";

/// Options that select the messages that are read. `lastValues` excludes them.
const WITHOUT_LAST_VALUES: [(&str, &str); 8] = [
    ("topics", "lastValues names the topic"),
    ("topicPattern", "lastValues names the topic"),
    ("topicPrefix", "lastValues names the topic"),
    (
        "startingOffsets",
        "the log is searched from its beginning; endingOffsets selects the state at an earlier point",
    ),
    (
        "startingTimestamp",
        "the log is searched from its beginning; endingTimestamp selects the state at an earlier time",
    ),
    ("includeQueueEvents", "a state has no events"),
    ("includeDeletes", "deleted records are not in the state"),
    (
        "url",
        "the newest messages are found in the files of the journal; read its directory, or use client.sow(...).to_arrow()",
    ),
];

/// A position in a log, as an option defines it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogPlace {
    /// Before the first message.
    Earliest,
    /// After the last message.
    Latest,
    /// This number of positions before the end.
    Back(u64),
    /// This number of nanoseconds ago.
    AgoNs(u64),
    /// After the last message up to this time, in nanoseconds since 1970.
    TimeNs(u64),
    /// After this message.
    Bookmark(String),
}

/// The lifetimes of the records of a last-value topic, as it is configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expiration {
    /// Records do not end.
    #[default]
    Disabled,
    /// The expiration of its message ends a record.
    Enabled,
    /// The same. Records of messages without an expiration end after this time.
    AfterNs(u64),
}

impl From<Expiration> for Lifetimes {
    fn from(expiration: Expiration) -> Self {
        match expiration {
            Expiration::Disabled => Lifetimes::Unlimited,
            Expiration::Enabled => Lifetimes::OfMessages,
            Expiration::AfterNs(ns) => Lifetimes::AfterNs(ns),
        }
    }
}

/// How a read or a write connects to a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Access {
    /// The user, if the server requires one. The password or the token is in the environment or a
    /// file.
    pub user: Option<String>,
    /// The file with the password.
    pub password_file: Option<String>,
    /// The file with the token.
    pub token_file: Option<String>,
    /// The file with the authorities of the server's certificate; `None`: those of the system.
    pub ca: Option<String>,
    /// The file with the certificate of the client.
    pub certificate: Option<String>,
    /// The file with its private key; `None`: it is in the file of the certificate.
    pub key: Option<String>,
}

/// The options of `spark.read` and `spark.readStream`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadOptions {
    /// Journal directories, absolute.
    pub directories: Vec<String>,
    /// The directory to which older segments of the journal were moved.
    pub archive: Option<String>,
    /// A running server instead of directories.
    pub url: Option<String>,
    /// How it connects to the server.
    pub access: Access,
    /// The topics to read; `None` = all.
    pub topics: Option<Topics>,
    /// A content filter.
    pub filter: Option<String>,
    /// Where the read begins; `None` = not set.
    pub starting: Option<LogPlace>,
    /// Where it ends.
    pub ending: LogPlace,
    /// Nanoseconds since 1970. They have priority over `starting` and `ending`.
    pub starting_ns: Option<u64>,
    /// The same for the end.
    pub ending_ns: Option<u64>,
    /// A starting time after the last message means the end. Otherwise it is an error.
    pub starts_at_latest: bool,
    /// Damaged and removed messages are an error.
    pub fail_on_data_loss: bool,
    /// The most messages of a micro-batch.
    pub max_messages: u64,
    /// The most bytes of a micro-batch.
    pub max_bytes: Option<u64>,
    /// The least messages of a micro-batch.
    pub min_messages: Option<u64>,
    /// The time after which a micro-batch is made of fewer.
    pub max_trigger_delay_ns: u64,
    /// Bytes of the log for one task.
    pub partition_bytes: Option<u64>,
    /// The least tasks.
    pub min_partitions: Option<u64>,
    /// Rows of an Arrow batch.
    pub batch_rows: u64,
    /// Bytes of an Arrow batch.
    pub batch_bytes: u64,
    /// Definitions of columns in addition to the attributes.
    pub fields: Option<String>,
    /// Path of a column, by its name in lower case, in the data when it is not its name.
    pub field_paths: BTreeMap<String, String>,
    /// Reads the records of queues.
    pub includes_events: bool,
    /// Reads the deletes of last-value topics.
    pub includes_deletes: bool,
    /// Adds the headers.
    pub includes_headers: bool,
    /// The Python source applies conditions for all later uses of the frame.
    pub takes_conditions: bool,
    /// Only the newest message of each key of this topic.
    pub last_values: Option<String>,
    /// The lifetimes of its records.
    pub expiration: Expiration,
}

impl ReadOptions {
    /// Reads the options.
    pub fn new(options: &BTreeMap<String, String>) -> Outcome<Self> {
        let given = Given::new(options, &READ, true)?;
        let directories = given.directories()?;
        let url = given.text("url");
        if url.is_some() != directories.is_empty() {
            let reason = "path, url: exactly one of them says where the messages are";
            let is_table = options.is_empty();
            return Err(Failure::option(if is_table {
                format!("{reason}; {NO_TABLE}")
            } else {
                reason.into()
            }));
        }
        if let Some(url) = url.filter(|url| !["quire://", "quires://"].iter().any(|it| url.starts_with(it))) {
            let reason = "is no quire://host:port or quires://host:port; a directory goes into path";
            return Err(Failure::option(format!("url: {} {reason}", quoted(&without_password(url)))));
        }
        let archive = given.text("archiveDirectory");
        if archive.is_some() && directories.len() != 1 {
            return Err(Failure::option("archiveDirectory: it is that of one journal directory"));
        }
        let of_a_directory = |key: &str| {
            let is_set = given.flag(key, false)?;
            match (is_set, url) {
                (true, Some(_)) => Err(Failure::option(format!(
                    "{key}: it does not go together with url; read the directory of the server"
                ))),
                _ => Ok(is_set),
            }
        };
        // The source was chosen before this call. Here the option is only checked.
        if given.text("reader").is_some() {
            given.one_of("reader", "", &["jvm", "python"])?;
        }
        let last_values = given.text("lastValues");
        given.check_last_values(last_values, &directories)?;
        let strategy = given.one_of("timestampStrategy", "error", &["error", "latest"])?;
        Ok(ReadOptions {
            archive: archive.map(|archive| local_path("archiveDirectory", archive)).transpose()?,
            url: url.map(Into::into),
            access: given.access(url)?,
            topics: match last_values {
                Some(topic) => Some(Topics::Names(vec![topic.to_owned()])),
                None => given.topics()?,
            },
            filter: given.text("filter").map(Into::into),
            starting: given.place("startingOffsets")?,
            ending: given.place("endingOffsets")?.unwrap_or(LogPlace::Latest),
            starting_ns: given.time("startingTimestamp")?,
            ending_ns: given.time("endingTimestamp")?,
            starts_at_latest: strategy == "latest",
            fail_on_data_loss: given.flag("failOnDataLoss", true)?,
            max_messages: given
                .count("maxMessagesPerTrigger", 1, COUNT_MAX)?
                .unwrap_or(MAX_MESSAGES_PER_TRIGGER),
            max_bytes: given.size("maxBytesPerTrigger", COUNT_MAX)?,
            min_messages: given.count("minMessagesPerTrigger", 1, COUNT_MAX)?,
            max_trigger_delay_ns: given.duration("maxTriggerDelay")?.unwrap_or(MAX_TRIGGER_DELAY_NS),
            partition_bytes: given.size("partitionBytes", COUNT_MAX)?,
            min_partitions: given.count("minPartitions", 1, PARTITIONS_MAX)?,
            batch_rows: given.count("batchRows", 1, BATCH_ROWS_MAX)?.unwrap_or(10_000),
            batch_bytes: given.size("batchBytes", BATCH_BYTES_MAX)?.unwrap_or(4 << 20),
            fields: given.text("fields").map(Into::into),
            field_paths: given.prefixed(FIELD),
            includes_events: of_a_directory("includeQueueEvents")?,
            includes_deletes: of_a_directory("includeDeletes")?,
            includes_headers: given.flag("includeHeaders", false)?,
            takes_conditions: given.flag("pushConditions", false)?,
            last_values: last_values.map(Into::into),
            expiration: given.expiration()?,
            directories,
        })
    }

    /// Refuses the options that only a batch read has.
    pub fn check_stream(&self) -> Outcome<()> {
        if self.last_values.is_some() {
            return Err(Failure::option(
                "lastValues: spark.read has it, spark.readStream does not; a query over the stream gets each change, also with \
                 includeDeletes",
            ));
        }
        let ending = match (self.ending_ns, &self.ending) {
            (Some(_), _) => "endingTimestamp",
            (None, LogPlace::Latest) => return Ok(()),
            (None, _) => "endingOffsets",
        };
        Err(Failure::option(format!(
            "{ending}: spark.read has it, spark.readStream does not; trigger(availableNow=True) ends a query at the present end of the \
             log, and a condition on position or timestamp leaves out what comes later"
        )))
    }

    /// The place that it reads, as text for people.
    pub fn places(&self) -> String {
        self.url.as_deref().map_or_else(|| self.directories.join(", "), without_password)
    }
}

/// The options of `df.write` and `df.writeStream`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteOptions {
    /// A server, or `file:` and a directory.
    pub url: String,
    /// How it connects to the server.
    pub access: Access,
    /// The topic of all rows; otherwise the column `topic` has it.
    pub topic: Option<String>,
    /// The name of the sink, which is unique among those that write into this log.
    pub publisher: String,
    /// The identity of a batch write. A second write with it has no effect.
    pub transaction: Option<String>,
    /// Increased to use a name again after its checkpoint was deleted on purpose.
    pub epoch: u64,
    /// The directory in which tasks store their rows until the batch is complete. All executors and
    /// the driver can access it.
    pub staging: Option<String>,
    /// Where Spark keeps the state of the query, when `staging` is not given.
    pub checkpoint: Option<String>,
    /// The time in which a batch must become persistent.
    pub flush_timeout_ns: u64,
}

impl WriteOptions {
    /// Reads the options.
    pub fn new(options: &BTreeMap<String, String>) -> Outcome<Self> {
        let given = Given::new(options, &WRITE, false)?;
        let url = match (given.text("path"), given.text("url")) {
            (Some(path), None) => format!("file:{}", local_path("path", path)?),
            (None, Some(url)) => url.to_owned(),
            (None, None) if options.is_empty() => {
                let reason = "path, url: exactly one of them says where the messages go";
                return Err(Failure::option(format!("{reason}; {NO_TABLE}")));
            }
            _ => return Err(Failure::option("path, url: exactly one of them says where the messages go")),
        };
        let local = |key: &str| given.text(key).map(|text| local_path(key, text)).transpose();
        let staging = local("stagingDirectory")?;
        Ok(WriteOptions {
            access: given.access(Some(&url))?,
            url,
            topic: given.text("topic").map(Into::into),
            publisher: given.text("publisher").unwrap_or("spark").to_owned(),
            transaction: given.text("txnId").map(Into::into),
            epoch: given.count("sinkEpoch", 0, COUNT_MAX)?.unwrap_or(0),
            // Without a staging directory, tasks store their rows near the checkpoint. With one,
            // the checkpoint may be on any file system.
            checkpoint: if staging.is_some() { None } else { local("checkpointLocation")? },
            staging,
            flush_timeout_ns: given.duration("flushTimeout")?.unwrap_or(FLUSH_TIMEOUT_NS),
        })
    }
}

/// The options as Spark passes them. It does not keep the case of their names.
struct Given {
    options: BTreeMap<String, String>,
}

impl Given {
    fn new(options: &BTreeMap<String, String>, known: &[&'static str], has_paths: bool) -> Outcome<Self> {
        let options: BTreeMap<String, String> =
            options.iter().map(|(key, value)| (key.to_lowercase(), value.clone())).collect();
        for key in options.keys() {
            let is_known = known.iter().any(|name| name.to_lowercase() == *key);
            if is_known || OF_SPARK.contains(&key.as_str()) || (has_paths && key.starts_with(FIELD)) {
                continue;
            }
            if let Some(file) = SECRETS.iter().find_map(|(secret, file)| (key == secret).then_some(file)) {
                return Err(Failure::option(format!(
                    "{key}: it would be shown in plans and logs; use {file}, or the environment variable of the client"
                )));
            }
            if OF_A_TABLE.contains(&key.as_str()) {
                return Err(Failure::option(format!("{key}: no such option; {NO_TABLE}")));
            }
            let hint = match closest(key, known.iter().copied()) {
                Some(name) => format!("did you mean {name}?"),
                None => format!("the options are {}", known.join(", ")),
            };
            return Err(Failure::option(format!("{key}: no such option; {hint}")));
        }
        Ok(Given { options })
    }

    /// An empty option counts as not set.
    fn text(&self, key: &str) -> Option<&str> {
        self.options.get(&key.to_lowercase()).map(String::as_str).filter(|text| !text.is_empty())
    }

    fn access(&self, url: Option<&str>) -> Outcome<Access> {
        let own = |key: &str| self.text(key).map(Into::into);
        let of_tls = ["sslCa", "sslCertificate", "sslKey"];
        if let Some(key) = of_tls.into_iter().find(|key| self.text(key).is_some())
            && !url.is_some_and(|url| url.starts_with("quires://"))
        {
            return Err(Failure::option(format!("{key}: it requires a url that begins with quires://")));
        }
        if self.text("passwordFile").is_some() && self.text("tokenFile").is_some() {
            return Err(Failure::option("tokenFile: a client has a password or a token, and not both"));
        }
        let file = |key: &str| self.text(key).map(|path| local_path(key, path)).transpose();
        Ok(Access {
            user: own("user"),
            password_file: own("passwordFile"),
            token_file: own("tokenFile"),
            ca: file("sslCa")?,
            certificate: file("sslCertificate")?,
            key: file("sslKey")?,
        })
    }

    fn flag(&self, key: &str, default: bool) -> Outcome<bool> {
        let default = if default { "true" } else { "false" };
        Ok(self.one_of(key, default, &["false", "true"])? == "true")
    }

    fn one_of(&self, key: &str, default: &str, values: &[&str]) -> Outcome<String> {
        let value = self.text(key).unwrap_or(default).to_lowercase();
        if values.contains(&value.as_str()) {
            return Ok(value);
        }
        Err(Failure::option(format!("{key}: {} is not one of {}", quoted(&value), values.join(", "))))
    }

    fn count(&self, key: &str, least: u64, most: u64) -> Outcome<Option<u64>> {
        self.text(key).map(|text| within(key, text, whole(text), least, most)).transpose()
    }

    fn size(&self, key: &str, most: u64) -> Outcome<Option<u64>> {
        let read = |text| within(key, text, Some(size(key, text)?.into()), 1, most);
        self.text(key).map(read).transpose()
    }

    fn duration(&self, key: &str) -> Outcome<Option<u64>> {
        let read = |text| match duration_ns(key, text)? {
            0 => Err(Failure::option(format!("{key}: {} is no time", quoted(text)))),
            ns => Ok(ns),
        };
        self.text(key).map(read).transpose()
    }

    /// ISO 8601 text or milliseconds. A time outside of the range of message times becomes the
    /// first or the last of that range.
    fn time(&self, key: &str) -> Outcome<Option<u64>> {
        let Some(text) = self.text(key) else { return Ok(None) };
        // Eight digits are a date. A mistake in it must not become a time in January 1970.
        let is_date = text.trim().len() == 8 && text.trim().bytes().all(|byte| byte.is_ascii_digit());
        let ms = whole(text).filter(|_| !is_date);
        let ns = time_ns(text).or_else(|| ms.map(|ms| ms.saturating_mul(1_000_000)));
        let ns = ns.ok_or_else(|| {
            Failure::option(format!(
                "{key}: {} cannot be read: expected a time such as \"2026-01-31T12:00:00Z\", or milliseconds since 1970",
                quoted(text)
            ))
        })?;
        Ok(Some(ns.clamp(0, i64::MAX.into()) as u64))
    }

    fn place(&self, key: &'static str) -> Outcome<Option<LogPlace>> {
        let Some(text) = self.text(key) else { return Ok(None) };
        let text = text.trim();
        if let Some(back) = whole(text).filter(|_| text.starts_with('-')) {
            let back = u64::try_from(back.unsigned_abs()).unwrap_or(u64::MAX);
            return Ok(Some(LogPlace::Back(back)));
        }
        if let Some(ns) = ago_ns(key, text)? {
            return Ok(Some(LogPlace::AgoNs(ns)));
        }
        let wrong = |reason: String| {
            let others =
                "earliest, latest, a number such as -1000, and a time such as '-10 minutes' are read, too";
            Failure { key: Some(key), ..Failure::new("bad_bookmark", format!("{reason}; {others}")) }
        };
        Ok(Some(match text.to_lowercase().as_str() {
            "earliest" | "epoch" | "0" | "0|0|" => LogPlace::Earliest,
            "latest" | "now" | "0|1|" => LogPlace::Latest,
            _ if text.parse::<Bookmark>().is_ok() => LogPlace::Bookmark(text.to_owned()),
            _ => match time_ns(text) {
                Some(ns) if (0..TIME_END_NS).contains(&ns) => LogPlace::TimeNs(ns as u64),
                Some(_) => {
                    return Err(wrong(format!("the time {text} is not between the years 1970 and 2553")));
                }
                None => {
                    return Err(wrong(format!(
                        "{} is not a bookmark or a time: expected \"epoch\", \"now\", a bookmark such as \"4711|17|\", or a time such as \"2026-01-31T12:00:00Z\"",
                        quoted(text)
                    )));
                }
            },
        }))
    }

    fn topics(&self) -> Outcome<Option<Topics>> {
        let (names, pattern, prefix) =
            (self.text("topics"), self.text("topicPattern"), self.text("topicPrefix"));
        match (names, pattern, prefix) {
            (None, None, None) => Ok(None),
            (Some(names), None, None) => {
                Ok(Some(Topics::Names(names.split(',').map(|name| name.trim().to_owned()).collect())))
            }
            (None, Some(pattern), None) => Ok(Some(Topics::Pattern(pattern.to_owned()))),
            (None, None, Some(prefix)) => Ok(Some(Topics::Prefix(prefix.to_owned()))),
            _ => Err(Failure::option("topics, topicPattern, topicPrefix: only one of them")),
        }
    }

    fn directories(&self) -> Outcome<Vec<String>> {
        let given = match (self.text("path"), self.text("paths")) {
            (Some(_), Some(_)) => return Err(Failure::option("path, paths: only one of them")),
            (Some(path), None) => vec![path.to_owned()],
            (None, None) => Vec::new(),
            (None, Some(paths)) => serde_json::from_str(paths)
                .map_err(|_| Failure::option("paths: expected a JSON list of directories"))?,
        };
        given.iter().map(|path| local_path("path", path)).collect()
    }

    fn prefixed(&self, prefix: &str) -> BTreeMap<String, String> {
        let named =
            |(key, value): (&String, &String)| Some((key.strip_prefix(prefix)?.to_owned(), value.clone()));
        self.options.iter().filter_map(named).collect()
    }

    /// Refuses options that exclude `lastValues`, and options of `lastValues` without it.
    fn check_last_values(&self, topic: Option<&str>, directories: &[String]) -> Outcome<()> {
        if topic.is_none() {
            return match self.text("expiration") {
                Some(_) => Err(Failure::option(
                    "expiration: it is for lastValues; leave it out, or name the topic in lastValues",
                )),
                None => Ok(()),
            };
        }
        if let Some((key, reason)) = WITHOUT_LAST_VALUES.iter().find(|(key, _)| self.text(key).is_some()) {
            return Err(Failure::option(format!("{key}: it cannot be used with lastValues: {reason}")));
        }
        match directories {
            [_] => Ok(()),
            _ => Err(Failure::option(
                "lastValues: it is the state of one journal; read each directory separately",
            )),
        }
    }

    fn expiration(&self) -> Outcome<Expiration> {
        let text = self.text("expiration").unwrap_or("disabled");
        match text.to_lowercase().as_str() {
            "disabled" => Ok(Expiration::Disabled),
            "enabled" => Ok(Expiration::Enabled),
            _ => match duration_ns("expiration", text)? {
                0 => Err(Failure::option(format!(
                    "expiration: {} is not disabled, enabled, or a time above 0",
                    quoted(text)
                ))),
                ns => Ok(Expiration::AfterNs(ns)),
            },
        }
    }
}

/// The options as Spark has them, from JSON.
pub fn from_json(text: &str) -> Outcome<BTreeMap<String, String>> {
    serde_json::from_str(text)
        .map_err(|error| Failure::option(format!("the options cannot be read: {error}")))
}

/// The instant that is this time before another one.
pub(crate) fn before(now: Timestamp, ns: u64) -> Timestamp {
    Timestamp::from_ns(now.as_ns().saturating_sub(ns))
}

fn within(key: &str, text: &str, number: Option<i128>, least: u64, most: u64) -> Outcome<u64> {
    match number {
        Some(number) if (i128::from(least)..=i128::from(most)).contains(&number) => Ok(number as u64),
        _ => {
            Err(Failure::option(format!("{key}: {} is no whole number from {least} to {most}", quoted(text))))
        }
    }
}

/// The absolute path of a directory, of `file:DIRECTORY` as it was written, or of a `file://` URI:
/// the client reads all of them in the same way.
fn local_path(key: &str, text: &str) -> Outcome<String> {
    let shown = quoted(&without_password(text));
    let path = text.strip_prefix("file:").unwrap_or(text);
    let path = match path.strip_prefix("//").filter(|_| path.len() < text.len()) {
        Some(place) => path_of_uri(key, &shown, place)?,
        None => path.to_owned(),
    };
    if is_of_another_system(&path) {
        return Err(Failure::option(format!(
            "{key}: {shown} is no directory of a file system that is mounted here; archive the journal to Parquet there instead"
        )));
    }
    let failed = |error| Failure::option(format!("{key}: {shown}: {error}"));
    let absolute = std::path::absolute(path).map_err(failed)?;
    Ok(normal(&absolute).to_string_lossy().into_owned())
}

/// The path of a URI of this machine. `place` is what it has after `file://`.
fn path_of_uri(key: &str, shown: &str, place: &str) -> Outcome<String> {
    let (host, path) = place.split_at(place.find('/').unwrap_or(place.len()));
    if !matches!(host, "" | "localhost") {
        return Err(Failure::option(format!(
            "{key}: {shown} names the host {}; a directory of this machine is file:{}",
            quoted(&without_password(host)),
            without_password(place)
        )));
    }
    // Spark itself reads the directory of a checkpoint, and takes `%` as it is.
    if key == "checkpointLocation" {
        return Ok(path.to_owned());
    }
    percent_decoded(path).ok_or_else(|| Failure::option(format!("{key}: {shown} is not UTF-8")))
}

/// Whether a path begins with a scheme, such as `s3:/`.
fn is_of_another_system(path: &str) -> bool {
    let Some((scheme, _)) = path.split_once(":/") else { return false };
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+.-".contains(&byte);
    scheme.len() > 1 && scheme.as_bytes()[0].is_ascii_lowercase() && scheme.bytes().all(is_letter)
}

/// The path without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir => (),
            other => normal.push(other),
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(options: &[(&str, &str)]) -> Outcome<WriteOptions> {
        let given = options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        WriteOptions::new(&given.chain([("path".to_owned(), "/j".to_owned())]).collect())
    }

    #[test]
    fn a_file_uri_leads_where_it_leads_for_a_client() {
        let place = |text: &str| local_path("path", text);
        for (text, expected) in [
            ("/a b", "/a b"),
            ("/a%20b", "/a%20b"),
            ("file:/a%20b", "/a%20b"),
            ("file:///a%20b/%C3%A9%25", "/a b/é%"),
            ("file:///a%2", "/a%2"),
            ("file:///a%zz", "/a%zz"),
            ("file:///a%+1", "/a%+1"),
            ("file://localhost/abs", "/abs"),
            ("//a", "/a"),
        ] {
            assert_eq!(place(text), Ok(expected.to_owned()), "{text}");
        }
        for (text, expected) in [
            (
                "file://fileserver/share",
                "names the host 'fileserver'; a directory of this machine is file:fileserver/share",
            ),
            ("file://user:geheim@h/d", "names the host 'user:***@h'"),
            ("file:///a%FF", "is not UTF-8"),
            ("quire://user:x/geheim@h", "'quire://user:***@h' is no directory"),
        ] {
            let failure = place(text).unwrap_err();
            assert!(failure.text.contains(expected) && !failure.text.contains("geheim"), "{failure}");
        }
        assert_eq!(local_path("checkpointLocation", "file:///a%20b"), Ok("/a%20b".to_owned()));
    }

    #[test]
    fn a_password_in_a_url_is_not_repeated() {
        for url in ["http://u:geheim@h", "u:x@geheim/y@h", "quirez://u:?geheim@h"] {
            let given = BTreeMap::from([("url".to_owned(), url.to_owned())]);
            let failure = ReadOptions::new(&given).unwrap_err();
            assert!(failure.text.contains("u:***@h") && !failure.text.contains("geheim"), "{failure}");
        }
        let given = BTreeMap::from([("url".to_owned(), "quire://u:geheim@h".to_owned())]);
        assert_eq!(ReadOptions::new(&given).unwrap().places(), "quire://u:***@h");
    }

    #[test]
    fn files_of_tls_require_a_url_with_tls() {
        for key in ["sslCa", "sslCertificate", "sslKey"] {
            let given = |url: &str| {
                let given = [("url", url), (key, "/f.pem"), ("topic", "t")];
                given.map(|(key, value)| (key.to_owned(), value.to_owned()))
            };
            let access = WriteOptions::new(&BTreeMap::from(given("quires://h"))).unwrap().access;
            assert!([access.ca, access.certificate, access.key].contains(&Some("/f.pem".to_owned())));
            for url in ["quire://h", "file:/j"] {
                let failure = WriteOptions::new(&BTreeMap::from(given(url))).unwrap_err();
                assert!(
                    failure.text.starts_with(&format!("{key}: it requires a url that begins")),
                    "{failure}"
                );
            }
        }
    }

    #[test]
    fn secrets_are_refused_by_name() {
        for (key, file) in [("password", "passwordFile"), ("Token", "tokenFile")] {
            let given = [("url", "quires://h"), (key, "geheim")];
            let given = given.map(|(key, value)| (key.to_owned(), value.to_owned()));
            let failure = ReadOptions::new(&BTreeMap::from(given)).unwrap_err();
            assert!(failure.text.contains("would be shown") && failure.text.contains(file), "{failure}");
            assert!(!failure.text.contains("geheim"), "{failure}");
        }
        let given = [("url", "quires://h"), ("passwordFile", "/p"), ("tokenFile", "/t")];
        let given = given.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let failure = ReadOptions::new(&BTreeMap::from(given)).unwrap_err();
        assert!(failure.text.starts_with("tokenFile: a client has a password or a token"), "{failure}");
    }

    #[test]
    fn eight_digits_are_a_date_or_an_error() {
        let time = |text: &str| {
            let given = [("path", "/j"), ("startingTimestamp", text)];
            let given = given.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            ReadOptions::new(&given.collect()).map(|options| options.starting_ns)
        };
        assert_eq!(time("20260131"), Ok(Some(1_769_817_600_000_000_000)));
        for text in ["20261301", "20260230", "00000000", " 20261301 "] {
            let failure = time(text).unwrap_err();
            assert!(failure.text.contains("cannot be read: expected a time"), "{failure}");
        }
        assert_eq!(time("2026130"), Ok(Some(2_026_130_000_000)));
        assert_eq!(time("-20261301"), Ok(Some(0)));
        assert_eq!(time("120261301"), Ok(Some(120_261_301_000_000)));
    }

    #[test]
    fn a_checkpoint_elsewhere_needs_a_staging_directory() {
        let near = written(&[("checkpointLocation", "file:///data/../c")]).unwrap();
        assert_eq!((near.checkpoint.as_deref(), near.staging), (Some("/c"), None));
        let failure = written(&[("checkpointLocation", "s3://bucket/c")]).unwrap_err();
        assert!(failure.text.starts_with("checkpointLocation: 's3://bucket/c' is no directory"), "{failure}");
        let staged = written(&[("checkpointLocation", "s3://bucket/c"), ("stagingDirectory", "/s")]).unwrap();
        assert_eq!((staged.checkpoint, staged.staging.as_deref()), (None, Some("/s")));
    }
}
