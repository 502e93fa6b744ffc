//! Contents in packs: the promises of the port, sweeping, joining, and files that are not what they should be.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use actum_contract::blob::{Batch, BlobError, Blobs};
use actum_contract::digest::Digest;
use actum_store::blob::{Folder, Thoroughness};
use actum_testkit::blobs::{MemoryBlobs, conformance};
use actum_testkit::folder::Folder as Scratch;

fn put(blobs: &Folder, contents: &[&[u8]]) -> Vec<Digest> {
    let batch = blobs.batch().unwrap();
    let digests = put_into(&*batch, contents);
    batch.commit().unwrap();
    digests
}

fn put_into(batch: &dyn Batch, contents: &[&[u8]]) -> Vec<Digest> {
    contents
        .iter()
        .map(|content| {
            batch.put(Digest::blake3(content), content).unwrap();
            Digest::blake3(content)
        })
        .collect()
}

fn sweep(blobs: &Folder, living: &[Digest]) -> actum_store::blob::Swept {
    blobs.sweep(Thoroughness::Cheap, |_| Ok::<_, BlobError>(living.iter().copied().collect::<HashSet<_>>())).unwrap()
}

fn files(scratch: &Scratch, end: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(scratch.join("packs")).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.to_str().unwrap().ends_with(end)).collect()
}

#[test]
fn a_folder_keeps_the_promises_of_the_port() {
    let scratch = Scratch::new();
    let path = scratch.path().to_owned();
    conformance(&Folder::open(&path).unwrap(), &|| Box::new(Folder::open(&path).unwrap()));
}

#[test]
fn memory_keeps_them_too() {
    let memory = MemoryBlobs::default();
    conformance(&memory, &|| Box::new(memory.clone()));
}

#[test]
fn a_content_is_stored_once() {
    let scratch = Scratch::new();
    let blobs = Folder::open(scratch.path()).unwrap();
    put(&blobs, &[b"a", b"b"]);
    let (before, packs) = blobs.size().unwrap();
    put(&blobs, &[b"b", b"a"]);
    let batch = blobs.batch().unwrap();
    batch.put_stream(&mut &b"a"[..], false).unwrap();
    batch.commit().unwrap();
    drop(batch);
    assert_eq!(blobs.size().unwrap(), (before, packs));
    assert_eq!(blobs.check().unwrap(), (2, vec![]));
    assert!(files(&scratch, ".tmp").is_empty(), "a batch with nothing new leaves no file");
}

#[test]
fn many_writers_at_once() {
    let scratch = Scratch::new();
    let path = scratch.path();
    std::thread::scope(|scope| {
        for writer in 0..8 {
            scope.spawn(move || {
                let blobs = Folder::open(path).unwrap();
                for n in 0..20 {
                    put(&blobs, &[format!("shared {n}").as_bytes(), format!("own {writer} {n}").as_bytes()]);
                }
            });
        }
    });
    let blobs = Folder::open(path).unwrap();
    for writer in 0..8 {
        for n in 0..20 {
            let content = format!("own {writer} {n}").into_bytes();
            assert_eq!(blobs.read(Digest::blake3(&content)).unwrap(), content);
        }
    }
    assert_eq!(blobs.check().unwrap().1, []);
}

#[test]
fn small_packs_are_joined_as_work_goes_on_and_large_ones_stay() {
    let scratch = Scratch::new();
    let blobs = Folder::open(scratch.path()).unwrap();
    let large = vec![1; 17 << 20];
    let mut digests = put(&blobs, &[&large]);
    for n in 0..150_u32 {
        digests.extend(put(&blobs, &[&n.to_le_bytes()]));
        assert!(files(&scratch, ".pack").len() <= 66, "{} packs after {n}", files(&scratch, ".pack").len());
    }
    let again = Folder::open(scratch.path()).unwrap();
    // One that was opened before still finds everything.
    for digest in digests {
        assert!(again.read(digest).is_ok() && blobs.read(digest).is_ok());
    }
}

