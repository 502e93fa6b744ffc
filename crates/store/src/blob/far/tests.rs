//! A folder before an object store: a small one of our own on loopback that fails in every way we can think of, and a folder.

use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use actum_contract::blob::{BlobError, Blobs as _};
use actum_contract::digest::Digest;
use actum_testkit::folder::Folder as Scratch;

use super::*;
use crate::blob::{Folder, Thoroughness};

/// What the object store does instead of answering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Status(u16),
    /// Hangs up in the middle of the content.
    Cut,
    /// Hangs up before it says anything.
    Silent,
    /// Something else of the same length.
    Wrong,
    /// Less, and says so.
    Short,
    NoBucket,
}

/// Method, and how often it was asked for this object before.
type Plan = dyn Fn(&str, usize) -> Option<Fault> + Send + Sync;

#[derive(Default)]
struct Kept {
    objects: BTreeMap<String, Vec<u8>>,
    asked: BTreeMap<(String, String), usize>,
}

struct Fake {
    url: String,
    kept: Arc<Mutex<Kept>>,
    over: Arc<AtomicBool>,
}

impl Fake {
    fn start(plan: impl Fn(&str, usize) -> Option<Fault> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (kept, over, plan) = (Arc::<Mutex<Kept>>::default(), Arc::<AtomicBool>::default(), Arc::new(plan));
        let (inner, ended) = (Arc::clone(&kept), Arc::clone(&over));
        let serve = move || {
            for stream in listener.incoming().flatten() {
                if ended.load(Ordering::SeqCst) {
                    return;
                }
                let (kept, plan) = (Arc::clone(&inner), Arc::clone(&plan));
                drop(std::thread::Builder::new().spawn(move || while answer(&stream, &kept, &*plan).is_some() {}));
            }
        };
        drop(std::thread::Builder::new().spawn(serve).unwrap());
        Self { url, kept, over }
    }

    fn options(&self) -> Vec<(String, String)> {
        let keys = [
            ("endpoint", self.url.as_str()),
            ("allow_http", "true"),
            ("region", "nowhere"),
            ("access_key_id", "id"),
            ("secret_access_key", "hunter2"),
        ];
        keys.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec()
    }

    fn far(&self, patience: Duration) -> Arc<Far> {
        Arc::new(Far::open_with("s3://bucket/some", &self.options(), patience).unwrap())
    }

    fn count(&self, method: &str) -> usize {
        self.kept.lock().unwrap().asked.iter().filter(|((m, _), _)| m == method).map(|(_, n)| n).sum()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.url.trim_start_matches("http://")));
    }
}

