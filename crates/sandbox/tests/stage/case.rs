//! The cases.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, chown, symlink};
use std::path::Path;
use std::process::Command;

use actum_sandbox::{Access, Ended, Grant, Source};

use crate::desk::{Case, Desk, PROJECT, cell, tree};

pub(crate) const ALL: &[Case] = &[
    ("what_is_changed_is_in_upper_and_nowhere_else", changes),
    ("the_layers_cannot_be_reached", layers_are_hidden),
    ("a_folder_is_seen_under_another_path", folder_elsewhere),
    ("an_overlay_may_be_read_only", read_only_overlay),
    ("what_lies_in_a_stage_covers_it", nested),
    ("what_is_covered_need_not_be_there", made_up_places),
    ("links_in_a_stage_lead_nowhere", links),
    ("only_what_was_written_counts_for_the_disk", disk),
    ("steps_see_what_was_done_before", steps),
    ("files_are_the_cells_own_whoever_they_belong_to", owners),
    ("many_layers_arrive", many),
    ("paths_need_not_be_text", not_text),
];

fn changes(desk: &Desk) {
    for (name, text) in [("edited", "old\n"), ("untouched", "same\n"), ("deleted", "gone\n"), ("tool", "#!/bin/sh\n")] {
        desk.file(&format!("lower/{name}"), text);
    }
    desk.file("lower/dir/a", "a\n");
    desk.file("lower/dir/deep/b", "b\n");
    desk.file("lower/emptied/c", "c\n");
    let before = tree(&desk.path("lower"));
    let said = desk.sh(
        &[desk.overlay()],
        "set -e; pwd; id -u; cat untouched; stat -c '%u %g' untouched dir/deep/b; \
         echo new >> edited; mkdir made; echo created > made/created; rm deleted; mv dir moved; chmod +x tool; \
         ln -s untouched link; rm -r emptied; mkdir emptied; echo d > emptied/d; \
         cat edited moved/a moved/deep/b emptied/d; ls -A emptied; ls -A; stat -c '%u %A' edited made tool",
    );
    let ls = "edited\nemptied\nlink\nmade\nmoved\ntool\nuntouched\n";
    let stat = "1000 -rw-r--r--\n1000 drwxr-xr-x\n1000 -rwxr-xr-x\n";
    let wanted = format!("{PROJECT}\n1000\nsame\n1000 1000\n1000 1000\nold\nnew\na\nb\nd\nd\n{ls}{stat}");
    assert_eq!(said, wanted);
    assert_eq!(tree(&desk.path("lower")), before);
    desk.assert_owned("upper");
    let upper: Vec<(String, String)> = tree(&desk.path("upper")).into_iter().collect();
    let upper: Vec<(&str, &str)> = upper.iter().map(|(path, what)| (path.as_str(), what.as_str())).collect();
    let wanted = [
        ("deleted", "device 0"),
        ("dir", "device 0"),
        ("edited", "file 644 old\nnew\n"),
        ("emptied", "folder 755"),
        ("emptied/d", "file 644 d\n"),
        ("link", "link untouched"),
        ("made", "folder 755"),
        ("made/created", "file 644 created\n"),
        ("moved", "folder 755"),
        ("moved/a", "file 644 a\n"),
        ("moved/deep", "folder 755"),
        ("moved/deep/b", "file 644 b\n"),
        ("tool", "file 755 #!/bin/sh\n"),
    ];
    assert_eq!(upper, wanted);
    let mut mark = [0_u8; 8];
    let length = rustix::fs::getxattr(desk.path("upper/emptied"), "user.overlay.opaque", &mut mark).unwrap();
    assert_eq!(&mark[..length], b"y");
}

