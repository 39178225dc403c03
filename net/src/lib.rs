//! RocketMQ remoting: bytes to commands and back, and the rings that move them.
//!
//! This crate knows no topic and no log. Codec modules (`frame`, `command`, `header`, `codes`,
//! `messages`, `encode`, `fastjson`) take bytes and return bytes: no socket, no clock, no file.

pub mod client;
pub mod codes;
pub mod command;
pub mod connection;
pub mod driver;
pub mod encode;
pub mod error;
pub mod fastjson;
pub mod frame;
pub mod header;
pub mod limits;
pub mod listener;
pub mod messages;
pub mod probe;

mod buffers;
mod epoll;
mod pass;
mod ring;
