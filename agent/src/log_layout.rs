//! Destinations of the workers' output, and the names of the files.
//!
//! ```text
//! LOG_DIR/RUN-ID_RANDOM/attempt_0/0/stdout.log
//!                                  stderr.log
//!                                  error.json
//!                                1/...
//!                       attempt_0/filtered_stdout.log
//!                       attempt_1/...
//! ```
//!
//! The number of the attempt grows with every start of the group, whatever the reason. PyTorch uses the number of
//! restarts, which a change of membership does not increase, and so overwrites the output of the workers before it.

use crate::limits::RUN_FOLDER_BYTES_MAX;
use crate::streams::{LocalRanksFilter, StdSetting, Stream};
use rendezvous_core::prelude::*;

/// Whether output files are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Files {
    /// In a folder.
    #[default]
    Kept,
    /// Not at all: the folder is the null device. There are no error files either.
    Discarded,
}

/// The user's settings for the output of workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogSettings {
    /// Whether files are kept.
    pub files: Files,
    /// Streams that go into a file and not to the console.
    pub redirects: StdSetting,
    /// Streams that go into a file and, with a prefix, to the console.
    pub tee: StdSetting,
    /// Workers whose output the console shows.
    pub local_ranks: LocalRanksFilter,
    /// Template of the prefix of console lines; see [`crate::template::line_prefix`].
    pub prefix_template: Option<String>,
    /// Texts of which a line of a tee'd standard output must contain one to be duplicated.
    pub stdout_needles: Vec<String>,
    /// The same for standard error.
    pub stderr_needles: Vec<String>,
}

/// Destination of one stream of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The agent's own stream. The agent does not read it.
    Inherit,
    /// Through the agent, unchanged and at once, to the agent's own stream. The last lines are kept.
    PassedOn,
    /// Into its file, written by the worker itself.
    File,
    /// Through the agent to the console.
    Console,
    /// Through the agent into its file and to the console.
    FileAndConsole,
    /// To the agent, which does not show it. The last lines are kept.
    Kept,
    /// `/dev/null`.
    Null,
}

impl Files {
    /// Returns the setting for a log folder: the null device discards files.
    pub fn in_folder(path: &[u8]) -> Self {
        if path == b"/dev/null" { Self::Discarded } else { Self::Kept }
    }
}

impl LogSettings {
    /// Returns the destination of a stream. The last lines of standard error are available for all destinations.
    pub fn destination(&self, local_rank: u32, stream: Stream) -> Destination {
        let is_tee = self.tee.of(local_rank).includes(stream);
        let is_file = is_tee || self.redirects.of(local_rank).includes(stream);
        let is_visible = self.local_ranks.lets_pass(local_rank);
        let is_reported = stream == Stream::Stderr;
        match self.files {
            Files::Kept if is_tee && is_visible => Destination::FileAndConsole,
            Files::Kept if is_file => Destination::File,
            Files::Discarded if is_tee && is_visible => Destination::Console,
            _ if is_visible && !is_file && is_reported => Destination::PassedOn,
            _ if is_visible && !is_file => Destination::Inherit,
            _ if is_reported => Destination::Kept,
            _ => Destination::Null,
        }
    }

    /// Returns the texts of which a line of the stream must contain one to be duplicated.
    pub fn needles(&self, stream: Stream) -> &[String] {
        match stream {
            Stream::Stdout => &self.stdout_needles,
            Stream::Stderr => &self.stderr_needles,
        }
    }

    /// Returns whether the lines of the stream that contain a needle have a file.
    pub fn has_filtered_file(&self, stream: Stream) -> bool {
        self.files == Files::Kept && !self.needles(stream).is_empty()
    }
}

/// Returns the name of a run's folder. Letters, digits and `._-` of the run ID stay, and all other characters become
/// `_`.
pub fn run_folder(run_id: &str, random: u32) -> String {
    let is_safe = |character: char| character.is_ascii_alphanumeric() || "._-".contains(character);
    let safe = run_id.chars().map(|character| if is_safe(character) { character } else { '_' });
    let mut name: String = safe.take(RUN_FOLDER_BYTES_MAX).collect();
    // The name must neither be hidden nor look like an option.
    if name.starts_with(['.', '-']) {
        name.insert(0, '_');
    }
    format!("{name}_{random:08x}")
}

/// Returns the name of an attempt's folder, in the folder of the run.
pub fn attempt_folder(attempt: u64) -> String {
    format!("attempt_{attempt}")
}

