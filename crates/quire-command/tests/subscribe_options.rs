//! Which options of a subscription go together, as `tests/golden/subscribe-options.txt` has it.
//!
//! The file has each option, each pair, each option with `sow` and `delta`, and each of these sets
//! with the options that they require. The tests of the broker, of the clients and of the command
//! line compare their verdicts with the same file. To write it, run
//! `QUIRE_MAKE_GOLDEN=1 cargo test -p quire-command --test subscribe_options`.

mod options;

use std::collections::BTreeSet;

use options::{GOLDEN, golden, with_options};
use quire_command::subscribe::{
    Family, Former, FormerLog, OptionError, OptionName, OptionSet, Reason, Request, Spelling, check,
};
use quire_command::{Subscribe, SubscribeOptions};

const HEAD: &str = "\
# Which options of a subscription go together: each option, each pair, each option with sow and delta,
# and these sets with the options that they require. crates/quire-command/tests/subscribe_options.rs writes it.
";

fn command(options: &[OptionName]) -> Subscribe<'static> {
    let subscribe = Subscribe { command: 1, subscription: 1, topic: "orders", ..Subscribe::default() };
    with_options(options, subscribe)
}

fn verdict(options: &[OptionName]) -> String {
    Request::of(&command(options)).map_or_else(|error| error.to_string(), |_| "ok".to_owned())
}

/// The options with those that they require, the first where there is a choice.
fn completed(mut options: Vec<OptionName>) -> Vec<OptionName> {
    while let Err(OptionError { reason: Reason::Requires(others, _), .. }) =
        check(options.iter().copied().collect())
    {
        options.push(others[0]);
    }
    options
}

fn table() -> String {
    let of_commands = OptionName::ALL.iter().copied().filter(|option| *option != OptionName::Replace);
    let all: Vec<OptionName> = of_commands.collect();
    let pairs = all
        .iter()
        .enumerate()
        .flat_map(|(index, first)| all[index..].iter().map(|second| vec![*first, *second]));
    let of_delta_calls = all.iter().map(|option| vec![*option, OptionName::Sow, OptionName::Delta]);
    let mut table = HEAD.to_owned();
    let mut seen = BTreeSet::new();
    for mut given in pairs.chain(of_delta_calls) {
        // The end is a part of the bookmark.
        if given.contains(&OptionName::Until) {
            given.push(OptionName::Bookmark);
        }
        for mut options in [given.clone(), completed(given)] {
            options.sort_by_key(|option| *option as u8);
            options.dedup();
            let names: Vec<_> = options.iter().map(|option| option.name()).collect();
            let line = format!("{} | {}\n", names.join(" "), verdict(&options));
            if seen.insert(line.clone()) {
                table += &line;
            }
        }
    }
    table
}

#[test]
#[allow(clippy::disallowed_methods)] // on request it writes a file of the repository
fn every_pair_of_options_has_the_verdict_of_the_golden_file() {
    if std::env::var_os("QUIRE_MAKE_GOLDEN").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/subscribe-options.txt");
        return std::fs::write(path, table()).unwrap();
    }
    let table = table();
    for (line, golden) in table.lines().zip(GOLDEN.lines()) {
        assert_eq!(line, golden);
    }
    assert_eq!(table.lines().count(), GOLDEN.lines().count());
}

#[test]
fn the_set_of_a_command_has_the_options_that_it_was_made_with() {
    for (options, _) in golden() {
        assert_eq!(OptionSet::from(&command(&options)), options.iter().copied().collect(), "{options:?}");
    }
}

