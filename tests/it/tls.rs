//! TLS through the C ABI, in a build that has it.

use crate::certificates::Authority;
use core::ffi::c_void;
use core::ptr::{null, null_mut};
use rendezvous::*;
use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};

/// Name that the certificates of all workers contain.
const WORKER: &CStr = c"node";
const TIMEOUT_MS: i64 = 20_000;

/// Texts of C that outlive the options.
struct Tls {
    texts: Vec<CString>,
}

impl Tls {
    /// Files of the CA, the certificate and the key; an empty path stands for none.
    fn new(files: [&Path; 3]) -> Self {
        let text = |file: &&Path| CString::new(file.to_str().expect("text")).expect("no NUL");
        Self { texts: files.iter().map(text).collect() }
    }

    fn options(&self) -> rdzv_tls_options {
        let file = |index: usize| match self.texts[index].to_bytes() {
            b"" => null(),
            _ => self.texts[index].as_ptr(),
        };
        rdzv_tls_options {
            struct_size: u32::try_from(size_of::<rdzv_tls_options>()).expect("small"),
            ca_file: file(0),
            cert_file: file(1),
            key_file: file(2),
            ..rdzv_tls_options::default()
        }
    }
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("rdzv-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn message(error: *mut rdzv_error) -> String {
    // SAFETY: an error that a call has returned, which is freed once.
    unsafe {
        let text = CStr::from_ptr(rdzv_error_message(error)).to_string_lossy().into_owned();
        rdzv_error_free(error);
        text
    }
}

/// Connects to a port of this host, and sets a key.
fn use_store(port: u16, tls: &rdzv_tls_options) -> Result<(), String> {
    let options = rdzv_store_options {
        struct_size: u32::try_from(size_of::<rdzv_store_options>()).expect("small"),
        port,
        host: c"127.0.0.1".as_ptr(),
        tls,
        ..rdzv_store_options::default()
    };
    let (mut store, mut error) = (null_mut(), null_mut());
    // SAFETY: the options and what they point to live until the calls return; the handle is freed once.
    unsafe {
        if rdzv_store_new_native(null(), &raw const options, &raw mut store, &raw mut error) != RDZV_OK {
            return Err(message(error));
        }
        let set = rdzv_store_set(store, b"k".as_ptr(), 1, b"v".as_ptr(), 1, 0, null_mut());
        assert_eq!(set, RDZV_OK);
        rdzv_store_free(store);
    }
    Ok(())
}

#[test]
fn a_store_of_c_uses_the_files_that_its_options_name() {
    let folder = Folder::new("c-tls");
    let authority = Authority::new();
    let ca = authority.write(&folder.0, "ca.pem");
    let (cert, key) = authority.issue(&["127.0.0.1"]).write(&folder.0, "server");
    let all = Tls::new([&ca, &cert, &key]);
    let tls = all.options();
    let options = rdzv_server_options {
        struct_size: u32::try_from(size_of::<rdzv_server_options>()).expect("small"),
        tls: &raw const tls,
        ..rdzv_server_options::default()
    };
    let (mut server, mut error) = (null_mut(), null_mut());
    // SAFETY: as in `use_store`.
    let port = unsafe {
        let started = rdzv_server_new(null(), &raw const options, &raw mut server, &raw mut error);
        assert_eq!(started, RDZV_OK);
        rdzv_server_port(server)
    };
    assert_eq!(use_store(port, &tls), Ok(()));
    let none = Path::new("");
    for (expected, files) in [
        ("it requires a certificate of this side", [&*ca, none, none]),
        ("`tls.ca_file` is NULL", [none, &*cert, &*key]),
        ("need each other", [&*ca, &*cert, none]),
        ("no CA certificate", [&*key, none, none]),
    ] {
        let given = Tls::new(files);
        let refused = use_store(port, &given.options()).expect_err(expected);
        assert!(refused.contains(expected), "{refused}");
    }
    // SAFETY: the handle is freed once.
    unsafe { rdzv_server_free(server) };
}

/// Starts a server that requires a certificate of native clients, and serves those of c10d from this host.
fn start_server(tls: &rdzv_tls_options) -> *mut rdzv_server {
    let options = rdzv_server_options {
        struct_size: u32::try_from(size_of::<rdzv_server_options>()).expect("small"),
        tls,
        c10d_from: c"loopback".as_ptr(),
        ..rdzv_server_options::default()
    };
    let mut server = null_mut();
    // SAFETY: as in `use_store`.
    let started = unsafe { rdzv_server_new(null(), &raw const options, &raw mut server, null_mut()) };
    assert_eq!(started, RDZV_OK);
    server
}

/// Creates a client of c10d. A worker that is given such a store opens its own session with the files of its options.
fn connect_store(port: u16) -> *mut rdzv_store {
    let options = rdzv_store_options {
        struct_size: u32::try_from(size_of::<rdzv_store_options>()).expect("small"),
        port,
        host: c"127.0.0.1".as_ptr(),
        ..rdzv_store_options::default()
    };
    let mut store = null_mut();
    // SAFETY: as in `use_store`.
    let connected = unsafe { rdzv_store_new(null(), &raw const options, &raw mut store, null_mut()) };
    assert_eq!(connected, RDZV_OK);
    store
}

unsafe extern "C" fn respond(_: *mut c_void, _: *const rdzv_rpc_request, responder: *mut rdzv_rpc_responder) {
    // SAFETY: the library passes a responder that this handler owns.
    let sent = unsafe { rdzv_rpc_responder_send(responder, b"hi".as_ptr(), 2, None, null_mut(), null_mut()) };
    assert_eq!(sent, RDZV_OK);
}

/// Makes this process another worker of the dynamic group over `store`.
fn join(
    (name, id): (&str, i32),
    store: *const rdzv_store,
    tls: *const rdzv_tls_options,
) -> Result<*mut rdzv_rpc, (rdzv_status, String)> {
    let options = rdzv_rpc_options {
        struct_size: u32::try_from(size_of::<rdzv_rpc_options>()).expect("small"),
        store,
        tls,
        rpc_timeout_ms: TIMEOUT_MS,
        ..rdzv_rpc_options::default()
    };
    let handlers = rdzv_rpc_handlers_new();
    let (handler, name) = ((b"greet".as_ptr(), 5), (name.as_ptr(), name.len()));
    let (mut rpc, mut error) = (null_mut(), null_mut());
    // SAFETY: the arguments live until the calls return; the handlers are freed once.
    unsafe {
        let (run, respond) = (RDZV_RPC_INLINE, Some(respond as _));
        let added = rdzv_rpc_handlers_add(
            handlers,
            handler.0,
            handler.1,
            run,
            null(),
            respond,
            null_mut(),
            None,
            null_mut(),
        );
        assert_eq!(added, RDZV_OK);
        let options = &raw const options;
        let status =
            rdzv_rpc_new(null(), name.0, name.1, id, -1, options, handlers, &raw mut rpc, &raw mut error);
        rdzv_rpc_handlers_free(handlers);
        if status == RDZV_OK { Ok(rpc) } else { Err((status, message(error))) }
    }
}

/// Calls the handler of a worker, and returns its response.
fn greet(rpc: *const rdzv_rpc, callee: &str) -> Result<Vec<u8>, String> {
    let call = rdzv_rpc_call_spec {
        struct_size: u32::try_from(size_of::<rdzv_rpc_call_spec>()).expect("small"),
        callee: callee.as_ptr(),
        callee_len: callee.len(),
        handler: b"greet".as_ptr(),
        handler_len: 5,
        timeout_ms: -1,
        ..rdzv_rpc_call_spec::default()
    };
    let (response, mut error) = (rdzv_buffer_new(), null_mut());
    // SAFETY: the arguments live until the call returns; the buffer is freed once, after its bytes are copied.
    unsafe {
        let status = rdzv_rpc_call(rpc, &raw const call, response, &raw mut error);
        let bytes =
            core::slice::from_raw_parts(rdzv_buffer_data(response), rdzv_buffer_len(response)).to_vec();
        rdzv_buffer_free(response);
        if status == RDZV_OK { Ok(bytes) } else { Err(message(error)) }
    }
}

/// Whether a worker has a liveness key, so its own connection to the server is a native session.
fn has_session(rpc: *const rdzv_rpc, name: &str, store: *const rdzv_store) -> bool {
    let mut info = rdzv_rpc_info {
        struct_size: u32::try_from(size_of::<rdzv_rpc_info>()).expect("small"),
        ..rdzv_rpc_info::default()
    };
    // SAFETY: the worker owns the address, and lives; the key lives until the call returns.
    unsafe {
        assert_eq!(rdzv_rpc_get_info(rpc, &raw mut info, null_mut()), RDZV_OK);
        let address = core::slice::from_raw_parts(info.address.data, info.address.len);
        let key = format!("rdzv/alive/{name}/{}", String::from_utf8_lossy(address));
        let key = rdzv_bytes { data: key.as_ptr(), len: key.len() };
        let mut is_there = -1;
        let status = rdzv_store_check(store, &raw const key, 1, -1, &raw mut is_there, null_mut());
        assert_eq!(status, RDZV_OK);
        is_there == 1
    }
}

#[test]
fn workers_of_c_call_each_other_with_the_files_of_their_options_and_one_of_another_ca_is_refused() {
    let folder = Folder::new("c-rpc-tls");
    let files = |owner: &str, authority: &Authority, name: &str| {
        let ca = authority.write(&folder.0, &format!("{owner}-ca.pem"));
        let (cert, key) = authority.issue(&[name]).write(&folder.0, owner);
        Tls::new([&ca, &cert, &key])
    };
    let (authority, worker) = (Authority::new(), WORKER.to_str().expect("text"));
    let (one, two) = (files("one", &authority, worker), files("two", &authority, worker));
    let stranger = files("stranger", &Authority::named("another CA"), worker);
    let options = |tls: &Tls| rdzv_tls_options { server_name: WORKER.as_ptr(), ..tls.options() };
    let server = start_server(&files("server", &authority, "127.0.0.1").options());
    // SAFETY: the server lives.
    let store = connect_store(unsafe { rdzv_server_port(server) });

    let first = join(("one", 1), store, &options(&one)).expect("a member");
    let second = join(("two", 2), store, &options(&two)).expect("a member");
    assert_eq!(greet(first, "two"), Ok(b"hi".to_vec()));
    assert_eq!(greet(second, "one"), Ok(b"hi".to_vec()));
    assert!(has_session(first, "one", store) && has_session(second, "two", store));

    // The members do not trust `mistrusted`. Without a name of the server, the certificate of a worker must contain its
    // address.
    let (of_stranger, nameless) = (options(&stranger), one.options());
    let mistrusted = rdzv_tls_options { ca_file: options(&one).ca_file, ..of_stranger };
    for (expected, tls) in [
        ("no trusted CA has issued the peer's certificate", &raw const of_stranger),
        ("it does not trust the CA of this side's certificate", &raw const mistrusted),
        ("the server's certificate is for other names", &raw const nameless),
        ("this worker requires TLS", null()),
    ] {
        let (status, refused) = join(("three", 3), store, tls).expect_err(expected);
        assert_eq!(status, RDZV_RPC_UNREACHED, "{refused}");
        assert!(refused.contains(expected), "{refused}");
    }
    // None of them is a member, and the members still are.
    assert_eq!(greet(first, "two"), Ok(b"hi".to_vec()));
    let fourth = join(("four", 4), store, &options(&two)).expect("a member");
    assert_eq!(greet(fourth, "one"), Ok(b"hi".to_vec()));
    assert_eq!(greet(fourth, "two"), Ok(b"hi".to_vec()));

    // SAFETY: each handle is freed once, and workers before what they use.
    unsafe {
        rdzv_rpc_free(fourth);
        rdzv_rpc_free(second);
        rdzv_rpc_free(first);
        rdzv_store_free(store);
        rdzv_server_free(server);
    }
}
