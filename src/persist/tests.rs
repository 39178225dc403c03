//! State files: coalesced, durable, healing.

use std::sync::atomic::AtomicUsize;

use super::*;

struct Counter(AtomicUsize);

impl StateSource for Counter {
    fn text(&self, _: File) -> Option<String> {
        Some(format!(
            "{{\n\t\"value\":{}\n}}",
            self.0.load(Ordering::SeqCst)
        ))
    }
}

fn with_runtime(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    // A test that cannot make its runtime or does not end in time has failed.
    runtime.expect("runtime").block_on(async {
        tokio::time::timeout(Duration::from_secs(60), test)
            .await
            .expect("in time");
    });
}

fn text_of(persist: &Persist, file: File) -> String {
    std::fs::read_to_string(persist.path(file)).expect("state file")
}

#[test]
fn ten_thousand_changes_are_few_writes_and_each_is_durable_before_it_is_answered() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let persist = Arc::new(Persist::new(dir.path()));
    let source = Arc::new(Counter(AtomicUsize::new(0)));
    with_runtime(async {
        let task = tokio::spawn(Arc::clone(&persist).run(Arc::clone(&source) as _));
        let (send, mut answers) = tokio::sync::mpsc::unbounded_channel();
        let changer = {
            let (persist, source) = (Arc::clone(&persist), Arc::clone(&source));
            std::thread::spawn(move || {
                for _ in 0..10_000 {
                    let value = source.0.fetch_add(1, Ordering::SeqCst) + 1;
                    let ticket = persist.changed(File::Topics);
                    let (send, persist2) = (send.clone(), Arc::clone(&persist));
                    persist.when_durable(ticket, move |written| {
                        let text = text_of(&persist2, File::Topics);
                        let _ = send.send((value, ticket, written.is_ok(), text));
                    });
                }
            })
        };
        for _ in 0..10_000 {
            let (value, ticket, written, text) = answers.recv().await.expect("an answer");
            assert!(written && persist.is_durable(ticket));
            let on_disk: usize = text
                .trim_matches(|c: char| !c.is_ascii_digit())
                .parse()
                .expect("number");
            assert!(
                on_disk >= value,
                "{on_disk} on disk when {value} was answered"
            );
        }
        changer.join().expect("changer");
        persist.stop();
        task.await.expect("executor");
    });
    assert!(
        persist.writes(File::Topics) < 2000,
        "{} writes",
        persist.writes(File::Topics)
    );
}

/// Panics the first time.
struct Broken(Counter);

impl StateSource for Broken {
    fn text(&self, file: File) -> Option<String> {
        assert!(self.0.0.fetch_add(1, Ordering::SeqCst) > 0, "broken");
        self.0.text(file)
    }
}

#[test]
fn a_panic_while_writing_fails_its_waiters_and_heals() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let persist = Arc::new(Persist::new(dir.path()));
    let source: Arc<dyn StateSource> = Arc::new(Broken(Counter(AtomicUsize::new(0))));
    with_runtime(async {
        let task = tokio::spawn(Arc::clone(&persist).run(source));
        for healthy in [false, true] {
            let ticket = persist.changed(File::Topics);
            let (send, answer) = tokio::sync::oneshot::channel();
            persist.when_durable(ticket, move |written| {
                let _ = send.send(written.is_ok());
            });
            assert_eq!(answer.await, Ok(healthy));
        }
        persist.stop();
        task.await.expect("executor");
    });
    assert!(text_of(&persist, File::Topics).contains("value"));
}

#[test]
fn state_files_do_not_begin_a_store_anew_that_was_taken_away() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let root = dir.path().join("store");
    let persist = Persist::new(&root);
    persist.changed(File::Topics);
    let refused = persist.flush(&Counter(AtomicUsize::new(1)));
    let error = refused.expect_err("there is no store").to_string();
    assert!(error.contains("is gone"), "{error}");
    assert!(!root.exists());
    std::fs::create_dir(&root).expect("directory");
    persist
        .flush(&Counter(AtomicUsize::new(1)))
        .expect("put back");
}

#[test]
fn a_failed_write_fails_its_waiters_and_heals_with_the_next_change() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let blocked = dir.path().join("config");
    std::fs::write(&blocked, "a file where a directory must be").expect("write");
    let persist = Arc::new(Persist::new(dir.path()));
    let source: Arc<dyn StateSource> = Arc::new(Counter(AtomicUsize::new(7)));
    with_runtime(async {
        let task = tokio::spawn(Arc::clone(&persist).run(source));
        let outcome = |ticket| {
            let (send, receive) = tokio::sync::oneshot::channel();
            persist.when_durable(ticket, move |written| drop(send.send(written)));
            receive
        };
        let first = persist.changed(File::Groups);
        let error = outcome(first)
            .await
            .expect("outcome")
            .expect_err("the disk refuses");
        assert!(
            error.to_string().contains("subscriptionGroup.json"),
            "{error}"
        );
        assert!(!persist.is_durable(first));
        assert_eq!(persist.failures().len(), 1);
        std::fs::remove_file(&blocked).expect("remove");
        let second = persist.changed(File::Groups);
        outcome(second).await.expect("outcome").expect("written");
        assert!(persist.is_durable(first) && persist.is_durable(second));
        assert!(persist.failures().is_empty());
        persist.stop();
        task.await.expect("executor");
    });
}

