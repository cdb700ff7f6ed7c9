//! TLS through the C ABI, in a build that has it.

use crate::certificates::Authority;
use core::ptr::{null, null_mut};
use rendezvous::*;
use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};

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
    let folder = Folder(std::env::temp_dir().join(format!("rdzv-{}-c-tls", std::process::id())));
    std::fs::create_dir_all(&folder.0).expect("a folder");
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
