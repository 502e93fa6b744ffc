//! Agents: who does the work. What a run is agreed on names its agent as it was defined then; a later change of the
//! definition changes no run that exists.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::execution::{FilesystemLevel, Host, LIMITS};
use crate::part::{Flaw, LIST_MAX, Part};

/// An agent as it was defined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agent {
    #[serde(flatten)]
    pub kind: AgentKind,
    /// What it sees of the machine beside the stage: minimal, standard, extended, elevated.
    pub filesystem: String,
    /// Whom it reaches: offline, gateway, registry, api, open.
    pub network: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    /// Values, or references to secrets: `env:NAME`, `file:PATH`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    /// What it understands: step, and plan and correct where it does.
    pub phases: Vec<String>,
    pub memory_mb: u64,
    pub cpu_cores: u64,
    pub max_children: u64,
    pub disk_mb: u64,
    /// Registered tools it may call; none listed: all that are approved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum AgentKind {
    /// Any program, in a cell.
    Command { command: Vec<String> },
    /// A declared list of edits and executions.
    Script { script: Script },
    /// Part of actum: it asks a model what to do, and does it.
    Predict(Predict),
}

/// Whom the built-in agent asks, and how far it goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Predict {
    pub model: String,
    /// By its name in the settings; without one, whoever fits the model best.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// How often it asks in one step or correction.
    pub turns: u64,
    /// The most a question may be answered with.
    pub output_tokens: u64,
}

/// What a script agent does: in each step, and in answer to each correction.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// Its plan, in order; without any there is one step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plan: Vec<String>,
    /// By the id of the step; `*` stands for steps that have none of their own.
    #[serde(default)]
    pub steps: BTreeMap<String, Vec<Operation>>,
    /// The first answers the first correction, and so on; the last one answers all that follow.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub corrections: Vec<Vec<Operation>>,
}

/// One tool operation of a script.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Operation {
    /// A whole file.
    Write {
        path: String,
        content: String,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        executable: bool,
    },
    /// A text that occurs exactly once in a file.
    Replace { path: String, old: String, new: String },
    /// A file, or a folder with all that is in it.
    Delete { path: String },
    /// A program in the stage.
    Run { command: Vec<String> },
}

impl Operation {
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Write { .. } => "write",
            Self::Replace { .. } => "replace",
            Self::Delete { .. } => "delete",
            Self::Run { .. } => "run",
        }
    }
}

const NOUN: &str = "an agent";
const TYPES: [&str; 3] = ["command", "script", "predict"];
/// Numbers of the built-in agent, with their ranges and what holds otherwise.
const PREDICT: [(&str, u64, u64, u64); 2] = [("turns", 1, 200, 24), ("output_tokens", 64, 1_000_000, 8_192)];
const WORD_BYTES_MAX: usize = 200;
/// `gateway` reaches nobody but Actum's own endpoint for models.
const NETWORKS: [&str; 5] = ["offline", "gateway", "registry", "api", "open"];
const PHASES: [&str; 3] = ["step", "plan", "correct"];
/// Limits of an agent's cell that can be set, with what holds otherwise: agents are larger than tools.
const CELL: [(&str, u64); 4] = [("memory_mb", 4_096), ("cpu_cores", 2), ("max_children", 256), ("disk_mb", 4_096)];
const CELL_MAX: u64 = 1 << 20;

impl Agent {
    /// Reads a definition. `script`: reads the file that a script is in.
    pub fn read(value: &Value, at: &str, script: &dyn Fn(&str) -> Result<Value, String>) -> Result<Self, Vec<Flaw>> {
        let mut flaws = Vec::new();
        let agent = read(&mut Part::new(value, at, NOUN, &mut flaws), script);
        match (agent, flaws.is_empty()) {
            (Some(agent), true) => Ok(agent),
            _ => Err(flaws),
        }
    }

    pub fn understands(&self, phase: &str) -> bool {
        self.phases.iter().any(|known| known == phase)
    }
}

