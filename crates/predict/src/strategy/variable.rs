//! Texts that stay outside of the prompt, and what can be done with them without asking anybody. Called by `rlm_lite`.

use regex::bytes::{Regex, RegexBuilder};
use serde_json::{Value, json};

use super::printable;
use crate::hash;

/// Variables there may be, and bytes of all of them together.
const VARIABLES_MAX: usize = 512;
const BYTES_MAX: usize = 16 << 20;

/// An input that is longer is kept outside, whether the program says so or not.
const INPUT_CHARS_MAX: usize = 2_000;

/// What a compiled pattern may take; lines one search finds, and characters of a line it keeps.
const PATTERN_BYTES_MAX: usize = 256 << 10;
const LINES_MAX: usize = 1_000;
const LINE_CHARS_MAX: usize = 2_000;

/// Characters shown of the newest result, of older ones, and of an input, if there is room.
const NEWEST_CHARS_MAX: usize = 4_000;
const OLDER_CHARS_MAX: usize = 1_000;
const INPUT_SHOWN_CHARS_MAX: usize = 240;

/// Variables of one result that are listed one by one.
const LISTED_MAX: usize = 16;

#[derive(Debug)]
struct Variable {
    name: String,
    text: String,
    chars: usize,
}

/// All variables of a prediction. Those of one result stand together.
#[derive(Debug)]
pub(super) struct Variables {
    /// First the inputs, then one entry for each result.
    results: Vec<Vec<Variable>>,
    bytes: usize,
    count: usize,
}

impl Variables {
    /// Takes long inputs out; the rest, with a note in the place of each, is for the template.
    pub(super) fn take(input: &Value, long_inputs: &[String]) -> Result<(Self, Value), String> {
        let mut variables = Self { results: Vec::new(), bytes: 0, count: 0 };
        let mut rest = input.clone();
        let mut taken = Vec::new();
        for (name, value) in rest.as_object_mut().into_iter().flatten() {
            let is_named = long_inputs.contains(name);
            if !is_named && !matches!(value, Value::String(_) | Value::Array(_) | Value::Object(_)) {
                continue;
            }
            let text = text_of(value);
            let chars = text.chars().count();
            if is_named || chars > INPUT_CHARS_MAX {
                *value = json!(format!("[variable {name}: {chars} characters, kept outside of the prompt]"));
                taken.push((name.clone(), text));
            }
        }
        variables.add(taken).map_err(|why| format!("the long inputs cannot be kept: {why}"))?;
        Ok((variables, rest))
    }

    /// Adds a result of one or several texts; returns the name by which it goes.
    pub(super) fn add_result(&mut self, texts: Vec<String>) -> Result<String, String> {
        let name = format!("r{}", self.results.len());
        let is_one = texts.len() == 1;
        let named = texts.into_iter().enumerate().map(|(at, text)| {
            let name = if is_one { name.clone() } else { format!("{name}_{}", at + 1) };
            (name, text)
        });
        self.add(named.collect())?;
        Ok(name)
    }

    fn add(&mut self, named: Vec<(String, String)>) -> Result<(), String> {
        let bytes = self.bytes.saturating_add(named.iter().map(|(_, text)| text.len()).sum());
        let count = self.count + named.len();
        if bytes > BYTES_MAX || count > VARIABLES_MAX {
            return Err(format!("there may be {VARIABLES_MAX} variables of together {BYTES_MAX} bytes"));
        }
        (self.bytes, self.count) = (bytes, count);
        let made = named.into_iter().map(|(name, text)| Variable { name, chars: text.chars().count(), text });
        self.results.push(made.collect());
        Ok(())
    }

    /// A variable by its name.
    pub(super) fn get(&self, name: &str) -> Result<&str, String> {
        let found = self.results.iter().flatten().rev().find(|variable| variable.name == name);
        found.map(|variable| variable.text.as_str()).ok_or_else(|| {
            let name = printable(name, 40);
            match self.parts(&name) {
                Some(_) => format!("{name} has parts; name one of them, or use map or join"),
                None => format!("there is no variable {name}"),
            }
        })
    }

    /// The texts by their names; the name of a result with parts stands for all of them.
    pub(super) fn get_all(&self, names: &[String]) -> Result<Vec<&str>, String> {
        let mut found = Vec::new();
        for name in names {
            match self.parts(name) {
                Some(parts) => found.extend(parts.iter().map(|variable| variable.text.as_str())),
                None => found.push(self.get(name)?),
            }
        }
        Ok(found)
    }

