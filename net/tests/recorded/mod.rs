//! The recorded frames under `tests/golden/frames`.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use saturnmq_net::command::{Command, Scratch, decode};
use saturnmq_net::frame::{MAX_FRAME, Parsed, parse};
use serde_json::Value;

/// One recorded frame.
#[allow(dead_code)] // no test binary looks at all of it
pub struct Recorded {
    pub file: String,
    pub connection: String,
    pub kind: String,
    /// Why the recorder could not read it.
    pub error: String,
    /// Code of the request that a response answers.
    pub request: Option<i32>,
    pub bytes: Vec<u8>,
}

fn files(directory: &Path, into: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = std::fs::read_dir(directory)
        .expect("the recorded frames")
        .map(|entry| entry.expect("a directory entry").path())
        .collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            files(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "zst") {
            into.push(path);
        }
    }
}

/// All recorded frames, in the order of files and arrival.
pub fn recorded() -> &'static [Recorded] {
    static FRAMES: OnceLock<Vec<Recorded>> = OnceLock::new();
    FRAMES.get_or_init(unpack)
}

fn unpack() -> Vec<Recorded> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/frames");
    let mut paths = Vec::new();
    files(&root, &mut paths);
    let mut frames = Vec::new();
    for path in paths {
        let file = path
            .strip_prefix(&root)
            .expect("a file below the root")
            .display()
            .to_string();
        let packed = std::fs::File::open(&path).expect("a recorded file");
        let text = zstd::decode_all(packed).expect("a zstd file");
        for line in text
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
        {
            let line: Value = serde_json::from_slice(line).expect("a line of JSON");
            let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
            if line["b64"].is_string() {
                frames.push(Recorded {
                    file: file.clone(),
                    connection: text("conn"),
                    kind: text("kind"),
                    error: text("error"),
                    request: line["req"].as_i64().map(|code| code as i32),
                    bytes: STANDARD.decode(text("b64")).expect("base64"),
                });
            }
        }
    }
    assert!(frames.len() > 15_000, "only {} frames", frames.len());
    frames
}

/// Reads a frame that is right and complete.
pub fn read<'a>(bytes: &'a [u8], scratch: &'a mut Scratch) -> Command<'a> {
    match parse(bytes, MAX_FRAME) {
        Ok(Parsed::Complete { frame, consumed }) => {
            assert_eq!(consumed, bytes.len());
            decode(frame, scratch).expect("a readable header")
        }
        other => panic!("no frame: {other:?}"),
    }
}
