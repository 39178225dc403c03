//! Several reports side by side: ratios, and how much they differ from run to run.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Serialize;

use super::plots::grouped;
use super::report::Report;
use super::{BenchError, counted, page};

/// A number that reports have: its name, whether more of it is better, and where it is.
type Metric = (&'static str, bool, fn(&Report) -> Option<f64>);

const METRICS: [Metric; 20] = [
    ("messages/s", true, |report| Some(report.per_second)),
    ("p50 us", false, |report| latency(report, 0)),
    ("p90 us", false, |report| latency(report, 1)),
    ("p99 us", false, |report| latency(report, 2)),
    ("p99.9 us", false, |report| latency(report, 3)),
    ("p99.99 us", false, |report| latency(report, 4)),
    ("max us", false, |report| latency(report, 5)),
    ("p99.9, times the mean", false, |report| {
        Some(latency(report, 3)? / report.mean_us.max(1e-9))
    }),
    ("broker CPU us/message", false, |report| {
        report.cost.broker_cpu_us
    }),
    ("written per byte", false, |report| {
        report.cost.broker_written_per_byte
    }),
    ("log written per byte", false, |report| {
        report.cost.broker_log_per_byte
    }),
    ("zeros written per byte", false, |report| {
        report.cost.broker_zeros_per_byte
    }),
    ("queues, index per byte", false, |report| {
        report.cost.broker_rest_per_byte
    }),
    ("broker sleeps/message", false, |report| {
        report.cost.broker_switches
    }),
    ("broker preempted/message", false, |report| {
        report.cost.broker_preempted
    }),
    ("broker anonymous MiB", false, |report| {
        mib(report.cost.broker_anonymous_bytes)
    }),
    ("broker mapped MiB", false, |report| {
        mib(report.cost.broker_file_bytes)
    }),
    ("broker peak RSS MiB", false, |report| {
        mib(report.cost.broker_peak_bytes)
    }),
    ("client CPU us/message", false, |report| {
        report.cost.client_cpu_us
    }),
    ("faults", false, |report| {
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
    pub name: String,
    /// By file.
    pub values: Vec<Option<Spread>>,
    /// By file from the second on: how many times that of the first file, run by run. Against the
    /// best: only of the last file.
    pub ratios: Vec<Option<Spread>>,
    /// What it should be, and whether it is; nothing when no target names it.
    pub targets: Vec<(String, Option<bool>)>,
}

/// What ratios are to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// The first file.
    First,
    /// The better of all files but the last, in each number and round; only the last is judged.
    Best,
}

/// What a number of the last file should be: `messages/s>=18x` (a ratio) or `max us<=900`.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    name: String,
    at_least: bool,
    number: f64,
    is_ratio: bool,
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("\"{text}\" is not NAME>=NUMBER, NAME<=NUMBER or such a NUMBERx");
        let (name, number, at_least) = match (text.split_once(">="), text.split_once("<=")) {
            (Some((name, number)), None) => (name, number, true),
            (None, Some((name, number))) => (name, number, false),
            _ => return Err(wrong()),
        };
        let ratio = number.strip_suffix('x');
        let parsed = ratio.unwrap_or(number).parse::<f64>();
        Ok(Self {
            name: name.to_owned(),
            at_least,
            number: parsed.map_err(|_| wrong())?,
            is_ratio: ratio.is_some(),
        })
    }
}

