//! Models of the lock protocols of the drivers: shuttle runs their threads in many random orders, in one thread, and finds
//! orders that deadlock or break a promise. The modules are the text that ships; see `build.rs`.

extern crate alloc;

macro_rules! modelled {
    ($($module:ident)*) => {
        $(#[allow(dead_code, reason = "the models use a part of it")]
        mod $module {
            include!(concat!(env!("OUT_DIR"), "/", stringify!($module), ".rs"));
        })*
    };
}

modelled!(backend cancel lock take timeout);
modelled!(connection_pool hash_store inbox plugin_threads);
modelled!(io_thread life pending rpc_pool session session_thread);

#[allow(dead_code, reason = "the models use a part of it")]
mod stand_ins;

#[cfg(test)]
mod tests;
