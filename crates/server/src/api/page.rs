//! The page at `/`: what can be asked, one line for each route of the OpenAPI document. Plain HTML; asks nobody else for
//! anything, and runs nothing.

use std::fmt::Write as _;

use axum::http::header;
use serde_json::{Map, Value};

use super::answer::Reply;

/// Nothing from anywhere, but the few lines of style in the page itself.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const METHODS: [&str; 3] = ["get", "post", "delete"];

pub(crate) fn page(openapi: &[u8]) -> Reply {
    let document: Value = serde_json::from_slice(openapi).unwrap_or_default();
    let title = document["info"]["title"].as_str().unwrap_or("Actum");
    let version = document["info"]["version"].as_str().unwrap_or_default();
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n\
         <style>body{{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}}\
         td{{padding:.1rem .8rem .1rem 0;vertical-align:top}}code{{font-size:.95em}}</style></head>\n\
         <body><h1>{title} {version}</h1>\n\
         <p>Send <code>Authorization: Bearer TOKEN</code>. The whole of it is in <a href=\"/openapi.json\">openapi.json</a>; \
         <a href=\"/docs\">try it</a>.</p>\n\
         <table>\n",
        title = escape(title),
        version = escape(version),
    );
    for (path, item) in document["paths"].as_object().unwrap_or(&Map::new()) {
        for method in METHODS {
            let Some(operation) = item.get(method) else { continue };
            let summary = operation["summary"].as_str().unwrap_or_default();
            let (method, path, summary) = (method.to_uppercase(), escape(path), escape(summary));
            // Writing to a text never fails.
            let _ =
                writeln!(html, "<tr><td><code>{method}</code></td><td><code>{path}</code></td><td>{summary}</td></tr>");
        }
    }
    html.push_str("</table></body></html>\n");
    Reply::new("text/html; charset=utf-8", html)
        .with(header::CONTENT_SECURITY_POLICY, POLICY)
        .with(header::REFERRER_POLICY, "no-referrer")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_route_has_its_line_and_nothing_is_markup() {
        let document = json!({"info": {"title": "Actum", "version": "1<2"}, "paths": {
            "/v1/runs": {"get": {"summary": "list <runs> & \"more\""}, "post": {}, "parameters": []},
        }});
        let reply = page(document.to_string().as_bytes());
        let html = str::from_utf8(&reply.body).unwrap();
        assert!(html.contains("1&lt;2"));
        assert!(html.contains(
            "<code>GET</code></td><td><code>/v1/runs</code></td><td>list &lt;runs&gt; &amp; &quot;more&quot;"
        ));
        assert_eq!(html.matches("<tr>").count(), 2);
        assert!(page(b"not JSON").body.ends_with(b"</html>\n"));
    }
}
