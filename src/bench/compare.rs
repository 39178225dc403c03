//! Several reports side by side: ratios, and how much they differ from run to run.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::plots::grouped;
use super::report::Report;
use super::{BenchError, page};

/// A number that reports have: its name, and where it is.
type Metric = (&'static str, fn(&Report) -> Option<f64>);

const METRICS: [Metric; 14] = [
    ("messages/s", |report| Some(report.per_second)),
    ("p50 us", |report| latency(report, 0)),
    ("p90 us", |report| latency(report, 1)),
    ("p99 us", |report| latency(report, 2)),
    ("p99.9 us", |report| latency(report, 3)),
    ("p99.99 us", |report| latency(report, 4)),
    ("max us", |report| latency(report, 5)),
    ("broker CPU us/message", |report| report.cost.broker_cpu_us),
    ("written per byte", |report| {
        report.cost.broker_written_per_byte
    }),
    ("broker sleeps/message", |report| {
        report.cost.broker_switches
    }),
    ("broker anonymous MiB", |report| {
        mib(report.cost.broker_anonymous_bytes)
    }),
    ("broker mapped MiB", |report| {
        mib(report.cost.broker_file_bytes)
    }),
    ("client CPU us/message", |report| report.cost.client_cpu_us),
    ("faults", |report| {
        let faults = report.faults.total();
        (faults > 0).then_some(faults as f64)
    }),
];

fn latency(report: &Report, index: usize) -> Option<f64> {
    (!report.curve.is_empty()).then_some(report.latency_us[index] as f64)
}

fn mib(bytes: Option<u64>) -> Option<f64> {
    bytes.map(|bytes| bytes as f64 / 1_048_576.0)
}

/// The middle of some numbers and their ends.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// The middle one.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The greatest.
    pub greatest: f64,
}

impl Spread {
    /// Of some numbers; `None` of none.
    fn of(mut numbers: Vec<f64>) -> Option<Self> {
        numbers.sort_by(f64::total_cmp);
        let middle = numbers.len() / 2;
        let median = if numbers.len() % 2 == 1 {
            *numbers.get(middle)?
        } else {
            (numbers.get(middle.checked_sub(1)?)? + numbers.get(middle)?) / 2.0
        };
        Some(Self {
            median,
            least: *numbers.first()?,
            greatest: *numbers.last()?,
        })
    }

    fn shown(&self, number: impl Fn(f64) -> String) -> String {
        let [median, least, greatest] = [self.median, self.least, self.greatest].map(number);
        if least == greatest {
            median
        } else {
            format!("{median} ({least}-{greatest})")
        }
    }
}

/// The runs of one file.
#[derive(Debug, Clone)]
pub struct Runs {
    /// The file's name.
    pub name: String,
    /// In the order in which they were measured.
    pub reports: Vec<Report>,
}

/// One number of all files.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// What it is.
    pub name: &'static str,
    /// By file.
    pub values: Vec<Option<Spread>>,
    /// By file from the second on: how many times that of the first file, run by run.
    pub ratios: Vec<Option<Spread>>,
}

