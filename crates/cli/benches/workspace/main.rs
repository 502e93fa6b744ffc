//! `cargo xtask bench workspace [SIZE…]`: freeze, stage and publish beside git on the same trees, program against
//! program, one after the other in the same rounds.
//!
//! Never a test: a shared machine is loud. Each figure is the median over rounds, with the range beside it.

#[expect(dead_code, reason = "shared with benchmarks that need more of it")]
#[path = "../shared/measure.rs"]
mod measure;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::sync::Arc;

use actum_contract::digest::Digest;
use actum_sandbox::{Layers, View};
use actum_store::blob::Folder as Blobs;
use actum_testkit::folder::Folder;
use actum_testkit::program::other;
use actum_workspace::{Freshness, Mode, NewStage, OverlayView, Rules, Stage, Workspace};

use measure::{median, milliseconds, print, spread, verdict};

/// Number of files, mean bytes of each, bar for an unchanged freeze.
const TREES: [(usize, usize, f64); 2] = [(10_000, 20_000, 0.4), (100_000, 10_000, 0.65)];
const COLD_ROUNDS: usize = 3;
const WARM_ROUNDS: usize = 15;
const STAGE_ROUNDS: usize = 15;
const STAGE_CHANGED_FILES: usize = 100;
const PUBLISH_ROUNDS: usize = 7;
const CHANGED_FILES: usize = 10;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    // A stage is entered by this very program.
    if let Some((code, why)) = actum_sandbox::entry(&arguments) {
        print(&why);
        return ExitCode::from(code);
    }
    let sizes: Vec<usize> = arguments.iter().filter_map(|a| a.to_str()?.parse().ok()).collect();
    for (files, bytes, bar) in TREES.into_iter().filter(|(files, ..)| sizes.is_empty() || sizes.contains(files)) {
        let folder = Folder::new();
        let tree = Tree::make(&folder, files, bytes);
        print(&format!("{files} files, {:.0} MB", (files * bytes) as f64 / 1e6));
        tree.cold();
        tree.warm(bar);
        tree.stage(&folder);
        tree.publish();
    }
    ExitCode::SUCCESS
}

struct Tree {
    root: PathBuf,
    files: usize,
}

fn run(program: &str, arguments: &[&str], folder: &Path) {
    let mut command = other(program);
    command.args(arguments).current_dir(folder).stdout(Stdio::null()).stderr(Stdio::piped());
    let ended = command.output().expect("the program starts");
    assert!(ended.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&ended.stderr));
}

fn actum(arguments: &[&str], folder: &Path) {
    run(env!("CARGO_BIN_EXE_actum"), arguments, folder);
}

fn output(arguments: &[&str], folder: &Path) -> String {
    let ended = other(env!("CARGO_BIN_EXE_actum")).args(arguments).current_dir(folder).output().expect("it runs");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    String::from_utf8_lossy(&ended.stdout).trim().to_owned()
}

fn git(arguments: &[&str], folder: &Path) {
    let own = ["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0"];
    run("git", &[&own, arguments].concat(), folder);
}

impl Tree {
    /// Fifty files to a folder, two levels, contents that do not repeat.
    fn make(folder: &Folder, files: usize, bytes: usize) -> Self {
        let root = folder.join("tree");
        let mut state = 1_u64;
        let mut next = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        let noise: Vec<u8> = (0..1 << 20).map(|_| next() as u8).collect();
        for file in 0..files {
            let path = root.join(format!("m{}/d{}", file / 2000, (file / 50) % 40));
            if file % 50 == 0 {
                fs::create_dir_all(&path).expect("a folder");
            }
            let length = bytes / 5 + (next() as usize % (bytes * 8 / 5));
            let from = next() as usize % (noise.len() - length);
            let content = [format!("{file}\n").as_bytes(), &noise[from..from + length]].concat();
            fs::write(path.join(format!("f{:03}.rs", file % 50)), content).expect("a file");
        }
        Self { root, files }
    }

