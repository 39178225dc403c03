//! What went wrong in a run, by kind.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::BenchError;

/// Kinds of errors that are counted apart.
const MAX_KINDS: usize = 20;

/// What went wrong, by kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults(BTreeMap<String, u64>);

impl Faults {
    /// Counts one of a kind.
    pub fn count(&mut self, kind: &str) {
        self.count_many(kind, 1);
    }

    /// Counts some of a kind; none is not a fault.
    pub fn count_many(&mut self, kind: &str, number: u64) {
        if number == 0 {
            return;
        }
        if let Some(known) = self.0.get_mut(kind) {
            *known += number;
        } else if self.0.len() < MAX_KINDS {
            self.0.insert(kind.to_owned(), number);
        } else {
            *self.0.entry("others".to_owned()).or_default() += number;
        }
    }

    /// Counts an answer that is an error, by its code and remark. Remarks that differ only in
    /// their numbers (times, lengths of queues) are of one kind.
    pub fn refused(&mut self, code: i32, remark: Option<&str>) {
        let mut kind = format!("code {code}: ");
        for letter in remark.unwrap_or("no remark").chars().take(100) {
            if !letter.is_ascii_digit() {
                kind.push(letter);
            } else if !kind.ends_with('#') {
                kind.push('#');
            }
        }
        self.count(&kind);
    }

    /// Adds those of another thread.
    pub fn add(&mut self, other: &Self) {
        for (kind, number) in &other.0 {
            self.count_many(kind, *number);
        }
    }

    /// How many there were in all.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Kinds and numbers.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(kind, number)| (kind.as_str(), *number))
    }

    /// Fails when there was any.
    ///
    /// # Errors
    /// [`BenchError::Failed`] names them.
    pub fn verdict(&self) -> Result<(), BenchError> {
        if self.0.is_empty() {
            return Ok(());
        }
        let list: Vec<String> = self.iter().map(|(k, n)| format!("{n} x {k}")).collect();
        Err(BenchError::Failed(list.join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remarks_that_differ_in_their_numbers_are_of_one_kind() {
        let mut faults = Faults::default();
        for time in [7, 203, 1_204] {
            faults.refused(2, Some(&format!("busy, {time}ms in the queue")));
        }
        let kinds: Vec<_> = faults.iter().collect();
        assert_eq!(kinds, [("code 2: busy, #ms in the queue", 3)]);
    }

    #[test]
    fn a_run_with_any_fault_has_failed() {
        let mut faults = Faults::default();
        faults.count_many("nothing", 0);
        assert!(faults.verdict().is_ok());
        for number in 0..30 {
            faults.refused(number, Some("busy"));
        }
        assert_eq!(faults.total(), 30);
        let text = faults.verdict().unwrap_err().to_string();
        assert!(
            text.contains("1 x code 0: busy") && text.contains("10 x others"),
            "{text}"
        );
    }
}
