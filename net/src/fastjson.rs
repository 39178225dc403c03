//! fastjson
