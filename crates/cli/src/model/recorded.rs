//! Recordings of exchanges with models, as files: what `actum predict --record` and `actum gateway --record` write, and a
//! provider of type `recorded` answers from. No network, no key, no money.
//!
//! A file is one document, or a line for each exchange where they come one after the other without end.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use actum_api::error;
use actum_predict::protocol::Question;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::workspace::new_id;

/// The version this program writes; it reads older ones.
const VERSION: u64 = 1;
/// A recording is read whole.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// One exchange.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Exchange {
    /// What was asked, by its digest; and by that of what stays the same each time.
    pub exact: String,
    pub key: String,
    pub protocol: String,
    pub model: String,
    pub status: u16,
    pub content_type: String,
    pub body: String,
}

impl Exchange {
    pub(crate) fn new(question: &Question, status: u16, content_type: &str, body: &[u8]) -> Self {
        Self {
            exact: question.exact_key(),
            key: question.masked_key(),
            protocol: question.protocol.word().to_owned(),
            model: question.model.clone(),
            status,
            content_type: content_type.to_owned(),
            body: String::from_utf8_lossy(body).into_owned(),
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Document {
    version: u64,
    exchanges: Vec<Exchange>,
}

/// One line of a file that grows. By itself each says what it is.
#[derive(Debug, Deserialize)]
struct Line {
    version: u64,
    #[serde(flatten)]
    exchange: Exchange,
}

/// The same as it is written.
#[derive(Debug, Serialize)]
struct LineRef<'a> {
    version: u64,
    #[serde(flatten)]
    exchange: &'a Exchange,
}

#[derive(Debug)]
pub(crate) struct Recorded {
    exchanges: Vec<Exchange>,
    /// How often each was used: equal questions are answered in their order, the last one as often as it is asked.
    used: Mutex<Vec<bool>>,
}

impl Recorded {
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let shown = path.display();
        let bad = |what: String| Failure::new(error::INPUT, format!("the recording {shown} {what}"));
        let length = fs::metadata(path).map_err(|e| bad(format!("cannot be read: {e}")))?.len();
        if length > FILE_BYTES_MAX {
            return Err(bad(format!("is larger than {FILE_BYTES_MAX} bytes")));
        }
        let bytes = fs::read(path).map_err(|e| bad(format!("cannot be read: {e}")))?;
        let (version, exchanges) = parse(&bytes).map_err(|e| bad(format!("is none: {e}")))?;
        if version > VERSION {
            return Err(bad(format!("has version {version}; use a newer actum")));
        }
        let used = Mutex::new(vec![false; exchanges.len()]);
        Ok(Self { exchanges, used })
    }

    /// The answer to a question: to the very same words, or to those that differ only in what differs each time.
    pub(crate) fn answer(&self, question: &Question) -> Option<Exchange> {
        let (exact, key) = (question.exact_key(), question.masked_key());
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let find = |is: &dyn Fn(&Exchange) -> bool, used: &[bool]| {
            let fresh = self.exchanges.iter().zip(used).position(|(one, used)| !used && is(one));
            fresh.or_else(|| self.exchanges.iter().rposition(is))
        };
        let at = find(&|one| one.exact == exact, &used).or_else(|| find(&|one| one.key == key, &used))?;
        used[at] = true;
        self.exchanges.get(at).cloned()
    }

    /// Adds exchanges to a file; makes it if there is none.
    pub(crate) fn add(path: &Path, new: &[Exchange]) -> Result<(), Failure> {
        let mut exchanges = match path.exists() {
            true => Self::read(path)?.exchanges,
            false => Vec::new(),
        };
        exchanges.retain(|old| !new.iter().any(|new| new.exact == old.exact));
        exchanges.extend_from_slice(new);
        let file = Document { version: VERSION, exchanges };
        let text = serde_json::to_string_pretty(&file).unwrap_or_default();
        let aside = path.with_extension(format!("{}.new", new_id()));
        let written = fs::write(&aside, text + "\n").and_then(|()| fs::rename(&aside, path));
        written.map_err(|e| Failure::of_io(format!("cannot write {}: {e}", path.display()), &e))
    }
}

/// The newest version in it, and what it holds.
fn parse(bytes: &[u8]) -> Result<(u64, Vec<Exchange>), serde_json::Error> {
    let first = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    if serde_json::from_slice::<Line>(first).is_err() {
        return serde_json::from_slice::<Document>(bytes).map(|document| (document.version, document.exchanges));
    }
    // Whoever wrote the last line may have been stopped in the middle of it.
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(bytes, |end| &bytes[..end]);
    let mut newest = 0;
    let mut exchanges = Vec::new();
    for line in whole.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let line: Line = serde_json::from_slice(line)?;
        newest = newest.max(line.version);
        exchanges.push(line.exchange);
    }
    Ok((newest, exchanges))
}

/// A file that grows by a line for each exchange. A line goes to the system at once, and to the disk when the system sees
/// fit: the receipt is what has to last, this is for repeating.
#[derive(Debug)]
pub(crate) struct Recording {
    state: Mutex<Growing>,
}

#[derive(Debug)]
struct Growing {
    file: File,
    bytes: u64,
    lost: u64,
    why: String,
}