fn layers_are_hidden(desk: &Desk) {
    desk.file("lower/file", "text");
    let said = desk.sh(
        &[desk.overlay()],
        "cat /proc/self/mountinfo; echo; ls -A / /home /home/u; echo; \
         ls -d /.layers /proc/1/fd /proc/1/root /tmp/actum-test-* 2>&1; true",
    );
    let parts: Vec<&str> = said.split("\n\n").collect();
    let own = desk.folder.path().display().to_string();
    let name = desk.folder.path().file_name().unwrap().to_str().unwrap().to_owned();
    assert!(!said.contains(&own) && !said.contains(&name), "{said}");
    let overlays: Vec<&str> = parts[0].lines().filter(|line| line.contains(" - overlay ")).collect();
    assert_eq!(overlays.len(), 1, "{said}");
    assert!(overlays[0].contains(" /home/u/proj rw,nosuid,nodev,"), "{said}");
    assert!(!parts[1].contains(".layers"), "{said}");
    let refusals = said.lines().filter(|line| line.starts_with("ls: cannot access")).count();
    assert_eq!(refusals, 4, "{said}");
}

fn folder_elsewhere(desk: &Desk) {
    desk.file("copy/file", "text\n");
    desk.file("copy/sub/other", "other\n");
    let own = desk.folder.path().display();
    let script = format!(
        "set -e; pwd; cat file; stat -c %u file; echo more >> file; mv sub moved; rm moved/other; echo new > new; \
         ! ls {own} 2>&1; ls -A"
    );
    let said = desk.sh(&[desk.elsewhere("copy", PROJECT, Access::Write)], &script);
    let refusal = format!("ls: cannot access '{own}': No such file or directory\n");
    assert_eq!(said, format!("{PROJECT}\ntext\n1000\n{refusal}file\nmoved\nnew\n"));
    assert_eq!(desk.read("copy/file"), "text\nmore\n");
    assert!(desk.path("copy/moved").is_dir() && !desk.path("copy/sub").exists());
    desk.assert_owned("copy");
    let read = [desk.elsewhere("copy", PROJECT, Access::Read)];
    let said = desk.sh(&read, "cat new; (echo x > x) 2>&1; (echo x >> file) 2>&1; true");
    assert_eq!(said.matches("Read-only file system").count(), 2, "{said}");
    assert!(said.starts_with("new\n"), "{said}");
}

fn read_only_overlay(desk: &Desk) {
    desk.file("lower/file", "text\n");
    let grant = Grant { access: Access::Read, ..desk.overlay() };
    let said = desk.sh(&[grant], "cat file; (echo x > x) 2>&1; rm -f file 2>&1; true");
    assert_eq!(said.matches("Read-only file system").count(), 2, "{said}");
    assert!(tree(&desk.path("upper")).is_empty());
}

/// The same in an overlay and in a folder.
fn nested(desk: &Desk) {
    for stage in ["lower", "copy"] {
        desk.file(&format!("{stage}/.actum/secret"), "secret\n");
        desk.file(&format!("{stage}/AGENTS.md"), "of the project\n");
        desk.file(&format!("{stage}/kept/file"), "kept\n");
        desk.file(&format!("{stage}/pinned/file"), "pinned\n");
    }
    desk.file("elsewhere/AGENTS.md", "from elsewhere\n");
    desk.file("elsewhere/kept/file", "kept\n");
    desk.file("elsewhere/pinned/file", "pinned\n");
    for stage in [desk.overlay(), desk.elsewhere("copy", PROJECT, Access::Write)] {
        let within =
            |name: &str, access| desk.elsewhere(&format!("elsewhere/{name}"), &format!("{PROJECT}/{name}"), access);
        // In no order: what lies in another still covers it.
        let grants =
            [within("kept", Access::Read), within("AGENTS.md", Access::Read), stage, within("pinned", Access::Pinned)];
        let script = "cd ..; cat AGENTS.md; (echo x > AGENTS.md) 2>&1; rm -f AGENTS.md 2>&1; (echo x > kept/x) 2>&1; \
             mv pinned away 2>&1; echo more >> pinned/file; ls .actum 2>&1; cat .actum/secret 2>&1; \
             (echo x > .actum/x) 2>&1; mv .actum away 2>&1; echo out > out; ls -A";
        let mut cell = cell(&grants, script);
        cell.deny = vec![format!("{PROJECT}/.actum").into(), format!("{PROJECT}/none/at/all").into()];
        let ran = desk.run(cell);
        assert_eq!(ran.report.ended, Ended::Exited(0), "{ran:?}");
        let wanted = [
            "from elsewhere",
            "sh: 1: cannot create AGENTS.md: Read-only file system",
            "rm: cannot remove 'AGENTS.md': Device or resource busy",
            "sh: 1: cannot create kept/x: Read-only file system",
            "mv: cannot move 'pinned' to 'away': Device or resource busy",
            "ls: cannot open directory '.actum': Permission denied",
            "cat: .actum/secret: Permission denied",
            "sh: 1: cannot create .actum/x: Permission denied",
            "mv: cannot move '.actum' to 'away': Device or resource busy",
            ".actum",
            "AGENTS.md",
            "kept",
            "out",
            "pinned",
        ];
        let said: Vec<&str> = ran.said.lines().collect();
        assert_eq!(said, wanted);
    }
    assert_eq!(desk.read("elsewhere/pinned/file"), "pinned\nmore\nmore\n");
    assert_eq!(desk.read("copy/AGENTS.md"), "of the project\n");
    assert_eq!(tree(&desk.path("upper")).into_keys().collect::<Vec<_>>(), ["out"]);
    desk.assert_owned("elsewhere");
}

