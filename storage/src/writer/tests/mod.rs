//! Tests of the writer: against a straightforward model, on disks in memory by seed and on real ones.

mod engines;
mod model;
mod simulation;
