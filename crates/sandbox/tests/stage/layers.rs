//! What a stage is like, shown to a second cell while the first one works in it.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{chown, symlink};
use std::path::PathBuf;
use std::process::Command;

use actum_sandbox::{Access, Ended, Files, Grant, News, Running, Source};

use crate::desk::{Case, Desk, PROJECT, cell, tree};

pub(crate) const ALL: &[Case] = &[
    ("a_stage_is_seen_while_another_cell_works_in_it", beside),
    ("a_stage_is_seen_that_lies_in_its_workspace", within),
    ("layers_are_only_read", refused),
    ("any_number_of_layers_is_seen", several),
    ("what_lies_in_layers_covers_them", covered),
    ("files_of_layers_are_the_cells_own_whoever_they_belong_to", owners),
];

/// Everything about everything, as a cell sees it.
const TELL: &str = "find . -path ./.actum -prune -o -printf '%p %y %m %U %G %l %T@\\n' | sort; \
     find . -path ./.actum -prune -o -type f -print | sort | xargs md5sum";

const CHANGE: &str = "set -e; echo new >> edited; mkdir made; echo created > made/created; rm deleted; mv dir moved; \
     chmod +x tool; ln -s untouched link; rm -r emptied; mkdir emptied; echo d > emptied/d";

const UNTIL_READY: &str = "echo; echo ready; read -r go; test \"$go\" = go";

fn workspace(desk: &Desk, at: &str) {
    for (name, text) in [("edited", "old\n"), ("untouched", "same\n"), ("deleted", "gone\n"), ("tool", "#!/bin/sh\n")] {
        desk.file(&format!("{at}/{name}"), text);
    }
    for name in ["dir/a", "dir/deep/b", "emptied/c"] {
        desk.file(&format!("{at}/{name}"), format!("{name}\n"));
    }
}

fn layers(lowers: &[PathBuf]) -> Grant {
    Grant { path: PROJECT.into(), access: Access::Read, from: Source::Layers { lowers: lowers.to_vec() } }
}

/// A cell under way, with which we talk over its input and output.
struct Worker {
    running: Running,
    input: std::io::PipeWriter,
    output: BufReader<std::io::PipeReader>,
}

impl Worker {
    fn start(desk: &Desk, stage: Grant, script: &str) -> Self {
        let (theirs, input) = std::io::pipe().unwrap();
        let (output, to) = std::io::pipe().unwrap();
        let errors = to.try_clone().unwrap().into();
        let files = Files { input: theirs.into(), output: to.into(), errors };
        let running = desk.spawner.run(cell(&[stage], script), files).unwrap();
        Self { running, input, output: BufReader::new(output) }
    }

    fn until_ready(&mut self) -> String {
        let mut said = String::new();
        while !said.ends_with("\n\nready\n") {
            assert!(self.output.read_line(&mut said).unwrap() > 0, "{said}");
        }
        said.trim_end_matches("\n\nready\n").to_owned() + "\n"
    }

    fn go(&mut self) {
        self.input.write_all(b"go\n").unwrap();
    }

    fn end(mut self) -> String {
        let report = loop {
            if let News::Ended(report) = self.running.hear().unwrap() {
                break report;
            }
        };
        let mut said = String::new();
        self.output.read_to_string(&mut said).unwrap();
        assert_eq!(report.ended, Ended::Exited(0), "{said}");
        said
    }
}

fn beside(desk: &Desk) {
    workspace(desk, "lower");
    look_on(desk, desk.path("lower"), desk.path("upper"), desk.path("work"));
}

