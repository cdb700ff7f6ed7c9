//! Manual pages and completions for shells, made of the arguments that the program takes.
//!
//! `make pages` sets `RDZV_PAGES` to the folder from which `make install` copies. The program itself does not grow.

use crate::Arguments;
use clap::{ArgAction, Command, CommandFactory};
use clap_complete::Shell;
use std::path::{Path, PathBuf};
use std::{env, fs};

const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions/rdzv"),
    (Shell::Zsh, "zsh/site-functions/_rdzv"),
    (Shell::Fish, "fish/vendor_completions.d/rdzv.fish"),
];

fn write_completions(folder: &Path) {
    for (shell, file) in COMPLETIONS {
        let file = folder.join(file);
        fs::create_dir_all(file.parent().expect("a folder")).expect("the folder can be written");
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut Arguments::command(), "rdzv", &mut text);
        fs::write(file, text).expect("the folder can be written");
    }
}

/// Gives a command and its subcommands a synopsis with the values of options: that of the generator names flags only.
fn with_synopsis(command: Command) -> Command {
    let mut usage = command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned();
    for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
        let is_repeated = matches!(argument.get_action(), ArgAction::Append) && !argument.is_positional();
        let dots = if is_repeated { "..." } else { "" };
        usage += &match argument.is_required_set() || argument.is_positional() {
            true => format!(" {argument}{dots}"),
            false => format!(" [{argument}]{dots}"),
        };
    }
    if command.has_subcommands() {
        usage += " <COMMAND>";
    }
    command.override_usage(usage).mut_subcommands(with_synopsis)
}

/// Checks that a command and its subcommands have pages, which name their flags, also with their values.
fn has_pages(command: &Command, name: &str, folder: &Path) {
    let page = fs::read_to_string(folder.join(format!("{name}.1"))).expect("a page");
    for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
        let Some(flag) = argument.get_long() else { continue };
        let flag = format!("--{flag}").replace('-', "\\-");
        assert!(page.contains(&flag), "the page of {name} does not name {flag}");
        if argument.get_action().takes_values() {
            let value = argument.get_value_names().expect("a name")[0].replace('-', "\\-");
            assert!(
                page.contains(&format!("{flag} <{value}>")) || page.contains(&format!("{flag}[=<{value}>]")),
                "{page}"
            );
        }
    }
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        has_pages(inner, &format!("{name}-{}", inner.get_name()), folder);
    }
}

#[test]
#[allow(clippy::disallowed_methods, reason = "the Makefile names the folder")]
fn pages_and_completions_name_all_commands_and_flags() {
    let wanted = env::var_os("RDZV_PAGES").map(PathBuf::from);
    let temporary = env::temp_dir().join(format!("rdzv-pages-{}", std::process::id()));
    let folder = wanted.as_ref().unwrap_or(&temporary);
    let manual = folder.join("man/man1");
    fs::create_dir_all(&manual).expect("the folder can be written");
    let mut command = Arguments::command().disable_help_subcommand(true);
    command.build();
    let command = with_synopsis(command);
    clap_mangen::generate_to(command.clone(), &manual).expect("the folder can be written");
    has_pages(&command, "rdzv", &manual);
    write_completions(folder);
    for (_, file) in COMPLETIONS {
        let text = fs::read_to_string(folder.join(file)).expect("completions");
        for flag in ["nproc-per-node", "connections-max"] {
            assert!(text.contains(flag), "{file} does not name --{flag}");
        }
    }
    if wanted.is_none() {
        fs::remove_dir_all(folder).expect("a folder of this test");
    }
}
