//! Text on a terminal. What agents, tools and files say may hold sequences that a terminal obeys, and characters that a reader
//! does not see or that change the order of others. They are shown as marks: `<U+202E>` for a character, `<9B>` for a byte that is
//! not UTF-8.

/// A character of UTF-8 has at most as many bytes.
const CHAR_BYTES_MAX: usize = 4;

/// Marks a stream that arrives in pieces. A piece may end within a character.
#[derive(Debug, Default)]
pub(crate) struct Marker {
    /// The end of the last piece, if it cannot be judged without the next one.
    rest: Vec<u8>,
    /// The last character that was passed on.
    before: Option<char>,
    /// Whether the stream is JSON: marks are escapes, so that the document stays the same.
    is_json: bool,
}

impl Marker {
    pub(crate) fn of_json() -> Self {
        Self { is_json: true, ..Self::default() }
    }

    /// Returns what can be shown of the stream so far, marked.
    pub(crate) fn mark(&mut self, piece: &[u8]) -> String {
        let mut bytes = std::mem::take(&mut self.rest);
        bytes.extend_from_slice(piece);
        let kept = unfinished(&bytes);
        self.rest = bytes.split_off(bytes.len() - kept);
        self.marked(&bytes)
    }

    /// Returns what was held back: the stream has ended.
    pub(crate) fn end(&mut self) -> String {
        let rest = std::mem::take(&mut self.rest);
        self.marked(&rest)
    }

    fn marked(&mut self, bytes: &[u8]) -> String {
        let mut text = String::with_capacity(bytes.len());
        for chunk in bytes.utf8_chunks() {
            let mut characters = chunk.valid().chars().peekable();
            while let Some(c) = characters.next() {
                let ends_line = c == '\r' && characters.peek() == Some(&'\n');
                if matches!(c, '\n' | '\t') || ends_line || !is_deceiving(c, self.before) {
                    text.push(c);
                    self.before = Some(c);
                } else {
                    self.push_mark(c, &mut text);
                }
            }
            for byte in chunk.invalid() {
                text += &format!("<{byte:02X}>");
                self.before = None;
            }
        }
        text
    }

    fn push_mark(&mut self, c: char, text: &mut String) {
        self.before = None;
        match self.is_json {
            true => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| *text += &format!("\\u{unit:04x}")),
            false => *text += &format!("<U+{:04X}>", u32::from(c)),
        }
    }
}

/// Marks a whole text.
pub(crate) fn mark(text: &str) -> String {
    let mut marker = Marker::default();
    marker.mark(text.as_bytes()) + &marker.end()
}

/// How many bytes at the end need the next piece: a character that is not complete, or a carriage return.
fn unfinished(bytes: &[u8]) -> usize {
    if bytes.ends_with(b"\r") {
        return 1;
    }
    let from = bytes.len().saturating_sub(CHAR_BYTES_MAX - 1);
    (from..bytes.len())
        .find(|at| matches!(std::str::from_utf8(&bytes[*at..]), Err(e) if e.valid_up_to() == 0 && e.error_len().is_none()))
        .map_or(0, |at| bytes.len() - at)
}

/// Whether a terminal obeys a character, or a reader does not see it for what it is. `before`: the character before it.
pub(crate) fn is_deceiving(c: char, before: Option<char>) -> bool {
    match c {
        // Parts of emoji and of scripts that need them; behind other letters they only hide.
        '\u{200c}' | '\u{200d}' | '\u{fe00}'..='\u{fe0f}' => before.is_none_or(|before| before <= '\u{2ff}'),
        '\u{ad}'
        | '\u{34f}'
        | '\u{61c}'
        | '\u{115f}'
        | '\u{1160}'
        | '\u{17b4}'
        | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' => true,
        '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' => true,
        '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}' => true,
        c => c.is_control(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(bytes: &[u8], length: usize) -> String {
        let mut marker = Marker::default();
        let text: String = bytes.chunks(length).map(|piece| marker.mark(piece)).collect();
        text + &marker.end()
    }

    #[test]
    fn marks_sequences_and_hidden_characters() {
        for (text, marked) in [
            ("\x1b]52;c;eA==\x07", "<U+001B>]52;c;eA==<U+0007>"),
            ("\x1b[2J", "<U+001B>[2J"),
            ("a\u{9b}31m", "a<U+009B>31m"),
            ("a\u{202e}b\u{2066}", "a<U+202E>b<U+2066>"),
            ("adm\u{200d}in\u{200b}", "adm<U+200D>in<U+200B>"),
            ("good\rbad", "good<U+000D>bad"),
            ("end\r", "end<U+000D>"),
            ("x\u{e0041}", "x<U+E0041>"),
        ] {
            assert_eq!(mark(text), marked);
        }
        assert_eq!(pieces(b"a\x9bb\xc3", 9), "a<9B>b<C3>");
        let mut json = Marker::of_json();
        assert_eq!(json.mark("\"a\u{202e}\u{e0041}\"".as_bytes()), "\"a\\u202e\\udb40\\udc41\"");
    }

    #[test]
    fn keeps_lines_and_scripts() {
        for text in ["a\tb\r\nc\n", "שלום", "مرحبا", "é e\u{301}", "👩\u{200d}💻 ❤\u{fe0f}", "می\u{200c}خواهم"]
        {
            assert_eq!(mark(text), text);
        }
    }

    #[test]
    fn pieces_are_marked_like_the_whole() {
        let text = "a\u{202e}é\r\n\r👩\u{200d}💻\u{200d}x\x1b[0m€\u{e0041}".as_bytes();
        let broken = [text, b"\xf0\x9f\x92", b"\xe2\x82z\xff"].concat();
        for bytes in [text, &broken] {
            for length in 1..bytes.len() {
                assert_eq!(pieces(bytes, length), pieces(bytes, bytes.len()), "{length}");
            }
        }
    }
}
