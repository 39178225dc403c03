//! The one integration binary: each module holds one kind of promise.

mod serve;
mod style;
