//! The OpenAPI document, made of the table of routes and of what the command line says of its commands. Printed by `actum schema
//! openapi`, served to whoever asks; the same for every build of the same code.

use actum_api::error::TABLE;
use actum_api::route::{Method, Place, Route};
use clap::Arg;
use serde_json::{Map, Value, json};

use super::shape::{Form, Shape, forms};
use super::{JSON, JSON_LINES, page, result, value};
use crate::archive;

/// Commands that take many documents, one a line.
pub(super) const LINES_IN: [&[&str]; 2] = [&["ledger", "append"], &["dataset", "import"]];
/// Commands that may answer with many documents, one a line.
const LINES_OUT: [&[&str]; 4] = [&["ledger", "append"], &["predict"], &["dataset", "show"], &["events"]];

/// The whole document.
pub(crate) fn document() -> Value {
    let mut paths = Map::new();
    for form in forms() {
        let path = paths.entry(form.route.path).or_insert_with(|| json!({}));
        path[form.route.method.word().to_ascii_lowercase()] = operation(form);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Actum",
            "summary": "Run AI agents under a contract: resolved, hashed, recorded, provable.",
            "description": "What a person types, a program may ask: every operation stands for a command. JSON answers are \
                            what the command prints with --json; with `Accept: text/plain` they are what a person would see. \
                            `X-Actum-Exit` tells its exit code. A name that is not listed is refused.",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}],
        "tags": tags(),
        "paths": paths,
        "components": components(),
    })
}

/// What a route is about: the first word behind the version.
fn tag(route: &Route) -> &'static str {
    route.path.split('/').nth(2).unwrap_or_default()
}

fn tags() -> Value {
    let mut names: Vec<&str> = forms().iter().map(|form| tag(form.route)).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().map(|name| json!({"name": name})).collect()
}

fn operation(form: &Form) -> Value {
    let route = form.route;
    let words: Vec<&str> = std::iter::once("actum").chain(route.command.iter().chain(route.fixed).copied()).collect();
    let need = route.need.word();
    let mut description = format!("Stands for `{}`. Needs the right to {need}.", words.join(" "));
    if let Some(after) = form.leaf.get_after_help() {
        description = format!("{after}\n\n{description}");
    }
    let mut shown = json!({
        "operationId": operation_id(route),
        "tags": [tag(route)],
        "summary": form.leaf.get_about().map(ToString::to_string).unwrap_or_default(),
        "description": description,
        "parameters": parameters(form),
        "responses": responses(route),
        "x-actum-command": route.command,
        "x-actum-need": need,
    });
    if let Some(content) = content(form) {
        shown["requestBody"] = content;
    }
    shown
}

fn operation_id(route: &Route) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let names = route.path.split('/').skip(2).map(|segment| segment.trim_matches(['{', '}']));
    let path: Vec<String> = names.map(|segment| segment.chars().map(plain).collect()).collect();
    format!("{}_{}", route.method.word().to_ascii_lowercase(), path.join("_"))
}

fn parameters(form: &Form) -> Value {
    let of = |shape: &Shape, place: &str, is_required: bool| {
        let mut shown =
            json!({"name": shape.name, "in": place, "required": is_required, "schema": value::schema(form, shape)});
        if let Some(help) = help(&shape.arg) {
            shown["description"] = json!(help);
        }
        shown
    };
    let in_path = form.shapes_in(Place::Path).map(|shape| of(shape, "path", true));
    let in_query = form.shapes_in(Place::Query).map(|shape| of(shape, "query", shape.arg.is_required_set()));
    let mut all: Vec<Value> = in_path.chain(in_query).collect();
    if let Some(pages) = form.route.pages {
        if pages.all.is_none() {
            all.push(json!({"$ref": "#/components/parameters/Limit"}));
        }
        all.push(json!({"$ref": "#/components/parameters/Cursor"}));
    }
    if form.route.streams {
        all.push(json!({"$ref": "#/components/parameters/LastEventId"}));
    }
    if form.route.creates {
        all.push(json!({"$ref": "#/components/parameters/IdempotencyKey"}));
    }
    if form.route.method == Method::Get {
        all.push(json!({"$ref": "#/components/parameters/IfNoneMatch"}));
    }
    Value::Array(all)
}

fn help(arg: &Arg) -> Option<String> {
    arg.get_help().map(|help| help.to_string().replace('\n', " "))
}

