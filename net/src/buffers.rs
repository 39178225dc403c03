//! buffers
