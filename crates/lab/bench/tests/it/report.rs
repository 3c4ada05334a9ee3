//! The page and the comparison, on small reports made by hand.

use retrie_bench::paper::{Paper, references};
use retrie_report::{
    BenchReport, BenchResult, FigureOutline, FigurePlot, LatencyPoint, PlotAxis, ProofBytes,
    ProofResult, ProofTime, ReferenceFigure, ReportDocument, SliceResult, TableResult,
    compare::{ChangeVerdict, CompareError, ReportComparison, compare},
    figure_verdicts, page, picture,
};
use scraper::{Html, Selector};
use serde_json::{Value, json};

/// A result with slices around `rate`: every third one is 4 % faster, every fifth 6 % slower.
fn result(backend: &str, keys: u64, rate: f64, seed: usize) -> BenchResult {
    let wave = |n: usize| match (n + seed) % 15 {
        n if n % 5 == 0 => 0.94,
        n if n % 3 == 0 => 1.04,
        _ => 1.0,
    };
    let slice = |n: usize| SliceResult {
        ops: n as u64 * 1000,
        ops_per_s: rate * wave(n),
        disk_bytes: Some(1 << 20),
        memory_bytes: 0,
    };
    let params = json!({"keys": keys, "sync": "durable", "hash": backend});
    BenchResult {
        backend: backend.into(),
        workload: "state".into(),
        params: params.as_object().unwrap().clone(),
        ops: 25_000,
        seconds: 25_000.0 / rate,
        ops_per_s: rate,
        sustained_ops_per_s: Some(rate * 0.8),
        slices: (1..=25).map(slice).collect(),
        p99_us: Some((1e9 / rate) as u64),
        p50_us: Some((5e8 / rate) as u64),
        disk_bytes: 10 << 20,
        writes_per_op: Some(2.0),
        ..BenchResult::default()
    }
}

fn report(results: Vec<BenchResult>) -> BenchReport {
    BenchReport {
        machine: "a machine".into(),
        ..BenchReport::new("retrie bench state".into(), results)
    }
}

fn document(results: Vec<BenchResult>) -> ReportDocument {
    ReportDocument::from(&report(results))
}

/// Parses a page as browsers do and refuses what they would have to repair.
fn parsed(page: &str) -> Html {
    let html = Html::parse_document(page);
    assert!(html.errors.is_empty(), "{:?}", html.errors);
    html
}

fn select<'a>(html: &'a Html, selector: &str) -> Vec<scraper::ElementRef<'a>> {
    html.select(&Selector::parse(selector).unwrap()).collect()
}

fn texts(html: &Html, selector: &str) -> Vec<String> {
    select(html, selector).iter().map(|found| found.text().collect()).collect()
}

#[test]
fn the_page_shows_every_result_in_every_figure_and_fetches_nothing() {
    let mut results = Vec::new();
    for keys in [1_000_000, 10_000_000] {
        for (backend, rate) in [("raw", 500e3), ("lvmt", 250e3), ("a new one", 90e3)] {
            results.push(result(backend, keys, rate, 0));
        }
    }
    let page = page("All of it", &[document(results)]);
    let html = parsed(&page);
    assert_eq!(texts(&html, "title").first().map(String::as_str), Some("All of it"));
    assert_eq!(select(&html, "html[lang=en]").len(), 1);
    assert_eq!(select(&html, "main").len(), 1);
    for figure in ["throughput", "amplification", "latency", "time", "space"] {
        for backend in ["raw", "lvmt", "a new one"] {
            let rows = select(&html, &format!("#state-{figure} [data-backend='{backend}']"));
            let lines: Vec<_> = texts(&html, &format!("#state-{figure} .curve title"))
                .into_iter()
                .filter(|title| title == backend)
                .collect();
            assert!(rows.len() + lines.len() >= 2, "{backend} is not in both variants of {figure}");
        }
    }
    let titles = texts(&html, "#state-throughput rect title");
    assert!(titles.iter().any(|title| title == "lvmt: 250,000 operations a second"), "{titles:?}");
    let notes = texts(&html, "#state-throughput .note");
    let both = "50 % of raw (spread 0 %); sustained 50 % of raw";
    assert!(notes.contains(&both.to_owned()), "{notes:?}");
    let lede = texts(&html, ".lede li").concat();
    assert!(lede.contains("a second in the median, 50 % of raw."), "{lede}");
    assert!(lede.contains(" Sustained it does 200,000, 50 % of raw."), "{lede}");
    let headings = texts(&html, "#state-throughput h4");
    assert_eq!(headings, ["1m keys", "10m keys"]);
    assert_eq!(select(&html, "#numbers tbody tr").len(), 6);
    assert!(select(&html, "svg[role=img]").iter().all(|svg| svg.attr("aria-label").is_some()));
    for fetched in ["http:", "https:", "url(http", "@import", " src=", "<link", "//"] {
        let text = page.replace("http://www.w3.org", "");
        let data = text.find("<script type=\"application/json\"").unwrap();
        assert!(!text[..data].contains(fetched), "the page fetches something: {fetched}");
    }
}

