//! The real agents against the scripted provider, as plain processes: proves that the script's tool calls are the ones
//! each agent has, before anything of ours stands between the two.

use actum_testkit::agents::{Agent, Agents, Headless};
use actum_testkit::folder::Folder;
use actum_testkit::program::{other, run};
use actum_testkit::upstream::{Script, Turn, Upstream, Usage, shell, write};

/// Like an option, which it must not become.
const TASK: &str = "--help: write 'hello.txt', \"please\".";
const KEY: &str = "sk-stub";
const CONTENT: &str = "hello from the script\n";

/// With the variables it needs, and with those that the gateway of a cell sets for everybody.
fn agent_does_what_the_script_says(agent: Agent) {
    agent_is_led_by(agent, &|url| Agents::find().headless(agent, TASK, url, KEY));
    agent_is_led_by(agent, &|url| {
        let mut headless = Agents::find().behind_gateway(agent, TASK, url);
        let own = format!("{url}/v1");
        let urls = [
            ("OPENAI_BASE_URL", own.as_str()),
            ("OPENAI_HOST", url),
            ("ANTHROPIC_BASE_URL", url),
            ("GOOGLE_GEMINI_BASE_URL", url),
        ];
        let keys = ["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"].map(|name| (name, KEY));
        let all = urls.into_iter().chain(keys);
        headless.environment.extend(all.map(|(name, value)| (name.to_owned(), value.to_owned())));
        headless
    });
}

fn agent_is_led_by(agent: Agent, headless: &dyn Fn(&str) -> Headless) {
    let (work, home) = (Folder::new(), Folder::new());
    let path = work.join("hello.txt");
    let script = Script::default()
        .turn(write(agent, &path.display().to_string(), CONTENT), Usage::new(1001, 51))
        .turn(shell(agent, "tr a-z A-Z < hello.txt > loud.txt"), Usage::new(1102, 32))
        .turn(Turn::text("It is written."), Usage::new(1203, 13))
        .asides("A title", Usage::new(7, 3));
    let upstream = Upstream::start(script);
    let headless = headless(&upstream.url());
    for (name, content) in &headless.files {
        home.file(name, content);
    }
    let mut command = other(&headless.command[0]);
    command.args(&headless.command[1..]).current_dir(work.path()).env_clear();
    command.env("PATH", "/usr/bin:/bin").env("HOME", home.path()).envs(&headless.environment);
    let ended = run(command, b"");
    let said = format!("{}: {}{}", agent.name(), ended.stdout, ended.stderr);
    assert_eq!(ended.code, 0, "{said}");
    let written =
        |name: &str| std::fs::read_to_string(work.join(name)).unwrap_or_else(|e| panic!("{name}: {e}: {said}"));
    assert_eq!((written("hello.txt").as_str(), written("loud.txt")), (CONTENT, CONTENT.to_uppercase()));
    assert!(ended.stdout.contains("It is written."), "{said}");
    let calls = upstream.calls();
    let turns: Vec<usize> = calls.iter().filter_map(|call| call.turn).collect();
    assert_eq!(turns, [0, 1, 2], "{said}");
    let paths = [
        "/v1/chat/completions",
        "/v1/messages",
        "/v1/responses",
        "/v1beta/models/gemini-2.5-flash:streamGenerateContent",
    ];
    let (_, path) = Agent::ALL.iter().zip(paths).find(|(one, _)| **one == agent).expect("one of them");
    for call in calls {
        assert_eq!((call.path.as_str(), call.json()["model"].as_str().unwrap_or(agent.model())), (path, agent.model()));
        let keys = ["authorization", "x-api-key", "x-goog-api-key"].map(|name| call.header(name).unwrap_or_default());
        assert!(keys.iter().any(|key| key.ends_with(KEY)), "{call:?}");
    }
}

#[test]
fn goose_speaks_chat_completions() {
    agent_does_what_the_script_says(Agent::Goose);
}

#[test]
fn claude_speaks_messages() {
    agent_does_what_the_script_says(Agent::Claude);
}

#[test]
fn codex_speaks_responses() {
    agent_does_what_the_script_says(Agent::Codex);
}

#[test]
fn gemini_speaks_generated_contents() {
    agent_does_what_the_script_says(Agent::Gemini);
}
