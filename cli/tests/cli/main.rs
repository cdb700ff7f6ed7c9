//! The program as its users meet it: started with arguments, judged by its output and its exit code.

mod bench;
#[path = "../../../core/src/tls/tests/certificates.rs"]
mod certificates;
mod closed;
mod help;
mod process;
mod server;
mod store;
mod store_errors;
mod tls;
mod tokens;
