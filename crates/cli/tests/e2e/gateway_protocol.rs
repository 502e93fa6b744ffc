//! The gateway by plain HTTP, as any client may speak it: the four protocols whole and in pieces, keys wherever a provider
//! takes them, and everything that is wrong told in the provider's own words while the run goes on.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;

use actum_testkit::program::Program;
use actum_testkit::upstream::{Script, Turn, Upstream, Usage};
use serde_json::{Value, json};

use super::bridge::{WIDE, agent, out};
use super::gateway::{Books, ENOUGH, KEY, cost, paid, program, providers, repeats};
use super::run::{id, one};
use super::sandbox::{Who, own_all};

/// `ask NAME PATH [CURL'S WORDS]`: what was answered goes to `out/NAME`, status and type are its last line.
const ASK: &str = r#"
B=http://127.0.0.1:47800; K=$OPENAI_API_KEY
ask() {
  name=$1; path=$2; shift 2
  curl -sN -m 60 -o "out/$name" -w '\n%{http_code} %{content_type}' -H 'content-type: application/json' "$@" "$B$path" > "out/.$name"
  code=$?
  test -e "out/$name" || : > "out/$name"
  # Large numbers of tokens look like secrets in a file.
  sed -i 's/_tokens/_tok/g; s/TokenCount/Tok/g' "out/$name"
  cat "out/.$name" >> "out/$name"; rm "out/.$name"
  test $code = 0 || echo " curl $code" >> "out/$name"
}
"#;

/// A project whose agent is a script that may `ask`, with providers at this address.
pub(crate) fn shell(actum: &Program, script: &str, url: &str, more: &str) {
    agent(actum, &format!("{ASK}\n{script}"), "network = \"gateway\"");
    let settings = fs::read_to_string(actum.path("actum.toml")).unwrap();
    actum.file("actum.toml", format!("{settings}\n{}", providers(url, more)));
}

/// What was answered: status, type, content.
pub(crate) fn answered(actum: &Program, name: &str) -> (u16, String, String) {
    let text = out(actum, name);
    let (body, last) = text.rsplit_once('\n').unwrap_or(("", &text));
    let (status, kind) = last.split_once(' ').unwrap_or((last, ""));
    (status.parse().unwrap_or(0), kind.to_owned(), body.to_owned())
}

/// A question by each protocol: its path and what is said.
pub(crate) fn question(protocol: &str, stream: bool, word: &str) -> (String, Value) {
    let messages = json!([{"role": "user", "content": word}]);
    match protocol {
        "chat" => ("/v1/chat/completions".into(), json!({"model": "stub-1", "messages": messages, "stream": stream})),
        "responses" => ("/v1/responses".into(), json!({"model": "stub-1", "input": word, "stream": stream})),
        "messages" => (
            "/v1/messages".into(),
            json!({"model": "stub-1", "max_tokens": 50, "messages": messages, "stream": stream}),
        ),
        _ => {
            let verb = if stream { "streamGenerateContent?alt=sse" } else { "generateContent" };
            let body = json!({"contents": [{"role": "user", "parts": [{"text": word}]}]});
            (format!("/v1beta/models/gemini-2.5-flash:{verb}"), body)
        }
    }
}

pub(crate) const PROTOCOLS: [&str; 4] = ["chat", "responses", "messages", "generate"];

/// The words for `ask`: a question with the key in one of its four places.
fn line(name: &str, (path, body): (String, Value), place: usize) -> String {
    let (header, path) = match place % 4 {
        0 => ("-H \"authorization: Bearer $K\"", path),
        1 => ("-H \"x-api-key: $K\"", path),
        2 => ("-H \"x-goog-api-key: $K\"", path),
        _ if path.contains('?') => ("", format!("{path}&key=$K")),
        _ => ("", format!("{path}?key=$K")),
    };
    format!("ask {name} \"{path}\" {header} -d '{body}'\n")
}

