//! Options of a worker of an RPC group.

use crate::argument::{invalid, list, out_pointer, positive_ms, rdzv_bytes, reference, reference_mut, text};
use crate::buffer::{rdzv_buffer, rdzv_list};
use crate::context::{Shared, home, rdzv_context};
use crate::fault::{Fault, rdzv_error};
use crate::guard;
use crate::rpc_fault::{backend_fault, options_fault};
use crate::rpc_handlers::Entry;
use crate::rpc_reentry::refuse_reentry;
use crate::status::{RDZV_UNSUPPORTED, rdzv_status};
use rendezvous_core::driver::canceller::Canceller;
use rendezvous_core::rendezvous::url::RankEnvironment;
use rendezvous_rpc::device::{Device, DeviceKind};
use rendezvous_rpc::device_map::DeviceMap;
use rendezvous_rpc::driver::group::TcpOptions;
use rendezvous_rpc::name::WorkerName;
use rendezvous_rpc::options::RpcOptions;
use rendezvous_rpc::registry::{BaseOptions, DEFAULT_BACKEND};
use std::sync::Arc;
use std::time::Duration;

/// What a worker of an RPC group is given. One thread at a time, but for `rdzv_rpc_options_cancel`. Any
/// number of workers may be made with the same options, one after the other; free it when you like.
#[derive(Debug)]
pub struct rdzv_rpc_options {
    pub(crate) options: RpcOptions,
    pub(crate) tcp: TcpOptions,
    pub(crate) environment: RankEnvironment,
    pub(crate) listen_host: Option<String>,
    pub(crate) canceller: Canceller,
}

impl rdzv_rpc_options {
    pub(crate) fn new(options: RpcOptions) -> Self {
        Self {
            options,
            tcp: TcpOptions::default(),
            environment: RankEnvironment::default(),
            listen_host: None,
            canceller: Canceller::default(),
        }
    }

    /// What only a worker of the backend `tcp` looks at.
    fn tcp(&mut self, what: &str) -> Result<&mut TcpOptions, Fault> {
        let backend = &self.options.kind().0;
        if &**backend != DEFAULT_BACKEND {
            let message =
                format!("`{what}` is an option of the backend {DEFAULT_BACKEND}, and these are of {backend}");
            return Err(Fault::new(RDZV_UNSUPPORTED, message));
        }
        Ok(&mut self.tcp)
    }
}

/// What a worker of a foreign backend is given beside its options; of options that nobody has used yet,
/// only the texts.
#[derive(Clone, Default)]
pub(crate) struct Given {
    pub(crate) entries: Vec<Entry>,
    pub(crate) shared: Option<Arc<Shared>>,
    pub(crate) extra_options: Vec<(String, String)>,
    /// What `construct_options` said of the way to meet besides the URL.
    pub(crate) environment: RankEnvironment,
    pub(crate) listen_host: Option<String>,
}

/// Texts of C as text.
unsafe fn texts<'a>(items: *const rdzv_bytes, count: usize, name: &str) -> Result<Vec<&'a str>, Fault> {
    // SAFETY: passed on as they came.
    let items = unsafe { list(items, count, name) }?;
    let text = |item| std::str::from_utf8(item).map_err(|_| invalid(format!("`{name}` is not UTF-8")));
    items.into_iter().map(text).collect()
}

fn device(name: &str) -> Result<Device, Fault> {
    name.parse().map_err(|error: rendezvous_rpc::device::DeviceError| invalid(error.to_string()))
}

/// Runs a setter.
unsafe fn set(
    options: *mut rdzv_rpc_options,
    error: *mut *mut rdzv_error,
    body: impl FnOnce(&mut rdzv_rpc_options) -> Result<(), Fault>,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe { guard::call(error, || body(reference_mut(options, "options")?)) }
}

