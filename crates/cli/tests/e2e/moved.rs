//! Object stores that have moved, or have lost what they held.

use std::fs;

use actum_testkit::folder::Folder;
use actum_testkit::program::Program;
use serde_json::{Value, json};

use super::run::{asked, id, item, project};
use super::runs::{state, work};

/// A project whose contents are in this object store, with an earlier name of it if there is one.
fn configure(actum: &Program, url: &str, also: Option<&str>) {
    let text = fs::read_to_string(actum.path("actum.toml")).unwrap();
    let agents = text.split("[blobs]").next().unwrap().to_owned();
    let also = also.map(|name| format!("also = [{}]\n", json!(name))).unwrap_or_default();
    actum.file("actum.toml", format!("{agents}[blobs]\nurl = \"{url}\"\n{also}"));
}

fn submitted(actum: &Program) -> String {
    assert_eq!(actum.run(&["workspace", "add", "site", "--json"]).code, 0);
    let text = json!({"workspace": "shared:site", "items": [item("i", "a")]}).to_string();
    let ended = actum.run_with(&["run", "--json", "--detach", "-"], text.as_bytes());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    id(&ended.json()["runs"][0])
}

/// Another address of the same objects: the run is found by the alias, and says why it waits without it.
#[test]
fn runs_of_a_moved_object_store_are_found_by_its_earlier_name() {
    let contents = Folder::new();
    let actum = project(&[("a", "echo x > made")]);
    let earlier = contents.join("earlier");
    fs::create_dir(&earlier).unwrap();
    configure(&actum, &format!("file://{}", earlier.display()), None);
    let run = submitted(&actum);
    let place = asked(&actum, &["status", "--json", &run])["place"].as_str().unwrap().to_owned();
    let moved = contents.join("moved");
    fs::rename(&earlier, &moved).unwrap();
    let url = format!("file://{}", moved.display());
    configure(&actum, &url, None);
    let waiting = asked(&actum, &["status", "--json", &run])["waiting"].as_str().unwrap().to_owned();
    assert!(waiting.contains(&place) && waiting.contains("blobs.also"), "{waiting}");
    configure(&actum, &url, Some(&place));
    work(&actum, std::slice::from_ref(&run));
    assert_eq!(state(&actum, &run), "succeeded");
}

/// Contents that an empty object store lacks are found, also if this machine has copies.
#[test]
fn store_check_compares_with_the_object_store() {
    let contents = Folder::new();
    let actum = project(&[("a", "echo x > made")]);
    let usage = actum.run(&["store", "check", "--objects", "--json"]);
    assert_eq!((usage.code, &usage.error()["code"]), (2, &json!("USAGE")));
    configure(&actum, &format!("file://{}", contents.path().display()), None);
    let run = submitted(&actum);
    work(&actum, std::slice::from_ref(&run));
    actum.run(&["snapshot", "freeze", "--json"]).ok();
    let check = actum.run(&["store", "check", "--objects", "--json"]);
    assert_eq!(check.code, 0, "{}", check.stdout);
    for entry in fs::read_dir(contents.path()).unwrap().flatten() {
        let _ = fs::remove_dir_all(entry.path());
    }
    assert_eq!(actum.run(&["store", "check", "--json"]).code, 0, "the database alone is fine");
    let check = actum.run(&["store", "check", "--objects", "--json"]);
    assert_eq!(check.code, 1, "{}", check.stdout);
    let bad: Vec<Value> =
        check.json()["checks"].as_array().unwrap().iter().filter(|c| c["ok"] == false).cloned().collect();
    let names: Vec<&str> = bad.iter().map(|c| c["name"].as_str().unwrap()).collect();
    for kind in ["heads", "receipts and recordings", "snapshots"] {
        assert!(names.contains(&kind), "{kind}: {bad:?}");
    }
}