/// The same with the key where the first provider takes it.
pub(crate) fn ask(name: &str, question: (String, Value)) -> String {
    line(name, question, 0)
}

#[test]
fn every_protocol_is_spoken_whole_and_in_pieces() {
    for who in Who::BOTH {
        let actum = program();
        let (mut lines, mut script) = (String::new(), Script::default());
        for (n, protocol) in PROTOCOLS.into_iter().enumerate() {
            for stream in [false, true] {
                let name = format!("{protocol}-{stream}");
                lines += &line(&name, question(protocol, stream, &name), n + usize::from(stream));
                let usage = Usage::new(11 + n as u64, 5 + n as u64);
                script = script.turn(Turn::text(format!("This is what {name} is told.")), usage);
            }
        }
        // Google's stream without events is one list.
        let (path, body) = question("generate", true, "list");
        lines += &line("list", (path.replace("?alt=sse", ""), body), 2);
        script = script.turn(Turn::text("This is a list."), Usage::new(3, 2));
        let upstream = Upstream::start(script);
        shell(&actum, &lines, &upstream.url(), "");
        own_all(actum.folder(), who);
        let flags = [&["run", "--json", "-"][..], &WIDE].concat();
        let ended = who.run_with(&actum, &flags, paid(ENOUGH).to_string().as_bytes());
        assert_eq!(ended.code, 0, "{}: {}{}", who.word(), ended.stdout, ended.stderr);
        let run = ended.json()["runs"][0].clone();
        for protocol in PROTOCOLS {
            for stream in [false, true] {
                let name = format!("{protocol}-{stream}");
                let (status, kind, body) = answered(&actum, &name);
                let wanted = if stream { "text/event-stream" } else { "application/json" };
                assert_eq!((status, kind.as_str()), (200, wanted), "{name}: {body}");
                assert!(body.contains("This is what") || stream, "{name}: {body}");
                let pieces = body.matches("\ndata: ").count();
                assert!(!stream || pieces > 1 && !body.contains("_error"), "{name}: {body}");
            }
        }
        let (status, _, body) = answered(&actum, "list");
        let list: Value = serde_json::from_str(&body).unwrap();
        assert!(status == 200 && list.as_array().is_some_and(|all| !all.is_empty()), "{body}");
        // Nobody asked for the usage in the stream, so nobody is told.
        assert!(!answered(&actum, "chat-true").2.contains("prompt_tok"), "{}", answered(&actum, "chat-true").2);

        let requests = upstream.requests();
        assert_eq!((requests.len(), upstream.calls().len()), (9, 9));
        for request in &requests {
            let all = format!("{request:?}{}", String::from_utf8_lossy(&request.body));
            assert!(all.contains(KEY) && !all.contains("actum-"), "the run's key stays here: {all}");
        }
        let books = Books::of(&actum);
        assert_eq!((books.agree(), books.tokens()), (cost(upstream.used()), upstream.used()));
        assert_eq!(books.states(), ["committed"; 9]);
        let protocols: Vec<&str> = books.receipts.iter().filter_map(|one| one["protocol"].as_str()).collect();
        assert_eq!(protocols.len(), 9, "{protocols:?}");
        drop(upstream.stop());
        let ended = who.run(&actum, &["replay", "--json", &id(&run)]);
        assert_eq!(ended.json()["identical"], true, "{}: {}{}", who.word(), ended.stdout, ended.stderr);
        assert_eq!(ended.json().get("answered_by_order"), None);
    }
}

