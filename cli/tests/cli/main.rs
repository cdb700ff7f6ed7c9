//! The program as its users meet it: started with arguments, judged by its output and its exit code.

mod bench;
mod closed;
mod help;
mod process;
mod server;
mod store;
mod store_errors;
