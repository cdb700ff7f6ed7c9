//! Options and configurations as rendezvous backends in user code read them.

use crate::prelude::*;
use crate::rendezvous_parameters::{parsed, rdzv_rendezvous_parameters};
use rendezvous_core::rendezvous::parameters::ConfigValue;
use rendezvous_core::rendezvous::parse::parse_config;

/// Returns the value of an option that a backend in user code received, valid as long as the parameters.
/// Returns NULL if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_parameters_get(
    parameters: *const rdzv_rendezvous_parameters,
    name: *const c_char,
) -> *const c_char {
    guard::quiet(null(), || {
        // SAFETY: the pointers are NULL or valid as the header requires.
        unsafe {
            let (Ok(of), false) = (sized::get(parameters, "parameters"), name.is_null()) else {
                return null();
            };
            let options = (0..of.option_count).rev().map(|index| *of.options.add(index));
            let name = CStr::from_ptr(name);
            let is_it = |pair: &rdzv_pair| !pair.name.is_null() && CStr::from_ptr(pair.name) == name;
            options.into_iter().find(is_it).map_or(null(), |pair| pair.value)
        }
    })
}

/// Reads an option as a Boolean: `1 true t yes y` or `0 false f no n` in any case, without spaces.
/// `*value` is 1 or 0; `default_value` if the option is not set.
///
/// Errors: `RDZV_INVALID_ARGUMENT` for any other value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_parameters_get_as_bool(
    parameters: *const rdzv_rendezvous_parameters,
    name: *const c_char,
    default_value: i32,
    value: *mut i32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::call!(error, value, || {
        let (of, name) = (parsed(parameters)?, c_text(name, "name")?.unwrap_or_default());
        let value = of.get_as_bool(name, None).map_err(invalid)?;
        Ok(value.map_or(default_value, i32::from))
    })
}

/// Reads an option as an integer of 64 bits; spaces around it are ignored. `*value` is `default_value` if
/// the option is not set.
///
/// Errors: `RDZV_INVALID_ARGUMENT` for any other value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_parameters_get_as_int(
    parameters: *const rdzv_rendezvous_parameters,
    name: *const c_char,
    default_value: i64,
    value: *mut i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::call!(error, value, || {
        let (of, name) = (parsed(parameters)?, c_text(name, "name")?.unwrap_or_default());
        let value = of.get_as_int(name, None).map_err(invalid)?;
        Ok(value.unwrap_or(default_value))
    })
}

/// Parses a configuration string `key=value,key=value`. The keys, in byte order, replace the content of
/// `keys`, and their values that of `values`. Spaces around both are ignored; the last value of a
/// repeated key is used.
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
    guard::call!(error, || {
        let config = text(config, config_len, "config")?;
        let (keys, values) = (reference_mut(keys, "keys")?, reference_mut(values, "values")?);
        let config = parse_config(config).map_err(invalid)?;
        let bytes = |value: &ConfigValue| match value {
            ConfigValue::Text(text) => text.clone().into_bytes(),
            _ => Vec::new(),
        };
        (keys.items, values.items) =
            config.iter().map(|(key, value)| (key.clone().into_bytes(), bytes(value))).unzip();
        Ok(())
    })
}
