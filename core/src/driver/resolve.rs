//! Host name resolution on a thread of its own: the resolver of the C library has no deadline.

use crate::driver::cancel::CancelToken;
use crate::driver::event_loop::Waker;
use crate::driver::lock::Lock;
use crate::driver::socket::classify;
use crate::driver::threads;
use crate::error::{Cause, ErrorKind};
use crate::prelude::*;
use alloc::ffi::CString;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::io;
use std::net::UdpSocket;
use std::sync::Mutex;

/// Addresses of a host, or the reason why none were found.
pub type Found = Result<Vec<SocketAddr>, ResolveError>;

/// Reason why no addresses of a host were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResolveError {
    /// Error number of the resolver (`EAI_*`).
    Resolver(i32),
    /// Error number of the system: the look-up could not be made.
    System(i32),
}

impl ResolveError {
    /// Returns the error for a resolver thread that could not be started.
    pub(super) fn of_thread(error: &io::Error) -> Self {
        Self::System(error.raw_os_error().unwrap_or(libc::EAGAIN))
    }

    /// Returns the kind and the cause of a call that failed with this.
    pub fn classify(self) -> (ErrorKind, Cause) {
        match self {
            Self::Resolver(number @ libc::EAI_MEMORY) => (ErrorKind::Exhausted, Cause::Resolver(number)),
            Self::Resolver(number) => (ErrorKind::Unresolved, Cause::Resolver(number)),
            Self::System(number) => classify(&io::Error::from_raw_os_error(number)),
        }
    }
}

impl fmt::Display for ResolveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Resolver(number) => f.write_str(&error_text(number)),
            Self::System(number) => io::Error::from_raw_os_error(number).fmt(f),
        }
    }
}

/// Returns the address if `host` is a literal: `127.0.0.1`, `::1`, `[::1]`.
pub fn literal(host: &str, port: u16) -> Option<SocketAddr> {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    bare.parse().ok().map(|address: IpAddr| SocketAddr::new(address, port))
}

/// Returns the address of this host on the way to a server. Looks `host` up if it is a name, on the calling thread, and
/// sends nothing.
pub fn address_towards(host: &str, port: u16) -> Option<IpAddr> {
    let server = match literal(host, port) {
        Some(server) => server,
        None => *addresses(host, port).ok()?.first()?,
    };
    let unspecified: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((unspecified, 0)).ok()?;
    socket.connect(server).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Longest wait of [`within_limit`] for the resolver.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs a look-up on a new thread, and waits for its result: for at most two seconds, and until `token` is cancelled.
pub fn within_limit<T: Send + 'static>(
    token: &CancelToken,
    look_up: impl FnOnce() -> Option<T> + Send + 'static,
) -> Option<T> {
    within(RESOLVE_TIMEOUT, token, look_up)
}

/// As [`within_limit`], with another longest wait.
pub(super) fn within<T: Send + 'static>(
    timeout: Duration,
    token: &CancelToken,
    look_up: impl FnOnce() -> Option<T> + Send + 'static,
) -> Option<T> {
    if token.is_cancelled() {
        return None;
    }
    let (over, result) = (CancelToken::child_of(&[token]), Arc::new(Mutex::new(None)));
    let (end, found) = (over.clone(), Arc::clone(&result));
    let look_up = move || {
        *found.locked() = look_up();
        end.cancel();
    };
    threads::spawn("rdzv-resolve", look_up).ok()?;
    over.wait(timeout);
    result.locked().take()
}

/// Looks `host` up on a new thread, which passes the result to `done`.
///
/// # Errors
/// The thread could not be started.
pub fn look_up(host: &str, port: u16, done: impl FnOnce(Found) + Send + 'static) -> io::Result<()> {
    let host = host.to_string();
    threads::spawn("rdzv-resolve", move || done(addresses(&host, port))).map(drop)
}

/// Look-ups of one host for an event loop, one at a time.
#[derive(Debug)]
pub(super) struct HostLookup {
    host: Box<str>,
    port: u16,
    /// Look-up in progress. Its thread sets the result.
    pending: Option<Arc<Mutex<Option<Found>>>>,
}

impl HostLookup {
    pub(super) fn new(host: &str, port: u16) -> Self {
        Self { host: host.into(), port, pending: None }
    }

    /// Returns the result if no look-up is necessary or possible. Otherwise begins one, unless one is in progress, and
    /// wakes the loop at its end.
    pub(super) fn begin(&mut self, waker: Waker) -> Option<Found> {
        if let Some(address) = literal(&self.host, self.port) {
            return Some(Ok(vec![address]));
        }
        if self.pending.is_some() {
            return None;
        }
        let result = Arc::new(Mutex::new(None));
        self.pending = Some(Arc::clone(&result));
        let begun = look_up(&self.host, self.port, move |found| {
            // The loop may have ended by now; then the result is dropped.
            *result.locked() = Some(found);
            waker.wake();
        });
        begun.err().map(|error| {
            self.pending = None;
            Err(ResolveError::of_thread(&error))
        })
    }

    /// Returns whether a look-up has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.pending.as_ref().is_some_and(|result| result.locked().is_some())
    }

    /// Returns the result of a look-up that has ended, once.
    pub(super) fn take(&mut self) -> Option<Found> {
        let found = self.pending.as_ref()?.locked().take()?;
        self.pending = None;
        Some(found)
    }
}