/// Makes options of a backend: that of the name, or `tcp` when `backend` is NULL. `context` may be NULL,
/// which creates a new one. `rpc_timeout_ms`: how long a call may take that does not say so itself; above
/// 0, or -1 for 60,000. 0 is as long as it likes, as PyTorch has it: here alone, since elsewhere 0 tries
/// once. `init_method`: the URL by which the group meets; NULL for `env://`. `names` and `values`, `count`
/// of each, are options of the backend's own, as texts: of `tcp` these are `num_worker_threads`, and names
/// after commas in `transports` and `channels`. On success the caller owns `*out` and frees it with
/// `rdzv_rpc_options_free`.
///
/// Errors: `RDZV_NOT_REGISTERED`, `RDZV_INVALID_ARGUMENT` (the backend refuses an option), `RDZV_REENTRANT`
/// (a backend that makes options asks for options of this context).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_new(
    context: *const rdzv_context,
    backend: *const u8,
    backend_len: usize,
    rpc_timeout_ms: i64,
    init_method: *const u8,
    init_method_len: usize,
    names: *const rdzv_bytes,
    values: *const rdzv_bytes,
    count: usize,
    out: *mut *mut rdzv_rpc_options,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused where it must be.
    unsafe {
        guard::call(error, || {
            let out = out_pointer(out, "out")?;
            let home = home(context)?;
            refuse_reentry()?;
            let mut base = BaseOptions::default();
            if rpc_timeout_ms != -1 {
                base.rpc_timeout = limit(rpc_timeout_ms, "rpc_timeout_ms")?;
            }
            if !init_method.is_null() {
                base.init_method = text(init_method, init_method_len, "init_method")?;
            }
            let name = match backend.is_null() {
                true => DEFAULT_BACKEND,
                false => text(backend, backend_len, "backend")?,
            };
            let extra_options: Vec<_> =
                texts(names, count, "names")?.into_iter().zip(texts(values, count, "values")?).collect();
            let options = home.rpc().construct_options(name, base, &extra_options);
            let options = options.map_err(|error| backend_fault(&error))?;
            let mut made = rdzv_rpc_options::new(options);
            // What a backend of the program's own said besides, which only the C interface knows.
            if let Some(given) = made.options.extra_options::<Given>() {
                (made.environment, made.listen_host) = (given.environment.clone(), given.listen_host.clone());
            }
            out.put(Box::into_raw(Box::new(made)));
            Ok(())
        })
    }
}

/// How long something may take at most; 0: as long as it likes.
fn limit(millis: i64, name: &str) -> Result<Duration, Fault> {
    crate::argument::zero_or_more_ms(millis, name)
}

/// Frees options. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_free(options: *mut rdzv_rpc_options) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free(options) };
}

/// Ends the `rdzv_rpc_init` and `rdzv_rpc_init_over_store` that are under way with these options in other
/// threads, wherever they are, with `RDZV_CANCELLED`. What the worker has told the others is taken back
/// first, for which 5 s may pass where the store does not answer; one that is as good as a member becomes
/// one. Of a backend of yours it ends what its `init` waits for at its store. Later attempts are as ever.
/// Any thread. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_cancel(options: *const rdzv_rpc_options) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(options, (), |of| of.canceller.cancel()) };
}

/// How long a call may take that does not say so itself, in milliseconds; 0: as long as it likes, as
/// PyTorch has it, though elsewhere 0 tries once. Default 60,000. Joining and leaving may take as long
/// each, unless the membership timeout is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_set_rpc_timeout_ms(
    options: *mut rdzv_rpc_options,
    rpc_timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe {
        set(options, error, |of| {
            of.options.set_rpc_timeout(limit(rpc_timeout_ms, "rpc_timeout_ms")?);
            Ok(())
        })
    }
}

/// How long joining may take, and leaving, in milliseconds, above 0. Default: as long as a call; 300,000 where
/// calls may take as long as they like. Of the backend `tcp` alone: `RDZV_UNSUPPORTED` for others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_set_membership_timeout_ms(
    options: *mut rdzv_rpc_options,
    membership_timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe {
        set(options, error, |of| {
            let timeout = positive_ms(membership_timeout_ms, "membership_timeout_ms")?;
            of.tcp("membership_timeout_ms")?.membership_timeout = Some(timeout);
            Ok(())
        })
    }
}

/// The URL by which the group meets: `tcp://`, `file://`, `env://`, or of another scheme that the context has.
/// Default `env://`, which asks the variables.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_set_init_method(
    options: *mut rdzv_rpc_options,
    url: *const u8,
    url_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came; text is checked.
    unsafe {
        set(options, error, |of| {
            of.options.set_init_method(text(url, url_len, "url")?).map_err(|error| options_fault(&error))
        })
    }
}

/// What a variable of the environment says, as `rdzv_rendezvous_url_options_set_variable`: the library never
/// reads the environment.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_set_variable(
    options: *mut rdzv_rpc_options,
    name: *const u8,
    name_len: usize,
    value: *const u8,
    value_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came; text is checked.
    unsafe {
        set(options, error, |of| {
            let variable =
                crate::rendezvous_url::variable(&mut of.environment, text(name, name_len, "name")?)?;
            *variable = Some(text(value, value_len, "value")?.into());
            Ok(())
        })
    }
}