#[test]
fn the_colour_of_every_backend_is_defined_for_light_and_dark() {
    let html =
        page("", &[document(vec![result("lvmt@0/64", 1, 1.0, 0), result("x<y", 1, 2.0, 0)])]);
    let html = parsed(&html);
    let style = texts(&html, "style").concat();
    for row in select(&html, "#state-throughput .row svg") {
        let class = row.attr("class").unwrap();
        assert_eq!(style.matches(&format!(".{class}{{--c:")).count(), 2, "{class}");
    }
}

#[test]
fn no_text_of_a_report_can_break_out() {
    let evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&";
    let mut bad = result(evil, 1, 100.0, 0);
    bad.workload = format!("w {evil}");
    bad.params.insert(evil.into(), json!(evil));
    let mut report = report(vec![bad]);
    report.command = evil.into();
    report.machine = evil.into();
    report.references.push(ReferenceFigure {
        source: evil.into(),
        system: evil.into(),
        workload: format!("w {evil}"),
        setting: evil.into(),
        metric: evil.into(),
        value: 1.0,
        figures: Vec::new(),
    });
    let page = page(evil, &[ReportDocument::from(&report)]);
    let html = parsed(&page);
    assert_eq!(select(&html, "img").len(), 0);
    let scripts = select(&html, "script");
    assert_eq!(scripts.len(), 1, "only the data");
    assert_eq!(scripts[0].attr("type"), Some("application/json"));
    let read: Value = serde_json::from_str(&scripts[0].text().collect::<String>()).unwrap();
    assert_eq!(read, json!(report), "the embedded report is the one that was written");
}

#[test]
fn a_picture_shows_the_largest_variant_with_the_lower_rate_and_the_best_store_first() {
    let stores = vec![
        result("mpt", 10, 9.0, 0),
        result("mpt", 1_000_000, 1000.0, 0),
        result("raw", 1_000_000, 4000.0, 1),
        result("x<y", 1_000_000, 2000.0, 2),
    ];
    let mut payloads = [result("lvmt", 10, 1.0, 0), result("raw", 10, 2.0, 0)];
    for (result, us) in payloads.iter_mut().zip([1500, 3000]) {
        (result.workload, result.p50_us) = ("new-payload".into(), Some(us));
    }
    let picture = picture(&[document(stores), document(payloads.to_vec())]);
    let html = parsed(&format!(
        "<!doctype html><html><head><title>t</title></head><body>{picture}</body></html>"
    ));
    let names = texts(&html, "text.n");
    assert_eq!(names, ["raw", "x<y", "mpt", "lvmt", "raw"]);
    let all = texts(&html, "text").join("|");
    for figure in ["3,200", "1,600", "800", "1.50 ms", "3.00 ms", "1m keys", "a machine"] {
        assert!(all.contains(figure), "{figure}: {all}");
    }
    let widths = select(&html, "rect[height='16']");
    let widths: Vec<f64> =
        widths.iter().map(|bar| bar.attr("width").unwrap().parse().unwrap()).collect();
    assert!((widths[0] / widths[2] - 4.0).abs() < 0.01, "{widths:?}");
    assert!(!picture.contains("href") && !picture.contains("<script"), "{picture}");
}

