//! Parsers of numbers with units.

/// Parses `10`, `50k`, `1m`.
///
/// # Errors
/// If it is no such count, or above 2^64; the text is for the command line.
pub fn parse_count(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.to_ascii_lowercase().strip_suffix(['k', 'm']) {
        Some(digits) if text.ends_with(['k', 'K']) => (digits.to_owned(), 1000),
        Some(digits) => (digits.to_owned(), 1_000_000),
        None => (text.to_owned(), 1),
    };
    let count: Option<u64> = digits.parse().ok().and_then(|n: u64| n.checked_mul(unit));
    count.ok_or_else(|| format!("`{text}` is not a count such as 1000, 50k or 1m"))
}

/// `4096`, `64MB`, `8 TB`.
pub(super) fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = text[digits.len()..].trim().to_ascii_uppercase();
    let shift = match unit.as_str() {
        "" | "B" => Some(0),
        "KB" => Some(10),
        "MB" => Some(20),
        "GB" => Some(30),
        "TB" => Some(40),
        _ => None,
    };
    let size = digits.parse::<u64>().ok().zip(shift);
    size.and_then(|(number, shift)| number.checked_mul(1 << shift))
        .ok_or_else(|| format!("`{text}` is not a size such as 4096, 64MB or 8TB"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_decimal_and_checked() {
        assert_eq!(parse_count("10"), Ok(10));
        assert_eq!(parse_count("50k"), Ok(50_000));
        assert_eq!(parse_count("1M"), Ok(1_000_000));
        for wrong in ["", "k", "1.5k", "-1", "1g", "99999999999999999999"] {
            assert!(parse_count(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_binary_and_checked() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("64MB"), Ok(64 << 20));
        assert_eq!(parse_size("2 kb"), Ok(2048));
        assert_eq!(parse_size("8TB"), Ok(8 << 40));
        for wrong in ["", "MB", "1.5GB", "-1", "10PB", "99999999TB", "10 MB x"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
