//! Options of a worker of an RPC group.

use crate::argument::{invalid, list, out_pointer, positive_ms, rdzv_bytes, reference, reference_mut, text};
use crate::buffer::{rdzv_buffer, rdzv_list};
use crate::context::{ContextShared, home, rdzv_context};
use crate::fault::{Fault, rdzv_error};
use crate::guard;
use crate::rpc_fault::{backend_fault, options_fault};
use crate::rpc_handlers::Entry;
use crate::rpc_reentry::refuse_reentry;
use crate::status::{RDZV_UNSUPPORTED, rdzv_status};
use rendezvous_core::driver::cancel::Canceller;
use rendezvous_core::rendezvous::url::RankEnvironment;
use rendezvous_rpc::device::{Device, DeviceKind};
use rendezvous_rpc::device_map::DeviceMap;
use rendezvous_rpc::driver::group::TcpOptions;
use rendezvous_rpc::driver::group::registry::{BaseOptions, DEFAULT_BACKEND};
use rendezvous_rpc::name::WorkerName;
use rendezvous_rpc::options::RpcOptions;
use std::sync::Arc;
use std::time::Duration;

/// Options of a worker of an RPC group. One thread at a time, except for `rdzv_rpc_options_cancel`. Several
/// workers may be created with the same options, one after the other; they may be freed at any time.
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

    /// Returns the options that only the backend `tcp` uses.
    ///
    /// # Errors
    ///
    /// `RDZV_UNSUPPORTED` if the options are of another backend.
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

/// Data passed to a worker of a foreign backend beside its options. In options that have not been used yet,
/// only the texts are set.
#[derive(Clone, Default)]
pub(crate) struct Given {
    pub(crate) entries: Vec<Entry>,
    pub(crate) shared: Option<Arc<ContextShared>>,
    pub(crate) extra_options: Vec<(String, String)>,
    /// Variables set by `construct_options`, for the rendezvous.
    pub(crate) environment: RankEnvironment,
    pub(crate) listen_host: Option<String>,
}

/// Converts a list of strings from C.
unsafe fn texts<'a>(items: *const rdzv_bytes, count: usize, name: &str) -> Result<Vec<&'a str>, Fault> {
    // SAFETY: the arguments are forwarded unchanged.
    let items = unsafe { list(items, count, name) }?;
    let text = |item| std::str::from_utf8(item).map_err(|_| invalid(format!("`{name}` is not UTF-8")));
    items.into_iter().map(text).collect()
}

fn device(name: &str) -> Result<Device, Fault> {
    name.parse().map_err(|error: rendezvous_rpc::device::DeviceError| invalid(error.to_string()))
}

/// Runs the body of a setter inside the panic guard.
unsafe fn set(
    options: *mut rdzv_rpc_options,
    error: *mut *mut rdzv_error,
    body: impl Fn(&mut rdzv_rpc_options) -> Result<(), Fault>,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe { guard::call(error, &mut || body(reference_mut(options, "options")?)) }
}

/// Creates options of the backend `backend`; NULL: `tcp`. `context` may be NULL, which creates a new one.
/// `rpc_timeout_ms` is the timeout of calls that set none, in milliseconds: above 0; -1: 60,000; 0: no
/// limit, as in PyTorch (elsewhere in this header, 0 means to try once). `init_method` is the URL through
/// which the group meets; NULL: `env://`. `names` and `values`, `count` of each, are backend-specific
/// options as texts. Those of `tcp` are `num_worker_threads` and the comma-separated lists `transports` and
/// `channels`. On success the caller owns `*out` and frees it with `rdzv_rpc_options_free`.
///
/// Errors: `RDZV_NOT_REGISTERED`, `RDZV_INVALID_ARGUMENT` (the backend refuses an option), `RDZV_REENTRANT`
/// (called by a backend that is creating options of this context).
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
        guard::call(error, &mut || {
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
            // Settings of a backend in user code that only the C interface knows.
            if let Some(given) = made.options.extra_options::<Given>() {
                (made.environment, made.listen_host) = (given.environment.clone(), given.listen_host.clone());
            }
            out.put(Box::into_raw(Box::new(made)));
            Ok(())
        })
    }
}

/// Converts a time limit in milliseconds; 0: no limit.
fn limit(millis: i64, name: &str) -> Result<Duration, Fault> {
    crate::argument::zero_or_more_ms(millis, name)
}

/// Frees options. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_free(options: *mut rdzv_rpc_options) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free(options) };
}

/// Cancels the `rdzv_rpc_init` and `rdzv_rpc_init_over_store` calls in progress with these options on other
/// threads, in whatever step they are; they return `RDZV_CANCELLED`. The worker first withdraws what it has
/// published to the others, which takes up to 5 s if the store does not answer. A join that is all but
/// complete completes. For a backend in user code, the waits of its `init` on its store are cancelled.
/// Later attempts are not affected. Any thread may call this. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_cancel(options: *const rdzv_rpc_options) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(options, (), |of| of.canceller.cancel()) };
}

