//! Workers whose surroundings are unwell: a database that is away for a moment, a machine whose disk or helper fails. None of
//! it costs a run.

use actum_testkit::postgres::{Cluster, told};
use actum_testkit::program::Process;

use super::actum;
use super::runs::{check, define, end, is_over, submit, tag, until, worker};

/// A worker that comes back within its lease goes on with its run: the epoch is still the first.
#[test]
fn database_away_for_a_moment_costs_nothing() {
    let mut cluster = Cluster::start();
    let url = cluster.create_database();
    let actum = actum().on_store(&url);
    define(&actum, "echo x >> lines; sleep 1");
    actum.file("work.yaml", "items: [{id: item, agent_id: a, description: d, test_command: 'true'}]\n");
    let run = submit(&actum, &[]).remove(0);
    let worker = worker(&actum, &[], &[]);
    until("the agent works", || !Process::with_argument(&tag(&actum)).is_empty());
    cluster.stop_immediate();
    // The first step ends while the database is away.
    until("the agent has ended its step", || Process::with_argument(&tag(&actum)).is_empty());
    cluster.restart();
    until("the run is over", || is_over(&actum, &run));
    end(worker);
    check(&actum, &run, "database away");
    assert_eq!(told(&url, "SELECT epoch::text FROM actum.run"), ["1"]);
    assert_eq!(std::fs::read_to_string(actum.path("lines")).unwrap(), "x\nx\n");
}
