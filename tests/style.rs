//! The habits of docs/design.md, "House rules" that a machine can check.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use syn::spanned::Spanned;
use syn::visit::Visit;

/// Longest function, in lines from its signature to its closing brace.
const FUNCTION_LINES: usize = 70;
/// Longest source file, in lines.
const FILE_LINES: usize = 600;
/// Widest line, in characters.
const LINE_CHARACTERS: usize = 100;

/// Files over [`FILE_LINES`] with the reason. A ratchet: shrink a number, never raise one.
const LONG_FILES: &[(&str, usize)] = &[];

/// Functions over [`FUNCTION_LINES`] with their length: tables that read best in one piece.
const LONG_FUNCTIONS: &[(&str, &str, usize)] = &[];

/// The only modules that may hold `unsafe` (docs/design.md, "Unsafe code").
const UNSAFE_MODULES: &[&str] = &[
    "net/src/ring.rs",
    "net/src/ring/messenger.rs",
    "net/src/buffers.rs",
    "storage/src/disk/uring.rs",
    "storage/src/disk/aligned.rs",
    "storage/src/mapping.rs",
    "storage/src/mapping/faults.rs",
    "storage/src/tail.rs",
];

/// Modules that turn bytes into commands and back: no socket, no clock, no file.
const PURE_MODULES: &[&str] = &[
    "net/src/frame.rs",
    "net/src/command.rs",
    "net/src/codes.rs",
    "net/src/encode.rs",
    "net/src/encode/",
    "net/src/fastjson.rs",
    "net/src/header/",
    "net/src/messages/",
    "storage/src/format/",
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

/// Every product source file as (path from the root, text).
fn sources() -> Vec<(String, String)> {
    let mut paths = Vec::new();
    for folder in ["src", "net/src", "storage/src"] {
        rust_files(&root().join(folder), &mut paths);
    }
    assert!(paths.len() > 40, "the source folders were not found");
    paths.sort();
    paths
        .into_iter()
        .map(|path| {
            let name = path
                .strip_prefix(root())
                .unwrap()
                .to_string_lossy()
                .into_owned();
            (name, fs::read_to_string(&path).unwrap())
        })
        .collect()
}

/// The text before the `#[cfg(test)]` module that stands in the file itself. A module that is only
/// named there (`mod tests;`) ends nothing.
fn product_part(text: &str) -> &str {
    let stands_here = |at: &usize| {
        let module = text[*at..].lines().nth(2);
        let module = module.map(|line| line.trim_start_matches("pub(crate) "));
        module.is_some_and(|line| line.starts_with("mod ") && line.ends_with('{'))
    };
    text.match_indices("\n#[cfg(test)]\n")
        .map(|(at, _)| at)
        .find(stands_here)
        .map_or(text, |end| &text[..end])
}

#[test]
fn only_a_test_module_in_the_file_itself_ends_its_product_part() {
    let named = "use a;\n\n#[cfg(test)]\nmod tests;\nfn b() {}\n";
    assert_eq!(product_part(named), named);
    let inline = format!("{named}\n#[cfg(test)]\nmod more {{\n    fn c() {{}}\n}}\n");
    assert_eq!(product_part(&inline), named);
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

fn expect_none(what: &str, found: &[String]) {
    assert!(found.is_empty(), "{what}:\n{}", found.join("\n"));
}

#[test]
fn library_crates_depend_on_nothing_of_ours() {
    for manifest in ["net/Cargo.toml", "storage/Cargo.toml"] {
        let text = fs::read_to_string(root().join(manifest)).unwrap();
        let dependency = text.lines().find(|line| {
            line.starts_with("saturnmq") && line.contains('=') && !line.starts_with("name")
        });
        assert_eq!(dependency, None, "{manifest}");
    }
}

#[test]
fn codec_modules_name_no_input_or_output() {
    let banned = [
        "io_uring",
        "libc::",
        "nix::",
        "std::net::Tcp",
        "std::fs",
        "std::time::Instant",
    ];
    let mut found = Vec::new();
    for (name, text) in sources() {
        if !PURE_MODULES.iter().any(|module| name.starts_with(module)) {
            continue;
        }
        for (index, line) in product_part(&text).lines().enumerate() {
            if !is_comment(line) && banned.iter().any(|word| line.contains(word)) {
                found.push(format!("{name}:{}: {}", index + 1, line.trim()));
            }
        }
    }
    expect_none("a codec module names input or output", &found);
}

#[test]
fn unsafe_stands_only_in_the_marked_modules_under_a_safety_comment() {
    let mut found = Vec::new();
    for (name, text) in sources() {
        let lines: Vec<&str> = text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let is_unsafe = code
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .any(|word| word == "unsafe");
            if !is_unsafe {
                continue;
            }
            let from = index.saturating_sub(8);
            let explained = lines[from..=index]
                .iter()
                .any(|near| near.contains("SAFETY:") || near.contains("# Safety"));
            if !UNSAFE_MODULES.contains(&name.as_str()) || !explained {
                found.push(format!("{name}:{}: {}", index + 1, line.trim()));
            }
        }
    }
    expect_none(
        "unsafe outside the marked modules, or without SAFETY",
        &found,
    );
}

#[test]
fn the_store_syncs_and_names_files_through_one_module() {
    // The disks behind the log have their own trait; the probe's file never holds anything.
    let exempt = ["storage/src/medium.rs", "storage/src/disk/"];
    let banned = [
        ".sync_all()",
        ".sync_data()",
        "fs::remove_file(",
        "fs::remove_dir(",
        "fs::rename(",
        "fs::create_dir",
        "msync(",
        "syncfs(",
        "fadvise(",
    ];
    let mut found = Vec::new();
    for (name, text) in sources() {
        if !name.starts_with("storage/src/")
            || exempt.iter().any(|module| name.starts_with(module))
            || name.ends_with("/tests.rs")
            || name.contains("/tests/")
        {
            continue;
        }
        for (index, line) in product_part(&text).lines().enumerate() {
            let is_banned = banned.iter().any(|word| line.contains(word));
            // `medium::sync_mapped` runs the one call that is unsafe.
            let marked = line.contains("unsafe { libc::msync(");
            if is_banned && !is_comment(line) && !marked {
                found.push(format!("{name}:{}: {}", index + 1, line.trim()));
            }
        }
    }
    expect_none("a sync or a change of a name beside medium.rs", &found);
}

#[test]
fn unwrap_and_expect_give_their_reason() {
    let mut found = Vec::new();
    for (name, text) in sources() {
        if name.ends_with("/tests.rs") || name.contains("/tests/") {
            continue;
        }
        let lines: Vec<&str> = product_part(&text).lines().collect();
        for (index, line) in lines.iter().enumerate() {
            if is_comment(line) || !(line.contains(".unwrap()") || line.contains(".expect(")) {
                continue;
            }
            let from = index.saturating_sub(3);
            let reasoned = lines[from..=index].iter().any(|near| near.contains("// "));
            if !reasoned {
                found.push(format!("{name}:{}: {}", index + 1, line.trim()));
            }
        }
    }
    expect_none("unwrap or expect without a reason in a comment", &found);
}

#[test]
fn no_stub_stands_in_the_product() {
    let banned = ["todo!(", "unimplemented!(", "FIXME", "TODO", "XXX "];
    let mut found = Vec::new();
    for (name, text) in sources() {
        for (index, line) in product_part(&text).lines().enumerate() {
            if banned.iter().any(|word| line.contains(word)) {
                found.push(format!("{name}:{}: {}", index + 1, line.trim()));
            }
        }
    }
    expect_none("a stub or a promise in the code", &found);
}

#[test]
fn files_and_lines_stay_short() {
    let mut found = Vec::new();
    for (name, text) in sources() {
        let lines = product_part(&text).lines().count();
        let allowed = LONG_FILES
            .iter()
            .find(|(file, _)| *file == name)
            .map_or(FILE_LINES, |(_, n)| *n);
        if lines > allowed {
            found.push(format!("{name}: {lines} lines, allowed {allowed}"));
        }
        for (index, line) in text.lines().enumerate() {
            if line.chars().count() > LINE_CHARACTERS {
                found.push(format!(
                    "{name}:{}: line over {LINE_CHARACTERS} characters",
                    index + 1
                ));
            }
        }
    }
    expect_none("files or lines too long", &found);
}

struct Functions<'a> {
    file: &'a str,
    found: Vec<String>,
}