fn answer(stream: &TcpStream, kept: &Mutex<Kept>, plan: &Plan) -> Option<()> {
    let mut lines = BufReader::new(stream);
    let mut first = String::new();
    lines.read_line(&mut first).ok().filter(|read| *read > 0)?;
    let mut words = first.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut length = 0;
    loop {
        let mut line = String::new();
        lines.read_line(&mut line).ok()?;
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    lines.read_exact(&mut body).ok()?;
    let mut kept = kept.lock().unwrap();
    let asked = kept.asked.entry((method.clone(), path.clone())).or_default();
    *asked += 1;
    let fault = plan(&method, *asked - 1);
    let head = |status: u16, length: usize| {
        let fixed = "ETag: \"x\"\r\nLast-Modified: Wed, 21 Oct 2015 07:28:00 GMT";
        format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\n{fixed}\r\n\r\n")
    };
    let mut out = stream;
    let mut say = |head: String, body: &[u8]| out.write_all(head.as_bytes()).and_then(|()| out.write_all(body)).ok();
    match fault {
        Some(Fault::Silent) => return None,
        Some(Fault::Status(status)) => return say(head(status, 4), b"fail"),
        Some(Fault::NoBucket) => {
            let text = b"<Error><Code>NoSuchBucket</Code></Error>";
            return say(head(404, text.len()), text);
        }
        _ => {}
    }
    match method.as_str() {
        "PUT" => {
            kept.objects.insert(path, body);
            say(head(200, 0), b"")
        }
        "DELETE" => {
            kept.objects.remove(&path);
            say(head(204, 0), b"")
        }
        _ => {
            let Some(found) = kept.objects.get(&path) else { return say(head(404, 0), b"") };
            let whole = if method == "HEAD" { &[][..] } else { found.as_slice() };
            match fault {
                Some(Fault::Cut) => {
                    say(head(200, found.len()), &whole[..whole.len() / 2]);
                    None
                }
                Some(Fault::Wrong) => say(head(200, found.len()), &vec![b'?'; whole.len()]),
                Some(Fault::Short) => say(head(200, found.len() / 2), &whole[..whole.len() / 2]),
                _ => say(head(200, found.len()), whole),
            }
        }
    }
}

const SOON: Duration = Duration::from_millis(700);

fn store(folder: &Folder, contents: &[&[u8]]) -> Result<Vec<Digest>, BlobError> {
    let batch = folder.batch()?;
    let digests: Vec<_> = contents.iter().map(|content| Digest::blake3(content)).collect();
    for (digest, content) in digests.iter().zip(contents) {
        batch.put(*digest, content)?;
    }
    batch.commit()?;
    Ok(digests)
}

#[test]
fn another_machine_reads_what_one_has_committed() {
    let (fake, one, two) = (Fake::start(|_, _| None), Scratch::new(), Scratch::new());
    let here = Folder::open_before(one.path(), fake.far(SOON)).unwrap();
    let large = vec![3; 600 << 10];
    let digests = store(&here, &[b"a", b"b", b"", &large]).unwrap();
    let there = Folder::open_before(two.path(), fake.far(SOON)).unwrap();
    assert!(digests.iter().all(|digest| there.contains(*digest).unwrap()));
    assert_eq!(there.read(digests[0]).unwrap(), b"a");
    let mut out = Vec::new();
    assert_eq!(there.copy(digests[3], &mut out).unwrap(), large.len() as u64);
    assert!(out == large);
    let gets = fake.count("GET");
    assert_eq!((there.read(digests[0]).unwrap(), there.read(digests[3]).unwrap() == large), (b"a".to_vec(), true));
    assert_eq!(fake.count("GET"), gets, "what is near is not fetched again");
    there.fetch(&[digests[1], digests[2], digests[1], Digest::blake3(b"unknown")]).unwrap();
    let gets = fake.count("GET");
    assert_eq!((there.read(digests[1]).unwrap(), there.read(digests[2]).unwrap()), (b"b".to_vec(), Vec::new()));
    assert_eq!(fake.count("GET"), gets);
    let unknown = Digest::blake3(b"unknown");
    assert!(!there.contains(unknown).unwrap());
    assert!(matches!(there.read(unknown), Err(BlobError::Missing(d)) if d == unknown));
    // Nothing new is nothing to send.
    let puts = fake.count("PUT");
    store(&here, &[b"a", b"b"]).unwrap();
    assert_eq!(fake.count("PUT"), puts);
    let names: Vec<_> = fake.kept.lock().unwrap().objects.keys().cloned().collect();
    let hex = digests[0].to_hex();
    assert!(names.contains(&format!("/bucket/some/blobs/{}/{hex}", &hex[..2])), "{names:?}");
}

#[test]
fn googles_is_asked_in_its_own_form() {
    let (fake, one, two) = (Fake::start(|_, _| None), Scratch::new(), Scratch::new());
    let options = [("endpoint", fake.url.as_str()), ("allow_http", "true"), ("bearer_token", "hunter2")];
    let options = options.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let far = Arc::new(Far::open_with("gs://bucket/some", &options, SOON).unwrap());
    far.probe().unwrap();
    let digest = store(&Folder::open_before(one.path(), Arc::clone(&far)).unwrap(), &[b"x"]).unwrap()[0];
    assert_eq!(Folder::open_before(two.path(), far).unwrap().read(digest).unwrap(), b"x");
}

#[test]
fn shelves_do_not_see_each_other() {
    let (fake, one, two) = (Fake::start(|_, _| None), Scratch::new(), Scratch::new());
    let far = fake.far(SOON);
    let here = Folder::open_before(one.path(), Arc::new(far.within("acme/blobs"))).unwrap();
    let digest = store(&here, &[b"theirs"]).unwrap()[0];
    let other = Folder::open_before(two.path(), Arc::new(far.within("zeta/blobs"))).unwrap();
    assert!(!other.contains(digest).unwrap());
    assert!(matches!(other.read(digest), Err(BlobError::Missing(_))));
    let same = Folder::open_before(two.path(), Arc::new(far.within("acme/blobs"))).unwrap();
    assert_eq!(same.read(digest).unwrap(), b"theirs");
}

#[test]
fn what_fails_for_a_while_is_asked_again() {
    for fault in [Fault::Status(500), Fault::Status(503), Fault::Status(429), Fault::Silent, Fault::Cut] {
        let fake = Fake::start(move |_, asked| (asked < 3).then_some(fault));
        let (one, two) = (Scratch::new(), Scratch::new());
        let here = Folder::open_before(one.path(), fake.far(Duration::from_secs(30))).unwrap();
        let digest = store(&here, &[b"twice"]).unwrap()[0];
        let there = Folder::open_before(two.path(), fake.far(Duration::from_secs(30))).unwrap();
        assert_eq!(there.read(digest).unwrap(), b"twice", "{fault:?}");
    }
}

#[test]
fn what_stays_away_is_told_and_nothing_is_lost() {
    let away = Arc::new(AtomicBool::new(true));
    let seen = Arc::clone(&away);
    let fake = Fake::start(move |_, _| seen.load(Ordering::SeqCst).then_some(Fault::Status(503)));
    let (one, two) = (Scratch::new(), Scratch::new());
    let here = Folder::open_before(one.path(), fake.far(SOON)).unwrap();
    let told = store(&here, &[b"kept"]).unwrap_err();
    assert!(matches!(told, BlobError::Unavailable(_)), "{told:?}");
    assert!(told.to_string().contains("s3://bucket/some") && !told.to_string().contains("hunter2"), "{told}");
    assert!(matches!(here.contains(Digest::blake3(b"x")), Err(BlobError::Unavailable(_))));
    away.store(false, Ordering::SeqCst);
    // Somebody else's commit sends what this one could not.
    let again = Folder::open_before(one.path(), fake.far(SOON)).unwrap();
    store(&again, &[b"other"]).unwrap();
    let there = Folder::open_before(two.path(), fake.far(SOON)).unwrap();
    assert_eq!(there.read(Digest::blake3(b"kept")).unwrap(), b"kept");
}

#[test]
fn a_refusal_is_told_at_once() {
    for (fault, word) in [
        (Fault::Status(403), "denied"),
        (Fault::Status(401), "denied"),
        (Fault::Status(400), "refuses"),
        (Fault::NoBucket, "no such bucket"),
    ] {
        let fake = Fake::start(move |_, _| Some(fault));
        let one = Scratch::new();
        let here = Folder::open_before(one.path(), fake.far(Duration::from_secs(600))).unwrap();
        let begun = Instant::now();
        let told = store(&here, &[b"x"]).unwrap_err();
        assert!(matches!(told, BlobError::Refused(_)), "{fault:?}: {told:?}");
        assert!(told.to_string().contains(word) && !told.to_string().contains("hunter2"), "{told}");
        assert!(begun.elapsed() < Duration::from_secs(300));
        assert!(matches!(fake.far(SOON).probe(), Err(BlobError::Refused(_))), "{fault:?}");
    }
}

#[test]
fn what_is_wrong_is_never_believed() {
    for fault in [Fault::Wrong, Fault::Short] {
        let fake = Fake::start(move |method, _| (method == "GET").then_some(fault));
        let (one, two) = (Scratch::new(), Scratch::new());
        let here = Folder::open_before(one.path(), fake.far(SOON)).unwrap();
        let digest = store(&here, &[b"the truth"]).unwrap()[0];
        let there = Folder::open_before(two.path(), fake.far(SOON)).unwrap();
        let told = there.read(digest).unwrap_err();
        assert!(matches!(told, BlobError::Damaged(d, _) if d == digest), "{told:?}");
        let mut out = Vec::new();
        assert!(matches!(there.copy(digest, &mut out), Err(BlobError::Damaged(..))));
        assert!(out.is_empty());
        there.fetch(&[digest]).unwrap();
        assert!(matches!(there.read(digest), Err(BlobError::Damaged(..))));
    }
    // Wrong once, right then.
    let fake = Fake::start(|method, asked| (method == "GET" && asked == 0).then_some(Fault::Wrong));
    let (one, two) = (Scratch::new(), Scratch::new());
    let digest = store(&Folder::open_before(one.path(), fake.far(SOON)).unwrap(), &[b"truth"]).unwrap()[0];
    assert_eq!(Folder::open_before(two.path(), fake.far(SOON)).unwrap().read(digest).unwrap(), b"truth");
}

#[test]
fn what_is_damaged_here_comes_from_there() {
    let (fake, one) = (Fake::start(|_, _| None), Scratch::new());
    let here = Folder::open_before(one.path(), fake.far(SOON)).unwrap();
    let digest = store(&here, &[b"the only one"]).unwrap()[0];
    let pack = std::fs::read_dir(one.join("packs")).unwrap().flatten().map(|entry| entry.path());
    let pack = pack.into_iter().find(|path| path.extension().is_some_and(|end| end == "pack")).unwrap();
    let mut bytes = std::fs::read(&pack).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&pack, bytes).unwrap();
    let here = Folder::open_before(one.path(), fake.far(SOON)).unwrap();
    assert_eq!(here.read(digest).unwrap(), b"the only one");
    let mut out = Vec::new();
    here.copy(digest, &mut out).unwrap();
    assert_eq!(out, b"the only one");
    assert!(matches!(Folder::open(one.path()).unwrap().read(digest), Err(BlobError::Damaged(..))));
}

