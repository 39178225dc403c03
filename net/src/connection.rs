//! connection