/// Sets the timeout of calls that set none, in milliseconds; 0: no limit, as in PyTorch (elsewhere in this
/// header, 0 means to try once). Default 60,000. It also limits joining and leaving, each, unless the
/// membership timeout is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_set_rpc_timeout_ms(
    options: *mut rdzv_rpc_options,
    rpc_timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the arguments are forwarded unchanged.
    unsafe {
        set(options, error, |of| {
            of.options.set_rpc_timeout(limit(rpc_timeout_ms, "rpc_timeout_ms")?);
            Ok(())
        })
    }
}

/// Sets the timeout of joining and of leaving, in milliseconds, above 0. Default: the timeout of calls;
/// 300,000 if calls have no limit. Only for the backend `tcp`; `RDZV_UNSUPPORTED` for others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_set_membership_timeout_ms(
    options: *mut rdzv_rpc_options,
    membership_timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the arguments are forwarded unchanged.
    unsafe {
        set(options, error, |of| {
            let timeout = positive_ms(membership_timeout_ms, "membership_timeout_ms")?;
            of.tcp("membership_timeout_ms")?.membership_timeout = Some(timeout);
            Ok(())
        })
    }
}

/// Sets the URL through which the group meets: `tcp://`, `file://`, `env://`, or another scheme of the
/// context. Default `env://`, which uses the variables.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_set_init_method(
    options: *mut rdzv_rpc_options,
    url: *const u8,
    url_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the arguments are forwarded unchanged; text is checked.
    unsafe {
        set(options, error, |of| {
            of.options.set_init_method(text(url, url_len, "url")?).map_err(|error| options_fault(&error))
        })
    }
}

/// Sets the value of an environment variable, as `rdzv_rendezvous_url_options_set_variable` does. The
/// library never reads the environment.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_set_variable(
    options: *mut rdzv_rpc_options,
    name: *const u8,
    name_len: usize,
    value: *const u8,
    value_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the arguments are forwarded unchanged; text is checked.
    unsafe {
        set(options, error, |of| {
            let variable =
                crate::rendezvous_url::variable(&mut of.environment, text(name, name_len, "name")?)?;
            *variable = Some(text(value, value_len, "value")?.into());
            Ok(())
        })
    }
}

/// Sets the name or address on which the worker that hosts the group's store listens, if it differs from
/// the URL's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_set_listen_host(
    options: *mut rdzv_rpc_options,
    listen_host: *const u8,
    listen_host_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the arguments are forwarded unchanged; text is checked.
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

/// Sets the local address on which the worker accepts calls. Default: the address by which it reaches the
/// store's host, or the loopback address if the store has no host. Only for the backend `tcp`;
/// `RDZV_UNSUPPORTED` for others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_set_host(
    options: *mut rdzv_rpc_options,
    host: *const u8,
    host_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the arguments are forwarded unchanged; text is checked.
    unsafe {
        set(options, error, |of| {
            of.tcp("host")?.host = Some(non_empty(text(host, host_len, "host")?, "host")?);
            Ok(())
        })
    }
}

/// Sets the number of threads that run pooled handlers, from 1 to 1024. Default 16; each is started when
/// there is work for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_set_worker_threads(
    options: *mut rdzv_rpc_options,
    worker_threads: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the arguments are forwarded unchanged.
    unsafe {
        set(options, error, |of| {
            of.options.set_worker_threads(worker_threads).map_err(|error| options_fault(&error))
        })
    }
}

/// Sets the transports that a backend may use, in order of preference; an empty list differs from an unset
/// one. `tcp` has a transport of its own and only stores the list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_set_transports(
    options: *mut rdzv_rpc_options,
    names: *const rdzv_bytes,
    count: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the arguments are forwarded unchanged; the list is checked.
    unsafe {
        set(options, error, |of| {
            of.options.set_transports(&texts(names, count, "names")?).map_err(|error| options_fault(&error))
        })
    }
}

/// Sets the channels that a backend may use, as `rdzv_rpc_options_set_transports` sets the transports.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_set_channels(
    options: *mut rdzv_rpc_options,
    names: *const rdzv_bytes,
    count: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the arguments are forwarded unchanged; the list is checked.
    unsafe {
        set(options, error, |of| {
            of.options.set_channels(&texts(names, count, "names")?).map_err(|error| options_fault(&error))
        })
    }
}

/// Adds pairs of devices for calls to a worker: local device `from[i]` maps to its device `to[i]`, each
/// with a name such as `cuda:0` or `cpu`. A map that is not one to one is refused and changes nothing.
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
    // SAFETY: the arguments are forwarded unchanged; text and lists are checked.
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

/// Sets the devices that the worker uses, by name; with an empty list they are derived from the maps.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_set_devices(
    options: *mut rdzv_rpc_options,
    names: *const rdzv_bytes,
    count: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the arguments are forwarded unchanged; the list is checked.
    unsafe {
        set(options, error, |of| {
            let devices = texts(names, count, "names")?.into_iter().map(device);
            let devices = devices.collect::<Result<Vec<_>, _>>()?;
            of.options.set_devices(&devices).map_err(|error| options_fault(&error))
        })
    }
}