/// Returns the name of a stream's file, in the folder of its worker.
pub const fn stream_file(stream: Stream) -> &'static str {
    match stream {
        Stream::Stdout => "stdout.log",
        Stream::Stderr => "stderr.log",
    }
}

/// Returns the name of the file for lines of all workers that contain a needle, in the folder of the attempt.
pub const fn filtered_file(stream: Stream) -> &'static str {
    match stream {
        Stream::Stdout => "filtered_stdout.log",
        Stream::Stderr => "filtered_stderr.log",
    }
}

/// Name of a worker's error file, in its folder.
pub const ERROR_FILE: &str = "error.json";

#[cfg(test)]
mod tests {
    use super::*;
    use Destination::{Console, File, FileAndConsole, Inherit, Kept, Null, PassedOn};

    fn settings(files: Files, redirects: &str, tee: &str, ranks: &str) -> LogSettings {
        LogSettings {
            files,
            redirects: StdSetting::parse(redirects).expect("a setting"),
            tee: StdSetting::parse(tee).expect("a setting"),
            local_ranks: LocalRanksFilter::parse(ranks).expect("a list"),
            ..LogSettings::default()
        }
    }

    /// Redirects, tee, and the workers that the console shows; and the destination of each stream, with and without
    /// files.
    #[test]
    fn each_stream_has_its_place() {
        for (redirects, tee, ranks, with_files, without) in [
            ("0", "0", "", [Inherit, PassedOn], [Inherit, PassedOn]),
            ("3", "0", "", [File, File], [Null, Kept]),
            ("0", "3", "", [FileAndConsole, FileAndConsole], [Console, Console]),
            ("3", "3", "", [FileAndConsole, FileAndConsole], [Console, Console]),
            ("0", "0", "0", [Inherit, PassedOn], [Inherit, PassedOn]),
            ("0", "0", "1", [Null, Kept], [Null, Kept]),
            ("3", "0", "1", [File, File], [Null, Kept]),
            ("0", "3", "1", [File, File], [Null, Kept]),
            ("3", "3", "1", [File, File], [Null, Kept]),
        ] {
            for (files, expected) in [(Files::Kept, with_files), (Files::Discarded, without)] {
                let settings = settings(files, redirects, tee, ranks);
                let found = Stream::ALL.map(|stream| settings.destination(0, stream));
                assert_eq!(found, expected, "{files:?}: redirects {redirects}, tee {tee}, console {ranks:?}");
            }
        }
    }

    #[test]
    fn the_null_device_means_no_files() {
        assert_eq!(Files::in_folder(b"/dev/null"), Files::Discarded);
        assert_eq!(Files::in_folder(b"logs"), Files::Kept);
    }

    #[test]
    fn streams_and_ranks_have_places_of_their_own() {
        let settings = settings(Files::Kept, "0:1,12:2", "12:1", "");
        assert_eq!(settings.destination(0, Stream::Stdout), File);
        assert_eq!(settings.destination(0, Stream::Stderr), PassedOn);
        assert_eq!(settings.destination(1, Stream::Stdout), Inherit);
        assert_eq!(settings.destination(12, Stream::Stdout), FileAndConsole);
        assert_eq!(settings.destination(12, Stream::Stderr), File);
    }

    #[test]
    fn there_are_filtered_files_where_there_are_needles_and_files() {
        let needles = alloc::vec![String::from("loss")];
        let mut settings = LogSettings { stdout_needles: needles, ..LogSettings::default() };
        assert!(settings.has_filtered_file(Stream::Stdout) && !settings.has_filtered_file(Stream::Stderr));
        settings.files = Files::Discarded;
        assert!(!settings.has_filtered_file(Stream::Stdout));
    }

    #[test]
    fn run_ids_become_names_of_folders() {
        assert_eq!(run_folder("job-7.a_B", 0x2a), "job-7.a_B_0000002a");
        assert_eq!(run_folder("a/../b c\0\n", 0), "a_.._b_c___00000000");
        assert_eq!(run_folder("..", 0), "_.._00000000");
        assert_eq!(run_folder("-rf", 0), "_-rf_00000000");
        assert_eq!(run_folder("läuft", u32::MAX), "l_uft_ffffffff");
        assert_eq!(run_folder("", 1), "_00000001");
        assert!(run_folder(&"é".repeat(10_000), 1).len() < 128);
    }

    #[test]
    fn names_are_torchruns() {
        assert_eq!(attempt_folder(12), "attempt_12");
        assert_eq!(Stream::ALL.map(stream_file), ["stdout.log", "stderr.log"]);
        assert_eq!(Stream::ALL.map(filtered_file), ["filtered_stdout.log", "filtered_stderr.log"]);
    }
}
