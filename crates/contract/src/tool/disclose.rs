//! What is shown of tools and adapters, level by level: enough to choose, then enough to call, then everything.

use serde_json::{Value, json};

use super::{Adapter, Entry, Interface};

/// How much is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    L0,
    L1,
    L2,
    L3,
}

impl Level {
    pub const ALL: [Self; 4] = [Self::L0, Self::L1, Self::L2, Self::L3];

    pub const fn word(self) -> &'static str {
        match self {
            Self::L0 => "L0",
            Self::L1 => "L1",
            Self::L2 => "L2",
            Self::L3 => "L3",
        }
    }

    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.word().eq_ignore_ascii_case(word))
    }
}

/// The interface in a few words: what level L1 adds.
pub fn summary_of_adapter(adapter: &Adapter) -> Value {
    let interface = match &adapter.interface {
        Interface::Cli(cli) => {
            let parameters: Vec<&String> =
                cli.arguments.iter().map(|(name, _)| name).chain(cli.environment.keys()).chain(&cli.stdin).collect();
            json!({"executable": cli.executable, "parameters": parameters})
        }
        Interface::Api(api) => json!({"base_url": api.base_url}),
        Interface::Sdk(sdk) => json!({"language": sdk.language.word(), "package": sdk.package}),
        Interface::Mcp(mcp) => json!({"server": mcp.server}),
    };
    let mut summary = json!({
        "version": adapter.version, "status": adapter.status.word(), "interface": interface,
        "operations": adapter.interface.operations(),
    });
    if let Some(fallback) = &adapter.fallback {
        summary["fallback"] = json!(fallback.adapter_id);
    }
    summary
}

/// What can be asked of a tool, in a few words.
pub fn summary_of_tool(entry: &Entry) -> Value {
    let operations: serde_json::Map<String, Value> = entry
        .operations
        .iter()
        .map(|(name, operation)| {
            let properties = operation.parameters.as_ref().and_then(|schema| schema["properties"].as_object());
            let parameters: Vec<&String> = properties.into_iter().flat_map(serde_json::Map::keys).collect();
            (name.clone(), json!({"description": operation.description, "parameters": parameters}))
        })
        .collect();
    json!({
        "version": entry.version, "status": entry.status.word(), "description": entry.description, "owner": entry.owner,
        "operations": operations, "commands": entry.scope.commands, "data_access": entry.scope.data_access.word(),
        "network": entry.scope.network,
    })
}

/// An adapter at a level. `body`: the whole document; `more`: what only L3 shows.
pub fn disclose_adapter(adapter: &Adapter, body: &Value, level: Level, more: Value) -> Value {
    let mut shown = json!({
        "adapter_id": adapter.adapter_id, "name": adapter.name, "tool_id": adapter.tool_id,
        "type": adapter.interface.word(),
    });
    if level >= Level::L1 {
        merge(&mut shown, summary_of_adapter(adapter));
    }
    if level >= Level::L2 {
        shown["interface"] = body["interface"].clone();
        shown["transforms"] = body["transforms"].clone();
    }
    if level >= Level::L3 {
        merge(&mut shown, body.clone());
        merge(&mut shown, more);
    }
    shown
}

/// A tool at a level: name and owner, what it can be asked for, all of its schema and limits, and examples.
pub fn disclose_tool(entry: &Entry, body: &Value, level: Level, more: Value) -> Value {
    let mut shown = json!({"tool_id": entry.tool_id, "name": entry.name, "summary": first_line(&entry.description), "owner": entry.owner});
    if level >= Level::L1 {
        merge(&mut shown, summary_of_tool(entry));
    }
    if level >= Level::L2 {
        for part in ["operations", "scope"] {
            shown[part] = body[part].clone();
        }
        if let Some(settlement) = body.get("settlement") {
            shown["settlement"] = settlement.clone();
        }
    }
    if level >= Level::L3 {
        merge(&mut shown, body.clone());
        merge(&mut shown, more);
    }
    shown
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn merge(into: &mut Value, from: Value) {
    if let (Some(into), Value::Object(from)) = (into.as_object_mut(), from) {
        into.extend(from);
    }
}
