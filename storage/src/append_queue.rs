//! append_queue
