//! What each worker runs.

use super::arguments::RunArguments;
use super::surroundings;
use super::usage::Usage;
use rendezvous_agent::driver::process::{FindError, find_program};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// A program that was found.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WorkerCommand {
    pub(super) path: PathBuf,
    pub(super) arguments: Vec<OsString>,
    /// What reports call it.
    pub(super) name: String,
}

/// How the command is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Itself,
    Python,
    PythonModule,
}

impl WorkerCommand {
    pub(super) fn of(arguments: &RunArguments) -> Result<Self, Box<dyn std::error::Error>> {
        let [script, rest @ ..] = arguments.command.as_slice() else {
            return Err(Usage("there is no COMMAND".into()).into());
        };
        let is_script = Path::new(script).extension().is_some_and(|extension| extension == "py");
        let by = match (arguments.module, arguments.no_python) {
            (true, true) => return Err(Usage("-m is for Python, and --no-python is without".into()).into()),
            (true, false) => By::PythonModule,
            (false, _) if arguments.run_path => By::Python,
            (false, false) if is_script => By::Python,
            (false, _) => By::Itself,
        };
        Ok(Self::new(by, script, rest, &|name| {
            find_program(name, surroundings::variable("PATH").as_deref())
        })?)
    }

    fn new(
        by: By,
        script: &OsStr,
        rest: &[OsString],
        find: &dyn Fn(&OsStr) -> Result<PathBuf, FindError>,
    ) -> Result<Self, FindError> {
        let program = match (by, surroundings::variable("PYTHON_EXEC")) {
            (By::Itself, _) => script.to_os_string(),
            (_, Some(python)) => python,
            (_, None) => "python3".into(),
        };
        let path = find(&program)?;
        let mut arguments = vec![program];
        match by {
            By::Itself => {}
            By::Python => arguments.extend(["-u".into(), script.to_os_string()]),
            By::PythonModule => arguments.extend(["-u".into(), "-m".into(), script.to_os_string()]),
        }
        arguments.extend_from_slice(rest);
        Ok(Self { path, arguments, name: script.to_string_lossy().into_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_runs_what_is_its_own() {
        for (by, event) in [
            (By::Itself, &["train.py", "-x"][..]),
            (By::Python, &["python3", "-u", "train.py", "-x"]),
            (By::PythonModule, &["python3", "-u", "-m", "train.py", "-x"]),
        ] {
            let found = |name: &OsStr| Ok(Path::new("/bin").join(name));
            let command = WorkerCommand::new(by, "train.py".as_ref(), &["-x".into()], &found).expect("found");
            assert_eq!(command.arguments, event);
            assert_eq!(command.path, Path::new("/bin").join(event[0]));
            assert_eq!(command.name, "train.py");
        }
    }
}
