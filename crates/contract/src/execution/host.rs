//! Whom a cell may reach: hosts by name and port, and which addresses are nobody's business. Names are compared as the
//! resolver would read them, or not at all.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One entry of a list of hosts: `name`, `name:port`, `*.name`, an address, `[v6]:port`, or `*`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Host {
    name: Pattern,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Pattern {
    Exact(String),
    /// Everything below the name, and not the name itself.
    Below(String),
    Address(IpAddr),
    Any,
}

/// Ports that an entry without one stands for.
const USUAL_PORTS: [u16; 2] = [80, 443];

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no host: write a name, *.name or an address, with or without a port")]
pub struct BadHost(pub String);

impl Host {
    pub fn parse(text: &str) -> Result<Self, BadHost> {
        let bad = || BadHost(text.chars().take(80).collect());
        if text == "*" {
            return Ok(Self { name: Pattern::Any, port: None });
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self { name: Pattern::Address(address), port: None });
        }
        let (name, port) = match text.rsplit_once(':') {
            Some((name, port)) => (name, Some(port.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(bad)?)),
            None => (text, None),
        };
        let bare = name.strip_prefix('[').and_then(|inner| inner.strip_suffix(']'));
        if let Ok(address) = bare.unwrap_or(name).parse::<IpAddr>() {
            return Ok(Self { name: Pattern::Address(address), port });
        }
        let name = match name.strip_prefix("*.") {
            Some(below) => Pattern::Below(normal(below).ok_or_else(bad)?),
            None => Pattern::Exact(normal(name).ok_or_else(bad)?),
        };
        Ok(Self { name, port })
    }

    pub fn is_any(&self) -> bool {
        self.name == Pattern::Any
    }

    /// Whether it is the name of one host, and neither an address nor a pattern.
    pub fn is_name(&self) -> bool {
        matches!(self.name, Pattern::Exact(_))
    }

    /// Whether it is an address that is not everybody's.
    pub fn is_private(&self) -> bool {
        matches!(self.name, Pattern::Address(address) if kind_of(address) != AddressKind::Public)
    }

    /// Ports that whoever is asked by this name has to listen on.
    pub fn ports(&self) -> Vec<u16> {
        self.port.map_or_else(|| USUAL_PORTS.to_vec(), |port| vec![port])
    }

    fn covers(&self, name: &str) -> bool {
        match &self.name {
            Pattern::Any => true,
            Pattern::Exact(own) => own == name,
            Pattern::Below(above) => {
                name.strip_suffix(above.as_str()).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
            }
            Pattern::Address(own) => name.parse::<IpAddr>().is_ok_and(|address| address == *own),
        }
    }

    fn covers_port(&self, port: u16) -> bool {
        self.is_any() || self.ports().contains(&port)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Pattern::Exact(name) => write!(f, "{name}")?,
            Pattern::Below(name) => write!(f, "*.{name}")?,
            Pattern::Address(IpAddr::V6(address)) if self.port.is_some() => write!(f, "[{address}]")?,
            Pattern::Address(address) => write!(f, "{address}")?,
            Pattern::Any => write!(f, "*")?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// A name as it is compared: small letters, no dot at the end. Nothing if it is no name that every reader would read the
/// same way: other characters, empty or long labels, numbers that some take for addresses.
pub(super) fn normal(name: &str) -> Option<String> {
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let is_label = |label: &str| {
        let legal = label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_');
        (1..=63).contains(&label.len()) && legal && !label.starts_with('-') && !label.ends_with('-')
    };
    let last = name.rsplit('.').next()?;
    let is_number = last.bytes().all(|b| b.is_ascii_digit())
        || last.strip_prefix("0x").is_some_and(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
    (name.len() <= 253 && name.split('.').all(is_label) && !is_number).then_some(name)
}

/// What was decided about a connection, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Allowed,
    Blocked { code: &'static str, why: String },
}

impl Verdict {
    pub fn blocked(code: &'static str, why: impl Into<String>) -> Self {
        Self::Blocked { code, why: why.into() }
    }

    pub const fn code(&self) -> &'static str {
        match self {
            Self::Allowed => "policy_allowed.default",
            Self::Blocked { code, .. } => code,
        }
    }
}

/// Whether a name may be reached at all, and if a port is given, there. Denied goes before allowed.
pub fn allows(allow: &[Host], deny: &[Host], name: &str, port: Option<u16>) -> Verdict {
    let is_address = name.parse::<IpAddr>().is_ok();
    let Some(name) = (if is_address { Some(name.to_owned()) } else { normal(name) }) else {
        let shown: String = name.chars().take(80).collect();
        return Verdict::blocked("ssrf_block.invalid_url", format!("{shown:?} is no host name"));
    };
    let fits = |host: &&Host| host.covers(&name) && port.is_none_or(|port| host.covers_port(port));
    if let Some(host) = deny.iter().find(|host| host.covers(&name) && (host.port.is_none() || port == host.port)) {
        return Verdict::blocked("ssrf_block.host_not_allowed", format!("{name} is denied by {host}"));
    }
    if allow.iter().any(|host| fits(&host)) {
        return Verdict::Allowed;
    }
    match port.filter(|_| allow.iter().any(|host| host.covers(&name))) {
        Some(port) => Verdict::blocked("ssrf_block.port_not_allowed", format!("{name} is listed without port {port}")),
        None => Verdict::blocked("ssrf_block.host_not_allowed", format!("{name} is not listed")),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressKind {
    Public,
    /// Where clouds tell a machine its own secrets.
    Metadata,
    /// This machine, its network, or nobody.
    Private,
}

/// What an address stands for. One inside another (v4 in v6, tunnels) stands for the inner one.
pub fn kind_of(address: IpAddr) -> AddressKind {
    match address {
        IpAddr::V4(v4) => kind_of_v4(v4),
        IpAddr::V6(v6) => match inner(v6) {
            Some(v4) => match kind_of_v4(v4) {
                // Reached only through somebody's translation; nothing public needs that.
                AddressKind::Public if v6.to_ipv4_mapped().is_none() => AddressKind::Private,
                kind => kind,
            },
            None => kind_of_v6(v6),
        },
    }
}

fn kind_of_v4(address: Ipv4Addr) -> AddressKind {
    let [a, b, c, _] = address.octets();
    if address == Ipv4Addr::new(169, 254, 169, 254)
        || address == Ipv4Addr::new(169, 254, 170, 2)
        || address == Ipv4Addr::new(100, 100, 100, 200)
        || address == Ipv4Addr::new(168, 63, 129, 16)
        || address == Ipv4Addr::new(192, 0, 0, 192)
    {
        return AddressKind::Metadata;
    }
    let private = address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_broadcast()
        || address.is_documentation()
        || address.is_multicast()
        || a == 0
        || a >= 240
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        || (a == 192 && b == 88 && c == 99)
        || (a == 198 && (18..20).contains(&b));
    if private { AddressKind::Private } else { AddressKind::Public }
}

fn kind_of_v6(address: Ipv6Addr) -> AddressKind {
    let parts = address.segments();
    if address == Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x254) {
        return AddressKind::Metadata;
    }
    // Of all v6 only 2000::/3 is routed, and there documentation and old test networks are not.
    let is_routed = parts[0] & 0xe000 == 0x2000;
    let is_reserved = parts[0] == 0x2001 && (parts[1] == 0xdb8 || parts[1] < 0x200) || parts[0] == 0x3fff;
    if is_routed && !is_reserved { AddressKind::Public } else { AddressKind::Private }
}

/// The v4 address that a v6 one only wraps.
fn inner(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let parts = address.segments();
    let v4 = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match parts {
        [0, 0, 0, 0, 0, 0xffff, high, low] => Some(v4(high, low)),
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 => Some(v4(high, low)),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(v4(high, low)),
        [0x64, 0xff9b, 1, ..] => Some(Ipv4Addr::LOCALHOST),
        [0x2002, high, low, ..] => Some(v4(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(texts: &[&str]) -> Vec<Host> {
        texts.iter().map(|text| Host::parse(text).unwrap()).collect()
    }

    fn code(allow: &[&str], name: &str, port: u16) -> &'static str {
        allows(&hosts(allow), &[], name, Some(port)).code()
    }

    #[test]
    fn entries_are_read_and_shown() {
        for text in ["example.com", "example.com:8443", "*.example.com", "10.0.0.1:5432", "[fd00::1]:80", "::1", "*"] {
            assert_eq!(Host::parse(text).unwrap().to_string(), text);
        }
        for text in [
            "",
            "exa mple",
            "a..b",
            "http://a",
            "a/b",
            "a:0",
            "a:99999",
            "a:",
            "*.",
            "-a",
            "a@b",
            "é.com",
            "0x7f.1",
            "2130706433",
            "1.2.3",
            "*a.com",
            "a.*",
        ] {
            assert!(Host::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names_are_matched_whole_and_ports_as_listed() {
        let allow = ["allowed.com", "*.below.org", "db.internal:5432"];
        assert_eq!(code(&allow, "allowed.com", 443), "policy_allowed.default");
        assert_eq!(code(&allow, "ALLOWED.com.", 80), "policy_allowed.default");
        assert_eq!(code(&allow, "allowed.com", 22), "ssrf_block.port_not_allowed");
        assert_eq!(code(&allow, "a.b.below.org", 443), "policy_allowed.default");
        assert_eq!(code(&allow, "below.org", 443), "ssrf_block.host_not_allowed");
        assert_eq!(code(&allow, "xbelow.org", 443), "ssrf_block.host_not_allowed");
        assert_eq!(code(&allow, "db.internal", 5432), "policy_allowed.default");
        assert_eq!(code(&allow, "db.internal", 443), "ssrf_block.port_not_allowed");
        for name in ["allowed.com.evil.com", "evil-allowed.com", "notallowed.com", "127.0.0.1"] {
            assert_eq!(code(&allow, name, 443), "ssrf_block.host_not_allowed", "{name}");
        }
        for name in [
            "evil.com\0.allowed.com",
            "allowed.com@evil.com",
            "allowed.com:443",
            "0x7f.1",
            "2130706433",
            "аllowed.com",
            "allowed.com..",
            "127.1",
            "",
        ] {
            assert_eq!(code(&allow, name, 443), "ssrf_block.invalid_url", "{name:?}");
        }
        assert_eq!(code(&[], "allowed.com", 443), "ssrf_block.host_not_allowed", "nothing listed is nothing allowed");
    }

    #[test]
    fn denied_goes_before_allowed() {
        let (allow, deny) = (hosts(&["*.a.com", "b.com"]), hosts(&["x.a.com", "b.com:80"]));
        assert_eq!(allows(&allow, &deny, "x.a.com", Some(443)).code(), "ssrf_block.host_not_allowed");
        assert_eq!(allows(&allow, &deny, "y.a.com", Some(443)), Verdict::Allowed);
        assert_eq!(allows(&allow, &deny, "b.com", Some(80)).code(), "ssrf_block.host_not_allowed");
        assert_eq!(allows(&allow, &deny, "b.com", Some(443)), Verdict::Allowed);
        assert_eq!(allows(&allow, &deny, "b.com", None), Verdict::Allowed, "its name may be asked for");
    }

    #[test]
    fn addresses_are_what_they_stand_for() {
        let kind = |text: &str| kind_of(text.parse().unwrap());
        for text in ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"] {
            assert_eq!(kind(text), AddressKind::Public, "{text}");
        }
        for text in
            ["169.254.169.254", "::ffff:169.254.169.254", "fd00:ec2::254", "100.100.100.200", "64:ff9b::a9fe:a9fe"]
        {
            assert_eq!(kind(text), AddressKind::Metadata, "{text}");
        }
        for text in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "0.0.0.0",
            "100.64.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "198.18.0.1",
            "::1",
            "::",
            "fe80::1",
            "fc00::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001:db8::1",
            "::7f00:1",
            "64:ff9b::808:808",
            "169.254.1.1",
        ] {
            assert_eq!(kind(text), AddressKind::Private, "{text}");
        }
    }
}
