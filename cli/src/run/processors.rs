//! How many workers a node has room for.

use super::surroundings;
use super::usage::Usage;

/// What `--nproc-per-node` means here.
pub(super) fn workers(said: &str) -> Result<u32, Usage> {
    let count = match said {
        "cpu" => cpus(),
        "gpu" => match gpus(surroundings::text("CUDA_VISIBLE_DEVICES").as_deref(), &device_names()) {
            0 => {
                return Err(Usage(
                    "--nproc-per-node gpu: there is no GPU here; Cuda is not available.".into(),
                ));
            }
            gpus => gpus,
        },
        "auto" => match gpus(surroundings::text("CUDA_VISIBLE_DEVICES").as_deref(), &device_names()) {
            0 => cpus(),
            gpus => gpus,
        },
        number => match number.parse() {
            Ok(count) => count,
            Err(_) => return Err(Usage(format!("Unsupported nproc_per_node value: {said}"))),
        },
    };
    if count == 0 {
        return Err(Usage("--nproc-per-node must be at least 1".into()));
    }
    Ok(count)
}

/// Those that this process may run on.
fn cpus() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX))
}

fn device_names() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir("/dev") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// The devices that a program here sees: those that are listed, or else those that are there.
fn gpus(visible: Option<&str>, device_names: &[String]) -> u32 {
    let count = match visible {
        // The list ends where it makes no sense.
        Some(list) => {
            list.split(',').take_while(|device| !matches!(device.trim(), "" | "-1" | "NoDevFiles")).count()
        }
        None => {
            let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            device_names.iter().filter(|name| name.strip_prefix("nvidia").is_some_and(is_number)).count()
        }
    };
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_numbers() {
        assert_eq!(workers("3").expect("a number"), 3);
        assert!(workers("cpu").expect("at least one") > 0);
        for (said, event) in [
            ("0", "--nproc-per-node must be at least 1"),
            ("many", "Unsupported nproc_per_node value: many"),
            ("-1", "Unsupported nproc_per_node value: -1"),
        ] {
            assert_eq!(workers(said).expect_err("refused").0, event);
        }
    }

    #[test]
    fn devices_are_counted_as_programs_see_them() {
        let there = ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"].map(String::from);
        for (visible, count) in
            [(None, 2), (Some(""), 0), (Some("3"), 1), (Some("1,0,2"), 3), (Some("0,-1,1"), 1)]
        {
            assert_eq!(gpus(visible, &there), count, "{visible:?}");
        }
    }
}