/// Others read while small packs are joined and removed: what was stored is found at any moment.
#[test]
fn readers_find_everything_while_packs_are_joined() {
    let scratch = Scratch::new();
    let (writer, reader) = (Folder::open(scratch.path()).unwrap(), Folder::open(scratch.path()).unwrap());
    let stored = std::sync::Mutex::new(put(&writer, &[b"first"]));
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..150_u32 {
                let digests = put(&writer, &[format!("content {n}").as_bytes()]);
                stored.lock().unwrap().extend(digests);
            }
            is_over.store(true, std::sync::atomic::Ordering::SeqCst);
        });
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::SeqCst) {
                    for digest in stored.lock().unwrap().clone() {
                        assert!(reader.read(digest).is_ok(), "{digest}");
                    }
                }
            });
        }
    });
    assert_eq!(stored.lock().unwrap().len(), 151);
}

/// Many packs are read with few open files: those of one folder are joined, so each has a folder of its own.
#[test]
fn open_files_do_not_grow_with_packs() {
    const FOLDERS: u32 = 300;
    let scratch = Scratch::new();
    let mut all = Vec::new();
    for n in 0..FOLDERS {
        let folder = scratch.path().join(n.to_string());
        let blobs = Folder::open(&folder).unwrap();
        let digest = put(&blobs, &[&n.to_le_bytes()]).remove(0);
        all.push((blobs, folder, digest));
    }
    // Only packs count: other tests of this program have other files open.
    let open = || {
        let entries = fs::read_dir("/proc/self/fd").unwrap().flatten();
        let targets = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
        targets
            .filter(|target| target.starts_with(scratch.path()) && target.to_string_lossy().contains(".pack"))
            .count()
    };
    for (blobs, _, digest) in &all {
        blobs.read(*digest).unwrap();
        assert!(open() <= 64, "{} open packs", open());
    }
    assert!(open() > 0, "packs are kept open at all");
}

#[test]
fn a_sweep_keeps_what_lives_and_says_that_something_went() {
    let scratch = Scratch::new();
    let blobs = Folder::open(scratch.path()).unwrap();
    let large = vec![9; 3 << 20];
    let digests = put(&blobs, &[b"dead".repeat(1000).as_slice(), b"alive", &large]);
    let rest = put(&blobs, &[b"untouched"]);
    let generation = blobs.batch().unwrap().generation();
    let swept = sweep(&blobs, &[digests[1], digests[2], rest[0]]);
    assert_eq!(swept.contents, 0, "a pack that is mostly alive is left alone");
    let swept = sweep(&blobs, &[digests[1], rest[0]]);
    assert_eq!(swept.contents, 2);
    assert!(swept.bytes > 3 << 20 && swept.bytes_left < 1000);
    assert_eq!(blobs.read(digests[1]).unwrap(), b"alive");
    assert!(matches!(blobs.read(digests[2]), Err(BlobError::Missing(_))));
    assert!(blobs.batch().unwrap().generation() > generation);
    assert_eq!(sweep(&blobs, &[]).bytes_left, 0);
}

#[test]
fn a_sweep_waits_for_whoever_is_storing() {
    let scratch = Scratch::new();
    let blobs = Folder::open(scratch.path()).unwrap();
    let other = Folder::open(scratch.path()).unwrap();
    let old = put(&blobs, &[b"stored before"]);
    let batch = blobs.batch().unwrap();
    put_into(&*batch, &[b"stored before", b"new"]);
    std::thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let other = &other;
        scope.spawn(move || {
            // Whoever stored has made his reference durable by the time this is asked.
            other
                .sweep(Thoroughness::Exact, |_| Ok::<_, BlobError>(HashSet::from([Digest::blake3(b"stored before")])))
                .unwrap();
            tell.send(()).unwrap();
        });
        assert!(told.recv_timeout(Duration::from_millis(200)).is_err(), "it waits");
        batch.commit().unwrap();
        drop(batch);
        told.recv().unwrap();
    });
    assert_eq!(blobs.read(old[0]).unwrap(), b"stored before");
}

