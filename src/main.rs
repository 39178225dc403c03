//! The `saturnmq` binary: parses the command line and runs it.

use std::process::ExitCode;

fn main() -> ExitCode {
    saturnmq::cli::run()
}
