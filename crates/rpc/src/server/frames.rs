//! JSON values in a stream of bytes, one after the other.

/// Finds where JSON values end in a stream, looking at each byte once.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// What was read and not yet taken.
    pub(super) buffer: Vec<u8>,
    /// Bytes of the buffer that were looked at.
    seen: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

/// Whether a value that is no string, list or object may have this byte.
const fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.')
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Incomplete,
    Whole(Vec<u8>),
    TooLong,
    NotJson,
}

impl Frames {
    /// The next value, if it is there and has at most so many bytes.
    pub(super) fn next(&mut self, most: usize) -> Frame {
        if self.depth == 0 && !self.in_string {
            let blank = self.buffer.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            self.buffer.drain(..blank);
            self.seen = 0;
            match self.buffer.first() {
                None => return Frame::Incomplete,
                Some(b'{' | b'[' | b'"') => {}
                // What is no request, but JSON, ends nothing: true, false, null and numbers.
                Some(b't' | b'f' | b'n' | b'-' | b'0'..=b'9') => return self.word(most),
                Some(_) => return Frame::NotJson,
            }
        }
        for at in self.seen..self.buffer.len() {
            let byte = self.buffer[at];
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth -= 1,
                _ => {}
            }
            if self.depth == 0 && !self.in_string {
                return self.taken(at + 1);
            }
        }
        self.seen = self.buffer.len();
        if self.seen > most { Frame::TooLong } else { Frame::Incomplete }
    }

    /// What is left when nothing more comes: the beginning of a value, or a whole number.
    pub(super) fn rest(&mut self) -> Option<Vec<u8>> {
        let rest = std::mem::take(&mut self.buffer);
        (!rest.trim_ascii().is_empty()).then_some(rest)
    }

    /// The word that the buffer begins with, if its end is there.
    fn word(&mut self, most: usize) -> Frame {
        match self.buffer.iter().position(|byte| !is_of_word(*byte)) {
            Some(end) => self.taken(end),
            // No other word begins with one of these; numbers may go on.
            None if matches!(&*self.buffer, b"null" | b"true" | b"false") => {
                self.taken(self.buffer.len())
            }
            None if self.buffer.len() > most => Frame::TooLong,
            None => Frame::Incomplete,
        }
    }

    /// The first `end` bytes.
    fn taken(&mut self, end: usize) -> Frame {
        let rest = self.buffer.split_off(end);
        self.seen = 0;
        Frame::Whole(std::mem::replace(&mut self.buffer, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All frames of a stream that comes in pieces of this size.
    fn frames(stream: &[u8], piece: usize, most: usize) -> Vec<Frame> {
        let mut frames = Frames::default();
        let mut found = Vec::new();
        for piece in stream.chunks(piece) {
            frames.buffer.extend_from_slice(piece);
            loop {
                match frames.next(most) {
                    Frame::Incomplete => break,
                    frame @ Frame::Whole(_) => found.push(frame),
                    end => {
                        found.push(end);
                        return found;
                    }
                }
            }
        }
        found
    }

    #[test]
    fn values_are_found_however_they_come() {
        let stream = br#"{"a":"}]\"{"} [1,{"b":[]}]
            {"c":"\\"}"#;
        let whole = |text: &str| Frame::Whole(text.as_bytes().to_vec());
        let expected =
            [whole(r#"{"a":"}]\"{"}"#), whole(r#"[1,{"b":[]}]"#), whole(r#"{"c":"\\"}"#)];
        for piece in [1, 2, 7, 1000] {
            assert_eq!(frames(stream, piece, 1000), expected, "pieces of {piece}");
        }
    }

    #[test]
    fn values_that_are_no_requests_are_values_all_the_same() {
        let stream = br#" null 1.5e3,-1 "x\"y"true{"a":1}[]12"#;
        for piece in [1, 2, 7, 1000] {
            let whole: Vec<Frame> = frames(stream, piece, 1000);
            let texts: Vec<&[u8]> = whole
                .iter()
                .map_while(
                    |frame| if let Frame::Whole(text) = frame { Some(&**text) } else { None },
                )
                .collect();
            // A comma is no beginning of anything.
            assert_eq!(texts, [&b"null"[..], b"1.5e3"], "pieces of {piece}");
            assert_eq!(whole.last(), Some(&Frame::NotJson));
        }
        let stream = br#"-1 "x\"y"true{"a":1}[]12"#;
        let expected = [&b"-1"[..], br#""x\"y""#, b"true", br#"{"a":1}"#, b"[]"];
        for piece in [1, 2, 7, 1000] {
            let expected: Vec<Frame> =
                expected.iter().map(|text| Frame::Whole(text.to_vec())).collect();
            assert_eq!(frames(stream, piece, 1000), expected, "pieces of {piece}");
        }
        let mut left = Frames { buffer: b" 12".to_vec(), ..Frames::default() };
        assert_eq!(left.next(100), Frame::Incomplete);
        assert_eq!(left.rest().as_deref(), Some(&b"12"[..]));
        assert_eq!(left.rest(), None);
    }

    #[test]
    fn garbage_and_endless_values_end_the_stream() {
        assert_eq!(frames(b" hello", 3, 100), [Frame::NotJson]);
        assert_eq!(frames(&[b'1'; 200], 7, 100), [Frame::TooLong]);
        assert_eq!(frames(&[b'"'; 1], 1, 100), []);
        assert_eq!(frames(b"]", 3, 100), [Frame::NotJson]);
        assert_eq!(frames(&[b'['; 200], 7, 100), [Frame::TooLong]);
    }
}
