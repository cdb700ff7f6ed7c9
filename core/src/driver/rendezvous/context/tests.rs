use super::*;
use crate::driver::rendezvous::{NodeStore, ReservedPort, UrlGroup};
use crate::driver::server::{Server, ServerOptions};
use crate::driver::store::{Store, Timeout};
use crate::driver::store_client::StoreOptions;
use crate::driver::testing::TemporaryFile;
use crate::error::{Cause, ErrorKind, Phase};
use crate::rendezvous::store_info::RendezvousInfo;
use crate::rendezvous::url::{RankEnvironment, WorldSize};
use crate::time::Duration;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::format;
use std::fs;
use std::os::unix::fs::symlink;
use std::thread;

/// Longer than any step here takes; a test that reaches it has failed.
const SOON: Duration = Duration::from_secs(20);

struct Liar(&'static str);

impl CreateHandler for Liar {
    fn name(&self) -> &str {
        self.0
    }

    fn create(&self, _: &RendezvousParameters) -> Result<Box<dyn RendezvousHandler>, HandlerError> {
        Ok(Box::new(Self(self.0)))
    }
}

impl RendezvousHandler for Liar {
    fn backend(&self) -> &str {
        self.0
    }
    fn next_rendezvous(&self) -> Result<RendezvousInfo<Arc<NodeStore>>, HandlerError> {
        Err(HandlerError::Foreign("no".into()))
    }
    fn is_closed(&self) -> Result<bool, HandlerError> {
        Ok(true)
    }
    fn set_closed(&self) -> Result<(), HandlerError> {
        Ok(())
    }
    fn num_nodes_waiting(&self) -> Result<u64, HandlerError> {
        Ok(0)
    }
    fn run_id(&self) -> &str {
        "run"
    }
    fn shutdown(&self) -> bool {
        true
    }
}

#[test]
fn backends_are_found_by_their_names() {
    let context = Context::default();
    assert_eq!(context.backends(), ["rdzv", "static"]);
    let create = |backend: &str| {
        let parameters = RendezvousParameters::new(backend, "", "run", 1, 1).expect("valid");
        context.create_handler(&parameters).map(|handler| handler.backend().to_string())
    };
    let error = create("mine").expect_err("unknown");
    assert_eq!(
        error.to_string(),
        "The rendezvous backend 'mine' is not registered. Did you forget to call `register`?"
    );
    let liar: Arc<dyn CreateHandler> = Arc::new(Liar("other"));
    context.register_backend("mine", Arc::clone(&liar)).expect("free");
    context.register_backend("mine", Arc::clone(&liar)).expect("the same again");
    let error = create("mine").expect_err("a lie");
    assert_eq!(
        error.to_string(),
        "The rendezvous backend 'other' does not match the requested backend 'mine'."
    );
    context.register_backend("other", liar).expect("free");
    assert_eq!(create("other").expect("true"), "other");
    let error = context.register_backend("mine", Arc::new(Liar("third"))).expect_err("taken");
    assert_eq!(
        error.to_string(),
        "The rendezvous backend 'mine' cannot be registered with 'third' as it is already registered with 'other'."
    );
    let error = create("static").expect_err("it has no rank");
    assert!(error.to_string().starts_with("rank is absent"), "{error}");
    assert_eq!(Context::default().backends(), ["rdzv", "static"], "contexts know nothing of each other");
}

fn options(rank: i64, world_size: i64) -> UrlOptions {
    let world_size = if world_size < 0 { WorldSize::InUrl } else { WorldSize::Known(world_size) };
    UrlOptions { rank, world_size, timeout: SOON, ..UrlOptions::default() }
}

fn environment(port: u16, use_agent_store: Option<&str>) -> RankEnvironment {
    RankEnvironment {
        rank: None,
        world_size: Some("3".to_string()),
        master_addr: Some("127.0.0.1".to_string()),
        master_port: Some(port.to_string()),
        use_agent_store: use_agent_store.map(ToString::to_string),
    }
}

fn free_port() -> u16 {
    let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    ReservedPort::at(any).expect("a port").port()
}

/// Three ranks, each with a context of its own, meet by these URLs. Returns which of them host the store.
fn meet(url: &str, options: impl Fn(i64) -> UrlOptions) -> Vec<bool> {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|rank| {
                let options = options(rank);
                scope.spawn(move || {
                    let context = Context::default();
                    let mut rendezvous = context.rendezvous(url, options).expect("a URL");
                    let UrlGroup { store, rank: local, world_size } =
                        rendezvous.next().expect("all ranks join");
                    assert_eq!((local, world_size), (rank, 3));
                    store.barrier(b"met", 3, Timeout::Default).expect("all ranks join");
                    let again = rendezvous.next().expect_err("once only");
                    let scheme = url.split(':').next().expect("a scheme");
                    let verb = if scheme == "file" { "rerendezvous" } else { "re-rendezvous" };
                    assert_eq!(
                        again.to_string(),
                        format!("Unable to perform {verb} using {scheme}:// method")
                    );
                    if rank == 0 {
                        store.wait(&[b"left1", b"left2"], Timeout::Default).expect("the others left");
                    } else {
                        store.set(format!("left{rank}").as_bytes(), b"", Timeout::Default).expect("applied");
                    }
                    store.server().is_some()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

#[test]
fn ranks_meet_by_url() {
    let url = format!("tcp://127.0.0.1:{}", free_port());
    assert_eq!(meet(&url, |rank| options(rank, 3)), [true, false, false]);
    let port = free_port();
    let by_environment = |rank| UrlOptions { environment: environment(port, None), ..options(rank, -1) };
    assert_eq!(meet("env://", by_environment), [true, false, false]);
}

#[test]
fn ranks_use_the_store_of_their_agent() {
    let agent = Server::start(ServerOptions::on("127.0.0.1", 0)).expect("a server");
    let port = agent.local_addr().port();
    let options = |rank| UrlOptions { environment: environment(port, Some("True")), ..options(rank, -1) };
    assert_eq!(meet("env://", options), [false; 3]);
    let store = Store::connect("127.0.0.1", port, StoreOptions::default()).expect("connected");
    assert!(store.check(&[b"left1", b"left2"], Timeout::Default).expect("answered"), "they met there");
}

#[test]
fn port_zero_is_for_one() {
    let mut rendezvous = Context::default().rendezvous("tcp://127.0.0.1:0", options(0, 1)).expect("a URL");
    let meeting = rendezvous.next().expect("a world of one");
    let server = meeting.store.server().expect("hosted here");
    assert_ne!(server.local_addr().port(), 0);
    meeting.store.set(b"k", b"v", Timeout::Default).expect("applied");
}

#[test]
fn a_rank_may_come_before_the_store_does() {
    let port = free_port();
    let url = format!("tcp://127.0.0.1:{port}?world_size=2");
    let url = |rank| format!("{url}&rank={rank}");
    thread::scope(|scope| {
        let early = scope.spawn(|| {
            let mut rendezvous = Context::default().rendezvous(&url(1), options(-1, -1)).expect("a URL");
            rendezvous.next().expect("it waits for the store").store.set(b"k", b"v", Timeout::Default)
        });
        let mut rendezvous = Context::default().rendezvous(&url(0), options(-1, -1)).expect("a URL");
        let store = rendezvous.next().expect("both ranks join").store;
        assert_eq!(store.get_owned(b"k", Timeout::Default).expect("set"), b"v");
        early.join().expect("no panic").expect("applied");
    });
}

#[test]
fn some_errors_come_first_and_some_with_the_first_step() {
    let context = Context::default();
    let first = |url, options| context.rendezvous(url, options).err().map(|error| error.to_string());
    assert_eq!(first("own://h", options(0, 1)).as_deref(), Some("No rendezvous handler for own://"));
    assert_eq!(
        first("tcp://h:1?rank=0", options(0, 1)).as_deref(),
        Some("The url: tcp://h:1?rank=0 has node-specific arguments(rank, world_size) already.")
    );
    let mut rendezvous = context.rendezvous("tcp://h", options(0, 1)).expect("not looked at yet");
    for _ in 0..2 {
        let error = rendezvous.next().expect_err("no port");
        assert_eq!(
            error.to_string(),
            "Error initializing torch.distributed using tcp:// rendezvous: port number missing"
        );
    }
}

/// A scheme of the program: the store's port is in the path.
struct OwnScheme;

struct OwnRendezvous(RendezvousUrl);

impl UrlHandler for OwnScheme {
    fn begin(&self, url: RendezvousUrl, _: UrlOptions) -> Result<Box<dyn UrlRendezvous>, HandlerError> {
        Ok(Box::new(OwnRendezvous(url)))
    }
}

impl UrlRendezvous for OwnRendezvous {
    fn next(&mut self) -> Result<UrlGroup, HandlerError> {
        let (url, own) =
            (self.0.to_string(), |url: &str| url.split('/').nth(3)?.split('?').next()?.parse().ok());
        let port = own(&url).ok_or_else(|| HandlerError::Foreign(format!("no port in {url}").into()))?;
        let store = Store::connect("127.0.0.1", port, StoreOptions::default())?;
        Ok(UrlGroup { store: Arc::new(NodeStore::new(store, None)), rank: 7, world_size: 8 })
    }
}

#[test]
fn schemes_of_ones_own() {
    let server = Server::start(ServerOptions::on("127.0.0.1", 0)).expect("a server");
    let context = Context::default();
    context.register_url_scheme("own", Arc::new(OwnScheme)).expect("free");
    for scheme in ["own", "tcp", "env", "file"] {
        let error = context.register_url_scheme(scheme, Arc::new(OwnScheme)).expect_err("taken");
        assert_eq!(error.to_string(), format!("Rendezvous handler for {scheme}:// already registered"));
    }
    let url = format!("own:///{}", server.local_addr().port());
    let mut rendezvous = context.rendezvous(&url, UrlOptions::default()).expect("a URL");
    for _ in 0..2 {
        let meeting = rendezvous.next().expect("as often as its owner likes");
        assert_eq!((meeting.rank, meeting.world_size), (7, 8));
        meeting.store.ping(Timeout::Default).expect("alive");
    }
    let mut rendezvous = context.rendezvous("own:///x", options(2, -1)).expect("a URL");
    assert_eq!(rendezvous.next().expect_err("its own").to_string(), "no port in own:///x?rank=2");
}

fn file_url(file: &TemporaryFile) -> String {
    format!("file://{}", file.path().to_string_lossy())
}

#[test]
fn ranks_meet_in_a_file_and_the_last_removes_it() {
    let file = TemporaryFile::new("url");
    assert_eq!(meet(&file_url(&file), |rank| options(rank, 3)), [false; 3]);
    assert!(!file.path().exists(), "all three have closed it");
    // The host is ignored, and the path is the file's name, character by character.
    let spelled = TemporaryFile::new("url%20of a;strange#");
    let url = file_url(&spelled).replace("file://", "file://some-host:x");
    let url = url.trim_end_matches('#');
    let mut rendezvous = Context::default().rendezvous(url, options(0, 2)).expect("a URL");
    let meeting = rendezvous.next().expect("opened");
    assert_eq!(format!("{}#", meeting.store.peer()), spelled.path().to_string_lossy());
    fs::remove_file(meeting.store.peer()).expect("it is there");
}

#[test]
fn ranks_may_come_to_a_file_one_after_the_other() {
    let file = TemporaryFile::new("url-in-order");
    let come = |rank| {
        let mut rendezvous =
            Context::default().rendezvous(&file_url(&file), options(rank, 2)).expect("a URL");
        rendezvous.next().expect("no other rank is waited for")
    };
    come(0).store.set(b"k", b"v", Timeout::Default).expect("set");
    assert!(file.path().exists(), "one rank has yet to join");
    assert_eq!(come(1).store.get_owned(b"k", Timeout::Once).expect("left there"), b"v");
    assert!(!file.path().exists(), "both have been there");
}

#[test]
fn a_file_of_a_world_of_unknown_size_stays() {
    for (world_size, query) in [(WorldSize::Dynamic, ""), (WorldSize::InUrl, "?rank=0&world_size=-1")] {
        let file = TemporaryFile::new("url-unknown");
        let rank = if query.is_empty() { 0 } else { -1 };
        let options = UrlOptions { world_size, ..options(rank, -1) };
        let url = file_url(&file) + query;
        let mut rendezvous = Context::default().rendezvous(&url, options).expect("a URL");
        let meeting = rendezvous.next().expect("opened");
        assert_eq!((meeting.rank, meeting.world_size), (0, -1));
        drop(meeting);
        assert!(file.path().exists(), "no rank can tell that it is the last");
    }
    let file = TemporaryFile::new("url-zero");
    let url = file_url(&file) + "?rank=0&world_size=0";
    let mut rendezvous = Context::default().rendezvous(&url, options(-1, -1)).expect("a URL");
    drop(rendezvous.next().expect("opened"));
    assert!(!file.path().exists(), "0: the last rank removes it");
}

#[test]
fn what_a_file_url_lacks_comes_with_the_first_step_as_often_as_it_is_asked() {
    let file = TemporaryFile::new("url-lacks");
    for (url, text) in [
        ("file://host".to_string(), "path missing"),
        (file_url(&file), "rank parameter missing"),
        (file_url(&file) + "?rank=0", "world size parameter missing"),
    ] {
        let mut rendezvous = Context::default().rendezvous(&url, options(-1, -1)).expect("not looked at yet");
        for _ in 0..2 {
            let error = rendezvous.next().expect_err("something is missing").to_string();
            assert_eq!(
                error,
                format!("Error initializing torch.distributed using file:// rendezvous: {text}")
            );
        }
    }
    assert!(!file.path().exists());
}

#[test]
fn unusable_files_are_reported_and_may_be_tried_again() {
    let file = TemporaryFile::new("url-refused");
    let url = |path: &str| format!("file://{path}?rank=0&world_size=1");
    let refused = |rendezvous: &mut Box<dyn UrlRendezvous>| {
        let HandlerError::Store(error) = rendezvous.next().expect_err("no store") else {
            panic!("of the store")
        };
        (error.kind(), error.cause(), error.phase())
    };
    let begin = |path: &str| Context::default().rendezvous(&url(path), options(-1, -1)).expect("a URL");
    let path = file.path().to_string_lossy();
    let os = |number| (ErrorKind::Io, Cause::Os(number), Phase::Opening);
    assert_eq!(refused(&mut begin(&format!("{path}/below"))), os(libc::ENOENT), "no such folder");
    assert_eq!(refused(&mut begin("/")), os(libc::EISDIR));
    // No user can write to a running program, not even root.
    let program = std::env::current_exe().expect("a test's own program");
    assert_eq!(refused(&mut begin(&program.to_string_lossy())), os(libc::ETXTBSY));
    symlink(file.path(), file.path()).expect("a link to itself");
    assert_eq!(refused(&mut begin(&path)), os(libc::ELOOP));
    fs::write(file.path().with_extension("text"), b"#!/bin/sh\necho no store\n").expect("written");
    let text = begin(&format!("{path}.text")).next().expect_err("no store").to_string();
    assert!(text.starts_with(&format!("open at {path}.text ")) && text.ends_with("at offset 0"), "{text}");
    fs::remove_file(file.path().with_extension("text")).expect("removed");
    // A failed call is not a first step: the next one may succeed.
    let mut rendezvous = begin(&path);
    assert_eq!(refused(&mut rendezvous), os(libc::ELOOP));
    fs::remove_file(file.path()).expect("the link");
    rendezvous.next().expect("now it can be made");
}

#[test]
fn a_file_that_is_removed_or_torn_under_a_rank_is_reported() {
    let file = TemporaryFile::new("url-removed");
    let begin = || Context::default().rendezvous(&file_url(&file), options(0, 2)).expect("a URL").next();
    let meeting = begin().expect("opened");
    fs::OpenOptions::new()
        .append(true)
        .open(file.path())
        .and_then(|mut file| std::io::Write::write_all(&mut file, b"\x05\0\0\0/to"))
        .expect("half a record");
    for error in [
        meeting.store.add(b"n", 1, Timeout::Default).expect_err("torn"),
        match begin().expect_err("torn") {
            HandlerError::Store(error) => error,
            error => panic!("{error}"),
        },
    ] {
        assert_eq!((error.kind(), error.cause()), (ErrorKind::Corrupt, Cause::TornRecord(18)), "{error}");
    }
    fs::remove_file(file.path()).expect("removed");
    let departed = (ErrorKind::ServerGone, Cause::FileRemoved);
    let error = meeting.store.set(b"k", b"v", Timeout::Default).expect_err("removed");
    assert_eq!((error.kind(), error.cause()), departed, "{error}");
    let meeting = begin().expect("a new file");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| meeting.store.wait(&[b"never"], Timeout::Default));
        fs::remove_file(file.path()).expect("removed");
        let error = waiting.join().expect("no panic").expect_err("its file is removed");
        assert_eq!((error.kind(), error.cause()), departed, "{error}");
    });
    // Ranks that begin later meet in a new file.
    let later = begin().expect("a new file");
    later.store.set(b"k", b"v", Timeout::Default).expect("set");
}
