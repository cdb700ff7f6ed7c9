//! What the samples say.

use super::load::Visit;
use super::sample::{Sample, median};
use super::target::Target;
use super::work::Work;
use super::{Plan, histogram::Histogram};
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// Where a second server of the reference's kind has to stand for the run to mean anything.
const STEADY: std::ops::RangeInclusive<f64> = 0.95..=1.05;

/// The figures of one target.
#[derive(Debug)]
pub(super) struct Row {
    name: String,
    time_us: f64,
    time_ratio: f64,
    per_second: f64,
    /// The 50th, 90th and 99th of a hundred, and the longest.
    latencies_us: [f64; 4],
    cpu: Option<Cpu>,
}

#[derive(Clone, Copy, Debug)]
struct Cpu {
    us: f64,
    /// Unknown where the reference's is.
    ratio: Option<f64>,
}

/// The figures of all targets, the reference first.
pub(super) fn rows(targets: &[Target], visits: &[Visit]) -> Vec<Row> {
    let names = targets.iter().map(|target| target.name.clone());
    let samples = visits.iter().map(|visit| (&visit.samples[..], &visit.latencies));
    rows_of(names.zip(samples))
}

fn rows_of<'a>(visits: impl Iterator<Item = (String, (&'a [Sample], &'a Histogram))>) -> Vec<Row> {
    let mut reference: &[Sample] = &[];
    let mut rows = Vec::new();
    for (name, (samples, latencies)) in visits {
        if rows.is_empty() {
            reference = samples;
        }
        let ratio = |of: fn(&Sample) -> Option<f64>| {
            let pairs = samples.iter().zip(reference);
            median(
                pairs.filter_map(|(sample, base)| Some(of(sample)? / of(base).filter(|&base| base > 0.0)?)),
            )
        };
        let cpu_us = median(samples.iter().filter_map(|sample| sample.cpu_ns)).map(|ns| ns / 1e3);
        rows.push(Row {
            name,
            time_us: median(samples.iter().map(|sample| sample.time_ns)).unwrap_or(0.0) / 1e3,
            time_ratio: ratio(|sample| Some(sample.time_ns)).unwrap_or(1.0),
            per_second: median(samples.iter().map(|sample| sample.per_second)).unwrap_or(0.0),
            latencies_us: [0.5, 0.9, 0.99, 1.0].map(|share| latencies.quantile(share).as_secs_f64() * 1e6),
            cpu: cpu_us.map(|us| Cpu { us, ratio: ratio(|sample| sample.cpu_ns) }),
        });
    }
    rows
}

/// The second server of the reference's kind: the one whose name is the reference's with a 2 behind.
fn reference_again(rows: &[Row]) -> Option<(&Row, &Row)> {
    let reference = rows.first()?;
    let name = format!("{}2", reference.name);
    rows.iter().find(|row| row.name == name).map(|again| (reference, again))
}

/// Why the figures are not to be trusted, if so.
pub(super) fn unreliable(rows: &[Row]) -> Option<String> {
    let (reference, again) = reference_again(rows)?;
    (!STEADY.contains(&again.time_ratio)).then(|| {
        format!(
            "{} came out at {:.2} of {}, which is the same: the machine was not quiet, and this run says nothing",
            again.name, again.time_ratio, reference.name
        )
    })
}

/// A table for people.
pub(super) fn table(work: Work, plan: &Plan, rows: &[Row]) -> String {
    let Plan { connections, depth, value_bytes, operations, repetitions, .. } = plan;
    let unit = work.unit();
    let language = work.language(plan.language).name();
    let mut text = format!("{}, {language}: {connections} connections", work.name());
    let has_depth = unit == "operation";
    let details = match work {
        work if work.connects_anew() => String::new(),
        Work::Barrier | Work::Legacy => format!(", {operations} rounds"),
        _ => format!(", {operations} operations each, depth {depth}, values of {value_bytes} bytes"),
    };
    let of = if has_depth && *depth > 1 { "batch" } else { unit };
    writeln!(text, "{details}; {repetitions} repetitions").ok();
    let has_cpu = rows.iter().any(|row| row.cpu.is_some());
    let name_width = rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0).max(6);
    // A ratio to itself is no news.
    let ratio_of = |ratio: Option<f64>| match ratio {
        _ if rows.len() < 2 => String::new(),
        Some(ratio) => format!(" {ratio:>7.2}"),
        None => format!(" {:>7}", "-"),
    };
    let ratio_head = if rows.len() < 2 { "" } else { "   ratio" };
    write!(text, "  {:name_width$} {:>14}{ratio_head}", "target", format!("us/{unit}")).ok();
    write!(text, " {:>12} {:>10} {:>10}", "in a second", "p50 us", "p90 us").ok();
    write!(text, " {:>10} {:>10}", "p99 us", "max us").ok();
    if has_cpu {
        write!(text, " {:>14}{ratio_head}", "server CPU us").ok();
    }
    for row in rows {
        let ratio = ratio_of(Some(row.time_ratio));
        write!(text, "\n  {:name_width$} {:>14.2}{ratio} {:>12.0}", row.name, row.time_us, row.per_second)
            .ok();
        for us in row.latencies_us {
            write!(text, " {us:>10.1}").ok();
        }
        if let Some(Cpu { us, ratio }) = row.cpu {
            write!(text, " {us:>14.3}{}", ratio_of(ratio)).ok();
        }
    }
    write!(text, "\n  percentiles are of one {of}").ok();
    if has_cpu {
        write!(text, ", server CPU of one {}", work.cpu_unit()).ok();
    }
    text.push('\n');
    text
}

