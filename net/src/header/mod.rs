//! Header codecs.

pub mod binary;
pub mod fields;
pub mod json;