#[test]
fn a_local_sweep_keeps_what_is_there_and_sends_nothing_again() {
    let (fake, one) = (Fake::start(|_, _| None), Scratch::new());
    let here = Folder::open_before(one.path(), fake.far(SOON)).unwrap();
    let first = store(&here, &[b"kept", b"dead"]).unwrap();
    store(&here, &[b"more"]).unwrap();
    let puts = fake.count("PUT");
    here.sweep(Thoroughness::Exact, |_| Ok::<_, BlobError>(HashSet::from([first[0]]))).unwrap();
    store(&here, &[]).unwrap();
    assert_eq!(fake.count("PUT"), puts);
    assert_eq!((here.read(first[0]).unwrap(), here.read(first[1]).unwrap()), (b"kept".to_vec(), b"dead".to_vec()));
    let marks = std::fs::read_dir(one.join("packs")).unwrap().flatten();
    assert_eq!(marks.filter(|entry| entry.path().extension().is_some_and(|end| end == "sent")).count(), 1);
}

#[test]
fn another_object_store_gets_everything() {
    let (first, second, one) = (Fake::start(|_, _| None), Fake::start(|_, _| None), Scratch::new());
    // Some were there before any object store was.
    store(&Folder::open(one.path()).unwrap(), &[b"early"]).unwrap();
    store(&Folder::open_before(one.path(), first.far(SOON)).unwrap(), &[b"later"]).unwrap();
    assert_eq!(first.count("PUT"), 2);
    store(&Folder::open_before(one.path(), second.far(SOON)).unwrap(), &[]).unwrap();
    assert_eq!(second.count("PUT"), 2);
}

