//! index_file
