//! The way out of a cell: what is listed is reached without any setting, and every way around the list is closed.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

use super::actum;
use super::sandbox::{Who, own_all};

const SCRIPT: &str = include_str!("network.py");

/// A server of plain HTTP that remembers what it was sent.
pub(crate) struct Upstream {
    pub port: u16,
    pub heard: Arc<Mutex<Vec<String>>>,
}

pub(crate) fn upstream() -> Upstream {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let own = Arc::clone(&heard);
    let serve = move || {
        for stream in listener.incoming().flatten() {
            let heard = Arc::clone(&own);
            std::thread::Builder::new().spawn(move || answer(stream, &heard)).unwrap();
        }
    };
    std::thread::Builder::new().spawn(serve).unwrap();
    Upstream { port, heard }
}

fn answer(mut stream: TcpStream, heard: &Mutex<Vec<String>>) {
    stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut bytes = Vec::new();
    let mut piece = [0; 65536];
    // To the end of what is sent, so that nothing that came through goes unnoticed.
    while let Ok(length @ 1..) = stream.read(&mut piece) {
        bytes.extend_from_slice(&piece[..length]);
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let line = text.lines().next().unwrap_or_default().to_owned();
    heard.lock().unwrap().push(text);
    let large = "x".repeat(3 << 20);
    let (status, more, body) = match line.split(' ').nth(1).unwrap_or_default() {
        "/redirect" => ("302 Found", "Location: http://evil.test/\r\n", ""),
        "/large" => ("200 OK", "", large.as_str()),
        _ => ("200 OK", "", "hello"),
    };
    let head = format!("HTTP/1.1 {status}\r\n{more}Content-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
    let _ = stream.write_all(head.as_bytes());
}

fn lines(text: &str) -> Vec<(String, String)> {
    let pair = |line: &str| line.split_once('\t').map(|(name, what)| (name.to_owned(), what.to_owned()));
    text.lines().filter_map(pair).collect()
}

#[test]
fn what_is_listed_is_reached_and_nothing_else() {
    for who in Who::BOTH {
        let actum = actum();
        let upstream = upstream();
        let script = actum.file("network.py", SCRIPT).display().to_string();
        own_all(actum.folder(), who);
        let (allow, port) = (format!("up.test:{}", upstream.port), upstream.port.to_string());
        let flags = ["--allow", &allow, "--resolve", "up.test=127.0.0.1", "--timeout-ms", "60000"];
        let ended =
            who.run(&actum, &[&["sandbox"], &flags[..], &["--", "/usr/bin/python3", "-B", &script, &port]].concat());
        assert!(ended.stdout.ends_with("end\n"), "{}{}", ended.stdout, ended.stderr);
        let found = lines(&ended.stdout);
        let of = |name: &str| {
            let found = found.iter().find(|(known, _)| known == name);
            found.unwrap_or_else(|| panic!("{name}: {}", ended.stdout)).1.clone()
        };
        for name in ["plain", "post"] {
            assert_eq!(of(name), "hello", "{who:?} {name}");
        }
        for name in ["connect", "absolute", "second request", "second request after a body"] {
            assert!(of(name).contains("hello"), "{who:?} {name}: {}", of(name));
        }
        for name in ["socks", "socks with a dot"] {
            assert_eq!(of(name), "HTTP/1.1 200 OK", "{who:?} {name}");
        }
        assert_eq!(of("ask A"), "code 0 answers 1");
        for name in ["ask AAAA", "ask TXT", "ask NULL"] {
            assert_eq!(of(name), "code 0 answers 0", "{who:?} {name}");
        }
        assert_eq!(of("ask A of another"), "code 3 answers 0");
        for name in [
            "connect to the address",
            "connect to another port",
            "connect to another",
            "connect with a user",
            "connect by a number",
            "connect by hexadecimal",
            "connect below",
            "target of another",
            "host of another by proxy",
        ] {
            assert!(
                of(name).starts_with("HTTP/1.1 403") || of(name).contains("ssrf_block"),
                "{who:?} {name}: {}",
                of(name)
            );
        }
        for name in ["socks with a null", "socks to another", "socks to another port"] {
            assert_eq!(of(name), "refused 2", "{who:?} {name}");
        }
        for name in ["address", "host of another", "two lengths", "two hosts", "no host"] {
            assert_eq!(of(name), "closed", "{who:?} {name}");
        }
        for name in ["redirect", "other name", "address outside", "tls for another", "tls without a name", "udp"] {
            assert!(of(name).starts_with("failed"), "{who:?} {name}: {}", of(name));
        }
        let heard = upstream.heard.lock().unwrap().clone();
        // A first line whose end has not come may be anything; with its end it is a request, and is not passed on.
        let (pieces, heard): (Vec<String>, Vec<String>) = heard.into_iter().partition(|text| text.starts_with('\u{1}'));
        assert!(!pieces.iter().any(|text| text.contains("evil.test")), "{who:?}: {pieces:#?}");
        assert!(pieces.iter().any(|text| text.ends_with("HTTP/ is only text here\n")), "{who:?}: {pieces:#?}");
        assert!(!heard.iter().any(|text| text.contains("evil")), "{who:?}: {heard:#?}");
        let greetings = heard.iter().filter(|text| text.starts_with('\u{16}')).count();
        assert_eq!(greetings, 1, "{who:?}: only the greeting with the right name came through");
        assert!(heard.iter().any(|text| text.starts_with("POST /post") && text.ends_with("xxxx")));
        for code in ["host_not_allowed", "name_mismatch", "no_name", "invalid_url", "port_not_allowed"] {
            assert!(ended.stderr.contains(&format!("ssrf_block.{code}")), "{who:?} {code}: {}", ended.stderr);
        }
    }
}

/// A name that is listed and leads to the machine itself, or to its neighbours.
#[test]
fn a_listed_name_with_a_private_address_is_not_reached() {
    let actum = actum();
    let upstream = upstream();
    let port = upstream.port;
    let script = format!(
        "import socket; s = socket.create_connection(('127.0.0.1', 3128)); s.sendall(b'CONNECT localhost:{port} HTTP/1.1\\r\\n\\r\\n'); print(s.recv(500).decode())"
    );
    let run = |allow: &[&str]| {
        let command = ["--", "/usr/bin/python3", "-c", script.as_str()];
        actum.run(&[&["sandbox"], allow, &command].concat())
    };
    let listed = format!("localhost:{port}");
    let ended = run(&["--allow", &listed]);
    assert!(ended.stdout.contains("ssrf_block.private_address"), "{}{}", ended.stdout, ended.stderr);
    assert!(upstream.heard.lock().unwrap().is_empty());
    // Said as an address, it is meant.
    let ended =
        run(&["--allow", &listed, "--allow", &format!("127.0.0.1:{port}"), "--allow", &format!("[::1]:{port}")]);
    assert!(ended.stdout.contains("200 Connection established"), "{}{}", ended.stdout, ended.stderr);
}

#[test]
fn unlisted_hosts_are_not_reached() {
    let actum = actum();
    let upstream = upstream();
    let url = format!("http://127.0.0.1:{}/", upstream.port);
    for flags in [&["--net", "api"][..], &["--net", "offline"], &[]] {
        let ended = actum.run(&[&["sandbox"], flags, &["--", "curl", "-sS", "-m", "3", &url]].concat());
        assert_ne!(ended.code, 0);
    }
    assert_eq!(actum.run(&["sandbox", "--net", "offline", "--allow", "x.test", "--", "true"]).code, 2);
    let registry = actum.run(&["sandbox", "--net", "registry", "--json", "--", "true"]);
    assert_eq!((registry.code, registry.error()["code"].as_str()), (2, Some("CONFIG_INVALID")), "none is configured");
    // What is open is open: the machine's own network.
    let open = actum.run(&["sandbox", "--net", "open", "--", "curl", "-sS", "-m", "5", &url]);
    assert_eq!(open.stdout, "hello", "{}", open.stderr);
    assert_eq!(upstream.heard.lock().unwrap().len(), 1);
}

#[test]
fn registries_are_those_of_the_configuration() {
    let actum = actum();
    let upstream = upstream();
    let text = format!(
        "[sandbox]\nregistries = [\"packages.test:{0}\"]\nhosts = {{ \"packages.test\" = \"127.0.0.1\" }}\n",
        upstream.port
    );
    actum.file("actum.toml", text);
    let url = format!("http://packages.test:{}/", upstream.port);
    let ended = actum.run(&["sandbox", "--net", "registry", "--", "curl", "-sS", "-m", "5", &url]);
    assert_eq!(ended.stdout, "hello", "{}", ended.stderr);
}

#[test]
fn no_more_is_carried_than_was_agreed() {
    let actum = actum();
    let upstream = upstream();
    actum.file("actum.toml", "[sandbox]\negress_mb = 1\n");
    let (allow, url) = (format!("up.test:{}", upstream.port), format!("http://up.test:{}/large", upstream.port));
    let flags =
        ["--allow", &allow, "--resolve", "up.test=127.0.0.1", "--", "curl", "-sS", "-m", "20", "-o", "/dev/null", &url];
    let ended = actum.run(&[&["sandbox"], &flags[..]].concat());
    assert_ne!(ended.code, 0);
    assert!(ended.stderr.contains("ssrf_block.byte_limit"), "{}", ended.stderr);
}

/// Every decision is in the evidence, with its reason.
#[test]
fn decisions_are_kept() {
    let actum = actum();
    let upstream = upstream();
    let text = "[tools.curl]\ncommands = [\"curl\"]\n[sandbox.hosts]\n\"up.test\" = \"127.0.0.1\"\n";
    actum.file("actum.toml", text);
    let contract = format!(
        "tool_id: curl\ninputs:\n  command: curl\n  arguments: [-sS, -m, 5, \"http://up.test:{0}/\", \"http://evil.test:{0}/\"]\n\
         sandbox: {{network: {{enabled: true, allow: [\"up.test:{0}\"]}}}}\n",
        upstream.port
    );
    let file = actum.file("c.yaml", contract).display().to_string();
    let result: Value = actum.run(&["exec", "--json", &file]).json();
    assert_eq!(result["stdout"], "hello", "{result}");
    let decisions = result["evidence"]["decisions"].as_array().unwrap();
    let of = |host: &str| decisions.iter().find(|decision| decision["host"] == host).unwrap();
    assert_eq!(
        (&of("up.test")["code"], &of("up.test")["address"]),
        (&"policy_allowed.default".into(), &"127.0.0.1".into())
    );
    assert_eq!(of("evil.test")["code"], "ssrf_block.host_not_allowed");
    assert!(of("up.test")["received_bytes"].as_u64().unwrap() > 5);
}
