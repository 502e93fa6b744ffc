//! What differs between two equal runs of a client, taken out of a question: ids, process groups, dates, clocks, temporary
//! paths, commits. For finding a recorded answer; what is sent is never masked.

use std::collections::HashMap;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Map, Value};

/// Fields that are another one in every session, and say nothing to the model.
const SESSION: [&str; 4] = ["client_metadata", "prompt_cache_key", "safety_identifier", "prompt_cache_retention"];

/// Fields whose value ties a call to its answer.
const TIES: [&str; 5] = ["call_id", "tool_call_id", "tool_use_id", "item_id", "previous_response_id"];

/// Fields with what a tool is given or described by: their names are the tool's own.
const FOREIGN: [&str; 7] =
    ["input", "args", "arguments", "parameters", "input_schema", "schema", "parametersJsonSchema"];

/// All that is looked for in texts, in one pass.
static FLEETING: LazyLock<Regex> = LazyLock::new(|| {
    let uuid = "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}";
    let zone = "(?: ?(?:Z|UTC|GMT|[+-][0-9]{2}:?[0-9]{2}))?";
    let clock = format!("[0-2]?[0-9]:[0-5][0-9](?::[0-6][0-9](?:[.,][0-9]{{1,9}})?)?(?: ?[AaPp]\\.?[Mm]\\.?)?{zone}");
    let month = "(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}\\.?";
    let day = "(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{0,6},? ";
    let kinds = [
        uuid.to_owned(),
        "[0-9a-f]{40}".to_owned(),
        // A commit as `git log --oneline` shows it.
        "(?m:^)[0-9a-f]{7,12} ".to_owned(),
        "PGID: [0-9]+".to_owned(),
        // How codex begins what a command has put out.
        "Chunk ID: [0-9a-f]{4,16}".to_owned(),
        "Wall time: [0-9]+(?:\\.[0-9]+)? seconds".to_owned(),
        "(?:/private)?(?:/var)?/(?:tmp|dev/shm)/[A-Za-z0-9._-]+".to_owned(),
        "/var/folders/[A-Za-z0-9._+/-]+".to_owned(),
        format!("[12][0-9]{{3}}[-/][01][0-9][-/][0-3][0-9](?:[T ]{clock})?"),
        "[0-3]?[0-9]/[0-3]?[0-9]/20[0-9]{2}".to_owned(),
        format!("(?:{day})?{month} [0-3]?[0-9](?:st|nd|rd|th)?,? 20[0-9]{{2}}"),
        format!("(?:{day})?[0-3]?[0-9]\\.? {month} 20[0-9]{{2}}"),
        format!("{day}{month} +[0-3]?[0-9] {clock} 20[0-9]{{2}}"),
        // Seconds and milliseconds since 1970, of our days.
        "1[6-9][0-9]{8}(?:[0-9]{3})?".to_owned(),
        clock.clone(),
    ];
    Regex::new(&kinds.join("|")).expect("the pattern is fixed, and tried by a test")
});

/// The body without all that.
pub(super) fn mask(body: &Value) -> Value {
    let mut numbers = Numbers::default();
    match body {
        Value::Object(fields) => {
            let mut masked = Map::new();
            for (name, value) in fields {
                let value = match name.as_str() {
                    name if SESSION.contains(&name) => Value::Null,
                    "metadata" => metadata(value, &mut numbers),
                    "input" | "messages" | "contents" => walk(value, false, &mut numbers),
                    name => walk(value, FOREIGN.contains(&name), &mut numbers),
                };
                masked.insert(name.clone(), value);
            }
            Value::Object(masked)
        }
        other => walk(other, false, &mut numbers),
    }
}

/// Ids in the order in which they appear: which is the same one as before is what matters of them.
#[derive(Debug, Default)]
struct Numbers(HashMap<String, usize>);

impl Numbers {
    fn of(&mut self, id: &str) -> String {
        let next = self.0.len() + 1;
        format!("#{}", self.0.entry(id.to_owned()).or_insert(next))
    }
}

fn metadata(value: &Value, numbers: &mut Numbers) -> Value {
    let mut masked = walk(value, true, numbers);
    if let Some(fields) = masked.as_object_mut() {
        fields.remove("user_id");
    }
    masked
}

