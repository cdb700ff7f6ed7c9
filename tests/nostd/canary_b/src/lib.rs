//! The store, the server, the rendezvous, the barriers, reports on workers, and calls between them, with an allocator and without std.
#![no_std]

#[cfg(canary_trip)]
extern crate std;

mod arena;
mod barrier;
mod calls;
mod client;
mod handlers;
mod node;
mod rendezvous;
mod reports;
mod session;
mod store;
mod watching;

/// Calls each part, so that its code is there. Returns how many of them did what they should.
#[unsafe(no_mangle)]
pub extern "C" fn canary_b() -> u32 {
    let songs = [
        store::sings(),
        node::sings(),
        client::sings(),
        rendezvous::sings(),
        handlers::sings(),
        session::sings(),
        barrier::sings(),
        reports::sings(),
        watching::sings(),
        calls::sings(),
    ];
    songs.into_iter().map(u32::from).sum()
}

#[panic_handler]
fn panicked(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