fn made_up_places(desk: &Desk) {
    desk.file("lower/sub/file", "file\n");
    desk.file("elsewhere/AGENTS.md", "from elsewhere\n");
    desk.file("elsewhere/tools/tool", "tool\n");
    let within = |name: &str, at: &str| desk.elsewhere(&format!("elsewhere/{name}"), at, Access::Read);
    let (agents, tools) = (format!("{PROJECT}/AGENTS.md"), format!("{PROJECT}/sub/.agent/tools"));
    let inner = [within("AGENTS.md", &agents), within("tools", &tools)];
    let grants = [&[desk.overlay()], &inner[..]].concat();
    let script = "set -e; cat AGENTS.md sub/file sub/.agent/tools/tool; ls -A . sub; ";
    let wanted = "from elsewhere\nfile\ntool\n.:\nAGENTS.md\nsub\n\nsub:\n.agent\nfile\n";
    assert_eq!(desk.sh(&grants, script), wanted);
    assert!(tree(&desk.path("upper")).is_empty(), "nothing is written to make room");
    desk.sh(&grants, "echo new > sub/.agent/own; echo more >> sub/file");
    let upper: Vec<String> = tree(&desk.path("upper")).into_keys().collect();
    assert_eq!(upper, ["sub", "sub/.agent", "sub/.agent/own", "sub/file"]);
    desk.assert_owned("upper");
    // Without them the stage is as before.
    assert_eq!(
        desk.sh(&[desk.overlay()], "ls -A . sub/.agent; cat sub/file"),
        ".:\nsub\n\nsub/.agent:\nown\nfile\nmore\n"
    );
    // A folder is not changed to make room either, nor is what a program has deleted brought back.
    desk.file("copy/file", "file\n");
    desk.file("lower/AGENTS.md", "deleted\n");
    desk.sh(&[desk.overlay()], "rm AGENTS.md");
    for stage in [desk.elsewhere("copy", PROJECT, Access::Write), desk.overlay()] {
        let ran = desk.run(cell(&[stage, inner[0].clone()], "true"));
        let why = format!("cannot show {agents}: nothing is there in {PROJECT} that it could cover");
        assert_eq!(ran.report.ended, Ended::NotBuilt(why));
    }
    assert_eq!(tree(&desk.path("copy")).len(), 1);
}

