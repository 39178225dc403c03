//! Configuration: Apache's broker.conf and key names, resolved once.
//!
//! [`RawConfig`] is text as it was brought; [`Config`] and [`LiveConfig`] are what it comes to.
//! Nothing outside this module parses a setting or applies a default.

mod address;
mod apache_keys;
mod keys;
mod live;
mod network;
mod properties;
mod raw;
mod resolved;
mod timers;
mod values;

pub use address::{Advertised, advertised_reason, pick_address};
pub use keys::{Change, Effect, Key, Kind, all, find, nearest};
pub use live::{LiveConfig, UpdateError};
pub use network::Network;
pub use raw::{ConfigError, RawConfig, Remarks};
pub use resolved::{Config, Options, PortChoice, Resolved};
pub use timers::{LiveTimers, TimerConfig};
