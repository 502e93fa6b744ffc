//! The binary: composition root, exit codes, and nothing else. Every verb lives in `command/`.

mod access;
mod active_config;
mod approval;
mod archive;
mod args;
mod capture;
mod cell;
mod command;
mod config;
mod consent;
mod contents;
mod document;
mod execution;
mod face;
mod failure;
mod feed;
mod folder;
mod git_index;
mod hook;
mod housekeeping;
mod key;
mod known_head;
mod log;
mod metrics;
mod model;
mod obeyed;
mod obeyed_place;
mod progress;
mod project;
mod protect;
mod publisher;
mod purse;
mod quota;
mod recover;
mod reference;
mod repository;
mod retention;
mod run;
mod seat;
mod shared;
mod telemetry;
mod terminal;
mod tool;
mod ui;
mod witness;
mod workspace;
mod write_layer;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    // First of all, while there is one thread: this may be the helper that becomes another program.
    if let Some((code, why)) = actum_sandbox::entry(&arguments) {
        if !why.is_empty() {
            ui::note(&why);
        }
        return ExitCode::from(code);
    }
    if let Some(code) = publisher::serve(&arguments).or_else(|| write_layer::serve(&arguments)) {
        return ExitCode::from(code);
    }
    publisher::install();
    raise_file_limit();
    // Its cell is built while we find out what it is for.
    let ahead = command::sandbox::ahead(&arguments);
    let (parsed, typed) = match args::parse(&arguments) {
        Ok(read) => read,
        Err(code) => return code,
    };
    #[cfg(debug_assertions)]
    stop_at_crash_point();
    let mut out = ui::Out::new(&parsed.global);
    let ended = match face::client::server(&parsed, &typed) {
        Ok(Some(server)) => face::client::run(&server, &parsed.global, &typed, &mut out),
        Ok(None) => command::run(parsed, ahead, &mut out),
        Err(failure) => Err(failure),
    };
    telemetry::end();
    out.finish();
    match ended {
        Ok(code) => ExitCode::from(code),
        Err(failure) => out.fail(&failure),
    }
}

/// As many open files as this user may have: the usual soft limit is meant for programs that use `select`. Cells get their own.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some() && limit.current != limit.maximum {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
}

/// For tests: stands still for good at the n-th passing of a named place (`ACTUM_CRASH_AT=name#n`), to be killed there.
#[cfg(debug_assertions)]
fn stop_at_crash_point() {
    use std::sync::atomic::{AtomicUsize, Ordering};

    let Ok(wanted) = std::env::var("ACTUM_CRASH_AT") else { return };
    let (name, nth) = wanted.split_once('#').unwrap_or((&wanted, "1"));
    let (name, nth): (String, usize) = (name.to_owned(), nth.parse().unwrap_or(1));
    // With a file named, the process goes on once it is there.
    let until = std::env::var_os("ACTUM_CRASH_UNTIL").map(std::path::PathBuf::from);
    let passed = AtomicUsize::new(0);
    actum_contract::crash::arm(Box::new(move |place| {
        if place == name && passed.fetch_add(1, Ordering::SeqCst) + 1 == nth {
            ui::note(&format!("crash point {place}"));
            while !until.as_ref().is_some_and(|file| file.exists()) {
                std::thread::park_timeout(std::time::Duration::from_millis(10));
            }
        }
    }));
}
