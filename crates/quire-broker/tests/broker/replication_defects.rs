//! Faults of replication that the simulation found, each as its shortest history.

use std::time::Duration;

use quire_broker::{BrokerConfig, SyncType};
use quire_command::*;

use super::links::*;
use super::pair::*;

const A_MINUTE: Duration = Duration::from_secs(60);

fn with_last_values(mut configs: Vec<BrokerConfig>) -> Vec<BrokerConfig> {
    for config in &mut configs {
        config.sow_topics =
            serde_json::from_str(r#"[{"name": "orders", "message_type": "json", "key": ["/n"]}]"#).unwrap();
    }
    configs
}

#[test]
fn a_delete_is_acknowledged_when_the_sync_destination_has_it() {
    let mut cluster = Cluster::new(with_last_values(pair_of(SyncType::Sync)));
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 1);
    assert_eq!(cluster.persisted(0, 1), 1);
    cluster.partition(0, 1);
    let delete = SowDelete {
        command: 2,
        sequence: 2,
        topic: "orders",
        filter: Some("/n = 1"),
        ..SowDelete::default()
    };
    cluster.at(0).send(1, &Command::SowDelete(delete));
    cluster.settle();
    assert_eq!(cluster.persisted(0, 1), 0);
    cluster.heal();
    cluster.pass(A_MINUTE);
    assert_eq!(cluster.persisted(0, 1), 2);
}

#[test]
fn a_repeated_publish_is_acknowledged_when_the_sync_destination_has_it() {
    let mut configs = pair_of(SyncType::Sync);
    configs[1].replication.destinations[0].pass_through = vec![".*".into()];
    let mut to_c = destination("c", SyncType::Sync);
    to_c.pass_through = vec![".*".into()];
    configs[1].replication.destinations.push(to_c);
    configs.push(instance("c", vec![]));
    let mut cluster = Cluster::new(configs);
    cluster.at(0).client(1, "p");
    cluster.partition(1, 2);
    cluster.publish(0, 1, 1, 2);
    assert_eq!(cluster.persisted(0, 1), 0);
    // The client fails over to b, which has the messages from a, and sends them again.
    cluster.at(1).client(1, "p");
    cluster.publish(1, 1, 1, 2);
    assert_eq!(cluster.persisted(1, 1), 0, "c does not have them");
    cluster.heal();
    cluster.pass(A_MINUTE);
    assert_eq!(cluster.persisted(1, 1), 2);
}
