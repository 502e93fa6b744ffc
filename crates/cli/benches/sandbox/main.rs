//! `cargo xtask bench sandbox [AREA…]`: cells beside bubblewrap and a bare start of the same program, one after the other
//! in the same rounds.
//!
//! Never a test: a shared machine is loud. Each figure is the median over rounds, with the range beside it.

#[expect(dead_code, reason = "shared with benchmarks that need more of it")]
#[path = "../shared/measure.rs"]
mod measure;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};

use actum_sandbox::{Access, Cell, Ended, Files, Grant, Limits, Network, News, Spawner};
use actum_testkit::folder::Folder;
use actum_testkit::program::other;

use measure::{median, milliseconds, print, spread, verdict};

const ROUNDS: usize = 300;
const WORK_ROUNDS: usize = 15;
const TOGETHER: usize = 64;
const READY: usize = 4;
const RESIDENT_BYTES: usize = 1 << 30;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    // The helper that makes cells is this very program.
    if let Some((code, why)) = actum_sandbox::entry(&arguments) {
        print(&why);
        return ExitCode::from(code);
    }
    let wanted = |area: &str| {
        let areas: Vec<_> = arguments[1..].iter().filter(|a| !a.to_string_lossy().starts_with('-')).collect();
        areas.is_empty() || areas.iter().any(|a| *a == area)
    };
    let folder = Folder::new();
    if wanted("start") {
        start(folder.path());
    }
    if wanted("resident") {
        resident(folder.path());
    }
    if wanted("work") {
        work(folder.path());
    }
    if wanted("together") {
        together(folder.path());
    }
    ExitCode::SUCCESS
}

/// All walls, all limits, one folder to read.
fn cell(folder: &Path, program: &[&str]) -> Cell {
    Cell {
        program: program.iter().map(Into::into).collect(),
        pinned: None,
        environment: vec![("PATH".into(), "/usr/bin:/bin".into())],
        folder: folder.to_owned(),
        grants: vec![Grant::same(folder, Access::Read)],
        deny: Vec::new(),
        limits: Limits {
            timeout_ms: Some(60_000),
            grace_ms: 1_000,
            memory_bytes: 512 << 20,
            cores: 1,
            children: 10,
            fork: true,
            scratch_bytes: 512 << 20,
            disk_bytes: 1 << 30,
        },
        network: Network::Off,
        bridge: None,
        weaker: Vec::new(),
    }
}

fn nothing() -> OwnedFd {
    File::options().read(true).write(true).open("/dev/null").expect("there is /dev/null").into()
}

fn run(spawner: &Spawner, cell: Cell) {
    let files = Files { input: nothing(), output: nothing(), errors: nothing() };
    let mut running = spawner.run(cell, files).expect("the helper is there");
    loop {
        if let News::Ended(report) = running.hear().expect("the cell lives") {
            assert_eq!(report.ended, Ended::Exited(0), "{report:?}");
            return;
        }
    }
}

fn program(name: &str, arguments: &[&str], folder: &Path) {
    let mut command = other(name);
    command.args(arguments).current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    assert!(command.status().expect("it starts").success(), "{name}");
}

/// The `actum` that was built beside this.
fn actum() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_actum"))
}

fn start(folder: &Path) {
    let (ready, cold) = (Spawner::start(READY).expect("a helper"), Spawner::start(0).expect("a helper"));
    let actum = actum().display().to_string();
    let mut times: [Vec<f64>; 5] = Default::default();
    for _ in 0..ROUNDS {
        let bubblewrap = ["--unshare-all", "--ro-bind", "/", "/", "/bin/true"];
        times[0].push(milliseconds(|| program("/bin/true", &[], folder)));
        times[1].push(milliseconds(|| program("bwrap", &bubblewrap, folder)));
        times[2].push(milliseconds(|| run(&ready, cell(folder, &["/bin/true"]))));
        times[3].push(milliseconds(|| run(&cold, cell(folder, &["/bin/true"]))));
        times[4].push(milliseconds(|| program(&actum, &["sandbox", "--", "/bin/true"], folder)));
    }
    let names = ["fork + exec", "bwrap --unshare-all", "cell from a ready slot", "cell, cold", "actum sandbox"];
    for (name, times) in names.iter().zip(&times) {
        let mut sorted = times.clone();
        sorted.sort_by(f64::total_cmp);
        print(&format!("  {name}: {} ms, p99 {:.2}", spread(times), sorted[sorted.len() * 99 / 100]));
    }
    for (name, of, to, bar) in [
        ("ready slot ÷ bwrap", 2, 1, 0.5),
        ("ready slot ÷ fork + exec", 2, 0, 2.0),
        ("cold ÷ bwrap", 3, 1, 0.7),
        ("actum sandbox ÷ bwrap", 4, 1, 1.2),
    ] {
        let ratios: Vec<f64> = times[of].iter().zip(&times[to]).map(|(of, to)| of / to).collect();
        verdict(name, &ratios, bar, true);
    }
}

/// With a gigabyte of memory of our own, and without.
fn resident(folder: &Path) {
    let spawner = Spawner::start(0).expect("a helper");
    let measure =
        || -> Vec<f64> { (0..100).map(|_| milliseconds(|| run(&spawner, cell(folder, &["/bin/true"])))).collect() };
    let small = measure();
    let mut memory = vec![0_u8; RESIDENT_BYTES];
    memory.iter_mut().step_by(4096).for_each(|page| *page = 1);
    let large = measure();
    print(&format!("  cold with 1 GiB resident: {} ms, without: {} ms", spread(&large), spread(&small)));
    let usual = median(small.iter().copied());
    let ratios: Vec<f64> = large.iter().map(|time| time / usual).collect();
    verdict("with 1 GiB resident ÷ without", &ratios, 1.25, true);
    assert_eq!(memory[4096], 1);
}

/// Work that needs nothing but a processor.
fn work(folder: &Path) {
    const COUNT: &str = "for ($i = 0; $i < 6_000_000; $i++) { $x += $i % 7 }";
    let spawner = Spawner::start(1).expect("a helper");
    let (mut inside, mut outside) = (Vec::new(), Vec::new());
    for _ in 0..WORK_ROUNDS {
        outside.push(milliseconds(|| program("perl", &["-e", COUNT], folder)));
        inside.push(milliseconds(|| run(&spawner, cell(folder, &["perl", "-e", COUNT]))));
    }
    // The best of each: what disturbs one round says nothing of the other.
    let best = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
    print(&format!("  work inside: {} ms, outside: {} ms", spread(&inside), spread(&outside)));
    verdict("work inside ÷ outside, the best of each", &[best(&inside) / best(&outside)], 1.02, true);
}

fn together(folder: &Path) {
    let spawner = Spawner::start(READY).expect("a helper");
    let time = milliseconds(|| {
        std::thread::scope(|scope| {
            for _ in 0..TOGETHER {
                scope.spawn(|| run(&spawner, cell(folder, &["sleep", "0.5"])));
            }
        });
    });
    print(&format!("  {TOGETHER} cells at once, each sleeping half a second: all ended well after {time:.0} ms"));
}
