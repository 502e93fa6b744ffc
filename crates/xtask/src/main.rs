//! The workshop, called as `cargo xtask VERB`: everything a change needs before it is handed in.
//! It is never part of the product and no product crate may depend on it.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for people at a terminal")]

#[path = "../../testkit/src/agents.rs"]
#[expect(dead_code, reason = "the whole file is testkit's; the workshop installs what it describes")]
#[expect(unreachable_pub, reason = "in testkit the same file is public")]
mod agents;
mod bench;
mod demo;
mod error_pages;
mod fuzz;
mod generate;
mod install;
#[path = "../../testkit/src/linters.rs"]
#[expect(dead_code, reason = "the whole file is testkit's; the workshop installs what it describes")]
#[expect(unreachable_pub, reason = "in testkit the same file is public")]
mod linters;
#[path = "../../testkit/src/model.rs"]
#[expect(dead_code, reason = "the whole file is testkit's; the workshop starts what it describes")]
#[expect(unreachable_pub, reason = "in testkit the same file is public")]
mod model;
#[path = "../../testkit/src/objects.rs"]
#[expect(dead_code, reason = "the whole file is testkit's; the workshop installs what it describes")]
#[expect(unreachable_pub, reason = "in testkit the same file is public")]
mod objects;
#[path = "../../testkit/src/packages.rs"]
mod packages;
#[path = "../../testkit/src/postgres.rs"]
#[expect(dead_code, reason = "the whole file is testkit's; the workshop uses a part of it")]
#[expect(unreachable_pub, reason = "in testkit the same file is public")]
mod postgres;
mod program;
#[path = "../../testkit/src/schemathesis.rs"]
#[expect(dead_code, reason = "the whole file is testkit's; the workshop installs what it describes")]
#[expect(unreachable_pub, reason = "in testkit the same file is public")]
mod schemathesis;
#[path = "../../testkit/src/servers.rs"]
#[expect(dead_code, reason = "the whole file is testkit's; the workshop installs what it describes")]
#[expect(unreachable_pub, reason = "in testkit the same file is public")]
mod servers;
mod test;
#[path = "../../testkit/src/through.rs"]
#[expect(dead_code, reason = "the whole file is testkit's; the workshop runs what its tables say")]
#[expect(unreachable_pub, reason = "in testkit the same file is public")]
mod through;
mod tidy;
#[path = "../../testkit/src/verifiers.rs"]
#[expect(dead_code, reason = "the whole file is testkit's; the workshop installs what it describes")]
#[expect(unreachable_pub, reason = "in testkit the same file is public")]
mod verifiers;

use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask VERB

  test                   install what is missing, then run every check and test
  test --long            run the tests of kills, random commands, a fleet and a long-lived worker at full size
  test --model           run the tests that need a real model, with one on loopback (installs 220 MB once)
  install                install what the tests need and is missing
  tidy                   check the rules of the house that no compiler knows
  generate [--check]     write (or compare) schemas, the CLI reference and the error pages
  bench AREA [ARGS…]     run the benchmarks of an area; without AREA, list them
  demo                   play a tour of the real program; an error if it does not end as it should
  fuzz [--seconds N]     run every fuzz target for N seconds (60)
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match *words {
        ["test"] => return if test::run() { ExitCode::SUCCESS } else { ExitCode::FAILURE },
        ["test", "--long"] => return if test::run_long() { ExitCode::SUCCESS } else { ExitCode::FAILURE },
        ["test", "--model"] => return if test::run_with_model() { ExitCode::SUCCESS } else { ExitCode::FAILURE },
        ["install"] => install::missing(),
        ["tidy"] => tidy::run(),
        ["generate"] => generate::write(),
        ["generate", "--check"] => generate::check(),
        ["bench", ref rest @ ..] => bench::run(rest),
        ["demo"] => demo::run(),
        ["fuzz"] => fuzz::run(fuzz::SECONDS_DEFAULT),
        ["fuzz", "--seconds", seconds] => match seconds.parse() {
            Ok(seconds) => fuzz::run(seconds),
            Err(_) => return usage(),
        },
        _ => return usage(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("error: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprint!("{USAGE}");
    ExitCode::from(2)
}
