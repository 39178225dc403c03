//! The changes that an answer waits for.

use super::{File, Ticket};

/// Of each state file the last change: durable no earlier than the others of the same file,
/// whatever order they were found in.
#[derive(Clone, Debug, Default)]
pub struct LastChanges([Option<Ticket>; File::ALL.len()]);

impl LastChanges {
    /// An answer waits for this change as well; `None`: for nothing more.
    pub fn add(&mut self, change: Option<Ticket>) {
        let Some(change) = change else { return };
        let last = &mut self.0[change.file.index()];
        if last.is_none_or(|last| last.version < change.version) {
            *last = Some(change);
        }
    }

    /// The changes; no more than there are files.
    #[must_use]
    pub fn into_tickets(self) -> Vec<Ticket> {
        self.0.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_change_takes_the_place_of_no_newer_one_of_its_file() {
        let of = |file, version| Ticket { file, version };
        let mut last = LastChanges::default();
        for change in [
            Some(of(File::Topics, 7)),
            Some(of(File::Groups, 2)),
            Some(of(File::Topics, 3)),
            None,
            Some(of(File::Groups, 4)),
        ] {
            last.add(change);
        }
        let expected = [of(File::Topics, 7), of(File::Groups, 4)];
        assert_eq!(last.into_tickets(), expected);
    }
}
