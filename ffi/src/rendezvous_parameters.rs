//! Parameters of a rendezvous handler.

use crate::argument::{invalid, out_pointer, reference, reference_mut, text};
use crate::buffer::{borrowed, rdzv_buffer, rdzv_list};
use crate::fault::{Fault, rdzv_error};
use crate::guard;
use crate::rendezvous_fault::invalid_fault;
use crate::sized;
use crate::status::rdzv_status;
use rendezvous_core::rendezvous::parameters::{ConfigValue, RendezvousParameters};
use rendezvous_core::rendezvous::parse::{Endpoint, parse_config};
use std::ptr::null;

/// The option is not set.
pub const RDZV_CONFIG_MISSING: i32 = 0;
/// The option is set, but has no value.
pub const RDZV_CONFIG_NONE: i32 = 1;
/// Boolean: `number` is 1 for true, 0 for false.
pub const RDZV_CONFIG_BOOL: i32 = 2;
/// Integer: `number` is the value.
pub const RDZV_CONFIG_INT: i32 = 3;
/// Floating-point number: `fraction` is the value.
pub const RDZV_CONFIG_FLOAT: i32 = 4;
/// Text: `text` is the value.
pub const RDZV_CONFIG_TEXT: i32 = 5;

/// Value of a backend-specific option.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_config_value {
    /// Set to `sizeof(rdzv_config_value)` before the call.
    pub struct_size: u32,
    /// One of `RDZV_CONFIG_MISSING` to `RDZV_CONFIG_TEXT`; selects the field that has the value.
    pub kind: i32,
    /// Integer or Boolean value.
    pub number: i64,
    /// Floating-point value.
    pub fraction: f64,
    /// Text value. UTF-8, not NUL-terminated. As output, it is valid until the parameters are changed or
    /// freed.
    pub text: *const u8,
    /// Length of `text` in bytes.
    pub text_len: usize,
}

/// Size of `rdzv_config_value` in the first published header, in bytes.
const VALUE_FIRST_SIZE: usize = 40;
const NO_VALUE: rdzv_config_value = rdzv_config_value {
    struct_size: 0,
    kind: RDZV_CONFIG_MISSING,
    number: 0,
    fraction: 0.0,
    text: null(),
    text_len: 0,
};

/// Parameters from which a rendezvous handler is created. One thread at a time may change them; any number
/// of threads may read them while no thread changes them.
#[derive(Debug)]
pub struct rdzv_rendezvous_parameters {
    pub(crate) parameters: RendezvousParameters,
}

fn projected(value: Option<&ConfigValue>) -> rdzv_config_value {
    match value {
        None => NO_VALUE,
        Some(ConfigValue::None) => rdzv_config_value { kind: RDZV_CONFIG_NONE, ..NO_VALUE },
        Some(&ConfigValue::Bool(value)) => {
            rdzv_config_value { kind: RDZV_CONFIG_BOOL, number: i64::from(value), ..NO_VALUE }
        }
        Some(&ConfigValue::Int(number)) => rdzv_config_value { kind: RDZV_CONFIG_INT, number, ..NO_VALUE },
        Some(&ConfigValue::Float(fraction)) => {
            rdzv_config_value { kind: RDZV_CONFIG_FLOAT, fraction, ..NO_VALUE }
        }
        Some(ConfigValue::Text(text)) => rdzv_config_value {
            kind: RDZV_CONFIG_TEXT,
            text: text.as_ptr(),
            text_len: text.len(),
            ..NO_VALUE
        },
    }
}

