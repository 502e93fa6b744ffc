//! `actum usage`: the storage that a tenant uses, and its quota.

use std::sync::Arc;

use clap::Args;
use serde_json::json;

use super::Ended;
use super::snapshot::size;
use crate::args::Global;
use crate::project::Project;
use crate::quota::{StorageQuotas, StorageUse};
use crate::run::Open;
use crate::ui::Out;

#[derive(Debug, Args)]
pub(crate) struct Usage {}

impl Usage {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let open = Open::new(Project::find(global)?, out)?;
        let config = open.project.config()?;
        let root = open.project.root().to_owned();
        let quotas = StorageQuotas::new(Arc::clone(&open.store), open.waiter.clone(), root);
        let tenant = quotas.of_tenant(&open.tenant, config.server.tenant_storage_bytes)?;
        let token = open.project.token().map(|token| quotas.of_token(token, config.server.token_storage_bytes));
        let shown = |found: &StorageUse| json!({"used_bytes": found.used_bytes, "quota_bytes": found.quota_bytes});
        out.result(&json!({"tenant": shown(&tenant), "token": token.as_ref().map(shown)}), || {
            let line = |whose: &str, found: &StorageUse| {
                let quota =
                    found.quota_bytes.map_or_else(|| "no quota".to_owned(), |quota| format!("of {}", size(quota)));
                format!("{whose} {} {quota}", size(found.used_bytes))
            };
            let lines = [Some(line("tenant", &tenant)), token.as_ref().map(|token| line("token", token))];
            lines.into_iter().flatten().collect::<Vec<_>>().join("\n")
        });
        Ok(0)
    }
}