fn read(part: &mut Part<'_>, script: &dyn Fn(&str) -> Result<Value, String>) -> Option<Agent> {
    let kind = part.required("type");
    let command = part.words("command");
    let file = part.take("script");
    let mut word = |field: &str, words: &[&str], default: &str| {
        let text = part.text(field).unwrap_or_else(|| default.to_owned());
        if !words.contains(&text.as_str()) {
            part.bad(field, &json!(text), &words.join(", "));
        }
        text
    };
    let filesystem = word("filesystem", &FilesystemLevel::ALL.map(FilesystemLevel::word), "standard");
    let network = word("network", &NETWORKS, "offline");
    let allow = part.texts("allow");
    for text in allow.iter().filter(|text| Host::parse(text).is_err()) {
        part.bad("allow", &json!(text), "a name, *.name or an address, with or without a port");
    }
    let environment = environment(part);
    let cell = CELL.map(|(field, default)| {
        let Some(value) = part.take(field) else { return default };
        let min = LIMITS.iter().find(|limit| limit.name == field).map_or(1, |limit| limit.min);
        value.as_u64().filter(|n| (min..=CELL_MAX).contains(n)).unwrap_or_else(|| {
            part.bad(field, &value, &format!("a whole number from {min} to {CELL_MAX}"));
            default
        })
    });
    let phases = part.take("phases");
    let tools = part.has("tools").then(|| part.texts("tools"));
    // Fields of the built-in agent are unknown to the others.
    let predict = (kind == "predict").then(|| read_predict(part));
    if kind == "predict" && network == "gateway" {
        let expected = "offline, registry, api or open: it asks models itself, and this is for the programs it runs";
        part.bad("network", &json!(network), expected);
    }
    let kind = match kind.as_str() {
        "command" if command.first().is_some_and(|first| !first.is_empty()) => Some(AgentKind::Command { command }),
        "command" => {
            part.bad("command", &json!(command), "the program and its arguments, as a list");
            None
        }
        "script" => read_script(part, file.as_ref(), script).map(|script| AgentKind::Script { script }),
        "predict" => predict.flatten().map(AgentKind::Predict),
        "" => None,
        other => {
            part.bad("type", &json!(other), "command, script or predict");
            None
        }
    };
    let phases = phases_of(part, phases.as_ref(), kind.as_ref());
    part.finish();
    let [memory_mb, cpu_cores, max_children, disk_mb] = cell;
    let kind = kind?;
    Some(Agent {
        kind,
        filesystem,
        network,
        allow,
        environment,
        phases,
        memory_mb,
        cpu_cores,
        max_children,
        disk_mb,
        tools,
    })
}

fn phases_of(part: &mut Part<'_>, given: Option<&Value>, kind: Option<&AgentKind>) -> Vec<String> {
    if let Some(given) = given {
        let words: Option<Vec<String>> =
            given.as_array().and_then(|all| all.iter().map(|w| w.as_str().map(ToOwned::to_owned)).collect());
        match words.filter(|words| {
            words.iter().all(|word| PHASES.contains(&word.as_str())) && words.iter().any(|word| word == "step")
        }) {
            Some(words) => return words,
            None => part.bad("phases", given, "a list of step, plan and correct, with step among them"),
        }
    }
    if let Some(AgentKind::Predict(_)) = kind {
        return PHASES.map(ToOwned::to_owned).to_vec();
    }
    let mut phases = vec!["step".to_owned()];
    // What a script has to say is plain to see.
    if let Some(AgentKind::Script { script }) = kind {
        phases.extend((!script.plan.is_empty()).then(|| "plan".to_owned()));
        phases.extend((!script.corrections.is_empty()).then(|| "correct".to_owned()));
    }
    phases
}

