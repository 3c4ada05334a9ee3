//! Splits a stream of bytes into JSON values.

/// Finds the ends of JSON values in a stream; it looks at each byte once.
#[derive(Debug, Default)]
pub(super) struct JsonSplitter {
    /// Bytes that were read and not yet taken.
    pub(super) buffer: Vec<u8>,
    /// Number of bytes in the buffer that were looked at.
    seen: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

/// Whether a JSON word or number may contain this byte.
const fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.')
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum JsonFrame {
    Incomplete,
    Whole(Vec<u8>),
    TooLong,
    NotJson,
}

impl JsonSplitter {
    /// The next value, if it is complete and has at most `most` bytes.
    pub(super) fn next(&mut self, most: usize) -> JsonFrame {
        if self.depth == 0 && !self.in_string {
            let blank = self.buffer.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            self.buffer.drain(..blank);
            self.seen = 0;
            match self.buffer.first() {
                None => return JsonFrame::Incomplete,
                Some(b'{' | b'[' | b'"') => {}
                // Valid JSON that is no request does not end the stream: true, false, null and
                // numbers.
                Some(b't' | b'f' | b'n' | b'-' | b'0'..=b'9') => return self.word(most),
                Some(_) => return JsonFrame::NotJson,
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
        if self.seen > most { JsonFrame::TooLong } else { JsonFrame::Incomplete }
    }

    /// The rest at the end of the stream: an incomplete value, or a number.
    pub(super) fn rest(&mut self) -> Option<Vec<u8>> {
        let rest = std::mem::take(&mut self.buffer);
        (!rest.trim_ascii().is_empty()).then_some(rest)
    }

    /// The word at the start of the buffer, if it is complete.
    fn word(&mut self, most: usize) -> JsonFrame {
        match self.buffer.iter().position(|byte| !is_of_word(*byte)) {
            Some(end) => self.taken(end),
            // These words are complete at their last letter; a number may go on.
            None if matches!(&*self.buffer, b"null" | b"true" | b"false") => {
                self.taken(self.buffer.len())
            }
            None if self.buffer.len() > most => JsonFrame::TooLong,
            None => JsonFrame::Incomplete,
        }
    }

    /// Takes the first `end` bytes.
    fn taken(&mut self, end: usize) -> JsonFrame {
        let rest = self.buffer.split_off(end);
        self.seen = 0;
        JsonFrame::Whole(std::mem::replace(&mut self.buffer, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All frames of a stream that arrives in pieces of this size.
    fn frames(stream: &[u8], piece: usize, most: usize) -> Vec<JsonFrame> {
        let mut frames = JsonSplitter::default();
        let mut found = Vec::new();
        for piece in stream.chunks(piece) {
            frames.buffer.extend_from_slice(piece);
            loop {
                match frames.next(most) {
                    JsonFrame::Incomplete => break,
                    frame @ JsonFrame::Whole(_) => found.push(frame),
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
        let whole = |text: &str| JsonFrame::Whole(text.as_bytes().to_vec());
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
            let whole: Vec<JsonFrame> = frames(stream, piece, 1000);
            let texts: Vec<&[u8]> = whole
                .iter()
                .map_while(
                    |frame| if let JsonFrame::Whole(text) = frame { Some(&**text) } else { None },
                )
                .collect();
            // No value starts with a comma.
            assert_eq!(texts, [&b"null"[..], b"1.5e3"], "pieces of {piece}");
            assert_eq!(whole.last(), Some(&JsonFrame::NotJson));
        }
        let stream = br#"-1 "x\"y"true{"a":1}[]12"#;
        let expected = [&b"-1"[..], br#""x\"y""#, b"true", br#"{"a":1}"#, b"[]"];
        for piece in [1, 2, 7, 1000] {
            let expected: Vec<JsonFrame> =
                expected.iter().map(|text| JsonFrame::Whole(text.to_vec())).collect();
            assert_eq!(frames(stream, piece, 1000), expected, "pieces of {piece}");
        }
        let mut left = JsonSplitter { buffer: b" 12".to_vec(), ..JsonSplitter::default() };
        assert_eq!(left.next(100), JsonFrame::Incomplete);
        assert_eq!(left.rest().as_deref(), Some(&b"12"[..]));
        assert_eq!(left.rest(), None);
    }

    #[test]
    fn garbage_and_endless_values_end_the_stream() {
        assert_eq!(frames(b" hello", 3, 100), [JsonFrame::NotJson]);
        assert_eq!(frames(&[b'1'; 200], 7, 100), [JsonFrame::TooLong]);
        assert_eq!(frames(&[b'"'; 1], 1, 100), []);
        assert_eq!(frames(b"]", 3, 100), [JsonFrame::NotJson]);
        assert_eq!(frames(&[b'['; 200], 7, 100), [JsonFrame::TooLong]);
    }
}