fn links(desk: &Desk) {
    desk.file("elsewhere/file", "from elsewhere\n");
    desk.file("lower/sub/file", "in sub\n");
    desk.file("lower/real/file", "in real\n");
    symlink("/usr", desk.path("lower/link")).unwrap();
    let in_sub = desk.elsewhere("elsewhere/file", &format!("{PROJECT}/sub/file"), Access::Read);
    assert_eq!(desk.sh(&[desk.overlay(), in_sub.clone()], "cat sub/file"), "from elsewhere\n");
    // A program has put a link where a part of a granted path was.
    desk.sh(&[desk.overlay()], "rm -r sub; ln -s real sub; ln -s real .actum");
    let ran = desk.run(cell(&[desk.overlay(), in_sub], "true"));
    assert!(matches!(&ran.report.ended, Ended::NotBuilt(why) if why.contains("symbolic links")), "{ran:?}");
    // And one where something is denied: it is covered like anything else.
    let mut denied = cell(&[desk.overlay()], "ls .actum/ 2>&1; cat .actum 2>&1; rm .actum 2>&1; ls -A");
    denied.deny = vec![format!("{PROJECT}/.actum").into()];
    let ran = desk.run(denied);
    assert!(!ran.said.contains("in real") && ran.said.contains("busy"), "{ran:?}");
    // On the machine itself a link means that somebody has moved what was to be denied.
    let mut denied = cell(&[Grant::same(desk.path("lower"), Access::Read)], "true");
    denied.deny = vec![desk.path("lower/link")];
    let ran = desk.run(denied);
    assert!(matches!(&ran.report.ended, Ended::NotBuilt(why) if why.starts_with("cannot deny")), "{ran:?}");
    // No layer is taken through a link.
    symlink("lower", desk.path("alias")).unwrap();
    let from = Source::Overlay { lowers: vec![desk.path("alias")], upper: desk.path("upper"), work: desk.path("work") };
    let ran = desk.run(cell(&[Grant { from, ..desk.overlay() }], "true"));
    assert!(matches!(&ran.report.ended, Ended::NotBuilt(why) if why.starts_with("cannot show")), "{ran:?}");
}

fn disk(desk: &Desk) {
    for number in 0..50 {
        desk.file(&format!("lower/data/{number}"), vec![b'x'; 1 << 20]);
    }
    let limited = |script: &str| {
        let mut cell = cell(&[desk.overlay()], script);
        cell.limits.disk_bytes = 1 << 20;
        desk.run(cell).report
    };
    // All of it was made in this very second, though not in this tick of the clock. One is deleted while it is open.
    std::thread::sleep(std::time::Duration::from_millis(50));
    let read = limited("exec 3< data/0; rm data/0; cat data/* <&3 > /dev/null; sleep 0.5; echo little > new");
    assert_eq!(read.ended, Ended::Exited(0), "{read:?}");
    assert!(read.used.disk_bytes < 1 << 20, "{read:?}");
    // Somebody else works in the folder beneath meanwhile.
    let touch = format!("sleep 0.3; touch {}/*", desk.path("lower/data").display());
    let mut other = Command::new("/bin/sh").args(["-c", &touch]).spawn().unwrap();
    let beside = limited("sleep 1");
    assert!(other.wait().unwrap().success());
    assert_eq!(beside.ended, Ended::Exited(0), "{beside:?}");
    // Each file is smaller than what one file may have.
    let filled = limited("for i in 1 2 3 4 5 6 7 8 9 10; do head -c 524288 /dev/zero > new-$i; done; sleep 20");
    assert_eq!(filled.ended, Ended::OutOfDisk, "{filled:?}");
    assert!(filled.used.disk_bytes >= 5 << 20, "{filled:?}");
    // What is copied up to be changed is written as well.
    let copied = limited("chmod +x data/1 data/2 data/3; sleep 20");
    assert_eq!(copied.ended, Ended::OutOfDisk, "{copied:?}");
    // A file without a name takes room, too.
    let nameless = "exec 3> nameless 4> other 5> third; rm nameless other third; \
         for i in 3 4 5; do head -c 524288 /dev/zero >&$i; done; sleep 20";
    assert_eq!(limited(nameless).ended, Ended::OutOfDisk);
    // What earlier steps have left there does not count, nor what another grant shows of it.
    std::thread::sleep(std::time::Duration::from_millis(50));
    let outer = desk.elsewhere("outer", "/home/u", Access::Write);
    fs::create_dir_all(desk.path("outer/proj")).unwrap();
    let mut both = cell(&[desk.overlay(), outer], "echo more > ../beside; head -c 400000 /dev/zero > last; sleep 0.3");
    both.limits.disk_bytes = 1 << 20;
    let report = desk.run(both).report;
    assert_eq!(report.ended, Ended::Exited(0), "{report:?}");
    assert!((400_000..500_000).contains(&report.used.disk_bytes), "{report:?}");
    assert_eq!(desk.read("outer/beside"), "more\n");
}

