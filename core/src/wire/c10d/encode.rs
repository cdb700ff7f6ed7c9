//! Encoder of requests.

use super::{Frame, Opcode};
use crate::store::op::{Key, Keys, Request};
use crate::wire::sink::Sink;

/// Encodes a frame. With a [`crate::wire::sink::Length`] as the sink, it computes the length.
pub fn encode_frame(out: &mut dyn Sink, frame: &Frame<'_>) {
    match frame {
        Frame::Validate { magic } => u32_field(out, Opcode::Validate, *magic),
        Frame::Ping { nonce } => u32_field(out, Opcode::Ping, *nonce),
        Frame::Request(request) => encode_request(out, request),
    }
}

fn encode_request(out: &mut dyn Sink, request: &Request<'_>) {
    match *request {
        Request::Set { key, value } => key_value(out, Opcode::Set, key, value),
        Request::CompareSet { key, expected, desired } => {
            key_value(out, Opcode::CompareSet, key, expected);
            string(out, desired);
        }
        Request::Get { key } => key_only(out, Opcode::Get, key),
        Request::Add { key, delta } => key_number(out, Opcode::Add, key, delta),
        Request::Check { keys } => key_list(out, Opcode::Check, keys),
        Request::Wait { keys } => key_list(out, Opcode::Wait, keys),
        Request::NumKeys => out.put(&[Opcode::NumKeys as u8]),
        Request::Delete { key } => key_only(out, Opcode::Delete, key),
        Request::Append { key, value } => key_value(out, Opcode::Append, key, value),
        Request::MultiGet { keys } => key_list(out, Opcode::MultiGet, keys),
        Request::MultiSet { pairs } => {
            out.put(&[Opcode::MultiSet as u8]);
            out.put(&(pairs.len() as u64).to_le_bytes());
            for (key, value) in pairs.iter() {
                put_key(out, key);
                string(out, value);
            }
        }
        Request::CancelWait => out.put(&[Opcode::CancelWait as u8]),
        Request::QueuePush { key, value } => key_value(out, Opcode::QueuePush, key, value),
        Request::QueuePop { key } => key_only(out, Opcode::QueuePop, key),
        Request::QueueLen { key } => key_only(out, Opcode::QueueLen, key),
        Request::ListKeys => out.put(&[Opcode::ListKeys as u8]),
        Request::Barrier { key, world_size } => key_number(out, Opcode::Barrier, key, world_size),
    }
}

fn u32_field(out: &mut dyn Sink, opcode: Opcode, u32_field: u32) {
    out.put(&[opcode as u8]);
    out.put(&u32_field.to_le_bytes());
}

fn key_only(out: &mut dyn Sink, opcode: Opcode, key: Key<'_>) {
    out.put(&[opcode as u8]);
    put_key(out, key);
}

fn key_value(out: &mut dyn Sink, opcode: Opcode, key: Key<'_>, value: &[u8]) {
    key_only(out, opcode, key);
    string(out, value);
}

fn key_number(out: &mut dyn Sink, opcode: Opcode, key: Key<'_>, number: i64) {
    key_only(out, opcode, key);
    out.put(&number.to_le_bytes());
}

fn key_list(out: &mut dyn Sink, opcode: Opcode, keys: Keys<'_>) {
    out.put(&[opcode as u8]);
    out.put(&(keys.len() as u64).to_le_bytes());
    for key in keys.iter() {
        put_key(out, key);
    }
}

fn put_key(out: &mut dyn Sink, key: Key<'_>) {
    out.put(&(key.len() as u64).to_le_bytes());
    for part in key.pieces() {
        out.put(part);
    }
}

fn string(out: &mut dyn Sink, bytes: &[u8]) {
    out.put(&(bytes.len() as u64).to_le_bytes());
    out.put(bytes);
}
