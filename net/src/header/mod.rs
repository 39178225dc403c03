//! Header codecs: the two ways a header is written, and the table of its ext fields.

pub mod binary;
pub mod fields;
pub mod json;
pub(crate) mod lexer;
pub(crate) mod template;
