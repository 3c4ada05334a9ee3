//! Checks a query before the library sees it: its length, its words, the nesting of its brackets,
//! the depth of its fields and their number, fragments counted as often as they are spread.
//!
//! Fragments of two spreads each make a short text into a billion fields, brackets within brackets
//! overflow the stack of the parser, and a word of one byte takes some hundred bytes of its memory.
//! So words and brackets are counted in the text, and fields in the parsed document, each fragment
//! once.

use async_graphql::{
    Pos, Positioned,
    parser::{
        parse_query,
        types::{ExecutableDocument, FragmentDefinition, OperationType, Selection, SelectionSet},
    },
};
use std::collections::HashMap;

/// Longest text of a query in bytes. It holds the largest transaction as a literal.
const MAX_TEXT: usize = 1 << 20;
/// Most words and brackets of the text. A filter of logs has at most 5,000 values.
const MAX_WORDS: usize = 20_000;
/// Most brackets within each other in the text.
const MAX_NESTING: usize = 64;
/// Most selections within each other, fragments included.
const MAX_LEVELS: usize = 32;
/// Most fields within each other, as in geth. Clients' queries for the schema have 15.
const MAX_DEPTH: usize = 20;
/// Most fields of an operation besides those of the schema, as in Besu.
const MAX_FIELDS: usize = 200;
/// Most fields of a query for the schema. Those of clients have about 250.
const MAX_SCHEMA_FIELDS: usize = 500;
/// Most fragments and operations of a document.
const MAX_DEFINITIONS: usize = 200;
/// Fields of the schema that give lists of types. A query for the schema needs one on each path;
/// with more of them its answer grows with their power.
const TYPE_LISTS: [&str; 4] = ["fields", "inputFields", "interfaces", "possibleTypes"];

/// Why a query is not executed.
#[derive(Debug)]
pub(super) enum DocumentError {
    /// Its text is no query.
    Syntax {
        /// What is expected.
        message: String,
        /// Where it is expected.
        locations: Vec<Pos>,
    },
    /// It exceeds a limit.
    Limit(String),
}

/// A query within the limits.
#[derive(Clone, Debug)]
pub(super) struct CheckedDocument {
    pub(super) document: ExecutableDocument,
    /// Whether one of its operations changes something.
    pub(super) has_mutation: bool,
}

impl CheckedDocument {
    /// Parses a query.
    ///
    /// # Errors
    /// [`DocumentError`] if it is none, or exceeds a limit.
    pub(super) fn parse(text: &str) -> Result<Self, DocumentError> {
        check_count(text.len(), "bytes", MAX_TEXT)?;
        let TextSize { words, nesting } = TextSize::of(text);
        check_count(nesting, "brackets within each other", MAX_NESTING)?;
        check_count(words, "words and brackets", MAX_WORDS)?;
        let document = parse_query(text).map_err(|error| DocumentError::Syntax {
            message: error.to_string(),
            locations: error.positions().collect(),
        })?;
        check_shape(&document)?;
        let mut operations = document.operations.iter();
        let has_mutation = operations.any(|(_, one)| one.node.ty == OperationType::Mutation);
        Ok(Self { document, has_mutation })
    }
}

fn check_count(got: usize, of: &str, most: usize) -> Result<(), DocumentError> {
    if got <= most {
        return Ok(());
    }
    let message = format!("the query has {got} {of}, more than {most}: ask for less at once");
    Err(DocumentError::Limit(message))
}

/// The size of a text, without what is in strings and comments.
#[derive(Clone, Copy, Debug, Default)]
struct TextSize {
    /// Number of names, numbers, strings and opening brackets.
    words: usize,
    /// How deep the brackets are nested.
    nesting: usize,
}

impl TextSize {
    fn of(text: &str) -> Self {
        let bytes = text.as_bytes();
        let mut size = Self::default();
        let (mut at, mut depth, mut is_in_word) = (0usize, 0usize, false);
        while let Some(&byte) = bytes.get(at) {
            at += 1;
            let was_in_word = is_in_word;
            is_in_word = byte.is_ascii_alphanumeric() || byte == b'_';
            match byte {
                b'{' | b'[' | b'(' => {
                    depth += 1;
                    size.nesting = size.nesting.max(depth);
                    size.words += 1;
                }
                b'}' | b']' | b')' => depth = depth.saturating_sub(1),
                b'#' => at = after_line(bytes, at),
                b'"' => {
                    size.words += 1;
                    at = match bytes[at..].starts_with(b"\"\"") {
                        true => after_block_string(bytes, at + 2),
                        false => after_string(bytes, at),
                    };
                }
                _ if is_in_word && !was_in_word => size.words += 1,
                _ => {}
            }
        }
        size
    }
}

