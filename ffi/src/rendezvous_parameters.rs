//! Parameters of a rendezvous.

use crate::prelude::*;
use rendezvous_core::rendezvous::parameters::{ConfigValue, RendezvousParameters};
use rendezvous_core::rendezvous::parse::{Endpoint, parse_config};
use rendezvous_core::time::Seconds;

/// Parameters of a rendezvous: which nodes meet, where, and how. Strings are NUL-terminated UTF-8. A
/// backend in user code receives the same struct; it is valid during the call only.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_rendezvous_parameters {
    /// Set to `sizeof(rdzv_rendezvous_parameters)`.
    pub struct_size: u32,
    /// Reserved; 0.
    pub reserved: u32,
    /// Name of the backend, for example `rdzv`. Must not be NULL or empty.
    pub backend: *const c_char,
    /// Endpoint of the rendezvous, in a format that the backend defines. NULL: an empty one.
    pub endpoint: *const c_char,
    /// Id of the run. NULL: an empty one.
    pub run_id: *const c_char,
    /// Least number of nodes of a round. 0: 1.
    pub min_nodes: i64,
    /// Largest number of nodes of a round. 0: `min_nodes`.
    pub max_nodes: i64,
    /// Name or address at which other nodes reach this node. NULL: the backend determines one.
    pub local_addr: *const c_char,
    /// Options of the backend as `name=value,name=value`, like the `--rdzv-conf` of torchrun. Spaces around
    /// names and values are ignored. Times in options of the built-in backends are seconds, also with a
    /// fraction, or have a unit, as in `500ms` (docs/handlers.md). NULL: none. A backend in user code gets
    /// NULL: `options` has them.
    pub config: *const c_char,
    /// Options of the backend, in the same units. One that is in `config`, too, replaces it.
    pub options: *const rdzv_pair,
    /// Number of `options`.
    pub option_count: usize,
}
growing!(rdzv_rendezvous_parameters: 80);

/// Reads parameters from C.
pub(crate) unsafe fn parsed(
    parameters: *const rdzv_rendezvous_parameters,
) -> Result<RendezvousParameters, Fault> {
    // SAFETY: NULL or valid, as the header requires.
    unsafe {
        let of = sized::get(parameters, "parameters")?;
        let backend = c_text(of.backend, "parameters.backend")?.unwrap_or_default();
        let endpoint = c_text(of.endpoint, "parameters.endpoint")?.unwrap_or_default();
        let run_id = c_text(of.run_id, "parameters.run_id")?.unwrap_or_default();
        let min_nodes = if of.min_nodes == 0 { 1 } else { of.min_nodes };
        let max_nodes = if of.max_nodes == 0 { min_nodes } else { of.max_nodes };
        let parameters = RendezvousParameters::new(backend, endpoint, run_id, min_nodes, max_nodes);
        let mut parameters = parameters.map_err(invalid)?;
        parameters.local_addr = c_text(of.local_addr, "parameters.local_addr")?.map(String::from);
        let config = c_text(of.config, "parameters.config")?.unwrap_or_default();
        parameters.config = parse_config(config).map_err(invalid)?;
        for (name, value) in pairs(of.options, of.option_count, "parameters.options")? {
            parameters.config.insert(name.into(), value.into());
        }
        Ok(parameters)
    }
}

/// Lends parameters to a backend in user code.
pub(crate) fn with_borrowed<R>(
    parameters: &RendezvousParameters,
    body: impl FnOnce(&rdzv_rendezvous_parameters) -> R,
) -> R {
    let options = parameters.config.iter().map(|(name, value)| (c_string(name), c_string(text_of(value))));
    let options: Vec<_> = options.collect();
    let pairs: Vec<_> = options
        .iter()
        .map(|(name, value)| rdzv_pair { name: name.as_ptr(), value: value.as_ptr() })
        .collect();
    let (backend, endpoint) = (c_string(&parameters.backend), c_string(&parameters.endpoint));
    let (run_id, local_addr) = (c_string(&parameters.run_id), parameters.local_addr.as_deref().map(c_string));
    body(&rdzv_rendezvous_parameters {
        struct_size: struct_size::<rdzv_rendezvous_parameters>(),
        backend: backend.as_ptr(),
        endpoint: endpoint.as_ptr(),
        run_id: run_id.as_ptr(),
        min_nodes: parameters.min_nodes(),
        max_nodes: parameters.max_nodes(),
        local_addr: local_addr.as_ref().map_or(null(), |addr| addr.as_ptr()),
        options: pairs.as_ptr(),
        option_count: pairs.len(),
        ..Default::default()
    })
}

fn text_of(value: &ConfigValue) -> String {
    match value {
        ConfigValue::None => String::new(),
        ConfigValue::Bool(value) => i64::from(*value).to_string(),
        ConfigValue::Int(value) => value.to_string(),
        ConfigValue::Duration(span) => Seconds(*span).to_string(),
        ConfigValue::Text(text) => text.clone(),
    }
}

/// Parses an endpoint: `host`, `host:port`, `[address]` or `[address]:port`; an empty one is `localhost`.
/// The host replaces the content of `host`; the port goes to `*port`, -1 if there is none.
///
/// Errors: `RDZV_INVALID_ARGUMENT` for a port that is not a number below 65536, or a host with characters
/// that are not valid in one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_parse_endpoint(
    endpoint: *const u8,
    endpoint_len: usize,
    host: *mut rdzv_buffer,
    port: *mut i32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::call!(error, port, || {
        let endpoint = text(endpoint, endpoint_len, "endpoint")?;
        let host = reference_mut(host, "host")?;
        let parsed = Endpoint::parse(endpoint).map_err(invalid)?;
        host.put(parsed.host.as_bytes());
        Ok(parsed.port.map_or(-1, i32::from))
    })
}
