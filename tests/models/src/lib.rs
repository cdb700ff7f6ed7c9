//! Models of the lock protocols of the driver: shuttle runs their threads in many random orders, in one thread, and finds
//! orders that deadlock or break a promise. The modules are the core's own text; see `build.rs`.

#[allow(dead_code, reason = "the models use a part of it")]
mod cancel {
    include!(concat!(env!("OUT_DIR"), "/cancel.rs"));
}

mod lock {
    include!(concat!(env!("OUT_DIR"), "/lock.rs"));
}

#[cfg(test)]
mod tests;
