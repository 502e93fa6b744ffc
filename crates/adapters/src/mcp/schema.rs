//! What a server says about its tools, and holding it and its callers to it.

use jsonschema::PatternOptions;
use rmcp::model::Tool;
use serde_json::{Map, Value, json};

use crate::result::{Problem, Stage};

/// Tools of one server, bytes of all their descriptions, pages of the list.
pub(super) const TOOLS_MAX: usize = 1_000;
pub(super) const TOOLS_BYTES_MAX: usize = 4 * 1024 * 1024;
pub(super) const PAGES_MAX: usize = 1_000;

/// Bytes of a compiled pattern, steps of one that has to go back: a schema comes from a stranger.
const PATTERN_BYTES_MAX: usize = 1024 * 1024;
const PATTERN_STEPS_MAX: usize = 100_000;

/// Errors and names that a message mentions.
const MENTIONED_MAX: usize = 20;

/// The tools of a server.
#[derive(Debug, Default)]
pub(super) struct Tools {
    tools: Vec<Tool>,
    bytes: usize,
}

impl Tools {
    pub(super) fn len(&self) -> usize {
        self.tools.len()
    }

    /// Takes in a page.
    pub(super) fn add(&mut self, page: Vec<Tool>) -> Result<(), Problem> {
        for tool in page {
            self.bytes += serde_json::to_vec(&tool).map_or(0, |text| text.len());
            self.tools.push(tool);
            if self.tools.len() > TOOLS_MAX {
                return Err(Problem::new(Stage::Call, format!("the server lists more than {TOOLS_MAX} tools")));
            }
            if self.bytes > TOOLS_BYTES_MAX {
                let text = format!("the server's list of tools is longer than {TOOLS_BYTES_MAX} bytes");
                return Err(Problem::new(Stage::Call, text));
            }
        }
        Ok(())
    }

    pub(super) fn find(&self, name: &str) -> Result<&Tool, Problem> {
        self.tools.iter().find(|tool| tool.name == name).ok_or_else(|| {
            let mut names: Vec<&str> = self.tools.iter().map(|tool| tool.name.as_ref()).collect();
            let more = names.len().saturating_sub(MENTIONED_MAX);
            names.truncate(MENTIONED_MAX);
            let mut known = if names.is_empty() { "it has none".to_owned() } else { names.join(", ") };
            if more > 0 {
                known.push_str(&format!(" and {more} more"));
            }
            Problem::new(Stage::Call, format!("the server has no tool {name:?}; its tools: {known}"))
        })
    }

    /// As discovery shows them.
    pub(super) fn shown(&self) -> Vec<Value> {
        let show = |tool: &Tool| {
            let mut shown = json!({
                "name": tool.name, "description": tool.description.as_deref().unwrap_or(""),
                "inputSchema": *tool.input_schema,
            });
            if let Some(schema) = &tool.output_schema {
                shown["outputSchema"] = json!(**schema);
            }
            shown
        };
        self.tools.iter().map(show).collect()
    }
}

/// Whether the arguments are what the tool says it takes.
pub(super) fn check_input(tool: &Tool, arguments: &Map<String, Value>) -> Result<(), Problem> {
    let what = format!("the arguments of {} are", tool.name);
    check(&what, "inputSchema", &tool.input_schema, &Value::Object(arguments.clone()), Stage::Input)
}

/// Whether the answer is what the tool says it gives; one that says so must give it.
pub(super) fn check_output(tool: &Tool, structured: Option<&Value>) -> Result<(), Problem> {
    let Some(schema) = &tool.output_schema else { return Ok(()) };
    let Some(answer) = structured else {
        let text = format!("{} has an outputSchema and gave no structuredContent", tool.name);
        return Err(Problem::new(Stage::Output, text));
    };
    check(&format!("the answer of {} is", tool.name), "outputSchema", schema, answer, Stage::Output)
}

fn check(what: &str, field: &str, schema: &Map<String, Value>, value: &Value, stage: Stage) -> Result<(), Problem> {
    let patterns = PatternOptions::fancy_regex().size_limit(PATTERN_BYTES_MAX).backtrack_limit(PATTERN_STEPS_MAX);
    let validator = jsonschema::options()
        .offline()
        .with_pattern_options(patterns)
        .build(&Value::Object(schema.clone()))
        .map_err(|why| {
            let text =
                format!("the server's {field} is no JSON Schema that stands by itself: {}", short(&why.to_string()));
            Problem::new(Stage::Call, text)
        })?;
    let mut path = None;
    let (mut errors, mut more) = (Vec::new(), 0_usize);
    for error in validator.iter_errors(value) {
        let at = error.instance_path().to_string();
        if errors.len() == MENTIONED_MAX {
            more += 1;
            continue;
        }
        let at = if at.is_empty() { "/".to_owned() } else { at };
        errors.push(format!("{at}: {}", short(&error.masked().to_string())));
        path.get_or_insert(at);
    }
    let Some(path) = path else { return Ok(()) };
    let tail = if more > 0 { format!("; and {more} more") } else { String::new() };
    Err(Problem::at(stage, path, format!("{what} not what its {field} says: {}{tail}", errors.join("; "))))
}

/// The beginning of a text that somebody else wrote.
fn short(text: &str) -> String {
    text.chars().take(300).collect()
}
