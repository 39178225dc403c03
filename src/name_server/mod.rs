//! name_server