    fn forget(&self) {
        for own in [".actum", ".git"] {
            let _ = fs::remove_dir_all(self.root.join(own));
        }
        run("git", &["init", "--quiet"], &self.root);
        git(&["config", "core.compression", "0"], &self.root);
        run("sync", &[], &self.root);
    }

    fn open(&self) -> (Workspace, Rules) {
        let home = self.root.join(".actum");
        let blobs = Arc::new(Blobs::open(&home.join("blobs")).expect("blobs"));
        let rules = Rules::of(&self.root, Vec::new(), Vec::new()).expect("rules");
        (Workspace::open(&self.root, &home, blobs).expect("a workspace"), rules)
    }

    fn cold(&self) {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..COLD_ROUNDS {
            self.forget();
            ours.push(milliseconds(|| actum(&["snapshot", "freeze", "-q"], &self.root)));
            run("sync", &[], &self.root);
            theirs.push(milliseconds(|| git(&["add", "-A"], &self.root)));
        }
        report("first freeze with contents, ms", &ours);
        report("git add -A, compression off, ms", &theirs);
        verdict("first freeze ÷ git add", &ratios(&ours, &theirs), 0.2, true);
    }

    fn warm(&self, bar: f64) {
        // Twice: the first leaves files that were too young to be trusted.
        for _ in 0..2 {
            actum(&["snapshot", "freeze", "-q"], &self.root);
            git(&["add", "-A"], &self.root);
        }
        let (workspace, rules) = self.open();
        let (mut ours, mut within, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..WARM_ROUNDS {
            ours.push(milliseconds(|| actum(&["snapshot", "freeze", "-q"], &self.root)));
            within.push(milliseconds(|| assert!(workspace.freeze(&rules, false, 0).is_ok())));
            theirs.push(milliseconds(|| {
                git(&["add", "-A"], &self.root);
                git(&["write-tree"], &self.root);
            }));
        }
        report("freeze of an unchanged tree, as a program, ms", &ours);
        report("the same within a program that goes on, ms", &within);
        report("git add -A && git write-tree, ms", &theirs);
        verdict("freeze ÷ git, unchanged, program against program", &ratios(&ours, &theirs), bar, true);
        verdict("freeze ÷ git, unchanged, within a program", &ratios(&within, &theirs), bar, true);
    }

    /// The private copy alone, after the freeze: the layers, the overlay mounted, a program started in it and ended.
    fn stage(&self, folder: &Folder) {
        let (workspace, rules) = self.open();
        let frozen = workspace.freeze(&rules, false, 0).expect("a snapshot");
        let (mut first, mut copied) = (Vec::new(), Vec::new());
        for _ in 0..COLD_ROUNDS {
            fs::remove_dir_all(self.root.join(".actum/workspace/bases")).ok();
            run("sync", &[], &self.root);
            first.push(staged(&workspace, &rules, frozen.id));
            // Without what Actum and git keep, which a stage does not copy either.
            run("sync", &[], &self.root);
            copied.push(milliseconds(|| run("sh", &["-c", "mkdir ../copy && cp -a m* ../copy"], &self.root)));
            fs::remove_dir_all(folder.join("copy")).expect("it can be removed");
        }
        report("first stage: the base is copied, ms", &first);
        report("cp -a of the same files, ms", &copied);
        verdict("first stage ÷ cp -a", &ratios(&first, &copied), 1.2, true);

        let unchanged: Vec<_> = (0..STAGE_ROUNDS).map(|_| staged(&workspace, &rules, frozen.id)).collect();
        report("stage of an unchanged tree, entered and left, ms", &unchanged);
        let mut changed = Vec::new();
        for round in 0..STAGE_ROUNDS {
            self.change(STAGE_CHANGED_FILES, round);
            let frozen = workspace.freeze(&rules, false, 0).expect("a snapshot");
            changed.push(staged(&workspace, &rules, frozen.id));
        }
        report("stage after 100 files changed, entered and left, ms", &changed);
        for (what, values) in [("unchanged", &unchanged), ("100 files changed", &changed)] {
            let limits: Vec<_> = values.iter().map(|ours| ours / 30.0).collect();
            verdict(&format!("stage, {what} ÷ 30 ms"), &limits, 1.0, true);
        }
        git(&["add", "-A"], &self.root);
        git(&["commit", "--quiet", "-m", "base"], &self.root);
        let worktree = milliseconds(|| git(&["worktree", "add", "--quiet", "../worktree"], &self.root));
        git(&["worktree", "remove", "--force", "../worktree"], &self.root);
        print(&format!("  git worktree add {worktree:.0} ms, once"));
    }

    /// Changes files all over the tree, as a user would between two runs.
    fn change(&self, count: usize, round: usize) {
        for n in 0..count {
            let file = (n * (self.files / count) + round) % self.files;
            let path = format!("m{}/d{}/f{:03}.rs", file / 2000, (file / 50) % 40, file % 50);
            fs::write(self.root.join(path), format!("changed before stage {round}, file {n}\n")).expect("a file");
        }
    }

    /// Ten files changed in a stage and published, against ten files changed in place and committed.
    fn publish(&self) {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..PUBLISH_ROUNDS {
            let file = |n: usize| format!("m{}/d{n}/f{:03}.rs", n % self.files.div_ceil(2000), round % 50);
            let id = output(&["stage", "new", "-q", "--mode", "overlay"], &self.root);
            let upper = self.root.join(".actum/stages").join(&id).join("upper");
            for n in 0..CHANGED_FILES {
                let path = upper.join(file(n));
                fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
                fs::write(path, format!("changed in round {round}, file {n}\n")).expect("a file");
            }
            ours.push(milliseconds(|| actum(&["apply", "-q", &id], &self.root)));
            git(&["add", "-A"], &self.root);
            git(&["commit", "--quiet", "-m", "ours"], &self.root);
            for n in 0..CHANGED_FILES {
                fs::write(self.root.join(file(n)), format!("again in round {round}, file {n}\n")).expect("a file");
            }
            theirs.push(milliseconds(|| {
                git(&["add", "-A"], &self.root);
                git(&["commit", "--quiet", "-m", "theirs"], &self.root);
            }));
        }
        report("diff and publish of 10 files, ms", &ours);
        report("git add -A && git commit of 10 files, ms", &theirs);
        // The bar is meant for large trees; in small ones the ledger's own fsyncs weigh more.
        let bar = if self.files >= 100_000 { 0.5 } else { 1.0 };
        verdict("diff and publish ÷ git", &ratios(&ours, &theirs), bar, true);
    }
}

/// Makes a stage, runs a program in it, and drops it. Returns the milliseconds until the program has ended.
fn staged(workspace: &Workspace, rules: &Rules, snapshot: Digest) -> f64 {
    let (mode, freshness) = (Mode::Overlay, Freshness::Frozen);
    let wanted = NewStage { id: "bench".to_owned(), mode, freshness, rules: rules.clone(), at_ms: 0 };
    let mut stage = None;
    let took = milliseconds(|| {
        let made = Stage::new(workspace, snapshot, wanted, &|_, _| ()).expect("a stage");
        let actum_workspace::View::Overlay { overlay, .. } = made.view(workspace) else { unreachable!() };
        let OverlayView { lowers, upper, work, at } = overlay;
        let name = "actum-bench".to_owned();
        let view = View::Overlay(Layers { lowers, upper, work, at, name, inner: Vec::new() });
        let command = actum_sandbox::command(&view, Path::new(""), &["true".into()]);
        assert!(command.and_then(|mut command| command.status()).expect("it starts").success());
        stage = Some(made);
    });
    let stage = stage.expect("it was made");
    let still = stage.settle().expect("no program is in it");
    stage.drop(still).expect("it can be dropped");
    took
}

fn ratios(ours: &[f64], theirs: &[f64]) -> Vec<f64> {
    ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect()
}

fn report(what: &str, values: &[f64]) {
    print(&format!("  {what:<58} {:.1}  {}", median(values.iter().copied()), spread(values)));
}
