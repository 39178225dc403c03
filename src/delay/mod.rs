//! delay
