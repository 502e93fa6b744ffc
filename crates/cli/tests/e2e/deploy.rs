//! The files in deploy/, read by programs that read such files: units by systemd, the container file by a linter, the compose
//! file by its schema. No image is built here, and nothing is started.

use std::fs;
use std::path::{Path, PathBuf};

use actum_testkit::folder::Folder;
use actum_testkit::linters::Linters;
use actum_testkit::program::{Ended, other, run};

fn deploy(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name)
}

fn ok(ended: &Ended) {
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
}

#[test]
fn systemd_takes_the_units() {
    let folder = Folder::new();
    let mut command = other("systemd-analyze");
    command.args(["verify", "--man=no"]);
    for (name, asked) in [("actum.service", "actum.service"), ("actum-worker@.service", "actum-worker@1.service")] {
        let text = fs::read_to_string(deploy(&format!("systemd/{name}"))).unwrap();
        // It looks for the program, which is not installed here.
        folder.file(name, text.replace("/usr/local/bin/actum", env!("CARGO_BIN_EXE_actum")));
        command.arg(folder.join(asked));
    }
    let ended = run(command, b"");
    ok(&ended);
    assert_eq!(ended.stderr, "", "it has something to say");
}

#[test]
fn the_commands_of_the_units_and_of_the_compose_file_are_commands() {
    let actum = super::actum();
    for name in ["systemd/actum.service", "systemd/actum-worker@.service"] {
        let text = fs::read_to_string(deploy(name)).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/actum ")).unwrap();
        let words: Vec<&str> = line.split(' ').chain(["--help"]).collect();
        ok(&actum.run(&words));
    }
    let text = fs::read_to_string(deploy("compose/compose.yaml")).unwrap();
    let lists = text.lines().filter_map(|line| line.trim().strip_prefix("command: ["));
    let ours = lists.filter(|list| {
        list.starts_with("\"serve\"") || list.starts_with("\"worker\"") || list.starts_with("\"store\"")
    });
    let mut seen = 0;
    for list in ours {
        let words: Vec<String> = serde_json::from_str(&format!("[{list}")).unwrap();
        ok(&actum.run(&words.iter().map(String::as_str).chain(["--help"]).collect::<Vec<_>>()));
        seen += 1;
    }
    assert_eq!(seen, 3, "{text}");
}

#[test]
fn a_linter_has_nothing_to_say_of_the_container_file() {
    let mut command = Linters::find().hadolint();
    command.arg(deploy("container/Containerfile"));
    let ended = run(command, b"");
    ok(&ended);
    assert_eq!(ended.stdout, "");
}

#[test]
fn the_compose_file_is_one() {
    let script = "import json, sys, yaml, jsonschema\n\
        document, schema = yaml.safe_load(open(sys.argv[1])), json.load(open(sys.argv[2]))\n\
        schema.pop('$schema', None)\n\
        flaws = [f'{list(e.path)}: {e.message}' for e in jsonschema.Draft7Validator(schema).iter_errors(document)]\n\
        print('\\n'.join(flaws) or ','.join(sorted(document['services'])))\n\
        sys.exit(len(flaws))";
    let linters = Linters::find();
    let mut command = linters.python();
    command.args(["-c", script]).arg(deploy("compose/compose.yaml")).arg(linters.compose_schema());
    let ended = run(command, b"");
    ok(&ended);
    assert_eq!(ended.stdout.trim(), "collector,database,migrate,objects,server,worker-1,worker-2");
}