#[test]
fn figures_without_fields_are_left_out_and_those_with_are_there() {
    let bare = BenchResult {
        backend: "raw".into(),
        workload: "state".into(),
        ops: 10,
        seconds: 1.0,
        ops_per_s: 10.0,
        ..BenchResult::default()
    };
    let html = parsed(&page("", &[document(vec![bare.clone()])]));
    assert_eq!(select(&html, "#state figure").len(), 1, "throughput alone");
    assert_eq!(texts(&html, "#state-throughput .figure"), ["10.0"]);
    let time = ProofTime { p50_us: 10, p99_us: 20, max_us: 30 };
    let full = BenchResult {
        tps: Some(5.0),
        breakdown: serde_json::from_value(
            json!({"execution": 0.5, "authentication": 0.25, "storage_io": 0.25, "other": 0.0}),
        )
        .unwrap(),
        tables: Some(vec![table("Nodes", 2.0), table("Flat", 1.0)]),
        reads_per_op: Some(3.0),
        latency: [0.0, 0.25, 0.5, 0.75, 0.99, 0.999, 1.0]
            .map(|quantile| LatencyPoint { quantile, us: 100 + (quantile * 900.0) as u64 })
            .to_vec(),
        proofs: [(None, None), (Some(1000), Some(7))]
            .map(|(depth, first_us)| ProofResult {
                present: true,
                keys: None,
                depth,
                first_us,
                count: 3,
                made: time,
                verified: time,
                bytes: ProofBytes { min: 100, p50: 200, max: 300 },
            })
            .to_vec(),
        ..bare
    };
    let html = parsed(&page("", &[document(vec![full])]));
    for figure in ["throughput", "breakdown", "amplification", "latency", "proofs"] {
        assert_eq!(select(&html, &format!("#state-{figure}")).len(), 1, "{figure}");
    }
    let titles = texts(&html, "#state-breakdown rect title");
    assert!(titles.contains(&"raw, authenticated structure: 50.0 ms (25 %)".into()), "{titles:?}");
    assert!(texts(&html, "#state-amplification rect title").contains(&"raw, Nodes: 2.00".into()));
    let titles = texts(&html, "#state-proofs title");
    for said in ["raw, present key: 200", "raw, key 1,000 blocks below: 200"] {
        assert!(titles.iter().any(|title| title.starts_with(said)), "{titles:?}");
    }
    let titles = texts(&html, "#state-latency title");
    assert!(titles.contains(&"raw, p99.9: 999 µs".into()), "{titles:?}");
}

fn table(name: &str, reads_per_op: f64) -> TableResult {
    TableResult {
        name: name.into(),
        reads_per_op,
        writes_per_op: 0.0,
        read_bytes_per_op: 0.0,
        write_bytes_per_op: 0.0,
    }
}

#[test]
fn figures_of_others_stand_beside_the_variant_of_their_size() {
    let mut report = report(vec![
        result("lvmt", 1_000_000, 200e3, 0),
        result("mpt-archive", 1_000_000, 50e3, 0),
    ]);
    let mut refer = |system: &str, setting: &str, metric: &str, value| {
        report.references.push(ReferenceFigure {
            source: "a paper".into(),
            system: system.into(),
            workload: "state".into(),
            setting: setting.into(),
            metric: metric.into(),
            value,
            figures: Vec::new(),
        });
    };
    refer("rainblock", "1m keys", "ops_per_s", 43_000.0);
    refer("lvmt", "100m keys", "ops_per_s", 72_700.0);
    refer("lvmt", "at least", "ratio to mpt-archive", 5.0);
    refer("lvmt", "1m keys, durable", "ops_per_s", 1.0);
    refer("lvmt", "1m keys, not synced", "ops_per_s", 1.0);
    refer("lvmt", "searches, large tree", "ratio to mpt-archive", 3.0);
    refer("lvmt", "1m accounts", "ops_per_s", 1.0);
    let html = parsed(&page("", &[ReportDocument::from(&report)]));
    let bars = select(&html, "#state-throughput .row.other");
    assert_eq!(bars.len(), 1, "the others are of another system, size, unit or sync mode");
    assert!(bars.iter().all(|bar| bar.attr("data-backend") == Some("lvmt")));
    let here = texts(&html, "#state-papers td[data-l=here]");
    // Sustained, of the size and the sync that the setting names, and of its operation.
    assert_eq!(here, ["4.00 (1m keys)", "160,000"]);
}

