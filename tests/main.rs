//! The one integration binary: each module holds one kind of promise.

mod conversation;
mod serve;
mod style;
