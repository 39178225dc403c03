//! commit_log