impl Wanted {
    /// What is wanted, and whether it came: judged by the median.
    fn judge(&self, value: Option<Spread>, ratio: Option<Spread>) -> (String, Option<bool>) {
        let sign = if self.at_least { ">=" } else { "<=" };
        let (unit, is) = if self.is_ratio {
            ("x", ratio)
        } else {
            ("", value)
        };
        let met = is.map(|is| {
            if self.at_least {
                is.median >= self.number
            } else {
                is.median <= self.number
            }
        });
        let shown = (self.number * 1e4).round() / 1e4;
        (format!("{sign} {shown}{unit}"), met)
    }
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

/// Compares the runs of each file with those of the base: the n-th with the n-th, since machines
/// drift. The details of the last file's load come behind the numbers that all loads have.
///
/// # Errors
/// [`BenchError::System`] when something is wanted of a number that no report has.
pub fn rows(files: &[Runs], base: Base, wanted: &[Wanted]) -> Result<Vec<Row>, BenchError> {
    let mut rows = Vec::new();
    let last = files.last().and_then(|runs| runs.reports.first());
    let details: Vec<_> = last.iter().flat_map(|report| &report.details).collect();
    for wanted in wanted {
        let known = METRICS.iter().map(|(name, ..)| *name);
        let known: Vec<_> = known
            .chain(details.iter().map(|(name, _)| &**name))
            .collect();
        if !known.contains(&&*wanted.name) {
            return Err(BenchError::System(format!(
                "--target {}: no such number in the last file; there are {}",
                wanted.name,
                known.join(", ")
            )));
        }
    }
    for (name, more_is_better, get) in METRICS {
        rows.extend(row(name, more_is_better, &get, files, base, wanted));
    }
    for (name, _) in details {
        let get = |report: &Report| {
            let mut details = report.details.iter();
            details.find(|(known, _)| known == name).map(|(_, n)| *n)
        };
        rows.extend(row(name, false, &get, files, base, wanted));
    }
    Ok(rows)
}

/// One row, unless no report has that number and nothing is wanted of it.
fn row(
    name: &str,
    more_is_better: bool,
    get: &dyn Fn(&Report) -> Option<f64>,
    files: &[Runs],
    base: Base,
    wanted: &[Wanted],
) -> Option<Row> {
    let numbers = |runs: &Runs| runs.reports.iter().map(get).collect::<Vec<_>>();
    let numbers: Vec<_> = files.iter().map(numbers).collect();
    let spread = |of: &Vec<Option<f64>>| Spread::of(of.iter().flatten().copied().collect());
    let values: Vec<_> = numbers.iter().map(spread).collect();
    let mut mine = wanted
        .iter()
        .filter(|wanted| wanted.name == name)
        .peekable();
    if values.iter().all(Option::is_none) && mine.peek().is_none() {
        return None;
    }
    let (bases, judged) = match base {
        Base::Best if numbers.len() == 1 => numbers.split_at(1),
        Base::First => numbers.split_at(1),
        Base::Best => numbers.split_at(numbers.len() - 1),
    };
    let base_of = |round: usize| {
        let of_round = bases.iter().filter_map(|of| *of.get(round)?);
        let better = |a: f64, b: f64| if more_is_better { a.max(b) } else { a.min(b) };
        of_round.reduce(better)
    };
    let ratio = |of: &Vec<Option<f64>>| {
        let ratios = of.iter().enumerate().filter_map(|(round, number)| {
            let base = base_of(round).filter(|base| *base > 0.0)?;
            Some((*number)? / base)
        });
        Spread::of(ratios.collect())
    };
    let ratios: Vec<_> = judged.iter().map(ratio).collect();
    let (value, ratio) = (*values.last()?, ratios.last().copied().flatten());
    Some(Row {
        name: name.to_owned(),
        targets: mine.map(|wanted| wanted.judge(value, ratio)).collect(),
        values,
        ratios,
    })
}

/// The rows as texts, below a row of headings.
pub fn table(files: &[Runs], rows: &[Row], base: Base) -> Vec<Vec<String>> {
    let first = &files[0].name;
    let mut heading = vec![String::new()];
    let runs = |runs: &Runs| {
        let number = runs.reports.len();
        format!("{} ({})", runs.name, counted(number as u64, "run"))
    };
    heading.extend(files.iter().map(runs));
    let last = files.last().map_or("", |runs| &runs.name);
    match base {
        Base::First => {
            let ratio = |runs: &Runs| format!("{} / {first}", runs.name);
            heading.extend(files[1..].iter().map(ratio));
        }
        Base::Best if files.len() == 1 => {}
        Base::Best => heading.push(format!("{last} / the better other")),
    }
    let has_targets = rows.iter().any(|row| !row.targets.is_empty());
    if has_targets {
        heading.push("target".to_owned());
    }
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
        let mut line = vec![row.name.clone()];
        line.extend(row.values.iter().map(|value| shown(value, &number)));
        line.extend(
            row.ratios
                .iter()
                .map(|ratio| shown(ratio, &|value| format!("{value:.3}"))),
        );
        let target = |(text, met): &(String, Option<bool>)| match met {
            Some(true) => format!("{text} met"),
            Some(false) => format!("{text} MISSED"),
            None => format!("{text} not measured"),
        };
        if has_targets {
            let targets: Vec<_> = row.targets.iter().map(target).collect();
            line.push(targets.join("; "));
        }
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
        if runs
            .reports
            .iter()
            .any(|report| report.rate_kept == Some(false))
        {
            doubts.push(format!("{} did not keep the rate of each run", runs.name));
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
        let rows = rows(&files, Base::First, &[]).unwrap();
        assert_eq!(rows.len(), 1, "what no report has is left out");
        let ratio = rows[0].ratios[0].unwrap();
        assert_eq!((ratio.median, ratio.least, ratio.greatest), (4.0, 4.0, 5.0));
        let text = text(&table(&files, &rows, Base::First));
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
    fn targets_are_judged_against_the_better_of_the_others() {
        let files = [
            runs("a", &[100.0, 50.0]),
            runs("b", &[60.0, 80.0]),
            runs("ours", &[1000.0, 800.0]),
        ];
        let wanted = ["messages/s>=10x", "messages/s<=5", "p50 us<=1x"];
        let wanted = wanted.map(|text| text.parse().unwrap());
        let rows = rows(&files, Base::Best, &wanted).unwrap();
        assert_eq!(rows[0].ratios.len(), 1);
        assert_eq!(rows[0].ratios[0].unwrap().median, 10.0);
        let met: Vec<_> = rows[0].targets.iter().map(|(_, met)| *met).collect();
        assert_eq!(met, [Some(true), Some(false)]);
        let text = text(&table(&files, &rows, Base::Best));
        assert!(
            text.contains("ours / the better other") && text.contains(">= 10x met; <= 5 MISSED"),
            "{text}"
        );
        for wrong in ["messages/s", "a=5", "a>=b", "a>=1<=2"] {
            assert!(wrong.parse::<Wanted>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_target_for_a_number_that_no_report_has_is_refused_and_named() {
        let mut ours = runs("ours", &[1000.0]);
        let detail = ("10 topics, times one".to_owned(), 0.9);
        ours.reports[0].details.push(detail);
        let files = [runs("a", &[100.0]), ours];
        let judged = |text: &str| rows(&files, Base::Best, &[text.parse().unwrap()]);
        for wrong in [
            "message/s>=1",
            "drain:messages/s>=1",
            "100 topics, times one>=1",
        ] {
            let said = judged(wrong).unwrap_err().to_string();
            let (name, _) = wrong.split_once('>').unwrap();
            assert!(said.contains(name) && said.contains("p99.9 us"), "{said}");
        }
        let rows = judged("10 topics, times one>=0.9").unwrap();
        assert_eq!(rows[1].targets, [(">= 0.9".to_owned(), Some(true))]);
        // A number that exists and was not measured is told, not left out.
        let rows = judged("log written per byte<=2").unwrap();
        assert_eq!(rows[1].targets, [("<= 2".to_owned(), None)]);
        let text = text(&table(&files, &rows, Base::Best));
        assert!(text.contains("<= 2 not measured"), "{text}");
    }

    #[test]
    fn the_middle_of_an_even_number_lies_between_two() {
        assert_eq!(Spread::of(vec![4.0, 1.0]).map(|s| s.median), Some(2.5));
        assert_eq!(Spread::of(Vec::new()), None);
    }
}
