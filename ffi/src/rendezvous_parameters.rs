//! What a node says when it asks for a rendezvous handler.

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

/// The option is not there.
pub const RDZV_CONFIG_MISSING: i32 = 0;
/// The option is named, and has no value.
pub const RDZV_CONFIG_NONE: i32 = 1;
/// `number` is 1 for true, 0 for false.
pub const RDZV_CONFIG_BOOL: i32 = 2;
/// `number` is the value.
pub const RDZV_CONFIG_INT: i32 = 3;
/// `fraction` is the value.
pub const RDZV_CONFIG_FLOAT: i32 = 4;
/// `text` is the value.
pub const RDZV_CONFIG_TEXT: i32 = 5;

/// The value of an option of a backend's own.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_config_value {
    /// Set it to `sizeof(rdzv_config_value)` before the call.
    pub struct_size: u32,
    /// One of `RDZV_CONFIG_MISSING` to `RDZV_CONFIG_TEXT`: which of the fields below counts.
    pub kind: i32,
    /// An integer, or a truth value.
    pub number: i64,
    /// A number with a fraction.
    pub fraction: f64,
    /// UTF-8, not NUL-terminated. Handed out, it lives until the parameters are changed or freed.
    pub text: *const u8,
    /// Its length.
    pub text_len: usize,
}

/// The size of `rdzv_config_value` in the first header.
const VALUE_FIRST_SIZE: usize = 40;
const NO_VALUE: rdzv_config_value = rdzv_config_value {
    struct_size: 0,
    kind: RDZV_CONFIG_MISSING,
    number: 0,
    fraction: 0.0,
    text: null(),
    text_len: 0,
};

/// What a rendezvous handler is made from. One thread at a time; while nobody changes it, any number.
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

/// A value from C; `None` for one that is missing.
unsafe fn parsed(value: *const rdzv_config_value, name: &str) -> Result<Option<ConfigValue>, Fault> {
    // SAFETY: as the header wants it.
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
        // SAFETY: as the header wants it.
        RDZV_CONFIG_TEXT => unsafe { text(value.text, value.text_len, name) }?.into(),
        kind => return Err(invalid(format!("`{name}.kind` is {kind}, not an RDZV_CONFIG_ kind"))),
    }))
}

/// The stand-in for an option that is missing; NULL is none.
unsafe fn read_default(value: *const rdzv_config_value) -> Result<Option<ConfigValue>, Fault> {
    // SAFETY: as the header wants it.
    if value.is_null() { Ok(None) } else { unsafe { parsed(value, "default_value") } }
}

/// Parameters for the backend of that name: where its rendezvous is held, the run, and how many nodes there
/// must and may be. What endpoint and run id must look like is the backend's matter. On success `*out` is
/// yours until `rdzv_rendezvous_parameters_free`.
///
/// Errors: `RDZV_INVALID_ARGUMENT`, in this order, when the name is empty, `min_nodes` is below 1, or
/// `max_nodes` is below `min_nodes`.
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
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused where it must be.
    unsafe {
        guard::call(error, || {
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
    // SAFETY: as the header wants it.
    unsafe { guard::free(parameters) };
}

/// Where the others reach this node: a name or an address. Without it backends find their own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_parameters_set_local_addr(
    parameters: *mut rdzv_rendezvous_parameters,
    local_addr: *const u8,
    local_addr_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call(error, || {
            let parameters = reference_mut(parameters, "parameters")?;
            parameters.parameters.set_local_addr(text(local_addr, local_addr_len, "local_addr")?);
            Ok(())
        })
    }
}

/// Sets options from a string `key=value,key=value`; each value is text. Blanks around keys and values do
/// not count. On failure none is set.
///
/// Errors: `RDZV_INVALID_ARGUMENT` for an empty key or value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_parameters_set_config(
    parameters: *mut rdzv_rendezvous_parameters,
    config: *const u8,
    config_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call(error, || {
            let parameters = reference_mut(parameters, "parameters")?;
            let config = parse_config(text(config, config_len, "config")?);
            for (key, value) in config.map_err(|error| invalid_fault(&error))? {
                parameters.parameters.set(&key, value);
            }
            Ok(())
        })
    }
}

/// Sets an option of the backend's own, in the place of one of the same name. `value->kind` must not be
/// `RDZV_CONFIG_MISSING`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_parameters_set(
    parameters: *mut rdzv_rendezvous_parameters,
    key: *const u8,
    key_len: usize,
    value: *const rdzv_config_value,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call(error, || {
            let parameters = reference_mut(parameters, "parameters")?;
            let key = text(key, key_len, "key")?;
            let value = parsed(value, "value")?;
            let value = value.ok_or_else(|| invalid("`value.kind` is RDZV_CONFIG_MISSING"))?;
            parameters.parameters.set(key, value);
            Ok(())
        })
    }
}

/// Sets an option to a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_parameters_set_text(
    parameters: *mut rdzv_rendezvous_parameters,
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call(error, || {
            let parameters = reference_mut(parameters, "parameters")?;
            let key = text(key, key_len, "key")?;
            parameters.parameters.set(key, text(value, value_len, "value")?.into());
            Ok(())
        })
    }
}

/// Sets an option to an integer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_parameters_set_int(
    parameters: *mut rdzv_rendezvous_parameters,
    key: *const u8,
    key_len: usize,
    value: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call(error, || {
            let parameters = reference_mut(parameters, "parameters")?;
            parameters.parameters.set(text(key, key_len, "key")?, value.into());
            Ok(())
        })
    }
}

