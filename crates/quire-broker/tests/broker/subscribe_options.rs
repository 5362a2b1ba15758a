//! The broker gives each set of options the verdict of `tests/golden/subscribe-options.txt`.

#[path = "../../../quire-command/tests/options/mod.rs"]
mod options;

use quire_broker::{HistorySettings, SowTopicSettings};
use quire_command::*;

use crate::last_value_pair::*;
use crate::pair::*;

#[test]
fn the_broker_has_the_verdict_of_the_golden_file_on_each_set_of_options() {
    let history = HistorySettings { window_ns: 86_400_000_000_000, granularity_ns: 0, max_size: 1 << 30 };
    let mut pair = with_topics([SowTopicSettings { history: Some(history), ..sow_topic("orders") }]);
    for (set, verdict) in options::golden() {
        let subscribe = options::with_options(&set, subscribe(7, "orders"));
        pair.subscribe(2, &subscribe);
        pair.turn();
        let answered = |said: &Said| match said {
            Said::Ack { kind: AckKind::Processed, code, .. } => Some(*code),
            _ => None,
        };
        let code = pair.take(2).iter().find_map(answered).unwrap();
        if verdict == "ok" {
            // A state before the first message, for example, is refused for another reason.
            assert_ne!(code, Code::BadOption, "{set:?}: {}", pair.clients[&2].refusal);
        } else {
            assert_eq!((code, &*pair.clients[&2].refusal), (Code::BadOption, verdict), "{set:?}");
        }
        if code == Code::Ok {
            let unsubscribe = Unsubscribe { command: 8, subscription: 7, ..Unsubscribe::default() };
            pair.send(2, &Command::Unsubscribe(unsubscribe));
            pair.turn();
            pair.take(2);
        }
    }
}
