//! The one integration binary: each module holds one kind of promise.

mod admin;
mod admin_replay;
mod bench;
mod cluster;
mod conversation;
mod limits;
mod patience;
mod serve;
mod starting;
mod style;
mod tools;