    fn parts(&self, name: &str) -> Option<&[Variable]> {
        let n: usize = name.strip_prefix('r')?.parse().ok().filter(|n| *n > 0)?;
        self.results.get(n).filter(|parts| parts.len() != 1).map(Vec::as_slice)
    }

    pub(super) fn peek(&self, var: &str, start: u64, end: u64) -> Result<String, String> {
        let text = self.get(var)?;
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        let length = usize::try_from(end).unwrap_or(usize::MAX).saturating_sub(start);
        let found: String = text.chars().skip(start).take(length).collect();
        if found.is_empty() { Err(format!("{var} has no characters there")) } else { Ok(found) }
    }

    /// Lines with their numbers, counted from one.
    pub(super) fn grep(&self, var: &str, pattern: &str) -> Result<String, String> {
        let text = self.get(var)?;
        let pattern = compile(pattern)?;
        let mut found = String::new();
        let mut count = 0_usize;
        for (at, line) in text.lines().enumerate().filter(|(_, line)| pattern.is_match(line.as_bytes())) {
            count += 1;
            if count <= LINES_MAX {
                let kept: String = line.chars().take(LINE_CHARS_MAX).collect();
                found.push_str(&format!("{}: {kept}\n", at + 1));
            }
        }
        match count {
            0 => Ok("(no line)".to_owned()),
            _ if count > LINES_MAX => Ok(format!("{found}(and {} more lines)", count - LINES_MAX)),
            _ => Ok(found),
        }
    }

    /// Parts of about equal length, cut at the end of a line where one is near.
    pub(super) fn split(&self, var: &str, n: u64) -> Result<Vec<String>, String> {
        let text = self.get(var)?;
        let n = usize::try_from(n).unwrap_or(1).max(1);
        let size = text.len().div_ceil(n).max(1);
        let mut parts = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let mut cut = if parts.len() + 1 == n { rest.len() } else { size.min(rest.len()) };
            while !rest.is_char_boundary(cut) {
                cut += 1;
            }
            if cut < rest.len()
                && let Some(line) = rest[..cut].rfind('\n').filter(|line| *line >= cut / 2)
            {
                cut = line + 1;
            }
            parts.push(rest[..cut].to_owned());
            rest = &rest[cut..];
        }
        if parts.is_empty() { Err(format!("{var} is empty")) } else { Ok(parts) }
    }

    pub(super) fn join(&self, vars: &[String]) -> Result<String, String> {
        Ok(self.get_all(vars)?.join("\n"))
    }

    /// What is said about the variables, and how many of their characters that shows: at most `room`. Newest first get
    /// what there is.
    pub(super) fn show(&self, room: usize) -> (String, usize) {
        let mut left = room;
        let mut told: Vec<String> = Vec::new();
        for (at, result) in self.results.iter().enumerate().rev() {
            let most = match at {
                0 => INPUT_SHOWN_CHARS_MAX * result.len(),
                _ if at + 1 == self.results.len() => NEWEST_CHARS_MAX,
                _ => OLDER_CHARS_MAX,
            };
            let each = most / result.len().max(1);
            let mut lines = String::new();
            for variable in result.iter().take(LISTED_MAX) {
                let shown = printable(&variable.text, each.min(left));
                let count = shown.chars().count();
                left -= count;
                let Variable { name, chars, .. } = variable;
                let begins = match count {
                    _ if count == *chars => format!(": {shown}"),
                    0 => String::new(),
                    _ => format!(", begins with: {shown}"),
                };
                lines.push_str(&format!("- {name} ({chars} characters){begins}\n"));
            }
            if let (Some(more), Some(last)) = (result.len().checked_sub(LISTED_MAX).filter(|n| *n > 0), result.last()) {
                lines.push_str(&format!("- and {more} more up to {}\n", last.name));
            }
            told.push(lines);
        }
        told.reverse();
        (told.concat(), room - left)
    }

    /// For the trace: names, lengths and hashes of what came in.
    pub(super) fn inputs_json(&self) -> Value {
        let one = |variable: &Variable| json!({"name": variable.name, "chars": variable.chars, "hash": hash::of(&json!(variable.text))});
        self.results.first().into_iter().flatten().map(one).collect()
    }

    /// Of the newest result.
    pub(super) fn newest_hash(&self) -> String {
        let texts: Vec<&str> = self.results.last().into_iter().flatten().map(|v| v.text.as_str()).collect();
        hash::of(&json!(texts))
    }
}

