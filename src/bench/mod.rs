//! The load generator: drives any RocketMQ-protocol broker.

pub mod process;
pub mod produce;
