//! Tables for people: columns as wide as their widest cell, numbers to the right.

use super::{AdminError, Output};

/// A table with a heading.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    heading: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(heading: &[&'static str]) -> Self {
        Self {
            heading: heading.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row with as many cells as the heading has.
    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.heading.len());
        self.rows.push(cells);
    }

    /// The table as text.
    pub fn text(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.chain([self.heading[column].len()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.heading.len()).map(width).collect();
        let numeric: Vec<bool> = (0..self.heading.len())
            .map(|column| {
                let mut cells = self.rows.iter().map(|row| row[column].as_str());
                !self.rows.is_empty()
                    && cells.all(|cell| cell == "-" || cell.parse::<f64>().is_ok())
            })
            .collect();
        let heading = self.heading.iter().map(ToString::to_string).collect();
        let mut text = String::new();
        for row in std::iter::once(&heading).chain(&self.rows) {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let padding = " ".repeat(widths[column] - cell.chars().count());
                if column > 0 {
                    line.push_str("  ");
                }
                if numeric[column] {
                    line.push_str(&padding);
                    line.push_str(cell);
                } else {
                    line.push_str(cell);
                    line.push_str(&padding);
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// Writes the table.
    ///
    /// # Errors
    /// The stream's.
    pub fn write(&self, to: &mut Output<'_>) -> Result<(), AdminError> {
        to.out.write_all(self.text().as_bytes())?;
        to.out.flush()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_must_be() {
        let mut table = Table::new(&["TOPIC", "MESSAGES"]);
        table.row(vec!["Orders".into(), "12".into()]);
        table.row(vec!["A".into(), "-".into()]);
        assert_eq!(
            table.text(),
            "TOPIC   MESSAGES\nOrders        12\nA              -\n"
        );
    }

    #[test]
    fn a_table_without_rows_is_its_heading() {
        assert_eq!(Table::new(&["A", "B"]).text(), "A  B\n");
    }
}