/// A list has a line for each of its items, so that lines can be searched.
fn text_of(value: &Value) -> String {
    let line = |item: &Value| match item {
        Value::String(text) if !text.contains('\n') => text.clone(),
        other => other.to_string(),
    };
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(line).collect::<Vec<_>>().join("\n"),
        other => other.to_string(),
    }
}

fn compile(pattern: &str) -> Result<Regex, String> {
    let build = |is_unicode: bool| {
        let mut builder = RegexBuilder::new(pattern);
        builder.unicode(is_unicode).size_limit(PATTERN_BYTES_MAX).dfa_size_limit(PATTERN_BYTES_MAX);
        builder.build()
    };
    // Classes of all the world's letters may not be there, or too large; those of ASCII are.
    build(true).or_else(|_| build(false)).map_err(|e| printable(&format!("no usable pattern: {e}"), 300))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(text: &str) -> Variables {
        Variables::take(&json!({"t": text}), &["t".to_owned()]).unwrap().0
    }

    #[test]
    fn long_inputs_are_taken_out() {
        let input = json!({"a": "short", "b": "x".repeat(2_001), "c": "named", "d": 7, "e": ["one", "two\nlines"]});
        let (variables, rest) = Variables::take(&input, &["c".to_owned(), "e".to_owned()]).unwrap();
        assert_eq!((&rest["a"], &rest["d"]), (&json!("short"), &json!(7)));
        assert_eq!(rest["c"], "[variable c: 5 characters, kept outside of the prompt]");
        assert_eq!(variables.get("b").unwrap().len(), 2_001);
        assert_eq!(variables.get("e").unwrap(), "one\n\"two\\nlines\"");
        assert!(variables.get("a").is_err());
        assert!(Variables::take(&json!({"b": "x".repeat(BYTES_MAX + 1)}), &[]).is_err());
    }

    #[test]
    fn operations_on_texts() {
        let mut variables = of("äb\ncd\nef-12\n");
        assert_eq!(variables.peek("t", 0, 2).unwrap(), "äb");
        assert_eq!(variables.peek("t", 1, u64::MAX).unwrap(), "b\ncd\nef-12\n");
        assert!(variables.peek("t", 100, 200).is_err() && variables.peek("u", 0, 1).is_err());
        assert_eq!(variables.grep("t", r"^[a-f]+-\d+$").unwrap(), "3: ef-12\n");
        assert_eq!(variables.grep("t", "zzz").unwrap(), "(no line)");
        assert_eq!(variables.grep("t", "(?i)CD|ä").unwrap(), "1: äb\n2: cd\n");
        for pattern in ["(", "(a{1000}){1000}", "[z-a]"] {
            assert!(variables.grep("t", pattern).is_err(), "{pattern}");
        }
        assert_eq!(variables.split("t", 2).unwrap().concat(), "äb\ncd\nef-12\n");
        let parts = variables.split("t", 2).unwrap();
        assert_eq!(variables.add_result(parts).unwrap(), "r1");
        assert!(variables.get("r1").unwrap_err().contains("has parts"));
        assert!(variables.get("r1_1").is_ok() && variables.get("r1_3").is_err() && variables.get("r0").is_err());
        assert_eq!(variables.join(&["r1".to_owned(), "r1_2".to_owned()]).unwrap().matches("ef-12").count(), 2);
        assert_eq!(variables.add_result(vec!["x".to_owned()]).unwrap(), "r2");
        assert_eq!(variables.get("r2").unwrap(), "x");
        assert!(variables.add_result(vec![String::new(); VARIABLES_MAX]).is_err());
        assert!(of(&"a\n".repeat(5_000)).grep("t", "a").unwrap().ends_with("(and 4000 more lines)"));
    }

    proptest! {
        #[test]
        fn parts_are_the_whole(text in "(\\PC|\n){1,200}", n in 2..=64_u64) {
            let parts = of(&text).split("t", n).unwrap();
            prop_assert!(parts.len() as u64 <= n);
            prop_assert_eq!(parts.concat(), text);
        }

        #[test]
        fn no_more_is_shown_than_there_is_room(texts in prop::collection::vec("§{0,300}", 1..20), room in 0..3_000_usize) {
            let mut variables = of(&"§".repeat(3_000));
            variables.add_result(texts).unwrap();
            variables.add_result(vec!["§".repeat(5_000)]).unwrap();
            let (told, shown) = variables.show(room);
            prop_assert_eq!(told.matches('§').count(), shown);
            prop_assert!(shown <= room);
        }
    }
}
