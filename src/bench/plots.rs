//! The plots of a report, as SVG.

use plotters::coord::Shift;
use plotters::coord::ranged1d::Ranged;
use plotters::prelude::*;

use super::BenchError;
use super::report::Report;

const SIZE: (u32, u32) = (920, 340);
const FONT: &str = "sans-serif";
const GREY: RGBColor = RGBColor(0x66, 0x66, 0x66);
/// Told apart by people who see few colours, too.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x00, 0x72, 0xB2),
    RGBColor(0xD5, 0x5E, 0x00),
    RGBColor(0x00, 0x9E, 0x73),
    RGBColor(0xCC, 0x79, 0xA7),
    RGBColor(0xE6, 0x9F, 0x00),
    RGBColor(0x56, 0xB4, 0xE9),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b, X, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, Y>>;
type Drawn = Result<(), String>;

/// A line of a plot.
struct Line {
    name: String,
    points: Vec<(f64, f64)>,
    /// Its place in [`COLOURS`], which repeat.
    colour: usize,
    /// Pixels of a dash and between two; `None`: drawn through.
    dashes: Option<(u32, u32)>,
}

/// How the lines of one report are told apart where the colour says which report it is.
const DASHES: [Option<(u32, u32)>; 3] = [Some((2, 4)), None, Some((9, 5))];

/// A report and the name it has in a plot.
pub type Named<'a> = (&'a str, &'a Report);