#[test]
fn an_error_names_options_as_the_user_writes_them() {
    let error = check([OptionName::SkipN, OptionName::Sow].into_iter().collect()).unwrap_err();
    assert_eq!(error.to_string(), "skip_n: it requires top_n");
    let told = |spelling: Spelling| (spelling.name(error.option), error.reason(spelling));
    assert_eq!(told(Spelling::Argument), ("skip_n".to_owned(), "it requires `top_n`".to_owned()));
    assert_eq!(told(Spelling::Flag), ("--skip-n".to_owned(), "it requires --top-n".to_owned()));
    let error = check([OptionName::Oof].into_iter().collect()).unwrap_err();
    let reason = "it requires `sow_and_subscribe` or `delta_subscribe`";
    assert_eq!(error.reason(Spelling::Argument), reason);
    assert_eq!(error.reason(Spelling::Flag), "it requires --sow or --delta");
    // Made with `delta_subscribe` or with `sow_and_delta_subscribe`.
    let error = check([OptionName::SkipN, OptionName::Delta].into_iter().collect()).unwrap_err();
    for spelling in [Spelling::Wire, Spelling::Argument, Spelling::Flag] {
        let reason = error.reason(spelling);
        assert!(reason.starts_with("it does not go together with a delta subscription"), "{reason}");
    }
}

#[test]
fn a_kind_has_the_options_of_its_kind() {
    use OptionName::*;
    let kind = |options: &[OptionName]| match Request::of(&command(options)).unwrap() {
        Request::Stream(_) => "stream",
        Request::Log(_) => "log",
        Request::Records(records) if records.log.is_some() => "records, then log",
        Request::Records(_) => "records",
        Request::Deltas(deltas) if deltas.selection.is_some() => "records, then deltas",
        Request::Deltas(_) => "deltas",
    };
    assert_eq!(kind(&[MaxBacklog]), "stream");
    assert_eq!(kind(&[Bookmark, Rate, Paused]), "log");
    assert_eq!(kind(&[Sow, Oof, Conflation]), "records");
    assert_eq!(kind(&[Bookmark, Sow, Live]), "records, then log");
    assert_eq!(kind(&[Sow, Delta, NoEmpties]), "records, then deltas");
    assert_eq!(kind(&[Delta]), "deltas");
}

#[test]
fn a_replacement_keeps_what_the_log_of_the_former_subscription_has() {
    use OptionName::*;
    let log = FormerLog { is_paused: false, has_end: false };
    let former = Former { family: Family::Subscribe, is_page: false, is_aggregated: false, log: Some(log) };
    let replacing = |options: &[OptionName], former: &Former| {
        Request::replacing(&command(options), former).map_err(|error| error.to_string())
    };
    let Ok(Request::Log(log)) = replacing(&[Replace, Rate], &former) else { panic!("no log") };
    assert_eq!((log.bookmark, log.pace.map(|pace| pace.rate)), (None, Some("2X")));
    let refused = |is_paused, has_end, options: &[OptionName]| {
        let former = Former { log: Some(FormerLog { is_paused, has_end }), ..former };
        replacing(options, &former).unwrap_err()
    };
    assert_eq!(refused(true, false, &[Replace, Live]), "paused: it does not go together with live");
    assert!(refused(false, true, &[Replace, Live]).starts_with("live: it does not go together with an end"));
    // Another bookmark has its own end, or none.
    let ranged = Former { log: Some(FormerLog { is_paused: false, has_end: true }), ..former };
    assert!(replacing(&[Replace, Bookmark, Live], &ranged).is_ok());
    assert!(refused(false, false, &[Replace, Sow]).starts_with("replace: a subscription with a bookmark"));
    let ordinary = Former { log: None, ..former };
    assert!(replacing(&[Replace, Rate], &ordinary).unwrap_err().starts_with("rate: it requires bookmark"));
    let family = replacing(&[Replace, Delta], &ordinary).unwrap_err();
    assert!(family.starts_with("replace: the subscription was made with subscribe, and delta_subscribe"));
    let family = Family::SowAndSubscribe;
    let page = Former { is_page: true, is_aggregated: false, family, log: None };
    assert!(replacing(&[Replace, Sow], &page).unwrap_err().starts_with("replace: a page is replaced"));
}

#[test]
fn a_missing_bookmark_has_one_meaning() {
    let both = SubscribeOptions::NOT_FOUND_FAILS.and(SubscribeOptions::NOT_FOUND_NOW);
    let subscribe = Subscribe { options: both, ..command(&[OptionName::Bookmark]) };
    let error = Request::of(&subscribe).unwrap_err().to_string();
    assert_eq!(error, "bookmark_not_found: it has one meaning at a time");
}