/// Once a table of all reference figures, most of them without a counterpart, stood above all plots
/// but the first.
#[test]
fn plots_come_first_and_every_figure_of_others_stands_beside_one_of_ours() {
    let mut results = Vec::new();
    for (backend, rate) in [("raw", 400e3), ("lvmt", 200e3), ("mpt-archive", 40e3)] {
        let mut result = result(backend, 1_000_000, rate, 0);
        result.params.insert("pairs".into(), json!(250_000));
        result.breakdown = serde_json::from_value(
            json!({"execution": 0.0, "authentication": 1.0, "storage_io": 1.0, "other": 0.0}),
        )
        .unwrap();
        results.push(result);
    }
    let mut report = report(results);
    report.references = Paper::ALL.into_iter().flat_map(references).collect();
    assert!(report.references.len() > 100, "{}", report.references.len());
    let html = parsed(&page("", &[ReportDocument::from(&report)]));
    let ids: Vec<_> = select(&html, "main figure").iter().filter_map(|f| f.attr("id")).collect();
    let plots = ["throughput", "breakdown", "amplification", "latency", "time", "space"];
    let expected = plots.into_iter().chain(["papers"]).map(|name| format!("state-{name}"));
    assert_eq!(ids, expected.collect::<Vec<_>>());
    // No reference figures of workloads or stores that were not measured.
    let sections: Vec<_> =
        select(&html, "main section").iter().filter_map(|s| s.attr("id")).collect();
    assert_eq!(sections, ["state", "method", "numbers"]);
    let rows = texts(&html, "#state-papers tbody tr");
    assert!((1..20).contains(&rows.len()), "{rows:#?}");
    let cells = texts(&html, "#state-papers td");
    assert!(cells.iter().all(|cell| !cell.trim().is_empty()), "{cells:#?}");
    let mut systems = texts(&html, "#state-papers td b");
    systems.extend(
        select(&html, "#state-throughput .row.other")
            .iter()
            .filter_map(|row| row.attr("data-backend").map(str::to_owned)),
    );
    let ran = ["lvmt", "mpt-archive"];
    assert!(systems.iter().all(|system| ran.contains(&&**system)), "{systems:?}");
}

#[test]
fn a_report_in_which_nothing_ran_says_so() {
    let mut report = report(Vec::new());
    report.references = references(Paper::Lmpt);
    let html = parsed(&page("", &[ReportDocument::from(&report)]));
    assert_eq!(select(&html, "main figure").len(), 0);
    assert!(texts(&html, "header .note").concat().starts_with("Nothing was measured"));
}

#[test]
fn a_stopped_run_and_failed_checks_are_said_at_the_top() {
    let mut report = report(vec![result("raw", 1, 1.0, 0)]);
    report.complete = false;
    let mut document = ReportDocument::from(&report);
    document.failures.push("mpt: block 7: gasUsed".into());
    let warnings = texts(&parsed(&page("", &[document])), "header .warn");
    assert!(
        warnings[0].starts_with("Stopped early") && warnings[1].contains("block 7"),
        "{warnings:?}"
    );
}

#[test]
fn a_replay_is_read_with_its_kinds_of_bundles_apart() {
    let bundle = |kind: &str, seconds: f64| {
        json!({"number": 1, "kind": kind, "fork": "Osaka", "txs": 10, "gas": 1, "seconds": seconds,
               "gas_ok": true, "bloom_ok": true, "receipts_ok": null, "requests_ok": null, "root_ok": null})
    };
    let text = json!({"machine": "m", "version": "0", "command": "c", "results": [{
        "backend": "mpt", "chain": "mainnet", "from": 1, "to": 2, "blocks": 2, "txs": 20, "gas": 2,
        "seconds": 3.0, "tps": 6.66, "mgas_per_s": 1.0, "ok": false, "failures": ["block 1: gasUsed"],
        "root": format!("0x{}", "0".repeat(64)),
        "breakdown": {"execution": 1.0, "authentication": 1.0, "storage_io": 1.0, "other": 0.0},
        "amplification": {"reads_per_op": 1.0, "writes_per_op": 1.0, "read_bytes_per_op": 1.0, "write_bytes_per_op": 1.0},
        "disk_bytes": 1, "peak_rss_bytes": 1,
        "bundles": [bundle("witness", 1.0), bundle("prestate", 2.0)]}]})
    .to_string();
    let document = ReportDocument::parse("r.json", &text).unwrap();
    assert_eq!(document.failures, ["mpt: block 1: gasUsed"]);
    let slices: Vec<_> =
        document.report.results[0].slices.iter().map(|s| (s.ops, s.ops_per_s)).collect();
    assert_eq!(slices, [(10, 10.0), (20, 5.0)], "a block is a slice");
    let rates: Vec<_> = document
        .report
        .results
        .iter()
        .map(|result| (result.params["kind"].as_str().unwrap(), result.tps.unwrap()))
        .collect();
    assert_eq!(rates, [("all bundles", 6.66), ("prestate", 5.0), ("witness", 10.0)]);
    let html = parsed(&page("", &[document]));
    assert_eq!(select(&html, "#replay-throughput .row").len(), 3);
    assert_eq!(
        select(&html, "#replay-breakdown .row").len(),
        1,
        "the time is known of the whole only"
    );
}

