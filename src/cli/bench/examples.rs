//! What `--help` shows under the options of each load.

/// `bench --help`.
pub const ALL: &str = "\
Examples:
  saturnmq bench produce --rate 20000 --size 128*9,1024-65536*1
      20,000 messages a second whatever the broker does (open loop), nine small ones to one large
  saturnmq bench produce --closed
      1 KiB messages to the broker behind 127.0.0.1:9876 as fast as it answers (closed loop)
  saturnmq bench drain --topic saturnmq_bench --pid $(pidof -s saturnmq)
      what the topic holds, with the broker's CPU time, memory and writes
  saturnmq bench end-to-end --rate 1000 --hlog latencies.hlog --report out.html
      from the moment a message is due to its receipt by a waiting consumer
  saturnmq bench compare before.json after.json --report out.html
      ratios of the runs in two files, with their spread

saturnmq bench LOAD --help shows the options of a load, with examples.

Ctrl-C ends a run with the result so far; twice, without one. Exits with 0 when the broker did
everything right, with 1 otherwise, and with 2 when the command line is wrong.";

/// `bench produce --help`.
pub const PRODUCE: &str = "\
Examples:
  saturnmq bench produce --rate 20000 --size 128*9,1024-65536*1
      20,000 messages a second whatever the broker does (open loop), nine small ones to one large
  saturnmq bench produce --closed --connections 16 --in-flight 8
      as fast as the broker answers 16 connections with 8 sends on their way each (closed loop)
  saturnmq bench produce --find-knee 10ms
      the highest rate at which 99 of 100 sends are answered within 10 ms
  saturnmq bench produce --closed --topics 100 --count 1000000 --json
      a million messages over 100 topics, for scripts
  saturnmq bench produce --closed --broker 10.0.0.7:10911 --header rocketmq --batch 32
      batches to one broker, without a name server, in Apache's binary header form";

/// `bench drain --help`.
pub const DRAIN: &str = "\
Examples:
  saturnmq bench produce --closed --topic backlog --count 1000000
  saturnmq bench drain --topic backlog --pid $(pidof -s saturnmq)
      makes a backlog and reads it, with the broker's CPU time, memory and writes
  saturnmq bench drain --topic backlog --connections 1 --pull 8
      the same on one connection, 8 messages a pull";

/// `bench end-to-end --help`.
pub const END_TO_END: &str = "\
Examples:
  saturnmq bench end-to-end --rate 1000 --hlog latencies.hlog --report out.html
      from the moment a message is due to its receipt by a waiting consumer
  saturnmq bench end-to-end --rate 20000 --consumers 8 --tags 4 --keys 1000
      more of them, to 8 consumers, with tags and keys
  saturnmq bench end-to-end --find-knee 5ms
      the highest rate at which 99 of 100 messages are received within 5 ms";

/// `bench fan-out --help`.
pub const FAN_OUT: &str = "\
Examples:
  saturnmq bench fan-out --groups 8 --rate 2000
      each of 2,000 messages a second to each of 8 consumer groups: 16,000 receipts a second";

/// `bench topics --help`.
pub const TOPICS: &str = "\
Examples:
  saturnmq bench topics --topics 1000 --queues 4 --closed --connections 16 --in-flight 8
      the highest rate over 1, 10, 100 and 1,000 topics, and how it changes
  saturnmq bench topics --topics 10000 --rate 5000
      the latencies at 5,000 messages a second over more and more topics";

/// `bench connections --help`.
pub const CONNECTIONS: &str = "\
Examples:
  saturnmq bench connections --idle 5000 --connections 8 --rate 2000
      2,000 messages a second over 8 connections, beside 5,000 that do nothing";

/// `bench catch-up --help`.
pub const CATCH_UP: &str = "\
Examples:
  saturnmq bench produce --closed --topic cold --count 8000000 --read-back 0
  saturnmq bench catch-up --topic cold --rate 50000 --readers 4
      makes a backlog of 8 GB; then what its readers cost those who go on sending";

/// `bench transaction --help`.
pub const TRANSACTION: &str = "\
Examples:
  saturnmq bench transaction --rate 500 --rolled-back 10
      500 transactions a second, of which one in ten is rolled back and must not arrive";

/// `bench delay --help`.
pub const DELAY: &str = "\
Examples:
  saturnmq bench delay --level 2 --rate 1000
      how late 1,000 messages a second of the second delay level are delivered";

/// `bench compare --help`.
pub const COMPARE: &str = "\
Examples:
  saturnmq bench produce --closed --json --quiet >>before.json
  saturnmq bench produce --closed --json --quiet >>after.json
  saturnmq bench compare before.json after.json --report out.html
      ratios of the runs in both files, one by one, with their spread, and their plots
  saturnmq bench compare --best --target 'messages/s>=2x' apache.json other.json ours.json
      ratios to the better of the others, and whether they are what they should be";
