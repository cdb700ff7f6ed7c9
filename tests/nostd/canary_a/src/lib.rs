//! The embedded node: codec and client side, without std and without an allocator.
#![no_std]

#[cfg(canary_trip_alloc)]
extern crate alloc;
#[cfg(canary_trip)]
extern crate std;

mod client;
mod codec;
mod ground;
mod native;
mod node;

/// Calls each part, so that its code is there. Returns how many of them did what they should.
#[unsafe(no_mangle)]
pub extern "C" fn canary_a() -> u32 {
    [ground::sings(), codec::sings(), client::sings(), native::sings(), node::sings()].into_iter().map(u32::from).sum()
}

#[panic_handler]
fn panicked(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
