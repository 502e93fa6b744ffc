//! What happens, as it is told to whoever listens: where it comes from, a stretch of it, and its form on the wire.
//!
//! Made by the face, read by `hub` and `stream`. Events are text that was rendered once, whoever hears of them.

use axum::body::Bytes;

/// Where events come from: the ledger of a tenant, or the journal of one of its runs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Source {
    pub tenant: String,
    pub run: Option<String>,
}

/// What somebody wants to hear.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    pub source: Source,
    /// The last event he knows.
    pub after: Option<u64>,
    /// Only these; all if there are none.
    pub types: Vec<String>,
}

/// How far a source has come.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reached {
    /// Its last event.
    pub last: Option<u64>,
    /// Nothing more comes: what is said of that, as JSON in one line.
    pub end: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its place in the source; later ones have larger ones.
    pub id: u64,
    pub kind: String,
    /// JSON in one line.
    pub data: String,
}

/// Some events one after the other, rendered.
#[derive(Debug)]
pub(crate) struct Page {
    /// They are those behind this one.
    after: Option<u64>,
    text: Bytes,
    marks: Vec<Mark>,
}

#[derive(Debug)]
struct Mark {
    id: u64,
    kind: String,
    /// Where it ends in the text.
    end: usize,
}

impl Page {
    pub(crate) fn new(after: Option<u64>, events: Vec<Event>) -> Self {
        let mut text = String::new();
        let marks = events.into_iter().map(|Event { id, kind, data }| {
            text.push_str(&format!("id: {id}\n{}", block(&kind, &data)));
            Mark { id, kind, end: text.len() }
        });
        let marks = marks.collect();
        Self { after, text: text.into(), marks }
    }

    pub(crate) fn last(&self) -> Option<u64> {
        self.marks.last().map(|mark| mark.id)
    }

    /// Whether it goes on where somebody stands.
    pub(crate) fn follows(&self, cursor: Option<u64>) -> bool {
        self.after <= cursor && cursor < self.last()
    }

    /// What stands behind the cursor, of these types. Where all of it is wanted nothing is copied.
    pub(crate) fn rest(&self, cursor: Option<u64>, types: &[String]) -> Bytes {
        let at = self.marks.partition_point(|mark| Some(mark.id) <= cursor);
        let begin = |at: usize| at.checked_sub(1).map_or(0, |before| self.marks[before].end);
        if types.is_empty() {
            return self.text.slice(begin(at)..);
        }
        let wanted = (at..self.marks.len()).filter(|at| types.contains(&self.marks[*at].kind));
        let parts: Vec<&[u8]> = wanted.map(|at| &self.text[begin(at)..self.marks[at].end]).collect();
        parts.concat().into()
    }
}

/// One event without its place. A line break would end it: none is left in its name, and JSON has none.
pub(crate) fn block(kind: &str, data: &str) -> String {
    let plain = |text: &str| text.replace(['\r', '\n'], " ");
    format!("event: {}\ndata: {}\n\n", plain(kind), plain(data))
}

/// A line that nobody takes for an event.
pub(crate) fn comment(text: &str) -> Bytes {
    format!(": {text}\n\n").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> Page {
        let event = |id, kind: &str| Event { id, kind: kind.into(), data: format!("{{\"n\":{id}}}") };
        Page::new(Some(4), vec![event(5, "a"), event(7, "b"), event(8, "a")])
    }

    fn ids(bytes: &Bytes) -> Vec<String> {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        text.lines().filter_map(|line| line.strip_prefix("id: ")).map(ToOwned::to_owned).collect()
    }

    #[test]
    fn the_rest_begins_behind_the_cursor() {
        let page = page();
        for (cursor, expected) in [
            (Some(4), &["5", "7", "8"][..]),
            (Some(5), &["7", "8"]),
            (Some(6), &["7", "8"]),
            (Some(7), &["8"]),
            (Some(8), &[]),
        ] {
            assert_eq!(ids(&page.rest(cursor, &[])), expected, "{cursor:?}");
            assert_eq!(page.follows(cursor), !expected.is_empty(), "{cursor:?}");
        }
        assert!(!page.follows(None) && !page.follows(Some(3)) && !page.follows(Some(9)));
        assert!(!Page::new(None, Vec::new()).follows(None));
        assert_eq!(ids(&page.rest(Some(4), &["b".into()])), ["7"]);
        assert_eq!(ids(&page.rest(Some(5), &["a".into()])), ["8"]);
        assert!(page.rest(Some(4), &["c".into()]).is_empty());
    }

    #[test]
    fn an_event_is_three_lines_whatever_its_name_is() {
        assert_eq!(block("a\nid: 9\r", "{}"), "event: a id: 9 \ndata: {}\n\n");
        let text = page().rest(Some(7), &[]);
        assert_eq!(text, "id: 8\nevent: a\ndata: {\"n\":8}\n\n");
    }
}
