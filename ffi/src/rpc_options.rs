//! Options of a worker of an RPC group.

use crate::cancel_token::{rdzv_cancel_token, token_or_none};
use crate::prelude::*;
use crate::rpc_handlers::Entry;
use crate::rpc_workers::{CDeviceMaps, CTexts, rdzv_rpc_device_map};
use crate::store::rdzv_store;
use crate::tls_options::{self, rdzv_tls_options};
use rendezvous_core::driver::cancel::CancelToken;
use rendezvous_core::driver::rendezvous::NodeStore;
use rendezvous_core::driver::token_file::ClientToken;
use rendezvous_core::rendezvous::url::RankEnvironment;
use rendezvous_rpc::device::{Device, DeviceError, DeviceKind};
use rendezvous_rpc::driver::group::registry::DEFAULT_BACKEND;
use rendezvous_rpc::driver::group::{GroupTls, TcpOptions};
use rendezvous_rpc::name::WorkerName;
use rendezvous_rpc::options::RpcOptions;

/// Options of a worker of an RPC group. With zeros and `struct_size` all options have their defaults.
/// Strings are NUL-terminated UTF-8. The library copies what it needs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_rpc_options {
    /// Set to `sizeof(rdzv_rpc_options)`.
    pub struct_size: u32,
    /// Number of threads that run pooled handlers, from 1 to 1024; 0: 16. Each is started when there is
    /// work for it.
    pub worker_threads: i32,
    /// Name of the backend; NULL: `tcp`.
    pub backend: *const c_char,
    /// URL through which the group meets: `tcp://`, `file://`, `env://`, or another scheme of the
    /// context; NULL: `env://`, which uses `variables`.
    pub init_method: *const c_char,
    /// Store over which the group meets instead; NULL: `init_method`. The keys of the group are those of
    /// the store, so use a prefix for each group (`rdzv_store_new_prefix`). The worker keeps a
    /// reference; the caller may free its handle. If its session proves a token (`auth_token_file`), the
    /// worker requires a token of that file from its callers, and the first one from those that it calls,
    /// unless it has a file of its own (`auth_token_file` below).
    pub store: *const rdzv_store,
    /// Token that cancels the worker's creation and the calls that wait on its handle; NULL: none does.
    pub token: *const rdzv_cancel_token,
    /// Timeout of calls that set none, in milliseconds; 0: 60,000. It also limits joining and leaving,
    /// each, unless `membership_timeout_ms` is set.
    pub rpc_timeout_ms: i64,
    /// Timeout of joining and of leaving, in milliseconds; 0: that of calls.
    pub membership_timeout_ms: i64,
    /// Values of environment variables, as those of `rdzv_rendezvous_url_options`. The library never
    /// reads the environment.
    pub variables: *const rdzv_pair,
    /// Number of variables.
    pub variable_count: usize,
    /// Name or address on which the worker that hosts the group's store listens; NULL: that of the URL.
    pub listen_host: *const c_char,
    /// Local address on which the worker accepts calls; NULL: the address by which it reaches the store's
    /// host, or the loopback address if the store has no host.
    pub host: *const c_char,
    /// Transports that a backend may use, in order of preference; NULL: it chooses. A list of none that
    /// is not NULL allows none. `tcp` has a transport of its own and ignores the list.
    pub transports: *const *const c_char,
    /// Number of transports.
    pub transport_count: usize,
    /// Channels that a backend may use, like `transports`.
    pub channels: *const *const c_char,
    /// Number of channels.
    pub channel_count: usize,
    /// Device maps for calls, by the names of the callees. A map that is not one to one is refused.
    pub device_maps: *const rdzv_rpc_device_map,
    /// Number of device maps.
    pub device_map_count: usize,
    /// Devices that the worker uses, by name; none: they are derived from the maps.
    pub devices: *const *const c_char,
    /// Number of devices.
    pub device_count: usize,
    /// Kind of the devices of this process; NULL: `cuda`.
    pub accelerator: *const c_char,
    /// Number of devices of this process, against which maps are checked.
    pub accelerator_count: u32,
    /// Reserved; 0.
    pub reserved: u32,
    /// Options of a backend in user code, as texts. `tcp` has none.
    pub extra_options: *const rdzv_pair,
    /// Number of these options.
    pub extra_option_count: usize,
    /// TLS of the calls between workers, in which each is a server and a client; NULL: none. All workers of
    /// a group need it. `tls.server_name` is the name that all their certificates contain. A backend other
    /// than `tcp` does not get it: the attempt fails with `RDZV_INVALID_ARGUMENT`.
    pub tls: *const rdzv_tls_options,
    /// File with the tokens that the workers of the backend `tcp` prove to each other, over any store; NULL:
    /// that of `store`, if its session proves a token. A worker calls with the first one and accepts each.
    /// All workers of a group need the same. With another backend, the attempt fails with
    /// `RDZV_INVALID_ARGUMENT`.
    pub auth_token_file: *const c_char,
}
growing!(rdzv_rpc_options: 192);

