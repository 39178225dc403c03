//! aligned
