//! Witnesses of the ledger (D-509): a folder, a ref of git, a webhook and a signing witness keep what was signed, and contradict a
//! ledger that was rolled back. The signing witness checks proofs by another implementation of the tree.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

use actum_testkit::folder::Folder;
use actum_testkit::program::{Program, other};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ed25519_dalek::{Signer as _, SigningKey};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tlog_tiles::{Hash, check_tree};

use super::run::{id, item, one, project};
use super::runs::until;
use super::serve::Server;
use super::trust::{roll_back, save};

const NAME: &str = "witness.example";

/// What a server is asked, and its answer: status and body.
type Answer = dyn Fn(&str) -> (u16, String) + Send + Sync;

/// Answers POST requests until the tests end.
fn serve(answer: impl Fn(&str) -> (u16, String) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let answer: Box<Answer> = Box::new(answer);
    let serving = move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut line, mut length) = (String::new(), 0);
            while reader.read_line(&mut line).is_ok_and(|count| count > 2) {
                let (name, value) = line.split_once(':').unwrap_or_default();
                if name.eq_ignore_ascii_case("content-length") {
                    length = value.trim().parse().unwrap();
                }
                line.clear();
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let (status, text) = answer(&String::from_utf8(body).unwrap());
            let head = format!("HTTP/1.1 {status} x\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", text.len());
            let _ = (&stream).write_all(format!("{head}{text}").as_bytes());
        }
    };
    std::thread::Builder::new().name("witness".into()).spawn(serving).unwrap();
    at
}

/// A witness that signs (C2SP tlog-witness), with the newest head that it has seen of each log.
struct SigningWitness {
    key: SigningKey,
    id: [u8; 4],
    seen: Mutex<Vec<(String, u64, Hash)>>,
}

impl SigningWitness {
    fn new(seed: u8) -> Arc<Self> {
        let key = SigningKey::from_bytes(&[seed; 32]);
        let hash = Sha256::new().chain_update(format!("{NAME}\n\x04")).chain_update(key.verifying_key()).finalize();
        Arc::new(Self { key, id: hash[..4].try_into().unwrap(), seen: Mutex::default() })
    }

    fn verifier_key(&self) -> String {
        let typed = [&[4], self.key.verifying_key().as_bytes().as_slice()].concat();
        let id: String = self.id.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{NAME}+{id}+{}", BASE64.encode(typed))
    }

    fn answer(&self, body: &str) -> (u16, String) {
        let (head, note) = body.split_once("\n\n").unwrap();
        let mut lines = head.lines();
        let old: u64 = lines.next().unwrap().strip_prefix("old ").unwrap().parse().unwrap();
        let hash = |text: &str| Hash(BASE64.decode(text).unwrap().try_into().unwrap());
        let proof: Vec<Hash> = lines.map(hash).collect();
        let mut parts = note.lines();
        let (origin, size) = (parts.next().unwrap().to_owned(), parts.next().unwrap().parse::<u64>().unwrap());
        let root = hash(parts.next().unwrap());
        let mut seen = self.seen.lock().unwrap();
        let known = seen.iter().rev().find(|(name, ..)| *name == origin).cloned();
        let (known_size, known_root) = known.map_or((0, None), |(_, size, root)| (size, Some(root)));
        if known_size != old || size < known_size {
            return (409, format!("{known_size}\n"));
        }
        let is_same = known_root == Some(root) && size == known_size && proof.is_empty();
        let has_grown = |known: Hash| check_tree(&proof, size, root, old, known).is_ok();
        if !(is_same || known_root.is_none_or(has_grown)) {
            return (422, String::new());
        }
        seen.push((origin, size, root));
        let text = &note[..=note.rfind("\n\n").unwrap()];
        let seconds = 1_700_000_000_u64 + seen.len() as u64;
        let signature = self.key.sign(format!("cosignature/v1\ntime {seconds}\n{text}").as_bytes());
        let bytes = [&self.id[..], &seconds.to_be_bytes(), &signature.to_bytes()].concat();
        (200, format!("— {NAME} {}\n", BASE64.encode(bytes)))
    }
}