fn drawn(draw: impl FnOnce(&Area<'_>) -> Drawn) -> Result<String, BenchError> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        draw(&area)
            .and_then(|()| area.present().map_err(text))
            .map_err(|error| BenchError::System(format!("a plot: {error}")))?;
    }
    Ok(svg)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Messages per second over time, a line per report.
///
/// # Errors
/// [`BenchError::System`] when it cannot be drawn.
pub fn throughput(reports: &[Named<'_>]) -> Result<String, BenchError> {
    let lines = lines_of(reports, |report| {
        let points = report.series.iter().map(|s| (s.at, s.per_second));
        vec![(String::new(), points.collect())]
    });
    let room = if lines.len() > 1 { 1.4 } else { 1.1 };
    let top = extent(&lines, |point| point.1).1 * room;
    drawn(|area| {
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(80)
            .build_cartesian_2d(time(&lines), 0.0..top.max(1.0))
            .map_err(text)?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .x_desc("seconds since counting began")
            .y_desc("messages per second")
            .label_style((FONT, 13))
            .y_label_formatter(&|rate| grouped(*rate))
            .draw()
            .map_err(text)?;
        draw_lines(&mut chart, &lines)
    })
}

/// Latency over time: p50, p99 and the maximum of each report.
///
/// # Errors
/// [`BenchError::System`] when it cannot be drawn.
pub fn latency(reports: &[Named<'_>]) -> Result<String, BenchError> {
    let lines = lines_of(reports, |report| {
        let of = |index: usize| {
            let samples = report.series.iter().filter(|s| s.latency_us[3] > 0);
            let point = |s: &super::monitor::Sample| (s.at, s.latency_us[index] as f64);
            samples.map(point).collect()
        };
        ["p50", "p99", "max"]
            .into_iter()
            .zip([0, 1, 3].map(of))
            .map(|(name, points)| (name.to_owned(), points))
            .collect()
    });
    drawn(|area| {
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(80)
            .build_cartesian_2d(time(&lines), latencies(&lines).log_scale())
            .map_err(text)?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .x_desc("seconds since counting began")
            .y_desc("latency")
            .y_labels(6)
            .label_style((FONT, 13))
            .y_label_formatter(&|us| short(*us))
            .draw()
            .map_err(text)?;
        draw_lines(&mut chart, &lines)
    })
}

/// Latency by percentile; the axis gives each further nine the same room.
///
/// # Errors
/// [`BenchError::System`] when it cannot be drawn.
pub fn percentiles(reports: &[Named<'_>]) -> Result<String, BenchError> {
    let lines = lines_of(reports, |report| {
        let below = report
            .curve
            .iter()
            .filter(|(percentile, _)| *percentile < 100.0);
        let points = below.map(|(percentile, us)| (100.0 / (100.0 - percentile), *us as f64));
        vec![(String::new(), points.collect())]
    });
    let right = extent(&lines, |point| point.0).1.max(100.0);
    drawn(|area| {
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(80)
            .build_cartesian_2d((1.0..right).log_scale(), latencies(&lines).log_scale())
            .map_err(text)?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .x_desc("percentile")
            .y_desc("latency")
            .y_labels(6)
            .label_style((FONT, 13))
            .x_label_formatter(&|share| percentile(*share))
            .y_label_formatter(&|us| short(*us))
            .draw()
            .map_err(text)?;
        draw_lines(&mut chart, &lines)
    })
}

/// The name of the percentile that one of so many lies above.
fn percentile(share: f64) -> String {
    let text = format!("{:.5}", 100.0 - 100.0 / share);
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text} %")
}

/// Microseconds at an axis, where they are round.
fn short(us: f64) -> String {
    let (number, unit) = match us {
        ..1e3 => (us, "us"),
        1e3..1e6 => (us / 1e3, "ms"),
        _ => (us / 1e6, "s"),
    };
    format!("{} {unit}", (number * 100.0).round() / 100.0)
}

/// A number with its thousands apart.
pub fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        let left = digits.len() - index;
        if index > 0 && left.is_multiple_of(3) && !text.ends_with('-') {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn lines_of(
    reports: &[Named<'_>],
    lines: impl Fn(&Report) -> Vec<(String, Vec<(f64, f64)>)>,
) -> Vec<Line> {
    let mut all = Vec::new();
    for (of_report, (name, report)) in reports.iter().enumerate() {
        let lines = lines(report);
        let by_dashes = reports.len() > 1 && lines.len() > 1;
        for (of_line, (line, points)) in lines.into_iter().enumerate() {
            all.push(Line {
                name: format!("{name} {line}").trim().to_owned(),
                points,
                colour: of_report.max(if by_dashes { 0 } else { of_line }),
                dashes: DASHES[of_line % DASHES.len()].filter(|_| by_dashes),
            });
        }
    }
    all
}

/// The least and the greatest of something, of all points.
fn extent(lines: &[Line], of: impl Fn(&(f64, f64)) -> f64) -> (f64, f64) {
    let values = lines.iter().flat_map(|line| line.points.iter().map(&of));
    let around = |(low, high): (f64, f64), value: f64| (low.min(value), high.max(value));
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), around);
    if low <= high { (low, high) } else { (0.0, 1.0) }
}

fn time(lines: &[Line]) -> std::ops::Range<f64> {
    let (from, to) = extent(lines, |point| point.0);
    from..to.max(from + 1.0)
}

fn latencies(lines: &[Line]) -> std::ops::Range<f64> {
    let (low, high) = extent(lines, |point| point.1);
    // Room for the names of lines above them.
    let room = match lines.len() {
        0..=1 => 1.25,
        number => 4_f64.powf(number.max(3) as f64 / 3.0),
    };
    low.max(1.0) * 0.8..(high.max(1.0) * room).max(low * 2.0)
}

fn draw_lines<'a, X, Y>(chart: &mut Chart<'a, 'a, X, Y>, lines: &[Line]) -> Drawn
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
    SVGBackend<'a>: DrawingBackend,
{
    for line in lines {
        let style = COLOURS[line.colour % COLOURS.len()].stroke_width(2);
        let points = line.points.iter().copied();
        let drawn = match line.dashes {
            Some((dash, gap)) if points.len() > 1 => {
                let dashed = DashedLineSeries::new(points, dash, gap, style);
                chart.draw_series(dashed).map_err(text)?
            }
            _ => {
                // One point makes no line.
                let dot = if points.len() == 1 { 4 } else { 0 };
                let filled = if dot > 0 { style.filled() } else { style };
                let series = LineSeries::new(points, filled).point_size(dot);
                chart.draw_series(series).map_err(text)?
            }
        };
        if line.name.is_empty() {
            continue;
        }
        let named = drawn.label(line.name.clone());
        let (dash, gap) = line.dashes.unwrap_or((20, 0));
        named.legend(move |(x, y)| {
            let across = [(x, y), (x + 20, y)];
            plotters::element::DashedPathElement::new(across, dash, gap, style)
        });
    }
    if lines.iter().any(|line| !line.name.is_empty()) {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .label_font((FONT, 13))
            .background_style(WHITE.mix(0.8))
            .border_style(GREY.mix(0.4))
            .draw()
            .map_err(text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_percentiles_are_written_as_people_do() {
        for (number, text) in [
            (0.0, "0"),
            (999.0, "999"),
            (1e3, "1,000"),
            (-1e6, "-1,000,000"),
        ] {
            assert_eq!(grouped(number), text);
        }
        for (us, text) in [(200.0, "200 us"), (1e3, "1 ms"), (2.5e6, "2.5 s")] {
            assert_eq!(short(us), text);
        }
        for (share, text) in [(1.0, "0 %"), (10.0, "90 %"), (10_000.0, "99.99 %")] {
            assert_eq!(percentile(share), text);
        }
    }

    #[test]
    fn a_run_without_a_message_has_plots_too() {
        let empty = Report::default();
        for plot in [throughput, latency, percentiles] {
            assert!(plot(&[("a", &empty)]).unwrap().starts_with("<svg"));
        }
    }

    fn one_interval() -> Report {
        Report {
            series: vec![super::super::monitor::Sample {
                at: 0.0,
                per_second: 9.0,
                errors: 0,
                latency_us: [100, 200, 300, 400],
            }],
            curve: vec![(50.0, 100)],
            ..Report::default()
        }
    }

    #[test]
    fn a_single_interval_is_seen() {
        for plot in [throughput, latency, percentiles] {
            let svg = plot(&[("", &one_interval())]).unwrap();
            assert!(svg.contains("<circle"), "{svg}");
        }
    }

    #[test]
    fn reports_have_a_colour_each_and_their_lines_a_dash() {
        let mut long = one_interval();
        long.series
            .extend([1.0, 2.0].map(|at| super::super::monitor::Sample {
                at,
                ..one_interval().series[0]
            }));
        let lines = lines_of(&[("a", &long), ("b", &long)], |_| {
            ["p50", "p99"].map(|name| (name.to_owned(), vec![])).into()
        });
        let look = lines
            .iter()
            .map(|line| (&*line.name, line.colour, line.dashes.is_some()));
        let expected = [
            ("a p50", 0, true),
            ("a p99", 0, false),
            ("b p50", 1, true),
            ("b p99", 1, false),
        ];
        assert!(look.eq(expected));
        assert!(
            latency(&[("a", &long), ("b", &long)])
                .unwrap()
                .contains("b max")
        );
    }
}
