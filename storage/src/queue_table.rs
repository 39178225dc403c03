//! queue_table
