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
        if self.depth == 0 {
            let blank = self.buffer.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            self.buffer.drain(..blank);
            self.seen = 0;
            match self.buffer.first() {
                None => return Frame::Incomplete,
                Some(b'{' | b'[') => {}
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
            if self.depth == 0 {
                let rest = self.buffer.split_off(at + 1);
                self.seen = 0;
                return Frame::Whole(std::mem::replace(&mut self.buffer, rest));
            }
        }
        self.seen = self.buffer.len();
        if self.seen > most { Frame::TooLong } else { Frame::Incomplete }
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
    fn garbage_and_endless_values_end_the_stream() {
        assert_eq!(frames(b" hello", 3, 100), [Frame::NotJson]);
        assert_eq!(frames(b"]", 3, 100), [Frame::NotJson]);
        assert_eq!(frames(&[b'['; 200], 7, 100), [Frame::TooLong]);
    }
}
