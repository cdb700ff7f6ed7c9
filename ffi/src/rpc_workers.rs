//! Lists of workers of an RPC group, and their devices.

use crate::prelude::*;
use rendezvous_rpc::device::Device;
use rendezvous_rpc::device_map::DeviceMaps;
use rendezvous_rpc::membership::change::WorkerLocation;
use rendezvous_rpc::name::WorkerInfo;
use std::fmt::Display;

/// Worker of a group.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_rpc_worker_info {
    /// Name of the worker, UTF-8.
    pub name: rdzv_bytes,
    /// Address on which the worker accepts calls. Empty if it has not been published yet, and in lists of
    /// a backend in user code.
    pub address: rdzv_bytes,
    /// Id of the worker.
    pub id: i32,
    /// Reserved; 0.
    pub reserved: u32,
}

/// List of workers. The library fills it and owns what it points to until `rdzv_rpc_workers_free`. Any
/// thread may read it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_rpc_workers {
    /// Size of this struct in the library, in bytes. Fields beyond that size are absent.
    pub struct_size: u32,
    /// Reserved; 0.
    pub reserved: u32,
    /// Workers, ordered by id.
    pub workers: *const rdzv_rpc_worker_info,
    /// Number of workers.
    pub count: usize,
}

/// A list for C with what it points to. The list is the first field, so that its address is that of the
/// whole.
#[repr(C)]
struct WithContent<T, C> {
    view: T,
    _content: C,
}

/// Creates a list of workers for C.
pub(crate) fn workers(located: Vec<WorkerLocation>) -> *mut rdzv_rpc_workers {
    let info = |of: &WorkerLocation| {
        let (name, address) = (rdzv_bytes::of(&*of.worker.name), rdzv_bytes::of(&*of.address));
        rdzv_rpc_worker_info { name, address, id: of.worker.id.into(), reserved: 0 }
    };
    let infos: Box<[_]> = located.iter().map(info).collect();
    let view = rdzv_rpc_workers {
        struct_size: struct_size::<rdzv_rpc_workers>(),
        reserved: 0,
        workers: infos.as_ptr(),
        count: infos.len(),
    };
    boxed(WithContent { view, _content: (infos, located) }).cast()
}

/// Creates a list of workers whose addresses are not known.
pub(crate) fn workers_of_group(workers: Vec<WorkerInfo>) -> *mut rdzv_rpc_workers {
    let located = |worker| WorkerLocation { worker, address: Box::default() };
    self::workers(workers.into_iter().map(located).collect())
}

/// Frees a list. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_workers_free(workers: *mut rdzv_rpc_workers) {
    let whole: *mut WithContent<rdzv_rpc_workers, (Box<[rdzv_rpc_worker_info]>, Vec<WorkerLocation>)> =
        workers.cast();
    // SAFETY: NULL or valid, as the header requires; `workers` above is the only function that creates one.
    unsafe { guard::free(whole) };
}

/// Pair of devices of a map, each with a name such as `cuda:0` or `cpu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_rpc_device_pair {
    /// Local device.
    pub from: *const c_char,
    /// Device of the other worker.
    pub to: *const c_char,
}

/// Map of local devices to those of another worker.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_rpc_device_map {
    /// Name of the other worker.
    pub worker: *const c_char,
    /// Pairs of devices, one to one.
    pub pairs: *const rdzv_rpc_device_pair,
    /// Number of pairs.
    pub pair_count: usize,
}

/// Devices of a worker. The library fills it and owns what it points to until `rdzv_rpc_devices_free`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_rpc_devices {
    /// Size of this struct in the library, in bytes. Fields beyond that size are absent.
    pub struct_size: u32,
    /// Reserved; 0.
    pub reserved: u32,
    /// Names of the devices that the worker uses, sorted by index: the devices of its options, or, if
    /// none are set, all local devices in its maps and in the others' maps for it.
    pub devices: *const *const c_char,
    /// Number of devices.
    pub device_count: usize,
    /// Reverse maps, sorted by worker: for each caller that has a map for this worker, the devices to
    /// which responses go, sorted by `from`.
    pub reverse_maps: *const rdzv_rpc_device_map,
    /// Number of reverse maps.
    pub reverse_map_count: usize,
}

/// Strings for C, whose addresses stay valid as long as this.
#[derive(Default)]
pub(crate) struct CTexts(Vec<CString>);

impl CTexts {
    pub(crate) fn add(&mut self, text: impl Display) -> *const c_char {
        // Nothing that is shown here has a NUL; a text that had one would be empty.
        let text = CString::new(text.to_string()).unwrap_or_default();
        let address = text.as_ptr();
        self.0.push(text);
        address
    }

    pub(crate) fn list(&mut self, texts: impl Iterator<Item = impl Display>) -> Box<[*const c_char]> {
        texts.map(|text| self.add(text)).collect()
    }
}

/// Device maps for C with what they point to.
#[derive(Default)]
pub(crate) struct CDeviceMaps {
    pub(crate) maps: Vec<rdzv_rpc_device_map>,
    _pairs: Vec<Box<[rdzv_rpc_device_pair]>>,
}

impl CDeviceMaps {
    pub(crate) fn new(all: &DeviceMaps, texts: &mut CTexts) -> Self {
        let mut made = Self::default();
        for (worker, map) in all.iter() {
            let pairs: Box<[_]> = map
                .sources()
                .zip(map.targets())
                .map(|(from, to)| rdzv_rpc_device_pair { from: texts.add(from), to: texts.add(to) })
                .collect();
            let (worker, pair_count) = (texts.add(worker), pairs.len());
            made.maps.push(rdzv_rpc_device_map { worker, pairs: pairs.as_ptr(), pair_count });
            made._pairs.push(pairs);
        }
        made
    }
}

/// What `rdzv_rpc_devices` points to.
type DeviceContent = (Box<[*const c_char]>, CDeviceMaps, CTexts);

/// Creates the devices of a worker for C.
pub(crate) fn devices(devices: &[Device], reverse_maps: &DeviceMaps) -> *mut rdzv_rpc_devices {
    let mut texts = CTexts::default();
    let (names, maps) = (texts.list(devices.iter()), CDeviceMaps::new(reverse_maps, &mut texts));
    let view = rdzv_rpc_devices {
        struct_size: struct_size::<rdzv_rpc_devices>(),
        reserved: 0,
        devices: names.as_ptr(),
        device_count: names.len(),
        reverse_maps: maps.maps.as_ptr(),
        reverse_map_count: maps.maps.len(),
    };
    let content: DeviceContent = (names, maps, texts);
    boxed(WithContent { view, _content: content }).cast()
}

/// Frees the devices of a worker. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_devices_free(devices: *mut rdzv_rpc_devices) {
    let whole: *mut WithContent<rdzv_rpc_devices, DeviceContent> = devices.cast();
    // SAFETY: NULL or valid, as the header requires; `devices` above is the only function that creates one.
    unsafe { guard::free(whole) };
}
