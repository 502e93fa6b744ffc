//! The protocol's own conformance tool, on the scenarios that need no tools of its own.

use actum_testkit::program::{Ended, run};
use actum_testkit::servers::Servers;

use super::served;

/// With the number of their checks. What is left out needs fixed tools that a product does not have.
const SCENARIOS: [(&str, u32); 4] =
    [("server-initialize", 1), ("ping", 1), ("tools-list", 1), ("dns-rebinding-protection", 2)];

fn conform(url: &str, scenario: &str) -> Ended {
    let servers = Servers::find();
    let mut command = servers.node();
    command.arg(servers.folder().join("node_modules/@modelcontextprotocol/conformance/dist/index.js"));
    command.args(["server", "--url", url, "--scenario", scenario]);
    run(command, b"")
}

#[test]
fn the_conformance_tool_is_content() {
    let served = served();
    for (scenario, checks) in SCENARIOS {
        let ended = conform(&format!("{}/mcp", served.url), scenario);
        let all = format!("Passed: {checks}/{checks}, 0 failed, 0 warnings");
        assert!(ended.code == 0 && ended.stdout.contains(&all), "{scenario}: {}{}", ended.stdout, ended.stderr);
    }
    // It is not content with anything.
    assert_ne!(conform(&format!("{}/none", served.url), "tools-list").code, 0);
}
