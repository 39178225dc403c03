//! parked
