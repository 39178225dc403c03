//! A report as one HTML page that needs nothing else.

use std::fmt::Write;

use super::plots::{self, Named, grouped};
use super::report::Report;
use super::{BenchError, shown_us};

const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;color:#222;background:#fff;margin:2rem auto;padding:0 1rem;\
max-width:960px}\
h1{font-size:1.5rem;margin-bottom:.2rem}h2{font-size:1.1rem;margin:2rem 0 .4rem}\
table{border-collapse:collapse}td,th{padding:.2rem .9rem .2rem 0;text-align:left;\
vertical-align:top;border-bottom:1px solid #eee}td.n,th.n{text-align:right}\
td{overflow-wrap:anywhere}td:first-child{white-space:nowrap}\
.good{color:#00734f}.bad{color:#b3261e}.muted{color:#666}svg{max-width:100%;height:auto}\
.facts{display:flex;flex-wrap:wrap;gap:1.6rem;margin:1rem 0}\
.facts b{display:block;font-size:1.4rem}";

/// Text that may stand in HTML.
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            _ => safe.push(letter),
        }
    }
    safe
}

/// The page of one run.
///
/// # Errors
/// [`BenchError::System`] when a plot cannot be drawn.
pub fn of_run(report: &Report) -> Result<String, BenchError> {
    let mut body = String::new();
    let title = format!("saturnmq bench {}", report.load);
    head(&mut body, &title, &report.options);
    verdict(&mut body, "", report);
    facts(&mut body, report);
    plots_of(&mut body, &[("", report)])?;
    percentile_table(&mut body, report);
    let cost = cost_rows(report);
    table(&mut body, "Cost", &cost);
    let details = report.details.iter();
    let details: Vec<_> = details
        .map(|(name, number)| (name.clone(), format!("{number:.2}")))
        .collect();
    table(&mut body, "Details", &details);
    table(&mut body, "Environment", &report.environment.0);
    Ok(whole(&title, &body))
}

/// The page of a comparison: its table, the plots over each other, and where each was measured.
///
/// # Errors
/// [`BenchError::System`] when a plot cannot be drawn.
pub fn of_comparison(rows: &[Vec<String>], reports: &[Named<'_>]) -> Result<String, BenchError> {
    let mut body = String::new();
    let title = "saturnmq bench compare";
    head(
        &mut body,
        title,
        "Plots show the run of median throughput of each file.",
    );
    for (name, report) in reports {
        verdict(&mut body, name, report);
    }
    body.push_str("<table>");
    for (index, row) in rows.iter().enumerate() {
        body.push_str("<tr>");
        let cell = if index == 0 { "th" } else { "td" };
        for (column, text) in row.iter().enumerate() {
            let class = if column > 0 { " class=n" } else { "" };
            push(
                &mut body,
                format_args!("<{cell}{class}>{}</{cell}>", escaped(text)),
            );
        }
        body.push_str("</tr>");
    }
    body.push_str("</table>");
    plots_of(&mut body, reports)?;
    for (name, report) in reports {
        let heading = format!("{name}: {}", report.options);
        table(&mut body, &heading, &report.environment.0);
    }
    Ok(whole(title, &body))
}

fn push(to: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = to.write_fmt(text);
}

fn whole(title: &str, body: &str) -> String {
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8>\
         <meta name=viewport content=\"width=device-width\"><title>{}</title>\
         <style>{STYLE}</style><body>{body}</body></html>\n",
        escaped(title)
    )
}

fn head(to: &mut String, title: &str, below: &str) {
    let (title, below) = (escaped(title), escaped(below));
    push(
        to,
        format_args!("<h1>{title}</h1><p class=muted>{below}</p>"),
    );
}

fn verdict(to: &mut String, name: &str, report: &Report) {
    let name = escaped(name);
    if report.verdict().is_ok() && name.is_empty() {
        let checked = escaped(&report.checked);
        push(
            to,
            format_args!("<p class=good>Nothing was wrong. Checked: {checked}.</p>"),
        );
    }
    for (kind, number) in report.faults.iter() {
        let kind = escaped(kind);
        push(
            to,
            format_args!("<p class=bad>{name} fault: {number} &times; {kind}</p>"),
        );
    }
    for warning in &report.warnings {
        let warning = escaped(warning);
        push(
            to,
            format_args!("<p class=bad>{name} warning: {warning}</p>"),
        );
    }
    if report.interrupted {
        push(to, format_args!("<p class=bad>{name} cut short</p>"));
    }
}

