//! What a call may use: what was granted, made narrower by the adapter. Where an adapter asks for more, somebody has to
//! have agreed to it for that very version.

use super::{DataAccess, Entry, Override};
use crate::execution::{FilesystemLevel, Host, NetworkLevel, Sandbox, Verdict, allows};

/// A sandbox, and in what the adapter asks for more than was granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Narrowed {
    pub sandbox: Sandbox,
    pub widened: Vec<String>,
}

/// `granted`: limits of the caller, that is of a contract or a run, by name; what neither states nor the tool's scope does is
/// the table's own default, and the adapter may choose within the table.
pub fn narrow(entry: &Entry, granted: &[(&str, u64)], wanted: &Override, agreed_to_more: bool) -> Narrowed {
    let mut sandbox = Sandbox::default();
    let mut widened = Vec::new();
    let scope = &entry.scope;
    for (name, field) in fields(&mut sandbox) {
        let of_caller = granted.iter().find(|(known, _)| *known == name).map(|(_, amount)| *amount);
        let ceiling = [of_caller, scope.limits.get(name).copied()].into_iter().flatten().min();
        *field = match (ceiling, wanted.limits.get(name).copied()) {
            (None, None) => *field,
            (None, Some(amount)) => amount,
            (Some(ceiling), None) => scope.limits.get(name).copied().unwrap_or(*field).min(ceiling),
            (Some(ceiling), Some(amount)) if amount <= ceiling => amount,
            (Some(ceiling), Some(amount)) => {
                widened.push(format!("{name} {amount} (granted: {ceiling})"));
                if agreed_to_more { amount } else { ceiling }
            }
        };
    }
    let of_scope = if scope.network { scope.endpoints.clone() } else { Vec::new() };
    sandbox.network.allow = match &wanted.network {
        None => of_scope,
        Some(network) if !network.enabled => Vec::new(),
        Some(network) => {
            let (within, beyond): (Vec<Host>, Vec<Host>) =
                network.allow.iter().cloned().partition(|host| of_scope.iter().any(|granted| covers(granted, host)));
            widened.extend(beyond.iter().map(|host| format!("network {host}")));
            match (network.allow.is_empty(), agreed_to_more) {
                // On, without saying whom: whom the tool may reach.
                (true, _) if scope.network => of_scope,
                (true, agreed) => {
                    widened.push("network on".into());
                    if agreed { scope.endpoints.clone() } else { Vec::new() }
                }
                (false, true) => within.into_iter().chain(beyond).collect(),
                (false, false) => within,
            }
        }
    };
    sandbox.network.level = match (scope.open && scope.network, sandbox.network.allow.is_empty()) {
        (true, _) if wanted.network.as_ref().is_none_or(|network| network.enabled) => NetworkLevel::Open,
        (_, true) => NetworkLevel::Offline,
        (_, false) => NetworkLevel::Api,
    };
    sandbox.filesystem.level = match (scope.elevated, scope.data_access) {
        (true, _) => FilesystemLevel::Elevated,
        (_, DataAccess::Write) => FilesystemLevel::Standard,
        _ => FilesystemLevel::Minimal,
    };
    Narrowed { sandbox, widened }
}

fn fields(sandbox: &mut Sandbox) -> [(&'static str, &mut u64); 5] {
    [
        ("timeout_ms", &mut sandbox.timeout_ms),
        ("memory_mb", &mut sandbox.memory_mb),
        ("cpu_cores", &mut sandbox.cpu_cores),
        ("disk_mb", &mut sandbox.disk_mb),
        ("max_children", &mut sandbox.max_children),
    ]
}

/// Whether everything one entry of a list stands for is within another.
fn covers(granted: &Host, wanted: &Host) -> bool {
    if granted == wanted || granted.is_any() {
        return true;
    }
    let text = wanted.to_string();
    // `*.name` is within itself only, or within a wider one.
    let name = text.strip_prefix("*.").map_or(text.clone(), |below| format!("x.{below}"));
    let bare = match name.rsplit_once(':') {
        Some((bare, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !bare.contains(':') => bare.to_owned(),
        _ => name,
    };
    let fits = |port: u16| allows(std::slice::from_ref(granted), &[], &bare, Some(port)) == Verdict::Allowed;
    let is_exact = text.strip_prefix("*.").is_none() || granted.to_string().starts_with("*.");
    is_exact && wanted.ports().into_iter().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::{NetworkOverride, tests::entry};
    use std::collections::BTreeMap;

    fn host(text: &str) -> Host {
        Host::parse(text).unwrap()
    }

    fn limits(of: &[(&str, u64)]) -> BTreeMap<String, u64> {
        of.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect()
    }

    #[test]
    fn limits_are_chosen_within_what_was_granted() {
        let mut tool = entry();
        let wanted = Override { limits: limits(&[("timeout_ms", 60_000), ("memory_mb", 256)]), network: None };
        let free = narrow(&tool, &[], &wanted, false);
        assert_eq!((free.sandbox.timeout_ms, free.sandbox.memory_mb, free.widened.len()), (60_000, 256, 0));
        let bound = narrow(&tool, &[("timeout_ms", 30_000)], &wanted, false);
        assert_eq!((bound.sandbox.timeout_ms, bound.widened.len()), (30_000, 1));
        assert_eq!(narrow(&tool, &[("timeout_ms", 30_000)], &wanted, true).sandbox.timeout_ms, 60_000);
        tool.scope.limits = limits(&[("timeout_ms", 5_000)]);
        let scoped = narrow(&tool, &[("timeout_ms", 30_000)], &Override::default(), false);
        assert_eq!(scoped.sandbox.timeout_ms, 5_000);
        tool.scope.limits = limits(&[("timeout_ms", 90_000)]);
        assert_eq!(narrow(&tool, &[], &Override::default(), false).sandbox.timeout_ms, 90_000);
    }

    #[test]
    fn the_network_is_what_the_scope_names_and_no_more() {
        let mut tool = entry();
        let on = |allow: &[&str]| Override {
            network: Some(NetworkOverride { enabled: true, allow: allow.iter().map(|text| host(text)).collect() }),
            ..Override::default()
        };
        let closed = narrow(&tool, &[], &on(&["a.example"]), false);
        assert_eq!((closed.sandbox.network.level, closed.widened.len()), (NetworkLevel::Offline, 1));
        tool.scope.network = true;
        tool.scope.endpoints = vec![host("*.example"), host("b.test:8080")];
        for (wanted, within) in [
            ("a.example", true),
            ("*.a.example", true),
            ("example", false),
            ("b.test", false),
            ("b.test:8080", true),
            ("*", false),
        ] {
            let found = narrow(&tool, &[], &on(&[wanted]), false);
            assert_eq!(found.widened.is_empty(), within, "{wanted}");
            assert_eq!(found.sandbox.network.level == NetworkLevel::Api, within, "{wanted}");
        }
        let off = Override { network: Some(NetworkOverride::default()), ..Override::default() };
        assert_eq!(narrow(&tool, &[], &off, false).sandbox.network.level, NetworkLevel::Offline);
        assert_eq!(narrow(&tool, &[], &Override::default(), false).sandbox.network.allow.len(), 2);
    }
}