/// Returns the resolver's message for its error number.
pub(super) fn error_text(number: i32) -> String {
    if number == 0 {
        return "the resolver knows none".into();
    }
    // SAFETY: `gai_strerror` takes any number and returns a string that is never freed.
    let text = unsafe { core::ffi::CStr::from_ptr(libc::gai_strerror(number)) };
    text.to_string_lossy().into_owned()
}

/// Addresses that the resolver has found; freed with this.
struct AddressList(*mut libc::addrinfo);

impl Drop for AddressList {
    fn drop(&mut self) {
        // SAFETY: getaddrinfo made the list, and it is freed once.
        unsafe { libc::freeaddrinfo(self.0) };
    }
}

/// Asks the resolver on the calling thread.
fn resolve(host: &str, flags: libc::c_int) -> Result<AddressList, ResolveError> {
    let Ok(name) = CString::new(host) else { return Err(ResolveError::Resolver(libc::EAI_NONAME)) };
    // SAFETY: all zeros is a valid `addrinfo`: no flags, any family, null pointers.
    let mut hints: libc::addrinfo = unsafe { core::mem::zeroed() };
    hints.ai_socktype = libc::SOCK_STREAM;
    hints.ai_flags = flags;
    let mut list: *mut libc::addrinfo = core::ptr::null_mut();
    // SAFETY: every thread has its own error number.
    unsafe { *libc::__errno_location() = 0 };
    // SAFETY: `name` is a C string, `hints` is initialised, `list` is written on success only.
    let number =
        unsafe { libc::getaddrinfo(name.as_ptr(), core::ptr::null(), &raw const hints, &raw mut list) };
    if number != 0 {
        // When no descriptor is left, the resolver also reports that the name does not exist.
        return Err(match io::Error::last_os_error().raw_os_error() {
            Some(system @ (libc::EMFILE | libc::ENFILE | libc::ENOMEM)) => ResolveError::System(system),
            _ => ResolveError::Resolver(number),
        });
    }
    Ok(AddressList(list))
}

/// Looks up the canonical name of `host` on the calling thread.
pub(super) fn canonical_name(host: &str) -> Option<String> {
    let list = resolve(host, libc::AI_CANONNAME).ok()?;
    // SAFETY: the list has an entry, and the first one holds the canonical name, a C string, if there is one.
    let name = unsafe { list.0.as_ref()?.ai_canonname };
    if name.is_null() {
        return None;
    }
    // SAFETY: as above; the list is freed after this.
    Some(unsafe { core::ffi::CStr::from_ptr(name) }.to_string_lossy().into_owned())
}

/// Looks `host` up on the calling thread.
pub fn addresses(host: &str, port: u16) -> Found {
    let list = resolve(host, 0)?;
    let mut found = Vec::new();
    let mut next = list.0;
    // SAFETY: `next` walks the list that getaddrinfo made, which ends with null; it is freed with `list`.
    while let Some(info) = unsafe { next.as_ref() } {
        next = info.ai_next;
        let address = match info.ai_family {
            libc::AF_INET => {
                // SAFETY: an AF_INET entry points to a `sockaddr_in`.
                let v4 = unsafe { &*info.ai_addr.cast::<libc::sockaddr_in>() };
                SocketAddr::new(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into(), port)
            }
            libc::AF_INET6 => {
                // SAFETY: an AF_INET6 entry points to a `sockaddr_in6`.
                let v6 = unsafe { &*info.ai_addr.cast::<libc::sockaddr_in6>() };
                let address = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                SocketAddr::V6(SocketAddrV6::new(address, port, 0, v6.sin6_scope_id))
            }
            _ => continue,
        };
        if !found.contains(&address) {
            found.push(address);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_need_no_resolver() {
        assert_eq!(literal("127.0.0.1", 1), Some(SocketAddr::from(([127, 0, 0, 1], 1))));
        assert_eq!(literal("[::1]", 2), literal("::1", 2));
        assert_eq!(literal("localhost", 1), None);
    }

    #[test]
    fn a_name_is_found_or_the_number_says_why_not() {
        let found = addresses("localhost", 7).expect("localhost");
        assert!(found.iter().all(|address| address.ip().is_loopback() && address.port() == 7), "{found:?}");
        let error = addresses("no\0name", 7).unwrap_err();
        assert!(!error.to_string().is_empty());
        assert_eq!(error.classify().0, ErrorKind::Unresolved);
    }

    #[test]
    fn a_look_up_is_given_up_when_it_is_cancelled() {
        let token = CancelToken::new();
        assert_eq!(within_limit(&token, || addresses("localhost", 7).ok()), addresses("localhost", 7).ok());
        // A resolver that does not answer.
        let (answer, silent) = std::sync::mpsc::channel::<()>();
        let (begin, begun) = std::sync::mpsc::channel();
        let look_up = move || {
            begin.send(()).ok()?;
            silent.recv().ok()
        };
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| within(Duration::from_secs(3600), &token, look_up));
            begun.recv().expect("it begins");
            token.cancel();
            assert_eq!(waiting.join().expect("no panic"), None);
        });
        assert_eq!(within_limit(&token, || Some(7)), None, "it is cancelled already");
        drop(answer);
    }

    #[test]
    fn a_resolver_that_cannot_look_is_exhausted() {
        for number in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EAGAIN] {
            let classified = ResolveError::System(number).classify();
            assert_eq!(classified, (ErrorKind::Exhausted, Cause::Os(number)));
        }
        assert_eq!(ResolveError::Resolver(libc::EAI_MEMORY).classify().0, ErrorKind::Exhausted);
    }
}
