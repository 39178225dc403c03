//! index_entry
