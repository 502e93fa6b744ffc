//! Whom a call may reach: the rules of a cell's way out, applied to our own connections. A name is judged, then every address
//! it stands for; the client that is handed out knows no other address.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use actum_contract::execution::{AddressKind, Host, Network, NetworkLevel, Verdict, allows, kind_of};
use reqwest::Url;
use serde_json::{Value, json};
use tokio::time::timeout;

const LOOK_UP_WITHIN: Duration = Duration::from_secs(10);

/// For encrypted connections only.
const HTTPS_PORT: u16 = 443;

/// What was decided about one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub host: String,
    pub port: u16,
    /// Who was dialled, or would have been.
    pub address: Option<IpAddr>,
    pub allowed: bool,
    pub code: &'static str,
    pub why: String,
}

impl Decision {
    pub fn to_value(&self) -> Value {
        json!({
            "host": self.host, "port": self.port, "address": self.address.map(|address| address.to_string()),
            "allowed": self.allowed, "code": self.code, "why": self.why,
        })
    }
}

/// Where an address of the web leads.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) host: String,
    pub(super) port: u16,
    is_plain: bool,
}

impl Place {
    /// Nothing if it is no address of HTTP, or one with a user in it.
    pub(super) fn of(url: &Url) -> Option<Self> {
        let has_user = !url.username().is_empty() || url.password().is_some();
        let host = url.host_str().filter(|_| ["http", "https"].contains(&url.scheme()) && !has_user)?;
        let host = host.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(host);
        Some(Self { host: host.to_owned(), port: url.port_or_known_default()?, is_plain: url.scheme() == "http" })
    }
}

/// The addresses that may be dialled, or why there are none; and the address that is to blame, if one is. `hosts`: names, with
/// a port or for all of them, whose address the user has said; `are_listed`: whether that lists these addresses too.
pub(super) async fn judge(
    network: &Network,
    (hosts, are_listed): (&BTreeMap<String, IpAddr>, bool),
    place: &Place,
) -> Result<Vec<SocketAddr>, (Verdict, Option<IpAddr>)> {
    let allow: Vec<Host> = match network.level {
        NetworkLevel::Offline => Vec::new(),
        // Everybody is listed only where that was agreed to.
        level => network.allow.iter().filter(|host| !host.is_any() || level == NetworkLevel::Open).cloned().collect(),
    };
    let literal = place.host.parse::<IpAddr>().ok().map(|address| address.to_canonical());
    let name = literal.map_or_else(|| place.host.trim_end_matches('.').to_ascii_lowercase(), |own| own.to_string());
    let verdict = match network.level {
        NetworkLevel::Open => {
            let any: Vec<Host> = Host::parse("*").into_iter().collect();
            allows(&any, &network.deny, &name, Some(place.port))
        }
        _ => allows(&allow, &network.deny, &name, Some(place.port)),
    };
    if let blocked @ Verdict::Blocked { .. } = verdict {
        return Err((literal.and_then(|own| because_private(network, &blocked, own)).unwrap_or(blocked), literal));
    }
    if place.is_plain && place.port == HTTPS_PORT {
        let why = format!("port {HTTPS_PORT} is for encrypted connections only");
        return Err((Verdict::blocked("ssrf_block.no_name", why), literal));
    }
    let said = hosts.get(&format!("{name}:{}", place.port)).or_else(|| hosts.get(&name)).copied();
    let said = said.filter(|_| literal.is_none());
    let found: Vec<IpAddr> = match (literal, said) {
        (Some(address), _) | (None, Some(address)) => vec![address],
        (None, None) => look_up(&name, place.port).await.map_err(|blocked| (blocked, None))?,
    };
    let mut refused = (Verdict::blocked("ssrf_block.dns_resolution_failed", format!("{name} has no address")), None);
    let mut good = Vec::new();
    for address in found {
        // What the user has said himself needs not be listed again, where he is the one who asks.
        match judge_address(&allow, &network.deny, &name, address, place.port, said.is_some() && are_listed) {
            Verdict::Allowed => good.push(SocketAddr::new(address, place.port)),
            blocked => refused = (blocked, Some(address)),
        }
    }
    if good.is_empty() { Err(refused) } else { Ok(good) }
}

/// Of an address that nobody has listed or denied it says more that it is not everybody's.
fn because_private(network: &Network, blocked: &Verdict, address: IpAddr) -> Option<Verdict> {
    let is_denied = allows(&network.deny, &[], &address.to_string(), None) == Verdict::Allowed;
    (blocked.code() == "ssrf_block.host_not_allowed" && !is_denied).then(|| of_kind(&address.to_string(), address))?
}

/// Why an address is not everybody's; nothing if it is.
fn of_kind(name: &str, address: IpAddr) -> Option<Verdict> {
    match kind_of(address) {
        AddressKind::Public => None,
        AddressKind::Metadata => Some(Verdict::blocked("ssrf_block.metadata_endpoint", format!("{name} is {address}"))),
        AddressKind::Private => Some(Verdict::blocked("ssrf_block.private_address", format!("{name} is {address}"))),
    }
}

async fn look_up(name: &str, port: u16) -> Result<Vec<IpAddr>, Verdict> {
    let failed = |why: String| Verdict::blocked("ssrf_block.dns_resolution_failed", why);
    let asked = timeout(LOOK_UP_WITHIN, tokio::net::lookup_host((name, port))).await;
    let found = asked.map_err(|_| failed(format!("no answer for {name}")))?;
    Ok(found.map_err(|e| failed(format!("{name}: {e}")))?.map(|found| found.ip().to_canonical()).collect())
}