fn read_predict(part: &mut Part<'_>) -> Option<Predict> {
    let mut name = |field: &str, is_needed: bool| {
        let text =
            if is_needed { Some(part.required(field)).filter(|text| !text.is_empty()) } else { part.text(field) };
        text.filter(|text| {
            let is_good = (1..=WORD_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control);
            if !is_good {
                part.bad(field, &json!(text), &format!("a name of at most {WORD_BYTES_MAX} bytes"));
            }
            is_good
        })
    };
    let (model, provider) = (name("model", true), name("provider", false));
    let [turns, output_tokens] = PREDICT.map(|(field, min, max, default)| {
        let Some(value) = part.take(field) else { return default };
        value.as_u64().filter(|n| (min..=max).contains(n)).unwrap_or_else(|| {
            part.bad(field, &value, &format!("a whole number from {min} to {max}"));
            default
        })
    });
    Some(Predict { model: model?, provider, turns, output_tokens })
}

fn environment(part: &mut Part<'_>) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    match part.take("environment") {
        None => {}
        Some(Value::Object(fields)) if fields.len() <= LIST_MAX => {
            for (name, value) in fields {
                let is_name = !name.is_empty() && !name.contains(['=', '\0']);
                match value.as_str().filter(|text| is_name && !text.contains('\0')) {
                    Some(text) => drop(found.insert(name, text.to_owned())),
                    None => part.bad(&format!("environment.{name}"), &value, "text, env:NAME or file:PATH"),
                }
            }
        }
        Some(other) => part.bad("environment", &other, "a table of texts"),
    }
    found
}

fn read_script(
    part: &mut Part<'_>,
    given: Option<&Value>,
    load: &dyn Fn(&str) -> Result<Value, String>,
) -> Option<Script> {
    let value = match given {
        Some(Value::String(path)) => match load(path) {
            Ok(value) => value,
            Err(why) => {
                part.bad("script", &json!(path), &format!("a script that can be read: {why}"));
                return None;
            }
        },
        Some(other) => other.clone(),
        None => Value::Null,
    };
    match serde_json::from_value::<Script>(value.clone()) {
        Ok(script) if !script.steps.is_empty() => Some(script),
        Ok(_) => {
            part.bad("script", &value, "a file, or a table with steps");
            None
        }
        Err(e) => {
            part.bad("script", &given.cloned().unwrap_or(Value::Null), &format!("a script of operations: {e}"));
            None
        }
    }
}

