//! What can be read of a run as a resource, by its address: `actum://runs/{run}` and what lies below. Nothing is listed:
//! addresses are made from the ids of runs. Called by `offer::speak`.

use actum_api::route::{Method, ROUTES, Route};
use rmcp::model::ResourceTemplate;

use crate::api::Given;

const SCHEME: &str = "actum://runs/";
const JSON: &str = "application/json";
const TEXT: &str = "text/plain";

struct Kind {
    /// Below the run.
    path: &'static str,
    name: &'static str,
    description: &'static str,
    route: &'static str,
    mime: &'static str,
}

const KINDS: [Kind; 4] = [
    Kind { path: "", name: "run", description: "Everything about one run", route: "/v1/runs/{run}", mime: JSON },
    Kind {
        path: "/diff",
        name: "diff",
        description: "What a run changed, as a patch",
        route: "/v1/runs/{run}/diff",
        mime: "text/x-diff",
    },
    Kind { path: "/log", name: "log", description: "What a run put out", route: "/v1/runs/{run}/logs", mime: TEXT },
    Kind {
        path: "/verification",
        name: "verification",
        description: "Whether the receipt of a run holds, check by check",
        route: "/v1/receipts/{receipt}/verification",
        mime: JSON,
    },
];

pub(super) fn templates() -> Vec<ResourceTemplate> {
    let template = |kind: &Kind| {
        ResourceTemplate::new(format!("{SCHEME}{{run}}{}", kind.path), kind.name)
            .with_description(kind.description)
            .with_mime_type(kind.mime)
    };
    KINDS.iter().map(template).collect()
}

/// The route behind an address, what it is given, and the type of what comes out.
pub(super) fn find(uri: &str) -> Option<(&'static Route, Given, &'static str)> {
    let rest = uri.strip_prefix(SCHEME)?;
    let (run, below) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if run.is_empty() || !run.bytes().all(is_plain) {
        return None;
    }
    let kind = KINDS.iter().find(|kind| kind.path == below)?;
    let route = ROUTES.iter().find(|route| route.method == Method::Get && route.path == kind.route)?;
    let path = route.path_names().map(|name| (name.to_owned(), run.to_owned())).collect();
    Some((route, Given { path, wants_text: kind.mime != JSON, ..Given::default() }, kind.mime))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_template_leads_to_its_route_and_nothing_else_does() {
        for template in templates() {
            let uri = template.uri_template.replace("{run}", "01a1-x");
            let (route, given, mime) = find(&uri).unwrap();
            assert_eq!(given.path.values().collect::<Vec<_>>(), ["01a1-x"]);
            assert_eq!((given.wants_text, template.mime_type.as_deref()), (mime != JSON, Some(mime)));
            assert_eq!(route.method, Method::Get);
        }
        for uri in [
            "",
            "actum://runs/",
            "actum://runs//diff",
            "actum://runs/a/b",
            "actum://runs/a/diff/",
            "file:///x",
            "actum://runs/a%2Fb",
            "actum://runs/../x",
            "ACTUM://runs/a",
        ] {
            assert!(find(uri).is_none(), "{uri}");
        }
    }
}
