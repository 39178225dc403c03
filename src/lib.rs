//! The broker: what RocketMQ requests mean, on top of `saturnmq-net` and `saturnmq-storage`.
//!
//! Reading order: `cli::serve` wires everything; `core` is a network thread's protocol;
//! `handler` is the table of request codes.

pub mod accept;
pub mod admin;
pub mod answer;
pub mod banner;
pub mod bench;
pub mod broker;
pub mod check;
pub mod cli;
pub mod clients;
pub mod cold;
pub mod config;
pub mod control;
pub mod core;
pub mod delay;
pub mod filter;
pub mod groups;
pub mod handler;
pub mod held;
pub mod host;
pub mod http;
pub mod inspect;
pub mod light;
pub mod locks;
pub mod log;
pub mod metrics;
pub mod name_server;
pub mod names;
pub mod offsets;
pub mod parked;
pub mod persist;
pub mod questions;
pub mod room;
pub mod services;
pub mod state_json;
pub mod state_members;
pub mod stats;
pub mod subscription;
pub mod systemd;
pub mod timer;
pub mod topics;
pub mod traffic;
pub mod transaction;
pub mod wiring;