/// As it is in a project: stages are kept in a folder of the workspace.
fn within(desk: &Desk) {
    workspace(desk, "lower");
    let stage = desk.path("lower/.actum/stages/one");
    let (upper, work) = (stage.join("upper"), stage.join("work"));
    fs::create_dir_all(&upper).unwrap();
    fs::create_dir_all(&work).unwrap();
    look_on(desk, desk.path("lower"), upper, work.clone());
    fs::set_permissions(work.join("work"), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
}

fn look_on(desk: &Desk, lower: PathBuf, upper: PathBuf, work: PathBuf) {
    let view = layers(&[upper.clone(), lower.clone()]);
    let before = tree(&desk.path("lower/dir"));
    let from = Source::Overlay { lowers: vec![lower], upper: upper.clone(), work };
    let script = format!(
        "{CHANGE}; {TELL}; {UNTIL_READY}; cat edited; echo again >> edited; echo more > made/more; rm moved/a; \
         echo back > deleted; {TELL}; {UNTIL_READY}; cat edited made/* deleted"
    );
    let mut worker = Worker::start(desk, Grant { from, ..desk.overlay() }, &script);
    let told = worker.until_ready();
    assert!(told.contains("./made/created") && told.contains("./moved/deep/b"), "{told}");
    assert!(!told.contains("./deleted") && !told.contains("./emptied/c") && !told.contains("./dir"), "{told}");
    let left = tree(&upper);
    assert_eq!(desk.sh(std::slice::from_ref(&view), TELL), told);
    let attempts = [
        "echo x > x",
        "echo x >> edited",
        "echo x >> untouched",
        "rm untouched",
        "mkdir deleted",
        "mv moved away",
        "chmod 777 edited",
        "touch made/created",
        "ln untouched hard",
        "rmdir emptied",
    ];
    let script: String = attempts.iter().map(|attempt| format!("({attempt}) 2>&1; ")).collect();
    let said = desk.sh(std::slice::from_ref(&view), &format!("{script} true"));
    assert_eq!(said.matches("Read-only file system").count(), attempts.len(), "{said}");
    assert_eq!(tree(&upper), left);
    // The one who works there goes on, and who looks again sees that. Somebody looks on meanwhile.
    let mut onlooker = Worker::start(desk, view.clone(), &format!("cat untouched; {UNTIL_READY}; cat untouched"));
    assert_eq!(onlooker.until_ready(), "same\n");
    worker.go();
    let told = worker.until_ready();
    assert_eq!(told.lines().take(2).collect::<Vec<_>>(), ["old", "new"]);
    assert_eq!(desk.sh(std::slice::from_ref(&view), TELL), told.split_once("new\n").unwrap().1);
    onlooker.go();
    assert_eq!(onlooker.end(), "same\n");
    worker.go();
    assert_eq!(worker.end(), "old\nnew\nagain\ncreated\nmore\nback\n");
    assert_eq!(desk.sh(&[view], "cat edited made/* deleted"), "old\nnew\nagain\ncreated\nmore\nback\n");
    assert_eq!(tree(&desk.path("lower/dir")), before);
}

fn refused(desk: &Desk) {
    desk.file("lower/file", "file\n");
    let both = [desk.path("upper"), desk.path("lower")];
    for access in [Access::Write, Access::Pinned] {
        let ran = desk.run(cell(&[Grant { access, ..layers(&both) }], "true"));
        assert!(matches!(&ran.report.ended, Ended::NotBuilt(why) if why.contains("only to be read")), "{ran:?}");
    }
    for lowers in [vec![], vec![desk.path("lower"); 9]] {
        let ran = desk.run(cell(&[layers(&lowers)], "true"));
        assert!(matches!(&ran.report.ended, Ended::NotBuilt(why) if why.contains("1 to 8 layers")), "{ran:?}");
    }
    let ran = desk.run(cell(&[layers(&[desk.path("upper"), desk.path("none")])], "true"));
    assert!(matches!(&ran.report.ended, Ended::NotBuilt(why) if why.starts_with("cannot show")), "{ran:?}");
    symlink("lower", desk.path("alias")).unwrap();
    let ran = desk.run(cell(&[layers(&[desk.path("upper"), desk.path("alias")])], "true"));
    assert!(matches!(&ran.report.ended, Ended::NotBuilt(why) if why.starts_with("cannot show")), "{ran:?}");
    // What everybody may read can be looked at as nobody.
    let look = Grant { access: Access::Look, ..layers(&both) };
    assert_eq!(desk.sh(&[look], "cat file"), "file\n");
}

fn several(desk: &Desk) {
    let names: Vec<String> = (0..8).map(|number| format!("layer-{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        desk.file(&format!("{name}/own-{number}"), "own\n");
        desk.file(&format!("{name}/same"), format!("{number}\n"));
    }
    let lowers: Vec<PathBuf> = names.iter().map(|name| desk.path(name)).collect();
    assert_eq!(desk.sh(&[layers(&lowers)], "ls | wc -l; cat same"), "9\n0\n");
    // By itself: what was deleted in it is not there, though there is nothing beneath.
    desk.file("lower/gone", "gone\n");
    desk.file("lower/kept", "kept\n");
    desk.sh(&[desk.overlay()], "rm gone; echo new > new");
    assert_eq!(desk.sh(&[layers(&[desk.path("upper")])], "ls -A"), "new\n");
    // What is deleted stays so however many there are beneath; one of them lies in another.
    desk.file("base/gone", "gone\n");
    desk.file("base/of base", "base\n");
    fs::rename(desk.path("upper"), desk.path("lower/upper")).unwrap();
    let lowers = ["lower/upper", "lower", "base"].map(|name| desk.path(name));
    assert_eq!(desk.sh(&[layers(&lowers)], "ls -A"), "kept\nnew\nof base\nupper\n");
    fs::rename(desk.path("lower/upper"), desk.path("upper")).unwrap();
}

fn covered(desk: &Desk) {
    desk.file("lower/.actum/secret", "secret\n");
    desk.file("lower/file", "file\n");
    desk.file("elsewhere/tools/tool", "tool\n");
    fs::create_dir_all(desk.path("lower/.actum/upper")).unwrap();
    for upper in ["upper", "lower/.actum/upper"] {
        let view = layers(&[desk.path(upper), desk.path("lower")]);
        let tools = desk.elsewhere("elsewhere/tools", &format!("{PROJECT}/sub/tools"), Access::Write);
        let script = "cat file sub/tools/tool; echo x >> sub/tools/tool; ls .actum 2>&1; cat .actum/secret 2>&1; \
             cat /proc/self/mountinfo; ls -d /.layers 2>&1; true";
        let mut cell = cell(&[view, tools], script);
        cell.deny = vec![format!("{PROJECT}/.actum").into()];
        let ran = desk.run(cell);
        assert_eq!(ran.report.ended, Ended::Exited(0), "{ran:?}");
        assert!(ran.said.starts_with("file\ntool\n"), "{}", ran.said);
        assert_eq!(ran.said.matches("Permission denied").count(), 2, "{}", ran.said);
        let name = desk.folder.path().file_name().unwrap().to_str().unwrap().to_owned();
        let known = ran.said.lines().filter(|line| line.contains(&name)).count();
        assert_eq!(known, 1, "only of what was granted by itself: {}", ran.said);
        assert!(ran.said.contains("cannot access '/.layers'"), "{}", ran.said);
        let overlays = ran.said.lines().filter(|line| line.contains(" - overlay ")).count();
        assert_eq!(overlays, 1, "{}", ran.said);
        assert!(tree(&desk.path(upper)).is_empty());
        File::create(desk.path("elsewhere/tools/tool")).unwrap().write_all(b"tool\n").unwrap();
    }
}

/// Only root can have a workspace that belongs to others.
fn owners(desk: &Desk) {
    desk.file("lower/sub/file", "file\n");
    desk.file("lower/sub/secret", "secret\n");
    desk.file("upper/sub/changed", "changed\n");
    for name in ["lower/sub/secret", "upper/sub/changed"] {
        fs::set_permissions(desk.path(name), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    }
    if actum_sandbox::is_root() {
        let done = Command::new("chown").args(["-R", "1234:4321"]).arg(desk.path("lower")).status().unwrap();
        assert!(done.success());
    }
    let view = layers(&[desk.path("upper"), desk.path("lower")]);
    let said = desk.sh(std::slice::from_ref(&view), "cat sub/*; stat -c '%u %g' sub/*");
    assert_eq!(said, "changed\nfile\nsecret\n1000 1000\n1000 1000\n1000 1000\n");
    if actum_sandbox::is_root() {
        chown(desk.path("lower/sub/secret"), Some(33), Some(33)).unwrap();
        let said = desk.sh(&[view], "cat sub/secret 2>&1; true");
        assert!(said.contains("Permission denied"), "{said}");
    }
}
