//! What Actum keeps for itself is hidden from every cell, at every depth and in every kind of stage.

use std::fs;

use actum_testkit::program::Program;

use super::actum;
use super::run::{item, live, one, project};

const SECRET: &str = "6f1c2a: nobody in a cell may read this";

/// Folders with a secret: deep, in folders of package managers, and behind thousands of others.
const PLACES: [&str; 5] =
    ["nested/.actum", "a/b/c/d/e/f/g/h/i/j/k/l/.actum", "node_modules/x/.actum", "target/.actum", "many/zzz/.actum"];

fn both() -> [Program; 2] {
    [actum(), actum().owned_by_nobody()]
}

#[test]
fn no_sandbox_shows_them() {
    for actum in both() {
        for n in 0..6_000 {
            fs::create_dir_all(actum.path(&format!("many/{n}"))).unwrap();
        }
        for place in PLACES {
            actum.file(&format!("{place}/key.pem"), SECRET);
        }
        actum.file("plain/.actum", SECRET);
        let script = "grep -r 6f1c2a . ; find . -name .actum -type f -size +0 -o -name key.pem";
        for flags in [&[][..], &["--write", "."], &["--level", "standard"]] {
            let shown = actum.run(&[&["sandbox"], flags, &["--", "sh", "-c", script]].concat());
            assert_eq!(shown.stdout, "", "{flags:?}: {}", shown.stderr);
        }
    }
}

#[test]
fn no_run_reads_them() {
    let script = "grep -rs 6f1c2[a] . > seen || true; find . -name key.pem >> seen 2> /dev/null || true";
    let actum = project(&[("a", script)]);
    actum.file(".gitignore", "cache\n");
    // Too large to be copied, so it is shown as it is.
    actum.file("cache/big", "");
    fs::File::options().write(true).open(actum.path("cache/big")).unwrap().set_len(17 << 20).unwrap();
    for place in ["cache/deep/.actum", "nested/.actum"] {
        actum.file(&format!("{place}/key.pem"), SECRET);
    }
    for item in [item("i", "a"), live(item("l", "a"))] {
        fs::remove_file(actum.path("seen")).ok();
        let (code, run) = one(&actum, item, &[]);
        assert_eq!(code, 0, "{run}");
        assert_eq!(fs::read_to_string(actum.path("seen")).unwrap(), "", "{run}");
    }
}

#[test]
fn dependencies_behind_a_link_in_the_project_are_refused() {
    let outside = actum();
    outside.file("secret", SECRET);
    let actum = actum();
    actum.file("actum.toml", format!("[sandbox]\ndependencies = [{:?}]\n", actum.path("vendor")));
    std::os::unix::fs::symlink(outside.folder(), actum.path("vendor")).unwrap();
    let secret = outside.path("secret").display().to_string();
    let shown = actum.run(&["sandbox", "--level", "extended", "--", "cat", &secret]);
    assert!(shown.code != 0 && !shown.stdout.contains("6f1c2a"), "{}", shown.stdout);
    assert!(shown.stderr.contains("vendor is reached through a link"), "{}", shown.stderr);
}
