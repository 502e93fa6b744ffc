//! The door: by which name we are asked, and by which token. Looks nothing up.

use actum_api::error;
use axum::http::{HeaderMap, Uri, header};
use serde_json::Value;

use crate::bridge::Refused;

/// A token as it stands in a header.
const TOKEN_BYTES_MAX: usize = 512;

/// The names by which we may be asked.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    /// None: any.
    hosts: Option<Vec<String>>,
}

impl Names {
    /// Who listens on loopback only is reached by a browser too, under whatever name a page made to point there.
    pub(crate) fn new(hosts: Vec<String>, is_loopback: bool) -> Self {
        Self { hosts: (is_loopback || !hosts.is_empty()).then_some(hosts) }
    }

    pub(crate) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Refused> {
        if self.are_ours(uri, headers) {
            return Ok(());
        }
        let message = "this address is not served under that name";
        let hint = Some("Names beside 127.0.0.1 and localhost have to be allowed when the server is started.");
        Err(Refused::named(error::FORBIDDEN, message, &Value::Null, hint))
    }

    fn are_ours(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        let mut hosts = headers.get_all(header::HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
        let Ok(host) = host.to_str() else { return false };
        // A target that says another host than the header is meant for one of two readers.
        let is_one = uri.authority().is_none_or(|authority| authority.as_str().eq_ignore_ascii_case(host));
        let origin_is_ours = headers.get_all(header::ORIGIN).iter().all(|origin| {
            let origin = origin.to_str().unwrap_or_default();
            let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
            authority.is_some_and(|authority| self.is_same_site(authority, host))
        });
        is_one && self.is_ours(host) && origin_is_ours
    }

    fn is_ours(&self, authority: &str) -> bool {
        name_in(authority).is_some_and(|name| match &self.hosts {
            None => true,
            Some(hosts) => is_loopback(name) || hosts.iter().any(|host| host.eq_ignore_ascii_case(name)),
        })
    }

    /// A page of our own, or of a site that is named as ours. Where every name is taken only the page itself is left.
    fn is_same_site(&self, authority: &str, host: &str) -> bool {
        match self.hosts {
            None => name_in(authority).is_some() && authority.eq_ignore_ascii_case(host),
            Some(_) => self.is_ours(authority),
        }
    }
}

fn is_loopback(name: &str) -> bool {
    name == "127.0.0.1" || name == "[::1]" || name.eq_ignore_ascii_case("localhost")
}

/// The host of an authority, without its port. None if it is not one.
fn name_in(authority: &str) -> Option<&str> {
    let end = match authority.starts_with('[') {
        true => authority.find(']')? + 1,
        false => authority.find(':').unwrap_or(authority.len()),
    };
    let (name, port) = authority.split_at(end);
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._[:]".contains(&byte);
    let is_port = port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    (!name.is_empty() && name.bytes().all(is_name) && is_port).then_some(name)
}

/// The token of a request. There is one place for it: queries and cookies end up in the logs of others.
pub(crate) fn token_in(headers: &HeaderMap) -> Result<&str, Refused> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return Err(unknown()) };
    let (scheme, token) = value.to_str().ok().and_then(|text| text.split_once(' ')).ok_or_else(unknown)?;
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    let is_plain = !token.is_empty() && token.len() <= TOKEN_BYTES_MAX && token.bytes().all(is_token);
    if scheme.eq_ignore_ascii_case("bearer") && is_plain { Ok(token) } else { Err(unknown()) }
}

/// The same words whatever was wrong.
pub(crate) fn unknown() -> Refused {
    let hint = Some("Send `Authorization: Bearer TOKEN`; `actum token create` makes one.");
    Refused::named(error::UNAUTHORIZED, "invalid or revoked token", &Value::Null, hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn headers(pairs: &[(header::HeaderName, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    fn are_ours(names: &Names, host: &str, origin: Option<&str>, uri: &str) -> bool {
        let mut pairs = vec![(header::HOST, host)];
        pairs.extend(origin.map(|origin| (header::ORIGIN, origin)));
        names.check(&uri.parse().unwrap(), &headers(&pairs)).is_ok()
    }

    #[test]
    fn on_loopback_only_loopback_and_what_is_named() {
        let names = Names::new(vec!["actum.example".to_owned()], true);
        for host in ["127.0.0.1:8080", "LocalHost", "[::1]:80", "[::1]", "Actum.Example:443"] {
            assert!(are_ours(&names, host, None, "/"), "{host}");
        }
        for host in [
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost:x",
            "localhost:99999",
            "localhost:",
            "x@localhost",
            "",
            ":80",
            "[::1",
            "[::1]x",
            "::1",
            "[::2]",
            "localhost,evil.example",
            "localhost evil",
            "0.0.0.0",
            "127.1",
        ] {
            assert!(!are_ours(&names, host, None, "/"), "{host}");
        }
        assert!(are_ours(&names, "localhost", Some("http://localhost:3000"), "/"));
        assert!(are_ours(&names, "localhost", Some("https://actum.example"), "/"));
        for origin in
            ["http://evil.example", "null", "", "file://", "ftp://localhost", "localhost", "http://localhost/"]
        {
            assert!(!are_ours(&names, "localhost", Some(origin), "/"), "{origin}");
        }
        assert!(are_ours(&names, "localhost", None, "http://LOCALHOST/"));
        assert!(!are_ours(&names, "localhost", None, "http://127.0.0.1/"));
        assert!(!are_ours(&names, "localhost", None, "http://evil.example/"));
        let uri = "/".parse().unwrap();
        assert!(names.check(&uri, &headers(&[])).is_err());
        assert!(names.check(&uri, &headers(&[(header::HOST, "localhost"), (header::HOST, "localhost")])).is_err());
    }

    #[test]
    fn elsewhere_any_name_unless_some_are_named() {
        let any = Names::new(vec![], false);
        assert!(are_ours(&any, "10.0.0.7:8080", None, "/"));
        assert!(are_ours(&any, "x.example", Some("https://x.example"), "/"));
        assert!(!are_ours(&any, "x.example", Some("https://y.example"), "/"));
        assert!(!are_ours(&any, "x example", None, "/"));
        let some = Names::new(vec!["x.example".to_owned()], false);
        assert!(are_ours(&some, "x.example", None, "/") && are_ours(&some, "127.0.0.1", None, "/"));
        assert!(!are_ours(&some, "10.0.0.7:8080", None, "/"));
    }

    #[test]
    fn one_header_one_scheme_one_token() {
        let token = |values: &[&str]| {
            let pairs: Vec<_> = values.iter().map(|value| (header::AUTHORIZATION, *value)).collect();
            token_in(&headers(&pairs)).map(str::to_owned)
        };
        assert_eq!(token(&["Bearer actum_1_2"]), Ok("actum_1_2".to_owned()));
        assert_eq!(token(&["bearer a"]), Ok("a".to_owned()));
        let long = format!("Bearer {}", "a".repeat(TOKEN_BYTES_MAX + 1));
        for values in [
            &[][..],
            &["Bearer"],
            &["Bearer "],
            &["Bearer  a"],
            &["Bearer a b"],
            &["Bearer a,b"],
            &["Basic a"],
            &["a"],
            &[""],
            &["Bearer\ta"],
            &["Bearer a", "Bearer a"],
            &["Bearer a, Bearer b"],
            &["Bearer a", "Basic b"],
            &["Bearer \"a\""],
            &[long.as_str()],
        ] {
            assert_eq!(token(values), Err(unknown()), "{values:?}");
        }
    }
}