#[test]
fn an_old_report_without_later_fields_is_read() {
    let text = r#"{"machine": "m", "version": "0.1.0", "command": "c", "results": [{"backend": "raw",
        "workload": "state", "params": {"keys": "fresh"}, "ops": 1, "seconds": 1.0, "ops_per_s": 1.0,
        "p50_us": 1, "p99_us": 2, "p999_us": 3, "max_us": 4, "disk_bytes": 5, "peak_rss_bytes": 6}]}"#;
    let document = ReportDocument::parse("old.json", text).unwrap();
    assert!(document.report.complete);
    let html = parsed(&page("", &[document]));
    assert_eq!(select(&html, "#state-latency .row[data-backend=raw]").len(), 1);
}

#[test]
fn bad_files_are_named_with_what_is_wrong() {
    let error = |text| ReportDocument::parse("x.json", text).unwrap_err().to_string();
    assert!(error("{").starts_with("x.json is not a report"), "{}", error("{"));
    assert!(error("{\"results\": []}").contains("missing field `machine`"));
    let empty = r#"{"machine": "m", "version": "v", "command": "c", "results": []}"#;
    assert_eq!(error(empty), "x.json holds no results: the run was stopped before the first one");
    let missing =
        ReportDocument::read(std::path::Path::new("/nowhere/x.json")).unwrap_err().to_string();
    assert!(missing.starts_with("reading /nowhere/x.json: "), "{missing}");
}

/// Two backends, raw first; `factor` is the machine's, `lvmt` the backend's own.
fn run(factor: f64, lvmt: f64, seed: usize) -> ReportDocument {
    let raw = result("raw", 1_000_000, 500e3 * factor, seed);
    document(vec![raw, result("lvmt", 1_000_000, 250e3 * factor * lvmt, seed + 7)])
}

fn verdict(comparison: &ReportComparison, backend: &str, metric: &str) -> Option<ChangeVerdict> {
    let pair = comparison.pairs.iter().find(|pair| pair.what.starts_with(backend))?;
    Some(pair.changes.iter().find(|change| change.metric == metric)?.verdict)
}

#[test]
fn noise_is_no_regression() {
    for seed in 0..15 {
        let found = compare(&run(1.0, 1.0, 0), &run(1.0, 1.0, seed), 0.05).unwrap();
        assert_eq!(found.regressions(), Vec::<String>::new(), "seed {seed}");
        assert_eq!(verdict(&found, "lvmt", "ops/s"), Some(ChangeVerdict::Same));
    }
}

#[test]
fn a_change_beyond_the_threshold_but_within_the_noise_is_none() {
    let noisy = |factor: f64| {
        let mut document = run(1.0, factor, 0);
        for (n, slice) in document.report.results[1].slices.iter_mut().enumerate() {
            slice.ops_per_s *= 0.6 + 0.1 * ((n * 7) % 9) as f64;
        }
        document
    };
    let found = compare(&noisy(1.0), &noisy(0.92), 0.05).unwrap();
    assert_eq!(verdict(&found, "lvmt", "ops/s"), Some(ChangeVerdict::Same));
    let found = compare(&noisy(1.0), &noisy(0.4), 0.05).unwrap();
    assert_eq!(verdict(&found, "lvmt", "ops/s"), Some(ChangeVerdict::Worse));
}

#[test]
fn a_backend_that_is_a_fifth_slower_is_found_and_a_faster_one_too() {
    let found = compare(&run(1.0, 1.0, 0), &run(1.0, 0.8, 3), 0.05).unwrap();
    assert_eq!(verdict(&found, "lvmt", "ops/s"), Some(ChangeVerdict::Worse));
    assert_eq!(verdict(&found, "lvmt", "sustained ops/s"), Some(ChangeVerdict::Unknown), "stalls");
    assert_eq!(verdict(&found, "raw", "ops/s"), Some(ChangeVerdict::Yardstick));
    assert_eq!(verdict(&found, "lvmt", "p99 us"), Some(ChangeVerdict::Unknown), "one figure a run");
    assert!(found.regressions()[0].contains("−20 %"), "{:?}", found.regressions());
    let found = compare(&run(1.0, 0.8, 0), &run(1.0, 1.0, 3), 0.05).unwrap();
    assert_eq!(verdict(&found, "lvmt", "ops/s"), Some(ChangeVerdict::Better));
    let found = compare(&run(1.0, 1.0, 0), &run(1.0, 0.8, 3), 0.3).unwrap();
    assert_eq!(verdict(&found, "lvmt", "ops/s"), Some(ChangeVerdict::Same), "below the threshold");
}