impl Functions<'_> {
    fn check(&mut self, name: &str, span: proc_macro2::Span) {
        let lines = span.end().line - span.start().line + 1;
        let allowed = LONG_FUNCTIONS
            .iter()
            .find(|(file, function, _)| *file == self.file && *function == name)
            .map_or(FUNCTION_LINES, |(_, _, n)| *n);
        if lines > allowed {
            self.found.push(format!(
                "{}: fn {name}: {lines} lines, allowed {allowed}",
                self.file
            ));
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let is_test = item
            .attrs
            .iter()
            .any(|attribute| attribute.path().is_ident("cfg"));
        if !is_test {
            syn::visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        let span = item.sig.span().join(item.block.span()).unwrap();
        self.check(&item.sig.ident.to_string(), span);
        syn::visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        let span = item.sig.span().join(item.block.span()).unwrap();
        self.check(&item.sig.ident.to_string(), span);
        syn::visit::visit_impl_item_fn(self, item);
    }
}

#[test]
fn functions_stay_short() {
    let mut found = Vec::new();
    for (name, text) in sources() {
        let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut functions = Functions {
            file: &name,
            found: Vec::new(),
        };
        functions.visit_file(&file);
        found.append(&mut functions.found);
    }
    expect_none("functions too long", &found);
}

#[test]
fn no_module_is_named_after_nothing() {
    let banned: BTreeSet<&str> = [
        "util", "utils", "common", "helper", "helpers", "manager", "misc",
    ]
    .into();
    let found: Vec<String> = sources()
        .into_iter()
        .map(|(name, _)| name)
        .filter(|name| {
            name.trim_end_matches(".rs")
                .split('/')
                .any(|part| banned.contains(part))
        })
        .collect();
    expect_none("a module whose name says nothing", &found);
}

#[test]
fn every_page_that_code_cites_exists_with_that_heading() {
    let mut found = Vec::new();
    for (name, text) in sources() {
        // Citations may wrap: comment markers are removed before looking.
        let flat: String = text
            .lines()
            .map(|line| line.trim().trim_start_matches(['/', '!']).trim())
            .collect::<Vec<_>>()
            .join(" ");
        for (start, _) in flat.match_indices("docs/") {
            let rest = &flat[start..];
            let Some(end) = rest.find(".md") else {
                continue;
            };
            if rest[..end].contains(' ') {
                continue;
            }
            let page = &rest[..end + 3];
            let Ok(content) = fs::read_to_string(root().join(page)) else {
                found.push(format!("{name}: {page} does not exist"));
                continue;
            };
            let Some(cited) = rest[end + 3..].strip_prefix(", ") else {
                continue;
            };
            let headings = || content.lines().filter(|line| line.starts_with('#'));
            let stands = match cited.strip_prefix('"') {
                Some(quoted) => {
                    let heading = quoted.split('"').next().unwrap_or_default();
                    headings().any(|line| line.trim_start_matches('#').trim() == heading)
                }
                // Without quotes the heading's end is not marked: one must begin there.
                None => {
                    !cited.starts_with(|first: char| first.is_ascii_uppercase())
                        || headings()
                            .any(|line| cited.starts_with(line.trim_start_matches('#').trim()))
                }
            };
            if !stands {
                let shown: String = cited.chars().take(40).collect();
                found.push(format!("{name}: {page} has no heading for: {shown}"));
            }
        }
    }
    found.sort();
    found.dedup();
    expect_none("citations that lead nowhere", &found);
}

#[test]
fn the_tests_that_the_durability_page_names_exist() {
    let page = fs::read_to_string(root().join("docs/durability.md")).unwrap();
    let (_, section) = page.split_once("\n## Tests of the promises\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let mut paths = Vec::new();
    for folder in ["src", "net", "storage", "tests"] {
        rust_files(&root().join(folder), &mut paths);
    }
    let text: String = paths
        .iter()
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    // Every other piece between back-ticks is a name.
    let names: Vec<&str> = section.split('`').skip(1).step_by(2).collect();
    assert!(names.len() > 15, "the table was not found");
    let stores = root().join("tests/clients/store/src/test/java/saturnmq/store");
    let java: String = fs::read_dir(stores)
        .unwrap()
        .map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect();
    let is_test = |name: &&str| {
        text.contains(&format!("#[test]\n    fn {name}("))
            || text.contains(&format!("#[test]\nfn {name}("))
            || java.contains(&format!("@Test\n    void {name}("))
    };
    let missing: Vec<String> = names
        .into_iter()
        .filter(|name| !is_test(name))
        .map(str::to_owned)
        .collect();
    expect_none("tests named in docs/durability.md that are none", &missing);
}
