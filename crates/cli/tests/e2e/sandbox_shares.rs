//! What one cell takes is not missing in others of the same user, and what it takes beside its processes counts too.

use actum_testkit::program::Program;

use super::actum;

/// A program of root's, and one of an ordinary user's.
fn both() -> [Program; 2] {
    [actum(), actum().owned_by_nobody()]
}

/// Sends files over sockets and never receives them.
const HOARD: &str = r#"
import socket, sys, time
sent, pairs = 0, []
while sent < 4300:
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    a.setblocking(False)
    pairs.append((a, b))
    try:
        while True:
            socket.send_fds(a, [b"x"], [0] * 250)
            sent += 250
    except BlockingIOError:
        pass
    except OSError as e:
        break
print(sent, flush=True)
sys.stdin.read()
"#;

#[test]
fn files_in_flight_in_one_cell_stop_no_other() {
    for actum in both() {
        let mut hoard = actum.start(&["sandbox", "--", "/usr/bin/python3", "-c", HOARD], &[]);
        let sent: u32 = hoard.line().and_then(|line| line.parse().ok()).expect("a count of files");
        assert!(sent >= 1000, "{sent}");
        for _ in 0..3 {
            let ended = actum.run(&["sandbox", "--", "echo", "here"]);
            assert_eq!((ended.code, ended.stdout.as_str()), (0, "here\n"), "{}", ended.stderr);
        }
        hoard.kill();
    }
}

#[test]
fn watches_and_terminals_are_shared_out() {
    const WATCHES: &str =
        "import ctypes\nlibc = ctypes.CDLL(None)\nn = 0\nwhile libc.inotify_init1(0) >= 0: n += 1\nprint(n)";
    const TERMINALS: &str = "import os\nn = 0\ntry:\n  while True: os.openpty(); n += 1\nexcept OSError: print(n)";
    let limit = std::fs::read_to_string("/proc/sys/fs/inotify/max_user_instances").unwrap();
    let limit: u64 = limit.trim().parse().unwrap();
    for actum in both() {
        let count = |script: &str| {
            let ended = actum.run(&["sandbox", "--", "/usr/bin/python3", "-c", script]);
            ended.stdout.trim().parse::<u64>().unwrap_or_else(|_| panic!("{ended:?}"))
        };
        let watches = count(WATCHES);
        assert!((1..=(limit / 8).max(1)).contains(&watches), "{watches} of {limit}");
        let terminals = count(TERMINALS);
        assert!((1..=64).contains(&terminals), "{terminals}");
    }
}

/// Fills the buffers of sockets that nobody reads.
const TCP: &str = r#"
import socket, time
listener = socket.create_server(("127.0.0.1", 0))
held = []
for i in range(300):
    s = socket.create_connection(listener.getsockname()); s.setblocking(False)
    r, _ = listener.accept()
    held.append((s, r))
    try:
        while True: s.send(b"x" * 65536)
    except BlockingIOError: pass
time.sleep(20)
"#;
const UDP: &str = r#"
import socket, time
held = []
for i in range(900):
    r = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); r.bind(("127.0.0.1", 0)); held.append(r)
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for j in range(8): s.sendto(b"x" * 60000, r.getsockname())
    s.close()
time.sleep(20)
"#;
const UNIX: &str = r#"
import socket, time
held = []
for i in range(500):
    s, r = socket.socketpair(); s.setblocking(False); held.append((s, r))
    try:
        while True: s.send(b"x" * 65536)
    except BlockingIOError: pass
time.sleep(20)
"#;

/// Small messages whose senders are closed: the kernel takes far more for each than its one byte.
const UNIX_CLOSED: &str = r#"
import socket, time
held = []
for i in range(900):
    s, r = socket.socketpair(); s.setblocking(False); held.append(r)
    try:
        while True: s.send(b"x")
    except BlockingIOError: pass
    s.close()
time.sleep(20)
"#;

