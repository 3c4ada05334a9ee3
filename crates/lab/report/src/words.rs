//! Formats numbers for readers.

/// `1,234,567`.
pub(super) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// About three digits: `0.042`, `1.70`, `42.3`, `1,234`.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        return "-".into();
    }
    match size {
        _ if value == 0.0 => "0".into(),
        _ if size >= 1000.0 => {
            format!("{}{}", if value < 0.0 { "−" } else { "" }, grouped(size.round() as u64))
        }
        _ if size >= 100.0 => format!("{value:.0}"),
        _ if size >= 10.0 => format!("{value:.1}"),
        _ if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// A whole number, shortened if possible: `1m`, `250k`, `1,001`.
pub(super) fn short_count(n: u64) -> String {
    match n {
        0 => "0".into(),
        _ if n.is_multiple_of(1_000_000) => format!("{}m", grouped(n / 1_000_000)),
        _ if n.is_multiple_of(1000) => format!("{}k", grouped(n / 1000)),
        _ => grouped(n),
    }
}

/// A number on an axis: `0`, `500`, `50k`, `1.5M`.
pub(super) fn tick(value: f64) -> String {
    let trim = |text: String| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    };
    match value.abs() {
        size if size >= 1e9 => format!("{}G", trim(format!("{:.2}", value / 1e9))),
        size if size >= 1e6 => format!("{}M", trim(format!("{:.2}", value / 1e6))),
        size if size >= 1e3 => format!("{}k", trim(format!("{:.2}", value / 1e3))),
        _ => trim(format!("{value:.3}")),
    }
}

/// Bytes with a binary unit: `85 B`, `1.20 KiB`, `272 MiB`.
pub(super) fn bytes(value: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let step = (value.abs().max(1.0).log2() / 10.0) as usize;
    let step = step.min(UNITS.len() - 1);
    format!("{} {}", number(value / 1024_f64.powi(step as i32)), UNITS[step])
}

/// A time given in microseconds: `85 µs`, `3.78 ms`, `1.20 s`.
pub(super) fn micros(us: f64) -> String {
    match us {
        _ if us >= 1e6 => format!("{} s", number(us / 1e6)),
        _ if us >= 1e3 => format!("{} ms", number(us / 1e3)),
        _ => format!("{} µs", number(us)),
    }
}

/// A change: `+3.2 %`, `−12 %`; `from 0` if it is infinite.
pub fn percent(change: f64) -> String {
    if change.is_infinite() {
        return "from 0".into();
    }
    let points = change * 100.0;
    let sign = if points < 0.0 { "−" } else { "+" };
    let digits = usize::from(points.abs() < 9.95);
    format!("{sign}{:.digits$} %", points.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well_at_every_size() {
        let sizes = [0.0, 0.0123, 0.5, 9.99, 42.31, 123.4, 1_234_567.8, -2500.0];
        let read: Vec<_> = sizes.map(number).into();
        assert_eq!(read, ["0", "0.012", "0.50", "9.99", "42.3", "123", "1,234,568", "−2,500"]);
        assert_eq!(
            [0, 999, 1000, 250_000, 3_000_000, 1001].map(short_count).join(" "),
            "0 999 1k 250k 3m 1,001"
        );
        assert_eq!([0.0, 0.25, 500.0, 1500.0, 2e6].map(tick).join(" "), "0 0.25 500 1.5k 2M");
        assert_eq!([0.0, 85.0, 1024.0, 3.5e8].map(bytes).join(" "), "0 B 85.0 B 1.00 KiB 334 MiB");
        assert_eq!([85.0, 3781.0, 2e6].map(micros).join(" "), "85.0 µs 3.78 ms 2.00 s");
        assert_eq!([0.032, -0.12, 0.0].map(percent).join(" "), "+3.2 % −12 % +0.0 %");
    }
}
