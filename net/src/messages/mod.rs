//! Typed request and response headers, one file per request family.
