//! Event loop without sockets: a wait ends at its time, or when it is woken.

use super::clock::{Clock, TIME, Time};
use rendezvous_core::time::Instant;
use std::io;
use std::os::fd::RawFd;

pub struct Token(pub u64);

pub struct Interest;

pub struct Ready {
    pub token: Token,
}

pub struct Watch;

impl Watch {
    pub fn change(&mut self, _: Interest) -> io::Result<()> {
        Ok(())
    }
}

pub struct Watcher;

impl Watcher {
    pub fn watch(&self, _: RawFd, _: Interest, _: Token) -> io::Result<Watch> {
        Ok(Watch)
    }
}

pub struct Waker;

impl Waker {
    pub fn wake(&self) {
        TIME.0.lock().expect("no panic").is_woken = true;
        TIME.1.notify_all();
    }
}

pub struct EventLoop;

impl EventLoop {
    pub fn new() -> io::Result<Self> {
        Ok(Self)
    }

    pub const fn clock(&self) -> &Clock {
        &Clock
    }

    pub fn watcher(&self) -> Watcher {
        Watcher
    }

    pub fn waker(&self) -> Waker {
        Waker
    }

    pub fn wait(&mut self, until: Option<Instant>) -> io::Result<impl Iterator<Item = Ready> + use<>> {
        let sleeps = |time: &mut Time| !time.is_woken && until.is_none_or(|until| time.now < until);
        let time = TIME.0.lock().expect("no panic");
        TIME.1.wait_while(time, sleeps).expect("no panic").is_woken = false;
        Ok(std::iter::empty())
    }
}
