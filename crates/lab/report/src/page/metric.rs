//! The metrics of reference figures and of plots, by name.

use super::sections::{micros_per_op, rate, sustained};
use crate::BenchResult;

/// A metric: `tps`, `disk MiB`, `ratio to mpt-archive`, or a measure of one workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MetricName<'m>(pub(super) &'m str);

/// Metrics that do not depend on the speed of the machine.
const COUNTS: [&str; 13] = [
    "read amplification",
    "write amplification",
    "read bytes",
    "write bytes",
    "read and write bytes",
    "rows written",
    "hit rate",
    "proof bytes",
    "proof hashes",
    "chunks",
    "chunks over fewest possible",
    WRITES_OVER_READS,
    LONGEST_OVER_ASYNCHRONOUS,
];

/// Of one store on two mixes of `bench kvstore` (COLE, Fig. 10).
const WRITES_OVER_READS: &str = "write-only throughput over read-only";
/// Of `cole-sync` over `cole` (COLE, Fig. 11).
const LONGEST_OVER_ASYNCHRONOUS: &str = "longest latency with synchronous merge over asynchronous";

/// Beginnings of metrics that are relative to another system, and the metric of both.
const RELATIVE: [(&str, &str); 8] = [
    ("disk ratio to ", "disk MiB"),
    ("read amplification over ", "read amplification"),
    ("write amplification over ", "write amplification"),
    ("time over ", "seconds"),
    ("proof size over ", "proof hashes"),
    ("serialize ms over ", "serialize ms"),
    ("deserialize ms over ", "deserialize ms"),
    ("chunks over ", "chunks"),
];

const MIB: f64 = (1 << 20) as f64;

/// The results that stand beside one: of other systems in the same repetition, and of its own
/// system on other variants.
pub(super) struct ResultCompany<'c, 'd> {
    /// The result of a system on the same variant.
    pub(super) of: &'c dyn Fn(&str) -> Option<&'d BenchResult>,
    /// The result of the same system where a param has another value and all others are the same.
    pub(super) with: &'c dyn Fn(&str, u64) -> Option<&'d BenchResult>,
}

impl<'m> MetricName<'m> {
    /// Whether a larger value is better.
    pub(super) fn more_is_better(self) -> bool {
        matches!(
            self.0,
            "tps" | "ops_per_s" | "hit rate" | WRITES_OVER_READS | LONGEST_OVER_ASYNCHRONOUS
        ) || self.0.starts_with("ratio to ")
    }

    /// Whether values of two machines compare: ratios and counts do, times do not.
    pub(super) fn is_comparable(self) -> bool {
        COUNTS.contains(&self.0) || self.0.starts_with("ratio to ") || self.relative().is_some()
    }

    /// For readers.
    pub(super) fn words(self) -> String {
        match self.0 {
            "tps" => "transactions a second".into(),
            "ops_per_s" => "operations a second".into(),
            "ns" => "ns an operation".into(),
            other => match other.strip_prefix("ratio to ") {
                Some(name) => format!("throughput over {name}"),
                None => other.replace(" us", " µs"),
            },
        }
    }

    /// The metric of both systems, and the other system.
    fn relative(self) -> Option<(MetricName<'static>, &'m str)> {
        if COUNTS.contains(&self.0) {
            return None;
        }
        let relative = |(start, of): &(&str, &'static str)| {
            self.0.strip_prefix(start).map(|other| (MetricName(of), other))
        };
        RELATIVE.iter().find_map(relative)
    }

    /// The value for `own`; `None` if it was not measured. Rates are totals over the whole time, as
    /// those of papers are: sustained, where it was measured.
    pub(super) fn value(self, own: &BenchResult, company: &ResultCompany<'_, '_>) -> Option<f64> {
        if let Some(other) = self.0.strip_prefix("ratio to ") {
            return ratio(total_rate(own), total_rate((company.of)(other)?));
        }
        if let Some((metric, other)) = self.relative() {
            let other = (company.of)(other)?;
            return ratio(metric.absolute(own)?, metric.absolute(other)?);
        }
        match self.0 {
            WRITES_OVER_READS => {
                let (writes, reads) = ((company.with)("reads", 0)?, (company.with)("reads", 100)?);
                ratio(total_rate(writes), total_rate(reads))
            }
            LONGEST_OVER_ASYNCHRONOUS => {
                let synchronous = (company.of)("cole-sync")?;
                ratio(synchronous.max_us? as f64, own.max_us? as f64)
            }
            _ => self.absolute(own),
        }
    }

