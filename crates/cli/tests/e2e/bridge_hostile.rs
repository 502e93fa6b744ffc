//! An agent that means ill by whoever gives it tools: the run ends by itself, the process that serves it lives on within
//! its bounds, and nothing outside is reached.

use std::fs;
use std::time::{Duration, Instant};

use actum_testkit::folder::Folder;
use serde_json::json;

use super::bridge::{WIDE, good, out, out_json, repeats, shell, trace, wide, with_tools};
use super::run::id;

/// What an agent may try, in Python: each on its own, and told by what came of it.
const ATTACKS: &str = r#"
import json, os, socket, sys, threading, time, urllib.parse
url = urllib.parse.urlparse(os.environ["ACTUM_TOOLS_URL"])
base = url.path
told = {}
def connect():
    s = socket.create_connection((url.hostname, url.port), 20)
    s.settimeout(20)
    return s
def status(s):
    try:
        line = s.recv(64).split(b" ")
        return int(line[1]) if len(line) > 1 else 0
    except Exception:
        return 0
def post(path, body, length=None):
    s = connect()
    try:
        s.sendall(("POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (path, length or len(body))).encode())
        try:
            s.sendall(body)
        except OSError:
            pass
        return status(s)
    finally:
        s.close()
def attempt(name, what):
    try:
        told[name] = what()
    except Exception as e:
        told[name] = "broken: %s" % type(e).__name__
def garbage():
    seen = []
    for text in [b"\0" * 5000, b"GET\r\n\r\n", b"\xff\xfe" * 100 + b"\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n", b"A" * 100000]:
        s = connect()
        try:
            s.sendall(text)
        except OSError:
            pass
        seen.append(status(s))
        s.close()
    return seen
def flood():
    held = []
    for n in range(2000):
        try:
            s = socket.socket()
            s.settimeout(0.2)
            s.connect((url.hostname, url.port))
            s.send(b"GET ")
            held.append(s)
        except OSError:
            break
    count = len(held)
    for s in held:
        s.close()
    return count
attempt("garbage", garbage)
attempt("flood", flood)
attempt("large", lambda: post(base + "/v1/call", b" " * (100 << 20)))
attempt("claimed", lambda: post(base + "/v1/call", b"{}", 1 << 40))
attempt("token", lambda: post("/t/" + "0" * 32 + "/v1/call", b"{}"))
attempt("up", lambda: post(base + "/../../v1/call", b"{}"))
attempt("deep", lambda: post(base + "/v1/call", b'{"tool":"T","params":{"word":' + b"[" * 50000 + b"]" * 50000 + b"}}"))
attempt("deep_mcp", lambda: post(base + "/mcp", b"[" * 100000))
attempt("huge", lambda: post(base + "/v1/call", json.dumps({"tool": "T", "params": {"word": "x" * 1900000}}).encode()))
attempt("many", lambda: post(base + "/v1/call", json.dumps({"tool": "T", "params": {str(n): n for n in range(200000)}}).encode()))
attempt("nul", lambda: post(base + "/v1/call", json.dumps({"tool": "T", "params": {"word": "a\0b"}}).encode()))
attempt("id", lambda: post(base + "/v1/call", json.dumps({"tool": "../../T\n" * 100, "params": {}}).encode()))
def looks():
    s = connect()
    n = 0
    until = time.time() + 5
    while time.time() < until:
        s.sendall(("GET %s/v1/tools/%s?level=L3 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % (base, ("x%d" % n) + "y" * 8000)).encode())
        if not s.recv(65536):
            break
        n += 1
    return n
attempt("looks", looks)
slow = [connect() for _ in range(20)]
for s in slow:
    s.send(b"POST %s/v1/call HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{" % base.encode())
attempt("after", lambda: post(base + "/v1/call", json.dumps({"tool": "T", "params": {"word": "alive"}}).encode()))
json.dump(told, open("out/told", "w"), indent=1)
"#;

/// The most memory a process has had so far, in MiB.
fn peak_mb(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0 kB");
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) / 1024
}

#[test]
fn bridge_hostile_agents_harm_nobody() {
    let actum = with_tools(
        "exec /usr/bin/python3 attack.py",
        "",
        &[shell("T", "read", "echo ${#1} $1 | head -c 100", json!({}))],
    );
    actum.file("attack.py", ATTACKS);
    actum.file("work.json", wide().to_string());
    let before = actum.run(&["tool", "list", "--json"]).stdout;
    let running = actum.start(&[&["run", "--json", "work.json"][..], &WIDE].concat(), &[]);
    let process = running.id();
    let watch = std::thread::Builder::new().name("watch".to_owned()).spawn(move || {
        let mut most = 0;
        let end = Instant::now() + Duration::from_secs(240);
        while Instant::now() < end && fs::metadata(format!("/proc/{process}/task")).is_ok() {
            match peak_mb(process) {
                0 => break,
                now => most = now.max(most),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        most
    });
    let watch = watch.unwrap();
    let (code, lines, errors) = running.finish();
    let most = watch.join().unwrap();
    assert_eq!(code, 0, "{lines:?} {errors:?}");
    assert!(most < 400, "{most} MiB");
    let told = out_json(&actum, "told");
    for name in ["large", "claimed", "many"] {
        assert!(told[name] == 413 || told[name] == 0 || told[name].is_string(), "{name}: {told}");
    }
    for (name, status) in [("token", 404), ("up", 404), ("after", 200)] {
        assert_eq!(told[name], status, "{told}");
    }
    for name in ["deep", "deep_mcp", "huge", "nul", "id"] {
        assert!(told[name].as_u64().is_some_and(|status| (200..500).contains(&status)), "{name}: {told}");
    }
    assert!(
        told["garbage"].as_array().unwrap().iter().all(|status| *status == 0 || *status == 400 || *status == 431),
        "{told}"
    );
    assert_eq!(actum.run(&["tool", "list", "--json"]).stdout, before);
    let run = super::runs::all_runs(&actum).remove(0);
    assert_eq!(actum.run(&["verify", &run]).code, 0);
    let recording = fs::metadata(actum.path(&format!(".actum/runs/{run}/recording.json"))).unwrap().len();
    assert!(recording < 120 << 20, "{recording}");
}

#[test]
fn bridge_hostile_links_lead_tools_nowhere() {
    let outside = Folder::new();
    outside.file("inner/secret", "not yours\n");
    let place = outside.path().display();
    let script = format!(
        r#"
rm -r part; ln -s {place} part
actum tool call PART --json > out/part
rm part; mkdir part; rm -r other; ln -s {place} other
actum tool call DEEP --json > out/deep
ln -s {place}/inner/secret whole
actum tool call ALL --json > out/all
actum tool call ALL --param word={place}/inner/secret --json > out/named
actum tool call PATH --param path=whole --json > out/path; echo $? > out/path.code
actum tool call PATH --param path=../../../../../../{place}/inner/secret --json > out/up; echo $? > out/up.code
actum tool call WRITE --json > out/write
rm -f whole part/* 2>/dev/null; rm other; mkdir -p other/inner; true
"#
    );
    let part = |id: &str, access: &str, path: &str, script: &str| {
        shell(id, access, script, json!({"scope": {"filesystem": [path]}}))
    };
    let read = "cat secret inner/secret part/inner/secret other/inner/secret whole \"$1\" 2>&1; true";
    let mut path = part("PATH", "read", ".", "cat \"$1\"");
    path.1["interface"]["cli"]["arg_mapping"] = json!({"path": "{path}"});
    for copied in [false, true] {
        let mut tools = vec![
            part("PART", "read", "part", read),
            part("DEEP", "read", "other/inner", read),
            part("ALL", "read", ".", read),
            path.clone(),
            part("WRITE", if copied { "write" } else { "read" }, ".", "echo x > whole; echo x > other/new; true"),
        ];
        tools.dedup();
        let actum = with_tools(&script, "", &tools);
        for name in ["part/file", "other/inner/file"] {
            actum.file(name, "x\n");
        }
        let run = good(&actum);
        for name in ["part", "deep", "all", "named", "path", "up"] {
            assert!(!out(&actum, name).contains("not yours"), "{copied} {name}: {}", out(&actum, name));
        }
        assert_eq!((out(&actum, "path.code").trim(), out(&actum, "up.code").trim()), ("3", "3"));
        assert_eq!(fs::read_to_string(outside.join("inner/secret")).unwrap(), "not yours\n");
        assert!(!outside.join("new").exists());
        let recording = fs::read_to_string(actum.path(&format!(".actum/runs/{}/recording.json", id(&run)))).unwrap();
        assert!(!recording.contains("not yours"), "{copied}");
        assert_eq!(trace(&actum, &id(&run)).len(), 7);
        repeats(&actum, &id(&run));
    }
}