/// Sets the number of devices of this process, against which maps are checked, and their kind; NULL:
/// `cuda`. Default 0. Only for the backend `tcp`; `RDZV_UNSUPPORTED` for others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_set_device_count(
    options: *mut rdzv_rpc_options,
    count: u32,
    kind: *const u8,
    kind_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the arguments are forwarded unchanged; text is checked.
    unsafe {
        set(options, error, |of| {
            let mut accelerator = DeviceKind::CUDA;
            if !kind.is_null() {
                let kind = text(kind, kind_len, "kind")?;
                accelerator = DeviceKind::new(kind)
                    .ok_or_else(|| invalid(format!("`kind` is {kind:?}, which is not a kind of device")))?;
            }
            let tcp = of.tcp("device_count")?;
            (tcp.device_count, tcp.accelerator) = (count, accelerator);
            Ok(())
        })
    }
}

/// Formats the options for a log; the text replaces the content of `message`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_describe(
    options: *const rdzv_rpc_options,
    message: *mut rdzv_buffer,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let options = reference(options, "options")?;
            reference_mut(message, "message")?.put(options.options.to_string().as_bytes());
            Ok(())
        })
    }
}

/// Returns the timeout of calls, in milliseconds; 0: no limit, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_rpc_timeout_ms(options: *const rdzv_rpc_options) -> i64 {
    let millis = |timeout: Duration| i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX);
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(options, 0, |of| of.options.rpc_timeout().map_or(0, millis)) }
}

/// Returns the number of threads that run pooled handlers; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_worker_threads(options: *const rdzv_rpc_options) -> u32 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(options, 0, |of| of.options.worker_threads()) }
}

/// Replaces the content of `transports` with the transports that were set, and that of `channels` with the
/// channels; each may be NULL. Both an unset and an empty list are empty here;
/// `rdzv_rpc_options_has_transports` and `rdzv_rpc_options_has_channels` distinguish them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_lists(
    options: *const rdzv_rpc_options,
    transports: *mut rdzv_list,
    channels: *mut rdzv_list,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused where it must be.
    unsafe {
        guard::call(error, &mut || {
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

/// Returns 1 if transports were set, even to an empty list, else 0. Returns 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_has_transports(options: *const rdzv_rpc_options) -> i32 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(options, 0, |of| i32::from(of.options.transports().is_some())) }
}

/// Returns 1 if channels were set, even to an empty list, else 0. Returns 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_has_channels(options: *const rdzv_rpc_options) -> i32 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(options, 0, |of| i32::from(of.options.channels().is_some())) }
}

/// Replaces the content of `url` with the URL through which the group meets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_init_method(
    options: *const rdzv_rpc_options,
    url: *mut rdzv_buffer,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let options = reference(options, "options")?;
            reference_mut(url, "url")?.put(options.options.init_method().as_bytes());
            Ok(())
        })
    }
}

fn device_names(devices: impl Iterator<Item = Device>) -> Vec<Vec<u8>> {
    devices.map(|device| device.to_string().into_bytes()).collect()
}

/// Replaces the content of two lists with the pairs of a map.
pub(crate) unsafe fn list_map(
    map: Option<&DeviceMap>,
    from: *mut rdzv_list,
    to: *mut rdzv_list,
) -> Result<(), Fault> {
    // SAFETY: NULL or valid, as the header requires; NULL is refused.
    let (from, to) = unsafe { (reference_mut(from, "from")?, reference_mut(to, "to")?) };
    from.items = map.map(|map| device_names(map.sources())).unwrap_or_default();
    to.items = map.map(|map| device_names(map.targets())).unwrap_or_default();
    Ok(())
}

/// Replaces the content of `names` with the devices that were set, in the order in which they were set;
/// empty if they are derived from the maps.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_list_devices(
    options: *const rdzv_rpc_options,
    names: *mut rdzv_list,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let options = reference(options, "options")?;
            let names = reference_mut(names, "names")?;
            names.items = device_names(options.options.devices().iter().copied());
            Ok(())
        })
    }
}

/// Replaces the content of `workers` with the names of the workers that have device maps, sorted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_options_list_mapped_workers(
    options: *const rdzv_rpc_options,
    workers: *mut rdzv_list,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let maps = reference(options, "options")?.options.device_maps();
            let list = reference_mut(workers, "workers")?;
            list.items = maps.iter().map(|(worker, _)| worker.as_bytes().to_vec()).collect();
            Ok(())
        })
    }
}

/// Replaces the content of the two lists with the device map for calls to a worker: local device `from[i]`
/// maps to its device `to[i]`, sorted by `from`. Both lists are empty if there is no map.
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
        guard::call(error, &mut || {
            let maps = reference(options, "options")?.options.device_maps();
            let map = maps.get(text(worker, worker_len, "worker")?);
            list_map(map, from, to)
        })
    }
}
