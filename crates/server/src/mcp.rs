//! The tools as an MCP server for an agent in its cell: three tools that lead from the list over a description to a call.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use actum_api::error;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, ListToolsResult,
    PaginatedRequestParams, RequestId, ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Value, json};

use crate::bridge::{Call, Refused};
use crate::fields::Fields;
use crate::turns::Turns;

/// A message that cancels a request is small; a larger one is not looked at.
const CANCEL_BYTES_MAX: usize = 4 << 10;

const INSTRUCTIONS: &str = "Registered tools, disclosed step by step: list_tools shows what there is, describe_tool how \
                            one is used, call_tool uses it.";

const CALL: &str = "call_tool";

static TOOLS: LazyLock<Vec<Tool>> = LazyLock::new(|| {
    let read_only = || ToolAnnotations::new().read_only(true).destructive(false).idempotent(true).open_world(false);
    vec![
        tool(
            "list_tools",
            "Lists the tools you can use, with their ids. Start here; then describe_tool, then call_tool. L0 gives ids, \
             names and types; L1 adds the operations of each.",
            json!({
                "type": "object",
                "properties": {
                    "level": {"type": "string", "enum": ["L0", "L1"], "default": "L0", "description": "How much of each."},
                    "tool_id": {"type": "string", "description": "Only what belongs to this tool."},
                },
                "additionalProperties": false,
            }),
            read_only(),
        ),
        tool(
            "describe_tool",
            "Describes one tool or adapter from list_tools. Read L2 before the first call: it has the operations and the \
             schemas of their parameters. L1 is shorter; L3 adds examples and everything else.",
            json!({
                "type": "object",
                "properties": {
                    "id": {"type": "string", "description": "A tool_id or adapter_id from list_tools."},
                    "level": {"type": "string", "enum": ["L1", "L2", "L3"], "description": "How much of it."},
                },
                "required": ["id", "level"],
                "additionalProperties": false,
            }),
            read_only(),
        ),
        tool(
            CALL,
            "Calls one tool that describe_tool described, and waits for its result. The result has an exit status and \
             what the tool put out; a refusal says why, and what to do about it.",
            json!({
                "type": "object",
                "properties": {
                    "tool_id": {"type": "string", "description": "A tool_id from list_tools."},
                    "adapter_id": {"type": "string", "description": "One of its adapters; the best one if left out."},
                    "operation": {"type": "string", "description": "One of its operations, if it has several."},
                    "params": {"type": "object", "description": "The parameters, as describe_tool gives their schema."},
                },
                "required": ["tool_id", "params"],
                "additionalProperties": false,
            }),
            ToolAnnotations::new().read_only(false).destructive(false).open_world(true),
        ),
    ]
});

fn tool(name: &'static str, description: &'static str, schema: Value, annotations: ToolAnnotations) -> Tool {
    let schema = schema.as_object().cloned().unwrap_or_default();
    Tool::new(name, description, schema).with_annotations(annotations)
}

#[derive(Clone)]
pub(crate) struct Server {
    turns: Arc<Turns>,
    under_way: Arc<UnderWay>,
}

impl Server {
    pub(crate) fn new(turns: Arc<Turns>, under_way: Arc<UnderWay>) -> Self {
        Self { turns, under_way }
    }

