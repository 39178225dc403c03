//! consume_entry
