//! How late a broker's delay levels deliver.

use std::time::Duration;

use saturnmq_net::client::Client;
use saturnmq_net::codes::{request, response};

use super::BenchError;

/// The delay of a level, from 1 on, as the broker's configuration has it.
///
/// # Errors
/// [`BenchError`] when the broker does not say, or has no such level.
pub fn of_level(address: &str, level: u8, timeout: Duration) -> Result<Duration, BenchError> {
    let mut client = Client::connect(address, timeout)?;
    let answer = client.invoke(request::GET_BROKER_CONFIG, |_| {}, &[], timeout)?;
    let system = |text: String| BenchError::System(text);
    if answer.code != response::SUCCESS {
        let remark = answer.remark.unwrap_or_default();
        let text = format!("the broker's configuration: code {}: {remark}", answer.code);
        return Err(system(text));
    }
    let text = String::from_utf8_lossy(&answer.body);
    let levels = levels(&text)
        .ok_or_else(|| system("the broker's configuration has no messageDelayLevel".to_owned()))?;
    let number = levels.split_ascii_whitespace().count();
    let word = usize::from(level)
        .checked_sub(1)
        .and_then(|index| levels.split_ascii_whitespace().nth(index))
        .ok_or_else(|| {
            system(format!(
                "--level {level}: the broker has levels 1 to {number}"
            ))
        })?;
    delay(word).ok_or_else(|| system(format!("messageDelayLevel has \"{word}\"")))
}

fn levels(config: &str) -> Option<&str> {
    let line = config
        .lines()
        .find(|line| line.starts_with("messageDelayLevel"))?;
    Some(line.split_once('=')?.1)
}

fn delay(word: &str) -> Option<Duration> {
    let (number, unit) = word.split_at_checked(word.len().checked_sub(1)?)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return None,
    };
    let number: u64 = number.parse().ok()?;
    number.checked_mul(seconds).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_read_from_the_configuration() {
        let config = "a=b\nmessageDelayLevel=1s 5s 2m 1h\nc=d\n";
        assert_eq!(levels(config), Some("1s 5s 2m 1h"));
        assert_eq!(delay("2m"), Some(Duration::from_secs(120)));
        for word in ["", "s", "5", "5x", "-1s"] {
            assert_eq!(delay(word), None, "{word}");
        }
    }
}
