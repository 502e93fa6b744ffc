//! The live OpenAPI document against the real server, by Schemathesis: every check it has, for who may do everything and for who may
//! only look. The same seed every time, and so many cases that it ends soon.

use actum_testkit::program::{Program, Running, run as run_other};
use actum_testkit::schemathesis::Schemathesis;
use serde_json::Value;

use super::actum;
use super::client::{AGENTS, SIGNATURE};
use super::run::asked;

const SEED: &str = "1";

/// What fits the document may still be refused for what it says, or wait for somebody. 400 is no such answer: but the
/// ledger says it of an entry that breaks its rules, more of which there are than a schema can tell.
const CHECKS: &str = r#"
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "3xx", "401", "403", "404", "409", "422", "428", "429"]

[[operations]]
include-path = "/v1/ledger/entries"
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", "3xx", "400", "401", "403", "404", "409", "422", "428", "429"]
"#;

struct Server {
    actum: Program,
    running: Option<Running>,
    url: String,
    admin: String,
}

impl Server {
    fn start() -> Self {
        let actum = actum();
        actum.file("actum.toml", AGENTS);
        let words = ["serve", "--json", "--rate", "0", "--workers", "0", "--listen", "127.0.0.1:0"];
        let mut running = actum.start(&words, &[]);
        let told: Value = serde_json::from_str(&running.line().unwrap()).unwrap();
        let text = |name: &str| told[name].as_str().unwrap().to_owned();
        Self { url: text("url"), admin: text("token"), running: Some(running), actum }
    }

    /// Everything that Schemathesis has to say; it has to find nothing.
    fn conforms(&self, token: &str, settings: &str, more: &[&str]) {
        let config = self.actum.file("schemathesis.toml", settings);
        let mut command = Schemathesis::find().command();
        command.current_dir(self.actum.folder()).env_clear().env("HOME", self.actum.folder());
        command.arg("--config-file").arg(config).args(["run", &format!("{}/openapi.json", self.url)]);
        command.args(["-H", &format!("Authorization: Bearer {token}"), "--checks", "all", "--seed", SEED]);
        // How hard it is to make up a value that fits says nothing about the server.
        // Whoever takes a token back that he has found takes his own.
        command.args(["--exclude-path", "/v1/tokens/{id}"]);
        command.args(["--continue-on-failure", "--no-shrink", "--suppress-health-check", "all", "--no-color"]);
        let ended = run_other(
            {
                command.args(more);
                command
            },
            b"",
        );
        assert_eq!(ended.code, 0, "{}\n{}", ended.stdout, ended.stderr);
        assert!(ended.stdout.contains("passed"), "{}", ended.stdout);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.running.take().map(Running::kill);
    }
}

#[test]
fn nothing_breaks_the_document_for_whom_may_do_everything() {
    let server = Server::start();
    server.conforms(&server.admin, CHECKS, &["--phases", "coverage,fuzzing,stateful", "-n", "2"]);
}

#[test]
fn nothing_breaks_the_document_for_who_may_only_look() {
    let server = Server::start();
    let made = asked(&server.actum, &["token", "create", "--json", "--role", "reader", "--name", "reader"]);
    server.conforms(made["token"].as_str().unwrap(), CHECKS, &["--phases", "fuzzing", "-n", "3"]);
}

/// With ids of things that are there, so that it is the good answers that are held against the document.
#[test]
fn what_is_there_is_told_as_the_document_says() {
    let server = Server::start();
    let actum = &server.actum;
    actum.file("work.yaml", "items:\n  - {id: one, agent_id: a, description: Do it.}\n");
    actum.file("signature.yaml", SIGNATURE);
    let ran = asked(actum, &["run", "work.yaml", "--json"]);
    let run = ran["runs"][0]["run_id"].as_str().unwrap();
    actum.run(&["signature", "add", "signature.yaml"]).ok();
    let artifact = asked(actum, &["artifact", "add", "--of", "demo/Sentiment.v1", "--json"]);
    let artifact = artifact["artifacts"][0]["artifact_id"].as_str().unwrap();
    actum.run(&["pointer", "set", "demo/Sentiment.v1", "--primary", artifact, "--reason", "first"]).ok();
    actum.run(&["spend", "authorize", "--max-total", "1usd"]).ok();
    let entries = asked(actum, &["ledger", "list", "--json", "--limit", "1"]);
    let entry = entries["entries"][0]["id"].as_str().unwrap();
    let (mut settings, mut only) = (CHECKS.to_owned(), Vec::new());
    for (path, name, value) in [
        ("/v1/runs/{run}", "run", run),
        ("/v1/runs/{run}/diff", "run", run),
        ("/v1/runs/{run}/decision", "run", run),
        ("/v1/runs/{run}/logs", "run", run),
        ("/v1/runs/{run}/contract", "run", run),
        ("/v1/runs/{run}/receipt", "run", run),
        ("/v1/runs/{run}/replay", "run", run),
        ("/v1/receipts/{receipt}", "receipt", run),
        ("/v1/receipts/{receipt}/verification", "receipt", run),
        ("/v1/signatures/{id}", "id", "demo/Sentiment.v1"),
        ("/v1/signatures/{id}/artifact", "id", "demo/Sentiment.v1"),
        ("/v1/artifacts/{id}", "id", artifact),
        ("/v1/pointers/{signature}", "signature", "demo/Sentiment.v1"),
        ("/v1/pointers/{signature}/audits", "signature", "demo/Sentiment.v1"),
        ("/v1/pointers/{signature}/selection", "signature", "demo/Sentiment.v1"),
        ("/v1/ledger/entries/{id}", "id", entry),
        ("/v1/ledger/proof/{id}", "id", entry),
        ("/v1/ledger/consistency/{from}", "from", "1"),
    ] {
        settings
            .push_str(&format!("\n[[operations]]\ninclude-path = {path:?}\nparameters = {{ {name} = {value:?} }}\n"));
    }
    only.extend(["--phases", "fuzzing", "--mode", "positive", "-n", "2"]);
    server.conforms(&server.admin, &settings, &only);
}