/// The backend's name, its length in `*len` unless `len` is NULL. Not NUL-terminated; lives as long as the
/// parameters. NULL for NULL. So with the three that follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_parameters_backend(
    parameters: *const rdzv_rendezvous_parameters,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: as the header wants it.
    unsafe { guard::read(parameters, null(), |of| borrowed(of.parameters.backend().as_bytes(), len)) }
}

/// Where the rendezvous is held.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_parameters_endpoint(
    parameters: *const rdzv_rendezvous_parameters,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: as the header wants it.
    unsafe { guard::read(parameters, null(), |of| borrowed(of.parameters.endpoint().as_bytes(), len)) }
}

/// The run's name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_parameters_run_id(
    parameters: *const rdzv_rendezvous_parameters,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: as the header wants it.
    unsafe { guard::read(parameters, null(), |of| borrowed(of.parameters.run_id().as_bytes(), len)) }
}

/// Where the others reach this node; NULL when that was not set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_parameters_local_addr(
    parameters: *const rdzv_rendezvous_parameters,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: as the header wants it.
    unsafe {
        guard::read(parameters, null(), |of| {
            of.parameters.local_addr().map_or(null(), |address| borrowed(address.as_bytes(), len))
        })
    }
}

/// How many nodes there must be; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_parameters_min_nodes(
    parameters: *const rdzv_rendezvous_parameters,
) -> i64 {
    // SAFETY: as the header wants it.
    unsafe { guard::read(parameters, 0, |of| of.parameters.min_nodes()) }
}

/// How many nodes there may be; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_parameters_max_nodes(
    parameters: *const rdzv_rendezvous_parameters,
) -> i64 {
    // SAFETY: as the header wants it.
    unsafe { guard::read(parameters, 0, |of| of.parameters.max_nodes()) }
}

/// The names of all options, in order; they replace the content of `keys`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_parameters_list(
    parameters: *const rdzv_rendezvous_parameters,
    keys: *mut rdzv_list,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call(error, || {
            let of = reference(parameters, "parameters")?;
            let keys = reference_mut(keys, "keys")?;
            keys.items = of.parameters.config().iter().map(|(key, _)| key.clone().into_bytes()).collect();
            Ok(())
        })
    }
}

/// Fills `*value`, of which `struct_size` must be set, with the value of an option; its kind is
/// `RDZV_CONFIG_MISSING` when there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_parameters_get(
    parameters: *const rdzv_rendezvous_parameters,
    key: *const u8,
    key_len: usize,
    value: *mut rdzv_config_value,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call(error, || {
            let of = reference(parameters, "parameters")?;
            let key = text(key, key_len, "key")?;
            let given = sized::given_size(value, VALUE_FIRST_SIZE, "value")?;
            sized::put(value, given, &projected(of.parameters.get(key)));
            Ok(())
        })
    }
}

/// The value of an option as a truth value: a Boolean; the integers 1 and 0; or the texts `1 true t yes y`
/// and `0 false f no n`, in any case and without blanks. Whether there is one, 1 or 0, goes to `*found`, and
/// the value, 1 or 0, to `*value` (0 when there is none). `default_value` stands in for a missing option,
/// and is read by the same rules; NULL for none.
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
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused where it must be.
    unsafe {
        guard::call(error, || {
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

/// The value of an option as an integer: text is trimmed, fractions are cut off, true is 1. Whether there is
/// one, 1 or 0, goes to `*found`, and the value to `*value` (0 when there is none). `default_value` stands
/// in for a missing option, and is read by the same rules; NULL for none.
///
/// Errors: `RDZV_INVALID_ARGUMENT` for any other value, or one that does not fit 64 bits.
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
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused where it must be.
    unsafe {
        guard::call(error, || {
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

/// Reads an endpoint: `host`, `host:port`, `[address]` or `[address]:port`; nothing at all is `localhost`.
/// The host replaces the content of `host`; the port goes to `*port`, -1 when there is none.
///
/// Errors: `RDZV_INVALID_ARGUMENT` for a port that is no number below 65536, or a host with letters that no
/// host has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_parse_endpoint(
    endpoint: *const u8,
    endpoint_len: usize,
    host: *mut rdzv_buffer,
    port: *mut i32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call(error, || {
            let endpoint = text(endpoint, endpoint_len, "endpoint")?;
            let (host, port) = (reference_mut(host, "host")?, out_pointer(port, "port")?);
            let parsed = Endpoint::parse(endpoint).map_err(|error| invalid_fault(&error))?;
            host.put(parsed.host.as_bytes());
            port.put(parsed.port.map_or(-1, i32::from));
            Ok(())
        })
    }
}

/// Reads a configuration string `key=value,key=value`. The keys, in order, replace the content of `keys`,
/// and their values that of `values`. Blanks around both do not count; a later value of the same key wins.
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
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call(error, || {
            let config = text(config, config_len, "config")?;
            let (keys, values) = (reference_mut(keys, "keys")?, reference_mut(values, "values")?);
            let config = parse_config(config).map_err(|error| invalid_fault(&error))?;
            let bytes =
                |value| if let ConfigValue::Text(text) = value { text.into_bytes() } else { Vec::new() };
            (keys.items, values.items) =
                config.into_iter().map(|(key, value)| (key.into_bytes(), bytes(value))).unzip();
            Ok(())
        })
    }
}