/// Where the worker that hosts the group's store listens, when that is not what the URL says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_set_listen_host(
    options: *mut rdzv_rpc_options,
    listen_host: *const u8,
    listen_host_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came; text is checked.
    unsafe {
        set(options, error, |of| {
            of.listen_host =
                Some(non_empty(text(listen_host, listen_host_len, "listen_host")?, "listen_host")?);
            Ok(())
        })
    }
}

fn non_empty(text: &str, name: &str) -> Result<String, Fault> {
    if text.is_empty() { Err(invalid(format!("`{name}` is empty"))) } else { Ok(text.into()) }
}

/// Where the worker takes calls: an address of this host's. Default: the one by which it reaches the store's
/// host, or the loopback address where the store has no host. Of the backend `tcp` alone: `RDZV_UNSUPPORTED`
/// for others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_set_host(
    options: *mut rdzv_rpc_options,
    host: *const u8,
    host_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came; text is checked.
    unsafe {
        set(options, error, |of| {
            of.tcp("host")?.host = Some(non_empty(text(host, host_len, "host")?, "host")?);
            Ok(())
        })
    }
}

/// How many threads carry out calls of pooled handlers, from 1 to 1024. Default 16; each is started when there
/// is work for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_set_worker_threads(
    options: *mut rdzv_rpc_options,
    worker_threads: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe {
        set(options, error, |of| {
            of.options.set_worker_threads(worker_threads).map_err(|error| options_fault(&error))
        })
    }
}

/// The transports that a backend may use, the best first; an empty list is not the same as none set. `tcp` has
/// one of its own, and keeps the list as others do.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_set_transports(
    options: *mut rdzv_rpc_options,
    names: *const rdzv_bytes,
    count: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came; the list is checked.
    unsafe {
        set(options, error, |of| {
            of.options.set_transports(&texts(names, count, "names")?).map_err(|error| options_fault(&error))
        })
    }
}

/// The channels that a backend may use, as the transports.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_set_channels(
    options: *mut rdzv_rpc_options,
    names: *const rdzv_bytes,
    count: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came; the list is checked.
    unsafe {
        set(options, error, |of| {
            of.options.set_channels(&texts(names, count, "names")?).map_err(|error| options_fault(&error))
        })
    }
}

/// Adds pairs of devices for calls to a worker: `from[i]` here is `to[i]` there, each a name such as `cuda:0`
/// or `cpu`. What does not map one to one is refused, and changes nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_set_device_map(
    options: *mut rdzv_rpc_options,
    worker: *const u8,
    worker_len: usize,
    from: *const rdzv_bytes,
    to: *const rdzv_bytes,
    count: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came; text and lists are checked.
    unsafe {
        set(options, error, |of| {
            let worker = WorkerName::new(text(worker, worker_len, "worker")?)
                .map_err(|error| invalid(error.to_string()))?;
            let (from, to) = (texts(from, count, "from")?, texts(to, count, "to")?);
            let mut pairs = Vec::new();
            for (from, to) in from.into_iter().zip(to) {
                pairs.push((device(from)?, device(to)?));
            }
            of.options.set_device_map(&worker, pairs).map_err(|error| options_fault(&error))
        })
    }
}

/// The devices that the worker uses, by their names; an empty list lets that follow from the maps.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_set_devices(
    options: *mut rdzv_rpc_options,
    names: *const rdzv_bytes,
    count: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came; the list is checked.
    unsafe {
        set(options, error, |of| {
            let devices = texts(names, count, "names")?.into_iter().map(device);
            let devices = devices.collect::<Result<Vec<_>, _>>()?;
            of.options.set_devices(&devices).map_err(|error| options_fault(&error))
        })
    }
}

/// How many devices this process has, which maps are checked against, and of which kind they are: NULL for
/// `cuda`. Default 0. Of the backend `tcp` alone: `RDZV_UNSUPPORTED` for others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_set_device_count(
    options: *mut rdzv_rpc_options,
    count: u32,
    kind: *const u8,
    kind_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came; text is checked.
    unsafe {
        set(options, error, |of| {
            let mut accelerator = DeviceKind::CUDA;
            if !kind.is_null() {
                let kind = text(kind, kind_len, "kind")?;
                accelerator = DeviceKind::new(kind)
                    .ok_or_else(|| invalid(format!("`kind` is {kind:?}, which is no kind of devices")))?;
            }
            let tcp = of.tcp("device_count")?;
            (tcp.device_count, tcp.accelerator) = (count, accelerator);
            Ok(())
        })
    }
}

