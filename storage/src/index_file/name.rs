//! Names of index files: the local time of their creation, to the millisecond.

use jiff::Zoned;

/// Digits of a name.
const DIGITS: usize = 17;

/// The name of a file made now; greater than `last` even when the clock went back.
pub fn next(last: Option<&str>) -> String {
    after(of(&Zoned::now()), last)
}

fn of(time: &Zoned) -> String {
    time.strftime("%Y%m%d%H%M%S%3f").to_string()
}

/// Files are ordered by name, and the last one is the one that is written to.
fn after(name: String, last: Option<&str>) -> String {
    match last {
        Some(last) if *name <= *last => {
            let number = last.parse::<u64>().unwrap_or(0).saturating_add(1);
            format!("{number:0DIGITS$}")
        }
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::tz::{TimeZone, offset};

    #[test]
    fn a_name_is_the_local_time_to_the_millisecond() {
        let time = jiff::Timestamp::from_millisecond(1_700_000_000_456).unwrap();
        let utc = time.to_zoned(TimeZone::UTC);
        assert_eq!(of(&utc), "20231114221320456");
        let shanghai = time.to_zoned(offset(8).to_time_zone());
        assert_eq!(of(&shanghai), "20231115061320456");
        assert_eq!(next(None).len(), DIGITS);
    }

    #[test]
    fn names_grow_even_when_the_clock_does_not() {
        let name = "20231114221320456".to_owned();
        let greater = after(name.clone(), Some(&name));
        assert_eq!(greater, "20231114221320457");
        assert_eq!(after(name.clone(), Some("20231114221320455")), name);
        assert_eq!(after(name, Some("20231114235959999")), "20231114235960000");
    }
}
