//! Named places where a test may stop the process for good. Compiled to nothing in release builds.

/// Every place, in the order in which an append and the upkeep pass them.
pub const POINTS: &[&str] = &[
    "migrate.applied",
    "append.begun",
    "append.inserted",
    "append.written",
    "append.committed",
    "checkpoint.written",
    "rebuild.compared",
    "rebuild.replaced",
];

#[cfg(debug_assertions)]
type Hook = Box<dyn Fn(&str) + Send + Sync>;

#[cfg(debug_assertions)]
static HOOK: std::sync::OnceLock<Hook> = std::sync::OnceLock::new();

/// Calls `hook` with the name of every place that is passed from now on. The first hook stays.
#[cfg(debug_assertions)]
pub fn arm(hook: Hook) {
    let _ = HOOK.set(hook);
}

pub(crate) fn point(name: &str) {
    debug_assert!(POINTS.contains(&name), "{name} is not in the list");
    #[cfg(debug_assertions)]
    if let Some(hook) = HOOK.get() {
        hook(name);
    }
}
