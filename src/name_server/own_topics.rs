//! The topics of the broker of this process, as its name server shows them.

use super::{NameServer, queues_of};
use crate::topics::{TopicConfig, Topics};

impl NameServer {
    /// Enters those of `names` that are topics of `broker`, the broker of this process: all of
    /// them if they are `renewed`, else those that are missing. `mask` takes from a topic what the
    /// broker does not permit. Whatever else is shown as one of its topics goes.
    ///
    /// Each is looked up and entered while the table of topics is locked, as changes are when they
    /// are made: what is made, altered or removed meanwhile stays so.
    pub fn enter_topics(
        &self,
        broker: &str,
        topics: &Topics,
        names: impl Iterator<Item = String>,
        renewed: bool,
        mask: impl Fn(&mut TopicConfig),
    ) {
        for name in names {
            topics.while_present(&name, |config| {
                let mut registry = self.registry_mut();
                if renewed || !registry.holds(broker, &name) {
                    let mut config = config.clone();
                    mask(&mut config);
                    registry.set_topic(broker, &name, queues_of(&config));
                }
            });
        }
        let shown = self.registry().topics_of(broker);
        for name in shown {
            topics.while_absent(&name, || {
                self.registry_mut().remove_topic_of(broker, &name);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::name_server::LocalBroker;
    use crate::name_server::limits::Limits;
    use crate::persist::Persist;
    use crate::topics::TopicChange;
    use crate::topics::tests::system;

    struct Tables {
        name_server: Arc<NameServer>,
        topics: Topics,
        _dir: tempfile::TempDir,
    }

    /// The tables of a broker `b`; what changes in one is shown by the other.
    fn tables() -> Tables {
        let dir = tempfile::tempdir().expect("temporary directory");
        let persist = Arc::new(Persist::new(dir.path()));
        let name_server = Arc::new(NameServer::load(&persist, Limits::default()).expect("load"));
        let topics = Topics::load(persist, &system()).expect("load");
        let shown = Arc::clone(&name_server);
        topics.set_listener(Box::new(move |change| match change {
            TopicChange::Updated(config) => shown.topic_changed("b", config),
            TopicChange::Removed(name) => shown.topic_removed("b", name),
        }));
        let local = LocalBroker {
            cluster: "C".into(),
            name: "b".into(),
            id: 0,
            address: "127.0.0.1:1".into(),
        };
        assert!(name_server.register_local(&local, topics.data_version()));
        assert!(!name_server.register_local(&local, topics.data_version()));
        Tables {
            name_server,
            topics,
            _dir: dir,
        }
    }

    fn names<const N: usize>(names: [&str; N]) -> impl Iterator<Item = String> {
        names.map(str::to_owned).into_iter()
    }

    #[test]
    fn topics_made_altered_or_removed_during_a_registration_keep_their_routes_and_have_none() {
        for renewed in [false, true] {
            let Tables {
                name_server,
                topics,
                ..
            } = &tables();
            for name in ["Removed", "Altered", "Kept"] {
                topics.create_if_absent(TopicConfig::new(name, 4, 6));
            }
            // Seen before they change: what a registration knows of them is old.
            let changing = names(["Removed", "Altered", "Kept"]).inspect(|name| match &name[..] {
                "Removed" => {
                    topics.remove(name);
                    topics.create_if_absent(TopicConfig::new("Made", 4, 6));
                }
                "Altered" => {
                    topics.create_or_update(TopicConfig::new(name, 9, 6));
                }
                _ => {}
            });
            name_server.enter_topics("b", topics, changing, renewed, |_| {});
            let registry = name_server.registry();
            let queues = |name| {
                registry
                    .route(name)
                    .map(|route| route.queues[0].1.read_queues)
            };
            assert_eq!(queues("Removed"), None);
            assert_eq!(queues("Altered"), Some(9));
            assert_eq!((queues("Kept"), queues("Made")), (Some(4), Some(4)));
        }
    }

    #[test]
    fn what_others_took_comes_back_and_what_they_entered_goes() {
        let Tables {
            name_server,
            topics,
            ..
        } = &tables();
        for name in ["T", "Wiped"] {
            topics.create_if_absent(TopicConfig::new(name, 4, 6));
        }
        {
            let mut registry = name_server.registry_mut();
            registry.remove_topic_of("b", "T");
            let queues = registry.route("Wiped").unwrap().queues[0].1.clone();
            registry.add_topic("b", "Unknown", queues).expect("room");
            registry.set_writable("b", false);
        }
        let perm = |name| {
            let route = name_server.registry().route(name);
            route.map(|route| route.queues[0].1.perm)
        };
        name_server.enter_topics("b", topics, names(["T", "Wiped"]), false, |_| {});
        assert_eq!((perm("T"), perm("Unknown")), (Some(6), None));
        assert_eq!(perm("Wiped"), Some(4), "nothing of the table has changed");
        name_server.enter_topics("b", topics, names(["T", "Wiped"]), true, |topic| {
            topic.perm &= 2;
        });
        assert_eq!((perm("T"), perm("Wiped")), (Some(2), Some(2)));
    }
}
