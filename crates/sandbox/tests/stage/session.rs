//! A program in a cell with which we talk for longer.

use std::fs::File;
use std::io::{BufRead as _, BufReader, ErrorKind, Read, Write as _};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use actum_sandbox::{Access, Cell, Ended, Listeners, Network, Session};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::desk::{Case, Desk, PROJECT, cell};

pub(crate) const ALL: &[Case] = &[
    ("a_program_answers_as_long_as_it_is_talked_to", talk),
    ("a_program_that_ends_is_over", ends),
    ("a_program_that_is_stopped_has_its_grace", stopped),
    ("a_session_that_is_dropped_leaves_nothing", dropped),
    ("errors_without_end_keep_nobody_waiting", flood),
    ("a_session_ends_when_its_time_is_over", time),
    ("a_session_hands_over_listeners", listeners),
    ("a_session_ends_with_who_makes_cells", orphaned),
];

const ERRORS_BYTES: usize = 1_000;

/// No one is to wait longer than this for anything.
const PATIENCE: Duration = Duration::from_secs(20);

fn asked(desk: &Desk, script: &str) -> Cell {
    std::fs::create_dir_all(desk.path("own")).unwrap();
    let mut cell = cell(&[desk.elsewhere("own", PROJECT, Access::Write)], script);
    (cell.program[0], cell.limits.timeout_ms, cell.limits.grace_ms) = ("bash".into(), None, 400);
    cell
}

fn start(desk: &Desk, cell: Cell) -> Session {
    Session::start(&desk.spawner, cell, ERRORS_BYTES, |listeners| panic!("{listeners:?}")).unwrap()
}

/// The end of a pipe from which nobody reads without waiting.
struct Patient(File);

impl Read for Patient {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.0.read(into) {
                Err(e) if e.kind() == ErrorKind::WouldBlock && Instant::now() < until => {
                    let patience = Timespec { tv_sec: 1, tv_nsec: 0 };
                    poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&patience)).unwrap();
                }
                done => return done,
            }
        }
    }
}

fn talking(session: &mut Session) -> (File, BufReader<Patient>) {
    let (input, output) = session.take_pipes().unwrap();
    assert!(session.take_pipes().is_none());
    (File::from(input), BufReader::new(Patient(File::from(output))))
}

fn line(output: &mut BufReader<Patient>) -> String {
    let mut said = String::new();
    output.read_line(&mut said).unwrap();
    said
}

fn rest(mut output: BufReader<Patient>) -> String {
    let mut said = String::new();
    output.read_to_string(&mut said).unwrap();
    said
}