/// Copies of the options of a worker.
pub(crate) struct WorkerOptions {
    pub(crate) options: RpcOptions,
    pub(crate) tcp: TcpOptions,
    pub(crate) environment: RankEnvironment,
    pub(crate) listen_host: Option<String>,
    pub(crate) store: Option<Arc<NodeStore>>,
    pub(crate) token: CancelToken,
    pub(crate) extra_options: Vec<(String, String)>,
}

/// Data passed to a worker of a backend in user code beside its options.
#[derive(Clone, Default)]
pub(crate) struct Given {
    pub(crate) entries: Vec<Entry>,
    pub(crate) shared: Option<Arc<ContextShared>>,
    pub(crate) tcp: TcpOptions,
    pub(crate) extra_options: Vec<(String, String)>,
}

/// What to do about an option that no backend of the program gets.
const FOR_TCP: &str = ", which is for tcp: unset it; extra_options has what is for this backend";

fn device(name: &str) -> Result<Device, Fault> {
    name.parse().map_err(|error: DeviceError| invalid(error))
}

/// Returns a text that is not empty; NULL is `None`.
unsafe fn non_empty(text: *const c_char, name: &str) -> Result<Option<String>, Fault> {
    // SAFETY: passed on unchanged.
    match unsafe { c_text(text, name) }? {
        Some("") => Err(invalid(format!("`{name}` is empty"))),
        text => Ok(text.map(String::from)),
    }
}

impl WorkerOptions {
    /// Copies the options; NULL has all defaults.
    pub(crate) unsafe fn new(options: *const rdzv_rpc_options) -> Result<Self, Fault> {
        // SAFETY: pointers, lists and texts are readable, as the caller says; they are checked.
        unsafe {
            let given = sized::get_or_default(options, "options")?;
            let mut options = RpcOptions::new(c_text(given.backend, "backend")?.unwrap_or(DEFAULT_BACKEND));
            if let Some(url) = c_text(given.init_method, "init_method")? {
                options.set_init_method(url)?;
            }
            if given.rpc_timeout_ms != 0 {
                options.set_rpc_timeout(positive_ms(given.rpc_timeout_ms, "rpc_timeout_ms")?);
            }
            if given.worker_threads != 0 {
                options.set_worker_threads(given.worker_threads.into())?;
            }
            if !given.transports.is_null() {
                let names = c_texts(given.transports, given.transport_count, "transports")?;
                options.set_transports(&names)?;
            }
            if !given.channels.is_null() {
                let names = c_texts(given.channels, given.channel_count, "channels")?;
                options.set_channels(&names)?;
            }
            let devices = c_texts(given.devices, given.device_count, "devices")?;
            let devices = devices.into_iter().map(device).collect::<Result<Vec<_>, _>>()?;
            options.set_devices(&devices)?;
            for map in items(given.device_maps, given.device_map_count, "device_maps")? {
                let worker = c_text(map.worker, "device_maps.worker")?.unwrap_or_default();
                let worker = WorkerName::new(worker).map_err(invalid)?;
                let mut devices = Vec::new();
                for pair in items(map.pairs, map.pair_count, "device_maps.pairs")? {
                    let from = c_text(pair.from, "device_maps.pairs.from")?.unwrap_or_default();
                    let to = c_text(pair.to, "device_maps.pairs.to")?.unwrap_or_default();
                    devices.push((device(from)?, device(to)?));
                }
                options.set_device_map(&worker, devices)?;
            }
            let mut tcp = TcpOptions {
                host: non_empty(given.host, "host")?,
                device_count: given.accelerator_count,
                ..TcpOptions::default()
            };
            let tls = tls_options::of_worker(given.tls)?;
            tcp.tls = tls.map(|(server, client)| GroupTls { server, client });
            if let Some(path) = c_text(given.auth_token_file, "auth_token_file")? {
                tcp.auth_token = Some(ClientToken::open(path.as_ref()).map_err(invalid)?);
            }
            if let Some(kind) = c_text(given.accelerator, "accelerator")? {
                tcp.accelerator = DeviceKind::new(kind).ok_or_else(|| {
                    invalid(format!("`accelerator` is {kind:?}, which is not a kind of device"))
                })?;
            }
            if given.membership_timeout_ms != 0 {
                let timeout = positive_ms(given.membership_timeout_ms, "membership_timeout_ms")?;
                tcp.membership_timeout = Some(timeout);
            }
            let mut environment = RankEnvironment::default();
            for (name, value) in pairs(given.variables, given.variable_count, "variables")? {
                *crate::rendezvous_url::variable(&mut environment, name)? = Some(value.into());
            }
            let extra = pairs(given.extra_options, given.extra_option_count, "extra_options")?;
            let extra_options: Vec<(String, String)> =
                extra.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
            // `tcp` has no options of its own, and only `tcp` has tokens and TLS: a program that sets them for another
            // backend must not get calls without them.
            let (refused, advice) = match (options.backend(), &extra_options[..], &tcp) {
                (DEFAULT_BACKEND, [(option, _), ..], _) => (option.as_str(), ""),
                (DEFAULT_BACKEND, ..) | (.., TcpOptions { tls: None, auth_token: None, .. }) => ("", ""),
                (.., TcpOptions { tls: Some(_), .. }) => ("tls", FOR_TCP),
                _ => ("auth_token_file", FOR_TCP),
            };
            if !refused.is_empty() {
                let backend = options.backend();
                return Err(invalid(format!("RPC backend {backend}: unknown option {refused}{advice}")));
            }
            Ok(Self {
                tcp,
                environment,
                listen_host: non_empty(given.listen_host, "listen_host")?,
                store: given.store.as_ref().map(|store| Arc::clone(&store.store)),
                token: token_or_none(given.token),
                extra_options,
                options,
            })
        }
    }
}

