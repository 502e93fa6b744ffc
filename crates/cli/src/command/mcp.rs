//! `actum mcp`: the registered tools of the project as an MCP server on stdin and stdout.

use std::sync::Arc;

use actum_api::error;
use clap::Args;

use super::Ended;
use crate::args::Global;
use crate::failure::Failure;
use crate::project::Project;
use crate::run::shop::Open;
use crate::tool::bridge::Desk;
use crate::ui::Out;
use crate::workspace::new_id;

#[derive(Debug, Args)]
pub(crate) struct Mcp {
    /// Only these tools; all that are registered if none is named
    #[arg(long = "tool", value_name = "ID")]
    tools: Vec<String>,
}

impl Mcp {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let open = Open::new(Project::find(global)?, out)?;
        let mut setting = super::exec::setting(&open, None)?;
        // Whoever speaks to it is one session, as long as he does.
        setting.session = Some(new_id());
        setting.tools = (!self.tools.is_empty()).then_some(self.tools);
        let desk = Desk::new(Some(setting), None);
        actum_server::serve_stdio(Arc::new(desk))
            .map_err(|e| Failure::new(error::INTERNAL, format!("the conversation broke off: {e}")))?;
        Ok(0)
    }
}