/// Converts a value from C; `None` for `RDZV_CONFIG_MISSING`.
unsafe fn parsed(value: *const rdzv_config_value, name: &str) -> Result<Option<ConfigValue>, Fault> {
    // SAFETY: NULL or valid, as the header requires.
    let value = unsafe {
        let given = sized::given_size(value, VALUE_FIRST_SIZE, name)?;
        sized::get(value, given, NO_VALUE)
    };
    Ok(Some(match value.kind {
        RDZV_CONFIG_MISSING => return Ok(None),
        RDZV_CONFIG_NONE => ConfigValue::None,
        RDZV_CONFIG_BOOL if (0..=1).contains(&value.number) => ConfigValue::Bool(value.number == 1),
        RDZV_CONFIG_BOOL => return Err(invalid(format!("`{name}.number` is {}: 1 or 0", value.number))),
        RDZV_CONFIG_INT => ConfigValue::Int(value.number),
        RDZV_CONFIG_FLOAT => ConfigValue::Float(value.fraction),
        // SAFETY: NULL or valid, as the header requires.
        RDZV_CONFIG_TEXT => unsafe { text(value.text, value.text_len, name) }?.into(),
        kind => return Err(invalid(format!("`{name}.kind` is {kind}, not an RDZV_CONFIG_ kind"))),
    }))
}

/// Reads the default of an option; `None` for NULL.
unsafe fn read_default(value: *const rdzv_config_value) -> Result<Option<ConfigValue>, Fault> {
    // SAFETY: NULL or valid, as the header requires.
    if value.is_null() { Ok(None) } else { unsafe { parsed(value, "default_value") } }
}

/// Creates parameters for the backend `backend`: the endpoint of the rendezvous, the run id, and the
/// minimum and maximum number of nodes. The backend defines the format of endpoint and run id. On success
/// the caller owns `*out` and frees it with `rdzv_rendezvous_parameters_free`.
///
/// Errors: `RDZV_INVALID_ARGUMENT` if the name is empty, `min_nodes` is below 1, or `max_nodes` is below
/// `min_nodes`, checked in this order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_parameters_new(
    backend: *const u8,
    backend_len: usize,
    endpoint: *const u8,
    endpoint_len: usize,
    run_id: *const u8,
    run_id_len: usize,
    min_nodes: i64,
    max_nodes: i64,
    out: *mut *mut rdzv_rendezvous_parameters,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused where it must be.
    unsafe {
        guard::call(error, &mut || {
            let out = out_pointer(out, "out")?;
            let backend = text(backend, backend_len, "backend")?;
            let endpoint = text(endpoint, endpoint_len, "endpoint")?;
            let run_id = text(run_id, run_id_len, "run_id")?;
            let parameters = RendezvousParameters::new(backend, endpoint, run_id, min_nodes, max_nodes)
                .map_err(|error| invalid_fault(&error))?;
            out.put(Box::into_raw(Box::new(rdzv_rendezvous_parameters { parameters })));
            Ok(())
        })
    }
}

/// Frees parameters. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_parameters_free(parameters: *mut rdzv_rendezvous_parameters) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free(parameters) };
}

/// Sets the name or address at which other nodes reach this node. Without it, the backend determines one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_parameters_set_local_addr(
    parameters: *mut rdzv_rendezvous_parameters,
    local_addr: *const u8,
    local_addr_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let parameters = reference_mut(parameters, "parameters")?;
            let local_addr = text(local_addr, local_addr_len, "local_addr")?;
            parameters.parameters.local_addr = Some(local_addr.into());
            Ok(())
        })
    }
}

/// Sets options from a string `key=value,key=value`; each value is text. Spaces around keys and values are
/// ignored. On failure, no option is set.
///
/// Errors: `RDZV_INVALID_ARGUMENT` for an empty key or value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_parameters_set_config(
    parameters: *mut rdzv_rendezvous_parameters,
    config: *const u8,
    config_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let parameters = reference_mut(parameters, "parameters")?;
            let config = parse_config(text(config, config_len, "config")?);
            for (key, value) in config.map_err(|error| invalid_fault(&error))?.iter() {
                parameters.parameters.config.insert(key.clone(), value.clone());
            }
            Ok(())
        })
    }
}