/// The same for programs.
pub(super) fn json(work: Work, plan: &Plan, rows: &[Row]) -> Value {
    let mut result = Map::new();
    result.insert("work".into(), work.name().into());
    result.insert("language".into(), work.language(plan.language).name().into());
    for (name, number) in [
        ("connections", plan.connections),
        ("depth", plan.depth),
        ("value_bytes", plan.value_bytes),
        ("operations", plan.operations),
        ("repetitions", plan.repetitions),
    ] {
        result.insert(name.into(), number.into());
    }
    result.insert("time_unit".into(), work.unit().into());
    result.insert("server_cpu_unit".into(), work.cpu_unit().into());
    result.insert("targets".into(), rows.iter().map(row_json).collect());
    if let Some((_, again)) = reference_again(rows) {
        result.insert("reference_steady".into(), STEADY.contains(&again.time_ratio).into());
    }
    Value::Object(result)
}

fn row_json(row: &Row) -> Value {
    let [p50, p90, p99, max] = row.latencies_us.map(rounded);
    json!({
        "name": row.name,
        "time_us": rounded(row.time_us),
        "time_ratio": rounded(row.time_ratio),
        "per_second": rounded(row.per_second),
        "p50_us": p50,
        "p90_us": p90,
        "p99_us": p99,
        "max_us": max,
        "server_cpu_us": row.cpu.map(|cpu| rounded(cpu.us)),
        "server_cpu_ratio": row.cpu.and_then(|cpu| cpu.ratio).map(rounded),
    })
}

fn rounded(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::super::work::Language;
    use super::*;
    use std::time::Duration;

    const PLAN: Plan = Plan {
        language: Language::C10d,
        connections: 2,
        depth: 4,
        value_bytes: 8,
        operations: 10,
        repetitions: 3,
        timeout: Duration::from_secs(1),
        after_use: super::super::Keys::Removed,
    };

    fn samples(times_ns: [f64; 3], cpu_ns: Option<f64>) -> Vec<Sample> {
        times_ns.map(|time_ns| Sample { time_ns, per_second: 1e9 / time_ns, cpu_ns }).to_vec()
    }

    fn measured(names_and_samples: &[(&str, Vec<Sample>)]) -> Vec<Row> {
        let mut latencies = Histogram::new();
        latencies.record(Duration::from_micros(3));
        rows_of(names_and_samples.iter().map(|(name, samples)| ((*name).into(), (&samples[..], &latencies))))
    }

    #[test]
    fn ratios_are_taken_repetition_by_repetition() {
        // The second target is twice as slow in each repetition, while the machine slowed down for both.
        let rows = measured(&[
            ("a", samples([1000.0, 2000.0, 9000.0], Some(500.0))),
            ("b", samples([2000.0, 4000.0, 18000.0], Some(750.0))),
        ]);
        assert!((rows[1].time_ratio - 2.0).abs() < 1e-9, "{rows:?}");
        assert!((rows[1].time_us - 4.0).abs() < 1e-9);
        assert!((rows[1].cpu.unwrap().ratio.unwrap() - 1.5).abs() < 1e-9);
        let text = table(Work::Add, &PLAN, &rows);
        assert!(text.starts_with("add, c10d: 2 connections, 10 operations each, depth 4"), "{text}");
        assert!(text.contains("percentiles are of one batch, server CPU of one operation"), "{text}");
    }

    #[test]
    fn a_reference_that_differs_from_itself_is_doubted() {
        let reference = || ("a", samples([1000.0; 3], None));
        let steady =
            measured(&[reference(), ("b", samples([3000.0; 3], None)), ("a2", samples([1040.0; 3], None))]);
        assert_eq!(unreliable(&steady), None);
        assert_eq!(json(Work::Add, &PLAN, &steady)["reference_steady"], json!(true));
        let unsteady = measured(&[reference(), ("a2", samples([1060.0; 3], None))]);
        assert!(unreliable(&unsteady).unwrap().starts_with("a2 came out at 1.06 of a"));
        assert_eq!(json(Work::Add, &PLAN, &unsteady)["reference_steady"], json!(false));
        let alone = measured(&[reference(), ("b", samples([3000.0; 3], None))]);
        assert_eq!(unreliable(&alone), None);
        assert_eq!(json(Work::Add, &PLAN, &alone).get("reference_steady"), None);
    }
}
