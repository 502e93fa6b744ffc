//! Events out of a stream, however it was cut. By hand, since the bytes have to be passed on as they came: a reader that
//! owns the stream would not give them back. Knows nothing of what the events say.

/// Bytes that one event may have; what is longer is left out, and told.
pub(super) const EVENT_BYTES_MAX: usize = 8 << 20;

/// Where a stream of events stands.
#[derive(Debug, Default)]
pub(super) struct Frames {
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    /// A carriage return ends a line; whether alone or with what follows is not known yet.
    is_after_return: bool,
    is_begun: bool,
    is_line_begun: bool,
    is_too_long: bool,
}

/// What one byte brought about.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing yet.
    Within,
    /// An empty line, and the data before it; none: a comment, or nothing.
    Event(Option<Vec<u8>>),
    /// An event beyond its bound.
    TooLong,
}

impl Frames {
    /// Takes all that comes before the next end of a line, at once; how many bytes that were.
    pub(super) fn take_run(&mut self, bytes: &[u8]) -> usize {
        if self.is_after_return {
            return 0;
        }
        let count = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')).unwrap_or(bytes.len());
        self.push(&bytes[..count]);
        count
    }

    fn push(&mut self, bytes: &[u8]) {
        self.is_line_begun |= !bytes.is_empty();
        self.is_too_long |= self.line.len() + self.data.len() + bytes.len() > EVENT_BYTES_MAX;
        match self.is_too_long {
            true => (self.line, self.data) = (Vec::new(), Vec::new()),
            false => self.line.extend_from_slice(bytes),
        }
    }

    /// Takes one byte. What it ends, it belongs to; unless it comes after a lone carriage return: then it is `before` it.
    pub(super) fn take(&mut self, byte: u8) -> Taken {
        match (std::mem::take(&mut self.is_after_return), byte) {
            (true, b'\n') => Taken { before: Step::Within, after: self.end_line() },
            (true, _) => {
                let before = self.end_line();
                Taken { before, after: self.take_plain(byte) }
            }
            (false, _) => Taken { before: Step::Within, after: self.take_plain(byte) },
        }
    }

    fn take_plain(&mut self, byte: u8) -> Step {
        match byte {
            b'\n' => return self.end_line(),
            b'\r' => self.is_after_return = true,
            _ => self.push(&[byte]),
        }
        Step::Within
    }

    fn end_line(&mut self) -> Step {
        let mut line = &self.line[..];
        if !std::mem::replace(&mut self.is_begun, true) {
            line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        }
        let is_end = !std::mem::take(&mut self.is_line_begun);
        let value = match line.strip_prefix(b"data") {
            Some([]) => Some(&[][..]),
            Some([b':', b' ', value @ ..] | [b':', value @ ..]) => Some(value),
            _ => None,
        };
        if let Some(value) = value {
            if std::mem::replace(&mut self.has_data, true) {
                self.data.push(b'\n');
            }
            self.data.extend_from_slice(value);
        }
        self.line.clear();
        if !is_end {
            return Step::Within;
        }
        let data = std::mem::take(&mut self.data);
        let has_data = std::mem::take(&mut self.has_data);
        match std::mem::take(&mut self.is_too_long) {
            true => Step::TooLong,
            false => Step::Event(has_data.then_some(data)),
        }
    }

    /// The stream has ended: what was not closed by an empty line. Many end like that after their last word.
    pub(super) fn finish(&mut self) -> Step {
        if self.is_too_long {
            return Step::TooLong;
        }
        let is_closed = std::mem::take(&mut self.is_after_return) || !self.line.is_empty();
        match is_closed.then(|| self.end_line()) {
            Some(step @ Step::Event(_)) => step,
            _ => Step::Event(std::mem::take(&mut self.has_data).then(|| std::mem::take(&mut self.data))),
        }
    }
}

/// What a byte brought about: before itself, and with itself.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) before: Step,
    pub(super) after: Step,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(text: &[u8]) -> Vec<String> {
        let mut frames = Frames::default();
        let mut found = Vec::new();
        let mut keep = |step| match step {
            Step::Event(Some(data)) => found.push(String::from_utf8_lossy(&data).into_owned()),
            Step::TooLong => found.push("too long".into()),
            Step::Within | Step::Event(None) => {}
        };
        let mut rest = text;
        loop {
            rest = &rest[frames.take_run(rest)..];
            let Some((byte, after)) = rest.split_first() else { break };
            let taken = frames.take(*byte);
            keep(taken.before);
            keep(taken.after);
            rest = after;
        }
        keep(frames.finish());
        found
    }

    #[test]
    fn lines_end_as_they_like() {
        for end in ["\n", "\r\n", "\r"] {
            let text = ["\u{feff}: hello", "event: x", "data: a", "data:b", "id: 1", "", "", "data", "", "data: c"];
            assert_eq!(events(text.join(end).as_bytes()), ["a\nb", "", "c"], "{end:?}");
        }
        assert_eq!(events(b""), [""; 0]);
        assert_eq!(events(b"datax: 1\n\nretry: 5\n\n"), [""; 0]);
        assert_eq!(events(b"data: \0\xff\n\n"), ["\0\u{fffd}"]);
    }

    #[test]
    fn what_is_too_long_is_left_out_and_the_rest_is_read() {
        let mut text = b"data: ".to_vec();
        text.resize(EVENT_BYTES_MAX + 100, b'x');
        text.extend_from_slice(b"\ndata: y\n\ndata: z\n\n");
        assert_eq!(events(&text), ["too long", "z"]);
    }
}