fn content(form: &Form) -> Option<Value> {
    if let Some(shape) = form.shapes_in(Place::Content).next() {
        let document = document_of(form.route).map_or_else(|| json!({}), reference);
        let mut kinds = json!({JSON: {"schema": document}, "application/yaml": {"schema": document}});
        if LINES_IN.contains(&form.route.command) {
            kinds = json!({JSON: {"schema": document}, JSON_LINES: {"schema": {"type": "string", "minLength": 1}}});
        }
        let description = help(&shape.arg).unwrap_or_default();
        return Some(json!({"required": true, "description": description, "content": kinds}));
    }
    let shapes: Vec<&Shape> =
        form.shapes.iter().filter(|shape| matches!(shape.place, Place::Field | Place::File)).collect();
    if shapes.is_empty() {
        return None;
    }
    let mut properties = Map::new();
    for shape in &shapes {
        let mut one = value::schema(form, shape);
        if let Some(help) = help(&shape.arg) {
            one["description"] = json!(help);
        }
        properties.insert(shape.name.to_owned(), one);
    }
    let required: Vec<&str> =
        shapes.iter().filter(|shape| shape.arg.is_required_set()).map(|shape| shape.name).collect();
    let mut object = json!({"type": "object", "properties": properties, "additionalProperties": false});
    if !required.is_empty() {
        object["required"] = json!(required);
    }
    Some(json!({"required": !required.is_empty(), "content": {JSON: {"schema": object}}}))
}

/// The schema that describes the content of a route, by the name that `actum schema` knows it under.
const DOCUMENTS: [(&[&str], &str); 7] = [
    (&["run"], "work"),
    (&["tool", "add"], "tool"),
    (&["adapter", "add"], "adapter"),
    (&["signature", "add"], "signature"),
    (&["artifact", "add"], "artifact"),
    (&["compile"], "compile-job"),
    (&["ledger", "append"], "ledger-entry"),
];

fn document_of(route: &Route) -> Option<&'static str> {
    DOCUMENTS.iter().find(|(command, _)| *command == route.command).map(|(_, name)| *name)
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// A schema as a part of this document: what it says of itself begins where it lies here.
fn embedded(name: &str, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("$schema");
            fields.remove("$id");
            if let Some(Value::String(target)) = fields.get_mut("$ref")
                && let Some(rest) = target.strip_prefix('#')
            {
                *target = format!("#/components/schemas/{name}{rest}");
            }
            fields.values_mut().for_each(|below| embedded(name, below));
        }
        Value::Array(all) => all.iter_mut().for_each(|below| embedded(name, below)),
        _ => {}
    }
}

/// The schemas of contents and of answers.
fn schemas() -> Map<String, Value> {
    let mut all = result::shared();
    for (_, name) in DOCUMENTS {
        let mut schema = crate::command::schema::named(name).unwrap_or_default();
        embedded(name, &mut schema);
        all.insert(name.to_owned(), schema);
    }
    all
}

fn responses(route: &Route) -> Value {
    let mut headers = json!({
        "X-Actum-Exit": {"$ref": "#/components/headers/Exit"},
        "X-Actum-Remarks": {"$ref": "#/components/headers/Remarks"},
        "X-Actum-Asides": {"$ref": "#/components/headers/Asides"},
        "X-Request-Id": {"$ref": "#/components/headers/RequestId"},
    });
    if route.creates {
        headers["Idempotent-Replayed"] = json!({"$ref": "#/components/headers/Replayed"});
    }
    let mut schema = result::schema(route.command);
    if route.pages.is_some() && schema["properties"].is_object() {
        schema["properties"]["next"] = result::next();
    }
    let mut content = json!({JSON: {"schema": schema}, "text/plain": {"schema": {"type": "string"}}});
    if route.is_archive {
        content = json!({ archive::CONTENT_TYPE: {} });
    }
    if LINES_OUT.contains(&route.command) {
        content[JSON_LINES] = json!({"schema": {"type": "string"}});
    }
    if route.streams {
        // What each event holds.
        let event =
            json!({"id": {"type": "string"}, "event": {"type": "string"}, "data": {"type": "string"}, "retry": {}});
        content["text/event-stream"] = json!({"schema": {"type": "object", "properties": event}});
    }
    let of = |description: &str| json!({"description": description, "headers": headers, "content": content});
    let done = match route.status {
        201 => "It is made.",
        202 => "It is taken on; a worker does the rest.",
        _ => "It is done.",
    };
    let mut all = json!({ "default": {"$ref": "#/components/responses/Error"} });
    all["200"] = of("It was done, and came to another end than was hoped for: the exit code says which.");
    all[route.status.to_string()] = of(done);
    if route.method == Method::Get {
        all["200"]["headers"]["ETag"] = json!({"$ref": "#/components/headers/ETag"});
        all["304"] =
            json!({"description": "It is what `If-None-Match` says it was.", "headers": all["200"]["headers"]});
    }
    all
}