#[test]
fn a_machine_that_is_half_as_fast_is_no_regression_unless_nothing_raced_beside() {
    let found = compare(&run(1.0, 1.0, 0), &run(0.5, 1.0, 4), 0.05).unwrap();
    assert_eq!(found.regressions(), Vec::<String>::new());
    let lvmt = &found.pairs[1].changes[0];
    assert_eq!(lvmt.change, -0.5);
    assert!(lvmt.relative.unwrap().abs() < 1e-9, "{lvmt:?}");
    let alone = |factor| document(vec![result("lvmt", 1, 100.0 * factor, 0)]);
    let found = compare(&alone(1.0), &alone(0.5), 0.05).unwrap();
    assert_eq!(verdict(&found, "lvmt", "ops/s"), Some(ChangeVerdict::Worse));
    assert!(found.remarks.iter().any(|remark| remark.contains("judged by itself")));
}

#[test]
fn figures_without_noise_are_judged_as_they_are() {
    let changed = |disk: u64, rows: f64| {
        let mut document = run(1.0, 1.0, 0);
        document.report.results[1].disk_bytes = disk;
        document.report.results[1].writes_per_op = Some(rows);
        document
    };
    let old = changed(1000, 2.0);
    let found = compare(&old, &changed(1100, 1.96), 0.05).unwrap();
    assert_eq!(verdict(&found, "lvmt", "disk bytes"), Some(ChangeVerdict::Worse));
    assert_eq!(
        verdict(&found, "lvmt", "rows written/op"),
        Some(ChangeVerdict::Same),
        "shown, but small"
    );
    let found = compare(&old, &changed(1005, 2.0), 0.05).unwrap();
    assert_eq!(verdict(&found, "lvmt", "disk bytes"), None, "half a percent is not shown");
    let found = compare(&changed(1000, 0.0), &changed(1000, 4.0), 0.05).unwrap();
    assert_eq!(verdict(&found, "lvmt", "rows written/op"), Some(ChangeVerdict::Worse), "0 to 4");
    assert!(found.regressions()[0].ends_with("rows written/op from 0"), "{found:?}");
    let found = compare(&changed(1000, 4.0), &changed(1000, 0.0), 0.05).unwrap();
    assert_eq!(verdict(&found, "lvmt", "rows written/op"), Some(ChangeVerdict::Better));
}

#[test]
fn what_a_stopped_run_or_other_params_left_on_disk_is_not_judged() {
    let with_disk = |bytes: u64, pairs: u64| {
        let mut document = run(1.0, 1.0, 0);
        for result in &mut document.report.results {
            result.disk_bytes = bytes;
            result.params.insert("pairs".into(), json!(pairs));
        }
        document
    };
    let (old, new) = (with_disk(1000, 10), with_disk(2000, 10));
    let found = compare(&old, &new, 0.05).unwrap();
    assert_eq!(verdict(&found, "lvmt", "disk bytes"), Some(ChangeVerdict::Worse));
    let mut stopped = new;
    stopped.report.complete = false;
    for other in [stopped, with_disk(2000, 20)] {
        let found = compare(&old, &other, 0.05).unwrap();
        assert_eq!(verdict(&found, "lvmt", "disk bytes"), Some(ChangeVerdict::Unknown));
    }
}

#[test]
fn a_yardstick_without_a_rate_leaves_no_infinite_figures() {
    let mut old = run(1.0, 1.0, 0);
    old.report.results[0].ops_per_s = 0.0;
    old.report.results[0].slices.clear();
    let found = compare(&old, &run(1.0, 0.5, 0), 0.05).unwrap();
    let change = &found.pairs[1].changes[0];
    assert_eq!(
        (change.metric.as_str(), change.relative, change.verdict),
        ("ops/s", None, ChangeVerdict::Worse)
    );
}

#[test]
fn blocks_of_a_replay_are_held_against_themselves() {
    // Blocks differ by far more than the tenth that the new run is slower.
    let replay = |factor: f64| {
        let mut result = result("mpt", 1, 1000.0 * factor, 0);
        result.workload = "replay".into();
        for (n, slice) in result.slices.iter_mut().enumerate() {
            slice.ops_per_s = (1 + n * 7 % 25) as f64 * 100.0 * factor;
        }
        document(vec![result])
    };
    let found = compare(&replay(1.0), &replay(0.9), 0.05).unwrap();
    assert_eq!(verdict(&found, "mpt", "ops/s"), Some(ChangeVerdict::Worse));
    let mut others = replay(0.9);
    others.report.results[0].slices.iter_mut().for_each(|slice| slice.ops += 1);
    let found = compare(&replay(1.0), &others, 0.05).unwrap();
    assert_eq!(verdict(&found, "mpt", "ops/s"), Some(ChangeVerdict::Same), "other blocks");
}