/// Reads the reports of a file: JSON objects one after the other.
///
/// # Errors
/// [`BenchError::System`] when it cannot be read or holds none.
pub fn read(path: &Path) -> Result<Runs, BenchError> {
    let failed = |why: String| BenchError::System(format!("{}: {why}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    let reports: Vec<Report> = serde_json::Deserializer::from_str(&text)
        .into_iter()
        .collect::<Result<_, _>>()
        .map_err(|error| failed(error.to_string()))?;
    if reports.is_empty() || reports.iter().any(|report| report.load.is_empty()) {
        return Err(failed("no report of saturnmq bench --json".to_owned()));
    }
    let name = path.file_stem().unwrap_or(path.as_os_str());
    Ok(Runs {
        name: name.to_string_lossy().into_owned(),
        reports,
    })
}

/// Compares the runs of each file with those of the first: the n-th with the n-th, since machines
/// drift.
pub fn rows(files: &[Runs]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, get) in METRICS {
        let spread = |runs: &Runs| Spread::of(runs.reports.iter().filter_map(get).collect());
        let values: Vec<_> = files.iter().map(spread).collect();
        if values.iter().all(Option::is_none) {
            continue;
        }
        let ratio = |runs: &Runs| {
            let pairs = files[0].reports.iter().zip(&runs.reports);
            let ratios = pairs.filter_map(|(base, other)| {
                let (base, other) = (get(base)?, get(other)?);
                (base > 0.0).then(|| other / base)
            });
            Spread::of(ratios.collect())
        };
        rows.push(Row {
            name,
            values,
            ratios: files[1..].iter().map(ratio).collect(),
        });
    }
    rows
}

/// The rows as texts, below a row of headings.
pub fn table(files: &[Runs], rows: &[Row]) -> Vec<Vec<String>> {
    let first = &files[0].name;
    let mut heading = vec![String::new()];
    let runs = |runs: &Runs| format!("{} ({} runs)", runs.name, runs.reports.len());
    heading.extend(files.iter().map(runs));
    heading.extend(
        files[1..]
            .iter()
            .map(|runs| format!("{} / {first}", runs.name)),
    );
    let mut lines = vec![heading];
    let number = |value: f64| {
        if value >= 100.0 {
            grouped(value)
        } else {
            format!("{value:.2}")
        }
    };
    let shown = |value: &Option<Spread>, number: &dyn Fn(f64) -> String| {
        value.map_or_else(|| "-".to_owned(), |value| value.shown(number))
    };
    for row in rows {
        let mut line = vec![row.name.to_owned()];
        line.extend(row.values.iter().map(|value| shown(value, &number)));
        line.extend(
            row.ratios
                .iter()
                .map(|ratio| shown(ratio, &|value| format!("{value:.3}"))),
        );
        lines.push(line);
    }
    lines
}

/// A table for people: columns as wide as they must be.
pub fn text(table: &[Vec<String>]) -> String {
    let mut text = String::new();
    let columns = table.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells = table.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in table {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            if column == 0 {
                text.push_str(&format!("{cell:<width$}"));
            } else {
                text.push_str(&format!("  {cell:>width$}"));
            }
        }
        text.push('\n');
    }
    text
}

/// What throws doubt on the comparison.
pub fn doubts(files: &[Runs]) -> Vec<String> {
    let mut doubts = Vec::new();
    let first = &files[0].reports[0];
    for runs in files {
        if runs.reports.len() != files[0].reports.len() {
            doubts.push(format!("{} has another number of runs", runs.name));
        }
        for report in &runs.reports {
            if (&report.load, &report.options) != (&first.load, &first.options) {
                let (name, options) = (&runs.name, &report.options);
                doubts.push(format!(
                    "{name} is of another load: {} {options}",
                    report.load
                ));
                break;
            }
        }
    }
    doubts
}

/// The page of the comparison.
///
/// # Errors
/// [`BenchError::System`] when a plot cannot be drawn.
pub fn page(files: &[Runs], table: &[Vec<String>]) -> Result<String, BenchError> {
    let typical = |runs: &Runs| {
        let mut order: Vec<usize> = (0..runs.reports.len()).collect();
        let rate = |index: &usize| runs.reports[*index].per_second;
        order.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
        order[order.len() / 2]
    };
    let reports: Vec<_> = files
        .iter()
        .map(|runs| (runs.name.as_str(), &runs.reports[typical(runs)]))
        .collect();
    page::of_comparison(table, &reports)
}

/// Reads all files.
///
/// # Errors
/// [`BenchError::System`] when one of them holds no report.
pub fn read_all(paths: &[PathBuf]) -> Result<Vec<Runs>, BenchError> {
    paths.iter().map(|path| read(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(name: &str, rates: &[f64]) -> Runs {
        let report = |rate: &f64| Report {
            per_second: *rate,
            ..Report::default()
        };
        Runs {
            name: name.to_owned(),
            reports: rates.iter().map(report).collect(),
        }
    }

    #[test]
    fn ratios_are_of_runs_of_one_round() {
        // The machine was half as fast in the second round: both brokers were.
        let files = [
            runs("a", &[100.0, 50.0, 90.0]),
            runs("b", &[400.0, 200.0, 450.0]),
        ];
        let rows = rows(&files);
        assert_eq!(rows.len(), 1, "what no report has is left out");
        let ratio = rows[0].ratios[0].unwrap();
        assert_eq!((ratio.median, ratio.least, ratio.greatest), (4.0, 4.0, 5.0));
        let text = text(&table(&files, &rows));
        assert!(
            text.contains("b / a") && text.contains("4.000 (4.000-5.000)"),
            "{text}"
        );
        assert!(doubts(&files).is_empty());
        assert_eq!(
            doubts(&[runs("a", &[1.0]), runs("b", &[1.0, 2.0])]).len(),
            1
        );
    }

    #[test]
    fn the_middle_of_an_even_number_lies_between_two() {
        assert_eq!(Spread::of(vec![4.0, 1.0]).map(|s| s.median), Some(2.5));
        assert_eq!(Spread::of(Vec::new()), None);
    }
}
