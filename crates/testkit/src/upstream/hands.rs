//! The tool calls by which each real agent writes a file or runs a command, as its own requests declare them.
//! Tests put them into a script; nothing here starts an agent.

use serde_json::json;

use super::Turn;
use crate::agents::Agent;

/// The agent writes a file; `path` is absolute, because two of them want it so.
pub fn write(agent: Agent, path: &str, content: &str) -> Turn {
    match agent {
        Agent::Goose => Turn::tool("write", json!({"path": path, "content": content})),
        Agent::Claude => Turn::tool("Write", json!({"file_path": path, "content": content})),
        // It has no tool for that, but understands this word where it would start a shell.
        Agent::Codex => {
            let lines: String = content.lines().map(|line| format!("+{line}\n")).collect();
            let patch = format!("*** Begin Patch\n*** Add File: {path}\n{lines}*** End Patch\n");
            shell(agent, &format!("apply_patch <<'EOF'\n{patch}EOF"))
        }
        Agent::Gemini => Turn::tool("write_file", json!({"file_path": path, "content": content})),
    }
}

/// The agent runs a line of shell in its working folder.
pub fn shell(agent: Agent, line: &str) -> Turn {
    match agent {
        Agent::Goose => Turn::tool("shell", json!({"command": line})),
        Agent::Claude => Turn::tool("Bash", json!({"command": line, "description": "As scripted"})),
        Agent::Codex => Turn::tool("exec_command", json!({"cmd": line})),
        Agent::Gemini => Turn::tool("run_shell_command", json!({"command": line, "description": "As scripted"})),
    }
}
