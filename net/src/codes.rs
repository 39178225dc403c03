//! codes
