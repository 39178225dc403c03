//! The embedded name server, and the registration with outer ones.

pub mod registry;