fn configure(actum: &Program, witnesses: &Value, hosts: &[SocketAddr]) {
    let toml = fs::read_to_string(actum.path("actum.toml")).unwrap();
    let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
    let inline = |value: &Value| {
        let fields = value.as_object().unwrap().iter().map(|(key, value)| format!("{key} = {value}"));
        format!("{{ {} }}", fields.collect::<Vec<_>>().join(", "))
    };
    let all: Vec<String> = witnesses.as_array().unwrap().iter().map(inline).collect();
    actum.file(
        "actum.toml",
        format!("{toml}\n[ledger]\nwitnesses = [{}]\n[server]\nwebhook_hosts = {}\n", all.join(", "), json!(hosts)),
    );
}

fn publish(actum: &Program, agent: &str) {
    let (code, run) = one(actum, item(agent, agent), &[]);
    assert_eq!(code, 0, "{run}");
    drop(id(&run));
}

/// Hands the checkpoint to all, and returns the exit code with the details by kind of witness.
fn witness(actum: &Program) -> (i32, Vec<(String, bool, String)>) {
    let ended = actum.run(&["ledger", "witness", "--json"]);
    let shown = ended.json();
    let all = shown["ledgers"][0]["witnesses"].as_array().unwrap_or_else(|| panic!("{}{}", ended.stdout, ended.stderr));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let row = |one: &Value| {
        let kind = text(&one["witness"]).split(' ').next().unwrap().to_owned();
        (kind, one["ok"].as_bool().unwrap(), text(&one["detail"]))
    };
    (ended.code, all.iter().map(row).collect())
}

#[test]
fn every_witness_keeps_checkpoints_and_contradicts_a_rollback() {
    let actum = project(&[("a", "date +%N > a"), ("b", "date +%N > b")]).with_env("HOOK", "whsec_AAAA");
    let (folder, repository) = (Folder::new(), Folder::new());
    let git = |arguments: &[&str]| {
        let done = other("git").arg("--git-dir").arg(repository.path()).args(arguments).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    };
    git(&["init", "-q", "--bare"]);
    let told = Arc::<Mutex<Vec<String>>>::default();
    let heard = Arc::clone(&told);
    let hook = serve(move |body| {
        heard.lock().unwrap().push(body.to_owned());
        (204, String::new())
    });
    let signing = SigningWitness::new(9);
    let (asked, key) = (Arc::clone(&signing), signing.verifier_key());
    let signer = serve(move |body| asked.answer(body));
    let witnesses = json!([
        {"type": "file", "path": folder.path()}, {"type": "git", "repository": repository.path()},
        {"type": "webhook", "url": format!("http://{hook}/checkpoints"), "secret": "env:HOOK"},
        {"type": "c2sp", "url": format!("http://{signer}"), "key": key},
    ]);
    configure(&actum, &witnesses, &[hook, signer]);
    publish(&actum, "a");
    save(&actum, "early.db");
    for round in 1..=2 {
        let (code, all) = witness(&actum);
        assert!(code == 0 && all.iter().all(|(_, ok, _)| *ok) && all.len() == 4, "{all:?}");
        assert_eq!(told.lock().unwrap().len(), round);
        assert_eq!(signing.seen.lock().unwrap().len(), round);
        if round == 1 {
            publish(&actum, "b");
        }
    }
    // What others keep is the note that this project signed; the kept one has the witness's signature too.
    let file = fs::read_dir(folder.path()).unwrap().flatten().next().unwrap();
    let note = fs::read_to_string(file.path()).unwrap();
    let name = file.file_name().into_string().unwrap();
    assert_eq!(git(&["cat-file", "blob", &format!("refs/actum/checkpoints:{name}")]), note);
    assert_eq!(git(&["rev-list", "--count", "refs/actum/checkpoints"]).trim(), "2");
    assert!(told.lock().unwrap()[1].contains("\"type\":\"ledger.checkpoint\""));
    let database = rusqlite::Connection::open(actum.path(".actum/actum.db")).unwrap();
    let kept: String =
        database.query_row("SELECT note FROM checkpoint ORDER BY size DESC LIMIT 1", [], |row| row.get(0)).unwrap();
    drop(database);
    assert!(kept.starts_with(&note) && kept.contains(&format!("— {NAME} ")), "{kept}");
    assert_eq!(actum.run(&["ledger", "verify"]).code, 0);

    // Everything in the project that tells of later entries.
    let _ = fs::remove_dir_all(actum.path(".actum/runs"));
    roll_back(&actum, "early.db");
    let verified = actum.run(&["ledger", "verify", "--json"]);
    assert!(verified.code == 1 && verified.stdout.contains("checkpoint was signed"), "{}", verified.stdout);
    let (code, all) = witness(&actum);
    let refused: Vec<&str> = all.iter().filter(|(_, ok, _)| !ok).map(|(kind, ..)| kind.as_str()).collect();
    assert_eq!((code, refused), (1, vec!["file", "git", "witness"]), "{all:?}");
    // With other entries in the place of the lost ones, too.
    publish(&actum, "b");
    publish(&actum, "a");
    let (code, all) = witness(&actum);
    let refused = all.iter().filter(|(kind, ok, _)| !ok && kind != "webhook").count();
    assert_eq!((code, refused), (1, 3), "{all:?}");
    assert_eq!(fs::read_to_string(file.path()).unwrap(), note, "what is kept is not overwritten");
}

