//! Fallbacks from adapter to adapter: each is known, calls the same tool, and the way ends.

use super::Adapter;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadChain {
    #[error("{from} falls back on {to}, which is not registered")]
    Unknown { from: String, to: String },
    #[error("{from} falls back on {to}, which calls another tool")]
    OtherTool { from: String, to: String },
    #[error("fallbacks go round in a circle: {0}")]
    Loop(String),
}

/// The adapters in the order in which they are tried, beginning with `first`.
pub fn check_chain(first: &Adapter, find: &dyn Fn(&str) -> Option<Adapter>) -> Result<Vec<Adapter>, BadChain> {
    let mut chain = vec![first.clone()];
    while let Some((from, fallback)) =
        chain.last().and_then(|last| Some((last.adapter_id.clone(), last.fallback.clone()?)))
    {
        let to = fallback.adapter_id;
        if chain.iter().any(|seen| seen.adapter_id == to) {
            let way: Vec<&str> = chain.iter().map(|one| one.adapter_id.as_str()).chain([to.as_str()]).collect();
            return Err(BadChain::Loop(way.join(" → ")));
        }
        let next = find(&to).ok_or_else(|| BadChain::Unknown { from: from.clone(), to: to.clone() })?;
        if next.tool_id != first.tool_id {
            return Err(BadChain::OtherTool { from, to });
        }
        chain.push(next);
    }
    Ok(chain)
}