/// Options for a backend in user code, with what they point to.
pub(crate) struct OptionsView {
    pub(crate) options: rdzv_rpc_options,
    _lists: [Box<[*const c_char]>; 3],
    _extra_options: Box<[rdzv_pair]>,
    _maps: CDeviceMaps,
    _texts: CTexts,
}

impl OptionsView {
    /// Fills each option, also those that the program did not set.
    pub(crate) fn new(options: &RpcOptions, given: &Given) -> Self {
        let mut texts = CTexts::default();
        let mut list = |names: Option<&[Box<str>]>| {
            let list = texts.list(names.unwrap_or_default().iter());
            // An empty list still has an address, which is not NULL.
            (if names.is_some() { list.as_ptr() } else { null() }, list)
        };
        let (transports, transport_list) = list(options.transports());
        let (channels, channel_list) = list(options.channels());
        let devices = texts.list(options.devices().iter());
        let maps = CDeviceMaps::new(options.device_maps(), &mut texts);
        let extra_options: Box<[_]> = given
            .extra_options
            .iter()
            .map(|(name, value)| rdzv_pair { name: texts.add(name), value: texts.add(value) })
            .collect();
        let rpc_timeout_ms = options.rpc_timeout().map_or(0, millis);
        let view = rdzv_rpc_options {
            struct_size: struct_size::<rdzv_rpc_options>(),
            worker_threads: i32::try_from(options.worker_threads()).unwrap_or(i32::MAX),
            backend: texts.add(options.backend()),
            init_method: texts.add(options.init_method()),
            rpc_timeout_ms,
            membership_timeout_ms: given.tcp.membership_timeout.map_or(rpc_timeout_ms, millis),
            host: given.tcp.host.as_ref().map_or(null(), |host| texts.add(host)),
            transports,
            transport_count: transport_list.len(),
            channels,
            channel_count: channel_list.len(),
            device_maps: maps.maps.as_ptr(),
            device_map_count: maps.maps.len(),
            devices: devices.as_ptr(),
            device_count: devices.len(),
            accelerator: texts.add(given.tcp.accelerator),
            accelerator_count: given.tcp.device_count,
            extra_options: extra_options.as_ptr(),
            extra_option_count: extra_options.len(),
            ..Default::default()
        };
        Self {
            options: view,
            _lists: [transport_list, channel_list, devices],
            _extra_options: extra_options,
            _maps: maps,
            _texts: texts,
        }
    }
}