#[test]
fn server_hands_checkpoints_to_witnesses_by_its_clock() {
    let actum = project(&[("a", "date +%N > a")]);
    let folder = Folder::new();
    configure(&actum, &json!([{"type": "file", "path": folder.path()}]), &[]);
    publish(&actum, "a");
    let server = Server::start(&actum, &["--workers", "0", "--housekeeping", "1"]);
    until("the checkpoint is kept", || fs::read_dir(folder.path()).unwrap().flatten().count() == 1);
    drop(server);
}

#[test]
fn witnesses_that_fail_or_lie_are_named() {
    let actum = project(&[("a", "date +%N > a")]).with_env("HOOK", "whsec_AAAA");
    let liar = SigningWitness::new(1);
    let (asked, honest) = (Arc::clone(&liar), SigningWitness::new(2));
    let signer = serve(move |body| asked.answer(body));
    let broken = serve(|_| (500, String::new()));
    let witnesses = json!([
        {"type": "file", "path": "/nonexistent/folder"}, {"type": "git", "repository": "/nonexistent/repository"},
        {"type": "webhook", "url": format!("http://{broken}"), "secret": "env:HOOK"},
        {"type": "webhook", "url": format!("http://{broken}"), "secret": "env:NOT_SET"},
        {"type": "c2sp", "url": format!("http://{signer}"), "key": honest.verifier_key()},
    ]);
    configure(&actum, &witnesses, &[signer, broken]);
    publish(&actum, "a");
    let (code, all) = witness(&actum);
    assert!(code == 1 && all.iter().all(|(_, ok, _)| !ok), "{all:?}");
    for (found, part) in
        all.iter().zip(["/nonexistent/folder", "/nonexistent/repository", "500", "is not set", "without a signature"])
    {
        assert!(found.2.contains(part), "{found:?}");
    }
    // Without any, and with bad ones.
    let plain = project(&[("a", "true")]);
    assert_eq!(plain.run(&["ledger", "witness"]).code, 2);
    for bad in [
        json!({"type": "file", "path": "here"}),
        json!({"type": "c2sp", "url": "https://w.example", "key": "x"}),
        json!({"type": "fax"}),
    ] {
        let actum = project(&[("a", "true")]);
        configure(&actum, &json!([bad]), &[]);
        let refused = actum.run(&["ledger", "witness"]);
        assert!(refused.code == 2 && refused.stderr.contains("ledger"), "{bad}: {}", refused.stderr);
    }
}