    async fn answer(&self, name: &str, mut fields: Fields) -> Result<Value, Refused> {
        match name {
            "list_tools" => {
                let (level, tool) = (fields.maybe_text("level")?, fields.maybe_text("tool_id")?);
                fields.end()?;
                self.turns.list(level, tool).await
            }
            "describe_tool" => {
                let (id, level) = (fields.text("id")?, fields.maybe_text("level")?);
                fields.end()?;
                self.turns.show(id, level).await
            }
            _ => {
                let call = Call {
                    tool: fields.text("tool_id")?,
                    adapter: fields.maybe_text("adapter_id")?,
                    operation: fields.maybe_text("operation")?,
                    params: fields.object("params")?,
                };
                fields.end()?;
                self.turns.call(call).await
            }
        }
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("actum", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        TOOLS.iter().find(|tool| tool.name == name).cloned()
    }

    async fn list_tools(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(TOOLS.clone()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if !TOOLS.iter().any(|tool| tool.name == request.name) {
            return Err(ErrorData::invalid_params(format!("there is no tool `{}`", request.name), None));
        }
        let token = context.ct.clone();
        let _listed = self.under_way.enter("", context.id.clone(), move || token.cancel());
        let fields = Fields::new(request.arguments.unwrap_or_default());
        let answer = tokio::select! {
            answer = self.answer(&request.name, fields) => answer,
            // Its caller does not wait any more; the call is told when this drops it.
            () = context.ct.cancelled() => Err(cancelled()),
        };
        let mut result = answer.map_or_else(refusal, result);
        // What a call came to stands in its result; a client that reads only this has to see it too.
        let status = result.structured_content.as_ref().and_then(|value| value["status"].as_str());
        if request.name == CALL && status.is_some_and(|status| status != "success") {
            result.is_error = Some(true);
        }
        Ok(result.into())
    }
}

/// Clients take structured content only as an object; the text repeats it for those that do not take it at all.
pub(crate) fn result(value: Value) -> CallToolResult {
    let value = if value.is_object() { value } else { json!({ "result": value }) };
    CallToolResult::structured(value)
}

/// As a result, not as an error of the protocol: that one the agent would never see.
pub(crate) fn refusal(refused: Refused) -> CallToolResult {
    let error = &refused.body["error"];
    let part = |name: &str| error[name].as_str().unwrap_or_default();
    let mut text = format!("{}: {}", part("code"), part("message"));
    if !part("hint").is_empty() {
        text.push_str(&format!("\nHint: {}", part("hint")));
    }
    let mut result = CallToolResult::error(vec![ContentBlock::text(text)]);
    result.structured_content = refused.body.is_object().then_some(refused.body);
    result
}

pub(crate) fn cancelled() -> Refused {
    Refused::named(error::EXECUTION_INTERRUPTED, "the caller cancelled the call", &Value::Null, None)
}

/// Calls under way with the ids of their requests. Without sessions a message that cancels a request arrives on a
/// connection of its own and nothing but the id says which one is meant.
#[derive(Default)]
pub(crate) struct UnderWay(Mutex<Vec<Listed>>);

struct Listed {
    /// Who asked: nobody cancels what another one asked for.
    whose: String,
    id: RequestId,
    /// Not the id: two clients in one cell may count alike.
    number: usize,
    cancel: Box<dyn Fn() + Send>,
}

pub(crate) struct Entered<'a> {
    under_way: &'a UnderWay,
    number: usize,
}

impl UnderWay {
    pub(crate) fn enter(&self, whose: &str, id: RequestId, cancel: impl Fn() + Send + 'static) -> Entered<'_> {
        let mut listed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = listed.last().map_or(0, |last| last.number + 1);
        listed.push(Listed { whose: whose.to_owned(), id, number, cancel: Box::new(cancel) });
        Entered { under_way: self, number }
    }

    /// If this is a message that cancels a request, does so; unless two have that id, and it is unclear which.
    pub(crate) fn hear(&self, whose: &str, content: &[u8]) {
        if content.len() > CANCEL_BYTES_MAX {
            return;
        }
        let message: Value = serde_json::from_slice(content).unwrap_or_default();
        let id = match (&message["method"], &message["params"]["requestId"]) {
            (Value::String(method), Value::String(id)) if method == CANCELLED => RequestId::String(id.as_str().into()),
            (Value::String(method), Value::Number(id)) if method == CANCELLED => match id.as_i64() {
                Some(id) => RequestId::Number(id),
                None => return,
            },
            _ => return,
        };
        let listed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut meant = listed.iter().filter(|listed| listed.whose == whose && listed.id == id);
        if let (Some(one), None) = (meant.next(), meant.next()) {
            (one.cancel)();
        }
    }
}

const CANCELLED: &str = "notifications/cancelled";

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut listed = self.under_way.0.lock().unwrap_or_else(PoisonError::into_inner);
        listed.retain(|listed| listed.number != self.number);
    }
}

/// Without sessions and with plain JSON for answers: some clients stumble over the empty event that opens a stream.
pub(crate) fn over_http<S: ServerHandler + Clone>(
    server: S,
    bytes_max: usize,
) -> StreamableHttpService<S, NeverSessionManager> {
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        // By which name we are asked is looked at before, by whoever knows our names.
        .disable_allowed_hosts()
        .with_max_request_body_bytes(bytes_max);
    StreamableHttpService::new(move || Ok(server.clone()), Arc::new(NeverSessionManager::default()), config)
}
