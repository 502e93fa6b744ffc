//! `cargo xtask bench AREA`: runs the benchmarks of one area with the servers they need.
//! It never judges the numbers: a benchmark that has bars says by its own end whether they were met.

use crate::postgres::{Cluster, SHARED_CLUSTER};
use crate::{install, program};

struct Area {
    name: &'static str,
    package: &'static str,
    bench: &'static str,
    /// Whether a throwaway PostgreSQL is started and announced to the benchmark.
    postgres: bool,
}

const AREAS: &[Area] = &[
    Area { name: "ledger", package: "actum", bench: "ledger", postgres: true },
    Area { name: "workspace", package: "actum", bench: "workspace", postgres: false },
    Area { name: "sandbox", package: "actum", bench: "sandbox", postgres: false },
    Area { name: "runs", package: "actum", bench: "runs", postgres: true },
    Area { name: "tools", package: "actum", bench: "tools", postgres: false },
    Area { name: "predict", package: "actum", bench: "predict", postgres: false },
    Area { name: "server", package: "actum", bench: "server", postgres: true },
];

pub(crate) fn run(words: &[&str]) -> Result<(), String> {
    let known = || AREAS.iter().map(|area| area.name).collect::<Vec<_>>().join(", ");
    let (name, arguments) = words.split_first().ok_or_else(|| format!("name an area: {}", known()))?;
    let area = AREAS.iter().find(|area| area.name == *name);
    let area = area.ok_or_else(|| format!("there is no area `{name}`; the known ones: {}", known()))?;
    let mut command = program::cargo();
    command.args(["bench", "--locked", "-p", area.package, "--bench", area.bench, "--"]).args(arguments);
    install::missing()?;
    if !area.postgres {
        return program::run(&mut command);
    }
    let cluster = Cluster::try_start()?;
    program::run(command.env(SHARED_CLUSTER, cluster.url("postgres")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_area_is_answered_with_the_known_ones() {
        assert_eq!(
            run(&["nosuch"]).unwrap_err(),
            "there is no area `nosuch`; the known ones: ledger, workspace, sandbox, runs, tools, predict, server"
        );
        assert_eq!(run(&[]).unwrap_err(), "name an area: ledger, workspace, sandbox, runs, tools, predict, server");
    }
}