/// Sockets of protocols whose buffers are not counted cannot be made.
#[test]
fn sockets_of_other_protocols_are_refused() {
    const LITE: &str = "import socket\nfor kind, protocol in ((2, 136), (1, 132), (5, 132), (6, 33)):\n  try: socket.socket(socket.AF_INET, kind, protocol); print('made')\n  except OSError as e: print('refused')\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM, 17); socket.socketpair()";
    for actum in both() {
        let ended = actum.run(&["sandbox", "--", "/usr/bin/python3", "-c", LITE]);
        assert_eq!((ended.code, &*ended.stdout), (0, "refused\n".repeat(4).as_str()), "{}", ended.stderr);
    }
}

/// What cannot be bounded here is said.
#[test]
fn doctor_says_what_cells_of_a_user_share() {
    let words =
        if super::sandbox::is_root() { ["a user of its own", "all cells share"] } else { ["all cells share"; 2] };
    for (actum, word) in both().into_iter().zip(words) {
        let shown = actum.run(&["doctor", "--json"]).json();
        let walls = shown["sandbox"]["walls"].as_array().unwrap().clone();
        let shares = walls.iter().find(|wall| wall["name"] == "shares").unwrap();
        let detail = shares["detail"].as_str().unwrap();
        assert!(detail.contains(word) && detail.contains("buffers of sockets count as memory"), "{detail}");
    }
}

#[test]
fn buffers_of_sockets_count_as_memory() {
    for actum in both() {
        for script in [TCP, UDP, UNIX, UNIX_CLOSED] {
            let arguments = ["sandbox", "--memory-mb", "64", "--", "/usr/bin/python3", "-c", script];
            let ended = actum.run(&arguments);
            assert_eq!(ended.code, 137, "{script}: {}", ended.stderr);
            assert!(ended.stderr.contains("--memory-mb 64"), "{}", ended.stderr);
        }
    }
}

#[test]
fn room_on_the_disk_is_not_reserved_ahead() {
    const RESERVE: &str = "import ctypes, os\nf = os.open('big', os.O_RDWR | os.O_CREAT, 0)\nlibc = ctypes.CDLL(None, use_errno=True)\nfor mode in (1, 0, 16):\n  print(libc.fallocate64(f, mode, 0, ctypes.c_long(20 << 30)), os.strerror(ctypes.get_errno()))";
    const CLOSED: &str =
        "mkdir d; for i in $(seq 60); do head -c 5000000 /dev/zero > d/$i; chmod 0 d/$i; done; chmod 0 d; sleep 2";
    for actum in both() {
        let flags = ["sandbox", "--write", ".", "--disk-mb", "20", "--"];
        let ended = actum.run(&[&flags[..], &["/usr/bin/python3", "-c", RESERVE]].concat());
        assert_eq!(ended.stdout, "-1 Operation not supported\n".repeat(3), "{}", ended.stderr);
        // Files and folders that their owner may not read are counted all the same.
        let ended = actum.run(&[&flags[..], &["sh", "-c", CLOSED]].concat());
        assert_eq!(ended.code, 153, "{}", ended.stderr);
    }
}

#[test]
fn the_terminal_of_the_caller_is_restored() {
    let actum = actum();
    let script = format!(
        "stty sane; before=$(stty -g); {} sandbox -- sh -c 'stty raw -echo -isig; kill -9 $$'; [ \"$(stty -g)\" = \"$before\" ] && echo same",
        env!("CARGO_BIN_EXE_actum")
    );
    let shown = actum.shell_on_terminal(&script, b"");
    assert!(shown.stdout.contains("same"), "{}", shown.stdout);
}

/// Without a control group nothing counts what the kernel holds for no process: it cannot be made.
#[test]
fn semaphores_and_message_queues_are_counted_or_refused() {
    const TAKE: &str = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\nmade = 0\nfor i in range(200):\n  if libc.semget(0, 32000, 0o600) >= 0: made += 1\nprint(made, flush=True)";
    for actum in both() {
        let ended = actum.run(&["sandbox", "--memory-mb", "64", "--", "/usr/bin/python3", "-c", TAKE]);
        assert!(ended.code == 137 || ended.stdout == "0\n", "{}: {}{}", ended.code, ended.stdout, ended.stderr);
    }
}