/// In the folder that is below, under its own path.
fn steps(desk: &Desk) {
    desk.file("lower/log", "");
    let stage = Grant { path: desk.path("lower"), ..desk.overlay() };
    for number in 0..20 {
        let script = format!(
            "set -e; test $(wc -l < log) = {number}; echo {number} >> log; mkdir step-{number}; echo x > step-{number}/file; \
             test {number} = 0 || rm -r step-$(({number} - 1)); ls -A"
        );
        assert_eq!(desk.sh(std::slice::from_ref(&stage), &script), format!("log\nstep-{number}\n"));
    }
    assert_eq!(desk.read("lower/log"), "");
    assert_eq!(desk.read("upper/log").lines().count(), 20);
    assert_eq!(tree(&desk.path("upper")).into_keys().collect::<Vec<_>>(), ["log", "step-19", "step-19/file"]);
    desk.assert_owned("upper");
}

/// Only root can have a workspace that belongs to others.
fn owners(desk: &Desk) {
    desk.file("lower/sub/file", "file\n");
    desk.file("lower/sub/foreign", "foreign\n");
    if actum_sandbox::is_root() {
        let done = Command::new("chown").args(["-R", "1234:4321"]).arg(desk.path("lower")).status().unwrap();
        assert!(done.success());
        chown(desk.path("lower/sub/foreign"), Some(33), Some(33)).unwrap();
    }
    let said = desk.sh(&[desk.overlay()], "stat -c '%u %g' sub/file; echo more >> sub/file; rm sub/foreign; ls -A sub");
    assert_eq!(said, "1000 1000\nfile\n");
    assert_eq!(desk.read("upper/sub/file"), "file\nmore\n");
    desk.assert_owned("upper");
    let own = fs::metadata(desk.path("upper")).unwrap().uid();
    assert_eq!(own, if actum_sandbox::is_root() { 0 } else { own });
    if actum_sandbox::is_root() {
        let found = fs::metadata(desk.path("lower/sub/file")).unwrap();
        assert_eq!((found.uid(), found.gid()), (1234, 4321));
    }
}

/// More than one message between us and the cell can carry.
fn many(desk: &Desk) {
    const COUNT: usize = 90;
    let grant = |number: usize| {
        let part = |name: &str| {
            let path = desk.path(&format!("many/{number}/{name}"));
            fs::create_dir_all(&path).unwrap();
            path
        };
        let from = Source::Overlay { lowers: vec![part("lower")], upper: part("upper"), work: part("work") };
        desk.file(&format!("many/{number}/lower/file"), format!("{number}\n"));
        Grant { path: format!("/many/{number}").into(), access: Access::Write, from }
    };
    let grants: Vec<Grant> = (0..COUNT).map(grant).collect();
    let said =
        desk.sh(&grants, "for i in /many/*; do read n < $i/file; test $i = /many/$n; echo $n > $i/new; done; echo all");
    assert_eq!(said, "all\n");
    for number in 0..COUNT {
        assert_eq!(desk.read(&format!("many/{number}/upper/new")), format!("{number}\n"));
        let inner = desk.path(&format!("many/{number}/work/work"));
        fs::set_permissions(inner, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    }
}

fn not_text(desk: &Desk) {
    let odd = Path::new(OsStr::from_bytes(b"a,b:c\\d=\xff"));
    let part = |name: &str| {
        let path = desk.folder.path().join(odd).join(name);
        fs::create_dir_all(&path).unwrap();
        path
    };
    let from = Source::Overlay { lowers: vec![part("lower")], upper: part("upper"), work: part("work") };
    fs::write(part("lower").join("file"), "text\n").unwrap();
    let grant = Grant { path: Path::new("/home/u").join(odd), access: Access::Write, from };
    assert_eq!(desk.sh(&[grant], "cat file; echo new > new"), "text\n");
    assert!(part("upper").join("new").is_file());
    let inner = part("work").join("work");
    fs::set_permissions(inner, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
}