#[test]
fn a_folder_is_an_object_store_too() {
    let (mount, one, two) = (Scratch::new(), Scratch::new(), Scratch::new());
    let url = format!("file://{}", mount.path().display());
    let far = Arc::new(Far::open_with(&url, &[], SOON).unwrap());
    assert!(far.is_shared() && far.shown() == url);
    far.probe().unwrap();
    let large: Vec<u8> = (0..20_000_000_u32).map(|i| (i >> 8) as u8).collect();
    let here = Folder::open_before(one.path(), Arc::clone(&far)).unwrap();
    let digests = store(&here, &[b"x", &large]).unwrap();
    let there = Folder::open_before(two.path(), Arc::clone(&far)).unwrap();
    assert!(there.read(digests[1]).unwrap() == large);
    // Young ones stay whatever anybody says.
    let swept = far.sweep(&|_| false, Duration::ZERO, false).unwrap();
    assert_eq!((swept.contents, swept.kept), (0, 2));
    let hex = digests[0].to_hex();
    let object = mount.join("blobs").join(&hex[..2]).join(&hex);
    let old = std::time::SystemTime::now() - SWEEP_AGE_MIN * 3;
    std::fs::File::options().write(true).open(&object).unwrap().set_modified(old).unwrap();
    assert_eq!(far.sweep(&|digest| digest == digests[0], Duration::ZERO, false).unwrap().contents, 0);
    let dry = far.sweep(&|_| false, Duration::ZERO, true).unwrap();
    assert_eq!((dry.contents, dry.bytes, object.exists()), (1, 1, true));
    assert_eq!(far.sweep(&|_| false, SWEEP_AGE_MIN * 4, false).unwrap().contents, 0);
    assert_eq!(far.sweep(&|_| false, Duration::ZERO, false).unwrap(), dry);
    assert!(!object.exists() && !far.contains(digests[0]).unwrap());
    // Not mounted is not the same as empty.
    let aside = mount.path().with_extension("aside");
    std::fs::rename(mount.path(), &aside).unwrap();
    assert!(matches!(far.contains(digests[1]), Err(BlobError::Unavailable(_))));
    std::fs::rename(&aside, mount.path()).unwrap();
    assert!(far.contains(digests[1]).unwrap());
}

#[test]
fn it_may_be_called_and_dropped_where_tasks_run() {
    let one = Scratch::new();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let far = Arc::new(Far::open("memory://x", &[]).unwrap());
        let here = Folder::open_before(one.path(), far).unwrap();
        let digest = store(&here, &[b"x"]).unwrap()[0];
        assert!(here.contains(digest).unwrap());
    });
}
