//! Stages and workspaces that are out to harm, many stages at once, and no room on the disk.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use actum_testkit::folder::Folder;
use actum_testkit::program::{Program, other};
use actum_testkit::tree::read;

use super::actum;
use super::workspace::{act, json, new_stage};

const SECRET: &str = "nothing outside may ever be read: 6f1c2a";

/// A folder outside, with a file that must neither be read nor written.
fn outside() -> Folder {
    let outside = Folder::new();
    fs::write(outside.join("x"), SECRET).unwrap();
    outside
}

/// Packs hold contents as they are, so a leak can be found without the product's help.
fn is_leaked(actum: &Program) -> bool {
    let packs = fs::read_dir(actum.path(".actum/blobs/packs")).unwrap();
    packs.map(|e| fs::read(e.unwrap().path()).unwrap()).any(|b| b.windows(SECRET.len()).any(|w| w == SECRET.as_bytes()))
}

fn untouched(outside: &Folder) -> bool {
    fs::read_to_string(outside.join("x")).unwrap() == SECRET && fs::read_dir(outside.path()).unwrap().count() == 1
}

#[test]
fn links_that_point_out_are_kept_as_links() {
    for mode in ["overlay", "copy"] {
        let (actum, outside) = (actum(), outside());
        fs::create_dir(actum.path("d")).unwrap();
        fs::write(actum.path("d/x"), "mine").unwrap();
        symlink(outside.path(), actum.path("out")).unwrap();
        let stage = new_stage(&actum, &["--mode", mode]);
        let target = outside.path().display();
        act(&actum, &stage, &format!("ln -s {target}/x link; rm -r d; ln -s {target} d; ln -s ../../../../etc up"));
        json(&actum, &["apply", "--json", &stage]);
        assert_eq!(fs::read_link(actum.path("d")).unwrap(), outside.path());
        assert_eq!(fs::read_link(actum.path("link")).unwrap(), outside.join("x"));
        assert!(!is_leaked(&actum) && untouched(&outside), "{mode}");
        json(&actum, &["undo", "--json", &stage]);
        assert_eq!(fs::read_to_string(actum.path("d/x")).unwrap(), "mine");
        assert!(!is_leaked(&actum) && untouched(&outside), "{mode}");
    }
}

/// Planted by somebody else in a folder that all may write to, as another user's `.actum` in `/tmp` would be.
#[test]
fn a_folder_of_somebody_elses_is_not_believed() {
    let actum = actum();
    fs::create_dir_all(actum.path("mine")).unwrap();
    fs::write(actum.path("mine/secret"), SECRET).unwrap();
    let planted = actum.path(".actum");
    fs::create_dir(&planted).unwrap();
    fs::create_dir(planted.join("blobs")).unwrap();
    if is_root() {
        std::os::unix::fs::chown(&planted, Some(65534), None).unwrap();
        let mine = actum.path("mine").display().to_string();
        json(&actum, &["-C", &mine, "snapshot", "freeze", "--json"]);
        assert!(actum.path("mine/.actum/blobs").exists(), "a project of our own is made instead");
        assert_eq!(fs::read_dir(planted.join("blobs")).unwrap().count(), 0);
        let refused = actum.run(&["snapshot", "freeze", "--json"]);
        assert_eq!((refused.code, &refused.error()["code"]), (2, &"WORKSPACE_REFUSED".into()));
    }
    fs::remove_dir_all(&planted).unwrap();
    symlink(actum.path("mine"), &planted).unwrap();
    let refused = actum.run(&["snapshot", "freeze", "--json"]);
    assert_eq!((refused.code, &refused.error()["code"]), (2, &"WORKSPACE_REFUSED".into()), "a link");
}