/// The options in words, which replace the content of `message`: as a log names them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_describe(
    options: *const rdzv_rpc_options,
    message: *mut rdzv_buffer,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, || {
            let options = reference(options, "options")?;
            reference_mut(message, "message")?.put(options.options.to_string().as_bytes());
            Ok(())
        })
    }
}

/// How long a call may take, in milliseconds; 0: as long as it likes, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_rpc_timeout_ms(options: *const rdzv_rpc_options) -> i64 {
    let millis = |timeout: Duration| i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX);
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(options, 0, |of| of.options.rpc_timeout().map_or(0, millis)) }
}

/// How many threads carry out calls. 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_worker_threads(options: *const rdzv_rpc_options) -> u32 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(options, 0, |of| of.options.worker_threads()) }
}

/// The transports that were set replace the content of `transports`, and the channels that of `channels`; each
/// may be NULL. Nothing set is an empty list here; `rdzv_rpc_options_has_transports` and
/// `rdzv_rpc_options_has_channels` tell which of both it is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_lists(
    options: *const rdzv_rpc_options,
    transports: *mut rdzv_list,
    channels: *mut rdzv_list,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused where it must be.
    unsafe {
        guard::call(error, || {
            let options = &reference(options, "options")?.options;
            for (names, list) in [(options.transports(), transports), (options.channels(), channels)] {
                if let Ok(list) = reference_mut(list, "list") {
                    let names = names.unwrap_or_default().iter();
                    list.items = names.map(|name| name.as_bytes().to_vec()).collect();
                }
            }
            Ok(())
        })
    }
}

/// Whether transports were set, be they none, 1 or 0. 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_has_transports(options: *const rdzv_rpc_options) -> i32 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(options, 0, |of| i32::from(of.options.transports().is_some())) }
}

/// The same for channels.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_has_channels(options: *const rdzv_rpc_options) -> i32 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(options, 0, |of| i32::from(of.options.channels().is_some())) }
}

/// The URL by which the group meets replaces the content of `url`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_init_method(
    options: *const rdzv_rpc_options,
    url: *mut rdzv_buffer,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, || {
            let options = reference(options, "options")?;
            reference_mut(url, "url")?.put(options.options.init_method().as_bytes());
            Ok(())
        })
    }
}

fn device_names(devices: impl Iterator<Item = Device>) -> Vec<Vec<u8>> {
    devices.map(|device| device.to_string().into_bytes()).collect()
}

/// The pairs of a map replace the content of two lists.
pub(crate) unsafe fn list_map(
    map: Option<&DeviceMap>,
    from: *mut rdzv_list,
    to: *mut rdzv_list,
) -> Result<(), Fault> {
    // SAFETY: as the header wants it; NULL is refused.
    let (from, to) = unsafe { (reference_mut(from, "from")?, reference_mut(to, "to")?) };
    from.items = map.map(|map| device_names(map.sources())).unwrap_or_default();
    to.items = map.map(|map| device_names(map.targets())).unwrap_or_default();
    Ok(())
}

/// The devices that were set replace the content of `names`, in the order in which they were; none where that
/// follows from the maps.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_list_devices(
    options: *const rdzv_rpc_options,
    names: *mut rdzv_list,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, || {
            let options = reference(options, "options")?;
            let names = reference_mut(names, "names")?;
            names.items = device_names(options.options.devices().iter().copied());
            Ok(())
        })
    }
}

/// The workers for which there are device maps replace the content of `workers`, sorted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_list_mapped_workers(
    options: *const rdzv_rpc_options,
    workers: *mut rdzv_list,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, || {
            let maps = reference(options, "options")?.options.device_maps();
            let list = reference_mut(workers, "workers")?;
            list.items = maps.iter().map(|(worker, _)| worker.as_bytes().to_vec()).collect();
            Ok(())
        })
    }
}

/// The device map for calls to a worker replaces the content of the two lists: `from[i]` here is `to[i]`
/// there, sorted by `from`. Both are empty where there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_list_device_map(
    options: *const rdzv_rpc_options,
    worker: *const u8,
    worker_len: usize,
    from: *mut rdzv_list,
    to: *mut rdzv_list,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused, and text is checked.
    unsafe {
        guard::call(error, || {
            let maps = reference(options, "options")?.options.device_maps();
            let map = maps.get(text(worker, worker_len, "worker")?);
            list_map(map, from, to)
        })
    }
}
