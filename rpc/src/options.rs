//! Options of a member of a group: timeout of calls, rendezvous, threads, transports and devices.

use super::device::{Device, DeviceError};
use super::device_map::{DeviceMap, DeviceMaps, MapError};
use super::name::{NameError, WorkerName};
use core::any::Any;
use rendezvous_core::prelude::*;
use rendezvous_core::time::Seconds;

/// Default timeout of a call. A member's store has the same timeout.
pub const RPC_TIMEOUT: Duration = Duration::from_secs(60);
/// Default URL of the rendezvous.
pub const INIT_METHOD: &str = "env://";
/// Default number of threads that execute requests.
pub const WORKER_THREADS: u32 = 16;
/// Maximum number of threads that execute requests.
pub const WORKER_THREADS_MAX: u32 = 1024;

/// Error of an option.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// A device map is not one to one.
    #[error(transparent)]
    Map(#[from] MapError),
    /// A device is invalid.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The name of a device map's worker is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The list has a device that is not an accelerator.
    #[error("`set_devices` expect a list of CUDA devices, but got device type {kind}.")]
    NotAnAccelerator {
        /// Its type.
        kind: Box<str>,
    },
    /// The number of threads is out of range.
    #[error("num_worker_threads must be from 1 to {WORKER_THREADS_MAX}, got {threads}")]
    Threads {
        /// The given number.
        threads: i64,
    },
    /// The URL of the rendezvous is empty.
    #[error("init_method must be a URL, got an empty string")]
    InitMethod,
    /// The name of a transport or channel is empty.
    #[error("a {what} must have a name")]
    Unnamed {
        /// `transport` or `channel`.
        what: &'static str,
    },
}

/// Options of one member. Copies share the extra options of a custom backend.
#[derive(Clone, Debug)]
pub struct RpcOptions {
    backend: Box<str>,
    rpc_timeout: Option<Duration>,
    init_method: Box<str>,
    worker_threads: u32,
    transports: Option<Vec<Box<str>>>,
    channels: Option<Vec<Box<str>>>,
    device_maps: DeviceMaps,
    devices: Vec<Device>,
    extra_options: Option<Arc<dyn Any + Send + Sync>>,
}

impl RpcOptions {
    /// Creates options of this backend with default values.
    pub fn new(backend: &str) -> Self {
        Self {
            backend: backend.into(),
            rpc_timeout: Some(RPC_TIMEOUT),
            init_method: INIT_METHOD.into(),
            worker_threads: WORKER_THREADS,
            transports: None,
            channels: None,
            device_maps: DeviceMaps::default(),
            devices: Vec::new(),
            extra_options: None,
        }
    }

    /// Name of the backend.
    pub fn backend(&self) -> &str {
        &self.backend
    }

    /// Timeout of a call that sets none itself; `None` for no limit, as PyTorch's 0.
    pub const fn rpc_timeout(&self) -> Option<Duration> {
        self.rpc_timeout
    }

    /// URL of the rendezvous.
    pub fn init_method(&self) -> &str {
        &self.init_method
    }

    /// Number of threads that execute requests.
    pub const fn worker_threads(&self) -> u32 {
        self.worker_threads
    }

    /// Allowed transports, the best first; `None` lets the backend choose.
    pub fn transports(&self) -> Option<&[Box<str>]> {
        self.transports.as_deref()
    }

    /// Allowed channels, the best first; `None` lets the backend choose.
    pub fn channels(&self) -> Option<&[Box<str>]> {
        self.channels.as_deref()
    }

    /// Device maps for the workers that this one calls.
    pub const fn device_maps(&self) -> &DeviceMaps {
        &self.device_maps
    }

    /// Devices that are used; empty if that follows from the maps.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Returns the extra options of a custom backend.
    pub fn extra_options<T: 'static>(&self) -> Option<&T> {
        self.extra_options.as_deref().and_then(|extra_options| extra_options.downcast_ref())
    }

    /// Sets the extra options of a custom backend.
    pub fn set_extra(&mut self, extra_options: Box<dyn Any + Send + Sync>) {
        self.extra_options = Some(extra_options.into());
    }

    /// Sets the timeout of a call; zero for no limit.
    pub const fn set_rpc_timeout(&mut self, timeout: Duration) {
        self.rpc_timeout = if timeout.is_zero() { None } else { Some(timeout) };
    }

    /// Sets the URL of the rendezvous.
    ///
    /// # Errors
    /// The URL is empty. Other errors are found when it is used.
    pub fn set_init_method(&mut self, url: &str) -> Result<(), OptionsError> {
        if url.is_empty() {
            return Err(OptionsError::InitMethod);
        }
        self.init_method = url.into();
        Ok(())
    }

    /// Sets the number of threads that execute requests.
    ///
    /// # Errors
    /// The number is out of range.
    pub fn set_worker_threads(&mut self, threads: i64) -> Result<(), OptionsError> {
        let fits = u32::try_from(threads).ok().filter(|threads| (1..=WORKER_THREADS_MAX).contains(threads));
        self.worker_threads = fits.ok_or(OptionsError::Threads { threads })?;
        Ok(())
    }

    /// Sets the allowed transports, the best first.
    ///
    /// # Errors
    /// A name is empty.
    pub fn set_transports(&mut self, names: &[&str]) -> Result<(), OptionsError> {
        self.transports = Some(named("transport", names)?);
        Ok(())
    }

    /// Sets the allowed channels, the best first.
    ///
    /// # Errors
    /// A name is empty.
    pub fn set_channels(&mut self, names: &[&str]) -> Result<(), OptionsError> {
        self.channels = Some(named("channel", names)?);
        Ok(())
    }

    /// Adds pairs of devices for calls to a worker; see [`DeviceMaps::set`].
    ///
    /// # Errors
    /// The pairs, or the pairs together with those before, are not one to one; then nothing is added.
    pub fn set_device_map(
        &mut self,
        to: &WorkerName,
        pairs: impl IntoIterator<Item = (Device, Device)>,
    ) -> Result<(), OptionsError> {
        Ok(self.device_maps.set(to, &DeviceMap::new(pairs)?)?)
    }

    /// Sets the devices that are used.
    ///
    /// # Errors
    /// One of them is the host.
    pub fn set_devices(&mut self, devices: &[Device]) -> Result<(), OptionsError> {
        if let Some(other) = devices.iter().find(|device| device.index().is_none()) {
            return Err(OptionsError::NotAnAccelerator { kind: other.kind_name().into() });
        }
        self.devices = devices.into();
        Ok(())
    }
}