#[test]
fn a_hard_link_to_a_file_outside_is_refused() {
    for mode in ["overlay", "copy"] {
        let (actum, outside) = (actum(), outside());
        fs::write(actum.path("a"), "1").unwrap();
        let stage = new_stage(&actum, &["--mode", mode]);
        // Around the overlay, as something that is not held by it would.
        let inner = if mode == "overlay" { "upper" } else { "folder" };
        let place = actum.path(".actum/stages").join(&stage).join(inner).join("stolen");
        fs::hard_link(outside.join("x"), place).unwrap();
        for verb in ["diff", "apply"] {
            let refused = actum.run(&[verb, "--json", &stage]);
            assert_eq!((refused.code, &refused.error()["code"]), (2, &"WORKSPACE_REFUSED".into()), "{mode}");
            assert!(refused.stderr.contains("stolen in the stage is a hard link"), "{}", refused.stderr);
        }
        assert!(untouched(&outside));
        assert_eq!(read(actum.folder()).len(), 1);
        // Links among the stage's own files are no harm.
        fs::remove_file(actum.path(".actum/stages").join(&stage).join(inner).join("stolen")).unwrap();
        act(&actum, &stage, "ln a b; ln a c");
        let applied = json(&actum, &["apply", "--json", &stage]);
        assert_eq!(applied["deltas"].as_array().unwrap().len(), 2, "{mode}");
    }
}

#[test]
fn a_folder_of_the_workspace_swapped_for_a_link_is_a_conflict() {
    for mode in ["overlay", "copy"] {
        let (actum, outside) = (actum(), outside());
        fs::create_dir(actum.path("d")).unwrap();
        fs::write(actum.path("d/x"), SECRET).unwrap();
        let stage = new_stage(&actum, &["--mode", mode]);
        act(&actum, &stage, "echo 2 > d/x; echo new > d/y");
        fs::rename(actum.path("d"), actum.path("d-real")).unwrap();
        symlink(outside.path(), actum.path("d")).unwrap();
        let refused = actum.run(&["apply", "--json", &stage]);
        assert_eq!((refused.code, &refused.error()["code"]), (6, &"PUBLISH_CONFLICT".into()), "{mode}");
        assert!(untouched(&outside));
    }
}

#[test]
fn a_folder_swapped_for_a_link_all_the_time_leads_nowhere() {
    let (actum, outside, aside) = (actum(), outside(), Folder::new());
    fs::create_dir(actum.path("d")).unwrap();
    fs::write(actum.path("d/x"), "mine").unwrap();
    fs::write(actum.path("other"), "0").unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (real, hidden) = (actum.path("d"), aside.join("hidden"));
            // A publication may have made the folder anew in between; then there are two, and the loop goes on.
            while !stop.load(Ordering::Relaxed) {
                let _ = fs::rename(&real, &hidden);
                // The link itself may be frozen and published over like any other; then it is not there any more.
                if symlink(outside.path(), &real).is_ok() {
                    let _ = fs::remove_file(&real);
                }
                if fs::rename(&hidden, &real).is_err() {
                    let _ = fs::remove_dir_all(&hidden);
                }
                // Often enough to be met, seldom enough that some publications meet the real folder.
                std::thread::sleep(std::time::Duration::from_micros(500));
            }
        });
        let mut published = 0;
        for round in 0..40 {
            // A freeze may find the folder missing, a publish may be refused; neither may follow the link.
            let staged = actum.run(&["stage", "new", "-q", "--mode", "overlay"]);
            let stage = staged.stdout.trim();
            if staged.code != 0 {
                continue;
            }
            let upper = actum.path(".actum/stages").join(stage).join("upper");
            fs::create_dir_all(upper.join("d")).unwrap();
            fs::write(upper.join("d/x"), format!("agent {round}")).unwrap();
            fs::write(upper.join("d/new"), format!("agent {round}")).unwrap();
            published += i32::from(actum.run(&["apply", "--json", stage]).code == 0);
            assert!(untouched(&outside), "round {round}");
        }
        stop.store(true, Ordering::Relaxed);
        assert!(published > 0, "some of them meet the real folder");
    });
    json(&actum, &["snapshot", "freeze", "--json"]);
    assert!(!is_leaked(&actum) && untouched(&outside));
}

