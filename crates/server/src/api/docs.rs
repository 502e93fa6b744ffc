//! The page at `/docs`: tries every route of the OpenAPI document from a browser. Its text and its script are in the program; it
//! asks nobody but this server, keeps no token, and holds nothing that needs one.

use axum::http::header;

use super::answer::Reply;

pub(crate) const PAGE: &str = "/docs";
pub(crate) const SCRIPT: &str = "/docs.js";

const HTML: &str = include_str!("docs.html");
const JAVASCRIPT: &str = include_str!("docs.js");

/// The script of this server and what it asks of this server; nothing from anywhere else, and nothing in the page itself but style.
const POLICY: &str = "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'unsafe-inline'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

/// What is served at a path, if it is one of these.
pub(crate) fn at(path: &str) -> Option<Reply> {
    let reply = match path {
        PAGE => Reply::new("text/html; charset=utf-8", HTML),
        SCRIPT => Reply::new("text/javascript; charset=utf-8", JAVASCRIPT),
        _ => return None,
    };
    Some(reply.with(header::CONTENT_SECURITY_POLICY, POLICY).with(header::REFERRER_POLICY, "no-referrer"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_loads_nothing_from_elsewhere_and_runs_nothing_of_its_own() {
        for text in [HTML, JAVASCRIPT] {
            for word in
                ["http://", "https://", "import ", "eval(", "innerHTML", "localStorage", "sessionStorage", "cookie"]
            {
                assert!(!text.contains(word), "{word}");
            }
        }
        let sources: Vec<_> =
            ["src=", "href=", "action=", "url("].iter().flat_map(|name| HTML.split(name).skip(1)).collect();
        let targets: Vec<_> = sources.iter().filter_map(|rest| rest.split('"').nth(1)).collect();
        assert_eq!(targets, ["/docs.js", "/openapi.json", "/"]);
        assert_eq!(HTML.matches("<script").count(), 1);
        assert!(!["onclick", "onload", "onerror", "javascript:"].iter().any(|word| HTML.contains(word)));
        let asked: Vec<_> = JAVASCRIPT.split("fetch(").skip(1).map(|rest| rest.split(',').next().unwrap()).collect();
        assert_eq!(asked, ["text ? `${target}?${text}` : target", "\"/openapi.json\""]);
        assert!(at("/docs").is_some() && at("/docs.js").is_some() && at("/docs/").is_none());
    }
}
