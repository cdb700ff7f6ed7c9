//! How long a server has been on a CPU, as Linux counts it for each thread.

use crate::failure::Failure;
use rendezvous_core::error::ErrorKind;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// CPU time of a set of threads.
#[derive(Clone, Debug)]
pub(super) enum CpuMeter {
    /// The threads are not known.
    Unknown,
    /// All threads in this folder of `/proc`, also those to come.
    Process(PathBuf),
    /// These threads.
    Tasks(BTreeSet<PathBuf>),
}

impl CpuMeter {
    /// All threads of a process of this host.
    pub(super) fn of_process(pid: u32) -> Result<Self, Failure> {
        let meter = Self::Process(format!("/proc/{pid}/task").into());
        match meter.read() {
            Ok(_) => Ok(meter),
            Err(error) => {
                let message = format!("the CPU time of process {pid} cannot be read: {error}");
                Err(Failure::new(ErrorKind::InvalidArgument, message))
            }
        }
    }

    pub(super) fn tasks_of_this_process() -> BTreeSet<PathBuf> {
        tasks(Path::new("/proc/self/task")).unwrap_or_default()
    }

    /// The threads of this process that were not there `before`.
    pub(super) fn of_tasks_since(before: &BTreeSet<PathBuf>) -> Self {
        let mut tasks = Self::tasks_of_this_process();
        tasks.retain(|task| !before.contains(task));
        if tasks.is_empty() { Self::Unknown } else { Self::Tasks(tasks) }
    }

    /// The time up to now, where it is known.
    pub(super) fn now(&self) -> Option<Duration> {
        self.read().ok()
    }

    fn read(&self) -> io::Result<Duration> {
        match self {
            Self::Unknown => Err(io::ErrorKind::Unsupported.into()),
            // A thread may end between the listing and its reading.
            Self::Process(folder) => {
                let times = tasks(folder)?.into_iter().map(|task| on_cpu(&task));
                times
                    .filter(|time| !time.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound))
                    .sum()
            }
            Self::Tasks(tasks) => tasks.iter().map(|task| on_cpu(task)).sum(),
        }
    }
}

fn tasks(folder: &Path) -> io::Result<BTreeSet<PathBuf>> {
    fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect()
}

fn on_cpu(task: &Path) -> io::Result<Duration> {
    let text = fs::read_to_string(task.join("schedstat"))?;
    let nanos = text.split(' ').next().and_then(|field| field.parse().ok());
    nanos.map(Duration::from_nanos).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn the_time_of_a_new_thread_is_attributed_to_it() {
        let (report, reports) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let before = CpuMeter::tasks_of_this_process();
        let thread = std::thread::spawn(move || {
            let sum: u64 = (0..2_000_000_u64).map(|n| std::hint::black_box(n).wrapping_mul(n)).sum();
            let tid = fs::read_link("/proc/thread-self").unwrap().file_name().unwrap().to_owned();
            report.send((sum, tid)).unwrap();
            released.recv().ok();
        });
        let task = Path::new("/proc/self/task").join(reports.recv().unwrap().1);
        // Other tests may run beside this one, in threads of their own.
        let CpuMeter::Tasks(tasks) = CpuMeter::of_tasks_since(&before) else { panic!("no new thread") };
        assert!(tasks.contains(&task) && !before.contains(&task), "{tasks:?}");
        assert!(CpuMeter::Tasks([task].into()).now().unwrap() > Duration::ZERO);
        drop(release);
        thread.join().unwrap();
    }

    #[test]
    fn a_process_is_read_whole_and_a_missing_one_is_misuse() {
        assert!(CpuMeter::of_process(std::process::id()).unwrap().now().is_some());
        let failure = CpuMeter::of_process(u32::MAX).unwrap_err();
        assert_eq!(failure.kind, rendezvous_core::error::ErrorKind::InvalidArgument);
        assert!(CpuMeter::Unknown.now().is_none());
    }
}
