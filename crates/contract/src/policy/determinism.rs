//! Determinism policy: where the value of a config field comes from, given who set it.

use crate::resolve::Source;

/// What is known about one field before it is resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Given {
    /// A contract is persisted for the run.
    pub persisted: bool,
    /// The request sets this field.
    pub explicit: bool,
    /// Who named a profile.
    pub profile: Named,
    /// That profile's preset sets this field.
    pub preset: bool,
    /// The field's environment variable is set.
    pub env: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named {
    Nobody,
    Request,
    Environment,
}

/// A request goes over everything. A profile named by the request starts afresh from its preset. Otherwise a
/// persisted contract holds. The environment fills what is left, and only while nothing is persisted; within it a
/// variable for the field goes over the preset of a profile that only the environment named.
pub fn source(given: Given) -> Source {
    let Given { persisted, explicit, profile, preset, env } = given;
    let env = env && !persisted;
    match profile {
        _ if explicit => Source::Explicit,
        Named::Request if preset => Source::Preset,
        Named::Nobody | Named::Environment if persisted => Source::Persisted,
        _ if env => Source::Env,
        Named::Environment if preset => Source::Preset,
        _ => Source::Default,
    }
}