fn named(what: &'static str, names: &[&str]) -> Result<Vec<Box<str>>, OptionsError> {
    if names.iter().any(|name| name.is_empty()) {
        return Err(OptionsError::Unnamed { what });
    }
    Ok(names.iter().map(|&name| name.into()).collect())
}

/// Format for logs and errors.
impl fmt::Display for RpcOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let timeout = Seconds(self.rpc_timeout.unwrap_or_default());
        write!(
            f,
            "<{}: rpc_timeout={timeout:?}, init_method='{}', num_worker_threads={}, device_maps={}, devices={:?}>",
            self.backend, self.init_method, self.worker_threads, self.device_maps, self.devices
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    fn device(text: &str) -> Device {
        text.parse().expect("a device")
    }

    #[test]
    fn nobody_has_to_tell_anything() {
        let options = RpcOptions::new("tcp");
        assert_eq!(
            options.to_string(),
            "<tcp: rpc_timeout=60.0, init_method='env://', num_worker_threads=16, device_maps={}, devices=[]>"
        );
        assert_eq!((options.rpc_timeout(), options.worker_threads()), (Some(RPC_TIMEOUT), 16));
        assert_eq!((options.transports(), options.channels()), (None, None));
        assert_eq!((options.devices(), options.device_maps().iter().count()), (&[][..], 0));
    }

    #[test]
    fn what_is_told_stays() {
        let mut options = RpcOptions::new("tcp");
        options.set_rpc_timeout(Duration::from_millis(2500));
        options.set_init_method("tcp://localhost:1").expect("a URL");
        options.set_worker_threads(3).expect("some");
        options.set_transports(&["shm", "uv"]).expect("named");
        options.set_channels(&[]).expect("none is a choice");
        let worker = WorkerName::new("worker1").expect("a name");
        options.set_device_map(&worker, [(device("cuda:0"), device("cuda:1"))]).expect("one to one");
        options.set_device_map(&worker, [(device("cuda:1"), device("cuda:0"))]).expect("one to one");
        options.set_devices(&[device("cuda:1"), device("cuda:0")]).expect("accelerators");
        assert_eq!(
            options.to_string(),
            "<tcp: rpc_timeout=2.5, init_method='tcp://localhost:1', num_worker_threads=3, \
             device_maps={'worker1': {cuda:0: cuda:1, cuda:1: cuda:0}}, devices=[cuda:1, cuda:0]>"
        );
        assert_eq!(options.transports(), Some(&["shm".into(), "uv".into()][..]));
        assert_eq!(options.channels(), Some(&[][..]), "no channel is not the same as any");
        options.set_rpc_timeout(Duration::ZERO);
        assert_eq!(options.rpc_timeout(), None);
        options.set_extra(Box::new(7_u8));
        assert_eq!((options.extra_options::<u8>(), options.extra_options::<u16>()), (Some(&7), None));
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_changes_nothing() {
        let mut options = RpcOptions::new("tcp");
        let before = options.to_string();
        let worker = WorkerName::new("w").expect("a name");
        let (zero, one) = (device("cuda:0"), device("cuda:1"));
        for (result, message) in [
            (options.set_init_method(""), "init_method must be a URL, got an empty string"),
            (options.set_worker_threads(0), "num_worker_threads must be from 1 to 1024, got 0"),
            (options.set_worker_threads(-1), "num_worker_threads must be from 1 to 1024, got -1"),
            (options.set_worker_threads(1025), "num_worker_threads must be from 1 to 1024, got 1025"),
            (options.set_transports(&["uv", ""]), "a transport must have a name"),
            (options.set_channels(&[""]), "a channel must have a name"),
            (
                options.set_device_map(&worker, [(zero, one), (one, one)]),
                "`device_map` only supports 1-to-1 mapping, trying to map cuda:1 and cuda:0 to cuda:1",
            ),
            (
                options.set_devices(&[zero, Device::Cpu]),
                "`set_devices` expect a list of CUDA devices, but got device type cpu.",
            ),
        ] {
            assert_eq!(result.expect_err(message).to_string(), message);
        }
        assert_eq!(options.to_string(), before);
        options.set_device_map(&worker, [(zero, one)]).expect("one to one");
        assert_eq!(
            options.set_device_map(&worker, [(zero, zero)]).expect_err("one to two").to_string(),
            "`set_device_map` only supports 1-to-1 mapping, trying to map cuda:0 to cuda:0 and cuda:1"
        );
    }
}