fn after_line(bytes: &[u8], from: usize) -> usize {
    let end = bytes[from..].iter().position(|byte| matches!(byte, b'\n' | b'\r'));
    end.map_or(bytes.len(), |end| from + end)
}

/// The place after a string that began before `from`. Only an invalid text has a line's end first.
fn after_string(bytes: &[u8], from: usize) -> usize {
    let mut at = from;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\n' | b'\r' => return at,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn after_block_string(bytes: &[u8], from: usize) -> usize {
    let mut at = from;
    while at < bytes.len() {
        let rest = &bytes[at..];
        if rest.starts_with(b"\\\"\"\"") {
            at += 4;
        } else if rest.starts_with(b"\"\"\"") {
            return at + 3;
        } else {
            at += 1;
        }
    }
    bytes.len()
}

/// The size of a selection, with all its fragments in place.
#[derive(Clone, Copy, Debug, Default)]
struct SelectionSize {
    /// Number of fields, without those of the schema.
    fields: usize,
    /// Number of fields below `__schema` and `__type`.
    schema_fields: usize,
    /// Number of fields within each other.
    depth: usize,
    /// Number of [`TYPE_LISTS`] within each other.
    type_lists: usize,
}

fn check_shape(document: &ExecutableDocument) -> Result<(), DocumentError> {
    let definitions = document.fragments.len() + document.operations.iter().count();
    check_count(definitions, "fragments and operations", MAX_DEFINITIONS)?;
    let mut meter = DocumentMeter { document, fragments: HashMap::new() };
    for (_, operation) in document.operations.iter() {
        let size = meter.of(&operation.node.selection_set.node, 0)?;
        check_count(size.fields, "fields", MAX_FIELDS)?;
        check_count(size.schema_fields, "fields of the schema", MAX_SCHEMA_FIELDS)?;
        check_form(size)?;
    }
    // The library also validates fragments that no operation spreads. Whether their fields are those
    // of the schema is not known.
    for (name, fragment) in &document.fragments {
        let size = meter.of_fragment(name.as_str(), fragment, 0)?;
        check_count(size.all_fields(), "fields", MAX_FIELDS + MAX_SCHEMA_FIELDS)?;
        check_form(size)?;
    }
    Ok(())
}

fn check_form(size: SelectionSize) -> Result<(), DocumentError> {
    check_count(size.depth, "fields within each other", MAX_DEPTH)?;
    check_count(size.type_lists, "lists of types within each other", 1)
}

/// Measures the selections of a document.
struct DocumentMeter<'d> {
    document: &'d ExecutableDocument,
    /// Sizes of fragments; `None` while one is measured.
    fragments: HashMap<&'d str, Option<SelectionSize>>,
}

impl<'d> DocumentMeter<'d> {
    fn of(&mut self, set: &'d SelectionSet, level: usize) -> Result<SelectionSize, DocumentError> {
        check_count(level, "selections within each other", MAX_LEVELS)?;
        let mut all = SelectionSize::default();
        for selection in &set.items {
            let one = match &selection.node {
                Selection::Field(field) => {
                    let inner = self.of(&field.node.selection_set.node, level + 1)?;
                    inner.within(field.node.name.node.as_str())
                }
                Selection::InlineFragment(fragment) => {
                    self.of(&fragment.node.selection_set.node, level + 1)?
                }
                Selection::FragmentSpread(spread) => {
                    let name = spread.node.fragment_name.node.as_str();
                    match self.document.fragments.get_key_value(name) {
                        Some((name, fragment)) => {
                            self.of_fragment(name.as_str(), fragment, level + 1)?
                        }
                        // The library says which fragment is missing. It counts, so that no tree of
                        // spreads is empty.
                        None => SelectionSize { fields: 1, ..SelectionSize::default() },
                    }
                }
            };
            all = all.beside(one);
        }
        Ok(all)
    }

    fn of_fragment(
        &mut self,
        name: &'d str,
        fragment: &'d Positioned<FragmentDefinition>,
        level: usize,
    ) -> Result<SelectionSize, DocumentError> {
        match self.fragments.get(name) {
            Some(Some(size)) => return Ok(*size),
            Some(None) => {
                let message = format!("the fragment {name} spreads itself");
                return Err(DocumentError::Limit(message));
            }
            None => {}
        }
        self.fragments.insert(name, None);
        let size = self.of(&fragment.node.selection_set.node, level)?;
        self.fragments.insert(name, Some(size));
        Ok(size)
    }
}

impl SelectionSize {
    const fn all_fields(self) -> usize {
        self.fields.saturating_add(self.schema_fields)
    }

    /// The size of a field of this name whose selection has this size.
    fn within(self, name: &str) -> Self {
        let Self { fields, schema_fields, depth, type_lists } = self;
        let depth = depth + 1;
        if matches!(name, "__schema" | "__type") {
            return Self { fields: 1, schema_fields: self.all_fields(), depth, type_lists };
        }
        let type_lists = type_lists + usize::from(TYPE_LISTS.contains(&name));
        Self { fields: fields.saturating_add(1), schema_fields, depth, type_lists }
    }

