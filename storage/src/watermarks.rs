//! watermarks