fn wait_until(what: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !what() {
        assert!(Instant::now() < until, "it takes too long");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn talk(desk: &Desk) {
    let mut cell = asked(desk, "");
    cell.program = vec!["cat".into()];
    let mut session = start(desk, cell);
    let (input, output) = session.take_pipes().unwrap();
    let is = |file: &OwnedFd| {
        let waits = !rustix::fs::fcntl_getfl(file).unwrap().contains(rustix::fs::OFlags::NONBLOCK);
        let is_inherited = !rustix::io::fcntl_getfd(file).unwrap().contains(rustix::io::FdFlags::CLOEXEC);
        (waits, is_inherited)
    };
    assert_eq!((is(&input), is(&output)), ((false, false), (false, false)));
    let (mut input, mut output) = (File::from(input), BufReader::new(Patient(File::from(output))));
    for round in 0..100 {
        writeln!(input, "round {round}").unwrap();
        assert_eq!(line(&mut output), format!("round {round}\n"));
        assert!(!session.is_over());
    }
    // Who says more than a pipe holds is told so, and does not wait.
    let mut fed = 0;
    let full = loop {
        match input.write(&[b'x'; 4096]) {
            Ok(bytes) => fed += bytes,
            Err(e) => break e,
        }
        assert!(fed < 16 << 20, "nobody reads what comes back");
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    drop(input);
    assert_eq!(rest(output).len(), fed);
    let (report, errors) = session.end().unwrap();
    assert_eq!((report.ended, errors.bytes), (Ended::Exited(0), 0));
}

fn ends(desk: &Desk) {
    let mut session = start(desk, asked(desk, "echo sorry >&2; read -r said; echo \"$said\"; exit 3"));
    let (mut input, output) = talking(&mut session);
    input.write_all(b"die\n").unwrap();
    assert_eq!(rest(output), "die\n");
    wait_until(|| session.is_over());
    assert!(input.write_all(b"more\n").is_err());
    let (report, errors) = session.end().unwrap();
    assert_eq!((report.ended, &errors.kept[..]), (Ended::Exited(3), &b"sorry\n"[..]));
    let (report, _) = start(desk, asked(desk, "kill -9 $$")).end().unwrap();
    assert_eq!(report.ended, Ended::Signalled(9));
    // Whoever does not talk to it does not keep it waiting.
    let (report, _) = start(desk, asked(desk, "cat; yes | cat")).end().unwrap();
    assert!(matches!(report.ended, Ended::Exited(_) | Ended::Signalled(_)), "{report:?}");
    let mut nothing = asked(desk, "");
    nothing.program = vec!["/no/such/program".into()];
    let (report, _) = start(desk, nothing).end().unwrap();
    assert_eq!(report.ended, Ended::NotStarted(2));
    let mut nowhere = asked(desk, "");
    nowhere.grants[0] = desk.elsewhere("none", PROJECT, Access::Read);
    let session = start(desk, nowhere);
    wait_until(|| session.is_over());
    let (report, _) = session.end().unwrap();
    assert!(matches!(report.ended, Ended::NotBuilt(_)), "{report:?}");
}

fn stopped(desk: &Desk) {
    let polite = "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let deaf = "trap '' TERM; echo ready; while :; do sleep 0.05; done";
    for (script, said, grace_ms) in [(polite, "bye\n", 15_000), (deaf, "", 400)] {
        let mut cell = asked(desk, script);
        cell.limits.grace_ms = grace_ms;
        let mut session = start(desk, cell);
        let (_input, mut output) = talking(&mut session);
        assert_eq!(line(&mut output), "ready\n");
        let began = Instant::now();
        let stop = session.stopping();
        stop();
        // Asked again, it has its time all the same.
        std::thread::sleep(Duration::from_millis(50));
        session.stop();
        stop();
        let (report, _) = session.end().unwrap();
        let took = began.elapsed();
        assert_eq!(report.ended, Ended::Cancelled);
        assert_eq!(took >= Duration::from_millis(grace_ms), said.is_empty(), "{took:?}");
        assert_eq!(rest(output), said);
        // To nobody any more.
        stop();
    }
}

/// Processes of this machine that were started with these words.
fn living(mark: &str) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let said = |entry: std::fs::DirEntry| std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
    let has = |said: Vec<u8>| said.windows(mark.len()).any(|part| part == mark.as_bytes());
    processes.map(said).filter(|said| has(said.clone())).count()
}

fn dropped(desk: &Desk) {
    let mark = format!("mark-of-{}", std::process::id());
    // Deaf, in a session of its own, with children that nobody waits for.
    let script = format!(
        "trap '' TERM; : {mark}; (setsid bash -c 'trap \"\" TERM; sleep 1000; : {mark}' &); echo ready; sleep 1000; :"
    );
    let mut session = start(desk, asked(desk, &script));
    let (_input, mut output) = talking(&mut session);
    assert_eq!(line(&mut output), "ready\n");
    wait_until(|| living(&mark) == 2);
    let began = Instant::now();
    drop(session);
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(living(&mark), 0);
    // Before it was there at all, and while it comes to be.
    for wait_ms in [0, 1, 2, 4, 8, 16] {
        let session = start(desk, asked(desk, &script));
        std::thread::sleep(Duration::from_millis(wait_ms));
        drop(session);
        assert_eq!(living(&mark), 0, "after {wait_ms} ms");
    }
    // Over already.
    let session = start(desk, asked(desk, "true"));
    wait_until(|| session.is_over());
    session.stop();
    drop(session);
}

fn flood(desk: &Desk) {
    const BYTES: usize = 30_000_000;
    let script = format!("echo begin >&2; head -c {BYTES} /dev/zero >&2; echo done; read -r said; echo \"$said\"");
    let mut session = start(desk, asked(desk, &script));
    let (mut input, mut output) = talking(&mut session);
    assert_eq!(line(&mut output), "done\n");
    input.write_all(b"still there\n").unwrap();
    assert_eq!(rest(output), "still there\n");
    let (report, errors) = session.end().unwrap();
    assert_eq!(report.ended, Ended::Exited(0));
    assert_eq!((errors.kept.len(), errors.bytes, errors.is_cut()), (ERRORS_BYTES, BYTES as u64 + 6, true));
    assert!(errors.kept.starts_with(b"begin\n\0"));
}

fn time(desk: &Desk) {
    let mut short = asked(desk, "while :; do read -r said; echo \"$said\"; done");
    short.limits.timeout_ms = Some(600);
    let mut session = start(desk, short);
    let (mut input, mut output) = talking(&mut session);
    let began = Instant::now();
    // To be talked to does not make it longer.
    while input.write_all(b"x\n").is_ok() && line(&mut output) == "x\n" {
        std::thread::sleep(Duration::from_millis(20));
        assert!(began.elapsed() < PATIENCE);
    }
    let (report, _) = session.end().unwrap();
    assert_eq!(report.ended, Ended::TimedOut);
}

fn listeners(desk: &Desk) {
    let mut cell = asked(desk, "exec 3<>/dev/tcp/127.0.0.1/4100; read -r said <&3; echo \"$said\"; read -r end");
    (cell.network, cell.bridge) = (Network::Off, Some(4100));
    let (to, from) = mpsc::channel::<TcpListener>();
    let hand_over = move |listeners: Listeners| to.send(listeners.bridge.unwrap()).unwrap();
    let mut session = Session::start(&desk.spawner, cell, ERRORS_BYTES, hand_over).unwrap();
    let (_input, mut output) = talking(&mut session);
    let bridge = from.recv_timeout(PATIENCE).unwrap();
    let (mut stream, _) = bridge.accept().unwrap();
    stream.write_all(b"over the bridge\n").unwrap();
    assert_eq!(line(&mut output), "over the bridge\n");
    session.stop();
    assert_eq!(session.end().unwrap().0.ended, Ended::Cancelled);
    // Whoever still waits for listeners is told that there will be none.
    assert!(from.recv_timeout(PATIENCE).is_err());
}

/// What was begun with a helper ends with it, and it is told.
fn orphaned(desk: &Desk) {
    let spawner = actum_sandbox::Spawner::start(0).unwrap();
    let cell = asked(desk, "echo ready; sleep 1000; :");
    let mut session = Session::start(&spawner, cell, ERRORS_BYTES, |listeners| panic!("{listeners:?}")).unwrap();
    let (_input, mut output) = talking(&mut session);
    assert_eq!(line(&mut output), "ready\n");
    drop(spawner);
    wait_until(|| session.is_over());
    assert!(session.end().is_err());
}
