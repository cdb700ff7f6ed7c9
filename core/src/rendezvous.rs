//! The rendezvous as its users meet it: parameters, endpoints, URLs, errors, and what a node learns when it has joined.

pub mod error;
pub mod integer;
pub mod parameters;
pub mod parse;
pub mod registry;
pub mod static_settings;
pub mod store_info;
pub mod url;