/// JSON Schema of one agent's definition.
pub fn schema() -> Value {
    let texts = json!({"type": "array", "items": {"type": "string"}});
    let object = |properties: Value| json!({"type": "object", "properties": properties, "additionalProperties": false});
    let path = json!({"type": "string"});
    let operations = json!({"type": "array", "items": {"anyOf": [
        object(json!({"write": object(json!({"path": path, "content": path, "executable": {"type": "boolean"}}))})),
        object(json!({"replace": object(json!({"path": path, "old": path, "new": path}))})),
        object(json!({"delete": object(json!({"path": path}))})),
        object(json!({"run": object(json!({"command": texts}))})),
    ]}});
    let mut cell = serde_json::Map::new();
    for (name, default) in CELL {
        let min = LIMITS.iter().find(|limit| limit.name == name).map_or(1, |limit| limit.min);
        cell.insert(
            name.to_owned(),
            json!({"type": "integer", "minimum": min, "maximum": CELL_MAX, "default": default}),
        );
    }
    let mut properties = json!({
        "type": {"enum": TYPES},
        "command": {"type": "array", "items": {"type": "string"}, "minItems": 1,
            "description": "{description}, {work_item}, {phase}, {run} are filled in"},
        "script": {"anyOf": [path, object(json!({
            "plan": texts,
            "steps": {"type": "object", "additionalProperties": operations},
            "corrections": {"type": "array", "items": operations},
        }))]},
        "model": {"type": "string", "minLength": 1, "maxLength": WORD_BYTES_MAX,
            "description": "of predict: the model that is asked"},
        "provider": {"type": "string", "description": "of predict: the provider, if several have the model"},
        "filesystem": {"enum": FilesystemLevel::ALL.map(FilesystemLevel::word), "default": "standard"},
        "network": {"enum": NETWORKS, "default": "offline",
            "description": "which hosts its programs reach; the agent predict calls models itself, independent of this"},
        "allow": texts,
        "environment": {"type": "object", "additionalProperties": {"type": "string"}},
        "tools": {"type": "array", "items": {"type": "string"}, "description": "registered tools it may call; all that are approved if none are listed"},
        "phases": {"type": "array", "items": {"enum": PHASES}, "default": ["step"],
            "description": "of predict all three, if none are listed"},
    });
    for (name, min, max, default) in PREDICT {
        properties[name] = json!({"type": "integer", "minimum": min, "maximum": max, "default": default,
            "description": format!("of predict: {}", if name == "turns" { "questions in one step or correction" } else { "of one answer" })});
    }
    if let Some(all) = properties.as_object_mut() {
        all.extend(cell);
    }
    let mut agent = object(properties);
    agent["required"] = json!(["type"]);
    agent
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(value: Value) -> Result<Agent, String> {
        let load = |path: &str| match path {
            "s.yaml" => Ok(json!({"steps": {"*": [{"write": {"path": "a", "content": "b"}}]}, "corrections": [[]]})),
            _ => Err("it is not there".to_owned()),
        };
        Agent::read(&value, "agents.a", &load)
            .map_err(|flaws| flaws.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
    }

    #[test]
    fn all_kinds_are_read_and_survive_their_own_text() {
        let command =
            agent(json!({"type": "command", "command": ["codex", "{description}"], "phases": ["step", "plan"]}));
        let command = command.unwrap();
        assert!(command.understands("plan") && !command.understands("correct"));
        let script = agent(json!({"type": "script", "script": "s.yaml"})).unwrap();
        assert!(script.understands("correct") && !script.understands("plan"));
        let predict = agent(json!({"type": "predict", "model": "m-1"})).unwrap();
        assert!(PHASES.iter().all(|phase| predict.understands(phase)));
        let AgentKind::Predict(found) = &predict.kind else { panic!("{predict:?}") };
        assert_eq!((found.turns, found.output_tokens, &found.provider), (24, 8_192, &None));
        let short = json!({"type": "predict", "model": "m", "provider": "p", "turns": 200, "phases": ["step"]});
        let short = agent(short).unwrap();
        assert!(!short.understands("plan"));
        for agent in [command, script, predict, short] {
            let text = serde_json::to_value(&agent).unwrap();
            assert_eq!(serde_json::from_value::<Agent>(text).unwrap(), agent);
        }
    }

    #[test]
    fn every_flaw_is_told() {
        let bad = agent(
            json!({"type": "command", "network": "gates", "filesystem": "all", "memory_mb": 0, "phases": ["plan"], "comand": 1}),
        );
        let bad = bad.unwrap_err();
        for part in ["command", "network", "filesystem", "memory_mb", "phases", "did you mean command?"] {
            assert!(bad.contains(part), "{part} is missing in {bad}");
        }
        assert!(agent(json!({"type": "script", "script": "x.yaml"})).unwrap_err().contains("it is not there"));
        assert!(agent(json!({"type": "robot"})).unwrap_err().contains("script or predict"));
        let bad = agent(json!({
            "type": "predict", "turns": 201, "output_tokens": 1, "provider": "", "network": "gateway", "comand": 1,
        }));
        let bad = bad.unwrap_err();
        for part in ["model", "turns", "output_tokens", "provider", "network", "comand"] {
            assert!(bad.contains(part), "{part} is missing in {bad}");
        }
        // What only the built-in agent has is unknown to others.
        let other = agent(json!({"type": "command", "command": ["x"], "model": "m"}));
        assert!(other.unwrap_err().contains("model"));
    }
}