/// Sets a backend-specific option and replaces one of the same name. `value->kind` must not be
/// `RDZV_CONFIG_MISSING`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_parameters_set(
    parameters: *mut rdzv_rendezvous_parameters,
    key: *const u8,
    key_len: usize,
    value: *const rdzv_config_value,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let parameters = reference_mut(parameters, "parameters")?;
            let key = text(key, key_len, "key")?;
            let value = parsed(value, "value")?;
            let value = value.ok_or_else(|| invalid("`value.kind` is RDZV_CONFIG_MISSING"))?;
            parameters.parameters.config.insert(key.into(), value);
            Ok(())
        })
    }
}

/// Sets an option to a text value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_parameters_set_text(
    parameters: *mut rdzv_rendezvous_parameters,
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let parameters = reference_mut(parameters, "parameters")?;
            let key = text(key, key_len, "key")?;
            let value = text(value, value_len, "value")?;
            parameters.parameters.config.insert(key.into(), value.into());
            Ok(())
        })
    }
}

/// Sets an option to an integer value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_parameters_set_int(
    parameters: *mut rdzv_rendezvous_parameters,
    key: *const u8,
    key_len: usize,
    value: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let parameters = reference_mut(parameters, "parameters")?;
            let key = text(key, key_len, "key")?;
            parameters.parameters.config.insert(key.into(), value.into());
            Ok(())
        })
    }
}

/// Returns the name of the backend and writes its length to `*len` unless `len` is NULL. The string is not
/// NUL-terminated and is valid as long as the parameters. Returns NULL for NULL. The three functions that
/// follow return their strings in the same form.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_parameters_backend(
    parameters: *const rdzv_rendezvous_parameters,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(parameters, null(), |of| borrowed(of.parameters.backend.as_bytes(), len)) }
}

/// Returns the endpoint of the rendezvous.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_parameters_endpoint(
    parameters: *const rdzv_rendezvous_parameters,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(parameters, null(), |of| borrowed(of.parameters.endpoint.as_bytes(), len)) }
}

/// Returns the run id.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_parameters_run_id(
    parameters: *const rdzv_rendezvous_parameters,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(parameters, null(), |of| borrowed(of.parameters.run_id.as_bytes(), len)) }
}

/// Returns the name or address at which other nodes reach this node; NULL if it was not set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_parameters_local_addr(
    parameters: *const rdzv_rendezvous_parameters,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe {
        guard::read(parameters, null(), |of| {
            let address = of.parameters.local_addr.as_ref();
            address.map_or(null(), |address| borrowed(address.as_bytes(), len))
        })
    }
}

/// Returns the minimum number of nodes; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_parameters_min_nodes(
    parameters: *const rdzv_rendezvous_parameters,
) -> i64 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(parameters, 0, |of| of.parameters.min_nodes()) }
}

/// Returns the maximum number of nodes; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_parameters_max_nodes(
    parameters: *const rdzv_rendezvous_parameters,
) -> i64 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(parameters, 0, |of| of.parameters.max_nodes()) }
}

/// Lists the names of all options in byte order; they replace the content of `keys`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_parameters_list(
    parameters: *const rdzv_rendezvous_parameters,
    keys: *mut rdzv_list,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let of = reference(parameters, "parameters")?;
            let keys = reference_mut(keys, "keys")?;
            keys.items = of.parameters.config.iter().map(|(key, _)| key.clone().into_bytes()).collect();
            Ok(())
        })
    }
}

/// Fills `*value`, whose `struct_size` the caller has set, with the value of an option. The kind is
/// `RDZV_CONFIG_MISSING` if the option is not set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_parameters_get(
    parameters: *const rdzv_rendezvous_parameters,
    key: *const u8,
    key_len: usize,
    value: *mut rdzv_config_value,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let of = reference(parameters, "parameters")?;
            let key = text(key, key_len, "key")?;
            let given = sized::given_size(value, VALUE_FIRST_SIZE, "value")?;
            sized::put(value, given, &projected(of.parameters.config.get(key)));
            Ok(())
        })
    }
}