impl Recording {
    /// Adds to a file of lines; makes it if there is none.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let cannot = |e: std::io::Error| Failure::of_io(format!("cannot write {}: {e}", path.display()), &e);
        let is_old = fs::metadata(path).is_ok_and(|known| known.len() > 0);
        let mut bytes = 0;
        if is_old {
            Recorded::read(path)?;
            let old = fs::read(path).map_err(cannot)?;
            bytes = old.len() as u64;
            let first = old.split(|byte| *byte == b'\n').next().unwrap_or_default();
            if serde_json::from_slice::<Line>(first).is_err() {
                let failure =
                    Failure::new(error::INPUT, format!("{} is one document, and cannot grow", path.display()));
                return Err(failure.hint("name a new file; a provider of type `recorded` reads both kinds"));
            }
            // Half a line is none.
            let whole = old.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end as u64 + 1);
            if whole < bytes {
                OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(whole)).map_err(cannot)?;
                bytes = whole;
            }
        }
        let file = OpenOptions::new().create(true).append(true).open(path).map_err(cannot)?;
        Ok(Self { state: Mutex::new(Growing { file, bytes, lost: 0, why: String::new() }) })
    }

    /// What cannot be kept is counted: whoever asked has his answer, and has paid for it.
    pub(crate) fn add(&self, exchange: &Exchange) {
        let mut line = serde_json::to_vec(&LineRef { version: VERSION, exchange }).unwrap_or_default();
        line.push(b'\n');
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let length = line.len() as u64;
        if state.bytes + length > FILE_BYTES_MAX {
            state.lost += 1;
            state.why = format!("it would be larger than {FILE_BYTES_MAX} bytes");
            return;
        }
        match state.file.write_all(&line) {
            Ok(()) => state.bytes += length,
            Err(e) => {
                state.lost += 1;
                state.why = e.to_string();
            }
        }
    }

    /// How many exchanges are missing from it, and why.
    pub(crate) fn lost(&self) -> Option<(u64, String)> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.lost > 0).then(|| (state.lost, state.why.clone()))
    }
}

#[cfg(test)]
mod tests {
    use actum_predict::protocol::Protocol;
    use actum_testkit::folder::Folder;

    use super::*;

    fn question(text: &str) -> Question {
        let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}]}}"#);
        Question::read(Protocol::Chat, None, false, body.as_bytes()).unwrap()
    }

    fn exchange(text: &str, answer: &str) -> Exchange {
        Exchange::new(&question(text), 200, "application/json", answer.as_bytes())
    }

    #[test]
    fn a_file_of_lines_grows_and_is_read_like_a_document() {
        let folder = Folder::new();
        let path = folder.join("r.jsonl");
        Recording::open(&path).unwrap().add(&exchange("a", "1"));
        let again = Recording::open(&path).unwrap();
        again.add(&exchange("b", "2\n3"));
        assert_eq!(again.lost(), None);
        let recorded = Recorded::read(&path).unwrap();
        assert_eq!(recorded.answer(&question("a")).unwrap().body, "1");
        assert_eq!(recorded.answer(&question("b")).unwrap().body, "2\n3");
        assert_eq!(recorded.answer(&question("c")), None);
        // Added to by `actum predict` it becomes a document, with all that was in it.
        Recorded::add(&path, &[exchange("c", "4")]).unwrap();
        assert_eq!(Recorded::read(&path).unwrap().exchanges.len(), 3);
        assert!(Recording::open(&path).is_err(), "a document cannot grow");
    }

    #[test]
    fn half_a_line_at_the_end_is_none() {
        let folder = Folder::new();
        let path = folder.join("r.jsonl");
        Recording::open(&path).unwrap().add(&exchange("a", "1"));
        let whole = fs::read(&path).unwrap();
        fs::write(&path, [&whole[..], &whole[..20]].concat()).unwrap();
        assert_eq!(Recorded::read(&path).unwrap().exchanges.len(), 1);
        Recording::open(&path).unwrap().add(&exchange("b", "2"));
        assert_eq!(Recorded::read(&path).unwrap().exchanges.len(), 2);
    }

    #[test]
    fn what_is_no_recording_is_refused() {
        let folder = Folder::new();
        let path = folder.join("r");
        let line = serde_json::to_string(&LineRef { version: 2, exchange: &exchange("a", "1") }).unwrap();
        for text in ["{}", "[]", "x\n", &format!("{line}\n"), &format!("{}\nx\n", line.replace(":2,", ":1,"))] {
            fs::write(&path, text).unwrap();
            assert!(Recorded::read(&path).is_err(), "{text}");
            assert!(Recording::open(&path).is_err(), "{text}");
        }
        assert!(Recording::open(&folder.join("no/such/r")).is_err());
    }

    #[test]
    fn a_full_file_takes_no_more_and_says_so() {
        let folder = Folder::new();
        let path = folder.join("r");
        let recording = Recording::open(&path).unwrap();
        recording.state.lock().unwrap().bytes = FILE_BYTES_MAX;
        recording.add(&exchange("a", "1"));
        assert_eq!(recording.lost().unwrap().0, 1);
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    }
}
