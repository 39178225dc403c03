//! What the network cores may use.

use std::time::Duration;

use saturnmq_net::driver::CoreSettings;

use super::values::Values;

/// Bounds of each network core (docs/operations.md, Configuration keys).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    /// `spinMicros`: how long a core looks for work before it sleeps.
    pub spin: Duration,
    /// `frameMaxLength`: largest frame taken, in bytes.
    pub frame_max: usize,
    /// `connectionsPerCore`.
    pub connections: usize,
    /// `writeBufferHighWaterMark`: bytes not sent to a connection above which nothing more is
    /// read from it. `None`: what the cores have by themselves.
    pub unsent: Option<usize>,
}

impl Network {
    pub(super) fn new(v: &Values) -> Self {
        Self {
            spin: Duration::from_micros(v.number("spinMicros")),
            frame_max: v.number("frameMaxLength"),
            connections: v.number("connectionsPerCore"),
            unsent: Some(v.number("writeBufferHighWaterMark")).filter(|bytes| *bytes > 0),
        }
    }

    /// Sets what a core runs with.
    pub fn apply(&self, settings: &mut CoreSettings) {
        settings.spin = self.spin;
        let limits = &mut settings.limits;
        limits.max_frame = self.frame_max;
        limits.max_connections = self.connections;
        if let Some(unsent) = self.unsent {
            limits.unsent_bytes = unsent;
            limits.unsent_when_short = limits.unsent_when_short.min(unsent);
        }
    }
}

#[cfg(test)]
mod tests {
    use saturnmq_net::probe::Engine;

    use super::*;
    use crate::config::Options;

    fn settings(set: &[&str]) -> CoreSettings {
        let options = Options {
            set: set.iter().map(ToString::to_string).collect(),
            ..Options::default()
        };
        let resolved = crate::config::Config::resolve(&options).expect("legal");
        let mut settings = CoreSettings::new(0, None, Engine::Epoll(String::new()));
        resolved.config.network.apply(&mut settings);
        settings
    }

    #[test]
    fn keys_reach_the_cores_and_their_defaults_change_nothing() {
        let (usual, own) = (
            settings(&[]),
            CoreSettings::new(0, None, Engine::Epoll(String::new())),
        );
        assert_eq!(format!("{usual:?}"), format!("{own:?}"));
        let set = settings(&[
            "spinMicros=20",
            "frameMaxLength=8388608",
            "connectionsPerCore=100",
            "writeBufferHighWaterMark=32768",
        ]);
        assert_eq!(set.spin, Duration::from_micros(20));
        assert_eq!(set.limits.max_frame, 8 << 20);
        assert_eq!(set.limits.max_connections, 100);
        assert_eq!(set.limits.unsent_bytes, 32 << 10);
        assert_eq!(set.limits.check(), Ok(()));
    }
}