/// Applies stages at the same time, each by a process of its own; their exit codes.
fn apply_all(actum: &Program, stages: &[String]) -> Vec<i32> {
    std::thread::scope(|scope| {
        let running: Vec<_> =
            stages.iter().map(|stage| scope.spawn(move || actum.run(&["apply", "--json", stage]).code)).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn sixteen_stages_with_disjoint_edits_are_all_published() {
    let actum = actum();
    for n in 0..16 {
        fs::write(actum.path(&format!("f{n}")), "before").unwrap();
    }
    let stages: Vec<_> = (0..16).map(|_| new_stage(&actum, &[])).collect();
    for (n, stage) in stages.iter().enumerate() {
        act(&actum, stage, &format!("echo {n} > f{n}; mkdir -p shared; echo {n} > shared/new{n}"));
    }
    assert_eq!(apply_all(&actum, &stages), [0; 16]);
    for n in 0..16 {
        assert_eq!(fs::read_to_string(actum.path(&format!("f{n}"))).unwrap(), format!("{n}\n"));
        assert_eq!(fs::read_to_string(actum.path(&format!("shared/new{n}"))).unwrap(), format!("{n}\n"));
    }
    assert_eq!(json(&actum, &["ledger", "verify", "--json"])["valid"], true);
    assert_eq!(json(&actum, &["snapshot", "check", "--json"])["valid"], true);
}

#[test]
fn one_stage_applied_by_many_at_once_is_published_once() {
    for mode in ["overlay", "copy"] {
        let actum = actum();
        for n in 0..300 {
            fs::write(actum.path(&format!("f{n}")), "before").unwrap();
        }
        let stage = new_stage(&actum, &["--mode", mode]);
        act(&actum, &stage, "echo new > new");
        let mut codes = apply_all(&actum, &vec![stage; 6]);
        codes.sort();
        assert_eq!(codes, [0, 6, 6, 6, 6, 6], "{mode}");
        assert_eq!(read(actum.folder()).len(), 301, "{mode}: nothing else is touched");
    }
}

#[test]
fn of_sixteen_stages_with_overlapping_edits_one_per_path_wins() {
    let actum = actum();
    for n in 0..4 {
        fs::write(actum.path(&format!("p{n}")), "before").unwrap();
    }
    let stages: Vec<_> = (0..16).map(|_| new_stage(&actum, &[])).collect();
    for (n, stage) in stages.iter().enumerate() {
        act(&actum, stage, &format!("echo {n} > p{}; echo {n} > own{n}", n % 4));
    }
    let codes = apply_all(&actum, &stages);
    for path in 0..4 {
        let mut winners = (0..16).filter(|n| n % 4 == path && codes[*n] == 0);
        let winner = winners.next().expect("one wins");
        assert_eq!(winners.next(), None, "only one wins");
        assert_eq!(fs::read_to_string(actum.path(&format!("p{path}"))).unwrap(), format!("{winner}\n"));
    }
    for (n, code) in codes.iter().enumerate() {
        assert_eq!(actum.path(&format!("own{n}")).exists(), *code == 0, "all of a result or nothing");
        assert!(matches!(code, 0 | 6), "{code}");
        if *code == 6 {
            let kept = json(&actum, &["diff", "--json", &stages[n]]);
            assert_eq!(kept["deltas"].as_array().unwrap().len(), 2, "its result is kept");
        }
    }
}

pub(super) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0)
}

/// Runs a script as root of a mount namespace of its own.
pub(super) fn in_own_mounts(script: &str, folder: &Path) -> std::process::Output {
    let mut command = other("unshare");
    command.args(if is_root() { &["-m"][..] } else { &["-rm"][..] }).args(["bash", "-euc", script]).current_dir(folder);
    // Tools for file systems lie where ordinary users do not look.
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin");
    command.env("ACTUM", env!("CARGO_BIN_EXE_actum")).output().unwrap()
}

/// Small inodes keep times to the second. Only root may mount them; for others this asks their own file system.
#[test]
fn a_change_within_a_second_is_seen_where_clocks_are_coarse() {
    let folder = Folder::new();
    fs::create_dir(folder.join("w")).unwrap();
    let mount = "truncate -s 32M image; mkfs.ext4 -q -I 128 image 2> /dev/null; mount -o loop image w";
    let script = format!(
        r#"{}
        mkdir -p w/inside/d project/.actum
        for round in $(seq 1 12); do
            # Same size, same inode, same second: once with the project on the coarse disk, once beside it.
            printf 'A%03d' $round > w/inside/d/f
            one=$(cd w/inside && "$ACTUM" snapshot freeze -q); two=$(cd project && "$ACTUM" snapshot freeze -q ../w/inside)
            [ $one = $two ]
            printf 'B%03d' $round > w/inside/d/f
            three=$(cd w/inside && "$ACTUM" snapshot freeze -q); four=$(cd project && "$ACTUM" snapshot freeze -q ../w/inside)
            [ $one != $three ] && [ $three = $four ] || {{ echo round $round; exit 9; }}
        done"#,
        if is_root() { mount } else { ":" },
    );
    let ended = in_own_mounts(&script, folder.path());
    let (stdout, stderr) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{stdout}\n{stderr}");
}

#[test]
fn a_full_disk_is_said_and_the_workspace_is_as_it_was() {
    let folder = Folder::new();
    fs::create_dir(folder.join("w")).unwrap();
    // At every level of filling: a freeze, a stage with a large result, its publication. Each succeeds or says why.
    let script = r#"
        full=0; done=0
        for left in $(seq 0 100 3200); do
            mount -t tmpfs -o size=8m tmpfs w
            cd w
            head -c 600000 /dev/urandom > big; echo 1 > small; echo '*.fill' > .gitignore
            sum() { sha256sum big small 2>/dev/null; ls -A | grep -v -e fill -e '^.actum$' || :; }
            before=$(sum)
            stage=$("$ACTUM" stage new -q --mode copy)
            head -c 700000 /dev/urandom > .actum/stages/$stage/folder/new; echo 2 > .actum/stages/$stage/folder/small
            free=$(df --output=avail -k . | tail -1)
            if [ $free -gt $left ]; then head -c $(( (free - left) * 1024 )) /dev/zero > x.fill; fi
            if "$ACTUM" apply --json $stage > ../out 2> ../err; then
                done=$((done + 1)); [ -f new ]; [ "$(cat small)" = 2 ]
            else
                grep -q -e DISK_FULL -e STORE_UNAVAILABLE ../err || { cat ../err; exit 9; }
                full=$((full + 1)); rm -f x.fill
                "$ACTUM" snapshot freeze -q > /dev/null
                # Recorded or not, it is one of the two.
                if [ -f new ]; then [ "$(cat small)" = 2 ]; else [ "$(sum)" = "$before" ]; "$ACTUM" apply -q $stage > /dev/null; fi
                [ -f new ]; [ "$(cat small)" = 2 ]
            fi
            "$ACTUM" snapshot check -q > /dev/null
            cd ..; umount w
        done
        mount -t tmpfs -o size=2m tmpfs w; cd w
        head -c 1500000 /dev/urandom > big; before=$(sha256sum big)
        if "$ACTUM" snapshot freeze --json > ../out 2> ../err; then exit 8; fi
        grep -q DISK_FULL ../err; [ "$(sha256sum big)" = "$before" ]
        truncate -s 1000 big; "$ACTUM" snapshot gc -q > /dev/null; "$ACTUM" snapshot freeze -q > /dev/null
        cd ..; umount w
        echo $full full, $done done; [ $full -gt 3 ]; [ $done -gt 3 ]
    "#;
    let ended = in_own_mounts(script, folder.path());
    let (stdout, stderr) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{stdout}\n{stderr}");
}

/// Folders as deep as a result may have them, and deeper: neither ends the process that executes the run.
#[test]
fn deep_folders_end_no_worker() {
    for (depth, is_admitted) in [(400, true), (2_000, false)] {
        let script = format!("i=0; while [ $i -lt {depth} ]; do mkdir d && cd d; i=$((i+1)); done; echo x > f");
        let actum = super::run::project(&[("a", &script)]);
        let (code, run) = super::run::one(&actum, super::run::item("i", "a"), &[]);
        assert!([0, 1, 3].contains(&code), "{depth}: {code} {run}");
        assert_eq!(run["status"] == "success", is_admitted, "{depth}: {run}");
    }
}
