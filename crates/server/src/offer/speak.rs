//! The protocol's side of what is offered: which tools a caller sees, his calls, and resources. Answers by `Host`; a refusal
//! is a result that the model reads, not an error of the protocol.

use actum_api::error;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, ListResourceTemplatesResult,
    ListResourcesResult, ListToolsResult, PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse,
    ReadResourceResult, ResourceContents, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Map, Value, json};

use super::rows::{self, ROWS, Row, TOOLS};
use super::watch::{Listener, Wait};
use super::{Host, resource, text_of, value_of};
use crate::bridge::{Call, Refused};
use crate::fields::{Fields, bad};
use crate::mcp::{cancelled, refusal, result};

const INSTRUCTIONS: &str = "Actum runs AI agents under a contract. submit work items, watch each run until it is over, then look at diff and \
     verify its receipt; undo takes a publication back, apply publishes a kept result. Registered tools are found by \
     list_tools, described by describe_tool and used by call_tool.";

#[derive(Clone)]
pub(crate) struct Speaker {
    host: Host,
}

impl Speaker {
    pub(crate) fn new(host: Host) -> Self {
        Self { host }
    }

    async fn answer(
        &self,
        row: &'static Row,
        arguments: Map<String, Value>,
        to: Listener,
    ) -> Result<CallToolResult, Refused> {
        if !self.host.commands.may(row.need()) {
            let message = format!("you may not use `{}` here", row.name);
            let hint = format!("It needs a role that may {}.", row.need().word());
            return Err(Refused::named(error::FORBIDDEN, &message, &json!({"need": row.need().word()}), Some(&hint)));
        }
        match (row.name, &self.host.tools) {
            (rows::WATCH, _) => {
                super::check(row, &arguments)?;
                Wait::read(&arguments)?.wait(&self.host, row, &to).await.map(result)
            }
            (rows::LIST_TOOLS, Some(tools)) => {
                super::check(row, &arguments)?;
                let mut fields = Fields::new(arguments.clone());
                let level = fields.maybe_text("level")?;
                // What belongs to one tool is chosen below, as for everybody else.
                Host::found(tools.list(level, None).await?, &arguments).map(result)
            }
            (rows::LIST_TOOLS, None) => {
                super::check(row, &arguments)?;
                let (all, _) = self.host.answer(row, arguments.clone()).await?;
                Host::found(all, &arguments).map(result)
            }
            (rows::DESCRIBE_TOOL, Some(tools)) => {
                let mut fields = Fields::new(arguments);
                let (id, level) = (fields.text("id")?, fields.maybe_text("level")?);
                fields.end()?;
                tools.show(id, level).await.map(result)
            }
            (rows::CALL_TOOL, Some(tools)) => {
                let mut fields = Fields::new(arguments);
                let call = Call {
                    tool: fields.text("tool_id")?,
                    adapter: fields.maybe_text("adapter_id")?,
                    operation: fields.maybe_text("operation")?,
                    params: fields.object("params")?,
                };
                fields.end()?;
                tools.call(call).await.map(called)
            }
            (rows::CALL_TOOL, None) => {
                let mut arguments = arguments;
                arguments.entry("params").or_insert_with(|| json!({}));
                self.host.answer(row, arguments).await.map(|(value, _)| called(value))
            }
            _ => {
                let (value, is_well) = self.host.answer(row, arguments).await?;
                let text = row.text.and_then(|member| value[member].as_str()).map(str::to_owned);
                let mut result = result(value);
                if let Some(text) = text {
                    // As it is, for those that read only this.
                    result.content = vec![ContentBlock::text(text)];
                }
                result.is_error = Some(!is_well);
                Ok(result)
            }
        }
    }

    async fn read(&self, uri: &str) -> Result<ResourceContents, Refused> {
        let unknown = || {
            let hint = Some("actum://runs/{run}, and below it /diff, /log and /verification");
            Refused::named(error::NOT_FOUND, "there is no such resource", &Value::Null, hint)
        };
        let (route, given, mime) = resource::find(uri).ok_or_else(unknown)?;
        if !self.host.commands.may(route.need) {
            return Err(Refused::named(error::FORBIDDEN, "you may not read this", &Value::Null, None));
        }
        let is_text = given.wants_text;
        let answer = self.host.look(route, given).await?;
        let text = match (is_text, answer.status < 400) {
            (true, true) => text_of("text", &answer.body)["text"].as_str().unwrap_or_default().to_owned(),
            _ => value_of(answer)?.to_string(),
        };
        Ok(ResourceContents::text(text, uri).with_mime_type(mime))
    }
}

/// What a call came to stands in its result; a client that reads only this has to see it too.
fn called(value: Value) -> CallToolResult {
    let is_bad = value["status"].as_str().is_some_and(|status| status != "success");
    let mut result = result(value);
    result.is_error = Some(is_bad);
    result
}

impl ServerHandler for Speaker {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().enable_resources().build())
            .with_server_info(Implementation::new("actum", env!("CARGO_PKG_VERSION")).with_title("Actum"))
            .with_instructions(INSTRUCTIONS)
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        rows::named(name).map(|(_, tool)| tool.clone())
    }

    async fn list_tools(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let may = |(row, _): &(&Row, &Tool)| self.host.commands.may(row.need());
        let tools = ROWS.iter().zip(TOOLS.iter()).filter(may).map(|(_, tool)| tool.clone()).collect();
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some((row, _)) = rows::named(&request.name) else {
            let name: String = request.name.chars().take(60).collect();
            return Err(ErrorData::invalid_params(format!("there is no tool `{name}`"), None));
        };
        let token = context.ct.clone();
        let under_way = &self.host.shared.under_way;
        let _listed = under_way.enter(&self.host.whose.token, context.id.clone(), move || token.cancel());
        let listener = Listener { token: context.meta.get_progress_token(), peer: context.peer.clone() };
        let answer = tokio::select! {
            answer = self.answer(row, request.arguments.unwrap_or_default(), listener) => answer,
            // Its caller does not wait any more.
            () = context.ct.cancelled() => Err(cancelled()),
        };
        Ok(answer.unwrap_or_else(refusal).into())
    }

    async fn list_resources(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Ok(ListResourcesResult::with_all_items(Vec::new()))
    }

    async fn list_resource_templates(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(resource::templates()))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let read = tokio::select! {
            read = self.read(&request.uri) => read,
            () = context.ct.cancelled() => Err(bad("the caller cancelled it")),
        };
        let contents = read.map_err(|refused| {
            let message = refused.body["error"]["message"].as_str().unwrap_or("it cannot be read").to_owned();
            match refused.status {
                404 => ErrorData::resource_not_found(message, Some(refused.body)),
                _ => ErrorData::invalid_params(message, Some(refused.body)),
            }
        })?;
        Ok(ReadResourceResult::new(vec![contents]).into())
    }
}
