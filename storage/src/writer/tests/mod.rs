//! Tests of the writer: against a straightforward model, on disks in memory by seed and on real
//! ones.

mod allocation;
mod engines;
mod model;
mod simulation;