fn judge_address(
    allow: &[Host],
    deny: &[Host],
    name: &str,
    address: IpAddr,
    port: u16,
    is_said_by_user: bool,
) -> Verdict {
    let text = address.to_string();
    if allows(deny, &[], &text, None) == Verdict::Allowed {
        return Verdict::blocked("ssrf_block.host_not_allowed", format!("{name} is {address}, which is denied"));
    }
    let listed: Vec<Host> = allow.iter().filter(|host| !host.is_any()).cloned().collect();
    let is_listed = is_said_by_user || allows(&listed, deny, &text, Some(port)) == Verdict::Allowed;
    of_kind(name, address).filter(|_| !is_listed).unwrap_or(Verdict::Allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(level: NetworkLevel, allow: &[&str], deny: &[&str], url: &str) -> Result<IpAddr, &'static str> {
        judged_for(true, level, allow, deny, url)
    }

    fn judged_for(
        are_listed: bool,
        level: NetworkLevel,
        allow: &[&str],
        deny: &[&str],
        url: &str,
    ) -> Result<IpAddr, &'static str> {
        let of = |texts: &[&str]| texts.iter().map(|text| Host::parse(text).unwrap()).collect();
        let network = Network { level, allow: of(allow), deny: of(deny) };
        let hosts = [("said.test", "127.0.0.1"), ("said.test:8081", "127.0.0.2"), ("far.test", "8.8.8.8")];
        let hosts = hosts.map(|(name, address)| (name.to_owned(), address.parse().unwrap())).into();
        let place = Place::of(&Url::parse(url).unwrap()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let found = runtime.block_on(judge(&network, (&hosts, are_listed), &place));
        found.map(|all| all[0].ip()).map_err(|(verdict, _)| verdict.code())
    }

    #[test]
    fn names_and_addresses_are_judged_as_for_a_cell() {
        let api = |allow: &[&str], url: &str| judged(NetworkLevel::Api, allow, &[], url);
        assert_eq!(api(&["said.test"], "http://said.test/").unwrap().to_string(), "127.0.0.1");
        assert_eq!(api(&["said.test"], "http://said.test:81/"), Err("ssrf_block.port_not_allowed"));
        assert_eq!(api(&["said.test"], "http://said.test:443/"), Err("ssrf_block.no_name"));
        assert_eq!(api(&["other.test"], "http://said.test/"), Err("ssrf_block.host_not_allowed"));
        assert_eq!(api(&["*"], "http://said.test/"), Err("ssrf_block.host_not_allowed"), "not without the level open");
        assert_eq!(api(&["localhost"], "http://localhost/"), Err("ssrf_block.private_address"));
        assert!(api(&["localhost", "127.0.0.1", "::1"], "http://localhost/").is_ok());
        assert!(api(&["8.8.8.8"], "http://8.8.8.8/").is_ok());
        for (url, code) in [
            ("http://127.0.0.1/", "ssrf_block.private_address"),
            ("http://2130706433/", "ssrf_block.private_address"),
            ("http://0x7f.1/", "ssrf_block.private_address"),
            ("http://[::1]/", "ssrf_block.private_address"),
            ("http://[::ffff:127.0.0.1]/", "ssrf_block.private_address"),
            ("http://169.254.169.254/", "ssrf_block.metadata_endpoint"),
            ("http://[::ffff:a9fe:a9fe]/", "ssrf_block.metadata_endpoint"),
        ] {
            assert_eq!(judged(NetworkLevel::Open, &["*"], &[], url), Err(code), "{url}");
            assert_eq!(api(&["8.8.8.8"], url), Err(code), "{url}");
        }
        assert!(judged(NetworkLevel::Open, &[], &[], "http://8.8.8.8/").is_ok());
        assert_eq!(api(&["127.0.0.1:8080"], "http://127.0.0.1/"), Err("ssrf_block.port_not_allowed"));
        assert_eq!(api(&["127.0.0.1"], "http://8.8.8.8/"), Err("ssrf_block.host_not_allowed"));
        assert_eq!(
            judged(NetworkLevel::Offline, &["8.8.8.8"], &[], "http://8.8.8.8/"),
            Err("ssrf_block.host_not_allowed")
        );
        let denied = judged(NetworkLevel::Open, &["said.test"], &["127.0.0.1"], "http://said.test/");
        assert_eq!(denied, Err("ssrf_block.host_not_allowed"));
    }

    #[test]
    fn what_the_user_has_said_of_names_lists_nothing_for_others() {
        let open = |allow: &[&str], url: &str| judged_for(false, NetworkLevel::Open, allow, &[], url);
        assert!(judged(NetworkLevel::Open, &[], &[], "http://said.test:8080/").is_ok());
        assert_eq!(open(&[], "http://said.test:8080/"), Err("ssrf_block.private_address"));
        assert_eq!(open(&["127.0.0.1:9"], "http://said.test:8080/"), Err("ssrf_block.private_address"));
        assert_eq!(open(&["127.0.0.1:8080"], "http://said.test:8080/").unwrap().to_string(), "127.0.0.1");
        assert_eq!(open(&["127.0.0.2:8081"], "http://said.test:8081/").unwrap().to_string(), "127.0.0.2");
        assert_eq!(open(&[], "http://far.test/").unwrap().to_string(), "8.8.8.8");
    }

    #[test]
    fn only_plain_addresses_of_the_web() {
        for url in ["ftp://a.test/", "file:///etc/passwd", "http://user@a.test/", "http://u:p@a.test/", "data:x"] {
            assert!(Place::of(&Url::parse(url).unwrap()).is_none(), "{url}");
        }
    }
}