fn components() -> Value {
    let mut codes: Vec<&str> = TABLE.iter().map(|row| row.name).collect();
    codes.sort_unstable();
    let mut all = json!({
        "securitySchemes": {
            "bearer": {"type": "http", "scheme": "bearer", "description": "A token that `actum token create` has made."},
        },
        "parameters": {
            "LastEventId": {
                "name": "Last-Event-ID", "in": "header", "required": false,
                "description": "The last event of the stream that was heard; what is told are those behind it.",
                "schema": {"type": "integer", "minimum": 0},
            },
            "Limit": {
                "name": "limit", "in": "query", "required": false,
                "description": "How many at most; without it and `cursor` all there are.",
                "schema": {"type": "integer", "minimum": 1, "maximum": page::LIMIT_MAX},
            },
            "Cursor": {
                "name": "cursor", "in": "query", "required": false,
                "description": "Go on from the `next` of an earlier page.",
                "schema": {"type": "string", "pattern": "^[1-9][0-9]{0,8}\\.[0-9a-f]{16}$"},
            },
            "IfNoneMatch": {
                "name": "If-None-Match", "in": "header", "required": false,
                "description": "The `ETag` of an earlier answer; if it would be the same again, the answer is 304 and empty.",
                "schema": {"type": "string"},
            },
            "IdempotencyKey": {
                "name": "Idempotency-Key", "in": "header", "required": false,
                "description": "The same request under the same key is answered alike for a day. Submissions of runs are done once, also if a process dies in between; anything else unless the server dies before it has answered.",
                "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]([ -~]*[!-~])?$"},
            },
        },
        "headers": {
            "Exit": {
                "description": "The exit code that the command would have ended with.",
                "schema": {"type": "integer", "minimum": 0, "maximum": 255},
            },
            "Remarks": {
                "description": "What the command would have said beside its result: lines, as a list in JSON and ASCII, the first KiB of it.",
                "schema": {"type": "string"},
            },
            "Asides": {
                "description": "The same, of what has to be known.",
                "schema": {"type": "string"},
            },
            "ETag": {"description": "Stands for the content of this answer.", "schema": {"type": "string"}},
            "Replayed": {
                "description": "true: this is the answer that the same request under the same key got before.",
                "schema": {"type": "string", "const": "true"},
            },
            "RequestId": {
                "description": "By which the request is found in the log.",
                "schema": {"type": "string", "minLength": 1, "maxLength": 64},
            },
        },
        "schemas": {
            "Error": {
                "type": "object",
                "required": ["error"],
                "properties": {
                    "error": {
                        "type": "object",
                        "required": ["code", "message"],
                        "properties": {
                            "code": {"type": "string", "enum": codes},
                            "ref": {"type": "string", "pattern": "^A[0-9]{4}$", "description": "Its page in docs/errors."},
                            "message": {"type": "string"},
                            "details": {},
                            "hint": {"type": "string", "description": "What to do next."},
                        },
                    },
                },
            },
        },
        "responses": {
            "Error": {
                "description": "It was refused, or it failed.",
                "headers": {
                    "X-Actum-Exit": {"$ref": "#/components/headers/Exit"},
                    "X-Request-Id": {"$ref": "#/components/headers/RequestId"},
                },
                "content": {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
        },
    });
    if let Some(own) = all["schemas"].as_object_mut() {
        own.append(&mut schemas());
    }
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_route_is_described_under_a_name_of_its_own() {
        let document = document();
        let mut ids = BTreeSet::new();
        for form in forms() {
            let shown = &document["paths"][form.route.path][form.route.method.word().to_ascii_lowercase()];
            assert!(ids.insert(shown["operationId"].as_str().unwrap().to_owned()), "{}", form.route.path);
            assert!(!shown["summary"].as_str().unwrap().is_empty(), "{}", form.route.path);
            assert_eq!(shown["x-actum-need"], form.route.need.word());
            assert!(
                shown["responses"][form.route.status.to_string()].is_object()
                    && shown["responses"]["default"].is_object()
            );
        }
        assert_eq!(document["security"], json!([{"bearer": []}]));
    }

    #[test]
    fn what_is_referred_to_is_there_and_the_text_is_always_the_same() {
        let document = document();
        fn walk(value: &Value, whole: &Value) {
            if let Some(target) = value.get("$ref").and_then(Value::as_str) {
                assert!(whole.pointer(target.trim_start_matches('#')).is_some(), "{target}");
            }
            value.as_object().into_iter().flatten().for_each(|(_, below)| walk(below, whole));
            value.as_array().into_iter().flatten().for_each(|below| walk(below, whole));
        }
        walk(&document, &document);
        assert_eq!(document.to_string(), super::document().to_string());
    }

    #[test]
    fn parameters_and_contents_are_those_of_the_commands() {
        let document = document();
        let canary = &document["paths"]["/v1/pointers/{signature}/canary"]["post"];
        let object = &canary["requestBody"]["content"][JSON]["schema"];
        assert_eq!(object["required"], json!(["reason"]));
        assert_eq!(object["additionalProperties"], false);
        assert_eq!(object["properties"]["clear"]["type"], "boolean");
        assert_eq!(object["properties"]["actor"], Value::Null);
        let list = &document["paths"]["/v1/runs"]["get"]["parameters"];
        assert_eq!(list[1]["name"], "limit");
        assert_eq!(list[1]["schema"], json!({"type": "integer", "minimum": 1, "maximum": 1000, "default": 50}));
        let work = &document["paths"]["/v1/runs"]["post"]["requestBody"]["content"][JSON]["schema"]["$ref"];
        assert_eq!(work, "#/components/schemas/work");
        let level = &document["paths"]["/v1/adapters"]["get"]["parameters"][0]["schema"];
        assert_eq!(level["enum"], json!(["L0", "L1", "L2", "L3"]));
    }
}