/// `is_foreign`: inside something whose fields are not the protocol's.
fn walk(value: &Value, is_foreign: bool, numbers: &mut Numbers) -> Value {
    match value {
        Value::String(text) => Value::String(mask_text(text, numbers)),
        Value::Array(items) => items.iter().map(|item| walk(item, is_foreign, numbers)).collect(),
        Value::Object(fields) => {
            let mut masked = Map::new();
            // Items of a conversation and calls have a type; Google's calls have a name and what they were given.
            let has_id = ["type", "role", "args", "response"].iter().any(|name| fields.contains_key(*name));
            for (name, value) in fields {
                let is_tie = TIES.contains(&name.as_str()) || name == "id" && has_id;
                let value = match value {
                    Value::String(id) if is_tie && !is_foreign => Value::String(numbers.of(id)),
                    _ => walk(value, is_foreign || FOREIGN.contains(&name.as_str()), numbers),
                };
                masked.insert(name.clone(), value);
            }
            Value::Object(masked)
        }
        other => other.clone(),
    }
}

fn mask_text(text: &str, numbers: &mut Numbers) -> String {
    let mut masked = String::new();
    let mut copied = 0;
    let mut at = 0;
    while let Some(found) = FLEETING.find_at(text, at) {
        let word = found.as_str();
        let is_free = is_free(text.as_bytes(), found.start(), found.end());
        let Some(instead) = replacement(word, numbers).filter(|_| is_free) else {
            // It may be the end of something longer; go on behind all of it that is one word.
            at = found.start() + word.bytes().take_while(u8::is_ascii_alphanumeric).count().max(1);
            continue;
        };
        masked.push_str(&text[copied..found.start()]);
        masked.push_str(&instead);
        (copied, at) = (found.end(), found.end());
    }
    masked.push_str(&text[copied..]);
    masked
}

/// Whether what was found is not part of a longer word, number or position in a file.
fn is_free(text: &[u8], start: usize, end: usize) -> bool {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric();
    let is_path = text[start] == b'/';
    let before = start.checked_sub(1).and_then(|at| text.get(at));
    let two_before = start.checked_sub(2).and_then(|at| text.get(at));
    let is_joined = |byte: &u8| {
        is_word(byte) || *byte == b'.' || *byte == b':' && two_before.is_some_and(|b| !b.is_ascii_whitespace())
    };
    let is_begun = is_path && before.is_none_or(|byte| !is_word(byte) && *byte != b'/')
        || !is_path && before.is_none_or(|byte| !is_joined(byte));
    let is_open = text[end - 1] == b' ';
    let after = text.get(end);
    let is_position = after == Some(&b':') && text.get(end + 1).is_some_and(u8::is_ascii_digit);
    is_begun && (is_open || after.is_none_or(|byte| !is_word(byte)) && !is_position)
}

/// What stands for it; nothing: it stays.
fn replacement(word: &str, numbers: &mut Numbers) -> Option<String> {
    let bytes = word.as_bytes();
    if word.starts_with("PGID") {
        return Some("PGID: #".into());
    }
    if let Some((name, _)) = word.split_once(": ").filter(|(name, _)| ["Chunk ID", "Wall time"].contains(name)) {
        return Some(format!("{name}: #"));
    }
    if word.starts_with("/var/folders/") {
        return Some(numbers.of(word));
    }
    if bytes[0] == b'/' {
        let (folder, name) = word.rsplit_once('/')?;
        let is_random = name.len() >= 6 && has_digits_or_case(name);
        return is_random.then(|| format!("{folder}/{}", numbers.of(name)));
    }
    let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if let Some(commit) = word.strip_suffix(' ').filter(|commit| is_hex(commit)) {
        // A word of these letters alone is a word, and digits alone are a number.
        let is_commit = commit.bytes().any(|b| b.is_ascii_digit()) && commit.bytes().any(|b| b.is_ascii_alphabetic());
        return is_commit.then(|| format!("{} ", numbers.of(commit)));
    }
    if word.len() == 40 && is_hex(word) || word.len() == 36 && word.bytes().filter(|byte| *byte == b'-').count() == 4 {
        return Some(numbers.of(&word.to_ascii_lowercase()));
    }
    Some("‹time›".into())
}

/// Names made by chance have digits in them, or large letters among small ones.
fn has_digits_or_case(name: &str) -> bool {
    let has = |is: fn(&u8) -> bool| name.as_bytes().iter().any(is);
    has(u8::is_ascii_digit) || has(u8::is_ascii_lowercase) && has(u8::is_ascii_uppercase)
}