    /// The size of two selections beside each other.
    fn beside(self, other: Self) -> Self {
        Self {
            fields: self.fields.saturating_add(other.fields),
            schema_fields: self.schema_fields.saturating_add(other.schema_fields),
            depth: self.depth.max(other.depth),
            type_lists: self.type_lists.max(other.type_lists),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        match CheckedDocument::parse(text) {
            Err(DocumentError::Limit(message)) => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_query_within_the_limits_is_parsed() {
        let fields = "number ".repeat(MAX_FIELDS - 1);
        let document = CheckedDocument::parse(&format!("{{ block {{ {fields} }} }}")).unwrap();
        assert!(!document.has_mutation);
        let text = "mutation { sendRawTransaction(data: \"0x\") }";
        assert!(CheckedDocument::parse(text).unwrap().has_mutation);
        let deep = format!("{}number{}", "{ parent ".repeat(19) + "{ ", " }".repeat(20));
        CheckedDocument::parse(&deep).unwrap();
    }

    #[test]
    fn fields_are_counted_with_their_fragments() {
        let many = "number ".repeat(MAX_FIELDS);
        assert!(
            refusal(&format!("{{ block {{ {many} }} }}")).contains("201 fields, more than 200")
        );
        // Sixteen doublings.
        let mut bomb = String::from("{ ...F0 } fragment F16 on Query { gasPrice }");
        for n in 0..16 {
            let next = n + 1;
            bomb += &format!(" fragment F{n} on Query {{ ...F{next} ...F{next} }}");
        }
        assert!(refusal(&bomb).contains("65536 fields"));
        let missing = bomb.replace("on Query { gasPrice }", "on Query { ...None ...None }");
        assert!(refusal(&missing).contains("131072 fields"));
        let deep = format!("{}number{}", "{ parent ".repeat(20) + "{ ", " }".repeat(21));
        assert!(refusal(&deep).contains("21 fields within each other"));
    }

    #[test]
    fn a_fragment_may_not_spread_itself() {
        for circle in [
            "{ ...F } fragment F on Query { ...F }",
            "{ gasPrice } fragment F on Query { ...G ...G } fragment G on Query { ...F }",
        ] {
            assert!(refusal(circle).contains("spreads itself"), "{circle}");
        }
    }

    #[test]
    fn a_query_for_the_schema_has_limits_of_its_own() {
        let many = "kind ".repeat(MAX_FIELDS + 100);
        CheckedDocument::parse(&format!("{{ __schema {{ types {{ {many} }} }} }}")).unwrap();
        let more = "kind ".repeat(MAX_FIELDS + MAX_SCHEMA_FIELDS);
        let refused = refusal(&format!("{{ __schema {{ types {{ {more} }} }} }}"));
        assert!(refused.contains("fields of the schema"), "{refused}");
        let text = "{ __schema { types { fields { type { fields { name } } } } } }";
        assert!(refusal(text).contains("2 lists of types"));
    }

    #[test]
    fn brackets_are_counted_in_the_text() {
        let lists = "[".repeat(100_000);
        let text = format!("{{ block(number: {lists}1) {{ number }} }}");
        assert!(refusal(&text).contains("brackets within each other"));
        for (text, nesting) in [
            ("{ a { b } c(d: [1]) }", 3),
            ("# {{{{\n{ a }", 1),
            ("{ a(b: \"{{{\\\"{{\") }", 2),
            ("{ a(b: \"\"\"{{ \\\"\"\" {{\"\"\") { c } }", 2),
            ("{ a(b: \"unfinished\n{{", 4),
            ("}}}{", 1),
        ] {
            assert_eq!(TextSize::of(text).nesting, nesting, "{text}");
        }
        for (text, words) in [
            ("{ a }", 2),
            ("query a_1($b: [Int!]!) { c(d: \"e f\", g: 12) # h\n }", 13),
            ("{ a(b: \"\"\"c d\"\"\", e: [1,1]) }", 9),
        ] {
            assert_eq!(TextSize::of(text).words, words, "{text}");
        }
        let list = format!("{{ block(number: [{}]) {{ number }} }}", "1,".repeat(MAX_WORDS));
        assert!(refusal(&list).contains("words and brackets"));
        let long = format!("{{ a }} #{}", "x".repeat(MAX_TEXT));
        assert!(refusal(&long).contains("bytes"));
    }

    #[test]
    fn what_is_no_query_has_a_place() {
        match CheckedDocument::parse("{ block { number }") {
            Err(DocumentError::Syntax { locations, .. }) => assert_eq!(locations.len(), 1),
            other => panic!("{other:?}"),
        }
    }
}