#[test]
fn memory_that_shrank_notes_of_several_files_and_few_latencies_are_shown_as_they_are() {
    let mut shrunk = result("mpt", 1, 1000.0, 0);
    shrunk.memory_bytes = Some(-(3 << 20));
    shrunk.slices.iter_mut().for_each(|slice| slice.memory_bytes = -(1 << 20));
    shrunk.params.insert("pairs".into(), json!(500));
    shrunk.params.insert("commit_every".into(), json!(1));
    shrunk.p999_us = Some(7_000_000);
    let mut one = report(vec![shrunk]);
    one.notes.push("left out: nothing".into());
    let mut documents = [ReportDocument::from(&one), ReportDocument::from(&one)];
    documents[0].name = "a.json".into();
    documents[1].name = "b.json".into();
    let html = parsed(&page("", &documents));
    assert!(texts(&html, "#state-space .figure").contains(&"-3.00 MiB".into()));
    assert_eq!(texts(&html, "#state-time .curve title").len(), 6, "three lines in both");
    let notes = texts(&html, "header p.note");
    assert_eq!(notes, ["a.json: left out: nothing", "b.json: left out: nothing"]);
    let latency = texts(&html, "#state-latency").concat();
    assert!(latency.contains("p99 1.00 s (2.0 × median)"), "{latency}");
    assert!(!latency.contains("p99.9") && !latency.contains("longest 7"), "{latency}");
}

#[test]
fn what_is_in_one_file_only_is_listed_and_what_is_ambiguous_refused() {
    let of =
        |keys: &[u64]| document(keys.iter().map(|keys| result("raw", *keys, 1e5, 0)).collect());
    let found = compare(&of(&[1000, 2000]), &of(&[2000, 3000]), 0.05).unwrap();
    assert_eq!(found.pairs.len(), 1);
    assert!(found.only_old[0].contains("1k keys") && found.only_new[0].contains("3k keys"));
    let found = compare(&of(&[1000]), &of(&[2000]), 0.05).unwrap();
    assert!(found.remarks[0].contains("1k keys then, 2k keys now"), "{:?}", found.remarks);
    let error = compare(&of(&[1000]), &of(&[2000, 3000]), 0.05).unwrap_err();
    assert!(matches!(error, CompareError::Ambiguous { .. }), "{error}");
    assert!(error.to_string().contains("3k keys"), "{error}");
    let error = compare(&of(&[1000, 1000]), &of(&[1000]), 0.05).unwrap_err();
    assert!(matches!(error, CompareError::Twice { .. }), "{error}");
    let other = document(vec![result("lvmt", 1000, 1.0, 0)]);
    let error = compare(&of(&[1000]), &other, 0.05).unwrap_err();
    assert!(matches!(error, CompareError::NothingInCommon { .. }), "{error}");
}

#[test]
fn other_machines_versions_and_stopped_runs_are_said() {
    let old = run(1.0, 1.0, 0);
    let mut new = old.clone();
    new.report.machine = "another".into();
    new.report.version = "9".into();
    new.report.complete = false;
    let remarks = compare(&old, &new, 0.05).unwrap().remarks.join("\n");
    for word in ["another", "versions", "stopped"] {
        assert!(remarks.contains(word), "{remarks}");
    }
}

/// A figure with three stores at two sizes, three times; `lvmt` and `mpt-archive` at these rates.
fn figure_report(lvmt: f64, archive: f64) -> BenchReport {
    let mut results = Vec::new();
    for (repetition, noise) in [(1, 1.0), (2, 1.02), (3, 0.97)] {
        for keys in [1_000_000, 10_000_000] {
            for (backend, rate) in [("raw", 500e3), ("lvmt", lvmt), ("mpt-archive", archive)] {
                let mut result = result(backend, keys, rate * noise, 0);
                result.params.insert("figure".into(), json!("Fig. 4, Fig. 6a"));
                result.repetition = Some(repetition);
                results.push(result);
            }
        }
    }
    let mut report = report(results);
    report.paper = Some("LVMT".into());
    let axis = PlotAxis { param: "keys".into(), unit: "keys".into() };
    report.figures = vec![
        FigureOutline {
            name: "Fig. 1".into(),
            caption: "A picture".into(),
            omission: Some("an illustration".into()),
            ..FigureOutline::default()
        },
        FigureOutline {
            name: "Fig. 4".into(),
            caption: "Throughput".into(),
            plots: vec![FigurePlot { x: Some(axis), y: vec!["ops_per_s".into()] }],
            commands: vec!["retrie bench state".into()],
            ..FigureOutline::default()
        },
    ];
    let stated = |setting: &str, metric: &str, value| ReferenceFigure {
        source: "LVMT, Fig. 4".into(),
        system: "lvmt".into(),
        workload: "state".into(),
        setting: setting.into(),
        metric: metric.into(),
        value,
        figures: vec!["Fig. 4".into()],
    };
    report.references = vec![
        stated("at least", "ratio to mpt-archive", 5.0),
        stated("1m keys", "ops_per_s", 72_700.0),
        stated("up to", "ops_per_s", 90_000.0),
    ];
    report
}