fn facts(to: &mut String, report: &Report) {
    let [p50, _, p99, p999, _, max] = report.latency_us.map(shown_us);
    let mib = report.bytes_per_second / 1_048_576.0;
    let mut facts = vec![
        ("messages/s", grouped(report.per_second)),
        ("MiB/s", format!("{mib:.1}")),
        ("p50", p50),
        ("p99", p99),
        ("p99.9", p999),
        ("max", max),
    ];
    if let Some(due) = report.due_per_second {
        facts.insert(1, ("due/s", grouped(due)));
    }
    if let Some(cpu) = report.cost.broker_cpu_us {
        facts.push(("broker CPU/message", format!("{cpu:.1} us")));
    }
    to.push_str("<div class=facts>");
    for (name, value) in facts {
        push(to, format_args!("<div><b>{value}</b>{name}</div>"));
    }
    to.push_str("</div>");
    push(
        to,
        format_args!(
            "<p class=muted>{} messages in {:.1} s; latency from {}</p>",
            grouped(report.messages as f64),
            report.seconds,
            escaped(&report.latency_of)
        ),
    );
}

fn plots_of(to: &mut String, reports: &[Named<'_>]) -> Result<(), BenchError> {
    for (heading, plot) in [
        ("Throughput over time", plots::throughput(reports)?),
        ("Latency by percentile", plots::percentiles(reports)?),
        ("Latency over time", plots::latency(reports)?),
    ] {
        push(to, format_args!("<h2>{heading}</h2>{plot}"));
    }
    Ok(())
}

fn percentile_table(to: &mut String, report: &Report) {
    let names = ["p50", "p90", "p99", "p99.9", "p99.99", "max"];
    let values = report.latency_us.map(shown_us);
    let rows: Vec<_> = names.map(str::to_owned).into_iter().zip(values).collect();
    table(to, "Latency", &rows);
}

fn cost_rows(report: &Report) -> Vec<(String, String)> {
    let cost = &report.cost;
    let mib = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64 / 1_048_576.0);
    [
        ("broker CPU per message, us", cost.broker_cpu_us),
        ("broker CPUs busy", cost.broker_cores),
        (
            "bytes written per byte of body",
            cost.broker_written_per_byte,
        ),
        ("of these, to the commit log", cost.broker_log_per_byte),
        (
            "of these, zeros for its next files",
            cost.broker_zeros_per_byte,
        ),
        (
            "of these, queues, index and others",
            cost.broker_rest_per_byte,
        ),
        ("broker sleeps per message", cost.broker_switches),
        ("broker preempted per message", cost.broker_preempted),
        (
            "broker anonymous memory, MiB",
            mib(cost.broker_anonymous_bytes),
        ),
        ("broker mapped file pages, MiB", mib(cost.broker_file_bytes)),
        ("broker resident peak, MiB", mib(cost.broker_peak_bytes)),
        ("load generator CPU per message, us", cost.client_cpu_us),
        ("load generator CPUs busy", cost.client_cores),
        (
            "machine busy, %",
            cost.machine_busy.map(|share| share * 100.0),
        ),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name.to_owned(), format!("{:.2}", value?))))
    .collect()
}

fn table(to: &mut String, heading: &str, rows: &[(String, String)]) {
    if rows.is_empty() {
        return;
    }
    push(to, format_args!("<h2>{}</h2><table>", escaped(heading)));
    for (name, value) in rows {
        let (name, value) = (escaped(name), escaped(value));
        push(to, format_args!("<tr><td>{name}</td><td>{value}</td></tr>"));
    }
    to.push_str("</table>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_broker_says_cannot_become_markup() {
        let mut report = Report {
            load: "<b>".to_owned(),
            ..Report::default()
        };
        report
            .faults
            .count("<script>alert('x')</script> & \"more\"");
        let page = of_run(&report).unwrap();
        assert!(!page.contains("<script") && !page.contains("<b>&"));
        assert!(page.contains("&lt;script&gt;alert(&#39;x&#39;)"));
        assert!(
            !page.contains("src=") && !page.contains("href="),
            "it needs nothing else"
        );
    }
}
