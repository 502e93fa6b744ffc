//! Named places where a test may stop the process for good. Each crate that writes state lists its own; this is the
//! one hook behind all of them. Compiled to nothing in release builds.

#[cfg(debug_assertions)]
type Hook = Box<dyn Fn(&str) + Send + Sync>;

#[cfg(debug_assertions)]
static HOOK: std::sync::OnceLock<Hook> = std::sync::OnceLock::new();

/// Calls `hook` with the name of every place that is passed from now on. The first hook stays.
#[cfg(debug_assertions)]
pub fn arm(hook: Hook) {
    let _ = HOOK.set(hook);
}

/// Passes the place `name`, which stands in the list `places`.
pub fn pass(places: &[&str], name: &str) {
    debug_assert!(places.contains(&name), "{name} is not in the list");
    #[cfg(debug_assertions)]
    if let Some(hook) = HOOK.get() {
        hook(name);
    }
}