#[test]
fn a_figure_has_its_curve_the_papers_values_a_verdict_and_its_command() {
    let report = figure_report(200e3, 100e3);
    let html = parsed(&page("", &[ReportDocument::from(&report)]));
    let sections: Vec<_> =
        select(&html, "main section").iter().filter_map(|s| s.attr("id")).collect();
    assert_eq!(sections, ["paper-0-fig4", "paper-0-rest", "state", "method", "numbers"]);
    let figure = "section[data-figure='Fig. 4']";
    let verdict = texts(&html, &format!("{figure} .verdict")).concat();
    let missed = "Missed: lvmt, throughput over mpt-archive: 2.00 ± 0 (1m keys), the paper 5.00";
    assert!(verdict.starts_with(missed), "{verdict}");
    assert_eq!(figure_verdicts(&report).len(), 1);
    assert_eq!(texts(&html, &format!("{figure} pre")).concat(), "retrie bench state");
    let lines = texts(&html, &format!("{figure} .curve title"));
    assert_eq!(lines, ["lvmt", "mpt-archive", "raw"]);
    assert_eq!(select(&html, &format!("{figure} .interval")).len(), 6);
    let stated =
        [".stated", ".theirs-mark"].map(|class| select(&html, &format!("{figure} {class}")));
    assert_eq!(stated.map(|marks| marks.len()), [1, 1], "a line, and a cross at its size");
    let values = texts(&html, &format!("{figure} details td")).join("|");
    // 0.8 of 500,000, in the mean of 1, 1.02 and 0.97, with its interval and its median.
    assert!(values.contains("398,667 ± ") && values.contains("(400,000, 3)"), "{values}");
    assert!(texts(&html, "#paper-0-rest dd").concat().contains("an illustration"));
    assert!(figure_verdicts(&figure_report(500e3, 100e3))[0].1.starts_with("reproduced: "));
    let mut small = report;
    for result in &mut small.results {
        result.params.insert("regime".into(), json!("one level of LVMT"));
    }
    assert_eq!(figure_verdicts(&small)[0].1, "not comparable: one level of LVMT.");
}

#[test]
fn a_second_run_of_the_same_build_is_green_and_a_slower_one_is_found() {
    let document = |lvmt| ReportDocument::from(&figure_report(lvmt, 100e3));
    let again = |noise: [f64; 3]| {
        let mut document = document(200e3);
        for result in &mut document.report.results {
            let factor = noise[result.repetition.unwrap() as usize - 1];
            for rate in [Some(&mut result.ops_per_s), result.sustained_ops_per_s.as_mut()] {
                *rate.unwrap() *= if result.backend == "raw" { 0.8 } else { 0.8 * factor };
            }
        }
        document
    };
    let found = compare(&document(200e3), &again([1.03, 0.96, 1.01]), 0.05).unwrap();
    assert_eq!(found.pairs.len(), 6, "repetitions are one pair");
    assert_eq!(found.regressions(), Vec::<String>::new());
    assert_eq!(verdict(&found, "lvmt", "sustained ops/s"), Some(ChangeVerdict::Same));
    assert_eq!(verdict(&found, "raw", "sustained ops/s"), Some(ChangeVerdict::Yardstick));
    let mut noisy = again([1.01, 0.99, 1.0]);
    for result in noisy.report.results.iter_mut().filter(|one| one.backend == "lvmt") {
        result.ops_per_s *= 0.6;
    }
    let found = compare(&again([1.0, 1.01, 0.99]), &noisy, 0.05).unwrap();
    assert_eq!(verdict(&found, "lvmt", "ops/s"), Some(ChangeVerdict::Worse));
    assert_eq!(verdict(&found, "mpt-archive", "ops/s"), Some(ChangeVerdict::Same));
    let mut twice = document(200e3);
    twice.report.results.push(twice.report.results[0].clone());
    let error = compare(&twice, &document(200e3), 0.05).unwrap_err();
    assert!(matches!(error, CompareError::Twice { .. }), "{error}");
}
