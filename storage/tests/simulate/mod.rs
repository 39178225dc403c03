//! The simulated disk (docs/design.md, "Simulated disk"): the production writer, dispatcher,
//! preparer, flusher, recovery, retention and readers, driven step by step over a medium that
//! tears, reorders, loses and fails by seed, with an oracle that knows what was promised.
//!
//! `scripts/simulate` runs many seeds, or one with a trace.

mod engine;
mod medium;
mod message;
mod oracle;
mod run;
mod schedules;
mod seeds;
