//! The report.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::life::Outcome;

/// Sentences shown of one blow.
const SHOWN: usize = 8;

/// Shows one blow.
pub fn line(number: usize, outcome: &Outcome) {
    println!(
        "{number:4}  {:30} {:6} acknowledged, {:4} for later, {:6} seen, {:5} unsynced changes, \
         {:5} refused{}{}",
        outcome.name,
        outcome.acknowledged,
        outcome.later,
        outcome.seen,
        outcome.pending,
        outcome.refused,
        many(outcome.lost, "lost as ASYNC_FLUSH may"),
        many(outcome.cut_starts as usize, "starts cut"),
    );
    for sentence in outcome.wrong.iter().take(SHOWN) {
        println!("      WRONG: {sentence}");
    }
    if outcome.wrong.len() > SHOWN {
        println!("      and {} more", outcome.wrong.len() - SHOWN);
    }
}

fn many(count: usize, what: &str) -> String {
    match count {
        0 => String::new(),
        count => format!(", {count} {what}"),
    }
}

/// Shows all blows by kind; true when nothing was wrong.
pub fn report(outcomes: &[Outcome], took: Duration) -> bool {
    let mut kinds: BTreeMap<&str, Vec<&Outcome>> = BTreeMap::new();
    for outcome in outcomes {
        kinds.entry(outcome.name).or_default().push(outcome);
    }
    println!();
    println!(
        "| blow | times | acknowledged | for later | seen | unsynced changes | refused | starts cut \
         | wrong |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for (name, all) in &kinds {
        row(name, all);
    }
    let every: Vec<&Outcome> = outcomes.iter().collect();
    row("all", &every);
    let wrong = every
        .iter()
        .map(|outcome| outcome.wrong.len())
        .sum::<usize>();
    let blows = outcomes.len();
    println!(
        "\n{blows} cuts and failures in {:.0} s, {wrong} wrong",
        took.as_secs_f64()
    );
    for outcome in every.iter().filter(|outcome| !outcome.wrong.is_empty()) {
        for sentence in outcome.wrong.iter().take(SHOWN) {
            println!("WRONG after {}: {sentence}", outcome.name);
        }
    }
    wrong == 0 && blows > 0
}

fn row(name: &str, outcomes: &[&Outcome]) {
    let sum = |of: fn(&Outcome) -> usize| outcomes.iter().map(|outcome| of(outcome)).sum::<usize>();
    println!(
        "| {name} | {} | {} | {} | {} | {} | {} | {} | {} |",
        outcomes.len(),
        sum(|outcome| outcome.acknowledged),
        sum(|outcome| outcome.later),
        sum(|outcome| outcome.seen),
        sum(|outcome| outcome.pending),
        sum(|outcome| outcome.refused as usize),
        sum(|outcome| outcome.cut_starts as usize),
        sum(|outcome| outcome.wrong.len()),
    );
}
