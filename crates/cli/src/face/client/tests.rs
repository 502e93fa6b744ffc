//! Whether a server is asked, with which token, and what its answers come to; without a server.

use actum_api::error::named;
use actum_testkit::folder::Folder;
use clap::{CommandFactory as _, FromArgMatches as _};
use serde_json::json;

use super::*;

fn choose(words: &[&str], named: Option<&str>) -> Result<Option<String>, String> {
    let typed = Parsed::command().try_get_matches_from([&["actum"], words].concat()).unwrap();
    let parsed = Parsed::from_arg_matches(&typed).unwrap();
    chosen(&parsed.global, named.map(str::to_owned), &typed).map_err(|failure| failure.to_text())
}

#[test]
fn a_server_is_asked_if_one_is_named_and_the_command_is_not_of_this_machine() {
    let url = "http://127.0.0.1:7070";
    for elsewhere in
        ["http://10.0.0.1:7070", "http://example.org", "http://[2001:db8::1]:1", "http://localhost.example.org"]
    {
        assert!(choose(&["list", "--server", elsewhere], None).unwrap_err().contains("--insecure"), "{elsewhere}");
        let told = choose(&["list", "--insecure", "--server", elsewhere], None);
        assert_eq!(told, Ok(Some(elsewhere.to_owned())));
    }
    for near in ["http://[::1]:1", "http://LOCALHOST", "http://127.9.9.9:1/x", "http://[::ffff:127.0.0.1]:1"] {
        assert_eq!(choose(&["list", "--server", near], None), Ok(Some(near.to_owned())));
    }
    assert_eq!(choose(&["list"], None), Ok(None));
    assert_eq!(choose(&["list"], Some(url)), Ok(Some(url.to_owned())));
    assert_eq!(
        choose(&["list", "--server", "http://localhost:1"], Some(url)),
        Ok(Some("http://localhost:1".to_owned()))
    );
    assert_eq!(
        choose(&["--server", "http://localhost:1", "store", "check"], None),
        Ok(Some("http://localhost:1".to_owned()))
    );
    for words in [
        vec!["schema", "--list"],
        vec!["canon"],
        vec!["completions", "bash"],
        vec!["doctor"],
        vec!["contract", "hash"],
        vec!["contract", "show"],
        vec!["serve"],
        vec!["init"],
        vec!["sandbox", "--", "true"],
    ] {
        assert_eq!(choose(&words, Some(url)), Ok(None), "{words:?}");
    }
    assert_eq!(choose(&["contract", "show", "r-1"], Some(url)), Ok(Some(url.to_owned())));
    for (words, said) in [
        (vec!["list", "--server", url, "--store", "x.db"], "--store"),
        (vec!["list", "--token-file", "x"], "without --server"),
    ] {
        let told = choose(&words, None).unwrap_err();
        assert!(told.contains(said), "{words:?}: {told}");
    }
}

#[test]
fn a_token_is_read_from_a_file_and_never_told() {
    let folder = Folder::new();
    let read = |text: &[u8]| token(Some(&folder.file("token", text)));
    assert_eq!(read(b"actum_1_2\n").unwrap(), "actum_1_2");
    for bad in [&b""[..], b" \n", b"two words", b"two\nlines", "\u{e9}".as_bytes(), b"\xff", &[b'a'; 2_000]] {
        let failure = read(bad).unwrap_err();
        assert!(failure.row.exit != 0 && !failure.to_text().contains("two"), "{}", failure.to_text());
    }
    assert_eq!(token(Some(Path::new("/nowhere"))).unwrap_err().row.name, error::FILE);
}

#[test]
fn an_error_keeps_its_row_its_details_and_its_hint() {
    let told = failure(&json!({"code": "NOT_FOUND", "message": "no", "details": {"a": 1}, "hint": "look\u{1b}"}));
    assert_eq!((told.row, told.message.as_str()), (named(error::NOT_FOUND), "no"));
    assert_eq!((told.details, told.hint.as_deref()), (json!({"a": 1}), Some("look\u{fffd}")));
    let newer = failure(&json!({"code": "OF_TOMORROW", "message": "no"}));
    assert_eq!((newer.row.name, newer.message.as_str(), newer.hint), (error::INTERNAL, "OF_TOMORROW: no", None));
    assert!(!failure(&Value::Null).message.is_empty());
}

#[test]
fn who_does_not_answer_is_told_of() {
    for (url, row) in
        [("nonsense", error::USAGE), ("http://u:p@x", error::USAGE), ("http://127.0.0.1:1", error::STORE_UNAVAILABLE)]
    {
        let typed = Parsed::command().try_get_matches_from(["actum", "list"]).unwrap();
        let request = request::of(&typed).unwrap();
        assert_eq!(ask_for(url, "t", &request, JSON).unwrap_err().row.name, row, "{url}");
    }
}
