//! Headers of requests to the name server: codes 105, 205, 216, 224, 327, 901, 904
//! (docs/protocol.md, "Request codes").

use super::headers;

headers! {
    /// Asks for a topic's route (105).
    GetRoute<'a> {
        topic: &'a str = "topic",
        accept_standard_json_only: Option<bool> = "acceptStandardJsonOnly",
    }

    /// Names a broker: 205, 327.
    BrokerName<'a> {
        broker_name: &'a str = "brokerName",
    }

    /// The answer to 205.
    WipeWritePermResponse {
        wipe_topic_count: i32 = "wipeTopicCount",
    }

    /// The answer to 327.
    AddWritePermResponse {
        add_topic_count: i32 = "addTopicCount",
    }

    /// Deletes a topic (216).
    DeleteTopicInNamesrv<'a> {
        topic: &'a str = "topic",
        /// Only from brokers of this cluster.
        cluster_name: Option<&'a str> = "clusterName",
    }

    /// Asks for the topics of a cluster (224).
    TopicsByCluster<'a> {
        cluster: &'a str = "cluster",
    }

    /// Asks for the members of a broker (901).
    GetBrokerMemberGroup<'a> {
        cluster_name: &'a str = "clusterName",
        broker_name: &'a str = "brokerName",
    }

    /// A broker is alive (904).
    BrokerHeartbeat<'a> {
        cluster_name: &'a str = "clusterName",
        broker_addr: &'a str = "brokerAddr",
        broker_name: &'a str = "brokerName",
        broker_id: Option<i64> = "brokerId",
        epoch: Option<i32> = "epoch",
        max_offset: Option<i64> = "maxOffset",
        confirm_offset: Option<i64> = "confirmOffset",
        heartbeat_timeout_ms: Option<i64> = "heartbeatTimeoutMills",
        election_priority: Option<i32> = "electionPriority",
    }
}