/// Each wrong in another way, with what its provider would say.
#[test]
fn what_is_wrong_is_told_in_the_providers_words() {
    let chat = question("chat", false, "x").1;
    let messages = question("messages", false, "x").1;
    let generate = question("generate", false, "x").1;
    let with = |body: &Value, name: &str, value: Value| {
        let mut body = body.clone();
        body[name] = value;
        body.to_string()
    };
    let key = "-H \"authorization: Bearer $K\"";
    let bad = "-H 'authorization: Bearer actum-00000000000000000000000000000000'";
    let (c, r, m) = ("/v1/chat/completions", "/v1/responses", "/v1/messages");
    let (g, gs) =
        ("/v1beta/models/gemini-2.5-flash:generateContent", "/v1beta/models/gemini-2.5-flash:streamGenerateContent");
    let post = |key: &str, body: &str| format!("{key} -d '{body}'");
    let unpriced_g = "/v1beta/models/free-1:generateContent";
    let large = "head -c 34000000 /dev/zero | tr '\\0' x > /tmp/large\n";
    let cases: Vec<(&str, &str, String, u16, &str)> = vec![
        ("models", "/v1/models", key.into(), 200, "\"stub-1\""),
        ("models-x", "/v1/models", "-H \"x-api-key: $K\"".into(), 200, "\"display_name\":\"stub-1\""),
        ("models-g", "/v1beta/models", "-H \"x-goog-api-key: $K\"".into(), 200, "\"models/gemini-2.5-flash\""),
        ("models-no", "/v1/models", String::new(), 401, "invalid_api_key"),
        ("count-m", "/v1/messages/count_tokens", post(key, &messages.to_string()), 200, "input_tok"),
        (
            "count-g",
            "/v1beta/models/gemini-2.5-flash:countTokens",
            post(key, &generate.to_string()),
            200,
            "totalTokens",
        ),
        ("count-no", "/v1/messages/count_tokens", post("", "{}"), 401, "authentication_error"),
        ("none-c", c, post("", &chat.to_string()), 401, "invalid_api_key"),
        ("none-m", m, post("", &messages.to_string()), 401, "authentication_error"),
        ("none-g", g, post("", &generate.to_string()), 401, "UNAUTHENTICATED"),
        ("wrong-c", c, post(bad, &chat.to_string()), 401, "invalid_api_key"),
        ("wrong-r", r, post(bad, &chat.to_string()), 401, "invalid_api_key"),
        ("empty-key", c, post("-H 'authorization: Bearer '", &chat.to_string()), 401, "invalid_api_key"),
        ("cut-key", c, post("-H \"authorization: Bearer ${K%?}\"", &chat.to_string()), 401, "invalid_api_key"),
        ("unknown-c", c, post(key, &with(&chat, "model", json!("nobody-9"))), 404, "model_not_found"),
        ("unknown-m", m, post(key, &with(&messages, "model", json!("nobody-9"))), 404, "not_found_error"),
        ("unknown-g", "/v1beta/models/nobody-9:generateContent", post(key, &generate.to_string()), 404, "NOT_FOUND"),
        ("wrong-way", m, post(key, &with(&messages, "model", json!("gemini-2.5-flash"))), 404, "not_found_error"),
        ("unpriced-c", c, post(key, &with(&chat, "model", json!("free-1"))), 403, "policy_denied.unpriced"),
        ("unpriced-m", m, post(key, &with(&messages, "model", json!("free-1"))), 403, "policy_denied.unpriced"),
        ("unpriced-g", unpriced_g, post(key, &generate.to_string()), 403, "policy_denied.unpriced"),
        ("large", c, format!("{key} --data-binary @/tmp/large"), 413, "request_too_large"),
        ("large-m", m, format!("{key} --data-binary @/tmp/large"), 413, "request_too_large"),
        ("json-c", c, post(key, "{\"model\": "), 400, "invalid_request_error"),
        ("json-m", m, post(key, "nothing"), 400, "invalid_request_error"),
        ("json-g", g, post(key, "["), 400, "INVALID_ARGUMENT"),
        ("list-c", c, post(key, "[]"), 400, "no object"),
        ("text-r", r, post(key, "\"hi\""), 400, "no object"),
        ("null-m", m, post(key, "null"), 400, "no object"),
        ("number-g", gs, post(key, "7"), 400, "no object"),
        ("no-model", c, post(key, "{\"messages\": [{\"role\": \"user\"}]}"), 400, "model is missing"),
        ("no-words", c, post(key, "{\"model\": \"stub-1\", \"messages\": []}"), 400, "messages is missing"),
        (
            "twice",
            c,
            post(key, "{\"model\": \"stub-1\", \"model\": \"stub-1\", \"messages\": [1]}"),
            400,
            "invalid_request",
        ),
        ("nothing", c, post(key, ""), 400, "invalid_request_error"),
        ("deep", c, format!("{key} -d \"$(printf '%01000d' 0 | tr 0 '[')\""), 400, "invalid_request_error"),
        ("dense", c, format!("{key} -d \"$(printf '%0100000d' 0 | tr 0 '{{')\""), 413, "too large"),
        ("get-c", c, format!("{key} -X GET"), 404, "nothing here"),
        ("put-m", m, format!("{key} -X PUT -d '{messages}'"), 404, "nothing here"),
        ("root", "/", key.into(), 404, "nothing here"),
        ("files", "/v1/files", post(key, "{}"), 404, "nothing here"),
        ("up", "/v1/../v1/embeddings", post(&format!("--path-as-is {key}"), "{}"), 404, "nothing here"),
        ("gem", "/v1beta/files", post(key, "{}"), 404, "NOT_FOUND"),
        ("host", c, post(&format!("{key} -H 'host: evil.test'"), &chat.to_string()), 401, ""),
        ("head", "/v1/models", format!("{key} -I"), 404, ""),
    ];
    let lines: String = cases.iter().map(|(name, path, rest, ..)| format!("ask {name} {path} {rest}\n")).collect();
    let actum = program();
    let upstream = Upstream::start([Turn::text("Still here.")]);
    let last = ask("last", question("chat", false, "still there?"));
    shell(&actum, &format!("{large}{lines}{last}"), &upstream.url(), "");
    let (code, run) = one(&actum, paid(ENOUGH), &WIDE);
    assert_eq!(code, 0, "what is wrong with a question is no reason to end a run: {run}");
    let mut wrong = Vec::new();
    for (name, _, _, wanted, needle) in &cases {
        let (status, kind, body) = answered(&actum, name);
        if status != *wanted || !body.contains(needle) || kind != "application/json" && *name != "head" {
            wrong.push(format!("{name}: {status} instead of {wanted} {needle:?}, {kind}: {body}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(answered(&actum, "last").2.contains("Still here."));
    assert_eq!(upstream.requests().len(), 1, "nobody else was bothered");
    let books = Books::of(&actum);
    assert_eq!((books.agree(), books.states()), (cost(upstream.used()), vec!["committed".to_owned()]));
    let denied: Vec<&Value> = books.receipts.iter().filter(|one| one["status"] == "denied").collect();
    assert_eq!(denied.len(), 3, "{denied:?}");
    assert!(denied.iter().all(|one| one["policy"]["reason_code"] == "policy_denied.unpriced"));
    drop(upstream.stop());
    assert_eq!(repeats(&actum, &id(&run)), 0);
}

/// Says the first half of each protocol's stream, and the rest only when somebody has asked something else.
fn halves() -> (String, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serve = move || {
        for _ in PROTOCOLS {
            let (go, wait) = mpsc::channel();
            let (mut stream, path) = accept(&listener);
            let slow = std::thread::Builder::new().spawn(move || {
                let (first, rest) = events(&path);
                let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
                stream.write_all(format!("{head}{first}").as_bytes()).unwrap();
                wait.recv().unwrap();
                stream.write_all(rest.as_bytes()).unwrap();
            });
            let slow = slow.unwrap();
            let (mut other, _) = accept(&listener);
            go.send(()).unwrap();
            let body = json!({
                "id": "x", "object": "chat.completion", "created": 1, "model": "stub-1",
                "choices": [{"index": 0, "message": {"role": "assistant", "content": "go"}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3},
            })
            .to_string();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}", body.len());
            other.write_all(format!("{head}\r\nconnection: close\r\n\r\n{body}").as_bytes()).unwrap();
            slow.join().unwrap();
        }
    };
    (url, std::thread::Builder::new().spawn(serve).unwrap())
}

fn accept(listener: &TcpListener) -> (TcpStream, String) {
    let (stream, _) = listener.accept().unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut path, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if path.is_empty() {
            path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
    }
    reader.read_exact(&mut vec![0; length]).unwrap();
    (stream, path)
}

/// A short stream, in two parts.
fn events(path: &str) -> (String, String) {
    let data = |value: Value| match value["type"].as_str() {
        Some(kind) => format!("event: {kind}\ndata: {value}\n\n"),
        None => format!("data: {value}\n\n"),
    };
    if path.contains("chat") {
        let chunk = |delta: Value, stop: Value| {
            data(json!({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "stub-1",
                "choices": [{"index": 0, "delta": delta, "finish_reason": stop}]}))
        };
        let usage = json!({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "stub-1", "choices": [],
            "usage": {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}});
        let end = format!("{}{}data: [DONE]\n\n", chunk(json!({}), json!("stop")), data(usage));
        return (chunk(json!({"role": "assistant", "content": "early"}), Value::Null), end);
    }
    if path.contains("responses") {
        let early = data(json!({"type": "response.output_text.delta", "item_id": "m", "output_index": 0,
            "content_index": 0, "delta": "early", "sequence_number": 1}));
        let response = json!({"id": "r", "object": "response", "status": "completed", "model": "stub-1", "output": [],
            "usage": {"input_tokens": 2, "output_tokens": 1, "total_tokens": 3}});
        return (early, data(json!({"type": "response.completed", "sequence_number": 2, "response": response})));
    }
    if path.contains("messages") {
        let message = json!({"id": "m", "type": "message", "role": "assistant", "model": "stub-1", "content": [],
            "usage": {"input_tokens": 2, "output_tokens": 0}});
        let delta = json!({"type": "text_delta", "text": "early"});
        let first = data(json!({"type": "message_start", "message": message}))
            + &data(json!({"type": "content_block_delta", "index": 0, "delta": delta}));
        let stop = json!({"stop_reason": "end_turn"});
        let end = data(json!({"type": "message_delta", "delta": stop, "usage": {"output_tokens": 1}}))
            + &data(json!({"type": "message_stop"}));
        return (first, end);
    }
    let part = |text: &str| json!({"role": "model", "parts": [{"text": text}]});
    let usage = json!({"promptTokenCount": 2, "candidatesTokenCount": 1, "totalTokenCount": 3});
    let end = json!({"candidates": [{"content": part("."), "finishReason": "STOP"}], "usageMetadata": usage});
    (data(json!({"candidates": [{"content": part("early")}]})), data(end))
}

/// The provider goes on only when the first half was heard, and that was only if nobody kept it back.
#[test]
fn pieces_are_heard_before_the_answer_is_over() {
    let actum = program();
    let (url, served) = halves();
    let mut lines = String::new();
    for protocol in PROTOCOLS {
        let (path, body) = question(protocol, true, protocol);
        lines += &format!(
            "curl -sN -m 60 -H \"authorization: Bearer $K\" -d '{body}' \"$B{path}\" > out/{protocol} &\n\
             while ! grep -q early out/{protocol} 2> /dev/null; do sleep 0.02; done\n{}wait\n",
            ask(&format!("{protocol}-go"), question("chat", false, protocol))
        );
    }
    shell(&actum, &lines, &url, "answer_ms = 20000\nidle_ms = 20000");
    let (code, run) = one(&actum, paid(ENOUGH), &WIDE);
    assert_eq!(code, 0, "{run}");
    served.join().unwrap();
    let books = Books::of(&actum);
    assert_eq!((books.states(), books.tokens()), (vec!["committed".to_owned(); 8], Usage::new(16, 8)));
    assert_eq!(books.agree(), cost(Usage::new(16, 8)));
    assert_eq!(repeats(&actum, &id(&run)), 0);
}