#[test]
fn a_replaced_file_leaves_the_old_one_as_backup_and_no_temporary_name() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("config/topics.json");
    for text in ["one", "two", "three"] {
        replace_file(&path, text.as_bytes()).expect("replace");
    }
    let read = |name: &str| std::fs::read_to_string(dir.path().join("config").join(name));
    assert_eq!(read("topics.json").expect("file"), "three");
    assert_eq!(read("topics.json.bak").expect("backup"), "two");
    let names = std::fs::read_dir(dir.path().join("config"))
        .expect("list")
        .count();
    assert_eq!(names, 2);
}

#[test]
fn a_half_written_temporary_file_is_never_read() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let persist = Persist::new(dir.path());
    let path = persist.path(File::Topics);
    replace_file(&path, b"good").expect("replace");
    std::fs::write(with_suffix(&path, ".tmp"), "torn").expect("write");
    std::fs::write(with_suffix(&path, ".bak.tmp"), "torn").expect("write");
    assert_eq!(
        persist.load(File::Topics, utf8).expect("load").as_deref(),
        Some("good")
    );
    replace_file(&path, b"better").expect("replace");
    assert_eq!(
        persist.load(File::Topics, utf8).expect("load").as_deref(),
        Some("better")
    );
}

fn utf8(bytes: &[u8]) -> Result<String, String> {
    let text = String::from_utf8(bytes.to_vec()).map_err(|e| e.to_string())?;
    if text.contains("torn") {
        Err("torn".into())
    } else {
        Ok(text)
    }
}

#[test]
fn damage_falls_back_to_the_backup_and_then_refuses() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let persist = Persist::new(dir.path());
    let path = persist.path(File::Topics);
    assert!(persist.load(File::Topics, utf8).expect("load").is_none());
    replace_file(&path, b"old").expect("replace");
    replace_file(&path, b"torn").expect("replace");
    assert_eq!(
        persist.load(File::Topics, utf8).expect("load").as_deref(),
        Some("old")
    );
    std::fs::write(&path, "").expect("empty");
    assert_eq!(
        persist.load(File::Topics, utf8).expect("load").as_deref(),
        Some("old")
    );
    std::fs::write(&path, "torn").expect("write");
    std::fs::remove_file(with_suffix(&path, ".bak")).expect("remove");
    let error = persist.load(File::Topics, utf8).expect_err("damaged");
    let said = error.to_string();
    assert!(said.contains("topics.json is damaged"), "{said}");
    assert!(said.contains("there is no .bak"), "{said}");
    std::fs::write(with_suffix(&path, ".bak"), "torn").expect("write");
    let said = persist
        .load(File::Topics, utf8)
        .expect_err("damaged")
        .to_string();
    assert!(said.contains("so is its .bak"), "{said}");
    std::fs::remove_file(&path).expect("remove");
    let said = persist
        .load(File::Topics, utf8)
        .expect_err("damaged")
        .to_string();
    assert!(said.contains("topics.json.bak is damaged"), "{said}");
    assert!(said.contains("missing or empty"), "{said}");
}

#[test]
fn half_of_the_time_stays_free_of_writes_once_a_burst_is_over() {
    let ms = Duration::from_millis;
    let mut now = Instant::now();
    let mut rests = Rests::new(now);
    let mut write = |took, now: &mut Instant| {
        let begun = *now;
        *now += took;
        let rest = rests.after(begun, *now);
        *now += rest;
        rest
    };
    for _ in 0..5 {
        assert_eq!(write(ms(10), &mut now), ms(0));
    }
    for _ in 0..5 {
        assert_eq!(write(ms(10), &mut now), ms(10));
    }
    // A disk that hangs holds the next change up by no more than the longest rest.
    assert_eq!(write(ms(5000), &mut now), REST_MAX);
    now += ms(100);
    assert_eq!(write(ms(10), &mut now), ms(0));
}

#[test]
fn a_backup_that_was_used_is_not_replaced_by_what_was_damaged() {
    for damaged in ["", "torn"] {
        let dir = tempfile::tempdir().expect("temporary directory");
        let persist = Persist::new(dir.path());
        let path = persist.path(File::Topics);
        for text in ["old", "newer"] {
            replace_file(&path, text.as_bytes()).expect("replace");
        }
        std::fs::write(&path, damaged).expect("damage");
        let loaded = persist.load(File::Topics, utf8).expect("load");
        assert_eq!(loaded.as_deref(), Some("old"));
        let source = Counter(AtomicUsize::new(1));
        let backup = || std::fs::read_to_string(with_suffix(&path, ".bak")).expect("backup");
        let written = || std::fs::read_to_string(&path).expect("file");
        persist.changed(File::Topics);
        persist.flush(&source).expect("write");
        // A kill between the two names would have left no good copy.
        assert_eq!(backup(), "old", "{damaged:?}");
        let first = written();
        source.0.store(2, Ordering::SeqCst);
        persist.changed(File::Topics);
        persist.flush(&source).expect("write");
        assert_ne!(written(), first);
        assert_eq!(backup(), first, "{damaged:?}");
    }
}
