//! consume_queue
