//! tail