    fn absolute(self, own: &BenchResult) -> Option<f64> {
        let part = |place: usize| Some(micros_per_op(own)?[place]);
        let ms = |us: Option<u64>| Some(us? as f64 / 1e3);
        let proof = || own.proofs.iter().find(|proof| proof.keys.is_none() && proof.count > 0);
        let known = |value: f64| (value > 0.0).then_some(value);
        match self.0 {
            "tps" => own.tps.map(|_| total_rate(own)),
            "ops_per_s" if own.tps.is_none() => known(total_rate(own)),
            "ns" => known(1e9 / total_rate(own)).filter(|ns| ns.is_finite()),
            "seconds" => known(own.seconds),
            "read amplification" => own.reads_per_op,
            "write amplification" | "rows written" => own.writes_per_op,
            "read bytes" => own.read_bytes_per_op,
            "write bytes" => own.write_bytes_per_op,
            "read and write bytes" => Some(own.read_bytes_per_op? + own.write_bytes_per_op?),
            "execution engine us" => part(0),
            "authenticated structure us" => part(1),
            "key-value store us" => part(2),
            "p50 ms" => ms(own.p50_us),
            "p99 ms" => ms(own.p99_us),
            "max ms" => ms(own.max_us),
            "disk MiB" => known(own.disk_bytes as f64 / MIB),
            "memory MiB" => Some(own.memory_bytes? as f64 / MIB),
            "hit rate" => Some(own.hit_rates?.all),
            "query us" => Some(proof()?.made.p50_us as f64),
            "verify us" => Some(proof()?.verified.p50_us as f64),
            "proof bytes" => Some(proof()?.bytes.p50 as f64),
            other => own.measures.get(other).copied(),
        }
    }
}

/// Transactions or operations a second, sustained where it was measured.
pub(super) fn total_rate(result: &BenchResult) -> f64 {
    sustained(result).unwrap_or_else(|| rate(result))
}

fn ratio(own: f64, other: f64) -> Option<f64> {
    let ratio = own / other;
    (ratio.is_finite() && ratio > 0.0).then_some(ratio)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_sustained_rates_and_measures_have_their_names() {
        let result = |backend: &str, rate: f64, hashes: f64| BenchResult {
            backend: backend.into(),
            ops_per_s: rate,
            sustained_ops_per_s: Some(rate / 2.0),
            measures: [("proof hashes".to_owned(), hashes)].into(),
            max_us: Some(rate as u64),
            ..BenchResult::default()
        };
        let (own, other) = (result("bavl", 100.0, 20.0), result("avlplus", 50.0, 10.0));
        let company =
            ResultCompany { of: &|name| (name == "avlplus").then_some(&other), with: &|_, _| None };
        let value = |name| MetricName(name).value(&own, &company);
        assert_eq!(value("ops_per_s"), Some(50.0));
        assert_eq!(value("ratio to avlplus"), Some(2.0));
        assert_eq!(value("proof size over avlplus"), Some(2.0));
        assert_eq!(value("proof hashes"), Some(20.0));
        assert_eq!(
            (value("ratio to nobody"), value("tps"), value("on a whim")),
            (None, None, None)
        );
        let comparable = ["ratio to x", "chunks over fewest possible", "disk ratio to x"];
        assert!(comparable.iter().all(|name| MetricName(name).is_comparable()));
        assert!(!MetricName("tps").is_comparable() && !MetricName("mean ms").is_comparable());
        assert!(!MetricName("time over x").more_is_better());
    }
}
