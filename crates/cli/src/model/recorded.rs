//! Recordings of exchanges with models, as files: what `actum predict --record` writes, and a provider of type `recorded`
//! answers from. No network, no key, no money.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use actum_api::error;
use actum_predict::protocol::Question;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

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
struct File {
    version: u64,
    exchanges: Vec<Exchange>,
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
        let length = std::fs::metadata(path).map_err(|e| bad(format!("cannot be read: {e}")))?.len();
        if length > FILE_BYTES_MAX {
            return Err(bad(format!("is larger than {FILE_BYTES_MAX} bytes")));
        }
        let bytes = std::fs::read(path).map_err(|e| bad(format!("cannot be read: {e}")))?;
        let file: File = serde_json::from_slice(&bytes).map_err(|e| bad(format!("is none: {e}")))?;
        if file.version > VERSION {
            return Err(bad(format!("has version {}; use a newer actum", file.version)));
        }
        let used = Mutex::new(vec![false; file.exchanges.len()]);
        Ok(Self { exchanges: file.exchanges, used })
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
        let file = File { version: VERSION, exchanges };
        let text = serde_json::to_string_pretty(&file).unwrap_or_default();
        let aside = path.with_extension(format!("{}.new", std::process::id()));
        let written = std::fs::write(&aside, text + "\n").and_then(|()| std::fs::rename(&aside, path));
        written.map_err(|e| Failure::new(error::FILE, format!("cannot write {}: {e}", path.display())))
    }
}