/// Reads an option as a Boolean. Accepted are a Boolean, the integers 1 and 0, and the texts `1 true t yes
/// y` and `0 false f no n` in any case, without spaces. `*found` is 1 if there is a value, else 0; `*value`
/// is 1 or 0 (0 if there is none). `default_value` replaces a missing option and is read by the same rules;
/// NULL means no default.
///
/// Errors: `RDZV_INVALID_ARGUMENT` for any other value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_parameters_get_as_bool(
    parameters: *const rdzv_rendezvous_parameters,
    key: *const u8,
    key_len: usize,
    default_value: *const rdzv_config_value,
    found: *mut i32,
    value: *mut i32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused where it must be.
    unsafe {
        guard::call(error, &mut || {
            let of = reference(parameters, "parameters")?;
            let key = text(key, key_len, "key")?;
            let default_value = read_default(default_value)?;
            let (found, index) = (out_pointer(found, "found")?, out_pointer(value, "value")?);
            let value = of.parameters.get_as_bool(key, default_value.as_ref());
            let value = value.map_err(|error| invalid_fault(&error))?;
            found.put(i32::from(value.is_some()));
            index.put(i32::from(value.unwrap_or_default()));
            Ok(())
        })
    }
}

/// Reads an option as an integer. Text is trimmed, fractions are truncated, true is 1. `*found` is 1 if
/// there is a value, else 0; `*value` is the value (0 if there is none). `default_value` replaces a missing
/// option and is read by the same rules; NULL means no default.
///
/// Errors: `RDZV_INVALID_ARGUMENT` for any other value, or one that does not fit into 64 bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_parameters_get_as_int(
    parameters: *const rdzv_rendezvous_parameters,
    key: *const u8,
    key_len: usize,
    default_value: *const rdzv_config_value,
    found: *mut i32,
    value: *mut i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused where it must be.
    unsafe {
        guard::call(error, &mut || {
            let of = reference(parameters, "parameters")?;
            let key = text(key, key_len, "key")?;
            let default_value = read_default(default_value)?;
            let (found, index) = (out_pointer(found, "found")?, out_pointer(value, "value")?);
            let value = of.parameters.get_as_int(key, default_value.as_ref());
            let value = value.map_err(|error| invalid_fault(&error))?;
            found.put(i32::from(value.is_some()));
            index.put(value.unwrap_or_default());
            Ok(())
        })
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
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let endpoint = text(endpoint, endpoint_len, "endpoint")?;
            let (host, port) = (reference_mut(host, "host")?, out_pointer(port, "port")?);
            let parsed = Endpoint::parse(endpoint).map_err(|error| invalid_fault(&error))?;
            host.put(parsed.host.as_bytes());
            port.put(parsed.port.map_or(-1, i32::from));
            Ok(())
        })
    }
}

/// Parses a configuration string `key=value,key=value`. The keys, in byte order, replace the content of
/// `keys`, and their values that of `values`. Spaces around both are ignored; the last value of a repeated
/// key is used.
///
/// Errors: `RDZV_INVALID_ARGUMENT` for an empty key or value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_parse_config(
    config: *const u8,
    config_len: usize,
    keys: *mut rdzv_list,
    values: *mut rdzv_list,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let config = text(config, config_len, "config")?;
            let (keys, values) = (reference_mut(keys, "keys")?, reference_mut(values, "values")?);
            let config = parse_config(config).map_err(|error| invalid_fault(&error))?;
            let bytes = |value: &ConfigValue| match value {
                ConfigValue::Text(text) => text.clone().into_bytes(),
                _ => Vec::new(),
            };
            (keys.items, values.items) =
                config.iter().map(|(key, value)| (key.clone().into_bytes(), bytes(value))).unzip();
            Ok(())
        })
    }
}