#[test]
fn leavings_of_the_dead_are_swept() {
    let scratch = Scratch::new();
    let blobs = Folder::open(scratch.path()).unwrap();
    let kept = put(&blobs, &[b"kept"]);
    let leave = || {
        fs::write(scratch.join("packs/dead.pack.tmp"), b"half").unwrap();
        fs::write(scratch.join("packs/orphan.pack"), b"no index").unwrap();
    };
    leave();
    sweep(&blobs, &kept);
    assert_eq!((files(&scratch, ".tmp").len(), files(&scratch, ".pack").len()), (0, 1));
    leave();
    let batch = blobs.batch().unwrap();
    Folder::open(scratch.path()).unwrap();
    assert_eq!(files(&scratch, ".tmp").len(), 1, "somebody is storing: it may be his");
    batch.put(Digest::blake3(b"given up"), b"given up").unwrap();
    assert_eq!(files(&scratch, ".tmp").len(), 2);
    drop(batch);
    assert_eq!(files(&scratch, ".tmp").len(), 1, "a batch that is dropped takes its file along");
    Folder::open(scratch.path()).unwrap();
    assert_eq!((files(&scratch, ".tmp").len(), files(&scratch, ".pack").len()), (0, 1));
}

#[test]
fn an_index_that_was_lost_is_made_again() {
    let scratch = Scratch::new();
    let large = vec![5; 2 << 20];
    let digests = put(&Folder::open(scratch.path()).unwrap(), &[b"one", b"two", &large]);
    fs::remove_file(files(&scratch, ".idx").pop().unwrap()).unwrap();
    let blobs = Folder::open(scratch.path()).unwrap();
    assert_eq!(blobs.read(digests[1]).unwrap(), b"two");
    assert_eq!((blobs.check().unwrap(), files(&scratch, ".idx").len()), ((3, vec![]), 1));
}

#[test]
fn files_that_are_not_ours_are_named() {
    let scratch = Scratch::new();
    let digest = put(&Folder::open(scratch.path()).unwrap(), &[b"content"])[0];
    let index = files(&scratch, ".idx").pop().unwrap();
    let whole = fs::read(&index).unwrap();
    let answer = || Folder::open(scratch.path()).unwrap().read(digest).unwrap_err().to_string();

    let mut newer = whole.clone();
    newer[11] = b'2';
    fs::write(&index, newer).unwrap();
    assert!(answer().contains("made by a newer version"), "{}", answer());
    fs::write(&index, &whole[..whole.len() - 1]).unwrap();
    assert!(answer().contains("cannot understand"), "{}", answer());

    fs::write(&index, &whole).unwrap();
    let pack = files(&scratch, ".pack").pop().unwrap();
    let bytes = fs::read(&pack).unwrap();
    fs::write(&pack, &bytes[..bytes.len() - 3]).unwrap();
    assert!(answer().contains("is damaged in pack"), "{}", answer());
}

/// Beginning to store makes what is known be forgotten; who reads meanwhile must not take that for missing.
#[test]
fn reading_while_others_begin_to_store() {
    let scratch = Scratch::new();
    let blobs = Folder::open(scratch.path()).unwrap();
    let digest = put(&blobs, &[b"there"])[0];
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..500).for_each(|_| drop(blobs.batch().unwrap())));
            scope.spawn(|| (0..500).for_each(|_| assert_eq!(blobs.read(digest).unwrap(), b"there")));
        }
    });
}

#[test]
fn what_would_go_is_told_and_stays() {
    let scratch = Scratch::new();
    let blobs = Folder::open(&scratch.join("blobs")).unwrap();
    let all = put(&blobs, &[b"one", b"two", b"three"]);
    let living = HashSet::from([all[0]]);
    let told = blobs.would_sweep(&living).unwrap();
    assert_eq!((told.contents, told.bytes), (2, 8));
    assert_eq!(blobs.would_sweep(&living).unwrap(), told);
    assert!(all.iter().all(|digest| blobs.contains(*digest).unwrap()));
    assert_eq!(blobs.written_since(0).unwrap().len(), 3);
    assert!(blobs.written_since(u64::MAX >> 1).unwrap().is_empty(), "nothing is from the future");
    assert_eq!(sweep(&blobs, &living.into_iter().collect::<Vec<_>>()).contents, 2);
    assert!(blobs.written_since(0).unwrap().contains(&all[0]));
}
