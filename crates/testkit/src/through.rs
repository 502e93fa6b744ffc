//! The command line by way of a server: with [`MODE`] set, whatever a test asks of the real binary is asked of an `actum serve`
//! of its own in the same folder, wherever that is possible. What is not, and why, stands in the tables here.
//! Only std: xtask includes this very file, so that it need not build the crate.

/// The variable that turns it on; its only value is `server`.
pub const MODE: &str = "ACTUM_E2E_THROUGH";

pub fn is_on() -> bool {
    std::env::var_os(MODE).is_some_and(|mode| mode == "server")
}

/// Families of tests that are run in this way too.
pub const FAMILIES: [&str; 18] = [
    "agents::",
    "artifact::",
    "dataset::",
    "ledger::",
    "money::",
    "pointer::",
    "pointer_explain::",
    "pointer_guard::",
    "predict::",
    "receipt::",
    "run::",
    "run_again::",
    "run_change::",
    "runs::",
    "settlement::",
    "spend::",
    "tools_registry::",
    "workspace_undo::",
];

/// Families that are not, and why.
pub const LEFT_OUT_FAMILIES: &[(&str, &str)] = &[
    ("bad_input", "reads files of the client's disk of every bad kind: they never get as far as a server"),
    ("bridge, bridge_*, gateway, gateway_*, services, services_*, builtin, execution", "cells and what they talk to"),
    ("attack, client, conform, fleet, serve, token", "they have servers of their own"),
    ("compile, compile_again, eval, rollout, examples", "their jobs and datasets are files of the client's disk"),
    ("contract", "the contract is resolved where it is asked for, server or not"),
    ("concurrent, crash, *_crash, *_fence, *_race", "kill the process that works; behind a server it is another one"),
    ("evolution, store, tamper", "change the store's file under whoever has it open"),
    ("sandbox, sandbox_*, tools, tools_fence, tools_input, tools_program, tools_trust", "the cell of this machine"),
    ("workspace, workspace_hostile", "stages and snapshots of the client's folders"),
];

/// Commands that are asked here all the same, and why. Whatever else has no route is asked here too: the client says so.
/// So is whatever names a folder, and a receipt or a recording that is a file: they lie on the client's disk.
pub const HERE: &[(&[&str], &str)] = &[
    (&["key", "show"], "the path of the key is the server's own business, and to look makes none"),
    (
        &["run"],
        "what it shows while it runs, and how it is stopped, is tried here; waiting for a server is in `client`",
    ),
    (&["resume"], "the same"),
];

/// Commands whose words may name files beside things of the store.
pub const MAY_NAME_FILES: [&str; 2] = ["replay", "verify"];

/// Tests of the families that are not run in this way, by a part of their name, and why.
pub const LEFT_OUT: &[(&str, &str)] = &[
    ("artifact::what_does_not_fit_asks_nobody", STDERR),
    ("dataset::dataset_is_found_by_hash", EMPTY),
    ("dataset::dataset_labels_are_checked", EMPTY),
    ("dataset::dataset_lines_are_read_one_by_one", NAMES),
    ("dataset::dataset_out_of_receipts", "scores an artifact on a dataset that is a file"),
    ("ledger::a_log_that_grew", TENANTS),
    ("ledger::a_project_is_found_from_below", TENANTS),
    ("ledger::a_reader_that_goes_away", TENANTS),
    ("ledger::a_tenant_without_a_ledger", TENANTS),
    ("ledger::coherence_says_what_to_declare", TENANTS),
    ("ledger::pages_follow_each_other", TENANTS),
    ("ledger::strangers_check_a_proof", TENANTS),
    ("pointer::a_batch_is_checked_whole", EMPTY),
    ("predict::every_flaw_of_a_signature", NAMES),
    ("tools_registry::an_ordinary_user_adds", "adds the folder `tools` without naming it"),
    ("tools_registry::files_and_folders", "adds the folder `tools` without naming it"),
    ("tools_registry::on_", NAMES),
    ("workspace_undo::an_undo_keeps_later_work", TENANTS),
];

const STDERR: &str = "reads what is told on stderr beside a result, which is not sent";
const EMPTY: &str = "names or sends nothing at all, which is refused before it is sent";
const NAMES: &str = "reads the name of a file or a place in it; over HTTP a content has no name";
const TENANTS: &str = "looks at several tenants or counts entries; a token is of one, and is itself an entry";
