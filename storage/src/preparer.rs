//! preparer
