//! The store as a whole: directories written by Apache's brokers, its own across restarts and
//! crashes, and readers beside writers.

mod backlog;
mod crash;
mod damage;
mod extensions;
mod flips;
mod golden;
mod heard;
mod holes;
mod inspecting;
mod kill;
mod killed;
mod lent;
mod light;
mod matrix;
mod places;
mod removed;
mod retention;
mod running;
mod stale;
mod support;
