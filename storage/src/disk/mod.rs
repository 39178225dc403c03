//! The disk behind the commit log: one narrow trait, several bodies.

pub(crate) mod aligned;
pub mod blocking;
pub mod faulty;
pub mod memory;
pub mod uring;
