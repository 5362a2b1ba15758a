//! Subscribe commands with given options, and the golden file of their verdicts. The tests of the
//! broker use them, too.

use quire_command::subscribe::OptionName;
use quire_command::{Keys, Subscribe, SubscribeOptions, Texts};

/// A line for each set of options: the options, ` | `, and `ok` or the error.
pub const GOLDEN: &str = include_str!("../../../../tests/golden/subscribe-options.txt");

/// The options and the verdict of each line of the golden file.
pub fn golden() -> impl Iterator<Item = (Vec<OptionName>, &'static str)> {
    let lines = GOLDEN.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| {
        let (options, verdict) = line.split_once(" | ").unwrap();
        (options.split(' ').map(|name| OptionName::from_name(name).unwrap()).collect(), verdict)
    })
}

/// A command with these options, each with a value that a topic with history allows.
pub fn with_options<'a>(options: &[OptionName], mut subscribe: Subscribe<'a>) -> Subscribe<'a> {
    for option in options {
        let bit = match option {
            OptionName::Bookmark => {
                subscribe.bookmark = subscribe.bookmark.or(Some("0"));
                continue;
            }
            OptionName::Until => {
                subscribe.bookmark = Some("[0:0|1|]");
                continue;
            }
            OptionName::Rate => {
                subscribe.rate = Some("2X");
                continue;
            }
            OptionName::RateMaxGap => {
                subscribe.rate_max_gap_ns = Some(1_000_000_000);
                continue;
            }
            OptionName::Conflation => {
                subscribe.conflation_ns = Some(1_000_000_000);
                continue;
            }
            OptionName::ConflationKey => {
                subscribe.conflation_key = Some("/id");
                continue;
            }
            OptionName::MaxBacklog => {
                subscribe.max_backlog = Some(5);
                continue;
            }
            OptionName::OrderBy => {
                subscribe.order_by = Some("/id");
                continue;
            }
            OptionName::TopN => {
                subscribe.top_n = Some(5);
                continue;
            }
            OptionName::SkipN => {
                subscribe.skip_n = Some(0);
                continue;
            }
            OptionName::Keys => {
                subscribe.keys = Keys::from_bytes(b"\x011");
                continue;
            }
            OptionName::Select => {
                subscribe.select = Some("-/,+/id");
                continue;
            }
            OptionName::Projection => {
                subscribe.projection = Texts::from_bytes(b"\x0e\0\0\0COUNT(1) AS /n");
                continue;
            }
            OptionName::Grouping => {
                subscribe.grouping = Texts::from_bytes(b"\x03\0\0\0/id");
                continue;
            }
            OptionName::BookmarkNotFound => SubscribeOptions::NOT_FOUND_NOW,
            OptionName::Live => SubscribeOptions::LIVE,
            OptionName::FullyDurable => SubscribeOptions::FULLY_DURABLE,
            OptionName::Paused => SubscribeOptions::PAUSED,
            OptionName::Deletions => SubscribeOptions::DELETIONS,
            OptionName::Sow => SubscribeOptions::SOW,
            OptionName::Oof => SubscribeOptions::OOF,
            OptionName::Delta => SubscribeOptions::DELTA,
            OptionName::NoEmpties => SubscribeOptions::NO_EMPTIES,
            OptionName::Replace => SubscribeOptions::REPLACE,
        };
        subscribe.options = subscribe.options.and(bit);
    }
    subscribe
}
